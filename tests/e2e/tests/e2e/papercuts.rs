//! Small things that everybody meets once.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use forebay_testkit::{
    Cluster, LONG, Output, bare_command, needs_root, pattern, program, program_for_everybody,
    run_bounded, without_settings, write_file,
};

const ALICE: u32 = 12_347;
const BOB: u32 = 12_348;

#[test]
fn command_up_tells_of_another_burst_buffer_in_front_of_the_same_files() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().up();
    fs::create_dir_all(cluster.pfs("a/b")).expect("mkdir");
    fs::create_dir(cluster.base().join("beside")).expect("mkdir");
    let second = tempfile::tempdir().expect("a folder");
    let (mount, state) = (second.path().join("mnt"), second.path().join("state"));
    fs::create_dir(&mount).expect("mkdir");
    let asked = |pfs: &Path, last: &[&str]| {
        let mut command = bare_command();
        command.args(["up", "--dram", "16MiB", "--pfs"]).arg(pfs);
        command.arg("--mount").arg(&mount);
        command.arg("--state").arg(&state);
        run_bounded(command.args(last), LONG).ok()
    };
    let said = format!(
        "has another burst buffer in front of it, mounted on {} (state {})",
        cluster.mnt("").display().to_string().trim_end_matches('/'),
        cluster.state().display()
    );
    for (pfs, tells) in [
        (cluster.pfs("").components().collect(), true),
        (cluster.pfs("a/b"), true),
        (cluster.base().to_path_buf(), true),
        (cluster.base().join("beside"), false),
    ] {
        let output = asked(&pfs, &["--check"]);
        assert_eq!(output.stderr.contains(&said), tells, "{pfs:?}: {output:?}");
        assert!(!state.exists());
    }
    let pfs = cluster.pfs("a");
    let started = asked(&pfs, &["--detach"]);
    let log = fs::read_to_string(state.join("forebay.log"));
    let mut down = bare_command();
    down.args(["down", "--state"]).arg(&state);
    run_bounded(&mut down, LONG).ok();
    assert!(started.stderr.contains(&said), "{started:?}");
    assert!(log.expect("a log").contains(&said));
}

/// What a user without rights says of a path.
fn ordered(cluster: &Cluster, program: &Path, user: u32, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(cluster.base());
    run_bounded(without_settings(command.uid(user).gid(user)), LONG)
}

#[test]
fn command_stage_in_takes_what_the_user_may_read() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let program = program_for_everybody(cluster.base());
    for (name, mode, owner) in [
        ("in/open", 0o644, ALICE),
        ("in/closed", 0o600, ALICE),
        ("in/own", 0o600, BOB),
    ] {
        let path = cluster.pfs(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        write_file(&path, pattern(7, 1000));
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
        chown(&path, Some(owner), Some(owner)).expect("chown");
    }
    let path = |name: &str| cluster.mnt(name).to_str().expect("UTF-8").to_string();
    for command in ["stage-in", "prefetch"] {
        let output = ordered(&cluster, &program, BOB, &[command, &path("in")]);
        assert_eq!(output.code, 3, "{output:?}");
        let refused = format!("{}: not your file", path("in/closed"));
        assert!(output.stderr.contains(&refused), "{output:?}");
        assert_eq!(output.stderr.matches("not your").count(), 1, "{output:?}");
        assert_eq!(cluster.where_state("in/open"), "clean");
        assert_eq!(cluster.where_state("in/own"), "clean");
        assert_eq!(cluster.where_state("in/closed"), "pfs");
    }
    // What takes something away is for the owner.
    for command in ["release", "stage-out"] {
        let output = ordered(&cluster, &program, BOB, &[command, &path("in/open")]);
        assert!(output.stderr.contains("not your file"), "{output:?}");
        assert_eq!(cluster.where_state("in/open"), "clean");
    }
}

#[test]
fn down_and_fsck_name_the_burst_buffers_that_they_may_mean() {
    if needs_root() {
        return;
    }
    let (one, other) = (Cluster::builder().up(), Cluster::builder().up());
    for command in ["down", "fsck"] {
        let output = run_bounded(bare_command().arg(command), LONG).expect_code(1);
        for cluster in [&one, &other] {
            let named = format!("--state {} (mounted on ", cluster.state().display());
            assert!(output.stderr.contains(&named), "{output:?}");
        }
    }
}

#[test]
fn a_check_looks_at_the_level_of_the_log_too() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().prepare();
    let mut command = bare_command();
    command.args(cluster.up_args()).arg("--check");
    command.env("FOREBAY_LOG", "banana");
    let output = run_bounded(&mut command, LONG).expect_code(1);
    assert!(output.stderr.contains("FOREBAY_LOG=banana"), "{output:?}");
}

#[test]
fn trace_import_reads_standard_input() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let log = here.join("../../crates/twin/tests/data/slurm2sql-data1.txt");
    let import = |file: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" trace import - <\"$1\""]);
        command.arg(program()).arg(file);
        run_bounded(without_settings(&mut command), LONG)
    };
    let of_file = run_bounded(bare_command().args(["trace", "import"]).arg(&log), LONG);
    assert_eq!(import(&log).ok().stdout, of_file.ok().stdout);
    let folder = tempfile::tempdir().expect("a folder");
    let binary = folder.path().join("binary");
    fs::write(&binary, b"\xff\xfe").expect("write");
    let refused = import(&binary).expect_code(1);
    assert!(
        refused.stderr.contains("standard input: not text"),
        "{refused:?}"
    );
}
