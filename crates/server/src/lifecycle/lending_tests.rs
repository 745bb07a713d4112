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
    let borrowed = rooms.lifecycle.borrowed.as_ref().expect("it borrows");
    rooms.lifecycle.give_back_once(borrowed)
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
    answer(rooms.lifecycle.order_lend("", 10 * MIB)).expect("ordered");
    let told = status(rooms);
    assert_eq!(
        (told.borrowed_bytes, told.ceiling_bytes),
        (6 * MIB, 6 * MIB)
    );
    assert_eq!((told.ordered_bytes, &*told.why), (10 * MIB, "ordered"));
    // As a start does.
    let borrowed = rooms.lifecycle.borrowed.as_ref().expect("it borrows");
    borrowed.deciding.lock().orders = LendOrders::default();
    rooms.lifecycle.restore_order_to_lend().expect("on record");
    rooms.lifecycle.look_at_memory();
    assert_eq!(status(rooms).ceiling_bytes, 6 * MIB);
    answer(rooms.lifecycle.order_lend("", 0)).expect("taken back");
    assert_eq!(status(rooms).ceiling_bytes, 16 * MIB);
    let fixed = Lab::with(|settings| settings.dram_bytes = Some(16 * MIB));
    let refused = fixed.rooms().lifecycle.order_lend("", MIB);
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
#[test]
fn orders_whose_names_are_too_long_together_are_as_many_as_there_can_be() {
    let (lab, _machine) = lab(|_| ());
    let rooms = lab.rooms();
    let order = |at: usize, bytes| {
        let name = format!("{at:0255}");
        answer(rooms.lifecycle.order_lend(&name, bytes))
    };
    let refused = (0..LENDING_ORDERS_MAX).find_map(|at| order(at, 1).err());
    assert_eq!(refused, Some(Errno::EDQUOT));
    // One that ends makes room for another.
    assert_eq!(order(0, 0), Ok(()));
    assert_eq!(order(LENDING_ORDERS_MAX, 1), Ok(()));
}

#[test]
fn an_order_is_in_force_also_while_nobody_says_how_much_there_is() {
    let (lab, machine) = lab(|_| ());
    let rooms = lab.rooms();
    let held = content(9, 12);
    rooms
        .files
        .release(create(rooms, b"f", &held))
        .expect("close");
    machine.is_silent.store(true, Ordering::Relaxed);
    rooms.lifecycle.order_lend("job", 10 * MIB).expect("order");
    let told = status(rooms);
    assert_eq!(
        (told.borrowed_bytes, told.ceiling_bytes, &*told.why),
        (6 * MIB, 6 * MIB, "ordered")
    );
    assert!(told.owed_bytes >= 6 * MIB, "{told:?}");
    give_back(rooms);
    assert_eq!(status(rooms).owed_bytes, 0);
    // It grows when somebody says how much there is.
    rooms.lifecycle.order_lend("job", 0).expect("end");
    assert_eq!(status(rooms).borrowed_bytes, 6 * MIB);
    machine.is_silent.store(false, Ordering::Relaxed);
    rooms.lifecycle.look_at_memory();
    assert_eq!(status(rooms).ceiling_bytes, 16 * MIB);
}

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

#[test]
fn orders_of_two_jobs_add_up_and_are_remembered() {
    let (lab, _machine) = lab(|_| ());
    let rooms = lab.rooms();
    let order = |name, mib| answer(rooms.lifecycle.order_lend(name, mib * MIB)).expect("ordered");
    order("job 1", 3);
    order("job 2", 4);
    assert_eq!(status(rooms).ceiling_bytes, 9 * MIB);
    order("job 1", 2);
    assert_eq!(status(rooms).ordered_bytes, 6 * MIB);
    let borrowed = rooms.lifecycle.borrowed.as_ref().expect("it borrows");
    borrowed.deciding.lock().orders = LendOrders::default();
    rooms.lifecycle.restore_order_to_lend().expect("on record");
    rooms.lifecycle.look_at_memory();
    let told = status(rooms);
    let orders = told.orders.iter().map(|one| (&*one.name, one.bytes));
    assert_eq!(
        orders.collect::<Vec<_>>(),
        [("job 1", 2 * MIB), ("job 2", 4 * MIB)]
    );
    order("job 2", 0);
    assert_eq!(status(rooms).ceiling_bytes, 14 * MIB);
    for at in 1..LENDING_ORDERS_MAX {
        borrowed.deciding.lock().orders.set(&at.to_string(), 1);
    }
    let refused = rooms.lifecycle.order_lend("one too many", 1);
    assert_eq!(answer(refused), Err(Errno::EDQUOT));
    assert_eq!(answer(rooms.lifecycle.order_lend("job 1", 0)), Ok(()));
}

