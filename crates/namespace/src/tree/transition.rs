//! How the content of a file changes: where it is, what the PFS has of it, what is on stable
//! storage.

use forebay_tiers::{ObjectStat, Sums};
use forebay_types::{Errno, Generation, TierId};

use super::FileState;
use crate::Migration;
use crate::record::{Flushed, Meta, Residency, Temporary, Xattrs};

/// What a change has found, to be taken back if it cannot be recorded.
pub(crate) struct BeforeChange {
    residency: Residency,
    xattrs: Option<Xattrs>,
}

impl BeforeChange {
    /// Where a copy is of what was clean before: of no use from the change on.
    pub(crate) fn outdated_copy(&self) -> Option<TierId> {
        let copy = self.residency.shadow.filter(|_| self.residency.clean)?;
        Some(copy.0)
    }
}

/// What a promotion has found, likewise.
pub(crate) struct BeforePromotion {
    residency: Residency,
    meta: Meta,
}

/// What a confirmation has found, likewise.
pub(crate) struct Unconfirmed {
    residency: Residency,
    safe: Option<Generation>,
    error: Option<Errno>,
    error_unreported: bool,
    xattrs: Xattrs,
    temporary: Option<Box<Temporary>>,
}

/// Changes of content.
impl FileState {
    /// The content has changed: a copy of an older generation will not be published.
    pub fn changed(&mut self) {
        self.outdate_copy();
        let residency = &mut self.facts.residency;
        if residency.clean {
            residency.flushed = None;
            residency.promised = None;
        }
        residency.clean = false;
        residency.crc = None;
    }

    /// Names or attributes of a dirty file have changed: a copy under way would carry the old ones.
    pub(crate) fn outdate_copy(&mut self) {
        let generation = &mut self.facts.residency.generation;
        *generation = generation.next();
    }

    /// The content is about to change, unseen if `writing`. `xattrs`: what the PFS has, of a file
    /// that has been clean.
    pub(crate) fn begin_change(
        &mut self,
        (writing, by_kernel): (bool, bool),
        xattrs: Option<Xattrs>,
    ) -> BeforeChange {
        let before = BeforeChange {
            residency: self.residency,
            xattrs: xattrs.map(|xattrs| std::mem::replace(&mut self.facts.xattrs, xattrs)),
        };
        self.changed();
        if before.residency.clean {
            // It is of what the PFS has, and is never taken for anything newer.
            self.facts.residency.shadow = None;
        }
        self.facts.residency.writing |= writing;
        self.facts.residency.by_kernel |= by_kernel;
        self.debug_check();
        before
    }

    /// That could not be recorded, and has not been seen: it has not been.
    pub(crate) fn take_change_back(&mut self, before: BeforeChange) {
        self.facts.residency = before.residency;
        if let Some(xattrs) = before.xattrs {
            self.facts.xattrs = xattrs;
        }
    }

    fn end_written(&mut self) {
        let residency = &mut self.facts.residency;
        (residency.writing, residency.by_kernel) = (false, false);
    }

    /// Only the object knows the size, of a file that may be written unseen.
    pub fn begin_unseen(&mut self) {
        self.facts.residency.writing = true;
        self.debug_check();
    }

    /// Nobody writes it unseen any more; what was written meanwhile is a change. Its generation
    /// from here on.
    pub fn end_unseen(&mut self) -> Generation {
        self.end_written();
        self.changed();
        self.generation()
    }

    /// The same, if it was written unseen, with what the object is by now.
    pub fn end_unseen_as(&mut self, stat: &ObjectStat) {
        if self.residency.writing {
            self.end_unseen();
            self.take_stat(stat);
        }
    }

    /// Nobody writes it: the object is this.
    pub fn end_writing(&mut self, stat: &ObjectStat) {
        if self.residency.writing {
            // The change was counted when it began; a flush since then may have been without it.
            self.changed();
        }
        self.end_written();
        self.take_stat(stat);
    }

    /// The last writer has closed it. `by_kernel`: what was written is a change that nobody has
    /// counted.
    pub fn close(&mut self, stat: &ObjectStat, by_kernel: bool) {
        if self.residency.writing || by_kernel {
            self.end_written();
            // What requests wrote is counted: the PFS may have just this.
            let safe = !by_kernel && self.safe == Some(self.generation());
            if safe && self.is_published() {
                self.settled();
            } else {
                self.changed();
            }
        }
        self.take_closed_stat(stat);
        self.debug_check();
    }

