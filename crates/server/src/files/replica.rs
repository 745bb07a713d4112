//! The level `replica`: an undrained file has a second copy on another server, which takes the
//! file's place if the server of the file goes.
//!
//! Invariants:
//!
//! 1. An fsync returns once the second copy has what was written before, flushed, and the record
//!    names it; or once the PFS has it.
//! 2. A second copy is brought up to date in its place, piece by piece: at each moment it has what
//!    was promised last.
//! 3. The copy that a record names goes only after a record that does not name it is on stable
//!    storage.
//! 4. Which object is the file says the record alone. A promotion is one commit, which also says
//!    what is left where the file was (`Namespace::promote`).

use std::sync::Arc;
use std::time::Duration;

use forebay_namespace::File;
use forebay_policy::durability::Durability;
use forebay_policy::emptying::is_waited_for;
use forebay_policy::holders::{HolderId, Home, Wanted};
use forebay_policy::replicas::{Away, Fate, fate, second_holder};
use forebay_policy::spill::{flash_with_room, largest_flash};
use forebay_tiers::{CopyControl, CopyError, Object, TierKind, copy, refresh, refresh_ranges};
use forebay_types::{Errno, Generation, SetTime, TierId, failpoint};

use crate::base::failure::Failure;
use crate::buffer::ledger::Refused;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::buffer::unsent::Lacking;
use crate::files::Files;
use crate::files::fsync::{Flush, has_no_room};
use crate::files::mover::refuse_primary;

/// Who waits for a file that a thread uses waits so long: that thread may wait for the very node.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// An object and its tier.
type InTier = (Arc<dyn Object>, TierId);

/// What came of making a second copy.
pub(super) enum Second {
    /// It is there. A copy in another place is of no use once the record says so.
    There { outdated: Option<TierId> },
    /// No other server has room for one now.
    NoPlace,
}

/// What became of a file whose node is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// It waits for its node.
    None,
    /// It is in use just now, and is to be tried again.
    Busy,
    /// Its second copy is the file.
    Done,
}

impl Files {
    /// Whether two tiers are of different servers.
    pub(super) fn is_second(&self, tier: TierId, of: TierId) -> bool {
        let server = |tier| self.buffer.tiers().get(tier).map(|slot| slot.server);
        tier != of && server(tier) != server(of)
    }

    /// The second copy of a file, where it is on another server that answers.
    pub fn second_of(&self, file: &File) -> Option<(TierId, Generation)> {
        let residency = file.lock().residency;
        let second = residency.shadow?;
        let is_there = !self.buffer.tiers().is_out_of_reach(second.0);
        (is_there && self.is_second(second.0, residency.tier)).then_some(second)
    }

    /// Whether a second copy of a file stays one where the file moves to another tier.
    pub fn keeps_second(&self, file: &File, to: TierId) -> bool {
        let shadow = file.lock().residency.shadow;
        let is_one = shadow.is_some_and(|(tier, _)| self.is_second(tier, to));
        is_one
            && self.buffer.tiers().kind(to) != TierKind::Pfs
            && self.catalog.durability_of_file(file) == Durability::Replica
    }

    /// Whether a file that is moved to a tier would have both copies that were promised on one
    /// node.
    pub(super) fn is_beside_its_second(&self, file: &File, to: TierId) -> bool {
        let (residency, is_dirty) = {
            let state = file.lock();
            (state.residency, state.is_dirty())
        };
        let is_two = |second| self.is_second(second, residency.tier);
        let second = residency.shadow.map(|(second, _)| second);
        second.is_some_and(|second| is_two(second) && !self.is_second(second, to))
            && is_dirty
            && self.catalog.durability_of_file(file) == Durability::Replica
    }

    /// What an fsync at the level `replica` does.
    pub(super) fn flush_to_replica(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        flush: Flush,
        data_only: bool,
    ) -> Result<(), Failure> {
        let ((object, tier), outdated) = self.flush_to_two(open, file, data_only)?;
        let promised = self.promise(open, file, (&*object, tier), flush);
        let errno = promised.as_ref().err().map(Failure::errno);
        // The record of a move names it no more, either, unless it has become the file.
        if outdated.is_some() && errno.is_none_or(|errno| errno == Errno::EBUSY) {
            let _copying = file.copying();
            let residency = file.lock().residency;
            let known = [Some(residency.tier), residency.shadow.map(|(tier, _)| tier)];
            self.drop_outdated_second(file, outdated.filter(|_| !known.contains(&outdated)));
        }
        promised
    }

