//! Files that clients have open and that lose their last name: the PFS loses it before the records
//! do, so who has them open is on record before that.

use std::sync::Arc;

use crate::log::Batch;
use crate::ops::settle_links::found;
use crate::record::{self, Published};
use crate::tree::{Dir, File, FileState};
use crate::{Namespace, NsError};

impl Namespace {
    /// The PFS is about to lose the name of this file: if that is its last one, and clients have it
    /// open, `batch` gets what a start needs to know. Whether it does.
    pub(crate) fn begin_nameless(
        &self,
        batch: &mut Batch,
        file: &Arc<File>,
    ) -> Result<bool, NsError> {
        let state = file.lock();
        if state.names.len() == 1 {
            self.put_nameless(batch, file, &state)?;
        }
        Ok(self.holders.knows(file.object))
    }

    /// It has not lost its name after all.
    pub(crate) fn keeps_its_name(&self, file: &File) {
        if !self.holders.knows(file.object) {
            return;
        }
        let mut batch = Batch::new();
        self.drop_nameless(&mut batch, &[file.object]);
        match self.commit(batch) {
            Ok(()) => self.holders.forget(file.object),
            // The next start finds the name, and out.
            Err(error) => tracing::warn!("object {}: it has a name: {error}", file.object),
        }
    }

    /// Whether the PFS has this under the name, as far as it tells.
    pub(crate) fn is_there(&self, dir: &Arc<Dir>, name: &[u8], published: Published) -> bool {
        let found = found(self, &(dir.key, name.to_vec()));
        found.is_ok_and(|stat| stat.is_some_and(|stat| published.is_same_file(&stat)))
    }

    /// Finishes the loss of last names that a crash has cut off, of files that clients had open.
    /// To be asked once the changes of names are settled. Those files: they have no name, and are
    /// on record for who had them open.
    pub fn settle_nameless(&self) -> Result<Vec<Arc<File>>, NsError> {
        let mut nameless = Vec::new();
        for file in self.holders.take_losing() {
            if !self.has_lost_name(&file)? {
                continue;
            }
            let record = file.lock().record(file.ino);
            let record = record::FileRecord {
                temporary: None,
                ..record
            };
            let state = FileState::nameless(None, record);
            let file = Arc::new(File::new(file.object, file.ino, state));
            self.holders.stand_for(&file);
            nameless.push(file);
        }
        Ok(nameless)
    }

    fn has_lost_name(&self, file: &Arc<File>) -> Result<bool, NsError> {
        let (place, published) = {
            let state = file.lock();
            if state.is_unlinked() {
                return Ok(true);
            }
            let clean = !state.is_dirty() && state.names.len() == 1;
            let published = state.residency.published.filter(|_| clean);
            (state.names.first().cloned(), published)
        };
        let (Some((dir, name)), Some(published)) = (place, published) else {
            self.keeps_its_name(file);
            return Ok(false);
        };
        match found(self, &(dir.key, name.to_vec())) {
            Ok(Some(stat)) if published.is_same_file(&stat) => {
                self.keeps_its_name(file);
                return Ok(false);
            }
            Ok(_) => {}
            Err(error) => {
                // Who looks it up finds out.
                tracing::warn!("{}: its name: {error}", file.path().escape_ascii());
                return Ok(false);
            }
        }
        let mut children = dir.lock();
        let mut state = file.lock();
        let mut batch = Batch::new();
        // The start has it collected once nobody comes for it.
        self.drop_file(&mut batch, file, &state)?;
        self.put_nameless(&mut batch, file, &state)?;
        self.commit(batch)?;
        state.unlink();
        children.remove(&name);
        Ok(true)
    }
}