    /// The last writer has closed it, and the object does not say what it has become: it stays one
    /// that is written unseen.
    pub fn fail_close(&mut self, errno: Errno) {
        self.changed();
        self.facts.residency.writing = true;
        self.owe_error(errno);
        self.debug_check();
    }

    /// The object says it by now.
    pub fn finish_close(&mut self, stat: &ObjectStat) {
        self.changed();
        self.end_written();
        self.take_closed_stat(stat);
    }
}

/// Tiers and stable storage.
impl FileState {
    /// So many bytes of this generation were put on stable storage in its tier.
    pub fn note_flushed(&mut self, generation: Generation, bytes: u64) {
        self.facts.residency.flushed = Some(Flushed { generation, bytes });
        self.debug_check();
    }

    /// An fsync promises what is on stable storage of this generation. What was promised before;
    /// [`FileState::restore_promised`] if it cannot be put on record.
    pub fn promise(&mut self, generation: Generation) -> Option<Generation> {
        let residency = &mut self.facts.residency;
        let before = residency.promised;
        residency.promised = before.max(Some(generation));
        self.debug_check();
        before
    }

    /// See [`FileState::promise`].
    pub fn restore_promised(&mut self, promised: Option<Generation>) {
        self.facts.residency.promised = promised;
    }

    /// Whoever asked has been told that something was lost with its server, or wants none of it.
    /// Whether that was owed.
    pub fn pay_loss(&mut self) -> bool {
        std::mem::take(&mut self.facts.residency.owes_loss)
    }

    /// The object is about to be cut: of what was flushed no more is left than `size`. What was on
    /// record, if that is more. [`FileState::end_cut`] follows, whatever comes of it.
    pub fn begin_cut(&mut self, size: u64) -> Option<Flushed> {
        self.facts.cutting += 1;
        let more = self.residency.flushed.filter(|was| was.bytes > size)?;
        self.restore_flushed(Some(Flushed {
            bytes: size,
            ..more
        }));
        Some(more)
    }

    /// It was cut, or was not.
    pub fn end_cut(&mut self) {
        self.facts.cutting = self.facts.cutting.saturating_sub(1);
        self.facts.cuts = self.facts.cuts.wrapping_add(1);
    }

    /// What was flushed could not be put on record: this is what is there.
    pub fn restore_flushed(&mut self, flushed: Option<Flushed>) {
        self.facts.residency.flushed = flushed;
        self.debug_check();
    }

    /// At least so many bytes of this generation were put on stable storage, and none of them was
    /// cut off since. An older promise holds as far as it goes.
    pub fn add_flushed(&mut self, generation: Generation, bytes: u64) {
        let known = self
            .residency
            .flushed
            .unwrap_or(Flushed { generation, bytes });
        self.note_flushed(generation.max(known.generation), bytes.max(known.bytes));
    }

    /// Whether the record says that only the object knows the size.
    pub fn is_written(&self) -> bool {
        self.is_dirty() && self.residency.writing
    }

    /// A change of what is closed is under way: until that is recorded, only the object knows the
    /// size.
    pub fn stay_written(&mut self) {
        self.facts.residency.writing = self.is_dirty();
    }

    /// What was written may not have reached its device. A copy under way may be of what is left.
    pub(crate) fn fail_flush(&mut self) {
        self.outdate_copy();
        self.facts.residency.flush_failed = true;
        self.debug_check();
    }

    /// It has, or nothing is left of it. Whether it was in doubt.
    pub(crate) fn end_failed_flush(&mut self) -> bool {
        std::mem::take(&mut self.facts.residency.flush_failed)
    }

    /// A durable copy of this generation is in another tier.
    pub fn note_shadow(&mut self, tier: TierId, generation: Generation) {
        self.facts.residency.shadow = Some((tier, generation));
        self.debug_check();
    }

    /// There is none any more.
    pub fn forget_shadow(&mut self) {
        self.facts.residency.shadow = None;
    }

    /// The content is on stable storage, and these are its checksums.
    pub(crate) fn seal(&mut self, sums: &Sums) {
        self.facts.residency.vouch(sums);
        self.note_flushed(self.generation(), sums.bytes);
    }

