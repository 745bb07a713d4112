//! A second copy takes the place of a file whose node is away, and what is left there of the file.
//!
//! What is left is on record until it is removed, beside the record of the file and longer than
//! that: whatever the node has when it is back, it is not the file. Which object is the file says
//! the file's record alone; what that names is never removed for being left.

use std::collections::BTreeMap;

use forebay_kv::Durability;
use forebay_tiers::ObjectStat;
use forebay_types::{Generation, ObjectId, TierId, failpoint};

use crate::log::Batch;
use crate::record;
use crate::tree::FileState;
use crate::{File, Namespace, NsError};

/// Objects by id, and the tiers in which they are left.
pub(crate) type Left = BTreeMap<ObjectId, Vec<TierId>>;

impl Namespace {
    /// The second copy of a file, which is this, is the file from now on; what was the file is
    /// left. One commit says both. `false` if the file has changed since it was of this generation,
    /// or has no such copy or no name any more. `written`: somebody has it open for writing, so
    /// that only the object knows its size. `loses`: who has written it is to be told of that.
    pub fn promote(
        &self,
        file: &File,
        generation: Generation,
        to: (TierId, &ObjectStat),
        (written, loses): (bool, bool),
    ) -> Result<bool, NsError> {
        let mut state = file.lock();
        let residency = state.residency;
        let is_it = residency.shadow.is_some_and(|(tier, _)| tier == to.0);
        let is_same = residency.generation == generation && !residency.clean && is_it;
        if !is_same || state.is_unlinked() || state.demoting || state.copy_under_way().is_some() {
            return Ok(false);
        }
        let mut left = self.left.lock();
        let mut tiers = left.get(&file.object).cloned().unwrap_or_default();
        tiers.retain(|tier| *tier != residency.tier && *tier != to.0);
        tiers.push(residency.tier);
        let before = state.promote(to, written, loses);
        let mut batch = Batch::new();
        let put = self.put_file(&mut batch, file, &state).and_then(|()| {
            batch.put(record::left_key(file.object), record::encode(&tiers)?);
            Ok(self.store.commit(batch, Durability::Synced)?)
        });
        if let Err(error) = put {
            state.take_promotion_back(before);
            return Err(error);
        }
        left.insert(file.object, tiers);
        failpoint::hit(failpoint::Point::PromoteRecord);
        Ok(true)
    }

    /// A restart copy was made in this tier: it is on record, if the file is clean and still of the
    /// generation that was copied, and has no other copy. Whether it is.
    pub fn note_restart_copy(
        &self,
        file: &File,
        generation: Generation,
        tier: TierId,
    ) -> Result<bool, NsError> {
        let mut state = file.lock();
        let residency = state.residency;
        let is_same = residency.clean && residency.generation == generation;
        let is_free = residency.shadow.is_none() && residency.tier != tier;
        if !is_same || !is_free || state.is_unlinked() || state.demoting {
            return Ok(false);
        }
        state.note_shadow(tier, generation);
        if let Err(error) = self.save(file, &state, Durability::Synced) {
            state.forget_shadow();
            return Err(error);
        }
        Ok(true)
    }

    /// The restart copy of a file goes: what is left of it is on record instead. Its tier, if there
    /// was one.
    pub fn leave_restart_copy(&self, file: &File) -> Result<Option<TierId>, NsError> {
        let mut state = file.lock();
        let Some((tier, generation)) = state.residency.shadow else {
            return Ok(None);
        };
        if !state.residency.clean || state.is_unlinked() {
            return Ok(None);
        }
        state.forget_shadow();
        if let Err(error) = self.save_leaving(file, &state, tier, Durability::Synced) {
            state.note_shadow(tier, generation);
            return Err(error);
        }
        Ok(Some(tier))
    }

    /// The restart copy of a clean file is the file from now on; what was the file is left. `false`
    /// if it has none in this tier, or one that is not of this very generation.
    pub fn adopt_restart_copy(&self, file: &File, to: TierId) -> Result<bool, NsError> {
        let mut state = file.lock();
        if !is_restart_copy(&state, to) {
            return Ok(false);
        }
        let from = state.residency.tier;
        let before = state.adopt(to);
        let saved = self.save_leaving(file, &state, from, Durability::Synced);
        if let Err(error) = saved {
            state.take_promotion_back(before);
            return Err(error);
        }
        failpoint::hit(failpoint::Point::PromoteRecord);
        Ok(true)
    }

