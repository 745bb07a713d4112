//! Content that is too large to be compared at the open. Each block is compared before anything of
//! the block is handed out for the first time. All blocks are compared before the content changes.
//! A damaged block is written again from what the PFS has, where that is good.

use std::sync::atomic::Ordering;

use forebay_policy::repair::{Knowledge, Remedy, remedy_in_use};
use forebay_tiers::Object;
use forebay_types::{Errno, SetTime, failpoint};

use crate::base::failure::Failure;
use crate::buffer::blocks::Blocks;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::integrity::Integrity;
use crate::integrity::atrest::is_exhaustion;

/// One read from the PFS, bytes.
const MEND_STEP_BYTES: u64 = 1 << 20;

impl Integrity {
    /// Bytes of an open file are about to be handed out. `EIO` if they are damaged, and the PFS
    /// does not have them.
    pub fn compare_before_read(
        &self,
        open: &OpenFile,
        target: &Target,
        offset: u64,
        len: u64,
    ) -> Result<(), Failure> {
        let Some(blocks) = open.uncompared() else {
            return Ok(());
        };
        for block in blocks.sums.blocks_of(offset, len) {
            self.verify_block(open, target.object(), &blocks, block)?;
        }
        Ok(())
    }

    /// The content of an open file is about to change: what is left of it gets a new checksum then,
    /// whatever it is.
    pub fn compare_before_change(&self, open: &OpenFile, target: &Target) -> Result<(), Failure> {
        // Every write asks.
        if open.uncompared().is_some() {
            self.compare_before_read(open, target, 0, u64::MAX)?;
            open.mark_verified();
        }
        Ok(())
    }

    fn verify_block(
        &self,
        open: &OpenFile,
        object: &dyn Object,
        blocks: &Blocks,
        block: usize,
    ) -> Result<(), Failure> {
        if blocks.is_compared(block) {
            return Ok(());
        }
        let _turn = blocks.turn(block);
        if blocks.is_compared(block) {
            return Ok(());
        }
        let at = blocks.sums.range(block);
        let problem = match blocks
            .sums
            .is_good(object, block, &|| self.base.is_ending())
        {
            Ok(true) => {
                self.block_is_good(open, blocks, block);
                return Ok(());
            }
            Ok(false) => format!("checksum mismatch in bytes {} to {}", at.start, at.end),
            Err(error) if is_exhaustion(&error) => return Err(error.into()),
            Err(error) => format!("bytes {} to {} cannot be read: {error}", at.start, at.end),
        };
        // Whoever changes it has compared all of it before.
        if !open.is_uncompared(blocks) {
            return Ok(());
        }
        let path = blocks.file.path();
        if let Err(why) = self.restore_block(object, blocks, block) {
            tracing::debug!("{}: {problem}: {why}", path.escape_ascii());
            self.note_damage(&blocks.file, path, problem, Default::default());
            return Err(why.with_errno(Errno::EIO));
        }
        let action = Remedy::Rewrite.describe();
        let reason = format!("found damaged at rest: {problem}; {action}");
        self.base.report(path, Errno::EIO, reason);
        self.at_rest.found.fetch_add(1, Ordering::Relaxed);
        self.block_is_good(open, blocks, block);
        Ok(())
    }

    fn block_is_good(&self, open: &OpenFile, blocks: &Blocks, block: usize) {
        self.at_rest.compared_blocks.fetch_add(1, Ordering::Relaxed);
        if blocks.note(block) {
            let object = blocks.file.object;
            self.at_rest.seal(object, blocks.generation, &blocks.before);
            open.mark_verified();
        }
    }

    /// Writes a block again from what the PFS has, if that is what was published.
    fn restore_block(
        &self,
        object: &dyn Object,
        blocks: &Blocks,
        block: usize,
    ) -> Result<(), Failure> {
        let Blocks {
            file, sums, before, ..
        } = blocks;
        self.base.health().pass()?;
        let original = self.original(file)?;
        let stop = || self.base.is_ending();
        let known = Knowledge {
            clean: file.lock().residency.clean,
            original_good: sums.is_good(&original, block, &stop)?,
            object_good: false,
        };
        if remedy_in_use(known) != Remedy::Rewrite {
            return Err(Errno::EIO.into());
        }
        let mut buffer = vec![0; MEND_STEP_BYTES as usize];
        let mut at = sums.range(block);
        while at.start < at.end {
            let want = MEND_STEP_BYTES.min(at.end - at.start) as usize;
            let count = original.read_at(&mut buffer[..want], at.start)?;
            if count == 0 {
                return Err(Errno::EIO.into());
            }
            at.start += object.write_at(&buffer[..count], at.start)? as u64;
            failpoint::hit(failpoint::Point::BlockRewritten);
        }
        let times = |time| Some(SetTime::At(time));
        object.set_times(times(before.atime), times(before.mtime))?;
        match sums.is_good(object, block, &stop)? {
            true => Ok(()),
            false => Err(Errno::EIO.into()),
        }
    }
}
