//! The reference: a tree of inodes with bytes, and what POSIX says about it.

use std::collections::{BTreeMap, HashMap};

use forebay_types::{Errno, FileKind, RenameMode, TimeSpec};

/// Names an inode of the reference.
pub type Id = usize;
/// The root directory.
pub const ROOT: Id = 0;

/// What an inode is.
pub enum Body {
    /// Regular file with its content.
    File(Vec<u8>),
    /// Directory with its entries.
    Dir(BTreeMap<Vec<u8>, Id>),
    /// Symbolic link with its target.
    Symlink(Vec<u8>),
}

/// One inode.
pub struct Inode {
    /// What it is.
    pub body: Body,
    /// Permission bits.
    pub perm: u16,
    /// Modification time, where it was set and not overtaken by a change.
    pub mtime: Option<TimeSpec>,
    /// Names.
    pub nlink: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Open handles.
    pub opens: u32,
    /// Of those, for writing.
    pub writers: u32,
}

/// The tree.
pub struct Tree {
    inodes: HashMap<Id, Inode>,
    next: Id,
}

/// A place in the tree.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path of the directory.
    pub dir_path: Vec<Vec<u8>>,
    /// The directory.
    pub dir: Id,
    /// A name in it.
    pub name: Vec<u8>,
}

impl Place {
    /// Path from the root.
    pub fn path(&self) -> Vec<u8> {
        let mut parts = self.dir_path.clone();
        parts.push(self.name.clone());
        parts.join(&b'/')
    }
}

impl Inode {
    fn new(body: Body, perm: u16) -> Inode {
        Inode {
            body,
            perm,
            mtime: None,
            nlink: 1,
            xattrs: BTreeMap::new(),
            opens: 0,
            writers: 0,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::Regular,
            Body::Dir(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
        }
    }

    /// Content of a regular file.
    pub fn data(&self) -> &[u8] {
        match &self.body {
            Body::File(data) => data,
            _ => panic!("not a regular file"),
        }
    }
}

impl Tree {
    /// An empty root.
    pub fn new() -> Tree {
        let root = Inode::new(Body::Dir(BTreeMap::new()), 0o755);
        Tree {
            inodes: HashMap::from([(ROOT, root)]),
            next: 1,
        }
    }

    /// An inode.
    pub fn get(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    /// An inode, to change it.
    pub fn get_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("inode")
    }

    /// Entries of a directory.
    pub fn entries(&self, dir: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.get(dir).body {
            Body::Dir(entries) => entries,
            _ => panic!("not a directory"),
        }
    }

    fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.get_mut(dir).body {
            Body::Dir(entries) => entries,
            _ => panic!("not a directory"),
        }
    }

    /// What a name stands for.
    pub fn child(&self, dir: Id, name: &[u8]) -> Option<Id> {
        self.entries(dir).get(name).copied()
    }

    /// What a place stands for.
    pub fn at(&self, place: &Place) -> Option<Id> {
        self.child(place.dir, &place.name)
    }

    /// All names with what they stand for, the root left out.
    pub fn places(&self) -> Vec<(Place, Id)> {
        let mut places = Vec::new();
        let mut todo = vec![(Vec::new(), ROOT)];
        while let Some((dir_path, dir)) = todo.pop() {
            for (name, id) in self.entries(dir) {
                let name = name.clone();
                if self.get(*id).kind() == FileKind::Directory {
                    let mut path: Vec<Vec<u8>> = dir_path.clone();
                    path.push(name.clone());
                    todo.push((path, *id));
                }
                let place = Place {
                    dir_path: dir_path.clone(),
                    dir,
                    name,
                };
                places.push((place, *id));
            }
        }
        places
    }

    /// All directories with their paths.
    pub fn dirs(&self) -> Vec<(Vec<Vec<u8>>, Id)> {
        let mut dirs = vec![(Vec::new(), ROOT)];
        for (place, id) in self.places() {
            if self.get(id).kind() == FileKind::Directory {
                let mut path = place.dir_path;
                path.push(place.name);
                dirs.push((path, id));
            }
        }
        dirs
    }

    /// Bytes in all files that have names.
    pub fn total_bytes(&self) -> usize {
        let sizes = self.inodes.values().map(|inode| match &inode.body {
            Body::File(data) => data.len(),
            _ => 0,
        });
        sizes.sum()
    }

