//! Files that were made without a name (`O_TMPFILE`): open like any other, drained only once they have one.
//!
//! Such a file is served by requests, for nothing tells how large it will be. It goes when nobody has it open and the kernel does
//! not know it any more: until then a link may still be under way, by a descriptor that is just being closed.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_namespace::{Dir, File, NewFile as NewRecord, Node, NsError};
use forebay_policy::durability::Durability;
use forebay_policy::placement::NewFile;
use forebay_tiers::{Identity, ParentKey};
use forebay_types::{Attr, Cred, Errno, Generation, Ino, ObjectId, OpenFlags, TierId, failpoint};
use forebay_wire::{Link, Opened};
use parking_lot::Mutex;

use crate::buffer::opens::Target;
use crate::core::Core;
use crate::files::open::born_at;

/// What such a file is called where a path is asked for: that of the directory decides.
const UNNAMED: &[u8] = b"(unnamed)";

/// Files without a name that may get one yet.
#[derive(Default)]
pub struct Unnamed {
    files: Mutex<HashMap<Ino, Arc<File>>>,
}

impl Core {
    /// Creates a regular file without a name and opens it.
    pub fn create_unnamed(
        &self,
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
    ) -> Result<(Attr, Opened), Errno> {
        let (dir, gid) = self.ns.check_unnamed(parent, &cred)?;
        let _request = self.activity.begin();
        let (xattrs, perm) = self.ns.mode_of_new(&dir, perm, &cred)?;
        let path = dir.path_of(UNNAMED);
        let mut series = self.identify_new(&path, cred.pid);
        // It is no part of a version before its name says so.
        series.version = None;
        let kind = NewFile {
            predicted_bytes: None,
            durability: self.durability_of(&path),
            series_fsyncs: false,
        };
        let wanted = self.place_checkpoint(&series, &kind)?;
        let object_id = self.ns.new_object()?;
        let carried = self.identity_of_unnamed(object_id, perm, cred.uid, gid);
        self.make_way();
        let (tier, object) = self.create_object(wanted, &carried, false)?;
        failpoint::hit(failpoint::Point::CreateObject);
        self.ledger.arrive(object_id, tier, 0, true);
        let new = NewRecord {
            object: object_id,
            tier,
            perm,
            xattrs,
            cred,
            writing: false,
            born: born_at(&*object),
        };
        let (attr, file) = self.ns.create_unnamed(&dir, gid, &new);
        self.files.write().insert(object_id, file.clone());
        self.apps.arrived(object_id, &series);
        let ino = attr.ino;
        let target = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        let (opened, _) = self.open_created(ino, target, None, (0, None), flags);
        self.unnamed.files.lock().insert(ino, file);
        Ok((attr, opened))
    }

    fn identity_of_unnamed(&self, object: ObjectId, perm: u16, uid: u32, gid: u32) -> Identity {
        Identity {
            instance: self.ns.instance(),
            object,
            path: Vec::new(),
            parent: ParentKey::default(),
            name: Vec::new(),
            mode: u32::from(perm),
            uid,
            gid,
            generation: Generation(1),
            shadow: false,
        }
    }

    /// Whether an object that is on record nowhere is what a file without a name, or one that was unlinked while it was open,
    /// has left: nobody can ask for it any more.
    pub fn is_unnamed(&self, object: ObjectId, identity: &Identity) -> bool {
        let own = identity.object == object && identity.instance == self.ns.instance();
        own && identity.is_unnamed()
    }

    /// Gives a file a further name, or its first.
    pub fn link(&self, ino: Ino, to: &Link, cred: &Cred) -> Result<Attr, Errno> {
        let linked = match self.ns.node(ino)? {
            Node::File(file) if file.lock().unnamed.is_some() => {
                self.link_first(&file, to, cred)?
            }
            _ => {
                self.stabilise_for_link(ino, to)?;
                self.ns.link(ino, to.parent, &to.name)?
            }
        };
        self.getattr(linked.ino)
    }

