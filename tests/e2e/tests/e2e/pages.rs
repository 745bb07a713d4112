//! Pages that the kernel keeps of files that are served by requests: they stay while the content
//! does, and not a moment longer.

use std::ffi::CString;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use forebay_testkit::{Builder, Cluster, pattern, settle_for_revalidation, wait_until, write_file};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::common::bring;
use crate::faults::{at_rest_with, damage_at_rest};

const LEN: usize = 300_000;
const PAGE: usize = 4096;

fn plain() -> Builder {
    Cluster::builder().lazy().flag("--no-passthrough")
}

/// A mapping of a whole file, for one look or store.
fn mapped<T>(file: &File, protection: ProtFlags, see: impl FnOnce(*mut u8, usize) -> T) -> T {
    let len = file.metadata().expect("metadata").len() as usize;
    let nowhere = std::ptr::null_mut();
    // SAFETY: a new mapping, of a file that is that long.
    let at = unsafe { mmap(nowhere, len, protection, MapFlags::SHARED, file, 0) };
    let at = at.expect("mmap");
    let seen = see(at.cast(), len);
    // SAFETY: nobody uses it any more.
    unsafe { munmap(at, len) }.expect("munmap");
    seen
}

/// How many pages of a file the kernel has; nothing is read for that.
fn pages_of(file: &File) -> usize {
    mapped(file, ProtFlags::READ, |at, len| {
        let mut has = vec![0_u8; len.div_ceil(PAGE)];
        // SAFETY: the mapping is that long, and there is a byte for each page.
        let asked = unsafe { libc::mincore(at.cast(), len, has.as_mut_ptr()) };
        assert_eq!(asked, 0, "mincore");
        has.iter().filter(|page| **page & 1 == 1).count()
    })
}

/// Opens a file, reads it, and says whether all its pages were there before that.
fn read_anew(path: &Path) -> (bool, Vec<u8>) {
    let mut file = File::open(path).expect("open");
    let len = file.metadata().expect("metadata").len() as usize;
    let kept = len > 0 && pages_of(&file) == len.div_ceil(PAGE);
    let mut found = Vec::new();
    file.read_to_end(&mut found).expect("read");
    (kept, found)
}

/// Reads until the kernel has pages that it keeps: the first read fills them, and who has written
/// the file is known to have closed it a moment after their close.
fn read_until_kept(path: &Path, content: &[u8]) {
    wait_until("the pages are kept", || {
        let (kept, found) = read_anew(path);
        assert!(found == content, "{}: stale or wrong", path.display());
        kept
    });
}

/// Its time of modification is not that of its drain.
fn make_old(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("open");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let times = FileTimes::new().set_modified(long_ago);
    file.set_times(times).expect("times");
}

#[test]
fn promise_2_a_file_that_nobody_changes_is_read_from_the_page_cache_at_the_next_open() {
    let cluster = plain().up();
    let (mnt, content) = (cluster.mnt("f"), pattern(1, LEN).bytes());
    write_file(&mnt, pattern(1, LEN));
    make_old(&mnt);
    read_until_kept(&mnt, &content);
    // Wherever it goes, it is the same.
    for state in ["clean", "pfs", "clean"] {
        match cluster.where_state("f").as_str() {
            "pfs" => drop(cluster.on_path(&["stage-in"], "f").ok()),
            _ => bring(&cluster, "f", state),
        }
        assert_eq!(cluster.where_state("f"), state);
        let (kept, found) = read_anew(&mnt);
        assert!(found == content);
        assert!(kept, "{state}");
    }
    // Other attributes are no other content.
    let closed = fs::metadata(&mnt).expect("metadata").permissions();
    fs::set_permissions(&mnt, closed).expect("chmod");
    assert!(read_anew(&mnt).0);
}

/// Changes a file, and the expectation with it, to the same length.
type Change = fn(&Path, &mut [u8]);

