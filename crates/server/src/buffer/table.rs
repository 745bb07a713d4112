//! The files of the burst buffer by object.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::{Identity, ParentKey, TierKind};
use forebay_types::{Errno, Generation, ObjectId};

use parking_lot::RwLock;

use crate::buffer::Buffer;
use crate::buffer::opens::{Claim, Target};

/// Files of the burst buffer by object.
pub type FileTable = RwLock<HashMap<ObjectId, Arc<File>>>;

impl Buffer {
    /// The file with this object.
    pub fn file(&self, object: ObjectId) -> Option<Arc<File>> {
        self.table.read().get(&object).cloned()
    }

    /// Generation of a file, for copies made outside its lock.
    pub fn generation(&self, file: &File) -> Generation {
        file.lock().generation()
    }

    /// What an object carries beside its data.
    pub fn identity(&self, file: &File, shadow: bool) -> Identity {
        let state = file.lock();
        let (parent, name, path) = match state.names.first() {
            Some((dir, name)) => (dir.key, name.to_vec(), dir.path_of(name)),
            None => Default::default(),
        };
        Identity {
            instance: self.ns.instance(),
            object: file.object,
            path,
            parent: ParentKey {
                dev_ordinal: parent.dev,
                ino: parent.ino,
                btime_ns: parent.btime_ns,
            },
            name,
            mode: u32::from(state.meta.perm),
            uid: state.meta.uid,
            gid: state.meta.gid,
            generation: state.generation(),
            shadow,
        }
    }

    /// Whether I/O on what is open goes to the PFS.
    pub fn is_on_pfs(&self, target: &Target) -> bool {
        match target {
            Target::Pfs { .. } => true,
            Target::Buffer { tier, .. } => self.tiers.kind(*tier) == TierKind::Pfs,
        }
    }

    /// To be called before I/O on what is open: `ETIMEDOUT` if it is on the PFS and that is given up.
    pub fn reach(&self, target: &Target) -> Result<(), Errno> {
        match self.is_on_pfs(target) {
            true => Ok(self.base.pulse().pass()?),
            false => Ok(()),
        }
    }

    /// Wakes the collector.
    pub fn wake_collector(&self) {
        let mut due = self.collector.0.lock();
        if !*due {
            *due = true;
            self.collector.1.notify_one();
        }
    }
}

impl Buffer {
    /// Whether an object that is on record nowhere is what a file without a name, or one that was unlinked while it was open,
    /// has left: nobody can ask for it any more.
    pub fn is_unnamed(&self, object: ObjectId, identity: &Identity) -> bool {
        let own = identity.object == object && identity.instance == self.ns.instance();
        own && identity.is_unnamed()
    }

    /// The right to open a file, if nobody has it open.
    pub fn claim_unopened(&self, file: &File) -> Option<Claim<'_>> {
        let claim = self.opens.claim(file.ino);
        (!claim.is_open()).then_some(claim)
    }
}
