//! The tiers, and who holds what in them.

pub(crate) mod activity;
pub(crate) mod blocks;
pub(crate) mod books;
pub(crate) mod changes;
pub(crate) mod contents;
pub(crate) mod copies;
pub(crate) mod emptying;
pub(crate) mod evict;
pub(crate) mod guesses;
pub(crate) mod holders;
pub(crate) mod known;
pub(crate) mod ledger;
pub(crate) mod onpfs;
pub(crate) mod opens;
pub(crate) mod overflow;
pub(crate) mod queue;
pub(crate) mod rates;
pub(crate) mod restart;
pub(crate) mod stays;
pub(crate) mod stranded;
pub(crate) mod table;
pub(crate) mod target;
pub(crate) mod tierset;
pub(crate) mod unclosed;
pub(crate) mod unflushed;
pub(crate) mod unsent;

use std::collections::HashSet;
use std::sync::Arc;

use forebay_namespace::{File, Namespace};
use forebay_types::{ObjectId, TierId};
use parking_lot::{Condvar, Mutex};

use crate::base::Base;
use crate::catalog::Catalog;
use activity::Activity;
use contents::Contents;
use emptying::Emptying;
use guesses::Guesses;
use ledger::Ledger;
use opens::OpenTable;
use queue::DrainQueue;
use rates::Rates;
use stranded::Stranded;
use table::FileTable;
use tierset::TierSet;
use unflushed::Unflushed;

/// The tiers, the files that lie in them, and who holds what.
pub struct Buffer {
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    /// The tiers.
    tiers: TierSet,
    /// Nodes that are being emptied.
    emptying: Emptying,
    /// Who holds what.
    ledger: Ledger,
    /// Who writes how fast.
    rates: Rates,
    /// What was brought in before anybody asked.
    guesses: Guesses,
    /// Open files.
    opens: OpenTable,
    /// Files by object.
    table: FileTable,
    /// Which content files have.
    contents: Contents,
    /// Whether programs write.
    activity: Activity,
    /// Files to be demoted.
    queue: DrainQueue,
    /// Files whose last close could not ask their object what it has become.
    unclosed: Mutex<HashSet<ObjectId>>,
    /// Objects that are held open until they are flushed.
    unflushed: Unflushed,
    /// Clean files whose object in the overflow could not make way for what the PFS has; tried
    /// again.
    overstaying: Mutex<Vec<Arc<File>>>,
    /// Copies whose commit the store has failed, or that were in use.
    late_copies: Mutex<Vec<(Arc<File>, TierId)>>,
    /// Undrained objects whose directory is not known: until fsck has put them elsewhere on the PFS
    /// they are undrained.
    stranded: Mutex<Vec<Stranded>>,
    /// The collector of unused objects sleeps here.
    collector: (Mutex<bool>, Condvar),
}

impl Buffer {
    /// The tiers as they were opened; no file is known yet.
    pub fn new(base: &Arc<Base>, catalog: &Arc<Catalog>, tiers: TierSet) -> Buffer {
        let demotion = &base.settings().demotion;
        let ledger = Ledger::new(&tiers.limits(), demotion.dirty_cap_fraction);
        ledger.set_limits(&base.settings().limits);
        let rates = Rates::new(base.started());
        rates.set(&base.settings().limits);
        Buffer {
            ns: base.ns().clone(),
            ledger,
            rates,
            guesses: Guesses::default(),
            tiers,
            emptying: Emptying::default(),
            opens: OpenTable::new(base.epoch()),
            table: FileTable::default(),
            contents: Contents::new(),
            activity: Activity::new(base.started()),
            queue: DrainQueue::new(demotion.retry_after),
            unclosed: Mutex::default(),
            unflushed: Unflushed::default(),
            overstaying: Mutex::default(),
            late_copies: Mutex::default(),
            stranded: Mutex::default(),
            collector: Default::default(),
            base: base.clone(),
            catalog: catalog.clone(),
        }
    }

    /// Objects that are held open until they are flushed.
    pub fn unflushed(&self) -> &Unflushed {
        &self.unflushed
    }

    /// What was brought in before anybody asked.
    pub fn guesses(&self) -> &Guesses {
        &self.guesses
    }

    /// Rates of writes of users and groups.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// The tiers.
    pub fn tiers(&self) -> &TierSet {
        &self.tiers
    }

    /// Nodes that are being emptied.
    pub fn emptying(&self) -> &Emptying {
        &self.emptying
    }

    /// Whether nothing new is to go to a tier: its node does not answer, or is being emptied.
    pub fn is_closed(&self, tier: TierId) -> bool {
        let slot = self.tiers.get(tier);
        self.tiers.is_out_of_reach(tier) || slot.is_some_and(|slot| self.emptying.has(slot.server))
    }

    /// Who holds what.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Open files.
    pub fn opens(&self) -> &OpenTable {
        &self.opens
    }

    /// Files by object.
    pub fn table(&self) -> &FileTable {
        &self.table
    }

    /// Which content files have.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Whether programs write.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Files to be demoted.
    pub fn queue(&self) -> &DrainQueue {
        &self.queue
    }

    /// Files whose last close could not ask their object what it has become.
    pub fn unclosed(&self) -> &Mutex<HashSet<ObjectId>> {
        &self.unclosed
    }

    /// Undrained objects whose directory is not known: until fsck has put them elsewhere on the PFS
    /// they are undrained.
    pub fn stranded(&self) -> &Mutex<Vec<Stranded>> {
        &self.stranded
    }

    /// The collector of unused objects sleeps here.
    pub fn collector(&self) -> &(Mutex<bool>, Condvar) {
        &self.collector
    }

    /// How many clean files have not left the overflow yet.
    #[cfg(test)]
    pub fn overstaying_files(&self) -> usize {
        self.overstaying.lock().len()
    }
}
