//! Which object an object says that it is, and whether its content is what is on record.

use forebay_tiers::IdentityError;
use forebay_types::{ObjectId, TierId};

use crate::integrity::Integrity;

/// What an object says about whose it is, with a line for a person.
pub(crate) enum IdentityCheck {
    /// The one that its name says.
    Own,
    /// Nothing, or nothing legible.
    Unknown(String),
    /// Another one's.
    Other(String),
}

impl Integrity {
    /// Which object lies under an id.
    pub(crate) fn check_identity(&self, tier: TierId, object: ObjectId) -> IdentityCheck {
        let Some(slot) = self.buffer.tiers().get(tier) else {
            return IdentityCheck::Own;
        };
        match slot.tier.identity(object) {
            Ok(Some(i)) if i.object == object && i.instance == self.ns.instance() => {
                IdentityCheck::Own
            }
            Ok(Some(i)) => {
                IdentityCheck::Other(format!("its object says that it is object {}", i.object))
            }
            Ok(None) => IdentityCheck::Unknown("its object carries no identity".into()),
            Err(error) => match error.get_ref().is_some_and(|e| e.is::<IdentityError>()) {
                true => IdentityCheck::Unknown(format!("its object's identity: {error}")),
                // Whatever is wrong there shows when the content is read.
                false => IdentityCheck::Own,
            },
        }
    }
}

/// One line for a person.
pub fn mismatch(found: u32, expected: u32) -> String {
    format!("checksum mismatch: {found:08x} instead of {expected:08x}")
}
