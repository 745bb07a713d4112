//! Coherence of several nodes: what one changes, all see.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_testkit::{Fleet, LONG, needs_nodes, pattern, write_file};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;

const MIB: usize = 1 << 20;

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn promise_2_a_read_after_a_completed_write_sees_it_on_every_node() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let (one, two) = (fleet.mnt(1, "f"), fleet.mnt(2, "f"));
    write_file(&one, pattern(1, MIB));
    pattern(1, MIB).assert_in(&two);
    // Open on both, written by turns: no close in between.
    let files = [&one, &two].map(|path| {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.expect("open")
    });
    for turn in 0..40u8 {
        let (writer, reader) = (usize::from(turn % 2), usize::from((turn + 1) % 2));
        let at = u64::from(turn) * 1000;
        files[writer]
            .write_all_at(&[turn; 3000], at)
            .expect("write");
        let mut read = [0; 3000];
        files[reader].read_exact_at(&mut read, at).expect("read");
        assert_eq!(read, [turn; 3000], "turn {turn}");
        files[writer].set_len(at + 5000).expect("truncate");
        let seen = files[reader].metadata().expect("stat").len();
        assert_eq!(seen, at + 5000, "turn {turn}");
    }
}

#[test]
fn promise_2_names_and_attributes_are_the_same_on_every_node_at_once() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let at = |node, path: &str| fleet.mnt(node, path);
    for round in 0..20 {
        let name = format!("d{round}");
        fs::create_dir(at(1, &name)).expect("mkdir");
        fs::write(at(2, &format!("{name}/a")), b"content").expect("write");
        assert_eq!(
            fs::read(at(1, &format!("{name}/a"))).expect("read"),
            b"content"
        );
        let (from, to) = (format!("{name}/a"), format!("{name}/b"));
        fs::rename(at(1, &from), at(1, &to)).expect("rename");
        assert_eq!(errno(fs::metadata(at(2, &from))), Some(libc::ENOENT));
        assert_eq!(fs::metadata(at(2, &to)).expect("stat").len(), 7);
        fs::hard_link(at(2, &to), at(2, &from)).expect("link");
        assert_eq!(fs::metadata(at(1, &to)).expect("stat").nlink(), 2);
        fs::remove_file(at(1, &to)).expect("unlink");
        assert_eq!(errno(File::open(at(2, &to))), Some(libc::ENOENT));
        let exclusive = |node| {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(at(node, &to))
        };
        assert!(exclusive(2).is_ok());
        assert_eq!(errno(exclusive(1)), Some(libc::EEXIST));
    }
}

/// Says at its end that all is over, also where that is a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Calls `change` with 1, 2, ... for a while, and `look` again and again on other threads with the
/// last number whose change has been answered before the look.
fn look_while_changing(change: impl Fn(u64), look: impl Fn(u64) + Sync) {
    const SPAN: Duration = Duration::from_secs(3);
    const CHANGES: u64 = 100;
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let lookers = [(); 3].map(|()| {
            scope.spawn(|| {
                let mut looks = 0u64;
                while !over.load(Ordering::SeqCst) {
                    look(done.load(Ordering::SeqCst));
                    looks += 1;
                }
                looks
            })
        });
        let begun = Instant::now();
        let end = Over(&over);
        for number in 1.. {
            change(number);
            done.store(number, Ordering::SeqCst);
            if begun.elapsed() > SPAN && number > CHANGES {
                break;
            }
            // Now and then there is time to believe something.
            if number % 4 == 0 {
                std::thread::sleep(Duration::from_millis(number % 7));
            }
        }
        drop(end);
        for looker in lookers {
            assert!(looker.join().expect("looks right") > 100);
        }
    });
}

