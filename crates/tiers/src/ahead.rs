//! Space that a file system sets aside by itself beyond the end of a file that grows.
//!
//! XFS does so, up to the size of the file once more. It takes the space back at the first close,
//! minutes after a later one, and whenever it needs it. Such space is nobody's data.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::Stat;

/// `st_blocks` counts these, whatever the file system's block size.
const STAT_BLOCK_BYTES: u64 = 512;
/// So much beyond the end is not looked at: attributes and maps of extents take it.
const SLACK_BYTES: u64 = 8 << 10;
/// What statfs(2) says of XFS.
const XFS_MAGIC: u64 = 0x5846_5342;
/// `FS_IOC_FSGETXATTR`: `_IOR('X', 31, struct fsxattr)`.
const GET_FLAGS: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
/// Somebody has asked for space by fallocate(2): XFS leaves what lies beyond the end.
const FLAG_PREALLOC: u32 = 0x2;
/// Space is given in units of a size of its own, and stays.
const FLAG_EXTSIZE: u32 = 0x800;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Flags {
    flags: u32,
    rest: [u32; 6],
}

/// Space that a file takes, as stat(2) has it.
pub(crate) fn allocated_bytes(stat: &Stat) -> u64 {
    stat.st_blocks as u64 * STAT_BLOCK_BYTES
}

/// The end of the last block that holds a byte.
fn end_of_content(stat: &Stat) -> u64 {
    let block = (stat.st_blksize as u64).max(1);
    (stat.st_size as u64).next_multiple_of(block)
}

/// Whether a file takes more than its size needs, so that it is worth a question.
pub(crate) fn is_suspected(stat: &Stat) -> bool {
    allocated_bytes(stat) > end_of_content(stat).saturating_add(SLACK_BYTES)
}

/// Whether this is on a file system that sets space aside by itself.
pub(crate) fn is_made_by(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type as u64 == XFS_MAGIC)
}

/// Space that a file takes, without what its file system has set aside by itself. That costs a
/// question only where it takes more than its size needs. What somebody has asked for counts.
pub(crate) fn charged_bytes(file: impl AsFd, stat: &Stat) -> u64 {
    if is_suspected(stat) && is_made_by(&file) && !is_asked_for(&file) {
        end_of_content(stat)
    } else {
        allocated_bytes(stat)
    }
}

/// Whether space beyond the end is there to stay; also where nothing tells.
fn is_asked_for(file: impl AsFd) -> bool {
    let mut found = Flags::default();
    // SAFETY: the request writes one `fsxattr`, which `found` is laid out as and which lives until
    // it returns.
    let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GET_FLAGS, &raw mut found) };
    done != 0 || found.flags & (FLAG_PREALLOC | FLAG_EXTSIZE) != 0
}

const _: () = assert!(size_of::<Flags>() == 28);
