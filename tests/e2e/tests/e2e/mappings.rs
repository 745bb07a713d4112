//! Mappings of files that other nodes change.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_testkit::{Fleet, needs_nodes, pattern, write_file};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::common::Obedient;

/// A file that is mapped to be read and stored into.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn new(file: &File, len: usize) -> Mapping {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap(null, len, protection, MapFlags::SHARED, file, 0) };
        let at = at.expect("mmap").cast();
        Mapping { at, len }
    }

    pub fn load(&self, index: usize) -> u8 {
        assert!(index < self.len);
        // SAFETY: within the mapping, which lives.
        unsafe { self.at.add(index).read_volatile() }
    }

    pub fn store(&self, index: usize, byte: u8) {
        assert!(index < self.len);
        // SAFETY: within the mapping, which lives.
        unsafe { self.at.add(index).write_volatile(byte) }
    }

    fn sync(&self) {
        // SAFETY: the whole mapping, which lives.
        unsafe { msync(self.at.cast(), self.len, MsyncFlags::SYNC) }.expect("msync");
    }
}

// SAFETY: loads and stores of single bytes, which the processor does not tear.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping; nobody uses it any more.
        unsafe { munmap(self.at.cast(), self.len) }.expect("munmap");
    }
}

#[test]
fn promise_2_a_mapping_sees_what_other_nodes_have_written_and_overwrites_none_of_it() {
    if needs_nodes() {
        return;
    }
    const LEN: usize = 3 * 4096;
    let fleet = Fleet::new(3, "");
    fs::write(fleet.mnt(1, "f"), [0; LEN]).expect("write");
    let files = [1, 2, 3].map(|node| {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(fleet.mnt(node, "f"));
        opened.expect("open")
    });
    let mappings = [Mapping::new(&files[0], LEN), Mapping::new(&files[1], LEN)];
    let mut model = [0u8; LEN];
    for turn in 1..=120usize {
        let byte = turn as u8;
        // Bytes of the same pages, by stores on two nodes and by writes on the third.
        let at = |what: usize| (turn * 37 + what * 4096) % LEN;
        for (node, mapping) in mappings.iter().enumerate() {
            if turn % 3 != node {
                mapping.store(at(node), byte);
                model[at(node)] = byte;
            }
        }
        mappings.iter().for_each(Mapping::sync);
        files[2]
            .write_all_at(&[byte; 5], at(5) as u64 % (LEN as u64 - 5))
            .expect("write");
        let start = at(5) % (LEN - 5);
        model[start..start + 5].fill(byte);
        for mapping in &mappings {
            assert_eq!(mapping.load(start), byte, "turn {turn}");
        }
        let mut read = [0; LEN];
        files[turn % 3].read_exact_at(&mut read, 0).expect("read");
        if let Some(wrong) = (0..LEN).find(|&i| read[i] != model[i]) {
            panic!(
                "turn {turn}: byte {wrong} is {}, not {}",
                read[wrong], model[wrong]
            );
        }
    }
}

#[test]
fn promise_2_writers_at_once_all_wait_for_a_mapping_elsewhere() {
    if needs_nodes() {
        return;
    }
    const LEN: usize = 16 * 4096;
    const WRITERS: usize = 4;
    let fleet = Fleet::new(3, "");
    fs::write(fleet.mnt(1, "f"), [0; LEN]).expect("write");
    let open = |node| {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(fleet.mnt(node, "f"));
        opened.expect("open")
    };
    let file = open(1);
    let mapping = Mapping::new(&file, LEN);
    let writers = [open(2), open(3), open(2), open(3)];
    for turn in 1..=25u8 {
        // Every page is there, and differs from what the file has: it goes back as a whole.
        (0..LEN)
            .step_by(4096)
            .for_each(|page| mapping.store(page, turn));
        std::thread::scope(|scope| {
            for (number, writer) in writers.iter().enumerate() {
                scope.spawn(move || {
                    for page in (0..LEN as u64).step_by(4096) {
                        let at = page + 1 + number as u64;
                        writer.write_all_at(&[turn; 1], at).expect("write");
                    }
                });
            }
        });
        let mut read = [0; LEN];
        file.read_exact_at(&mut read, 0).expect("read");
        for page in (0..LEN).step_by(4096) {
            let bytes = read.iter().enumerate().skip(page);
            for (at, byte) in bytes.take(1 + WRITERS) {
                assert_eq!(*byte, turn, "byte {at} in the file");
                assert_eq!(mapping.load(at), turn, "byte {at} in the mapping");
            }
        }
    }
}