#[test]
fn promise_2_what_a_node_believes_is_recalled_before_a_change_is_answered() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let at = |node, path: &str| fleet.mnt(node, path);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(at(2, "log"));
    let log = log.expect("create");
    let open = File::open(at(1, "log")).expect("open");
    look_while_changing(
        |_| (&log).write_all(&[7; 10]).expect("append"),
        |done| {
            assert!(fs::metadata(at(1, "log")).expect("stat").len() >= 10 * done);
            assert!(open.metadata().expect("fstat").len() >= 10 * done);
        },
    );
    // A mode that only grows, in steps.
    fs::write(at(2, "mode"), b"").expect("create");
    let mode = |number: u64| 0o400 + (number.min(0o377)) as u32;
    look_while_changing(
        |number| {
            let mode = fs::Permissions::from_mode(mode(number));
            fs::set_permissions(at(2, "mode"), mode).expect("chmod");
        },
        |done| {
            let found = fs::metadata(at(1, "mode")).expect("stat");
            assert!(found.mode() & 0o777 >= mode(done));
        },
    );
    // A directory that moves on, and what is below it; what was made in it is found at once.
    fs::create_dir(at(2, "d0")).expect("mkdir");
    fs::write(at(2, "d0/f"), b"x").expect("write");
    look_while_changing(
        |number| {
            let (from, to) = (format!("d{}", number - 1), format!("d{number}"));
            fs::rename(at(2, &from), at(2, &to)).expect("rename");
        },
        |done| {
            if done > 0 {
                let old = fs::metadata(at(1, &format!("d{}/f", done - 1)));
                assert_eq!(errno(old), Some(libc::ENOENT), "before {done}");
            }
            // It may have moved on meanwhile.
            drop(fs::metadata(at(1, &format!("d{done}/f"))));
        },
    );
}

/// Puts a new directory where `d` is, in one of the ways in which a name comes to lead elsewhere.
/// Its file `n` says which one it is.
fn replace_directory(at: impl Fn(&str) -> PathBuf, number: u64) {
    let (dir, new, old) = (at("d"), at("new"), at("old"));
    let number_in = |dir: &Path| dir.join("n");
    let rename = |from: &Path, to: &Path| fs::rename(from, to).expect("rename");
    fs::create_dir(&new).expect("mkdir");
    fs::write(number_in(&new), number.to_string()).expect("write");
    match number % 4 {
        0 => {
            let flags = RenameFlags::EXCHANGE;
            renameat_with(CWD, &new, CWD, &dir, flags).expect("exchange");
            rename(&new, &old);
        }
        1 => {
            rename(&dir, &old);
            rename(&new, &dir);
        }
        2 => {
            fs::remove_file(number_in(&dir)).expect("unlink");
            rename(&new, &dir);
            return;
        }
        _ => {
            fs::remove_file(number_in(&dir)).expect("unlink");
            fs::remove_dir(&dir).expect("rmdir");
            rename(&new, &dir);
            return;
        }
    }
    fs::remove_dir_all(&old).expect("remove");
}

/// Looks while directories are replaced, renamed and changed by node `by`, from node 1.
fn look_through_directories_changed_by(by: usize) {
    let fleet = Fleet::new(2, "");
    let at = |node, path: &str| fleet.mnt(node, path);
    fs::create_dir(at(by, "d")).expect("mkdir");
    fs::write(at(by, "d/n"), b"0").expect("write");
    look_while_changing(
        |number| {
            replace_directory(|path| at(by, path), number);
            let found = fs::read_to_string(at(1, "d/n")).expect("read");
            assert_eq!(found, number.to_string());
        },
        |done| {
            // In some of the ways the name leads nowhere for a moment.
            if let Ok(number) = fs::read_to_string(at(1, "d/n")) {
                let number: u64 = number.parse().expect("written before it came there");
                assert!(number >= done, "{number} after {done}");
            }
        },
    );
    // A mode that only grows.
    let mode = |number: u64| 0o400 + (number.min(0o377)) as u32;
    fs::create_dir(at(by, "mode")).expect("mkdir");
    fs::write(at(by, "mode/f"), b"").expect("write");
    look_while_changing(
        |number| {
            let mode = fs::Permissions::from_mode(mode(number));
            fs::set_permissions(at(by, "mode"), mode).expect("chmod");
        },
        |done| {
            let found = fs::metadata(at(1, "mode")).expect("stat");
            assert!(found.mode() & 0o777 >= mode(done));
            fs::metadata(at(1, "mode/f")).expect("stat");
        },
    );
    // A directory that moves on, and one below it that does not move.
    fs::create_dir_all(at(by, "m0/below")).expect("mkdir");
    fs::write(at(by, "m0/below/f"), b"x").expect("write");
    look_while_changing(
        |number| {
            let (from, to) = (format!("m{}", number - 1), format!("m{number}"));
            fs::rename(at(by, &from), at(by, &to)).expect("rename");
            fs::metadata(at(1, &format!("{to}/below/f"))).expect("stat");
        },
        |done| {
            if done > 0 {
                let old = fs::metadata(at(1, &format!("m{}/below/f", done - 1)));
                assert_eq!(errno(old), Some(libc::ENOENT), "before {done}");
            }
            // It may have moved on meanwhile.
            drop(fs::metadata(at(1, &format!("m{done}/below/f"))));
        },
    );
}

