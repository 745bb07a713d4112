//! A small transactional ordered key-value trait, and its engines.
//!
//! [`Store`] has five methods, and every engine behaves the same through them: the functions in
//! `conformance` say how. That, and what only tests use, is behind the feature `testing`.
//!
//! | engine | survives | for |
//! | --- | --- | --- |
//! | [`Lsm`](lsm::Lsm) | what [`Durability`] says | the daemon's records; see `docs/decisions/0001-embedded-kv-engine.md` |
//! | [`remote`]: Redis, etcd | that, and death of the metadata server's node | several nodes; see `docs/decisions/0011-commits-of-remote-stores.md` |
//! | `memory::Memory` (`testing`) | nothing | tests |
//! | `failing::Failing` (`testing`) | as the store inside | tests of what happens when storage fails |

use std::path::Path;
use std::sync::Arc;

mod batch;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod failing;
mod flush;
pub mod lsm;
mod media;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod range;
pub mod remote;
mod tail;

pub use batch::{Batch, Entry};
pub use error::{Error, Part};
pub use remote::{Hold, Location, Options, open_url};

/// The longest key. Room for a name of 255 bytes with its parent and tags, four times over.
pub const MAX_KEY_BYTES: usize = 1024;

/// The longest value. Extended attributes, the largest thing a file system keeps in one value, end
/// at 64 KiB.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;

/// The most bytes of keys and values in one batch, expectations included. An engine holds a batch
/// in memory until it is applied, so this bounds what one caller can make it hold.
pub const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

const _: () = assert!(
    MAX_KEY_BYTES + MAX_VALUE_BYTES < MAX_BATCH_BYTES,
    "the largest entry fits in a batch"
);

/// What a commit survives when it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Handed to the kernel: survives death (kill -9) of this process, not of the node. Of a store
    /// on a server it is the same as `Synced`.
    Buffered,
    /// On stable storage: survives power loss. (Not of Redis's own node, where that was accepted
    /// with `durability=everysec`.)
    Synced,
}

/// An ordered map from byte strings to byte strings, changed by atomic batches.
///
/// Invariants of every engine:
///
/// 1. Once a read has seen any change of a batch, every read that starts later sees all of them.
/// 2. Commits take effect one after another; an expectation is judged at the moment its batch takes
///    effect.
/// 3. What survives a crash is a prefix of the commits: no later one without every earlier one.
/// 4. When storage fails a write or a flush with [`Error::Io`], the store is poisoned. Whether that
///    batch survives is known only after the store was opened again. Until then commits and syncs
///    give [`Error::Poisoned`], and reads go on.
/// 5. [`Store::mend`] opens it again in place.
/// 6. A store on a server that another holder has taken gives [`Error::Lost`] to every commit, sync
///    and mend from then on, and nothing of them takes effect. Reads may still be answered.
pub trait Store: Send + Sync {
    /// The value of `key`, or `None` if it is absent.
    ///
    /// # Errors
    ///
    /// A key over its limits, or storage that fails or is damaged.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Visits keys with `prefix` in ascending order, starting strictly after `after` if given;
    /// stops when `visit` returns false.
    ///
    /// `visit` may use the store. The scan shows each key once: every key present and unchanged
    /// during the whole scan, and of those that change meanwhile, either state. An engine may show
    /// a single moment, but callers must not need it.
    ///
    /// # Errors
    ///
    /// Storage that fails or is damaged. `prefix` and `after` may be of any length, or empty.
    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error>;

    /// Applies `batch` whole if all its expectations hold, and returns when it is as durable as
    /// asked.
    ///
    /// Readers may see a [`Durability::Synced`] batch before it is durable.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`], [`Error::TooLarge`], [`Error::EmptyKey`] and [`Error::Poisoned`] change
    /// nothing. After [`Error::Io`] the batch may survive or not, and the caller must not assume
    /// either.
    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error>;

    /// Everything committed before is on stable storage when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`], or storage that fails, which poisons the store.
    fn sync(&self) -> Result<(), Error>;

    /// Opens a poisoned store again, if storage takes writes again. Then everything that was
    /// committed is on stable storage, nothing of the commits that failed is, and the store takes
    /// commits: `true`. A store that is not poisoned is left alone: `false`.
    ///
    /// # Errors
    ///
    /// Why it stays poisoned. If opening is what failed, reads give [`Error::Poisoned`], too, until
    /// a later call succeeds.
    fn mend(&self) -> Result<bool, Error>;

    /// Of a store on a server: until when it is surely nobody else's. `None` of a store that nobody
    /// else can take.
    fn hold(&self) -> Option<Hold> {
        None
    }

    /// Of a store on a server: the hold is over, and whoever opens the store next need not wait. To
    /// be called when nothing is committed any more. A store that is dropped does the same.
    fn release(&self) {}
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        (**self).get(key)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        (**self).scan(prefix, after, visit)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        (**self).commit(batch, durability)
    }

    fn sync(&self) -> Result<(), Error> {
        (**self).sync()
    }

    fn mend(&self) -> Result<bool, Error> {
        (**self).mend()
    }

    fn hold(&self) -> Option<Hold> {
        (**self).hold()
    }

    fn release(&self) {
        (**self).release();
    }
}

/// Opens the embedded engine in `dir`, and creates both if they are not there.
///
/// # Errors
///
/// [`Error::InUse`] if the store is open already; storage that fails or is damaged.
pub fn open_default(dir: &Path) -> Result<Box<dyn Store>, Error> {
    Ok(Box::new(lsm::Lsm::open(dir)?))
}
