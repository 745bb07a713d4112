//! Who may still write a file: the kernel knows.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;

/// `F_SETLEASE` of `linux/fcntl.h`.
const F_SETLEASE: libc::c_int = 1024;

/// Whether any process has the file behind `file` open for writing or mapped so that it can store
/// into it, through whichever path: also through a FUSE passthrough registration, and through a
/// mapping whose descriptor is closed. `file` itself counts if it was opened for writing.
///
/// A read lease is refused exactly that long. It is given back at once; who opens the file for
/// writing in between waits for that.
///
/// # Errors
/// `EINVAL`: the file system or the system's settings (`fs.leases-enable`) have no leases.
/// `EACCES`: the file is another user's.
pub(crate) fn exist(file: BorrowedFd<'_>) -> io::Result<bool> {
    ignore_breaks();
    match set_lease(file, libc::F_RDLCK) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(true),
        Err(error) => return Err(error),
    }
    match set_lease(file, libc::F_UNLCK) {
        // Who asked at the same time through the same descriptor has given it back.
        Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => Err(error),
        _ => Ok(false),
    }
}

fn set_lease(file: BorrowedFd<'_>, kind: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only, and `file` is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), F_SETLEASE, kind) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Who waits for a lease makes the kernel send its holder SIGIO, which ends a process that does not
/// ignore it.
fn ignore_breaks() {
    static ONCE: Once = Once::new();
    // SAFETY: SIG_IGN is no code of ours, and nobody else in a process that holds tiers asks for
    // SIGIO.
    ONCE.call_once(|| unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    });
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;
    use crate::{FileObject, Object};

    fn map(file: &File, protection: i32) -> *mut libc::c_void {
        // SAFETY: a new mapping of a file that is long enough; nothing else is touched.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at
    }

    fn writers_are_seen(folder: &Path) {
        let path = folder.join("f");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let open = |write: bool| {
            let file = File::options().read(true).write(write).open(&path);
            file.unwrap()
        };
        let object = FileObject::shared(open(false));
        let has = || object.has_writers().unwrap();
        assert!(!has());
        let reader = open(false);
        let seen = map(&reader, libc::PROT_READ);
        assert!(!has(), "readers are none");
        let writer = open(true);
        assert!(has());
        let mapped = map(&writer, libc::PROT_READ);
        drop(writer);
        assert!(has(), "it may be made writable");
        // SAFETY: both are the mappings made above.
        unsafe { libc::munmap(mapped, 4096) };
        assert!(!has());
        object.write_at(b"x", 0).unwrap();
        object.set_len(5).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x\x01\x01\x01\x01");
        assert!(!has(), "its own changes are over");
        std::fs::remove_file(&path).unwrap();
        object.write_at(b"y", 0).unwrap();
        assert_eq!(object.stat().unwrap().size, 5, "also without a name");
        assert!(
            exist(
                File::options()
                    .write(true)
                    .open("/dev/null")
                    .unwrap()
                    .as_fd()
            )
            .is_err()
        );
        // SAFETY: as above.
        unsafe { libc::munmap(seen, 4096) };
    }

    #[test]
    fn who_can_write_a_file_is_seen() {
        writers_are_seen(tempfile::tempdir().unwrap().path());
        writers_are_seen(tempfile::tempdir_in("/dev/shm").unwrap().path());
    }

    #[test]
    fn who_opens_a_file_while_it_is_asked_about_only_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"").unwrap();
        let object = FileObject::shared(File::open(&path).unwrap());
        let open = || {
            for _ in 0..2000 {
                File::options().write(true).open(&path).unwrap();
            }
        };
        std::thread::scope(|scope| {
            let opener = scope.spawn(open);
            while !opener.is_finished() {
                object.has_writers().unwrap();
            }
        });
        assert!(!object.has_writers().unwrap());
    }
}
