//! Who starts a server again if it dies.

use forebay_wire::control::{KeeperStatus, StatusBits};
use serde_json::{Value, json};

use crate::show::text::show_path;

/// Of a server that was started with `--restart`.
pub fn to_json(keeper: KeeperStatus) -> Value {
    json!({ "pid": keeper.pid, "runs": keeper.runs })
}

/// In one line; empty where it was started without.
pub fn line(bits: &StatusBits) -> String {
    match bits.keeper {
        None => String::new(),
        Some(KeeperStatus { pid, runs: true }) => {
            format!("process {pid} starts this server again if it dies\n")
        }
        Some(KeeperStatus { pid, .. }) => format!(
            "nothing starts this server again if it dies: process {pid}, which was to do so, is gone. \
             `forebay down --state {}`, then the same start again, and it is kept again\n",
            show_path(&bits.state)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_kept_is_told_from_who_is_not_any_more() {
        let mut bits = StatusBits {
            state: b"/s".to_vec(),
            ..StatusBits::default()
        };
        assert_eq!(line(&bits), "");
        let mut of = |runs| {
            bits.keeper = Some(KeeperStatus { pid: 7, runs });
            line(&bits)
        };
        assert_eq!(of(true), "process 7 starts this server again if it dies\n");
        let gone = of(false);
        assert!(
            gone.starts_with("nothing starts this server again"),
            "{gone}"
        );
        assert!(gone.contains("`forebay down --state /s`"), "{gone}");
    }
}
