//! Files that went straight to the PFS: their objects become the files by a rename.

use forebay_namespace::{Copy, Demotion, Placed};
use forebay_tiers::{CopyReport, FileObject, Object, PfsDir, PfsStat, sums};
use forebay_types::{Errno, failpoint};

use super::copying::give_attributes;
use super::publishing::{Directories, not_flushed, settle};
use super::{Unfinished, give_up_keeping, on_pfs};
use crate::drain::Drain;

/// Whether an object in the overflow can become the file on the PFS: nobody has it open, it has
/// one name, and that is in the same file system. Others are copied.
pub(super) fn may_move(drain: &Drain, demotion: &Demotion) -> bool {
    let file = &demotion.file;
    file.lock().names.len() == 1
        && drain.buffer.opens().by_ino(file.ino).is_none()
        && is_same_file_system(drain, demotion)
}

/// What cannot be asked is found out by the rename.
fn is_same_file_system(drain: &Drain, demotion: &Demotion) -> bool {
    let pfs = drain.ns.pfs();
    let shelf = drain
        .buffer
        .tiers()
        .overflow_shelf(pfs, demotion.file.object);
    let from = shelf.and_then(|dir| pfs.stat_dir(&dir));
    match (from, pfs.stat_dir(&demotion.handle)) {
        (Ok(from), Ok(to)) => from.id.dev == to.id.dev,
        _ => true,
    }
}

/// A file that went straight to the PFS: its object becomes the file by a rename. `false`: it
/// cannot, and nothing has come of it, as where the directory is mounted from elsewhere in the same
/// file system; then it is to be copied.
pub(super) fn finish(drain: &Drain, demotion: &Demotion) -> bool {
    match publish(drain, demotion) {
        Err(Unfinished::Failed(failure))
            if failure.errno() == Errno::EXDEV && drain.ns.is_settled(demotion) =>
        {
            return false;
        }
        Err(failure) => give_up_keeping(drain, demotion, failure),
        Ok(()) => {}
    }
    true
}

fn publish(drain: &Drain, demotion: &Demotion) -> Result<(), Unfinished> {
    let object = demotion.file.object;
    let pfs = drain.ns.pfs();
    let name = object.to_string().into_bytes();
    let shelf = drain.buffer.tiers().overflow_shelf(pfs, object);
    let dir = shelf.map_err(on_pfs("overflow directory"))?;
    let (file, moved) = open_on_shelf_or_moved(drain, demotion, &dir, &name)?;
    let stat = pfs
        .stat_file(file.file())
        .map_err(on_pfs("overflow object"))?;
    if let Some((_, error)) = drain
        .ns
        .note_temporaries(&[(demotion, as_file(demotion, stat))])
        .pop()
    {
        return Err(error.into());
    }
    failpoint::hit(failpoint::Point::OverflowNoted);
    file.sync(false).map_err(on_pfs("flush"))?;
    let sums = match sums(&file, stat.size, &|| !drain.ns.is_current(demotion)) {
        Err(_) if !drain.ns.is_current(demotion) => return Err(Unfinished::Superseded),
        other => other.map_err(on_pfs("reading it back"))?,
    };
    // Until the object is the file on the PFS and its record is gone, nobody opens it.
    let claim = drain.buffer.opens().claim(demotion.file.ino);
    if claim.is_open() || !drain.ns.is_current(demotion) {
        return Err(Unfinished::Superseded);
    }
    if !moved {
        become_plain(drain, demotion, &file)?;
    }
    failpoint::hit(failpoint::Point::OverflowPlain);
    drain.ns.sync()?;
    failpoint::hit(failpoint::Point::OverflowRecords);
    let placed = drain.ns.place(demotion, Copy::Itself(&dir, &name));
    failpoint::hit(failpoint::Point::OverflowPlaced);
    let placed_or_not_known = matches!(placed, Ok(Placed::Published | Placed::Conflict { .. }))
        || !drain.ns.is_settled(demotion);
    if !placed_or_not_known {
        let identity = drain.buffer.identity(&demotion.file, false);
        file.set_identity(&identity).map_err(on_pfs("attributes"))?;
    }
    let report = CopyReport {
        data_bytes: 0,
        sums,
    };
    match placed? {
        Placed::Superseded => return Err(Unfinished::Superseded),
        placed => {
            if let Err(failure) = flush_names(drain, demotion) {
                drain.ns.unsettle(demotion);
                return Err(failure);
            }
            settle(drain, &[(demotion, &report, &placed)]);
        }
    }
    failpoint::hit(failpoint::Point::OverflowSettled);
    drain.buffer.evict_unopened(&demotion.file);
    drop(claim);
    drain.buffer.note_overstay(&demotion.file);
    drain.buffer.wake_collector();
    Ok(())
}

/// The object, and whether an earlier try, which the PFS has not answered, has moved it.
fn open_on_shelf_or_moved(
    drain: &Drain,
    demotion: &Demotion,
    shelf: &PfsDir,
    name: &[u8],
) -> Result<(FileObject, bool), Unfinished> {
    let (opened, moved) = match drain.ns.pfs().open_file(shelf, name, true) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => match drain.ns.open_moved(demotion)? {
            Some(moved) => (Ok(moved), true),
            None => (Err(e), false),
        },
        opened => (opened, false),
    };
    let opened = opened.map_err(on_pfs("overflow object"))?;
    Ok((FileObject::new(opened), moved))
}

/// Puts the names of the file on stable storage: it may have got a second one meanwhile.
fn flush_names(drain: &Drain, demotion: &Demotion) -> Result<(), Unfinished> {
    let mut dirs = Directories::default();
    dirs.add(drain, demotion)?;
    match dirs.flush(drain).into_values().next() {
        Some(errno) => Err(Unfinished::Failed(not_flushed(errno))),
        None => Ok(()),
    }
}

