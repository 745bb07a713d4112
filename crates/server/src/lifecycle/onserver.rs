//! Records in a store on a server: which state folder they are of, and how another one takes them
//! over.
//!
//! The records outlive the state folder. So they say themselves which version they have, of which
//! cluster they are, and which folder had them last ([`Owner`]); the folder says which store that
//! is ([`StoreNote`]).
//!
//! 1. A folder that has never had a store takes the records of its cluster, if nobody holds them.
//! 2. A folder that had them and finds that another has taken them has nothing to say any more: its
//!    memory is out of date. Only a person brings it back (`take_over`). A server without tiers of
//!    its own has no memory: where others may lead as well (`standby`), any folder takes them.
//! 3. The folder's note is on disk before the store names the folder: a start that is cut short in
//!    between goes on with the next.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_kv::remote::{Onlooker, TakeOver};
use forebay_kv::{Batch, Durability, Error, Options, Store};
use forebay_policy::patience::{RECORDS_STORE, STANDBY_LEASE};
use serde::{Deserialize, Serialize};

use crate::base::settings::ServerStore;
use crate::lifecycle::storenote::{Standing, StoreNote};
use crate::starterror::{StartError, failed};

/// The first record of all.
const OWNER: &[u8] = b"c/owner";
const LOOK: Duration = Duration::from_millis(200);

/// Whose the records are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// Of the records.
    version: String,
    cluster: String,
    folder: String,
    /// The server, for people.
    who: String,
}

/// A start that opens a store on a server.
pub struct Opening<'a> {
    /// The state folder, whose lock the caller has.
    pub state: &'a Path,
    /// The store that the configuration names.
    pub wanted: &'a ServerStore,
    /// Version of the records that this Forebay reads.
    pub version: &'a str,
    /// Id of the server in its cluster.
    pub server: u16,
    /// Hears what is waited for.
    pub told: Told<'a>,
}

/// Who hears what a start waits for.
#[derive(Clone, Copy)]
pub struct Told<'a> {
    tell: &'a dyn Fn(&str),
    stands_by: &'a dyn Fn(&str) -> bool,
}

