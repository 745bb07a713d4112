//! Copies of which it is not known whether they have got their names: because the daemon died, or
//! because the PFS gave an error, or none in time. They are known by inode number and time of
//! birth, whatever they are called.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::{PfsDir, PfsStat};
use forebay_types::{Errno, failpoint};

use crate::conflict::{CONFLICT_INFIX, Conflict, ConflictKind};
use crate::error::on_pfs;
use crate::placement::Target;
use crate::record::{Published, Temporary};
use crate::tree::Dir;
use crate::{File, Namespace, NsError};

impl Namespace {
    /// Where a demotion stood when the daemon died: removes its temporary files, or, if the copy
    /// had reached its name, takes it as published. If it had been put beside an outsider's file,
    /// so is the file.
    pub fn settle_demotion(&self, file: &Arc<File>) -> Result<(), NsError> {
        let settled = self.settle_copy(file);
        if settled.is_err() {
            // Until it is known, it must not be taken for an outsider's.
            file.lock().unsettle();
        }
        settled
    }

    /// The same while the burst buffer runs, before anything else is done with the names of a file.
    pub(crate) fn settle_if_unsettled(&self, file: &Arc<File>) -> Result<(), NsError> {
        loop {
            let dir = {
                let state = file.lock();
                match (state.is_unsettled(), state.names.first()) {
                    (true, Some((dir, _))) => dir.clone(),
                    _ => return Ok(()),
                }
            };
            let _order = dir.order(&self.pfs)?;
            let _naming = file.naming(&self.pfs)?;
            let still = file
                .lock()
                .names
                .first()
                .is_some_and(|(now, _)| Arc::ptr_eq(now, &dir));
            if still {
                return self.settle_held(file);
            }
        }
    }

    /// The same with the naming of the file held.
    pub(crate) fn settle_held(&self, file: &Arc<File>) -> Result<(), NsError> {
        match file.lock().is_unsettled() {
            true => {}
            false => return Ok(()),
        }
        self.settle_copy(file)
    }

    pub(crate) fn settle_copy(&self, file: &Arc<File>) -> Result<(), NsError> {
        let (ours, names) = {
            let mut state = file.lock();
            let Some(ours) = state.copy_under_way() else {
                state.forget_copy();
                return Ok(());
            };
            let names = state.names.iter();
            let names: Vec<_> = names
                .map(|(dir, name)| (dir.clone(), name.clone(), state.expected_at(dir, name)))
                .collect();
            (ours, names)
        };
        let mut had_name = false;
        // They count as links of what is published: before that is looked at, they go.
        for (at, (dir, name, expected)) in names.iter().enumerate() {
            let temporary = self.copy_name(file.object, ours.generation, at);
            let handle = self.open_dir(dir)?;
            let target = Target {
                dir: &handle,
                name,
                temporary: &temporary,
                expected: *expected,
                ours,
            };
            had_name |= self.unseen(dir, &handle, || self.clear_aside(dir, &target))? && at == 0;
        }
        failpoint::hit(failpoint::Point::SettleTemporary);
        let mut published = false;
        for (at, (dir, name, _)) in names.iter().enumerate() {
            let look_beside = match at {
                0 => !had_name,
                _ => published,
            };
            let there = self.settle_name(file, (dir, name), ours, at == 0, look_beside)?;
            published |= there && at == 0;
        }
        let mut state = file.lock();
        state.forget_copy();
        // Whether its directory was flushed is not known, so it stays dirty and is copied again.
        self.save(file, &state, Durability::Buffered)?;
        state.note_is_gone();
        failpoint::hit(failpoint::Point::SettleDemotion);
        Ok(())
    }

    /// Whether the copy has this name, or one beside it, which is the file's then.
    fn settle_name(
        &self,
        file: &Arc<File>,
        (dir, name): (&Arc<Dir>, &[u8]),
        ours: Temporary,
        first: bool,
        look_beside: bool,
    ) -> Result<bool, NsError> {
        let handle = self.open_dir(dir)?;
        let found = self.stat_if_there(&handle, name)?;
        let taken = found.is_some();
        let mut here = found
            .filter(|stat| ours.is(stat))
            .map(|stat| (name.to_vec(), stat));
        if here.is_none() && look_beside {
            here = self.find_beside(&handle, name, ours)?;
            if let Some((beside, _)) = &here {
                let kind = match taken {
                    true => ConflictKind::Changed,
                    false => ConflictKind::Removed,
                };
                self.yield_name(file, (dir, name), beside, kind)?;
                failpoint::hit(failpoint::Point::SettleBeside);
            }
        }
        let Some((name, stat)) = here else {
            return Ok(false);
        };
        let published = ours.published(&stat);
        match first {
            true => {
                let published = self.take_looks(file, ours, (dir, &name), published)?;
                file.lock().first_is_placed(published);
            }
            false if file.lock().is_published_as(ours) => file.lock().set_placed(dir, &name),
            false => file.lock().set_unplaced(dir, &name, Some(published)),
        }
        Ok(true)
    }