#[test]
fn promise_2_a_directory_that_another_node_changes_is_another_one_at_once() {
    if needs_nodes() {
        return;
    }
    look_through_directories_changed_by(2);
}

#[test]
fn promise_2_a_directory_that_the_same_node_changes_is_another_one_at_once() {
    if needs_nodes() {
        return;
    }
    look_through_directories_changed_by(1);
}

#[test]
fn promise_2_what_a_node_does_in_a_directory_it_sees_at_once_in_its_attributes() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let at = |path: &str| fleet.mnt(1, path);
    fs::create_dir(at("d")).expect("mkdir");
    let changed = || {
        let found = fs::metadata(at("d")).expect("stat");
        (found.mtime(), found.mtime_nsec())
    };
    let elsewhere = || fs::metadata(fleet.mnt(2, "d")).expect("stat").mtime();
    look_while_changing(
        |number| {
            let before = changed();
            let file = at(&format!("d/f{number}"));
            let last = at(&format!("d/f{}", number - 1));
            match number % 5 {
                0 => fs::rename(&last, &file).expect("rename"),
                1 if number > 5 => fs::remove_file(&last).expect("unlink"),
                _ => fs::write(&file, b"x").expect("write"),
            }
            let after = changed();
            assert!(after > before, "{number}: {after:?} after {before:?}");
        },
        // So the server shows the directory to others all the while.
        |_| {
            elsewhere();
        },
    );
    for round in 0..20u32 {
        let links = |wanted: u64| {
            assert_eq!(
                fs::metadata(at("d")).expect("stat").nlink(),
                wanted,
                "{round}"
            );
        };
        links(2);
        fs::create_dir(at("d/s")).expect("mkdir");
        links(3);
        fs::remove_dir(at("d/s")).expect("rmdir");
        let mode = 0o700 + round;
        fs::set_permissions(at("d"), fs::Permissions::from_mode(mode)).expect("chmod");
        assert_eq!(fs::metadata(at("d")).expect("stat").mode() & 0o777, mode);
    }
}

#[test]
fn promise_2_the_number_of_links_is_right_on_every_node() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let at = |node, path: &str| fleet.mnt(node, path);
    fs::write(at(2, "l0"), b"x").expect("write");
    look_while_changing(
        |number| match number % 2 {
            1 => fs::hard_link(at(2, "l0"), at(2, "l1")).expect("link"),
            _ => fs::remove_file(at(2, "l1")).expect("unlink"),
        },
        |done| {
            let found = fs::metadata(at(1, "l0")).expect("stat").nlink();
            assert!((1..=2).contains(&found), "{found} links after {done}");
            let _ = fs::metadata(at(1, "l1"));
        },
    );
    for round in 0..50 {
        if round > 0 || fs::metadata(at(2, "l1")).is_err() {
            fs::hard_link(at(2, "l0"), at(2, "l1")).expect("link");
        }
        assert_eq!(
            fs::metadata(at(1, "l0")).expect("stat").nlink(),
            2,
            "{round}"
        );
        fs::remove_file(at(2, "l1")).expect("unlink");
        assert_eq!(
            fs::metadata(at(1, "l0")).expect("stat").nlink(),
            1,
            "{round}"
        );
    }
}