    /// Another tier has the object from now on. What was before.
    pub(crate) fn migrate(&mut self, to: &Migration) -> BeforeChange {
        let before = BeforeChange {
            residency: self.residency,
            xattrs: None,
        };
        let residency = &mut self.facts.residency;
        if to.is_copy {
            residency.go_on_as_copy(to.owes_loss);
        }
        residency.tier = to.tier;
        if !to.keeps_second {
            residency.shadow = None;
        }
        if let (Some(bytes), true) = (to.flushed_bytes, self.is_dirty()) {
            self.note_flushed(self.generation(), bytes);
        }
        before
    }
}

/// A second copy becomes the file.
impl FileState {
    /// Its second copy, which is this, is the file from now on. What nobody has put into that copy
    /// is lost, and a copy of what was lost is published no more. What was before.
    pub(crate) fn promote(
        &mut self,
        (tier, stat): (TierId, &ObjectStat),
        written: bool,
        loses: bool,
    ) -> BeforePromotion {
        let before = BeforePromotion {
            residency: self.residency,
            meta: self.meta,
        };
        let copied = self.residency.shadow.map(|(_, copied)| copied);
        self.changed();
        let residency = &mut self.facts.residency;
        residency.tier = tier;
        residency.shadow = None;
        residency.writing = written;
        residency.by_kernel = false;
        residency.owes_loss |= loses;
        // What else its server had flushed is not in the copy.
        let in_copy = |flushed: &Flushed| Some(flushed.generation) <= copied;
        residency.flushed = residency
            .flushed
            .filter(in_copy)
            .or(copied.map(|generation| Flushed {
                generation,
                bytes: stat.size,
            }));
        self.take_stat(stat);
        self.debug_check();
        before
    }

    /// A copy of the same content, which the PFS has as well, is the file from now on. What was
    /// before.
    pub(crate) fn adopt(&mut self, tier: TierId) -> BeforePromotion {
        let before = BeforePromotion {
            residency: self.residency,
            meta: self.meta,
        };
        debug_assert!(self.residency.clean, "the copy is of what the PFS has");
        self.facts.residency.tier = tier;
        self.facts.residency.shadow = None;
        self.debug_check();
        before
    }

    /// The same, and what was the file is its copy.
    pub(crate) fn change_places(&mut self, tier: TierId) -> BeforePromotion {
        let (was, generation) = (self.residency.tier, self.generation());
        let before = self.adopt(tier);
        self.note_shadow(was, generation);
        before
    }

    /// That could not be recorded, and has not been.
    pub(crate) fn take_promotion_back(&mut self, before: BeforePromotion) {
        self.facts.residency = before.residency;
        self.facts.meta = before.meta;
    }
}

/// Demotion.
impl FileState {
    /// Somebody waits for its demotion although it is open for unseen writing. The generation to
    /// wait for.
    pub fn begin_wait(&mut self) -> Generation {
        self.facts.drain_open += 1;
        self.generation()
    }

    /// The same, until the PFS has what the file holds now. An earlier failure is tried again. What
    /// the kernel has written since the last look counts as a change: a copy that was begun for
    /// another fsync may lack it.
    pub fn begin_wait_for_all(&mut self) -> Generation {
        self.forget_error();
        if self.residency.writing {
            self.changed();
        }
        self.begin_wait()
    }

    /// One waits no longer.
    pub fn end_wait(&mut self) {
        debug_assert!(self.drain_open > 0, "who ends a wait has begun it");
        self.facts.drain_open = self.drain_open.saturating_sub(1);
    }

    /// What it was before a change whose commit has failed; renames under way are so still.
    pub(crate) fn take_back(&mut self, before: FileState) {
        let renaming = self.renaming;
        *self = before;
        self.facts.renaming = renaming;
    }

    /// A rename of it begins.
    pub(crate) fn begin_rename(&mut self) {
        self.facts.renaming += 1;
    }

    /// That is over.
    pub(crate) fn end_rename(&mut self) {
        debug_assert!(self.renaming > 0, "who ends a rename has begun it");
        self.facts.renaming = self.renaming.saturating_sub(1);
    }

    /// A worker copies it to the PFS.
    pub(crate) fn begin_demotion(&mut self) {
        debug_assert!(self.is_dirty() && !self.demoting, "one copy at a time");
        self.facts.demoting = true;
    }

    /// It does so no longer.
    pub(crate) fn end_demotion(&mut self) {
        self.facts.demoting = false;
    }

