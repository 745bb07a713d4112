//! What moves and copies leave of files that are gone: objects that no record names.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use forebay_types::{Errno, Ino};

use crate::common::{PATIENCE, Running, Scratch, settings};

/// The object files of a flash tier.
fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => found.extend(objects(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

fn only_object(scratch: &Scratch) -> PathBuf {
    let tiers = ["ssd0", "ssd1"].map(|ssd| objects(&scratch.path().join(ssd).join("objects")));
    let mut found = tiers.concat();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp").success());
}

#[test]
fn a_copy_that_is_left_of_a_file_that_is_gone_is_no_file_again() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 64 << 20);
    let kept = scratch.path().join("kept");
    let object = {
        let server = Running::start(&settings, false);
        server.put(b"f", b"what was there");
        let object = only_object(&scratch);
        copy(&object, &kept);
        server
            .client
            .unlink(Ino::ROOT, b"f", crate::common::me())
            .expect("unlink");
        let begun = Instant::now();
        while object.exists() {
            assert!(begun.elapsed() < PATIENCE, "it is not removed");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        server.instance.stop();
        object
    };
    copy(&kept, &object);
    let server = Running::start(&settings, false);
    assert_eq!(server.find(b"f").map(drop), Err(Errno::ENOENT));
    assert!(!object.exists(), "it is still there");
    assert_eq!(
        server.status().errors_total,
        0,
        "nobody needs to know of it"
    );
}
