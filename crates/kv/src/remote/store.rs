//! The half of a remote store that is the same for every server.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::backend::{Applied, Backend, Page};
use super::hold::Hold;
use super::lane::Lane;
use super::mark::Mark;
use super::plan::{self, Held, Plan, Planned};
use crate::{Batch, Durability, Entry, Error, Store, batch};

/// Between attempts to reach a server again.
const PAUSE: Duration = Duration::from_millis(20);

/// A store on a server, held by this process.
///
/// A commit returns when the server has answered for its group, whatever durability was asked for:
/// `docs/decisions/0011-commits-of-remote-stores.md` says why nothing less keeps what
/// [`Durability::Buffered`] promises. So there is nothing in memory that a read would have to see.
pub(crate) struct Remote<B: Backend> {
    backend: B,
    lane: Lane,
    /// Held while a group is under way.
    head: Mutex<Head>,
    /// A server that is silent for so long has failed.
    patience: Duration,
}

struct Head {
    /// As the last group that is known to have taken effect has left it.
    mark: Mark,
    /// The highest incarnation that the server was ever told.
    incarnation: u64,
    health: Health,
    /// The group of which nobody knows whether it took effect.
    doubt: Option<Doubt>,
}

enum Health {
    Well,
    Poisoned,
    /// No call can make it well again.
    Ended(Error),
}

struct Doubt {
    plan: Plan,
    /// What its keys held before, once that was read.
    before: Option<Vec<Entry>>,
}

impl<B: Backend> Remote<B> {
    /// A store that this process has just got hold of, with the mark that it has set.
    pub(crate) fn new(backend: B, mark: Mark, patience: Duration) -> Self {
        backend.settled();
        Self {
            backend,
            lane: Lane::default(),
            head: Mutex::new(Head {
                mark,
                incarnation: mark.incarnation,
                health: Health::Well,
                doubt: None,
            }),
            patience,
        }
    }

    /// Gives a verdict for each batch. One that could not be told apart from others has theirs.
    fn run(&self, batches: &[Batch]) -> Vec<Result<(), Error>> {
        let mut head = self.head.lock();
        let begun = Instant::now();
        match self.run_group(&mut head, batches, begun) {
            Ok(takes_part) => {
                let verdict = |takes_part| match takes_part {
                    true => Ok(()),
                    false => Err(Error::Conflict),
                };
                takes_part.into_iter().map(verdict).collect()
            }
            Err(error) => {
                // Also where nothing was sent yet: an error of storage poisons, so that callers
                // need not tell the two apart.
                if matches!((&error, &head.health), (Error::Io(_), Health::Well)) {
                    head.health = Health::Poisoned;
                }
                batches.iter().map(|_| Err(error.again())).collect()
            }
        }
    }

    fn run_group(
        &self,
        head: &mut Head,
        batches: &[Batch],
        begun: Instant,
    ) -> Result<Vec<bool>, Error> {
        head.check()?;
        if let Some(Planned { plan, takes_part }) = plan::optimistic(batches)
            && self.apply(head, plan, begun)?
        {
            return Ok(takes_part);
        }
        let held = self.held(batches, begun)?;
        let Planned { plan, takes_part } = plan::judged(batches, &held);
        if !plan.changes.is_empty() && !self.apply(head, plan, begun)? {
            let error = Error::Corrupt("the server refuses a group without conditions".into());
            return Err(head.end(error));
        }
        Ok(takes_part)
    }

    /// What the keys of all expectations hold.
    fn held(&self, batches: &[Batch], begun: Instant) -> Result<Held, Error> {
        let expectations = batches.iter().flat_map(|batch| &batch.expectations);
        let mut keys: Vec<&[u8]> = expectations.map(|(key, _)| &**key).collect();
        keys.sort_unstable();
        keys.dedup();
        let values = self.until(begun, || self.backend.read(&keys))?;
        let keys = keys.into_iter().map(<[u8]>::to_vec);
        Ok(keys.zip(values).collect())
    }

    /// True if the plan took effect, false if a check of it failed. After a failure of the network
    /// it learns what became of the plan, and sends it again if it has to; so a server that comes
    /// back in time is not noticed.
    fn apply(&self, head: &mut Head, plan: Plan, begun: Instant) -> Result<bool, Error> {
        loop {
            let next = head.mark.next();
            let failed = match self.backend.apply(&head.mark, &next, &plan) {
                Ok(Applied::Done) => {
                    head.mark = next;
                    self.backend.settled();
                    return Ok(true);
                }
                Ok(Applied::Conflict) => return Ok(false),
                // Nothing of this holder can have set another mark: see `settle`.
                Ok(Applied::OtherMark) => None,
                Err(Error::Io(error)) => Some(Error::Io(error)),
                Err(error) => return Err(head.end(error)),
            };
            match self.settle(head, begun, failed) {
                Ok(number) if number == head.mark.number => {}
                Ok(number) if number == next.number => {
                    head.mark.number = number;
                    self.backend.settled();
                    return Ok(true);
                }
                Ok(number) => return Err(head.end(lost_commits(number, head.mark.number))),
                Err(Error::Io(error)) => {
                    head.health = Health::Poisoned;
                    head.doubt = Some(Doubt { plan, before: None });
                    return Err(Error::Io(error));
                }
                Err(error) => return Err(head.end(error)),
            }
        }
    }

