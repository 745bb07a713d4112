//! What comes over a network socket: the hello of a stranger, and sealed frames.
//!
//! The first byte of an input says how the rest is read: bit 0 as a client does, else as a server
//! does; bit 1 as frames that nobody has sealed; the other bits, in what pieces it arrives. Without
//! bit 1 the rest is messages, each behind two lengths of two bytes, of the message and of the
//! data. They are sealed here, as by a peer that has the key.

use forebay_types::limits;
use forebay_wire::fuzzing::{check_hello, read_sealed, samples, seal, server_hello};

use super::{KIB, Target};
use crate::note;
use crate::notes::note_words;

pub const NETWORK: Target = Target {
    name: "network",
    about: "the hello of a network socket, and its sealed frames: head, message, data",
    run,
    seeds,
    words: &["FBYN"],
    // Memory for a message is set aside as it arrives, and at most twice of it.
    bytes: 64 * KIB,
    bytes_per_byte: 64,
    cost: 1,
};

const _: () = assert!(
    limits::MESSAGE_BYTES_MAX > 64 * KIB,
    "a length alone would be seen"
);

fn run(input: &[u8]) {
    if let Some(right) = check_hello(input) {
        note(("hello", right));
    }
    let Some((how, rest)) = input.split_first() else {
        return note("nothing");
    };
    let piece = 1 + usize::from(how >> 2) * 7;
    let stream = match how & 2 {
        0 => seal(&messages(rest)),
        _ => rest.to_vec(),
    };
    let reason = read_sealed(&stream, piece, how & 1 == 0, |name, data| {
        note((name, data.min(1)));
    });
    note_words(reason);
}

fn messages(mut rest: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut found = Vec::new();
    while let Some(([a, b, c, d], behind)) = rest.split_first_chunk() {
        let message = usize::from(u16::from_le_bytes([*a, *b])).min(behind.len());
        let (message, behind) = behind.split_at(message);
        let data = usize::from(u16::from_le_bytes([*c, *d])).min(behind.len());
        let (data, behind) = behind.split_at(data);
        found.push((message, data));
        rest = behind;
    }
    found
}

fn seeds() -> Vec<Vec<u8>> {
    let [to_server, to_client] = samples().expect("samples encode");
    let input = |how: u8, of: &[Vec<u8>]| {
        let mut input = vec![how];
        for message in of {
            input.extend_from_slice(&(message.len() as u16).to_le_bytes());
            input.extend_from_slice(&4u16.to_le_bytes());
            input.extend_from_slice(message);
            input.extend_from_slice(b"data");
        }
        input
    };
    let sealed: Vec<(&[u8], &[u8])> = to_server
        .iter()
        .map(|message| (&message[..], &b""[..]))
        .collect();
    let mut raw = vec![0xfe];
    raw.extend_from_slice(&seal(&sealed));
    vec![
        server_hello(),
        input(0xfc, &to_server),
        input(0, &to_server),
        input(0xfd, &to_client),
        raw,
    ]
}
