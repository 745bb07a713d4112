//! One file, its state, what the outsider does to it, and what a program does to it then.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;

use forebay_types::{Errno, Handle, Ino, OpenFlags, RenameMode, SetAttr, XattrMode};

use crate::common::{Running, Scratch, me};
use crate::tree::{self, Tree, conflicts, holds};

/// The version that was drained before anything happened.
const OLDER: &[u8] = b"older version";
/// What was written here since.
const OURS: &[u8] = b"our newer version";
/// What the outsider writes: as long as the version that was there, so that only times tell.
const THEIRS: &[u8] = b"their version";
/// What a program puts in its place.
const OTHER: &[u8] = b"yet another file";

/// Where the file's content is when the outsider comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// New, never drained.
    New,
    /// New, and open for writing.
    NewWritten,
    /// Drained, then changed here.
    Dirty,
    /// Likewise, and open for writing.
    DirtyWritten,
    /// Here and on the PFS.
    Clean,
    /// Likewise, and open for reading.
    CleanRead,
    /// Likewise, and open for writing, but not written.
    CleanWritten,
    /// On the PFS only.
    Pfs,
    /// Likewise, and open for reading.
    PfsRead,
}

impl State {
    pub const ALL: [State; 9] = [
        State::New,
        State::NewWritten,
        State::Dirty,
        State::DirtyWritten,
        State::Clean,
        State::CleanRead,
        State::CleanWritten,
        State::Pfs,
        State::PfsRead,
    ];

    fn is_new(self) -> bool {
        matches!(self, State::New | State::NewWritten)
    }

    fn is_dirty(self) -> bool {
        self.is_new() || matches!(self, State::Dirty | State::DirtyWritten)
    }
}

/// What the outsider does to the name on the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// A file under a name that the PFS does not have yet.
    Make,
    WriteInPlace,
    WriteInPlaceAndSetTimesBack,
    Grow,
    Truncate,
    Replace,
    Remove,
    RenameAway,
    RenameAwayAndMakeAnew,
    Chmod,
    Link,
    MakeDirectory,
    MakeLink,
}

impl Change {
    pub const ALL: [Change; 14] = [
        Change::Nothing,
        Change::Make,
        Change::WriteInPlace,
        Change::WriteInPlaceAndSetTimesBack,
        Change::Grow,
        Change::Truncate,
        Change::Replace,
        Change::Remove,
        Change::RenameAway,
        Change::RenameAwayAndMakeAnew,
        Change::Chmod,
        Change::Link,
        Change::MakeDirectory,
        Change::MakeLink,
    ];

    pub fn applies(self, state: State) -> bool {
        match self {
            Change::Nothing | Change::MakeDirectory | Change::MakeLink => true,
            Change::Make => state.is_new(),
            _ => !state.is_new(),
        }
    }
}

/// What a program does through the mount afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    Append,
    /// By the id it knew before: the kernel believes names for a second.
    AppendByIno,
    Rename,
    ReplaceByNew,
    ReplaceByDrained,
    Exchange,
    Unlink,
    Chmod,
    ChmodByIno,
    XattrByIno,
    Link,
}

#[derive(Debug)]
pub struct Case {
    pub dir: String,
    state: State,
    change: Change,
    then: Then,
    dir_ino: Ino,
    ino: Option<Ino>,
    handle: Option<Handle>,
    /// What the outsider left.
    left: Tree,
    /// How the program's own change went.
    done: Result<(), Errno>,
}

const RW: OpenFlags = OpenFlags(libc::O_RDWR as u32);
const RO: OpenFlags = OpenFlags(libc::O_RDONLY as u32);

impl Case {
    pub fn new(n: usize, state: State, change: Change, then: Then) -> Case {
        Case {
            dir: format!("case-{n:03}"),
            state,
            change,
            then,
            dir_ino: Ino::ROOT,
            ino: None,
            handle: None,
            left: Tree::new(),
            done: Ok(()),
        }
    }

    fn make(&self, server: &Running, name: &[u8], data: &[u8]) -> (Ino, Handle) {
        let made = server.client.create(self.dir_ino, name, 0o644, RW, me());
        let (attr, open) = made.expect("create");
        server.write(open.opened.handle, 0, data).expect("write");
        (attr.ino, open.opened.handle)
    }

