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
        "{place} holds {what} of version {found}, which this forebay does not read; start it with the forebay that made it, end that with `down --drain`, then go on with a new state folder"
    )]
    OtherVersion {
        /// State folder, or a store on a server.
        place: String,
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
    /// The state folder's records are in another store.
    #[error(
        "the state folder {state} has its records in {was}, not in {now}; name that store again, or drain what is there (`down --drain`) and go on with a new state folder"
    )]
    OtherStore {
        /// State folder.
        state: String,
        /// Where its records are.
        was: String,
        /// The store given.
        now: String,
    },
    /// Somebody else holds the store, and lives.
    #[error(
        "metadata store {store}: held by {holder}; stop that server. If it cannot be reached, `forebay server --take-over` takes the store from it"
    )]
    StoreHeld {
        /// The store.
        store: String,
        /// Who holds it.
        holder: String,
    },
    /// It was told to stop while it stood by.
    #[error("stopped, while another server led")]
    NotWanted,
    /// The store does not answer.
    #[error("metadata store {store}: {why}; does it run, and can this node reach it?")]
    StoreSilent {
        /// The store.
        store: String,
        /// What was met.
        why: String,
    },
    /// The store has another cluster's records.
    #[error(
        "metadata store {store}: has the records of the cluster {cluster}; give {own} a store of its own, as with ?prefix={own}"
    )]
    StoreOfAnother {
        /// The store.
        store: String,
        /// Whose records it has.
        cluster: String,
        /// The cluster that is started.
        own: String,
    },
    /// Another state folder has taken the records over.
    #[error(
        "metadata store {store}: its records were taken over by {by}, and the state folder {state} is out of date; start that server, or take them over again: with a new state folder, or with `forebay server --take-over`"
    )]
    StoreTaken {
        /// The store.
        store: String,
        /// State folder.
        state: String,
        /// Who has them.
        by: String,
    },
    /// The records have gone.
    #[error(
        "metadata store {store}: has none of the records that the state folder {state} had there; was it emptied, or is it another one? Bring them back, or begin without them on a new state folder"
    )]
    StoreEmptied {
        /// The store.
        store: String,
        /// State folder.
        state: String,
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
