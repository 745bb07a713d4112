//! The mount: a thin adapter between the kernel's FUSE requests and the client's calls.

mod adapter;
mod asker;
mod backing;
mod belief;
mod company;
mod convert;
mod dirs;
mod follower;
mod forgets;
mod growing;
mod inflight;
mod kept;
mod known;
mod listing;
mod locks;
mod notices;
mod opening;
mod paced;
mod pool;
mod probe;
mod readahead;
mod recalled;
mod releases;
mod serving;
mod transfer;
mod tree;
mod waiting;
mod wholes;
mod wishes;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_types::Ino;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::belief::Belief;
pub use crate::company::Company;
use crate::follower::Follower;
use crate::forgets::Forgets;
use crate::inflight::{InFlightTable, Watched};
use crate::locks::Locks;
use crate::pool::Pool;
use crate::recalled::Recalled;

/// How long requests under way at the unmount may take. A thread that still blocks in a call on the
/// PFS is left behind then: it holds nothing that the end needs.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// An existing, empty directory.
    pub mount_point: PathBuf,
    /// Shown in /proc/self/mountinfo: the state folder, by which the command line finds it.
    pub source: String,
    /// Other users may use it.
    pub allow_other: bool,
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Let the kernel read and write objects by itself.
    pub passthrough: bool,
    /// Who else uses the server.
    pub company: Company,
    /// The server does as nobody what root of this node asks for: what other users have looked up
    /// is no answer for root.
    pub root_squashed: bool,
}

/// A mount in service. Dropping it unmounts.
pub struct Mounted {
    mount_point: PathBuf,
    /// Device number of the mount: tells the mount from whatever is mounted there later.
    dev: u64,
    in_flight: Arc<InFlightTable>,
    belief: Arc<Belief>,
    session: Mutex<Option<BackgroundSession>>,
    ended: serving::EndCall,
}

/// Keeps large buffers in mappings of their own. Every thread of a session has a buffer of 16 MiB,
/// and most threads use little of theirs. A mapping costs only what was used of it. But once glibc
/// has seen a mapping of that size freed, it takes such buffers from the heap and clears them, and
/// then the whole buffer is in use.
fn keep_buffers_lazy() {
    #[cfg(target_env = "gnu")]
    {
        const MAPPED_FROM_BYTES: i32 = 8 << 20;
        // SAFETY: it sets a number that the allocator reads, at any time and from any thread.
        let done = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) };
        if done == 0 {
            tracing::debug!("the allocator keeps its own threshold");
        }
    }
}

fn config_of(options: &MountOptions, threads: usize) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("forebay".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    config.acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(threads);
    config
}

/// Mounts and serves on background threads.
pub fn mount(client: Client, options: &MountOptions) -> io::Result<Mounted> {
    let readers = options.threads.max(1);
    let config = config_of(options, readers + inflight::SPARES);
    let recalled = Arc::new(Recalled::default());
    let (in_flight, pool) = (
        InFlightTable::new(readers, recalled.clone()),
        Pool::default(),
    );
    let locks = Arc::new(Locks::default());
    let belief = Arc::new(Belief::new(options.company, recalled.clone()));
    if options.company == Company::Shared {
        // Nothing is mounted of a server that does not answer.
        belief.known.note(&client.getattr(Ino::ROOT, None)?.attr);
        belief.known.note_totals(&client.statfs()?);
    }
    client.give_up_by(inflight::is_given_up);
    let forgets = Arc::new(Forgets::new(options.company));
    let adapter = serving::Adapter::new(
        client.clone(),
        (options.passthrough, options.root_squashed),
        forgets.clone(),
        in_flight.clone(),
        pool.clone(),
        belief.clone(),
        locks.clone(),
    )?;
    let releases = adapter.releases.clone();
    let ended = adapter.on_destroy();
    let session = match open_as_root(options)? {
        Some(device) => Session::from_fd(adapter, device, config.acl, config)?,
        None => Session::new(adapter, &options.mount_point, &config)?,
    };
    belief
        .notices
        .tell_by(session.as_fd().try_clone_to_owned()?);
    in_flight.serves(session.as_fd().try_clone_to_owned()?);
    keep_buffers_lazy();
    let session = session.spawn()?;
    let watched = Watched {
        in_flight: in_flight.clone(),
        client,
        pool,
        belief: belief.clone(),
        forgets,
        releases,
        probe: Arc::default(),
        ended: ended.clone(),
    };
    if options.company == Company::Shared {
        follow_recalls(&watched, recalled, locks)?;
    }
    std::thread::Builder::new()
        .name("fb-watchdog".into())
        .spawn(move || inflight::watch(&watched))?;
    let dev = match options.company {
        // This asks the new mount itself, and so also shows that the mount answers.
        Company::Alone => std::fs::metadata(&options.mount_point)?.dev(),
        // The server may go at any moment.
        Company::Shared => tree::device_at(&options.mount_point)?,
    };
    readahead::raise(dev);
    Ok(Mounted {
        mount_point: options.mount_point.clone(),
        dev,
        in_flight,
        belief,
        session: Mutex::new(Some(session)),
        ended,
    })
}

