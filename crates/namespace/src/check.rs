//! What a check of the records needs beyond what serving them does.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_kv::Durability;
use forebay_tiers::PfsTree;
use forebay_types::{ObjectId, TierId};

use crate::error::on_pfs;
use crate::log::Batch;
use crate::record::{
    self, DirKey, DirRecord, FileRecord, NamelessRecord, SumsRecord, UnpublishedRecord,
};
use crate::tree::Dir;
use crate::{File, Garbage, Namespace, NsError};

/// A record that cannot be served as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordTrouble {
    /// It does not decode.
    Unreadable {
        /// Its key in the store.
        key: Vec<u8>,
        /// Its bytes.
        value: Vec<u8>,
    },
    /// A directory that it names is not known.
    DirectoryUnknown {
        /// The file's object.
        object: ObjectId,
        /// The record.
        record: Box<FileRecord>,
    },
    /// Another file is shown under its name.
    NameTakenTwice {
        /// The object of the file that is not shown.
        object: ObjectId,
        /// Directory and name.
        name: (DirKey, Vec<u8>),
    },
}

impl Namespace {
    /// Reads every record and tells which cannot be served.
    pub fn check_records(&self) -> Result<Vec<RecordTrouble>, NsError> {
        let mut troubles = Vec::new();
        self.save_deferred()?;
        let unreadable = |key: &[u8], value: &[u8]| RecordTrouble::Unreadable {
            key: key.to_vec(),
            value: value.to_vec(),
        };
        self.store
            .scan(record::DIR_PREFIX, None, &mut |key, value| {
                let known = DirKey::from_bytes(&key[2..]).is_some();
                if !known || record::decode::<DirRecord>(value).is_err() {
                    troubles.push(unreadable(key, value));
                }
                true
            })?;
        self.store
            .scan(record::UNPUBLISHED_PREFIX, None, &mut |key, value| {
                if record::decode::<UnpublishedRecord>(value).is_err() {
                    troubles.push(unreadable(key, value));
                }
                true
            })?;
        self.store
            .scan(record::SUMS_PREFIX, None, &mut |key, value| {
                if record::decode::<SumsRecord>(value).is_err() {
                    troubles.push(unreadable(key, value));
                }
                true
            })?;
        self.store
            .scan(record::NAMELESS_PREFIX, None, &mut |key, value| {
                if record::decode::<NamelessRecord>(value).is_err() {
                    troubles.push(unreadable(key, value));
                }
                true
            })?;
        self.store
            .scan(record::LEFT_PREFIX, None, &mut |key, value| {
                if record::decode::<Vec<TierId>>(value).is_err() {
                    troubles.push(unreadable(key, value));
                }
                true
            })?;
        let mut doubtful = Vec::new();
        self.store
            .scan(record::FILE_PREFIX, None, &mut |key, value| {
                match (
                    record::object_of_key(key),
                    record::decode::<FileRecord>(value),
                ) {
                    (Some(object), Ok(file)) => {
                        if self.trouble(object, &file).is_some() {
                            doubtful.push((object, key.to_vec()));
                        }
                    }
                    _ => troubles.push(unreadable(key, value)),
                }
                true
            })?;
        // What is renamed while it is read looks odd for a moment: such records are read again.
        for (object, key) in doubtful {
            if let Some(value) = self.store.get(&key)?
                && let Ok(file) = record::decode::<FileRecord>(&value)
            {
                troubles.extend(self.trouble(object, &file));
            }
        }
        Ok(troubles)
    }

    fn trouble(&self, object: ObjectId, file: &FileRecord) -> Option<RecordTrouble> {
        let mut dirs = file.names.iter().map(|(key, _)| self.known_dir(*key));
        if file.names.is_empty() || dirs.any(|dir| dir.is_none()) {
            return Some(RecordTrouble::DirectoryUnknown {
                object,
                record: Box::new(file.clone()),
            });
        }
        let taken = file.names.iter().find(|(key, name)| {
            let shown = self.known_dir(*key).and_then(|dir| dir.child(name));
            shown.is_some_and(|other| other.object != object)
        });
        taken.map(|name| RecordTrouble::NameTakenTwice {
            object,
            name: name.clone(),
        })
    }

