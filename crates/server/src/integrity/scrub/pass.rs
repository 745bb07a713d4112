//! The pass in the background.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::scrub::{OBJECT_COST_BYTES, Pace, left_of_pass};
use forebay_tiers::{CHECKSUM_STEP_BYTES, TierKind};
use forebay_types::{ObjectId, TierId, TimeSpec};
use forebay_wire::control::ScrubStatus;

use super::{DROP_EVERY_BYTES, NAME, SAVE_EVERY, out_of_cache};
use crate::integrity::Integrity;
use crate::integrity::atrest::{Looked, Purpose};
use crate::integrity::unhurried::Unhurried;

/// One pass.
struct Pass<'a> {
    integrity: &'a Integrity,
    reader: Unhurried<'a>,
}

impl Pass<'_> {
    /// Looks at one object, if nobody has it open; whether it was not interrupted.
    fn visit(&self, file: &Arc<File>) -> bool {
        let integrity = self.integrity;
        let (tier, size, compared) = {
            let state = file.lock();
            let r = &state.residency;
            (r.tier, state.meta.size, !r.writing && r.crc.is_some())
        };
        if integrity.buffer.tiers().kind(tier) != TierKind::Ssd
            || integrity.buffer.tiers().is_out_of_reach(tier)
            || integrity.buffer.opens().is_open_now(file.ino)
        {
            return true;
        }
        self.reader.spend(OBJECT_COST_BYTES);
        let opened = integrity.buffer.tiers().open_object(tier, file.object);
        // Flash is to answer, not memory.
        let forget = || {
            if let Ok(object) = &opened {
                out_of_cache(&**object);
            }
        };
        forget();
        let is_there = || {
            let state = file.lock();
            state.residency.tier == tier && !state.is_unlinked()
        };
        let read = AtomicU64::new(0);
        let stop = || {
            self.reader.spend(CHECKSUM_STEP_BYTES.min(size));
            let read = read.fetch_add(CHECKSUM_STEP_BYTES, Ordering::Relaxed);
            if read.is_multiple_of(DROP_EVERY_BYTES) {
                forget();
            }
            self.reader.is_over_for(&is_there)
        };
        match integrity.look(file, tier, &opened, Purpose::Pass, &stop) {
            Ok(Looked::Sound | Looked::Unread(..)) => {}
            Ok(Looked::Wrong(problem)) => integrity.settle_damage(file, tier, problem),
            Err(_) if integrity.base.is_ending() => return false,
            Err(failure) => {
                tracing::debug!("{}: {failure}", file.path().escape_ascii());
                return true;
            }
        }
        forget();
        let mut progress = integrity.scrub.progress.lock();
        progress.checked_objects += 1;
        progress.checked_bytes += if compared { size } else { 0 };
        true
    }
}

impl Integrity {
    /// For `status`.
    pub fn scrub_status(&self) -> ScrubStatus {
        let progress = *self.scrub.progress.lock();
        ScrubStatus {
            enabled: self.settings.scrub.enabled,
            checked_objects: progress.checked_objects,
            checked_bytes: progress.checked_bytes,
            found: progress.found + self.at_rest.found.load(Ordering::Relaxed),
            passes: progress.passes,
            last_pass_end_s: progress.last_end_s,
            pass_begun_s: progress.begun_s.filter(|_| progress.under_way),
            left_objects: self.scrub.left.load(Ordering::Relaxed),
            compared_at_open: self.at_rest.compared_at_open.load(Ordering::Relaxed),
            compared_blocks: self.at_rest.compared_blocks.load(Ordering::Relaxed),
            sealed: self.at_rest.sealed.load(Ordering::Relaxed),
        }
    }

    /// What was checked, bytes, and found in earlier runs.
    pub fn scrubbed_earlier(&self) -> (u64, u64) {
        (self.scrub.earlier.checked_bytes, self.scrub.earlier.found)
    }

    fn scrub_begun_s_ago(&self) -> f64 {
        let begun_s = self.scrub.progress.lock().begun_s;
        begun_s.map_or(f64::MAX, |begun| (TimeSpec::now().sec - begun) as f64)
    }

