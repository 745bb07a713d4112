//! Objects that no record names, as a start finds them.

use std::collections::HashSet;

use forebay_namespace::Adopted;
use forebay_tiers::Identity;
use forebay_types::{Errno, ObjectId, TierId, failpoint};

use crate::base::failure::Failure;
use crate::buffer::tierset::Slot;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::recovery::Inventory;

/// What an orphan is worth.
enum Worth {
    /// It is a file again.
    Adopted,
    /// Nothing: empty, unfinished, a copy of what is elsewhere, or of a file that had no name, or
    /// that is gone.
    Nothing,
    /// It was never fsynced, and its name is another file's: if it stayed it would be adopted when
    /// that one goes, long after.
    Replaced,
    /// It was never fsynced, and the node has lost its power since: nobody knows what of it is
    /// there.
    Torn,
    /// It may be the only copy of something.
    Unknown,
}

/// What has become of an orphan.
enum Outcome {
    /// It is removed.
    Removed,
    /// It is a file, or set aside.
    Settled,
    /// It is where it was, for `fsck`.
    Kept,
}

/// Files that are no more, as the records say.
pub struct Gone {
    /// Their objects are to be removed.
    pub deleted: HashSet<ObjectId>,
    /// These have a record, though it cannot be served or read.
    pub stranded: HashSet<ObjectId>,
}

impl Gone {
    fn has(&self, object: ObjectId, has_lost_its_record: impl FnOnce() -> bool) -> bool {
        self.deleted.contains(&object)
            || (!self.stranded.contains(&object) && has_lost_its_record())
    }
}

impl Lifecycle {
    /// Copies of files that live elsewhere and empty ones go; what may be the only copy of
    /// something stays for `fsck`, or, where its name is another's, goes aside.
    /// Of what `gone` has nothing is a file, wherever a move has left a copy of it. Returns what is
    /// kept where it is.
    pub fn recover_orphans(
        &self,
        inventory: &Inventory,
        claimed: &HashSet<(TierId, ObjectId)>,
        gone: &Gone,
    ) -> Vec<(TierId, ObjectId)> {
        let mut kept = Vec::new();
        for (tier, objects) in inventory {
            let Some(slot) = self.buffer.tiers().get(*tier) else {
                continue;
            };
            let mut removed = false;
            for object in objects.iter().filter(|o| !claimed.contains(&(*tier, **o))) {
                match self.recover_orphan(*tier, slot, *object, gone) {
                    Outcome::Removed => removed = true,
                    Outcome::Kept => kept.push((*tier, *object)),
                    Outcome::Settled => {}
                }
            }
            // Brought back by a power cut, it might be taken for what it is not.
            if removed && let Err(error) = slot.tier.sync_all() {
                let path = format!("({})", slot.tier.name()).into_bytes();
                self.base
                    .report(path, Errno::of(&error), format!("flush: {error}"));
            }
        }
        kept
    }

    fn recover_orphan(&self, tier: TierId, slot: &Slot, object: ObjectId, gone: &Gone) -> Outcome {
        let identity = match slot.tier.identity(object) {
            Ok(identity) => identity,
            Err(error) => {
                let path = format!("(object {object} in {})", slot.tier.name()).into_bytes();
                let reason = format!("cannot be looked at: {error}; it is kept");
                self.base.report(path, Errno::of(&error), reason);
                return Outcome::Kept;
            }
        };
        let path = || match &identity {
            Some(identity) if !identity.path.is_empty() => identity.path.clone(),
            _ => format!("(object {object} in {})", slot.tier.name()).into_bytes(),
        };
        // Of another tier in its place nothing is known.
        let has_lost_its_record = || {
            let is_ours = identity.as_ref().is_some_and(|i| self.is_ours(i, object));
            is_ours && !slot.is_fresh && self.ns.has_lost_its_record(object, tier)
        };
        let worth = match gone.has(object, has_lost_its_record) {
            true => Worth::Nothing,
            false => self.worth_of_orphan(tier, slot, object, identity.as_ref()),
        };
        match worth {
            Worth::Adopted => failpoint::hit(failpoint::Point::RecoverAdopted),
            Worth::Nothing => {
                let (name, path) = (slot.tier.name(), path());
                match slot.tier.remove(object) {
                    Ok(()) => tracing::info!(%object, name, path = %path.escape_ascii(), "no file"),
                    Err(error) => tracing::warn!("object {object} in {name}: {error}"),
                }
                failpoint::hit(failpoint::Point::RecoverOrphan);
                return Outcome::Removed;
            }
            Worth::Replaced => {
                let why = format!(
                    "object {object} was not yet flushed by fsync, and its name is another's now"
                );
                return self.quarantine_orphan(slot, object, path(), Errno::EEXIST, &why);
            }
            Worth::Torn => {
                let why = "was not yet flushed by fsync, and is lost with the node's power";
                return self.quarantine_orphan(slot, object, path(), Errno::EIO, why);
            }
            Worth::Unknown => {
                let reason = format!(
                    "object {object} in {} has no record; 'forebay fsck' keeps its data on the PFS",
                    slot.tier.name()
                );
                self.base.report(path(), Errno::ENOENT, reason);
                return Outcome::Kept;
            }
        }
        Outcome::Settled
    }

