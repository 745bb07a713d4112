//! The tree below: never outside it, any names, owners and modes kept.

mod common;
#[path = "pfs/owners.rs"]
mod owners;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{in_memory, on_disk};
use forebay_testkit::{is_root, needs_root, skip};
use forebay_tiers::{ActAs, Appearance, MetadataWarning, PfsDir, PfsNode, PfsTree, apply_metadata};
use forebay_types::{
    Errno, FileKind, Generation, ObjectId, RenameMode, SetAttr, SetTime, TimeSpec,
};
use proptest::prelude::*;
use tempfile::TempDir;

fn tree() -> (TempDir, PfsTree) {
    let dir = on_disk();
    let tree = PfsTree::open(dir.path()).unwrap();
    (dir, tree)
}

#[track_caller]
fn errno<T>(result: std::io::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("should have failed"),
        Err(error) => Errno::of(&error),
    }
}

/// What has a name in the root.
fn node(tree: &PfsTree, name: &[u8]) -> PfsNode {
    tree.node(tree.root(), name).unwrap()
}

fn list(tree: &PfsTree, dir: &PfsDir) -> Vec<(Vec<u8>, FileKind)> {
    let mut entries = Vec::new();
    tree.read_dir(dir, &mut |entry| entries.push((entry.name, entry.kind)))
        .unwrap();
    entries.sort_by(|a: &(Vec<u8>, FileKind), b| a.0.cmp(&b.0));
    entries
}

/// Who this process is; what it makes belongs to them.
fn me() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

#[test]
fn directories_are_opened_beneath_the_root_only() {
    let (top, tree) = tree();
    let outside = on_disk();
    std::fs::create_dir_all(top.path().join("a/b/c")).unwrap();
    symlink(outside.path(), top.path().join("out")).unwrap();
    symlink("a", top.path().join("in")).unwrap();
    let stat = tree
        .stat_dir(&tree.open_dir_path(b"a/b/c").unwrap())
        .unwrap();
    let real = std::fs::metadata(top.path().join("a/b/c")).unwrap();
    assert_eq!((stat.id.ino, stat.id.dev), (real.ino(), real.dev()));
    for (path, wanted) in [(&b""[..], "."), (b"/", "."), (b"/a/b", "a/b")] {
        let stat = tree.stat_dir(&tree.open_dir_path(path).unwrap()).unwrap();
        let real = std::fs::metadata(top.path().join(wanted)).unwrap();
        assert_eq!(stat.id.ino, real.ino());
    }
    for path in [&b"out"[..], b"in", b"in/b", b"out/x"] {
        let found = errno(tree.open_dir_path(path));
        assert!(matches!(found, Errno::ELOOP | Errno::ENOTDIR), "{found:?}");
    }
    for path in [
        &b".."[..],
        b"a/..",
        b"a/../..",
        b"a/./b",
        b"a//b",
        b"//a",
        b"a/",
        b"a\0",
    ] {
        assert_eq!(errno(tree.open_dir_path(path)), Errno::EINVAL);
    }
    assert_eq!(
        errno(tree.open_dir_path(&[b'a'; 5000])),
        Errno::ENAMETOOLONG
    );
    assert_eq!(errno(tree.open_dir(tree.root(), b"out")), Errno::ENOTDIR);
    assert_eq!(errno(tree.open_dir(tree.root(), b"..")), Errno::EINVAL);
    assert_eq!(errno(tree.open_dir(tree.root(), b"a/b")), Errno::EINVAL);
}

