//! Which files wait for their demotion. When it is whose turn, the drain decides.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use forebay_types::ObjectId;
use parking_lot::{Condvar, Mutex};

/// Longest wait between two tries of a demotion that fails.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Blocks of a copy from this size on count for the progress of those who wait: smaller files are
/// done at once.
const SHOWN_BYTES: u64 = 128 << 10;
/// The rate that `status` shows is over this time.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// After a writer asked for space, demotion runs for this long whatever the trigger says.
const HURRY_FOR: Duration = Duration::from_millis(500);
/// The same where files are to leave: until the next look at them.
const NUDGE_FOR: Duration = Duration::from_millis(1500);
/// So many files are looked at for one that can be demoted.
const LOOKED_AT_MAX: usize = 64;

struct Retry {
    at: Instant,
    after: Duration,
}

#[derive(Default)]
struct Inner {
    /// Dirty files that nobody writes.
    waiting: HashSet<ObjectId>,
    /// To be demoted at once, for somebody waits for them, and handed out to nobody yet.
    urgent: VecDeque<ObjectId>,
    /// The same, and those that were handed out, but are not on their way.
    urged: HashSet<ObjectId>,
    retries: HashMap<ObjectId, Retry>,
    hurry_until: Option<Instant>,
    nudged_until: Option<Instant>,
    drain_all: bool,
    in_flight: usize,
    /// Which these are.
    under_way: HashSet<ObjectId>,
    /// Of those, somebody waits for.
    urged_in_flight: HashSet<ObjectId>,
    recent: VecDeque<(Instant, u64)>,
    last_moved: Option<Instant>,
    /// When a file last arrived.
    arrived: Option<Instant>,
    /// How far large files under way have come.
    copied: HashMap<ObjectId, u64>,
    /// Counts what wakes a demoter that has nothing to do.
    asked: u64,
}

impl Inner {
    /// Those that wait and may be tried now.
    fn ready(&self) -> impl Iterator<Item = &ObjectId> {
        let now = Instant::now();
        self.waiting
            .iter()
            .filter(move |object| self.is_ready(object, now))
    }

    fn is_ready(&self, object: &ObjectId, now: Instant) -> bool {
        self.retries.get(object).is_none_or(|retry| retry.at <= now)
    }

    fn is_starved(&self) -> bool {
        self.hurry_until.is_some_and(|until| Instant::now() < until)
    }
}

/// How a demotion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Of this object's file.
    pub object: ObjectId,
    /// It waits for another.
    pub again: bool,
    /// Because of an error: it waits the longer the more often.
    pub failed: bool,
}

impl Finished {
    /// Nothing is left to do.
    pub fn done(object: ObjectId) -> Finished {
        Finished {
            object,
            again: false,
            failed: false,
        }
    }

    /// To be tried again, later.
    pub fn failed(object: ObjectId) -> Finished {
        Finished {
            object,
            again: true,
            failed: true,
        }
    }
}

/// What bounds one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most files.
    pub files: usize,
    /// The batch ends with the file that reaches this.
    pub bytes: u64,
}

/// What is to be drained, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Somebody waits for the demotion of a file.
    pub is_urgent: bool,
    /// Files wait that nobody waits for.
    pub has_waiting: bool,
    /// A writer needs space, files are to leave, or everything is to be drained: the trigger does
    /// not count.
    pub is_ordered: bool,
}

/// The queue of demotions.
pub struct DrainQueue {
    inner: Mutex<Inner>,
    wake: Condvar,
    settled: Condvar,
    retry_after: Duration,
}

impl DrainQueue {
    /// An empty queue. A demotion that fails is tried again after `retry_after`, then after longer
    /// and longer pauses.
    pub fn new(retry_after: Duration) -> DrainQueue {
        DrainQueue {
            inner: Mutex::default(),
            wake: Condvar::new(),
            settled: Condvar::new(),
            retry_after,
        }
    }

    /// A file is dirty and nobody writes it.
    pub fn add(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        let was_empty = inner.waiting.is_empty();
        inner.waiting.insert(object);
        inner.retries.remove(&object);
        if was_empty {
            // Who has nothing to do sleeps longer.
            inner.asked += 1;
            drop(inner);
            self.wake.notify_all();
        }
    }

