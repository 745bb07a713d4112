//! Files that are too large to be read at every first open: what is damaged in them is not handed
//! out either, wherever it is, and nobody waits for more than the block that they ask for.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_kv::{Batch, Durability};
use forebay_server::Settings;
use forebay_tiers::PIECE_BYTES_MIN;
use forebay_types::{Errno, Handle, OpenFlags, SetAttr};

use crate::common::me;
use crate::lab::{Lab, flip, sealing};

const PIECE: u64 = PIECE_BYTES_MIN;
/// Two blocks and a bit.
const LEN: u64 = 2 * PIECE + 5001;

fn content() -> Vec<u8> {
    let words = (0..LEN / 8 + 1).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(LEN as usize);
    bytes
}

fn by_piece(settings: &mut Settings) {
    settings.scrub.enabled = false;
    settings.scrub.verify_on_open_bytes = 1 << 20;
}

/// Called `large`, drained or sealed, and nothing known about when it was read.
fn lab(drained: bool) -> Lab {
    let lab = Lab::new(|settings| {
        if !drained {
            sealing(settings);
        }
    });
    lab.server.put(b"large", &content());
    match drained {
        true => lab.drain(b"large"),
        false => lab.server.wait_sealed().expect("sealed"),
    }
    lab.again(by_piece)
}

fn open(lab: &Lab, flags: i32) -> Handle {
    let ino = lab.known(b"large");
    let flags = OpenFlags(flags as u32);
    let open = lab.server.client.open(ino, flags, me()).expect("open");
    assert!(open.descriptor.is_none(), "nobody would see what is read");
    open.opened.handle
}

fn close(lab: &Lab, handle: Handle) {
    lab.server.client.release(handle).expect("close");
}

fn at(offset: u64, len: usize) -> Vec<u8> {
    content()[offset as usize..offset as usize + len].to_vec()
}

fn on_pfs(lab: &Lab) -> PathBuf {
    lab.scratch.pfs().join("large")
}

/// It is found wherever it is, told once, and the object is as it was.
#[test]
fn a_flipped_bit_is_written_again_from_the_pfs_before_it_is_handed_out() {
    for offset in [0, PIECE - 1, PIECE, 2 * PIECE - 1, LEN - 1] {
        let lab = lab(true);
        let object = lab.object(&content());
        flip(&object, offset);
        let read = lab.server.read_all(b"large").expect("read");
        assert!(read == content(), "{offset}");
        let error = lab.error(b"large").unwrap_or_default();
        assert!(error.contains("written again"), "{offset}: {error}");
        assert_eq!(lab.state(b"large"), "clean");
        assert!(fs::read(&object).expect("object") == content(), "{offset}");
        assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (1, 3));
        let lab = lab.again(|_| ());
        assert!(lab.server.read_all(b"large").expect("read") == content());
        assert_eq!(lab.scrub().found, 1, "no more");
        lab.server.instance.stop();
    }
}

#[test]
fn only_the_blocks_that_are_asked_for_are_read() {
    let lab = lab(true);
    lab.server.client.accept_descriptors(true);
    flip(&lab.object(&content()), 5);
    let handle = open(&lab, libc::O_RDONLY);
    for _ in 0..2 {
        let read = lab.server.read(handle, 2 * PIECE, 10);
        assert_eq!(read, Ok(at(2 * PIECE, 10)));
        assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (0, 1));
    }
    let read = lab.server.read(handle, 2 * PIECE - 5, 10);
    assert_eq!(read, Ok(at(2 * PIECE - 5, 10)));
    assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (0, 2));
    assert_eq!(lab.server.read(handle, 0, 10), Ok(at(0, 10)));
    assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (1, 3));
    assert_eq!(lab.server.read(handle, LEN, 10), Ok(Vec::new()));
    close(&lab, handle);

    // All of it is known now: the kernel may read it by itself.
    let ino = lab.known(b"large");
    let flags = OpenFlags(libc::O_RDONLY as u32);
    let again = lab.server.client.open(ino, flags, me()).expect("open");
    assert!(again.descriptor.is_some());
    close(&lab, again.opened.handle);
    assert_eq!(lab.scrub().compared_at_open, 0);
    lab.server.instance.stop();
}