#[test]
fn only_regular_files_are_opened_and_nothing_is_waited_for() {
    let (top, tree) = tree();
    let root = tree.root();
    let (uid, gid) = me();
    std::fs::write(top.path().join("file"), "content").unwrap();
    std::fs::create_dir(top.path().join("dir")).unwrap();
    symlink("file", top.path().join("link")).unwrap();
    tree.mknod(root, b"fifo", libc::S_IFIFO | 0o600, 0, uid, gid)
        .unwrap();
    tree.mknod(root, b"socket", libc::S_IFSOCK | 0o600, 0, uid, gid)
        .unwrap();
    for write in [false, true] {
        assert_eq!(errno(tree.open_file(root, b"dir", write)), Errno::EISDIR);
        assert_eq!(errno(tree.open_file(root, b"link", write)), Errno::ELOOP);
        assert_eq!(errno(tree.open_file(root, b"fifo", write)), Errno::ENXIO);
        assert_eq!(errno(tree.open_file(root, b"socket", write)), Errno::ENXIO);
        assert_eq!(errno(tree.open_file(root, b"absent", write)), Errno::ENOENT);
        assert_eq!(errno(tree.open_file(root, b"../x", write)), Errno::EINVAL);
    }
    let mut text = String::new();
    let mut file = tree.open_file(root, b"file", true).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    file.write_all(b"!").unwrap();
    assert_eq!(
        tree.stat_file(&file).unwrap(),
        tree.stat(root, b"file").unwrap()
    );
    let mut read_only = tree.open_file(root, b"file", false).unwrap();
    assert!(read_only.write_all(b"x").is_err());
}

fn assert_inside(mut file: std::fs::File) {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "inside");
}

/// Someone swaps a directory, and a file, with links to outside as fast as they can.
#[test]
fn a_racer_that_swaps_links_leads_nowhere() {
    let (top, tree) = tree();
    let outside = on_disk();
    let secret = outside.path().join("sub");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("file"), "secret").unwrap();
    let at = |name: &str| top.path().join(name);
    std::fs::create_dir_all(at("dir/sub")).unwrap();
    std::fs::write(at("dir/sub/file"), "inside").unwrap();
    symlink(outside.path(), at("link")).unwrap();
    std::fs::write(at("file"), "inside").unwrap();
    symlink(secret.join("file"), at("file-link")).unwrap();
    let secret_dir = std::fs::metadata(&secret).unwrap().ino();
    let done = AtomicBool::new(false);
    let (mut dirs, mut files, mut refused) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let swapper = PfsTree::open(top.path()).unwrap();
            let root = swapper.root();
            while !done.load(Ordering::Relaxed) {
                let swap = RenameMode::Exchange;
                swapper.rename(root, b"dir", root, b"link", swap).unwrap();
                swapper
                    .rename(root, b"file", root, b"file-link", swap)
                    .unwrap();
            }
        });
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(1500) {
            match tree.open_dir_path(b"dir/sub") {
                Ok(dir) => {
                    assert_ne!(tree.stat_dir(&dir).unwrap().id.ino, secret_dir);
                    dirs += 1;
                }
                Err(_) => refused += 1,
            }
            if let Ok(dir) = tree.open_dir(tree.root(), b"dir") {
                let sub = tree.open_dir(&dir, b"sub").unwrap();
                assert_inside(tree.open_file(&sub, b"file", true).unwrap());
            }
            match tree.open_file(tree.root(), b"file", true) {
                Ok(file) => {
                    assert_inside(file);
                    files += 1;
                }
                Err(_) => refused += 1,
            }
            // Whatever it is by now: the link, never what it points to.
            let set = SetAttr {
                mtime: Some(SetTime::At(TimeSpec { sec: 5, nsec: 0 })),
                perm: Some(0o777),
                ..SetAttr::default()
            };
            let whatever = node(&tree, b"file");
            let _ = tree.set_attr(&whatever, &set);
            let _ = tree.set_xattr(&whatever, b"user.racer", b"1", 0);
        }
        done.store(true, Ordering::Relaxed);
    });
    // The race was run, and both sides of it were seen.
    assert!(
        dirs > 0 && files > 0 && refused > 0,
        "{dirs} {files} {refused}"
    );
    let untouched = std::fs::metadata(secret.join("file")).unwrap();
    assert_ne!(untouched.mtime(), 5);
    assert_ne!(untouched.permissions().mode() & 0o777, 0o777);
    let names = rustix::fs::listxattr(secret.join("file"), &mut [0; 100][..]);
    assert_eq!(names.unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn names_may_hold_any_bytes(names in prop::collection::hash_set(
        prop::collection::vec(any::<u8>().prop_filter("no / or NUL", |b| *b != 0 && *b != b'/'), 1..255)
            .prop_filter("no dots", |name| name != b"." && name != b".."),
        1..8,
    )) {
        let (top, tree) = tree();
        let root = tree.root();
        let (uid, gid) = me();
        for (index, name) in names.iter().enumerate() {
            match index % 3 {
                0 => tree.mkdir(root, name, 0o755, uid, gid).unwrap(),
                1 => tree.symlink(root, name, b"\xfe\x01 anywhere", uid, gid).unwrap(),
                _ => drop(tree.create_temporary(root, name, 0o600).unwrap()),
            }
        }
        let mut wanted: Vec<_> = names.iter().cloned().collect();
        wanted.sort();
        let found: Vec<_> = list(&tree, root).into_iter().map(|(name, _)| name).collect();
        prop_assert_eq!(&found, &wanted);
        for name in &names {
            let real = std::fs::symlink_metadata(top.path().join(OsStr::from_bytes(name))).unwrap();
            let stat = tree.stat(root, name).unwrap();
            prop_assert_eq!(stat.id.ino, real.ino());
            if stat.kind() == FileKind::Symlink {
                prop_assert_eq!(tree.readlink(&node(&tree, name)).unwrap(), b"\xfe\x01 anywhere");
            }
            match stat.kind() {
                FileKind::Directory => tree.rmdir(root, name).unwrap(),
                _ => tree.unlink(root, name).unwrap(),
            }
        }
        prop_assert!(list(&tree, root).is_empty());
    }
}

