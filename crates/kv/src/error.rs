use std::fmt;
use std::io;

/// Which part of a request exceeded its limit, see [`Error::TooLarge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A key, limited by [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    Key,
    /// A value, limited by [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
    Value,
    /// All keys and values of a batch, limited by [`MAX_BATCH_BYTES`](crate::MAX_BATCH_BYTES).
    Batch,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Key => "key",
            Part::Value => "value",
            Part::Batch => "batch",
        })
    }
}

/// Why a store refused or failed a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An expectation of the batch did not hold; nothing was changed. Read again and retry.
    #[error("the store changed since the caller read it")]
    Conflict,
    /// The storage under the store failed.
    #[error("storage of the key-value store failed: {0}")]
    Io(#[from] std::io::Error),
    /// What is on storage is not what the store wrote.
    #[error("the key-value store is damaged: {0}")]
    Corrupt(String),
    /// The store was written by another version of its engine, or what says so is damaged.
    #[error("the key-value store has format {found}, which this version does not read")]
    Version {
        /// The format of the store that was found.
        found: String,
    },
    /// An earlier flush failed, so nobody knows what reached storage. Only closing the store and
    /// opening it again, which reads storage back, says what survived; until then no commit is
    /// accepted.
    #[error("the key-value store takes no commits, because an earlier one failed to reach storage")]
    Poisoned,
    /// The store is already open: by whom, where that is known.
    #[error("the key-value store is in use by {}", .0.as_deref().unwrap_or("another process"))]
    InUse(Option<String>),
    /// Another server holds the store now, or may: nothing was changed, and nothing will be until
    /// the store is opened anew.
    #[error("the key-value store is held by another server now; this one may not change it")]
    Lost,
    /// The store cannot be used as it is asked for, or as its server is set up.
    #[error("{0}")]
    Setup(String),
    /// A key, a value or a whole batch is over its limit; nothing was changed.
    #[error("{part} of {len_bytes} bytes is over the limit of {limit_bytes} bytes")]
    TooLarge {
        /// What was too large.
        part: Part,
        /// How large it was.
        len_bytes: usize,
        /// How large it may be.
        limit_bytes: usize,
    },
    /// The empty key, which not every engine can hold.
    #[error("the key is empty")]
    EmptyKey,
}

impl Error {
    /// The same error once more: one failure is told to everybody whom it concerns.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::Conflict => Error::Conflict,
            Error::Io(source) => Error::Io(match source.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::new(source.kind(), source.to_string()),
            }),
            Error::Corrupt(what) => Error::Corrupt(what.clone()),
            Error::Version { found } => Error::Version {
                found: found.clone(),
            },
            Error::Poisoned => Error::Poisoned,
            Error::InUse(holder) => Error::InUse(holder.clone()),
            Error::Lost => Error::Lost,
            Error::Setup(what) => Error::Setup(what.clone()),
            Error::TooLarge {
                part,
                len_bytes,
                limit_bytes,
            } => Error::TooLarge {
                part: *part,
                len_bytes: *len_bytes,
                limit_bytes: *limit_bytes,
            },
            Error::EmptyKey => Error::EmptyKey,
        }
    }

    /// The errno this error becomes when it reaches a system call.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Conflict => libc::EAGAIN,
            Error::Io(source) => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Corrupt(_) | Error::Poisoned | Error::Lost => libc::EIO,
            Error::Version { .. } => libc::EPROTO,
            Error::InUse(_) => libc::EBUSY,
            Error::TooLarge {
                part: Part::Key, ..
            } => libc::ENAMETOOLONG,
            Error::TooLarge { .. } => libc::E2BIG,
            Error::EmptyKey | Error::Setup(_) => libc::EINVAL,
        }
    }
}
