//! The records that are not over, and what changes them.

use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_types::history::{Record, What};

use super::key::Key;

#[cfg(doc)]
use super::Keep;

/// Records that are not over. Beyond that the oldest is over as it is.
const OPEN_MAX: usize = 4096;
/// Records that are over and not saved, while the store takes nothing. The oldest go beyond that.
const OVER_MAX: usize = 1 << 14;
/// Of a restart, files that were counted are remembered of so many.
const COUNTED_MAX: usize = 1 << 16;

/// A file that is being written.
#[derive(Clone, Copy)]
struct Writing {
    begun_ms: u64,
    wait_us: u64,
    stall_us: u64,
}

impl Writing {
    fn new(begun_ms: u64) -> Writing {
        Writing {
            begun_ms,
            wait_us: 0,
            stall_us: 0,
        }
    }
}

/// A file that was written and is not on the PFS.
#[derive(Clone, Copy)]
struct Share {
    record: u64,
    written: Writing,
    /// What it counts in the record.
    bytes: u64,
    /// What all of the file is.
    size_bytes: u64,
    is_direct: bool,
    ended_ms: u64,
    /// A start has found it, perhaps while a program that outlives the start writes it.
    is_found: bool,
}

struct Open {
    record: Record,
    /// When it last changed.
    touched_ms: u64,
    /// Counts changes.
    changes: u64,
    /// As many were saved.
    saved: u64,
    /// Files of it that are to be drained.
    shares: u64,
    /// It is in the store.
    is_stored: bool,
    /// Of a restart: files that were counted.
    counted: HashSet<u64>,
}

/// A file that a start has found undrained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its object.
    pub object: u64,
    /// What it belongs to.
    pub key: Key,
    /// What it occupies, bytes.
    pub bytes: u64,
    /// When it was last changed, as far as that can be ([`Keep::possible_ms`]).
    pub changed_ms: u64,
    /// It is on the PFS already, without its name.
    pub is_direct: bool,
}

/// What the store is to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Records that are not over, with the count of their changes.
    pub open: Vec<(u64, Record, u64)>,
    /// Records that are over.
    pub over: Vec<(u64, Record)>,
    /// Records of which nothing is left.
    pub void: Vec<u64>,
}

/// The records that are not over, or not saved.
pub struct Book {
    quiet_ms: u64,
    next: u64,
    open: BTreeMap<u64, Open>,
    /// The record that takes in what comes.
    current: HashMap<Key, u64>,
    restarts: HashMap<Key, u64>,
    /// With what each belonged to when it was opened.
    writing: HashMap<u64, (Writing, Key)>,
    shares: HashMap<u64, Share>,
    over: Vec<(u64, Record)>,
    void: Vec<u64>,
}

impl Book {
    /// Empty. Records have numbers from `first` on, which no other start may give; after a pause of
    /// `quiet_ms` what comes is another record, where no version says so.
    pub fn new(first: u64, quiet_ms: u64) -> Book {
        Book {
            quiet_ms,
            next: first,
            open: BTreeMap::new(),
            current: HashMap::new(),
            restarts: HashMap::new(),
            writing: HashMap::new(),
            shares: HashMap::new(),
            over: Vec::new(),
            void: Vec::new(),
        }
    }

    fn begin(&mut self, record: Record, touched_ms: u64) -> u64 {
        let id = self.next;
        self.next += 1;
        let open = Open {
            record,
            touched_ms,
            changes: 1,
            saved: 0,
            shares: 0,
            is_stored: false,
            counted: HashSet::new(),
        };
        self.open.insert(id, open);
        if self.open.len() > OPEN_MAX
            && let Some(oldest) = self.open.keys().next().copied()
        {
            self.end(oldest);
        }
        id
    }

    fn end(&mut self, id: u64) {
        if let Some(mut open) = self.open.remove(&id) {
            open.record.over = true;
            if self.over.len() >= OVER_MAX {
                self.over.remove(0);
            }
            self.over.push((id, open.record));
        }
    }

    fn change(&mut self, id: u64, now_ms: u64, change: impl FnOnce(&mut Record)) {
        if let Some(open) = self.open.get_mut(&id) {
            change(&mut open.record);
            open.touched_ms = now_ms;
            open.changes += 1;
        }
    }

    /// The record of what is written now, and was begun then.
    fn current(&mut self, key: &Key, begun_ms: u64, now_ms: u64) -> u64 {
        let pause_ms = self.quiet_ms;
        if let Some(id) = self.current.get(key)
            && let Some(open) = self.open.get(id)
            && (key.version.is_some() || begun_ms <= open.record.ended_ms.saturating_add(pause_ms))
        {
            return *id;
        }
        let id = self.begin(key.begin(What::Version, begun_ms), now_ms);
        self.current.insert(key.clone(), id);
        id
    }

