//! Brings an earlier copy up to date.

use std::ops::Range;

use crate::copy::{refuse_same_file, write_all};
use crate::walk::{Buffer, Walk, cannot};
use crate::{Allocate, CopyControl, CopyError, Object, Seek};

/// Makes `destination`, an earlier copy of `source`, equal to it again; answers with the bytes
/// written. Both are read, and only what differs is written, in its place. The earlier copy is
/// never emptied, so nothing that was flushed of it before is lost. Metadata are left alone and
/// nothing is synced.
pub fn refresh(
    source: &dyn Object,
    destination: &dyn Object,
    control: &CopyControl<'_>,
) -> Result<u64, CopyError> {
    refuse_same_file(source, destination)?;
    let stat = source.stat().map_err(CopyError::Source)?;
    let before = destination.stat().map_err(CopyError::Destination)?;
    let mut walk = Walk::new(source, &stat, stat.size);
    let (mut position, mut written, mut length) = (0, 0, stat.size);
    let (mut from, mut to) = (Buffer::take(), Buffer::take());
    while let Some((start, end)) = walk.next_data().map_err(CopyError::Source)? {
        clear(destination, position, start.min(before.size))?;
        position = start;
        while position < end {
            if (control.stop)() {
                return Err(CopyError::Stopped);
            }
            let want = from.0.len().min((end - position) as usize);
            let count = source
                .read_at(&mut from.0[..want], position)
                .map_err(CopyError::Source)?;
            let there = destination
                .read_at(&mut to.0[..count], position)
                .map_err(CopyError::Destination)?;
            if there < count || from.0[..count] != to.0[..count] {
                write_all(destination, &from.0[..count], position)
                    .map_err(CopyError::Destination)?;
                written += count as u64;
                (control.moved)(count as u64, position + count as u64);
            }
            position += count as u64;
            if count < want {
                break;
            }
        }
        if position < end {
            // The source was cut meanwhile.
            length = position;
            break;
        }
    }
    clear(destination, position, length.min(before.size))?;
    if destination.stat().map_err(CopyError::Destination)?.size != length {
        destination
            .set_len(length)
            .map_err(CopyError::Destination)?;
    }
    Ok(written)
}

/// The same where the destination is what the source was, but for these ranges: nothing else is
/// read or written.
pub fn refresh_ranges(
    source: &dyn Object,
    destination: &dyn Object,
    ranges: &[Range<u64>],
    control: &CopyControl<'_>,
) -> Result<u64, CopyError> {
    refuse_same_file(source, destination)?;
    let mut buffer = Buffer::take();
    let mut written = 0;
    for range in ranges {
        let mut position = range.start;
        while position < range.end {
            if (control.stop)() {
                return Err(CopyError::Stopped);
            }
            let want = buffer.0.len().min((range.end - position) as usize);
            let count = source
                .read_at(&mut buffer.0[..want], position)
                .map_err(CopyError::Source)?;
            write_all(destination, &buffer.0[..count], position).map_err(CopyError::Destination)?;
            written += count as u64;
            position += count as u64;
            (control.moved)(count as u64, position);
            if count < want {
                // It was cut meanwhile.
                break;
            }
        }
    }
    let length = source.stat().map_err(CopyError::Source)?.size;
    if destination.stat().map_err(CopyError::Destination)?.size != length {
        destination
            .set_len(length)
            .map_err(CopyError::Destination)?;
    }
    Ok(written)
}

/// Makes a range read as zeros.
fn clear(object: &dyn Object, from: u64, to: u64) -> Result<(), CopyError> {
    if from >= to {
        return Ok(());
    }
    let data = match object.seek(from, Seek::Data) {
        Err(error) if cannot(&error) => Some(from),
        found => found.map_err(CopyError::Destination)?,
    };
    let Some(data) = data.filter(|&data| data < to) else {
        return Ok(());
    };
    match object.allocate(Allocate::PunchHole, data, to - data) {
        Err(error) if cannot(&error) => write_zeros(object, data, to),
        done => done.map_err(CopyError::Destination),
    }
}

fn write_zeros(object: &dyn Object, from: u64, to: u64) -> Result<(), CopyError> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut position = from;
    while position < to {
        let count = (to - position).min(ZEROS.len() as u64);
        write_all(object, &ZEROS[..count as usize], position).map_err(CopyError::Destination)?;
        position += count;
    }
    Ok(())
}
