//! The files of a state folder that the command line itself uses.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Held by the living instance; its content is that instance's process id.
pub const LOCK: &str = "forebay.lock";
/// Process id, while the mount is served.
pub const PID: &str = "forebay.pid";
/// Log of a detached instance.
pub const LOG: &str = "forebay.log";
/// Where the running instance is talked to.
pub const SOCKET: &str = "control.sock";

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
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(state.join(LOCK))
            .map_err(LockError::Io)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
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

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())
}

/// Whether a process exists and is not on its way out.
fn is_alive(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !is_dead_stat(&stat),
        Err(_) => false,
    }
}

/// Whether a line of /proc/PID/stat is that of a zombie. The name before the state may itself hold
/// parentheses.
fn is_dead_stat(stat: &str) -> bool {
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_none_or(|rest| rest.starts_with(['Z', 'X', 'x']))
}

/// Whether a living instance holds the state folder, and its process id. `None` if there is no lock
/// file, so that this has never been a state folder.
pub fn holder(state: &Path) -> io::Result<Option<Holder>> {
    let mut file = match File::open(state.join(LOCK)) {
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
        assert_eq!(holder(folder.path()).expect("free"), Some(Holder::Nobody));
        Lock::take(folder.path()).expect("free again");
    }

    #[test]
    fn zombies_are_dead_whatever_their_name() {
        assert!(is_dead_stat("12 (forebay) Z 1 12"));
        assert!(!is_dead_stat("12 (a) Z b) S 1 12"));
        assert!(is_dead_stat(""));
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
