//! Calls that were not answered, for their session has ended.

use std::io;

use forebay_types::Errno;
use forebay_wire::{NOT_SENT, OUT_OF_REACH};

/// Why a call was not done as it was asked. The end of a session says nothing about any object, so
/// that it leaves this crate as one error only: the node is out of reach for now, and whoever asked
/// asks again.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The session ended before the answer: nobody knows whether it was done.
    Lost,
    /// The session ended before it was asked: nothing was done.
    Unasked,
    /// The answer.
    Failed(io::Error),
}

impl CallError {
    /// Whether its session has ended, and another one may answer.
    pub fn is_lost(&self) -> bool {
        matches!(self, CallError::Lost | CallError::Unasked)
    }

    /// Whether this was the answer.
    pub fn is(&self, errno: Errno) -> bool {
        matches!(self, CallError::Failed(error) if Errno::of(error) == errno)
    }
}

impl From<Errno> for CallError {
    fn from(errno: Errno) -> CallError {
        match errno {
            Errno::ENOTCONN => CallError::Lost,
            NOT_SENT => CallError::Unasked,
            errno => CallError::Failed(errno.into()),
        }
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        CallError::Failed(error)
    }
}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> io::Error {
        match error {
            CallError::Failed(error) => error,
            CallError::Lost | CallError::Unasked => OUT_OF_REACH.into(),
        }
    }
}
