//! The level `replica`: what fsync promised is there without any one data server, whenever that
//! goes, and what it has when it is back is never taken for the file.

mod common;
#[path = "replica/placing.rs"]
mod placing;
#[path = "replica/restarts.rs"]
mod restarts;
#[path = "replica/stale.rs"]
mod stale;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_policy::durability::Durability;
use forebay_server::{HolderWay, Settings};
use forebay_types::failpoint::{self, Point};
use forebay_types::{Errno, Handle, Ino, OpenFlags, RenameMode};
use forebay_wire::{Connection, InMemory, OUT_OF_REACH, Reply, Request};

use common::{PATIENCE, Running, Scratch, me, settings_with_holders};

/// A way to a data server that answers as long as it is there, and so many calls.
struct Flaky {
    inner: HolderWay,
    is_there: AtomicBool,
    /// It goes when these are used up.
    answers: AtomicI64,
}

impl Flaky {
    fn answers(&self) -> bool {
        if self.answers.fetch_sub(1, Ordering::AcqRel) <= 0 {
            self.is_there.store(false, Ordering::Release);
        }
        self.is_there.load(Ordering::Acquire)
    }

    fn goes_after(&self, answers: i64) {
        self.answers.store(answers, Ordering::Release);
    }

    fn comes_back(&self) {
        self.answers.store(i64::MAX / 2, Ordering::Release);
        self.is_there.store(true, Ordering::Release);
    }
}

impl Connection for Flaky {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        match self.answers() {
            true => self.inner.0.call(request, payload, into),
            false => Err(OUT_OF_REACH),
        }
    }

    fn is_answering(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

/// A burst buffer on data servers that come and go.
struct Servers {
    settings: Settings,
    ways: Vec<(u16, Arc<Flaky>)>,
}

impl Servers {
    fn new(dir: &Path, servers: &[u16]) -> Servers {
        let mut settings = settings_with_holders(dir, 64 << 20, servers);
        settings.durability = Some(Durability::Replica);
        settings.demotion.idle = false;
        settings.demotion.start_fraction = 0.9;
        settings.wait_for_holders = Duration::from_millis(50);
        let holders = settings.holders.iter_mut();
        let ways = holders.map(|holder| {
            let flaky = Arc::new(Flaky {
                inner: holder.way.clone(),
                is_there: AtomicBool::new(true),
                answers: AtomicI64::new(i64::MAX / 2),
            });
            holder.way = HolderWay(flaky.clone());
            (holder.server, flaky)
        });
        let ways = ways.collect();
        Servers { settings, ways }
    }

    fn way(&self, server: u16) -> &Flaky {
        let mut ways = self.ways.iter();
        &ways.find(|(id, _)| *id == server).expect("a server").1
    }

    fn start(&self) -> Running {
        Running::start(&self.settings, false)
    }

    fn all_come_back(&self) {
        self.ways.iter().for_each(|(_, way)| way.comes_back());
    }
}

/// Servers that have a file, its own first.
fn servers_of(running: &Running, path: &[u8]) -> Vec<u16> {
    let held = running.residency(path);
    let names = held[0].tiers.iter().map(|name| {
        let rest = name.strip_prefix("server-").expect("a data server's");
        rest.split(':')
            .next()
            .expect("an id")
            .parse()
            .expect("an id")
    });
    names.collect()
}

fn content(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| seed ^ (at / 7) as u8).collect()
}

/// A file that is written and fsynced, open.
fn put_synced(running: &Running, name: &[u8], data: &[u8]) -> Handle {
    let (_, handle) = running.create(name).expect("create");
    running.write(handle, 0, data).expect("write");
    running.client.fsync(handle, false).expect("fsync");
    handle
}

/// Until a data server that is away is given up, and longer.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_fsync_has_the_file_on_two_servers_and_sends_what_has_changed() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3]);
    let running = servers.start();
    let mut data = content(1, 3 << 20);
    let handle = put_synced(&running, b"f", &data);
    let both = servers_of(&running, b"f");
    assert_eq!(both.len(), 2, "{both:?}");
    assert_ne!(both[0], both[1]);
    let calls = || servers.way(both[1]).answers.load(Ordering::Acquire);
    let before = calls();
    running.client.fsync(handle, false).expect("fsync");
    let idle = before - calls();
    assert!(idle <= 3, "{idle} calls for nothing");
    data[1 << 20..][..4096].fill(9);
    running.write(handle, 1 << 20, &[9; 4096]).expect("write");
    let before = calls();
    running.client.fsync(handle, false).expect("fsync");
    let little = before - calls();
    assert!(little < 12, "{little} calls for 4 KiB");
    running.client.release(handle).expect("close");
    running.instance.stop();
    drop(running);
    // Without the one that has the file.
    servers.way(both[0]).goes_after(0);
    let running = servers.start();
    assert!(running.read_all(b"f").expect("read") == data);
    running.instance.stop();
}

