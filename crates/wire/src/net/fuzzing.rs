//! What the fuzzer calls: the reader of sealed frames, with a key that everybody knows.

use forebay_types::{Handle, limits};

use super::framing::{HEAD_BYTES, Inbox};
use super::hello::{HELLO_BYTES, check, hello};
use super::packet::{
    Attach, Attached, ClientFacts, FromClient, FromServer, Refusal, SessionId, Ticket, ToClient,
    ToServer,
};
use super::seal::{Opener, Sealer, TAG_BYTES};
use crate::{Request, Response, WriteHow};

const KEY: [u8; 32] = [7; 32];

/// A server's hello.
pub fn server_hello() -> Vec<u8> {
    hello("").to_vec()
}

/// Whether a hello is one of this version; `None` where there are not enough bytes.
pub fn check_hello(input: &[u8]) -> Option<bool> {
    let bytes: &[u8; HELLO_BYTES] = input.first_chunk()?;
    Some(check(bytes).is_ok())
}

/// Frames of these messages, each with the data that follows it, as a peer would seal them that has
/// the key.
pub fn seal(messages: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut sealer = Sealer::new(KEY);
    let mut stream = Vec::new();
    for (message, data) in messages {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&(message.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&(data.len() as u32).to_le_bytes());
        let mut text = message.to_vec();
        let tag = sealer.seal(&head, &mut text);
        stream.extend_from_slice(&head);
        stream.extend_from_slice(&text);
        stream.extend_from_slice(&tag.unwrap_or([0; TAG_BYTES]));
        stream.extend_from_slice(data);
    }
    stream
}

/// Reads a stream that arrives in pieces of up to so many bytes, as a server does or as a client
/// does, and tells of each message: what it is, and how much data came with it. Ends with the
/// reason.
pub fn read_sealed(
    mut stream: &[u8],
    piece: usize,
    as_server: bool,
    mut tell: impl FnMut(&str, usize),
) -> String {
    let mut inbox = Inbox::new(Opener::new(KEY), 1024);
    let mut data = vec![0; 4096];
    loop {
        let taken = match as_server {
            true => inbox.take_message::<FromClient>().map(|taken| {
                inbox.widen();
                taken.map(|(message, data)| (name_of_request(&message), data))
            }),
            false => inbox.take_message::<FromServer>().map(|taken| {
                inbox.widen();
                taken.map(|(message, data)| (name_of_reply(&message), data))
            }),
        };
        match taken {
            Err(error) => return error.to_string(),
            Ok(Some((name, length))) => {
                assert!(length <= limits::IO_BYTES_MAX);
                let mut left = length;
                while left > 0 {
                    let most = left.min(data.len());
                    let mut count = inbox.take_data(&mut data[..most]);
                    if count == 0 {
                        count = most.min(stream.len());
                        stream = &stream[count..];
                    }
                    if count == 0 {
                        return "the end, in data".to_string();
                    }
                    left -= count;
                }
                tell(name, length);
            }
            Ok(None) => {
                let room = inbox.room();
                assert!(!room.is_empty());
                let count = room.len().min(piece.max(1)).min(stream.len());
                if count == 0 {
                    return "the end".to_string();
                }
                room[..count].copy_from_slice(&stream[..count]);
                inbox.arrived(count);
                stream = &stream[count..];
            }
        }
    }
}

fn name_of_request(message: &FromClient) -> &'static str {
    match message {
        ToServer::Attach(_) => "attach",
        ToServer::Ping(_) => "ping",
        ToServer::Bye => "bye",
        ToServer::Call { request, .. } => match request.check() {
            Ok(()) => request.name(),
            Err(_) => "a request that is refused",
        },
    }
}

fn name_of_reply(message: &FromServer) -> &'static str {
    match message {
        ToClient::Attached(_) => "attached",
        ToClient::Refused { .. } => "refused",
        ToClient::Pong(_) => "pong",
        ToClient::NotRun(_) => "not run",
        ToClient::Stopping => "stopping",
        ToClient::Reply { .. } => "reply",
    }
}

/// Messages as they are before they are sealed: those to a server, and those to a client.
pub fn samples() -> Result<[Vec<Vec<u8>>; 2], postcard::Error> {
    let ticket = Ticket { slot: 3, number: 9 };
    let call = |request| ToServer::Call {
        ticket,
        room: 4096,
        local: false,
        crc: 0,
        request,
    };
    let to_server: [FromClient; 5] = [
        ToServer::Attach(Attach {
            client: [1; 16],
            join: Some(SessionId([2; 16])),
            link: 1,
            encrypt: true,
            facts: ClientFacts {
                host: "node".to_string(),
                ..ClientFacts::default()
            },
        }),
        ToServer::Ping(77),
        ToServer::Bye,
        call(Request::Statfs),
        call(Request::Write {
            handle: Handle(3),
            offset: 1 << 20,
            how: WriteHow::WAITING,
        }),
    ];
    let to_client: [FromServer; 6] = [
        ToClient::Attached(Attached {
            session: SessionId([2; 16]),
            epoch: 5,
            slots: 64,
            lease_ms: 60_000,
            rate: Some(1 << 27),
        }),
        ToClient::Refused {
            why: Refusal::UnknownSession,
            epoch: 6,
        },
        ToClient::Pong(77),
        ToClient::NotRun(ticket),
        ToClient::Stopping,
        ToClient::Reply {
            ticket,
            crc: 1,
            descriptor: false,
            response: Response::Moved(4096),
        },
    ];
    let to_server = to_server.iter().map(postcard::to_stdvec);
    let to_client = to_client.iter().map(postcard::to_stdvec);
    Ok([
        to_server.collect::<Result<_, _>>()?,
        to_client.collect::<Result<_, _>>()?,
    ])
}
