//! A server that is killed in the middle of its work. The work is done by a child process, which is
//! this very test program; it keeps a journal of what it asked for and what was answered.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_server::Settings;
use forebay_types::{Errno, Ino, OpenFlags, RenameMode, SetAttr};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::common::{
    PATIENCE, Running, Scratch, base_seed, from_env, kernels_own, make_dirs, me, settings,
};

/// The directory that the child works in; whoever has it in the environment is the child.
const CHILD_DIR: &str = "FOREBAY_FAULTS_CHILD_DIR";
/// The child's seed.
const CHILD_SEED: &str = "FOREBAY_FAULTS_CHILD_SEED";
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;
/// Times that a child is killed.
const ROUNDS: u64 = 12;
/// Seeds of children that belong to one seed.
const SEEDS_PER_RUN: u64 = 10_000;

/// Content by version: what is written under it is found nowhere else.
fn content(version: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(version);
    let mut data = vec![0; rng.random_range(8..400_000)];
    rand::RngCore::fill_bytes(&mut rng, &mut data);
    data
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    Write(String, u64),
    Rename(String, String),
    Unlink(String),
}

impl Op {
    fn line(&self) -> String {
        match self {
            Op::Write(name, version) => format!("write {name} {version}\n"),
            Op::Rename(from, to) => format!("rename {from} {to}\n"),
            Op::Unlink(name) => format!("unlink {name}\n"),
        }
    }

    fn parse(line: &str) -> Option<Op> {
        let parts: Vec<&str> = line.split(' ').collect();
        match parts[..] {
            ["write", name, version] => Some(Op::Write(name.into(), version.parse().ok()?)),
            ["rename", from, to] => Some(Op::Rename(from.into(), to.into())),
            ["unlink", name] => Some(Op::Unlink(name.into())),
            _ => None,
        }
    }

    fn apply(&self, files: &mut Files) {
        match self {
            Op::Write(name, version) => drop(files.insert(name.clone(), content(*version))),
            Op::Rename(from, to) => {
                if let Some(data) = files.remove(from) {
                    files.insert(to.clone(), data);
                }
            }
            Op::Unlink(name) => drop(files.remove(name)),
        }
    }
}

fn shape(dir: &Path, seed: u64) -> (Settings, bool) {
    // Tiers stay as they are from round to round.
    let small = (seed / SEEDS_PER_RUN).is_multiple_of(2);
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5a5a);
    let mut settings = settings(dir, if small { 1 << 20 } else { 64 << 20 });
    settings.demotion.idle_after = Duration::from_millis(rng.random_range(1..8));
    settings.wait_for_space = Duration::from_millis(rng.random_range(5..40));
    settings.demotion.unnamed = rng.random_bool(0.5);
    let passthrough = rng.random_bool(0.5);
    if rng.random_bool(0.5) {
        settings.scrub.verify_on_open_bytes = 0;
    }
    if rng.random_bool(0.5) {
        settings.scrub.pass = Duration::from_millis(1);
        settings.scrub.seal_after = Duration::ZERO;
        settings.scrub.calm = Duration::ZERO;
        // It gets its checksum rather than its copy.
        settings.demotion.idle = rng.random_bool(0.5);
    }
    (settings, passthrough)
}

/// Not a test of its own: the body of the child.
#[test]
fn child_works_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let seed = from_env(CHILD_SEED).expect("seed");
    let (settings, descriptors) = shape(&dir, seed);
    let server = Running::start(&settings, descriptors);
    let mut journal = File::options()
        .create(true)
        .append(true)
        .open(dir.join("journal"))
        .expect("journal");
    let mut rng = StdRng::seed_from_u64(seed);
    for n in 0.. {
        let name = |rng: &mut StdRng| NAMES.choose(rng).expect("names").to_string();
        let op = match rng.random_range(0..10) {
            0..=4 => Op::Write(name(&mut rng), (seed << 20).wrapping_add(n)),
            5..=7 => Op::Rename(name(&mut rng), name(&mut rng)),
            _ => Op::Unlink(name(&mut rng)),
        };
        journal.write_all(op.line().as_bytes()).expect("journal");
        let done = act(&server, &op);
        let answer = match done {
            Ok(()) => "ok\n",
            Err(Errno::ENOENT) => "none\n",
            Err(other) => panic!("{op:?}: {other:?}"),
        };
        journal.write_all(answer.as_bytes()).expect("journal");
        std::thread::sleep(Duration::from_micros(rng.random_range(0..3000)));
    }
}

