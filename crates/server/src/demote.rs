//! Demoters: they copy dirty files to the PFS, verify, and publish them.
//!
//! A batch shares its flushes. For every file: temporary file, copy, attributes, flush, read back,
//! record flushed, rename into place, directory flushed, record marked clean. Whatever fails, the
//! object stays, the temporary file goes, and the file is tried again.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_kv::Durability as KvDurability;
use forebay_namespace::{Demotion, Dir, File, NsError, Placed};
use forebay_tiers::{
    ActAs, CopyControl, CopyError, CopyReport, FileObject, Object, ObjectStat, PfsDir, TierKind,
    apply_metadata, copy, verify,
};
use forebay_types::{Errno, ObjectId, failpoint};

use crate::core::Core;
use crate::engine::start_writeback;
use crate::settings::Verify;

/// From so many files on, one flush of the whole PFS is cheaper than one for each.
const SYNC_TOGETHER_FILES: usize = 8;

/// Why a demotion did not end in a published file.
#[derive(Debug)]
enum Failure {
    /// Changed meanwhile, or gone: nothing is wrong.
    Superseded,
    /// With errno and a line for a person.
    Error(Errno, String),
}

impl From<NsError> for Failure {
    fn from(error: NsError) -> Failure {
        Failure::Error(error.errno(), error.to_string())
    }
}

fn on_pfs(what: &str) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| Failure::Error((&error).into(), format!("{what} on the PFS: {error}"))
}

/// A file on its way.
struct Copying {
    demotion: Demotion,
    source: Arc<dyn Object>,
    /// What the source looked like before the copy.
    before: ObjectStat,
    file: FileObject,
    report: CopyReport,
}

/// What a copy leaves, without the demotion it belongs to.
struct Parts {
    source: Arc<dyn Object>,
    before: ObjectStat,
    file: FileObject,
    report: CopyReport,
}

impl Parts {
    fn of(self, demotion: Demotion) -> Copying {
        let Parts {
            source,
            before,
            file,
            report,
        } = self;
        Copying {
            demotion,
            source,
            before,
            file,
            report,
        }
    }
}

/// One demoter thread.
pub fn run(core: &Arc<Core>) {
    while !core.is_ending() {
        let batch = core.drain.next_batch(core);
        if !batch.is_empty() {
            demote_batch(core, &batch);
        }
    }
}

/// Demotes files together.
pub fn demote_batch(core: &Core, objects: &[ObjectId]) {
    let mut copied = Vec::new();
    for &object in objects {
        let Some(demotion) = begin(core, object) else {
            continue;
        };
        if core.tiers.kind(demotion.tier) == TierKind::Pfs && may_move(core, &demotion) {
            finish_overflow(core, &demotion);
            continue;
        }
        match copy_one(core, &demotion) {
            Ok(parts) => copied.push(parts.of(demotion)),
            Err(failure) => give_up(core, &demotion, failure),
        }
    }
    let flushed = flush(core, copied);
    if !flushed.is_empty() {
        failpoint::hit(failpoint::Point::DemoteFlushed);
    }
    let verified = verify_all(core, flushed);
    publish(core, verified);
    core.absorb_conflicts();
}

/// Whether an object in the overflow can become the file on the PFS: nobody has it open, and it has
/// one name. Others are copied.
fn may_move(core: &Core, demotion: &Demotion) -> bool {
    let file = &demotion.file;
    file.lock().names.len() == 1 && core.opens.by_ino(file.ino).is_none()
}

/// Starts the demotion of a file that nobody writes.
fn begin(core: &Core, object: ObjectId) -> Option<Demotion> {
    let Some(file) = core.file(object) else {
        core.drain.finished(object, false, false);
        return None;
    };
    let claim = core.opens.claim(file.ino);
    // A file under unseen writing is marked so, and is not begun.
    let begun = core.ns.begin_demotion(&file);
    drop(claim);
    match begun {
        Ok(Some(demotion)) => Some(demotion),
        Ok(None) => {
            // Clean, unlinked, or a writer has it: the writer's close will put it back.
            core.drain.finished(object, false, false);
            None
        }
        Err(error) => {
            note_failure(
                core,
                &file,
                error.errno(),
                &format!("its directory on the PFS: {error}"),
            );
            core.drain.finished(object, true, true);
            None
        }
    }
}

