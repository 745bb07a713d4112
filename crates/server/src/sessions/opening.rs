//! Opens: whose kernel keeps pages of a file, and whose has the file by itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_types::{Errno, Handle, Ino, OpenFlags, limits};
use forebay_wire::{OpenMode, Opened, Peer, Recall, Reply, Request, Response};

use parking_lot::Mutex;

use super::effect::{Effect, Patience};
use super::{File, Session};

/// A handle by which no kernel has the file open any more is closed by the mount within this time,
/// also on a node that has much to do. After that the mount is taken for stuck.
const CLOSE_LATE: Duration = Duration::from_secs(5);
/// The same of a handle for reading, of which no kernel tells whether it is open: it may be, and
/// its file is opened for writing so much later.
const READER_CLOSE_LATE: Duration = Duration::from_millis(500);
/// So many opens of one client wait for that: the closes need requests, too.
const WAITING_MAX: usize = 16;
/// Files of which it is remembered that a wait was in vain.
const IN_VAIN_MAX: usize = 1024;
/// Between two looks whether it has come: the first, and the longest.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Of a request that opens something.
#[derive(Clone, Copy, Default)]
pub(super) struct Opens {
    /// A handle was taken into account.
    counted: bool,
    /// What it opens, where the request says.
    pub(super) file: Option<Ino>,
    /// For reading, for writing, or for both.
    pub(super) flags: OpenFlags,
}

/// Opens that wait for closes that the server has not heard of.
#[derive(Default)]
pub(super) struct LateCloses {
    waiting: AtomicUsize,
    /// Handles that were waited for in vain, by file: nobody waits for them again.
    in_vain: Mutex<HashMap<Ino, HashSet<Handle>>>,
}

impl LateCloses {
    fn was_in_vain(&self, ino: Ino, handles: &[Handle]) -> bool {
        let in_vain = self.in_vain.lock();
        let known = in_vain.get(&ino);
        known.is_some_and(|known| handles.iter().all(|handle| known.contains(handle)))
    }

    fn note_in_vain(&self, ino: Ino, handles: Vec<Handle>) {
        let mut in_vain = self.in_vain.lock();
        if in_vain.len() >= IN_VAIN_MAX {
            in_vain.clear();
        }
        in_vain.insert(ino, handles.into_iter().collect());
    }
}

impl Opens {
    fn of(request: &Request) -> Opens {
        let (file, flags) = match request {
            Request::Open { ino, flags, .. } => (Some(*ino), *flags),
            Request::Create { flags, .. } | Request::CreateUnnamed { flags, .. } => (None, *flags),
            Request::OpenDir { .. } => (None, OpenFlags::default()),
            _ => return Opens::default(),
        };
        Opens {
            counted: true,
            file,
            flags,
        }
    }
}

impl Session {
    pub(super) fn note_not_opened(&self, opens: Opens) {
        self.handles
            .fetch_sub(usize::from(opens.counted), Ordering::Relaxed);
    }

