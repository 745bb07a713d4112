//! What users of the machine can see and do of each other's: the control socket, the PFS.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_testkit::{
    Cluster, LONG, Output, as_user, listing, needs_root, pattern, program_for_everybody,
    run_bounded, skip, wait_until, without_settings, write_file,
};
use forebay_wire::control::{Control, ControlResponse, JobProgress};
use forebay_wire::{Request, Response, UnixConnection};
use rustix::fs::{CWD, RenameFlags, XattrFlags, listxattr, renameat_with, setxattr};

/// The user `nobody`, by number.
const NOBODY: u32 = 65534;

fn ask(cluster: &Cluster, control: Control) -> Response {
    let socket = cluster.state().join("control.sock");
    let connection = UnixConnection::connect(&socket).expect("connect");
    let answer = connection.exchange(&Request::Control(control), &[], &mut []);
    answer.expect("answer")
}

fn job(cluster: &Cluster, id: u64) -> Option<JobProgress> {
    match ask(cluster, Control::Job { id }) {
        Response::Control(ControlResponse::Job(progress)) => Some(progress),
        _ => None,
    }
}

/// Runs the program as nobody.
fn nobodys(cluster: &Cluster, program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(cluster.base());
    run_bounded(without_settings(command.uid(NOBODY).gid(NOBODY)), LONG)
}

/// The first job of this start: the id begins with the second of the start.
fn first_job(cluster: &Cluster) -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = since.expect("after 1970").as_secs();
    let mut ids = (now_s - 600..=now_s).rev().map(|start| (start << 32) + 1);
    ids.find(|id| job(cluster, *id).is_some())
}

#[test]
fn promise_13_a_movement_is_cancelled_by_its_user_alone_and_says_so() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().fuse_pfs().lazy().up();
    write_file(&cluster.mnt("f"), pattern(1300, 1000));
    // So that it does not end by itself.
    cluster.fuse_pfs().hang();
    let (output, seen) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster.on_path(&["stage-out", "--wait"], "f"));
        let mut first = None;
        wait_until("the order has come", || {
            first = first_job(&cluster);
            first.is_some()
        });
        let id = first.expect("it has come");
        wait_until("the file is counted", || {
            job(&cluster, id).is_some_and(|job| !job.counting)
        });
        let seen = as_user(NOBODY, || {
            let cancelled = ask(&cluster, Control::Cancel { id });
            (cancelled, job(&cluster, id))
        });
        let unharmed = job(&cluster, id).expect("root's own job");
        assert!(
            !unharmed.finished && unharmed.left.is_empty(),
            "{unharmed:?}"
        );
        ask(&cluster, Control::Cancel { id });
        (waiting.join().expect("stage-out"), seen)
    });
    cluster.fuse_pfs().go_on();
    wait_until("the PFS answers again", || {
        cluster.status()["pfs_silent_s"].is_null()
    });
    assert!(matches!(seen.0, Response::Failed(_)), "{seen:?}");
    assert_eq!(seen.1, None);
    assert_eq!(output.code, 3, "{output:?}");
    assert!(
        output.stderr.contains("cancelled by somebody else"),
        "{output:?}"
    );
    assert!(output.stderr.contains("left: "), "{output:?}");
    cluster.drain("");
}

#[test]
fn promise_13_connections_of_one_user_do_not_keep_others_out() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().up();
    let program = program_for_everybody(cluster.base());
    let socket = cluster.state().join("control.sock");
    // They say nothing, and are kept.
    let idle = as_user(NOBODY, || {
        let connect = |_| UnixStream::connect(&socket).expect("connect");
        (0..70).map(connect).collect::<Vec<_>>()
    });
    // The last of them has been accepted, or refused, when a later one has its answer.
    cluster.on_state(&["status"]).ok();
    let state = cluster.state();
    let state = state.to_str().expect("UTF-8");
    let output = nobodys(&cluster, &program, &["status", "--state", state]);
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains("too many commands"), "{output:?}");
    drop(idle);
    wait_until("they may ask again", || {
        nobodys(&cluster, &program, &["status", "--state", state]).code == 0
    });
    cluster.down(&[]);
}

