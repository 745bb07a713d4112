//! The way to the PFS: the picking, copies, and what leaves afterwards.

pub(crate) mod demote;
pub(crate) mod picking;