    /// Adds an inode under a name.
    pub fn add(&mut self, dir: Id, name: &[u8], body: Body, perm: u16) -> Result<Id, Errno> {
        if self.child(dir, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let id = self.next;
        self.next += 1;
        self.inodes.insert(id, Inode::new(body, perm));
        self.entries_mut(dir).insert(name.to_vec(), id);
        Ok(id)
    }

    /// Adds an inode without a name, for who opens it.
    pub fn add_unnamed(&mut self, body: Body, perm: u16) -> Id {
        let id = self.next;
        self.next += 1;
        let mut inode = Inode::new(body, perm);
        inode.nlink = 0;
        self.inodes.insert(id, inode);
        id
    }

    /// link(2).
    pub fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Result<(), Errno> {
        if self.child(dir, name).is_some() {
            return Err(Errno::EEXIST);
        }
        if self.get(id).kind() == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        self.entries_mut(dir).insert(name.to_vec(), id);
        self.get_mut(id).nlink += 1;
        Ok(())
    }

    /// unlink(2).
    pub fn unlink(&mut self, dir: Id, name: &[u8]) -> Result<(), Errno> {
        let id = self.child(dir, name).ok_or(Errno::ENOENT)?;
        if self.get(id).kind() == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        self.drop_name(dir, name);
        Ok(())
    }

    /// rmdir(2).
    pub fn rmdir(&mut self, dir: Id, name: &[u8]) -> Result<(), Errno> {
        let id = self.child(dir, name).ok_or(Errno::ENOENT)?;
        match &self.get(id).body {
            Body::Dir(entries) if entries.is_empty() => {}
            Body::Dir(_) => return Err(Errno::ENOTEMPTY),
            _ => return Err(Errno::ENOTDIR),
        }
        self.drop_name(dir, name);
        Ok(())
    }

    /// Removes a name whatever it stands for.
    pub fn drop_name(&mut self, dir: Id, name: &[u8]) {
        if let Some(id) = self.entries_mut(dir).remove(name) {
            self.get_mut(id).nlink -= 1;
            self.collect(id);
        }
    }

    /// An inode without names and handles goes.
    pub fn collect(&mut self, id: Id) {
        let inode = self.get(id);
        if inode.nlink == 0 && inode.opens == 0 {
            self.inodes.remove(&id);
        }
    }

    /// Whether `id` is `dir` or above it.
    pub fn is_above(&self, id: Id, dir_path: &[Vec<u8>]) -> bool {
        let mut at = ROOT;
        if at == id {
            return true;
        }
        for part in dir_path {
            match self.child(at, part) {
                Some(next) => at = next,
                None => return false,
            }
            if at == id {
                return true;
            }
        }
        false
    }

    /// rename(2) and its modes.
    pub fn rename(&mut self, from: &Place, to: &Place, mode: RenameMode) -> Result<(), Errno> {
        let moved = self.at(from).ok_or(Errno::ENOENT)?;
        let there = self.at(to);
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Exchange, Some(other)) => {
                self.entries_mut(from.dir).insert(from.name.clone(), other);
                self.entries_mut(to.dir).insert(to.name.clone(), moved);
                return Ok(());
            }
            _ => {}
        }
        if there == Some(moved) {
            return Ok(());
        }
        if let Some(there) = there {
            match (&self.get(moved).body, &self.get(there).body) {
                (Body::Dir(_), Body::Dir(entries)) if !entries.is_empty() => {
                    return Err(Errno::ENOTEMPTY);
                }
                (Body::Dir(_), Body::Dir(_)) => {}
                (Body::Dir(_), _) => return Err(Errno::ENOTDIR),
                (_, Body::Dir(_)) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        self.drop_name(to.dir, &to.name);
        self.entries_mut(from.dir).remove(&from.name);
        self.entries_mut(to.dir).insert(to.name.clone(), moved);
        Ok(())
    }

    fn data_mut(&mut self, id: Id) -> &mut Vec<u8> {
        let inode = self.get_mut(id);
        inode.mtime = None;
        match &mut inode.body {
            Body::File(data) => data,
            _ => panic!("not a regular file"),
        }
    }

    /// pwrite(2).
    pub fn write(&mut self, id: Id, offset: usize, data: &[u8]) {
        let content = self.data_mut(id);
        if content.len() < offset + data.len() {
            content.resize(offset + data.len(), 0);
        }
        content[offset..offset + data.len()].copy_from_slice(data);
    }

    /// ftruncate(2).
    pub fn truncate(&mut self, id: Id, size: usize) {
        self.data_mut(id).resize(size, 0);
    }

    /// fallocate(2): zeros a range (`zero`), and extends the file (`extend`).
    pub fn allocate(&mut self, id: Id, offset: usize, len: usize, zero: bool, extend: bool) {
        let content = self.data_mut(id);
        let end = offset + len;
        if extend && content.len() < end {
            content.resize(end, 0);
        }
        let end = end.min(content.len());
        if zero && offset < end {
            content[offset..end].fill(0);
        }
    }
}
