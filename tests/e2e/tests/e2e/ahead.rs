//! Files that come in before a program asks for them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_testkit::{Cluster, Pattern, as_user, needs_root, pattern, wait_until, write_file};
use serde_json::Value;

const FILE_BYTES: u64 = 20_000;

fn data(n: u64) -> Pattern {
    pattern(n, FILE_BYTES as usize)
}

fn name(n: u64) -> String {
    format!("d/{n:04}.bin")
}

/// A burst buffer in front of a folder with so many files.
fn with_files(count: u64, config: &str) -> Cluster {
    let cluster = Cluster::builder().dram("256MiB").config(config).up();
    fs::create_dir(cluster.pfs("d")).expect("mkdir");
    for n in 0..count {
        write_file(&cluster.pfs(name(n)), data(n));
    }
    cluster
}

fn ahead(cluster: &Cluster, field: &str) -> u64 {
    let status = cluster.status();
    let value = &status["ahead"][field];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{field}: {status}"))
}

fn read(cluster: &Cluster, n: u64) {
    data(n).assert_in(&cluster.mnt(name(n)));
}

fn is_here(cluster: &Cluster, n: u64) -> bool {
    cluster.where_state(name(n)) == "clean"
}

/// In an order that nobody could guess.
fn mixed(count: u64) -> Vec<u64> {
    (0..count).map(|n| (n * 37 + 11) % count).collect()
}

fn list(cluster: &Cluster, files: &[u64], more: &str) -> PathBuf {
    let at = cluster.base().join("list");
    let line = |n: &u64| format!("{}\n", cluster.mnt(name(*n)).display());
    let lines: String = files.iter().map(line).collect();
    fs::write(&at, lines + more).expect("write");
    at
}

#[test]
fn command_prefetch_list_brings_files_in_ahead_of_who_reads_them_in_that_order() {
    let cluster = with_files(60, "[engine]\nread_ahead = \"0%\"");
    let order = mixed(60);
    let gone = format!("{}\n", cluster.mnt("d/nothing").display());
    let list = list(&cluster, &order, &gone);
    let list = list.to_str().expect("UTF-8");
    let said = cluster.cli(&["prefetch", "--list", list]);
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.stderr.contains("d/nothing"), "{said:?}");
    assert!(said.stdout.contains("60 files"), "{said:?}");
    wait_until("all are there", || {
        ahead(&cluster, "unread_bytes") == 60 * FILE_BYTES
    });
    assert_eq!(ahead(&cluster, "lists"), 1);
    order.iter().for_each(|n| read(&cluster, *n));
    wait_until("the list ends", || ahead(&cluster, "lists") == 0);
    assert_eq!(ahead(&cluster, "hit_bytes"), 60 * FILE_BYTES);
    assert_eq!(ahead(&cluster, "unread_bytes"), 0);
    let movements = cluster.status()["movements"].clone();
    assert_eq!(movements, Value::Array(Vec::new()));
}

#[test]
fn command_prefetch_list_ends_with_what_can_be_read_of_it() {
    let cluster = with_files(8, "[engine]\nread_ahead = \"0%\"");
    // Some are named twice, one goes, one is here before, and two lists have the same.
    cluster.on_path(&["stage-in"], name(2)).ok();
    let order: Vec<u64> = (0..8).chain(0..4).collect();
    let list = list(&cluster, &order, "");
    let list = list.to_str().expect("UTF-8");
    cluster.cli(&["prefetch", "--list", list]).ok();
    cluster.cli(&["prefetch", "--list", list]).ok();
    let others = 7 * FILE_BYTES;
    wait_until("all are there", || {
        ahead(&cluster, "unread_bytes") == others
    });
    fs::remove_file(cluster.mnt(name(5))).expect("unlink");
    for n in (0..8).filter(|n| *n != 5) {
        read(&cluster, n);
    }
    // What has lost its name goes when it is collected.
    wait_until("all else is read", || ahead(&cluster, "unread_bytes") == 0);
    wait_until("the lists end", || ahead(&cluster, "lists") == 0);
    assert_eq!(ahead(&cluster, "hit_bytes"), others - FILE_BYTES);
    assert_eq!(ahead(&cluster, "wasted_bytes"), FILE_BYTES);
    // More than a list may have is refused, and said.
    let lines: Vec<u64> = vec![0; 4097];
    let long = self::list(&cluster, &lines, "");
    let said = cluster.cli(&["prefetch", "--list", long.to_str().expect("UTF-8")]);
    assert!(
        said.code == 1 && said.stderr.contains("4096 at most"),
        "{said:?}"
    );
}

