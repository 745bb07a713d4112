//! The files of the burst buffer by object.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use forebay_namespace::{File, FileState};
use forebay_policy::limits::{Limit, Owners};
use forebay_policy::series::Identity as PathIdentity;
use forebay_tiers::{Identity, ParentKey, TierKind};
use forebay_types::{Generation, ObjectId, TierId};

use parking_lot::RwLock;

use crate::base::failure::Failure;
use crate::buffer::Buffer;
use crate::buffer::opens::Claim;
use crate::buffer::target::Target;

/// Files of the burst buffer by object.
pub type FileTable = RwLock<HashMap<ObjectId, Arc<File>>>;

/// What is undrained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undrained {
    /// Files.
    pub files: u64,
    /// What they occupy, bytes.
    pub bytes: u64,
    /// Of those in memory: a reboot would lose them.
    pub in_memory_bytes: u64,
}

impl Buffer {
    /// An object is made, or found by a start: from here on space is charged to it. `dirty`: the
    /// PFS does not have it.
    pub fn arrive(&self, object: ObjectId, tier: TierId, used_bytes: u64, dirty: bool) {
        self.ledger.arrive(object, tier, used_bytes, dirty);
        if let Some((application, _)) = self.catalog.apps().of(object) {
            self.ledger.assign(object, application);
        }
        if self.ledger.has_limits()
            && let Some(file) = self.file(object)
        {
            self.own(&file);
        }
    }

    /// Its owner counts it, as it is now.
    pub fn own(&self, file: &File) {
        if !self.ledger.has_limits() {
            return;
        }
        self.own_as(file, &file.lock());
    }

    /// The same for who holds its state.
    pub fn own_as(&self, file: &File, state: &FileState) {
        if !self.ledger.has_limits() {
            return;
        }
        let owners = Owners {
            uid: state.meta.uid,
            gid: state.meta.gid,
        };
        self.ledger.own(file.object, owners);
    }

    /// Takes limits of users and groups into force.
    pub fn set_limits(&self, limits: &[Limit]) {
        self.rates.set(limits);
        let had_some = self.ledger.has_limits();
        self.ledger.set_limits(limits);
        if had_some {
            return;
        }
        // Whoever is entered from here on is owned there.
        self.files().iter().for_each(|file| self.own(file));
    }

    /// An object is a file's: it is found by its id from here on.
    pub fn enter(&self, file: &Arc<File>, identity: &PathIdentity) {
        self.table.write().insert(file.object, file.clone());
        let application = self.catalog.apps().arrived(file.object, identity);
        self.ledger.assign(file.object, application);
        self.own(file);
    }

    /// A file has another path.
    pub fn renamed(&self, file: &File, identity: &PathIdentity) {
        let application = self.catalog.apps().renamed(file.object, identity);
        self.ledger.assign(file.object, application);
        self.name_by_xattrs(file);
        // A copy that has got its name may have another owner on the PFS.
        self.own(file);
        self.catalog.note_renamed(file.object, file.lock().meta.uid);
    }

    /// What somebody has set on the file itself goes before its path.
    pub fn name_by_xattrs(&self, file: &File) {
        if let Some(application) = self.catalog.name_by_xattrs(file) {
            self.ledger.assign(file.object, application);
        }
    }

    /// An object is gone, or did not become a file's.
    pub fn leave(&self, object: ObjectId) {
        self.table.write().remove(&object);
        self.queue.forget(object);
        self.ledger.depart(object);
        self.guesses.left(object);
        self.catalog.apps().left(object);
        self.catalog.history().left(object);
    }

    /// All files, at some moment. Costs a step for each.
    pub fn files(&self) -> Vec<Arc<File>> {
        self.table.read().values().cloned().collect()
    }

    /// What is not on the PFS, as the ledger has it: cheap, and behind by what is under way.
    pub fn undrained(&self) -> Undrained {
        self.observe_written();
        let mut sum = Undrained::default();
        for (tier, slot) in self.tiers.iter() {
            let figures = self.ledger.figures(tier);
            sum.files += figures.dirty_files;
            sum.bytes += figures.dirty_bytes;
            if slot.kind == TierKind::Dram {
                sum.in_memory_bytes += figures.dirty_bytes;
            }
        }
        sum
    }

    /// The same by a look at every file.
    pub fn undrained_exactly(&self) -> Undrained {
        self.observe_written();
        let mut sum = Undrained::default();
        let mut add = |object, tier| {
            let bytes = self.ledger.used_bytes(object);
            sum.files += 1;
            sum.bytes += bytes;
            if self.tiers.kind(tier) == TierKind::Dram {
                sum.in_memory_bytes += bytes;
            }
        };
        for file in self.files() {
            let state = file.lock();
            if !state.is_dirty() || state.is_unlinked() {
                continue;
            }
            let residency = state.residency;
            let is_whole = |of| !residency.writing && of == state.generation();
            let copy = residency.shadow.filter(|(_, of)| is_whole(*of));
            // A whole copy on flash outlives a reboot.
            let tier = copy.map_or(residency.tier, |(flash, _)| flash);
            drop(state);
            add(file.object, tier);
        }
        for stranded in self.stranded.lock().iter() {
            add(stranded.object, stranded.tier);
        }
        sum
    }

    /// What the kernel writes by itself is as large as it is.
    fn observe_written(&self) {
        for open in self.opens.written_unseen() {
            // A file that is being moved is written by nobody.
            let Some(target) = open.target.try_read() else {
                continue;
            };
            if let Target::Buffer { file, object, tier } = &*target
                && (self.tiers.kind(*tier) != TierKind::Pfs || !self.base.health().is_silent())
                && let Ok(stat) = object.stat()
            {
                self.ledger.observe(file.object, stat.allocated_bytes);
            }
        }
    }

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

    /// To be called before I/O on what is open: `ETIMEDOUT` if it is on the PFS and that is given
    /// up.
    pub fn reach(&self, target: &Target) -> Result<(), Failure> {
        match self.is_on_pfs(target) {
            true => Ok(self.base.health().pass()?),
            false => Ok(()),
        }
    }

    /// To be called last before a change of what is open: fails if it is on the PFS and another
    /// server may lead by now.
    pub fn pass_to_change(&self, target: &Target) -> io::Result<()> {
        match self.is_on_pfs(target) {
            true => self.ns.pfs().pass_to_change(),
            false => Ok(()),
        }
    }

    /// The same for an object of a tier.
    pub fn pass_to_change_in(&self, tier: TierId) -> io::Result<()> {
        match self.tiers.kind(tier) {
            TierKind::Pfs => self.ns.pfs().pass_to_change(),
            _ => Ok(()),
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
    /// Whether an object that is on record nowhere is what a file without a name, or one that was
    /// unlinked while it was open, has left: nobody can ask for it any more.
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
