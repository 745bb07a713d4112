//! Tiers of earlier runs: a tier keeps its id over restarts, wherever it is mounted by then.

use std::io;
use std::path::PathBuf;

use forebay_wire::ObjectTier;
use serde::{Deserialize, Serialize};

/// Tells a tier from whatever else is in its place.
pub type Mark = [u8; 16];

/// A tier that has an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownTier {
    /// Its directory; of one of a data server, what it is called there, which is no path.
    name: PathBuf,
    mark: Mark,
    /// The server that has it.
    server: u16,
}

/// A tier that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct There {
    /// As in [`Known::names`].
    pub name: PathBuf,
    /// Which it is.
    pub mark: Mark,
    /// The server that has it.
    pub server: u16,
}

/// All tiers that have had an id, in the order of their ids, and what data servers had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    tiers: Vec<KnownTier>,
    /// Of each data server that has been there.
    holders: Vec<(u16, Vec<ObjectTier>)>,
}

/// The place of a tier among those that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 0.
    pub at: usize,
    /// Something else was there before: what is on record of it is not here.
    pub is_another: bool,
    /// It was another server's before.
    pub has_moved: bool,
    /// Nobody has known of it.
    pub is_new: bool,
}

impl Known {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.tiers.len()
    }

    /// What they are called.
    pub fn names(&self) -> Vec<String> {
        let tiers = self.tiers.iter();
        tiers.map(|tier| tier.name.display().to_string()).collect()
    }

    /// Which server has had each of them last.
    pub fn servers(&self) -> Vec<u16> {
        self.tiers.iter().map(|tier| tier.server).collect()
    }

    /// The places of all tiers that are there, by the names under which they are found. The mark
    /// says which one it is; what is called as one that is nowhere has its place, though it is
    /// another one.
    ///
    /// # Errors
    /// One is there twice: somebody has copied its directory.
    pub fn place(&mut self, there: &[There]) -> io::Result<Vec<Place>> {
        for (at, one) in there.iter().enumerate() {
            if there[..at].iter().any(|before| before.mark == one.mark) {
                let name = one.name.display();
                let what = format!("{name} is a copy of another tier's directory");
                return Err(io::Error::other(what));
            }
        }
        let is_there = |tier: &KnownTier| there.iter().any(|one| one.mark == tier.mark);
        let gone: Vec<bool> = self.tiers.iter().map(|tier| !is_there(tier)).collect();
        let places = there.iter().map(|There { name, mark, server }| {
            let mut tiers = self.tiers.iter();
            let same = tiers.position(|tier| tier.mark == *mark);
            let has_moved = same.is_some_and(|at| self.tiers[at].server != *server);
            let mut tiers = self.tiers.iter().zip(&gone);
            let place = same.or_else(|| tiers.position(|(tier, gone)| *gone && tier.name == *name));
            let tier = KnownTier {
                name: name.clone(),
                mark: *mark,
                server: *server,
            };
            let at = place.unwrap_or(self.tiers.len());
            match self.tiers.get_mut(at) {
                Some(known) => *known = tier,
                None => self.tiers.push(tier),
            }
            Place {
                at,
                is_another: place.is_some() && same.is_none(),
                has_moved,
                is_new: place.is_none(),
            }
        });
        Ok(places.collect())
    }

    /// What is in this place now was not taken in: what was there before is still expected, also
    /// where its data server does not answer.
    pub fn keep(&mut self, at: usize, before: &Known) {
        if let (Some(now), Some(before)) = (self.tiers.get_mut(at), before.tiers.get(at)) {
            *now = before.clone();
        }
        if let Some((server, facts)) = before.facts_of(at)
            && let Some((_, tiers)) = self.holders.iter_mut().find(|(known, _)| *known == server)
        {
            tiers.retain(|tier| tier.name != facts.name);
            tiers.push(facts.clone());
        }
    }

    /// What the data server that had a tier last has told of it; `None` where no data server has.
    pub fn facts_of(&self, at: usize) -> Option<(u16, &ObjectTier)> {
        let known = self.tiers.get(at)?;
        let mut tiers = self.of_holder(known.server)?.iter();
        let facts = tiers.find(|tier| tier.mark == known.mark)?;
        Some((known.server, facts))
    }

    /// What a data server had when it was last there; `None`: it never was.
    pub fn of_holder(&self, server: u16) -> Option<&[ObjectTier]> {
        let mut holders = self.holders.iter();
        let found = holders.find(|(known, _)| *known == server);
        found.map(|(_, tiers)| &tiers[..])
    }

    /// What a data server has now.
    pub fn note_holder(&mut self, server: u16, tiers: Vec<ObjectTier>) {
        self.holders.retain(|(known, _)| *known != server);
        self.holders.push((server, tiers));
    }

    /// The data servers that have been there.
    pub fn holders(&self) -> impl Iterator<Item = u16> {
        self.holders.iter().map(|(server, _)| *server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there((name, mark): &(&str, u8)) -> There {
        There {
            name: PathBuf::from(name),
            mark: [*mark; 16],
            server: 1,
        }
    }

    fn found(known: &mut Known, tiers: &[(&str, u8)]) -> Vec<(usize, bool)> {
        let there: Vec<_> = tiers.iter().map(there).collect();
        let places = known.place(&there).expect("places");
        let facts = places.iter().map(|place| (place.at, place.is_another));
        facts.collect()
    }

    #[test]
    fn a_tier_keeps_its_place_wherever_it_is_mounted() {
        let mut known = Known::default();
        let first = found(&mut known, &[("/a", 1), ("/b", 2)]);
        assert_eq!(first, [(0, false), (1, false)]);
        let swapped = found(&mut known, &[("/b", 1), ("/a", 2)]);
        assert_eq!(swapped, [(0, false), (1, false)]);
        assert_eq!(found(&mut known, &[("/c", 2)]), [(1, false)]);
        let more = found(&mut known, &[("/d", 3), ("/c", 2)]);
        assert_eq!(more, [(2, false), (1, false)]);
    }

    #[test]
    fn another_directory_in_the_place_of_one_is_told_from_it() {
        let mut known = Known::default();
        found(&mut known, &[("/a", 1), ("/b", 2)]);
        assert_eq!(found(&mut known.clone(), &[("/a", 3)]), [(0, true)]);
        // The one that was there is somewhere else, whichever comes first.
        let moved = found(&mut known.clone(), &[("/a", 3), ("/x", 1)]);
        assert_eq!(moved, [(2, false), (0, false)]);
        let twice = [("/a", 1), ("/z", 1)].map(|one| there(&one));
        let error = known.place(&twice).unwrap_err().to_string();
        assert!(error.contains("/z is a copy"), "{error}");
    }
    #[test]
    fn what_was_not_taken_in_is_still_expected() {
        let mut known = Known::default();
        found(&mut known, &[("/a", 1)]);
        let before = known.clone();
        assert_eq!(found(&mut known, &[("/a", 2)]), [(0, true)]);
        known.keep(0, &before);
        assert_eq!(found(&mut known.clone(), &[("/a", 2)]), [(0, true)]);
        assert_eq!(found(&mut known, &[("/a", 1)]), [(0, false)]);
    }

    #[test]
    fn a_tier_that_has_gone_to_another_server_is_told_from_one_that_stayed() {
        let mut known = Known::default();
        found(&mut known, &[("/a", 1)]);
        let elsewhere = There {
            server: 2,
            ..there(&("/a", 1))
        };
        let moved = |known: &mut Known, one: &There| {
            let places = known.place(std::slice::from_ref(one));
            places.expect("a place")[0].has_moved
        };
        assert!(moved(&mut known, &elsewhere));
        assert!(!moved(&mut known, &elsewhere));
    }
}
