//! Stores through mappings that the kernel could not write back. It takes such a page for clean
//! from then on, and tells nobody but the next fsync. So the server keeps the error:
//!
//! 1. Of a file that is changed in place it is one of those that `inplace` keeps.
//! 2. Of a file of the burst buffer it is kept here until the file is cut to nothing, or has lost
//!    its last name. A drain does not end it, nor does an eviction: the PFS gets no more than is
//!    here.

use std::sync::Arc;

use forebay_namespace::{Dir, File};
use forebay_types::Errno;
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::buffer::opens::{OpenFile, Target};
use crate::files::Files;
use crate::files::inplace::Unflushed;

/// One file.
struct Lost {
    file: Arc<File>,
    /// Where its first name was.
    parent: Option<Arc<Dir>>,
    /// When its first store was lost.
    path: Vec<u8>,
    errno: Errno,
    reason: String,
}

/// A version on the PFS: its inode number and birth time.
type Version = (u64, u64);

impl Lost {
    /// What the PFS has of it, since it has left the burst buffer.
    fn evicted(&self) -> Option<Version> {
        let state = self.file.lock();
        let has_left = state.is_unlinked() && !state.is_dirty();
        let published = state.residency.published.filter(|_| has_left);
        published.map(|p| (p.ino, p.btime_ns))
    }

    fn is_of(&self, file: &Arc<File>, version: Option<Version>) -> bool {
        Arc::ptr_eq(&self.file, file) || version.is_some() && self.evicted() == version
    }

    /// Its path; `None` where it has no name.
    fn path(&self) -> Option<Vec<u8>> {
        let is_nameless = self.file.lock().is_unlinked();
        match is_nameless {
            true => self.evicted().map(|_| self.path.clone()),
            false => Some(self.file.path()),
        }
    }

    /// The directories of its names; of one that has left the burst buffer, that of its first.
    fn parents(&self) -> Vec<Arc<Dir>> {
        match dirs(&self.file) {
            none if none.is_empty() => self.parent.iter().cloned().collect(),
            some => some,
        }
    }

    fn failure(&self) -> Failure {
        Failure::new(self.errno, self.reason.clone())
    }
}

/// Those of files of the burst buffer: no more than there are files that have been in it.
#[derive(Default)]
pub struct LostStores {
    all: Mutex<Vec<Lost>>,
}

impl LostStores {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// What was lost of a file.
    pub fn of_file(&self, file: &Arc<File>) -> Option<Failure> {
        let version = version(file);
        let all = self.all.lock();
        let lost = all.iter().find(|lost| lost.is_of(file, version));
        lost.map(Lost::failure)
    }

    /// What was lost of a file that has left the burst buffer.
    pub fn of_version(&self, ino: u64, btime_ns: u64) -> Option<Failure> {
        let all = self.all.lock();
        let is_it = |lost: &&Lost| lost.evicted() == Some((ino, btime_ns));
        all.iter().find(is_it).map(Lost::failure)
    }

    /// Nobody misses what was lost of this file.
    pub fn forget(&self, file: &Arc<File>) {
        if !self.is_empty() {
            let version = version(file);
            self.all.lock().retain(|lost| !lost.is_of(file, version));
        }
    }

    /// The same of one that has left the burst buffer.
    pub fn forget_version(&self, ino: u64, btime_ns: u64) {
        let is_it = |lost: &Lost| lost.evicted() == Some((ino, btime_ns));
        self.all.lock().retain(|lost| !is_it(lost));
    }

    /// A version of which something was lost is in the burst buffer again, as this file.
    pub(crate) fn came_back(&self, file: &Arc<File>, ino: u64, btime_ns: u64) {
        let mut all = self.all.lock();
        for lost in all.iter_mut() {
            if lost.evicted() == Some((ino, btime_ns)) {
                lost.file = file.clone();
            }
        }
    }

    /// All of them, with each directory that their files have a name in.
    pub(crate) fn failed(&self) -> Vec<(Arc<Dir>, Failure)> {
        let all = self.all.lock();
        let named = all.iter().filter(|lost| lost.path().is_some());
        named
            .flat_map(|lost| {
                let dirs = lost.parents().into_iter();
                dirs.map(|dir| (dir, lost.failure()))
            })
            .collect()
    }