#[test]
fn damage_that_the_pfs_cannot_mend_is_an_error_where_it_is() {
    for drained in [true, false] {
        let lab = lab(drained);
        flip(&lab.object(&content()), PIECE + 3);
        let handle = open(&lab, libc::O_RDWR);
        if drained {
            flip(&on_pfs(&lab), PIECE + 9);
        }
        for _ in 0..2 {
            assert_eq!(lab.server.read(handle, PIECE, 1), Err(Errno::EIO));
        }
        assert_eq!(lab.server.read(handle, 0, 9), Ok(at(0, 9)));
        assert_eq!(lab.server.read(handle, LEN - 9, 9), Ok(at(LEN - 9, 9)));
        let error = lab.error(b"large").unwrap_or_default();
        assert!(error.contains("checksum mismatch in bytes"), "{error}");
        assert_eq!(lab.scrub().found, 1, "told once");
        // A change would vouch for it.
        assert_eq!(lab.server.write(handle, 0, b"WHAT"), Err(Errno::EIO));
        assert_eq!(lab.server.read(handle, 0, 9), Ok(at(0, 9)));
        close(&lab, handle);
        if !drained {
            let ino = lab.known(b"large");
            let flags = OpenFlags(libc::O_RDONLY as u32);
            let again = lab.server.client.open(ino, flags, me());
            assert_eq!(again.err(), Some(Errno::EIO));
            assert_eq!(lab.state(b"large"), "dirty");
        }
        lab.server.instance.stop();
    }
}

#[test]
fn a_change_compares_all_of_it_first() {
    let changes: [fn(&Lab, Handle); 3] = [
        |lab, handle| lab.server.write(handle, 3, b"WHAT").expect("write"),
        |lab, handle| {
            let size = Some(LEN - 100);
            let set = SetAttr {
                size,
                ..SetAttr::default()
            };
            let ino = lab.known(b"large");
            let client = &lab.server.client;
            client.setattr(ino, Some(handle), set, me()).expect("cut");
        },
        |lab, handle| {
            let hole = forebay_wire::SpaceChange::PunchHole;
            let client = &lab.server.client;
            client
                .change_space(handle, hole, 0, 4096, false, true)
                .expect("punch");
        },
    ];
    for (n, change) in changes.iter().enumerate() {
        let lab = lab(true);
        flip(&lab.object(&content()), PIECE + 3);
        let handle = open(&lab, libc::O_RDWR);
        change(&lab, handle);
        assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (1, 3));
        close(&lab, handle);
        let mut wanted = content();
        match n {
            0 => wanted[3..7].copy_from_slice(b"WHAT"),
            1 => wanted.truncate(LEN as usize - 100),
            _ => wanted[..4096].fill(0),
        }
        assert!(
            lab.server.read_all(b"large").expect("read") == wanted,
            "{n}"
        );
        lab.drain(b"large");
        assert!(fs::read(on_pfs(&lab)).expect("drained") == wanted, "{n}");
        lab.server.instance.stop();
    }
}

fn resize(lab: &Lab, handle: Option<Handle>, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let ino = lab.known(b"large");
    let client = &lab.server.client;
    client.setattr(ino, handle, set, me()).expect("truncate");
}

#[test]
fn what_is_emptied_is_not_read() {
    for opened in [true, false] {
        let lab = lab(true);
        flip(&lab.object(&content()), PIECE + 3);
        let handle = opened.then(|| open(&lab, libc::O_RDWR));
        resize(&lab, handle, 0);
        assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (0, 0));
        assert_eq!(lab.scrub().compared_at_open, 0);
        let handle = handle.unwrap_or_else(|| {
            let ino = lab.known(b"large");
            let flags = OpenFlags(libc::O_RDWR as u32);
            let open = lab.server.client.open(ino, flags, me()).expect("open");
            open.opened.handle
        });
        lab.server.write(handle, 0, b"new").expect("write");
        close(&lab, handle);
        assert_eq!(
            lab.server.read_all(b"large").as_deref(),
            Ok(b"new".as_slice())
        );
        lab.server.instance.stop();
    }
}

#[test]
fn what_is_cut_while_it_is_closed_is_compared_first() {
    let lab = lab(true);
    flip(&lab.object(&content()), 3);
    resize(&lab, None, 100);
    let read = lab.server.read_all(b"large");
    assert_eq!(read, Ok(at(0, 100)));
    assert_eq!(lab.scrub().found, 1);
    lab.server.instance.stop();
}

/// A file is opened for unseen writing, and closed without a change: the checksums are those of
/// before.
#[test]
fn an_open_without_a_change_leaves_the_checksums_as_they_were() {
    let lab = Lab::new(|_| ());
    lab.server.put(b"large", &content());
    lab.drain(b"large");
    lab.server.client.accept_descriptors(true);
    let ino = lab.known(b"large");
    let flags = OpenFlags(libc::O_RDWR as u32);
    let open = lab.server.client.open(ino, flags, me()).expect("open");
    assert!(open.descriptor.is_some(), "passthrough");
    close(&lab, open.opened.handle);
    // Once its content has been compared.
    lab.wait_for("it is clean", |lab| lab.state(b"large") == "clean");
    let lab = lab.again(by_piece);
    flip(&lab.object(&content()), PIECE + 3);
    assert!(lab.server.read_all(b"large").expect("read") == content());
    assert_eq!((lab.scrub().found, lab.scrub().compared_blocks), (1, 3));
    lab.server.instance.stop();
}

