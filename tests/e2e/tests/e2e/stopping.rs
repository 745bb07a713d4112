//! Promise 8: stopping is safe.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use forebay_testkit::{
    Cluster, LONG, listing, needs_root, pattern, run_bounded, snapshot, wait_until, write_file,
};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::{Pid, Signal, kill_process};

const MIB: usize = 1 << 20;

#[test]
fn promise_8_down_with_drain_leaves_all_on_the_pfs_and_nothing_mounted() {
    let cluster = Cluster::builder().lazy().ssd("64MiB").up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    for at in 0..10 {
        write_file(&cluster.mnt(format!("d/f{at}")), pattern(1000 + at, MIB));
    }
    let output = cluster.down(&["--drain", "--json"]);
    assert_eq!(output.json()["outcome"], "stopped");
    assert_eq!(output.json()["undrained_bytes"], 0);
    for at in 0..10 {
        pattern(1000 + at, MIB).assert_in(&cluster.pfs(format!("d/f{at}")));
    }
    assert_eq!(listing(&cluster.pfs("")), ["d"]);
    assert_eq!(cluster.mounts(), Vec::<String>::new());
    cluster.on_state(&["fsck"]).ok();
    assert_eq!(
        cluster.mounts(),
        Vec::<String>::new(),
        "fsck leaves nothing"
    );
}

