//! Names and listings.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A name of any bytes.
pub fn os_name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// The names in a directory, sorted.
#[track_caller]
pub fn listing(folder: &Path) -> Vec<OsString> {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<OsString> = entries
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    names.sort();
    names
}

/// All regular files below a directory, sorted.
#[track_caller]
pub fn all_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for name in listing(folder) {
        let path = folder.join(name);
        let kind = path.symlink_metadata().expect("metadata").file_type();
        if kind.is_dir() {
            files.extend(all_files(&path));
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files
}