const PAGE: usize = 4096;

fn open(path: impl AsRef<std::path::Path>) -> File {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.expect("open")
}

/// Stores right before the end, which must be in the file for `other` to find it.
fn store_at_the_end(mapping: &Mapping, (other, end): (&File, usize), byte: u8) {
    mapping.store(end - 1, byte);
    mapping.sync();
    let mut read = [0];
    other
        .read_exact_at(&mut read, end as u64 - 1)
        .expect("read");
    assert_eq!(read, [byte], "stored before the end at {end}");
    assert_eq!(other.metadata().expect("stat").len(), end as u64);
}

#[test]
fn promise_2_a_mapping_reaches_to_the_end_that_another_node_gives_the_file() {
    if needs_nodes() {
        return;
    }
    const PAGES: usize = 8;
    let fleet = Fleet::new(2, "");
    fs::write(fleet.mnt(1, "f"), [b'o'; 100]).expect("write");
    let file = open(fleet.mnt(1, "f"));
    let mapping = Mapping::new(&file, PAGES * PAGE);
    let mut tail = OpenOptions::new();
    let mut tail = tail.append(true).open(fleet.mnt(2, "f")).expect("open");
    let other = open(fleet.mnt(2, "f"));
    assert_eq!(mapping.load(99), b'o');
    // Within the page, to others, and shorter meanwhile; by a write, a truncation and an append.
    // The node that has it mapped asks for nothing in between.
    let mut byte = 0;
    for (round, first) in [200, 300, PAGE + 10].into_iter().enumerate() {
        for way in 0..6 {
            let end = first + way * PAGE;
            byte += 1;
            match way % 3 {
                0 => other
                    .write_all_at(&[b'n'; 50], end as u64 - 50)
                    .expect("write"),
                1 => other.set_len(end as u64).expect("truncate"),
                _ => {
                    let length = other.metadata().expect("stat").len() as usize;
                    tail.write_all(&vec![b'n'; end - length]).expect("append");
                }
            }
            assert!(
                [0, b'n'].contains(&mapping.load(end - 1)),
                "round {round}, way {way}"
            );
            store_at_the_end(&mapping, (&other, end), byte);
        }
        other.set_len(100).expect("truncate");
        // The kernel learns of the shorter end.
        assert_eq!(file.metadata().expect("stat").len(), 100);
    }
}

#[test]
fn promise_2_a_file_that_is_mapped_anew_reaches_to_its_end() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    fs::write(fleet.mnt(1, "f"), [b'o'; 100]).expect("write");
    let other = open(fleet.mnt(2, "f"));
    for round in 1..=39usize {
        let file = open(fleet.mnt(1, "f"));
        let mapping = Mapping::new(&file, PAGE);
        let end = 100 * (round + 1);
        if round % 2 == 0 {
            assert_eq!(mapping.load(0), b'o');
        }
        other
            .write_all_at(&[b'n'; 100], end as u64 - 100)
            .expect("write");
        // In odd rounds it opened the file before that, and the store is what reads the page.
        store_at_the_end(&mapping, (&other, end), round as u8);
    }
}

#[test]
fn promise_2_what_is_stored_makes_no_file_longer_that_another_node_has_cut() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(2, "");
    fs::write(fleet.mnt(1, "f"), [b'o'; 3 * PAGE]).expect("write");
    let (file, other) = (open(fleet.mnt(1, "f")), open(fleet.mnt(2, "f")));
    let mapping = Mapping::new(&file, 3 * PAGE);
    for (round, left) in [2 * PAGE + 5, PAGE + 100, 100].into_iter().enumerate() {
        let byte = round as u8 + 1;
        assert_ne!(mapping.load(0), 0);
        other.set_len(left as u64).expect("truncate");
        // Within the page of the end, before it and behind it.
        (0..left.next_multiple_of(PAGE))
            .step_by(50)
            .for_each(|at| mapping.store(at, byte));
        mapping.sync();
        let found = fs::read(fleet.mnt(2, "f")).expect("read");
        assert_eq!(found.len(), left);
        let stored = found.iter().step_by(50);
        assert!(stored.into_iter().all(|found| *found == byte));
    }
}

