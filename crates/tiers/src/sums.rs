//! Checksums of a content: of all of it, and on the way there after every block, so that a part of
//! a large file can be compared by itself.
//!
//! A CRC goes on where it left off. So block `k` is good if its bytes, on top of the sum before it,
//! give the sum after it: one number for each block is enough for the blocks and for the whole.

use std::io;
use std::ops::Range;

use forebay_types::Errno;

use crate::crc::{crc32c_append_zeros, crc32c_update};
use crate::walk::{Buffer, Walk};
use crate::{Object, ObjectStat};

/// Size of a block, bytes, of all but very large contents: some milliseconds of reading.
pub const PIECE_BYTES_MIN: u64 = 4 << 20;
/// No content has more blocks: larger contents have larger ones. Their sums are kept as one value
/// of a store whose values end at 64 KiB, five bytes each at most.
pub const BLOCKS_MAX: u64 = 12 << 10;

/// Size of the blocks of a content of `bytes`, bytes: a power of two.
fn block_bytes(bytes: u64) -> u64 {
    let even = bytes.div_ceil(BLOCKS_MAX).max(PIECE_BYTES_MIN);
    even.checked_next_power_of_two().unwrap_or(1 << 63)
}

/// Checksums of a content. Invariant: there is a sum after every block but the last, so
/// `after_blocks` is empty where all of it is one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Its length, bytes, holes included.
    pub bytes: u64,
    /// CRC-32C of all of it.
    pub crc: u32,
    /// Size of a block, bytes; the last one may be shorter.
    pub block_bytes: u64,
    /// CRC-32C from the beginning to the end of each block but the last.
    pub after_blocks: Vec<u32>,
}

impl Sums {
    /// Of a content of which all but the checksum of the whole is forgotten: one block.
    pub fn whole(bytes: u64, crc: u32) -> Sums {
        Sums {
            bytes,
            crc,
            block_bytes: bytes.max(1),
            after_blocks: Vec::new(),
        }
    }

    /// Puts them together from what was kept; `None` if there are not as many as the content has
    /// blocks.
    pub fn kept(bytes: u64, crc: u32, block_bytes: u64, after_blocks: Vec<u32>) -> Option<Sums> {
        let blocks = bytes.div_ceil(block_bytes.max(1)).max(1);
        let fits = block_bytes > 0 && after_blocks.len() as u64 == blocks - 1;
        fits.then_some(Sums {
            bytes,
            crc,
            block_bytes,
            after_blocks,
        })
    }

    /// So many blocks; an empty content has one, too.
    pub fn blocks(&self) -> usize {
        self.after_blocks.len() + 1
    }

    /// The blocks that a range of bytes touches; none beyond the end of the content.
    pub fn blocks_of(&self, offset: u64, len: u64) -> Range<usize> {
        let end = offset.saturating_add(len).min(self.bytes);
        if offset >= end {
            return 0..0;
        }
        let first = (offset / self.block_bytes) as usize;
        first..(end.div_ceil(self.block_bytes) as usize)
    }

    /// Where a block is, bytes.
    pub fn range(&self, block: usize) -> Range<u64> {
        let start = self.block_bytes.saturating_mul(block as u64);
        let end = start.saturating_add(self.block_bytes);
        start.min(self.bytes)..end.min(self.bytes)
    }

    fn before(&self, block: usize) -> u32 {
        match block.checked_sub(1) {
            Some(earlier) => self.after_blocks.get(earlier).copied().unwrap_or_default(),
            None => 0,
        }
    }

    fn after(&self, block: usize) -> u32 {
        self.after_blocks.get(block).copied().unwrap_or(self.crc)
    }

    /// Reads a block of an object and tells whether it is what it was. One that ends within the
    /// block is an error of kind `UnexpectedEof`; `stop` ends with `ECANCELED`.
    pub fn is_good(
        &self,
        object: &dyn Object,
        block: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> io::Result<bool> {
        let stat = object.stat()?;
        let mut running = Running::from(self.before(block), self.range(block).start, u64::MAX);
        sum(object, &stat, self.range(block).end, &mut running, stop)?;
        Ok(running.crc == self.after(block))
    }
}

/// Sums under way.
pub(crate) struct Running {
    crc: u32,
    position: u64,
    block_bytes: u64,
    after_blocks: Vec<u32>,
}

impl Running {
    /// From the beginning of a content that is to be `bytes` long.
    pub(crate) fn of(bytes: u64) -> Running {
        Running::from(0, 0, block_bytes(bytes))
    }

    fn from(crc: u32, position: u64, block_bytes: u64) -> Running {
        Running {
            crc,
            position,
            block_bytes,
            after_blocks: Vec::new(),
        }
    }

    /// Up to which bytes can be taken as one, and notes the end of a block that was reached before.
    fn room(&mut self) -> u64 {
        let in_piece = self.position % self.block_bytes;
        let begun = self.position / self.block_bytes;
        // Only when more comes: the sum after the last block is that of the whole.
        if in_piece == 0 && begun > self.after_blocks.len() as u64 {
            self.after_blocks.push(self.crc);
        }
        self.block_bytes - in_piece
    }

