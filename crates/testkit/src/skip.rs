//! Tests that do not run here: `libtest` has no word for that, and calls them passed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::random::is_root;

/// Names a file that gets a line for each test that is skipped: `PROGRAM TEST: REASON`.
const FILE: &str = "FOREBAY_SKIPPED";
/// If this is `1`, a test that would be skipped fails.
const FORBIDDEN: &str = "FOREBAY_NO_SKIP";

/// Says that this test, or the rest of it, does not run here: `skip("..."); return;`.
#[track_caller]
pub fn skip(reason: &str) {
    let this = std::thread::current();
    let line = format!(
        "{} {}: {reason}",
        program(),
        this.name().unwrap_or("a test")
    );
    eprintln!("skipped: {line}");
    if let Some(path) = std::env::var_os(FILE) {
        note(Path::new(&path), &line);
    }
    let forbidden = std::env::var_os(FORBIDDEN).is_some_and(|value| value == "1");
    assert!(!forbidden, "{FORBIDDEN}=1, but {line}");
}

/// Skips what does not run as root: `if needs_root() { return }`.
#[track_caller]
pub fn needs_root() -> bool {
    let skipped = !is_root();
    if skipped {
        skip("needs root");
    }
    skipped
}

/// Likewise what needs this file, such as a device: `if needs_file("/dev/fuse") { return }`.
#[track_caller]
pub fn needs_file(path: &str) -> bool {
    let skipped = !Path::new(path).exists();
    if skipped {
        skip(&format!("there is no {path}"));
    }
    skipped
}

/// Likewise what needs this program: `if needs_program("mkfs.btrfs") { return }`.
#[track_caller]
pub fn needs_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let skipped = !std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    if skipped {
        skip(&format!("there is no {name}"));
    }
    skipped
}

/// The name of the test's program, without what cargo has put behind it.
fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_stem);
    let name = name.unwrap_or_default().to_string_lossy().into_owned();
    match name.rsplit_once('-') {
        Some((name, _)) => name.to_string(),
        None => name,
    }
}

fn note(path: &Path, line: &str) {
    // Many tests write at once: a line is one write.
    let file = OpenOptions::new().append(true).create(true).open(path);
    let told = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    assert!(told.is_ok(), "{}: {told:?}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skip_is_a_line_with_the_test_and_the_reason() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("skipped");
        note(&path, "one t: why");
        note(&path, "two t: why");
        let lines = std::fs::read_to_string(&path).expect("read");
        assert_eq!(lines, "one t: why\ntwo t: why\n");
        assert!(program().starts_with("forebay_testkit"), "{}", program());
        assert!(!needs_file("/"));
    }

    /// The body of a child of the next test.
    #[test]
    fn child_skips() {
        if std::env::var_os("FOREBAY_TESTKIT_CHILD").is_some() {
            skip("for a try");
        }
    }

    #[test]
    fn a_skip_is_noted_and_fails_where_it_is_forbidden() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("skipped");
        for (forbidden, passes) in [("0", true), ("1", false)] {
            let mut child = std::process::Command::new(std::env::current_exe().expect("program"));
            child
                .args(["--exact", "skip::tests::child_skips"])
                .envs([("FOREBAY_TESTKIT_CHILD", "1"), (FORBIDDEN, forbidden)])
                .env(FILE, &path);
            let output = child.output().expect("it runs");
            assert_eq!(output.status.success(), passes, "{output:?}");
        }
        let lines = std::fs::read_to_string(&path).expect("read");
        let line = "forebay_testkit skip::tests::child_skips: for a try\n";
        assert_eq!(lines, line.repeat(2));
    }
}
