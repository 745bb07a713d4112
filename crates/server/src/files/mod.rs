//! Open files and what is done with them: data, attributes, first change, fsync, and the space that they need.

pub(crate) mod allocate;
pub(crate) mod closing;
pub(crate) mod descriptors;
pub(crate) mod fsync;
pub(crate) mod garbage;
pub(crate) mod guard;
pub(crate) mod io;
pub(crate) mod open;
pub(crate) mod setid;
pub(crate) mod space;
pub(crate) mod stable;
pub(crate) mod stage;
pub(crate) mod unnamed;
pub(crate) mod unseen;
