//! Which content a file has. Whoever keeps pages of a file compares what it has now with what it
//! had then.
//!
//! A content has a number that no other content has had in this run. Invariants:
//!
//! 1. A number is given while nobody changes the content, and where every later change shows in
//!    what the content is known by ([`Seen`]). Who is given the same number twice may believe that
//!    all that was read in between is this content.
//! 2. A content keeps its number when it moves (drained, staged in, evicted), if it was seen in
//!    both places at once. Else it gets another one. That costs a second read, and nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_namespace::{File, Published};
use forebay_tiers::PfsStat;
use forebay_types::{Generation, Ino, ObjectId, TimeSpec};
use forebay_wire::ContentVersion;
use parking_lot::Mutex;

use crate::buffer::opens::SHARDS;

/// Files in each half of a shard: all of them are at most 128 Ki, and take some 20 MiB.
const HALF_MAX: usize = 1024;

/// What a look at a file shows of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is in the burst buffer.
    Object {
        /// Its object, and which content of that.
        at: (ObjectId, Generation),
        /// What the PFS has of the same content.
        published: Option<Published>,
    },
    /// It is on the PFS only.
    Pfs {
        /// Identity, size and times there.
        stat: Published,
        /// A change from now on would show in that.
        is_quiet: bool,
    },
}

impl Seen {
    /// Of a file in the burst buffer. `None` while its content changes, may change unseen, or may
    /// not be what was written.
    pub fn in_buffer(file: &File) -> Option<Seen> {
        let state = file.lock();
        let residency = &state.residency;
        if residency.writing || residency.flush_failed {
            return None;
        }
        Some(Seen::Object {
            at: (file.object, residency.generation),
            published: residency.published.filter(|_| residency.clean),
        })
    }

    /// Of a file that is on the PFS only.
    pub fn on_pfs(stat: &PfsStat, now: TimeSpec) -> Seen {
        Seen::Pfs {
            stat: stat.into(),
            is_quiet: Published::is_quiet(stat, now),
        }
    }
}

/// A content that has a number.
#[derive(Clone, Copy, Debug)]
struct Content {
    number: u64,
    object: Option<(ObjectId, Generation)>,
    published: Option<Published>,
}

impl Content {
    /// What is seen for the first time; `None` where a later change of it need not show.
    fn of(number: u64, seen: &Seen) -> Option<Content> {
        match *seen {
            Seen::Object { at, published } => Some(Content {
                number,
                object: Some(at),
                published: published.filter(Published::shows_changes),
            }),
            Seen::Pfs { stat, is_quiet } => is_quiet.then_some(Content {
                number,
                object: None,
                published: Some(stat),
            }),
        }
    }

    /// Whether what is seen is this content.
    fn is(&self, seen: &Seen) -> bool {
        match *seen {
            Seen::Object { at, published } => {
                self.object == Some(at) || (published.is_some() && self.published == published)
            }
            Seen::Pfs { stat, .. } => self.published == Some(stat),
        }
    }

    /// It is this content: from here on it is also known by where it is now.
    fn follow(&mut self, seen: &Seen) {
        if let Seen::Object { at, published } = *seen {
            self.object = Some(at);
            // What was known before shows changes, however it looks.
            let shows = |now: &Published| self.published == Some(*now) || now.shows_changes();
            self.published = published.filter(shows);
        }
    }
}

/// Files that were asked for lately: the younger half takes the place of the older when it is full.
#[derive(Default)]
struct Shard {
    young: HashMap<Ino, Content>,
    old: HashMap<Ino, Content>,
}

impl Shard {
    fn take(&mut self, ino: Ino) -> Option<Content> {
        self.young.remove(&ino).or_else(|| self.old.remove(&ino))
    }

    fn put(&mut self, ino: Ino, content: Content) {
        if self.young.len() >= HALF_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, content);
    }
}

/// The contents of the files that were opened lately.
pub struct Contents {
    run: u64,
    next: AtomicU64,
    shards: Vec<Mutex<Shard>>,
}

