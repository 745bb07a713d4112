//! What a directory's file system can do, found out by doing it. Nothing is judged here.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use forebay_types::Errno;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};

use crate::scratch::{Scratch, Stop};

/// How often something is done whose time is measured.
pub const REPEATS: usize = 24;
/// What a repeat writes.
const BLOCK_BYTES: usize = 4096;
/// Longest time for all repeats of one measurement; three are done in any case.
const REPEATS_FOR: Duration = Duration::from_secs(4);
const REPEATS_MIN: usize = 3;
/// What is set aside to see whether that can be.
const FALLOCATE_BYTES: u64 = 1 << 20;
/// `F_SETLEASE` of `linux/fcntl.h`.
const F_SETLEASE: libc::c_int = 1024;
/// Whom a file is given to, to see whether that can be: nobody.
const NOBODY: u32 = 65534;
/// A time of modification that no clock of a file system gives by chance.
const ODD_NS: i64 = 123_456_789;

/// Whether something worked, or why not.
pub type Tried = Result<(), Errno>;

/// Times of the same thing, done again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    sorted: Vec<Duration>,
}

impl Times {
    /// At least one.
    pub fn of(mut times: Vec<Duration>) -> Option<Times> {
        times.sort_unstable();
        (!times.is_empty()).then_some(Times { sorted: times })
    }

    /// The one in the middle.
    pub fn median(&self) -> Duration {
        self.sorted[self.sorted.len() / 2]
    }

    /// The shortest and the longest.
    pub fn range(&self) -> (Duration, Duration) {
        (self.sorted[0], self.sorted[self.sorted.len() - 1])
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }
}

/// What was tried in one directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    /// A file without a name can be made (`O_TMPFILE`).
    pub unnamed: Tried,
    /// And given a name afterwards.
    pub named_later: Tried,
    /// A rename can be told not to replace.
    pub no_replace: Tried,
    /// Two names can be exchanged.
    pub exchange: Tried,
    /// A file can have two names.
    pub hard_link: Tried,
    /// A symbolic link can be made.
    pub symlink: Tried,
    /// A file takes the attribute `user.forebay.doctor`, and gives it back.
    pub xattr: Tried,
    /// Space can be set aside.
    pub fallocate: Tried,
    /// Space can be given back in the middle.
    pub punch: Tried,
    /// A file can be opened with `O_DIRECT`.
    pub direct: Tried,
    /// The kernel tells who writes (a read lease).
    pub lease: Tried,
    /// A name of bytes that are not UTF-8.
    pub odd_name: Tried,
    /// A name of 255 bytes.
    pub long_name: Tried,
    /// Whether `Name` and `NAME` are the same.
    pub folds_case: Result<bool, Errno>,
    /// Whether the time of birth is told.
    pub birth: Result<bool, Errno>,
    /// Nanoseconds that are left of [`ODD_NS`].
    pub kept_ns: Result<i64, Errno>,
    /// Whom a new file belongs to.
    pub owner: Result<u32, Errno>,
    /// A file can be given to another user; `None`: this process could do it nowhere.
    pub given_away: Option<Tried>,
    /// Time of a new file less the time here, seconds, and how long it took to make.
    pub clock: Result<(f64, Duration), Errno>,
}

/// The error number of an I/O error.
pub fn errno(error: &io::Error) -> Errno {
    Errno::of(error)
}

fn tried<T>(result: io::Result<T>) -> Tried {
    result.map(drop).map_err(|error| errno(&error))
}

