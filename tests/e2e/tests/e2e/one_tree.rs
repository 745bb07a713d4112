//! Promise 1: one tree.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};

use forebay_testkit::{
    Cluster, listing, pattern, settle_for_revalidation, snapshot, wait_until, write_file,
};

#[test]
fn promise_1_untouched_pfs_files_are_readable_at_once() {
    let mut cluster = Cluster::builder().prepare();
    fs::create_dir_all(cluster.pfs("run/deep")).expect("mkdir");
    write_file(&cluster.pfs("run/deep/big"), pattern(1, 3_000_001));
    write_file(&cluster.pfs("empty"), pattern(0, 0));
    symlink("run/deep", cluster.pfs("link")).expect("symlink");
    cluster.start();
    assert_eq!(snapshot(&cluster.mnt("")), snapshot(&cluster.pfs("")));
    pattern(1, 3_000_001).assert_in(&cluster.mnt("link/big"));
    assert_eq!(cluster.where_state("run/deep/big"), "pfs");
    // Reading alone brings nothing in.
    assert_eq!(cluster.status()["tiers"][0]["used_bytes"], 0);
}

#[test]
fn promise_1_new_removed_and_renamed_files_of_the_pfs_show_up_within_a_second() {
    let cluster = Cluster::builder().up();
    fs::create_dir(cluster.pfs("d")).expect("mkdir");
    for name in ["d/goes", "d/moves"] {
        write_file(&cluster.pfs(name), pattern(2, 1000));
    }
    settle_for_revalidation();
    assert_eq!(listing(&cluster.mnt("d")), ["goes", "moves"]);
    assert!(!cluster.mnt("d/new").exists());
    fs::remove_file(cluster.pfs("d/goes")).expect("remove");
    fs::rename(cluster.pfs("d/moves"), cluster.pfs("d/moved")).expect("rename");
    write_file(&cluster.pfs("d/new"), pattern(3, 1000));
    fs::create_dir(cluster.pfs("d/dir")).expect("mkdir");
    settle_for_revalidation();
    assert_eq!(listing(&cluster.mnt("d")), ["dir", "moved", "new"]);
    assert!(!cluster.mnt("d/goes").exists() && !cluster.mnt("d/moves").exists());
    pattern(2, 1000).assert_in(&cluster.mnt("d/moved"));
    pattern(3, 1000).assert_in(&cluster.mnt("d/new"));
}

#[test]
fn promise_1_changed_content_and_modes_of_the_pfs_show_up_within_a_second() {
    let cluster = Cluster::builder().up();
    let (mnt, pfs) = (cluster.mnt("f"), cluster.pfs("f"));
    write_file(&pfs, pattern(4, 200_000));
    settle_for_revalidation();
    pattern(4, 200_000).assert_in(&mnt);
    // In place and of the same length: only the times tell.
    write_file(&pfs, pattern(5, 200_000));
    fs::set_permissions(&pfs, PermissionsExt::from_mode(0o640)).expect("chmod");
    settle_for_revalidation();
    pattern(5, 200_000).assert_in(&mnt);
    let mode = mnt.metadata().expect("metadata").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    // Another file put over it.
    write_file(&cluster.pfs("g"), pattern(6, 300));
    fs::rename(cluster.pfs("g"), &pfs).expect("rename");
    settle_for_revalidation();
    pattern(6, 300).assert_in(&mnt);
}

#[test]
fn promise_1_a_copy_in_the_buffer_gives_way_to_a_change_on_the_pfs_within_a_second() {
    let cluster = Cluster::builder().eager().up();
    write_file(&cluster.mnt("drained"), pattern(7, 50_000));
    write_file(&cluster.pfs("staged"), pattern(8, 50_000));
    cluster.drain("drained");
    settle_for_revalidation();
    cluster.on_path(&["stage-in"], "staged").ok();
    for name in ["drained", "staged"] {
        assert_eq!(cluster.where_state(name), "clean");
        write_file(&cluster.pfs(name), pattern(9, 60_000));
    }
    settle_for_revalidation();
    for name in ["drained", "staged"] {
        pattern(9, 60_000).assert_in(&cluster.mnt(name));
    }
    fs::remove_file(cluster.pfs("drained")).expect("remove");
    settle_for_revalidation();
    assert!(!cluster.mnt("drained").exists());
    assert_eq!(listing(&cluster.mnt("")), ["staged"]);
}

