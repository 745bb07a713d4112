//! Tiers that are not there: which of them keep a start from serving, and what becomes of files
//! whose tier is gone for good.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::{File, Loaded, Migration, RecordTrouble};
use forebay_tiers::TierKind;
use forebay_types::{Errno, TierId, failpoint};
use forebay_wire::control::{CLEAN_COPY_GONE, CONTENT_LOST, FSYNCED_LEFT, Finding};

use crate::base::failure::Failure;
use crate::buffer::tierset::{DRAM, Slot, TierSet};
use crate::lifecycle::Lifecycle;
use crate::starterror::{StartError, failed};

/// What becomes of a file without a copy.
const ONLY_THERE: &str = "it was nowhere else: it is lost, and its name is taken away";

/// In how many undrained files' place something should be in each tier: the file, or, of one in
/// memory, the copy on flash that an fsync has left.
pub fn undrained(loaded: &Loaded, tiers: &TierSet) -> BTreeMap<TierId, usize> {
    let mut undrained: BTreeMap<TierId, usize> = BTreeMap::new();
    let mut count = |tier| *undrained.entry(tier).or_default() += 1;
    for file in &loaded.files {
        let state = file.lock();
        let residency = &state.residency;
        if state.is_dirty() {
            // Also where a start is given none.
            let in_memory = residency.tier == DRAM || tiers.kind(residency.tier) == TierKind::Dram;
            let shadow = residency.shadow.filter(|_| in_memory);
            let is_whole = |of| of == residency.generation && !residency.writing;
            if !shadow.is_some_and(|(_, of)| is_whole(of)) {
                count(residency.tier);
            }
            shadow
                .map(|(tier, _)| tier)
                .into_iter()
                .for_each(&mut count);
        }
    }
    lost_tiers(loaded).for_each(count);
    undrained
}

/// Memory is another one after each start of its node.
fn is_another_flash(slot: &Slot) -> bool {
    slot.is_another && slot.kind == TierKind::Ssd
}

/// Shuts data servers that have something else than the flash in which undrained files should be:
/// one node's mistake is no reason to serve nobody. Answers with their tiers.
/// So also where all of these are drained: else objects that are there later would be taken for
/// files that nobody has recorded.
pub fn refuse_holders(loaded: &Loaded, tiers: &TierSet) -> Vec<TierId> {
    let mut wanted: BTreeMap<TierId, usize> = BTreeMap::new();
    let files = loaded.files.iter().map(|file| file.tier());
    for tier in files.chain(lost_tiers(loaded)) {
        *wanted.entry(tier).or_default() += 1;
    }
    // What an fsync has left in them may be all that there is of a file by now.
    let undrained = undrained(loaded, tiers).into_iter();
    for (tier, count) in undrained.filter(|(tier, _)| tiers.get(*tier).is_none()) {
        wanted.entry(tier).or_insert(count);
    }
    let mut refused = Vec::new();
    for (tier, count) in wanted {
        let holder = match tiers.get(tier) {
            Some(slot) if is_another_flash(slot) => tiers.holder_of(tier),
            Some(_) => None,
            None => tiers.last_holder_of(tier),
        };
        if let Some(holder) = holder {
            let name = tiers.called(tier);
            tracing::error!(
                "{name} is not the tier that it was, or not there: {count} files should be in it; is its file system \
                 mounted? {} is not used before it is, and was started anew",
                holder.name()
            );
            holder.refuse();
            refused.push(tier);
        }
    }
    refused
}

