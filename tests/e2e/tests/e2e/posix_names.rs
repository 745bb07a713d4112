//! Promise 2, names: rename, unlink, links, special files.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;

use forebay_testkit::{
    Cluster, Pattern, listing, needs_root, os_name, pattern, read_all_at, settle_for_revalidation,
    wait_until, write_file,
};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

/// Where a file can be.
const KINDS: [&str; 3] = ["dirty", "clean", "pfs"];

/// Makes a file that is in the buffer only, there and on the PFS, or on the PFS only.
#[track_caller]
fn make(cluster: &Cluster, name: &str, kind: &str, content: Pattern) {
    write_file(&cluster.mnt(name), content);
    if kind != "dirty" {
        cluster.drain(name);
    }
    if kind == "pfs" {
        cluster.on_path(&["release"], name).ok();
    }
    assert_eq!(cluster.where_state(name), kind);
}

/// All is drained, and both sides of the tree show the same files with these contents.
#[track_caller]
fn assert_both(cluster: &Cluster, expected: &[(String, Pattern)]) {
    cluster.drain("");
    for root in [cluster.mnt(""), cluster.pfs("")] {
        for (name, content) in expected {
            content.assert_in(&root.join(name));
        }
    }
    assert_eq!(listing(&cluster.mnt("")), listing(&cluster.pfs("")));
}

#[test]
fn promise_2_rename_moves_and_replaces_dirty_clean_and_pfs_files() {
    let cluster = Cluster::builder().lazy().up();
    let mut expected = Vec::new();
    let mut id = 100;
    for from in KINDS {
        for to in ["none", "dirty", "clean", "pfs"] {
            let (old, new) = (format!("{from}-to-{to}"), format!("{to}-from-{from}"));
            let content = pattern(id, 10_000 + id as usize);
            make(&cluster, &old, from, content);
            if to != "none" {
                make(&cluster, &new, to, pattern(id + 1, 20_000));
            }
            fs::rename(cluster.mnt(&old), cluster.mnt(&new)).expect("rename");
            assert!(!cluster.mnt(&old).exists(), "{old}");
            content.assert_in(&cluster.mnt(&new));
            expected.push((new, content));
            id += 2;
        }
    }
    assert_eq!(listing(&cluster.mnt("")).len(), expected.len());
    assert_both(&cluster, &expected);
    assert_eq!(listing(&cluster.pfs("")).len(), expected.len());
}

#[test]
fn promise_2_rename_can_refuse_to_replace_and_can_exchange() {
    let cluster = Cluster::builder().lazy().up();
    for (at, kind) in KINDS.into_iter().enumerate() {
        let content = pattern(140 + at as u64, 3000);
        make(&cluster, kind, kind, content);
        for other in KINDS {
            let there = format!("{kind}-{other}");
            make(&cluster, &there, other, pattern(150, 2000));
            let (a, b) = (cluster.mnt(kind), cluster.mnt(&there));
            let refused = renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
            assert_eq!(refused, Err(rustix::io::Errno::EXIST), "{there}");
            renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).expect("exchange");
            pattern(150, 2000).assert_in(&a);
            content.assert_in(&b);
            renameat_with(CWD, &b, CWD, &a, RenameFlags::EXCHANGE).expect("exchange");
        }
        content.assert_in(&cluster.mnt(kind));
    }
    let expected: Vec<_> = KINDS.into_iter().zip(140..).collect();
    let expected = expected
        .iter()
        .map(|(kind, id)| (kind.to_string(), pattern(*id, 3000)));
    assert_both(&cluster, &expected.collect::<Vec<_>>());
}

#[test]
fn promise_2_a_checkpoint_renamed_over_the_last_leaves_that_whole_until_the_drain() {
    let cluster = Cluster::builder().lazy().up();
    make(&cluster, "ckpt", "clean", pattern(160, 50_000));
    write_file(&cluster.mnt("ckpt.tmp"), pattern(161, 60_000));
    fs::rename(cluster.mnt("ckpt.tmp"), cluster.mnt("ckpt")).expect("rename");
    pattern(161, 60_000).assert_in(&cluster.mnt("ckpt"));
    pattern(160, 50_000).assert_in(&cluster.pfs("ckpt"));
    assert_both(&cluster, &[("ckpt".into(), pattern(161, 60_000))]);
}

