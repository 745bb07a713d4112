//! Times, owners, modes and extended attributes of files, as a program sees them.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_testkit::skip;
use forebay_types::{
    Attr, Cred, Errno, Ino, OpenFlags, RenameMode, SetAttr, SetTime, TimeSpec, XattrMode,
};
use forebay_wire::WriteHow;

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
    server.client.lookup(Ino::ROOT, b"f", 0).expect("lookup");
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

/// `user:1000:rw` beside the three classes: an access list, or a directory's default.
fn named_list(other: u16) -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX),
        (0x02, 6, 1000),
        (0x04, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, other, u32::MAX),
    ];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Whether the temporary directory's file system has access control lists.
fn has_acls(server: &Running) -> bool {
    server.client.get_xattr(Ino::ROOT, ACCESS, 0) != Err(Errno::EOPNOTSUPP)
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn an_access_list_follows_the_mode_the_mode_the_list_and_the_drain_both() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    if !has_acls(&server) {
        skip("no access control lists here");
        return;
    }
    let client = &server.client;
    let (made, handle) = server.create(b"f").expect("create");
    let set =
        |name: &[u8], value: &[u8]| client.set_xattr(made.ino, name, value, XattrMode::Set, me());
    assert_eq!(set(ACCESS, b"no list"), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(DEFAULT, &named_list(0)), Err(Errno::EACCES));
    assert_eq!(set(ACCESS, &named_list(0)), Ok(()));
    assert_eq!(now(&server, b"f").perm, 0o660);
    let mode = SetAttr {
        perm: Some(0o604),
        ..SetAttr::default()
    };
    client.setattr(made.ino, None, mode, me()).expect("chmod");
    let list = client.get_xattr(made.ino, ACCESS, 0).expect("list");
    // The mask is the group's bits of the mode.
    assert_eq!((list[4 + 3 * 8 + 2], list[4 + 4 * 8 + 2]), (0, 4));
    client.release(handle).expect("close");
    server.wait_clean(&|_| false);
    let on_pfs = std::fs::metadata(scratch.pfs().join("f")).expect("metadata");
    assert_eq!(on_pfs.mode() & 0o7777, 0o604);
    assert_eq!(client.get_xattr(made.ino, ACCESS, 0), Ok(list.clone()));
    // Rewritten, it keeps its list; made minimal, it has none.
    let flags = OpenFlags(libc::O_RDWR as u32);
    let open = client.open(made.ino, flags, me()).expect("open");
    server.write(open.opened.handle, 0, b"new").expect("write");
    assert_eq!(client.get_xattr(made.ino, ACCESS, 0), Ok(list));
    let minimal = [
        &named_list(0)[..12],
        &named_list(0)[20..28],
        &named_list(4)[36..],
    ]
    .concat();
    assert_eq!(set(ACCESS, &minimal), Ok(()));
    assert_eq!(client.get_xattr(made.ino, ACCESS, 0), Err(Errno::ENODATA));
    assert_eq!(now(&server, b"f").perm, 0o644);
    client.release(open.opened.handle).expect("close");
    server.wait_clean(&|_| false);
    assert_eq!(client.get_xattr(made.ino, ACCESS, 0), Err(Errno::ENODATA));
    server.instance.stop();
}

#[test]
fn new_files_get_the_default_list_of_their_directory_or_else_the_umask() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    if !has_acls(&server) {
        skip("no access control lists here");
        return;
    }
    let client = &server.client;
    let who = Cred {
        umask: 0o027,
        ..me()
    };
    let flags = OpenFlags(libc::O_RDWR as u32);
    let create = |dir: Ino, name: &[u8]| {
        let (attr, open) = client.create(dir, name, 0o666, flags, who).expect("create");
        client.release(open.opened.handle).expect("close");
        attr
    };
    let dir = client.mkdir(Ino::ROOT, b"d", 0o777, who).expect("mkdir");
    assert_eq!(dir.perm, 0o750);
    assert_eq!(create(dir.ino, b"before").perm, 0o640);
    client
        .set_xattr(dir.ino, DEFAULT, &named_list(4), XattrMode::Set, me())
        .expect("default list");
    let listed = create(dir.ino, b"listed");
    assert_eq!(listed.perm, 0o664);
    assert_eq!(client.get_xattr(listed.ino, ACCESS, 0), Ok(named_list(4)));
    let below = client.mkdir(dir.ino, b"below", 0o777, who).expect("mkdir");
    assert_eq!(client.get_xattr(below.ino, DEFAULT, 0), Ok(named_list(4)));
    assert_eq!(create(below.ino, b"deep").perm, 0o664);
    // A file without a list that moves in gets none, on the PFS neither.
    create(Ino::ROOT, b"moved");
    let (from, to) = ((Ino::ROOT, &b"moved"[..]), (dir.ino, &b"moved"[..]));
    client
        .rename(from, to, RenameMode::Replace, me())
        .expect("rename");
    server.wait_clean(&|_| false);
    let moved = server.find(b"d/moved").expect("find");
    assert_eq!(
        (client.get_xattr(moved.ino, ACCESS, 0), moved.perm),
        (Err(Errno::ENODATA), 0o640)
    );
    let mode = |name: &str| {
        scratch
            .pfs()
            .join(name)
            .metadata()
            .expect("metadata")
            .mode()
            & 0o7777
    };
    assert_eq!(
        [mode("d/listed"), mode("d/below/deep"), mode("d/moved")],
        [0o664, 0o664, 0o640]
    );
    assert_eq!(client.get_xattr(listed.ino, ACCESS, 0), Ok(named_list(4)));
    server.instance.stop();
}

