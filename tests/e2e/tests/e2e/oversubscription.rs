//! Over-subscription on devices of the machine: what the device is told.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_testkit::{Cluster, needs_root, pattern, wait_until, write_file};

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
        eprintln!("skipped: the loop device takes no discards here");
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
