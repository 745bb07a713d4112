//! Runs the cases: children that are killed, and what is found afterwards.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_server::{GroupMode, PathRule, Settings};
use forebay_types::failpoint::{self, Point};
use forebay_types::{Errno, Ino, OpenFlags, RenameMode, SetAttr, XattrMode};
use forebay_wire::InMemory;
use forebay_wire::control::Movement;

use crate::common::{PATIENCE, Running, Scratch, me, settings};
use crate::lend;
use crate::model::{Model, Op, Tree, below, content, on_pfs, shown, versions, without};
use crate::outsider::{flip, outside};
use crate::workloads::{Tiers, Workload, workloads};

/// The directory that a child works in; whoever has it in the environment is the child.
const CHILD_DIR: &str = "FAILPOINTS_CHILD_DIR";
/// The child's case: point, workload, and whether it only starts.
const CHILD_CASE: &str = "FAILPOINTS_CHILD_CASE";
/// Says that nothing has hit the point.
const NOT_HIT: &str = "the point was not hit";

/// One point under one workload.
#[derive(Clone, Debug)]
pub struct Case {
    pub point: Point,
    pub at: usize,
}

impl Case {
    pub fn work(&self) -> Workload {
        workloads(self.point).swap_remove(self.at)
    }
}

pub fn shape(dir: &Path, tiers: Tiers, point: Point) -> Settings {
    let flash = if tiers == Tiers::Tiny {
        1 << 20
    } else {
        64 << 20
    };
    let mut settings = settings(dir, flash);
    settings.ssd.truncate(1);
    settings.demotion.idle = false;
    settings.rules = vec![PathRule {
        pattern: "/**/v*".into(),
        durability: None,
        mtbf: None,
        placement: None,
        group: Some(GroupMode::Commit),
        trust: None,
    }];
    settings.demotion.start_fraction = 1.0;
    settings.scrub.seal_after = Duration::ZERO;
    settings.scrub.calm = Duration::ZERO;
    if point == Point::BlockRewritten {
        // All are compared when they are read.
        settings.scrub.verify_on_open_bytes = 0;
    }
    // Only a copy with a name leaves something to sweep.
    settings.demotion.unnamed = point != Point::RecoverSwept;
    if tiers == Tiers::Memory {
        settings.dram_bytes = Some(16 << 20);
    }
    if tiers == Tiers::Lent {
        lend::borrow(&mut settings);
    }
    settings
}

/// Directory and name of a path.
fn place<'a>(server: &Running, path: &'a str) -> Result<(Ino, &'a [u8]), Errno> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((server.find(dir.as_bytes())?.ino, name.as_bytes()))
}

fn write(server: &Running, op: &Op, path: &str, version: u8, len: usize) -> Result<(), Errno> {
    let client = &server.client;
    let (dir, name) = place(server, path)?;
    let flags = OpenFlags(libc::O_RDWR as u32);
    let (open_ino, open) = match client.lookup(dir, name, 0) {
        Ok(attr) => {
            let size = Some(0);
            let set = SetAttr {
                size,
                ..SetAttr::default()
            };
            client.setattr(attr.ino, None, set, me())?;
            (attr.ino, client.open(attr.ino, flags, me())?)
        }
        Err(_) => {
            let (attr, open) = client.create(dir, name, 0o640, flags, me())?;
            (attr.ino, open)
        }
    };
    let handle = open.opened.handle;
    for (n, part) in content(version, len).chunks(1 << 20).enumerate() {
        server.write(handle, (n as u64) << 20, part)?;
    }
    if matches!(op, Op::WriteFsync(..) | Op::WriteDrain(..)) {
        client.fsync(handle, false)?;
    }
    if !matches!(op, Op::WriteDrain(..)) {
        return client.release(handle);
    }
    let reader = client.open(open_ino, OpenFlags(libc::O_RDONLY as u32), me())?;
    client.release(handle)?;
    server.move_files(Movement::StageOut, path.as_bytes());
    client.release(reader.opened.handle)
}

