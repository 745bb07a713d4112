//! Moves of a file's object from one tier to another: one protocol for all of them.
//!
//! 0. *Note.* Where the copy is to be on another node, that is on record first, as what is left of
//!    the file there: should this server end before the commit, and that node be away, nothing that
//!    the node brings back is taken for a file. The commit takes it off the record, and puts what
//!    is left on the node of the old object there.
//! 1. *Copy.* The caller has the right to copy the object ([`File::copying`]), and keeps others
//!    from changing its content. The copy is flushed where its tier is stable storage. What the
//!    file is itself is never copied over.
//! 2. *Commit.* The record names the new tier. Where the file has changed since the copy began, or
//!    somebody has it who must not, or has heard of a flush that has failed, the move is refused,
//!    and the copy goes.
//! 3. *Settle.* Who has the file open goes on with the new object, before the old one goes.
//! 4. *Charge.* The ledger follows the record. Who had the file alone lets it go after that: what
//!    is written then is not taken off the books again.
//! 5. *Remove.* The old object goes, then a second copy that is of no use any more.
//!
//! Where the store fails in step 2, nobody can say which of both tiers a start finds on record.
//! Both objects then stay, and both are charged. The copy goes when the store takes the record of
//! the file again ([`Buffer::leave_copies_late`]).
//!
//! [`Buffer::leave_copies_late`]: crate::buffer::Buffer::leave_copies_late

use std::io;
use std::sync::Arc;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::{File, Migration};
use forebay_tiers::{CopyControl, Identity, Object, TierKind, copy, refresh};
use forebay_types::{Errno, Generation, SetTime, TierId, failpoint};

use crate::base::failure::Failure;
use crate::buffer::tierset::Slot;
use crate::files::Files;

/// A move to be made.
pub struct Move<'a> {
    /// Of this file; the caller has the right to copy it.
    pub file: &'a Arc<File>,
    /// What it is now.
    pub source: &'a dyn Object,
    /// Where to.
    pub to: TierId,
    /// What is copied. `None`: nobody can change the content meanwhile, and attributes may.
    pub generation: Option<Generation>,
    /// The caller has the file to itself: also what is being written, or has no name, moves.
    pub is_exclusive: bool,
}

/// A move whose copy is made.
struct Copied {
    object: Arc<dyn Object>,
    from: TierId,
    shadow: Option<(TierId, Generation)>,
    keeps_second: bool,
}

/// What a file is itself is never written over by a copy of what it was.
pub fn refuse_primary(file: &File, to: TierId) -> Result<(), Failure> {
    match file.tier() == to {
        true => Err(Errno::EBUSY.into()),
        false => Ok(()),
    }
}

impl Files {
    /// Moves an object. `may_commit` is asked when the copy is whole: `None` refuses the move,
    /// anything else is kept until the record is made. `settle` gets the new object. Answers with
    /// what the object occupies, or `None` if the move was refused.
    ///
    /// # Errors
    /// The file is where it was. `EIO` also if what is on flash is not what its record says.
    pub fn move_object<G>(
        &self,
        wanted: &Move<'_>,
        may_commit: impl FnOnce() -> Option<G>,
        settle: impl FnOnce(Arc<dyn Object>),
    ) -> Result<Option<u64>, Failure> {
        let settle = |object, held| {
            settle(object);
            held
        };
        self.move_paced(wanted, &CopyControl::NONE, |_| Ok(may_commit()), settle)
    }

    /// The same, watched and stopped by `control` while it copies. `may_commit` gets the copy, and
    /// may still change it; `settle` gets what that has answered with, and what it answers with
    /// itself is kept until the ledger follows the record.
    pub(super) fn move_paced<G, K>(
        &self,
        wanted: &Move<'_>,
        control: &CopyControl<'_>,
        may_commit: impl FnOnce(&dyn Object) -> Result<Option<G>, Failure>,
        settle: impl FnOnce(Arc<dyn Object>, G) -> K,
    ) -> Result<Option<u64>, Failure> {
        let copied = self.begin_move(wanted, control)?;
        let held = match may_commit(&*copied.object) {
            Ok(Some(held)) => held,
            refused => {
                self.buffer.leave_copy(wanted.file, wanted.to);
                return refused.map(|_| None);
            }
        };
        let committed = self.commit_move(wanted, &copied);
        let Ok(Some(bytes)) = committed else {
            drop(held);
            committed?;
            self.buffer.leave_copy(wanted.file, wanted.to);
            return Ok(None);
        };
        let kept = settle(copied.object.clone(), held);
        self.buffer.book(wanted.file, bytes);
        drop(kept);
        self.end_move(wanted, &copied);
        Ok(Some(bytes))
    }

