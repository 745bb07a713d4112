//! Two nodes that change the same names in the same moment: one of them comes first.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use forebay_testkit::{Fleet, needs_nodes};
use rustix::fs::{CWD, Mode, RenameFlags, mkfifoat, renameat_with};

const ROUNDS: usize = 150;

/// Does both at once, each on a node of its own, in each round; how often both have succeeded.
fn both_succeed(
    fleet: &Fleet,
    prepare: impl Fn(&Path),
    one: impl Fn(&Path) -> io::Result<()> + Send + Copy,
    other: impl Fn(&Path) -> io::Result<()> + Send + Copy,
) -> Vec<PathBuf> {
    let name = |round: usize| format!("n{round}");
    (0..ROUNDS).for_each(|round| prepare(&fleet.mnt(1, name(round))));
    let barrier = Barrier::new(2);
    let run = |node: usize, act: &dyn Fn(&Path) -> io::Result<()>| {
        let each = (0..ROUNDS).map(|round| {
            barrier.wait();
            // Neither is always the first.
            let late = (round * 7 + node * 3) % 11 * 40;
            std::thread::sleep(Duration::from_micros(late as u64));
            act(&fleet.mnt(node, name(round))).is_ok()
        });
        each.collect::<Vec<bool>>()
    };
    let (one, other) = std::thread::scope(|scope| {
        let (one, other) = (
            scope.spawn(move || run(1, &one)),
            scope.spawn(move || run(2, &other)),
        );
        (one.join().expect("one"), other.join().expect("the other"))
    });
    let won = one.iter().zip(&other);
    let both = won.enumerate().filter(|(_, (one, other))| **one && **other);
    both.map(|(round, _)| fleet.mnt(1, name(round))).collect()
}

fn beside(path: &Path, with: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(with);
    name.into()
}

fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map(drop)
}

#[test]
fn promise_2_a_directory_is_removed_or_gets_a_name_and_not_both() {
    if needs_nodes() {
        return;
    }
    let rename_in = |dir: &Path| fs::rename(beside(dir, "t"), dir.join("in"));
    let link_in = |dir: &Path| fs::hard_link(beside(dir, "t"), dir.join("in"));
    let rmdir = |dir: &Path| fs::remove_dir(dir);
    let replace = |dir: &Path| fs::rename(beside(dir, "e"), dir);
    let prepare = |dir: &Path| {
        fs::create_dir(dir).expect("mkdir");
        fs::create_dir(beside(dir, "e")).expect("mkdir");
        fs::write(beside(dir, "t"), "content").expect("write");
    };
    let fleet = Fleet::new(2, "");
    assert_eq!(
        both_succeed(&fleet, prepare, rename_in, rmdir),
        [] as [PathBuf; 0]
    );
    drop(fleet);
    let fleet = Fleet::new(2, "");
    assert_eq!(
        both_succeed(&fleet, prepare, link_in, rmdir),
        [] as [PathBuf; 0]
    );
    drop(fleet);
    // What has replaced it first has got the name.
    let fleet = Fleet::new(2, "");
    for dir in both_succeed(&fleet, prepare, rename_in, replace) {
        assert_eq!(fs::read(dir.join("in")).expect("read"), b"content");
    }
}

#[test]
fn promise_2_of_two_nodes_that_make_one_name_one_has_made_it() {
    if needs_nodes() {
        return;
    }
    let move_dir = |path: &Path| {
        renameat_with(CWD, beside(path, "d"), CWD, path, RenameFlags::NOREPLACE)?;
        Ok(())
    };
    type Make = fn(&Path) -> io::Result<()>;
    let others: [(&str, Make); 4] = [
        ("mkdir", |path| fs::create_dir(path)),
        ("symlink", |path| symlink("x", path)),
        ("mkfifo", |path| Ok(mkfifoat(CWD, path, Mode::RUSR)?)),
        ("rename", move_dir),
    ];
    for (what, make) in others {
        let fleet = Fleet::new(2, "");
        let prepare = |path: &Path| {
            if what == "rename" {
                fs::create_dir(beside(path, "d")).expect("mkdir");
            }
        };
        let both = both_succeed(&fleet, prepare, create, make);
        assert_eq!(both, [] as [PathBuf; 0], "{what}");
    }
}

#[test]
fn promise_8_what_is_open_is_open_after_two_stops_in_a_row() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    let path = fleet.mnt(1, "f");
    fs::write(&path, "before").expect("write");
    fleet.run(
        1,
        &["stage-out".as_ref(), "--wait".as_ref(), path.as_os_str()],
    );
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    for _ in 0..2 {
        fleet.stop_server();
        fleet.start_server();
    }
    file.write_all_at(b", after", 6).expect("write");
    assert_eq!(fs::read(&path).expect("read"), b"before, after");
}
