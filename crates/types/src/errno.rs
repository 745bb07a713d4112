//! The error number that every failure becomes on its way to a program.

use std::{fmt, io};

/// A positive Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "` of errno(3).")]
            pub const $name: Errno = Errno(libc::$name);)*

            /// The symbolic name, where it is one that Forebay itself uses.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    EFBIG,
    ENOSPC,
    EROFS,
    EMLINK,
    ERANGE,
    ENAMETOOLONG,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EPROTO,
    EOVERFLOW,
    EOPNOTSUPP,
    ENXIO,
    ESTALE,
    EDQUOT,
    ETIMEDOUT,
    ENOTCONN,
    ENOSYS,
    ECANCELED,
    ETXTBSY,
    EUSERS,
    EDEADLK,
    ENOLCK,
    ESHUTDOWN,
    EINPROGRESS,
);

impl Errno {
    /// The number of an error of I/O, whose text stays with the caller. Errors that carry no number
    /// (short reads, bad UTF-8) are faults of the layer below: `EIO`.
    pub fn of(error: &io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// The text of strerror(3).
    pub fn message(self) -> String {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        match text.find(" (os error") {
            Some(at) => text[..at].to_string(),
            None => text,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        io::Error::from_raw_os_error(errno.0)
    }
}
