//! Promise 3: fsync means something.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use forebay_testkit::{Cluster, needs_root, pattern, wait_until, write_file};

const LEN: usize = 5_000_000;

/// Writes and fsyncs a file, and leaves it open.
fn fsynced(cluster: &Cluster, name: &str, id: u64) -> File {
    let file = File::create(cluster.mnt(name)).expect("create");
    pattern(id, LEN).write(&file);
    file.sync_all().expect("fsync");
    file
}

#[test]
fn promise_3_memory_survives_the_daemon() {
    let builder = || Cluster::builder().lazy().flag("--durability=memory");
    for builder in [builder(), builder().flag("--no-passthrough")] {
        let mut cluster = builder.up();
        let file = fsynced(&cluster, "f", 800);
        assert!(!cluster.pfs("f").exists());
        cluster.kill9();
        drop(file);
        cluster.start();
        pattern(800, LEN).assert_in(&cluster.mnt("f"));
    }
}

#[test]
fn promise_3_ssd_survives_the_machine() {
    if needs_root() {
        return;
    }
    let builder = || Cluster::builder().lazy().ssd("64MiB");
    for builder in [builder(), builder().flag("--no-passthrough")] {
        let mut cluster = builder.up();
        let open = fsynced(&cluster, "open", 810);
        drop(fsynced(&cluster, "closed", 811));
        let mut more = fsynced(&cluster, "again", 812);
        more.write_all(b"second part").expect("write");
        more.sync_data().expect("fdatasync");
        cluster.kill9();
        cluster.lose_memory();
        drop((open, more));
        cluster.start();
        pattern(810, LEN).assert_in(&cluster.mnt("open"));
        pattern(811, LEN).assert_in(&cluster.mnt("closed"));
        let found = std::fs::read(cluster.mnt("again")).expect("read");
        let expected = [pattern(812, LEN).bytes(), b"second part".to_vec()].concat();
        assert!(found == expected);
        cluster.drain("");
        pattern(810, LEN).assert_in(&cluster.pfs("open"));
    }
}

#[test]
fn promise_3_a_file_that_outgrows_flash_does_not_go_back_to_memory() {
    if needs_root() {
        return;
    }
    let builder = Cluster::builder().lazy().ssd("12MiB");
    let mut cluster = builder.flag("--no-passthrough").up();
    drop(fsynced(&cluster, "grows", 815));
    wait_until("it is on flash alone", || {
        cluster.where_is("grows")["tiers"] == serde_json::json!(["ssd"])
    });
    let mut open = File::options()
        .append(true)
        .open(cluster.mnt("grows"))
        .expect("open");
    // More than flash has, less than memory.
    open.write_all(&vec![b'+'; 24 << 20]).expect("write");
    cluster.kill9();
    cluster.lose_memory();
    drop(open);
    cluster.start();
    let found = std::fs::read(cluster.mnt("grows")).expect("what was fsynced is there");
    assert!(
        found.starts_with(&pattern(815, LEN).bytes()),
        "{} bytes",
        found.len()
    );
}

/// A drained file `f`, and its successor `f.new`, which nobody fsyncs.
fn drained_and_successor() -> Cluster {
    let cluster = Cluster::builder().lazy().ssd("64MiB").up();
    write_file(&cluster.mnt("f"), pattern(820, LEN));
    cluster.drain("f");
    write_file(&cluster.mnt("f.new"), pattern(821, LEN));
    assert_eq!(
        cluster.where_is("f.new")["tiers"],
        serde_json::json!(["dram"])
    );
    cluster
}

#[test]
fn promise_3_what_was_fsynced_is_not_replaced_by_what_is_less_safe() {
    if needs_root() {
        return;
    }
    let mut cluster = drained_and_successor();
    drop(fsynced(&cluster, "f", 822));
    std::fs::rename(cluster.mnt("f.new"), cluster.mnt("f")).expect("rename");
    cluster.kill9();
    cluster.lose_memory();
    cluster.start();
    let left = [821, 822].map(|id| pattern(id, LEN).difference(&cluster.mnt("f")));
    assert!(left.contains(&None), "{left:?}");
}

