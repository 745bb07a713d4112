//! Changes of names whose record the store refuses: an error means that nothing has changed; what
//! the PFS has done already is done, and no error. Each is looked at in the run that met it, after
//! a kill, and after the store was opened again.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_kv::Store;
use forebay_kv::failing::{Failing, Outcome};
use forebay_kv::memory::Memory;
use forebay_namespace::{Arrival, File, Free, Namespace, NewFile, NsError};
use forebay_tiers::{PfsTree, Sums};
use forebay_types::{Cred, Errno, Ino, ObjectId, Process, RenameMode, TierId, TimeSpec};

/// A store that outlives the tree on it.
type Shared = Arc<Failing<Memory>>;

struct Lab {
    dir: tempfile::TempDir,
    store: Shared,
    ns: Namespace,
    files: Vec<Arc<File>>,
}

fn cred() -> Cred {
    Cred {
        uid: uid(),
        gid: 0,
        process: Process::here(0),
        umask: 0,
    }
}

/// Whoever owns what the test makes.
fn uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").expect("proc").uid()
}

fn open(dir: &tempfile::TempDir, store: &Shared) -> (Namespace, forebay_namespace::Loaded) {
    let pfs = PfsTree::open(dir.path()).expect("PFS");
    Namespace::open(pfs, Box::new(store.clone()), [7; 16]).expect("open")
}

impl Lab {
    fn new() -> Lab {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Arc::new(Failing::new(Memory::new()));
        let (ns, _) = open(&dir, &store);
        let files = Vec::new();
        Lab {
            dir,
            store,
            ns,
            files,
        }
    }

    fn pfs(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file that is in the burst buffer only.
    fn create(&mut self, name: &str) -> Arc<File> {
        let (dir, gid) = self
            .ns
            .check_free(Ino::ROOT, name.as_bytes(), &cred())
            .expect("free");
        let new = NewFile {
            object: self.ns.new_object().expect("id"),
            tier: TierId(2),
            perm: 0o644,
            xattrs: Vec::new(),
            cred: cred(),
            writing: false,
            born: TimeSpec::now(),
        };
        let (_, file) = self
            .ns
            .create(&dir, name.as_bytes(), gid, &new)
            .expect("create");
        self.files.push(file.clone());
        self.ns.sync().expect("sync");
        file
    }

    /// A file of the PFS with a clean copy in the burst buffer.
    fn bring_in(&mut self, parent: Ino, path: &str) -> Arc<File> {
        std::fs::write(self.pfs(path), path).expect("write");
        let forebay_namespace::Node::Dir(dir) = self.ns.node(parent).expect("node") else {
            panic!("no directory");
        };
        let name = path.rsplit('/').next().expect("name").as_bytes();
        let handle = self.ns.open_dir(&dir).expect("directory");
        let stat = self.ns.pfs().stat(&handle, name).expect("stat");
        let arrival = Arrival {
            object: self.ns.new_object().expect("id"),
            tier: TierId(2),
            sums: Some(Sums::whole(stat.size, 0)),
            allocated_bytes: 0,
        };
        let file = self.ns.attach(&dir, name, &stat, &arrival).expect("attach");
        self.files.push(file.clone());
        self.ns.sync().expect("sync");
        file
    }

    /// The `nth` commit from now fails, and all after it.
    fn fail(&self, nth: u64) {
        self.store.fail_nth_commit(nth, libc::ENOSPC, Outcome::Lost);
    }

    fn mend(&self) {
        assert_eq!(self.store.fired(), 1, "nothing was tested");
        let find = |object: ObjectId| self.files.iter().find(|f| f.object == object).cloned();
        assert!(self.ns.mend(&find).expect("mended"));
    }

    /// As after a kill: a new tree on what the store and the PFS have. Answers with how many
    /// changes were pending.
    fn restart(&mut self) -> usize {
        assert_eq!(self.store.fired(), 1, "nothing was tested");
        self.store.mend().expect("store");
        let (ns, loaded) = open(&self.dir, &self.store);
        let pending = loaded.changes.len();
        for change in loaded.changes {
            ns.settle_change(change).expect("settled");
        }
        self.files = loaded.files;
        self.ns = ns;
        pending
    }

    /// The object behind a path; `None`: a file of the PFS alone.
    fn object(&self, path: &str) -> Result<Option<ObjectId>, Errno> {
        let mut parent = Ino::ROOT;
        let mut found = None;
        for name in path.split('/') {
            let at = self.ns.lookup(parent, name.as_bytes());
            let at = at.map_err(|error| error.errno())?;
            parent = at.attr.ino;
            found = at.file.map(|file| file.object);
        }
        Ok(found)
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), NsError> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let renamed = self.ns.rename(Ino::ROOT, from, Ino::ROOT, to, mode);
        renamed.map(drop)
    }

