//! Two metadata servers: one leads, the other stands by and takes over by itself.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_testkit::{
    Fleet, all_files, listing, needs_nodes, pattern, wait_until, wait_until_for, write_file,
};
use rustix::process::Signal;

const KIB: usize = 1 << 10;
/// After so long a standby serves programs again. A machine that other people build on is given
/// more than a quiet one needs.
const WITHIN: Duration = Duration::from_secs(15);
const LAZY: &str = "[demotion]\nidle = false\nretry_after = \"100ms\"";

/// Both run, the first leads, and each further node has a mount.
fn fleet(nodes: usize, config: &str) -> Fleet {
    let mut fleet = Fleet::with_standby(nodes, "", config);
    fleet.start_metadata(0);
    fleet.start_metadata(1);
    for node in 1..=nodes {
        fleet.mount(node, &[]);
    }
    assert!(fleet.leads(0) && !fleet.leads(1));
    fleet
}

/// A program that writes lines to a log, each with an fsync, and makes a file with each.
struct Writer {
    thread: JoinHandle<Written>,
    stop: std::sync::Arc<AtomicBool>,
}

struct Written {
    /// Lines that fsync has promised.
    lines: usize,
    /// Files that were fsynced.
    files: usize,
    /// Longest time between two promises.
    longest: Duration,
    /// Calls that failed, which may and may not have happened.
    failed: Vec<String>,
}

impl Writer {
    fn start(dir: &Path) -> Writer {
        fs::create_dir(dir).expect("mkdir");
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let (dir, told) = (dir.to_path_buf(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut written = Written {
                lines: 0,
                files: 0,
                longest: Duration::ZERO,
                failed: Vec::new(),
            };
            let log = dir.join("log");
            let mut log = File::create_new(log).expect("create");
            let mut last = Instant::now();
            while !told.load(Ordering::SeqCst) {
                let line = format!("line {}\n", written.lines);
                log.write_all(line.as_bytes()).expect("write");
                log.sync_all().expect("fsync");
                written.lines += 1;
                // Whether a create that was under way has happened is not known.
                match make_file(&dir, written.files) {
                    Ok(()) => written.files += 1,
                    Err(error) => written.failed.push(error.to_string()),
                }
                written.longest = written.longest.max(last.elapsed());
                last = Instant::now();
            }
            written
        });
        Writer { thread, stop }
    }

    fn end(self) -> Written {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the writer")
    }
}

fn make_file(dir: &Path, n: usize) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options
        .create(true)
        .truncate(true)
        .write(true)
        .open(dir.join(format!("file{n}")))?;
    pattern(n as u64, KIB).write(&file);
    file.sync_all()
}

/// What was promised is there, once.
fn assert_there(dir: &Path, written: &Written) {
    let lines = fs::read_to_string(dir.join("log")).expect("read");
    let wanted: String = (0..written.lines).map(|n| format!("line {n}\n")).collect();
    assert_eq!(lines, wanted);
    for n in 0..written.files {
        pattern(n as u64, KIB).assert_in(&dir.join(format!("file{n}")));
    }
    let files = listing(dir).len() - 1;
    let more = files - written.files;
    assert!(more <= written.failed.len().min(1), "{files} files");
}

fn assert_no_conflicts(fleet: &Fleet) {
    for file in all_files(&fleet.pfs("")) {
        let name = file.to_string_lossy().into_owned();
        assert!(!name.contains("conflict"), "{name}");
    }
}