fn note_failure(core: &Core, file: &File, errno: Errno, reason: &str) {
    {
        let mut state = file.lock();
        state.error_unreported |= state.error != Some(errno);
        state.error = Some(errno);
    }
    core.report(
        file.path(),
        errno,
        format!("not demoted: {reason}; the data is kept and tried again"),
    );
}

/// Creates and fills the temporary file, as the owner where the PFS lets them.
fn copy_one(core: &Core, demotion: &Demotion) -> Result<Parts, Failure> {
    let on_object = |e: std::io::Error| {
        Failure::Error((&e).into(), format!("its object cannot be opened: {e}"))
    };
    let source = core
        .tiers
        .open_object(demotion.tier, demotion.file.object)
        .map_err(on_object)?;
    let before = source.stat().map_err(on_object)?;
    let temporary = create_temporary(core, demotion).map_err(on_pfs("temporary file"))?;
    failpoint::hit(failpoint::Point::DemoteTemporary);
    let ino = core
        .ns
        .pfs()
        .stat_file(&temporary)
        .map_err(on_pfs("temporary file"))?
        .id
        .ino;
    core.ns.note_temporary(demotion, ino)?;
    let destination = FileObject::new(temporary);
    let stop = || !core.ns.is_current(demotion);
    let moved_bytes = AtomicU64::new(0);
    let moved = |bytes| {
        core.drain.moved(bytes);
        if core.engine.is_demotion_limited() {
            let from = moved_bytes.load(Ordering::Relaxed);
            start_writeback(&destination, from, bytes);
        }
        moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        core.engine
            .pace_demotion(bytes, &|| stop() || core.is_ending());
    };
    let control = CopyControl {
        stop: &stop,
        moved: &moved,
    };
    let report = copy(&*source, &destination, &control).map_err(copy_failure)?;
    failpoint::hit(failpoint::Point::DemoteCopied);
    give_attributes(core, demotion, &destination)?;
    failpoint::hit(failpoint::Point::DemoteAttributes);
    Ok(Parts {
        source,
        before,
        file: destination,
        report,
    })
}

fn copy_failure(error: CopyError) -> Failure {
    match error {
        CopyError::Stopped => Failure::Superseded,
        CopyError::Source(e) => {
            Failure::Error((&e).into(), format!("its object cannot be read: {e}"))
        }
        CopyError::Destination(e) => on_pfs("copy")(e),
        other => Failure::Error(other.errno(), other.to_string()),
    }
}

fn create_temporary(core: &Core, demotion: &Demotion) -> std::io::Result<fs::File> {
    let pfs = core.ns.pfs();
    let create = || match pfs.create_temporary(&demotion.handle, &demotion.temporary, 0o600) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
            // Left by a crash before it was on record; the name says that it is ours.
            pfs.unlink(&demotion.handle, &demotion.temporary)?;
            pfs.create_temporary(&demotion.handle, &demotion.temporary, 0o600)
        }
        other => other,
    };
    let meta = &demotion.meta;
    if meta.uid == 0 {
        return create();
    }
    let first = {
        let _owner = ActAs::user(meta.uid, meta.gid, &[])?;
        create()
    };
    match first {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => create(),
        other => other,
    }
}

fn flush(core: &Core, copied: Vec<Copying>) -> Vec<Copying> {
    if copied.len() >= SYNC_TOGETHER_FILES {
        return match core.ns.pfs().sync() {
            Ok(()) => copied,
            Err(error) => {
                let errno = Errno::from(&error);
                for one in &copied {
                    give_up(
                        core,
                        &one.demotion,
                        Failure::Error(errno, format!("flush of the PFS: {error}")),
                    );
                }
                Vec::new()
            }
        };
    }
    let keep = |one: Copying| match one.file.sync(false) {
        Ok(()) => Some(one),
        Err(error) => {
            give_up(core, &one.demotion, on_pfs("flush")(error));
            None
        }
    };
    copied.into_iter().filter_map(keep).collect()
}

/// Reads the copies back. Then the records of the temporary files are flushed: from here on a crash
/// finds out whether a rename has happened.
fn verify_all(core: &Core, copied: Vec<Copying>) -> Vec<Copying> {
    let mut verified = Vec::new();
    for one in copied {
        match verify_one(core, &one) {
            Ok(()) => verified.push(one),
            Err(failure) => give_up(core, &one.demotion, failure),
        }
    }
    if verified.is_empty() {
        return verified;
    }
    failpoint::hit(failpoint::Point::DemoteVerified);
    match core.ns.sync() {
        Ok(()) => {
            failpoint::hit(failpoint::Point::DemoteRecords);
            verified
        }
        Err(error) => {
            for one in &verified {
                give_up(
                    core,
                    &one.demotion,
                    Failure::Error(error.errno(), error.to_string()),
                );
            }
            Vec::new()
        }
    }
}

