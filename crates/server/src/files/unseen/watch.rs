//! Who can still write, and what the kernel has written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_namespace::File;
use forebay_tiers::{Object, TierKind, checksum};
use forebay_types::{Errno, Generation, Handle, OpenFlags, TierId};

use super::{LOOK_FIRST, LOOK_LAST, SHARE_OF_TIME, Untouched};
use forebay_wire::OUT_OF_REACH;

use crate::base::failure::Failure;
use crate::buffer::opens::{Before, OpenFile};
use crate::buffer::target::Target;
use crate::files::Files;

/// The thread that asks the kernel about files of a server's tiers that can still be written.
pub fn watch_writers(files: &Arc<Files>, server: u16) {
    let mut pause = LOOK_FIRST;
    while !files.base.is_ending() {
        let (handles, any_new) = files.unseen.wait_outliving(pause);
        let begun = Instant::now();
        for &handle in &handles {
            files.close_if_unwritten(handle, server);
        }
        pause = match any_new {
            true => LOOK_FIRST,
            false => (pause * 2).min(LOOK_LAST),
        };
        pause = pause.max(begun.elapsed() * SHARE_OF_TIME);
    }
}

/// The thread that compares contents.
pub fn compare(files: &Arc<Files>) {
    while !files.base.is_ending() {
        let Some(one) = files.unseen.next_untouched() else {
            continue;
        };
        if let Err(failure) = files.settle_untouched(&one) {
            let reason = format!("what it was opened with cannot be compared: {failure}");
            files.base.report(one.file.path(), failure.errno(), reason);
        }
        files.take_as_changed(&one);
    }
}

impl Files {
    /// Whether somebody can write what is open here without a request: has its object open for
    /// writing, or mapped. Where the kernel does not tell, somebody can.
    pub fn can_be_written(&self, open: &OpenFile) -> bool {
        if !open.is_passthrough() {
            // It has gone on elsewhere meanwhile, and the server alone has that open.
            return false;
        }
        let target = open.target.read().clone();
        let Target::Buffer { file, object, .. } = target else {
            return false;
        };
        match object.has_writers() {
            Ok(has) => has,
            // Its kernel tells when it is back.
            Err(error) if Errno::of(&error) == OUT_OF_REACH => true,
            Err(error) => {
                if !self.unseen.is_blind.swap(true, Ordering::AcqRel) {
                    let reason = format!(
                        "the kernel does not tell who writes it (fs.leases-enable?), so it is not drained: {error}"
                    );
                    self.base.report(file.path(), Errno::of(&error), reason);
                }
                true
            }
        }
    }

    /// Whether somebody can write an object of a tier whose objects the kernel may write by itself.
    pub fn is_written_below(&self, tier: TierId, object: &dyn Object) -> Result<bool, Failure> {
        let slot = self.buffer.tiers().get(tier);
        let tells = slot.is_some_and(|slot| slot.tier.tells_writers());
        Ok(tells && object.has_writers()?)
    }

    /// Keeps a file as one that is being written, for as long as somebody whom an earlier run has
    /// let in can write its object.
    pub fn serve_outliving(
        &self,
        file: &Arc<File>,
        object: Arc<dyn Object>,
        tier: TierId,
    ) -> Result<(), Failure> {
        let used = object.stat()?.allocated_bytes;
        let outlasting = self.buffer.tiers().kind(tier) != TierKind::Dram;
        self.ns.begin_unseen(file, outlasting)?;
        self.buffer.book_state(file);
        self.buffer.book(file, used);
        let target = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        self.make_way();
        self.hold_open(&target);
        let open = Arc::new(self.buffer.opens().make(file.ino, target, true));
        // The guard extends it as the file grows.
        open.lease_bytes.store(used.max(1), Ordering::Release);
        let claim = self.buffer.opens().claim(file.ino);
        let flags = OpenFlags(libc::O_WRONLY as u32);
        self.unseen
            .keep(self.buffer.opens().add(&claim, &open, flags));
        drop(claim);
        self.guard.watches(&open);
        tracing::warn!(
            "{}: a program that opened it in an earlier run can still write it; it is drained when that program closes it or ends",
            file.path().escape_ascii()
        );
        Ok(())
    }