    fn open(&self, server: &Running, ino: Ino, flags: OpenFlags) -> Result<Handle, Errno> {
        Ok(server.client.open(ino, flags, me())?.opened.handle)
    }

    /// What must be on the PFS before.
    pub fn publish(&mut self, server: &Running) {
        let made = server
            .client
            .mkdir(Ino::ROOT, self.dir.as_bytes(), 0o755, me());
        self.dir_ino = made.expect("mkdir").ino;
        if !self.state.is_new() {
            let (_, handle) = self.make(server, b"f", OLDER);
            server.client.release(handle).expect("close");
        }
        if matches!(self.then, Then::ReplaceByDrained | Then::Exchange) {
            let (_, handle) = self.make(server, b"other", OTHER);
            server.client.release(handle).expect("close");
        }
    }

    /// Brings the file into its state.
    pub fn prepare(&mut self, server: &Running, scratch: &Scratch) {
        if self.state.is_new() {
            let (ino, handle) = self.make(server, b"f", OURS);
            self.ino = Some(ino);
            match self.state {
                State::NewWritten => self.handle = Some(handle),
                _ => server.client.release(handle).expect("close"),
            }
        }
        if matches!(self.state, State::Pfs | State::PfsRead) {
            let path = format!("{}/f", self.dir);
            let job = server.move_files(forebay_wire::control::Movement::Release, path.as_bytes());
            assert_eq!(job.failed, 0, "{job:?}");
        }
        let ino = *self.ino.get_or_insert_with(|| {
            let found = server.client.lookup(self.dir_ino, b"f", 0);
            found.expect("lookup").ino
        });
        let flags = match self.state {
            State::Dirty | State::DirtyWritten | State::CleanWritten => Some(RW),
            State::CleanRead | State::PfsRead => Some(RO),
            _ => None,
        };
        if let Some(flags) = flags {
            self.handle = Some(self.open(server, ino, flags).expect("open"));
        }
        if matches!(self.state, State::Dirty | State::DirtyWritten) {
            let handle = self.handle.expect("open");
            server.write(handle, 0, OURS).expect("write");
            if self.state == State::Dirty {
                server.client.release(handle).expect("close");
                self.handle = None;
            }
        }
        if self.then == Then::ReplaceByNew {
            let (_, handle) = self.make(server, b"other", OTHER);
            server.client.release(handle).expect("close");
        }
        let on_pfs = self.path(scratch, "f").exists();
        assert_eq!(on_pfs, !self.state.is_new(), "{self:?}");
    }

    fn path(&self, scratch: &Scratch, name: &str) -> PathBuf {
        scratch.pfs().join(&self.dir).join(name)
    }

    /// The outsider's turn.
    pub fn change(&mut self, scratch: &Scratch) {
        let f = self.path(scratch, "f");
        let away = self.path(scratch, "away");
        let aside = scratch.path().join("outsider");
        match self.change {
            Change::Nothing => {}
            Change::Make => fs::write(&f, THEIRS).expect("write"),
            Change::WriteInPlace => fs::write(&f, THEIRS).expect("write"),
            Change::WriteInPlaceAndSetTimesBack => {
                let times = fs::metadata(&f).expect("stat").modified().expect("mtime");
                fs::write(&f, THEIRS).expect("write");
                let file = fs::File::options().write(true).open(&f).expect("open");
                file.set_modified(times).expect("utimens");
            }
            Change::Grow => {
                let file = fs::File::options().write(true).open(&f).expect("open");
                file.write_all_at(b" and more", OLDER.len() as u64)
                    .expect("write");
            }
            Change::Truncate => {
                let file = fs::File::options().write(true).open(&f).expect("open");
                file.set_len(5).expect("truncate");
            }
            Change::Replace => {
                fs::write(&aside, THEIRS).expect("write");
                fs::rename(&aside, &f).expect("rename");
            }
            Change::Remove => fs::remove_file(&f).expect("remove"),
            Change::RenameAway => fs::rename(&f, &away).expect("rename"),
            Change::RenameAwayAndMakeAnew => {
                fs::rename(&f, &away).expect("rename");
                fs::write(&f, THEIRS).expect("write");
            }
            Change::Chmod => {
                fs::set_permissions(&f, Permissions::from_mode(0o640)).expect("chmod");
            }
            Change::Link => fs::hard_link(&f, self.path(scratch, "link")).expect("link"),
            Change::MakeDirectory | Change::MakeLink => {
                if f.exists() {
                    fs::remove_file(&f).expect("remove");
                }
                match self.change {
                    Change::MakeLink => symlink("elsewhere", &f).expect("symlink"),
                    _ => fs::create_dir(&f).expect("mkdir"),
                }
            }
        }
        self.left = tree::snapshot(&scratch.pfs().join(&self.dir));
    }

