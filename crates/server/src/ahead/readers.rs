//! Who reads which files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use forebay_namespace::{Dir, DirKey};
use forebay_policy::ahead::{self, Reader, Reason, Worth};
use forebay_policy::runs::Busy;
use forebay_types::FileKind;
use parking_lot::Mutex;

use super::{Ahead, runs};
use crate::buffer::guesses::Place;

/// A folder with more files than this is not looked at as a whole.
const FILES_MAX: usize = 200_000;
/// Files of all folders that are looked at so.
const FILES_OF_ALL_MAX: usize = 1_000_000;
/// Opens in a folder before it is listed.
pub(super) const OPENS_MIN: usize = 4;

/// A file on a program's way.
pub struct Item {
    /// Its directory.
    pub dir: Arc<Dir>,
    /// Its name.
    pub name: Vec<u8>,
}

/// A program on its way through files.
pub struct Reading {
    pub(super) id: u64,
    pub(super) items: Vec<Item>,
    places: HashMap<DirKey, HashMap<Vec<u8>, usize>>,
    pub(super) reader: Mutex<Reader>,
    /// When something was opened or brought in the last time.
    pub(super) last: Mutex<Instant>,
    /// Bytes that came in.
    pub(super) bytes: AtomicU64,
    /// Files that are taken to be brought in.
    pub(super) in_flight: AtomicUsize,
    /// How long they took.
    pub(super) busy: Mutex<Busy>,
    /// There was no room: until then nothing is tried.
    pub(super) blocked_until: Mutex<Option<Instant>>,
    is_list: bool,
}

impl Reading {
    fn new(id: u64, reason: Reason, items: Vec<Item>) -> Reading {
        let mut places: HashMap<DirKey, HashMap<Vec<u8>, usize>> = HashMap::new();
        for (at, item) in items.iter().enumerate() {
            let folder = places.entry(item.dir.key).or_default();
            folder.insert(item.name.clone(), at);
        }
        Reading {
            id,
            places,
            reader: Mutex::new(Reader::new(reason, items.len())),
            items,
            last: Mutex::new(Instant::now()),
            bytes: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            busy: Mutex::default(),
            blocked_until: Mutex::new(None),
            is_list: reason == Reason::List,
        }
    }

    /// Somebody has ordered it.
    pub fn is_list(&self) -> bool {
        self.is_list
    }

    pub(super) fn reason(&self) -> Reason {
        self.reader.lock().reason()
    }

    /// The program has opened that file.
    pub fn has_read(&self, index: usize) -> bool {
        self.reader.lock().has_read(index)
    }

    /// Nothing more will be brought in.
    pub fn is_over(&self) -> bool {
        self.reader.lock().is_over()
    }

