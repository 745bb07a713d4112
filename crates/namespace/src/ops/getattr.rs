//! getattr and readlink, by id.

use std::sync::Arc;

use forebay_tiers::{PfsNode, PfsStat};
use forebay_types::{Attr, Errno, FileKind, Ino};

use crate::error::on_pfs;
use crate::ops::lookup::attr_of;
use crate::table::{Node, PlainNode};
use crate::{File, Namespace, NsError};

impl Namespace {
    /// Attributes; of a burst-buffer file, as of the last close, with the file itself.
    pub fn getattr(&self, ino: Ino) -> Result<(Attr, Option<Arc<File>>), NsError> {
        self.getattr_of(ino, self.node(ino)?)
    }

    /// The id has stood for this node.
    fn getattr_of(&self, ino: Ino, node: Node) -> Result<(Attr, Option<Arc<File>>), NsError> {
        match node {
            Node::Dir(dir) => {
                if let Some(stat) = self.known_dir_stat(&dir) {
                    return Ok((self.dir_attr(&dir, &stat), None));
                }
                let handle = self.open_dir(&dir)?;
                let _settled = dir.times.settled(&self.pfs);
                let stat = self
                    .pfs
                    .stat_dir(&handle)
                    .map_err(on_pfs("stat of a directory"))?;
                dir.learn(&stat);
                Ok((self.dir_attr(&dir, &stat), None))
            }
            Node::File(file) => {
                let (attr, is_evicted) = {
                    let state = file.lock();
                    (state.attr(ino), state.is_evicted())
                };
                // It has left the burst buffer meanwhile: its names are on the PFS.
                match is_evicted.then(|| self.node(ino)).transpose()? {
                    Some(Node::File(now)) if Arc::ptr_eq(&now, &file) => Ok((attr, Some(file))),
                    Some(now) => self.getattr_of(ino, now),
                    None => Ok((attr, Some(file))),
                }
            }
            Node::Plain(plain) => {
                let stat = self.stat_plain(&plain)?;
                Ok((attr_of(ino, &stat), None))
            }
        }
    }

    /// The PFS's attributes of a node; `ESTALE` where another thing has taken its name.
    pub fn stat_plain(&self, plain: &PlainNode) -> Result<PfsStat, NsError> {
        let handle = self.open_dir(&plain.parent)?;
        let stat = match self.pfs.stat(&handle, &plain.name) {
            Ok(stat) => stat,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Err(Errno::ESTALE.into()),
            Err(e) => return Err(on_pfs("stat")(e)),
        };
        if stat.id != plain.id {
            return Err(Errno::ESTALE.into());
        }
        Ok(stat)
    }

    /// Acts on something that is only on the PFS, while nothing can bring it in: a change there
    /// behind the back of a record would look like an outsider's. `None`: it is in the burst buffer
    /// by now.
    pub fn on_plain<T>(
        &self,
        ino: Ino,
        plain: &PlainNode,
        act: impl FnOnce(&PfsNode) -> Result<T, NsError>,
    ) -> Result<Option<T>, NsError> {
        let _order = plain.parent.order(&self.pfs)?;
        match (self.node(ino)?, plain.parent.child(&plain.name)) {
            (Node::File(_), _) => Ok(None),
            (_, Some(_)) => Err(Errno::ESTALE.into()),
            (_, None) => act(&self.plain_node(plain)?).map(Some),
        }
    }

    /// Whether it is only on the PFS, under the name it is known by; for who holds the order of its
    /// directory.
    pub(crate) fn is_still_plain(&self, ino: Ino, plain: &PlainNode) -> Result<bool, NsError> {
        match (self.node(ino)?, plain.parent.child(&plain.name)) {
            (Node::File(_), _) => Ok(false),
            (_, Some(_)) => Err(Errno::ESTALE.into()),
            (_, None) => self.stat_plain(plain).map(|_| true),
        }
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, NsError> {
        match self.node(ino)? {
            Node::Plain(plain) if plain.kind == FileKind::Symlink => self
                .pfs
                .readlink(&self.plain_node(&plain)?)
                .map_err(on_pfs("readlink")),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_kv::memory::Memory;
    use forebay_tiers::{PfsTree, Sums};
    use forebay_types::TierId;

    use super::*;
    use crate::Arrival;

    #[test]
    fn a_file_that_leaves_while_somebody_asks_has_its_links() {
        let top = tempfile::tempdir().expect("temporary directory");
        std::fs::write(top.path().join("f"), b"content").expect("write");
        let pfs = PfsTree::open(top.path()).expect("PFS");
        let (ns, _) = Namespace::open(pfs, Box::new(Memory::new()), [7; 16]).expect("open");
        let handle = ns.open_dir(ns.root()).expect("root");
        let stat = ns.pfs().stat(&handle, b"f").expect("stat");
        let arrival = Arrival {
            object: ns.new_object().expect("id"),
            tier: TierId(2),
            sums: Some(Sums::whole(stat.size, 0)),
            allocated_bytes: 4096,
        };
        let file = ns
            .attach(ns.root(), b"f", &stat, &arrival)
            .expect("it comes in");
        let ino = ns.lookup(Ino::ROOT, b"f").expect("found").attr.ino;
        // What somebody has found in the table before.
        let found = ns.node(ino).expect("known");
        assert!(ns.evict(&file).expect("evict"));
        let (attr, now) = ns.getattr_of(ino, found).expect("getattr");
        assert_eq!((attr.ino, attr.nlink, attr.size), (ino, 1, 7));
        assert!(now.is_none(), "it is on the PFS alone");
    }
}