    /// Which file on the PFS the copy is.
    pub(crate) fn note_copy(&mut self, copy: Temporary) {
        self.facts.temporary = Some(Box::new(copy));
        self.noted = true;
        self.debug_check();
    }

    /// Whether the record may name a copy. What that was is known to be no longer of interest.
    pub(crate) fn is_noted(&self) -> bool {
        self.noted
    }

    /// The record names no copy: that was written.
    pub(crate) fn note_is_gone(&mut self) {
        self.noted = self.facts.temporary.is_some();
    }

    /// Whether the copy has got its name is to be found out.
    pub(crate) fn unsettle(&mut self) {
        self.unsettled = true;
        self.debug_check();
    }

    /// The same of an object that has become the file itself: until then it is undrained.
    pub(crate) fn unsettle_itself(&mut self) {
        self.facts.residency.clean = false;
        self.unsettle();
    }

    /// What has become of the copy is known.
    pub(crate) fn forget_copy(&mut self) {
        self.facts.temporary = None;
        self.unsettled = false;
    }

    /// The demotion is given up; a copy that is not settled is to be looked after.
    pub(crate) fn abandon(&mut self, error: Option<Errno>) {
        self.facts.demoting = false;
        if !self.unsettled {
            self.facts.temporary = None;
        }
        if let Some(errno) = error {
            self.fail_demotion(errno);
        }
        self.debug_check();
    }

    /// The object itself has got the names: there is nothing that the PFS has not.
    pub(crate) fn became_itself(&mut self) {
        self.facts.residency.clean = true;
        self.facts.residency.flush_failed = false;
        self.debug_check();
    }

    /// The PFS has the content: whatever kept it from getting there is over.
    pub fn settled(&mut self) {
        self.facts.residency.clean = true;
        self.facts.residency.flush_failed = false;
        self.forget_error();
        self.facts.xattrs = Xattrs::new();
        self.debug_check();
    }

    /// It has the content that is on the PFS, with this checksum.
    pub(crate) fn settled_as(&mut self, crc: u32) {
        self.facts.residency.crc = Some(crc);
        self.settled();
    }

    /// It counts as a file that the PFS has never had.
    pub(crate) fn count_as_new(&mut self) {
        self.facts.residency.published = None;
        self.changed();
    }

    /// The copy of this generation is durable under its names. Answers whether nothing is left to
    /// drain unless somebody writes it, and with the tier of a copy on flash that is of no use any
    /// more.
    pub(crate) fn confirm(&mut self, copied: Generation, sums: &Sums) -> (bool, Option<TierId>) {
        self.facts.demoting = false;
        self.forget_error();
        self.facts.temporary = None;
        self.noted = false;
        let mut current = self.generation() == copied;
        if current {
            self.facts.safe = Some(copied);
            self.facts.residency.vouch(sums);
            // Of a file that is not clean the record is what the next copy goes by.
            if self.is_published() && !self.residency.writing {
                self.settled();
            }
        }
        // A name that came meanwhile is not placed: it takes another copy.
        current &= self.is_published() || self.residency.writing;
        // After a crash an older copy must not stand for what the PFS has; one of the same content
        // only takes space.
        let residency = &mut self.facts.residency;
        let outdated = |generation| generation <= copied;
        let shadow = residency.shadow.take_if(|(_, of)| outdated(*of));
        residency
            .flushed
            .take_if(|flushed| outdated(flushed.generation));
        residency.promised.take_if(|promised| outdated(*promised));
        self.debug_check();
        (current, shadow.map(|(tier, _)| tier))
    }

    /// What a confirmation is about to change.
    pub(crate) fn unconfirmed(&self) -> Unconfirmed {
        Unconfirmed {
            residency: self.residency,
            safe: self.safe,
            error: self.error,
            error_unreported: self.error_unreported,
            xattrs: self.xattrs.clone(),
            temporary: self.temporary.clone(),
        }
    }

    /// It could not be recorded.
    pub(crate) fn take_confirmation_back(&mut self, before: Unconfirmed) {
        self.facts.residency = before.residency;
        self.noted = true;
        self.facts.safe = before.safe;
        self.facts.error = before.error;
        self.error_unreported = before.error_unreported;
        self.facts.xattrs = before.xattrs;
        self.facts.temporary = before.temporary;
    }
}
