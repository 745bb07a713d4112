//! A demotion, from its begin to the record that says clean. Between them its copy gets its name
//! ([`crate::placement`]).

use std::fs;
use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsStat, PfsTree, Sums};
use forebay_types::{Errno, Generation, TierId, failpoint};

use forebay_kv::Durability;

use crate::namespace::save::Beside;
use crate::record::{Meta, Temporary, xattrs_crc};
use crate::tree::transition::Unconfirmed;
use crate::tree::{Dir, Name};
use crate::tree::{File, FileState};
use crate::{Namespace, NsError};

/// What is put in its place.
#[derive(Clone, Copy)]
pub enum Copy<'a> {
    /// A copy under its temporary name.
    Named(&'a fs::File),
    /// A copy that has no name yet.
    Unnamed(&'a fs::File),
    /// No copy but the object itself, from this place.
    Itself(&'a PfsDir, &'a [u8]),
}

/// A demotion under way: what is to be copied, and where to.
pub struct Demotion {
    /// The file.
    pub file: Arc<File>,
    /// Directory of the name it is published under.
    pub dir: Arc<Dir>,
    /// The directory on the PFS.
    pub handle: PfsDir,
    /// That name.
    pub name: Name,
    /// Name of the temporary file beside it.
    pub temporary: Vec<u8>,
    /// What is copied.
    pub generation: Generation,
    /// Tier to copy from.
    pub tier: TierId,
    /// Attributes to give the copy.
    pub meta: Meta,
    /// Extended attributes to give the copy.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What came of putting a finished copy in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is there.
    Published,
    /// The file changed, moved or was unlinked meanwhile: the copy is to be thrown away.
    Superseded,
    /// An outsider has put something else there. It keeps its name; our version is beside it.
    Conflict {
        /// Name of our version.
        name: Vec<u8>,
    },
}

/// What became of a file whose copy is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// The content is still of the generation that was copied, and the file has no name that does
    /// not show it: nothing is left to do but for who writes it.
    pub current: bool,
    /// The record has forgotten a copy, no newer than this one, that an fsync had left in this
    /// tier: it may be removed.
    pub outdated_shadow: Option<TierId>,
}

impl Namespace {
    /// Begins a demotion, unless the file is clean, unlinked, already being demoted, or written
    /// unseen. What has become of an earlier copy is found out first, and on record.
    pub fn begin_demotion(&self, file: &Arc<File>) -> Result<Option<Demotion>, NsError> {
        self.settle_if_unsettled(file)?;
        self.end_note(file)?;
        let (dir, name, generation, tier, meta, xattrs) = {
            let mut state = file.lock();
            let unseen = state.residency.writing && state.drain_open == 0;
            if !state.is_dirty() || state.demoting || unseen {
                return Ok(None);
            }
            let Some((dir, name)) = state.names.first().cloned() else {
                return Ok(None);
            };
            state.begin_demotion();
            let residency = state.residency;
            (
                dir,
                name,
                residency.generation,
                residency.tier,
                state.meta,
                state.xattrs.clone(),
            )
        };
        match self.open_dir_after_renames(&dir) {
            Ok(handle) => Ok(Some(Demotion {
                file: file.clone(),
                dir,
                handle,
                temporary: PfsTree::temporary_name(self.instance, file.object, generation),
                name,
                generation,
                tier,
                meta,
                xattrs,
            })),
            Err(error) => {
                file.lock().end_demotion();
                Err(error)
            }
        }
    }

    /// The next copy of the same content gets the same temporary name. If the record named the copy
    /// before it, a start would take the next one for an outsider's file that an exchange has put
    /// there. So that record is written first, and while the store takes none, nothing is copied.
    fn end_note(&self, file: &File) -> Result<(), NsError> {
        let mut state = file.lock();
        if state.demoting || !state.is_noted() || state.is_unsettled() {
            return Ok(());
        }
        state.forget_copy();
        self.save(file, &state, Durability::Buffered)?;
        state.note_is_gone();
        Ok(())
    }

    /// Records the finished copies, so that after a crash it is known whose they are, and whether
    /// an outsider has changed them since. `copies`: what each is on the PFS, with mode and owner
    /// of its file, and with its time or before it gets that. The failures are by position.
    pub fn note_temporaries(&self, copies: &[(&Demotion, PfsStat)]) -> Vec<(usize, NsError)> {
        let files: Vec<_> = copies.iter().map(|(demotion, _)| &demotion.file).collect();
        let mut change = |at: usize, state: &mut FileState| {
            let (demotion, stat) = &copies[at];
            state.note_copy(Temporary {
                generation: demotion.generation,
                ino: stat.id.ino,
                btime_ns: stat.id.btime_ns,
                size: stat.size,
                mtime: demotion.meta.mtime,
                looks: stat.into(),
                xattrs_crc: xattrs_crc(&demotion.xattrs),
            });
            true
        };
        let failures = self.save_together(&files, &mut change, &mut |_, _| {}, None);
        if !copies.is_empty() {
            failpoint::hit(failpoint::Point::DemoteNoted);
        }
        failures
    }

