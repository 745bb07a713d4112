//! Stores on a server: Redis and etcd.
//!
//! One metadata server holds such a store at a time, and is the only one that changes it. What both
//! servers share is in `store`: groups of commits, what becomes of a group when the network fails,
//! and mending. A server's own half is a [`Backend`](backend::Backend).
//!
//! | store | survives | a commit costs |
//! | --- | --- | --- |
//! | Redis, `appendfsync always` | death of the metadata server's node; power loss of Redis's | a round trip and a flush there, for all callers that wait |
//! | Redis, `appendfsync everysec` | the same, but power loss of Redis's node takes up to two seconds of what was `Synced`; a prefix is left | a round trip |
//! | etcd | death of any node, as long as most of its members live | a round trip and Raft's flushes, for all callers that wait |

use std::time::Duration;

use crate::{Error, Store, lsm};

mod backend;
mod boottime;
mod etcd;
mod hold;
mod lane;
mod mark;
mod plan;
mod redis;
mod store;
mod url;

pub use etcd::Onlooker;
pub use hold::Hold;
pub use url::Location;

/// How a store on a server is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who opens it, for people: shown to others who find the store held.
    pub holder: String,
    /// Takes the store from somebody who holds it. Whoever asks for it has to know that the other
    /// is dead, or no longer changes the PFS: the store alone is safe from it in any case.
    pub take_over: TakeOver,
    /// A server that is silent for so long has failed.
    pub patience: Duration,
    /// How long a hold stays valid without a word from its holder.
    pub lease: Duration,
}

/// From whom a store is taken that is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TakeOver {
    /// From nobody.
    #[default]
    Never,
    /// From the holder that calls itself so, as [`Error::InUse`] names it. Who has taken the store
    /// from that one meanwhile is left alone.
    From(String),
    /// From anybody.
    Anybody,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            holder: format!("process {}", std::process::id()),
            take_over: TakeOver::Never,
            patience: Duration::from_secs(5),
            lease: Duration::from_secs(10),
        }
    }
}

/// Opens the store that `url` names, and creates it if it is not there. See [`Location`] for the
/// form of a URL.
///
/// # Errors
///
/// [`Error::Setup`] if the URL is wrong, or the server is set up so that it would lose commits;
/// [`Error::InUse`] if somebody holds the store; a server that cannot be reached.
pub fn open_url(url: &str, options: &Options) -> Result<Box<dyn Store>, Error> {
    Location::parse(url)?.open(options)
}

impl Location {
    /// Opens the store that is there, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// As [`open_url`].
    pub fn open(&self, options: &Options) -> Result<Box<dyn Store>, Error> {
        match self {
            Location::Embedded(dir) => Ok(Box::new(lsm::Lsm::open(dir)?)),
            Location::Redis {
                server,
                prefix,
                accepts_everysec,
            } => redis::open(server, prefix, *accepts_everysec, options),
            Location::Etcd { members, prefix } => etcd::open(members, prefix, options),
        }
    }
}