    /// All has come that comes.
    pub(super) fn is_settled(&self) -> bool {
        self.is_over() && self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Files that were read, and bytes that came in.
    pub fn progress(&self) -> (usize, u64) {
        let read = self.reader.lock().read();
        (read, self.bytes.load(Ordering::Relaxed))
    }

    /// For how long nothing has happened.
    pub fn idle(&self) -> std::time::Duration {
        self.last.lock().elapsed()
    }

    /// The program has read all that can be read.
    pub fn is_done(&self) -> bool {
        self.reader.lock().is_done()
    }

    /// The program has opened the last file.
    pub fn has_reached_end(&self) -> bool {
        self.reader.lock().has_reached_end()
    }

    pub(super) fn is_blocked(&self) -> bool {
        let until = *self.blocked_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// It is one of a run, which waits here for its end, and all of it was looked after.
    pub(super) fn has_ended(&self) -> bool {
        runs::run_of(self.id).is_some() && self.is_over()
    }

    pub(super) fn place_of(&self, dir: &Dir, name: &[u8]) -> Option<usize> {
        self.places.get(&dir.key)?.get(name).copied()
    }

    /// Folders of its files, each once.
    pub(super) fn folders(&self) -> impl Iterator<Item = DirKey> {
        self.places.keys().copied()
    }

    pub(super) fn opened(&self, index: usize, now_s: f64) {
        self.reader.lock().opened(index, now_s);
        *self.last.lock() = Instant::now();
    }
}

/// A folder in which something was opened of late.
pub struct Folder {
    /// Opens before it was listed.
    pub(super) first: Vec<Vec<u8>>,
    pub(super) listed: Option<Listed>,
    pub(super) reading: Option<u64>,
    /// Those of before: what was brought in for them may still go unread.
    pub(super) ended: Vec<u64>,
    pub(super) worth: Worth,
    pub(super) last: Instant,
    /// Guesses in it were in vain: until then it is left alone.
    pub(super) left_alone_until: Option<Instant>,
}

/// Its files.
pub(super) struct Listed {
    /// In the order of their names.
    names: Vec<Vec<u8>>,
    learned: ahead::Folder,
}

impl Listed {
    /// A file was opened; whether others are expected.
    pub fn opened(&mut self, name: &[u8]) -> Option<Reason> {
        let place = self.names.binary_search_by(|known| known[..].cmp(name));
        self.learned.opened(place.ok()?)
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Files in the order in which they are expected, and which of them were read already.
    fn expected(&self, dir: &Arc<Dir>, reason: Reason) -> (Vec<Item>, Vec<usize>) {
        let places = self.learned.expected(reason);
        let was_read = |(_, place): &(usize, &u32)| self.learned.has_seen(**place as usize);
        let read = places.iter().enumerate().filter(was_read);
        let read = read.map(|(index, _)| index).collect();
        let item = |place: &u32| Item {
            dir: dir.clone(),
            name: self.names[*place as usize].clone(),
        };
        (places.iter().map(item).collect(), read)
    }
}

impl Folder {
    /// Whether what was brought in for that reader was a guess here.
    pub(super) fn was_for(&self, reader: u64) -> bool {
        self.reading == Some(reader) || self.ended.contains(&reader)
    }

    pub(super) fn new() -> Folder {
        Folder {
            first: Vec::new(),
            listed: None,
            reading: None,
            ended: Vec::new(),
            worth: Worth::default(),
            last: Instant::now(),
            left_alone_until: None,
        }
    }
}

impl Ahead {
    /// A program is about to read these files, in this order.
    pub fn begin_list(self: &Arc<Self>, items: Vec<Item>) -> Arc<Reading> {
        self.buffer.guesses().is_interested();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.begin(id, Reason::List, (items, Vec::new()))
    }

    /// It has ended, or nobody wants it any more.
    pub fn end_list(&self, reading: &Reading) {
        self.end(reading.id);
        self.buffer.guesses().is_not_interested();
    }

    pub(super) fn begin(
        self: &Arc<Self>,
        id: u64,
        reason: Reason,
        (items, read): (Vec<Item>, Vec<usize>),
    ) -> Arc<Reading> {
        let reading = Arc::new(Reading::new(id, reason, items));
        reading.reader.lock().begin_after(read);
        // What is here already is not brought in, and its opens tell how far the program is.
        for (index, item) in reading.items.iter().enumerate() {
            if let Some(file) = item.dir.child(&item.name) {
                let place = Place { reader: id, index };
                self.buffer.guesses().watch(file.object, place, None);
            }
        }
        self.readings.lock().insert(reading.clone());
        self.bring_some();
        reading
    }

    pub(super) fn end(&self, id: u64) {
        self.readings.lock().remove(id);
        self.buffer.guesses().forget(id);
    }

    pub(super) fn begin_folder(
        self: &Arc<Self>,
        dir: &Arc<Dir>,
        reason: Reason,
        listed: &Listed,
    ) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.begin(id, reason, listed.expected(dir, reason)).id
    }

    /// The regular files of a directory; `None`: too many, or it cannot be listed.
    pub(super) fn list(&self, dir: &Arc<Dir>, others: usize) -> Option<Listed> {
        if self.base.health().is_silent() {
            return None;
        }
        let entries = match self.base.ns().list(dir) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::debug!("{dir:?} is not read ahead: {error}");
                return None;
            }
        };
        let files = entries
            .into_iter()
            .filter(|entry| entry.kind == FileKind::Regular);
        let mut files: Vec<(Vec<u8>, u32)> = (0..)
            .zip(files)
            .map(|(at, entry)| (entry.name, at))
            .collect();
        if files.len() > FILES_MAX || files.len() + others > FILES_OF_ALL_MAX {
            return None;
        }
        files.sort_unstable();
        let (names, places): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        Some(Listed {
            names,
            learned: ahead::Folder::new(places),
        })
    }
}
