//! The way to the data server that has all files ends between the steps of every operation that has
//! several: for a moment, or for longer and until a start that finds another process there.
//!
//! A few cases run in any case. `FAILPOINTS_WAYS=1` runs all of them, in some minutes;
//! `FAILPOINTS_ONLY` those whose point's name contains it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use forebay_holder::{DataServer, DataSession, open_flash};
use forebay_server::{HolderSetting, HolderWay, Settings, SsdSetting};
use forebay_tiers::{PfsTree, Tier};
use forebay_types::failpoint::{self, Point};
use forebay_types::{Errno, Ino};
use forebay_wire::net::Guest;
use forebay_wire::{Connection, InMemory, OUT_OF_REACH, Reply, Request};

use crate::common::{PATIENCE, Running, Scratch, from_env};
use crate::model::{Model, Op, Tree, on_pfs, shown, without};
use crate::run::{Case, act, run_all, shape};
use crate::workloads::{Tiers, Workload, workloads};

/// The directory that a child works in; whoever has it in the environment is the child.
const CHILD_DIR: &str = "FAILPOINTS_WAYS_DIR";
const CHILD_CASE: &str = "FAILPOINTS_WAYS_CASE";
/// How long the way is cut.
const CUT: Duration = Duration::from_millis(40);
/// The same before another process of the data server.
const LONG: Duration = Duration::from_millis(500);
/// What a child ends with: all is right, or nothing has come by the point.
const RIGHT: i32 = 0;
const NOT_HIT: i32 = 9;
/// What runs without being asked for, each under its first workload.
const SAMPLE: &[Point] = &[
    Point::CreateNamed,
    Point::ChangeRecorded,
    Point::UnlinkPfs,
    Point::RenamePfs,
    Point::LinkRecord,
];

/// A way that can be cut: what is open at its other end is closed then, and who comes back begins
/// a session, as over the network.
struct Way {
    server: Arc<DataServer>,
    session: RwLock<Option<(Arc<DataSession>, Arc<InMemory>)>>,
    /// Counts the sessions that are over.
    ended: AtomicU64,
}

impl Way {
    fn new(dir: &Path) -> Arc<Way> {
        let ssd = SsdSetting {
            dir: dir.join("ssd0"),
            capacity_bytes: Some(64 << 20),
        };
        let open = move |instance| {
            let tier = open_flash("ssd", &ssd, instance)?;
            Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
        };
        let pfs = PfsTree::open(&dir.join("pfs")).expect("a PFS");
        let way = Way {
            server: DataServer::new("this boot".into(), Vec::new(), Box::new(open), Some(pfs)),
            session: RwLock::default(),
            ended: AtomicU64::new(0),
        };
        way.mend();
        Arc::new(way)
    }

    fn cut(&self) {
        let before = self.session.write().expect("no panic").take();
        self.ended.fetch_add(1, Ordering::AcqRel);
        if let Some((session, _)) = before {
            // As the network does with a session that is lost.
            session.end();
        }
    }

    fn mend(&self) {
        let session = Arc::new(self.server.session());
        let connection = Arc::new(InMemory::mount(session.clone()));
        *self.session.write().expect("no panic") = Some((session, connection));
    }

    fn session(&self) -> Option<Arc<InMemory>> {
        let session = self.session.read().expect("no panic");
        session.as_ref().map(|(_, connection)| connection.clone())
    }
}