    /// Takes a handle more into account; `ENFILE` if the client has too many.
    pub(super) fn reserve_handle(&self, request: &Request) -> Result<Opens, Errno> {
        let opens = Opens::of(request);
        if opens.counted
            && self.handles.fetch_add(1, Ordering::Relaxed) >= limits::HANDLES_PER_SESSION_MAX
        {
            self.handles.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::ENFILE);
        }
        Ok(opens)
    }

    /// The client listens; it may have dropped its pages of before.
    pub(super) fn note_listening(&self, settled: bool) {
        let common = &self.common;
        common.followed.store(true, Ordering::SeqCst);
        if settled && self.life != 0 {
            common.lives.settle(self.life);
        }
    }

    pub(super) fn note_closed(&self, file: &File) {
        if file.written {
            self.common.lately.end_writing(file.ino);
        }
        if file.held {
            self.common.holding.let_go(file.ino, self.life);
        }
    }

    /// The client's kernel may have looked where a file ends long before the file is mapped. The
    /// client is not waited for: its own request is being answered, and the answer says where. It
    /// may get lost, and the request come once more: then the recall says it, a moment later. Who
    /// only reads loses nothing by that, and is not held up.
    pub(super) fn tell_end(&self, (ino, handle): (Ino, Handle), response: &mut Response) {
        let Some(end) = self.common.end_of(ino) else {
            return;
        };
        self.recalls.recall(Recall::Grown { ino, end });
        let shard = self.shard(handle.0).lock();
        let may_store = shard
            .files
            .get(&handle)
            .is_some_and(|file| file.flags.writes());
        if let (true, Response::Moved(bytes)) = (may_store, &*response) {
            *response = Response::Paged { bytes: *bytes, end };
        }
    }

    /// Whether a request may change what others have pages of, that they have not dropped yet; or
    /// would let a kernel have by itself what others will have again. No thread waits for that.
    pub(super) fn has_to_wait(&self, peer: Peer<'_>, request: &Request, effect: &Effect) -> bool {
        let opens = matches!(request, Request::Open { .. } | Request::Create { .. });
        let concerns = effect.may_change_content() || ((peer.local || peer.near) && opens);
        // A kernel writes nothing back while it sets a size: two clients that do so could wait for
        // each other.
        let is_over = effect.patience() == Patience::Short && self.common.is_long_since_start();
        concerns
            && !is_over
            && !self.reclaims.load(Ordering::Acquire)
            && !self.common.lives.are_settled(self.life)
    }

    /// Whether a client wants to have a file again to write it, of which the node that the server
    /// was on before may have lost something that was not flushed. No fsync would tell.
    pub(super) fn is_lost(&self, request: &Request) -> bool {
        let Request::Open { ino, flags, .. } = request else {
            return false;
        };
        let is_kept = self.common.is_kept.get();
        let is_again = flags.writes() && self.reclaims.load(Ordering::Acquire);
        let before = self.life_before.load(Ordering::Acquire);
        let has_moved = is_again && self.common.lives.has_moved(before);
        has_moved && is_kept.is_some_and(|is_kept| !is_kept(*ino))
    }

    /// Before the server opens a file to be read by a client that may keep pages: the file.
    pub(super) fn begin_open(&self, request: &Request) -> Option<Ino> {
        match request {
            Request::Open { ino, flags, .. } if !flags.writes() => {
                self.common.keepers.opens(*ino, self.node);
                Some(*ino)
            }
            _ => None,
        }
    }

    /// After that. The server opens one file for one client after the other: of two that want to
    /// have it each in its way, the later one finds the other.
    pub(super) fn end_open(&self, opening: Option<Ino>, opens: Opens, reply: &mut Reply) {
        let keepers = &self.common.keepers;
        let found = match &mut reply.response {
            Response::Opened(opened) => opens.file.map(|ino| (ino, opened)),
            Response::Created(shown, opened, _) => Some((shown.attr.ino, opened)),
            _ => None,
        };
        let Some((ino, opened)) = found else {
            if let Some(ino) = opening {
                keepers.has_opened(ino, self.node, None);
            }
            return;
        };
        let listens = self.recalls.are_followed();
        let is_settled = self.common.lives.are_settled(0);
        // Who has it again has perhaps kept pages by it.
        let keeps = match listens || self.recalls.has_returned() {
            true => opened.content.is_some() || !is_settled,
            false => false,
        };
        // Somebody's kernel may write it by itself since before a restart. From who does not listen
        // pages are not recalled.
        if !is_settled || !listens {
            opened.content = None;
        }
        if let Some(ino) = opening {
            keepers.has_opened(ino, self.node, keeps.then_some(opened.handle));
        }
        let Opened { handle, mode, .. } = *opened;
        if self.reclaims.load(Ordering::Acquire) && keepers.passes_elsewhere(ino, self.node) {
            // The client has come so late that another one's kernel was given the file.
            keepers.closed(ino, self.node, handle);
            self.undo(Request::Release { handle });
            reply.response = Response::Failed(Errno::ESTALE);
            return;
        }
        if mode != OpenMode::Passthrough {
            return;
        }
        self.await_late_closes(ino, opens.flags.writes());
        if !keepers.may_pass(ino, self.node, handle) {
            opened.mode = OpenMode::Plain;
            opened.place = None;
            reply.descriptor = None;
        }
    }

    /// close(2) returns before the server hears of it. So a kernel that seems to have a file by
    /// itself beside another one's pages may have closed it, and then it must not get it anew. The
    /// kernel that has it gets it again without a wait, where it may write: that node tells.
    fn await_late_closes(&self, ino: Ino, writes: bool) {
        let late = &self.late_closes;
        if late.waiting.fetch_add(1, Ordering::AcqRel) < WAITING_MAX {
            self.await_late_closes_of(ino, writes);
        }
        late.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    fn await_late_closes_of(&self, ino: Ino, writes: bool) {
        let begun = Instant::now();
        let (mut pause, longest) = LOOKS;
        let is_writer = |handle: &Handle| {
            let shard = self.shard(handle.0).lock();
            // One that is not on record yet is just being answered.
            (shard.files.get(handle)).is_none_or(|file| file.flags.writes())
        };
        loop {
            let handles = self.common.keepers.passes_beside_pages(ino, self.node);
            let patience = match (handles.iter().any(is_writer), writes) {
                _ if handles.is_empty() => return,
                (true, _) => CLOSE_LATE,
                (false, true) => READER_CLOSE_LATE,
                // Two that read by themselves harm nobody.
                (false, false) => return,
            };
            let is_written = self.common.is_written.get();
            if is_written.is_none_or(|is_written| is_written(ino))
                || self.ended.load(Ordering::Acquire)
                || self.late_closes.was_in_vain(ino, &handles)
            {
                return;
            }
            if begun.elapsed() >= patience {
                self.late_closes.note_in_vain(ino, handles);
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_in_vain_is_not_waited_for_again() {
        let late = LateCloses::default();
        let (f, a, b) = (Ino(5), Handle(1), Handle(2));
        assert!(!late.was_in_vain(f, &[a]));
        late.note_in_vain(f, vec![a]);
        assert!(late.was_in_vain(f, &[a]) && !late.was_in_vain(Ino(6), &[a]));
        assert!(!late.was_in_vain(f, &[a, b]), "another may be late");
        for at in 0..2 * IN_VAIN_MAX as u64 {
            late.note_in_vain(Ino(100 + at), vec![b]);
        }
        assert!(late.in_vain.lock().len() <= IN_VAIN_MAX);
    }
}
