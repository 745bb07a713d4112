//! A run: seeds first, then changes of what was interesting.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::Target;
use crate::judge::{Fault, judge};
use crate::mutate::mutate;
use crate::random::Random;

/// Inputs that are kept to be changed further; beyond, one makes way.
const KEPT_MAX: usize = 4096;

/// Inputs of a target, one after the other.
pub struct Run<'a> {
    target: &'a Target,
    random: Random,
    kept: Vec<Vec<u8>>,
    seeds: usize,
    seen: HashSet<u64>,
    given: usize,
}

impl<'a> Run<'a> {
    /// From a seed of the generator: the same inputs every time.
    pub fn new(target: &'a Target, seed: u64) -> Run<'a> {
        let kept = (target.seeds)();
        Run {
            target,
            random: Random::new(seed),
            seeds: kept.len(),
            kept,
            seen: HashSet::new(),
            given: 0,
        }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        self.given += 1;
        if let Some(seed) = self.kept[..self.seeds].get(self.given - 1) {
            return seed.clone();
        }
        let mut input = match self.kept.is_empty() {
            true => Vec::new(),
            false => self.random.of(&self.kept).clone(),
        };
        mutate(&mut self.random, &mut input, self.target.words, &self.kept);
        input
    }

    /// Judges an input, and keeps it where its way was new.
    pub fn judge(&mut self, input: &[u8]) -> Result<(), Fault> {
        let noted = judge(self.target, input)?;
        let before = self.seen.len();
        self.seen.extend(noted);
        if self.seen.len() > before && self.given > self.seeds {
            match self.kept.len() < KEPT_MAX {
                true => self.kept.push(input.to_vec()),
                false => {
                    let at = self.seeds + self.random.below(KEPT_MAX - self.seeds);
                    self.kept[at] = input.to_vec();
                }
            }
        }
        Ok(())
    }

    /// Inputs that are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}

/// Inputs that were wrong once, by name.
pub fn regressions(target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("regressions")
        .join(target);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        found.push((path.clone(), fs::read(path)?));
    }
    found.sort();
    Ok(found)
}

/// Keeps an input that was wrong, in the folder `into`; its name follows from its content.
pub fn save(into: &Path, target: &str, input: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(into)?;
    let path = into.join(format!("{target}-{:08x}", crc32c::crc32c(input)));
    fs::write(&path, input)?;
    Ok(path)
}

/// The first bytes of an input as a person can read them.
pub fn shown(input: &[u8]) -> String {
    let head = &input[..input.len().min(400)];
    let more = if head.len() < input.len() { " ..." } else { "" };
    format!("{} bytes: \"{}\"{more}", input.len(), head.escape_ascii())
}