/// Files that are in the burst buffer, trusted for so long, and have been looked at.
fn trusted(time: &str, names: &[&str]) -> Cluster {
    let rule = format!("[[rule]]\npath = \"/set/**\"\ntrust = \"{time}\"\n");
    let cluster = Cluster::builder().lazy().config(&rule).up();
    fs::create_dir(cluster.pfs("set")).expect("mkdir");
    for name in names {
        write_file(&cluster.pfs(name), pattern(40, 50_000));
    }
    settle_for_revalidation();
    look_at(&cluster, names);
    cluster
}

/// Brings them in, and looks at each copy once: what the kernel knew before is forgotten.
fn look_at(cluster: &Cluster, names: &[&str]) {
    for name in names {
        cluster.on_path(&["stage-in"], name).ok();
    }
    settle_for_revalidation();
    for name in names {
        pattern(40, 50_000).assert_in(&cluster.mnt(name));
    }
}

/// An outsider makes another file of it, as a program does that writes a temporary one first.
fn replace_on_pfs(cluster: &Cluster, name: &str, seed: u64) {
    let new = cluster.pfs(format!("{name}.new"));
    write_file(&new, pattern(seed, 60_000));
    fs::rename(new, cluster.pfs(name)).expect("rename");
}

#[test]
fn promise_1_a_trusted_copy_shows_a_change_when_its_time_is_over() {
    let names = ["set/read", "set/removed", "set/a/released", "other"];
    let cluster = trusted("1h", &[]);
    fs::create_dir(cluster.pfs("set/a")).expect("mkdir");
    for name in names {
        write_file(&cluster.pfs(name), pattern(40, 50_000));
    }
    settle_for_revalidation();
    look_at(&cluster, &names);
    for name in names {
        replace_on_pfs(&cluster, name, 41);
    }
    fs::remove_file(cluster.pfs("set/removed")).expect("remove");
    settle_for_revalidation();
    pattern(41, 60_000).assert_in(&cluster.mnt("other"));
    for name in &names[..3] {
        pattern(40, 50_000).assert_in(&cluster.mnt(name));
    }
    // What a folder has under the same names is another file by now.
    cluster.on_path(&["release"], "set/a");
    settle_for_revalidation();
    pattern(41, 60_000).assert_in(&cluster.mnt("set/a/released"));
    let file = cluster.base().join("bb.toml");
    let text = fs::read_to_string(&file).expect("read");
    fs::write(&file, text.replace("1h", "0s")).expect("write");
    assert_eq!(cluster.on_state(&["reload"]).ok().stdout, "taken: rule\n");
    settle_for_revalidation();
    pattern(41, 60_000).assert_in(&cluster.mnt("set/read"));
    assert!(!cluster.mnt("set/removed").exists());
}

#[test]
fn promise_1_reading_a_trusted_copy_does_not_prolong_its_time() {
    let cluster = trusted("4s", &["set/f"]);
    replace_on_pfs(&cluster, "set/f", 41);
    let mut seen = Vec::new();
    wait_until("the change shows", || {
        seen = fs::read(cluster.mnt("set/f")).expect("read");
        seen.len() == 60_000
    });
    assert!(seen == pattern(41, 60_000).bytes());
}