impl Connection for Way {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        let session = self.session().ok_or(OUT_OF_REACH)?;
        session.call(request, payload, into)
    }

    fn generation(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    fn is_answering(&self) -> bool {
        self.session().is_some()
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

/// All flash is on a data server.
fn on_data_server(dir: &Path, point: Point) -> (Settings, Arc<Way>) {
    let mut settings = shape(dir, Tiers::Flash, point);
    settings.ssd.clear();
    settings.demotion.copy_out_min_bytes = 1;
    settings.wait_for_holders = Duration::from_millis(50);
    let way = Way::new(dir);
    settings.holders = vec![HolderSetting {
        server: 2,
        rack: 2,
        addresses: Vec::new(),
        way: HolderWay(way.clone()),
        replication: None,
    }];
    (settings, way)
}

/// Whether a workload needs nothing but flash, and one process. An unpublished version has another
/// name on the PFS.
fn fits(work: &Workload) -> bool {
    let ops = work.before.iter().chain(&work.ops);
    let mut ops = ops.filter(|op| {
        matches!(
            op,
            Op::Stop
                | Op::Die
                | Op::Sealed
                | Op::Flip(_)
                | Op::DrainRacing(_)
                | Op::Commit(_)
                | Op::CommitBeside(_)
                | Op::OutsideAtLook(..)
        )
    });
    work.tiers == Tiers::Flash
        && work.first.is_none()
        && !work.conflict
        && ops.next().is_none()
        && work.published().is_none()
}

/// What may be found after the operations, with those that were answered with an error done or not.
struct Allowed(Vec<Model>, Vec<&'static str>);

impl Allowed {
    fn applied(&mut self, op: &Op, is_answered: bool) {
        let before = self.0.clone();
        self.0.iter_mut().for_each(|model| model.apply(op));
        if !is_answered {
            self.0.extend(before);
            self.1.extend(op.vague());
        }
    }

    #[track_caller]
    fn check(&self, what: &str, found: &Tree) {
        let bare = |tree: &Tree| {
            let vague = self.1.iter();
            vague.fold(tree.clone(), |tree, path| without(&tree, path))
        };
        let allowed: Vec<Tree> = self.0.iter().map(|model| bare(&model.tree())).collect();
        let found = bare(found);
        assert!(
            allowed.contains(&found),
            "{what}: found {found:#?}, allowed {allowed:#?}"
        );
    }
}

/// Not a test of its own: the body of a child.
#[test]
fn child_whose_way_ends() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let case = std::env::var(CHILD_CASE).expect("case");
    let parts: Vec<usize> = case.split(' ').map(|n| n.parse().expect("n")).collect();
    let (point, stays) = (Point::ALL[parts[0]], parts[2] == 1);
    let work = workloads(point).swap_remove(parts[1]);
    std::process::exit(in_child(&dir, point, &work, stays));
}

/// Cuts the way when `point` is come by first; tells whether it has been.
fn cut_at(point: Point, way: Arc<Way>, time: Duration) -> Arc<AtomicBool> {
    let was_hit = Arc::new(AtomicBool::new(false));
    let hit = was_hit.clone();
    failpoint::always(point, move || {
        if hit.swap(true, Ordering::AcqRel) {
            return;
        }
        way.cut();
        let way = way.clone();
        std::thread::spawn(move || {
            std::thread::sleep(time);
            way.mend();
        });
    });
    was_hit
}

/// The server begins the next session by itself.
fn wait_until_used(running: &Running) {
    let started = Instant::now();
    while running.status().tiers.iter().any(|tier| tier.out_of_reach) {
        assert!(started.elapsed() < PATIENCE, "{:?}", running.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn in_child(dir: &Path, point: Point, work: &Workload, stays: bool) -> i32 {
    let pfs = dir.join("pfs");
    let (settings, way) = on_data_server(dir, point);
    let mut running = Running::start(&settings, false);
    let mut allowed = Allowed(vec![Model::default()], Vec::new());
    for op in &work.before {
        act(&running, &pfs, op).unwrap_or_else(|e| panic!("before: {op:?}: {e:?}"));
        allowed.applied(op, true);
    }
    let was_hit = cut_at(point, way.clone(), if stays { LONG } else { CUT });
    let mut failed = false;
    for op in &work.ops {
        let done = act(&running, &pfs, op);
        eprintln!("{op:?}: {done:?}");
        allowed.applied(op, done.is_ok());
        failed |= done.is_err();
    }
    if !was_hit.load(Ordering::Acquire) {
        return NOT_HIT;
    }
    // What a failed operation has left open is open until its client has gone.
    if stays || failed {
        running.instance.stop();
        // The data server's process ends, too: who has an object open would pass for a program
        // that writes it.
        way.cut();
        drop((running, settings));
        running = Running::start(&on_data_server(dir, point).0, false);
    } else {
        std::thread::sleep(2 * CUT);
        wait_until_used(&running);
    }
    let found = shown(&running);
    allowed.check("mount", &found);
    for name in found.keys().filter(|name| !name.contains('/')) {
        let looked = running.client.lookup(Ino::ROOT, name.as_bytes(), 0);
        looked.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    running.drain();
    assert_eq!(shown(&running), found, "after the drain");
    running.instance.stop();
    assert_eq!(on_pfs(&pfs), found, "PFS");
    RIGHT
}

/// Runs a child, for no longer than twice what a wait in it may take.
fn run(case: &Case, stays: bool) -> Result<(), String> {
    let scratch = Scratch::in_memory();
    let log = scratch.path().join("log");
    let number = Point::ALL.iter().position(|point| *point == case.point);
    let number = number.expect("a point");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "ways::child_whose_way_ends", "--nocapture"])
        .env(CHILD_DIR, scratch.path())
        .env(
            CHILD_CASE,
            format!("{number} {} {}", case.at, u8::from(stays)),
        )
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).expect("log"))
        .spawn()
        .expect("child");
    let started = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("wait") {
            break ended.code();
        }
        if started.elapsed() > 2 * PATIENCE {
            child.kill().expect("kill");
            child.wait().expect("wait");
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    match ended {
        Some(RIGHT) => Ok(()),
        // Some points are passed only where flash is the server's own.
        Some(NOT_HIT) if !SAMPLE.contains(&case.point) => Ok(()),
        _ => {
            let told = std::fs::read_to_string(log).expect("log");
            let time = started.elapsed();
            Err(format!(
                "stays away: {stays}, ended {ended:?} after {time:?}: {told}"
            ))
        }
    }
}

#[test]
fn a_way_that_ends_at_any_failpoint_leaves_the_old_state_or_the_new_one() {
    let only = std::env::var("FAILPOINTS_ONLY").unwrap_or_default();
    let all = from_env("FAILPOINTS_WAYS").is_some() || !only.is_empty();
    let (points, most) = match all {
        true => (Point::ALL, usize::MAX),
        false => (SAMPLE, 1),
    };
    let cases: Vec<Case> = points
        .iter()
        .filter(|point| point.name().contains(&only))
        .flat_map(|&point| {
            let works = workloads(point).into_iter().enumerate();
            let fitting = works.filter(|(_, work)| fits(work)).take(most);
            fitting.map(move |(at, _)| Case { point, at })
        })
        .collect();
    assert!(all || cases.len() == SAMPLE.len(), "{cases:?}");
    run_all(&cases, &|case| {
        run(case, false).and_then(|()| run(case, true))
    });
}
