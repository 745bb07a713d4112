//! Descriptors of open files go, and come back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_tiers::{Object, TierKind, start_writeback, wait_writeback};
use forebay_types::TierId;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::Candidates;
use crate::base::failure::Failure;
use crate::buffer::opens::{OpenFile, SHARDS};
use crate::buffer::target::Target;
use crate::files::Files;

impl Files {
    /// Where the bytes of an open file are, held open for as long as the answer lives.
    ///
    /// # Errors
    /// Its object was handed back and cannot be opened again.
    pub fn target<'a>(&self, open: &'a OpenFile) -> Result<RwLockReadGuard<'a, Target>, Failure> {
        let target = open.target.read();
        open.note_use();
        if target.is_held() {
            return Ok(target);
        }
        drop(target);
        self.make_way();
        let mut target = open.target.write();
        self.take_back(open, &mut target)?;
        Ok(RwLockWriteGuard::downgrade(target))
    }

    /// Opens again what was handed back.
    pub fn take_back(&self, open: &OpenFile, target: &mut Target) -> Result<(), Failure> {
        let Target::Buffer { file, object, tier } = &*target else {
            return Ok(());
        };
        if object.is_held() {
            return Ok(());
        }
        let (file, tier) = (file.clone(), *tier);
        let object = match open.is_passthrough() {
            true => self.buffer.tiers().open_object(tier, file.object)?,
            false => self.buffer.tiers().open_to_write(tier, file.object)?,
        };
        open.put(target, Target::Buffer { file, object, tier });
        Ok(())
    }

    /// To be called before an open file gets a descriptor: where too many have one, some are handed
    /// back. Costs a load where not.
    pub fn make_way(&self) {
        let descriptors = &self.descriptors;
        let is_due = || self.buffer.opens().held() >= descriptors.look_at.load(Ordering::Relaxed);
        if !is_due() {
            return;
        }
        let mut hand = descriptors.hand.lock();
        // Who was waited for has done it.
        if !is_due() {
            return;
        }
        let goal = descriptors
            .files_max
            .saturating_sub(descriptors.at_a_time());
        // The first look only sees who is used until the second, and the second begins what the
        // third waits for.
        for candidates in [Candidates::Flushed, Candidates::Flushed, Candidates::All] {
            for _ in 0..SHARDS {
                if self.buffer.opens().held() <= goal {
                    break;
                }
                *hand = (*hand + 1) % SHARDS;
                self.hand_back_some(*hand, candidates, goal);
            }
        }
        // Where those that are left cannot be handed back, it is not tried again for each that
        // comes.
        let next = self.buffer.opens().held() + descriptors.at_a_time();
        descriptors
            .look_at
            .store(next.max(descriptors.files_max), Ordering::Relaxed);
    }

    fn hand_back_some(&self, shard: usize, candidates: Candidates, goal: u64) {
        for open in self.buffer.opens().of_shard(shard) {
            if self.buffer.opens().held() <= goal {
                return;
            }
            if !open.take_use() {
                self.hand_back(&open, candidates);
            }
        }
    }

    /// Hands a descriptor back, unless the file is used or moved meanwhile, or something speaks
    /// against it.
    fn hand_back(&self, open: &OpenFile, candidates: Candidates) {
        let seen = match open.target.try_read().as_deref() {
            Some(Target::Buffer { file, object, tier }) if object.is_held() => {
                (file.clone(), object.clone(), *tier)
            }
            _ => return,
        };
        let (file, held, tier) = seen;
        let is_flash = self.buffer.tiers().kind(tier) == TierKind::Ssd;
        if is_flash && open.is_passthrough() && open.is_written() {
            return;
        }
        let Some(unheld) = self.unheld(tier, file.object) else {
            return;
        };
        let may_be_unflushed =
            is_flash && !open.is_passthrough() && open.touched.load(Ordering::Acquire);
        if may_be_unflushed {
            let flush = || {
                let object = self.buffer.tiers().open_object(tier, file.object)?;
                self.integrity.heard(&file, tier, wait_writeback(&*object))
            };
            if candidates == Candidates::Flushed {
                return start_writeback(&*held, 0, 0);
            }
            if flush().is_err() {
                return;
            }
        }
        drop(held);
        let Some(mut target) = open.target.try_write() else {
            return;
        };
        let is_same = matches!(&*target, Target::Buffer { tier: now, .. } if *now == tier);
        if is_same && !open.is_used() {
            let object = unheld;
            open.put(&mut target, Target::Buffer { file, object, tier });
        }
    }

    /// Programs are about to write it by themselves.
    pub fn hold_open(&self, target: &Target) {
        if let Target::Buffer { file, object, tier } = target {
            self.integrity.hold_open(file, *tier, object);
        }
    }

    /// What stands for an object of this node's tiers that is not held open.
    pub fn unheld(&self, tier: TierId, object: forebay_types::ObjectId) -> Option<Arc<dyn Object>> {
        let slot = self.buffer.tiers().get(tier)?;
        matches!(slot.kind, TierKind::Dram | TierKind::Ssd)
            .then(|| slot.tier.unheld(object))
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use crate::rooms::Rooms;
    use forebay_tiers::testing::unwritten_bytes;
    use forebay_types::{Errno, Handle, Ino, OpenFlags};
    use forebay_wire::WriteHow;

    use super::*;
    use crate::testing::{Lab, answer, create, drain};

    const FILES: usize = 40;
    /// Half of what the lab may have.
    const FILES_MAX: u64 = 8;

    fn lab() -> Lab {
        Lab::with(|settings| {
            settings.descriptors_max = Some(2 * FILES_MAX);
            // What is set aside for each while it is written is much more than it takes.
            settings.ssd[0].capacity_bytes = Some(1 << 30);
        })
    }

    fn name(at: usize) -> String {
        format!("f{at}")
    }

    fn create_all(rooms: &Rooms) -> Vec<Handle> {
        let create = |at| {
            create(
                rooms,
                name(at).as_bytes(),
                format!("first {at:03}").as_bytes(),
            )
        };
        (0..FILES).map(create).collect()
    }

    /// Objects of the lab that this process has open.
    fn objects_open(lab: &Lab) -> u64 {
        let below = lab.pfs("").parent().expect("lab").join("ssd/objects");
        let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        let targets = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let objects = targets.filter(|to| to.starts_with(&below) && to.is_file());
        objects.count() as u64
    }

    fn read(rooms: &Rooms, handle: Handle) -> Vec<u8> {
        let mut found = vec![0; 100];
        let len = rooms.files.read(handle, 0, &mut found).expect("read");
        found.truncate(len);
        found
    }

    #[test]
    fn open_files_beyond_the_limit_are_handed_back_and_used_again() {
        let lab = lab();
        let rooms = lab.rooms();
        let handles = create_all(rooms);
        assert!(objects_open(&lab) <= FILES_MAX);
        assert_eq!(objects_open(&lab), rooms.buffer.opens().held());
        for (at, handle) in handles.iter().enumerate() {
            assert_eq!(read(rooms, *handle), format!("first {at:03}").as_bytes());
        }
        for (at, handle) in handles.iter().enumerate() {
            let text = format!("later {at:03}");
            let written = rooms
                .files
                .write(*handle, 0, text.as_bytes(), WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(text.len())));
            rooms.files.fsync(*handle, false).expect("fsync");
            assert!(objects_open(&lab) <= FILES_MAX);
        }
        for handle in handles {
            rooms.files.release(handle).expect("close");
        }
        assert_eq!(rooms.buffer.opens().held(), 0);
        // One has not been flushed since its close, for all that is known.
        assert_eq!(objects_open(&lab), rooms.buffer.unflushed().len() as u64);
        while !rooms.buffer.queue().waiting().is_empty() {
            drain(rooms);
        }
        for at in 0..FILES {
            assert_eq!(lab.on_pfs(&name(at)), format!("later {at:03}").as_bytes());
        }
        assert!(
            rooms.base.errors().is_empty(),
            "{:?}",
            rooms.base.errors().all()
        );
    }

    #[test]
    fn what_was_written_is_on_its_device_before_its_descriptor_goes() {
        let lab = lab();
        let rooms = lab.rooms();
        for handle in create_all(rooms) {
            let (open, _) = rooms.buffer.opens().file(handle).expect("open");
            let target = open.target.read();
            let Target::Buffer { file, tier, .. } = &*target else {
                panic!("not in the burst buffer");
            };
            if !target.is_held() {
                let again = rooms
                    .buffer
                    .tiers()
                    .open_object(*tier, file.object)
                    .expect("object");
                // Not every kernel tells.
                assert_eq!(unwritten_bytes(&*again).unwrap_or(0), 0);
            }
        }
    }

    #[test]
    fn what_is_just_used_is_not_handed_back() {
        let lab = lab();
        let rooms = lab.rooms();
        let (open, _) = rooms
            .buffer
            .opens()
            .file(create(rooms, b"used", b"x"))
            .expect("open");
        let target = rooms.files.target(&open).expect("target");
        let others = create_all(rooms);
        assert!(target.is_held() && rooms.buffer.opens().held() <= FILES_MAX);
        drop(target);
        // Its turn comes when the hand does; of those in one shard, in no order.
        let gone = (0..100).any(|_| {
            others.iter().for_each(|other| drop(read(rooms, *other)));
            !open.target.read().is_held()
        });
        assert!(gone);
    }

    #[test]
    fn files_of_the_pfs_keep_their_descriptors() {
        let lab = lab();
        let rooms = lab.rooms();
        let open = |at: usize| {
            std::fs::write(lab.pfs(&name(at)), name(at)).expect("write");
            let found = rooms.base.ns().lookup(Ino::ROOT, name(at).as_bytes());
            let flags = OpenFlags(libc::O_RDONLY as u32);
            let opened = rooms
                .files
                .open(found.expect("lookup").attr.ino, flags, None);
            opened.expect("open").0.handle
        };
        let handles: Vec<_> = (0..FILES).map(open).collect();
        assert_eq!(rooms.buffer.opens().held(), FILES as u64);
        for (at, handle) in handles.iter().enumerate() {
            std::fs::remove_file(lab.pfs(&name(at))).expect("remove");
            assert_eq!(read(rooms, *handle), name(at).as_bytes());
        }
    }

    #[test]
    fn an_object_that_cannot_be_opened_again_is_an_error_of_that_request() {
        let lab = lab();
        let rooms = lab.rooms();
        let handles = create_all(rooms);
        let lost = handles.iter().find(|handle| {
            let (open, _) = rooms.buffer.opens().file(**handle).expect("open");
            !open.target.read().is_held()
        });
        let lost = *lost.expect("one was handed back");
        let (open, _) = rooms.buffer.opens().file(lost).expect("open");
        let target = open.target.read().clone();
        let Target::Buffer { file, tier, .. } = target else {
            panic!("not in the burst buffer");
        };
        let slot = rooms.buffer.tiers().get(tier).expect("tier");
        slot.tier.remove(file.object).expect("remove");
        assert_eq!(
            answer(rooms.files.read(lost, 0, &mut [0])),
            Err(Errno::ENOENT)
        );
        let other = handles.iter().find(|handle| **handle != lost);
        assert!(!read(rooms, *other.expect("another")).is_empty());
    }
}
