//! What is demoted first, what is evicted first, and in which order the PFS gets it.

use crate::named::named;
use crate::placement::TierSpace;
use crate::sizes::SizeShares;
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

/// How victims are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementPolicy {
    /// Outdated checkpoint versions first, then the application least likely to fail next: highest
    /// MTBF first (BBOS, victim order). Where the papers say "highest failure rate" once, their
    /// evaluations say the opposite, and that is built.
    #[default]
    Bbos,
    /// First in, first out.
    Fifo,
    /// Least recently used first.
    Lru,
    /// Coolest first (ONFS, downward migration): closed files by `T_closed · T_co/T_oc`, open ones
    /// by `LRU · T_co/T_oc`.
    Coolness,
}

named!(PlacementPolicy, "placement policy", Bbos => "bbos", Fifo => "fifo", Lru => "lru", Coolness => "coolness");

/// Files of data servers from this size on are copied by the data server itself, bytes: for a
/// smaller one that takes more messages than it saves.
pub const COPY_OUT_MIN_BYTES: u64 = 1 << 20;
/// A copy that a data server makes may be so far ahead of who paces it, bytes: a fast node copies
/// for some messages' time, and a stop or a lower rate counts soon.
pub const COPY_OUT_AHEAD_BYTES: u64 = 32 << 20;

/// Shortest open time in seconds that coolness divides by: a file opened for an instant is not
/// infinitely cool.
const MIN_OPEN_TIME_S: f64 = 1e-3;

/// A file in the burst buffer that may be demoted or evicted. Times are seconds of the caller's
/// clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The caller's name for the file; the last tie-breaker, so that orders are reproducible.
    pub id: u64,
    /// The caller's number for the application.
    pub application: u64,
    /// Checkpoint version; `None` is demoted behind all versions of its application.
    pub version: Option<u64>,
    /// From [`crate::version::VersionTracker::is_outdated`].
    pub outdated: bool,
    /// MTBF of the application.
    pub mtbf_s: f64,
    /// When it came into the burst buffer.
    pub arrived_at_s: f64,
    /// Last open, read or write.
    pub accessed_at_s: f64,
    /// Last close; for an open file, when it was opened.
    pub closed_at_s: f64,
    /// T_co: mean time from a close to the next open; any value for a file opened once, 1 is
    /// neutral.
    pub closed_to_open_s: f64,
    /// T_oc: mean time from an open to its close; 1 is neutral.
    pub open_to_close_s: f64,
    /// What it occupies.
    pub bytes: u64,
    /// Open now.
    pub in_use: bool,
}

/// Which tiers hold a file, as far as eviction is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// The burst buffer holds bytes that the PFS does not.
    Dirty,
    /// As dirty, and being copied to the PFS.
    Demoting,
    /// The PFS holds the same bytes, verified.
    Clean,
}

/// A candidate whose bytes are on the PFS, verified. Only these can be chosen for eviction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanCandidate(Candidate);

impl CleanCandidate {
    /// `None` unless `residency` is [`Residency::Clean`]. The caller has read it in the transaction
    /// that will evict, or checks it again there.
    pub fn new(candidate: Candidate, residency: Residency) -> Option<Self> {
        (residency == Residency::Clean).then_some(Self(candidate))
    }

    /// The file.
    pub fn candidate(&self) -> &Candidate {
        &self.0
    }
}

/// How old an order of demotion may become before it is made anew, seconds; `took_s` is what it
/// took to make. So making orders anew takes a twentieth of the time at most, however many files
/// wait. An order that is used up before is made anew at once.
pub fn order_age_max_s(took_s: f64) -> f64 {
    (20.0 * took_s).max(1.0)
}

/// Orders dirty files, first to be demoted first. Open files come last: they may change again.
///
/// The order of [`PlacementPolicy::Bbos`]:
///
/// 1. Outdated versions.
/// 2. Highest MTBF.
/// 3. Of one MTBF, the application whose candidate was closed longest ago. An application with old
///    data is then not kept waiting by the numbers of others.
/// 4. Within an application the oldest version, then the oldest close.
pub fn order_demotion(policy: PlacementPolicy, candidates: &mut [Candidate], now_s: f64) {
    order(policy, candidates, now_s, |c| c, false);
}

/// Orders clean files, first to be evicted first; as [`order_demotion`], but of one MTBF what has
/// no version goes first under [`PlacementPolicy::Bbos`]: a restart reads the versions.
pub fn order_eviction(policy: PlacementPolicy, candidates: &mut [CleanCandidate], now_s: f64) {
    order(policy, candidates, now_s, |c| &c.0, true);
}

