//! Which file of a crate names what is in which other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::workspace::{code_of, rust_files};

/// From each file to those that it names things of.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// Of the sources below a crate's `src`, without its tests.
pub fn edges_of(src: &Path) -> Edges {
    let files = rust_files(src);
    let mut modules = Modules::default();
    let tests = files_of_tests(&files);
    let counts = |path: &str| !tests.iter().any(|test| path.starts_with(test.as_str()));
    let files: Vec<_> = files.iter().filter(|(path, _)| counts(path)).collect();
    for (path, text) in &files {
        let module = module_of(path);
        for (name, of) in reexports(&bare(text), &module) {
            modules.reexports.insert((module.clone(), name), of);
        }
        modules.files.insert(module, path.clone());
    }
    let edges = files.iter().map(|(path, text)| {
        let module = module_of(path);
        let named = paths_in(&bare(text), &["crate", "super"]);
        let to = named.iter().filter_map(|named| {
            let file = modules.file_of(&absolute(&module, named)?)?;
            (file != path).then(|| file.clone())
        });
        (path.clone(), to.collect())
    });
    edges.collect()
}

/// Files of modules that exist in tests only, or how the paths of those below them begin.
fn files_of_tests(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        for behind in text.split("#[cfg(test)]\n").skip(1) {
            let line = behind.lines().find(|line| !line.starts_with("#[allow"));
            let line = line.unwrap_or_default();
            if let Some(file) = line.strip_prefix("#[path = \"") {
                found.push(below(dir, file.trim_end_matches("\"]")));
            } else if let Some(name) = line.strip_prefix("mod ").and_then(|m| m.strip_suffix(';')) {
                // A file's modules lie in a folder of its name.
                let own = module_of(path).join("/");
                found.push(below(&own, &format!("{name}.rs")));
                found.push(below(&own, &format!("{name}/")));
            }
        }
    }
    found
}

fn below(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_string(),
        dir => format!("{dir}/{name}"),
    }
}

/// `a/b.rs` and `a/b/mod.rs` are the module `a::b`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let parts = path.split('/').map(str::to_string);
    match path {
        "lib" | "main" => Vec::new(),
        _ => parts.collect(),
    }
}

