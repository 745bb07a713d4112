//! Set-user-id and set-group-id bits, which do not survive what somebody does who could not have
//! set them.

use forebay_namespace::without_set_id;
use forebay_types::{Cred, Errno, Ino, SetAttr};

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;

/// The bit that lets a program run as its group.
const SET_GROUP_ID: u16 = 0o2000;

impl Files {
    /// They do not survive a change of content by an ordinary user.
    pub fn clear_set_id(&self, ino: Ino) -> Result<(), Failure> {
        let perm = self.getattr(ino)?.perm;
        self.keep_of_mode(ino, perm, without_set_id(perm))
    }

    /// Nor does what a program may do besides its caller, whoever changes it.
    pub fn drop_capability(&self, open: &OpenFile) -> Result<(), Failure> {
        let file = match &*open.target.read() {
            Target::Buffer { file, .. } => file.clone(),
            Target::Pfs { .. } => return Ok(()),
        };
        Ok(self.ns.drop_capability(&file)?)
    }

    /// The group's does not survive an access control list set by somebody who is not in the group.
    pub fn clear_group_id_of_outsider(&self, ino: Ino, who: &Cred) -> Result<(), Failure> {
        if who.uid == 0 {
            return Ok(());
        }
        let attr = self.getattr(ino)?;
        if attr.perm & SET_GROUP_ID == 0 || self.is_member(who, attr.gid) {
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

    /// Whether a process is in a group, as far as it can be seen; the request itself names only one
    /// of its groups.
    fn is_member(&self, who: &Cred, gid: u32) -> bool {
        who.gid == gid || self.base.processes().is_in_group(who.process, gid)
    }
}
