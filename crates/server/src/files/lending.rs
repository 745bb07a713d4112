//! Memory that is given back: what lies in the memory tier beyond its capacity leaves it.
//!
//! 1. What nobody can name any more, then clean copies that nobody has open, in the order of the
//!    placement in force.
//! 2. What is not drained, or is open: it moves to flash, one file after the other, in the order in
//!    which it would be drained. Reads and writes of an open file go on meanwhile
//!    ([`changeover`](crate::files::changeover)). Where no flash of the node has room it moves to
//!    another node, to flash or to memory that has much room. Else the file is drained.
//! 3. What a kernel reads or writes by itself stays until it is closed. The ledger has the lower
//!    capacity: the guard holds writers back as in a full tier. Where nothing else can make room
//!    the file gets what the tier had if nothing were lent ([`Files::lent_back`]): it cannot go
//!    elsewhere, and no write fails for memory that was lent.
//!
//! A move frees more memory than it needs: what is written to flash is flushed and leaves the page
//! cache every few megabytes.
//!
//! The memory of other nodes is given back in the same way: their data servers say how much they
//! lend, and their files move from here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_holder::pools_of;
use forebay_namespace::File;
use forebay_policy::demotion::{choose_victims_with, order_demotion};
use forebay_policy::lending::{all_have, lent_back_bytes};
use forebay_policy::placement::SPACE_UNIT_BYTES;
use forebay_policy::spill::flash_with_clean;
use forebay_tiers::{CopyControl, MemorySource, SystemMemory, TierKind};
use forebay_types::{Errno, ObjectId, TierId, failpoint};
use forebay_wire::control::{LENDING_FILES_MAX, LendingFile};

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::buffer::tierset::DRAM;
use crate::files::Files;
use crate::files::changeover::Leaving;
use crate::files::groupmove::{Group, Together};

/// So much of a file that moves to flash may be in the page cache, bytes.
const CACHED_BYTES: u64 = 32 << 20;

/// What a round of giving back has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Clean copies that were dropped, and what had no name, bytes.
    pub dropped_bytes: u64,
    /// Moved to flash, bytes.
    pub moved_bytes: u64,
    /// Files that stay until programs close them, where something is still owed.
    pub waits: WaitsFor,
}

/// Files in memory that cannot move: a kernel reads or writes them by itself, or they are deleted
/// and open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitsFor {
    /// How many.
    pub files: u64,
    /// What they occupy, bytes.
    pub bytes: u64,
    /// The largest of them.
    pub largest: Vec<LendingFile>,
}

/// What is left in memory after a round.
#[derive(Default)]
struct Stays {
    waits: WaitsFor,
    /// Something else is not drained, and nobody writes it.
    could_drain: bool,
}

impl GivenBack {
    /// Whether anything was freed.
    pub fn is_any(&self) -> bool {
        self.dropped_bytes + self.moved_bytes > 0
    }
}

impl Files {
    /// Whether memory has so much beyond what is never borrowed.
    pub(super) fn memory_has(&self, bytes: u64) -> bool {
        let now = match &self.settings.lending {
            Some(lending) => lending.memory.0.look(),
            None => SystemMemory::default().look(),
        };
        now.is_ok_and(|now| all_have(pools_of(&now), bytes))
    }

    /// What a file in memory that cannot leave gets of what was lent, of `wish` bytes; 0 where the
    /// tier had no more if nothing were.
    pub(super) fn lent_back(&self, tier: TierId, wish: u64) -> u64 {
        let full = match self.buffer.tiers().holder_of(tier) {
            Some(_) => self.full_bytes_of_node(tier),
            None => self
                .settings
                .dram_bytes
                .filter(|_| self.settings.lending.is_some()),
        };
        full.map_or(0, |full| {
            lent_back_bytes(full, self.buffer.ledger().held_bytes(tier), wish)
        })
    }

    /// What the memory of another node holds while nothing of it is lent, bytes.
    fn full_bytes_of_node(&self, tier: TierId) -> Option<u64> {
        let slot = self.buffer.tiers().get(tier)?;
        (slot.kind == TierKind::Dram).then(|| slot.tier.capacity_bytes())
    }

    /// Whether jobs have some of a tier's memory, or may have.
    pub fn lends(&self, tier: TierId) -> bool {
        if self.buffer.tiers().holder_of(tier).is_none() {
            return tier == DRAM && self.settings.lending.is_some();
        }
        let capacity = self.buffer.ledger().figures(tier).capacity_bytes;
        self.full_bytes_of_node(tier)
            .is_some_and(|full| capacity < full)
    }

