//! One method for each FUSE request. Requests that may wait go to the pool.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use forebay_client::{Client, OpenFile, Progress};
use forebay_types::{Errno, Handle, Ino, OpenFlags as Flags, SetAttr, limits};
use forebay_wire::{OpenMode, RenameMode, SeekWhat, SpaceChange, XattrMode};
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use crate::backing::Backings;
use crate::convert::{attr, cred, errno, ino, kind, maker, set_time};
use crate::pool::Pool;

/// For how long the kernel believes names and attributes: changes made on the PFS show up within
/// this time.
const REVALIDATE: Duration = Duration::from_secs(1);
/// Requests that the kernel keeps in flight for readahead and the like; its default of 16 is low.
const BACKGROUND_MAX: u16 = 64;

/// What to call when the mount ends.
pub(crate) type EndCall = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

pub(crate) struct Adapter {
    client: Client,
    backings: Backings,
    pool: Pool,
    passthrough: AtomicBool,
    ended: EndCall,
}

fn handle(fh: FileHandle) -> Handle {
    Handle(fh.0)
}

impl Adapter {
    pub(crate) fn new(client: Client, passthrough: bool) -> io::Result<Adapter> {
        Ok(Adapter {
            client,
            backings: Backings::default(),
            pool: Pool::default(),
            passthrough: AtomicBool::new(passthrough),
            ended: EndCall::default(),
        })
    }

    pub(crate) fn on_destroy(&self) -> EndCall {
        self.ended.clone()
    }

    fn no_passthrough(&self, why: &str) {
        if self.passthrough.swap(false, Ordering::AcqRel) {
            tracing::info!("passthrough is off: {why}");
        }
        self.client.accept_descriptors(false);
    }

