//! What a file's names and attributes say of it.

use std::time::Duration;

use forebay_namespace::File;
use forebay_policy::durability::Durability;
use forebay_policy::holders::{HolderRule, Locality};

use crate::catalog::Catalog;

/// What a file without a name is called where a path is asked for: that of the directory decides.
pub const UNNAMED: &[u8] = b"(unnamed)";

/// Where no rule says anything.
static ANYWHERE: HolderRule = HolderRule {
    locality: Locality::WriterFirst,
    servers: Vec::new(),
    racks: Vec::new(),
};

impl Catalog {
    /// What fsync promises for a path.
    pub fn durability_of(&self, path: &[u8]) -> Durability {
        self.rules().durability(path).unwrap_or(self.durability)
    }

    /// What its fsync promises: of several names, the strongest promise counts.
    pub fn durability_of_file(&self, file: &File) -> Durability {
        let names = file.lock().names.clone();
        let levels = names
            .iter()
            .map(|(dir, name)| self.durability_of(&dir.path_of(name)));
        levels.max().unwrap_or(Durability::Memory)
    }

    /// For how long after a look at the PFS a clean copy of this path is taken as what it has.
    pub fn trust_of(&self, path: &dyn Fn() -> Vec<u8>) -> Duration {
        match self.rules().has_trust() {
            true => self.rules().trust(&path()),
            false => Duration::ZERO,
        }
    }

    /// On which servers a new file of this path lies.
    pub fn holder_rule_of(&self, path: &[u8]) -> &HolderRule {
        self.rules().placement(path).unwrap_or(&ANYWHERE)
    }

    /// Where a file may go from where it is: what is said of the first of its names that a rule
    /// says something of.
    pub fn holder_rule_of_file(&self, file: &File) -> &HolderRule {
        if !self.rules().has_placements() {
            return &ANYWHERE;
        }
        let (names, unnamed) = {
            let state = file.lock();
            (state.names.clone(), state.unnamed.clone())
        };
        let mut names = names.iter();
        let found = names.find_map(|(dir, name)| self.rules().placement(&dir.path_of(name)));
        // Without a name it is where its first one will be.
        let of_unnamed = || self.rules().placement(&unnamed?.path_of(UNNAMED));
        found.or_else(of_unnamed).unwrap_or(&ANYWHERE)
    }

    /// Application and version that somebody has set on the file itself. Only of dirty files, whose
    /// attributes are on record: those of others would cost a request to the PFS each. Answers with
    /// the application, if there is anything of the kind.
    pub fn name_by_xattrs(&self, file: &File) -> Option<u32> {
        let state = file.lock();
        let value = |name: &[u8]| {
            let found = state.xattrs.iter().find(|(n, _)| n == name)?;
            String::from_utf8(found.1.clone()).ok()
        };
        let application = value(b"user.forebay.app");
        let version = value(b"user.forebay.version").and_then(|v| v.trim().parse().ok());
        drop(state);
        if application.is_none() && version.is_none() {
            return None;
        }
        self.apps
            .name_explicitly(file.object, application.as_deref(), version);
        self.apps.of(file.object).map(|(number, _)| number)
    }
}
