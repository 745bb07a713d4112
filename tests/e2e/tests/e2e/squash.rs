//! `squash_root`: root of a client's node is nobody.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_testkit::{Fleet, LONG, as_user, needs_nodes, run_bounded, wait_until};
use rustix::fs::{CWD, FileType, Mode, RawMode, XattrFlags, mknodat, setxattr};

use crate::mappings::Mapping;

const NOBODY: u32 = 65534;
const OWNER: u32 = 1000;

const EACCES: Option<i32> = Some(libc::EACCES);
const EPERM: Option<i32> = Some(libc::EPERM);

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn chmod(path: &Path, mode: RawMode) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// The server, and a mount on another node and on its own. On the PFS: `private` and `open` of a
/// user, `roots` of root, and `tmp` for everybody.
fn squashing() -> Fleet {
    let mut fleet = Fleet::of_cluster(1, "squash_root = true", "");
    fleet.mount(0, &[]);
    for path in [fleet.base().to_path_buf(), fleet.pfs("")] {
        chmod(&path, 0o755);
    }
    for (name, owner, mode) in [
        ("private", OWNER, 0o700),
        ("open", OWNER, 0o755),
        ("roots", 0, 0o700),
        ("tmp", 0, 0o1777),
    ] {
        let path = fleet.pfs(name);
        fs::create_dir(&path).expect("mkdir");
        chown(&path, Some(owner), Some(owner)).expect("chown");
        chmod(&path, mode);
    }
    for name in ["private/secret", "open/secret", "tmp/theirs"] {
        let path = fleet.mnt(1, name);
        as_user(OWNER, || fs::write(path, b"secret")).expect("the owner writes");
        chmod_as_owner(&fleet.mnt(1, name), 0o600);
    }
    fs::write(fleet.pfs("roots/secret"), b"root's").expect("write");
    fleet
}

fn chmod_as_owner(path: &Path, mode: RawMode) {
    as_user(OWNER, || chmod(path, mode));
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).expect("stat");
    (meta.uid(), meta.gid())
}

#[test]
fn promise_13_root_of_a_squashed_node_may_what_nobody_may() {
    if needs_nodes() {
        return;
    }
    let fleet = squashing();
    let at = |name: &str| fleet.mnt(1, name);
    let file = at("open/secret");
    let open = |how: &mut OpenOptions| errno(how.open(&file));
    assert_eq!(open(OpenOptions::new().read(true)), EACCES);
    assert_eq!(open(OpenOptions::new().append(true)), EACCES);
    assert_eq!(errno(rustix_truncate(&file)), EACCES);
    for refused in [
        errno(fs::write(at("open/new"), b"x")),
        errno(fs::create_dir(at("open/new"))),
        errno(symlink("x", at("open/new"))),
        errno(fs::hard_link(at("tmp/theirs"), at("open/new"))),
        errno(fs::remove_file(&file)),
        errno(fs::rename(&file, at("tmp/new"))),
        errno(fs::read_dir(at("private"))),
        errno(fs::read_dir(at("roots"))),
        errno(fs::read(at("roots/secret"))),
    ] {
        assert_eq!(refused, EACCES);
    }
    for refused in [
        errno(fs::set_permissions(&file, Permissions::from_mode(0o777))),
        errno(chown(&file, Some(0), Some(0))),
        errno(chown(&file, Some(OWNER), Some(OWNER))),
        errno(fs::hard_link(&file, at("tmp/new"))),
        errno(fs::remove_file(at("tmp/theirs"))),
        errno(fs::rename(at("tmp/theirs"), at("tmp/new"))),
        set_trusted(&at("tmp")),
    ] {
        assert_eq!(refused, EPERM);
    }
    // What its owner has just looked up, root looks up all the same; and in the way of neither.
    as_user(OWNER, || fs::read(at("private/secret"))).expect("the owner reads");
    assert_eq!(errno(fs::metadata(at("private/secret"))), EACCES);
    as_user(OWNER, || fs::read(at("private/secret"))).expect("the owner reads");
    // What everybody may do.
    assert_eq!(fs::read_dir(at("open")).expect("readdir").count(), 1);
    assert_eq!(fs::metadata(&file).expect("stat").len(), 6);
    assert_eq!(owner(&file), (OWNER, OWNER));
}

