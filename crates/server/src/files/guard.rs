//! Keeps files that the kernel writes by itself within the space that is set aside for them. The
//! guard extends leases ahead of the writers. Where a lease is used up and there is no room, the
//! guard makes the writer wait.

pub(crate) mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use forebay_policy::limits::{Beyond, Owner};
use forebay_policy::placement::Lease;
use forebay_tiers::{BlocksWriters, Object};
use forebay_types::{ObjectId, TierId};
use parking_lot::{Condvar, Mutex};

use crate::buffer::opens::OpenFile;

/// Between two looks at files under unseen writing: at 10 GB/s a file grows by 50 MB meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// The same of files on another node, each of which costs a message.
const LOOK_AFAR: Duration = Duration::from_millis(20);

/// So many looks at nothing, and the guard sleeps until it is woken.
const LOOKS_BEFORE_SLEEP: u32 = 40;

/// Without being woken it looks this often, to see that all is to end.
const SLEEP: Duration = Duration::from_millis(250);

/// Between two rounds of eviction for the same need.
const EVICTION_PAUSE: Duration = Duration::from_millis(20);

/// How others talk to the guards, and the guards to who makes room.
pub struct GuardPost {
    /// One for the tiers of each server: none is held up by another node.
    guards: BTreeMap<u16, Bed>,
    wanted: Mutex<HashMap<Wanted, u64>>,
    want: Condvar,
}

/// Where room is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Wanted {
    Tier(TierId),
    /// In what a user or group may have.
    Owner(Owner, Beyond),
}

/// Where a guard sleeps while there is nothing to look at.
#[derive(Default)]
struct Bed {
    thread: OnceLock<Thread>,
    asleep: AtomicBool,
}

impl GuardPost {
    /// For the tiers of these servers.
    pub fn new(servers: impl Iterator<Item = u16>) -> GuardPost {
        GuardPost {
            guards: servers.map(|server| (server, Bed::default())).collect(),
            wanted: Mutex::default(),
            want: Condvar::new(),
        }
    }

    /// A file may have been opened that is written unseen.
    pub fn watches(&self, open: &OpenFile) {
        if open.lease_bytes.load(Ordering::Acquire) == 0 {
            return;
        }
        for bed in self.guards.values() {
            if bed.asleep.swap(false, Ordering::SeqCst)
                && let Some(thread) = bed.thread.get()
            {
                thread.unpark();
            }
        }
    }

    fn want_room(&self, whose: Wanted, bytes: u64) {
        let mut wanted = self.wanted.lock();
        let most = wanted.entry(whose).or_default();
        *most = bytes.max(*most);
        drop(wanted);
        self.want.notify_one();
    }
}

/// What is done about a file that has used up its lease.
enum Hold {
    /// Whoever writes next waits.
    BlockedWriter {
        write_blocker: Box<dyn BlocksWriters>,
        since: Instant,
    },
    /// It cannot be held back, or there is nothing to wait for.
    LetGo,
}

struct Guard {
    /// Whose tiers it looks at.
    server: u16,
    held: HashMap<ObjectId, Hold>,
}

/// A file that is written unseen, as it is now.
struct Growing<'a> {
    open: &'a OpenFile,
    object: &'a dyn Object,
    id: ObjectId,
    path: &'a dyn Fn() -> Vec<u8>,
    tier: TierId,
    lease: Lease,
    used_bytes: u64,
}

/// A look late is space that nobody has: ahead of ordinary threads, where that is allowed.
fn be_punctual() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the struct lives through the call, which changes how the calling thread is scheduled
    // and no memory.
    let done = unsafe {
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &parameters)
    };
    if done != 0 {
        tracing::debug!(
            "the guard has no priority: {}",
            std::io::Error::last_os_error()
        );
    }
}
