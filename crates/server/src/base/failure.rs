//! Why something was not done: the error number that a program or a script sees, and what a person
//! is told, with its source.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use forebay_namespace::NsError;
use forebay_types::Errno;

/// Why something was not done.
#[derive(Debug)]
pub struct Failure {
    errno: Errno,
    what: Cow<'static, str>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// With words of its own.
    pub fn new(errno: Errno, what: impl Into<Cow<'static, str>>) -> Failure {
        Failure {
            errno,
            what: what.into(),
            source: None,
        }
    }

    /// An error of I/O, met while `what` was done or looked at.
    pub fn of_io(what: impl Into<Cow<'static, str>>, error: std::io::Error) -> Failure {
        Failure {
            errno: (&error).into(),
            what: what.into(),
            source: Some(Box::new(error)),
        }
    }

    /// The error number it becomes.
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) if self.what.is_empty() => write!(f, "{source}"),
            Some(source) => write!(f, "{}: {source}", self.what),
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
        Failure::new(errno, errno.message())
    }
}

impl From<NsError> for Failure {
    fn from(error: NsError) -> Failure {
        Failure {
            errno: error.errno(),
            what: "".into(),
            source: Some(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use forebay_types::Errno;

    use super::Failure;

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
}
