//! What the kernel still keeps of files that a walk comes by: stores through mappings.

use std::sync::Arc;

use forebay_namespace::{DirKey, Node};
use forebay_types::Ino;

use crate::base::failure::Failure;
use crate::buffer::opens::{OpenFile, Target};
use crate::orders::Orders;
use crate::orders::walk::Visited;

/// A file that somebody may store into without the server's hearing of it.
struct Kept {
    ino: Ino,
    /// Where it is found, if it is only on the PFS.
    place: Option<(DirKey, Box<[u8]>)>,
}

/// All of them, as they were when an order began: what is opened later is stored into later.
#[derive(Default)]
pub(super) struct KeptStores(Vec<Kept>);

impl KeptStores {
    pub(super) fn now(orders: &Orders, go_on: &dyn Fn() -> bool) -> KeptStores {
        let mut kept = Vec::new();
        for open in orders.files.stored_unheard() {
            let place = match orders.ns.node(open.ino) {
                Ok(Node::Plain(node)) => Some((node.parent.key, node.name.clone())),
                _ => None,
            };
            if place.is_some() && has_several_names(orders, &open) {
                // The walk may come by another of its names. It is changed where it is, so that
                // there is nothing else to do for it.
                if let Err(errno) = orders.files.fetch_stores(open.ino, go_on) {
                    tracing::debug!("{:?}: stores are not fetched: {errno}", open.ino);
                }
            }
            kept.push(Kept {
                ino: open.ino,
                place,
            });
        }
        KeptStores(kept)
    }

    /// Takes in what is kept of one of them: it may be dirty then, and in the burst buffer.
    pub(super) fn take_in(
        &self,
        orders: &Orders,
        visited: &mut Visited,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let is_it = |kept: &&Kept| match (&visited.file, &kept.place) {
            (Some(file), _) => kept.ino == file.ino,
            (None, Some((dir, name))) => *dir == visited.dir.key && **name == *visited.name,
            (None, None) => false,
        };
        let Some(kept) = self.0.iter().find(is_it) else {
            return Ok(());
        };
        let fetched = orders.files.fetch_stores(kept.ino, go_on);
        fetched.map_err(|errno| {
            let why = "open for writing; what was stored through its mapping cannot be had now";
            Failure::new(errno, why)
        })?;
        if let Ok(Node::File(file)) = orders.ns.node(kept.ino) {
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