    /// The same before the record says so. Answers with the object, and with a copy that is of no
    /// use after that.
    fn flush_to_two(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        data_only: bool,
    ) -> Result<(InTier, Option<TierId>), Failure> {
        let wanted = open.unsent.want();
        let _one = open.growing.lock();
        let _copying = file.copying();
        drop(wanted);
        // It may have moved while this waited: what it was then is no source any more.
        let Target::Buffer { object, tier, .. } = self.target(open)?.clone() else {
            return Err(Errno::EIO.into());
        };
        if self.buffer.tiers().kind(tier) != TierKind::Dram {
            self.integrity.flush(file, tier, &*object, data_only)?;
        }
        if self.buffer.tiers().kind(tier) == TierKind::Pfs {
            // It has outgrown the servers, and is on the PFS.
            self.demote_and_wait(file)?;
            return Ok(((object, tier), None));
        }
        let lacking = open.unsent.take();
        // Of what a kernel has written by itself, before or after the last close, nobody knows.
        let is_unseen = open.is_passthrough();
        let known = Lacking {
            all: lacking.all || is_unseen,
            ..lacking.clone()
        };
        let second = self.second_copy(file, &object, &known, &CopyControl::NONE);
        match second {
            Ok(Second::There { outdated }) => {
                open.unsent.made();
                Ok(((object, tier), outdated))
            }
            Ok(Second::NoPlace) => {
                open.unsent.put_back(lacking);
                tracing::debug!(
                    "{}: fsync goes to the PFS: no other server has room",
                    file.path().escape_ascii()
                );
                let flush = self.begin_flush(file, &*object)?;
                self.flush_to_pfs(open, file, (&*object, tier), flush)?;
                // What the copy lacks is promised by the PFS now.
                open.unsent.begin_anew();
                Ok(((object, tier), None))
            }
            Err(failure) => {
                open.unsent.put_back(lacking);
                Err(failure)
            }
        }
    }

    /// Makes a second copy, or brings it up to date; the caller keeps the file from being moved or
    /// copied meanwhile, and puts it on record. `lacking`: what the copy on record lacks.
    pub(super) fn second_copy(
        &self,
        file: &Arc<File>,
        object: &Arc<dyn Object>,
        lacking: &Lacking,
        control: &CopyControl<'_>,
    ) -> Result<Second, Failure> {
        let (tier, known, generation, is_gone) = {
            let state = file.lock();
            let residency = &state.residency;
            let is_gone = state.is_unlinked() && state.unnamed.is_none();
            (
                residency.tier,
                residency.shadow,
                residency.generation,
                is_gone,
            )
        };
        if is_gone {
            // Nobody can ask for it after a crash.
            return Ok(Second::There { outdated: None });
        }
        let outdated = |place| known.map(|(tier, _)| tier).filter(|tier| *tier != place);
        let in_place = known.filter(|(second, _)| {
            self.is_second(*second, tier) && !self.buffer.tiers().is_out_of_reach(*second)
        });
        let bytes = object.stat()?.allocated_bytes;
        // It leaves a node that is emptied, where another one takes it.
        let leaves = |place: TierId| self.buffer.is_closed(place) && is_waited_for(bytes);
        let leaving = in_place.filter(|(place, _)| leaves(*place));
        let mut tried = Vec::new();
        if let Some((place, copied)) = in_place.filter(|_| leaving.is_none()) {
            match self.bring_up_to_date(file, object, (place, copied), lacking, control)? {
                true => return Ok(Second::There { outdated: None }),
                false => tried.push(self.server_of_tier(place)),
            }
        }
        let everything = Lacking {
            all: true,
            ..lacking.clone()
        };
        while let Some(place) = self.place_of_second(file, tier, bytes, &tried) {
            match self.try_copy_to(file, &**object, place, &everything, control) {
                Ok(true) => {
                    file.lock().note_shadow(place, generation);
                    return Ok(Second::There {
                        outdated: outdated(place),
                    });
                }
                Ok(false) => {}
                // Where the copy is now it may still be brought up to date.
                Err(failure) if leaving.is_some() => {
                    failure.told("make a second copy elsewhere");
                }
                Err(failure) => return Err(failure),
            }
            tried.push(self.server_of_tier(place));
        }
        if let Some(known) = leaving
            && self.bring_up_to_date(file, object, known, lacking, control)?
        {
            return Ok(Second::There { outdated: None });
        }
        Ok(Second::NoPlace)
    }