    fn link_first(&self, file: &Arc<File>, to: &Link, cred: &Cred) -> Result<Attr, Errno> {
        let linked = {
            // What is being copied to another tier carries what the file was when that began.
            let _copying = file.copying();
            let carry = |dir: &Dir, name: &[u8]| self.carry_name(file, dir, name);
            self.ns.link_unnamed(file, to.parent, &to.name, &carry)?
        };
        self.unnamed.files.lock().remove(&file.ino);
        let path = file.path();
        let series = self.identify_new(&path, cred.pid);
        if series.version.is_some() {
            self.introduce(&series.application, &path, cred.pid);
        }
        self.apps.renamed(file.object, &series);
        self.apps.opened_for_write(file.object);
        self.name_by_xattrs(file);
        let (open, written) = self.opens.look(file.ino, |open| {
            (open.is_some(), open.is_some_and(|open| open.is_written()))
        });
        if !written {
            // No writer's close will say that it is to be drained.
            let (bytes, fsynced) = {
                let state = file.lock();
                (state.meta.size, state.owes_fsync)
            };
            self.note_written(file, bytes, series.series_hash(), fsynced);
            self.drain.add(file.object);
        }
        if !open && let Err(errno) = self.settle_shadow(file) {
            // It has its name all the same.
            let reason = format!("its copy on flash stays beside it: {errno}");
            self.report(path, errno, reason);
        }
        Ok(linked)
    }

    /// Tells a file's objects the name that it is about to get.
    fn carry_name(&self, file: &File, dir: &Dir, name: &[u8]) -> Result<(), NsError> {
        let (tier, shadow) = {
            let residency = file.lock().residency;
            (residency.tier, residency.shadow.map(|(tier, _)| tier))
        };
        let carry = |tier: TierId, shadow: bool| -> Result<(), NsError> {
            let identity = Identity {
                path: dir.path_of(name),
                parent: ParentKey {
                    dev_ordinal: dir.key.dev,
                    ino: dir.key.ino,
                    btime_ns: dir.key.btime_ns,
                },
                name: name.to_vec(),
                ..self.identity(file, shadow)
            };
            let object = self.tiers.open_object(tier, file.object)?;
            Ok(object.set_identity(&identity)?)
        };
        carry(tier, false)?;
        shadow.map_or(Ok(()), |tier| carry(tier, true))
    }

    /// What an fsync of a file without a name can do: it is flushed where it is, or to flash, but is not put on the PFS. `None` if it has
    /// a name.
    pub fn begin_fsync_unnamed(&self, file: &File) -> Option<Durability> {
        let dir = file.lock().unnamed.clone()?;
        let rung = self.durability_of(&dir.path_of(UNNAMED));
        let mut state = file.lock();
        state.unnamed.as_ref()?;
        // Under its first name it may be on another rung.
        state.owe_fsync();
        Some(rung.min(Durability::Ssd))
    }

    /// The kernel has dropped references on these.
    pub fn note_forgotten(&self, nodes: &[(Ino, u64)]) {
        let any = {
            let files = self.unnamed.files.lock();
            !files.is_empty() && nodes.iter().any(|(ino, _)| files.contains_key(ino))
        };
        if any {
            self.wake_collector();
        }
    }

