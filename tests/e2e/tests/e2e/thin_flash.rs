//! Flash that takes what is written, and loses it when the kernel writes it back.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_testkit::{Cluster, Pattern, needs_root, pattern, write_file};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

const MIB: u64 = 1 << 20;
const LEN: usize = 300_000;

/// What the PFS has of each of these files before.
const OLDER: &[u8] = b"good version before";

fn thin_content(at: usize) -> Pattern {
    pattern(2100 + at as u64, 12 * LEN)
}

/// The kernel writes back what is on flash, and memory has no room for it any longer.
fn drop_pages(cluster: &Cluster) {
    let root = File::open(cluster.ssd()).expect("open");
    // Its error is another one than the files have.
    let _ = rustix::fs::syncfs(&root);
    for object in objects(&cluster.ssd().join("objects")) {
        let file = File::open(object).expect("open");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    }
    // Nor for the files that nobody has open, and with them it would forget the errors.
    for _ in 0..3 {
        fs::write("/proc/sys/vm/drop_caches", "2").expect("drop_caches");
    }
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("folder");
    let paths = entries.map(|entry| entry.expect("entry").path());
    let below = |path: PathBuf| match path.is_dir() {
        true => objects(&path),
        false => vec![path],
    };
    paths.flat_map(below).collect()
}

#[test]
fn promise_12_what_flash_could_not_keep_is_not_put_on_the_pfs() {
    if !needs_root() {
        for is_told_by_the_end in [false, true] {
            a_thin_flash_loses_what_was_closed(is_told_by_the_end);
        }
    }
}

/// Nobody was told: the drain is the first to hear of it, or the end of the daemon before it.
fn a_thin_flash_loses_what_was_closed(is_told_by_the_end: bool) {
    let builder = Cluster::builder().lazy().dram("").ssd("96MiB");
    let builder = builder.config("[scrub]\nenabled = false\n");
    let mut cluster = builder.thin_disk("ssd", 160 * MIB, 200 * MIB).prepare();
    let names: Vec<String> = (0..8).map(|at| format!("f{at}")).collect();
    for name in &names {
        fs::write(cluster.pfs(name), OLDER).expect("write");
    }
    cluster.start();
    // Without a journal nobody is told when flash loses what it says of its own files: that has its
    // room before the room is gone.
    for name in &names {
        write_file(&cluster.mnt(name), pattern(0, 1));
    }
    let root = File::open(cluster.ssd()).expect("open");
    rustix::fs::syncfs(&root).expect("sync");
    cluster.disk("ssd").back(20 * MIB);
    for (at, name) in names.iter().enumerate() {
        write_file(&cluster.mnt(name), thin_content(at));
    }
    drop_pages(&cluster);
    cluster.disk("ssd").back(200 * MIB);
    if is_told_by_the_end {
        cluster.down(&[]).ok();
        cluster.start();
    }
    let lost = what_is_kept(&cluster, &names);
    // The kernel told it once.
    cluster.restart();
    assert_eq!(what_is_kept(&cluster, &names), lost);
    cluster.on_state(&["fsck"]).expect_code(5);
    let output = cluster.on_state(&["down", "--drain", "--timeout", "2s"]);
    assert_ne!(output.code, 0, "{output:?}");
    for &at in &lost {
        write_file(&cluster.mnt(&names[at]), thin_content(at));
    }
    cluster.drain("");
    for (at, name) in names.iter().enumerate() {
        thin_content(at).assert_in(&cluster.pfs(name));
    }
}

/// How a program hears that flash has not kept what was written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    /// It has written it, and closes the file after that.
    Itself,
    /// Another one has, and has closed the file.
    ByMsync,
    ByWrite,
}

#[test]
fn promise_12_what_a_program_hears_of_flash_the_drain_hears_too() {
    if !needs_root() {
        for told in [Told::Itself, Told::ByMsync, Told::ByWrite] {
            for passthrough in [true, false] {
                a_program_hears_of_a_thin_flash(told, passthrough);
            }
        }
    }
}

