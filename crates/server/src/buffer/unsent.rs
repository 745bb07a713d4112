//! What a second copy of an open file lacks, and who is to be told what has got lost.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_types::{Handle, ObjectId};
use parking_lot::Mutex;

/// So many ranges are remembered of a file: beyond that, comparing all of it costs little more.
const RANGES_MAX: usize = 1024;

/// What has changed since a second copy was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Nobody knows what; else `ranges` are all.
    pub all: bool,
    /// Ranges that were written, in order, apart from each other.
    pub ranges: Vec<Range<u64>>,
    /// A change was acknowledged.
    pub acknowledged: bool,
}

impl Lacking {
    /// The copy has all.
    pub const NOTHING: Lacking = Lacking {
        all: false,
        ranges: Vec::new(),
        acknowledged: false,
    };

    /// Whether the copy has all.
    pub fn is_nothing(&self) -> bool {
        !self.all && self.ranges.is_empty()
    }

    fn add(&mut self, range: Range<u64>) {
        if self.all || range.is_empty() {
            return;
        }
        let at = self.ranges.partition_point(|known| known.end < range.start);
        let mut merged = range;
        let mut upto = at;
        while let Some(next) = self
            .ranges
            .get(upto)
            .filter(|next| next.start <= merged.end)
        {
            merged = merged.start.min(next.start)..merged.end.max(next.end);
            upto += 1;
        }
        self.ranges.splice(at..upto, [merged]);
        if self.ranges.len() > RANGES_MAX {
            self.add_all();
        }
    }

    fn add_all(&mut self) {
        self.all = true;
        self.ranges.clear();
    }

    /// A copy that lacks this as well.
    pub fn join(&mut self, other: Lacking) {
        self.acknowledged |= other.acknowledged;
        match other.all {
            true => self.add_all(),
            false => other.ranges.into_iter().for_each(|range| self.add(range)),
        }
    }

    /// Bytes that are known to lack; `None` where nobody knows what does.
    pub fn bytes(&self) -> Option<u64> {
        let bytes = self.ranges.iter().map(|range| range.end - range.start);
        (!self.all).then(|| bytes.sum())
    }
}

#[derive(Debug)]
struct State {
    lacking: Lacking,
    /// A copy was made since the file was opened: from then on all changes are counted.
    counts: bool,
    /// What one is made of has been taken: until it is made, the copy on record lacks that.
    is_taken: bool,
}

/// Handles that are to be told of a loss, each once.
#[derive(Debug)]
struct Lost {
    /// Those below this number were there.
    below: Handle,
    told: HashSet<Handle>,
}

/// See the module. Of changes that the kernel makes by itself it knows nothing.
#[derive(Debug)]
pub struct Unsent {
    state: Mutex<State>,
    lost: Mutex<Option<Lost>>,
    /// So many wait for what a copy of the file keeps from them.
    waiting: AtomicUsize,
}