impl<'a> Told<'a> {
    /// Hears lines. Nobody stands by.
    pub fn of(tell: &'a dyn Fn(&str)) -> Told<'a> {
        Told {
            tell,
            stands_by: &|_| false,
        }
    }

    /// The same; a start that stands by says again and again who leads, and goes on to wait while
    /// that is answered with true.
    pub fn standing_by(self, stands_by: &'a dyn Fn(&str) -> bool) -> Told<'a> {
        Told { stands_by, ..self }
    }
}

impl Opening<'_> {
    /// Opens it; the records are this folder's then.
    pub fn open(&self) -> Result<Box<dyn Store>, StartError> {
        let note = self.note()?;
        let store = self.hold(&note)?;
        self.own(&*store, note)?;
        Ok(store)
    }

    fn store(&self) -> String {
        self.wanted.location.to_string()
    }

    fn failed<E: std::fmt::Display>(&self) -> impl FnOnce(E) -> StartError {
        failed(format!("metadata store {}", self.wanted.location))
    }

    /// What the folder says of its store, or what it will say.
    fn note(&self) -> Result<StoreNote, StartError> {
        let shown = self.state.display();
        let note = StoreNote::read(self.state).map_err(failed(format!("state folder {shown}")))?;
        let (location, cluster) = (&self.wanted.location, &self.wanted.cluster);
        match note {
            Some(note) if note.location.is_same(location) && note.cluster == *cluster => {
                // The password may be another one.
                Ok(StoreNote {
                    location: location.clone(),
                    ..note
                })
            }
            Some(note) => Err(StartError::OtherStore {
                state: shown.to_string(),
                was: format!("{} of cluster {}", note.location, note.cluster),
                now: format!("{location} of cluster {cluster}"),
            }),
            None => StoreNote::new(location.clone(), cluster.clone()).map_err(self.failed()),
        }
    }

    /// The server as others are shown it who find the store held.
    fn holder(&self, note: &StoreNote) -> String {
        let node = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let who = match self.server {
            0 => "fsck".to_string(),
            server => format!("server {server}"),
        };
        format!(
            "{who}{}{node} (process {}, state folder {} called {})",
            of_cluster(&note.cluster),
            std::process::id(),
            self.state.display(),
            note.folder
        )
    }

    fn options(&self, note: &StoreNote) -> Options {
        let usual = Options::default();
        Options {
            holder: self.holder(note),
            lease: match self.wanted.standby {
                true => STANDBY_LEASE,
                false => usual.lease,
            },
            ..usual
        }
    }

    /// Gets hold of the store. Waits for a holder that may have died, and for a server that may
    /// come up.
    fn hold(&self, note: &StoreNote) -> Result<Box<dyn Store>, StartError> {
        let mut options = self.options(note);
        let (mut begun, mut told) = (Instant::now(), None);
        let mut wait = |what: &'static str, line: String| {
            if told.replace(what) != Some(what) {
                (self.told.tell)(&line);
            }
            std::thread::sleep(LOOK);
        };
        // What is to be waited for before the store's last holder can be taken for silent.
        let mut taken_from: Option<String> = None;
        // Whom this server has stood by for.
        let mut stood_by: Option<String> = None;
        let store = self.store();
        loop {
            let error = match self.wanted.location.open(&options) {
                Ok(opened) => {
                    if let Some(holder) = taken_from {
                        // It may have been started with another lease.
                        self.wait_out(&holder, options.lease.max(Options::default().lease));
                    }
                    return Ok(opened);
                }
                Err(error) => error,
            };
            let was_order = std::mem::take(&mut options.take_over) != TakeOver::Never;
            let is_time = begun.elapsed() < RECORDS_STORE;
            match error {
                // The caller has the folder's lock, so that process is dead.
                Error::InUse(Some(holder)) if is_called(&holder, &note.folder) => {
                    options.take_over = TakeOver::From(holder);
                }
                Error::InUse(Some(holder)) if self.wanted.take_over && !was_order => {
                    if !holder.contains(&of_cluster(&note.cluster)) {
                        return Err(StartError::StoreHeld { store, holder });
                    }
                    taken_from = Some(holder.clone());
                    options.take_over = TakeOver::From(holder);
                }
                Error::InUse(Some(holder)) if self.wanted.standby => {
                    stood_by = Some(self.stand_by(holder, note, &options)?);
                    // Standing by takes days, and says nothing of the store's patience.
                    begun = Instant::now();
                }
                Error::InUse(holder) => {
                    let holder = holder.unwrap_or_else(|| "another server".into());
                    if !is_time {
                        return Err(StartError::StoreHeld { store, holder });
                    }
                    let most = options.lease.as_secs();
                    wait(
                        "hold",
                        format!(
                            "waits for the metadata store {store}: held by {holder}; if that has \
                             died, for {most} s at most"
                        ),
                    );
                }
                Error::Io(why) if is_time => wait(
                    "answer",
                    format!(
                        "waits for the metadata store {store}, for {} s at most: {why}",
                        RECORDS_STORE.as_secs()
                    ),
                ),
                Error::Io(why) => match stood_by.take() {
                    // Who ends now is no standby once the store is back.
                    Some(leader) => {
                        stood_by = Some(self.stand_by(leader, note, &options)?);
                        begun = Instant::now();
                    }
                    None => return Err(self.silent(&why)),
                },
                Error::Version { found } => return Err(self.other_version("metadata store", found)),
                error => return Err(self.failed()(error)),
            }
        }
    }

    /// Waits until nobody leads, or the one who did was this folder's. An outage of the store
    /// changes nothing: nobody leads without it. Answers with who has led last.
    fn stand_by(
        &self,
        mut leader: String,
        note: &StoreNote,
        options: &Options,
    ) -> Result<String, StartError> {
        let onlooker =
            Onlooker::new(&self.wanted.location, options.patience).map_err(self.failed())?;
        let mut is_silent = false;
        loop {
            if !(self.told.stands_by)(&leader) {
                return Err(StartError::NotWanted);
            }
            std::thread::sleep(LOOK);
            match onlooker.leader() {
                Ok(Some(holder)) if !is_called(&holder, &note.folder) => leader = holder,
                Ok(_) => return Ok(leader),
                Err(error) if !is_silent => {
                    tracing::warn!("metadata store {}: {error}; tried again", self.store());
                    is_silent = true;
                    continue;
                }
                Err(_) => continue,
            }
            is_silent = false;
        }
    }

    fn silent(&self, why: &std::io::Error) -> StartError {
        StartError::StoreSilent {
            store: self.store(),
            why: why.to_string(),
        }
    }

