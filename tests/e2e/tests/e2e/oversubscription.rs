//! Over-subscription on devices of the machine: what the device is told.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use forebay_testkit::{Cluster, LONG, needs_root, pattern, skip, wait_until, write_file};

const MIB: u64 = 1 << 20;

/// `major:minor` of the device below a directory.
fn device(dir: &Path) -> String {
    let number = fs::metadata(dir).expect("metadata").dev();
    format!(
        "{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    )
}

#[test]
fn deleted_files_are_discarded_on_the_device() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().dram("").ssd("128MiB");
    let cluster = builder.disk("ssd", "ext4", 192 * MIB).up();
    let queue = format!("/sys/dev/block/{}/queue", device(&cluster.ssd()));
    let most = fs::read_to_string(format!("{queue}/discard_max_bytes"));
    if most.is_ok_and(|most| most.trim() == "0") {
        skip("the loop device takes no discards here");
        return;
    }
    let image = fs::read_to_string(format!("{queue}/../loop/backing_file")).expect("a loop device");
    // What the image occupies is what the device was not told to be free.
    let occupied = || fs::metadata(image.trim()).expect("image").blocks() * 512;
    // Less than what is drained at once: nobody else has it open.
    let path = cluster.mnt("large");
    write_file(&path, pattern(7, 48 << 20));
    fs::File::open(&path)
        .expect("open")
        .sync_all()
        .expect("fsync");
    let before = occupied();
    assert!(before >= 45 * MIB, "on the device: {before}");
    fs::remove_file(&path).expect("remove");
    wait_until("the device is told what is free", || {
        // Blocks that the journal still holds are not free yet.
        let folder = fs::File::open(cluster.ssd()).expect("open");
        rustix::fs::syncfs(&folder).expect("syncfs");
        occupied() + 32 * MIB < before
    });
    assert_eq!(cluster.down(&[]).code, 0);
}

/// Where cgroup v1 has the write limits of devices, for the group of everybody here.
const LIMITS: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";

/// The limit in force for a device, bytes/s.
fn limit_of(device: &str) -> Option<u64> {
    let limits = fs::read_to_string(LIMITS).expect("limits");
    let mut lines = limits.lines().filter_map(|line| line.split_once(' '));
    let (_, limit) = lines.find(|(number, _)| *number == device)?;
    Some(limit.trim().parse().expect("a number"))
}

/// Writes one file over and over, until the plan slows it down at the device: what is written
/// counts, and needs no space. How many periods that takes depends on the machine.
fn write_until_limited(cluster: &Cluster, device: &str) -> u64 {
    let deadline = Instant::now() + LONG;
    loop {
        write_file(&cluster.mnt("ckpt-1.dat"), pattern(3, 1 << 20));
        if let Some(limit) = limit_of(device) {
            return limit;
        }
        let status = || cluster.status();
        assert!(Instant::now() < deadline, "not limited: {}", status());
    }
}

#[test]
fn the_controller_of_block_io_holds_the_write_limit_at_the_device() {
    if needs_root() {
        return;
    }
    if !Path::new(LIMITS).exists() {
        skip("no cgroup v1 block-I/O controller here");
        return;
    }
    let builder = Cluster::builder().lazy().dram("").ssd("16MiB").config(
        "[engine]\nblock_io = true\nperiod = \"4s\"\nbw_max = \"40MB/s\"\nbw_min = \"30MB/s\"\n\
         br_max = \"20MB/s\"\nbr_min = \"2MB/s\"",
    );
    let mut cluster = builder.disk("ssd", "ext4", 192 * MIB).up();
    let device = device(&cluster.ssd());
    assert_eq!(limit_of(&device), None, "nothing is known yet");
    let between = 30_000_000..40_000_000;
    let limit = write_until_limited(&cluster, &device);
    assert!(between.contains(&limit), "{limit}");
    cluster.kill9();
    assert!(limit_of(&device).is_some(), "nobody could lift it");
    cluster.restart();
    wait_until("what a killed server left is lifted", || {
        limit_of(&device).is_none()
    });
    write_until_limited(&cluster, &device);
    assert_eq!(cluster.down(&[]).code, 0);
    assert_eq!(limit_of(&device), None, "after the end");
}
