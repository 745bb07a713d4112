//! The threads that watch over leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_policy::limits::{Beyond, Excess};
use forebay_policy::placement::{
    Extension, HeldBack, Lease, MIN_EXTENSION_BYTES, extend_lease, held_back, may_borrow,
};
use forebay_tiers::TierKind;
use forebay_types::{Errno, format_size};

use super::{
    EVICTION_PAUSE, Growing, Guard, Hold, LOOK, LOOK_AFAR, LOOKS_BEFORE_SLEEP, SLEEP, Wanted,
    be_punctual,
};
use crate::buffer::ledger::Refused;
use crate::buffer::target::Target;
use crate::files::Files;

/// The thread of the guard of a server's tiers.
pub fn run(files: &Arc<Files>, server: u16) {
    let Some(bed) = files.guard.guards.get(&server) else {
        return;
    };
    // Nobody else sets it.
    let _ = bed.thread.set(std::thread::current());
    let pause = match server == files.settings.server {
        true => LOOK,
        false => LOOK_AFAR,
    };
    be_punctual();
    let mut guard = Guard {
        server,
        held: HashMap::new(),
    };
    let mut idle_looks = 0;
    while !files.base.is_ending() {
        let any = guard.look(files) > 0;
        idle_looks = if any { 0 } else { idle_looks + 1 };
        if idle_looks <= LOOKS_BEFORE_SLEEP {
            std::thread::sleep(pause);
            continue;
        }
        bed.asleep.store(true, Ordering::SeqCst);
        // Whoever got a lease before they could see that nobody looks.
        if guard.look(files) == 0 {
            std::thread::park_timeout(SLEEP);
        }
        if !bed.asleep.swap(false, Ordering::SeqCst) {
            // Others are likely to follow: of a thousand creates each would wake the guard.
            idle_looks = 0;
        }
    }
}

/// Who makes room: evicts, which may take a while.
pub fn make_room(files: &Arc<Files>) {
    while !files.base.is_ending() {
        let wanted = {
            let mut wanted = files.guard.wanted.lock();
            if wanted.is_empty() {
                files.guard.want.wait_for(&mut wanted, SLEEP);
            }
            std::mem::take(&mut *wanted)
        };
        for (whose, bytes) in &wanted {
            match *whose {
                Wanted::Tier(tier) => {
                    files.make_space(tier, *bytes);
                }
                Wanted::Owner(owner, beyond) => {
                    let excess = Excess {
                        missing_bytes: *bytes,
                        beyond,
                    };
                    files.make_room_of(owner, excess, MIN_EXTENSION_BYTES);
                }
            }
        }
        if !wanted.is_empty() {
            std::thread::sleep(EVICTION_PAUSE);
        }
    }
}

impl Guard {
    /// Looks at all files that are written unseen; how many there are.
    fn look(&mut self, files: &Files) -> usize {
        let mut leases = 0;
        let mut over = HashSet::new();
        files.buffer.opens().each(|open| {
            let lease = open.lease_bytes.load(Ordering::Acquire);
            if lease == 0 || !open.is_written() {
                return;
            }
            // Who moves it may wait for another node.
            let target = open.target.try_read().map(|target| target.clone());
            let Some(Target::Buffer { file, object, tier }) = target else {
                return;
            };
            let slot = files.buffer.tiers().get(tier);
            if slot.is_none_or(|slot| slot.server != self.server || !slot.tier.is_answering()) {
                return;
            }
            leases += 1;
            let Ok(stat) = object.stat() else {
                return;
            };
            let used_bytes = stat.allocated_bytes;
            if used_bytes != files.buffer.ledger().used_bytes(file.object) {
                files.buffer.ledger().observe(file.object, used_bytes);
                files.buffer.activity().note();
            }
            let growing = Growing {
                open,
                object: &*object,
                id: file.object,
                path: &|| file.path(),
                tier,
                lease: Lease { bytes: lease },
                used_bytes,
            };
            if let Err(refused) = extend(files, &growing)
                && used_bytes >= lease
                && !goes_beyond(files, &growing, refused)
            {
                over.insert(file.object);
                self.hold_back(files, &growing, refused);
            }
        });
        // Whoever else was held back has room now, or is closed.
        self.held.retain(|object, hold| {
            let stays = over.contains(object);
            if let Hold::BlockedWriter { since, .. } = hold
                && !stays
            {
                files.catalog.history().stalled(*object, since.elapsed());
            }
            stays
        });
        leases
    }

