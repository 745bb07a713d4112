//! A bare pass-through FUSE file system: what any FUSE file system costs, and nothing on top.
//!
//! It shows the tree `SOURCE` at `MOUNTPOINT`. Reads and writes go to the source file inside the
//! kernel (FUSE passthrough), or through this process with `--plain`. The benchmark measures
//! Forebay against it.

mod convert;
mod faults;
mod fs;
mod table;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::mount::UnmountFlags;

/// Show the tree SOURCE at MOUNTPOINT until SIGTERM, SIGINT or an unmount.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The directory to show
    source: PathBuf,
    /// Where to show it
    mountpoint: PathBuf,
    /// Threads that answer the kernel
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Read and write in this process instead of in the kernel; needs no privilege
    #[arg(long)]
    plain: bool,
    /// Let other users in, and have the kernel check permissions, at the price of one more request
    /// per create
    #[arg(long)]
    permissions: bool,
    /// Take the faults from this folder that a test writes there; names and attributes are asked
    /// for every time then, and an operation reaches the file that was meant, whatever its name
    #[arg(long, hide = true)]
    faults: Option<PathBuf>,
    /// All files belong to this user, and cannot be given to another, as with NFS and `all_squash`
    #[arg(long, hide = true, value_name = "UID")]
    squash: Option<u32>,
    /// Milliseconds that a lookup, an open and a read take longer, as with a server far away;
    /// wants --plain and many threads
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency: u64,
    /// Give each thread a descriptor of its own on /dev/fuse
    #[arg(long)]
    clone_fd: bool,
}

/// How often the wait for a signal looks whether somebody else has unmounted, in milliseconds.
const UNMOUNT_POLL_MS: i64 = 200;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-passthrough: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> io::Result<()> {
    let at = |path: &PathBuf, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    let source = File::open(&args.source).map_err(|error| at(&args.source, error))?;
    if !source.metadata()?.is_dir() {
        return Err(at(&args.source, io::ErrorKind::NotADirectory.into()));
    }
    // The kernel has applied the caller's umask already.
    rustix::process::umask(rustix::fs::Mode::empty());
    raise_descriptor_limit()?;

    let signals = block_signals()?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("bare-passthrough".into())];
    if args.permissions {
        config.mount_options.push(MountOption::DefaultPermissions);
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(usize::from(args.threads));
    config.clone_fd = args.clone_fd;
    let session = fuser::spawn_mount(
        fs::PassThrough::new(
            source.into(),
            !args.plain,
            (args.faults.clone(), Duration::from_millis(args.latency)),
            args.squash,
        )?,
        &args.mountpoint,
        &config,
    )
    .map_err(|error| at(&args.mountpoint, error))?;
    wait_for_signal(&signals, &session)?;
    unmount(session, args)
}

/// Unmounts; when files are still open there, the mount disappears at once and the process with its
/// last user.
fn unmount(session: BackgroundSession, args: &Args) -> io::Result<()> {
    use rustix::io::Errno;
    if session.guard.is_finished() {
        return session.join();
    }
    match rustix::mount::unmount(&args.mountpoint, UnmountFlags::DETACH) {
        // Without privilege the library goes through fusermount3.
        Err(Errno::PERM) => session.umount_and_join(),
        // `INVAL`: somebody else unmounted meanwhile.
        Ok(()) | Err(Errno::INVAL) => session.join(),
        Err(error) => Err(error.into()),
    }
}

/// One descriptor per open file and per directory seen: as many as the system allows this process.
fn raise_descriptor_limit() -> io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Blocks SIGTERM and SIGINT in this thread, and so in all threads it starts.
fn block_signals() -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that the later calls read; all pointers live through
    // the calls.
    let (set, result) = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        let set = set.assume_init();
        let result = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        (set, result)
    };
    match result {
        0 => Ok(set),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Returns on a signal of `signals`, or when the session has ended by an unmount from outside.
fn wait_for_signal(signals: &libc::sigset_t, session: &BackgroundSession) -> io::Result<()> {
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: UNMOUNT_POLL_MS * 1_000_000,
    };
    while !session.guard.is_finished() {
        // SAFETY: both pointers are to live values, and a null `info` is allowed.
        let signal =
            unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &raw const timeout) };
        if signal > 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
            return Err(error);
        }
    }
    Ok(())
}
