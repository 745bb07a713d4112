//! Undrained content that has stood still: its checksum is on record, so damage to it is found
//! wherever it is looked at, and what anybody does to it by ordinary means is not called damage.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_client::OpenFile;
use forebay_policy::durability::Durability;
use forebay_server::{Settings, fsck_offline};
use forebay_types::{Errno, Ino, OpenFlags, RenameMode, SetAttr, SetTime, TimeSpec};
use rustix::process::{Signal, getpid};

use crate::common::{Running, Scratch, kernels_own, me, orders, settings};
use crate::lab::Harm::{Flip, Lengthen, Truncate};
use crate::lab::{DIRTY, Lab, sealing};

/// A started server with an undrained file whose checksum is on record, and nothing known about
/// when it was made.
fn sealed() -> Lab {
    let lab = Lab::new(sealing);
    lab.server.wait_sealed().expect("sealed");
    // On a slow machine the other file has stood still for so long, too, before it was drained.
    assert!(lab.scrub().sealed >= 1);
    lab.again(|settings| settings.scrub.enabled = false)
}

fn no_size() -> SetAttr {
    SetAttr::default()
}

#[test]
fn a_flipped_bit_in_undrained_data_is_not_handed_out_and_not_drained() {
    let lab = sealed();
    lab.harm(Flip, DIRTY);
    for _ in 0..2 {
        assert_eq!(lab.server.read_all(b"dirty"), Err(Errno::EIO));
    }
    let error = lab.error(b"dirty").unwrap_or_default();
    assert!(error.contains("checksum mismatch"), "{error}");
    assert!(error.contains("left as it is"), "{error}");
    assert_eq!(lab.scrub().found, 1, "told once");
    lab.is_refused_by_a_drain("read before");

    // It is put right.
    let mut damaged = DIRTY.to_vec();
    damaged[7] ^= 4;
    lab.harm(Flip, &damaged);
    assert_eq!(lab.server.read_all(b"dirty").as_deref(), Ok(DIRTY));
    assert_eq!(lab.error(b"dirty"), None);
    lab.drain(b"dirty");
    let drained = fs::read(lab.scratch.pfs().join("dirty"));
    assert_eq!(drained.expect("read"), DIRTY);
    lab.server.instance.stop();
}

#[test]
fn a_drain_compares_what_it_copies() {
    // Also in the run in which it was sealed: nobody looks at it before.
    let lab = Lab::new(sealing);
    lab.server.wait_sealed().expect("sealed");
    lab.harm(Flip, DIRTY);
    lab.is_refused_by_a_drain("nobody has looked");
    assert_eq!(lab.scrub().found, 1);
    let error = lab.error(b"dirty").unwrap_or_default();
    assert!(error.contains("checksum mismatch"), "{error}");
    assert_eq!(lab.server.read_all(b"dirty"), Err(Errno::EIO));
    lab.server.instance.stop();
}

#[test]
fn the_pass_finds_a_flipped_bit_in_undrained_data() {
    let lab = sealed().again(|settings| {
        sealing(settings);
        settings.scrub.pass = Duration::from_millis(1);
    });
    lab.harm(Flip, DIRTY);
    lab.wait_for("it is found", |lab| lab.error(b"dirty").is_some());
    assert_eq!(lab.server.read_all(b"dirty"), Err(Errno::EIO));
    assert_eq!(lab.scrub().found, 1);
    lab.server.instance.stop();
}

#[test]
fn fsck_finds_a_flipped_bit_in_undrained_data_and_leaves_it() {
    let lab = sealed();
    assert_eq!(lab.fsck().findings, []);
    lab.harm(Flip, DIRTY);
    let online = lab.fsck();
    let state = lab.scratch.path().join("state");
    lab.server.instance.stop();
    drop(lab.server);
    let offline =
        fsck_offline(&state, &orders(false), &|_| ()).unwrap_or_else(|e| panic!("fsck: {e}"));
    for report in [online, offline] {
        let [finding] = &report.findings[..] else {
            panic!("{report:?}");
        };
        assert_eq!(finding.kind, "object-content");
        assert!(!finding.repaired, "{finding:?}");
    }
}

#[test]
fn sealed_data_of_another_length_is_damaged_at_a_start_too() {
    for harm in [Truncate, Lengthen] {
        let lab = sealed();
        lab.harm(harm, DIRTY);
        let lab = lab.again(|_| ());
        assert_eq!(lab.server.read_all(b"dirty"), Err(Errno::EIO), "{harm:?}");
        assert_eq!(lab.state(b"dirty"), "dirty", "{harm:?}");
        lab.server.instance.stop();
    }
}

/// Something that is done to the undrained file by ordinary means, and what is in it then.
type Change = (&'static str, fn(&Running), &'static [u8]);

fn open(server: &Running, flags: i32) -> OpenFile {
    let ino = server
        .client
        .lookup(Ino::ROOT, b"dirty", 0)
        .expect("lookup")
        .ino;
    let flags = OpenFlags(flags as u32);
    server.client.open(ino, flags, me()).expect("open")
}

fn set(server: &Running, set: SetAttr) {
    let ino = server
        .client
        .lookup(Ino::ROOT, b"dirty", 0)
        .expect("lookup")
        .ino;
    server
        .client
        .setattr(ino, None, set, me())
        .expect("setattr");
}

fn write_in_it(server: &Running) {
    let handle = open(server, libc::O_RDWR).opened.handle;
    server.write(handle, 0, b"WHAT").expect("write");
    server.client.release(handle).expect("close");
}

fn write_unseen(server: &Running) {
    server.client.accept_descriptors(true);
    let open = open(server, libc::O_RDWR);
    kernels_own(&open).write_all_at(b"WHAT", 0).expect("write");
    server.client.release(open.opened.handle).expect("close");
}