#[test]
fn without_a_second_server_an_fsync_is_one_to_the_pfs() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2]);
    let running = servers.start();
    let data = content(2, 100_000);
    let handle = put_synced(&running, b"f", &data);
    assert_eq!(std::fs::read(scratch.pfs().join("f")).expect("there"), data);
    running.client.release(handle).expect("close");
    running.instance.stop();
}

#[test]
fn a_file_that_is_drained_has_no_second_copy() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3]);
    let running = servers.start();
    let handle = put_synced(&running, b"f", &content(3, 100_000));
    running.client.release(handle).expect("close");
    assert_eq!(servers_of(&running, b"f").len(), 2);
    running.drain();
    let held = running.residency(b"f");
    assert_eq!(held[0].tiers.len(), 2, "one tier and the PFS: {held:?}");
    running.audit();
    running.instance.stop();
}

/// Version by version a file is fsynced; after any number of answers one of both servers goes, and
/// at a start without it the file is what was promised last, or what was being written then. Then
/// it comes back, and nothing of what it has is the file.
#[test]
fn a_server_that_goes_at_any_moment_takes_nothing_that_was_promised() {
    let step = match common::from_env("REPLICA_EACH") {
        Some(_) => 1,
        None => 18,
    };
    let cases = (0..90)
        .step_by(step)
        .flat_map(|answers| [(0, answers), (1, answers)]);
    let cases = Mutex::new(cases.collect::<Vec<_>>());
    // Each of them waits most of the time.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let case = cases.lock().expect("no panic").pop();
                    let Some((which, answers)) = case else {
                        break;
                    };
                    at_any_moment(which, answers);
                }
            });
        }
    });
}

fn at_any_moment(which: usize, answers: i64) {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3]);
    let running = servers.start();
    let version = |n: u8| content(n, 20_000 + 1000 * usize::from(n));
    let handle = put_synced(&running, b"f", &version(0));
    let both = servers_of(&running, b"f");
    let gone = both[which];
    servers.way(gone).goes_after(answers);
    let (mut promised, mut tried) = (0, 0);
    for n in 1..6 {
        tried = n;
        let written = running.write_unwaited(handle, 0, &version(n));
        if written
            .and_then(|()| running.client.fsync(handle, false))
            .is_err()
        {
            break;
        }
        promised = n;
        if !servers.way(gone).is_answering() {
            break;
        }
    }
    servers.way(gone).goes_after(0);
    // As a kill: nothing is closed.
    drop(running.client);
    running.instance.stop();
    drop(running.instance);
    let what = format!("server {which} after {answers} answers: {promised}, {tried}");
    let on_pfs = std::fs::read(scratch.pfs().join("f")).ok();
    let is_promised = |found: &[u8]| {
        let is_of = |at: usize| {
            let byte = found[at];
            (promised..=tried).any(|n| version(n).get(at) == Some(&byte))
        };
        found.len() >= version(promised).len() && (0..version(promised).len()).all(is_of)
    };
    let running = servers.start();
    let found = running.read_all(b"f");
    let found = found.unwrap_or_else(|e| panic!("{what}: {e}, {on_pfs:?}"));
    assert!(is_promised(&found), "{what}: {} bytes", found.len());
    running.instance.stop();
    drop(running);
    servers.all_come_back();
    let running = servers.start();
    assert!(
        running.read_all(b"f").expect("read") == found,
        "{what}: it went back"
    );
    running.drain();
    assert!(
        running.read_all(b"f").expect("read") == found,
        "{what}: drained"
    );
    assert_eq!(
        std::fs::read(scratch.pfs().join("f")).expect("there"),
        found,
        "{what}"
    );
    running.audit();
    running.instance.stop();
}

/// Number, handle and servers of an open file.
type Opened = (u8, Handle, Vec<u16>);

/// Files that were fsynced; every other one was written since.
fn open_some(running: &Running) -> Vec<Opened> {
    let open = |n: u8| {
        let name = format!("f{n}");
        let handle = put_synced(running, name.as_bytes(), &content(n, 50_000));
        if n.is_multiple_of(2) {
            running.write(handle, 10, b"not promised").expect("write");
        }
        (n, handle, servers_of(running, name.as_bytes()))
    };
    (0..8).map(open).collect()
}

