//! What is learned of runs in the store, below `r/`: of each folder a record in parts, by its key.
//! fb-ahead saves it, and nobody waits for it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_namespace::{DirKey, NsError};
use forebay_policy::runs::{FolderRecord, PatternRecord, RECORD_BYTES_MAX};

use super::Ahead;

/// Between two saves: a kill costs at most so much.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(30);
const PREFIX: &[u8] = b"r/";
/// What the store takes as one value is more.
const PART_BYTES: usize = 48 << 10;
const _: () = assert!(PART_BYTES <= forebay_kv::MAX_VALUE_BYTES);
const PARTS_MAX: usize = RECORD_BYTES_MAX.div_ceil(PART_BYTES);
/// Of all folders; what is more is somebody's who has damaged them.
const ALL_BYTES_MAX: usize = 64 << 20;

/// Key of a note, and what it becomes.
type Note = (Vec<u8>, Option<Vec<u8>>);

/// What is on record.
#[derive(Default)]
pub(super) struct Kept {
    /// What an earlier start has left was taken over.
    is_restored: bool,
    /// Parts of each folder's record.
    parts: HashMap<DirKey, usize>,
    /// What was not saved yet, by folder.
    unsaved: HashMap<DirKey, Option<Vec<u8>>>,
    /// Saving failed, and that was told.
    is_told: bool,
}

fn key_of(folder: DirKey, part: usize) -> Vec<u8> {
    let mut key = [PREFIX, &folder.to_bytes()].concat();
    key.extend((part as u16).to_be_bytes());
    key
}

/// Of what was found: its folder and part.
fn parse(key: &[u8]) -> Option<(DirKey, usize)> {
    let (folder, part) = key.strip_prefix(PREFIX)?.split_last_chunk::<2>()?;
    let folder = <[u8; 24]>::try_from(folder).ok()?;
    let part = usize::from(u16::from_be_bytes(*part));
    let key = DirKey::from_bytes(&folder)?;
    (part < PARTS_MAX).then_some((key, part))
}

/// What was found below `r/`.
#[derive(Default)]
struct Found {
    /// By folder and part.
    records: BTreeMap<DirKey, BTreeMap<usize, Vec<u8>>>,
    /// What can be of no use.
    junk: Vec<Note>,
}

impl Found {
    /// The record of a folder; `None`: it is damaged, as after a kill between two of its parts.
    fn record(parts: &BTreeMap<usize, Vec<u8>>) -> Option<FolderRecord> {
        let is_whole = parts.keys().copied().eq(0..parts.len());
        let bytes: Vec<u8> = parts.values().flatten().copied().collect();
        FolderRecord::decode(&bytes).filter(|_| is_whole)
    }
}

