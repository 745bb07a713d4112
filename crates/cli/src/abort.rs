//! Who ends the connection of a mount whose process was killed.
//!
//! The kernel ends a FUSE connection once all threads of the mount's process have ended. A thread
//! that tells the kernel of pages may wait for a page that is locked until the mount answers a
//! request. Then a SIGKILL, or the kernel's own for want of memory, ends every thread but that one,
//! and programs wait for ever. So a small process beside the mount aborts the connection when the
//! mount's main thread has died.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno as Sys;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::exit::reason;

/// What the program is called to be this process.
const NAME: &str = "forebay-abort";
/// `STATX_MNT_ID_UNIQUE` of `linux/stat.h`.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// Also without a signal it looks again after so long, seconds.
const LOOK_AGAIN_S: i64 = 10;

/// The process beside a mount. It goes when this is dropped: before the mount is taken out of the
/// tree in order, for another one may come in its place.
pub struct Aborter(Option<Child>);

impl Aborter {
    /// Starts the process for a mount of this process. To be called by its main thread, which lives
    /// as long as the mount does. Without it everything else works, so a failure is logged.
    pub fn start(point: &Path) -> Aborter {
        match spawn(point) {
            Ok(child) => {
                let pid = child.id();
                tracing::debug!("process {pid} ends the mount if this one is killed");
                Aborter(Some(child))
            }
            Err(error) => {
                let (point, why) = (point.display(), reason(&error));
                tracing::warn!("{point}: after a SIGKILL `umount -f` may be needed: {why}");
                Aborter(None)
            }
        }
    }
}

impl Drop for Aborter {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Where it has ended already there is nothing to do.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn spawn(point: &Path) -> io::Result<Child> {
    // Where the kernel's own file is not shown, root ends the mount by its path.
    let path = format!(
        "/sys/fs/fuse/connections/{}/abort",
        stat(CWD, point)?.stx_dev_minor
    );
    let connection = match File::options().write(true).open(path) {
        Ok(file) => Stdio::from(file),
        Err(_) if rustix::process::geteuid().is_root() => Stdio::null(),
        Err(error) => return Err(error),
    };
    Command::new("/proc/self/exe")
        .arg0(NAME)
        .arg(std::process::id().to_string())
        .arg(point)
        .arg(identity(CWD, point)?)
        .current_dir("/")
        .stdin(connection)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Asks nothing of the mount.
fn stat(dir: impl AsFd, path: impl rustix::path::Arg) -> io::Result<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    Ok(rustix::fs::statx(dir, path, flags, MNT_ID_UNIQUE)?)
}

/// Tells a mount from others. Before Linux 6.8 the number of a mount may be another's later.
fn identity(dir: impl AsFd, path: impl rustix::path::Arg) -> io::Result<String> {
    let found = stat(dir, path)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Ok(format!("{}:{}:{}", device.0, device.1, found.stx_mnt_id))
}

/// Whether this process was started as that.
pub fn is_called(name: Option<&OsString>) -> bool {
    name.is_some_and(|name| name == NAME)
}

/// Waits for the end of the process that is named first, whose child this is, and aborts the
/// connection behind standard input, or of the mount whose path and identity are named after it.
///
/// # Errors
/// Not all were named, or a system call failed.
pub fn run(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let parent = args.next().and_then(|text| text.to_str()?.parse().ok());
    let (Some(parent), Some(point), Some(mount)) = (parent, args.next(), args.next()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // Ctrl-C in the mount's terminal is for the mount.
    rustix::process::setsid()?;
    rustix::thread::set_name(c"fb-abort")?;
    let signals = blocked()?;
    // Comes when the thread that has started this process ends.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    while !is_dead(parent) {
        wait(&signals);
    }
    let mut connection = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    match connection.metadata()?.is_file() {
        true => connection.write_all(b"1"),
        false => abort_by_path(Path::new(&point), &mount),
    }
}

fn abort_by_path(point: &Path, mount: &OsStr) -> io::Result<()> {
    // While this is open the mount stays in the tree, dead: programs get errors, and do not write
    // into the folder below it.
    let root = rustix::fs::open(
        point,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if *identity(&root, "")? != *mount {
        // Somebody has put another one in its place.
        return Ok(());
    }
    match unmount(point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        Err(Sys::BUSY) => Ok(()),
        done => Ok(done?),
    }
}

/// Signals that end a process and are not SIGKILL: others than the mount's end send them, too.
fn blocked() -> io::Result<libc::sigset_t> {
    // SAFETY: the set is filled by sigemptyset(3) before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            libc::sigaddset(&mut set, signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(set),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn wait(signals: &libc::sigset_t) {
    let most = libc::timespec {
        tv_sec: LOOK_AGAIN_S,
        tv_nsec: 0,
    };
    // SAFETY: both are valid for the call. Whatever it returns, the caller looks again.
    unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &most) };
}

/// Its main thread has ended: all of it, or all but a thread that the kernel does not let go.
fn is_dead(parent: i32) -> bool {
    if rustix::process::getppid().map(|pid| pid.as_raw_pid()) != Some(parent) {
        return true;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{parent}/stat")) else {
        return false;
    };
    // The name before it may hold anything.
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}
