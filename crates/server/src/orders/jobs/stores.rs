//! What the kernel still keeps of files that a walk comes by: stores through mappings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_namespace::{DirKey, Node};
use forebay_types::Ino;

use crate::base::failure::Failure;
use crate::buffer::opens::{OpenFile, Target};
use crate::orders::Orders;
use crate::orders::walk::Visited;

/// Files that somebody may store into without the server's hearing of it, as they were when an
/// order began: what is opened later is stored into later.
#[derive(Default)]
pub(super) struct KeptStores {
    all: HashSet<Ino>,
    /// Those that are only on the PFS, by where they are found.
    on_pfs: HashMap<(DirKey, Vec<u8>), Ino>,
}

impl KeptStores {
    pub(super) fn now(orders: &Orders, go_on: &dyn Fn() -> bool) -> KeptStores {
        let mut kept = KeptStores::default();
        for open in orders.files.stored_unheard() {
            kept.all.insert(open.ino);
            let Ok(Node::Plain(node)) = orders.ns.node(open.ino) else {
                continue;
            };
            let place = (node.parent.key, node.name.to_vec());
            kept.on_pfs.insert(place, open.ino);
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
            Some(file) => self.all.get(&file.ino),
            None => self.on_pfs.get(&(visited.dir.key, visited.name.clone())),
        };
        let Some(&ino) = ino else {
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
