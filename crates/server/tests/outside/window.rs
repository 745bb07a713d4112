//! An outsider comes between the look at a name on the PFS and the rename onto it: what they did is
//! not replaced.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay_types::failpoint::{self, Point};
use forebay_types::{Ino, OpenFlags};

use crate::common::{Running, Scratch, me, settings};
use crate::tree::{conflicts, snapshot};
use crate::{TICK, by_hand};

const OLDER: &[u8] = b"older version";
const OURS: &[u8] = b"our newer version";
const THEIRS: &[u8] = b"their version";
const RW: OpenFlags = OpenFlags(libc::O_RDWR as u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    WriteInPlace,
    Replace,
    Remove,
    MakeDirectory,
    Chmod,
}

const ALL: [Change; 5] = [
    Change::WriteInPlace,
    Change::Replace,
    Change::Remove,
    Change::MakeDirectory,
    Change::Chmod,
];

/// A file `f`, with a second name `s` or without; the outsider is after the last of them.
struct Case {
    dir: PathBuf,
    linked: bool,
    change: Change,
    /// Locked while it comes: two demoters may be there at once.
    came: Mutex<bool>,
}

impl Case {
    fn name(&self) -> &'static str {
        match self.linked {
            true => "s",
            false => "f",
        }
    }

    fn in_root(&self) -> &[u8] {
        self.dir.file_name().expect("name").as_encoded_bytes()
    }

    fn holds(&self, name: &str, data: &[u8]) -> bool {
        fs::read(self.dir.join(name)).is_ok_and(|found| found == data)
    }

    /// Whether the copy is about to get the name.
    fn is_due(&self) -> bool {
        // A test that has ended has removed its directory.
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return false;
        };
        let mut names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
        let copy = names.any(|name| name.ends_with(".part") && self.holds(&name, OURS));
        copy && self.holds(self.name(), OLDER) && (!self.linked || self.holds("f", OURS))
    }

    fn come(&self) {
        let mut came = self.came.lock().expect("no outsider panicked");
        if *came || !self.is_due() {
            return;
        }
        let path = self.dir.join(self.name());
        let aside = self.dir.with_extension("outsider");
        match self.change {
            Change::WriteInPlace => fs::write(&path, THEIRS).expect("write"),
            Change::Replace => {
                fs::write(&aside, THEIRS).expect("write");
                fs::rename(&aside, &path).expect("rename");
            }
            Change::Remove => fs::remove_file(&path).expect("remove"),
            Change::MakeDirectory => {
                fs::remove_file(&path).expect("remove");
                fs::create_dir(&path).expect("mkdir");
            }
            Change::Chmod => {
                fs::set_permissions(&path, Permissions::from_mode(0o604)).expect("chmod");
            }
        }
        *came = true;
    }

    fn check(&self) {
        let now = snapshot(&self.dir);
        let what = format!("{:?} of {}: {now:?}", self.change, self.name());
        assert!(*self.came.lock().expect("no outsider panicked"), "{what}");
        let data = |name: &str| now.get(name).and_then(|entry| entry.data.as_deref());
        if self.linked {
            assert_eq!(data("f"), Some(OURS), "{what}");
        }
        match self.change {
            Change::WriteInPlace | Change::Replace => {
                assert_eq!(data(self.name()), Some(THEIRS), "{what}");
            }
            Change::Remove => assert!(!now.contains_key(self.name()), "{what}"),
            Change::Chmod => {
                assert_eq!(data(self.name()), Some(OLDER), "{what}");
                assert_eq!(now[self.name()].mode, 0o604, "{what}");
            }
            Change::MakeDirectory => {
                let target = now.get(self.name()).and_then(|e| e.target.as_deref());
                assert_eq!(target, Some(""), "{what}");
            }
        }
        assert_eq!(conflicts(&now) as u64, self.conflicts(), "{what}");
        let beside = now.iter().filter(|(name, _)| name.contains(".forebay-"));
        for (_, entry) in beside {
            assert_eq!(entry.data.as_deref(), Some(OURS), "{what}");
        }
    }

    fn conflicts(&self) -> u64 {
        u64::from(!self.linked || self.change != Change::Remove)
    }
}

fn write(server: &Running, ino: Ino, data: &[u8]) {
    let open = server.client.open(ino, RW, me()).expect("open");
    server.write(open.opened.handle, 0, data).expect("write");
    server.client.release(open.opened.handle).expect("close");
}

