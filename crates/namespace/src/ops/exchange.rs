//! rename with `RENAME_EXCHANGE`: two names are swapped, in every mix of burst buffer and PFS.

use std::sync::Arc;

use forebay_types::{FileKind, RenameMode, failpoint};

use crate::error::on_pfs;
use crate::log::Batch;
use crate::ops::ends::{End, Locked};
use crate::record::{self, ExchangeIntent, Intent, Published};
use crate::tree::Dir;
use crate::{Namespace, NsError};

impl Namespace {
    /// Swaps what the PFS has of the two names. Answers with the intent to be deleted with the
    /// change of the records.
    fn exchange_on_pfs(&self, from: &End, to: &End) -> Result<Option<u64>, NsError> {
        let (from_on_pfs, to_on_pfs) = (from.on_pfs(), to.on_pfs());
        if !from_on_pfs && !to_on_pfs {
            return Ok(None);
        }
        let had =
            |end: &End, on_pfs: bool| end.stat.filter(|_| on_pfs).map(|s| Published::from(&s));
        let intent = Intent::Exchange(ExchangeIntent {
            a: from.key(),
            b: to.key(),
            on_pfs_a: had(from, from_on_pfs),
            on_pfs_b: had(to, to_on_pfs),
        });
        let mut batch = Batch::new();
        self.put_dirs(&mut batch, &from.dir)?;
        self.put_dirs(&mut batch, &to.dir)?;
        let synced = self.must_be_synced(&[from.file.as_ref(), to.file.as_ref()])?;
        let sequence = self.begin_change_of_names(batch, &intent, synced)?;
        self.dirs_written(&from.dir);
        self.dirs_written(&to.dir);
        failpoint::hit(failpoint::Point::ExchangeIntent);
        let (a, b, mode) = match (from_on_pfs, to_on_pfs) {
            (true, true) => (from, to, RenameMode::Exchange),
            // What an outsider may have put where we have nothing is not replaced.
            (true, false) => (from, to, RenameMode::NoReplace),
            _ => (to, from, RenameMode::NoReplace),
        };
        if let Err(error) = self
            .pfs
            .rename(&a.handle, &a.name, &b.handle, &b.name, mode)
        {
            // The PFS may have done it all the same; where it does not tell, the next start finds
            // the intent, and out.
            let moved = self.is_moved(a, b);
            if let Ok(false) = moved {
                self.take_intent_back(sequence)?;
            }
            if !matches!(moved, Ok(true)) {
                return Err(on_pfs("rename")(error));
            }
        }
        failpoint::hit(failpoint::Point::ExchangePfs);
        Ok(Some(sequence))
    }

    /// The directory of the PFS that this is.
    fn dir_at(&self, end: &End) -> Option<Arc<Dir>> {
        let stat = end.stat.filter(|stat| stat.kind() == FileKind::Directory);
        let stat = stat.filter(|_| end.file.is_none())?;
        Some(self.intern_dir(stat.id, &end.dir, &end.name))
    }

    pub(crate) fn exchange(&self, from: &End, to: &End) -> Result<(), NsError> {
        // While their names still stand for them.
        let dirs = [from, to].map(|end| self.dir_at(end));
        let _changing = [from, to].map(|end| end.dir.change_name(&end.name));
        let sequence = self.exchange_on_pfs(from, to)?;
        let ends = [(from, to), (to, from)].map(|(end, other)| {
            let published = end.file.as_ref().filter(|_| end.on_pfs()).and_then(|file| {
                let published = file.lock().expected_at(&end.dir, &end.name)?;
                Some(self.follow(published, &other.handle, &other.name))
            });
            (end, other, published)
        });
        let mut locked = Locked::new(&from.dir, &to.dir);
        let state_of = |end: &End| end.file.as_ref().map(|file| file.lock().clone());
        let before = [state_of(from), state_of(to)];
        let mut batch = Batch::new();
        if let Some(sequence) = sequence {
            batch.delete(record::intent_key(sequence));
        }
        self.put_dirs(&mut batch, &from.dir)?;
        self.put_dirs(&mut batch, &to.dir)?;
        let mut moved = Vec::new();
        for ((end, other, published), dir) in ends.into_iter().zip(dirs) {
            moved.push(self.exchange_end(&mut batch, end, other, published, dir)?);
        }
        let recorded = self.commit(batch);
        if let (Err(_), None) = (&recorded, sequence) {
            // Both are in the burst buffer only: nothing has happened.
            for (end, before) in [from, to].into_iter().zip(before) {
                if let (Some(file), Some(before)) = (&end.file, before) {
                    *file.lock() = before;
                }
            }
            return recorded;
        }
        locked.from.remove(&from.name);
        locked.to().remove(&to.name);
        if let Some(file) = &from.file {
            locked.to().insert(to.name.clone(), file.clone());
        }
        if let Some(file) = &to.file {
            locked.from.insert(from.name.clone(), file.clone());
        }
        if let Err(error) = recorded {
            // What the PFS has changed stays so, and memory follows.
            let dirs = moved.into_iter().flatten();
            self.leave_unrecorded(sequence, dirs, &error);
            return Ok(());
        }
        failpoint::hit(failpoint::Point::ExchangeRecord);
        self.dirs_written(&from.dir);
        self.dirs_written(&to.dir);
        Ok(())
    }

    /// Answers with the directory that is at the other end now.
    fn exchange_end(
        &self,
        batch: &mut Batch,
        end: &End,
        other: &End,
        published: Option<Published>,
        dir: Option<Arc<Dir>>,
    ) -> Result<Option<Arc<Dir>>, NsError> {
        if let Some(file) = &end.file {
            let mut state = file.lock();
            state.rename_name(&end.place(), other.place());
            if !end.on_pfs() {
                state.lose_published_at(&other.dir, &other.name);
            }
            if published.is_some() && state.is_placed(&other.dir, &other.name) {
                state.set_published(published);
            }
            if state.is_dirty() {
                state.outdate_copy();
            }
            self.put_file(batch, file, &state)?;
            return Ok(None);
        }
        let Some(stat) = &end.stat else {
            return Ok(None);
        };
        if let Some(dir) = dir {
            dir.move_to(other.dir.clone(), &other.name);
            if dir.is_persisted() {
                self.put_dir(batch, &dir)?;
            }
            return Ok(Some(dir));
        } else if let Some(plain) = self.table.lock().plain_by_id(stat.id) {
            plain.parent = other.dir.clone();
            plain.name = other.name.clone();
        }
        Ok(None)
    }
}