    /// Registers the object with the kernel, if the server handed it over. If the kernel refuses,
    /// the file is served by requests, and so are all others from then on.
    fn back(
        &self,
        node: INodeNo,
        open: &OpenFile,
        make: impl FnOnce(BorrowedFd<'_>) -> io::Result<fuser::BackingId>,
    ) -> Option<Arc<fuser::BackingId>> {
        let descriptor = open.descriptor.as_ref()?;
        if open.opened.mode != OpenMode::Passthrough {
            return None;
        }
        let taken = self.backings.take(ino(node), open.opened.handle, || {
            make(descriptor.descriptor())
        });
        taken
            .inspect_err(|error| self.no_passthrough(&error.to_string()))
            .ok()
    }

    fn entry(&self, made: Result<forebay_types::Attr, Errno>, reply: ReplyEntry) {
        match made {
            Ok(made) => reply.entry(&REVALIDATE, &attr(&made), Generation(0)),
            Err(e) => reply.error(errno(e)),
        }
    }
}

fn plain_flags(mode: OpenMode) -> FopenFlags {
    let keep = matches!(mode, OpenMode::Plain { keep_cache: true });
    FopenFlags::FOPEN_NOFLUSH
        | if keep {
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        }
}

fn finish(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is of use where the kernel has it, and none is needed.
        for wish in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            if let Err(missing) = config.add_capabilities(wish) {
                tracing::debug!("the kernel does not offer {missing:?}");
            }
        }
        // The kernel checks access control lists where the PFS has them; then the umask is ours to apply.
        let lists = self.client.get_xattr(Ino::ROOT, b"system.posix_acl_access");
        if lists != Err(Errno::EOPNOTSUPP) {
            let wish = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
            if let Err(missing) = config.add_capabilities(wish) {
                tracing::info!("access control lists are not checked: no {missing:?}");
            }
        }
        let refused = |what: &str| io::Error::other(format!("{what} is refused"));
        config
            .set_max_write(limits::IO_BYTES_MAX as u32)
            .map_err(|_| refused("max_write"))?;
        // The kernel may want less, and says how much.
        if let Err(most) = config.set_max_readahead(limits::IO_BYTES_MAX as u32) {
            config
                .set_max_readahead(most)
                .map_err(|_| refused("max_readahead"))?;
        }
        config
            .set_max_background(BACKGROUND_MAX)
            .map_err(|_| refused("max_background"))?;
        if self.passthrough.load(Ordering::Acquire) {
            let able = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
                && config.set_max_stack_depth(1).is_ok();
            if !able {
                self.no_passthrough("the kernel does not offer it");
            }
        } else {
            self.client.accept_descriptors(false);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.pool.end();
        if let Some(call) = self.ended.lock().take() {
            call();
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.client.lookup(ino(parent), name.as_bytes()), reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        self.client.forget(vec![(ino(node), count)]);
    }

    fn getattr(&self, _: &Request, node: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.client.getattr(ino(node), fh.map(handle)) {
            Ok(found) => reply.attr(&REVALIDATE, &attr(&found)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|m| (m & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let (client, node, fh, who) = (
            self.client.clone(),
            ino(node),
            fh.map(handle),
            cred(request),
        );
        let act = move || match client.setattr(node, fh, set, who) {
            Ok(now) => reply.attr(&REVALIDATE, &attr(&now)),
            Err(e) => reply.error(errno(e)),
        };
        // A change of size may bring a file in from the PFS.
        if size.is_some_and(|size| size > 0) {
            self.pool.run(Box::new(|_| act()))
        } else {
            act()
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.client.readlink(ino(node)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = self.client.mknod(
            ino(parent),
            name.as_bytes(),
            mode,
            rdev,
            maker(request, umask),
        );
        self.entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let perm = (mode & 0o7777) as u16;
        self.entry(
            self.client
                .mkdir(ino(parent), name.as_bytes(), perm, maker(request, umask)),
            reply,
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(
            self.client
                .unlink(ino(parent), name.as_bytes(), cred(request)),
            reply,
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(
            self.client
                .rmdir(ino(parent), name.as_bytes(), cred(request)),
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let made = self
            .client
            .symlink(ino(parent), name.as_bytes(), target, cred(request));
        self.entry(made, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags.bits() {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(errno(Errno::EINVAL)),
        };
        let (from, to) = (
            (ino(parent), name.as_bytes()),
            (ino(newparent), newname.as_bytes()),
        );
        finish(self.client.rename(from, to, mode, cred(request)), reply);
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let made = self
            .client
            .link(ino(node), ino(newparent), newname.as_bytes(), cred(request));
        self.entry(made, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let perm = (mode & 0o7777) as u16;
        let made = self.client.create(
            ino(parent),
            name.as_bytes(),
            perm,
            Flags(flags as u32),
            maker(request, umask),
        );
        let (found, open) = match made {
            Ok(made) => made,
            Err(e) => return reply.error(errno(e)),
        };
        let fh = FileHandle(open.opened.handle.0);
        let found = attr(&found);
        match self.back(found.ino, &open, |fd| reply.open_backing(fd)) {
            Some(id) => {
                let flags = FopenFlags::FOPEN_NOFLUSH;
                reply.created_passthrough(&REVALIDATE, &found, Generation(0), fh, flags, &id);
            }
            None => reply.created(
                &REVALIDATE,
                &found,
                Generation(0),
                fh,
                plain_flags(open.opened.mode),
            ),
        }
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = match self
            .client
            .open(ino(node), Flags(flags.0 as u32), cred(request))
        {
            Ok(open) => open,
            Err(e) => return reply.error(errno(e)),
        };
        let fh = FileHandle(open.opened.handle.0);
        match self.back(node, &open, |fd| reply.open_backing(fd)) {
            Some(id) => reply.opened_passthrough(fh, FopenFlags::FOPEN_NOFLUSH, &id),
            None => reply.opened(fh, plain_flags(open.opened.mode)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let client = self.client.clone();
        self.pool.run(Box::new(move |buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match client.read(handle(fh), offset, &mut buffer[..size]) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(e) => reply.error(errno(e)),
            }
        }));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drop_suid = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self
            .client
            .write(handle(fh), offset, data, drop_suid, false)
        {
            Ok(Progress::Done(n)) => return reply.written(n as u32),
            Err(e) => return reply.error(errno(e)),
            Ok(Progress::WouldWait) => {}
        }
        let (client, data) = (self.client.clone(), data.to_vec());
        self.pool.run(Box::new(move |_| {
            match client.write(handle(fh), offset, &data, drop_suid, true) {
                Ok(Progress::Done(n)) => reply.written(n as u32),
                Ok(Progress::WouldWait) => reply.error(errno(Errno::EAGAIN)),
                Err(e) => reply.error(errno(e)),
            }
        }));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // close(2) promises nothing that needs the server; ENOSYS tells the kernel not to ask again.
        reply.error(errno(Errno::ENOSYS));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.backings.release(handle(fh));
        finish(self.client.release(handle(fh)), reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let client = self.client.clone();
        self.pool.run(Box::new(move |_| {
            finish(client.fsync(handle(fh), datasync), reply)
        }));
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.client.open_dir(ino(node)) {
            Ok(dir) => reply.opened(FileHandle(dir.0), FopenFlags::empty()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.client.read_dir(handle(fh), offset) {
            Ok(entries) => entries,
            Err(e) => return reply.error(errno(e)),
        };
        for entry in entries {
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(INodeNo(entry.ino.0), entry.next, kind(entry.kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        finish(self.client.close_dir(handle(fh)), reply);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let client = self.client.clone();
        let node = ino(node);
        self.pool
            .run(Box::new(move |_| finish(client.fsync_dir(node), reply)));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.client.statfs() {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.files,
                s.files_free,
                s.block_bytes,
                s.name_bytes_max,
                s.block_bytes,
            ),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(errno(Errno::EINVAL)),
        };
        finish(
            self.client
                .set_xattr(ino(node), name.as_bytes(), value, mode, cred(request)),
            reply,
        );
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(
            self.client.get_xattr(ino(node), name.as_bytes()),
            size,
            reply,
        );
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        answer_xattr(self.client.list_xattr(ino(node)), size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(
            self.client
                .remove_xattr(ino(node), name.as_bytes(), cred(request)),
            reply,
        );
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        let change = match mode {
            0 => SpaceChange::Allocate,
            KEEP => SpaceChange::Reserve,
            m if m == libc::FALLOC_FL_PUNCH_HOLE | KEEP => SpaceChange::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => SpaceChange::ZeroRange,
            m if m == libc::FALLOC_FL_ZERO_RANGE | KEEP => SpaceChange::ZeroRangeKeepSize,
            _ => return reply.error(errno(Errno::EOPNOTSUPP)),
        };
        let client = self.client.clone();
        self.pool.run(Box::new(move |_| {
            let done = client.change_space(handle(fh), change, offset, length, true);
            finish(done.map(|_| ()), reply);
        }));
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => SeekWhat::Data,
            libc::SEEK_HOLE => SeekWhat::Hole,
            _ => return reply.error(errno(Errno::EINVAL)),
        };
        let Ok(from) = u64::try_from(offset) else {
            return reply.error(errno(Errno::ENXIO));
        };
        match self.client.seek(handle(fh), from, what) {
            Ok(found) => reply.offset(found as i64),
            Err(e) => reply.error(errno(e)),
        }
    }
}

/// A size of 0 asks how large the value is.
fn answer_xattr(found: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match found {
        Err(e) => reply.error(errno(e)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::ERANGE)),
        Ok(value) => reply.data(&value),
    }
}
