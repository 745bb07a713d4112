//! Which clients were alive when the server ended: only those may have again what they had.
//!
//! Invariants:
//!
//! 1. A client whose session has ended is not on record when anybody else is let near what it had.
//! 2. Nobody may have anything again after the node has started anew, or on another one, where the
//!    server had tiers of its own: what was not flushed may be lost, and no fsync would tell. Where
//!    it had none, this goes for what it wrote to the PFS itself (`Sessions::reopen_only`).
//! 3. Nor after the time of grace of the first start that did not find it alive: who is silent for
//!    so long is fenced, restart or not.
//! 4. While somebody may still come who had locks, nobody else gets one.
//! 5. Before each of them has dropped its pages of before, or has lost its lease by its own clock,
//!    nobody changes what a file holds.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::patience::CLIENTS_RETURN;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// On record for a client that is alive; else the time until which it may come, seconds of the
/// boot-time clock.
const ALIVE: u64 = u64::MAX;
/// Added to that time: the client may have pages of before.
const UNSETTLED: u64 = 1 << 63;
/// Beside it, an entry of its own: the client was alive on another node, and has not had again yet
/// what it had there.
const MOVED: u64 = 1 << 62;

/// Before the boot id of a server that has no tiers of its own.
const NO_TIERS: &str = "no tiers ";

/// Puts the record where the next run finds it.
pub type Put = Box<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct State {
    alive: HashSet<u64>,
    /// Of earlier runs, with the time until which they may come.
    before: HashMap<u64, u64>,
    /// The server stops in order: who is alive now is alive.
    stopping: bool,
    /// Who may have pages that this run knows nothing of.
    unsettled: HashSet<u64>,
    /// Who was alive on another node, or in another start of this one, and has not come back since.
    moved: HashSet<u64>,
    /// Nobody has such pages after that.
    pages_until: Option<Instant>,
}

/// Which start of a server it is.
pub struct Start {
    /// The node's own; empty where the kernel does not say.
    pub boot: String,
    /// The node has memory or flash of its own: what was not flushed goes with it.
    pub has_tiers: bool,
}

impl Start {
    /// With which the record of this start begins. No boot id has a blank.
    fn mark(&self) -> String {
        match self.has_tiers {
            true => self.boot.clone(),
            false => format!("{NO_TIERS}{}", self.boot),
        }
    }
}

/// See the module.
pub struct Lives {
    start: Start,
    state: Mutex<State>,
    /// Somebody may be unsettled.
    unsettled: AtomicBool,
    lease_ms: AtomicU64,
    put: Put,
}

fn now_s() -> u64 {
    clock_gettime(ClockId::Boottime).tv_sec.unsigned_abs()
}

impl Lives {
    /// Reads what the last run has left.
    pub fn open(record: Option<&[u8]>, start: Start, put: Put) -> Lives {
        let now = now_s();
        // Pages outlive a start of the server's node, too, and the time of grace.
        let unsettled: HashSet<u64> = record.map(unsettled_in).unwrap_or_default();
        let mut before = record
            .map(|record| read(record, &start))
            .unwrap_or_default();
        for until in before.values_mut() {
            if *until == ALIVE {
                *until = now + CLIENTS_RETURN.as_secs();
            }
        }
        before.retain(|_, until| *until > now);
        let mut moved: HashSet<u64> = record.map(moved_in).unwrap_or_default();
        moved.retain(|life| before.contains_key(life));
        if !record.is_some_and(|record| is_of(record, &start)) {
            moved.extend(before.keys());
        }
        let lives = Lives {
            start,
            unsettled: AtomicBool::new(!unsettled.is_empty()),
            state: Mutex::new(State {
                unsettled,
                before,
                moved,
                ..State::default()
            }),
            lease_ms: AtomicU64::new(0),
            put,
        };
        // Of whoever does not come to this run, the next one knows how long that has been.
        lives.record(&lives.state.lock());
        lives
    }

    /// Nobody, and nothing is kept.
    #[cfg(test)]
    pub fn none() -> Lives {
        let start = Start {
            boot: String::new(),
            has_tiers: true,
        };
        Lives::open(None, start, Box::new(|_| Ok(())))
    }

    /// A client comes; 0 for one that wants nothing again.
    pub fn begin(&self, life: u64) {
        let mut state = self.state.lock();
        if life != 0 && state.alive.insert(life) {
            self.record(&state);
        }
    }

