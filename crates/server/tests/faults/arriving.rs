//! The first write of a file that is only on the PFS, while it is staged in and its names change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use forebay_types::{Handle, Ino, OpenFlags, RenameMode, SetAttr, XattrMode};
use forebay_wire::control::Movement;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{Running, Scratch, base_seed, me, settings};

const ROUNDS: u64 = 120;
/// The first comes in when it is first written, the second is larger than what is brought in for a
/// write.
const SIZES: [u64; 2] = [256 << 10, 5 << 20];
/// In the midst of it.
const AT: u64 = 4096;

/// What somebody else does meanwhile.
const MEANWHILE: [&str; 6] = ["nothing", "link", "rename", "unlink", "chmod", "setfattr"];
const ATTRIBUTE: &str = "user.arriving";

fn write(server: &Running, handle: Handle, pause: Duration, what: &str) {
    std::thread::sleep(pause);
    server
        .write(handle, AT, b"written")
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    server.client.release(handle).expect("close");
}

fn change(server: &Running, ino: Ino, name: &[u8], meanwhile: &str) {
    let client = &server.client;
    match meanwhile {
        "link" => client
            .link(ino, Ino::ROOT, b"other", me())
            .map(|_| client.forget(vec![(ino, 1)])),
        "rename" => client.rename(
            (Ino::ROOT, name),
            (Ino::ROOT, b"other"),
            RenameMode::Replace,
            me(),
        ),
        "unlink" => client.unlink(Ino::ROOT, name, me()),
        "chmod" => {
            let set = SetAttr {
                perm: Some(0o640),
                ..SetAttr::default()
            };
            client.setattr(ino, None, set, me()).map(|_| ())
        }
        "setfattr" => {
            let name = ATTRIBUTE.as_bytes();
            client.set_xattr(ino, name, b"value", XattrMode::Set, me())
        }
        _ => Ok(()),
    }
    .unwrap_or_else(|e| panic!("{meanwhile}: {e}"));
}

/// The PFS has the write, and what was done meanwhile.
fn has_all(left: &Path, size: u64, meanwhile: &str, what: &str) {
    let data = fs::read(left).expect("read");
    assert_eq!(data.len() as u64, size, "{what}");
    assert!(
        data[AT as usize..].starts_with(b"written"),
        "{what}: the write is not there"
    );
    match meanwhile {
        "chmod" => {
            let mode = fs::metadata(left).expect("stat").mode();
            assert_eq!(mode & 0o777, 0o640, "{what}");
        }
        "setfattr" => {
            let mut value = [0; 16];
            let len = rustix::fs::getxattr(left, ATTRIBUTE, &mut value[..]);
            assert_eq!(len, Ok(5), "{what}");
        }
        _ => {}
    }
}

#[test]
fn the_first_write_of_a_file_on_the_pfs_succeeds_whatever_happens_to_it_meanwhile() {
    let seed = base_seed();
    eprintln!("FOREBAY_SEED={seed}");
    let scratch = Scratch::new();
    let server = Running::start(&settings(scratch.path(), 64 << 20), false);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pause = || Duration::from_micros(rng.random_range(0..3000));
    for round in 0..ROUNDS {
        let kinds = MEANWHILE.len() as u64;
        let size = SIZES[(round / kinds % 2) as usize];
        let meanwhile = MEANWHILE[(round % kinds) as usize];
        let what = format!("round {round}, {size} bytes, {meanwhile}");
        let name = format!("f{round}").into_bytes();
        let path = scratch.pfs().join(format!("f{round}"));
        fs::write(&path, vec![b'-'; size as usize]).expect("write");
        let attr = server.client.lookup(Ino::ROOT, &name, 0).expect("lookup");
        let flags = OpenFlags(libc::O_RDWR as u32);
        let open = server.client.open(attr.ino, flags, me()).expect("open");
        let pauses = [pause(), pause()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(pauses[1]);
                change(&server, attr.ino, &name, meanwhile);
            });
            scope.spawn(|| write(&server, open.opened.handle, pauses[0], &what));
            server.move_files(Movement::StageIn, b"");
        });
        server.client.forget(vec![(attr.ino, 1)]);
        let out = server.move_files(Movement::StageOut, b"");
        assert_eq!(out.failed, 0, "{what}: {out:?}");
        for left in [path, scratch.pfs().join("other")] {
            if left.exists() {
                has_all(&left, size, meanwhile, &what);
                let name = left.file_name().expect("name").as_encoded_bytes();
                server.client.unlink(Ino::ROOT, name, me()).expect("unlink");
            }
        }
    }
    let status = server.status();
    assert!(status.errors.is_empty(), "{:?}", status.errors);
    assert!(status.conflicts.is_empty(), "{:?}", status.conflicts);
    assert_eq!(
        fs::read_dir(scratch.pfs())
            .expect("PFS")
            .filter(|e| !e
                .as_ref()
                .unwrap()
                .file_name()
                .as_encoded_bytes()
                .starts_with(b"."))
            .count(),
        0
    );
    server.instance.stop();
}

/// Its name on the PFS is gone, by an unlink that is under way or by an outsider: who has it open
/// writes all the same.
#[test]
fn a_first_change_of_a_clean_copy_does_not_need_its_name_on_the_pfs() {
    let scratch = Scratch::new();
    let mut settings = settings(scratch.path(), 64 << 20);
    settings.demotion.idle = false;
    let server = Running::start(&settings, false);
    let attr = server.put(b"f", b"what was drained");
    let out = server.move_files(Movement::StageOut, b"");
    assert_eq!(out.failed, 0, "{out:?}");
    let flags = OpenFlags(libc::O_RDWR as u32);
    let open = server.client.open(attr.ino, flags, me()).expect("open");
    let handle = open.opened.handle;
    fs::remove_file(scratch.pfs().join("f")).expect("outsider");
    server.write(handle, 0, b"WHAT").expect("write");
    let read = server.read(handle, 0, 100);
    assert_eq!(read.as_deref(), Ok(b"WHAT was drained".as_slice()));
    server.client.release(handle).expect("close");
    server.instance.stop();
}
