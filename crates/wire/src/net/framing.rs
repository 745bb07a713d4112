//! Frames of a sealed socket.
//!
//! ```text
//! 0         4         8
//! | message | data    | message, sealed | tag (16) | data … | tag (16), where data is sealed
//! ```
//!
//! The lengths are those of the message and of the data, little-endian, without the tags. The tag
//! of the message vouches for them, too. Plain data has its CRC-32C in the message.

use std::io;

use forebay_types::limits;
use serde::{Serialize, de::DeserializeOwned};

use super::seal::{Opener, SealError, Sealer, TAG_BYTES};

pub(crate) const HEAD_BYTES: usize = 8;
/// What one call reads where little is expected; most messages are a few hundred bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Why a socket is given up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetError {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("the other side has closed the connection")]
    Closed,
    #[error("a frame of {message} + {data} bytes is over the limits")]
    TooLong { message: usize, data: usize },
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("a message that does not decode: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("data that is damaged")]
    DamagedData,
    #[error("a request that was answered long ago")]
    Late,
    #[error("the other side does not keep to the protocol: {0}")]
    Protocol(&'static str),
    #[error("this server may not answer any more")]
    Unanswerable,
}

impl NetError {
    /// Whether the other side has done something that no honest peer does, over a sound network.
    pub fn is_fault(&self) -> bool {
        !matches!(
            self,
            NetError::Io(_) | NetError::Closed | NetError::Unanswerable
        )
    }
}

/// Writes head, sealed message and tag to the end of an emptied `frame`.
pub(crate) fn encode<M: Serialize>(
    sealer: &mut Sealer,
    frame: &mut Vec<u8>,
    message: &M,
    data: usize,
) -> Result<(), NetError> {
    let mut bytes = std::mem::take(frame);
    bytes.clear();
    bytes.resize(HEAD_BYTES, 0);
    *frame = postcard::to_extend(message, bytes)?;
    let length = frame.len() - HEAD_BYTES;
    if length > limits::MESSAGE_BYTES_MAX || data > limits::IO_BYTES_MAX {
        return Err(NetError::TooLong {
            message: length,
            data,
        });
    }
    let (head, text) = frame.split_at_mut(HEAD_BYTES);
    head[..4].copy_from_slice(&(length as u32).to_le_bytes());
    head[4..].copy_from_slice(&(data as u32).to_le_bytes());
    let tag = sealer.seal(head, text)?;
    frame.extend_from_slice(&tag);
    Ok(())
}

/// Takes frames from the bytes of a socket, however they arrive.
pub(crate) struct Inbox {
    opener: Opener,
    buffer: Vec<u8>,
    /// Bytes that have arrived and are not taken: `start..end` of the buffer.
    start: usize,
    end: usize,
    message_max: usize,
}

impl Inbox {
    /// For messages of up to `message_max` bytes.
    pub fn new(opener: Opener, message_max: usize) -> Inbox {
        Inbox {
            opener,
            buffer: vec![0; BUFFER_BYTES.min(HEAD_BYTES + message_max + TAG_BYTES)],
            start: 0,
            end: 0,
            message_max,
        }
    }

    /// From now on messages are as long as any may be.
    pub fn widen(&mut self) {
        self.message_max = limits::MESSAGE_BYTES_MAX;
    }

    /// Bytes that have arrived and are not taken.
    pub fn buffered(&self) -> usize {
        self.end - self.start
    }

    fn lengths(&self) -> Result<Option<(usize, usize)>, NetError> {
        let Some(head) = self.buffer[self.start..self.end].first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, e, f, g, h] = *head;
        let message = u32::from_le_bytes([a, b, c, d]) as usize;
        let data = u32::from_le_bytes([e, f, g, h]) as usize;
        if message > self.message_max || data > limits::IO_BYTES_MAX {
            return Err(NetError::TooLong { message, data });
        }
        Ok(Some((message, data)))
    }

    /// The next message, once all of it is there, and the length of its data, which follows.
    pub fn take_message<M: DeserializeOwned>(&mut self) -> Result<Option<(M, usize)>, NetError> {
        let Some((message, data)) = self.lengths()? else {
            return Ok(None);
        };
        let total = HEAD_BYTES + message + TAG_BYTES;
        if self.buffered() < total {
            return Ok(None);
        }
        let frame = &mut self.buffer[self.start..self.start + total];
        let (head, rest) = frame.split_at_mut(HEAD_BYTES);
        let (text, tag) = rest.split_at_mut(message);
        let mut tag_bytes = [0; TAG_BYTES];
        tag_bytes.copy_from_slice(tag);
        self.opener.open(head, text, tag_bytes)?;
        let decoded = postcard::from_bytes(text)?;
        self.start += total;
        Ok(Some((decoded, data)))
    }

    /// Where the next bytes of the socket go; there is always room. Memory for a long message is
    /// taken as it arrives, so a length alone costs nothing.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > BUFFER_BYTES {
                self.buffer.truncate(BUFFER_BYTES);
                self.buffer.shrink_to_fit();
            }
        }
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end * 2 > self.buffer.len() {
                let most = (HEAD_BYTES + self.message_max + TAG_BYTES).max(BUFFER_BYTES);
                self.buffer
                    .resize((self.buffer.len() * 2).min(most).max(self.end + 64), 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were put into [`Inbox::room`].
    pub fn arrived(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// Takes what has arrived of data; how much that was.
    pub fn take_data(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.buffered());
        into[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Checks plain data.
    pub fn check_data(data: &[u8], crc: u32) -> Result<(), NetError> {
        match crc32c::crc32c(data) == crc {
            true => Ok(()),
            false => Err(NetError::DamagedData),
        }
    }

    /// Opens sealed data, whose tag must have arrived ([`Inbox::take_data`]).
    pub fn open_data(&mut self, data: &mut [u8], tag: [u8; TAG_BYTES]) -> Result<(), NetError> {
        Ok(self.opener.open(&[], data, tag)?)
    }
}
