//! Attributes of files: what they are, and what changes them, a truncation too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::{AttrPlan, File, Node, on_pfs};
use forebay_policy::placement::FirstChange;
use forebay_tiers::{FileObject, Object, ObjectStat};
use forebay_types::{
    Attr, Cred, Errno, Handle, Ino, OpenFlags, SetAttr, SetTime, failpoint, limits,
};

use crate::base::failure::{Failure, both};
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::change::{can_stay, is_overtaken, refuse_dropped, stale_if_gone};
use crate::integrity::atrest::Purpose;

impl Files {
    /// Sets attributes, the size included. Of a file that has lost its name since that was looked
    /// up, `ESTALE`, unless it is set by a handle.
    pub fn setattr(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
        cred: Cred,
    ) -> Result<Attr, Failure> {
        let done = self.setattr_known(ino, handle, set, cred);
        if (set.uid.is_some() || set.gid.is_some())
            && self.buffer.ledger().has_limits()
            && let Ok(Node::File(file)) = self.ns.node(ino)
        {
            self.buffer.own(&file);
        }
        match handle {
            None => done.map_err(stale_if_gone),
            Some(_) => done,
        }
    }

    fn setattr_known(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
        cred: Cred,
    ) -> Result<Attr, Failure> {
        if set.size.is_some_and(|size| size > limits::FILE_BYTES_MAX) {
            return Err(Errno::EFBIG.into());
        }
        if handle.is_none() {
            self.look_before_change(ino, set)?;
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
            AttrPlan::Object(file) => self.setattr_found(&file, handle, set, cred)?,
            AttrPlan::PfsFile => self.truncate_pfs(ino, handle, set.size.unwrap_or(0), cred)?,
        }
        self.getattr(ino)
    }

    /// By its path, nobody has looked for a change as an open does. Nor is a copy changed that was
    /// dropped as outdated since the path was looked up: that would be lost.
    fn look_before_change(&self, ino: Ino, set: &SetAttr) -> Result<(), Failure> {
        let Ok(Node::File(file)) = self.ns.node(ino) else {
            return Ok(());
        };
        if set.size.is_some() {
            self.ns.look_if_trusted(&file)?;
        }
        // The kernel names a handle with a size only: of what is open, all else may be meant for
        // that.
        match set.size.is_none() && self.buffer.opens().is_open_now(ino) {
            true => Ok(()),
            false => refuse_dropped(&file),
        }
    }

    /// Of a file that was in the burst buffer a moment ago, or of what has its id now.
    fn setattr_found(
        &self,
        file: &Arc<File>,
        handle: Option<Handle>,
        set: &SetAttr,
        cred: Cred,
    ) -> Result<(), Failure> {
        match self.setattr_object(file, set) {
            Err(failure) if failure.errno() == Errno::ENOENT && self.has_left(file) => {
                self.setattr_known(file.ino, handle, set, cred).map(drop)
            }
            done => done,
        }
    }

    /// Whether a file has left the burst buffer: its id stands for something else. Its object may
    /// still be there, but what is changed in it is lost.
    fn has_left(&self, file: &Arc<File>) -> bool {
        let is_it = |node| matches!(node, Node::File(now) if Arc::ptr_eq(&now, file));
        file.lock().is_unlinked() && !self.ns.node(file.ino).is_ok_and(is_it)
    }