    /// Gives up files without a name that nobody can give one any more. A server that ends is not told by the kernel.
    pub fn let_go_unnamed(&self) {
        let files: Vec<_> = self.unnamed.files.lock().values().cloned().collect();
        for file in files {
            let known = !self.is_ending() && self.ns.node(file.ino).is_ok();
            if !known && !self.opens.is_open_now(file.ino) {
                self.ns.let_go_unnamed(&file);
            }
            if file.lock().unnamed.is_none() {
                self.unnamed.files.lock().remove(&file.ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_tiers::Identity;
    use forebay_types::{Attr, Errno, Handle, Ino, OpenFlags};
    use forebay_wire::{Link, WriteHow};

    use crate::core::Core;
    use crate::testing::{Lab, drain, me};

    fn create(core: &Core, content: &[u8]) -> (Attr, Handle) {
        let flags = OpenFlags(libc::O_RDWR as u32);
        let created = core.create_unnamed(Ino::ROOT, 0o640, flags, me());
        let (attr, opened) = created.expect("create");
        let written = core.write(opened.handle, 0, content, WriteHow::WAITING);
        assert_eq!(written, Ok(Some(content.len())));
        (attr, opened.handle)
    }

    fn named(name: &str) -> Link {
        Link {
            parent: Ino::ROOT,
            name: name.into(),
        }
    }

    fn carried(core: &Core, ino: Ino) -> Identity {
        let forebay_namespace::Node::File(file) = core.ns.node(ino).expect("known") else {
            panic!("not in the burst buffer");
        };
        let slot = core.tiers.get(file.tier()).expect("tier");
        let identity = slot.tier.identity(file.object).expect("identity");
        identity.expect("an identity")
    }

    #[test]
    fn the_object_carries_the_first_name_so_that_it_is_not_taken_for_nobodys() {
        let lab = Lab::new();
        let core = lab.core();
        let (attr, handle) = create(core, b"content");
        let before = carried(core, attr.ino);
        assert!(before.is_unnamed() && core.is_unnamed(before.object, &before));
        core.link(attr.ino, &named("f"), &me()).expect("link");
        let after = carried(core, attr.ino);
        assert_eq!((&after.name[..], &after.path[..]), (&b"f"[..], &b"f"[..]));
        assert_eq!(after.parent.ino, core.ns.root().key.ino);
        assert!(!core.is_unnamed(after.object, &after));
        core.release(handle).expect("close");
        drain(core);
        assert_eq!(lab.on_pfs("f"), b"content");
    }

    #[test]
    fn a_first_name_that_cannot_be_recorded_leaves_the_file_without_one_and_whole() {
        let lab = Lab::new();
        let core = lab.core();
        let (attr, handle) = create(core, b"content");
        lab.store.fail_from(lab.pfs(""));
        assert!(core.link(attr.ino, &named("f"), &me()).is_err());
        assert!(lab.store.fired() > 0);
        assert_eq!(core.getattr(attr.ino).expect("getattr").nlink, 0);
        assert!(core.drain.waiting().is_empty());
        lab.store.heal();
        core.collect_garbage();
        let linked = core.link(attr.ino, &named("g"), &me());
        assert_eq!(linked.expect("link").nlink, 1);
        core.release(handle).expect("close");
        drain(core);
        assert_eq!(lab.on_pfs("g"), b"content");
        assert!(!lab.pfs("f").exists());
        core.ns.forget(attr.ino, 3);
        assert_eq!(core.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn what_is_known_to_the_kernel_waits_for_a_name_after_its_last_close() {
        let lab = Lab::new();
        let core = lab.core();
        let (late, handle) = create(core, b"late");
        core.release(handle).expect("close");
        core.collect_garbage();
        let linked = core.link(late.ino, &named("late"), &me());
        assert_eq!(linked.expect("link").nlink, 1);
        assert_eq!(core.drain.waiting().len(), 1, "no close will come");
        drain(core);
        assert_eq!(lab.on_pfs("late"), b"late");
        let (gone, handle) = create(core, b"gone");
        core.release(handle).expect("close");
        core.ns.forget(gone.ino, 1);
        core.note_forgotten(&[(gone.ino, 1)]);
        assert_eq!(core.audit_books(), Vec::<String>::new());
        let linked = core.link(gone.ino, &named("gone"), &me());
        assert_eq!(linked.map(drop), Err(Errno::ESTALE));
        assert_eq!(core.ledger.dirty_and_capacity().0, 0);
    }

    #[test]
    fn an_fsync_without_a_name_is_owed_to_the_directory_of_the_first() {
        let lab = Lab::new();
        let core = lab.core();
        let (attr, handle) = create(core, b"content");
        core.fsync(handle, false).expect("fsync");
        core.link(attr.ino, &named("f"), &me()).expect("link");
        let file = core.file(core.files.read().keys().next().copied().expect("one"));
        let file = file.expect("file");
        let is_recorded = |file: &forebay_namespace::File| {
            let residency = file.lock().residency;
            residency
                .flushed
                .is_some_and(|f| f.generation == residency.generation)
        };
        assert!(is_recorded(&file), "the fsync has flushed it");
        core.write(handle, 0, b"CONTENT", WriteHow::WAITING)
            .expect("write");
        assert!(!is_recorded(&file));
        core.sync_dir(Ino::ROOT).expect("fsync of the directory");
        assert!(is_recorded(&file));
        assert!(!file.lock().owes_fsync);
        core.release(handle).expect("close");
    }
}
