//! Promise 2, rules that programs rely on without thinking of them: who keeps what open, who may do
//! what, what is kept to the last nanosecond.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use forebay_testkit::{
    Cluster, LONG, listing, needs_root, pattern, read_all_at, run_bounded, settle_for_revalidation,
    skip, write_file,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, SeekFrom, Timespec, Timestamps, XattrFlags, fallocate, getxattr,
    listxattr, removexattr, seek, setxattr, utimensat,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::common::{as_user, bring};

/// Where a file can be.
const KINDS: [&str; 3] = ["dirty", "clean", "pfs"];
const NOBODY: u32 = 65534;
/// A group that nobody is in but by `setpriv`.
const GROUP: u32 = 4242;

fn mode(path: &Path) -> u32 {
    path.metadata().expect("metadata").mode() & 0o7777
}

#[test]
fn promise_2_a_file_replaced_while_it_is_open_stays_what_it_was_for_its_users() {
    let cluster = Cluster::builder().lazy().up();
    let mut expected = Vec::new();
    for (at, old) in KINDS.into_iter().enumerate() {
        for (to, new) in KINDS.into_iter().enumerate() {
            let id = 500 + 2 * (3 * at + to) as u64;
            let (target, source) = (format!("{old}-by-{new}"), format!("{old}-by-{new}.tmp"));
            write_file(&cluster.mnt(&target), pattern(id, 9000));
            bring(&cluster, &target, old);
            let mut options = OpenOptions::new();
            let open = options.read(true).write(true);
            let open = open.open(cluster.mnt(&target)).expect("open");
            write_file(&cluster.mnt(&source), pattern(id + 1, 5000));
            bring(&cluster, &source, new);
            fs::rename(cluster.mnt(&source), cluster.mnt(&target)).expect("rename");
            open.write_all_at(b"still mine", 100).expect("write");
            let mut content = pattern(id, 9000).bytes();
            content[100..110].copy_from_slice(b"still mine");
            assert!(read_all_at(&open) == content, "{target}");
            assert_eq!(open.metadata().expect("metadata").nlink(), 0, "{target}");
            drop(open);
            expected.push((target, pattern(id + 1, 5000)));
        }
    }
    cluster.drain("");
    for (name, content) in &expected {
        content.assert_in(&cluster.mnt(name));
        content.assert_in(&cluster.pfs(name));
    }
    assert_eq!(listing(&cluster.pfs("")).len(), expected.len(), "conflicts");
}

#[test]
fn promise_2_processes_that_append_to_one_file_lose_nothing() {
    const LINES: usize = 150;
    let cluster = Cluster::builder().up();
    File::create(cluster.mnt("log")).expect("create");
    let line = format!("i=0; while [ $i -lt {LINES} ]; do echo $0 $i >> log; i=$((i+1)); done");
    std::thread::scope(|scope| {
        for writer in ["a", "b", "c"] {
            let (folder, line) = (cluster.mnt(""), &line);
            scope.spawn(move || {
                let mut command = Command::new("sh");
                command.args(["-c", line, writer]).current_dir(folder);
                run_bounded(&mut command, LONG).ok();
            });
        }
    });
    cluster.drain("log");
    for path in [cluster.mnt("log"), cluster.pfs("log")] {
        let text = fs::read_to_string(path).expect("text");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 3 * LINES);
    }
}

#[test]
fn promise_2_what_is_written_to_a_private_mapping_stays_there() {
    const LEN: usize = 1 << 16;
    let cluster = Cluster::builder().lazy().up();
    for kind in KINDS {
        write_file(&cluster.mnt(kind), pattern(520, LEN));
        bring(&cluster, kind, kind);
        let file = File::open(cluster.mnt(kind)).expect("open");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a fresh private mapping of LEN bytes of a file of that length, which nobody cuts
        // meanwhile; it is unmapped below.
        unsafe {
            let map = mmap(null, LEN, protection, MapFlags::PRIVATE, &file, 0).expect("mmap");
            let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN);
            assert!(bytes == pattern(520, LEN).bytes(), "{kind}");
            bytes[100..200].fill(0);
            munmap(map, LEN).expect("munmap");
        }
        assert_eq!(cluster.where_state(kind), kind);
        pattern(520, LEN).assert_in(&cluster.mnt(kind));
    }
}

