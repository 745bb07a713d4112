//! Who is at the other end of a socket, and how many connections they may have.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use crate::Peer;

/// Connections served at once, of all users together: each has a thread.
const CONNECTIONS_MAX: usize = 96;
/// Of those, for root and the server's own user alone: whoever else takes what there is does not
/// keep them out.
const RESERVED: usize = 32;
/// Connections of one other user.
const PER_USER_MAX: usize = 16;

/// A process at the other end, as the kernel knows it.
pub(crate) struct Caller {
    pub uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Caller {
    /// Who has connected.
    pub fn of(stream: &UnixStream) -> io::Result<Caller> {
        let (uid, gid) = user_of(stream)?;
        Ok(Caller {
            uid,
            gid,
            groups: groups_of(stream)?,
        })
    }

    /// The same for the service.
    pub fn peer<'a>(&'a self, socket: Option<BorrowedFd<'a>>) -> Peer<'a> {
        Peer {
            uid: self.uid,
            gid: self.gid,
            groups: &self.groups,
            local: true,
            near: false,
            mount: false,
            socket,
        }
    }
}

/// User and group of the process that has connected (`SO_PEERCRED`). Its pid is not asked for: from
/// another container the process has none here.
fn user_of(stream: &UnixStream) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes no more than `bytes` bytes, which
    // `credentials` has.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut credentials).cast(),
            &mut bytes,
        )
    };
    match result {
        0 => Ok((credentials.uid, credentials.gid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Groups of the process that has connected, as they were then (`SO_PEERGROUPS`).
fn groups_of(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the descriptor is open, `groups` has room for `bytes` bytes, and the kernel
        // writes no more than that.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        match result {
            0 => {
                groups.truncate(count);
                return Ok(groups);
            }
            _ => match io::Error::last_os_error() {
                // There are more: the kernel says how many.
                e if e.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => {
                    groups.resize(count, 0);
                }
                error => return Err(error),
            },
        }
    }
}

/// Connections that are being served, by user.
#[derive(Default)]
pub(crate) struct Seats {
    taken: Mutex<HashMap<u32, usize>>,
}

/// The right to be served; given back when dropped.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    uid: u32,
}

impl Seats {
    /// A seat for one more connection of a user, if there is one.
    pub fn take(seats: &Arc<Seats>, uid: u32, trusted: bool) -> Option<Seat> {
        let mut taken = seats.taken.lock().unwrap_or_else(|e| e.into_inner());
        let all: usize = taken.values().sum();
        let own = taken.get(&uid).copied().unwrap_or(0);
        let is_free = match trusted {
            true => all < CONNECTIONS_MAX,
            false => all < CONNECTIONS_MAX - RESERVED && own < PER_USER_MAX,
        };
        is_free.then(|| {
            *taken.entry(uid).or_default() += 1;
            drop(taken);
            Seat {
                seats: seats.clone(),
                uid,
            }
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(count) = taken.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_few_connections_and_root_always_some() {
        let seats = Arc::new(Seats::default());
        let mut held = Vec::new();
        for uid in 1..100 {
            let got: Vec<Seat> = (0..CONNECTIONS_MAX)
                .map_while(|_| Seats::take(&seats, uid, false))
                .collect();
            assert!(got.len() <= PER_USER_MAX);
            held.extend(got);
        }
        assert_eq!(held.len(), CONNECTIONS_MAX - RESERVED);
        let trusted: Vec<Seat> = std::iter::from_fn(|| Seats::take(&seats, 0, true)).collect();
        assert_eq!(trusted.len(), RESERVED);
        drop(held);
        assert!(Seats::take(&seats, 7, false).is_some());
        drop(trusted);
        assert!(seats.taken.lock().expect("lock").is_empty());
    }

    #[test]
    fn the_kernel_names_user_and_groups() {
        let (here, _there) = UnixStream::pair().expect("pair");
        let caller = Caller::of(&here).expect("peer");
        let groups = rustix::process::getgroups().expect("groups");
        let groups: Vec<u32> = groups.into_iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(caller.uid, rustix::process::geteuid().as_raw());
        assert_eq!(caller.gid, rustix::process::getegid().as_raw());
        assert_eq!(caller.groups, groups);
    }
}
