//! The client: the operations of a file system as calls, on top of a connection.
//!
//! It knows nothing of FUSE. Reads fill the caller's buffer, writes take the caller's slice, and
//! nothing is copied on the way to an in-memory server.

mod callers;
mod files;
mod had;
#[cfg(test)]
mod had_tests;
mod lasting;
mod locked;
mod locks;
mod pieces;
mod reclaim;
mod seats;
mod session;
mod stale;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use callers::Callers;
pub use files::{Created, OpenFile};
use forebay_policy::links::{Asked, Distribution, Moves, choose, parts};
use forebay_types::{Cred, Dirent, Errno, Handle, Ino, RenameMode, SetAttr, Statfs, XattrMode};
use forebay_wire::{Connection, Link, Request, Response, SeekWhat, Shown, SpaceChange, WriteHow};
pub use lasting::{Dial, Lasting, OnLost};
use pieces::{Pieces, ReadPiece};
use seats::Seats;

/// Outcome of a request that may have to wait for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// Done.
    Done(T),
    /// It would have to wait: ask again, from a thread that may.
    WouldWait,
    /// Done, and the program that asked is to hear of it after this time.
    Paced(T, Duration),
}

/// Calls to one server.
#[derive(Clone)]
pub struct Client {
    connection: Arc<dyn Connection>,
    /// Where the server cannot ask this node's kernel.
    callers: Option<Arc<Callers>>,
    distribution: Distribution,
    /// Counts requests that move data.
    moved: Arc<AtomicU64>,
    pieces: Arc<Pieces>,
    seats: Arc<Seats>,
}

fn link(parent: Ino, name: &[u8]) -> Link {
    Link {
        parent,
        name: name.to_vec(),
    }
}

fn read_on(
    connection: &dyn Connection,
    link: usize,
    (handle, offset, pages): (Handle, u64, Option<&AtomicU64>),
    into: &mut [u8],
) -> Result<usize, Errno> {
    let request = Request::Read {
        handle,
        offset,
        len: into.len() as u32,
        pages: pages.is_some(),
    };
    match (
        connection.call_on(link, request, &[], into)?.response,
        pages,
    ) {
        (Response::Moved(bytes), _) => Ok(bytes as usize),
        (Response::Paged { bytes, end }, Some(ends)) => {
            ends.fetch_max(end, Ordering::Relaxed);
            Ok(bytes as usize)
        }
        (other, _) => unexpected(other),
    }
}

/// What a server answers out of turn is a fault of the server.
fn unexpected<T>(_: Response) -> Result<T, Errno> {
    Err(Errno::EPROTO)
}

impl Client {
    /// Talks over this connection to a server in this process.
    pub fn new(connection: Arc<dyn Connection>) -> Client {
        Client {
            connection,
            callers: None,
            distribution: Distribution::default(),
            moved: Arc::default(),
            pieces: Arc::default(),
            seats: Arc::default(),
        }
    }

    /// Talks over this connection to a server that may be on another node.
    pub fn of_another_node(connection: Arc<dyn Connection>, distribution: Distribution) -> Client {
        Client {
            callers: Some(Arc::default()),
            distribution,
            ..Client::new(connection)
        }
    }

    /// The link for a request that moves data.
    fn link_for(&self, moves: Moves, thread: u32) -> usize {
        let links = self.connection.links();
        if links == 1 {
            return 0;
        }
        let nth = self.moved.fetch_add(1, Ordering::Relaxed);
        let thread = self.seats.of(thread);
        let asked = Asked { moves, thread, nth };
        choose(self.distribution, links, asked)
    }

    /// Tells the server of a process that is about to ask. What cannot be told is missed only where
    /// it is wanted: as a batch job, or as a supplementary group.
    fn introduce(&self, cred: &Cred) {
        let Some(callers) = &self.callers else {
            return;
        };
        let Some(news) = callers.asks(cred.process.pid, self.generation()) else {
            return;
        };
        let request = Request::Introduce {
            processes: news.processes,
            ended: news.ended,
        };
        if self.done(request).is_err() {
            callers.forget();
        }
    }

    /// Whether descriptors can be handed over.
    pub fn is_local(&self) -> bool {
        self.connection.hands_over_descriptors()
    }

    /// Says whether descriptors are of use here.
    pub fn accept_descriptors(&self, yes: bool) {
        self.connection.accept_descriptors(yes);
    }

    /// How a thread knows that nobody waits for what it asks; see [`Connection::give_up_by`].
    pub fn give_up_by(&self, is_given_up: fn() -> bool) {
        self.connection.give_up_by(is_given_up);
    }

    fn call(&self, request: Request) -> Result<Response, Errno> {
        Ok(self.connection.call(request, &[], &mut [])?.response)
    }

    fn attr(&self, request: Request) -> Result<Shown, Errno> {
        match self.call(request)? {
            Response::Attr(shown) => Ok(shown),
            other => unexpected(other),
        }
    }

