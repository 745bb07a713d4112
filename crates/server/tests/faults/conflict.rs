//! Outsiders and errors of the PFS: both versions are kept, errors are told once.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_server::Settings;
use forebay_types::{Errno, Ino, OpenFlags};
use forebay_wire::control::Movement;

use crate::common::{Running, Scratch, me, settings};

/// Time stamps of file systems may be as coarse as a tick of the kernel.
const TICK: Duration = Duration::from_millis(12);

/// Demotes only when it is told to.
fn by_hand(scratch: &Scratch) -> Settings {
    let mut settings = settings(scratch.path(), 64 << 20);
    settings.demotion.idle = false;
    settings.demotion.start_fraction = 0.9;
    settings
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("read_dir");
    let mut names: Vec<String> = entries
        .map(|e| e.expect("entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

/// Both versions are on the PFS and in the mount, and the error log says so.
fn both_kept(server: &Running, pfs: &Path, theirs: &[u8], ours: &[u8]) {
    let found = names(pfs);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0], "f");
    assert!(found[1].starts_with("f.forebay-conflict-"), "{found:?}");
    assert_eq!(fs::read(pfs.join("f")).expect("read"), theirs);
    assert_eq!(fs::read(pfs.join(&found[1])).expect("read"), ours);
    assert_eq!(server.read_all(b"f").as_deref(), Ok(theirs));
    assert_eq!(server.read_all(found[1].as_bytes()).as_deref(), Ok(ours));
    let errors = server.status().errors;
    let about = errors.iter().find(|e| e.path == b"f").expect("an error");
    assert_eq!(about.errno, Errno::EEXIST);
    assert!(about.reason.contains(&found[1]), "{about:?}");
    assert_eq!(server.instance.undrained().undrained_files, 0);
}

#[test]
fn a_dirty_file_that_an_outsider_changed_is_kept_beside() {
    for descriptors in [false, true] {
        let scratch = Scratch::new();
        let server = Running::start(&by_hand(&scratch), descriptors);
        server.put(b"f", b"first");
        let job = server.move_files(Movement::StageOut, b"f");
        assert_eq!(job.failed, 0, "{job:?}");
        let attr = server.find(b"f").expect("lookup");
        let attr = server
            .client
            .lookup(Ino::ROOT, b"f", 0)
            .unwrap_or(attr.into());
        let flags = OpenFlags(libc::O_RDWR as u32);
        let open = server.client.open(attr.ino, flags, me()).expect("open");
        server
            .write(open.opened.handle, 0, b"ours!")
            .expect("write");
        server.client.release(open.opened.handle).expect("close");
        std::thread::sleep(TICK);
        fs::write(scratch.pfs().join("f"), b"theirs").expect("outsider");
        server.move_files(Movement::StageOut, b"");
        both_kept(&server, &scratch.pfs(), b"theirs", b"ours!");
        server.instance.stop();
    }
}

#[test]
fn a_new_file_whose_name_an_outsider_took_is_kept_beside() {
    let scratch = Scratch::new();
    let server = Running::start(&by_hand(&scratch), false);
    server.put(b"f", b"ours!");
    fs::write(scratch.pfs().join("f"), b"theirs").expect("outsider");
    assert_eq!(server.read_all(b"f").as_deref(), Ok(&b"ours!"[..]));
    server.move_files(Movement::StageOut, b"");
    both_kept(&server, &scratch.pfs(), b"theirs", b"ours!");
    server.instance.stop();
}

/// A file `d/f` that is dirty, with a handle for reading, and its directory gone from the PFS.
fn orphan(server: &Running, scratch: &Scratch) -> forebay_types::Handle {
    let dir = server.client.mkdir(Ino::ROOT, b"d", 0o755, me());
    let dir = dir.expect("mkdir").ino;
    let flags = OpenFlags(libc::O_RDWR as u32);
    let made = server.client.create(dir, b"f", 0o644, flags, me());
    let (attr, open) = made.expect("create");
    server
        .write(open.opened.handle, 0, b"precious")
        .expect("write");
    let flags = OpenFlags(libc::O_RDONLY as u32);
    let reader = server.client.open(attr.ino, flags, me()).expect("open");
    server.client.release(open.opened.handle).expect("close");
    fs::remove_dir_all(scratch.pfs().join("d")).expect("outsider");
    reader.opened.handle
}

#[test]
fn data_survives_the_loss_of_its_directory_on_the_pfs() {
    let scratch = Scratch::new();
    let settings = by_hand(&scratch);
    let server = Running::start(&settings, false);
    let reader = orphan(&server, &scratch);
    // It cannot be found by its path any more, so the drain of everything has to meet it.
    let order = forebay_wire::control::Control::Shutdown {
        drain: true,
        timeout_ms: 300,
    };
    server.control(order).expect("shutdown");
    let instance = server.instance.clone();
    let waiting = std::thread::spawn(move || instance.wait_stop());
    let started = std::time::Instant::now();
    while server.status().errors.is_empty() {
        assert!(started.elapsed() < crate::common::PATIENCE, "no error");
        std::thread::sleep(Duration::from_millis(2));
    }
    let errors = server.status().errors;
    assert!(errors.iter().any(|e| e.path == b"d/f"), "{errors:?}");
    let first = server.client.fsync(reader, false);
    assert!(
        first.is_err(),
        "the next fsync hears of the failed demotion"
    );
    assert_eq!(server.client.fsync(reader, false), Ok(()), "once");
    let mut data = [0; 16];
    assert_eq!(server.client.read(reader, 0, &mut data, 0), Ok(8));
    assert_eq!(&data[..8], b"precious");
    assert_eq!(server.instance.undrained().undrained_files, 1);
    // The deadline of the drain has passed; an order without one ends the wait.
    server.instance.request_stop();
    let reason = waiting.join().expect("wait_stop");
    assert_eq!(reason, forebay_server::StopReason::Ordered);
    server.client.release(reader).expect("close");
    let left = server.instance.stop();
    assert_eq!(left.undrained_files, 1, "{left:?}");
    drop(server);
    // The next start finds it still.
    let server = Running::start(&settings, false);
    assert_eq!(server.instance.undrained().undrained_files, 1);
    server.instance.stop();
}
