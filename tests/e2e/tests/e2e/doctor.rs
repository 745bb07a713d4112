//! `forebay doctor` on file systems that lack something, and what it leaves there.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_testkit::{
    FusePfs, LONG, LoopFs, Output, When, bare_command, needs_file, needs_root,
    program_for_everybody, run_bounded, wait_until,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const NOBODY: &str = "65534";

fn doctor<S: AsRef<OsStr>>(args: &[S]) -> Output {
    let mut command = bare_command();
    run_bounded(command.arg("doctor").args(args), LONG)
}

/// `--json` of one directory; the exit code says whether anything is bad.
#[track_caller]
fn look_at(flag: &str, dir: &Path) -> Value {
    let args: [&OsStr; 3] = [flag.as_ref(), dir.as_os_str(), "--json".as_ref()];
    checked(doctor(&args))
}

#[track_caller]
fn checked(output: Output) -> Value {
    let value = output.json();
    let bad = value["bad"].as_u64().expect("a count");
    assert_eq!(output.code, if bad > 0 { 3 } else { 0 }, "{output:?}");
    assert_eq!(output.stderr, "");
    value
}

/// The grade of a check in an area, what was found and what to do.
#[track_caller]
fn found(value: &Value, area: &str, check: &str) -> (String, String, String) {
    let all = value["findings"].as_array().expect("a list");
    let one = all
        .iter()
        .find(|one| one["area"] == area && one["check"] == check)
        .unwrap_or_else(|| panic!("{area} {check}: {value:#}"));
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_string();
    (text("grade"), text("found"), text("todo"))
}

#[track_caller]
fn grade(value: &Value, area: &str, check: &str) -> String {
    found(value, area, check).0
}

#[track_caller]
fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).expect("read_dir").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A file system in memory, unmounted on drop.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(point: PathBuf, options: &str) -> Tmpfs {
        fs::create_dir(&point).expect("mkdir");
        let options = std::ffi::CString::new(options).expect("options");
        mount(
            "doctor",
            &point,
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("mount");
        Tmpfs(point)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn doctor_looks_at_the_machine_and_at_directories_and_leaves_nothing() {
    let base = tempfile::tempdir().expect("folder");
    let [pfs, ssd] = ["pfs", "ssd"].map(|name| base.path().join(name));
    for dir in [&pfs, &ssd] {
        fs::create_dir(dir).expect("mkdir");
    }
    let sized = format!("{}:1GiB", ssd.display());
    let args = [
        "--pfs".as_ref(),
        pfs.as_os_str(),
        "--ssd".as_ref(),
        sized.as_ref(),
    ];
    let output = doctor(&args);
    for heading in [
        "machine".to_string(),
        format!("flash {}", ssd.display()),
        format!("pfs {}", pfs.display()),
    ] {
        assert!(
            output.stdout.lines().any(|line| line == heading),
            "{heading}: {output:?}"
        );
    }
    // What is not well says what to do in the next line.
    let lines: Vec<&str> = output.stdout.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("  slow") || line.starts_with("  bad") {
            assert!(lines[at + 1].starts_with("        -> "), "{line}");
        }
    }
    let args: Vec<&OsStr> = args.into_iter().chain(["--json".as_ref()]).collect();
    let value = checked(doctor(&args));
    assert_eq!(grade(&value, "machine", "kernel"), "ok");
    assert_eq!(grade(&value, "pfs", "hard links"), "ok");
    assert_eq!(grade(&value, "pfs", "apart from flash"), "slow");
    let all = value["findings"].as_array().expect("a list");
    let fsyncs = all.iter().find(|one| one["check"] == "flushes");
    if let Some(fsyncs) = fsyncs {
        assert!(
            fsyncs["measured"]["fsync_median_s"].as_f64() > Some(0.0),
            "{fsyncs}"
        );
    }
    let published = all
        .iter()
        .find(|one| one["check"] == "small files")
        .expect("measured");
    assert!(
        published["measured"]["files"].as_u64() >= Some(3),
        "{published}"
    );
    assert_empty(&pfs);
    assert_empty(&ssd);
}

#[test]
fn doctor_asks_the_kernel_for_passthrough_where_it_may() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let before = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let value = checked(doctor(&["--json"]));
    let (_, said, _) = found(&value, "machine", "fuse passthrough");
    assert!(said.contains("(protocol 7."), "{said}");
    let forebays = |text: &str| {
        text.lines()
            .filter(|line| line.contains("forebay-doctor"))
            .count()
    };
    let after = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert_eq!((forebays(&before), forebays(&after)), (0, 0));
}