    /// The holder that the store was taken from may not know yet, and go on with what it had begun
    /// on the PFS, until its hold is over.
    fn wait_out(&self, holder: &str, lease: Duration) {
        (self.told.tell)(&format!(
            "the metadata store {} was taken from {holder}; waits {} s, after which that changes \
             the PFS no more",
            self.store(),
            lease.as_secs()
        ));
        std::thread::sleep(lease);
    }

    fn other_version(&self, what: &str, found: String) -> StartError {
        StartError::OtherVersion {
            place: format!("the metadata store {}", self.store()),
            what: what.into(),
            found,
        }
    }

    /// Makes the records this folder's, or finds that they are.
    fn own(&self, store: &dyn Store, mut note: StoreNote) -> Result<(), StartError> {
        let owner = self.owner(store)?;
        let from = owner.as_ref().map(|owner| owner.folder.clone());
        match (&note.standing, &owner) {
            (Standing::Had, Some(owner)) if owner.folder == note.folder => {
                return note.write(self.state).map_err(self.failed());
            }
            (Standing::Had, None) => {
                return Err(StartError::StoreEmptied {
                    store: self.store(),
                    state: self.state.display().to_string(),
                });
            }
            // A new folder, or one whose first start was cut short.
            (Standing::Taking(None), _) => {}
            (Standing::Taking(_), _) if from.as_ref() == Some(&note.folder) => {}
            (Standing::Taking(before), _) if *before == from => {}
            (_, Some(owner)) if !self.wanted.take_over && !self.wanted.standby => {
                return Err(StartError::StoreTaken {
                    store: self.store(),
                    state: self.state.display().to_string(),
                    by: owner.who.clone(),
                });
            }
            _ => {}
        }
        if let Some(owner) = owner.filter(|owner| owner.folder != note.folder) {
            let lost = match self.wanted.standby {
                true => "",
                false => "; what is only in the memory of its node is lost",
            };
            (self.told.tell)(&format!(
                "takes over the records of cluster {} in {}, which {} had{lost}",
                note.cluster,
                self.store(),
                owner.who
            ));
        }
        note.standing = Standing::Taking(from);
        note.write(self.state).map_err(self.failed())?;
        self.put_owner(store, &note)?;
        note.standing = Standing::Had;
        note.write(self.state).map_err(self.failed())
    }

    /// Whose records these are; `None` where there are none.
    fn owner(&self, store: &dyn Store) -> Result<Option<Owner>, StartError> {
        let Some(bytes) = store.get(OWNER).map_err(self.failed())? else {
            let mut is_empty = true;
            let scanned = store.scan(b"", None, &mut |_, _| {
                is_empty = false;
                false
            });
            scanned.map_err(self.failed())?;
            return match is_empty {
                true => Ok(None),
                false => Err(self.other_version("records", "unknown".into())),
            };
        };
        let Ok(owner) = postcard::from_bytes::<Owner>(&bytes) else {
            return Err(self.other_version("records", "unknown".into()));
        };
        if owner.version != self.version {
            return Err(self.other_version("records", owner.version));
        }
        match owner.cluster == self.wanted.cluster {
            true => Ok(Some(owner)),
            false => Err(StartError::StoreOfAnother {
                store: self.store(),
                cluster: owner.cluster,
                own: self.wanted.cluster.clone(),
            }),
        }
    }

    fn put_owner(&self, store: &dyn Store, note: &StoreNote) -> Result<(), StartError> {
        let owner = Owner {
            version: self.version.to_string(),
            cluster: note.cluster.clone(),
            folder: note.folder.clone(),
            who: self.holder(note),
        };
        let bytes = postcard::to_stdvec(&owner).map_err(self.failed())?;
        let mut batch = Batch::new();
        batch.put(OWNER, bytes);
        store
            .commit(batch, Durability::Synced)
            .map_err(self.failed())
    }
}

/// How the word of a holder names its cluster. A cluster's name has no blanks.
fn of_cluster(cluster: &str) -> String {
    format!(" of {cluster} on ")
}

/// Whether the word of a holder is of this folder.
fn is_called(holder: &str, folder: &str) -> bool {
    holder.ends_with(&format!(" called {folder})"))
}

#[cfg(test)]
#[path = "onserver_tests.rs"]
mod tests;