#[test]
fn a_store_that_is_slow_holds_up_neither_looks_nor_the_status() {
    let (lab, _machine) = lab(|_| ());
    let rooms = lab.rooms();
    let gate = lab.store.gate.lock();
    let before = lab.store.syncs();
    std::thread::scope(|scope| {
        let ordered = scope.spawn(|| answer(rooms.lifecycle.order_lend("", 10 * MIB)));
        wait_until("the store is asked", || lab.store.syncs() > before);
        let (tells, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            rooms.lifecycle.look_at_memory();
            let _ = tells.send(status(rooms));
        });
        let told = told.recv_timeout(Duration::from_secs(20));
        drop(gate);
        let told = told.expect("it is held up");
        assert_eq!(told.ordered_bytes, 0, "it is not on record yet");
        assert_eq!(ordered.join().expect("no panic"), Ok(()));
    });
    assert_eq!(status(rooms).ordered_bytes, 10 * MIB);
}

/// Who waits for memory hears of what it waits for, and nothing else is hurried for that.
#[test]
fn what_only_a_close_gives_back_is_named_and_no_drain_hurries_for_it() {
    let (lab, machine) = lab(|_| ());
    let rooms = lab.rooms();
    let deleted = create(rooms, b"deleted", &content(1, 5));
    rooms
        .base
        .ns()
        .unlink(Ino::ROOT, b"deleted")
        .expect("unlink");
    let _passed = create(rooms, b"passed", &content(2, 6));
    let files = rooms.buffer.files();
    let passed = files.iter().find(|file| file.path().ends_with(b"passed"));
    let open = rooms.buffer.opens().by_ino(passed.expect("there").ino);
    open.expect("open").begin_passthrough();
    machine.has(0);
    rooms.lifecycle.look_at_memory();
    let given = give_back(rooms);
    assert!(!given.is_any(), "{given:?}");
    let told = status(rooms);
    assert_eq!((told.waits_files, told.waits_bytes), (2, 11 * MIB));
    let named = told.waits_for.iter().map(|file| (file.bytes, file.deleted));
    assert_eq!(
        named.collect::<Vec<_>>(),
        [(6 * MIB, false), (5 * MIB, true)]
    );
    assert!(!rooms.buffer.queue().demand().is_ordered, "no plan ends");
    rooms.files.release(deleted).expect("close");
    give_back(rooms);
    assert_eq!(status(rooms).waits_files, 1);
}

#[test]
fn clean_copies_stay_on_flash_where_their_room_would_not_be_enough() {
    let (lab, machine) = lab(|settings| settings.ssd[0].capacity_bytes = Some(16 * MIB));
    let rooms = lab.rooms();
    // 8 MiB of flash are undrained, 4 are clean: together with what is free they are no 12.
    for (name, mib, is_drained) in [(b"clean", 4, true), (b"dirty", 8, false)] {
        rooms
            .files
            .release(create(rooms, name, &content(1, mib)))
            .expect("close");
        rooms.files.leave_memory(|_| false, |_| false);
        if is_drained {
            drain(rooms);
        }
    }
    let files = rooms.buffer.files();
    assert!(files.iter().all(|file| file.tier() == FLASH));
    rooms
        .files
        .release(create(rooms, b"large", &content(2, 12)))
        .expect("close");
    machine.has(0);
    rooms.lifecycle.look_at_memory();
    let given = give_back(rooms);
    assert!(!given.is_any(), "{given:?}");
    let clean = rooms.buffer.files();
    assert!(clean.iter().any(|file| file.path().ends_with(b"clean")));
    // What is not drained elsewhere is, and then it goes.
    assert!(rooms.buffer.queue().demand().is_ordered);
    drain(rooms);
    give_back(rooms);
    assert_eq!(status(rooms).owed_bytes, 0);
}

#[test]
fn an_order_ends_also_where_nothing_is_borrowed_any_more() {
    let fixed = Lab::with(|settings| settings.dram_bytes = Some(16 * MIB));
    let rooms = fixed.rooms();
    answer(rooms.lifecycle.order_lend("job 1", 0)).expect("there is none");
    // What a start with borrowed memory has left.
    let orders: OnRecord = vec![("job 1".into(), MIB), ("job 2".into(), MIB)];
    let record = postcard::to_stdvec(&orders).expect("record");
    rooms.base.ns().put_fact(NAME, &record).expect("put");
    answer(rooms.lifecycle.order_lend("job 1", 0)).expect("ended");
    let left = rooms.base.ns().get_fact(NAME).expect("get").expect("there");
    let left: OnRecord = postcard::from_bytes(&left).expect("record");
    assert_eq!(left, [("job 2".into(), MIB)]);
}

