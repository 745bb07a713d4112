//! Stores through mappings that the kernel could not write back, and what comes of a loss with its
//! file.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::PfsId;

use super::{Loss, OnPfs};
use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;

impl Files {
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
                let place = (node.parent.clone(), node.name.clone());
                let place = self.in_place.place(node.id).unwrap_or(place);
                let nlink = match self.base.health().is_silent() {
                    true => None,
                    false => self.ns.pfs().stat_file(file.file()).ok(),
                };
                let nlink = nlink.map_or(1, |stat| stat.nlink);
                let loss = Loss::new(place, nlink, errno, reason.clone());
                let path = loss.told_as.clone();
                (path, nlink > 0 && self.losses.keep(node.id, loss))
            }
            Target::Buffer { file, .. } => {
                // By its names of now, and of later.
                let loss = Loss::told(file.path(), errno, reason.clone());
                (file.path(), self.losses.keep_buffered(&file, loss))
            }
        };
        // One store may be many requests.
        if is_news {
            self.base.report_loss(path, errno, reason);
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
        let owed = self.in_place.take_owed(id);
        match empty {
            true => self.wanted_no_more(self.losses.forget_pfs(OnPfs::from(id))),
            false => self.losses.came_back(file, OnPfs::from(id), owed.is_some()),
        }
    }

    /// A file of the burst buffer was cut to nothing.
    pub(crate) fn was_emptied(&self, file: &Arc<File>) {
        self.buffer.opens().lost.forget(file.object);
        file.lock().pay_loss();
        if !self.losses.is_empty() {
            self.wanted_no_more(self.losses.forget(file));
        }
    }

    pub(crate) fn report_loss(&self, loss: Loss) {
        self.base.report_loss(loss.told_as, loss.errno, loss.reason);
    }

    pub(crate) fn wanted_no_more(&self, told: Option<Loss>) {
        if let Some(loss) = told {
            self.base.errors().clear_told(&loss.told_as, &loss.reason);
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
    use forebay_types::{Errno, Ino, OpenFlags, SetAttr};
    use forebay_wire::{Link, WriteHow};

    use super::*;
    use crate::files::losses::names::Had;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, answer, beside, create, drain, lose_store, me};

    #[test]
    fn a_store_that_was_lost_is_told_until_its_file_is_cut_to_nothing_or_removed() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let lost = rooms.files.losses();
        let unlink = |name: &[u8], file: &Arc<File>| {
            let unlinked = rooms.base.ns().unlink(Ino::ROOT, name).expect("unlink");
            assert!(unlinked.is_some_and(|unlinked| Arc::ptr_eq(&unlinked, file)));
            rooms.files.lost_name(file, &Had::nothing());
        };
        let (cut, handle) = lose_store(rooms, &flash, b"cut");
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
        let (removed, handle) = lose_store(rooms, &flash, b"removed");
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
        let (file, handle) = lose_store(rooms, &flash, b"f");
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
        let brought =
            rooms
                .files
                .bring_in(rooms.base.ns().root(), b"f", (None, None), false, &|_| ());
        let (again, ..) = brought.map_err(|failure| failure.errno()).expect("in");
        assert!(lost.of_file(&again).is_some());
        rooms.buffer.evict(&again).expect("clean");
        let link = Link {
            parent: Ino::ROOT,
            name: b"f".to_vec(),
        };
        let had = rooms.files.had(&link);
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.name_is_gone(&link, &had);
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
        let (file, handle) = lose_store(rooms, &flash, b"f");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        rooms.buffer.evict(&file).expect("clean");
        drop(file);
        let brought =
            rooms
                .files
                .bring_in(rooms.base.ns().root(), b"f", (None, None), false, &|_| ());
        let (again, ..) = brought.map_err(|failure| failure.errno()).expect("in");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(again.ino, flags, None).expect("open");
        let written = (rooms.files).write(opened.handle, 100, b"more", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(4)));
        rooms.files.release(opened.handle).expect("close");
        drain(rooms);
        assert!(lost.of_file(&again).is_some());
        let unlinked = rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms
            .files
            .lost_name(&unlinked.expect("file"), &Had::nothing());
        assert!(rooms.files.unflushed().is_empty(), "nobody misses it");
    }

    fn link(name: &str) -> Link {
        Link {
            parent: Ino::ROOT,
            name: name.into(),
        }
    }

    /// A file that has lost a store, drained.
    fn lose_and_drain(rooms: &Rooms, flash: &FaultyTier, name: &[u8]) -> Arc<File> {
        let (file, handle) = lose_store(rooms, flash, name);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        file
    }

    /// A file may leave again in the midst of its way in.
    #[test]
    fn a_loss_outlives_a_stage_in_and_an_eviction_at_once() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let file = lose_and_drain(rooms, &flash, b"f");
        rooms.buffer.evict(&file).expect("clean");
        drop(file);
        let root = rooms.base.ns().root();
        let evict = || {
            if let Some(file) = root.child(b"f") {
                rooms.buffer.evict(&file);
            }
        };
        beside(evict, || {
            for round in 0..200 {
                drop(
                    rooms
                        .files
                        .bring_in(root, b"f", (None, None), false, &|_| ()),
                );
                rooms.files.look_after_losses(round);
                assert_eq!(rooms.files.unflushed(), [b"f"], "round {round}");
            }
        });
    }

    #[test]
    fn a_loss_follows_an_exchange_and_a_conflict() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let lost = lose_and_drain(rooms, &flash, b"a");
        let handle = create(rooms, b"b", b"other");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let had = (rooms.files.had(&link("b")), rooms.files.had(&link("a")));
        let mode = forebay_types::RenameMode::Exchange;
        let ns = rooms.base.ns();
        ns.rename(Ino::ROOT, b"b", Ino::ROOT, b"a", mode)
            .expect("exchange");
        (rooms.files).was_renamed((&link("b"), &had.0), (&link("a"), &had.1), mode);
        drop(had);
        rooms.buffer.evict(&lost).expect("clean");
        rooms.files.look_after_losses(0);
        assert_eq!(rooms.files.unflushed(), [b"b"]);
        let (file, handle) = lose_store(rooms, &flash, b"f");
        rooms.files.release(handle).expect("close");
        std::fs::write(lab.pfs("f"), b"an outsider's").expect("write");
        drain(rooms);
        drain(rooms);
        rooms.buffer.evict(&file).expect("clean");
        rooms.files.look_after_losses(0);
        assert_eq!(rooms.files.unflushed().len(), 2, "it is told");
    }

    #[test]
    fn a_loss_of_a_file_that_gets_its_name_late_is_told() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        for named in [true, false] {
            let flags = OpenFlags(libc::O_RDWR as u32);
            let created = rooms.files.create_unnamed(Ino::ROOT, 0o600, flags, me());
            let (attr, opened) = created.expect("create");
            let written = (rooms.files).write(opened.handle, 0, b"content", WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(7)));
            flash.inject(Operation::Write, When::Nth(1), Effect::Fail(Errno::EIO));
            let how = WriteHow {
                write_back: true,
                ..WriteHow::WAITING
            };
            let lost = rooms.files.write(opened.handle, 0, b"CONTENT", how);
            assert_eq!(answer(lost), Err(Errno::EIO));
            if named {
                rooms.files.link(attr.ino, &link("f"), &me()).expect("link");
            }
            rooms.files.release(opened.handle).expect("close");
            rooms.files.note_forgotten(&[(attr.ino, 2)]);
            rooms.base.ns().forget(attr.ino, 2);
            rooms.files.let_go_unnamed();
            if named {
                drain(rooms);
                let file = rooms.base.ns().root().child(b"f").expect("there");
                rooms.buffer.evict(&file).expect("clean");
                rooms.files.look_after_losses(0);
                assert_eq!(rooms.files.unflushed(), [b"f"]);
                let had = rooms.files.had(&link("f"));
                rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
                rooms.files.name_is_gone(&link("f"), &had);
            }
            assert!(rooms.files.losses().is_empty(), "named: {named}");
        }
    }

    #[test]
    fn a_loss_stays_with_the_other_names_that_somebody_has_made_on_the_pfs() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let ns = rooms.base.ns();
        let file = lose_and_drain(rooms, &flash, b"f");
        std::fs::hard_link(lab.pfs("f"), lab.pfs("g")).expect("link");
        let stat = ns.pfs().stat(ns.pfs().root(), b"g").expect("stat");
        let of_g = || rooms.files.losses().of_pfs(stat.id.into());
        assert!(of_g().is_some(), "it is clean here");
        let had = rooms.files.had(&link("f"));
        ns.unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.lost_name(&file, &had);
        rooms.files.name_is_gone(&link("f"), &had);
        drop(had);
        assert!(of_g().is_some());
        assert_eq!(rooms.files.unflushed(), [b"f"], "no other name is known");
    }

    #[test]
    fn a_loss_stays_where_its_file_leaves_as_one_of_its_names_goes() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let ns = rooms.base.ns();
        let (file, handle) = lose_store(rooms, &flash, b"a");
        rooms.files.release(handle).expect("close");
        ns.link(file.ino, Ino::ROOT, b"b").expect("link");
        drain(rooms);
        let had = rooms.files.had(&link("a"));
        ns.unlink(Ino::ROOT, b"a").expect("unlink");
        rooms.buffer.evict(&file).expect("clean");
        rooms.files.lost_name(&file, &had);
        rooms.files.name_is_gone(&link("a"), &had);
        drop(had);
        rooms.files.look_after_losses(0);
        assert_eq!(rooms.files.unflushed().len(), 1);
    }

    #[test]
    fn the_end_of_a_loss_ends_no_other_error() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let (old, handle) = lose_store(rooms, &flash, b"f");
        rooms.files.release(handle).expect("close");
        let ns = rooms.base.ns();
        let mode = forebay_types::RenameMode::Replace;
        ns.rename(Ino::ROOT, b"f", Ino::ROOT, b"g", mode)
            .expect("rename");
        let newer = Errno::ENOSPC;
        rooms
            .base
            .report(b"f".to_vec(), newer, "is another file".into());
        ns.unlink(Ino::ROOT, b"g").expect("unlink");
        rooms.files.lost_name(&old, &Had::nothing());
        assert!(rooms.files.unflushed().is_empty());
        assert!(rooms.base.errors().reason(b"f", newer).is_some());
    }
}