fn act(server: &Running, op: &Op) -> Result<(), Errno> {
    let client = &server.client;
    match op {
        Op::Unlink(name) => client.unlink(Ino::ROOT, name.as_bytes(), me()),
        Op::Rename(from, to) => {
            client.lookup(Ino::ROOT, from.as_bytes(), 0)?;
            let (from, to) = ((Ino::ROOT, from.as_bytes()), (Ino::ROOT, to.as_bytes()));
            client.rename(from, to, RenameMode::Replace, me())
        }
        Op::Write(name, version) => {
            let data = content(*version);
            let flags = OpenFlags(libc::O_RDWR as u32);
            let open = match client.lookup(Ino::ROOT, name.as_bytes(), 0) {
                Ok(attr) => {
                    let set = SetAttr {
                        size: Some(0),
                        ..SetAttr::default()
                    };
                    client.setattr(attr.ino, None, set, me())?;
                    client.open(attr.ino, flags, me())?
                }
                Err(_) => {
                    let name = name.as_bytes();
                    client.create(Ino::ROOT, name, 0o640, flags, me())?.1
                }
            };
            for (n, part) in data.chunks(100_000).enumerate() {
                let at = n as u64 * 100_000;
                match &open.descriptor {
                    Some(_) => kernels_own(&open)
                        .write_all_at(part, at)
                        .map_err(|error| Errno::of(&error))?,
                    None => server.write(open.opened.handle, at, part)?,
                }
            }
            client.release(open.opened.handle)
        }
    }
}

/// What the journal says: what must be there, and the operation that was under way.
fn replay(dir: &Path, files: &mut Files) -> Option<Op> {
    let journal = fs::read_to_string(dir.join("journal")).expect("journal");
    let mut under_way = None;
    for line in journal.lines() {
        match (line, Op::parse(line)) {
            (_, Some(op)) => under_way = Some(op),
            ("ok", _) => under_way.take().expect("an operation").apply(files),
            _ => under_way = None,
        }
    }
    fs::remove_file(dir.join("journal")).expect("journal");
    under_way
}

fn start_child(dir: &Path, seed: u64) -> Child {
    let test = "crash::child_works_until_it_is_killed";
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_SEED, seed.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("child")
}

/// Waits until the child has begun, lets it work for a while, and kills it.
fn kill_child(dir: &Path, mut child: Child, after: Duration) {
    let started = Instant::now();
    while !dir.join("journal").exists() {
        assert!(started.elapsed() < PATIENCE, "the child does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(after);
    child.kill().expect("kill");
    let status = child.wait().expect("wait");
    assert_eq!(status.signal(), Some(libc::SIGKILL), "the child failed");
}

/// What the mount shows, by names.
fn shown(server: &Running) -> Files {
    let entries = server.residency(b"").into_iter();
    entries
        .map(|entry| {
            let data = server.read_all(&entry.path).expect("read");
            (String::from_utf8(entry.path).expect("UTF-8"), data)
        })
        .collect()
}

/// Compares with what must be there; the operation under way may have happened, or not, or in part.
fn check(files: &Files, under_way: &Option<Op>, found: &Files) {
    let mut after = files.clone();
    if let Some(op) = under_way {
        op.apply(&mut after);
    }
    if *found == *files || *found == after {
        return;
    }
    // A file that was being written may be there in part; all others are whole.
    let mut whole = false;
    if let Some(Op::Write(name, _)) = under_way {
        let (mut others, mut rest) = (found.clone(), files.clone());
        others.remove(name);
        rest.remove(name);
        whole = others == rest;
    }
    let sizes = |files: &Files| {
        let sizes = files.iter().map(|(name, data)| (name.clone(), data.len()));
        sizes.collect::<Vec<_>>()
    };
    let (got, want) = (sizes(found), sizes(files));
    assert!(
        whole,
        "found {got:?}, expected {want:?}, under way: {under_way:?}"
    );
}

#[test]
fn a_killed_server_loses_nothing_that_was_closed() {
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    let scratch = Scratch::new();
    let dir = scratch.path();
    make_dirs(dir);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut files = Files::new();
    let rounds = from_env("FOREBAY_FAULTS_ROUNDS").unwrap_or(ROUNDS);
    for round in 0..rounds {
        let child_seed = seed * SEEDS_PER_RUN + round;
        let after = Duration::from_millis(rng.random_range(1..250));
        kill_child(dir, start_child(dir, child_seed), after);
        let under_way = replay(dir, &mut files);
        let (settings, descriptors) = shape(dir, child_seed);
        let server = Running::start(&settings, descriptors);
        let found = shown(&server);
        eprintln!("round {round}: {} files, {under_way:?}", found.len());
        check(&files, &under_way, &found);
        if round % 3 == 2 {
            server.drain();
        }
        let errors = server.status().errors;
        assert!(errors.is_empty(), "{errors:?}");
        server.instance.stop();
        if round % 3 == 2 {
            compare_pfs(&scratch.pfs(), &found);
        }
        files = found;
    }
}

fn compare_pfs(pfs: &Path, found: &Files) {
    let entries = fs::read_dir(pfs).expect("read_dir");
    let on_pfs: Files = entries
        .map(|entry| {
            let entry = entry.expect("entry");
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, fs::read(entry.path()).expect("read"))
        })
        .collect();
    assert!(on_pfs.keys().eq(found.keys()), "{:?}", on_pfs.keys());
    assert!(on_pfs == *found, "content on the PFS");
}
