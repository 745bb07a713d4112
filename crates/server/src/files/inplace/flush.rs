//! Flushes of what was changed in place.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::{Dir, PlainNode};
use forebay_tiers::{FileObject, Object, PfsId};
use forebay_types::Errno;

use super::{Begun, InPlace, NotFlushed, Standing, loss};
use crate::base::failure::Failure;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::losses::{Loss, OnPfs};

/// Between two looks at what may be lost of files.
const LOOK_AFTER: Duration = Duration::from_secs(2);

/// The thread that flushes what nobody asks for.
pub fn run(files: &Arc<Files>) {
    let (mut looks, mut last_look) = (0, Instant::now());
    while !files.base.is_ending() {
        if last_look.elapsed() >= LOOK_AFTER {
            files.look_after_losses(looks);
            (looks, last_look) = (looks + 1, Instant::now());
        }
        if let Some(id) = files.in_place.wait_due() {
            // A failure is told by whoever is asked next; what the PFS did not answer is tried
            // again.
            let _ = files.flush_in_place(id);
        }
    }
}

impl Files {
    /// What was changed in place, and how that stands.
    pub fn in_place(&self) -> &InPlace {
        &self.in_place
    }

    /// To be called before a file is changed, and again after that, whatever came of it.
    pub(crate) fn note_in_place(&self, target: &Target) -> Result<(), Failure> {
        match target {
            Target::Pfs { node, file, .. } => Ok(self.keep_in_place(node, file)?),
            Target::Buffer { .. } => Ok(()),
        }
    }

    /// Changes a file of the PFS that was opened before, its size, too, if there is one.
    pub(crate) fn change_in_place(
        &self,
        node: &Arc<PlainNode>,
        file: &Arc<FileObject>,
        size: Option<u64>,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.keep_in_place(node, file)?;
        let changed = self.ns.pfs().pass_to_change().and_then(|()| change());
        self.keep_in_place(node, file)?;
        if changed.is_ok() && size == Some(0) {
            self.in_place.owes_nothing(node.id);
            self.wanted_no_more(self.losses.forget_pfs(node.id.into()));
        }
        changed
    }

    /// `ETIMEDOUT` where the PFS is given up, and nothing else.
    fn keep_in_place(&self, node: &Arc<PlainNode>, file: &Arc<FileObject>) -> Result<(), Errno> {
        while let Some(oldest) = self.in_place.note(node, file) {
            // What is lost of another file is told to others.
            if let Err(NotFlushed::Unasked(failure)) = self.flush_in_place(oldest) {
                return Err(failure.errno());
            }
        }
        Ok(())
    }

    /// Flushes a file now, or waits for who does.
    pub(crate) fn flush_in_place(&self, id: PfsId) -> Result<(), NotFlushed> {
        let health = self.base.health();
        let Some(begun) = self.in_place.begin(id, &|| health.is_given_up()) else {
            return match health.is_given_up() {
                true => Err(NotFlushed::Unasked(Errno::ETIMEDOUT.into())),
                false => Ok(()),
            };
        };
        let done = match health.pass() {
            Ok(()) => begun
                .file
                .sync(false)
                .map_err(|e| NotFlushed::Lost(e.into())),
            Err(error) => Err(NotFlushed::Unasked(error.into())),
        };
        self.flush_ended(id, begun, done)
    }

    fn flush_ended(
        &self,
        id: PfsId,
        begun: Begun,
        done: Result<(), NotFlushed>,
    ) -> Result<(), NotFlushed> {
        let lost = match &done {
            Err(NotFlushed::Lost(failure)) => {
                let stat = self.ns.pfs().stat_file(begun.file.file());
                // It may have been renamed since the flush began.
                let place = self.in_place.place(id);
                let place = place.unwrap_or_else(|| begun.place.clone());
                let nlink = stat.map_or(1, |stat| stat.nlink);
                Some(loss(&begun, place, nlink, failure))
            }
            _ => None,
        };
        // Before it is no longer kept: who waits for the flush looks here then.
        let named = lost.filter(Loss::has_links);
        if let Some(loss) = &named {
            self.losses.keep(id, loss.clone());
        }
        let was_kept = self.in_place.end(id, begun, done.as_ref().copied());
        match named {
            Some(loss) if was_kept => self.report_loss(loss),
            // It has lost its last name meanwhile, and nobody could end what was told of it.
            Some(_) => drop(self.losses.forget_pfs(id.into())),
            None => {}
        }
        if done.is_err() {
            self.forget_unopened(id);
        }
        done
    }

