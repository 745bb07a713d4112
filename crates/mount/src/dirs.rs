//! Directories that the mount knows by name, so that a program's next step through one of them
//! needs no message to the server.
//!
//! The kernel looks up each name on a path each time ([`crate::belief::Believed::of_name`]), and
//! checks permissions by the attributes that come with the answer. Invariants:
//!
//! 1. A name is known from a firm answer, and for as long as that may be believed. The server
//!    recalls the attributes of a directory before another client's change of its name, of its mode
//!    or of its owner is answered. What is recalled is not known any more.
//! 2. Of this mount's own changes the server recalls nothing. What they change is not known while
//!    they are under way, and an answer to what was asked before their end is not taken. Nor is it
//!    one for the kernel to believe: that may take it up after it has taken up the change.
//! 3. A file that is made in a directory changes nothing but times, and the answer carries the
//!    attributes of the directory. Of two such answers the one with the later time of change is the
//!    newer, in whichever order they come.
//! 4. Whatever the kernel has no reference of is not known: the server may have forgotten it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

use forebay_types::{Attr, FileKind, Ino};

/// Most directories. When there are more, those go that are not believed any more.
const KNOWN_MAX: usize = 4096;
/// Changes are told apart by so many marks. What shares one with a change is asked for once more.
const MARKS: usize = 1024;

/// What a request of this mount is about to change, or has changed.
#[derive(Clone, Copy)]
pub(crate) enum Touched<'a> {
    /// Attributes of this.
    Attr(Ino),
    /// What a name leads to, and the attributes of its directory.
    Name(Ino, &'a [u8]),
    /// The attributes of a directory, in which a name is made that led nowhere.
    Made(Ino, &'a [u8]),
}

impl Touched<'_> {
    /// Whose attributes change.
    fn attr(self) -> Ino {
        match self {
            Touched::Attr(ino) | Touched::Name(ino, _) | Touched::Made(ino, _) => ino,
        }
    }
}

/// When something was asked for, counted in changes of this mount.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

struct Dir {
    parent: Ino,
    name: Box<[u8]>,
    /// The name leads there until then.
    until: Instant,
    /// What it is like, and until when; `None` where a change has overtaken the answer.
    attr: Option<(Attr, Instant)>,
}

/// See the module.
pub(crate) struct Dirs {
    known: HashMap<Ino, Dir>,
    /// Where names of a directory lead.
    names: HashMap<Ino, HashMap<Box<[u8]>, Ino>>,
    changes: u64,
    /// Of what attributes are being changed by this mount, and by how many requests.
    under_way: HashMap<Ino, u32>,
    /// The number of the last change of what has this mark.
    marks: Box<[u64]>,
    hasher: RandomState,
}

impl Default for Dirs {
    fn default() -> Dirs {
        Dirs {
            known: HashMap::new(),
            names: HashMap::new(),
            changes: 0,
            under_way: HashMap::new(),
            marks: vec![0; MARKS].into(),
            hasher: RandomState::new(),
        }
    }
}

