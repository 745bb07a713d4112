//! Memory that is borrowed: how much the memory tier may hold, as jobs need more or less.
//!
//! Two threads. *fb-lend* looks and has the policy decide; the ledger has the new capacity at once,
//! so that nothing new is set aside beyond it. *fb-return* has what lies beyond it leave. Neither
//! waits for the other: memory may go on going while a large file moves.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_holder::{memory_seen, tell_of_missing_group};
use forebay_namespace::{NsError, in_record};
use forebay_policy::lending::{LendOrders, Lender, LendingError, Target, Why};
use forebay_tiers::{MemoryNow, TierKind};
use forebay_types::{Errno, TierId, format_size};
use forebay_wire::control::{LENDING_ORDERS_MAX, LendingOrder, LendingStatus, NodeLending};
use parking_lot::{Condvar, Mutex};

use crate::base::failure::Failure;
use crate::base::settings::{LendingSetting, MemoryWay, Settings};
use crate::buffer::tierset::{DRAM, Slot};
use crate::files::lending::{GivenBack, WaitsFor};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::monitor::ask_space;

/// Between two looks while memory may be needed any moment.
const TENSE: Duration = Duration::from_millis(250);
/// Between two looks else.
const CALM: Duration = Duration::from_secs(1);
/// Between two rounds of giving back that came to nothing, at least.
const AGAIN: Duration = Duration::from_millis(100);
/// A round looks at all files: it takes one part in so many of the time at most.
const SHARE_OF_TIME: u32 = 4;
/// Under which the orders are on record.
const NAME: &str = "lend-orders";
const WHAT: &str = "orders to lend memory";
/// How an order is on record: its name, and bytes.
type OnRecord = Vec<(String, u64)>;

/// What one look has seen and come to.
#[derive(Clone, Debug)]
struct Look {
    now: MemoryNow,
    target: Target,
}

struct Deciding {
    lender: Lender,
    orders: LendOrders,
    last: Option<Look>,
    /// Said already.
    missing_group: Option<PathBuf>,
    is_blind: bool,
}

/// The memory tier of a server that borrows.
pub struct Borrowed {
    memory: MemoryWay,
    begun: Instant,
    deciding: Mutex<Deciding>,
    /// Held from an order to its record: a store that is slow holds up other orders, and neither
    /// looks nor who asks for the status.
    ordering: Mutex<()>,
    /// What the last round of giving back has left.
    waits: Mutex<WaitsFor>,
    /// Signalled when there is something to be given back.
    owed: (Mutex<bool>, Condvar),
    dropped_bytes: AtomicU64,
    moved_bytes: AtomicU64,
}

impl Borrowed {
    /// As the settings say; `None` where the memory tier has its size always.
    ///
    /// # Errors
    /// The bounds make no sense.
    pub fn new(settings: &Settings) -> Result<Option<Borrowed>, LendingError> {
        let Some(LendingSetting { bounds, memory }) = &settings.lending else {
            return Ok(None);
        };
        Ok(Some(Borrowed {
            memory: memory.clone(),
            begun: Instant::now(),
            deciding: Mutex::new(Deciding {
                lender: Lender::new(*bounds)?,
                orders: LendOrders::default(),
                last: None,
                missing_group: None,
                is_blind: false,
            }),
            ordering: Mutex::default(),
            waits: Mutex::default(),
            owed: Default::default(),
            dropped_bytes: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
        }))
    }
}

/// The thread that looks.
pub fn watch(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() {
        let pause = match lifecycle.look_at_memory() {
            true => TENSE,
            false => CALM,
        };
        lifecycle.base.life().pause(pause);
    }
}

/// The thread that has what is owed leave.
pub fn give_back(lifecycle: &Arc<Lifecycle>) {
    let Some(borrowed) = &lifecycle.borrowed else {
        return;
    };
    while !lifecycle.base.is_ending() {
        {
            let mut is_owed = borrowed.owed.0.lock();
            if !*is_owed {
                borrowed.owed.1.wait_for(&mut is_owed, CALM);
            }
            *is_owed = false;
        }
        if lifecycle.files.owed_bytes(DRAM) == 0 {
            continue;
        }
        let begun = Instant::now();
        let given = lifecycle.give_back_once(borrowed);
        if lifecycle.files.owed_bytes(DRAM) > 0 {
            let took = begun.elapsed();
            let pause = if given.is_any() {
                AGAIN
            } else {
                AGAIN.max(took * SHARE_OF_TIME)
            };
            lifecycle.base.life().pause(pause);
            *borrowed.owed.0.lock() = true;
        }
    }
}