    /// Attributes as they are now.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Failure> {
        match self.ns.getattr(ino) {
            Ok((attr, file)) => self.live_attr(attr, file.as_ref()),
            Err(error) if error.errno() == Errno::ETIMEDOUT => Err(error.into()),
            Err(error) => self.stat_open_pfs(ino).ok_or_else(|| error.into()),
        }
    }

    /// An outsider has removed the name of a file that is open here: its descriptor still knows it.
    pub(super) fn stat_open_pfs(&self, ino: Ino) -> Option<Attr> {
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
    pub fn setattr_open_pfs(&self, ino: Ino, set: &SetAttr) -> Result<Attr, Failure> {
        let open = self.buffer.opens().by_ino(ino).ok_or(Errno::ESTALE)?;
        if set.size.is_some() {
            self.prepare_change(&open, false)?;
        }
        let target = open.target.read();
        let Target::Pfs { node, file, .. } = &*target else {
            return Err(Errno::ESTALE.into());
        };
        self.buffer.reach(&target)?;
        self.change_in_place(node, file, set.size, || set_on_pfs(file, set))?;
        drop(target);
        self.getattr(ino)
    }

    /// `ENOENT` if it has left the burst buffer.
    pub(super) fn setattr_object(&self, file: &Arc<File>, set: &SetAttr) -> Result<(), Failure> {
        if set.size.is_some() {
            self.ns.drop_capability(file)?;
        }
        let set = &file.lock().as_taken(set);
        let times = set.atime.is_some() || set.mtime.is_some();
        if set.size.is_none() && !times {
            return Ok(());
        }
        let claim = self.buffer.opens().claim(file.ino);
        let Some(open) = claim.open() else {
            // Who had the claim before may have evicted it.
            if self.has_left(file) {
                return Err(Errno::ENOENT.into());
            }
            // With the claim held, it is neither opened nor evicted meanwhile.
            let purpose = match set.size {
                Some(0) => Purpose::Shape,
                Some(_) => Purpose::Change,
                None => Purpose::Open,
            };
            let opened = self.integrity.open_at_rest(&claim, file, purpose, false)?;
            let (_, object, _) = opened.ok_or(Errno::ENOENT)?;
            if set.size.is_some() {
                self.catalog.apps().changed(file.object);
            }
            return self.change_closed(file, &*object, set);
        };
        // As long as a handle is counted, what is changed here is not moved elsewhere.
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let handle = self.buffer.opens().add(&claim, &open, flags);
        drop(claim);
        let changed = self.change_open(&open, file, set);
        let closed = self.release(handle);
        both("close", changed, closed).map(drop)
    }

    pub(super) fn change_open(
        &self,
        open: &OpenFile,
        file: &Arc<File>,
        set: &SetAttr,
    ) -> Result<(), Failure> {
        self.prepare_change(open, set.size == Some(0))?;
        if set.size.is_some() {
            self.buffer.activity().note();
        }
        let target = self.target(open)?;
        let is_it = matches!(&*target, Target::Buffer { file: now, .. } if Arc::ptr_eq(now, file));
        // It has left, and was opened after that.
        if !is_it && self.has_left(file) {
            return Err(Errno::ENOENT.into());
        }
        self.buffer.reach(&target)?;
        if let Some(size) = set.size {
            if size == 0 {
                // Whatever is in it goes.
                open.mark_verified();
            }
            self.note_change(open, &target)?;
        }
        let changed = self.apply(open, &target, set);
        if changed.is_ok() && set.size == Some(0) {
            self.integrity.forget_failed_flush(file, target.object());
            self.was_emptied(file);
        }
        drop(target);
        // Also what failed: the file was marked as being written.
        let absorbed = self.absorb_change(file);
        both("record a file", changed, absorbed).map(drop)
    }

    pub(super) fn apply(
        &self,
        open: &OpenFile,
        target: &Target,
        set: &SetAttr,
    ) -> Result<(), Failure> {
        if let Some(size) = set.size {
            loop {
                let end = open.end.lock();
                if is_marked(target) {
                    self.buffer.pass_to_change(target)?;
                    match target {
                        Target::Buffer { file, object, .. } => {
                            self.cut(file, size, || Ok(object.set_len(size)?))?;
                        }
                        Target::Pfs { file, .. } => file.set_len(size)?,
                    }
                    open.unsent.changed();
                    self.note_changed(target)?;
                    break;
                }
                // Another change, or the last close, has taken size and mark into the record since
                // this one was noted.
                drop(end);
                self.note_change(open, target)?;
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            open.touched.store(true, Ordering::Release);
            self.buffer.pass_to_change(target)?;
            target.object().set_times(set.atime, set.mtime)?;
        }
        Ok(())
    }

    pub(super) fn change_closed(
        &self,
        file: &Arc<File>,
        object: &dyn Object,
        set: &SetAttr,
    ) -> Result<(), Failure> {
        if set.size.is_some() {
            // Until it is recorded, only the object knows the size.
            self.begin_change(file)?;
            self.buffer.activity().note();
        }
        let change = || {
            self.buffer.pass_to_change_in(file.tier())?;
            change_object(object, set)
        };
        let changed = match set.size {
            Some(size) => self.cut(file, size, change),
            None => change(),
        };
        if changed.is_ok() && set.size == Some(0) {
            self.integrity.forget_failed_flush(file, object);
            self.was_emptied(file);
        }
        // Also what failed: the file was marked as being written.
        let recorded = match object.stat() {
            Ok(stat) => self.take_in(file, &stat, &|| false),
            Err(error) => Err(self.not_taken_in(file, error)),
        };
        both("record a file", changed, recorded).map(drop)
    }

    /// A change through a handle that does not count as a writer (truncate(2) on a file that
    /// somebody reads).
    pub(super) fn absorb_change(&self, file: &Arc<File>) -> Result<(), Failure> {
        let claim = self.buffer.opens().claim(file.ino);
        let open = claim.open();
        if open.as_ref().is_some_and(|open| open.is_written()) {
            // The close of who writes it takes that in.
            return Ok(());
        }
        let _end = open.as_ref().map(|open| open.end.lock());
        // Who is not counted as a writer any more may still be writing, and takes that in.
        let goes_on = || {
            open.as_ref()
                .is_some_and(|open| open.changes.are_under_way())
        };
        let opened = self.buffer.tiers().open_object(file.tier(), file.object);
        let stat = match opened.and_then(|object| object.stat()) {
            Ok(stat) => stat,
            // It has lost its last name, and its object with that.
            Err(_) if file.lock().is_unlinked() => return Ok(()),
            Err(error) => return Err(self.not_taken_in(file, error)),
        };
        self.take_in(file, &stat, &goes_on)
    }

    fn not_taken_in(&self, file: &Arc<File>, error: std::io::Error) -> Failure {
        let failure = error.into();
        self.leave_unclosed(file, &failure);
        failure
    }

    /// Takes size and times of an object into its record. The caller has claimed the file, and
    /// nobody writes it.
    pub fn record_object(&self, file: &Arc<File>, object: &dyn Object) -> Result<(), Failure> {
        self.take_in(file, &object.stat()?, &|| false)
    }

    fn take_in(
        &self,
        file: &Arc<File>,
        stat: &ObjectStat,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let (dirty, unlinked, saved) = {
            let mut state = file.lock();
            state.end_writing(stat);
            if goes_on() {
                state.stay_written();
            }
            let saved = self.ns.save(file, &state, KvDurability::Buffered);
            let dirty = self.buffer.book_held(file, &state, stat.allocated_bytes);
            (dirty, state.is_unlinked(), saved)
        };
        if dirty && !unlinked {
            self.buffer.queue().add(file.object);
        }
        Ok(saved?)
    }

    pub(super) fn truncate_pfs(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        size: u64,
        cred: Cred,
    ) -> Result<(), Failure> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        if let Some(open) = self.buffer.opens().by_ino(ino) {
            self.prepare_change(&open, size == 0)?;
            let target = open.target.read();
            if let Target::Buffer { file, .. } = &*target {
                let file = file.clone();
                drop(target);
                return self.setattr_found(&file, handle, &set, cred);
            }
            self.buffer.reach(&target)?;
            if let Target::Pfs { node, file, .. } = &*target {
                self.change_in_place(node, file, Some(size), || file.set_len(size))?;
            }
            return Ok(());
        }
        if handle.is_some() {
            return Err(Errno::EBADF.into());
        }
        let forebay_namespace::Node::Plain(plain) = self.ns.node(ino)? else {
            return Err(Errno::EINVAL.into());
        };
        let stat = self.ns.stat_plain(&plain)?;
        let way = self.way_in(&plain, &stat, size == 0);
        if way != FirstChange::InPlaceOnPfs {
            let empty = way == FirstChange::FreshObject;
            let whose = (Some(plain.id), Some(cred.process));
            match self.bring_in(&plain.parent, &plain.name, whose, empty, &|_| ()) {
                // The kernel looks its name up again, and comes back.
                Err(failure) if is_overtaken(failure.errno()) => {
                    return Err(failure.with_errno(Errno::ESTALE));
                }
                Err(failure) if can_stay(failure.errno()) => {
                    failure.told("bring a file in");
                }
                arrived => {
                    // Somebody may have opened it since it came in, or evicted it.
                    let (file, _, _) = arrived?;
                    return self.setattr_found(&file, handle, &set, cred);
                }
            }
        }
        let done = self.ns.on_plain(ino, &plain, |node| {
            let opened = self.ns.pfs().open_node(node, true);
            let file = Arc::new(FileObject::new(opened.map_err(on_pfs("truncate"))?));
            let cut = self.change_in_place(&plain, &file, Some(size), || file.set_len(size));
            cut.map_err(on_pfs("truncate"))
        });
        Ok(done?.ok_or(Errno::ESTALE)?)
    }
}