#[test]
fn doctor_memory_is_no_flash_and_a_pfs_for_a_try_only() {
    if needs_root() {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let memory = Tmpfs::new(base.path().join("memory"), "size=64m");
    let value = look_at("--ssd", &memory.0);
    assert_eq!(grade(&value, "flash", "file system"), "bad");
    let value = look_at("--pfs", &memory.0);
    assert_eq!(grade(&value, "pfs", "file system"), "note");
    assert_empty(&memory.0);
}

#[test]
fn doctor_finds_too_little_space_and_too_few_inodes() {
    if needs_root() {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let small = Tmpfs::new(base.path().join("small"), "size=2m");
    let value = look_at("--pfs", &small.0);
    assert_eq!(grade(&value, "pfs", "space"), "bad");
    let few = Tmpfs::new(base.path().join("few"), "size=64m,nr_inodes=4");
    let value = look_at("--pfs", &few.0);
    let (grade, said, _) = found(&value, "pfs", "trials");
    assert_eq!(grade, "bad");
    assert!(said.contains("No space left on device"), "{said}");
    assert_empty(&few.0);
}

#[test]
fn doctor_finds_mount_options_under_which_an_fsync_is_not_one() {
    if needs_root() || needs_file("/dev/loop-control") {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let point = base.path().join("flash");
    fs::create_dir(&point).expect("mkdir");
    let disk = LoopFs::new(base.path(), &point, 64 << 20);
    let remount = |how: &str| {
        let mut mount = Command::new("mount");
        run_bounded(
            mount.args(["-o", &format!("remount,{how}")]).arg(&point),
            LONG,
        )
        .ok();
    };
    remount("noatime");
    let value = look_at("--ssd", &point);
    assert_eq!(grade(&value, "flash", "file system"), "ok");
    let (kind, said, _) = found(&value, "flash", "device");
    assert!(
        kind == "note" && said.contains("flash.img"),
        "{kind} {said}"
    );
    let flushes = |value: &Value| {
        let all = value["findings"].as_array().expect("a list");
        let one = all
            .iter()
            .find(|one| one["check"] == "flushes")
            .expect("measured");
        (one["grade"].clone(), one["measured"]["flushes"].as_u64())
    };
    let (kind, sent) = flushes(&value);
    assert!(kind != "bad" && sent >= Some(3), "{value:#}");
    remount("nobarrier");
    let value = look_at("--ssd", &point);
    let (kind, said, todo) = found(&value, "flash", "mount options");
    assert!(
        kind == "bad" && said.contains("nobarrier") && todo.contains("barriers"),
        "{said} {todo}"
    );
    // Not only the option: no flush reaches the device.
    assert_eq!(flushes(&value), ("bad".into(), Some(0)), "{value:#}");
    assert_empty(&point);
    drop(disk);
}

#[test]
fn doctor_finds_a_file_system_that_is_read_only() {
    if needs_root() || needs_file("/dev/loop-control") {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    let point = base.path().join("disk");
    fs::create_dir(&point).expect("mkdir");
    let disk = LoopFs::new(base.path(), &point, 64 << 20);
    disk.read_only(true);
    let value = look_at("--pfs", &point);
    assert_eq!(grade(&value, "pfs", "file system"), "bad");
    let (kind, said, _) = found(&value, "pfs", "writing");
    assert!(
        kind == "bad" && said.contains("Read-only file system"),
        "{said}"
    );
    let value = look_at("--ssd", &point);
    assert_eq!(grade(&value, "flash", "mount options"), "bad");
}

#[test]
fn doctor_runs_for_an_ordinary_user_and_says_what_that_user_may_not() {
    if needs_root() {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = program_for_everybody(base.path());
    let dir = base.path().join("roots");
    fs::create_dir(&dir).expect("mkdir");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command
        .arg(program)
        .args(["doctor", "--json", "--pfs"])
        .arg(&dir);
    let value = checked(run_bounded(&mut command, LONG));
    assert_eq!(grade(&value, "machine", "rights"), "note");
    assert_eq!(grade(&value, "machine", "fuse passthrough"), "slow");
    let (kind, said, todo) = found(&value, "pfs", "writing");
    assert!(
        kind == "bad" && said.contains("Permission denied"),
        "{said}"
    );
    assert!(todo.contains("was not tried"), "{todo}");
    // Nor is it said.
    let all = value["findings"].as_array().expect("a list");
    assert!(
        !all.iter().any(|one| one["check"] == "hard links"),
        "{value:#}"
    );
}

/// `--json` of the machine, under a program that takes something away first.
#[track_caller]
fn under(program: &str, args: &[&str]) -> Value {
    let mut command = Command::new(program);
    let doctor = forebay_testkit::program();
    checked(run_bounded(
        command.args(args).arg(doctor).args(["doctor", "--json"]),
        LONG,
    ))
}

#[test]
fn doctor_finds_limits_and_rights_that_are_missing() {
    if needs_root() {
        return;
    }
    let value = under("prlimit", &["--nofile=2000"]);
    assert_eq!(grade(&value, "machine", "open files"), "ok");
    let without = ["--bounding-set", "-sys_resource", "prlimit", "--nofile=512"];
    let value = under("setpriv", &without);
    let (kind, said, todo) = found(&value, "machine", "open files");
    assert!(
        kind == "slow" && said.starts_with("512 ") && todo.contains("1024"),
        "{said} {todo}"
    );
    let value = under("setpriv", &["--bounding-set", "-sys_admin"]);
    assert_eq!(grade(&value, "machine", "rights"), "note");
    let (kind, said, _) = found(&value, "machine", "fuse");
    assert!(
        kind == "bad" && said.contains("CAP_SYS_ADMIN"),
        "{kind} {said}"
    );
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if setting.is_ok_and(|value| value.trim() == "1") {
        forebay_testkit::skip("every user may use userfaultfd here");
        return;
    }
    let value = under("setpriv", &["--bounding-set", "-sys_ptrace"]);
    let (kind, said, todo) = found(&value, "machine", "userfaultfd");
    assert!(
        kind == "bad" && said.contains("Operation not permitted"),
        "{kind} {said}"
    );
    assert!(todo.contains("--no-passthrough"), "{todo}");
}

#[test]
fn doctor_finds_too_few_tasks() {
    if needs_root() {
        return;
    }
    let base = tempfile::tempdir().expect("folder");
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = program_for_everybody(base.path());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command
        .args(["prlimit", "--nproc=100"])
        .arg(program)
        .args(["doctor", "--json"]);
    let value = checked(run_bounded(&mut command, LONG));
    let (kind, said, _) = found(&value, "machine", "tasks");
    assert!(kind == "bad" && said.contains("ulimit -u"), "{kind} {said}");
}

/// A control group of version 1; removed on drop.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn doctor_finds_a_limit_on_memory_that_up_does_not_look_at() {
    let root = "/sys/fs/cgroup/memory/cgroup.procs";
    if needs_root() || needs_file(root) {
        return;
    }
    let name = format!("forebay-doctor-{}", std::process::id());
    let group = Group(Path::new(root).with_file_name(name));
    fs::create_dir(&group.0).expect("a group");
    fs::write(group.0.join("memory.limit_in_bytes"), "536870912").expect("limit");
    let line = format!(
        "echo $$ > {}/cgroup.procs && exec \"$@\"",
        group.0.display()
    );
    let value = under("sh", &["-c", &line, "sh"]);
    let (kind, said, _) = found(&value, "machine", "control groups");
    assert!(
        kind == "note" && said.contains("512.0 MiB by version 1"),
        "{kind} {said}"
    );
}

#[test]
fn doctor_finds_what_a_fuse_pfs_lacks_and_as_whom_it_takes_root() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let cluster = forebay_testkit::Cluster::builder()
        .squashing_pfs(65534)
        .lazy()
        .up();
    let value = look_at("--pfs", &cluster.pfs(""));
    let (kind, said, _) = found(&value, "pfs", "root");
    assert!(
        kind == "note" && said.contains("belongs to user 65534"),
        "{said}"
    );
    assert_eq!(grade(&value, "pfs", "unnamed files"), "note");
    assert_eq!(grade(&value, "pfs", "birth times"), "note");
    // The mount itself is no PFS.
    let value = look_at("--pfs", &cluster.mnt(""));
    let (kind, _, todo) = found(&value, "pfs", "file system");
    assert!(kind == "bad" && todo.contains("behind it"), "{todo}");
    assert_empty(&cluster.pfs(""));
}

/// A doctor that is in the midst of looking at a PFS that does not answer a rename.
struct Stuck {
    _base: tempfile::TempDir,
    pfs: FusePfs,
    child: std::process::Child,
    stderr: PathBuf,
}

impl Stuck {
    fn new() -> Stuck {
        let base = tempfile::tempdir().expect("folder");
        let point = base.path().join("pfs");
        fs::create_dir(&point).expect("mkdir");
        let pfs = FusePfs::new(base.path(), &point);
        pfs.hold("rename", When::Before, "");
        let stderr = base.path().join("stderr");
        let child = bare_command()
            .args(["doctor", "--pfs"])
            .arg(&point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&stderr).expect("file"))
            .spawn()
            .expect("it runs");
        pfs.wait_held("rename");
        Stuck {
            _base: base,
            pfs,
            child,
            stderr,
        }
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("signal");
    }

    fn code(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the end of the doctor", || {
            code = self.child.try_wait().expect("child");
            code.is_some()
        });
        code.and_then(|code| code.code())
    }

    fn left(&self) -> usize {
        fs::read_dir(self.pfs.behind("")).expect("read_dir").count()
    }
}

