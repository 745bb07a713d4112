use super::*;

/// A local directory answers by then on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with `pfs`, `mnt`, `ssd` and a file; the state folder is yet to be made.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("tempdir");
        for name in ["pfs", "pfs/sub", "mnt", "ssd"] {
            std::fs::create_dir(folder.path().join(name)).expect("mkdir");
        }
        std::fs::write(folder.path().join("file"), "x").expect("write");
        Place { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        std::fs::canonicalize(self.folder.path())
            .expect("canonical")
            .join(name)
    }

    fn settings(&self, pfs: &str, mount: &str, state: &str) -> Settings {
        Settings::new(self.at(pfs), self.at(mount), self.at(state))
    }
}

fn ssd(dir: PathBuf) -> forebay_server::SsdSetting {
    forebay_server::SsdSetting {
        dir,
        capacity_bytes: None,
    }
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, Failure>, part: &str) {
    let failure = result.expect_err(part);
    assert!(
        failure.message.contains(part),
        "{:?} does not say {part:?}",
        failure.message
    );
    assert!(
        !failure.message.contains('\n'),
        "{:?} is not one line",
        failure.message
    );
    assert_eq!(failure.exit, crate::exit::Exit::Fatal);
}

#[test]
fn the_pfs_must_be_a_directory_that_can_be_read_and_written() {
    let place = Place::new();
    let check = |pfs: &Path| check_pfs(pfs, PATIENCE);
    assert_eq!(
        check(&place.at("pfs/../pfs")).expect("a directory"),
        place.at("pfs")
    );
    assert_refused(
        check(&place.at("none")),
        "No such file or directory; give an existing",
    );
    assert_refused(check(&place.at("file")), "is a file");
    assert_refused(check(Path::new("/proc/sys")), "/proc/sys: the PFS");
}

#[test]
fn the_state_folder_may_be_missing_but_not_its_parent() {
    let place = Place::new();
    assert_eq!(
        check_state(&place.at("new")).expect("to be made"),
        place.at("new")
    );
    assert!(!place.at("new").exists());
    assert_eq!(
        check_state(&place.at("ssd")).expect("there"),
        place.at("ssd")
    );
    assert_refused(check_state(&place.at("file")), "is a file");
    assert_refused(
        check_state(&place.at("none/state")),
        "make that folder first",
    );
    assert_refused(check_state(&place.at("file/state")), "Not a directory");
}

#[test]
fn the_mount_point_must_be_a_free_directory() {
    let place = Place::new();
    let check = |name: &str, table: &[MountEntry]| {
        let mut ground = Ground::default();
        check_mount(&place.at(name), &place.at("state"), table, &mut ground)
            .map(|path| (path, ground.warnings.len()))
    };
    assert_eq!(check("mnt", &[]).expect("free"), (place.at("mnt"), 0));
    assert_eq!(check("pfs", &[]).expect("free, not empty").1, 1);
    assert_refused(check("none", &[]), "make an empty directory for it");
    assert_refused(check("file", &[]), "is a file");
    let mounted = |fs_type: &str, source: PathBuf| MountEntry {
        root: "/".into(),
        point: place.at("mnt"),
        fs_type: fs_type.into(),
        source,
        options: Vec::new(),
    };
    assert_refused(
        check("mnt", &[mounted("nfs", "server:/x".into())]),
        "busy: nfs (server:/x) is mounted there",
    );
    assert_refused(
        check("mnt", &[mounted(mounts::FOREBAY_TYPE, "/other".into())]),
        "forebay down --state /other",
    );
    std::fs::write(place.at("ssd").join(state::MOUNT), "/bb\n").expect("write");
    let again = format!(
        "already a Forebay mount; `umount {}` ends it",
        place.at("mnt").display()
    );
    let shown = mounted(mounts::FOREBAY_TYPE, place.at("ssd"));
    assert_refused(check("mnt", std::slice::from_ref(&shown)), &again);
    std::fs::write(place.at("ssd").join(state::LOCK), "1").expect("write");
    let left = format!("umount -l {}", place.at("mnt").display());
    assert_refused(check("mnt", &[shown]), &left);
    let own = mounted(mounts::FOREBAY_TYPE, place.at("state"));
    check("mnt", &[own]).expect("left by a dead instance of the same state");
}

