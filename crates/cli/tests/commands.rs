//! The program itself, against a server that speaks the real protocol but keeps nothing, and
//! against wrong input. What needs a mount is tested where mounts are.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use forebay_types::Errno;
use forebay_wire::control::{
    Control, ControlResponse, Finding, FsckReport, StatusBits, TierStatus, WhereEntry,
};
use forebay_wire::{Peer, Reply, Request, Response, Service, UnixServer};
use serde_json::Value;

/// Answers as a burst buffer with some undrained data that never drains; or as another user's.
struct Fake {
    findings: Vec<Finding>,
    foreign: bool,
}

impl Service for Fake {
    fn handle(&self, _: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
        let Request::Control(control) = request else {
            return Errno::EPROTO.into();
        };
        if self.foreign && !matches!(control, Control::Status) {
            return Errno::EPERM.into();
        }
        Response::Control(match control {
            Control::Status => ControlResponse::Status(Box::new(status())),
            Control::Where { after, .. } => {
                // In two parts, as a long answer comes.
                let files = vec![entry(if after.is_some() { b"b" } else { b"a" })];
                let more_after = after.is_none().then(|| b"a".to_vec());
                ControlResponse::Where {
                    files,
                    more_after,
                    failures: Vec::new(),
                }
            }
            Control::Shutdown { .. } => ControlResponse::Stopping,
            Control::Fsck { .. } => ControlResponse::Fsck(FsckReport {
                records: 3,
                objects: 2,
                findings: self.findings.clone(),
                ..FsckReport::default()
            }),
            _ => return Errno::ENOSYS.into(),
        })
        .into()
    }
}

fn status() -> StatusBits {
    StatusBits {
        pfs: b"/scratch".to_vec(),
        mount: b"/bb".to_vec(),
        tiers: vec![TierStatus {
            name: "dram".into(),
            capacity_bytes: 1 << 30,
            used_bytes: 2 << 20,
            dirty_bytes: 2 << 20,
            reserved_bytes: 0,
            out_of_reach: false,
        }],
        dirty_bytes: 2 << 20,
        drain_queued_files: 2,
        ..StatusBits::default()
    }
}

fn entry(path: &[u8]) -> WhereEntry {
    WhereEntry {
        path: path.to_vec(),
        tiers: vec!["dram".into()],
        state: "dirty".into(),
        size_bytes: 1 << 20,
        application: String::new(),
        version: None,
        crc32c: None,
        error: None,
        unpublished: false,
        durability: None,
        stale_tiers: Vec::new(),
    }
}

fn finding(problem: &str, repaired: bool) -> Finding {
    Finding {
        subject: b"a".to_vec(),
        kind: match problem.starts_with("checksum") {
            true => "object-content".into(),
            false => "orphan".into(),
        },
        problem: problem.into(),
        action: "none".into(),
        repaired,
    }
}

/// A state folder with a server behind its socket.
struct Running {
    // Before the folder, for it ends by way of its socket there.
    _server: UnixServer,
    state: tempfile::TempDir,
}

fn running(fake: Fake) -> Running {
    let state = tempfile::tempdir().expect("tempdir");
    let server =
        UnixServer::start(&state.path().join("control.sock"), Arc::new(fake)).expect("socket");
    Running {
        state,
        _server: server,
    }
}

fn quiet() -> Fake {
    Fake {
        findings: Vec::new(),
        foreign: false,
    }
}

/// Runs the program without settings of the environment.
fn forebay(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.args(args).output().expect("runs")
}

