//! Descriptors: the process may have only so many, and an open file needs one only while something is done with it.
//!
//! Far from the limit every open file keeps its own. Near it those that were not used lately are handed back, the least recently used
//! first as far as one bit for each can tell; whoever needs one again opens the object by its id, under which it stays in its
//! tier until the last close, with a name or without. Invariants:
//!
//! 1. What is read and written is held open meanwhile ([`Files::target`]): it is handed back only by who has the lock of the file's
//!    target to write, so nobody is in the middle of anything.
//! 2. What requests have written to flash is on its device before the descriptor goes: of an error of write-back the kernel tells who
//!    has the file open, and it may forget it with the last of those. Another descriptor waits for that, so that the error
//!    stays for the next fsync. What the kernel writes by itself it holds open by itself.
//! 3. Only what is in a tier of this node is handed back. A file of the PFS might be removed by an outsider, who leaves nothing to
//!    be opened again; and the PFS may hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_tiers::{Object, TierKind, start_writeback, wait_writeback};
use forebay_types::{Errno, TierId};
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};

use crate::base::settings::Settings;
use crate::buffer::opens::{OpenFile, SHARDS, Target};
use crate::files::Files;

/// Parts of what the process may have left: for open files, for copies under way, for directories of the PFS. The rest is for whoever
/// needs one for a moment, and for files of the PFS, which keep theirs.
const OPEN_FILES_PART: u64 = 2;
const COPIES_PART: u64 = 8;
const DIRECTORIES_PART: u64 = 8;
/// What a directory of objects takes that is still to be made: one for each of its shards, and some beside.
const OVERFLOW_TAKES: u64 = 260;
/// A copy has its source, its destination and its directory open.
const EACH_COPY_TAKES: u64 = 3;
/// So large a part is handed back at a time: a look at all open files is not for one of them.
const AT_A_TIME_PART: u64 = 16;

/// How many descriptors are for what.
pub struct Descriptors {
    /// As many open files may have one before some are handed back.
    files_max: u64,
    /// As many files each demoter may copy together.
    pub batch_files_max: usize,
    /// As many directories of the PFS may be kept open.
    pub directories_max: usize,
    /// With so many the next look is worth it.
    look_at: AtomicU64,
    /// The shard of open files that the last look ended with; held while looking.
    hand: Mutex<usize>,
}

impl Descriptors {
    /// Shares out what the process may still have.
    pub fn new(settings: &Settings, has_overflow: bool) -> Descriptors {
        let left = settings
            .descriptors_max
            .unwrap_or_else(|| left_to_this_process(has_overflow));
        let files_max = (left / OPEN_FILES_PART).max(1);
        let workers = settings.demotion.workers.max(1) as u64;
        let copies = left / COPIES_PART / EACH_COPY_TAKES / workers;
        let clamp = |most: u64| usize::try_from(most.max(1)).unwrap_or(usize::MAX);
        Descriptors {
            files_max,
            batch_files_max: clamp(copies),
            directories_max: clamp(left / DIRECTORIES_PART),
            look_at: AtomicU64::new(files_max),
            hand: Mutex::new(0),
        }
    }

    fn at_a_time(&self) -> u64 {
        (self.files_max / AT_A_TIME_PART).max(1)
    }
}

fn left_to_this_process(has_overflow: bool) -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // Without /proc nothing is known to be in use, and the parts are larger by that.
    let in_use = std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64);
    let soon = if has_overflow { 0 } else { OVERFLOW_TAKES };
    limit.unwrap_or(u64::MAX).saturating_sub(in_use + soon)
}

/// Whose descriptors go, of files that were not used since the last look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Of those that need nothing done first.
    Flushed,
    /// Also where the device is to be waited for.
    All,
}

impl Files {
    /// Where the bytes of an open file are, held open for as long as the answer lives.
    ///
    /// # Errors
    /// Its object was handed back and cannot be opened again.
    pub fn target<'a>(&self, open: &'a OpenFile) -> Result<RwLockReadGuard<'a, Target>, Errno> {
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
    pub fn take_back(&self, open: &OpenFile, target: &mut Target) -> Result<(), Errno> {
        let Target::Buffer { file, object, tier } = &*target else {
            return Ok(());
        };
        if object.is_held() {
            return Ok(());
        }
        let (file, tier) = (file.clone(), *tier);
        let object = match open.passthrough {
            true => self.buffer.tiers().open_object(tier, file.object)?,
            false => self.buffer.tiers().open_to_write(tier, file.object)?,
        };
        open.put(target, Target::Buffer { file, object, tier });
        Ok(())
    }

    /// To be called before an open file gets a descriptor: where too many have one, some are handed back. Costs a load where not.
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
        // The first look only sees who is used until the second, and the second begins what the third waits for.
        for whose in [Whose::Flushed, Whose::Flushed, Whose::All] {
            for _ in 0..SHARDS {
                if self.buffer.opens().held() <= goal {
                    break;
                }
                *hand = (*hand + 1) % SHARDS;
                self.hand_back_some(*hand, whose, goal);
            }
        }
        // Where those that are left cannot be handed back, it is not tried again for each that comes.
        let next = self.buffer.opens().held() + descriptors.at_a_time();
        descriptors
            .look_at
            .store(next.max(descriptors.files_max), Ordering::Relaxed);
    }

    fn hand_back_some(&self, shard: usize, whose: Whose, goal: u64) {
        for open in self.buffer.opens().of_shard(shard) {
            if self.buffer.opens().held() <= goal {
                return;
            }
            if !open.take_use() {
                self.hand_back(&open, whose);
            }
        }
    }

    /// Hands a descriptor back, unless the file is used or moved meanwhile, or something speaks against it.
    fn hand_back(&self, open: &OpenFile, whose: Whose) {
        let seen = match open.target.try_read().as_deref() {
            Some(Target::Buffer { file, object, tier }) if object.is_held() => {
                (file.clone(), object.clone(), *tier)
            }
            _ => return,
        };
        let (file, held, tier) = seen;
        let Some(unheld) = self.unheld(tier, file.object) else {
            return;
        };
        let may_be_unflushed = self.buffer.tiers().kind(tier) == TierKind::Ssd
            && !open.passthrough
            && open.touched.load(Ordering::Acquire);
        if may_be_unflushed {
            let flush = || wait_writeback(&*self.buffer.tiers().open_object(tier, file.object)?);
            if whose == Whose::Flushed {
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
    use forebay_types::{Handle, Ino, OpenFlags};
    use forebay_wire::WriteHow;

    use super::*;
    use crate::testing::{Lab, create, drain};

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
            assert_eq!(written, Ok(Some(text.len())));
            rooms.files.fsync(*handle, false).expect("fsync");
            assert!(objects_open(&lab) <= FILES_MAX);
        }
        for handle in handles {
            rooms.files.release(handle).expect("close");
        }
        assert_eq!((objects_open(&lab), rooms.buffer.opens().held()), (0, 0));
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
                .open(found.expect("lookup").attr.ino, flags, false);
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
        assert_eq!(rooms.files.read(lost, 0, &mut [0]), Err(Errno::ENOENT));
        let other = handles.iter().find(|handle| **handle != lost);
        assert!(!read(rooms, *other.expect("another")).is_empty());
    }
}