#[test]
fn what_a_program_may_do_besides_its_caller_goes_with_any_change_of_it() {
    const NAME: &[u8] = b"security.capability";
    // As setcap(8) stores `cap_setuid+ep`.
    const VALUE: [u8; 20] = [1, 0, 0, 2, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let client = &server.client;
    let (attr, handle) = server.create(b"f").expect("create");
    let ino = attr.ino;
    let how = WriteHow::WAITING;
    let changes: [(&str, &dyn Fn()); 5] = [
        ("a write", &|| {
            client.write(handle, 0, b"new", how, 0).expect("write");
        }),
        ("fallocate", &|| {
            let change = forebay_wire::SpaceChange::ZeroRange;
            let done = client.change_space(handle, change, 0, 2, false, true);
            done.expect("fallocate");
        }),
        ("a truncation", &|| {
            let size = SetAttr {
                size: Some(2),
                ..SetAttr::default()
            };
            set(&server, ino, size);
        }),
        ("chown", &|| {
            let gid = SetAttr {
                gid: Some(attr.gid),
                ..SetAttr::default()
            };
            set(&server, ino, gid);
        }),
        ("a write after the close", &|| {
            client.release(handle).expect("close");
            let flags = OpenFlags(libc::O_WRONLY as u32);
            let open = client.open(ino, flags, me()).expect("open");
            let handle = open.opened.handle;
            client.write(handle, 0, b"new", how, 0).expect("write");
            client.release(handle).expect("close");
        }),
    ];
    for (what, change) in changes {
        let done = client.set_xattr(ino, NAME, &VALUE, XattrMode::Set, me());
        assert_eq!(done, Ok(()), "{what}");
        assert_eq!(client.get_xattr(ino, NAME, 0), Ok(VALUE.to_vec()), "{what}");
        change();
        assert_eq!(
            client.get_xattr(ino, NAME, 0),
            Err(Errno::ENODATA),
            "{what}"
        );
    }
    server.instance.stop();
}

#[test]
fn what_is_stored_through_a_mapping_leaves_what_a_program_may_do() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let client = &server.client;
    let (attr, handle) = server.create(b"f").expect("create");
    let (ino, name) = (attr.ino, &b"security.capability"[..]);
    let done = client.set_xattr(ino, name, b"any", XattrMode::Set, me());
    assert_eq!(done, Ok(()));
    let how = WriteHow {
        write_back: true,
        ..WriteHow::WAITING
    };
    client.write(handle, 0, b"new", how, 0).expect("write");
    client.release(handle).expect("close");
    assert_eq!(client.get_xattr(ino, name, 0), Ok(b"any".to_vec()));
    server.instance.stop();
}

#[test]
fn set_id_bits_go_with_a_truncation_or_a_write_of_a_file_on_the_pfs_too() {
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let client = &server.client;
    // Two links: it is changed where it is.
    let names = ["cut", "written", "linked"];
    for name in names {
        let path = scratch.pfs().join(name);
        std::fs::write(&path, "content").expect("write");
        if name == "linked" {
            std::fs::hard_link(&path, scratch.pfs().join("second")).expect("link");
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o6755)).expect("chmod");
    }
    let other = Cred { uid: 12345, ..me() };
    for name in names {
        let attr = client
            .lookup(Ino::ROOT, name.as_bytes(), 0)
            .expect("lookup");
        assert_eq!(attr.perm, 0o6755, "{name}");
        if name == "cut" {
            let size = SetAttr {
                size: Some(3),
                ..SetAttr::default()
            };
            client
                .setattr(attr.ino, None, size, other)
                .expect("truncate");
        } else {
            let flags = OpenFlags(libc::O_WRONLY as u32);
            let open = client.open(attr.ino, flags, other).expect("open");
            let handle = open.opened.handle;
            let how = WriteHow {
                drop_suid: true,
                ..WriteHow::WAITING
            };
            client.write(handle, 0, b"new", how, 0).expect("write");
            client.release(handle).expect("close");
        }
        assert_eq!(now(&server, name.as_bytes()).perm, 0o755, "{name}");
    }
    server.wait_clean(&|_| false);
    for name in names {
        let mode = scratch
            .pfs()
            .join(name)
            .metadata()
            .expect("metadata")
            .mode();
        assert_eq!(mode & 0o7777, 0o755, "{name}");
    }
    server.instance.stop();
}