/// Servers of other nodes that hold data in memory.
pub fn nodes_with_memory(lifecycle: &Lifecycle) -> BTreeSet<u16> {
    let tiers = lifecycle.buffer.tiers();
    let of_node = |(id, slot): &(TierId, &Slot)| {
        slot.kind == TierKind::Dram && tiers.holder_of(*id).is_some()
    };
    let memory = tiers.iter().filter(of_node);
    memory.map(|(_, slot)| slot.server).collect()
}

/// The thread that has what a data server lends leave the memory of its node: the data server says
/// how much that is. One for each, for it may hang with its node, and moves take their time.
pub fn hand_over(lifecycle: &Lifecycle, server: u16) {
    while !lifecycle.base.is_ending() {
        let (begun, mut is_lent, mut is_owed, mut has_given) =
            (Instant::now(), false, false, false);
        let memory = lifecycle.buffer.tiers().of_server(server);
        for (id, slot) in memory.filter(|(_, slot)| slot.kind == TierKind::Dram) {
            if !slot.tier.is_answering() {
                continue;
            }
            ask_space(lifecycle, id, slot);
            is_lent |= lifecycle.files.lends(id);
            if lifecycle.files.owed_bytes(id) == 0 {
                continue;
            }
            let given = lifecycle.files.give_back(id);
            lifecycle.note_return(server, &given);
            has_given |= given.is_any();
            is_owed |= lifecycle.files.owed_bytes(id) > 0;
        }
        lifecycle.base.life().pause(match (is_owed, has_given) {
            (true, true) => AGAIN,
            (true, false) => TENSE.max(begun.elapsed() * SHARE_OF_TIME),
            (false, _) if is_lent => TENSE,
            (false, _) => CALM,
        });
    }
}

impl Lifecycle {
    /// Whether the memory tier borrows.
    pub fn borrows(&self) -> bool {
        self.borrowed.is_some()
    }

    /// What a round has had leave the memory of a data server, for the log and for `status`.
    fn note_return(&self, server: u16, given: &GivenBack) {
        let (dropped, moved) = (given.dropped_bytes, given.moved_bytes);
        if given.is_any() {
            tracing::info!(
                "server {server}: jobs need memory: {} dropped, {} moved",
                format_size(dropped),
                format_size(moved)
            );
        }
        let mut lent = self.lent.lock();
        let node = lent.entry(server).or_default();
        node.dropped_bytes_total += dropped;
        node.moved_bytes_total += moved;
        let waits = &given.waits;
        node.waits_bytes = waits.bytes;
        node.waits_for.clone_from(&waits.largest);
        if std::mem::replace(&mut node.waits_files, waits.files) != waits.files
            && let Some(first) = waits.largest.first()
        {
            tracing::info!(
                "server {server}: jobs need memory that {} open files have, the largest {}",
                waits.files,
                first.path.escape_ascii()
            );
        }
    }

    /// The memory of a data server; `None` where nothing of it is lent, nor was.
    pub fn lending_of_node(&self, server: u16) -> Option<NodeLending> {
        let tiers = self.buffer.tiers().of_server(server);
        let memory = tiers.filter(|(id, slot)| {
            slot.kind == TierKind::Dram && self.buffer.tiers().holder_of(*id).is_some()
        });
        let memory: Vec<TierId> = memory.map(|(id, _)| id).collect();
        let is_lent = memory.iter().any(|id| self.files.lends(*id));
        let known = self.lent.lock().get(&server).cloned();
        if !is_lent && known.is_none() {
            return None;
        }
        let mut node = known.unwrap_or_default();
        node.owed_bytes = memory.iter().map(|id| self.files.owed_bytes(*id)).sum();
        if node.owed_bytes == 0 {
            (node.waits_files, node.waits_bytes) = (0, 0);
            node.waits_for.clear();
        }
        Some(node)
    }

    fn give_back_once(&self, borrowed: &Borrowed) -> GivenBack {
        let given = self.files.give_back(DRAM);
        let count = |total: &AtomicU64, bytes| total.fetch_add(bytes, Ordering::Relaxed);
        count(&borrowed.dropped_bytes, given.dropped_bytes);
        count(&borrowed.moved_bytes, given.moved_bytes);
        borrowed.waits.lock().clone_from(&given.waits);
        self.fit_memory();
        given
    }

