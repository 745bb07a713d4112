//! All programs on their way through files, by number and by folder.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use forebay_namespace::DirKey;

use super::readers::Reading;

/// Who reads what. An open looks at those of its folder only: lists and runs may be many.
///
/// Each one in `all` is in `in_folder` under each of its folders, and nothing else is.
#[derive(Default)]
pub(super) struct Readings {
    all: HashMap<u64, Arc<Reading>>,
    in_folder: HashMap<DirKey, Vec<Arc<Reading>>>,
}

/// By number.
impl Deref for Readings {
    type Target = HashMap<u64, Arc<Reading>>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Readings {
    /// One more.
    pub(super) fn insert(&mut self, reading: Arc<Reading>) {
        self.remove(reading.id);
        for folder in reading.folders() {
            let there = self.in_folder.entry(folder).or_default();
            there.push(reading.clone());
        }
        self.all.insert(reading.id, reading);
    }

    /// It has ended.
    pub(super) fn remove(&mut self, id: u64) {
        let Some(gone) = self.all.remove(&id) else {
            return;
        };
        for folder in gone.folders() {
            if let Some(there) = self.in_folder.get_mut(&folder) {
                there.retain(|reading| reading.id != id);
                if there.is_empty() {
                    self.in_folder.remove(&folder);
                }
            }
        }
    }

    /// Those that expect files of a folder.
    pub(super) fn of_folder(&self, folder: DirKey) -> Vec<Arc<Reading>> {
        self.in_folder.get(&folder).cloned().unwrap_or_default()
    }

    /// How many folders are waited for.
    #[cfg(test)]
    pub(super) fn folders(&self) -> usize {
        self.in_folder.len()
    }
}
