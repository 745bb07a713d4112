//! What all parts of a server share.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use forebay_namespace::{File, Namespace};
use forebay_policy::durability::Durability;
use forebay_types::{ObjectId, TierId};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::base::conflicts::Conflicts;
use crate::base::counters::Counters;
use crate::base::errors::ErrorLog;
use crate::base::settings::Settings;
use crate::buffer::activity::Activity;
use crate::buffer::ledger::Ledger;
use crate::buffer::opens::OpenTable;
use crate::buffer::queue::DrainQueue;
use crate::buffer::stranded::Stranded;
use crate::buffer::tierset::TierSet;
use crate::catalog::apps::Applications;
use crate::catalog::rules::Rules;
use crate::catalog::writers::Writers;
use crate::drain::demote::Leftover;
use crate::drain::picking::Picking;
use crate::files::descriptors::Descriptors;
use crate::files::guard::GuardPost;
use crate::files::unseen::Unseen;
use crate::orders::jobs::Jobs;
use crate::plan::dedicated::Dedicated;
use crate::plan::engine::Engine;
use crate::plan::learning::Learning;

/// An order to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Drain first.
    pub drain: bool,
    /// Give up draining then.
    pub deadline: Option<Instant>,
}

/// Everything.
pub struct Core {
    /// As started.
    pub settings: Settings,
    /// The tree.
    pub ns: Namespace,
    /// The tiers.
    pub tiers: TierSet,
    /// Who holds what.
    pub ledger: Ledger,
    /// Open files.
    pub opens: OpenTable,
    /// How many descriptors they and others may have.
    pub descriptors: Descriptors,
    /// Watches over those that the kernel writes by itself.
    pub guard: GuardPost,
    /// What the kernel has written by itself.
    pub unseen: Unseen,
    /// Files that were made without a name, until they have one or are gone.
    pub unnamed: crate::files::unnamed::Unnamed,
    /// Files of the burst buffer by object.
    pub files: RwLock<HashMap<ObjectId, Arc<File>>>,
    /// Whether programs write.
    pub activity: Activity,
    /// Files to be demoted.
    pub drain: DrainQueue,
    /// Whose turn it is.
    pub picking: Picking,
    /// Applications.
    pub apps: Applications,
    /// Limits, turns, the plan in force.
    pub engine: Engine,
    /// What is learned.
    pub learning: Learning,
    /// Shares of applications.
    pub dedicated: Dedicated,
    /// Path rules.
    pub rules: Rules,
    /// Whose batch jobs write.
    pub writers: Writers,
    /// Movements ordered from the command line.
    pub jobs: Jobs,
    /// Counts.
    pub counters: Counters,
    /// Errors.
    pub errors: ErrorLog,
    /// Objects at rest on flash.
    pub rest: crate::integrity::atrest::AtRest,
    /// Reads them in the background.
    pub scrub: crate::integrity::scrub::Scrub,
    /// Which start of the node this is.
    pub boot: crate::lifecycle::boot::Boot,
    /// Files whose last close could not ask their object what it has become.
    pub unclosed: Mutex<HashSet<ObjectId>>,
    /// Clean files whose object in the overflow could not make way for what the PFS has; tried again.
    pub overstaying: Mutex<Vec<Arc<File>>>,
    /// Temporary files on the PFS that could not be removed; their files' next demotions, or the next start, do.
    pub leftovers: Mutex<HashMap<ObjectId, Vec<Leftover>>>,
    /// Versions that are not published.
    pub versions: crate::orders::publication::Versions,
    /// Conflicts with changes made on the PFS.
    pub conflicts: Conflicts,
    /// Start of this server.
    pub started: Instant,
    /// Default rung of fsync.
    pub durability: Durability,
    /// Threads are to end.
    pub ending: AtomicBool,
    /// The order to stop, once given.
    pub stop: Mutex<Option<StopOrder>>,
    /// Signalled with it.
    pub stop_given: Condvar,
    /// A thread that everything depends on has died: which, and of what.
    pub broken: Mutex<Option<String>>,
    /// Serialises the making of space, so that two writers do not evict for the same need.
    pub making_space: Mutex<()>,
    /// Who has nothing to do for a while is here: see [`Core::rest`].
    pub resting: (Mutex<()>, Condvar),
    /// Removed objects that are still on record as garbage.
    pub removed: Mutex<Vec<ObjectId>>,
    /// Undrained objects whose directory is not known: until fsck has put them elsewhere on the PFS they are undrained.
    pub stranded: Mutex<Vec<Stranded>>,
    /// Tiers of files whose objects this start could not look at, one entry for each.
    pub unreadable: Mutex<Vec<TierId>>,
    /// So many remove unused objects now.
    pub collecting: AtomicU64,
    /// The collector of unused objects sleeps here.
    pub collector: (Mutex<bool>, Condvar),
}
