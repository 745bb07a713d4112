//! What clients were shown lately and may still believe, and who must be told when it changes.
//!
//! Invariants:
//!
//! 1. What is shown as firm is on record here for as long as it is believed.
//! 2. A change is on record before anybody is asked to forget. Whoever looked before the change
//!    and is not asked to forget finds the change on record, and is shown nothing firm.
//! 3. So it is with names: a change is on record before it is looked where the name has led.
//! 4. A client that has made a directory knows all its names, until another client makes one there:
//!    that is on record before it is looked who has made the directory.
//! 5. Nothing is firm of a file that a kernel writes by itself: it changes out of the server's
//!    sight.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_types::{Ino, limits};
use forebay_wire::Link;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// How long the server counts on what a client was shown: a quarter longer than the client may, for
/// timers that are late.
pub const BELIEVED_FOR: Duration = limits::SHOWN_FOR.saturating_add(Duration::from_millis(250));

/// Locks are spread over so many shards.
const SHARDS: usize = 16;
/// Changes are told apart by so many marks; who shares one with another is shown less as firm.
const MARKS: usize = 4096;

/// A name in a directory. Two that have the same key are taken for each other, which costs a recall
/// too many.
pub type NameKey = u64;

/// Clients, by the number of their session.
pub type Viewers = SmallVec<[u32; 2]>;

/// What has led where.
pub type Targets = SmallVec<[Ino; 1]>;

/// What has happened within [`BELIEVED_FOR`], and some that is older: the young half becomes the
/// old one when it has that age.
struct Halves<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    since: Instant,
}

impl<K: Hash + Eq, V> Halves<K, V> {
    fn new() -> Halves<K, V> {
        Halves {
            young: HashMap::new(),
            old: HashMap::new(),
            since: Instant::now(),
        }
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed < BELIEVED_FOR {
            return;
        }
        self.old = match passed < 2 * BELIEVED_FOR {
            true => std::mem::take(&mut self.young),
            false => HashMap::new(),
        };
        self.young = HashMap::new();
        self.since = now;
    }
}

struct Lately<K, V>([Mutex<Halves<K, V>>; SHARDS]);

impl<K: Hash + Eq, V> Lately<K, V> {
    fn new() -> Lately<K, V> {
        Lately(std::array::from_fn(|_| Mutex::new(Halves::new())))
    }

    fn with<T>(&self, key: u64, f: impl FnOnce(&mut Halves<K, V>) -> T) -> T {
        let mut halves = self.0[key as usize % SHARDS].lock();
        halves.turn(Instant::now());
        f(&mut halves)
    }
}

/// See the module.
pub struct ShownLately {
    /// Counts changes.
    changes: AtomicU64,
    /// The number of the last change of what has this mark.
    marks: Box<[AtomicU64]>,
    hasher: RandomState,
    /// Who was shown these attributes.
    attrs: Lately<Ino, Viewers>,
    /// What these names have led to.
    names: Lately<NameKey, Targets>,
    /// Who knows all names of these directories.
    wholes: Lately<Ino, u32>,
    /// Files that kernels write by themselves, and how often they are open so.
    written: Mutex<HashMap<Ino, u32>>,
    writers: AtomicUsize,
}

