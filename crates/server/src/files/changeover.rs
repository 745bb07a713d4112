//! Files that go to another node while programs have them open.
//!
//! 1. *Copy.* Reads and writes go on meanwhile; what is written is counted (`Unsent`).
//! 2. *Catch up.* What was written since is copied again, until that is little.
//! 3. *Change over.* Requests wait. The last of it is copied and flushed, the record names the new
//!    object, and every handle goes on with that.
//!
//! What a second copy of the file lacks is what it has lacked before, and what was written since:
//! the move counts for itself, and gives back what it has taken.
//!
//! A file that a kernel reads or writes by itself stays: no request could be made to wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::File;
use forebay_policy::emptying::{CATCH_UP_ROUNDS, is_little, is_too_much};
use forebay_tiers::{CopyControl, CopyError, Object, TierKind, refresh, refresh_ranges};
use forebay_types::{Errno, SetTime, TierId};
use parking_lot::RwLockWriteGuard;

use crate::base::failure::Failure;
use crate::buffer::opens::{Claim, OpenFile};
use crate::buffer::target::Target;
use crate::buffer::unsent::Lacking;
use crate::files::Files;
use crate::files::mover::{Move, finish};
use crate::files::replica::PATIENCE;

/// An open file on its way to another tier.
#[derive(Clone, Copy)]
pub struct Leaving<'a> {
    /// What it is.
    pub file: &'a Arc<File>,
    /// The same, for who has it open.
    pub open: &'a OpenFile,
    /// Where to.
    pub to: TierId,
    /// There is to be room for so much more than it has, bytes.
    pub ahead_bytes: u64,
}

/// All requests wait, and nobody opens or closes the file.
struct Held<'a> {
    _claim: Claim<'a>,
    target: RwLockWriteGuard<'a, Target>,
}

impl Files {
    /// Moves a file that is open. `false`: it stays, for it is in use in a way that does not allow
    /// it, or there is no room for it.
    ///
    /// # Errors
    /// The file is where it was.
    pub fn move_open_to_node(
        &self,
        leaving: Leaving<'_>,
        control: &CopyControl<'_>,
    ) -> Result<bool, Failure> {
        let Some(_copying) = leaving.file.try_copying() else {
            return Ok(false);
        };
        self.change_over(leaving, control)
    }

    /// The same for a writer who needs room: waits for who copies the file now.
    pub(super) fn hand_over_open(&self, leaving: Leaving<'_>) -> Result<bool, Failure> {
        let _copying = leaving.file.copying();
        self.change_over(leaving, &CopyControl::NONE)
    }

