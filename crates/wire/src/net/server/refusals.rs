//! Peers that were not let in, or were thrown out: counted by reason, and logged so that nobody can
//! fill the log: the first of each reason, then a summary each minute. A client of before a restart
//! is no trouble: its session is over, it begins a new one at once, and it is not counted.

use std::fmt;

use parking_lot::Mutex;

use super::super::clock;

const SUMMARY_MS: u64 = 60_000;

/// Why a peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusedFor {
    /// It does not speak this protocol.
    NotForebay,
    /// Another version of it.
    Version,
    /// It belongs to another cluster.
    Cluster,
    /// It does not have the cluster's key.
    Key,
    /// It said too little for too long.
    Silence,
    /// There are too many peers.
    TooMany,
    /// It does not encrypt data where that is asked for.
    Clear,
    /// The host of sessions did not want it.
    Host,
    /// After it was let in, it sent what does not open, decode or keep to the protocol.
    Damaged,
    /// It sent a request again that had been answered before the last one of its slot.
    Late,
}

const ALL: [RefusedFor; 10] = [
    RefusedFor::NotForebay,
    RefusedFor::Version,
    RefusedFor::Cluster,
    RefusedFor::Key,
    RefusedFor::Silence,
    RefusedFor::TooMany,
    RefusedFor::Clear,
    RefusedFor::Host,
    RefusedFor::Damaged,
    RefusedFor::Late,
];

impl RefusedFor {
    /// What it is called in a status.
    pub fn name(self) -> &'static str {
        match self {
            RefusedFor::NotForebay => "not-forebay",
            RefusedFor::Version => "version",
            RefusedFor::Cluster => "cluster",
            RefusedFor::Key => "key",
            RefusedFor::Silence => "silence",
            RefusedFor::TooMany => "too-many",
            RefusedFor::Clear => "clear",
            RefusedFor::Host => "host",
            RefusedFor::Damaged => "damaged",
            RefusedFor::Late => "late",
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Count {
    all: u64,
    told: u64,
}

#[derive(Default)]
struct Counts {
    by_reason: [Count; ALL.len()],
    last_summary_ms: u64,
}

#[derive(Default)]
pub(crate) struct Refusals(Mutex<Counts>);

impl Refusals {
    /// Counts one; `who` and `what` say more in the log.
    pub fn count(&self, reason: RefusedFor, who: impl fmt::Display, what: impl fmt::Display) {
        let mut counts = self.0.lock();
        let count = &mut counts.by_reason[reason as usize];
        count.all += 1;
        let first = count.all == 1;
        if first {
            count.told = 1;
        }
        drop(counts);
        if first {
            tracing::warn!("network: refused {who}: {what}; more of this kind are only counted");
        }
    }

    /// So many of each reason that there were any of.
    pub fn counts(&self) -> Vec<(RefusedFor, u64)> {
        let counts = self.0.lock();
        let all = ALL.iter().map(|reason| (*reason, counts.of(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Logs what was only counted since the last summary, once a minute.
    pub fn summarize(&self) {
        let mut counts = self.0.lock();
        let now = clock::now_ms();
        if now.saturating_sub(counts.last_summary_ms) < SUMMARY_MS {
            return;
        }
        counts.last_summary_ms = now;
        let mut words = Vec::new();
        for (reason, count) in ALL.iter().zip(&mut counts.by_reason) {
            if count.all > count.told {
                words.push(format!("{} {}", count.all - count.told, reason.name()));
                count.told = count.all;
            }
        }
        drop(counts);
        if !words.is_empty() {
            tracing::warn!(
                "network: peers refused since the last word: {}",
                words.join(", ")
            );
        }
    }
}

impl Counts {
    fn of(&self, reason: RefusedFor) -> u64 {
        self.by_reason[reason as usize].all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_each_under_its_own_name() {
        let refusals = Refusals::default();
        for reason in ALL {
            refusals.count(reason, "a peer", "a reason");
        }
        refusals.count(RefusedFor::Late, "a peer", "again");
        let counts = refusals.counts();
        assert_eq!(counts.len(), ALL.len());
        assert_eq!(counts.last(), Some(&(RefusedFor::Late, 2)));
        let names: std::collections::HashSet<_> = ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
