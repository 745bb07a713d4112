//! Limits of users and groups: what they may hold, and what happens beyond.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_testkit::{Cluster, Pattern, as_user, needs_root, pattern, wait_until, write_file};
use serde_json::{Value, json};

use crate::common;

const MIB: u64 = 1 << 20;
const ALICE: u32 = 12_345;
const BOB: u32 = 12_346;

fn data(seed: u64, bytes: u64) -> Pattern {
    pattern(seed, bytes as usize)
}

/// A burst buffer that drains only what it has to, with a folder for each user.
fn limited(limits: &str) -> Cluster {
    let builder = Cluster::builder().lazy().dram("64MiB").config(limits);
    let cluster = builder.environment("FOREBAY_WAIT_FOR_SPACE", "60s").up();
    for user in [ALICE, BOB] {
        let folder = cluster.mnt(user.to_string());
        fs::create_dir(&folder).expect("mkdir");
        chown(&folder, Some(user), Some(user)).expect("chown");
    }
    cluster
}

/// A file of a user, written by that user.
fn write(cluster: &Cluster, user: u32, name: &str, seed: u64, bytes: u64) -> String {
    let path = format!("{user}/{name}");
    let at = cluster.mnt(&path);
    as_user(user, || write_file(&at, data(seed, bytes)));
    path
}

/// What `status` shows of a user.
fn shown(cluster: &Cluster, user: u32) -> Option<Value> {
    let status = cluster.status();
    let limits = status["limits"].as_array().expect("limits");
    let mut limits = limits.iter();
    let found = limits.find(|limit| limit["kind"] == "user" && limit["id"] == user);
    found.cloned()
}

fn config(user: u32, more: &str) -> String {
    format!("[[limit]]\nuser = {user}\n{more}\n")
}

#[test]
fn promise_5_who_has_used_up_a_share_waits_for_the_own_data_and_for_nobody_elses() {
    if needs_root() {
        return;
    }
    let cluster = limited(&config(ALICE, "capacity = \"12.5%\""));
    let bobs = write(&cluster, BOB, "kept", 1, 4 * MIB);
    cluster.drain(&bobs);
    let names = ["a", "b", "c", "d", "e", "f"].map(|name| {
        let path = write(&cluster, ALICE, name, 2, 3 * MIB);
        let alices = shown(&cluster, ALICE).expect("something here");
        assert_eq!(alices["capacity_bytes"], 8 * MIB);
        let used = alices["used_bytes"].as_u64().expect("bytes");
        assert!(used <= 8 * MIB, "{alices}");
        path
    });
    assert!(cluster.status()["waited_writes_total"].as_u64() > Some(0));
    for path in &names {
        data(2, 3 * MIB).assert_in(&cluster.mnt(path));
    }
    // What had to leave was Alice's.
    assert_eq!(cluster.where_state(&bobs), "clean");
    let last = cluster.where_state(&names[5]);
    assert!(["dirty", "demoting", "clean"].contains(&&*last), "{last}");
    cluster.drain("");
    for path in &names {
        data(2, 3 * MIB).assert_in(&cluster.pfs(path));
    }
}

#[test]
fn promise_5_beyond_direct_new_files_go_to_the_pfs_without_a_wait() {
    if needs_root() {
        return;
    }
    let cluster = limited(&config(ALICE, "undrained = \"4MiB\"\nbeyond = \"direct\""));
    let first = write(&cluster, ALICE, "first", 1, 3 * MIB);
    // It grows beyond: it goes on there, with all that it has.
    let second = write(&cluster, ALICE, "second", 2, 3 * MIB);
    assert_eq!(cluster.where_state(&first), "dirty");
    let direct = write(&cluster, ALICE, "third", 3, 3 * MIB);
    for (path, seed) in [(&second, 2), (&direct, 3)] {
        assert_eq!(cluster.where_is(path)["tiers"], json!(["pfs"]));
        data(seed, 3 * MIB).assert_in(&cluster.mnt(path));
    }
    let alices = shown(&cluster, ALICE).expect("something here");
    assert!(alices["dirty_bytes"].as_u64() <= Some(4 * MIB), "{alices}");
    let seconds = cluster.status()["space_wait_s_total"].as_f64();
    assert!(seconds < Some(30.0), "somebody waited: {seconds:?}");
    // Bob has no limit.
    let bobs = write(&cluster, BOB, "f", 4, 8 * MIB);
    assert_eq!(cluster.where_state(&bobs), "dirty");
    assert_eq!(shown(&cluster, BOB), None);
    // Drained, it is none of the undrained.
    cluster.drain(&first);
    let again = write(&cluster, ALICE, "fourth", 5, 3 * MIB);
    assert_eq!(cluster.where_state(&again), "dirty");
}

