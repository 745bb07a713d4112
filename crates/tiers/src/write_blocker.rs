//! Makes other writers of a file wait.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use crate::file::reopen;

/// `UFFDIO_API`, `UFFDIO_REGISTER` and `UFFDIO_WAKE` of `linux/userfaultfd.h`:
/// `_IOWR(0xaa, 0x3f, 24 bytes)`, `_IOWR(0xaa, 0x00, 32 bytes)`, `_IOR(0xaa, 0x02, 16 bytes)`.
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_WAKE: libc::Ioctl = 0x8010_aa02_u32 as libc::Ioctl;
const UFFD_API: u64 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// Holds the lock that the kernel takes for every write(2) to a file, so that whoever writes next
/// waits, inside the kernel and whichever way they came, until this is dropped. Who is writing now
/// finishes that call first.
///
/// A thread writes one byte to the file from a page that is not there: the kernel takes the file's
/// lock, and waits for the page until somebody provides it. Nobody ever does. When the write
/// blocker is let go the page becomes forbidden, the write fails, and the file is as it was but for
/// its time of modification. The same when the process is killed.
///
/// What also takes that lock waits as well: truncation, changes of times and attributes, on some
/// file systems (XFS) reads. What does not: stat(2), reads elsewhere, writes to mapped memory.
#[derive(Debug)]
pub struct WriteBlocker {
    trap: Arc<Trap>,
}

impl WriteBlocker {
    /// Begins to hold back writers of an object that is not empty: of its descriptor and size.
    ///
    /// # Errors
    /// `ENOSYS`, `EPERM`: the kernel has no userfaultfd(2), or not for this process. `EOPNOTSUPP`:
    /// the object has no descriptor. `ENXIO`: it is empty.
    pub fn on(descriptor: Option<BorrowedFd<'_>>, size: u64) -> io::Result<WriteBlocker> {
        let descriptor = descriptor.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        if size == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        let file = reopen(descriptor, OFlags::WRONLY)?;
        let trap = Arc::new(Trap::new()?);
        let holder = trap.clone();
        std::thread::Builder::new()
            .name("fb-block".into())
            .spawn(move || holder.hold(&file))?;
        Ok(WriteBlocker { trap })
    }

    /// Whether the file is held by now; before, somebody else is writing.
    pub fn is_held(&self) -> bool {
        self.trap.is_touched() && !self.has_failed()
    }
}

/// Makes others who write an object wait, for as long as it lives.
pub trait BlocksWriters: Send + Sync {
    /// Whether nobody waits: the file system would not have it.
    fn has_failed(&self) -> bool;
}

impl BlocksWriters for WriteBlocker {
    fn has_failed(&self) -> bool {
        self.trap.failed.load(Ordering::Acquire)
    }
}

impl Drop for WriteBlocker {
    fn drop(&mut self) {
        self.trap.forbid();
    }
}

/// A page that whoever touches it waits for.
#[derive(Debug)]
struct Trap {
    faults: OwnedFd,
    page: NonNull<libc::c_void>,
    len: usize,
    touched: AtomicBool,
    failed: AtomicBool,
}

// SAFETY: the page is never read or written by this process, only named in system calls, which any
// thread may make.
unsafe impl Send for Trap {}
// SAFETY: as above; what changes is an atomic.
unsafe impl Sync for Trap {}

impl Trap {
    fn new() -> io::Result<Trap> {
        // SAFETY: the call has no pointer arguments.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nobody else has it.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = Api {
            api: UFFD_API,
            features: 0,
            ioctls: 0,
        };
        request(&faults, UFFDIO_API, &mut api)?;
        let len = rustix::param::page_size();
        // SAFETY: a fresh mapping of our own; no other memory is touched.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let page = match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => page,
            _ => return Err(io::Error::last_os_error()),
        };
        let trap = Trap {
            faults,
            page,
            len,
            touched: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        };
        let mut register = Register {
            range: trap.range(),
            mode: REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        request(&trap.faults, UFFDIO_REGISTER, &mut register)?;
        Ok(trap)
    }

    fn range(&self) -> Range {
        Range {
            start: self.page.as_ptr() as u64,
            len: self.len as u64,
        }
    }

    /// Blocks, with the lock of `file`, until the page is forbidden.
    ///
    /// The write is to the first byte. Somebody may cut the file before the kernel takes the lock,
    /// and ext4 extends a file up to the place of a write that fails beyond the end. Where a hole
    /// is at the beginning, the kernel looks for space before it waits: on a full file system the
    /// write blocker fails, and otherwise a block or cluster of zeros is left there.
    fn hold(&self, file: &File) {
        // SAFETY: the page is mapped for as long as `self` lives, and the kernel copes with its not
        // being there.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), self.page.as_ptr(), 1, 0) };
        let error = io::Error::last_os_error();
        if written >= 0 || error.raw_os_error() != Some(libc::EFAULT) {
            self.failed.store(true, Ordering::Release);
        }
    }

    fn is_touched(&self) -> bool {
        // Each fault is told once.
        let mut message = [0u8; 32];
        if let Ok(1..) = rustix::io::read(&self.faults, &mut message) {
            self.touched.store(true, Ordering::Release);
        }
        self.touched.load(Ordering::Acquire)
    }

    /// Whoever waits for the page gets `EFAULT`, and so does who comes later.
    fn forbid(&self) {
        // SAFETY: the mapping is our own. It stays, so that nothing else can come to this address
        // while a write still names it.
        let done = unsafe { libc::mprotect(self.page.as_ptr(), self.len, libc::PROT_NONE) };
        // Neither fails for a whole mapping; a page that could not be forbidden must not be woken,
        // for it would be written.
        assert_eq!(done, 0, "mprotect: {}", io::Error::last_os_error());
        let woken = request(&self.faults, UFFDIO_WAKE, &mut self.range());
        assert!(woken.is_ok(), "UFFDIO_WAKE: {woken:?}");
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and the thread that names it has ended or never began: it
        // holds `self`.
        unsafe { libc::munmap(self.page.as_ptr(), self.len) };
    }
}

