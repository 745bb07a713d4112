//! A scope of systemd for the process behind a mount that a person or a script has made.
//!
//! What the mount's unit starts is in that unit, which is stopped by an unmount. All else is in the
//! scope of a session, or in somebody's service: at a reboot systemd ends those whenever it likes,
//! and a service ends with all that it has started.

use std::path::Path;
use std::process::Command;

use super::generator::{TIMEOUT, unit_of};

/// The command that runs another one in a scope; `None` where there is no need, or no systemd.
pub fn around(place: &Path) -> Option<Command> {
    let is_booted = Path::new("/run/systemd/system").exists();
    if !is_booted || !rustix::process::geteuid().is_root() {
        return None;
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let program = std::env::current_exe().ok()?;
    (!is_of_a_mount(&groups)).then(|| {
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--collect", "--quiet"]);
        command.arg(format!("--description=Forebay mount {}", place.display()));
        // After an unmount that systemd has given up, or has not made.
        command.arg(format!("--property=TimeoutStopSec={TIMEOUT}"));
        // Units stop in the order that is the reverse of their start: first what is mounted.
        command.arg(format!("--property=Before={}", unit_of(place)));
        command.arg("--").arg(program);
        command
    })
}

/// Whether one of the control groups in the text is that of a mount's unit.
fn is_of_a_mount(groups: &str) -> bool {
    groups
        .lines()
        .any(|line| line.trim_end().ends_with(".mount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_a_mount_is_known() {
        assert!(is_of_a_mount("0::/system.slice/bb.mount\n"));
        assert!(is_of_a_mount(
            "2:cpu:/\n1:name=systemd:/system.slice/bb.mount\n"
        ));
        assert!(!is_of_a_mount(
            "0::/user.slice/user-0.slice/session-1.scope\n"
        ));
        assert!(!is_of_a_mount("0::/\n"));
    }
}