#[test]
fn promise_8_down_without_drain_says_what_is_left_and_the_next_up_drains_it() {
    let mut cluster = Cluster::builder()
        .ssd("64MiB")
        .config("[demotion]\nidle_after = \"2s\"")
        .up();
    write_file(&cluster.mnt("f"), pattern(1010, 3 * MIB));
    let output = cluster.down(&[]);
    assert!(output.stdout.contains("not yet on the PFS"), "{output:?}");
    assert!(!cluster.pfs("f").exists());
    cluster.start();
    cluster.wait_state("f", "clean");
    pattern(1010, 3 * MIB).assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_8_down_says_what_is_left_of_files_that_are_still_open() {
    let mut cluster = Cluster::builder().lazy().up();
    let file = File::create(cluster.mnt("f")).expect("create");
    pattern(1015, 3 * MIB).write(&file);
    let output = cluster.down(&[]);
    drop(file);
    assert!(output.stdout.contains("not yet on the PFS"), "{output:?}");
    cluster.start();
    pattern(1015, 3 * MIB).assert_in(&cluster.mnt("f"));
}

#[test]
fn promise_8_kill_9_loses_nothing_that_was_closed_or_fsynced() {
    let builder = || Cluster::builder().lazy().flag("--durability=memory");
    for builder in [builder(), builder().flag("--no-passthrough")] {
        let mut cluster = builder.up();
        for at in 0..20 {
            write_file(&cluster.mnt(format!("f{at}")), pattern(1020 + at, 300_000));
        }
        let open = File::create(cluster.mnt("open")).expect("create");
        pattern(1040, 2 * MIB).write(&open);
        open.sync_all().expect("fsync");
        cluster.kill9();
        drop(open);
        cluster.start();
        for at in 0..20 {
            pattern(1020 + at, 300_000).assert_in(&cluster.mnt(format!("f{at}")));
        }
        pattern(1040, 2 * MIB).assert_in(&cluster.mnt("open"));
        cluster.down(&["--drain"]);
        for at in 0..20 {
            pattern(1020 + at, 300_000).assert_in(&cluster.pfs(format!("f{at}")));
        }
        pattern(1040, 2 * MIB).assert_in(&cluster.pfs("open"));
    }
}

#[test]
fn promise_8_the_next_up_finds_the_whole_tree_again() {
    let mut cluster = Cluster::builder().lazy().up();
    fs::create_dir_all(cluster.mnt("a/b")).expect("mkdir");
    for (at, name) in ["a/one", "a/two", "a/b/three", "a/gone", "old"]
        .iter()
        .enumerate()
    {
        write_file(&cluster.mnt(name), pattern(1050 + at as u64, 7000));
    }
    cluster.drain("a/two");
    fs::rename(cluster.mnt("old"), cluster.mnt("a/b/new")).expect("rename");
    fs::rename(cluster.mnt("a/two"), cluster.mnt("two")).expect("rename");
    fs::rename(cluster.mnt("a/b"), cluster.mnt("c")).expect("rename");
    fs::hard_link(cluster.mnt("a/one"), cluster.mnt("c/too")).expect("link");
    fs::remove_file(cluster.mnt("a/gone")).expect("unlink");
    fs::set_permissions(cluster.mnt("a/one"), PermissionsExt::from_mode(0o600)).expect("chmod");
    setxattr(cluster.mnt("c/new"), "user.x", b"y", XattrFlags::empty()).expect("setxattr");
    let before = snapshot(&cluster.mnt(""));
    cluster.restart();
    assert_eq!(snapshot(&cluster.mnt("")), before);
    let mut value = [0; 8];
    let len = getxattr(cluster.mnt("c/new"), "user.x", &mut value).expect("getxattr");
    assert_eq!(&value[..len], b"y");
    cluster.down(&["--drain"]);
    assert_eq!(snapshot(&cluster.pfs("")), before);
    cluster.start();
    assert_eq!(snapshot(&cluster.mnt("")), before);
}

#[test]
fn promise_8_a_drain_under_way_when_it_was_killed_is_finished() {
    let mut cluster = Cluster::builder().eager().up();
    let content = pattern(1060, 48 * MIB);
    write_file(&cluster.mnt("f"), content);
    wait_until("a copy is under way", || {
        !listing(&cluster.pfs("")).is_empty()
    });
    cluster.restart();
    cluster.wait_state("f", "clean");
    content.assert_in(&cluster.pfs("f"));
    assert_eq!(listing(&cluster.pfs("")), ["f"]);
}

#[test]
fn promise_8_down_keeps_its_deadline_names_what_is_left_and_goes_on() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().eager().loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(1 << 20);
    write_file(&cluster.mnt("f"), pattern(1070, 8 * MIB));
    let flags = ["down", "--drain", "--timeout", "1s", "--json"];
    let output = cluster.on_state(&flags).expect_code(4);
    assert!(
        output.stderr.contains("left: ") && output.stderr.contains("/f\n"),
        "{output:?}"
    );
    assert_eq!(output.json()["outcome"], "timed-out");
    pattern(1070, 8 * MIB).assert_in(&cluster.mnt("f"));
    assert_eq!(cluster.ended(), None);
    fs::remove_file(ballast).expect("remove");
    cluster.down(&["--drain", "--timeout", "60s"]);
    pattern(1070, 8 * MIB).assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_8_down_with_drain_says_so_if_it_died_or_was_stopped_before_all_was_there() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().eager().loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(1 << 20);
    write_file(&cluster.mnt("f"), pattern(1075, 8 * MIB));
    // The drain cannot end by itself.
    let under_way = |cluster: &Cluster, flags: &[&str], stop: &dyn Fn()| {
        let begin = ["down", "--drain", "--timeout", "60s"];
        let flags = [&begin[..], flags].concat();
        std::thread::scope(|scope| {
            let down = scope.spawn(|| cluster.on_state(&flags));
            wait_until("the drain fails", || {
                let status = cluster.status();
                status["errors"].as_array().is_some_and(|e| !e.is_empty())
            });
            std::thread::sleep(std::time::Duration::from_millis(500));
            stop();
            down.join().expect("thread")
        })
    };
    let output = under_way(&cluster, &[], &|| cluster.kill9()).expect_code(1);
    assert!(output.stderr.contains("has died"), "{output:?}");
    assert!(output.stderr.contains("1 file (8.0 MiB)"), "{output:?}");
    assert!(!output.stdout.contains("all data"), "{output:?}");
    cluster.start();
    let output = under_way(&cluster, &["--json"], &|| {
        kill_process(cluster.pid(), Signal::TERM).expect("terminate");
    });
    let output = output.expect_code(3);
    assert!(
        output.stderr.contains("before all was drained"),
        "{output:?}"
    );
    assert_eq!(output.json()["undrained_files"], 1);
    fs::remove_file(ballast).expect("remove");
    cluster.start();
    cluster.down(&["--drain", "--timeout", "60s"]);
    pattern(1075, 8 * MIB).assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_8_down_does_not_wait_for_programs_that_use_the_mount() {
    let mut cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(1080, 1000));
    let open = File::open(cluster.mnt("f")).expect("open");
    let mut sleeper = Command::new("sleep")
        .arg("60")
        .current_dir(cluster.mnt(""))
        .spawn()
        .expect("sleep");
    cluster.down(&[]);
    let gone = cluster.mounts().iter().all(|line| !line.contains("/mnt "));
    sleeper.kill().expect("kill");
    sleeper.wait().expect("wait");
    drop(open);
    assert!(gone, "still mounted: {:?}", cluster.mounts());
    cluster.start();
    pattern(1080, 1000).assert_in(&cluster.mnt("f"));
}

