//! What every room stands on: settings, the tree, counts, errors, and whether threads are to end.

pub(crate) mod conflicts;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod errors;
pub(crate) mod settings;
