//! What the tree should hold: paths, contents and attributes, and what an outsider has put under a
//! name that is shown otherwise.

use std::collections::BTreeMap;

use forebay_types::{Errno, RenameMode};

/// A path below the root, its parts joined by '/'; empty for the root.
pub type Path = String;

/// A file, whatever its names.
pub type FileId = usize;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub content: Vec<u8>,
    pub perm: u16,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Facts {
    pub fn new(content: Vec<u8>, perm: u16) -> Facts {
        let xattrs = BTreeMap::new();
        Facts {
            content,
            perm,
            xattrs,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(FileId),
}

/// The reference.
#[derive(Default)]
pub struct Reference {
    pub nodes: BTreeMap<Path, Node>,
    pub files: Vec<Facts>,
    /// Versions of an outsider under names of undrained files: they show when those leave.
    pub hidden: BTreeMap<Path, Facts>,
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

pub fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The path beside another of this name.
pub fn beside(path: &str, name: &str) -> Path {
    match parent(path) {
        "" => name.to_string(),
        parent => format!("{parent}/{name}"),
    }
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Puts what is at `from`, and all below it, to `to`.
fn carry<T: Clone>(map: &mut BTreeMap<Path, T>, from: &str, to: &str) -> Vec<(Path, T)> {
    let is_it = |path: &&Path| *path == from || is_below(path, from);
    let paths: Vec<Path> = map.keys().filter(is_it).cloned().collect();
    let taken = paths
        .into_iter()
        .filter_map(|path| Some((format!("{to}{}", &path[from.len()..]), map.remove(&path)?)));
    taken.collect()
}

impl Reference {
    pub fn file(&self, path: &str) -> Option<FileId> {
        match self.nodes.get(path) {
            Some(Node::File(id)) => Some(*id),
            _ => None,
        }
    }

    pub fn paths_of(&self, id: FileId) -> Vec<Path> {
        let is_it = |(_, node): &(&Path, &Node)| **node == Node::File(id);
        let paths = self.nodes.iter().filter(is_it);
        paths.map(|(path, _)| path.clone()).collect()
    }

    /// A new file under a name that is free.
    pub fn add(&mut self, path: &str, facts: Facts) -> FileId {
        self.files.push(facts);
        let id = self.files.len() - 1;
        self.nodes.insert(path.to_string(), Node::File(id));
        id
    }

    pub fn is_empty(&self, dir: &str) -> bool {
        let mut all = self.nodes.keys().chain(self.hidden.keys());
        !all.any(|path| is_below(path, dir))
    }

    pub fn link(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        let Some(id) = self.file(from) else {
            return Err(Errno::EPERM);
        };
        if self.nodes.contains_key(to) {
            return Err(Errno::EEXIST);
        }
        self.nodes.insert(to.to_string(), Node::File(id));
        Ok(())
    }

    pub fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        match self.nodes.get(path) {
            Some(Node::File(_)) => self.nodes.remove(path),
            Some(Node::Dir) => return Err(Errno::EISDIR),
            None => return Err(Errno::ENOENT),
        };
        self.reveal();
        Ok(())
    }

    pub fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        match self.nodes.get(path) {
            Some(Node::Dir) if !self.is_empty(path) => Err(Errno::ENOTEMPTY),
            Some(Node::Dir) => {
                self.nodes.remove(path);
                Ok(())
            }
            Some(Node::File(_)) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    pub fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
        let (Some(&a), b) = (self.nodes.get(from), self.nodes.get(to).copied()) else {
            return Err(Errno::ENOENT);
        };
        match (mode, b) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Exchange, Some(b)) => self.exchange(from, to, a, b),
            (_, Some(b)) if a == b && a != Node::Dir => return Ok(()),
            (_, Some(Node::Dir)) if a != Node::Dir => return Err(Errno::EISDIR),
            (_, Some(Node::File(_))) if a == Node::Dir => return Err(Errno::ENOTDIR),
            (_, Some(Node::Dir)) if !self.is_empty(to) => return Err(Errno::ENOTEMPTY),
            _ => self.carry_all(from, to, a),
        }
        self.reveal();
        Ok(())
    }

    fn carry_all(&mut self, from: &str, to: &str, what: Node) {
        let moved = carry(&mut self.nodes, from, to);
        self.nodes.extend(moved);
        if what == Node::Dir {
            // What an outsider has put into a directory goes with it; what is under a file's own
            // name stays there.
            let moved = carry(&mut self.hidden, from, to);
            self.hidden.extend(moved);
        }
    }

    fn exchange(&mut self, from: &str, to: &str, a: Node, b: Node) {
        const ASIDE: &str = "(aside)";
        self.carry_all(from, ASIDE, a);
        self.carry_all(to, from, b);
        self.carry_all(ASIDE, to, a);
    }

    /// What is under a name that no file of the burst buffer has any more shows.
    pub fn reveal(&mut self) {
        let nodes = &self.nodes;
        let free = |path: &&Path| !nodes.contains_key(*path);
        let shown: Vec<Path> = self.hidden.keys().filter(free).cloned().collect();
        for path in shown {
            if let Some(facts) = self.hidden.remove(&path) {
                self.add(&path, facts);
            }
        }
    }

    /// Two versions stand beside each other from now on.
    pub fn part(&mut self, path: &str, kept_as: &str, theirs: bool) {
        let kept_as = beside(path, kept_as);
        match theirs {
            true => {
                let hidden = self.hidden.remove(path);
                self.add(&kept_as, hidden.expect("an outsider's version"));
            }
            false => {
                let node = self.nodes.remove(path).expect("a file of ours");
                self.nodes.insert(kept_as, node);
                self.reveal();
            }
        }
    }
}
