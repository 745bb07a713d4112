//! Why an operation on the tree failed.

use std::io;

use forebay_kv::Error as KvError;
use forebay_types::{Errno, NameError};

/// An error of the namespace, with what it came from and the errno a program sees.
///
/// It has no conversion to a bare [`Errno`]. A caller that passes on the number alone calls
/// [`NsError::errno`]. Before that it logs the whole error, unless [`NsError::is_ordinary`] says
/// that the number is all there is to say.
#[derive(Debug, thiserror::Error)]
pub enum NsError {
    /// A rule of POSIX.
    #[error("{0}")]
    Errno(Errno),
    /// A call on the PFS failed.
    #[error("{what} on the PFS: {source}")]
    Pfs {
        /// What was being done.
        what: &'static str,
        /// What the PFS said.
        source: io::Error,
    },
    /// A call on an object of a tier failed.
    #[error("{what}, in its object: {source}")]
    Object {
        /// What was being done.
        what: &'static str,
        /// What the tier said.
        source: io::Error,
    },
    /// The key-value store failed.
    #[error("metadata store: {0}")]
    Store(#[from] KvError),
    /// The PFS does not tell how far a change of names came that a crash interrupted.
    #[error(
        "{change}, which a crash interrupted, cannot be looked after: {source}; nothing was changed, start again when the PFS answers"
    )]
    Unsettled {
        /// The change of names, with its paths.
        change: String,
        /// Why not.
        source: Box<NsError>,
    },
    /// A record of the store does not decode, or cannot be encoded.
    #[error("metadata record ({what}): {source}")]
    Record {
        /// What is recorded.
        what: &'static str,
        /// What the codec said.
        source: postcard::Error,
    },
}

impl NsError {
    /// The error number for the program.
    pub fn errno(&self) -> Errno {
        match self {
            NsError::Errno(errno) => *errno,
            NsError::Pfs { source, .. } | NsError::Object { source, .. } => Errno::of(source),
            NsError::Unsettled { source, .. } => source.errno(),
            NsError::Store(error) => Errno(error.errno()),
            NsError::Record { .. } => Errno::EIO,
        }
    }

    /// The number, where a rule of POSIX or the PFS gave it. A failing store says nothing of what
    /// is on the PFS, whatever its number.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        match self {
            NsError::Errno(_) | NsError::Pfs { .. } => Some(self.errno()),
            NsError::Object { .. }
            | NsError::Store(_)
            | NsError::Unsettled { .. }
            | NsError::Record { .. } => None,
        }
    }

    /// Whether its number is all there is to say: a rule of POSIX, or a refusal of the PFS, which
    /// the program gets as it is. Anything else has to be told to somebody.
    pub fn is_ordinary(&self) -> bool {
        match self {
            NsError::Errno(_) => true,
            NsError::Pfs { source, .. } | NsError::Object { source, .. } => {
                source.raw_os_error().is_some()
            }
            NsError::Store(_) | NsError::Unsettled { .. } | NsError::Record { .. } => false,
        }
    }
}

/// For `map_err`: what was being done on the PFS.
pub fn on_pfs(what: &'static str) -> impl Fn(io::Error) -> NsError {
    move |source| NsError::Pfs { what, source }
}

/// For `map_err`: what was being done with an object of a tier.
pub fn of_object(what: &'static str) -> impl Fn(io::Error) -> NsError {
    move |source| NsError::Object { what, source }
}

/// For `map_err`: what is recorded.
pub fn in_record(what: &'static str) -> impl Fn(postcard::Error) -> NsError {
    move |source| NsError::Record { what, source }
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

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    fn source_of(error: &NsError) -> String {
        error.source().expect("a source").to_string()
    }

    #[test]
    fn an_error_of_the_pfs_keeps_its_text_and_its_number() {
        let refused = on_pfs("stat")(io::Error::from_raw_os_error(libc::EDQUOT));
        let said = io::Error::from_raw_os_error(libc::EDQUOT).to_string();
        assert_eq!(refused.errno(), Errno::EDQUOT);
        assert_eq!(refused.to_string(), format!("stat on the PFS: {said}"));
        assert_eq!(source_of(&refused), said);
        assert!(refused.is_ordinary());
        assert_eq!(refused.refusal(), Some(Errno::EDQUOT));
        let odd = on_pfs("stat")(io::Error::other("no birth time"));
        assert_eq!(odd.errno(), Errno::EIO);
        assert_eq!(odd.to_string(), "stat on the PFS: no birth time");
        assert!(!odd.is_ordinary(), "its number does not say it");
    }

    #[test]
    fn an_error_of_the_store_keeps_that_of_its_storage() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let said = full.to_string();
        let error = NsError::from(KvError::from(full));
        assert_eq!(error.errno(), Errno::ENOSPC);
        assert!(error.to_string().ends_with(&said), "{error}");
        assert!(!error.is_ordinary());
        assert_eq!(error.refusal(), None, "not the PFS's word");
        let storage = error.source().and_then(Error::source);
        assert_eq!(storage.map(ToString::to_string), Some(said));
    }

    #[test]
    fn a_record_that_does_not_decode_says_why() {
        let why = postcard::from_bytes::<u64>(&[]).expect_err("nothing is no number");
        let error = in_record("a number")(why.clone());
        assert_eq!(error.errno(), Errno::EIO);
        assert_eq!(
            error.to_string(),
            format!("metadata record (a number): {why}")
        );
        assert_eq!(source_of(&error), why.to_string());
        assert!(!error.is_ordinary());
    }

    #[test]
    fn an_unsettled_change_has_the_number_of_what_stopped_it() {
        let error = NsError::Unsettled {
            change: "rename of a to b".into(),
            source: Box::new(on_pfs("stat")(io::Error::from_raw_os_error(libc::EIO))),
        };
        assert_eq!(error.errno(), Errno::EIO);
        assert!(source_of(&error).starts_with("stat on the PFS: "));
        assert!(!error.is_ordinary());
    }
}
