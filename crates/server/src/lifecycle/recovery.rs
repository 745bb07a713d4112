//! What a start does with what the last run left: the records say what should be there, the tiers
//! what is.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use forebay_namespace::{File, Garbage, Loaded, Migration, Namespace, Residency};
use forebay_policy::durability::{Found, Verdict, of_undrained};
use forebay_tiers::TierKind;
use forebay_types::{Errno, ObjectId, TierId, failpoint};
use forebay_wire::OUT_OF_REACH;

use crate::base::counters::Earlier;
use crate::base::failure::Failure;
use crate::buffer::tierset::{DRAM, OVERFLOW, TierSet};
use crate::integrity::atrest::is_out_of_reach;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::orphans::Gone;
use crate::starterror::{StartError, failed};

/// Objects by tier.
pub(crate) type Inventory = Vec<(TierId, HashSet<ObjectId>)>;
/// Objects that belong to something on record.
pub(crate) type Claimed = HashSet<(TierId, ObjectId)>;

/// What is said of a file that may be on the PFS as it was last fsynced: see [`may_be_on_the_pfs`].
const OPEN_FOR_WRITING: &str = "was open for writing: what was not yet flushed by fsync, if anything, is lost with the node's power";

/// A copy of the state folder that was put back has such files, too.
const NOT_ON_FLASH: &str = "is not on flash any more: it was not yet flushed by fsync and is lost with the node's power, or the state folder is older than the flash (a copy of it was put back)";

/// Where not one object of a tier can be looked at, and it has so many, the tier is broken.
const BROKEN_OBJECTS_MIN: usize = 8;

/// What the record of a file says of its objects is nobody else's.
fn claim(object: ObjectId, residency: &Residency, claimed: &mut Claimed) {
    claimed.insert((residency.tier, object));
    claimed.extend(residency.shadow.map(|(tier, _)| (tier, object)));
}

impl Lifecycle {
    /// Finishes what was under way and takes all files over. Clean copies that turn out damaged are
    /// dropped where the PFS has the file whole.
    pub fn recover(&self, mut loaded: Loaded) -> Result<(), StartError> {
        failpoint::hit(failpoint::Point::StartFacts);
        let recovered = self.recover_files(&mut loaded);
        let (inventory, claimed) = recovered.map_err(failed("recovery"))?;
        self.report_absent_tiers();
        self.refuse_broken_tiers()?;
        self.recover_rest(loaded, &inventory, claimed)
            .map_err(failed("recovery"))
    }

    /// Finishes changes of names, and takes over what is on record.
    fn recover_files(&self, loaded: &mut Loaded) -> Result<(Inventory, Claimed), Failure> {
        for key in &loaded.unreadable {
            let path = format!("(record {})", key.escape_ascii()).into_bytes();
            let reason = "it does not decode; run 'forebay fsck'".to_string();
            self.base.report(path, Errno::EIO, reason);
        }
        if let Err(error) = self.ns.settle_unpublished() {
            let reason = format!("versions could not be looked after: {error}");
            self.base.report(b"(PFS)".to_vec(), error.errno(), reason);
        }
        for pending in std::mem::take(&mut loaded.changes) {
            self.ns.settle_change(pending)?;
        }
        loaded.nameless.extend(self.ns.settle_nameless()?);
        let inventory = self.inventory()?;
        let mut claimed = Claimed::new();
        for file in std::mem::take(&mut loaded.files) {
            if file.lock().is_unlinked() {
                continue;
            }
            self.recover_file(&file, &inventory, &mut claimed)?;
            if file.lock().residency.owes_loss {
                // A server of before has promoted its second copy, and ended before anybody asked.
                self.buffer.opens().lost.add(file.object);
            }
            failpoint::hit(failpoint::Point::RecoverFile);
        }
        Ok((inventory, claimed))
    }