#[test]
fn bad_names_are_refused_everywhere() {
    let (_top, tree) = tree();
    let root = tree.root();
    let long = [b'n'; 256];
    for (name, wanted) in [
        (&b""[..], Errno::EINVAL),
        (b".", Errno::EINVAL),
        (b"..", Errno::EINVAL),
        (b"a/b", Errno::EINVAL),
        (b"a\0", Errno::EINVAL),
        (&long, Errno::ENAMETOOLONG),
    ] {
        let replace = RenameMode::Replace;
        assert_eq!(errno(tree.stat(root, name)), wanted);
        assert_eq!(errno(tree.open_file(root, name, false)), wanted);
        assert_eq!(errno(tree.create_temporary(root, name, 0o600)), wanted);
        assert_eq!(errno(tree.mkdir(root, name, 0o700, 0, 0)), wanted);
        assert_eq!(
            errno(tree.mknod(root, name, libc::S_IFIFO, 0, 0, 0)),
            wanted
        );
        assert_eq!(errno(tree.symlink(root, name, b"x", 0, 0)), wanted);
        assert_eq!(errno(tree.node(root, name)), wanted);
        assert_eq!(errno(tree.rmdir(root, name)), wanted);
        assert_eq!(errno(tree.unlink(root, name)), wanted);
        assert_eq!(errno(tree.link(root, name, root, b"x")), wanted);
        assert_eq!(errno(tree.link(root, b"x", root, name)), wanted);
        assert_eq!(errno(tree.rename(root, name, root, b"x", replace)), wanted);
        assert_eq!(errno(tree.rename(root, b"x", root, name, replace)), wanted);
    }
}

#[test]
fn listing_hides_temporary_names_and_tells_kinds() {
    let (_top, tree) = tree();
    let root = tree.root();
    let (uid, gid) = me();
    let temporary = PfsTree::temporary_name([1; 16], ObjectId(2), Generation(3));
    drop(tree.create_temporary(root, &temporary, 0o600).unwrap());
    let again = tree.create_temporary(root, &temporary, 0o600);
    assert_eq!(errno(again), Errno::EEXIST);
    tree.mkdir(root, b"dir", 0o755, uid, gid).unwrap();
    tree.symlink(root, b"link", b"dir", uid, gid).unwrap();
    tree.mknod(root, b"fifo", libc::S_IFIFO | 0o600, 0, uid, gid)
        .unwrap();
    tree.mknod(root, b"file", 0o644, 0, uid, gid).unwrap();
    let wanted = [
        (b"dir".to_vec(), FileKind::Directory),
        (b"fifo".to_vec(), FileKind::Fifo),
        (b"file".to_vec(), FileKind::Regular),
        (b"link".to_vec(), FileKind::Symlink),
    ];
    assert_eq!(list(&tree, root), wanted);
    assert_eq!(
        list(&tree, root),
        wanted,
        "a listing has no position to lose"
    );
    // Still there by name, for recovery.
    tree.stat(root, &temporary).unwrap();
    for bad in [libc::S_IFDIR, libc::S_IFLNK] {
        assert_eq!(
            errno(tree.mknod(root, b"x", bad, 0, uid, gid)),
            Errno::EINVAL
        );
    }
}