#[test]
fn promise_8_a_mapping_reaches_to_the_new_end_after_a_restart_of_the_server() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    fs::write(fleet.mnt(1, "f"), [b'o'; 100]).expect("write");
    let (file, other) = (open(fleet.mnt(1, "f")), open(fleet.mnt(2, "f")));
    file.sync_all().expect("fsync");
    let mapping = Mapping::new(&file, PAGE);
    assert_eq!(mapping.load(99), b'o');
    for round in 1..=3usize {
        fleet.kill_server();
        fleet.start_server();
        // The node is back, and knows the end of before.
        let end = 100 + round * 100;
        let before = file.metadata().expect("stat").len();
        assert_eq!(before, end as u64 - 100);
        other
            .write_all_at(&[b'n'; 100], end as u64 - 100)
            .expect("write");
        store_at_the_end(&mapping, (&other, end), round as u8);
    }
}

#[test]
fn promise_2_a_mapping_sees_what_its_own_node_has_written() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::new(1, "");
    fs::write(fleet.mnt(1, "f"), [0; PAGE]).expect("write");
    let file = open(fleet.mnt(1, "f"));
    let mapping = Mapping::new(&file, PAGE);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                mapping.load(0);
            }
        });
        let file = open(fleet.mnt(1, "f"));
        for turn in 0..3000usize {
            let byte = turn as u8;
            file.write_all_at(&[byte; PAGE], 0).expect("write");
            assert_eq!(mapping.load(0), byte, "turn {turn}");
        }
        over.store(true, Ordering::Release);
    });
}

#[test]
fn promise_8_nobody_writes_before_all_mappings_have_forgotten_what_was_before_a_restart() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::new(2, "");
    fs::write(fleet.mnt(1, "f"), [0; PAGE]).expect("write");
    // A process of its own: one that starts others closes files for them, which waits for what is
    // stored to be written back.
    let mut program = Obedient::new("mapper.py");
    let map = format!("map {}", fleet.mnt(1, "f").display());
    assert_eq!(program.ask(&map), "done");
    let other = open(fleet.mnt(2, "f"));
    other.sync_all().expect("fsync");
    for turn in 1..=3u8 {
        assert_eq!(program.ask("load 9"), (turn - 1).to_string());
        program.ask(&format!("store 0 {turn}"));
        fleet.kill_server();
        fleet.node(1).cut();
        fleet.start_server();
        // The node that has it mapped comes back after the other one.
        assert_eq!(other.metadata().expect("stat").len(), PAGE as u64);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| other.write_all_at(&[turn; 100], 1).expect("write"));
            std::thread::sleep(Duration::from_millis(500));
            let written = writer.is_finished();
            fleet.node(1).heal();
            writer.join().expect("written");
            written
        });
        assert!(!written, "turn {turn}: written before it could be seen");
        let mut found = [0; 101];
        other.read_exact_at(&mut found, 0).expect("read");
        // What was stored before is there, and so is what was written after it.
        assert_eq!(found, [turn; 101]);
        let seen = [0, 9].map(|at| program.ask(&format!("load {at}")));
        assert_eq!(seen, [turn, turn].map(|byte| byte.to_string()));
    }
}

#[test]
fn promise_2_a_mapping_sees_what_the_servers_node_writes_that_opens_the_file_later() {
    if needs_nodes() {
        return;
    }
    const LEN: usize = 3 << 20;
    let mut fleet = Fleet::new(1, "");
    fleet.mount(0, &[]);
    // Of a series: the kernel of the server's node may write its files by itself.
    for version in 1..=4u8 {
        let name = format!("ckpt-{version}");
        write_file(&fleet.mnt(0, &name), pattern(u64::from(version), LEN));
        let file = open(fleet.mnt(1, &name));
        let mapping = Mapping::new(&file, PAGE);
        for turn in 1..=20u8 {
            assert_ne!(mapping.load(100), turn);
            let here = open(fleet.mnt(0, &name));
            here.write_all_at(&[turn; 200], 0).expect("write");
            assert_eq!(mapping.load(100), turn, "version {version}");
            store_at(&mapping, 300, turn);
            let mut read = [0];
            here.read_exact_at(&mut read, 300).expect("read");
            assert_eq!(read, [turn], "version {version}");
        }
    }
}

fn store_at(mapping: &Mapping, at: usize, byte: u8) {
    mapping.store(at, byte);
    mapping.sync();
}
