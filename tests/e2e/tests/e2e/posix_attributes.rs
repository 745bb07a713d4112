//! Promise 2, what stat(2) shows and what may be set: times, set-id bits, attributes, directories
//! that are open.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use forebay_testkit::{
    Cluster, LONG, needs_root, pattern, run_bounded, skip, wait_until, write_file,
};
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, StatxFlags, Timespec, Timestamps, XattrFlags, setxattr,
    statx, utimensat,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::common::{as_user, bring};

/// Where a file can be.
const KINDS: [&str; 3] = ["dirty", "clean", "pfs"];
const OWNER: u32 = 65534;
/// Neither the owner nor in a group of a file.
const SOMEBODY: u32 = 12345;
/// A group that nobody is in but by `setpriv`.
const GROUP: u32 = 4242;

/// Seconds and nanoseconds.
type Time = (i64, u32);

/// Times of modification and of change, past all caches.
#[track_caller]
fn times(path: &Path) -> (Time, Time) {
    let found = statx(
        CWD,
        path,
        AtFlags::STATX_FORCE_SYNC,
        StatxFlags::BASIC_STATS,
    );
    let found = found.expect("statx");
    (
        (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
    )
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("metadata").mode() & 0o7777
}

/// Sets both times.
#[track_caller]
fn set_times(path: &Path, (tv_sec, nsec): Time) {
    let at = Timespec {
        tv_sec,
        tv_nsec: nsec.into(),
    };
    let times = Timestamps {
        last_access: at,
        last_modification: at,
    };
    utimensat(CWD, path, &times, AtFlags::empty()).expect("utimensat");
}

#[test]
fn promise_2_times_of_a_directory_are_those_that_programs_gave_it() {
    const OLD: Time = (1_000_000_000, 123_456_789);
    let cluster = Cluster::builder().lazy().up();
    for name in ["set", "left"] {
        fs::create_dir(cluster.mnt(name)).expect("mkdir");
        for n in 0..3 {
            write_file(&cluster.mnt(format!("{name}/{n}")), pattern(600 + n, 1000));
        }
    }
    set_times(&cluster.mnt("set"), OLD);
    let set = times(&cluster.mnt("set"));
    assert_eq!(
        set.0, OLD,
        "names that were made before do not count any more"
    );
    let left = times(&cluster.mnt("left"));
    let file = times(&cluster.mnt("left/1"));
    cluster.drain("");
    assert!(cluster.pfs("set/2").exists() && cluster.pfs("left/2").exists());
    assert_eq!(times(&cluster.mnt("set")), set, "a drain changes nothing");
    assert_eq!(times(&cluster.mnt("left")), left);
    assert_eq!(times(&cluster.mnt("left/1")), file, "nor of a file");
    assert_eq!(times(&cluster.pfs("set")).0, OLD, "the PFS shows the same");
    assert_eq!(times(&cluster.pfs("left")).0, left.0);
    // What is no drain counts: a mode for the time of change, a name for both, an outsider's name,
    // too.
    fs::set_permissions(cluster.mnt("set"), PermissionsExt::from_mode(0o700)).expect("chmod");
    let changed = times(&cluster.mnt("set"));
    assert!(changed.0 == OLD && changed.1 > set.1, "{changed:?}");
    fs::remove_file(cluster.mnt("left/0")).expect("unlink");
    let unlinked = times(&cluster.mnt("left"));
    assert!(unlinked.0 > left.0 && unlinked.1 > left.1, "{unlinked:?}");
    File::create(cluster.pfs("set/outsider")).expect("create");
    assert_eq!(times(&cluster.mnt("set")).0, times(&cluster.pfs("set")).0);
    assert!(times(&cluster.mnt("set")).0 > OLD);
}

#[test]
fn promise_2_the_pfs_hears_of_names_that_no_drain_follows() {
    let mut cluster = Cluster::builder().eager().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    write_file(&cluster.mnt("d/kept"), pattern(606, 100));
    cluster.drain("");
    let told = |cluster: &Cluster| times(&cluster.mnt("d")).0 == times(&cluster.pfs("d")).0;
    let mut shown = times(&cluster.mnt("d")).0;
    let mut newer = |cluster: &Cluster, what: &str| {
        let now = times(&cluster.mnt("d")).0;
        assert!(now > shown, "{what}: {now:?} after {shown:?}");
        shown = now;
        wait_until(what, || told(cluster));
        assert_eq!(times(&cluster.mnt("d")).0, now, "{what}");
    };
    // One that never was on the PFS.
    let held = File::create(cluster.mnt("d/new")).expect("create");
    fs::remove_file(cluster.mnt("d/new")).expect("unlink");
    drop(held);
    newer(&cluster, "a file that came and went");
    // One that is there.
    fs::rename(cluster.mnt("d/kept"), cluster.mnt("d/moved")).expect("rename");
    newer(&cluster, "a name on the PFS that changed");
    // At a stop nothing is owed any more.
    fs::remove_file(cluster.mnt("d/moved")).expect("unlink");
    let last = times(&cluster.mnt("d")).0;
    cluster.down(&["--drain"]);
    assert_eq!(times(&cluster.pfs("d")).0, last);
    cluster.start();
    assert_eq!(times(&cluster.mnt("d")).0, last);
}

#[test]
fn promise_2_now_is_the_same_moment_here_and_on_the_pfs() {
    const UTIME: &str = "import os, sys; os.utime(sys.argv[1])";
    for flags in [&[][..], &["--no-passthrough"]] {
        let cluster = flags
            .iter()
            .fold(Cluster::builder().lazy(), |b, f| b.flag(f));
        let cluster = cluster.up();
        let path = cluster.mnt("f");
        write_file(&path, pattern(605, 3000));
        cluster.drain("f");
        for by_path in [true, false] {
            let before = times(&path).0;
            match by_path {
                true => {
                    run_bounded(Command::new("python3").args(["-c", UTIME]).arg(&path), LONG).ok()
                }
                false => run_bounded(Command::new("touch").arg(&path), LONG).ok(),
            };
            let touched = times(&path).0;
            assert!(touched > before, "{touched:?}");
            if !by_path {
                // Through a descriptor that could write: it is drained again.
                cluster.drain("f");
            }
            assert_eq!(cluster.where_state("f"), "clean");
            assert_eq!(times(&cluster.pfs("f")).0, touched, "{flags:?}");
            assert_eq!(times(&path).0, touched, "{flags:?}");
        }
        let touched = times(&path).0;
        cluster.on_path(&["release"], "f").ok();
        assert_eq!(times(&path).0, touched, "{flags:?}");
    }
}

#[test]
fn promise_2_directories_of_an_archive_keep_their_times() {
    let cluster = Cluster::builder().eager().up();
    let line = "mkdir -p src/a/b && echo 1 > src/a/b/f && echo 2 > src/a/g && \
                touch -d @1100000000 src/a/b/f src/a/g && touch -d @1200000000 src/a/b && \
                touch -d @1300000000 src/a && tar -C src -cf a.tar a && tar -C mnt -xpf a.tar";
    let mut command = Command::new("sh");
    run_bounded(command.args(["-c", line]).current_dir(cluster.base()), LONG).ok();
    cluster.drain("");
    for (name, at) in [
        ("a", 1_300_000_000),
        ("a/b", 1_200_000_000),
        ("a/g", 1_100_000_000),
        ("a/b/f", 1_100_000_000),
    ] {
        for path in [cluster.mnt(name), cluster.pfs(name)] {
            assert_eq!(times(&path).0, (at, 0), "{path:?}");
        }
    }
}

#[test]
fn promise_2_any_change_by_somebody_else_takes_set_id_bits_away() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mnt = cluster.mnt("");
    let by_somebody = [
        "fallocate -l 9000",
        "fallocate -p -o 0 -l 100",
        "fallocate -z -o 0 -l 100",
    ];
    for kind in KINDS {
        for (n, what) in by_somebody.into_iter().enumerate() {
            let name = format!("{kind}-{n}");
            write_file(&cluster.mnt(&name), pattern(610, 5000));
            chown(cluster.mnt(&name), Some(OWNER), Some(OWNER)).expect("chown");
            fs::set_permissions(cluster.mnt(&name), PermissionsExt::from_mode(0o6777))
                .expect("chmod");
            bring(&cluster, &name, kind);
            as_user(&mnt, SOMEBODY, "", &format!("{what} {name}")).ok();
            assert_eq!(mode(&cluster.mnt(&name)), 0o777, "{what} {name}");
        }
        // The owner, who may not set them again without being root; seen at once.
        let name = format!("{kind}-own");
        write_file(&cluster.mnt(&name), pattern(611, 100));
        chown(cluster.mnt(&name), Some(OWNER), Some(OWNER)).expect("chown");
        fs::set_permissions(cluster.mnt(&name), PermissionsExt::from_mode(0o6755)).expect("chmod");
        bring(&cluster, &name, kind);
        let line = format!("stat -c %a {name} && echo x >> {name} && stat -c %a {name}");
        let shown = as_user(&mnt, OWNER, "", &line).ok().stdout;
        assert_eq!(shown, "6755\n755\n", "{name}");
    }
    cluster.drain("");
    for entry in fs::read_dir(cluster.pfs("")).expect("list") {
        let entry = entry.expect("entry");
        assert_eq!(mode(&entry.path()) & 0o6000, 0, "{:?}", entry.path());
    }
}