fn cut(server: &Running) {
    let size = Some(4);
    set(server, SetAttr { size, ..no_size() });
}

fn lengthen(server: &Running) {
    let size = Some(DIRTY.len() as u64 + 2);
    set(server, SetAttr { size, ..no_size() });
}

fn date_back(server: &Running) {
    let time = TimeSpec { sec: 1, nsec: 2 };
    let mtime = Some(SetTime::At(time));
    set(server, SetAttr { mtime, ..no_size() });
}

fn chmod(server: &Running) {
    let perm = Some(0o600);
    set(server, SetAttr { perm, ..no_size() });
}

fn rename(server: &Running) {
    let client = &server.client;
    for (from, to) in [(b"dirty", b"other"), (b"other", b"dirty")] {
        let (from, to) = ((Ino::ROOT, &from[..]), (Ino::ROOT, &to[..]));
        client
            .rename(from, to, RenameMode::Replace, me())
            .expect("rename");
    }
}

fn read_unseen(server: &Running) {
    server.client.accept_descriptors(true);
    let open = open(server, libc::O_RDWR);
    assert!(open.descriptor.is_some(), "passthrough");
    server.client.release(open.opened.handle).expect("close");
}

const CHANGES: [Change; 6] = [
    (
        "written by requests",
        write_in_it,
        b"WHAT nobody but the burst buffer has yet",
    ),
    ("cut", cut, b"what"),
    (
        "lengthened",
        lengthen,
        b"what nobody but the burst buffer has yet\0\0",
    ),
    ("dated back", date_back, DIRTY),
    ("chmod", chmod, DIRTY),
    ("renamed", rename, DIRTY),
];

/// Only where the size of the series is known: in the run that wrote it.
const UNSEEN: [Change; 2] = [
    (
        "written unseen",
        write_unseen,
        b"WHAT nobody but the burst buffer has yet",
    ),
    ("opened, not written", read_unseen, DIRTY),
];

fn check_and_drain(lab: &Lab, what: &str, content: &[u8]) {
    let read = lab.server.read_all(b"dirty");
    assert_eq!(read.as_deref(), Ok(content), "{what}");
    assert_eq!(lab.fsck().findings, [], "{what}");
    lab.drain(b"dirty");
    let drained = fs::read(lab.scratch.pfs().join("dirty"));
    assert_eq!(drained.expect("read"), content, "{what}");
    assert_eq!(lab.scrub().found, 0, "{what}");
    lab.server.instance.stop();
}

#[test]
fn what_anybody_does_to_sealed_data_is_no_damage() {
    for (what, change, content) in CHANGES {
        let lab = sealed();
        change(&lab.server);
        check_and_drain(&lab, what, content);

        // It gets a new seal, which holds over a restart.
        let lab = sealed();
        change(&lab.server);
        let lab = lab.again(sealing);
        lab.server.wait_sealed().expect("sealed");
        let lab = lab.again(|settings| settings.scrub.enabled = false);
        check_and_drain(&lab, what, content);
    }
}

#[test]
fn what_the_kernel_does_to_sealed_data_is_no_damage() {
    for (what, change, content) in UNSEEN {
        for restarts in [false, true] {
            let lab = Lab::new(sealing);
            lab.server.wait_sealed().expect("sealed");
            change(&lab.server);
            let lab = match restarts {
                true => lab.again(|settings| settings.scrub.enabled = false),
                false => lab,
            };
            check_and_drain(&lab, what, content);
        }
    }
}

/// The directory that the child works in; whoever has it in the environment is the child.
const CHILD_DIR: &str = "FOREBAY_SEALED_CHILD_DIR";

fn to_the_pfs(dir: &Path) -> Settings {
    let mut settings = settings(dir, 64 << 20);
    settings.durability = Some(Durability::Pfs);
    settings.demotion.idle = false;
    settings.scrub.enabled = false;
    settings
}

/// Not a test of its own: the body of a child.
#[test]
fn child_writes_unseen_after_an_fsync_and_dies() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let server = Running::start(&to_the_pfs(&dir), true);
    server.put(b"dirty", DIRTY);
    let open = open(&server, libc::O_RDWR);
    let file = kernels_own(&open);
    let handle = open.opened.handle;
    server.client.fsync(handle, false).expect("fsync");
    file.write_all_at(b"WHAT", 0).expect("write");
    rustix::process::kill_process(getpid(), Signal::KILL).expect("kill");
}

/// A copy has reached the PFS while the file was open, and the kernel went on writing: the checksum
/// of that copy must not outlast the run.
#[test]
fn the_checksum_of_an_fsync_is_not_that_of_what_is_written_unseen_after_it() {
    let scratch = Scratch::new();
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "sealed::child_writes_unseen_after_an_fsync_and_dies",
        ])
        .env(CHILD_DIR, scratch.path())
        .stdout(Stdio::null())
        .status()
        .expect("child");
    assert_eq!(child.signal(), Some(libc::SIGKILL), "{child:?}");
    assert_eq!(
        fs::read(scratch.pfs().join("dirty")).expect("the fsync's copy"),
        DIRTY
    );
    let state = scratch.path().join("state");
    let checked =
        fsck_offline(&state, &orders(true), &|_| ()).unwrap_or_else(|e| panic!("fsck: {e}"));
    assert_eq!(checked.findings, []);
    let server = Running::start(&to_the_pfs(scratch.path()), false);
    let written = [b"WHAT", &DIRTY[4..]].concat();
    assert_eq!(server.read_all(b"dirty"), Ok(written.clone()));
    server.drain();
    assert_eq!(
        fs::read(scratch.pfs().join("dirty")).expect("drained"),
        written
    );
    server.instance.stop();
}
