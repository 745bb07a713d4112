//! Files without a name that clients have open who may come back after a restart of the server:
//! they have lost their last name, or have not got one yet.
//!
//! Each run of a server knows a client by a number, its life. Invariants:
//!
//! 1. Such a file has a record, which names the lives that have it open. It comes before the PFS or
//!    the records lose the last name, or before the open is answered, and goes after the objects.
//! 2. The objects are kept while a life has the file open, or one of before may come for it.
//! 3. Only who had the file open before is let near it after a restart.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_kv::Durability;
use forebay_types::{Attr, Errno, Ino, ObjectId};
use parking_lot::Mutex;

use crate::log::Batch;
use crate::record::{self, DirKey, DirRecord, NamelessRecord};
use crate::table::Node;
use crate::tree::{Dir, File, FileState};
use crate::{Garbage, Namespace, NsError};

/// Locks are spread over so many shards by id.
const SHARDS: usize = 16;

/// Of more files that were on the PFS only, none is looked for by its name: the PFS is quicker.
const PLAIN_LOOK_MAX: usize = 1024;

/// An open file.
#[derive(Default)]
struct Open {
    /// Lives with the number of their handles; most files have one.
    lives: Vec<(u64, u32)>,
    /// It was on the PFS only when it was opened.
    is_plain: bool,
}

/// A file without a name that is on record.
struct Nameless {
    file: Arc<File>,
    /// Lives of earlier runs that had it open.
    before: Vec<u64>,
}

#[derive(Default)]
struct State {
    files: HashMap<ObjectId, Nameless>,
    /// The same by what clients know them by. An id may have been another file's before.
    by_ino: HashMap<Ino, Vec<ObjectId>>,
    /// Those that had their name still on record when the last run ended.
    losing: Vec<Arc<File>>,
    /// Lives of earlier runs that may come, and until when. `None`: that is not known yet.
    awaited: Option<HashMap<u64, Instant>>,
}

impl State {
    fn is_awaited(&self, life: u64, now: Instant) -> bool {
        let awaited = self.awaited.as_ref();
        awaited.is_none_or(|awaited| awaited.get(&life).is_some_and(|until| *until > now))
    }
}

/// Who has what open. The lock of a file's state may be held by who asks.
#[derive(Default)]
pub(crate) struct Holders {
    open: [Mutex<HashMap<Ino, Open>>; SHARDS],
    /// Those that were on the PFS only. Taken after the lock of a shard.
    plain: Mutex<HashSet<Ino>>,
    /// Those of them that had several links when one of their names went: the next one to go may be
    /// another than the one that is known.
    linked: Mutex<HashSet<Ino>>,
    state: Mutex<State>,
}

impl Holders {
    fn open(&self, ino: Ino) -> &Mutex<HashMap<Ino, Open>> {
        &self.open[ino.0 as usize % SHARDS]
    }

    fn add(&self, ino: Ino, life: u64) {
        let mut open = self.open(ino).lock();
        let lives = &mut open.entry(ino).or_default().lives;
        match lives.iter_mut().find(|(known, _)| *known == life) {
            Some((_, count)) => *count += 1,
            None => lives.push((life, 1)),
        }
    }

    fn remove(&self, ino: Ino, life: u64) {
        let mut open = self.open(ino).lock();
        let Some(Open { lives, is_plain }) = open.get_mut(&ino) else {
            return;
        };
        if let Some((_, count)) = lives.iter_mut().find(|(known, _)| *known == life) {
            *count -= 1;
        }
        lives.retain(|(_, count)| *count > 0);
        if lives.is_empty() {
            if *is_plain {
                self.plain.lock().remove(&ino);
                self.linked.lock().remove(&ino);
            }
            open.remove(&ino);
        }
    }

    /// It is on the PFS only.
    fn note_plain(&self, ino: Ino) {
        if let Some(open) = self.open(ino).lock().get_mut(&ino)
            && !std::mem::replace(&mut open.is_plain, true)
        {
            self.plain.lock().insert(ino);
        }
    }

