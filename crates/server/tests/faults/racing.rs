//! Files that change, move or go while they are being demoted.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::durability::Durability;
use forebay_testkit::needs_root;
use forebay_types::failpoint::{self, Point};
use forebay_types::{Errno, Ino, OpenFlags, RenameMode, SetAttr};
use forebay_wire::control::{Control, Movement};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{Running, Scratch, base_seed, kernels_own, me, settings};

const BLOCK: usize = 32 << 10;
const BLOCKS: usize = 6;
/// A demotion of a small file is over by then.
const LONG_ENOUGH: Duration = Duration::from_secs(5);
/// Rounds of each test.
const ROUNDS: u64 = 60;

/// Writes version `v` over the whole file, in several steps.
fn write_version(server: &Running, v: u8) {
    let attr = server.client.lookup(Ino::ROOT, b"f", 0).expect("lookup");
    let flags = OpenFlags(libc::O_RDWR as u32);
    let open = server.client.open(attr.ino, flags, me()).expect("open");
    for block in 0..BLOCKS {
        let at = (block * BLOCK) as u64;
        match &open.descriptor {
            Some(_) => {
                let done = kernels_own(&open).write_at(&[v; BLOCK], at);
                assert_eq!(done.ok(), Some(BLOCK));
            }
            None => server
                .write(open.opened.handle, at, &[v; BLOCK])
                .expect("write"),
        }
    }
    server.client.release(open.opened.handle).expect("close");
    server.client.forget(vec![(attr.ino, 1)]);
}

#[test]
fn the_newest_content_is_published_and_never_a_part() {
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    for descriptors in [false, true] {
        let scratch = Scratch::new();
        let mut settings = settings(scratch.path(), 64 << 20);
        settings.demotion.idle_after = Duration::from_millis(1);
        let server = Running::start(&settings, descriptors);
        server.put(b"f", &[0; BLOCK * BLOCKS]);
        let mut rng = StdRng::seed_from_u64(seed);
        let done = AtomicBool::new(false);
        let published = scratch.pfs().join("f");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let Ok(data) = fs::read(&published) else {
                        continue;
                    };
                    assert_eq!(data.len(), BLOCK * BLOCKS);
                    let whole = data.iter().all(|b| *b == data[0]);
                    assert!(whole, "a part of a version is on the PFS");
                }
            });
            for round in 1..=ROUNDS {
                write_version(&server, round as u8);
                std::thread::sleep(Duration::from_micros(rng.random_range(0..6000)));
            }
            server.wait_clean(&|_| false);
            done.store(true, Ordering::Release);
        });
        let last = fs::read(&published).expect("read");
        assert!(last.iter().all(|b| *b == ROUNDS as u8), "the newest");
        let errors = server.status().errors;
        assert!(errors.is_empty(), "{errors:?}");
        server.instance.stop();
    }
}

#[test]
fn an_fsync_that_means_the_pfs_covers_what_the_kernel_wrote_before_it() {
    const WRITERS: usize = 4;
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    let scratch = Scratch::new();
    let mut settings = settings(scratch.path(), 4 << 30);
    settings.durability = Some(Durability::Pfs);
    settings.demotion.idle_after = Duration::from_millis(1);
    let server = Running::start(&settings, true);
    server.put(b"f", &[0; BLOCK * WRITERS]);
    let attr = server.client.lookup(Ino::ROOT, b"f", 0).expect("lookup");
    let published = scratch.pfs().join("f");
    // Each has a block of its own, so that each knows what must be there after its own fsync.
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (server, published) = (&server, &published);
            scope.spawn(move || {
                let flags = OpenFlags(libc::O_RDWR as u32);
                let open = server.client.open(attr.ino, flags, me()).expect("open");
                let file = kernels_own(&open);
                let at = writer * BLOCK;
                let mut rng = StdRng::seed_from_u64(seed + writer as u64);
                for round in 1..=2 * ROUNDS {
                    std::thread::sleep(Duration::from_micros(rng.random_range(0..8000)));
                    let data = [round as u8; BLOCK];
                    let done = file.write_at(&data, at as u64);
                    assert_eq!(done.ok(), Some(BLOCK));
                    let handle = open.opened.handle;
                    server.client.fsync(handle, false).expect("fsync");
                    let there = fs::read(published).expect("read");
                    assert!(
                        there[at..at + BLOCK] == data,
                        "writer {writer}, round {round}"
                    );
                }
                drop(file);
                server.client.release(open.opened.handle).expect("close");
            });
        }
    });
    server.client.forget(vec![(attr.ino, 1)]);
    server.instance.stop();
}