    /// The copy has a name, as `published`. Mode, owner and attributes that an outsider has given
    /// it since are the file's, unless that has been changed itself meanwhile: then the next drain
    /// finds them, as it does at any other time.
    fn take_looks(
        &self,
        file: &File,
        ours: Temporary,
        (dir, name): (&Arc<Dir>, &[u8]),
        published: Published,
    ) -> Result<Published, NsError> {
        let node = match self.pfs.node(&self.open_dir(dir)?, name) {
            Ok(node) => node,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(published),
            Err(error) => return Err(on_pfs("open by name")(error)),
        };
        let xattrs = self.load_xattrs(&node)?;
        let Some(stat) = self.stat_if_there(&self.open_dir(dir)?, name)? else {
            return Ok(published);
        };
        if !published.is(&stat) || ours.has_its_looks(&stat, &xattrs) {
            // Somebody changes it now, or nobody has.
            return Ok(published);
        }
        let mut state = file.lock();
        if state.residency.generation != ours.generation {
            return Ok(published.with_looks_changed());
        }
        tracing::info!(
            "{}: mode, owner or attributes were changed on the PFS",
            dir.path_of(name).escape_ascii()
        );
        state.take_looks(published.looks, xattrs);
        Ok(published)
    }

    /// Removes what has the temporary name beside a name: the copy, or the older version that an
    /// exchange has put there. An outsider's version, which may have come out of one, gets its name
    /// back. Whether there was one.
    fn clear_aside(&self, dir: &Arc<Dir>, target: &Target<'_>) -> Result<bool, NsError> {
        let (handle, name, temporary) = (target.dir, target.name, target.temporary);
        let Some(aside) = self.stat_if_there(handle, temporary)? else {
            return Ok(false);
        };
        if target.ours.is(&aside) || target.is_older(&aside) {
            self.unlink_if_there(handle, temporary)?;
            return Ok(true);
        }
        let there = self.stat_if_there(handle, name)?;
        if there.is_some_and(|stat| target.ours.is_unchanged(&stat)) {
            if !self
                .pfs
                .exchange(handle, temporary, name)
                .map_err(on_pfs("exchange of names"))?
            {
                return Err(Errno::EOPNOTSUPP.into());
            }
            return self.clear_aside(dir, target);
        }
        // The name is somebody else's already.
        let kept_as = self.move_beside((handle, temporary), (dir, handle), name)?;
        self.note_conflict(Conflict {
            path: dir.path_of(name),
            kept_as,
            theirs: true,
            kind: ConflictKind::Changed,
        });
        Ok(true)
    }