#[test]
fn promise_8_an_unmount_from_outside_ends_it_in_order() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().lazy().ssd("64MiB").up();
    write_file(&cluster.mnt("f"), pattern(1090, 100_000));
    // What another test starts has all that this process has open until it is another program.
    wait_until("nobody has it", || {
        let done = run_bounded(Command::new("umount").arg(cluster.mnt("")), LONG);
        done.code == 0 || !done.stderr.contains("busy")
    });
    assert_eq!(cluster.wait_ended(), 0);
    cluster.start();
    pattern(1090, 100_000).assert_in(&cluster.mnt("f"));
    cluster.down(&["--drain"]);
    pattern(1090, 100_000).assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_8_a_detached_one_is_stopped_the_same_way() {
    let cluster = Cluster::builder().eager().prepare();
    up_detached(&cluster);
    write_file(&cluster.mnt("f"), pattern(1095, 1000));
    assert!(cluster.state().join("forebay.pid").exists());
    assert!(cluster.state().join("forebay.log").exists());
    cluster.on_state(&["down", "--drain"]).ok();
    pattern(1095, 1000).assert_in(&cluster.pfs("f"));
    assert!(!cluster.state().join("forebay.pid").exists());
    assert_eq!(cluster.mounts(), Vec::<String>::new());
}

#[test]
fn promise_8_what_the_caller_has_open_a_detached_one_has_not() {
    let cluster = Cluster::builder().eager().prepare();
    let log = cluster.base().join("callers-log");
    let mut caller = std::process::Command::new("sh");
    caller
        .args(["-c", "exec 9>>\"$0\" && exec \"$@\""])
        .arg(&log)
        .arg(forebay_testkit::bare_command().get_program())
        .args(cluster.up_args())
        .arg("--detach");
    forebay_testkit::run_bounded(&mut caller, forebay_testkit::LONG).ok();
    let pid = fs::read_to_string(cluster.state().join("forebay.pid")).expect("pid");
    let open = format!("/proc/{}/fd", pid.trim());
    let open: Vec<_> = fs::read_dir(open)
        .expect("descriptors")
        .filter_map(|entry| fs::read_link(entry.expect("entry").path()).ok())
        .collect();
    assert!(log.exists() && open.len() > 3, "{open:?}");
    assert!(!open.contains(&log), "{open:?}");
    cluster.on_state(&["down"]).ok();
}

#[test]
fn promise_8_data_whose_directory_is_gone_is_undrained_until_fsck_puts_it_on_the_pfs() {
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    fs::create_dir_all(cluster.mnt("kept/gone")).expect("mkdir");
    write_file(&cluster.mnt("kept/gone/f"), pattern(850, 1000));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    fs::set_permissions(cluster.mnt("kept/gone/f"), mode).expect("chmod");
    cluster.down(&[]);
    fs::remove_dir_all(cluster.pfs("kept/gone")).expect("remove");
    cluster.start();
    assert_eq!(cluster.status()["drain"]["queued_files"], 1);
    let output = cluster.on_state(&["down", "--drain", "--timeout", "1s"]);
    assert_eq!(output.code, 4, "{output:?}");
    assert!(output.stderr.contains("1 file"), "{output:?}");
    let named = format!("left: {}", cluster.mnt("kept/gone/f").display());
    assert!(output.stderr.contains(&named), "{output:?}");
    for command in [&["stage-out", "--wait"][..], &["where"]] {
        let output = cluster.on_path(command, "").expect_code(3);
        assert!(output.stderr.contains("kept/gone/f: not on"), "{output:?}");
    }
    let would = cluster.on_state(&["fsck", "--dry-run"]).expect_code(3);
    let named = "its data is put on the PFS as f.forebay-recovered-";
    assert!(would.stdout.contains(named), "{would:?}");
    let report = cluster.on_state(&["fsck", "--json"]).ok().json();
    let finding = &report["findings"][0];
    assert_eq!(finding["kind"], "directory-unknown", "{report}");
    let entries = fs::read_dir(cluster.pfs("kept")).expect("list");
    let entries: Vec<_> = entries.map(|e| e.expect("entry").path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    let name = entries[0].file_name().expect("name").to_string_lossy();
    assert!(name.starts_with("f.forebay-recovered-"), "{name}");
    assert!(
        finding["action"]
            .as_str()
            .is_some_and(|said| said.contains(&*name)),
        "{report}"
    );
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&entries[0]).expect("there"));
    assert_eq!(mode & 0o7777, 0o640);
    pattern(850, 1000).assert_in(&entries[0]);
    cluster.down(&["--drain"]);
}

