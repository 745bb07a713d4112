//! Several nodes: mounts of one server over TCP.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_testkit::{
    Fleet, LONG, needs_nodes, pattern, run_bounded, settle_for_revalidation, wait_until, write_file,
};
use rustix::process::{Pid, Signal, kill_process_group};

const MIB: usize = 1 << 20;

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn promise_8_what_a_killed_mount_had_goes_with_it() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let path = fleet.mnt(1, "unlinked");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = file.expect("create");
    pattern(7, 4 * MIB).write(&file);
    fs::remove_file(&path).expect("unlink");
    write_file(&fleet.mnt(1, "closed"), pattern(8, MIB));
    fleet.closes_are_heard_of(1);
    assert_eq!(fleet.status()["open_files"], 1);
    fleet.kill_mount(1);
    wait_until(
        "its handles are closed, and the file without a name is gone",
        || {
            let status = fleet.status();
            status["open_files"] == 0 && status["files"] == 1
        },
    );
    drop(file);
    pattern(8, MIB).assert_in(&fleet.mnt(2, "closed"));
}

#[test]
fn promise_8_programs_wait_for_a_server_that_stands_still_and_go_on() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    fs::write(fleet.mnt(1, "log"), b"").expect("create");
    let path = fleet.mnt(1, "log");
    let writer = std::thread::spawn(move || {
        let mut log = OpenOptions::new().append(true).open(path).expect("open");
        for n in 0..300u32 {
            log.write_all(&n.to_le_bytes()).expect("append");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    fleet.signal_server(Signal::STOP);
    std::thread::sleep(Duration::from_secs(1));
    fleet.signal_server(Signal::CONT);
    std::thread::sleep(Duration::from_millis(200));
    // Shorter than the lease: the session lives on.
    fleet.node(1).cut();
    std::thread::sleep(Duration::from_secs(1));
    fleet.node(1).heal();
    fleet.node(1).reset_sockets();
    writer.join().expect("every append once");
    let log = fs::read(fleet.mnt(1, "log")).expect("read");
    let numbers: Vec<u32> = log
        .chunks(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("whole")))
        .collect();
    assert_eq!(numbers, (0..300).collect::<Vec<u32>>());
}

#[test]
fn promise_8_after_a_restart_of_the_server_what_was_open_is_open_again() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    fs::create_dir(fleet.mnt(1, "d")).expect("mkdir");
    fs::write(fleet.pfs("d/old"), b"on the PFS").expect("write");
    settle_for_revalidation();
    let old = File::open(fleet.mnt(1, "d/old")).expect("open");
    let written = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(fleet.mnt(1, "d/new"))
        .expect("create");
    fs::rename(fleet.mnt(1, "d/new"), fleet.mnt(1, "d/newest")).expect("rename");
    const BLOCKS: usize = 400;
    let block = |n: usize| vec![n as u8; 64 << 10];
    let writer = std::thread::spawn(move || {
        for n in 0..BLOCKS {
            let at = (n * (64 << 10)) as u64;
            written.write_all_at(&block(n), at).expect("write");
            std::thread::sleep(Duration::from_millis(5));
        }
        written.sync_all().expect("fsync");
        written
    });
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(400));
        fleet.kill_server();
        let path = fleet.mnt(2, "d/old");
        let waits = std::thread::spawn(move || fs::read(path));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished(), "there is nobody to ask");
        fleet.start_server();
        let content = waits.join().expect("no panic").expect("it goes on");
        assert_eq!(content, b"on the PFS");
        // By its path the kernel finds the file that is open.
        for name in ["d", "d/old", "d/newest"] {
            fs::metadata(fleet.mnt(1, name)).expect("stat");
        }
    }
    let written = writer.join().expect("all is written");
    let mut bytes = [0; 10];
    old.read_exact_at(&mut bytes, 0).expect("it is open");
    assert_eq!(&bytes, b"on the PFS");
    let content = fs::read(fleet.mnt(2, "d/newest")).expect("read");
    let expected: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
    assert!(content == expected, "of {} bytes", content.len());
    assert_eq!(fleet.status()["open_files"], 2);
    drop((written, old));
    wait_until("they are closed", || fleet.status()["open_files"] == 0);
}