/// Starts the demotion of everything and comes back at once.
fn begin_demotion(server: &Running) {
    let order = Control::Start {
        movement: Movement::StageOut,
        paths: vec![Vec::new()],
    };
    server.control(order).expect("stage-out");
}

/// Waits until nothing is left on the PFS: temporary files of a demotion go with it.
fn wait_empty(pfs: &Path, what: &str) {
    let started = Instant::now();
    loop {
        let entries = fs::read_dir(pfs).expect("read_dir");
        let left: Vec<_> = entries.map(|e| e.expect("entry").file_name()).collect();
        if left.is_empty() {
            return;
        }
        assert!(started.elapsed() < LONG_ENOUGH, "{what}: {left:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn unlinked_while_demoted_stays_unlinked() {
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    for round in 0..ROUNDS {
        server.put(b"f", &vec![round as u8; 100_000]);
        begin_demotion(&server);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..4000)));
        server.client.unlink(Ino::ROOT, b"f", me()).expect("unlink");
        assert_eq!(server.find(b"f").map(|_| ()), Err(Errno::ENOENT));
        wait_empty(&scratch.pfs(), &format!("round {round}"));
    }
    server.drain();
    server.instance.stop();
    wait_empty(&scratch.pfs(), "after the stop");
}

#[test]
fn a_directory_goes_while_its_last_file_was_being_demoted() {
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let flags = OpenFlags(libc::O_RDWR as u32);
    for round in 0..ROUNDS {
        let dir = server.client.mkdir(Ino::ROOT, b"d", 0o755, me());
        let dir = dir.expect("mkdir").ino;
        let made = server.client.create(dir, b"f", 0o644, flags, me());
        let handle = made.expect("create").1.opened.handle;
        server.write(handle, 0, &[1; 300_000]).expect("write");
        server.client.release(handle).expect("close");
        begin_demotion(&server);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..5000)));
        server.client.unlink(dir, b"f", me()).expect("unlink");
        let gone = server.client.rmdir(Ino::ROOT, b"d", me());
        assert_eq!(gone, Ok(()), "round {round}");
        wait_empty(&scratch.pfs(), &format!("round {round}"));
    }
    server.instance.stop();
}

#[test]
fn renamed_while_demoted_has_one_name() {
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let (from, to) = ((Ino::ROOT, &b"f"[..]), (Ino::ROOT, &b"g"[..]));
    for round in 0..ROUNDS {
        let data = vec![round as u8; 100_000];
        server.put(b"f", &data);
        begin_demotion(&server);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..4000)));
        let mode = RenameMode::Replace;
        server.client.rename(from, to, mode, me()).expect("rename");
        assert_eq!(server.find(b"f").map(|_| ()), Err(Errno::ENOENT));
        assert!(server.read_all(b"g").as_deref() == Ok(&data[..]));
        server.wait_clean(&|_| false);
        let names: Vec<_> = fs::read_dir(scratch.pfs())
            .expect("read_dir")
            .map(|e| e.expect("entry").file_name())
            .collect();
        assert_eq!(names, ["g"], "round {round}");
        assert!(fs::read(scratch.pfs().join("g")).expect("read") == data);
    }
    let errors = server.status().errors;
    assert!(errors.is_empty(), "{errors:?}");
    server.instance.stop();
}

/// The kernel sends the close of a file after close(2) has returned: what fsync has left on flash
/// may become the file, or go, while the file is unlinked and collected.
#[test]
fn a_close_that_an_unlink_overtakes_leaves_nothing_behind() {
    if needs_root() {
        return;
    }
    for point in [Point::MoveObject, Point::MoveCopied, Point::MoveFlushed] {
        let scratch = Scratch::new();
        let mut settings = settings(scratch.path(), 64 << 20);
        settings.ssd.truncate(1);
        settings.dram_bytes = Some(16 << 20);
        settings.demotion.idle = false;
        let server = Arc::new(Running::start(&settings, false));
        let (_, handle) = server.create(b"f").expect("create");
        server.write(handle, 0, &[7; 3 << 20]).expect("write");
        server.client.fsync(handle, false).expect("fsync");
        server.write(handle, 0, &[8; 100]).expect("write");
        let overtaken = Arc::new(AtomicBool::new(false));
        let (unlinks, says) = (server.clone(), overtaken.clone());
        failpoint::meanwhile(point, move || {
            unlinks
                .client
                .unlink(Ino::ROOT, b"f", me())
                .expect("unlink");
            wait_unused(&unlinks);
            says.store(true, Ordering::Release);
        });
        server.client.release(handle).expect("close");
        assert!(overtaken.load(Ordering::Acquire), "{point:?} was not hit");
        wait_unused(&server);
        server.audit();
        server.instance.stop();
    }
}