    /// What an fsync of a file does that is only on the PFS: what was written through other
    /// descriptors is meant, too.
    pub(crate) fn sync_in_place(
        &self,
        node: &PlainNode,
        file: &Arc<FileObject>,
        data_only: bool,
    ) -> Result<(), Failure> {
        self.base.health().pass()?;
        let kept = self.in_place.is_kept_with(node.id, file);
        if kept.is_some() {
            self.flush_in_place(node.id).or_else(|why| match why {
                NotFlushed::Unasked(failure) => Err(failure),
                // It is owed to whoever comes first, and that may be this one.
                NotFlushed::Lost(_) => Ok(()),
            })?;
        }
        if kept != Some(true) {
            file.sync(data_only)?;
        }
        let owed = self.in_place.take_owed(node.id);
        owed.map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Flushes what was changed in place in some directories, and files that may have names there.
    /// What that has lost is told by `losses`; this fails where the PFS was not asked.
    pub fn flush_in_place_in(&self, is_meant: &dyn Fn(&Arc<Dir>) -> bool) -> Result<(), Failure> {
        let mut done = Ok(());
        for (id, (parent, name), file) in self.in_place.all() {
            let place = (parent, name);
            let has_others = || {
                let stat = self.ns.pfs().stat_file(file.file());
                stat.map_or(true, |stat| stat.nlink > 1) || !self.has_name(id, &place)
            };
            if (is_meant(&place.0) || has_others())
                && let Err(NotFlushed::Unasked(failure)) = self.flush_in_place(id)
            {
                // One that fails keeps no other from it.
                done = Err(failure);
            }
        }
        done
    }

    /// Orders the flush of a file of the PFS, if it was changed in place. Answers with the number
    /// of the last change that it is about; `None` if nothing is to be flushed and nothing to be
    /// told.
    pub fn order_flush(&self, which: OnPfs) -> Option<u64> {
        let upto = self.in_place.order(&|id| which.is((*id).into()));
        upto.or_else(|| self.losses.of_pfs(which).map(|_| 0))
    }

    /// What has come of the order.
    pub fn flush_standing(&self, which: OnPfs, upto: u64) -> Standing {
        if (self.in_place).is_pending_of(&|id| which.is((*id).into()), upto) {
            return Standing::Pending;
        }
        match self.losses.of_pfs(which) {
            Some(failure) => Standing::Failed(failure),
            None => Standing::Flushed,
        }
    }

    /// Nobody has a file open: if it has no name, either, no fsync will ask what it is owed.
    pub(crate) fn forget_unopened(&self, id: PfsId) {
        let is_open = || self.buffer.opens().on_pfs().has(id.ino, id.btime_ns);
        let is_told = || self.losses.of_pfs(id.into()).is_some();
        if self.in_place.owes(id) && !is_told() && !is_open() {
            self.in_place.owes_nothing(id);
        }
    }

    /// At the end, when nothing changes any more.
    pub fn flush_all_in_place(&self) {
        for (id, ..) in self.in_place.all() {
            if let Err(NotFlushed::Unasked(_)) = self.flush_in_place(id) {
                tracing::warn!("what was changed in place on the PFS is not flushed: no answer");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use forebay_testkit::{LoopFs, needs_root};
    use forebay_types::{Handle, Ino, OpenFlags, RenameMode, SetAttr};
    use forebay_wire::{Link, WriteHow};

    use super::*;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, answer, create, drain, me};

    /// A file of the PFS with two links there, open for writing.
    fn open_linked(lab: &Lab, name: &str) -> (Ino, Handle) {
        std::fs::write(lab.pfs(name), b"content").expect("write");
        std::fs::hard_link(lab.pfs(name), lab.pfs(&format!("{name}-too"))).expect("link");
        let rooms = lab.rooms();
        let found = rooms.base.ns().lookup(Ino::ROOT, name.as_bytes());
        let ino = found.expect("there").attr.ino;
        (ino, open(rooms, ino))
    }

    fn open(rooms: &Rooms, ino: Ino) -> Handle {
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(ino, flags, None).expect("open");
        opened.handle
    }

    fn change(rooms: &Rooms, handle: Handle) {
        let written = rooms.files.write(handle, 0, b"CON", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(3)));
    }

    fn kept(rooms: &Rooms) -> usize {
        rooms.files.unflushed().len()
    }

    fn begin(rooms: &Rooms) -> (PfsId, Begun) {
        let id = rooms.files.in_place().all()[0].0;
        let begun = rooms.files.in_place().begin(id, &|| true);
        (id, begun.expect("begun"))
    }

    /// A flush that the PFS has called an error.
    fn fail(rooms: &Rooms, errno: Errno) {
        let (id, begun) = begin(rooms);
        let lost = Err(NotFlushed::Lost(errno.into()));
        assert!(rooms.files.flush_ended(id, begun, lost).is_err());
    }

    #[test]
    fn what_is_changed_in_place_is_kept_until_it_is_flushed() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (ino, handle) = open_linked(&lab, "f");
        assert_eq!(kept(rooms), 0, "it was opened only");
        change(rooms, handle);
        assert_eq!(kept(rooms), 1);
        assert_eq!(answer(rooms.files.fsync(handle, true)), Ok(()));
        assert_eq!(kept(rooms), 0);
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        assert_eq!(kept(rooms), 1);
        // An fsync means what others have written, too.
        let handle = open(rooms, ino);
        assert_eq!(answer(rooms.files.fsync(handle, true)), Ok(()));
        assert_eq!(kept(rooms), 0);
        rooms.files.release(handle).expect("close");
        let cut = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        rooms.files.setattr(ino, None, &cut, me()).expect("cut");
        assert_eq!(kept(rooms), 1);
        rooms.files.flush_all_in_place();
        assert_eq!(kept(rooms), 0);
    }

    #[test]
    fn who_may_be_replaced_changes_nothing_in_place() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (ino, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        lab.is_replaced.store(true, Ordering::Release);
        let written = rooms.files.write(handle, 0, b"con", WriteHow::WAITING);
        assert_eq!(answer(written), Err(Errno::EIO));
        let append = WriteHow {
            append: true,
            ..WriteHow::WAITING
        };
        let written = rooms.files.write(handle, 0, b"more", append);
        assert_eq!(answer(written), Err(Errno::EIO));
        let cut = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        for handle in [Some(handle), None] {
            let changed = rooms.files.setattr(ino, handle, &cut, me());
            assert_eq!(answer(changed.map(drop)), Err(Errno::EIO));
        }
        let there = std::fs::read(lab.pfs("f")).expect("read");
        assert_eq!(there, b"CONtent");
    }

    #[test]
    fn no_more_are_kept_than_there_are_descriptors_for() {
        let lab = Lab::with(|settings| settings.descriptors_max = Some(32));
        let rooms = lab.rooms();
        for name in ["f", "g", "h"] {
            let (_, handle) = open_linked(&lab, name);
            change(rooms, handle);
            rooms.files.release(handle).expect("close");
        }
        let kept = rooms.files.unflushed();
        assert_eq!(kept.len(), 2);
        assert!(!kept.contains(&b"f".to_vec()), "the oldest stays");
    }

    #[test]
    fn what_changes_in_the_midst_of_a_flush_is_flushed_again_and_an_error_is_told() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let in_place = rooms.files.in_place();
        let (ino, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        let (id, begun) = begin(rooms);
        let upto = rooms.files.order_flush(id.into()).expect("to be flushed");
        assert!(in_place.begin(id, &|| true).is_none(), "by two at a time");
        change(rooms, handle);
        rooms.files.flush_ended(id, begun, Ok(())).expect("flushed");
        let standing = rooms.files.flush_standing(id.into(), upto);
        assert!(matches!(standing, Standing::Flushed));
        assert_eq!(kept(rooms), 1, "changed since");
        let (_, begun) = begin(rooms);
        let silent = Err(NotFlushed::Unasked(Errno::ETIMEDOUT.into()));
        assert!(rooms.files.flush_ended(id, begun, silent).is_err());
        assert!(rooms.files.losses().is_empty(), "nothing is lost");
        // As of NFS, mounted soft: the number alone does not say that nothing was put anywhere.
        fail(rooms, Errno::ETIMEDOUT);
        for _ in 0..2 {
            let Standing::Failed(lost) = rooms.files.flush_standing(id.into(), upto) else {
                panic!("not told");
            };
            assert_eq!(lost.errno(), Errno::ETIMEDOUT);
            let reason = lost.to_string();
            assert!(reason.contains("was changed in place"), "{reason}");
        }
        assert_eq!(rooms.files.unflushed(), [b"f"]);
        let synced = answer(rooms.files.fsync(handle, false));
        assert_eq!(synced, Err(Errno::ETIMEDOUT));
        assert_eq!(answer(rooms.files.fsync(handle, false)), Ok(()), "once");
        rooms.files.release(handle).expect("close");
        assert_eq!(kept(rooms), 1, "a later flush brings nothing back");
        let cut = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        rooms.files.setattr(ino, None, &cut, me()).expect("cut");
        rooms.files.flush_all_in_place();
        assert_eq!(kept(rooms), 0, "nothing of it is wanted");
    }

    /// The drain gives its name another inode, and the PFS may give the number of the first to a
    /// file of which nothing was lost.
    #[test]
    fn what_was_lost_in_place_is_told_of_the_file_and_not_of_its_inode() {
        for cut in [false, true] {
            let lab = Lab::new();
            let rooms = lab.rooms();
            let in_place = rooms.files.in_place();
            let (ino, handle) = open_linked(&lab, "f");
            change(rooms, handle);
            rooms.files.release(handle).expect("close");
            let id = in_place.all()[0].0;
            fail(rooms, Errno::EIO);
            // With one name it is changed in the burst buffer.
            std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
            let size = SetAttr {
                size: Some(if cut { 0 } else { 3 }),
                ..SetAttr::default()
            };
            rooms.files.setattr(ino, None, &size, me()).expect("cut");
            assert!(in_place.is_empty());
            let told_of_inode = rooms.files.losses().of_pfs(id.into());
            assert!(told_of_inode.is_none(), "nothing is told of the inode");
            drain(rooms);
            let told = rooms.files.unflushed();
            let expected = if cut { vec![] } else { vec![b"f".to_vec()] };
            assert_eq!(told, expected);
            let is_named = (rooms.base.errors().all().iter()).any(|error| error.path == b"f");
            assert!(!(cut && is_named), "it is wanted no more");
        }
    }

    /// As programs replace a file: they write another one, and rename it.
    #[test]
    fn what_was_lost_of_a_file_that_another_one_replaces_is_wanted_no_more() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        fail(rooms, Errno::EIO);
        let newer = create(rooms, b"g", b"newer");
        rooms.files.release(newer).expect("close");
        rename(rooms, "g", "f", RenameMode::Replace);
        assert_eq!(kept(rooms), 1, "until the drain it is there");
        rooms.files.look_after_losses(0);
        drain(rooms);
        rooms.files.look_after_losses(0);
        assert_eq!(kept(rooms), 0);
        assert!(rooms.base.errors().is_empty());
    }

