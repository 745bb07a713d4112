//! Looks at objects at rest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::File;
use forebay_policy::scrub::{
    Content, Look, ObjectAtRest, look_at_open, look_at_shape, look_before_change, look_before_copy,
    look_in_passing,
};
use forebay_tiers::{Object, ObjectStat, TierKind, checksum};
use forebay_types::{Errno, Generation, TierId};
use forebay_wire::OUT_OF_REACH;
use forebay_wire::control::FsckReport;

use super::flushes::{FLUSH_FAILED, forget_failed_flushes, read_from_device};
use super::{LOOKS_MAX, Looked, OpenedAtRest, Purpose, Recorded, is_exhaustion, is_missing};
use crate::base::failure::Failure;
use crate::buffer::blocks::Blocks;
use crate::buffer::opens::Claim;
use crate::integrity::Integrity;
use crate::integrity::identity::{IdentityCheck, mismatch};

impl Integrity {
    /// Opens the object of a file that the caller has claimed and that nobody has open. A damaged
    /// copy gives way to what the PFS has; `EIO` is all there is of damaged data that the PFS does
    /// not have. `to_write`: requests will write it.
    pub fn open_at_rest(
        &self,
        claim: &Claim<'_>,
        file: &Arc<File>,
        purpose: Purpose,
        to_write: bool,
    ) -> Result<OpenedAtRest, Failure> {
        let is_away = |tier| self.buffer.tiers().is_out_of_reach(tier);
        if is_away(file.tier()) && self.buffer.adopt_restart_copy(file)? {
            self.buffer.wake_collector();
        }
        let tier = file.tier();
        if self.buffer.tiers().kind(tier) == TierKind::Pfs {
            self.base.health().pass()?;
        }
        if is_away(tier) {
            // The PFS has it, and the copy goes: nobody knows when its node is back.
            let is_clean = file.lock().residency.clean;
            return match is_clean && self.has_made_way(file) {
                true => Ok(None),
                false => Err(OUT_OF_REACH.into()),
            };
        }
        let opened = match to_write {
            true => self.buffer.tiers().open_to_write(tier, file.object),
            false => self.buffer.tiers().open_object(tier, file.object),
        };
        let has_become_the_file =
            || self.buffer.tiers().kind(tier) == TierKind::Pfs && file.lock().residency.clean;
        if opened.as_ref().is_err_and(is_missing) && has_become_the_file() {
            // It has the file's name on the PFS by now, and its record has gone since the caller
            // found it, or could not go then.
            if self.has_made_way(file) {
                return Ok(None);
            }
            self.base.health().pass()?;
            return Err(Errno::EIO.into());
        }
        if let Ok(object) = &opened
            && purpose != Purpose::Shape
        {
            self.hear_before_open(file, tier, &**object);
        }
        let generation = file.lock().generation();
        let blocks = match self.look(file, tier, &opened, purpose, &|| self.base.is_ending())? {
            Looked::Sound => None,
            Looked::Unread(sums, stat) => {
                let blocks = Blocks::new(file.clone(), generation, sums, stat);
                Some(Arc::new(blocks))
            }
            Looked::Wrong(problem) => {
                return self.drop_damaged(claim, file, problem).map(|()| None);
            }
        };
        Ok(Some((tier, opened?, blocks)))
    }

    /// Whether the record of a file that is claimed, and that the PFS has, is gone or goes now. A
    /// change of its names meanwhile keeps it for a moment only.
    fn has_made_way(&self, file: &Arc<File>) -> bool {
        self.buffer.contents().forget(file.ino);
        for _ in 0..LOOKS_MAX {
            let path = file.path();
            if file.lock().is_unlinked() || self.buffer.evict_unopened(file).is_some() {
                return true;
            }
            if !file.lock().is_unlinked() && file.path() == path {
                return false;
            }
        }
        false
    }