    /// A file is to be demoted now.
    pub fn add_urgent(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        inner.retries.remove(&object);
        if inner.urged.insert(object) {
            inner.urgent.push_back(object);
        }
        inner.asked += 1;
        drop(inner);
        self.wake.notify_all();
    }

    /// The same for who finds again and again that it is to leave: one whose last try has failed
    /// keeps to its pause.
    pub fn urge(&self, object: ObjectId) {
        let is_ready = {
            let inner = self.inner.lock();
            inner.is_ready(&object, Instant::now())
        };
        if is_ready {
            self.add_urgent(object);
        }
    }

    /// A file that somebody waits for has been put back: it is its turn again.
    pub fn urge_again(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        let ready = inner
            .retries
            .get(&object)
            .is_none_or(|r| r.at <= Instant::now());
        if ready && inner.waiting.contains(&object) && inner.urged.insert(object) {
            inner.urgent.push_back(object);
            inner.asked += 1;
            drop(inner);
            self.wake.notify_all();
        }
    }

    /// Whether a file waits for its demotion, or one that was asked for is under way.
    pub fn knows(&self, object: ObjectId) -> bool {
        let inner = self.inner.lock();
        inner.waiting.contains(&object)
            || inner.urged.contains(&object)
            || inner.urged_in_flight.contains(&object)
    }

    /// A file needs no demotion any more.
    pub fn forget(&self, object: ObjectId) {
        let mut inner = self.inner.lock();
        inner.waiting.remove(&object);
        inner.retries.remove(&object);
    }

    /// A writer needs space.
    pub fn hurry(&self) {
        let mut inner = self.inner.lock();
        inner.hurry_until = Some(Instant::now() + HURRY_FOR);
        inner.asked += 1;
        drop(inner);
        self.wake.notify_all();
    }

    /// Files are to leave the burst buffer: they are demoted for a while whatever the trigger says,
    /// but no faster than else.
    pub fn nudge(&self) {
        let mut inner = self.inner.lock();
        inner.nudged_until = Some(Instant::now() + NUDGE_FOR);
        inner.asked += 1;
        drop(inner);
        self.wake.notify_all();
    }

    /// From now on everything is demoted as fast as it goes.
    pub fn drain_all(&self, on: bool) {
        let mut inner = self.inner.lock();
        inner.drain_all = on;
        inner.retries.clear();
        inner.asked += 1;
        drop(inner);
        self.wake.notify_all();
    }

    /// A writer needs space, or did a moment ago.
    pub fn is_starved(&self) -> bool {
        self.inner.lock().is_starved()
    }

    /// Somebody waits for a demotion: its limits do not count then.
    pub fn is_pressed(&self) -> bool {
        let inner = self.inner.lock();
        inner.drain_all
            || inner.is_starved()
            || !inner.urged.is_empty()
            || !inner.urged_in_flight.is_empty()
    }

    /// Whether files wait or are on their way.
    pub fn has_work(&self) -> bool {
        let inner = self.inner.lock();
        inner.in_flight > 0 || !inner.waiting.is_empty()
    }

    /// Dirty files that nobody writes and that are not on their way.
    pub fn waiting(&self) -> Vec<ObjectId> {
        self.inner.lock().waiting.iter().copied().collect()
    }

    /// Wakes all who wait, to look whether they are to end.
    pub fn wake_all(&self) {
        self.wake.notify_all();
        self.settled.notify_all();
    }

    /// Whether waiting may help a writer: a demotion is under way, or one of the files that could
    /// be next `may_go`.
    pub fn can_free(&self, may_go: impl FnMut(&ObjectId) -> bool) -> bool {
        let inner = self.inner.lock();
        if inner.in_flight > 0 {
            return true;
        }
        let now = Instant::now();
        let ready = inner
            .waiting
            .iter()
            .filter(|object| inner.is_ready(object, now));
        ready
            .copied()
            .take(LOOKED_AT_MAX)
            .collect::<Vec<_>>()
            .iter()
            .any(may_go)
    }

