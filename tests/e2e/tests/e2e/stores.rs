//! The records in a store on a server: Redis and etcd, on a node of their own.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use forebay_testkit::{
    Fleet, StoreKind, StoreServer, listing, needs_nodes, pattern, wait_until, wait_until_for,
    write_file,
};
use rustix::process::Signal;

const KIB: usize = 1 << 10;
/// A hold ends after so long without a word of its holder.
const HOLD: Duration = Duration::from_secs(10);
/// Nothing is drained by itself.
const LAZY: &str = "[demotion]\nidle = false\nretry_after = \"100ms\"";

fn lazy_with_flash() -> String {
    format!("ssd = [\"{{base}}/ssd:256MiB\"]\n{LAZY}")
}

fn with_store(kind: StoreKind, mounts: usize, config: &str) -> Fleet {
    let fleet = Fleet::with_store(kind, mounts, "", config);
    fs::create_dir(fleet.base().join("ssd")).expect("mkdir");
    fleet
}

/// Writes what an fsync promises.
fn write_synced(fleet: &Fleet, name: &str, seed: u64) {
    let file = File::create_new(fleet.mnt(1, name)).expect("create");
    pattern(seed, 300 * KIB).write(&file);
    file.sync_all().expect("fsync");
}

fn all_outlives_a_kill(kind: StoreKind) {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(kind, 1, &lazy_with_flash());
    fleet.start_all();
    let dir = fleet.mnt(1, "dir");
    fs::create_dir(&dir).expect("mkdir");
    for n in 0..100 {
        write_file(&dir.join(format!("{n}")), pattern(n, 3 * KIB));
    }
    fs::rename(dir.join("7"), dir.join("seven")).expect("rename");
    fs::remove_file(dir.join("8")).expect("unlink");
    write_synced(&fleet, "synced", 1000);
    let before = listing(&dir);
    let url = fleet.store().url("prefix=fleet");
    assert_eq!(fleet.status()["store"], url);
    assert!(
        !fleet.state().join("kv").exists(),
        "records in the state folder"
    );
    fleet.kill_server();
    let state = fleet.state();
    let args = ["fsck", "--json", "--dry-run", "--state"].map(std::ffi::OsStr::new);
    let found = fleet.run(0, &[&args[..], &[state.as_ref()]].concat());
    let report = found.json();
    assert!(report["records"].as_u64() >= Some(100), "{report}");
    let begun = Instant::now();
    fleet.start_server();
    assert!(
        begun.elapsed() < HOLD,
        "a process that is dead is waited for"
    );
    assert_eq!(listing(&dir), before);
    for n in (0..100).filter(|n| *n != 7 && *n != 8) {
        pattern(n, 3 * KIB).assert_in(&dir.join(format!("{n}")));
    }
    pattern(7, 3 * KIB).assert_in(&dir.join("seven"));
    pattern(1000, 300 * KIB).assert_in(&fleet.mnt(1, "synced"));
    let drained = fleet.run(1, &["stage-out".as_ref(), "--wait".as_ref(), dir.as_ref()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    pattern(7, 3 * KIB).assert_in(&fleet.pfs("dir/seven"));
}

#[test]
fn promise_8_all_is_there_after_a_kill_with_the_records_in_redis() {
    all_outlives_a_kill(StoreKind::Redis);
}

#[test]
fn promise_8_all_is_there_after_a_kill_with_the_records_in_etcd() {
    all_outlives_a_kill(StoreKind::Etcd);
}

/// The state folder is gone with its node; the flash is not, and the PFS.
fn another_takes_over(kind: StoreKind) {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(kind, 1, &lazy_with_flash());
    fleet.start_all();
    write_synced(&fleet, "flash", 1);
    write_synced(&fleet, "pfs", 2);
    let path = fleet.mnt(1, "pfs");
    let drained = fleet.run(1, &["stage-out".as_ref(), "--wait".as_ref(), path.as_ref()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    let old = fleet.state();
    fleet.kill_server();
    fleet.kill_mount(1);
    fleet.server_elsewhere(1, "state2");
    fleet.start_server();
    let log = fleet.log("server.log");
    assert!(log.contains("waits for the metadata store "), "{log}");
    assert!(log.contains("held by server 1 of fleet on "), "{log}");
    assert!(
        log.contains("takes over the records of cluster fleet in "),
        "{log}"
    );
    fleet.mount(1, &[]);
    pattern(1, 300 * KIB).assert_in(&fleet.mnt(1, "flash"));
    pattern(2, 300 * KIB).assert_in(&fleet.mnt(1, "pfs"));
    let path = fleet.mnt(1, "flash");
    let drained = fleet.run(1, &["stage-out".as_ref(), "--wait".as_ref(), path.as_ref()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    pattern(1, 300 * KIB).assert_in(&fleet.pfs("flash"));
    fleet.stop_server();
    // The old folder is out of date: its server and its fsck are refused.
    let fsck = fleet.run(0, &["fsck".as_ref(), "--state".as_ref(), old.as_ref()]);
    assert_eq!(fsck.code, 1, "{fsck:?}");
    assert!(
        fsck.stderr.contains("is out of date; start that server"),
        "{fsck:?}"
    );
    fleet.server_elsewhere(0, "state");
    let refused = fleet.refused_server(&[]);
    assert!(
        refused.contains("were taken over by server 1 of fleet on "),
        "{refused}"
    );
    fleet.begin_server(&["--take-over"]);
    fleet.await_server();
}

#[test]
fn promise_8_another_node_takes_over_the_records_in_redis() {
    another_takes_over(StoreKind::Redis);
}

#[test]
fn promise_8_another_node_takes_over_the_records_in_etcd() {
    another_takes_over(StoreKind::Etcd);
}

/// What the old server has not drained is only in its memory, and lost with it; and it is not to
/// come back behind what the new one has made.
fn a_server_that_was_replaced_changes_nothing(kind: StoreKind) {
    if needs_nodes() {
        return;
    }
    let config = "[demotion]\nidle_after = \"3s\"\nretry_after = \"100ms\"";
    let mut fleet = with_store(kind, 1, config);
    fleet.start_all();
    for n in 0..20 {
        write_file(&fleet.mnt(1, format!("{n}")), pattern(n, 30 * KIB));
    }
    fleet.signal_server(Signal::STOP);
    assert!(!fleet.pfs("0").exists(), "drained too soon for this test");
    fleet.kill_mount(1);
    fleet.server_elsewhere(1, "state2");
    fleet.start_server();
    fleet.mount(1, &[]);
    for n in 0..10 {
        write_file(&fleet.mnt(1, format!("{n}")), pattern(100 + n, 30 * KIB));
    }
    fleet.signal_old(Signal::CONT);
    assert_eq!(fleet.wait_old(), Some(1), "it has lost its store");
    let log = fleet.log("server.log");
    let said = "the key-value store is held by another server now";
    assert!(
        log.contains(said) && log.contains(": ended, because "),
        "{log}"
    );
    for n in 10..20 {
        assert!(!fleet.pfs(format!("{n}")).exists(), "{n} was published");
    }
    wait_until("the new one has drained", || {
        fleet.status()["dirty_bytes"] == 0
    });
    for n in 0..10 {
        pattern(100 + n, 30 * KIB).assert_in(&fleet.pfs(format!("{n}")));
    }
    write_file(&fleet.mnt(1, "goes on"), pattern(7, KIB));
}

#[test]
fn promise_8_a_server_that_was_replaced_changes_nothing_with_redis() {
    a_server_that_was_replaced_changes_nothing(StoreKind::Redis);
}

#[test]
fn promise_8_a_server_that_was_replaced_changes_nothing_with_etcd() {
    a_server_that_was_replaced_changes_nothing(StoreKind::Etcd);
}

fn a_server_that_holds_its_store_is_left_alone(kind: StoreKind) {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(kind, 1, &lazy_with_flash());
    fleet.start_all();
    write_file(&fleet.mnt(1, "first"), pattern(1, KIB));
    fleet.server_elsewhere(1, "state2");
    let refused = fleet.refused_server(&[]);
    assert!(
        refused.contains("waits for the metadata store "),
        "{refused}"
    );
    let why = "; stop that server. If it cannot be reached, `forebay server --take-over`";
    assert!(
        refused.contains("held by server 1 of fleet on ") && refused.contains(why),
        "{refused}"
    );
    assert!(
        !fleet.state().exists(),
        "a start that was refused leaves a state folder"
    );
    write_file(&fleet.mnt(1, "second"), pattern(2, KIB));
    // By a person's order. The flash is still the other's: it is on the same node here, and locked.
    fleet.kill_mount(1);
    let config = fleet.write_config("memory.toml", "fleet", LAZY);
    fs::rename(config, fleet.base().join("cluster.toml")).expect("rename");
    let begun = Instant::now();
    fleet.begin_server(&["--take-over"]);
    assert_eq!(
        fleet.wait_old(),
        Some(1),
        "it is told that it has lost the store"
    );
    fleet.await_server();
    assert!(
        begun.elapsed() >= HOLD,
        "the other may still change the PFS"
    );
    let log = fleet.log("server.log");
    assert!(
        log.contains("was taken from server 1 of fleet on "),
        "{log}"
    );
    fleet.mount(1, &[]);
    write_file(&fleet.mnt(1, "third"), pattern(3, KIB));
}

#[test]
fn promise_8_a_server_that_holds_its_redis_is_left_alone_but_by_order() {
    a_server_that_holds_its_store_is_left_alone(StoreKind::Redis);
}

#[test]
fn promise_8_a_server_that_holds_its_etcd_is_left_alone_but_by_order() {
    a_server_that_holds_its_store_is_left_alone(StoreKind::Etcd);
}

/// For less than the time that a server of a store has to answer.
fn programs_wait_for_a_store(kind: StoreKind) {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(kind, 1, LAZY);
    fleet.start_all();
    write_file(&fleet.mnt(1, "before"), pattern(1, KIB));
    fleet.store().signal(Signal::STOP);
    let path = fleet.mnt(1, "meanwhile");
    let begun = Instant::now();
    let writer = std::thread::spawn(move || {
        write_file(&path, pattern(2, KIB));
        begun.elapsed()
    });
    std::thread::sleep(Duration::from_secs(3));
    fleet.store().signal(Signal::CONT);
    let took = writer.join().expect("no error");
    assert!(took >= Duration::from_secs(3), "{took:?}");
    pattern(2, KIB).assert_in(&fleet.mnt(1, "meanwhile"));
    assert!(fleet.status()["store_failing"].is_null());
}

#[test]
fn promise_8_programs_wait_for_a_redis_that_stands_still() {
    programs_wait_for_a_store(StoreKind::Redis);
}

#[test]
fn promise_8_programs_wait_for_an_etcd_that_stands_still() {
    programs_wait_for_a_store(StoreKind::Etcd);
}

#[test]
fn promise_8_without_its_redis_names_stay_and_what_needs_no_record_goes_on() {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(StoreKind::Redis, 1, LAZY);
    fleet.start_all();
    let path = |name: &str| fleet.mnt(1, name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = options.open(path("open")).expect("create");
    pattern(1, 30 * KIB).write(&file);
    write_file(&path("named"), pattern(2, KIB));
    fleet.store_node().cut();
    let refused = fs::rename(path("named"), path("renamed")).expect_err("no store");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    let failing = || fleet.status()["store_failing"].as_str().map(str::to_string);
    wait_until("status says it", || {
        failing().is_some_and(|why| why.contains("takes no changes"))
    });
    file.write_all_at(b"more", 30 * KIB as u64).expect("write");
    let mut read = [0; 4];
    file.read_exact_at(&mut read, 30 * KIB as u64)
        .expect("read");
    assert_eq!(&read, b"more");
    File::create_new(path("made")).expect("its record comes later");
    std::thread::sleep(HOLD);
    // Another server might have taken the store by now.
    let refused = fs::create_dir(path("dir")).expect_err("nobody knows who holds it");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    fleet.store_node().heal();
    wait_until_for(2 * HOLD, "it goes on", || failing().is_none());
    assert_eq!(listing(&path("")), ["made", "named", "open"]);
    fs::create_dir(path("dir")).expect("mkdir");
    fs::rename(path("named"), path("dir/renamed")).expect("rename");
    drop(file);
    fleet.kill_server();
    fleet.start_server();
    assert_eq!(listing(&fleet.mnt(1, "")), ["dir", "made", "open"]);
    pattern(2, KIB).assert_in(&fleet.mnt(1, "dir/renamed"));
    let open = fs::metadata(fleet.mnt(1, "open")).expect("stat");
    assert_eq!(open.len(), 30 * KIB as u64 + 4);
}

#[test]
fn promise_8_who_cannot_reach_its_etcd_for_longer_than_its_lease_ends() {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(StoreKind::Etcd, 1, &lazy_with_flash());
    fleet.start_all();
    write_synced(&fleet, "synced", 1);
    fleet.store_node().cut();
    std::thread::sleep(HOLD + Duration::from_secs(5));
    fleet.store_node().heal();
    assert_eq!(fleet.wait_server(), Some(1));
    let log = fleet.log("server.log");
    assert!(
        log.contains(": ended, because ") && log.contains("etcd://"),
        "{log}"
    );
    fleet.start_server();
    pattern(1, 300 * KIB).assert_in(&fleet.mnt(1, "synced"));
}

#[test]
fn command_server_waits_for_its_store_and_says_so() {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(StoreKind::Redis, 0, LAZY);
    fleet.store().kill();
    let refused = fleet.refused_server(&[]);
    let waits = "waits for the metadata store redis://";
    assert!(refused.contains(waits), "{refused}");
    assert!(
        refused.contains("does it run, and can this node reach it?"),
        "{refused}"
    );
    fleet.begin_server(&[]);
    wait_until("it waits", || fleet.log("server.log").contains(waits));
    fleet.restart_store();
    fleet.await_server();
    let log = fleet.log("server.log");
    assert!(log.contains(", records in redis://"), "{log}");
}

#[test]
fn bad_input_a_store_that_cannot_be_used_is_refused_without_its_password() {
    if needs_nodes() {
        return;
    }
    let mut fleet = with_store(StoreKind::Redis, 0, LAZY);
    fleet.log_at("trace");
    let set = ["--appendfsync", "everysec", "--requirepass", "hush"];
    let store = StoreServer::start_on(StoreKind::Redis, fleet.store_node(), &set);
    let url = |login: &str, options: &str| {
        let url = store.url(options);
        url.replace("redis://", &format!("redis://{login}"))
    };
    let (wrong, right) = (url(":shout@", ""), url(":hush@", ""));
    let accepted = url(":hush@", "durability=everysec");
    let mut refused = |url: &str, part: &str| {
        fleet.use_store(url);
        let line = fleet.refused_server(&[]);
        assert!(line.contains(part), "{line}");
        assert!(!line.contains("hush") && !line.contains("shout"), "{line}");
    };
    refused(&wrong, "Redis refuses access");
    refused(
        &right,
        "set `appendfsync always`, or accept the loss of seconds",
    );
    fleet.use_store(&accepted);
    fleet.start_server();
    wait_until("the loss is told", || {
        let log = fleet.log("server.log");
        log.contains("may lose its last two seconds")
    });
    let status = fleet.status();
    assert_eq!(status["store"], store.url("prefix=fleet"));
    fleet.kill_server();
    let log = fleet.log("server.log");
    assert!(log.contains("DEBUG ") && !log.contains("hush"), "{log}");
    // It is in the state folder, for fsck, which is its owner's only.
    let state = fleet.state();
    let fsck = fleet.run(0, &["fsck".as_ref(), "--state".as_ref(), state.as_ref()]);
    assert_eq!(fsck.code, 0, "{fsck:?}");
    fleet.use_store(&url(":hush@", "durability=everysec&prefix=other"));
    let line = fleet.refused_server(&[]);
    assert!(
        line.contains("name that store again, or drain what is there"),
        "{line}"
    );
    assert!(!line.contains("hush"), "{line}");
}
