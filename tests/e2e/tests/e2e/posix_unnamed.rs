//! Promise 2, files without a name: `O_TMPFILE`.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use forebay_testkit::{
    Cluster, LONG, listing, needs_root, pattern, read_all_at, run_bounded, wait_until, write_file,
};
use rustix::fs::{AtFlags, CWD, linkat};
use rustix::io::Errno;

/// The user `nobody`, by number.
const NOBODY: u32 = 65534;
const LEN: usize = 300_000;

/// With the kernel's passthrough where it can be had, and without.
fn both_ways(test: impl Fn(&mut Cluster)) {
    test(&mut Cluster::builder().lazy().up());
    test(&mut Cluster::builder().lazy().flag("--no-passthrough").up());
}

fn unnamed(dir: &Path, flags: i32) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).mode(0o640);
    let file = options.custom_flags(libc::O_TMPFILE | flags).open(dir);
    file.unwrap_or_else(|error| panic!("O_TMPFILE in {}: {error}", dir.display()))
}

/// By the way that needs no privilege.
fn link(file: &File, to: &Path) -> Result<(), Errno> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW)
}

fn links(file: &File) -> u64 {
    file.metadata().expect("fstat").nlink()
}

fn used_bytes(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let tiers = status["tiers"].as_array().expect("tiers").iter();
    let tiers = tiers.filter(|tier| tier["name"] != "pfs");
    let used = tiers.map(|tier| tier["used_bytes"].as_u64().expect("bytes"));
    used.sum()
}

#[test]
fn promise_2_a_file_without_a_name_gets_its_first_by_a_link() {
    both_ways(|cluster| {
        fs::create_dir(cluster.mnt("d")).expect("mkdir");
        write_file(&cluster.mnt("taken"), pattern(2600, 10));
        write_file(&cluster.pfs("taken-below"), pattern(2601, 10));
        let content = pattern(2602, LEN);
        let file = unnamed(&cluster.mnt("d"), 0);
        assert_eq!(links(&file), 0);
        content.write(&file);
        assert_eq!(file.metadata().expect("fstat").len(), LEN as u64);
        assert_eq!(read_all_at(&file), content.bytes());
        assert!(listing(&cluster.mnt("d")).is_empty());
        for taken in ["taken", "taken-below"] {
            assert_eq!(link(&file, &cluster.mnt(taken)), Err(Errno::EXIST));
            assert_eq!(links(&file), 0);
        }
        link(&file, &cluster.mnt("d/first")).expect("link");
        assert_eq!(links(&file), 1);
        let found = fs::metadata(cluster.mnt("d/first")).expect("stat");
        assert_eq!(found.ino(), file.metadata().expect("fstat").ino());
        content.assert_in(&cluster.mnt("d/first"));
        // A further name is a hard link, and needs no descriptor.
        fs::hard_link(cluster.mnt("d/first"), cluster.mnt("second")).expect("link");
        assert_eq!(links(&file), 2);
        file.write_all_at(b"changed", 0).expect("write");
        let mode = PermissionsExt::from_mode(0o604);
        file.set_permissions(mode).expect("chmod");
        drop(file);
        cluster.drain("");
        let expected = [b"changed", &content.bytes()[7..]].concat();
        let facts = ["d/first", "second"].map(|name| {
            assert!(
                fs::read(cluster.pfs(name)).expect("read") == expected,
                "{name}"
            );
            let meta = fs::metadata(cluster.pfs(name)).expect("stat");
            assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o604, 2));
            meta.ino()
        });
        assert_eq!(facts[0], facts[1]);
    });
}

#[test]
fn promise_2_a_link_by_descriptor_and_o_excl_do_what_they_do_elsewhere() {
    if needs_root() {
        return;
    }
    both_ways(|cluster| {
        let file = unnamed(&cluster.mnt(""), 0);
        pattern(2610, LEN).write(&file);
        let empty = linkat(&file, "", CWD, cluster.mnt("by-fd"), AtFlags::EMPTY_PATH);
        empty.expect("link");
        assert_eq!(links(&file), 1);
        let never = unnamed(&cluster.mnt(""), libc::O_EXCL);
        assert_eq!(link(&never, &cluster.mnt("never")), Err(Errno::NOENT));
        // A file that has lost its last name gets none again.
        fs::remove_file(cluster.mnt("by-fd")).expect("unlink");
        assert_eq!(link(&file, &cluster.mnt("again")), Err(Errno::NOENT));
        assert!(listing(&cluster.mnt("")).is_empty());
    });
}

#[test]
fn promise_2_a_file_without_a_name_that_gets_none_leaves_nothing() {
    both_ways(|cluster| {
        for len in [0, LEN, 3 << 20] {
            let file = unnamed(&cluster.mnt(""), 0);
            pattern(2620, len).write(&file);
            file.sync_all().expect("fsync");
            drop(file);
        }
        wait_until("its space is given back", || used_bytes(cluster) == 0);
        let file = unnamed(&cluster.mnt(""), 0);
        pattern(2621, LEN).write(&file);
        file.sync_all().expect("fsync");
        let linked = unnamed(&cluster.mnt(""), 0);
        pattern(2622, LEN).write(&linked);
        link(&linked, &cluster.mnt("linked")).expect("link");
        cluster.kill9();
        drop((file, linked));
        cluster.start();
        assert_eq!(listing(&cluster.mnt("")), ["linked"]);
        pattern(2622, LEN).assert_in(&cluster.mnt("linked"));
        cluster.drain("");
        assert_eq!(listing(&cluster.pfs("")), ["linked"]);
        wait_until("its space is given back", || {
            used_bytes(cluster) < 2 * LEN as u64
        });
        assert_eq!(cluster.status()["errors"].to_string(), "[]");
    });
}

