//! What an open gives: a handle, and perhaps the object's own descriptor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_tiers::Object;
use forebay_types::Handle;
use forebay_wire::{Descriptor, OpenMode, Opened};

use crate::base::failure::Failure;
use crate::buffer::opens::Target;

/// An object's descriptor to hand over, if it may be.
pub type Handed = Option<Arc<dyn Descriptor>>;

/// An open file with the descriptor to hand over.
pub type OpenResult = Result<(Opened, Handed), Failure>;

pub(super) fn opened(handle: Handle, handed: &Handed) -> Opened {
    let mode = match handed.is_some() {
        true => OpenMode::Passthrough,
        false => OpenMode::Plain { keep_cache: false },
    };
    Opened { handle, mode }
}

/// An object that is known to have a descriptor.
pub(super) struct Local(pub(super) Arc<dyn Object>);

impl Descriptor for Local {
    fn descriptor(&self) -> BorrowedFd<'_> {
        // Only objects that have one are wrapped: see `hand_over`.
        self.0
            .descriptor()
            .unwrap_or_else(|| unreachable!("an object without a descriptor"))
    }
}

pub(super) fn hand_over(target: &Target) -> Handed {
    let Target::Buffer { object, .. } = target else {
        return None;
    };
    object.descriptor()?;
    Some(Arc::new(Local(object.clone())))
}