    fn hold_back(&mut self, files: &Files, growing: &Growing<'_>, refused: Refused) {
        let held = self.held.entry(growing.id).or_insert_with(|| {
            files
                .base
                .counters()
                .waited_writes
                .fetch_add(1, Ordering::Relaxed);
            let write_blocker = match growing.object.is_held() {
                true => growing.object.block_writers(),
                // It holds the file by itself.
                false => files
                    .buffer
                    .tiers()
                    .open_object(growing.tier, growing.id)
                    .and_then(|object| object.block_writers()),
            };
            match write_blocker {
                Ok(write_blocker) => Hold::BlockedWriter {
                    write_blocker,
                    since: Instant::now(),
                },
                Err(error) => {
                    tracing::warn!("a write cannot be made to wait: {error}");
                    Hold::LetGo
                }
            }
        });
        let Hold::BlockedWriter {
            write_blocker,
            since,
        } = held
        else {
            more(files, growing, refused, false);
            return;
        };
        let can_drain =
            files.may_get_room(growing.open, refused) && !files.base.health().is_given_up();
        let since_moved = files.buffer.queue().last_moved().map(|at| at.elapsed());
        let goes_on = match held_back(since.elapsed(), can_drain, since_moved) {
            HeldBack::Waits if !write_blocker.has_failed() => true,
            HeldBack::Waits | HeldBack::BorrowsOrWaits => {
                more(files, growing, refused, !write_blocker.has_failed());
                true
            }
            HeldBack::BorrowsOrFails => more(files, growing, refused, false),
        };
        if goes_on {
            return;
        }
        *held = Hold::LetGo;
        let reason = format!(
            "has grown to {} where nothing else can make room, and there is no more to borrow: its writes will fail",
            format_size(growing.used_bytes)
        );
        files.base.report((growing.path)(), Errno::ENOSPC, reason);
    }
}

/// Extends a lease ahead of its writer, if there is room.
fn extend(files: &Files, growing: &Growing<'_>) -> Result<(), Refused> {
    let (tier, lease, used) = (growing.tier, growing.lease, growing.used_bytes);
    let spaces = files.buffer.ledger().spaces();
    let Some(space) = spaces.iter().find(|s| s.index == tier.0 as usize) else {
        return Ok(());
    };
    let beyond = used.saturating_sub(lease.bytes);
    let bytes = (lease.bytes / 2).max(MIN_EXTENSION_BYTES) + 2 * beyond;
    let refused = match extend_lease(space, lease, used) {
        Extension::Enough => return Ok(()),
        Extension::Extended(longer) => {
            let ledger = files.buffer.ledger();
            match ledger.try_hold(growing.id, tier, used, longer.bytes, true) {
                Ok(()) => {
                    growing
                        .open
                        .lease_bytes
                        .store(longer.bytes, Ordering::Release);
                    return Ok(());
                }
                Err(refused) => refused,
            }
        }
        Extension::Refused => Refused::Tier {
            missing_bytes: bytes,
        },
    };
    match refused {
        // Others have no part in it.
        Refused::Limit { owner, excess } => {
            let wanted = Wanted::Owner(owner, excess.beyond);
            files.guard.want_room(wanted, excess.missing_bytes);
        }
        _ => {
            files.buffer.queue().hurry();
            files.guard.want_room(Wanted::Tier(tier), bytes);
        }
    }
    Err(refused)
}

