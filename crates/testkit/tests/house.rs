//! What this repository says about itself, compared with what it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("read_dir") {
        let path = entry.expect("entry").path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// Words of a text that begin with `fb-`; what is put into braces is the number of a thread.
fn threads(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("fb-").map(|(at, _)| &text[at..]);
    starts
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            let (name, behind) = rest.split_at(end.unwrap_or(rest.len()));
            match behind.starts_with(['{', 'N']) {
                true => format!("{name}N"),
                false => name.trim_end_matches('-').to_string(),
            }
        })
        .collect()
}

#[test]
fn the_picture_has_the_threads_that_the_code_has() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("read");
    let picture = text
        .split("\n## ")
        .find(|section| section.starts_with("Processes, threads"))
        .and_then(|section| section.split("```").nth(1))
        .expect("the picture");
    let mut sources = Vec::new();
    for crate_dir in fs::read_dir(root().join("crates")).expect("crates") {
        files(&crate_dir.expect("entry").path().join("src"), &mut sources);
    }
    let mut code = BTreeSet::new();
    for path in sources {
        let text = fs::read_to_string(&path).expect("read");
        let quoted = text.split("\"fb-").skip(1);
        code.extend(quoted.flat_map(|rest| {
            threads(&format!(
                "fb-{}",
                rest.split('"').next().unwrap_or_default()
            ))
        }));
    }
    assert!(code.len() > 20, "{code:?}");
    let drawn = threads(picture);
    let missing: Vec<_> = code.difference(&drawn).collect();
    let gone: Vec<_> = drawn.difference(&code).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not drawn: {missing:?}; not in the code: {gone:?}"
    );
}

#[test]
fn the_oldest_rust_is_said_once() {
    let (mut looked_at, mut said) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(root()).expect("read_dir") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        // What is built, and what others have written.
        if name.starts_with('.') || ["target", "dist", "vendor"].contains(&&*name) {
            continue;
        }
        match path.is_dir() {
            true => files(&path, &mut looked_at),
            false => looked_at.push(path),
        }
    }
    assert!(looked_at.len() > 100);
    for path in looked_at
        .iter()
        .filter(|path| !path.ends_with("Cargo.lock"))
    {
        // What is no text says nothing.
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines().map(str::trim_start);
        if lines.any(|line| line.starts_with("rust-version = ")) {
            said.push(path.strip_prefix(root()).expect("below the root"));
        }
    }
    assert_eq!(said, [Path::new("Cargo.toml")]);
}

#[test]
fn the_binary_is_built_without_what_only_tests_need() {
    let mut features = 0;
    for crate_dir in fs::read_dir(root().join("crates")).expect("crates") {
        let path = crate_dir.expect("entry").path().join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("read");
        let normal = text.split("[dev-dependencies]").next().unwrap_or_default();
        assert!(!normal.contains("[\"testing\"]"), "{}", path.display());
        features += usize::from(normal.contains("\ntesting = []"));
    }
    assert!(features >= 3, "{features}");
}
