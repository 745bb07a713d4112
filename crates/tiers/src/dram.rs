//! Memory borrowed as a directory.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_types::Errno;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno as Sys;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// Source in the table of mounts: shows people whose it is, and Forebay which one to use again.
const SOURCE: &str = "forebay-dram";
/// Large folios where the file is large enough to fill them: writing runs up to ten times as fast
/// as page by page. Small files still take only what they need; a sparse one takes 2 MiB
/// blocks. Kernels without them refuse the option.
const HUGE: &str = ",huge=within_size";
/// `statfs` type of tmpfs.
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// Why memory could not be borrowed. Found inside an `io::Error` with [`DramError::of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DramError {
    /// Something else is mounted there.
    #[error("{} is the mount point of another file system", .0.display())]
    OtherMount(PathBuf),
    /// The directory holds files, which a mount would hide.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Without the privilege to mount, and no directory in memory to use in its place.
    #[error("may not mount, and neither /dev/shm nor $XDG_RUNTIME_DIR can be used")]
    NoPlace,
    /// The directory in memory is not ours alone.
    #[error("{} belongs to another user, or others may enter it", .0.display())]
    NotPrivate(PathBuf),
}

impl DramError {
    /// The refusal inside an error of [`mount_dram`], if that is what it is.
    pub fn of(error: &io::Error) -> Option<&DramError> {
        error.get_ref()?.downcast_ref()
    }

    /// The error number it becomes.
    pub fn errno(&self) -> Errno {
        match self {
            DramError::OtherMount(_) => Errno::EBUSY,
            DramError::NotEmpty(_) => Errno::ENOTEMPTY,
            DramError::NoPlace | DramError::NotPrivate(_) => Errno::EPERM,
        }
    }
}

impl From<DramError> for io::Error {
    fn from(error: DramError) -> io::Error {
        let kind = io::Error::from(error.errno()).kind();
        io::Error::new(kind, error)
    }
}

/// Borrowed memory. It stays when this is dropped, and when the process dies: what is in it
/// survives the daemon. [`DramMount::unmount`] gives it back.
#[derive(Debug)]
pub struct DramMount {
    path: PathBuf,
    is_private: bool,
    was_reused: bool,
    size_bytes: AtomicU64,
}

impl DramMount {
    /// Where objects go: the mount point, or the directory used in its place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a tmpfs of its own; otherwise the size is only a soft cap.
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// Whether it was there before: a daemon died and its memory is as it left it.
    pub fn was_reused(&self) -> bool {
        self.was_reused
    }

    /// The limit in force, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// What is occupied, bytes; `None` where others have a part in the same tmpfs.
    pub fn used_bytes(&self) -> io::Result<Option<u64>> {
        if !self.is_private {
            return Ok(None);
        }
        let stat = rustix::fs::statvfs(&self.path)?;
        let blocks = stat.f_blocks.saturating_sub(stat.f_bfree);
        Ok(Some(blocks.saturating_mul(stat.f_frsize)))
    }

    /// Changes the limit. `EBUSY` if more than that is in use; the old limit then stays.
    pub fn resize(&self, size_bytes: u64) -> io::Result<()> {
        if self.is_private {
            remount(&self.path, size_bytes)?;
        }
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the memory back, with all that is in it. `EBUSY` while something there is open: drop
    /// the tier first.
    pub fn unmount(self) -> io::Result<()> {
        if self.is_private {
            Ok(rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW)?)
        } else {
            std::fs::remove_dir_all(&self.path)
        }
    }
}

/// Borrows up to `size_bytes` of memory: a private tmpfs on `dir`, or, without the privilege to
/// mount, a directory in `/dev/shm` or `$XDG_RUNTIME_DIR` whose name follows from `dir`. What an
/// earlier daemon left there is used again, with its content; the tier's marker tells whose it is.
///
/// A limit below what is in use after such a restart is not enforced: `size_bytes()` tells.
pub fn mount_dram(dir: &Path, size_bytes: u64) -> io::Result<DramMount> {
    if is_mount_point(dir)? {
        return reuse(dir, size_bytes);
    }
    if std::fs::read_dir(dir)?.next().is_some() {
        return Err(DramError::NotEmpty(dir.to_path_buf()).into());
    }
    match mount(dir, size_bytes) {
        Ok(()) => Ok(DramMount {
            path: dir.to_path_buf(),
            is_private: true,
            was_reused: false,
            size_bytes: AtomicU64::new(size_bytes),
        }),
        Err(Sys::PERM | Sys::ACCESS) => {
            let places = [
                Some(PathBuf::from("/dev/shm")),
                std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            ];
            in_shared_memory(dir, size_bytes, places.into_iter().flatten())
        }
        Err(error) => Err(error.into()),
    }
}

fn is_mount_point(dir: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, dir, flags, StatxFlags::TYPE)?;
    if stat.stx_mode & libc::S_IFMT as u16 != libc::S_IFDIR as u16 {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn options(size_bytes: u64, extra: &str) -> Result<CString, Sys> {
    let text = format!("size={size_bytes},nr_inodes=0,mode=0700{extra}");
    CString::new(text).map_err(|_| Sys::INVAL)
}

const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

fn mount(dir: &Path, size_bytes: u64) -> Result<(), Sys> {
    // A size of 0 would mean "no limit" to tmpfs.
    if size_bytes == 0 {
        return Err(Sys::INVAL);
    }
    let try_with = |extra: &str| {
        let options = options(size_bytes, extra)?;
        rustix::mount::mount(SOURCE, dir, "tmpfs", FLAGS, options.as_c_str())
    };
    match try_with(HUGE) {
        Err(Sys::INVAL) => try_with("")?,
        result => result?,
    }
    // Where mounts are shared (systemd does that), copies of it would keep the memory alive in
    // other name spaces. Failing that it still works.
    let _ = rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE);
    Ok(())
}

