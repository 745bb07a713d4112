//! Memory that is borrowed: how much the memory tier may hold, as jobs need more or less.
//!
//! Two threads. *fb-lend* looks and has the policy decide; the ledger has the new capacity at once,
//! so that nothing new is set aside beyond it. *fb-return* has what lies beyond it leave. Neither
//! waits for the other: memory may go on going while a large file moves.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_namespace::{NsError, in_record};
use forebay_policy::lending::{LendOrder, Lender, LendingError, Memory, Pool, Target, tightest};
use forebay_tiers::MemoryNow;
use forebay_types::{Errno, format_size};
use forebay_wire::control::LendingStatus;
use parking_lot::{Condvar, Mutex};

use crate::base::failure::Failure;
use crate::base::settings::{LendingSetting, MemoryWay, Settings};
use crate::buffer::tierset::DRAM;
use crate::files::lending::pools_of;
use crate::lifecycle::Lifecycle;

/// Between two looks while memory may be needed any moment.
const TENSE: Duration = Duration::from_millis(250);
/// Between two looks else.
const CALM: Duration = Duration::from_secs(1);
/// Between two rounds of giving back that came to nothing, at least.
const AGAIN: Duration = Duration::from_millis(100);
/// A round looks at all files: it takes one part in so many of the time at most.
const SHARE_OF_TIME: u32 = 4;
/// Under which the order is on record.
const NAME: &str = "lend";
const WHAT: &str = "order to lend memory";

/// What one look has seen and come to.
#[derive(Clone, Debug)]
struct Look {
    now: MemoryNow,
    target: Target,
}

struct Deciding {
    lender: Lender,
    order: Option<LendOrder>,
    last: Option<Look>,
    /// Said already.
    missing_group: Option<PathBuf>,
    is_blind: bool,
}

/// The memory tier of a server that borrows.
pub struct Borrowed {
    memory: MemoryWay,
    begun: Instant,
    deciding: Mutex<Deciding>,
    /// Signalled when there is something to be given back.
    owed: (Mutex<bool>, Condvar),
    dropped_bytes: AtomicU64,
    moved_bytes: AtomicU64,
}

impl Borrowed {
    /// As the settings say; `None` where the memory tier has its size always.
    ///
    /// # Errors
    /// The bounds make no sense.
    pub fn new(settings: &Settings) -> Result<Option<Borrowed>, LendingError> {
        let Some(LendingSetting { bounds, memory }) = &settings.lending else {
            return Ok(None);
        };
        Ok(Some(Borrowed {
            memory: memory.clone(),
            begun: Instant::now(),
            deciding: Mutex::new(Deciding {
                lender: Lender::new(*bounds)?,
                order: None,
                last: None,
                missing_group: None,
                is_blind: false,
            }),
            owed: Default::default(),
            dropped_bytes: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
        }))
    }
}

fn order_of(bytes: u64) -> Option<LendOrder> {
    (bytes > 0).then_some(LendOrder { bytes })
}

/// The thread that looks.
pub fn watch(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() {
        let pause = match lifecycle.look_at_memory() {
            true => TENSE,
            false => CALM,
        };
        lifecycle.base.life().pause(pause);
    }
}

/// The thread that has what is owed leave.
pub fn give_back(lifecycle: &Arc<Lifecycle>) {
    let Some(borrowed) = &lifecycle.borrowed else {
        return;
    };
    while !lifecycle.base.is_ending() {
        {
            let mut is_owed = borrowed.owed.0.lock();
            if !*is_owed {
                borrowed.owed.1.wait_for(&mut is_owed, CALM);
            }
            *is_owed = false;
        }
        if lifecycle.files.owed_bytes() == 0 {
            continue;
        }
        let begun = Instant::now();
        let given = lifecycle.files.give_back();
        let count = |total: &AtomicU64, bytes| total.fetch_add(bytes, Ordering::Relaxed);
        count(&borrowed.dropped_bytes, given.dropped_bytes);
        count(&borrowed.moved_bytes, given.moved_bytes);
        lifecycle.fit_memory();
        if lifecycle.files.owed_bytes() > 0 {
            let took = begun.elapsed();
            let pause = if given.is_any() {
                AGAIN
            } else {
                AGAIN.max(took * SHARE_OF_TIME)
            };
            lifecycle.base.life().pause(pause);
            *borrowed.owed.0.lock() = true;
        }
    }
}

