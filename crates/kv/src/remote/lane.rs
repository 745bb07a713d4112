//! Group commit: callers that arrive while a group is under way make up the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::Thread;

use parking_lot::Mutex;

use super::backend::Limits;
use super::plan::bytes_of;
use crate::{Batch, Error};

type Verdict = Result<(), Error>;

/// The callers themselves send groups, one after another: a caller that is alone pays for one round
/// trip and no thread.
///
/// 1. At most one caller leads, and only it runs a group.
/// 2. Batches take effect in the order in which they were queued.
/// 3. While there are batches in the queue, somebody leads or the first of them was woken.
#[derive(Default)]
pub(crate) struct Lane {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Batch, Arc<Seat>)>,
    has_leader: bool,
}

/// Where a caller waits for what became of its batch.
struct Seat {
    verdict: Mutex<Option<Verdict>>,
    thread: Thread,
}

impl Lane {
    /// Runs the batch in some group; `run` gives a verdict for each batch of a group, in order.
    pub(crate) fn commit(
        &self,
        batch: Batch,
        limits: Limits,
        run: &dyn Fn(&[Batch]) -> Vec<Verdict>,
    ) -> Verdict {
        let seat = Arc::new(Seat {
            verdict: Mutex::default(),
            thread: std::thread::current(),
        });
        self.state.lock().queue.push_back((batch, seat.clone()));
        loop {
            if let Some(verdict) = seat.verdict.lock().take() {
                return verdict;
            }
            let group = self.lead(limits);
            if group.is_empty() {
                std::thread::park();
                continue;
            }
            let (batches, seats): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            // Whatever happens to the caller that leads, nobody waits for ever.
            let mut end = EndOfGroup {
                lane: self,
                seats,
                verdicts: Vec::new(),
            };
            end.verdicts = run(&batches);
        }
    }

    /// The next group, if the caller is to lead it; else nothing.
    fn lead(&self, limits: Limits) -> Vec<(Batch, Arc<Seat>)> {
        let mut state = self.state.lock();
        let mut group = Vec::new();
        if state.has_leader {
            return group;
        }
        let (mut entries, mut bytes) = (0, 0);
        while let Some((batch, _)) = state.queue.front() {
            entries += batch.ops.len().max(batch.expectations.len());
            bytes += batch.expectations.iter().map(bytes_of).sum::<usize>();
            bytes += batch.ops.iter().map(bytes_of).sum::<usize>();
            if !group.is_empty() && (entries > limits.entries || bytes > limits.bytes) {
                break;
            }
            group.extend(state.queue.pop_front());
        }
        state.has_leader = !group.is_empty();
        group
    }
}

struct EndOfGroup<'a> {
    lane: &'a Lane,
    seats: Vec<Arc<Seat>>,
    verdicts: Vec<Verdict>,
}

impl Drop for EndOfGroup<'_> {
    fn drop(&mut self) {
        let next = {
            let mut state = self.lane.state.lock();
            state.has_leader = false;
            state.queue.front().map(|(_, seat)| seat.thread.clone())
        };
        // First, so that the next group is on its way while these callers wake up.
        if let Some(thread) = next {
            thread.unpark();
        }
        let mut verdicts = std::mem::take(&mut self.verdicts).into_iter();
        for seat in &self.seats {
            let verdict = verdicts.next().unwrap_or(Err(Error::Poisoned));
            *seat.verdict.lock() = Some(verdict);
            seat.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits {
        entries: 3,
        bytes: 1000,
    };

    fn batch(entries: usize) -> Batch {
        let mut batch = Batch::new();
        for number in 0..entries {
            batch.put(vec![number as u8], "v");
        }
        batch
    }

    #[test]
    fn callers_that_wait_share_a_group_within_its_limits() {
        const CALLERS: usize = 12;
        let (lane, groups) = (Lane::default(), AtomicUsize::new(0));
        let run = |batches: &[Batch]| {
            groups.fetch_add(1, Ordering::SeqCst);
            let entries: usize = batches.iter().map(|batch| batch.ops.len()).sum();
            assert!(entries <= 3 || batches.len() == 1);
            std::thread::sleep(Duration::from_millis(20));
            batches.iter().map(|_| Ok(())).collect()
        };
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (lane, run) = (&lane, &run);
                let entries = if caller == 5 { 9 } else { 1 };
                scope.spawn(move || assert!(lane.commit(batch(entries), LIMITS, run).is_ok()));
            }
        });
        assert!(groups.load(Ordering::SeqCst) < CALLERS);
    }

    #[test]
    fn each_caller_gets_the_verdict_of_its_own_batch() {
        let lane = Lane::default();
        let run = |batches: &[Batch]| {
            let refused = |batch: &Batch| match batch.ops.len() {
                2 => Err(Error::Conflict),
                _ => Ok(()),
            };
            batches.iter().map(refused).collect()
        };
        std::thread::scope(|scope| {
            for caller in 0..8 {
                let (lane, run) = (&lane, &run);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let verdict = lane.commit(batch(1 + caller % 2), LIMITS, run);
                        assert_eq!(verdict.is_err(), caller % 2 == 1);
                    }
                });
            }
        });
    }
}
