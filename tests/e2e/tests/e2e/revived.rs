//! Servers that are started again by themselves.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use forebay_testkit::{Output, needs_nodes, wait_until};

use crate::clusters_started::{Job, ON};

const MIB: usize = 1 << 20;

fn state_of(job: &Job, node: usize) -> PathBuf {
    job.odd.join(format!("state{node}"))
}

fn ask(job: &Job, command: &str, node: usize) -> Output {
    let state = state_of(job, node);
    job.forebay(&[command.as_ref(), OsStr::new("--state"), state.as_ref()])
}

/// The process that starts the server of a node again.
fn keeper_of(job: &Job, node: usize) -> String {
    let file = state_of(job, node).join("forebay.keeper");
    fs::read_to_string(file).expect("keeper").trim().to_string()
}

fn gone(job: &Job, node: usize, pid: &str) -> bool {
    job.on(node, &["kill", "-0", pid]).code != 0
}

fn kill(job: &Job, node: usize, pid: &str) {
    job.on(node, &["kill", "-KILL", pid]).ok();
}

#[test]
fn promise_8_what_a_kernel_has_by_itself_is_read_elsewhere_after_its_server_was_killed() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &[]).ok();
    let file = job.in_mount("f");
    // The kernel of the node has by itself what is there before.
    let script =
        "head -c 1048576 /dev/zero >\"$0\"; exec 3>>\"$0\"; printf promised >&3; sync \"$0\"
        printf ' and not' >&3; echo open >\"$0.open\"; exec sleep 600";
    let mut writer = job.command_on(1, &["sh", "-c", script, &file]);
    let mut writer = writer.spawn().expect("a writer");
    wait_until("it is open", || {
        job.on(0, &["cat", &format!("{file}.open")]).code == 0
    });
    let before = job.pid_of(1);
    kill(&job, 1, &before);
    // Nobody starts it by hand.
    let read = job.on(0, &["cat", &file]).ok().stdout;
    assert_eq!(read.len(), MIB + 16);
    assert!(read.ends_with("promised and not"));
    assert_ne!(job.pid_of(1), before);
    let log = fs::read_to_string(state_of(&job, 1).join("forebay.log")).expect("log");
    let line = format!("the server (process {before}) was ended by signal 9; it is started again");
    assert!(log.contains(&line), "{log}");
    writer.kill().expect("kill");
    writer.wait().expect("wait");
    // The same of the server that has the names.
    kill(&job, 0, &job.pid_of(0));
    assert_eq!(job.on(1, &["cat", &file]).ok().stdout, read);
    job.cluster("stop", ON, &[]).ok();
    assert!(job.is_quiet() && job.odd.join("pfs/f").exists());
}

#[test]
fn command_server_restart_what_was_stopped_stays_stopped() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &[]).ok();
    // In order: it stays so, and what would start it again ends.
    ask(&job, "down", 1).ok();
    let gone = |node: usize, pid: &str| gone(&job, node, pid);
    wait_until("the keeper has ended", || gone(1, &keeper_of(&job, 1)));
    assert_eq!(ask(&job, "status", 1).code, 1);
    job.cluster("start", ON, &[]).ok();

    // A server that dies at every start is given up by hand: its configuration is gone.
    let config = job.odd.join("cluster.toml");
    let aside = job.odd.join("aside.toml");
    fs::rename(&config, &aside).expect("rename");
    let keeper = keeper_of(&job, 1);
    kill(&job, 1, &job.pid_of(1));
    let log = state_of(&job, 1).join("forebay.log");
    wait_until("a start has failed", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("not started: "))
    });
    let status = ask(&job, "status", 1);
    let says = "it is started again by itself in a moment";
    assert!(
        status.code == 1 && status.stderr.contains(says),
        "{status:?}"
    );
    let down = ask(&job, "down", 1);
    let says = "it was to be started again by itself, and is not now";
    assert!(down.code == 1 && down.stderr.contains(says), "{down:?}");
    wait_until("the keeper has ended", || gone(1, &keeper));
    let down = ask(&job, "down", 1);
    assert!(down.code == 1 && !down.stderr.contains(says), "{down:?}");
    fs::rename(&aside, &config).expect("rename");

    // A keeper that is gone leaves its server alone, and a new one takes its place.
    job.cluster("start", ON, &[]).ok();
    let server = job.pid_of(1);
    kill(&job, 1, &keeper_of(&job, 1));
    wait_until("the keeper has ended", || gone(1, &keeper_of(&job, 1)));
    ask(&job, "status", 1).ok();
    assert_eq!(job.pid_of(1), server);
    job.cluster("stop", ON, &[]).ok();
    assert!(job.is_quiet());
}