impl Lifecycle {
    /// Whether the memory tier borrows.
    pub fn borrows(&self) -> bool {
        self.borrowed.is_some()
    }

    /// Goes on with the order of before.
    pub fn restore_order_to_lend(&self) -> Result<(), NsError> {
        let Some(borrowed) = &self.borrowed else {
            return Ok(());
        };
        if let Some(bytes) = self.ns.get_fact(NAME)? {
            let bytes: u64 = postcard::from_bytes(&bytes).map_err(in_record(WHAT))?;
            borrowed.deciding.lock().order = order_of(bytes);
        }
        Ok(())
    }

    /// Looks at memory, and sets what the memory tier may hold. Whether the next look is to be
    /// soon.
    pub fn look_at_memory(&self) -> bool {
        let Some(borrowed) = &self.borrowed else {
            return false;
        };
        let mut deciding = borrowed.deciding.lock();
        self.look(borrowed, &mut deciding)
    }

    fn look(&self, borrowed: &Borrowed, deciding: &mut Deciding) -> bool {
        let now = match borrowed.memory.0.look() {
            Ok(now) => now,
            Err(error) => {
                // Of what was known last nothing is true any more: it stays as it is.
                if !std::mem::replace(&mut deciding.is_blind, true) {
                    tracing::warn!("nobody says how much memory there is: {error}");
                }
                return true;
            }
        };
        deciding.is_blind = false;
        if let Some(group) = now.missing_group.as_ref()
            && deciding.missing_group.as_ref() != Some(group)
        {
            tracing::warn!(
                "the control group {} cannot be found: for memory, what is around it counts",
                group.display()
            );
            deciding.missing_group = Some(group.clone());
        }
        let figures = self.buffer.ledger().figures(DRAM);
        let memory = Memory {
            now_s: borrowed.begun.elapsed().as_secs_f64(),
            total_bytes: now.total_bytes,
            pool: tightest(pools_of(&now)).unwrap_or(Pool {
                total_bytes: now.total_bytes,
                available_bytes: now.available_bytes,
            }),
            stall_us: now.stall_us,
            capacity_bytes: figures.capacity_bytes,
            used_bytes: now.resident_bytes(self.files.in_memory_bytes()),
        };
        let target = deciding.lender.step(&memory, deciding.order);
        let before = deciding.last.replace(Look { now, target });
        if before.is_none_or(|before| before.target.why != target.why) {
            let size = format_size(target.capacity_bytes);
            tracing::info!("borrowed memory: {size}: {}", target.why);
        }
        match target.capacity_bytes.cmp(&figures.capacity_bytes) {
            Less => self.lower_memory(target.capacity_bytes),
            Greater => self.raise_memory(target.capacity_bytes, figures.capacity_bytes),
            Equal => {}
        }
        if self.files.owed_bytes() > 0 {
            *borrowed.owed.0.lock() = true;
            borrowed.owed.1.notify_all();
        }
        target.is_tense()
    }

    /// Nothing more is set aside, and the tmpfs follows.
    fn lower_memory(&self, bytes: u64) {
        self.buffer.ledger().set_capacity(DRAM, bytes);
        self.buffer.tiers().set_dram_bytes(bytes);
        forebay_types::failpoint::hit(forebay_types::failpoint::Point::LendLowered);
        self.fit_memory();
    }

    /// The tmpfs has room before anything is set aside in it. Where it cannot grow, all stays as it
    /// was `before`, and the next look tries again.
    fn raise_memory(&self, bytes: u64, before: u64) {
        self.buffer.tiers().set_dram_bytes(bytes);
        match self.fit_memory() {
            true => self.buffer.ledger().set_capacity(DRAM, bytes),
            false => self.buffer.tiers().set_dram_bytes(before),
        }
    }

    /// The tmpfs follows what the tier may hold, and the ledger what the tmpfs can. Whether it has.
    fn fit_memory(&self) -> bool {
        let ledger = self.buffer.ledger();
        let fitted = self.buffer.tiers().fit_dram(|| ledger.held_bytes(DRAM));
        match &fitted {
            Ok(()) => {}
            // A kernel has written more than is known yet: the next look sees it.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => tracing::warn!("the memory tier's size cannot be changed: {error}"),
        }
        let slot = self.buffer.tiers().get(DRAM);
        if let Some(space) = slot.and_then(|slot| slot.tier.space().ok()) {
            ledger.set_physical_free(DRAM, space.free_bytes);
        }
        fitted.is_ok()
    }