fn write_unnamed(server: &Running, path: &str, version: u8, len: usize) -> Result<(), Errno> {
    let client = &server.client;
    let (dir, name) = place(server, path)?;
    let flags = OpenFlags(libc::O_RDWR as u32);
    let (attr, open) = client.create_unnamed(dir, 0o640, flags, me())?;
    let handle = open.opened.handle;
    client.set_xattr(attr.ino, b"user.point", &[version], XattrMode::Set, me())?;
    for (n, part) in content(version, len).chunks(1 << 20).enumerate() {
        server.write(handle, (n as u64) << 20, part)?;
    }
    client.fsync(handle, false)?;
    client.link(attr.ino, dir, name, me())?;
    client.release(handle)
}

type Name<'a> = (Ino, &'a [u8]);

fn rename_over_opening(server: &Running, from: Name<'_>, to: Name<'_>) -> Result<(), Errno> {
    let client = Arc::new(Client::new(Arc::new(InMemory::mount(
        server.instance.service(),
    ))));
    let reader = Arc::new(Mutex::new(None));
    let ino = client.lookup(to.0, to.1, 0)?.ino;
    let (who, opened) = (client.clone(), reader.clone());
    failpoint::meanwhile(Point::RenameStable, move || {
        let open = who.open(ino, OpenFlags(libc::O_RDONLY as u32), me());
        *opened.lock().expect("held by none") = Some(open.expect("still there").opened.handle);
    });
    server.client.rename(from, to, RenameMode::Replace, me())?;
    let handle = reader.lock().expect("held by none").take();
    client.release(handle.expect("it was opened"))
}

#[allow(
    clippy::too_many_lines,
    reason = "a list: one entry for each operation"
)]
pub fn act(server: &Running, pfs: &Path, op: &Op) -> Result<(), Errno> {
    let client = &server.client;
    let at = |path| place(server, path);
    let look = |path: &str| {
        let (dir, name) = place(server, path)?;
        client.lookup(dir, name, 0).map(|attr| attr.ino)
    };
    match *op {
        Op::Write(path, version, len)
        | Op::WriteFsync(path, version, len)
        | Op::WriteDrain(path, version, len) => write(server, op, path, version, len),
        Op::Unnamed(path, version, len) => write_unnamed(server, path, version, len),
        Op::Truncate(path, len) => {
            let size = Some(len as u64);
            let set = SetAttr {
                size,
                ..SetAttr::default()
            };
            client.setattr(look(path)?, None, set, me()).map(drop)
        }
        Op::Rename(from, to) => client.rename(at(from)?, at(to)?, RenameMode::Replace, me()),
        Op::RenameOverOpen(from, to) => {
            let reader = client.open(look(to)?, OpenFlags(libc::O_RDONLY as u32), me())?;
            client.rename(at(from)?, at(to)?, RenameMode::Replace, me())?;
            client.release(reader.opened.handle)
        }
        Op::RenameOverOpening(from, to) => rename_over_opening(server, at(from)?, at(to)?),
        Op::Exchange(a, b) => client.rename(at(a)?, at(b)?, RenameMode::Exchange, me()),
        Op::Unlink(path) => at(path).and_then(|(dir, name)| client.unlink(dir, name, me())),
        Op::Rmdir(path) => at(path).and_then(|(dir, name)| client.rmdir(dir, name, me())),
        Op::Mkdir(path) => {
            let (dir, name) = at(path)?;
            client.mkdir(dir, name, 0o755, me()).map(drop)
        }
        Op::Link(from, to) => {
            let (dir, name) = at(to)?;
            client.link(look(from)?, dir, name, me()).map(drop)
        }
        Op::Chmod(path, perm) => chmod(server, look(path)?, perm),
        Op::Xattr(path, value) => {
            let ino = look(path)?;
            client.set_xattr(ino, b"user.point", &[value], XattrMode::Set, me())
        }
        Op::Commit(path) | Op::CommitBeside(path) => {
            let job = server.move_files(Movement::Commit, path.as_bytes());
            assert_eq!(job.failed, 0, "{job:?}");
            Ok(())
        }
        Op::OutsideDir(path) => {
            fs::create_dir(pfs.join(path)).expect("outsider");
            Ok(())
        }
        Op::Lend => lend::order(server),
        Op::Drain => moved(server, Movement::StageOut, ""),
        Op::Sealed => server.wait_sealed(),
        Op::Flip(path) => {
            flip(pfs, path);
            Ok(())
        }
        Op::Read(path) => server.read_all(path.as_bytes()).map(drop),
        Op::StageIn(path) => moved(server, Movement::StageIn, path),
        Op::Prefetch(path) => moved(server, Movement::Prefetch, path),
        Op::Release(path) => moved(server, Movement::Release, path),
        Op::DrainRacing(path) => drain_racing(server, path, look(path)?),
        Op::Outside(path, version, len) => {
            outside(&pfs.join(path), version, len);
            Ok(())
        }
        Op::OutsideAtLook(path, version, len) => {
            let path = pfs.join(path);
            failpoint::always(Point::DemoteLooked, move || outside(&path, version, len));
            Ok(())
        }
        Op::Stop => {
            server.instance.stop();
            Ok(())
        }
        Op::Die => {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .expect("kill");
            Ok(())
        }
    }
}

