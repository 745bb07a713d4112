//! The commands of the tutorial and of the recipes, run as a reader runs them, and what the pages
//! say that these print.
//!
//! Of the fenced blocks, `sh` is run by bash, all of a page in one shell. `text` has lines that the
//! commands before it print, in this order; `...` stands for anything. `python` and `toml` whose
//! first line is `# NAME` are files. Other `toml` of a recipe are rules for its burst buffer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_testkit::{Cluster, LONG, needs_file, program, run_bounded, without_settings};
use rustix::mount::{UnmountFlags, unmount};

/// The tutorial computes, and waits for what it has started.
const PATIENCE: Duration = Duration::from_secs(2 * LONG.as_secs());

/// Stands between the outputs of two blocks.
const MARK: &str = "--- the next block ---";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(repository().join("docs").join(name)).expect("page")
}

/// A fenced block of a page.
struct Block<'a> {
    kind: &'a str,
    body: String,
}

impl Block<'_> {
    /// The name of the file that this is.
    fn file(&self) -> Option<&str> {
        let names = ["python", "toml"].contains(&self.kind);
        let first = self.body.lines().next().filter(|_| names)?;
        let name = first.strip_prefix("# ")?;
        (name.contains('.') && !name.contains(' ')).then_some(name)
    }
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        let kind = line.strip_prefix("```");
        match (&mut open, kind) {
            (Some(_), Some("")) => found.extend(open.take()),
            (Some(block), _) => {
                block.body.push_str(line);
                block.body.push('\n');
            }
            (None, Some(kind)) => {
                let body = String::new();
                open = Some(Block { kind, body });
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block without an end");
    found
}

/// One shell script for all blocks, which ends with the first command that fails.
fn script(blocks: &[Block]) -> String {
    let mut script = String::from("set -euo pipefail\nexec 2>&1\n");
    for block in blocks {
        if let Some(name) = block.file() {
            let body = &block.body;
            script += &format!("cat >{name} <<'END_OF_FILE'\n{body}END_OF_FILE\n");
        } else if block.kind == "sh" {
            script += &block.body;
        }
        script += &format!("echo '{MARK}'\n");
    }
    script
}

/// Whether a printed line is what a page says, `...` being anything, and a space any number.
fn is_shown(printed: &str, shown: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (printed, mut rest) = (plain(printed), Vec::new());
    rest.extend(shown.split("...").map(plain));
    let (first, last) = (rest.remove(0), rest.pop());
    let Some(mut left) = printed.strip_prefix(&first) else {
        return false;
    };
    for part in &rest {
        let Some(at) = left.find(part) else {
            return false;
        };
        left = &left[at + part.len()..];
    }
    last.map_or(left.is_empty(), |last| left.ends_with(&last))
}

/// What the commands of each block have printed has the lines of the `text` behind it.
fn compare(blocks: &[Block], printed: &str) -> usize {
    let outputs: Vec<&str> = printed.split(&format!("{MARK}\n")).collect();
    assert_eq!(outputs.len(), blocks.len() + 1, "{printed}");
    let (mut seen, mut compared) = (String::new(), 0);
    for (block, output) in blocks.iter().zip(outputs) {
        if block.kind == "sh" {
            seen = output.to_string();
        }
        if block.kind != "text" {
            continue;
        }
        let mut lines = seen.lines();
        for shown in block.body.lines() {
            // A close that is under way brings the copy on flash up to date.
            let settled = |line: &str| line.split("; stale copy: ").next().map(String::from);
            assert!(
                lines.any(|line| settled(line).is_some_and(|line| is_shown(&line, shown))),
                "the page says\n{shown}\nafter what came before it; printed was\n{seen}"
            );
            compared += 1;
        }
    }
    compared
}

/// A shell with the program, and with the packages that programs of the pages want.
fn shell(script: &str, home: &Path) -> Command {
    let paths = [
        repository().join(".cache/venv-test/bin"),
        program().parent().expect("folder").to_path_buf(),
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = paths.into_iter().chain(std::env::split_paths(&path));
    let mut command = Command::new("bash");
    without_settings(&mut command);
    command
        .args(["-c", script])
        .env("PATH", std::env::join_paths(all).expect("PATH"))
        .env("HOME", home)
        .current_dir(home);
    command
}

/// What a tutorial that failed half-way has left.
struct Home(tempfile::TempDir);

impl Drop for Home {
    fn drop(&mut self) {
        let state = self.0.path().join("first/state");
        if state.exists() {
            let mut down = Command::new(program());
            without_settings(down.arg("down").arg("--state").arg(state));
            eprintln!("{:?}", run_bounded(&mut down, LONG));
        }
        let table = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let places = table.lines().filter_map(|line| line.split(' ').nth(1));
        for place in places.filter(|place| Path::new(place).starts_with(self.0.path())) {
            eprintln!("{place}: {:?}", unmount(place, UnmountFlags::DETACH));
        }
    }
}

#[test]
fn the_tutorial_does_what_it_says() {
    if needs_file("/dev/fuse") {
        return;
    }
    let text = page("tutorial.md");
    let mut blocks = blocks(&text);
    // What builds is this test's own program; that the target is there says make.
    blocks.retain(|block| block.kind != "sh build");
    let mut make = Command::new("make");
    make.args(["--dry-run", "build"]).current_dir(repository());
    run_bounded(&mut make, LONG).ok();

    let home = Home(tempfile::tempdir().expect("directory"));
    let output = run_bounded(&mut shell(&script(&blocks), home.0.path()), PATIENCE).ok();
    assert!(compare(&blocks, &output.stdout) >= 10, "{output:?}");
    assert!(!home.0.path().join("first").exists(), "{output:?}");
}

/// Runs a recipe: its rules, the files that its program writes, its commands.
fn recipe(name: &str) {
    if needs_file("/dev/fuse") {
        return;
    }
    let text = page(&format!("recipes/{name}.md"));
    let rules = |block: &&Block| block.kind == "toml" && block.file().is_none();
    let mut all = blocks(&text);
    let mut builder = Cluster::builder().ssd("256MiB").lazy();
    for block in all.iter().filter(rules) {
        builder = builder.config(&block.body);
    }
    let cluster = builder.up();
    let python = repository().join(".cache/venv-test/bin/python");
    if name != "hdf5" {
        let mut write = Command::new(python);
        write.arg(repository().join("tests/e2e/programs/patterns.py"));
        run_bounded(write.arg(name).arg(cluster.mnt("")), LONG).ok();
    }
    let places = [("/bb/", cluster.mnt("")), ("/scratch/", cluster.pfs(""))];
    let places = places.map(|(place, real)| (place, real.to_str().expect("UTF-8").to_string()));
    for block in &mut all {
        for (place, real) in &places {
            block.body = block.body.replace(place, real);
        }
        // Of Python, only files: what is beside a sentence wants packages that are not here.
        if block.kind == "toml" && block.file().is_none() {
            block.body.clear();
        }
    }
    let output = run_bounded(&mut shell(&script(&all), cluster.base()), PATIENCE).ok();
    assert!(compare(&all, &output.stdout) >= 2, "{output:?}");
    let down = cluster.down(&["--drain"]);
    assert_eq!(down.code, 0, "{down:?}");
}

#[test]
fn the_recipe_for_pytorch_does_what_it_says() {
    recipe("pytorch");
}

#[test]
fn the_recipe_for_lammps_does_what_it_says() {
    recipe("lammps");
}

#[test]
fn the_recipe_for_amrex_does_what_it_says() {
    recipe("amrex");
}

#[test]
fn the_recipe_for_hdf5_does_what_it_says() {
    recipe("hdf5");
}

#[test]
fn the_recipe_for_dmtcp_does_what_it_says() {
    recipe("dmtcp");
}

#[test]
fn what_a_page_says_is_compared_with_what_is_printed() {
    for (printed, shown, same) in [
        ("a  b   c", "a b c", true),
        ("a b c", "a ... c", true),
        ("a b c", "... b c", true),
        ("a b c d", "a b c", false),
        ("a b c", "a ... d", false),
        ("x a b", "a b", false),
        ("a", "...", true),
    ] {
        assert_eq!(is_shown(printed, shown), same, "{printed:?} {shown:?}");
    }
    let text = "```sh\necho one; echo two\n```\n```text\none\ntwo\n```\n";
    let home = tempfile::tempdir().expect("directory");
    let blocks = blocks(text);
    let output = run_bounded(&mut shell(&script(&blocks), home.path()), LONG).ok();
    assert_eq!(compare(&blocks, &output.stdout), 2);
    let other = output.stdout.replace("two", "three");
    std::panic::catch_unwind(|| compare(&blocks, &other)).expect_err("another line");
}
