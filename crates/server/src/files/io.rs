//! read, write, truncate, fsync and lseek on open files.

use std::sync::Arc;

use forebay_policy::schedule::Class;
use forebay_tiers::{Seek, TierKind, start_writeback};
use forebay_types::{Errno, Handle, limits};
use forebay_wire::{OUT_OF_REACH, SeekWhat, WriteHow};

use crate::base::failure::{Failure, both};
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::space::Room;

impl Files {
    /// Reads into the start of `into`.
    pub fn read(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<usize, Failure> {
        let (open, flags) = self.buffer.opens().file(handle)?;
        if !flags.reads() {
            return Err(Errno::EBADF.into());
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
    ) -> Result<Option<usize>, Failure> {
        let (open, flags) = self.buffer.opens().file(handle)?;
        if !flags.writes() {
            return Err(Errno::EBADF.into());
        }
        if offset.saturating_add(data.len() as u64) > limits::FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let change = open.changes.begin();
        let written = self.write_to(&open, (offset, data), how);
        drop(change);
        let written = self.absorb_late(&open, written);
        match &written {
            // It is asked again.
            Err(failure) if failure.errno() == OUT_OF_REACH => {}
            Err(failure) if how.write_back => self.store_is_lost(&open, failure),
            _ => {}
        }
        written
    }

    fn write_to(
        &self,
        open: &Arc<OpenFile>,
        (offset, data): (u64, &[u8]),
        how: WriteHow,
    ) -> Result<Option<usize>, Failure> {
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
        // What is stored through a mapping takes none away.
        if how.drop_suid || !how.write_back {
            self.drop_capability(open)?;
        }
        loop {
            if self.admit(open, data.len() as u64, may_wait)? == Room::WouldWait {
                return Ok(None);
            }
            let target = self.target(open)?;
            self.buffer.reach(&target)?;
            self.note_write(open, &target)?;
            let place = (!how.append).then_some(offset);
            let pass = self.buffer.pass_to_change(&target);
            let written = pass.and_then(|()| match how.write_back {
                true => store_back(open, &target, data, offset),
                false => write_object(&target, data, place),
            });
            match &written {
                Ok((written, end)) => open.unsent.wrote(end.saturating_sub(*written as u64)..*end),
                Err(_) => {
                    // Some of it may be there.
                    open.unsent.failed();
                    self.note_in_place(&target)?;
                }
            }
            match written {
                Ok((written, end)) => {
                    self.note_changed(&target)?;
                    if straight {
                        let ahead_bytes = self.plan.engine().ahead_bytes(1);
                        open.behind.reached(target.object(), end, ahead_bytes);
                    } else if throttled {
                        // Somebody may have cut it since.
                        let from = end.saturating_sub(written as u64);
                        start_writeback(target.object(), from, written as u64);
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

    /// A request that waited for the PFS may have been answered for, and the file closed, before it
    /// changed anything: no close will take in what it did.
    pub fn absorb_late<T>(
        &self,
        open: &OpenFile,
        changed: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if open.is_written() || open.changes.are_under_way() {
            // The close takes it in, or who is done last.
            return changed;
        }
        let target = open.target.read().clone();
        let absorbed = match target {
            // Its mark may have gone with the close, before the change was made.
            Target::Buffer { file, .. } if file.lock().is_dirty() => self.absorb_change(&file),
            _ => Ok(()),
        };
        both("record a file", changed, absorbed).map(|(value, ())| value)
    }

    /// Whether it goes straight to the PFS: no faster than that takes it, so that nobody's flush
    /// waits for what others have left in the page cache.
    fn is_straight(&self, target: &Target) -> bool {
        matches!(target, Target::Buffer { tier, .. } if self.buffer.tiers().kind(*tier) == TierKind::Pfs)
    }

    /// lseek(2) for data and holes.
    pub fn seek(&self, handle: Handle, offset: u64, what: SeekWhat) -> Result<u64, Failure> {
        let (open, _) = self.buffer.opens().file(handle)?;
        let what = match what {
            SeekWhat::Data => Seek::Data,
            SeekWhat::Hole => Seek::Hole,
        };
        let target = self.target(&open)?;
        self.buffer.reach(&target)?;
        let found = target.object().seek(offset, what)?;
        Ok(found.ok_or(Errno::ENXIO)?)
    }
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
        (None, _) => return target.object().append(data),
    };
    if at.saturating_add(data.len() as u64) > limits::FILE_BYTES_MAX {
        return Err(Errno::EFBIG.into());
    }
    let written = target.object().write_at(data, at)?;
    Ok((written, at + written as u64))
}

/// Writes what was stored through a mapping: a file does not grow by that. The kernel of another
/// node may not know yet that the file has become shorter. What is beyond the end goes, as it does
/// where a page is shared by all.
fn store_back(
    open: &OpenFile,
    target: &Target,
    data: &[u8],
    offset: u64,
) -> std::io::Result<(usize, u64)> {
    let _end = open.end.lock();
    let left = target.object().stat()?.size.saturating_sub(offset);
    let (mut stored, within) = (0, data.len().min(left as usize));
    while stored < within {
        let at = offset + stored as u64;
        match write_object(target, &data[stored..within], Some(at))? {
            (0, _) => return Err(std::io::ErrorKind::WriteZero.into()),
            (more, _) => stored += more,
        }
    }
    Ok((data.len(), offset + within as u64))
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::sync::Arc;

    use forebay_namespace::{File, NsError};
    use forebay_testkit::{LoopFs, needs_root};
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::{Errno, Ino, ObjectId, OpenFlags, SetAttr};
    use forebay_wire::{Link, WriteHow};

    use crate::buffer::target::Target;
    use crate::drain::picking::Line;
    use crate::rooms::Rooms;
    use crate::testing::{Lab, answer, create, drain, me, recorded};

    /// As an fsync does that means the PFS.
    fn flush_to_pfs(rooms: &Rooms, object: ObjectId) {
        rooms.buffer.queue().add_urgent(object);
        let batch = rooms.drain.next_batch(Line::OWN);
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
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
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
        assert_eq!(answer(written), Ok(Some(7)));
        rooms.files.release(opened.handle).expect("close");
        drain(rooms);
        assert_eq!(lab.on_pfs("f"), b"CONTENT");
    }

    #[test]
    fn what_is_written_back_makes_no_file_longer() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        let back = WriteHow {
            write_back: true,
            ..WriteHow::WAITING
        };
        // A page is written back to the end that its kernel knows.
        for (offset, bytes) in [(4, &b"ENDED HERE"[..]), (7, b"behind"), (1 << 20, b"far")] {
            let written = rooms.files.write(handle, offset, bytes, back);
            assert_eq!(answer(written), Ok(Some(bytes.len())), "at {offset}");
        }
        let mut found = [0; 20];
        let read = rooms.files.read(handle, 0, &mut found);
        assert_eq!(answer(read), Ok(7));
        assert_eq!(&found[..7], b"contEND");
        rooms.files.release(handle).expect("close");
    }

    #[test]
    fn what_a_device_or_the_store_has_said_reaches_who_answers_the_request() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        flash.inject(Operation::Read, When::Nth(1), Effect::Fail(Errno::EIO));
        let read = rooms.files.read(handle, 0, &mut [0; 7]);
        let failure = read.expect_err("its device fails");
        let said = std::io::Error::from_raw_os_error(libc::EIO).to_string();
        assert_eq!((failure.errno(), failure.to_string()), (Errno::EIO, said));
        assert!(failure.source().is_some_and(|s| s.is::<std::io::Error>()));
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let file = rooms.buffer.files().pop().expect("file");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        lab.store.fail_from(lab.pfs("f"));
        let how = WriteHow::WAITING;
        let written = rooms.files.write(opened.handle, 0, b"CONTENT", how);
        let failure = written.expect_err("its store fails");
        let said = failure.to_string();
        assert!(said.starts_with("metadata store: "), "{said}");
        assert!(failure.source().is_some_and(|s| s.is::<NsError>()));
        lab.store.heal();
        rooms.files.release(opened.handle).expect("close");
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
            .open(file.ino, OpenFlags(libc::O_RDONLY as u32), Some(0))
            .expect("open");
        let (open, _) = rooms.buffer.opens().file(opened.handle).expect("open");
        assert!(open.is_passthrough());
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
            let opened = rooms.files.open(find(name), flags, None);
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
        assert_eq!(answer(open(b"i", 0)), Err(refused));
        assert_eq!(answer(open(b"i", libc::O_APPEND)), Err(refused));
        assert_eq!(answer(open(b"a", 0)), Err(refused));
        for name in [b"i", b"a"] {
            let cut = rooms.files.setattr(find(name), None, &cut, me());
            assert_eq!(answer(cut.map(drop)), Err(refused));
        }
        let handle = open(b"a", libc::O_APPEND).expect("open");
        assert_eq!(answer(open(b"a", 0)), Err(refused), "beside another");
        let written = rooms.files.write(handle, 5, b"more\n", append);
        assert_eq!(answer(written), Ok(Some(5)));
        // As from a mapping; an append would go elsewhere.
        let over = rooms.files.write(handle, 0, b"LINE", WriteHow::WAITING);
        assert_eq!(answer(over), Err(refused));
        let cut = rooms.files.setattr(find(b"a"), Some(handle), &cut, me());
        assert_eq!(answer(cut.map(drop)), Err(refused));
        rooms.files.release(handle).expect("close");
        let root = rooms.base.ns().resolve(b"in").expect("there").0;
        for name in [b"i", b"a"] {
            let brought = rooms
                .files
                .bring_in(&root, name, (None, None), false, &|_| ());
            assert_eq!(answer(brought.map(drop)), Err(Errno::EMLINK));
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
        let made = rooms.files.create(&link, 0o644, flags, me(), None);
        assert_eq!(answer(made.map(drop)), Err(refused));
        assert_eq!(lab.on_pfs("in/i"), b"line\n");
        assert_eq!(lab.on_pfs("in/a"), b"line\nmore\n");
    }

    #[test]
    fn what_changes_a_file_after_its_last_close_is_drained() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let file = create_drained(rooms);
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        let (open, _) = rooms.buffer.opens().file(opened.handle).expect("open");
        // The PFS did not answer; the program was told so, and has closed the file.
        rooms.files.release(opened.handle).expect("close");
        let written = rooms
            .files
            .write_to(&open, (0, b"CONTENT"), WriteHow::WAITING);
        assert!(file.lock().residency.writing, "nobody will close it");
        assert_eq!(answer(rooms.files.absorb_late(&open, written)), Ok(Some(7)));
        assert!(!file.lock().residency.writing);
        drain(rooms);
        assert_eq!(lab.on_pfs("f"), b"CONTENT");
    }

    #[test]
    fn what_was_noted_before_the_last_close_and_written_after_it_is_on_record() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", &[1; 39]);
        let file = rooms.buffer.files().pop().expect("file");
        let late = std::time::Duration::from_millis(500);
        flash.inject(Operation::Write, When::Nth(1), Effect::Delay(late));
        let before = flash.calls(Operation::Write);
        std::thread::scope(|scope| {
            let write =
                scope.spawn(|| answer(rooms.files.write(handle, 39, &[2; 27], WriteHow::WAITING)));
            while flash.calls(Operation::Write) == before {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            rooms.files.release(handle).expect("close");
            {
                let state = file.lock();
                let known = state.is_written() || state.meta.size == 66;
                assert!(known, "a kill now would leave it damaged");
            }
            assert_eq!(write.join().expect("thread"), Ok(Some(27)));
        });
        assert_eq!(recorded(&file), (66, false));
        drain(rooms);
        assert!(!file.lock().is_dirty(), "{:?}", rooms.base.errors().all());
    }

    /// Creates `f` while another client finds it and opens it to read, before the creator has it
    /// open. Somebody joins and keeps it open; both others close it. The file, and the handle.
    fn hold_beside_an_early_reader(rooms: &Arc<Rooms>) -> (Arc<File>, forebay_types::Handle) {
        use forebay_types::failpoint::{self, Point};
        let early = rooms.clone();
        let (tell, told) = std::sync::mpsc::channel();
        failpoint::meanwhile(Point::CreateNamed, move || {
            // On a thread of its own: it may have to wait for the creator.
            std::thread::spawn(move || {
                let found = early.base.ns().lookup(Ino::ROOT, b"f").expect("there");
                let flags = OpenFlags(libc::O_RDONLY as u32);
                let opened = answer(early.files.open(found.attr.ino, flags, None));
                tell.send(opened.expect("open").0.handle).expect("told");
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
        });
        let creator = create(rooms, b"f", &[1; 39]);
        let reader = told.recv().expect("opened");
        let file = rooms.buffer.files().pop().expect("file");
        let holder = open(rooms, &file).expect("open");
        rooms.files.release(creator).expect("close");
        rooms.files.release(reader).expect("close");
        (file, holder)
    }

    fn open(rooms: &Rooms, file: &File) -> Result<forebay_types::Handle, Errno> {
        let flags = OpenFlags(libc::O_RDWR as u32);
        let opened = answer(rooms.files.open(file.ino, flags, None));
        opened.map(|(opened, _)| opened.handle)
    }

    #[test]
    fn who_keeps_a_new_file_open_that_was_opened_before_its_creator_had_it_goes_where_it_goes() {
        let (lab, _) = Lab::with_memory();
        let rooms = lab.shared_rooms();
        let (file, holder) = hold_beside_an_early_reader(&rooms);
        let close_written = |at: u64, bytes: &[u8]| {
            let other = open(&rooms, &file).expect("open");
            let written = rooms.files.write(other, at, bytes, WriteHow::WAITING);
            assert_eq!(answer(written), Ok(Some(bytes.len())));
            rooms.files.release(other).expect("close");
        };
        close_written(0, &[3; 39]);
        // As before a rename: to the table nobody has it open, so it moves to flash.
        rooms.files.make_stable(&file).expect("stable");
        close_written(39, &[2; 27]);
        rooms.files.release(holder).expect("close");
        let (shown, state) = (open(&rooms, &file), recorded(&file));
        assert!(shown.is_ok(), "{shown:?}, record: {state:?}");
        assert_eq!(state.0, 66);
        rooms.files.release(shown.expect("open")).expect("close");
    }

    #[test]
    fn who_opens_a_new_file_before_its_creator_has_it_open_takes_nothing_from_it() {
        let lab = Lab::new();
        let rooms = lab.shared_rooms();
        // It stays open, whoever else closes it.
        let (file, holder) = hold_beside_an_early_reader(&rooms);
        let is_open = rooms.buffer.opens().by_ino(file.ino).is_some();
        // Another writer's close comes between what the holder notes and what it writes.
        let other = open(&rooms, &file).expect("open");
        let written = rooms.files.write(other, 0, &[3; 39], WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(39)));
        let (held, _) = rooms.buffer.opens().file(holder).expect("open");
        let target = rooms.files.target(&held).expect("target");
        rooms.files.note_change(&held, &target).expect("noted");
        rooms.files.release(other).expect("close");
        target.object().write_at(&[2; 27], 39).expect("write");
        rooms.files.note_changed(&target).expect("noted");
        drop(target);
        let shown = open(&rooms, &file);
        let state = recorded(&file);
        assert!(
            shown.is_ok(),
            "{shown:?}, open before: {is_open}, record: {state:?}"
        );
        assert!(is_open, "the table has lost it");
    }
}
