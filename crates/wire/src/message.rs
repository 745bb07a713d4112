//! The messages: one request, one response.

use forebay_types::{
    Attr, ByteRange, Cred, Dirent, Errno, Handle, Ino, LockClass, LockMode, NameError, OpenFlags,
    RenameMode, SetAttr, Statfs, XattrMode, check_name, limits,
};
use serde::{Deserialize, Serialize};

use crate::control::{Control, ControlResponse};
use crate::object::{ObjectCall, ObjectPlace, ObjectReply};
use crate::space::{SeekWhat, SpaceChange};

/// A name to be resolved in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The directory.
    pub parent: Ino,
    /// One component; checked by [`Request::check`].
    pub name: Vec<u8>,
}

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteHow {
    /// At the end of the file as the server finds it (`O_APPEND`): who asks may not know that
    /// somebody else has written.
    pub append: bool,
    /// The set-id bits go where the writer may not keep them.
    pub drop_suid: bool,
    /// Until there is space; else the server answers [`Response::WouldWait`] instead of blocking
    /// who asks.
    pub may_wait: bool,
    /// The kernel writes back what was stored through a mapping: if that fails, no program is told
    /// by this request.
    pub write_back: bool,
}

impl WriteHow {
    /// At the offset, by who keeps set-id bits, and waiting for space.
    pub const WAITING: WriteHow = WriteHow {
        append: false,
        drop_suid: false,
        may_wait: true,
        write_back: false,
    };
}

/// A process of a client's node that is about to ask, as its kernel tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// What the node calls it.
    pub pid: u32,
    /// For how long it has been running, milliseconds.
    pub age_ms: u64,
    /// Its session there, or what stands for that.
    pub family: u64,
    /// Its supplementary groups, at most [`limits::GROUPS_PER_PROCESS_MAX`].
    pub groups: Vec<u32>,
    /// Its batch job, such as `slurm-4711`.
    pub job: Option<String>,
    /// Nodes of the job.
    pub job_nodes: Option<u32>,
}

/// A lock of a file: whose, and of which bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockOf {
    /// Through which it is asked for: the lock goes with it, if not before.
    pub handle: Handle,
    /// By fcntl(2) or by flock(2).
    pub class: LockClass,
    /// Whom the client's kernel takes for its owner.
    pub owner: u64,
    /// Of flock(2): [`ByteRange::ALL`].
    pub range: ByteRange,
}

/// A lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Which bytes are locked.
    pub range: ByteRange,
    /// Shared or exclusive.
    pub mode: LockMode,
    /// The process, where it is one of the node that asks; else 0.
    pub pid: u32,
}

