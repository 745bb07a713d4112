//! Space: choosing a tier, making room in it, moving a file that has outgrown it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::{File, FileState};
use forebay_policy::demotion::{
    CleanCandidate, Residency as PolicyResidency, choose_victims_with, evict_needed,
};
use forebay_policy::handover::MOVES_MAX;
use forebay_policy::limits::Beyond;
use forebay_policy::placement::{
    NewFile, Placement, TierSpace, choose_tier, growth_ahead, waiting_tier,
};
use forebay_policy::series::Identity;
use forebay_policy::spill::tier_to_grow_in;
use forebay_policy::victims::{Incoming, is_direct};
use forebay_tiers::TierKind;
use forebay_types::{Errno, Ino, ObjectId, TierId, limits::SPACE_UNIT_BYTES};

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::home::Origin;
use crate::files::mover::Move;
use crate::files::{Files, MAKING_SPACE};

/// A writer that waits for space looks again after this long even if nobody woke it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What came of asking for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Granted.
    Yes,
    /// Not now, and the caller did not want to wait.
    WouldWait,
}

/// Whether a limit of a user or group refuses it.
fn is_of_limit(refused: Refused) -> bool {
    matches!(refused, Refused::Limit { .. })
}

/// Whether who is refused is not to wait.
fn goes_at_once(refused: Refused) -> bool {
    matches!(refused, Refused::Limit { excess, .. } if excess.beyond == Beyond::Direct)
}

