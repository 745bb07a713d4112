//! Why a server cannot start.

/// Why a server cannot start: one line for a person.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something below does not work.
    #[error("{what}: {why}")]
    Failed {
        /// Which part.
        what: String,
        /// What it said.
        why: String,
    },
    /// The state belongs to another PFS.
    #[error(
        "the state folder {state} was made for the PFS {was}, not {now}; use that, or another state folder"
    )]
    OtherPfs {
        /// State folder.
        state: String,
        /// The PFS it was made for.
        was: String,
        /// The PFS given.
        now: String,
    },
    /// The state was written by another version of Forebay.
    #[error(
        "the state folder {state} holds {what} of version {found}, which this forebay does not read; start it with the forebay that made it, end that with `down --drain`, then go on with a new state folder"
    )]
    OtherVersion {
        /// State folder.
        state: String,
        /// Which part.
        what: String,
        /// The version that was found.
        found: String,
    },
    /// Something else is where the PFS was.
    #[error(
        "{pfs} is not the PFS that this state folder was made for: {why}; is the PFS mounted there? If it was replaced for good, `forebay fsck --new-pfs` puts what is left on the new one"
    )]
    PfsExchanged {
        /// Where it should be.
        pfs: String,
        /// How it differs.
        why: &'static str,
    },
    /// A tier with undrained files was not given.
    #[error(
        "files that are not on the PFS yet ({count}) are in {name}, which was not given; start with it, or, if it is gone for good, give them up with `forebay fsck --lost-tier {name}`"
    )]
    TierMissing {
        /// What it is called.
        name: String,
        /// How many.
        count: usize,
    },
    /// In the place of a tier with undrained files is another one.
    #[error(
        "{name} is not the tier that it was: files that are not on the PFS yet ({count}) should be in it; is its file system mounted? If it is gone for good, `forebay fsck --lost-tier {name}` gives them up"
    )]
    TierReplaced {
        /// What it is called.
        name: String,
        /// How many.
        count: usize,
    },
    /// A tier that is there is called lost, or one that is not known.
    #[error("--lost-tier {name}: no tier that is called so is missing; known are {}", .known.join(", "))]
    NotLost {
        /// What it was called.
        name: String,
        /// Those that are known.
        known: Vec<String>,
    },
    /// The state folder holds no instance.
    #[error("the state folder {0} holds no instance")]
    NoInstance(String),
}

/// With what failed.
pub(crate) fn failed<E: std::fmt::Display>(
    what: impl Into<String>,
) -> impl FnOnce(E) -> StartError {
    let what = what.into();
    move |error| StartError::Failed {
        what,
        why: error.to_string(),
    }
}
