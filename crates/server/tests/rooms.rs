//! The rooms of the server lie above each other: a file imports from its own room and from those
//! below.

use std::fs;
use std::path::{Path, PathBuf};

/// Every room above those that follow it.
const ROOMS: [&str; 10] = [
    "lifecycle",
    "orders",
    "ahead",
    "files",
    "drain",
    "plan",
    "integrity",
    "buffer",
    "catalog",
    "base",
];
/// Of the root, what the highest room may know besides.
const FOR_STARTS: &str = "starterror";

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("read_dir") {
        let path = entry.expect("entry").path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// Modules of the crate's root that a text names outside of its tests.
fn named(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let behind = code.split("crate::").skip(1);
    behind
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
        .filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect()
}

#[test]
fn no_room_imports_from_one_above() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut upward, mut edges) = (Vec::new(), 0);
    for (floor, room) in ROOMS.iter().enumerate() {
        let mut found = Vec::new();
        files(&src.join(room), &mut found);
        assert!(!found.is_empty(), "no room {room}");
        // A file of tests is no part of a room.
        found.retain(|path| !path.to_string_lossy().ends_with("_tests.rs"));
        for path in found {
            let text = fs::read_to_string(&path).expect("read");
            for name in named(&text) {
                edges += 1;
                let known = floor == 0 && name == FOR_STARTS;
                let below = ROOMS[floor..].contains(&name);
                if !known && !below {
                    let from = path.strip_prefix(&src).expect("below src").display();
                    upward.push(format!("{from} imports {name}"));
                }
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
    assert!(edges > 100, "nothing was looked at");
}
