//! The workspace as text.

use std::fs;
use std::path::{Path, PathBuf};

/// Where others' sources and the compiler's output are.
const NOT_OURS: [&str; 3] = ["vendor", "target", ".git"];

/// A crate of `crates/`.
pub struct Package {
    /// Its folder's name.
    pub name: String,
    /// That folder.
    pub dir: PathBuf,
    /// Names of the crates of this workspace that it depends on, without those of its tests.
    pub dependencies: Vec<String>,
}

/// The workspace's folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/types").to_path_buf()
}

/// All crates of `crates/`.
pub fn packages() -> Vec<Package> {
    let mut found: Vec<Package> = fs::read_dir(root().join("crates"))
        .expect("crates")
        .filter_map(|entry| {
            let dir = entry.expect("entry").path();
            let manifest = fs::read_to_string(dir.join("Cargo.toml")).ok()?;
            Some(Package {
                name: dir.file_name()?.to_str()?.to_string(),
                dependencies: dependencies(&manifest),
                dir,
            })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let counts = section.ends_with("dependencies]") && !section.contains("dev-dependencies");
        if let Some(rest) = line.strip_prefix("forebay-").filter(|_| counts) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            found.push(rest[..end.unwrap_or(rest.len())].to_string());
        }
    }
    found
}

/// Rust files below a folder: path from there, and text.
pub fn rust_files(below: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![below.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("read_dir") {
            let path = entry.expect("entry").path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.unwrap_or_default();
            if path.is_dir() && !NOT_OURS.contains(&name) {
                left.push(path);
            } else if path.is_file() && name.ends_with(".rs") {
                let text = fs::read_to_string(&path).expect("read");
                let path = path.strip_prefix(below).expect("below");
                found.push((path.to_str().expect("UTF-8").to_string(), text));
            }
        }
    }
    found.sort();
    found
}

/// A file without its tests, which are at its end.
pub fn code_of(text: &str) -> &str {
    let tests = text.find("#[cfg(test)]\nmod tests {");
    &text[..tests.unwrap_or(text.len())]
}
