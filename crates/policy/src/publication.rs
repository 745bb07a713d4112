//! When the files of a checkpoint version become visible on the PFS, all together.

use crate::named::named;
use serde::{Deserialize, Serialize};

/// By what a version becomes complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupMode {
    /// By an order only: `forebay commit`, or the attribute `user.forebay.commit`.
    Commit,
    /// By an order, or when all its files are closed and the next version has begun or a quiet time
    /// has passed.
    Complete,
}

named!(GroupMode, "group", Commit => "commit", Complete => "complete");

/// What is known of a version that is not published yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VersionFacts {
    /// Chosen for its path.
    pub mode: GroupMode,
    /// It was ordered to be published.
    pub committed: bool,
    /// It was there at the last start, and not ordered: nobody knows whether all of it is there.
    pub interrupted: bool,
    /// Files of it have been seen in the burst buffer, or are on the PFS.
    pub has_files: bool,
    /// Of those, open for writing.
    pub written: u64,
    /// Of those, not whole on the PFS yet.
    pub undrained: u64,
    /// The version is complete by what its application writes (see [`crate::version`]).
    pub complete: bool,
    /// Time since one of its files was last seen open for writing or closed, seconds.
    pub quiet_s: f64,
}

/// What is to be done about it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublicationStep {
    /// Nothing: it is not complete.
    Wait,
    /// It is complete by itself. That is to be put on record like an order: what a restart finds of
    /// a version tells nothing of what was still to come.
    Order,
    /// Its files are to be drained before others; they land in its hidden directory.
    Drain,
    /// All of it is durable on the PFS: it gets its name.
    Publish,
}

/// The next step. A version that is written is never published, whoever ordered it.
pub fn next_step(version: &VersionFacts) -> PublicationStep {
    let by_itself = version.mode == GroupMode::Complete
        && !version.interrupted
        && version.has_files
        && (version.complete || version.quiet_s >= crate::version::DEFAULT_QUIET_S);
    match (version.written, version.committed, version.undrained) {
        (1.., _, _) => PublicationStep::Wait,
        (0, false, _) if by_itself => PublicationStep::Order,
        (0, false, _) => PublicationStep::Wait,
        (0, true, 0) => PublicationStep::Publish,
        (0, true, _) => PublicationStep::Drain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: VersionFacts = VersionFacts {
        mode: GroupMode::Commit,
        committed: false,
        interrupted: false,
        has_files: true,
        written: 0,
        undrained: 0,
        complete: true,
        quiet_s: 1e9,
    };

    #[test]
    fn without_an_order_a_version_waits() {
        assert_eq!(next_step(&OPEN), PublicationStep::Wait);
        let ordered = VersionFacts {
            committed: true,
            ..OPEN
        };
        assert_eq!(next_step(&ordered), PublicationStep::Publish);
    }

    #[test]
    fn everything_is_drained_and_closed_before() {
        for undrained in 0..3 {
            for written in 0..3 {
                let version = VersionFacts {
                    committed: true,
                    undrained,
                    written,
                    ..OPEN
                };
                let step = next_step(&version);
                let publish = undrained == 0 && written == 0;
                assert_eq!(step == PublicationStep::Publish, publish, "{version:?}");
            }
        }
    }

    #[test]
    fn complete_versions_go_by_themselves_where_that_is_wanted() {
        let version = VersionFacts {
            mode: GroupMode::Complete,
            quiet_s: 0.0,
            ..OPEN
        };
        assert_eq!(next_step(&version), PublicationStep::Order);
        let interrupted = VersionFacts {
            interrupted: true,
            quiet_s: 1e9,
            ..version
        };
        assert_eq!(
            next_step(&interrupted),
            PublicationStep::Wait,
            "its writer may have died with the last run"
        );
        let unfinished = VersionFacts {
            complete: false,
            ..version
        };
        assert_eq!(next_step(&unfinished), PublicationStep::Wait);
        let quiet = VersionFacts {
            quiet_s: crate::version::DEFAULT_QUIET_S,
            ..unfinished
        };
        assert_eq!(next_step(&quiet), PublicationStep::Order);
        let empty = VersionFacts {
            has_files: false,
            ..quiet
        };
        assert_eq!(
            next_step(&empty),
            PublicationStep::Wait,
            "nothing was written yet"
        );
    }
}