#[test]
fn promise_2_a_list_set_by_an_owner_outside_the_group_takes_the_group_bit_away() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mut probe = Command::new("setfacl");
    fs::create_dir(cluster.pfs("probe")).expect("mkdir");
    if run_bounded(probe.args(["-m", "u:1:r"]).arg(cluster.pfs("probe")), LONG).code != 0 {
        skip("the PFS has no access control lists");
        return;
    }
    let mnt = cluster.mnt("");
    for kind in KINDS {
        for (who, groups, expected) in [("outside", "", 0), ("member", "4242", 0o2000)] {
            let name = format!("{kind}-{who}");
            write_file(&cluster.mnt(&name), pattern(612, 100));
            chown(cluster.mnt(&name), Some(OWNER), Some(GROUP)).expect("chown");
            fs::set_permissions(cluster.mnt(&name), PermissionsExt::from_mode(0o2775))
                .expect("chmod");
            bring(&cluster, &name, kind);
            as_user(&mnt, OWNER, groups, &format!("setfacl -m u:1:rx {name}")).ok();
            assert_eq!(mode(&cluster.mnt(&name)) & 0o6000, expected, "{name}");
        }
    }
    cluster.drain("");
    for kind in KINDS {
        assert_eq!(
            mode(&cluster.pfs(format!("{kind}-outside"))) & 0o6000,
            0,
            "{kind}"
        );
        assert_eq!(
            mode(&cluster.pfs(format!("{kind}-member"))) & 0o6000,
            0o2000,
            "{kind}"
        );
    }
}

