//! read, write, truncate, fsync and lseek on open files.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::{AttrPlan, File, Node, PlainNode};
use forebay_policy::placement::{ChangeLimits, FirstChange, first_change};
use forebay_policy::schedule::Class;
use forebay_tiers::{FileObject, Object, Seek, TierKind, start_writeback};
use forebay_types::{
    Attr, Cred, Errno, Handle, Ino, OpenFlags, SetAttr, SetTime, failpoint, limits,
};
use forebay_wire::{SeekWhat, WriteHow};

use crate::buffer::opens::{OpenFile, Target};
use crate::files::Files;
use crate::files::space::Room;
use crate::integrity::atrest::{Looked, Purpose};

impl Files {
    /// Reads into the start of `into`.
    pub fn read(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let (open, flags) = self.buffer.opens().file(handle)?;
        if !flags.reads() {
            return Err(Errno::EBADF);
        }
        let throttled = self.plan.engine().is_throttled();
        let _under_way = throttled.then(|| {
            let request = self.buffer.activity().begin();
            (request, self.plan.take_turn(&open, Class::Restart, 0))
        });
        let target = self.target(&open)?;
        self.buffer.reach(&target)?;
        self.integrity
            .compare_before_read(&open, &target, offset, into.len() as u64)?;
        Ok(target.object().read_at(into, offset)?)
    }

    /// Writes all of `data`; `None` if it would have to wait for space and may not.
    pub fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> Result<Option<usize>, Errno> {
        let (open, flags) = self.buffer.opens().file(handle)?;
        if !flags.writes() {
            return Err(Errno::EBADF);
        }
        if offset.saturating_add(data.len() as u64) > limits::FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        let written = self.write_to(&open, (offset, data), how);
        self.absorb_late(&open, written)
    }

