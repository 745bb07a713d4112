//! Runs that repeat, on rooms where nothing else goes on. The time of opens is the test's, that of
//! copies is what they take.

use std::time::Duration;

use forebay_namespace::Node;
use forebay_policy::limits::{Amount, Beyond, Limit, Owner, Owners, Whose};
use forebay_tiers::testing::{Effect, Operation, When};
use forebay_types::{Ino, OpenFlags};

use super::*;
use crate::orders::asker::Asker;
use crate::testing::Lab;

const FILES: u64 = 6;
const FILE_BYTES: usize = 10_000;

struct Program {
    lab: Lab,
    dir: Arc<Dir>,
    now_s: f64,
}

fn name(n: u64) -> String {
    format!("f{n}")
}

impl Program {
    fn new(lab: Lab) -> Program {
        std::fs::create_dir(lab.pfs("d")).expect("mkdir");
        for n in 0..FILES {
            let content = vec![n as u8; FILE_BYTES];
            std::fs::write(lab.pfs("d").join(name(n)), content).expect("write");
        }
        let ns = lab.rooms().base.ns();
        let found = ns.lookup(Ino::ROOT, b"d").expect("d");
        let Ok(Node::Dir(dir)) = ns.node(found.attr.ino) else {
            panic!("no directory");
        };
        let now_s = 0.0;
        Program { lab, dir, now_s }
    }

    fn ahead(&self) -> &Arc<Ahead> {
        &self.lab.rooms().ahead
    }

    fn here(&self) -> Vec<u64> {
        let child = |n: &u64| self.dir.child(name(*n).as_bytes()).is_some();
        (0..FILES).filter(child).collect()
    }

    /// Opens a file as a program does, at this time of the test.
    fn read(&self, n: u64) -> Vec<u8> {
        let (rooms, ahead) = (self.lab.rooms(), self.ahead());
        let found = rooms.base.ns().lookup(self.dir.ino, name(n).as_bytes());
        let ino = found.expect("there").attr.ino;
        let opened = rooms
            .files
            .open(ino, OpenFlags(libc::O_RDONLY as u32), None);
        let opened = opened.expect("open").0;
        let mut content = vec![0; FILE_BYTES];
        let read = rooms.files.read(opened.handle, 0, &mut content);
        content.truncate(read.expect("read"));
        rooms.files.release(opened.handle).expect("close");
        let guesses = rooms.buffer.guesses();
        // Each is told once, by which way it may be.
        let mut told = guesses.take_here().len();
        for opened in guesses.take_opens(Duration::ZERO) {
            match opened {
                crate::buffer::guesses::Opened::OnPfs { bytes, .. } => {
                    assert_eq!(bytes, Some(FILE_BYTES as u64));
                    told += 1;
                }
                watched => ahead.hear([watched].into()),
            }
        }
        assert_eq!(told, 1, "file {n}");
        let at = ahead.begun + Duration::from_secs_f64(self.now_s);
        ahead.opened_in_run(&self.dir, name(n).as_bytes(), FILE_BYTES as u64, at);
        content
    }

    /// All files, at this second.
    fn run(&mut self, at_s: f64) {
        self.until(at_s);
        (0..FILES).for_each(|n| assert_eq!(self.read(n), vec![n as u8; FILE_BYTES]));
    }

    fn until(&mut self, at_s: f64) {
        while self.now_s + 0.5 <= at_s {
            self.now_s += 0.5;
            self.ahead().tend_runs(self.now_s);
        }
        self.ahead().take_in_waste();
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Program) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            self.ahead().bring_some();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn evict_all(&self) {
        let buffer = &self.lab.rooms().buffer;
        for file in buffer.files() {
            assert!(buffer.evict(&file).is_some());
        }
    }

    /// Folders that `status` names to that user.
    fn folders_told(&self, uid: u32) -> usize {
        let asker = Asker::of(forebay_wire::Peer {
            uid,
            gid: uid,
            groups: &[],
            local: true,
            near: false,
            mount: false,
            socket: None,
        });
        self.lab.rooms().status_for(&asker).ahead.runs.next.len()
    }

