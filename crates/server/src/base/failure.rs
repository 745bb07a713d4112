//! Why something was not done: the error number that a program or a script sees, and what a person
//! is told, with its source.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use forebay_namespace::NsError;
use forebay_tiers::CopyError;
use forebay_types::Errno;

/// Why something was not done.
#[derive(Debug)]
pub struct Failure {
    errno: Errno,
    what: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
    /// The number says all there is to say to who gets it.
    is_ordinary: bool,
}

impl Failure {
    /// With words of its own.
    pub fn new(errno: Errno, what: impl Into<Cow<'static, str>>) -> Failure {
        Failure {
            errno,
            what: what.into(),
            source: None,
            is_ordinary: true,
        }
    }

    /// An error that is more than the number it becomes.
    pub fn of(errno: Errno, error: impl Error + Send + Sync + 'static) -> Failure {
        Failure {
            errno,
            what: "".into(),
            source: Some(Box::new(error)),
            is_ordinary: false,
        }
    }

    /// An error of I/O, met while `what` was done or looked at.
    pub fn of_io(what: impl Into<Cow<'static, str>>, error: std::io::Error) -> Failure {
        Failure {
            errno: Errno::of(&error),
            what: what.into(),
            is_ordinary: error.raw_os_error().is_some(),
            source: Some(Box::new(error)),
        }
    }

    /// An error of I/O that others look at, too.
    pub fn of_shared(error: &std::io::Error) -> Failure {
        let same = match error.raw_os_error() {
            Some(number) => std::io::Error::from_raw_os_error(number),
            None => std::io::Error::new(error.kind(), error.to_string()),
        };
        Failure::of_io("", same)
    }

    /// The same text with another error number for the program.
    pub fn with_errno(self, errno: Errno) -> Failure {
        Failure { errno, ..self }
    }

    /// Whether it says in words of its own what it is about.
    pub fn has_words(&self) -> bool {
        !self.what.is_empty()
    }

    /// The error number it becomes.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// The same failure, with what it was met with in words of its own.
    pub fn about(self, what: impl Into<Cow<'static, str>>) -> Failure {
        let says_nothing = self.what.is_empty() && self.source.is_none();
        Failure {
            errno: self.errno,
            what: what.into(),
            is_ordinary: self.is_ordinary,
            source: match says_nothing {
                true => None,
                false => Some(Box::new(self)),
            },
        }
    }

    /// For people who know what was asked: its number's text, where that is all there is to say.
    pub fn in_brief(&self) -> String {
        match self.is_ordinary && self.what.is_empty() {
            true => self.errno.message(),
            false => self.to_string(),
        }
    }

    /// For who answers with the number alone, or goes on without what has failed: `doing` is that.
    /// What the number does not say goes to the log.
    pub fn told(&self, doing: &str) -> Errno {
        if !self.is_ordinary {
            tracing::error!("{doing}: {self}");
        }
        self.errno
    }
}

/// What has come of two steps, the second of which is taken whatever came of the first. The first
/// failure counts. Of a second nobody hears, so that what its number does not say goes to the log.
pub fn both<A, B>(
    second: &str,
    one: Result<A, Failure>,
    other: Result<B, Failure>,
) -> Result<(A, B), Failure> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
        (Err(failure), Err(lost)) => {
            lost.told(second);
            Err(failure)
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) if self.what.is_empty() => write!(f, "{source}"),
            Some(source) => write!(f, "{}: {source}", self.what),
            None if self.what.is_empty() => self.errno.fmt(f),
            None => f.write_str(&self.what),
        }
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::new(errno, "")
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::of_io("", error)
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Failure {
        let is_ordinary = match &error {
            CopyError::Stopped => true,
            CopyError::Source(e) | CopyError::Destination(e) => e.raw_os_error().is_some(),
            CopyError::Verify { .. } => false,
        };
        Failure {
            is_ordinary,
            ..Failure::of(error.errno(), error)
        }
    }
}