#[test]
fn command_server_restart_one_that_has_just_died_is_stopped_in_order() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &[]).ok();
    for node in [0, 1] {
        let (keeper, before) = (keeper_of(&job, node), job.pid_of(node));
        kill(&job, node, &before);
        let down = ask(&job, "down", node).ok();
        assert!(down.stdout.contains("stopped"), "{down:?}");
        wait_until("the keeper has ended", || gone(&job, node, &keeper));
        let status = ask(&job, "status", node);
        let says = "is not running; `forebay server";
        assert!(
            status.code == 1 && status.stderr.contains(says),
            "{status:?}"
        );
    }
    job.cluster("start", ON, &[]).ok();
    job.cluster("stop", ON, &[]).ok();
    assert!(job.is_quiet());
}

#[test]
fn command_status_tells_whether_a_server_is_kept() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &[]).ok();
    let keeper_in = |node: usize| {
        let state = state_of(&job, node);
        let words: [&OsStr; 4] = [
            "status".as_ref(),
            "--json".as_ref(),
            "--state".as_ref(),
            state.as_ref(),
        ];
        job.forebay(&words).ok().json()["keeper"].clone()
    };
    let again = |node: usize| {
        let config = job.odd.join("cluster.toml");
        let id = (node + 1).to_string();
        let words = ["server", "--detach", "--restart", "--id", &id, "--config"];
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        let refused = job.forebay(&[&words[..], &[config.as_ref()]].concat());
        assert_eq!(refused.code, 1, "{refused:?}");
        refused.stderr
    };
    for node in [0, 1] {
        let keeper = keeper_of(&job, node);
        let pid: u32 = keeper.parse().expect("a number");
        assert_eq!(
            keeper_in(node),
            serde_json::json!({"pid": pid, "runs": true})
        );
        let page = ask(&job, "status", node).ok().stdout;
        let says = format!("process {pid} starts this server again if it dies");
        assert!(page.contains(&says), "{page}");
        let refused = again(node);
        assert!(refused.contains("nothing is to be done"), "{refused}");
        let server = job.pid_of(node);
        kill(&job, node, &keeper);
        wait_until("it is known", || keeper_in(node)["runs"] == false);
        let page = ask(&job, "status", node).ok().stdout;
        let says = "nothing starts this server again if it dies";
        assert!(page.contains(says), "{page}");
        let refused = again(node);
        assert!(refused.contains("`forebay down --state"), "{refused}");
        assert_eq!(job.pid_of(node), server, "it goes on");
    }
    job.cluster("stop", ON, &[]).ok();
    assert!(job.is_quiet());
}

#[test]
fn command_server_restart_one_that_starts_itself_anew_is_kept_as_before() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &[]).ok();
    let file = job.in_mount("f");
    job.on(1, &["sh", "-c", "echo kept >\"$0\"; sync \"$0\"", &file])
        .ok();
    ask(&job, "down", 1).ok();
    let (keeper, before) = (keeper_of(&job, 0), job.pid_of(0));
    kill(&job, 0, &before);
    // It waits for the data server that is away, and goes on without.
    wait_until("it serves without the other", || {
        job.pid_of(0) != before && ask(&job, "status", 0).code == 0
    });
    job.cluster("start", ON, &[]).ok();
    let log = state_of(&job, 0).join("forebay.log");
    wait_until("it has started anew", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("this server starts anew"))
            && ask(&job, "status", 0).code == 0
    });
    assert_eq!(job.on(0, &["cat", &file]).ok().stdout, "kept\n");
    assert!(!gone(&job, 0, &keeper) && keeper_of(&job, 0) == keeper);
    kill(&job, 0, &job.pid_of(0));
    assert_eq!(job.on(0, &["cat", &file]).ok().stdout, "kept\n");
    job.cluster("stop", ON, &[]).ok();
    assert!(job.is_quiet());
}
