//! The history in the store: what is not over below `o/`, by number; what is over below `s/`, by
//! its end and number; files that are lost below `l/`, by object, until the next start. It is
//! written by a thread of its own, and nobody waits for it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::{File, NsError};
use forebay_policy::history::{Found, Key};
use forebay_tiers::TierKind;
use forebay_types::history::Record;
use forebay_types::{Errno, limits};
use forebay_wire::control::{HistoryAsked, HistoryPage};

use crate::base::failure::Failure;
use crate::lifecycle::Lifecycle;
use crate::orders::asker::Asker;

/// Between two looks at what is to be saved: a kill costs at most so much, and a start makes up for
/// most of that.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at what is to go.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// Of threads that are to end.
const LOOK: Duration = Duration::from_millis(50);
/// How a record is written. Others are passed over.
const FORMAT: u8 = 1;
const OPEN: &[u8] = b"o/";
const OVER: &[u8] = b"s/";
const LOST: &[u8] = b"l/";
/// Records in one part of an answer, and records that are looked at for it.
const PAGE_RECORDS_MAX: usize = 1000;
const PAGE_LOOKS_MAX: usize = 20_000;
const PAGE_BYTES_MAX: usize = 512 << 10;
const _: () = assert!(PAGE_BYTES_MAX <= limits::MESSAGE_BYTES_MAX / 2);
/// All of a record but the name of its application.
const NUMBERS_BYTES_MAX: usize = 256;

/// Key of a note, and that it goes.
type Removal = (Vec<u8>, Option<Vec<u8>>);

/// What is over, the oldest first: its key without the prefix, and bytes.
#[derive(Default)]
pub struct Index {
    kept: VecDeque<([u8; 16], u64)>,
    is_loaded: bool,
    /// Saving failed, and that was told.
    is_told: bool,
}

/// Ordered by the end.
fn over_key(id: u64, ended_ms: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&ended_ms.to_be_bytes());
    key[8..].copy_from_slice(&id.to_be_bytes());
    key
}

fn ended_ms(key: &[u8; 16]) -> u64 {
    let mut ended = [0; 8];
    ended.copy_from_slice(&key[..8]);
    u64::from_be_bytes(ended)
}

fn encode(record: &Record) -> Option<Vec<u8>> {
    match postcard::to_extend(record, vec![FORMAT]) {
        Ok(bytes) if bytes.len() <= forebay_kv::MAX_VALUE_BYTES => Some(bytes),
        // The names of applications in the book are much shorter.
        Ok(_) | Err(_) => None,
    }
}

fn decode(bytes: &[u8]) -> Option<Record> {
    let rest = bytes.strip_prefix(&[FORMAT])?;
    postcard::from_bytes(rest).ok()
}

/// The thread that saves the history.
pub fn run(lifecycle: &Arc<Lifecycle>) {
    let is_on = lifecycle.catalog.history().is_on();
    let mut tidy_at = Instant::now();
    let mut save_at = Instant::now() + SAVE_EVERY;
    while !lifecycle.base.is_ending() {
        std::thread::sleep(LOOK);
        let now = Instant::now();
        if now < save_at {
            continue;
        }
        save_at = now + SAVE_EVERY;
        if !is_on {
            let forgotten = lifecycle.forget_history();
            let is_done = forgotten.is_ok();
            lifecycle.told_history(forgotten);
            if is_done {
                return;
            }
            continue;
        }
        lifecycle.save_history();
        if now >= tidy_at {
            lifecycle.told_history(lifecycle.tidy_history());
            tidy_at = now + TIDY_EVERY;
        }
    }
}

impl Lifecycle {
    /// Goes on with what an earlier start has left, and with what is undrained.
    pub fn resume_history(&self) {
        if !self.catalog.history().is_on() {
            return;
        }
        let mut left = Vec::new();
        let read = self.ns.visit_notes(OPEN, None, &mut |key, value| {
            let id = key[OPEN.len()..].try_into().map(u64::from_be_bytes);
            if let (Ok(id), Some(record)) = (id, decode(value)) {
                left.push((id, record));
            }
            true
        });
        self.told_history(read);
        let history = self.catalog.history();
        let now_ms = history.now_ms();
        let mut found = Vec::new();
        for file in self.buffer.files() {
            let (is_dirty, uid, size, changed) = {
                let state = file.lock();
                let is_dirty = state.is_dirty() && !state.is_unlinked();
                (is_dirty, state.meta.uid, state.meta.size, state.meta.mtime)
            };
            if is_dirty && let Some(key) = self.catalog.apps().recorded_as(file.object, uid) {
                found.push(Found {
                    object: file.object.0,
                    key,
                    // Its size may be any number, and its time of change any time.
                    bytes: size.min(self.buffer.ledger().used_bytes(file.object)),
                    changed_ms: history
                        .keep()
                        .possible_ms((changed.sec, changed.nsec), now_ms),
                    is_direct: self.buffer.tiers().kind(file.tier()) == TierKind::Pfs,
                });
            }
        }
        let (lost, notes) = self.lost_before();
        history.resume(left, &lost, found);
        if !notes.is_empty() {
            // What is known by the notes alone is on record before they go.
            self.save_history();
            self.told_history(self.ns.write_notes(&notes));
        }
    }

