//! Acting as a user towards the PFS, on one thread.

use std::io;
use std::marker::PhantomData;

use forebay_types::Errno;

/// Acts as `uid`/`gid` with the given supplementary groups towards the file systems, on this
/// thread, while it lives; then the thread is what it was, also after a panic. Nothing happens when
/// the process is not root. Guards may be nested; they end in reverse order. A thread that is
/// started meanwhile stays the user for good, so start none.
///
/// Only the file-system ids change: the kernel takes a thread's permission to override file modes
/// away with fsuid 0, and the thread cannot be signalled or traced by the user meanwhile.
#[derive(Debug)]
pub struct ActAs {
    before: Option<Before>,
    /// The ids are the thread's: the guard must end on the thread it began on.
    _not_send: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Before {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl ActAs {
    /// Begins to act as the user. `EINVAL` for an id of all ones, which means "no user".
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<ActAs> {
        if uid == u32::MAX || gid == u32::MAX || groups.contains(&u32::MAX) {
            return Err(Errno::EINVAL.into());
        }
        if !rustix::process::geteuid().is_root() {
            return Ok(ActAs {
                before: None,
                _not_send: PhantomData,
            });
        }
        let before = Before {
            uid: set_fs_uid(u32::MAX),
            gid: set_fs_gid(u32::MAX),
            groups: groups_now()?,
        };
        // From here on a failure, too, puts everything back.
        let guard = ActAs {
            before: Some(before),
            _not_send: PhantomData,
        };
        set_groups(groups)?;
        set_fs_gid(gid);
        set_fs_uid(uid);
        // Neither call says whether it worked: ask.
        if set_fs_uid(u32::MAX) != uid || set_fs_gid(u32::MAX) != gid {
            return Err(Errno::EPERM.into());
        }
        Ok(guard)
    }
}

impl Drop for ActAs {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        set_fs_uid(before.uid);
        set_fs_gid(before.gid);
        let groups = set_groups(&before.groups);
        let restored = groups.is_ok()
            && set_fs_uid(u32::MAX) == before.uid
            && set_fs_gid(u32::MAX) == before.gid;
        if !restored {
            // A thread that goes on as somebody else would give one user's files to another.
            std::process::abort();
        }
    }
}

/// The user id that file systems see on this thread.
pub(crate) fn fs_uid() -> u32 {
    set_fs_uid(u32::MAX)
}

/// Sets the thread's file-system user id and returns the one before; all ones only asks.
fn set_fs_uid(uid: u32) -> u32 {
    // SAFETY: takes an integer, touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_setfsuid, libc::c_ulong::from(uid)) as u32 }
}

/// Sets the thread's file-system group id and returns the one before; all ones only asks.
fn set_fs_gid(gid: u32) -> u32 {
    // SAFETY: takes an integer, touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_setfsgid, libc::c_ulong::from(gid)) as u32 }
}

/// Sets the groups of this thread alone: the C library's setgroups(3) would change all threads.
fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and the count describe one live slice of 32-bit group ids, which the
    // kernel only reads.
    let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn groups_now() -> io::Result<Vec<u32>> {
    let groups = rustix::process::getgroups()?;
    Ok(groups.into_iter().map(|gid| gid.as_raw()).collect())
}