/// Waits until the books have nothing in any tier.
fn wait_unused(server: &Running) {
    let started = Instant::now();
    loop {
        let tiers = server.status().tiers;
        // What the PFS holds is others', too.
        let ours = tiers.iter().filter(|t| t.name != "pfs");
        let held = ours.map(|t| t.used_bytes + t.dirty_bytes);
        if held.sum::<u64>() == 0 {
            return;
        }
        assert!(started.elapsed() < LONG_ENOUGH, "{tiers:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What was unlinked gives its space back a moment later: who needs it waits for that.
#[test]
fn space_of_what_was_unlinked_is_waited_for() {
    const LARGE: u64 = 160 << 20;
    let scratch = Scratch::new();
    let mut settings = settings(scratch.path(), 256 << 20);
    settings.ssd.truncate(1);
    settings.demotion.idle = false;
    settings.wait_for_space = LONG_ENOUGH;
    let server = Running::start(&settings, true);
    // Of a series whose size is known the kernel writes the files by itself: they cannot go
    // elsewhere.
    server.put(b"f0", &[1; 4096]);
    // Nothing else can make room.
    server.move_files(Movement::StageOut, b"f0");
    let flags = OpenFlags(libc::O_RDWR as u32);
    let create = |name: &[u8]| {
        let made = server.client.create(Ino::ROOT, name, 0o644, flags, me());
        let open = made.expect("create").1;
        assert!(open.descriptor.is_some(), "kernel passthrough");
        open.opened.handle
    };
    let allocate = |handle| {
        let change = forebay_wire::SpaceChange::Allocate;
        let client = &server.client;
        client.change_space(handle, change, 0, LARGE, false, true)
    };
    let first = create(b"f1");
    allocate(first).expect("there is room");
    let second = create(b"f2");
    server
        .client
        .unlink(Ino::ROOT, b"f1", me())
        .expect("unlink");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| allocate(second).map(|_| ()));
        let started = Instant::now();
        // The close of the first comes when the second has begun to wait, or has failed.
        while server.status().waited_writes_total == 0 && !waits.is_finished() {
            assert!(started.elapsed() < LONG_ENOUGH, "it does not wait");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.client.release(first).expect("close");
        assert_eq!(waits.join().expect("no panic there"), Ok(()));
    });
    server.client.release(second).expect("close");
    server.drain();
    server.instance.stop();
}

/// A file outgrows memory while others fsync it: what they flush is what it is, wherever that is by
/// then.
#[test]
fn an_fsync_beside_a_move_to_flash_flushes_what_is_there() {
    const PIECE: usize = 256 << 10;
    const BLOCKS: usize = 64;
    for round in 0..6 {
        let scratch = Scratch::in_memory();
        let mut settings = settings(scratch.path(), 64 << 20);
        settings.dram_bytes = Some(8 << 20);
        settings.demotion.idle = false;
        settings.wait_for_space = Duration::from_millis(50);
        let server = Running::start(&settings, false);
        server.put(b"other", &vec![9; 4 << 20]);
        let (_, handle) = server.create(b"grows").expect("create");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        server.client.fsync(handle, false).expect("fsync");
                    }
                });
            }
            for piece in 0..BLOCKS {
                let data = vec![piece as u8 + 1; PIECE];
                let at = (piece * PIECE) as u64;
                server.write(handle, at, &data).expect("write");
            }
            done.store(true, Ordering::Release);
        });
        server.client.release(handle).expect("close");
        let found = server.read_all(b"grows").expect("read");
        assert_eq!(found.len(), BLOCKS * PIECE);
        for (piece, found) in found.chunks(PIECE).enumerate() {
            assert!(
                found.iter().all(|b| *b == piece as u8 + 1),
                "round {round}, piece {piece}"
            );
        }
        server.instance.stop();
    }
}

