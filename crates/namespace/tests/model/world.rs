//! The tree under test beside its reference, and the operations of programs.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_kv::memory::Memory;
use forebay_namespace::{
    Arrival, AttrPlan, Demotion, Dir, File, Found, Free, Loaded, Namespace, NewFile, Node, NsError,
};
use forebay_tiers::{ObjectStat, PfsTree, Sums};
use forebay_types::{
    Cred, Errno, FileKind, Ino, ObjectId, Process, RenameMode, SetAttr, TierId, TimeSpec, XattrMode,
};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};

use crate::reference::{self, Facts, FileId, Path, Reference, name, parent};

/// So few names that they meet.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Directories lie so deep.
const DEPTH_MAX: usize = 3;
const TIER: TierId = TierId(2);

/// A store that outlives the tree on it.
type Shared = Arc<Memory>;

/// A copy that is on its way.
pub struct Pending {
    pub demotion: Demotion,
    pub made: std::fs::File,
    pub is_named: bool,
    pub sums: Sums,
}

pub struct World {
    pub rng: StdRng,
    pub top: tempfile::TempDir,
    store: Shared,
    pub ns: Namespace,
    pub reference: Reference,
    /// Content of the objects.
    pub objects: HashMap<ObjectId, Vec<u8>>,
    pub pending: Option<Pending>,
    /// Files without a name, and what they are.
    unnamed: Vec<(Arc<File>, Facts)>,
    /// Every content has another length: an outsider's change in the same tick of the clock shows.
    lengths: usize,
    is_told: bool,
}

pub fn cred() -> Cred {
    use std::os::unix::fs::MetadataExt;
    let me = std::fs::metadata("/proc/self").expect("proc");
    Cred {
        uid: me.uid(),
        gid: me.gid(),
        process: Process::here(0),
        umask: 0,
    }
}

fn open(top: &tempfile::TempDir, store: &Shared, unnamed: bool) -> (Namespace, Loaded) {
    let pfs = PfsTree::open(top.path()).expect("PFS");
    if !unnamed {
        pfs.without_unnamed();
    }
    Namespace::open(pfs, Box::new(store.clone()), [7; 16]).expect("open")
}