    fn write_to(
        &self,
        open: &Arc<OpenFile>,
        (offset, data): (u64, &[u8]),
        how: WriteHow,
    ) -> Result<Option<usize>, Errno> {
        let may_wait = how.may_wait;
        let _request = self.buffer.activity().begin();
        let straight = match &*open.target.read() {
            Target::Pfs {
                writable: false, ..
            } if !may_wait => return Ok(None),
            target => self.is_straight(target),
        };
        let throttled = self.plan.engine().is_throttled();
        if (throttled || straight || open.uncompared().is_some()) && !may_wait {
            return Ok(None);
        }
        self.prepare_change(open, false)?;
        let _turn = match throttled {
            true => self
                .plan
                .take_turn(open, Class::Checkpoint, data.len() as u64),
            false => None,
        };
        if how.drop_suid {
            self.clear_set_id(open.ino)?;
        }
        loop {
            if self.admit(open, data.len() as u64, may_wait)? == Room::WouldWait {
                return Ok(None);
            }
            let target = self.target(open)?;
            self.buffer.reach(&target)?;
            self.note_change(open, &target)?;
            let place = (!how.append).then_some(offset);
            match write_object(&target, data, place) {
                Ok((written, end)) => {
                    self.note_changed(&target)?;
                    if straight {
                        let ahead_bytes = self.plan.engine().ahead_bytes(1);
                        open.behind.reached(target.object(), end, ahead_bytes);
                    } else if throttled {
                        start_writeback(target.object(), end - written as u64, written as u64);
                    }
                    return Ok(Some(written));
                }
                Err(error) if is_full(&error) && self.has_elsewhere(&target) => {
                    drop(target);
                    if !may_wait {
                        return Ok(None);
                    }
                    // The file system below had less than its tier was promised.
                    self.relocate(open, data.len() as u64)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A request that waited for the PFS may have been answered for, and the file closed, before it changed anything: no close
    /// will take in what it did.
    pub fn absorb_late<T>(&self, open: &OpenFile, changed: Result<T, Errno>) -> Result<T, Errno> {
        if open.is_written() {
            return changed;
        }
        let target = open.target.read().clone();
        let absorbed = match target {
            Target::Buffer { file, .. } if file.lock().residency.writing => {
                self.absorb_change(&file)
            }
            _ => Ok(()),
        };
        changed.and_then(|value| absorbed.map(|()| value))
    }

    /// Whether it goes straight to the PFS: no faster than that takes it, so that nobody's flush waits for what others have left
    /// in the page cache.
    fn is_straight(&self, target: &Target) -> bool {
        matches!(target, Target::Buffer { tier, .. } if self.buffer.tiers().kind(*tier) == TierKind::Pfs)
    }

    /// The content is about to change: from here on copies of what it was are not published.
    pub fn note_change(&self, open: &OpenFile, target: &Target) -> Result<(), Errno> {
        self.integrity.compare_before_change(open, target)?;
        open.touched.store(true, Ordering::Release);
        let Target::Buffer { file, .. } = target else {
            return Ok(());
        };
        {
            let mut state = file.lock();
            // Only then the record says that the object knows the size.
            if state.is_dirty() && state.residency.writing {
                state.changed();
                return Ok(());
            }
        }
        self.begin_change(file)
    }

    /// The content has changed. A copy that was begun after that was noted, and before it was done, may be without it: it is
    /// outdated.
    pub fn note_changed(&self, target: &Target) -> Result<(), Errno> {
        let Target::Buffer { file, .. } = target else {
            return Ok(());
        };
        {
            let mut state = file.lock();
            let copied = state.safe == Some(state.generation()) || state.residency.clean;
            if !state.demoting && !copied {
                return Ok(());
            }
            if state.is_dirty() && state.residency.writing {
                state.changed();
                return Ok(());
            }
        }
        self.begin_change(file)
    }

    /// From here on a file is dirty.
    pub fn begin_change(&self, file: &Arc<File>) -> Result<(), Errno> {
        let outlasting = self.buffer.tiers().kind(file.tier()) != TierKind::Dram;
        self.ns.begin_change(file, true, outlasting)?;
        self.buffer.book_state(file);
        Ok(())
    }

    /// Whether a file that meets a full file system can go on somewhere else.
    fn has_elsewhere(&self, target: &Target) -> bool {
        matches!(target, Target::Buffer { tier, .. } if self.buffer.tiers().kind(*tier) != TierKind::Pfs)
    }

    /// A file of the PFS that is about to change comes into the burst buffer first, if that is cheap.
    pub fn prepare_change(&self, open: &OpenFile, truncates: bool) -> Result<(), Errno> {
        if !matches!(
            &*open.target.read(),
            Target::Pfs {
                writable: false,
                ..
            }
        ) {
            return Ok(());
        }
        let mut target = open.target.write();
        let Target::Pfs {
            node,
            file,
            writable: false,
            ..
        } = &*target
        else {
            return Ok(());
        };
        let mut tries = 0;
        let next = loop {
            tries += 1;
            match self.ns.node(open.ino) {
                // It has come into the burst buffer since it was opened.
                Ok(Node::File(file)) if !file.lock().is_unlinked() => {
                    match self.open_arrived(file) {
                        // It has been unlinked since, and its object is gone.
                        Err(errno) if is_overtaken(errno) && tries < TRIES => {}
                        opened => break opened?,
                    }
                }
                // It may have been renamed since.
                Ok(Node::Plain(now)) if now.id == node.id && self.ns.stat_plain(&now).is_ok() => {
                    match self.first_change(&now, file, truncates) {
                        Err(errno) if is_overtaken(errno) && tries < TRIES => {}
                        // It comes in and leaves again and again: beside a record it must not be changed.
                        Err(Errno::EEXIST) => return Err(Errno::EBUSY),
                        Err(errno) if can_stay(errno) => break write_in_place(node, file)?,
                        done => break done?,
                    }
                }
                // Nobody can find it any more: it can only be changed where it is.
                _ => break write_in_place(node, file)?,
            }
        };
        open.put(&mut target, next);
        Ok(())
    }

    fn open_arrived(&self, file: Arc<File>) -> Result<Target, Errno> {
        let tier = file.tier();
        let opened = self.buffer.tiers().open_object(tier, file.object);
        let looked = self
            .integrity
            .look(&file, tier, &opened, Purpose::Change, &|| false)?;
        if let Looked::Wrong(problem) = looked {
            self.integrity
                .note_damage(&file, file.path(), problem, Default::default());
            return Err(Errno::EIO);
        }
        // Requests will write it.
        let object = opened.and_then(|_| self.buffer.tiers().open_to_write(tier, file.object))?;
        Ok(Target::Buffer { file, object, tier })
    }

    fn first_change(
        &self,
        node: &Arc<PlainNode>,
        file: &FileObject,
        truncates: bool,
    ) -> Result<Target, Errno> {
        let stat = self.ns.pfs().stat_file(file.file())?;
        let way = self.way_in(&stat, truncates);
        if way == FirstChange::InPlaceOnPfs {
            return write_in_place(node, file);
        }
        let empty = way == FirstChange::FreshObject;
        let (file, object, tier) =
            self.bring_in(&node.parent, &node.name, Some(node.id), empty, &|_| ())?;
        self.catalog.apps().opened_for_write(file.object);
        Ok(Target::Buffer { file, object, tier })
    }

    /// How a file of the PFS is changed for the first time. Files with several links there stay
    /// one file only if they are changed where they are; of what cannot be replaced there the PFS says what may be done to it.
    fn way_in(&self, stat: &forebay_tiers::PfsStat, truncates: bool) -> FirstChange {
        if stat.nlink > 1 || stat.keeps_its_place() {
            return FirstChange::InPlaceOnPfs;
        }
        let limits = ChangeLimits::default();
        let choose = || {
            first_change(
                stat.size,
                truncates,
                &self.buffer.ledger().spaces(),
                &limits,
            )
        };
        match choose() {
            FirstChange::InPlaceOnPfs if stat.size <= limits.max_stage_in_bytes => {
                self.evict_somewhere(stat.size + stat.size / 4);
                choose()
            }
            way => way,
        }
    }

    /// Sets attributes, the size included.
    pub fn setattr(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
        cred: Cred,
    ) -> Result<Attr, Errno> {
        if set.size.is_some_and(|size| size > limits::FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        let plan = match self.ns.setattr(ino, set) {
            // An outdated copy has just lost its name: who has it open changes what they have.
            Err(error) if error.errno() == Errno::ESTALE && handle.is_some() => {
                match self.ns.setattr(ino, set) {
                    Err(error) if error.errno() == Errno::ESTALE => {
                        return self.setattr_open_pfs(ino, set);
                    }
                    planned => planned?,
                }
            }
            Err(error) if error.errno() == Errno::ESTALE => return self.setattr_open_pfs(ino, set),
            planned => planned?,
        };
        if set.size.is_some() && cred.uid != 0 {
            self.clear_set_id(ino)?;
        }
        match plan {
            AttrPlan::Done => {}
            AttrPlan::Object(file) => match self.setattr_object(&file, set) {
                // It has left the burst buffer meanwhile.
                Err(Errno::ENOENT) if matches!(self.ns.node(ino), Ok(Node::Plain(_))) => {
                    return self.setattr(ino, handle, set, cred);
                }
                done => done?,
            },
            AttrPlan::PfsFile => self.truncate_pfs(ino, handle, set.size.unwrap_or(0))?,
        }
        self.getattr(ino)
    }

    /// Attributes as they are now.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        match self.ns.getattr(ino) {
            Ok((attr, file)) => self.live_attr(attr, file.as_ref()),
            Err(error) if error.errno() == Errno::ETIMEDOUT => Err(Errno::ETIMEDOUT),
            Err(error) => self.stat_open_pfs(ino).ok_or(error.errno()),
        }
    }

    /// An outsider has removed the name of a file that is open here: its descriptor still knows it.
    fn stat_open_pfs(&self, ino: Ino) -> Option<Attr> {
        let open = self.buffer.opens().by_ino(ino)?;
        let target = open.target.read();
        let Target::Pfs { file, .. } = &*target else {
            return None;
        };
        self.buffer.reach(&target).ok()?;
        let stat = self.ns.pfs().stat_file(file.file()).ok()?;
        Some(Attr {
            ino,
            kind: stat.kind(),
            perm: stat.perm(),
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: 0,
            size: stat.size,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
        })
    }

    /// Of a file that is open here, but whose name is gone.
    pub fn setattr_open_pfs(&self, ino: Ino, set: &SetAttr) -> Result<Attr, Errno> {
        let open = self.buffer.opens().by_ino(ino).ok_or(Errno::ESTALE)?;
        if set.size.is_some() {
            self.prepare_change(&open, false)?;
        }
        let target = open.target.read();
        let Target::Pfs { file, .. } = &*target else {
            return Err(Errno::ESTALE);
        };
        self.buffer.reach(&target)?;
        if let Some(size) = set.size {
            file.set_len(size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            std::os::unix::fs::fchown(file.file(), set.uid, set.gid)?;
        }
        if let Some(perm) = set.perm {
            file.file()
                .set_permissions(std::os::unix::fs::PermissionsExt::from_mode(perm.into()))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            file.set_times(set.atime, set.mtime)?;
        }
        drop(target);
        self.getattr(ino)
    }

    fn setattr_object(&self, file: &Arc<File>, set: &SetAttr) -> Result<(), Errno> {
        let set = &file.lock().as_taken(set);
        let times = set.atime.is_some() || set.mtime.is_some();
        if set.size.is_none() && !times {
            return Ok(());
        }
        let claim = self.buffer.opens().claim(file.ino);
        let Some(open) = claim.open() else {
            // With the claim held, it is neither opened nor evicted meanwhile.
            let purpose = match set.size {
                Some(0) => Purpose::Shape,
                Some(_) => Purpose::Change,
                None => Purpose::Open,
            };
            let opened = self.integrity.open_at_rest(&claim, file, purpose, false)?;
            let (_, object, _) = opened.ok_or(Errno::ENOENT)?;
            return self.change_closed(file, &*object, set);
        };
        // As long as a handle is counted, what is changed here is not moved elsewhere.
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let handle = self.buffer.opens().add(&claim, &open, flags);
        drop(claim);
        let changed = self.change_open(&open, file, set);
        let closed = self.release(handle);
        changed.and(closed)
    }

    fn change_open(&self, open: &OpenFile, file: &Arc<File>, set: &SetAttr) -> Result<(), Errno> {
        self.prepare_change(open, set.size == Some(0))?;
        if set.size.is_some() {
            self.buffer.activity().note();
        }
        let target = self.target(open)?;
        self.buffer.reach(&target)?;
        if let Some(size) = set.size {
            if size == 0 {
                // Whatever is in it goes.
                open.mark_verified();
            }
            self.note_change(open, &target)?;
            self.forget_flushed(file, size);
        }
        let changed = self.apply(open, &target, set);
        drop(target);
        // Also what failed: the file was marked as being written.
        let absorbed = self.absorb_change(file);
        changed.and(absorbed)
    }

    fn apply(&self, open: &OpenFile, target: &Target, set: &SetAttr) -> Result<(), Errno> {
        if let Some(size) = set.size {
            target.object().set_len(size)?;
            self.note_changed(target)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            open.touched.store(true, Ordering::Release);
            target.object().set_times(set.atime, set.mtime)?;
        }
        Ok(())
    }

    fn change_closed(
        &self,
        file: &Arc<File>,
        object: &dyn Object,
        set: &SetAttr,
    ) -> Result<(), Errno> {
        if let Some(size) = set.size {
            // Until it is recorded, only the object knows the size.
            self.begin_change(file)?;
            self.forget_flushed(file, size);
            self.buffer.activity().note();
        }
        let changed = change_object(object, set);
        // Also what failed: the file was marked as being written.
        let recorded = self.record_object(file, object);
        changed.and(recorded)
    }

    /// A change through a handle that does not count as a writer (truncate(2) on a file that
    /// somebody reads).
    fn absorb_change(&self, file: &Arc<File>) -> Result<(), Errno> {
        let claim = self.buffer.opens().claim(file.ino);
        if claim.open().is_some_and(|open| open.is_written()) {
            // The close of who writes it takes that in.
            return Ok(());
        }
        let object = self.buffer.tiers().open_object(file.tier(), file.object)?;
        self.record_object(file, &*object)
    }

    /// Takes size and times of an object into its record. The caller has claimed the file, and nobody writes it.
    pub fn record_object(&self, file: &Arc<File>, object: &dyn Object) -> Result<(), Errno> {
        let stat = object.stat()?;
        let (dirty, unlinked) = {
            let mut state = file.lock();
            state.end_writing(&stat);
            self.ns.save(file, &state, KvDurability::Buffered)?;
            let dirty = self.buffer.book_held(file, &state, stat.allocated_bytes);
            (dirty, state.is_unlinked())
        };
        if dirty && !unlinked {
            self.buffer.queue().add(file.object);
        }
        Ok(())
    }

    fn truncate_pfs(&self, ino: Ino, handle: Option<Handle>, size: u64) -> Result<(), Errno> {
        if let Some(open) = self.buffer.opens().by_ino(ino) {
            self.prepare_change(&open, size == 0)?;
            let target = open.target.read();
            if let Target::Buffer { file, .. } = &*target {
                let file = file.clone();
                drop(target);
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                return self.setattr_object(&file, &set);
            }
            self.buffer.reach(&target)?;
            target.object().set_len(size)?;
            return Ok(());
        }
        if handle.is_some() {
            return Err(Errno::EBADF);
        }
        let forebay_namespace::Node::Plain(plain) = self.ns.node(ino)? else {
            return Err(Errno::EINVAL);
        };
        let stat = self.ns.stat_plain(&plain)?;
        let way = self.way_in(&stat, size == 0);
        if way != FirstChange::InPlaceOnPfs {
            let empty = way == FirstChange::FreshObject;
            match self.bring_in(&plain.parent, &plain.name, Some(plain.id), empty, &|_| ()) {
                // The kernel looks its name up again, and comes back.
                Err(errno) if is_overtaken(errno) => return Err(Errno::ESTALE),
                Err(errno) if can_stay(errno) => {}
                arrived => {
                    // Somebody may have opened it since it came in.
                    let (file, _, _) = arrived?;
                    let set = SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    };
                    return self.setattr_object(&file, &set);
                }
            }
        }
        let done = self.ns.on_plain(ino, &plain, |node| {
            Ok(self.ns.pfs().open_node(node, true)?.set_len(size)?)
        });
        done?.ok_or(Errno::ESTALE)
    }

    /// lseek(2) for data and holes.
    pub fn seek(&self, handle: Handle, offset: u64, what: SeekWhat) -> Result<u64, Errno> {
        let (open, _) = self.buffer.opens().file(handle)?;
        let what = match what {
            SeekWhat::Data => Seek::Data,
            SeekWhat::Hole => Seek::Hole,
        };
        let target = self.target(&open)?;
        self.buffer.reach(&target)?;
        let found = target.object().seek(offset, what)?;
        found.ok_or(Errno::ENXIO)
    }
}

/// Looks at a file of the PFS that others rename, link or bring in at the same time.
const TRIES: u32 = 8;

/// Somebody has changed the names of a file, linked it or brought it in while it was brought in.
fn is_overtaken(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EEXIST | Errno::ESTALE | Errno::ENOENT | Errno::EMLINK
    )
}

/// A file that cannot come in now can be changed where it is.
fn can_stay(errno: Errno) -> bool {
    is_overtaken(errno) || matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

/// The same file of the PFS, open for writing. Its name need not be known.
fn write_in_place(node: &Arc<PlainNode>, file: &FileObject) -> Result<Target, Errno> {
    let path = format!("/proc/self/fd/{}", file.file().as_raw_fd());
    let open = |options: &mut std::fs::OpenOptions| options.read(true).open(&path);
    let (writable, appends_only) = match open(std::fs::File::options().write(true)) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            (open(std::fs::File::options().append(true))?, true)
        }
        opened => (opened?, false),
    };
    Ok(Target::Pfs {
        node: node.clone(),
        file: Arc::new(FileObject::new(writable)),
        writable: true,
        appends_only,
    })
}

/// Writes at a place, or at the end; answers with how much was written, and where that ends.
fn write_object(target: &Target, data: &[u8], place: Option<u64>) -> std::io::Result<(usize, u64)> {
    let at = match (place, target) {
        // Its descriptor would append wherever that is.
        (
            Some(_),
            Target::Pfs {
                appends_only: true, ..
            },
        ) => return Err(Errno::EPERM.into()),
        (Some(offset), _) => offset,
        // Others may write it, too, and the file system below knows best where it ends.
        (None, Target::Pfs { file, .. }) => return file.append(data),
        (None, Target::Buffer { object, .. }) => object.stat()?.size,
    };
    if at.saturating_add(data.len() as u64) > limits::FILE_BYTES_MAX {
        return Err(Errno::EFBIG.into());
    }
    let written = target.object().write_at(data, at)?;
    Ok((written, at + written as u64))
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

fn change_object(object: &dyn Object, set: &SetAttr) -> Result<(), Errno> {
    if let Some(size) = set.size {
        object.set_len(size)?;
        failpoint::hit(failpoint::Point::TruncateObject);
        object.set_times(None, set.mtime.or(Some(SetTime::Now)))?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        object.set_times(set.atime, set.mtime)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_namespace::File;
    use forebay_testkit::{LoopFs, needs_root};
    use forebay_types::{Errno, Ino, ObjectId, OpenFlags, SetAttr};
    use forebay_wire::{Link, WriteHow};

    use crate::buffer::opens::Target;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, create, drain, me};

    /// As an fsync does that means the PFS.
    fn flush_to_pfs(rooms: &Rooms, object: ObjectId) {
        rooms.buffer.queue().add_urgent(object);
        let batch = rooms.drain.next_batch();
        crate::drain::demote::demote_batch(&rooms.drain, &batch);
    }

    /// A clean file `f`, closed.
    fn create_drained(rooms: &Rooms) -> Arc<File> {
        rooms
            .files
            .release(create(rooms, b"f", b"content"))
            .expect("close");
        let object = rooms.buffer.queue().waiting()[0];
        drain(rooms);
        rooms.buffer.file(object).expect("file")
    }

    #[test]
    fn nothing_changes_a_file_whose_record_cannot_say_so() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let file = create_drained(rooms);
        assert!(!file.lock().is_dirty());
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, false).expect("open");
        lab.store.fail_from(lab.pfs("f"));
        // A second try would be the first to do it if it took the record for written.
        for try_ in 1..=3 {
            let written = rooms
                .files
                .write(opened.handle, 0, b"CONTENT", WriteHow::WAITING);
            assert!(written.is_err(), "try {try_}: {written:?}");
        }
        assert!(lab.store.fired() >= 3);
        let state = file.lock();
        assert!(!state.is_dirty() && state.residency.crc.is_some());
        let held = rooms
            .buffer
            .tiers()
            .open_object(state.residency.tier, file.object);
        drop(state);
        let mut found = [0; 7];
        held.expect("object").read_at(&mut found, 0).expect("read");
        assert_eq!(&found, b"content");
        lab.store.heal();
        let written = rooms
            .files
            .write(opened.handle, 0, b"CONTENT", WriteHow::WAITING);
        assert_eq!(written, Ok(Some(7)));
        rooms.files.release(opened.handle).expect("close");
        drain(rooms);
        assert_eq!(lab.on_pfs("f"), b"CONTENT");
    }