    fn status(&self) -> RunsStatus {
        self.ahead().runs_status_at(self.now_s)
    }
}

const ALL_BYTES: u64 = FILES * FILE_BYTES as u64;

#[test]
fn the_third_run_finds_its_files_before_it_starts() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    program.until(150.0);
    assert!(program.here().is_empty());
    let next = program.status().next;
    assert_eq!((next.len(), &next[0].path[..]), (1, &b"d"[..]));
    assert_eq!((next[0].period_ms, next[0].next_in_ms), (60_000, 30_000));
    program.until(178.0);
    program.wait_for("all are here", |program| {
        program.status().next[0].here_bytes == ALL_BYTES
    });
    assert_eq!(program.here().len() as u64, FILES);
    program.run(180.0);
    let status = program.status();
    assert_eq!((status.hit_bytes, status.wasted_bytes), (ALL_BYTES, 0));
    assert_eq!(program.folders_told(0), 1);
    assert_eq!(program.folders_told(12_345), 0, "whose names they are not");
    // What is here still is counted, and not brought in again.
    program.until(238.0);
    program.wait_for("all were looked after", |program| {
        program.status().next[0].here_bytes == ALL_BYTES
    });
    assert_eq!(program.status().guessed_bytes, ALL_BYTES);
    program.run(240.0);
    // Gone in between, they come again.
    program.evict_all();
    program.until(298.0);
    program.wait_for("they are here again", |program| {
        program.status().guessed_bytes == 2 * ALL_BYTES
    });
}

#[test]
fn a_run_that_does_not_come_leaves_first() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("all are here", |program| {
        program.status().guessed_bytes == ALL_BYTES
    });
    program.until(209.5);
    assert_eq!(program.status().wasted_bytes, 0, "it may be late");
    program.until(211.0);
    let status = program.status();
    assert_eq!((status.wasted_bytes, status.expected), (ALL_BYTES, 0));
    let rooms = program.lab.rooms();
    assert_eq!(rooms.buffer.guesses().unread_bytes(), 0);
    // It is here, and of all copies the first to go, but for one that is read after all.
    assert_eq!(program.here().len() as u64, FILES);
    program.read(0);
    let is_first = |n| {
        let file = program.dir.child(name(n).as_bytes()).expect("here");
        let candidate = rooms.catalog.apps().candidate(file.object, 1, false);
        candidate.outdated && candidate.accessed_at_s == 0.0
    };
    assert!(!is_first(0) && is_first(1));
}

#[test]
fn what_is_in_vain_for_a_run_does_not_leave_before_a_list_has_read_it() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("all are here", |program| {
        program.status().guessed_bytes == ALL_BYTES
    });
    let item = Item {
        dir: program.dir.clone(),
        name: b"f0".to_vec(),
    };
    let list = program.ahead().begin_list(vec![item]);
    program.until(211.0);
    assert_eq!(program.status().wasted_bytes, ALL_BYTES);
    let rooms = program.lab.rooms();
    let is_first = |n| {
        let file = program.dir.child(name(n).as_bytes()).expect("here");
        rooms
            .catalog
            .apps()
            .candidate(file.object, 1, false)
            .outdated
    };
    assert!(!is_first(0) && is_first(1));
    program.ahead().end_list(&list);
}

#[test]
fn what_was_written_over_a_guess_is_no_guess_any_more() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("all are here", |program| {
        program.status().guessed_bytes == ALL_BYTES
    });
    let rooms = program.lab.shared_rooms();
    let file = program.dir.child(b"f0").expect("here");
    let flags = OpenFlags(libc::O_WRONLY as u32);
    let opened = rooms.files.open(file.ino, flags, None).expect("open").0;
    let how = forebay_wire::WriteHow::WAITING;
    let written = rooms.files.write(opened.handle, 0, b"new", how);
    written.expect("write");
    rooms.files.release(opened.handle).expect("close");
    program.until(211.0);
    assert_eq!(program.status().wasted_bytes, ALL_BYTES, "nobody read it");
    assert!(!file.lock().residency.clean);
    let candidate = rooms.catalog.apps().candidate(file.object, 1, false);
    assert!(!candidate.outdated && candidate.accessed_at_s > 0.0);
}

