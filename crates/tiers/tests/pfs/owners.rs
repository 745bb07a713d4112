//! Owners: whose what is made is, and with whose permissions.

use super::*;

const USER: u32 = 54_321;
const GROUP: u32 = 54_322;

fn owner(path: &Path) -> (u32, u32) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

#[test]
fn what_is_made_belongs_to_whom_it_shall() {
    if needs_root() {
        return;
    }
    let (top, tree) = tree();
    let root = tree.root();
    std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for acting in [false, true] {
        let _guard = acting.then(|| ActAs::user(USER, GROUP, &[]).unwrap());
        let name = |kind: &str| format!("{kind}-{acting}").into_bytes();
        tree.mkdir(root, &name("dir"), 0o750, USER, GROUP).unwrap();
        tree.symlink(root, &name("link"), b"/etc/shadow", USER, GROUP)
            .unwrap();
        tree.mknod(root, &name("fifo"), libc::S_IFIFO | 0o640, 0, USER, GROUP)
            .unwrap();
        tree.mknod(root, &name("suid"), libc::S_IFREG | 0o4750, 0, USER, GROUP)
            .unwrap();
    }
    let device = libc::makedev(1, 300) as u32;
    tree.mknod(root, b"device", libc::S_IFCHR | 0o600, device, USER, GROUP)
        .unwrap();
    assert_eq!(tree.stat(root, b"device").unwrap().rdev, device);
    for (name, _) in list(&tree, root) {
        let path = top.path().join(OsStr::from_bytes(&name));
        assert_eq!(owner(&path), (USER, GROUP), "{path:?}");
    }
    assert_ne!(owner(Path::new("/etc/shadow")), (USER, GROUP));
    assert_eq!(tree.stat(root, b"suid-false").unwrap().perm(), 0o4750);
    assert_eq!(tree.stat(root, b"dir-true").unwrap().perm(), 0o750);

    // A set-group-id directory passes its group on.
    std::fs::create_dir(top.path().join("shared")).unwrap();
    std::os::unix::fs::chown(top.path().join("shared"), Some(0), Some(777)).unwrap();
    let mode = std::fs::Permissions::from_mode(0o2777);
    std::fs::set_permissions(top.path().join("shared"), mode).unwrap();
    let shared = tree.open_dir(root, b"shared").unwrap();
    tree.mkdir(&shared, b"sub", 0o755, USER, GROUP).unwrap();
    let sub = tree.stat(&shared, b"sub").unwrap();
    assert_eq!((sub.uid, sub.gid, sub.perm()), (USER, 777, 0o2755));
}

#[test]
fn acting_as_a_user_has_that_users_permissions_only() {
    if needs_root() {
        return;
    }
    let (top, tree) = tree();
    let root = tree.root();
    std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = top.path().join("file");
    std::fs::write(&path, "x").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(0), Some(777)).unwrap();
    let open = |write| tree.open_file(root, b"file", write).map(drop);
    {
        let _guard = ActAs::user(USER, GROUP, &[]).unwrap();
        assert_eq!(errno(open(false)), Errno::EACCES);
        assert_eq!(errno(tree.unlink(root, b"file")), Errno::EACCES);
        assert_eq!(
            errno(tree.get_xattr(&node(&tree, b"file"), b"user.a")),
            Errno::EACCES
        );
        let set = SetAttr {
            perm: Some(0o777),
            ..SetAttr::default()
        };
        let refused = tree.set_attr(&node(&tree, b"file"), &set);
        assert_eq!(errno(refused), Errno::EPERM);
        {
            // Of the group, by a supplementary one; nested.
            let _member = ActAs::user(USER, GROUP, &[5, 777]).unwrap();
            open(false).unwrap();
            assert_eq!(errno(open(true)), Errno::EACCES);
        }
        assert_eq!(errno(open(false)), Errno::EACCES);
    }
    open(true).unwrap();
    // Other threads stay who they are.
    let (acting, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            acting.wait();
            open(true).unwrap();
            done.wait();
        });
        let _guard = ActAs::user(USER, GROUP, &[]).unwrap();
        acting.wait();
        assert_eq!(errno(open(false)), Errno::EACCES);
        done.wait();
    });
}