fn chmod(server: &Running, ino: Ino, perm: u16) -> Result<(), Errno> {
    let perm = Some(perm);
    let set = SetAttr {
        perm,
        ..SetAttr::default()
    };
    server.client.setattr(ino, None, set, me()).map(drop)
}

fn moved(server: &Running, movement: Movement, path: &str) -> Result<(), Errno> {
    let job = server.move_files(movement, path.as_bytes());
    // Of a child in which the point was not hit, the log is shown.
    eprintln!("{movement:?} {path:?}: {job:?}");
    Ok(())
}

/// Drains a file while its mode changes, until the point ends the process. A drain that comes
/// through, because the other thread did not run meanwhile, is begun again.
fn drain_racing(server: &Running, path: &str, ino: Ino) -> Result<(), Errno> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let drains = scope.spawn(|| {
            while started.elapsed() < PATIENCE {
                moved(server, Movement::StageOut, path)?;
                let first = server.read_all(path.as_bytes())?[..1].to_vec();
                let flags = OpenFlags(libc::O_RDWR as u32);
                let handle = server.client.open(ino, flags, me())?.opened.handle;
                server.write(handle, 0, &first)?;
                server.client.release(handle)?;
            }
            Ok(())
        });
        while started.elapsed() < PATIENCE {
            chmod(server, ino, 0o600)?;
            chmod(server, ino, 0o640)?;
        }
        drains.join().expect("no panic")
    })
}

/// Not a test of its own: the body of a child.
#[test]
fn child_is_killed_at_a_point() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let case = std::env::var(CHILD_CASE).expect("case");
    let mut parts = case.split(' ');
    let mut next = || parts.next().expect("case");
    let (name, at) = (next(), next().parse().expect("number"));
    let point = Point::ALL.iter().find(|point| point.name() == name);
    let case = Case {
        point: *point.expect("a point"),
        at,
    };
    let work = case.work();
    let only_start = next() == "start";
    if only_start {
        failpoint::arm_from_environment().expect("a point");
    }
    let server = Running::start(&shape(&dir, work.tiers, case.point), false);
    if !only_start {
        let pfs = dir.join("pfs");
        for op in &work.before {
            act(&server, &pfs, op).unwrap_or_else(|e| panic!("before: {op:?}: {e:?}"));
        }
        let mut journal = File::create(dir.join("journal")).expect("journal");
        failpoint::arm(
            work.first.unwrap_or(case.point),
            1,
            failpoint::Ends::Process,
        );
        for op in &work.ops {
            journal.write_all(b"begun\n").expect("journal");
            act(&server, &pfs, op).unwrap_or_else(|e| panic!("{op:?}: {e:?}"));
            journal.write_all(b"done\n").expect("journal");
        }
    }
    // What happens behind the operations gets its time.
    std::thread::sleep(Duration::from_secs(15));
    let (errors, files) = (server.status().errors, server.residency(b""));
    panic!("{NOT_HIT}: {errors:?} {files:?}");
}