#[test]
fn promise_2_who_has_made_a_directory_sees_names_that_others_make_there_at_once() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    let at = |node, path: &str| fleet.mnt(node, path);
    fs::write(at(2, "other"), b"x").expect("write");
    for round in 0..60 {
        let dir = format!("d{round}");
        let file = |name: &str| format!("{dir}/{name}");
        fs::create_dir(at(1, &dir)).expect("mkdir");
        // Up to here the other node knows of no name there.
        for number in 0..round % 4 {
            fs::write(at(1, &file(&format!("own{number}"))), b"x").expect("write");
        }
        let seen = |name: &str| fs::symlink_metadata(at(1, &file(name))).map(drop);
        assert_eq!(errno(seen("new")), Some(libc::ENOENT), "round {round}");
        let new = at(2, &file("new"));
        match round % 6 {
            0 => fs::write(&new, b"x").expect("write"),
            1 => fs::create_dir(&new).expect("mkdir"),
            2 => std::os::unix::fs::symlink("x", &new).expect("symlink"),
            3 => fs::hard_link(at(2, "other"), &new).expect("link"),
            4 => {
                fs::write(at(2, "from"), b"x").expect("write");
                fs::rename(at(2, "from"), &new).expect("rename");
            }
            _ => rustix::fs::mkfifoat(CWD, &new, rustix::fs::Mode::RUSR).expect("mkfifo"),
        }
        seen("new").unwrap_or_else(|error| panic!("round {round}: {error}"));
        // And what the node itself makes from then on.
        assert_eq!(errno(seen("later")), Some(libc::ENOENT), "round {round}");
        fs::rename(at(1, &file("new")), at(1, &file("later"))).expect("rename");
        seen("later").unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(errno(seen("new")), Some(libc::ENOENT), "round {round}");
    }
    // A directory that has the inode number of one that is gone, made by the other node.
    for round in 0..40 {
        fs::create_dir(at(1, "e")).expect("mkdir");
        let seen = fs::metadata(at(1, "e/x"));
        assert_eq!(errno(seen), Some(libc::ENOENT), "round {round}");
        fs::remove_dir(at(1 + round % 2, "e")).expect("rmdir");
        fs::create_dir(at(2, "e")).expect("mkdir");
        fs::write(at(2, "e/x"), b"x").expect("write");
        fs::metadata(at(1, "e/x")).unwrap_or_else(|error| panic!("round {round}: {error}"));
        fs::remove_dir_all(at(2, "e")).expect("remove");
    }
}

#[test]
fn promise_2_who_has_made_a_directory_knows_without_the_server_what_is_not_there() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    let mut answered = false;
    for round in 0..20 {
        let dir = fleet.mnt(1, format!("d{round}"));
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("a"), b"x").expect("write");
        fs::metadata(&dir).expect("stat");
        fleet.signal_server(Signal::STOP);
        let (tell, told) = std::sync::mpsc::channel();
        let look = std::thread::spawn(move || {
            let lacks = errno(fs::metadata(dir.join("b"))) == Some(libc::ENOENT);
            tell.send(lacks).expect("tell");
        });
        // On a slow machine the directory is not known any more.
        let found = told.recv_timeout(Duration::from_millis(300));
        fleet.signal_server(Signal::CONT);
        look.join().expect("look");
        answered |= found == Ok(true);
    }
    assert!(answered, "each time the server was asked");
}