#[test]
fn what_was_cut_by_its_name_is_no_guess_any_more() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("all are here", |program| {
        program.status().guessed_bytes == ALL_BYTES
    });
    let rooms = program.lab.shared_rooms();
    let file = program.dir.child(b"f0").expect("here");
    let set = forebay_types::SetAttr {
        size: Some(3),
        ..Default::default()
    };
    let cut = rooms
        .files
        .setattr(file.ino, None, &set, crate::testing::me());
    cut.expect("truncate");
    program.until(211.0);
    assert!(!file.lock().residency.clean);
    let candidate = rooms.catalog.apps().candidate(file.object, 1, false);
    assert!(!candidate.outdated && candidate.accessed_at_s > 0.0);
}

#[test]
fn files_that_change_or_go_between_runs_are_as_the_pfs_has_them() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    std::fs::remove_file(program.lab.pfs("d").join(name(2))).expect("remove");
    std::fs::write(program.lab.pfs("d").join(name(3)), b"another").expect("write");
    program.until(178.0);
    let left = ALL_BYTES - 2 * FILE_BYTES as u64 + 7;
    program.wait_for("the others are here", |program| {
        program.status().guessed_bytes == left
    });
    assert_eq!(program.here(), [0, 1, 3, 4, 5]);
    let changed = program.dir.child(name(3).as_bytes()).expect("here");
    assert_eq!(changed.lock().meta.size, 7);
    assert!(program.lab.rooms().base.errors().all().is_empty());
}

#[test]
fn a_folder_that_is_gone_is_forgotten() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    std::fs::remove_dir_all(program.lab.pfs("d")).expect("remove");
    program.until(178.0);
    program.wait_for("all were looked for", |program| {
        let under_way = program.ahead().under_way.lock();
        under_way
            .values()
            .any(|run| run.reading.reader.lock().is_gone())
    });
    program.until(212.0);
    let learned = program.ahead().learned.lock();
    assert_eq!((learned.runs.size(), learned.dirs.len()), ((0, 0), 0));
    assert!(program.lab.rooms().base.errors().all().is_empty());
}

#[test]
fn a_folder_whose_files_are_gone_for_a_moment_is_not_forgotten() {
    let mut program = Program::new(Lab::new());
    program.run(60.0);
    program.run(120.0);
    let at = |n| program.lab.pfs("d").join(name(n));
    // They are written anew just when they are looked for.
    let content: Vec<Vec<u8>> = (0..FILES)
        .map(|n| std::fs::read(at(n)).expect("read"))
        .collect();
    (0..FILES).for_each(|n| std::fs::remove_file(at(n)).expect("remove"));
    program.until(178.0);
    program.wait_for("all were looked for", |program| {
        let under_way = program.ahead().under_way.lock();
        under_way
            .values()
            .any(|run| run.reading.reader.lock().is_gone())
    });
    for (n, content) in (0..).zip(&content) {
        let path = program.lab.pfs("d").join(name(n));
        std::fs::write(path, content).expect("write");
    }
    program.run(180.0);
    program.until(200.0);
    let next = program.status().next;
    assert_eq!((next.len(), next[0].period_ms), (1, 60_000));
    // It is on trial no more.
    program.until(238.0);
    program.wait_for("all are here", |program| {
        program.status().guessed_bytes == ALL_BYTES
    });
}

#[test]
fn who_writes_a_file_and_reads_it_is_no_run() {
    let program = Program::new(Lab::new());
    let rooms = program.lab.rooms();
    for flags in [libc::O_RDWR, libc::O_RDONLY] {
        let link = rooms.base.ns().lookup(program.dir.ino, b"f0");
        let ino = link.expect("there").attr.ino;
        let opened = rooms.files.open(ino, OpenFlags(flags as u32), None);
        let handle = opened.expect("open").0.handle;
        if flags == libc::O_RDWR {
            let how = forebay_wire::WriteHow::WAITING;
            rooms.files.write(handle, 0, b"mine", how).expect("write");
        }
        rooms.files.release(handle).expect("close");
        let ahead = program.ahead();
        ahead.hear(rooms.buffer.guesses().take_opens(Duration::ZERO));
        ahead.learn_from_here();
        let is_known = flags == libc::O_RDONLY && program.dir.child(b"f0").is_none();
        assert_eq!(ahead.learned.lock().runs.knows(program.dir.key), is_known);
    }
}