#[test]
fn command_prefetch_list_brings_nobody_files_that_others_may_not_read() {
    if needs_root() {
        return;
    }
    let cluster = with_files(2, "");
    let order = [0, 1];
    let list = list(&cluster, &order, "");
    fs::set_permissions(
        cluster.pfs(name(1)),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .expect("chmod");
    let program = forebay_testkit::program_for_everybody(cluster.base());
    let said = as_user(12_345, || {
        let mut command = std::process::Command::new(program);
        command.arg("prefetch").arg("--list").arg(list);
        command.output().expect("forebay")
    });
    let stderr = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.contains(&name(1)) && !stderr.contains(&name(0)),
        "{stderr}"
    );
    wait_until("the other one", || is_here(&cluster, 0));
    assert!(!is_here(&cluster, 1));
}

#[test]
fn promise_9_what_follows_in_a_folder_is_there_before_it_is_asked_for() {
    let cluster = with_files(400, "");
    for n in 100..110 {
        read(&cluster, n);
    }
    wait_until("what follows", || is_here(&cluster, 118));
    assert!(!is_here(&cluster, 99) && !is_here(&cluster, 300));
    // The streak began in the midst of the folder.
    (0..12).for_each(|n| assert!(!is_here(&cluster, n), "{n}"));
    // A program that goes on meets them, and is followed.
    for n in 110..160 {
        wait_until("the next one", || is_here(&cluster, n));
        read(&cluster, n);
    }
    let hits = ahead(&cluster, "hit_bytes");
    assert!(hits >= 40 * FILE_BYTES, "{hits}");
    assert_eq!(ahead(&cluster, "wasted_bytes"), 0);
    // What somebody changes on the PFS shows, as of any copy.
    wait_until("one more", || is_here(&cluster, 165));
    write_file(&cluster.pfs(name(165)), data(7));
    let changed = || fs::read(cluster.mnt(name(165))).is_ok_and(|found| found == data(7).bytes());
    wait_until("the change shows", changed);
}

#[test]
fn promise_9_a_folder_that_is_read_in_no_order_is_there_for_the_second_time() {
    let cluster = with_files(400, "");
    let order = mixed(400);
    order.iter().for_each(|n| read(&cluster, *n));
    wait_until("all of it", || cluster.status()["files"] == 400);
    assert_eq!(ahead(&cluster, "wasted_bytes"), 0);
    let guessed = ahead(&cluster, "guessed_bytes");
    order.iter().for_each(|n| read(&cluster, *n));
    assert_eq!(ahead(&cluster, "guessed_bytes"), guessed);
}

#[test]
fn promise_9_few_files_and_a_share_of_nothing_are_no_reason_to_guess() {
    let cluster = with_files(200, "[engine]\nread_ahead = \"0%\"");
    (0..50).for_each(|n| read(&cluster, n));
    assert_eq!(ahead(&cluster, "guessed_bytes"), 0);
    let cluster = with_files(1000, "");
    mixed(1000)[..20].iter().for_each(|n| read(&cluster, *n));
    // The reader of opens has been there since: it has seen this folder.
    fs::create_dir(cluster.pfs("e")).expect("mkdir");
    for n in 0..40 {
        fs::write(cluster.pfs(format!("e/{n:03}")), b"more").expect("write");
    }
    (0..10).for_each(|n| {
        fs::read(cluster.mnt(format!("e/{n:03}"))).expect("read");
    });
    wait_until("that is read ahead", || {
        ahead(&cluster, "guessed_bytes") > 0
    });
    let files = cluster.status()["files"].as_u64();
    assert!(files <= Some(40), "{files:?} of d, too");
}

fn runs(cluster: &Cluster) -> Value {
    cluster.status()["ahead"]["runs"].clone()
}

#[test]
fn promise_9_what_is_read_every_so_often_is_there_before_the_next_run() {
    const FILES: u64 = 4;
    let cluster = with_files(FILES, "");
    let run = || (0..FILES).for_each(|n| read(&cluster, n));
    let all_are_here = || (0..FILES).all(|n| is_here(&cluster, n));
    // Reads them every three seconds, until they are there before that; how often.
    let until_they_are_there = || {
        for rounds in 0..20 {
            if all_are_here() {
                return rounds;
            }
            run();
            cluster.on_path(&["release"], "d").ok();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(3) && !all_are_here() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        panic!("{}", runs(&cluster));
    };
    assert!(until_they_are_there() >= 2, "one is no reason");
    let known = runs(&cluster);
    assert_eq!(
        known["next"][0]["path"],
        cluster.mnt("d").to_str().expect("UTF-8"),
        "{known}"
    );
    let bytes = |field: &str| runs(&cluster)[field].as_u64().expect("bytes");
    run();
    wait_until("it was right", || bytes("hit_bytes") >= FILES * FILE_BYTES);
    cluster.on_path(&["release"], "d").ok();
    let before = bytes("wasted_bytes");
    until_they_are_there();
    // Nobody comes for them.
    wait_until("they are given up", || {
        bytes("wasted_bytes") >= before + FILES * FILE_BYTES
    });
    assert_eq!(ahead(&cluster, "unread_bytes"), 0);
}
