//! One copy: made as the owner, filled, and given the attributes of its file.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::{Copy, Demotion, NsError};
use forebay_policy::patience::SEEN_ON_PFS;
use forebay_tiers::{
    ActAs, Appearance, CopiesOut, CopyControl, CopyError, CopyReport, FileObject, MetadataWarning,
    Object, ObjectStat, Outside, OutsideError, PfsStat, PfsTree, WriteBehind, apply_metadata,
    copy_to_new, verify, wait_writeback,
};
use forebay_types::{Errno, Statfs, failpoint};

use super::{Unfinished, has_moved, on_pfs};
use crate::base::failure::Failure;
use crate::base::settings::Verify;
use crate::buffer::target::Target;
use crate::drain::Drain;
use crate::integrity::atrest::{Looked, Purpose};

/// Who moves an open file may wait for the drain: it is not waited for longer.
const STILL_OPEN_LIMIT: Duration = Duration::from_millis(100);

/// A copy on the PFS that is not published yet.
pub(super) struct Made {
    source: Arc<dyn Object>,
    /// What the source looked like before the copy.
    pub(super) before: ObjectStat,
    file: FileObject,
    named: bool,
    /// What the copy looks like with the attributes of its file.
    pub(super) stat: PfsStat,
    pub(super) report: CopyReport,
    /// It was flushed and read back where it was made.
    is_verified: bool,
    behind: WriteBehind,
}

impl Made {
    /// What is to be put in its place.
    pub(super) fn copy(&self) -> Copy<'_> {
        match self.named {
            true => Copy::Named(self.file.file()),
            false => Copy::Unnamed(self.file.file()),
        }
    }

    /// Puts it on stable storage.
    pub(super) fn sync(&self, pfs: &PfsTree) -> Result<(), Unfinished> {
        self.behind.check().map_err(on_pfs("flush"))?;
        pfs.sync_file(self.file.file()).map_err(on_pfs("flush"))
    }

    /// It was flushed with others: whether all of it has got there. The kernel tells its own
    /// descriptor.
    pub(super) fn check_flushed(&self) -> Result<(), Unfinished> {
        self.behind.check().map_err(on_pfs("flush"))?;
        wait_writeback(&self.file).map_err(on_pfs("flush"))
    }

    /// Reads the copy back, and sees whether its source has stood still.
    pub(super) fn check(&self, drain: &Drain, demotion: &Demotion) -> Result<(), Unfinished> {
        if drain.settings.demotion.verify == Verify::Media {
            let dropped = self.file.drop_cache();
            dropped.map_err(on_pfs("dropping its cache"))?;
        }
        let stop = || !drain.ns.is_current(demotion);
        if !self.is_verified {
            verify(&self.file, &self.report, &stop).map_err(copy_failure)?;
        }
        // Writes that the server does not see show here.
        let now = self
            .source
            .stat()
            .map_err(|e| Unfinished::Failed(Failure::of_io("its object", e)))?;
        match (now.size, now.mtime) == (self.before.size, self.before.mtime) {
            true => Ok(()),
            false => Err(Unfinished::Superseded),
        }
    }
}

fn on_object(error: std::io::Error) -> Unfinished {
    Unfinished::Failed(Failure::of_io("its object cannot be opened", error))
}

/// Opens what is to be copied.
pub(super) fn open_source(
    drain: &Drain,
    demotion: &Demotion,
) -> Result<Arc<dyn Object>, Unfinished> {
    let opened = drain
        .buffer
        .tiers()
        .open_object(demotion.tier, demotion.file.object)
        .or_else(|error| still_open(drain, demotion, error));
    // What is damaged is not put on the PFS.
    let tier = demotion.tier;
    match drain
        .integrity
        .look(&demotion.file, tier, &opened, Purpose::Copy, &|| false)
    {
        Ok(Looked::Sound | Looked::Unread(..)) => {}
        Ok(Looked::Wrong(problem)) => return Err(damaged(drain, demotion, problem)),
        Err(failure) => return Err(Unfinished::Failed(failure.about("its object"))),
    }
    opened.map_err(on_object)
}