    #[test]
    fn attributes_of_a_file_that_is_flushed_to_the_pfs_while_it_is_written_stay() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        let (open, _) = rooms.buffer.opens().file(handle).expect("open");
        let Target::Buffer { file, .. } = open.target.read().clone() else {
            panic!("not in the burst buffer");
        };
        let named = |name: &[u8]| rooms.base.ns().get_xattr(file.ino, name);
        let mode = forebay_types::XattrMode::Set;
        rooms
            .base
            .ns()
            .set_xattr(file.ino, b"user.a", b"1", mode)
            .expect("set");
        file.lock().begin_wait();
        flush_to_pfs(rooms, file.object);
        file.lock().end_wait();
        assert_eq!(lab.on_pfs("f"), b"content");
        rooms
            .files
            .write(handle, 7, b" and more", WriteHow::WAITING)
            .expect("write");
        assert_eq!(named(b"user.a").expect("kept"), b"1");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        assert_eq!(named(b"user.a").expect("kept on the PFS"), b"1");
    }

    #[test]
    fn a_change_that_a_copy_overtakes_is_copied_again() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        let (open, _) = rooms.buffer.opens().file(handle).expect("open");
        let target = rooms.files.target(&open).expect("target");
        let Target::Buffer { file, object, .. } = &*target else {
            panic!("not in the burst buffer");
        };
        // A write that has been noted, and is overtaken by the copy for somebody else's fsync.
        rooms.files.note_change(&open, &target).expect("noted");
        file.lock().begin_wait();
        flush_to_pfs(rooms, file.object);
        file.lock().end_wait();
        object.write_at(b"CONTENT", 0).expect("write");
        rooms.files.note_changed(&target).expect("noted");
        drop(target);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        assert_eq!(lab.on_pfs("f"), b"CONTENT");
    }

    #[test]
    fn a_truncation_beside_a_reader_is_on_record_before_it_is_done() {
        let lab = Lab::with(|settings| settings.passthrough = true);
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", b"content"))
            .expect("close");
        let object = rooms.buffer.queue().waiting()[0];
        let file = rooms.buffer.file(object).expect("file");
        let (opened, _) = rooms
            .files
            .open(file.ino, OpenFlags(libc::O_RDONLY as u32), true)
            .expect("open");
        let (open, _) = rooms.buffer.opens().file(opened.handle).expect("open");
        assert!(open.passthrough);
        let target = rooms.files.target(&open).expect("target");
        assert!(file.lock().is_dirty() && !file.lock().residency.writing);
        rooms.files.note_change(&open, &target).expect("noted");
        assert!(file.lock().residency.writing, "the object knows the size");
        drop(target);
        rooms.files.absorb_change(&file).expect("recorded");
        assert!(!file.lock().residency.writing);
        rooms.files.release(opened.handle).expect("close");
    }

    #[test]
    fn what_cannot_be_replaced_on_the_pfs_is_changed_there_or_not_at_all() {
        if needs_root() {
            return;
        }
        let lab = Lab::new();
        let rooms = lab.rooms();
        std::fs::create_dir(lab.pfs("in")).expect("mkdir");
        let folder = tempfile::tempdir().expect("temporary directory");
        let inner = LoopFs::new(folder.path(), &lab.pfs("in"), 16 << 20);
        let dir = rooms.base.ns().lookup(Ino::ROOT, b"in").expect("there");
        for (name, flag) in [("in/i", "+i"), ("in/a", "+a")] {
            std::fs::write(lab.pfs(name), b"line\n").expect("write");
            inner.chattr(flag, &lab.pfs(name));
        }
        let find = |name: &[u8]| {
            let found = rooms.base.ns().lookup(dir.attr.ino, name).expect("there");
            assert!(found.file.is_none(), "it has come in");
            found.attr.ino
        };
        let open = |name: &[u8], flags: i32| {
            let flags = OpenFlags((libc::O_RDWR | flags) as u32);
            let opened = rooms.files.open(find(name), flags, false);
            opened.map(|(opened, _)| opened.handle)
        };
        let append = WriteHow {
            append: true,
            ..WriteHow::WAITING
        };
        let cut = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let refused = Errno::EPERM;
        assert_eq!(open(b"i", 0), Err(refused));
        assert_eq!(open(b"i", libc::O_APPEND), Err(refused));
        assert_eq!(open(b"a", 0), Err(refused));
        for name in [b"i", b"a"] {
            let cut = rooms.files.setattr(find(name), None, &cut, me());
            assert_eq!(cut.map(drop), Err(refused));
        }
        let handle = open(b"a", libc::O_APPEND).expect("open");
        assert_eq!(open(b"a", 0), Err(refused), "beside another");
        let written = rooms.files.write(handle, 5, b"more\n", append);
        assert_eq!(written, Ok(Some(5)));
        // As from a mapping; an append would go elsewhere.
        let over = rooms.files.write(handle, 0, b"LINE", WriteHow::WAITING);
        assert_eq!(over, Err(refused));
        let cut = rooms.files.setattr(find(b"a"), Some(handle), &cut, me());
        assert_eq!(cut.map(drop), Err(refused));
        rooms.files.release(handle).expect("close");
        let root = rooms.base.ns().resolve(b"in").expect("there").0;
        for name in [b"i", b"a"] {
            let brought = rooms.files.bring_in(&root, name, None, false, &|_| ());
            assert_eq!(brought.map(drop), Err(Errno::EMLINK));
        }
        // Nothing is made where the PFS takes nothing.
        std::fs::create_dir(lab.pfs("in/d")).expect("mkdir");
        inner.chattr("+i", &lab.pfs("in/d"));
        let closed = rooms.base.ns().lookup(dir.attr.ino, b"d").expect("there");
        let link = Link {
            parent: closed.attr.ino,
            name: b"new".to_vec(),
        };
        let flags = OpenFlags(libc::O_RDWR as u32);
        let made = rooms.files.create(&link, 0o644, flags, me(), false);
        assert_eq!(made.map(drop), Err(refused));
        assert_eq!(lab.on_pfs("in/i"), b"line\n");
        assert_eq!(lab.on_pfs("in/a"), b"line\nmore\n");
    }

    #[test]
    fn what_changes_a_file_after_its_last_close_is_drained() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let file = create_drained(rooms);
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, false).expect("open");
        let (open, _) = rooms.buffer.opens().file(opened.handle).expect("open");
        // The PFS did not answer; the program was told so, and has closed the file.
        rooms.files.release(opened.handle).expect("close");
        let written = rooms
            .files
            .write_to(&open, (0, b"CONTENT"), WriteHow::WAITING);
        assert!(file.lock().residency.writing, "nobody will close it");
        assert_eq!(rooms.files.absorb_late(&open, written), Ok(Some(7)));
        assert!(!file.lock().residency.writing);
        drain(rooms);
        assert_eq!(lab.on_pfs("f"), b"CONTENT");
    }
}