/// Starts it detached, without what its environment was to be.
fn up_detached(cluster: &Cluster) {
    let mut args = cluster.up_args().to_vec();
    args.push("--detach".into());
    cluster.cli(&args).ok();
}

#[test]
fn promise_8_sighup_opens_the_log_again_and_user_signals_are_ignored() {
    let cluster = Cluster::builder().eager().prepare();
    up_detached(&cluster);
    let text = fs::read_to_string(cluster.state().join("forebay.pid")).expect("pid");
    let pid = Pid::from_raw(text.trim().parse().expect("number")).expect("not 0");
    let (log, kept) = ("forebay.log", "forebay.log.kept");
    fs::rename(cluster.state().join(log), cluster.state().join(kept)).expect("rename");
    for signal in [Signal::USR1, Signal::USR2, Signal::HUP] {
        kill_process(pid, signal).expect("kill");
    }
    wait_until("there is a new log", || {
        let text = fs::read_to_string(cluster.state().join(log)).unwrap_or_default();
        text.contains("opened again")
    });
    write_file(&cluster.mnt("f"), pattern(1096, 1000));
    cluster.on_state(&["down", "--drain"]).ok();
    let text = fs::read_to_string(cluster.state().join(log)).expect("log");
    assert!(text.contains("all data is on the PFS"), "{text}");
    pattern(1096, 1000).assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_8_a_thread_that_dies_ends_the_burst_buffer_in_order_and_nothing_is_lost() {
    // A demoter, and a thread that serves requests.
    for (point, named) in [("DemoteCopied", "fb-demote-"), ("RenameBuffer", "fuser-")] {
        let builder = Cluster::builder().lazy().ssd("64MiB");
        let failpoint = format!("{point}:1:panic");
        let cluster = builder.environment("FOREBAY_FAILPOINT", failpoint).up();
        write_file(&cluster.mnt("f"), pattern(1097, 300_000));
        write_file(&cluster.mnt("g"), pattern(1098, 300_000));
        // The one that brings it about gets an answer, whatever it is.
        let _ = fs::rename(cluster.mnt("f"), cluster.mnt("h"));
        if cluster.ended().is_none() {
            let _ = cluster.on_path(&["stage-out"], "");
        }
        assert_eq!(cluster.wait_ended(), 1);
        let text = fs::read_to_string(cluster.base().join("up.log")).expect("log");
        assert!(
            text.contains("ends, and what is not on the PFS yet"),
            "{text}"
        );
        assert!(text.contains(named) && text.contains(point), "{text}");
        let left = cluster.mounts().iter().any(|line| line.contains("/mnt "));
        assert!(!left, "a dead mount: {:?}", cluster.mounts());
        up_detached(&cluster);
        let names = listing(&cluster.mnt(""));
        assert!(names == ["f", "g"] || names == ["g", "h"], "{names:?}");
        cluster.on_state(&["down", "--drain"]).ok();
        let first = names.iter().find(|name| *name != "g").expect("two");
        pattern(1097, 300_000).assert_in(&cluster.pfs(first));
        pattern(1098, 300_000).assert_in(&cluster.pfs("g"));
    }
}

/// A program has the mount open after it has left the tree, and writes at about the time when what
/// is left is counted.
#[test]
fn promise_8_what_is_written_after_the_unmount_is_counted_or_refused() {
    for round in 0..16 {
        let builder = Cluster::builder().dram("32MiB").flag("--no-passthrough");
        let cluster = builder.up();
        fs::write(cluster.mnt("f"), "00").expect("write");
        cluster.drain("f");
        let file = OpenOptions::new().write(true).open(cluster.mnt("f"));
        let file = file.expect("open");
        let root = cluster.mnt("");
        let written = std::thread::scope(|scope| {
            let writes = scope.spawn(move || {
                while fs::metadata(root.join("f")).is_ok() {
                    std::thread::sleep(Duration::from_micros(200));
                }
                std::thread::sleep(Duration::from_millis(10 * round));
                let written = file.write_all_at(b"11", 0).is_ok();
                // A drain waits for who has written.
                drop(file);
                written
            });
            let output = cluster.on_state(&["down", "--drain"]);
            let written = writes.join().expect("thread");
            assert!([0, 3].contains(&output.code), "{output:?}");
            written && output.code == 0
        });
        cluster.wait_ended();
        if written {
            let found = fs::read_to_string(cluster.pfs("f")).expect("read");
            assert_eq!(found, "11", "round {round}");
        }
    }
}

/// What docs/operations.md says under "Upgrade".
#[test]
fn a_drained_flash_directory_that_was_taken_out_of_use_serves_a_new_state_folder() {
    let mut cluster = Cluster::builder().ssd("64MiB").up();
    write_file(&cluster.mnt("f"), pattern(1990, MIB));
    assert!(
        cluster
            .down(&["--drain"])
            .stdout
            .contains("all data is on the PFS")
    );
    cluster.on_state(&["fsck", "--dry-run"]).ok();
    fs::rename(cluster.state(), cluster.base().join("old")).expect("rename");
    let refused = cluster.cli(cluster.up_args()).expect_code(1);
    let why = "start with the state folder it was first used with, or give another directory";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    fs::create_dir(cluster.ssd().join("lost+found")).expect("mkdir");
    write_file(&cluster.ssd().join("lost+found/kept"), pattern(1991, 100));
    fs::remove_dir_all(cluster.ssd().join("objects")).expect("remove");
    fs::remove_file(cluster.ssd().join("forebay-tier")).expect("remove");
    cluster.start();
    pattern(1990, MIB).assert_in(&cluster.mnt("f"));
    write_file(&cluster.mnt("g"), pattern(1992, MIB));
    cluster.down(&["--drain"]);
    pattern(1992, MIB).assert_in(&cluster.pfs("g"));
    pattern(1991, 100).assert_in(&cluster.ssd().join("lost+found/kept"));
}

/// Processes that end the mount of this process if it is killed.
fn aborters(of: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_one = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("(fb-abort)") && stat.contains(&format!(") S {of} "))
    };
    pids.filter(is_one).collect()
}

