//! create, open, release: which object, which path to it, and what a close means.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::{Dir, File, NewFile as NewRecord, Node, PlainNode};
use forebay_policy::limits::Owners;
use forebay_policy::placement::{NewFile, grant_passthrough_write};
use forebay_tiers::{FileObject, Identity, Object, ParentKey, PfsStat, TierKind};
use forebay_types::{
    Attr, Cred, Errno, FileKind, Generation, Ino, ObjectId, OpenFlags, Process, TierId, TimeSpec,
    failpoint,
};
use forebay_wire::{Link, OUT_OF_REACH, Opened};

use crate::base::failure::{Failure, both};
use crate::buffer::opens::{Before, Claim, OpenFile};
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::change::{refuse_dropped, stale_if_gone};
use crate::files::handed::{Handed, Local, Near, OpenResult, Way, opened};
use crate::integrity::atrest::Purpose;

/// Facts of an object about to be created.
struct NewObject<'a> {
    id: ObjectId,
    path: Vec<u8>,
    name: &'a [u8],
    perm: u16,
    uid: u32,
    gid: u32,
}

/// What is known of a file before it is there.
struct Foreseen {
    identity: forebay_policy::series::Identity,
    /// How large it will be, if its series has shown that.
    bytes: Option<u64>,
    tier: TierId,
}

/// A name, or the directory that it is in, is gone, or stands for something that is no regular
/// file: what went by it is to be looked for anew.
pub(super) fn stale_if_taken(failure: Failure) -> Failure {
    match failure.errno() {
        Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP | Errno::ENXIO => {
            failure.with_errno(Errno::ESTALE)
        }
        _ => failure,
    }
}

impl Files {
    /// Creates a regular file in the burst buffer and opens it.
    pub fn create(
        &self,
        link: &Link,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
        near: Near,
    ) -> Result<(Attr, Opened, Handed), Failure> {
        match self.create_new(link, perm, flags, cred, near) {
            // It was there, or several nodes make it at once and another one was faster.
            Err(failure) if failure.errno() == Errno::EEXIST && !flags.exclusive() => {
                let found = self.open_existing(link, flags, &cred, near);
                found.map_err(|failure| match failure.errno() {
                    // The kernel holds the directory: it looks the name up, and waits without that.
                    OUT_OF_REACH => Errno::ESTALE.into(),
                    // By now it may be gone again.
                    _ => stale_if_taken(failure),
                })
            }
            made => made,
        }
    }

    fn create_new(
        &self,
        link: &Link,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
        near: Near,
    ) -> Result<(Attr, Opened, Handed), Failure> {
        let (dir, free) = self.ns.check_free(link.parent, &link.name, &cred)?;
        // It may take its time: the first one that finds no room makes the overflow, on a busy PFS.
        let _request = self.buffer.activity().begin();
        let (xattrs, perm) = self.ns.mode_of_new(&dir, perm, &cred)?;
        let path = dir.path_of(&link.name);
        let mut foreseen = self.foresee(&path, cred.process)?;
        let owners = Owners {
            uid: cred.uid,
            gid: free.gid,
        };
        foreseen.tier = self.place_within_limits(foreseen.tier, owners, foreseen.bytes)?;
        let identity = foreseen.identity;
        let id = self.new_id()?;
        let object_id = id.object();
        let fresh = NewObject {
            id: object_id,
            path,
            name: &link.name,
            perm,
            uid: cred.uid,
            gid: free.gid,
        };
        let carried = self.identity_of_new(&dir, fresh);
        let shared = flags.writes()
            && foreseen.bytes.is_some()
            && self.may_pass_through(foreseen.tier, near)
            && !self.buffer.rates().limits(owners);
        self.make_way();
        let (tier, object) = self.create_object(foreseen.tier, &carried, shared)?;
        failpoint::hit(failpoint::Point::CreateObject);
        self.buffer.arrive(object_id, tier, 0, true);
        self.buffer.ledger().own(object_id, owners);
        let lease = match shared && tier == foreseen.tier {
            true => self.lease(object_id, tier, 0, foreseen.bytes),
            false => None,
        };
        let undo = || {
            self.buffer.leave(object_id);
            self.remove_partial(object_id, tier);
        };
        let object = match shared && lease.is_none() {
            true => self.buffer.tiers().open_to_write(tier, object_id),
            false => Ok(object),
        };
        let object = object.inspect_err(|_| undo())?;
        let new = NewRecord {
            object: object_id,
            tier,
            perm,
            xattrs,
            cred,
            writing: lease.is_some(),
            born: born_at(&*object),
        };
        // From its name on others find it: they wait, and join who creates it.
        let claim = self.buffer.opens().claim(Ino::of_new(object_id));
        let created = self.ns.create(&dir, &link.name, free, &new);
        let (attr, file) = created.inspect_err(|_| undo())?;
        id.keep();
        self.buffer.enter(&file, &identity);
        self.catalog.apps().opened_for_write(object_id);
        let target = Target::Buffer { file, object, tier };
        let known = (identity.series_hash(), foreseen.bytes);
        let (opened, descriptor) = self.open_created(&claim, target, lease, known, flags);
        drop(claim);
        if !flags.writes() {
            // No writer's close will say that it is to be drained.
            self.buffer.queue().add(object_id);
        }
        Ok((attr, opened, descriptor))
    }