    fn link(&self, name: &str, new: &str) -> Result<(), NsError> {
        let ino = self.ns.lookup(Ino::ROOT, name.as_bytes())?.attr.ino;
        self.ns.link(ino, Ino::ROOT, new.as_bytes()).map(drop)
    }

    fn refused(&self, done: Result<(), NsError>) {
        let error = done.expect_err("no error");
        assert!(matches!(error, NsError::Store(_)), "{error}");
        assert_eq!(self.store.fired(), 1);
    }
}

/// Runs `check` in the run that met the error once the store is mended, after a restart after that,
/// and after a kill instead.
fn everywhere(begin: impl Fn() -> Lab, check: impl Fn(&Lab)) {
    let mut lab = begin();
    check(&lab);
    lab.mend();
    check(&lab);
    assert_eq!(lab.restart(), 0, "an intent stays for ever");
    check(&lab);
    let mut lab = begin();
    lab.restart();
    check(&lab);
    assert!(lab.ns.take_conflicts().is_empty());
}

#[test]
fn an_unlink_of_an_undrained_file_is_refused_and_the_file_stays() {
    let begin = || {
        let mut lab = Lab::new();
        lab.create("f");
        lab.fail(1);
        lab.refused(lab.ns.unlink(Ino::ROOT, b"f").map(drop));
        lab
    };
    everywhere(begin, |lab| {
        assert!(lab.object("f").expect("there").is_some())
    });
}

#[test]
fn an_unlink_of_a_clean_file_is_done_when_the_pfs_has_lost_it() {
    let begin = || {
        let mut lab = Lab::new();
        lab.bring_in(Ino::ROOT, "f");
        lab.fail(1);
        lab.ns.unlink(Ino::ROOT, b"f").expect("done");
        lab
    };
    everywhere(begin, |lab| {
        assert_eq!(lab.object("f"), Err(Errno::ENOENT));
        assert!(!lab.pfs("f").exists());
    });
}

#[test]
fn an_unlink_of_a_changed_file_is_refused_and_no_outsider_is_blamed() {
    let begin = || {
        let mut lab = Lab::new();
        let file = lab.bring_in(Ino::ROOT, "f");
        lab.ns.begin_change(&file, false, true).expect("change");
        // That it goes is on record, and that it is gone is not.
        lab.fail(2);
        lab.refused(lab.ns.unlink(Ino::ROOT, b"f").map(drop));
        lab
    };
    everywhere(begin, |lab| {
        assert!(lab.object("f").expect("there").is_some());
        assert!(lab.ns.take_conflicts().is_empty());
    });
}

#[test]
fn an_unlink_of_one_of_several_names_is_done_once_its_intent_is_on_record() {
    let begin = || {
        let mut lab = Lab::new();
        lab.bring_in(Ino::ROOT, "f");
        lab.link("f", "g").expect("link");
        lab.ns.sync().expect("sync");
        lab.fail(2);
        lab.ns.unlink(Ino::ROOT, b"f").expect("done");
        lab
    };
    everywhere(begin, |lab| {
        assert_eq!(lab.object("f"), Err(Errno::ENOENT));
        assert!(lab.object("g").expect("there").is_some());
        assert!(!lab.pfs("f").exists() && lab.pfs("g").exists());
    });
}