#[test]
fn promise_1_who_changes_what_is_trusted_looks_first() {
    let names = ["set/written", "set/removed", "set/replaced", "set/taken"];
    let cluster = trusted("1h", &names);
    for name in names {
        replace_on_pfs(&cluster, name, 41);
    }
    settle_for_revalidation();
    let gone = fs::read_dir(cluster.mnt("set")).expect("list").count();
    assert_eq!(gone, 4);
    // Who opens it to write has the newer version.
    let mut file = OpenOptions::new()
        .append(true)
        .open(cluster.mnt("set/written"));
    file.as_mut()
        .expect("open")
        .write_all(b"more")
        .expect("write");
    drop(file);
    let read = fs::read(cluster.mnt("set/written")).expect("read");
    assert!(read[..60_000] == pattern(41, 60_000).bytes() && read[60_000..] == *b"more");
    // What was never shown does not go with what was.
    fs::remove_file(cluster.mnt("set/removed")).expect("remove");
    pattern(41, 60_000).assert_in(&cluster.pfs("set/removed"));
    write_file(&cluster.mnt("new"), pattern(43, 7000));
    fs::rename(cluster.mnt("new"), cluster.mnt("set/replaced")).expect("rename");
    write_file(&cluster.pfs("there"), pattern(44, 8000));
    settle_for_revalidation();
    fs::rename(cluster.mnt("there"), cluster.mnt("set/taken")).expect("rename");
    cluster.on_path(&["stage-out", "--wait"], "set");
    for (name, seed, len) in [("set/replaced", 43, 7000), ("set/taken", 44, 8000)] {
        pattern(seed, len).assert_in(&cluster.mnt(name));
        let conflict = cluster.pfs(conflict_in(&cluster, name));
        pattern(41, 60_000).assert_in(&conflict);
    }
}

/// What lies beside a name as its conflict.
fn conflict_in(cluster: &Cluster, name: &str) -> String {
    let prefix = format!("{name}.forebay-conflict-");
    let names = listing(&cluster.pfs("set")).into_iter();
    let mut names = names.map(|name| format!("set/{}", name.to_string_lossy()));
    let found = names.find(|found| found.starts_with(&prefix));
    found.unwrap_or_else(|| panic!("no conflict of {name}: {:?}", listing(&cluster.pfs("set"))))
}

#[test]
fn promise_1_attributes_of_a_trusted_copy_are_those_of_its_file() {
    let cluster = trusted("1h", &["set/f"]);
    let no = |found: std::io::Result<Vec<u8>>| found.err().and_then(|e| e.raw_os_error());
    let get = |path: &std::path::Path| {
        let mut value = vec![0; 64];
        let len = rustix::fs::getxattr(path, "user.kind", &mut value)?;
        Ok(value[..len].to_vec())
    };
    assert_eq!(no(get(&cluster.mnt("set/f"))), Some(libc::ENODATA));
    replace_on_pfs(&cluster, "set/f", 41);
    rustix::fs::setxattr(
        cluster.pfs("set/f"),
        "user.kind",
        b"new",
        rustix::fs::XattrFlags::empty(),
    )
    .expect("setxattr");
    assert_eq!(get(&cluster.mnt("set/f")).expect("getxattr"), b"new");
    pattern(41, 60_000).assert_in(&cluster.mnt("set/f"));
}

#[test]
fn promise_1_who_cuts_what_is_trusted_looks_first() {
    let cluster = trusted("1h", &["set/cut", "set/emptied", "set/mode"]);
    for name in ["set/cut", "set/emptied", "set/mode"] {
        replace_on_pfs(&cluster, name, 41);
    }
    settle_for_revalidation();
    // By path: nobody opens it.
    let cut = |name: &str, len: i64| {
        let path = std::ffi::CString::new(cluster.mnt(name).into_os_string().into_encoded_bytes());
        // SAFETY: the path is a string that lives.
        let done = unsafe { libc::truncate(path.expect("a path").as_ptr(), len) };
        assert_eq!(done, 0, "{name}: {}", std::io::Error::last_os_error());
    };
    cut("set/cut", 55_000);
    let read = fs::read(cluster.mnt("set/cut")).expect("read");
    assert!(read == pattern(41, 60_000).bytes()[..55_000]);
    cut("set/emptied", 0);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    fs::set_permissions(cluster.mnt("set/mode"), mode).expect("chmod");
    pattern(41, 60_000).assert_in(&cluster.mnt("set/mode"));
    cluster.on_path(&["stage-out", "--wait"], "set").ok();
    let names = listing(&cluster.pfs("set"));
    assert_eq!(names, ["cut", "emptied", "mode"], "conflicts");
    assert!(
        fs::read(cluster.pfs("set/emptied"))
            .expect("read")
            .is_empty()
    );
}