#[test]
fn promise_8_a_program_stays_in_its_directory_over_a_restart_of_the_server() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    fs::create_dir(fleet.mnt(1, "d")).expect("mkdir");
    fs::write(fleet.pfs("d/old"), b"on the PFS").expect("write");
    let mut shell = std::process::Command::new("sh")
        .args(["-c", "read go; cat old"])
        .current_dir(fleet.mnt(1, "d"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh runs");
    fleet.kill_server();
    fleet.start_server();
    for name in ["d", "d/old"] {
        fs::metadata(fleet.mnt(1, name)).expect("stat");
    }
    shell
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"go\n")
        .expect("it listens");
    let said = shell.wait_with_output().expect("it ends");
    assert_eq!(said.stdout, b"on the PFS");
}

#[test]
fn promise_8_another_file_of_the_same_name_is_not_taken_for_what_was_open() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    for name in ["replaced", "kept"] {
        fs::write(fleet.pfs(name), b"first").expect("write");
    }
    let [replaced, kept] = ["replaced", "kept"].map(|name| {
        let file = File::open(fleet.mnt(1, name));
        file.expect("open")
    });
    fleet.kill_server();
    fs::write(fleet.pfs("other"), b"other").expect("write");
    fs::rename(fleet.pfs("other"), fleet.pfs("replaced")).expect("rename");
    fleet.start_server();
    let mut bytes = [0; 5];
    assert_eq!(
        errno(replaced.read_exact_at(&mut bytes, 0)),
        Some(libc::ESTALE)
    );
    kept.read_exact_at(&mut bytes, 0).expect("it is open");
    assert_eq!(&bytes, b"first");
    assert_eq!(fs::read(fleet.mnt(1, "replaced")).expect("read"), b"other");
    assert!(replaced.read_exact_at(&mut bytes, 0).is_err());
}

#[test]
fn promise_8_a_silent_mount_is_fenced_and_comes_back_with_nothing() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let held = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(fleet.mnt(1, "f"));
    let held = held.expect("create");
    held.write_all_at(b"before", 0).expect("write");
    fleet.signal_mount(1, Signal::STOP);
    wait_until("the server ends the session", || {
        fleet.log("server.log").contains("has left") || fleet.log("server.log").contains("silent")
    });
    fs::write(fleet.mnt(2, "f"), b"after").expect("write");
    fleet.signal_mount(1, Signal::CONT);
    assert_eq!(errno(held.write_all_at(b"late", 0)), Some(libc::ESTALE));
    assert_eq!(fs::read(fleet.mnt(1, "f")).expect("read"), b"after");
}

#[test]
fn promise_8_who_waits_for_a_server_that_is_away_can_be_killed() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    let at = |name: &str| fleet.mnt(1, name);
    fs::write(at("f"), b"content").expect("write");
    let lines = [
        format!("cat {}", at("f").display()),
        format!("exec 3>>{f}; echo more >&3", f = at("g").display()),
        format!("mkdir {}", at("d").display()),
        format!("rm {}", at("f").display()),
        format!("flock -n {} true", at("f").display()),
        format!("ls -l {}", at("").display()),
    ];
    fleet.kill_server();
    let children = lines.map(|line| {
        let mut shell = Command::new("sh");
        let shell = shell
            .args(["-c", &format!("exec 2>&1; {line}")])
            .process_group(0);
        shell.stdout(Stdio::null()).spawn().expect("sh runs")
    });
    // Each stands in a call.
    std::thread::sleep(Duration::from_millis(300));
    for mut child in children {
        assert_eq!(child.try_wait().expect("it is ours"), None);
        // A signal that a program need not act on ends no wait, and one that ends programs does.
        let group = Pid::from_child(&child);
        kill_process_group(group, Signal::WINCH).expect("signal");
        let signals = [Signal::KILL, Signal::TERM];
        let signal = signals[group.as_raw_nonzero().get() as usize % 2];
        kill_process_group(group, signal).expect("kill");
        let ended = || child.try_wait().expect("it is ours").is_some();
        wait_until("it has ended", ended);
    }
    fleet.start_server();
    let after = || fs::read(fleet.mnt(1, "f"));
    wait_until("the mount answers", || match after() {
        Ok(content) => content == b"content",
        // It was removed all the same.
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    });
}

