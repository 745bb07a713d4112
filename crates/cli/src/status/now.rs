//! Who has the turn, and what is on its way, in `status`.

use std::fmt::Write;
use std::time::Duration;

use forebay_types::{format_duration, format_size};
use forebay_wire::control::{CopyStatus, MovementStatus, StatusBits, TurnStatus};
use serde_json::{Map, Value, json};

use super::mount_of;
use crate::job;
use crate::mounts::in_mount;
use crate::show::json::{self, insert_path};
use crate::show::text::show_path;

/// Seconds until a copy is done, if all that are under way share the rate of the drain; `None`
/// while nothing moves.
fn copy_eta_s(bits: &StatusBits, copy: &CopyStatus) -> Option<f64> {
    let rate = bits.drain_rate_bytes_per_s as f64 / bits.copies.len().max(1) as f64;
    let left = copy.bytes.saturating_sub(copy.copied_bytes);
    (rate > 0.0 && bits.pfs_silent_ms.is_none()).then(|| left as f64 / rate)
}

/// Seconds until a movement is done, if it goes on as it went so far; `None` while its files are
/// looked for, and before it has moved anything.
fn movement_eta_s(moves: &MovementStatus) -> Option<f64> {
    if moves.counting || moves.bytes_done == 0 || moves.age_ms == 0 {
        return None;
    }
    let left = moves.bytes_total.saturating_sub(moves.bytes_done);
    Some(left as f64 * moves.age_ms as f64 / 1e3 / moves.bytes_done as f64)
}

/// Puts the fields of all that goes on now into the object of a status.
pub fn add_json(object: &mut Map<String, Value>, bits: &StatusBits) {
    let turn = |turn: &TurnStatus| {
        json!({
            "server": turn.server,
            "application": turn.application,
            "waiting_writes": turn.waiting,
        })
    };
    let turns = bits.turns.iter().map(turn).collect();
    let copies = bits.copies.iter();
    let copies = copies.map(|copy| copy_json(bits, copy)).collect();
    let movements = bits.movements.iter().map(movement_json).collect();
    object.insert("turns".into(), turns);
    object.insert("copies".into(), copies);
    object.insert("movements".into(), movements);
}

fn copy_json(bits: &StatusBits, copy: &CopyStatus) -> Value {
    let mut object = Map::new();
    insert_path(&mut object, "path", &in_mount(mount_of(bits), &copy.path));
    object.insert("bytes".into(), copy.bytes.into());
    object.insert("copied_bytes".into(), copy.copied_bytes.into());
    object.insert("eta_s".into(), copy_eta_s(bits, copy).into());
    Value::Object(object)
}

fn movement_json(moves: &MovementStatus) -> Value {
    json!({
        "movement": job::name(moves.movement),
        "counting": moves.counting,
        "files_total": moves.files_total,
        "files_done": moves.files_done,
        "bytes_total": moves.bytes_total,
        "bytes_done": moves.bytes_done,
        "age_s": json::seconds(moves.age_ms),
        "eta_s": movement_eta_s(moves),
    })
}

/// The lines of the page for people; none where nothing goes on.
pub fn render(bits: &StatusBits) -> String {
    let mut text = String::new();
    let within = |eta_s: Option<f64>| match eta_s {
        Some(eta_s) if eta_s < 1.0 => ", nearly done".into(),
        Some(eta_s) => format!(
            ", {} left",
            format_duration(Duration::from_secs(eta_s as u64))
        ),
        None => String::new(),
    };
    for turn in &bits.turns {
        let place = match bits.nodes.is_empty() {
            true => String::new(),
            false => format!(" on server {}", turn.server),
        };
        let waiting = match turn.waiting {
            0 => "nobody waits".into(),
            1 => "1 write waits".into(),
            writes => format!("{writes} writes wait"),
        };
        let _ = writeln!(text, "turn       {}{place}; {waiting}", turn.application);
    }
    for copy in &bits.copies {
        let path = in_mount(mount_of(bits), &copy.path);
        let _ = writeln!(
            text,
            "copy       {}: {} of {}{}",
            show_path(&path),
            format_size(copy.copied_bytes),
            format_size(copy.bytes),
            within(copy_eta_s(bits, copy))
        );
    }
    for moves in &bits.movements {
        let more = if moves.counting { " or more" } else { "" };
        let _ = writeln!(
            text,
            "{:<10} {} of {}{more} files, {} of {}{}",
            job::name(moves.movement),
            moves.files_done,
            moves.files_total,
            format_size(moves.bytes_done),
            format_size(moves.bytes_total),
            within(movement_eta_s(moves))
        );
    }
    text
}

#[cfg(test)]
pub mod tests {
    use forebay_wire::control::Movement;

    use super::*;

    /// One of each.
    pub fn with_one_of_each(bits: StatusBits) -> StatusBits {
        StatusBits {
            drain_rate_bytes_per_s: 1 << 20,
            turns: vec![TurnStatus {
                server: 1,
                application: "lammps".into(),
                waiting: 2,
            }],
            copies: vec![CopyStatus {
                path: b"ckpt-1".to_vec(),
                bytes: 40 << 20,
                copied_bytes: 10 << 20,
            }],
            movements: vec![MovementStatus {
                movement: Movement::StageIn,
                counting: false,
                files_total: 4,
                files_done: 1,
                bytes_total: 40 << 20,
                bytes_done: 10 << 20,
                age_ms: 5000,
            }],
            ..bits
        }
    }

    #[test]
    fn what_goes_on_is_said_with_the_time_that_is_left() {
        let bits = with_one_of_each(StatusBits {
            mount: b"/bb".to_vec(),
            ..StatusBits::default()
        });
        assert_eq!(
            render(&bits),
            "turn       lammps; 2 writes wait\n\
             copy       /bb/ckpt-1: 10.0 MiB of 40.0 MiB, 30.0 s left\n\
             stage-in   1 of 4 files, 10.0 MiB of 40.0 MiB, 15.0 s left\n"
        );
        let mut object = Map::new();
        add_json(&mut object, &bits);
        assert_eq!(object["turns"][0]["application"], "lammps");
        assert_eq!(object["copies"][0]["eta_s"], 30.0);
        assert_eq!(object["movements"][0]["eta_s"], 15.0);
        let silent = StatusBits {
            pfs_silent_ms: Some(1),
            ..bits
        };
        add_json(&mut object, &silent);
        assert_eq!(object["copies"][0]["eta_s"], Value::Null);
        assert_eq!(render(&StatusBits::default()), "");
    }
}
