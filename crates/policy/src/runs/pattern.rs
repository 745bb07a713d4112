//! Runs of about the same files, and when the next one starts.

use super::files::Files;

/// Gaps that are remembered.
pub const GAPS_MAX: usize = 7;
/// How far a gap may be from the period, as a share of it.
const SPREAD: f64 = 0.25;
/// A run that is later than this share of the period does not come.
pub const WINDOW: f64 = 0.5;
/// Shortest and longest period, seconds.
pub const PERIOD_MIN_S: f64 = 2.0;
pub const PERIOD_MAX_S: f64 = 8.0 * 86_400.0;

/// A run that was foretold.
#[derive(Debug)]
pub struct Guess {
    pub id: u64,
    pub next_s: f64,
    pub bytes: u64,
    /// Two runs are all that is known.
    pub is_trial: bool,
    /// Its files were to be brought in.
    pub is_brought: bool,
    pub here_bytes: u64,
    pub hit_bytes: u64,
}

impl Guess {
    pub fn new(id: u64, next_s: f64, (bytes, is_trial, is_brought): (u64, bool, bool)) -> Guess {
        Guess {
            id,
            next_s,
            bytes,
            is_trial,
            is_brought,
            here_bytes: 0,
            hit_bytes: 0,
        }
    }
}

/// Runs of about the same files.
#[derive(Debug)]
pub struct Pattern {
    /// Those of the last run.
    pub files: Files,
    pub last_start_s: f64,
    /// The last ones that agree, the newest at the end.
    pub(super) gaps_s: Vec<f64>,
    /// Gaps in a row that agree with those before them.
    pub(super) agreed: u32,
    /// A guess was in vain since one was right.
    pub(super) is_doubted: bool,
    /// The last gap was none of them.
    pub(super) was_odd: bool,
    /// For the next run.
    pub guess: Option<Guess>,
    /// For the one that goes on.
    pub running: Option<Guess>,
}

impl Pattern {
    pub fn new(start_s: f64, files: Files) -> Pattern {
        Pattern {
            files,
            last_start_s: start_s,
            gaps_s: Vec::new(),
            agreed: 0,
            is_doubted: false,
            was_odd: false,
            guess: None,
            running: None,
        }
    }

    /// The median of the gaps; `None`: it was seen once.
    pub fn period_s(&self) -> Option<f64> {
        let mut sorted = self.gaps_s.clone();
        sorted.sort_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        match sorted.len() % 2 {
            0 => Some((upper + sorted[sorted.len() / 2 - 1]) / 2.0),
            _ => Some(upper),
        }
    }

    /// How far gaps were from the period, seconds.
    pub fn spread_s(&self) -> f64 {
        let Some(period_s) = self.period_s() else {
            return 0.0;
        };
        let off = self.gaps_s.iter().map(|gap_s| (gap_s - period_s).abs());
        off.fold(0.0, f64::max)
    }

    /// When the next run starts, whether or not it is believed.
    pub fn foretold_s(&self) -> Option<f64> {
        Some(self.last_start_s + self.period_s()?)
    }

    /// When the next run is believed to start, and whether that is a trial; `None` where one is
    /// expected already, or nothing is believed.
    pub fn next(&self, now_s: f64) -> Option<(f64, bool)> {
        if self.guess.is_some() {
            return None;
        }
        let next_s = self.foretold_s()?;
        // What is late already is not begun.
        if now_s >= next_s {
            return None;
        }
        match (self.agreed, self.is_doubted) {
            (0, true) => None,
            (0, false) => Some((next_s, true)),
            _ => Some((next_s, false)),
        }
    }

    /// A run has started; what was foretold of it and not brought in, bytes.
    pub fn started(&mut self, start_s: f64, ended: &mut Vec<u64>) -> u64 {
        let gap_s = start_s - self.last_start_s;
        if gap_s < PERIOD_MIN_S {
            return 0;
        }
        ended.extend(self.running.take().map(|guess| guess.id));
        let guess = self.guess.take();
        self.last_start_s = start_s;
        let agrees = self.takes(gap_s);
        if agrees {
            (self.agreed, self.was_odd) = (self.agreed + 1, false);
        } else if self.may_be_odd(gap_s) {
            self.was_odd = true;
            return self.came(guess, false);
        } else {
            // The first gap may be tried, and no other one that stands alone.
            self.is_doubted |= !self.gaps_s.is_empty();
            self.gaps_s.clear();
            (self.agreed, self.was_odd) = (0, false);
        }
        if gap_s > PERIOD_MAX_S {
            return self.came(guess, false);
        }
        if self.gaps_s.len() >= GAPS_MAX {
            self.gaps_s.remove(0);
        }
        self.gaps_s.push(gap_s);
        self.came(guess, agrees)
    }

    fn takes(&self, gap_s: f64) -> bool {
        let near = |period_s: f64| (gap_s - period_s).abs() <= SPREAD * period_s;
        self.period_s().is_some_and(near)
    }

    /// One gap that does not agree takes the confidence, and the period stays; so does that of one
    /// run that was left out, which takes nothing (invariant 1).
    fn may_be_odd(&mut self, gap_s: f64) -> bool {
        if self.was_odd || self.gaps_s.is_empty() {
            return false;
        }
        if self.takes(gap_s / 2.0) {
            return true;
        }
        (self.agreed, self.is_doubted) = (0, true);
        self.gaps_s.len() > 1
    }

    fn came(&mut self, guess: Option<Guess>, agrees: bool) -> u64 {
        let Some(guess) = guess else {
            return 0;
        };
        let foretold = match agrees && !guess.is_brought && !guess.is_trial {
            true => guess.bytes,
            false => 0,
        };
        if agrees && guess.is_brought {
            self.is_doubted = false;
        }
        self.running = Some(guess);
        foretold
    }

    /// Whether the next run was guessed, and should have started.
    pub fn is_late(&self, now_s: f64) -> bool {
        self.guess
            .as_ref()
            .is_some_and(|guess| now_s > guess.next_s)
    }

    /// A run that does not come makes the pattern doubtful (invariant 2).
    pub fn look_whether_missed(&mut self, now_s: f64, has_begun: bool, ended: &mut Vec<u64>) {
        let (Some(guess), Some(period_s)) = (&self.guess, self.period_s()) else {
            return;
        };
        // One that has begun may take a while to be known.
        let window = if has_begun { 2.0 * WINDOW } else { WINDOW };
        if now_s <= guess.next_s + window * period_s {
            return;
        }
        ended.extend(self.guess.take().map(|guess| guess.id));
        (self.agreed, self.is_doubted) = (0, true);
    }

    pub fn guesses(&self) -> impl Iterator<Item = &Guess> {
        self.guess.iter().chain(&self.running)
    }

    pub fn guess_ids(&self) -> impl Iterator<Item = u64> {
        self.guesses().map(|guess| guess.id)
    }

    pub fn guess_of(&mut self, id: u64) -> Option<&mut Guess> {
        let both = self.guess.iter_mut().chain(&mut self.running);
        both.into_iter().find(|guess| guess.id == id)
    }
}