#[test]
fn promise_13_a_list_that_keeps_a_user_out_hides_the_checksum() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let program = program_for_everybody(cluster.base());
    for kind in ["dirty", "clean"] {
        let path = cluster.mnt(kind);
        write_file(&path, pattern(1340, 1000));
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("chmod");
        let mut deny = Command::new("setfacl");
        if run_bounded(deny.args(["-m", &format!("u:{NOBODY}:-")]).arg(&path), LONG).code != 0 {
            return skip("the PFS has no access control lists");
        }
        if kind == "clean" {
            cluster.drain(kind);
        }
        let told = || {
            nobodys(
                &cluster,
                &program,
                &["where", "--json", path.to_str().expect("UTF-8")],
            )
        };
        // What is undrained gets its checksum when it has stood still.
        if kind == "clean" {
            assert_ne!(cluster.where_is(kind)["crc32c"], serde_json::Value::Null);
        }
        let hidden = told().ok().json();
        assert_eq!(hidden[0]["crc32c"], serde_json::Value::Null, "{hidden}");
        run_bounded(Command::new("setfacl").arg("-b").arg(&path), LONG).ok();
        let shown = told().ok().json();
        assert_eq!(
            shown[0]["crc32c"],
            cluster.where_is(kind)["crc32c"],
            "{kind}"
        );
    }
}

#[test]
fn promise_13_users_are_told_of_what_they_can_stat() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().loop_pfs(16 << 20).lazy().up();
    let program = program_for_everybody(cluster.base());
    for (name, mode) in [("closed", 0o700), ("open", 0o755), ("passage", 0o711)] {
        fs::create_dir(cluster.mnt(name)).expect("mkdir");
        write_file(&cluster.mnt(name).join("secret-42"), pattern(1330, 1000));
        fs::set_permissions(cluster.mnt(name), PermissionsExt::from_mode(mode)).expect("chmod");
    }
    let unreadable = cluster.mnt("open/secret-42");
    fs::set_permissions(&unreadable, PermissionsExt::from_mode(0o600)).expect("chmod");
    fs::create_dir(cluster.mnt("closed/deep")).expect("mkdir");
    write_file(&cluster.mnt("closed/deep/f"), pattern(1331, 2000));
    cluster.drain("open");
    // Something for `status` to show.
    let ballast = cluster.loop_fs().fill(0);
    write_file(&cluster.mnt("closed/big"), pattern(1332, 4 << 20));
    cluster
        .on_path(&["stage-out", "--wait"], "closed/big")
        .expect_code(3);
    fs::remove_file(ballast).expect("remove");
    let seen_by_root = cluster.status().to_string();
    assert!(seen_by_root.contains("closed/big"), "{seen_by_root}");

    let mnt = |name: &str| cluster.mnt(name).to_str().expect("UTF-8").to_string();
    let state = cluster.state();
    let state = state.to_str().expect("UTF-8");
    let status = nobodys(&cluster, &program, &["status", "--json", "--state", state]).ok();
    assert!(!status.stdout.contains("closed"), "{status:?}");
    assert_eq!(status.json()["names_hidden"], true);
    assert!(
        status.json()["errors_total"].as_u64() > Some(0),
        "{status:?}"
    );
    // What is refused does not say before that it begins.
    let refused = nobodys(&cluster, &program, &["calibrate", "--state", state]);
    assert_eq!((refused.code, &*refused.stdout), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("not allowed to"), "{refused:?}");
    let all = nobodys(&cluster, &program, &["where", "--json", &mnt("")]);
    assert_eq!(all.code, 3, "{all:?}");
    let list = all.json();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{all:?}");
    assert_eq!(list[0]["path"], mnt("open/secret-42").as_str());
    assert_eq!(list[0]["crc32c"], serde_json::Value::Null, "{list}");
    assert_ne!(
        cluster.where_is("open/secret-42")["crc32c"],
        serde_json::Value::Null
    );
    let known = nobodys(&cluster, &program, &["where", &mnt("passage/secret-42")]);
    assert!(
        known.code == 0 && known.stdout.contains("secret-42"),
        "{known:?}"
    );
    // What is there and what is not give the same answer, to movements too.
    for command in ["where", "stage-out", "stage-in", "release"] {
        for name in [
            "closed/deep/f",
            "closed/none",
            "closed/deep/none/f",
            "closed/deep",
        ] {
            // By the path on the PFS: the mount itself lets nobody look.
            let path = cluster.pfs(name).to_str().expect("UTF-8").to_string();
            let output = nobodys(&cluster, &program, &[command, &path]);
            assert_eq!(output.code, 1, "{command} {name}: {output:?}");
            assert!(output.stderr.contains("Permission denied"), "{output:?}");
        }
    }
}

