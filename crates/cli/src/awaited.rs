//! What keeps a node from being empty (`drain-node`), for people and as JSON.

use std::path::Path;

use forebay_wire::control::{Awaited, AwaitedFile, EmptyingStatus};
use serde_json::{Map, Value};

use crate::mounts::{in_mount, shown};
use crate::show::json::insert_path;

/// One line about a file that is waited for.
pub fn awaited_line(mount: &Path, file: &AwaitedFile) -> String {
    format!("{}: {}", shown(mount, &file.path), why_awaited(file.why))
}

/// Why a file keeps its node from being empty, and when it leaves.
fn why_awaited(why: Awaited) -> &'static str {
    match why {
        Awaited::Open => {
            "is open, and could not move; it leaves the node after its close, if not before"
        }
        Awaited::Changes => {
            "changes again before it has moved or is drained; it leaves the node when programs let it rest"
        }
        Awaited::SecondOfOpen => {
            "is open, and its second copy is on the node; the copy leaves at an fsync where another node has room, \
             else when the file is closed and drained"
        }
        Awaited::SecondChanges => {
            "changes again before it is drained, and its second copy is on the node; the copy leaves at an fsync where \
             another node has room, else when programs let the file rest"
        }
    }
}

/// A short name for programs.
fn reason_code(why: Awaited) -> &'static str {
    match why {
        Awaited::Open => "open",
        Awaited::Changes => "changes",
        Awaited::SecondOfOpen => "second_copy_of_open",
        Awaited::SecondChanges => "second_copy_changes",
    }
}

/// What keeps a node from being empty, as JSON.
pub fn awaited_json(mount: &Path, left: &EmptyingStatus) -> Value {
    let one = |file: &AwaitedFile| {
        let mut object = Map::new();
        let path = in_mount(mount, &file.path);
        insert_path(&mut object, "path", &path);
        object.insert("why".into(), reason_code(file.why).into());
        Value::Object(object)
    };
    left.awaited.iter().map(one).collect()
}
