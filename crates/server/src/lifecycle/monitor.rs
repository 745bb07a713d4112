//! Watches what the server does not see: the PFS's health, file systems below the tiers; flushes
//! the records now and then; removes unused objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::NsError;
use forebay_policy::patience::{DATA_SERVERS_LOOK, START_ANEW_AGAIN, START_ANEW_FIRST};
use forebay_tiers::TierKind;
use forebay_types::{Errno, TierId};

use crate::buffer::holders::Holder;
use crate::buffer::tierset::{DRAM, Slot};
use crate::integrity::atrest::is_out_of_reach;
use crate::lifecycle::Lifecycle;

/// Between two looks at everything else.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at the hold on the records.
const HOLD_LOOK: Duration = Duration::from_millis(50);
/// Between two questions to the file systems below.
const SPACE_LOOK: Duration = Duration::from_millis(500);
/// Records reach stable storage at most this long after they were made, fsync or not.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// Between two tries to open a store again that storage has failed.
const MEND_EVERY: Duration = Duration::from_secs(1);
/// What errors of the records are reported under.
const STORE: &[u8] = b"(metadata store)";

/// The collector waits this long for more before it begins.
const GATHER: Duration = Duration::from_millis(20);

/// The monitor thread.
pub fn run(lifecycle: &Arc<Lifecycle>) {
    let mut space_at = Instant::now();
    let mut sync_at = Instant::now() + SYNC_EVERY;
    let mut mend_at = Instant::now();
    let mut was_given_up = false;
    while !lifecycle.base.is_ending() {
        was_given_up = watch_health(lifecycle, was_given_up);
        if let Err(error) = lifecycle.ns.save_deferred() {
            lifecycle
                .base
                .report(STORE.to_vec(), error.errno(), error.to_string());
        }
        let now = Instant::now();
        if now >= space_at {
            look_below(lifecycle);
            space_at = now + SPACE_LOOK;
        }
        if now >= mend_at {
            if mend_store(lifecycle) {
                lifecycle.buffer.leave_overflow_late();
                lifecycle.buffer.leave_copies_late();
                // With other nodes a thread of its own does that, which may hang with one of them.
                if lifecycle.buffer.tiers().holders().is_empty() {
                    lifecycle.sweep_left();
                }
            }
            mend_at = Instant::now() + MEND_EVERY;
        }
        if now >= sync_at {
            if let Err(failure) = lifecycle.files.forget_removed() {
                lifecycle.base.report(
                    STORE.to_vec(),
                    failure.errno(),
                    format!("removed objects stay on record: {failure}"),
                );
            }
            if let Err(error) = lifecycle.ns.sync() {
                lifecycle
                    .base
                    .report(STORE.to_vec(), error.errno(), error.to_string());
            }
            sync_at = Instant::now() + SYNC_EVERY;
        }
        std::thread::sleep(LOOK);
    }
}

/// The thread that ends a server whose hold on the records is over. It does nothing else: what it
/// waited for would be time in which two servers answer.
pub fn watch_hold(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() && !is_deposed(lifecycle) {
        std::thread::sleep(HOLD_LOOK);
    }
}

/// The thread that looks after data servers. One that was not there at the start, or is not what it
/// was, is taken in by a start: that looks at all that it holds.
pub fn watch_holders(lifecycle: &Arc<Lifecycle>) {
    let begun = Instant::now();
    while !lifecycle.base.is_ending() {
        let tiers = lifecycle.buffer.tiers();
        for holder in tiers.holders() {
            // A start needs the PFS; until that answers what there is goes on.
            let may_order =
                begun.elapsed() >= START_ANEW_FIRST && !lifecycle.base.health().is_silent();
            if holder.is_to_be_looked_at() && may_order {
                tracing::warn!(
                    "{} is back: this server starts anew, and looks at what is there",
                    holder.name()
                );
                // Unless there is another order: then it is looked for again.
                lifecycle.base.life().order_start_anew();
                lifecycle.base.life().pause(START_ANEW_AGAIN);
            }
            holder.note(tiers.is_answering(holder.server));
        }
        lifecycle.base.life().pause(DATA_SERVERS_LOOK);
    }
}

/// Opens the store again if storage has failed it and takes writes again. Records that failed are
/// in memory. Whether it takes writes. One that never will again is the end of the server.
fn mend_store(lifecycle: &Lifecycle) -> bool {
    let find = |object| lifecycle.buffer.table().read().get(&object).cloned();
    let mended = lifecycle.ns.mend(&find);
    let failing = match &mended {
        Ok(_) => silence_of_store(lifecycle),
        Err(error) => Some(format!(
            "it takes no changes: {error}; tried again until it does"
        )),
    };
    match &mended {
        Ok(mended) => {
            if *mended {
                tracing::info!("the metadata store was opened again, and has all records");
            }
            let was_failing = lifecycle.store_failing.lock().is_some();
            if *mended || (was_failing && failing.is_none()) {
                lifecycle.base.errors().clear(STORE);
            }
        }
        Err(error) if is_for_good(lifecycle, error) => end_without_store(lifecycle, error),
        Err(_) => {}
    }
    if let Some(reason) = &failing {
        let errno = mended.as_ref().err().map_or(Errno::EIO, NsError::errno);
        lifecycle.base.report(STORE.to_vec(), errno, reason.clone());
    }
    *lifecycle.store_failing.lock() = failing;
    mended.is_ok()
}

/// A store on a server that does not answer for as long as the hold on it is valid.
fn silence_of_store(lifecycle: &Lifecycle) -> Option<String> {
    let hold = lifecycle.ns.store_hold()?;
    (!hold.is_valid()).then(|| "its server does not answer; tried again until it does".to_string())
}

