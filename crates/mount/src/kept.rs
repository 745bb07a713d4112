//! Whether the kernel may keep the pages that it has of a file when the file is opened anew.
//!
//! The kernel fills pages by requests to read. It drops all pages of a file at an open whose answer
//! does not say to keep them, but *after* that answer, and it tells nobody when. Invariants:
//!
//! 1. A version is on record as [`Pages::Clean`] only if all pages that the kernel has of the file
//!    were read after the server had said this version. While the server says it again, they are
//!    what the file has.
//! 2. An open that drops the pages makes a version clean when the kernel asks by its handle to
//!    read: a program gets the handle once the pages are gone. A close says nothing, for an open
//!    may fail after its answer.
//! 3. A file that was last opened without a version has no record: its content was about to change.
//!
//! A request to read that is under way meanwhile brings nothing old back: the page that it fills is
//! locked, and the kernel waits for it before it drops the page.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_types::{Handle, Ino};
use forebay_wire::ContentVersion;
use parking_lot::Mutex;

/// Files in each half of the table. A file that is not in it is read a second time.
const HALF_MAX: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// The open that has this handle drops those from before.
    Dropped(Handle),
    /// There are none from before.
    Clean,
    /// The file was opened to be read round them.
    Round,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    version: ContentVersion,
    pages: Pages,
}

impl Record {
    /// For a request to read.
    fn waits(&self) -> bool {
        matches!(self.pages, Pages::Dropped(_))
    }
}

/// The younger half takes the place of the older when it is full.
#[derive(Default)]
struct Table {
    young: HashMap<Ino, Record>,
    old: HashMap<Ino, Record>,
    /// Records that wait for a request to read.
    waiting: usize,
}

impl Table {
    fn take(&mut self, ino: Ino) -> Option<Record> {
        let record = self.young.remove(&ino).or_else(|| self.old.remove(&ino))?;
        self.waiting -= usize::from(record.waits());
        Some(record)
    }

    fn put(&mut self, ino: Ino, record: Record) {
        if self.young.len() >= HALF_MAX {
            self.old = std::mem::take(&mut self.young);
            self.waiting = self.old.values().filter(|record| record.waits()).count();
        }
        self.waiting += usize::from(record.waits());
        self.young.insert(ino, record);
    }
}

/// Of which contents the kernel has pages.
#[derive(Default)]
pub(crate) struct Kept {
    table: Mutex<Table>,
    /// The table's `waiting`: a request to read looks no further where nothing waits for one.
    waiting: AtomicUsize,
}

