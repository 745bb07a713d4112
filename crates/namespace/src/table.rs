//! Which ids the kernel knows, and what they stand for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_tiers::PfsId;
use forebay_types::{FileKind, Ino};

use crate::tree::{Dir, File, Name};

/// First of the ids given out when the PFS's own inode number is taken.
const FIRST_SUBSTITUTE: u64 = 1 << 61;

/// Something on the PFS that has no object in the burst buffer and is no directory.
#[derive(Clone, Debug)]
pub struct PlainNode {
    /// Kind.
    pub kind: FileKind,
    /// A directory that has it.
    pub parent: Arc<Dir>,
    /// Its name there.
    pub name: Name,
    /// Identity on the PFS.
    pub id: PfsId,
}

/// What an id stands for.
#[derive(Clone)]
pub enum Node {
    /// A directory.
    Dir(Arc<Dir>),
    /// A file in the burst buffer.
    File(Arc<File>),
    /// Anything else. Shared: what the kernel asks about is looked up for every request.
    Plain(Arc<PlainNode>),
}

struct Entry {
    node: Node,
    /// References that the kernel holds.
    lookups: u64,
}

/// Invariants:
///
/// 1. `by_pfs[id] == ino` exactly when `entries[ino]` is a `Plain` with that id.
/// 2. Entries without lookups are the root only.
pub(crate) struct Table {
    entries: HashMap<Ino, Entry>,
    by_pfs: HashMap<PfsId, Ino>,
    /// PFS inode numbers that files of the burst buffer go by, whether the kernel knows them or
    /// not.
    reserved: HashSet<Ino>,
    next_substitute: u64,
}

impl Table {
    pub(crate) fn new(root: Arc<Dir>) -> Table {
        let mut entries = HashMap::new();
        let node = Node::Dir(root);
        entries.insert(Ino::ROOT, Entry { node, lookups: 0 });
        Table {
            entries,
            by_pfs: HashMap::new(),
            reserved: HashSet::new(),
            next_substitute: FIRST_SUBSTITUTE,
        }
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<&Node> {
        self.entries.get(&ino).map(|entry| &entry.node)
    }

    /// An id for something on the PFS: its inode number, if nothing else goes by it.
    pub(crate) fn ino_for(&mut self, id: PfsId, root_dev: u64) -> Ino {
        if let Some(ino) = self.by_pfs.get(&id) {
            return *ino;
        }
        let own = Ino(id.ino);
        if id.dev == root_dev
            && (2..FIRST_SUBSTITUTE).contains(&id.ino)
            && !self.entries.contains_key(&own)
            && !self.reserved.contains(&own)
        {
            return own;
        }
        self.next_substitute += 1;
        Ino(self.next_substitute)
    }

    /// Counts one more reference of the kernel on a node.
    pub(crate) fn remember(&mut self, ino: Ino, node: Node) {
        if let Node::Plain(plain) = &node {
            self.by_pfs.insert(plain.id, ino);
        }
        match self.entries.get_mut(&ino) {
            Some(entry) => {
                entry.lookups += 1;
                let before = std::mem::replace(&mut entry.node, node);
                self.unindex(ino, &before);
            }
            None => {
                self.entries.insert(ino, Entry { node, lookups: 1 });
            }
        }
    }

    /// Puts another node under an id that the kernel may know, keeping its references.
    pub(crate) fn replace(&mut self, ino: Ino, node: Node) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            if let Node::Plain(plain) = &node {
                self.by_pfs.insert(plain.id, ino);
            }
            let before = std::mem::replace(&mut entry.node, node);
            self.unindex(ino, &before);
        }
    }

    fn unindex(&mut self, ino: Ino, before: &Node) {
        if let Node::Plain(old) = before {
            let still = matches!(self.get(ino), Some(Node::Plain(new)) if new.id == old.id);
            if !still && self.by_pfs.get(&old.id) == Some(&ino) {
                self.by_pfs.remove(&old.id);
            }
        }
    }

    /// To change it; who has it in use keeps what it was.
    pub(crate) fn plain_by_id(&mut self, id: PfsId) -> Option<&mut PlainNode> {
        let ino = self.by_pfs.get(&id)?;
        match self.entries.get_mut(ino).map(|entry| &mut entry.node) {
            Some(Node::Plain(plain)) => Some(Arc::make_mut(plain)),
            _ => None,
        }
    }

    pub(crate) fn forget(&mut self, ino: Ino, count: u64) {
        let Some(entry) = self.entries.get_mut(&ino) else {
            return;
        };
        entry.lookups = entry.lookups.saturating_sub(count);
        if entry.lookups == 0
            && ino != Ino::ROOT
            && let Some(entry) = self.entries.remove(&ino)
        {
            self.unindex(ino, &entry.node);
        }
    }

    pub(crate) fn reserve(&mut self, ino: Ino) {
        if !ino.is_born_here() {
            self.reserved.insert(ino);
            // One that an earlier run has given out, to a file that still goes by it.
            self.next_substitute = self.next_substitute.max(ino.0);
        }
    }

    pub(crate) fn unreserve(&mut self, ino: Ino) {
        self.reserved.remove(&ino);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DirKey;

    #[test]
    fn an_id_that_an_earlier_run_gave_out_is_not_given_out_again() {
        let root = Arc::new(Dir::new(DirKey::default(), Ino::ROOT, None));
        let mut before = Table::new(root.clone());
        let id = |ino, btime_ns| PfsId {
            dev: 1,
            ino,
            btime_ns,
        };
        before.reserve(Ino(41));
        let substitute = before.ino_for(id(41, 7), 1);
        assert_ne!(substitute, Ino(41));
        // Its record keeps it, and so does the next run.
        let mut after = Table::new(root);
        for held in [Ino(41), Ino(42), substitute] {
            after.reserve(held);
        }
        for taken in [41, 42] {
            let another = after.ino_for(id(taken, 8), 1);
            assert!(![Ino(41), Ino(42), substitute].contains(&another));
        }
    }
}
