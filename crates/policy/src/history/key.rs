//! What files of one record have in common: the application, the version, the user.

use forebay_types::history::{Record, What};
use serde::{Deserialize, Serialize};

/// Longer names of applications are cut: whoever sets one on a file may set one of any length.
const NAME_BYTES_MAX: usize = 255;

/// What files of one record have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    pub(super) application: String,
    pub(super) version: Option<u64>,
    uid: u32,
}

impl Key {
    /// The application, the version where it is more than a guess, and who owns the files; of a
    /// restart, who reads. What is of one user never counts in what another sees.
    pub fn new(mut application: String, version: Option<u64>, uid: u32) -> Key {
        if application.len() > NAME_BYTES_MAX {
            let mut ends = (0..=NAME_BYTES_MAX).rev();
            let end = ends.find(|end| application.is_char_boundary(*end));
            application.truncate(end.unwrap_or(0));
        }
        Key {
            application,
            version,
            uid,
        }
    }

    pub(super) fn of(record: &Record) -> Key {
        Key::new(record.application.clone(), record.version, record.uid)
    }

    pub(super) fn begin(&self, what: What, now_ms: u64) -> Record {
        let mut record = Record::new(what, self.application.clone(), self.uid, now_ms);
        record.version = self.version;
        record
    }

    /// A user's restarts of an application are one after the other, whatever their versions.
    pub(super) fn of_restart(&self) -> Key {
        Key {
            version: None,
            ..self.clone()
        }
    }
}