#[test]
fn promise_8_a_standby_takes_over_by_itself_and_what_fsync_promised_is_there_once() {
    if needs_nodes() {
        return;
    }
    let mut fleet = fleet(2, LAZY);
    for (round, leader) in [0, 1].into_iter().enumerate() {
        let dirs = [1, 2].map(|node| format!("round{round}-{node}"));
        let writers: Vec<Writer> = (1..=2)
            .map(|node| Writer::start(&fleet.mnt(node, &dirs[node - 1])))
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        fleet.kill_metadata(leader);
        let other = 1 - leader;
        wait_until_for(2 * WITHIN, "the other one leads", || fleet.leads(other));
        std::thread::sleep(Duration::from_secs(3));
        for (node, writer) in (1..=2).zip(writers) {
            let written = writer.end();
            assert!(
                written.longest < WITHIN + Duration::from_secs(10),
                "{:?}",
                written.longest
            );
            for reader in 1..=2 {
                assert_there(&fleet.mnt(reader, &dirs[node - 1]), &written);
            }
        }
        let log = fleet.metadata_log(other);
        assert!(
            log.contains("stands by, and takes over when server"),
            "{log}"
        );
        assert!(
            log.contains("takes over the records of cluster fleet in "),
            "{log}"
        );
        assert!(log.contains("took over: server "), "{log}");
        // The dead one comes back, and stands by.
        fleet.start_metadata(leader);
        assert!(!fleet.leads(leader));
    }
    let path = fleet.mnt(1, "");
    let drained = fleet.run(1, &["stage-out".as_ref(), "--wait".as_ref(), path.as_ref()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    assert_no_conflicts(&fleet);
    wait_until("all is drained", || {
        fleet
            .metadata_status(0)
            .is_some_and(|status| status["dirty_bytes"] == 0)
    });
}

#[test]
fn promise_8_a_standby_takes_over_on_a_pfs_that_was_mounted_after_its_start() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::with_standby(1, "", LAZY);
    fleet.start_metadata(0);
    let pfs = fleet.pfs("");
    let real = pfs.with_file_name("mounted-late");
    // The directory below the mount, as the standby's node has it before.
    fs::rename(&pfs, &real).expect("rename");
    fs::create_dir(&pfs).expect("mkdir");
    fleet.start_metadata(1);
    fs::remove_dir(&pfs).expect("nobody has made anything there");
    fs::rename(&real, &pfs).expect("rename");
    fleet.mount(1, &[]);
    let written = pattern(7, 30 * KIB);
    written.write(&File::create_new(fleet.mnt(1, "f")).expect("create"));
    fleet.kill_metadata(0);
    wait_until_for(2 * WITHIN, "the other one leads", || fleet.leads(1));
    written.assert_in(&fleet.mnt(1, "f"));
}

/// Longer than any hold, and than the lease of a mount.
const STOOD: Duration = Duration::from_secs(60);

#[test]
fn promise_8_a_leader_that_was_replaced_while_it_stood_still_publishes_nothing() {
    if needs_nodes() {
        return;
    }
    let drains_late = "[demotion]\nidle_after = \"4s\"\nretry_after = \"100ms\"";
    let mut fleet = fleet(2, drains_late);
    for n in 0..20 {
        write_file(&fleet.mnt(1, format!("{n}")), pattern(n, 30 * KIB));
    }
    let writer = Writer::start(&fleet.mnt(2, "load"));
    fleet.signal_metadata(0, Signal::STOP);
    let stopped = Instant::now();
    assert!(!fleet.pfs("0").exists(), "drained too soon for this test");
    wait_until_for(2 * WITHIN, "the other one leads", || fleet.leads(1));
    for n in 0..10 {
        write_file(&fleet.mnt(1, format!("{n}")), pattern(100 + n, 20 * KIB));
        fs::remove_file(fleet.mnt(1, format!("{}", 10 + n))).expect("unlink");
    }
    std::thread::sleep(STOOD.saturating_sub(stopped.elapsed()));
    let written = writer.end();
    assert!(
        written.lines > 0 && written.longest < STOOD / 2,
        "{:?}",
        written.longest
    );
    fleet.signal_metadata(0, Signal::CONT);
    let said = "this server does not lead any more; it starts anew, and stands by";
    wait_until("it finds that it does not lead", || {
        fleet.metadata_log(0).contains(said)
    });
    let log = fleet.metadata_log(0);
    assert!(log.contains("another server may lead with them"), "{log}");
    wait_until("it stands by", || {
        let status = fleet.metadata_status(0).unwrap_or_default();
        status["standby"]["leader"]
            .as_str()
            .is_some_and(|by| by.starts_with("server 100 of "))
    });
    assert!(fleet.leads(1));
    wait_until("all is drained", || {
        fleet
            .metadata_status(1)
            .is_some_and(|status| status["dirty_bytes"] == 0)
    });
    for n in 0..10 {
        pattern(100 + n, 20 * KIB).assert_in(&fleet.pfs(format!("{n}")));
        assert!(
            !fleet.pfs(format!("{}", 10 + n)).exists(),
            "{n} was published"
        );
    }
    for reader in 1..=2 {
        assert_there(&fleet.mnt(reader, "load"), &written);
    }
    assert_no_conflicts(&fleet);
    assert_eq!(
        fleet.metadata_status(1).expect("it leads")["conflicts_total"],
        0
    );
    // It can lead again.
    fleet.kill_metadata(1);
    write_file(&fleet.mnt(1, "goes on"), pattern(7, KIB));
    assert!(fleet.leads(0));
}

#[test]
fn promise_8_who_leads_and_stops_in_order_is_followed_at_once() {
    if needs_nodes() {
        return;
    }
    let mut fleet = fleet(1, LAZY);
    let writer = Writer::start(&fleet.mnt(1, "load"));
    std::thread::sleep(Duration::from_secs(1));
    fleet.signal_metadata(0, Signal::TERM);
    assert_eq!(fleet.wait_metadata(0), Some(0));
    let ended = Instant::now();
    wait_until("the other one leads", || fleet.leads(1));
    assert!(
        ended.elapsed() < Duration::from_secs(7),
        "{:?}",
        ended.elapsed()
    );
    std::thread::sleep(Duration::from_secs(2));
    let written = writer.end();
    assert!(written.failed.is_empty(), "{:?}", written.failed);
    assert_there(&fleet.mnt(1, "load"), &written);
}

#[test]
fn command_down_of_a_leader_says_who_takes_over() {
    if needs_nodes() {
        return;
    }
    let fleet = fleet(2, LAZY);
    let writers: Vec<Writer> = (1..=2)
        .map(|node| Writer::start(&fleet.mnt(node, format!("d{node}"))))
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let state = fleet.metadata_state(0);
    let args = ["down".as_ref(), "--state".as_ref(), state.as_ref()];
    let down = fleet.run(fleet.metadata_node(0), &args);
    assert_eq!(down.code, 0, "{down:?}");
    assert!(
        down.stderr.contains("server 100 stands by and takes over"),
        "{down:?}"
    );
    wait_until_for(2 * WITHIN, "the other one leads", || fleet.leads(1));
    std::thread::sleep(Duration::from_secs(8));
    for (node, writer) in (1..=2).zip(writers) {
        let written = writer.end();
        eprintln!("node {node}: longest wait {:?}", written.longest);
        assert!(written.longest < WITHIN, "{:?}", written.longest);
        assert_there(&fleet.mnt(node, format!("d{node}")), &written);
    }
    // Who stands by knows of no nodes.
    let refused = fleet.run(
        fleet.metadata_node(0),
        &["status".as_ref(), "--state".as_ref(), state.as_ref()],
    );
    assert_eq!(refused.code, 1, "{refused:?}");
}

#[test]
fn command_server_stands_by_and_says_so() {
    if needs_nodes() {
        return;
    }
    let mut fleet = fleet(1, LAZY);
    let log = fleet.metadata_log(1);
    assert!(
        log.contains("server 100 of fleet stands by, and takes over when server 1 of fleet on "),
        "{log}"
    );
    let status = fleet.metadata_status(1).expect("it answers");
    assert_eq!(status["standby"]["id"], 100, "{status}");
    let leader = status["standby"]["leader"].as_str().expect("a leader");
    assert!(leader.starts_with("server 1 of fleet on "), "{leader}");
    let (state, node) = (fleet.metadata_state(1), fleet.metadata_node(1));
    let page = fleet.run(
        node,
        &["status".as_ref(), "--state".as_ref(), state.as_ref()],
    );
    assert!(
        page.stdout.contains("it stands by: server 1 of fleet on "),
        "{page:?}"
    );
    // Over the network the one that leads answers.
    let config = fleet.base().join("cluster.toml");
    let args = ["status", "--json", "--config"].map(std::ffi::OsStr::new);
    let asked = fleet.run(1, &[&args[..], &[config.as_ref()]].concat());
    assert!(asked.json()["standby"].is_null(), "{asked:?}");
    let refused = fleet.run(
        node,
        &[
            "down".as_ref(),
            "--drain".as_ref(),
            "--state".as_ref(),
            state.as_ref(),
        ],
    );
    assert!(
        refused.code == 1 && refused.stderr.contains("that leads drains all"),
        "{refused:?}"
    );
    let args = ["fsck".as_ref(), "--state".as_ref(), state.as_ref()];
    let elsewhere = fleet.run(node, &args);
    assert_eq!(elsewhere.code, 1, "{elsewhere:?}");
    let leads = format!("({} on ", fleet.metadata_state(0).display());
    for part in ["metadata server 100 of fleet cannot check it", &leads] {
        assert!(elsewhere.stderr.contains(part), "{part}: {elsewhere:?}");
    }
    let down = fleet.run(node, &["down".as_ref(), "--state".as_ref(), state.as_ref()]);
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(fleet.wait_metadata(1), Some(0));
    let log = fleet.metadata_log(1);
    assert!(log.contains("stopped, while it stood by"), "{log}");
    // A signal is the same.
    fleet.start_metadata(1);
    fleet.signal_metadata(1, Signal::TERM);
    assert_eq!(fleet.wait_metadata(1), Some(0));
    assert!(fleet.leads(0));
}

#[test]
fn bad_input_a_standby_that_would_lose_something_is_refused() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::with_standby(1, "", LAZY);
    let good = fs::read_to_string(fleet.base().join("cluster.toml")).expect("read");
    let refused = |text: &str, part: &str| {
        let config = fleet.base().join("bad.toml");
        fs::write(&config, text).expect("write");
        let args = ["server".as_ref(), "--config".as_ref(), config.as_os_str()];
        let said = fleet.run(0, &[&args[..], &["--id".as_ref(), "1".as_ref()]].concat());
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.stderr.contains(part), "{said:?}");
        assert_eq!(said.stderr.trim_end().lines().count(), 1, "{said:?}");
    };
    let store = good
        .lines()
        .find(|line| line.starts_with("store = "))
        .expect("a store");
    let redis = good.replace(store, "store = \"redis://10.77.0.4:6379/0\"");
    for other in [good.replace(store, ""), redis] {
        refused(
            &other,
            "takes over by itself, which needs store = \"etcd://...\"",
        );
    }
    let holds = good.replacen(
        "roles = [\"metadata\"]",
        "roles = [\"metadata\", \"data\"]\ndram = \"64MiB\"",
        1,
    );
    refused(
        &holds,
        "server 1: with a second metadata server none may hold data",
    );
}

