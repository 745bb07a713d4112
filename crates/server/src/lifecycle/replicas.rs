//! Data servers that go: second copies take the place of their files, and get second copies of
//! their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::durability::Durability;
use forebay_policy::liveness::{HolderLease, Liveness, judge};
use forebay_policy::replicas::PROMOTED_AFTER_S;
use forebay_policy::rereplication::{NextCopy, OnlyCopy, ReReplication, Unprotected};
use forebay_tiers::{CopyControl, TierKind};
use forebay_types::{Errno, ObjectId, format_size};
use forebay_wire::control::SecondCopiesStatus;

use crate::files::replica::Promotion;
use crate::files::replicate::Replicated;
use crate::lifecycle::Lifecycle;

/// Between two looks at the data servers.
const LOOK: Duration = Duration::from_millis(250);
/// Between two looks whether somebody waits for a file that is copied at a rate.
const WANTED_LOOK: Duration = Duration::from_millis(20);
/// Between two looks at all files for second copies that are missing.
const FILES_LOOK: Duration = Duration::from_secs(3);

/// What is thought of each data server, by its id.
#[derive(Default)]
struct Judged(HashMap<u16, (Liveness, f64)>);

impl Judged {
    /// The servers that have been away for long, by now.
    fn look(&mut self, lifecycle: &Lifecycle, now_s: f64) -> Vec<u16> {
        let lease = HolderLease::new(PROMOTED_AFTER_S);
        let tiers = lifecycle.buffer.tiers();
        let mut lost = Vec::new();
        for holder in tiers.holders() {
            let mut its = tiers
                .iter()
                .filter(|(_, slot)| slot.server == holder.server);
            let answers = its.all(|(_, slot)| slot.tier.is_answering());
            let known = self.0.entry(holder.server);
            let judged = known.or_insert((Liveness::Answering, now_s));
            if answers {
                *judged = (Liveness::Answering, now_s);
            }
            judged.0 = judge(judged.0, judged.1, now_s, &lease);
            if judged.0 == Liveness::Lost {
                lost.push(holder.server);
            }
        }
        lost
    }
}

/// Files that were promised a second copy and have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unsafe {
    files: u64,
    bytes: u64,
}

impl Unsafe {
    fn in_words(self) -> String {
        let size = format_size(self.bytes);
        let what = match self.files {
            1 => format!("1 file with {size} has no second copy: it is copied"),
            files => format!("{files} files with {size} have no second copy: they are copied"),
        };
        format!("{what} as fast as replica_rate allows, where another server has room on flash")
    }
}

/// Whether people have been told of such files.
#[derive(Default)]
struct Without {
    before: u64,
    is_told: bool,
    /// Why the last one that was tried could not be copied.
    why: Option<String>,
}

impl Without {
    /// Says so where it lasts for longer than from one look to the next, until it is over.
    fn tell(&mut self, lifecycle: &Lifecycle, found: Unsafe) {
        const WHAT: &[u8] = b"(second copies)";
        if found.files > 0 && self.before > 0 && !self.is_told {
            let why = self.why.as_ref();
            let why = why.map_or(String::new(), |why| format!(" (the last one: {why})"));
            let reason = format!("{}{why}", found.in_words());
            lifecycle.base.report(WHAT.to_vec(), Errno::EAGAIN, reason);
            self.is_told = true;
        }
        if found.files == 0 && std::mem::take(&mut self.is_told) {
            lifecycle.base.errors().clear(WHAT);
        }
        self.before = found.files;
    }
}

/// What was found, if somebody has looked.
fn shown(found: Option<Unsafe>) -> SecondCopiesStatus {
    let Unsafe { files, bytes } = found.unwrap_or_default();
    SecondCopiesStatus {
        known: found.is_some(),
        missing_files: files,
        missing_bytes: bytes,
    }
}

/// The thread that has second copies take the place of files whose node is away.
pub fn watch(lifecycle: &Arc<Lifecycle>) {
    let begun = Instant::now();
    let mut judged = Judged::default();
    let (mut before, mut again_at) = (Vec::new(), Instant::now());
    while !lifecycle.base.is_ending() {
        let lost = judged.look(lifecycle, begun.elapsed().as_secs_f64());
        let is_due = lost != before || Instant::now() >= again_at;
        if !lost.is_empty() && is_due {
            let again = match lifecycle.promote_all(&lost) {
                true => LOOK,
                false => FILES_LOOK,
            };
            again_at = Instant::now() + again;
        }
        before = lost;
        lifecycle.base.life().pause(LOOK);
    }
}

/// The thread that makes second copies again, and removes what is left of files on nodes that are
/// back. It may hang with a node.
pub fn replicate(lifecycle: &Arc<Lifecycle>) {
    let begun = Instant::now();
    let rate = lifecycle.settings.replica_rate_bytes_per_s as f64;
    let mut queue = ReReplication::new(rate, 0.0);
    let mut files = HashMap::new();
    let mut look_at = Instant::now();
    let mut without = Without::default();
    while !lifecycle.base.is_ending() {
        if Instant::now() >= look_at {
            lifecycle.sweep_left();
            let found = lifecycle.find_unprotected(&mut queue, &mut files);
            *lifecycle.second_copies.lock() = Some(found);
            without.tell(lifecycle, found);
            look_at = Instant::now() + FILES_LOOK;
        }
        // They go before copies that were promised to nobody.
        let due = &lifecycle.second_copies_due;
        due.store(!files.is_empty(), Ordering::Relaxed);
        let pause = match queue.next(begun.elapsed().as_secs_f64()) {
            NextCopy::Copy(id) => {
                without.why = lifecycle.protect(&mut queue, &mut files, ObjectId(id));
                continue;
            }
            NextCopy::Pause(s) => Duration::from_secs_f64(s),
            NextCopy::Nothing => LOOK,
        };
        lifecycle.base.life().pause(pause);
    }
}

