//! The commands that show and move files: what they do and their exit codes.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_testkit::{
    Cluster, LONG, Output, bare_command, needs_root, pattern, run_bounded, wait_until,
    wait_until_for, write_file,
};
use rustix::fs::{XattrFlags, setxattr};

use crate::bad_input::changed;

#[test]
fn command_where_knows_applications_and_versions_from_paths_alone() {
    let cluster = Cluster::builder().up();
    for (path, application, version) in [
        ("run/ckpt-000120/rank-3", "run/ckpt-{version}", 120),
        ("run/chk00020", "run/chk{version}", 20),
        (
            "run/epoch=3-step=1200.ckpt",
            "run/epoch={n}-step={version}.ckpt",
            1200,
        ),
        ("run/restart.0001.h5", "run/restart.{version}.h5", 1),
        (
            "run/global_step1200/mp_rank_00.pt",
            "run/global_step{version}",
            1200,
        ),
    ] {
        let path = std::path::Path::new(path);
        fs::create_dir_all(cluster.mnt(path.parent().expect("parent"))).expect("mkdir");
        write_file(&cluster.mnt(path), pattern(1100, 1000));
        let entry = cluster.where_is(path);
        assert_eq!(entry["application"], application);
        assert_eq!(entry["version"], version, "{entry}");
        assert_eq!(entry["size_bytes"], 1000);
        assert_eq!(entry["path"], cluster.mnt(path).to_str().expect("UTF-8"));
    }
}

#[test]
fn command_where_takes_a_source_tree_for_one_application() {
    let cluster = Cluster::builder().lazy().up();
    for dir in [
        "",
        "/core",
        "/core/detail",
        "/drivers/net/ethernet",
        "/tests",
    ] {
        let dir = format!("me/project{dir}");
        fs::create_dir_all(cluster.mnt(&dir)).expect("mkdir");
        for name in ["Makefile", "sha256.c", "x86_64.S"] {
            write_file(&cluster.mnt(format!("{dir}/{name}")), pattern(1160, 10));
        }
    }
    let list = cluster.on_path(&["where", "--json"], "me").ok().json();
    let list = list.as_array().expect("a list");
    assert_eq!(list.len(), 15);
    for entry in list {
        assert_eq!(entry["application"], "me/project", "{entry}");
    }
}

#[test]
fn command_where_follows_rules_and_attributes_before_paths() {
    let rule = "[[rule]]\npath = \"/*/{app}/s{version}-of-*/**\"\n";
    let cluster = Cluster::builder().config(rule).lazy().up();
    fs::create_dir_all(cluster.mnt("u/climate/s0042-of-9")).expect("mkdir");
    write_file(&cluster.mnt("u/climate/s0042-of-9/f"), pattern(1150, 1000));
    let entry = cluster.where_is("u/climate/s0042-of-9/f");
    assert_eq!(entry["application"], "climate");
    assert_eq!(entry["version"], 42);
    let named = cluster.mnt("u/climate/s0042-of-9/f");
    setxattr(&named, "user.forebay.app", b"weather", XattrFlags::empty()).expect("setxattr");
    setxattr(&named, "user.forebay.version", b"7", XattrFlags::empty()).expect("setxattr");
    let entry = cluster.where_is("u/climate/s0042-of-9/f");
    assert_eq!(entry["application"], "weather");
    assert_eq!(entry["version"], 7);
}

