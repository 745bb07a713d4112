//! Framing: a fixed head, the encoded message, then the data that travels beside it.
//!
//! ```text
//! 0        4        8        12       16
//! | magic  | msg len| datalen| crc32c |  message … | data …
//! ```
//!
//! All numbers are little-endian. The checksum covers the message, not the data: data has its own
//! checksum from the first read to the PFS. Before the first frame both sides send a hello,
//! `FBAY` and the protocol version; versions that differ are refused.

use std::io::{self, IoSlice, Read, Write};

use forebay_types::limits;
use serde::{Serialize, de::DeserializeOwned};

/// Version of the messages. Both sides must have the same: who changes a message raises it.
pub const PROTOCOL_VERSION: u32 = 31;

const MAGIC: u32 = u32::from_le_bytes(*b"fby1");
const HELLO: [u8; 4] = *b"FBAY";
const HEAD_BYTES: usize = 16;

/// Why a frame was refused.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side speaks another protocol, or none.
    #[error("the other side is not Forebay")]
    NotForebay,
    /// The other side is another version.
    #[error(
        "the other side speaks protocol version {theirs}, this side {}; use the same forebay on both",
        PROTOCOL_VERSION
    )]
    Version {
        /// Their version.
        theirs: u32,
    },
    /// Longer than the limits allow.
    #[error("a frame of {message} + {data} bytes is over the limits")]
    TooLong {
        /// Message length, bytes.
        message: u64,
        /// Data length, bytes.
        data: u64,
    },
    /// The message is not what was sent.
    #[error("a frame that is damaged")]
    Damaged,
    /// The message does not decode, or cannot be encoded.
    #[error("a frame that does not decode: {0}")]
    Malformed(#[from] postcard::Error),
    /// The connection broke.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
}

fn checksum(bytes: &[u8]) -> u32 {
    // A bitwise CRC-32C would be slow on megabytes; messages are some hundred bytes, and a table
    // computed at compile time keeps this crate free of further dependencies.
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 {
                    (crc >> 1) ^ 0x82f6_3b78
                } else {
                    crc >> 1
                };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0u32, |crc, &b| {
        (crc >> 8) ^ TABLE[((crc ^ u32::from(b)) & 0xff) as usize]
    })
}

/// Sends the hello.
pub fn say_hello(stream: &mut impl Write) -> io::Result<()> {
    let mut hello = [0u8; 8];
    hello[..4].copy_from_slice(&HELLO);
    hello[4..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    stream.write_all(&hello)
}

/// Sends and expects the hello. Who refuses a connection says so and closes it at once: what they
/// said is there to be read although nothing can be sent any more.
pub fn greet(stream: &mut (impl Read + Write)) -> Result<(), FrameError> {
    match say_hello(stream) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        said => said?,
    }
    let mut theirs = [0u8; 8];
    stream.read_exact(&mut theirs)?;
    if theirs[..4] != HELLO {
        return Err(FrameError::NotForebay);
    }
    let version = u32::from_le_bytes([theirs[4], theirs[5], theirs[6], theirs[7]]);
    if version != PROTOCOL_VERSION {
        return Err(FrameError::Version { theirs: version });
    }
    Ok(())
}

/// Writes one frame.
pub fn write_frame<M: Serialize>(
    stream: &mut impl Write,
    message: &M,
    data: &[u8],
) -> Result<(), FrameError> {
    let encoded = postcard::to_stdvec(message)?;
    if encoded.len() > limits::MESSAGE_BYTES_MAX || data.len() > limits::IO_BYTES_MAX {
        return Err(FrameError::TooLong {
            message: encoded.len() as u64,
            data: data.len() as u64,
        });
    }
    let mut head = [0u8; HEAD_BYTES];
    head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&(encoded.len() as u32).to_le_bytes());
    head[8..12].copy_from_slice(&(data.len() as u32).to_le_bytes());
    head[12..16].copy_from_slice(&checksum(&encoded).to_le_bytes());
    write_all_vectored(stream, [&head, &encoded, data])?;
    Ok(())
}

