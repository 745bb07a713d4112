//! Periodic runs: a program that reads the same files every so often finds them here before it
//! starts (ONFS 2017, upward migration: periodic runs are learned from the access history).
//!
//! A *run* is what is read in one folder without a long pause. Runs of about the same files, by
//! their bytes, are those of one *pattern*; a folder may have some, so that who looks at one file
//! in between disturbs nothing. What is expected of the next run is what the last two had in
//! common.
//!
//! 1. The period is the median of the gaps between starts. After one gap that differs by more than
//!    a quarter the next one has to agree, after two the pattern begins anew. A gap of two periods
//!    is one run that was left out, which is allowed once.
//! 2. Two runs are enough for one guess on trial. After one in vain, or a gap that differs, a gap
//!    has to agree with those before it.
//! 3. What was brought in in vain is at most a fifth of what was read of it or would have been, and
//!    one run: beyond, runs are foretold and nothing is brought in until enough of them have come.
//! 4. Of folders, files and patterns there is a largest number. Folders without a pattern that
//!    repeats go first, then those unread for longest.

mod busy;
mod files;
mod keep;
mod pattern;
mod record;
mod room;

use std::collections::HashMap;
use std::hash::Hash;

use crate::demotion::Candidate;
pub use busy::Busy;
use files::Files;
use pattern::{Guess, Pattern, WINDOW};
pub use record::{FileRecord, FolderRecord, PatternRecord, RECORD_BYTES_MAX};
pub use room::{MakeRoom, RunRoom, make_room};

/// Folders that are remembered.
pub const FOLDERS_MAX: usize = 256;
/// Files of one run; what it reads beyond is not remembered.
pub const FILES_MAX: usize = 4096;
/// Files of all folders.
pub const FILES_OF_ALL_MAX: usize = 65_536;
/// Patterns of one folder.
const PATTERNS_MAX: usize = 4;
/// A longer pause ends a run, seconds; to read the last file may take longer.
const PAUSE_MAX_S: f64 = 10.0;
/// A file that is read again after such a pause, seconds, and twice the longest one in the run,
/// begins the next run.
const AGAIN_MIN_S: f64 = 1.0;
/// After so long without an open it is looked which pattern a run is of, seconds.
const SETTLED_S: f64 = 0.5;
/// Of the bytes of both, what runs of one pattern have in common.
const ALIKE: f64 = 0.5;
/// Guesses on trial whose runs start within so long of each other are those of one job, seconds.
const TOGETHER_S: f64 = 5.0;
/// What the PFS gives until somebody knows, bytes per second.
const RATE_BYTES_PER_S: f64 = 100e6;
/// What a file takes beside its bytes, with some that come side by side, seconds.
const FILE_S: f64 = 2.5e-3;
/// So long before the start all is to be there, seconds; more where periods are long, up to the
/// longest.
const LEAD_MIN_S: f64 = 2.0;
const LEAD_SHARE: f64 = 1.0 / 16.0;
const LEAD_MAX_S: f64 = 60.0;
/// What was opened so long ago or later does not leave for a run, seconds.
const UNREAD_MIN_S: f64 = 600.0;
/// Weight of the newest value in a mean.
const NEWEST: f64 = 0.3;
/// A folder unread for so long is forgotten, seconds.
const FORGOTTEN_AFTER_S: f64 = 8.0 * 86_400.0;

/// What is to be done about a folder's runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<K> {
    /// These files are expected: those that are not here are to be brought in.
    Bring {
        /// Names the guess.
        id: u64,
        /// Their folder.
        folder: K,
        /// Names, in the order of the last run.
        names: Vec<Vec<u8>>,
        /// What they had, bytes.
        bytes: u64,
        /// Seconds between starts.
        period_s: f64,
    },
    /// The run is over, or has not come, or nobody remembers its folder: what was brought in for it
    /// and is unread was in vain.
    End {
        /// Of [`Step::Bring`].
        id: u64,
    },
}

/// What guesses of runs were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worth {
    /// Brought in, bytes.
    pub guessed_bytes: u64,
    /// Of those, read, bytes.
    pub hit_bytes: u64,
    /// Of those, in vain, bytes.
    pub wasted_bytes: u64,
    /// Foretold and not brought in (invariant 3), and read by a run that came, bytes.
    pub foretold_bytes: u64,
}

