//! New, empty objects.

use std::sync::Arc;

use forebay_namespace::Namespace;
use forebay_tiers::{Identity, Object, TierKind};
use forebay_types::{Errno, ObjectId, TierId};

use crate::base::failure::Failure;
use crate::buffer::holders::is_out_of_reach;
use crate::files::Files;

/// An id that was given out, and given up again unless a file has it.
pub(super) struct NewId<'a> {
    ns: &'a Namespace,
    object: ObjectId,
    is_files: bool,
}

impl NewId<'_> {
    /// The id.
    pub fn object(&self) -> ObjectId {
        self.object
    }

    /// A file has it, and is going to be recorded.
    pub fn keep(mut self) {
        self.is_files = true;
    }
}

impl Drop for NewId<'_> {
    fn drop(&mut self) {
        if !self.is_files {
            self.ns.give_up(self.object);
        }
    }
}

impl Files {
    /// An id for a new object.
    pub(super) fn new_id(&self) -> Result<NewId<'_>, Failure> {
        Ok(NewId {
            ns: &self.ns,
            object: self.ns.new_object()?,
            is_files: false,
        })
    }

    /// Makes an empty object, in the overflow if the file system below its tier has no room even
    /// for that, or somebody has removed the tier's directory. `shared`: the kernel is to write it.
    pub(crate) fn create_object(
        &self,
        tier: TierId,
        identity: &Identity,
        shared: bool,
    ) -> Result<(TierId, Arc<dyn Object>), Failure> {
        let create = |tier: TierId| -> Result<Arc<dyn Object>, Failure> {
            let slot = self.buffer.tiers().get(tier).ok_or(Errno::ENODEV)?;
            let made = match shared {
                true => slot.tier.create_shared(identity.object, identity),
                false => slot.tier.create(identity.object, identity),
            };
            if made.as_ref().is_err_and(is_out_of_reach) {
                // It may be there all the same, and a start would take it for a new file.
                self.remove_partial(identity.object, tier);
            }
            Ok(made?)
        };
        match create(tier) {
            Err(failure)
                if matches!(failure.errno(), Errno::ENOSPC | Errno::EDQUOT)
                    && self.buffer.tiers().kind(tier) != TierKind::Pfs =>
            {
                self.buffer.queue().hurry();
                let overflow = self.buffer.tiers().need_overflow(self.ns.pfs())?;
                Ok((overflow, create(overflow)?))
            }
            Err(failure)
                if failure.errno() == Errno::ENOENT
                    && self.buffer.tiers().kind(tier) != TierKind::Pfs =>
            {
                self.report_tier_removed(tier);
                let overflow = self.buffer.tiers().need_overflow(self.ns.pfs())?;
                Ok((overflow, create(overflow)?))
            }
            made => Ok((tier, made?)),
        }
    }

    fn report_tier_removed(&self, tier: TierId) {
        let name = self
            .buffer
            .tiers()
            .get(tier)
            .map_or("", |slot| slot.tier.name());
        self.base.report(
            format!("(tier {name})").into_bytes(),
            Errno::ENOENT,
            "its directory has been removed by somebody else; new files go straight to the PFS until a restart".into(),
        );
    }
}
