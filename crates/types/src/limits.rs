//! A limit on everything that a peer or a user can make large.

use std::time::Duration;

/// Longest name of one path component, in bytes (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path from the root of the mount, in bytes (`PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest target of a symbolic link, in bytes; the kernel's own limit less the NUL.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Longest name of an extended attribute, in bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest value of an extended attribute, in bytes (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Largest total of a burst-buffer file's extended attributes, in bytes: they live in its record.
pub const XATTRS_PER_FILE_BYTES_MAX: usize = 32768;
/// Largest data part of one message, in bytes; also the largest FUSE request.
pub const IO_BYTES_MAX: usize = 1 << 20;
/// Largest message on a connection without its data part, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Paths in one control message.
pub const PATHS_PER_MESSAGE_MAX: usize = 4096;
/// References dropped by one message.
pub const FORGETS_PER_MESSAGE_MAX: usize = 4096;
/// Files closed by one message.
pub const RELEASES_PER_MESSAGE_MAX: usize = 1024;
/// Files and directories that one client may have open.
pub const HANDLES_PER_SESSION_MAX: usize = 1 << 20;
/// Locks of files that one client may hold or wait for.
pub const LOCKS_PER_SESSION_MAX: usize = 1 << 14;
/// What a client is to forget, in one reply.
pub const RECALLS_PER_REPLY_MAX: usize = 1024;
/// For how long a client may believe what it was shown, counted from its request. It is also how
/// long an outsider's change on the PFS may stay unseen.
pub const SHOWN_FOR: Duration = Duration::from_secs(1);
/// Processes that a client tells of in one message.
pub const PROCESSES_PER_MESSAGE_MAX: usize = 256;
/// Processes of one client that a server remembers.
pub const PROCESSES_PER_SESSION_MAX: usize = 4096;
/// Supplementary groups of a process that a client tells of.
pub const GROUPS_PER_PROCESS_MAX: usize = 1024;
/// Longest name of a batch job, in bytes.
pub const JOB_BYTES_MAX: usize = 128;
/// Directory entries in one reply.
pub const DIRENTS_PER_REPLY_MAX: usize = 1024;
/// Largest size of a file, in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Unit in which space is set aside for a growing file, in bytes (the SAU of ONFS, 4 MiB).
pub const SPACE_UNIT_BYTES: u64 = 4 << 20;
/// Errors that `status` remembers; older ones are only counted.
pub const ERRORS_REMEMBERED_MAX: usize = 256;
/// Files changed in place on the PFS that are named after a failed flush; of more only their number
/// is told, and each owner's fsync.
pub const UNFLUSHED_NAMED_MAX: usize = 1 << 16;

const _: () = assert!(IO_BYTES_MAX as u64 <= SPACE_UNIT_BYTES);
const _: () = assert!(XATTRS_PER_FILE_BYTES_MAX < MESSAGE_BYTES_MAX);