#[test]
fn promise_5_each_user_has_a_limit_and_files_count_for_who_owns_them() {
    if needs_root() {
        return;
    }
    let limits = format!(
        "[[limit]]\nuser = \"*\"\ncapacity = \"32MiB\"\n{}[[limit]]\ngroup = {BOB}\nundrained = \"16MiB\"\n",
        config(ALICE, "capacity = \"16MiB\"")
    );
    let cluster = limited(&limits);
    let path = write(&cluster, ALICE, "f", 1, MIB);
    write(&cluster, BOB, "g", 1, 2 * MIB);
    // Root has none but its own.
    write_file(&cluster.mnt("roots"), data(1, MIB));
    assert_eq!(shown(&cluster, 0), None);
    let capacity = |user| shown(&cluster, user).map(|shown| shown["capacity_bytes"].clone());
    assert_eq!(capacity(ALICE), Some((16 * MIB).into()));
    assert_eq!(capacity(BOB), Some((32 * MIB).into()));
    chown(cluster.mnt(&path), Some(BOB), Some(BOB)).expect("chown");
    assert_eq!(shown(&cluster, ALICE), None);
    let bobs = shown(&cluster, BOB).expect("two files");
    assert_eq!(bobs["dirty_bytes"], 3 * MIB);
    let status = cluster.status();
    let groups = status["limits"].as_array().expect("limits").iter();
    let groups: Vec<_> = groups.filter(|limit| limit["kind"] == "group").collect();
    let [group] = groups[..] else {
        panic!("{status}");
    };
    assert_eq!(
        (&group["id"], &group["undrained_bytes"]),
        (&BOB.into(), &(16 * MIB).into())
    );
    // Others than root are shown their own.
    let program = forebay_testkit::program_for_everybody(cluster.base());
    let state = cluster.state();
    let line = format!(
        "{} status --json --state {}",
        program.display(),
        state.display()
    );
    let theirs = common::as_user(Path::new("/"), ALICE, "", &line).ok();
    let theirs: Value = serde_json::from_str(&theirs.stdout).expect("JSON");
    assert_eq!(theirs["limits"], Value::Array(Vec::new()));
    let text = cluster.on_state(&["status"]).ok().stdout;
    assert!(text.contains(&format!("user {BOB}")), "{text}");
}

#[test]
fn command_reload_takes_changed_limits_and_a_start_goes_on_counting() {
    if needs_root() {
        return;
    }
    let mut cluster = limited(&config(ALICE, "undrained = \"2MiB\"\nbeyond = \"direct\""));
    let shown_limits = cluster.on_state(&["policy"]).ok().stdout;
    let line = format!("limit user {ALICE}: undrained 2.0 MiB; beyond: direct\n");
    assert!(shown_limits.contains(&line), "{shown_limits}");
    write(&cluster, ALICE, "kept", 1, MIB);
    cluster.kill9();
    cluster.restart();
    let kept = shown(&cluster, ALICE).expect("counted again");
    assert_eq!(kept["dirty_bytes"], MIB);
    let file = cluster.base().join("bb.toml");
    let text = fs::read_to_string(&file).expect("read");
    fs::write(&file, text.replace("2MiB", "20MiB")).expect("write");
    assert_eq!(cluster.on_state(&["reload"]).ok().stdout, "taken: limit\n");
    let path = write(&cluster, ALICE, "more", 2, 6 * MIB);
    assert_eq!(cluster.where_state(&path), "dirty");
    let now = shown(&cluster, ALICE).expect("counted");
    assert_eq!(now["undrained_bytes"], 20 * MIB);
}

/// A burst buffer that knows from two versions of a series that its files get 2 MiB.
fn foreseeing(limit: &str) -> Cluster {
    let cluster = Cluster::builder().lazy().dram("1GiB").config(limit).up();
    for version in 1..=2 {
        let file = member(&cluster, version);
        data(version, 2 * MIB).write(&file);
        drop(file);
        cluster.drain("");
        cluster.on_path(&["release"], cluster.mnt("")).ok();
    }
    cluster
}

/// A new file of the series.
fn member(cluster: &Cluster, version: u64) -> fs::File {
    let path = cluster.mnt(format!("s-{version}"));
    fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .expect("create")
}