#[test]
fn a_rename_of_an_undrained_file_is_refused_and_both_stay_what_they_were() {
    let begin = || {
        let mut lab = Lab::new();
        lab.create("f");
        let old = lab.create("g");
        lab.link("g", "h").expect("link");
        lab.fail(1);
        lab.refused(lab.rename("f", "g", RenameMode::Replace));
        assert_eq!(old.lock().names.len(), 2, "a name was lost");
        lab
    };
    everywhere(begin, |lab| {
        let [f, g, h] = ["f", "g", "h"].map(|name| lab.object(name).expect("there"));
        assert!(f.is_some() && f != g && g == h);
    });
}

#[test]
fn a_rename_on_the_pfs_is_done_once_its_intent_is_on_record() {
    let begin = || {
        let mut lab = Lab::new();
        lab.bring_in(Ino::ROOT, "f");
        lab.bring_in(Ino::ROOT, "g");
        lab.fail(2);
        lab.rename("f", "g", RenameMode::Replace).expect("done");
        lab
    };
    everywhere(begin, |lab| {
        assert_eq!(lab.object("f"), Err(Errno::ENOENT));
        assert!(lab.object("g").expect("there").is_some());
        assert_eq!(std::fs::read(lab.pfs("g")).expect("read"), b"f");
    });
}

#[test]
fn a_rename_whose_intent_is_refused_changes_nothing() {
    let begin = || {
        let mut lab = Lab::new();
        lab.bring_in(Ino::ROOT, "f");
        lab.fail(1);
        lab.refused(lab.rename("f", "g", RenameMode::Replace));
        lab
    };
    everywhere(begin, |lab| {
        assert!(lab.object("f").expect("there").is_some());
        assert_eq!(lab.object("g"), Err(Errno::ENOENT));
        assert!(lab.pfs("f").exists() && !lab.pfs("g").exists());
    });
}

#[test]
fn a_directory_renamed_on_the_pfs_takes_its_files_along() {
    let begin = || {
        let mut lab = Lab::new();
        let made = lab.ns.mkdir(Ino::ROOT, b"d", 0o755, &cred());
        let dir = made.expect("mkdir").ino;
        lab.bring_in(dir, "d/f");
        lab.fail(2);
        lab.rename("d", "e", RenameMode::Replace).expect("done");
        lab
    };
    everywhere(begin, |lab| {
        assert_eq!(lab.object("d"), Err(Errno::ENOENT));
        assert!(lab.object("e/f").expect("there").is_some());
    });
}

#[test]
fn an_exchange_in_the_burst_buffer_is_refused_and_one_on_the_pfs_is_done() {
    let begin = || {
        let mut lab = Lab::new();
        let objects = [lab.create("f").object, lab.create("g").object];
        lab.fail(1);
        lab.refused(lab.rename("f", "g", RenameMode::Exchange));
        let now = ["f", "g"].map(|name| lab.object(name).expect("there"));
        assert_eq!(now, objects.map(Some));
        lab
    };
    everywhere(begin, |lab| {
        let objects = ["f", "g"].map(|name| lab.object(name).expect("there"));
        assert!(objects[0] < objects[1], "they are exchanged");
    });
    let begin = || {
        let mut lab = Lab::new();
        lab.bring_in(Ino::ROOT, "f");
        lab.create("g");
        lab.fail(2);
        lab.rename("f", "g", RenameMode::Exchange).expect("done");
        lab
    };
    everywhere(begin, |lab| {
        let objects = ["f", "g"].map(|name| lab.object(name).expect("there"));
        assert!(objects[0] > objects[1], "they are not exchanged");
        assert!(lab.pfs("g").exists() && !lab.pfs("f").exists());
    });
}

#[test]
fn a_link_that_cannot_be_recorded_is_no_name() {
    for (on_pfs, commit) in [(false, 1), (true, 1), (true, 2)] {
        let begin = || {
            let mut lab = Lab::new();
            match on_pfs {
                true => lab.bring_in(Ino::ROOT, "f"),
                false => lab.create("f"),
            };
            lab.fail(commit);
            lab.refused(lab.link("f", "g"));
            lab
        };
        everywhere(begin, |lab| {
            assert!(lab.object("f").expect("there").is_some());
            assert_eq!(lab.object("g"), Err(Errno::ENOENT));
            assert!(!lab.pfs("g").exists());
        });
    }
}