    /// Who has it open, and who of before may come for it.
    fn lives(&self, file: &File) -> Vec<u64> {
        let mut lives: Vec<u64> = {
            let open = self.open(file.ino).lock();
            let open = open.get(&file.ino).into_iter().flat_map(|open| &open.lives);
            open.map(|(life, _)| *life).collect()
        };
        let (state, now) = (self.state.lock(), Instant::now());
        if let Some(nameless) = state.files.get(&file.object) {
            let before = nameless.before.iter().copied();
            lives.extend(before.filter(|life| state.is_awaited(*life, now)));
        }
        lives.sort_unstable();
        lives.dedup();
        lives
    }

    /// Whether it is on record as a file without a name.
    pub(crate) fn knows(&self, object: ObjectId) -> bool {
        self.state.lock().files.contains_key(&object)
    }

    fn keep(&self, file: &Arc<File>, before: Vec<u64>) {
        let mut state = self.state.lock();
        let file = file.clone();
        let object = file.object;
        if let Entry::Vacant(vacant) = state.files.entry(object) {
            let ino = file.ino;
            vacant.insert(Nameless { file, before });
            state.by_ino.entry(ino).or_default().push(object);
        }
    }

    /// It had its name still on record.
    fn keep_losing(&self, file: &Arc<File>, before: Vec<u64>) {
        self.keep(file, before);
        self.state.lock().losing.push(file.clone());
    }

    pub(crate) fn take_losing(&self) -> Vec<Arc<File>> {
        std::mem::take(&mut self.state.lock().losing)
    }

    /// This is what a file without a name goes by from here on.
    pub(crate) fn stand_for(&self, file: &Arc<File>) {
        if let Some(nameless) = self.state.lock().files.get_mut(&file.object) {
            nameless.file = file.clone();
        }
    }

    pub(crate) fn forget(&self, object: ObjectId) {
        let mut state = self.state.lock();
        let Some(nameless) = state.files.remove(&object) else {
            return;
        };
        if let Entry::Occupied(mut same) = state.by_ino.entry(nameless.file.ino) {
            same.get_mut().retain(|one| *one != object);
            if same.get().is_empty() {
                same.remove();
            }
        }
    }
}

