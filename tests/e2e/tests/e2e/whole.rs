//! Promise 6: a file appears on the PFS whole or not at all.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use forebay_testkit::{Cluster, is_root, listing, pattern, wait_until, write_file};
use rustix::fs::{XattrFlags, getxattr, setxattr};

const LARGE: usize = 48 << 20;

/// What an outsider who looks all the time has seen.
#[derive(Default)]
struct Seen {
    other_names: BTreeSet<OsString>,
    absent: u64,
    whole: u64,
    partial: Vec<String>,
}

/// Looks at a directory until told to stop; `is_whole` judges the file under its name.
fn watch(
    folder: &Path,
    name: &str,
    stop: &AtomicBool,
    is_whole: impl Fn(&Path) -> Option<String>,
) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Acquire) {
        match folder.join(name).exists() {
            false => seen.absent += 1,
            true => match is_whole(&folder.join(name)) {
                None => seen.whole += 1,
                Some(why) => seen.partial.push(why),
            },
        }
        let others = listing(folder).into_iter().filter(|other| other != name);
        seen.other_names.extend(others);
    }
    seen
}

#[test]
fn promise_6_a_new_file_is_on_the_pfs_whole_or_not_at_all() {
    let cluster = Cluster::builder().lazy().up();
    let content = pattern(20, LARGE);
    write_file(&cluster.mnt("f"), content);
    let (stop, folder) = (AtomicBool::new(false), cluster.pfs(""));
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&folder, "f", &stop, |path| content.difference(path)));
        cluster.drain("f");
        wait_until("the file is seen", || folder.join("f").exists());
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Release);
        watcher.join().expect("watcher")
    });
    assert_eq!(seen.partial, Vec::<String>::new());
    assert!(seen.absent > 0 && seen.whole > 0);
    // Where the PFS has files without a name, the copy has none until it is whole.
    let temporary = |name: &OsString| name.to_string_lossy().starts_with(".forebay-");
    assert!(
        seen.other_names.iter().all(temporary),
        "{:?}",
        seen.other_names
    );
    assert_eq!(listing(&folder), ["f"], "no temporary file stays");
}

#[test]
fn promise_6_a_file_is_replaced_on_the_pfs_at_once() {
    let cluster = Cluster::builder().lazy().up();
    let (old, new) = (pattern(21, LARGE / 2), pattern(22, LARGE));
    let ends_of = [old, new].map(|content| {
        let bytes = content.bytes();
        [&bytes[..8], &bytes[bytes.len() - 8..]].concat()
    });
    write_file(&cluster.mnt("f"), old);
    cluster.drain("f");
    write_file(&cluster.mnt("f"), new);
    let (stop, folder) = (AtomicBool::new(false), cluster.pfs(""));
    let either = |path: &Path| {
        let file = File::open(path).ok()?;
        // The size tells which one it should be; the name may change hands in between.
        let len = file.metadata().ok()?.len() as usize;
        let which = [old, new].iter().position(|c| c.len_bytes == len);
        let mut ends = [0; 16];
        file.read_exact_at(&mut ends[..8], 0).ok()?;
        file.read_exact_at(&mut ends[8..], len as u64 - 8).ok()?;
        let same = which.is_some_and(|at| ends_of[at] == ends);
        (!same).then(|| format!("{len} bytes, neither old nor new"))
    };
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&folder, "f", &stop, either));
        cluster.drain("f");
        stop.store(true, Ordering::Release);
        watcher.join().expect("watcher")
    });
    assert_eq!(seen.partial, Vec::<String>::new());
    assert_eq!(seen.absent, 0, "the name was never without a file");
    new.assert_in(&cluster.pfs("f"));
}