    /// What is wrong with an object at rest that was `opened` in `tier`; an error if that cannot be
    /// told now. Sound are also those that are not on flash, and a file that is gone or elsewhere
    /// by now.
    pub fn look(
        &self,
        file: &File,
        tier: TierId,
        opened: &io::Result<Arc<dyn Object>>,
        purpose: Purpose,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Looked, Failure> {
        for _ in 0..LOOKS_MAX {
            let recorded = Recorded::of(file);
            let is_flash = self.buffer.tiers().kind(tier) == TierKind::Ssd
                && self.buffer.tiers().get(tier).is_some();
            if !is_flash || recorded.residency.tier != tier {
                return Ok(Looked::Sound);
            }
            let object = match opened {
                Ok(object) => object,
                Err(error) if file.lock().is_unlinked() || is_exhaustion(error) => {
                    return Err(Failure::of_shared(error));
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
        Err(Errno::EIO.into())
    }

    fn look_closely(
        &self,
        file: &File,
        recorded: &Recorded,
        object: &dyn Object,
        purpose: Purpose,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Looked, Failure> {
        let Recorded { residency, size } = recorded;
        if let IdentityCheck::Other(problem) = self.check_identity(residency.tier, file.object) {
            return Ok(Looked::Wrong(problem));
        }
        if residency.flush_failed && purpose != Purpose::Shape {
            return self.look_after_failed_flush(file, recorded, object, stop);
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
        if look.content == Content::ByBlock
            && let Some(sums) = self.ns.sums(file)?
        {
            return Ok(Looked::Unread(sums, stat));
        }
        if matches!(purpose, Purpose::Open | Purpose::Change) {
            self.at_rest
                .compared_at_open
                .fetch_add(1, Ordering::Relaxed);
        }
        // Perhaps for a flush that has failed when the PFS had all of it.
        let is_suspect = self.at_rest.is_suspect(file.object);
        if is_suspect && residency.clean {
            match read_from_device(object) {
                Err(error) if is_exhaustion(&error) => return Err(error.into()),
                Err(_) => return Ok(Looked::Wrong(FLUSH_FAILED.into())),
                Ok(()) => {}
            }
        }
        match checksum(object, *size, stop) {
            Ok(crc) if crc == expected => {
                if is_suspect {
                    forget_failed_flushes(object);
                }
                self.at_rest.seal(file.object, residency.generation, &stat);
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
        let resting = ObjectAtRest {
            writing: residency.writing,
            size_bytes: recorded.size,
            has_checksum: residency.crc.is_some(),
            compared_s_ago: self
                .at_rest
                .compared_s_ago(file.object, residency.generation, stat),
            is_suspect: self.at_rest.suspects.lock().contains_key(&file.object),
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
        let known = !residency.writing && self.buffer.tiers().kind(residency.tier) == TierKind::Ssd;
        let crc = residency.crc.filter(|_| known)?;
        Some((crc, residency.generation))
    }

    /// What is wrong with a copy whose checksum is `copied`, made of what `expected` was known of
    /// before; nothing where that has changed meanwhile.
    pub fn is_other_content(
        &self,
        file: &File,
        expected: Option<(u32, Generation)>,
        copied: u32,
    ) -> Option<String> {
        let (crc, _) = expected.filter(|(crc, _)| *crc != copied)?;
        (expected == self.content_on_flash(file)).then(|| mismatch(copied, crc))
    }

    /// Something is wrong with a file that is claimed and that nobody has open: all of it is
    /// checked, and mended if that is safe. `EIO` if it is still there.
    pub fn drop_damaged(
        &self,
        claim: &Claim<'_>,
        file: &Arc<File>,
        problem: String,
    ) -> Result<(), Failure> {
        let path = file.path();
        let report = self.check_claimed(claim, file);
        self.note_damage(file, path, problem, report);
        match file.lock().is_unlinked() {
            true => {
                self.buffer.wake_collector();
                Ok(())
            }
            false => Err(Errno::EIO.into()),
        }
    }

    /// Counts damage and says what was done; of what is still there, once.
    pub fn note_damage(&self, file: &File, path: Vec<u8>, problem: String, report: FsckReport) {
        // Some of it may have been handed out before anybody looked.
        self.buffer.contents().forget(file.ino);
        let mended = file.lock().is_unlinked();
        let (problem, action) = match report.findings.into_iter().next() {
            Some(finding) => (finding.problem, finding.action),
            None => (problem, "none: it is looked at again".to_string()),
        };
        let known = match mended {
            true => self.at_rest.suspects.lock().remove(&file.object),
            false => self.at_rest.suspects.lock().insert(file.object, true),
        }
        .unwrap_or(false);
        if !mended {
            file.lock().show_error(Errno::EIO);
        }
        if mended || !known {
            let reason = format!("found damaged at rest: {problem}; {action}");
            self.base.report(path, Errno::EIO, reason);
        }
        // Who sees the count finds the reason.
        if !known {
            self.at_rest.found.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was damaged is as it should be: somebody has put it right.
    pub(super) fn is_sound_again(&self, file: &File) {
        if self.at_rest.suspects.lock().remove(&file.object).is_some() {
            self.buffer.contents().forget(file.ino);
            file.lock().end_error(Errno::EIO);
            self.base.errors().clear(&file.path());
        }
    }
}
