//! What the end-to-end tests stand on: the real program on a real mount, with clean-up that holds
//! when a test fails; faults; a reference model of a directory tree.
//!
//! Everything here is bounded in time. Failures are panics: this is for tests only.

mod cluster;
mod data;
mod fleet;
mod fusepfs;
mod loopfs;
mod model;
mod names;
mod nodes;
mod process;
mod program;
mod random;
mod skip;
mod storeserver;
mod tree;
mod wait;
mod watchdog;

pub use cluster::{Builder, Cluster};
pub use data::{Pattern, pattern, read_all_at, write_file};
pub use fleet::Fleet;
pub use fusepfs::{FusePfs, When};
pub use loopfs::LoopFs;
pub use model::{Model, Name};
pub use names::{all_files, listing, os_name};
pub use nodes::{CuttingProxy, Node, Nodes, Way, needs_nodes};
pub use process::{Output, as_user, run_bounded};
pub use program::{bare_command, program, program_for_everybody, without_settings};
pub use random::{Seed, is_root};
pub use skip::{needs_file, needs_program, needs_root, skip};
pub use storeserver::{StoreKind, StoreServer};
pub use tree::{Entry, snapshot};
pub use wait::{LONG, settle_for_revalidation, wait_until, wait_until_for};