    /// An undrained file is lost: whoever resumes the history next is to know that it was not
    /// drained. Without its note a file that is not there any more counts as drained.
    pub(super) fn note_lost(&self, file: &File) {
        if !self.catalog.history().is_on() {
            return;
        }
        let (uid, bytes) = {
            let state = file.lock();
            (state.meta.uid, state.meta.size)
        };
        let apps = self.catalog.apps();
        // It never came in, or leaves right now.
        apps.arrived(file.object, &self.catalog.rules().identify(&file.path()));
        self.catalog.name_by_xattrs(file);
        let key = apps.recorded_as(file.object, uid);
        apps.left(file.object);
        let Some(value) = key.and_then(|key| postcard::to_allocvec(&(key, bytes)).ok()) else {
            return;
        };
        let key = [LOST, &file.object.0.to_be_bytes()].concat();
        self.told_history(self.ns.write_notes(&[(key, Some(value))]));
    }

    /// What is lost since the history was resumed last, and what removes the notes of that.
    fn lost_before(&self) -> (Vec<(Key, u64)>, Vec<Removal>) {
        let (mut lost, mut notes) = (Vec::new(), Vec::new());
        let read = self.ns.visit_notes(LOST, None, &mut |key, value| {
            lost.extend(postcard::from_bytes::<(Key, u64)>(value));
            notes.push((key.to_vec(), None));
            true
        });
        self.told_history(read);
        (lost, notes)
    }

    /// A history that cannot be saved, or read, costs nobody anything but the history: it is told
    /// once, and tried again.
    fn told_history(&self, outcome: Result<(), NsError>) {
        let mut index = self.history.lock();
        match outcome {
            Ok(()) => index.is_told = false,
            Err(error) if !index.is_told => {
                index.is_told = true;
                tracing::warn!("the history is not kept until this is mended: {error}");
            }
            Err(_) => {}
        }
    }

    /// Puts what has changed on record.
    pub fn save_history(&self) {
        let history = self.catalog.history();
        if !history.is_on() {
            return;
        }
        let changes = history.changes();
        let mut notes = Vec::new();
        let mut over = Vec::new();
        let open_key = |id: u64| [OPEN, &id.to_be_bytes()].concat();
        for (id, record) in &changes.over {
            if let Some(value) = encode(record) {
                let key = over_key(*id, record.ended_ms);
                over.push((key, (key.len() + value.len()) as u64));
                notes.push(([OVER, &key].concat(), Some(value)));
            }
            // After the other: between the two a kill leaves it twice, and a start makes it one.
            notes.push((open_key(*id), None));
        }
        for (id, record, _) in &changes.open {
            notes.extend(encode(record).map(|value| (open_key(*id), Some(value))));
        }
        notes.extend(changes.void.iter().map(|id| (open_key(*id), None)));
        if notes.is_empty() {
            return;
        }
        let saved = self.ns.write_notes(&notes);
        if saved.is_ok() {
            history.saved(&changes);
            let mut index = self.history.lock();
            index.kept.extend(over);
        }
        self.told_history(saved);
    }

    /// Removes what is too old, or too much.
    fn tidy_history(&self) -> Result<(), NsError> {
        if !self.history.lock().is_loaded {
            self.load_index()?;
        }
        let history = self.catalog.history();
        let mut index = self.history.lock();
        // Ends come in order but for those that were saved together.
        index.kept.make_contiguous().sort_unstable();
        let ends = index
            .kept
            .iter()
            .map(|(key, bytes)| (ended_ms(key), *bytes));
        let count = history.keep().to_drop(ends, history.now_ms());
        let goes: Vec<([u8; 16], u64)> = index.kept.drain(..count).collect();
        drop(index);
        let notes: Vec<_> = goes
            .iter()
            .map(|(key, _)| ([OVER, key].concat(), None))
            .collect();
        let removed = self.ns.write_notes(&notes);
        if removed.is_err() {
            self.history.lock().kept.extend(goes);
        }
        removed
    }

