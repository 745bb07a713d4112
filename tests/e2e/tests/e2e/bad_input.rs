//! What wrong input gets: one line that says what to do, exit 1, nothing mounted, nothing changed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::{
    Cluster, LONG, Output, needs_file, needs_root, pattern, program, program_for_everybody,
    run_bounded, snapshot, without_settings, write_file,
};

const NOBODY: u32 = 65534;

/// One line on standard error with `part`, and nothing on standard output.
#[track_caller]
pub(crate) fn assert_line(output: &Output, part: &str) {
    let context = format!("expected {part:?}: {output:?}");
    assert_eq!(output.code, 1, "{context}");
    assert_eq!(output.stderr.lines().count(), 1, "{context}");
    assert!(output.stderr.contains(part), "{context}");
    assert_eq!(output.stdout, "", "{context}");
}

/// The arguments of `up` with one flag given another value, or added.
pub(crate) fn changed(cluster: &Cluster, flag: &str, value: &str) -> Vec<OsString> {
    let mut args = cluster.up_args().to_vec();
    match args.iter().position(|arg| arg == flag) {
        Some(at) => args[at + 1] = value.into(),
        None => args.extend([flag.into(), value.into()]),
    }
    args
}

/// `up` with these arguments is refused, with and without `--detach`.
#[track_caller]
fn assert_refused(cluster: &Cluster, args: &[OsString], part: &str) {
    assert_refused_with(cluster, args, |output| assert_line(output, part));
}

/// The same after it has said that it starts.
#[track_caller]
fn assert_refused_late(cluster: &Cluster, args: &[OsString], part: &str) {
    assert_refused_with(cluster, args, |output| {
        assert_eq!(output.code, 1, "{output:?}");
        let last = output.stderr.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("forebay: ") && last.contains(part),
            "{output:?}"
        );
    });
}

#[track_caller]
fn assert_refused_with(cluster: &Cluster, args: &[OsString], check: impl Fn(&Output)) {
    let (before, mounts) = (snapshot(cluster.base()), cluster.mounts());
    check(&cluster.cli(args));
    check(&cluster.cli(&[args, &["--detach".into()]].concat()));
    assert!(
        snapshot(cluster.base()) == before,
        "{args:?}: something was left"
    );
    assert_eq!(cluster.mounts(), mounts, "{args:?}");
}

/// A burst buffer that is not started, with something on its PFS.
fn ground() -> Cluster {
    let cluster = Cluster::builder().prepare();
    fs::create_dir(cluster.pfs("sub")).expect("mkdir");
    write_file(&cluster.base().join("file"), pattern(1, 100));
    cluster
}

#[test]
fn bad_input_pfs_that_is_missing_or_a_file() {
    let cluster = ground();
    for (pfs, part) in [("none", "No such file or directory"), ("file", "is a file")] {
        assert_refused(&cluster, &changed(&cluster, "--pfs", pfs), part);
    }
}

#[test]
fn bad_input_mount_point_that_is_missing_a_file_inside_the_pfs_or_around_it() {
    let cluster = ground();
    for (mount, part) in [
        ("none", "make an empty directory for it"),
        ("file", "is a file"),
        ("pfs/sub", "lies inside the PFS"),
        ("pfs", "are the same directory"),
        (".", "lies inside the mount point"),
    ] {
        assert_refused(&cluster, &changed(&cluster, "--mount", mount), part);
    }
}

#[test]
fn bad_input_state_that_is_a_file_or_inside_the_pfs_or_has_no_parent() {
    let cluster = ground();
    for (state, part) in [
        ("file", "is a file"),
        ("pfs/sub/state", "lies inside the PFS"),
        ("none/state", "make that folder first"),
    ] {
        assert_refused(&cluster, &changed(&cluster, "--state", state), part);
    }
}

#[test]
fn bad_input_sizes_that_do_not_parse_or_do_not_fit() {
    let cluster = ground();
    for (flag, value, part) in [
        ("--dram", "4 apples", "no known unit"),
        ("--dram", "", "--dram"),
        ("--dram", "-1GiB", "'-1'"),
        ("--dram", "0", "the least is"),
        ("--dram", "900PiB", "memory available"),
        ("--ssd", "ssd:4 pears", "no known unit"),
        ("--ssd", "ssd:900PiB", "more than its file system has"),
        ("--ssd", "none", "make the directory first"),
        ("--ssd", "pfs/sub", "lies inside the PFS"),
        ("--ssd", "ssd:1GiB:2GiB", "a size is given twice"),
    ] {
        assert_refused(&cluster, &changed(&cluster, flag, value), part);
    }
}