fn stage_out(server: &Running) {
    server.stage_out_past_outsiders();
}

fn cases(pfs: &Path) -> Arc<Vec<Case>> {
    let all = [false, true].into_iter();
    let all = all.flat_map(|linked| ALL.map(|change| (linked, change)));
    let case = |(n, (linked, change))| Case {
        dir: pfs.join(format!("window-{n}")),
        linked,
        change,
        came: Mutex::new(false),
    };
    Arc::new(all.enumerate().map(case).collect())
}

fn run(unnamed: bool) {
    let scratch = Scratch::new();
    let mut settings = by_hand(settings(scratch.path(), 64 << 20));
    settings.demotion.unnamed = unnamed;
    let server = Running::start(&settings, false);
    let cases = cases(&scratch.pfs());
    let mut files = Vec::new();
    for case in cases.iter() {
        let dir = server.client.mkdir(Ino::ROOT, case.in_root(), 0o755, me());
        let dir = dir.expect("mkdir").ino;
        let made = server.client.create(dir, b"f", 0o644, RW, me());
        let (attr, open) = made.expect("create");
        server.client.release(open.opened.handle).expect("close");
        write(&server, attr.ino, OLDER);
        if case.linked {
            server.client.link(attr.ino, dir, b"s", me()).expect("link");
        }
        files.push(attr.ino);
    }
    stage_out(&server);
    files.iter().for_each(|ino| write(&server, *ino, OURS));
    std::thread::sleep(TICK);
    let outsider = cases.clone();
    failpoint::always(Point::DemoteLooked, move || {
        outsider.iter().for_each(Case::come);
    });
    stage_out(&server);
    cases.iter().for_each(Case::check);
    let expected: u64 = cases.iter().map(Case::conflicts).sum();
    assert_eq!(server.status().conflicts_total, expected);
    assert_eq!(server.instance.undrained().undrained_files, 0);
    server.instance.stop();
}

#[test]
fn changed_outside_between_the_look_and_the_rename() {
    run(true);
}

#[test]
fn changed_outside_between_the_look_and_the_rename_of_a_temporary_file() {
    run(false);
}

/// Who has the file open that a rename replaces is no outsider: what they change is gone with it.
fn changed_while_another_file_takes_its_name(closes_at_once: bool) {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 8 << 20);
    let server = Arc::new(Running::start(&settings, false));
    let path = scratch.pfs().join("replaced");
    // More than there is room for: it is changed where it is.
    fs::write(&path, vec![1; 20 << 20]).expect("write");
    let found = server.client.lookup(Ino::ROOT, b"replaced", 0);
    let ino = found.expect("there").ino;
    let open = server.client.open(ino, RW, me()).expect("open");
    let old = open.opened.handle;
    server.write(old, 0, b"begun").expect("write");
    server.put(b"new", OURS);
    let (renaming, handle) = (server.clone(), old);
    failpoint::meanwhile(Point::RenameNamed, move || {
        // A moment for the drain, which has nothing better to do.
        for _ in 0..10 {
            renaming.write(handle, 0, b"again").expect("write");
            std::thread::sleep(TICK * 4);
        }
        if closes_at_once {
            renaming.client.release(handle).expect("close");
        }
    });
    let (from, to) = (b"new".as_slice(), b"replaced".as_slice());
    let renamed = server.client.rename(
        (Ino::ROOT, from),
        (Ino::ROOT, to),
        forebay_types::RenameMode::Replace,
        me(),
    );
    renamed.expect("renamed");
    if !closes_at_once {
        server.write(old, 0, b"still").expect("its handle holds it");
        server.client.release(old).expect("close");
    }
    stage_out(&server);
    assert_eq!(conflicts(&snapshot(&scratch.pfs())), 0);
    assert_eq!(fs::read(&path).expect("there"), OURS);
    assert_eq!(server.read_all(b"replaced").expect("read"), OURS);
    server.instance.stop();
}

#[test]
fn changed_by_who_has_it_open_while_another_file_takes_its_name() {
    changed_while_another_file_takes_its_name(false);
}

#[test]
fn changed_and_closed_while_another_file_takes_its_name() {
    changed_while_another_file_takes_its_name(true);
}