    /// Goes on with the orders of before.
    pub fn restore_order_to_lend(&self) -> Result<(), NsError> {
        let Some(borrowed) = &self.borrowed else {
            return Ok(());
        };
        if let Some(bytes) = self.ns.get_fact(NAME)? {
            let known: OnRecord = postcard::from_bytes(&bytes).map_err(in_record(WHAT))?;
            let orders = &mut borrowed.deciding.lock().orders;
            for (name, bytes) in &known {
                orders.set(name, *bytes);
            }
        }
        Ok(())
    }

    /// Looks at memory, and sets what the memory tier may hold. Whether the next look is to be
    /// soon.
    pub fn look_at_memory(&self) -> bool {
        let Some(borrowed) = &self.borrowed else {
            return false;
        };
        let mut deciding = borrowed.deciding.lock();
        self.look(borrowed, &mut deciding)
    }

    fn look(&self, borrowed: &Borrowed, deciding: &mut Deciding) -> bool {
        let now = match borrowed.memory.0.look() {
            Ok(now) => now,
            Err(error) => {
                // Of what was known last nothing is true any more: it stays as it is.
                if !std::mem::replace(&mut deciding.is_blind, true) {
                    tracing::warn!("nobody says how much memory there is: {error}");
                }
                // An order says by itself how much is to go.
                self.obey_order(borrowed, deciding);
                return true;
            }
        };
        deciding.is_blind = false;
        tell_of_missing_group(&now, &mut deciding.missing_group);
        let figures = self.buffer.ledger().figures(DRAM);
        let now_s = borrowed.begun.elapsed().as_secs_f64();
        let has = (figures.capacity_bytes, self.files.in_memory_bytes());
        let memory = memory_seen(&now, now_s, has);
        let target = deciding.lender.step(&memory, deciding.orders.sum());
        let before = deciding.last.replace(Look { now, target });
        if before.is_none_or(|before| before.target.why != target.why) {
            let size = format_size(target.capacity_bytes);
            tracing::info!("borrowed memory: {size}: {}", target.why);
        }
        match target.capacity_bytes.cmp(&figures.capacity_bytes) {
            Less => self.lower_memory(target.capacity_bytes),
            Greater => self.raise_memory(target.capacity_bytes, figures.capacity_bytes),
            Equal => {}
        }
        self.tell_of_debt(borrowed);
        target.is_tense()
    }

    /// The tier gets no more than the orders leave of what was known last.
    fn obey_order(&self, borrowed: &Borrowed, deciding: &mut Deciding) {
        let order = deciding.orders.sum();
        let Some(Look { now, target }) = &mut deciding.last else {
            return;
        };
        let ceiling = deciding.lender.ceiling_bytes(now.total_bytes, order);
        target.ceiling_bytes = ceiling;
        if self.buffer.ledger().figures(DRAM).capacity_bytes > ceiling {
            target.capacity_bytes = ceiling;
            target.why = Why::Ordered;
            self.lower_memory(ceiling);
            self.tell_of_debt(borrowed);
        }
    }

    fn tell_of_debt(&self, borrowed: &Borrowed) {
        if self.files.owed_bytes(DRAM) > 0 {
            *borrowed.owed.0.lock() = true;
            borrowed.owed.1.notify_all();
        }
    }

    /// Nothing more is set aside, and the tmpfs follows.
    fn lower_memory(&self, bytes: u64) {
        self.buffer.ledger().set_capacity(DRAM, bytes);
        self.buffer.tiers().set_dram_bytes(bytes);
        forebay_types::failpoint::hit(forebay_types::failpoint::Point::LendLowered);
        self.fit_memory();
    }

    /// The tmpfs has room before anything is set aside in it. Where it cannot grow, all stays as it
    /// was `before`, and the next look tries again.
    fn raise_memory(&self, bytes: u64, before: u64) {
        self.buffer.tiers().set_dram_bytes(bytes);
        match self.fit_memory() {
            true => self.buffer.ledger().set_capacity(DRAM, bytes),
            false => self.buffer.tiers().set_dram_bytes(before),
        }
    }