fn errno<T>(done: Result<T, NsError>) -> Result<(), Errno> {
    done.map(|_| ()).map_err(|error| error.errno())
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let top = tempfile::tempdir().expect("temporary directory");
        let store = Arc::new(Memory::new());
        let (ns, _) = open(&top, &store, rng.random());
        World {
            rng,
            top,
            store,
            ns,
            reference: Reference::default(),
            objects: HashMap::new(),
            pending: None,
            unnamed: Vec::new(),
            lengths: 0,
            is_told: std::env::var_os("FOREBAY_MODEL_TRACE").is_some(),
        }
    }

    /// For who repeats a run with `FOREBAY_MODEL_TRACE`.
    pub fn tell(&self, what: &str, path: &str) {
        if self.is_told {
            let below = std::fs::symlink_metadata(self.on_pfs(path)).is_ok();
            eprintln!("{what} {path}, on the PFS: {below}");
        }
    }

    pub fn on_pfs(&self, path: &str) -> std::path::PathBuf {
        self.top.path().join(path)
    }

    pub fn content(&mut self) -> Vec<u8> {
        self.lengths += 1;
        let byte = self.rng.random_range(b'a'..=b'z');
        vec![byte; self.lengths]
    }

    /// The directory of a path, as the kernel finds it.
    pub fn dir(&self, path: &str) -> Arc<Dir> {
        let mut at = Ino::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let found = self.ns.lookup(at, part.as_bytes());
            at = found.expect("a directory of the reference").attr.ino;
        }
        match self.ns.node(at) {
            Ok(Node::Dir(dir)) => dir,
            _ => panic!("{path}: no directory"),
        }
    }

    /// What the tree has under a path.
    pub fn find(&self, path: &str) -> Result<Found, Errno> {
        let dir = self.dir(parent(path));
        let found = self.ns.lookup(dir.ino, name(path).as_bytes());
        found.map_err(|error| error.errno())
    }

    pub fn buffered(&self, path: &str) -> Option<Arc<File>> {
        self.find(path).ok()?.file
    }

    /// A path with a directory above it, in use or not.
    pub fn any_path(&mut self) -> Path {
        let dirs = self.reference.nodes.iter();
        let dirs = dirs.filter(|(path, node)| {
            **node == reference::Node::Dir && path.split('/').count() < DEPTH_MAX
        });
        let dirs: Vec<Path> = dirs.map(|(path, _)| format!("{path}/")).collect();
        let above = match self.rng.random_bool(0.4) {
            true => String::new(),
            false => dirs.choose(&mut self.rng).cloned().unwrap_or_default(),
        };
        let name = NAMES.choose(&mut self.rng).expect("names");
        format!("{above}{name}")
    }

    pub fn any_file(&mut self) -> Option<(Path, FileId)> {
        let files = self.reference.nodes.iter();
        let files = files.filter_map(|(path, node)| match node {
            reference::Node::File(id) => Some((path.clone(), *id)),
            reference::Node::Dir => None,
        });
        files.choose(&mut self.rng)
    }

    fn new_file(&mut self, perm: u16) -> NewFile {
        let object = self.ns.new_object().expect("id");
        self.objects.insert(object, Vec::new());
        NewFile {
            object,
            tier: TIER,
            perm,
            xattrs: Vec::new(),
            cred: cred(),
            writing: false,
            born: TimeSpec::now(),
        }
    }

    pub fn create(&mut self) {
        let path = self.any_path();
        self.tell("create", &path);
        // As the kernel does: a name that was found missing a moment ago is believed to be free.
        let found = self.find(&path).is_ok();
        let dir = self.dir(parent(&path));
        let free = self.ns.check_free(dir.ino, name(&path).as_bytes(), &cred());
        if self.reference.nodes.contains_key(&path) {
            assert!(found, "{path}");
            assert_eq!(errno(free), Err(Errno::EEXIST), "{path}");
            return;
        }
        let (dir, free) = free.unwrap_or_else(|error| panic!("{path} is free: {error}"));
        self.create_free(&dir, free, &path);
    }

    /// Its name is free.
    pub fn create_at(&mut self, dir: &Arc<Dir>, gid: u32, path: &str) -> Arc<File> {
        let free = Free::now(dir, name(path).as_bytes(), gid);
        self.create_free(dir, free, path)
    }

    fn create_free(&mut self, dir: &Arc<Dir>, free: Free, path: &str) -> Arc<File> {
        let new = self.new_file(0o640);
        let created = self.ns.create(dir, name(path).as_bytes(), free, &new);
        let (_, file) = created.expect("created");
        let content = self.content();
        self.put(&file, content.clone());
        self.reference.add(path, Facts::new(content, 0o640));
        file
    }

    /// Makes a file without a name, or gives one its first.
    pub fn unnamed(&mut self) {
        let path = self.any_path();
        self.tell("unnamed", &path);
        let dir = self.dir(parent(&path));
        if self.unnamed.is_empty() || self.rng.random() {
            let (dir, gid) = self.ns.check_unnamed(dir.ino, &cred()).expect("directory");
            let new = self.new_file(0o600);
            let (_, file) = self.ns.create_unnamed(&dir, gid, &new);
            let content = self.content();
            self.put(&file, content.clone());
            self.unnamed.push((file, Facts::new(content, 0o600)));
            return;
        }
        let _ = self.find(&path);
        let (file, facts) = self.unnamed.remove(0);
        if self.rng.random_bool(0.3) {
            assert!(self.ns.let_go_unnamed(&file));
            let named = self
                .ns
                .link_unnamed(&file, dir.ino, b"late", &|_, _| Ok(()));
            assert_eq!(errno(named), Err(Errno::ENOENT));
            return;
        }
        let named = self
            .ns
            .link_unnamed(&file, dir.ino, name(&path).as_bytes(), &|_, _| Ok(()));
        match self.reference.nodes.contains_key(&path) {
            true => assert_eq!(errno(named), Err(Errno::EEXIST), "{path}"),
            false => {
                named.unwrap_or_else(|error| panic!("{path}: {error}"));
                self.reference.add(&path, facts);
            }
        }
    }

    /// Writes an object, as between an open and the last close.
    fn put(&mut self, file: &Arc<File>, content: Vec<u8>) {
        let by_kernel = self.rng.random();
        self.ns
            .begin_change(file, true, self.rng.random())
            .expect("dirty");
        let now = TimeSpec::now();
        let stat = ObjectStat {
            size: content.len() as u64,
            allocated_bytes: 4096,
            atime: now,
            mtime: now,
            is_removed: false,
        };
        self.objects.insert(file.object, content);
        let mut state = file.lock();
        state.close(&stat, by_kernel);
        assert!(state.is_dirty() && !state.residency.writing);
        match state.is_unlinked() {
            true => {}
            false => self.ns.save_later(file, &mut state),
        }
    }

    pub fn write(&mut self) {
        let Some((path, id)) = self.any_file() else {
            return;
        };
        self.tell("write", &path);
        let content = self.content();
        let file = match self.buffered(&path) {
            Some(file) => file,
            None => match self.bring_in(&path, true) {
                Some(file) => file,
                // Of several links, the PFS's is changed in place.
                None => {
                    std::fs::write(self.on_pfs(&path), &content).expect("write");
                    self.reference.files[id].content = content;
                    return;
                }
            },
        };
        self.put(&file, content.clone());
        self.reference.files[id].content = content;
    }

    /// Cuts a file to nothing: one that is only on the PFS is not read before.
    pub fn truncate(&mut self) {
        let Some((path, id)) = self.any_file() else {
            return;
        };
        self.tell("truncate", &path);
        let file = self.buffered(&path).or_else(|| self.bring_in(&path, false));
        if let Some(file) = file {
            self.put(&file, Vec::new());
            self.reference.files[id].content = Vec::new();
        }
    }

    pub fn stage_in(&mut self) {
        if let Some((path, _)) = self.any_file()
            && self.buffered(&path).is_none()
        {
            self.bring_in(&path, true);
        }
    }

    /// Makes a file of the PFS one of the burst buffer, with its content or without. `None` if it
    /// has several links.
    fn bring_in(&mut self, path: &str, with_content: bool) -> Option<Arc<File>> {
        let dir = self.dir(parent(path));
        let handle = self.ns.open_dir(&dir).expect("directory");
        let opened = self
            .ns
            .pfs()
            .open_file(&handle, name(path).as_bytes(), false);
        let stat = self
            .ns
            .stat_settled(&opened.expect("a file of the PFS"))
            .expect("stat");
        if stat.nlink > 1 {
            return None;
        }
        let content = match with_content {
            true => std::fs::read(self.on_pfs(path)).expect("read"),
            false => Vec::new(),
        };
        let arrival = Arrival {
            object: self.ns.new_object().expect("id"),
            tier: TIER,
            sums: with_content.then(|| Sums::whole(stat.size, 0)),
            allocated_bytes: 0,
        };
        self.objects.insert(arrival.object, content);
        let file = self.ns.attach(&dir, name(path).as_bytes(), &stat, &arrival);
        Some(file.unwrap_or_else(|error| panic!("{path} comes in: {error}")))
    }

    pub fn set_perm(&mut self) {
        let Some((path, id)) = self.any_file() else {
            return;
        };
        self.tell("set_perm", &path);
        let perm = *[0o600, 0o644, 0o755].choose(&mut self.rng).expect("modes");
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        let found = self.find(&path).expect("a file of the reference");
        let plan = self.ns.setattr(found.attr.ino, &set);
        match plan.unwrap_or_else(|error| panic!("{path}: {error}")) {
            AttrPlan::Done | AttrPlan::Object(_) => self.reference.files[id].perm = perm,
            AttrPlan::PfsFile => panic!("{path}: no size was set"),
        }
    }

    pub fn xattr(&mut self) {
        let Some((path, id)) = self.any_file() else {
            return;
        };
        self.tell("xattr", &path);
        let ino = self.find(&path).expect("a file of the reference").attr.ino;
        let key = *[&b"user.x"[..], b"user.y"].choose(&mut self.rng).expect("");
        let facts = &mut self.reference.files[id];
        if self.rng.random_bool(0.3) {
            let expected = facts.xattrs.remove(key).map(|_| ()).ok_or(Errno::ENODATA);
            let removed = errno(self.ns.remove_xattr(ino, key));
            assert_eq!(removed, expected, "{path}");
            return;
        }
        let value = self.lengths.to_string().into_bytes();
        let mode = *[XattrMode::Set, XattrMode::Create, XattrMode::Replace]
            .choose(&mut self.rng)
            .expect("modes");
        let expected = match (mode, facts.xattrs.contains_key(key)) {
            (XattrMode::Create, true) => Err(Errno::EEXIST),
            (XattrMode::Replace, false) => Err(Errno::ENODATA),
            _ => Ok(()),
        };
        let set = errno(self.ns.set_xattr(ino, key, &value, mode));
        assert_eq!(set, expected, "{path} {mode:?}");
        if set.is_ok() {
            facts.xattrs.insert(key.to_vec(), value);
        }
    }

    pub fn mkdir(&mut self) {
        let path = self.any_path();
        self.tell("mkdir", &path);
        let _ = self.find(&path);
        let dir = self.dir(parent(&path));
        let made = errno(
            self.ns
                .mkdir(dir.ino, name(&path).as_bytes(), 0o755, &cred()),
        );
        let expected = match self.reference.nodes.contains_key(&path) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        };
        assert_eq!(made, expected, "{path}");
        if made.is_ok() {
            self.reference.nodes.insert(path, reference::Node::Dir);
        }
    }

    pub fn rmdir(&mut self) {
        let path = self.any_path();
        self.tell("rmdir", &path);
        let dir = self.dir(parent(&path));
        // The kernel has looked it up.
        let _ = self.find(&path);
        let removed = errno(self.ns.rmdir(dir.ino, name(&path).as_bytes()));
        assert_eq!(removed, self.reference.rmdir(&path), "{path}");
    }

    pub fn link(&mut self) {
        let (Some((from, _)), to) = (self.any_file(), self.any_path()) else {
            return;
        };
        self.tell("link", &format!("{from} {to}"));
        let ino = self.find(&from).expect("a file of the reference").attr.ino;
        let dir = self.dir(parent(&to));
        let _ = self.find(&to);
        let linked = errno(self.ns.link(ino, dir.ino, name(&to).as_bytes()));
        assert_eq!(linked, self.reference.link(&from, &to), "{from} {to}");
    }

    pub fn unlink(&mut self) {
        let path = self.any_path();
        self.tell("unlink", &path);
        let dir = self.dir(parent(&path));
        let is_dir = matches!(self.find(&path), Ok(f) if f.attr.kind == FileKind::Directory);
        if is_dir {
            // The kernel knows, and does not ask.
            return;
        }
        let removed = errno(self.ns.unlink(dir.ino, name(&path).as_bytes()));
        assert_eq!(removed, self.reference.unlink(&path), "{path}");
    }

    pub fn rename(&mut self) {
        let (from, to) = (self.any_path(), self.any_path());
        if from == to || to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/"))
        {
            // The kernel answers that by itself.
            return;
        }
        let mode = *[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ]
        .choose(&mut self.rng)
        .expect("modes");
        self.tell("rename", &format!("{from} {to} {mode:?}"));
        let ids = (self.reference.file(&from), self.reference.file(&to));
        if mode == RenameMode::Exchange && ids.0.is_some() && ids.0 == ids.1 {
            // Two names of one file: the kernel answers that, too.
            return;
        }
        let _ = (self.find(&from), self.find(&to));
        let dirs = (self.dir(parent(&from)), self.dir(parent(&to)));
        let renamed = errno(self.ns.rename(
            dirs.0.ino,
            name(&from).as_bytes(),
            dirs.1.ino,
            name(&to).as_bytes(),
            mode,
        ));
        self.take_conflicts();
        let expected = self.reference.rename(&from, &to, mode);
        assert_eq!(renamed, expected, "{from} {to} {mode:?}");
    }

    /// The reference follows what the tree says of an outsider.
    pub fn take_conflicts(&mut self) {
        for conflict in self.ns.take_conflicts() {
            let path = String::from_utf8(conflict.path).expect("path");
            let kept_as = String::from_utf8(conflict.kept_as).expect("name");
            self.reference.part(&path, &kept_as, conflict.theirs);
        }
    }

    /// An orderly stop, and a start from what the store has. A copy that is on its way is lost,
    /// wherever it is.
    pub fn restart(&mut self) {
        self.ns.sync().expect("sync");
        self.tell("restart", "");
        self.pending = None;
        self.unnamed.clear();
        let (ns, loaded) = open(&self.top, &self.store, self.rng.random());
        self.ns = ns;
        assert!(loaded.lost.is_empty() && loaded.unreadable.is_empty());
        for change in loaded.changes {
            self.ns.settle_change(change).expect("settled");
        }
        for file in &loaded.files {
            self.ns.settle_demotion(file).expect("settled");
        }
        for dir in &loaded.dirs {
            // A directory that went while nobody had it in use has left its record.
            if let Err(error) = self.ns.sweep_dir(dir) {
                let gone = [Errno::ENOENT, Errno::ESTALE, Errno::ENOTDIR];
                assert!(gone.contains(&error.errno()), "{dir:?}: {error}");
            }
        }
        self.take_conflicts();
    }
}
