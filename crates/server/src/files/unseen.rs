//! Files that the kernel writes by itself, after their last descriptor was closed: whether anybody can still write them, and whether
//! anybody has.
//!
//! A mapping outlives its descriptor, and a descriptor outlives the daemon that served its file. The kernel knows of both
//! ([`forebay_tiers::Object::has_writers`]). Invariants:
//!
//! 1. `Residency::writing` is taken off a file that was open for unseen writing only after the kernel said that nobody can write its
//!    object. Until then the file keeps a handle of the server's own for writing: it counts as open, so it is watched over, not copied,
//!    moved, sealed or evicted, and its space stays set aside.
//! 2. A file that was clean when it was opened for unseen writing is clean again only after its content was compared with the
//!    checksum on record: a store through a mapping need not leave another size or time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_tiers::{Object, TierKind, checksum};
use forebay_types::{Errno, Generation, Handle, OpenFlags, TierId};
use parking_lot::{Condvar, Mutex};

use crate::buffer::opens::{Before, OpenFile, Target};
use crate::core::Core;

/// Between two questions to the kernel about the same file: at first, for a close through FUSE is told a moment before the kernel
/// lets go of the object.
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// And at last.
const LOOK_LAST: Duration = Duration::from_millis(50);
/// Questions may take this part of the time: one in so many.
const SHARE_OF_TIME: u32 = 50;
/// Without being woken the threads look this often whether all is to end.
const SLEEP: Duration = Duration::from_millis(100);

/// A file that was opened clean, closed, and shows no trace of a change.
pub struct Untouched {
    /// The file.
    pub file: Arc<File>,
    /// What it was.
    pub before: Before,
    /// Its generation since its close.
    pub generation: Generation,
    /// Hash of its series; 0 where that is not known.
    pub series: u64,
    /// An fsync was asked for.
    pub fsynced: bool,
}

impl Untouched {
    /// Whether it has been changed, drained, opened for writing or unlinked since its close.
    fn is_over(&self) -> bool {
        let state = self.file.lock();
        let residency = &state.residency;
        residency.generation != self.generation
            || residency.clean
            || residency.writing
            || state.is_unlinked()
    }
}

/// Work for the two threads of this module.
#[derive(Default)]
pub struct Unseen {
    /// Handles of the server's own of files that somebody can still write.
    outliving: Mutex<Vec<Handle>>,
    outlived: Condvar,
    untouched: Mutex<VecDeque<Untouched>>,
    closed: Condvar,
    /// The kernel has refused to tell, and that was said.
    is_blind: AtomicBool,
}

impl Unseen {
    /// Somebody can still write what this handle has open; it is closed when nobody can any more.
    pub fn keep(&self, handle: Handle) {
        tracing::trace!("{handle:?} is kept: its file can still be written");
        self.outliving.lock().push(handle);
        self.outlived.notify_one();
    }

    /// A file was closed without a trace of a change: whether its content is what it was is still to be seen.
    pub fn compare(&self, one: Untouched) {
        self.untouched.lock().push_back(one);
        self.closed.notify_one();
    }

    /// Waits until there is another one, or so long.
    fn wait_outliving(&self, pause: Duration) -> (Vec<Handle>, bool) {
        let mut outliving = self.outliving.lock();
        let pause = if outliving.is_empty() { SLEEP } else { pause };
        let slept = self.outlived.wait_for(&mut outliving, pause);
        (outliving.clone(), !slept.timed_out())
    }

    fn forget(&self, handle: Handle) {
        self.outliving.lock().retain(|kept| *kept != handle);
    }

    fn next_untouched(&self) -> Option<Untouched> {
        let mut untouched = self.untouched.lock();
        if untouched.is_empty() {
            self.closed.wait_for(&mut untouched, SLEEP);
        }
        untouched.pop_front()
    }
}

/// The thread that asks the kernel about files that can still be written.
pub fn watch_writers(core: &Arc<Core>) {
    let mut pause = LOOK_FIRST;
    while !core.is_ending() {
        let (handles, any_new) = core.unseen.wait_outliving(pause);
        let begun = Instant::now();
        for &handle in &handles {
            core.close_if_unwritten(handle);
        }
        pause = match any_new {
            true => LOOK_FIRST,
            false => (pause * 2).min(LOOK_LAST),
        };
        pause = pause.max(begun.elapsed() * SHARE_OF_TIME);
    }
}

/// The thread that compares contents.
pub fn compare(core: &Arc<Core>) {
    while !core.is_ending() {
        let Some(one) = core.unseen.next_untouched() else {
            continue;
        };
        if let Err(errno) = core.settle_untouched(&one) {
            let reason = format!("what it was opened with cannot be compared: {errno}");
            core.report(one.file.path(), errno, reason);
        }
        core.take_as_changed(&one);
    }
}

impl Core {
    /// Whether somebody can write what is open here without a request: has its object open for writing, or mapped. Where the kernel
    /// does not tell, somebody can.
    pub fn can_be_written(&self, open: &OpenFile) -> bool {
        let target = open.target.read().clone();
        let Target::Buffer { file, object, .. } = target else {
            return false;
        };
        match object.has_writers() {
            Ok(has) => has,
            Err(error) => {
                if !self.unseen.is_blind.swap(true, Ordering::AcqRel) {
                    let reason = format!(
                        "the kernel does not tell who writes it (fs.leases-enable?), so it is not drained: {error}"
                    );
                    self.report(file.path(), (&error).into(), reason);
                }
                true
            }
        }
    }