#[test]
fn a_large_directory_is_listed_whole() {
    let dir = in_memory();
    let tree = PfsTree::open(dir.path()).unwrap();
    for n in 0..5000 {
        let name = format!("{n:0100}");
        tree.mknod(tree.root(), name.as_bytes(), 0o600, 0, me().0, me().1)
            .unwrap();
    }
    assert_eq!(list(&tree, tree.root()).len(), 5000);
}

#[test]
fn renames_and_links() {
    let (top, tree) = tree();
    let root = tree.root();
    let write = |name: &str| std::fs::write(top.path().join(name), name).unwrap();
    let read = |name: &str| std::fs::read_to_string(top.path().join(name)).unwrap();
    write("a");
    write("b");
    tree.mkdir(root, b"dir", 0o755, me().0, me().1).unwrap();
    let dir = tree.open_dir(root, b"dir").unwrap();
    let taken = tree.rename(root, b"a", root, b"b", RenameMode::NoReplace);
    assert_eq!(errno(taken), Errno::EEXIST);
    tree.rename(root, b"a", root, b"b", RenameMode::Exchange)
        .unwrap();
    assert_eq!((read("a").as_str(), read("b").as_str()), ("b", "a"));
    tree.rename(root, b"a", &dir, b"c", RenameMode::NoReplace)
        .unwrap();
    tree.rename(root, b"b", &dir, b"c", RenameMode::Replace)
        .unwrap();
    assert_eq!(read("dir/c"), "a");
    tree.link(&dir, b"c", root, b"second").unwrap();
    assert_eq!(tree.stat(root, b"second").unwrap().nlink, 2);
    assert_eq!(errno(tree.link(&dir, b"c", root, b"second")), Errno::EEXIST);
    tree.symlink(root, b"sym", b"/etc/passwd", me().0, me().1)
        .unwrap();
    tree.link(root, b"sym", root, b"sym2").unwrap();
    assert_eq!(tree.stat(root, b"sym2").unwrap().kind(), FileKind::Symlink);
    assert_eq!(errno(tree.rmdir(root, b"dir")), Errno::ENOTEMPTY);
    tree.unlink(&dir, b"c").unwrap();
    tree.sync_dir(&dir).unwrap();
    tree.rmdir(root, b"dir").unwrap();
    tree.sync_dir(root).unwrap();
    tree.sync_tree(root).unwrap();
}

#[test]
fn attributes_are_set_on_the_entry_itself() {
    let (top, tree) = tree();
    let root = tree.root();
    std::fs::write(top.path().join("file"), "0123456789").unwrap();
    std::fs::create_dir(top.path().join("dir")).unwrap();
    symlink("file", top.path().join("link")).unwrap();
    let time = |sec| TimeSpec { sec, nsec: 123 };
    let set = SetAttr {
        perm: Some(0o4711),
        size: Some(4),
        atime: Some(SetTime::At(time(-5))),
        mtime: Some(SetTime::At(time(2_000_000_000))),
        ..SetAttr::default()
    };
    tree.set_attr(&node(&tree, b"file"), &set).unwrap();
    let stat = tree.stat(root, b"file").unwrap();
    assert_eq!((stat.perm(), stat.size), (0o4711, 4));
    assert_eq!((stat.atime, stat.mtime), (time(-5), time(2_000_000_000)));
    let target = stat;
    // Of the link, not of the file it points to.
    let times = SetAttr {
        mtime: Some(SetTime::At(time(77))),
        ..SetAttr::default()
    };
    tree.set_attr(&node(&tree, b"link"), &times).unwrap();
    assert_eq!(tree.stat(root, b"link").unwrap().mtime, time(77));
    assert_eq!(tree.stat(root, b"file").unwrap(), target);
    let perm = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    let refused = tree.set_attr(&node(&tree, b"link"), &perm);
    assert_eq!(errno(refused), Errno::EOPNOTSUPP);
    let size = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    let refused = tree.set_attr(&node(&tree, b"dir"), &size);
    assert_eq!(errno(refused), Errno::EISDIR);
    let dir = tree.open_dir(root, b"dir").unwrap();
    tree.set_attr_dir(&dir, &perm).unwrap();
    assert_eq!(tree.stat_dir(&dir).unwrap().perm(), 0o777);
    let file = tree.open_file(root, b"file", true).unwrap();
    tree.set_attr_file(
        &file,
        &SetAttr {
            perm: Some(0o600),
            ..set
        },
    )
    .unwrap();
    assert_eq!(tree.stat_file(&file).unwrap().perm(), 0o600);
}

