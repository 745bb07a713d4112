//! From a start to a stop: what the last run has left, the PFS and the store that fail and come
//! back, objects that are to go.

pub(crate) mod audit;
pub(crate) mod boot;
pub(crate) mod discard;
pub(crate) mod emptying;
pub(crate) mod facts;
pub(crate) mod history;
pub(crate) mod lending;
pub(crate) mod lost;
pub(crate) mod monitor;
pub(crate) mod nameless;
pub(crate) mod onserver;
pub(crate) mod orphans;
pub(crate) mod pfsmark;
pub(crate) mod probe;
pub(crate) mod recovery;
pub(crate) mod replicas;
pub(crate) mod restarts;
pub(crate) mod seconds;
mod smallfile;
pub(crate) mod statefolder;
pub(crate) mod storenote;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_namespace::Namespace;
use forebay_types::TierId;
use forebay_wire::control::{FsckReport, NodeLending};
use parking_lot::Mutex;

use crate::base::Base;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use crate::files::Files;
use crate::integrity::Integrity;
use crate::orders::Orders;
use crate::plan::Plan;
use boot::Boot;
use history::Index;
use lending::Borrowed;
use replicas::Unsafe;

/// From a start to a stop.
pub struct Lifecycle {
    settings: Arc<Settings>,
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    buffer: Arc<Buffer>,
    integrity: Arc<Integrity>,
    plan: Arc<Plan>,
    files: Arc<Files>,
    /// Which start of the node this is.
    boot: Boot,
    /// Tiers of files whose objects this start could not look at, one entry for each.
    unreadable: Mutex<Vec<TierId>>,
    /// Why the records take no changes.
    store_failing: Mutex<Option<String>>,
    /// Files were promised a second copy, and have none.
    second_copies_due: AtomicBool,
    /// How many, as of the last look; `None` before the first.
    second_copies: Mutex<Option<Unsafe>>,
    /// Names of files by which nodes look whether they see the same PFS.
    probes: Mutex<HashSet<Vec<u8>>>,
    /// What the history has that is over.
    history: Mutex<Index>,
    /// Memory that is borrowed, where it is.
    borrowed: Option<Borrowed>,
    /// What has left the memory of data servers, by server.
    lent: Mutex<BTreeMap<u16, NodeLending>>,
}

impl Lifecycle {
    /// How the kernel calls this start of the node.
    pub fn boot_id(&self) -> Option<&str> {
        self.boot.id()
    }

    /// Of the start that `boot` says.
    pub fn new(orders: &Arc<Orders>, boot: Boot, borrowed: Option<Borrowed>) -> Lifecycle {
        let files = orders.files();
        let drain = files.drain();
        Lifecycle {
            settings: drain.base().settings().clone(),
            ns: drain.base().ns().clone(),
            boot,
            unreadable: Mutex::default(),
            store_failing: Mutex::default(),
            second_copies_due: AtomicBool::new(false),
            second_copies: Mutex::default(),
            probes: Mutex::default(),
            history: Mutex::default(),
            borrowed,
            lent: Mutex::default(),
            base: drain.base().clone(),
            catalog: drain.catalog().clone(),
            buffer: drain.buffer().clone(),
            integrity: drain.integrity().clone(),
            plan: drain.plan().clone(),
            files: files.clone(),
        }
    }

    /// Why the records take no changes; `None` while they do.
    pub fn store_failing(&self) -> Option<String> {
        self.store_failing.lock().clone()
    }

    /// Checks everything, and removes what the check has left nameless: see [`Integrity::fsck`].
    pub fn fsck(&self, dry_run: bool, checksums: bool, served: bool) -> FsckReport {
        let report = self.integrity.fsck(dry_run, checksums, served);
        if !dry_run {
            self.files.collect_garbage();
        }
        report
    }
}