/// Tries everything once, in a directory of its own.
///
/// # Errors
/// No file can be made there, or `EINTR`: it was ordered to stop.
pub fn run(scratch: &Scratch, stop: &Stop) -> io::Result<Trials> {
    let before = SystemTime::now();
    let begun = Instant::now();
    let path = scratch.name("Name");
    let file = create(&path)?;
    file.write_all_at(&[1; BLOCK_BYTES], 0)?;
    let took = begun.elapsed();
    let meta = file.metadata().map_err(|error| errno(&error));
    stop.check()?;
    let (unnamed, named_later) = unnamed(scratch);
    stop.check()?;
    let rename = |from: &str, to: &str, flags| {
        let (from, to) = (scratch.name(from), scratch.name(to));
        tried(rustix::fs::renameat_with(CWD, from, CWD, to, flags).map_err(io::Error::from))
    };
    let linked = std::fs::hard_link(&path, scratch.name("link"));
    let other = create(&scratch.name("other"))?;
    let no_replace = no_replace(scratch);
    let exchange = rename("Name", "other", RenameFlags::EXCHANGE);
    // `file` may be called either way now; only its descriptor is used below.
    stop.check()?;
    let clock = meta.as_ref().map_err(|error| *error).map(|meta| {
        let made = meta.mtime() as f64 + meta.mtime_nsec() as f64 / 1e9;
        let here = before.duration_since(SystemTime::UNIX_EPOCH);
        (made - here.unwrap_or_default().as_secs_f64(), took)
    });
    Ok(Trials {
        unnamed,
        named_later,
        no_replace,
        exchange,
        hard_link: tried(linked),
        symlink: tried(std::os::unix::fs::symlink("Name", scratch.name("symlink"))),
        xattr: xattr(&file),
        fallocate: fallocate(&other, FallocateFlags::empty()),
        punch: fallocate(
            &other,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        ),
        direct: direct(scratch),
        lease: lease(scratch),
        odd_name: tried(create(
            &scratch
                .path()
                .join(std::ffi::OsStr::from_bytes(b"\xff\xfe")),
        )),
        long_name: tried(create(&scratch.name(&"n".repeat(255)))),
        folds_case: folds_case(scratch),
        birth: birth(&file),
        kept_ns: kept_ns(&file),
        owner: meta.map(|meta| meta.uid()),
        given_away: given_away(&other),
        clock,
    })
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn unnamed(scratch: &Scratch) -> (Tried, Tried) {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(scratch.path(), flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => file,
        Err(error) => return (Err(Errno(error.raw_os_error())), Err(Errno::EOPNOTSUPP)),
    };
    let name = scratch.name("unnamed");
    let linked = match rustix::fs::linkat(&file, c"", CWD, &name, AtFlags::EMPTY_PATH) {
        Ok(()) => Ok(()),
        // Only with a privilege, or on a newer kernel: Forebay then goes by /proc, too.
        Err(_) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, path, CWD, &name, AtFlags::SYMLINK_FOLLOW)
        }
    };
    (Ok(()), tried(linked.map_err(io::Error::from)))
}

/// It must work where the name is free, and fail with `EEXIST` where it is not.
fn no_replace(scratch: &Scratch) -> Tried {
    let rename = |from: &str, to: &str| {
        let (from, to) = (scratch.name(from), scratch.name(to));
        rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
    };
    let free = rename("other", "free").map_err(|error| Errno(error.raw_os_error()));
    let taken = rename("free", "Name");
    let back = rename("free", "other");
    free?;
    match (taken, back) {
        (Err(rustix::io::Errno::EXIST), Ok(())) => Ok(()),
        (Err(error), _) | (_, Err(error)) => Err(Errno(error.raw_os_error())),
        (Ok(()), Ok(())) => Err(Errno::EIO),
    }
}

fn xattr(file: &File) -> Tried {
    let name = "user.forebay.doctor";
    let check = || {
        rustix::fs::fsetxattr(file, name, b"1", XattrFlags::empty())?;
        let mut value = [0; 8];
        let len = rustix::fs::fgetxattr(file, name, &mut value)?;
        match &value[..len] {
            b"1" => Ok(()),
            _ => Err(rustix::io::Errno::IO),
        }
    };
    tried(check().map_err(io::Error::from))
}

fn fallocate(file: &File, flags: FallocateFlags) -> Tried {
    let done = rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, 0, FALLOCATE_BYTES));
    tried(done.map_err(io::Error::from))
}

fn direct(scratch: &Scratch) -> Tried {
    let path = scratch.name("direct");
    let made = create(&path);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    tried(made.and_then(|_| options.open(&path)))
}

fn lease(scratch: &Scratch) -> Tried {
    let path = scratch.name("lease");
    let file = create(&path).and_then(|_| File::open(&path));
    tried(file.and_then(|file| {
        set_lease(file.as_fd(), libc::F_RDLCK)?;
        set_lease(file.as_fd(), libc::F_UNLCK)
    }))
}

fn set_lease(file: BorrowedFd<'_>, kind: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only, and `file` is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, kind) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn folds_case(scratch: &Scratch) -> Result<bool, Errno> {
    match std::fs::symlink_metadata(scratch.name("NAME")) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(errno(&error)),
    }
}

