//! The mount table: which burst buffers are mounted here, and what else lies where.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::show::text::show_path;

/// File-system type of a burst buffer's mount.
pub const FOREBAY_TYPE: &str = "fuse.forebay";

/// The kernel follows no more links.
const LINKS_MAX: u32 = 40;

/// One line of /proc/self/mountinfo, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The directory of the file system that is mounted; `/` unless it is a bind mount of a part.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// File-system type.
    pub fs_type: String,
    /// Source; of a burst buffer, its state folder.
    pub source: PathBuf,
    /// Options of this mount, then those of the file system, as the kernel lists them.
    pub options: Vec<String>,
}

impl MountEntry {
    /// Whether this is a burst buffer.
    pub fn is_forebay(&self) -> bool {
        self.fs_type == FOREBAY_TYPE
    }
}

/// The mount table now.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Lines that do not have the documented shape are left out.
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = 6 + fields.get(6..)?.iter().position(|f| f == b"-")?;
    // Old lines end with the source.
    let of_file_system = fields.get(dash + 3).copied().unwrap_or_default();
    let lists = [fields[5], of_file_system].map(String::from_utf8_lossy);
    let options = lists.iter().flat_map(|list| list.split(','));
    Some(MountEntry {
        options: options
            .filter(|option| !option.is_empty())
            .map(str::to_string)
            .collect(),
        root: unescape(fields[3]),
        point: unescape(fields[4]),
        fs_type: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?),
    })
}

/// Undoes the `\040` for a blank and the like of the kernel, and of fstab(5).
pub fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        match octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                at += 4;
            }
            None => {
                bytes.push(field[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The mount that a path lies in: the deepest mount point above it, the last one mounted there.
pub fn covering<'a>(table: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    table
        .iter()
        .filter(|entry| path.starts_with(&entry.point))
        .max_by_key(|entry| entry.point.as_os_str().len())
}

/// What is mounted at a place, on top of all others there.
pub fn topmost<'a>(table: &'a [MountEntry], place: &Path) -> Option<&'a MountEntry> {
    table.iter().rev().find(|entry| entry.point == place)
}

/// A place as the mount table has it: without links, and absolute. What is mounted there is asked
/// nothing, for its process may be dead or hang; what cannot be found stays as it is.
pub fn resolved(table: &[MountEntry], place: &Path) -> PathBuf {
    let absolute = || std::path::absolute(place).ok();
    let Some(mut path) = absolute() else {
        return place.to_path_buf();
    };
    for _ in 0..LINKS_MAX {
        if topmost(table, &path).is_some() {
            return path;
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().unwrap_or(path);
        };
        let Ok(above) = above.canonicalize() else {
            return path;
        };
        path = above.join(name);
        if topmost(table, &path).is_some() {
            return path;
        }
        match std::fs::read_link(&path) {
            Ok(target) => path = above.join(target),
            Err(_) => return path,
        }
    }
    place.to_path_buf()
}

/// The mounts of the burst buffer with this state folder.
pub fn of_state<'a>(table: &'a [MountEntry], state: &Path) -> Vec<&'a MountEntry> {
    table
        .iter()
        .filter(|entry| entry.is_forebay() && entry.source == state)
        .collect()
}

/// Takes the mount at `point` out of the tree at once, if it is a burst buffer's. If it fails, the
/// next `up` or `down` does it.
pub fn detach_ours(point: &Path) {
    let ours = |entry: &MountEntry| entry.is_forebay() && entry.point == point;
    if read().is_ok_and(|table| table.iter().any(ours)) {
        drop(detach(point));
    }
}

/// Takes a mount out of the tree without waiting for those who still use it.
pub fn detach(point: &Path) -> io::Result<()> {
    use rustix::mount::UnmountFlags;
    unmount_with(point, UnmountFlags::DETACH, &["-u", "-z", "--"])
}

/// Unmounts what nobody uses; `EBUSY` if somebody does.
pub fn unmount(point: &Path) -> io::Result<()> {
    use rustix::mount::UnmountFlags;
    unmount_with(point, UnmountFlags::empty(), &["-u", "--"])
}

fn unmount_with(
    point: &Path,
    flags: rustix::mount::UnmountFlags,
    for_users: &[&str],
) -> io::Result<()> {
    use rustix::mount::{UnmountFlags, unmount};
    match unmount(point, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => {}
        other => return other.map_err(io::Error::from),
    }
    let output = Command::new("fusermount3")
        .args(for_users)
        .arg(point)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(
        text.lines()
            .next()
            .unwrap_or("fusermount3 failed")
            .to_string(),
    ))
}

/// The path from a mount's root, without leading '/', of a canonical path below its mount point.
pub fn relative(entry: &MountEntry, path: &Path) -> Option<Vec<u8>> {
    let below = path.strip_prefix(&entry.point).ok()?;
    let root = entry.root.strip_prefix("/").unwrap_or(&entry.root);
    Some(trim_slash(root.join(below).as_os_str().as_bytes().to_vec()))
}

