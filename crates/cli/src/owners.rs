//! Names of users and groups, as this machine knows them.

use std::ffi::{CStr, CString};

use forebay_wire::control::{LimitStatus, Whose};

/// Room for an entry at first, and at most: a group may have many members.
const ROOM: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 24;

/// Asks with more and more room. The answer of `ask` is an error number, and what was found.
fn with_room<T>(
    mut ask: impl FnMut(&mut [libc::c_char]) -> (libc::c_int, Option<T>),
) -> std::io::Result<Option<T>> {
    let mut room = *ROOM.start();
    loop {
        let mut buffer = vec![0; room];
        match ask(&mut buffer) {
            (libc::ERANGE, _) if room < *ROOM.end() => room *= 4,
            (0, found) => return Ok(found),
            // Some machines say so of a name that there is not.
            (libc::ENOENT | libc::ESRCH, _) => return Ok(None),
            (error, _) => return Err(std::io::Error::from_raw_os_error(error)),
        }
    }
}

/// Declares a question by name and one by number.
macro_rules! lookup {
    ($by_name:ident, $by_id:ident, $entry:ty, $getnam:path, $getid:path, $id:ident, $name:ident) => {
        fn $by_name(name: &CStr) -> std::io::Result<Option<u32>> {
            with_room(|buffer| {
                // SAFETY: an entry is numbers and pointers, for which zeroes are values.
                let mut entry: $entry = unsafe { std::mem::zeroed() };
                let mut found = std::ptr::null_mut();
                // SAFETY: all pointers are to live values, and the length is the buffer's.
                let error = unsafe {
                    $getnam(
                        name.as_ptr(),
                        &mut entry,
                        buffer.as_mut_ptr(),
                        buffer.len(),
                        &mut found,
                    )
                };
                (error, (!found.is_null()).then_some(entry.$id))
            })
        }

        fn $by_id(id: u32) -> std::io::Result<Option<String>> {
            with_room(|buffer| {
                // SAFETY: as above.
                let mut entry: $entry = unsafe { std::mem::zeroed() };
                let mut found = std::ptr::null_mut();
                // SAFETY: as above.
                let error = unsafe {
                    $getid(
                        id,
                        &mut entry,
                        buffer.as_mut_ptr(),
                        buffer.len(),
                        &mut found,
                    )
                };
                let name = (error == 0 && !found.is_null()).then(|| {
                    // SAFETY: an entry that was found has a name, which ends within the buffer.
                    let name = unsafe { CStr::from_ptr(entry.$name) };
                    name.to_string_lossy().into_owned()
                });
                (error, name)
            })
        }
    };
}

lookup!(
    user_by_name,
    user_by_id,
    libc::passwd,
    libc::getpwnam_r,
    libc::getpwuid_r,
    pw_uid,
    pw_name
);
lookup!(
    group_by_name,
    group_by_id,
    libc::group,
    libc::getgrnam_r,
    libc::getgrgid_r,
    gr_gid,
    gr_name
);

/// A kind of owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Users.
    User,
    /// Groups.
    Group,
}

impl Kind {
    /// What messages and settings call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::User => "user",
            Kind::Group => "group",
        }
    }

    /// The number of a name; a number is its own.
    pub fn number(self, name: &str) -> Result<u32, String> {
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let kind = self.name();
        let asked = CString::new(name).map_err(|_| format!("'{name}' is no name of a {kind}"))?;
        let found = match self {
            Kind::User => user_by_name(&asked),
            Kind::Group => group_by_name(&asked),
        };
        match found {
            Ok(Some(number)) => Ok(number),
            Ok(None) => Err(format!(
                "{kind} '{name}' is not known on this machine; a number works without a name"
            )),
            Err(error) => Err(format!("{kind} '{name}' cannot be looked up: {error}")),
        }
    }

    /// The name of a number, where there is one.
    pub fn name_of(self, number: u32) -> String {
        let found = match self {
            Kind::User => user_by_id(number),
            Kind::Group => group_by_id(number),
        };
        // The number says as much.
        found.ok().flatten().unwrap_or_else(|| number.to_string())
    }
}

/// Whose limit it is, in words.
pub fn whose(whose: Whose) -> String {
    match whose {
        Whose::EachUser => "each user".into(),
        Whose::EachGroup => "each group".into(),
        Whose::User(id) => format!("user {}", Kind::User.name_of(id)),
        Whose::Group(id) => format!("group {}", Kind::Group.name_of(id)),
    }
}

/// The kind of who has something under a limit.
pub fn kind_of(limit: &LimitStatus) -> Kind {
    match limit.is_group {
        true => Kind::Group,
        false => Kind::User,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_this_machine() {
        for kind in [Kind::User, Kind::Group] {
            assert_eq!(kind.number("root"), Ok(0));
            assert_eq!(kind.name_of(0), "root");
            assert_eq!(kind.number("4294967294"), Ok(u32::MAX - 1));
            assert_eq!(kind.name_of(u32::MAX - 1), "4294967294");
            let error = kind.number("nobody-is-called-so").unwrap_err();
            assert!(error.contains("is not known on this machine"), "{error}");
        }
    }
}