    /// The pass has found damage. Who has the file open keeps it; the next who opens it looks
    /// closely.
    pub fn settle_damage(&self, file: &Arc<File>, tier: TierId, problem: String) {
        let claim = match self.base.health().is_silent() {
            true => self.buffer.opens().try_claim(file.ino),
            false => Some(self.buffer.opens().claim(file.ino)),
        };
        let Some(claim) = claim.filter(|claim| !claim.is_open()) else {
            return self.note_damage(file, file.path(), problem, Default::default());
        };
        if file.tier() != tier || file.lock().is_unlinked() {
            return;
        }
        if let Err(failure) = self.open_at_rest(&claim, file, Purpose::Pass, false) {
            tracing::debug!("{}: {failure}", file.path().escape_ascii());
        }
    }

    /// Begins a pass, or goes on with the one that the last run began.
    fn scrub_pass(&self, pace: &Pace) {
        let after = {
            let mut progress = self.scrub.progress.lock();
            if !progress.under_way {
                progress.under_way = true;
                progress.at = None;
                progress.begun_s = Some(TimeSpec::now().sec);
            }
            progress.at
        };
        let flash = self
            .buffer
            .tiers()
            .iter()
            .filter(|(_, s)| s.kind == TierKind::Ssd);
        let bytes = flash
            .map(|(id, _)| self.buffer.ledger().figures(id).used_bytes)
            .sum();
        let objects: Vec<u64> = self
            .buffer
            .table()
            .read()
            .keys()
            .map(|object| object.0)
            .collect();
        let rate_bytes_per_s = pace.rate_bytes_per_s(objects.len() as u64, bytes);
        let may_read = |calm| pace.may_read(calm, self.scrub_begun_s_ago());
        let pass = Pass {
            integrity: self,
            reader: Unhurried::new(self, rate_bytes_per_s, &may_read),
        };
        let left = left_of_pass(objects, after);
        let mut saved = Instant::now();
        for (done, object) in left.iter().enumerate() {
            let still = (left.len() - done) as u64;
            self.scrub.left.store(still, Ordering::Relaxed);
            if pass.reader.is_over() {
                return;
            }
            if let Some(file) = self.buffer.file(ObjectId(*object))
                && !pass.visit(&file)
            {
                return;
            }
            self.scrub.progress.lock().at = Some(*object);
            if saved.elapsed() >= SAVE_EVERY {
                self.save_scrub();
                saved = Instant::now();
            }
        }
        self.scrub.left.store(0, Ordering::Relaxed);
        // One that left while its drain ended may have been noted after that.
        let files: HashSet<ObjectId> = self.buffer.table().read().keys().copied().collect();
        self.at_rest.keep(|object| files.contains(object));
        let mut progress = self.scrub.progress.lock();
        progress.under_way = false;
        progress.passes += 1;
        progress.last_end_s = Some(TimeSpec::now().sec);
        drop(progress);
        self.save_scrub();
    }

    /// Puts on record how far it has come, and what was found.
    pub fn save_scrub(&self) {
        let mut progress = *self.scrub.progress.lock();
        progress.found += self.at_rest.found.load(Ordering::Relaxed);
        let saved = postcard::to_stdvec(&progress).map_err(|e| e.to_string());
        let saved = saved.and_then(|b| self.ns.put_fact(NAME, &b).map_err(|e| e.to_string()));
        if let Err(error) = saved {
            tracing::warn!("how far the pass over objects has come is not kept: {error}");
        }
    }
}

/// The thread that reads objects at rest in the background.
pub fn run(integrity: &Arc<Integrity>) {
    let settings = &integrity.settings.scrub;
    let pace = Pace {
        pass_s: settings.pass.as_secs_f64(),
        rate_max_bytes_per_s: settings.rate_max_bytes_per_s as f64,
    };
    while settings.enabled && !integrity.base.is_ending() {
        let under_way = integrity.scrub.progress.lock().under_way;
        let rest_s = match under_way {
            true => 0.0,
            false => pace.rest_s(integrity.scrub_begun_s_ago()),
        };
        match rest_s > 0.0 {
            // A day at most: the clock may be set meanwhile.
            true => integrity
                .base
                .life()
                .pause(Duration::from_secs_f64(rest_s.clamp(0.05, 86_400.0))),
            false => integrity.scrub_pass(&pace),
        }
    }
}