    /// Steps 0 and 1.
    fn begin_move(&self, wanted: &Move<'_>, control: &CopyControl<'_>) -> Result<Copied, Failure> {
        let &Move { file, to, .. } = wanted;
        let (from, shadow) = {
            let state = file.lock();
            (state.residency.tier, state.residency.shadow)
        };
        refuse_primary(file, to)?;
        self.flush_source(file, wanted.source, from)?;
        if self.is_left_on_a_node(to, from) && shadow.is_none_or(|(tier, _)| tier != to) {
            (self.ns).leave_behind(file.object, to, KvDurability::Synced)?;
        }
        Ok(Copied {
            object: self.copy_object(file, wanted.source, (to, control), finish)?,
            from,
            shadow,
            keeps_second: self.keeps_second(file, to),
        })
    }

    /// Whether what is left of a file in a tier may be met by a later start only: the tier is on
    /// another node than this server, and than the file's other tier.
    fn is_left_on_a_node(&self, tier: TierId, other: TierId) -> bool {
        self.buffer.tiers().holder_of(tier).is_some() && self.is_second(tier, other)
    }

    /// Step 2. Answers with what the file occupies from now on; `None`: it has changed, or somebody
    /// has it.
    fn commit_move(&self, wanted: &Move<'_>, copied: &Copied) -> Result<Option<u64>, Failure> {
        let &Move { file, to, .. } = wanted;
        let brought = match wanted.generation {
            Some(_) => bring_times(wanted.source, &*copied.object),
            // Nobody could set them.
            None => Ok(()),
        };
        let stat = match brought.and_then(|()| copied.object.stat()) {
            Ok(stat) => stat,
            Err(error) => {
                // Nothing is on record yet.
                self.buffer.leave_copy(file, to);
                return Err(error.into());
            }
        };
        if let Err(failure) = self.integrity.refuse_failed_flush(file) {
            // Somebody else has heard of it, and the flush for the copy has not.
            self.buffer.leave_copy(file, to);
            return Err(failure);
        }
        let flushed_bytes = (self.buffer.tiers().kind(to) != TierKind::Dram).then_some(stat.size);
        let generation = wanted
            .generation
            .unwrap_or_else(|| file.lock().generation());
        let left = self
            .is_left_on_a_node(copied.from, to)
            .then_some(copied.from);
        let migration = Migration {
            tier: to,
            flushed_bytes,
            is_exclusive: wanted.is_exclusive,
            keeps_second: copied.keeps_second,
            is_copy: false,
            owes_loss: false,
            left,
        };
        match self.ns.migrated(file, generation, &migration) {
            Ok(committed) => Ok(committed.then_some(stat.allocated_bytes)),
            Err(error) => {
                self.buffer.leave_copy_later(file, to, stat.allocated_bytes);
                Err(error.into())
            }
        }
    }

    /// Step 5.
    fn end_move(&self, wanted: &Move<'_>, copied: &Copied) {
        let &Move { file, to, .. } = wanted;
        self.buffer.remove_left_behind(file, copied.from);
        if !copied.keeps_second {
            self.buffer.leave_shadow(file, copied.shadow, to);
        }
    }

    /// What is read for a copy is what its device has taken.
    pub(super) fn flush_source(
        &self,
        file: &Arc<File>,
        source: &dyn Object,
        from: TierId,
    ) -> Result<(), Failure> {
        self.integrity.refuse_failed_flush(file)?;
        if self.integrity.is_to_be_flushed(file, from) {
            self.integrity.flush_to_copy(file, from, source)?;
        }
        Ok(())
    }

