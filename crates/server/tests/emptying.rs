//! A node that is emptied: what the PFS is too slow for moves to another node, and neither a node
//! that goes nor a server that dies in the middle of a move loses it or shows it twice.

mod common;
#[path = "emptying/open.rs"]
mod open;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_holder::{DataServer, open_flash};
use forebay_policy::engine::Bandwidths;
use forebay_policy::holders::{HolderId, HolderRule, Locality};
use forebay_server::{HolderWay, NodeSetting, PathRule, Settings, SsdSetting};
use forebay_tiers::{PfsTree, Tier};
use forebay_types::failpoint::{self, Ends, Point};
use forebay_types::{Errno, Ino, RenameMode};
use forebay_wire::control::Control;
use forebay_wire::{Connection, InMemory, OUT_OF_REACH, Reply, Request};

use common::{PATIENCE, Running, Scratch, settings_with_holders};

/// Failpoints are the process's: one test at a time.
static ONE: Mutex<()> = Mutex::new(());
const FILES: u8 = 6;
/// The steps of a move.
const MOVE: [Point; 5] = [
    Point::MoveObject,
    Point::MoveCopied,
    Point::MoveFlushed,
    Point::MoveRecord,
    Point::MoveRemoved,
];

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A way to a data server that answers so many calls.
struct Flaky {
    server: Arc<DataServer>,
    inner: Mutex<Arc<InMemory>>,
    is_there: AtomicBool,
    answers: AtomicI64,
}

