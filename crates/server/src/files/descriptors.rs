//! Descriptors: the process may have only so many, and an open file needs one only while something
//! is done with it.
//!
//! Far from the limit every open file keeps its descriptor. Near the limit, descriptors that were
//! not used lately are closed, the least recently used first as far as one bit for each can tell. A
//! request that needs one again opens the object by its id. Under this id the object stays in its
//! tier until the last close, with a name or without. Invariants:
//!
//! 1. What is read and written is held open meanwhile (`Files::target`). A descriptor is closed
//!    only by who has the write lock of the file's target, so no request is in the middle of
//!    anything.
//! 2. What requests have written to flash is on its device before the descriptor goes. The kernel
//!    may forget an error of write-back together with the last descriptor of a file. The wait for
//!    the device goes through another descriptor, so that the error stays for the next fsync.
//!    What programs may write on flash without requests keeps its descriptor: the kernel may tell
//!    an error to them, and then tells it to no descriptor that is opened later. There are only so
//!    many of these. Beyond that programs write by requests.
//! 3. Only what is in a tier of this node is handed back. A file of the PFS might be removed by an
//!    outsider, who leaves nothing to be opened again; and the PFS may hang.

pub(crate) mod hand_back;

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::base::settings::Settings;

/// Parts of what the process may have left: for open files, for copies under way, for directories
/// of the PFS, for what is not flushed yet there or on flash. The rest is for whoever needs one for
/// a moment, and for files of the PFS, which keep theirs.
const OPEN_FILES_PART: u64 = 2;

/// Of those of open files: for those on flash that the kernel writes by itself, which keep theirs.
const PASSED_THROUGH_PART: u64 = 2;

const COPIES_PART: u64 = 8;

const DIRECTORIES_PART: u64 = 8;

/// Files that were changed in place on the PFS, until they are flushed.
const IN_PLACE_PART: u64 = 16;

/// No more of those, either: who asks for all of them waits for each.
const IN_PLACE_MAX: u64 = 256;

/// Closed files whose objects on flash are not flushed.
const UNFLUSHED_PART: u64 = 16;

/// What a directory of objects takes that is still to be made: one for each of its shards, and some
/// beside.
const OVERFLOW_TAKES: u64 = 260;

/// A copy has its source, its destination and its directory open.
const EACH_COPY_TAKES: u64 = 3;

/// So large a part is handed back at a time: a look at all open files is not for one of them.
const AT_A_TIME_PART: u64 = 16;

/// How many descriptors are for what.
pub struct Descriptors {
    /// As many open files may have one before some are handed back.
    files_max: u64,
    /// As many files on flash the kernel may write by itself.
    pub passed_through_max: usize,
    /// As many files each demoter may copy together.
    pub batch_files_max: usize,
    /// As many directories of the PFS may be kept open.
    pub directories_max: usize,
    /// As many files that were changed in place on the PFS may be kept open until they are flushed.
    pub in_place_max: usize,
    /// As many closed files may be held open until they are flushed.
    pub unflushed_max: usize,
    /// With so many the next look is worth it.
    look_at: AtomicU64,
    /// The shard of open files that the last look ended with; held while looking.
    hand: Mutex<usize>,
}

impl Descriptors {
    /// Shares out what the process may still have.
    pub fn new(settings: &Settings, has_overflow: bool) -> Descriptors {
        let left = settings
            .descriptors_max
            .unwrap_or_else(|| left_to_this_process(has_overflow));
        let files_max = (left / OPEN_FILES_PART).max(1);
        let lines = settings.holders.len() + 1;
        let workers = (settings.demotion.workers.max(1) * lines) as u64;
        let copies = left / COPIES_PART / EACH_COPY_TAKES / workers;
        let clamp = |most: u64| usize::try_from(most.max(1)).unwrap_or(usize::MAX);
        Descriptors {
            files_max,
            passed_through_max: clamp(files_max / PASSED_THROUGH_PART),
            batch_files_max: clamp(copies),
            directories_max: clamp(left / DIRECTORIES_PART),
            in_place_max: clamp((left / IN_PLACE_PART).min(IN_PLACE_MAX)),
            unflushed_max: clamp(left / UNFLUSHED_PART),
            look_at: AtomicU64::new(files_max),
            hand: Mutex::new(0),
        }
    }

    fn at_a_time(&self) -> u64 {
        (self.files_max / AT_A_TIME_PART).max(1)
    }
}

fn left_to_this_process(has_overflow: bool) -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // Without /proc nothing is known to be in use, and the parts are larger by that.
    let in_use = std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64);
    let soon = if has_overflow { 0 } else { OVERFLOW_TAKES };
    limit.unwrap_or(u64::MAX).saturating_sub(in_use + soon)
}

/// Candidates descriptors go, of files that were not used since the last look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Candidates {
    /// Of those that need nothing done first.
    Flushed,
    /// Also where the device is to be waited for.
    All,
}
