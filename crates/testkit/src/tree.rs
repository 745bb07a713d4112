//! What is in a directory tree, to compare two of them or the same one before and after.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::names::listing;

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A directory and its permissions.
    Dir(u32),
    /// A regular file: permissions, number of names, content.
    File(u32, u64, Vec<u8>),
    /// A symbolic link and where it points.
    Link(Vec<u8>),
    /// Anything else: its letter.
    Special(char),
}

/// The tree below a directory, by path.
#[track_caller]
pub fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut tree = BTreeMap::new();
    collect(root, Path::new(""), &mut tree);
    tree
}

#[track_caller]
fn collect(root: &Path, below: &Path, tree: &mut BTreeMap<Vec<u8>, Entry>) {
    for name in listing(&root.join(below)) {
        let relative = below.join(&name);
        let full = root.join(&relative);
        let meta = full
            .symlink_metadata()
            .unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        let (kind, perm) = (meta.file_type(), meta.mode() & 0o7777);
        let entry = if kind.is_dir() {
            collect(root, &relative, tree);
            Entry::Dir(perm)
        } else if kind.is_file() {
            let content =
                std::fs::read(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
            Entry::File(perm, meta.nlink(), content)
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&full).expect("link");
            Entry::Link(target.as_os_str().as_bytes().to_vec())
        } else {
            Entry::Special(match (kind.is_fifo(), kind.is_socket()) {
                (true, _) => 'p',
                (_, true) => 's',
                _ => '?',
            })
        };
        tree.insert(relative.as_os_str().as_bytes().to_vec(), entry);
    }
}
