//! Seals: undrained content on flash that has stood still gets its checksum on record, so that
//! damage to it is found before it is handed out or put on the PFS. What is sealed, and how fast it
//! is read, is `policy::scrub`'s.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::File;
use forebay_policy::scrub::{OBJECT_COST_BYTES, Undrained, is_to_be_sealed};
use forebay_tiers::{CHECKSUM_STEP_BYTES, Object, Sums, TierKind, sums};
use forebay_types::{Generation, ObjectId, TierId, failpoint};
use forebay_wire::OUT_OF_REACH;

use crate::base::failure::Failure;
use crate::integrity::Integrity;
use crate::integrity::atrest::{Looked, Purpose};
use crate::integrity::unhurried::Unhurried;

/// What waits for its time is looked at at least so often.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// And at most so often.
const LOOK_MIN: Duration = Duration::from_millis(20);

/// A file whose content has stood still for long enough.
struct Due {
    file: Arc<File>,
    generation: Generation,
    tier: TierId,
    size: u64,
}

/// Why there is no seal.
enum Unsealed {
    /// Changed meanwhile, gone, or about to be: nothing is wrong.
    Superseded,
    /// It is not what its record says.
    Damaged(String),
    /// Something failed that says nothing about it.
    Failed(Failure),
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Unsealed {
    move |error| Unsealed::Failed(Failure::of_io(what, error))
}

/// Who seals.
struct Sealer<'a> {
    integrity: &'a Integrity,
    after: Duration,
    /// The generations of undrained contents, and since when they have been seen.
    seen: HashMap<ObjectId, (Generation, Instant)>,
}

impl Sealer<'_> {
    /// Looks at everything undrained; answers with what is to be sealed, in the order of the
    /// objects.
    fn due(&mut self) -> Vec<Due> {
        let now = Instant::now();
        let mut seen = HashMap::new();
        let mut due = Vec::new();
        for object in self.integrity.buffer.queue().waiting() {
            let Some(file) = self.integrity.buffer.file(object) else {
                continue;
            };
            let (residency, is_leaving, size) = {
                let state = file.lock();
                (state.residency, state.demoting, state.meta.size)
            };
            let (generation, tier) = (residency.generation, residency.tier);
            let tiers = self.integrity.buffer.tiers();
            if tiers.kind(tier) != TierKind::Ssd || tiers.is_out_of_reach(tier) {
                continue;
            }
            let before = self.seen.get(&object).filter(|(of, _)| *of == generation);
            let since = before.map_or(now, |(_, since)| *since);
            seen.insert(object, (generation, since));
            let undrained = Undrained {
                writing: residency.writing,
                has_checksum: residency.crc.is_some(),
                is_leaving,
                unchanged_s: (now - since).as_secs_f64(),
            };
            if is_to_be_sealed(&undrained, self.after.as_secs_f64()) {
                due.push(Due {
                    file,
                    generation,
                    tier,
                    size,
                });
            }
        }
        self.seen = seen;
        due.sort_unstable_by_key(|due| due.file.object);
        due
    }

    fn seal_all(&mut self, due: &[Due], reader: &Unhurried<'_>) {
        for one in due {
            reader.spend(OBJECT_COST_BYTES);
            if reader.is_over() {
                return;
            }
            let sealed = self.seal(one, reader);
            // Where it comes to nothing it is not tried again at once.
            let again = (one.generation, Instant::now());
            self.seen.insert(one.file.object, again);
            match sealed {
                Ok(()) => {
                    self.integrity
                        .at_rest
                        .sealed
                        .fetch_add(1, Ordering::Relaxed);
                }
                Err(Unsealed::Superseded) => {}
                Err(Unsealed::Damaged(problem)) => {
                    self.integrity.settle_damage(&one.file, one.tier, problem);
                }
                // `status` names the node.
                Err(Unsealed::Failed(failure)) if failure.errno() == OUT_OF_REACH => {}
                Err(Unsealed::Failed(failure)) => {
                    let reason = format!("no checksum was made of it: {failure}");
                    self.integrity
                        .base
                        .report(one.file.path(), failure.errno(), reason);
                }
            }
        }
    }

    fn seal(&self, due: &Due, reader: &Unhurried<'_>) -> Result<(), Unsealed> {
        let Due { file, size, .. } = due;
        let opened = self
            .integrity
            .buffer
            .tiers()
            .open_object(due.tier, file.object);
        let stop = || {
            reader.spend(CHECKSUM_STEP_BYTES.min(*size));
            reader.is_over_for(&|| self.stands_still(due))
        };
        // What is cut short or another one's must not be vouched for.
        match self
            .integrity
            .look(file, due.tier, &opened, Purpose::Pass, &stop)
        {
            Ok(Looked::Sound | Looked::Unread(..)) => {}
            Ok(Looked::Wrong(problem)) => return Err(Unsealed::Damaged(problem)),
            Err(_) => return Err(Unsealed::Superseded),
        }
        let object = opened.map_err(failed("its object cannot be opened"))?;
        // On stable storage first: what its write-back has lost must not be vouched for, nor what
        // a loss of power takes.
        self.integrity
            .flush(file, due.tier, &*object, false)
            .map_err(failed("flush on flash"))?;
        failpoint::hit(failpoint::Point::SealFlushed);
        let sums = match sums(&*object, *size, &stop) {
            Ok(sums) => sums,
            Err(_) if self.integrity.base.is_ending() || !self.stands_still(due) => {
                return Err(Unsealed::Superseded);
            }
            Err(error) => return Err(failed("its object cannot be read")(error)),
        };
        self.record(due, &*object, &sums)
    }

    fn record(&self, due: &Due, object: &dyn Object, sums: &Sums) -> Result<(), Unsealed> {
        let stat = object.stat().map_err(failed("its object"))?;
        let (file, generation) = (&due.file, due.generation);
        let sealed = self
            .integrity
            .ns
            .seal(file, generation, due.tier, sums)
            .map_err(|error| Unsealed::Failed(error.into()))?;
        match sealed {
            true => {
                self.integrity.at_rest.seal(file.object, generation, &stat);
                Ok(())
            }
            false => Err(Unsealed::Superseded),
        }
    }

    fn stands_still(&self, due: &Due) -> bool {
        let state = due.file.lock();
        let residency = &state.residency;
        let same = (residency.generation, residency.tier) == (due.generation, due.tier);
        same && !residency.writing && !residency.clean && !state.demoting && !state.is_unlinked()
    }
}

/// The thread that takes checksums of undrained content that stands still.
pub fn run(integrity: &Arc<Integrity>) {
    let settings = &integrity.settings.scrub;
    let after = settings.seal_after;
    let mut sealer = Sealer {
        integrity,
        after,
        seen: HashMap::new(),
    };
    let may_read = |calm| calm;
    let reader = Unhurried::new(integrity, settings.rate_max_bytes_per_s as f64, &may_read);
    while settings.enabled && !integrity.base.is_ending() {
        let due = sealer.due();
        sealer.seal_all(&due, &reader);
        integrity
            .base
            .life()
            .pause((after / 2).clamp(LOOK_MIN, LOOK_MAX));
    }
}

/// Takes the checksums of all that stands still, now.
#[cfg(test)]
pub fn seal_now(integrity: &Integrity) {
    let mut sealer = Sealer {
        integrity,
        after: Duration::ZERO,
        seen: HashMap::new(),
    };
    let due = sealer.due();
    let reader = Unhurried::new(integrity, f64::MAX, &|_| true);
    sealer.seal_all(&due, &reader);
}