/// Runs a child, which must be killed; `start`: it is armed before it starts, and does nothing.
pub fn killed(dir: &Path, case: &Case, start: bool) -> Result<(), String> {
    let how = if start { "start" } else { "work" };
    let log = File::create(dir.join("log")).expect("log");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "run::child_is_killed_at_a_point", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(
            CHILD_CASE,
            format!("{} {} {how}", case.point.name(), case.at),
        )
        .env(failpoint::VARIABLE, case.point.name())
        .stdout(Stdio::null())
        .stderr(log);
    let status = command.status().expect("child");
    match status.signal() {
        Some(libc::SIGKILL) => Ok(()),
        _ => Err(fs::read_to_string(dir.join("log")).expect("log")),
    }
}

/// What may be found: everything that was answered, and the operation under way or not.
fn allowed(dir: &Path, work: &Workload) -> (Vec<Tree>, Option<&'static str>) {
    let mut model = Model::default();
    work.before.iter().for_each(|op| model.apply(op));
    let journal = fs::read_to_string(dir.join("journal")).expect("journal");
    let done = journal.matches("done").count();
    work.ops[..done].iter().for_each(|op| model.apply(op));
    let mut trees = vec![model.tree()];
    let under_way = work.ops[done..]
        .first()
        .filter(|_| journal.ends_with("begun\n"));
    if let Some(op) = under_way {
        model.apply(op);
        trees.push(model.tree());
    }
    (trees, under_way.and_then(Op::vague))
}

fn check(what: &str, found: &Tree, allowed: &[Tree], vague: Option<&str>) -> Result<(), String> {
    let fits = |tree: &Tree| match vague {
        Some(path) => without(found, path) == without(tree, path),
        None => found == tree,
    };
    match allowed.iter().any(fits) {
        true => Ok(()),
        false => Err(format!("{what}: found {found:#?}, allowed {allowed:#?}")),
    }
}