    /// Files whose last try failed, and when the next of them is tried.
    pub fn failing(&self) -> (u64, Option<Duration>) {
        let inner = self.inner.lock();
        let next = inner.retries.values().map(|retry| retry.at).min();
        let until = next.map(|at| at.saturating_duration_since(Instant::now()));
        (inner.retries.len() as u64, until)
    }

    /// Bytes per second demoted lately; 0 while all that is tried fails, however much is copied for
    /// that.
    pub fn rate_bytes_per_s(&self) -> u64 {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let arrives = inner.arrived.is_some_and(|at| now - at <= RATE_WINDOW)
            || (inner.copied.keys()).any(|object| !inner.retries.contains_key(object));
        if !inner.retries.is_empty() && !arrives {
            return 0;
        }
        while inner
            .recent
            .front()
            .is_some_and(|(at, _)| now - *at > RATE_WINDOW)
        {
            inner.recent.pop_front();
        }
        let Some((first, _)) = inner.recent.front() else {
            return 0;
        };
        let span = (now - *first).as_secs_f64().max(0.25);
        let bytes: u64 = inner.recent.iter().map(|(_, b)| b).sum();
        (bytes as f64 / span) as u64
    }

    /// When bytes were copied to the PFS last, or a demotion ended.
    pub fn last_moved(&self) -> Option<Instant> {
        self.inner.lock().last_moved
    }

    /// Bytes of an object have been copied to the PFS.
    pub fn moved(&self, object: ObjectId, bytes: u64) {
        let mut inner = self.inner.lock();
        if bytes >= SHOWN_BYTES {
            *inner.copied.entry(object).or_default() += bytes;
        }
        let now = Instant::now();
        inner.last_moved = Some(now);
        match inner.recent.back_mut() {
            Some((at, sum)) if now - *at < Duration::from_millis(100) => *sum += bytes,
            _ => inner.recent.push_back((now, bytes)),
        }
        if inner.recent.len() > 128 {
            inner.recent.pop_front();
        }
    }

    /// How much of an object has been copied, if it is large and on its way to the PFS; 0
    /// otherwise.
    pub fn copied_bytes(&self, object: ObjectId) -> u64 {
        self.inner.lock().copied.get(&object).copied().unwrap_or(0)
    }

    /// The large objects on their way to the PFS, and how much of each has been copied: those with
    /// most first.
    pub fn copying(&self, most: usize) -> Vec<(ObjectId, u64)> {
        let copied = &self.inner.lock().copied;
        let mut copying: Vec<_> = copied
            .iter()
            .map(|(object, bytes)| (*object, *bytes))
            .collect();
        copying.sort_unstable_by_key(|(object, bytes)| (std::cmp::Reverse(*bytes), object.0));
        copying.truncate(most);
        copying
    }