fn remount(dir: &Path, size_bytes: u64) -> io::Result<()> {
    if size_bytes == 0 {
        return Err(Errno::EINVAL.into());
    }
    let result = rustix::mount::mount_remount(dir, FLAGS, format!("size={size_bytes}"));
    match result {
        // What tmpfs says to a limit below what is in use.
        Err(Sys::INVAL) => Err(Errno::EBUSY.into()),
        result => Ok(result?),
    }
}

/// Takes over what is mounted on `dir`, if it is Forebay's and this user's.
fn reuse(dir: &Path, size_bytes: u64) -> io::Result<DramMount> {
    let other = || DramError::OtherMount(dir.to_path_buf());
    let stat = rustix::fs::statfs(dir)?;
    if stat.f_type as u32 != TMPFS_MAGIC || source_of(dir)?.as_deref() != Some(SOURCE) {
        return Err(other().into());
    }
    if !is_private_dir(dir)? {
        return Err(DramError::NotPrivate(dir.to_path_buf()).into());
    }
    let in_force = match remount(dir, size_bytes) {
        Ok(()) => size_bytes,
        // Shrunk in the configuration, but still full, or mounted by root for somebody else.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EPERM)) => {
            stat.f_blocks.saturating_mul(stat.f_bsize as u64)
        }
        Err(error) => return Err(error),
    };
    Ok(DramMount {
        path: dir.to_path_buf(),
        is_private: true,
        was_reused: true,
        size_bytes: AtomicU64::new(in_force),
    })
}

/// Source of the topmost mount on `dir`, from the kernel's table.
fn source_of(dir: &Path) -> io::Result<Option<String>> {
    let dir = dir.canonicalize()?;
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    let mut source = None;
    for line in table.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b' ');
        if fields.nth(4).map(unescape).as_deref() != Some(dir.as_os_str().as_bytes()) {
            continue;
        }
        // Optional fields end with "-"; type and source follow.
        let found = fields.skip_while(|field| *field != b"-").nth(2);
        source = found.map(|field| String::from_utf8_lossy(field).into_owned());
    }
    Ok(source)
}

/// Undoes the table's octal escapes: `\040` for a blank.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match tail {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if *first == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// A directory that is this user's and closed to all others.
fn is_private_dir(dir: &Path) -> io::Result<bool> {
    let meta = std::fs::symlink_metadata(dir)?;
    let euid = rustix::process::geteuid().as_raw();
    Ok(meta.is_dir() && meta.uid() == euid && meta.permissions().mode() & 0o077 == 0)
}

/// FNV-1a, 64 bits: a short name that stays the same from one release to the next.
fn short_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A directory in the first of `places` that is in memory and takes one.
fn in_shared_memory(
    dir: &Path,
    size_bytes: u64,
    places: impl Iterator<Item = PathBuf>,
) -> io::Result<DramMount> {
    let key = short_hash(dir.canonicalize()?.as_os_str().as_bytes());
    let euid = rustix::process::geteuid().as_raw();
    for place in places {
        let in_memory =
            rustix::fs::statfs(&place).is_ok_and(|stat| stat.f_type as u32 == TMPFS_MAGIC);
        if !in_memory {
            continue;
        }
        let path = place.join(format!("forebay-{euid}-{key:016x}"));
        let was_reused = match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => false,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => true,
            Err(_) => continue,
        };
        // Anybody may make a directory of that name there.
        if !is_private_dir(&path)? {
            return Err(DramError::NotPrivate(path).into());
        }
        return Ok(DramMount {
            path,
            is_private: false,
            was_reused,
            size_bytes: AtomicU64::new(size_bytes),
        });
    }
    Err(DramError::NoPlace.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c\\"), b"/a b\\c\\");
        assert_eq!(unescape(b"\\04"), b"\\04");
    }

    #[test]
    fn without_privilege_a_private_directory_in_memory_is_used() {
        let state = tempfile::tempdir().unwrap();
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let places = || [PathBuf::from("/proc"), memory.path().to_path_buf()].into_iter();
        let first = in_shared_memory(state.path(), 1 << 20, places()).unwrap();
        assert!(!first.is_private() && !first.was_reused());
        assert!(first.path().starts_with(memory.path()));
        let second = in_shared_memory(state.path(), 1 << 20, places()).unwrap();
        assert_eq!(second.path(), first.path());
        assert!(second.was_reused());
        // Another state directory, another place.
        let other = tempfile::tempdir().unwrap();
        let third = in_shared_memory(other.path(), 1 << 20, places()).unwrap();
        assert_ne!(third.path(), first.path());
        second.resize(5).unwrap();
        assert_eq!(second.size_bytes(), 5);
        // Opened to others: not trusted any more.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(third.path(), open).unwrap();
        let refused = in_shared_memory(other.path(), 1 << 20, places()).unwrap_err();
        assert!(matches!(
            DramError::of(&refused),
            Some(DramError::NotPrivate(_))
        ));
        first.unmount().unwrap();
        third.unmount().unwrap();
        assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_any_memory_it_says_so() {
        let state = tempfile::tempdir().unwrap();
        let refused = in_shared_memory(state.path(), 1, std::iter::empty()).unwrap_err();
        assert_eq!(DramError::of(&refused), Some(&DramError::NoPlace));
    }
}
