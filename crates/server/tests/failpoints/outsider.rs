//! An outsider changes files on the PFS between the kill of a burst buffer and its next start.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forebay_types::failpoint::Point;
use rustix::fs::XattrFlags;

use crate::common::{Running, Scratch};
use crate::model::content;
use crate::run::{Case, each_object, killed, run_all, shape};
use crate::workloads::workloads;

const THEIRS: &[u8] = b"what the outsider has put there";
const THEIR_MODE: u32 = 0o604;
const THEIR_ATTRIBUTE: &str = "user.theirs";

/// The files below a directory that a user of the PFS knows: not copies under way, nor the
/// overflow.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("read_dir") {
        let entry = entry.expect("entry");
        let name = entry.file_name().into_string().expect("name");
        let kind = entry.file_type().expect("type");
        match (name.starts_with(".forebay"), kind.is_dir()) {
            (true, _) => {}
            (false, true) => files(&entry.path(), found),
            (false, false) => found.push(entry.path()),
        }
    }
}

/// Changes every file in place; what each of them has to have from then on.
fn change(pfs: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = Vec::new();
    files(pfs, &mut found);
    let mut changed = BTreeMap::new();
    for path in found {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.write_all_at(THEIRS, 0).expect("write");
        changed.insert(path.clone(), Vec::new());
    }
    for (path, data) in &mut changed {
        *data = fs::read(path).expect("read");
    }
    changed
}

/// Gives every file another mode and an attribute.
fn change_looks(pfs: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(pfs, &mut found);
    for path in &found {
        fs::set_permissions(path, Permissions::from_mode(THEIR_MODE)).expect("chmod");
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(path, THEIR_ATTRIBUTE, THEIRS, flags).expect("setxattr");
    }
    found
}

/// Kills a burst buffer, lets an outsider do something, starts it again and drains it.
fn changed_between<T>(
    scratch: &Scratch,
    case: &Case,
    change: impl FnOnce(&Path) -> T,
) -> Result<T, String> {
    killed(scratch.path(), case, false)?;
    let changed = change(&scratch.pfs());
    let tiers = case.work().tiers;
    let server = Running::start(&shape(scratch.path(), tiers, case.point), false);
    server.drain();
    server.instance.stop();
    Ok(changed)
}

fn run(case: &Case) -> Result<(), String> {
    let scratch = Scratch::in_memory();
    for (path, data) in changed_between(&scratch, case, change)? {
        match fs::read(&path) {
            Ok(found) if found == data => {}
            Ok(found) => return Err(format!("{}: {} bytes", path.display(), found.len())),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(())
}

fn run_looks(case: &Case) -> Result<(), String> {
    let scratch = Scratch::in_memory();
    for path in changed_between(&scratch, case, change_looks)? {
        let mode = fs::metadata(&path).map(|meta| meta.permissions().mode() & 0o7777);
        if mode.as_ref().ok() != Some(&THEIR_MODE) {
            return Err(format!("{}: {mode:?}", path.display()));
        }
        // Of a change of names the PFS does not tell whether attributes have changed since.
        let drain = ["Demote", "Overflow"];
        let drain = drain
            .iter()
            .any(|start| case.point.name().starts_with(start));
        let mut value = [0; THEIRS.len()];
        let found = rustix::fs::getxattr(&path, THEIR_ATTRIBUTE, &mut value);
        if drain && found.is_err() {
            return Err(format!("{}: {found:?}", path.display()));
        }
    }
    Ok(())
}

/// Drains, and changes of names.
fn cases() -> Vec<Case> {
    let named = |point: &&Point| {
        let starts = [
            "Demote", "Overflow", "Rename", "Exchange", "Link", "Unlink", "Older",
        ];
        starts.iter().any(|start| point.name().starts_with(start))
    };
    let points = Point::ALL.iter().filter(named);
    points
        .flat_map(|&point| (0..workloads(point).len()).map(move |at| Case { point, at }))
        .collect()
}

#[test]
fn what_an_outsider_changes_between_a_kill_and_the_next_start_stays() {
    run_all(&cases(), &run);
}

#[test]
fn mode_and_attributes_that_an_outsider_gives_between_a_kill_and_the_next_start_stay() {
    run_all(&cases(), &run_looks);
}

/// Writes a file on the PFS.
pub fn outside(path: &Path, version: u8, len: usize) {
    fs::write(path, content(version, len)).expect("outsider");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).expect("outsider");
}

/// Damages the object of a drained file, the only one of its length.
pub fn flip(pfs: &Path, path: &str) {
    let len = fs::metadata(pfs.join(path)).expect("on the PFS").len();
    let mut found = 0;
    each_object(&pfs.with_file_name("ssd0"), &mut |object| {
        if fs::metadata(object).expect("stat").len() == len {
            found += 1;
            let mut content = fs::read(object).expect("read");
            content[len as usize - 7] ^= 4;
            fs::write(object, content).expect("write");
        }
    });
    assert_eq!(found, 1, "objects like {path}");
}