    /// Has the memory tier's file system grow by so many bytes beyond what is held, and sets them
    /// aside by `hold`. Whether it could.
    pub(super) fn grow_memory(&self, more_bytes: u64, hold: impl FnOnce()) -> bool {
        let ledger = self.buffer.ledger();
        let wanted = || ledger.held_bytes(DRAM).saturating_add(more_bytes);
        let grown = self.buffer.tiers().grow_dram(wanted, hold);
        grown
            .inspect_err(|error| tracing::warn!("the memory tier cannot grow: {error}"))
            .is_ok()
    }

    /// `len` more bytes by a request for a file that a kernel writes, which is refused because
    /// memory is lent: it cannot go elsewhere. Whether it gets them.
    pub(super) fn hold_lent(
        &self,
        open: &OpenFile,
        len: u64,
        refused: Refused,
    ) -> Result<bool, Failure> {
        let is_room = matches!(refused, Refused::Tier { .. } | Refused::DirtyCap);
        let mut tiers = std::iter::once(DRAM).chain(self.buffer.tiers().ids());
        if !is_room || !tiers.any(|tier| self.lends(tier)) {
            return Ok(false);
        }
        let Target::Buffer { file, object, tier } = open.target.read().clone() else {
            return Ok(false);
        };
        let used = object.stat()?.allocated_bytes;
        let held = (used + len).max(open.lease_bytes.load(Ordering::Acquire));
        let ledger = self.buffer.ledger();
        let hold = || ledger.hold_beyond(file.object, tier, used, held);
        if self.buffer.tiers().kind(tier) == TierKind::Dram {
            let wish = len.next_multiple_of(SPACE_UNIT_BYTES);
            if self.lent_back(tier, wish) < len {
                return Ok(false);
            }
            if tier == DRAM {
                return Ok(self.grow_memory(wish, hold));
            }
            // The tmpfs of another node has its full size always.
            hold();
            return Ok(true);
        }
        // The cap on undrained data is lower by what is lent; its own tier has room.
        let spaces = ledger.spaces();
        let space = spaces.iter().find(|s| s.index == usize::from(tier.0));
        let has_room = space.is_some_and(|space| space.available_bytes() >= len);
        let is_by_cap = refused == Refused::DirtyCap && has_room;
        if is_by_cap {
            hold();
        }
        Ok(is_by_cap)
    }

    /// What the memory tier occupies, also what is not booked yet, bytes.
    pub fn in_memory_bytes(&self) -> u64 {
        let used = self.buffer.tiers().dram_used_bytes();
        used.unwrap_or_else(|| self.buffer.ledger().figures(DRAM).used_bytes)
    }

    /// What a memory tier has beyond its capacity, bytes.
    pub fn owed_bytes(&self, tier: TierId) -> u64 {
        let figures = self.buffer.ledger().figures(tier);
        let used = match tier {
            DRAM => self.in_memory_bytes(),
            _ => figures.used_bytes,
        };
        used.saturating_sub(figures.capacity_bytes)
    }

    /// Gives back what a memory tier has beyond its capacity, as far as it can go now.
    pub fn give_back(&self, tier: TierId) -> GivenBack {
        let mut given = GivenBack {
            dropped_bytes: self.drop_from_memory(tier),
            ..GivenBack::default()
        };
        if self.owed_bytes(tier) > 0 {
            given.moved_bytes = self.move_from_memory(tier);
        }
        if self.owed_bytes(tier) > 0 {
            let stays = self.what_stays(tier);
            if stays.could_drain {
                // Not before: what is being copied to the PFS does not move, and flash is nearer.
                // Nor for what a drain does not help: who is in a hurry keeps to no plan's rates.
                self.buffer.queue().hurry();
            }
            given.waits = stays.waits;
        }
        given
    }

    fn drop_from_memory(&self, tier: TierId) -> u64 {
        let owed = self.owed_bytes(tier);
        let mut dropped = 0;
        if owed > 0 && self.has_garbage() {
            self.collect_garbage_of(Some(self.server_with(tier)));
            dropped += owed.saturating_sub(self.owed_bytes(tier));
        }
        if self.owed_bytes(tier) > 0 {
            dropped += self.buffer.drop_restart_copies(tier, self.owed_bytes(tier));
        }
        let owed = self.owed_bytes(tier);
        if owed == 0 || self.buffer.ledger().figures(tier).other_files == 0 {
            return dropped;
        }
        let mut clean = self.clean_candidates(|state| state.residency.tier == tier);
        let policy = self.plan.engine().placement();
        let (shares, now_s) = (self.plan.size_shares(tier), self.catalog.apps().now_s());
        let victims = choose_victims_with(policy, &mut clean, owed, shares.as_ref(), now_s);
        dropped += self.drop_clean(victims.ids);
        self.collect_garbage_of(Some(self.server_with(tier)));
        dropped
    }