    /// Learns how many groups have taken effect, now that nothing sent before can any more.
    fn settle(&self, head: &mut Head, begun: Instant, failed: Option<Error>) -> Result<u64, Error> {
        if let Some(error) = failed {
            if begun.elapsed() >= self.patience {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        self.until(begun, || self.fence(head))
    }

    fn fence(&self, head: &mut Head) -> Result<u64, Error> {
        // Raised for each attempt: one that failed may still reach the server.
        head.incarnation += 1;
        let number = self.backend.fence(&head.mark, head.incarnation)?;
        let number = number.ok_or(Error::Lost)?;
        head.mark.incarnation = head.incarnation;
        Ok(number)
    }

    /// Whether the store takes commits. One that has nothing to commit hears here that another has
    /// taken it.
    fn check(&self, head: &mut Head) -> Result<(), Error> {
        match &head.health {
            Health::Ended(_) => {}
            _ if self.backend.hold().is_lost() => return Err(head.end(Error::Lost)),
            _ => {}
        }
        head.check()
    }

    /// Repeats what the network has failed while the caller's time lasts.
    fn until<T>(
        &self,
        begun: Instant,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            match attempt() {
                Err(Error::Io(_)) if begun.elapsed() < self.patience => {
                    std::thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
    }

    /// Of a poisoned store: takes back the group in doubt if it took effect.
    fn undo(&self, head: &mut Head, number: u64) -> Result<(), Error> {
        let committed = head.mark.number;
        let Some(doubt) = &mut head.doubt else {
            return match number == committed {
                true => Ok(()),
                false => Err(lost_commits(number, committed)),
            };
        };
        match number.checked_sub(committed) {
            Some(0) => {}
            Some(1) => {
                let before = match &doubt.before {
                    Some(before) => before.clone(),
                    None => self.backend.before(&doubt.plan)?,
                };
                let changes = doubt.before.insert(before).clone();
                let plan = Plan {
                    checks: Vec::new(),
                    changes,
                };
                let in_doubt = Mark {
                    number,
                    ..head.mark
                };
                match self.backend.apply(&in_doubt, &in_doubt.next(), &plan)? {
                    Applied::Done => head.mark = in_doubt.next(),
                    Applied::Conflict | Applied::OtherMark => return Err(Error::Lost),
                }
            }
            // An earlier attempt to take it back has reached the server after all.
            Some(2) if doubt.before.is_some() => head.mark.number = number,
            _ => return Err(lost_commits(number, committed)),
        }
        head.doubt = None;
        Ok(())
    }
}

impl Head {
    fn check(&self) -> Result<(), Error> {
        match &self.health {
            Health::Well => Ok(()),
            Health::Poisoned => Err(Error::Poisoned),
            Health::Ended(error) => Err(error.again()),
        }
    }

    /// The store takes no commits any more, because of `error`.
    fn end(&mut self, error: Error) -> Error {
        self.health = Health::Ended(error.again());
        error
    }
}

fn lost_commits(found: u64, committed: u64) -> Error {
    Error::Corrupt(format!(
        "its server had confirmed {committed} groups of commits and now has {found}"
    ))
}

impl<B: Backend> Store for Remote<B> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        batch::check_key(key)?;
        let mut values = self.until(Instant::now(), || self.backend.read(&[key]))?;
        Ok(values.pop().flatten())
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut after = after.map(<[u8]>::to_vec);
        loop {
            let page = || self.backend.page(prefix, after.as_deref());
            let Page { pairs, next } = self.until(Instant::now(), page)?;
            for (key, value) in &pairs {
                if !visit(key, value) {
                    return Ok(());
                }
            }
            if next.is_none() {
                return Ok(());
            }
            after = next;
        }
    }

    fn commit(&self, mut batch: Batch, _durability: Durability) -> Result<(), Error> {
        batch.check_limits()?;
        if batch.is_empty() {
            return self.head.lock().check();
        }
        batch.keep_last_change_per_key();
        let run = |batches: &[Batch]| self.run(batches);
        self.lane.commit(batch, self.backend.limits(), &run)
    }

    fn sync(&self) -> Result<(), Error> {
        // What has returned is as safe as the server makes it.
        self.check(&mut self.head.lock())
    }

    fn mend(&self) -> Result<bool, Error> {
        let mut head = self.head.lock();
        match self.check(&mut head) {
            Ok(()) => return Ok(false),
            Err(Error::Poisoned) => {}
            Err(error) => return Err(error),
        }
        let mended = self.fence(&mut head);
        match mended.and_then(|number| self.undo(&mut head, number)) {
            Ok(()) => {
                self.backend.settled();
                head.health = Health::Well;
                Ok(true)
            }
            Err(error @ (Error::Lost | Error::Corrupt(_))) => Err(head.end(error)),
            Err(error) => Err(error),
        }
    }

    fn hold(&self) -> Option<Hold> {
        Some(self.backend.hold().clone())
    }

    fn release(&self) {
        self.backend.release();
    }
}

impl<B: Backend> Drop for Remote<B> {
    fn drop(&mut self) {
        self.backend.release();
    }
}
