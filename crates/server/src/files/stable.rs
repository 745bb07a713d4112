//! Names and what they stand for, over a loss of power: no name on stable storage leads to content
//! that is older than what was there under it before.

use std::sync::Arc;

use forebay_namespace::{File, FileState, Node};
use forebay_policy::durability::{
    Durability, Standing, can_flush_for_names, is_flushed_before_rename,
    is_flushed_with_its_directory,
};
use forebay_tiers::TierKind;
use forebay_types::{Errno, Ino, OpenFlags};
use forebay_wire::Link;

use crate::base::failure::{Failure, both};
use crate::files::Files;

impl Files {
    /// Before a rename: flushes the file where a loss of power would show what it replaces, or its
    /// own older version, under the new name. Whether a loss of power may find nothing of what the
    /// file replaces.
    pub fn stabilise_for_rename(&self, from: &Link, to: &Link) -> Result<bool, Failure> {
        let Some(file) = self.child(from) else {
            return Ok(false);
        };
        let standing = self.standing(&file);
        if !standing.is_volatile {
            return Ok(true);
        }
        let replaced = self.child(to).filter(|r| r.object != file.object);
        let level = self.level(from).max(self.level(to));
        let replaced = replaced.map(|replaced| self.standing(&replaced));
        let parts = level != Durability::Memory && self.parts_links(&file, to);
        match is_flushed_before_rename(level, standing, replaced, parts) {
            true => self.flush_for_names(&file, level),
            false => Ok(level == Durability::Memory),
        }
    }

    /// Before a link, likewise: its older version would get the name too.
    pub fn stabilise_for_link(&self, ino: Ino, to: &Link) -> Result<(), Failure> {
        let Node::File(file) = self.ns.node(ino)? else {
            return Ok(());
        };
        let standing = self.standing(&file);
        if !standing.is_volatile {
            return Ok(());
        }
        let level = self.catalog.durability_of_file(&file).max(self.level(to));
        match is_flushed_before_rename(level, standing, None, false) {
            true => self.flush_for_names(&file, level).map(drop),
            false => Ok(()),
        }
    }

    /// See [`forebay_namespace::Namespace::part_from_older`]: the older version goes from the PFS
    /// at once, and must not be all that a loss of power would have left.
    /// `is_changed`: somebody changes the older one, or has just done so.
    pub fn part_from_older(&self, file: &Arc<File>, is_changed: bool) -> Result<(), Failure> {
        let level = self.catalog.durability_of_file(file);
        if self.standing(file).is_volatile
            && level > Durability::Memory
            && !self.flush_for_names(file, level)?
        {
            // Readers have the older one until a copy replaces it. Who changes it goes on all the
            // same.
            if !is_changed {
                return Ok(());
            }
        }
        Ok(self.ns.part_from_older(file)?)
    }

    /// Whether there was a way to flush it.
    fn flush_for_names(&self, file: &Arc<File>, level: Durability) -> Result<bool, Failure> {
        let (tier, bytes) = {
            let state = file.lock();
            (state.residency.tier, state.meta.allocated_bytes)
        };
        if self.buffer.tiers().is_out_of_reach(tier) {
            // Who names it need not wait for its node.
            return Ok(false);
        }
        let in_memory = self.buffer.tiers().kind(tier) == TierKind::Dram;
        match can_flush_for_names(
            level,
            in_memory,
            self.flash_for(file, tier, bytes).is_some(),
        ) {
            true => self.make_stable(file).map(|()| true),
            false => Ok(false),
        }
    }

    /// The names in a directory survive power loss, and what they lead to is not what was there
    /// before.
    pub fn sync_dir(&self, ino: Ino) -> Result<(), Failure> {
        if let Node::Dir(dir) = self.ns.node(ino)? {
            for file in dir.files() {
                let standing = self.standing(&file);
                // Most are not, and a directory may be large: their levels need not be known.
                if (standing.is_volatile || standing.owes_fsync)
                    && is_flushed_with_its_directory(
                        self.catalog.durability_of_file(&file),
                        standing,
                    )
                {
                    self.stabilise(&file)?;
                }
            }
        }
        Ok(self.ns.sync_dir(ino)?)
    }