#[test]
fn promise_13_what_goes_straight_to_the_pfs_lies_in_a_directory_of_its_own() {
    if needs_root() {
        return;
    }
    for planted in ["link", "directory"] {
        let cluster = Cluster::builder().dram("16MiB").lazy().up();
        fs::set_permissions(cluster.pfs(""), PermissionsExt::from_mode(0o1777)).expect("chmod");
        // The name is no secret: temporary files and directories of versions show it.
        let name = overflow_name(&cluster);
        let theirs = cluster.base().join("theirs");
        fs::create_dir(&theirs).expect("mkdir");
        chown(&theirs, Some(NOBODY), Some(NOBODY)).expect("chown");
        match planted {
            "link" => symlink(&theirs, cluster.pfs(&name)).expect("symlink"),
            _ => fs::create_dir(cluster.pfs(&name)).expect("mkdir"),
        }
        if planted == "directory" {
            chown(cluster.pfs(&name), Some(NOBODY), Some(NOBODY)).expect("chown");
        }
        write_file(&cluster.mnt("large"), pattern(1340, 40 << 20));
        pattern(1340, 40 << 20).assert_in(&cluster.mnt("large"));
        let planted_dir = match planted {
            "link" => theirs,
            _ => cluster.pfs(&name),
        };
        let inside = fs::read_dir(&planted_dir).expect("list").count();
        assert_eq!(inside, 0, "{planted}");
        // It did go straight to the PFS: into a hidden directory of root's.
        let hidden = |entry: &fs::DirEntry| {
            let meta = entry.metadata().expect("metadata");
            meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o7777 == 0o700
        };
        let entries = fs::read_dir(cluster.pfs("")).expect("list");
        let entries: Vec<_> = entries.map(|e| e.expect("entry")).collect();
        assert_eq!(entries.iter().filter(|e| hidden(e)).count(), 1, "{planted}");
        cluster.down(&["--drain"]);
        pattern(1340, 40 << 20).assert_in(&cluster.pfs("large"));
        // What was planted is left alone, and all else is gone.
        let left = fs::read_dir(cluster.pfs("")).expect("list").count();
        assert_eq!(left, 2, "{planted}");
    }
}

/// The name of the directory, from the instance's id in the flash directory's or memory's marker.
fn overflow_name(cluster: &Cluster) -> String {
    let marker = cluster.state().join("dram/forebay-tier");
    let text = fs::read_to_string(marker).expect("marker");
    let line = text.lines().find_map(|line| line.strip_prefix("instance "));
    let instance = line
        .expect("instance")
        .get(..8)
        .expect("digits")
        .to_string();
    format!(".forebay-{instance}-0000000000000000-0.part")
}

/// Everything that somebody else could write to, as far as directories let them come.
fn open_to_others(folder: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("list") {
        let entry = entry.expect("entry");
        let meta = entry.metadata().expect("metadata");
        let mode = meta.mode() & 0o7777;
        let is_socket = entry.file_name() == "control.sock";
        if mode & 0o022 != 0 && !is_socket {
            found.push((entry.path().display().to_string(), mode));
        }
        if meta.is_dir() && mode & 0o011 != 0 {
            found.extend(open_to_others(&entry.path()));
        }
    }
    found
}

#[test]
fn promise_13_nobody_else_writes_to_a_state_folder() {
    let cluster = Cluster::builder()
        .lazy()
        .ssd("64MiB")
        .flag("--detach")
        .prepare();
    cluster.cli(cluster.up_args()).ok();
    write_file(&cluster.mnt("f"), pattern(1350, 1000));
    let pid = fs::read_to_string(cluster.state().join("forebay.pid")).expect("pid file");
    assert_eq!(open_to_others(&cluster.state()), []);
    let kv = fs::metadata(cluster.state().join("kv")).expect("kv");
    assert_eq!(kv.mode() & 0o7777, 0o700);
    cluster.on_state(&["down"]).ok();
    assert!(pid.trim().parse::<u32>().is_ok_and(|pid| pid > 0));
}

