//! The policy `dedicated`: shares, and what finds none.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_policy::engine::Bandwidths;
use forebay_server::Settings;
use forebay_tiers::testing::unwritten_bytes;
use forebay_tiers::{FileObject, Object};
use forebay_types::Ino;

use super::common::{Running, Scratch, me};
use super::{MIB, PATIENCE, prepared};

/// Two times 64 MiB, less what is kept free.
fn dedicated(scratch: &Scratch, share_mib: usize) -> Settings {
    let mut settings = prepared(scratch);
    settings.policy = "dedicated".into();
    settings.engine.share_bytes = Some((share_mib * MIB) as u64);
    settings
}

#[test]
fn shares_are_not_exceeded() {
    let scratch = Scratch::new();
    let mut settings = dedicated(&scratch, 60);
    let running = Running::start(&settings, false);
    for app in ["a", "b", "c"] {
        running.put(format!("{app}-ckpt-1.dat").as_bytes(), &vec![3; 8 * MIB]);
    }
    let tiers = |name: &[u8]| running.residency(name)[0].tiers.clone();
    assert!(
        tiers(b"a-ckpt-1.dat")[0].starts_with("ssd")
            && tiers(b"b-ckpt-1.dat")[0].starts_with("ssd")
    );
    assert_eq!(
        tiers(b"c-ckpt-1.dat"),
        ["pfs"],
        "two shares of 60 in 121 MiB"
    );
    assert!(running.read_all(b"c-ckpt-1.dat").expect("readable") == vec![3; 8 * MIB]);
    running.instance.stop();
    settings.engine.share_bytes = Some(1 << 40);
    drop(running);
    let error = forebay_server::Instance::start(settings)
        .err()
        .expect("refused");
    assert!(error.to_string().contains("is more than the"), "{error}");
}

#[test]
fn a_share_is_its_applications_until_that_has_ended() {
    let scratch = Scratch::new();
    let mut settings = dedicated(&scratch, 60);
    settings.wait_for_space = PATIENCE;
    let running = Running::start(&settings, false);
    let tiers = |running: &Running, name: &str| running.residency(name.as_bytes())[0].tiers.clone();
    for name in ["a-ckpt-1.dat", "b-ckpt-1.dat"] {
        running.put(name.as_bytes(), &vec![3; 50 * MIB]);
    }
    running.wait_clean(&|_| false);
    // Clean copies are not given up for others, and a share is kept that is empty for the moment.
    running
        .client
        .unlink(Ino::ROOT, b"a-ckpt-1.dat", me())
        .expect("unlink");
    running.put(b"c-ckpt-1.dat", &vec![4; 50 * MIB]);
    assert_eq!(tiers(&running, "c-ckpt-1.dat"), ["pfs"]);
    assert!(tiers(&running, "b-ckpt-1.dat")[0].starts_with("ssd"));
    running.put(b"a-ckpt-2.dat", &vec![5; 50 * MIB]);
    assert!(tiers(&running, "a-ckpt-2.dat")[0].starts_with("ssd"));
    running.wait_clean(&|_| false);
    running.instance.stop();
    drop(running);

    // Periods go by in which neither shows a sign of life.
    settings.engine.period = Duration::from_millis(50);
    let running = Running::start(&settings, false);
    let begun = Instant::now();
    for version in 2.. {
        let name = format!("c-ckpt-{version}.dat");
        running.put(name.as_bytes(), &vec![6; 50 * MIB]);
        if tiers(&running, &name)[0].starts_with("ssd") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", running.status());
    }
    running.instance.stop();
}

