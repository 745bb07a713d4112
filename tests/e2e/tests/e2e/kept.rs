//! Promise 4: undrained data is never evicted, and there is a hard cap on it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_testkit::{Cluster, needs_root, pattern, wait_until, write_file};
use rustix::fs::{FallocateFlags, fallocate};

const MIB: usize = 1 << 20;

#[test]
fn promise_4_undrained_data_is_never_evicted() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().dram("32MiB").lazy();
    let cluster = builder.loop_pfs(160 << 20).up();
    // Clean copies come and go, many times the size of the buffer, while nothing can be drained.
    for at in 0..24 {
        let content = pattern(600 + at, 4 * MIB);
        write_file(&cluster.pfs(format!("other-{at}")), content);
    }
    cluster.loop_fs().read_only(true);
    let mine = |at: u64| (format!("mine-{at}"), pattern(500 + at, 3 * MIB));
    for (name, content) in (0..4).map(mine) {
        write_file(&cluster.mnt(&name), content);
    }
    let evicted = || cluster.status()["evicted_bytes_total"].as_u64();
    let before = evicted();
    for at in 0..24 {
        cluster.on_path(&["stage-in"], format!("other-{at}")).ok();
    }
    assert!(evicted() > before, "the test tests nothing");
    for (name, content) in (0..4).map(mine) {
        assert_ne!(cluster.where_state(&name), "pfs");
        content.assert_in(&cluster.mnt(&name));
    }
    cluster.loop_fs().read_only(false);
    cluster.drain("");
    for (name, content) in (0..4).map(mine) {
        content.assert_in(&cluster.pfs(&name));
    }
}

#[test]
fn promise_4_release_refuses_what_is_not_drained() {
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(510, 1000));
    write_file(&cluster.mnt("g"), pattern(511, 1000));
    cluster.drain("g");
    let output = cluster.on_path(&["release"], "").expect_code(3);
    assert!(
        output.stderr.contains("/f: ") && output.stderr.contains("not on the PFS yet"),
        "{output:?}"
    );
    assert!(!output.stderr.contains("/g: "), "{output:?}");
    assert_eq!(cluster.where_state("f"), "dirty");
    assert_eq!(cluster.where_state("g"), "pfs");
    pattern(510, 1000).assert_in(&cluster.mnt("f"));
    cluster.drain("f");
    cluster.on_path(&["release"], "f").ok();
    assert_eq!(cluster.where_state("f"), "pfs");
    pattern(510, 1000).assert_in(&cluster.mnt("f"));
}

/// Writes four times the buffer's size in files and looks at the figures all the while.
fn assert_capped(cluster: &Cluster) {
    let done = AtomicBool::new(false);
    let cap = cluster.status()["dirty_cap_bytes"].as_u64().expect("cap");
    assert_eq!(cap, 16 * MIB as u64);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Acquire) {
                let status = cluster.status();
                // What is in the overflow is on the PFS's own space.
                let dram = &status["tiers"][0];
                assert_eq!(dram["name"], "dram");
                most = most.max(dram["dirty_bytes"].as_u64().expect("bytes"));
            }
            most
        });
        for at in 0..16 {
            let file = File::create(cluster.mnt(format!("f{at}"))).expect("create");
            pattern(520 + at, 8 * MIB).write(file);
        }
        done.store(true, Ordering::Release);
        watcher.join().expect("watcher")
    });
    assert!(most > 0 && most <= cap, "{most} of {cap} bytes undrained");
    cluster.drain("");
    for at in 0..16 {
        pattern(520 + at, 8 * MIB).assert_in(&cluster.pfs(format!("f{at}")));
    }
}

#[test]
fn promise_4_undrained_bytes_keep_below_the_cap() {
    let builder = || {
        let cluster = Cluster::builder().dram("32MiB");
        cluster
            .config("wait_for_space = \"100ms\"\n[demotion]\nstart = \"40%\"\ndirty_cap = \"50%\"")
    };
    assert_capped(&builder().flag("--no-passthrough").up());
    assert_capped(&builder().up());
}

#[test]
fn promise_4_what_is_gone_takes_no_space() {
    const WRITERS: u64 = 3;
    let cluster = Cluster::builder().lazy().up();
    // The kernel sends the close when close(2) has returned: the unlink comes before it, in its
    // midst, or after.
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = cluster.mnt(format!("f{writer}"));
            scope.spawn(move || {
                for round in 0..12 {
                    let file = File::create(&path).expect("create");
                    fallocate(&file, FallocateFlags::empty(), 0, 6 << 20).expect("fallocate");
                    let bytes = pattern(520 + round, 2 * MIB).bytes();
                    file.write_all_at(&bytes, 0).expect("write");
                    file.sync_all().expect("fsync");
                    file.write_all_at(&bytes[..4096], 0).expect("write");
                    drop(file);
                    std::fs::remove_file(&path).expect("unlink");
                }
            });
        }
    });
    let held = || {
        let status = cluster.status();
        let tiers = status["tiers"].as_array().expect("tiers").clone();
        let own = tiers.iter().filter(|tier| tier["name"] != "pfs");
        let bytes = own.map(|tier| tier["used_bytes"].as_u64().expect("bytes"));
        bytes.sum::<u64>() + cluster.dirty_bytes()
    };
    wait_until("nothing is held", || held() == 0);
}