#[test]
fn promise_8_kill_9_loses_no_file_that_has_got_its_first_name() {
    both_ways(|cluster| {
        let file = unnamed(&cluster.mnt(""), 0);
        pattern(2630, LEN).write(&file);
        link(&file, &cluster.mnt("f")).expect("link");
        cluster.kill9();
        drop(file);
        cluster.start();
        pattern(2630, LEN).assert_in(&cluster.mnt("f"));
        assert_eq!(cluster.where_state("f"), "dirty");
        cluster.drain("f");
        pattern(2630, LEN).assert_in(&cluster.pfs("f"));
    });
}

#[test]
fn promise_3_an_fsync_before_the_first_name_counts_with_that_of_its_directory() {
    if needs_root() {
        return;
    }
    const MIB: u64 = 1 << 20;
    let rules = "[[rule]]\npath = \"/safe/**\"\ndurability = \"pfs\"\n";
    for dram in ["", "64MiB"] {
        let builder = Cluster::builder().config(rules).lazy().dram(dram);
        let mut cluster = builder
            .ssd("64MiB")
            .disk("ssd", "ext4", 96 * MIB)
            .disk("state", "ext4", 256 * MIB)
            .up();
        fs::create_dir(cluster.mnt("safe")).expect("mkdir");
        let content = pattern(2640, LEN);
        let mut held = Vec::new();
        for dir in ["", "safe"] {
            let file = unnamed(&cluster.mnt(dir), 0);
            content.write(&file);
            file.sync_all().expect("fsync");
            link(&file, &cluster.mnt(dir).join("f")).expect("link");
            let opened = File::open(cluster.mnt(dir)).expect("open");
            opened.sync_all().expect("fsync of the directory");
            held.push(file);
        }
        content.assert_in(&cluster.pfs("safe/f"));
        cluster.cut_power();
        drop(held);
        cluster.start();
        for name in ["f", "safe/f"] {
            content.assert_in(&cluster.mnt(name));
        }
        // Of the one on the PFS the copy here, which may have been written since, is given up, and
        // that is said.
        let errors = cluster.status()["errors"].to_string();
        assert!(!errors.contains("/mnt/f\""), "{errors}");
    }
}

/// Runs a program in a folder as another user.
fn python_as(user: u32, folder: &Path, program: &str) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", program]).current_dir(folder);
    let output = run_bounded(command.uid(user).gid(user), LONG);
    output.ok().stdout.trim().to_string()
}

#[test]
fn promise_2_programs_and_users_make_temporary_files_without_names() {
    if needs_root() {
        return;
    }
    both_ways(|cluster| {
        fs::create_dir(cluster.mnt("shared")).expect("mkdir");
        chown(cluster.mnt("shared"), Some(0), Some(4242)).expect("chown");
        let mode = PermissionsExt::from_mode(0o2777);
        fs::set_permissions(cluster.mnt("shared"), mode).expect("chmod");
        let own = "import os, tempfile\n\
            with tempfile.TemporaryFile(dir='.') as f:\n\
            \x20   f.write(b'x' * 100000); f.flush(); f.seek(0)\n\
            \x20   assert f.read() == b'x' * 100000\n\
            \x20   print(os.fstat(f.fileno()).st_nlink, os.listdir('.'), tempfile._O_TMPFILE_WORKS)";
        for user in [0, NOBODY] {
            let said = python_as(user, &cluster.mnt("shared"), own);
            assert_eq!(said, "0 [] True", "user {user}");
        }
        let given = "import os\n\
            os.umask(0o027)\n\
            fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o666)\n\
            os.write(fd, b'mine')\n\
            root = os.open('/', os.O_RDONLY)\n\
            os.link(f'/proc/self/fd/{fd}', 'mine', src_dir_fd=root, follow_symlinks=True)\n\
            print(os.fstat(fd).st_nlink)";
        assert_eq!(python_as(NOBODY, &cluster.mnt("shared"), given), "1");
        let refused = "import os\n\
            try: os.open('.', os.O_TMPFILE | os.O_RDWR)\n\
            except PermissionError: print('refused')";
        fs::create_dir(cluster.mnt("closed")).expect("mkdir");
        assert_eq!(
            python_as(NOBODY, &cluster.mnt("closed"), refused),
            "refused"
        );
        cluster.drain("");
        let meta = fs::metadata(cluster.pfs("shared/mine")).expect("stat");
        assert_eq!(
            (meta.uid(), meta.gid(), meta.mode() & 0o7777),
            (NOBODY, 4242, 0o640)
        );
        assert_eq!(fs::read(cluster.pfs("shared/mine")).expect("read"), b"mine");
    });
}

#[test]
fn promise_2_a_directory_that_is_gone_has_no_files_without_names() {
    let cluster = Cluster::builder().lazy().up();
    fs::create_dir(cluster.mnt("d")).expect("mkdir");
    let dir = File::open(cluster.mnt("d")).expect("open");
    let mut file = unnamed(&cluster.mnt("d"), 0);
    file.write_all(b"content").expect("write");
    fs::remove_dir(cluster.mnt("d")).expect("it is empty");
    let inside = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mut options = File::options();
    let options = options.write(true).custom_flags(libc::O_TMPFILE);
    let error = options.open(&inside).expect_err("it is gone");
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    // What was made in it is still somebody's, and may go elsewhere.
    link(&file, &cluster.mnt("elsewhere")).expect("link");
    drop(file);
    cluster.drain("");
    assert_eq!(
        fs::read(cluster.pfs("elsewhere")).expect("read"),
        b"content"
    );
}
