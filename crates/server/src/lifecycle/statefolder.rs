//! The state folder: which version of Forebay's records it holds, and that they are ours.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_kv::Store;
use forebay_tiers::make_private;

use crate::base::settings::{ServerStore, Settings, StoreSetting};
use crate::lifecycle::onserver::{Opening, Told};
use crate::lifecycle::smallfile::{create_small, read_small};
use crate::lifecycle::storenote::{Standing, StoreNote};
use crate::starterror::{StartError, failed};

/// The embedded store.
const KV: &str = "kv";
/// Says what made the folder.
const MARKER: &str = "forebay-state";
const HEAD: &str = "forebay state\nversion ";
/// Changes when an older Forebay could not read what a newer one has written, or the other way
/// round.
pub const VERSION: &str = "11";
/// What wrote a store beside which there is no marker.
const VERSION_BEFORE_MARKERS: &str = "1";
const MARKER_BYTES_MAX: u64 = 256;
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// The metadata store of a state folder of a version that this Forebay knows; made where there is
/// none.
pub fn open_store(settings: &Settings, told: Told<'_>) -> Result<Box<dyn Store>, StartError> {
    let state = &*settings.state;
    let shown = state.display().to_string();
    let other_store = |was: &str| StartError::OtherStore {
        state: shown.clone(),
        was: was.to_string(),
        now: settings.store.to_string(),
    };
    let found = known_version(state)?;
    let is_filled = is_filled(&state.join(KV));
    match &settings.store {
        StoreSetting::Embedded => {
            let note = StoreNote::read(state).map_err(failed(format!("state folder {shown}")))?;
            if let Some(note) = note {
                return Err(other_store(&note.location.to_string()));
            }
            mark_unless(found, state)?;
            open_embedded(state)
        }
        StoreSetting::Server(_) if is_filled => Err(other_store("itself (embedded)")),
        StoreSetting::Server(wanted) => {
            mark_unless(found, state)?;
            let opening = Opening {
                state,
                wanted,
                version: VERSION,
                server: settings.server,
                told,
            };
            opening.open()
        }
    }
}

/// Where the records of a state folder are, by its own word.
///
/// # Errors
/// [`StartError::NoInstance`] if it has none.
pub fn store_of(state: &Path) -> Result<StoreSetting, StartError> {
    let shown = state.display().to_string();
    let note = StoreNote::read(state).map_err(failed(format!("state folder {shown}")))?;
    match note {
        Some(note) if note.standing == Standing::Had => Ok(StoreSetting::Server(ServerStore {
            location: note.location,
            cluster: note.cluster,
            take_over: false,
            standby: false,
        })),
        None if state.join(KV).is_dir() => Ok(StoreSetting::Embedded),
        _ => Err(StartError::NoInstance(shown)),
    }
}

fn open_embedded(state: &Path) -> Result<Box<dyn Store>, StartError> {
    let kv = state.join(KV);
    make_private(&kv).map_err(failed(format!("state folder {}", state.display())))?;
    open_when_let_go(&kv).map_err(|error| match error {
        forebay_kv::Error::Version { found } => other(state, "metadata store", found),
        error => StartError::Failed {
            what: format!("metadata store {}", kv.display()),
            why: error.to_string(),
        },
    })
}

fn other(state: &Path, what: &str, found: String) -> StartError {
    StartError::OtherVersion {
        place: format!("the state folder {}", state.display()),
        what: what.to_string(),
        found,
    }
}

/// What the marker says, which is [`VERSION`], or that the folder is new.
fn known_version(state: &Path) -> Result<Option<String>, StartError> {
    let found =
        found_version(state).map_err(failed(format!("state folder {}", state.display())))?;
    match found {
        Some(found) if found != VERSION => Err(other(state, "records", found)),
        None if is_filled(&state.join(KV)) => {
            let before = VERSION_BEFORE_MARKERS.to_string();
            Err(other(state, "records", before))
        }
        found => Ok(found),
    }
}

fn mark_unless(found: Option<String>, state: &Path) -> Result<(), StartError> {
    match found {
        Some(_) => Ok(()),
        None => mark(state).map_err(failed(format!("state folder {}", state.display()))),
    }
}

/// A process that ends lets go of its files one after the other: of the lock of the state folder,
/// which the caller has, perhaps before that of the store.
fn open_when_let_go(kv: &Path) -> Result<Box<dyn Store>, forebay_kv::Error> {
    let begun = Instant::now();
    loop {
        match forebay_kv::open_default(kv) {
            Err(forebay_kv::Error::InUse(_)) if begun.elapsed() < LET_GO_WITHIN => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

/// What the marker says; `None` if there is none, or the start that made it was cut short.
fn found_version(state: &Path) -> io::Result<Option<String>> {
    let Some(text) = read_small(&state.join(MARKER), MARKER_BYTES_MAX)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&text);
    Ok(match text.strip_prefix(HEAD).map(str::trim_end) {
        _ if text.is_empty() => None,
        Some(version) => Some(version.to_string()),
        None => Some("unknown".into()),
    })
}

fn is_filled(dir: &Path) -> bool {
    dir.read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
}

fn mark(state: &Path) -> io::Result<()> {
    let mut file = create_small(&state.join(MARKER))?;
    file.write_all(format!("{HEAD}{VERSION}\n").as_bytes())?;
    file.sync_all()?;
    File::open(state)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_another_version_is_refused_in_one_line() {
        let folder = tempfile::tempdir().expect("tempdir");
        let open_store = |state: &Path| {
            let settings = Settings::new("/".into(), None, state.into());
            super::open_store(&settings, Told::of(&|_| ()))
        };
        drop(open_store(folder.path()).expect("new"));
        drop(open_store(folder.path()).expect("of this version"));
        let refused = |part: &str| {
            let line = open_store(folder.path()).err().expect(part).to_string();
            assert!(line.contains(part) && !line.contains('\n'), "{line}");
            assert!(line.contains("the forebay that made it"), "{line}");
        };
        let marker = folder.path().join(MARKER);
        std::fs::write(&marker, format!("{HEAD}99\n")).expect("marker");
        refused("records of version 99");
        std::fs::write(&marker, "something else").expect("marker");
        refused("records of version unknown");
        std::fs::remove_file(&marker).expect("marker");
        refused("records of version 1");
        // A start that was cut short has left it empty, and no store.
        std::fs::remove_dir_all(folder.path().join("kv")).expect("store");
        std::fs::write(&marker, "").expect("marker");
        drop(open_store(folder.path()).expect("marked again"));
        std::fs::write(folder.path().join("kv/version"), "FJL\x02").expect("version");
        refused("metadata store of version 2");
        std::fs::write(folder.path().join("kv/version"), "x").expect("version");
        refused("metadata store of version unknown");
    }
}
