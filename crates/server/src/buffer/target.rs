//! Where the bytes of an open file are.

use std::sync::Arc;

use forebay_namespace::{File, PlainNode};
use forebay_tiers::{FileObject, Object};
use forebay_types::TierId;

use crate::buffer::onpfs::OpenOnPfs;

/// Where an open file's bytes are.
#[derive(Clone)]
pub enum Target {
    /// In an object of the burst buffer.
    Buffer {
        /// The file.
        file: Arc<File>,
        /// Its object.
        object: Arc<dyn Object>,
        /// The object's tier.
        tier: TierId,
    },
    /// On the PFS only.
    Pfs {
        /// What the id stood for at open.
        node: Arc<PlainNode>,
        /// The file there.
        file: Arc<FileObject>,
        /// Opened for writing in place.
        writable: bool,
        /// The PFS lets nobody do more than append to it.
        appends_only: bool,
        /// Renames see that it is open.
        _open: Arc<OpenOnPfs>,
    },
}

impl Target {
    /// What reads and writes go to.
    pub fn object(&self) -> &dyn Object {
        match self {
            Target::Buffer { object, .. } => &**object,
            Target::Pfs { file, .. } => &**file,
        }
    }

    /// Whether it is an object in this tier.
    pub fn is_in(&self, which: TierId) -> bool {
        matches!(self, Target::Buffer { tier, .. } if *tier == which)
    }

    /// Whether it holds a descriptor.
    pub fn is_held(&self) -> bool {
        match self {
            Target::Buffer { object, .. } => object.is_held(),
            Target::Pfs { .. } => true,
        }
    }
}