#[test]
fn command_stage_in_brings_files_in_and_release_lets_them_go() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir_all(cluster.pfs("d/sub")).expect("mkdir");
    for (at, name) in ["d/a", "d/sub/b", "d/sub/c"].into_iter().enumerate() {
        write_file(&cluster.pfs(name), pattern(1110 + at as u64, 100_000));
    }
    let output = cluster.on_path(&["stage-in", "--json"], "d").ok();
    assert_eq!(output.json()["files_done"], 3, "{output:?}");
    let list = cluster.on_path(&["where", "--json"], "d").ok().json();
    for (at, name) in ["d/a", "d/sub/b", "d/sub/c"].into_iter().enumerate() {
        assert_eq!(list[at]["state"], "clean");
        assert_eq!(list[at]["tiers"], serde_json::json!(["dram", "pfs"]));
        pattern(1110 + at as u64, 100_000).assert_in(&cluster.mnt(name));
    }
    let output = cluster.on_path(&["release", "--json"], "d").ok();
    assert_eq!(output.json()["bytes_done"], 300_000, "{output:?}");
    assert_eq!(cluster.where_state("d/sub/b"), "pfs");
    wait_until("the space is given back", || {
        cluster.status()["tiers"][0]["used_bytes"] == 0
    });
    pattern(1111, 100_000).assert_in(&cluster.mnt("d/sub/b"));
    // What has several names stays.
    fs::create_dir(cluster.pfs("l")).expect("mkdir");
    write_file(&cluster.pfs("l/one"), pattern(1113, 100_000));
    fs::hard_link(cluster.pfs("l/one"), cluster.pfs("l/two")).expect("link");
    let output = cluster.on_path(&["stage-in", "--json"], "l").ok();
    assert_eq!(output.json()["bytes_done"], 0, "{output:?}");
    assert_eq!(cluster.where_state("l/one"), "pfs");
    pattern(1113, 100_000).assert_in(&cluster.mnt("l/two"));
}

#[test]
fn command_prefetch_brings_files_to_memory() {
    let cluster = Cluster::builder().lazy().ssd("64MiB").up();
    write_file(&cluster.pfs("cold"), pattern(1120, 100_000));
    let file = fs::File::create(cluster.mnt("flash")).expect("create");
    pattern(1121, 100_000).write(&file);
    file.sync_all().expect("fsync");
    drop(file);
    cluster.drain("flash");
    assert_eq!(cluster.where_is("flash")["tiers"][0], "ssd");
    for name in ["cold", "flash"] {
        cluster.on_path(&["prefetch"], name).ok();
        assert_eq!(cluster.where_is(name)["tiers"][0], "dram", "{name}");
    }
    pattern(1120, 100_000).assert_in(&cluster.mnt("cold"));
    pattern(1121, 100_000).assert_in(&cluster.mnt("flash"));
}

#[test]
fn command_paths_that_are_links_stand_for_what_they_lead_to() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("ckpt-1")).expect("mkdir");
    write_file(&cluster.mnt("ckpt-1/rank0"), pattern(1190, 50_000));
    std::os::unix::fs::symlink("ckpt-1", cluster.mnt("latest")).expect("symlink");
    assert_eq!(cluster.where_state("latest/rank0"), "dirty");
    for latest in ["latest", "latest/"] {
        let shown = cluster.on_path(&["where"], latest).ok().stdout;
        assert!(shown.contains("rank0"), "{latest}: {shown}");
    }
    cluster.on_path(&["stage-out", "--wait"], "latest").ok();
    pattern(1190, 50_000).assert_in(&cluster.pfs("ckpt-1/rank0"));
    assert_eq!(cluster.dirty_bytes(), 0);
    // By its path on the PFS, too, where the link lies as well.
    cluster
        .cli(&["where".into(), cluster.pfs("latest").into_os_string()])
        .ok();
}

#[test]
fn command_stage_out_wait_returns_when_all_is_on_the_pfs() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir_all(cluster.mnt("d/sub")).expect("mkdir");
    for at in 0..40 {
        let name = format!("d/{}f{at}", if at % 2 == 0 { "sub/" } else { "" });
        write_file(&cluster.mnt(&name), pattern(1130 + at, 50_000));
    }
    cluster.on_path(&["stage-out", "--wait"], "d").ok();
    for at in 0..40 {
        let name = format!("d/{}f{at}", if at % 2 == 0 { "sub/" } else { "" });
        pattern(1130 + at, 50_000).assert_in(&cluster.pfs(&name));
    }
    assert_eq!(cluster.dirty_bytes(), 0);
    // Named by their path on the PFS, and from a list.
    write_file(&cluster.mnt("d/late"), pattern(1180, 10));
    write_file(&cluster.mnt("d/later"), pattern(1181, 10));
    let late = cluster.pfs("d/late");
    cluster
        .cli(&["stage-out".as_ref(), "--wait".as_ref(), late.as_os_str()])
        .ok();
    pattern(1180, 10).assert_in(&cluster.pfs("d/late"));
    let list = cluster.base().join("list");
    fs::write(&list, format!("{}\n", cluster.mnt("d/later").display())).expect("list");
    let args = [
        "stage-out",
        "--wait",
        "--from-file",
        list.to_str().expect("UTF-8"),
    ];
    cluster.cli(&args).ok();
    pattern(1181, 10).assert_in(&cluster.pfs("d/later"));
}