/// Refuses a start without tiers in which undrained files should be, and with other ones in their
/// place.
pub fn check_tiers(loaded: &Loaded, tiers: &TierSet) -> Result<(), StartError> {
    for (tier, count) in undrained(loaded, tiers) {
        let name = tiers.called(tier);
        match tiers.get(tier) {
            // Its node is not used before it has the tier again.
            None if tiers.last_holder_of(tier).is_some() => {}
            None => return Err(StartError::TierMissing { name, count }),
            Some(slot) if is_another_flash(slot) && tiers.holder_of(tier).is_none() => {
                return Err(StartError::TierReplaced { name, count });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Tiers of undrained files whose directory is not known.
fn lost_tiers(loaded: &Loaded) -> impl Iterator<Item = TierId> {
    let dirty = loaded
        .lost
        .iter()
        .filter(|(_, record)| !record.residency.clean);
    dirty.map(|(_, record)| record.residency.tier)
}

/// Whether a person means this tier: by its name, or by that of its data server.
fn is_meant(called: &str, by: &str) -> bool {
    let rest = called.strip_prefix(by);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

impl Lifecycle {
    /// Names tiers that their data servers were started without, though undrained files should be
    /// in them.
    pub(super) fn report_absent_tiers(&self) {
        let tiers = self.buffer.tiers();
        for tier in tiers.absent() {
            let name = tiers.called(*tier);
            let count = self.buffer.ledger().figures(*tier).dirty_files;
            let reason = format!(
                "its data server was started without it; undrained files that should be in it, and are out of \
                 reach: {count}; start the data server with the same dram and ssd to reach them"
            );
            let path = format!("(tier {name})").into_bytes();
            self.base.report(path, Errno::ENODEV, reason);
        }
    }

    /// Takes files off the record whose tiers, which are named, are gone for good. What the PFS has
    /// of them counts.
    pub fn give_up_tiers(
        &self,
        named: &[String],
        dry_run: bool,
    ) -> Result<Vec<Finding>, StartError> {
        let mut gone = Vec::new();
        for by in named {
            let tiers = self.buffer.tiers();
            let mut meant = tiers.ids().filter(|id| is_meant(&tiers.called(*id), by));
            let found: Vec<TierId> = meant.by_ref().collect();
            let is_there = |id: &TierId| {
                let slot = tiers.get(*id);
                slot.is_some_and(|slot| slot.tier.is_answering() && !slot.is_another)
            };
            if found.is_empty() || found.iter().any(is_there) {
                let known = tiers.ids().map(|id| tiers.called(id)).collect();
                return Err(StartError::NotLost {
                    name: by.clone(),
                    known,
                });
            }
            gone.extend(found);
        }
        let files: Vec<Arc<File>> = self.buffer.files();
        if !dry_run {
            self.forget_copies_in(&files, &gone)?;
        }
        let lost = files.iter().filter(|file| gone.contains(&file.tier()));
        let lost = lost.map(|file| self.give_up_with_tier(file, &gone, dry_run));
        let mut findings: Vec<Finding> = lost.collect();
        findings.extend(self.give_up_nowhere(&gone, dry_run)?);
        Ok(findings)
    }

    /// Records of files in directories that nobody knows: with the tier their only trace goes.
    fn give_up_nowhere(&self, gone: &[TierId], dry_run: bool) -> Result<Vec<Finding>, StartError> {
        let troubles = self.ns.check_records().map_err(failed("metadata store"))?;
        let mut findings = Vec::new();
        for trouble in troubles {
            let RecordTrouble::DirectoryUnknown { object, record } = trouble else {
                continue;
            };
            let residency = &record.residency;
            if !gone.contains(&residency.tier) {
                continue;
            }
            let copy = residency.shadow.filter(|(tier, _)| !gone.contains(tier));
            let copy = copy.filter(|_| !residency.clean);
            let done = match copy {
                _ if dry_run => Ok(()),
                Some(_) => self.ns.go_on_as_copy(object, &record),
                None => self.ns.remove_file_record(object),
            };
            let name = record.names.first().map(|(_, name)| name.clone());
            let called = self.buffer.tiers().called(residency.tier);
            findings.push(Finding {
                kind: match copy {
                    Some(_) => FSYNCED_LEFT.into(),
                    None => lost_kind(residency.clean).into(),
                },
                subject: name.unwrap_or_default(),
                problem: format!(
                    "object {object} was in {called}, which is gone for good, and its directory is not known"
                ),
                action: match (&done, copy) {
                    (Err(error), _) => format!("none; the record stays: {error}"),
                    (Ok(()), Some((tier, _))) => {
                        let copy = self.buffer.tiers().called(tier);
                        format!("it goes on with what an fsync left in {copy}")
                    }
                    (Ok(()), None) if residency.clean => {
                        "nothing is lost: the PFS has it whole".into()
                    }
                    (Ok(()), None) => ONLY_THERE.into(),
                },
                repaired: done.is_ok(),
            });
        }
        Ok(findings)
    }

    /// The file itself is elsewhere; what an fsync has left is gone.
    fn forget_copies_in(&self, files: &[Arc<File>], gone: &[TierId]) -> Result<(), StartError> {
        for file in files.iter().filter(|file| !gone.contains(&file.tier())) {
            let shadow = file.lock().residency.shadow;
            if shadow.is_some_and(|(tier, _)| gone.contains(&tier)) {
                let forgotten = self.ns.forget_shadow(file);
                forgotten.map_err(failed("metadata store"))?;
            }
        }
        Ok(())
    }

    fn give_up_with_tier(&self, file: &Arc<File>, gone: &[TierId], dry_run: bool) -> Finding {
        let path = file.path();
        let residency = file.lock().residency;
        let (clean, published) = (residency.clean, residency.published.is_some());
        let name = self.buffer.tiers().called(file.tier());
        // What an fsync has left elsewhere. A file may have been given another level since.
        let copy = (residency.shadow).filter(|(tier, _)| !clean && !gone.contains(tier));
        let is_last = copy.is_some_and(|(_, of)| residency.promised <= Some(of));
        let copy = copy.map(|(tier, _)| tier);
        let kind = match (copy, is_last) {
            (Some(_), true) => FSYNCED_LEFT,
            _ => lost_kind(clean),
        };
        let action = match (copy, clean, published) {
            (Some(copy), ..) => {
                let copy = self.buffer.tiers().called(copy);
                match is_last {
                    true => format!(
                        "it goes on with what its last fsync left in {copy}: all that was promised is there"
                    ),
                    false => format!(
                        "it goes on with what an earlier fsync left in {copy}; what was written after that is lost"
                    ),
                }
            }
            (None, true, _) => "nothing is lost: the PFS has it whole".into(),
            (None, false, true) => {
                "the PFS keeps the version before; what was written since that was copied is lost"
                    .into()
            }
            (None, false, false) => ONLY_THERE.into(),
        };
        let done = match dry_run {
            true => Ok(()),
            false => self.go_on_with(file, copy, clean),
        };
        Finding {
            kind: kind.into(),
            subject: path,
            problem: format!("was in {name}, which is gone for good"),
            action: match &done {
                Ok(()) => action,
                // The others are named all the same: what is done is not found again.
                Err(failure) => format!("{action}; that failed: {failure}"),
            },
            repaired: done.is_ok(),
        }
    }

    /// With this copy, or without.
    fn go_on_with(
        &self,
        file: &Arc<File>,
        copy: Option<TierId>,
        clean: bool,
    ) -> Result<(), Failure> {
        if let Some(copy) = copy {
            let generation = self.buffer.generation(file);
            (self.ns).migrated(file, generation, &Migration::of_copy(copy, true))?;
            // Only the object knows the size.
            file.lock().begin_unseen();
            self.ns.save(file, &file.lock(), KvDurability::Synced)?;
        } else {
            match clean {
                true => self.ns.disown(file)?,
                false => self.give_up_lost(file, "was in a tier that is gone for good", "")?,
            }
            self.buffer.leave(file.object);
        }
        failpoint::hit(failpoint::Point::FsckGarbage);
        Ok(())
    }
}

/// Of a file without a copy.
fn lost_kind(clean: bool) -> &'static str {
    match clean {
        true => CLEAN_COPY_GONE,
        false => CONTENT_LOST,
    }
}

#[cfg(test)]
mod tests {
    use super::is_meant;

    #[test]
    fn a_tier_is_meant_by_its_name_or_that_of_its_server() {
        assert!(is_meant("server-3:/flash", "server-3"));
        assert!(is_meant("server-3:/flash", "server-3:/flash"));
        assert!(is_meant("/local/nvme", "/local/nvme"));
        assert!(!is_meant("server-31:/flash", "server-3"));
        assert!(!is_meant("/local/nvme1", "/local/nvme"));
    }
}