    /// Nothing is to be kept: removes what earlier starts have put on record.
    fn forget_history(&self) -> Result<(), NsError> {
        for prefix in [OVER, OPEN, LOST] {
            let mut notes = Vec::new();
            self.ns.visit_notes(prefix, None, &mut |key, _| {
                notes.push((key.to_vec(), None));
                true
            })?;
            self.ns.write_notes(&notes)?;
        }
        Ok(())
    }

    /// What earlier starts have kept.
    fn load_index(&self) -> Result<(), NsError> {
        let mut found = VecDeque::new();
        self.ns.visit_notes(OVER, None, &mut |key, value| {
            if let Ok(key) = <[u8; 16]>::try_from(&key[OVER.len()..]) {
                found.push_back((key, (key.len() + value.len()) as u64));
            }
            true
        })?;
        let mut index = self.history.lock();
        // It has what this start has saved, too.
        index.kept = found;
        index.is_loaded = true;
        Ok(())
    }

    /// Answers with a part of the history: all of it for root and the server's own user, for others
    /// what is theirs.
    pub fn history(&self, asker: &Asker, asked: &HistoryAsked) -> Result<HistoryPage, Failure> {
        let uid = match (asker.is_trusted(), asked.uid) {
            (true, uid) => uid,
            (false, Some(uid)) if uid != asker.uid() => return Err(Errno::EPERM.into()),
            (false, _) => Some(asker.uid()),
        };
        let wanted = |record: &Record| {
            let named = asked.application.as_deref();
            uid.is_none_or(|uid| record.uid == uid)
                && record.ended_ms >= asked.since_ms
                && record.begun_ms <= asked.until_ms
                && named.is_none_or(|part| record.application.contains(part))
        };
        if !self.catalog.history().is_on() {
            return Ok(HistoryPage::default());
        }
        let kept_for_ms = self.catalog.history().keep().for_ms;
        let mut part = Part::default();
        let mut from = [OVER, &over_key(0, asked.since_ms)].concat();
        match Place::of(asked.after.as_deref())? {
            Place::Over(key) => from = key,
            // First: what is saved between two parts of an answer may come twice, and is never
            // missed.
            Place::NotOver(after) => {
                let all = self.catalog.history().records();
                if let Some(last) = part.take_not_over(all, after, &wanted) {
                    let place = [OPEN, &last.to_be_bytes()].concat();
                    return Ok(part.page(kept_for_ms, Some(place)));
                }
            }
        }
        let more_after = self.take_in_over(&mut part, from, &wanted)?;
        Ok(part.page(kept_for_ms, more_after))
    }

    /// Takes in what is over, from behind a key on. Answers behind which key there is more.
    fn take_in_over(
        &self,
        part: &mut Part,
        from: Vec<u8>,
        wanted: &dyn Fn(&Record) -> bool,
    ) -> Result<Option<Vec<u8>>, NsError> {
        let not_over: HashSet<u64> = part.records.iter().map(|(id, _)| *id).collect();
        let (mut looks, mut seen, mut is_more) = (0, from.clone(), false);
        self.ns.visit_notes(OVER, Some(&from), &mut |key, value| {
            looks += 1;
            if part.is_full(value.len()) || looks > PAGE_LOOKS_MAX {
                is_more = true;
                return false;
            }
            seen = key.to_vec();
            let id = key[key.len().saturating_sub(8)..].try_into();
            let id = id.map_or(0, u64::from_be_bytes);
            if let Some(record) = decode(value)
                && wanted(&record)
                && !not_over.contains(&id)
            {
                part.push(id, record, value.len());
            }
            true
        })?;
        Ok(is_more.then_some(seen))
    }
}

/// Where a part of an answer begins.
enum Place {
    /// Behind that number of those that are not over, or not saved as that.
    NotOver(Option<u64>),
    /// Behind that key of the others.
    Over(Vec<u8>),
}

impl Place {
    fn of(after: Option<&[u8]>) -> Result<Place, Errno> {
        let Some(after) = after else {
            return Ok(Place::NotOver(None));
        };
        if after.starts_with(OVER) {
            return Ok(Place::Over(after.to_vec()));
        }
        let id = after.strip_prefix(OPEN).ok_or(Errno::EINVAL)?;
        let id = id.try_into().map_err(|_| Errno::EINVAL)?;
        Ok(Place::NotOver(Some(u64::from_be_bytes(id))))
    }
}

/// A part of an answer: records by number, and what they take.
#[derive(Default)]
struct Part {
    records: Vec<(u64, Record)>,
    bytes: usize,
}