#[test]
fn a_mount_ends_when_the_process_that_is_watched_dies() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().dram("64MiB").up();
    let point = cluster.mnt("");
    let daemon = cluster.pid().as_raw_pid() as u32;
    wait_until("the mount is watched", || aborters(daemon).len() == 1);
    let own = aborters(daemon)[0];
    // The kernel's file, or none where the mount is found by its path.
    let line = fs::read(format!("/proc/{own}/cmdline")).expect("its command line");
    let words: Vec<_> = line.split(|byte| *byte == 0).collect();
    let identity = String::from_utf8(words[3].to_vec()).expect("numbers");
    let abort = OpenOptions::new()
        .write(true)
        .open(format!("/proc/{own}/fd/0"))
        .expect("its standard input");
    // As if the kernel held a thread of the mount: who is watched dies, and the mount does not.
    let mut watched = Command::new("bash")
        .args([
            "-c",
            r#"(exec -a forebay-abort "$0" $$ "$1" "$2") <&0 & wait"#,
        ])
        .args([forebay_testkit::program(), &point])
        .arg(&identity)
        .stdin(abort)
        .spawn()
        .expect("bash");
    let bash = watched.id();
    wait_until("bash is watched", || aborters(bash).len() == 1);
    let other = Pid::from_raw(aborters(bash)[0] as i32).expect("a pid");
    // Others send signals, too.
    kill_process(other, Signal::TERM).expect("kill");
    std::thread::sleep(Duration::from_millis(100));
    assert!(fs::metadata(&point).is_ok(), "the mount was ended");
    watched.kill().expect("kill");
    watched.wait().expect("wait");
    // Its connection has gone, so it has, too.
    cluster.wait_ended();
    let own = format!("/proc/{own}");
    wait_until("nobody watches", || !std::path::Path::new(&own).exists());
}
