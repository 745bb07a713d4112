//! The handshake: both sides prove that they have the cluster's key, and agree on keys for one
//! socket that nobody can find later, not even with the cluster's key.
//!
//! It is Noise's NNpsk0. Its first message is sealed under the cluster's key, so a server knows a
//! stranger before it answers. The keys that it yields are used with AES-256-GCM (`seal.rs`).

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};

use super::seal::{Opener, Sealer};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Length of either side's message: a public key and a tag.
pub(crate) const HANDSHAKE_BYTES: usize = 32 + 16;

/// The other side does not have the key, or saw other hellos.
#[derive(Debug, thiserror::Error)]
#[error("the handshake failed: {0}")]
pub(crate) struct HandshakeError(#[from] snow::Error);

/// One side of a handshake.
pub(crate) struct Handshake(HandshakeState);

impl Handshake {
    /// The side that has connected. `said` is all that both have said in the open.
    pub fn initiator(key: &[u8; 32], said: &[u8]) -> Result<Handshake, HandshakeError> {
        Ok(Handshake(builder(key, said)?.build_initiator()?))
    }

    /// The side that was connected to.
    pub fn responder(key: &[u8; 32], said: &[u8]) -> Result<Handshake, HandshakeError> {
        Ok(Handshake(builder(key, said)?.build_responder()?))
    }

    /// This side's message.
    pub fn message(&mut self) -> Result<[u8; HANDSHAKE_BYTES], HandshakeError> {
        let mut bytes = [0; HANDSHAKE_BYTES];
        self.0.write_message(&[], &mut bytes)?;
        Ok(bytes)
    }

    /// Takes the other side's message.
    pub fn take(&mut self, bytes: &[u8; HANDSHAKE_BYTES]) -> Result<(), HandshakeError> {
        self.0.read_message(bytes, &mut [0; HANDSHAKE_BYTES])?;
        Ok(())
    }

    /// Keys of the socket, when both messages have passed.
    pub fn finish(mut self) -> (Sealer, Opener) {
        let initiator = self.0.is_initiator();
        let (ours, theirs) = match (self.0.dangerously_get_raw_split(), initiator) {
            ((first, second), true) => (first, second),
            ((first, second), false) => (second, first),
        };
        (Sealer::new(ours), Opener::new(theirs))
    }
}

fn builder<'a>(key: &'a [u8; 32], said: &'a [u8]) -> Result<Builder<'a>, HandshakeError> {
    let pattern: NoiseParams = PATTERN.parse()?;
    Ok(Builder::new(pattern).psk(0, key)?.prologue(said)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(
        (key, said): ([u8; 32], &[u8]),
        (other_key, other_said): ([u8; 32], &[u8]),
    ) -> Result<(Handshake, Handshake), HandshakeError> {
        let mut here = Handshake::initiator(&key, said)?;
        let mut there = Handshake::responder(&other_key, other_said)?;
        there.take(&here.message()?)?;
        here.take(&there.message()?)?;
        Ok((here, there))
    }

    #[test]
    fn both_get_the_same_keys_and_never_the_same_again() {
        let mut sealed = Vec::new();
        for _ in 0..2 {
            let (here, there) = pair(([7; 32], b"hi"), ([7; 32], b"hi")).expect("same key");
            let ((mut seal, _), (_, mut open)) = (here.finish(), there.finish());
            let mut text = *b"secret";
            let tag = seal.seal(b"head", &mut text).expect("seal");
            sealed.push(text);
            open.open(b"head", &mut text, tag).expect("open");
            assert_eq!(&text, b"secret");
        }
        assert_ne!(sealed[0], sealed[1]);
    }

    #[test]
    fn another_key_and_another_hello_are_refused() {
        assert!(pair(([7; 32], b"hi"), ([8; 32], b"hi")).is_err());
        assert!(pair(([7; 32], b"hi"), ([7; 32], b"ho")).is_err());
    }
}