/// What was promised is there, and who has lost something is told so, once.
fn use_after_loss(running: &Running, opens: &[Opened], gone: u16) {
    for (n, handle, on) in opens {
        let mut found = Err(Errno::EIO);
        wait_for("it is read", || {
            found = running.read(*handle, 0, 50_000);
            found.is_ok()
        });
        let (found, promised) = (found.expect("read"), content(*n, 50_000));
        let mut written = promised.clone();
        written[10..22].copy_from_slice(b"not promised");
        let is_lost = on[0] == gone && n % 2 == 0;
        let expected = match n % 2 == 0 && !is_lost {
            true => &written,
            false => &promised,
        };
        assert!(found == *expected, "f{n}, lost: {is_lost}");
        let first = running.client.fsync(*handle, false);
        assert_eq!(first.is_err(), is_lost, "f{n}: {first:?}");
        running.write(*handle, 0, b"after").expect("write");
        running.client.fsync(*handle, false).expect("fsync");
    }
}

/// A server goes while files are read and written, and comes back with what it had.
#[test]
fn the_second_copy_of_a_file_takes_its_place_and_gets_a_second_copy() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3, 4]);
    let running = servers.start();
    let data = content(4, 200_000);
    let closed = put_synced(&running, b"closed", &data);
    let both = servers_of(&running, b"closed");
    running.client.release(closed).expect("close");
    let opens = open_some(&running);
    let gone = both[0];
    servers.way(gone).goes_after(0);
    let begun = Instant::now();
    wait_for("it is read", || {
        running.read_all(b"closed").is_ok_and(|found| found == data)
    });
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    use_after_loss(&running, &opens, gone);
    // What lacks a second copy gets one by itself.
    let has_two = |name: &[u8]| {
        let on = servers_of(&running, name);
        on.len() == 2 && !on.contains(&gone)
    };
    wait_for("a second copy", || has_two(b"closed"));
    assert!(has_two(b"f0") && has_two(b"f1"));
    let mut expected = Vec::new();
    for (n, handle, _) in opens {
        expected.push((
            format!("f{n}"),
            running.read(handle, 0, 60_000).expect("read"),
        ));
        running.client.release(handle).expect("close");
    }
    expected.push(("closed".into(), data));
    servers.way(gone).comes_back();
    let is_back = |running: &Running| {
        expected
            .iter()
            .all(|(name, data)| running.read_all(name.as_bytes()).as_ref() == Ok(data))
    };
    assert!(is_back(&running), "it went back");
    // What is left there goes.
    wait_for("nothing is left", || {
        running.instance.audit_books().is_empty()
    });
    assert!(is_back(&running));
    running.instance.stop();
    drop(running);
    let running = servers.start();
    assert!(is_back(&running), "after a start");
    running.drain();
    for (name, data) in &expected {
        assert!(
            std::fs::read(scratch.pfs().join(name)).expect("there") == *data,
            "{name}"
        );
    }
    running.audit();
    running.instance.stop();
}

/// The server dies where it has made a second copy the file, and where it has removed what was
/// left: the next start comes to the same.
#[test]
fn a_server_that_dies_while_copies_take_the_place_of_files_goes_on_with_the_next_start() {
    for point in [Point::PromoteRecord, Point::LeftRemoved] {
        let scratch = Scratch::new();
        let servers = Servers::new(scratch.path(), &[2, 3]);
        let running = servers.start();
        let data = content(5, 30_000);
        let handle = put_synced(&running, b"f", &data);
        running.client.release(handle).expect("close");
        let gone = servers_of(&running, b"f")[0];
        running.instance.stop();
        drop(running);
        servers.way(gone).goes_after(0);
        if point == Point::LeftRemoved {
            let running = servers.start();
            running.instance.stop();
            drop(running);
            servers.all_come_back();
        }
        let settings = servers.settings.clone();
        let died = std::thread::spawn(move || {
            failpoint::meanwhile(point, || panic!("it dies here"));
            drop(forebay_server::Instance::start(settings));
        });
        died.join().expect_err("the point is hit");
        let running = servers.start();
        assert!(running.read_all(b"f").expect("read") == data, "{point:?}");
        running.instance.stop();
        drop(running);
        servers.all_come_back();
        let running = servers.start();
        assert!(running.read_all(b"f").expect("read") == data, "{point:?}");
        running.drain();
        running.audit();
        running.instance.stop();
    }
}