#[test]
fn bad_input_unknown_policies_levels_and_flags() {
    let cluster = ground();
    for (flag, value, part) in [
        ("--policy", "best", "bbos, maxbw"),
        ("--durability", "disk", "memory, ssd, pfs"),
        ("--threads", "0", "threads"),
        ("--frobnicate", "x", "--frobnicate"),
    ] {
        assert_refused(&cluster, &changed(&cluster, flag, value), part);
    }
    let mut without_dram: Vec<_> = cluster.up_args()[..7].to_vec();
    without_dram.extend(["--dram".into(), "none".into()]);
    assert_refused(&cluster, &without_dram, "neither --dram");
}

#[test]
fn bad_input_configuration_with_unknown_keys_or_values() {
    let cluster = ground();
    let config = cluster.base().join("wrong.toml");
    let args = changed(&cluster, "--config", config.to_str().expect("UTF-8"));
    for (text, part) in [
        ("darm = 1\n", "line 1: unknown field `darm`"),
        ("pfs_timeout = \"0s\"\n", "pfs_timeout: 0"),
        (
            "\n[demotion]\nidel = true\n",
            "line 3: unknown field `idel`",
        ),
        ("policy = \"best\"\n", "bbos, maxbw"),
        ("[[rule]]\npath = \"ckpt/**\"\n", "must start with '/'"),
        (
            "[[rule]]\npath = \"/*/ckpt-{Version}/**\"\n",
            "rule path '/*/ckpt-{Version}/**': {Version} is no placeholder; there are {app} and {version}",
        ),
        (
            "[[rule]]\npath = \"/run/ckpt-*\"\ngroup = \"commit\"\n",
            "rule path '/run/ckpt-*': group needs {version}",
        ),
        ("dram = \n", "line 1"),
    ] {
        fs::write(&config, text).expect("configuration");
        assert_refused(&cluster, &args, part);
    }
    fs::remove_file(&config).expect("remove");
    assert_refused(&cluster, &args, "No such file or directory");
}

/// What a start has made its own it gives back when it is refused after that.
#[test]
fn bad_input_that_shows_only_when_the_tiers_are_open() {
    let cluster = ground();
    let config = cluster.base().join("share.toml");
    fs::write(
        &config,
        "policy = \"dedicated\"\n[engine]\nshare = \"900TiB\"\n",
    )
    .expect("config");
    let flash = cluster.base().join("flash");
    fs::create_dir(&flash).expect("mkdir");
    let args = changed(&cluster, "--config", config.to_str().expect("UTF-8"));
    let second = format!("{}:64MiB", flash.display());
    let with_flash = [&args[..], &["--ssd".into(), second.into()]].concat();
    assert_refused_late(&cluster, &with_flash, "[engine] share: 900.0 TiB for");

    // The second of two directories belongs to somebody else.
    let other = cluster.base().join("other");
    fs::create_dir(&other).expect("mkdir");
    let marker = "forebay tier\nversion 2\ninstance 00112233445566778899aabbccddeeff\ntier 00112233445566778899aabbccddeeff\nidentity attribute\n";
    fs::write(other.join("forebay-tier"), marker).expect("marker");
    let ssds = [&flash, &other].map(|dir| format!("{}:64MiB", dir.display()));
    let both = [
        cluster.up_args(),
        &[
            "--ssd".into(),
            (&ssds[0]).into(),
            "--ssd".into(),
            (&ssds[1]).into(),
        ],
    ]
    .concat();
    assert_refused_late(&cluster, &both, "belongs to another instance");
}