/// Creates and fills the copy.
pub(super) fn make(
    drain: &Drain,
    demotion: &Demotion,
    source: Arc<dyn Object>,
) -> Result<Made, Unfinished> {
    let before = source.stat().map_err(on_object)?;
    let slot = drain.buffer.tiers().get(demotion.tier);
    let elsewhere = slot.and_then(|slot| slot.tier.copies_out());
    let elsewhere = elsewhere.filter(|_| before.size >= drain.settings.demotion.copy_out_min_bytes);
    let created = create(drain, demotion, elsewhere.is_some());
    let (file, named) = created.map_err(|error| not_created(drain, demotion, error))?;
    failpoint::hit(failpoint::Point::DemoteTemporary);
    let file = FileObject::new(file);
    let stop = || !drain.ns.is_current(demotion);
    let ahead_bytes = drain.plan.copy_ahead_bytes();
    let behind = WriteBehind::default();
    let moved = |bytes, end| {
        // First: what counts as moved has left the page cache, and a copy that is told to stop
        // leaves little to be written.
        behind.reached(&file, end, ahead_bytes);
        drain.buffer.queue().moved(demotion.file.object, bytes);
        drain.plan.notice_end_of_pause();
        drain
            .plan
            .engine()
            .pace_demotion(bytes, &|| stop() || drain.base.is_ending());
    };
    let control = CopyControl {
        stop: &stop,
        moved: &moved,
    };
    // What hangs on another node holds up no end.
    let stop_elsewhere = || stop() || drain.base.is_ending();
    let control_elsewhere = CopyControl {
        stop: &stop_elsewhere,
        moved: &moved,
    };
    let sealed = drain.integrity.content_on_flash(&demotion.file);
    let out = match elsewhere {
        Some(elsewhere) => copy_elsewhere(drain, demotion, elsewhere, &file, &control_elsewhere)?,
        None => None,
    };
    let is_verified = out.is_some();
    let report = match out {
        Some(report) => report,
        None => copy_to_new(&*source, &before, &file, &control).map_err(copy_failure)?,
    };
    if let Some(problem) = drain
        .integrity
        .is_other_content(&demotion.file, sealed, report.sums.crc)
    {
        return Err(damaged(drain, demotion, problem));
    }
    failpoint::hit(failpoint::Point::DemoteCopied);
    let stat = give_attributes(drain, demotion, &file)?;
    failpoint::hit(failpoint::Point::DemoteAttributes);
    Ok(Made {
        source,
        before,
        file,
        named,
        stat,
        report,
        is_verified,
        behind,
    })
}

/// Has the copy made where the object is; `None` if that node does not reach the file.
fn copy_elsewhere(
    drain: &Drain,
    demotion: &Demotion,
    elsewhere: &dyn CopiesOut,
    file: &FileObject,
    control: &CopyControl<'_>,
) -> Result<Option<CopyReport>, Unfinished> {
    let pfs = drain.ns.pfs();
    let stat = pfs.stat_file(file.file()).map_err(on_pfs("copy"))?;
    let mut path = demotion.dir.path();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend(&demotion.temporary);
    let to = Outside {
        path,
        ino: stat.id.ino,
        owner: (stat.uid, stat.gid),
        ahead_bytes: drain.plan.copy_ahead_bytes(),
        from_media: drain.settings.demotion.verify == Verify::Media,
    };
    match elsewhere.copy_out(demotion.file.object, &to, control) {
        Ok(report) => {
            await_length(pfs, file, report.sums.bytes).map_err(on_pfs("copy"))?;
            Ok(Some(report))
        }
        Err(OutsideError::Unreached(error)) => {
            let path = demotion.file.path();
            tracing::debug!("{}: copied here: {error}", path.escape_ascii());
            Ok(None)
        }
        Err(OutsideError::Copy(error)) => Err(copy_failure(error)),
    }
}