    fn done(&self, request: Request) -> Result<(), Errno> {
        match self.call(request)? {
            Response::Done => Ok(()),
            other => unexpected(other),
        }
    }

    fn bytes(&self, request: Request) -> Result<Vec<u8>, Errno> {
        match self.call(request)? {
            Response::Bytes(bytes) => Ok(bytes),
            other => unexpected(other),
        }
    }

    /// Resolves a name for a user, and takes a reference on what it finds.
    pub fn lookup(&self, parent: Ino, name: &[u8], uid: u32) -> Result<Shown, Errno> {
        let link = link(parent, name);
        self.attr(Request::Lookup { link, uid })
    }

    /// Drops references. Cannot fail: a reference that is not dropped costs memory only.
    pub fn forget(&self, nodes: Vec<(Ino, u64)>) {
        drop(self.call(Request::Forget(nodes)));
    }

    /// The same, of references that this session has given; another one has given none of them.
    pub fn forget_in(&self, generation: u64, nodes: Vec<(Ino, u64)>) {
        let forget = Request::Forget(nodes);
        drop(self.connection.call_in(generation, forget));
    }

    /// Attributes.
    pub fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Shown, Errno> {
        self.attr(Request::Getattr { ino, handle })
    }

    /// Sets attributes and answers with all of them.
    pub fn setattr(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        set: SetAttr,
        cred: Cred,
    ) -> Result<Shown, Errno> {
        self.attr(Request::Setattr {
            ino,
            handle,
            set,
            cred,
        })
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.bytes(Request::Readlink { ino })
    }