#[test]
fn a_file_that_cannot_be_recorded_with_its_list_is_not_made() {
    let mut lab = Lab::new();
    let dir = lab.ns.root().clone();
    let new = NewFile {
        object: lab.ns.new_object().expect("id"),
        tier: TierId(2),
        perm: 0o644,
        xattrs: vec![(b"user.x".to_vec(), b"y".to_vec())],
        cred: cred(),
        writing: false,
        born: TimeSpec::now(),
    };
    let free = Free::now(&dir, b"f", 0);
    lab.fail(1);
    let made = lab.ns.create(&dir, b"f", free, &new).map(drop);
    lab.refused(made);
    let free = lab.ns.check_free(Ino::ROOT, b"f", &cred());
    assert!(free.is_ok(), "its name is taken by nobody");
    lab.restart();
    assert_eq!(lab.object("f"), Err(Errno::ENOENT));
}

#[test]
fn a_directory_that_the_pfs_has_removed_is_removed() {
    let mut lab = Lab::new();
    let made = lab.ns.mkdir(Ino::ROOT, b"d", 0o755, &cred());
    let dir = made.expect("mkdir").ino;
    lab.bring_in(dir, "d/f");
    lab.ns.unlink(dir, b"f").expect("unlink");
    lab.ns.sync().expect("sync");
    lab.fail(1);
    lab.ns.rmdir(Ino::ROOT, b"d").expect("done");
    assert_eq!(lab.object("d"), Err(Errno::ENOENT));
    lab.restart();
    assert_eq!(lab.object("d"), Err(Errno::ENOENT));
}

impl Lab {
    /// An outsider writes the file in place on the PFS.
    fn written_outside(&self, name: &str) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(self.pfs(name));
        let data = b"what an outsider has written";
        file.and_then(|file| file.write_all_at(data, 0))
            .expect("write");
    }

    /// Whether the file that has this name here takes what the PFS has there for what it has
    /// published.
    fn is_known(&self, name: &str) -> bool {
        let found = self.ns.root().child(name.as_bytes()).expect("here");
        let published = found.lock().residency.published;
        let root = self.ns.open_dir(self.ns.root()).expect("root");
        let stat = self.ns.pfs().stat(&root, name.as_bytes()).expect("there");
        published.is_some_and(|published| published.is(&stat))
    }
}

#[test]
fn what_an_outsider_writes_after_an_interrupted_exchange_is_not_taken_for_ours() {
    for written in [&[][..], &["f"], &["g"], &["f", "g"]] {
        let mut lab = Lab::new();
        for name in ["f", "g"] {
            let file = lab.bring_in(Ino::ROOT, name);
            lab.ns.begin_change(&file, false, true).expect("change");
        }
        lab.ns.sync().expect("sync");
        lab.fail(2);
        lab.rename("f", "g", RenameMode::Exchange).expect("done");
        written.iter().for_each(|name| lab.written_outside(name));
        lab.restart();
        for name in ["f", "g"] {
            assert_eq!(
                lab.is_known(name),
                !written.contains(&name),
                "{name} of {written:?}"
            );
        }
    }
}

#[test]
fn what_an_outsider_writes_after_an_interrupted_unlink_is_not_taken_for_ours() {
    for written in [false, true] {
        let mut lab = Lab::new();
        let file = lab.bring_in(Ino::ROOT, "f");
        lab.ns.begin_change(&file, false, true).expect("change");
        // It is on record that it goes, and then the PFS loses it: for the kill to come between
        // them it is there again.
        std::fs::hard_link(lab.pfs("f"), lab.pfs("f.kept")).expect("link");
        lab.fail(2);
        lab.refused(lab.ns.unlink(Ino::ROOT, b"f").map(drop));
        std::fs::rename(lab.pfs("f.kept"), lab.pfs("f")).expect("rename");
        if written {
            lab.written_outside("f");
        }
        lab.restart();
        assert_eq!(lab.is_known("f"), !written);
    }
}