fn rustix_truncate(path: &Path) -> std::io::Result<()> {
    let path = std::ffi::CString::new(path.to_str().expect("text")).expect("no NUL");
    // SAFETY: a string that ends with NUL and lives.
    match unsafe { libc::truncate(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn set_trusted(path: &Path) -> Option<i32> {
    let set = setxattr(path, c"trusted.a", b"x", XattrFlags::empty());
    errno(set.map_err(Into::into))
}

#[test]
fn promise_13_what_root_of_a_squashed_node_makes_is_nobodys() {
    if needs_nodes() {
        return;
    }
    let fleet = squashing();
    let at = |name: &str| fleet.mnt(1, name);
    fs::write(at("tmp/f"), b"root's").expect("write");
    fs::create_dir(at("tmp/d")).expect("mkdir");
    symlink("f", at("tmp/l")).expect("symlink");
    for name in ["tmp/f", "tmp/d", "tmp/l"] {
        assert_eq!(owner(&at(name)), (NOBODY, NOBODY), "{name}");
    }
    let device = |kind| {
        let made = mknodat(CWD, at("tmp/device"), kind, Mode::from_raw_mode(0o666), 259);
        errno(made.map_err(Into::into))
    };
    assert_eq!(device(FileType::CharacterDevice), EPERM);
    assert_eq!(errno(chown(at("tmp/f"), Some(0), None)), EPERM);
    chmod(&at("tmp/f"), 0o4755);
    let mut file = OpenOptions::new()
        .append(true)
        .open(at("tmp/f"))
        .expect("open");
    file.write_all(b" no more").expect("append");
    drop(file);
    wait_until("the bit goes with the write", || {
        fs::metadata(at("tmp/f")).expect("stat").mode() & 0o7777 == 0o755
    });
    fs::rename(at("tmp/f"), at("tmp/d/f")).expect("rename");
    assert_eq!(fs::read(at("tmp/d/f")).expect("read"), b"root's no more");
    fs::remove_file(at("tmp/l")).expect("unlink");
    // A program that everybody may run and only its owner read.
    as_user(OWNER, || fs::copy("/bin/true", at("open/run"))).expect("copy");
    chmod_as_owner(&at("open/run"), 0o711);
    run_bounded(&mut Command::new(at("open/run")), LONG).ok();
    assert_eq!(errno(File::open(at("open/run"))), EACCES);
    let order = |node: usize, name: &str| {
        let path = fleet.mnt(node, name);
        fleet.run(
            node,
            &["stage-out".as_ref(), "--wait".as_ref(), path.as_ref()],
        )
    };
    // Orders of root are nobody's there, and root's on the server's own node.
    let refused = order(1, "open/secret");
    assert_ne!(refused.code, 0, "{refused:?}");
    assert_eq!(fs::read(fleet.pfs("open/secret")).ok(), None, "{refused:?}");
    order(0, "open/secret").ok();
    assert_eq!(
        fs::read(fleet.pfs("open/secret")).expect("there"),
        b"secret"
    );
    fs::write(fleet.mnt(0, "open/new"), b"root's").expect("root writes anywhere");
    assert_eq!(owner(&at("open/new")), (0, 0));
    assert_eq!(
        fs::read(fleet.mnt(0, "private/secret")).expect("read"),
        b"secret"
    );
}

#[test]
fn promise_13_users_of_a_squashed_node_work_as_ever() {
    if needs_nodes() {
        return;
    }
    const PAGE: usize = 4096;
    let mut fleet = squashing();
    let at = |name: &str| fleet.mnt(1, name);
    as_user(OWNER, || fs::create_dir(at("private/work"))).expect("mkdir");
    let mapped = as_user(OWNER, || {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(at("private/work/mapped"));
        let file = file.expect("create");
        file.set_len(PAGE as u64).expect("set_len");
        file
    });
    // Stored by a user, and written back by a kernel that names none.
    let map = Mapping::new(&mapped, PAGE);
    map.store(0, b'm');
    map.store(PAGE - 1, b'w');
    run_bounded(Command::new("sync").arg("-f").arg(at("tmp")), LONG).ok();
    let stored = || fs::read(fleet.mnt(0, "private/work/mapped")).expect("read");
    wait_until("what was stored is written back", || {
        let bytes = stored();
        (bytes[0], bytes[PAGE - 1]) == (b'm', b'w')
    });
    // Root looks at a directory that it may not see, and a program in it goes on.
    let work = at("private/work");
    let line =
        "cd \"$0\" && echo there && read go && echo made > f && cat f && read go && /bin/pwd";
    let mut shell = Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups"])
        .args(["sh", "-c", line])
        .arg(&work)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    let mut orders = shell.stdin.take().expect("piped");
    let mut answers = BufReader::new(shell.stdout.take().expect("piped")).lines();
    let mut answer = || answers.next().expect("it answers").expect("text");
    assert_eq!(answer(), "there");
    assert_eq!(errno(fs::metadata(&work)), EACCES);
    orders.write_all(b"go\n").expect("it reads");
    assert_eq!(answer(), "made");
    as_user(OWNER, || fs::metadata(&work)).expect("its owner finds it");
    orders.write_all(b"go\n").expect("it reads");
    assert_eq!(answer(), work.to_str().expect("text"));
    assert!(shell.wait().expect("it ends").success());
    // A restart of the server finds again what was open, by the names that its user may look up.
    drop(map);
    fleet.kill_server();
    fleet.start_server();
    mapped.write_all_at(b"again", 0).expect("it is open again");
    assert_eq!(&stored_at(&fleet, "private/work/mapped")[..5], b"again");
    let secret = fleet.mnt(1, "private/secret");
    as_user(OWNER, || {
        fs::write(&secret, b"changed").expect("write");
        fs::rename(&secret, fleet.mnt(1, "tmp/moved")).expect("rename");
        fs::remove_file(fleet.mnt(1, "tmp/moved")).expect("unlink");
    });
}

fn stored_at(fleet: &Fleet, name: &str) -> Vec<u8> {
    fs::read(fleet.mnt(0, name)).expect("read")
}
