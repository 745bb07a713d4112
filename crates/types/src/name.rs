//! Which names a directory entry may have.

use crate::{Errno, limits};

/// Why a name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, `.` or `..`.
    #[error("the name is empty, '.' or '..'")]
    Reserved,
    /// Holds '/' or NUL.
    #[error("the name holds '/' or NUL")]
    BadByte,
    /// Longer than [`limits::NAME_BYTES_MAX`].
    #[error("the name is longer than 255 bytes")]
    TooLong,
}

impl From<NameError> for Errno {
    fn from(error: NameError) -> Errno {
        match error {
            NameError::Reserved | NameError::BadByte => Errno::EINVAL,
            NameError::TooLong => Errno::ENAMETOOLONG,
        }
    }
}

/// Accepts what one component of a path may be: 1 to 255 bytes, any but '/' and NUL, not `.` or
/// `..`.
pub fn check_name(name: &[u8]) -> Result<(), NameError> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(NameError::Reserved);
    }
    if name.len() > limits::NAME_BYTES_MAX {
        return Err(NameError::TooLong);
    }
    if name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(NameError::BadByte);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(check_name(b"a"), Ok(()));
        assert_eq!(check_name(&[0xff; 255]), Ok(()));
        assert_eq!(check_name(&[b'a'; 256]), Err(NameError::TooLong));
        assert_eq!(check_name(b".."), Err(NameError::Reserved));
        assert_eq!(check_name(b""), Err(NameError::Reserved));
        assert_eq!(check_name(b"a/b"), Err(NameError::BadByte));
        assert_eq!(check_name(b"a\0"), Err(NameError::BadByte));
        assert_eq!(check_name(b"..."), Ok(()));
    }
}