    pub(crate) fn data(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(self.room() as usize));
            self.crc = crc32c_update(self.crc, now);
            self.position += now.len() as u64;
            data = later;
        }
    }

    pub(crate) fn zeros(&mut self, mut count: u64) {
        while count > 0 {
            let now = count.min(self.room());
            self.crc = crc32c_append_zeros(self.crc, now);
            self.position += now;
            count -= now;
        }
    }

    pub(crate) fn crc(&self) -> u32 {
        self.crc
    }

    pub(crate) fn finish(self) -> Sums {
        Sums {
            bytes: self.position,
            crc: self.crc,
            block_bytes: self.block_bytes,
            after_blocks: self.after_blocks,
        }
    }
}

/// Goes on with `running` up to `end` of an object, holes as zeros.
fn sum(
    object: &dyn Object,
    stat: &ObjectStat,
    end: u64,
    running: &mut Running,
    stop: &(dyn Fn() -> bool + Sync),
) -> io::Result<()> {
    let cut_short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the object is cut short");
    if stat.size < end {
        return Err(cut_short());
    }
    let mut buffer = Buffer::take();
    let mut walk = Walk::from(object, stat, running.position, end);
    while let Some((start, data_end)) = walk.next_data()? {
        running.zeros(start - running.position);
        while running.position < data_end {
            if stop() {
                return Err(Errno::ECANCELED.into());
            }
            let want = buffer.0.len().min((data_end - running.position) as usize);
            let count = object.read_at(&mut buffer.0[..want], running.position)?;
            if count == 0 {
                return Err(cut_short());
            }
            running.data(&buffer.0[..count]);
        }
    }
    running.zeros(end - running.position);
    Ok(())
}

/// Checksums of the first `bytes` bytes, holes as zeros. An object that ends earlier is an error of
/// kind `UnexpectedEof`; `stop` ends with `ECANCELED`.
pub fn sums(object: &dyn Object, bytes: u64, stop: &(dyn Fn() -> bool + Sync)) -> io::Result<Sums> {
    let mut running = Running::of(bytes);
    sum(object, &object.stat()?, bytes, &mut running, stop)?;
    Ok(running.finish())
}

/// The same where only that of the whole is wanted.
pub fn checksum(
    object: &dyn Object,
    bytes: u64,
    stop: &(dyn Fn() -> bool + Sync),
) -> io::Result<u32> {
    let mut running = Running::from(0, 0, u64::MAX);
    sum(object, &object.stat()?, bytes, &mut running, stop)?;
    Ok(running.crc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes, or as many zeros that nobody writes down.
    #[derive(Clone, Debug)]
    enum Part {
        Data(Vec<u8>),
        Hole(u8),
    }

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let part = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Part::Data),
            any::<u8>().prop_map(Part::Hole),
        ];
        prop::collection::vec(part, 0..12)
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_beginnings_however_the_content_comes(parts in parts(), block_bytes in 1u64..70) {
            let mut running = Running::from(0, 0, block_bytes);
            let mut content = Vec::new();
            for part in &parts {
                match part {
                    Part::Data(data) => {
                        running.data(data);
                        content.extend_from_slice(data);
                    }
                    Part::Hole(count) => {
                        running.zeros(u64::from(*count));
                        content.resize(content.len() + usize::from(*count), 0);
                    }
                }
            }
            let sums = running.finish();
            prop_assert_eq!(sums.bytes, content.len() as u64);
            prop_assert_eq!(sums.crc, crc32c::crc32c(&content));
            let blocks = content.len().div_ceil(block_bytes as usize).max(1);
            prop_assert_eq!(sums.blocks(), blocks);
            for block in 0..blocks {
                let range = sums.range(block);
                prop_assert_eq!(sums.after(block), crc32c::crc32c(&content[..range.end as usize]));
                prop_assert_eq!(sums.before(block), crc32c::crc32c(&content[..range.start as usize]));
            }
            let kept = Sums::kept(sums.bytes, sums.crc, sums.block_bytes, sums.after_blocks.clone());
            prop_assert_eq!(kept.as_ref(), Some(&sums));
            let mut more = sums.after_blocks.clone();
            more.push(7);
            prop_assert_eq!(Sums::kept(sums.bytes, sums.crc, sums.block_bytes, more), None);
        }

        #[test]
        fn a_range_touches_the_blocks_that_have_bytes_of_it(
            bytes in 0u64..500,
            block_bytes in 1u64..70,
            offset in 0u64..600,
            len in 0u64..600,
        ) {
            let blocks = bytes.div_ceil(block_bytes).max(1) as usize;
            let sums = Sums::kept(bytes, 0, block_bytes, vec![0; blocks - 1]).expect("as many");
            let touched = sums.blocks_of(offset, len);
            for block in 0..blocks {
                let range = sums.range(block);
                let common = range.start.max(offset)..range.end.min(offset + len);
                prop_assert_eq!(touched.contains(&block), !common.is_empty());
            }
        }

        #[test]
        fn there_are_never_too_many_blocks(bytes in prop_oneof![any::<u64>(), 0u64..1 << 45]) {
            let block = block_bytes(bytes);
            prop_assert!(block >= PIECE_BYTES_MIN && block.is_power_of_two());
            prop_assert!(bytes.div_ceil(block) <= BLOCKS_MAX);
            prop_assert!(block == PIECE_BYTES_MIN || bytes.div_ceil(block / 2) > BLOCKS_MAX);
        }
    }
}