/// Until then this node's client of the PFS may tell of the file as it was when it was made.
fn await_length(pfs: &PfsTree, file: &FileObject, bytes: u64) -> std::io::Result<()> {
    let until = Instant::now() + SEEN_ON_PFS;
    while pfs.stat_file(file.file())?.size != bytes {
        if Instant::now() >= until {
            let why = "what another node has written is not seen on this one";
            return Err(std::io::Error::other(why));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What somebody has removed from its tier is there as long as a program has it open: an `fsync` of
/// that waits for this copy. Others have no business with it and meet the error.
fn still_open(
    drain: &Drain,
    demotion: &Demotion,
    error: std::io::Error,
) -> std::io::Result<Arc<dyn Object>> {
    if error.raw_os_error() != Some(libc::ENOENT) {
        return Err(error);
    }
    let open = drain.buffer.opens().by_ino(demotion.file.ino);
    let target = open.and_then(|open| Some(open.target.try_read_for(STILL_OPEN_LIMIT)?.clone()));
    match target {
        Some(Target::Buffer { object, tier, .. }) if tier == demotion.tier && object.is_held() => {
            Ok(object)
        }
        _ => Err(error),
    }
}

/// Counts it and says so, unless the file is another object by now.
fn damaged(drain: &Drain, demotion: &Demotion, problem: String) -> Unfinished {
    if has_moved(demotion) {
        return Unfinished::Superseded;
    }
    let path = demotion.file.path();
    drain
        .integrity
        .note_damage(&demotion.file, path, problem.clone(), Default::default());
    Unfinished::Failed(Failure::new(Errno::EIO, problem))
}

fn copy_failure(error: CopyError) -> Unfinished {
    match error {
        CopyError::Stopped => Unfinished::Superseded,
        CopyError::Source(e) => Unfinished::Failed(Failure::of_io("its object cannot be read", e)),
        CopyError::Destination(e) => on_pfs("copy")(e),
        other @ CopyError::Verify { .. } => Unfinished::Failed(other.into()),
    }
}

/// A directory that somebody has removed takes no file: which error that is depends on the file
/// system.
fn not_created(drain: &Drain, demotion: &Demotion, error: std::io::Error) -> Unfinished {
    let stat = drain.ns.pfs().stat_dir(&demotion.handle);
    if stat.is_ok_and(|stat| stat.nlink == 0) {
        let what = "its directory on the PFS: it was removed there; run 'forebay fsck'";
        return Unfinished::Failed(Failure::new(Errno::ENOENT, what));
    }
    let errno = Errno::of(&error);
    match errno {
        Errno::EACCES | Errno::EPERM => {
            let us = rustix::process::geteuid().as_raw();
            let dir = demotion.dir.path();
            Unfinished::Failed(Failure::new(
                errno,
                not_writable(&error, us, demotion.meta.uid, &dir),
            ))
        }
        Errno::ENOSPC
            if drain
                .ns
                .pfs()
                .statfs()
                .is_ok_and(|stat| has_no_inode(&stat)) =>
        {
            let what = format!("temporary file on the PFS: it has no inodes left ({error})");
            Unfinished::Failed(Failure::new(errno, what))
        }
        _ => on_pfs("temporary file")(error),
    }
}

/// Nobody may make a file there: neither the owner nor this process's user, `us`.
fn not_writable(error: &std::io::Error, us: u32, owner: u32, dir: &[u8]) -> String {
    let whom = match us == owner {
        true => "you".to_string(),
        false => format!("user {owner}"),
    };
    let dir = match dir.is_empty() {
        true => ".".into(),
        false => dir.escape_ascii().to_string(),
    };
    format!(
        "its directory on the PFS is not writable for {whom} ({error}): after chmod u+w {dir} it is tried again"
    )
}

/// Whether a file system that counts inodes has none left for a new file. (btrfs and others count
/// none.)
fn has_no_inode(stat: &Statfs) -> bool {
    stat.files > 0 && stat.files_free == 0
}

/// As the owner, where the PFS lets them. The second field: it has a (temporary) name, as it must
/// where another node is to find it.
fn create(
    drain: &Drain,
    demotion: &Demotion,
    is_to_be_found: bool,
) -> std::io::Result<(fs::File, bool)> {
    let meta = &demotion.meta;
    if meta.uid == 0 {
        return create_as_is(drain, demotion, is_to_be_found);
    }
    let first = {
        let _owner = ActAs::user(meta.uid, meta.gid, &[])?;
        create_as_is(drain, demotion, is_to_be_found)
    };
    match first {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
            create_as_is(drain, demotion, is_to_be_found)
        }
        other => other,
    }
}

fn create_as_is(
    drain: &Drain,
    demotion: &Demotion,
    is_to_be_found: bool,
) -> std::io::Result<(fs::File, bool)> {
    let pfs = drain.ns.pfs();
    let (dir, temporary) = (&demotion.handle, &demotion.temporary);
    // Nobody can open it before it is whole: it may have its permissions from the start.
    let perm = u32::from(demotion.meta.perm & 0o777);
    if !is_to_be_found && let Some(file) = pfs.create_unnamed(dir, perm)? {
        return Ok((file, false));
    }
    let create = || match pfs.create_temporary(dir, temporary, 0o600) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
            // Left by a crash before it was on record; the name says that it is ours.
            pfs.unlink(dir, temporary)?;
            pfs.create_temporary(dir, temporary, 0o600)
        }
        other => other,
    };
    let created = drain.ns.change_unseen(&demotion.dir, dir, create);
    let created = created.map_err(|error| match error {
        NsError::Pfs { source, .. } => source,
        other => std::io::Error::from(other.errno()),
    });
    Ok((created?, true))
}

