//! Messages: what is in a frame that came whole.

use std::fmt::Debug;

use forebay_types::{Errno, limits};
use forebay_wire::control::{Control, ControlResponse};
use forebay_wire::fuzzing::{read_frame, write_frame};
use forebay_wire::{Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{KIB, Target};
use crate::note;
use crate::targets::samples;

const COMMON: Target = Target {
    name: "",
    about: "",
    run: requests,
    seeds: Vec::new,
    words: &[".", "..", "user.forebay.app", "system.posix_acl_access"],
    bytes: 64 * KIB,
    // A decoder sets room aside for as many values as bytes are left; the largest take some hundred
    // bytes.
    bytes_per_byte: 1024,
    cost: 1,
};

pub const REQUESTS: Target = Target {
    name: "requests",
    about: "what a client asks of a server: decoded, checked, encoded again",
    run: requests,
    seeds: || samples::requests().iter().map(encoded).collect(),
    ..COMMON
};

pub const RESPONSES: Target = Target {
    name: "responses",
    about: "what a server answers",
    run: |input| drop(again::<Response>(input)),
    seeds: || samples::responses().iter().map(encoded).collect(),
    ..COMMON
};

pub const CONTROL: Target = Target {
    name: "control",
    about: "what the command line asks of a running burst buffer, and the answers",
    run: control,
    seeds: || {
        let questions = samples::controls().iter().map(encoded).collect::<Vec<_>>();
        let answers = samples::control_responses()
            .iter()
            .map(encoded)
            .collect::<Vec<_>>();
        let marked = |mark: u8, all: Vec<Vec<u8>>| {
            all.into_iter().map(move |one| [&[mark][..], &one].concat())
        };
        marked(0, questions).chain(marked(1, answers)).collect()
    },
    ..COMMON
};

/// The head of a frame, by which the message in it is found (see `frame.rs`).
const HEAD_BYTES: usize = 16;

/// The message alone.
fn encoded<M: Serialize>(message: &M) -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(&mut frame, message, &[]).expect("a sample is within the limits");
    frame.split_off(HEAD_BYTES)
}

/// A frame around any message.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = b"fby1".to_vec();
    frame.extend((message.len() as u32).to_le_bytes());
    frame.extend(0u32.to_le_bytes());
    frame.extend(crc32c::crc32c(message).to_le_bytes());
    frame.extend_from_slice(message);
    frame
}

/// Decoded, encoded and decoded again: the same.
fn again<M: Serialize + DeserializeOwned + PartialEq + Debug>(input: &[u8]) -> Option<M> {
    let Ok(Some((message, 0))) = read_frame::<M>(&mut &framed(input)[..], &mut []) else {
        note("refused");
        return None;
    };
    note(std::mem::discriminant(&message));
    let second = read_frame::<M>(&mut &framed(&encoded(&message))[..], &mut []);
    assert_eq!(second.expect("as it was written").expect("one").0, message);
    Some(message)
}

fn requests(input: &[u8]) {
    if let Some(request) = again::<Request>(input) {
        let checked = request.check();
        note((std::mem::discriminant(&request), checked));
        if checked.is_ok() {
            within_limits(&request);
        }
    }
}

/// What every operation behind the check may rely on.
fn within_limits(request: &Request) {
    let is_name = |name: &[u8]| {
        assert!(!name.is_empty() && name.len() <= limits::NAME_BYTES_MAX);
        assert!(!name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b"..");
    };
    match request {
        Request::Lookup { link, .. }
        | Request::Mknod { link, .. }
        | Request::Mkdir { link, .. }
        | Request::Symlink { link, .. }
        | Request::Link { link, .. }
        | Request::Unlink { link, .. }
        | Request::Rmdir { link, .. }
        | Request::Create { link, .. } => is_name(&link.name),
        Request::Rename { from, to, .. } => {
            [from, to].into_iter().for_each(|link| is_name(&link.name))
        }
        Request::Space { offset, len, .. } => assert!(
            offset
                .checked_add(*len)
                .is_some_and(|end| end <= i64::MAX as u64)
        ),
        Request::ReleaseMany(handles) => {
            assert!(handles.len() <= limits::RELEASES_PER_MESSAGE_MAX);
        }
        Request::Control(control) => control_within_limits(control),
        _ => {}
    }
}

fn control_within_limits(control: &Control) {
    if let Control::Where { paths, .. } | Control::Start { paths, .. } = control {
        assert!(paths.len() <= limits::PATHS_PER_MESSAGE_MAX);
        assert!(
            paths
                .iter()
                .all(|path| path.len() <= limits::PATH_BYTES_MAX && !path.contains(&0))
        );
    }
}

fn control(input: &[u8]) {
    match input.split_first() {
        Some((0, question)) => {
            if let Some(control) = again::<Control>(question) {
                let checked: Result<(), Errno> = control.check();
                note(checked);
                if checked.is_ok() {
                    control_within_limits(&control);
                }
            }
        }
        Some((_, answer)) => drop(again::<ControlResponse>(answer)),
        None => note("nothing"),
    }
}
