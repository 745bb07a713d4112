//! The examples for several nodes, run as a person runs them, with the commands that they print.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_testkit::{LONG, Output, needs_nodes, program, run_bounded, without_settings};

/// An example starts and kills servers one after the other.
const PATIENCE: Duration = Duration::from_secs(5 * LONG.as_secs());

fn example(name: &str, args: &[&str]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name);
    let mut command = Command::new(path);
    without_settings(command.args(args)).env("FOREBAY", program());
    run_bounded(&mut command, PATIENCE)
}

/// Runs a command that an example has printed: the first indented line with all these words.
#[track_caller]
fn printed(by: &Output, words: &[&str]) -> Output {
    let line = by
        .stdout
        .lines()
        .find(|line| line.starts_with("  ") && words.iter().all(|&word| line.contains(word)));
    let line = line.unwrap_or_else(|| panic!("no line with {words:?}: {by:?}"));
    let mut command = Command::new("sh");
    without_settings(command.args(["-c", line]));
    run_bounded(&mut command, LONG)
}

/// What an example has left running is taken away, whatever comes.
struct Kept(PathBuf);

impl Kept {
    #[track_caller]
    fn of(output: &Output) -> Kept {
        let line = output.stdout.lines().find(|line| line.contains("--remove"));
        let folder = line.and_then(|line| line.split(' ').next_back());
        Kept(folder.unwrap_or_else(|| panic!("{output:?}")).into())
    }

    fn remove(&self) -> Output {
        let folder = self.0.to_str().expect("UTF-8");
        example("three-nodes.sh", &["--remove", folder])
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.exists() {
            eprintln!("{:?}", self.remove());
        }
    }
}

#[test]
fn the_example_of_two_nodes_shows_one_tree() {
    if needs_nodes() {
        return;
    }
    let output = example("two-nodes.sh", &[]).ok();
    for line in [
        "node 2 reads:   written on node 1",
        "node 1 reads:   appended on node 2",
    ] {
        assert!(output.stdout.contains(line), "{output:?}");
    }
}

#[test]
fn the_example_of_three_nodes_loses_nothing_and_takes_all_away() {
    if needs_nodes() {
        return;
    }
    for args in [&[][..], &["--replicas", "2"]] {
        let output = example("three-nodes.sh", args).ok();
        for node in 1..=3 {
            let line = format!("all is there, on node {node}");
            assert!(output.stdout.contains(&line), "{output:?}");
        }
        // The table of nodes has a row for each.
        let rows = output.stdout.matches("  answers ").count();
        assert_eq!(rows, 3, "{output:?}");
        assert!(!output.stdout.contains("--remove"), "{output:?}");
    }
}

#[test]
fn the_example_of_three_nodes_stays_to_be_played_with_until_it_is_removed() {
    if needs_nodes() {
        return;
    }
    let output = example("three-nodes.sh", &["--replicas", "2", "--keep"]).ok();
    let kept = Kept::of(&output);
    let slow = kept.0.join("slow");
    assert_eq!(std::fs::read_dir(&slow).expect("readdir").count(), 0);
    // Without its server, a node's files are read from their second copies.
    printed(&output, &["kill -9", "state-2"]).ok();
    printed(&output, &["sha256sum --check"]).ok();
    printed(&output, &["forebay server --config"]).ok();
    printed(&output, &["kill -9", "run/"]).ok();
    printed(&output, &["forebay mount --config"]).ok();
    printed(&output, &["ip link set eth0 down"]).ok();
    printed(&output, &["sha256sum --check"]).ok();
    printed(&output, &["ip link set eth0 up"]).ok();
    printed(&output, &["forebay where"]).ok();
    printed(&output, &["forebay status"]).ok();
    // Who has ended a server leaves that to be removed as well, and what it has is drained.
    printed(&output, &["kill -9", "state-2"]).ok();
    kept.remove().ok();
    assert!(!kept.0.exists());
}

#[test]
fn the_example_of_three_nodes_removes_nothing_but_its_own() {
    if needs_nodes() {
        return;
    }
    let folder = tempfile::tempdir().expect("directory");
    let path = folder.path().to_str().expect("UTF-8");
    let output = example("three-nodes.sh", &["--remove", path]).expect_code(1);
    assert!(
        output.stderr.contains("has left no nodes there"),
        "{output:?}"
    );
    example("three-nodes.sh", &["--remove"]).expect_code(1);
    example("three-nodes.sh", &["--replicas", "3"]).expect_code(1);
}