#[test]
fn promise_2_names_of_trusted_attributes_are_for_administrators() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().up();
    let mnt = cluster.mnt("");
    for kind in KINDS {
        let path = cluster.mnt(kind);
        write_file(&path, pattern(613, 100));
        for name in ["user.seen", "trusted.secret"] {
            if setxattr(&path, name, b"1", XattrFlags::empty()).is_err() {
                return skip("the PFS has no trusted attributes");
            }
        }
        bring(&cluster, kind, kind);
        let list = format!("getfattr -m - {kind}");
        let seen = as_user(&mnt, SOMEBODY, "", &list).ok().stdout;
        assert!(seen.contains("user.seen"), "{kind}: {seen}");
        assert!(!seen.contains("trusted"), "{kind}: {seen}");
        let seen = as_user(&mnt, 0, "", &list).ok().stdout;
        assert!(seen.contains("trusted.secret"), "{kind}: {seen}");
        // A list that is not there may be removed.
        let gone = rustix::fs::removexattr(&path, "system.posix_acl_access");
        assert!(
            matches!(gone, Ok(()) | Err(rustix::io::Errno::OPNOTSUPP)),
            "{kind}: {gone:?}"
        );
    }
}

#[test]
fn promise_2_attributes_that_the_pfs_would_refuse_are_refused() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().loop_pfs(64 << 20).up();
    let fill = |path: &Path| {
        let value = [7; 200];
        let set = |n: u8| setxattr(path, format!("user.a{n}"), &value, XattrFlags::empty());
        (0..8).map(set).collect::<Vec<_>>()
    };
    let bare = cluster.pfs("bare");
    write_file(&bare, pattern(620, 10));
    let expected = fill(&bare);
    assert!(expected[0].is_ok());
    assert!(
        expected.iter().any(Result::is_err),
        "this PFS takes all: {expected:?}"
    );
    for kind in KINDS {
        write_file(&cluster.mnt(kind), pattern(621, 100));
        bring(&cluster, kind, kind);
        assert_eq!(fill(&cluster.mnt(kind)), expected, "{kind}");
        // One for another's room, then in its place.
        let path = cluster.mnt(kind);
        rustix::fs::removexattr(&path, "user.a0").expect("remove");
        setxattr(&path, "user.b", &[1; 190], XattrFlags::CREATE).expect("in its place");
        OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("open")
            .write_all(b"more")
            .expect("write");
    }
    cluster.drain("");
    for kind in KINDS {
        let mut value = [0; 200];
        let length =
            rustix::fs::getxattr(cluster.pfs(kind), "user.b", &mut value[..]).expect("get");
        assert_eq!(value[..length], [1; 190], "{kind}");
    }
}

