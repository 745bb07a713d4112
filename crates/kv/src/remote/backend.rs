//! What the shared half of a remote store needs of a server.

use super::hold::Hold;
use super::mark::Mark;
use super::plan::Plan;
use crate::{Entry, Error};

/// How much one group may change. A single batch that is larger makes a group by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

/// What became of a group that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It took effect, whole.
    Done,
    /// A check did not hold; nothing was changed.
    Conflict,
    /// The mark was not the one expected; nothing was changed.
    OtherMark,
}

/// Keys in ascending order with their values.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A page of a scan.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) pairs: Pairs,
    /// The next page begins after this key, if there is one.
    pub(crate) next: Option<Vec<u8>>,
}

/// A server that holds the map, and the mark beside it.
///
/// An [`Error::Io`] means that nobody knows whether the request took effect. Every call comes to an
/// end within a few seconds, whatever the server does.
pub(crate) trait Backend: Send + Sync {
    fn limits(&self) -> Limits;

    /// If the mark is `held` and all checks hold: applies the changes and sets the mark to `next`,
    /// in one step for readers, for crashes and for other holders.
    fn apply(&self, held: &Mark, next: &Mark, plan: &Plan) -> Result<Applied, Error>;

    /// What these keys hold, at one moment or not.
    fn read(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error>;

    /// The first keys with `prefix` after `after`.
    fn page(&self, prefix: &[u8], after: Option<&[u8]>) -> Result<Page, Error>;

    /// Connects anew and raises the incarnation of the holder's mark, so that what was sent before
    /// takes no effect from now on. Returns how many groups have taken effect, or `None` if
    /// somebody else holds the store.
    fn fence(&self, held: &Mark, incarnation: u64) -> Result<Option<u64>, Error>;

    /// What the keys that `plan` changes held before, of which it is known that it was the last
    /// group to take effect.
    fn before(&self, plan: &Plan) -> Result<Vec<Entry>, Error>;

    /// The caller knows what became of everything that was sent, and takes the content of the
    /// server for what was committed.
    fn settled(&self);

    /// Until when the store is this process's.
    fn hold(&self) -> &Hold;

    /// The store is closed: the next may open it without waiting.
    fn release(&self);
}
