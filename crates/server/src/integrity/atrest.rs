//! Objects at rest on flash: what is damaged is not handed out. Here is what an open, a drain and
//! the pass in the background look at; how closely is `policy::scrub`'s, what is done about damage
//! is fsck's, file by file.

pub(crate) mod flushes;
pub(crate) mod looks;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use forebay_namespace::{File, Residency};
use forebay_tiers::{Object, ObjectStat, Sums};
use forebay_types::{Generation, ObjectId, TierId, TimeSpec};
use parking_lot::Mutex;

use crate::buffer::blocks::Blocks;
pub use crate::buffer::holders::is_out_of_reach;

/// A file that changes while it is looked at is looked at again so often.
const LOOKS_MAX: usize = 8;

/// What an object looked like when its content was last compared. Who changes the content by
/// ordinary means changes one of these too. It is kept for this run only: not the seal of
/// `seal.rs`, which puts a checksum on record.
#[derive(Clone, Copy)]
struct Seal {
    generation: Generation,
    size: u64,
    mtime: TimeSpec,
    at: Instant,
}

/// What is known of objects at rest in this run.
#[derive(Default)]
pub struct AtRest {
    seals: Mutex<HashMap<ObjectId, Seal>>,
    /// Damage was seen in them, and is still there; whether it was told.
    suspects: Mutex<HashMap<ObjectId, bool>>,
    /// Damage found since the start, by whomever.
    pub found: AtomicU64,
    /// Contents that opens compared.
    pub compared_at_open: AtomicU64,
    /// Blocks of larger contents that were compared when they were first asked for.
    pub compared_blocks: AtomicU64,
    /// Undrained contents whose checksum was put on record.
    pub sealed: AtomicU64,
}

impl AtRest {
    /// The content of this generation was read and is what the checksum on record was made from, or
    /// matches it.
    pub fn seal(&self, object: ObjectId, generation: Generation, stat: &ObjectStat) {
        let seal = Seal {
            generation,
            size: stat.size,
            mtime: stat.mtime,
            at: Instant::now(),
        };
        self.seals.lock().insert(object, seal);
    }

    /// A copy that was made of its content was not what it should be: the next look compares the
    /// content, whatever was remembered.
    pub fn suspect(&self, object: ObjectId) {
        self.seals.lock().remove(&object);
        self.suspects.lock().entry(object).or_default();
    }

    /// Whether its content may not be what it should be.
    pub fn is_suspect(&self, object: ObjectId) -> bool {
        self.suspects.lock().contains_key(&object)
    }

    /// Only these objects are left.
    pub fn keep(&self, is_left: impl Fn(&ObjectId) -> bool) {
        self.seals.lock().retain(|object, _| is_left(object));
        self.suspects.lock().retain(|object, _| is_left(object));
    }

    /// The object is gone.
    pub fn forget(&self, object: ObjectId) {
        self.seals.lock().remove(&object);
        self.suspects.lock().remove(&object);
    }

    /// How long ago its content was compared, if it still looks the same.
    fn compared_s_ago(
        &self,
        object: ObjectId,
        generation: Generation,
        stat: &ObjectStat,
    ) -> Option<f64> {
        let seal = self.seals.lock().get(&object).copied()?;
        let same = (seal.generation, seal.size, seal.mtime) == (generation, stat.size, stat.mtime);
        same.then(|| seal.at.elapsed().as_secs_f64())
    }
}

/// For whom an object is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It is about to be opened.
    Open,
    /// A part of it is about to be changed.
    Change,
    /// It is about to be cut to nothing.
    Shape,
    /// It is about to be copied to the PFS, where its content is compared.
    Copy,
    /// The pass in the background has come to it.
    Pass,
}

/// What a look at an object has shown.
pub enum Looked {
    /// Nothing is wrong with it, as far as was looked.
    Sound,
    /// Nothing is wrong so far, but the content is to be compared with these sums block by block.
    Unread(Sums, ObjectStat),
    /// What is wrong with it.
    Wrong(String),
}

/// An object found as it should be, its tier, and what of it is still to be compared; `None`: it
/// was not, and has made way for what the PFS has.
pub type OpenedAtRest = Option<(TierId, Arc<dyn Object>, Option<Arc<Blocks>>)>;

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

/// What the record says, taken at one moment.
struct Recorded {
    residency: Residency,
    size: u64,
}

impl Recorded {
    fn of(file: &File) -> Recorded {
        let state = file.lock();
        Recorded {
            residency: state.residency,
            size: state.meta.size,
        }
    }

    /// Whether it still says so.
    fn holds(&self, file: &File) -> bool {
        let state = file.lock();
        let key = |r: &Residency| (r.generation, r.tier, r.writing, r.crc);
        key(&state.residency) == key(&self.residency)
            && state.meta.size == self.size
            && !state.is_unlinked()
    }
}

/// Says nothing about the object: there is too little of something, or somebody wants it to end.
pub fn is_exhaustion(error: &io::Error) -> bool {
    is_out_of_reach(error)
        || matches!(
            error.raw_os_error(),
            Some(
                libc::EMFILE
                    | libc::ENFILE
                    | libc::ENOMEM
                    | libc::EINTR
                    | libc::EAGAIN
                    | libc::ECANCELED
                    | libc::ENODEV
            )
        )
}
