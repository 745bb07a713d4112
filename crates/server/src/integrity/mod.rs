//! Whether what lies in the tiers is what was written: looks, seals, scrub and fsck.

pub(crate) mod atrest;
pub(crate) mod fsck;
pub(crate) mod pieces;
pub(crate) mod scrub;
pub(crate) mod seal;
pub(crate) mod unhurried;