fn verify_one(core: &Core, one: &Copying) -> Result<(), Failure> {
    if core.settings.demotion.verify == Verify::Media {
        one.file
            .drop_cache()
            .map_err(on_pfs("dropping its cache"))?;
    }
    verify(&one.file, &one.report, &|| {
        !core.ns.is_current(&one.demotion)
    })
    .map_err(copy_failure)?;
    // Writes that the server does not see show here.
    let now = one
        .source
        .stat()
        .map_err(|e| Failure::Error((&e).into(), format!("its object: {e}")))?;
    let same = (now.size, now.mtime) == (one.before.size, one.before.mtime);
    if same {
        Ok(())
    } else {
        Err(Failure::Superseded)
    }
}

fn publish(core: &Core, verified: Vec<Copying>) {
    let mut placed = Vec::new();
    let mut dirs: HashMap<*const Dir, (Arc<Dir>, PfsDir)> = HashMap::new();
    for one in verified {
        match core.ns.place(&one.demotion, None) {
            Ok(Placed::Superseded) => give_up(core, &one.demotion, Failure::Superseded),
            Ok(outcome) => {
                let demotion = &one.demotion;
                let dir = (demotion.dir.clone(), demotion.handle.clone());
                dirs.insert(Arc::as_ptr(&demotion.dir), dir);
                placed.push((one.demotion, one.report, outcome));
            }
            Err(error) => give_up(core, &one.demotion, error.into()),
        }
    }
    let mut unflushed: HashMap<*const Dir, Errno> = HashMap::new();
    for (key, (dir, handle)) in &dirs {
        if let Err(error) = core.ns.pfs().sync_dir(handle) {
            let reason = format!("flush of the directory on the PFS: {error}");
            core.report(dir.path(), (&error).into(), reason);
            unflushed.insert(*key, (&error).into());
        }
    }
    if !dirs.is_empty() {
        failpoint::hit(failpoint::Point::DemoteDir);
    }
    for (demotion, report, outcome) in placed {
        match unflushed.get(&Arc::as_ptr(&demotion.dir)) {
            Some(errno) => {
                let failure = Failure::Error(*errno, "its directory was not flushed".into());
                give_up(core, &demotion, failure);
            }
            None => {
                settle(core, &demotion, &report, &outcome);
                core.leave_overflow(&demotion.file);
            }
        }
    }
}

fn settle(core: &Core, demotion: &Demotion, report: &CopyReport, outcome: &Placed) {
    let object = demotion.file.object;
    let path = demotion.dir.path_of(&demotion.name);
    // Whoever waits for the file finds the conflict in `status`.
    core.absorb_conflicts();
    match core
        .ns
        .confirm(demotion, report.crc, KvDurability::Buffered)
    {
        Ok(current) => {
            if *outcome == Placed::Published {
                core.errors.clear(&path);
            }
            core.counters
                .demoted_bytes
                .fetch_add(report.logical_bytes, Ordering::Relaxed);
            core.counters.demoted_files.fetch_add(1, Ordering::Relaxed);
            if current {
                core.ledger.set_dirty(object, false);
            }
            core.drain.finished(object, !current, false);
        }
        Err(error) => {
            note_failure(core, &demotion.file, error.errno(), &error.to_string());
            core.drain.finished(object, true, true);
        }
    }
}

fn give_up(core: &Core, demotion: &Demotion, failure: Failure) {
    let pfs = core.ns.pfs();
    match pfs.unlink(&demotion.handle, &demotion.temporary) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
        Err(e) => tracing::warn!(
            "temporary file {} stays on the PFS: {e}",
            demotion.temporary.escape_ascii()
        ),
    }
    failpoint::hit(failpoint::Point::DemoteGivenUp);
    give_up_keeping(core, demotion, failure);
}

