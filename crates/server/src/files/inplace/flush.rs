//! Flushes of what was changed in place.

use std::io;
use std::sync::Arc;

use forebay_namespace::{Dir, File, Node, PlainNode};
use forebay_tiers::{FileObject, Object, PfsId, PfsStat};
use forebay_types::{Errno, RenameMode};
use forebay_wire::Link;

use super::{InPlace, NotFlushed, Unflushed};
use crate::base::failure::Failure;
use crate::buffer::opens::Target;
use crate::files::Files;

/// The thread that flushes what nobody asks for.
pub fn run(files: &Arc<Files>) {
    while !files.base.is_ending() {
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
        let changed = change();
        self.keep_in_place(node, file)?;
        if changed.is_ok() && size == Some(0) {
            self.wanted_no_more(self.in_place.take_failed(node.id));
        }
        changed
    }

    fn wanted_no_more(&self, told: Option<Unflushed>) {
        if let Some(lost) = told {
            self.base.errors().clear(&lost.path);
        }
    }

    /// A file that may have been changed in place has come into the burst buffer; its next drain
    /// makes another file on the PFS of it. `empty`: it was cut to nothing.
    pub(crate) fn left_its_place(&self, id: PfsId, file: &Arc<File>, empty: bool) {
        if self.in_place.is_empty() {
            return;
        }
        if empty {
            return self.wanted_no_more(self.in_place.forget(id));
        }
        // What the PFS has not taken may not be in the copy, or not for long.
        if let Err(why) = self.flush_in_place(id) {
            tracing::debug!("{}", Failure::from(why));
        }
        if let Some(lost) = self.in_place.take_failed(id) {
            self.keep_lost(file, lost);
        }
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
        let is_nameless = matches!(done, Err(NotFlushed::Lost(_)))
            && (self.ns.pfs().stat_file(begun.file.file())).is_ok_and(|stat| stat.nlink == 0);
        match self.in_place.end(id, begun, done.as_ref().copied()) {
            // Nobody could end what was told of it.
            Some(_) if is_nameless => self.wanted_no_more(self.in_place.forget(id)),
            Some(lost) => self.base.report_loss(lost.path, lost.errno, lost.reason),
            None => {}
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

    /// Flushes what was changed in place in some directories. Fails where something of a file in
    /// them may be lost, told before or not.
    pub fn flush_in_place_in(&self, is_meant: &dyn Fn(&Arc<Dir>) -> bool) -> Result<(), Failure> {
        let mut done = Ok(());
        for (id, node) in self.in_place.all() {
            if is_meant(&node.parent) {
                // One that fails keeps no other from it.
                done = done.and(self.flush_in_place(id).map_err(Failure::from));
            }
        }
        let mut failed = self.in_place.failed();
        failed.extend(self.pages.lost().failed());
        let first = failed.into_iter().find(|(parent, _)| is_meant(parent));
        done.and(first.map_or(Ok(()), |(_, failure)| Err(failure)))
    }

    /// At the end, when nothing changes any more.
    pub fn flush_all_in_place(&self) {
        for (id, _) in self.in_place.all() {
            if let Err(NotFlushed::Unasked(_)) = self.flush_in_place(id) {
                tracing::warn!("what was changed in place on the PFS is not flushed: no answer");
                return;
            }
        }
    }

    /// The file of the PFS whose last name this is, if it may have been changed in place: see
    /// [`Self::lost_last_name`].
    pub fn last_name(&self, link: &Link) -> Option<PfsId> {
        let stat = match self.in_place.is_empty() && self.pages.lost().is_empty() {
            true => None,
            false => self.stat_name(link),
        };
        stat.filter(|stat| stat.nlink == 1).map(|stat| stat.id)
    }

    /// The same of a name that a rename goes to. An exchange takes no name away.
    pub fn last_name_in_rename(&self, to: &Link, mode: RenameMode) -> Option<PfsId> {
        match mode {
            RenameMode::Exchange => None,
            RenameMode::Replace | RenameMode::NoReplace => self.last_name(to),
        }
    }

    /// The name may be gone since, or be that of a file of the burst buffer, which replaces what is
    /// there when it is drained. NFS and FUSE keep a file that is open under another name then, and
    /// its directory could not be removed.
    pub fn lost_last_name(&self, link: &Link, had: Option<PfsId>) {
        if let Some(id) = had
            && (self.is_replaced(link) || self.stat_name(link).is_none_or(|now| now.id != id))
        {
            self.wanted_no_more(self.in_place.forget(id));
            self.pages.lost().forget_version(id.ino, id.btime_ns);
        }
    }

    /// Whether the drain of a file of the burst buffer replaces what has this name.
    fn is_replaced(&self, link: &Link) -> bool {
        let Ok(Node::Dir(dir)) = self.ns.node(link.parent) else {
            return false;
        };
        dir.child(&link.name)
            .is_some_and(|file| file.lock().is_dirty())
    }

    fn stat_name(&self, link: &Link) -> Option<PfsStat> {
        let Ok(Node::Dir(dir)) = self.ns.node(link.parent) else {
            return None;
        };
        let handle = self.ns.open_dir(&dir).ok()?;
        self.ns.pfs().stat(&handle, &link.name).ok()
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::{LoopFs, needs_root};
    use forebay_types::{Errno, Handle, Ino, OpenFlags, RenameMode, SetAttr};
    use forebay_wire::{Link, WriteHow};

    use super::super::{NotFlushed, Standing};
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
        let (opened, _) = rooms.files.open(ino, flags, false).expect("open");
        opened.handle
    }

    fn change(rooms: &Rooms, handle: Handle) {
        let written = rooms.files.write(handle, 0, b"CON", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(3)));
    }

    fn kept(rooms: &Rooms) -> usize {
        rooms.files.in_place().unflushed().len()
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
    fn no_more_are_kept_than_there_are_descriptors_for() {
        let lab = Lab::with(|settings| settings.descriptors_max = Some(32));
        let rooms = lab.rooms();
        for name in ["f", "g", "h"] {
            let (_, handle) = open_linked(&lab, name);
            change(rooms, handle);
            rooms.files.release(handle).expect("close");
        }
        let kept = rooms.files.in_place().unflushed();
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
        let upto = in_place.order(&|_| true).expect("something to flush");
        let id = in_place.all()[0].0;
        let begun = in_place.begin(id, &|| true).expect("begun");
        assert!(in_place.begin(id, &|| true).is_none(), "by two at a time");
        change(rooms, handle);
        assert!(in_place.end(id, begun, Ok(())).is_none());
        let standing = in_place.standing(&|_| true, upto);
        assert!(matches!(standing, Standing::Flushed));
        assert_eq!(kept(rooms), 1, "changed since");
        let begun = in_place.begin(id, &|| true).expect("begun");
        let silent = NotFlushed::Unasked(Errno::ETIMEDOUT.into());
        let silent = in_place.end(id, begun, Err(&silent));
        assert!(silent.is_none() && kept(rooms) == 1, "nothing is lost");
        let begun = in_place.begin(id, &|| true).expect("begun");
        // As of NFS, mounted soft: the number alone does not say that nothing was put anywhere.
        let lost = NotFlushed::Lost(Errno::ETIMEDOUT.into());
        let told = in_place.end(id, begun, Err(&lost)).expect("told");
        assert!(told.reason.starts_with("was changed in place"), "{told:?}");
        for _ in 0..2 {
            let Standing::Failed(lost) = in_place.standing(&|_| true, upto) else {
                panic!("not told");
            };
            assert_eq!((lost.path, lost.errno), (b"f".to_vec(), Errno::ETIMEDOUT));
        }
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
            let begun = in_place.begin(id, &|| true).expect("begun");
            let lost = NotFlushed::Lost(Errno::EIO.into());
            let lost = in_place.end(id, begun, Err(&lost)).expect("told");
            (rooms.base).report_loss(lost.path, lost.errno, lost.reason);
            // With one name it is changed in the burst buffer.
            std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
            let size = SetAttr {
                size: Some(if cut { 0 } else { 3 }),
                ..SetAttr::default()
            };
            rooms.files.setattr(ino, None, &size, me()).expect("cut");
            assert!(in_place.is_empty(), "nothing is told of the inode");
            drain(rooms);
            let told = rooms.files.unflushed();
            let expected = if cut { vec![] } else { vec![b"f".to_vec()] };
            assert_eq!(told, expected);
            let is_named = (rooms.base.errors().all().iter()).any(|error| error.path == b"f");
            assert!(!(cut && is_named), "it is wanted no more");
        }
    }

    fn fail(rooms: &Rooms) {
        let in_place = rooms.files.in_place();
        let id = in_place.all()[0].0;
        let begun = in_place.begin(id, &|| true).expect("begun");
        let lost = NotFlushed::Lost(Errno::EIO.into());
        assert!(in_place.end(id, begun, Err(&lost)).is_some());
    }

    #[test]
    fn a_version_with_what_was_lost_is_refused_each_time() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        fail(rooms);
        for _ in 0..2 {
            let refused = rooms.files.flush_in_place_in(&|_| true);
            assert_eq!(answer(refused), Err(Errno::EIO));
        }
        assert_eq!(answer(rooms.files.flush_in_place_in(&|_| false)), Ok(()));
    }

    /// As programs replace a file: they write another one, and rename it.
    #[test]
    fn what_was_lost_of_a_file_that_another_one_replaces_is_wanted_no_more() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (_, handle) = open_linked(&lab, "f");
        change(rooms, handle);
        rooms.files.release(handle).expect("close");
        fail(rooms);
        std::fs::remove_file(lab.pfs("f-too")).expect("unlink");
        let newer = create(rooms, b"g", b"newer");
        rooms.files.release(newer).expect("close");
        let to = Link {
            parent: Ino::ROOT,
            name: b"f".to_vec(),
        };
        let mode = RenameMode::Replace;
        let last = rooms.files.last_name_in_rename(&to, mode);
        let renamed = rooms
            .base
            .ns()
            .rename(Ino::ROOT, b"g", Ino::ROOT, b"f", mode);
        renamed.expect("rename");
        rooms.files.lost_last_name(&to, last);
        assert!(rooms.files.unflushed().is_empty());
    }

    #[test]
    fn none_of_many_that_failed_is_forgotten() {
        use forebay_types::limits::ERRORS_REMEMBERED_MAX;
        let lab = Lab::new();
        let rooms = lab.rooms();
        let in_place = rooms.files.in_place();
        let many = ERRORS_REMEMBERED_MAX + 3;
        let mut handles = Vec::new();
        for at in 0..many {
            let (_, handle) = open_linked(&lab, &format!("f{at}"));
            change(rooms, handle);
            let id = in_place.all()[0].0;
            let begun = in_place.begin(id, &|| true).expect("begun");
            let lost = NotFlushed::Lost(Errno::EIO.into());
            in_place.end(id, begun, Err(&lost)).expect("told");
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
        let link = |name: &str| Link {
            parent: Ino::ROOT,
            name: name.into(),
        };
        for (mode, left) in [(RenameMode::Exchange, 1), (RenameMode::Replace, 0)] {
            let (from, to) = match mode {
                RenameMode::Exchange => (link("g"), link("f")),
                // Where it is by now.
                _ => (link("f"), link("g")),
            };
            let last = rooms.files.last_name_in_rename(&to, mode);
            let ns = rooms.base.ns();
            ns.rename(from.parent, &from.name, to.parent, &to.name, mode)
                .expect("rename");
            rooms.files.lost_last_name(&to, last);
            assert_eq!(kept(rooms), left, "{mode:?}");
        }
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
            let last = rooms.files.last_name(&link);
            rooms.files.lost_last_name(&link, last);
            assert_eq!(kept(rooms), 1, "it is still there");
            rooms
                .base
                .ns()
                .unlink(Ino::ROOT, &link.name)
                .expect("unlink");
            rooms.files.lost_last_name(&link, last);
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
            let last = rooms.files.last_name(&link);
            ns.unlink(dir, &link.name).expect("unlink");
            rooms.files.lost_last_name(&link, last);
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