    /// A second copy that is there, of this generation; `false`: it has no room any more, or has
    /// gone.
    fn bring_up_to_date(
        &self,
        file: &Arc<File>,
        object: &Arc<dyn Object>,
        (place, copied): (TierId, Generation),
        lacking: &Lacking,
        control: &CopyControl<'_>,
    ) -> Result<bool, Failure> {
        let generation = file.lock().generation();
        let is_there = || self.buffer.tiers().open_object(place, file.object).is_ok();
        if copied == generation && lacking.is_nothing() && is_there() {
            return Ok(true);
        }
        let is_made = self.try_copy_to(file, &**object, place, lacking, control)?;
        if is_made {
            file.lock().note_shadow(place, generation);
        }
        Ok(is_made)
    }

    pub(super) fn server_of_tier(&self, tier: TierId) -> u16 {
        self.buffer.tiers().get(tier).map_or(0, |slot| slot.server)
    }

    /// Copies there; `false`: it has no room, or has gone. What was there is charged as before.
    fn try_copy_to(
        &self,
        file: &Arc<File>,
        object: &dyn Object,
        place: TierId,
        lacking: &Lacking,
        control: &CopyControl<'_>,
    ) -> Result<bool, Failure> {
        let tiers = self.buffer.tiers();
        let bytes = object.stat()?.allocated_bytes;
        let known = file.lock().residency.shadow.map(|(tier, _)| tier);
        let held = self.buffer.ledger().shadow_bytes(file.object);
        if !self.hold_second(file, place, bytes) {
            return Ok(false);
        }
        let Err(failure) = self.copy_second(file, object, place, lacking, control) else {
            return Ok(true);
        };
        // What is on record is what is charged.
        match known {
            Some(known) => self.buffer.ledger().found_shadow(file.object, known, held),
            None => self.buffer.ledger().release_shadow(file.object),
        }
        if known != Some(place) {
            self.buffer.remove_left_behind(file, place);
        }
        let is_its = tiers.is_out_of_reach(place) && !tiers.is_out_of_reach(file.tier());
        match is_its || has_no_room(failure.errno()) {
            true => {
                let name = tiers.called(place);
                tracing::warn!(
                    "{}: no second copy in {name}: {failure}",
                    file.path().escape_ascii()
                );
                Ok(false)
            }
            false => Err(failure),
        }
    }

    pub(super) fn hold_second(&self, file: &File, place: TierId, bytes: u64) -> bool {
        let hold = || (self.buffer.ledger()).try_hold_shadow(file.object, place, bytes);
        match hold() {
            Ok(()) => true,
            Err(Refused::Tier { missing_bytes }) => {
                self.make_space(place, missing_bytes);
                hold().is_ok()
            }
            Err(Refused::DirtyCap | Refused::Limit { .. } | Refused::Gone) => false,
        }
    }

    /// The flash of another server, in another rack if one has room; none of those that were tried.
    fn place_of_second(
        &self,
        file: &File,
        primary: TierId,
        bytes: u64,
        tried: &[u16],
    ) -> Option<TierId> {
        let wanted = Wanted {
            object: file.object.0,
            expected_bytes: Some(bytes),
            may_be_in_memory: false,
            rule: self.catalog.holder_rule_of_file(file),
        };
        let spaces = self.buffer.spaces();
        let mut holders = self.holders(&spaces);
        holders.retain(|holder| !tried.contains(&holder.id.0));
        let primary = HolderId(self.server_of_tier(primary));
        let Home::On { holder, .. } = second_holder(primary, &holders, &wanted)? else {
            return None;
        };
        let there = spaces
            .into_iter()
            .filter(|space| self.server_of(space) == holder);
        let there: Vec<_> = there.collect();
        // What is clean there makes room.
        let largest = || largest_flash(&there).map(|space| space.index);
        let index = flash_with_room(&there, bytes).or_else(largest)?;
        Some(TierId(index as u8))
    }

