//! Links of the documents, each of which leads to a file, a folder or a heading.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// A link: the line it is in, what is to be clicked on, and where it leads.
#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    /// Counted from 1.
    pub line: usize,
    /// Between the brackets.
    pub text: String,
    /// Between the parentheses.
    pub target: String,
}

/// Documents below a folder; what is hidden, built or of others is left out.
pub fn documents(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("folder") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if name.starts_with('.') || ["vendor", "target", "dist"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            found.extend(documents(&path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Lines of a document that are no code, each with its number.
fn prose(document: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    (1..).zip(document.lines()).filter(move |(_, line)| {
        let line = line.trim_start();
        let ticks = line.len() - line.trim_start_matches('`').len();
        match fence {
            Some(open) => {
                if line.starts_with(open) && line.trim_matches('`').is_empty() {
                    fence = None;
                }
                false
            }
            None if ticks >= 3 => {
                fence = Some(&line[..ticks]);
                false
            }
            None => true,
        }
    })
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // A backtick that is left over is one.
    let paired = parts.len() - (parts.len() + 1) % 2;
    let kept = |(at, part): (usize, &&str)| match at % 2 == 0 || at >= paired {
        true => part.to_string(),
        false => "`".to_string(),
    };
    parts.iter().enumerate().map(kept).collect()
}

/// The links of a document.
pub fn links(document: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (line, text) in prose(document) {
        let text = without_code(text);
        for (at, _) in text.match_indices("](") {
            let behind = &text[at + 2..];
            let Some(end) = behind.find(')') else {
                continue;
            };
            let begin = text[..at].rfind('[').map_or(0, |open| open + 1);
            found.push(Link {
                line,
                text: text[begin..at].to_string(),
                target: behind[..end].to_string(),
            });
        }
    }
    found
}

/// What a heading is called in an address, on a page of a forge and in the book alike.
fn slug(heading: &str) -> String {
    let shown = heading.trim().chars();
    shown
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// The headings of a document, as addresses name them, and the text below each.
fn sections(document: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (_, line) in prose(document) {
        let heading = line.trim_start_matches('#');
        let depth = line.len() - heading.len();
        if (1..=6).contains(&depth) && heading.starts_with(' ') {
            let name = slug(heading);
            let taken = |name: &str| found.iter().any(|(other, _)| other == name);
            let numbered = (1..).map(|n| format!("{name}-{n}"));
            let free = std::iter::once(name.clone())
                .chain(numbered)
                .find(|name| !taken(name));
            found.push((free.expect("endless"), String::new()));
        } else if let Some((_, below)) = found.last_mut() {
            below.push_str(line);
            below.push('\n');
        }
    }
    found
}

/// The number that a link to a sentence shows: `4.1`, or `4.1.2`.
fn sentence_number(text: &str) -> Option<&str> {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    (text.contains('.') && text.split('.').all(digits)).then_some(text)
}

/// Why a link of the document at this path leads nowhere.
pub fn broken(from: &Path, link: &Link) -> Option<String> {
    let target = link.target.as_str();
    if target.starts_with("http://") || target.starts_with("https://") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => from.to_path_buf(),
        path => plain(&from.parent().expect("a folder").join(path)),
    };
    if !file.exists() {
        return Some(format!("there is no {}", file.display()));
    }
    if anchor.is_empty() {
        return None;
    }
    let Ok(document) = fs::read_to_string(&file) else {
        return Some(format!("{} has no headings", file.display()));
    };
    let sections = sections(&document);
    let Some((_, below)) = sections.iter().find(|(name, _)| name == anchor) else {
        return Some(format!("{} has no heading {anchor}", file.display()));
    };
    let sentence = sentence_number(&link.text)?;
    let is_there = below
        .lines()
        .any(|line| line.split(' ').next() == Some(sentence));
    (!is_there).then(|| format!("no sentence {sentence} below {anchor}"))
}

/// A path without `..`.
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn what_leads_nowhere_is_found() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/house/links.rs");
    let root = super::workspace::root();
    let why = |from: &Path, text: &str| {
        let all = links(text);
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        broken(from, &all[0])
    };
    let page = root.join("docs/semantics.md");
    assert_eq!(why(&page, "[a](design.md), `[b](c.md)`"), None);
    assert_eq!(why(&page, "[a](#1-one-tree)\n```\n[b](c.md)\n```"), None);
    assert_eq!(why(&page, "see [2.1](semantics.md#2-posix)"), None);
    assert!(why(&page, "see [2.9999](semantics.md#2-posix)").is_some());
    assert!(why(&page, "see [1.1](semantics.md#2-posix)").is_some());
    assert!(why(&page, "[a](#one-tree)").is_some());
    assert!(why(&page, "[a](desing.md)").is_some());
    assert!(why(&page, "````\n```\n````\n[a](desing.md)").is_some());
    assert!(why(&here, "a ` b [a](../desing.md)").is_some());
}

#[test]
fn headings_are_called_as_addresses_name_them() {
    let names =
        |text| -> Vec<String> { sections(text).into_iter().map(|(name, _)| name).collect() };
    let text = "# 12. A `forebay up`, and b_c\n```\n# no\n```\n## B\n## B\n#hash";
    assert_eq!(names(text), ["12-a-forebay-up-and-b_c", "b", "b-1"]);
}