/// What the object looks like once it has the attributes of its file.
fn as_file(demotion: &Demotion, stat: PfsStat) -> PfsStat {
    let meta = &demotion.meta;
    PfsStat {
        mode: libc::S_IFREG | u32::from(meta.perm),
        uid: meta.uid,
        gid: meta.gid,
        ..stat
    }
}

/// Gives an object the attributes of the file that it becomes.
fn become_plain(drain: &Drain, demotion: &Demotion, file: &FileObject) -> Result<(), Unfinished> {
    give_attributes(drain, demotion, file)?;
    file.clear_identity().map_err(on_pfs("attributes"))?;
    file.sync(false).map_err(on_pfs("flush"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use forebay_namespace::File;
    use forebay_testkit::{LoopFs, needs_root};
    use forebay_tiers::TierKind;
    use forebay_types::{Errno, Ino, OpenFlags};
    use rustix::mount::{UnmountFlags, mount_bind, unmount};

    use crate::buffer::tierset::OVERFLOW;
    use crate::testing::{Lab, answer, create, create_in, drain};

    /// What outgrows the buffer in the directory `in` of the PFS.
    fn outgrow(lab: &Lab) {
        let rooms = lab.rooms();
        let dir = rooms.base.ns().lookup(Ino::ROOT, b"in").expect("there");
        rooms
            .files
            .release(create_in(rooms, dir.attr.ino, b"f", &[7; 4 << 20]))
            .expect("close");
        let file = rooms.base.ns().lookup(dir.attr.ino, b"f").expect("found");
        let file = file.file.expect("in the burst buffer");
        assert_eq!(rooms.buffer.tiers().kind(file.tier()), TierKind::Pfs);
        drain(rooms);
        let errors = rooms.base.errors().all();
        assert_eq!(errors.len(), 0, "{errors:?}");
        assert!(file.lock().is_unlinked(), "it stays in the overflow");
        assert_eq!(lab.on_pfs("in/f"), vec![7; 4 << 20]);
        rooms.files.collect_garbage();
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    fn small() -> Lab {
        let lab = Lab::with(|settings| {
            settings.ssd[0].capacity_bytes = Some(1 << 20);
            settings.wait_for_space = Duration::ZERO;
        });
        std::fs::create_dir(lab.pfs("in")).expect("mkdir");
        lab
    }

    #[test]
    fn what_outgrows_the_buffer_in_an_inner_file_system_is_copied_there() {
        if needs_root() {
            return;
        }
        let lab = small();
        let folder = tempfile::tempdir().expect("temporary directory");
        let _inner = LoopFs::new(folder.path(), &lab.pfs("in"), 32 << 20);
        outgrow(&lab);
    }

    #[test]
    fn what_cannot_be_renamed_into_a_directory_of_the_same_file_system_is_copied_there() {
        if needs_root() {
            return;
        }
        struct Bind(std::path::PathBuf);
        impl Drop for Bind {
            fn drop(&mut self) {
                unmount(&self.0, UnmountFlags::DETACH).expect("unmount");
            }
        }
        let lab = small();
        std::fs::create_dir(lab.pfs("elsewhere")).expect("mkdir");
        mount_bind(lab.pfs("elsewhere"), lab.pfs("in")).expect("mount");
        let _bind = Bind(lab.pfs("in"));
        outgrow(&lab);
    }

    /// A lab with a file that is clean, in the overflow, and could not leave it.
    fn overstaying() -> (Lab, Arc<File>) {
        let lab = Lab::with(|settings| {
            settings.ssd[0].capacity_bytes = Some(1 << 20);
            settings.wait_for_space = Duration::ZERO;
        });
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", &[7; 4 << 20]))
            .expect("close");
        let file = rooms.base.ns().lookup(Ino::ROOT, b"f").expect("found").file;
        let file = file.expect("in the burst buffer");
        assert_eq!(rooms.buffer.tiers().kind(file.tier()), TierKind::Pfs);
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let (reader, _) = rooms.files.open(file.ino, flags, None).expect("open");
        drain(rooms);
        assert!(file.lock().residency.clean);
        lab.store.fail_from(lab.pfs("f"));
        rooms.files.release(reader.handle).expect("close");
        assert!(lab.store.fired() > 0 && !file.lock().is_unlinked());
        (lab, file)
    }

    #[test]
    fn what_could_not_leave_the_overflow_leaves_it_later() {
        let (lab, file) = overstaying();
        let rooms = lab.rooms();
        rooms.buffer.leave_overflow_late();
        assert!(!file.lock().is_unlinked());
        lab.store.heal();
        rooms.buffer.leave_overflow_late();
        assert!(file.lock().is_unlinked());
        assert_eq!(rooms.buffer.overstaying_files(), 0);
        assert_eq!(lab.on_pfs("f"), vec![7; 4 << 20]);
    }

    #[test]
    fn what_has_become_the_file_on_the_pfs_opens_though_its_record_could_not_go() {
        let (lab, file) = overstaying();
        let rooms = lab.rooms();
        // As a rename to its name does.
        let overflow = rooms.buffer.tiers().get(OVERFLOW).expect("overflow");
        overflow.tier.remove(file.object).expect("remove");
        let open = || {
            rooms
                .files
                .open(file.ino, OpenFlags(libc::O_RDONLY as u32), None)
        };
        assert_eq!(answer(open()).err(), Some(Errno::EIO));
        lab.store.heal();
        let (opened, _) = open().expect("open");
        let mut found = [0; 8];
        assert_eq!(
            answer(rooms.files.read(opened.handle, 0, &mut found)),
            Ok(8)
        );
        assert_eq!(found, [7; 8]);
    }
}