    /// Whether there was something to unlink.
    pub(crate) fn unlink_if_there(&self, dir: &PfsDir, name: &[u8]) -> Result<bool, NsError> {
        match self.pfs.unlink(dir, name) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(on_pfs("unlink")(e)),
        }
    }

    /// Under which conflict name of `name` the PFS has this copy.
    fn find_beside(
        &self,
        dir: &PfsDir,
        name: &[u8],
        ours: Temporary,
    ) -> Result<Option<(Vec<u8>, PfsStat)>, NsError> {
        let mut names = Vec::new();
        let infix = CONFLICT_INFIX.as_bytes();
        self.pfs
            .read_dir(dir, &mut |entry| {
                let is_beside = entry.name.windows(infix.len()).any(|part| part == infix);
                if entry.ino == ours.ino && is_beside && entry.name != name {
                    names.push(entry.name);
                }
            })
            .map_err(on_pfs("readdir"))?;
        for beside in names {
            let found = self.stat_if_there(dir, &beside)?;
            if let Some(stat) = found.filter(|stat| ours.is(stat)) {
                return Ok(Some((beside, stat)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use forebay_kv::failing::{Call, Failing};
    use forebay_kv::memory::Memory;
    use forebay_tiers::PfsTree;
    use forebay_types::{Cred, Ino, Process, TierId};

    use forebay_types::TimeSpec;

    use super::*;
    use crate::NewFile;
    use crate::publish::Demotion;
    use crate::record::xattrs_crc;

    fn create(ns: &Namespace) -> Arc<File> {
        let cred = Cred {
            uid: 0,
            gid: 0,
            process: Process::here(0),
            umask: 0,
        };
        let (root, gid) = ns.check_free(Ino::ROOT, b"f", &cred).unwrap();
        let new = NewFile {
            object: ns.new_object().unwrap(),
            tier: TierId(2),
            perm: 0o644,
            xattrs: Vec::new(),
            cred,
            writing: false,
            born: TimeSpec::now(),
        };
        ns.create(&root, b"f", gid, &new).unwrap().1
    }

    /// A copy has got its name, the daemon is killed, an outsider gives it another mode, and what
    /// the start makes of that: the file's mode, and whether the next drain takes what is there for
    /// what was published.
    fn after_a_chmod(changed_since: bool) -> (u16, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let pfs = PfsTree::open(dir.path()).unwrap();
        let (ns, _) = Namespace::open(pfs, Box::new(Memory::new()), [7; 16]).unwrap();
        let file = create(&ns);
        let root = file.lock().names[0].0.clone();
        std::fs::write(&path, b"copy").unwrap();
        set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let handle = ns.open_dir(&root).unwrap();
        let stat = ns.pfs.stat_now(&handle, b"f").unwrap();
        let copy = Temporary {
            generation: file.lock().residency.generation,
            ino: stat.id.ino,
            btime_ns: stat.id.btime_ns,
            size: stat.size,
            mtime: stat.mtime,
            looks: (&stat).into(),
            xattrs_crc: xattrs_crc(&Vec::new()),
        };
        file.lock().note_copy(copy);
        if changed_since {
            file.lock().changed();
        }
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        ns.settle_demotion(&file).unwrap();
        let now = ns.pfs.stat_now(&handle, b"f").unwrap();
        let state = file.lock();
        let published = state.residency.published.unwrap();
        (state.meta.perm, published.is(&now))
    }

    /// A copy is on record and the store fails, so that it is given up without a record of that.
    /// The next try has a copy under the temporary name when the daemon is killed.
    #[test]
    fn a_copy_after_one_whose_end_is_not_on_record_is_no_outsiders() {
        let dir = tempfile::tempdir().unwrap();
        let pfs = || PfsTree::open(dir.path()).unwrap();
        let inner = Arc::new(Memory::new());
        let store = Arc::new(Failing::new(inner.clone()));
        let (ns, _) = Namespace::open(pfs(), Box::new(store.clone()), [7; 16]).unwrap();
        let file = create(&ns);
        let handle = ns.open_dir(&file.lock().names[0].0).unwrap();
        let copy_anew = |demotion: &Demotion| {
            let path = dir.path().join(OsStr::from_bytes(&demotion.temporary));
            std::fs::write(&path, b"copy").unwrap();
            let stat = ns.pfs.stat_now(&handle, &demotion.temporary).unwrap();
            (path, stat)
        };
        let demotion = ns.begin_demotion(&file).unwrap().unwrap();
        let (copy, stat) = copy_anew(&demotion);
        assert!(ns.note_temporaries(&[(&demotion, stat)]).is_empty());
        store.fail_nth(Call::Sync, 1, libc::ENOSPC);
        assert!(ns.sync().is_err());
        std::fs::remove_file(copy).unwrap();
        let lost = ns.abandon(&demotion, Some(Errno::ENOSPC));
        assert!(lost.is_err() && store.fired() == 1);
        if let Ok(Some(again)) = ns.begin_demotion(&file) {
            // The number of the first is free again.
            std::fs::write(dir.path().join("other"), b"").unwrap();
            copy_anew(&again);
        }
        drop((ns, file));
        let (ns, loaded) = Namespace::open(pfs(), Box::new(inner), [7; 16]).unwrap();
        assert_eq!(loaded.files.len(), 1);
        for file in &loaded.files {
            ns.settle_demotion(file).unwrap();
        }
        assert_eq!(ns.take_conflicts().len(), 0);
    }

    #[test]
    fn a_mode_given_after_the_kill_is_the_files_or_found_by_the_next_drain() {
        assert_eq!(after_a_chmod(false), (0o600, true));
        assert_eq!(after_a_chmod(true), (0o644, false));
    }
}
