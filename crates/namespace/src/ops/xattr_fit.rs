//! Whether the PFS would take the extended attributes of a file that is in the burst buffer only.
//!
//! What file systems take differs with their kind and how they were made: ext4 has one block for
//! all attributes of a file, others limit each value, or nothing. So a file without a name is given
//! them there, and goes again: what is refused then, is refused by the drain, and a file that can
//! never be drained must not come about.

use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsTree};
use forebay_types::{Errno, Generation};

use crate::error::on_pfs;
use crate::record::Xattrs;
use crate::tree::Dir;
use crate::{File, FileState, Namespace, NsError};

/// Every file system that has attributes takes so many bytes of them, names and values and what
/// goes with each: the smallest block of ext4 is twice that.
const TAKEN_BYTES: usize = 512;
/// What goes with each attribute, in bytes.
const PER_ATTRIBUTE_BYTES: usize = 24;
/// With less room the PFS may refuse for want of that, which passes, and then the drain goes on.
const ROOM_BYTES: u64 = 1 << 20;
/// Generation in the temporary name: no demotion of the file has it.
const TRIAL: Generation = Generation(1 << 62);

fn bytes_of(xattrs: &Xattrs) -> usize {
    let bytes = |(name, value): &(Vec<u8>, Vec<u8>)| PER_ATTRIBUTE_BYTES + name.len() + value.len();
    xattrs.iter().map(bytes).sum()
}

impl Namespace {
    /// Fails as the PFS would if the file were drained with these attributes instead of those that
    /// it has had.
    pub(crate) fn would_take(
        &self,
        file: &File,
        before: &FileState,
        state: &FileState,
    ) -> Result<(), NsError> {
        let named = state.names.first().map(|(dir, _)| dir);
        let Some(dir) = named.or(state.unnamed.as_ref()) else {
            return Ok(());
        };
        if bytes_of(&state.xattrs) <= TAKEN_BYTES.max(bytes_of(&before.xattrs)) {
            return Ok(());
        }
        let handle = self.open_dir(dir)?;
        match self.refusal(dir, &handle, file, &state.xattrs)? {
            Some(Errno::ENOSPC) if !self.has_room()? => Ok(()),
            Some(errno) => Err(errno.into()),
            None => Ok(()),
        }
    }

    /// What the PFS says to them; `None` if it takes them, or drops some, which the drain reports.
    fn refusal(
        &self,
        dir: &Arc<Dir>,
        handle: &PfsDir,
        file: &File,
        xattrs: &Xattrs,
    ) -> Result<Option<Errno>, NsError> {
        if let Some(trial) = self
            .pfs
            .create_unnamed(handle, 0o600)
            .map_err(on_pfs("create without a name"))?
        {
            return Ok(self.refusal_of(&trial, xattrs));
        }
        let name = PfsTree::temporary_name(self.instance, file.object, TRIAL);
        let refusal = self.unseen(dir, handle, || -> std::io::Result<_> {
            let trial = self.pfs.create_temporary(handle, &name, 0o600)?;
            let refusal = self.refusal_of(&trial, xattrs);
            self.pfs.unlink(handle, &name)?;
            Ok(refusal)
        });
        self.put_times_back(dir, handle);
        refusal.map_err(on_pfs("try attributes"))
    }

    fn refusal_of(&self, trial: &std::fs::File, xattrs: &Xattrs) -> Option<Errno> {
        let set = |(name, value): &(Vec<u8>, Vec<u8>)| {
            let error = self.pfs.set_xattr_file(trial, name, value, 0).err()?;
            match Errno::of(&error) {
                Errno::EOPNOTSUPP | Errno::EPERM => None,
                errno => Some(errno),
            }
        };
        xattrs.iter().find_map(set)
    }

    fn has_room(&self) -> Result<bool, NsError> {
        let totals = self.pfs.statfs().map_err(on_pfs("statfs"))?;
        Ok(totals.blocks_available * u64::from(totals.block_bytes) >= ROOM_BYTES)
    }
}