    /// Makes a FIFO, socket, device or empty file.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        cred: Cred,
    ) -> Result<Shown, Errno> {
        self.attr(Request::Mknod {
            link: link(parent, name),
            mode,
            rdev,
            cred,
        })
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: Ino, name: &[u8], perm: u16, cred: Cred) -> Result<Shown, Errno> {
        self.attr(Request::Mkdir {
            link: link(parent, name),
            perm,
            cred,
        })
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        cred: Cred,
    ) -> Result<Shown, Errno> {
        self.attr(Request::Symlink {
            link: link(parent, name),
            target: target.to_vec(),
            cred,
        })
    }

    /// Gives a file a further name, or one without a name its first.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], cred: Cred) -> Result<Shown, Errno> {
        self.attr(Request::Link {
            ino,
            link: link(parent, name),
            cred,
        })
    }

    /// Removes a name.
    pub fn unlink(&self, parent: Ino, name: &[u8], cred: Cred) -> Result<(), Errno> {
        self.done(Request::Unlink {
            link: link(parent, name),
            cred,
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8], cred: Cred) -> Result<(), Errno> {
        self.done(Request::Rmdir {
            link: link(parent, name),
            cred,
        })
    }

    /// Renames.
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        cred: Cred,
    ) -> Result<(), Errno> {
        let (from, to) = (link(from.0, from.1), link(to.0, to.1));
        self.done(Request::Rename {
            from,
            to,
            mode,
            cred,
        })
    }

    /// Opens a directory for a user.
    pub fn open_dir(&self, ino: Ino, uid: u32) -> Result<Handle, Errno> {
        match self.call(Request::OpenDir { ino, uid })? {
            Response::OpenedDir(handle) => Ok(handle),
            other => unexpected(other),
        }
    }

    /// Entries from position `offset` on; none at the end.
    pub fn read_dir(&self, handle: Handle, offset: u64) -> Result<Vec<Dirent>, Errno> {
        match self.call(Request::ReadDir { handle, offset })? {
            Response::Entries(entries) => Ok(entries),
            other => unexpected(other),
        }
    }

    /// Closes a directory.
    pub fn close_dir(&self, handle: Handle) -> Result<(), Errno> {
        self.done(Request::CloseDir { handle })
    }

    /// Names in a directory reach stable storage.
    pub fn fsync_dir(&self, ino: Ino) -> Result<(), Errno> {
        self.done(Request::FsyncDir { ino })
    }

    /// Totals.
    pub fn statfs(&self) -> Result<Statfs, Errno> {
        match self.call(Request::Statfs)? {
            Response::Statfs(statfs) => Ok(statfs),
            other => unexpected(other),
        }
    }

    /// For how long the PFS has not answered, zero while it does, and how long requests wait for
    /// it. Never waits itself.
    pub fn health(&self) -> Result<(Duration, Duration), Errno> {
        match self.call(Request::PfsHealth)? {
            Response::PfsHealth {
                silent_ms,
                give_up_after_ms,
            } => Ok((
                Duration::from_millis(silent_ms),
                Duration::from_millis(give_up_after_ms),
            )),
            other => unexpected(other),
        }
    }

    /// One extended attribute, for a user.
    pub fn get_xattr(&self, ino: Ino, name: &[u8], uid: u32) -> Result<Vec<u8>, Errno> {
        self.bytes(Request::GetXattr {
            ino,
            name: name.to_vec(),
            uid,
        })
    }

    /// Names of all that `cred` may know of, each followed by NUL.
    pub fn list_xattr(&self, ino: Ino, cred: Cred) -> Result<Vec<u8>, Errno> {
        self.bytes(Request::ListXattr { ino, cred })
    }

    /// Sets one.
    pub fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        cred: Cred,
    ) -> Result<(), Errno> {
        self.introduce(&cred);
        let (name, value) = (name.to_vec(), value.to_vec());
        self.done(Request::SetXattr {
            ino,
            name,
            value,
            mode,
            cred,
        })
    }

    /// Removes one.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8], cred: Cred) -> Result<(), Errno> {
        self.done(Request::RemoveXattr {
            ino,
            name: name.to_vec(),
            cred,
        })
    }

    /// Fills `into` from `offset`; fewer bytes only at the end of the file. `thread` asks, 0 where
    /// that is not known.
    pub fn read(
        &self,
        handle: Handle,
        offset: u64,
        into: &mut [u8],
        thread: u32,
    ) -> Result<usize, Errno> {
        self.read_as((handle, offset, None), into, thread)
    }

    /// The same, of what is kept until the server recalls it; and where the file ends, the first
    /// time that it is asked for by this handle: later ends are recalled.
    pub fn read_pages(
        &self,
        handle: Handle,
        offset: u64,
        into: &mut [u8],
        thread: u32,
    ) -> Result<(usize, Option<u64>), Errno> {
        let ends = Arc::new(AtomicU64::new(0));
        let bytes = self.read_as((handle, offset, Some(ends.clone())), into, thread)?;
        let end = ends.load(Ordering::Relaxed);
        Ok((bytes, (end > 0).then_some(end)))
    }

    fn read_as(
        &self,
        (handle, offset, pages): (Handle, u64, Option<Arc<AtomicU64>>),
        into: &mut [u8],
        thread: u32,
    ) -> Result<usize, Errno> {
        let links = self.connection.links();
        // Few bytes, or one link: nothing is to be gained, and nothing is counted.
        if parts(self.distribution, links, into.len(), 1) == 1 || self.is_local() {
            let link = self.link_for(Moves::Read, thread);
            let from = (handle, offset, pages.as_deref());
            return read_on(&*self.connection, link, from, into);
        }
        let (under_way, reads) = self.pieces.enter();
        let parts = parts(self.distribution, links, into.len(), reads);
        let first = self.moved.fetch_add(parts as u64, Ordering::Relaxed);
        let (connection, distribution) = (self.connection.clone(), self.distribution);
        let thread = self.seats.of(thread);
        let read = move |number: usize, at: usize, into: &mut [u8]| {
            let nth = first.wrapping_add(number as u64);
            let asked = Asked {
                moves: Moves::Read,
                thread,
                nth,
            };
            let link = choose(distribution, links, asked);
            let from = (handle, offset + at as u64, pages.as_deref());
            read_on(&*connection, link, from, into)
        };
        let outcome = match parts {
            1 => read(0, 0, into),
            _ => self
                .pieces
                .read(parts, into, Arc::new(read) as Arc<ReadPiece>),
        };
        drop(under_way);
        outcome
    }

    /// Writes `data` at `offset`, or at the end. `thread` asks, 0 where that is not known.
    pub fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: WriteHow,
        thread: u32,
    ) -> Result<Progress<usize>, Errno> {
        let request = Request::Write {
            handle,
            offset,
            how,
        };
        let link = self.link_for(Moves::Write, thread);
        let reply = self.connection.call_on(link, request, data, &mut [])?;
        match reply.response {
            Response::Moved(bytes) => Ok(Progress::Done(bytes as usize)),
            Response::Paced { bytes, pause_ms } => {
                let pause = Duration::from_millis(pause_ms.into());
                Ok(Progress::Paced(bytes as usize, pause))
            }
            Response::WouldWait => Ok(Progress::WouldWait),
            other => unexpected(other),
        }
    }

    /// What was written is as durable as the file's level says.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<(), Errno> {
        self.done(Request::Fsync { handle, data_only })
    }

    /// fallocate(2).
    pub fn change_space(
        &self,
        handle: Handle,
        change: SpaceChange,
        offset: u64,
        len: u64,
        drop_suid: bool,
        may_wait: bool,
    ) -> Result<Progress<()>, Errno> {
        match self.call(Request::Space {
            handle,
            change,
            offset,
            len,
            drop_suid,
            may_wait,
        })? {
            Response::Done => Ok(Progress::Done(())),
            Response::WouldWait => Ok(Progress::WouldWait),
            other => unexpected(other),
        }
    }

    /// lseek(2) for data and holes.
    pub fn seek(&self, handle: Handle, offset: u64, what: SeekWhat) -> Result<u64, Errno> {
        match self.call(Request::Seek {
            handle,
            offset,
            what,
        })? {
            Response::Position(position) => Ok(position),
            other => unexpected(other),
        }
    }
}