fn give_up_keeping(core: &Core, demotion: &Demotion, failure: Failure) {
    let file = &demotion.file;
    let (errno, failed) = match &failure {
        Failure::Superseded => (None, false),
        Failure::Error(errno, reason) => {
            let reason = format!("not demoted: {reason}; the data is kept and tried again");
            core.report(file.path(), *errno, reason);
            (Some(*errno), true)
        }
    };
    if let Err(error) = core.ns.abandon(demotion, errno) {
        core.report(file.path(), error.errno(), error.to_string());
    }
    let written = core
        .opens
        .by_ino(file.ino)
        .is_some_and(|open| open.is_written());
    let again = !written && !file.lock().is_unlinked();
    core.drain.finished(file.object, again, failed);
}

/// A file that went straight to the PFS: its object becomes the file by a rename.
fn finish_overflow(core: &Core, demotion: &Demotion) {
    if let Err(failure) = publish_overflow(core, demotion) {
        give_up_keeping(core, demotion, failure);
    }
}

fn publish_overflow(core: &Core, demotion: &Demotion) -> Result<(), Failure> {
    let object = demotion.file.object;
    let pfs = core.ns.pfs();
    let shelf = format!(
        "{}/objects/{:02x}",
        crate::tierset::overflow_name(core.ns.instance()),
        object.0 & 0xff
    );
    let name = object.to_string().into_bytes();
    let dir = pfs
        .open_dir_path(shelf.as_bytes())
        .map_err(on_pfs("overflow directory"))?;
    let file = FileObject::new(
        pfs.open_file(&dir, &name, true)
            .map_err(on_pfs("overflow object"))?,
    );
    let stat = pfs
        .stat_file(file.file())
        .map_err(on_pfs("overflow object"))?;
    core.ns.note_temporary(demotion, stat.id.ino)?;
    failpoint::hit(failpoint::Point::OverflowNoted);
    file.sync(false).map_err(on_pfs("flush"))?;
    let crc = match forebay_tiers::checksum(&file, stat.size, &|| !core.ns.is_current(demotion)) {
        Err(_) if !core.ns.is_current(demotion) => return Err(Failure::Superseded),
        other => other.map_err(on_pfs("reading it back"))?,
    };
    // Until the object is the file on the PFS and its record is gone, nobody opens it.
    let claim = core.opens.claim(demotion.file.ino);
    if claim.is_open() || !core.ns.is_current(demotion) {
        return Err(Failure::Superseded);
    }
    become_plain(core, demotion, &file)?;
    failpoint::hit(failpoint::Point::OverflowPlain);
    core.ns.sync()?;
    failpoint::hit(failpoint::Point::OverflowRecords);
    let placed = core.ns.place(demotion, Some((&dir, &name)));
    failpoint::hit(failpoint::Point::OverflowPlaced);
    if !matches!(placed, Ok(Placed::Published | Placed::Conflict { .. })) {
        let identity = core.identity(&demotion.file, false);
        file.set_identity(&identity).map_err(on_pfs("attributes"))?;
    }
    let report = CopyReport {
        logical_bytes: stat.size,
        data_bytes: 0,
        crc,
    };
    match placed? {
        Placed::Superseded => return Err(Failure::Superseded),
        placed => {
            if let Err(error) = pfs.sync_dir(&demotion.handle) {
                let reason = format!("flush of the directory on the PFS: {error}");
                core.report(demotion.dir.path(), (&error).into(), reason);
            }
            settle(core, demotion, &report, &placed);
        }
    }
    failpoint::hit(failpoint::Point::OverflowSettled);
    core.evict_unopened(&demotion.file);
    drop(claim);
    core.wake_collector();
    Ok(())
}

/// Gives a copy the attributes of its file. What the PFS cannot hold is reported.
fn give_attributes(core: &Core, demotion: &Demotion, file: &FileObject) -> Result<(), Failure> {
    let meta = &demotion.meta;
    let warnings = apply_metadata(
        core.ns.pfs(),
        file.file(),
        meta.uid,
        meta.gid,
        meta.perm,
        &demotion.xattrs,
        meta.atime,
        meta.mtime,
    )
    .map_err(on_pfs("attributes"))?;
    for warning in warnings {
        core.report(demotion.file.path(), Errno::EOPNOTSUPP, warning.to_string());
    }
    Ok(())
}

/// Gives an object the attributes of the file that it becomes.
fn become_plain(core: &Core, demotion: &Demotion, file: &FileObject) -> Result<(), Failure> {
    give_attributes(core, demotion, file)?;
    file.clear_identity().map_err(on_pfs("attributes"))?;
    file.sync(false).map_err(on_pfs("flush"))
}