#[test]
fn promise_1_an_order_for_what_is_trusted_looks_first() {
    let rule = "[[rule]]\npath = \"/set/*.h5\"\ntrust = \"1h\"\n";
    let cluster = Cluster::builder().lazy().config(rule).up();
    fs::create_dir(cluster.pfs("set")).expect("mkdir");
    let names = ["set/a.txt", "set/b.h5", "set/c.h5"];
    for name in names {
        write_file(&cluster.pfs(name), pattern(40, 50_000));
    }
    settle_for_revalidation();
    look_at(&cluster, &names);
    for name in names {
        replace_on_pfs(&cluster, name, 41);
    }
    settle_for_revalidation();
    pattern(40, 50_000).assert_in(&cluster.mnt("set/c.h5"));
    // Of one file, and of all of a folder, whatever its first one is.
    cluster.on_path(&["stage-in"], "set/c.h5").ok();
    settle_for_revalidation();
    pattern(41, 60_000).assert_in(&cluster.mnt("set/c.h5"));
    cluster.on_path(&["stage-in"], "set").ok();
    settle_for_revalidation();
    pattern(41, 60_000).assert_in(&cluster.mnt("set/b.h5"));
}

#[test]
fn promise_1_what_is_written_after_an_outdated_copy_has_left_is_kept() {
    let names = ["set/written", "set/read", "set/marked", "set/dated"];
    let cluster = trusted("1h", &names);
    for name in names {
        replace_on_pfs(&cluster, name, 41);
    }
    // The kernel knows them by their copies, and somebody has one open.
    for name in names {
        fs::metadata(cluster.mnt(name)).expect("stat");
    }
    let open = fs::File::open(cluster.mnt("set/read")).expect("open");
    cluster.on_path(&["stage-in"], "set").ok();
    for name in &names[..2] {
        let file = OpenOptions::new().append(true).open(cluster.mnt(name));
        file.expect("open").write_all(b"more").expect("write");
    }
    rustix::fs::setxattr(
        cluster.mnt("set/marked"),
        "user.kind",
        b"new",
        rustix::fs::XattrFlags::empty(),
    )
    .expect("setxattr");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    // Of one that is open it may be meant for what is open: the kernel does not say.
    let spec = rustix::fs::Timespec {
        tv_sec: 1000,
        tv_nsec: 0,
    };
    let times = rustix::fs::Timestamps {
        last_access: spec,
        last_modification: spec,
    };
    let flags = rustix::fs::AtFlags::empty();
    rustix::fs::utimensat(rustix::fs::CWD, cluster.mnt("set/dated"), &times, flags)
        .expect("utimens");
    drop(open);
    cluster.on_path(&["stage-out", "--wait"], "set").ok();
    for name in &names[..2] {
        let read = fs::read(cluster.pfs(name)).expect("read");
        assert!(read[..60_000] == pattern(41, 60_000).bytes() && read[60_000..] == *b"more");
    }
    let mut value = [0; 8];
    let len = rustix::fs::getxattr(cluster.pfs("set/marked"), "user.kind", &mut value[..]);
    assert_eq!(&value[..len.expect("getxattr")], b"new");
    let modified = fs::metadata(cluster.pfs("set/dated")).and_then(|meta| meta.modified());
    assert_eq!(modified.expect("stat"), old);
}