    /// Copies a file's object to another tier, with its times; `finish` has the copy say that it is
    /// whole, and flushes it. What cannot be copied leaves nothing behind.
    pub(super) fn copy_object(
        &self,
        file: &Arc<File>,
        source: &dyn Object,
        (to, control): (TierId, &CopyControl<'_>),
        finish: impl FnOnce(&Slot, &dyn Object, &Identity) -> Result<(), Failure>,
    ) -> Result<Arc<dyn Object>, Failure> {
        let slot = self.buffer.tiers().get(to).ok_or(Errno::ENODEV)?;
        refuse_primary(file, to)?;
        let identity = self.buffer.identity(file, false);
        let (destination, is_new) = match slot.tier.create(file.object, &identity.unfinished()) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                (slot.tier.open(file.object)?, false)
            }
            other => (other?, true),
        };
        failpoint::hit(failpoint::Point::MoveObject);
        let filled = self
            .fill_copy(file, source, (&*destination, is_new), control)
            .and_then(|()| finish(slot, &*destination, &identity));
        match filled {
            Ok(()) => Ok(destination),
            Err(errno) => {
                // What an earlier fsync has left there is that fsync's still.
                if is_new && let Err(e) = slot.tier.remove(file.object) {
                    tracing::warn!("object {} in {}: {e}", file.object, slot.tier.name());
                }
                Err(errno)
            }
        }
    }

    /// Content and times.
    fn fill_copy(
        &self,
        file: &Arc<File>,
        source: &dyn Object,
        (destination, is_new): (&dyn Object, bool),
        control: &CopyControl<'_>,
    ) -> Result<(), Failure> {
        let before = source.stat()?;
        if is_new {
            let expected = self.integrity.content_on_flash(file);
            let report = copy(source, destination, control)?;
            let crc = report.sums.crc;
            if self
                .integrity
                .is_other_content(file, expected, crc)
                .is_some()
            {
                self.integrity.at_rest().suspect(file.object);
                return Err(Errno::EIO.into());
            }
        } else {
            // What an fsync has left there stays until it is replaced, piece by piece.
            refresh(source, destination, control)?;
        }
        failpoint::hit(failpoint::Point::MoveCopied);
        let (atime, mtime) = (SetTime::At(before.atime), SetTime::At(before.mtime));
        Ok(destination.set_times(Some(atime), Some(mtime))?)
    }
}

/// Times that were set since the copy was begun: of a clean file that is no change of its content.
pub(super) fn bring_times(source: &dyn Object, copy: &dyn Object) -> io::Result<()> {
    let (now, copied) = (source.stat()?, copy.stat()?);
    if (now.atime, now.mtime) == (copied.atime, copied.mtime) {
        return Ok(());
    }
    copy.set_times(Some(SetTime::At(now.atime)), Some(SetTime::At(now.mtime)))
}

/// The copy is whole: it says so, on stable storage where its tier is such.
pub(super) fn finish(
    slot: &Slot,
    destination: &dyn Object,
    identity: &Identity,
) -> Result<(), Failure> {
    destination.set_identity(identity)?;
    if slot.kind != TierKind::Dram {
        destination.sync(false)?;
        slot.tier.sync_all()?;
        failpoint::hit(failpoint::Point::MoveFlushed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{FLASH, Lab, create};

    #[test]
    fn a_move_whose_commit_fails_leaves_nothing_uncharged() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", &[7; 64 << 10]))
            .expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        std::fs::write(lab.pfs("failing"), b"").expect("write");
        lab.store.fail_from(lab.pfs("failing"));
        rooms.files.leave_memory(|_| false, |_| false);
        assert!(lab.store.fired() > 0, "the store has not failed");
        assert_ne!(file.tier(), FLASH);
        // A start may find either on record.
        assert!(rooms.buffer.tiers().open_object(FLASH, file.object).is_ok());
        assert!(rooms.buffer.ledger().figures(FLASH).used_bytes >= 64 << 10);
        lab.store.heal();
        rooms.buffer.leave_copies_late();
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
        assert_eq!(rooms.buffer.ledger().figures(FLASH).used_bytes, 0);
        rooms.files.leave_memory(|_| false, |_| false);
        assert_eq!(file.tier(), FLASH);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }
}