    /// The restart copy of a clean file and the file change places: both have the same content, so
    /// that either may be found after a crash, and nobody waits for stable storage. `false` as
    /// above.
    pub fn change_places(&self, file: &File, to: TierId) -> Result<bool, NsError> {
        let mut state = file.lock();
        if !is_restart_copy(&state, to) {
            return Ok(false);
        }
        let before = state.change_places(to);
        if let Err(error) = self.save(file, &state, Durability::Buffered) {
            state.take_promotion_back(before);
            return Err(error);
        }
        failpoint::hit(failpoint::Point::PromoteRecord);
        Ok(true)
    }

    /// Writes the record of a file, and that an object of it is left in a tier that it does not
    /// name: one commit says both. No record stands for a file without a name.
    pub(crate) fn save_leaving(
        &self,
        file: &File,
        state: &FileState,
        tier: TierId,
        durability: Durability,
    ) -> Result<(), NsError> {
        if state.is_unlinked() {
            self.save(file, state, durability)?;
            return self.leave_behind(file.object, tier, Durability::Buffered);
        }
        let mut left = self.left.lock();
        let mut tiers = left.get(&file.object).cloned().unwrap_or_default();
        tiers.retain(|of| *of != tier && *of != state.residency.tier);
        tiers.push(tier);
        let mut batch = Batch::new();
        self.put_file(&mut batch, file, state)?;
        batch.put(record::left_key(file.object), record::encode(&tiers)?);
        self.store.commit(batch, durability)?;
        left.insert(file.object, tiers);
        Ok(())
    }

    /// A copy of this object, which no record of a file names from now on, is in a tier that does
    /// not answer. Or it is about to be made: one that is there already is on record first.
    pub fn leave_behind(
        &self,
        object: ObjectId,
        tier: TierId,
        durability: Durability,
    ) -> Result<(), NsError> {
        let mut left = self.left.lock();
        let tiers = left.entry(object).or_default();
        if !tiers.contains(&tier) {
            tiers.push(tier);
        }
        let mut batch = Batch::new();
        batch.put(record::left_key(object), record::encode(tiers)?);
        Ok(self.store.commit(batch, durability)?)
    }

    /// Nothing of it is left in this tier: it was removed, for good, or is named by the record of
    /// its file again.
    pub fn no_longer_left(&self, object: ObjectId, tier: TierId) -> Result<(), NsError> {
        let mut left = self.left.lock();
        let Some(tiers) = left.get(&object) else {
            return Ok(());
        };
        let rest: Vec<TierId> = tiers.iter().copied().filter(|of| *of != tier).collect();
        let mut batch = Batch::new();
        match rest.is_empty() {
            true => batch.delete(record::left_key(object)),
            false => batch.put(record::left_key(object), record::encode(&rest)?),
        }
        self.store.commit(batch, Durability::Buffered)?;
        match rest.is_empty() {
            true => drop(left.remove(&object)),
            false => drop(left.insert(object, rest)),
        }
        Ok(())
    }

    /// All that is left, and where.
    pub fn left_behind(&self) -> Vec<(ObjectId, TierId)> {
        let left = self.left.lock();
        let all = left.iter();
        all.flat_map(|(object, tiers)| tiers.iter().map(|tier| (*object, *tier)))
            .collect()
    }

    /// As a start finds it.
    pub(crate) fn load_left(&self, unreadable: &mut Vec<Vec<u8>>) -> Result<(), NsError> {
        let mut left = self.left.lock();
        self.store
            .scan(record::LEFT_PREFIX, None, &mut |key, value| {
                match (record::object_of_key(key), record::decode(value)) {
                    (Some(object), Ok(tiers)) => drop(left.insert(object, tiers)),
                    _ => unreadable.push(key.to_vec()),
                }
                true
            })?;
        Ok(())
    }
}

/// Whether a file that is at rest has a copy of this very generation there.
fn is_restart_copy(state: &FileState, there: TierId) -> bool {
    let residency = &state.residency;
    let is_it = residency.shadow == Some((there, residency.generation));
    let is_at_rest = residency.clean && !residency.writing && !state.demoting;
    is_it && is_at_rest && !state.is_unlinked()
}