impl Namespace {
    /// A client has opened a file in this life of its own. One without a name is on record when
    /// this returns.
    pub fn hold(&self, ino: Ino, life: u64) -> Result<(), NsError> {
        self.holders.add(ino, life);
        let file = match self.node(ino) {
            Ok(Node::File(file)) => file,
            Ok(Node::Plain(_)) => {
                self.holders.note_plain(ino);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let state = file.lock();
        if !state.is_unlinked() || state.is_evicted() {
            return Ok(());
        }
        let mut batch = Batch::new();
        self.put_nameless(&mut batch, &file, &state)?;
        let dir = state.unnamed.clone();
        if let Some(dir) = &dir {
            // By that the file may get a name.
            self.put_dirs(&mut batch, dir)?;
        }
        self.commit(batch)?;
        if let Some(dir) = &dir {
            self.dirs_written(dir);
        }
        Ok(())
    }

    /// It has closed that. Who has closed the file last has it collected.
    pub fn let_go(&self, ino: Ino, life: u64) {
        self.holders.remove(ino, life);
    }

    /// Whether a client may have the file of this name open, which was on the PFS only. It is asked
    /// before every loss of a name, and does not ask the PFS.
    pub fn may_be_open_plain(&self, dir: &Arc<Dir>, name: &[u8]) -> bool {
        if self.holders.plain.lock().is_empty() {
            return false;
        }
        if let Some(file) = dir.child(name) {
            return self.holders.plain.lock().contains(&file.ino);
        }
        if !self.holders.linked.lock().is_empty() {
            return true;
        }
        let plain: Vec<Ino> = {
            let plain = self.holders.plain.lock();
            if plain.len() > PLAIN_LOOK_MAX {
                return true;
            }
            plain.iter().copied().collect()
        };
        let table = self.table.lock();
        plain.iter().any(|ino| match table.get(*ino) {
            Some(Node::Plain(node)) => Arc::ptr_eq(&node.parent, dir) && *node.name == *name,
            _ => false,
        })
    }

    /// One of the links of a file that a client has open is about to go.
    pub fn note_links(&self, ino: Ino) {
        let open = self.holders.open(ino).lock();
        if open.get(&ino).is_some_and(|open| open.is_plain) {
            self.holders.linked.lock().insert(ino);
        }
    }

    /// Whether a client has this file open that may come back.
    pub fn is_open_by_client(&self, ino: Ino) -> bool {
        self.holders.open(ino).lock().contains_key(&ino)
    }

    /// These lives of earlier runs may come within these times, and no others.
    pub fn await_lives(&self, lives: impl IntoIterator<Item = (u64, Duration)>) {
        let now = Instant::now();
        let lives = lives.into_iter().map(|(life, left)| (life, now + left));
        self.holders.state.lock().awaited = Some(lives.collect());
    }

    /// Nobody comes as this life any more.
    pub fn end_wait_for(&self, life: u64) {
        if let Some(awaited) = &mut self.holders.state.lock().awaited {
            awaited.remove(&life);
        }
    }

    /// Whether an object without a name is to be kept for a client, whether or not that has it open
    /// now.
    pub fn is_held(&self, object: ObjectId) -> bool {
        let ino = {
            let (state, now) = (self.holders.state.lock(), Instant::now());
            let Some(nameless) = state.files.get(&object) else {
                return false;
            };
            let mut before = nameless.before.iter();
            if before.any(|life| state.is_awaited(*life, now)) {
                return true;
            }
            nameless.file.ino
        };
        self.is_open_by_client(ino)
    }

    /// What there was of a file without a name is not there any more: nobody gets it.
    pub fn lose_nameless(&self, file: &File) {
        if let Some(nameless) = self.holders.state.lock().files.get_mut(&file.object) {
            nameless.before.clear();
        }
    }

    /// Finds a file without a name again for a client that had it open in this life, and counts one
    /// reference of the kernel. `ESTALE` for anybody else.
    pub fn find_nameless(&self, ino: Ino, life: u64) -> Result<(Attr, Arc<File>), NsError> {
        let found = {
            let (state, now) = (self.holders.state.lock(), Instant::now());
            let objects = state.by_ino.get(&ino).into_iter().flatten();
            let mut files = objects.filter_map(|object| state.files.get(object));
            let is_its = |one: &&Nameless| one.before.contains(&life);
            let found = files.find(is_its).filter(|_| state.is_awaited(life, now));
            found.map(|one| one.file.clone())
        };
        let file = found.ok_or(Errno::ESTALE)?;
        let mut table = self.table.lock();
        table.remember(ino, Node::File(file.clone()));
        drop(table);
        Ok((file.attr(), file))
    }

    /// Puts a file on record that has no name, if a client has it open that may come back.
    pub(crate) fn put_nameless(
        &self,
        batch: &mut Batch,
        file: &Arc<File>,
        state: &FileState,
    ) -> Result<(), NsError> {
        let lives = self.holders.lives(file);
        if lives.is_empty() {
            return Ok(());
        }
        self.put_held(batch, file, state, lives)?;
        self.holders.keep(file, Vec::new());
        Ok(())
    }

    fn put_held(
        &self,
        batch: &mut Batch,
        file: &File,
        state: &FileState,
        lives: Vec<u64>,
    ) -> Result<(), NsError> {
        let mut kept = state.record(file.ino);
        kept.names.clear();
        kept.temporary = None;
        let record = NamelessRecord {
            lives,
            unnamed: state.unnamed.as_ref().map(|dir| dir.key),
            file: kept,
        };
        batch.put(record::nameless_key(file.object), record::encode(&record)?);
        tracing::trace!(file = %file.object, lives = ?record.lives, "record without a name");
        Ok(())
    }

    /// Writes the record of a file without a name anew, if it has one.
    pub(crate) fn save_nameless(
        &self,
        file: &File,
        state: &FileState,
        durability: Durability,
    ) -> Result<(), NsError> {
        if !self.holders.knows(file.object) || state.is_evicted() {
            return Ok(());
        }
        let mut batch = Batch::new();
        self.put_held(&mut batch, file, state, self.holders.lives(file))?;
        Ok(self.store.commit(batch, durability)?)
    }

    /// Takes the records of these files away, which are gone or have a name.
    pub(crate) fn drop_nameless(&self, batch: &mut Batch, objects: &[ObjectId]) {
        for object in objects {
            if self.holders.knows(*object) {
                batch.delete(record::nameless_key(*object));
            }
        }
    }

    /// Files without a name that an earlier run has left on record.
    pub(crate) fn recorded_nameless(
        &self,
        unreadable: &mut Vec<Vec<u8>>,
    ) -> Result<HashMap<ObjectId, NamelessRecord>, NsError> {
        let mut kept = HashMap::new();
        self.store
            .scan(record::NAMELESS_PREFIX, None, &mut |key, value| {
                match (record::object_of_key(key), record::decode(value)) {
                    (Some(object), Ok(record)) => drop(kept.insert(object, record)),
                    _ => unreadable.push(key.to_vec()),
                }
                true
            })?;
        Ok(kept)
    }

    /// Those of them that have a name on record, too, were about to lose it:
    /// [`Self::settle_nameless`].
    pub(crate) fn keep_losing(
        &self,
        named: &[Arc<File>],
        kept: &mut HashMap<ObjectId, NamelessRecord>,
    ) {
        if kept.is_empty() {
            return;
        }
        for file in named {
            if let Some(record) = kept.remove(&file.object) {
                self.holders.keep_losing(file, record.lives);
            }
        }
    }

    /// The others. What has not had a name yet is on record in another way, as long as it may get
    /// one: that is no garbage.
    pub(crate) fn load_nameless(
        &self,
        kept: HashMap<ObjectId, NamelessRecord>,
        dirs: &HashMap<DirKey, DirRecord>,
        garbage: &mut Vec<Garbage>,
    ) -> Vec<Arc<File>> {
        let mut unnamed = HashSet::new();
        let mut files = Vec::with_capacity(kept.len());
        for (object, kept) in kept {
            let dir = kept.unnamed.and_then(|dir| self.load_dir(dir, dirs, 0));
            if dir.is_some() {
                unnamed.insert(object);
            }
            let ino = kept.file.ino;
            self.table.lock().reserve(ino);
            let state = FileState::nameless(dir, kept.file);
            let file = Arc::new(File::new(object, ino, state));
            self.holders.keep(&file, kept.lives);
            files.push(file);
        }
        garbage.retain(|one| !unnamed.contains(&one.object));
        files
    }
}

#[cfg(test)]
mod tests {
    use forebay_kv::memory::Memory;
    use forebay_tiers::PfsTree;
    use forebay_types::{Cred, Process, TierId, TimeSpec};

    use super::*;
    use crate::{Loaded, NewFile};

    struct Lab {
        top: tempfile::TempDir,
        store: Arc<Memory>,
        next: u64,
    }

    impl Lab {
        fn new() -> Lab {
            Lab {
                top: tempfile::tempdir().expect("temporary directory"),
                store: Arc::new(Memory::new()),
                next: 5,
            }
        }

        fn open(&self) -> (Namespace, Loaded) {
            let pfs = PfsTree::open(self.top.path()).expect("PFS");
            Namespace::open(pfs, Box::new(self.store.clone()), [7; 16]).expect("open")
        }

        fn new_file(&mut self) -> NewFile {
            self.next += 1;
            NewFile {
                object: ObjectId(self.next),
                tier: TierId(0),
                perm: 0o600,
                xattrs: Vec::new(),
                cred: Cred {
                    uid: 0,
                    gid: 0,
                    process: Process::here(1),
                    umask: 0,
                },
                writing: false,
                born: TimeSpec::now(),
            }
        }

        fn create(&mut self, ns: &Namespace, name: &[u8]) -> Arc<File> {
            let free = crate::Free::now(ns.root(), name, 0);
            let made = ns.create(ns.root(), name, free, &self.new_file());
            made.expect("create").1
        }
    }

    fn unlink(ns: &Namespace, name: &[u8]) {
        ns.unlink(Ino::ROOT, name).expect("unlink");
    }

    fn lives(ns: &Namespace, object: ObjectId) -> Option<Vec<u64>> {
        let record = ns.store.get(&record::nameless_key(object)).expect("get");
        record.map(|record| {
            let record: NamelessRecord = record::decode(&record).expect("it decodes");
            record.lives
        })
    }

    #[test]
    fn who_has_a_file_open_is_on_record_with_the_change_that_takes_its_last_name() {
        let mut lab = Lab::new();
        let (ns, _) = lab.open();
        let [held, closed, free] = [b"a", b"b", b"c"].map(|name| lab.create(&ns, name));
        for life in [3, 3, 4] {
            ns.hold(held.ino, life).expect("hold");
        }
        ns.hold(closed.ino, 3).expect("hold");
        ns.let_go(closed.ino, 3);
        ns.let_go(held.ino, 3);
        assert_eq!(lives(&ns, held.object), None, "it has a name");
        for name in [b"a", b"b", b"c"] {
            unlink(&ns, name);
        }
        let recorded = [&held, &closed, &free].map(|file| lives(&ns, file.object));
        assert_eq!(recorded, [Some(vec![3, 4]), None, None]);
        let is_held = |ns: &Namespace| [&held, &closed, &free].map(|f| ns.is_held(f.object));
        assert_eq!(is_held(&ns), [true, false, false]);
        // It is opened once more, by way of /proc.
        ns.hold(held.ino, 5).expect("hold");
        assert_eq!(lives(&ns, held.object), Some(vec![3, 4, 5]));
        for life in [3, 4, 5] {
            assert!(ns.is_held(held.object));
            ns.let_go(held.ino, life);
        }
        assert_eq!(is_held(&ns), [false; 3]);
        let garbage = ns.take_garbage();
        let objects: Vec<ObjectId> = garbage.iter().map(|garbage| garbage.object).collect();
        assert_eq!(objects.len(), 3);
        ns.garbage_removed(&objects).expect("removed");
        assert_eq!(lives(&ns, held.object), None);
        drop(ns);
        let (_, loaded) = lab.open();
        assert!(loaded.nameless.is_empty() && loaded.garbage.is_empty());
    }

    #[test]
    fn what_was_held_is_for_the_lives_of_before_as_long_as_they_may_come() {
        let mut lab = Lab::new();
        let (ns, _) = lab.open();
        let [a, b] = [b"a", b"b"].map(|name| lab.create(&ns, name));
        for (file, life) in [(&a, 3), (&b, 3), (&b, 4)] {
            ns.hold(file.ino, life).expect("hold");
        }
        unlink(&ns, b"a");
        unlink(&ns, b"b");
        drop(ns);
        let (ns, loaded) = lab.open();
        assert_eq!((loaded.nameless.len(), loaded.garbage.len()), (2, 2));
        assert!(loaded.files.is_empty() && loaded.lost.is_empty());
        let is_held = |ns: &Namespace| [&a, &b].map(|file| ns.is_held(file.object));
        assert_eq!(is_held(&ns), [true, true], "nobody knows yet who comes");
        let hour = Duration::from_secs(3600);
        ns.await_lives([(3, hour), (4, hour), (9, hour)]);
        assert_eq!(is_held(&ns), [true, true]);
        let stale = |life, ino| ns.find_nameless(ino, life).map(drop).map_err(|e| e.errno());
        assert_eq!(stale(9, a.ino), Err(Errno::ESTALE));
        assert_eq!(stale(4, a.ino), Err(Errno::ESTALE));
        let (attr, again) = ns.find_nameless(a.ino, 3).expect("it is there");
        assert_eq!((attr.ino, attr.nlink, again.object), (a.ino, 0, a.object));
        // The next life has it before the last one ends.
        ns.hold(a.ino, 5).expect("hold");
        assert_eq!(lives(&ns, a.object), Some(vec![3, 5]));
        ns.end_wait_for(3);
        assert_eq!(stale(3, a.ino), Err(Errno::ESTALE));
        assert_eq!(is_held(&ns), [true, true]);
        ns.end_wait_for(4);
        assert_eq!(is_held(&ns), [true, false]);
        ns.let_go(a.ino, 5);
        assert_eq!(is_held(&ns), [false, false]);
        drop(ns);
        // Nobody comes: their time is over, or they were not there when the server ended.
        for awaited in [vec![(3, Duration::ZERO)], Vec::new()] {
            let (ns, _) = lab.open();
            assert_eq!(is_held(&ns), [true, true]);
            ns.await_lives(awaited);
            assert_eq!(is_held(&ns), [false, false]);
        }
        let (ns, loaded) = lab.open();
        loaded
            .nameless
            .iter()
            .for_each(|file| ns.lose_nameless(file));
        assert_eq!(is_held(&ns), [false, false], "there is nothing of them");
    }

    #[test]
    fn what_is_only_on_the_pfs_and_open_is_known_by_the_name_that_it_has() {
        let lab = Lab::new();
        let (ns, _) = lab.open();
        for name in ["a", "b"] {
            std::fs::write(lab.top.path().join(name), name).expect("write");
        }
        let [a, b] = [b"a", b"b"].map(|name| {
            let found = ns.lookup(Ino::ROOT, name).expect("lookup");
            found.attr.ino
        });
        let names = [b"a", b"b", b"c"];
        let open = |ns: &Namespace| names.map(|name| ns.may_be_open_plain(ns.root(), name));
        assert_eq!(open(&ns), [false; 3]);
        for life in [3, 3, 4] {
            ns.hold(a, life).expect("hold");
        }
        assert_eq!(open(&ns), [true, false, false]);
        let replace = forebay_types::RenameMode::Replace;
        let renamed = ns.rename(Ino::ROOT, b"a", Ino::ROOT, b"c", replace);
        renamed.expect("rename");
        assert_eq!(open(&ns), [false, false, true]);
        ns.note_links(b);
        assert_eq!(open(&ns), [false, false, true], "nobody has it open");
        ns.hold(b, 5).expect("hold");
        ns.note_links(b);
        assert_eq!(open(&ns), [true; 3], "its other name is not known");
        ns.let_go(b, 5);
        for life in [3, 4, 3] {
            assert_eq!(open(&ns), [false, false, true]);
            ns.let_go(a, life);
        }
        assert_eq!(open(&ns), [false; 3]);
    }

    #[test]
    fn what_has_not_had_a_name_may_get_one_also_after_a_link_that_was_cut_off() {
        let mut lab = Lab::new();
        let (ns, _) = lab.open();
        let new = lab.new_file();
        let (_, file) = ns.create_unnamed(ns.root(), 0, &new);
        assert_eq!(lives(&ns, file.object), None);
        ns.hold(file.ino, 3).expect("hold");
        assert_eq!(lives(&ns, file.object), Some(vec![3]));
        let cut_off = |_: &crate::Dir, _: &[u8]| Err(Errno::EIO.into());
        let linked = ns.link_unnamed(&file, Ino::ROOT, b"f", &cut_off);
        assert!(linked.is_err());
        drop(ns);
        let (ns, loaded) = lab.open();
        assert!(loaded.garbage.is_empty(), "it is in use");
        let file = ns.find_nameless(file.ino, 3).expect("it is there").1;
        let linked = ns.link_unnamed(&file, Ino::ROOT, b"f", &|_, _| Ok(()));
        assert_eq!(linked.expect("link").nlink, 1);
        assert_eq!(lives(&ns, file.object), None);
        assert!(!ns.is_held(file.object));
        drop(ns);
        let (_, loaded) = lab.open();
        assert!(loaded.nameless.is_empty() && loaded.garbage.is_empty());
        assert_eq!(loaded.files.len(), 1);
    }
}