    /// The program's turn.
    pub fn then(&mut self, server: &Running) {
        self.done = self.act(server);
    }

    fn act(&self, server: &Running) -> Result<(), Errno> {
        let client = &server.client;
        let (dir, old) = (self.dir_ino, self.ino.expect("prepared"));
        let look = || client.lookup(dir, b"f", 0).map(|attr| attr.ino);
        let append = |ino: Ino| {
            let handle = self.open(server, ino, RW)?;
            let size = client.getattr(ino, Some(handle)).map_or(0, |a| a.size);
            let written = server.write(handle, size, b"+");
            client.release(handle).and(written)
        };
        let chmod = |ino: Ino| {
            let set = SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            };
            client.setattr(ino, None, set, me()).map(|_| ())
        };
        let rename = |from: &[u8], to: &[u8], mode| {
            client.lookup(dir, from, 0)?;
            client.rename((dir, from), (dir, to), mode, me())
        };
        match self.then {
            Then::Nothing => Ok(()),
            Then::Append => append(look()?),
            Then::AppendByIno => append(old),
            Then::Rename => rename(b"f", b"g", RenameMode::Replace),
            Then::ReplaceByNew | Then::ReplaceByDrained => {
                rename(b"other", b"f", RenameMode::Replace)
            }
            Then::Exchange => rename(b"other", b"f", RenameMode::Exchange),
            Then::Unlink => {
                look()?;
                client.unlink(dir, b"f", me())
            }
            Then::Chmod => chmod(look()?),
            Then::ChmodByIno => chmod(old),
            Then::XattrByIno => client.set_xattr(old, b"user.k", b"v", XattrMode::Set, me()),
            Then::Link => client.link(look()?, dir, b"k", me()).map(|_| ()),
        }
    }

    pub fn close(&mut self, server: &Running) {
        if let Some(handle) = self.handle.take() {
            server.client.release(handle).expect("close");
        }
    }

    /// What the outsider left must be there as it was left, but for `but` and second versions.
    fn as_left(&self, now: &Tree, but: &[&str]) {
        for (name, entry) in self.left.iter().filter(|(n, _)| !but.contains(&&***n)) {
            assert_eq!(now.get(name), Some(entry), "{self:?}: {name} of {now:?}");
        }
        for name in now.keys().filter(|n| !but.contains(&&***n)) {
            let known = self.left.contains_key(name) || name.contains(".forebay-conflict-");
            assert!(known, "{self:?}: {name} of {now:?}");
        }
    }

    fn has(&self, now: &Tree, name: &str, data: &[u8]) {
        let found = now.get(name).and_then(|e| e.data.as_deref());
        assert_eq!(found, Some(data), "{self:?}: {name} of {now:?}");
    }

    /// Ours is there as a second version, and nothing else is.
    fn ours_beside(&self, now: &Tree, data: &[u8]) {
        assert_eq!(conflicts(now), 1, "{self:?}: {now:?}");
        assert!(holds(now, data), "{self:?}: {now:?}");
    }

    /// Whether something else than what Forebay put there has been under the name.
    fn is_conflict(&self) -> bool {
        self.state.is_dirty() && self.change != Change::Nothing
    }

    fn plus(data: &[u8]) -> Vec<u8> {
        [data, b"+"].concat()
    }

    /// What the outsider left under the name, if that is a regular file.
    fn theirs(&self) -> Option<&[u8]> {
        self.left.get("f").and_then(|e| e.data.as_deref())
    }

    /// Compares the PFS with what must have come of it.
    pub fn check(&self, now: &Tree) {
        match self.then {
            Then::Nothing => self.check_nothing(now, OURS),
            Then::Append => self.check_append(now),
            Then::AppendByIno => self.check_append_by_ino(now),
            Then::Rename => self.check_rename(now),
            Then::ReplaceByNew | Then::ReplaceByDrained => self.check_replace(now),
            Then::Exchange => self.check_exchange(now),
            Then::Unlink => self.check_unlink(now),
            Then::Chmod | Then::ChmodByIno | Then::XattrByIno => self.check_attributes(now),
            Then::Link => self.check_link(now),
        }
    }

    fn check_nothing(&self, now: &Tree, ours: &[u8]) {
        if self.is_conflict() {
            self.as_left(now, &[]);
            self.ours_beside(now, ours);
        } else if self.state.is_dirty() {
            self.has(now, "f", ours);
            assert_eq!(now.len(), 1, "{self:?}: {now:?}");
        } else {
            assert_eq!(*now, self.left, "{self:?}");
        }
    }

    fn check_append(&self, now: &Tree) {
        if self.state.is_dirty() {
            assert_eq!(self.done, Ok(()), "{self:?}");
            return self.check_nothing(now, &Case::plus(OURS));
        }
        self.as_left(now, &["f", "link"]);
        match self.theirs() {
            Some(theirs) => self.has(now, "f", &Case::plus(theirs)),
            None => assert!(self.done.is_err(), "{self:?}"),
        }
    }

    fn check_append_by_ino(&self, now: &Tree) {
        if self.state.is_dirty() {
            return self.check_append(now);
        }
        if self.state == State::PfsRead {
            // Who has it open still has that very file, whatever it is called by now: what the
            // outsider left is there, or is longer.
            for (name, entry) in &self.left {
                let (left, found) = (&entry.data, now.get(name).and_then(|e| e.data.as_ref()));
                let longer = matches!((left, found), (Some(l), Some(f)) if f.starts_with(l));
                let same = now.get(name) == Some(entry);
                assert!(same || longer, "{self:?}: {name} of {now:?}");
            }
            return;
        }
        if self.done.is_err() {
            return assert_eq!(*now, self.left, "{self:?}");
        }
        // What it appended to was the older version, or the outsider's in place.
        let both = holds(now, &Case::plus(OLDER));
        let in_place = self.state == State::Pfs;
        match self.change {
            Change::Nothing => self.has(now, "f", &Case::plus(OLDER)),
            _ if in_place && is_attribute(self.change) => {
                self.has(now, "f", &Case::plus(OLDER));
            }
            _ if both => {
                self.as_left(now, &[]);
                self.ours_beside(now, &Case::plus(OLDER));
            }
            _ => {
                let theirs = self.theirs().map(Case::plus);
                assert!(theirs.is_some_and(|t| holds(now, &t)), "{self:?}: {now:?}");
            }
        }
    }

    fn check_rename(&self, now: &Tree) {
        if self.state.is_dirty() {
            assert_eq!(self.done, Ok(()), "{self:?}");
            self.has(now, "g", OURS);
            if self.is_conflict() {
                self.as_left(now, &["g"]);
            }
            assert_eq!(conflicts(now), 0, "{self:?}: {now:?}");
            return;
        }
        assert_eq!(self.done.is_ok(), self.left.contains_key("f"), "{self:?}");
        let mut expected = self.left.clone();
        if let Some(entry) = expected.remove("f") {
            expected.insert("g".into(), entry);
        }
        assert_eq!(*now, expected, "{self:?}");
    }

    fn check_replace(&self, now: &Tree) {
        let directory = self
            .left
            .get("f")
            .is_some_and(|e| e.target.as_deref() == Some(""));
        if directory && !self.state.is_dirty() {
            assert_eq!(self.done, Err(Errno::EISDIR), "{self:?}");
            return self.has(now, "other", OTHER);
        }
        assert_eq!(self.done, Ok(()), "{self:?}");
        assert!(holds(now, OTHER), "{self:?}: {now:?}");
        assert!(!now.contains_key("other"), "{self:?}: {now:?}");
        for (name, entry) in &self.left {
            // What was shown under the name was replaced.
            let meant = name == "f" && (!self.is_conflict() || is_attribute(self.change));
            if name != "other" && !meant {
                let kept = now.values().any(|e| e == entry);
                assert!(kept, "{self:?}: {name} is lost: {now:?}");
            }
        }
        if !self.is_conflict() {
            self.has(now, "f", OTHER);
            assert_eq!(conflicts(now), 0, "{self:?}: {now:?}");
        }
    }

    fn check_exchange(&self, now: &Tree) {
        if !self.state.is_dirty() && !self.left.contains_key("f") {
            return assert_eq!(self.done, Err(Errno::ENOENT), "{self:?}");
        }
        assert_eq!(self.done, Ok(()), "{self:?}");
        self.has(now, "f", OTHER);
        if self.state.is_dirty() {
            self.has(now, "other", OURS);
        } else {
            assert_eq!(now.get("other"), self.left.get("f"), "{self:?}");
        }
        for (name, entry) in &self.left {
            let kept = now.values().any(|e| e == entry);
            let older = !self.is_conflict() && name == "f";
            assert!(kept || older, "{self:?}: {name} is lost: {now:?}");
        }
    }

    fn check_unlink(&self, now: &Tree) {
        if self.state.is_dirty() {
            assert_eq!(self.done, Ok(()), "{self:?}");
            assert!(!holds(now, OURS), "{self:?}: {now:?}");
            // Size and mtime are all that tells a change of content from one of attributes here.
            let attribute = is_attribute(self.change)
                || matches!(
                    self.change,
                    Change::Nothing | Change::WriteInPlaceAndSetTimesBack
                );
            let but: &[&str] = if attribute { &["f"] } else { &[] };
            self.as_left(now, but);
            assert!(!attribute || !now.contains_key("f"), "{self:?}: {now:?}");
        } else {
            let directory = self
                .left
                .get("f")
                .is_some_and(|e| e.target.as_deref() == Some(""));
            let expected = match self.left.contains_key("f") {
                false => Err(Errno::ENOENT),
                true if directory => Err(Errno::EISDIR),
                true => Ok(()),
            };
            assert_eq!(self.done, expected, "{self:?}");
            self.as_left(now, &["f"]);
            assert_eq!(now.contains_key("f"), directory, "{self:?}: {now:?}");
        }
        assert_eq!(conflicts(now), 0, "{self:?}: {now:?}");
    }

    fn check_attributes(&self, now: &Tree) {
        if self.state.is_dirty() {
            self.check_nothing(now, OURS);
        } else {
            // Who has it open on the PFS changes that very file, whatever it is called by now.
            let but: &[&str] = match (self.done.is_ok(), self.state) {
                (true, State::PfsRead) => &["f", "link", "away"],
                (true, _) => &["f", "link"],
                (false, _) => &[],
            };
            self.as_left(now, but);
            assert_eq!(conflicts(now), 0, "{self:?}: {now:?}");
            let data = |tree: &Tree| tree.get("f").map(|e| (e.data.clone(), e.target.clone()));
            assert_eq!(data(now), data(&self.left), "{self:?}");
        }
    }

    fn check_link(&self, now: &Tree) {
        if !self.state.is_dirty() {
            self.as_left(now, &["k"]);
            let same = now.get("k") == self.left.get("f");
            return assert!(same || self.done.is_err(), "{self:?}: {now:?}");
        }
        assert_eq!(self.done, Ok(()), "{self:?}");
        self.has(now, "k", OURS);
        if self.is_conflict() {
            self.as_left(now, &["k"]);
            assert_eq!(conflicts(now), 1, "{self:?}: {now:?}");
        }
    }
}

/// Changes that leave the content as it was.
fn is_attribute(change: Change) -> bool {
    matches!(change, Change::Chmod | Change::Link)
}