#[test]
fn promise_2_data_and_holes_are_found() {
    const MIB: u64 = 1 << 20;
    let cluster = Cluster::builder().lazy().up();
    for kind in KINDS {
        let file = File::create(cluster.mnt(kind)).expect("create");
        file.set_len(8 * MIB).expect("size");
        file.write_all_at(&pattern(530, 2 << 20).bytes(), 4 * MIB)
            .expect("write");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 5 * MIB, MIB).expect("punch");
        drop(file);
        bring(&cluster, kind, kind);
        let file = File::open(cluster.mnt(kind)).expect("open");
        let found = [
            SeekFrom::Data(0),
            SeekFrom::Hole(4 * MIB),
            SeekFrom::Hole(0),
        ]
        .map(|what| seek(&file, what).expect("seek"));
        assert_eq!(found, [4 * MIB, 5 * MIB, 0], "{kind}");
        let none = seek(&file, SeekFrom::Data(7 * MIB));
        assert_eq!(none, Err(rustix::io::Errno::NXIO), "{kind}");
        assert!(
            file.metadata().expect("metadata").blocks() * 512 < 2 * MIB,
            "{kind}"
        );
    }
}

#[test]
fn promise_2_locks_exclude_other_processes() {
    let cluster = Cluster::builder().up();
    write_file(&cluster.mnt("f"), pattern(540, 100));
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(cluster.mnt(""));
        run_bounded(&mut command, LONG).code
    };
    // The outer flock holds it, while the inner one finds it taken; afterwards it is free.
    assert_eq!(shell("flock -n f flock -n f true"), 1);
    assert_eq!(shell("flock -n f true"), 0);
    let posix = "import fcntl, os, sys\n\
                 first = open('f', 'r+'); fcntl.lockf(first, fcntl.LOCK_EX, 10, 0)\n\
                 def other(start):\n\
                 \x20   child = os.fork()\n\
                 \x20   if child: return os.waitpid(child, 0)[1] >> 8\n\
                 \x20   try: fcntl.lockf(open('f', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)\n\
                 \x20   except OSError: os._exit(7)\n\
                 \x20   os._exit(0)\n\
                 found = other(5), other(10)\n\
                 fcntl.lockf(first, fcntl.LOCK_UN)\n\
                 sys.exit(0 if found + (other(5),) == (7, 0, 0) else 1)";
    let mut command = Command::new("python3");
    command.args(["-c", posix]).current_dir(cluster.mnt(""));
    run_bounded(&mut command, LONG).ok();
}

#[test]
fn promise_2_extended_attributes_are_kept_wherever_the_file_is() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("dir")).expect("mkdir");
    for kind in KINDS {
        write_file(&cluster.mnt(kind), pattern(550, 100));
        bring(&cluster, kind, kind);
    }
    for name in ["dir", "dirty", "clean", "pfs"] {
        let path = cluster.mnt(name);
        let set = |name: &str, value: &[u8], how| setxattr(&path, name, value, how);
        set("user.one", b"1", XattrFlags::empty()).expect("set");
        set("user.two", &[7; 3000], XattrFlags::CREATE).expect("set");
        let again = set("user.two", b"", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST), "{name}");
        let none = set("user.three", b"", XattrFlags::REPLACE);
        assert_eq!(none, Err(rustix::io::Errno::NODATA), "{name}");
        removexattr(&path, "user.one").expect("remove");
        let mut list = [0; 4096];
        let length = listxattr(&path, &mut list[..]).expect("list");
        assert_eq!(&list[..length], b"user.two\0", "{name}");
    }
    cluster.drain("");
    for name in ["dir", "dirty", "clean", "pfs"] {
        for path in [cluster.mnt(name), cluster.pfs(name)] {
            let mut value = [0; 4096];
            let length = getxattr(&path, "user.two", &mut value[..]).expect("get");
            assert_eq!(value[..length], [7; 3000], "{name}");
        }
    }
}