const PAGE: &str = "127.0.0.1:9464";

/// What the page's server of a metadata server's node answers: the status, and the body.
fn of_page(fleet: &Fleet, which: usize, path: &str) -> (String, String) {
    let url = format!("http://{PAGE}{path}");
    let node = fleet.metadata_node(which);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-m", "10", "-w", "\n%{http_code}", &url]);
    fleet.node(node).place(&mut curl);
    let said = curl.output().expect("curl");
    let said = String::from_utf8(said.stdout).expect("UTF-8");
    let (body, code) = said.rsplit_once('\n').expect("a code");
    (code.into(), body.into())
}

#[test]
fn command_server_http_a_standby_says_that_it_stands_by_and_for_whom() {
    if needs_nodes() {
        return;
    }
    let mut fleet = fleet(1, &format!("{LAZY}\n[http]\nlisten = \"{PAGE}\""));
    wait_until("both answer", || {
        (0..2).all(|which| of_page(&fleet, which, "/healthz").0 == "200")
    });
    assert_eq!(of_page(&fleet, 0, "/healthz").1, "ok\n");
    let (_, health) = of_page(&fleet, 1, "/healthz");
    let says = "ok: server 100 of fleet stands by; server 1 of fleet on ";
    assert!(
        health.starts_with(says) && health.ends_with("leads\n"),
        "{health}"
    );
    let (code, metrics) = of_page(&fleet, 1, "/metrics");
    assert_eq!(code, "200");
    for line in ["forebay_standby 1\n", "forebay_uptime_seconds "] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(!metrics.contains("forebay_undrained_bytes"), "{metrics}");
    assert!(
        of_page(&fleet, 0, "/metrics")
            .1
            .contains("forebay_standby 0\n")
    );
    let (_, status) = of_page(&fleet, 1, "/status.json");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["standby"]["id"], 100, "{status}");
    assert!(
        of_page(&fleet, 1, "/")
            .1
            .contains("<script src=\"page.js\"")
    );
    // The same address goes on when it leads.
    fleet.kill_metadata(0);
    wait_until_for(2 * WITHIN, "it leads, and says so", || {
        of_page(&fleet, 1, "/healthz").1 == "ok\n"
    });
    let (_, metrics) = of_page(&fleet, 1, "/metrics");
    for line in ["forebay_standby 0\n", "forebay_undrained_bytes "] {
        assert!(metrics.contains(line), "{metrics}");
    }
}
