//! An outsider changes files on the PFS between the kill of a burst buffer and its next start.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_types::failpoint::Point;

use crate::common::{Running, Scratch};
use crate::run::{Case, killed, run_all, shape};
use crate::workloads::workloads;

const THEIRS: &[u8] = b"what the outsider has put there";

/// The files below a directory that a user of the PFS knows: not copies under way, nor the overflow.
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

fn run(case: &Case) -> Result<(), String> {
    let scratch = Scratch::in_memory();
    let work = case.work();
    killed(scratch.path(), case, false)?;
    let pfs = scratch.pfs();
    let theirs = change(&pfs);
    let server = Running::start(&shape(scratch.path(), work.tiers, case.point), false);
    server.drain();
    server.instance.stop();
    for (path, data) in theirs {
        match fs::read(&path) {
            Ok(found) if found == data => {}
            Ok(found) => return Err(format!("{}: {} bytes", path.display(), found.len())),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(())
}

#[test]
fn what_an_outsider_changes_between_a_kill_and_the_next_start_stays() {
    let named = |point: &&Point| {
        let of_drains_and_names = [
            "Demote", "Overflow", "Rename", "Exchange", "Link", "Unlink", "Older",
        ];
        of_drains_and_names
            .iter()
            .any(|start| point.name().starts_with(start))
    };
    let points = Point::ALL.iter().filter(named);
    let cases: Vec<Case> = points
        .flat_map(|&point| (0..workloads(point).len()).map(move |at| Case { point, at }))
        .collect();
    run_all(&cases, &run);
    println!("{} cases", cases.len());
}