    /// Whether an object says that this instance has made it under this id.
    fn is_ours(&self, identity: &Identity, object: ObjectId) -> bool {
        identity.object == object && identity.instance == self.ns.instance()
    }

    fn quarantine_orphan(
        &self,
        slot: &Slot,
        object: ObjectId,
        path: Vec<u8>,
        errno: Errno,
        why: &str,
    ) -> Outcome {
        match slot.tier.quarantine(object) {
            Ok(kept) => {
                let reason = format!("{why}; it is kept in {kept} of {}", slot.tier.name());
                self.base.report(path, errno, reason);
                Outcome::Settled
            }
            Err(error) => {
                let reason = format!("object {object} cannot be set aside: {error}");
                self.base.report(path, Errno::of(&error), reason);
                Outcome::Kept
            }
        }
    }

    fn worth_of_orphan(
        &self,
        tier: TierId,
        slot: &Slot,
        object: ObjectId,
        identity: Option<&Identity>,
    ) -> Worth {
        let is_of_nothing = |identity: &Identity| {
            identity.is_unfinished() || self.buffer.is_unnamed(object, identity)
        };
        if self.buffer.table().read().contains_key(&object) || identity.is_some_and(is_of_nothing) {
            return Worth::Nothing;
        }
        let stat = slot.tier.open(object).and_then(|object| object.stat()).ok();
        let taken = match identity.map(|identity| self.adopt_orphan(tier, object, identity)) {
            // It may be a file, though it cannot be told now.
            Some(Err(_)) => return Worth::Unknown,
            Some(Ok(taken)) => taken,
            None => None,
        };
        match taken {
            Some(Adopted::File(_)) => return Worth::Adopted,
            // A copy has the times of what it was copied from.
            Some(Adopted::Taken(Some(original)))
                if stat.is_some_and(|s| (s.size, s.mtime) == (original.size, original.mtime)) =>
            {
                return Worth::Nothing;
            }
            _ => {}
        }
        match (stat, taken) {
            (Some(stat), _) if stat.size == 0 => Worth::Nothing,
            (_, Some(Adopted::Taken(_))) => Worth::Replaced,
            (_, Some(Adopted::Torn)) => Worth::Torn,
            _ => Worth::Unknown,
        }
    }

    /// A file created just before the daemon died: the object says where it belongs.
    fn adopt_orphan(
        &self,
        tier: TierId,
        object: ObjectId,
        identity: &Identity,
    ) -> Result<Option<Adopted>, Failure> {
        if identity.shadow || !self.is_ours(identity, object) {
            return Ok(None);
        }
        let may_be_torn = self.boot.may_have_torn(self.buffer.tiers().get(tier));
        let adopted = self.ns.adopt(identity, tier, may_be_torn);
        let taken_over = adopted.map_err(Failure::from).and_then(|adopted| {
            if let Adopted::File(file) = &adopted {
                self.take_over(file, tier)?;
            }
            Ok(adopted)
        });
        taken_over.map(Some).inspect_err(|failure| {
            let reason = format!("object {object} cannot be adopted: {failure}");
            self.base
                .report(identity.path.clone(), failure.errno(), reason);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use forebay_types::Ino;

    use super::Gone;
    use crate::testing::{FLASH, Lab, create};

    #[test]
    fn what_a_move_has_left_of_a_deleted_file_is_no_file() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", b"content"))
            .expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        assert_ne!(file.tier(), FLASH, "not in memory");
        let slot = rooms.buffer.tiers().get(FLASH).expect("flash");
        let identity = rooms.buffer.identity(&file, false);
        let left = slot.tier.create(file.object, &identity).expect("create");
        left.write_at(b"content", 0).expect("write");
        drop(left);
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        // As a start that follows: nobody has it any more.
        rooms.buffer.leave(file.object);
        let objects = HashSet::from([file.object]);
        let inventory = vec![(FLASH, objects.clone())];
        let gone = Gone {
            deleted: objects,
            stranded: HashSet::new(),
        };
        let claimed = HashSet::new();
        let kept = rooms.lifecycle.recover_orphans(&inventory, &claimed, &gone);
        assert_eq!(kept, []);
        assert!(slot.tier.open(file.object).is_err(), "it is removed");
        assert!(rooms.base.ns().lookup(Ino::ROOT, b"f").is_err());
    }
}
