//! What several tests do.

use std::path::Path;
use std::process::Command;

use forebay_testkit::{Cluster, LONG, Output, run_bounded};

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