#[test]
fn command_json_lines_tell_programs_steps_files_and_failures() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    write_file(&cluster.mnt("d/f"), pattern(1191, 3000));
    let lines = |arguments: &[&str], code| -> Vec<serde_json::Value> {
        let stdout = cluster.cli(arguments).expect_code(code).stdout;
        let line = |line| serde_json::from_str(line).expect("each line is an object");
        stdout.lines().map(line).collect()
    };
    let folder = cluster.mnt("d").to_str().expect("UTF-8").to_string();
    let (file, missing) = (format!("{folder}/f"), format!("{folder}/missing"));
    let found = lines(&["where", "--json-lines", &folder, &missing, "/"], 3);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found[0]["path"], *file);
    assert_eq!(found[1]["failure"]["errno"], "ENOENT");
    assert_eq!(found[1]["failure"]["path"], *missing);
    assert_eq!(found[2]["failure"]["errno"], "EXDEV");
    let steps = lines(
        &["stage-out", "--wait", "--json-lines", &folder, &missing],
        3,
    );
    let (last, before) = steps.split_last().expect("lines");
    assert!(!before.is_empty(), "{last}");
    for step in before {
        assert!(step["outcome"].is_null() && step["counting"].is_boolean());
    }
    assert_eq!(
        (&last["outcome"], &last["files_done"]),
        (&"finished".into(), &1.into())
    );
    assert_eq!(last["failures"][0]["path"], *missing);
    // None leads anywhere, and nobody answers.
    for command in ["where", "stage-in"] {
        let nowhere = lines(&[command, "--json-lines", "/"], 1);
        assert!(nowhere[0].to_string().contains("EXDEV"), "{nowhere:?}");
        let none = lines(&[command, "--json-lines", "--from-file", "/dev/null"], 1);
        assert!(none[0]["fatal"]["errno"].is_null(), "{none:?}");
    }
    let state = lines(&["status", "--json-lines", "--state", "/"], 1);
    assert_eq!(state[0]["fatal"]["errno"], "ENOTCONN");
}

#[test]
fn command_exit_codes_tell_complete_fatal_and_partial() {
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(1190, 10));
    let (there, missing) = (cluster.mnt("f"), cluster.mnt("missing"));
    for command in ["where", "stage-out", "stage-in"] {
        let one = [command.as_ref(), there.as_os_str()];
        cluster.cli(&one).ok();
        let none = [command.as_ref(), missing.as_os_str()];
        let output = cluster.cli(&none).expect_code(1);
        assert!(
            output.stderr.contains("/missing: No such file"),
            "{output:?}"
        );
        let both = [command.as_ref(), there.as_os_str(), missing.as_os_str()];
        let output = cluster.cli(&both).expect_code(3);
        assert!(
            output.stderr.contains("/missing: No such file"),
            "{output:?}"
        );
    }
    cluster.cli(&["where", "/"]).expect_code(1);
    // What lies outside keeps nothing from the others.
    let there = there.to_str().expect("UTF-8");
    for command in ["where", "stage-out", "stage-in"] {
        let output = cluster.cli(&[command, "/", there]).expect_code(3);
        assert!(output.stderr.contains("/: not in a burst"), "{output:?}");
        assert!(!output.stdout.is_empty(), "{output:?}");
    }
    cluster
        .cli(&["stage-out", "--frobnicate", "/"])
        .expect_code(1);
}

