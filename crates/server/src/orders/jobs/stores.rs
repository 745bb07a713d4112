//! What the kernel still keeps of files that a walk comes by: stores through mappings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_namespace::Node;
use forebay_tiers::PfsId;
use forebay_types::{Errno, Ino};

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::orders::Orders;
use crate::orders::walk::Visited;

/// Files that somebody may store into without the server's hearing of it, as they were when an
/// order began: what is opened later is stored into later.
#[derive(Default)]
pub(super) struct KeptStores {
    all: HashSet<Ino>,
    /// Those that are only on the PFS. An outsider may give them other names at any time.
    on_pfs: HashMap<PfsId, Ino>,
}

impl KeptStores {
    pub(super) fn now(orders: &Orders, go_on: &dyn Fn() -> bool) -> KeptStores {
        let mut kept = KeptStores::default();
        for open in orders.files.stored_unheard() {
            kept.all.insert(open.ino);
            let Ok(Node::Plain(node)) = orders.ns.node(open.ino) else {
                continue;
            };
            kept.on_pfs.insert(node.id, open.ino);
            if has_several_names(orders, &open) {
                // The walk may come by another of its names. It is changed where it is, so that
                // there is nothing else to do for it.
                if let Err(failure) = orders.files.fetch_stores(open.ino, go_on) {
                    tracing::warn!("{:?}: stores are not fetched: {failure}", open.ino);
                }
            }
        }
        kept
    }

    /// Takes in what is kept of one of them: it may be dirty then, and in the burst buffer.
    pub(super) fn take_in(
        &self,
        orders: &Orders,
        visited: &mut Visited,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        if self.all.is_empty() {
            return Ok(());
        }
        let ino = match &visited.file {
            // It is waited for until it is closed, and by then all of it has come.
            Some(file) if file.lock().is_dirty() => None,
            Some(file) => self.all.get(&file.ino).copied(),
            None => self.found_on_pfs(orders, visited)?,
        };
        let Some(ino) = ino else {
            return Ok(());
        };
        let fetched = orders.files.fetch_stores(ino, go_on);
        fetched.map_err(|failure| {
            failure.about("open for writing; what was stored through its mapping cannot be had now")
        })?;
        if let Ok(Node::File(file)) = orders.ns.node(ino) {
            visited.file = Some(file);
        }
        Ok(())
    }

    /// Which of them has this name on the PFS now.
    fn found_on_pfs(&self, orders: &Orders, visited: &Visited) -> Result<Option<Ino>, Failure> {
        if self.on_pfs.is_empty() {
            return Ok(None);
        }
        match visited.id_on_pfs(&orders.ns) {
            Ok(id) => Ok(self.on_pfs.get(&id).copied()),
            // Nothing has this name any more.
            Err(failure) if matches!(failure.errno(), Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(failure) => {
                Err(failure.about("whether a program stores into it cannot be looked at now"))
            }
        }
    }
}

/// What was lost of a file: no order brings it to the PFS.
pub(in crate::orders) fn lost(orders: &Orders, visited: &Visited) -> Option<Failure> {
    let losses = orders.files.losses();
    if losses.is_empty() {
        return None;
    }
    match &visited.file {
        Some(file) => losses.of_file(file),
        None => match (losses.all_tell(), visited.id_on_pfs(&orders.ns)) {
            (all_tell, Ok(id)) => {
                losses.met(id, visited.place(), all_tell);
                losses.of_pfs(id.into())
            }
            // Nothing has this name any more.
            (_, Err(failure)) if matches!(failure.errno(), Errno::ENOENT | Errno::ESTALE) => None,
            (_, Err(failure)) => {
                Some(failure.about("whether something of it is lost cannot be told"))
            }
        },
    }
}

fn has_several_names(orders: &Orders, open: &Arc<OpenFile>) -> bool {
    match &*open.target.read() {
        Target::Buffer { .. } => false,
        Target::Pfs { file, .. } => {
            let stat = orders.ns.pfs().stat_file(file.file());
            stat.is_ok_and(|stat| stat.nlink > 1)
        }
    }
}
