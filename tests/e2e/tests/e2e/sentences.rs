//! Every sentence of `docs/semantics.md` names tests that exist, and every such test is named
//! there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use forebay_testkit::all_files;

/// Prefixes of tests that pin a sentence.
const PREFIXES: [&str; 3] = ["promise_", "command_", "bad_input_"];

/// Words in a text that are names of such tests.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let parts = text.split(before).skip(1);
    parts
        .filter_map(|rest| rest.split(word).next())
        .filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(str::to_string)
        .collect()
}

#[test]
fn sentences_and_tests_name_each_other() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(here.join("../../docs/semantics.md")).expect("document");
    let sources = all_files(&here.join("tests"));
    let texts = sources
        .iter()
        .map(|path| fs::read_to_string(path).expect("source"));
    let tests = names(&texts.collect::<String>(), "#[test]\nfn ");
    let named = names(&document, "`");
    let missing: Vec<_> = named.difference(&tests).collect();
    let unnamed: Vec<_> = tests.difference(&named).collect();
    assert!(
        missing.is_empty(),
        "named in semantics.md, but no tests: {missing:?}"
    );
    assert!(
        unnamed.is_empty(),
        "tests that pin no sentence of semantics.md: {unnamed:?}"
    );
    let numbered = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    for line in document.split("\n\n").filter(numbered) {
        assert!(!names(line, "`").is_empty(), "no test pins: {line}");
    }
}
