//! Changes of content: what is on record before the first, and where a file that is only on the
//! PFS is changed.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_namespace::{File, Node, PlainNode, ctime_after};
use forebay_policy::placement::{ChangeLimits, FirstChange, first_change};
use forebay_tiers::{FileObject, ObjectStat, TierKind};
use forebay_types::{Attr, Errno, Handle, Process};

use crate::base::failure::Failure;
use crate::buffer::onpfs::PfsOpens;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::integrity::atrest::{Looked, Purpose};

/// Looks at a file of the PFS that others rename, link or bring in at the same time.
const TRIES: u32 = 8;

impl Files {
    /// The content is about to change in another way than by a write, which a second copy of it
    /// cannot be told. To be said once more when it has.
    pub fn note_change(&self, open: &OpenFile, target: &Target) -> Result<(), Failure> {
        open.unsent.changed();
        self.note_write(open, target)
    }

    /// The content is about to change: from here on copies of what it was are not published.
    pub fn note_write(&self, open: &OpenFile, target: &Target) -> Result<(), Failure> {
        self.integrity.compare_before_change(open, target)?;
        open.touched.store(true, Ordering::Release);
        let Target::Buffer { file, .. } = target else {
            return self.note_in_place(target);
        };
        {
            let mut state = file.lock();
            // Only then the record says that the object knows the size.
            if state.is_written() {
                state.changed();
                return Ok(());
            }
        }
        self.begin_change(file)
    }

    /// The content has changed. A copy that was begun after that was noted, and before it was done,
    /// may be without it: it is outdated.
    pub fn note_changed(&self, target: &Target) -> Result<(), Failure> {
        let Target::Buffer { file, .. } = target else {
            return self.note_in_place(target);
        };
        {
            let mut state = file.lock();
            let copied = state.safe == Some(state.generation()) || state.residency.clean;
            // A close may have called it written to its end since the change was noted.
            if !state.demoting && !copied && state.residency.writing {
                return Ok(());
            }
            if state.is_written() {
                state.changed();
                return Ok(());
            }
        }
        self.begin_change(file)
    }

    /// From here on a file is dirty.
    pub fn begin_change(&self, file: &Arc<File>) -> Result<(), Failure> {
        let outlasting = self.buffer.tiers().kind(file.tier()) != TierKind::Dram;
        self.ns.begin_change(file, true, outlasting)?;
        self.buffer.book_state(file);
        Ok(())
    }

    /// Whether a file that meets a full file system can go on somewhere else.
    pub(super) fn has_elsewhere(&self, target: &Target) -> bool {
        matches!(target, Target::Buffer { tier, .. } if self.buffer.tiers().kind(*tier) != TierKind::Pfs)
    }

    /// A file of the PFS that is about to change comes into the burst buffer first, if that is
    /// cheap.
    pub fn prepare_change(&self, open: &OpenFile, truncates: bool) -> Result<(), Failure> {
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
        let writer = *open.writer.lock();
        let next = loop {
            tries += 1;
            match self.ns.node(open.ino) {
                // It has come into the burst buffer since it was opened.
                Ok(Node::File(file)) if !file.lock().is_unlinked() => {
                    match self.open_arrived(file) {
                        // It has been unlinked since, and its object is gone.
                        Err(failure) if is_overtaken(failure.errno()) && tries < TRIES => {}
                        opened => break opened?,
                    }
                }
                // It may have been renamed since.
                Ok(Node::Plain(now)) if now.id == node.id && self.ns.stat_plain(&now).is_ok() => {
                    match self.first_change(&now, file, truncates, writer) {
                        Err(failure) if is_overtaken(failure.errno()) && tries < TRIES => {}
                        // It comes in and leaves again and again: beside a record it must not be
                        // changed.
                        Err(failure) if failure.errno() == Errno::EEXIST => {
                            return Err(failure.with_errno(Errno::EBUSY));
                        }
                        Err(failure) if can_stay(failure.errno()) => {
                            failure.told("bring a file in");
                            break write_in_place(self.buffer.opens().on_pfs(), node, file)?;
                        }
                        done => break done?,
                    }
                }
                // Nobody can find it any more: it can only be changed where it is.
                _ => break write_in_place(self.buffer.opens().on_pfs(), node, file)?,
            }
        };
        open.put(&mut target, next);
        Ok(())
    }