impl Dirs {
    /// Something is about to be asked for.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.changes)
    }

    fn mark(&self, what: impl Hash) -> usize {
        self.hasher.hash_one(what) as usize % MARKS
    }

    fn note_change(&mut self, what: impl Hash) {
        self.changes += 1;
        let mark = self.mark(what);
        self.marks[mark] = self.changes;
    }

    fn has_changed(&self, what: impl Hash, since: Moment) -> bool {
        self.marks[self.mark(what)] > since.0
    }

    /// Whether attributes that were asked for then are from after all changes of this mount.
    pub(crate) fn are_newest(&self, ino: Ino, asked: Moment) -> bool {
        !self.has_changed(ino, asked) && !self.under_way.contains_key(&ino)
    }

    /// The directory that a name leads to, and for how long its attributes may be believed.
    pub(crate) fn find(&self, parent: Ino, name: &[u8]) -> Option<(Attr, Duration)> {
        let ino = self.names.get(&parent)?.get(name)?;
        let dir = self.known.get(ino)?;
        let (attr, until) = dir.attr?;
        let now = Instant::now();
        let span = until.checked_duration_since(now)?;
        (dir.until > now && !span.is_zero()).then_some((attr, span))
    }

    /// Whether attributes of a directory are of use here: programs go through it by its name.
    pub(crate) fn wants(&self, ino: Ino) -> bool {
        let dir = self.known.get(&ino);
        dir.is_some_and(|dir| dir.until > Instant::now())
    }

    /// A name leads to a directory, as a firm answer to what was asked then: it may be believed
    /// until then.
    pub(crate) fn enter(
        &mut self,
        (parent, name): (Ino, &[u8]),
        attr: &Attr,
        (asked, until): (Moment, Instant),
    ) {
        let is_dir = attr.kind == FileKind::Directory && attr.ino != Ino::ROOT;
        if !is_dir || self.has_changed((parent, name), asked) {
            return;
        }
        let before = self.known.get(&attr.ino);
        if before.is_some_and(|dir| (dir.parent, &*dir.name) != (parent, name)) {
            self.remove(attr.ino);
        }
        self.make_room();
        let dir = self.known.entry(attr.ino).or_insert_with(|| Dir {
            parent,
            name: name.into(),
            until,
            attr: None,
        });
        dir.until = dir.until.max(until);
        let names = self.names.entry(parent).or_default();
        let led = names.insert(name.into(), attr.ino);
        if let Some(other) = led.filter(|other| *other != attr.ino) {
            self.known.remove(&other);
            self.note_change(other);
        }
        self.learn(attr, (asked, until));
    }

    /// Attributes of a directory that is known, as a firm answer to what was asked then.
    fn learn(&mut self, attr: &Attr, (asked, until): (Moment, Instant)) {
        if !self.are_newest(attr.ino, asked) {
            return;
        }
        let Some(dir) = self.known.get_mut(&attr.ino) else {
            return;
        };
        match &dir.attr {
            // Times that go back tell nothing: what is asked for from here on is believed.
            Some((newer, end)) if newer.ctime > attr.ctime && *end <= Instant::now() => {
                self.forget_attr(attr.ino);
            }
            Some((newer, _)) if newer.ctime > attr.ctime => {}
            _ => dir.attr = Some((*attr, until)),
        }
    }

    /// A file was made in a directory, or that was tried. `shown` are the directory's attributes
    /// after that, if the answer to what was asked then has them firm.
    pub(crate) fn made_in(&mut self, ino: Ino, shown: Option<&Attr>, asked: (Moment, Instant)) {
        match shown.filter(|attr| attr.ino == ino) {
            Some(attr) if self.known.contains_key(&ino) && self.are_newest(ino, asked.0) => {
                self.learn(attr, asked);
            }
            _ => self.forget_attr(ino),
        }
    }

    fn forget_attr(&mut self, ino: Ino) {
        self.note_change(ino);
        if let Some(dir) = self.known.get_mut(&ino) {
            dir.attr = None;
        }
    }

    /// This is about to be changed by this mount.
    pub(crate) fn begin_change(&mut self, touched: Touched<'_>) {
        *self.under_way.entry(touched.attr()).or_default() += 1;
        self.touch(touched);
    }

    /// It has been.
    pub(crate) fn end_change(&mut self, touched: Touched<'_>) {
        if let Entry::Occupied(mut count) = self.under_way.entry(touched.attr()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.touch(touched);
    }

    fn touch(&mut self, touched: Touched<'_>) {
        match touched {
            Touched::Attr(ino) | Touched::Made(ino, _) => self.forget_attr(ino),
            Touched::Name(parent, name) => {
                self.forget_attr(parent);
                self.note_change((parent, name));
                let led = self.names.get(&parent).and_then(|names| names.get(name));
                if let Some(ino) = led.copied() {
                    self.remove(ino);
                }
            }
        }
    }

    /// This is not known any more.
    pub(crate) fn remove(&mut self, ino: Ino) {
        let Some(dir) = self.known.remove(&ino) else {
            return;
        };
        // What it was like would tell an old answer.
        self.note_change(ino);
        if let Some(names) = self.names.get_mut(&dir.parent) {
            names.remove(&dir.name);
            if names.is_empty() {
                self.names.remove(&dir.parent);
            }
        }
    }

    /// The kernel has no reference of this any more.
    pub(crate) fn forgotten(&mut self, ino: Ino) {
        self.remove(ino);
        let below = self.names.get(&ino).into_iter().flat_map(HashMap::values);
        for child in below.copied().collect::<Vec<Ino>>() {
            self.remove(child);
        }
    }

    /// Nothing is known any more.
    pub(crate) fn clear(&mut self) {
        for ino in self.known.keys().copied().collect::<Vec<Ino>>() {
            self.remove(ino);
        }
    }

    fn make_room(&mut self) {
        if self.known.len() < KNOWN_MAX {
            return;
        }
        let now = Instant::now();
        let late = self.known.iter().filter(|(_, dir)| dir.until <= now);
        for ino in late.map(|(ino, _)| *ino).collect::<Vec<Ino>>() {
            self.remove(ino);
        }
        if self.known.len() >= KNOWN_MAX {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{TimeSpec, limits};

    use super::*;

    const P: Ino = Ino(2);
    const D: Ino = Ino(7);

    fn attr(ino: Ino, changed: i64) -> Attr {
        let at = TimeSpec {
            sec: changed,
            nsec: 0,
        };
        Attr {
            ino,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
        }
    }

    fn soon() -> Instant {
        Instant::now() + limits::SHOWN_FOR
    }

    /// What a name leads to, and when that has changed.
    fn find(dirs: &Dirs, name: &[u8]) -> Option<(Ino, i64)> {
        let (attr, span) = dirs.find(P, name)?;
        assert!(!span.is_zero() && span <= limits::SHOWN_FOR);
        Some((attr.ino, attr.ctime.sec))
    }

    fn enter(dirs: &mut Dirs, name: &[u8], ino: Ino, changed: i64, asked: Moment) {
        dirs.enter((P, name), &attr(ino, changed), (asked, soon()));
    }

    fn knows_d() -> Dirs {
        let mut dirs = Dirs::default();
        let asked = dirs.now();
        enter(&mut dirs, b"d", D, 1, asked);
        assert_eq!(find(&dirs, b"d"), Some((D, 1)));
        dirs
    }

    #[test]
    fn a_directory_is_known_for_as_long_as_its_answer_may_be_believed() {
        let mut dirs = knows_d();
        assert_eq!(find(&dirs, b"e"), None);
        let asked = dirs.now();
        let past = Instant::now();
        dirs.enter((P, b"late"), &attr(Ino(8), 1), (asked, past));
        assert_eq!(find(&dirs, b"late"), None);
        let file = Attr {
            kind: FileKind::Regular,
            ..attr(Ino(9), 1)
        };
        dirs.enter((P, b"f"), &file, (asked, soon()));
        assert_eq!(find(&dirs, b"f"), None);
        dirs.remove(D);
        assert_eq!(find(&dirs, b"d"), None);
        assert!(dirs.known.len() == 1 && dirs.names.len() == 1);
        dirs.clear();
        assert!(dirs.known.is_empty() && dirs.names.is_empty());
    }

    #[test]
    fn a_change_of_this_mount_takes_away_what_was_known_and_what_was_asked_before() {
        for touched in [
            Touched::Attr(D),
            Touched::Name(P, b"d"),
            Touched::Name(D, b"below"),
        ] {
            let mut dirs = knows_d();
            let before = dirs.now();
            dirs.begin_change(touched);
            assert_eq!(find(&dirs, b"d"), None);
            enter(&mut dirs, b"d", D, 1, before);
            assert_eq!(find(&dirs, b"d"), None);
            let meanwhile = dirs.now();
            dirs.end_change(touched);
            for asked in [before, meanwhile] {
                enter(&mut dirs, b"d", D, 1, asked);
                assert_eq!(find(&dirs, b"d"), None);
            }
            let after = dirs.now();
            assert!(dirs.are_newest(D, after) && dirs.under_way.is_empty());
            enter(&mut dirs, b"d", D, 2, after);
            assert_eq!(find(&dirs, b"d"), Some((D, 2)));
        }
    }

    #[test]
    fn a_file_that_is_made_leaves_the_newest_times_in_any_order() {
        let mut dirs = knows_d();
        let (one, two, look) = (dirs.now(), dirs.now(), dirs.now());
        dirs.made_in(D, Some(&attr(D, 5)), (one, soon()));
        assert_eq!(find(&dirs, b"d"), Some((D, 5)));
        dirs.made_in(D, Some(&attr(D, 4)), (two, soon()));
        // Of a look that has come before both.
        enter(&mut dirs, b"d", D, 3, look);
        assert_eq!(find(&dirs, b"d"), Some((D, 5)));
        // The answer does not say how it has left the directory.
        dirs.made_in(D, None, (look, soon()));
        assert_eq!(find(&dirs, b"d"), None);
        enter(&mut dirs, b"d", D, 5, look);
        assert_eq!(find(&dirs, b"d"), None);
        // One that was asked for after that does.
        let later = dirs.now();
        dirs.made_in(D, Some(&attr(D, 6)), (later, soon()));
        assert_eq!(find(&dirs, b"d"), Some((D, 6)));
        // A change of another kind has come between.
        let (between, asked) = (Touched::Attr(D), dirs.now());
        dirs.begin_change(between);
        dirs.end_change(between);
        dirs.made_in(D, Some(&attr(D, 7)), (asked, soon()));
        assert_eq!(find(&dirs, b"d"), None);
    }

    #[test]
    fn what_is_asked_for_during_a_change_is_not_the_newest() {
        let mut dirs = knows_d();
        let change = Touched::Name(D, b"below");
        dirs.begin_change(change);
        dirs.begin_change(change);
        dirs.end_change(change);
        let meanwhile = dirs.now();
        assert!(!dirs.are_newest(D, meanwhile) && dirs.are_newest(P, meanwhile));
        enter(&mut dirs, b"d", D, 2, meanwhile);
        assert_eq!(find(&dirs, b"d"), None);
        dirs.end_change(change);
        assert!(!dirs.are_newest(D, meanwhile));
        let after = dirs.now();
        enter(&mut dirs, b"d", D, 2, after);
        assert_eq!(find(&dirs, b"d"), Some((D, 2)));
    }

    #[test]
    fn what_is_made_in_a_directory_that_is_not_known_is_seen_by_no_old_answer() {
        let mut dirs = Dirs::default();
        let look = dirs.now();
        assert!(!dirs.wants(D));
        dirs.made_in(D, None, (look, soon()));
        enter(&mut dirs, b"d", D, 1, look);
        assert_eq!(find(&dirs, b"d"), None);
        // From then on who makes a file there asks for the attributes.
        assert!(dirs.wants(D));
        let asked = dirs.now();
        dirs.made_in(D, Some(&attr(D, 2)), (asked, soon()));
        assert_eq!(find(&dirs, b"d"), Some((D, 2)));
    }

    #[test]
    fn a_directory_has_one_name_and_a_name_one_directory() {
        let mut dirs = knows_d();
        let asked = dirs.now();
        enter(&mut dirs, b"e", D, 1, asked);
        assert_eq!((find(&dirs, b"d"), find(&dirs, b"e")), (None, None));
        let asked = dirs.now();
        enter(&mut dirs, b"e", D, 1, asked);
        assert_eq!(find(&dirs, b"e"), Some((D, 1)));
        enter(&mut dirs, b"e", Ino(8), 1, asked);
        assert_eq!(find(&dirs, b"e"), Some((Ino(8), 1)));
        assert!(!dirs.wants(D));
    }

    #[test]
    fn what_the_kernel_has_forgotten_is_not_known_nor_what_is_below() {
        for forgotten in [D, P] {
            let mut dirs = knows_d();
            dirs.forgotten(forgotten);
            assert_eq!(find(&dirs, b"d"), None);
            assert!(dirs.known.is_empty() && dirs.names.is_empty());
        }
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let mut dirs = Dirs::default();
        for number in 0..3 * KNOWN_MAX as u64 {
            let asked = dirs.now();
            enter(&mut dirs, &number.to_ne_bytes(), Ino(10 + number), 1, asked);
            assert!(dirs.known.len() <= KNOWN_MAX);
        }
        assert!(!dirs.known.is_empty());
    }
}
