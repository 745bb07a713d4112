//! Copies an object's bytes: demotion, stage-in, moves between tiers.
//!
//! The bytes go through one cache-resident buffer, so the checksum is that of exactly what was
//! written and costs no second read. Measured, that is as fast as sendfile(2) and faster than
//! copy_file_range(2) plus a read for the checksum, except where the file system copies by
//! reference or on its server: there copy_file_range(2) goes first.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use forebay_types::Errno;

use crate::crc::crc32c_update;
use crate::sums::Running;
use crate::walk::{BUFFER_BYTES, Buffer, Walk};
use crate::{Allocate, Object, ObjectStat, Sums, checksum};

/// [`crate::checksum`] asks whether to stop before it reads so much, bytes.
pub const CHECKSUM_STEP_BYTES: u64 = BUFFER_BYTES as u64;
/// Between two reports to [`CopyControl::moved`].
const REPORT_BYTES: u64 = 1 << 20;
/// One copy_file_range(2): `stop` is asked between two.
const OFFLOAD_BYTES: usize = 4 << 20;
/// Smaller files fit the buffer: reading them for the checksum is most of copying them.
const OFFLOAD_BYTES_MIN: u64 = BUFFER_BYTES as u64;

/// Blocks of zeros of a sparse object are left out from this size on, as file systems do.
const HOLE_BYTES: u64 = 4096;

/// What a copy moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Bytes that were moved: without holes.
    pub data_bytes: u64,
    /// Length of the copy, holes included, and its checksums.
    pub sums: Sums,
}

/// How a copy is watched and stopped. Both are called between chunks.
#[derive(Clone, Copy)]
pub struct CopyControl<'a> {
    /// Asked before every chunk; `true` ends the copy with [`CopyError::Stopped`].
    pub stop: &'a (dyn Fn() -> bool + Sync),
    /// Told how many bytes were moved since the last call, and the offset behind the last of them.
    /// May sleep, to hold a rate.
    pub moved: &'a (dyn Fn(u64, u64) + Sync),
}

impl CopyControl<'_> {
    /// Never stops, tells nobody.
    pub const NONE: CopyControl<'static> = CopyControl {
        stop: &|| false,
        moved: &|_, _| (),
    };
}

