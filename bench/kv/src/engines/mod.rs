//! Every engine behind the same trait, opened for one durability.

use std::path::Path;

use forebay_kv::{Durability, Error, Store};

mod lmdb;
mod redb;
mod server;
mod sqlite;

use server::Kind;
pub use server::Server;

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
    open: Open,
}

#[derive(Clone, Copy, Debug)]
enum Open {
    /// In a folder.
    Folder(fn(&Path) -> Result<Box<dyn Store>, Error>),
    /// On a server that the benchmark starts, with these arguments more.
    Served(Kind, &'static [&'static str], &'static str),
}

impl Candidate {
    /// Starts the server of a store that has one.
    pub fn serve(&self, dir: &Path) -> Result<Option<Server>, Error> {
        match self.open {
            Open::Folder(_) => Ok(None),
            Open::Served(kind, arguments, _) => Server::start(kind, dir, arguments).map(Some),
        }
    }

    /// Opens the engine in an existing directory, or on its server.
    pub fn open(&self, dir: &Path, server: Option<&Server>) -> Result<Box<dyn Store>, Error> {
        match (self.open, server) {
            (Open::Folder(open), _) => open(dir),
            (Open::Served(_, _, option), Some(server)) => server.open(option),
            (Open::Served(..), None) => Err(engine_error("its server was not started")),
        }
    }
}

/// Every engine in every setting, in the order of the table.
pub const CANDIDATES: &[Candidate] = &[
    Candidate {
        name: "memory",
        durability: Durability::Buffered,
        setting: "for comparison: durable in no way",
        open: Open::Folder(|_| Ok(Box::new(forebay_kv::memory::Memory::new()))),
    },
    Candidate {
        name: "fjall",
        durability: Durability::Buffered,
        setting: "PersistMode::Buffer per batch",
        open: Open::Folder(open_fjall),
    },
    Candidate {
        name: "redis",
        durability: Durability::Buffered,
        setting: "appendfsync always: a commit waits for the flush of its group",
        open: Open::Served(Kind::Redis, &["--appendfsync", "always"], ""),
    },
    Candidate {
        name: "redis-1s",
        durability: Durability::Buffered,
        setting: "appendfsync everysec: power loss takes up to two seconds",
        open: Open::Served(
            Kind::Redis,
            &["--appendfsync", "everysec"],
            "&durability=everysec",
        ),
    },
    Candidate {
        name: "etcd",
        durability: Durability::Buffered,
        setting: "one member: a commit waits for the flush of its group",
        open: Open::Served(Kind::Etcd, &[], ""),
    },
    Candidate {
        name: "redb",
        durability: Durability::Buffered,
        setting: "Immediate on a backend without fsync; power loss can damage it",
        open: Open::Folder(|dir| redb::open(dir, Durability::Buffered)),
    },
    Candidate {
        name: "lmdb",
        durability: Durability::Buffered,
        setting: "MDB_NOSYNC; power loss can damage it",
        open: Open::Folder(|dir| lmdb::open(dir, Durability::Buffered)),
    },
    Candidate {
        name: "sqlite-off",
        durability: Durability::Buffered,
        setting: "WAL, synchronous=OFF; power loss can damage it",
        open: Open::Folder(|dir| sqlite::open(dir, "OFF")),
    },
    Candidate {
        name: "sqlite-normal",
        durability: Durability::Buffered,
        setting: "WAL, synchronous=NORMAL",
        open: Open::Folder(|dir| sqlite::open(dir, "NORMAL")),
    },
    Candidate {
        name: "fjall",
        durability: Durability::Synced,
        setting: "PersistMode::SyncData, shared between threads",
        open: Open::Folder(open_fjall),
    },
    Candidate {
        name: "redis",
        durability: Durability::Synced,
        setting: "appendfsync always",
        open: Open::Served(Kind::Redis, &["--appendfsync", "always"], ""),
    },
    Candidate {
        name: "etcd",
        durability: Durability::Synced,
        setting: "one member",
        open: Open::Served(Kind::Etcd, &[], ""),
    },
    Candidate {
        name: "redb",
        durability: Durability::Synced,
        setting: "Immediate",
        open: Open::Folder(|dir| redb::open(dir, Durability::Synced)),
    },
    Candidate {
        name: "lmdb",
        durability: Durability::Synced,
        setting: "no flags",
        open: Open::Folder(|dir| lmdb::open(dir, Durability::Synced)),
    },
    Candidate {
        name: "sqlite-full",
        durability: Durability::Synced,
        setting: "WAL, synchronous=FULL",
        open: Open::Folder(|dir| sqlite::open(dir, "FULL")),
    },
];

fn open_fjall(dir: &Path) -> Result<Box<dyn Store>, Error> {
    Ok(Box::new(forebay_kv::lsm::Lsm::open(dir)?))
}

/// The benchmark tells errors apart no further than this.
fn engine_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Io(std::io::Error::other(error))
}