/// What a client asks of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are named after those of the system calls
pub enum Request {
    /// Resolves a name and takes one reference on what it finds. `uid` is who asks, as in each
    /// request that has no [`Cred`]: it counts where the server looks at rights.
    Lookup {
        link: Link,
        uid: u32,
    },
    /// Drops references taken by `Lookup`, `Create`, `CreateUnnamed`, `Mkdir`, `Mknod`, `Symlink`,
    /// `Link`.
    Forget(Vec<(Ino, u64)>),
    /// Attributes; through the handle where there is one.
    Getattr {
        ino: Ino,
        handle: Option<Handle>,
    },
    /// Sets attributes; a size may have to wait for space, see [`Response::WouldWait`].
    Setattr {
        ino: Ino,
        handle: Option<Handle>,
        set: SetAttr,
        cred: Cred,
    },
    Readlink {
        ino: Ino,
    },
    Mknod {
        link: Link,
        mode: u32,
        rdev: u32,
        cred: Cred,
    },
    Mkdir {
        link: Link,
        perm: u16,
        cred: Cred,
    },
    Symlink {
        link: Link,
        target: Vec<u8>,
        cred: Cred,
    },
    /// A further name for an existing file.
    Link {
        ino: Ino,
        link: Link,
        cred: Cred,
    },
    Unlink {
        link: Link,
        cred: Cred,
    },
    Rmdir {
        link: Link,
        cred: Cred,
    },
    Rename {
        from: Link,
        to: Link,
        mode: RenameMode,
        cred: Cred,
    },
    /// Takes a snapshot of a directory's entries.
    OpenDir {
        ino: Ino,
        uid: u32,
    },
    /// Entries of that snapshot from position `offset` on.
    ReadDir {
        handle: Handle,
        offset: u64,
    },
    CloseDir {
        handle: Handle,
    },
    Statfs,
    /// Whether the PFS answers.
    PfsHealth,
    GetXattr {
        ino: Ino,
        name: Vec<u8>,
        uid: u32,
    },
    SetXattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
        cred: Cred,
    },
    ListXattr {
        ino: Ino,
        cred: Cred,
    },
    RemoveXattr {
        ino: Ino,
        name: Vec<u8>,
        cred: Cred,
    },
    /// Creates a regular file and opens it. With `shows_parent` the answer has the attributes of
    /// its directory, too.
    Create {
        link: Link,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
        shows_parent: bool,
    },
    Open {
        ino: Ino,
        flags: OpenFlags,
        cred: Cred,
    },
    Release {
        handle: Handle,
    },
    /// Data comes back beside the reply. With `pages` the client keeps it until that is recalled.
    Read {
        handle: Handle,
        offset: u64,
        len: u32,
        pages: bool,
    },
    /// Data travels beside the request.
    Write {
        handle: Handle,
        offset: u64,
        how: WriteHow,
    },
    Fsync {
        handle: Handle,
        data_only: bool,
    },
    FsyncDir {
        ino: Ino,
    },
    Space {
        handle: Handle,
        change: SpaceChange,
        offset: u64,
        len: u64,
        drop_suid: bool,
        may_wait: bool,
    },
    Seek {
        handle: Handle,
        offset: u64,
        what: SeekWhat,
    },
    /// From the command line, not from a mount.
    Control(Control),
    /// The same, handed on by a mount, which names the user whom it was asked by. Orders that are
    /// for the server's own node are refused.
    ControlFor {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
        control: Control,
    },
    /// Tells of processes before the server is asked in their name, and of those that have ended.
    Introduce {
        processes: Vec<Introduction>,
        ended: Vec<u32>,
    },
    /// Creates a regular file without a name in a directory and opens it (`O_TMPFILE`). `Link`
    /// gives it its first name; without one it goes when nobody has it open or knows it any more.
    CreateUnnamed {
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
    },
    /// Waits until the client is to forget something that it was shown as firm, and says that all
    /// recalls up to number `seen` have been followed. The first one, with 0, says that the client
    /// follows recalls at all. It is answered without any when the link or the session ends.
    /// `settled` is not 0 once the client has dropped, in this session, all pages of before.
    Recalls {
        seen: u64,
        settled: u64,
    },
    /// Locks bytes. Where somebody is in the way: `EAGAIN`; with a ticket [`Response::WouldWait`],
    /// and a [`Recall::Granted`] once the lock is there. `EDEADLK` where that would be never;
    /// `EBUSY` while clients of before a restart have not come back: it is to be asked again. With
    /// `again` it is a lock that the client had before the restart.
    Lock {
        lock: LockOf,
        mode: LockMode,
        pid: u32,
        ticket: Option<u64>,
        again: bool,
    },
    /// Gives bytes back.
    Unlock {
        lock: LockOf,
    },
    /// Tells who is in the way of a lock, [`Response::LockHolder`].
    TestLock {
        lock: LockOf,
        mode: LockMode,
    },
    /// Gives up waiting for a lock; `ENOENT` where nobody waits with this ticket: it may have been
    /// granted.
    CancelLock {
        ticket: u64,
    },
    /// Whether what the client had in this earlier life of its own may be had again: it was alive
    /// when the server ended, and nothing has been lost since. Else `ESTALE`. With `done` the
    /// client has what it wants of it.
    MayReclaim {
        life: u64,
        done: bool,
    },
    /// Finds a file again that has no name, and that the client had open in this earlier life, of
    /// which it has again what it had; [`Response::Attr`]. `ESTALE` for any other.
    FindNameless {
        ino: Ino,
        life: u64,
    },
    /// Makes a file on the PFS, hidden in the tree, by which a node can tell whether it sees the
    /// same PFS. It is there until [`Request::HideProbe`], another one, or the end of the session.
    ShowProbe,
    /// Removes it.
    HideProbe {
        name: Vec<u8>,
    },
    /// Closes several files, each for itself: what goes wrong with one keeps no other open. The
    /// answer tells the first error.
    ReleaseMany(Vec<Handle>),
    /// From a metadata server to a data server.
    Object(ObjectCall),
}

/// How the mount may serve an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenMode {
    /// Reads and writes are requests.
    Plain,
    /// The reply carries the object's descriptor, or the data server of the mount's node has it:
    /// the kernel may read and write it by itself.
    Passthrough,
}

/// A content of a file. Whoever is told the same version of a file twice knows that what was read
/// between the two answers is what the file has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContentVersion {
    /// The run of the server that has said it: versions of two runs are never equal.
    pub run: u64,
    /// Tells the contents of a file from each other. Numbers have no order.
    pub number: u64,
}