impl From<NsError> for Failure {
    fn from(error: NsError) -> Failure {
        if let NsError::Errno(errno) = error {
            return errno.into();
        }
        Failure {
            errno: error.errno(),
            what: "".into(),
            is_ordinary: error.is_ordinary(),
            source: Some(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use forebay_namespace::{NsError, on_pfs};
    use forebay_types::Errno;

    use super::{Failure, both};

    #[test]
    fn a_failure_keeps_its_source_and_says_it_once() {
        let error = std::io::Error::from_raw_os_error(libc::ENOSPC);
        let said = error.to_string();
        let failure = Failure::of_io("flush on flash", error);
        assert_eq!(failure.errno(), Errno::ENOSPC);
        assert_eq!(failure.to_string(), format!("flush on flash: {said}"));
        assert_eq!(failure.source().map(|s| s.to_string()), Some(said));
        let plain = Failure::from(Errno::EBUSY);
        assert_eq!(plain.to_string(), Errno::EBUSY.message());
        assert!(plain.source().is_none());
    }

    #[test]
    fn what_the_namespace_says_is_kept_until_the_number_alone_goes_on() {
        let full = || std::io::Error::from_raw_os_error(libc::ENOSPC);
        let said = full().to_string();
        let error = || NsError::from(forebay_kv::Error::Io(full()));
        let failure = Failure::from(error());
        assert!(failure.to_string().ends_with(&said), "{failure}");
        assert!(failure.to_string().starts_with("metadata store: "));
        assert!(
            failure
                .source()
                .is_some_and(|source| source.is::<NsError>())
        );
        assert!(!failure.is_ordinary);
        assert_eq!(failure.told("unlink"), Errno::ENOSPC);
        let refused = on_pfs("unlink")(std::io::Error::from_raw_os_error(libc::EACCES));
        assert!(Failure::from(refused).is_ordinary, "the program gets it");
        let rule = Failure::from(NsError::from(Errno::ENOTEMPTY));
        assert!(rule.is_ordinary && rule.source().is_none());
        assert_eq!(rule.to_string(), Errno::ENOTEMPTY.message());
    }

    #[test]
    fn words_in_front_leave_the_number_and_the_source() {
        let lost = Failure::from(std::io::Error::from_raw_os_error(libc::EDQUOT));
        let said = lost.to_string();
        let failure = lost.about("its object");
        assert_eq!(failure.errno(), Errno::EDQUOT);
        assert_eq!(failure.to_string(), format!("its object: {said}"));
        assert_eq!(failure.source().map(|s| s.to_string()), Some(said));
        let bare = Failure::from(Errno::EDQUOT).about("its object");
        assert_eq!(bare.to_string(), "its object");
        assert!(bare.source().is_none());
    }

    #[test]
    fn in_brief_is_what_the_number_says_where_that_is_all() {
        let refused = || std::io::Error::from_raw_os_error(libc::ENOENT);
        let plain = Failure::from(on_pfs("open")(refused()));
        assert_eq!(plain.in_brief(), Errno::ENOENT.message());
        let worded = Failure::of_io("its object", refused());
        assert_eq!(worded.in_brief(), worded.to_string());
        let odd = Failure::from(NsError::from(forebay_kv::Error::Io(refused())));
        assert_eq!(odd.in_brief(), odd.to_string());
    }

    #[test]
    fn the_first_failure_of_two_counts() {
        let failed = |errno: Errno| Err::<(), _>(Failure::from(errno));
        let number = |done: Result<((), ()), Failure>| done.err().map(|f| f.errno());
        let (one, other) = (Errno::EIO, Errno::EBUSY);
        assert_eq!(number(both("close", Ok(()), Ok(()))), None);
        assert_eq!(number(both("close", failed(one), Ok(()))), Some(one));
        assert_eq!(number(both("close", Ok(()), failed(other))), Some(other));
        assert_eq!(number(both("close", failed(one), failed(other))), Some(one));
    }

    #[test]
    fn an_error_that_others_look_at_is_the_same() {
        for error in [
            std::io::Error::from_raw_os_error(libc::EMFILE),
            std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "short read"),
        ] {
            let failure = Failure::of_shared(&error);
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            assert_eq!(failure.errno(), Errno(number));
            assert_eq!(failure.to_string(), error.to_string());
        }
    }

    #[test]
    fn another_number_leaves_the_reason() {
        let failure = Failure::of_io("open", std::io::Error::from_raw_os_error(libc::ENOENT));
        let said = failure.to_string();
        let other = failure.with_errno(Errno::ESTALE);
        assert_eq!((other.errno(), other.to_string()), (Errno::ESTALE, said));
    }
}
