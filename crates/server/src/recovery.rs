//! What a start does with what the last run left: the records say what should be there, the tiers
//! what is.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::{File, Loaded};
use forebay_types::{Errno, ObjectId, TierId, failpoint};

use crate::core::Core;
use crate::fsync::shadow_charge;

/// Objects by tier.
type Inventory = Vec<(TierId, HashSet<ObjectId>)>;

impl Core {
    /// Finishes what was under way and takes all files over. Clean copies that turn out damaged are
    /// dropped where the PFS has the file whole.
    pub fn recover(&self, loaded: Loaded) -> Result<(), Errno> {
        failpoint::hit(failpoint::Point::StartFacts);
        for key in &loaded.unreadable {
            let path = format!("(record {})", key.escape_ascii()).into_bytes();
            let reason = "it does not decode; run 'forebay fsck'".to_string();
            self.report(path, Errno::EIO, reason);
        }
        if let Err(error) = self.ns.settle_unpublished() {
            let reason = format!("versions could not be looked after: {error}");
            self.report(b"(PFS)".to_vec(), error.errno(), reason);
        }
        for pending in loaded.changes {
            self.ns.settle_change(pending)?;
        }
        let inventory = self.inventory()?;
        let mut claimed: HashSet<(TierId, ObjectId)> = HashSet::new();
        for file in loaded.files {
            if file.lock().is_unlinked() {
                continue;
            }
            self.recover_file(&file, &inventory, &mut claimed)?;
            failpoint::hit(failpoint::Point::RecoverFile);
        }
        for (object, record) in loaded.lost {
            claimed.insert((record.residency.tier, object));
            let path = record
                .names
                .first()
                .map(|(_, n)| n.clone())
                .unwrap_or_default();
            let reason = "its directory is not known; run 'forebay fsck'".to_string();
            self.report(path, Errno::ENOENT, reason);
        }
        // What was replaced or given up just now is garbage too, and no orphan.
        let garbage: Vec<_> = self
            .ns
            .take_garbage()
            .into_iter()
            .chain(loaded.garbage)
            .collect();
        for garbage in garbage {
            claimed.extend(garbage.tiers.iter().flatten().map(|t| (*t, garbage.object)));
            self.ns.add_garbage(garbage);
        }
        self.recover_orphans(&inventory, &claimed);
        for dir in loaded.dirs.iter().chain([self.ns.root()]) {
            match self.ns.sweep_dir(dir) {
                Ok(0) => {}
                Ok(swept) => {
                    failpoint::hit(failpoint::Point::RecoverSwept);
                    tracing::info!("{dir:?}: {swept} unfinished copies removed");
                }
                Err(error) => tracing::warn!("{dir:?}: {error}"),
            }
        }
        drop(loaded.dirs);
        self.collect_garbage();
        Ok(())
    }

    fn inventory(&self) -> Result<Inventory, Errno> {
        let mut inventory = Vec::new();
        for (id, slot) in self.tiers.iter() {
            let mut objects = HashSet::new();
            slot.tier.list(&mut |object| {
                objects.insert(object);
            })?;
            inventory.push((id, objects));
        }
        Ok(inventory)
    }

    fn recover_file(
        &self,
        file: &Arc<File>,
        inventory: &Inventory,
        claimed: &mut HashSet<(TierId, ObjectId)>,
    ) -> Result<(), Errno> {
        let holds = |tier: TierId| {
            inventory
                .iter()
                .any(|(t, objects)| *t == tier && objects.contains(&file.object))
        };
        let moved = file.lock().residency.temporary;
        match self.ns.settle_demotion(file) {
            Ok(None) => {}
            Ok(Some(beside)) => {
                self.report_conflict(file.path(), &beside);
                return Ok(self.ns.disown(file)?);
            }
            Err(error) => self.report(
                file.path(),
                error.errno(),
                format!("its demotion could not be looked after: {error}"),
            ),
        }
        let residency = file.lock().residency;
        if !holds(residency.tier)
            && residency.published.map(|p| p.ino) == moved.map(|t| t.ino)
            && moved.is_some()
        {
            // The object itself has become the file on the PFS: an object of the overflow does.
            return Ok(self.ns.disown(file)?);
        }
        if !holds(residency.tier) {
            return self.recover_missing(file, holds, claimed);
        }
        claimed.insert((residency.tier, file.object));
        if let Some((shadow, _)) = residency.shadow {
            claimed.insert((shadow, file.object));
            self.book_found_shadow(file, shadow);
        }
        self.take_over(file, residency.tier)
    }

    /// A copy on flash that an fsync has left is in the books again.
    fn book_found_shadow(&self, file: &File, tier: TierId) {
        let found = self
            .tiers
            .open_object(tier, file.object)
            .and_then(|o| o.stat());
        if let Ok(stat) = found {
            let charge = shadow_charge(file.object);
            self.ledger
                .settle(charge, tier, stat.allocated_bytes, false);
        }
    }

