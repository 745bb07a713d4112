//! Which burst buffer a command means.

use std::path::{Path, PathBuf};

use forebay_types::Errno;

use crate::exit::{Explain, Failure};
use crate::mounts::{self, MountEntry};
use crate::starter::STATE_TAKES;

/// The state folder that the user named with `--state` or `FOREBAY_STATE`, canonical; if there is
/// none, that of the only burst buffer mounted here.
pub fn state_or_only(named: Option<&Path>) -> Result<PathBuf, Failure> {
    match named_state(named)? {
        Some(state) => Ok(state),
        None => only(&mount_table()?),
    }
}

/// The state folder that the user named, canonical.
pub fn named_state(named: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let named = match named {
        Some(path) => path.to_path_buf(),
        None => match std::env::var_os("FOREBAY_STATE").filter(|value| !value.is_empty()) {
            Some(value) => PathBuf::from(value),
            None => return Ok(None),
        },
    };
    std::fs::canonicalize(&named)
        .explain(named.display(), STATE_TAKES)
        .map(Some)
}

/// The mount table, or why it cannot be read.
pub fn mount_table() -> Result<Vec<MountEntry>, Failure> {
    mounts::read().explain("/proc/self/mountinfo", "is /proc mounted?")
}

fn only(table: &[MountEntry]) -> Result<PathBuf, Failure> {
    let mut found: Vec<&MountEntry> = Vec::new();
    for entry in table.iter().filter(|entry| entry.is_forebay()) {
        if found.iter().all(|other| other.source != entry.source) {
            found.push(entry);
        }
    }
    match found[..] {
        [] => Err(Failure::fatal(
            "no burst buffer is mounted here; start one with `forebay up`, or give --state DIR (of a server: \
             the `state` in cluster.toml)",
        )
        .with(Errno::ENOTCONN)),
        [one] => Ok(one.source.clone()),
        _ => {
            let list: Vec<String> = found
                .iter()
                .map(|e| {
                    format!(
                        "--state {} (mounted on {})",
                        e.source.display(),
                        e.point.display()
                    )
                })
                .collect();
            Err(Failure::fatal(format!(
                "{} burst buffers are mounted here; say which one: {}",
                found.len(),
                list.join(", ")
            ))
            .with(Errno::EINVAL))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "40 22 0:40 / /bb rw - fuse.forebay /var/bb rw\n";

    #[test]
    fn the_only_one_needs_no_name() {
        let two = format!("{ONE}41 22 0:40 /x /srv rw - fuse.forebay /var/bb rw\n");
        assert_eq!(
            only(&mounts::parse(two.as_bytes())),
            Ok(PathBuf::from("/var/bb"))
        );
        let none = only(&mounts::parse(b"")).unwrap_err();
        assert!(none.message.contains("forebay up"));
    }

    #[test]
    fn several_are_listed() {
        let two = format!("{ONE}41 22 0:41 / /b2 rw - fuse.forebay /var/b2 rw\n");
        let message = only(&mounts::parse(two.as_bytes())).unwrap_err().message;
        assert_eq!(
            message,
            "2 burst buffers are mounted here; say which one: --state /var/bb (mounted on /bb), \
             --state /var/b2 (mounted on /b2)"
        );
    }
}
