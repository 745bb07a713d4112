//! What several tests do.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use forebay_testkit::{Cluster, LONG, Output, run_bounded};
use rustix::process::Pid;

/// Brings a file that is in the buffer only to where it shall be.
#[track_caller]
pub fn bring(cluster: &Cluster, name: &str, kind: &str) {
    if kind != "dirty" {
        cluster.drain(name);
    }
    if kind == "pfs" {
        cluster.on_path(&["release"], name).ok();
    }
    assert_eq!(cluster.where_state(name), kind);
}

/// Runs a shell line as a user with further groups, with what root alone may do taken away.
pub fn as_user(folder: &Path, uid: u32, groups: &str, line: &str) -> Output {
    let mut command = Command::new("setpriv");
    let id = uid.to_string();
    command.args(["--reuid", &id, "--regid", &id]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    run_bounded(command.args(["sh", "-c", line]).current_dir(folder), LONG)
}

/// A process that obeys the orders of one of `programs`, a line each, and answers them likewise.
pub struct Obedient {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Obedient {
    pub fn new(program: &str) -> Obedient {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let mut child = Command::new("python3")
            .arg(programs.join(program))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let orders = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Obedient {
            child,
            orders,
            answers,
        }
    }

    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it answers");
        answer.trim().to_string()
    }

    pub fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for Obedient {
    fn drop(&mut self) {
        // It may have been killed by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