#[test]
fn promise_2_who_has_made_a_directory_sees_what_an_outsider_makes_there() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    for round in 0..2 {
        let dir = format!("d{round}");
        fs::create_dir(fleet.mnt(1, &dir)).expect("mkdir");
        let begun = Instant::now();
        let mut number = 0;
        let mut make = || {
            number += 1;
            fs::write(fleet.mnt(1, format!("{dir}/f{number}")), b"").expect("write");
        };
        while begun.elapsed() < Duration::from_millis(300) {
            make();
        }
        fs::write(fleet.pfs(format!("{dir}/out")), b"x").expect("write on the PFS");
        let begun = Instant::now();
        while fs::metadata(fleet.mnt(1, format!("{dir}/out"))).is_err() {
            assert!(begun.elapsed() < LONG, "it is not seen");
            make();
        }
    }
}

#[test]
fn promise_2_two_nodes_that_change_names_in_one_directory_do_not_wait_for_each_other() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    fs::create_dir(fleet.mnt(1, "d")).expect("mkdir");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let dir = fleet.mnt(1 + thread % 2, "d");
            let at = move |name: &str| dir.join(name);
            scope.spawn(move || {
                for round in 0..60 {
                    let (dir, file) = (at(&format!("s{thread}")), at(&format!("f{thread}")));
                    fs::create_dir(&dir).expect("mkdir");
                    fs::write(&file, b"x").expect("write");
                    // What the others have just now.
                    for other in 0..4 {
                        let _ = fs::metadata(at(&format!("s{other}")));
                        let _ = fs::metadata(at(&format!("f{other}")));
                    }
                    fs::rename(&file, at(&format!("g{thread}"))).expect("rename");
                    fs::remove_dir(&dir).expect("rmdir");
                    fs::remove_file(at(&format!("g{thread}"))).expect("unlink");
                    assert!(begun.elapsed() < LONG, "round {round}");
                }
            });
        }
    });
    assert_eq!(fs::read_dir(fleet.mnt(2, "d")).expect("list").count(), 0);
}

#[test]
fn promise_2_appends_of_several_nodes_overwrite_nothing() {
    if needs_nodes() {
        return;
    }
    const APPENDS: usize = 200;
    let fleet = Fleet::new(3, "");
    fs::write(fleet.mnt(1, "log"), b"").expect("create");
    std::thread::scope(|scope| {
        for node in 1..=3 {
            let path = fleet.mnt(node, "log");
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(path).expect("open");
                for _ in 0..APPENDS {
                    log.write_all(&[b'0' + node as u8; 100]).expect("append");
                }
            });
        }
    });
    let log = fs::read(fleet.mnt(2, "log")).expect("read");
    assert_eq!(log.len(), 3 * APPENDS * 100);
    for entry in log.chunks(100) {
        assert!(entry.iter().all(|byte| *byte == entry[0]), "a torn append");
    }
}

#[test]
fn promise_2_a_mount_on_the_servers_node_and_one_elsewhere_see_the_same() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    fleet.mount(0, &[]);
    // The first of a series shows how large it is; the kernel writes the second by itself.
    for version in 1..=3 {
        let name = format!("ckpt-{version}");
        write_file(&fleet.mnt(0, &name), pattern(version, 3 * MIB));
        pattern(version, 3 * MIB).assert_in(&fleet.mnt(1, &name));
        let here = OpenOptions::new()
            .write(true)
            .open(fleet.mnt(0, &name))
            .expect("open");
        let there = File::open(fleet.mnt(1, &name)).expect("open");
        for turn in 0..10u8 {
            here.write_all_at(&[turn; 5000], 12345).expect("write");
            let mut read = [0; 5000];
            there.read_exact_at(&mut read, 12345).expect("read");
            assert_eq!(read, [turn; 5000]);
        }
        let mut tail = OpenOptions::new()
            .append(true)
            .open(fleet.mnt(1, &name))
            .expect("open");
        tail.write_all(b"from elsewhere").expect("append");
        assert_eq!(here.metadata().expect("stat").len(), 3 * MIB as u64 + 14);
    }
}