    /// The outcomes of demotions that ended together.
    pub fn finished(&self, ended: &[Finished]) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        inner.last_moved = Some(now);
        let was_empty = inner.waiting.is_empty();
        for end in ended {
            inner.in_flight -= 1;
            inner.under_way.remove(&end.object);
            inner.urged_in_flight.remove(&end.object);
            inner.copied.remove(&end.object);
            if end.failed {
                let before = inner.retries.get(&end.object).map(|r| r.after * 2);
                let after = before.unwrap_or(self.retry_after).min(RETRY_AFTER_MAX);
                let at = now + after;
                inner.retries.insert(end.object, Retry { at, after });
            } else {
                inner.retries.remove(&end.object);
                if !end.again {
                    inner.arrived = Some(now);
                }
            }
            if end.again {
                inner.waiting.insert(end.object);
            }
        }
        if was_empty && !inner.waiting.is_empty() {
            // As with the first file: others may have gone to sleep.
            inner.asked += 1;
            self.wake.notify_all();
        }
        drop(inner);
        self.settled.notify_all();
    }

    /// Waits until some demotion has ended, at most for `timeout`.
    pub fn wait_settled(&self, timeout: Duration) {
        self.settled.wait_for(&mut self.inner.lock(), timeout);
    }

    /// What is to be done now.
    pub fn demand(&self) -> Demand {
        let inner = self.inner.lock();
        let now = Instant::now();
        let until = [inner.hurry_until, inner.nudged_until];
        let is_asked_for = until.into_iter().flatten().any(|until| now < until);
        Demand {
            is_urgent: !inner.urged.is_empty(),
            has_waiting: !inner.waiting.is_empty(),
            is_ordered: inner.drain_all || is_asked_for,
        }
    }

    /// Waiting files that may be tried now.
    pub fn ready(&self) -> Vec<ObjectId> {
        self.inner.lock().ready().copied().collect()
    }

    /// Files on their way to the PFS, and waiting ones that may be tried now.
    pub fn leaving(&self) -> Vec<ObjectId> {
        let inner = self.inner.lock();
        inner.ready().chain(&inner.under_way).copied().collect()
    }

    /// Hands out the next files that somebody waits for, in their order and each once: whoever gets
    /// them sees to it that they are taken ([`DrainQueue::take_urgent`]).
    pub fn hand_out_urgent(&self, most: usize) -> Vec<ObjectId> {
        let mut inner = self.inner.lock();
        let some = inner.urgent.len().min(most);
        inner.urgent.drain(..some).collect()
    }

    /// These files, which were handed out, are on their way from here on.
    pub fn take_urgent(&self, these: &[ObjectId]) {
        let mut inner = self.inner.lock();
        for object in these {
            inner.urged.remove(object);
            inner.waiting.remove(object);
            inner.urged_in_flight.insert(*object);
            inner.under_way.insert(*object);
        }
        inner.in_flight += these.len();
    }

    /// Takes files from the head of an order, as far as they still wait; they are on their way from
    /// here on.
    pub fn take(
        &self,
        order: &mut VecDeque<ObjectId>,
        limits: BatchLimits,
        bytes_of: impl Fn(ObjectId) -> u64,
    ) -> Vec<ObjectId> {
        let mut inner = self.inner.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < limits.files && (batch.is_empty() || bytes < limits.bytes) {
            let Some(object) = order.pop_front() else {
                break;
            };
            if inner.waiting.remove(&object) {
                bytes += bytes_of(object);
                batch.push(object);
            }
        }
        inner.in_flight += batch.len();
        inner.under_way.extend(&batch);
        batch
    }

    /// How often somebody has asked for something so far: for [`DrainQueue::wait_asked`].
    pub fn asked(&self) -> u64 {
        self.inner.lock().asked
    }

    /// Waits until somebody has asked for something since `asked` was read, at most for `timeout`.
    pub fn wait_asked(&self, asked: u64, timeout: Duration) {
        let mut inner = self.inner.lock();
        if inner.asked == asked {
            self.wake.wait_for(&mut inner, timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use forebay_types::ObjectId;

    use super::{BatchLimits, Demand, DrainQueue, Finished};

    const LIMITS: BatchLimits = BatchLimits {
        files: 3,
        bytes: 100,
    };

    fn queue() -> DrainQueue {
        DrainQueue::new(Duration::from_secs(60))
    }

    fn objects(ids: &[u64]) -> Vec<ObjectId> {
        ids.iter().map(|id| ObjectId(*id)).collect()
    }

    fn take_urgent(queue: &DrainQueue) -> Vec<ObjectId> {
        let these = queue.hand_out_urgent(usize::MAX);
        queue.take_urgent(&these);
        these
    }

    #[test]
    fn a_batch_ends_with_the_file_that_reaches_its_bytes_or_with_its_files() {
        let queue = queue();
        let all = objects(&[1, 2, 3, 4, 5, 6]);
        all.iter().for_each(|object| queue.add(*object));
        let mut order: VecDeque<_> = all.into();
        let by_bytes = queue.take(&mut order, LIMITS, |_| 60);
        assert_eq!(by_bytes, objects(&[1, 2]));
        let by_files = queue.take(&mut order, LIMITS, |_| 1);
        assert_eq!(by_files, objects(&[3, 4, 5]));
        assert_eq!(queue.take(&mut order, LIMITS, |_| 1), objects(&[6]));
    }

    #[test]
    fn an_order_may_name_files_that_wait_no_more() {
        let queue = queue();
        queue.add(ObjectId(2));
        let mut order: VecDeque<_> = objects(&[1, 2, 1]).into();
        assert_eq!(queue.take(&mut order, LIMITS, |_| 0), objects(&[2]));
        assert!(queue.take(&mut order, LIMITS, |_| 0).is_empty());
    }

    #[test]
    fn a_file_that_failed_is_not_ready_before_its_time_unless_somebody_asks_for_it() {
        let queue = queue();
        queue.add(ObjectId(1));
        let mut order: VecDeque<_> = objects(&[1]).into();
        assert_eq!(queue.take(&mut order, LIMITS, |_| 0), objects(&[1]));
        queue.finished(&[Finished::failed(ObjectId(1))]);
        assert!(queue.ready().is_empty());
        assert!(!queue.can_free(|_| true), "nothing could go now");
        assert_eq!(queue.failing().0, 1);
        queue.add_urgent(ObjectId(1));
        assert_eq!(take_urgent(&queue), objects(&[1]));
        queue.finished(&[Finished::done(ObjectId(1))]);
        assert_eq!(queue.failing(), (0, None));
        assert!(!queue.has_work() && !queue.knows(ObjectId(1)));
    }

    #[test]
    fn a_file_is_urged_once_and_pressing_until_it_has_ended() {
        let queue = queue();
        queue.add_urgent(ObjectId(7));
        queue.add_urgent(ObjectId(7));
        assert!(queue.demand().is_urgent && queue.is_pressed());
        let handed_out = queue.hand_out_urgent(2);
        assert_eq!(handed_out, objects(&[7]));
        queue.add_urgent(ObjectId(7));
        assert!(queue.hand_out_urgent(2).is_empty(), "to two demoters");
        assert!(queue.demand().is_urgent && queue.is_pressed());
        queue.take_urgent(&handed_out);
        assert!(!queue.demand().is_urgent);
        assert!(queue.is_pressed() && queue.knows(ObjectId(7)));
        queue.finished(&[Finished::done(ObjectId(7))]);
        assert!(!queue.is_pressed() && !queue.knows(ObjectId(7)));
    }

    #[test]
    fn the_first_file_wakes_who_has_nothing_to_do() {
        let queue = queue();
        let asked = queue.asked();
        queue.add(ObjectId(1));
        let first = queue.asked();
        assert_ne!(first, asked, "who sleeps would go on sleeping");
        queue.add(ObjectId(2));
        assert_eq!(queue.asked(), first, "by now it looks often");
        let mut order: VecDeque<_> = objects(&[1, 2]).into();
        assert_eq!(queue.take(&mut order, LIMITS, |_| 0).len(), 2);
        queue.finished(&[Finished::failed(ObjectId(1))]);
        let back = queue.asked();
        assert_ne!(back, first, "it is there again");
        queue.finished(&[Finished::failed(ObjectId(2))]);
        assert_eq!(queue.asked(), back);
    }

    #[test]
    fn a_drain_of_everything_is_an_order_and_forgets_pauses() {
        let queue = queue();
        queue.add(ObjectId(1));
        let mut order: VecDeque<_> = objects(&[1]).into();
        queue.take(&mut order, LIMITS, |_| 0);
        queue.finished(&[Finished::failed(ObjectId(1))]);
        let quiet = Demand {
            is_urgent: false,
            has_waiting: true,
            is_ordered: false,
        };
        assert_eq!(queue.demand(), quiet);
        let asked = queue.asked();
        queue.drain_all(true);
        assert!(queue.demand().is_ordered);
        assert_eq!(queue.ready(), objects(&[1]));
        assert_ne!(queue.asked(), asked, "who sleeps would go on sleeping");
        queue.drain_all(false);
        assert!(!queue.demand().is_ordered);
    }

    #[test]
    fn a_file_that_was_forgotten_is_in_no_order() {
        let queue = queue();
        objects(&[1, 2])
            .iter()
            .for_each(|object| queue.add(*object));
        queue.forget(ObjectId(1));
        assert_eq!(queue.ready(), objects(&[2]));
        assert_eq!(queue.waiting(), objects(&[2]));
    }
}
