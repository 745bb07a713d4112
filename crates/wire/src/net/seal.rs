//! Sealing of one direction of one socket: AES-256-GCM, and a counter that both sides keep.
//!
//! What is left out, sent twice or sent in another order does not open. After every
//! [`MESSAGES_PER_KEY`] messages both sides go on with the next key, as Noise's `REKEY` makes it:
//! a key of GCM is good for a limited amount of data.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

/// Length of a tag, bytes.
pub(crate) const TAG_BYTES: usize = 16;
/// At 1 MiB a message, a forger's chance stays below 2^-54 for each key.
const MESSAGES_PER_KEY: u64 = 1 << 20;

/// A message that is not what was sealed, or not the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message does not open: damaged, repeated or out of order")]
pub(crate) struct SealError;

struct Key {
    key: LessSafeKey,
    counter: u64,
    until_next: u64,
}

impl Key {
    fn new(bytes: [u8; 32]) -> Key {
        Key {
            key: key_of(&bytes),
            counter: 0,
            until_next: MESSAGES_PER_KEY,
        }
    }

    /// Each number is used once: they only count up, and a new key begins with none used.
    fn next_nonce(&mut self) -> Result<Nonce, SealError> {
        if self.until_next == 0 {
            self.renew()?;
        }
        self.until_next -= 1;
        let nonce = nonce_of(self.counter);
        self.counter += 1;
        Ok(nonce)
    }

    /// The next key is what the old one makes of zeros under the last nonce, which is never used.
    fn renew(&mut self) -> Result<(), SealError> {
        let mut bytes = [0u8; 32];
        let _tag = self
            .key
            .seal_in_place_separate_tag(nonce_of(u64::MAX), Aad::empty(), &mut bytes)
            .map_err(|_| SealError)?;
        *self = Key::new(bytes);
        Ok(())
    }
}

fn key_of(bytes: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, bytes);
    LessSafeKey::new(key.expect("AES-256 takes 32 bytes"))
}

fn nonce_of(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// The sending end.
pub(crate) struct Sealer(Key);

impl Sealer {
    pub fn new(key: [u8; 32]) -> Sealer {
        Sealer(Key::new(key))
    }

    /// Encrypts in place; `beside` is sent in the open and vouched for.
    pub fn seal(&mut self, beside: &[u8], text: &mut [u8]) -> Result<[u8; TAG_BYTES], SealError> {
        let nonce = self.0.next_nonce()?;
        let tag = self
            .0
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(beside), text)
            .map_err(|_| SealError)?;
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        Ok(bytes)
    }
}

/// The receiving end.
pub(crate) struct Opener(Key);

impl Opener {
    pub fn new(key: [u8; 32]) -> Opener {
        Opener(Key::new(key))
    }

    /// Decrypts in place. After a failure nothing more will open: the counters differ.
    pub fn open(
        &mut self,
        beside: &[u8],
        text: &mut [u8],
        tag: [u8; TAG_BYTES],
    ) -> Result<(), SealError> {
        let nonce = self.0.next_nonce()?;
        self.0
            .key
            .open_in_place_separate_tag(nonce, Aad::from(beside), Tag::from(tag), text, 0..)
            .map_err(|_| SealError)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_changed_and_left_out_messages_do_not_open() {
        let sealed = |count: usize| {
            let mut seal = Sealer::new([1; 32]);
            let mut all = Vec::new();
            for _ in 0..count {
                let mut text = *b"message";
                let tag = seal.seal(b"head", &mut text).expect("seal");
                all.push((text, tag));
            }
            all
        };
        let open = |opener: &mut Opener, (mut text, tag): ([u8; 7], [u8; 16]), head: &[u8]| {
            opener.open(head, &mut text, tag).map(|()| text)
        };
        let all = sealed(3);
        let mut opener = Opener::new([1; 32]);
        assert_eq!(open(&mut opener, all[0], b"head"), Ok(*b"message"));
        assert_eq!(open(&mut opener, all[0], b"head"), Err(SealError), "again");
        let mut opener = Opener::new([1; 32]);
        assert_eq!(
            open(&mut opener, all[1], b"head"),
            Err(SealError),
            "left out"
        );
        let mut opener = Opener::new([1; 32]);
        assert_eq!(open(&mut opener, all[0], b"heat"), Err(SealError), "head");
        let mut changed = all[0];
        changed.0[3] ^= 1;
        let mut opener = Opener::new([1; 32]);
        assert_eq!(open(&mut opener, changed, b"head"), Err(SealError), "text");
    }

    #[test]
    fn both_sides_take_the_next_key_at_the_same_message() {
        let (mut seal, mut open) = (Sealer::new([1; 32]), Opener::new([1; 32]));
        for sides in [&mut seal.0, &mut open.0] {
            sides.until_next = 2;
        }
        let mut seen = Vec::new();
        for _ in 0..4 {
            let mut text = [0u8; 8];
            let tag = seal.seal(b"", &mut text).expect("seal");
            seen.push(text);
            open.open(b"", &mut text, tag).expect("open");
            assert_eq!(text, [0; 8]);
        }
        assert_eq!(seal.0.counter, 2, "counted anew");
        assert_ne!(seen[0], seen[2], "the same nonce, another key");
    }
}
