//! What is acted on under a name of the PFS is the file that the user's id stands for. Whoever may
//! write to a directory of the PFS can give a name there to another file at any time, even to a
//! file that they may not touch. The kernel has checked the rights on the file that it knows, and
//! the daemon may do anything. So the name is opened once, what is found is compared, and only that
//! is read and changed.

use forebay_tiers::{PfsDir, PfsNode};
use forebay_types::Errno;

use crate::error::on_pfs;
use crate::record::Published;
use crate::table::PlainNode;
use crate::tree::Place;
use crate::{File, Namespace, NsError};

impl Namespace {
    /// What is only on the PFS; `ESTALE` where another thing has taken its name.
    pub(crate) fn plain_node(&self, plain: &PlainNode) -> Result<PfsNode, NsError> {
        let handle = self.open_dir(&plain.parent)?;
        let node = match self.pfs.node(&handle, &plain.name) {
            Ok(node) => node,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Err(Errno::ESTALE.into()),
            Err(e) => return Err(on_pfs("open by name")(e)),
        };
        match node.found().id == plain.id {
            true => Ok(node),
            false => Err(Errno::ESTALE.into()),
        }
    }

    /// What was published under a name, whatever its content is by now; `ESTALE` where another file
    /// has taken it.
    pub(crate) fn published_node(
        &self,
        handle: &PfsDir,
        name: &[u8],
        published: Option<Published>,
    ) -> Result<PfsNode, NsError> {
        let node = self
            .pfs
            .node(handle, name)
            .map_err(on_pfs("open by name"))?;
        let id = node.found().id;
        match published {
            Some(known) if (known.ino, known.btime_ns) == (id.ino, id.btime_ns) => Ok(node),
            _ => Err(Errno::ESTALE.into()),
        }
    }

    /// The same of a clean file; `None` if it is not, or has no name.
    pub(crate) fn clean_node(&self, file: &File) -> Result<Option<PfsNode>, NsError> {
        loop {
            let Some(((dir, name), published)) = place(file) else {
                return Ok(None);
            };
            let found = self
                .open_dir(&dir)
                .and_then(|handle| self.published_node(&handle, &name, published));
            match (found, place(file)) {
                // It has been renamed or drained once more since.
                (Err(_), now) if !is_same(&now, &(dir, name), published) => {}
                (found, _) => return found.map(Some),
            }
        }
    }
}

fn place(file: &File) -> Option<(Place, Option<Published>)> {
    let state = file.lock();
    let first = state.names.first().filter(|_| !state.is_dirty())?;
    Some((first.clone(), state.residency.published))
}

fn is_same(
    now: &Option<(Place, Option<Published>)>,
    (dir, name): &Place,
    published: Option<Published>,
) -> bool {
    now.as_ref().is_some_and(|((dir_now, name_now), now)| {
        std::sync::Arc::ptr_eq(dir_now, dir) && name_now == name && *now == published
    })
}