    /// A file is being written.
    pub fn opened(&mut self, object: u64, key: Key, now_ms: u64) {
        let written = Writing::new(now_ms);
        self.writing.entry(object).or_insert((written, key));
    }

    /// Who writes a file has waited for a turn, and for space.
    pub fn waited(&mut self, object: u64, wait_us: u64, stall_us: u64) {
        if let Some((writing, _)) = self.writing.get_mut(&object) {
            add(&mut writing.wait_us, wait_us);
            add(&mut writing.stall_us, stall_us);
        }
    }

    /// Nobody writes a file any more.
    pub fn put_down(&mut self, object: u64) {
        self.writing.remove(&object);
    }

    /// A file was written and closed.
    pub fn closed(&mut self, object: u64, key: &Key, size: (u64, bool), now_ms: u64) {
        let opened = self.writing.remove(&object);
        let written = opened.map_or_else(|| Writing::new(now_ms), |(written, _)| written);
        let (bytes, is_direct) = size;
        let mut share = Share {
            record: 0,
            written,
            bytes,
            size_bytes: bytes,
            is_direct,
            ended_ms: now_ms,
            is_found: false,
        };
        match self.shares.get(&object).copied() {
            Some(before) if before.is_found => self.withdraw(object, now_ms),
            Some(before) => {
                // Who appends to what is undrained has not written all of the file again.
                share.bytes = bytes.saturating_sub(before.size_bytes);
                if before.record == self.current(key, written.begun_ms, now_ms) {
                    self.written_again(object, share, now_ms);
                    return;
                }
                self.gone(object, now_ms);
            }
            None => {}
        }
        self.take_in(object, key, share, now_ms);
    }

    /// An undrained file was written again within its record: what is left of its bytes stays
    /// counted.
    fn written_again(&mut self, object: u64, share: Share, now_ms: u64) {
        let Some(before) = self.unshare(object) else {
            return;
        };
        let left_bytes = before.bytes.min(share.size_bytes);
        self.change(before.record, now_ms, |record| {
            add(&mut record.gone_files, 1);
            add(&mut record.gone_bytes, before.bytes - left_bytes);
        });
        self.count(before.record, &share, now_ms);
        let bytes = left_bytes.saturating_add(share.bytes);
        let record = before.record;
        self.share(
            object,
            Share {
                record,
                bytes,
                ..share
            },
        );
    }

    fn take_in(&mut self, object: u64, key: &Key, share: Share, now_ms: u64) {
        let record = self.current(key, share.written.begun_ms, now_ms);
        self.count(record, &share, now_ms);
        self.share(object, Share { record, ..share });
    }

    fn count(&mut self, id: u64, share: &Share, now_ms: u64) {
        let written = share.written;
        self.change(id, now_ms, |record| {
            record.begun_ms = record.begun_ms.min(written.begun_ms);
            record.ended_ms = record.ended_ms.max(share.ended_ms);
            add(&mut record.files, 1);
            add(&mut record.bytes, share.bytes);
            add(&mut record.direct_files, u64::from(share.is_direct));
            if share.is_direct {
                add(&mut record.direct_bytes, share.bytes);
            }
            add(&mut record.wait_us, written.wait_us);
            add(&mut record.stall_us, written.stall_us);
        });
    }

    fn share(&mut self, object: u64, share: Share) {
        if let Some(open) = self.open.get_mut(&share.record) {
            open.shares += 1;
        }
        self.shares.insert(object, share);
    }

    fn unshare(&mut self, object: u64) -> Option<Share> {
        let share = self.shares.remove(&object)?;
        if let Some(open) = self.open.get_mut(&share.record) {
            open.shares -= 1;
        }
        Some(share)
    }

    /// An undrained file belongs to something else now: its name has changed.
    pub fn renamed(&mut self, object: u64, key: &Key, now_ms: u64) {
        let Some(share) = self.shares.get(&object).copied() else {
            return;
        };
        let is_there = |open: &Open| Key::of(&open.record) == *key;
        if self.open.get(&share.record).is_none_or(is_there) {
            return;
        }
        self.withdraw(object, now_ms);
        self.take_in(object, key, share, now_ms);
    }

