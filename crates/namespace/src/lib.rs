//! The tree that the mount shows: the PFS's own, with the files of the burst buffer laid over it.
//!
//! Directories, links and special files always live on the PFS, and every change of them goes there
//! at once. Regular files may live in the burst buffer; only they have records. So there is nothing
//! to merge but names of files, and nothing to hide: what is gone from the tree is gone from the
//! PFS.
//!
//! One file per operation in `ops`, with the rule of POSIX on top. Bytes are moved elsewhere.

mod acl;
mod check;
mod conflict;
mod devices;
mod empty_dirs;
mod error;
mod ids;
mod known;
mod left;
mod log;
mod nameless;
mod namespace;
mod node;
mod notes;
mod ops;
mod outside;
mod owed;
mod placement;
mod publish;
mod record;
mod residency;
mod rights;
mod stability;
mod sync;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tick;
mod times;
mod tree;
mod unsettled;

pub use acl::{ACCESS as ACCESS_LIST, Acl, without_set_id};
pub use check::RecordTrouble;
pub use conflict::{Conflict, ConflictKind};
pub use error::{NsError, in_record, of_object, on_pfs};
pub use namespace::{Garbage, Loaded, Namespace, PendingChange};
pub use ops::create::{Adopted, Free, NewFile};
pub use ops::lookup::{Found, Resolved};
pub use ops::older::Renaming;
pub use ops::setattr::AttrPlan;
pub use ops::unnamed::FirstName;
pub use ops::unpublished::Publication;
pub use ops::xattr::PFS_MARK;
pub use publish::{Confirmed, Copy, Demotion, Placed};
pub use record::{
    DirKey, FileRecord, Flushed, Meta, Published, Residency, Temporary, Unplaced, Xattrs,
};

pub use residency::{Arrival, Migration};
pub use rights::{Deed, NOBODY, Rights, Who};
pub use table::{Node, PlainNode};
pub use tree::lastlook::Trust;
pub use tree::state::ctime_after;
pub use tree::{Dir, File, FileFacts, FileState, Hidden, Name, Place};
