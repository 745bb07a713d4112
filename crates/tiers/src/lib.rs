//! Every byte is moved here: objects in tiers, the tree of the parallel file system (PFS) below,
//! copies between them and the checksums that prove them. Linux only.
//!
//! A tier is a directory: `dram` a private tmpfs, `ssd` any directory on flash. The PFS is reached
//! by descriptors only, one checked name at a time, and never through a symbolic link.

mod actas;
mod ahead;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod copy;
mod crc;
mod dir;
mod dram;
mod file;
mod health;
mod identity;
mod memory;
#[cfg(any(test, feature = "testing"))]
mod null;
mod object;
mod outside;
mod pages;
mod pfs;
mod private;
mod publish;
mod random;
mod refresh;
mod sums;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tier;
mod walk;
mod write_blocker;
mod writeback;
mod writers;

pub use actas::ActAs;
pub use copy::{
    CHECKSUM_STEP_BYTES, CopyControl, CopyError, CopyReport, copy, copy_to_new, verify,
};
pub use crc::{crc32c_append_zeros, crc32c_update};
pub use dir::{DirError, DirTier, LOST_FOUND, TIER_VERSION};
pub use dram::{DramError, DramMount, mount_dram};
pub use file::FileObject;
pub use health::PfsHealth;
pub use identity::{Identity, IdentityError, ParentKey};
pub use memory::{MachineMemory, MemoryNow, MemoryPool, MemorySource, SystemMemory};
#[cfg(any(test, feature = "testing"))]
pub use null::NullTier;
pub use object::{Allocate, Object, ObjectStat, Seek};
pub use outside::{CopiesOut, Outside, OutsideError, copy_out};
pub use pages::WriteBack;
pub use pfs::{FlushTogether, FsId, PfsDir, PfsEntry, PfsId, PfsNode, PfsStat, PfsTree};
pub use private::make_private;
pub use publish::{Appearance, MetadataWarning, apply_metadata};
pub use random::random_bytes;
pub use refresh::{refresh, refresh_ranges};
pub use sums::{BLOCKS_MAX, PIECE_BYTES_MIN, Sums, checksum, sums};
pub use tier::{Elsewhere, Space, Tier, TierKind};
pub use write_blocker::{BlocksWriters, WriteBlocker};
pub use writeback::{
    WriteBehind, heard_of_writeback, heard_so_far, start_writeback, wait_writeback,
};
