//! Why an operation on the tree failed.

use forebay_kv::Error as KvError;
use forebay_types::{Errno, NameError};

/// An error of the namespace, with the errno a program sees.
#[derive(Debug, thiserror::Error)]
pub enum NsError {
    /// A rule of POSIX, or a refusal of the PFS.
    #[error("{0}")]
    Errno(Errno),
    /// The key-value store failed.
    #[error("metadata store: {0}")]
    Store(#[from] KvError),
    /// The PFS does not tell how far a change of names came that a crash interrupted.
    #[error(
        "{change}, which a crash interrupted, cannot be looked after: {errno}; nothing was changed, start again when the PFS answers"
    )]
    Unsettled {
        /// The change of names, with its paths.
        change: String,
        /// What it said.
        errno: Errno,
    },
    /// A record in the store does not decode.
    #[error("metadata record: {0}")]
    Record(String),
}

impl NsError {
    /// The error number for the program.
    pub fn errno(&self) -> Errno {
        match self {
            NsError::Errno(errno) | NsError::Unsettled { errno, .. } => *errno,
            NsError::Store(error) => Errno(error.errno()),
            NsError::Record(_) => Errno::EIO,
        }
    }
}

impl From<NsError> for Errno {
    fn from(error: NsError) -> Errno {
        if !matches!(error, NsError::Errno(_)) {
            tracing::error!("{error}");
        }
        error.errno()
    }
}

impl From<Errno> for NsError {
    fn from(errno: Errno) -> NsError {
        NsError::Errno(errno)
    }
}

impl From<NameError> for NsError {
    fn from(error: NameError) -> NsError {
        NsError::Errno(error.into())
    }
}

impl From<std::io::Error> for NsError {
    fn from(error: std::io::Error) -> NsError {
        NsError::Errno(error.into())
    }
}