/// Attributes as they are shown to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// What there is.
    pub attr: Attr,
    /// Within [`limits::SHOWN_FOR`] of the request the server recalls it before a change by another
    /// client is answered: until then it may be believed. A name may not.
    pub firm: bool,
    /// Of a directory: it has no name but those that this client has made there since it made the
    /// directory. It may be believed as long as attributes that are firm, and ends with these.
    pub whole: bool,
    /// When the file began to be, as the PFS says it, nanoseconds; 0 where that is not known. With
    /// the id it tells a file from another one over restarts of the server. Of a file that was born
    /// here the id alone does.
    pub birth_ns: u64,
    /// The node of the file is away: size and times are those on record, from before it was opened
    /// for writing. Nobody may believe them, and who asks for the attributes alone waits for the
    /// node. To a kernel that has the file open, and perhaps pages of it, they must not be told: it
    /// would drop what is behind that size.
    pub outdated: bool,
}

impl std::ops::Deref for Shown {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

impl Response {
    /// How many bytes lie beside it, where the request has room for some.
    pub fn bytes_beside(&self) -> Option<u32> {
        match self {
            Response::Moved(bytes) | Response::Paged { bytes, .. } => Some(*bytes),
            _ => None,
        }
    }
}

impl From<Attr> for Shown {
    fn from(attr: Attr) -> Shown {
        Shown {
            attr,
            firm: false,
            whole: false,
            birth_ns: 0,
            outdated: false,
        }
    }
}

/// What a client is to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Recall {
    /// Attributes.
    Attr(Ino),
    /// Attributes and pages; what was stored in these is written back before.
    Pages(Ino),
    /// That a file which the client may have mapped ended earlier.
    Grown {
        /// The file.
        ino: Ino,
        /// Where it ended after that, bytes: it may have become shorter since.
        end: u64,
    },
    /// That a lock is waited for: the client has it now. This is the ticket that it gave.
    Granted(u64),
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Names it in later requests.
    pub handle: Handle,
    /// How it may be served.
    pub mode: OpenMode,
    /// Which content it has. `None` where that is not known, as while somebody writes it: then
    /// nothing that was read before may be believed.
    pub content: Option<ContentVersion>,
    /// How long that is, bytes; 0 where the content is not known.
    pub bytes: u64,
    /// Of [`OpenMode::Passthrough`], where the reply carries no descriptor: who has it.
    pub place: Option<Box<ObjectPlace>>,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// It failed, and nothing has changed.
    Failed(Errno),
    /// Done.
    Done,
    /// Attributes of what was found, made or changed.
    Attr(Shown),
    /// A new, open file, with a name or without, and its directory after that, if the request wants
    /// it.
    Created(Shown, Opened, Option<Box<Shown>>),
    /// An open file.
    Opened(Opened),
    /// An open directory.
    OpenedDir(Handle),
    /// Entries; none at the end.
    Entries(Vec<Dirent>),
    /// Link target, xattr value or NUL-separated xattr names.
    Bytes(Vec<u8>),
    /// So many bytes were written; of a read, lie beside the reply.
    Moved(u32),
    /// So many bytes were written, and the program that asked is to hear of it so much later,
    /// milliseconds: the file's user or group has a rate.
    #[allow(missing_docs)]
    Paced { bytes: u32, pause_ms: u32 },
    /// Pages were read for the first time by a handle that may write: so many bytes lie beside the
    /// reply, and the file ends there. From here on the client is told each end that the file has
    /// grown to.
    Paged {
        /// Bytes that lie beside the reply.
        bytes: u32,
        /// Where the file ended after that.
        end: u64,
    },
    /// Position.
    Position(u64),
    /// File system totals.
    Statfs(Statfs),
    /// For how long the PFS has not answered, 0 while it does, and how long requests wait for it;
    /// milliseconds.
    #[allow(missing_docs)]
    PfsHealth {
        silent_ms: u64,
        give_up_after_ms: u64,
    },
    /// The request would have to wait for space; ask again with `may_wait`.
    WouldWait,
    /// Answer to [`Request::Control`].
    Control(ControlResponse),
    /// What is to be forgotten, at most [`limits::RECALLS_PER_REPLY_MAX`], and the number of the
    /// last of it.
    #[allow(missing_docs)]
    Recalls { last: u64, recalls: Vec<Recall> },
    /// Who is in the way of a lock, if anybody is.
    LockHolder(Option<LockHolder>),
    /// A file at the top of the PFS, and what is in it.
    #[allow(missing_docs)]
    Probe { name: Vec<u8>, content: Vec<u8> },
    /// Answer to [`Request::Object`].
    Object(ObjectReply),
}

