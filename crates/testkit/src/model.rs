//! What a directory tree should hold, in memory: the reference for random operations.

use std::collections::BTreeMap;

use crate::tree::Entry;

/// A path below the root, by its components.
pub type Name = Vec<String>;

/// Content number; several names of one file share it.
type Inode = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(Inode),
}

/// A tree of directories, files and further names of files.
#[derive(Default)]
pub struct Model {
    nodes: BTreeMap<Name, Node>,
    contents: BTreeMap<Inode, Vec<u8>>,
    next: Inode,
}

/// Result of an operation: an error is the errno that must come.
pub type Outcome = Result<(), i32>;

impl Model {
    fn parent_ok(&self, name: &Name) -> Outcome {
        match name.split_last() {
            Some((_, [])) => Ok(()),
            Some((_, parent)) => match self.nodes.get(parent) {
                Some(Node::Dir) => Ok(()),
                Some(Node::File(_)) => Err(libc::ENOTDIR),
                None => self.why_missing(parent),
            },
            None => Err(libc::EINVAL),
        }
    }

    /// The error for a path whose last component is not there.
    fn why_missing(&self, name: &[String]) -> Outcome {
        for len in 1..name.len() {
            match self.nodes.get(&name[..len]) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(libc::ENOTDIR),
                None => return Err(libc::ENOENT),
            }
        }
        Err(libc::ENOENT)
    }

    fn inode(&self, name: &Name) -> Result<Inode, i32> {
        match self.nodes.get(name) {
            Some(Node::File(inode)) => Ok(*inode),
            Some(Node::Dir) => Err(libc::EISDIR),
            None => Err(self.why_missing(name).err().unwrap_or(libc::ENOENT)),
        }
    }

    fn children(&self, name: &Name) -> usize {
        let below = |other: &&Name| other.len() > name.len() && other.starts_with(name);
        self.nodes.keys().filter(below).count()
    }

    /// Creates an empty file, or empties an existing one.
    pub fn create(&mut self, name: &Name) -> Outcome {
        self.parent_ok(name)?;
        match self.inode(name) {
            Ok(inode) => self.contents.insert(inode, Vec::new()),
            Err(libc::ENOENT) => {
                self.next += 1;
                self.nodes.insert(name.clone(), Node::File(self.next));
                self.contents.insert(self.next, Vec::new())
            }
            Err(errno) => return Err(errno),
        };
        Ok(())
    }

    /// Writes into an existing file.
    pub fn write(&mut self, name: &Name, offset: usize, data: &[u8]) -> Outcome {
        let inode = self.inode(name)?;
        let content = self.contents.entry(inode).or_default();
        let end = offset + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset..end].copy_from_slice(data);
        Ok(())
    }

    /// Sets the length of an existing file.
    pub fn truncate(&mut self, name: &Name, len: usize) -> Outcome {
        let inode = self.inode(name)?;
        self.contents.entry(inode).or_default().resize(len, 0);
        Ok(())
    }

    /// Content of a file.
    pub fn read(&self, name: &Name) -> Result<&[u8], i32> {
        let inode = self.inode(name)?;
        Ok(self.contents.get(&inode).map_or(&[], Vec::as_slice))
    }

    /// Removes a name of a file.
    pub fn unlink(&mut self, name: &Name) -> Outcome {
        self.inode(name)?;
        self.nodes.remove(name);
        Ok(())
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, name: &Name) -> Outcome {
        self.parent_ok(name)?;
        if self.nodes.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.nodes.insert(name.clone(), Node::Dir);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, name: &Name) -> Outcome {
        match self.nodes.get(name) {
            None => self.why_missing(name),
            Some(Node::File(_)) => Err(libc::ENOTDIR),
            Some(Node::Dir) if self.children(name) > 0 => Err(libc::ENOTEMPTY),
            Some(Node::Dir) => {
                self.nodes.remove(name);
                Ok(())
            }
        }
    }

    /// Gives a file a further name.
    pub fn link(&mut self, from: &Name, to: &Name) -> Outcome {
        let inode = self.inode(from);
        if !matches!(inode, Ok(_) | Err(libc::EISDIR)) {
            return inode.map(|_| ());
        }
        self.parent_ok(to)?;
        if self.nodes.contains_key(to) {
            return Err(libc::EEXIST);
        }
        let inode = inode.map_err(|_| libc::EPERM)?;
        self.nodes.insert(to.clone(), Node::File(inode));
        Ok(())
    }

    /// Renames a file or a directory.
    pub fn rename(&mut self, from: &Name, to: &Name) -> Outcome {
        self.parent_ok(from)?;
        self.parent_ok(to)?;
        let Some(node) = self.nodes.get(from).copied() else {
            return Err(libc::ENOENT);
        };
        if from == to {
            return Ok(());
        }
        if node == Node::Dir && to.starts_with(from) {
            return Err(libc::EINVAL);
        }
        if from.starts_with(to) {
            return Err(libc::ENOTEMPTY);
        }
        match (node, self.nodes.get(to).copied()) {
            (Node::File(a), Some(Node::File(b))) if a == b => return Ok(()),
            (Node::File(_), Some(Node::Dir)) => return Err(libc::EISDIR),
            (Node::Dir, Some(Node::File(_))) => return Err(libc::ENOTDIR),
            (Node::Dir, Some(Node::Dir)) if self.children(to) > 0 => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        let moving: Vec<Name> = self
            .nodes
            .keys()
            .filter(|name| name.starts_with(from))
            .cloned()
            .collect();
        for old in moving {
            if let Some(node) = self.nodes.remove(&old) {
                let new = [&to[..], &old[from.len()..]].concat();
                self.nodes.insert(new, node);
            }
        }
        Ok(())
    }

    /// What [`crate::snapshot`] must find; permissions are what `perm` says.
    pub fn expected(&self, dir_perm: u32, file_perm: u32) -> BTreeMap<Vec<u8>, Entry> {
        let mut names: BTreeMap<Inode, u64> = BTreeMap::new();
        for node in self.nodes.values() {
            if let Node::File(inode) = node {
                *names.entry(*inode).or_default() += 1;
            }
        }
        let entry = |node: &Node| match node {
            Node::Dir => Entry::Dir(dir_perm),
            Node::File(inode) => {
                let content = self.contents.get(inode).cloned().unwrap_or_default();
                Entry::File(file_perm, names[inode], content)
            }
        };
        let all = self.nodes.iter();
        all.map(|(name, node)| (name.join("/").into_bytes(), entry(node)))
            .collect()
    }
}
