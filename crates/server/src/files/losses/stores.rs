//! Stores through mappings that the kernel could not write back, and what comes of a loss with its
//! file.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::PfsId;

use super::{Loss, OnPfs};
use crate::base::failure::Failure;
use crate::buffer::opens::{OpenFile, Target};
use crate::files::Files;

impl Files {
    /// Bytes that the kernel has written back from a mapping were not taken.
    pub(crate) fn store_is_lost(&self, open: &OpenFile, failure: &Failure) {
        let loss = Loss {
            places: Vec::new(),
            nlink: 1,
            told_as: Vec::new(),
            errno: failure.errno(),
            reason: format!(
                "was stored into through a mapping, and that could not be written: {}; what was \
                 stored is lost",
                failure.in_brief()
            ),
        };
        let told = (loss.errno, loss.reason.clone());
        let target = open.target.read().clone();
        let (path, is_news) = match target {
            Target::Pfs { node, file, .. } => {
                let path = node.parent.path_of(&node.name);
                let nlink = match self.base.health().is_silent() {
                    true => None,
                    false => self.ns.pfs().stat_file(file.file()).ok(),
                };
                let loss = Loss {
                    places: vec![(node.parent.clone(), node.name.clone())],
                    nlink: nlink.map_or(1, |stat| stat.nlink),
                    told_as: path.clone(),
                    ..loss
                };
                let is_news = loss.nlink > 0 && self.losses.keep(node.id, loss);
                (path, is_news)
            }
            Target::Buffer { file, .. } => {
                let path = file.path();
                let loss = Loss {
                    told_as: path.clone(),
                    ..loss
                };
                let is_news = self.losses.keep_buffered(&file, loss);
                self.losses.note_names(&file);
                (path, is_news)
            }
        };
        // One store may be many requests.
        if is_news {
            self.base.report_loss(path, told.0, told.1);
        }
    }

    /// A file that something may be lost of has come into the burst buffer; its next drain makes
    /// another file on the PFS of it. `empty`: it was cut to nothing.
    pub(crate) fn left_the_pfs(&self, id: PfsId, file: &Arc<File>, empty: bool) {
        if !self.in_place.is_empty() {
            if empty {
                self.in_place.forget(id);
            } else if let Err(why) = self.flush_in_place(id) {
                // What the PFS has not taken may not be in the copy, or not for long.
                tracing::debug!("{}", Failure::from(why));
            }
        }
        if self.losses.is_empty() {
            return;
        }
        match empty {
            true => self.wanted_no_more(self.losses.forget_pfs(OnPfs::from(id))),
            false => {
                self.losses.came_back(file, OnPfs::from(id));
                self.losses.note_names(file);
            }
        }
    }

    /// A file of the burst buffer was cut to nothing.
    pub(crate) fn was_emptied(&self, file: &Arc<File>) {
        if !self.losses.is_empty() {
            self.wanted_no_more(self.losses.forget(file));
        }
    }

    pub(crate) fn wanted_no_more(&self, told: Option<Loss>) {
        if let Some(loss) = told {
            self.base.errors().clear(&loss.told_as);
        }
    }

    /// Paths of what was changed and may be lost: in place on the PFS, or through mappings.
    pub fn unflushed(&self) -> Vec<Vec<u8>> {
        let mut paths = self.in_place.unflushed();
        paths.extend(self.losses.paths());
        paths.sort_unstable();
        // Those that have none are different files.
        paths.dedup_by(|a, b| a == b && !a.is_empty());
        paths
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use forebay_tiers::testing::{Effect, FaultyTier, Operation, When};
    use forebay_types::{Errno, Handle, Ino, OpenFlags, SetAttr};
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
        let lost = rooms.files.losses();
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
        let lost = rooms.files.losses();
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
        assert!(lost.of_pfs(id.into()).is_some());
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
        let had = rooms.files.had(&link);
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.name_is_gone(&link, had);
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
        let lost = rooms.files.losses();
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
        let unlinked = rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.lost_name(&unlinked.expect("file"));
        assert!(rooms.files.unflushed().is_empty(), "nobody misses it");
    }
}
