//! Files without a name: made, named, gone.

use std::sync::Arc;

use forebay_namespace::{Dir, File, NewFile as NewRecord, Node, NsError, of_object};
use forebay_policy::durability::Durability;
use forebay_policy::limits::Owners;
use forebay_policy::placement::NewFile;
use forebay_tiers::{Identity, ParentKey};
use forebay_types::{Attr, Cred, Generation, Ino, ObjectId, OpenFlags, TierId, failpoint};
use forebay_wire::{Link, OUT_OF_REACH, Opened};

use crate::base::failure::Failure;
use crate::buffer::target::Target;
use crate::catalog::naming::UNNAMED;
use crate::files::Files;
use crate::files::home::Origin;
use crate::files::losses::names::Had;
use crate::files::open::born_at;

impl Files {
    /// Creates a regular file without a name and opens it.
    pub fn create_unnamed(
        &self,
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
    ) -> Result<(Attr, Opened), Failure> {
        let (dir, gid) = self.ns.check_unnamed(parent, &cred)?;
        let _request = self.buffer.activity().begin();
        let (xattrs, perm) = self.ns.mode_of_new(&dir, perm, &cred)?;
        let path = dir.path_of(UNNAMED);
        let mut series = self.identify_new(&path, cred.process);
        // It is no part of a version before its name says so.
        series.version = None;
        let kind = NewFile {
            predicted_bytes: None,
            durability: self.catalog.durability_of(&path),
            series_fsyncs: false,
        };
        let origin = Origin {
            name_hash: 0,
            ..self.origin(Some(cred.process), &path)
        };
        let wanted = self.place_checkpoint(&series, origin, &kind)?;
        let owners = Owners { uid: cred.uid, gid };
        let wanted = self.place_within_limits(wanted, owners, None)?;
        // Before it has a name it is no file to a start, and its first name is on record at once.
        let object_id = self.new_id()?.object();
        let carried = self.identity_of_unnamed(object_id, perm, cred.uid, gid);
        self.make_way();
        let (tier, object) = self.create_object(wanted, &carried, false)?;
        failpoint::hit(failpoint::Point::CreateObject);
        self.buffer.arrive(object_id, tier, 0, true);
        self.buffer.ledger().own(object_id, owners);
        self.buffer.ledger().set_nameless(object_id, true);
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
        self.buffer.enter(&file, &series);
        let ino = attr.ino;
        let target = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        let claim = self.buffer.opens().claim(ino);
        let (opened, _) = self.open_created(&claim, target, None, (0, None), flags);
        drop(claim);
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

    /// Gives a file a further name, or its first. See [`Files::attr_of_name`].
    pub fn link(&self, ino: Ino, to: &Link, cred: &Cred) -> Result<(Attr, bool), Failure> {
        let linked = match self.ns.node(ino)? {
            Node::File(file) if file.lock().unnamed.is_some() => {
                self.link_first(&file, to, cred)?
            }
            _ => {
                self.stabilise_for_link(ino, to)?;
                self.ns.link(ino, to.parent, &to.name)?
            }
        };
        self.was_linked(ino, to);
        match self.getattr(linked.ino) {
            // The name is there: it is not to be made again.
            Err(failure) if failure.errno() == OUT_OF_REACH => {
                let (attr, file) = self.ns.getattr(linked.ino)?;
                self.attr_of_name(attr, file.as_ref())
            }
            live => live.map(|attr| (attr, false)),
        }
    }

    fn link_first(&self, file: &Arc<File>, to: &Link, cred: &Cred) -> Result<Attr, Failure> {
        let linked = {
            // What is being copied to another tier carries what the file was when that began.
            let _copying = file.copying();
            let carry = |dir: &Dir, name: &[u8]| self.carry_name(file, dir, name);
            self.ns.link_unnamed(file, to.parent, &to.name, &carry)?
        };
        self.unnamed.files.lock().remove(&file.ino);
        let path = file.path();
        let series = self.identify_new(&path, cred.process);
        if series.version.is_some() {
            self.plan
                .introduce(&series.application, &path, cred.process);
        }
        self.buffer.ledger().set_nameless(file.object, false);
        self.buffer.renamed(file, &series);
        self.catalog.apps().opened_for_write(file.object);
        let (open, written) = self.buffer.opens().look(file.ino, |open| {
            (open.is_some(), open.is_some_and(|open| open.is_written()))
        });
        if !written {
            // No writer's close will say that it is to be drained.
            let (bytes, fsynced) = {
                let state = file.lock();
                (state.meta.size, state.owes_fsync)
            };
            self.note_written(file, bytes, series.series_hash(), fsynced);
            self.buffer.queue().add(file.object);
        }
        if !open && let Err(failure) = self.settle_shadow(file) {
            // It has its name all the same.
            let reason = format!("its copy on flash stays beside it: {failure}");
            self.base.report(path, failure.errno(), reason);
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
                ..self.buffer.identity(file, shadow)
            };
            let object = self.buffer.tiers().open_object(tier, file.object);
            let told = object.and_then(|object| object.set_identity(&identity));
            told.map_err(of_object("tell its first name"))
        };
        carry(tier, false)?;
        shadow.map_or(Ok(()), |tier| carry(tier, true))
    }

