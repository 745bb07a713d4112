//! Promise 2, content: reads, writes, truncation, mappings.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use forebay_testkit::{Cluster, pattern, write_file};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statvfs};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// With the kernel's passthrough where it can be had, and without.
fn both_ways(test: impl Fn(&Cluster)) {
    test(&Cluster::builder().lazy().up());
    test(&Cluster::builder().lazy().flag("--no-passthrough").up());
}

#[test]
fn promise_2_a_read_after_a_write_sees_it_on_every_handle() {
    both_ways(|cluster| {
        let writer = File::create(cluster.mnt("f")).expect("create");
        let reader = File::open(cluster.mnt("f")).expect("open");
        for at in 0..200_u64 {
            let content = pattern(at, 3333).bytes();
            writer.write_all_at(&content, at * 3000).expect("write");
            let mut found = vec![0; 3333];
            reader.read_exact_at(&mut found, at * 3000).expect("read");
            assert_eq!(found, content);
            assert_eq!(reader.metadata().expect("metadata").len(), at * 3000 + 3333);
        }
    });
}

#[test]
fn promise_2_pfs_files_are_truncated_and_appended_to() {
    both_ways(|cluster| {
        let old = pattern(300, 1_500_000);
        for name in ["zero", "part", "more", "append", "open", "middle"] {
            write_file(&cluster.pfs(name), old);
        }
        let open = |name: &str| {
            let path = cluster.mnt(name);
            OpenOptions::new().write(true).open(path).expect("open")
        };
        let mut expected = vec![("zero", Vec::new())];
        open("zero").set_len(0).expect("truncate");
        open("part").set_len(1_000_001).expect("truncate");
        expected.push(("part", old.bytes()[..1_000_001].to_vec()));
        open("more").set_len(2_000_000).expect("truncate");
        let zeros = vec![0; 500_000];
        expected.push(("more", [old.bytes(), zeros].concat()));
        let mut options = OpenOptions::new();
        let mut file = options
            .append(true)
            .open(cluster.mnt("append"))
            .expect("open");
        file.write_all(b"and more").expect("write");
        expected.push(("append", [old.bytes(), b"and more".to_vec()].concat()));
        write_file(&cluster.mnt("open"), pattern(301, 10));
        expected.push(("open", pattern(301, 10).bytes()));
        open("middle")
            .write_all_at(b"changed", 700_000)
            .expect("write");
        let mut middle = old.bytes();
        middle[700_000..700_007].copy_from_slice(b"changed");
        expected.push(("middle", middle));
        drop(file);
        for (name, content) in &expected {
            assert!(
                std::fs::read(cluster.mnt(name)).expect("read") == *content,
                "{name}"
            );
        }
        cluster.drain("");
        for (name, content) in &expected {
            assert!(
                std::fs::read(cluster.pfs(name)).expect("read") == *content,
                "{name}"
            );
        }
    });
}

#[test]
fn promise_2_two_appending_writers_lose_nothing() {
    both_ways(|cluster| {
        File::create(cluster.mnt("log")).expect("create");
        std::thread::scope(|scope| {
            for writer in ["a", "b"] {
                scope.spawn(move || {
                    let mut options = OpenOptions::new();
                    let mut log = options.append(true).open(cluster.mnt("log")).expect("open");
                    for line in 0..500 {
                        log.write_all(format!("{writer}{line:06}\n").as_bytes())
                            .expect("write");
                    }
                });
            }
        });
        cluster.drain("log");
        let text = std::fs::read_to_string(cluster.pfs("log")).expect("text");
        let mut lines: Vec<&str> = text.lines().collect();
        for writer in ["a", "b"] {
            assert!(lines.iter().filter(|l| l.starts_with(writer)).is_sorted());
        }
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 1000);
    });
}

#[test]
fn promise_2_a_shared_mapping_is_written_and_drained() {
    both_ways(|cluster| {
        const LEN: usize = 1 << 20;
        write_file(&cluster.mnt("f"), pattern(310, LEN));
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(cluster.mnt("f"))
            .expect("open");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of LEN bytes of a file of that length; it is unmapped below, and
        // nobody truncates the file meanwhile.
        unsafe {
            let map = mmap(
                std::ptr::null_mut(),
                LEN,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
            .expect("mmap");
            let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN);
            assert!(bytes == pattern(310, LEN).bytes());
            bytes[LEN / 2..].copy_from_slice(&pattern(311, LEN / 2).bytes());
            msync(map, LEN, MsyncFlags::SYNC).expect("msync");
            munmap(map, LEN).expect("munmap");
        }
        drop(file);
        cluster.drain("f");
        let mut expected = pattern(310, LEN).bytes();
        expected[LEN / 2..].copy_from_slice(&pattern(311, LEN / 2).bytes());
        assert!(std::fs::read(cluster.pfs("f")).expect("read") == expected);
        assert!(std::fs::read(cluster.mnt("f")).expect("read") == expected);
    });
}

