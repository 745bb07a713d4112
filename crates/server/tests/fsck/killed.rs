//! `kill -9` between the steps of every repair; the next fsck finishes it.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use forebay_policy::repair::Damage;
use forebay_server::fsck_offline;
use forebay_types::failpoint::{self, Point};

use crate::common::orders;
use crate::{Lab, is_mended, keeps, serves};

/// The state that a child checks; whoever has it in the environment is the child.
const CHILD_STATE: &str = "FSCK_CHILD_STATE";

/// Damage, and the steps of its repair.
const REPAIRS: &[(Damage, &[Point])] = &[
    (Damage::OriginalMissing, &[Point::FsckQuarantined]),
    (Damage::ObjectAnonymous, &[Point::FsckIdentified]),
    (Damage::RecordUnreadable, &[Point::FsckRecordKept]),
    (Damage::Garbage, &[Point::FsckGarbage]),
    (Damage::DirectoryUnknown, &RECOVERY),
    (Damage::Orphan, &RECOVERY),
];
const RECOVERY: [Point; 3] = [Point::FsckCopied, Point::FsckNamed, Point::FsckRemoved];

/// Not a test of its own: the body of a child.
#[test]
fn child_checks_until_it_is_killed() {
    let Some(state) = std::env::var_os(CHILD_STATE).map(PathBuf::from) else {
        return;
    };
    failpoint::arm_from_environment().expect("a point");
    let report = fsck_offline(&state, &orders(false), &|_| ());
    panic!("the point was not hit: {report:?}");
}

fn kill_a_repair(damage: Damage, point: Point) {
    let lab = Lab::new();
    lab.damage(damage);
    let before = lab.contents();
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args(["--exact", "killed::child_checks_until_it_is_killed"])
        .env(CHILD_STATE, lab.scratch.path().join("state"))
        .env(failpoint::VARIABLE, point.name())
        .stdin(Stdio::null());
    let output = child.output().expect("child");
    let killed = output.status.signal() == Some(libc::SIGKILL);
    assert!(killed, "{damage} {point:?}: {output:?}");
    let found = lab.fsck(false);
    assert!(
        found.findings.iter().all(|f| f.repaired),
        "{point:?}: {found:?}"
    );
    keeps(&lab, damage, &before, &found);
    let again = lab.fsck(false);
    assert_eq!(again.findings, [], "{damage} {point:?}");
    assert!(is_mended(damage));
    serves(&lab, damage);
}

#[test]
fn a_repair_that_is_killed_is_finished_by_the_next() {
    let mut hit = Vec::new();
    for &(damage, points) in REPAIRS {
        for &point in points {
            kill_a_repair(damage, point);
            hit.push(point);
        }
    }
    let all = Point::ALL.iter().filter(|p| p.name().starts_with("Fsck"));
    for point in all {
        assert!(hit.contains(point), "{point:?} is never hit");
    }
}