#[test]
fn promise_2_times_are_kept_to_the_nanosecond() {
    let cluster = Cluster::builder().lazy().up();
    for (kind, sec) in KINDS
        .into_iter()
        .zip([1_234_567_890, -43_200].into_iter().cycle())
    {
        write_file(&cluster.mnt(kind), pattern(560, 100));
        bring(&cluster, kind, kind);
        let at = |tv_nsec| Timespec {
            tv_sec: sec,
            tv_nsec,
        };
        let times = Timestamps {
            last_access: at(123_456_789),
            last_modification: at(987_654_321),
        };
        utimensat(CWD, cluster.mnt(kind), &times, AtFlags::empty()).expect("utimensat");
    }
    cluster.drain("");
    for (kind, sec) in KINDS
        .into_iter()
        .zip([1_234_567_890, -43_200].into_iter().cycle())
    {
        for path in [cluster.mnt(kind), cluster.pfs(kind)] {
            let meta = fs::metadata(&path).expect("metadata");
            let found = (meta.mtime(), meta.mtime_nsec(), meta.atime_nsec());
            assert_eq!(found, (sec, 987_654_321, 123_456_789), "{path:?}");
        }
    }
}

#[test]
fn promise_2_a_file_may_be_as_large_as_the_pfs_lets_it() {
    // What ext4 with blocks of 4 KiB has: 16 TiB less one block. Other file systems have more.
    const LARGEST: u64 = (1 << 44) - 4096;
    let cluster = Cluster::builder().lazy().up();
    let end = LARGEST - 3;
    let file = File::create(cluster.mnt("f")).expect("create");
    file.write_all_at(b"end", end).expect("write");
    file.write_all_at(b"begin", 0).expect("write");
    drop(file);
    cluster.drain("f");
    assert_eq!(cluster.status()["errors"].to_string(), "[]");
    assert_eq!(cluster.dirty_bytes(), 0);
    cluster.on_path(&["release"], "f").ok();
    for path in [cluster.mnt("f"), cluster.pfs("f")] {
        let file = File::open(path).expect("open");
        assert_eq!(file.metadata().expect("metadata").len(), LARGEST);
        let mut bytes = [0; 3];
        file.read_exact_at(&mut bytes, end).expect("read");
        assert_eq!(&bytes, b"end");
        assert_eq!(
            seek(&file, SeekFrom::Data(1 << 40)).map(|at| at > 1 << 43),
            Ok(true)
        );
    }
}

