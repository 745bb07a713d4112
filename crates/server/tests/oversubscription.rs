//! Over-subscription on a running server: what is learned, which policy is in force, what a restart
//! is.

mod common;
#[path = "oversubscription/dedicated.rs"]
mod dedicated;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Running, Scratch, make_dirs, me, settings};
use forebay_policy::engine::Bandwidths;
use forebay_server::Settings;
use forebay_types::{Cred, Errno, Ino, OpenFlags, RenameMode};
use forebay_wire::control::{Control, ControlResponse, StatusBits};

const MIB: usize = 1 << 20;
/// Generous: machines under test are busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(running: &Running, what: &str, holds: impl Fn(&StatusBits) -> bool) -> StatusBits {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = running.status();
        if holds(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what}: {status:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn prepared(scratch: &Scratch) -> Settings {
    make_dirs(scratch.path());
    settings(scratch.path(), 64 * MIB as u64)
}

/// A process of a session of its own, that does nothing.
struct Process(std::process::Child);

impl Process {
    fn start() -> Process {
        let mut command = Command::new("setsid");
        command.args(["sleep", "600"]).stdin(Stdio::null());
        let process = Process(command.spawn().expect("setsid sleep"));
        // `setsid` becomes `sleep` when it has made the session. (The session itself cannot be
        // asked for everywhere: a container shows one of outside as 0.)
        let name = format!("/proc/{}/comm", process.0.id());
        let deadline = Instant::now() + PATIENCE;
        while std::fs::read_to_string(&name).expect("runs") != "sleep\n" {
            assert!(Instant::now() < deadline, "no session of its own");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    fn cred(&self) -> Cred {
        Cred {
            process: forebay_types::Process::here(self.0.id()),
            ..me()
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("a process of ours");
        self.0.wait().expect("ends");
    }
}

fn write_as(running: &Running, cred: Cred, name: &str, data: &[u8]) {
    let flags = OpenFlags(libc::O_RDWR as u32);
    let client = &running.client;
    let (_, open) = client
        .create(Ino::ROOT, name.as_bytes(), 0o644, flags, cred)
        .expect("create");
    for (at, part) in data.chunks(MIB).enumerate() {
        running
            .write(open.opened.handle, (at * MIB) as u64, part)
            .expect("write");
    }
    client.release(open.opened.handle).expect("close");
}

fn read_as(running: &Running, cred: Cred, name: &str) {
    let client = &running.client;
    let attr = client
        .lookup(Ino::ROOT, name.as_bytes(), 0)
        .expect("lookup");
    let flags = OpenFlags(libc::O_RDONLY as u32);
    let open = client.open(attr.ino, flags, cred).expect("open");
    client.release(open.opened.handle).expect("close");
    client.forget(vec![(attr.ino, 1)]);
}

fn mtbf_s(status: &StatusBits) -> f64 {
    let known = status.applications.iter().find(|a| a.name.contains("ckpt"));
    known.and_then(|a| a.mtbf_ms).expect("an MTBF") as f64 / 1e3
}

/// A hole is written by nobody: the plan expects what took space, also after a restart.
#[test]
fn what_is_written_is_counted_without_holes() {
    const FAR: u64 = 1 << 40;
    let scratch = Scratch::new();
    let settings = prepared(&scratch);
    let running = Running::start(&settings, false);
    for name in [&b"ckpt-1"[..], b"ckpt-2"] {
        let (_, handle) = running.create(name).expect("create");
        running.write(handle, FAR, &[1; 4096]).expect("write");
        running.client.release(handle).expect("close");
    }
    let few = |status: &StatusBits| (8192..1 << 20).contains(&status.dwsf_bytes);
    let counted = wait_until(&running, "counted", |s| s.dwsf_bytes > 4096);
    assert!(few(&counted), "{}", counted.dwsf_bytes);
    let known = &counted.applications[0];
    assert!(known.dwsf_bytes < 1 << 20, "{known:?}");
    running.instance.stop();
    drop(running);
    let running = Running::start(&settings, false);
    let status = running.status();
    assert!(few(&status), "{}", status.dwsf_bytes);
    running.instance.stop();
}

#[test]
fn the_first_read_by_a_new_run_is_a_restart_and_nothing_else_is() {
    let scratch = Scratch::new();
    let mut settings = prepared(&scratch);
    settings.engine.mtbf = Some(Duration::from_secs(100_000));
    let running = Running::start(&settings, false);
    let bystander = Process::start();
    // Starts of processes are known to some hundredths of a second.
    std::thread::sleep(Duration::from_millis(300));
    let writer = Process::start();
    write_as(&running, writer.cred(), "ckpt-1.dat", b"one");
    assert_eq!(mtbf_s(&running.status()), 100_000.0);
    read_as(&running, writer.cred(), "ckpt-1.dat");
    let looker = Process::start();
    read_as(&running, looker.cred(), "ckpt-1.dat");
    assert_eq!(running.status().restarts_total, 0, "the writer still runs");
    drop(writer);
    read_as(&running, bystander.cred(), "ckpt-1.dat");
    assert_eq!(
        running.status().restarts_total,
        0,
        "was there when it was written"
    );
    running
        .client
        .lookup(Ino::ROOT, b"ckpt-1.dat", 0)
        .expect("stat is no read");
    assert_eq!(running.status().restarts_total, 0);
    let new_run = Process::start();
    read_as(&running, new_run.cred(), "ckpt-1.dat");
    let status = running.status();
    assert_eq!((status.restarts_total, status.restart_hits_total), (1, 1));
    let after = mtbf_s(&status);
    assert!(
        (50_000.0..51_000.0).contains(&after),
        "half, and the time since: {after}"
    );
    let another_rank = Process::start();
    read_as(&running, another_rank.cred(), "ckpt-1.dat");
    assert_eq!(
        running.status().restarts_total,
        1,
        "one restart, many readers"
    );
    running.instance.stop();
}

#[test]
fn what_was_learned_survives_a_restart_of_the_server() {
    let scratch = Scratch::new();
    let mut settings = prepared(&scratch);
    settings.engine.period = Duration::from_millis(500);
    settings.engine.mtbf = Some(Duration::from_secs(5000));
    let running = Running::start(&settings, false);
    let writer = Process::start();
    write_as(&running, writer.cred(), "ckpt-1.dat", &vec![7; 3 * MIB]);
    let learned = wait_until(&running, "a period ends", |s| s.dwpp_bytes > 0);
    assert!(learned.dwpp_bytes >= 3 * MIB as u64, "{learned:?}");
    let application = &learned.applications[0];
    assert_eq!(application.dwpp_bytes, Some(learned.dwpp_bytes));
    drop(writer);
    let reader = Process::start();
    read_as(&running, reader.cred(), "ckpt-1.dat");
    let mtbf = mtbf_s(&running.status());
    assert!((2500.0..2600.0).contains(&mtbf), "{mtbf}");
    running.instance.stop();
    drop(running);
    let running = Running::start(&settings, false);
    assert_eq!(running.status().dwpp_bytes, learned.dwpp_bytes);
    let writer = Process::start();
    write_as(&running, writer.cred(), "ckpt-2.dat", b"two");
    assert_eq!(mtbf_s(&running.status()).round(), mtbf.round());
    running.instance.stop();
}

#[test]
fn a_look_at_fresh_data_after_a_restart_of_the_server_is_no_restart_of_the_application() {
    let scratch = Scratch::new();
    let settings = prepared(&scratch);
    let running = Running::start(&settings, false);
    let writer = Process::start();
    write_as(&running, writer.cred(), "here-ckpt-1.dat", b"one");
    write_as(&running, writer.cred(), "gone-ckpt-1.dat", b"one");
    drop(writer);
    running.drain();
    running.move_files(forebay_wire::control::Movement::Release, b"gone-ckpt-1.dat");
    running.instance.stop();
    drop(running);
    let running = Running::start(&settings, false);
    let reader = Process::start();
    for name in ["here-ckpt-1.dat", "gone-ckpt-1.dat"] {
        read_as(&running, reader.cred(), name);
        assert_eq!(running.status().restarts_total, 0, "{name}");
    }
    running.instance.stop();
}

#[test]
fn policies_change_while_running() {
    let scratch = Scratch::new();
    let running = Running::start(&prepared(&scratch), false);
    let choose = |policy: Option<&str>, placement: Option<&str>| {
        running.control(Control::Policy {
            policy: policy.map(String::from),
            placement: placement.map(String::from),
        })
    };
    assert!(running.status().plan.why.contains("not known"));
    for policy in ["maxbw", "maxeff", "dedicated", "bbos"] {
        for placement in ["fifo", "lru", "coolness", "bbos"] {
            let Ok(ControlResponse::Status(status)) = choose(Some(policy), Some(placement)) else {
                panic!("refused {policy} {placement}");
            };
            assert_eq!((&*status.policy, &*status.placement), (policy, placement));
            running.put(format!("{policy}-{placement}").as_bytes(), &vec![1; MIB]);
        }
    }
    assert_eq!(choose(Some("best"), None).unwrap_err(), Errno::EINVAL);
    assert_eq!(choose(None, Some("best")).unwrap_err(), Errno::EINVAL);
    assert_eq!(running.status().policy, "bbos");
    running.drain();
    let on_pfs = std::fs::read(scratch.pfs().join("dedicated-lru")).expect("drained");
    assert!(on_pfs == vec![1; MIB]);
    running.instance.stop();
}

#[test]
fn the_plan_takes_over_when_more_is_expected_than_fits() {
    let scratch = Scratch::new();
    make_dirs(scratch.path());
    let mut settings = settings(scratch.path(), 4 * MIB as u64);
    settings.engine.period = Duration::from_secs(5);
    settings.wait_for_space = Duration::from_millis(1);
    settings.engine.bandwidths = Some(Bandwidths {
        bw_max_bytes_per_s: 400e6,
        bw_min_bytes_per_s: 300e6,
        br_max_bytes_per_s: 200e6,
        br_min_bytes_per_s: 20e6,
    });
    let running = Running::start(&settings, true);
    assert!(running.status().plan.why.contains("no period has ended"));
    // Until the plan has seen a period with more than fits; how long that takes depends on the
    // machine.
    let content: Vec<u8> = (0..MIB).map(|i| (i / 7) as u8).collect();
    let deadline = Instant::now() + PATIENCE;
    let mut round = 0;
    while running.status().plan.pattern.is_none_or(|p| p < 2) {
        for app in ["alpha", "beta"] {
            write_as(&running, me(), &format!("{app}-ckpt-{round}.dat"), &content);
        }
        round += 1;
        assert!(Instant::now() < deadline, "{:?}", running.status().plan);
    }
    let status = running.status();
    assert!(!status.passthrough, "contended: {:?}", status.plan);
    assert!(round > 0);
    // Limits and turns are in force, and data is still right.
    std::thread::scope(|scope| {
        for app in ["gamma", "delta"] {
            let (running, content) = (&running, &content);
            scope.spawn(move || write_as(running, me(), &format!("{app}-ckpt-1.dat"), content));
        }
    });
    for name in ["gamma-ckpt-1.dat", "delta-ckpt-1.dat", "alpha-ckpt-0.dat"] {
        assert!(running.read_all(name.as_bytes()).expect(name) == content);
    }
    running.drain();
    for name in ["gamma-ckpt-1.dat", "beta-ckpt-0.dat"] {
        assert!(std::fs::read(scratch.pfs().join(name)).expect(name) == content);
    }
    running.instance.stop();
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let scratch = Scratch::new();
    let refused = |change: fn(&mut Settings), part: &str| {
        let mut settings = prepared(&scratch);
        change(&mut settings);
        let error = forebay_server::Instance::start(settings)
            .err()
            .expect("refused");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(
        |s| s.engine.period = Duration::ZERO,
        "period must be a positive number",
    );
    refused(
        |s| s.engine.turn = Duration::ZERO,
        "turn must be a positive number",
    );
    refused(
        |s| s.policy = "best".into(),
        "bbos, maxbw, maxeff, dedicated",
    );
    let rates = |br_min_bytes_per_s| Bandwidths {
        bw_max_bytes_per_s: 2.0,
        bw_min_bytes_per_s: 1.0,
        br_max_bytes_per_s: 1.0,
        br_min_bytes_per_s,
    };
    assert!(rates(0.5).check().is_ok());
    refused(
        |s| {
            s.engine.bandwidths = Some(Bandwidths {
                bw_max_bytes_per_s: 2.0,
                bw_min_bytes_per_s: 1.0,
                br_max_bytes_per_s: 1.0,
                br_min_bytes_per_s: 2.0,
            });
        },
        "Brmin 2 exceeds Brmax 1",
    );
}

#[test]
fn many_that_need_the_overflow_first_all_get_it() {
    let scratch = Scratch::new();
    make_dirs(scratch.path());
    let mut settings = settings(scratch.path(), 8 * MIB as u64);
    settings.demotion.idle = false;
    settings.wait_for_space = Duration::ZERO;
    let running = Running::start(&settings, false);
    for at in 0..4 {
        write_as(&running, me(), &format!("fill{at}"), &vec![1; 4 * MIB]);
    }
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for at in 0..8 {
            let (running, barrier) = (&running, &barrier);
            scope.spawn(move || {
                barrier.wait();
                write_as(running, me(), &format!("more{at}"), &vec![at; MIB]);
            });
        }
    });
    for at in 0..8u8 {
        let content = running.read_all(format!("more{at}").as_bytes());
        assert!(content.expect("readable") == vec![at; MIB]);
    }
    running.instance.stop();
}

#[test]
fn files_of_known_size_that_fit_together_do_not_wait_for_each_other() {
    let scratch = Scratch::new();
    let mut settings = prepared(&scratch);
    settings.wait_for_space = PATIENCE;
    let running = Running::start(&settings, false);
    // Two tiers of 64 MiB have room for fourteen, each with what its file system takes.
    let names = |version: u8| {
        (b'a'..b'a' + 14).map(move |app| format!("{}-ckpt-{version}.dat", app as char))
    };
    for name in names(1) {
        running.put(name.as_bytes(), &vec![1; 8 * MIB]);
        running.wait_clean(&|_| false);
        let unlinked = running.client.unlink(Ino::ROOT, name.as_bytes(), me());
        unlinked.expect("unlink");
    }
    let is_empty = |status: &StatusBits| {
        let mut own = status.tiers.iter().filter(|tier| tier.name != "pfs");
        own.all(|tier| tier.used_bytes == 0)
    };
    wait_until(&running, "space is given back", is_empty);
    let part = vec![2; MIB];
    let write = |handle, at: usize| {
        let written = running.write(handle, (at * MIB) as u64, &part);
        written.expect("write");
    };
    // Each finds the tier that has more room once the one before it has begun.
    let open: Vec<_> = names(2)
        .map(|name| {
            let (_, handle) = running.create(name.as_bytes()).expect("create");
            write(handle, 0);
            handle
        })
        .collect();
    for at in 1..8 {
        for handle in &open {
            write(*handle, at);
        }
    }
    let status = running.status();
    assert_eq!(status.waited_writes_total, 0, "{status:?}");
    for handle in open {
        running.client.release(handle).expect("close");
    }
    running.instance.stop();
}

#[test]
fn a_new_file_waits_for_space_instead_of_leaving() {
    let scratch = Scratch::new();
    make_dirs(scratch.path());
    let mut settings = settings(scratch.path(), 8 * MIB as u64);
    settings.demotion.idle = false;
    settings.wait_for_space = PATIENCE;
    let running = Running::start(&settings, false);
    for at in 0..10 {
        let name = format!("app{at}-ckpt-1.dat");
        write_as(&running, me(), &name, &vec![at; 4 * MIB]);
        let tiers = running.residency(name.as_bytes())[0].tiers.clone();
        assert!(tiers[0].starts_with("ssd"), "{name}: {tiers:?}");
    }
    for at in 0..10 {
        let content = running.read_all(format!("app{at}-ckpt-1.dat").as_bytes());
        assert!(content.expect("readable") == vec![at; 4 * MIB]);
    }
    running.instance.stop();
}

fn wait_until_gone(running: &Running, name: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    while running.residency(name)[0].tiers != ["pfs"] {
        assert!(
            Instant::now() < deadline,
            "{} stays: {:?}",
            name.escape_ascii(),
            running.residency(name)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn outdated_versions_leave_as_soon_as_a_newer_one_is_complete() {
    let scratch = Scratch::new();
    let mut settings = prepared(&scratch);
    settings.engine.quiet = Duration::from_millis(300);
    let running = Running::start(&settings, false);
    let here = |name: &[u8]| running.residency(name)[0].tiers[0].starts_with("ssd");
    for name in ["ckpt-1.dat", "img_1.png", "img_2.png"] {
        running.put(name.as_bytes(), &vec![1; MIB]);
    }
    running.drain();
    assert!(here(b"ckpt-1.dat"), "the newest there is");
    running.put(b"ckpt-2.dat", &vec![2; MIB]);
    wait_until_gone(&running, b"ckpt-1.dat");
    assert!(running.read_all(b"ckpt-1.dat").expect("on the PFS") == vec![1; MIB]);
    assert!(here(b"ckpt-2.dat"));
    // Written under another name, as many programs do, and demoted when it is outdated already.
    for version in 3..5 {
        running.put(b"next.tmp", &vec![version; MIB]);
        let to = format!("ckpt-{version}.dat");
        let (from, to) = ((Ino::ROOT, &b"next.tmp"[..]), (Ino::ROOT, to.as_bytes()));
        let client = &running.client;
        client
            .rename(from, to, RenameMode::Replace, me())
            .expect("rename");
    }
    running.drain();
    wait_until_gone(&running, b"ckpt-2.dat");
    wait_until_gone(&running, b"ckpt-3.dat");
    assert!(here(b"ckpt-4.dat"));
    assert!(
        here(b"img_1.png") && here(b"img_2.png"),
        "numbers that are only taken for versions"
    );
    running.instance.stop();
}

#[test]
fn under_coolness_files_move_down_at_the_thresholds() {
    let scratch = Scratch::new();
    make_dirs(scratch.path());
    let mut settings = settings(scratch.path(), 32 * MIB as u64);
    settings.ssd.truncate(1);
    settings.demotion.idle = false;
    settings.engine.placement = forebay_policy::demotion::PlacementPolicy::Coolness;
    settings.engine.out_fractions = (0.25, 0.5);
    let running = Running::start(&settings, false);
    let used = |s: &StatusBits| s.tiers[0].used_bytes;
    for at in 0..3 {
        running.put(format!("file{at}").as_bytes(), &vec![at; 4 * MIB]);
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(running.status().demoted_files_total, 0, "above both");
    running.put(b"one-more", &vec![9; 8 * MIB]);
    let room = |s: &StatusBits| used(s) < 16 * MIB as u64;
    wait_until(&running, "closed files move down", room);
    running.put(b"large", &vec![7; 24 * MIB]);
    wait_until(&running, "forced out", room);
    assert!(running.read_all(b"one-more").expect("readable") == vec![9; 8 * MIB]);
    assert!(running.read_all(b"large").expect("readable") == vec![7; 24 * MIB]);
    running.instance.stop();
}

#[test]
fn the_first_checkpoint_of_an_application_is_placed_by_its_own_mtbf() {
    let scratch = Scratch::new();
    make_dirs(scratch.path());
    let mut settings = settings(scratch.path(), 8 * MIB as u64);
    settings.demotion.idle = false;
    settings.wait_for_space = PATIENCE;
    let rule = |name: &str, mtbf_s: u64| forebay_server::PathRule {
        pattern: format!("/{name}-*"),
        durability: None,
        mtbf: Some(Duration::from_secs(mtbf_s)),
        placement: None,
        group: None,
        trust: None,
    };
    settings.rules = vec![rule("often", 600), rule("some", 6000), rule("rare", 60_000)];
    let running = Running::start(&settings, false);
    // Clean copies of others may have gone for one: until no other fits without that.
    let mut others = 0;
    let fill = |others: &mut u64| {
        let fits = |s: &StatusBits| {
            let own = s.tiers.iter().filter(|t| t.name.starts_with("ssd"));
            own.map(|t| t.capacity_bytes - t.used_bytes)
                .any(|free| free >= 4 * MIB as u64)
        };
        while fits(&running.status()) {
            write_as(
                &running,
                me(),
                &format!("some-{others}-ckpt-1.dat"),
                &vec![1; 4 * MIB],
            );
            *others += 1;
            assert!(*others < 32, "never full: {:?}", running.status().tiers);
        }
    };
    fill(&mut others);
    write_as(&running, me(), "often-ckpt-1.dat", &vec![2; 4 * MIB]);
    fill(&mut others);
    assert_eq!(
        running.status().direct_files_total,
        0,
        "warmer than all others"
    );
    write_as(&running, me(), "rare-ckpt-1.dat", &vec![3; 4 * MIB]);
    assert_eq!(
        running.status().direct_files_total,
        1,
        "colder than all others"
    );
    let content = running.read_all(b"rare-ckpt-1.dat");
    assert!(content.expect("readable") == vec![3; 4 * MIB]);
    running.instance.stop();
}