    /// Copies an object as it is now, flushed, beside the primary.
    fn copy_second(
        &self,
        file: &Arc<File>,
        object: &dyn Object,
        place: TierId,
        lacking: &Lacking,
        control: &CopyControl<'_>,
    ) -> Result<(), Failure> {
        let slot = self.buffer.tiers().get(place).ok_or(Errno::ENODEV)?;
        refuse_primary(file, place)?;
        let identity = self.buffer.identity(file, true);
        let (second, is_new) = match slot.tier.create(file.object, &identity) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                let second = slot.tier.open(file.object)?;
                if file.lock().residency.shadow.map(|(tier, _)| tier) != Some(place) {
                    // It may have been the file once.
                    second.set_identity(&identity)?;
                }
                (second, false)
            }
            made => (made?, true),
        };
        failpoint::hit(failpoint::Point::ShadowObject);
        let copied = match (is_new, lacking.all) {
            (true, _) => copy(object, &*second, control).map(drop),
            (false, true) => refresh(object, &*second, control).map(drop),
            (false, false) => refresh_ranges(object, &*second, &lacking.ranges, control).map(drop),
        };
        copied.map_err(|error: CopyError| Failure::from(error))?;
        failpoint::hit(failpoint::Point::ShadowCopied);
        let stat = object.stat()?;
        let at = SetTime::At;
        second.set_times(Some(at(stat.atime)), Some(at(stat.mtime)))?;
        second.sync(false)?;
        slot.tier.sync_all()?;
        failpoint::hit(failpoint::Point::ShadowFlushed);
        Ok(())
    }

    /// A copy that the record on stable storage names no more.
    pub(super) fn drop_outdated_second(&self, file: &File, outdated: Option<TierId>) {
        if let Some(tier) = outdated {
            self.buffer.remove_left_behind(file, tier);
        }
    }
}

/// Files whose node is away.
impl Files {
    /// If its node is away and its second copy has all that was promised, that is the file from now
    /// on. Who has it open goes on with it; where something may be lost that was written since the
    /// last fsync, who has it open for writing is told so by the next fsync.
    pub fn promote(&self, file: &Arc<File>) -> Result<Promotion, Failure> {
        let Some(_copying) = file.try_copying() else {
            return Ok(Promotion::Busy);
        };
        let Some(claim) = self.buffer.opens().claim_within(file.ino, PATIENCE) else {
            return Ok(Promotion::Busy);
        };
        let open = claim.open();
        let unseen = is_a_kernels(open.as_deref(), file);
        if unseen && !self.has_no_mount(self.server_of_tier(file.tier())) {
            return Ok(Promotion::None);
        }
        let mut held = match &open {
            None => None,
            Some(open) => match open.target.try_write_for(PATIENCE) {
                Some(target) => Some((open, target)),
                None => return Ok(Promotion::Busy),
            },
        };
        let (from, seen, second) = {
            let state = file.lock();
            let residency = &state.residency;
            (residency.tier, residency.generation, residency.shadow)
        };
        let Some((to, copied)) = second else {
            return Ok(Promotion::None);
        };
        if self.catalog.durability_of_file(file) != Durability::Replica {
            // It was promised no more than its server keeps, and loses nothing by waiting.
            return Ok(Promotion::None);
        }
        let tiers = self.buffer.tiers();
        if !tiers.is_out_of_reach(from) || tiers.is_out_of_reach(to) {
            return Ok(Promotion::None);
        }
        let written = open.as_ref().is_some_and(|open| open.is_written());
        let lacks = lacks_in_copy(open.as_deref(), file, unseen);
        let Fate::Promoted { loses } = fate(&away(file, copied, lacks)) else {
            return Ok(Promotion::None);
        };
        let object = tiers.open_to_write(to, file.object)?;
        let stat = object.stat()?;
        if !self.ns.promote(file, seen, (to, &stat), (written, loses))? {
            return Ok(Promotion::Busy);
        }
        if let Some((open, target)) = &mut held {
            if loses {
                self.buffer.opens().lose(open);
            }
            let (file, object) = (file.clone(), object.clone());
            let tier = to;
            goes_on_in(open, target, Target::Buffer { file, object, tier });
        }
        if loses && held.is_none() {
            // Who comes back with it, or opens it, is told.
            self.buffer.opens().lost.add(file.object);
        }
        drop((held, claim));
        self.settle_promoted(file, (from, to), &*object, stat.allocated_bytes, loses);
        Ok(Promotion::Done)
    }