#[test]
fn promise_2_further_groups_and_sticky_directories_count() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mnt = cluster.mnt("");
    for kind in KINDS {
        write_file(&cluster.mnt(kind), pattern(570, 10));
        chown(cluster.mnt(kind), Some(0), Some(GROUP)).expect("chown");
        fs::set_permissions(cluster.mnt(kind), PermissionsExt::from_mode(0o640)).expect("chmod");
        bring(&cluster, kind, kind);
    }
    fs::create_dir(cluster.mnt("team")).expect("mkdir");
    chown(cluster.mnt("team"), Some(0), Some(GROUP)).expect("chown");
    fs::set_permissions(cluster.mnt("team"), PermissionsExt::from_mode(0o2770)).expect("chmod");
    fs::create_dir(cluster.mnt("tmp")).expect("mkdir");
    fs::set_permissions(cluster.mnt("tmp"), PermissionsExt::from_mode(0o1777)).expect("chmod");
    let member = "cat dirty clean pfs > /dev/null && echo mine > team/file && mkdir team/dir && \
                  echo mine > tmp/mine";
    as_user(&mnt, NOBODY, "4242", member).ok();
    assert_ne!(
        as_user(&mnt, NOBODY, "", "cat dirty || cat clean || cat pfs").code,
        0
    );
    assert_ne!(
        as_user(&mnt, NOBODY, "", "ls team || echo x > team/other").code,
        0
    );
    // In a sticky directory only the owner removes and renames.
    for line in [
        "rm -f tmp/mine",
        "mv tmp/mine tmp/yours",
        "echo x > tmp/x && mv tmp/x tmp/mine",
    ] {
        assert_ne!(as_user(&mnt, 12345, "", line).code, 0, "{line}");
    }
    as_user(&mnt, NOBODY, "", "mv tmp/mine tmp/still-mine").ok();
    cluster.drain("");
    for name in ["team/file", "team/dir"] {
        let meta = cluster.pfs(name).metadata().expect("metadata");
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, GROUP), "{name}");
    }
    assert_eq!(mode(&cluster.pfs("team/dir")) & 0o2000, 0o2000);
}

#[test]
fn promise_2_a_write_and_a_chown_take_set_id_bits_away() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mnt = cluster.mnt("");
    for kind in KINDS {
        for what in ["written", "cut", "given"] {
            let name = format!("{kind}-{what}");
            write_file(&cluster.mnt(&name), pattern(580, 100));
            chown(cluster.mnt(&name), Some(NOBODY), Some(NOBODY)).expect("chown");
            let all = PermissionsExt::from_mode(0o6777);
            fs::set_permissions(cluster.mnt(&name), all).expect("chmod");
            bring(&cluster, &name, kind);
            assert_eq!(mode(&cluster.mnt(&name)), 0o6777, "{name}");
            match what {
                "written" => as_user(&mnt, 12345, "", &format!("echo x >> {name}")).ok(),
                "cut" => as_user(&mnt, 12345, "", &format!("truncate -s 5 {name}")).ok(),
                _ => as_user(&mnt, NOBODY, "", &format!("chown :{NOBODY} {name}")).ok(),
            };
            assert_eq!(mode(&cluster.mnt(&name)), 0o777, "{name}");
        }
    }
    cluster.drain("");
    for kind in KINDS {
        for what in ["written", "cut", "given"] {
            let name = format!("{kind}-{what}");
            assert_eq!(mode(&cluster.pfs(&name)), 0o777, "{name}");
        }
    }
}

#[test]
fn promise_2_access_control_lists_count_and_are_kept() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let root = |folder: &Path, line: &str| {
        let mut command = Command::new("sh");
        run_bounded(command.args(["-c", line]).current_dir(folder), LONG)
    };
    if root(&cluster.pfs(""), "mkdir probe && setfacl -m u:1:r probe").code != 0 {
        skip("the PFS has no access control lists");
        return;
    }
    let mnt = cluster.mnt("");
    for kind in KINDS {
        write_file(&cluster.mnt(kind), pattern(590, 10));
        root(
            &mnt,
            &format!("chmod 600 {kind} && setfacl -m u:{NOBODY}:r {kind}"),
        )
        .ok();
        bring(&cluster, kind, kind);
        // And once more where it is now: a list is a mode, too.
        let again =
            format!("setfacl -b {kind} && chmod 600 {kind} && setfacl -m u:{NOBODY}:r {kind}");
        root(&mnt, &again).ok();
        assert_eq!(
            root(&mnt, &format!("stat -c %a {kind}")).ok().stdout,
            "640\n"
        );
        as_user(&mnt, NOBODY, "", &format!("cat {kind} > /dev/null")).ok();
        let denied = [
            (NOBODY, format!("echo x >> {kind}")),
            (12345, format!("cat {kind}")),
        ];
        for (uid, line) in denied {
            assert_ne!(as_user(&mnt, uid, "", &line).code, 0, "{line}");
        }
    }
    // What a directory gives, files that are made in the buffer get, whatever the umask is.
    let default =
        format!("mkdir d && setfacl -d -m u:{NOBODY}:rw,o::- d && umask 077 && echo x > d/f");
    root(&mnt, &default).ok();
    root(&mnt, &format!("chmod 711 d && setfacl -m u:{NOBODY}:x d")).ok();
    as_user(&mnt, NOBODY, "", "echo more >> d/f").ok();
    assert_ne!(as_user(&mnt, 12345, "", "cat d/f").code, 0);
    cluster.drain("");
    let lists = "getfacl -n dirty clean pfs d d/f";
    let (here, below) = (root(&mnt, lists).ok(), root(&cluster.pfs(""), lists).ok());
    assert_eq!(here.stdout, below.stdout);
    assert_eq!(
        here.stdout.matches(&format!("user:{NOBODY}:")).count(),
        6,
        "{}",
        here.stdout
    );
}

