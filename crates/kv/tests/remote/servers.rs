//! Stores on servers of the tests' own, on loopback.

use std::sync::atomic::{AtomicU32, Ordering};

use forebay_kv::{Options, Store, open_url};
pub use forebay_testkit::{StoreKind as Kind, StoreServer};

/// A server that has a store for each name.
pub struct Server(StoreServer);

static PREFIXES: AtomicU32 = AtomicU32::new(0);

/// A name for a store that no other test has.
pub fn prefix() -> String {
    format!("t{}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

impl Server {
    pub fn start(kind: Kind) -> Server {
        Server(StoreServer::start(kind))
    }

    pub fn start_with(kind: Kind, extra: &[&str]) -> Server {
        Server(StoreServer::start_with(kind, extra))
    }

    pub fn url(&self, prefix: &str) -> String {
        self.0.url(&format!("prefix={prefix}"))
    }

    pub fn url_at(&self, port: u16, prefix: &str) -> String {
        self.0.url_at(port, &format!("prefix={prefix}"))
    }

    /// An empty store.
    pub fn store(&self) -> Box<dyn Store> {
        open_url(&self.url(&prefix()), &Options::default()).expect("an empty store opens")
    }
}

impl std::ops::Deref for Server {
    type Target = StoreServer;

    fn deref(&self) -> &StoreServer {
        &self.0
    }
}

impl std::ops::DerefMut for Server {
    fn deref_mut(&mut self) -> &mut StoreServer {
        &mut self.0
    }
}