/// The only other name beside `own`, and that it is a conflict's.
fn conflict_name(cluster: &Cluster, own: &str) -> String {
    let mut found = None;
    wait_until("a conflict shows on the PFS", || {
        let names = listing(&cluster.pfs(""));
        let prefix = format!("{own}.forebay-conflict-");
        let mut ours = names.iter().filter_map(|name| name.to_str());
        found = ours
            .find(|name| name.starts_with(&prefix))
            .map(str::to_string);
        found.is_some()
    });
    found.expect("waited for")
}

#[test]
fn promise_1_a_conflict_keeps_both_versions_and_is_reported() {
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(10, 70_000));
    cluster.drain("f");
    // Changed here, and by an outsider there.
    write_file(&cluster.mnt("f"), pattern(11, 80_000));
    write_file(&cluster.pfs("f"), pattern(12, 90_000));
    let staged = cluster.on_path(&["stage-out", "--wait"], "f");
    let conflict = conflict_name(&cluster, "f");
    assert_eq!(staged.code, 3);
    let line = staged.stderr.lines().find(|line| line.contains("/mnt/f: "));
    assert!(
        line.is_some_and(|line| line.contains(&conflict)),
        "{}",
        staged.stderr
    );
    pattern(12, 90_000).assert_in(&cluster.pfs("f"));
    pattern(11, 80_000).assert_in(&cluster.pfs(&conflict));
    settle_for_revalidation();
    pattern(12, 90_000).assert_in(&cluster.mnt("f"));
    pattern(11, 80_000).assert_in(&cluster.mnt(&conflict));
    let errors = cluster.status()["errors"].to_string();
    assert!(errors.contains(&conflict), "{errors}");
}

#[test]
fn promise_1_a_name_taken_on_the_pfs_meanwhile_is_a_conflict_too() {
    let cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(13, 5000));
    write_file(&cluster.pfs("f"), pattern(14, 6000));
    cluster.on_path(&["stage-out", "--wait"], "f");
    let conflict = conflict_name(&cluster, "f");
    pattern(14, 6000).assert_in(&cluster.pfs("f"));
    pattern(13, 5000).assert_in(&cluster.pfs(&conflict));
}

#[test]
fn promise_1_a_file_removed_on_the_pfs_does_not_come_back_and_ours_is_kept() {
    let cluster = Cluster::builder().lazy().up();
    for name in ["removed", "moved"] {
        write_file(&cluster.mnt(name), pattern(18, 50_000));
        cluster.drain(name);
        write_file(&cluster.mnt(name), pattern(19, 60_000));
    }
    fs::remove_file(cluster.pfs("removed")).expect("remove");
    fs::rename(cluster.pfs("moved"), cluster.pfs("elsewhere")).expect("rename");
    for name in ["removed", "moved"] {
        cluster.on_path(&["stage-out", "--wait"], name);
        let conflict = conflict_name(&cluster, name);
        pattern(19, 60_000).assert_in(&cluster.pfs(&conflict));
        assert!(!cluster.pfs(name).exists());
        settle_for_revalidation();
        assert!(!cluster.mnt(name).exists());
        pattern(19, 60_000).assert_in(&cluster.mnt(&conflict));
    }
    pattern(18, 50_000).assert_in(&cluster.pfs("elsewhere"));
}

