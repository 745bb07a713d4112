//! Eviction: clean copies that nobody has open leave the burst buffer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_namespace::File;
use forebay_tiers::TierKind;

use crate::buffer::Buffer;
use crate::buffer::contents::Seen;

/// Who makes space holds the right to do so, and whoever has a claim may wait for space, or for who
/// waits for that: the file stays, then, and another goes.
const PATIENCE: Duration = Duration::from_secs(2);

impl Buffer {
    /// Drops a clean copy that nobody has open. Answers with the bytes freed, or `None` if it
    /// stays.
    pub fn evict(&self, file: &Arc<File>) -> Option<u64> {
        let claim = match self.ns.pfs().health().is_silent() {
            // Who has it may wait for the PFS.
            true => self.opens.try_claim(file.ino)?,
            false => self.opens.claim_within(file.ino, PATIENCE)?,
        };
        if claim.is_open() {
            return None;
        }
        self.evict_unopened(file)
    }

    /// The same for callers who have claimed the file and seen that it is not open.
    pub fn evict_unopened(&self, file: &Arc<File>) -> Option<u64> {
        let bytes = self.ledger.used_bytes(file.object);
        // What the PFS has by now is not compared with the content again.
        let seen = Seen::in_buffer(file);
        match self.ns.evict(file) {
            Ok(true) => {
                if let Some(seen) = seen {
                    self.contents.follow(file.ino, &seen);
                }
                self.base
                    .counters()
                    .evicted_bytes
                    .fetch_add(bytes, Ordering::Relaxed);
                Some(bytes)
            }
            Ok(false) => None,
            Err(error) => {
                self.base.report(
                    file.path(),
                    error.errno(),
                    format!("cannot be evicted: {error}"),
                );
                None
            }
        }
    }

    /// A clean file has no business in the overflow: the copy there only takes space on the PFS.
    pub fn leave_overflow(&self, file: &Arc<File>) {
        if self.overstays(file) && self.evict(file).is_some() {
            self.wake_collector();
        }
        self.note_overstay(file);
    }

    fn overstays(&self, file: &File) -> bool {
        let (tier, clean, unlinked) = {
            let state = file.lock();
            let residency = &state.residency;
            (residency.tier, residency.clean, state.is_unlinked())
        };
        clean && !unlinked && self.tiers.kind(tier) == TierKind::Pfs
    }

    /// What could not be evicted, as where the store or the PFS has failed just then, is tried
    /// again if its close does not.
    pub fn note_overstay(&self, file: &Arc<File>) {
        if self.overstays(file) && self.opens.by_ino(file.ino).is_none() {
            self.overstaying.lock().push(file.clone());
        }
    }

    /// Those that could not leave before.
    pub fn leave_overflow_late(&self) {
        let late = std::mem::take(&mut *self.overstaying.lock());
        late.iter().for_each(|file| self.leave_overflow(file));
    }
}