/// Without the checksums of its blocks a file is read as a whole, however large it is.
#[test]
fn nothing_is_handed_out_where_the_checksums_of_blocks_are_lost() {
    let lose: fn(&[u8], &mut Batch) = |key, batch| {
        batch.delete(key);
    };
    let spoil: fn(&[u8], &mut Batch) = |key, batch| {
        batch.put(key, *b"\xff\xff nothing");
    };
    let states = [lose, spoil, spoil];
    for (n, change) in states.iter().enumerate() {
        let is_checked = n == 2;
        let lab = lab(true).again(|settings| {
            let kv = settings.state.join("kv");
            let store = forebay_kv::open_default(&kv).expect("store");
            let mut batch = Batch::new();
            let mut found = 0;
            let mut visit = |key: &[u8], _: &[u8]| {
                found += 1;
                change(key, &mut batch);
                true
            };
            store.scan(b"k/", None, &mut visit).expect("scan");
            assert_eq!(found, 1);
            store.commit(batch, Durability::Synced).expect("commit");
        });
        if is_checked {
            let report = lab.fsck();
            let kinds: Vec<_> = report.findings.iter().map(|f| f.kind.as_str()).collect();
            assert_eq!(kinds, ["record-unreadable"]);
            assert_eq!(lab.fsck().findings, []);
        }
        flip(&lab.object(&content()), PIECE + 3);
        assert!(lab.server.read_all(b"large").expect("read") == content());
        assert_eq!((lab.scrub().found, lab.scrub().compared_at_open), (1, 1));
        assert_eq!(lab.state(b"large"), "pfs", "it gave way");
        lab.server.instance.stop();
    }
}

/// Many read, somebody begins to write: nobody sees anything but what was there or what is written,
/// and nothing is called damaged.
#[test]
fn readers_and_a_first_writer_do_not_take_each_other_for_damage() {
    let old = content();
    for round in 0..6 {
        let lab = lab(true);
        let reader = open(&lab, libc::O_RDONLY);
        let writer = open(&lab, libc::O_RDWR);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (lab, old, done) = (&lab, &old, &done);
                scope.spawn(move || {
                    let mut n = thread * 977;
                    while !done.load(Ordering::Acquire) {
                        n += 1;
                        let offset = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (LEN - 4096);
                        let read = lab.server.read(reader, offset, 4096).expect("read");
                        let was = &old[offset as usize..][..read.len()];
                        let emptied = round % 2 == 1;
                        let good = |(byte, was): (&u8, &u8)| {
                            *byte == *was || *byte == 0xee || (emptied && *byte == 0)
                        };
                        assert!(read.iter().zip(was).all(good), "{round}: {offset}");
                    }
                });
            }
            if round % 2 == 1 {
                resize(&lab, Some(writer), 0);
                resize(&lab, Some(writer), LEN);
                let all = vec![0xee; 1 << 20];
                for n in 0..LEN >> 20 {
                    lab.server.write(writer, n << 20, &all).expect("write");
                }
            } else {
                let all = vec![0xee; 4096];
                for n in 0..LEN >> 16 {
                    lab.server.write(writer, n << 16, &all).expect("write");
                }
            }
            done.store(true, Ordering::Release);
        });
        close(&lab, reader);
        close(&lab, writer);
        assert_eq!(lab.scrub().found, 0);
        assert_eq!(lab.error(b"large"), None);
        lab.server.instance.stop();
    }
}

/// A file so large that 4 MiB each would be too many blocks for one value of the store: its drain
/// ends, and what is on record of it serves the next start.
#[test]
fn a_file_of_many_blocks_is_drained_and_its_sums_are_kept() {
    const FAR: u64 = 60 << 30;
    let lab = Lab::new(|_| ());
    let (_, handle) = lab.server.create(b"far").expect("create");
    lab.server
        .write(handle, 0, &content()[..4096])
        .expect("write");
    lab.server
        .write(handle, FAR, &content()[..4096])
        .expect("write");
    lab.server.client.fsync(handle, false).expect("fsync");
    close(&lab, handle);
    lab.drain(b"far");
    assert_eq!(lab.error(b"far"), None);
    let lab = lab.again(by_piece);
    assert_eq!(lab.state(b"far"), "clean");
    let ino = lab.known(b"far");
    let flags = OpenFlags(libc::O_RDONLY as u32);
    let open = lab.server.client.open(ino, flags, me()).expect("open");
    let handle = open.opened.handle;
    let read = lab.server.read(handle, FAR, 4096).expect("read");
    assert!(read == content()[..4096]);
    assert_eq!(
        lab.scrub().compared_blocks,
        1,
        "only the block that was read"
    );
    close(&lab, handle);
    lab.server.instance.stop();
}