#[test]
fn what_went_straight_to_the_pfs_gets_its_name_though_nothing_else_is_undrained() {
    let scratch = Scratch::new();
    let mut settings = dedicated(&scratch, 60);
    settings.engine.bandwidths = Some(Bandwidths {
        bw_max_bytes_per_s: 400e6,
        bw_min_bytes_per_s: 300e6,
        br_max_bytes_per_s: 200e6,
        br_min_bytes_per_s: 20e6,
    });
    // Until then everything waits for its demotion.
    settings.demotion.idle_after = Duration::from_secs(2);
    let running = Running::start(&settings, false);
    for app in ["a", "b"] {
        running.put(format!("{app}-ckpt-1.dat").as_bytes(), &vec![3; MIB]);
    }
    running.wait_clean(&|_| false);
    running.put(b"c-ckpt-1.dat", &vec![4; MIB]);
    assert_eq!(running.residency(b"c-ckpt-1.dat")[0].tiers, ["pfs"]);
    assert_eq!(running.residency(b"c-ckpt-1.dat")[0].state, "dirty");
    running.wait_clean(&|_| false);
    let named = std::fs::read(scratch.pfs().join("c-ckpt-1.dat"));
    assert!(named.expect("on the PFS") == vec![4; MIB]);
    running.instance.stop();
}

#[test]
fn what_goes_straight_to_the_pfs_does_not_pile_up_in_the_page_cache() {
    let scratch = Scratch::new();
    let mut settings = dedicated(&scratch, 60);
    settings.engine.bandwidths = Some(Bandwidths {
        bw_max_bytes_per_s: 400e6,
        bw_min_bytes_per_s: 300e6,
        br_max_bytes_per_s: 20e6,
        br_min_bytes_per_s: 2e6,
    });
    let running = Running::start(&settings, false);
    for name in ["a-ckpt-1.dat", "b-ckpt-1.dat"] {
        running.put(name.as_bytes(), &vec![3; MIB]);
    }
    let (_, handle) = running.create(b"c-ckpt-1.dat").expect("create");
    let part = vec![4; MIB];
    for at in 0..48 {
        let written = running.write(handle, (at * MIB) as u64, &part);
        written.expect("write");
    }
    assert_eq!(running.residency(b"c-ckpt-1.dat")[0].tiers, ["pfs"]);
    let object = overflow_object(&scratch.pfs()).expect("an object on the PFS");
    let file = FileObject::new(std::fs::File::open(object).expect("open"));
    assert_eq!(file.stat().expect("stat").size, 48 * MIB as u64);
    if let Some(waiting) = unwritten_bytes(&file) {
        // A tenth of a second of Brmax, and a piece.
        let most = 4 * MIB as u64;
        assert!(waiting <= most, "{waiting} bytes are not on the device");
    }
    running.client.release(handle).expect("close");
    running.wait_clean(&|_| false);
    let named = std::fs::read(scratch.pfs().join("c-ckpt-1.dat"));
    assert!(named.expect("on the PFS") == vec![4; 48 * MIB]);
    running.instance.stop();
}

/// The only one.
fn overflow_object(pfs: &Path) -> Option<PathBuf> {
    let entries = |dir: &Path| -> Vec<PathBuf> {
        let all = std::fs::read_dir(dir).into_iter().flatten();
        all.map(|entry| entry.expect("entry").path()).collect()
    };
    let ours = |path: &PathBuf| path.to_string_lossy().contains(".forebay-");
    let overflow = entries(pfs).into_iter().find(ours)?;
    let shelves = entries(&overflow.join("objects"));
    shelves.iter().flat_map(|shelf| entries(shelf)).next()
}

#[test]
fn a_checkpoint_as_large_as_its_share_waits_for_nothing() {
    let scratch = Scratch::new();
    let mut settings = dedicated(&scratch, 8);
    settings.wait_for_space = PATIENCE;
    let running = Running::start(&settings, false);
    // From the second on its size is known when it is created.
    for version in 1..=4u8 {
        let name = format!("a-ckpt-{version}.dat");
        running.put(name.as_bytes(), &vec![version; 8 * MIB]);
        running.wait_clean(&|_| false);
    }
    let status = running.status();
    assert_eq!(status.waited_writes_total, 0, "{status:?}");
    let newest = &running.residency(b"a-ckpt-4.dat")[0];
    assert!(newest.tiers[0].starts_with("ssd"), "{newest:?}");
    running.instance.stop();
}