impl ShownLately {
    /// Nobody was shown anything.
    pub fn new() -> ShownLately {
        ShownLately {
            changes: AtomicU64::new(0),
            marks: (0..MARKS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            attrs: Lately::new(),
            names: Lately::new(),
            wholes: Lately::new(),
            written: Mutex::default(),
            writers: AtomicUsize::new(0),
        }
    }

    /// The key of a name.
    pub fn key(&self, link: &Link) -> NameKey {
        self.hasher.hash_one((link.parent, &link.name))
    }

    /// The moment at which a look begins.
    pub fn now(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn mark(&self, what: u64) -> &AtomicU64 {
        &self.marks[what as usize % MARKS]
    }

    fn has_changed(&self, what: u64, since: u64) -> bool {
        self.mark(what).load(Ordering::SeqCst) > since
    }

    fn note_change(&self, what: u64) {
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.mark(what).fetch_max(number, Ordering::SeqCst);
    }

    /// A client is about to be shown attributes that were looked at after the moment `since`.
    /// Whether they are firm.
    pub fn show_attr(&self, ino: Ino, client: u32, since: u64) -> bool {
        self.attrs.with(ino.0, |halves| {
            let viewers = halves.young.entry(ino).or_default();
            if !viewers.contains(&client) {
                viewers.push(client);
            }
        });
        !self.has_changed(ino.0, since) && !self.is_written(ino)
    }

    /// A name leads to this, or to nothing.
    pub fn leads_to(&self, name: NameKey, target: Option<Ino>) {
        self.names.with(name, |halves| {
            let targets = halves.young.entry(name).or_default();
            if let Some(target) = target.filter(|target| !targets.contains(target)) {
                targets.push(target);
            }
        });
    }

    /// A name has come to lead elsewhere, or is about to be answered so.
    pub fn name_changed(&self, name: NameKey) {
        self.note_change(name);
    }

    /// Whether it has since the moment `since`. Asked after [`Self::leads_to`]: whoever changes the
    /// name either finds there what is shown, or is found by this.
    pub fn has_name_changed(&self, name: NameKey, since: u64) -> bool {
        self.has_changed(name, since)
    }

    /// What a name has led to lately; `None` where that is not known.
    pub fn targets(&self, name: NameKey) -> Option<Targets> {
        self.names.with(name, |halves| {
            let known = [&halves.young, &halves.old].map(|half| half.get(&name).cloned());
            known.into_iter().flatten().reduce(|mut all, more| {
                all.extend(more);
                all
            })
        })
    }

    /// Attributes have changed by the doing of `client`. Who else has to forget them: whose doing
    /// it was knows of it.
    pub fn attr_changed(&self, ino: Ino, client: u32) -> Viewers {
        self.note_change(ino.0);
        self.attrs.with(ino.0, |halves| {
            let mut others = Viewers::new();
            for half in [&mut halves.young, &mut halves.old] {
                let Some(viewers) = half.get_mut(&ino) else {
                    continue;
                };
                others.extend(viewers.iter().copied().filter(|viewer| *viewer != client));
                viewers.retain(|viewer| *viewer == client);
            }
            others.sort_unstable();
            others.dedup();
            others
        })
    }

    fn mark_of_names(&self, dir: Ino) -> u64 {
        self.hasher.hash_one((dir, "names"))
    }

    /// A client has made a directory after the moment `since`, and is about to be told that it has
    /// no name. Whether that may be said, and whether another client believes that it knows the
    /// names of one with this number.
    pub fn begin_whole(&self, dir: Ino, client: u32, since: u64) -> (bool, bool) {
        let is_others = self.take_whole(dir, client);
        self.wholes.with(dir.0, |halves| {
            halves.young.insert(dir, client);
        });
        (!self.has_changed(self.mark_of_names(dir), since), is_others)
    }

    /// Whether a client still knows all names that the burst buffer has in a directory; if so, it
    /// does for as long again.
    pub fn is_whole(&self, dir: Ino, client: u32) -> bool {
        self.wholes.with(dir.0, |halves| {
            let known = [&halves.young, &halves.old].map(|half| half.get(&dir).copied());
            let is_its = known.into_iter().flatten().next() == Some(client);
            if is_its {
                halves.young.insert(dir, client);
            }
            is_its
        })
    }

    /// A client has made a name in a directory. Whether another one has to hear of it, which
    /// believes that it knows all names there.
    pub fn makes_name(&self, dir: Ino, client: u32) -> bool {
        self.note_change(self.mark_of_names(dir));
        self.take_whole(dir, client)
    }

    /// Whoever else knows the names of a directory does no more.
    fn take_whole(&self, dir: Ino, client: u32) -> bool {
        self.wholes.with(dir.0, |halves| {
            let mut others = false;
            for half in [&mut halves.young, &mut halves.old] {
                if half.get(&dir).is_some_and(|holder| *holder != client) {
                    half.remove(&dir);
                    others = true;
                }
            }
            others
        })
    }

    fn is_written(&self, ino: Ino) -> bool {
        self.writers.load(Ordering::SeqCst) > 0 && self.written.lock().contains_key(&ino)
    }

    /// A kernel writes a file by itself from now on.
    pub fn begin_writing(&self, ino: Ino) {
        *self.written.lock().entry(ino).or_default() += 1;
        self.writers.fetch_add(1, Ordering::SeqCst);
    }

    /// That has ended, for one of those who have it open so.
    pub fn end_writing(&self, ino: Ino) {
        let mut written = self.written.lock();
        if let Some(count) = written.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                written.remove(&ino);
            }
            self.writers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(7);

    #[test]
    fn a_change_is_told_to_all_others_who_were_shown_it_once() {
        let lately = ShownLately::new();
        let since = lately.now();
        assert!(
            [1, 2, 2, 3]
                .iter()
                .all(|&client| lately.show_attr(F, client, since))
        );
        assert_eq!(lately.attr_changed(F, 2)[..], [1, 3]);
        assert!(lately.attr_changed(F, 2).is_empty());
        // Its own belief is still there for the next change of another.
        assert_eq!(lately.attr_changed(F, 1)[..], [2]);
        assert!(lately.attr_changed(Ino(8), 1).is_empty());
    }

    #[test]
    fn who_looked_before_a_change_and_is_shown_it_after_is_shown_nothing_firm() {
        let lately = ShownLately::new();
        let since = lately.now();
        assert!(lately.attr_changed(F, 2).is_empty());
        assert!(!lately.show_attr(F, 1, since));
        assert!(lately.show_attr(F, 1, lately.now()));
    }

    #[test]
    fn nothing_is_firm_of_what_a_kernel_writes_by_itself() {
        let lately = ShownLately::new();
        lately.begin_writing(F);
        lately.begin_writing(F);
        lately.end_writing(F);
        assert!(!lately.show_attr(F, 1, lately.now()));
        assert!(lately.show_attr(Ino(8), 1, lately.now()));
        lately.end_writing(F);
        lately.end_writing(F);
        assert!(lately.show_attr(F, 1, lately.now()));
    }

    #[test]
    fn who_makes_a_directory_knows_its_names_until_another_makes_one() {
        let lately = ShownLately::new();
        let since = lately.now();
        assert!(!lately.is_whole(F, 1));
        assert_eq!(lately.begin_whole(F, 1, since), (true, false));
        assert!(lately.is_whole(F, 1) && !lately.is_whole(F, 2));
        assert!(!lately.makes_name(F, 1) && lately.is_whole(F, 1));
        assert!(!lately.makes_name(Ino(8), 2) && lately.is_whole(F, 1));
        assert!(lately.makes_name(F, 2) && !lately.is_whole(F, 1));
        assert!(!lately.makes_name(F, 2));
        // A directory that has the number of one that is gone.
        assert_eq!(lately.begin_whole(F, 1, lately.now()), (true, false));
        assert_eq!(lately.begin_whole(F, 2, lately.now()), (true, true));
        assert!(lately.is_whole(F, 2) && !lately.is_whole(F, 1));
    }

    #[test]
    fn a_name_that_is_made_before_the_maker_of_the_directory_is_on_record_is_found() {
        let lately = ShownLately::new();
        let since = lately.now();
        assert!(!lately.makes_name(F, 2));
        assert_eq!(lately.begin_whole(F, 1, since), (false, false));
    }

    #[test]
    fn all_that_a_name_has_led_to_is_known_for_a_while() {
        let lately = ShownLately::new();
        let name = lately.key(&Link {
            parent: Ino::ROOT,
            name: b"a".to_vec(),
        });
        assert_eq!(lately.targets(name), None);
        lately.leads_to(name, None);
        assert_eq!(lately.targets(name).as_deref(), Some(&[][..]));
        lately.leads_to(name, Some(Ino(1)));
        lately.leads_to(name, Some(Ino(2)));
        lately.leads_to(name, Some(Ino(1)));
        let known = [Ino(1), Ino(2)];
        assert_eq!(lately.targets(name).as_deref(), Some(&known[..]));
    }

    #[test]
    fn who_looked_before_a_name_changed_and_notes_it_after_is_told() {
        let lately = ShownLately::new();
        let name = lately.key(&Link {
            parent: Ino::ROOT,
            name: b"a".to_vec(),
        });
        let since = lately.now();
        // Who renames it finds nothing that it has led to.
        lately.name_changed(name);
        assert_eq!(lately.targets(name), None);
        lately.leads_to(name, Some(F));
        assert!(lately.has_name_changed(name, since));
        assert!(!lately.has_name_changed(name, lately.now()));
    }

    #[test]
    fn what_nobody_can_believe_any_more_is_dropped() {
        let mut halves: Halves<u32, u32> = Halves::new();
        let begun = halves.since;
        halves.young.insert(1, 1);
        halves.turn(begun + BELIEVED_FOR - Duration::from_millis(1));
        assert!(halves.young.contains_key(&1));
        halves.turn(begun + BELIEVED_FOR);
        assert!(halves.young.is_empty() && halves.old.contains_key(&1));
        halves.turn(begun + 2 * BELIEVED_FOR);
        assert!(halves.old.is_empty());
        halves.young.insert(2, 2);
        halves.turn(begun + 5 * BELIEVED_FOR);
        assert!(halves.young.is_empty() && halves.old.is_empty());
    }
}