fn order<T>(
    policy: PlacementPolicy,
    candidates: &mut [T],
    now_s: f64,
    get: impl Fn(&T) -> &Candidate,
    versions_last: bool,
) {
    match policy {
        PlacementPolicy::Bbos => {
            let waiting = oldest_close_by_application(candidates.iter().map(&get));
            candidates.sort_by(|a, b| compare_bbos(get(a), get(b), &waiting, versions_last));
        }
        PlacementPolicy::Fifo => {
            let key = |c: &Candidate| c.arrived_at_s;
            candidates.sort_by(|a, b| compare_by(get(a), get(b), key));
        }
        PlacementPolicy::Lru => {
            let key = |c: &Candidate| c.accessed_at_s;
            candidates.sort_by(|a, b| compare_by(get(a), get(b), key));
        }
        PlacementPolicy::Coolness => {
            let key = |c: &Candidate| -coolness(c, now_s);
            candidates.sort_by(|a, b| compare_by(get(a), get(b), key));
        }
    }
}

/// Outdated and current files of an application wait separately.
type Group = (u64, bool);

fn oldest_close_by_application<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
) -> HashMap<Group, f64> {
    let mut oldest = HashMap::new();
    for c in candidates {
        let at = oldest
            .entry((c.application, c.outdated))
            .or_insert(c.closed_at_s);
        *at = at.min(c.closed_at_s);
    }
    oldest
}

/// `versions_last`: of one MTBF, what has no version goes first.
fn compare_bbos(
    a: &Candidate,
    b: &Candidate,
    oldest_close: &HashMap<Group, f64>,
    versions_last: bool,
) -> Ordering {
    let stays = |c: &Candidate| versions_last && c.version.is_some();
    let waiting = |c: &Candidate| {
        let group = (c.application, c.outdated);
        oldest_close.get(&group).copied().unwrap_or(c.closed_at_s)
    };
    let version = |c: &Candidate| (c.version.is_none(), c.version);
    a.in_use
        .cmp(&b.in_use)
        .then(b.outdated.cmp(&a.outdated))
        .then_with(|| b.mtbf_s.total_cmp(&a.mtbf_s))
        .then_with(|| stays(a).cmp(&stays(b)))
        .then_with(|| waiting(a).total_cmp(&waiting(b)))
        .then(a.application.cmp(&b.application))
        .then_with(|| version(a).cmp(&version(b)))
        .then_with(|| a.closed_at_s.total_cmp(&b.closed_at_s))
        .then(a.id.cmp(&b.id))
}

fn compare_by(a: &Candidate, b: &Candidate, key: impl Fn(&Candidate) -> f64) -> Ordering {
    a.in_use
        .cmp(&b.in_use)
        .then_with(|| key(a).total_cmp(&key(b)))
        .then(a.id.cmp(&b.id))
}

/// `T_closed · T_co/T_oc`, for an open file `LRU · T_co/T_oc` (ONFS).
fn coolness(c: &Candidate, now_s: f64) -> f64 {
    let since_s = if c.in_use {
        c.accessed_at_s
    } else {
        c.closed_at_s
    };
    let ratio = c.closed_to_open_s.max(0.0) / c.open_to_close_s.max(MIN_OPEN_TIME_S);
    (now_s - since_s).max(0.0) * ratio
}

/// Part of the capacity that is freed beyond what is wanted, once something must be: evicting for
/// every single write is slow.
const EVICTION_SLACK_DIVISOR: u64 = 32;

/// Bytes to evict so that `wanted_bytes` become available; 0 where they are. Clean copies stay
/// until then, for restarts.
pub fn evict_needed(space: &TierSpace, wanted_bytes: u64) -> u64 {
    let available_bytes = space.available_bytes();
    if available_bytes >= wanted_bytes {
        return 0;
    }
    let slack_bytes = space.capacity_bytes / EVICTION_SLACK_DIVISOR;
    let used_bytes = space.capacity_bytes.saturating_sub(space.free_bytes);
    (wanted_bytes - available_bytes)
        .saturating_add(slack_bytes)
        .min(used_bytes)
}

/// What was chosen for eviction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Victims {
    /// Ids, first to go first.
    pub ids: Vec<u64>,
    /// What they occupy together; less than was needed where there is no more.
    pub bytes: u64,
}

/// Chooses clean files that are not in use until `needed_bytes` are reached. Orders `candidates`.
pub fn choose_victims(
    policy: PlacementPolicy,
    candidates: &mut [CleanCandidate],
    needed_bytes: u64,
    now_s: f64,
) -> Victims {
    choose_victims_with(policy, candidates, needed_bytes, None, now_s)
}

/// The same; large and small files keep to their `shares`, under [`PlacementPolicy::Coolness`]
/// alone.
pub fn choose_victims_with(
    policy: PlacementPolicy,
    candidates: &mut [CleanCandidate],
    needed_bytes: u64,
    shares: Option<&SizeShares>,
    now_s: f64,
) -> Victims {
    let mut victims = Victims::default();
    order_eviction(policy, candidates, now_s);
    if let Some(shares) = shares.filter(|_| policy == PlacementPolicy::Coolness) {
        shares.keep(candidates, needed_bytes, CleanCandidate::candidate);
    }
    for c in candidates.iter().map(CleanCandidate::candidate) {
        if victims.bytes >= needed_bytes {
            break;
        }
        if !c.in_use {
            victims.ids.push(c.id);
            victims.bytes = victims.bytes.saturating_add(c.bytes);
        }
    }
    victims
}