#[test]
fn promise_8_umount_does_not_wait_for_a_server_that_is_gone() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(3, "");
    fleet.kill_mount(2);
    fleet.mount(2, &["--soft", "1s"]);
    fs::write(fleet.mnt(1, "f"), b"content").expect("write");
    fleet.kill_server();
    assert_eq!(
        errno(fs::read(fleet.mnt(2, "f"))),
        Some(libc::EIO),
        "a soft mount"
    );
    assert_eq!(fleet.umount(2), Some(0));
    assert_eq!(fleet.umount(3), Some(0), "a hard mount that nobody uses");
    // A program waits for the server: the mount is in use until somebody ends it.
    let path = fleet.mnt(1, "f");
    let waits = std::thread::spawn(move || fs::read(path).map(drop));
    std::thread::sleep(Duration::from_millis(300));
    fleet.signal_mount(1, Signal::TERM);
    assert_eq!(fleet.wait_mount(1, LONG), Some(0));
    assert!(waits.join().expect("no panic").is_err());
    assert!(!fleet.is_mounted(1));
}

#[test]
fn promise_13_nobody_gets_in_without_the_clusters_key_and_name() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    let mount = |config: &std::path::Path| {
        let point = fleet.mnt(0, "");
        let args: [&OsStr; 5] = [
            "mount".as_ref(),
            "--config".as_ref(),
            config.as_ref(),
            point.as_ref(),
            "--no-local".as_ref(),
        ];
        fleet.run(0, &args)
    };
    let other_name = fleet.write_config("other.toml", "others", "");
    let key = fleet.base().join("other.key");
    fleet.run(0, &["keygen".as_ref(), key.as_ref()]).ok();
    let text = fs::read_to_string(fleet.base().join("cluster.toml")).expect("read");
    let other_key = fleet.base().join("key.toml");
    fs::write(&other_key, text.replace("/key\"", "/other.key\"")).expect("write");
    for config in [other_name, other_key] {
        let refused = mount(&config);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        assert!(!fleet.is_mounted(0));
    }
    // Garbage, and silence, at the door.
    let address = fleet.node(0).socket_address(7070);
    fleet.node(1).inside(|| {
        for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b""] {
            let mut peer = std::net::TcpStream::connect(address).expect("connect");
            // It may be thrown out while it speaks.
            let _ = peer.write_all(noise);
        }
    });
    fs::write(fleet.mnt(1, "f"), b"still served").expect("write");
}

#[test]
fn command_line_works_on_any_mount() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    fs::create_dir_all(fleet.mnt(1, "run/ckpt-1")).expect("mkdir");
    write_file(&fleet.mnt(1, "run/ckpt-1/f"), pattern(5, MIB));
    let path = fleet.mnt(1, "run");
    let moved = fleet.run(1, &["stage-out".as_ref(), "--wait".as_ref(), path.as_ref()]);
    moved.ok();
    pattern(5, MIB).assert_in(&fleet.pfs("run/ckpt-1/f"));
    let shown = fleet
        .run(1, &["where".as_ref(), "--json".as_ref(), path.as_ref()])
        .ok();
    assert_eq!(shown.json()[0]["state"], "clean", "{shown:?}");
    let source = fleet.base().join("run");
    let entry = fs::read_dir(source)
        .expect("read_dir")
        .next()
        .expect("a run folder");
    let run = entry.expect("entry").path();
    let line = ["status", "--json", "--state"].map(OsStr::new);
    let status = fleet.run(1, &[&line[..], &[run.as_ref()]].concat());
    let status = status.ok().json();
    let point = fleet.mnt(1, "");
    let point = point
        .to_str()
        .expect("text")
        .trim_end_matches('/')
        .to_string();
    assert_eq!(status["mount"], point.as_str());
    // Stopping the server is for its own node; `down` on a mount unmounts.
    let mut command = fleet.node(1).command(forebay_testkit::program());
    let down = run_bounded(
        command.args(["down".as_ref(), "--state".as_ref(), run.as_os_str()]),
        LONG,
    );
    assert_eq!(down.code, 0, "{down:?}");
    wait_until("it is unmounted", || !fleet.is_mounted(1));
}