    /// Whether the copy under way is still of the newest content.
    pub fn is_current(&self, demotion: &Demotion) -> bool {
        let state = demotion.file.lock();
        state.residency.generation == demotion.generation && !state.is_unlinked()
    }

    /// The copies are durable under their names: the files are clean, as far as they have not
    /// changed since. What became of each, or why its record could not be written.
    pub fn confirm(&self, published: &[(&Demotion, &Sums)]) -> Vec<Result<Confirmed, NsError>> {
        let files: Vec<_> = published.iter().map(|(d, _)| &d.file).collect();
        let mut outcomes: Vec<Result<Confirmed, NsError>> = Vec::new();
        outcomes.resize_with(published.len(), || Ok(Confirmed::default()));
        let beside: Beside<'_> = &|batch, at, state| {
            let (demotion, sums) = published[at];
            match state.residency.generation == demotion.generation {
                true => self.put_sums(batch, &demotion.file, sums),
                false => Ok(()),
            }
        };
        let mut before: Vec<Option<Unconfirmed>> = Vec::new();
        before.resize_with(published.len(), || None);
        let before = std::cell::RefCell::new(before);
        let mut change = |at: usize, state: &mut FileState| {
            let (demotion, sums) = published[at];
            before.borrow_mut()[at] = Some(state.unconfirmed());
            let (current, outdated_shadow) = state.confirm(demotion.generation, sums);
            outcomes[at] = Ok(Confirmed {
                current,
                outdated_shadow,
            });
            true
        };
        // What is not on record is not so: the file stays undrained, and is tried again.
        let mut undo = |at: usize, state: &mut FileState| {
            if let Some(before) = before.borrow_mut()[at].take() {
                state.take_confirmation_back(before);
            }
        };
        let failures = self.save_together(&files, &mut change, &mut undo, Some(beside));
        if !published.is_empty() {
            failpoint::hit(failpoint::Point::DemoteConfirmed);
        }
        for (at, error) in failures {
            // Whether the store has taken it is not known: what it has must not outlast the next
            // change.
            self.save_later(files[at], &mut files[at].lock());
            outcomes[at] = Err(error);
        }
        outcomes
    }

    /// Whether it is known what has become of the copy of a demotion that failed: else nobody may
    /// touch what has its temporary name, which may be an outsider's.
    pub fn is_settled(&self, demotion: &Demotion) -> bool {
        !demotion.file.lock().is_unsettled()
    }

    /// The demotion is given up; the temporary file has been removed, or never was, or is to be
    /// looked after.
    pub fn abandon(&self, demotion: &Demotion, error: Option<Errno>) -> Result<(), NsError> {
        let mut state = demotion.file.lock();
        state.abandon(error);
        self.save(&demotion.file, &state, Durability::Buffered)?;
        state.note_is_gone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_kv::memory::Memory;
    use forebay_types::{Cred, Ino, Process, RenameMode, TierId, TimeSpec};

    use super::*;
    use crate::NewFile;

    const CRED: Cred = Cred {
        uid: 0,
        gid: 0,
        process: Process::here(0),
        umask: 0,
    };

    /// Ends the renaming thread also where the test fails.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn a_drain_finds_a_directory_whose_parents_are_being_renamed() {
        const ROUNDS: usize = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsTree::open(dir.path()).unwrap();
        let (ns, _) = Namespace::open(pfs, Box::new(Memory::new()), [7; 16]).unwrap();
        // Every look walks down from the root.
        ns.keep_directories(0);
        let mkdir = |parent, name: &[u8]| ns.mkdir(parent, name, 0o755, &CRED).unwrap().ino;
        let above = mkdir(Ino::ROOT, b"a");
        let inner = mkdir(mkdir(above, b"x"), b"inner");
        let (inner, gid) = ns.check_free(inner, b"f", &CRED).unwrap();
        let new = NewFile {
            object: ns.new_object().unwrap(),
            tier: TierId(2),
            perm: 0o644,
            xattrs: Vec::new(),
            cred: CRED,
            writing: false,
            born: TimeSpec::now(),
        };
        let file = ns.create(&inner, b"f", gid, &new).unwrap().1;
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ends = [(above, b"x"), (Ino::ROOT, b"y")];
                while !ended.load(Ordering::Acquire) {
                    let [from, to] = ends;
                    ns.rename(from.0, from.1, to.0, to.1, RenameMode::Replace)
                        .unwrap();
                    ends.reverse();
                }
            });
            let _ends = Ends(&ended);
            for round in 0..ROUNDS {
                let begun = ns.begin_demotion(&file);
                let demotion = begun.unwrap_or_else(|e| panic!("round {round}: {e}"));
                ns.abandon(&demotion.expect("it is dirty"), None).unwrap();
            }
        });
    }
}
