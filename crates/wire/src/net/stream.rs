//! A connected socket, TCP or Unix, as the transport uses it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recv, recvmsg, sendmsg,
};

/// Whether a call waits for the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Yes,
    /// The same, until all of it has passed, or the socket's limit is over
    /// ([`Stream::limit_waits`]).
    All,
    /// `WouldBlock` instead.
    No,
}

/// Descriptors that one call takes at most.
const DESCRIPTORS_MAX: usize = 4;

pub(crate) struct Stream {
    socket: OwnedFd,
    unix: bool,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Stream {
    /// Takes over a connected socket.
    pub fn tcp(socket: OwnedFd) -> io::Result<Stream> {
        // A small request must not wait for the acknowledgement of the one before it.
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(Stream::new(socket, false))
    }

    pub fn unix(socket: OwnedFd) -> Stream {
        Stream::new(socket, true)
    }

    fn new(socket: OwnedFd, unix: bool) -> Stream {
        Stream {
            socket,
            unix,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    pub fn is_unix(&self) -> bool {
        self.unix
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Some bytes, 0 at the end. Descriptors that come with them are closed.
    pub fn recv(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let flags = match wait {
            Wait::Yes => RecvFlags::empty(),
            Wait::All => RecvFlags::WAITALL,
            Wait::No => RecvFlags::DONTWAIT,
        };
        let (count, _) = retry(|| recv(&self.socket, &mut *into, flags))?;
        self.received.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// The same, and hands over the descriptors that come with the bytes.
    pub fn recv_with(
        &self,
        into: &mut [u8],
        wait: Wait,
        mut found: impl FnMut(OwnedFd),
    ) -> io::Result<usize> {
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        if wait == Wait::No {
            flags |= RecvFlags::DONTWAIT;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(into)];
        let count = retry(|| recvmsg(&self.socket, &mut slices, &mut control, flags))?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(&mut found);
            }
        }
        self.received.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Sends some of the bytes; a descriptor goes with the first of them.
    pub fn send(
        &self,
        slices: &[IoSlice<'_>],
        descriptor: Option<BorrowedFd<'_>>,
        wait: Wait,
    ) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        if wait == Wait::No {
            flags |= SendFlags::DONTWAIT;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if descriptor.is_some() {
            control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice()));
        }
        let count = retry(|| sendmsg(&self.socket, slices, &mut control, flags))?;
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Sends all of the bytes, however long that takes.
    pub fn send_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        while slices.iter().any(|slice| !slice.is_empty()) {
            match self.send(slices, None, Wait::Yes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => IoSlice::advance_slices(&mut slices, count),
            }
        }
        Ok(())
    }

    /// Waits until there is something to read, or room to write; false if there is not in time.
    pub fn ready(&self, what: PollFlags, limit: Duration) -> io::Result<bool> {
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut looked = [PollFd::new(&self.socket, what)];
        match poll(&mut looked, Some(&limit)) {
            // A signal; the caller looks at its clock and asks again.
            Err(rustix::io::Errno::INTR) => Ok(false),
            found => Ok(found? > 0),
        }
    }

    /// No call waits for longer: it returns with what has passed until then, or `WouldBlock`.
    pub fn limit_waits(&self, limit: Duration) -> io::Result<()> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.socket, direction, Some(limit))?;
        }
        Ok(())
    }

    /// Ends both directions: whoever waits in a call on the socket returns.
    pub fn shutdown(&self) {
        // One that is not connected any more has ended already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Nothing more will be sent; what was sent still arrives.
    pub fn shutdown_writing(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Limits what is sent to so many bytes a second. The kernel does it for TCP only, and there
    /// also on loopback and veth; a Unix socket is not limited.
    pub fn limit_rate(&self, bytes_per_second: u64) -> io::Result<()> {
        if self.unix {
            return Ok(());
        }
        let rate = bytes_per_second.max(1);
        // SAFETY: the descriptor is open, and the kernel reads the eight bytes of `rate`.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MAX_PACING_RATE,
                (&raw const rate).cast(),
                size_of_val(&rate) as libc::socklen_t,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}
