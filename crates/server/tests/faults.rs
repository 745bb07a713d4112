//! What happens when the outside world misbehaves: outsiders, a PFS that loses directories, changes
//! in the middle of a demotion, and a server that is killed at any point.
//!
//! `FOREBAY_SEED` repeats the choices of a run (not those of the scheduler),
//! `FOREBAY_FAULTS_ROUNDS` kills more often.

#[path = "faults/arriving.rs"]
mod arriving;
mod common;
#[path = "faults/conflict.rs"]
mod conflict;
#[path = "faults/crash.rs"]
mod crash;
#[path = "faults/racing.rs"]
mod racing;
#[path = "faults/strays.rs"]
mod strays;

use forebay_types::{Errno, Ino, SetAttr};

use common::{Running, Scratch, me, settings};

/// A program may have the mount open after it has left the tree.
#[test]
fn what_comes_after_the_last_count_is_refused() {
    let scratch = Scratch::new();
    let running = Running::start(&settings(scratch.path(), 1 << 30), false);
    let (attr, handle) = running.create(b"f").expect("create");
    running.write(handle, 0, b"before").expect("write");
    let summary = running.instance.stop();
    assert_eq!(summary.undrained_files, 1);
    let refused = Err(Errno::ENOTCONN);
    assert_eq!(running.write(handle, 0, b"after!"), refused);
    assert_eq!(running.create(b"g").map(drop), refused);
    let client = &running.client;
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(client.setattr(attr.ino, None, cut, me()).map(drop), refused);
    assert_eq!(client.unlink(Ino::ROOT, b"f", me()), refused);
    let mut found = [0; 6];
    assert_eq!(client.read(handle, 0, &mut found, 0), Ok(6));
    assert_eq!(&found, b"before");
    assert_eq!(client.release(handle), Ok(()), "nothing is left to change");
}