    fn child(&self, link: &Link) -> Option<Arc<File>> {
        match self.ns.node(link.parent) {
            Ok(Node::Dir(dir)) => dir.child(&link.name),
            _ => None,
        }
    }

    /// Whether what a rename replaces goes from the PFS at once: it has several links, or the file
    /// has, or somebody has it open there.
    fn parts_links(&self, file: &File, to: &Link) -> bool {
        let Ok(Node::Dir(dir)) = self.ns.node(to.parent) else {
            return false;
        };
        let several = file.lock().names.len() > 1;
        let Ok(found) = self.ns.lookup_in(&dir, &to.name, false) else {
            return false;
        };
        let opens = self.buffer.opens().on_pfs();
        let is_in_use = || match self.ns.node(found.attr.ino) {
            Ok(Node::Plain(plain)) => opens.has(plain.id.ino, plain.id.btime_ns),
            _ => false,
        };
        several || found.attr.nlink > 1 || is_in_use()
    }

    fn level(&self, link: &Link) -> Durability {
        match self.ns.node(link.parent) {
            Ok(Node::Dir(dir)) => self.catalog.durability_of(&dir.path_of(&link.name)),
            _ => Durability::Memory,
        }
    }

    fn standing(&self, file: &File) -> Standing {
        let written = self
            .buffer
            .opens()
            .by_ino(file.ino)
            .is_some_and(|open| open.is_written());
        let state: &FileState = &file.lock();
        let residency = &state.residency;
        let is_flushed = residency
            .flushed
            .is_some_and(|flushed| flushed.generation == residency.generation)
            // Who closes it may not have said yet what was written, and is not waited for once the
            // PFS is given up.
            && !written
            && !residency.writing;
        Standing {
            is_volatile: state.is_dirty() && !is_flushed,
            is_on_flash: state.is_dirty() && residency.flushed.is_some(),
            has_older: residency.published.is_some(),
            owes_fsync: state.owes_fsync && state.is_dirty(),
        }
    }

    /// What an fsync by its user does.
    fn stabilise(&self, file: &Arc<File>) -> Result<(), Failure> {
        let (opened, _) = match self.open(file.ino, OpenFlags(libc::O_RDONLY as u32), None) {
            Ok(opened) => opened,
            // Unlinked or replaced meanwhile: its name is gone.
            Err(failure) if matches!(failure.errno(), Errno::ENOENT | Errno::ESTALE) => {
                failure.told("open");
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        let done = self.fsync(opened.handle, true);
        let closed = self.release(opened.handle);
        both("close", done, closed).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Ino;
    use forebay_wire::Link;

    use crate::testing::{Lab, create};

    /// Else a loss of power would leave nothing under the name.
    #[test]
    fn what_replaces_one_of_several_links_is_flushed_before() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        std::fs::write(lab.pfs("one"), b"older").expect("write");
        let link = |name: &[u8]| Link {
            parent: Ino::ROOT,
            name: name.to_vec(),
        };
        for (links, name) in [(1, b"new1"), (2, b"new2")] {
            if links == 2 {
                std::fs::hard_link(lab.pfs("one"), lab.pfs("two")).expect("link");
            }
            let handle = create(rooms, name, b"newer");
            rooms.files.release(handle).expect("close");
            let stabilised = rooms.files.stabilise_for_rename(&link(name), &link(b"one"));
            stabilised.expect("flushed");
            let file = rooms.files.child(&link(name)).expect("file");
            assert_eq!(rooms.files.standing(&file).is_volatile, links == 1);
        }
    }

    #[test]
    fn what_is_being_closed_is_not_taken_for_flushed_while_the_pfs_is_given_up() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        rooms.files.make_stable(&file).expect("flush");
        assert!(!rooms.files.standing(&file).is_volatile, "it is flushed");
        rooms.buffer.opens().note_given_up(true);
        // A close in its middle: out of the table, and what the kernel wrote not looked at yet.
        let _closing = rooms.buffer.opens().claim(file.ino);
        file.lock().begin_unseen();
        assert!(rooms.files.standing(&file).is_volatile);
    }
}