/// What was ordered to be published is.
fn wait_until_published(server: &Running) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let unpublished = server.status().unpublished;
        if !unpublished.iter().any(|version| version.committed) {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            return Err(format!("not published: {unpublished:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A version that the PFS shows is there as a whole.
fn check_versions(found: &Tree, full: &Tree) -> Result<(), String> {
    for version in versions(found) {
        let (there, whole) = (below(found, &version), below(full, &version));
        if there != whole {
            return Err(format!("{version}: found {there:#?} of {whole:#?}"));
        }
    }
    Ok(())
}

/// The names of our versions beside the outsider's.
fn conflict_copies(tree: &Tree) -> Vec<String> {
    let names = tree
        .keys()
        .filter(|name| name.contains(".forebay-conflict-"));
    names.cloned().collect()
}

/// The outsider's content under the name, ours once beside it.
fn check_conflict(work: &Workload, found: &Tree) -> Result<(), String> {
    let mut outside = Model::default();
    let mut ours = Model::default();
    for op in &work.before {
        match op {
            Op::Outside(..) | Op::OutsideAtLook(..) => outside.apply(op),
            op => ours.apply(op),
        }
    }
    let copies = conflict_copies(found);
    let data = |tree: &Tree, name: &str| match &tree[name] {
        crate::model::Entry::File { data, .. } => data.clone(),
        crate::model::Entry::Dir => Vec::new(),
    };
    let [copy] = &copies[..] else {
        return Err(format!("copies {copies:?} in {found:#?}"));
    };
    match data(found, "a") == data(&outside.tree(), "a")
        && data(found, copy) == data(&ours.tree(), "a")
    {
        true => Ok(()),
        false => Err(format!("conflict: {found:#?}")),
    }
}

fn run(case: &Case) -> Result<(), String> {
    let scratch = Scratch::in_memory();
    let dir = scratch.path();
    let work = case.work();
    killed(dir, case, false)?;
    if work.first.is_some() || work.ops == [Op::Die] {
        killed(dir, case, true)?;
    }
    let pfs = scratch.pfs();
    let at_kill = on_pfs(&pfs);
    let server = Running::start(&shape(dir, work.tiers, case.point), false);
    // Nobody looks while a name changes its meaning.
    wait_until_published(&server)?;
    let (allowed, vague) = allowed(dir, &work);
    let mut found = shown(&server);
    if !work.conflict {
        check("mount", &found, &allowed, vague)?;
        if let Some(full) = work.published() {
            check_versions(&at_kill, &full)?;
            for version in server.status().unpublished {
                let job = server.move_files(Movement::Commit, &version.path);
                if job.failed > 0 {
                    return Err(format!("commit: {job:?}"));
                }
            }
            if work.ops.iter().any(|op| matches!(op, Op::CommitBeside(_))) {
                // What somebody else had the name of has gone beside it by now.
                found = full;
            }
        }
        server.drain();
        let mut errors = server.status().errors;
        if work.ops.iter().any(|op| matches!(op, Op::CommitBeside(_))) {
            // Where the kill came first, the start finds it and tells.
            errors.retain(|error| error.errno != Errno::EEXIST);
        }
        // There was damage, and that is told.
        let mended = case.point == Point::BlockRewritten;
        if errors.is_empty() == mended {
            return Err(format!("status: {errors:?}"));
        }
        let again = shown(&server);
        check(
            "mount after the drain",
            &again,
            std::slice::from_ref(&found),
            None,
        )?;
    } else {
        server.drain();
    }
    // A clean copy whose original was unlinked stays until its space is wanted.
    if case.point != Point::UnlinkPfs {
        check_objects(dir, &server)?;
    }
    server.instance.stop();
    let left = on_pfs(&pfs);
    match work.conflict {
        true => check_conflict(&work, &left),
        false => check("PFS", &left, &[found], None),
    }
}

pub fn each_object(tier: &Path, visit: &mut dyn FnMut(&Path)) {
    let mut dirs = vec![tier.join("objects")];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(at).expect("read_dir") {
            let entry = entry.expect("entry");
            match entry.file_type().expect("type").is_dir() {
                true => dirs.push(entry.path()),
                false => visit(&entry.path()),
            }
        }
    }
}

/// Every object on flash belongs to a file: nothing leaks.
fn check_objects(dir: &Path, server: &Running) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let mut objects = 0;
        each_object(&dir.join("ssd0"), &mut |_| objects += 1);
        let files = server.residency(b"");
        let held = files.iter().filter(|entry| entry.state != "pfs").count();
        if objects <= held {
            return Ok(());
        }
        // The collector comes by a moment later.
        if started.elapsed() > PATIENCE {
            return Err(format!("{objects} objects for {files:?}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Points that other tests come by.
fn is_elsewhere(point: Point) -> bool {
    let name = point.name();
    name.starts_with("Fsck") || matches!(point, Point::PromoteRecord | Point::LeftRemoved)
}

#[test]
fn fault_03_kill_9_at_every_failpoint_leaves_the_old_state_or_the_new_one() {
    let only = std::env::var("FAILPOINTS_ONLY").unwrap_or_default();
    // Those of fsck are gone through by its own tests.
    let points = Point::ALL
        .iter()
        .filter(|p| p.name().contains(&only) && !is_elsewhere(**p));
    let cases: Vec<Case> = points
        .flat_map(|&point| {
            let count = workloads(point).len();
            assert!(count > 0, "no workload for {point:?}");
            (0..count).map(move |at| Case { point, at })
        })
        .collect();
    run_all(&cases, &run);
}

/// Runs the cases side by side; panics with all that fail.
pub fn run_all(cases: &[Case], run: &(dyn Fn(&Case) -> Result<(), String> + Sync)) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case_of = || format!("{case:?} {:?}", case.work());
                    let outcome =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(case)))
                            .unwrap_or_else(|_| Err("panicked, see above".into()));
                    if let Err(why) = outcome {
                        let mut failures = failures.lock().expect("no panic here");
                        failures.push(format!("{}: {why}", case_of()));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic there");
    assert!(
        failures.is_empty(),
        "{} of {} cases fail:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
    println!("{} cases", cases.len());
}
