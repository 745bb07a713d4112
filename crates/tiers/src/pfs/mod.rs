//! The tree of the parallel file system, by descriptors only.
//!
//! A directory is a descriptor; a file is a directory and one checked name in it. No operation
//! follows a symbolic link, so that whoever can write to the tree cannot lead Forebay out of it.
//! Operations have the permissions of the thread: see [`crate::ActAs`].

mod attr;
mod entries;
mod flush;
mod names;
mod node;
mod private;
mod read;
mod stat;
mod tree;
mod unnamed;
mod xattr;

pub use flush::FlushTogether;
pub(crate) use flush::syncfs_counts;
pub use node::PfsNode;
pub use stat::{PfsId, PfsStat};
pub use tree::{FsId, PfsDir, PfsEntry, PfsTree};
