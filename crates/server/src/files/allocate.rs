//! fallocate on open files.

use std::sync::Arc;

use forebay_tiers::{Allocate, Object};
use forebay_types::{Errno, Handle, limits::SPACE_UNIT_BYTES};
use forebay_wire::SpaceChange;

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::space::Room;

impl Files {
    /// fallocate(2).
    pub fn change_space(
        &self,
        handle: Handle,
        change: SpaceChange,
        (offset, len): (u64, u64),
        drop_suid: bool,
        may_wait: bool,
    ) -> Result<Option<()>, Failure> {
        let (open, flags) = self.buffer.opens().file(handle)?;
        if !flags.writes() {
            return Err(Errno::EBADF.into());
        }
        let under_way = open.changes.begin();
        let changed = self.change_space_of(&open, change, (offset, len), drop_suid, may_wait);
        drop(under_way);
        self.absorb_late(&open, changed)
    }

    fn change_space_of(
        &self,
        open: &Arc<OpenFile>,
        change: SpaceChange,
        (offset, len): (u64, u64),
        drop_suid: bool,
        may_wait: bool,
    ) -> Result<Option<()>, Failure> {
        let _request = self.buffer.activity().begin();
        self.prepare_change(open, false)?;
        if !may_wait && open.uncompared().is_some() {
            return Ok(None);
        }
        if drop_suid {
            self.clear_set_id(open.ino)?;
        }
        self.drop_capability(open)?;
        let takes_space = matches!(change, SpaceChange::Allocate | SpaceChange::Reserve);
        if takes_space {
            self.check_pfs_has(open, len)?;
            if self.admit(open, len, may_wait)? == Room::WouldWait {
                return Ok(None);
            }
        }
        let target = self.target(open)?;
        self.buffer.reach(&target)?;
        self.note_change(open, &target)?;
        let had_more = holds_beyond_end(target.object())?;
        let mode = match change {
            SpaceChange::Allocate => Allocate::Extend,
            SpaceChange::Reserve => Allocate::Reserve,
            SpaceChange::PunchHole => Allocate::PunchHole,
            SpaceChange::ZeroRange => Allocate::ZeroRange,
            SpaceChange::ZeroRangeKeepSize => Allocate::ZeroRangeKeepSize,
        };
        let pass = self.buffer.pass_to_change(&target);
        let allocated = pass.and_then(|()| target.object().allocate(mode, offset, len));
        open.unsent.changed();
        self.note_changed(&target)?;
        drop(target);
        if allocated.is_err() && takes_space && !had_more {
            self.free_beyond_end(open)?;
        }
        Ok(Some(allocated?))
    }

    /// What an allocation that failed half-way has left beyond the end goes back. Not of what the
    /// kernel writes: it may be longer at any moment.
    fn free_beyond_end(&self, open: &OpenFile) -> Result<(), Failure> {
        if open.is_passthrough() {
            return Ok(());
        }
        let target = open.target.write();
        if let Target::Buffer { object, .. } = &*target
            && object.is_held()
        {
            object.set_len(object.stat()?.size)?;
        }
        Ok(())
    }

    /// Space is promised for good only where the PFS has it, too: that is where the file ends up.
    fn check_pfs_has(&self, open: &OpenFile, len: u64) -> Result<(), Failure> {
        if self.base.health().is_silent() {
            return Ok(());
        }
        let held = open.target.read().object().stat()?.allocated_bytes;
        let pfs = self.ns.statfs()?;
        let free = pfs.blocks_available * u64::from(pfs.block_bytes);
        match len.saturating_sub(held) > free {
            true => Err(Errno::ENOSPC.into()),
            false => Ok(()),
        }
    }
}

/// Whether space beyond its end is set aside for it already, more than a page of its file system.
fn holds_beyond_end(object: &dyn Object) -> Result<bool, Failure> {
    let stat = object.stat()?;
    Ok(stat.allocated_bytes > stat.size + SPACE_UNIT_BYTES)
}
