//! The file system: every operation is the same operation on the source.
//!
//! Left out, since the benchmark has no use for it: symbolic links, device files, extended
//! attributes, locks across mounts, errors that the source reports only at `close`.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BackingId, BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::{self as sys, AtFlags, Gid, Mode, OFlags, Stat, Timestamps, Uid};

use crate::convert::{attr, errno, kind, timespec};
use crate::faults::Faults;
use crate::table::{Entries, OpenFile, Place, Table, path_of};

/// [`PassThrough::ttl`] without faults: Forebay's default.
const TTL: Duration = Duration::from_secs(1);
/// What `fs.fuse.max_pages_limit` lets a request carry by default.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Requests under way in the background, such as read-ahead; the default of 16 starves two readers.
const MAX_BACKGROUND: u16 = 64;

/// The pass-through file system.
pub struct PassThrough {
    table: Table,
    root: OwnedFd,
    passthrough: bool,
    faults: Faults,
    /// How long the kernel may use names and attributes without asking again.
    ttl: Duration,
    /// Whom the files belong to that this process makes.
    owner: (Uid, Gid),
    /// Whom all belong to, whoever asked for them.
    squash: Option<(Uid, Gid)>,
}

/// Replies with the error of a failed operation and returns.
macro_rules! check {
    ($reply:expr, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $reply.error(errno(error)),
        }
    };
}

impl PassThrough {
    /// Shows the tree of the directory `root`; with `passthrough` the kernel reads and writes by
    /// itself.
    pub fn new(
        root: OwnedFd,
        passthrough: bool,
        (faults, latency): (Option<PathBuf>, Duration),
        squash: Option<u32>,
    ) -> io::Result<Self> {
        let faults = Faults::new(faults, latency);
        Ok(Self {
            ttl: match faults.are_on() {
                true => Duration::ZERO,
                false => TTL,
            },
            table: Table::new(root.try_clone()?, faults.are_on()),
            faults,
            root,
            passthrough,
            owner: (rustix::process::geteuid(), rustix::process::getegid()),
            squash: squash.map(|id| (Uid::from_raw(id), Gid::from_raw(id))),
        })
    }