#[test]
fn promise_2_a_file_that_nobody_may_change_on_the_pfs_is_not_changed_through_the_mount() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().loop_pfs(32 << 20).lazy().up();
    let inside = cluster.loop_fs();
    for kind in ["clean", "pfs"] {
        for (name, flag) in [("immutable", "+i"), ("append", "+a")] {
            let name = format!("{kind}-{name}");
            write_file(&cluster.mnt(&name), pattern(460, 1000));
            bring(&cluster, &name, kind);
            inside.chattr(flag, &cluster.pfs(&name));
        }
    }
    fs::create_dir(cluster.mnt("closed")).expect("mkdir");
    inside.chattr("+i", &cluster.pfs("closed"));
    settle_for_revalidation();
    let refused = |done: std::io::Result<()>, what: &str| {
        let errno = done.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno, Some(libc::EPERM), "{what}");
    };
    for kind in ["clean", "pfs"] {
        let [immutable, append] = ["immutable", "append"].map(|name| format!("{kind}-{name}"));
        for name in [&immutable, &append] {
            let path = cluster.mnt(name);
            let write = || OpenOptions::new().write(true).open(&path)?.write_all(b"X");
            refused(write(), &format!("write to {name}"));
            refused(fs::write(&path, b"X"), &format!("replacing {name}"));
            let mode = fs::set_permissions(&path, PermissionsExt::from_mode(0o600));
            refused(mode, &format!("chmod of {name}"));
            let mark = setxattr(&path, "user.mark", b"1", XattrFlags::empty());
            refused(mark.map_err(Into::into), &format!("setxattr of {name}"));
        }
        let add = |name: &str| {
            let mut file = OpenOptions::new().append(true).open(cluster.mnt(name))?;
            file.write_all(b"more")?;
            file.sync_all()
        };
        refused(add(&immutable), &format!("append to {immutable}"));
        add(&append).expect("append");
        add(&append).expect("append");
        let both = [&pattern(460, 1000).bytes()[..], b"moremore"].concat();
        for path in [cluster.pfs(&append), cluster.mnt(&append)] {
            assert_eq!(fs::read(path).expect("read"), both);
        }
        pattern(460, 1000).assert_in(&cluster.pfs(&immutable));
        cluster.on_path(&["stage-in"], &immutable).ok();
        assert_eq!(cluster.where_state(&immutable), "pfs");
    }
    refused(
        fs::write(cluster.mnt("closed/f"), b"X"),
        "making a file in what is closed",
    );
    cluster.drain("");
    assert_eq!(cluster.status()["errors_total"], 0);
    for name in listing(&cluster.pfs("")) {
        let name = name.to_str().expect("UTF-8");
        if ["immutable", "append", "closed"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            inside.chattr("-ia", &cluster.pfs(name));
        }
    }
}
