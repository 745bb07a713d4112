//! What a state folder says of a store on a server: which it is, and how the folder is called
//! there. A folder whose records are in itself says nothing.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use forebay_kv::Location;
use forebay_tiers::random_bytes;

use crate::lifecycle::smallfile::{create_small, read_small};

/// Beside the marker. Only the server's user may read it: the URL may have a password.
const NAME: &str = "forebay-store";
const NAME_WHILE_WRITTEN: &str = "forebay-store.new";
const HEAD: &str = "forebay store";
const NOBODY: &str = "-";
const BYTES_MAX: u64 = 64 * 1024;
const ID_BYTES: usize = 8;

/// How far a state folder has come with its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is about to take the records from this folder; from `None`, if there are none yet.
    Taking(Option<String>),
    /// The records were this folder's when it was last started.
    Had,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreNote {
    /// The store.
    pub location: Location,
    /// Whose records they are.
    pub cluster: String,
    /// What the folder is called in the store: drawn at random.
    pub folder: String,
    /// Whether it has the records.
    pub standing: Standing,
}

impl StoreNote {
    /// Of a folder that has had no store yet.
    pub fn new(location: Location, cluster: String) -> io::Result<StoreNote> {
        let drawn = random_bytes::<ID_BYTES>()?;
        Ok(StoreNote {
            location,
            cluster,
            folder: drawn.iter().map(|byte| format!("{byte:02x}")).collect(),
            standing: Standing::Taking(None),
        })
    }

    /// Reads it; `None` where the folder has none.
    pub fn read(state: &Path) -> io::Result<Option<StoreNote>> {
        let Some(content) = read_small(&state.join(NAME), BYTES_MAX)? else {
            return Ok(None);
        };
        let damaged = || {
            let why = format!("{NAME} in it is damaged");
            io::Error::new(ErrorKind::InvalidData, why)
        };
        let note = String::from_utf8(content);
        let note = note.ok().and_then(|text| StoreNote::parse(&text));
        note.ok_or_else(damaged).map(Some)
    }

    fn parse(text: &str) -> Option<StoreNote> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        let mut value = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ');
        let location = Location::parse(value("url")?).ok()?;
        let cluster = value("cluster")?.to_string();
        let folder = value("folder")?.to_string();
        let standing = match value("taking") {
            None => Standing::Had,
            Some(NOBODY) => Standing::Taking(None),
            Some(from) => Standing::Taking(Some(from.to_string())),
        };
        Some(StoreNote {
            location,
            cluster,
            folder,
            standing,
        })
    }

    fn text(&self) -> String {
        let taking = match &self.standing {
            Standing::Had => String::new(),
            Standing::Taking(from) => {
                format!("taking {}\n", from.as_deref().unwrap_or(NOBODY))
            }
        };
        format!(
            "{HEAD}\nurl {}\ncluster {}\nfolder {}\n{taking}",
            self.location.with_password(),
            self.cluster,
            self.folder
        )
    }

    /// Writes it: there is the old or the new one, whenever the machine ends.
    pub fn write(&self, state: &Path) -> io::Result<()> {
        let new = state.join(NAME_WHILE_WRITTEN);
        let mut file = create_small(&new)?;
        file.write_all(self.text().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, state.join(NAME))?;
        File::open(state)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_is_not_for_others() {
        let folder = tempfile::tempdir().expect("tempdir");
        let state = folder.path();
        assert_eq!(StoreNote::read(state).expect("none"), None);
        let url = "redis://u:secret@h/1?durability=everysec";
        let location = Location::parse_for("bb0", url).expect("a store");
        let mut note = StoreNote::new(location, "bb0".into()).expect("drawn");
        let standings = [
            Standing::Taking(None),
            Standing::Taking(Some("0a".into())),
            Standing::Had,
        ];
        for standing in standings {
            note.standing = standing;
            note.write(state).expect("written");
            let read = StoreNote::read(state).expect("read").expect("there");
            assert_eq!(read, note);
        }
        let mode = std::fs::metadata(state.join(NAME)).expect("there");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        assert!(!format!("{note:?}").contains("secret"));
        std::fs::write(state.join(NAME), "forebay store\nurl x://\n").expect("written");
        let damaged = StoreNote::read(state).expect_err("damaged");
        assert!(
            damaged
                .to_string()
                .contains("forebay-store in it is damaged")
        );
    }
}
