//! Which application and version a file belongs to.

pub(crate) mod apps;
pub(crate) mod naming;
pub(crate) mod rules;
pub(crate) mod writers;