    /// What a new file will be, and where it goes.
    fn foresee(&self, path: &[u8], process: Process) -> Result<Foreseen, Failure> {
        let identity = self.identify_new(path, process);
        if identity.version.is_some() {
            self.plan.introduce(&identity.application, path, process);
        }
        let expected = self.catalog.apps().expect(&identity);
        let new = NewFile {
            predicted_bytes: expected.bytes,
            durability: self.catalog.durability_of(path),
            series_fsyncs: expected.fsyncs,
        };
        let origin = self.origin(Some(process), path);
        let tier = self.place_checkpoint(&identity, origin, &new)?;
        Ok(Foreseen {
            identity,
            bytes: expected.bytes,
            tier,
        })
    }

    /// Somebody was faster, and a create that is not exclusive opens what it finds. The kernel,
    /// which found nothing, has not looked whether its user may open that, and does not after the
    /// answer: with `ESTALE` it looks the name up again, and asks for an open.
    fn open_existing(
        &self,
        link: &Link,
        flags: OpenFlags,
        cred: &Cred,
        near: Near,
    ) -> Result<(Attr, Opened, Handed), Failure> {
        if cred.uid != 0 && cred.uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::ESTALE.into());
        }
        let found = self.ns.lookup(link.parent, &link.name)?;
        let attr = self.live_attr(found.attr, found.file.as_ref())?;
        let (opened, descriptor) = self.open(attr.ino, flags, near)?;
        Ok((attr, opened, descriptor))
    }

    pub(crate) fn open_created(
        &self,
        claim: &Claim<'_>,
        target: Target,
        lease: Option<u64>,
        (series, predicted): (u64, Option<u64>),
        flags: OpenFlags,
    ) -> (Opened, Handed) {
        let way = lease.and_then(|_| self.hand_over(&target));
        if way.is_some() {
            self.hold_open(&target);
        }
        let open = Arc::new(self.buffer.opens().make(claim.ino(), target, way.is_some()));
        open.lease_bytes
            .store(lease.unwrap_or(0), Ordering::Release);
        open.series.store(series, Ordering::Release);
        open.predicted_bytes
            .store(predicted.unwrap_or(0), Ordering::Release);
        let handle = self.buffer.opens().add(claim, &open, flags);
        self.guard.watches(&open);
        // Who creates a file is about to write it.
        opened(handle, way, None)
    }

    /// Application and version of a file that a process is about to create: where its path says
    /// nothing, the application is the batch job that writes it.
    pub(crate) fn identify_new(
        &self,
        path: &[u8],
        process: Process,
    ) -> forebay_policy::series::Identity {
        let mut identity = self.catalog.rules().identify(path);
        if identity.version.is_none()
            && !self.catalog.rules().names_application(path)
            && let Some(job) = self.base.processes().job_of(process)
        {
            identity.application = job.to_string();
        }
        identity
    }

    fn identity_of_new(&self, dir: &Dir, new: NewObject<'_>) -> Identity {
        Identity {
            instance: self.ns.instance(),
            object: new.id,
            path: new.path,
            parent: ParentKey {
                dev_ordinal: dir.key.dev,
                ino: dir.key.ino,
                btime_ns: dir.key.btime_ns,
            },
            name: new.name.to_vec(),
            mode: u32::from(new.perm),
            uid: new.uid,
            gid: new.gid,
            generation: Generation(1),
            shadow: false,
        }
    }

    /// Opens a file for whatever `flags` say. Of one that has lost its name since that was looked
    /// up, `ESTALE` has the kernel look again: another file may have taken the name in one step.
    pub fn open(&self, ino: Ino, flags: OpenFlags, near: Near) -> OpenResult {
        self.open_found(ino, flags, near).map_err(stale_if_gone)
    }

    fn open_found(&self, ino: Ino, flags: OpenFlags, near: Near) -> OpenResult {
        self.make_way();
        if flags.writes()
            && let Node::File(file) = self.ns.node(ino)?
        {
            self.ns.look_if_trusted(&file)?;
            refuse_dropped(&file)?;
        }
        let claim = self.buffer.opens().claim(ino);
        if let Some(open) = claim.open() {
            self.refuse_readers_of_damaged(&open, flags)?;
            let handle = self.buffer.opens().add(&claim, &open, flags);
            let joined = self.join(&open, flags, near);
            let content = self.content_of(&open);
            if joined.is_ok() {
                self.tell_reader(&open, flags, content);
            }
            drop(claim);
            return match joined {
                Ok(way) => Ok(opened(handle, way, content)),
                Err(failure) => {
                    let released = self.release(handle);
                    both("open", released, Err(failure)).map(|((), never)| never)
                }
            };
        }
        let open = match self.ns.node(ino)? {
            Node::Dir(_) => return Err(Errno::EISDIR.into()),
            Node::File(file) => match self.open_unopened(&claim, &file, flags, near)? {
                Some(open) => open,
                // Its copy was damaged and has left.
                None => match self.ns.node(ino)? {
                    Node::Plain(plain) => self.open_pfs(ino, plain, flags)?,
                    _ => return Err(Errno::ESTALE.into()),
                },
            },
            Node::Plain(plain) if plain.kind == FileKind::Regular => {
                self.open_pfs(ino, plain, flags)?
            }
            Node::Plain(_) => return Err(Errno::ENXIO.into()),
        };
        let way = match open.is_passthrough() {
            true => self.hand_over(&open.target.read()),
            false => None,
        };
        let open = Arc::new(open);
        let handle = self.buffer.opens().add(&claim, &open, flags);
        let content = self.content_of(&open);
        self.guard.watches(&open);
        self.tell_reader(&open, flags, content);
        // Looked at once a rename sees that the file is open.
        if self.is_replaced(&open) {
            drop(claim);
            let released = self.release(handle);
            return both("open", released, Err(Errno::ESTALE.into())).map(|((), never)| never);
        }
        Ok(opened(handle, way, content))
    }

    /// Whether a file of the burst buffer has taken the name of one on the PFS, and is going to
    /// replace it there: what was changed in place until then would look like an outsider's doing.
    fn is_replaced(&self, open: &OpenFile) -> bool {
        match &*open.target.read() {
            Target::Pfs { node, .. } => {
                let now = node.parent.child(&node.name);
                now.is_some_and(|file| file.ino != open.ino)
            }
            // It was dropped as outdated since that was looked at.
            Target::Buffer { file, .. } => open.is_written() && refuse_dropped(file).is_err(),
        }
    }

    /// A file of which a flush has failed is opened by who only writes: the kernel cuts it to
    /// nothing after the open, and nothing is handed out until then.
    fn refuse_readers_of_damaged(&self, open: &OpenFile, flags: OpenFlags) -> Result<(), Failure> {
        match &*open.target.read() {
            Target::Buffer { file, .. } if flags.reads() => {
                self.integrity.refuse_failed_flush(file)
            }
            _ => Ok(()),
        }
    }

    /// Opens a file of the burst buffer that nobody has open; `None` if its copy was damaged and
    /// has left.
    fn open_unopened(
        &self,
        claim: &Claim<'_>,
        file: &Arc<File>,
        flags: OpenFlags,
        near: Near,
    ) -> Result<Option<OpenFile>, Failure> {
        if !flags.writes() {
            self.read_nearest(file, near)?;
        }
        let shared = self.may_pass_through(file.tier(), near) && !self.is_paced(file);
        let is_renewed = !flags.reads() && file.lock().residency.flush_failed;
        let purpose = match is_renewed {
            true => Purpose::Shape,
            false => Purpose::Open,
        };
        let found = self.integrity.open_at_rest(claim, file, purpose, !shared)?;
        let Some((tier, object, blocks)) = found else {
            return Ok(None);
        };
        let passthrough = shared && blocks.is_none() && self.may_pass_through(tier, near);
        let mut open = self.open_buffer(file, (tier, object), flags, passthrough)?;
        if shared && !open.is_passthrough() {
            let target = open.target.get_mut();
            if let Target::Buffer { object, .. } = target {
                *object = self.buffer.tiers().open_to_write(tier, file.object)?;
            }
        }
        Ok(Some(open.not_compared(blocks)))
    }

    fn open_buffer(
        &self,
        file: &Arc<File>,
        (tier, object): (TierId, Arc<dyn Object>),
        flags: OpenFlags,
        mut passthrough: bool,
    ) -> Result<OpenFile, Failure> {
        self.catalog.apps().opened(file.object);
        self.plan.note_access(tier, file.lock().meta.size);
        let path = file.path();
        let mut lease = 0;
        let mut before = None;
        if flags.writes() {
            self.catalog.apps().opened_for_write(file.object);
            // The kernel's own writes would leave set-id bits standing.
            passthrough &= {
                let state = file.lock();
                state.meta.perm & 0o6000 == 0 && state.unnamed.is_none()
            };
            let stat = object.stat()?;
            if passthrough {
                let written = stat.written_bytes();
                let series = self.catalog.rules().identify(&path);
                let expected = self.catalog.apps().expect(&series).bytes;
                let predicted = expected.map(|bytes| bytes.max(written));
                let leased = self.lease(file.object, tier, stat.allocated_bytes, predicted);
                // Without a name it is of no series, and whose kernel had it wants it so again: the
                // guard makes room behind it.
                let has_it = file.lock().is_unlinked();
                match leased.or(has_it.then_some(stat.allocated_bytes.max(1))) {
                    Some(bytes) => {
                        lease = bytes;
                        let begun = self.begin_unseen(file, &*object);
                        before = begun.inspect_err(|_| {
                            // Nobody will close it, and give back what was set aside.
                            self.buffer.book(file, stat.allocated_bytes);
                        })?;
                    }
                    None => passthrough = false,
                }
            }
        }
        let target = Target::Buffer {
            file: file.clone(),
            object,
            tier,
        };
        if passthrough && flags.writes() {
            self.hold_open(&target);
        }
        let open = self.buffer.opens().make(file.ino, target, passthrough);
        open.lease_bytes.store(lease, Ordering::Release);
        *open.before.lock() = before;
        Ok(open)
    }

    /// Marks a file as written unseen, and remembers what it looks like now if it is clean: only
    /// then can it be clean again without a demotion.
    pub fn begin_unseen(
        &self,
        file: &Arc<File>,
        object: &dyn Object,
    ) -> Result<Option<Before>, Failure> {
        let (clean, generation, crc) = {
            let state = file.lock();
            let residency = &state.residency;
            (residency.clean, residency.generation.next(), residency.crc)
        };
        let stat = object.stat()?;
        let outlasting = self.buffer.tiers().kind(file.tier()) != TierKind::Dram;
        self.ns.begin_unseen(file, outlasting)?;
        self.buffer.book_state(file);
        Ok(clean.then_some(Before {
            stat,
            generation,
            crc,
        }))
    }

    fn open_pfs(
        &self,
        ino: Ino,
        plain: Arc<PlainNode>,
        flags: OpenFlags,
    ) -> Result<OpenFile, Failure> {
        // It may go by another name: the kernel looks that up again, and comes back with it.
        let handle = self.ns.open_dir(&plain.parent);
        let handle = handle.map_err(|error| stale_if_taken(error.into()))?;
        let opened = self.ns.pfs().open_file(&handle, &plain.name, false);
        let file = opened.map_err(|error| stale_if_taken(error.into()))?;
        let stat = self.ns.pfs().stat_file(&file)?;
        if stat.id != plain.id {
            return Err(Errno::ESTALE.into());
        }
        may_open(&stat, flags)?;
        let target = Target::Pfs {
            node: plain,
            file: Arc::new(FileObject::new(file)),
            writable: false,
            appends_only: false,
            _open: self.buffer.opens().on_pfs().open(stat.id, flags.writes()),
        };
        if flags.writes() {
            self.buffer.activity().note();
        }
        Ok(self.buffer.opens().make(ino, target, false))
    }

    /// A further handle on a file that is open already. A client on another node gets no descriptor
    /// of what others have in passthrough: its reads and writes are requests.
    fn join(&self, open: &OpenFile, flags: OpenFlags, near: Near) -> Result<Option<Way>, Failure> {
        let target = open.target.read();
        if let Target::Pfs { file, _open, .. } = &*target
            && flags.writes()
        {
            may_open(&self.ns.pfs().stat_file(file.file())?, flags)?;
            _open.note_writer();
        }
        if let Target::Buffer { file, .. } = &*target {
            self.plan.note_join(file.object);
        }
        if let Target::Buffer { file, object, tier } = &*target
            && flags.writes()
            && open.counts.lock().writers == 1
        {
            self.catalog.apps().opened_for_write(file.object);
            if open.is_passthrough() {
                let used = object.stat()?.allocated_bytes;
                // Readers have it in passthrough, and the kernel wants one kind: a writer gets what
                // can be had, and the guard makes room behind it.
                let lease = self
                    .lease(file.object, *tier, used, Some(used))
                    .unwrap_or(used);
                open.lease_bytes.store(lease.max(1), Ordering::Release);
                let held = match object.is_held() {
                    true => object.clone(),
                    false => self.buffer.tiers().open_object(*tier, file.object)?,
                };
                self.integrity.hold_open(file, *tier, &held);
                *open.before.lock() = self.begin_unseen(file, &**object)?;
                self.guard.watches(open);
            }
        }
        let is_near = matches!(&*target, Target::Buffer { tier, .. } if self.is_near(*tier, near));
        let way = match (&*target, open.is_passthrough() && is_near) {
            // The kernel has it, and asks for one only to be sure: it need not be taken back for
            // that.
            (Target::Buffer { file, object, tier }, true) if !object.is_held() => {
                let again = self.buffer.tiers().open_object(*tier, file.object)?;
                Some(Way::Descriptor(Arc::new(Local(again))))
            }
            (target, true) => self.hand_over(target),
            (_, false) => None,
        };
        Ok(way)
    }

    /// Whether a client's kernel may write objects of a tier by itself: on its own node, where the
    /// tier tells who does, and not while the server ends.
    fn may_pass_through(&self, tier: TierId, near: Near) -> bool {
        self.settings.passthrough
            && self.is_near(tier, near)
            && self.plan.engine().allows_passthrough()
            && matches!(
                self.buffer.tiers().kind(tier),
                TierKind::Dram | TierKind::Ssd
            )
            && self
                .buffer
                .tiers()
                .get(tier)
                .is_some_and(|slot| slot.tier.tells_writers())
            && !self.base.is_ending()
    }

    /// Sets space aside for unseen writes, which cannot be moved elsewhere; the guard watches over
    /// it.
    fn lease(
        &self,
        object: forebay_types::ObjectId,
        tier: TierId,
        used: u64,
        predicted: Option<u64>,
    ) -> Option<u64> {
        let is_flash = self.buffer.tiers().kind(tier) == TierKind::Ssd;
        if is_flash && self.buffer.unflushed().open() >= self.descriptors.passed_through_max {
            return None;
        }
        let spaces = self.buffer.ledger().spaces();
        let space = spaces.iter().find(|s| s.index == tier.0 as usize)?;
        let writers = self.buffer.opens().open_files().min(64) as u32;
        let beyond = self.buffer.ledger().beyond_bytes(tier);
        let overrun = self.buffer.tiers().overrun_bytes();
        let lease = grant_passthrough_write(space, predicted, writers, beyond, overrun)?;
        let held = lease.bytes.max(used);
        self.buffer
            .ledger()
            .try_hold(object, tier, used, held, true)
            .ok()?;
        Some(held)
    }
}