    /// Clients have a lease of this length, which their pages do not outlive.
    pub fn lease(&self, lease: Duration) {
        self.lease_ms
            .store(lease.as_millis() as u64, Ordering::Relaxed);
        self.state.lock().pages_until = Some(Instant::now() + lease);
    }

    /// How long that is; zero before it is known.
    pub fn lease_length(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Relaxed))
    }

    /// Who lives this life has lived that one before.
    pub fn follows(&self, life: u64, before: u64) {
        let mut state = self.state.lock();
        if state.moved.contains(&before) && state.moved.insert(life) {
            self.record(&state);
        }
        if state.unsettled.remove(&before) {
            state.unsettled.insert(life);
        }
    }

    /// Who lives this life has dropped its pages of before.
    pub fn settle(&self, life: u64) {
        let mut state = self.state.lock();
        if state.unsettled.remove(&life) {
            self.record(&state);
        }
    }

    /// Whether nobody has pages of before, but who lives this life, if anybody.
    pub fn are_settled(&self, but: u64) -> bool {
        if !self.unsettled.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.state.lock();
        if state
            .pages_until
            .is_none_or(|until| until <= Instant::now())
        {
            state.unsettled.clear();
            self.record(&state);
        }
        self.unsettled
            .store(!state.unsettled.is_empty(), Ordering::Release);
        state.unsettled.iter().all(|life| *life == but)
    }

    /// A client has gone, or is fenced.
    pub fn end(&self, life: u64) {
        let mut state = self.state.lock();
        if !state.stopping && state.alive.remove(&life) {
            state.moved.remove(&life);
            self.record(&state);
        }
    }

    /// The server stops in order.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
    }

    /// Whether the server stops in order.
    pub fn are_kept(&self) -> bool {
        self.state.lock().stopping
    }

    /// Whether what a client had in this life may be had again.
    pub fn may_reclaim(&self, life: u64) -> bool {
        let state = self.state.lock();
        state
            .before
            .get(&life)
            .is_some_and(|until| *until > now_s())
    }

    /// Whether what a client had in this life it had on another node, or in another start of this
    /// one, also where further runs have come between.
    pub fn has_moved(&self, life: u64) -> bool {
        self.state.lock().moved.contains(&life)
    }

    /// A client has again what it had before, and lives the other life now.
    pub fn reclaimed(&self, before: u64, life: u64) {
        let mut state = self.state.lock();
        let had_moved = state.moved.remove(&life) | state.moved.remove(&before);
        if state.before.remove(&before).is_some() || had_moved {
            self.record(&state);
        }
    }

    /// Who may come, and for how long from now on.
    pub fn awaited(&self) -> Vec<(u64, Duration)> {
        let (state, now) = (self.state.lock(), now_s());
        let left = |until: u64| Duration::from_secs(until.saturating_sub(now));
        let before = state.before.iter();
        before.map(|(life, until)| (*life, left(*until))).collect()
    }

    /// Whether somebody may still come who had something before this start.
    pub fn are_awaited(&self) -> bool {
        let mut state = self.state.lock();
        if state.before.is_empty() {
            return false;
        }
        let now = now_s();
        state.before.retain(|_, until| *until > now);
        !state.before.is_empty()
    }

    fn record(&self, state: &State) {
        // Where the kernel does not name its start, nobody knows what may be lost.
        if self.start.boot.is_empty() {
            return;
        }
        let mut record = [self.start.mark().as_bytes(), b"\n"].concat();
        let moved = state.moved.iter().map(|life| (*life, MOVED));
        let alive = state.alive.iter().map(|life| (*life, ALIVE));
        let flag = |life: &u64| u64::from(state.unsettled.contains(life)) * UNSETTLED;
        let before = state.before.iter();
        let before = before.map(|(life, until)| (*life, until | flag(life)));
        let is_other =
            |life: &&u64| !state.before.contains_key(life) && !state.alive.contains(life);
        let others = state.unsettled.iter().filter(is_other);
        let others = others.map(|life| (*life, UNSETTLED));
        for (life, until) in moved.chain(alive).chain(before).chain(others) {
            record.extend(life.to_le_bytes());
            record.extend(until.to_le_bytes());
        }
        // One who has gone must not stay on record: then rather nobody.
        if let Err(error) = (self.put)(&record).or_else(|_| (self.put)(b"")) {
            tracing::error!("who is connected cannot be recorded: {error}");
        }
    }
}