#[test]
fn command_status_shows_tiers_drain_errors_and_applications() {
    let cluster = Cluster::builder().lazy().ssd("64MiB").up();
    write_file(&cluster.mnt("ckpt-0007"), pattern(1195, 2 << 20));
    let status = cluster.status();
    let names: Vec<_> = status["tiers"]
        .as_array()
        .expect("tiers")
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert_eq!(names, ["dram", "ssd", "pfs"]);
    assert_eq!(status["tiers"][0]["capacity_bytes"], 64 << 20);
    assert_eq!(status["tiers"][0]["dirty_bytes"], 2 << 20);
    assert_eq!(status["drain"]["queued_files"], 1);
    assert_eq!(status["errors"], serde_json::json!([]));
    assert_eq!(status["applications"][0]["version"], 7);
    assert_eq!(status["applications"][0]["resident_bytes"], 2 << 20);
    cluster.drain("");
    let status = cluster.status();
    assert_eq!(status["tiers"][0]["dirty_bytes"], 0);
    assert_eq!(status["demoted_bytes_total"], 2 << 20);
    assert!(status["uptime_s"].as_f64() > Some(0.0), "{status}");
}

#[test]
fn command_fsck_of_a_running_one_reports_nothing_that_comes_or_goes() {
    let cluster = Cluster::builder().up();
    for folder in ["d", "e"] {
        fs::create_dir(cluster.mnt(folder)).expect("mkdir");
    }
    for n in 0..1000 {
        fs::write(cluster.mnt(format!("e/{n}")), "content").expect("write");
    }
    cluster.drain("e");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                for n in 0..100 {
                    fs::write(cluster.mnt(format!("d/{n}")), "content").expect("write");
                }
                for n in 0..100 {
                    fs::remove_file(cluster.mnt(format!("d/{n}"))).expect("remove");
                }
            }
        });
        for round in 0..6 {
            cluster.on_path(&["stage-in"], "e").ok();
            let release = scope.spawn(|| cluster.on_path(&["release"], "e"));
            let flags: &[&str] = match round % 2 {
                0 => &["fsck"],
                _ => &["fsck", "--dry-run"],
            };
            let output = cluster.on_state(flags);
            release.join().expect("release");
            if output.code != 0 {
                done.store(true, Ordering::Release);
            }
            assert_eq!(output.code, 0, "{output:?}");
        }
        done.store(true, Ordering::Release);
    });
}

#[test]
fn command_mount_point_is_found_by_df_and_findmnt() {
    let cluster = Cluster::builder().up();
    let lines = cluster.mounts();
    let mount = lines
        .iter()
        .find(|line| line.contains("/mnt "))
        .expect("mounted");
    assert!(mount.contains(" fuse.forebay "), "{mount}");
    let mut df = std::process::Command::new("df");
    run_bounded(df.arg(cluster.mnt("")), LONG).ok();
}

#[test]
fn command_status_can_be_asked_all_the_time_under_load() {
    let cluster = Cluster::builder().dram("32MiB").eager().up();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    cluster.status();
                }
            });
        }
        for at in 0..1500_u64 {
            let path = cluster.mnt(format!("f{}", at % 40));
            write_file(&path, pattern(at, 60_000));
            if at % 3 == 0 {
                fs::remove_file(path).expect("unlink");
            }
        }
        done.store(true, std::sync::atomic::Ordering::Release);
    });
}

