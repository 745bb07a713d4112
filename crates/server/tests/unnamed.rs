//! Files without a name: what becomes of them with a first name and without one.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;

use forebay_types::{Attr, Cred, Errno, Handle, Ino, OpenFlags, XattrMode};

use common::{Running, Scratch, me, settings};

const RDWR: OpenFlags = OpenFlags(libc::O_RDWR as u32);
const LEN: usize = 300_000;

fn make(server: &Running, dir: Ino, perm: u16, content: &[u8]) -> (Attr, Handle) {
    let made = server.client.create_unnamed(dir, perm, RDWR, me());
    let (attr, open) = made.expect("create");
    assert!(open.descriptor.is_none(), "it is served by requests");
    assert_eq!(attr.nlink, 0);
    for (n, part) in content.chunks(1 << 20).enumerate() {
        let at = (n as u64) << 20;
        server.write(open.opened.handle, at, part).expect("write");
    }
    (attr.attr, open.opened.handle)
}

fn objects(scratch: &Scratch) -> usize {
    fn count(dir: &Path) -> usize {
        let Ok(entries) = fs::read_dir(dir) else {
            return 0;
        };
        let one = |entry: fs::DirEntry| match entry.file_type().expect("type").is_dir() {
            true => count(&entry.path()),
            false => 1,
        };
        entries.map(|entry| one(entry.expect("entry"))).sum()
    }
    let tiers = ["ssd0", "ssd1"].map(|name| count(&scratch.path().join(name).join("objects")));
    tiers.iter().sum()
}

#[test]
fn what_gets_no_name_is_never_drained_and_leaves_nothing() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), true);
    let content = vec![7; LEN];
    let (attr, handle) = make(&server, Ino::ROOT, 0o600, &content);
    server.client.fsync(handle, false).expect("fsync");
    assert_eq!(server.read(handle, 0, LEN), Ok(content));
    let size = server.client.getattr(attr.ino, Some(handle)).expect("stat");
    assert_eq!((size.size, size.nlink), (LEN as u64, 0));
    assert_eq!(server.instance.undrained().undrained_files, 0);
    assert!(server.residency(b"").is_empty());
    std::thread::sleep(std::time::Duration::from_millis(100));
    let on_pfs = fs::read_dir(scratch.pfs()).expect("read_dir").count();
    assert_eq!(on_pfs, 0);
    server.client.release(handle).expect("close");
    server.client.forget(vec![(attr.ino, 1)]);
    server.drain();
    assert_eq!(objects(&scratch), 0);
    server.instance.stop();
}

#[test]
fn with_a_name_it_is_a_file_like_any_other() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), true);
    let client = &server.client;
    let dir = client
        .mkdir(Ino::ROOT, b"d", 0o755, me())
        .expect("mkdir")
        .ino;
    let content = vec![3; LEN];
    let (attr, handle) = make(&server, Ino::ROOT, 0o640, &content);
    let set = client.set_xattr(attr.ino, b"user.a", b"1", XattrMode::Set, me());
    set.expect("setxattr");
    let linked = client.link(attr.ino, dir, b"f", me()).expect("link");
    assert_eq!((linked.ino, linked.nlink), (attr.ino, 1));
    let second = client.link(attr.ino, Ino::ROOT, b"g", me()).expect("link");
    assert_eq!(second.nlink, 2);
    server.write(handle, 0, b"more").expect("write");
    client.release(handle).expect("close");
    client.forget(vec![(attr.ino, 3)]);
    server.wait_clean(&|_| false);
    let found = fs::read(scratch.pfs().join("d/f")).expect("on the PFS");
    assert!(found[..4] == *b"more" && found[4..] == content[4..]);
    let meta = fs::metadata(scratch.pfs().join("g")).expect("on the PFS");
    assert_eq!(
        (meta.permissions().mode() & 0o7777, meta.nlink()),
        (0o640, 2)
    );
    let mut value = [0; 8];
    if let Ok(len) = rustix::fs::getxattr(scratch.pfs().join("g"), "user.a", &mut value) {
        assert_eq!(value[..len], *b"1");
    }
    server.drain();
    server.instance.stop();
}

#[test]
fn a_name_that_is_taken_here_or_on_the_pfs_is_refused_and_another_one_is_not() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let client = &server.client;
    server.put(b"here", b"here");
    fs::write(scratch.pfs().join("there"), b"there").expect("write");
    let (attr, handle) = make(&server, Ino::ROOT, 0o600, b"content");
    let link = |name: &[u8]| {
        client
            .link(attr.ino, Ino::ROOT, name, me())
            .map(|a| a.nlink)
    };
    assert_eq!(link(b"here"), Err(Errno::EEXIST));
    assert_eq!(link(b"there"), Err(Errno::EEXIST));
    assert_eq!(link(&[b'n'; 256]), Err(Errno::ENAMETOOLONG));
    assert_eq!(link(b"free"), Ok(1));
    client.release(handle).expect("close");
    client.forget(vec![(attr.ino, 2)]);
    server.wait_clean(&|_| false);
    for (name, content) in [("here", "here"), ("there", "there"), ("free", "content")] {
        let found = fs::read_to_string(scratch.pfs().join(name)).expect("on the PFS");
        assert_eq!(found, content);
    }
    server.drain();
    server.instance.stop();
}