/// So many small files, the longest closed first, and what is in each.
fn small_files(rooms: &Rooms, count: usize) -> Vec<Arc<forebay_namespace::File>> {
    let mut files = Vec::new();
    for at in 0..count {
        let name = format!("small{at:03}");
        let handle = create(rooms, name.as_bytes(), &[at as u8; 16 << 10]);
        rooms.files.release(handle).expect("close");
        let file = rooms.base.ns().root().child(name.as_bytes());
        files.push(file.expect("it is there"));
    }
    files
}

#[test]
fn small_files_move_together_and_each_is_what_it_was() {
    let (lab, machine) = lab(|_| ());
    let rooms = lab.rooms();
    let files = small_files(rooms, 300);
    rooms
        .files
        .release(create(rooms, b"large", &content(1, 4)))
        .expect("close");
    machine.has(0);
    rooms.lifecycle.look_at_memory();
    let syncs = lab.store.syncs();
    let given = give_back(rooms);
    assert_eq!(status(rooms).owed_bytes, 0, "{given:?}");
    let moved = files.iter().filter(|file| file.tier() == FLASH).count();
    assert!(moved > 128, "{moved}");
    // One for each group, and none for each file.
    assert!(
        lab.store.syncs() - syncs <= 4,
        "{}",
        lab.store.syncs() - syncs
    );
    for (at, file) in files.iter().enumerate() {
        assert!(read(rooms, file.ino, 16 << 10) == [at as u8; 16 << 10]);
    }
    assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
}

/// Nobody knows then which of both objects a start finds on record.
#[test]
fn where_the_store_is_not_flushed_the_old_objects_of_a_group_stay() {
    let (lab, machine) = lab(|_| ());
    let rooms = lab.rooms();
    let files = small_files(rooms, 300);
    machine.has(0);
    rooms.lifecycle.look_at_memory();
    lab.store.fails_syncs.store(true, Ordering::Release);
    rooms.files.give_back(DRAM);
    let is_moved = |file: &&Arc<forebay_namespace::File>| file.tier() == FLASH;
    let moved: Vec<_> = files.iter().filter(is_moved).collect();
    assert!(!moved.is_empty());
    for file in &moved {
        let old = rooms.buffer.tiers().open_object(DRAM, file.object);
        assert!(old.is_ok(), "it stays until the record is stable");
    }
    lab.store.fails_syncs.store(false, Ordering::Release);
    rooms.buffer.leave_copies_late();
    for file in &moved {
        let old = rooms.buffer.tiers().open_object(DRAM, file.object);
        assert!(old.is_err());
    }
    give_back(rooms);
    assert_eq!(status(rooms).owed_bytes, 0);
    assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
}

#[test]
fn memory_gives_back_clean_copies_first_then_what_is_coolest_then_what_is_open() {
    let (lab, machine) = lab(|settings| {
        settings.engine.placement = forebay_policy::demotion::PlacementPolicy::Coolness;
    });
    let rooms = lab.rooms();
    let open = create(rooms, b"open", &content(1, 2));
    let close = |name: &[u8]| {
        let handle = create(rooms, name, &content(2, 2));
        rooms.files.release(handle).expect("close");
    };
    close(b"clean");
    drain(rooms);
    close(b"cool");
    close(b"warm");
    // It came before `warm`, and was closed after it.
    let file = |name: &[u8]| rooms.base.ns().root().child(name);
    let ino = file(b"cool").expect("there").ino;
    let tiers = || {
        [&b"clean"[..], b"warm", b"cool", b"open"]
            .map(|name| file(name).map(|file| file.tier() == DRAM))
    };
    read(rooms, ino, 2 << 20);
    let shrink = |mib: u64| {
        let ledger = rooms.buffer.ledger();
        ledger.set_capacity(DRAM, mib * MIB);
        rooms.files.give_back(DRAM);
        tiers()
    };
    machine.has(60);
    assert_eq!(shrink(7), [None, Some(true), Some(true), Some(true)]);
    assert_eq!(shrink(5), [None, Some(false), Some(true), Some(true)]);
    assert_eq!(shrink(3), [None, Some(false), Some(false), Some(true)]);
    assert_eq!(shrink(0), [None, Some(false), Some(false), Some(false)]);
    rooms.files.release(open).expect("close");
}