#[test]
fn promise_1_a_hard_link_replaced_or_removed_on_the_pfs_stays_so() {
    let cluster = Cluster::builder().lazy().up();
    for name in ["replaced", "removed"] {
        let second = format!("{name}-too");
        write_file(&cluster.mnt(name), pattern(23, 50_000));
        fs::hard_link(cluster.mnt(name), cluster.mnt(&second)).expect("link");
        cluster.drain(name);
        write_file(&cluster.mnt(name), pattern(24, 60_000));
        fs::remove_file(cluster.pfs(&second)).expect("remove");
    }
    write_file(&cluster.pfs("replaced-too"), pattern(25, 70_000));
    let staged = cluster.on_path(&["stage-out", "--wait"], "");
    assert_eq!(staged.code, 3, "{}", staged.stderr);
    let conflict = conflict_name(&cluster, "replaced-too");
    let expected = ["removed", "replaced", "replaced-too", &conflict];
    assert_eq!(listing(&cluster.pfs("")), expected);
    pattern(25, 70_000).assert_in(&cluster.pfs("replaced-too"));
    for name in ["removed", "replaced", &conflict] {
        pattern(24, 60_000).assert_in(&cluster.pfs(name));
    }
    settle_for_revalidation();
    assert_eq!(listing(&cluster.mnt("")), expected);
    pattern(25, 70_000).assert_in(&cluster.mnt("replaced-too"));
}

#[test]
fn promise_1_unseen_versions_survive_what_programs_do() {
    let cluster = Cluster::builder().lazy().up();
    for name in ["unlinked", "renamed", "replaced", "drained"] {
        write_file(&cluster.mnt(name), pattern(20, 50_000));
        cluster.drain(name);
    }
    for name in ["unlinked", "renamed", "replaced"] {
        write_file(&cluster.mnt(name), pattern(21, 60_000));
        write_file(&cluster.pfs(name), pattern(22, 70_000));
    }
    fs::remove_file(cluster.mnt("unlinked")).expect("unlink");
    fs::rename(cluster.mnt("renamed"), cluster.mnt("new-name")).expect("rename");
    fs::rename(cluster.mnt("drained"), cluster.mnt("replaced")).expect("rename");
    for name in ["unlinked", "renamed"] {
        pattern(22, 70_000).assert_in(&cluster.pfs(name));
    }
    let conflict = conflict_name(&cluster, "replaced");
    pattern(22, 70_000).assert_in(&cluster.pfs(&conflict));
    cluster.drain("");
    pattern(21, 60_000).assert_in(&cluster.pfs("new-name"));
    pattern(20, 50_000).assert_in(&cluster.pfs("replaced"));
    settle_for_revalidation();
    pattern(22, 70_000).assert_in(&cluster.mnt("unlinked"));
}

/// Small files come into the burst buffer to be changed, large ones are changed in place.
#[test]
fn promise_1_what_is_appended_lands_behind_what_others_have_appended_on_the_pfs() {
    for passthrough in [true, false] {
        let mut builder = Cluster::builder().lazy();
        if !passthrough {
            builder = builder.flag("--no-passthrough");
        }
        let cluster = builder.up();
        for (name, mib) in [("small", 0), ("large", 80)] {
            let (on_pfs, size) = (cluster.pfs(name), (mib << 20) + 10);
            fs::write(&on_pfs, vec![b'.'; size]).expect("write");
            settle_for_revalidation();
            // The kernel knows its size from here on, and believes it.
            let open = || OpenOptions::new().append(true).open(cluster.mnt(name));
            let mut ours = open().expect("open");
            let known = fs::metadata(cluster.mnt(name)).expect("stat").len();
            assert_eq!(known, size as u64);
            let mut others = OpenOptions::new().append(true).open(&on_pfs).expect("open");
            others.write_all(b"others;").expect("append");
            ours.write_all(b"ours;").expect("append");
            if mib > 0 {
                // In place, by both in turns.
                others.write_all(b"others again;").expect("append");
                open()
                    .expect("open")
                    .write_all(b"ours again;")
                    .expect("append");
            }
            drop(ours);
            cluster.drain(name);
            let tail = fs::read(&on_pfs).expect("read").split_off(size);
            let expected: &[u8] = match mib {
                0 => b"others;ours;",
                _ => b"others;ours;others again;ours again;",
            };
            assert_eq!(
                String::from_utf8_lossy(&tail),
                String::from_utf8_lossy(expected),
                "{name}, passthrough {passthrough}"
            );
        }
        // What was cut is not grown by a hole.
        let cut = cluster.pfs("cut");
        fs::write(&cut, b"0123456789").expect("write");
        settle_for_revalidation();
        assert_eq!(fs::metadata(cluster.mnt("cut")).expect("stat").len(), 10);
        fs::write(&cut, b"short;").expect("write");
        let ours = OpenOptions::new().append(true).open(cluster.mnt("cut"));
        ours.expect("open").write_all(b"ours;").expect("append");
        cluster.drain("cut");
        assert_eq!(fs::read(&cut).expect("read"), b"short;ours;");
    }
}

