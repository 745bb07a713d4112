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
            errno: (&error).into(),
            what: what.into(),
            is_ordinary: error.raw_os_error().is_some(),
            source: Some(Box::new(error)),
        }
    }

    /// The same text with another error number for the program.
    pub fn with_errno(self, errno: Errno) -> Failure {
        Failure { errno, ..self }
    }

    /// The error number it becomes.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// For a caller that passes on the number alone. What the number does not say goes to the log.
    pub fn told(self) -> Errno {
        if !self.is_ordinary {
            tracing::error!("a request failed: {self}");
        }
        self.errno
    }
}

/// For `map_err`, where inner code goes on with the number alone of an error. What the number does
/// not say goes to the log, with what was being done.
pub fn told<E: Into<Failure>>(doing: &'static str) -> impl Fn(E) -> Errno {
    move |error| {
        let failure = error.into();
        if !failure.is_ordinary {
            tracing::error!("{doing}: {failure}");
        }
        failure.errno
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

    use super::{Failure, told};

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
        assert_eq!(failure.told(), Errno::ENOSPC);
        assert_eq!(told("unlink")(error()), Errno::ENOSPC);
        let refused = on_pfs("unlink")(std::io::Error::from_raw_os_error(libc::EACCES));
        assert!(Failure::from(refused).is_ordinary, "the program gets it");
        let rule = Failure::from(NsError::from(Errno::ENOTEMPTY));
        assert!(rule.is_ordinary && rule.source().is_none());
        assert_eq!(rule.to_string(), Errno::ENOTEMPTY.message());
    }

    #[test]
    fn another_number_leaves_the_reason() {
        let failure = Failure::of_io("open", std::io::Error::from_raw_os_error(libc::ENOENT));
        let said = failure.to_string();
        let other = failure.with_errno(Errno::ESTALE);
        assert_eq!((other.errno(), other.to_string()), (Errno::ESTALE, said));
    }
}