#[test]
fn a_node_is_what_was_found_whatever_becomes_of_its_name() {
    let (top, tree) = tree();
    let root = tree.root();
    let at = |name: &str| top.path().join(name);
    std::fs::write(at("mine"), "mine").unwrap();
    std::fs::write(at("theirs"), "theirs").unwrap();
    symlink("mine", at("link")).unwrap();
    symlink("theirs", at("other")).unwrap();
    let (mine, link) = (node(&tree, b"mine"), node(&tree, b"link"));
    let swap = RenameMode::Exchange;
    tree.rename(root, b"mine", root, b"theirs", swap).unwrap();
    tree.rename(root, b"link", root, b"other", swap).unwrap();
    let before = tree.stat(root, b"mine").unwrap();
    let set = SetAttr {
        perm: Some(0o604),
        size: Some(2),
        mtime: Some(SetTime::At(TimeSpec { sec: 5, nsec: 0 })),
        ..SetAttr::default()
    };
    tree.set_attr(&mine, &set).unwrap();
    tree.set_xattr(&mine, b"user.a", b"1", 0).unwrap();
    assert_eq!(tree.list_xattr(&mine).unwrap(), [b"user.a".to_vec()]);
    assert_eq!(tree.get_xattr(&mine, b"user.a").unwrap(), b"1");
    tree.remove_xattr(&mine, b"user.a").unwrap();
    tree.open_node(&mine, true).unwrap().set_len(1).unwrap();
    assert_eq!(tree.readlink(&link).unwrap(), b"mine");
    assert_eq!(errno(tree.open_node(&link, false)), Errno::ELOOP);
    assert_eq!(tree.stat(root, b"mine").unwrap(), before);
    assert_eq!(tree.stat_node(&mine).unwrap().size, 1);
    assert_eq!(mine.found().size, 4);
    assert_eq!(std::fs::read(at("theirs")).unwrap(), b"m");
}

#[test]
fn the_same_content_is_told_from_another() {
    let (top, tree) = tree();
    let path = top.path().join("file");
    std::fs::write(&path, "one").unwrap();
    let before = tree.stat(tree.root(), b"file").unwrap();
    std::fs::read(&path).unwrap();
    assert!(before.same_content(&tree.stat(tree.root(), b"file").unwrap()));
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(&path, "two").unwrap();
    assert!(!before.same_content(&tree.stat(tree.root(), b"file").unwrap()));
    assert_ne!(before.id.btime_ns, 0);
}

