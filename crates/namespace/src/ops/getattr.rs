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
        match self.node(ino)? {
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
            Node::File(file) => Ok((file.attr(), Some(file))),
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