/// Who may come, and until when. After a start of the node nobody may, unless neither it nor the
/// node of before had tiers: then those who were alive. Until when others might have come, that
/// node's clock would have to say.
fn read(record: &[u8], start: &Start) -> HashMap<u64, u64> {
    let is_known = is_of(record, start);
    let lost_nothing = !start.has_tiers && record.starts_with(NO_TIERS.as_bytes());
    let entries = entries(record).filter(|(_, until)| *until != MOVED);
    let known = entries.filter(|(_, until)| is_known || (lost_nothing && *until == ALIVE));
    let until = |until| match until {
        ALIVE => ALIVE,
        until => until & !UNSETTLED,
    };
    known.map(|(life, at)| (life, until(at))).collect()
}

/// Whether a record was made in this start of the node.
fn is_of(record: &[u8], start: &Start) -> bool {
    let mark = [start.mark().as_bytes(), b"\n"].concat();
    !start.boot.is_empty() && record.starts_with(&mark)
}

/// Who may have pages, of whatever start.
fn unsettled_in(record: &[u8]) -> HashSet<u64> {
    let unsettled = entries(record).filter(|(_, until)| until & UNSETTLED != 0);
    unsettled.map(|(life, _)| life).collect()
}

/// Who has not come back since another node.
fn moved_in(record: &[u8]) -> HashSet<u64> {
    let moved = entries(record).filter(|(_, until)| *until == MOVED);
    moved.map(|(life, _)| life).collect()
}