#[test]
fn doctor_removes_its_files_when_it_is_interrupted() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let mut stuck = Stuck::new();
    assert_eq!(stuck.left(), 1);
    stuck.interrupt();
    std::thread::sleep(Duration::from_millis(300));
    stuck.pfs.let_go("rename");
    assert_eq!(stuck.code(), Some(130));
    assert_eq!(stuck.left(), 0);
    assert_eq!(fs::read_to_string(&stuck.stderr).expect("stderr"), "");
}

#[test]
fn doctor_names_what_it_has_to_leave_in_a_directory_that_hangs() {
    if needs_root() || needs_file("/dev/fuse") {
        return;
    }
    let mut stuck = Stuck::new();
    stuck.interrupt();
    let said = || fs::read_to_string(&stuck.stderr).expect("stderr");
    wait_until("it says what it leaves", || {
        said().contains("may be left there; remove it\n")
    });
    assert!(said().contains("/pfs/.forebay-doctor-"), "{}", said());
    // Only a request of the file system itself holds the process up now.
    stuck.pfs.let_go("rename");
    assert_eq!(stuck.code(), Some(130));
}

/// Server 1 of a cluster; stopped on drop.
struct Server(PathBuf);

impl Server {
    fn start(config: &Path, state: PathBuf) -> Server {
        let mut command = bare_command();
        command.args(["server", "--id", "1", "--detach", "--config"]);
        run_bounded(command.arg(config), LONG).ok();
        Server(state)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut command = bare_command();
        run_bounded(command.args(["down", "--state"]).arg(&self.0), LONG);
    }
}

