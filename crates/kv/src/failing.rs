//! A store that fails on demand, for tests of what happens when storage does.

use parking_lot::Mutex;

use crate::{Batch, Durability, Entry, Error, Store};

/// Which calls a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Store::get`].
    Get,
    /// [`Store::scan`], before it visits anything.
    Scan,
    /// [`Store::commit`], of either durability.
    Commit,
    /// [`Store::sync`]; not the flush within a synced commit.
    Sync,
    /// [`Store::mend`] of a poisoned store.
    Mend,
}

/// What a failed commit leaves behind. A real one may leave either, and its caller cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The batch is not in the store.
    Lost,
    /// The batch is in the store although its commit failed.
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    call: Call,
    /// Counts down with each such call; the fault fires when it reaches zero.
    calls_left: u64,
    errno: i32,
    outcome: Outcome,
}

/// 1. A fault is removed when it fires, so `fired` and what is left of `faults` sum up to those
///    armed.
#[derive(Debug, Default)]
struct State {
    faults: Vec<Fault>,
    fired: u64,
    poisoned: bool,
    /// What the keys of failed commits that were kept held before.
    before: Vec<Entry>,
}

/// Passes every call to the store inside, except those it was told to fail.
///
/// Like a real store it is poisoned by a failed commit or sync. What "storage" then holds is in
/// [`into_inner`](Failing::into_inner), which stands for opening the store again.
#[derive(Debug)]
pub struct Failing<S> {
    inner: S,
    state: Mutex<State>,
}

impl<S: Store> Failing<S> {
    /// Fails nothing yet.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            state: Mutex::default(),
        }
    }

    /// Fails the `nth` call from now (1 is the next) with `errno`; a failed commit is lost.
    pub fn fail_nth(&self, call: Call, nth: u64, errno: i32) {
        self.arm(Fault {
            call,
            calls_left: nth,
            errno,
            outcome: Outcome::Lost,
        });
    }

    /// Fails the `nth` commit from now (1 is the next) with `errno`, and leaves `outcome` behind.
    pub fn fail_nth_commit(&self, nth: u64, errno: i32, outcome: Outcome) {
        self.arm(Fault {
            call: Call::Commit,
            calls_left: nth,
            errno,
            outcome,
        });
    }

    /// How many faults have fired. A test that armed some asserts this, or it may have tested
    /// nothing.
    pub fn fired(&self) -> u64 {
        self.state.lock().fired
    }

    /// The store inside, with what reached it.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn arm(&self, fault: Fault) {
        assert!(fault.calls_left > 0, "the first call from now is number 1");
        self.state.lock().faults.push(fault);
    }

    /// Counts a call, and takes out the fault that fires on it.
    fn count(&self, call: Call) -> Result<Option<Fault>, Error> {
        let mut state = self.state.lock();
        let writes = matches!(call, Call::Commit | Call::Sync);
        if writes && state.poisoned {
            return Err(Error::Poisoned);
        }
        for fault in state.faults.iter_mut().filter(|fault| fault.call == call) {
            fault.calls_left = fault.calls_left.saturating_sub(1);
        }
        let Some(due) = state
            .faults
            .iter()
            .position(|fault| fault.call == call && fault.calls_left == 0)
        else {
            return Ok(None);
        };
        state.fired += 1;
        state.poisoned |= writes;
        Ok(Some(state.faults.remove(due)))
    }

    fn fail_if_due(&self, call: Call) -> Result<(), Error> {
        match self.count(call)? {
            Some(fault) => Err(fault.error()),
            None => Ok(()),
        }
    }
}

impl Fault {
    fn error(&self) -> Error {
        Error::Io(std::io::Error::from_raw_os_error(self.errno))
    }
}

