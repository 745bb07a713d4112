//! Numbers of the threads that move data, in the order in which they come.
//!
//! What a thread stays on is chosen by its number. The kernel's numbers of threads follow each
//! other only where nobody else on the node starts anything meanwhile; by those, eight writers
//! leave some of eight connections without work. Numbers by arrival spread them evenly.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Threads that are known at once, a power of two. Two that have the same place take turns in it
/// and get new numbers: no more than a worse spread.
const PLACES: usize = 1024;

/// A thread and its number, in one word: so a look costs one load.
pub(crate) struct Seats {
    places: Box<[AtomicU64]>,
    given: AtomicU32,
}

impl Default for Seats {
    fn default() -> Seats {
        Seats {
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            given: AtomicU32::new(0),
        }
    }
}

impl Seats {
    /// The number of a thread, never 0; 0 of none (0).
    pub fn of(&self, thread: u32) -> u32 {
        if thread == 0 {
            return 0;
        }
        let place = &self.places[thread as usize % PLACES];
        let found = place.load(Ordering::Relaxed);
        if (found >> 32) as u32 == thread {
            return found as u32;
        }
        let number = self.given.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
        place.store(
            u64::from(thread) << 32 | u64::from(number),
            Ordering::Relaxed,
        );
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_number_and_the_next_one_gets_the_next() {
        let seats = Seats::default();
        // As the kernel numbers them where others start programs meanwhile.
        let threads = [4000, 4008, 4016, 4017, 4032, 9000, 9008, 17];
        for _ in 0..3 {
            let numbers: Vec<u32> = threads.iter().map(|one| seats.of(*one)).collect();
            assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert_eq!(seats.of(0), 0, "nobody has no number");
    }

    #[test]
    fn whoever_lost_its_place_gets_a_new_number() {
        let seats = Seats::default();
        let (one, other) = (5, 5 + PLACES as u32);
        assert_eq!([seats.of(one), seats.of(other), seats.of(one)], [1, 2, 3]);
    }

    #[test]
    fn the_last_number_is_followed_by_the_first() {
        let seats = Seats::default();
        seats.given.store(u32::MAX - 2, Ordering::Relaxed);
        let numbers: Vec<u32> = (1..5).map(|one| seats.of(one)).collect();
        assert!(!numbers.contains(&0), "{numbers:?}");
    }
}