impl Connection for Flaky {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        if self.answers.fetch_sub(1, Ordering::AcqRel) <= 0 {
            self.is_there.store(false, Ordering::Release);
        }
        match self.is_answering() {
            true => {
                let inner = self.inner.lock().expect("no panic").clone();
                inner.call(request, payload, into)
            }
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

impl Flaky {
    fn goes_after(&self, answers: i64) {
        self.answers.store(answers, Ordering::Release);
    }

    fn new(dir: &Path, server: u16) -> Flaky {
        let ssd = SsdSetting {
            dir: dir.join(format!("flash{server}")),
            // The second has twice the room.
            capacity_bytes: Some((u64::from(server) - 1) * (64 << 20)),
        };
        std::fs::create_dir_all(&ssd.dir).expect("mkdir");
        let open = move |instance| {
            let tier = open_flash("ssd", &ssd, instance)?;
            Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
        };
        let pfs = PfsTree::open(&dir.join("pfs")).expect("a PFS");
        let server = DataServer::new("this boot".into(), Vec::new(), Box::new(open), Some(pfs));
        Flaky {
            inner: Mutex::new(Arc::new(InMemory::mount(Arc::new(server.session())))),
            server,
            is_there: AtomicBool::new(true),
            answers: AtomicI64::new(i64::MAX / 2),
        }
    }

    /// With a session of its own: what the one before has left open is closed.
    fn comes_back(&self) {
        let session = Arc::new(InMemory::mount(Arc::new(self.server.session())));
        *self.inner.lock().expect("no panic") = session;
        self.goes_after(i64::MAX / 2);
        self.is_there.store(true, Ordering::Release);
    }
}

struct Servers {
    settings: Settings,
    ways: Vec<Arc<Flaky>>,
}

/// Flash on two data servers, and a PFS that is said to take next to nothing.
fn servers(dir: &Path) -> Servers {
    let mut settings = settings_with_holders(dir, 64 << 20, &[2, 3]);
    settings.demotion.idle = false;
    settings.demotion.start_fraction = 0.9;
    settings.wait_for_holders = Duration::from_millis(50);
    settings.engine.bandwidths = Some(Bandwidths {
        bw_max_bytes_per_s: 2e9,
        bw_min_bytes_per_s: 1e9,
        br_max_bytes_per_s: 2.0,
        br_min_bytes_per_s: 1.0,
    });
    let node = |server| NodeSetting {
        server,
        rack: None,
        addresses: Vec::new(),
        metadata: server == 1,
        data: server != 1,
    };
    settings.nodes = [1, 2, 3].map(node).to_vec();
    let holders = settings.holders.iter_mut();
    let ways = holders.map(|holder| {
        let flaky = Arc::new(Flaky::new(dir, holder.server));
        holder.way = HolderWay(flaky.clone());
        flaky
    });
    let ways = ways.collect();
    Servers { settings, ways }
}

fn content(n: u8) -> Vec<u8> {
    (0..20_000 + 1000 * usize::from(n))
        .map(|at| n ^ (at / 7) as u8)
        .collect()
}

fn names() -> impl Iterator<Item = (u8, String)> {
    (0..FILES).map(|n| (n, format!("f{n}")))
}

fn server_of(running: &Running, name: &str) -> Option<u16> {
    let held = running.residency(name.as_bytes());
    let tier = held.first()?.tiers.first()?;
    let id = tier.strip_prefix("server-")?.split(':').next()?;
    id.parse().ok()
}

fn order(running: &Running, server: u16, empty: bool) {
    running
        .control(Control::Node { server, empty })
        .expect("ordered");
}

/// All files on server 2, undrained.
fn fill(running: &Running) {
    order(running, 3, true);
    for (n, name) in names() {
        let (_, handle) = running.create(name.as_bytes()).expect("create");
        running.write(handle, 0, &content(n)).expect("write");
        running.client.fsync(handle, false).expect("fsync");
        running.client.release(handle).expect("close");
        assert_eq!(server_of(running, &name), Some(2));
    }
    order(running, 3, false);
}

fn is_whole(running: &Running) {
    for (n, name) in names() {
        let found = running.read_all(name.as_bytes());
        assert!(found.as_ref() == Ok(&content(n)), "{name}: {found:?}");
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Files that are left on a server.
fn left_on(running: &Running, server: u16) -> u64 {
    let status = running.status();
    let node = status.nodes.into_iter().find(|node| node.server == server);
    node.expect("a node").emptying.expect("ordered").files
}

fn objects_in(dir: &Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("directory") {
        let path = entry.expect("entry").path();
        match path.is_dir() {
            true => count += objects_in(&path),
            false => count += 1,
        }
    }
    count
}

/// What lies there as objects.
fn objects_of(scratch: &Scratch, server: u16) -> usize {
    objects_in(&scratch.path().join(format!("flash{server}/objects")))
}

#[test]
fn what_the_pfs_is_too_slow_for_moves_to_another_node() {
    let _one = alone();
    let scratch = Scratch::new();
    let servers = servers(scratch.path());
    let running = Running::start(&servers.settings, false);
    fill(&running);
    order(&running, 2, true);
    wait_for("they move", || left_on(&running, 2) == 0);
    for (_, name) in names() {
        assert_eq!(server_of(&running, &name), Some(3));
        assert!(!scratch.pfs().join(&name).exists(), "{name} was drained");
    }
    is_whole(&running);
    assert_eq!(objects_of(&scratch, 2), 0);
    running.audit();
    running.instance.stop();
    drop(running);
    let running = Running::start(&servers.settings, false);
    is_whole(&running);
    running.drain();
    for (n, name) in names() {
        assert!(std::fs::read(scratch.pfs().join(&name)).expect("there") == content(n));
    }
    running.instance.stop();
}

#[test]
fn what_may_lie_on_no_other_node_is_drained_and_all_else_moves() {
    let _one = alone();
    let scratch = Scratch::new();
    let mut servers = servers(scratch.path());
    let only = |pattern: &str, locality, servers: &[u16]| PathRule {
        pattern: pattern.into(),
        durability: None,
        mtbf: None,
        group: None,
        placement: Some(HolderRule {
            locality,
            servers: servers.iter().copied().map(HolderId).collect(),
            racks: Vec::new(),
        }),
        trust: None,
    };
    // Nothing was drained yet, and nobody says how fast that is: half would move.
    servers.settings.engine.bandwidths = None;
    servers.settings.rules = vec![
        only("/own*", Locality::LocalOnly, &[]),
        only("/pinned*", Locality::WriterFirst, &[2]),
        only("/free*", Locality::WriterFirst, &[3, 2]),
    ];
    let running = Running::start(&servers.settings, false);
    fill(&running);
    let named = |begin: &'static str, numbers: [u8; 2]| numbers.map(|n| (n, format!("{begin}{n}")));
    let (own, pinned, free) = (
        named("own", [0, 1]),
        named("pinned", [2, 3]),
        named("free", [4, 5]),
    );
    for (n, name) in own.iter().chain(&pinned).chain(&free) {
        let (old, root) = (format!("f{n}"), Ino::ROOT);
        let done = running.client.rename(
            (root, old.as_bytes()),
            (root, name.as_bytes()),
            RenameMode::Replace,
            common::me(),
        );
        done.expect("rename");
    }
    order(&running, 2, true);
    wait_for("they leave", || left_on(&running, 2) == 0);
    for (n, name) in own.iter().chain(&pinned) {
        assert_eq!(server_of(&running, name), None, "{name}");
        assert!(std::fs::read(scratch.pfs().join(name)).expect("drained") == content(*n));
    }
    assert!(
        free.iter()
            .any(|(_, name)| server_of(&running, name) == Some(3))
    );
    running.audit();
    running.instance.stop();
}

/// One of both nodes goes after any number of answers, and is back for the next start, which finds
/// every file once.
#[test]
fn a_node_that_goes_in_the_middle_of_moves_has_lost_nothing_when_it_is_back() {
    let _one = alone();
    let step = match common::from_env("EMPTYING_EACH") {
        Some(_) => 1,
        None => 77,
    };
    for answers in (0..160).step_by(step) {
        for which in [0, 1] {
            let scratch = Scratch::in_memory();
            let servers = servers(scratch.path());
            let running = Running::start(&servers.settings, false);
            fill(&running);
            servers.ways[which].goes_after(answers);
            order(&running, 2, true);
            let begun = Instant::now();
            while left_on(&running, 2) > 0
                && servers.ways[which].is_answering()
                && begun.elapsed() < PATIENCE
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(Duration::from_millis(20));
            running.instance.stop();
            drop(running);
            // Somebody removes one file while the node is away, and nobody shows it again.
            let gone = servers.ways[which].is_answering();
            servers.ways[which].goes_after(0);
            let running = Running::start(&servers.settings, false);
            let removed = running.client.unlink(Ino::ROOT, b"f0", common::me());
            let (_, handle) = running.create(b"other").expect("create");
            running.client.release(handle).expect("close");
            running.instance.stop();
            drop(running);
            servers.ways[which].comes_back();
            let running = Running::start(&servers.settings, false);
            let what = format!("server {which} after {answers} answers ({gone}), {removed:?}");
            for (n, name) in names() {
                let found = running.read_all(name.as_bytes());
                match n == 0 && removed.is_ok() {
                    true => assert_eq!(found, Err(Errno::ENOENT), "{what}: {name} is back"),
                    false => assert!(
                        found.as_ref() == Ok(&content(n)),
                        "{what}: {name} {found:?}"
                    ),
                }
            }
            let begun = Instant::now();
            while left_on(&running, 2) > 0 || !running.instance.audit_books().is_empty() {
                let left = (left_on(&running, 2), running.instance.audit_books());
                let held = running.residency(b"");
                assert!(begun.elapsed() < PATIENCE, "{what}: {left:?}, {held:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(objects_of(&scratch, 2), 0, "{what}");
            running.instance.stop();
        }
    }
}

/// The server dies between the steps of a move.
#[test]
fn a_server_that_dies_in_the_middle_of_a_move_goes_on_with_the_next_start() {
    let _one = alone();
    for point in MOVE {
        // Whether the node that has what is left of the move is there at the start that follows.
        let other = match point {
            Point::MoveRecord | Point::MoveRemoved => 0,
            _ => 1,
        };
        for away in [None, Some(other)] {
            let scratch = Scratch::in_memory();
            let servers = servers(scratch.path());
            let running = Running::start(&servers.settings, false);
            fill(&running);
            failpoint::arm(point, 2, Ends::Thread);
            order(&running, 2, true);
            wait_for("it dies", || running.instance.broken().is_some());
            drop(running.client);
            running.instance.stop();
            drop(running.instance);
            servers.ways.iter().for_each(|way| way.comes_back());
            let mut removed = false;
            if let Some(away) = away {
                servers.ways[away].goes_after(0);
                let running = Running::start(&servers.settings, false);
                for (_, name) in names() {
                    let gone = running
                        .client
                        .unlink(Ino::ROOT, name.as_bytes(), common::me());
                    gone.unwrap_or_else(|e| panic!("{name}: {e}"));
                }
                removed = true;
                running.instance.stop();
                drop(running);
                servers.ways[away].comes_back();
            }
            let running = Running::start(&servers.settings, false);
            match removed {
                false => is_whole(&running),
                true => {
                    for (_, name) in names() {
                        let found = running.read_all(name.as_bytes());
                        assert_eq!(found, Err(Errno::ENOENT), "{point:?} {away:?}: {name}");
                    }
                }
            }
            wait_for("it is empty", || left_on(&running, 2) == 0);
            wait_for("the books", || running.instance.audit_books().is_empty());
            assert_eq!(objects_of(&scratch, 2), 0, "{point:?} {away:?}");
            let errors = running.status().errors;
            assert!(errors.is_empty(), "{point:?} {away:?}: {errors:?}");
            running.instance.stop();
        }
    }
}
