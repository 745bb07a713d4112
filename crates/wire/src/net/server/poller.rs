//! One epoll instance over all sockets of a server. Each socket is disarmed by its event, so that
//! one thread at a time looks after it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A job waits, or the threads are to end.
    Bell,
    /// The link with this id can be read.
    Input(u64),
    /// The link with this id can be written again.
    Output(u64),
}

impl About {
    fn to_token(self) -> u64 {
        match self {
            About::Bell => 0,
            About::Input(id) => id << 1,
            About::Output(id) => id << 1 | 1,
        }
    }

    fn of_token(token: u64) -> About {
        match (token >> 1, token & 1) {
            (0, _) => About::Bell,
            (id, 0) => About::Input(id),
            (id, _) => About::Output(id),
        }
    }
}

pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let bell = eventfd(0, flags)?;
        let token = EventData::new_u64(About::Bell.to_token());
        epoll::add(&epoll, &bell, token, EventFlags::IN)?;
        Ok(Poller { epoll, bell })
    }

    /// Wakes up to `count` threads that wait.
    pub fn ring(&self, count: u64) {
        if let Err(errno) = rustix::io::write(&self.bell, &count.to_ne_bytes()) {
            // Full: everybody is awake.
            tracing::debug!("workers of the network: {errno}");
        }
    }

    /// A thread that was woken by the bell takes its stroke.
    pub fn take_stroke(&self) {
        // Another thread may have taken it.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// One event; `None` when there is none in time.
    pub fn wait(&self, limit: Duration) -> io::Result<Option<About>> {
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut space = [MaybeUninit::<Event>::uninit(); 1];
        match epoll::wait(&self.epoll, &mut space, Some(&limit)) {
            Ok((events, _)) => Ok(events
                .first()
                .map(|event| About::of_token({ event.data }.u64()))),
            Err(rustix::io::Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes a new socket; it is not watched yet.
    pub fn add(&self, socket: impl AsFd, about: About) -> io::Result<()> {
        let token = EventData::new_u64(about.to_token());
        Ok(epoll::add(&self.epoll, socket, token, EventFlags::ONESHOT)?)
    }

    /// Watches a socket for one event.
    pub fn arm(&self, socket: impl AsFd, about: About) -> io::Result<()> {
        let token = EventData::new_u64(about.to_token());
        Ok(epoll::modify(&self.epoll, socket, token, flags_of(about))?)
    }

    /// Wakes a thread for a link of which more input lies in memory than was looked at: a socket
    /// that can be written, as almost all can, says so at once.
    pub fn arm_at_once(&self, socket: impl AsFd, about: About) -> io::Result<()> {
        let token = EventData::new_u64(about.to_token());
        let flags = flags_of(about) | EventFlags::OUT;
        Ok(epoll::modify(&self.epoll, socket, token, flags)?)
    }
}

fn flags_of(about: About) -> EventFlags {
    match about {
        About::Bell => EventFlags::IN,
        About::Input(_) => EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT,
        About::Output(_) => EventFlags::OUT | EventFlags::ONESHOT,
    }
}