/// Only a start, which reads all of it, makes such a store well.
fn is_for_good(lifecycle: &Lifecycle, error: &NsError) -> bool {
    use forebay_kv::Error;
    let NsError::Store(error) = error else {
        return false;
    };
    let ends = matches!(
        error,
        Error::Lost | Error::Corrupt(_) | Error::Setup(_) | Error::Version { .. }
    );
    ends && lifecycle.ns.store_hold().is_some()
}

fn end_without_store(lifecycle: &Lifecycle, error: &NsError) {
    let life = lifecycle.base.life();
    if life.is_broken() {
        return;
    }
    let what = format!("{error} ({})", lifecycle.settings.store);
    match lifecycle.settings.has_standby() {
        true => life.depose(what),
        false => life.broke(what),
    }
}

/// Where another server may lead as soon as the hold on the records is over: whether it is, or a
/// data server has let another one in. Nothing is asked of the store, which would take time that
/// this server does not have.
fn is_deposed(lifecycle: &Lifecycle) -> bool {
    let Some(hold) = lifecycle.ns.store_hold() else {
        return false;
    };
    let mut holders = lifecycle.buffer.tiers().holders().iter();
    let why = match hold.is_valid() {
        _ if !lifecycle.settings.has_standby() => return false,
        true if holders.any(Holder::is_replaced) => {
            "is of no use: a data server has another leader"
        }
        true => return false,
        false if hold.is_lost() => "is lost",
        false => "was not renewed in time",
    };
    lifecycle.base.life().depose(format!(
        "the hold on the records in {} {why}: another server may lead with them",
        lifecycle.settings.store
    ));
    true
}

/// Says when the PFS is given up and when it answers again; whether it is given up now.
fn watch_health(lifecycle: &Lifecycle, before: bool) -> bool {
    const PFS: &[u8] = b"(PFS)";
    let why = lifecycle.base.given_up();
    lifecycle.buffer.opens().note_given_up(why.is_some());
    match (before, why) {
        (false, Some(why)) => {
            let reason = format!("{why}; what is in the burst buffer is served and kept");
            lifecycle
                .base
                .report(PFS.to_vec(), Errno::ETIMEDOUT, reason);
            true
        }
        (true, None) => {
            tracing::info!("the PFS answers again");
            lifecycle.base.errors().clear(PFS);
            false
        }
        (_, why) => why.is_some(),
    }
}

/// Asks the file systems below the tiers what they can still give.
pub fn look_below(lifecycle: &Lifecycle) {
    give_back(lifecycle);
    for (id, slot) in lifecycle.buffer.tiers().iter() {
        // Those of other nodes may not answer, and nobody waits for them here.
        if slot.kind != TierKind::Pfs && slot.server == lifecycle.base.settings().server {
            ask_space(lifecycle, id, slot);
        }
    }
}

/// The thread that asks data servers what they can still give. It may hang with one of them: then
/// the others are held to be as they were.
pub fn watch_space(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() {
        let tiers = lifecycle.buffer.tiers();
        for (id, slot) in tiers
            .iter()
            .filter(|(id, _)| tiers.holder_of(*id).is_some())
        {
            // Memory: see `lending::hand_over`.
            if slot.kind != TierKind::Dram && slot.tier.is_answering() {
                ask_space(lifecycle, id, slot);
            }
        }
        lifecycle.base.life().pause(DATA_SERVERS_LOOK);
    }
}

pub(super) fn ask_space(lifecycle: &Lifecycle, id: TierId, slot: &Slot) {
    match slot.tier.space() {
        Ok(space) => {
            let ledger = lifecycle.buffer.ledger();
            ledger.set_physical_free(id, space.free_bytes);
            let capacity = slot.tier.capacity_bytes().saturating_sub(space.lent_bytes);
            let is_memory_of_node = slot.kind == TierKind::Dram && id != DRAM;
            if is_memory_of_node && ledger.figures(id).capacity_bytes != capacity {
                ledger.set_capacity(id, capacity);
            }
        }
        // The next look says more.
        Err(error) if is_out_of_reach(&error) => {}
        Err(error) => {
            let path = format!("(tier {})", slot.tier.name()).into_bytes();
            lifecycle.base.report(
                path,
                Errno::of(&error),
                format!("its file system does not answer: {error}"),
            );
        }
    }
}

/// Memory that was borrowed beyond the tier's size goes back as soon as it is free.
fn give_back(lifecycle: &Lifecycle) {
    let ledger = lifecycle.buffer.ledger();
    let held = || ledger.held_bytes(DRAM);
    if let Err(error) = lifecycle.buffer.tiers().fit_dram(held)
        && error.raw_os_error() != Some(libc::EBUSY)
    {
        lifecycle.base.report(
            b"(tier dram)".to_vec(),
            Errno::of(&error),
            format!("its size cannot be changed: {error}"),
        );
    }
}

/// The collector thread: removes objects that nobody needs.
pub fn collect(lifecycle: &Arc<Lifecycle>) {
    loop {
        {
            let mut due = lifecycle.buffer.collector().0.lock();
            if !*due && !lifecycle.base.is_ending() {
                lifecycle
                    .buffer
                    .collector()
                    .1
                    .wait_for(&mut due, Duration::from_millis(500));
            }
        }
        // Unlinks come in swarms: one round for many of them.
        if !lifecycle.base.is_ending() {
            std::thread::sleep(GATHER);
        }
        *lifecycle.buffer.collector().0.lock() = false;
        lifecycle.files.collect_garbage();
        if lifecycle.base.is_ending() {
            return;
        }
    }
}