/// A buffer whose start is aligned for O_DIRECT.
#[repr(align(4096))]
struct Aligned([u8; 65536]);

#[test]
fn promise_2_direct_io_works() {
    both_ways(|cluster| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = options
            .custom_flags(libc::O_DIRECT)
            .open(cluster.mnt("f"))
            .expect("open");
        let mut buffer = Box::new(Aligned([0; 65536]));
        buffer.0.copy_from_slice(&pattern(320, 65536).bytes());
        for at in 0..8 {
            file.write_all_at(&buffer.0, at * 65536).expect("write");
        }
        buffer.0.fill(0);
        file.read_exact_at(&mut buffer.0, 3 * 65536).expect("read");
        assert!(buffer.0[..] == pattern(320, 65536).bytes());
        drop(file);
        cluster.drain("f");
        let found = std::fs::read(cluster.pfs("f")).expect("read");
        assert!(found == pattern(320, 65536).bytes().repeat(8));
    });
}

#[test]
fn promise_2_a_sparse_file_of_a_tebibyte_keeps_its_few_bytes() {
    both_ways(|cluster| {
        const FAR: u64 = (1 << 40) - 5;
        let file = File::create(cluster.mnt("f")).expect("create");
        file.write_all_at(b"begin", 0).expect("write");
        file.write_all_at(b"end!!", FAR).expect("write");
        drop(file);
        cluster.drain("f");
        for path in [cluster.mnt("f"), cluster.pfs("f")] {
            let mut file = File::open(path).expect("open");
            assert_eq!(file.metadata().expect("metadata").len(), 1 << 40);
            let mut bytes = [0; 5];
            file.read_exact_at(&mut bytes, FAR).expect("read");
            assert_eq!(&bytes, b"end!!");
            let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1 << 30));
            assert!(data.expect("data") >= FAR - (8 << 20), "a hole was filled");
            file.seek(SeekFrom::Start(0)).expect("seek");
            file.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"begin");
        }
    });
}

#[test]
fn promise_2_space_is_allocated_and_punched() {
    both_ways(|cluster| {
        write_file(&cluster.mnt("f"), pattern(330, 1 << 20));
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(cluster.mnt("f"))
            .expect("open");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 4096, 8192).expect("punch");
        fallocate(&file, FallocateFlags::empty(), 1 << 20, 4096).expect("extend");
        let mut expected = pattern(330, 1 << 20).bytes();
        expected[4096..4096 + 8192].fill(0);
        expected.resize((1 << 20) + 4096, 0);
        for refused in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            let refused = fallocate(&file, refused, 0, 4096);
            assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
        }
        // As `cp --reflink=auto` and `lsattr` ask: they know what to do then.
        let other = File::create(cluster.mnt("other")).expect("create");
        let cloned = rustix::fs::ioctl_ficlone(&other, &file);
        assert_eq!(cloned, Err(rustix::io::Errno::OPNOTSUPP));
        let flags = rustix::fs::ioctl_getflags(&file).map(|flags| flags.bits());
        assert_eq!(flags, Err(rustix::io::Errno::NOTTY));
        drop(file);
        assert!(std::fs::read(cluster.mnt("f")).expect("read") == expected);
        cluster.drain("f");
        assert!(std::fs::read(cluster.pfs("f")).expect("read") == expected);
    });
}

#[test]
fn promise_2_locks_exclude() {
    let cluster = Cluster::builder().lazy().up();
    let first = File::create(cluster.mnt("f")).expect("create");
    let second = File::open(cluster.mnt("f")).expect("open");
    flock(&first, FlockOperation::LockExclusive).expect("lock");
    let refused = flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop(first);
    flock(&second, FlockOperation::NonBlockingLockExclusive).expect("lock");
}

#[test]
fn promise_2_the_free_space_shown_is_the_pfs_s() {
    let cluster = Cluster::builder().up();
    let (mnt, pfs) = (cluster.mnt(""), cluster.pfs(""));
    let (mnt, pfs) = (
        statvfs(&mnt).expect("statvfs"),
        statvfs(&pfs).expect("statvfs"),
    );
    let bytes = |fs: &rustix::fs::StatVfs| fs.f_blocks * fs.f_frsize;
    assert_eq!(bytes(&mnt), bytes(&pfs));
    assert_eq!(mnt.f_files, pfs.f_files);
    assert_eq!(mnt.f_namemax, 255);
}
