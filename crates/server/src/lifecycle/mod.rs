//! From a start to a stop: what the last run has left, the PFS and the store that fail and come back, objects that are to go.

pub(crate) mod audit;
pub(crate) mod boot;
pub(crate) mod discard;
pub(crate) mod facts;
pub(crate) mod monitor;
pub(crate) mod orphans;
pub(crate) mod pfsmark;
pub(crate) mod recovery;
pub(crate) mod statefolder;