impl Kept {
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let changed = change(&mut table);
        self.waiting.store(table.waiting, Ordering::Release);
        changed
    }

    /// A file is about to be opened with this content. Whether the kernel may keep its pages; else
    /// the open drops them.
    pub(crate) fn opened(&self, ino: Ino, handle: Handle, content: Option<ContentVersion>) -> bool {
        self.change(|table| {
            let before = table.take(ino);
            let Some(version) = content else {
                return false;
            };
            let is_same = |one: &Record| (one.version, one.pages) == (version, Pages::Clean);
            let keep = before.as_ref().is_some_and(is_same);
            let pages = match keep {
                true => Pages::Clean,
                false => Pages::Dropped(handle),
            };
            table.put(ino, Record { version, pages });
            keep
        })
    }

    /// A file is about to be opened to be read round the pages. Whether it was opened before, with
    /// this content: then it is worth its pages.
    pub(crate) fn is_opened_again(&self, ino: Ino, version: ContentVersion) -> bool {
        self.change(|table| {
            let before = table.take(ino);
            if let Some(record) = before.filter(|record| record.version == version) {
                table.put(ino, record);
                return true;
            }
            let pages = Pages::Round;
            table.put(ino, Record { version, pages });
            false
        })
    }

    /// The kernel asks by this handle to read: a program has it.
    pub(crate) fn read(&self, ino: Ino, handle: Handle) {
        // What an open has stored is seen by whoever has its answer.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        self.change(|table| {
            let Some(mut record) = table.take(ino) else {
                return;
            };
            if record.pages == Pages::Dropped(handle) {
                record.pages = Pages::Clean;
            }
            table.put(ino, record);
        });
    }

    /// The kernel does not know the file any more, and has no pages.
    pub(crate) fn forgotten(&self, ino: Ino) {
        self.change(|table| table.take(ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(7);

    fn version(number: u64) -> Option<ContentVersion> {
        Some(ContentVersion { run: 1, number })
    }

    /// Opens, and reads if that has dropped the pages.
    fn read_all(kept: &Kept, handle: u64, content: Option<ContentVersion>) -> bool {
        let keep = kept.opened(F, Handle(handle), content);
        if !keep {
            kept.read(F, Handle(handle));
        }
        keep
    }

    #[test]
    fn pages_stay_exactly_while_the_content_does() {
        let kept = Kept::default();
        assert!(!read_all(&kept, 1, version(1)), "nothing is known");
        assert!(read_all(&kept, 2, version(1)));
        assert!(read_all(&kept, 3, version(1)));
        assert!(!read_all(&kept, 4, version(2)), "it has changed");
        assert!(read_all(&kept, 5, version(2)));
        let other_run = version(2).map(|v| ContentVersion { run: 2, ..v });
        assert!(
            !read_all(&kept, 6, other_run),
            "the server has started anew"
        );
        assert!(!kept.opened(Ino(8), Handle(7), other_run), "another file");
    }

    #[test]
    fn an_open_that_may_change_the_file_leaves_nothing_to_believe() {
        let kept = Kept::default();
        read_all(&kept, 1, version(1));
        assert!(!read_all(&kept, 2, None));
        // Nothing was written, or what was written was lost on the way: the version is the same.
        assert!(!read_all(&kept, 3, version(1)));
        assert!(read_all(&kept, 4, version(1)));
    }

    #[test]
    fn nothing_is_kept_before_the_kernel_has_surely_dropped_what_was() {
        let kept = Kept::default();
        read_all(&kept, 1, version(1));
        // The answer to this open is under way; the kernel still has the old pages.
        assert!(!kept.opened(F, Handle(2), version(2)));
        assert!(!kept.opened(F, Handle(3), version(2)));
        // By a handle that was opened before.
        kept.read(F, Handle(1));
        assert!(!kept.opened(F, Handle(4), version(2)));
        kept.read(Ino(8), Handle(4));
        kept.read(F, Handle(3));
        assert!(!kept.opened(F, Handle(5), version(2)));
        kept.read(F, Handle(5));
        assert!(kept.opened(F, Handle(6), version(2)));
        assert_eq!(kept.waiting.load(Ordering::Acquire), 0);
    }

    #[test]
    fn what_is_opened_again_is_worth_its_pages() {
        let kept = Kept::default();
        let [one, two] = [1, 2].map(|number| version(number).expect("one"));
        assert!(!kept.is_opened_again(F, one));
        assert!(kept.is_opened_again(F, one));
        // Those that there are may be of any time.
        assert!(!read_all(&kept, 1, Some(one)));
        assert!(kept.is_opened_again(F, one) && read_all(&kept, 2, Some(one)));
        assert!(!kept.is_opened_again(F, two), "it has changed");
        assert!(!read_all(&kept, 3, Some(two)));
        kept.opened(F, Handle(4), None);
        assert!(!kept.is_opened_again(F, two), "it was about to change");
        assert_eq!(kept.waiting.load(Ordering::Acquire), 0);
    }

    #[test]
    fn what_the_kernel_has_forgotten_is_not_remembered() {
        let kept = Kept::default();
        kept.opened(F, Handle(1), version(1));
        assert_eq!(kept.waiting.load(Ordering::Acquire), 1);
        kept.forgotten(F);
        assert_eq!(kept.waiting.load(Ordering::Acquire), 0);
        kept.read(F, Handle(1));
        assert!(!kept.opened(F, Handle(2), version(1)));
    }

    #[test]
    fn the_table_is_bounded() {
        let kept = Kept::default();
        for n in 0..3 * HALF_MAX as u64 {
            assert!(!kept.opened(Ino(100 + n), Handle(n), version(n)));
            let keep = read_all(&kept, u64::MAX, version(1));
            assert!(keep || n == 0, "what is used stays: {n}");
        }
        let table = kept.table.lock();
        let all = || table.young.values().chain(table.old.values());
        assert!(all().count() <= 2 * HALF_MAX);
        assert_eq!(all().filter(|record| record.waits()).count(), table.waiting);
    }
}