fn follow_recalls(watched: &Watched, recalled: Arc<Recalled>, locks: Arc<Locks>) -> io::Result<()> {
    let follower = Follower {
        client: watched.client.clone(),
        recalled,
        notices: watched.belief.notices.clone(),
        belief: watched.belief.clone(),
        forgets: watched.forgets.clone(),
        in_flight: watched.in_flight.clone(),
        pool: watched.pool.clone(),
        locks,
    };
    std::thread::Builder::new()
        .name("fb-recall".into())
        .spawn(move || follower.run())?;
    Ok(())
}

/// Mounts by mount(2), which only root may: so the type is `fuse.forebay` in every table, and no
/// helper is needed. `None` for an ordinary user.
fn open_as_root(options: &MountOptions) -> io::Result<Option<OwnedFd>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let mode = std::fs::metadata(&options.mount_point)?.mode();
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let others = if options.allow_other {
        ",allow_other"
    } else {
        ""
    };
    let data = format!(
        "fd={},rootmode={:o},user_id={uid},group_id={gid},default_permissions{others}",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
    );
    rustix::mount::mount(
        options.source.as_str(),
        &options.mount_point,
        "fuse.forebay",
        MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME,
        Some(CString::new(data)?.as_c_str()),
    )?;
    Ok(Some(device))
}

impl Mounted {
    /// Calls `f` when the mount ends, whoever ends it.
    pub fn on_unmounted(&self, f: Box<dyn FnOnce() + Send>) {
        *self.ended.lock() = Some(f);
    }

    /// Calls `f` with what happened when a thread that serves requests ends before the mount does.
    pub fn on_thread_death(&self, f: Box<dyn Fn(String) + Send + Sync>) {
        self.in_flight.on_death(f);
    }

    /// How the kernel is made to write back what it keeps of a file. That waits for requests of
    /// this mount to be answered.
    pub fn write_back(&self) -> impl Fn(Ino) -> io::Result<()> + Send + Sync + use<> {
        let belief = Arc::downgrade(&self.belief);
        // Without it nothing is mounted any more, and the kernel keeps nothing.
        move |ino| {
            belief
                .upgrade()
                .map_or(Ok(()), |belief| belief.write_back(ino))
        }
    }

    /// After an unmount: programs that still have files mapped get no pages any more.
    pub fn end_pages(&self) {
        self.belief.end_pages();
    }

    /// Unmounts. `EBUSY` while the mount is in use, unless `lazily`. A lazy unmount takes the mount
    /// out of the tree at once. The mount ends with its last user, and this call does not wait for
    /// that.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        if tree::has(self.dev)? {
            self.detach(lazily)?;
        }
        let Some(session) = self.session.lock().take() else {
            return Ok(());
        };
        self.in_flight.nudge();
        let begun = Instant::now();
        while !lazily && !session.guard.is_finished() && begun.elapsed() < LAST_REQUESTS {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !session.guard.is_finished() {
            // Joining the session's threads would wait for the last user, or for the PFS.
            std::mem::forget(session);
            return Ok(());
        }
        session.join()
    }

    fn detach(&self, lazily: bool) -> io::Result<()> {
        let flags = if lazily {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        match rustix::mount::unmount(&self.mount_point, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::PERM) => self.detach_by_helper(lazily),
            Err(errno) => Err(errno.into()),
        }
    }

    /// An ordinary user needs the set-user-id helper of fuse3.
    fn detach_by_helper(&self, lazily: bool) -> io::Result<()> {
        let mut command = Command::new("fusermount3");
        command
            .arg(if lazily { "-uz" } else { "-u" })
            .arg("--")
            .arg(&self.mount_point);
        let output = command.output()?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        match text.contains("busy") {
            true => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            false => Err(io::Error::other(text.trim().to_string())),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.lock().is_some()
            && let Err(error) = self.unmount(true)
        {
            tracing::warn!("{} stays mounted: {error}", self.mount_point.display());
        }
    }
}