#[test]
fn nothing_is_learned_where_the_share_is_nothing() {
    let lab = Lab::with(|settings| settings.engine.read_ahead = 0.0);
    let rooms = lab.rooms();
    std::fs::write(lab.pfs("f"), b"content").expect("write");
    for is_here in [false, true] {
        let found = rooms.base.ns().lookup(Ino::ROOT, b"f").expect("there");
        assert_eq!(!rooms.buffer.files().is_empty(), is_here);
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let opened = rooms.files.open(found.attr.ino, flags, None).expect("open");
        rooms.files.release(opened.0.handle).expect("close");
        let guesses = rooms.buffer.guesses();
        assert!(guesses.take_here().is_empty());
        assert!(guesses.take_opens(Duration::ZERO).is_empty());
        let Ok(Node::Dir(root)) = rooms.base.ns().node(Ino::ROOT) else {
            panic!("no root");
        };
        let staged = rooms.files.stage_in(&root, b"f", false, &|_| ());
        assert_eq!(staged.is_ok(), !is_here);
    }
}

#[test]
fn an_open_is_told_to_all_who_expect_it_and_to_nobody_who_has_ended() {
    let program = Program::new(Lab::with(|settings| settings.engine.read_ahead = 0.0));
    let ahead = program.ahead();
    let ns = program.lab.rooms().base.ns();
    let item = |dir: &Arc<Dir>, name: String| Item {
        dir: dir.clone(),
        name: name.into_bytes(),
    };
    // Names of both folders, more than once; none of them is there to be brought in.
    let of_both = |n: u64| {
        let all = [ns.root(), &program.dir, &program.dir];
        let items = all.iter().map(|dir| item(dir, format!("none{n}")));
        ahead.begin_list(items.collect())
    };
    let lists = [of_both(0), of_both(0), of_both(1)];
    let open = |dir: &Arc<Dir>| {
        let opened = crate::buffer::guesses::Opened::OnPfs {
            dir: dir.clone(),
            name: b"none0".to_vec(),
            bytes: None,
            at: Instant::now(),
        };
        ahead.hear([opened].into());
        lists.each_ref().map(|list| list.progress().0)
    };
    assert_eq!(open(&program.dir), [1, 1, 0]);
    assert_eq!(open(ns.root()), [2, 2, 0]);
    assert_eq!(ahead.readings.lock().folders(), 2);
    ahead.end_list(&lists[0]);
    ahead.end_list(&lists[2]);
    let of_folder = ahead.readings.lock().of_folder(program.dir.key);
    assert_eq!(of_folder.len(), 1);
    ahead.end_list(&lists[1]);
    let readings = ahead.readings.lock();
    assert_eq!((readings.len(), readings.folders()), (0, 0));
}

#[test]
fn a_run_of_one_file_tells_how_fast_it_came() {
    let (lab, flash) = Lab::with_faulty_flash();
    let program = Program::new(lab);
    // So that a look meets the copy.
    let slow = Effect::Delay(Duration::from_millis(100));
    flash.inject(Operation::Write, When::Every, slow);
    program.read(0);
    std::fs::write(program.lab.pfs("d").join("large"), vec![7; 2 << 20]).expect("write");
    let ahead = program.ahead();
    let rate = || ahead.learned.lock().runs.rate();
    let before = rate();
    let names = vec![b"large".to_vec()];
    ahead.begin_run((7, program.dir.key), names, (2 << 20, 60.0));
    let reading = ahead.under_way.lock()[&7].reading.clone();
    program.wait_for("it is taken", |_| reading.is_over());
    ahead.measure_runs();
    program.wait_for("it is here", |program| {
        program.dir.child(b"large").is_some() && reading.is_settled()
    });
    ahead.measure_runs();
    assert_ne!(rate(), before);
}

#[path = "runs_kept_tests.rs"]
mod kept;
#[path = "runs_room_tests.rs"]
mod room;