impl Ahead {
    /// Seconds since 1970 when this clock began.
    fn zero_s(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0.0, |now| now.as_secs_f64()) - self.now_s()
    }

    /// Takes over what an earlier start has left, once the PFS answers: what has a folder's path
    /// may be another one by now.
    pub(super) fn restore_runs(&self) {
        if !self.kept.lock().is_restored && !self.base.health().is_silent() {
            self.restore_runs_at(self.zero_s(), self.now_s());
        }
    }

    pub(super) fn restore_runs_at(&self, zero_s: f64, now_s: f64) {
        let found = match self.find_kept() {
            Ok(found) => found,
            Err(error) => return self.told(Err(error)),
        };
        let mut damaged = found.junk.len();
        let mut unsaved = HashMap::new();
        // Without a lock: a stop saves, and does not wait for a PFS that hangs.
        for (key, parts) in &found.records {
            let record = Found::record(parts);
            damaged += usize::from(record.is_none());
            if record.is_none_or(|record| !self.restore_folder(*key, &record, (zero_s, now_s))) {
                unsaved.insert(*key, None);
            }
        }
        let counts = found.records.iter().map(|(key, parts)| {
            let last = parts.keys().next_back();
            (*key, last.map_or(0, |last| last + 1))
        });
        let mut kept = self.kept.lock();
        kept.parts = counts.collect();
        kept.unsaved = unsaved;
        kept.is_restored = true;
        drop(kept);
        if damaged > 0 {
            let what = "records of runs that repeat are damaged";
            tracing::warn!("{damaged} {what}: these runs are learned anew");
        }
        self.told(self.base.ns().write_notes(&found.junk));
    }

    fn find_kept(&self) -> Result<Found, NsError> {
        let (mut found, mut bytes) = (Found::default(), 0);
        self.base
            .ns()
            .visit_notes(PREFIX, None, &mut |key, value| {
                bytes += value.len();
                match parse(key).filter(|_| bytes <= ALL_BYTES_MAX && value.len() <= PART_BYTES) {
                    Some((folder, part)) => {
                        let parts = found.records.entry(folder).or_default();
                        parts.insert(part, value.to_vec());
                    }
                    None => found.junk.push((key.to_vec(), None)),
                }
                true
            })?;
        Ok(found)
    }

    /// Whether the folder is still there.
    fn restore_folder(&self, key: DirKey, record: &FolderRecord, times_s: (f64, f64)) -> bool {
        let (dir, file) = match self.base.ns().resolve(&record.path) {
            Ok(resolved) => resolved,
            Err(error) => {
                let path = record.path.escape_ascii();
                tracing::debug!("the runs of {path} are forgotten: {error}");
                return false;
            }
        };
        if file.is_some() || dir.key != key {
            return false;
        }
        let (zero_s, now_s) = times_s;
        let mut learned = self.learned.lock();
        (learned.runs).restore(key, &record.patterns, zero_s, now_s);
        if learned.runs.knows(key) {
            learned.dirs.entry(key).or_insert(dir);
        }
        true
    }

    /// Puts what has changed on record.
    pub fn save_runs(&self) {
        self.save_runs_at(self.zero_s());
    }

    pub(super) fn save_runs_at(&self, zero_s: f64) {
        let mut kept = self.kept.lock();
        if !kept.is_restored {
            return;
        }
        let changes = {
            let mut learned = self.learned.lock();
            let changes = learned.runs.take_changes(zero_s).into_iter();
            let with_dir = |(key, patterns)| (key, learned.dirs.get(&key).cloned(), patterns);
            changes.map(with_dir).collect::<Vec<_>>()
        };
        for (key, dir, patterns) in changes {
            let encode = |patterns: Vec<PatternRecord>| {
                let path = dir?.path();
                FolderRecord { path, patterns }.encode()
            };
            let value = Some(patterns).filter(|p| !p.is_empty()).and_then(encode);
            kept.unsaved.insert(key, value);
        }
        let mut notes = Vec::new();
        for (key, value) in &kept.unsaved {
            let parts = value.iter().flat_map(|value| value.chunks(PART_BYTES));
            notes.extend(
                (0..)
                    .zip(parts)
                    .map(|(n, part)| (key_of(*key, n), Some(part.to_vec()))),
            );
            let count = parts_of(value.as_deref());
            let before = kept.parts.get(key).copied().unwrap_or(0);
            notes.extend((count..before).map(|n| (key_of(*key, n), None)));
        }
        if notes.is_empty() {
            kept.unsaved.clear();
            return;
        }
        let saved = self.base.ns().write_notes(&notes);
        let Kept { parts, unsaved, .. } = &mut *kept;
        match &saved {
            Ok(()) => {
                for (key, value) in unsaved.drain() {
                    match parts_of(value.as_deref()) {
                        0 => parts.remove(&key),
                        count => parts.insert(key, count),
                    };
                }
            }
            // Some of them may be there.
            Err(_) => {
                for (key, value) in unsaved.iter() {
                    let most = parts.entry(*key).or_default();
                    *most = (*most).max(parts_of(value.as_deref()));
                }
            }
        }
        drop(kept);
        self.told(saved);
    }

    /// What cannot be kept costs nobody anything but that: it is told once, and tried again.
    fn told(&self, outcome: Result<(), NsError>) {
        let mut kept = self.kept.lock();
        match outcome {
            Ok(()) => kept.is_told = false,
            Err(error) if !kept.is_told => {
                kept.is_told = true;
                tracing::warn!("what is learned of runs is not kept until this is mended: {error}");
            }
            Err(_) => {}
        }
    }
}

fn parts_of(value: Option<&[u8]>) -> usize {
    value.map_or(0, |value| value.len().div_ceil(PART_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_notes_are_those_of_folders_and_parts() {
        let folder = DirKey {
            dev: 1,
            ino: 2,
            btime_ns: 3,
        };
        assert_eq!(parse(&key_of(folder, 5)), Some((folder, 5)));
        assert_eq!(parse(&key_of(folder, PARTS_MAX)), None);
        assert_eq!(parse(b"r/"), None);
        assert_eq!(parse(&key_of(folder, 5)[1..]), None);
        assert_eq!(parse(&[&key_of(folder, 5)[..], b"1"].concat()), None);
    }

    #[test]
    fn a_record_is_whole_or_none() {
        let record = FolderRecord {
            path: vec![b'p'; 1000],
            patterns: Vec::new(),
        };
        let bytes = record.encode().expect("sound");
        let parts: BTreeMap<usize, Vec<u8>> =
            (0..).zip(bytes.chunks(300).map(<[u8]>::to_vec)).collect();
        assert_eq!(Found::record(&parts), Some(record));
        for missing in 0..parts.len() {
            let mut parts = parts.clone();
            parts.remove(&missing);
            assert_eq!(Found::record(&parts), None);
        }
        let mut more = parts.clone();
        more.insert(parts.len(), vec![0]);
        assert_eq!(Found::record(&more), None);
    }
}
