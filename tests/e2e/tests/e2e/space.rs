//! Promise 5: no write fails for lack of space in the buffer.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use forebay_testkit::{
    Cluster, listing, needs_program, needs_root, pattern, wait_until, write_file,
};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

const MIB: usize = 1 << 20;

/// A file almost five times the size of the buffer.
fn assert_larger_than_the_buffer(cluster: &Cluster) {
    let content = pattern(700, 300 * MIB);
    let file = File::create(cluster.mnt("large")).expect("create");
    content.write(&file);
    drop(file);
    content.assert_in(&cluster.mnt("large"));
    cluster.drain("large");
    content.assert_in(&cluster.pfs("large"));
    assert_eq!(listing(&cluster.mnt("")), ["large"]);
}

#[test]
fn promise_5_a_file_larger_than_the_buffer_is_written_with_passthrough() {
    if needs_root() {
        return;
    }
    assert_larger_than_the_buffer(&Cluster::builder().up());
}

#[test]
fn promise_5_a_file_larger_than_the_buffer_is_written_without_passthrough() {
    assert_larger_than_the_buffer(&Cluster::builder().flag("--no-passthrough").up());
}

#[test]
fn promise_5_a_reservation_that_fails_leaves_the_file_as_long_as_it_was() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder()
        .dram("16MiB")
        .ssd("8MiB")
        .flag("--no-passthrough")
        .loop_pfs(64 << 20)
        .up();
    let file = File::create(cluster.mnt("f")).expect("create");
    write_file(&cluster.mnt("other"), pattern(710, 1000));
    let free = statvfs(cluster.pfs("")).expect("statvfs");
    // What the overflow takes for itself is not there any more.
    let bytes = free.f_bavail * free.f_frsize - (64 << 10);
    let refused = fallocate(&file, FallocateFlags::empty(), 0, bytes);
    assert_eq!(refused, Err(rustix::io::Errno::NOSPC));
    assert_eq!(file.metadata().expect("stat").len(), 0);
    drop(file);
    // Nor is anything set aside for it.
    cluster.drain("");
    assert_eq!(cluster.dirty_bytes(), 0);
    for root in [cluster.mnt("f"), cluster.pfs("f")] {
        assert_eq!(std::fs::metadata(root).expect("stat").len(), 0);
    }
    pattern(710, 1000).assert_in(&cluster.pfs("other"));
}

#[test]
fn promise_5_more_files_than_fit_are_written() {
    let cluster = Cluster::builder().dram("16MiB").ssd("16MiB").eager().up();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let cluster = &cluster;
            scope.spawn(move || {
                for at in 0..20 {
                    let name = format!("f{writer}-{at}");
                    write_file(&cluster.mnt(name), pattern(writer * 100 + at, 4 * MIB + 11));
                }
            });
        }
    });
    for root in ["mount", "pfs"] {
        for (writer, at) in (0..2).flat_map(|w| (0..20).map(move |at| (w, at))) {
            let name = format!("f{writer}-{at}");
            let path = if root == "pfs" {
                cluster.pfs(name)
            } else {
                cluster.mnt(name)
            };
            pattern(writer * 100 + at, 4 * MIB + 11).assert_in(&path);
        }
        cluster.drain("");
    }
}

#[test]
fn promise_5_an_undrained_file_grows_beyond_the_buffer() {
    let cluster = Cluster::builder().dram("16MiB").lazy().up();
    for name in ["a", "b", "c"] {
        write_file(&cluster.mnt(name), pattern(710, 2 * MIB));
    }
    let mut options = File::options();
    let file = options.append(true).open(cluster.mnt("b")).expect("open");
    pattern(711, 40 * MIB).write(&file);
    drop(file);
    let expected = [
        pattern(710, 2 * MIB).bytes(),
        pattern(711, 40 * MIB).bytes(),
    ]
    .concat();
    assert!(std::fs::read(cluster.mnt("b")).expect("read") == expected);
    cluster.drain("");
    assert!(std::fs::read(cluster.pfs("b")).expect("read") == expected);
    pattern(710, 2 * MIB).assert_in(&cluster.pfs("a"));
}

/// The next 4 MiB of a large file: cheap to make, and no two are the same.
fn piece(at: u64) -> Vec<u8> {
    let mut bytes = vec![0x5a; 4 * MIB];
    for page in bytes.chunks_mut(64 << 10) {
        page[..8].copy_from_slice(&at.to_le_bytes());
    }
    bytes
}

fn assert_blocks(path: &std::path::Path, blocks: u64) {
    let mut file = File::open(path).expect("open");
    let mut found = vec![0; 4 * MIB];
    for at in 0..blocks {
        file.read_exact(&mut found).expect("read");
        assert!(found == piece(at), "{}: piece {at}", path.display());
    }
    assert_eq!(file.read(&mut found).expect("read"), 0);
}