/// Where a limit refuses more to a file that the kernel writes, and there is nothing to wait for,
/// it goes on beyond; whether it has got more.
fn goes_beyond(files: &Files, growing: &Growing<'_>, refused: Refused) -> bool {
    let Refused::Limit { excess, .. } = refused else {
        return false;
    };
    let waits = excess.beyond == Beyond::Wait && files.may_get_room(growing.open, refused);
    !waits && exceed_limit(files, growing)
}

/// More for a file that is held back; `waits`: it goes on being held back without.
fn more(files: &Files, growing: &Growing<'_>, refused: Refused, waits: bool) -> bool {
    let is_limited = matches!(refused, Refused::Limit { .. });
    (is_limited && exceed_limit(files, growing)) || borrow(files, growing, waits)
}

/// Extends a lease by what the tier has, whatever the limits of users and groups are.
fn exceed_limit(files: &Files, growing: &Growing<'_>) -> bool {
    let (tier, used) = (growing.tier, growing.used_bytes);
    let spaces = files.buffer.ledger().spaces();
    let space = spaces.iter().find(|s| s.index == tier.0 as usize);
    let Some(Extension::Extended(longer)) =
        space.map(|space| extend_lease(space, growing.lease, used))
    else {
        return false;
    };
    let ledger = files.buffer.ledger();
    let held = ledger.try_hold_beyond_limits(growing.id, tier, used, longer.bytes);
    if held.is_ok() {
        let lease = &growing.open.lease_bytes;
        lease.store(longer.bytes, Ordering::Release);
    }
    held.is_ok()
}

/// Extends a lease beyond what the tier is meant to hold, by what the machine still has: the file
/// cannot go elsewhere while the kernel writes it, and a write must not fail. Who waits gets
/// nothing that jobs have taken.
fn borrow(files: &Files, growing: &Growing<'_>, waits: bool) -> bool {
    let overrun_bytes = growing.used_bytes.saturating_sub(growing.lease.bytes);
    let (tiers, ledger) = (files.buffer.tiers(), files.buffer.ledger());
    let slot = tiers.get(growing.tier);
    let is_here = slot.is_some_and(|slot| slot.tier.elsewhere(growing.id).is_none());
    let in_memory = is_here && tiers.kind(growing.tier) == TierKind::Dram;
    let wish = overrun_bytes + MIN_EXTENSION_BYTES;
    let free_bytes = || slot.and_then(|slot| Some(slot.tier.space().ok()?.free_bytes));
    let is_lent_there = !in_memory && files.lends(growing.tier);
    let more_bytes = match in_memory || is_lent_there {
        true if in_memory && files.memory_has(wish) => MIN_EXTENSION_BYTES,
        true if waits => 0,
        true => files.lent_back(growing.tier, MIN_EXTENSION_BYTES),
        false if free_bytes().is_some_and(|free| may_borrow(free, wish, tiers.overrun_bytes())) => {
            MIN_EXTENSION_BYTES
        }
        false => 0,
    };
    if more_bytes == 0 {
        return false;
    }
    let wanted = overrun_bytes + more_bytes;
    let lease = growing.lease.bytes + wanted;
    let hold = || ledger.hold_beyond(growing.id, growing.tier, growing.used_bytes, lease);
    match in_memory {
        true if !files.grow_memory(wanted, hold) => return false,
        true => {}
        false => hold(),
    }
    if growing.open.borrowed.swap(true, Ordering::AcqRel) {
        tracing::debug!("{} more", format_size(wanted));
    } else {
        tracing::warn!(
            "{}: outgrows the burst buffer while the kernel writes it; it gets more for as long as it is open",
            (growing.path)().escape_ascii()
        );
    }
    growing.open.lease_bytes.store(lease, Ordering::Release);
    true
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
