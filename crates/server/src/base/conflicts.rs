//! Files of which an outsider's version and ours stand beside each other on the PFS.

use std::collections::VecDeque;

use forebay_namespace::{Conflict, Namespace};
use forebay_types::{Errno, TimeSpec, limits};
use forebay_wire::control::ConflictEntry;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::base::Base;

/// Under which the log is kept.
const FACT: &str = "conflicts";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Log {
    /// Since the state was made.
    total: u64,
    /// The last of them, oldest first; at most [`limits::ERRORS_REMEMBERED_MAX`].
    entries: VecDeque<ConflictEntry>,
}

/// The conflicts that a person has to look at. Kept over restarts.
#[derive(Default)]
pub struct Conflicts {
    log: Mutex<Log>,
    /// Held while conflicts are taken over: whoever comes second finds them in the log.
    absorbing: Mutex<()>,
}

impl Conflicts {
    /// As the last run left them.
    pub fn load(ns: &Namespace) -> Conflicts {
        let known = match ns.get_fact(FACT) {
            Ok(Some(bytes)) => postcard::from_bytes::<Log>(&bytes).map_err(|e| e.to_string()),
            Ok(None) => Ok(Log::default()),
            Err(error) => Err(error.to_string()),
        };
        let log = known.unwrap_or_else(|why| {
            tracing::warn!("the list of conflicts is lost: {why}");
            Log::default()
        });
        Conflicts {
            log: Mutex::new(log),
            absorbing: Mutex::new(()),
        }
    }

    /// Forgets those whose second version is gone: somebody has looked after them.
    pub fn prune(&self, ns: &Namespace) {
        let entries = self.log.lock().entries.clone();
        let gone = |entry: &&ConflictEntry| {
            ns.resolve(&entry.kept_as)
                .is_err_and(|error| error.errno() == Errno::ENOENT)
        };
        let gone: Vec<ConflictEntry> = entries.iter().filter(gone).cloned().collect();
        self.log
            .lock()
            .entries
            .retain(|entry| !gone.contains(entry));
    }

    /// Conflicts since the state was made, and the last of them.
    pub fn all(&self) -> (u64, Vec<ConflictEntry>) {
        let log = self.log.lock();
        (log.total, log.entries.iter().cloned().collect())
    }

    /// How many there have been since the state was made.
    pub fn total(&self) -> u64 {
        self.log.lock().total
    }

    /// That of a path, among those that came after the first `total`.
    pub fn since(&self, total: u64, path: &[u8]) -> Option<ConflictEntry> {
        let log = self.log.lock();
        let new = usize::try_from(log.total.saturating_sub(total)).unwrap_or(usize::MAX);
        let mut latest = log.entries.iter().rev().take(new);
        latest.find(|entry| entry.path == path).cloned()
    }

    fn add(&self, ns: &Namespace, entry: ConflictEntry) {
        let mut log = self.log.lock();
        log.total += 1;
        while log.entries.len() >= limits::ERRORS_REMEMBERED_MAX {
            log.entries.pop_front();
        }
        log.entries.push_back(entry);
        let written = postcard::to_stdvec(&*log)
            .map_err(|e| e.to_string())
            .and_then(|bytes| ns.put_fact(FACT, &bytes).map_err(|e| e.to_string()));
        if let Err(why) = written {
            tracing::warn!("the list of conflicts is not kept: {why}");
        }
    }
}

impl Base {
    /// Tells people of the conflicts that the namespace has met.
    pub fn absorb_conflicts(&self) {
        let _one = self.conflicts.absorbing.lock();
        for conflict in self.ns.take_conflicts() {
            self.absorb_conflict(&conflict);
        }
    }

    /// Tells people of one.
    pub fn absorb_conflict(&self, conflict: &Conflict) {
        let whose = if conflict.theirs { "the PFS's" } else { "ours" };
        let reason = format!(
            "{}; {whose} is now beside it as {}",
            conflict.kind.reason(),
            conflict.kept_as.escape_ascii()
        );
        self.conflicts
            .add(&self.ns, entry(conflict, reason.clone()));
        self.report(conflict.path.clone(), Errno::EEXIST, reason);
    }
}

fn entry(conflict: &Conflict, reason: String) -> ConflictEntry {
    let dir = match conflict.path.iter().rposition(|&b| b == b'/') {
        Some(at) => &conflict.path[..=at],
        None => &[],
    };
    ConflictEntry {
        path: conflict.path.clone(),
        kept_as: [dir, &conflict.kept_as].concat(),
        at_s: TimeSpec::now().sec,
        reason,
    }
}