    /// Whether somebody can write an object of a tier whose objects the kernel may write by itself.
    pub fn is_written_below(&self, tier: TierId, object: &dyn Object) -> Result<bool, Errno> {
        let slot = self.tiers.get(tier);
        let tells = slot.is_some_and(|slot| slot.tier.tells_writers());
        Ok(tells && object.has_writers()?)
    }

    /// Keeps a file as one that is being written, for as long as somebody whom an earlier run has let in can write its object.
    pub fn serve_outliving(
        &self,
        file: &Arc<File>,
        object: Arc<dyn Object>,
        tier: TierId,
    ) -> Result<(), Errno> {
        let used = object.stat()?.allocated_bytes;
        self.begin_change(file)?;
        self.book(file, used);
        let target = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        self.make_way();
        let open = Arc::new(self.opens.make(file.ino, target, true));
        // The guard extends it as the file grows.
        open.lease_bytes.store(used.max(1), Ordering::Release);
        let claim = self.opens.claim(file.ino);
        let flags = OpenFlags(libc::O_WRONLY as u32);
        self.unseen.keep(self.opens.add(&claim, &open, flags));
        drop(claim);
        self.guard.wake();
        tracing::warn!(
            "{}: a program that opened it in an earlier run can still write it; it is drained when that program closes it or ends",
            file.path().escape_ascii()
        );
        Ok(())
    }

    fn close_if_unwritten(&self, handle: Handle) {
        let Ok((open, _)) = self.opens.file(handle) else {
            return self.unseen.forget(handle);
        };
        // Who has it opens or closes the file; then somebody writes it, or the next look comes soon.
        let Some(claim) = self.opens.try_claim(open.ino) else {
            return;
        };
        if self.can_be_written(&open) {
            return;
        }
        self.unseen.forget(handle);
        let closed = self
            .opens
            .remove(handle)
            .and_then(|(open, flags)| self.close(claim, &open, flags));
        if let Err(errno) = closed {
            let path = match &*open.target.read() {
                Target::Buffer { file, .. } => file.path(),
                Target::Pfs { node, .. } => node.parent.path_of(&node.name),
            };
            self.report(path, errno, format!("its close failed: {errno}"));
        }
    }

    /// From here on a file is no longer written unseen. Its generation, unless a request has changed it since `before`.
    pub fn end_unseen(&self, file: &Arc<File>, before: &Before) -> Option<Generation> {
        let mut state = file.lock();
        if state.generation() != before.generation {
            return None;
        }
        // A copy for an fsync may be on its way, which may be without the last stores.
        let generation = state.end_unseen();
        self.ns.save_later(file, &mut state);
        Some(generation)
    }

    /// Calls a file clean again whose content is what it was.
    fn settle_untouched(&self, one: &Untouched) -> Result<(), Errno> {
        let (file, Some(crc)) = (&one.file, one.before.crc) else {
            return Ok(());
        };
        let stop = || self.is_ending() || one.is_over();
        let tier = file.tier();
        let object = match self.tiers.open_object(tier, file.object) {
            Err(_) if stop() => return Ok(()),
            opened => opened?,
        };
        match checksum(&*object, one.before.stat.size, &stop) {
            Ok(found) if found == crc => {}
            Ok(_) => return Ok(()),
            Err(_) if stop() => return Ok(()),
            Err(error) => return Err((&error).into()),
        }
        if self.tiers.kind(tier) == TierKind::Ssd {
            // What is called clean is what a loss of power leaves.
            object.sync(true)?;
        }
        let _claim = self.opens.claim(file.ino);
        let stat = object.stat()?;
        if one.before.looks_like(&stat) && self.ns.unchanged(file, one.generation, crc)? {
            if !self.errors.is_empty() {
                self.errors.clear(&file.path());
            }
            self.rest.seal(file.object, one.generation, &stat);
            self.book(file, stat.allocated_bytes);
        }
        Ok(())
    }

    /// What is not clean again is to be drained; who writes it by now sees to that.
    fn take_as_changed(&self, one: &Untouched) {
        let (file, before) = (&one.file, &one.before);
        let is_settled = {
            let state = file.lock();
            state.residency.clean || state.residency.writing || state.is_unlinked()
        };
        if !is_settled {
            self.note_written(file, before.stat.written_bytes(), one.series, one.fsynced);
            self.drain.add(file.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Lab, create, drain};

    #[test]
    fn an_error_of_a_drain_ends_with_its_reason() {
        let lab = Lab::new();
        let core = lab.core();
        core.release(create(core, b"f", b"content")).expect("close");
        let object = core.drain.waiting()[0];
        drain(core);
        let file = core.file(object).expect("file");
        let (generation, crc) = {
            let mut state = file.lock();
            let crc = state.residency.crc.expect("verified");
            // Opened for unseen writing; a demotion that was tried meanwhile met a full PFS.
            state.changed();
            state.fail_demotion(Errno::ENOSPC);
            (state.generation(), crc)
        };
        let unchanged = core.ns.unchanged(&file, generation, crc);
        assert!(unchanged.expect("recorded"));
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = core.open(file.ino, flags, false).expect("open");
        assert_eq!(core.fsync(opened.handle, false), Ok(()));
        core.release(opened.handle).expect("close");
    }
}
