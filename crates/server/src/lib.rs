//! The server: an I/O engine that answers requests, and a data-management engine that demotes,
//! evicts and stages. What to do is decided in `policy`, bytes are moved in `tiers`, the rules of
//! names and residency are in `namespace`.

mod ahead;
mod base;
mod buffer;
mod catalog;
mod clients;
mod drain;
mod files;
mod instance;
mod integrity;
mod lifecycle;
mod live;
mod nodes;
mod offline;
mod opening;
mod orders;
mod plan;
mod rooms;
mod service;
mod sessions;
mod starterror;
mod status;
#[cfg(test)]
mod testing;
mod threads;

pub use base::live::LiveSettings;
pub use base::settings::{
    DemotionSettings, EngineSettings, HolderSetting, HolderWay, LendingSetting, MemoryWay,
    NodeSetting, PathRule, ScrubSettings, ServerStore, Settings, SsdSetting, StoreSetting, Verify,
};
pub use catalog::rules::check_rule;
// For the fuzzer: patterns are an administrator's, the paths that they are compared with anybody's.
#[doc(hidden)]
pub use catalog::rules::Rules;
pub use forebay_kv::Location as StoreLocation;
pub use forebay_policy::lending::Lending;
pub use forebay_policy::publication::GroupMode;
pub use forebay_tiers::{MachineMemory, MemoryNow, MemorySource};
pub use instance::{Instance, StopReason, StopSummary};
pub use lifecycle::onserver::Told;
pub use lifecycle::statefolder::VERSION as RECORDS_VERSION;
pub use offline::{FsckOrders, fsck_offline};
pub use sessions::{Session, Sessions};
pub use starterror::StartError;
