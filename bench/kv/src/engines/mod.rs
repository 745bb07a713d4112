//! Every engine behind the same trait, opened for one durability.

use std::path::Path;

use forebay_kv::{Durability, Error, Store};

mod lmdb;
mod redb;
mod sqlite;

/// The cache of the competitors that have one of their own: as much as fjall gets for its cache and
/// one memtable.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// One engine in one setting.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// As in the table.
    pub name: &'static str,
    /// What its commits survive.
    pub durability: Durability,
    /// How the engine is made to give that durability.
    pub setting: &'static str,
    open: fn(&Path) -> Result<Box<dyn Store>, Error>,
}

impl Candidate {
    /// Opens the engine in an existing directory.
    pub fn open(&self, dir: &Path) -> Result<Box<dyn Store>, Error> {
        (self.open)(dir)
    }
}

/// Every engine in every setting, in the order of the table.
pub const CANDIDATES: &[Candidate] = &[
    Candidate {
        name: "memory",
        durability: Durability::Buffered,
        setting: "for comparison: durable in no way",
        open: |_| Ok(Box::new(forebay_kv::memory::Memory::new())),
    },
    Candidate {
        name: "fjall",
        durability: Durability::Buffered,
        setting: "PersistMode::Buffer per batch",
        open: open_fjall,
    },
    Candidate {
        name: "redb",
        durability: Durability::Buffered,
        setting: "Immediate on a backend without fsync; power loss can damage it",
        open: |dir| redb::open(dir, Durability::Buffered),
    },
    Candidate {
        name: "lmdb",
        durability: Durability::Buffered,
        setting: "MDB_NOSYNC; power loss can damage it",
        open: |dir| lmdb::open(dir, Durability::Buffered),
    },
    Candidate {
        name: "sqlite-off",
        durability: Durability::Buffered,
        setting: "WAL, synchronous=OFF; power loss can damage it",
        open: |dir| sqlite::open(dir, "OFF"),
    },
    Candidate {
        name: "sqlite-normal",
        durability: Durability::Buffered,
        setting: "WAL, synchronous=NORMAL",
        open: |dir| sqlite::open(dir, "NORMAL"),
    },
    Candidate {
        name: "fjall",
        durability: Durability::Synced,
        setting: "PersistMode::SyncData, shared between threads",
        open: open_fjall,
    },
    Candidate {
        name: "redb",
        durability: Durability::Synced,
        setting: "Immediate",
        open: |dir| redb::open(dir, Durability::Synced),
    },
    Candidate {
        name: "lmdb",
        durability: Durability::Synced,
        setting: "no flags",
        open: |dir| lmdb::open(dir, Durability::Synced),
    },
    Candidate {
        name: "sqlite-full",
        durability: Durability::Synced,
        setting: "WAL, synchronous=FULL",
        open: |dir| sqlite::open(dir, "FULL"),
    },
];

fn open_fjall(dir: &Path) -> Result<Box<dyn Store>, Error> {
    Ok(Box::new(forebay_kv::lsm::Lsm::open(dir)?))
}

/// The benchmark tells errors apart no further than this.
fn engine_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Io(std::io::Error::other(error))
}