    /// A file counts as if it had never been written.
    fn withdraw(&mut self, object: u64, now_ms: u64) {
        let Some(share) = self.unshare(object) else {
            return;
        };
        let mut is_void = false;
        self.change(share.record, now_ms, |record| {
            // After a start it may be counted with the files of another record of that name.
            let less = |from: &mut u64, by: u64| *from = from.saturating_sub(by);
            less(&mut record.files, 1);
            less(&mut record.bytes, share.bytes);
            less(&mut record.direct_files, u64::from(share.is_direct));
            less(
                &mut record.direct_bytes,
                if share.is_direct { share.bytes } else { 0 },
            );
            less(&mut record.wait_us, share.written.wait_us);
            less(&mut record.stall_us, share.written.stall_us);
            is_void = record.files == 0;
        });
        if is_void && let Some(open) = self.open.remove(&share.record) {
            self.void.extend(open.is_stored.then_some(share.record));
        }
    }

    /// The copy of a file to the PFS begins.
    pub fn copying(&mut self, object: u64, now_ms: u64) {
        if let Some(share) = self.shares.get(&object) {
            self.change(share.record, now_ms, |record| {
                record.drain_begun_ms.get_or_insert(now_ms);
            });
        }
    }

    /// A file is whole on the PFS; so much was copied for that.
    pub fn drained(&mut self, object: u64, copied_bytes: u64, now_ms: u64) {
        if let Some(share) = self.unshare(object) {
            self.change(share.record, now_ms, |record| {
                add(&mut record.drained_files, 1);
                add(&mut record.drained_bytes, copied_bytes);
                record.drained_ms = Some(now_ms);
            });
        }
    }

    /// A file was removed.
    pub fn left(&mut self, object: u64, now_ms: u64) {
        self.writing.remove(&object);
        self.gone(object, now_ms);
    }

    /// What was written is not there any more, or not what is to be drained.
    fn gone(&mut self, object: u64, now_ms: u64) {
        if let Some(share) = self.unshare(object) {
            self.change(share.record, now_ms, |record| {
                add(&mut record.gone_files, 1);
                add(&mut record.gone_bytes, share.bytes);
            });
        }
    }

    /// An application has begun again and reads.
    pub fn restarted(&mut self, key: &Key, now_ms: u64) {
        let id = self.begin(key.begin(What::Restart, now_ms), now_ms);
        if let Some(before) = self.restarts.insert(key.of_restart(), id) {
            self.end(before);
        }
    }

    /// Whether what is read may belong to a restart.
    pub fn has_restarts(&self) -> bool {
        !self.restarts.is_empty()
    }

    /// Whether a file, by inode number, would count for a restart if it was opened for reading.
    pub fn would_count(&self, key: &Key, ino: u64) -> bool {
        let id = self.restarts.get(&key.of_restart());
        let open = id.and_then(|id| self.open.get(id));
        open.is_some_and(|open| open.counted.len() < COUNTED_MAX && !open.counted.contains(&ino))
    }

    /// A file, by inode number and bytes, was opened for reading; it counts once.
    pub fn read(&mut self, key: &Key, file: (u64, u64), in_buffer: bool, now_ms: u64) {
        let (ino, bytes) = file;
        if !self.would_count(key, ino) {
            return;
        }
        let Some(id) = self.restarts.get(&key.of_restart()).copied() else {
            return;
        };
        if let Some(open) = self.open.get_mut(&id) {
            open.counted.insert(ino);
        }
        self.change(id, now_ms, |record| {
            record.ended_ms = now_ms;
            add(&mut record.files, 1);
            add(&mut record.bytes, bytes);
            match in_buffer {
                true => add(&mut record.from_buffer_bytes, bytes),
                false => add(&mut record.from_pfs_bytes, bytes),
            }
        });
    }

    /// Something is over at once.
    pub fn add(&mut self, record: Record, now_ms: u64) {
        let id = self.begin(record, now_ms);
        self.end(id);
    }

    /// Takes in a record of an earlier start that was not over.
    pub fn restore(&mut self, id: u64, mut record: Record, now_ms: u64) {
        let key = Key::of(&record);
        record.application.clone_from(&key.application);
        match record.what {
            What::Restart => drop(self.restarts.insert(key.of_restart(), id)),
            _ => drop(self.current.insert(key, id)),
        }
        let open = Open {
            record,
            touched_ms: now_ms,
            changes: 1,
            saved: 1,
            shares: 0,
            is_stored: true,
            counted: HashSet::new(),
        };
        self.open.insert(id, open);
    }

    /// After a start, before [`Book::resume`]: a file that was undrained is lost. It is neither
    /// drained nor removed by anybody.
    pub fn lost(&mut self, key: &Key, bytes: u64) {
        let is_of = |record: &Record| Key::of(record) == *key && record.undrained_files() > 0;
        let of_it = self.open.values_mut().find(|open| is_of(&open.record));
        if let Some(open) = of_it {
            // The size of a file with holes is more than what was counted of it.
            let bytes = bytes.min(open_bytes(&open.record));
            add(&mut open.record.gone_files, 1);
            add(&mut open.record.gone_bytes, bytes);
            add(&mut open.record.failed_files, 1);
            open.changes += 1;
        }
    }