#[test]
fn promise_5_the_kernel_gets_no_room_beyond_a_limit() {
    if needs_root() {
        return;
    }
    let limit = "[[limit]]\nuser = \"root\"\ncapacity = \"11MiB\"\n";
    let cluster = foreseeing(limit);
    let write = |version: u64| {
        let file = member(&cluster, version);
        data(version, 2 * MIB).write(&file);
        let kernels = cluster.is_passed_through(&file);
        (file, kernels)
    };
    let (first, kernels) = write(3);
    assert!(kernels, "there is room in the limit");
    let held = || shown(&cluster, 0).and_then(|roots| roots["used_bytes"].as_u64());
    wait_until("it gets more ahead of its writer", || {
        held() >= Some(4 * MIB)
    });
    // What is open is not drained, so that no room can be made of it.
    let other = fs::File::create(cluster.mnt("other")).expect("create");
    data(9, 5 * MIB).write(&other);
    let (second, kernels) = write(4);
    assert!(!kernels, "it would be beyond");
    drop((second, other));
    fs::remove_file(cluster.mnt("other")).expect("unlink");
    wait_until("its room is given back", || held() < Some(9 * MIB));
    let (third, kernels) = write(5);
    assert!(kernels, "there is room again");
    drop((first, third));
    for version in 3..=5 {
        data(version, 2 * MIB).assert_in(&cluster.mnt(format!("s-{version}")));
    }
}

#[test]
fn promise_5_what_the_kernel_writes_goes_on_beyond_a_limit_and_waits_for_nobody_else() {
    if needs_root() {
        return;
    }
    for beyond in ["wait", "direct"] {
        let limit =
            format!("[[limit]]\nuser = \"root\"\ncapacity = \"11MiB\"\nbeyond = \"{beyond}\"\n");
        let cluster = foreseeing(&limit);
        // Bob has some that could be drained, and some that could be evicted.
        let bobs = ["clean", "dirty"].map(|name| {
            let path = cluster.mnt(name);
            write_file(&path, data(5, 4 * MIB));
            chown(&path, Some(BOB), Some(BOB)).expect("chown");
            if name == "clean" {
                cluster.drain(name);
            }
            name
        });
        let (grows, allocates) = (member(&cluster, 3), member(&cluster, 4));
        let begun = Instant::now();
        data(4, 2 * MIB).write(&allocates);
        assert!(cluster.is_passed_through(&allocates));
        rustix::fs::fallocate(&allocates, rustix::fs::FallocateFlags::empty(), 0, 16 * MIB)
            .expect("no limit makes it fail");
        data(3, 48 * MIB).write(&grows);
        assert!(cluster.is_passed_through(&grows));
        data(3, 48 * MIB).assert_in(&cluster.mnt("s-3"));
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{beyond}: {took:?}");
        drop((grows, allocates));
        for name in bobs {
            assert_eq!(cluster.where_state(name), name, "{beyond}");
        }
        let errors = &cluster.status()["errors"];
        assert!(errors.as_array().is_none_or(Vec::is_empty), "{errors}");
    }
}

#[test]
fn promise_5_who_writes_faster_than_the_rate_is_held_back_and_nobody_else_is() {
    if needs_root() {
        return;
    }
    let cluster = limited(&config(ALICE, "rate = \"4MiB/s\""));
    let begun = Instant::now();
    let path = write(&cluster, ALICE, "f", 1, 12 * MIB);
    // What was saved up, and what is forgiven, is 0.3 s.
    assert!(begun.elapsed() >= Duration::from_millis(2600));
    let alices = shown(&cluster, ALICE).expect("something here");
    assert_eq!(alices["rate_bytes_per_s"], 4 * MIB);
    assert_eq!(alices["written_bytes"], 12 * MIB);
    let paused = alices["paused_s"].as_f64();
    assert!(paused >= Some(2.0), "{alices}");

    // Held back for minutes: a program that others do not wait for, and that can be killed.
    let program = format!(
        "import os\nf = os.open({:?}, os.O_WRONLY)\nfor at in range(1200): os.pwrite(f, bytes(1 << 20), at << 20 & 0xffffff)\n",
        cluster.mnt(&path)
    );
    let mut child = as_user(ALICE, || {
        let mut python = Command::new("python3");
        python.arg("-c").arg(program).spawn().expect("python3")
    });
    let held_back = || shown(&cluster, ALICE).is_some_and(|s| s["paused_s"].as_f64() > paused);
    wait_until("the program is held back", held_back);
    for n in 0..8 {
        let name = write(&cluster, BOB, &format!("f{n}"), n, MIB);
        data(n, MIB).assert_in(&cluster.mnt(&name));
    }
    write_file(&cluster.mnt("roots"), data(3, MIB));
    assert_eq!(shown(&cluster, BOB), None);
    assert!(child.try_wait().expect("wait").is_none(), "not held back");
    child.kill().expect("kill");
    child.wait().expect("wait");
    let status = cluster.status();
    assert_eq!(status["errors_total"], 0, "{status}");
}