/// Of a file whose name is gone.
fn set_on_pfs(file: &FileObject, set: &SetAttr) -> std::io::Result<()> {
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
    Ok(())
}

/// Whether the record of a file says that only the object knows the size.
fn is_marked(target: &Target) -> bool {
    match target {
        Target::Buffer { file, .. } => file.lock().is_written(),
        Target::Pfs { .. } => true,
    }
}

fn change_object(object: &dyn Object, set: &SetAttr) -> Result<(), Failure> {
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
    use std::time::Duration;

    use forebay_namespace::File;
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::{Errno, Ino, OpenFlags, RenameMode, SetAttr};

    use crate::integrity::atrest::Purpose;
    use crate::testing::{Lab, answer, create, drain, me};

    const BYTES: usize = 4 << 20;

    /// By its id, as who has it open asks: clean, and only on the PFS.
    #[test]
    fn attributes_are_read_while_a_file_is_renamed() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"a", &[7; 4096]);
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let ns = rooms.base.ns();
        let ino = ns.root().child(b"a").expect("it is there").ino;
        for is_evicted in [false, true] {
            if is_evicted {
                let file = ns.root().child(b"a").expect("it is there");
                assert!(rooms.buffer.evict(&file).is_some());
            }
            std::thread::scope(|scope| {
                let renames = scope.spawn(|| {
                    for names in [[b"a", b"b"], [b"b", b"a"]].iter().cycle().take(600) {
                        let [from, to] = *names;
                        let mode = RenameMode::Replace;
                        let renamed = ns.rename(Ino::ROOT, from, Ino::ROOT, to, mode);
                        renamed.expect("rename");
                    }
                });
                while !renames.is_finished() {
                    let read = ns.get_xattr(ino, b"user.none");
                    let errno = read.map(drop).map_err(|error| error.errno());
                    assert_eq!(errno, Err(Errno::ENODATA));
                }
            });
        }
    }

    /// A file that has left the burst buffer. In the overflow its object has become the file on the
    /// PFS; elsewhere it is there until it is collected.
    fn departed(lab: &Lab) -> Arc<File> {
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[7; BYTES]);
        rooms.files.release(handle).expect("close");
        let file = rooms.base.ns().lookup(Ino::ROOT, b"f").expect("found").file;
        let file = file.expect("in the burst buffer");
        drain(rooms);
        rooms.buffer.evict(&file);
        assert!(file.lock().is_unlinked(), "it is still there");
        file
    }

    fn labs() -> [Lab; 2] {
        let small = Lab::with(|settings| {
            settings.ssd[0].capacity_bytes = Some(1 << 20);
            settings.wait_for_space = Duration::ZERO;
        });
        [Lab::new(), small]
    }

    #[test]
    fn what_is_being_cut_is_recorded_as_cut_or_as_under_change() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let writer = create(rooms, b"f", &[7; BYTES]);
        let found = rooms.base.ns().lookup(Ino::ROOT, b"f").expect("found");
        let file = found.file.expect("in the burst buffer");
        let slow = Effect::Delay(Duration::from_millis(500));
        let slow = flash.inject(Operation::SetLen, When::Nth(1), slow);
        std::thread::scope(|scope| {
            let cuts = scope.spawn(|| rooms.files.setattr_object(&file, &cut()));
            while flash.fired(slow) == 0 {
                std::thread::yield_now();
            }
            rooms.files.release(writer).expect("close");
            {
                let state = file.lock();
                let known = state.residency.writing || state.meta.size == 10;
                assert!(known, "a kill now would leave it damaged");
            }
            cuts.join().expect("no panic").expect("cut");
        });
        let state = file.lock();
        assert_eq!((state.meta.size, state.residency.writing), (10, false));
    }

    fn cut() -> SetAttr {
        SetAttr {
            size: Some(10),
            ..SetAttr::default()
        }
    }

    #[test]
    fn a_file_that_has_left_the_burst_buffer_is_not_cut_there() {
        for lab in labs() {
            let file = departed(&lab);
            let done = lab.rooms().files.setattr_object(&file, &cut());
            assert_eq!(answer(done), Err(Errno::ENOENT));
        }
    }

    #[test]
    fn what_leaves_the_burst_buffer_before_it_is_cut_is_cut_where_it_is() {
        for lab in labs() {
            let rooms = lab.rooms();
            let file = departed(&lab);
            let done = rooms.files.setattr_found(&file, None, &cut(), me());
            assert_eq!(answer(done), Ok(()));
            let size = rooms.files.getattr(file.ino).map(|attr| attr.size);
            assert_eq!(answer(size), Ok(10));
            drain(rooms);
            assert_eq!(lab.on_pfs("f"), [7; 10]);
        }
    }

    #[test]
    fn what_leaves_the_burst_buffer_and_is_opened_before_it_is_cut_is_cut_for_who_has_it_open() {
        for lab in labs() {
            let rooms = lab.rooms();
            let file = departed(&lab);
            let flags = OpenFlags(libc::O_RDONLY as u32);
            let (reader, _) = rooms.files.open(file.ino, flags, None).expect("open");
            let done = rooms.files.setattr_found(&file, None, &cut(), me());
            assert_eq!(answer(done), Ok(()));
            let mut found = [0; 20];
            let read = rooms.files.read(reader.handle, 0, &mut found);
            assert_eq!(answer(read), Ok(10));
            rooms.files.release(reader.handle).expect("close");
            drain(rooms);
            assert_eq!(lab.on_pfs("f"), [7; 10]);
        }
    }

    #[test]
    fn who_opens_an_object_in_the_overflow_that_has_left_is_told_so() {
        let [_, lab] = labs();
        let file = departed(&lab);
        let integrity = &lab.rooms().integrity;
        let claim = lab.rooms().buffer.opens().claim(file.ino);
        let opened = integrity.open_at_rest(&claim, &file, Purpose::Open, false);
        assert_eq!(answer(opened.map(|found| found.is_none())), Ok(true));
    }
}