fn on_state(running: &Running, args: &[&str]) -> Output {
    let state = running.state.path().to_str().expect("UTF-8");
    let mut all = args.to_vec();
    all.extend(["--state", state]);
    forebay(&all)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit 1 and one line.
fn assert_refused(output: &Output, part: &str) {
    let text = stderr(output);
    assert!(text.contains(part), "{text:?} does not say {part:?}");
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(text.starts_with("forebay: "), "{text:?}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}

#[test]
fn status_prints_a_page_and_json() {
    let running = running(quiet());
    let page = on_state(&running, &["status"]);
    assert!(String::from_utf8_lossy(&page.stdout).starts_with("/bb in front of /scratch"));
    let json = on_state(&running, &["status", "--json"]);
    let value: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(value["tiers"][0]["dirty_bytes"], 2 << 20);
    assert_eq!(value["drain"]["queued_files"], 2);
    assert_eq!(json.status.code(), Some(0));
}

#[test]
fn top_without_a_terminal_prints_pages() {
    let running = running(quiet());
    let output = on_state(&running, &["top", "--count", "2"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.matches("/bb in front of /scratch").count(), 2);
    assert!(!text.contains('\x1b'));
}

#[test]
fn nothing_running_is_one_line() {
    let state = tempfile::tempdir().expect("tempdir");
    let path = state.path().to_str().expect("UTF-8");
    assert_refused(&forebay(&["status", "--state", path]), "not a state folder");
    assert_refused(&forebay(&["down", "--state", path]), "not a state folder");
    assert_refused(&forebay(&["fsck", "--state", path]), "not a state folder");
    assert_refused(
        &forebay(&["down", "--state", "/nowhere/at/all"]),
        "No such file",
    );
    // One that is mounted on this machine would be found, and stopped.
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    if !mounts.contains("fuse.forebay") {
        assert_refused(&forebay(&["down"]), "give --state DIR");
    }
    assert_refused(&forebay(&["where", path]), "not in a burst buffer");
    std::fs::write(state.path().join("forebay.lock"), "1\n").expect("write");
    assert_refused(
        &forebay(&["status", "--state", path]),
        "no burst buffer is running",
    );
    assert_refused(
        &forebay(&["down", "--state", path]),
        "no burst buffer is running on it",
    );
}

#[test]
fn another_users_burst_buffer_is_explained() {
    let running = running(Fake {
        foreign: true,
        ..quiet()
    });
    assert_refused(&on_state(&running, &["down"]), "started by another user");
    assert_refused(&on_state(&running, &["fsck"]), "not allowed to check it");
}

#[test]
fn fsck_exit_codes_follow_what_remains() {
    let code = |findings: Vec<Finding>, args: &[&str]| {
        let output = on_state(
            &running(Fake {
                findings,
                foreign: false,
            }),
            args,
        );
        output.status.code()
    };
    assert_eq!(code(vec![], &["fsck"]), Some(0));
    assert_eq!(code(vec![finding("orphan", true)], &["fsck"]), Some(0));
    assert_eq!(
        code(vec![finding("orphan", true)], &["fsck", "--dry-run"]),
        Some(3)
    );
    assert_eq!(code(vec![finding("orphan", false)], &["fsck"]), Some(3));
    assert_eq!(
        code(
            vec![finding("checksum mismatch", false)],
            &["fsck", "--checksums"]
        ),
        Some(5)
    );
}

#[test]
fn a_drain_that_does_not_end_in_time_names_what_is_left() {
    let running = running(quiet());
    let output = on_state(
        &running,
        &["down", "--drain", "--timeout", "200ms", "--json"],
    );
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("goes on running and draining"), "{text}");
    assert!(
        text.contains("left: /bb/a\n") && text.contains("left: /bb/b\n"),
        "{text}"
    );
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["outcome"], "timed-out");
    assert_eq!(value["undrained_bytes"], 2 << 20);
    assert_eq!(value["left"][1]["path"], "/bb/b");
}

/// `pfs`, `mnt` and `file` in a folder.
fn ground() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().expect("tempdir");
    let base: PathBuf = std::fs::canonicalize(folder.path()).expect("canonical");
    for name in ["pfs", "pfs/sub", "mnt"] {
        std::fs::create_dir(base.join(name)).expect("mkdir");
    }
    std::fs::write(base.join("file"), "x").expect("write");
    (folder, move |name| {
        base.join(name).to_str().expect("UTF-8").to_string()
    })
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("readable").count()
}

#[test]
fn bad_input_to_up_is_one_line_and_changes_nothing() {
    let (folder, at) = ground();
    let up = |pfs: &str, mount: &str, more: &[&str]| {
        let (pfs, mount, state) = (at(pfs), at(mount), at("state"));
        let mut args = vec!["up", "--pfs", &pfs, "--mount", &mount, "--state", &state];
        args.extend(more);
        forebay(&args)
    };
    let dram: &[&str] = &["--dram", "64MiB"];
    for detach in [&[][..], &["--detach"]] {
        let more = &[dram, detach].concat();
        assert_refused(&up("none", "mnt", more), "No such file or directory");
        assert_refused(&up("file", "mnt", more), "is a file");
        assert_refused(&up("pfs", "none", more), "make an empty directory for it");
        assert_refused(&up("pfs", "file", more), "is a file");
        assert_refused(&up("pfs", "pfs/sub", more), "lies inside the PFS");
        assert_refused(
            &up("pfs", "mnt", &[&["--dram", "900PiB"], detach].concat()),
            "memory available",
        );
    }
    assert_refused(&up("pfs", "mnt", &["--dram", "none"]), "neither --dram");
    assert_refused(
        &up("pfs", "mnt", &["--dram", "4 apples"]),
        "has no known unit",
    );
    assert_refused(&up("pfs", "mnt", &["--dram", "0"]), "the least is");
    assert_refused(
        &up("pfs", "mnt", &["--dram", "1GiB", "--policy", "best"]),
        "bbos, maxbw",
    );
    assert_refused(
        &up("pfs", "mnt", &["--dram", "1GiB", "--frobnicate"]),
        "--frobnicate",
    );
    assert_refused(
        &up("pfs", "mnt", &["--ssd", "/nowhere/nvme"]),
        "make the directory first",
    );
    let config = at("bb.toml");
    std::fs::write(&config, "dram = \"64MiB\"\ndarm = 1\n").expect("write");
    assert_refused(
        &up("pfs", "mnt", &["--config", &config]),
        "line 2: unknown field `darm`",
    );
    assert_eq!(entries(folder.path()), 4, "pfs, mnt, file, bb.toml");
    assert_eq!(
        (
            entries(&folder.path().join("pfs")),
            entries(&folder.path().join("mnt"))
        ),
        (1, 0)
    );
}

#[test]
fn a_check_says_what_a_start_would_say_and_starts_nothing() {
    let (folder, at) = ground();
    let check = |pfs: &str, more: &[&str]| {
        let (pfs, mount, state) = (at(pfs), at("mnt"), at("state"));
        let mut args = vec!["up", "--check", "--pfs", &pfs, "--mount", &mount];
        args.extend(["--state", &state]);
        args.extend(more);
        forebay(&args)
    };
    let good = check("pfs", &["--dram", "64MiB"]);
    let said = String::from_utf8_lossy(&good.stdout);
    assert!(good.status.success(), "{good:?}");
    assert!(said.starts_with("memory in front of "), "{said}");
    assert!(said.ends_with("nothing was started\n"), "{said}");
    assert!(said.contains("with 64.0 MiB of memory;"), "{said}");
    let by_default = check("pfs", &["--dram-max", "64MiB"]);
    let said = String::from_utf8_lossy(&by_default.stdout);
    assert!(said.contains("with up to 64.0 MiB of memory;"), "{said}");
    assert_refused(&check("file", &["--dram", "64MiB"]), "is a file");
    assert_refused(&check("pfs", &["--dram", "900PiB"]), "memory available");
    assert_eq!(entries(folder.path()), 3, "pfs, mnt, file");
}

#[test]
fn the_environment_is_heard() {
    let (_folder, at) = ground();
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args([
            "up",
            "--pfs",
            &at("pfs"),
            "--mount",
            &at("mnt"),
            "--state",
            &at("state"),
        ])
        .env("FOREBAY_DRAM", "plenty")
        .output()
        .expect("runs");
    assert_refused(&output, "environment variable FOREBAY_DRAM: 'plenty'");
}

#[test]
fn plan_prints_the_equations_solution() {
    let output = forebay(&[
        "plan",
        "--capacity",
        "3.2TB",
        "--dwpp",
        "3.84TB",
        "--bw-max",
        "3.56e9",
        "--bw-min",
        "3e9",
        "--br-max",
        "1.6e9",
        "--br-min",
        "80000000",
        "--period",
        "3800",
        "--json",
    ]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&value["pattern"], &value["feasible"]),
        (&Value::from(2), &Value::from(true))
    );
    let share = value["start_dwsf_bytes"].as_f64().expect("number") / 3.2e12;
    assert!((share - 0.459).abs() < 1e-3, "{share}");
}

