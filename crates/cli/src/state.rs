//! The files of a state folder that the command line itself uses.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_types::ProcStat;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// Held by the living instance; its content is that instance's process id.
pub const LOCK: &str = "forebay.lock";
/// Process id, while the mount is served.
pub const PID: &str = "forebay.pid";
/// Held by the process that starts the server again; its content is that process's id.
pub const KEEPER: &str = "forebay.keeper";
/// Log of a detached instance.
pub const LOG: &str = "forebay.log";
/// Where the running instance is talked to.
pub const SOCKET: &str = "control.sock";
/// In the run folder of a mount: where it is mounted.
pub const MOUNT: &str = "forebay.mount";
/// In the run folder of a mount: which cluster it shows.
pub const CLUSTER: &str = "forebay.cluster";
/// The socket of mounts on the server's own node.
pub const MOUNTS: &str = "mounts.sock";

/// How long a process that starts itself anew is without its lock, at most.
const ANEW_LIMIT: Duration = Duration::from_secs(1);
/// How long a dying process may take to let go of its lock.
const DYING_LIMIT: Duration = Duration::from_secs(10);
/// Longest path that fits in a socket address, bytes (`sun_path` less the NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The instance's exclusive right to a state folder; ends with the process at the latest.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why the lock was not to be had.
#[derive(Debug)]
pub enum LockError {
    /// A living process has it.
    Held {
        /// Its process id, where known.
        pid: Option<u32>,
    },
    /// The file cannot be used.
    Io(io::Error),
}