#[test]
fn acting_as_a_user_ends_with_the_guard() {
    if needs_root() {
        return;
    }
    let (top, tree) = tree();
    let root = tree.root();
    let path = top.path().join("file");
    std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&path, "x").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let open = |write| tree.open_file(root, b"file", write).map(drop);
    let caught = std::panic::catch_unwind(|| {
        let _guard = ActAs::user(USER, GROUP, &[]).unwrap();
        panic!("on purpose");
    });
    assert!(caught.is_err());
    open(true).unwrap();
    let groups = rustix::process::getgroups().unwrap();
    drop(ActAs::user(USER, GROUP, &[1, 2, 3]).unwrap());
    assert_eq!(rustix::process::getgroups().unwrap(), groups);
    assert_eq!(errno(ActAs::user(u32::MAX, GROUP, &[])), Errno::EINVAL);
    // An owner may change attributes of what is theirs.
    std::os::unix::fs::chown(&path, Some(USER), Some(GROUP)).unwrap();
    let _guard = ActAs::user(USER, GROUP, &[]).unwrap();
    std::fs::metadata(top.path()).unwrap();
    let set = SetAttr {
        perm: Some(0o600),
        size: Some(100),
        mtime: Some(SetTime::At(TimeSpec { sec: 9, nsec: 0 })),
        ..SetAttr::default()
    };
    tree.set_attr(&node(&tree, b"file"), &set).unwrap();
    tree.set_xattr(&node(&tree, b"file"), b"user.mine", b"1", 0)
        .unwrap();
    assert_eq!(
        tree.get_xattr(&node(&tree, b"file"), b"user.mine").unwrap(),
        b"1"
    );
}

#[test]
fn a_directory_that_may_only_be_searched_is_passed_through() {
    if needs_root() {
        return;
    }
    let (top, tree) = tree();
    std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::create_dir(top.path().join("mine")).unwrap();
    std::os::unix::fs::chown(top.path().join("mine"), Some(USER), Some(GROUP)).unwrap();
    let _guard = ActAs::user(USER, GROUP, &[]).unwrap();
    let dir = tree.open_dir_path(b"mine").unwrap();
    tree.mkdir(&dir, b"sub", 0o700, USER, GROUP).unwrap();
    assert_eq!(list(&tree, &dir).len(), 1);
    let refused = tree.read_dir(tree.root(), &mut |_| ());
    assert_eq!(errno(refused), Errno::EACCES);
}

#[test]
fn publishing_keeps_metadata() {
    let (top, tree) = tree();
    let root = tree.root();
    let name = PfsTree::temporary_name([1; 16], ObjectId(2), Generation(3));
    let file = tree.create_temporary(root, &name, 0o600).unwrap();
    (&file).write_all(b"content").unwrap();
    let time = |sec| TimeSpec { sec, nsec: 5 };
    let (uid, gid) = if is_root() { (USER, GROUP) } else { me() };
    let xattrs = [
        (b"user.app".to_vec(), b"solver".to_vec()),
        // No such name space: a warning, not a failure and not silence.
        (b"nonsense.app".to_vec(), b"x".to_vec()),
        (b"user.version".to_vec(), b"7".to_vec()),
    ];
    let wanted = Appearance {
        uid,
        gid,
        perm: 0o6751,
        xattrs: &xattrs,
        atime: time(11),
        mtime: time(22),
    };
    let now = tree.stat_file(&file).unwrap();
    let warnings = apply_metadata(&tree, &file, &now, &wanted).unwrap();
    assert_eq!(
        warnings,
        [MetadataWarning::Xattr {
            name: b"nonsense.app".to_vec(),
            errno: Errno::EOPNOTSUPP,
        }]
    );
    assert!(warnings[0].to_string().contains("nonsense.app"));
    tree.rename(root, &name, root, b"file", RenameMode::NoReplace)
        .unwrap();
    let stat = tree.stat(root, b"file").unwrap();
    assert_eq!((stat.uid, stat.gid, stat.perm()), (uid, gid, 0o6751));
    assert_eq!((stat.atime, stat.mtime), (time(11), time(22)));
    assert_eq!(
        tree.get_xattr(&node(&tree, b"file"), b"user.app").unwrap(),
        b"solver"
    );
    assert_eq!(
        tree.get_xattr(&node(&tree, b"file"), b"user.version")
            .unwrap(),
        b"7"
    );
    assert!(
        top.path()
            .join("file")
            .metadata()
            .unwrap()
            .file_type()
            .is_file()
    );
    assert!(
        !top.path()
            .join("file")
            .metadata()
            .unwrap()
            .file_type()
            .is_fifo()
    );
}