    fn move_from_memory(&self, tier: TierId) -> u64 {
        let mut moved = 0;
        // A look at all files: made again only when flash has changed by it.
        let mut clean = None;
        let mut group = Group::default();
        let is_over = |file: &File| self.base.is_ending() || self.is_wanted(file);
        let together = Together {
            is_over: &is_over,
            // Jobs wait for the memory.
            is_used: &|_| false,
        };
        let move_group = |group: Group| {
            let moved = self.move_together(group, &together);
            if !moved.is_empty() {
                failpoint::hit(failpoint::Point::LendMoved);
            }
            moved.iter().map(|(_, bytes)| bytes).sum::<u64>()
        };
        for id in self.in_memory_by_order(tier) {
            if self.owed_bytes(tier) <= group.bytes() || self.base.is_ending() {
                break;
            }
            let Some(file) = self.buffer.file(ObjectId(id)) else {
                continue;
            };
            if let Some((to, bytes)) = self.place_in_group(&file, tier) {
                if !group.takes(to, bytes) {
                    moved += move_group(std::mem::take(&mut group));
                }
                group.add(file, to, bytes);
                continue;
            }
            moved += move_group(std::mem::take(&mut group));
            match self.move_away(&file, tier, &mut clean) {
                Ok(Some(bytes)) => {
                    failpoint::hit(failpoint::Point::LendMoved);
                    moved += bytes;
                }
                Ok(None) => {}
                // Who wants the file goes first.
                Err(_) if self.is_wanted(&file) => {}
                Err(failure) => self.stays_in_memory(&file, &failure),
            }
        }
        moved + move_group(group)
    }

    /// Files in memory that no round can move, and whether a drain would help.
    fn what_stays(&self, tier: TierId) -> Stays {
        let mut stays = Stays::default();
        for file in self.buffer.files() {
            let (is_here, is_deleted, by_kernel, is_dirty) = {
                let state = file.lock();
                let residency = &state.residency;
                (
                    residency.tier == tier,
                    state.is_unlinked(),
                    residency.by_kernel,
                    state.is_dirty(),
                )
            };
            if !is_here {
                continue;
            }
            let open = self.buffer.opens().by_ino(file.ino);
            let is_passed = open.as_ref().is_some_and(|open| open.is_passthrough());
            if !(is_deleted || by_kernel || is_passed) {
                let is_written = open.as_ref().is_some_and(|open| open.is_written());
                stays.could_drain |= is_dirty && !is_written;
                continue;
            }
            let bytes = self.bytes_now(&file, open.as_deref());
            stays.waits.files += 1;
            stays.waits.bytes += bytes;
            stays.waits.largest.push(LendingFile {
                path: file.path(),
                bytes,
                deleted: is_deleted,
            });
        }
        let largest = &mut stays.waits.largest;
        largest.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        largest.truncate(LENDING_FILES_MAX);
        stays
    }

    /// What a file occupies: what it has grown to since it was opened is not booked yet.
    fn bytes_now(&self, file: &File, open: Option<&OpenFile>) -> u64 {
        // Who moves it looks at it, too.
        let target = open.and_then(|open| open.target.try_read());
        let stat = target.and_then(|target| target.object().stat().ok());
        let booked = || self.buffer.ledger().used_bytes(file.object);
        stat.map_or_else(booked, |stat| stat.allocated_bytes)
    }

    /// Files in memory, in the order in which they would be drained.
    fn in_memory_by_order(&self, tier: TierId) -> Vec<u64> {
        let is_here = |file: &Arc<File>| {
            let state = file.lock();
            let residency = &state.residency;
            let is_kernels = residency.by_kernel || state.is_unlinked();
            residency.tier == tier && !state.demoting && !is_kernels
        };
        let files: Vec<_> = self.buffer.files().into_iter().filter(is_here).collect();
        let mut candidates: Vec<_> = files
            .iter()
            .map(|file| {
                let bytes = self.buffer.ledger().used_bytes(file.object);
                let in_use = self.buffer.opens().is_open_now(file.ino);
                self.catalog.apps().candidate(file.object, bytes, in_use)
            })
            .collect();
        let now_s = self.catalog.apps().now_s();
        order_demotion(self.plan.engine().placement(), &mut candidates, now_s);
        if let Some(shares) = self.plan.size_shares(tier) {
            shares.keep(&mut candidates, self.owed_bytes(tier), |candidate| {
                candidate
            });
        }
        candidates.iter().map(|candidate| candidate.id).collect()
    }