    fn close_if_unwritten(&self, handle: Handle, server: u16) {
        let Ok((open, _)) = self.buffer.opens().file(handle) else {
            return self.unseen.forget(handle);
        };
        if !self.is_asked_of(&open, server) {
            return;
        }
        // Who has it opens or closes the file; then somebody writes it, or the next look comes
        // soon.
        let Some(claim) = self.buffer.opens().try_claim(open.ino) else {
            return;
        };
        if self.can_be_written(&open) {
            return;
        }
        self.unseen.forget(handle);
        let closed = self
            .buffer
            .opens()
            .remove(handle)
            .map_err(Failure::from)
            .and_then(|(open, flags)| self.close(claim, &open, flags));
        if let Err(failure) = closed {
            let path = match &*open.target.read() {
                Target::Buffer { file, .. } => file.path(),
                Target::Pfs { node, .. } => node.parent.path_of(&node.name),
            };
            self.base.report(
                path,
                failure.errno(),
                format!("its close failed: {failure}"),
            );
        }
    }

    /// Whether a server that answers has what is open. One that does not would hold up the
    /// question about every other file.
    fn is_asked_of(&self, open: &OpenFile, server: u16) -> bool {
        // Who moves it may wait for another node.
        let tier = match open.target.try_read().as_deref() {
            Some(Target::Buffer { tier, .. }) => *tier,
            Some(Target::Pfs { .. }) => return server == self.settings.server,
            None => return false,
        };
        let slot = self.buffer.tiers().get(tier);
        slot.is_some_and(|slot| slot.server == server && slot.tier.is_answering())
    }

    /// From here on a file is no longer written unseen. Its generation, unless a request has
    /// changed it since `before`.
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
    fn settle_untouched(&self, one: &Untouched) -> Result<(), Failure> {
        let (file, Some(crc)) = (&one.file, one.before.crc) else {
            return Ok(());
        };
        let stop = || self.base.is_ending() || one.is_over();
        let tier = file.tier();
        let object = match self.buffer.tiers().open_object(tier, file.object) {
            Err(_) if stop() => return Ok(()),
            opened => opened?,
        };
        match checksum(&*object, one.before.stat.size, &stop) {
            Ok(found) if found == crc => {}
            Ok(_) => return Ok(()),
            Err(_) if stop() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if self.buffer.tiers().kind(tier) == TierKind::Ssd {
            // What is called clean is what a loss of power leaves.
            self.integrity.flush(file, tier, &*object, true)?;
        }
        let _claim = self.buffer.opens().claim(file.ino);
        let stat = object.stat()?;
        if one.before.looks_like(&stat) && self.ns.unchanged(file, one.generation, crc)? {
            if !self.base.errors().is_empty() {
                self.base.errors().clear(&file.path());
            }
            self.integrity
                .at_rest()
                .seal(file.object, one.generation, &stat);
            self.buffer.book(file, stat.allocated_bytes);
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
            self.buffer.queue().add(file.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Lab, answer, create, drain};

    #[test]
    fn an_error_of_a_drain_ends_with_its_reason() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", b"content"))
            .expect("close");
        let object = rooms.buffer.queue().waiting()[0];
        drain(rooms);
        let file = rooms.buffer.file(object).expect("file");
        let (generation, crc) = {
            let mut state = file.lock();
            let crc = state.residency.crc.expect("verified");
            // Opened for unseen writing; a demotion that was tried meanwhile met a full PFS.
            state.changed();
            state.fail_demotion(Errno::ENOSPC);
            (state.generation(), crc)
        };
        let unchanged = rooms.base.ns().unchanged(&file, generation, crc);
        assert!(unchanged.expect("recorded"));
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        assert_eq!(answer(rooms.files.fsync(opened.handle, false)), Ok(()));
        rooms.files.release(opened.handle).expect("close");
    }
}