fn rewrite(path: &Path, content: &mut [u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("open");
    file.write_all_at(&[0xa1; 5000], 70_000).expect("write");
    content[70_000..75_000].fill(0xa1);
}

#[repr(align(4096))]
struct Aligned([u8; 2 * PAGE]);

fn write_direct(path: &Path, content: &mut [u8]) {
    let mut options = OpenOptions::new();
    let options = options.write(true).custom_flags(libc::O_DIRECT);
    let file = options.open(path).expect("open");
    let buffer = Box::new(Aligned([0xa2; 2 * PAGE]));
    file.write_all_at(&buffer.0, 8 * PAGE as u64)
        .expect("write");
    content[8 * PAGE..10 * PAGE].fill(0xa2);
}

/// The descriptor is closed before the store, and nothing is flushed.
fn store(path: &Path, content: &mut [u8]) {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(path).expect("open");
    mapped(&file.try_clone().expect("dup"), both(), |at, len| {
        drop(file);
        // SAFETY: all of the mapping, which nobody else has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, len) };
        bytes[9000..20_000].fill(0xa3);
    });
    content[9000..20_000].fill(0xa3);
}

fn store_and_flush(path: &Path, content: &mut [u8]) {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(path).expect("open");
    mapped(&file, both(), |at, len| {
        // SAFETY: all of the mapping, which nobody else has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, len) };
        bytes[50..60].fill(0xa4);
        // SAFETY: it is mapped.
        unsafe { msync(at.cast(), len, MsyncFlags::SYNC) }.expect("msync");
    });
    content[50..60].fill(0xa4);
}

fn both() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

/// By name.
fn cut_and_extend(path: &Path, content: &mut [u8]) {
    for len in [100_000, LEN] {
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a string that ends with zero.
        let cut = unsafe { libc::truncate(name.as_ptr(), len as i64) };
        assert_eq!(cut, 0, "truncate");
    }
    content[100_000..].fill(0);
}

fn punch(path: &Path, content: &mut [u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("open");
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, how, 30_000, 60_000).expect("fallocate");
    content[30_000..90_000].fill(0);
}

fn other() -> Vec<u8> {
    pattern(77, LEN).bytes()
}

fn rename_over(path: &Path, content: &mut [u8]) {
    let aside = path.with_extension("aside");
    fs::write(&aside, other()).expect("write");
    fs::rename(aside, path).expect("rename");
    content.copy_from_slice(&other());
}

fn make_anew(path: &Path, content: &mut [u8]) {
    fs::remove_file(path).expect("remove");
    fs::write(path, other()).expect("write");
    content.copy_from_slice(&other());
}

fn rewrite_whole(path: &Path, content: &mut [u8]) {
    fs::write(path, other()).expect("write");
    content.copy_from_slice(&other());
}

const CHANGES: [(&str, Change); 9] = [
    ("a write", rewrite),
    ("O_DIRECT", write_direct),
    ("a store", store),
    ("a store that is flushed", store_and_flush),
    ("truncate by name", cut_and_extend),
    ("a hole", punch),
    ("rename over it", rename_over),
    ("unlink and create", make_anew),
    ("O_TRUNC", rewrite_whole),
];

#[test]
fn promise_2_no_change_of_a_file_is_hidden_by_pages_that_were_read_before_it() {
    let cluster = plain().up();
    let mut id = 10;
    for (what, change) in CHANGES {
        for state in ["dirty", "clean", "pfs"] {
            id += 1;
            let name = format!("f{id}");
            let (mnt, mut content) = (cluster.mnt(&name), pattern(id, LEN).bytes());
            write_file(&mnt, pattern(id, LEN));
            make_old(&mnt);
            read_until_kept(&mnt, &content);
            bring(&cluster, &name, state);
            read_until_kept(&mnt, &content);
            // Who has it open meanwhile sees the change, too, where it is still this file.
            let reader = File::open(&mnt).expect("open");
            change(&mnt, &mut content);
            let (_, found) = read_anew(&mnt);
            assert!(found == content, "{what}, {state}");
            if !matches!(what, "rename over it" | "unlink and create") {
                let mut seen = vec![0; LEN];
                reader.read_exact_at(&mut seen, 0).expect("read");
                assert!(seen == content, "{what}, {state}: by who had it open");
            }
            drop(reader);
            read_until_kept(&mnt, &content);
            cluster.drain(&name);
            read_until_kept(&mnt, &content);
            assert_content(&cluster.pfs(&name), &content);
        }
    }
}

#[track_caller]
fn assert_content(path: &Path, content: &[u8]) {
    let found = fs::read(path).expect("read");
    assert!(found == content, "{}", path.display());
}

/// Changes of the same length, with the time of modification left as it is found.
fn change_unseen(path: &Path, restore: bool, byte: u8) {
    let before = fs::metadata(path).expect("metadata");
    let file = OpenOptions::new().write(true).open(path).expect("open");
    file.write_all_at(&[byte; 1000], 123_000).expect("write");
    if restore {
        let times = FileTimes::new().set_modified(before.modified().expect("mtime"));
        file.set_times(times).expect("times");
    }
}

#[test]
fn promise_1_what_was_read_before_hides_no_change_of_the_same_length_on_the_pfs() {
    let cluster = plain().up();
    for (id, state) in [(50, "pfs"), (51, "clean")] {
        let name = format!("f{id}");
        let (mnt, mut content) = (cluster.mnt(&name), pattern(id, LEN).bytes());
        write_file(&mnt, pattern(id, LEN));
        make_old(&mnt);
        read_until_kept(&mnt, &content);
        bring(&cluster, &name, state);
        read_until_kept(&mnt, &content);
        for (restore, byte) in [(false, 1), (true, 2), (true, 3), (false, 4)] {
            change_unseen(&cluster.pfs(&name), restore, byte);
            content[123_000..124_000].fill(byte);
            if state == "clean" && byte == 1 {
                settle_for_revalidation();
            }
            // From here on the file is on the PFS only, and is asked for at every open.
            for _ in 0..3 {
                let (_, found) = read_anew(&mnt);
                assert!(found == content, "{state}, {byte}");
            }
        }
        // Changes that come faster than the clock ticks.
        for byte in 10..60 {
            change_unseen(&cluster.pfs(&name), false, byte);
            content[123_000..124_000].fill(byte);
            assert!(read_anew(&mnt).1 == content, "{state}, {byte}");
        }
    }
}

#[test]
fn promise_12_damage_that_was_read_is_not_read_again_once_it_is_found() {
    let (mut cluster, [object, _]) = at_rest_with("--no-passthrough", ["clean-a", "clean-b"]);
    cluster.start();
    let (mnt, content) = (cluster.mnt("clean-a"), pattern(1400, LEN).bytes());
    // It is read and compared; then it changes, and is believed.
    read_until_kept(&mnt, &content);
    damage_at_rest(&object, b"\x55", 123_456);
    // An open that may change the file drops what the kernel has of it.
    drop(OpenOptions::new().write(true).open(&mnt).expect("open"));
    let mut damaged = content.clone();
    damaged[123_456] = 0x55;
    assert!(damaged != content);
    read_until_kept(&mnt, &damaged);
    cluster.on_state(&["fsck", "--checksums"]).expect_code(5);
    assert_eq!(cluster.where_state("clean-a"), "pfs");
    assert!(read_anew(&mnt).1 == content);
}