#[derive(Default)]
struct Modules {
    files: BTreeMap<Vec<String>, String>,
    /// What a module calls its own, and is another's.
    reexports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl Modules {
    /// The file in which a path leads to something.
    fn file_of(&self, path: &[String]) -> Option<&String> {
        let known = |length: &usize| self.files.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(known)?;
        let module = &path[..length];
        let name = path.get(length).cloned().unwrap_or_default();
        match self.reexports.get(&(module.to_vec(), name)) {
            Some(of) if of != path => self.file_of(of),
            _ => self.files.get(module),
        }
    }
}

fn absolute(module: &[String], named: &[String]) -> Option<Vec<String>> {
    let ups = named.iter().take_while(|part| *part == "super").count();
    let base = match named[0].as_str() {
        "crate" => &[],
        _ => &module[..module.len().checked_sub(ups)?],
    };
    let rest = named.iter().skip(ups.max(1)).cloned();
    Some(base.iter().cloned().chain(rest).collect())
}

/// Names that a module hands on from its own children: `pub use child::Name`.
fn reexports(code: &str, module: &[String]) -> Vec<(String, Vec<String>)> {
    let statements = code.split(';').filter_map(|part| {
        let at = part
            .find("pub use ")
            .or_else(|| part.find("pub(crate) use "))?;
        Some(part[at..].split_once("use ")?.1)
    });
    let mut found = Vec::new();
    for statement in statements {
        let mut paths = Vec::new();
        tree(statement, Vec::new(), &mut paths);
        for path in paths {
            let Some(name) = path.last().cloned() else {
                continue;
            };
            let of = match path[0].as_str() {
                "crate" => path[1..].to_vec(),
                "self" => [module, &path[1..]].concat(),
                _ => [module, &path[..]].concat(),
            };
            found.push((name, of));
        }
    }
    found
}

/// Code without its tests and comments.
fn bare(text: &str) -> String {
    let lines = code_of(text).lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Paths that begin with one of these words.
fn paths_in(code: &str, heads: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for head in heads {
        for (at, _) in code.match_indices(&format!("{head}::")) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && !"_:$".contains(before) {
                tree(&code[at..], Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Follows `a::b::{c, d::e}` to all its ends; returns what comes behind it.
fn tree<'c>(code: &'c str, before: Vec<String>, found: &mut Vec<Vec<String>>) -> &'c str {
    let mut path = before;
    let mut rest = code.trim_start();
    loop {
        if let Some(list) = rest.strip_prefix('{') {
            rest = list.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let behind = tree(rest, path.clone(), found);
                // What is no name ends the list: it was none.
                if behind.len() == rest.len() {
                    return rest;
                }
                rest = behind.trim_start();
                rest = rest.strip_prefix("as ").map_or(rest, after_word);
                rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let behind = after_word(rest);
        let word = &rest[..rest.len() - behind.len()];
        if word == "self" && !path.is_empty() {
            found.push(path);
            return behind;
        }
        if !word.is_empty() {
            path.push(word.to_string());
        }
        match behind.strip_prefix("::") {
            Some(further) if !further.starts_with('<') => rest = further,
            _ => {
                if !path.is_empty() {
                    found.push(path);
                }
                return behind.strip_prefix('*').unwrap_or(behind);
            }
        }
    }
}

fn after_word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[end.unwrap_or(text.len())..]
}

/// Files that can be reached from each other, in groups of two and more.
pub fn cycles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = edges
        .keys()
        .map(|from| (from, reach(edges, from)))
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, all) in &reached {
        let back = all.iter().filter(|to| reached[*to].contains(from));
        let group: BTreeSet<String> = back.map(|to| to.to_string()).collect();
        if group.len() > 1 && !found.contains(&group) {
            found.push(group);
        }
    }
    found
}

fn reach<'e>(edges: &'e Edges, from: &'e String) -> BTreeSet<&'e String> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for to in &edges[file] {
            if reached.insert(to) {
                left.push(to);
            }
        }
    }
    reached
}

#[test]
fn paths_are_followed_to_all_their_ends() {
    let code = "use crate::a::{self, B, c::{D, E as F}};\nlet x = super::super::g::h(1);";
    let mut found = paths_in(code, &["crate", "super"]);
    found.sort();
    let joined: Vec<String> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(
        joined,
        [
            "crate::a",
            "crate::a::B",
            "crate::a::c::D",
            "crate::a::c::E",
            "super::super::g::h"
        ]
    );
    let module = ["x", "y"].map(str::to_string);
    let above = absolute(&module, &found[4]).expect("above");
    assert_eq!(above, ["g", "h"]);
}

#[test]
fn what_is_handed_on_is_its_owners() {
    let mut modules = Modules::default();
    for (module, file) in [(vec![], "lib.rs"), (vec!["copy".to_string()], "copy.rs")] {
        modules.files.insert(module, file.to_string());
    }
    for (name, of) in reexports("pub use copy::{Control, copy};", &[]) {
        modules.reexports.insert((Vec::new(), name), of);
    }
    let file_of = |name: &str| modules.file_of(&[name.to_string()]).map(String::as_str);
    assert_eq!(file_of("Control"), Some("copy.rs"));
    assert_eq!(file_of("Other"), Some("lib.rs"));
}

#[test]
fn circles_are_found() {
    let edge = |from: &str, to: &[&str]| {
        let to = to.iter().map(|to| to.to_string()).collect();
        (from.to_string(), to)
    };
    let edges = Edges::from([
        edge("a", &["b"]),
        edge("b", &["c", "d"]),
        edge("c", &["a"]),
        edge("d", &["e"]),
        edge("e", &[]),
    ]);
    let circle: BTreeSet<String> = ["a", "b", "c"].map(str::to_string).into();
    assert_eq!(cycles(&edges), [circle]);
}