    /// Books, identity and reports follow the record.
    fn settle_promoted(
        &self,
        file: &Arc<File>,
        (from, to): (TierId, TierId),
        object: &dyn Object,
        allocated_bytes: u64,
        loses: bool,
    ) {
        self.buffer.unflushed().let_go(file.object);
        self.buffer.book(file, allocated_bytes);
        self.buffer.ledger().release_shadow(file.object);
        self.buffer.queue().add(file.object);
        let identity = self.buffer.identity(file, false);
        if let Err(error) = object.set_identity(&identity) {
            // The record says it; the identity is for who has no records.
            tracing::warn!("object {}: {error}", file.object);
        }
        self.told_promoted(file, (from, to), loses);
        if loses && let Some(recall) = self.recall.get() {
            recall(file.ino);
        }
    }

    /// What people are told of it.
    pub fn told_promoted(&self, file: &File, (from, to): (TierId, TierId), loses: bool) {
        let tiers = self.buffer.tiers();
        let (from, to) = (tiers.called(from), tiers.called(to));
        let path = file.path();
        tracing::info!(
            "{}: its second copy in {to} is the file: {from} does not answer",
            path.escape_ascii()
        );
        if loses {
            let reason = format!(
                "{from} does not answer: the file is its second copy in {to}; what was written after its last fsync \
                 may be lost"
            );
            self.base.report_loss(path, Errno::EIO, reason);
        }
    }

    /// Takes the way to have all clients forget what they keep of a file.
    pub fn recall_by(&self, recall: super::Recall) {
        drop(self.recall.set(recall));
    }
}

/// Who has a file open goes on with this second copy, by requests.
fn goes_on_in(open: &OpenFile, target: &mut Target, copy: Target) {
    open.mark_verified();
    open.budget_bytes
        .store(0, std::sync::atomic::Ordering::Release);
    open.unsent.begin_anew();
    open.end_passthrough();
    open.put(target, copy);
}

/// Whether something was written that a second copy has not; `None`: the records know.
fn lacks_in_copy(open: Option<&OpenFile>, file: &File, unseen: bool) -> Option<bool> {
    let written = open.is_some_and(OpenFile::is_written);
    // Nobody has counted what a kernel has written.
    match unseen && (written || file.lock().residency.by_kernel) {
        true => Some(true),
        false => open.and_then(|open| open.unsent.lacks_acknowledged()),
    }
}

/// Whether a kernel may write a file by itself, which nobody could tell to be another's by now.
fn is_a_kernels(open: Option<&OpenFile>, file: &File) -> bool {
    match open {
        Some(open) => open.is_passthrough(),
        // That of who had it open when this server started.
        None => file.lock().residency.by_kernel,
    }
}

/// As the decision sees it.
pub fn away(file: &File, copied: Generation, lacks: Option<bool>) -> Away {
    let state = file.lock();
    let residency = &state.residency;
    Away {
        is_drained: residency.clean,
        is_at_rest: !state.is_unlinked() && !state.demoting && state.copy_under_way().is_none(),
        is_doubtful: residency.flush_failed,
        generation: residency.generation,
        copied,
        flushed: residency.promised,
        safe: state.safe,
        lacks,
    }
}

/// Second copies in the background.
impl Files {
    /// Whether a file was promised a second copy that it has not, or not of what it is now.
    pub fn lacks_second(&self, file: &File) -> bool {
        let (residency, is_named) = {
            let state = file.lock();
            (state.residency, !state.is_unlinked())
        };
        let is_promised = is_named && !residency.clean && residency.flushed.is_some();
        if !is_promised || self.buffer.tiers().kind(residency.tier) == TierKind::Pfs {
            return false;
        }
        let has = match self.second_of(file) {
            // What is open is brought up to date by its next fsync.
            Some((_, copied)) => {
                copied == residency.generation || self.buffer.opens().is_open_now(file.ino)
            }
            None => false,
        };
        !has && self.catalog.durability_of_file(file) == Durability::Replica
    }

    /// Whether somebody waits for a copy of a file that is under way.
    pub fn is_copy_wanted(&self, file: &File) -> bool {
        let by_opener = || {
            let open = self.buffer.opens().by_ino(file.ino);
            open.is_some_and(|open| open.unsent.is_wanted())
        };
        file.is_copy_wanted() || by_opener()
    }
}