/// The series is small, so the file gets little space set aside; then the buffer fills up, and then
/// the file grows beyond all of it, also beyond what its file system can hold. It is where it was:
/// the kernel writes it, so it could not be moved.
#[test]
fn promise_5_a_file_outgrows_the_buffer_while_the_kernel_writes_it() {
    if needs_root() {
        return;
    }
    const BLOCKS: u64 = 72;
    let cluster = Cluster::builder()
        .config("overrun = \"192MiB\"")
        .lazy()
        .up();
    for version in 0..3 {
        write_file(&cluster.mnt(format!("ckpt-{version}")), pattern(720, MIB));
    }
    let mut file = File::create(cluster.mnt("ckpt-3")).expect("create");
    file.write_all(&piece(0)).expect("write");
    for other in ["a", "b", "c", "d", "e", "f"] {
        write_file(&cluster.mnt(other), pattern(722, 8 * MIB));
    }
    for at in 1..BLOCKS {
        file.write_all(&piece(at)).expect("write");
        // A busy machine may look late; what may be written until then is a matter of
        // configuration.
        std::thread::sleep(Duration::from_millis(10));
    }
    let dram = &cluster.status()["tiers"][0];
    let number = |key: &str| dram[key].as_u64().expect(key);
    assert!(
        number("used_bytes") > number("capacity_bytes"),
        "it was not the kernel that wrote: {dram}"
    );
    drop(file);
    assert_blocks(&cluster.mnt("ckpt-3"), BLOCKS);
    cluster.drain("");
    assert_blocks(&cluster.pfs("ckpt-3"), BLOCKS);
    for other in ["a", "b", "c", "d", "e", "f"] {
        pattern(722, 8 * MIB).assert_in(&cluster.pfs(other));
    }
}

/// By appends of 1 MiB each.
fn append(cluster: &Cluster, name: &str, mib: usize) -> std::io::Result<()> {
    let path = cluster.mnt(name);
    let mut file = File::options().append(true).create(true).open(path)?;
    for _ in 0..mib {
        file.write_all(&[0x5a; MIB])?;
    }
    Ok(())
}

/// What `status` has of the flash tier, MiB: in use, and undrained.
fn on_flash(cluster: &Cluster) -> [u64; 2] {
    let status = cluster.status();
    let tiers = status["tiers"].as_array().expect("tiers");
    let named = |tier: &&serde_json::Value| tier["name"].as_str().is_some_and(|n| n == "ssd");
    let flash = tiers.iter().find(named).expect("flash");
    ["used_bytes", "dirty_bytes"].map(|name| flash[name].as_u64().expect("bytes") >> 20)
}

#[test]
fn promise_5_space_that_xfs_sets_aside_by_itself_is_not_counted() {
    if needs_root() || needs_program("mkfs.xfs") {
        return;
    }
    for flags in [&[][..], &["--no-passthrough"]] {
        let builder = Cluster::builder().lazy().dram("").ssd("250MiB");
        let builder = builder.disk("ssd", "xfs", 2 << 30);
        let cluster = flags.iter().fold(builder, |b, flag| b.flag(flag)).up();
        // The kernel tells of a close a moment later.
        let counted = |mib: u64| {
            wait_until("what is closed is counted", || {
                on_flash(&cluster) == [mib, mib]
            });
        };
        append(&cluster, "f", 40).expect("write");
        counted(40);
        append(&cluster, "g", 40).expect("write");
        counted(80);
        let written = || cluster.status()["dwsf_bytes"].as_u64().expect("bytes") >> 20;
        wait_until("all is counted", || written() >= 80);
        assert_eq!(written(), 80, "{flags:?}");
        // XFS keeps what it has set aside over the second close.
        append(&cluster, "f", 20).expect("write");
        counted(100);
    }
}

#[test]
fn promise_5_xfs_takes_as_many_files_as_there_is_room_for_when_the_pfs_is_full() {
    if needs_root() || needs_program("mkfs.xfs") {
        return;
    }
    for (kind, size) in [("ext4", 2 << 30), ("xfs", 2 << 30), ("xfs", 400 << 20)] {
        let cluster = Cluster::builder()
            .eager()
            .dram("")
            .ssd("250MiB")
            .disk("ssd", kind, size)
            .loop_pfs(200 << 20)
            .up();
        for name in ["c1", "c2", "c3", "c4"] {
            append(&cluster, name, 40).expect("write");
            cluster.drain(name);
        }
        for name in ["d1", "d2", "d3", "d4", "d5"] {
            append(&cluster, name, 40).unwrap_or_else(|error| panic!("{kind}, {name}: {error}"));
        }
    }
}
