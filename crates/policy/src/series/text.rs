//! Text built from arbitrary bytes, of bounded length.

/// Longest result in bytes; long enough for any path a person reads, short enough for a key.
pub(super) const MAX_BYTES: usize = 1024;

/// `~` and 16 hexadecimal digits.
const SUFFIX_BYTES: usize = 17;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

fn hash_more(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    })
}

/// FNV-1a, 64 bits.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    hash_more(FNV_OFFSET, bytes)
}

/// Collects bytes as text. All of them are hashed (FNV-1a, 64 bits), only the first [`MAX_BYTES`]
/// are kept.
pub(super) struct BoundedText {
    bytes: Vec<u8>,
    hash: u64,
}

impl BoundedText {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            hash: FNV_OFFSET,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.hash = hash_more(self.hash, bytes);
        // One byte more than fits shows `finish` that something was left out.
        let room = (MAX_BYTES + 1).saturating_sub(self.bytes.len());
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    pub(super) fn finish(self) -> String {
        let mut out = String::with_capacity(self.bytes.len());
        let cut = self.bytes.len() > MAX_BYTES;
        for chunk in self.bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            for b in chunk.invalid() {
                out.push_str(&format!("\\x{b:02x}"));
            }
        }
        if cut || out.len() > MAX_BYTES {
            let mut end = MAX_BYTES - SUFFIX_BYTES;
            while !out.is_char_boundary(end) {
                end -= 1;
            }
            out.truncate(end);
            out.push_str(&format!("~{:016x}", self.hash));
        }
        out
    }
}