/// All is well but the mount itself: the state folder that the flash would belong to is not kept
/// either.
#[test]
fn bad_input_that_shows_only_at_the_mount() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let cluster = Cluster::builder().dram("").prepare();
    let base = cluster.base();
    program_for_everybody(base);
    for name in ["user", "user/ssd", "pfs", "mnt"] {
        fs::create_dir_all(base.join(name)).expect("mkdir");
        chown(base.join(name), Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    // Where logind runs, a start that succeeds would say what becomes of the memory.
    let line = "mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse && mount -t tmpfs run /run && \
                mkdir -p /run/systemd/system /run/systemd/seats && : > /run/systemd/seats/seat0 && \
                exec setpriv --reuid 65534 --regid 65534 --clear-groups \
                ./forebay up --pfs pfs --mount mnt --state user/state --dram 16MiB --ssd user/ssd:64MiB";
    for detach in ["", " --detach"] {
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", &format!("{line}{detach}")])
            .current_dir(base)
            .env("FUSERMOUNT_PATH", "/bin/false");
        let output = run_bounded(&mut command, LONG);
        let last = output.stderr.lines().last().unwrap_or_default();
        assert!(last.contains("cannot mount"), "{output:?}");
        assert!(!output.stderr.contains("loginctl"), "{output:?}");
        assert_eq!(output.code, 1, "{output:?}");
        assert_eq!(fs::read_dir(base.join("user/ssd")).expect("ls").count(), 0);
        assert_eq!(fs::read_dir(base.join("user")).expect("ls").count(), 1);
        fs::remove_file(base.join("fuse")).expect("remove");
    }
}

#[test]
fn bad_input_state_or_mount_point_of_a_living_instance() {
    let cluster = Cluster::builder().up();
    write_file(&cluster.mnt("f"), pattern(2, 100));
    let before = cluster.mounts();
    for (flag, value, part) in [
        ("--mount", "other", "in use by a running instance"),
        ("--state", "other", "busy: "),
    ] {
        fs::create_dir_all(cluster.base().join("other")).expect("mkdir");
        assert_line(&cluster.cli(&changed(&cluster, flag, value)), part);
        assert_eq!(cluster.mounts(), before);
    }
    assert_line(
        &cluster.cli(cluster.up_args()),
        "in use by a running instance",
    );
    pattern(2, 100).assert_in(&cluster.mnt("f"));
}

#[test]
fn bad_input_state_made_for_another_pfs() {
    let mut cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(3, 100));
    cluster.down(&[]);
    let other = cluster.base().join("other");
    fs::create_dir(&other).expect("mkdir");
    let mut args = changed(&cluster, "--pfs", other.to_str().expect("UTF-8"));
    args.push("--detach".into());
    assert_line(&cluster.cli(&args), "was made for the PFS");
    assert_eq!(fs::read_dir(&other).expect("readable").count(), 0);
    cluster.start();
    pattern(3, 100).assert_in(&cluster.mnt("f"));
}

#[test]
fn bad_input_state_that_is_somebody_elses_open_to_others_or_not_empty() {
    if needs_root() {
        return;
    }
    let cluster = ground();
    let base = cluster.base().to_path_buf();
    for name in ["theirs", "open", "full"] {
        fs::create_dir(base.join(name)).expect("mkdir");
    }
    for name in ["forebay.pid", "forebay.lock", "forebay.log"] {
        symlink("../file", base.join("theirs").join(name)).expect("symlink");
    }
    chown(base.join("theirs"), Some(65534), Some(65534)).expect("chown");
    fs::set_permissions(base.join("open"), PermissionsExt::from_mode(0o777)).expect("chmod");
    fs::write(base.join("full/letter"), "dear").expect("write");
    for (state, part) in [
        ("theirs", "belongs to user 65534"),
        ("theirs/state", "others could exchange it"),
        ("open", "is open to others"),
        ("open/state", "others could exchange it"),
        ("full", "is not empty"),
        ("/", "is not empty"),
    ] {
        assert_refused(&cluster, &changed(&cluster, "--state", state), part);
    }
    assert!(!Path::new("/forebay.lock").exists());
}

#[test]
fn bad_input_state_of_another_version() {
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    write_file(&cluster.mnt("f"), pattern(6, 100));
    cluster.down(&[]);
    let detached = [cluster.up_args(), &["--detach".into()]].concat();
    for (file, content, part) in [
        (
            "forebay-state",
            "forebay state\nversion 1000\n",
            "holds records of version 1000",
        ),
        (
            "kv/version",
            "not a version",
            "holds metadata store of version unknown",
        ),
    ] {
        let path = cluster.state().join(file);
        let right = fs::read(&path).expect("read");
        fs::write(&path, content).expect("write");
        for output in [cluster.cli(&detached), cluster.on_state(&["fsck"])] {
            assert_line(&output, part);
            assert!(
                output.stderr.contains("the forebay that made it"),
                "{output:?}"
            );
        }
        fs::write(&path, right).expect("write");
    }
    cluster.start();
    pattern(6, 100).assert_in(&cluster.mnt("f"));
}