impl Worth {
    fn foretold(&mut self, bytes: u64) {
        self.foretold_bytes = self.foretold_bytes.saturating_add(bytes);
    }

    /// Whether guesses go on, with so much at risk besides, bytes.
    fn goes_on(&self, risk_bytes: u64) -> bool {
        let vain = self.wasted_bytes.saturating_add(risk_bytes);
        vain.saturating_mul(5) <= self.hit_bytes.saturating_add(self.foretold_bytes)
    }
}

/// Whether a clean copy is wanted less than the files of a run with this period, seconds, that is
/// about to start: nobody has had it open for two periods and a while, and no restart reads it.
/// `is_certain`: that it is outdated is more than a guess from its name, like `img_00017.png`.
pub fn is_wanted_less(candidate: &Candidate, is_certain: bool, period_s: f64, now_s: f64) -> bool {
    if candidate.in_use {
        return false;
    }
    // What was open for long was used until its close.
    let used_at_s = candidate.accessed_at_s.max(candidate.closed_at_s);
    let is_old = now_s - used_at_s > UNREAD_MIN_S.max(2.0 * period_s);
    let is_any = candidate.version.is_none() || candidate.outdated;
    (candidate.outdated && is_certain) || (is_any && is_old)
}

/// What files have together, bytes: sparse ones may have any number.
fn sum_of(files: &[(&[u8], u64)]) -> u64 {
    let sizes = files.iter().map(|(_, bytes)| *bytes);
    sizes.fold(0, u64::saturating_add)
}

/// A run that is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected<K> {
    /// Its folder.
    pub folder: K,
    /// Seconds between starts.
    pub period_s: f64,
    /// Seconds until the next start; negative: it is late.
    pub next_in_s: f64,
    /// What it is expected to read, bytes.
    pub bytes: u64,
    /// Of that, what is here: found, or brought in. 0 before that was looked after, bytes.
    pub here_bytes: u64,
}

/// A run that goes on, or whose end nobody has seen yet.
#[derive(Debug)]
struct Run {
    start_s: f64,
    last_s: f64,
    longest_pause_s: f64,
    last_bytes: u64,
    files: Files,
    /// Its pattern, once it has enough files.
    of: Option<usize>,
    /// Files were opened since it was compared.
    is_new: bool,
}

impl Run {
    fn new(now_s: f64) -> Run {
        Run {
            start_s: now_s,
            last_s: now_s,
            longest_pause_s: 0.0,
            last_bytes: 0,
            files: Files::default(),
            of: None,
            is_new: true,
        }
    }

    /// Whether it has ended by now; `again`: a file that it has read is read now.
    fn is_over(&self, now_s: f64, again: bool, rate_bytes_per_s: f64) -> bool {
        let pause_s = now_s - self.last_s;
        let reading_s = 2.0 * self.last_bytes as f64 / rate_bytes_per_s;
        let is_next = again && pause_s >= AGAIN_MIN_S.max(2.0 * self.longest_pause_s);
        is_next || pause_s > PAUSE_MAX_S + reading_s
    }

    fn is_settled(&self, now_s: f64) -> bool {
        now_s - self.last_s >= SETTLED_S
    }
}

#[derive(Debug, Default)]
struct Folder {
    run: Option<Run>,
    patterns: Vec<Pattern>,
    last_s: f64,
    /// Patterns have changed since they went on record.
    is_changed: bool,
    is_on_record: bool,
}

impl Folder {
    fn files(&self) -> usize {
        let patterns: usize = self.patterns.iter().map(|p| p.files.len()).sum();
        patterns + self.run.as_ref().map_or(0, |run| run.files.len())
    }

    fn repeats(&self) -> bool {
        self.patterns.iter().any(|p| p.period_s().is_some())
    }

    /// Compares the run that goes on with the patterns; what it was foretold of it, bytes.
    fn compare(&mut self, guesses_ended: &mut Vec<u64>) -> u64 {
        let Some(run) = &mut self.run else {
            return 0;
        };
        run.is_new = false;
        if run.of.is_some() {
            return 0;
        }
        let alike = |p: &Pattern| p.files.alike(&run.files);
        let nearest = (0..self.patterns.len())
            .max_by(|a, b| alike(&self.patterns[*a]).total_cmp(&alike(&self.patterns[*b])));
        let Some(at) = nearest.filter(|at| alike(&self.patterns[*at]) >= ALIKE) else {
            return 0;
        };
        run.of = Some(at);
        self.is_changed = true;
        self.patterns[at].started(run.start_s, guesses_ended)
    }