    /// Keeps one. Whether nothing was kept of the file before.
    fn keep(&self, new: Lost) -> bool {
        let mut all = self.all.lock();
        let is_news = all.iter().all(|lost| !Arc::ptr_eq(&lost.file, &new.file));
        if is_news {
            all.push(new);
        }
        is_news
    }

    fn paths(&self) -> Vec<Vec<u8>> {
        self.all.lock().iter().filter_map(Lost::path).collect()
    }
}

fn dirs(file: &File) -> Vec<Arc<Dir>> {
    let state = file.lock();
    state.names.iter().map(|(dir, _)| dir.clone()).collect()
}

fn version(file: &File) -> Option<Version> {
    let published = file.lock().residency.published;
    published.map(|p| (p.ino, p.btime_ns))
}

impl Files {
    /// What may have been lost of a file of the burst buffer before it came there.
    pub(crate) fn keep_lost(&self, file: &Arc<File>, lost: Unflushed) {
        self.pages.lost().keep(Lost {
            parent: dirs(file).into_iter().next(),
            file: file.clone(),
            path: lost.path,
            errno: lost.errno,
            reason: lost.reason,
        });
    }

    /// Bytes that the kernel has written back from a mapping were not taken.
    pub(crate) fn store_is_lost(&self, open: &OpenFile, failure: &Failure) {
        let errno = failure.errno();
        let reason = format!(
            "was stored into through a mapping, and that could not be written: {}; what was \
             stored is lost",
            failure.in_brief()
        );
        let target = open.target.read().clone();
        let (path, is_news) = match target {
            Target::Pfs { node, file, .. } => {
                let path = node.parent.path_of(&node.name);
                let is_gone = !self.base.health().is_silent()
                    && (self.ns.pfs().stat_file(file.file())).is_ok_and(|stat| stat.nlink == 0);
                let keep = || self.in_place.lost_store(&node, errno, &reason);
                let is_news = !is_gone && keep();
                (path, is_news)
            }
            Target::Buffer { file, .. } => {
                let path = file.path();
                let is_gone = {
                    let state = file.lock();
                    state.is_unlinked() && state.unnamed.is_none()
                };
                let lost = Lost {
                    parent: dirs(&file).into_iter().next(),
                    file,
                    path: path.clone(),
                    errno,
                    reason: reason.clone(),
                };
                (path, !is_gone && self.pages.lost().keep(lost))
            }
        };
        // One store may be many requests.
        if is_news {
            self.base.report_loss(path, errno, reason);
        }
    }

    /// Paths of what was changed and may be lost: in place on the PFS, or through mappings.
    pub fn unflushed(&self) -> Vec<Vec<u8>> {
        let mut paths = self.in_place.unflushed();
        paths.extend(self.pages.lost().paths());
        paths
    }

