//! What an outsider does to one of two hard links on the PFS while a newer version is here: the
//! other name, under which it is published, looks as it was left.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use forebay_types::{Ino, OpenFlags};

use crate::common::{Running, Scratch, me, settings};
use crate::tree::{Tree, conflicts, holds, snapshot};
use crate::{TICK, by_hand};

const OLDER: &[u8] = b"older version";
const OURS: &[u8] = b"our newer version";
const THEIRS: &[u8] = b"their version";
const RW: OpenFlags = OpenFlags(libc::O_RDWR as u32);

/// What is done to the second name on the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    Make,
    Replace,
    Remove,
    RenameAway,
    RenameAwayAndMakeAnew,
    MakeDirectory,
    MakeLink,
}

const OF_NEW: [Change; 4] = [
    Change::Nothing,
    Change::Make,
    Change::MakeDirectory,
    Change::MakeLink,
];
const OF_DRAINED: [Change; 7] = [
    Change::Nothing,
    Change::Replace,
    Change::Remove,
    Change::RenameAway,
    Change::RenameAwayAndMakeAnew,
    Change::MakeDirectory,
    Change::MakeLink,
];

struct Case {
    dir: String,
    new: bool,
    change: Change,
    left: Tree,
}

impl Case {
    fn path(&self, scratch: &Scratch, name: &str) -> PathBuf {
        scratch.pfs().join(&self.dir).join(name)
    }

    fn ino(&self, server: &Running) -> Ino {
        server.find(self.dir.as_bytes()).expect("directory").ino
    }

    /// `f` and its second name `s`.
    fn make(&self, server: &Running, data: &[u8]) {
        let dir = server
            .client
            .mkdir(Ino::ROOT, self.dir.as_bytes(), 0o755, me());
        let dir = dir.expect("mkdir").ino;
        let made = server.client.create(dir, b"f", 0o644, RW, me());
        let (attr, open) = made.expect("create");
        server.write(open.opened.handle, 0, data).expect("write");
        server.client.release(open.opened.handle).expect("close");
        server.client.link(attr.ino, dir, b"s", me()).expect("link");
    }

    fn rewrite(&self, server: &Running) {
        let found = server.client.lookup(self.ino(server), b"f", 0);
        let open = server.client.open(found.expect("lookup").ino, RW, me());
        let handle = open.expect("open").opened.handle;
        server.write(handle, 0, OURS).expect("write");
        server.client.release(handle).expect("close");
    }

    fn change(&mut self, scratch: &Scratch) {
        let (s, away) = (self.path(scratch, "s"), self.path(scratch, "away"));
        let aside = scratch.path().join("outsider");
        match self.change {
            Change::Nothing => {}
            Change::Make => fs::write(&s, THEIRS).expect("write"),
            Change::Replace => {
                fs::write(&aside, THEIRS).expect("write");
                fs::rename(&aside, &s).expect("rename");
            }
            Change::Remove => fs::remove_file(&s).expect("remove"),
            Change::RenameAway => fs::rename(&s, &away).expect("rename"),
            Change::RenameAwayAndMakeAnew => {
                fs::rename(&s, &away).expect("rename");
                fs::write(&s, THEIRS).expect("write");
            }
            Change::MakeDirectory | Change::MakeLink => {
                if !self.new {
                    fs::remove_file(&s).expect("remove");
                }
                match self.change {
                    Change::MakeLink => symlink("elsewhere", &s).expect("symlink"),
                    _ => fs::create_dir(&s).expect("mkdir"),
                }
            }
        }
        self.left = snapshot(&scratch.pfs().join(&self.dir));
    }

    /// Whether something of the outsider's is under the name.
    fn is_conflict(&self) -> bool {
        !matches!(
            self.change,
            Change::Nothing | Change::Remove | Change::RenameAway
        )
    }

    fn check(&self, now: &Tree) {
        let what = format!("{:?} (new: {}): {now:?}", self.change, self.new);
        let data = |name: &str| now.get(name).and_then(|entry| entry.data.as_deref());
        assert_eq!(data("f"), Some(OURS), "{what}");
        match self.change {
            Change::Nothing => assert_eq!(data("s"), Some(OURS), "{what}"),
            Change::Remove | Change::RenameAway => {
                assert!(!now.contains_key("s"), "it came back: {what}");
            }
            _ => assert_eq!(now.get("s"), self.left.get("s"), "{what}"),
        }
        assert_eq!(now.get("away"), self.left.get("away"), "{what}");
        assert_eq!(conflicts(now), usize::from(self.is_conflict()), "{what}");
        let beside = now.iter().filter(|(name, _)| name.contains(".forebay-"));
        for (_, entry) in beside {
            assert_eq!(entry.data.as_deref(), Some(OURS), "{what}");
        }
        assert!(self.change == Change::Nothing || !self.new || holds(now, OURS));
    }
}

#[test]
fn a_second_name_that_an_outsider_replaced_or_removed_stays_so() {
    let scratch = Scratch::new();
    let server = Running::start(&by_hand(settings(scratch.path(), 64 << 20)), false);
    let of = |new: bool| move |change: &Change| (new, *change);
    let all = OF_DRAINED
        .iter()
        .map(of(false))
        .chain(OF_NEW.iter().map(of(true)));
    let mut cases: Vec<Case> = all
        .enumerate()
        .map(|(n, (new, change))| Case {
            dir: format!("case-{n:02}"),
            new,
            change,
            left: Tree::new(),
        })
        .collect();
    let drained = |case: &&Case| !case.new;
    cases
        .iter()
        .filter(drained)
        .for_each(|case| case.make(&server, OLDER));
    let stage_out = || server.stage_out_past_outsiders();
    stage_out();
    for case in &cases {
        match case.new {
            true => case.make(&server, OURS),
            false => case.rewrite(&server),
        }
    }
    std::thread::sleep(TICK);
    cases.iter_mut().for_each(|case| case.change(&scratch));
    stage_out();
    let check = |case: &Case| case.check(&snapshot(&scratch.pfs().join(&case.dir)));
    cases.iter().for_each(check);
    let expected = cases.iter().filter(|case| case.is_conflict()).count();
    assert_eq!(server.status().conflicts_total, expected as u64);
    assert_eq!(server.instance.undrained().undrained_files, 0);
    // A further version goes to the names that are left, and nowhere else.
    for case in &cases {
        case.rewrite(&server);
    }
    stage_out();
    cases.iter().for_each(check);
    assert_eq!(server.status().conflicts_total, expected as u64);
    server.instance.stop();
}