#[test]
fn a_loss_that_nobody_was_told_is_told_after_one_more_start() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3, 4]);
    let running = servers.start();
    let data = content(6, 50_000);
    let handle = put_synced(&running, b"f", &data);
    running.write(handle, 10, b"not promised").expect("write");
    servers.way(servers_of(&running, b"f")[0]).goes_after(0);
    wait_for("its second copy is the file", || {
        let found = running.read(handle, 0, data.len());
        found.is_ok_and(|found| found == data)
    });
    // As a kill: nobody has asked.
    drop(running.client);
    running.instance.stop();
    drop(running.instance);
    for is_told in [true, false] {
        let running = servers.start();
        let flags = OpenFlags(libc::O_RDWR as u32);
        let attr = running.client.lookup(Ino::ROOT, b"f", 0).expect("there");
        let opened = running.client.open(attr.ino, flags, me()).expect("open");
        let handle = opened.opened.handle;
        let first = running.client.fsync(handle, false);
        assert_eq!(first == Err(Errno::EIO), is_told, "{first:?}");
        running.client.fsync(handle, false).expect("told once");
        running.client.release(handle).expect("close");
        running.instance.stop();
    }
}

/// What is flushed for a change of names is no promise that the second copy would lack.
#[test]
fn a_file_that_is_renamed_goes_on_with_what_was_promised_when_its_server_goes() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3]);
    let running = servers.start();
    let replaced = put_synced(&running, b"g", b"older");
    running.client.release(replaced).expect("close");
    let data = content(7, 50_000);
    let handle = put_synced(&running, b"f", &data);
    running.write(handle, 10, b"not promised").expect("write");
    let (from, to) = ((Ino::ROOT, &b"f"[..]), (Ino::ROOT, &b"g"[..]));
    let renamed = running.client.rename(from, to, RenameMode::Replace, me());
    renamed.expect("rename");
    let gone = servers_of(&running, b"g")[0];
    servers.way(gone).goes_after(0);
    wait_for("its second copy is the file", || {
        running
            .read(handle, 0, data.len())
            .is_ok_and(|found| found == data)
    });
    assert_eq!(running.client.fsync(handle, false), Err(Errno::EIO));
    running.client.fsync(handle, false).expect("told once");
    running.client.release(handle).expect("close");
    running.instance.stop();
}

/// A second copy that is made at a low rate holds up nobody who waits for the file.
#[test]
fn an_fsync_does_not_wait_for_the_rate_of_a_copy_that_is_made_again() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3, 4]);
    servers.settings.replica_rate_bytes_per_s = 512 << 10;
    let running = servers.start();
    let handle = put_synced(&running, b"f", &content(8, 24 << 20));
    let both = servers_of(&running, b"f");
    let third = (2..5).find(|id| !both.contains(id)).expect("a third");
    servers.way(both[1]).goes_after(0);
    let begins = || servers.way(third).answers.load(Ordering::Acquire);
    let before = begins();
    wait_for("the copy is under way", || before - begins() > 12);
    running.write(handle, 0, b"now").expect("write");
    let begun = Instant::now();
    running.client.fsync(handle, false).expect("fsync");
    let waited = begun.elapsed();
    // At its rate the copy takes a minute.
    assert!(waited < PATIENCE, "{waited:?}");
    assert!(servers_of(&running, b"f").contains(&third));
    running.client.release(handle).expect("close");
    running.instance.stop();
}

/// Somebody has a file open that has lost its name, and the server of its second copy is away at
/// the start: that start is done, and calls nothing wrong.
#[test]
fn a_start_without_the_second_copy_of_a_file_without_a_name_is_done() {
    let scratch = Scratch::new();
    let servers = Servers::new(scratch.path(), &[2, 3]);
    let running = servers.start();
    let session = running.instance.sessions().begin(11);
    let client = forebay_client::Client::new(Arc::new(InMemory::mount(session)));
    let handle = put_synced(&running, b"f", &content(6, 30_000));
    let second = servers_of(&running, b"f")[1];
    running.client.release(handle).expect("close");
    let ino = client.lookup(Ino::ROOT, b"f", 0).expect("lookup").ino;
    let flags = OpenFlags(libc::O_RDWR as u32);
    client.open(ino, flags, me()).expect("open");
    client.unlink(Ino::ROOT, b"f", me()).expect("unlink");
    running.instance.stop();
    drop((client, running));
    servers.way(second).goes_after(0);
    let (tells, told) = std::sync::mpsc::channel();
    let settings = servers.settings.clone();
    std::thread::spawn(move || {
        let running = Running::start(&settings, false);
        let errors = running.status().errors;
        running.instance.stop();
        // Who has waited too long is not there any more.
        let _ = tells.send(errors);
    });
    let errors = told.recv_timeout(PATIENCE).expect("the start is done");
    assert!(errors.is_empty(), "{errors:?}");
}