    /// The run has ended; which guesses end with it.
    fn close(&mut self, guesses_ended: &mut Vec<u64>) -> u64 {
        let foretold = self.compare(guesses_ended);
        let Some(run) = self.run.take() else {
            return foretold;
        };
        self.is_changed = true;
        match run.of {
            Some(at) => {
                let pattern = &mut self.patterns[at];
                pattern.files = run.files.counted_after(&pattern.files);
                guesses_ended.extend(pattern.running.take().map(|guess| guess.id));
            }
            None => {
                if self.patterns.len() >= PATTERNS_MAX {
                    // Those that repeat stay for longest.
                    let key = |p: &Pattern| (p.period_s().is_some(), p.last_start_s);
                    let least = (0..self.patterns.len()).min_by(|a, b| {
                        let (a, b) = (key(&self.patterns[*a]), key(&self.patterns[*b]));
                        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
                    });
                    if let Some(least) = least {
                        let gone = self.patterns.remove(least);
                        guesses_ended.extend(gone.guess_ids());
                    }
                }
                self.patterns.push(Pattern::new(run.start_s, run.files));
            }
        }
        foretold
    }

    /// What is expected of the next run of a pattern. One that goes on counts as its last.
    fn expected(&self, at: usize) -> Vec<(&[u8], u64)> {
        let pattern = &self.patterns[at];
        match &self.run {
            Some(run) if run.of == Some(at) => run.files.common(&pattern.files),
            _ => pattern.files.of_two_runs(),
        }
    }

    /// Whether a run of this pattern may be going on.
    fn may_have_begun(&self, at: usize) -> bool {
        let is_of = |run: &Run| run.of.is_none() && run.files.meets(&self.patterns[at].files);
        self.run.as_ref().is_some_and(is_of)
    }
}

/// Learns the runs of folders; `K` names a folder.
#[derive(Debug)]
pub struct Runs<K> {
    folders: HashMap<K, Folder>,
    files: usize,
    worth: Worth,
    rate_bytes_per_s: Option<f64>,
    assumed_bytes_per_s: f64,
    next_id: u64,
    ended: Vec<u64>,
    /// On record, and not remembered any more.
    forgotten: Vec<K>,
}