fn entries(record: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut parts = record.splitn(2, |byte| *byte == b'\n').skip(1);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let lives = parts.next().unwrap_or_default().chunks_exact(16);
    lives.map(move |life| (number(&life[..8]), number(&life[8..])))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Kept = Arc<Mutex<Vec<u8>>>;

    fn run(kept: &Kept, boot: &str) -> Lives {
        let record = kept.lock().clone();
        let kept = kept.clone();
        let put = move |record: &[u8]| {
            *kept.lock() = record.to_vec();
            Ok(())
        };
        Lives::open(Some(&record), start(boot), Box::new(put))
    }

    fn start(boot: &str) -> Start {
        Start {
            boot: boot.into(),
            has_tiers: !boot.starts_with("bare"),
        }
    }

    #[test]
    fn without_tiers_who_was_alive_may_reclaim_on_another_node() {
        let kept = Kept::default();
        let first = run(&kept, "bare-1");
        first.begin(1);
        first.begin(2);
        let other = run(&kept, "bare-2");
        assert!(other.may_reclaim(1) && other.may_reclaim(2));
        other.reclaimed(1, 0);
        other.begin(3);
        // Who has not come back there has no time on this node's clock.
        let back = run(&kept, "bare-1");
        let may = [1, 2, 3].map(|life| back.may_reclaim(life));
        assert_eq!(may, [false, false, true]);
        back.reclaimed(3, 0);
        back.begin(4);
        assert!(!run(&kept, "boot-1").may_reclaim(4), "now it has tiers");
        let kept = Kept::default();
        run(&kept, "boot-1").begin(5);
        assert!(!run(&kept, "bare-2").may_reclaim(5), "it had tiers");
    }

    #[test]
    fn who_was_alive_on_another_node_is_known_until_it_is_back_over_further_starts() {
        let kept = Kept::default();
        let first = run(&kept, "bare-1");
        first.begin(1);
        first.begin(2);
        let second = run(&kept, "bare-2");
        assert!(second.has_moved(1) && second.has_moved(2));
        second.begin(11);
        second.follows(11, 1);
        assert!(second.has_moved(11), "it has not all of it yet");
        second.reclaimed(1, 11);
        second.begin(3);
        let third = run(&kept, "bare-2");
        let moved = [1, 2, 3, 11].map(|life| third.has_moved(life));
        assert_eq!(moved, [false, true, false, false]);
        assert!(third.may_reclaim(2) && third.may_reclaim(11));
        third.begin(12);
        third.follows(12, 2);
        let fourth = run(&kept, "bare-2");
        assert!(fourth.has_moved(2) && fourth.has_moved(12));
        fourth.begin(13);
        fourth.follows(13, 12);
        fourth.reclaimed(12, 13);
        assert!(!run(&kept, "bare-2").has_moved(13));
    }

    #[test]
    fn who_was_alive_when_the_server_ended_may_reclaim_and_nobody_else() {
        let kept = Kept::default();
        let first = run(&kept, "boot-1");
        assert!(!first.may_reclaim(1) && !first.are_awaited());
        for life in [1, 2, 3] {
            first.begin(life);
        }
        first.end(2);
        let second = run(&kept, "boot-1");
        let may = [1, 2, 3, 4].map(|life| second.may_reclaim(life));
        assert_eq!(may, [true, false, true, false]);
        assert!(second.are_awaited());
        second.begin(5);
        second.reclaimed(1, 0);
        second.stop();
        second.end(5);
        // The third one has not come to the second run, and may come to the next one.
        let third = run(&kept, "boot-1");
        let may = [1, 3, 5].map(|life| third.may_reclaim(life));
        assert_eq!(may, [false, true, true]);
        third.reclaimed(3, 0);
        third.reclaimed(5, 0);
        assert!(!third.are_awaited());
        third.begin(6);
        let anew = run(&kept, "boot-2");
        assert!(!anew.may_reclaim(6) && !anew.are_awaited());
    }

    #[test]
    fn who_does_not_come_in_time_does_not_come_to_the_next_run_either() {
        let kept = Kept::default();
        run(&kept, "boot").begin(1);
        run(&kept, "boot");
        let until = read(&kept.lock(), &start("boot"))[&1];
        assert!(
            until <= now_s() + CLIENTS_RETURN.as_secs(),
            "it is on record until then"
        );
        let late = [1u64.to_le_bytes(), (now_s() - 1).to_le_bytes()].concat();
        *kept.lock() = [b"boot\n".as_slice(), &late].concat();
        let lives = run(&kept, "boot");
        assert!(!lives.may_reclaim(1) && !lives.are_awaited());
    }

    #[test]
    fn who_changes_content_waits_for_pages_of_before_until_the_lease_is_over() {
        let kept = Kept::default();
        let first = run(&kept, "boot");
        first.begin(1);
        first.begin(2);
        // Nobody has a lease, or nobody was there.
        let alone = Kept::new(Mutex::new(kept.lock().clone()));
        assert!(run(&alone, "boot").are_settled(0));
        first.lease(Duration::from_secs(3600));
        assert!(first.are_settled(0));
        let second = run(&kept, "boot");
        second.lease(Duration::from_secs(3600));
        second.begin(3);
        second.follows(3, 1);
        // It has begun twice before it could drop them.
        second.end(3);
        second.follows(4, 3);
        second.settle(1);
        second.settle(3);
        assert_eq!(second.state.lock().unsettled, HashSet::from([2, 4]));
        assert!(!second.are_settled(4) && !second.are_settled(0));
        second.settle(2);
        // Who may have pages waits for others only.
        assert!(second.are_settled(4) && !second.are_settled(0));
        second.settle(4);
        assert!(second.are_settled(0) && !second.unsettled.load(Ordering::Acquire));
        // Pages outlive the server's node.
        second.begin(5);
        let third = run(&kept, "boot-2");
        third.lease(Duration::from_secs(3600));
        assert!(!third.may_reclaim(4) && !third.are_settled(0));
        // Who has not come within the lease is not waited for again.
        third.lease(Duration::ZERO);
        assert!(third.are_settled(0));
        let fourth = run(&kept, "boot-2");
        fourth.lease(Duration::from_secs(3600));
        assert!(fourth.are_settled(0));
    }

    #[test]
    fn a_record_that_cannot_be_kept_is_of_nobody() {
        let kept = Kept::default();
        run(&kept, "boot").begin(1);
        let held = kept.clone();
        let put = move |record: &[u8]| match record.is_empty() {
            true => {
                held.lock().clear();
                Ok(())
            }
            false => Err("full".to_string()),
        };
        Lives::open(None, start("boot"), Box::new(put)).begin(2);
        assert!(!run(&kept, "boot").may_reclaim(1));
        let unknown = run(&kept, "");
        unknown.begin(3);
        assert!(!run(&kept, "").may_reclaim(3));
    }
}
