//! A data server that is started without a tier that it had: what is in that tier counts.

use std::path::Path;

use forebay_holder::{DataServer, open_flash};
use forebay_policy::durability::Durability;
use forebay_server::{HolderSetting, SsdSetting};
use forebay_tiers::{DirTier, PfsTree, Tier, TierKind};
use forebay_types::OpenFlags;
use forebay_wire::InMemory;
use forebay_wire::control::{Control, ControlResponse, HistoryAsked, Movement, StatusBits};

use super::*;

/// What a data server is started with.
#[derive(Clone, Copy)]
struct Named {
    dram: bool,
    ssd: bool,
}

/// Of a version, so that the history has it.
const NAME: &[u8] = b"ckpt-7-rank0";

const ALL: Named = Named {
    dram: true,
    ssd: true,
};

/// Data server 2 with these tiers. Its memory is in `dram` of the folder.
fn holder(dir: &Path, named: Named, boot: &str) -> HolderSetting {
    let root = dir.to_path_buf();
    let open = move |instance| {
        let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
        if named.dram {
            let memory = root.join("dram");
            let size = Some(64 << 20);
            let tier = DirTier::open("dram", TierKind::Dram, &memory, size, instance)?;
            tiers.push(Arc::new(tier));
        }
        if named.ssd {
            let ssd = SsdSetting {
                dir: root.join("ssd0"),
                capacity_bytes: Some(64 << 20),
            };
            tiers.push(Arc::new(open_flash("ssd", &ssd, instance)?));
        }
        Ok(tiers)
    };
    let pfs = PfsTree::open(&dir.join("pfs")).expect("a PFS");
    let server = DataServer::new(boot.into(), Vec::new(), Box::new(open), Some(pfs));
    let connection = InMemory::mount(Arc::new(server.session()));
    HolderSetting {
        server: 2,
        rack: 2,
        addresses: Vec::new(),
        way: HolderWay(Arc::new(connection)),
        replication: None,
    }
}

/// All tiers are on the data server, and nothing is drained by itself.
fn settings(dir: &Path, named: Named, boot: &str) -> Settings {
    std::fs::create_dir_all(dir.join("dram")).expect("mkdir");
    let mut settings = common::settings(dir, 64 << 20);
    settings.ssd.clear();
    settings.dram_bytes = None;
    settings.server = 1;
    settings.durability = Some(Durability::Ssd);
    settings.demotion.idle = false;
    settings.demotion.start_fraction = 0.9;
    settings.wait_for_holders = Duration::from_millis(50);
    settings.holders = vec![holder(dir, named, boot)];
    settings
}

fn fill_one(settings: &Settings, is_synced: bool) -> Vec<String> {
    let running = Running::start(settings, false);
    let (_, handle) = running.create(NAME).expect("create");
    running.write(handle, 0, &content(1)).expect("write");
    if is_synced {
        running.client.fsync(handle, false).expect("fsync");
    }
    running.client.release(handle).expect("close");
    let held = running.residency(NAME).remove(0).tiers;
    assert_eq!(running.instance.stop().undrained_files, 1);
    held
}

/// A start says what is there as of a data server out of reach: the file is undrained, and whoever
/// waits for its drain gets an error that names it.
fn must_count(running: &Running, tier: &str, is_answering: bool) {
    let status: StatusBits = running.status();
    assert!(status.dirty_bytes >= content(1).len() as u64, "{tier}");
    assert_eq!(status.drain_queued_files, 1, "{tier}");
    let mut tiers = status.tiers.iter();
    let shown = tiers.find(|shown| shown.name == tier).expect(tier);
    assert!(shown.out_of_reach && shown.dirty_bytes > 0, "{shown:?}");
    let told: Vec<_> = status.errors.iter().map(|one| &one.path[..]).collect();
    let named = format!("(tier {tier})");
    match is_answering {
        true => assert_eq!(told, [named.as_bytes()]),
        // Then it is its node that is not there.
        false => assert!(told.is_empty(), "{:?}", status.errors),
    }
    let asked = HistoryAsked {
        until_ms: u64::MAX,
        ..HistoryAsked::default()
    };
    let Ok(ControlResponse::History(page)) = running.control(Control::History(asked)) else {
        panic!("no history");
    };
    let mut records = page.records.iter();
    let version = records.find(|one| one.version == Some(7));
    let version = version.expect("on record");
    let counts = (version.undrained_files(), version.drained_files);
    assert_eq!(counts, (1, 0), "{version:?}");
    let left = running.instance.undrained();
    assert_eq!(left.undrained_files, 1, "{tier}");
    let done = running.move_files(Movement::StageOut, b"");
    let named: Vec<_> = done.failures.iter().map(|one| &one.path[..]).collect();
    assert_eq!(named, [NAME], "{done:?}");
    let found = running.client.lookup(Ino::ROOT, NAME, 0);
    let ino = found.expect("it is shown").attr.ino;
    let opened = running.client.open(ino, OpenFlags(0), me());
    assert_eq!(opened.err(), Some(OUT_OF_REACH), "{tier}");
}

