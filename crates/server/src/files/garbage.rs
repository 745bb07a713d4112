//! Objects that nobody names or has open any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::{File, Garbage};
use forebay_tiers::TierKind;
use forebay_types::{Errno, ObjectId, TierId, failpoint};

use crate::base::failure::Failure;
use crate::buffer::tierset::{DRAM, OVERFLOW};
use crate::files::Files;
use crate::integrity::atrest::is_out_of_reach;

/// An object that is removed, and its file where that is known.
pub(super) type Removed = (ObjectId, Option<Arc<File>>);

/// What has become of an object that was to be removed.
enum Removal {
    /// It is gone from all its tiers.
    Done,
    /// Not from all.
    Failed,
    /// A node has gone just now.
    Away,
}

impl Files {
    /// Removes objects that nobody names or has open any more.
    pub fn collect_garbage(&self) {
        self.collect_garbage_of(None);
    }

    /// The same, but for objects of data servers other than this one, who may not answer.
    pub fn collect_garbage_of(&self, server: Option<u16>) {
        self.collecting.fetch_add(1, Ordering::SeqCst);
        self.collect_found(server);
        self.collecting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether an object is to be removed later: its node does not answer, or need not be asked.
    fn is_for_later(&self, tier: TierId, server: Option<u16>) -> bool {
        let tiers = self.buffer.tiers();
        let is_other = |server| tiers.holder_of(tier).is_some_and(|of| of.server != server);
        tiers.is_out_of_reach(tier) || server.is_some_and(is_other)
    }

    /// Whether objects are to be removed, or are just being: they are going to give space back.
    pub fn has_garbage(&self) -> bool {
        self.ns.has_garbage() || self.collecting.load(Ordering::SeqCst) > 0
    }

    fn collect_found(&self, server: Option<u16>) {
        let mut removed = Vec::new();
        self.let_go_unnamed();
        let found = self.ns.take_garbage();
        // Given back before the first is removed: that may take long.
        let later = |garbage: &Garbage| {
            let mut tiers = garbage.tiers.iter().flatten();
            tiers.any(|tier| self.is_for_later(*tier, server))
        };
        let (later, found): (Vec<_>, Vec<_>) = found.into_iter().partition(later);
        for garbage in later {
            self.buffer.ledger().set_nameless(garbage.object, true);
            self.ns.add_garbage(garbage);
        }
        if self.is_on_flash(&found)
            && let Err(error) = self.ns.sync()
        {
            // A loss of power might bring the record back, but not what it stands for.
            tracing::warn!("removed objects stay for now: {error}");
            found.into_iter().for_each(|g| self.ns.add_garbage(g));
            return;
        }
        for garbage in found {
            let file = self.buffer.file(garbage.object);
            self.buffer.queue().forget(garbage.object);
            let may_hold = |ino| self.buffer.opens().may_hold(ino, garbage.object);
            if file.as_ref().is_some_and(|file| may_hold(file.ino))
                || self.ns.is_held(garbage.object)
            {
                // The last close, or a later round, collects it.
                self.buffer.ledger().set_nameless(garbage.object, true);
                self.ns.add_garbage(garbage);
                continue;
            }
            // An open file may have moved after it was unlinked.
            let now = file.as_ref().map(|file| file.lock().residency);
            let moved = [
                now.map(|r| r.tier),
                now.and_then(|r| r.shadow).map(|(tier, _)| tier),
            ];
            let tiers: Vec<_> = garbage.tiers.iter().chain(&moved).copied().collect();
            let mut places = tiers.iter().flatten();
            if places.any(|tier| self.is_for_later(*tier, server)) {
                self.buffer.ledger().set_nameless(garbage.object, true);
                self.ns.add_garbage(garbage);
                continue;
            }
            match self.remove_objects(garbage.object, &tiers) {
                Removal::Done => removed.push((garbage.object, file)),
                // The next start removes it.
                Removal::Failed => {}
                Removal::Away => {
                    self.ns.add_garbage(garbage);
                    continue;
                }
            }
            let bytes = self.buffer.ledger().used_bytes(garbage.object);
            self.base
                .counters()
                .deleted_bytes
                .fetch_add(bytes, Ordering::Relaxed);
            self.buffer.leave(garbage.object);
            self.integrity.at_rest().forget(garbage.object);
        }
        if removed.is_empty() {
            return;
        }
        failpoint::hit(failpoint::Point::GarbageObjects);
        self.removed.lock().extend(removed);
    }

    fn is_on_flash(&self, garbage: &[forebay_namespace::Garbage]) -> bool {
        let mut tiers = garbage.iter().flat_map(|g| g.tiers).flatten();
        tiers.any(|tier| self.buffer.tiers().kind(tier) != TierKind::Dram)
    }

    /// Takes removed objects off the record, once their removal survives power loss: an object that
    /// came back without one would be taken for a file that nobody has recorded yet.
    pub fn forget_removed(&self) -> Result<(), Failure> {
        let removed = self.take_removed();
        if removed.is_empty() {
            return Ok(());
        }
        let tiers = self.buffer.tiers().iter();
        let flash: Vec<_> = tiers
            .filter(|(_, slot)| slot.kind == TierKind::Ssd)
            .map(|(_, slot)| &slot.tier)
            .collect();
        if flash.iter().any(|tier| !tier.is_answering()) {
            // Whether a removal there survives is not known before it is back.
            self.removed.lock().extend(removed);
            return Ok(());
        }
        let synced = flash.iter().try_for_each(|tier| tier.sync_all());
        if synced.as_ref().is_err_and(is_out_of_reach) {
            // It has gone meanwhile.
            self.removed.lock().extend(removed);
            return Ok(());
        }
        let objects: Vec<ObjectId> = removed.iter().map(|(object, _)| *object).collect();
        let forgotten = synced
            .map_err(|error| Failure::of_io("flush of flash", error))
            .and_then(|()| Ok(self.ns.garbage_removed(&objects)?));
        if forgotten.is_err() {
            self.removed.lock().extend(removed);
        }
        forgotten
    }

    /// All but what is being copied: that makes another object, which is whole for a moment before
    /// it goes. A start that found it without a record would take it for a new file.
    fn take_removed(&self) -> Vec<Removed> {
        let mut held = self.removed.lock();
        let is_copied = |file: &Option<Arc<File>>| {
            let file = file.as_ref();
            file.is_some_and(|file| file.try_copying().is_none())
        };
        let all = std::mem::take(&mut *held);
        let (copied, removed) = all.into_iter().partition(|(_, file)| is_copied(file));
        *held = copied;
        removed
    }

    fn remove_objects(&self, object: ObjectId, tiers: &[Option<TierId>]) -> Removal {
        tracing::trace!(%object, ?tiers, "removed");
        self.buffer.unflushed().let_go(object);
        let mut all = true;
        for tier in tiers.iter().flatten() {
            let Some(slot) = self.buffer.tiers().get(*tier) else {
                // Should the tier come back, nobody is to take the object for a file.
                all &= matches!(*tier, DRAM | OVERFLOW);
                continue;
            };
            if slot.is_another && slot.kind == TierKind::Ssd {
                all = false;
                continue;
            }
            if slot.kind == TierKind::Pfs && self.base.health().is_silent() {
                // It stays marked as garbage, and the next start removes it.
                all = false;
                continue;
            }
            match slot.tier.remove(object) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) if is_out_of_reach(&e) && self.buffer.tiers().holder_of(*tier).is_some() => {
                    return Removal::Away;
                }
                Err(e) => {
                    all = false;
                    let path = format!("(object {object} in {})", slot.tier.name()).into_bytes();
                    self.base
                        .report(path, Errno::of(&e), format!("cannot be removed: {e}"));
                }
            }
        }
        match all {
            true => Removal::Done,
            false => Removal::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use forebay_types::{Ino, OpenFlags};
    use forebay_wire::WriteHow;

    use crate::testing::{Lab, answer, create, drain};

    #[test]
    fn what_is_being_copied_stays_on_record_until_the_copy_is_done_or_given_up() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        let copying = file.copying();
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.collect_garbage();
        assert!(!rooms.files.has_garbage(), "its space is given back");
        let on_record = || rooms.files.removed.lock().len();
        rooms.files.forget_removed().expect("flushed");
        assert_eq!(on_record(), 1, "a copy is under way");
        drop(copying);
        rooms.files.forget_removed().expect("flushed");
        assert_eq!(on_record(), 0);
    }

    /// Who opens it has the claim, and waits for the target that the first change keeps.
    #[test]
    fn a_first_change_that_makes_space_does_not_wait_for_who_opens_the_file() {
        let lab = Lab::with(|settings| settings.ssd[0].capacity_bytes = Some(8 << 20));
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &vec![7; 5 << 20]);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let file = rooms.buffer.files().pop().expect("file");
        rooms.buffer.evict(&file).expect("it is clean");
        assert!(rooms.files.has_garbage(), "its object is still there");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        std::thread::scope(|scope| {
            let opening = rooms.buffer.opens().claim(file.ino);
            let (ended, end) = mpsc::channel();
            scope.spawn(move || {
                let written = rooms.files.write(opened.handle, 0, b"x", WriteHow::WAITING);
                ended.send(answer(written))
            });
            let written = end.recv_timeout(Duration::from_secs(20));
            drop(opening);
            assert_eq!(written, Ok(Ok(Some(1))), "it waits for the claim");
        });
        rooms.files.release(opened.handle).expect("close");
        rooms.files.collect_garbage();
        assert!(!rooms.files.has_garbage());
    }
}
