//! What comes over a socket before anything is known of who sends it.

use std::io::{self, Read, Write};

use forebay_types::{Handle, Ino, limits};
use forebay_wire::control::Control;
use forebay_wire::fuzzing::{greet, read_frame, write_frame};
use forebay_wire::{Link, Request, Response, WriteHow};

use super::{KIB, Target};
use crate::note;
use crate::notes::note_words;

/// Data that a reader takes beside a message; little, so that lengths over the limit are met.
const ROOM_BYTES: usize = 4 * KIB;

pub const FRAMES: Target = Target {
    name: "frames",
    about: "the greeting, and frame after frame of a stream: head, message, data",
    run,
    seeds,
    words: &["FBAY", "fby1"],
    // A message is announced before it comes: the limit of messages is what a stranger can make a
    // server set aside.
    bytes: limits::MESSAGE_BYTES_MAX + 64 * KIB,
    bytes_per_byte: 64,
    cost: 1,
};

/// A peer that sends the input and takes whatever it is sent.
struct Peer<'a>(&'a [u8]);

impl Read for Peer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run(input: &[u8]) {
    let mut peer = Peer(input);
    match greet(&mut peer) {
        Ok(()) => note("greeted"),
        Err(error) => note_words(error),
    }
    // Who has greeted goes on; else the same bytes are taken for frames.
    let stream = if peer.0.is_empty() || peer.0.len() == input.len() {
        input
    } else {
        peer.0
    };
    let mut room = [0u8; ROOM_BYTES];
    let mut rest = stream;
    loop {
        match read_frame::<Request>(&mut rest, &mut room) {
            Ok(Some((request, data))) => {
                assert!(data <= room.len());
                note((
                    "request",
                    std::mem::discriminant(&request),
                    request.check().is_ok(),
                ));
            }
            Ok(None) => break note("end"),
            Err(error) => break note_words(error),
        }
    }
    let mut rest = stream;
    while let Ok(Some((response, _))) = read_frame::<Response>(&mut rest, &mut room) {
        note(("response", std::mem::discriminant(&response)));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let requests = [
        (Request::Statfs, &b""[..]),
        (Request::Control(Control::Status), b""),
        (
            Request::Lookup {
                link: Link {
                    parent: Ino(1),
                    name: b"name".to_vec(),
                },
                uid: 1000,
            },
            b"",
        ),
        (
            Request::Write {
                handle: Handle(3),
                offset: 1 << 20,
                how: WriteHow::WAITING,
            },
            b"some data",
        ),
    ];
    let mut greeted = Vec::new();
    forebay_wire::fuzzing::say_hello(&mut greeted).expect("a vector takes everything");
    let mut seeds = vec![greeted.clone()];
    for (request, data) in requests {
        let mut one = Vec::new();
        write_frame(&mut one, &request, data).expect("a vector takes everything");
        greeted.extend_from_slice(&one);
        seeds.push(one);
    }
    let mut answer = Vec::new();
    write_frame(&mut answer, &Response::Bytes(vec![7; 40]), b"data")
        .expect("a vector takes everything");
    seeds.extend([answer, greeted]);
    seeds
}