#[test]
fn plan_refuses_numbers_that_make_no_sense_and_draws_the_others() {
    let plan = |changed: &str, to: &str| {
        let mut args = vec!["plan"];
        for (flag, value) in [
            ("--capacity", "3.2TB"),
            ("--dwpp", "5TB"),
            ("--bw-max", "3.56GB/s"),
            ("--bw-min", "3GB/s"),
            ("--br-max", "1.6GB/s"),
            ("--br-min", "80MB/s"),
            ("--period", "3800s"),
        ] {
            args.extend([flag, if flag == changed { to } else { value }]);
        }
        forebay(&args)
    };
    for (flag, value, why) in [
        (
            "--br-min",
            "2GB/s",
            "Brmin 2000000000 exceeds Brmax 1600000000",
        ),
        (
            "--bw-min",
            "4GB/s",
            "Bwmin 4000000000 exceeds Bwmax 3560000000",
        ),
        ("--period", "0s", "period must be a positive number"),
        ("--capacity", "0", "S must be a positive number"),
        ("--br-max", "0", "Brmax must be a positive number"),
        ("--dwpp", "nan", "DWPP must be zero or a positive number"),
    ] {
        let output = plan(flag, value);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{flag} {value}: {said}");
        assert!(said.contains(why), "{flag} {value}: {said}");
    }
    let output = plan("", "");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    for part in ["pattern 3", "writes ", "demotion ", "feasible    the burst"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn keygen_makes_one_key_and_says_where() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("bb0.key");
    let text = path.to_str().expect("UTF-8");
    let made = forebay(&["keygen", text]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(
        said.starts_with(&format!("the key is in {text}\n")),
        "{said}"
    );
    assert!(said.contains("copy it to every node"), "{said}");
    let meta = std::fs::metadata(&path).expect("made");
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    let key = std::fs::read_to_string(&path).expect("text");
    let secret = key.trim_start_matches("forebay-key-1 ").trim_end();
    assert_eq!(secret.len(), 64, "{key}");
    assert!(!said.contains(secret) && !stderr(&made).contains(secret));
    assert_refused(&forebay(&["keygen", text]), "a key is never replaced");
    assert_eq!(std::fs::read_to_string(&path).expect("text"), key);
    let nowhere = folder.path().join("none/bb0.key");
    let nowhere = nowhere.to_str().expect("UTF-8");
    assert_refused(&forebay(&["keygen", nowhere]), "No such file or directory");
    assert_refused(&forebay(&["keygen"]), "<FILE>");
}

/// A cluster on this machine: its file, with these tiers. Nobody listens at its address.
fn cluster_file(at: &dyn Fn(&str) -> String, tiers: &str) -> String {
    let key = at("key");
    if !Path::new(&key).exists() {
        assert_eq!(forebay(&["keygen", &key]).status.code(), Some(0));
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("bound");
    let (pfs, state, file) = (at("pfs"), at("state"), at("cluster.toml"));
    let text = format!(
        "[cluster]\nname = \"bb0\"\npfs = \"{pfs}\"\nkey = \"{key}\"\n[[server]]\nid = 1\n\
         roles = [\"metadata\", \"data\"]\naddresses = [\"{address}\"]\nstate = \"{state}\"\n{tiers}\n"
    );
    std::fs::write(&file, text).expect("write");
    file
}

#[test]
fn a_server_is_refused_in_the_words_of_its_file() {
    let (folder, at) = ground();
    for (tiers, part) in [
        (format!("ssd = [\"{}\"]", at("none")), ": No such file or"),
        (
            format!("ssd = [\"{}\"]", at("file")),
            "is a file; give a directory",
        ),
        ("dram = \"900PiB\"".into(), "dram 900.0 PiB is more than"),
        (String::new(), "has neither dram nor ssd"),
    ] {
        let file = cluster_file(&at, &tiers);
        let refused = forebay(&["server", "--config", &file, "--id", "1"]);
        assert_refused(&refused, part);
        let said = stderr(&refused);
        let of_up = ["--ssd", "--dram", "up:", "forebay up"];
        assert!(!of_up.iter().any(|word| said.contains(word)), "{said}");
        assert!(!folder.path().join("state").exists(), "{tiers}");
    }
}

#[test]
fn a_mount_that_fails_leaves_its_run_folder_as_it_was() {
    let (folder, at) = ground();
    let file = cluster_file(&at, "dram = \"64MiB\"");
    let run = folder.path().join("run");
    for dir in ["none", "file", "mnt"] {
        for detach in [&[][..], &["--detach"]] {
            let dir = at(dir);
            let mut mount = Command::new(env!("CARGO_BIN_EXE_forebay"));
            mount.args(["mount", "--config", &file, &dir]).args(detach);
            let refused = mount.env("FOREBAY_RUN", &run).output().expect("runs");
            assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
            assert!(!run.exists(), "{dir} {detach:?}: {}", stderr(&refused));
        }
    }
}