#[test]
fn bad_input_tier_left_out_that_holds_undrained_data() {
    let cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    write_file(&cluster.mnt("f"), pattern(4, 100));
    cluster.down(&[]);
    let mut args = cluster.up_args().to_vec();
    let at = args.iter().position(|arg| arg == "--ssd").expect("--ssd");
    args.splice(at..at + 2, ["--detach".into()]);
    let at = args.iter().position(|arg| arg == "--dram").expect("--dram");
    args[at + 1] = "16MiB".into();
    assert_line(
        &cluster.cli(&args),
        "which was not given; start with it, or, if it is gone for good",
    );
    assert!(cluster.mounts().iter().all(|line| !line.contains("/mnt ")));
}

/// The directory of a flash tier, which is an argument.
fn flash_of(cluster: &Cluster) -> PathBuf {
    let args = cluster.up_args();
    let at = args.iter().position(|arg| arg == "--ssd").expect("--ssd");
    let value = args[at + 1].to_str().expect("UTF-8");
    value.rsplit_once(':').map_or(value, |(dir, _)| dir).into()
}

/// As where the file system of a flash directory is not mounted: an empty directory is there.
#[test]
fn bad_input_flash_that_is_not_the_one_that_it_was() {
    let mut cluster = Cluster::builder().dram("").ssd("64MiB").lazy().up();
    let file = File::create(cluster.mnt("f")).expect("create");
    pattern(5, 100).write(&file);
    file.sync_all().expect("fsync");
    drop(file);
    cluster.down(&[]);
    let flash = flash_of(&cluster);
    let away = flash.with_extension("away");
    let put_away = || {
        fs::rename(&flash, &away).expect("rename");
        fs::create_dir(&flash).expect("mkdir");
    };
    put_away();
    let detached = [cluster.up_args(), &["--detach".into()]].concat();
    let is_empty = || fs::read_dir(&flash).expect("list").count() == 0;
    for _ in 0..2 {
        assert_line(&cluster.cli(&detached), "is its file system mounted?");
        let checked = cluster.on_state(&["fsck"]);
        assert_eq!(checked.code, 3, "{checked:?}");
        assert!(is_empty(), "it is not taken for the tier");
    }
    fs::remove_dir(&flash).expect("rmdir");
    fs::rename(&away, &flash).expect("rename");
    let flash_name = flash.to_str().expect("UTF-8");
    let there = cluster.on_state(&["fsck", "--lost-tier", flash_name]);
    assert_line(&there, "no tier that is called so is missing");
    cluster.start();
    pattern(5, 100).assert_in(&cluster.mnt("f"));
    cluster.down(&[]);

    // Gone for good.
    put_away();
    for (more, says) in [(&["--dry-run"][..], "would"), (&[], "gone for good")] {
        let args = [&["fsck", "--lost-tier", flash_name], more].concat();
        let said = cluster.on_state(&args);
        assert!(
            said.stdout.contains("f: was in") && said.stdout.contains(says),
            "{said:?}"
        );
        assert!(said.stdout.contains("it is lost"), "{said:?}");
    }
    cluster.start();
    assert!(!cluster.mnt("f").exists());
    write_file(&cluster.mnt("g"), pattern(6, 100));
    assert!(cluster.dirty_bytes() > 0);
}

