//! Files that were brought in before anybody asked for them, and who reads what meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_namespace::Dir;
use forebay_types::ObjectId;
use parking_lot::{Condvar, Mutex};

/// Opens that wait to be looked at; beyond, the oldest is forgotten.
const OPENS_MAX: usize = 16_384;

/// Opens of files that are here are kept in so many places, for who opens to wait for few others.
const SHARDS: usize = 8;
/// Such opens that wait in one of them; beyond, further ones are forgotten.
const HERE_MAX: usize = 2048;

/// A file was opened to be read.
pub enum Opened {
    /// One that is only on the PFS.
    OnPfs {
        /// Its directory.
        dir: Arc<Dir>,
        /// Its name.
        name: Vec<u8>,
        /// What it has, bytes; `None`: who opened it may write it, too.
        bytes: Option<u64>,
        /// When.
        at: Instant,
    },
    /// One of the burst buffer that somebody watches.
    Watched(Watched),
}

/// A place in a list or folder that somebody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose list or folder it is.
    pub reader: u64,
    /// Where in it.
    pub index: usize,
}

/// A file of the burst buffer whose open somebody wants to hear of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Who does.
    pub places: Vec<Place>,
    /// It was brought in for the first of them, and nobody has read it yet: its size, bytes.
    pub guessed: Option<(u64, u64)>,
}

/// Sums since the start, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuessTotals {
    /// Brought in before anybody asked.
    pub guessed_bytes: u64,
    /// Of those, read.
    pub hit_bytes: u64,
    /// Of those, gone before anybody read them.
    pub wasted_bytes: u64,
    /// Of those, there and not read yet.
    pub unread_bytes: u64,
}

/// What becomes of guesses. Costs an open that nobody watches one look at a counter.
#[derive(Default)]
pub struct Guesses {
    /// Whether opens of what is only on the PFS count; a list makes them count, too.
    interest: AtomicUsize,
    watched_count: AtomicUsize,
    watched: Mutex<HashMap<ObjectId, Watched>>,
    opens: Mutex<VecDeque<Opened>>,
    news: Condvar,
    totals: Mutex<GuessTotals>,
    /// Of `totals`, for who asks often.
    unread_bytes: AtomicU64,
    /// Gone before anybody read them, and not yet told to who has brought them in.
    gone: Mutex<Vec<(u64, u64)>>,
    /// Files of the burst buffer that were opened to be read only, for who learns runs.
    here: [Mutex<Vec<(ObjectId, Instant)>>; SHARDS],
}

impl Guesses {
    /// Somebody wants to hear of opens on the PFS; until [`Guesses::is_not_interested`].
    pub fn is_interested(&self) {
        self.interest.fetch_add(1, Ordering::AcqRel);
    }