    /// After a start: brings what was restored in line with what is undrained. What an earlier
    /// start has not saved is made up from that.
    pub fn resume(&mut self, found: Vec<Found>, now_ms: u64) {
        let mut by_key: HashMap<Key, Vec<Found>> = HashMap::new();
        for file in found {
            by_key.entry(file.key.clone()).or_default().push(file);
        }
        for files in by_key.values_mut() {
            files.sort_by_key(|file| file.changed_ms);
        }
        // The oldest record has what was changed first; what was not on record yet changed last.
        for (id, open) in &mut self.open {
            let key = Key::of(&open.record);
            let known = usize::try_from(open.record.undrained_files()).unwrap_or(usize::MAX);
            let all = by_key.get_mut(&key);
            let files: Vec<Found> =
                all.map_or_else(Vec::new, |all| all.drain(..known.min(all.len())).collect());
            drained_unseen(&mut open.record, &files, now_ms);
            open.changes += 1;
            for file in files {
                let record = *id;
                let share = share_of(&file);
                open.shares += 1;
                self.shares.insert(file.object, Share { record, ..share });
            }
        }
        for (key, files) in by_key {
            for file in files {
                self.take_in(file.object, &key, share_of(&file), now_ms);
            }
        }
    }

    /// What is to be saved now. What is over stays to be saved until [`Book::saved`].
    pub fn changes(&mut self, now_ms: u64) -> Changes {
        let written = self.writing.values();
        let written: HashSet<u64> = written
            .filter_map(|(_, key)| self.current.get(key).copied())
            .collect();
        let quiet_ms = self.quiet_ms;
        let is_over = |(id, open): &(&u64, &Open)| {
            let is_quiet = open.touched_ms.saturating_add(quiet_ms) <= now_ms;
            open.shares == 0 && is_quiet && !written.contains(id)
        };
        let over: Vec<u64> = self
            .open
            .iter()
            .filter(is_over)
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            self.end(id);
        }
        self.restarts.retain(|_, id| self.open.contains_key(id));
        self.current.retain(|_, id| self.open.contains_key(id));
        let changed = self.open.iter().filter(|(_, o)| o.changes > o.saved);
        Changes {
            open: changed
                .map(|(id, open)| (*id, open.record.clone(), open.changes))
                .collect(),
            over: self.over.clone(),
            void: self.void.clone(),
        }
    }

    /// The store has these.
    pub fn saved(&mut self, changes: &Changes) {
        for (id, _, saved) in &changes.open {
            match self.open.get_mut(id) {
                Some(open) => {
                    open.saved = *saved;
                    open.is_stored = true;
                }
                // Over, and saved as that later, or void.
                None if self.over.iter().any(|(over, _)| over == id) => {}
                None => self.void.push(*id),
            }
        }
        let over: HashSet<u64> = changes.over.iter().map(|(id, _)| *id).collect();
        self.over.retain(|(id, _)| !over.contains(id));
        self.void.retain(|id| !changes.void.contains(id));
    }

    /// All that is not in the store as something that is over.
    pub fn records(&self) -> Vec<(u64, Record)> {
        let open = self
            .open
            .iter()
            .map(|(id, open)| (*id, open.record.clone()));
        self.over.iter().cloned().chain(open).collect()
    }
}

/// Sizes are what users make them: a sum stays at the largest number.
fn add(to: &mut u64, more: u64) {
    *to = to.saturating_add(more);
}

fn share_of(file: &Found) -> Share {
    Share {
        record: 0,
        written: Writing::new(file.changed_ms),
        bytes: file.bytes,
        size_bytes: file.bytes,
        is_direct: file.is_direct,
        ended_ms: file.changed_ms,
        is_found: true,
    }
}

/// What is neither drained nor gone.
fn open_bytes(record: &Record) -> u64 {
    let ended = record.drained_bytes.saturating_add(record.gone_bytes);
    record.bytes.saturating_sub(ended)
}

/// What is on record as undrained and is not among the files that still are, was drained or removed
/// after the record was saved: it counts as drained, when is not known better than by the start.
fn drained_unseen(record: &mut Record, still: &[Found], now_ms: u64) {
    let drained = record.undrained_files().saturating_sub(still.len() as u64);
    if drained == 0 {
        return;
    }
    let sizes = still.iter().map(|file| file.bytes);
    let left_bytes = sizes.fold(0, u64::saturating_add);
    let drained_bytes = open_bytes(record).saturating_sub(left_bytes);
    add(&mut record.drained_files, drained);
    add(&mut record.drained_bytes, drained_bytes);
    record.drained_ms = Some(now_ms);
}
