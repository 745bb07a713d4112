//! Directories of which the mount knows all names, so that a name that is not there needs no
//! message to the server: who makes a file asks for its name first.
//!
//! Invariants:
//!
//! 1. A directory begins to be known so when this mount makes it: then it is empty. The server
//!    recalls its attributes before a name that another client makes there is answered; what is
//!    recalled is not known any more.
//! 2. A name that this mount makes there is noted before the server is asked for it, whatever
//!    becomes of that. A name that goes stays noted: the server is asked.
//! 3. It is known for as long as the answer to the last request may be believed in which the server
//!    says that it still is so, and that the PFS has no name there: an outsider may make one.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use forebay_types::{Ino, limits};

/// Most names that are noted, of all directories together: 16 bytes each. A directory that has more
/// is forgotten.
const NAMES_MAX: usize = 1 << 20;
/// Most directories. When there are more, those go that are not known any more.
const DIRS_MAX: usize = 4096;
/// The server says no more that a directory's names are known when it has not said so for this
/// long: each time that it is asked costs it a look at the directory.
const GO_ON_WITHIN: Duration = Duration::from_secs(2);

struct Whole {
    until: Instant,
    /// Two names that have the same number cost a question.
    names: HashSet<u64>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Wholes {
    dirs: HashMap<Ino, Whole>,
    names: usize,
    hasher: RandomState,
}

impl Wholes {
    /// This mount has made a directory, which may be believed to be empty until then.
    pub(crate) fn begin(&mut self, dir: Ino, until: Instant) {
        self.remove(dir);
        if self.dirs.len() >= DIRS_MAX {
            let now = Instant::now();
            self.retain(|whole| whole.until > now);
        }
        if self.dirs.len() >= DIRS_MAX {
            self.clear();
        }
        let names = HashSet::new();
        self.dirs.insert(dir, Whole { until, names });
    }

    /// Whether all names of a directory are known, or were a moment ago: the server may say that
    /// they still are.
    pub(crate) fn has(&self, dir: Ino) -> bool {
        let whole = self.dirs.get(&dir);
        whole.is_some_and(|whole| whole.until + GO_ON_WITHIN > Instant::now())
    }

    /// The server says that they still are.
    pub(crate) fn go_on(&mut self, dir: Ino, until: Instant) {
        if let Some(whole) = self.dirs.get_mut(&dir) {
            whole.until = whole.until.max(until);
        }
    }

    /// The server is about to be asked to make a name.
    pub(crate) fn make(&mut self, dir: Ino, name: &[u8]) {
        if !self.has(dir) {
            return self.remove(dir);
        }
        let Some(whole) = self.dirs.get_mut(&dir) else {
            return;
        };
        self.names += usize::from(whole.names.insert(self.hasher.hash_one(name)));
        if self.names > NAMES_MAX {
            self.remove(dir);
        }
    }

    /// Whether a name is certainly not in a directory.
    pub(crate) fn lack(&self, dir: Ino, name: &[u8]) -> bool {
        name.len() <= limits::NAME_BYTES_MAX
            && self.dirs.get(&dir).is_some_and(|whole| {
                whole.until > Instant::now() && !whole.names.contains(&self.hasher.hash_one(name))
            })
    }

    /// The names of a directory are not known any more.
    pub(crate) fn remove(&mut self, dir: Ino) {
        if let Some(whole) = self.dirs.remove(&dir) {
            self.names -= whole.names.len();
        }
    }

    /// Nor are those of any.
    pub(crate) fn clear(&mut self) {
        self.dirs.clear();
        self.names = 0;
    }

    fn retain(&mut self, keeps: impl Fn(&Whole) -> bool) {
        self.dirs.retain(|_, whole| {
            let is_kept = keeps(whole);
            if !is_kept {
                self.names -= whole.names.len();
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const D: Ino = Ino(7);

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_name_lacks_until_it_is_about_to_be_made() {
        let mut wholes = Wholes::default();
        assert!(!wholes.lack(D, b"a"));
        wholes.begin(D, soon());
        assert!(wholes.lack(D, b"a") && wholes.lack(D, b"b"));
        wholes.make(D, b"a");
        wholes.make(Ino(8), b"b");
        assert!(!wholes.lack(D, b"a") && wholes.lack(D, b"b"));
        assert!(!wholes.lack(D, &vec![b'x'; limits::NAME_BYTES_MAX + 1]));
        wholes.remove(D);
        assert!(!wholes.lack(D, b"b") && wholes.names == 0);
        // Another directory that has got the number.
        wholes.begin(D, soon());
        assert!(wholes.lack(D, b"a"));
    }

    #[test]
    fn nothing_lacks_after_the_time_and_again_when_the_server_says_so() {
        let mut wholes = Wholes::default();
        wholes.begin(D, Instant::now());
        wholes.make(D, b"a");
        assert!(wholes.has(D) && !wholes.lack(D, b"b"));
        wholes.go_on(D, soon());
        assert!(wholes.lack(D, b"b") && !wholes.lack(D, b"a"));
        // An answer that comes late is from before.
        wholes.go_on(D, Instant::now());
        assert!(wholes.lack(D, b"b"));
        wholes.remove(D);
        wholes.go_on(D, soon());
        assert!(!wholes.lack(D, b"b"));
    }

    #[test]
    fn what_the_server_says_no_more_is_not_asked_for_and_not_kept() {
        let mut wholes = Wholes::default();
        wholes.begin(D, soon());
        wholes.make(D, b"a");
        let long_ago = Instant::now() - GO_ON_WITHIN;
        wholes.dirs.get_mut(&D).expect("it is there").until = long_ago;
        assert!(!wholes.has(D));
        wholes.make(D, b"b");
        assert!(wholes.dirs.is_empty() && wholes.names == 0);
        // Nothing that comes late makes up for the name that was not noted.
        wholes.go_on(D, soon());
        assert!(!wholes.lack(D, b"b"));
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let mut wholes = Wholes::default();
        for number in 0..3 * DIRS_MAX as u64 {
            let is_old = number % 2 == 0;
            let until = if is_old { Instant::now() } else { soon() };
            wholes.begin(Ino(10 + number), until);
            wholes.make(Ino(10 + number), b"a");
            assert!(wholes.dirs.len() <= DIRS_MAX && wholes.names == wholes.dirs.len());
        }
        wholes.clear();
        wholes.begin(D, soon());
        for number in 0..=NAMES_MAX as u64 {
            wholes.make(D, &number.to_ne_bytes());
        }
        assert!(!wholes.has(D) && wholes.names == 0);
    }
}
