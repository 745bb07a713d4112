//! How large an open file was when the server saw it last: what is shown of a file by its name
//! while its node is away.

use forebay_tiers::ObjectStat;
use parking_lot::Mutex;

#[derive(Clone, Copy, Default)]
struct Seen {
    stat: Option<ObjectStat>,
    /// Requests have written up to there since, bytes from the start.
    end: u64,
}

/// Invariant: what was shown of the file, or written to it by a request, is no shorter than what is
/// shown later, unless a request has cut the file. A kernel that hears of a smaller size drops the
/// pages behind it, and a program that has them mapped gets a signal.
#[derive(Default)]
pub struct LastSeen(Mutex<Seen>);

impl LastSeen {
    /// Its object was asked.
    pub fn saw(&self, stat: &ObjectStat) {
        let mut seen = self.0.lock();
        // An answer may come after a later one.
        let is_older = |known: &ObjectStat| stat.mtime < known.mtime && stat.size < known.size;
        if !seen.stat.as_ref().is_some_and(is_older) {
            seen.stat = Some(*stat);
        }
    }

    /// A request has written up to there.
    pub fn wrote(&self, end: u64) {
        let mut seen = self.0.lock();
        seen.end = seen.end.max(end);
    }

    /// A request has set the size.
    pub fn cut(&self, size: u64) {
        let mut seen = self.0.lock();
        seen.end = size;
        if let Some(stat) = &mut seen.stat {
            stat.size = size;
        }
    }

    /// What there is to show; `recorded` is the size on record. Of a file that was never looked at
    /// only the size is known.
    pub fn look(&self, recorded: u64) -> (u64, Option<ObjectStat>) {
        let seen = *self.0.lock();
        let size = seen.stat.map_or(recorded, |stat| stat.size).max(seen.end);
        (size, seen.stat.map(|stat| ObjectStat { size, ..stat }))
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::TimeSpec;

    use super::*;

    fn stat(size: u64, at: i64) -> ObjectStat {
        let at = TimeSpec { sec: at, nsec: 0 };
        ObjectStat {
            size,
            allocated_bytes: size,
            atime: at,
            mtime: at,
            is_removed: false,
        }
    }

    #[test]
    fn the_last_look_counts_and_what_was_written_since() {
        let seen = LastSeen::default();
        assert_eq!(seen.look(7).0, 7);
        assert!(seen.look(7).1.is_none());
        seen.wrote(9);
        assert_eq!(seen.look(7).0, 9);
        seen.saw(&stat(20, 2));
        // It comes late.
        seen.saw(&stat(10, 1));
        assert_eq!(seen.look(7).0, 20);
        seen.wrote(25);
        let (size, shown) = seen.look(7);
        assert_eq!((size, shown.map(|shown| shown.size)), (25, Some(25)));
    }

    #[test]
    fn only_a_cut_makes_it_shorter() {
        let seen = LastSeen::default();
        seen.saw(&stat(20, 2));
        seen.wrote(30);
        seen.cut(5);
        assert_eq!(seen.look(7).0, 5);
        seen.saw(&stat(8, 3));
        assert_eq!(seen.look(7).0, 8);
    }
}