impl Part {
    /// One record always has room.
    fn is_full(&self, more_bytes: usize) -> bool {
        let too_many = self.records.len() >= PAGE_RECORDS_MAX;
        too_many || !self.records.is_empty() && self.bytes + more_bytes > PAGE_BYTES_MAX
    }

    fn push(&mut self, id: u64, record: Record, bytes: usize) {
        self.bytes += bytes;
        self.records.push((id, record));
    }

    /// Takes in what is not over, by number from behind one on. Answers behind which there is more.
    fn take_not_over(
        &mut self,
        mut all: Vec<(u64, Record)>,
        after: Option<u64>,
        wanted: &dyn Fn(&Record) -> bool,
    ) -> Option<u64> {
        all.retain(|(id, record)| after.is_none_or(|after| *id > after) && wanted(record));
        all.sort_unstable_by_key(|(id, _)| *id);
        for (id, record) in all {
            let bytes = NUMBERS_BYTES_MAX + record.application.len();
            if self.is_full(bytes) {
                return self.records.last().map(|(last, _)| *last);
            }
            self.push(id, record, bytes);
        }
        None
    }

    fn page(mut self, kept_for_ms: u64, more_after: Option<Vec<u8>>) -> HistoryPage {
        let order = |(id, record): &(u64, Record)| (!record.over, record.ended_ms, *id);
        self.records.sort_unstable_by_key(order);
        HistoryPage {
            records: self.records.into_iter().map(|(_, record)| record).collect(),
            more_after,
            kept_for_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::history::What;
    use proptest::prelude::*;

    use super::*;

    fn records() -> impl Strategy<Value = Record> {
        let what = (0..What::NAMES.len()).prop_map(|at| What::NAMES[at].1);
        let numbers = prop::collection::vec(any::<u64>(), 17);
        let rest = (any::<u32>(), any::<Option<u64>>(), any::<bool>());
        (what, ".{0,40}", numbers, rest).prop_map(|(what, application, n, (uid, version, over))| {
            Record {
                what,
                application,
                uid,
                version,
                begun_ms: n[0],
                ended_ms: n[1],
                files: n[2],
                bytes: n[3],
                direct_files: n[4],
                direct_bytes: n[5],
                wait_us: n[6],
                stall_us: n[7],
                drain_begun_ms: (n[8] % 2 == 0).then_some(n[8]),
                drained_ms: (n[9] % 2 == 0).then_some(n[9]),
                drained_files: n[10],
                drained_bytes: n[11],
                gone_files: n[12],
                gone_bytes: n[13],
                from_buffer_bytes: n[14],
                from_pfs_bytes: n[15],
                failed_files: n[16],
                over,
            }
        })
    }

    proptest! {
        #[test]
        fn parts_are_bounded_and_have_each_record_once(
            names in prop::collection::vec(0usize..256, 0..3000),
            unwanted in any::<u64>(),
        ) {
            let record = |(id, length): (usize, &usize)| {
                let record = Record::new(What::Version, "n".repeat(*length), 1, id as u64);
                (id as u64, record)
            };
            let all: Vec<(u64, Record)> = names.iter().enumerate().map(record).collect();
            let wanted = |r: &Record| r.begun_ms % 7 != unwanted % 8;
            let (mut after, mut seen) = (None, Vec::new());
            loop {
                let mut part = Part::default();
                let shuffled = all.iter().rev().cloned().collect();
                let last = part.take_not_over(shuffled, after, &wanted);
                prop_assert!(part.records.len() <= PAGE_RECORDS_MAX);
                let page = part.page(0, None);
                prop_assert!(postcard::to_stdvec(&page).expect("it is encoded").len() <= PAGE_BYTES_MAX + 64);
                seen.extend(page.records);
                let Some(last) = last else { break };
                let place = Place::of(Some(&[OPEN, &last.to_be_bytes()].concat()));
                let Ok(Place::NotOver(behind)) = place else { panic!("a place that was answered") };
                after = behind;
            }
            let expected: Vec<Record> = all.into_iter().map(|(_, r)| r).filter(wanted).collect();
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn a_record_comes_back_as_it_was_and_damage_is_no_panic(
            record in records(),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let mut bytes = encode(&record).expect("it fits");
            prop_assert_eq!(decode(&bytes), Some(record));
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            // Another record, or none.
            let _ = decode(&bytes);
            prop_assert_eq!(decode(&bytes[..0]), None);
        }

        #[test]
        fn keys_are_in_the_order_of_ends(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let [first, second] = [a, b].map(|(ended, id)| over_key(id, ended));
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            prop_assert_eq!(ended_ms(&first), a.0);
        }
    }
}
