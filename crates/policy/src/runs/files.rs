//! The files of one run.

use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Known {
    name: Arc<[u8]>,
    bytes: u64,
    /// Runs in a row that had it.
    runs: u32,
}

/// Files of one folder in the order in which they were opened first.
#[derive(Clone, Debug, Default)]
pub struct Files {
    list: Vec<Known>,
    places: HashMap<Arc<[u8]>, u32>,
    bytes: u64,
}

/// An empty file counts for something.
fn weight(bytes: u64) -> u64 {
    bytes.max(1)
}

impl Files {
    /// How many.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    fn get(&self, name: &[u8]) -> Option<&Known> {
        let place = self.places.get(name)?;
        self.list.get(*place as usize)
    }

    /// Whether that file is one of them.
    pub fn has(&self, name: &[u8]) -> bool {
        self.places.contains_key(name)
    }

    /// One more; whether it is new.
    pub fn add(&mut self, name: &[u8], bytes: u64) -> bool {
        self.put(name, bytes, 1)
    }

    /// The same of one that so many runs in a row had.
    pub fn put(&mut self, name: &[u8], bytes: u64, runs: u32) -> bool {
        if self.has(name) {
            return false;
        }
        let name: Arc<[u8]> = name.into();
        self.places.insert(name.clone(), self.list.len() as u32);
        self.bytes = self.bytes.saturating_add(weight(bytes));
        self.list.push(Known { name, bytes, runs });
        true
    }

    /// The same files, with how many runs had each when the last one had `before`.
    pub fn counted_after(mut self, before: &Files) -> Files {
        for known in &mut self.list {
            let runs = before.get(&known.name).map_or(0, |old| old.runs);
            known.runs = runs.saturating_add(1);
        }
        self
    }

    /// What both have of what one of them has, by bytes, 0 to 1 (Jaccard).
    pub fn alike(&self, other: &Files) -> f64 {
        let common = self.list.iter().filter_map(|known| {
            let theirs = other.get(&known.name)?;
            let (a, b) = (weight(known.bytes), weight(theirs.bytes));
            Some((a.min(b), a.max(b), a.saturating_add(b)))
        });
        let add = |sums: (f64, f64, f64), (least, most, both): (u64, u64, u64)| {
            let (a, b, c) = sums;
            (a + least as f64, b + most as f64, c + both as f64)
        };
        let (least, most, both) = common.fold((0.0, 0.0, 0.0), add);
        let alone = (self.bytes as f64 + other.bytes as f64 - both).max(0.0);
        match most + alone {
            0.0 => 0.0,
            all => least / all,
        }
    }

    /// Whether any file is one of both.
    pub fn meets(&self, other: &Files) -> bool {
        self.list.iter().any(|known| other.has(&known.name))
    }

    /// Those that `before` has, too.
    pub fn common(&self, before: &Files) -> Vec<(&[u8], u64)> {
        let both = self.list.iter().filter(|known| before.has(&known.name));
        both.map(|known| (&*known.name, known.bytes)).collect()
    }

    /// All, with bytes and runs in a row.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64, u32)> {
        let all = self.list.iter();
        all.map(|known| (&*known.name, known.bytes, known.runs))
    }

    /// Those that two runs in a row had.
    pub fn of_two_runs(&self) -> Vec<(&[u8], u64)> {
        let both = self.list.iter().filter(|known| known.runs > 1);
        both.map(|known| (&*known.name, known.bytes)).collect()
    }
}