/// Why a copy ended early. The destination then holds part of the bytes and is of no use.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// `stop` said so.
    #[error("the copy was stopped")]
    Stopped,
    /// Reading failed.
    #[error("reading the source failed: {0}")]
    Source(#[source] io::Error),
    /// Writing failed, or reading back.
    #[error("writing the destination failed: {0}")]
    Destination(#[source] io::Error),
    /// The destination does not hold what was read.
    #[error("the copy's checksum is {found:#010x}, should be {expected:#010x}")]
    Verify {
        /// Of what was read from the source.
        expected: u32,
        /// Of what the destination holds; 0 where its length was wrong.
        found: u32,
        /// Where the lengths part, if they do; else 0.
        offset_hint: u64,
    },
}

impl CopyError {
    /// The error number it becomes.
    pub fn errno(&self) -> Errno {
        match self {
            CopyError::Stopped => Errno::ECANCELED,
            CopyError::Source(error) | CopyError::Destination(error) => Errno::of(error),
            CopyError::Verify { .. } => Errno::EIO,
        }
    }
}

/// Copies all of `source` into `destination`; holes stay holes. What the destination held before is
/// discarded. The length is that of the source when the copy began, or where the copy met the end
/// of a source that was cut meanwhile. Metadata are left alone and nothing is synced.
///
/// A source that changes meanwhile gives a copy of no single moment: the caller compares
/// generations and throws it away.
pub fn copy(
    source: &dyn Object,
    destination: &dyn Object,
    control: &CopyControl<'_>,
) -> Result<CopyReport, CopyError> {
    refuse_same_file(source, destination)?;
    let stat = source.stat().map_err(CopyError::Source)?;
    let held = destination.stat().map_err(CopyError::Destination)?.size;
    copy_over(source, &stat, destination, held != 0, control)
}

/// The same into a destination that has just been made: it is empty, and no other file than the
/// source, of which the caller knows `stat`. Many small files are copied faster for not asking.
pub fn copy_to_new(
    source: &dyn Object,
    stat: &ObjectStat,
    destination: &dyn Object,
    control: &CopyControl<'_>,
) -> Result<CopyReport, CopyError> {
    copy_over(source, stat, destination, false, control)
}

/// With `holds` the destination holds something. It is not emptied first: that may be the only copy
/// that survives the node, and where the source has not changed it is there at every moment.
fn copy_over(
    source: &dyn Object,
    stat: &ObjectStat,
    destination: &dyn Object,
    holds: bool,
    control: &CopyControl<'_>,
) -> Result<CopyReport, CopyError> {
    let size = stat.size;
    let worth_offloading = size >= OFFLOAD_BYTES_MIN;
    let mut mover = Mover {
        source,
        destination,
        control,
        buffer: Buffer::take(),
        offload: worth_offloading
            .then(|| offload(source, destination))
            .flatten(),
        unreported: 0,
        reached: 0,
        data_bytes: 0,
        // What the destination holds must be written over.
        leaves_holes: !holds && stat.allocated_bytes < size,
        left_bytes: 0,
        sums: Running::of(size),
    };
    let mut walk = Walk::new(source, stat, size);
    let (mut end_of_data, mut length) = (0, size);
    while let Some((start, end)) = walk.next_data().map_err(CopyError::Source)? {
        if holds && start > end_of_data {
            let hole = start - end_of_data;
            destination
                .allocate(Allocate::PunchHole, end_of_data, hole)
                .map_err(CopyError::Destination)?;
        }
        mover.sums.zeros(start - end_of_data);
        end_of_data = mover.extent(start, end)?;
        if end_of_data < end {
            length = end_of_data;
            break;
        }
    }
    mover.sums.zeros(length - end_of_data);
    // A trailing hole makes it longer than what was written. A source that shrank under
    // copy_file_range may have left it longer than what was checksummed.
    if holds {
        destination
            .set_len(end_of_data)
            .map_err(CopyError::Destination)?;
    }
    if end_of_data != length || length != size || length == 0 || mover.left_bytes > 0 {
        destination
            .set_len(length)
            .map_err(CopyError::Destination)?;
    }
    mover.tell();
    Ok(CopyReport {
        data_bytes: mover.data_bytes.saturating_sub(mover.left_bytes),
        sums: mover.sums.finish(),
    })
}

/// Reads the destination back and compares it with what the copy read from its source.
pub fn verify(
    destination: &dyn Object,
    report: &CopyReport,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<(), CopyError> {
    let Sums {
        bytes: length,
        crc: expected,
        ..
    } = report.sums;
    if report.data_bytes == length && length < BUFFER_BYTES as u64 {
        return verify_small(destination, report);
    }
    let size = destination.stat().map_err(CopyError::Destination)?.size;
    if size != length {
        return Err(CopyError::Verify {
            expected,
            found: 0,
            offset_hint: size.min(length),
        });
    }
    match checksum(destination, size, stop) {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(CopyError::Verify {
            expected,
            found,
            offset_hint: 0,
        }),
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Err(CopyError::Stopped),
        Err(error) => Err(CopyError::Destination(error)),
    }
}

/// One read tells the length and the content of a file that is smaller than the buffer.
fn verify_small(destination: &dyn Object, report: &CopyReport) -> Result<(), CopyError> {
    let mut buffer = Buffer::take();
    let length = report.sums.bytes as usize;
    let count = destination
        .read_at(&mut buffer.0[..=length], 0)
        .map_err(CopyError::Destination)?;
    let found = crc32c_update(0, &buffer.0[..count.min(length)]);
    if (count, found) == (length, report.sums.crc) {
        return Ok(());
    }
    Err(CopyError::Verify {
        expected: report.sums.crc,
        found: if count == length { found } else { 0 },
        offset_hint: if count == length {
            0
        } else {
            count.min(length) as u64
        },
    })
}

/// Truncating the destination would destroy the only copy.
pub(crate) fn refuse_same_file(
    source: &dyn Object,
    destination: &dyn Object,
) -> Result<(), CopyError> {
    let (Some(from), Some(to)) = (source.descriptor(), destination.descriptor()) else {
        return Ok(());
    };
    let from = rustix::fs::fstat(from).map_err(|e| CopyError::Source(e.into()))?;
    let to = rustix::fs::fstat(to).map_err(|e| CopyError::Destination(e.into()))?;
    if (from.st_dev, from.st_ino) == (to.st_dev, to.st_ino) {
        return Err(CopyError::Destination(Errno::EINVAL.into()));
    }
    Ok(())
}

/// Both files, where both are on one kind of file system that copies by reference or on its server.
/// Elsewhere copy_file_range(2) moves the same bytes through a pipe, page by page.
fn offload<'a>(
    source: &'a dyn Object,
    destination: &'a dyn Object,
) -> Option<(BorrowedFd<'a>, BorrowedFd<'a>)> {
    /// btrfs, XFS, bcachefs, NFS, SMB 2, CIFS, Ceph, OCFS2; magic numbers from statfs(2).
    const OFFLOADING: [u32; 8] = [
        0x9123_683e,
        0x5846_5342,
        0xca45_1a4e,
        0x6969,
        0xfe53_4d42,
        0xff53_4d42,
        0x00c3_6400,
        0x7461_636f,
    ];
    let (from, to) = (source.descriptor()?, destination.descriptor()?);
    let kind = |fd| Some(rustix::fs::fstatfs(fd).ok()?.f_type as u32);
    let same = kind(from)? == kind(to)?;
    (same && OFFLOADING.contains(&kind(from)?)).then_some((from, to))
}

/// One copy under way.
struct Mover<'a> {
    source: &'a dyn Object,
    destination: &'a dyn Object,
    control: &'a CopyControl<'a>,
    buffer: Buffer,
    /// `None` once it has failed: what is left goes through the buffer.
    offload: Option<(BorrowedFd<'a>, BorrowedFd<'a>)>,
    unreported: u64,
    /// All that was moved lies before it.
    reached: u64,
    data_bytes: u64,
    /// Blocks of zeros of an object with holes stay holes. In memory in huge pages one byte makes 2
    /// MiB of data; on the PFS it shall not.
    leaves_holes: bool,
    /// Bytes that were left so.
    left_bytes: u64,
    sums: Running,
}