#[test]
fn a_link_beside_the_last_close_names_the_whole_file_or_none() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let client = &server.client;
    let mut named = 0;
    for round in 0..200 {
        let name = format!("f{round}").into_bytes();
        let (attr, handle) = make(&server, Ino::ROOT, 0o600, &[round as u8; 5000]);
        let together = Barrier::new(2);
        let linked = std::thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                client.release(handle).expect("close");
                // More than the kernel would do: it knows what it links.
                client.forget(vec![(attr.ino, 1)]);
            });
            together.wait();
            std::thread::sleep(std::time::Duration::from_micros(round * 2));
            client.link(attr.ino, Ino::ROOT, &name, me())
        });
        match linked {
            Ok(_) => {
                named += 1;
                let found = server.read_all(&name).expect("read");
                assert!(found == [round as u8; 5000], "round {round}");
                client.forget(vec![(attr.ino, 1)]);
            }
            Err(Errno::ENOENT | Errno::ESTALE) => {
                let there = server.find(&name).map(drop);
                assert_eq!(there, Err(Errno::ENOENT), "round {round}");
            }
            Err(errno) => panic!("round {round}: {errno:?}"),
        }
    }
    server.drain();
    let on_pfs = fs::read_dir(scratch.pfs()).expect("read_dir").count();
    assert_eq!(on_pfs, named);
    server.instance.stop();
}

#[test]
fn what_a_stop_finds_without_a_name_is_gone_after_the_next_start() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 8 << 20);
    let server = Running::start(&settings, false);
    // One is too large for flash, so that it moves, and what it carries is told anew.
    for len in [LEN, 20 << 20] {
        let (_, handle) = make(&server, Ino::ROOT, 0o600, &vec![1; len]);
        server.client.fsync(handle, false).expect("fsync");
    }
    server.instance.stop();
    drop(server);
    let again = Running::start(&settings, false);
    again.audit();
    assert_eq!(objects(&scratch), 0);
    let errors = again.status().errors;
    assert!(errors.is_empty(), "{errors:?}");
    let on_pfs = again
        .client
        .open_dir(Ino::ROOT, 0)
        .and_then(|dir| again.client.read_dir(dir, 0));
    let names: Vec<_> = on_pfs
        .expect("entries")
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert!(names.iter().all(|name| name.starts_with(b".")), "{names:?}");
    again.instance.stop();
}

#[test]
fn one_that_outgrows_flash_gets_its_name_where_it_is() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 8 << 20), false);
    let content = vec![9; 20 << 20];
    let (attr, handle) = make(&server, Ino::ROOT, 0o600, &content);
    let linked = server.client.link(attr.ino, Ino::ROOT, b"large", me());
    assert_eq!(linked.expect("link").nlink, 1);
    server.client.release(handle).expect("close");
    server.client.forget(vec![(attr.ino, 2)]);
    server.wait_clean(&|_| false);
    assert!(fs::read(scratch.pfs().join("large")).expect("on the PFS") == content);
    server.drain();
    server.instance.stop();
}

#[test]
fn its_group_and_mode_are_those_that_a_file_with_a_name_would_get() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let client = &server.client;
    let dir = client
        .mkdir(Ino::ROOT, b"d", 0o755, me())
        .expect("mkdir")
        .ino;
    let mode = fs::Permissions::from_mode(0o2777);
    fs::set_permissions(scratch.pfs().join("d"), mode).expect("chmod");
    if me().uid == 0 {
        std::os::unix::fs::chown(scratch.pfs().join("d"), None, Some(4242)).expect("chown");
    }
    let cred = Cred {
        uid: 4243,
        gid: 4244,
        umask: 0o027,
        ..me()
    };
    let named = client.create(dir, b"named", 0o666, RDWR, cred);
    let (named, open) = named.expect("create");
    client.release(open.opened.handle).expect("close");
    let unnamed = client.create_unnamed(dir, 0o666, RDWR, cred);
    let (unnamed, open) = unnamed.expect("create");
    let facts = |attr: &Attr| (attr.perm, attr.uid, attr.gid);
    assert_eq!(facts(&unnamed), facts(&named));
    assert_eq!((unnamed.perm, unnamed.uid), (0o640, 4243));
    client.release(open.opened.handle).expect("close");
    let plain = client.create_unnamed(named.ino, 0o600, RDWR, me());
    assert_eq!(plain.map(drop).err(), Some(Errno::ENOTDIR));
    server.instance.stop();
}