#[test]
fn promise_2_a_directory_that_is_rewound_shows_what_was_made_since() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    write_file(&cluster.mnt("d/before"), pattern(630, 10));
    let mut dir = Dir::new(File::open(cluster.mnt("d")).expect("open")).expect("directory");
    let names = |dir: &mut Dir| {
        let mut names = Vec::new();
        while let Some(entry) = dir.read() {
            names.push(
                entry
                    .expect("entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        names.sort_unstable();
        names
    };
    // One that was opened and not read yet, like one that was read to its end.
    write_file(&cluster.mnt("d/buffer"), pattern(631, 10));
    dir.rewind();
    assert_eq!(names(&mut dir), [".", "..", "before", "buffer"]);
    fs::remove_file(cluster.mnt("d/before")).expect("unlink");
    fs::create_dir(cluster.mnt("d/on-pfs")).expect("mkdir");
    dir.rewind();
    assert_eq!(names(&mut dir), [".", "..", "buffer", "on-pfs"]);
}

#[test]
fn promise_2_a_removed_directory_that_is_open_can_be_asked_and_changed() {
    let cluster = Cluster::builder().lazy().up();
    for name in ["removed", "replaced", "new"] {
        fs::create_dir(cluster.mnt(name)).expect("mkdir");
    }
    let open = ["removed", "replaced"].map(|name| File::open(cluster.mnt(name)).expect("open"));
    fs::remove_dir(cluster.mnt("removed")).expect("rmdir");
    fs::rename(cluster.mnt("new"), cluster.mnt("replaced")).expect("rename");
    for dir in &open {
        let found = statx(
            dir,
            c"",
            AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
            StatxFlags::BASIC_STATS,
        );
        assert_eq!(found.expect("fstat").stx_nlink, 0);
        dir.set_permissions(PermissionsExt::from_mode(0o711))
            .expect("fchmod");
        assert_eq!(dir.metadata().expect("fstat").mode() & 0o7777, 0o711);
        dir.sync_all().expect("fsync");
    }
    assert_eq!(
        mode(&cluster.mnt("replaced")),
        mode(&cluster.pfs("replaced"))
    );
}

#[test]
fn promise_2_stat_shows_what_was_stored_through_a_mapping() {
    // On flash: memory tells no file system of stores to a page that is mapped already.
    let on_flash = || Cluster::builder().dram("").ssd("256MiB").lazy();
    stat_after_stores(&on_flash().up());
    stat_after_stores(&on_flash().flag("--no-passthrough").up());
}

fn stat_after_stores(cluster: &Cluster) {
    const LEN: usize = 1 << 16;
    const OLD: Time = (1_000_000_000, 0);
    write_file(&cluster.mnt("f"), pattern(640, LEN));
    let path = cluster.mnt("f");
    let mtime = |file: &File| file.metadata().expect("metadata").mtime();
    set_times(&path, OLD);
    assert_eq!(path.metadata().expect("metadata").mtime(), OLD.0);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(&path).expect("open");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a fresh shared mapping of LEN bytes of a file of that length, which nobody cuts
    // meanwhile; it is unmapped below.
    unsafe {
        let map = mmap(null, LEN, protection, MapFlags::SHARED, &file, 0).expect("mmap");
        for store in 0..3 {
            map.cast::<u8>().add(store * 9000).write_volatile(9);
            rustix::mm::msync(map, LEN, rustix::mm::MsyncFlags::SYNC).expect("msync");
            assert!(mtime(&file) > OLD.0, "store {store}");
            set_times(&path, OLD);
            assert_eq!(mtime(&file), OLD.0);
        }
        munmap(map, LEN).expect("munmap");
    }
}

#[test]
fn promise_2_space_that_the_pfs_does_not_have_is_not_promised() {
    if needs_root() {
        return;
    }
    let small_pfs = Cluster::builder().dram("").ssd("1GiB").lazy();
    let cluster = small_pfs.loop_pfs(64 << 20).up();
    let file = File::create(cluster.mnt("f")).expect("create");
    let allocate = |bytes| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes);
    assert_eq!(allocate(200 << 20), Err(rustix::io::Errno::NOSPC));
    assert_eq!(file.metadata().expect("metadata").len(), 0);
    assert_eq!(allocate(5 << 20), Ok(()));
    assert_eq!(file.metadata().expect("metadata").len(), 5 << 20);
}

#[test]
fn promise_2_handles_of_files_that_would_not_hold_are_not_offered() {
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(650, 10));
    let file = File::open(cluster.mnt("f")).expect("open");
    let mut handle = [0u32; 34];
    handle[0] = 128;
    let mut mount_id = 0i32;
    // SAFETY: the descriptor is open, the name is a C string, and the buffer has the 128 bytes
    // behind its header that it says it has.
    let told = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    let error = std::io::Error::last_os_error();
    assert_eq!((told, error.raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
}