    fn link(name: &str) -> Link {
        Link {
            parent: Ino::ROOT,
            name: name.into(),
        }
    }

    fn rename(rooms: &Rooms, from: &str, to: &str, mode: RenameMode) {
        let (from, to) = (link(from), link(to));
        let had = (rooms.files.had(&from), rooms.files.had(&to));
        let ns = rooms.base.ns();
        ns.rename(from.parent, &from.name, to.parent, &to.name, mode)
            .expect("rename");
        (rooms.files).was_renamed((&from, &had.0), (&to, &had.1), mode);
    }

    /// Somebody gives the file that was changed in place the name of a file of the burst buffer:
    /// who replaces that one does not replace this.
    #[test]
    fn what_an_outsider_has_put_in_the_place_of_a_file_is_flushed_all_the_same() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "x");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        for name in [&b"f"[..], b"g"] {
            let newer = create(rooms, name, b"newer");
            rooms.files.release(newer).expect("close");
        }
        std::fs::rename(lab.pfs("x"), lab.pfs("f")).expect("rename");
        std::fs::remove_file(lab.pfs("x-too")).expect("unlink");
        rename(rooms, "g", "f", RenameMode::Replace);
        assert_eq!(rooms.files.in_place().all().len(), 1, "not flushed yet");
        fail(rooms, Errno::EIO);
        drain(rooms);
        assert_eq!(std::fs::read(lab.pfs("f")).expect("read"), b"CONtent");
        assert_eq!(rooms.files.losses().paths().len(), 1, "it is told");
    }

    /// Nobody needs to restart the server for that.
    #[test]
    fn what_was_lost_of_a_file_that_an_outsider_removes_is_told_no_longer() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        fail(rooms, Errno::EIO);
        std::fs::remove_file(lab.pfs("f")).expect("unlink");
        std::fs::write(lab.pfs("f"), b"another").expect("write");
        rooms.files.look_after_losses(0);
        assert_eq!(kept(rooms), 1, "it has another name");
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        rooms.files.look_after_losses(0);
        assert_eq!(kept(rooms), 1, "a name that was never met is not looked at");
        let (_, handle) = open_linked(&lab, "h");
        change(rooms, handle);
        let id = rooms.files.in_place().all()[0].0;
        fail(rooms, Errno::EIO);
        let root = rooms.base.ns().root().clone();
        rooms
            .files
            .losses()
            .met(id, (root, b"h-too"[..].into()), true);
        rooms.files.look_after_losses(0);
        std::fs::remove_file(lab.pfs("h-too")).expect("unlink");
        std::fs::remove_file(lab.pfs("h")).expect("unlink");
        rooms.files.look_after_losses(0);
        assert_eq!(kept(rooms), 1, "nothing is left of the second");
        rooms.files.release(handle).expect("close");
    }

    /// As a log that is rotated while its program writes on.
    #[test]
    fn what_is_renamed_while_it_is_open_is_flushed_and_told() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        rooms.files.flush_all_in_place();
        rename(rooms, "f", "g", RenameMode::Replace);
        change(rooms, handle);
        rooms.files.flush_in_place_in(&|_| false).expect("flushed");
        assert!(
            rooms.files.in_place().is_empty(),
            "nobody knows where it is"
        );
        change(rooms, handle);
        fail(rooms, Errno::EIO);
        rooms.files.look_after_losses(0);
        assert_eq!(kept(rooms), 1);
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn what_is_renamed_while_its_flush_runs_is_told() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        let (id, begun) = begin(rooms);
        rename(rooms, "f", "g", RenameMode::Replace);
        let lost = Err(NotFlushed::Lost(Errno::EIO.into()));
        assert!(rooms.files.flush_ended(id, begun, lost).is_err());
        rooms.files.look_after_losses(0);
        assert_eq!(rooms.files.unflushed(), [b"g"]);
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn a_file_that_gets_another_name_as_it_loses_one_is_flushed_and_told() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        for is_failed in [false, true] {
            let (ino, handle) = open_linked(&lab, "f");
            change(rooms, handle);
            std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
            if is_failed {
                fail(rooms, Errno::EIO);
            }
            let had = rooms.files.had(&link("f"));
            rooms.files.link(ino, &link("g"), &me()).expect("link");
            rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
            rooms.files.name_is_gone(&link("f"), &had);
            drop(had);
            assert_eq!(kept(rooms), 1, "failed before: {is_failed}");
            rooms.files.release(handle).expect("close");
            rooms.files.flush_all_in_place();
            std::fs::remove_file(lab.pfs("g")).expect("unlink");
        }
    }

    /// The next drain makes another file of it: who has it open hears of the first.
    #[test]
    fn an_fsync_hears_what_was_lost_before_its_file_came_into_the_buffer() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (ino, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        fail(rooms, Errno::EIO);
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        let handle = open(rooms, ino);
        change(rooms, handle);
        assert_eq!(rooms.files.in_place().all().len(), 0, "it is in the buffer");
        assert_eq!(answer(rooms.files.fsync(handle, false)), Err(Errno::EIO));
        assert_eq!(answer(rooms.files.fsync(handle, false)), Ok(()), "once");
        rooms.files.release(handle).expect("close");
    }

    /// A close asks nobody where nothing is owed: others may wait for the PFS.
    #[test]
    fn a_close_does_not_look_at_other_files() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        let (_, other) = open_linked(&lab, "g");
        let (open, _) = rooms.buffer.opens().file(other).expect("open");
        let moving = open.target.write();
        let begun = Instant::now();
        rooms.files.release(handle).expect("close");
        // It would wait for two seconds.
        assert!(begun.elapsed() < Duration::from_secs(1));
        drop(moving);
        rooms.files.release(other).expect("close");
    }

    #[test]
    fn what_is_lost_again_is_told_by_the_name_of_then() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        fail(rooms, Errno::EIO);
        rooms.files.look_after_losses(0);
        std::fs::rename(lab.pfs("f"), lab.pfs("h")).expect("rename");
        rooms.files.look_after_losses(0);
        assert_eq!(kept(rooms), 0, "by somebody else");
        rooms.files.release(handle).expect("close");
        let found = rooms.base.ns().lookup(Ino::ROOT, b"h").expect("there");
        std::fs::hard_link(lab.pfs("h"), lab.pfs("h-too")).expect("link");
        let handle = open(rooms, found.attr.ino);
        change(rooms, handle);
        fail(rooms, Errno::EIO);
        assert_eq!(rooms.files.unflushed(), [b"h"]);
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn none_of_many_that_failed_is_forgotten() {
        use forebay_types::limits::ERRORS_REMEMBERED_MAX;
        let lab = Lab::new();
        let rooms = lab.rooms();
        let many = ERRORS_REMEMBERED_MAX + 3;
        let mut handles = Vec::new();
        for at in 0..many {
            let (_, handle) = open_linked(&lab, &format!("f{at}"));
            change(rooms, handle);
            fail(rooms, Errno::EIO);
            handles.push(handle);
        }
        assert_eq!(kept(rooms), many);
        for handle in handles {
            assert_eq!(answer(rooms.files.fsync(handle, false)), Err(Errno::EIO));
            rooms.files.release(handle).expect("close");
        }
        assert_eq!(kept(rooms), many, "told, and not forgotten");
    }

    #[test]
    fn an_exchange_of_names_takes_none_away() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        std::fs::remove_file(lab.pfs("f-too")).expect("one name is left");
        std::fs::write(lab.pfs("g"), b"other").expect("write");
        rename(rooms, "g", "f", RenameMode::Exchange);
        assert_eq!(rooms.files.unflushed(), [b"g"], "where it is by now");
        rename(rooms, "f", "g", RenameMode::Replace);
        assert_eq!(kept(rooms), 0);
    }

    #[test]
    fn a_file_that_loses_its_last_name_is_not_kept() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        for (name, left) in [("f", 1), ("f-too", 0)] {
            let link = Link {
                parent: Ino::ROOT,
                name: name.into(),
            };
            let had = rooms.files.had(&link);
            rooms.files.name_is_gone(&link, &had);
            assert_eq!(kept(rooms), 1, "it is still there");
            rooms
                .base
                .ns()
                .unlink(Ino::ROOT, &link.name)
                .expect("unlink");
            rooms.files.name_is_gone(&link, &had);
            assert_eq!(kept(rooms), left);
        }
    }

    /// What the PFS cannot put on its device is told to the fsync of who has the file open, with a
    /// name or without, whoever has flushed it before.
    fn flush_in_vain(is_nameless: bool, flushed_before: bool) {
        let lab = Lab::new();
        let rooms = lab.rooms();
        std::fs::create_dir(lab.pfs("in")).expect("mkdir");
        let folder = tempfile::tempdir().expect("folder");
        let inner = LoopFs::thin(folder.path(), &lab.pfs("in"), 64 << 20, 8 << 20);
        inner.drop_journal();
        std::fs::write(lab.pfs("in/f"), b"content").expect("write");
        std::fs::hard_link(lab.pfs("in/f"), lab.pfs("in/f-too")).expect("link");
        let ns = rooms.base.ns();
        let dir = ns.lookup(Ino::ROOT, b"in").expect("in").attr.ino;
        let handle = open(rooms, ns.lookup(dir, b"f").expect("f").attr.ino);
        let block = vec![7; 1 << 20];
        for at in 0..24 {
            let how = WriteHow::WAITING;
            let written = rooms.files.write(handle, at << 20, &block, how);
            assert_eq!(answer(written), Ok(Some(1 << 20)));
        }
        for name in [&b"f"[..], b"f-too"].iter().filter(|_| is_nameless) {
            let (parent, name) = (dir, name.to_vec());
            let link = Link { parent, name };
            let had = rooms.files.had(&link);
            ns.unlink(dir, &link.name).expect("unlink");
            rooms.files.name_is_gone(&link, &had);
        }
        change(rooms, handle);
        if flushed_before {
            rooms.files.flush_all_in_place();
        }
        let what = format!("nameless: {is_nameless}, flushed before: {flushed_before}");
        let synced = answer(rooms.files.fsync(handle, false));
        assert!(synced.is_err(), "{what}");
        let named = rooms.files.unflushed();
        assert_eq!(named.is_empty(), is_nameless, "{what}: {named:?}");
        assert_eq!(answer(rooms.files.fsync(handle, false)), Ok(()), "{what}");
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn an_fsync_hears_what_was_lost_of_a_file_that_has_no_name() {
        if needs_root() {
            return;
        }
        for is_nameless in [false, true] {
            for flushed_before in [false, true] {
                flush_in_vain(is_nameless, flushed_before);
            }
        }
    }
}