fn write_all_vectored(stream: &mut impl Write, parts: [&[u8]; 3]) -> io::Result<()> {
    let mut slices = parts.map(IoSlice::new);
    let mut left = &mut slices[..];
    while left.iter().any(|s| !s.is_empty()) {
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut left, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads one frame; its data goes to the start of `into`, whose length is also the most that is
/// accepted. `None` when the other side has closed between frames.
pub fn read_frame<M: DeserializeOwned>(
    stream: &mut impl Read,
    into: &mut [u8],
) -> Result<Option<(M, usize)>, FrameError> {
    let mut head = [0u8; HEAD_BYTES];
    if !read_head(stream, &mut head)? {
        return Ok(None);
    }
    let field =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if field(0) != MAGIC {
        return Err(FrameError::NotForebay);
    }
    let (message_bytes, data_bytes) = (field(4) as usize, field(8) as usize);
    if message_bytes > limits::MESSAGE_BYTES_MAX || data_bytes > into.len() {
        return Err(FrameError::TooLong {
            message: message_bytes as u64,
            data: data_bytes as u64,
        });
    }
    let mut encoded = vec![0u8; message_bytes];
    stream.read_exact(&mut encoded)?;
    if checksum(&encoded) != field(12) {
        return Err(FrameError::Damaged);
    }
    let message = postcard::from_bytes(&encoded)?;
    stream.read_exact(&mut into[..data_bytes])?;
    Ok(Some((message, data_bytes)))
}

fn read_head(stream: &mut impl Read, head: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < head.len() {
        match stream.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use forebay_types::{Handle, Ino};
    use proptest::prelude::*;

    use super::*;
    use crate::{Link, Request, WriteHow};

    #[test]
    fn checksum_is_crc32c() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn frames_survive_the_way() {
        let request = Request::Write {
            handle: Handle(7),
            offset: 1 << 40,
            how: WriteHow::WAITING,
        };
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &request, b"data").expect("vec");
        let mut into = [0u8; 8];
        let (back, len) = read_frame::<Request>(&mut &bytes[..], &mut into)
            .expect("frame")
            .expect("one");
        assert_eq!((back, &into[..len]), (request, &b"data"[..]));
        assert!(
            read_frame::<Request>(&mut &[][..], &mut into)
                .expect("end")
                .is_none()
        );
        let too_small = read_frame::<Request>(&mut &bytes[..], &mut into[..2]);
        assert!(matches!(too_small, Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn another_version_is_refused() {
        struct Half<'a>(&'a [u8]);
        impl Read for Half<'_> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.read(buf)
            }
        }
        impl Write for Half<'_> {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                Ok(buf.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let newer = [b'F', b'B', b'A', b'Y', 99, 0, 0, 0];
        assert!(matches!(
            greet(&mut Half(&newer)),
            Err(FrameError::Version { theirs: 99 })
        ));
        assert!(matches!(
            greet(&mut Half(b"HTTP/1.1")),
            Err(FrameError::NotForebay)
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_decoded_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut into = [0u8; 64];
            let _ = read_frame::<Request>(&mut &bytes[..], &mut into);
            let mut framed = Vec::new();
            framed.extend_from_slice(&MAGIC.to_le_bytes());
            framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            framed.extend_from_slice(&0u32.to_le_bytes());
            framed.extend_from_slice(&checksum(&bytes).to_le_bytes());
            framed.extend_from_slice(&bytes);
            if let Ok(Some((request, _))) = read_frame::<Request>(&mut &framed[..], &mut into) {
                let _ = request.check();
            }
        }

        #[test]
        fn names_survive_the_way(name in proptest::collection::vec(any::<u8>(), 0..255)) {
            let request = Request::Lookup { link: Link { parent: Ino(3), name }, uid: 7 };
            let mut bytes = Vec::new();
            write_frame(&mut bytes, &request, &[]).expect("vec");
            let back = read_frame::<Request>(&mut &bytes[..], &mut []).expect("frame").expect("one");
            prop_assert_eq!(back.0, request);
        }
    }
}