/// The directory is there, but what was mounted on it is not: what goes there would be hidden by
/// the next mount.
#[test]
fn bad_input_pfs_that_is_not_mounted() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().dram("").ssd("64MiB").loop_pfs(16 << 20);
    let mut cluster = builder.lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    write_file(&cluster.mnt("d/f"), pattern(5, 100));
    let root = cluster.mnt("");
    let mut names = [0; 256];
    let listed = rustix::fs::listxattr(&root, &mut names[..]).expect("attributes");
    let names = String::from_utf8_lossy(&names[..listed]).into_owned();
    assert!(!names.contains("forebay"), "{names}");
    cluster.down(&[]);
    cluster.loop_fs().unmount();
    let detached = [cluster.up_args(), &["--detach".into()]].concat();
    for output in [cluster.cli(&detached), cluster.on_state(&["fsck"])] {
        assert_line(&output, "is the PFS mounted there?");
    }
    assert_eq!(fs::read_dir(cluster.pfs("")).expect("list").count(), 0);
    cluster.loop_fs().mount();
    cluster.start();
    pattern(5, 100).assert_in(&cluster.mnt("d/f"));
    cluster.down(&[]);

    // Replaced for good: what was not drained is put on the new one.
    cluster.loop_fs().unmount();
    cluster.on_state(&["fsck", "--new-pfs"]).ok();
    let found = fs::read_dir(cluster.pfs("")).expect("list");
    let found: Vec<_> = found.map(|entry| entry.expect("entry").path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let name = found[0].file_name().expect("name").to_string_lossy();
    assert!(name.starts_with("f.forebay-recovered-"), "{name}");
    pattern(5, 100).assert_in(&found[0]);
    cluster.start();
    assert_eq!(cluster.dirty_bytes(), 0);
}

/// Runs `up` in a mount namespace of its own after a shell line has spoilt something there.
fn spoilt(cluster: &Cluster, line: &str) -> Output {
    let script = format!("{line} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(program_for_everybody(cluster.base()))
        .args(cluster.up_args())
        .current_dir(cluster.base());
    let output = run_bounded(without_settings(&mut command), LONG);
    fs::remove_file(cluster.base().join("forebay")).expect("remove");
    output
}

#[test]
fn bad_input_no_dev_fuse_or_a_read_only_pfs() {
    if needs_root() {
        return;
    }
    let cluster = ground();
    let before = snapshot(cluster.base());
    let output = spoilt(&cluster, "mount -t tmpfs none /dev");
    assert_line(&output, "/dev/fuse: No such file");
    let output = spoilt(
        &cluster,
        "mount --bind pfs pfs && mount -o remount,ro,bind pfs",
    );
    assert_line(&output, "read-only");
    assert!(snapshot(cluster.base()) == before, "something was left");
}

#[test]
fn bad_input_no_permission() {
    if needs_root() {
        return;
    }
    let cluster = ground();
    let before = snapshot(cluster.base());
    let program = program_for_everybody(cluster.base());
    let as_nobody = |args: &[OsString]| {
        let mut command = Command::new(&program);
        command.args(args).current_dir(cluster.base());
        run_bounded(without_settings(command.uid(65534).gid(65534)), LONG)
    };
    assert_line(&as_nobody(cluster.up_args()), "PFS cannot be written");
    fs::set_permissions(cluster.pfs(""), PermissionsExt::from_mode(0o700)).expect("chmod");
    assert_line(&as_nobody(cluster.up_args()), "Permission denied");
    fs::set_permissions(cluster.pfs(""), PermissionsExt::from_mode(0o755)).expect("chmod");
    fs::remove_file(&program).expect("remove");
    assert!(snapshot(cluster.base()) == before, "something was left");
    assert_eq!(cluster.mounts(), Vec::<String>::new());
}

#[test]
fn bad_input_commands_without_a_burst_buffer() {
    let cluster = ground();
    for command in ["status", "down", "fsck"] {
        fs::create_dir_all(cluster.state()).expect("mkdir");
        assert_line(&cluster.on_state(&[command]), "state");
    }
    for command in ["where", "stage-in", "stage-out", "prefetch", "release"] {
        let output = cluster.cli(&[command.as_ref(), cluster.pfs("sub").as_os_str()]);
        assert_line(&output, "not in a burst buffer");
    }
}

#[test]
fn bad_input_working_directory_that_was_removed() {
    let cluster = ground();
    let gone = cluster.base().join("gone");
    for detach in [&[][..], &["--detach"]] {
        fs::create_dir(&gone).expect("mkdir");
        // The shell enters it, removes it, and becomes the program.
        let mut up = Command::new("sh");
        up.args(["-c", "rmdir ../gone && exec \"$@\"", "sh"])
            .arg(program())
            .args(cluster.up_args())
            .args(detach)
            .current_dir(&gone);
        without_settings(&mut up);
        let before = cluster.mounts();
        assert_line(&run_bounded(&mut up, LONG), "the working directory is gone");
        assert_eq!(cluster.mounts(), before);
    }
}