    /// For who has the right to copy the file.
    fn change_over<'a>(
        &'a self,
        leaving: Leaving<'a>,
        control: &CopyControl<'_>,
    ) -> Result<bool, Failure> {
        let Leaving { file, open, to, .. } = leaving;
        let Some(object) = self.source_of(leaving)? else {
            return Ok(false);
        };
        let bytes = object.stat()?.allocated_bytes + leaving.ahead_bytes;
        if !self.hold_for_move(file, to, bytes) {
            return Ok(false);
        }
        let mut taken = open.unsent.take();
        let wanted = Move {
            file,
            source: &*object,
            to,
            generation: None,
            is_exclusive: true,
        };
        let catch_up = |copy: &dyn Object| {
            self.catch_up(&wanted, copy, (open, &mut taken), control)?;
            self.hold_all(&wanted, copy, (open, &mut taken))
        };
        let settle = |object, mut held: Held<'a>| {
            open.budget_bytes.store(0, Ordering::Release);
            let file = file.clone();
            let now = Target::Buffer {
                file,
                object,
                tier: to,
            };
            open.put(&mut held.target, now);
            // Who asks for room meanwhile would be granted some where the file was.
            held
        };
        let moved = self.move_paced(&wanted, control, catch_up, settle);
        open.unsent.put_back(taken);
        self.buffer.ledger().release_move(file.object);
        Ok(moved?.is_some())
    }

    /// What is copied; `None` where the file may not move.
    fn source_of(&self, leaving: Leaving<'_>) -> Result<Option<Arc<dyn Object>>, Failure> {
        let Leaving { file, open, to, .. } = leaving;
        let residency = file.lock().residency;
        let is_promised = residency.flushed.is_some() || residency.shadow.is_some();
        let is_worse = is_promised && self.buffer.tiers().kind(to) == TierKind::Dram;
        if open.is_passthrough() || residency.by_kernel || is_worse || is_nobodys(file) {
            return Ok(None);
        }
        if self.buffer.is_closed(to) || self.buffer.tiers().kind(residency.tier) == TierKind::Pfs {
            return Ok(None);
        }
        let target = self.target(open)?;
        match &*target {
            Target::Buffer {
                file: its,
                object,
                tier,
            } if Arc::ptr_eq(its, file) && *tier != to => Ok(Some(object.clone())),
            _ => Ok(None),
        }
    }

    /// Step 2.
    fn catch_up(
        &self,
        wanted: &Move<'_>,
        copy: &dyn Object,
        (open, taken): (&OpenFile, &mut Lacking),
        control: &CopyControl<'_>,
    ) -> Result<(), Failure> {
        for _ in 0..CATCH_UP_ROUNDS {
            // So that the flush is short for which requests wait.
            self.flush_source(wanted.file, wanted.source, wanted.file.tier())?;
            let lacking = open.unsent.take();
            taken.join(lacking.clone());
            bring_up_to_date(wanted.source, copy, &lacking, control)?;
            if lacking.bytes().is_some_and(is_little) {
                break;
            }
        }
        Ok(())
    }

    /// Step 3, until the record is made. `None`: somebody has the file and does not let it go, or
    /// writes faster than it is copied.
    fn hold_all<'a>(
        &'a self,
        wanted: &Move<'_>,
        copy: &dyn Object,
        (open, taken): (&'a OpenFile, &mut Lacking),
    ) -> Result<Option<Held<'a>>, Failure> {
        let Some(claim) = self.buffer.opens().claim_within(open.ino, PATIENCE) else {
            return Ok(None);
        };
        let is_open = claim.open().is_some_and(|now| std::ptr::eq(&*now, open));
        let Some(target) = open.target.try_write_for(PATIENCE).filter(|_| is_open) else {
            return Ok(None);
        };
        let is_same =
            matches!(&*target, Target::Buffer { file, .. } if Arc::ptr_eq(file, wanted.file));
        let lacking = open.unsent.take();
        taken.join(lacking.clone());
        let stat = wanted.source.stat()?;
        let bytes = lacking.bytes().unwrap_or(stat.size);
        if !is_same || is_too_much(bytes) || is_nobodys(wanted.file) {
            return Ok(None);
        }
        bring_up_to_date(wanted.source, copy, &lacking, &CopyControl::NONE)?;
        // What the device of the source has lost was perhaps read after that.
        self.flush_source(wanted.file, wanted.source, wanted.file.tier())?;
        let stat = wanted.source.stat()?;
        let at = SetTime::At;
        copy.set_times(Some(at(stat.atime)), Some(at(stat.mtime)))?;
        let slot = self.buffer.tiers().get(wanted.to).ok_or(Errno::ENODEV)?;
        finish(slot, copy, &self.buffer.identity(wanted.file, false))?;
        Ok(Some(Held {
            _claim: claim,
            target,
        }))
    }
}

/// Whether a file has lost its last name: what a crash leaves of it is told where it is.
fn is_nobodys(file: &File) -> bool {
    let state = file.lock();
    state.is_unlinked() && state.unnamed.is_none()
}

fn bring_up_to_date(
    source: &dyn Object,
    copy: &dyn Object,
    lacking: &Lacking,
    control: &CopyControl<'_>,
) -> Result<(), CopyError> {
    match lacking.all {
        true => refresh(source, copy, control).map(drop),
        false => refresh_ranges(source, copy, &lacking.ranges, control).map(drop),
    }
}
