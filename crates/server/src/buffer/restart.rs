//! Restart copies: a clean file has a copy of the same content on another node. It promises
//! nothing; a restart reads it when the node of the file is gone, or when the copy is nearer.
//!
//! A restart copy is what `Residency::shadow` names while the file is clean and of the generation
//! noted there. The first change takes it off the record in the commit that says dirty, so it never
//! stands for anything newer; what is left of it is removed after that.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::{Object, ObjectStat, TierKind};
use forebay_types::TierId;

use crate::base::failure::Failure;
use crate::buffer::Buffer;

impl Buffer {
    /// Where a file has its restart copy.
    pub fn restart_copy(&self, file: &File) -> Option<TierId> {
        let state = file.lock();
        let residency = &state.residency;
        let (tier, generation) = residency.shadow?;
        let is_one = residency.clean && generation == residency.generation;
        (is_one && !state.is_unlinked()).then_some(tier)
    }

    /// A clean file that the caller has claimed and that nobody has open is its restart copy from
    /// now on, if that is there. Whether it is.
    pub fn adopt_restart_copy(&self, file: &Arc<File>) -> Result<bool, Failure> {
        let Some(to) = self.restart_copy(file) else {
            return Ok(false);
        };
        let Some(_copying) = file.try_copying() else {
            return Ok(false);
        };
        let Some((stat, object)) = self.find_restart_copy(file, to) else {
            return Ok(false);
        };
        let from = file.tier();
        if !self.ns.adopt_restart_copy(file, to)? {
            return Ok(false);
        }
        self.unflushed.let_go(file.object);
        self.ledger.release_shadow(file.object);
        self.book(file, stat.allocated_bytes);
        if let Err(error) = object.set_identity(&self.identity(file, false)) {
            // The record says it; the identity is for who has no records.
            tracing::warn!("object {}: {error}", file.object);
        }
        let (from, to) = (self.tiers.called(from), self.tiers.called(to));
        let path = file.path();
        tracing::info!(
            "{}: its copy in {to} is the file, instead of {from}",
            path.escape_ascii()
        );
        Ok(true)
    }

    /// Its object, where that can be had.
    fn find_restart_copy(&self, file: &File, to: TierId) -> Option<(ObjectStat, Arc<dyn Object>)> {
        if self.tiers.is_out_of_reach(to) {
            return None;
        }
        let found = self.tiers.open_object(to, file.object);
        match found.and_then(|object| Ok((object.stat()?, object))) {
            Ok((stat, object)) => (stat.size == file.lock().meta.size).then_some((stat, object)),
            Err(error) => {
                tracing::warn!("object {}: its restart copy: {error}", file.object);
                None
            }
        }
    }

    /// A clean file that the caller has claimed and that nobody has open changes places with its
    /// restart copy, if that is there: what was the file is its copy from now on. Whether it does.
    pub fn change_places(&self, file: &Arc<File>) -> Result<bool, Failure> {
        let (from, Some(to)) = (file.tier(), self.restart_copy(file)) else {
            return Ok(false);
        };
        if self.tiers.kind(from) != TierKind::Ssd {
            // A copy in memory would be one that a restart of its node takes.
            let is_it = self.adopt_restart_copy(file)?;
            if is_it {
                self.remove_left_behind(file, from);
            }
            return Ok(is_it);
        }
        let Some(_copying) = file.try_copying() else {
            return Ok(false);
        };
        let Some((stat, object)) = self.find_restart_copy(file, to) else {
            return Ok(false);
        };
        let held_bytes = self.ledger.used_bytes(file.object);
        if !self.ns.change_places(file, to)? {
            return Ok(false);
        }
        self.unflushed.let_go(file.object);
        self.ledger.release_shadow(file.object);
        self.book(file, stat.allocated_bytes);
        self.ledger.found_shadow(file.object, from, held_bytes);
        let was = self.tiers.open_object(from, file.object);
        let was = was.and_then(|was| was.set_identity(&self.identity(file, true)));
        if let Err(error) = object.set_identity(&self.identity(file, false)).and(was) {
            // The record says it; the identity is for who has no records.
            tracing::warn!("object {}: {error}", file.object);
        }
        Ok(true)
    }

    /// A clean file that nobody has open makes way in its tier: its restart copy is the file from
    /// now on. The bytes freed, or `None` if it has none or stays.
    pub fn leave_to_restart_copy(&self, file: &Arc<File>) -> Option<u64> {
        self.restart_copy(file)?;
        let claim = self.opens.try_claim(file.ino)?;
        if claim.is_open() {
            return None;
        }
        let (from, bytes) = (file.tier(), self.ledger.used_bytes(file.object));
        match self.adopt_restart_copy(file) {
            Ok(true) => {
                self.remove_left_behind(file, from);
                Some(bytes)
            }
            Ok(false) => None,
            Err(failure) => {
                tracing::warn!("object {}: {failure}", file.object);
                None
            }
        }
    }

    /// Drops restart copies in a tier until so many bytes are free; what was freed.
    pub fn drop_restart_copies(&self, tier: TierId, wanted_bytes: u64) -> u64 {
        let mut freed = 0;
        for file in self.files() {
            if freed >= wanted_bytes {
                break;
            }
            // Also one of a content before, of a file that was found clean: it is of no use.
            let residency = file.lock().residency;
            if !residency.clean || residency.shadow.map(|(of, _)| of) != Some(tier) {
                continue;
            }
            let Some(_copying) = file.try_copying() else {
                continue;
            };
            let bytes = self.ledger.shadow_bytes(file.object);
            match self.ns.leave_restart_copy(&file) {
                Ok(Some(_)) => {
                    self.drop_shadow(&file, tier);
                    freed += bytes;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("object {}: {error}", file.object),
            }
        }
        freed
    }
}
