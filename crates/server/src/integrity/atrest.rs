//! Objects at rest on flash: what is damaged is not handed out. Here is what an open, a drain and the pass in the background
//! look at; how closely is `policy::scrub`'s, what is done about damage is fsck's, file by file.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_namespace::{File, Residency};
use forebay_policy::scrub::{
    Content, Look, Resting, look_at_open, look_at_shape, look_before_change, look_before_copy,
    look_in_passing,
};
use forebay_tiers::{Object, ObjectStat, Sums, TierKind, checksum};
use forebay_types::{Errno, Generation, ObjectId, TierId, TimeSpec};
use forebay_wire::control::FsckReport;
use parking_lot::Mutex;

use crate::buffer::opens::Claim;
use crate::buffer::pieces::Pieces;
use crate::core::Core;
use crate::integrity::fsck::Whose;

/// A file that changes while it is looked at is looked at again so often.
const LOOKS_MAX: usize = 8;

/// What an object looked like when its content was last known to be good: nobody changes it by ordinary means
/// and leaves that.
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
    /// Pieces of larger contents that were compared when they were first asked for.
    pub compared_pieces: AtomicU64,
    /// Undrained contents whose checksum was put on record.
    pub sealed: AtomicU64,
}

impl AtRest {
    /// The content of this generation was read and is what the checksum on record was made from, or matches it.
    pub fn seal(&self, object: ObjectId, generation: Generation, stat: &ObjectStat) {
        let seal = Seal {
            generation,
            size: stat.size,
            mtime: stat.mtime,
            at: Instant::now(),
        };
        self.seals.lock().insert(object, seal);
    }

    /// A copy that was made of its content was not what it should be: the next who looks looks closely.
    pub fn suspect(&self, object: ObjectId) {
        self.seals.lock().remove(&object);
        self.suspects.lock().entry(object).or_default();
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
    /// Neither with this one, but its content is to be compared with these piece by piece.
    Unread(Sums, ObjectStat),
    /// What is wrong with it.
    Wrong(String),
}

/// An object found as it should be, its tier, and what of it is still to be compared; `None`: it was not, and has made way
/// for what the PFS has.
pub type OpenedAtRest = Option<(TierId, Arc<dyn Object>, Option<Arc<Pieces>>)>;

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

impl Core {
    /// Opens the object of a file that the caller has claimed and that nobody has open. A damaged copy gives way to what the
    /// PFS has; `EIO` is all there is of damaged data that the PFS does not have. `to_write`: requests will write it.
    pub fn open_at_rest(
        &self,
        claim: &Claim<'_>,
        file: &Arc<File>,
        purpose: Purpose,
        to_write: bool,
    ) -> Result<OpenedAtRest, Errno> {
        let tier = file.tier();
        if self.tiers.kind(tier) == TierKind::Pfs {
            self.pulse().pass()?;
        }
        let opened = match to_write {
            true => self.tiers.open_to_write(tier, file.object),
            false => self.tiers.open_object(tier, file.object),
        };
        let has_become_the_file =
            || self.tiers.kind(tier) == TierKind::Pfs && file.lock().residency.clean;
        if opened.as_ref().is_err_and(is_missing) && has_become_the_file() {
            // It has the file's name on the PFS by now, and its record could not go then.
            self.evict_unopened(file).ok_or(Errno::EIO)?;
            return Ok(None);
        }
        let generation = file.lock().generation();
        let pieces = match self.look(file, tier, &opened, purpose, &|| self.is_ending())? {
            Looked::Sound => None,
            Looked::Unread(sums, stat) => {
                let pieces = Pieces::new(file.clone(), generation, sums, stat);
                Some(Arc::new(pieces))
            }
            Looked::Wrong(problem) => {
                return self.give_way(claim, file, problem).map(|()| None);
            }
        };
        Ok(Some((tier, opened?, pieces)))
    }

    /// What is wrong with an object at rest that was `opened` in `tier`; an error if that cannot be told now. Sound are also
    /// those that are not on flash, and a file that is gone or elsewhere by now.
    pub fn look(
        &self,
        file: &File,
        tier: TierId,
        opened: &io::Result<Arc<dyn Object>>,
        purpose: Purpose,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Looked, Errno> {
        for _ in 0..LOOKS_MAX {
            let recorded = Recorded::of(file);
            let is_flash = self.tiers.kind(tier) == TierKind::Ssd && self.tiers.get(tier).is_some();
            if !is_flash || recorded.residency.tier != tier {
                return Ok(Looked::Sound);
            }
            let object = match opened {
                Ok(object) => object,
                Err(error) if file.lock().is_unlinked() || is_exhaustion(error) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let problem = format!("its object cannot be opened: {error}");
                    return Ok(Looked::Wrong(problem));
                }
            };
            let found = self.look_closely(file, &recorded, &**object, purpose, stop)?;
            if matches!(found, Looked::Sound) {
                if purpose != Purpose::Shape {
                    self.is_sound_again(file);
                }
                return Ok(found);
            }
            if recorded.holds(file) {
                return Ok(found);
            }
            if file.lock().is_unlinked() {
                return Ok(Looked::Sound);
            }
        }
        Err(Errno::EIO)
    }