#[test]
fn command_policy_changes_it_while_running_and_calibrate_gives_a_plan() {
    let cluster = Cluster::builder().ssd("64MiB").up();
    let run = |args: &[&str]| {
        let output = cluster.on_state(args);
        assert_eq!(output.code, 0, "{args:?}: {}", output.stderr);
        serde_json::from_str::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let shown = run(&["policy", "--json"]);
    assert_eq!(
        (&shown["policy"], &shown["placement"]),
        (&"bbos".into(), &"bbos".into())
    );
    let changed = run(&["policy", "maxeff", "--placement", "lru", "--json"]);
    assert_eq!(
        (&changed["policy"], &changed["placement"]),
        (&"maxeff".into(), &"lru".into())
    );
    assert_eq!(cluster.status()["policy"], "maxeff");
    // On a machine that does much else tries may lie too far apart; that is said, and nothing
    // changes.
    let refused = |output: &Output| {
        let line = output.stderr.contains("no bandwidth to plan with");
        output.code == 1 && line && cluster.status()["plan"]["bandwidths"].is_null()
    };
    let mut output = cluster.on_state(&["calibrate", "--time", "200ms", "--json"]);
    while refused(&output) {
        output = cluster.on_state(&["calibrate", "--time", "200ms", "--json"]);
    }
    assert_eq!(output.code, 0, "{}", output.stderr);
    let measured: serde_json::Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert!(measured["spread"].as_f64().expect("a share") <= 0.5);
    let rate = |name: &str| measured[name].as_f64().expect("a rate");
    assert!(
        rate("bw_max_bytes_per_s") >= rate("bw_min_bytes_per_s")
            && rate("bw_min_bytes_per_s") > 0.0
    );
    assert!(
        rate("br_max_bytes_per_s") >= rate("br_min_bytes_per_s")
            && rate("br_max_bytes_per_s") > 0.0
    );
    let plan = &cluster.status()["plan"];
    assert_eq!(
        plan["bandwidths"]["bw_max_bytes_per_s"],
        measured["bw_max_bytes_per_s"]
    );
    assert_eq!(plan["why"], "always at full speed");
    let left: Vec<_> = fs::read_dir(cluster.pfs("")).expect("list").collect();
    assert!(
        left.is_empty(),
        "calibration leaves nothing behind: {left:?}"
    );
}

#[test]
fn command_calibrate_measures_alone_and_ends_with_who_asked() {
    let cluster = Cluster::builder().ssd("64MiB").up();
    let mut command = bare_command();
    let asked = command
        .args(["calibrate", "--time", "60s", "--state"])
        .arg(cluster.state());
    asked.stdout(Stdio::null()).stderr(Stdio::null());
    let mut long = asked.spawn().expect("spawn");
    let short = || cluster.on_state(&["calibrate", "--time", "100ms"]);
    let is_refused = |output: &Output| output.stderr.contains("somebody else measures");
    wait_until("the second is refused", || {
        if long.try_wait().expect("child").is_some() {
            // It came while a short one was under way.
            long = asked.spawn().expect("spawn");
        }
        is_refused(&short())
    });
    long.kill().expect("kill");
    long.wait().expect("wait");
    // Its tries would have taken minutes more.
    wait_until_for(
        Duration::from_secs(30),
        "the daemon has ended it, too",
        || !is_refused(&short()),
    );
    for wrong in ["0", "5m"] {
        let output = cluster.on_state(&["calibrate", "--time", wrong]);
        assert!(
            output.code == 1 && output.stderr.contains("100ms to 60s"),
            "{output:?}"
        );
    }
}

#[test]
fn command_where_tells_the_job_of_a_writer_where_the_path_says_nothing() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("results")).expect("mkdir");
    let write = |name: &str, job: Option<&str>| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo data > \"$0\""])
            .arg(cluster.mnt(name));
        shell.env_clear().env("PATH", "/usr/bin:/bin");
        if let Some(job) = job {
            shell.env("SLURM_JOB_ID", job);
        }
        assert!(shell.status().expect("sh").success());
        cluster.where_is(name)["application"].clone()
    };
    assert_eq!(write("results/out", Some("4711")), "slurm-4711");
    assert_eq!(write("results/other", None), "results");
    // A path that tells a version tells the application, too.
    assert_ne!(write("results/ckpt-7", Some("4711")), "slurm-4711");
}