#[test]
fn doctor_looks_at_what_a_cluster_asks_of_this_node() {
    let base = tempfile::tempdir().expect("folder");
    let at = |name: &str| base.path().join(name);
    for name in ["pfs", "ssd"] {
        fs::create_dir(at(name)).expect("mkdir");
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("address").port();
    let shown = base.path().display();
    // The second address is set aside for documents (RFC 5737): nobody's.
    let text = format!(
        "[cluster]\nname = \"d\"\npfs = \"{shown}/pfs\"\nkey = \"{shown}/key\"\n\n\
         [[server]]\nid = 1\nroles = [\"metadata\", \"data\"]\naddresses = [\"127.0.0.1:{port}\"]\n\
         state = \"{shown}/state\"\nssd = [\"{shown}/ssd:64MiB\"]\n\n\
         [[server]]\nid = 2\nroles = [\"data\"]\naddresses = [\"192.0.2.1:7070\"]\n\
         state = \"{shown}/state2\"\nssd = [\"{shown}/none:64MiB\"]\n"
    );
    let config = at("cluster.toml");
    fs::write(&config, text).expect("config");
    let value = look_at("--config", &config);
    assert_eq!(grade(&value, "cluster", "key"), "bad");
    let (kind, said, todo) = found(&value, "cluster", "ports");
    assert!(
        kind == "bad" && said.contains(&port.to_string()) && todo.contains("ss -tlnp"),
        "{said}"
    );
    let (kind, said, _) = found(&value, "cluster", "servers elsewhere");
    assert!(
        kind == "note" && said.starts_with("server 2: 192.0.2.1:7070"),
        "{said}"
    );
    drop(taken);
    let mut keygen = bare_command();
    run_bounded(keygen.arg("keygen").arg(at("key")), LONG).ok();
    let value = look_at("--config", &config);
    for check in ["file", "key", "addresses", "ports", "state folder"] {
        assert_eq!(grade(&value, "cluster", check), "ok", "{check}");
    }
    // This node's directories, and no others.
    assert_eq!(grade(&value, "flash", "writing"), "ok");
    assert_eq!(grade(&value, "pfs", "writing"), "ok");
    let all = value["findings"].as_array().expect("a list");
    assert!(
        !all.iter()
            .any(|one| one["path"] == at("none").to_str().expect("UTF-8"))
    );
    // The port is taken again, by the very server.
    let server = Server::start(&config, at("state"));
    let value = look_at("--config", &config);
    let (kind, said, _) = found(&value, "cluster", "ports");
    assert!(
        kind == "ok" && said.contains("is in use, and the server runs"),
        "{said}"
    );
    drop(server);
    fs::set_permissions(at("key"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let value = look_at("--config", &config);
    assert_eq!(grade(&value, "cluster", "key"), "bad");
    assert_empty(&at("pfs"));
    let scratch = fs::read_dir(at("ssd")).expect("read_dir").filter(|entry| {
        let name = entry.as_ref().expect("entry").file_name();
        name.to_string_lossy().starts_with(".forebay-doctor-")
    });
    assert_eq!(scratch.count(), 0);
}

#[test]
fn doctor_refuses_wrong_usage_in_one_line() {
    let output = doctor(&["--ssd", ""]).expect_code(1);
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    let output = doctor(&["--config", "/nowhere/cluster.toml"]).expect_code(3);
    assert!(
        output.stdout.contains("bad   file: /nowhere/cluster.toml"),
        "{output:?}"
    );
}
