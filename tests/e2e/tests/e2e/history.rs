//! `forebay history` and `forebay report` as commands: over a kill, for a user, and on to the twin.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_testkit::{
    Cluster, Fleet, LONG, Output, StoreKind, needs_nodes, needs_root, pattern, wait_until,
    write_file,
};
use serde_json::Value;

use crate::common::as_user;

const CONFIG: &str = "[engine]\nquiet = \"1s\"\n";

fn records(cluster: &Cluster) -> Vec<Value> {
    let shown = cluster.on_state(&["history", "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(shown["kept_for_s"], 90 * 24 * 3600);
    shown["records"].as_array().expect("records").clone()
}

fn version(records: &[Value], number: u64) -> Option<&Value> {
    let mut versions = records.iter().filter(|r| r["what"] == "version");
    versions.find(|r| r["version"] == number)
}

fn wait_over(cluster: &Cluster, number: u64) -> Value {
    let deadline = Instant::now() + LONG;
    loop {
        let records = records(cluster);
        match version(&records, number) {
            Some(version) if version["over"] == true => return version.clone(),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn write_version(cluster: &Cluster, number: u64, bytes: usize) {
    for rank in 0..2 {
        let path = cluster.mnt(format!("sim/ckpt-{number}/rank-{rank}"));
        fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        write_file(&path, pattern(number + rank, bytes));
    }
}

#[test]
fn the_history_outlives_a_kill_and_becomes_what_the_twin_takes() {
    let mut cluster = Cluster::builder().eager().config(CONFIG).up();
    write_version(&cluster, 1, 1 << 20);
    let first = wait_over(&cluster, 1);
    assert_eq!(
        (&first["files"], &first["bytes"]),
        (&2.into(), &(2 << 20).into())
    );
    assert!(
        first["drained"].is_string() && first["undrained_files"] == 0,
        "{first}"
    );
    write_version(&cluster, 2, 2 << 20);
    let is_there = || version(&records(&cluster), 2).is_some_and(|r| r["files"] == 2);
    wait_until("on record", is_there);
    // It is saved within a second; of what is drained before that nothing would be known.
    std::thread::sleep(Duration::from_secs(3));
    cluster.kill9();
    cluster.restart();
    assert_eq!(version(&records(&cluster), 1), Some(&first));
    let second = wait_over(&cluster, 2);
    assert_eq!(
        (&second["files"], &second["bytes"]),
        (&2.into(), &(4 << 20).into())
    );
    assert!(second["drained"].is_string(), "{second}");
    // As a table no wider than a screen, and as CSV.
    let table = cluster.on_state(&["history"]).ok();
    assert!(
        table.stdout.lines().all(|line| line.chars().count() <= 140),
        "{}",
        table.stdout
    );
    assert!(table.stdout.contains("ckpt-{version}"), "{}", table.stdout);
    let csv = cluster
        .on_state(&["history", "--csv", "--application", "sim"])
        .ok();
    assert_eq!(csv.stdout.lines().count(), 3, "{}", csv.stdout);
    let none = cluster.on_state(&["history", "--csv", "--until", "1d"]);
    assert_eq!(none.ok().stdout.lines().count(), 1);
    is_replayed(&cluster);
    is_reported(&cluster);
    assert_eq!(cluster.down(&["--drain"]).code, 0);
}

/// What was written is simulated, checkpoint by checkpoint.
fn is_replayed(cluster: &Cluster) {
    let file = cluster.base().join("trace.json");
    let file = file.to_str().expect("UTF-8");
    let written = cluster.on_state(&["history", "--trace", file]).ok();
    assert!(
        written.stdout.starts_with("2 versions"),
        "{}",
        written.stdout
    );
    let replayed: Output = cluster.cli(&["simulate", "--json", "--replay", file]).ok();
    let replayed: Value = serde_json::from_str(&replayed.stdout).expect("JSON");
    let rows = replayed["rows"].as_array().expect("rows");
    let versions: Vec<&Value> = rows.iter().map(|row| &row["version"]).collect();
    assert_eq!(versions, [1, 2]);
    let took = |row: &Value| row["twin_latency_s"].as_f64().expect("a time");
    assert!(rows.iter().all(|row| took(row) > 0.0), "{rows:?}");
}

fn is_reported(cluster: &Cluster) {
    let page = cluster.base().join("report.html");
    let path = page.to_str().expect("UTF-8");
    let said = cluster.on_state(&["report", "-o", path]).ok();
    assert!(
        said.stdout.starts_with("2 versions, 6.0 MiB"),
        "{}",
        said.stdout
    );
    let html = fs::read_to_string(&page).expect("the page");
    for part in [
        "Waiting time saved",
        "Over-subscription reached",
        "A smaller or larger buffer",
        "<svg",
    ] {
        assert!(html.contains(part), "{part}");
    }
    for part in ["<script", "http://", "https://", "src="] {
        assert!(!html.contains(part), "{part}");
    }
    let nothing = cluster.on_state(&["report", "--until", "1d", "-o", path]);
    assert_eq!(nothing.code, 1, "{nothing:?}");
    assert!(
        nothing.stderr.contains("no version was written"),
        "{nothing:?}"
    );
}

#[test]
fn a_user_sees_what_is_the_users() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().eager().config(CONFIG).up();
    let folder = cluster.mnt("theirs");
    fs::create_dir(&folder).expect("mkdir");
    std::os::unix::fs::chown(&folder, Some(1234), Some(1234)).expect("chown");
    write_version(&cluster, 1, 1 << 20);
    let wrote = as_user(&folder, 1234, "", "echo data > ckpt-9");
    assert_eq!(wrote.code, 0, "{wrote:?}");
    wait_over(&cluster, 9);
    wait_over(&cluster, 1);
    assert_eq!(records(&cluster).len(), 2);
    // Where the program is others may not go.
    let program = cluster.base().join("forebay");
    fs::copy(forebay_testkit::program(), &program).expect("a copy");
    let program = program.display();
    let state = cluster.state().display().to_string();
    let asked = |more: &str| {
        let line = format!("{program} history --state {state} --csv {more}");
        as_user(Path::new("/"), 1234, "", &line)
    };
    let theirs = asked("").ok().stdout;
    assert_eq!(theirs.lines().count(), 2, "{theirs}");
    assert!(
        theirs
            .lines()
            .nth(1)
            .expect("a line")
            .contains("theirs/ckpt"),
        "{theirs}"
    );
    let others = asked("--user 0");
    assert!(
        others.code == 1 && others.stderr.contains("only root"),
        "{others:?}"
    );
    let alone = cluster
        .on_state(&["history", "--csv", "--user", "1234"])
        .ok();
    assert_eq!(alone.stdout, theirs);
    assert_eq!(cluster.down(&["--drain"]).code, 0);
}

/// The history is where the records are: in a store on a server, too.
fn is_kept_in_a_store(kind: StoreKind) {
    if needs_nodes() {
        return;
    }
    let config = format!("ssd = [\"{{base}}/ssd:256MiB\"]\n{CONFIG}");
    let mut fleet = Fleet::with_store(kind, 1, "", &config);
    fs::create_dir(fleet.base().join("ssd")).expect("mkdir");
    fleet.start_all();
    write_file(&fleet.mnt(1, "ckpt-1"), pattern(1, 1 << 20));
    let state = fleet.state();
    let asked = |fleet: &Fleet| {
        let args = ["history", "--json", "--state"].map(OsStr::new);
        let shown = fleet
            .run(0, &[&args[..], &[state.as_ref()]].concat())
            .json();
        let records = shown["records"].as_array().expect("records");
        version(records, 1).cloned()
    };
    let is_over = || asked(&fleet).is_some_and(|r| r["over"] == true);
    wait_until("over", is_over);
    let before = asked(&fleet);
    // It is saved within a second.
    std::thread::sleep(Duration::from_secs(3));
    fleet.kill_server();
    fleet.start_server();
    assert_eq!(asked(&fleet), before);
    fleet.umount(1);
    fleet.stop_server();
}

#[test]
fn the_history_outlives_a_kill_in_redis() {
    is_kept_in_a_store(StoreKind::Redis);
}

#[test]
fn the_history_outlives_a_kill_in_etcd() {
    is_kept_in_a_store(StoreKind::Etcd);
}