#[test]
fn command_status_says_how_many_files_may_be_open() {
    let cluster = Cluster::builder().lazy().up();
    let most: u64 = cluster.status()["descriptors_max"]
        .as_u64()
        .expect("a limit");
    let read = |path: String| fs::read_to_string(path).expect("proc");
    let limits = read(format!("/proc/{}/limits", cluster.pid().as_raw_nonzero()));
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let words: Vec<&str> = line.expect("a limit").split_whitespace().collect();
    assert_eq!(
        words[3..5],
        [most.to_string(), most.to_string()],
        "soft and hard"
    );
    let own = read("/proc/self/status".into());
    let held = own.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let held = u64::from_str_radix(held.expect("capabilities").trim(), 16).expect("hexadecimal");
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    if held & CAP_SYS_RESOURCE != 0 {
        let allowed = read("/proc/sys/fs/nr_open".into());
        assert_eq!(most.to_string(), allowed.trim());
    }
    let file = fs::File::create(cluster.mnt("f")).expect("create");
    let status = cluster.status();
    let open = (&status["open_files"], &status["held_files"]);
    assert_eq!(open, (&1.into(), &1.into()), "{status}");
    drop(file);
    if needs_root() {
        return;
    }
    let limited = Cluster::builder().lazy().descriptors(1024).up();
    let status = limited.on_state(&["status"]).ok().stdout;
    let line = "0 open, 0 of them with a descriptor of the daemon, which may have 1024";
    assert!(status.contains(line), "{status}");
}

#[test]
fn command_status_gives_no_eta_while_retries_fail_and_shows_a_full_pfs_as_full() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().loop_pfs(64 << 20).up();
    let ballast = cluster.loop_fs().fill(0);
    write_file(&cluster.mnt("f"), pattern(560, 3 << 20));
    // It may have failed before the command ends, or not.
    cluster.on_path(&["stage-out"], "f");
    // Between two tries, which are all the time: one answer says all of it.
    wait_until("its drain fails", || {
        let status = cluster.status();
        let drain = &status["drain"];
        let failing = drain["failing_files"] == 1 && drain["next_try_s"].is_number();
        assert!(!failing || drain["eta_s"].is_null(), "{status}");
        failing && drain["rate_bytes_per_s"] == 0
    });
    wait_until("the page says so", || {
        let page = cluster.on_state(&["status"]).ok().stdout;
        page.contains("1 file failed, next try in")
    });
    let pfs = |status: &serde_json::Value| {
        let tiers = status["tiers"].as_array().expect("tiers").clone();
        let pfs = tiers.into_iter().find(|tier| tier["name"] == "pfs");
        let pfs = pfs.expect("pfs");
        let bytes = |field: &str| pfs[field].as_f64().expect("bytes");
        bytes("used_bytes") / bytes("capacity_bytes")
    };
    wait_until("the PFS is shown as full", || pfs(&cluster.status()) > 0.97);
    fs::remove_file(ballast).expect("remove");
    cluster.drain("f");
    let page = cluster.on_state(&["status"]).ok().stdout;
    assert!(page.contains("none of them still there"), "{page}");
    assert_eq!(cluster.status()["drain"]["failing_files"], 0);
}

/// What starts it reads one line and goes: the second half of the name found nobody any more, and
/// the burst buffer ended.
#[test]
fn a_mount_point_with_a_newline_in_its_name() {
    let cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    cluster.down(&[]);
    let mount = cluster.state().with_file_name("odd\nname");
    fs::create_dir(&mount).expect("mkdir");
    let mut args = changed(&cluster, "--mount", mount.to_str().expect("UTF-8"));
    args.push("--detach".into());
    let said = cluster.cli(&args);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(said.stdout.lines().count(), 1, "{said:?}");
    assert!(said.stdout.contains("odd name"), "{said:?}");
    write_file(&mount.join("f"), pattern(7, 100));
    let status = cluster.on_state(&["status", "--json"]);
    assert_eq!(status.json()["files"], 1, "{status:?}");
    let down = cluster.on_state(&["down"]);
    assert!(!mount.join("f").exists(), "{down:?}");
}