fn birth(file: &File) -> Result<bool, Errno> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
        .map_err(|error| Errno(error.raw_os_error()))?;
    Ok(stat.stx_mask & StatxFlags::BTIME.bits() != 0)
}

fn kept_ns(file: &File) -> Result<i64, Errno> {
    let time = Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: ODD_NS,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::futimens(file, &times).map_err(|error| Errno(error.raw_os_error()))?;
    let meta = file.metadata().map_err(|error| errno(&error))?;
    Ok(meta.mtime_nsec())
}

fn given_away(file: &File) -> Option<Tried> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let given = rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(io::Error::from);
    let given = given.and_then(|()| file.metadata());
    Some(match given {
        Ok(meta) if meta.uid() == NOBODY => Ok(()),
        Ok(_) => Err(Errno::EPERM),
        Err(error) => Err(errno(&error)),
    })
}

/// How long an fsync takes after a block was written over. `flushes` is asked before and after: how
/// many flushes the device has done.
pub fn time_fsyncs(
    scratch: &Scratch,
    stop: &Stop,
    flushes: impl Fn() -> Option<u64>,
) -> io::Result<(Option<Times>, Option<u64>)> {
    let file = create(&scratch.name("fsync"))?;
    file.write_all_at(&[0; BLOCK_BYTES], 0)?;
    file.sync_all()?;
    let before = flushes();
    let mut nth = 0;
    let times = repeat(stop, || {
        nth += 1;
        file.write_all_at(&[nth; BLOCK_BYTES], 0)?;
        let begun = Instant::now();
        file.sync_all()?;
        Ok(begun.elapsed())
    })?;
    let after = flushes();
    let done = before
        .zip(after)
        .map(|(before, after)| after.saturating_sub(before));
    Ok((times, done))
}

/// How long it takes to publish a small file as a drain does it where there are no unnamed files:
/// create, write, fsync, rename, fsync of the directory.
pub fn time_publications(scratch: &Scratch, stop: &Stop) -> io::Result<Option<Times>> {
    let dir = File::open(scratch.path())?;
    let (part, whole) = (scratch.name("part"), scratch.name("whole"));
    repeat(stop, || {
        let begun = Instant::now();
        let file = create(&part)?;
        file.write_all_at(&[7; BLOCK_BYTES], 0)?;
        file.sync_all()?;
        std::fs::rename(&part, &whole)?;
        dir.sync_all()?;
        Ok(begun.elapsed())
    })
}

fn repeat(
    stop: &Stop,
    mut once: impl FnMut() -> io::Result<Duration>,
) -> io::Result<Option<Times>> {
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < REPEATS_MIN || (times.len() < REPEATS && begun.elapsed() < REPEATS_FOR) {
        stop.check()?;
        times.push(once()?);
    }
    Ok(Times::of(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_middle_and_a_range() {
        let ms = Duration::from_millis;
        let times = Times::of(vec![ms(5), ms(1), ms(9)]).expect("some");
        assert_eq!((times.median(), times.range()), (ms(5), (ms(1), ms(9))));
        assert_eq!(Times::of(Vec::new()), None);
    }

    #[test]
    fn trials_leave_nothing_and_stop_when_told() {
        let folder = tempfile::tempdir().expect("tempdir");
        let entries = || std::fs::read_dir(folder.path()).expect("read_dir").count();
        let stop = Stop::default();
        let scratch = Scratch::new(folder.path(), "doctor").expect("made");
        let trials = run(&scratch, &stop).expect("a directory that takes files");
        assert_eq!(trials.hard_link, Ok(()));
        assert_eq!(trials.folds_case, Ok(false));
        assert_eq!(trials.owner, Ok(rustix::process::geteuid().as_raw()));
        let (skew, took) = trials.clock.expect("a time");
        assert!(skew.abs() < 2.0 + took.as_secs_f64(), "{skew}");
        let published = time_publications(&scratch, &stop)
            .expect("done")
            .expect("some");
        assert!(published.count() >= REPEATS_MIN);
        drop(scratch);
        assert_eq!(entries(), 0);
        let scratch = Scratch::new(folder.path(), "doctor").expect("made");
        stop.order();
        let error = run(&scratch, &stop).expect_err("told to stop");
        assert_eq!(error.raw_os_error(), Some(libc::EINTR));
        drop(scratch);
        assert_eq!(entries(), 0);
    }
}