#[test]
fn extended_attributes_of_files_directories_and_open_files() {
    let (top, tree) = tree();
    let root = tree.root();
    std::fs::write(top.path().join("file"), "").unwrap();
    symlink("file", top.path().join("link")).unwrap();
    let large = vec![7; 3000];
    tree.set_xattr(&node(&tree, b"file"), b"user.a", b"1", 0)
        .unwrap();
    tree.set_xattr(
        &node(&tree, b"file"),
        b"user.large",
        &large,
        libc::XATTR_CREATE as u32,
    )
    .unwrap();
    let again = tree.set_xattr(
        &node(&tree, b"file"),
        b"user.a",
        b"2",
        libc::XATTR_CREATE as u32,
    );
    assert_eq!(errno(again), Errno::EEXIST);
    let absent = tree.set_xattr(
        &node(&tree, b"file"),
        b"user.b",
        b"2",
        libc::XATTR_REPLACE as u32,
    );
    assert_eq!(errno(absent), Errno::ENODATA);
    assert_eq!(
        errno(tree.set_xattr(&node(&tree, b"file"), b"user.a", b"2", 3)),
        Errno::EINVAL
    );
    let file = tree.open_file(root, b"file", true).unwrap();
    assert_eq!(
        tree.get_xattr(&node(&tree, b"file"), b"user.a").unwrap(),
        b"1"
    );
    assert_eq!(tree.get_xattr_file(&file, b"user.large").unwrap(), large);
    let mut names = tree.list_xattr(&node(&tree, b"file")).unwrap();
    names.sort();
    assert_eq!(names, [b"user.a".to_vec(), b"user.large".to_vec()]);
    assert_eq!(tree.list_xattr_file(&file).unwrap().len(), 2);
    tree.set_xattr_file(&file, b"user.empty", b"", 0).unwrap();
    assert_eq!(
        tree.get_xattr(&node(&tree, b"file"), b"user.empty")
            .unwrap(),
        b""
    );
    tree.remove_xattr(&node(&tree, b"file"), b"user.a").unwrap();
    tree.remove_xattr_file(&file, b"user.empty").unwrap();
    assert_eq!(
        errno(tree.get_xattr(&node(&tree, b"file"), b"user.a")),
        Errno::ENODATA
    );
    // The link has none of its own, and the file's are not seen through it.
    assert!(tree.list_xattr(&node(&tree, b"link")).unwrap().is_empty());
    assert!(
        tree.set_xattr(&node(&tree, b"link"), b"user.a", b"1", 0)
            .is_err()
    );
    tree.set_xattr_dir(root, b"user.top", b"x", 0).unwrap();
    assert_eq!(tree.get_xattr_dir(root, b"user.top").unwrap(), b"x");
    assert_eq!(tree.list_xattr_dir(root).unwrap(), [b"user.top".to_vec()]);
    tree.remove_xattr_dir(root, b"user.top").unwrap();
}

#[test]
fn more_attribute_names_than_a_first_try_holds() {
    let dir = in_memory();
    let tree = PfsTree::open(dir.path()).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for n in 0..40 {
        let name = format!("user.{n:0100}");
        tree.set_xattr(&node(&tree, b"file"), name.as_bytes(), b"", 0)
            .unwrap();
    }
    assert_eq!(tree.list_xattr(&node(&tree, b"file")).unwrap().len(), 40);
}

#[test]
fn statfs_tells_space() {
    let (_top, tree) = tree();
    let stat = tree.statfs().unwrap();
    assert!(stat.blocks >= stat.blocks_free && stat.blocks_free >= stat.blocks_available);
    assert!(stat.block_bytes >= 512 && stat.name_bytes_max >= 255);
}

#[test]
fn an_unnamed_file_gets_a_name_that_is_free_and_no_other() {
    let (top, tree) = tree();
    let root = tree.root();
    let Some(file) = tree.create_unnamed(root, 0o640).unwrap() else {
        // This file system has none: that is remembered.
        assert!(tree.create_unnamed(root, 0o640).unwrap().is_none());
        skip("no files without a name here");
        return;
    };
    (&file).write_all(b"content").unwrap();
    assert!(list(&tree, root).is_empty(), "nobody sees it");
    std::fs::write(top.path().join("taken"), b"other").unwrap();
    assert_eq!(errno(tree.name_file(&file, root, b"taken")), Errno::EEXIST);
    assert_eq!(errno(tree.name_file(&file, root, b"a/b")), Errno::EINVAL);
    assert!(tree.name_file(&file, root, b"free").unwrap());
    assert_eq!(std::fs::read(top.path().join("free")).unwrap(), b"content");
    assert_eq!(std::fs::read(top.path().join("taken")).unwrap(), b"other");
    let (named, open) = (tree.stat(root, b"free").unwrap(), tree.stat_file(&file));
    assert_eq!((named.id, named.nlink), (open.unwrap().id, 1));
    assert_eq!(named.perm(), 0o640);
    drop(tree.create_unnamed(root, 0o600).unwrap());
    assert_eq!(
        list(&tree, root).len(),
        2,
        "one that gets no name leaves nothing"
    );
    tree.without_unnamed();
    assert!(tree.create_unnamed(root, 0o600).unwrap().is_none());
}