/// `join("")` leaves a '/' at the end.
pub fn trim_slash(mut path: Vec<u8>) -> Vec<u8> {
    while path.last() == Some(&b'/') {
        path.pop();
    }
    path
}

/// A path as a line of text. What has no name in the mount has one in brackets, as `(PFS)` or
/// `(unlinked object 7)`: no path leads there.
pub fn shown(mount: &Path, relative: &[u8]) -> String {
    let is_bracketed = relative.starts_with(b"(") && relative.ends_with(b")");
    match is_bracketed && !relative.contains(&b'/') {
        true => show_path(relative),
        false => show_path(&in_mount(mount, relative)),
    }
}

/// A path as users see it.
pub fn in_mount(mount: &Path, relative: &[u8]) -> Vec<u8> {
    let mut path = mount.as_os_str().as_bytes().to_vec();
    if !relative.is_empty() {
        path.push(b'/');
        path.extend_from_slice(relative);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:40 / /bb rw,nosuid,nodev,relatime shared:9 master:2 - fuse.forebay /var/tmp/my\\040bb rw,user_id=0
41 22 0:40 /run7 /home/u/run7 rw - fuse.forebay /var/tmp/my\\040bb rw
42 40 0:41 / /bb/other rw - tmpfs none rw
broken line
";

    #[test]
    fn the_mount_table_parses() {
        let table = parse(TABLE);
        assert_eq!(table.len(), 4);
        assert_eq!(table[1].source, Path::new("/var/tmp/my bb"));
        assert!(table[1].is_forebay());
        assert!(!table[0].is_forebay());
        assert_eq!(of_state(&table, Path::new("/var/tmp/my bb")).len(), 2);
        let line = b"29 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw,data=writeback\n";
        let [entry] = &parse(line)[..] else {
            panic!("one line");
        };
        assert_eq!(entry.options, ["rw", "noatime", "rw", "data=writeback"]);
    }

    #[test]
    fn the_deepest_mount_covers() {
        let table = parse(TABLE);
        let point = |path: &str| {
            covering(&table, Path::new(path))
                .expect("root")
                .point
                .clone()
        };
        assert_eq!(point("/bb"), Path::new("/bb"));
        assert_eq!(point("/bb/a/b"), Path::new("/bb"));
        assert_eq!(point("/bb2/a"), Path::new("/"));
        assert_eq!(point("/bb/other/a"), Path::new("/bb/other"));
    }

    #[test]
    fn paths_count_from_the_root_of_the_file_system() {
        let table = parse(TABLE);
        assert_eq!(relative(&table[1], Path::new("/bb")), Some(b"".to_vec()));
        assert_eq!(
            relative(&table[1], Path::new("/bb/a/b")),
            Some(b"a/b".to_vec())
        );
        assert_eq!(
            relative(&table[2], Path::new("/home/u/run7")),
            Some(b"run7".to_vec())
        );
        assert_eq!(
            relative(&table[2], Path::new("/home/u/run7/x")),
            Some(b"run7/x".to_vec())
        );
        assert_eq!(relative(&table[2], Path::new("/bb")), None);
    }

    #[test]
    fn a_place_is_found_by_its_links() {
        let folder = tempfile::tempdir().expect("tempdir");
        let base = folder.path().canonicalize().expect("canonical");
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, base.join(name)).expect("symlink");
        };
        std::fs::create_dir_all(base.join("real/bb")).expect("mkdir");
        link("real", "above");
        link("above/bb", "to");
        link("to", "to-to");
        link("loop", "loop");
        let text = format!(
            "40 22 0:40 / {}/real/bb rw - fuse.forebay /v rw\n",
            base.display()
        );
        let bb = base.join("real/bb");
        for table in [parse(text.as_bytes()), Vec::new()] {
            for name in [
                "real/bb",
                "real/bb/",
                "above/bb",
                "to",
                "to-to",
                "real/../to",
            ] {
                assert_eq!(resolved(&table, &base.join(name)), bb, "{name}");
            }
        }
        assert_eq!(resolved(&[], &base.join("loop")), base.join("loop"));
        assert_eq!(
            resolved(&[], &base.join("above/none")),
            base.join("real/none")
        );
        assert_eq!(
            resolved(&[], Path::new("/none/none")),
            Path::new("/none/none")
        );
        assert_eq!(resolved(&[], Path::new("/")), Path::new("/"));
    }

    #[test]
    fn users_see_paths_below_the_mount() {
        assert_eq!(in_mount(Path::new("/bb"), b"a/b"), b"/bb/a/b");
        assert_eq!(in_mount(Path::new("/bb"), b""), b"/bb");
        let shown = |path: &[u8]| shown(Path::new("/bb"), path);
        assert_eq!(shown(b"a/\n"), "/bb/a/\\x0a");
        assert_eq!(shown(b"(unlinked object 7)"), "(unlinked object 7)");
        assert_eq!(shown(b"(a)/b"), "/bb/(a)/b");
    }
}