#[test]
fn promise_1_conflicts_are_listed_and_counted_over_restarts() {
    let mut cluster = Cluster::builder().lazy().up();
    write_file(&cluster.mnt("f"), pattern(23, 5000));
    write_file(&cluster.pfs("f"), pattern(24, 6000));
    cluster.on_path(&["stage-out", "--wait"], "f");
    let kept_as = cluster.mnt(conflict_name(&cluster, "f"));
    let listed = |cluster: &Cluster| {
        let status = cluster.status();
        assert_eq!(status["conflicts_total"], 1, "{status}");
        status["conflicts"].as_array().expect("a list").len()
    };
    assert_eq!(listed(&cluster), 1);
    let conflict = cluster.status()["conflicts"][0].clone();
    let path = cluster.mnt("f");
    assert_eq!(conflict["path"], path.to_str().expect("UTF-8"));
    assert_eq!(conflict["kept_as"], kept_as.to_str().expect("UTF-8"));
    cluster.down(&[]);
    cluster.start();
    assert_eq!(listed(&cluster), 1);
    fs::remove_file(&kept_as).expect("remove");
    cluster.down(&[]);
    cluster.start();
    assert_eq!(listed(&cluster), 0);
}

#[test]
fn promise_1_undrained_files_are_listed_among_those_of_the_pfs() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    assert!(cluster.pfs("d").is_dir());
    write_file(&cluster.pfs("d/b"), pattern(15, 10));
    write_file(&cluster.mnt("d/a"), pattern(16, 20));
    write_file(&cluster.mnt("d/c"), pattern(17, 30));
    settle_for_revalidation();
    assert_eq!(listing(&cluster.mnt("d")), ["a", "b", "c"]);
    assert_eq!(listing(&cluster.pfs("d")), ["b"]);
    assert_eq!(cluster.mnt("d/c").metadata().expect("metadata").len(), 30);
}

#[test]
fn promise_1_a_directory_is_empty_when_somebody_has_removed_its_files_on_the_pfs() {
    let cluster = Cluster::builder().up();
    for dir in ["gone", "replaced", "new", "kept"] {
        fs::create_dir(cluster.mnt(dir)).expect("mkdir");
        write_file(&cluster.mnt(dir).join("f"), pattern(41, 1000));
        fs::hard_link(cluster.mnt(dir).join("f"), cluster.mnt(dir).join("g")).expect("link");
    }
    cluster.drain("");
    for dir in ["gone", "replaced"] {
        for name in ["f", "g"] {
            fs::remove_file(cluster.pfs(dir).join(name)).expect("remove");
        }
    }
    settle_for_revalidation();
    // Nobody looks for the files by name.
    fs::remove_dir(cluster.mnt("gone")).expect("rmdir");
    fs::rename(cluster.mnt("new"), cluster.mnt("replaced")).expect("rename");
    let refused = fs::remove_dir(cluster.mnt("kept")).expect_err("not empty");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    for root in [cluster.mnt(""), cluster.pfs("")] {
        assert_eq!(listing(&root), ["kept", "replaced"]);
        pattern(41, 1000).assert_in(&root.join("replaced/g"));
        pattern(41, 1000).assert_in(&root.join("kept/f"));
    }
}