    /// A file of the burst buffer that has lost a name, to an unlink or a rename.
    pub fn lost_name(&self, file: &Arc<File>) {
        if file.lock().is_unlinked() {
            self.pages.lost().forget(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
    use forebay_types::{Handle, Ino, OpenFlags, SetAttr};
    use forebay_wire::{Link, WriteHow};

    use super::*;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, answer, create, drain, me};

    /// A file that has lost a store through a mapping.
    fn lose(rooms: &Rooms, flash: &FaultyTier, name: &[u8]) -> (Arc<File>, Handle) {
        let handle = create(rooms, name, b"content");
        flash.inject(Operation::Write, When::Nth(1), Effect::Fail(Errno::EIO));
        let how = WriteHow {
            write_back: true,
            ..WriteHow::WAITING
        };
        let lost = rooms.files.write(handle, 0, b"CONTENT", how);
        assert_eq!(answer(lost), Err(Errno::EIO));
        let (open, _) = rooms.buffer.opens().file(handle).expect("open");
        let Target::Buffer { file, .. } = open.target.read().clone() else {
            panic!("not in the burst buffer");
        };
        (file, handle)
    }

    #[test]
    fn a_store_that_was_lost_is_told_until_its_file_is_cut_to_nothing_or_removed() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let lost = rooms.files.pages().lost();
        let unlink = |name: &[u8], file: &Arc<File>| {
            let unlinked = rooms.base.ns().unlink(Ino::ROOT, name).expect("unlink");
            assert!(unlinked.is_some_and(|unlinked| Arc::ptr_eq(&unlinked, file)));
            rooms.files.lost_name(file);
        };
        let (cut, handle) = lose(rooms, &flash, b"cut");
        assert_eq!(rooms.base.errors().all().len(), 1);
        assert_eq!(rooms.files.unflushed(), [b"cut"]);
        let set = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        for (size, left) in [(1, 1), (0, 0)] {
            let set = rooms.files.setattr(cut.ino, Some(handle), &set(size), me());
            set.expect("cut");
            assert_eq!(rooms.files.unflushed().len(), left, "cut to {size}");
        }
        rooms.files.release(handle).expect("close");
        let (removed, handle) = lose(rooms, &flash, b"removed");
        assert!(lost.of_file(&removed).is_some() && lost.of_file(&cut).is_none());
        unlink(b"removed", &removed);
        rooms.files.release(handle).expect("close");
        assert!(lost.is_empty());
    }

    #[test]
    fn a_store_that_was_lost_is_told_after_a_drain_and_an_eviction() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let lost = rooms.files.pages().lost();
        let (file, handle) = lose(rooms, &flash, b"f");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        assert!(lost.of_file(&file).is_some());
        rooms.buffer.evict(&file).expect("clean");
        assert_eq!(rooms.files.unflushed(), [b"f"]);
        let stat = rooms
            .base
            .ns()
            .pfs()
            .stat(rooms.base.ns().pfs().root(), b"f");
        let id = stat.expect("stat").id;
        assert_eq!(id.ino, lab.pfs("f").metadata().expect("stat").ino());
        assert!(lost.of_version(id.ino, id.btime_ns).is_some());
        // It comes back as another file of the burst buffer.
        let brought = rooms
            .files
            .bring_in(rooms.base.ns().root(), b"f", None, false, &|_| ());
        let (again, ..) = brought.map_err(|failure| failure.errno()).expect("in");
        assert!(lost.of_file(&again).is_some());
        rooms.buffer.evict(&again).expect("clean");
        let link = Link {
            parent: Ino::ROOT,
            name: b"f".to_vec(),
        };
        let last = rooms.files.last_name(&link);
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.lost_last_name(&link, last);
        assert!(lost.is_empty());
    }

    #[test]
    fn what_a_program_is_told_by_its_write_is_told_to_nobody_else() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        flash.inject(Operation::Write, When::Nth(1), Effect::Fail(Errno::EIO));
        let failed = rooms.files.write(handle, 0, b"C", WriteHow::WAITING);
        assert_eq!(answer(failed), Err(Errno::EIO));
        assert!(rooms.files.unflushed().is_empty());
        rooms.files.release(handle).expect("close");
    }

    /// It leaves the burst buffer, comes back, and a drain gives its name another inode.
    #[test]
    fn a_store_that_was_lost_is_told_until_the_end_after_a_later_drain() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let lost = rooms.files.pages().lost();
        let (file, handle) = lose(rooms, &flash, b"f");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        rooms.buffer.evict(&file).expect("clean");
        drop(file);
        let brought = rooms
            .files
            .bring_in(rooms.base.ns().root(), b"f", None, false, &|_| ());
        let (again, ..) = brought.map_err(|failure| failure.errno()).expect("in");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(again.ino, flags, false).expect("open");
        let written = (rooms.files).write(opened.handle, 100, b"more", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(4)));
        rooms.files.release(opened.handle).expect("close");
        drain(rooms);
        assert!(lost.of_file(&again).is_some());
        let refused = rooms.files.flush_in_place_in(&|_| true);
        assert_eq!(answer(refused), Err(Errno::EIO), "no version with it");
        let unlinked = rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.lost_name(&unlinked.expect("file"));
        assert!(rooms.files.unflushed().is_empty(), "nobody misses it");
    }

    #[test]
    fn a_version_with_any_name_of_a_file_that_has_lost_a_store_is_refused() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let ns = rooms.base.ns();
        std::fs::create_dir(lab.pfs("v")).expect("mkdir");
        let version = ns.lookup(Ino::ROOT, b"v").expect("v").attr.ino;
        let (file, handle) = lose(rooms, &flash, b"f");
        rooms.files.release(handle).expect("close");
        let refused = || answer(rooms.files.flush_in_place_in(&|dir| dir.ino == version));
        assert_eq!(refused(), Ok(()));
        ns.link(file.ino, version, b"f-too").expect("link");
        assert_eq!(refused(), Err(Errno::EIO));
    }
}