    /// What no file that is shown stands for: stranded files, garbage, orphans, unfinished copies.
    fn recover_rest(
        &self,
        loaded: Loaded,
        inventory: &Inventory,
        mut claimed: Claimed,
    ) -> Result<(), Failure> {
        let unreadable = loaded.unreadable.iter();
        let mut stranded: HashSet<_> = unreadable
            .filter_map(|key| Namespace::object_of_record(key))
            .collect();
        for (object, record) in loaded.lost {
            stranded.insert(object);
            claimed.insert((record.residency.tier, object));
            self.buffer.book_stranded(object, &record);
            let path = record
                .names
                .first()
                .map(|(_, n)| n.clone())
                .unwrap_or_default();
            let reason = "its directory is not known; run 'forebay fsck'".to_string();
            self.base.report(path, Errno::ENOENT, reason);
        }
        self.recover_nameless(loaded.nameless, inventory, &mut claimed);
        self.recover_left(inventory, &mut claimed);
        // What was replaced or given up just now is garbage too, and no orphan.
        let garbage: Vec<_> = self
            .ns
            .take_garbage()
            .into_iter()
            .chain(loaded.garbage)
            .collect();
        let deleted = garbage.iter().map(|garbage| garbage.object).collect();
        for garbage in garbage {
            claimed.extend(garbage.tiers.iter().flatten().map(|t| (*t, garbage.object)));
            self.ns.add_garbage(garbage);
        }
        let gone = Gone { deleted, stranded };
        let kept = self.recover_orphans(inventory, &claimed, &gone);
        for dir in loaded.dirs.iter().chain([self.ns.root()]) {
            match self.ns.sweep_dir(dir) {
                Ok(0) => {}
                Ok(swept) => {
                    failpoint::hit(failpoint::Point::RecoverSwept);
                    let path = dir.path();
                    let path = path.escape_ascii();
                    tracing::info!("{path}/: {swept} unfinished copies removed");
                }
                // It has been removed since: its record is a hint of where to look.
                Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ESTALE) => {}
                Err(error) => tracing::warn!("{}/: {error}", dir.path().escape_ascii()),
            }
        }
        drop(loaded.dirs);
        self.ns.end_of_start(&self.unsettled(inventory), &kept)?;
        self.base.absorb_conflicts();
        self.files.collect_garbage();
        let looked = |server: u16| {
            let tiers = self.buffer.tiers();
            let mut listed = inventory.iter().filter_map(|(id, _)| tiers.get(*id));
            listed.any(|slot| slot.server == server && slot.tier.is_answering())
        };
        Ok(self.boot.record(&self.ns, &looked)?)
    }

    /// Tiers that this start has not looked at, and those where it has found another.
    fn unsettled(&self, inventory: &Inventory) -> Vec<TierId> {
        let tiers = self.buffer.tiers();
        let is_listed = |tier: &TierId| inventory.iter().any(|(listed, _)| listed == tier);
        let is_another = |tier: &TierId| tiers.get(*tier).is_some_and(|slot| slot.is_another);
        let all = tiers.ids().chain([DRAM, OVERFLOW]);
        all.filter(|tier| !is_listed(tier) || is_another(tier))
            .collect()
    }

    /// What there is. A data server that does not answer now is out of reach for as long as this
    /// server runs: who is asked twice may answer once, and what was not listed would be missing.
    fn inventory(&self) -> Result<Inventory, Failure> {
        let tiers = self.buffer.tiers();
        let mut inventory: Inventory = Vec::new();
        for (id, slot) in tiers.iter() {
            let mut objects = HashSet::new();
            let listed = match slot.tier.is_answering() {
                true => slot.tier.list(&mut |object| {
                    objects.insert(object);
                }),
                false => Err(OUT_OF_REACH.into()),
            };
            match (listed, tiers.holder_of(id)) {
                (Ok(()), _) => inventory.push((id, objects)),
                (Err(error), Some(holder)) if is_out_of_reach(&error) => {
                    tracing::warn!("{}: {error}: it is left for later", holder.name());
                    holder.shut();
                }
                (Err(error), Some(holder)) => {
                    // It would be so again.
                    holder.refuse();
                    let path = format!("(tier {})", slot.tier.name()).into_bytes();
                    let reason = format!("its objects cannot be listed: {error}");
                    self.base.report(path, Errno::of(&error), reason);
                }
                (Err(error), None) => return Err(error.into()),
            }
        }
        // All tiers of one, or none.
        inventory.retain(|(id, _)| !tiers.is_out_of_reach(*id));
        Ok(inventory)
    }

    fn recover_file(
        &self,
        file: &Arc<File>,
        inventory: &Inventory,
        claimed: &mut Claimed,
    ) -> Result<(), Failure> {
        let holds = |tier: TierId| {
            inventory
                .iter()
                .any(|(t, objects)| *t == tier && objects.contains(&file.object))
        };
        let moved = file.lock().copy_under_way();
        if let Err(error) = self.ns.settle_demotion(file) {
            let reason = format!("its demotion could not be looked after: {error}");
            self.base.report(file.path(), error.errno(), reason);
            if !holds(file.tier()) {
                // It may be the file on the PFS by now; that is no reason to call it lost.
                claim(file.object, &file.lock().residency, claimed);
                return Ok(());
            }
        }
        let residency = file.lock().residency;
        if is_left_out(self.buffer.tiers(), inventory, residency.tier) {
            if let Some((second, copied)) = residency.shadow
                && holds(second)
                && self.promote_found(file, second, copied)?
            {
                claimed.insert((second, file.object));
                return self.take_over(file, second);
            }
            self.leave_out_of_reach(file, &residency, claimed);
            if let Some(copy) = self.buffer.restart_copy(file).filter(|copy| holds(*copy)) {
                self.book_found_shadow(file, copy);
            }
            return Ok(());
        }
        if let Some(moved) = moved
            && !holds(residency.tier)
            && residency
                .published
                .is_some_and(|p| (p.ino, p.btime_ns) == (moved.ino, moved.btime_ns))
            && residency.shadow.is_none_or(|(_, g)| g <= moved.generation)
        {
            // Its newest content that was safe is on the PFS; an object of the overflow has even
            // become the file there.
            return self.disown(file, holds);
        }
        if !holds(residency.tier) {
            // The copy of it that an fsync has left may be where this start does not see it.
            let shadow = residency.shadow.map(|(tier, _)| tier);
            let tiers = self.buffer.tiers();
            if !residency.clean && shadow.is_some_and(|tier| is_left_out(tiers, inventory, tier)) {
                self.leave_out_of_reach(file, &residency, claimed);
                return Ok(());
            }
            return self.recover_missing(file, holds, claimed);
        }
        claim(file.object, &residency, claimed);
        self.take_over(file, residency.tier)?;
        if let Some((shadow, _)) = residency.shadow
            && !self.buffer.tiers().is_out_of_reach(shadow)
        {
            self.book_found_shadow(file, shadow);
        }
        Ok(())
    }

    /// The node that has it is not there: it stays as it is on record. The start that finds the
    /// node again looks at it.
    fn leave_out_of_reach(&self, file: &Arc<File>, residency: &Residency, claimed: &mut Claimed) {
        claim(file.object, residency, claimed);
        self.buffer
            .enter(file, &self.catalog.rules().identify(&file.path()));
        self.buffer.name_by_xattrs(file);
        self.book_as_recorded(file, residency.tier);
    }

    fn book_as_recorded(&self, file: &Arc<File>, tier: TierId) {
        let (bytes, dirty) = {
            let mut state = file.lock();
            state.take_flushed_size();
            (state.meta.allocated_bytes, state.is_dirty())
        };
        self.buffer.arrive(file.object, tier, bytes, dirty);
        if dirty {
            self.buffer.queue().add(file.object);
        }
    }

    /// A copy on flash that an fsync has left is in the books again.
    pub(super) fn book_found_shadow(&self, file: &File, tier: TierId) {
        let found = self
            .buffer
            .tiers()
            .open_object(tier, file.object)
            .and_then(|o| o.stat());
        match found {
            Ok(stat) => self
                .buffer
                .ledger()
                .found_shadow(file.object, tier, stat.allocated_bytes),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => {
                let reason = format!("its copy on flash cannot be looked at: {error}");
                self.base.report(file.path(), Errno::of(&error), reason);
            }
        }
    }

    pub(crate) fn take_over(&self, file: &Arc<File>, tier: TierId) -> Result<(), Failure> {
        let taken = self.look_and_take_over(file, tier);
        match (taken, self.buffer.tiers().holder_of(tier)) {
            (Err(failure), Some(holder)) if is_out_of_reach(&failure.errno().into()) => {
                // It has gone since the inventory.
                holder.shut();
                self.book_as_recorded(file, tier);
                Ok(())
            }
            (taken, _) => taken,
        }
    }

    fn look_and_take_over(&self, file: &Arc<File>, tier: TierId) -> Result<(), Failure> {
        let path = file.path();
        self.buffer
            .enter(file, &self.catalog.rules().identify(&path));
        self.buffer.name_by_xattrs(file);
        let opened = self.buffer.tiers().open_object(tier, file.object);
        let looked = opened.and_then(|object| object.stat().map(|stat| (object, stat)));
        let (object, stat) = match looked {
            Err(error) if is_of_one_object(&error) => {
                self.leave_unreadable(file, tier, &error);
                return Ok(());
            }
            looked => looked?,
        };
        let dirty = file.lock().is_dirty();
        self.buffer
            .arrive(file.object, tier, stat.allocated_bytes, dirty);
        if self.files.is_written_below(tier, &*object)? {
            return self.files.serve_outliving(file, object, tier);
        }
        if file.lock().residency.flush_failed {
            return Ok(self.integrity.keep_failed_flush(file, &*object)?);
        }
        let (dirty, found) = self.found(file, tier, stat.size);
        let size = found.recorded_bytes;
        let problem = format!("its object has {} bytes instead of {size}", stat.size);
        if !dirty {
            if found.is_writing || stat.size == size {
                return Ok(());
            }
            // Nobody had it open: the object was damaged at rest.
            self.base.report(
                path,
                Errno::EIO,
                format!("{problem}; the copy is dropped, the PFS has it whole"),
            );
            return Ok(self.ns.disown(file)?);
        }
        match of_undrained(&found) {
            Verdict::Damaged => {}
            Verdict::Whole => return self.files.record_object(file, &*object),
            Verdict::Taken => {
                let cut = found.may_be_torn && Some(stat.size) != found.flushed_bytes;
                if cut || stat.size < size {
                    let reason = "what was written after its last fsync is lost in part with the node's power";
                    self.base.report_loss(path, Errno::EIO, reason.into());
                }
                return self.files.record_object(file, &*object);
            }
            Verdict::Lost => return self.give_up_torn(file, tier, stat.size),
        }
        file.lock().show_error(Errno::EIO);
        self.base.report(
            path,
            Errno::EIO,
            format!("{problem}; it is kept, and not put on the PFS"),
        );
        Ok(())
    }

    /// What there is of a file to be judged, and whether it is undrained.
    fn found(&self, file: &File, tier: TierId, object_bytes: u64) -> (bool, Found) {
        let mut state = file.lock();
        if state.residency.writing {
            // What was written unseen is another content than the one that was last copied, and its
            // checksum taken.
            state.changed();
        }
        let (residency, size) = (&state.residency, state.meta.size);
        let flushed = residency.flushed;
        let found = Found {
            object_bytes,
            recorded_bytes: size,
            flushed_bytes: flushed.map(|flushed| flushed.bytes),
            is_flushed: flushed.is_some_and(|f| f.generation == residency.generation),
            is_sealed: residency.crc.is_some(),
            is_writing: residency.writing,
            has_older: residency.published.is_some(),
            may_be_torn: self.boot.may_have_torn(self.buffer.tiers().get(tier)),
        };
        (state.is_dirty(), found)
    }

    /// Its object cannot be looked at: it stays as it is on record, and who opens it gets an error,
    /// or what the PFS has. All others are served.
    fn leave_unreadable(&self, file: &Arc<File>, tier: TierId, error: &io::Error) {
        let (bytes, dirty) = {
            let mut state = file.lock();
            let dirty = state.is_dirty();
            if dirty {
                state.show_error(Errno::of(error));
            }
            (state.meta.allocated_bytes, dirty)
        };
        self.buffer.arrive(file.object, tier, bytes, dirty);
        self.unreadable.lock().push(tier);
        let what = match dirty {
            true => "its data is not on the PFS; it is set aside where it is, and tried again",
            false => "the PFS has it whole",
        };
        let object = file.object;
        let reason = format!("its object {object} cannot be looked at: {error}; {what}");
        self.base.report(file.path(), Errno::of(error), reason);
    }

    /// One object that cannot be read is no reason not to serve the others; a device of which none
    /// can be is.
    pub(crate) fn refuse_broken_tiers(&self) -> Result<(), StartError> {
        let unreadable = self.unreadable.lock();
        for (tier, slot) in self.buffer.tiers().iter() {
            let count = unreadable.iter().filter(|of| **of == tier).count();
            let files = self.buffer.table().read();
            let all = files.values().filter(|file| file.tier() == tier).count();
            if count >= BROKEN_OBJECTS_MIN && count == all {
                if let Some(holder) = self.buffer.tiers().holder_of(tier) {
                    // All others are served.
                    let path = format!("(tier {})", slot.tier.name()).into_bytes();
                    let reason = format!(
                        "none of its {count} objects can be looked at; is its device broken?"
                    );
                    self.base.report(path, Errno::EIO, reason);
                    holder.refuse();
                    continue;
                }
                return Err(StartError::Failed {
                    what: format!("tier {}", slot.tier.name()),
                    why: format!(
                        "none of its {count} objects can be looked at; is its device broken? Nothing was changed"
                    ),
                });
            }
        }
        Ok(())
    }

    /// It was never fsynced, and the node lost its power: as in memory, it is lost. What there is
    /// of it is kept where an administrator finds it.
    fn give_up_torn(&self, file: &Arc<File>, tier: TierId, bytes: u64) -> Result<(), Failure> {
        let kept = match self.buffer.tiers().get(tier) {
            Some(slot) if bytes > 0 => {
                let place = slot.tier.quarantine(file.object)?;
                format!("; {bytes} bytes of it are kept in {place} of its tier")
            }
            _ => String::new(),
        };
        let reason = match may_be_on_the_pfs(&file.lock().residency) {
            true => OPEN_FOR_WRITING,
            false => "was not yet flushed by fsync, and is lost with the node's power",
        };
        self.give_up_lost(file, reason, &kept)
    }

    /// Its content is gone: it goes, and what the PFS has counts.
    pub(super) fn give_up_lost(
        &self,
        file: &Arc<File>,
        reason: &str,
        kept: &str,
    ) -> Result<(), Failure> {
        let path = file.path();
        let state = file.lock();
        let (names, published) = (state.names.clone(), state.residency.published.is_some());
        drop(state);
        self.note_lost(file);
        self.ns.disown(file)?;
        let older = match published {
            true => "; the PFS has the version before it",
            false => "",
        };
        self.base
            .report_loss(path, Errno::EIO, format!("{reason}{older}{kept}"));
        for (dir, name) in names {
            self.ns.lost_of_version(&dir, &name)?;
        }
        Ok(())
    }

    /// The object is not where the record says: memory after a reboot, or a device that is gone.
    fn recover_missing(
        &self,
        file: &Arc<File>,
        holds: impl Fn(TierId) -> bool,
        claimed: &mut Claimed,
    ) -> Result<(), Failure> {
        let residency = file.lock().residency;
        if residency.clean {
            // The PFS has it; a copy of an earlier fsync on flash may be older.
            return self.disown(file, holds);
        }
        if let Some((shadow, copied)) = residency.shadow
            && holds(shadow)
        {
            if residency
                .flushed
                .is_some_and(|flushed| flushed.generation > copied)
            {
                let reason =
                    "its object is gone; it is what an earlier fsync than its last has left";
                self.base
                    .report_loss(file.path(), Errno::EIO, reason.into());
            }
            let generation = self.buffer.generation(file);
            (self.ns).migrated(file, generation, &Migration::of_copy(shadow, false))?;
            // A later fsync may have been on its way: only the object knows the size.
            file.lock().begin_unseen();
            claimed.insert((shadow, file.object));
            return self.take_over(file, shadow);
        }
        if self.buffer.tiers().get(residency.tier).is_none() {
            let reason = "its tier is not among those given at start; start with the same dram and ssd to reach it";
            self.base.report(file.path(), Errno::ENODEV, reason.into());
            claim(file.object, &residency, claimed);
            return Ok(());
        }
        let nothing = file.lock().meta.size == 0 && residency.published.is_none();
        self.collect_unrecorded(file, holds);
        if nothing && !residency.writing {
            return Ok(self.ns.disown(file)?);
        }
        let reason = match may_be_on_the_pfs(&residency) {
            true => OPEN_FOR_WRITING,
            false => self.why_missing(residency.tier),
        };
        self.give_up_lost(file, reason, "")
    }

    /// How undrained content can be gone from a tier that is there.
    fn why_missing(&self, tier: TierId) -> &'static str {
        match self.buffer.tiers().kind(tier) {
            TierKind::Ssd => NOT_ON_FLASH,
            _ => "was in memory only, not yet flushed by fsync, and is lost with the node's power",
        }
    }

    fn disown(&self, file: &Arc<File>, holds: impl Fn(TierId) -> bool) -> Result<(), Failure> {
        self.collect_unrecorded(file, holds);
        Ok(self.ns.disown(file)?)
    }

    /// A copy, or an fsync, may have been on its way: what it has left belongs to nothing that is
    /// on record.
    fn collect_unrecorded(&self, file: &File, holds: impl Fn(TierId) -> bool) {
        for (tier, _) in self.buffer.tiers().iter().filter(|(tier, _)| holds(*tier)) {
            let (object, tiers) = (file.object, [Some(tier), None]);
            self.ns.add_garbage(Garbage { object, tiers });
        }
    }

    /// Totals of earlier runs.
    pub fn restore_totals(&self, facts: &crate::lifecycle::facts::Facts) {
        self.base.counters().go_on(Earlier {
            demoted_bytes: facts.demoted_bytes,
            demoted_files: facts.demoted_files,
            evicted_bytes: facts.evicted_bytes,
        });
    }
}