    /// What an fsync of a file without a name can do: it is flushed where it is, or to flash, but
    /// is not put on the PFS. `None` if it has a name.
    pub fn begin_fsync_unnamed(&self, file: &File) -> Option<Durability> {
        let dir = file.lock().unnamed.clone()?;
        let level = self.catalog.durability_of(&dir.path_of(UNNAMED));
        let mut state = file.lock();
        state.unnamed.as_ref()?;
        // Under its first name it may be on another level.
        state.owe_fsync();
        Some(level.min(Durability::Ssd))
    }

    /// The kernel has dropped references on these.
    pub fn note_forgotten(&self, nodes: &[(Ino, u64)]) {
        let any = {
            let files = self.unnamed.files.lock();
            !files.is_empty() && nodes.iter().any(|(ino, _)| files.contains_key(ino))
        };
        if any {
            self.buffer.wake_collector();
        }
    }

    /// A start has found one that may still get a name.
    pub fn take_unnamed_over(&self, file: Arc<File>) {
        self.unnamed.files.lock().insert(file.ino, file);
    }

    /// Gives up files without a name that nobody can give one any more. A server that ends is not
    /// told by the kernel.
    pub fn let_go_unnamed(&self) {
        let files: Vec<_> = self.unnamed.files.lock().values().cloned().collect();
        for file in files {
            let known = !self.base.is_ending() && self.ns.node(file.ino).is_ok();
            let in_use = self.buffer.opens().is_open_now(file.ino) || self.ns.is_held(file.object);
            if !known && !in_use {
                self.ns.let_go_unnamed(&file);
            }
            if file.lock().unnamed.is_none() {
                self.unnamed.files.lock().remove(&file.ino);
                self.lost_name(&file, &Had::nothing());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_tiers::Identity;
    use forebay_types::{Attr, Errno, Handle, Ino, OpenFlags};
    use forebay_wire::{Link, WriteHow};

    use crate::rooms::Rooms;
    use crate::testing::{Lab, answer, drain, me};

    fn create(rooms: &Rooms, content: &[u8]) -> (Attr, Handle) {
        let flags = OpenFlags(libc::O_RDWR as u32);
        let created = rooms.files.create_unnamed(Ino::ROOT, 0o640, flags, me());
        let (attr, opened) = created.expect("create");
        let written = rooms
            .files
            .write(opened.handle, 0, content, WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(content.len())));
        (attr, opened.handle)
    }

    fn named(name: &str) -> Link {
        Link {
            parent: Ino::ROOT,
            name: name.into(),
        }
    }

    fn carried(rooms: &Rooms, ino: Ino) -> Identity {
        let forebay_namespace::Node::File(file) = rooms.base.ns().node(ino).expect("known") else {
            panic!("not in the burst buffer");
        };
        let slot = rooms.buffer.tiers().get(file.tier()).expect("tier");
        let identity = slot.tier.identity(file.object).expect("identity");
        identity.expect("an identity")
    }

    #[test]
    fn the_object_carries_the_first_name_so_that_it_is_not_taken_for_nobodys() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (attr, handle) = create(rooms, b"content");
        let before = carried(rooms, attr.ino);
        assert!(before.is_unnamed() && rooms.buffer.is_unnamed(before.object, &before));
        rooms
            .files
            .link(attr.ino, &named("f"), &me())
            .expect("link");
        let after = carried(rooms, attr.ino);
        assert_eq!((&after.name[..], &after.path[..]), (&b"f"[..], &b"f"[..]));
        assert_eq!(after.parent.ino, rooms.base.ns().root().key.ino);
        assert!(!rooms.buffer.is_unnamed(after.object, &after));
        rooms.files.release(handle).expect("close");
        drain(rooms);
        assert_eq!(lab.on_pfs("f"), b"content");
    }

    #[test]
    fn a_first_name_that_cannot_be_recorded_leaves_the_file_without_one_and_whole() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (attr, handle) = create(rooms, b"content");
        lab.store.fail_from(lab.pfs(""));
        assert!(rooms.files.link(attr.ino, &named("f"), &me()).is_err());
        assert!(lab.store.fired() > 0);
        assert_eq!(rooms.files.getattr(attr.ino).expect("getattr").nlink, 0);
        assert!(rooms.buffer.queue().waiting().is_empty());
        lab.store.heal();
        rooms.files.collect_garbage();
        let linked = rooms.files.link(attr.ino, &named("g"), &me());
        assert_eq!(linked.expect("link").0.nlink, 1);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        assert_eq!(lab.on_pfs("g"), b"content");
        assert!(!lab.pfs("f").exists());
        rooms.base.ns().forget(attr.ino, 3);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn what_is_known_to_the_kernel_waits_for_a_name_after_its_last_close() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (late, handle) = create(rooms, b"late");
        rooms.files.release(handle).expect("close");
        rooms.files.collect_garbage();
        let linked = rooms.files.link(late.ino, &named("late"), &me());
        assert_eq!(linked.expect("link").0.nlink, 1);
        assert_eq!(
            rooms.buffer.queue().waiting().len(),
            1,
            "no close will come"
        );
        drain(rooms);
        assert_eq!(lab.on_pfs("late"), b"late");
        let (gone, handle) = create(rooms, b"gone");
        rooms.files.release(handle).expect("close");
        rooms.base.ns().forget(gone.ino, 1);
        rooms.files.note_forgotten(&[(gone.ino, 1)]);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
        let linked = rooms.files.link(gone.ino, &named("gone"), &me());
        assert_eq!(answer(linked.map(drop)), Err(Errno::ESTALE));
        assert_eq!(rooms.buffer.ledger().dirty_and_capacity().0, 0);
    }

    #[test]
    fn an_fsync_without_a_name_is_owed_to_the_directory_of_the_first() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let (attr, handle) = create(rooms, b"content");
        rooms.files.fsync(handle, false).expect("fsync");
        rooms
            .files
            .link(attr.ino, &named("f"), &me())
            .expect("link");
        let file = rooms.buffer.file(
            rooms
                .buffer
                .table()
                .read()
                .keys()
                .next()
                .copied()
                .expect("one"),
        );
        let file = file.expect("file");
        let is_recorded = |file: &forebay_namespace::File| {
            let residency = file.lock().residency;
            residency
                .flushed
                .is_some_and(|f| f.generation == residency.generation)
        };
        assert!(is_recorded(&file), "the fsync has flushed it");
        rooms
            .files
            .write(handle, 0, b"CONTENT", WriteHow::WAITING)
            .expect("write");
        assert!(!is_recorded(&file));
        rooms
            .files
            .sync_dir(Ino::ROOT)
            .expect("fsync of the directory");
        assert!(is_recorded(&file));
        assert!(!file.lock().owes_fsync);
        rooms.files.release(handle).expect("close");
    }
}