#[test]
fn promise_6_temporary_names_are_not_visible_through_the_mount() {
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(23, LARGE));
    // Where the PFS has files without a name there are none; so that there is one, as after a crash
    // of another burst buffer on the same PFS:
    let left = ".forebay-0badcafe-0000000000000007-1.part";
    fs::write(cluster.pfs(left), b"unfinished").unwrap();
    let mut shown = BTreeSet::new();
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| cluster.drain("f"));
        loop {
            shown.extend(listing(&cluster.mnt("")));
            for name in listing(&cluster.pfs(""))
                .into_iter()
                .filter(|name| name != "f")
            {
                assert!(!cluster.mnt(&name).exists(), "{}", name.display());
            }
            if drain.is_finished() {
                break;
            }
        }
    });
    assert_eq!(shown, BTreeSet::from([OsString::from("f")]));
    assert!(cluster.pfs(left).exists(), "it is not ours to remove");
}

#[test]
fn promise_6_owner_mode_times_and_attributes_are_kept() {
    let cluster = Cluster::builder().lazy().up();
    let path = cluster.mnt("f");
    write_file(&path, pattern(24, 100_000));
    setxattr(&path, "user.note", b"kept\0here", XattrFlags::empty()).expect("setxattr");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o2751)).expect("chmod");
    if is_root() {
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).expect("chown");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o2751)).expect("chmod");
    }
    let at = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let times = FileTimes::new()
        .set_accessed(at - Duration::from_secs(5))
        .set_modified(at);
    let file = OpenOptions::new().write(true).open(&path).expect("open");
    file.set_times(times).expect("times");
    drop(file);
    let before = path.metadata().expect("metadata");
    cluster.drain("f");
    for place in [cluster.mnt("f"), cluster.pfs("f")] {
        let meta = place.metadata().expect("metadata");
        let facts = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid(), m.mtime(), m.mtime_nsec());
        assert_eq!(facts(&meta), facts(&before), "{}", place.display());
        assert_eq!(meta.modified().expect("mtime"), at, "{}", place.display());
        let mut value = [0; 64];
        let len = getxattr(&place, "user.note", &mut value).expect("getxattr");
        assert_eq!(&value[..len], b"kept\0here", "{}", place.display());
    }
    let pfs = cluster.pfs("f").metadata().expect("metadata");
    assert_eq!(pfs.accessed().expect("atime"), at - Duration::from_secs(5));
    if is_root() {
        assert_eq!((pfs.uid(), pfs.gid()), (1234, 4321));
        assert_eq!(pfs.mode() & 0o7777, 0o2751);
    }
}

#[test]
fn promise_6_holes_are_kept() {
    let cluster = Cluster::builder().lazy().up();
    let file = File::create(cluster.mnt("f")).expect("create");
    file.write_all_at(&pattern(25, 4096).bytes(), 0)
        .expect("write");
    file.write_all_at(&pattern(26, 4096).bytes(), 512 << 20)
        .expect("write");
    file.set_len(1 << 30).expect("set_len");
    drop(file);
    cluster.drain("f");
    let meta = cluster.pfs("f").metadata().expect("metadata");
    assert_eq!(meta.len(), 1 << 30);
    let occupied_bytes = meta.blocks() * 512;
    assert!(occupied_bytes < 1 << 20, "{occupied_bytes} bytes occupied");
    let file = File::open(cluster.pfs("f")).expect("open");
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, 512 << 20).expect("read");
    assert_eq!(bytes, pattern(26, 4096).bytes());
}

#[test]
fn promise_6_a_file_changed_while_it_drains_ends_up_newest_on_the_pfs() {
    let cluster = Cluster::builder().eager().up();
    for round in 0..3 {
        let first = pattern(30 + round, 24 << 20);
        write_file(&cluster.mnt("f"), first);
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| cluster.on_path(&["stage-out", "--wait"], "f"));
            // Somewhere within the copy, and on some rounds before or behind it.
            std::thread::sleep(Duration::from_millis(3 + 12 * round));
            let file = OpenOptions::new()
                .write(true)
                .open(cluster.mnt("f"))
                .expect("open");
            pattern(40 + round, 20 << 20).write(&file);
            file.set_len(20 << 20).expect("set_len");
            drop(file);
            drain.join().expect("drain");
        });
        pattern(40 + round, 20 << 20).assert_in(&cluster.mnt("f"));
        cluster.wait_state("f", "clean");
        pattern(40 + round, 20 << 20).assert_in(&cluster.pfs("f"));
        assert_eq!(listing(&cluster.pfs("")), ["f"]);
    }
}
