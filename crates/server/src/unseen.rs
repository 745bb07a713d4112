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

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_tiers::{Object, TierKind, checksum};
use forebay_types::{Errno, Handle, OpenFlags, TierId};
use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::opens::{Before, OpenFile, Target};

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
struct Untouched {
    open: Arc<OpenFile>,
    file: Arc<File>,
    before: Before,
}

/// Work for the two threads of this module.
#[derive(Default)]
pub struct Unseen {
    /// Handles of the server's own of files that somebody can still write.
    outliving: Mutex<Vec<Handle>>,
    outlived: Condvar,
    untouched: Mutex<Vec<Untouched>>,
    closed: Condvar,
}

impl Unseen {
    /// Somebody can still write what this handle has open; it is closed when nobody can any more.
    pub fn keep(&self, handle: Handle) {
        tracing::trace!("{handle:?} is kept: its file can still be written");
        self.outliving.lock().push(handle);
        self.outlived.notify_one();
    }

    /// A file was closed without a trace of a change: whether its content is what it was `before` is still to be seen.
    pub fn compare(&self, open: Arc<OpenFile>, file: Arc<File>, before: Before) {
        let one = Untouched { open, file, before };
        self.untouched.lock().push(one);
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
        untouched.pop()
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
        match core.is_unchanged(&one) {
            Ok(true) => {}
            Ok(false) => core.take_as_changed(&one),
            Err(errno) => {
                let reason = format!("what it was opened with cannot be compared: {errno}");
                core.report(one.file.path(), errno, reason);
                core.take_as_changed(&one);
            }
        }
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
                let reason = format!("the kernel does not tell who writes it: {error}");
                self.report(file.path(), (&error).into(), reason);
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
        let open = Arc::new(OpenFile::new(file.ino, target, true));
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

    /// Whether a file that was closed without a trace of a change has the content that it was opened with, and so is clean again; also
    /// `true` where that does not matter any more.
    fn is_unchanged(&self, one: &Untouched) -> Result<bool, Errno> {
        let Untouched { open, file, before } = one;
        let (generation, Some(crc)) = before.content else {
            return Ok(false);
        };
        let target = open.target.read().clone();
        let Target::Buffer { object, tier, .. } = target else {
            return Ok(true);
        };
        let is_over = || {
            let state = file.lock();
            let same = [generation, generation.next()].contains(&state.generation());
            let residency = &state.residency;
            !same || residency.clean || residency.writing || state.is_unlinked()
        };
        let stop = || self.is_ending() || is_over();
        match checksum(&*object, before.stat.size, &stop) {
            Ok(found) if found == crc => {}
            Ok(_) => return Ok(is_over()),
            Err(_) if stop() => return Ok(true),
            Err(error) => return Err((&error).into()),
        }
        if self.tiers.kind(tier) == TierKind::Ssd {
            // What is called clean is what a loss of power leaves.
            object.sync(true)?;
        }
        let claim = self.opens.claim(file.ino);
        if is_over() || claim.open().is_some_and(|open| open.is_written()) {
            return Ok(true);
        }
        let stat = object.stat()?;
        if !before.looks_like(&stat) {
            return Ok(false);
        }
        self.ns.unchanged(file, before.content)?;
        Ok(!self.book(file, stat.allocated_bytes))
    }

    fn take_as_changed(&self, one: &Untouched) {
        if !one.file.lock().is_unlinked() {
            self.note_written(&one.open, &one.file, one.before.stat.written_bytes());
            self.drain.add(one.file.object);
        }
    }
}
