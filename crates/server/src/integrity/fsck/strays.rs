//! Records without files, objects without records, unfinished copies without a demotion.

use std::collections::HashSet;
use std::time::Duration;

use forebay_namespace::{Garbage, RecordTrouble};
use forebay_policy::repair::{Damage, Knowledge};
use forebay_types::{Errno, ObjectId, TierId, failpoint};

use super::recover::Hint;
use super::{Check, Listed, Wrong, keep_record};
use crate::buffer::tierset::Slot;
use crate::integrity::Integrity;

/// Between its object and its record a file that is being made has so long.
const MAKING: Duration = Duration::from_millis(500);

/// What is wrong with something that is no file.
fn stray(damage: Damage, subject: Vec<u8>, problem: String) -> Wrong {
    Wrong {
        damage,
        subject,
        problem,
        known: Knowledge::default(),
    }
}

fn is_missing<T>(found: &std::io::Result<T>) -> bool {
    matches!(found, Err(e) if e.raw_os_error() == Some(libc::ENOENT))
}

fn in_tier(object: ObjectId, slot: &Slot) -> Vec<u8> {
    format!("(object {object} in {})", slot.tier.name()).into_bytes()
}

impl Check<'_> {
    /// Records that cannot be served.
    pub(super) fn records(&mut self) {
        let troubles = match self.integrity.ns.check_records() {
            Ok(troubles) => troubles,
            Err(error) => {
                return self.unchecked(b"(metadata store)", Damage::RecordUnreadable, &error);
            }
        };
        for trouble in troubles {
            match trouble {
                RecordTrouble::Unreadable { key, value } => {
                    let subject = format!("(record {})", key.escape_ascii()).into_bytes();
                    let problem = "it does not decode".to_string();
                    let wrong = stray(Damage::RecordUnreadable, subject, problem);
                    self.found(wrong, |integrity, _| {
                        keep_record(integrity, &key, &value)?;
                        failpoint::hit(failpoint::Point::FsckRecordKept);
                        Ok(integrity.ns.remove_record(&key)?)
                    });
                }
                RecordTrouble::DirectoryUnknown { object, record } => {
                    let name = record.names.first().map(|(_, name)| name.clone());
                    let problem = "the directory that it is in is not known".to_string();
                    let subject = name.unwrap_or_default();
                    let wrong = stray(Damage::DirectoryUnknown, subject, problem);
                    let tier = record.residency.tier;
                    let hint = self.integrity.hint_of_record(tier, object, &record);
                    self.recovered(wrong, (object, &hint), |integrity| {
                        let place = integrity.recover_object(tier, object, &hint)?;
                        // The record first: an object without one is an orphan, and a record
                        // without an object is in the way for good.
                        integrity.ns.remove_file_record(object)?;
                        integrity.remove_recovered(tier, object)?;
                        Ok(place)
                    });
                }
                RecordTrouble::NameTakenTwice { object, name } => self.taken_twice(object, &name.1),
            }
        }
    }

    fn taken_twice(&mut self, object: ObjectId, name: &[u8]) {
        let Some(file) = self.integrity.buffer.file(object) else {
            return;
        };
        let problem = format!("another file is shown under its name; it is object {object}");
        let wrong = stray(Damage::NameTakenTwice, file.path(), problem);
        let new = [name, format!(".forebay-conflict-{object}").as_bytes()].concat();
        self.found(wrong, |integrity, _| {
            let dir = file
                .lock()
                .names
                .iter()
                .find(|(_, n)| **n == *name)
                .cloned();
            let (dir, _) = dir.ok_or(Errno::ENOENT)?;
            integrity.ns.part_names(&file, &dir, name, &new)?;
            integrity.buffer.book_state(&file);
            integrity.buffer.queue().add(object);
            Ok(())
        });
    }

    /// Objects that no record names, objects that were to be removed, unfinished copies.
    pub(super) fn strays(&mut self) {
        let garbage = match self.integrity.ns.recorded_garbage() {
            Ok(garbage) => garbage,
            Err(error) => {
                return self.unchecked(b"(metadata store)", Damage::Garbage, &error);
            }
        };
        let listed = self.list();
        for (tier, objects) in &listed {
            let Some(slot) = self.integrity.buffer.tiers().get(*tier) else {
                continue;
            };
            for object in objects {
                self.object_at(*tier, slot, *object, &garbage);
            }
        }
        self.unknown_objects();
        self.unfinished_copies();
    }

    /// Objects that no record names. One that is just being made has none yet.
    fn unknown_objects(&mut self) {
        let unknown = std::mem::take(&mut self.unknown);
        if self.served && !unknown.is_empty() {
            std::thread::sleep(MAKING);
        }
        for (tier, object) in unknown {
            if let Some(slot) = self.integrity.buffer.tiers().get(tier) {
                self.unknown_object(tier, slot, object);
            }
        }
    }

    fn list(&mut self) -> Listed {
        let mut listed = Vec::new();
        for (id, slot) in self.integrity.buffer.tiers().iter() {
            let mut objects = HashSet::new();
            if !slot.tier.is_answering() {
                let name = slot.tier.name().to_string();
                self.report.not_looked_at.push(name);
                continue;
            }
            let done = slot.tier.list(&mut |object| {
                objects.insert(object);
            });
            self.report.objects += objects.len() as u64;
            if let Err(error) = done {
                let name = slot.tier.name().as_bytes().to_vec();
                self.unchecked(&name, Damage::ObjectUnreadable, &error);
            }
            listed.push((id, objects));
        }
        listed
    }

    /// An object, by where it lies: is it the one that its record means?
    pub(super) fn object_at(
        &mut self,
        tier: TierId,
        slot: &Slot,
        object: ObjectId,
        garbage: &[Garbage],
    ) {
        let is_garbage = garbage.iter().any(|g| g.object == object);
        if let Some(file) = self.integrity.buffer.file(object) {
            let residency = file.lock().residency;
            let named = residency.tier == tier || residency.shadow.is_some_and(|(t, _)| t == tier);
            // Under way from one tier to another, or being removed: seen at the next check.
            if named || !self.dry_run || self.integrity.buffer.opens().by_ino(file.ino).is_some() {
                return;
            }
        }
        if is_garbage {
            if self.served {
                // It is being removed.
                return;
            }
            let problem = "was to be removed and is still there".to_string();
            let wrong = stray(Damage::Garbage, in_tier(object, slot), problem);
            return self.found(wrong, move |integrity, _| {
                slot.tier.remove(object)?;
                failpoint::hit(failpoint::Point::FsckGarbage);
                Ok(integrity.ns.garbage_removed(&[object])?)
            });
        }
        if self.integrity.ns.left_behind().contains(&(object, tier)) {
            if self.served {
                return;
            }
            let problem = "was left where its file was and is still there".to_string();
            let wrong = stray(Damage::Garbage, in_tier(object, slot), problem);
            return self.found(wrong, move |integrity, _| {
                slot.tier.remove(object)?;
                slot.tier.sync_all()?;
                Ok(integrity.ns.no_longer_left(object, tier)?)
            });
        }
        self.unknown.push((tier, object));
    }

    /// An object that no record named a moment ago.
    fn unknown_object(&mut self, tier: TierId, slot: &Slot, object: ObjectId) {
        let remove = move |_: &Integrity, _| Ok(slot.tier.remove(object)?);
        // Created since the files were looked at, or removed since the objects were.
        let Ok(stat) = slot.tier.open(object).and_then(|o| o.stat()) else {
            return;
        };
        if self.integrity.buffer.file(object).is_some() || self.integrity.ns.is_recorded(object) {
            return;
        }
        let problem = "no record names it".to_string();
        if stat.size == 0 {
            let wrong = stray(Damage::OrphanEmpty, in_tier(object, slot), problem);
            return self.found(wrong, remove);
        }
        match slot.tier.identity(object) {
            Ok(Some(i)) if self.integrity.buffer.is_unnamed(object, &i) => {
                let problem = "its file had no name when the daemon ended".to_string();
                let wrong = stray(Damage::Garbage, in_tier(object, slot), problem);
                self.found(wrong, remove);
            }
            Ok(Some(i)) if i.object == object && i.instance == self.integrity.ns.instance() => {
                let hint = Hint::from(&i);
                let subject = if i.path.is_empty() {
                    in_tier(object, slot)
                } else {
                    i.path
                };
                let wrong = stray(
                    Damage::Orphan,
                    subject,
                    format!("object {object}: {problem}"),
                );
                self.recovered(wrong, (object, &hint), |integrity| {
                    let place = integrity.recover_object(tier, object, &hint)?;
                    integrity.remove_recovered(tier, object)?;
                    Ok(place)
                });
            }
            _ => {
                let wrong = stray(Damage::OrphanAnonymous, in_tier(object, slot), problem);
                self.found(wrong, |_, _| Ok(slot.tier.quarantine(object).map(drop)?));
            }
        }
    }

    fn unfinished_copies(&mut self) {
        let dirs = match self.integrity.ns.recorded_dirs() {
            Ok(dirs) => dirs,
            Err(error) => {
                return self.unchecked(b"(metadata store)", Damage::StrayCopy, &error);
            }
        };
        for dir in dirs {
            // A directory that is gone has no copies in it.
            let Ok(names) = self.integrity.ns.unfinished_copies(&dir) else {
                continue;
            };
            for (name, object) in names {
                let under_way = self.integrity.buffer.file(object).is_some_and(|file| {
                    let state = file.lock();
                    state.demoting || state.temporary.is_some()
                });
                if under_way {
                    continue;
                }
                // Published, or given up, since they were listed.
                let handle = self.integrity.ns.open_dir(&dir);
                let pfs = self.integrity.ns.pfs();
                if handle.is_ok_and(|handle| is_missing(&pfs.stat(&handle, &name))) {
                    continue;
                }
                let problem = "an unfinished copy that nobody is making".to_string();
                let wrong = stray(Damage::StrayCopy, dir.path_of(&name), problem);
                self.found(wrong, |integrity, _| {
                    let handle = integrity.ns.open_dir(&dir)?;
                    Ok(integrity.ns.pfs().unlink(&handle, &name)?)
                });
            }
        }
    }
}
