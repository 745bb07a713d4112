//! What every room stands on: settings, the tree, counts, errors, and whether threads are to end.

pub(crate) mod conflicts;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod errors;
pub(crate) mod failure;
pub(crate) mod life;
pub(crate) mod live;
pub(crate) mod processes;
pub(crate) mod settings;

use std::sync::Arc;
use std::time::Instant;

use forebay_namespace::Namespace;

use conflicts::Conflicts;
use counters::Counters;
use errors::ErrorLog;
use life::Life;
use processes::Processes;
use settings::Settings;

/// What every room stands on.
pub struct Base {
    settings: Arc<Settings>,
    ns: Arc<Namespace>,
    life: Life,
    errors: ErrorLog,
    counters: Counters,
    conflicts: Conflicts,
    processes: Arc<Processes>,
    epoch: u32,
    started: Instant,
}