impl Contents {
    /// Nothing has been opened yet.
    pub fn new() -> Contents {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Contents {
            // Two runs do not begin in the same nanosecond; the seconds that do not fit are 584
            // years ago.
            run: since.map_or(0, |since| since.as_nanos() as u64),
            next: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The version of what is seen of a file that nobody writes. `None` where a later change need
    /// not show.
    pub fn version(&self, ino: Ino, seen: &Seen) -> Option<ContentVersion> {
        let mut shard = self.shard(ino).lock();
        let content = match shard.take(ino).filter(|known| known.is(seen)) {
            Some(mut known) => {
                known.follow(seen);
                known
            }
            None => Content::of(self.next.fetch_add(1, Ordering::Relaxed), seen)?,
        };
        shard.put(ino, content);
        Some(ContentVersion {
            run: self.run,
            number: content.number,
        })
    }

    /// A content is about to be somewhere else, and this was seen of it just before.
    pub fn follow(&self, ino: Ino, seen: &Seen) {
        let mut shard = self.shard(ino).lock();
        if let Some(mut known) = shard.take(ino).filter(|known| known.is(seen)) {
            known.follow(seen);
            shard.put(ino, known);
        }
    }

    /// What was handed out of a file may not have been its content.
    pub fn forget(&self, ino: Ino) {
        self.shard(ino).lock().take(ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(7);

    fn published(ctime_s: i64) -> Published {
        let at = |sec| TimeSpec { sec, nsec: 1 };
        Published {
            ino: 70,
            btime_ns: 1,
            size: 4096,
            mtime: at(100),
            ctime: at(ctime_s),
            looks: Default::default(),
        }
    }

    fn object(generation: u64, published: Option<Published>) -> Seen {
        Seen::Object {
            at: (ObjectId(3), Generation(generation)),
            published,
        }
    }

    fn pfs(ctime_s: i64, is_quiet: bool) -> Seen {
        Seen::Pfs {
            stat: published(ctime_s),
            is_quiet,
        }
    }

    #[test]
    fn a_change_gives_another_number_and_a_second_look_does_not() {
        let contents = Contents::new();
        let of = |seen: Seen| contents.version(F, &seen).expect("known");
        let dirty = of(object(1, None));
        assert_eq!(of(object(1, None)), dirty);
        let changed = of(object(2, None));
        assert_ne!(changed, dirty);
        assert_ne!(of(object(1, None)), dirty, "a number is never given again");
        let there = of(pfs(200, true));
        assert_eq!(of(pfs(200, true)), there);
        assert_ne!(of(pfs(201, true)), there);
        assert_ne!(contents.version(Ino(8), &pfs(201, true)), Some(there));
    }

    #[test]
    fn a_content_that_moves_keeps_its_number() {
        let contents = Contents::new();
        let of = |seen: Seen| contents.version(F, &seen).expect("known");
        let dirty = of(object(5, None));
        // Drained, evicted without an open in between, and staged in as another object.
        let clean = object(5, Some(published(200)));
        contents.follow(F, &clean);
        assert_eq!(of(pfs(200, false)), dirty);
        let again = Seen::Object {
            at: (ObjectId(4), Generation(1)),
            published: Some(published(200)),
        };
        assert_eq!(of(again), dirty);
        assert_ne!(of(object(5, None)), dirty, "the object that has left");
    }

    #[test]
    fn what_the_pfs_had_before_a_change_is_not_what_the_object_has_after_it() {
        let contents = Contents::new();
        let of = |seen: Seen| contents.version(F, &seen).expect("known");
        let clean = of(object(5, Some(published(200))));
        let changed = of(object(6, None));
        assert_ne!(changed, clean);
        // The older version is still there: so it is what an eviction of nothing would show.
        assert_ne!(of(pfs(200, true)), changed);
        let drained = of(object(9, Some(published(300))));
        assert_eq!(of(object(9, None)), drained);
        assert_ne!(
            of(pfs(300, true)),
            drained,
            "since then the object has another"
        );
    }

    #[test]
    fn a_copy_that_hides_changes_is_not_followed_to_the_pfs() {
        let contents = Contents::new();
        let of = |seen: Seen| contents.version(F, &seen).expect("known");
        // Written and drained in one tick of the PFS's clock: who writes there in the same tick
        // leaves the same times.
        let drained = of(object(5, Some(published(100))));
        assert_ne!(of(pfs(100, true)), drained);
        // Seen there, and long after that tick, it is staged in.
        let there = of(pfs(100, true));
        assert_eq!(of(object(1, Some(published(100)))), there);
        assert_eq!(of(pfs(100, false)), there);
    }

    #[test]
    fn nothing_is_said_of_what_may_change_without_a_trace() {
        let contents = Contents::new();
        assert_eq!(contents.version(F, &pfs(200, false)), None);
        let quiet = contents.version(F, &pfs(200, true)).expect("known");
        // What was quiet once shows every change: it needs no second proof.
        assert_eq!(contents.version(F, &pfs(200, false)), Some(quiet));
        assert_eq!(contents.version(F, &pfs(201, false)), None);
        assert_ne!(contents.version(F, &pfs(200, true)), Some(quiet));
    }

    #[test]
    fn damage_gives_the_same_file_another_number() {
        let contents = Contents::new();
        let before = contents.version(F, &object(1, None));
        contents.forget(F);
        assert_ne!(contents.version(F, &object(1, None)), before);
        assert!(before.is_some());
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_asked_for() {
        let contents = Contents::new();
        let asked = |n: u64| Ino(n * SHARDS as u64);
        let kept = contents.version(asked(0), &object(1, None));
        for n in 1..=4 * HALF_MAX as u64 {
            contents.version(asked(n), &object(1, None)).expect("known");
            assert_eq!(contents.version(asked(0), &object(1, None)), kept);
        }
        let shard = contents.shard(asked(0)).lock();
        assert!(shard.young.len() + shard.old.len() <= 2 * HALF_MAX);
        assert!(!shard.young.contains_key(&asked(1)) && !shard.old.contains_key(&asked(1)));
    }
}