fn a_program_hears_of_a_thin_flash(told: Told, passthrough: bool) {
    let builder = Cluster::builder().lazy().dram("").ssd("96MiB");
    let mut builder = builder
        .config("[scrub]\nenabled = false\n")
        .environment("FOREBAY_OVERRUN", "64MiB");
    if !passthrough {
        builder = builder.flag("--no-passthrough");
    }
    let mut cluster = builder.thin_disk("ssd", 400 * MIB, 450 * MIB).prepare();
    let names: Vec<String> = (0..8).map(|at| format!("f{at}")).collect();
    for name in &names {
        fs::write(cluster.pfs(name), OLDER).expect("write");
    }
    cluster.start();
    assert_eq!(cluster.status()["passthrough"], passthrough);
    for name in &names {
        write_file(&cluster.mnt(name), pattern(0, 1));
    }
    let root = File::open(cluster.ssd()).expect("open");
    rustix::fs::syncfs(&root).expect("sync");
    cluster.disk("ssd").back(24 * MIB);
    let hears = |(at, name): (usize, &String)| {
        let path = cluster.mnt(name);
        let mut options = File::options();
        let options = options.read(true).write(true);
        let file = match told {
            Told::Itself => {
                let file = options.truncate(true).open(path).expect("open");
                thin_content(at).write(&file);
                file
            }
            _ => {
                write_file(&path, thin_content(at));
                let is_sync = told == Told::ByWrite;
                let flags = if is_sync { libc::O_SYNC } else { 0 };
                options.custom_flags(flags).open(path).expect("open")
            }
        };
        is_told(file, told, at).then_some(at)
    };
    let heard: Vec<usize> = names.iter().enumerate().filter_map(hears).collect();
    assert!(!heard.is_empty(), "{told:?}: nobody was told");
    drop_pages(&cluster);
    cluster.disk("ssd").back(450 * MIB);
    let lost = what_is_kept(&cluster, &names);
    let all = heard.iter().all(|at| lost.contains(at));
    assert!(
        all,
        "{told:?}, passthrough {passthrough}: {heard:?}, {lost:?}"
    );
    cluster.restart();
    assert_eq!(what_is_kept(&cluster, &names), lost);
    for &at in &lost {
        write_file(&cluster.mnt(&names[at]), thin_content(at));
    }
    cluster.drain("");
    for (at, name) in names.iter().enumerate() {
        thin_content(at).assert_in(&cluster.pfs(name));
    }
}

/// Stores what is there, by one way or the other, and waits until it is on its device.
fn is_told(file: File, told: Told, at: usize) -> bool {
    let content = thin_content(at).bytes();
    if told == Told::ByWrite {
        return file.write_all_at(&content, 0).is_err();
    }
    let (null, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a fresh mapping of a file that has this length; it is unmapped below, and nobody
    // truncates the file meanwhile.
    unsafe {
        let map = mmap(null, content.len(), protection, MapFlags::SHARED, &file, 0);
        let map = map.expect("mmap");
        *map.cast::<u8>() = content[0];
        let told = msync(map, content.len(), MsyncFlags::SYNC);
        munmap(map, content.len()).expect("munmap");
        told.is_err()
    }
}

/// Which files a drain has left as the PFS had them; the others are there whole.
fn what_is_kept(cluster: &Cluster, names: &[String]) -> Vec<usize> {
    let output = cluster.on_path(&["stage-out", "--wait"], "");
    assert_eq!(output.code, 3, "{output:?}");
    let mut kept = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if fs::read(cluster.pfs(name)).expect("read") != OLDER {
            thin_content(at).assert_in(&cluster.pfs(name));
            thin_content(at).assert_in(&cluster.mnt(name));
            continue;
        }
        assert_eq!(cluster.where_state(name), "dirty");
        let refused = fs::read(cluster.mnt(name)).expect_err("what is left of it is shown");
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
        kept.push(at);
    }
    let errors = cluster.status()["errors"].to_string();
    assert!(!kept.is_empty(), "nothing was lost");
    assert!(errors.contains(&names[kept[0]]), "{errors}");
    kept
}