impl Mover<'_> {
    fn tell(&mut self) {
        if self.unreported > 0 {
            (self.control.moved)(std::mem::take(&mut self.unreported), self.reached);
        }
    }

    fn account(&mut self, bytes: u64, reached: u64) {
        self.reached = reached;
        self.data_bytes += bytes;
        self.unreported += bytes;
        if self.unreported >= REPORT_BYTES {
            self.tell();
        }
    }

    /// Moves one extent; returns where the source ended, if before `end`, else `end`.
    fn extent(&mut self, start: u64, end: u64) -> Result<u64, CopyError> {
        let mut position = start;
        while position < end {
            if (self.control.stop)() {
                return Err(CopyError::Stopped);
            }
            let count = match self.by_reference(position, end - position)? {
                0 => self.through_buffer(position, end - position)?,
                count => count,
            };
            if count == 0 {
                break;
            }
            position += count;
            self.account(count, position);
        }
        Ok(position)
    }

    /// Reads, checksums and writes at most one buffer; 0 at the end of the source.
    fn through_buffer(&mut self, position: u64, left: u64) -> Result<u64, CopyError> {
        let want = (BUFFER_BYTES as u64).min(left) as usize;
        let buffer = &mut self.buffer.0[..want];
        let count = self
            .source
            .read_at(buffer, position)
            .map_err(CopyError::Source)?;
        let data = &buffer[..count];
        self.sums.data(data);
        if !self.leaves_holes {
            write_all(self.destination, data, position).map_err(CopyError::Destination)?;
            return Ok(count as u64);
        }
        let mut written = 0;
        for run in runs_of_data(data, position) {
            written += run.len() as u64;
            let at = position + run.start as u64;
            write_all(self.destination, &data[run], at).map_err(CopyError::Destination)?;
        }
        self.left_bytes += count as u64 - written;
        Ok(count as u64)
    }

    /// Lets the file system copy, then checksums the same range of the source. 0: it would not, and
    /// the buffer must do it, which also finds out which side an error belongs to.
    fn by_reference(&mut self, position: u64, left: u64) -> Result<u64, CopyError> {
        let Some((from, to)) = self.offload else {
            return Ok(0);
        };
        let want = (OFFLOAD_BYTES as u64).min(left) as usize;
        let (mut offset_in, mut offset_out) = (position, position);
        let copied = rustix::io::retry_on_intr(|| {
            rustix::fs::copy_file_range(from, Some(&mut offset_in), to, Some(&mut offset_out), want)
        });
        let copied = match copied {
            Ok(count) if count > 0 => count as u64,
            Ok(_) | Err(_) => {
                self.offload = None;
                return Ok(0);
            }
        };
        let mut done = 0;
        while done < copied {
            let want = (BUFFER_BYTES as u64).min(copied - done) as usize;
            let buffer = &mut self.buffer.0[..want];
            let count = self
                .source
                .read_at(buffer, position + done)
                .map_err(CopyError::Source)?;
            if count == 0 {
                break;
            }
            self.sums.data(&buffer[..count]);
            done += count as u64;
        }
        Ok(done)
    }
}

/// Ranges of `data`, which is at `position` of a file, without the blocks of that file that are all
/// zeros.
fn runs_of_data(data: &[u8], position: u64) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let in_block = ((position + start as u64) % HOLE_BYTES) as usize;
        let end = (start + HOLE_BYTES as usize - in_block).min(data.len());
        if data[start..end].iter().any(|byte| *byte != 0) {
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        start = end;
    }
    runs
}

/// Writes all of `data`; a destination that takes nothing and gives no reason is full.
pub(crate) fn write_all(
    destination: &dyn Object,
    mut data: &[u8],
    mut offset: u64,
) -> io::Result<()> {
    while !data.is_empty() {
        match destination.write_at(data, offset)? {
            0 => return Err(Errno::ENOSPC.into()),
            count => {
                data = data.get(count..).unwrap_or_default();
                offset += count as u64;
            }
        }
    }
    Ok(())
}
