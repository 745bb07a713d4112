//! What goes on record, and goes on after a start.

use std::hash::Hash;

use super::files::Files;
use super::pattern::Pattern;
use super::record::{FileRecord, PatternRecord};
use super::{FILES_OF_ALL_MAX, FOLDERS_MAX, FORGOTTEN_AFTER_S, Folder, Runs};

impl Files {
    pub(super) fn recorded(records: &[FileRecord]) -> Files {
        let mut files = Files::default();
        for file in records {
            files.put(&file.name, file.bytes, file.runs);
        }
        files
    }
}

impl Pattern {
    /// `zero_s`: the time of the start of the clock, seconds since 1970.
    fn record(&self, zero_s: f64) -> PatternRecord {
        let file = |(name, bytes, runs): (&[u8], u64, u32)| FileRecord {
            name: name.to_vec(),
            bytes,
            runs,
        };
        PatternRecord {
            last_start_s: (zero_s + self.last_start_s).max(0.0),
            gaps_s: self.gaps_s.clone(),
            agreed: self.agreed,
            is_doubted: self.is_doubted,
            was_odd: self.was_odd,
            files: self.files.iter().map(file).collect(),
        }
    }

    fn recorded(record: &PatternRecord, zero_s: f64) -> Pattern {
        Pattern {
            gaps_s: record.gaps_s.clone(),
            agreed: record.agreed,
            is_doubted: record.is_doubted,
            was_odd: record.was_odd,
            ..Pattern::new(record.last_start_s - zero_s, Files::recorded(&record.files))
        }
    }
}

impl Folder {
    fn records(&self, zero_s: f64) -> Vec<PatternRecord> {
        let repeating = self.patterns.iter().filter(|p| p.period_s().is_some());
        repeating.map(|p| p.record(zero_s)).collect()
    }
}

impl<K: Copy + Eq + Hash> Runs<K> {
    /// Folders that have changed since this was last asked, and what is to be on record of each:
    /// patterns that repeat; none where nothing is to be kept. `zero_s`: when the clock began,
    /// seconds since 1970.
    pub fn take_changes(&mut self, zero_s: f64) -> Vec<(K, Vec<PatternRecord>)> {
        let forgotten = std::mem::take(&mut self.forgotten).into_iter();
        let mut all: Vec<(K, Vec<PatternRecord>)> =
            forgotten.map(|key| (key, Vec::new())).collect();
        for (key, folder) in &mut self.folders {
            if !std::mem::take(&mut folder.is_changed) {
                continue;
            }
            let records = folder.records(zero_s);
            if folder.is_on_record || !records.is_empty() {
                folder.is_on_record = !records.is_empty();
                all.push((*key, records));
            }
        }
        all
    }

    /// What an earlier start has put on record of a folder, with the same clock. What has been
    /// learned since goes before it, and so does what is known for as long as is remembered; then
    /// the folder counts as changed.
    pub fn restore(&mut self, key: K, records: &[PatternRecord], zero_s: f64, now_s: f64) {
        let patterns = records
            .iter()
            .map(|record| Pattern::recorded(record, zero_s));
        // A clock that was set back would have runs wait for a time that is far away.
        let is_of_use = |p: &Pattern| {
            let age_s = now_s - p.last_start_s;
            (0.0..=FORGOTTEN_AFTER_S).contains(&age_s)
        };
        let patterns: Vec<Pattern> = patterns.filter(is_of_use).collect();
        let is_full = self.folders.len() >= FOLDERS_MAX && !self.folders.contains_key(&key);
        let files: usize = patterns.iter().map(|p| p.files.len()).sum();
        let is_new = (self.folders.get(&key)).is_none_or(|folder| folder.patterns.is_empty());
        if patterns.is_empty() || is_full || !is_new || self.files + files > FILES_OF_ALL_MAX {
            match self.folders.get_mut(&key) {
                Some(folder) => (folder.is_changed, folder.is_on_record) = (true, true),
                None => self.forgotten.push(key),
            }
            return;
        }
        let starts_s = patterns.iter().map(|p| p.last_start_s);
        let last_s = starts_s.fold(f64::NEG_INFINITY, f64::max);
        let folder = self.folders.entry(key).or_default();
        folder.last_s = match &folder.run {
            Some(_) => folder.last_s.max(last_s),
            None => last_s,
        };
        // It may have been dropped from those on record by its age or time.
        folder.is_changed = patterns.len() < records.len();
        folder.is_on_record = true;
        folder.patterns = patterns;
        self.files += files;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO_S: f64 = 1.7e9;

    /// Runs at these seconds, of four files each.
    fn read(runs: &mut Runs<u32>, folder: u32, at_s: &[f64]) {
        for at_s in at_s {
            (0..4_u8).for_each(|n| runs.opened(folder, &[b'a' + n], 1 << 20, *at_s));
            (1..30).for_each(|n| drop(runs.tend(at_s + f64::from(n))));
        }
    }

    #[test]
    fn a_start_goes_on_with_what_was_learned() {
        let mut before = Runs::new();
        read(&mut before, 1, &[60.0]);
        assert!(before.take_changes(ZERO_S).is_empty(), "nothing repeats");
        read(&mut before, 1, &[120.0, 180.0]);
        read(&mut before, 2, &[130.0]);
        let changes = before.take_changes(ZERO_S);
        let [(1, records)] = &changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!(records[0].last_start_s, ZERO_S + 180.0);
        assert!(before.take_changes(ZERO_S).is_empty());
        // 40 s after the last run the next server starts, with a clock of its own.
        let mut after = Runs::new();
        let zero_s = ZERO_S + 220.0;
        after.restore(1, records, zero_s, 0.5);
        let steps: Vec<_> = (2..40)
            .flat_map(|n| after.tend(f64::from(n) / 2.0))
            .collect();
        assert!(
            matches!(&steps[..], [super::super::Step::Bring { folder: 1, names, .. }] if names.len() == 4),
            "{steps:?}"
        );
        assert_eq!(after.size(), (4, 1));
        // What is on record and not known any more goes from there.
        after.forget(1);
        assert_eq!(after.take_changes(zero_s), [(1, Vec::new())]);
    }

    #[test]
    fn a_record_of_another_time_is_of_no_use_and_goes() {
        let mut before = Runs::new();
        read(&mut before, 1, &[60.0, 120.0]);
        let records = before.take_changes(ZERO_S).remove(0).1;
        for zero_s in [ZERO_S - 1e6, ZERO_S + 2.0 * FORGOTTEN_AFTER_S] {
            let mut after = Runs::new();
            after.restore(1, &records, zero_s, 0.0);
            assert_eq!(after.size(), (0, 0));
            assert_eq!(after.take_changes(zero_s), [(1, Vec::new())]);
        }
        // What was learned since is newer.
        let mut after = Runs::new();
        read(&mut after, 1, &[10.0, 50.0]);
        after.restore(1, &records, ZERO_S + 200.0, 80.0);
        assert_eq!(after.expected(80.0)[0].period_s, 40.0);
    }

    #[test]
    fn what_is_restored_is_bounded() {
        let mut before = Runs::new();
        read(&mut before, 1, &[60.0, 120.0]);
        let records = before.take_changes(ZERO_S).remove(0).1;
        let mut after = Runs::new();
        for key in 0..2 * FOLDERS_MAX as u32 {
            after.restore(key, &records, ZERO_S + 200.0, 0.0);
        }
        assert_eq!(after.size(), (4 * FOLDERS_MAX, FOLDERS_MAX));
        assert_eq!(after.take_changes(ZERO_S).len(), FOLDERS_MAX);
    }
}