    fn take_over(&self, file: &Arc<File>, tier: TierId) -> Result<(), Errno> {
        let path = file.path();
        self.files.write().insert(file.object, file.clone());
        self.apps.arrived(file.object, &self.rules.identify(&path));
        self.name_by_xattrs(file);
        let object = self.tiers.open_object(tier, file.object)?;
        let stat = object.stat()?;
        let (dirty, writing, size) = {
            let state = file.lock();
            (state.is_dirty(), state.residency.writing, state.meta.size)
        };
        if writing || stat.size == size {
            return match dirty {
                true => self.record_object(file, &*object),
                false => {
                    self.ledger
                        .settle(file.object, tier, stat.allocated_bytes, false);
                    Ok(())
                }
            };
        }
        // Nobody had it open: the object was damaged at rest.
        let problem = format!("its object has {} bytes instead of {size}", stat.size);
        if !dirty {
            self.report(
                path,
                Errno::EIO,
                format!("{problem}; the copy is dropped, the PFS has it whole"),
            );
            return Ok(self.ns.disown(file)?);
        }
        self.ledger
            .settle(file.object, tier, stat.allocated_bytes, true);
        file.lock().error = Some(Errno::EIO);
        self.report(
            path,
            Errno::EIO,
            format!("{problem}; it is kept, and not put on the PFS"),
        );
        Ok(())
    }

    /// The object is not where the record says: memory after a reboot, or a device that is gone.
    fn recover_missing(
        &self,
        file: &Arc<File>,
        holds: impl Fn(TierId) -> bool,
        claimed: &mut HashSet<(TierId, ObjectId)>,
    ) -> Result<(), Errno> {
        let residency = file.lock().residency;
        if let Some((shadow, _)) = residency.shadow
            && holds(shadow)
        {
            let generation = self.generation(file);
            self.ns.migrated(file, generation, shadow, true)?;
            // A later fsync may have been on its way: only the object knows the size.
            file.lock().residency.writing = true;
            claimed.insert((shadow, file.object));
            return self.take_over(file, shadow);
        }
        if self.tiers.get(residency.tier).is_none() {
            let reason = "its tier is not among those given at start; start with the same --dram and --ssd to reach it";
            self.report(file.path(), Errno::ENODEV, reason.into());
            return Ok(());
        }
        let path = file.path();
        if residency.clean {
            self.ns.disown(file)?;
            return Ok(());
        }
        let published = residency.published.is_some();
        let taken = file.lock().meta.size == 0 && !published && !residency.writing;
        let names = file.lock().names.clone();
        self.ns.disown(file)?;
        if !taken {
            let older = if published {
                "; the PFS has the version before it"
            } else {
                ""
            };
            let reason = format!(
                "was in memory only, not yet flushed by fsync, and is lost with the node's power{older}"
            );
            self.report(path, Errno::EIO, reason);
            for (dir, name) in names {
                self.ns.lost_of_version(&dir, &name)?;
            }
        }
        Ok(())
    }

    /// Objects that no record names. Copies of files that live elsewhere and empty ones go; data
    /// stays for `fsck`.
    fn recover_orphans(&self, inventory: &Inventory, claimed: &HashSet<(TierId, ObjectId)>) {
        for (tier, objects) in inventory {
            let Some(slot) = self.tiers.get(*tier) else {
                continue;
            };
            for object in objects.iter().filter(|o| !claimed.contains(&(*tier, **o))) {
                let elsewhere = self.files.read().contains_key(object);
                if !elsewhere && self.adopt_orphan(*tier, *object) {
                    failpoint::hit(failpoint::Point::RecoverAdopted);
                    continue;
                }
                let empty = slot
                    .tier
                    .open(*object)
                    .and_then(|o| o.stat())
                    .is_ok_and(|s| s.size == 0);
                let unfinished = matches!(slot.tier.identity(*object), Ok(Some(identity)) if identity.is_unfinished());
                if empty || elsewhere || unfinished {
                    if let Err(error) = slot.tier.remove(*object) {
                        tracing::warn!("object {object} in {}: {error}", slot.tier.name());
                    }
                    failpoint::hit(failpoint::Point::RecoverOrphan);
                    continue;
                }
                let path = match slot.tier.identity(*object) {
                    Ok(Some(identity)) if !identity.path.is_empty() => identity.path,
                    _ => format!("(object {object} in {})", slot.tier.name()).into_bytes(),
                };
                let reason = format!(
                    "object {object} in {} has no record; 'forebay fsck' keeps its data on the PFS",
                    slot.tier.name()
                );
                self.report(path, Errno::ENOENT, reason);
            }
        }
    }

    /// A file created just before the daemon died: the object says where it belongs.
    fn adopt_orphan(&self, tier: TierId, object: ObjectId) -> bool {
        let Some(slot) = self.tiers.get(tier) else {
            return false;
        };
        let Ok(Some(identity)) = slot.tier.identity(object) else {
            return false;
        };
        if identity.shadow || identity.object != object || identity.instance != self.ns.instance() {
            return false;
        }
        let adopted = self.ns.adopt(&identity, tier).map_err(Errno::from);
        match adopted.and_then(|file| file.map(|file| self.take_over(&file, tier)).transpose()) {
            Ok(done) => done.is_some(),
            Err(errno) => {
                self.report(
                    identity.path,
                    errno,
                    format!("object {object} cannot be adopted: {errno}"),
                );
                false
            }
        }
    }

    /// Totals of earlier runs.
    pub fn restore_totals(&self, facts: &crate::facts::Facts) {
        self.counters
            .demoted_bytes
            .store(facts.demoted_bytes, Ordering::Relaxed);
        self.counters
            .demoted_files
            .store(facts.demoted_files, Ordering::Relaxed);
        self.counters
            .evicted_bytes
            .store(facts.evicted_bytes, Ordering::Relaxed);
    }
}
