//! Programs that change names and append while the server goes and comes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_testkit::{Fleet, needs_nodes};

/// Stops of the server.
const STOPS: usize = 4;

/// Makes, renames, links and removes names until it is told to end; how many rounds that were.
fn change_names(dir: &Path, is_over: &AtomicBool) -> io::Result<u32> {
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) {
        let name = |what: &str| dir.join(format!("{what}{rounds}"));
        fs::create_dir(name("d"))?;
        File::create_new(name("f"))?.write_all(b"content")?;
        fs::hard_link(name("f"), name("l"))?;
        fs::rename(name("f"), name("d").join("in"))?;
        fs::remove_file(name("l"))?;
        std::os::unix::fs::symlink("d", name("s"))?;
        fs::remove_file(name("s"))?;
        if rounds % 2 == 1 {
            fs::remove_file(name("d").join("in"))?;
            fs::remove_dir(name("d"))?;
        }
        rounds += 1;
    }
    Ok(rounds)
}

/// Appends one number after the other; how many those were.
fn append(path: &Path, is_over: &AtomicBool, pause: Duration) -> io::Result<u32> {
    let mut log = OpenOptions::new().append(true).create(true).open(path)?;
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        log.write_all(&u32::to_le_bytes(number))?;
        number += 1;
        std::thread::sleep(pause);
    }
    Ok(number)
}

fn assert_numbers(path: &Path, count: u32) {
    let log = fs::read(path).expect("read");
    let numbers = log
        .chunks(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("whole")));
    let numbers: Vec<u32> = numbers.collect();
    assert_eq!(numbers, (0..count).collect::<Vec<u32>>());
}

#[test]
fn promise_8_a_server_that_stops_in_order_fails_no_program() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    let is_over = AtomicBool::new(false);
    for node in [1, 2] {
        fs::create_dir(fleet.mnt(node, format!("names{node}"))).expect("mkdir");
    }
    let paths = |fleet: &Fleet, node: usize| {
        let dir = fleet.mnt(node, format!("names{node}"));
        (dir, fleet.mnt(node, format!("log{node}")))
    };
    let of_nodes = [paths(&fleet, 1), paths(&fleet, 2)];
    let done = std::thread::scope(|scope| {
        let works: Vec<_> = of_nodes
            .iter()
            .map(|(dir, log)| {
                let is_over = &is_over;
                let names = scope.spawn(move || change_names(dir, is_over));
                let log = scope.spawn(move || append(log, is_over, Duration::ZERO));
                (names, log)
            })
            .collect();
        for _ in 0..STOPS {
            std::thread::sleep(Duration::from_millis(300));
            fleet.stop_server();
            fleet.start_server();
        }
        std::thread::sleep(Duration::from_millis(300));
        is_over.store(true, Ordering::Relaxed);
        let ended = works.into_iter().map(|(names, log)| {
            let names = names.join().expect("no panic").expect("names");
            (names, log.join().expect("no panic").expect("appends"))
        });
        ended.collect::<Vec<_>>()
    });
    for (node, (rounds, numbers)) in (1..).zip(done) {
        assert!(rounds > 0 && numbers > 0, "{rounds} {numbers}");
        // On the other node.
        let (dir, log) = paths(&fleet, 3 - node);
        let dir = dir.with_file_name(format!("names{node}"));
        assert_numbers(&log.with_file_name(format!("log{node}")), numbers);
        let mut left: Vec<_> = fs::read_dir(&dir)
            .expect("readdir")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        left.sort();
        let mut expected: Vec<_> = (0..rounds)
            .step_by(2)
            .map(|round| OsString::from(format!("d{round}")))
            .collect();
        expected.sort();
        assert_eq!(left, expected);
    }
}

#[test]
fn promise_8_what_begins_while_the_server_is_away_waits_and_happens() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(1, "");
    let log = fleet.mnt(1, "log");
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&log)
        .expect("open");
    for round in 0..2 {
        match round {
            0 => fleet.kill_server(),
            _ => fleet.stop_server(),
        }
        // The mount knows by then.
        std::thread::sleep(Duration::from_secs(1));
        let path = |what: &str| fleet.mnt(1, format!("{what}{round}"));
        let waits = [
            std::thread::spawn({
                let dir = path("dir");
                move || fs::create_dir(dir)
            }),
            std::thread::spawn({
                let file = path("file");
                move || File::create_new(file).map(drop)
            }),
        ];
        let mut appends = file.try_clone().expect("dup");
        let appends = std::thread::spawn(move || appends.write_all(b"line\n"));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!appends.is_finished(), "there is nobody to ask");
        fleet.start_server();
        appends.join().expect("no panic").expect("append");
        for wait in waits {
            wait.join().expect("no panic").expect("made");
        }
    }
    file.write_all(b"end\n").expect("append");
    assert_eq!(fs::read(&log).expect("read"), b"line\nline\nend\n");
}
