//! What a directory of the PFS holds.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Content of a regular file.
    pub data: Option<Vec<u8>>,
    /// Target of a link; empty for a directory.
    pub target: Option<String>,
    /// Permission bits; 0 for links.
    pub mode: u32,
}

/// Entries by name, without those below directories.
pub type Tree = BTreeMap<String, Entry>;

/// Reads a directory.
pub fn snapshot(dir: &Path) -> Tree {
    let entries = fs::read_dir(dir).expect("read_dir");
    entries
        .map(|entry| {
            let path = entry.expect("entry").path();
            let kind = path.symlink_metadata().expect("lstat");
            assert!(!kind.file_type().is_fifo());
            let name = path.file_name().expect("name").to_str().expect("UTF-8");
            let mode = kind.permissions().mode() & 0o7777;
            let entry = match (kind.is_file(), kind.is_symlink()) {
                (true, _) => Entry {
                    data: Some(fs::read(&path).expect("read")),
                    target: None,
                    mode,
                },
                (_, true) => Entry {
                    data: None,
                    target: Some(fs::read_link(&path).expect("link").display().to_string()),
                    mode: 0,
                },
                _ => Entry {
                    data: None,
                    target: Some(String::new()),
                    mode,
                },
            };
            (name.to_string(), entry)
        })
        .collect()
}

/// How many entries are second versions.
pub fn conflicts(tree: &Tree) -> usize {
    let names = tree.keys();
    names
        .filter(|name| name.contains(".forebay-conflict-"))
        .count()
}

/// Whether a regular file of this content is there.
pub fn holds(tree: &Tree, data: &[u8]) -> bool {
    tree.values().any(|e| e.data.as_deref() == Some(data))
}