impl Lock {
    /// Takes the lock and writes this process's id into it. Waits only for a holder that is already
    /// dead or dying.
    pub fn take(state: &Path) -> Result<Lock, LockError> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let begun = Instant::now();
        let mut file;
        loop {
            file = open(state, LOCK, flags, 0o600).map_err(LockError::Io)?;
            match file.try_lock() {
                // Who held it may have taken it away: then others would take another one.
                Ok(()) if is_there(state, &file) => break,
                Ok(()) => {}
                Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
                Err(TryLockError::WouldBlock) => {
                    let pid = read_pid(&mut file);
                    let dying = pid.is_none_or(|pid| !is_alive(pid));
                    if !dying || begun.elapsed() > DYING_LIMIT {
                        return Err(LockError::Held { pid });
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        write_pid(&mut file).map_err(LockError::Io)?;
        Ok(Lock { _file: file })
    }
}

/// Whether the lock file of a folder is this one.
fn is_there(state: &Path, file: &File) -> bool {
    let same = |there: std::fs::Metadata, held: std::fs::Metadata| {
        (there.dev(), there.ino()) == (held.dev(), held.ino())
    };
    match (std::fs::symlink_metadata(state.join(LOCK)), file.metadata()) {
        (Ok(there), Ok(held)) => same(there, held),
        _ => false,
    }
}

/// Opens a file of a state folder. The folder is not looked up again for it, and no link is
/// followed. The file must belong to the folder's owner and have no other name, because others may
/// have made the folder before it was taken as a state folder.
pub fn open(state: &Path, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
    let folder = open_folder(state)?;
    let owner = rustix::fs::fstat(&folder)?.st_uid;
    // NONBLOCK: a FIFO must not hold anybody.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(&folder, name, flags, Mode::from_raw_mode(mode)) {
        Err(Errno::LOOP | Errno::NXIO) => return Err(not_ours(name)),
        opened => File::from(opened?),
    };
    let meta = file.metadata()?;
    match meta.is_file() && meta.nlink() == 1 && meta.uid() == owner {
        true => Ok(file),
        false => Err(not_ours(name)),
    }
}

fn not_ours(name: &str) -> io::Error {
    let text =
        format!("{name} in it is a link, or somebody else's; look who made it, and remove it");
    io::Error::new(ErrorKind::PermissionDenied, text)
}

fn open_folder(state: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(state, flags, Mode::empty())?)
}

/// Puts a short text into a file of a state folder that everybody may read.
pub fn write(state: &Path, name: &str, text: &str) -> io::Result<()> {
    let mut file = open(state, name, OFlags::WRONLY | OFlags::CREATE, 0o644)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

/// Why an existing folder, given by its canonical path, cannot hold a state; `Ok(None)` if it can.
pub fn unfit(state: &Path) -> io::Result<Option<String>> {
    let me = rustix::process::geteuid().as_raw();
    let stat = rustix::fs::fstat(open_folder(state)?)?;
    if stat.st_uid != me {
        return Ok(Some(format!(
            "belongs to user {}; choose a folder of your own",
            stat.st_uid
        )));
    }
    if stat.st_mode & 0o022 != 0 {
        return Ok(Some(
            "is open to others; take their permission to write away (chmod go-w), or choose another".into(),
        ));
    }
    let mut entries = std::fs::read_dir(state)?;
    // mkfs makes `lost+found`, so it does not show that somebody uses the folder.
    let foreign = entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found"));
    match foreign && !state.join(LOCK).exists() {
        true => Ok(Some(
            "is not empty, and no burst buffer was ever started on it; choose a new one".into(),
        )),
        false => Ok(None),
    }
}

/// The folder on the way to a canonical path in which somebody else could exchange what leads to
/// it.
pub fn exchangeable(path: &Path) -> io::Result<Option<PathBuf>> {
    let me = rustix::process::geteuid().as_raw();
    for above in path.ancestors().skip(1) {
        let meta = std::fs::metadata(above)?;
        let others = meta.mode() & 0o002 != 0 && meta.mode() & libc::S_ISVTX == 0;
        if others || (meta.uid() != me && meta.uid() != 0) {
            return Ok(Some(above.to_path_buf()));
        }
    }
    Ok(None)
}

/// What the process that holds a state folder does, where it does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It starts: it has never answered.
    Starts,
    /// It has answered before: it stops, or starts itself anew.
    StopsOrStartsAnew,
}

/// Why nobody answers though a process holds the folder, and its process id; `None`: nobody does.
/// A process that has started itself anew has not got its lock yet, for a moment.
pub fn silence(state: &Path) -> Option<(Silence, Option<u32>)> {
    let served = open(state, PID, OFlags::RDONLY, 0);
    let served = served.ok().and_then(|mut file| read_pid(&mut file));
    let begun = Instant::now();
    loop {
        match holder(state) {
            Ok(Some(Holder::Process(pid))) => {
                let has_answered = pid.is_some() && pid == served;
                let silence = match has_answered {
                    true => Silence::StopsOrStartsAnew,
                    false => Silence::Starts,
                };
                return Some((silence, pid));
            }
            Ok(Some(Holder::Nobody))
                if served.is_some_and(is_alive) && begun.elapsed() < ANEW_LIMIT =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => return None,
        }
    }
}

/// The process id in a file, where there is one.
pub fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Makes this process's id the content of a file.
pub fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())
}

/// Whether the process that served lives, and has not the state folder: it starts itself anew.
pub fn is_between(state: &Path) -> bool {
    let pid = || read_pid(&mut open(state, PID, OFlags::RDONLY, 0).ok()?);
    matches!(holder(state), Ok(Some(Holder::Nobody))) && pid().is_some_and(is_alive)
}

/// Whether a process exists and is not on its way out.
fn is_alive(pid: u32) -> bool {
    // Read as bytes: the name in it need not be UTF-8.
    let line = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    ProcStat::parse(&line).is_some_and(|stat| !stat.is_dead())
}

/// Whether a living instance holds the state folder, and its process id. `None` if there is no lock
/// file, so that this has never been a state folder.
pub fn holder(state: &Path) -> io::Result<Option<Holder>> {
    let mut file = match open(state, LOCK, OFlags::RDONLY, 0) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(Holder::Nobody)),
        Err(TryLockError::WouldBlock) => Ok(Some(Holder::Process(read_pid(&mut file)))),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Who has a state folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No instance runs on it.
    Nobody,
    /// This process.
    Process(Option<u32>),
}

/// A way to name a socket in a folder whose own path may be too long for a socket address.
pub struct SocketPath {
    /// What to bind or connect to, as long as this value lives.
    pub path: PathBuf,
    _folder: Option<File>,
}

