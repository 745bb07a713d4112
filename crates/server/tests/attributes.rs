//! Times, owners, modes and extended attributes of files, as a program sees them.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_types::{Attr, Ino, OpenFlags, SetAttr, SetTime, TimeSpec};
use forebay_wire::RenameMode;

use common::{Running, Scratch, me, settings};

/// More than a tick of the kernel's clock, by which files are dated.
const TICKS: Duration = Duration::from_millis(20);

fn now(server: &Running, name: &[u8]) -> Attr {
    server.find(name).expect("attributes")
}

fn set(server: &Running, ino: Ino, set: SetAttr) {
    server
        .client
        .setattr(ino, None, set, me())
        .expect("set attributes");
}

fn at(sec: i64) -> Option<SetTime> {
    Some(SetTime::At(TimeSpec { sec, nsec: 0 }))
}

#[test]
fn a_truncation_by_name_changes_the_time_of_change() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let ino = server.put(b"f", b"content").ino;
    let before = now(&server, b"f");
    std::thread::sleep(TICKS);
    let size = SetAttr {
        size: Some(3),
        ..SetAttr::default()
    };
    set(&server, ino, size);
    let after = now(&server, b"f");
    assert!(after.ctime > before.ctime, "{before:?} {after:?}");
    assert!(after.mtime > before.mtime, "{before:?} {after:?}");
    server.instance.stop();
}

#[test]
fn setting_one_time_leaves_the_other_and_a_time_to_come_is_no_change() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let (born, handle) = server.create(b"f").expect("create");
    server.client.release(handle).expect("close");
    assert_eq!(now(&server, b"f").mtime, born.mtime, "closing is no change");
    let access = SetAttr {
        atime: at(1_900_000_000),
        ..SetAttr::default()
    };
    set(&server, born.ino, access);
    assert_eq!(now(&server, b"f").mtime, born.mtime);
    // The year 2095.
    let future = SetAttr {
        mtime: at(3_950_000_000),
        ..SetAttr::default()
    };
    set(&server, born.ino, future);
    let found = now(&server, b"f");
    assert_eq!(
        (found.mtime.sec, found.atime.sec),
        (3_950_000_000, 1_900_000_000)
    );
    assert!(found.ctime < found.mtime, "{found:?}");
    server.instance.stop();
}

/// Of a file that grows, is closed and opened again all the time.
#[test]
fn a_size_that_was_written_is_shown_while_the_file_is_being_closed() {
    const ROUNDS: u64 = 3000;
    let scratch = Scratch::new();
    let mut settings = settings(scratch.path(), 64 << 20);
    settings.demotion.idle = false;
    let server = Running::start(&settings, false);
    let ino = server.put(b"f", b"").ino;
    server.client.lookup(Ino::ROOT, b"f").expect("lookup");
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let flags = OpenFlags(libc::O_WRONLY as u32);
                let open = server.client.open(ino, flags, me()).expect("open");
                server
                    .write(open.opened.handle, round - 1, b"x")
                    .expect("write");
                written.store(round, Ordering::Release);
                server.client.release(open.opened.handle).expect("close");
            }
        });
        loop {
            let least = written.load(Ordering::Acquire);
            let shown = server.client.getattr(ino, None).expect("getattr").size;
            assert!(shown >= least, "{shown} bytes, {least} were written before");
            if least == ROUNDS {
                break;
            }
        }
    });
    server.instance.stop();
}

#[test]
fn a_name_less_changes_the_time_of_change() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let old = server.put(b"old", b"old").ino;
    server
        .client
        .link(old, Ino::ROOT, b"other", me())
        .expect("link");
    server.put(b"new", b"new");
    let before = now(&server, b"other");
    std::thread::sleep(TICKS);
    let (from, to) = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"old"[..]));
    server
        .client
        .rename(from, to, RenameMode::Replace, me())
        .expect("rename");
    let after = now(&server, b"other");
    assert!(after.ctime > before.ctime, "{before:?} {after:?}");
    assert_eq!((before.nlink, after.nlink), (2, 1));
    server.instance.stop();
}