    /// Answers with what has left. `None`: it stays, for it is in use in a way that does not allow
    /// it, or there is no room.
    fn move_away(
        &self,
        file: &Arc<File>,
        from: TierId,
        clean: &mut Option<HashMap<usize, u64>>,
    ) -> Result<Option<u64>, Failure> {
        let open = self.buffer.opens().by_ino(file.ino);
        // What it has grown to since it was opened is not booked yet.
        let bytes = match &open {
            Some(open) => open.target.read().object().stat()?.allocated_bytes,
            None => self.buffer.ledger().used_bytes(file.object),
        };
        let server = self.server_with(from);
        let evict = || {
            let clean = clean.get_or_insert_with(|| self.clean_by_tier());
            self.flash_with_clean(server, bytes, clean)
        };
        let with_room = self.flash_of(server, bytes);
        let must_evict = with_room.is_none();
        let here = with_room.or_else(evict);
        let Some(to) = here.or_else(|| self.place_elsewhere(file, from, bytes)) else {
            if file.lock().is_dirty() {
                self.buffer.queue().urge(file.object);
            }
            return Ok(None);
        };
        let moved = self.move_watched((file, open.as_ref()), to, &|| self.is_wanted(file));
        if must_evict {
            *clean = None;
        }
        Ok(moved?.then_some(bytes))
    }

    /// Moves one file from memory, which may be open, until it `is_over` for it. What it writes
    /// does not stay in the page cache. Whether it has moved.
    pub(super) fn move_watched(
        &self,
        (file, open): (&Arc<File>, Option<&Arc<OpenFile>>),
        to: TierId,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, Failure> {
        let done_bytes = AtomicU64::new(0);
        let stop = || self.base.is_ending() || is_over();
        let control = CopyControl {
            stop: &stop,
            moved: &|bytes, _| {
                let before = done_bytes.fetch_add(bytes, Ordering::Relaxed);
                if before / CACHED_BYTES != (before + bytes) / CACHED_BYTES {
                    self.uncache(file, to);
                }
            },
        };
        let moved = match open {
            Some(open) => {
                let leaving = Leaving {
                    file,
                    open,
                    to,
                    ahead_bytes: 0,
                };
                self.move_open_to_node(leaving, &control)?
            }
            None => self.move_to_node(file, to, &control)?,
        };
        if moved {
            self.uncache(file, to);
        }
        Ok(moved)
    }

    /// Whether somebody waits for a move of a file to end.
    pub(super) fn is_wanted(&self, file: &File) -> bool {
        let open = self.buffer.opens().by_ino(file.ino);
        file.is_copy_wanted() || open.is_some_and(|open| open.unsent.is_wanted())
    }

    /// Flash of a node whose clean copies, by tier, make room.
    fn flash_with_clean(
        &self,
        server: u16,
        bytes: u64,
        clean: &HashMap<usize, u64>,
    ) -> Option<TierId> {
        let mut spaces = self.buffer.spaces();
        spaces.retain(|space| {
            let slot = self.buffer.tiers().get(TierId(space.index as u8));
            slot.is_some_and(|slot| slot.server == server)
        });
        let clean_bytes = |index| clean.get(&index).copied().unwrap_or(0);
        let index = flash_with_clean(&spaces, clean_bytes, bytes)?;
        Some(TierId(index as u8))
    }

    /// What could be evicted, by the index of the tier, bytes.
    fn clean_by_tier(&self) -> HashMap<usize, u64> {
        let copies = self.buffer.ledger().restart_copies();
        let copies = copies
            .into_iter()
            .map(|(tier, bytes)| (usize::from(tier.0), bytes));
        let mut clean: HashMap<usize, u64> = copies.collect();
        let tiers = self.buffer.tiers();
        let is_on_flash = |tier| tiers.kind(tier) == TierKind::Ssd;
        for candidate in self.clean_candidates(|state| is_on_flash(state.residency.tier)) {
            let object = ObjectId(candidate.candidate().id);
            if let Some(file) = self.buffer.file(object) {
                let bytes = self.buffer.ledger().used_bytes(object);
                *clean.entry(usize::from(file.tier().0)).or_default() += bytes;
            }
        }
        clean
    }

    /// What a move has written so far does not stay in the page cache: that is memory, too.
    fn uncache(&self, file: &File, tier: TierId) {
        if self.buffer.tiers().kind(tier) == TierKind::Dram {
            return;
        }
        // By a descriptor of its own: an error is told to whoever flushes the copy.
        let object = self.buffer.tiers().open_object(tier, file.object);
        let dropped = object.and_then(|object| {
            object.sync(true)?;
            object.drop_cache()
        });
        if let Err(error) = dropped
            && Errno::of(&error) != Errno::ENOENT
        {
            tracing::debug!("object {} stays in the page cache: {error}", file.object);
        }
    }
}