#[test]
fn promise_3_an_fsync_of_a_directory_covers_what_its_names_lead_to() {
    if needs_root() {
        return;
    }
    let mut cluster = drained_and_successor();
    std::fs::rename(cluster.mnt("f.new"), cluster.mnt("f")).expect("rename");
    let folder = File::open(cluster.mnt("")).expect("open");
    folder.sync_all().expect("fsync of a directory");
    cluster.kill9();
    cluster.lose_memory();
    drop(folder);
    cluster.start();
    pattern(821, LEN).assert_in(&cluster.mnt("f"));
}

#[test]
fn promise_3_what_was_in_memory_only_and_is_lost_is_reported() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder().lazy().ssd("64MiB").up();
    write_file(&cluster.mnt("closed"), pattern(815, 1000));
    let open = File::create(cluster.mnt("open")).expect("create");
    pattern(816, 1000).write(&open);
    for name in ["closed", "open"] {
        assert_eq!(cluster.where_is(name)["tiers"][0], "dram");
    }
    cluster.kill9();
    cluster.lose_memory();
    drop(open);
    cluster.start();
    let errors = cluster.status()["errors"].to_string();
    for name in ["/closed\"", "/open\""] {
        assert!(errors.contains(name), "{name} is not in {errors}");
    }
}

#[test]
fn promise_3_pfs_is_on_the_pfs_when_fsync_returns() {
    let builder = || Cluster::builder().lazy().flag("--durability=pfs");
    for builder in [builder(), builder().flag("--no-passthrough")] {
        let cluster = builder.up();
        let mut file = fsynced(&cluster, "f", 820);
        pattern(820, LEN).assert_in(&cluster.pfs("f"));
        file.write_all(b"second part").expect("write");
        file.sync_all().expect("fsync");
        let expected = [pattern(820, LEN).bytes(), b"second part".to_vec()].concat();
        assert!(std::fs::read(cluster.pfs("f")).expect("read") == expected);
        file.write_all(b"third part").expect("write");
        drop(file);
        cluster.drain("f");
        let expected = [expected, b"third part".to_vec()].concat();
        assert!(std::fs::read(cluster.pfs("f")).expect("read") == expected);
    }
}

#[test]
fn promise_3_the_default_level_is_ssd_or_without_flash_pfs() {
    let cluster = Cluster::builder().lazy().up();
    drop(fsynced(&cluster, "f", 830));
    pattern(830, LEN).assert_in(&cluster.pfs("f"));
    let cluster = Cluster::builder().lazy().ssd("64MiB").up();
    drop(fsynced(&cluster, "f", 831));
    assert!(!cluster.pfs("f").exists());
    let tiers = cluster.where_is("f")["tiers"].to_string();
    assert!(tiers.contains("ssd"), "{tiers}");
}

#[test]
fn promise_3_path_rules_choose_the_level() {
    let rules = "[[rule]]\npath = \"/safe/**\"\ndurability = \"pfs\"\n";
    let builder = Cluster::builder().lazy().flag("--durability=memory");
    let cluster = builder.config(rules).up();
    std::fs::create_dir(cluster.mnt("safe")).expect("mkdir");
    let files = [
        fsynced(&cluster, "f", 840),
        fsynced(&cluster, "safe/f", 841),
    ];
    assert!(!cluster.pfs("f").exists());
    pattern(841, LEN).assert_in(&cluster.pfs("safe/f"));
    drop(files);
}

