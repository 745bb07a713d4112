//! Set-user-id and set-group-id bits, which do not survive what somebody does who could not have
//! set them.

use std::fs::File;
use std::io::Read;

use forebay_namespace::without_set_id;
use forebay_types::{Cred, Errno, Ino, SetAttr};

use crate::base::failure::Failure;
use crate::files::Files;

/// So much of a process's state is read: its groups stand in the first part, and there may be many.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// The bit that lets a program run as its group.
const SET_GROUP_ID: u16 = 0o2000;

impl Files {
    /// They do not survive a change of content by an ordinary user.
    pub fn clear_set_id(&self, ino: Ino) -> Result<(), Failure> {
        let perm = self.getattr(ino)?.perm;
        self.keep_of_mode(ino, perm, without_set_id(perm))
    }

    /// The group's does not survive an access control list set by somebody who is not in the group.
    pub fn clear_group_id_of_outsider(&self, ino: Ino, who: &Cred) -> Result<(), Failure> {
        if who.uid == 0 {
            return Ok(());
        }
        let attr = self.getattr(ino)?;
        if attr.perm & SET_GROUP_ID == 0 || is_member(who, attr.gid) {
            return Ok(());
        }
        self.keep_of_mode(ino, attr.perm, attr.perm & !SET_GROUP_ID)
    }

    fn keep_of_mode(&self, ino: Ino, perm: u16, kept: u16) -> Result<(), Failure> {
        if kept == perm {
            return Ok(());
        }
        let set = SetAttr {
            perm: Some(kept),
            ..SetAttr::default()
        };
        match self.ns.setattr(ino, &set) {
            Err(error) if error.errno() == Errno::ESTALE => {
                self.setattr_open_pfs(ino, &set).map(|_| ())
            }
            done => Ok(done.map(drop)?),
        }
    }
}

/// Whether a process is in a group, as far as it can be seen; the request itself names only one of
/// its groups.
fn is_member(who: &Cred, gid: u32) -> bool {
    who.gid == gid || state_of(who.pid).is_some_and(|state| names_group(&state, gid))
}

fn state_of(pid: u32) -> Option<String> {
    // 0: a process outside of what this one sees.
    if pid == 0 {
        return None;
    }
    let mut text = String::new();
    let file = File::open(format!("/proc/{pid}/status")).ok()?;
    file.take(STATE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The line `Groups:` of `/proc/PID/status`.
fn names_group(state: &str, gid: u32) -> bool {
    let groups = state.lines().find_map(|line| line.strip_prefix("Groups:"));
    let mut numbers = groups.unwrap_or_default().split_ascii_whitespace();
    numbers.any(|number| number.parse() == Ok(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process_are_read_from_its_state() {
        let state = "Name:\tGroups: 7\nUid:\t1\t1\t1\t1\nGroups:\t4 24 4242 \nNStgid:\t9\n";
        assert!(names_group(state, 4242) && names_group(state, 4));
        assert!(!names_group(state, 7) && !names_group(state, 424));
        assert!(!names_group("Name:\tx\nGroups:\t\n", 0));
        assert!(state_of(std::process::id()).is_some_and(|state| state.contains("Groups:")));
        assert_eq!(state_of(0), None);
    }
}
