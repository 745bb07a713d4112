//! The server: an I/O engine that answers requests, and a data-management engine that demotes,
//! evicts and stages. What to do is decided in `policy`, bytes are moved in `tiers`, the rules of
//! names and residency are in `namespace`.

mod activity;
mod allocate;
mod apps;
mod asker;
mod atrest;
mod block_io;
mod books;
mod boot;
mod calibrate;
mod closing;
mod commit;
mod conflicts;
mod core;
mod dedicated;
mod demote;
mod descriptors;
mod discard;
mod drain;
mod engine;
mod facts;
mod fsck;
mod fsync;
mod guard;
mod instance;
mod io;
mod jobs;
mod learning;
mod leaving;
mod ledger;
mod monitor;
mod open;
mod opens;
mod orphans;
mod overflow;
mod pfsmark;
mod pieces;
mod publication;
mod recovery;
mod rules;
mod scrub;
mod seal;
mod service;
mod setid;
mod settings;
mod space;
mod stable;
mod stage;
mod starterror;
mod statefolder;
mod status;
#[cfg(test)]
mod testing;
mod threads;
mod tierset;
mod unhurried;
mod unnamed;
mod unreachable;
mod unseen;
mod walk;
mod writers;

pub use forebay_policy::publication::GroupMode;
pub use forebay_tiers::MachineMemory;
pub use instance::{Instance, StopReason, StopSummary, fsck_offline};
pub use settings::{
    DemotionSettings, EngineSettings, PathRule, ScrubSettings, Settings, SsdSetting, Verify,
};
pub use starterror::StartError;