    pub(super) fn open_arrived(&self, file: Arc<File>) -> Result<Target, Failure> {
        let tier = file.tier();
        let opened = self.buffer.tiers().open_object(tier, file.object);
        let looked = self
            .integrity
            .look(&file, tier, &opened, Purpose::Change, &|| false)?;
        if let Looked::Wrong(problem) = looked {
            self.integrity
                .note_damage(&file, file.path(), problem, Default::default());
            return Err(Errno::EIO.into());
        }
        // Requests will write it.
        let object = opened.and_then(|_| self.buffer.tiers().open_to_write(tier, file.object))?;
        Ok(Target::Buffer { file, object, tier })
    }

    /// Who opens a file for writing: a file that comes from the PFS for that comes to that node.
    pub fn is_written_by(&self, handle: Handle, process: Process) {
        // A handle that is closed already writes nothing.
        if let Ok((open, _)) = self.buffer.opens().file(handle) {
            *open.writer.lock() = Some(process);
        }
    }

    pub(super) fn first_change(
        &self,
        node: &Arc<PlainNode>,
        file: &FileObject,
        truncates: bool,
        writer: Option<Process>,
    ) -> Result<Target, Failure> {
        let stat = self.ns.pfs().stat_file(file.file())?;
        let way = self.way_in(node, &stat, truncates);
        if way == FirstChange::InPlaceOnPfs {
            return write_in_place(self.buffer.opens().on_pfs(), node, file);
        }
        let empty = way == FirstChange::FreshObject;
        let whose = (Some(node.id), writer);
        let (file, object, tier) =
            self.bring_in(&node.parent, &node.name, whose, empty, &|_| ())?;
        self.catalog.apps().opened_for_write(file.object);
        Ok(Target::Buffer { file, object, tier })
    }

    /// How a file of the PFS is changed for the first time. Files with several links there stay
    /// one file only if they are changed where they are; of what cannot be replaced there the PFS
    /// says what may be done to it.
    pub(super) fn way_in(
        &self,
        node: &PlainNode,
        stat: &forebay_tiers::PfsStat,
        truncates: bool,
    ) -> FirstChange {
        let path = node.parent.path_of(&node.name);
        let is_small = stat.size <= ChangeLimits::default().max_stage_in_bytes;
        match self.way_into_room(&path, stat, truncates) {
            FirstChange::InPlaceOnPfs if is_small && !must_stay(stat) => {
                self.evict_in(&self.spaces_allowed(&path), stat.size + stat.size / 4);
                self.way_into_room(&path, stat, truncates)
            }
            way => way,
        }
    }

    /// The same, and no other file leaves for it.
    pub(super) fn way_into_room(
        &self,
        path: &[u8],
        stat: &forebay_tiers::PfsStat,
        truncates: bool,
    ) -> FirstChange {
        if must_stay(stat) {
            return FirstChange::InPlaceOnPfs;
        }
        let spaces = self.spaces_allowed(path);
        first_change(stat.size, truncates, &spaces, &ChangeLimits::default())
    }
}

fn must_stay(stat: &forebay_tiers::PfsStat) -> bool {
    stat.nlink > 1 || stat.keeps_its_place()
}

/// What was found by a name a moment ago is gone: the name is to be looked for anew.
pub(super) fn stale_if_gone(failure: Failure) -> Failure {
    match failure.errno() {
        Errno::ENOENT => failure.with_errno(Errno::ESTALE),
        _ => failure,
    }
}

/// `ESTALE` for a copy that was dropped as outdated: what is changed in it is lost, and its name
/// stands for what the PFS has. Who has it open already goes on with it, as with a file that was
/// replaced.
pub(super) fn refuse_dropped(file: &File) -> Result<(), Failure> {
    match file.lock().is_evicted() {
        true => Err(Errno::ESTALE.into()),
        false => Ok(()),
    }
}

/// Somebody has changed the names of a file, linked it or brought it in while it was brought in.
pub(super) fn is_overtaken(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EEXIST | Errno::ESTALE | Errno::ENOENT | Errno::EMLINK
    )
}

/// A file that cannot come in now can be changed where it is.
pub(super) fn can_stay(errno: Errno) -> bool {
    is_overtaken(errno) || matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

/// The same file of the PFS, open for writing. Its name need not be known.
fn write_in_place(
    opens: &Arc<PfsOpens>,
    node: &Arc<PlainNode>,
    file: &FileObject,
) -> Result<Target, Failure> {
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
        _open: opens.open(node.id, true),
    })
}

/// Of a file whose record does not say yet what it has become.
pub(super) fn grow_to(attr: &mut Attr, stat: &ObjectStat) {
    attr.size = stat.size;
    attr.blocks = stat.allocated_bytes.div_ceil(512);
    attr.mtime = stat.mtime;
    attr.ctime = ctime_after(attr.ctime, stat.mtime);
}