impl Files {
    /// The tier with room for a file, made by eviction where that is enough.
    pub fn find_room(&self, origin: Origin, file: &NewFile) -> Option<TierId> {
        for _ in 0..2 {
            let spaces = self.spaces_for(origin, file);
            match choose_tier(&spaces, file) {
                Placement::Tier(index) => return Some(TierId(index as u8)),
                Placement::Pfs => return None,
                Placement::Wait => {
                    let wanted = file.predicted_bytes.unwrap_or(SPACE_UNIT_BYTES);
                    if !self.evict_in(&spaces, wanted) {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// The tier with room for a file for which nothing leaves.
    pub fn free_room(&self, origin: Origin, file: &NewFile) -> Option<TierId> {
        match choose_tier(&self.spaces_for(origin, file), file) {
            Placement::Tier(index) => Some(TierId(index as u8)),
            Placement::Pfs | Placement::Wait => None,
        }
    }

    /// The tier for a new file. Where none has room, but demotion will make some, it is created in
    /// a tier all the same and its writes wait there ([`Files::admit`]); else the overflow.
    pub fn place_new(&self, origin: Origin, file: &NewFile) -> Result<TierId, Failure> {
        if let Some(tier) = self.find_room(origin, file) {
            return Ok(tier);
        }
        self.buffer.queue().hurry();
        let frees = self.drain.can_drain_for(Ino::ROOT) || self.has_garbage();
        let waits = !self.settings.wait_for_space.is_zero() && frees;
        match waiting_tier(&self.spaces_for(origin, file), file) {
            Some(index) if waits => Ok(TierId(index as u8)),
            // What was on its way to the PFS at the first look has arrived there, perhaps.
            _ => match self.find_room(origin, file) {
                Some(tier) => Ok(tier),
                None => self.overflow(),
            },
        }
    }

    /// The overflow, which is on the PFS.
    pub(super) fn overflow(&self) -> Result<TierId, Failure> {
        self.base.health().pass()?;
        Ok(self.buffer.tiers().need_overflow(self.ns.pfs())?)
    }

    /// The tier for a new file of an application. The file goes straight to the PFS where its
    /// application has no share, or where the burst buffer would have to make room and the file is
    /// colder than what is there.
    pub fn place_checkpoint(
        &self,
        identity: &Identity,
        origin: Origin,
        file: &NewFile,
    ) -> Result<TierId, Failure> {
        let bytes = file.predicted_bytes.unwrap_or(SPACE_UNIT_BYTES);
        if !self.plan.has_share(&identity.application, bytes) {
            return Ok(self.buffer.tiers().need_overflow(self.ns.pfs())?);
        }
        if self.settings.engine.direct && identity.version.is_some() && !self.buffer.has_room(bytes)
        {
            let (incoming, residents) = self.catalog.apps().compare(identity);
            let incoming = Incoming {
                must_make_room: true,
                ..incoming
            };
            if is_direct(true, self.plan.engine().placement(), &incoming, residents) {
                self.base
                    .counters()
                    .direct_files
                    .fetch_add(1, Ordering::Relaxed);
                return Ok(self.buffer.tiers().need_overflow(self.ns.pfs())?);
            }
        }
        self.place_new(origin, file)
    }

    /// Evicts clean copies from whichever of these tiers has some; whether anything was freed.
    pub(super) fn evict_in(&self, spaces: &[TierSpace], wanted_bytes: u64) -> bool {
        let tiers = spaces.iter().map(|space| TierId(space.index as u8));
        let mut freed = tiers.map(|tier| self.make_space(tier, wanted_bytes));
        freed.any(|bytes| bytes > 0)
    }

    /// Removes what has no name any more, then evicts clean copies from a tier until `wanted_bytes`
    /// are free there, or no more can go. Answers with what was freed.
    pub fn make_space(&self, tier: TierId, wanted_bytes: u64) -> u64 {
        if self.buffer.tiers().is_out_of_reach(tier) {
            return 0;
        }
        let server = self.buffer.tiers().get(tier).map_or(0, |slot| slot.server);
        let _one = self.making_space[usize::from(server) % MAKING_SPACE].lock();
        let before = self.buffer.ledger().held_bytes(tier);
        if self.has_garbage() {
            self.collect_garbage_of(Some(server));
        }
        let collected = before.saturating_sub(self.buffer.ledger().held_bytes(tier));
        let spaces = self.buffer.ledger().spaces();
        let Some(space) = spaces.iter().find(|s| s.index == tier.0 as usize) else {
            return 0;
        };
        let needed = evict_needed(space, wanted_bytes);
        if needed == 0 {
            return collected;
        }
        if self.buffer.ledger().figures(tier).other_files == 0 {
            // Nothing is clean: a look at all files would find none.
            return collected;
        }
        // They promise nothing, and go before anything else does.
        let copies = self.buffer.drop_restart_copies(tier, needed);
        let mut freed = collected + copies;
        let needed = needed.saturating_sub(copies);
        if needed == 0 {
            return freed;
        }
        let mut clean = self.clean_candidates(|state| state.residency.tier == tier);
        let policy = self.plan.engine().placement();
        let (shares, now_s) = (self.plan.size_shares(tier), self.catalog.apps().now_s());
        let victims = choose_victims_with(policy, &mut clean, needed, shares.as_ref(), now_s);
        freed += self.drop_clean(victims.ids);
        self.collect_garbage_of(Some(server));
        freed
    }

    /// Drops clean copies. Answers with what was freed.
    pub(super) fn drop_clean(&self, ids: Vec<u64>) -> u64 {
        let mut freed = 0;
        for id in ids {
            if let Some(file) = self.buffer.file(ObjectId(id)) {
                let handed = self.buffer.leave_to_restart_copy(&file);
                freed += handed.or_else(|| self.buffer.evict(&file)).unwrap_or(0);
            }
        }
        freed
    }

    pub(super) fn clean_candidates(
        &self,
        is_meant: impl Fn(&FileState) -> bool,
    ) -> Vec<CleanCandidate> {
        let files: Vec<Arc<File>> = self.buffer.files();
        let reserved = self.plan.share_owners();
        let is_reserved = |file: &File| {
            let of = self.catalog.apps().of(file.object);
            of.is_some_and(|(number, _)| reserved.contains(&number.into()))
        };
        let mut clean = Vec::new();
        for file in files {
            if !reserved.is_empty() && is_reserved(&file) {
                continue;
            }
            let eligible = {
                let state = file.lock();
                let r = &state.residency;
                let stays = state.demoting || state.is_unlinked();
                r.clean && !r.writing && !stays && is_meant(&state)
            };
            if eligible && !self.buffer.opens().is_open_now(file.ino) {
                let bytes = self.buffer.ledger().used_bytes(file.object);
                let candidate = self.catalog.apps().candidate(file.object, bytes, false);
                clean.extend(CleanCandidate::new(candidate, PolicyResidency::Clean));
            }
        }
        clean
    }

    /// Admits `len` more bytes to a file that is written by requests. Waits for space if it may;
    /// a file that no tier has room for goes on in the overflow.
    pub fn admit(&self, open: &OpenFile, len: u64, may_wait: bool) -> Result<Room, Failure> {
        if open.budget_bytes.fetch_sub(len as i64, Ordering::AcqRel) >= len as i64 {
            return Ok(Room::Yes);
        }
        let wanted = open.unsent.want();
        let _growing = open.growing.lock();
        drop(wanted);
        let started = Instant::now();
        let mut counted = false;
        // Asked before each try but the first: what frees the last space may do so just after one.
        let mut hopes = true;
        let mut moves = 0;
        loop {
            match self.grow(open, len)? {
                None => {
                    if counted {
                        let waited = started.elapsed();
                        self.base.counters().note_space_wait(waited);
                        if let Target::Buffer { file, .. } = &*open.target.read() {
                            self.catalog.history().stalled(file.object, waited);
                        }
                    }
                    return Ok(Room::Yes);
                }
                Some(_) if !may_wait => return Ok(Room::WouldWait),
                Some(Refused::Tier { .. })
                    if moves < MOVES_MAX && self.goes_on_elsewhere(open, len) =>
                {
                    moves += 1;
                }
                Some(refused) => {
                    if !counted {
                        counted = true;
                        self.base
                            .counters()
                            .waited_writes
                            .fetch_add(1, Ordering::Relaxed);
                    }
                    let waited = started.elapsed();
                    let hopeless = !hopes || goes_at_once(refused);
                    if waited >= self.settings.wait_for_space || hopeless || self.base.is_ending() {
                        if open.is_passthrough() {
                            if self.hold_beyond_limit(open, len, refused)?
                                || self.hold_lent(open, len, refused)?
                            {
                                return Ok(Room::Yes);
                            }
                            // The kernel goes on writing where it is.
                            return Err(Errno::ENOSPC.into());
                        }
                        self.move_on(open, len, refused)?;
                        continue;
                    }
                    hopes = self.may_get_room(open, refused) || self.has_garbage();
                    if hopes {
                        match refused {
                            Refused::Limit { owner, excess } => {
                                self.drain.urge_of(owner, excess.missing_bytes.max(len));
                            }
                            _ => self.buffer.queue().hurry(),
                        }
                        self.buffer.wake_collector();
                        self.buffer.ledger().wait_freed(LOOK_AGAIN);
                    }
                }
            }
        }
    }

    /// Asks the ledger for room for `len` more bytes; `Some` says why there is none.
    fn grow(&self, open: &OpenFile, len: u64) -> Result<Option<Refused>, Failure> {
        let (file, object, tier) = match &*open.target.read() {
            Target::Buffer { file, object, tier } => (file.clone(), object.clone(), *tier),
            Target::Pfs { .. } => {
                open.budget_bytes.store(i64::MAX / 2, Ordering::Release);
                return Ok(None);
            }
        };
        let used = object.stat()?.allocated_bytes;
        let mut last = Refused::DirtyCap;
        if self.buffer.tiers().kind(tier) != TierKind::Pfs
            && !self.plan.fits_share(file.object, len)
        {
            return Ok(Some(last));
        }
        let hold = |held, ahead: u64| {
            // It may be on its way to another node, and room is granted where it is.
            let target = open.target.read();
            if !matches!(&*target, Target::Buffer { tier: now, .. } if *now == tier) {
                return Err(None);
            }
            let ledger = self.buffer.ledger();
            ledger
                .try_hold(file.object, tier, used, held, true)
                .map_err(Some)?;
            open.budget_bytes.store(ahead as i64, Ordering::Release);
            Ok(())
        };
        let predicted = open.predicted_bytes.load(Ordering::Acquire);
        // Near the limit a full unit may be too much where the bytes themselves still fit.
        for ahead in [growth_ahead(predicted, used + len), 0] {
            let held = (used + len + ahead).max(open.lease_bytes.load(Ordering::Acquire));
            match hold(held, ahead) {
                Ok(()) => return Ok(None),
                // It is asked for where the file is now.
                Err(None) => return self.grow(open, len),
                Err(Some(Refused::Gone)) => return Err(Errno::ESTALE.into()),
                Err(Some(refused)) => last = refused,
            }
            if ahead == 0 && self.make_space_for(tier, last, len) > 0 {
                match hold(held, 0) {
                    Ok(()) => return Ok(None),
                    // Of what it was freed for, there is enough now, perhaps.
                    Err(Some(refused)) if is_of_limit(last) || is_of_limit(refused) => {
                        last = refused;
                    }
                    Err(_) => {}
                }
            }
        }
        open.budget_bytes.store(0, Ordering::Release);
        Ok(Some(last))
    }

    /// The file system below the file's tier is full, whatever the books say.
    pub fn relocate(&self, open: &OpenFile, len: u64) -> Result<(), Failure> {
        let wanted = open.unsent.want();
        let _growing = open.growing.lock();
        drop(wanted);
        open.budget_bytes.store(0, Ordering::Release);
        self.buffer.queue().hurry();
        self.move_on(open, len, Refused::Tier { missing_bytes: len })
    }

    /// The file's tier has no room for it: it moves to another tier that has, or to the overflow.
    fn move_on(&self, open: &OpenFile, len: u64, refused: Refused) -> Result<(), Failure> {
        let to = |file: &File, tier, size| match refused {
            Refused::DirtyCap | Refused::Limit { .. } | Refused::Gone => {
                Ok(self.buffer.tiers().need_overflow(self.ns.pfs())?)
            }
            Refused::Tier { .. } => self.other_tier(file, tier, size + len),
        };
        self.move_here(open, to)
    }

    /// The file goes on in another tier, which is chosen by the one that it is in, and its size.
    /// Requests wait meanwhile.
    pub(super) fn move_here(
        &self,
        open: &OpenFile,
        choose: impl FnOnce(&File, TierId, u64) -> Result<TierId, Failure>,
    ) -> Result<(), Failure> {
        let Target::Buffer { file, .. } = open.target.read().clone() else {
            return Ok(());
        };
        // First: who has this may wait for a claim, and who has that for the target.
        let _copying = file.copying();
        let mut target = open.target.write();
        self.take_back(open, &mut target)?;
        let Target::Buffer { file, object, tier } = &*target else {
            return Ok(());
        };
        let to = choose(file, *tier, object.stat()?.size)?;
        let (file, object) = (file.clone(), object.clone());
        let wanted = Move {
            file: &file,
            source: &*object,
            to,
            // Requests wait for the target.
            generation: None,
            is_exclusive: true,
        };
        let moved = self.move_object(
            &wanted,
            || Some(()),
            |object| {
                let file = file.clone();
                let now = Target::Buffer {
                    file,
                    object,
                    tier: to,
                };
                open.put(&mut target, now);
                drop(target);
            },
        )?;
        // Attributes have changed in the moment of the commit.
        Ok(moved.map(drop).ok_or(Errno::EAGAIN)?)
    }

    fn other_tier(&self, file: &File, from: TierId, bytes: u64) -> Result<TierId, Failure> {
        let find = |spaces: &[_]| tier_to_grow_in(spaces, from.0 as usize, bytes);
        match self.find_near(file, from, find) {
            Some(index) => Ok(TierId(index as u8)),
            None => self.overflow(),
        }
    }
}