#[test]
fn nothing_lies_in_the_pfs_or_in_the_mount() {
    let place = Place::new();
    check_relations(&place.settings("pfs", "mnt", "state")).expect("apart");
    let refused = |pfs, mount, state, part: &str| {
        assert_refused(check_relations(&place.settings(pfs, mount, state)), part);
    };
    refused("pfs", "pfs", "state", "the same directory");
    refused(
        "pfs",
        "pfs/sub",
        "state",
        "the mount point lies inside the PFS",
    );
    refused(
        "pfs/sub",
        "pfs",
        "state",
        "the PFS lies inside the mount point",
    );
    refused(
        "pfs",
        "mnt",
        "pfs/state",
        "the state folder lies inside the PFS",
    );
    refused(
        "pfs",
        "mnt",
        "mnt/state",
        "the state folder lies inside the mount point",
    );
    let mut settings = place.settings("pfs", "mnt", "state");
    settings.ssd.push(ssd(place.at("pfs/sub")));
    assert_refused(
        check_relations(&settings),
        "the flash directory lies inside the PFS",
    );
}

#[test]
fn flash_directories_are_there_writable_and_different() {
    let place = Place::new();
    let check = |dirs: &[&str]| {
        let mut settings = place.settings("pfs", "mnt", "state");
        settings.ssd = dirs.iter().map(|dir| ssd(place.at(dir))).collect();
        check_ssd(&mut settings)
    };
    check(&["ssd", "pfs"]).expect("two directories");
    assert_refused(check(&["none"]), "make the directory first");
    assert_refused(check(&["file"]), "is a file");
    assert_refused(check(&["ssd", "ssd/../ssd"]), "is given twice");
    std::fs::create_dir(place.at("ssd/inner")).expect("mkdir");
    assert_refused(check(&["ssd", "ssd/inner"]), "lies inside the other");
    assert_refused(check(&["ssd/inner", "ssd"]), "lies inside the other");
    assert_refused(check(&["ssd:1GiB"]), "a size is given twice");
    assert_refused(check(&["ssd:4QiB"]), "'4QiB' has no known unit");
    assert_refused(check(&["state"]), "make the directory first");
    std::fs::create_dir(place.at("state")).expect("mkdir");
    assert_refused(check(&["state"]), "is the state folder");
}

#[test]
fn a_server_is_told_of_the_keys_of_its_file() {
    let place = Place::new();
    let mut settings = place.settings("pfs", "mnt", "state");
    settings.ssd = vec![ssd(place.at("none"))];
    assert_refused(check_ssd(&mut settings), "--ssd /");
    settings.mount = None;
    let refused = check_ssd(&mut settings).expect_err("not there").message;
    assert!(refused.starts_with("ssd /"), "{refused}");
}

#[test]
fn a_state_folder_made_in_vain_is_taken_away() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let state = place.at("state");
    assert!(make_state(&state).expect("made"));
    let mode = std::fs::metadata(&state)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o711);
    assert!(!make_state(&state).expect("there"));
    std::fs::write(state.join("forebay.lock"), "1").expect("write");
    unmake_state(&state);
    assert!(!state.exists());
}

#[test]
fn a_mount_hides_no_state_folder() {
    let place = Place::new();
    let check =
        |mount: &str, state: &str| check_mount_and_state(&place.at(mount), &place.at(state));
    for (mount, state) in [
        ("pfs/sub", "pfs/sub"),
        ("pfs/sub", "pfs"),
        ("pfs", "pfs/sub"),
    ] {
        assert_refused(check(mount, state), "choose another directory");
    }
    check("mnt", "ssd").expect("apart");
    check("mnt", "not-on-this-node").expect("elsewhere");
}