    /// The tmpfs follows what the tier may hold, and the ledger what the tmpfs can. Whether it has.
    fn fit_memory(&self) -> bool {
        let ledger = self.buffer.ledger();
        let fitted = self.buffer.tiers().fit_dram(|| ledger.held_bytes(DRAM));
        match &fitted {
            Ok(()) => {}
            // A kernel has written more than is known yet: the next look sees it.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => tracing::warn!("the memory tier's size cannot be changed: {error}"),
        }
        let slot = self.buffer.tiers().get(DRAM);
        if let Some(space) = slot.and_then(|slot| slot.tier.space().ok()) {
            ledger.set_physical_free(DRAM, space.free_bytes);
        }
        fitted.is_ok()
    }

    /// Has jobs get so many bytes back until another order of that name; 0 takes it back. Orders of
    /// other names stay in force. It is on stable storage and in force when this returns.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the memory tier does not borrow, `EDQUOT` beyond [`LENDING_ORDERS_MAX`]
    /// orders, or where their names are too long for one record.
    pub fn order_lend(&self, name: &str, bytes: u64) -> Result<(), Failure> {
        let Some(borrowed) = self.borrowed.as_ref() else {
            return self.end_order_of_before(name, bytes);
        };
        let one = borrowed.ordering.lock();
        let mut orders = borrowed.deciding.lock().orders.clone();
        orders.set(name, bytes);
        if orders.count() > LENDING_ORDERS_MAX {
            return Err(Failure::new(
                Errno::EDQUOT,
                format!("{LENDING_ORDERS_MAX} orders are in force"),
            ));
        }
        let known = orders.iter().map(|(name, bytes)| (name.to_string(), bytes));
        let record = postcard::to_stdvec(&known.collect::<OnRecord>()).map_err(in_record(WHAT))?;
        match self.ns.put_fact(NAME, &record) {
            Err(error) if error.errno() == Errno::E2BIG => {
                return Err(Failure::new(
                    Errno::EDQUOT,
                    "the names of all orders are too long for one record".to_string(),
                ));
            }
            kept => kept?,
        }
        self.ns.sync()?;
        let mut deciding = borrowed.deciding.lock();
        deciding.orders = orders;
        drop(one);
        self.look(borrowed, &mut deciding);
        Ok(())
    }

    /// Nothing is borrowed by this start: an order of an earlier one can only end. Whoever has
    /// given it does not know how the burst buffer was started since.
    fn end_order_of_before(&self, name: &str, bytes: u64) -> Result<(), Failure> {
        if bytes > 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let Some(record) = self.ns.get_fact(NAME)? else {
            return Ok(());
        };
        let known: OnRecord = postcard::from_bytes(&record).map_err(in_record(WHAT))?;
        let left = known.into_iter().filter(|(of, _)| of != name);
        let record = postcard::to_stdvec(&left.collect::<OnRecord>()).map_err(in_record(WHAT))?;
        self.ns.put_fact(NAME, &record)?;
        Ok(self.ns.sync()?)
    }

    /// What is borrowed, and why it is that; `None` where nothing is.
    pub fn lending_status(&self) -> Option<LendingStatus> {
        let borrowed = self.borrowed.as_ref()?;
        let deciding = borrowed.deciding.lock();
        let Look { now, target } = deciding.last.as_ref()?;
        let figures = self.buffer.ledger().figures(DRAM);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let owed_bytes = self.files.owed_bytes(DRAM);
        let waits = match owed_bytes {
            0 => WaitsFor::default(),
            _ => borrowed.waits.lock().clone(),
        };
        let orders = deciding.orders.iter().map(|(name, bytes)| LendingOrder {
            name: name.to_string(),
            bytes,
        });
        Some(LendingStatus {
            borrowed_bytes: figures.capacity_bytes,
            used_bytes: self.files.in_memory_bytes(),
            floor_bytes: target.floor_bytes,
            ceiling_bytes: target.ceiling_bytes,
            ordered_bytes: deciding.orders.sum().map_or(0, |order| order.bytes),
            orders: orders.collect(),
            owed_bytes,
            waits_files: waits.files,
            waits_bytes: waits.bytes,
            waits_for: waits.largest,
            why: target.why.name().to_string(),
            memory_bytes: now.total_bytes,
            available_bytes: now.available_bytes,
            dropped_bytes_total: Some(load(&borrowed.dropped_bytes)),
            moved_bytes_total: Some(load(&borrowed.moved_bytes)),
        })
    }
}

#[cfg(test)]
#[path = "lending_tests.rs"]
mod tests;