#[test]
fn promise_3_of_several_names_the_strongest_level_counts() {
    let rules = "[[rule]]\npath = \"/safe/**\"\ndurability = \"pfs\"\n";
    let builder = Cluster::builder().lazy().flag("--durability=memory");
    let cluster = builder.config(rules).up();
    std::fs::create_dir(cluster.mnt("safe")).expect("mkdir");
    write_file(&cluster.mnt("f"), pattern(842, LEN));
    std::fs::hard_link(cluster.mnt("f"), cluster.mnt("safe/f")).expect("link");
    let file = File::open(cluster.mnt("f")).expect("open");
    file.sync_all().expect("fsync");
    for name in ["f", "safe/f"] {
        pattern(842, LEN).assert_in(&cluster.pfs(name));
    }
}

#[test]
fn promise_3_fsync_goes_to_the_pfs_where_somebody_has_removed_what_flash_held() {
    for (dram, passthrough) in [("", true), ("", false), ("64MiB", false)] {
        let builder = Cluster::builder().dram(dram).ssd("64MiB").lazy();
        let mut cluster = match passthrough {
            true => builder.up(),
            false => builder.flag("--no-passthrough").up(),
        };
        // Of a series that is known, the kernel writes the next one by itself.
        for n in 1..4 {
            write_file(&cluster.mnt(format!("f-{n}")), pattern(n, LEN));
        }
        let file = fsynced(&cluster, "f-4", 860);
        let nameless = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(cluster.mnt(""))
            .expect("a file without a name");
        let unlinked = fsynced(&cluster, "unlinked", 861);
        fs::remove_file(cluster.mnt("unlinked")).expect("remove");
        pattern(862, LEN).write(&nameless);
        for file in [&nameless, &unlinked] {
            file.sync_all().expect("fsync");
        }
        fs::remove_dir_all(cluster.ssd()).expect("remove");
        pattern(863, LEN).write(&file);
        file.sync_all().expect("fsync");
        unlinked.sync_all().expect("nobody can ask for it");
        if dram.is_empty() {
            let refused = nameless.sync_all().expect_err("there is no place for it");
            assert_eq!(refused.raw_os_error(), Some(libc::EIO));
            let errors = cluster.status()["errors"].to_string();
            assert!(errors.contains("without a name"), "{errors}");
        }
        cluster.kill9();
        drop((file, nameless, unlinked));
        if !dram.is_empty() {
            cluster.lose_memory();
        }
        fs::create_dir(cluster.ssd()).expect("mkdir");
        let ssd = cluster.ssd();
        let lost = ["fsck", "--lost-tier", ssd.to_str().expect("UTF-8")];
        cluster.on_state(&lost);
        cluster.start();
        let both = [pattern(860, LEN).bytes(), pattern(863, LEN).bytes()].concat();
        assert!(
            fs::read(cluster.mnt("f-4")).expect("read") == both,
            "{dram} {passthrough}"
        );
        assert!(!cluster.mnt("unlinked").exists());
    }
}

#[test]
fn promise_3_copies_on_flash_count_as_space_there() {
    if needs_root() {
        return;
    }
    const BYTES: usize = 5 << 20;
    let cluster = Cluster::builder().lazy().ssd("8MiB").up();
    let on_flash = || {
        let status = cluster.status();
        let tiers = status["tiers"].as_array().expect("tiers").clone();
        let flash = tiers
            .iter()
            .find(|tier| tier["name"] != "dram" && tier["name"] != "pfs");
        flash.expect("flash")["used_bytes"].as_u64().expect("bytes")
    };
    let mut files = Vec::new();
    for (n, name) in ["first", "second"].into_iter().enumerate() {
        let file = File::create(cluster.mnt(name)).expect("create");
        pattern(850 + n as u64, BYTES).write(&file);
        for _ in 0..2 {
            file.sync_all().expect("fsync");
        }
        assert!(
            (BYTES as u64..=8 << 20).contains(&on_flash()),
            "{}",
            on_flash()
        );
        files.push(file);
    }
    // Flash has room for one copy: the other file is on the PFS.
    pattern(851, BYTES).assert_in(&cluster.pfs("second"));
    drop(files);
    cluster.drain("");
    pattern(850, BYTES).assert_in(&cluster.pfs("first"));
}