    /// The end of that.
    pub fn is_not_interested(&self) {
        self.interest.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether opens of what is only on the PFS count.
    pub fn wants_opens(&self) -> bool {
        self.interest.load(Ordering::Acquire) > 0
    }

    /// A file that is only on the PFS was opened to be read. `bytes`: what it has, unless who opens
    /// it may write it, too.
    pub fn opened_on_pfs(&self, dir: &Arc<Dir>, name: &[u8], bytes: Option<u64>) {
        if self.wants_opens() {
            let (dir, name, at) = (dir.clone(), name.to_vec(), Instant::now());
            self.tell(Opened::OnPfs {
                dir,
                name,
                bytes,
                at,
            });
        }
    }

    /// A file of the burst buffer was opened by who does not write it. Wakes nobody up.
    pub fn read_here(&self, object: ObjectId) {
        let mut here = self.here[object.0 as usize % SHARDS].lock();
        if here.len() < HERE_MAX {
            here.push((object, Instant::now()));
        }
    }

    /// What [`Guesses::read_here`] was told since the last call.
    pub fn take_here(&self) -> Vec<(ObjectId, Instant)> {
        let shards = self.here.iter();
        let mut all: Vec<_> = shards
            .flat_map(|s| std::mem::take(&mut *s.lock()))
            .collect();
        all.sort_unstable_by_key(|(_, at)| *at);
        all
    }

    /// A file of the burst buffer was opened to be read.
    pub fn opened(&self, object: ObjectId) {
        if self.watched_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let Some(watched) = self.take(object) else {
            return;
        };
        if let Some((_, bytes)) = watched.guessed {
            let mut totals = self.totals.lock();
            totals.hit_bytes += bytes;
            self.is_read(&mut totals, bytes);
        }
        self.tell(Opened::Watched(watched));
    }

    /// An object has left the burst buffer.
    pub fn left(&self, object: ObjectId) {
        if self.watched_count.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(watched) = self.take(object)
            && let Some((reader, bytes)) = watched.guessed
        {
            let mut totals = self.totals.lock();
            totals.wasted_bytes += bytes;
            self.is_read(&mut totals, bytes);
            drop(totals);
            self.gone.lock().push((reader, bytes));
        }
    }

    /// The open of a file is to be told. `guessed_bytes`: it was brought in for that. Who watches
    /// it already goes on.
    pub fn watch(&self, object: ObjectId, place: Place, guessed_bytes: Option<u64>) {
        let mut all = self.watched.lock();
        let watched = all.entry(object).or_default();
        if !watched.places.contains(&place) {
            watched.places.push(place);
        }
        let is_new = watched.guessed.is_none();
        if let Some(bytes) = guessed_bytes.filter(|_| is_new) {
            watched.guessed = Some((place.reader, bytes));
            let mut totals = self.totals.lock();
            totals.guessed_bytes += bytes;
            totals.unread_bytes += bytes;
            self.unread_bytes
                .store(totals.unread_bytes, Ordering::Relaxed);
        }
        self.watched_count.store(all.len(), Ordering::Release);
    }

    /// A reader wants to hear no more; what was brought in for it still counts.
    pub fn forget(&self, reader: u64) {
        let mut all = self.watched.lock();
        all.retain(|_, watched| {
            watched.places.retain(|place| place.reader != reader);
            !watched.places.is_empty() || watched.guessed.is_some()
        });
        self.watched_count.store(all.len(), Ordering::Release);
    }

    /// Nobody will come for what was brought in for a reader: what is unread of it is in vain.
    /// Which files those are, and bytes.
    pub fn give_up(&self, reader: u64) -> (Vec<ObjectId>, u64) {
        let (mut objects, mut bytes) = (Vec::new(), 0);
        let mut all = self.watched.lock();
        all.retain(|object, watched| {
            if let Some((_, size)) = watched.guessed.filter(|(whose, _)| *whose == reader) {
                watched.guessed = None;
                objects.push(*object);
                bytes += size;
            }
            watched.places.retain(|place| place.reader != reader);
            !watched.places.is_empty() || watched.guessed.is_some()
        });
        self.watched_count.store(all.len(), Ordering::Release);
        let mut totals = self.totals.lock();
        totals.wasted_bytes += bytes;
        self.is_read(&mut totals, bytes);
        (objects, bytes)
    }

    /// Readers who wait for a file that is here.
    pub fn watchers(&self, object: ObjectId) -> Vec<u64> {
        let all = self.watched.lock();
        let places = all.get(&object).map_or(&[][..], |w| &w.places);
        places.iter().map(|place| place.reader).collect()
    }

    /// Sums since the start.
    pub fn totals(&self) -> GuessTotals {
        *self.totals.lock()
    }

    /// What is there and not read yet, bytes.
    pub fn unread_bytes(&self) -> u64 {
        self.unread_bytes.load(Ordering::Relaxed)
    }

    /// What has gone unread since the last call: whose it was, and bytes.
    pub fn take_gone(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.gone.lock())
    }

    /// Waits for opens, for so long at most, and takes them.
    pub fn take_opens(&self, patience: Duration) -> VecDeque<Opened> {
        let mut opens = self.opens.lock();
        if opens.is_empty() {
            self.news.wait_for(&mut opens, patience);
        }
        std::mem::take(&mut *opens)
    }

    fn take(&self, object: ObjectId) -> Option<Watched> {
        let mut all = self.watched.lock();
        let watched = all.remove(&object);
        self.watched_count.store(all.len(), Ordering::Release);
        watched
    }

    fn is_read(&self, totals: &mut GuessTotals, bytes: u64) {
        totals.unread_bytes = totals.unread_bytes.saturating_sub(bytes);
        self.unread_bytes
            .store(totals.unread_bytes, Ordering::Relaxed);
    }