    /// Removes a record that a check has kept elsewhere. Its object counts as that of a new file.
    pub fn remove_record(&self, key: &[u8]) -> Result<(), NsError> {
        let mut batch = Batch::new();
        batch.delete(key.to_vec());
        if let (true, Some(object)) = (
            key.starts_with(record::FILE_PREFIX),
            record::object_of_key(key),
        ) {
            batch.delete(record::sums_key(object));
            self.take_for_new(&mut batch, object)?;
        }
        Ok(self.store.commit(batch, Durability::Synced)?)
    }

    /// Removes the record of a file whose data a check has put elsewhere.
    pub fn remove_file_record(&self, object: ObjectId) -> Result<(), NsError> {
        let mut batch = Batch::new();
        batch.delete(record::file_key(object));
        batch.delete(record::sums_key(object));
        Ok(self.store.commit(batch, Durability::Synced)?)
    }

    /// Puts on record that a file whose directory is not known goes on as its second copy.
    pub fn go_on_as_copy(&self, object: ObjectId, record: &FileRecord) -> Result<(), NsError> {
        let mut record = record.clone();
        record.residency.go_on_as_copy(false);
        let mut batch = Batch::new();
        batch.put(record::file_key(object), record::encode(&record)?);
        Ok(self.store.commit(batch, Durability::Synced)?)
    }

    /// Gives a file whose name another has too a name of its own; it counts as new.
    pub fn part_names(
        &self,
        file: &Arc<File>,
        dir: &Arc<Dir>,
        name: &[u8],
        new_name: &[u8],
    ) -> Result<(), NsError> {
        let _order = dir.order(&self.pfs)?;
        let _naming = file.naming(&self.pfs)?;
        let mut children = dir.lock();
        let mut state = file.lock();
        let new = (dir.clone(), new_name.into());
        state.rename_name(&(dir.clone(), name.into()), new);
        state.count_as_new();
        self.save(file, &state, Durability::Synced)?;
        if children.get(name).is_some_and(|f| Arc::ptr_eq(f, file)) {
            children.remove(name);
        }
        children.insert(new_name.into(), file.clone());
        Ok(())
    }

    /// From now on the file is undrained, whatever its record said.
    pub fn call_dirty(&self, file: &Arc<File>) -> Result<(), NsError> {
        if file.lock().residency.published.is_some() {
            return self.begin_change(file, false, true);
        }
        let mut state = file.lock();
        state.changed();
        self.save(file, &state, Durability::Synced)
    }

    /// A second, durable copy is not there.
    pub fn forget_shadow(&self, file: &File) -> Result<(), NsError> {
        let mut state = file.lock();
        state.forget_shadow();
        self.save(file, &state, Durability::Synced)
    }

    /// Every directory that has a record, the root included.
    pub fn recorded_dirs(&self) -> Result<Vec<Arc<Dir>>, NsError> {
        let mut records = HashMap::new();
        self.store
            .scan(record::DIR_PREFIX, None, &mut |key, value| {
                if let (Some(key), Ok(dir)) = (DirKey::from_bytes(&key[2..]), record::decode(value))
                {
                    records.insert(key, dir);
                }
                true
            })?;
        let mut dirs = vec![self.root.clone()];
        for key in records.keys() {
            dirs.extend(self.load_dir(*key, &records, 0));
        }
        Ok(dirs)
    }

    /// Unfinished copies in a directory of the PFS, with the objects that they are of.
    pub fn unfinished_copies(&self, dir: &Arc<Dir>) -> Result<Vec<(Vec<u8>, ObjectId)>, NsError> {
        let names = self
            .pfs
            .temporaries(&self.open_dir(dir)?, self.instance)
            .map_err(on_pfs("list copies under way"))?;
        let with_object = |name: Vec<u8>| {
            let object = PfsTree::object_of_temporary(&name)?;
            Some((name, object))
        };
        Ok(names.into_iter().filter_map(with_object).collect())
    }

    /// Whether an object has a record, legible or not.
    pub fn is_recorded(&self, object: ObjectId) -> bool {
        // A store that does not answer is no reason to call an object an orphan.
        !matches!(self.store.get(&record::file_key(object)), Ok(None))
    }

    /// Objects that are to be removed, as the records say.
    pub fn recorded_garbage(&self) -> Result<Vec<Garbage>, NsError> {
        let mut garbage = Vec::new();
        self.store
            .scan(record::GARBAGE_PREFIX, None, &mut |key, value| {
                if let (Some(object), Ok(tiers)) =
                    (record::object_of_key(key), record::decode(value))
                {
                    garbage.push(Garbage { object, tiers });
                }
                true
            })?;
        Ok(garbage)
    }
}