/// Gives a copy the attributes of its file; what the PFS cannot hold is reported. Answers with what
/// it looks like then.
pub(super) fn give_attributes(
    drain: &Drain,
    demotion: &Demotion,
    file: &FileObject,
) -> Result<PfsStat, Unfinished> {
    let (pfs, meta) = (drain.ns.pfs(), &demotion.meta);
    let now = pfs.stat_file(file.file()).map_err(on_pfs("attributes"))?;
    let wanted = Appearance {
        uid: meta.uid,
        gid: meta.gid,
        perm: meta.perm,
        xattrs: &demotion.xattrs,
        atime: meta.atime,
        mtime: meta.mtime,
    };
    let warnings = apply_metadata(pfs, file.file(), &now, &wanted).map_err(on_pfs("attributes"))?;
    for warning in warnings {
        if let MetadataWarning::Owner { .. } = warning {
            // So it is of every file of the user: once is enough.
            if !drain.squashed.swap(true, Ordering::Relaxed) {
                let path = demotion.file.path();
                tracing::warn!(
                    "{}, of user {} and group {}, {warning}; so do others, which are not named",
                    path.escape_ascii(),
                    meta.uid,
                    meta.gid
                );
            }
            continue;
        }
        drain
            .base
            .report(demotion.file.path(), Errno::EOPNOTSUPP, warning.to_string());
    }
    pfs.stat_file(file.file()).map_err(on_pfs("attributes"))
}

#[cfg(test)]
mod tests {
    use forebay_types::Statfs;

    use crate::testing::{Lab, drain, strand};

    #[test]
    fn a_directory_that_is_not_writable_is_named_with_what_to_do() {
        let error = std::io::Error::from_raw_os_error(libc::EACCES);
        let told = super::not_writable(&error, 1000, 1000, b"pkg/a");
        assert!(
            told.contains("not writable for you (Permission denied"),
            "{told}"
        );
        assert!(told.contains("chmod u+w pkg/a it is tried again"), "{told}");
        let told = super::not_writable(&error, 0, 1000, b"");
        assert!(told.contains("for user 1000"), "{told}");
        assert!(told.contains("chmod u+w . it"), "{told}");
    }

    #[test]
    fn a_file_system_without_inodes_is_told_from_one_that_counts_none() {
        let stat = |files, files_free| Statfs {
            files,
            files_free,
            ..Statfs::default()
        };
        assert!(super::has_no_inode(&stat(100, 0)));
        assert!(!super::has_no_inode(&stat(100, 1)));
        assert!(!super::has_no_inode(&stat(0, 0)));
    }

    #[test]
    fn a_removed_directory_is_called_so_whatever_its_file_system_says() {
        let lab = Lab::new();
        strand(&lab, "gone", "f");
        drain(lab.rooms());
        let errors = lab.rooms().base.errors().all();
        let last = errors.last().expect("an error");
        assert_eq!(last.path, b"gone/f");
        assert!(last.reason.contains("its directory on the PFS"), "{last:?}");
    }
}