/// What a file system says to an open for writing of a file that nobody may change, or only append
/// to.
fn may_open(stat: &PfsStat, flags: OpenFlags) -> Result<(), Failure> {
    let appends = flags.appends() && !flags.truncates();
    let refused = stat.is_immutable || (stat.is_append_only && !appends);
    match flags.writes() && refused {
        true => Err(Errno::EPERM.into()),
        false => Ok(()),
    }
}

/// When an object was made; an object that cannot tell fails its first use, not its creation.
pub(crate) fn born_at(object: &dyn Object) -> TimeSpec {
    object
        .stat()
        .map_or_else(|_| TimeSpec::now(), |stat| stat.mtime)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use forebay_types::{Cred, Errno, Ino, OpenFlags, SetAttr};
    use forebay_wire::Link;

    use crate::testing::{FLASH, Lab, answer, create, drain, me};

    #[test]
    fn a_create_that_finds_a_file_opens_it_for_nobody_whose_rights_were_not_looked_at() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        std::fs::write(lab.pfs("f"), b"somebody else's").expect("write");
        let link = Link {
            parent: Ino::ROOT,
            name: b"f".to_vec(),
        };
        let flags = OpenFlags((libc::O_RDWR | libc::O_CREAT) as u32);
        let create = |flags, cred| {
            let made = rooms.files.create(&link, 0o644, flags, cred, None);
            made.map(|(_, opened, _)| opened.handle)
        };
        let somebody = Cred {
            uid: me().uid + 1,
            ..me()
        };
        assert_eq!(answer(create(flags, somebody)), Err(Errno::ESTALE));
        let exclusive = OpenFlags(flags.0 | libc::O_EXCL as u32);
        assert_eq!(answer(create(exclusive, somebody)), Err(Errno::EEXIST));
        let handle = create(flags, me()).expect("one's own rights are the server's");
        let mut found = [0; 9];
        assert_eq!(answer(rooms.files.read(handle, 0, &mut found)), Ok(9));
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn of_several_who_make_a_file_at_once_each_opens_the_same_one() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let flags = OpenFlags((libc::O_RDWR | libc::O_CREAT) as u32);
        let together = std::sync::Barrier::new(4);
        for round in 0..200 {
            let link = Link {
                parent: Ino::ROOT,
                name: format!("f{round}").into_bytes(),
            };
            let make = || {
                together.wait();
                let made = rooms.files.create(&link, 0o644, flags, me(), None);
                answer(made.map(|(attr, opened, _)| (attr.ino, opened.handle)))
            };
            let made = std::thread::scope(|scope| {
                let makers: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
                makers
                    .into_iter()
                    .map(|maker| maker.join().expect("no panic"))
                    .collect::<Result<Vec<_>, _>>()
            });
            let made = made.expect("each has it open");
            assert!(made.iter().all(|(ino, _)| *ino == made[0].0));
            for (_, handle) in made {
                rooms.files.release(handle).expect("close");
            }
        }
    }

    #[test]
    fn what_has_lost_its_name_since_it_was_found_is_looked_for_anew() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let ino = rooms.buffer.files().pop().expect("file").ino;
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.collect_garbage();
        let opened = rooms.files.open(ino, OpenFlags(0), None);
        assert_eq!(answer(opened.map(|_| ())), Err(Errno::ESTALE));
        let cut = SetAttr {
            size: Some(3),
            ..SetAttr::default()
        };
        let done = rooms.files.setattr(ino, None, &cut, me());
        assert_eq!(answer(done.map(|_| ())), Err(Errno::ESTALE));
    }

    #[test]
    fn an_open_that_cannot_be_recorded_sets_no_space_aside() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        for name in ["a-1", "a-2", "a-3"] {
            let handle = create(rooms, name.as_bytes(), &[7; 5000]);
            rooms.files.release(handle).expect("close");
        }
        drain(rooms);
        crate::lifecycle::monitor::look_below(&rooms.lifecycle);
        let files: Vec<_> = rooms.buffer.files();
        let file = files.iter().find(|f| f.path().ends_with(b"a-3"));
        let file = file.expect("file");
        let open = || {
            let object = rooms.buffer.tiers().open_object(FLASH, file.object);
            let target = (FLASH, object.expect("object"));
            rooms
                .files
                .open_buffer(file, target, OpenFlags(libc::O_RDWR as u32), true)
        };
        lab.store.fail_from(lab.pfs("a-3"));
        assert!(open().is_err());
        assert!(lab.store.fired() > 0);
        let reserved_bytes = || rooms.buffer.ledger().entries()[&file.object].reserved_bytes;
        assert_eq!(reserved_bytes(), 0, "nobody will give it back");
        assert!(!rooms.buffer.ledger().entries()[&file.object].dirty);
        lab.store.heal();
        let opened = open().expect("open");
        let lease_bytes = opened.lease_bytes.load(Ordering::Acquire);
        assert!(lease_bytes > 5000, "no lease: nothing was tested");
        assert!(reserved_bytes() > 0);
    }

    #[test]
    fn a_file_whose_name_something_else_has_taken_is_looked_up_again() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let flags = OpenFlags(libc::O_RDWR as u32);
        let open = |ino| rooms.files.open(ino, flags, None).map(|_| ());
        std::fs::create_dir(lab.pfs("d")).expect("mkdir");
        for name in ["f", "d/g"] {
            std::fs::write(lab.pfs(name), b"content").expect("write");
        }
        let ns = rooms.base.ns();
        let dir = ns.lookup(Ino::ROOT, b"d").expect("d").attr.ino;
        let f = ns.lookup(Ino::ROOT, b"f").expect("f").attr.ino;
        let g = ns.lookup(dir, b"g").expect("g").attr.ino;
        // Both go on under names that the kernel has not asked for.
        std::fs::rename(lab.pfs("f"), lab.pfs("f2")).expect("rename");
        std::fs::create_dir(lab.pfs("f")).expect("mkdir");
        std::fs::rename(lab.pfs("d/g"), lab.pfs("g2")).expect("rename");
        std::fs::remove_dir(lab.pfs("d")).expect("rmdir");
        assert_eq!(answer(open(f)), Err(Errno::ESTALE));
        assert_eq!(answer(open(g)), Err(Errno::ESTALE));
    }
}