    fn look_closely(
        &self,
        file: &File,
        recorded: &Recorded,
        object: &dyn Object,
        purpose: Purpose,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Looked, Errno> {
        let Recorded { residency, size } = recorded;
        if let Whose::Swapped(problem) = self.whose(residency.tier, file.object) {
            return Ok(Looked::Wrong(problem));
        }
        let stat = object.stat()?;
        let look = self.how_closely(file, recorded, &stat, purpose);
        if look.length && stat.size != *size {
            let problem = format!("its object has {} bytes, its record {size}", stat.size);
            return Ok(Looked::Wrong(problem));
        }
        let compared = look.content != Content::Unread;
        let Some(expected) = residency.crc.filter(|_| compared) else {
            return Ok(Looked::Sound);
        };
        if look.content == Content::ByPiece
            && let Some(sums) = self.ns.sums(file)?
        {
            return Ok(Looked::Unread(sums, stat));
        }
        if matches!(purpose, Purpose::Open | Purpose::Change) {
            self.rest.compared_at_open.fetch_add(1, Ordering::Relaxed);
        }
        match checksum(object, *size, stop) {
            Ok(crc) if crc == expected => {
                self.rest.seal(file.object, residency.generation, &stat);
                Ok(Looked::Sound)
            }
            Ok(crc) => Ok(Looked::Wrong(mismatch(crc, expected))),
            Err(error) if is_exhaustion(&error) => Err(error.into()),
            Err(error) => Ok(Looked::Wrong(format!("its object cannot be read: {error}"))),
        }
    }

    fn how_closely(
        &self,
        file: &File,
        recorded: &Recorded,
        stat: &ObjectStat,
        purpose: Purpose,
    ) -> Look {
        let residency = &recorded.residency;
        let resting = Resting {
            writing: residency.writing,
            size_bytes: recorded.size,
            has_checksum: residency.crc.is_some(),
            compared_s_ago: self
                .rest
                .compared_s_ago(file.object, residency.generation, stat),
            is_suspect: self.rest.suspects.lock().contains_key(&file.object),
        };
        match purpose {
            Purpose::Open => look_at_open(&resting, self.settings.scrub.verify_on_open_bytes),
            Purpose::Change => look_before_change(&resting),
            Purpose::Pass => look_in_passing(&resting),
            Purpose::Shape => look_at_shape(&resting),
            Purpose::Copy => look_before_copy(&resting),
        }
    }

    /// Checksum and generation of what a file has on flash, where that is known.
    pub fn content_on_flash(&self, file: &File) -> Option<(u32, Generation)> {
        let residency = file.lock().residency;
        let known = !residency.writing && self.tiers.kind(residency.tier) == TierKind::Ssd;
        let crc = residency.crc.filter(|_| known)?;
        Some((crc, residency.generation))
    }

    /// What is wrong with a copy whose checksum is `copied`, made of what `expected` was known of before; nothing where that has
    /// changed meanwhile.
    pub fn is_other_content(
        &self,
        file: &File,
        expected: Option<(u32, Generation)>,
        copied: u32,
    ) -> Option<String> {
        let (crc, _) = expected.filter(|(crc, _)| *crc != copied)?;
        (expected == self.content_on_flash(file)).then(|| mismatch(copied, crc))
    }

    /// Something is wrong with a file that is claimed and that nobody has open: all of it is checked, and mended if that is
    /// safe. `EIO` if it is still there.
    pub fn give_way(
        &self,
        claim: &Claim<'_>,
        file: &Arc<File>,
        problem: String,
    ) -> Result<(), Errno> {
        let path = file.path();
        let report = self.check_claimed(claim, file);
        self.note_damage(file, path, problem, report);
        match file.lock().is_unlinked() {
            true => {
                self.wake_collector();
                Ok(())
            }
            false => Err(Errno::EIO),
        }
    }

    /// Counts damage and says what was done; of what is still there, once.
    pub fn note_damage(&self, file: &File, path: Vec<u8>, problem: String, report: FsckReport) {
        let mended = file.lock().is_unlinked();
        let (problem, action) = match report.findings.into_iter().next() {
            Some(finding) => (finding.problem, finding.action),
            None => (problem, "none: it is looked at again".to_string()),
        };
        let known = match mended {
            true => self.rest.suspects.lock().remove(&file.object),
            false => self.rest.suspects.lock().insert(file.object, true),
        }
        .unwrap_or(false);
        if !mended {
            file.lock().show_error(Errno::EIO);
        }
        if mended || !known {
            let reason = format!("found damaged at rest: {problem}; {action}");
            self.report(path, Errno::EIO, reason);
        }
        // Who sees the count finds the reason.
        if !known {
            self.rest.found.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was damaged is as it should be: somebody has put it right.
    fn is_sound_again(&self, file: &File) {
        if self.rest.suspects.lock().remove(&file.object).is_some() {
            file.lock().end_error(Errno::EIO);
            self.errors.clear(&file.path());
        }
    }
}

/// For a person.
pub fn mismatch(found: u32, expected: u32) -> String {
    format!("checksum mismatch: {found:08x} instead of {expected:08x}")
}

/// Says nothing about the object: there is too little of something, or somebody wants it to end.
pub fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
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