    fn stat(&self, ino: INodeNo) -> rustix::io::Result<Stat> {
        match self.table.place(ino)? {
            Place::Open(open) => sys::fstat(&open.file),
            Place::Dir(dir) | Place::Pinned(dir) => sys::fstat(dir),
            Place::Name(dir, name) => sys::statat(dir, &*name, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    /// Opens for reading and writing, since later opens of either kind share the descriptor.
    fn open_source(&self, ino: INodeNo, wanted: OFlags) -> rustix::io::Result<File> {
        use rustix::io::Errno;
        let place = self.table.place(ino)?;
        let open = |mode| match &place {
            Place::Name(dir, name) => {
                let flags = mode | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                sys::openat(dir, &**name, flags, Mode::empty())
            }
            Place::Pinned(pin) => sys::open(path_of(pin), mode | OFlags::CLOEXEC, Mode::empty()),
            Place::Dir(_) | Place::Open(_) => Err(Errno::ISDIR),
        };
        match open(OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::ROFS | Errno::TXTBSY | Errno::PERM) => open(wanted),
            opened => opened,
        }
        .map(File::from)
    }

    /// A new file belongs to who asked for it, not to the daemon.
    fn give_to(&self, request: &Request, file: impl AsFd) -> rustix::io::Result<()> {
        let asked = (Uid::from_raw(request.uid()), Gid::from_raw(request.gid()));
        let (uid, gid) = self.squash.unwrap_or(asked);
        if (uid, gid) == self.owner {
            return Ok(());
        }
        sys::fchown(file, Some(uid), Some(gid))
    }

    fn with_backing(
        &self,
        file: File,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> io::Result<OpenFile> {
        let backing = if self.passthrough {
            Some(register(&file)?)
        } else {
            None
        };
        Ok(OpenFile { file, backing })
    }

    fn change_size(&self, ino: INodeNo, size: u64) -> rustix::io::Result<()> {
        match self.table.place(ino)? {
            Place::Open(open) => sys::ftruncate(&open.file, size),
            Place::Dir(_) => Err(rustix::io::Errno::ISDIR),
            Place::Name(..) | Place::Pinned(_) => {
                sys::ftruncate(self.open_source(ino, OFlags::WRONLY)?, size)
            }
        }
    }

    fn change_owner(
        &self,
        ino: INodeNo,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> rustix::io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        if let Some((us, group)) = self.squash
            && (uid.is_some_and(|uid| uid != us) || gid.is_some_and(|gid| gid != group))
        {
            return Err(rustix::io::Errno::PERM);
        }
        match self.table.place(ino)? {
            Place::Open(open) => sys::fchown(&open.file, uid, gid),
            Place::Dir(dir) => sys::chownat(dir, ".", uid, gid, AtFlags::empty()),
            Place::Pinned(pin) => sys::chownat(pin, "", uid, gid, AtFlags::EMPTY_PATH),
            Place::Name(dir, name) => {
                sys::chownat(dir, &*name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    fn change_mode(&self, ino: INodeNo, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        match self.table.place(ino)? {
            Place::Open(open) => sys::fchmod(&open.file, mode),
            Place::Dir(dir) => sys::chmodat(dir, ".", mode, AtFlags::empty()),
            Place::Pinned(pin) => sys::chmod(path_of(pin), mode),
            Place::Name(dir, name) => sys::chmodat(dir, &*name, mode, AtFlags::empty()),
        }
    }

    fn change_times(&self, ino: INodeNo, times: &Timestamps) -> rustix::io::Result<()> {
        match self.table.place(ino)? {
            Place::Open(open) => sys::futimens(&open.file, times),
            Place::Dir(dir) => sys::utimensat(dir, ".", times, AtFlags::empty()),
            Place::Pinned(pin) => sys::utimensat(sys::CWD, path_of(pin), times, AtFlags::empty()),
            Place::Name(dir, name) => sys::utimensat(dir, &*name, times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn list(&self, ino: INodeNo) -> rustix::io::Result<Entries> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = sys::openat(self.table.dir(ino)?, ".", flags, Mode::empty())?;
        sys::Dir::new(dir)?
            .map(|entry| {
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes()).into();
                Ok((entry.ino(), kind(entry.file_type()), name))
            })
            .collect()
    }
}

fn link_open(file: BorrowedFd<'_>, to: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    sys::linkat(sys::CWD, path_of(file), to, name, AtFlags::SYMLINK_FOLLOW)
}

impl Filesystem for PassThrough {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let unsupported = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what);
        if self.passthrough {
            config
                .add_capabilities(InitFlags::FUSE_PASSTHROUGH)
                .map_err(|_| unsupported("this kernel has no FUSE passthrough; use --plain"))?;
            config
                .set_max_stack_depth(1)
                .map_err(|_| unsupported("stack depth 1 refused"))?;
        }
        // Of no effect on a kernel that lacks it.
        if config
            .capabilities()
            .contains(InitFlags::FUSE_PARALLEL_DIROPS)
        {
            config
                .add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS)
                .map_err(|_| unsupported("parallel directory operations refused"))?;
        }
        config
            .set_max_write(MAX_WRITE_BYTES)
            .map_err(|_| unsupported("requests of 1 MiB refused"))?;
        config
            .set_max_background(MAX_BACKGROUND)
            .map_err(|_| unsupported("64 background requests refused"))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.faults.travel();
        check!(reply, self.faults.before("lookup", name));
        let dir = check!(reply, self.table.dir(parent));
        let (stat, pin) = check!(reply, self.table.find(&dir, name));
        let generation = self.table.remember((&stat, pin), &dir, name, false);
        reply.entry(&self.ttl, &attr(stat.st_ino, &stat), Generation(generation));
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.table.forget(ino, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        check!(reply, self.faults.before("getattr", OsStr::new("")));
        let stat = check!(reply, self.stat(ino));
        reply.attr(&self.ttl, &attr(ino.0, &stat));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size {
            check!(reply, self.change_size(ino, size));
        }
        if uid.is_some() || gid.is_some() {
            check!(reply, self.change_owner(ino, uid, gid));
        }
        if let Some(mode) = mode {
            check!(reply, self.change_mode(ino, mode));
        }
        if atime.is_some() || mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(atime),
                last_modification: timespec(mtime),
            };
            check!(reply, self.change_times(ino, &times));
        }
        let stat = check!(reply, self.stat(ino));
        reply.attr(&self.ttl, &attr(ino.0, &stat));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        check!(reply, self.faults.before("create", name));
        let dir = check!(reply, self.table.dir(parent));
        let mode = Mode::from_raw_mode(mode);
        let create = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut is_new = true;
        let mut opened = sys::openat(&dir, name, create | OFlags::EXCL, mode);
        if matches!(opened, Err(rustix::io::Errno::EXIST)) && flags & libc::O_EXCL == 0 {
            is_new = false;
            opened = sys::openat(&dir, name, create, mode);
        }
        let file = File::from(check!(reply, opened));
        if is_new {
            check!(reply, self.give_to(request, &file));
        }
        let (stat, pin) = check!(reply, self.table.find_open(&file));
        let file = check!(
            reply,
            self.with_backing(file, |file| reply.open_backing(file))
        );
        let generation = self.table.remember((&stat, pin), &dir, name, is_new);
        let file = self.table.share(INodeNo(stat.st_ino), file);
        let handle = self.table.add_file(Arc::clone(&file));
        let (attr, generation) = (attr(stat.st_ino, &stat), Generation(generation));
        let flags = FopenFlags::empty();
        match &file.backing {
            Some(id) => reply.created_passthrough(&self.ttl, &attr, generation, handle, flags, id),
            None => reply.created(&self.ttl, &self.ttl, &attr, generation, handle, flags),
        }
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.faults.travel();
        let file = match check!(reply, self.table.place(ino)) {
            Place::Open(open) => open,
            _ => {
                let wanted = OFlags::from_bits_retain((flags.0 & libc::O_ACCMODE) as u32);
                let file = check!(reply, self.open_source(ino, wanted));
                let opened = self.with_backing(file, |file| reply.open_backing(file));
                self.table.share(ino, check!(reply, opened))
            }
        };
        let handle = self.table.add_file(Arc::clone(&file));
        match &file.backing {
            Some(id) => reply.opened_passthrough(handle, FopenFlags::empty(), id),
            None => reply.opened(handle, FopenFlags::empty()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.faults.travel();
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let open = check!(reply, self.table.file(handle));
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size as usize {
                buffer.resize(size as usize, 0);
            }
            let mut filled = 0;
            while filled < size as usize {
                let rest = &mut buffer[filled..size as usize];
                match check!(reply, open.file.read_at(rest, offset + filled as u64)) {
                    0 => break,
                    bytes => filled += bytes,
                }
            }
            reply.data(&buffer[..filled]);
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        check!(reply, self.faults.before("write", OsStr::new("")));
        let open = check!(reply, self.table.file(handle));
        check!(reply, open.file.write_all_at(data, offset));
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Nothing is held back here: "not implemented" lets the kernel close files without asking
        // again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        drop(self.table.remove_file(handle));
    }

    fn fsync(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        check!(reply, self.faults.before("fsync", OsStr::new("")));
        let open = check!(reply, self.table.file(handle));
        let synced = if datasync {
            open.file.sync_data()
        } else {
            open.file.sync_all()
        };
        check!(reply, synced);
        check!(reply, self.faults.after("fsync", OsStr::new("")));
        reply.ok();
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        check!(reply, self.faults.before("unlink", name));
        let dir = check!(reply, self.table.dir(parent));
        check!(reply, sys::unlinkat(dir, name, AtFlags::empty()));
        check!(reply, self.faults.after("unlink", name));
        reply.ok();
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = check!(reply, self.table.dir(parent));
        check!(reply, sys::unlinkat(dir, name, AtFlags::REMOVEDIR));
        reply.ok();
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let dir = check!(reply, self.table.dir(parent));
        check!(reply, sys::mkdirat(&dir, name, Mode::from_raw_mode(mode)));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = check!(reply, sys::openat(&dir, name, flags, Mode::empty()));
        check!(reply, self.give_to(request, &made));
        let (stat, pin) = check!(reply, self.table.find_open(&made));
        let generation = self.table.remember((&stat, pin), &dir, name, true);
        reply.entry(&self.ttl, &attr(stat.st_ino, &stat), Generation(generation));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        check!(reply, self.faults.before("rename", newname));
        let from = check!(reply, self.table.dir(parent));
        let to = check!(reply, self.table.dir(newparent));
        let how = sys::RenameFlags::from_bits_retain(flags.bits());
        check!(reply, sys::renameat_with(&from, name, &to, newname, how));
        check!(reply, self.table.moved(&to, newname));
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            check!(reply, self.table.moved(&from, name));
        }
        check!(reply, self.faults.after("rename", newname));
        reply.ok();
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        check!(reply, self.faults.before("link", newname));
        let to = check!(reply, self.table.dir(newparent));
        let linked = match check!(reply, self.table.place(ino)) {
            Place::Open(open) => link_open(open.file.as_fd(), &to, newname),
            Place::Pinned(pin) => link_open(pin.as_fd(), &to, newname),
            Place::Name(dir, name) => sys::linkat(dir, &*name, &to, newname, AtFlags::empty()),
            Place::Dir(_) => Err(rustix::io::Errno::PERM),
        };
        check!(reply, linked);
        let (stat, pin) = check!(reply, self.table.find(&to, newname));
        check!(reply, self.faults.after("link", newname));
        let generation = self.table.remember((&stat, pin), &to, newname, false);
        reply.entry(&self.ttl, &attr(stat.st_ino, &stat), Generation(generation));
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let entries = check!(reply, self.list(ino));
        reply.opened(self.table.add_dir(entries), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = check!(reply, self.table.entries(handle));
        for (index, (ino, kind, name)) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*ino), index as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let name = check!(reply, self.table.name(ino));
        check!(reply, self.faults.before("fsyncdir", &name));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = check!(reply, self.table.dir(ino));
        let dir = check!(reply, sys::openat(dir, ".", flags, Mode::empty()));
        check!(reply, sys::fsync(dir));
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.table.remove_dir(handle);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        check!(reply, self.faults.before("statfs", OsStr::new("")));
        let stat = check!(reply, sys::fstatvfs(&self.root));
        reply.statfs(
            stat.f_blocks,
            stat.f_bfree,
            stat.f_bavail,
            stat.f_files,
            stat.f_ffree,
            stat.f_bsize as u32,
            stat.f_namemax as u32,
            stat.f_frsize as u32,
        );
    }
}
