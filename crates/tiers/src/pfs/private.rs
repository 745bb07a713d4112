//! Directories on the PFS that are this process's user's alone.

use std::io;
use std::os::fd::OwnedFd;

use forebay_types::Errno;
use rustix::fs::Mode;

use super::tree::{PfsDir, PfsTree, checked, reopen};
use crate::actas::fs_uid;

impl PfsTree {
    /// Opens a directory that nobody else may enter; `None` if there is nothing of this name,
    /// `EPERM` for whatever else has it: a link, or a directory that somebody else owns or may
    /// enter. `probe` is a free name, for a file that shows as whom the PFS takes this process.
    pub fn open_private(
        &self,
        parent: &PfsDir,
        name: &[u8],
        probe: &[u8],
    ) -> io::Result<Option<PfsDir>> {
        let dir = match self.open_dir(parent, name) {
            Ok(dir) => dir,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(None),
                    Some(libc::ENOTDIR | libc::ELOOP) => Err(Errno::EPERM.into()),
                    _ => Err(error),
                };
            }
        };
        let stat = self.stat_dir(&dir)?;
        let is_private = stat.perm() & 0o077 == 0;
        match is_private && self.is_own(parent, stat.uid, probe)? {
            true => Ok(Some(dir)),
            false => Err(Errno::EPERM.into()),
        }
    }

    /// Makes such a directory. `EPERM` if it has been exchanged for another meanwhile.
    pub fn make_private(&self, parent: &PfsDir, name: &[u8], probe: &[u8]) -> io::Result<PfsDir> {
        self.health.pass()?;
        rustix::fs::mkdirat(parent, checked(name)?, Mode::from_raw_mode(0o700))?;
        let made = self.open_private(parent, name, probe)?;
        made.ok_or_else(|| Errno::EPERM.into())
    }

    /// A descriptor of a directory that can be read and synced.
    pub fn readable(&self, dir: &PfsDir) -> io::Result<OwnedFd> {
        self.health.pass()?;
        reopen(dir)
    }

    /// Whether an owner is who this process is on the PFS. A server of the PFS may take root for
    /// somebody else.
    fn is_own(&self, parent: &PfsDir, uid: u32, probe: &[u8]) -> io::Result<bool> {
        if uid == fs_uid() {
            return Ok(true);
        }
        let made = match self.create_temporary(parent, probe, 0o600) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.unlink(parent, probe)?;
                self.create_temporary(parent, probe, 0o600)
            }
            made => made,
        }?;
        let found = self.stat_file(&made);
        self.unlink(parent, probe)?;
        Ok(found?.uid == uid)
    }
}