impl<K> Default for Runs<K> {
    fn default() -> Self {
        Runs {
            folders: HashMap::new(),
            files: 0,
            worth: Worth::default(),
            rate_bytes_per_s: None,
            assumed_bytes_per_s: RATE_BYTES_PER_S,
            next_id: 1,
            ended: Vec::new(),
            forgotten: Vec::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> Runs<K> {
    /// Nothing is known.
    pub fn new() -> Self {
        Runs::default()
    }

    /// A file was opened to be read by somebody who does not write it.
    pub fn opened(&mut self, folder: K, name: &[u8], bytes: u64, now_s: f64) {
        if !self.folders.contains_key(&folder) && self.folders.len() >= FOLDERS_MAX {
            self.forget_one(None);
        }
        let rate = self.rate();
        let known = self.folders.entry(folder).or_default();
        known.last_s = known.last_s.max(now_s);
        if let Some(run) = &known.run
            && run.is_over(now_s, run.files.has(name), rate)
        {
            let before = known.files();
            let foretold = known.close(&mut self.ended);
            self.worth.foretold(foretold);
            self.files = (self.files + known.files()).saturating_sub(before);
        }
        let run = known.run.get_or_insert_with(|| Run::new(now_s));
        let pause_s = (now_s - run.last_s).max(0.0);
        run.longest_pause_s = run.longest_pause_s.max(pause_s);
        run.last_s = run.last_s.max(now_s);
        run.last_bytes = bytes;
        if run.files.len() < FILES_MAX && run.files.add(name, bytes) {
            run.is_new = true;
            self.files += 1;
        }
        while self.files > FILES_OF_ALL_MAX && self.folders.len() > 1 {
            self.forget_one(Some(folder));
        }
    }

    /// What is to be done now. To be called twice a second or so.
    pub fn tend(&mut self, now_s: f64) -> Vec<Step<K>> {
        let (rate, mut due) = (self.rate(), Vec::new());
        let mut files = 0;
        for (key, folder) in &mut self.folders {
            if let Some(run) = &folder.run {
                if run.is_over(now_s, false, rate) {
                    self.worth.foretold(folder.close(&mut self.ended));
                } else if run.is_new && run.is_settled(now_s) {
                    self.worth.foretold(folder.compare(&mut self.ended));
                }
            }
            for at in 0..folder.patterns.len() {
                if folder.patterns[at].is_late(now_s) {
                    let has_begun = folder.may_have_begun(at);
                    folder.patterns[at].look_whether_missed(now_s, has_begun, &mut self.ended);
                    folder.is_changed |= folder.patterns[at].guess.is_none();
                }
            }
            files += folder.files();
            let is_quiet = folder.run.as_ref().is_none_or(|run| run.is_settled(now_s));
            let patterns = 0..folder.patterns.len();
            due.extend(patterns.filter(|_| is_quiet).map(|at| (*key, at)));
        }
        self.files = files;
        let forgotten = |folder: &Folder| now_s - folder.last_s > FORGOTTEN_AFTER_S;
        let old = self.folders.iter().filter(|(_, folder)| forgotten(folder));
        let old: Vec<K> = old.map(|(key, _)| *key).collect();
        old.into_iter().for_each(|key| self.forget(key));
        let mut steps = Vec::new();
        for (key, at) in due {
            steps.extend(self.guess(key, at, now_s));
        }
        let ended = std::mem::take(&mut self.ended).into_iter();
        let mut all: Vec<Step<K>> = ended.map(|id| Step::End { id }).collect();
        all.extend(steps);
        all
    }

    /// Guesses the next run of a pattern if its time has come.
    fn guess(&mut self, key: K, at: usize, now_s: f64) -> Option<Step<K>> {
        let folder = self.folders.get(&key)?;
        let pattern = folder.patterns.get(at)?;
        let (next_s, is_trial) = pattern.next(now_s)?;
        let period_s = pattern.period_s()?;
        let longest_lead_s = period_s / 2.0;
        if now_s < next_s - longest_lead_s {
            return None;
        }
        let expected = folder.expected(at);
        let bytes = sum_of(&expected);
        let staging_s = bytes as f64 / self.rate() + FILE_S * expected.len() as f64;
        let early_s = (LEAD_SHARE * period_s).clamp(LEAD_MIN_S, LEAD_MAX_S);
        let lead_s = early_s + 2.0 * (staging_s + pattern.spread_s());
        if now_s < next_s - lead_s.min(longest_lead_s) || expected.is_empty() {
            return None;
        }
        let is_brought = match is_trial {
            true => self.worth.goes_on(self.tried_bytes(next_s)),
            false => self.worth.goes_on(0),
        };
        let names: Vec<Vec<u8>> = expected.iter().map(|(name, _)| name.to_vec()).collect();
        let id = self.next_id;
        self.next_id += 1;
        let guess = Guess::new(id, next_s, (bytes, is_trial, is_brought));
        let pattern = self.folders.get_mut(&key)?.patterns.get_mut(at)?;
        // A run of a short period may not be known to be over.
        self.ended.extend(pattern.running.take().map(|old| old.id));
        pattern.guess = Some(guess);
        is_brought.then_some(Step::Bring {
            id,
            folder: key,
            names,
            bytes,
            period_s,
        })
    }

    /// What other guesses have at risk that are on trial, too, and not for the same time, bytes.
    fn tried_bytes(&self, next_s: f64) -> u64 {
        let guesses = self.all_guesses();
        let tried = guesses.filter(|guess| guess.is_trial && guess.is_brought);
        tried
            .filter(|guess| (guess.next_s - next_s).abs() > TOGETHER_S)
            .map(|guess| guess.bytes.saturating_sub(guess.hit_bytes))
            .fold(0, u64::saturating_add)
    }

    fn all_guesses(&self) -> impl Iterator<Item = &Guess> {
        let patterns = self.folders.values().flat_map(|folder| &folder.patterns);
        patterns.flat_map(Pattern::guesses)
    }

    fn guess_of(&mut self, id: u64) -> Option<&mut Guess> {
        let folders = self.folders.values_mut();
        let mut patterns = folders.flat_map(|folder| &mut folder.patterns);
        patterns.find_map(|pattern| pattern.guess_of(id))
    }

    /// A file was brought in for a guess.
    pub fn brought(&mut self, id: u64, bytes: u64) {
        self.worth.guessed_bytes = self.worth.guessed_bytes.saturating_add(bytes);
        if let Some(guess) = self.guess_of(id) {
            guess.here_bytes = guess.here_bytes.saturating_add(bytes);
        }
    }

    /// A file that was guessed was here already.
    pub fn found(&mut self, id: u64, bytes: u64) {
        if let Some(guess) = self.guess_of(id) {
            guess.here_bytes = guess.here_bytes.saturating_add(bytes);
        }
    }

    /// What was brought in for a guess was read.
    pub fn hit(&mut self, id: u64, bytes: u64) {
        self.worth.hit_bytes = self.worth.hit_bytes.saturating_add(bytes);
        if let Some(guess) = self.guess_of(id) {
            guess.hit_bytes = guess.hit_bytes.saturating_add(bytes);
        }
    }

    /// It has left before anybody read it, or was given up.
    pub fn wasted(&mut self, bytes: u64) {
        self.worth.wasted_bytes = self.worth.wasted_bytes.saturating_add(bytes);
    }

    /// So much came in so long, seconds.
    pub fn staged(&mut self, bytes: u64, took_s: f64) {
        let rate = bytes as f64 / took_s.max(1e-3);
        // Few bytes say nothing of a rate.
        if bytes >= 1 << 20 {
            let mean = self.rate_bytes_per_s.unwrap_or(rate);
            self.rate_bytes_per_s = Some(mean + NEWEST * (rate - mean));
        }
    }

    /// What the PFS gives until that was measured, bytes per second.
    pub fn assume(&mut self, rate_bytes_per_s: f64) {
        if rate_bytes_per_s > 0.0 {
            self.assumed_bytes_per_s = rate_bytes_per_s;
        }
    }

    /// What the PFS gives, bytes per second.
    pub fn rate(&self) -> f64 {
        self.rate_bytes_per_s.unwrap_or(self.assumed_bytes_per_s)
    }

    /// Sums since the start.
    pub fn worth(&self) -> Worth {
        self.worth
    }

    /// Whether the folder is remembered.
    pub fn knows(&self, folder: K) -> bool {
        self.folders.contains_key(&folder)
    }

    /// How many files of how many folders are remembered.
    pub fn size(&self) -> (usize, usize) {
        (self.files, self.folders.len())
    }

    /// The folder is gone.
    pub fn forget(&mut self, folder: K) {
        if let Some(gone) = self.folders.remove(&folder) {
            self.files = self.files.saturating_sub(gone.files());
            self.forgotten.extend(gone.is_on_record.then_some(folder));
            let ids = gone.patterns.iter().flat_map(Pattern::guess_ids);
            self.ended.extend(ids);
        }
    }

    fn forget_one(&mut self, but: Option<K>) {
        let others = self.folders.iter().filter(|(key, _)| Some(**key) != but);
        let least = others.min_by(|(_, a), (_, b)| {
            let by_use = a.repeats().cmp(&b.repeats());
            by_use.then(a.last_s.total_cmp(&b.last_s))
        });
        if let Some(least) = least.map(|(key, _)| *key) {
            self.forget(least);
        }
    }

    /// Runs whose time is known, the next one first.
    pub fn expected(&self, now_s: f64) -> Vec<Expected<K>> {
        let mut all = Vec::new();
        for (key, folder) in &self.folders {
            for (at, pattern) in folder.patterns.iter().enumerate() {
                let (Some(next_s), Some(period_s)) = (pattern.foretold_s(), pattern.period_s())
                else {
                    continue;
                };
                if next_s + WINDOW * period_s < now_s {
                    continue;
                }
                all.push(Expected {
                    folder: *key,
                    period_s,
                    next_in_s: next_s - now_s,
                    bytes: sum_of(&folder.expected(at)),
                    here_bytes: pattern.guess.as_ref().map_or(0, |guess| guess.here_bytes),
                });
            }
        }
        all.sort_by(|a, b| a.next_in_s.total_cmp(&b.next_in_s));
        all
    }
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;