fn is_back(settings: &Settings) {
    let running = Running::start(settings, false);
    assert!(running.read_all(NAME).expect("read") == content(1));
    assert!(running.status().errors.is_empty());
    running.drain();
    assert_eq!(running.instance.stop().undrained_files, 0);
}

#[test]
fn what_is_in_a_tier_that_its_data_server_does_not_name_is_undrained() {
    for without in ["dram", "ssd"] {
        let scratch = Scratch::new();
        let dir = scratch.path();
        let only = |kind: &str| Named {
            dram: kind == "dram",
            ssd: kind == "ssd",
        };
        // It was there with both, and the file is in the one that goes.
        let all = settings(dir, ALL, "boot");
        Running::start(&all, false).instance.stop();
        let held = fill_one(&settings(dir, only(without), "boot"), without == "ssd");
        let tier = format!("server-2:{without}");
        assert_eq!(held, std::slice::from_ref(&tier));
        let other = match without {
            "dram" => "ssd",
            _ => "dram",
        };
        let less = settings(dir, only(other), "boot");
        // Also with the next start, and where the data server does not answer then.
        for _ in 0..2 {
            let running = Running::start(&less, false);
            must_count(&running, &tier, true);
            running.instance.stop();
        }
        let mut away = less;
        away.holders[0].way = HolderWay(Arc::new(Flaky {
            inner: away.holders[0].way.clone(),
            answers: AtomicI64::new(0),
            away: AtomicI64::new(i64::MAX / 2),
        }));
        let running = Running::start(&away, false);
        must_count(&running, &tier, false);
        running.instance.stop();
        drop(running);
        is_back(&settings(dir, ALL, "boot"));
    }
}

#[test]
fn what_an_fsync_has_left_in_a_tier_that_is_not_named_is_not_lost_with_the_memory() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let memory = Named {
        dram: true,
        ssd: false,
    };
    fill_one(&settings(dir, memory, "boot"), false);
    let running = Running::start(&settings(dir, ALL, "boot"), false);
    let found = running.client.lookup(Ino::ROOT, NAME, 0);
    let ino = found.expect("lookup").attr.ino;
    let flags = OpenFlags(libc::O_RDWR as u32);
    let opened = running.client.open(ino, flags, me()).expect("open");
    let handle = opened.opened.handle;
    running.write(handle, 0, &content(1)).expect("write");
    running.client.fsync(handle, false).expect("fsync");
    let held = running.residency(NAME).remove(0).tiers;
    assert_eq!(held, ["server-2:dram", "server-2:ssd"]);
    // As after a kill: a close would have had the copy take the place of the file.
    running.instance.end_broken("the end of a test".into());
    running.instance.stop();
    drop(running);
    // Its node starts anew with empty memory.
    std::fs::remove_dir_all(dir.join("dram")).expect("empty memory");
    let running = Running::start(&settings(dir, memory, "next"), false);
    assert_eq!(running.instance.losses(), 0);
    assert_eq!(running.instance.undrained().undrained_files, 1);
    running.instance.stop();
    drop(running);
    is_back(&settings(dir, ALL, "next"));
}
