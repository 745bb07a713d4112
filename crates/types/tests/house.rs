//! The house rules that a compiler does not hold: which file may know which, how long files and
//! lines of comments are.
//!
//! It reads the workspace as text, so it lives in the crate that depends on nothing.

#[path = "house/imports.rs"]
mod imports;
#[path = "house/links.rs"]
mod links;
#[path = "house/workspace.rs"]
mod workspace;

use std::collections::BTreeMap;
use std::fs;

use imports::{cycles, edges_of};
use links::{broken, documents, links, plain};
use workspace::{Package, code_of, packages, root, rust_files};

/// Crates above each other; an import goes down only. Those of one row know nothing of each other.
const FLOORS: [&[&str]; 6] = [
    &["cli"],
    &["mount", "server", "twin"],
    &["client", "holder", "namespace"],
    &["tiers"],
    &["policy", "wire", "kv"],
    &["types"],
];
/// For tests only: of no floor, and nobody's dependency.
const FOR_TESTS: &str = "testkit";

/// Files that know each other in a circle can be understood together only.
const CIRCLE_MAX: usize = 3;

/// Lines of a file, without its tests.
const FILE_LINES_MAX: usize = 600;

/// Columns of a line that is a comment; rustfmt holds all others.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Of a list that came out empty the test would say nothing.
const FILES_MIN: usize = 200;
const LINKS_MIN: usize = 100;

#[test]
fn no_files_know_each_other_in_a_large_circle() {
    let mut seen = 0;
    for Package { name, dir, .. } in packages() {
        let edges = edges_of(&dir.join("src"));
        seen += edges.values().map(|to| to.len()).sum::<usize>();
        for circle in cycles(&edges) {
            let inside: Vec<_> = circle
                .iter()
                .flat_map(|from| edges[from].iter().map(move |to| (from, to)))
                .filter(|(_, to)| circle.contains(*to))
                .collect();
            if std::env::var_os("FOREBAY_SHOW_CIRCLES").is_some() {
                println!("{name}: {} files: {inside:?}", circle.len());
            }
            assert!(
                circle.len() <= CIRCLE_MAX,
                "{name}: {} files know each other in a circle, {CIRCLE_MAX} are the most: {inside:#?}",
                circle.len()
            );
        }
    }
    assert!(seen > FILES_MIN, "nothing was looked at");
}

#[test]
fn no_crate_depends_on_one_above() {
    let floor = |name: &str| FLOORS.iter().position(|floor| floor.contains(&name));
    let found = packages();
    assert!(found.len() > FLOORS.len(), "nothing was looked at");
    for Package {
        name, dependencies, ..
    } in found
    {
        if name == FOR_TESTS {
            assert_eq!(dependencies, [""; 0], "{name} is below everybody's tests");
            continue;
        }
        let own = floor(&name).unwrap_or_else(|| panic!("{name}: on which floor is it?"));
        for on in dependencies {
            let below = floor(&on);
            assert!(
                below.is_some_and(|below| below > own),
                "{name} depends on {on}, which is not below it"
            );
        }
    }
}

#[test]
fn files_are_short() {
    let mut long = Vec::new();
    let files = rust_files(&root());
    assert!(files.len() > FILES_MIN, "nothing was looked at");
    for (path, text) in files {
        let lines = code_of(&text).lines().count();
        if lines > FILE_LINES_MAX {
            long.push(format!("{path}: {lines} lines without tests"));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn comments_fit_beside_each_other() {
    let mut wide = Vec::new();
    for (path, text) in rust_files(&root()) {
        for (at, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            let comment = line.trim_start();
            // A row of a table is one line.
            let wraps = comment.starts_with("//") && !comment.starts_with("//! |");
            if wraps && columns > COMMENT_COLUMNS_MAX {
                wide.push(format!("{path}:{}: {columns} columns", at + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn links_of_documents_lead_somewhere() {
    let root = root();
    let (mut seen, mut dead) = (0, Vec::new());
    for path in documents(&root) {
        let text = fs::read_to_string(&path).expect("read");
        for link in links(&text) {
            seen += 1;
            if let Some(why) = broken(&path, &link) {
                let path = path.strip_prefix(&root).expect("below").display();
                dead.push(format!("{path}:{}: {}: {why}", link.line, link.target));
            }
        }
    }
    assert!(seen > LINKS_MIN, "nothing was looked at");
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn each_page_is_in_the_book_once() {
    let folder = root().join("docs");
    let summary = folder.join("SUMMARY.md");
    let mut named: BTreeMap<_, usize> = BTreeMap::new();
    for link in links(&fs::read_to_string(&summary).expect("SUMMARY.md")) {
        *named.entry(plain(&folder.join(link.target))).or_default() += 1;
    }
    let pages = documents(&folder).into_iter();
    let wrong: Vec<_> = pages
        .filter(|page| *page != summary && named.remove(page) != Some(1))
        .collect();
    assert!(wrong.is_empty(), "missing, or there twice: {wrong:?}");
    assert!(named.is_empty(), "no pages: {named:?}");
}
