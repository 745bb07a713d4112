//! One method for each FUSE request. Requests that may wait go to the pool.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use forebay_types::{Errno, OpenFlags as Flags, RenameMode, SetAttr};
use forebay_wire::WriteHow;
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, ForgetOne, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    RequestId, TimeOrNow, WriteFlags,
};

use crate::asker;
use crate::convert::{cred, errno, ino, maker, set_time, xattr_mode};
use crate::dirs::Touched;
use crate::inflight::{Pending, answer_attr, answer_found, answer_totals, finish};
use crate::locks::Wanted;
use crate::serving::Adapter;
use crate::serving::handle;
use crate::transfer::{answer_xattr, changed_late};
use crate::wishes::wish;

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        wish(&self.client, config, self.belief.is_direct())?;
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

    fn begins(&self, pid: u32) {
        asker::set(pid);
    }

    fn destroy(&mut self) {
        self.releases.end(&self.client);
        self.pool.end();
        self.forgetters.end();
        self.in_flight.end();
        if let Some(call) = self.ended.lock().take() {
            call();
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (parent, name, uid) = (ino(parent), name.as_bytes(), request.uid());
        let Some(reply) = self.answer_known((parent, name), uid, reply) else {
            return;
        };
        let turn = self
            .in_flight
            .turn(Pending::Lookup(reply, parent, name.into(), uid));
        let began = self.forgets.begin(&self.client);
        let found = self.client.lookup(parent, name, uid);
        let (by, to) = ((&self.client, began), (&*self.belief, &*self.forgets));
        answer_found(by, to, ((parent, name), found), &turn);
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        self.forgotten(&[(ino(node), count)]);
    }

    fn batch_forget(&self, _: &Request, nodes: &[ForgetOne]) {
        let nodes = nodes
            .iter()
            .map(|node| (ino(node.nodeid()), node.nlookup()));
        self.forgotten(&nodes.collect::<Vec<_>>());
    }

    fn getattr(&self, _: &Request, node: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let (node, fh) = (ino(node), fh.map(handle));
        let turn = self.in_flight.turn(Pending::Getattr(reply, node, fh));
        let found = self.client.getattr(node, fh);
        let _ = answer_attr(&self.belief, found, &turn);
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
        // A change of size may bring a file in from the PFS.
        if size.is_some_and(|size| size > 0) {
            let (in_flight, belief) = (self.in_flight.clone(), self.belief.clone());
            let forgetters = self.forgetters.clone();
            // A directory has no size to be set, so nothing changes that the mount may know.
            self.pool.run(Box::new(move |_| {
                let turn = in_flight.waiting_turn(reply);
                let answer = client.setattr(node, fh, set, who);
                let is_done = answer.is_ok();
                if !answer_attr(&belief, answer, &turn) && is_done {
                    changed_late(&forgetters, belief, node);
                }
            }));
        } else {
            let turn = self.in_flight.turn(reply);
            let touched = [Touched::Attr(node)];
            let ask = || client.setattr(node, fh, set, who);
            let answer = self.forgets.changing(&touched, ask);
            let is_done = answer.is_ok();
            if !answer_attr(&self.belief, answer, &turn) && is_done {
                changed_late(&self.forgetters, self.belief.clone(), node);
            }
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let turn = self.in_flight.turn(reply);
        let found = self.client.readlink(ino(node));
        match (turn.reply::<ReplyData>(), found) {
            (Some(reply), Ok(target)) => reply.data(&target),
            (Some(reply), Err(e)) => reply.error(errno(e)),
            (None, _) => {}
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
        let (turn, began) = (self.in_flight.turn(reply), self.client.generation());
        let (client, who) = (&self.client, maker(request, umask));
        let ask = || client.mknod(ino(parent), name.as_bytes(), mode, rdev, who);
        let touched = [Touched::Made(ino(parent), name.as_bytes())];
        let made = self.forgets.changing(&touched, ask);
        self.entry(made, (&turn, began));
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
        let (turn, began) = (self.in_flight.turn(reply), self.client.generation());
        let (client, who) = (&self.client, maker(request, umask));
        let ask = || client.mkdir(ino(parent), name.as_bytes(), perm, who);
        let touched = [Touched::Made(ino(parent), name.as_bytes())];
        let made = self.forgets.changing(&touched, ask);
        self.entry(made, (&turn, began));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let turn = self.in_flight.turn(reply);
        let ask = || {
            self.client
                .unlink(ino(parent), name.as_bytes(), cred(request))
        };
        let touched = [Touched::Attr(ino(parent))];
        let done = self.forgets.changing(&touched, ask);
        finish(done, &turn);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let turn = self.in_flight.turn(reply);
        let (parent, name) = (ino(parent), name.as_bytes());
        let ask = || self.client.rmdir(parent, name, cred(request));
        let touched = [Touched::Name(parent, name)];
        let done = self.forgets.changing(&touched, ask);
        finish(done, &turn);
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
        let (turn, began) = (self.in_flight.turn(reply), self.client.generation());
        let (parent, name) = (ino(parent), name.as_bytes());
        let ask = || self.client.symlink(parent, name, target, cred(request));
        let made = self.forgets.changing(&[Touched::Made(parent, name)], ask);
        self.entry(made, (&turn, began));
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
        let turn = self.in_flight.turn(reply);
        let ask = || self.client.rename(from, to, mode, cred(request));
        let touched = [Touched::Name(from.0, from.1), Touched::Name(to.0, to.1)];
        finish(self.forgets.changing(&touched, ask), &turn);
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (turn, began) = (self.in_flight.turn(reply), self.client.generation());
        let (parent, name) = (ino(newparent), newname.as_bytes());
        let ask = || self.client.link(ino(node), parent, name, cred(request));
        let made = self.forgets.changing(&[Touched::Made(parent, name)], ask);
        // The kernel had the file before, and does not tell a late answer from an early one.
        let made = made.map(|shown| forebay_wire::Shown {
            firm: false,
            ..shown
        });
        self.entry(made, (&turn, began));
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
        let turn = self.in_flight.turn(reply);
        let (parent, flags) = (ino(parent), Flags(flags as u32));
        let (began, who) = (self.forgets.begin(&self.client), maker(request, umask));
        let within = (parent, self.forgets.makes_in(parent, name.as_bytes()));
        let made = self
            .client
            .create_in(within, name.as_bytes(), perm, flags, who);
        let of_parent = made.as_ref().ok().and_then(|made| made.parent.as_deref());
        let firm = self.belief.firm(turn.asked);
        self.forgets.made_in(parent, of_parent, began, firm.span);
        drop(firm);
        self.answer_created(made.map(|made| (made.shown, made.open)), &turn);
    }

    fn tmpfile(
        &self,
        request: &Request,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let perm = (mode & 0o7777) as u16;
        let turn = self.in_flight.turn(reply);
        let who = maker(request, umask);
        let flags = Flags(flags as u32);
        let made = self.client.create_unnamed(ino(parent), perm, flags, who);
        self.answer_created(made, &turn);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let turn = self.in_flight.turn(reply);
        let flags = Flags(flags.0 as u32);
        let opened = self.client.open(ino(node), flags, cred(request));
        self.answer_opened(node, flags, opened, &turn);
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.kept.read(ino(node), handle(fh));
        // Who reads round the pages has an owner of locks; pages have none.
        let pages = owner.is_none() && self.belief.is_direct();
        let file = (ino(node), handle(fh), request.pid());
        self.answer_read(file, (offset, size as usize), pages, reply);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        open: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write_back = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let how = WriteHow {
            // Bytes that the kernel writes back from a mapping carry their own offset.
            append: open.0 & libc::O_APPEND != 0 && !write_back,
            drop_suid: flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            may_wait: false,
            write_back,
        };
        let file = (ino(node), handle(fh));
        let whose = (request.pid(), open.0 & libc::O_DIRECT != 0);
        self.answer_write(file, (offset, data), how, whose, reply);
    }

    fn flush(
        &self,
        _: &Request,
        node: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        match self.belief.is_direct() {
            true => self.answer_close((ino(node), handle(fh)), owner, reply),
            // close(2) promises nothing that needs the server; ENOSYS tells the kernel not to ask
            // again.
            false => reply.error(errno(Errno::ENOSYS)),
        }
    }

    fn getlk(
        &self,
        _: &Request,
        node: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let wanted = Wanted {
            ino: ino(node),
            handle: handle(fh),
            owner,
            first,
            last,
            kind,
            pid,
            by_flock: false,
        };
        self.answer_lock_holder(&wanted, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        node: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        pid: u32,
        may_wait: bool,
        by_flock: bool,
        reply: ReplyEmpty,
    ) {
        let wanted = Wanted {
            ino: ino(node),
            handle: handle(fh),
            owner,
            first,
            last,
            kind,
            pid,
            by_flock,
        };
        let ticket = may_wait.then(|| request.unique().into());
        self.answer_lock(&wanted, ticket, reply);
    }

    fn interrupt(&self, unique: RequestId) {
        self.interrupted(unique.into());
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
        let turn = self.in_flight.turn(reply);
        self.backings.release(handle(fh));
        self.belief.end_writing(handle(fh));
        // Every mount of its own node's server waits, also for a file that it does not write by
        // itself: how a file is served may change while others have it open.
        // Somebody may wait for a lock that goes with it.
        let is_urgent = self.locks.take_handle(handle(fh)) || self.client.is_local();
        match self.belief.is_direct() && !is_urgent {
            true => {
                finish(Ok(()), &turn);
                self.releases.add(&self.client, handle(fh));
            }
            false => drop(finish(self.client.release(handle(fh)), &turn)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let (client, in_flight) = (self.client.clone(), self.in_flight.clone());
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            finish(client.fsync(handle(fh), datasync), &turn);
        }));
    }

    fn opendir(&self, request: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.answer_opened_dir(ino(node), request.uid(), reply);
    }

    fn readdir(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.answer_listing(handle(fh), offset, reply);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let turn = self.in_flight.turn(reply);
        finish(self.client.close_dir(handle(fh)), &turn);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let (client, in_flight) = (self.client.clone(), self.in_flight.clone());
        let node = ino(node);
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            finish(client.fsync_dir(node), &turn);
        }));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let turn = self.in_flight.turn(reply);
        let totals = self.client.statfs();
        answer_totals(&self.belief, totals, &turn);
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
        let Some(mode) = xattr_mode(flags) else {
            return reply.error(errno(Errno::EINVAL));
        };
        let turn = self.in_flight.turn(reply);
        let (client, who) = (&self.client, cred(request));
        let ask = || client.set_xattr(ino(node), name.as_bytes(), value, mode, who);
        let done = self.forgets.changing(&[Touched::Attr(ino(node))], ask);
        finish(done, &turn);
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let turn = self.in_flight.turn(reply);
        let (node, name) = (ino(node), name.as_bytes());
        let found = self.client.get_xattr(node, name, request.uid());
        answer_xattr(found, size, &turn);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let turn = self.in_flight.turn(reply);
        let names = self.client.list_xattr(ino(node), cred(request));
        answer_xattr(names, size, &turn);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let turn = self.in_flight.turn(reply);
        let (client, who) = (&self.client, cred(request));
        let ask = || client.remove_xattr(ino(node), name.as_bytes(), who);
        let done = self.forgets.changing(&[Touched::Attr(ino(node))], ask);
        finish(done, &turn);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // The kernel does not say here whether the caller may keep set-id bits; only root is sure
        // to.
        let drop_suid = request.uid() != 0;
        let file = (ino(node), handle(fh));
        self.answer_space(file, mode, (offset, length), drop_suid, reply);
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
        self.answer_seek(handle(fh), offset, whence, reply);
    }
}