impl Request {
    /// Refuses what no honest client sends: bad names and ids, and lengths over the limits. Servers
    /// call this before they act on a request that came over a socket.
    pub fn check(&self) -> Result<(), Errno> {
        if !self.names_somebody() {
            return Err(Errno::EINVAL);
        }
        match self {
            Request::Lookup { link: l, .. }
            | Request::Mknod { link: l, .. }
            | Request::Mkdir { link: l, .. }
            | Request::Link { link: l, .. }
            | Request::Unlink { link: l, .. }
            | Request::Rmdir { link: l, .. }
            | Request::Create { link: l, .. } => check_link(l),
            Request::Symlink {
                link: l, target, ..
            } => {
                check_link(l)?;
                check_target(target)
            }
            Request::Rename { from, to, .. } => {
                check_link(from)?;
                check_link(to)
            }
            Request::GetXattr { name, .. } | Request::RemoveXattr { name, .. } => {
                check_xattr_name(name)
            }
            Request::SetXattr { name, value, .. } => {
                check_xattr_name(name)?;
                if value.len() > limits::XATTR_VALUE_BYTES_MAX {
                    return Err(Errno::E2BIG);
                }
                Ok(())
            }
            // Whoever cannot write it can neither fill nor use it.
            Request::CreateUnnamed { flags, .. } if !flags.writes() => Err(Errno::EINVAL),
            Request::Read { len, .. } if *len as usize > limits::IO_BYTES_MAX => Err(Errno::EINVAL),
            Request::Write { offset, .. } if *offset > limits::FILE_BYTES_MAX => Err(Errno::EFBIG),
            Request::Space { offset, len, .. } => match offset.checked_add(*len) {
                Some(end) if end <= limits::FILE_BYTES_MAX => Ok(()),
                _ => Err(Errno::EFBIG),
            },
            Request::Forget(nodes) if nodes.len() > limits::FORGETS_PER_MESSAGE_MAX => {
                Err(Errno::E2BIG)
            }
            Request::Lock { lock, .. }
            | Request::Unlock { lock }
            | Request::TestLock { lock, .. } => match lock.range.first <= lock.range.last {
                true => Ok(()),
                false => Err(Errno::EINVAL),
            },
            Request::ReleaseMany(handles) if handles.len() > limits::RELEASES_PER_MESSAGE_MAX => {
                Err(Errno::E2BIG)
            }
            Request::Introduce { processes, ended } => check_introduction(processes, ended),
            Request::HideProbe { name } => check_name(name).map_err(Errno::from),
            Request::Object(call) => call.check(),
            Request::Control(control) => control.check(),
            Request::ControlFor {
                groups, control, ..
            } => match groups.len() > limits::GROUPS_PER_PROCESS_MAX {
                true => Err(Errno::E2BIG),
                false => control.check(),
            },
            _ => Ok(()),
        }
    }
}

fn check_link(link: &Link) -> Result<(), Errno> {
    check_name(&link.name).map_err(|error: NameError| Errno::from(error))
}

/// Of a symbolic link.
fn check_target(target: &[u8]) -> Result<(), Errno> {
    if target.is_empty() || target.contains(&0) {
        return Err(Errno::EINVAL);
    }
    match target.len() > limits::SYMLINK_BYTES_MAX {
        true => Err(Errno::ENAMETOOLONG),
        false => Ok(()),
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    match name.is_empty() || name.len() > limits::XATTR_NAME_BYTES_MAX || name.contains(&0) {
        true => Err(Errno::ERANGE),
        false => Ok(()),
    }
}

fn check_introduction(processes: &[Introduction], ended: &[u32]) -> Result<(), Errno> {
    let most = limits::PROCESSES_PER_MESSAGE_MAX;
    let too_long = |process: &Introduction| {
        let job_bytes = process.job.as_ref().map_or(0, String::len);
        process.groups.len() > limits::GROUPS_PER_PROCESS_MAX || job_bytes > limits::JOB_BYTES_MAX
    };
    match processes.len() > most || ended.len() > most || processes.iter().any(too_long) {
        true => Err(Errno::E2BIG),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Process;

    use super::*;

    #[test]
    fn a_file_without_a_name_is_for_who_writes_it() {
        let request = |flags: i32| Request::CreateUnnamed {
            parent: Ino::ROOT,
            perm: 0o600,
            flags: OpenFlags(flags as u32),
            cred: Cred {
                uid: 0,
                gid: 0,
                process: Process::here(0),
                umask: 0,
            },
        };
        assert_eq!(request(libc::O_RDWR).check(), Ok(()));
        assert_eq!(request(libc::O_WRONLY).check(), Ok(()));
        assert_eq!(request(libc::O_RDONLY).check(), Err(Errno::EINVAL));
    }
}
