//! The way to the PFS: the queue, copies, and what leaves afterwards.

pub(crate) mod demote;
pub(crate) mod queue;