/// Truncation by path beside an open for writing by the kernel: what the kernel writes is never
/// called clean.
#[test]
fn a_truncation_beside_an_open_leaves_the_file_written() {
    let scratch = Scratch::in_memory();
    let mut settings = settings(scratch.path(), 64 << 20);
    settings.demotion.idle = false;
    let server = Running::start(&settings, true);
    for name in [&b"f-1"[..], b"f-2"] {
        server.put(name, &[1; 4096]);
    }
    let name = b"f-2";
    for round in 0..400_u64 {
        server.drain();
        let attr = server.client.lookup(Ino::ROOT, name, 0).expect("lookup");
        let read = OpenFlags(libc::O_RDONLY as u32);
        let reader = server.client.open(attr.ino, read, me()).expect("open");
        let size = 4000 + round % 90;
        let open = std::thread::scope(|scope| {
            let truncation = scope.spawn(|| {
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                server.client.setattr(attr.ino, None, set, me())
            });
            let flags = OpenFlags(libc::O_RDWR as u32);
            let open = server.client.open(attr.ino, flags, me()).expect("open");
            truncation.join().expect("thread").expect("truncate");
            open
        });
        if open.descriptor.is_some() {
            kernels_own(&open)
                .write_all_at(&round.to_le_bytes(), 0)
                .expect("write");
        } else {
            let handle = open.opened.handle;
            server
                .write(handle, 0, &round.to_le_bytes())
                .expect("write");
        }
        server.client.release(reader.opened.handle).expect("close");
        server.client.release(open.opened.handle).expect("close");
        server.drain();
        let there = fs::read(scratch.pfs().join("f-2")).expect("read");
        assert_eq!(there[..8], round.to_le_bytes(), "round {round}");
        assert_eq!(there.len() as u64, size, "round {round}");
        server.client.forget(vec![(attr.ino, 1)]);
    }
    server.instance.stop();
}

#[test]
fn a_name_that_comes_and_goes_takes_no_other_name_with_it_for_who_looks() {
    let scratch = Scratch::new();
    let mut settings = settings(scratch.path(), 64 << 20);
    settings.demotion.idle_after = Duration::from_millis(1);
    let server = Running::start(&settings, false);
    server.put(b"f", b"content");
    server.wait_clean(&|_| false);
    let ino = server
        .client
        .lookup(Ino::ROOT, b"f", 0)
        .expect("lookup")
        .ino;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Other nodes look at a name while it is made and removed: one kernel would not.
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    if let Ok(found) = server.client.lookup(Ino::ROOT, b"g", 0) {
                        server.client.forget(vec![(found.ino, 1)]);
                    }
                }
            });
        }
        let turns = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..1500 {
                let linked = server.client.link(ino, Ino::ROOT, b"g", me());
                linked.unwrap_or_else(|e| panic!("link in round {round}: {e:?}"));
                server.client.forget(vec![(ino, 1)]);
                let removed = server.client.unlink(Ino::ROOT, b"g", me());
                removed.unwrap_or_else(|e| panic!("unlink in round {round}: {e:?}"));
                let found = server.client.getattr(ino, None).expect("getattr");
                assert_eq!(found.nlink, 1, "round {round}");
            }
        }));
        done.store(true, Ordering::Release);
        turns.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(fs::read(scratch.pfs().join("f")).expect("read"), b"content");
    server.instance.stop();
}

#[test]
fn who_looks_at_a_new_name_never_finds_the_older_version_that_has_it_on_the_pfs() {
    let scratch = Scratch::new();
    let mut settings = settings(scratch.path(), 64 << 20);
    settings.demotion.idle_after = Duration::from_millis(1);
    let server = Running::start(&settings, false);
    server.put(b"f", b"");
    let (done, least) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let least = least.load(Ordering::Acquire);
                    if let Ok(found) = server.client.lookup(Ino::ROOT, b"g", 0) {
                        server.client.forget(vec![(found.ino, 1)]);
                        assert!(found.size >= least, "{} of {least}", found.size);
                    }
                }
            });
        }
        let turns = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 1..=300u64 {
                // The PFS has what was written in the round before.
                server.wait_clean(&|_| false);
                server.put(b"f", &vec![7; round as usize]);
                least.store(round, Ordering::Release);
                for (from, to) in [(b"f", b"g"), (b"g", b"f")] {
                    let (from, to) = ((Ino::ROOT, &from[..]), (Ino::ROOT, &to[..]));
                    let renamed = server.client.rename(from, to, RenameMode::Replace, me());
                    renamed.unwrap_or_else(|e| panic!("rename in round {round}: {e:?}"));
                }
            }
        }));
        done.store(true, Ordering::Release);
        turns.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    server.instance.stop();
}
