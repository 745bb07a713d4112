//! What people order: movements, the publication of versions, and whom they may be told about.

pub(crate) mod asker;
pub(crate) mod commit;
pub(crate) mod jobs;
pub(crate) mod publication;
pub(crate) mod unreachable;
pub(crate) mod walk;