/// As nobody, who owns the directory of both: exchanges a file of root's with their own on the PFS,
/// again and again, and changes their own through the mount meanwhile. How often that was done.
fn changes_while_exchanged(cluster: &Cluster, home: &str, change: &Change) -> u32 {
    let at = |name: &str| cluster.pfs(home).join(name);
    let exchange = || {
        let flags = RenameFlags::EXCHANGE;
        renameat_with(CWD, at("mine"), CWD, at("roots"), flags).expect("exchange");
    };
    let mine = fs::metadata(at("mine")).expect("stat").ino();
    let done = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            as_user(NOBODY, || {
                while !done.load(Ordering::Acquire) {
                    // An even number: each has its own name in between, so that something is done,
                    // too.
                    for _ in 0..20 {
                        exchange();
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        });
        let path = cluster.mnt(home).join("mine");
        let times = as_user(NOBODY, || {
            let started = Instant::now();
            let mut times = 0;
            // What the kernel has once found under the name it believes for a second.
            let limit = |times| {
                if times > 0 {
                    Duration::from_secs(2)
                } else {
                    LONG
                }
            };
            while started.elapsed() < limit(times) {
                times += u32::from(change(&path));
            }
            times
        });
        done.store(true, Ordering::Release);
        times
    });
    assert_eq!(fs::metadata(at("mine")).expect("stat").ino(), mine);
    times
}

/// What is done to a file, and whether it could be.
type Change = dyn Fn(&Path) -> bool + Sync;

#[test]
fn promise_13_a_file_exchanged_for_ones_own_on_the_pfs_is_neither_changed_nor_read() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    for path in [cluster.base().to_path_buf(), cluster.pfs("")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    let secret = pattern(1310, 100);
    let mode = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o666)).is_ok();
    let mark =
        |path: &Path| setxattr(path, "user.mark", b"nobody was here", XattrFlags::empty()).is_ok();
    let write = |path: &Path| {
        let file = fs::File::options().append(true).open(path);
        file.and_then(|mut file| file.write_all(b"more")).is_ok()
    };
    let cut = |path: &Path| {
        let file = fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_len(0)).is_ok()
    };
    let changes: [(&str, &Change); 4] = [
        ("mode", &mode),
        ("mark", &mark),
        ("write", &write),
        ("cut", &cut),
    ];
    for (home, change) in changes {
        fs::create_dir(cluster.pfs(home)).expect("mkdir");
        chown(cluster.pfs(home), Some(NOBODY), Some(NOBODY)).expect("chown");
        let (roots, mine) = (
            cluster.pfs(home).join("roots"),
            cluster.pfs(home).join("mine"),
        );
        write_file(&roots, secret);
        fs::set_permissions(&roots, PermissionsExt::from_mode(0o600)).expect("chmod");
        write_file(&mine, pattern(1311, 50));
        chown(&mine, Some(NOBODY), Some(NOBODY)).expect("chown");
        assert!(
            changes_while_exchanged(&cluster, home, change) > 0,
            "{home}"
        );
        let meta = fs::metadata(&roots).expect("stat");
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600), "{home}");
        secret.assert_in(&roots);
        let marks = listxattr(&roots, &mut [0; 100][..]);
        assert_eq!(marks.expect("attributes"), 0, "{home}");
        // What was changed in the buffer is drained to where it belongs, or beside what is there,
        // and is named then.
        let drained = cluster.on_path(&["stage-out", "--wait"], home);
        let is_conflict = drained.stderr.contains("mine.forebay-conflict-");
        assert_eq!(
            drained.code,
            if is_conflict { 3 } else { 0 },
            "{}",
            drained.stderr
        );
        for name in listing(&cluster.pfs(home)) {
            let path = cluster.pfs(home).join(&name);
            let is_roots = fs::metadata(&path).expect("stat").uid() == 0;
            let content = fs::read(&path).expect("read");
            assert_eq!(content == secret.bytes(), is_roots, "{home}: {name:?}");
        }
    }
}