#[test]
fn promise_2_directories_move_with_all_their_files() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir_all(cluster.mnt("a/sub")).expect("mkdir");
    fs::create_dir(cluster.mnt("b")).expect("mkdir");
    let mut expected = Vec::new();
    for (at, kind) in KINDS.into_iter().enumerate() {
        for folder in ["", "sub/"] {
            let content = pattern(170 + at as u64, 5000 + folder.len());
            make(&cluster, &format!("a/{folder}{kind}"), kind, content);
            expected.push((format!("b/moved/{folder}{kind}"), content));
        }
    }
    fs::rename(cluster.mnt("a"), cluster.mnt("b/moved")).expect("rename");
    assert_eq!(listing(&cluster.mnt("")), ["b"]);
    for (name, content) in &expected {
        content.assert_in(&cluster.mnt(name));
    }
    let full = fs::rename(cluster.mnt("b/moved"), cluster.mnt("b/moved/sub/in"));
    assert_eq!(
        full.expect_err("into itself").raw_os_error(),
        Some(libc::EINVAL)
    );
    let taken = fs::remove_dir(cluster.mnt("b/moved/sub")).expect_err("not empty");
    assert_eq!(taken.raw_os_error(), Some(libc::ENOTEMPTY));
    assert_both(&cluster, &expected);
}

#[test]
fn promise_2_unlinked_files_are_gone_and_stay_so() {
    let mut cluster = Cluster::builder().lazy().up();
    for kind in KINDS {
        make(&cluster, kind, kind, pattern(180, 10_000));
        fs::remove_file(cluster.mnt(kind)).expect("unlink");
        assert!(!cluster.mnt(kind).exists() && !cluster.pfs(kind).exists());
    }
    write_file(&cluster.mnt("stays"), pattern(181, 10));
    cluster.restart();
    assert_both(&cluster, &[("stays".into(), pattern(181, 10))]);
    assert_eq!(listing(&cluster.pfs("")), ["stays"]);
}

#[test]
fn promise_2_an_unlinked_open_file_lives_until_it_is_closed() {
    let cluster = Cluster::builder().lazy().up();
    for kind in KINDS {
        make(&cluster, kind, kind, pattern(190, 10_000));
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .append(true)
            .open(cluster.mnt(kind))
            .expect("open");
        fs::remove_file(cluster.mnt(kind)).expect("unlink");
        // The name can be used anew meanwhile.
        write_file(&cluster.mnt(kind), pattern(191, 77));
        file.write_all(b"more").expect("write");
        let expected = [pattern(190, 10_000).bytes(), b"more".to_vec()].concat();
        assert_eq!(read_all_at(&file), expected, "{kind}");
        drop(file);
        pattern(191, 77).assert_in(&cluster.mnt(kind));
    }
    let expected = KINDS.map(|kind| (kind.to_string(), pattern(191, 77)));
    assert_both(&cluster, &expected);
    // Of the six, only three occupy space.
    wait_until("the space of unlinked files is given back", || {
        cluster.status()["tiers"][0]["used_bytes"].as_u64() <= Some(3 * 4096)
    });
}

#[test]
fn promise_2_hard_links_are_one_file_here_and_on_the_pfs() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    for (at, kind) in KINDS.into_iter().enumerate() {
        let id = 200 + 2 * at as u64;
        let (first, second) = (kind.to_string(), format!("d/{kind}-too"));
        make(&cluster, &first, kind, pattern(id, 9000));
        fs::hard_link(cluster.mnt(&first), cluster.mnt(&second)).expect("link");
        write_file(&cluster.mnt(&second), pattern(id + 1, 8000));
        pattern(id + 1, 8000).assert_in(&cluster.mnt(&first));
        let facts = |path| {
            let meta = fs::metadata(path).expect("metadata");
            (meta.ino(), meta.nlink())
        };
        assert_eq!(facts(cluster.mnt(&first)), facts(cluster.mnt(&second)));
        assert_eq!(facts(cluster.mnt(&first)).1, 2, "{kind}");
        cluster.drain("");
        assert_eq!(facts(cluster.pfs(&first)), facts(cluster.pfs(&second)));
        assert_eq!(facts(cluster.pfs(&first)).1, 2, "{kind}");
        pattern(id + 1, 8000).assert_in(&cluster.pfs(&first));
        fs::remove_file(cluster.mnt(&first)).expect("unlink");
        pattern(id + 1, 8000).assert_in(&cluster.mnt(&second));
        pattern(id + 1, 8000).assert_in(&cluster.pfs(&second));
        assert!(!cluster.pfs(&first).exists());
    }
}