/// Whether a clean file leaves the burst buffer at once, not only when space is needed: it is of an
/// outdated version, which no restart will read (BBOS, victim order 1).
pub fn leaves_at_once(policy: PlacementPolicy, candidate: &CleanCandidate) -> bool {
    policy == PlacementPolicy::Bbos && candidate.0.outdated && !candidate.0.in_use
}

/// Most bytes that are copied before a batch is flushed and its files become clean: flushes cost
/// more than they give beyond.
pub const BATCH_BYTES_MAX: u64 = 256 << 20;

/// Part of the capacity that one batch may take: until it ends, all of it is undrained, and nobody
/// gets its space.
const BATCH_CAPACITY_DIVISOR: u64 = 64;

/// A batch of limited demotion lasts so long, about.
const BATCH_S: f64 = 0.5;

/// Bytes of one batch of several files, given the rate that demotion is held to; one file is always
/// allowed.
pub fn batch_bytes(capacity_bytes: u64, rate_bytes_per_s: Option<f64>) -> u64 {
    let by_rate = rate_bytes_per_s.map_or(u64::MAX, |rate| (rate * BATCH_S) as u64);
    (capacity_bytes / BATCH_CAPACITY_DIVISOR)
        .min(by_rate)
        .min(BATCH_BYTES_MAX)
}

/// Copies run ahead of the PFS by what that takes in so long: when they are told to stop, so long
/// is still being written.
const AHEAD_S: f64 = 0.1;

/// Beyond this more in flight makes no PFS faster that is known; bytes, of one stream.
const AHEAD_BYTES_MAX: u64 = 32 << 20;

/// With less a PFS that answers late would be kept waiting; of one stream.
const AHEAD_BYTES_MIN: u64 = 1 << 20;

/// How far each of so many streams may run ahead of the PFS, given what the PFS takes: 1 to 32 MiB,
/// the most where that is not known.
pub fn ahead_bytes(br_max_bytes_per_s: Option<f64>, streams: usize) -> u64 {
    br_max_bytes_per_s
        .map_or(AHEAD_BYTES_MAX, |rate| {
            (rate * AHEAD_S / streams.max(1) as f64) as u64
        })
        .clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX)
}

/// Files of at least this size are copied before smaller ones of their directory.
pub const LARGE_FILE_BYTES: u64 = 64 << 20;

/// One file of a batch that was chosen for demotion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainItem {
    /// As in [`Candidate::id`].
    pub id: u64,
    /// Path relative to the root of the PFS, `/`-separated, any bytes.
    pub path: Vec<u8>,
    /// Its size.
    pub bytes: u64,
}

impl DrainItem {
    fn split_path(&self) -> (&[u8], &[u8]) {
        match self.path.iter().rposition(|b| *b == b'/') {
            Some(i) => (&self.path[..i], &self.path[i + 1..]),
            None => (&[], &self.path),
        }
    }
}

/// Re-orders a batch that is already in victim order the way the PFS likes it.
///
/// - Files of one directory go together: its entry, lock and layout stay in the caches of the PFS,
///   and a checkpoint version becomes whole early. Directories keep the order in which the batch
///   first names them, which is the victim order.
/// - Within a directory large files go first, largest first: several demoters finish together when
///   the last blocks are small.
/// - The small ones follow by path, the order in which they were most likely created and will be
///   listed and read.
pub fn drain_order(batch: &mut [DrainItem]) {
    let mut first_seen: HashMap<Vec<u8>, usize> = HashMap::new();
    for (i, item) in batch.iter().enumerate() {
        let (directory, _) = item.split_path();
        if !first_seen.contains_key(directory) {
            first_seen.insert(directory.to_vec(), i);
        }
    }
    batch.sort_by(|a, b| {
        let (directory_a, name_a) = a.split_path();
        let (directory_b, name_b) = b.split_path();
        let large = |item: &DrainItem| {
            if item.bytes >= LARGE_FILE_BYTES {
                item.bytes
            } else {
                0
            }
        };
        first_seen
            .get(directory_a)
            .cmp(&first_seen.get(directory_b))
            .then(Reverse(large(a)).cmp(&Reverse(large(b))))
            .then_with(|| name_a.cmp(name_b))
            .then(a.id.cmp(&b.id))
    });
}

/// Which of `targets` PFS servers a burst-buffer node flushes to in a round, so that no two of at
/// most `targets` nodes meet at one (TRIO, inter-BB ordered flush). `None` without targets.
pub fn flush_target(node: u32, round: u32, targets: u32) -> Option<u32> {
    let target = (u64::from(node) + u64::from(round)).checked_rem(u64::from(targets))?;
    u32::try_from(target).ok()
}

#[cfg(test)]
#[path = "demotion_tests.rs"]
mod tests;
