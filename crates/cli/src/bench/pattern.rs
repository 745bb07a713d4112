//! Data that tells where it belongs: each word of eight bytes is made of the number of its file and
//! its place in the file, by steps that can be undone. A word that is read elsewhere says where it
//! is from. To a file system that compresses it looks random.

const WORD_BYTES: usize = 8;
/// Bits of a word's place; the file's number is above.
const PLACE_BITS: u32 = 40;
/// Odd, so each multiplication can be undone: the constants of splitmix64.
const FACTORS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
/// A shift by half or more of the bits is its own inverse.
const SHIFT: u32 = 32;

/// Where data belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number of the file, below 2^24.
    pub file: u64,
    /// Byte in the file.
    pub offset: u64,
}

/// What was read is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where the first wrong word is.
    pub at: Origin,
    /// Where the word that is there belongs; by chance, if it is of no file at all.
    pub found: Origin,
    /// Whether it is zeros, as in a hole.
    pub zeros: bool,
}

fn word(file: u64, place: u64) -> u64 {
    let mut word = (file << PLACE_BITS) | place;
    for factor in FACTORS {
        word = word.wrapping_mul(factor);
        word ^= word >> SHIFT;
    }
    word
}

fn origin(word: u64) -> Origin {
    let mut word = word;
    for factor in FACTORS.into_iter().rev() {
        word ^= word >> SHIFT;
        word = word.wrapping_mul(inverse(factor));
    }
    Origin {
        file: word >> PLACE_BITS,
        offset: (word & ((1 << PLACE_BITS) - 1)) * WORD_BYTES as u64,
    }
}

/// Of an odd number, modulo 2^64: each step doubles the bits that are right.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |x, _| {
        x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)))
    })
}

/// Fills a buffer with what belongs there; offset and length are multiples of eight.
pub fn fill(buffer: &mut [u8], at: Origin) {
    let first = at.offset / WORD_BYTES as u64;
    for (nth, part) in buffer.chunks_exact_mut(WORD_BYTES).enumerate() {
        part.copy_from_slice(&word(at.file, first + nth as u64).to_le_bytes());
    }
}

/// Compares what was read with what belongs there.
pub fn check(buffer: &[u8], at: Origin) -> Result<(), Mismatch> {
    let first = at.offset / WORD_BYTES as u64;
    for (nth, part) in buffer.chunks_exact(WORD_BYTES).enumerate() {
        let mut bytes = [0; WORD_BYTES];
        bytes.copy_from_slice(part);
        let found = u64::from_le_bytes(bytes);
        if found != word(at.file, first + nth as u64) {
            return Err(Mismatch {
                at: Origin {
                    file: at.file,
                    offset: at.offset + (nth * WORD_BYTES) as u64,
                },
                found: origin(found),
                zeros: found == 0,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(file: u64, offset: u64) -> Origin {
        Origin { file, offset }
    }

    #[test]
    fn each_word_says_where_it_is_from() {
        for file in [1, 77, (1 << 24) - 1] {
            for place in [0, 1, 511, 1 << 20, (1 << PLACE_BITS) - 1] {
                assert_eq!(origin(word(file, place)), at(file, place * 8));
            }
        }
    }

    #[test]
    fn what_was_written_is_known_again_and_all_else_is_not() {
        let mut buffer = vec![0; 4096];
        fill(&mut buffer, at(3, 8192));
        assert_eq!(check(&buffer, at(3, 8192)), Ok(()));
        let elsewhere = check(&buffer, at(4, 0)).unwrap_err();
        assert_eq!((elsewhere.at, elsewhere.found), (at(4, 0), at(3, 8192)));
        buffer[100] ^= 1;
        assert_eq!(
            check(&buffer, at(3, 8192)).unwrap_err().at,
            at(3, 8192 + 96)
        );
        buffer[96..104].fill(0);
        assert!(check(&buffer, at(3, 8192)).unwrap_err().zeros);
    }

    #[test]
    fn no_two_words_of_a_file_are_alike() {
        let mut words: Vec<u64> = (0..10_000).map(|place| word(9, place)).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 10_000);
    }
}
