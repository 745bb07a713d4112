//! What a small tree should hold, and what it holds, on the mount and on the PFS.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use forebay_types::{Errno, FileKind, Ino};

use crate::common::Running;

/// One step of a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Creates or empties a file, writes this many bytes of this version, closes it.
    Write(&'static str, u8, usize),
    /// The same with an fsync before the close.
    WriteFsync(&'static str, u8, usize),
    /// The same with an fsync, and a stage-out before a reader closes it too.
    WriteDrain(&'static str, u8, usize),
    /// Makes a file without a name with an attribute, writes this many bytes of this version,
    /// fsyncs it, gives it this name, closes it.
    Unnamed(&'static str, u8, usize),
    Truncate(&'static str, usize),
    Rename(&'static str, &'static str),
    /// The same over a file that somebody reads on the PFS.
    RenameOverOpen(&'static str, &'static str),
    /// The same over one that somebody opens there when it has just lost its name.
    RenameOverOpening(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Unlink(&'static str),
    Link(&'static str, &'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Chmod(&'static str, u16),
    Xattr(&'static str, u8),
    Drain,
    /// Orders memory back, and waits until it is given back.
    Lend,
    /// Waits until everything undrained has its checksum on record.
    Sealed,
    /// A bit of the file's object on flash, near its end, is damaged.
    Flip(&'static str),
    /// Reads it.
    Read(&'static str),
    /// Stages a file out while its mode changes all the time.
    DrainRacing(&'static str),
    StageIn(&'static str),
    Prefetch(&'static str),
    Release(&'static str),
    /// Publishes a version.
    Commit(&'static str),
    /// The same where an outsider has the name.
    CommitBeside(&'static str),
    /// An outsider makes a directory on the PFS, under the name of a version: the mount does not
    /// show it.
    OutsideDir(&'static str),
    /// An outsider writes a file on the PFS.
    Outside(&'static str, u8, usize),
    /// The same, as soon as a demotion has looked at what it is to replace.
    OutsideAtLook(&'static str, u8, usize),
    /// An orderly stop.
    Stop,
    /// The process is killed here.
    Die,
}

impl Op {
    /// A file whose content nothing can be said of when the operation is interrupted.
    pub fn vague(&self) -> Option<&'static str> {
        match self {
            Op::Write(path, ..) | Op::WriteFsync(path, ..) | Op::WriteDrain(path, ..) => Some(path),
            Op::DrainRacing(path) => Some(path),
            _ => None,
        }
    }
}

/// What is put beside an outsider's is called so, and then by the time, which the trees leave out.
const BESIDE: &str = ".forebay-conflict-";

fn without_times(path: &str) -> String {
    let part = |name: &str| match name.split_once(BESIDE) {
        Some((name, _)) => format!("{name}{BESIDE}"),
        None => name.to_string(),
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The versions in a tree: directories called `v` and something.
pub fn versions(tree: &Tree) -> Vec<String> {
    let is_version = |path: &str| path.rsplit('/').next().is_some_and(|n| n.starts_with('v'));
    let dirs = tree.iter().filter(|(_, entry)| **entry == Entry::Dir);
    let all = dirs.map(|(path, _)| path.clone());
    all.filter(|path| is_version(path)).collect()
}

/// What is below a directory.
pub fn below(tree: &Tree, dir: &str) -> Tree {
    let start = format!("{dir}/");
    let inside = tree.iter().filter(|(path, _)| path.starts_with(&start));
    inside.map(|(p, e)| (p.clone(), e.clone())).collect()
}

/// Content by version.
pub fn content(version: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ version.wrapping_mul(97))
        .collect()
}

/// A file; several names may share it.
#[derive(Clone, Debug, PartialEq)]
struct Inode {
    data: Vec<u8>,
    perm: u16,
    attribute: Option<u8>,
}

/// Names and what they stand for.
#[derive(Clone, Default)]
pub struct Model {
    dirs: Vec<String>,
    names: BTreeMap<String, usize>,
    inodes: Vec<Inode>,
}

impl Model {
    /// Does what an operation does.
    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write(path, version, len)
            | Op::WriteFsync(path, version, len)
            | Op::WriteDrain(path, version, len) => self.write(path, content(version, len), 0o640),
            Op::Unnamed(path, version, len) => {
                self.write(path, content(version, len), 0o640);
                self.inode(path).attribute = Some(version);
            }
            Op::Outside(path, version, len) | Op::OutsideAtLook(path, version, len) => {
                self.write(path, content(version, len), 0o600)
            }
            Op::Truncate(path, len) => self.inode(path).data.resize(len, 0),
            Op::Rename(from, to)
            | Op::RenameOverOpen(from, to)
            | Op::RenameOverOpening(from, to) => self.rename(from, to),
            Op::Exchange(a, b) => {
                self.rename(a, "(aside)");
                self.rename(b, a);
                self.rename("(aside)", b);
            }
            Op::Unlink(path) => drop(self.names.remove(path)),
            Op::Link(from, to) => drop(self.names.insert(to.into(), self.names[from])),
            Op::Mkdir(path) => self.dirs.push(path.into()),
            Op::Rmdir(path) => self.dirs.retain(|dir| dir != path),
            Op::Chmod(path, perm) => self.inode(path).perm = perm,
            Op::Xattr(path, value) => self.inode(path).attribute = Some(value),
            Op::CommitBeside(path) => {
                self.rename(path, &format!("{path}{BESIDE}"));
                self.dirs.push(path.into());
            }
            Op::Drain
            | Op::Lend
            | Op::Sealed
            | Op::Flip(_)
            | Op::Read(_)
            | Op::Commit(_)
            | Op::OutsideDir(_)
            | Op::DrainRacing(_)
            | Op::StageIn(_)
            | Op::Prefetch(_)
            | Op::Release(_)
            | Op::Stop
            | Op::Die => {}
        }
    }

    fn inode(&mut self, path: &str) -> &mut Inode {
        &mut self.inodes[self.names[path]]
    }

    fn write(&mut self, path: &str, data: Vec<u8>, perm: u16) {
        if self.names.contains_key(path) {
            self.inode(path).data = data;
            return;
        }
        self.names.insert(path.into(), self.inodes.len());
        let attribute = None;
        self.inodes.push(Inode {
            data,
            perm,
            attribute,
        });
    }

    fn rename(&mut self, from: &str, to: &str) {
        if let Some(inode) = self.names.remove(from) {
            self.names.insert(to.into(), inode);
            return;
        }
        let below = |path: &str| path.strip_prefix(from).map(|rest| format!("{to}{rest}"));
        for dir in &mut self.dirs {
            *dir = below(dir).unwrap_or_else(|| dir.clone());
        }
        let names = std::mem::take(&mut self.names).into_iter();
        self.names = names
            .map(|(path, inode)| (below(&path).unwrap_or(path), inode))
            .collect();
    }

    /// What [`shown`] and [`on_pfs`] must find.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        for dir in &self.dirs {
            tree.insert(dir.clone(), Entry::Dir);
        }
        for (path, inode) in &self.names {
            let same: Vec<String> = self
                .names
                .iter()
                .filter(|(_, other)| *other == inode)
                .map(|(path, _)| path.clone())
                .collect();
            let body = &self.inodes[*inode];
            let entry = Entry::File {
                names: same,
                links: self.names.values().filter(|other| *other == inode).count() as u32,
                perm: body.perm,
                attribute: body.attribute,
                data: body.data.clone(),
            };
            tree.insert(path.clone(), entry);
        }
        tree
    }
}

/// One name.
#[derive(Clone, PartialEq)]
pub enum Entry {
    Dir,
    File {
        /// All names of the same file.
        names: Vec<String>,
        links: u32,
        perm: u16,
        attribute: Option<u8>,
        data: Vec<u8>,
    },
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Entry::Dir => write!(f, "directory"),
            Entry::File {
                names,
                links,
                perm,
                attribute,
                data,
            } => {
                // The first bytes tell the version.
                let head = &data[..data.len().min(2)];
                let len = data.len();
                write!(
                    f,
                    "{names:?} {links} links {perm:o} {attribute:?} {len} {head:?}"
                )
            }
        }
    }
}

/// All names below the root.
pub type Tree = BTreeMap<String, Entry>;

/// Without a path, and without it among the names of others.
pub fn without(tree: &Tree, path: &str) -> Tree {
    let mut tree = tree.clone();
    tree.remove(path);
    tree
}

const ATTRIBUTE: &str = "user.point";

/// What the mount shows.
pub fn shown(server: &Running) -> Tree {
    let mut raw = BTreeMap::new();
    let mut dirs = vec![(String::new(), Ino::ROOT)];
    let mut tree = Tree::new();
    while let Some((base, dir)) = dirs.pop() {
        for (name, kind) in list(server, dir) {
            let path = join(&base, &name);
            let attr = server
                .client
                .lookup(dir, name.as_bytes(), 0)
                .expect("lookup");
            if kind == FileKind::Directory {
                tree.insert(path.clone(), Entry::Dir);
                dirs.push((path, attr.ino));
                continue;
            }
            let attribute = match server.client.get_xattr(attr.ino, ATTRIBUTE.as_bytes(), 0) {
                Ok(value) => Some(value[0]),
                Err(Errno::ENODATA | Errno::EOPNOTSUPP) => None,
                Err(other) => panic!("{path}: {other:?}"),
            };
            let data = server.read_all(path.as_bytes()).expect("read");
            raw.insert(path, (attr.ino.0, attr.nlink, attr.perm, attribute, data));
        }
    }
    gather(tree, raw)
}

fn list(server: &Running, dir: Ino) -> Vec<(String, FileKind)> {
    let client = &server.client;
    let handle = client.open_dir(dir, 0).expect("opendir");
    let mut all: Vec<forebay_types::Dirent> = Vec::new();
    loop {
        let next = all.last().map_or(0, |entry| entry.next);
        let more = client.read_dir(handle, next).expect("readdir");
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    client.close_dir(handle).expect("closedir");
    all.into_iter()
        .map(|e| (String::from_utf8(e.name).expect("UTF-8"), e.kind))
        .filter(|(name, _)| name != "." && name != "..")
        .collect()
}

/// Inode, links, mode, attribute, content.
type Raw = (u64, u32, u16, Option<u8>, Vec<u8>);

fn gather(mut tree: Tree, raw: BTreeMap<String, Raw>) -> Tree {
    for (path, (ino, links, perm, attribute, data)) in &raw {
        let names = raw.iter().filter(|(_, other)| other.0 == *ino);
        let entry = Entry::File {
            names: names.map(|(name, _)| name.clone()).collect(),
            links: *links,
            perm: *perm,
            attribute: *attribute,
            data: data.clone(),
        };
        tree.insert(path.clone(), entry);
    }
    tree.into_iter().map(without_times_in).collect()
}

fn without_times_in((path, mut entry): (String, Entry)) -> (String, Entry) {
    if let Entry::File { names, .. } = &mut entry {
        names
            .iter_mut()
            .for_each(|name| *name = without_times(name));
    }
    (without_times(&path), entry)
}

fn join(base: &str, name: &str) -> String {
    match base {
        "" => name.to_string(),
        _ => format!("{base}/{name}"),
    }
}

/// What the PFS holds, Forebay's own files included.
pub fn on_pfs(root: &Path) -> Tree {
    let mut raw = BTreeMap::new();
    let mut tree = Tree::new();
    let mut dirs = vec![String::new()];
    while let Some(base) = dirs.pop() {
        for entry in fs::read_dir(root.join(&base)).expect("read_dir") {
            let entry = entry.expect("entry");
            let path = join(&base, &entry.file_name().into_string().expect("UTF-8"));
            let stat = entry.metadata().expect("stat");
            if stat.is_dir() {
                tree.insert(path.clone(), Entry::Dir);
                dirs.push(path);
                continue;
            }
            let mut value = [0];
            let attribute = rustix::fs::getxattr(entry.path(), ATTRIBUTE, &mut value[..])
                .ok()
                .map(|_| value[0]);
            let data = fs::read(entry.path()).expect("read");
            let perm = stat.permissions().mode() as u16 & 0o7777;
            raw.insert(
                path,
                (stat.ino(), stat.nlink() as u32, perm, attribute, data),
            );
        }
    }
    gather(tree, raw)
}
