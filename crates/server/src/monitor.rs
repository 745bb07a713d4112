//! Watches what the server does not see: files that the kernel writes by itself, file systems below
//! the tiers; flushes the records now and then; removes unused objects.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_policy::placement::{Extension, Lease, extend_lease};
use forebay_tiers::TierKind;
use forebay_types::Errno;

use crate::core::Core;
use crate::opens::Target;

/// Between two looks at files under unseen writing: at 10 GB/s a file grows by 50 MB meanwhile,
/// less than the smallest extension of a lease.
const LEASE_LOOK: Duration = Duration::from_millis(5);
/// Between two looks when nothing is written unseen.
const IDLE_LOOK: Duration = Duration::from_millis(100);
/// Between two questions to the file systems below.
const SPACE_LOOK: Duration = Duration::from_millis(500);
/// Records reach stable storage at most this long after they were made, fsync or not.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// The collector waits this long for more before it begins.
const GATHER: Duration = Duration::from_millis(20);

/// The monitor thread.
pub fn run(core: &Arc<Core>) {
    let mut space_at = Instant::now();
    let mut sync_at = Instant::now() + SYNC_EVERY;
    let mut was_given_up = false;
    while !core.is_ending() {
        was_given_up = watch_pulse(core, was_given_up);
        let leases = watch_leases(core);
        if let Err(error) = core.ns.save_deferred() {
            core.report(
                b"(metadata store)".to_vec(),
                error.errno(),
                error.to_string(),
            );
        }
        let now = Instant::now();
        if now >= space_at {
            look_below(core);
            space_at = now + SPACE_LOOK;
        }
        if now >= sync_at {
            if let Err(errno) = core.forget_removed() {
                core.report(
                    b"(metadata store)".to_vec(),
                    errno,
                    format!("removed objects stay on record: {errno}"),
                );
            }
            if let Err(error) = core.ns.sync() {
                core.report(
                    b"(metadata store)".to_vec(),
                    error.errno(),
                    error.to_string(),
                );
            }
            sync_at = Instant::now() + SYNC_EVERY;
        }
        std::thread::sleep(if leases > 0 { LEASE_LOOK } else { IDLE_LOOK });
    }
}

/// Says when the PFS is given up and when it answers again; whether it is given up now.
fn watch_pulse(core: &Core, before: bool) -> bool {
    const PFS: &[u8] = b"(PFS)";
    let why = core.given_up();
    core.opens.note_given_up(why.is_some());
    match (before, why) {
        (false, Some(why)) => {
            let reason = format!("{why}; what is in the burst buffer is served and kept");
            core.report(PFS.to_vec(), Errno::ETIMEDOUT, reason);
            true
        }
        (true, None) => {
            tracing::info!("the PFS answers again");
            core.errors.clear(PFS);
            false
        }
        (_, why) => why.is_some(),
    }
}

/// Extends the leases of growing files ahead of their writers.
fn watch_leases(core: &Core) -> usize {
    let mut leases = 0;
    core.opens.each(|open| {
        let lease = open.lease_bytes.load(Ordering::Acquire);
        if lease == 0 || !open.is_written() {
            return;
        }
        leases += 1;
        let target = open.target.read().clone();
        let Target::Buffer { file, object, tier } = target else {
            return;
        };
        let Ok(stat) = object.stat() else {
            return;
        };
        let used = stat.allocated_bytes;
        if used != core.ledger.used_bytes(file.object) {
            core.ledger.observe(file.object, used);
            core.drain.foreground();
        }
        extend(core, open, &file, tier, lease, used);
    });
    leases
}

fn extend(
    core: &Core,
    open: &crate::opens::OpenFile,
    file: &forebay_namespace::File,
    tier: forebay_types::TierId,
    lease: u64,
    used: u64,
) {
    for attempt in 0..2 {
        let spaces = core.ledger.spaces();
        let Some(space) = spaces.iter().find(|s| s.index == tier.0 as usize) else {
            return;
        };
        match extend_lease(space, Lease { bytes: lease }, used) {
            Extension::Enough => return,
            Extension::Extended(longer) => {
                let held = core
                    .ledger
                    .try_hold(file.object, tier, used, longer.bytes, true);
                if held.is_ok() {
                    open.lease_bytes.store(longer.bytes, Ordering::Release);
                    return;
                }
            }
            Extension::Refused => {}
        }
        if attempt == 0 {
            core.drain.hurry();
            core.make_space(tier, lease / 2);
        }
    }
}

/// Asks the file systems below the tiers what they can still give.
fn look_below(core: &Core) {
    for (id, slot) in core.tiers.iter() {
        if slot.kind == TierKind::Pfs {
            continue;
        }
        match slot.tier.space() {
            Ok(space) => core.ledger.set_physical_free(id, space.free_bytes),
            Err(error) => {
                let path = format!("(tier {})", slot.tier.name()).into_bytes();
                core.report(
                    path,
                    (&error).into(),
                    format!("its file system does not answer: {error}"),
                );
            }
        }
    }
}

/// The collector thread: removes objects that nobody needs.
pub fn collect(core: &Arc<Core>) {
    loop {
        {
            let mut due = core.collector.0.lock();
            if !*due && !core.is_ending() {
                core.collector
                    .1
                    .wait_for(&mut due, Duration::from_millis(500));
            }
        }
        // Unlinks come in swarms: one round for many of them.
        if !core.is_ending() {
            std::thread::sleep(GATHER);
        }
        *core.collector.0.lock() = false;
        core.collect_garbage();
        if core.is_ending() {
            return;
        }
    }
}