fn request<T>(fd: impl AsFd, what: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: `what` is one of the three requests above, called with the struct that it takes.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), what, std::ptr::from_mut(argument)) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use forebay_testkit::skip;

    use super::*;
    use crate::{FileObject, Object};

    const LONG: Duration = Duration::from_secs(60);

    fn until(what: &str, mut met: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !met() {
            assert!(begun.elapsed() < LONG, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `None`, and the test is skipped, where this user may not: containers and ordinary users.
    fn write_blocker(object: &FileObject) -> Option<WriteBlocker> {
        match WriteBlocker::on(object.descriptor(), object.stat().unwrap().size) {
            Ok(write_blocker) => Some(write_blocker),
            Err(error) => {
                assert!(
                    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)),
                    "{error}"
                );
                skip(&format!("userfaultfd: {error}"));
                None
            }
        }
    }

    fn holds_back(folder: &std::path::Path) {
        let file = tempfile::tempfile_in(folder).unwrap();
        let object = FileObject::new(file.try_clone().unwrap());
        assert!(
            WriteBlocker::on(object.descriptor(), object.stat().unwrap().size).is_err(),
            "nothing in it"
        );
        object.write_at(b"hello, world", 0).unwrap();
        let Some(write_blocker) = write_blocker(&object) else {
            return;
        };
        until("the write_blocker never holds", || write_blocker.is_held());
        let written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                object.write_at(b"H", 0).unwrap();
                written.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!written.load(Ordering::Acquire), "it did not wait");
            assert_eq!(object.stat().unwrap().size, 12);
            drop(write_blocker);
        });
        let mut content = [0; 13];
        assert_eq!(object.read_at(&mut content, 0).unwrap(), 12);
        assert_eq!(&content[..12], b"Hello, world");
    }

    #[test]
    fn a_writer_waits_until_it_is_let_go() {
        holds_back(&std::env::temp_dir());
        holds_back(std::path::Path::new("/dev/shm"));
    }

    /// A write beyond the end that fails may leave the file longer: ext4 extends it up to there.
    fn stays_as_short_as_it_was_cut(folder: &std::path::Path) {
        let file = tempfile::tempfile_in(folder).unwrap();
        let object = FileObject::new(file.try_clone().unwrap());
        for round in 0..400 {
            object.set_len(94_816).unwrap();
            object.write_at(&[7; 4096], 24_626).unwrap();
            let begun = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.wait();
                    object.set_len(19_612).unwrap();
                });
                begun.wait();
                let write_blocker = write_blocker(&object);
                std::thread::sleep(Duration::from_micros(round % 20 * 10));
                drop(write_blocker);
            });
            // The thread of the write blocker may still be on its way.
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(object.stat().unwrap().size, 19_612, "round {round}");
        }
    }

    #[test]
    fn a_file_that_is_cut_meanwhile_does_not_grow() {
        stays_as_short_as_it_was_cut(&std::env::temp_dir());
        stays_as_short_as_it_was_cut(std::path::Path::new("/dev/shm"));
    }

    #[test]
    fn who_comes_too_late_leaves_nothing() {
        let file = tempfile::tempfile().unwrap();
        let object = FileObject::new(file.try_clone().unwrap());
        object.write_at(b"xyz", 0).unwrap();
        for _ in 0..100 {
            // Let go before, while and after the thread gets there.
            drop(write_blocker(&object));
        }
        let mut content = [0; 4];
        assert_eq!(object.read_at(&mut content, 0).unwrap(), 3);
        assert_eq!(&content[..3], b"xyz");
    }
}
