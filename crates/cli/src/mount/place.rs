//! Where a mount keeps its lock, log, process id and control socket while it lives.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::exit::{Explain, Failure};

/// The run folder of a mount; made if it is missing. It is found by the mount's source.
pub fn run_folder(mount: &Path) -> Result<PathBuf, Failure> {
    let base = base();
    let todo = "FOREBAY_RUN names another folder for it";
    make(&base, 0o755).explain(base.display(), todo)?;
    let folder = base.join(name_of(mount));
    make(&folder, 0o711).explain(folder.display(), todo)?;
    // As the mount table will show it.
    std::fs::canonicalize(&folder).explain(folder.display(), todo)
}

fn base() -> PathBuf {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = given("FOREBAY_RUN") {
        return PathBuf::from(folder);
    }
    let uid = rustix::process::geteuid();
    match given("XDG_RUNTIME_DIR") {
        _ if uid.is_root() => PathBuf::from("/run/forebay"),
        Some(folder) => PathBuf::from(folder).join("forebay"),
        None => PathBuf::from(format!("/tmp/forebay-{}", uid.as_raw())),
    }
}

fn make(folder: &Path, mode: u32) -> std::io::Result<()> {
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// One name for a path: `/` becomes `-`, and what would be mistaken for that is escaped.
fn name_of(mount: &Path) -> OsString {
    let mut name = Vec::new();
    for &byte in mount.as_os_str().as_bytes().iter().skip(1) {
        match byte {
            b'/' => name.push(b'-'),
            b'-' | b'\\' | b'.' => name.extend(format!("\\x{byte:02x}").into_bytes()),
            _ => name.push(byte),
        }
    }
    if name.len() > 200 {
        // Too long for a name: its end, and what tells it from others with the same end.
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let mark = format!("{:016x}-", hasher.finish()).into_bytes();
        name.drain(..name.len() - 180);
        name.splice(0..0, mark);
    }
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mount_has_a_name_of_its_own() {
        let name = |path: &str| name_of(Path::new(path)).into_string().expect("text");
        assert_eq!(name("/mnt/bb"), "mnt-bb");
        assert_eq!(name("/mnt-bb"), "mnt\\x2dbb");
        assert_eq!(name("/a.b"), "a\\x2eb");
        let long = |letter: &str| format!("/{letter}/{}", "x/".repeat(200));
        assert!(name(&long("a")).len() < 220);
        assert_ne!(name(&long("a")), name(&long("b")));
    }
}