#[test]
fn command_status_asks_the_server_of_a_cluster_without_a_mount() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    assert_eq!(fleet.umount(2), Some(0));
    write_file(&fleet.mnt(1, "f"), pattern(9, 4 * MIB));
    let open = File::open(fleet.mnt(1, "f")).expect("open");
    // Somebody else knocks.
    let address = fleet.node(0).socket_address(7070);
    fleet.node(2).inside(|| {
        let mut peer = std::net::TcpStream::connect(address).expect("connect");
        peer.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("write");
    });
    let config = fleet.base().join("cluster.toml");
    let asked = |what: &[&str]| {
        let mut args: Vec<&OsStr> = what.iter().map(OsStr::new).collect();
        args.extend(["--config".as_ref(), config.as_os_str()]);
        fleet.run(2, &args)
    };
    let network = || asked(&["status", "--json"]).ok().json()["network"].clone();
    wait_until(
        "the mount that was left is gone, and the peer refused",
        || {
            let network = network();
            network["clients_total"] == 1 && network["refused_total"] == 1
        },
    );
    let shown = network();
    let (client, refused) = (&shown["clients"][0], &shown["refused"][0]);
    assert_eq!(
        shown["clients"].as_array().map(Vec::len),
        Some(1),
        "{shown}"
    );
    assert_eq!(refused["reason"], "not-forebay", "{shown}");
    assert_eq!(client["open_files"], 1, "{shown}");
    let host = client["host"].as_str().expect("a name");
    let from = client["address"].as_str().expect("an address");
    let of_node = fleet.node(1).socket_address(1).ip().to_string();
    assert!(!host.is_empty() && from.starts_with(&of_node), "{shown}");
    // Four for requests, and one for recalls.
    let connections = client["connections"].as_array().expect("a list");
    assert_eq!(connections.len(), 5, "{shown}");
    let bytes_in = connections.iter().map(|one| one["in_bytes"].as_u64());
    let bytes_in: u64 = bytes_in.map(|bytes| bytes.expect("bytes")).sum();
    assert!(bytes_in > 4 * MIB as u64, "{shown}");
    let page = asked(&["status"]).ok().stdout;
    assert!(page.contains("1 client, with 5 connections"), "{page}");
    let pages = asked(&["top", "--count", "2"]).ok().stdout;
    assert_eq!(pages.matches("1 client, with 5 connections").count(), 2);
    // Commands are not among those who come and go.
    let log = fleet.log("server.log");
    assert_eq!(log.matches("has come").count(), 2, "{log}");
    assert_eq!(log.matches("has left").count(), 1, "{log}");
    drop(open);
    fleet.kill_server();
    let asked_in_vain = |what: &str| {
        let config = fleet.base().join("cluster.toml");
        fleet.run(2, &[what.as_ref(), "--config".as_ref(), config.as_ref()])
    };
    for what in ["status", "top"] {
        let refused = asked_in_vain(what);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        assert!(
            refused
                .stderr
                .contains("is `forebay server` running there?")
        );
    }
}