impl SocketPath {
    /// The control socket of a state folder.
    pub fn of(state: &Path) -> io::Result<SocketPath> {
        let path = state.join(SOCKET);
        if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            return Ok(SocketPath {
                path,
                _folder: None,
            });
        }
        let folder = File::open(state)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()));
        Ok(SocketPath {
            path,
            _folder: Some(folder),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_state_folder_has_one_holder() {
        let folder = tempfile::tempdir().expect("tempdir");
        assert_eq!(holder(folder.path()).expect("none"), None);
        let lock = Lock::take(folder.path()).expect("free");
        let me = Some(std::process::id());
        assert!(matches!(Lock::take(folder.path()), Err(LockError::Held { pid }) if pid == me));
        assert_eq!(
            holder(folder.path()).expect("held"),
            Some(Holder::Process(me))
        );
        drop(lock);
        // Other tests start programs: between fork and exec such a child has the descriptor, too.
        let is_free = || {
            let nobody = matches!(holder(folder.path()), Ok(Some(Holder::Nobody)));
            nobody && Lock::take(folder.path()).is_ok()
        };
        let begun = Instant::now();
        while !is_free() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it is not free");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn nobody_holds_a_lock_that_was_taken_away() {
        let folder = tempfile::tempdir().expect("tempdir");
        let held = Lock::take(folder.path()).expect("free");
        let path = folder.path().join(LOCK);
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                // As one that dies: it is waited for.
                std::fs::write(&path, "").expect("no process in it");
                begun.send(()).expect("somebody listens");
                Lock::take(folder.path())
            });
            has_begun.recv().expect("begun");
            std::thread::sleep(Duration::from_millis(100));
            std::fs::remove_file(&path).expect("taken away");
            drop(held);
            let lock = second.join().expect("no panic").expect("taken");
            assert!(path.exists(), "the lock of nothing is held");
            drop(lock);
        });
    }

    #[test]
    fn links_in_a_state_folder_are_not_followed() {
        let folder = tempfile::tempdir().expect("tempdir");
        let precious = folder.path().join("precious");
        let state = folder.path().join("state");
        std::fs::create_dir(&state).expect("mkdir");
        for name in [LOCK, PID, LOG] {
            for hard in [true, false] {
                std::fs::write(&precious, "precious").expect("write");
                let planted = state.join(name);
                match hard {
                    true => std::fs::hard_link(&precious, &planted).expect("link"),
                    false => std::os::unix::fs::symlink(&precious, &planted).expect("symlink"),
                }
                let written = match name {
                    LOCK => Lock::take(&state).map(drop).is_ok(),
                    name => write(&state, name, "1").is_ok(),
                };
                assert!(!written, "{name}");
                let text = std::fs::read_to_string(&precious).expect("read");
                assert_eq!(text, "precious", "{name}");
                std::fs::remove_file(planted).expect("remove");
            }
        }
        assert!(unfit(&state).expect("look").is_none());
        std::fs::write(state.join("mine"), "").expect("write");
        assert!(
            unfit(&state)
                .expect("look")
                .is_some_and(|why| why.contains("not empty"))
        );
        drop(Lock::take(&state).expect("lock"));
        assert!(unfit(&state).expect("look").is_none());
        std::fs::set_permissions(&state, PermissionsExt::from_mode(0o777)).expect("chmod");
        assert!(
            unfit(&state)
                .expect("look")
                .is_some_and(|why| why.contains("open to others"))
        );
        let inside = state.join("inside");
        assert_eq!(exchangeable(&inside).expect("look"), Some(state));
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().expect("spawns");
        let pid = child.id();
        let ended = || !is_alive(pid);
        while !ended() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().expect("ends");
        assert!(ended() && is_alive(std::process::id()));
    }

    #[test]
    fn a_deep_state_folder_still_has_a_socket() {
        let folder = tempfile::tempdir().expect("tempdir");
        let deep = folder.path().join("d".repeat(120));
        std::fs::create_dir(&deep).expect("mkdir");
        let socket = SocketPath::of(&deep).expect("path");
        let _listener = UnixListener::bind(&socket.path).expect("bind");
        assert!(deep.join(SOCKET).exists());
        UnixStream::connect(&SocketPath::of(&deep).expect("path").path).expect("connect");
    }
}
