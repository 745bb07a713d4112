//! The tiers, and who holds what in them.

pub(crate) mod books;
pub(crate) mod ledger;
pub(crate) mod opens;
pub(crate) mod overflow;
pub(crate) mod pieces;
pub(crate) mod private;
pub(crate) mod tierset;