impl<S: Store> Store for Failing<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.fail_if_due(Call::Get)?;
        self.inner.get(key)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.fail_if_due(Call::Scan)?;
        self.inner.scan(prefix, after, visit)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        let Some(fault) = self.count(Call::Commit)? else {
            return self.inner.commit(batch, durability);
        };
        if fault.outcome == Outcome::Kept {
            for (key, _) in &batch.ops {
                let held = self.inner.get(key)?;
                self.state.lock().before.push((key.clone(), held));
            }
            self.inner.commit(batch, durability)?;
        }
        Err(fault.error())
    }

    fn sync(&self) -> Result<(), Error> {
        self.fail_if_due(Call::Sync)?;
        self.inner.sync()
    }

    fn hold(&self) -> Option<crate::Hold> {
        self.inner.hold()
    }

    fn release(&self) {
        self.inner.release();
    }

    fn mend(&self) -> Result<bool, Error> {
        if !self.state.lock().poisoned {
            return Ok(false);
        }
        self.fail_if_due(Call::Mend)?;
        let mut batch = Batch::new();
        batch.ops = std::mem::take(&mut self.state.lock().before);
        self.inner.commit(batch, Durability::Synced)?;
        self.state.lock().poisoned = false;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn put(store: &impl Store, key: &str) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.put(key, "value");
        store.commit(batch, Durability::Buffered)
    }

    #[test]
    fn the_nth_commit_fails_and_poisons() -> Result<(), Error> {
        for outcome in [Outcome::Lost, Outcome::Kept] {
            let store = Failing::new(Memory::new());
            store.fail_nth_commit(2, libc::ENOSPC, outcome);
            put(&store, "first")?;
            assert_eq!(
                put(&store, "second").map_err(|error| error.errno()),
                Err(libc::ENOSPC)
            );
            assert!(matches!(put(&store, "third"), Err(Error::Poisoned)));
            assert!(matches!(store.sync(), Err(Error::Poisoned)));
            assert!(store.get(b"first")?.is_some(), "reads go on");
            assert_eq!(store.fired(), 1);
            let reopened = store.into_inner();
            assert_eq!(reopened.get(b"second")?.is_some(), outcome == Outcome::Kept);
            assert!(reopened.get(b"third")?.is_none());
        }
        Ok(())
    }

    #[test]
    fn mending_takes_back_what_failed() -> Result<(), Error> {
        for outcome in [Outcome::Lost, Outcome::Kept] {
            let store = Failing::new(Memory::new());
            put(&store, "first")?;
            assert!(!store.mend()?, "nothing to mend");
            store.fail_nth_commit(1, libc::ENOSPC, outcome);
            put(&store, "second").expect_err("armed");
            store.fail_nth(Call::Mend, 1, libc::ENOSPC);
            store.mend().expect_err("armed");
            assert!(matches!(put(&store, "second"), Err(Error::Poisoned)));
            assert!(store.mend()?);
            assert!(store.get(b"first")?.is_some() && store.get(b"second")?.is_none());
            put(&store, "second")?;
            assert_eq!(store.fired(), 2);
        }
        Ok(())
    }

    #[test]
    fn a_failed_read_is_over_with_the_read() -> Result<(), Error> {
        let store = Failing::new(Memory::new());
        store.fail_nth(Call::Get, 1, libc::EIO);
        store.fail_nth(Call::Scan, 1, libc::EIO);
        assert_eq!(
            store.get(b"key").map_err(|error| error.errno()),
            Err(libc::EIO)
        );
        assert!(store.scan(b"", None, &mut |_, _| true).is_err());
        put(&store, "key")?;
        assert!(store.get(b"key")?.is_some());
        assert_eq!(store.fired(), 2);
        Ok(())
    }

    #[test]
    fn a_failed_sync_poisons() -> Result<(), Error> {
        let store = Failing::new(Memory::new());
        store.fail_nth(Call::Sync, 2, libc::EIO);
        store.sync()?;
        assert!(matches!(store.sync(), Err(Error::Io(_))));
        assert!(matches!(put(&store, "key"), Err(Error::Poisoned)));
        Ok(())
    }
}