    fn tell(&self, opened: Opened) {
        let mut opens = self.opens.lock();
        if opens.len() >= OPENS_MAX {
            opens.pop_front();
        }
        opens.push_back(opened);
        drop(opens);
        self.news.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(index: usize) -> Place {
        Place { reader: 7, index }
    }

    #[test]
    fn what_is_read_is_a_hit_and_what_leaves_unread_is_wasted() {
        let guesses = Guesses::default();
        let object = ObjectId;
        guesses.watch(object(1), place(0), Some(10));
        guesses.watch(object(2), place(1), Some(20));
        guesses.watch(object(3), place(2), None);
        assert_eq!(guesses.unread_bytes(), 30);
        guesses.opened(object(1));
        guesses.opened(object(1));
        guesses.opened(object(3));
        guesses.opened(object(9));
        guesses.left(object(2));
        guesses.left(object(2));
        let expected = GuessTotals {
            guessed_bytes: 30,
            hit_bytes: 10,
            wasted_bytes: 20,
            unread_bytes: 0,
        };
        assert_eq!((guesses.totals(), guesses.unread_bytes()), (expected, 0));
        assert_eq!(guesses.take_gone(), [(7, 20)]);
        let opens = guesses.take_opens(Duration::ZERO);
        let told: Vec<usize> = opens
            .iter()
            .map(|opened| match opened {
                Opened::Watched(watched) => watched.places[0].index,
                Opened::OnPfs { .. } => panic!("nobody opened one"),
            })
            .collect();
        assert_eq!(told, [0, 2]);
    }

    #[test]
    fn what_was_brought_in_counts_when_its_reader_is_forgotten() {
        let guesses = Guesses::default();
        guesses.watch(ObjectId(1), place(0), Some(10));
        guesses.watch(ObjectId(2), place(1), None);
        guesses.forget(7);
        guesses.opened(ObjectId(2));
        assert!(guesses.take_opens(Duration::ZERO).is_empty());
        guesses.opened(ObjectId(1));
        assert_eq!(guesses.totals().hit_bytes, 10);
    }

    #[test]
    fn what_is_given_up_is_wasted_once() {
        let guesses = Guesses::default();
        let other = Place {
            reader: 8,
            index: 0,
        };
        guesses.watch(ObjectId(1), place(0), Some(10));
        guesses.watch(ObjectId(2), place(1), Some(20));
        guesses.watch(ObjectId(2), other, None);
        guesses.watch(ObjectId(3), other, Some(40));
        guesses.opened(ObjectId(1));
        assert_eq!(guesses.give_up(7), (vec![ObjectId(2)], 20));
        assert_eq!(guesses.give_up(7), (Vec::new(), 0));
        let watchers = [1, 2].map(|n| guesses.watchers(ObjectId(n)));
        assert_eq!(watchers, [vec![], vec![8]]);
        guesses.left(ObjectId(2));
        let totals = guesses.totals();
        assert_eq!((totals.hit_bytes, totals.wasted_bytes), (10, 20));
        assert_eq!((totals.unread_bytes, guesses.unread_bytes()), (40, 40));
        assert!(guesses.take_gone().is_empty());
    }

    #[test]
    fn opens_of_what_is_here_are_told_in_turn_and_so_many() {
        let guesses = Guesses::default();
        [5, 3, 9]
            .iter()
            .for_each(|n| guesses.read_here(ObjectId(*n)));
        let told = guesses.take_here();
        let told: Vec<u64> = told.iter().map(|(object, _)| object.0).collect();
        assert_eq!(told, [5, 3, 9]);
        (0..3 * HERE_MAX).for_each(|_| guesses.read_here(ObjectId(1)));
        assert_eq!(guesses.take_here().len(), HERE_MAX);
        assert!(guesses.take_here().is_empty());
    }

    #[test]
    fn a_second_reader_of_the_same_file_takes_nothing_from_the_first() {
        let guesses = Guesses::default();
        let other = Place {
            reader: 8,
            index: 3,
        };
        guesses.watch(ObjectId(1), place(0), Some(10));
        guesses.watch(ObjectId(1), other, None);
        guesses.watch(ObjectId(1), other, Some(10));
        assert_eq!(guesses.unread_bytes(), 10);
        guesses.opened(ObjectId(1));
        assert_eq!(guesses.unread_bytes(), 0);
        let mut opens = guesses.take_opens(Duration::ZERO);
        let Some(Opened::Watched(watched)) = opens.pop_front() else {
            panic!("not told");
        };
        assert_eq!(watched.places, [place(0), other]);
    }
}
