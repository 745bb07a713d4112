//! The tiers, and who holds what in them.

pub(crate) mod activity;
pub(crate) mod books;
pub(crate) mod copies;
pub(crate) mod evict;
pub(crate) mod ledger;
pub(crate) mod opens;
pub(crate) mod overflow;
pub(crate) mod pieces;
pub(crate) mod private;
pub(crate) mod queue;
pub(crate) mod stranded;
pub(crate) mod table;
pub(crate) mod tierset;
pub(crate) mod unclosed;