/// Somebody waits, as long as this lives: see [`Unsent::want`].
pub struct Wanted<'a>(&'a AtomicUsize);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Unsent {
    /// As a file is opened: nobody knows what the copy lacks.
    fn default() -> Unsent {
        Unsent {
            state: Mutex::new(State {
                lacking: Lacking {
                    all: true,
                    ..Lacking::NOTHING
                },
                counts: false,
                is_taken: false,
            }),
            lost: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl Unsent {
    /// Somebody is about to wait for the right to copy the file, or to let it grow: who has that,
    /// and takes its time, hurries.
    pub fn want(&self) -> Wanted<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Wanted(&self.waiting)
    }

    /// Whether somebody waits so.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// A range was written. To be called between the write and its answer.
    pub fn wrote(&self, range: Range<u64>) {
        let mut state = self.state.lock();
        state.lacking.acknowledged = true;
        state.lacking.add(range);
    }

    /// A write has failed, and some of it may be there.
    pub fn failed(&self) {
        self.state.lock().lacking.add_all();
    }

    /// The content has changed in another way, or is about to.
    pub fn changed(&self) {
        let mut state = self.state.lock();
        state.lacking.acknowledged = true;
        state.lacking.add_all();
    }

    /// What the copy lacks; a copy that has this begins.
    pub fn take(&self) -> Lacking {
        let mut state = self.state.lock();
        state.is_taken = true;
        std::mem::replace(&mut state.lacking, Lacking::NOTHING)
    }

    /// That copy came to nothing.
    pub fn put_back(&self, taken: Lacking) {
        let mut state = self.state.lock();
        state.is_taken = false;
        state.lacking.join(taken);
    }

    /// It was made.
    pub fn made(&self) {
        let mut state = self.state.lock();
        (state.counts, state.is_taken) = (true, false);
    }

    /// There is another copy now, or none: what it lacks nobody knows. What was promised is safe.
    pub fn begin_anew(&self) {
        let mut state = self.state.lock();
        state.lacking.acknowledged = false;
        state.lacking.add_all();
        (state.counts, state.is_taken) = (false, false);
    }

    /// Whether the copy that was made since the file was opened has all.
    pub fn is_nothing(&self) -> bool {
        let state = self.state.lock();
        state.counts && !state.is_taken && state.lacking.is_nothing()
    }

    /// Whether a change was acknowledged that the copy may lack; `None` if nobody has counted.
    pub fn lacks_acknowledged(&self) -> Option<bool> {
        let state = self.state.lock();
        match (state.counts, state.lacking.acknowledged) {
            (true, acknowledged) => Some(acknowledged),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    /// Something has got lost: all handles below this number are told so.
    pub fn lose(&self, below: Handle) {
        *self.lost.lock() = Some(Lost {
            below,
            told: HashSet::new(),
        });
    }

    /// Whether a handle is to be told now.
    pub fn take_loss(&self, handle: Handle) -> bool {
        let mut lost = self.lost.lock();
        let concerned = lost.as_mut().filter(|lost| handle < lost.below);
        concerned.is_some_and(|lost| lost.told.insert(handle))
    }
}

/// Files that have lost something before anybody has opened them in this life of the server:
/// whoever asks first is told, and all who have opened the file before.
#[derive(Debug, Default)]
pub struct LostUnopened(Mutex<HashSet<ObjectId>>);

impl LostUnopened {
    /// This one has.
    pub fn add(&self, object: ObjectId) {
        self.0.lock().insert(object);
    }

    /// Nothing of what it was is wanted any more.
    pub fn forget(&self, object: ObjectId) {
        self.0.lock().remove(&object);
    }

    /// Whether a handle is to be told now that something is lost.
    pub fn take_loss(&self, unsent: &Unsent, handle: Handle, object: ObjectId) -> bool {
        if self.0.lock().remove(&object) {
            unsent.lose(Handle(handle.0 + 1));
        }
        unsent.take_loss(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known() -> Unsent {
        let unsent = Unsent::default();
        assert!(unsent.take().all, "of what is opened nobody knows");
        unsent.made();
        unsent
    }

    fn ranges(lacking: &Lacking) -> Vec<(u64, u64)> {
        let ranges = lacking.ranges.iter();
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn a_copy_that_fails_is_made_of_all_that_it_would_have_had() {
        let unsent = known();
        unsent.wrote(10..20);
        let taken = unsent.take();
        assert_eq!((ranges(&taken), taken.all), (vec![(10, 20)], false));
        assert_eq!(unsent.lacks_acknowledged(), Some(false));
        unsent.wrote(20..30);
        unsent.put_back(taken);
        assert_eq!(unsent.lacks_acknowledged(), Some(true));
        assert_eq!(ranges(&unsent.take()), [(10, 30)]);
        assert!(unsent.take().is_nothing());
        unsent.failed();
        assert_eq!(unsent.lacks_acknowledged(), Some(false), "nobody was told");
        assert!(unsent.take().all);
    }

    #[test]
    fn many_ranges_are_the_whole_file() {
        let unsent = known();
        (0..RANGES_MAX as u64).for_each(|n| unsent.wrote(n * 10..n * 10 + 1));
        assert!(!unsent.state.lock().lacking.all);
        unsent.wrote(5..6);
        assert!(unsent.take().all);
    }

    #[test]
    fn each_handle_that_was_there_is_told_once() {
        let unsent = known();
        assert!(!unsent.take_loss(Handle(1)));
        unsent.lose(Handle(3));
        let told: Vec<bool> = [1, 2, 1, 2, 3].map(|n| unsent.take_loss(Handle(n))).into();
        assert_eq!(told, [true, true, false, false, false]);
    }

    proptest! {
        #[test]
        fn ranges_are_what_was_written(
            written in prop::collection::vec((0u64..200, 0u64..30), 0..60),
        ) {
            let unsent = known();
            let mut bytes = std::collections::BTreeSet::new();
            for (start, len) in written {
                unsent.wrote(start..start + len);
                bytes.extend(start..start + len);
            }
            let taken = unsent.take();
            let found: Vec<u64> = taken.ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(found, bytes.into_iter().collect::<Vec<_>>());
            let apart = taken.ranges.windows(2).all(|two| two[0].end < two[1].start);
            prop_assert!(apart, "{:?}", taken.ranges);
        }
    }
}