    /// Has jobs get so many bytes back until another order; 0 takes it back. It is on stable
    /// storage and in force when this returns.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the memory tier does not borrow.
    pub fn order_lend(&self, bytes: u64) -> Result<(), Failure> {
        let borrowed = self.borrowed.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let mut deciding = borrowed.deciding.lock();
        let record = postcard::to_stdvec(&bytes).map_err(in_record(WHAT))?;
        self.ns.put_fact(NAME, &record)?;
        self.ns.sync()?;
        deciding.order = order_of(bytes);
        self.look(borrowed, &mut deciding);
        Ok(())
    }

    /// What is borrowed, and why it is that; `None` where nothing is.
    pub fn lending_status(&self) -> Option<LendingStatus> {
        let borrowed = self.borrowed.as_ref()?;
        let deciding = borrowed.deciding.lock();
        let Look { now, target } = deciding.last.as_ref()?;
        let figures = self.buffer.ledger().figures(DRAM);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(LendingStatus {
            borrowed_bytes: figures.capacity_bytes,
            used_bytes: self.files.in_memory_bytes(),
            floor_bytes: target.floor_bytes,
            ceiling_bytes: target.ceiling_bytes,
            ordered_bytes: deciding.order.map_or(0, |order| order.bytes),
            owed_bytes: self.files.owed_bytes(),
            why: target.why.name().to_string(),
            memory_bytes: now.total_bytes,
            available_bytes: now.available_bytes,
            dropped_bytes_total: load(&borrowed.dropped_bytes),
            moved_bytes_total: load(&borrowed.moved_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use forebay_policy::lending::Lending;
    use forebay_testkit::{needs_root, wait_until};
    use forebay_tiers::MemorySource;
    use forebay_types::{Ino, OpenFlags};
    use forebay_wire::WriteHow;

    use super::*;
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, Lab, answer, create, drain};

    const MIB: u64 = 1 << 20;
    const RDWR: OpenFlags = OpenFlags(libc::O_RDWR as u32);

    /// A machine of 64 MiB, of which the tier may have 16, and that keeps 16.
    #[derive(Default)]
    struct Machine {
        available_mib: AtomicU64,
        is_silent: std::sync::atomic::AtomicBool,
    }

    impl MemorySource for Machine {
        fn look(&self) -> io::Result<MemoryNow> {
            if self.is_silent.load(Ordering::Relaxed) {
                return Err(Errno::EIO.into());
            }
            Ok(MemoryNow {
                machine_bytes: 64 * MIB,
                total_bytes: 64 * MIB,
                available_bytes: self.available_mib.load(Ordering::Relaxed) * MIB,
                ..MemoryNow::default()
            })
        }
    }

    impl Machine {
        fn has(&self, available_mib: u64) {
            self.available_mib.store(available_mib, Ordering::Relaxed);
        }
    }

    fn lab(change: impl FnOnce(&mut Settings)) -> (Lab, Arc<Machine>) {
        let machine = Arc::new(Machine::default());
        machine.has(60);
        let lab = Lab::with(|settings| {
            settings.dram_bytes = Some(16 * MIB);
            settings.lending = Some(LendingSetting {
                bounds: Lending {
                    max_bytes: 16 * MIB,
                    max_share: 1.0,
                    ..Lending::default()
                },
                memory: MemoryWay(machine.clone()),
            });
            change(settings);
        });
        lab.rooms().lifecycle.look_at_memory();
        (lab, machine)
    }

    fn status(rooms: &Rooms) -> LendingStatus {
        rooms.lifecycle.lending_status().expect("it borrows")
    }

    /// Content of so many megabytes that differs from place to place.
    fn content(seed: u8, mib: u64) -> Vec<u8> {
        let word = |at: u64| (at.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ seed;
        (0..mib * MIB).map(word).collect()
    }

    fn read(rooms: &Rooms, ino: Ino, len: usize) -> Vec<u8> {
        let (opened, _) = rooms.files.open(ino, RDWR, None).expect("open");
        let mut bytes = vec![0; len];
        let read = rooms.files.read(opened.handle, 0, &mut bytes);
        assert_eq!(answer(read), Ok(len));
        rooms.files.release(opened.handle).expect("close");
        bytes
    }

    fn give_back(rooms: &Rooms) -> crate::files::lending::GivenBack {
        let given = rooms.files.give_back();
        rooms.lifecycle.fit_memory();
        given
    }

    #[test]
    fn what_jobs_need_leaves_memory_and_is_what_it_was() {
        let (lab, machine) = lab(|_| ());
        let rooms = lab.rooms();
        assert_eq!(
            (status(rooms).borrowed_bytes, &*status(rooms).why),
            (16 * MIB, "ceiling")
        );
        let (first, second) = (content(1, 5), content(2, 6));
        rooms
            .files
            .release(create(rooms, b"clean", &first))
            .expect("close");
        drain(rooms);
        rooms
            .files
            .release(create(rooms, b"dirty", &second))
            .expect("close");
        let files = rooms.buffer.files();
        assert!(files.iter().all(|file| file.tier() == DRAM));
        machine.has(16);
        assert!(rooms.lifecycle.look_at_memory(), "the next look is soon");
        let told = status(rooms);
        assert_eq!((told.borrowed_bytes, &*told.why), (4 * MIB, "jobs"));
        assert_eq!(told.owed_bytes, told.used_bytes - 4 * MIB);
        let given = give_back(rooms);
        assert!(
            given.dropped_bytes >= 5 * MIB && given.moved_bytes >= 6 * MIB,
            "{given:?}"
        );
        assert_eq!(status(rooms).owed_bytes, 0);
        let dirty = files.iter().find(|file| file.path().ends_with(b"dirty"));
        let dirty = dirty.expect("it is there");
        assert_eq!(dirty.tier(), FLASH);
        assert!(dirty.lock().is_dirty());
        assert!(read(rooms, dirty.ino, second.len()) == second);
        assert_eq!(lab.on_pfs("clean"), first);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_is_open_moves_and_is_read_and_written_on() {
        let (lab, machine) = lab(|_| ());
        let rooms = lab.rooms();
        let mut held = content(3, 8);
        let handle = create(rooms, b"open", &held);
        let file = rooms.buffer.files().pop().expect("file");
        machine.has(16);
        rooms.lifecycle.look_at_memory();
        assert_eq!(give_back(rooms).moved_bytes, 8 * MIB);
        assert_eq!(file.tier(), FLASH);
        let more = content(4, 1);
        let written = rooms
            .files
            .write(handle, held.len() as u64, &more, WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(more.len())));
        held.extend(more);
        rooms.files.release(handle).expect("close");
        assert!(read(rooms, file.ino, held.len()) == held);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn a_write_that_comes_while_memory_is_short_does_not_fail() {
        let (lab, machine) = lab(|_| ());
        let rooms = lab.rooms();
        let handle = create(rooms, b"grows", &content(5, 3));
        machine.has(0);
        rooms.lifecycle.look_at_memory();
        assert_eq!(status(rooms).borrowed_bytes, 4 * MIB);
        let more = content(6, 6);
        let written = rooms.files.write(handle, 3 * MIB, &more, WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(more.len())));
        rooms.files.release(handle).expect("close");
        // New files do not go where there is no room.
        rooms
            .files
            .release(create(rooms, b"new", &content(7, 5)))
            .expect("close");
        give_back(rooms);
        assert_eq!(status(rooms).owed_bytes, 0);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn without_flash_what_is_not_drained_is_drained_first() {
        let (lab, machine) = lab(|settings| settings.ssd.clear());
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", &content(8, 8)))
            .expect("close");
        machine.has(8);
        rooms.lifecycle.look_at_memory();
        assert!(!give_back(rooms).is_any());
        drain(rooms);
        assert_eq!(give_back(rooms).dropped_bytes, 8 * MIB);
        assert_eq!(status(rooms).owed_bytes, 0);
        assert_eq!(lab.on_pfs("f"), content(8, 8));
    }

    #[test]
    fn an_order_lowers_it_at_once_and_is_remembered() {
        let (lab, _machine) = lab(|_| ());
        let rooms = lab.rooms();
        answer(rooms.lifecycle.order_lend(10 * MIB)).expect("ordered");
        let told = status(rooms);
        assert_eq!(
            (told.borrowed_bytes, told.ceiling_bytes),
            (6 * MIB, 6 * MIB)
        );
        assert_eq!((told.ordered_bytes, &*told.why), (10 * MIB, "ordered"));
        // As a start does.
        let borrowed = rooms.lifecycle.borrowed.as_ref().expect("it borrows");
        borrowed.deciding.lock().order = None;
        rooms.lifecycle.restore_order_to_lend().expect("on record");
        rooms.lifecycle.look_at_memory();
        assert_eq!(status(rooms).ceiling_bytes, 6 * MIB);
        answer(rooms.lifecycle.order_lend(0)).expect("taken back");
        assert_eq!(status(rooms).ceiling_bytes, 16 * MIB);
        let fixed = Lab::with(|settings| settings.dram_bytes = Some(16 * MIB));
        let refused = fixed.rooms().lifecycle.order_lend(MIB);
        assert_eq!(answer(refused), Err(Errno::EOPNOTSUPP));
        assert_eq!(fixed.rooms().lifecycle.lending_status(), None);
    }

    #[test]
    fn while_nobody_says_how_much_there_is_it_stays_as_it_is() {
        let (lab, machine) = lab(|_| ());
        let rooms = lab.rooms();
        machine.has(0);
        machine.is_silent.store(true, Ordering::Relaxed);
        assert!(rooms.lifecycle.look_at_memory(), "it is asked again soon");
        assert_eq!(status(rooms).borrowed_bytes, 16 * MIB);
        machine.is_silent.store(false, Ordering::Relaxed);
        rooms.lifecycle.look_at_memory();
        assert_eq!(status(rooms).borrowed_bytes, 4 * MIB);
    }

    /// The tmpfs of the tier, whose size somebody else has changed.
    fn remount(rooms: &Rooms, bytes: u64) {
        let dir = rooms.base.settings().state.join("dram");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount_remount(&dir, flags, format!("size={bytes}")).expect("remount");
    }

    #[test]
    fn nothing_is_set_aside_in_a_tmpfs_that_has_not_grown() {
        if needs_root() {
            return;
        }
        let (lab, machine) = lab(|_| ());
        let rooms = lab.rooms();
        machine.has(0);
        rooms.lifecycle.look_at_memory();
        assert_eq!(status(rooms).borrowed_bytes, 4 * MIB);
        // More than the tier may have is in it.
        remount(rooms, 64 * MIB);
        let stray = rooms.base.settings().state.join("dram/stray");
        std::fs::write(&stray, vec![1; 24 << 20]).expect("write");
        // Nothing was seen before: it takes what is idle at once.
        let borrowed = rooms.lifecycle.borrowed.as_ref().expect("it borrows");
        let bounds = rooms.base.settings().lending.as_ref().expect("set").bounds;
        borrowed.deciding.lock().lender = Lender::new(bounds).expect("bounds");
        machine.has(60);
        rooms.lifecycle.look_at_memory();
        assert_eq!(status(rooms).borrowed_bytes, 4 * MIB);
        std::fs::remove_file(&stray).expect("remove");
        wait_until("the next look", || {
            rooms.lifecycle.look_at_memory();
            status(rooms).borrowed_bytes > 4 * MIB
        });
    }

    /// Whoever fits the tmpfs to what is held does not take what a writer was just promised.
    #[test]
    fn what_a_writer_is_promised_is_held_before_anybody_fits_the_tmpfs() {
        if needs_root() {
            return;
        }
        let (lab, _machine) = lab(|_| ());
        let tiers = lab.rooms().buffer.tiers();
        let held = AtomicU64::new(16 * MIB);
        let fit = || tiers.fit_dram(|| held.load(Ordering::SeqCst));
        std::thread::scope(|scope| {
            let hold = || {
                let (asks, asked) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    asks.send(()).expect("somebody waits");
                    fit().expect("fits");
                });
                asked.recv().expect("it asks");
                for _ in 0..1000 {
                    std::thread::yield_now();
                }
                held.store(80 * MIB, Ordering::SeqCst);
            };
            tiers.grow_dram(|| 80 * MIB, hold).expect("grows");
        });
        let slot = tiers.get(DRAM).expect("memory");
        assert_eq!(slot.tier.space().expect("space").total_bytes, 80 * MIB);
    }
}