#[test]
fn promise_2_replacing_one_name_of_a_file_is_no_change_of_the_other() {
    let cluster = Cluster::builder().lazy().up();
    for kind in KINDS {
        let [first, second, new] = ["first", "second", "new"].map(|n| format!("{kind}-{n}"));
        make(&cluster, &first, "dirty", pattern(205, 500));
        fs::hard_link(cluster.mnt(&first), cluster.mnt(&second)).expect("link");
        cluster.drain("");
        make(&cluster, &new, kind, pattern(206, 600));
        fs::rename(cluster.mnt(&new), cluster.mnt(&second)).expect("rename");
        cluster.drain("");
        write_file(&cluster.mnt(&first), pattern(207, 700));
        cluster.on_path(&["stage-out", "--wait"], &first);
        pattern(207, 700).assert_in(&cluster.pfs(&first));
        pattern(206, 600).assert_in(&cluster.pfs(&second));
    }
    assert_eq!(
        listing(&cluster.pfs("")).len(),
        2 * KINDS.len(),
        "conflicts"
    );
}

#[test]
fn promise_2_a_file_of_the_pfs_is_there_under_the_name_that_is_left() {
    let cluster = Cluster::builder().lazy().up();
    fs::write(cluster.pfs("first"), pattern(208, 500).bytes()).expect("write");
    fs::hard_link(cluster.pfs("first"), cluster.pfs("second")).expect("link");
    // The kernel knows both, and which it asked for last is how the file is known here.
    for name in ["first", "second"] {
        fs::metadata(cluster.mnt(name)).expect("stat");
    }
    fs::remove_file(cluster.mnt("second")).expect("unlink");
    pattern(208, 500).assert_in(&cluster.mnt("first"));
    assert_eq!(fs::metadata(cluster.mnt("first")).expect("stat").len(), 500);
}

#[test]
fn promise_2_symbolic_links_fifos_and_sockets_work() {
    let cluster = Cluster::builder().up();
    write_file(&cluster.mnt("target"), pattern(210, 100));
    symlink("target", cluster.mnt("link")).expect("symlink");
    pattern(210, 100).assert_in(&cluster.mnt("link"));
    assert_eq!(
        fs::read_link(cluster.pfs("link")).expect("link"),
        OsStr::new("target")
    );
    mknodat(
        CWD,
        cluster.mnt("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .expect("fifo");
    let mut options = OpenOptions::new();
    let both = options.read(true).write(true);
    let mut fifo = both.open(cluster.mnt("fifo")).expect("open");
    fifo.write_all(b"through").expect("write");
    let mut bytes = [0; 7];
    std::io::Read::read_exact(&mut fifo, &mut bytes).expect("read");
    assert_eq!(&bytes, b"through");
    // A socket's path must be short.
    let near = cluster.mnt("socket");
    let listener = UnixListener::bind(&near).expect("bind");
    let kind = |path| fs::symlink_metadata(path).expect("metadata").file_type();
    assert!(kind(cluster.pfs("socket")).is_socket() && kind(near).is_socket());
    assert!(kind(cluster.pfs("fifo")).is_fifo());
    drop(listener);
    fs::rename(cluster.mnt("link"), cluster.mnt("link2")).expect("rename");
    for name in ["link2", "fifo", "socket"] {
        fs::remove_file(cluster.mnt(name)).expect("unlink");
    }
    assert_both(&cluster, &[("target".into(), pattern(210, 100))]);
}

#[test]
fn promise_2_names_are_any_bytes_up_to_255() {
    let cluster = Cluster::builder().lazy().up();
    let long = [b'n'; 255];
    let odd = *b"\xff\xfe \n\"\\\x01";
    for (at, name) in [&long[..], &odd[..]].into_iter().enumerate() {
        let content = pattern(220 + at as u64, 1000);
        write_file(&cluster.mnt(os_name(name)), content);
        assert_eq!(cluster.where_state(os_name(name)), "dirty");
        cluster.drain(os_name(name));
        content.assert_in(&cluster.pfs(os_name(name)));
    }
    let names: Vec<_> = listing(&cluster.mnt(""));
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    assert_eq!(names, [&long[..], &odd[..]]);
    let error = File::create(cluster.mnt(os_name(&[b'n'; 256]))).expect_err("too long");
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    // The exact bytes are in the JSON.
    let entry = cluster.where_is(os_name(&odd));
    let base16 = entry["path_base16"].as_str().expect("base 16");
    assert!(
        base16.to_lowercase().ends_with("fffe200a225c01"),
        "{base16}"
    );
}

#[test]
fn promise_2_the_root_of_the_pfs_gives_its_attributes() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().up();
    std::os::unix::fs::chown(cluster.pfs(""), Some(4242), None).expect("chown");
    settle_for_revalidation();
    assert_eq!(cluster.mnt("").metadata().expect("metadata").uid(), 4242);
}