/// Whether a tier is one of a data server at which this start could not look.
fn is_left_out(tiers: &TierSet, inventory: &Inventory, tier: TierId) -> bool {
    tiers.holder_of(tier).is_some() && !inventory.iter().any(|(listed, _)| *listed == tier)
}

/// Whether an fsync that means the PFS may have put there all that was written to a file that was
/// open.
fn may_be_on_the_pfs(residency: &Residency) -> bool {
    residency.writing && residency.published.is_some()
}

/// Whether an error says that this object is damaged, rather than that the tier does not work or
/// that something is used up.
fn is_of_one_object(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            // Sectors that cannot be read, or metadata of the file that is not what it should be.
            libc::EIO | libc::EUCLEAN | libc::EBADMSG | libc::ENODATA | libc::EILSEQ
                // Something else lies in its place, or somebody has taken the right to open it
                // away.
                | libc::ENOENT | libc::EISDIR | libc::EINVAL | libc::ELOOP | libc::EACCES | libc::EPERM
        )
    )
}

#[cfg(test)]
mod tests {
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::Errno;

    use super::BROKEN_OBJECTS_MIN;
    use crate::testing::{FLASH, Lab, create};

    /// As a start looks at so many files, of which the objects `when` give an error.
    fn look_at_all(files: usize, when: When) -> Result<usize, String> {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        for n in 0..files {
            let handle = create(rooms, format!("f{n}").as_bytes(), b"content");
            rooms.files.release(handle).expect("close");
        }
        let fault = flash.inject(Operation::Open, when, Effect::Fail(Errno::EIO));
        let all: Vec<_> = rooms.buffer.files();
        for file in all {
            rooms
                .lifecycle
                .take_over(&file, FLASH)
                .map_err(|e| e.to_string())?;
        }
        assert!(flash.fired(fault) > 0);
        rooms
            .lifecycle
            .refuse_broken_tiers()
            .map_err(|e| e.to_string())?;
        let with_errors = rooms.buffer.table().read();
        let with_errors = with_errors.values().filter(|f| f.lock().error.is_some());
        assert!(
            rooms.buffer.ledger().dirty_and_capacity().0 > 0,
            "they count"
        );
        assert!(!rooms.base.errors().is_empty(), "and are named");
        Ok(with_errors.count())
    }

    #[test]
    fn one_object_that_cannot_be_read_does_not_keep_the_others_from_being_served() {
        assert_eq!(look_at_all(3, When::Nth(2)), Ok(1));
        assert_eq!(look_at_all(1, When::Every), Ok(1));
        assert_eq!(
            look_at_all(BROKEN_OBJECTS_MIN + 1, When::From(2)),
            Ok(BROKEN_OBJECTS_MIN)
        );
    }

    #[test]
    fn what_flash_does_not_have_any_more_was_not_in_memory_only() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("one file");
        // As with a record of before its removal.
        let missing = (rooms.lifecycle).recover_missing(&file, |_| true, &mut Default::default());
        missing.expect("given up");
        let errors = rooms.base.errors();
        let told = &errors.all()[0].reason;
        assert!(told.contains("the state folder is older"), "{told}");
        assert!(!told.contains("memory"), "{told}");
    }

    #[test]
    fn a_tier_of_which_no_object_can_be_read_is_no_tier_to_start_with() {
        let refused = look_at_all(BROKEN_OBJECTS_MIN, When::Every).expect_err("served");
        assert!(
            refused.starts_with("tier ssd: none of its 8 objects"),
            "{refused}"
        );
    }
}