impl Lifecycle {
    /// Second copies for `status`; `None` where no file is at the level `replica`.
    pub fn second_copies(&self) -> Option<SecondCopiesStatus> {
        let found = *self.second_copies.lock();
        self.has_replicas().then(|| shown(found))
    }

    /// Whether some files are at the level `replica`.
    pub fn has_replicas(&self) -> bool {
        let rules = self.settings.rules.iter().map(|rule| rule.durability);
        let mut levels = rules.chain([self.settings.durability]).flatten();
        levels.any(|level| level == Durability::Replica)
    }

    /// Whether some were in use, and are to be tried again soon.
    fn promote_all(&self, lost: &[u16]) -> bool {
        let tiers = self.buffer.tiers();
        let is_lost = |file: &Arc<File>| {
            let slot = tiers.get(file.tier());
            slot.is_some_and(|slot| lost.contains(&slot.server))
        };
        let mut any_busy = false;
        for file in self.buffer.files().iter().filter(|file| is_lost(file)) {
            if self.base.is_ending() {
                break;
            }
            match self.files.promote(file) {
                Ok(Promotion::Done | Promotion::None) => {}
                Ok(Promotion::Busy) => any_busy = true,
                Err(failure) => tracing::warn!(
                    "{}: its second copy cannot take its place yet: {failure}",
                    file.path().escape_ascii()
                ),
            }
        }
        any_busy
    }

    /// Puts files into the queue that were promised a second copy and have none, or one that is
    /// older than what they are; how many have none.
    fn find_unprotected(
        &self,
        queue: &mut ReReplication,
        files: &mut HashMap<ObjectId, Arc<File>>,
    ) -> Unsafe {
        let tiers = self.buffer.tiers();
        let mut found = Unsafe::default();
        for file in self.buffer.files() {
            let tier = file.tier();
            if tiers.is_out_of_reach(tier) || !self.files.lacks_second(&file) {
                continue;
            }
            let in_memory = tiers.kind(tier) == TierKind::Dram;
            if self.files.second_of(&file).is_none() {
                found.files += 1;
                found.bytes += self.buffer.ledger().used_bytes(file.object);
            }
            queue.wants(Unprotected {
                id: file.object.0,
                bytes: self.buffer.ledger().used_bytes(file.object),
                only_copy: match in_memory {
                    true => OnlyCopy::InMemory,
                    false => OnlyCopy::OnFlash,
                },
                promised_at_s: None,
            });
            files.insert(file.object, file);
        }
        found
    }

    /// Who waits for the file, as an fsync of it does, is not held up for the rate.
    fn pause_unless_wanted(&self, file: &File, pause: Duration) {
        self.pause_unless(pause, &|| self.files.is_copy_wanted(file));
    }

    /// Pauses until something is so, or the server ends.
    pub(super) fn pause_unless(&self, pause: Duration, is_so: &dyn Fn() -> bool) {
        let end = Instant::now() + pause;
        while !self.base.is_ending() && !is_so() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.base.life().pause(left.min(WANTED_LOOK));
        }
    }

    /// Why a file could not be copied.
    fn protect(
        &self,
        queue: &mut ReReplication,
        files: &mut HashMap<ObjectId, Arc<File>>,
        object: ObjectId,
    ) -> Option<String> {
        // What cannot be done now is found again by the next look.
        queue.settled(object.0);
        let file = files.remove(&object)?;
        // It has paid for itself before; this keeps what it takes from coming at once.
        let rate = self.settings.replica_rate_bytes_per_s as f64;
        let control = CopyControl {
            stop: &|| self.base.is_ending(),
            moved: &|bytes, _| {
                let pause = Duration::from_secs_f64(bytes as f64 / rate);
                self.pause_unless_wanted(&file, pause);
            },
        };
        match self.files.replicate(&file, &control) {
            Ok(Replicated::Done | Replicated::Busy) => None,
            Ok(Replicated::NoPlace) => Some("no server has room for it".to_string()),
            Err(failure) => {
                tracing::warn!(
                    "{}: no second copy yet: {failure}",
                    file.path().escape_ascii()
                );
                Some(failure.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_look_nothing_is_known() {
        assert!(!shown(None).known);
        let found = Unsafe {
            files: 2,
            bytes: 30,
        };
        let status = shown(Some(found));
        assert!(status.known);
        assert_eq!((status.missing_files, status.missing_bytes), (2, 30));
        assert!(shown(Some(Unsafe::default())).known, "all have one");
        let words = |files| Unsafe { files, bytes: 30 }.in_words();
        let (one, two) = (words(1), words(2));
        assert!(
            one.starts_with("1 file with 30 B has no second copy: it is"),
            "{one}"
        );
        assert!(
            two.starts_with("2 files with 30 B have no second copy: they are"),
            "{two}"
        );
    }
}