#[test]
fn bad_input_a_pfs_that_is_not_the_servers() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    fs::write(fleet.pfs("own"), b"content").expect("write");
    let base = fleet.base().to_path_buf();
    let text = fs::read_to_string(base.join("cluster.toml")).expect("read");
    let there = base.join("there");
    let config = base.join("elsewhere.toml");
    fs::write(&config, text.replace("/pfs\"", "/there\"")).expect("write");
    let hidden = || {
        let entries = fs::read_dir(fleet.pfs("")).expect("read_dir");
        let names = entries.map(|entry| entry.expect("entry").file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with(".forebay-"))
            .count()
    };
    let point = fleet.mnt(0, "");
    let mount = |flags: &[&str]| {
        let mut args: Vec<&OsStr> = ["mount".as_ref(), "--config".as_ref()].to_vec();
        args.extend([config.as_os_str(), point.as_os_str()]);
        args.extend(flags.iter().map(OsStr::new));
        fleet.run(0, &args)
    };
    let refused = |flags: &[&str]| {
        let output = mount(flags);
        let line = format!(
            "pfs {}: what is there on this node is not the PFS of cluster fleet",
            there.display()
        );
        crate::bad_input::assert_line(&output, &line);
        assert!(!fleet.is_mounted(0));
        assert_eq!(hidden(), 0, "what was looked for is gone");
    };
    let mounted = || {
        mount(&["--no-local", "--detach"]).ok();
        assert!(fleet.is_mounted(0) && fleet.mnt(0, "own").exists());
        assert_eq!(hidden(), 0);
        run_bounded(std::process::Command::new("umount").arg(&point), LONG).ok();
    };
    // A node need not have the PFS.
    mounted();
    fs::create_dir(&there).expect("mkdir");
    mounted();
    fs::write(there.join("somebody's"), b"content").expect("write");
    refused(&["--no-local"]);
    refused(&["--no-local", "--detach"]);
    refused(&[]);
    fs::remove_file(there.join("somebody's")).expect("remove");
    // Empty, and all the same a file system of its own.
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &there, "tmpfs", flags, c"size=1m").expect("tmpfs");
    let output = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| refused(&[])));
    rustix::mount::unmount(&there, rustix::mount::UnmountFlags::DETACH).expect("unmount");
    output.expect("refused");
    // The same one by another path.
    fs::remove_dir(&there).expect("rmdir");
    std::os::unix::fs::symlink(fleet.pfs(""), &there).expect("symlink");
    mounted();
}

#[test]
fn command_an_order_goes_on_when_the_server_is_started_anew() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "[demotion]\nidle = false\nstart = 0.9\n");
    let dir = fleet.mnt(1, "d");
    fs::create_dir(&dir).expect("mkdir");
    for n in 0..400u64 {
        write_file(&dir.join(n.to_string()), pattern(n, 4096));
    }
    let order = |fleet: &Fleet, args: &[&str]| {
        let mut command = fleet.node(1).command(forebay_testkit::program());
        command.args(args).arg(&dir);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        command.spawn().expect("forebay")
    };
    let done = |order: std::process::Child, says: &str| {
        let ended = order.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{ended:?}");
        let said = String::from_utf8(ended.stdout).expect("text");
        assert!(said.contains(says), "{said}");
    };
    // In the midst of it.
    let out = order(&fleet, &["stage-out", "--wait"]);
    wait_until("some are there", || fleet.pfs("d/0").exists());
    fleet.kill_server();
    std::thread::sleep(Duration::from_secs(1));
    fleet.start_server();
    done(out, "stage-out: 400 of 400 files");
    for n in 0..400u64 {
        pattern(n, 4096).assert_in(&fleet.pfs(format!("d/{n}")));
    }
    // While there is none.
    fleet.kill_server();
    wait_until("the mount knows", || {
        let status = ["status".as_ref(), dir.as_os_str()];
        fleet.run(1, &status).code != 0
    });
    let released = order(&fleet, &["release"]);
    std::thread::sleep(Duration::from_secs(1));
    fleet.start_server();
    done(released, "release: 400 of 400 files");
}

#[test]
fn a_mount_that_programs_still_use_after_umount_l_is_told_how_to_end_it() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    let used = fs::File::create(fleet.mnt(1, "used")).expect("create");
    let point = fleet.mnt(1, "");
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).expect("unmount");
    let config = fleet.base().join("cluster.toml");
    let args = ["mount".as_ref(), "--config".as_ref(), config.as_os_str()];
    let output = fleet.run(
        1,
        &[&args[..], &[point.as_os_str(), "--detach".as_ref()]].concat(),
    );
    let words = "still use what `umount -l` took away; try again when it has ended, or `kill ";
    crate::bad_input::assert_line(&output, words);
    let (_, pid) = output.stderr.split_once("or `kill ").expect("words");
    let (pid, _) = pid.split_once('`').expect("process");
    run_bounded(Command::new("kill").arg(pid), LONG).ok();
    assert_eq!(fleet.wait_mount(1, LONG), Some(0));
    drop(used);
    fleet.mount(1, &[]);
}
