//! The namespace as a whole: opening it, finding directories.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use forebay_kv::{Durability, Store};
use forebay_tiers::{PfsDir, PfsId, PfsStat, PfsTree};
use forebay_types::{Errno, Ino, ObjectId, Statfs, TierId};
use parking_lot::{Mutex, RwLock};

use crate::NsError;
use crate::acl;
use crate::conflict::Conflict;
use crate::devices::Devices;
use crate::error::on_pfs;
use crate::ids::Ids;
use crate::left::Left;
use crate::log::{Batch, Log};
use crate::nameless::Holders;
use crate::owed::OwedTimes;
use crate::record::{self, DirKey, DirRecord, FileRecord, Intent, NamelessRecord};
use crate::table::{Node, Table};
use crate::tree::Dir;
use crate::tree::handles::Handles;
use crate::tree::lastlook::Trust;
use crate::tree::{File, FileState};

mod objects;
pub(crate) mod save;

/// An object that nothing refers to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// The object.
    pub object: ObjectId,
    /// The tiers that hold it.
    pub tiers: [Option<TierId>; 2],
}

/// A change of names that a crash interrupted.
pub struct PendingChange {
    pub(crate) sequence: u64,
    pub(crate) intent: Intent,
}

/// A change of names that the PFS and memory have, and whose record the store has refused. Its
/// intent stays on record, so that a start would end it; once the store takes writes again, it is
/// ended by the records.
struct Unrecorded {
    sequence: u64,
    /// Directories that have moved.
    dirs: Vec<Arc<Dir>>,
}

/// What was found in the store at opening.
pub struct Loaded {
    /// All files in the burst buffer.
    pub files: Vec<Arc<File>>,
    /// Files without a name that clients had open. Their objects may be to be removed, once nobody
    /// comes for them.
    pub nameless: Vec<Arc<File>>,
    /// Objects to be removed.
    pub garbage: Vec<Garbage>,
    /// Changes to be finished by [`Namespace::settle_change`] before anything else.
    pub changes: Vec<PendingChange>,
    /// The directories that have records; to be held while orphans are adopted.
    pub dirs: Vec<Arc<Dir>>,
    /// Files whose directory has no record: kept in the store, not shown.
    pub lost: Vec<(ObjectId, FileRecord)>,
    /// Keys of records that do not decode: kept in the store for fsck.
    pub unreadable: Vec<Vec<u8>>,
}

/// The tree.
pub struct Namespace {
    pub(crate) pfs: PfsTree,
    pub(crate) store: Log,
    pub(crate) instance: [u8; 16],
    pub(crate) root_dev: u64,
    pub(crate) devices: Devices,
    /// The PFS has access control lists.
    pub(crate) has_acls: bool,
    pub(crate) root: Arc<Dir>,
    pub(crate) handles: Handles,
    pub(crate) table: Mutex<Table>,
    dirs: Mutex<HashMap<DirKey, Weak<Dir>>>,
    next_sequence: AtomicU64,
    garbage: Mutex<Vec<Garbage>>,
    /// Versions that are not published yet.
    pub(crate) versions: Mutex<HashMap<DirKey, Arc<Dir>>>,
    /// Held by who puts a copy in its place; alone by who gives a version its name, so that nothing
    /// lands in one between the last look at its files and that.
    pub(crate) landing: RwLock<()>,
    /// Conflicts with outsiders, until the server takes them.
    pub(crate) conflicts: Mutex<Vec<Conflict>>,
    /// Files whose records are to be written with the next batch.
    unsaved: Mutex<Vec<Arc<File>>>,
    /// Held while they are written.
    saving: Mutex<()>,
    /// Changes of names that are done, and not recorded.
    unrecorded: Mutex<Vec<Unrecorded>>,
    /// Objects that no record of a file names, in tiers that did not answer. Locked after the state
    /// of a file.
    pub(crate) left: Mutex<Left>,
    pub(crate) owed_times: OwedTimes,
    pub(crate) holders: Holders,
    pub(crate) trust: OnceLock<Trust>,
}

impl Namespace {
    /// Has clean copies taken as what the PFS has for so long after a look there, by their paths.
    /// Said once, before anything is looked up.
    pub fn trust_by(&self, trust: Trust) {
        let said_before = self.trust.set(trust).is_err();
        debug_assert!(!said_before, "said twice");
    }

    /// Opens the tree over `pfs` with the records in `store`.
    pub fn open(
        pfs: PfsTree,
        store: Box<dyn Store>,
        instance: [u8; 16],
    ) -> Result<(Namespace, Loaded), NsError> {
        let root_stat = pfs
            .stat_dir(pfs.root())
            .map_err(on_pfs("stat of a directory"))?;
        let root_dev = root_stat.id.dev;
        let store = Log::new(Ids::load(&*store)?, store);
        let devices = Devices::load(
            &store,
            root_dev,
            pfs.fs_id(pfs.root())
                .map_err(on_pfs("identify the file system"))?,
        )?;
        let root_key = devices.key(root_stat.id);
        let root = Arc::new(Dir::new(root_key, Ino::ROOT, None));
        root.mark_persisted();
        let has_acls = match pfs.get_xattr_dir(pfs.root(), acl::ACCESS) {
            Err(e) => e.raw_os_error() == Some(libc::ENODATA),
            Ok(_) => true,
        };
        let namespace = Namespace {
            has_acls,
            pfs,
            store,
            devices,
            instance,
            root_dev,
            handles: Handles::new(),
            table: Mutex::new(Table::new(root.clone())),
            dirs: Mutex::new(HashMap::from([(root_key, Arc::downgrade(&root))])),
            root,
            next_sequence: AtomicU64::new(1),
            garbage: Mutex::new(Vec::new()),
            versions: Mutex::default(),
            landing: RwLock::new(()),
            conflicts: Mutex::default(),
            trust: OnceLock::new(),
            unsaved: Mutex::new(Vec::new()),
            saving: Mutex::new(()),
            unrecorded: Mutex::default(),
            left: Mutex::default(),
            owed_times: OwedTimes::default(),
            holders: Holders::default(),
        };
        let loaded = namespace.load()?;
        // What was read may be what a killed process left to the kernel.
        namespace.store.sync()?;
        Ok((namespace, loaded))
    }

    fn load(&self) -> Result<Loaded, NsError> {
        let mut unreadable = Vec::new();
        let mut dir_records = HashMap::new();
        self.store
            .scan(record::DIR_PREFIX, None, &mut |key, value| {
                match (DirKey::from_bytes(&key[2..]), record::decode(value)) {
                    (Some(key), Ok(dir)) => drop(dir_records.insert(key, dir)),
                    _ => unreadable.push(key.to_vec()),
                }
                true
            })?;
        self.reserve_inos()?;
        // All of them, for objects whose own record was not written any more name them too.
        let dirs: Vec<_> = dir_records
            .keys()
            .filter_map(|key| self.load_dir(*key, &dir_records, 0))
            .collect();
        self.load_unpublished(&mut unreadable)?;
        let mut files = Vec::new();
        let mut lost = Vec::new();
        self.store
            .scan(record::FILE_PREFIX, None, &mut |key, value| {
                match (record::object_of_key(key), record::decode(value)) {
                    (Some(object), Ok(file)) => match self.load_file(object, file, &dir_records) {
                        Ok(file) => files.push(file),
                        Err(file) => lost.push((object, *file)),
                    },
                    _ => unreadable.push(key.to_vec()),
                }
                true
            })?;
        self.load_left(&mut unreadable)?;
        let mut garbage = self.recorded_garbage()?;
        let mut kept = self.recorded_nameless(&mut unreadable)?;
        // What cannot be said of them cannot be said of their names.
        lost.iter()
            .for_each(|(object, _)| drop(kept.remove(object)));
        self.keep_losing(&files, &mut kept);
        let nameless = self.load_nameless(kept, &dir_records, &mut garbage);
        let mut changes = Vec::new();
        self.store
            .scan(record::INTENT_PREFIX, None, &mut |key, value| {
                match (record::object_of_key(key), record::decode(value)) {
                    (Some(ObjectId(sequence)), Ok(intent)) => {
                        self.next_sequence
                            .fetch_max(sequence.saturating_add(1), Ordering::AcqRel);
                        changes.push(PendingChange { sequence, intent });
                    }
                    _ => unreadable.push(key.to_vec()),
                }
                true
            })?;
        Ok(Loaded {
            files,
            nameless,
            garbage,
            changes,
            lost,
            unreadable,
            dirs,
        })
    }

    /// The ids that files go by are taken before directories get theirs: a directory may have got
    /// the inode number that a file's older version on the PFS had.
    fn reserve_inos(&self) -> Result<(), NsError> {
        self.store
            .scan(record::FILE_PREFIX, None, &mut |_, value| {
                if let Ok(file) = record::decode::<FileRecord>(value) {
                    self.table.lock().reserve(file.ino);
                }
                true
            })?;
        self.store
            .scan(record::NAMELESS_PREFIX, None, &mut |_, value| {
                if let Ok(kept) = record::decode::<NamelessRecord>(value) {
                    self.table.lock().reserve(kept.file.ino);
                }
                true
            })?;
        Ok(())
    }

    fn load_file(
        &self,
        object: ObjectId,
        file: FileRecord,
        dir_records: &HashMap<DirKey, DirRecord>,
    ) -> Result<Arc<File>, Box<FileRecord>> {
        let mut names = Vec::with_capacity(file.names.len());
        for (key, name) in &file.names {
            match self.load_dir(*key, dir_records, 0) {
                Some(dir) => names.push((dir, name.as_slice().into())),
                None => return Err(Box::new(file)),
            }
        }
        if names.is_empty() {
            return Err(Box::new(file));
        }
        let ino = file.ino;
        self.table.lock().reserve(ino);
        let state = FileState::recorded(names.clone(), file);
        let file = Arc::new(File::new(object, ino, state));
        for (dir, name) in names {
            dir.lock().insert(name, file.clone());
        }
        Ok(file)
    }

    pub(crate) fn load_dir(
        &self,
        key: DirKey,
        records: &HashMap<DirKey, DirRecord>,
        depth: usize,
    ) -> Option<Arc<Dir>> {
        if let Some(dir) = self.known_dir(key) {
            return Some(dir);
        }
        // A cycle cannot arise by renames, only by damage; PATH_MAX bounds honest depths.
        if depth > forebay_types::limits::PATH_BYTES_MAX {
            return None;
        }
        let record = records.get(&key)?;
        let parent = self.load_dir(record.parent, records, depth + 1)?;
        let dir = self.intern_key(key, &parent, &record.name);
        dir.mark_persisted();
        Some(dir)
    }

    /// The tree below.
    pub fn pfs(&self) -> &PfsTree {
        &self.pfs
    }

    /// This instance's id, as objects and temporary files carry it.
    pub fn instance(&self) -> [u8; 16] {
        self.instance
    }

    /// The root directory.
    pub fn root(&self) -> &Arc<Dir> {
        &self.root
    }

    /// What an id stands for; `ESTALE` for one that was never given out or has been forgotten.
    pub fn node(&self, ino: Ino) -> Result<Node, NsError> {
        let node = self.table.lock().get(ino).cloned();
        node.ok_or(NsError::Errno(Errno::ESTALE))
    }

    pub(crate) fn dir(&self, ino: Ino) -> Result<Arc<Dir>, NsError> {
        match self.node(ino)? {
            Node::Dir(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// No more than so many directories of the PFS are kept open, but for those that were removed:
    /// their descriptor is all that is left of them.
    pub fn keep_directories(&self, most: usize) {
        self.handles.keep(most);
    }

    /// Opens a directory on the PFS.
    pub fn open_dir(&self, dir: &Arc<Dir>) -> Result<PfsDir, NsError> {
        self.handles.get(&self.pfs, &self.devices, dir)
    }

    /// The same for who has no right to names on the way to it: a rename is done on the PFS before
    /// it is known here. Where the directory is not found, waits for whoever changes names on the
    /// way, and looks once more.
    pub(crate) fn open_dir_after_renames(&self, dir: &Arc<Dir>) -> Result<PfsDir, NsError> {
        // Each wait lets the next rename begin: one that comes every time is nobody's in earnest.
        const WAITS: usize = 8;
        for _ in 0..WAITS {
            match self.open_dir(dir) {
                Err(error) if may_be_renamed(error.errno()) => {}
                opened => return opened,
            }
            let mut above = dir.place();
            while let Some((parent, _)) = above {
                drop(parent.order(&self.pfs)?);
                above = parent.place();
            }
        }
        self.open_dir(dir)
    }

    pub(crate) fn known_dir(&self, key: DirKey) -> Option<Arc<Dir>> {
        let known = self.dirs.lock().get(&key).and_then(Weak::upgrade);
        // Where the PFS tells no times of birth, the next directory may have the key of one that
        // was removed, and that is in use as long as somebody has it open.
        known.filter(|dir| !dir.is_removed())
    }

    /// All directories that are in use.
    pub(crate) fn known_dirs(&self) -> Vec<Arc<Dir>> {
        self.dirs
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The one `Dir` for a directory of the PFS, corrected if it is found at another place.
    pub(crate) fn intern_dir(&self, id: PfsId, parent: &Arc<Dir>, name: &[u8]) -> Arc<Dir> {
        let fs = || {
            let dir = self
                .pfs
                .open_dir(&self.open_dir(parent)?, name)
                .map_err(on_pfs("open a directory"))?;
            self.pfs
                .fs_id(&dir)
                .map_err(on_pfs("identify the file system"))
        };
        let key = self.devices.meet(&self.store, (parent.key, name), id, &fs);
        self.intern_key(key, parent, name)
    }

    fn intern_key(&self, key: DirKey, parent: &Arc<Dir>, name: &[u8]) -> Arc<Dir> {
        if let Some(dir) = self.known_dir(key) {
            let moved = match dir.place() {
                Some((p, n)) => !Arc::ptr_eq(&p, parent) || &*n != name,
                None => false,
            };
            if moved {
                dir.move_to(parent.clone(), name);
                self.rewrite_dir_record(&dir);
            }
            return dir;
        }
        let ino = self.table.lock().ino_for(self.id_of(key), self.root_dev);
        let dir = Arc::new(Dir::new(key, ino, Some((parent.clone(), name.into()))));
        let mut dirs = self.dirs.lock();
        if dirs.len() > 64 && dirs.len().is_power_of_two() {
            dirs.retain(|_, dir| dir.strong_count() > 0);
        }
        dirs.insert(key, Arc::downgrade(&dir));
        dir
    }

    /// What the table of ids knows a directory by. In other file systems than the root's inode
    /// numbers are not unique, and the table gives ids of its own.
    fn id_of(&self, key: DirKey) -> PfsId {
        PfsId {
            dev: match key.dev {
                0 => self.root_dev,
                ordinal => !ordinal,
            },
            ino: key.ino,
            btime_ns: key.btime_ns,
        }
    }

    fn rewrite_dir_record(&self, dir: &Arc<Dir>) {
        if !dir.is_persisted() {
            return;
        }
        let mut batch = Batch::new();
        // Where it is now, the directories above may have no records yet.
        let above = dir
            .place()
            .map_or_else(|| self.root.clone(), |(parent, _)| parent);
        let written = self
            .put_dir(&mut batch, dir)
            .and_then(|()| self.put_dirs(&mut batch, &above))
            .and_then(|()| Ok(self.store.commit(batch, Durability::Buffered)?));
        if written.is_ok() {
            self.dirs_written(&above);
        }
        if let Err(error) = written {
            // The record is a hint of where to look: a stale one makes the next start search.
            let path = dir.path();
            tracing::warn!("record of {}/: {error}", path.escape_ascii());
        }
    }

    pub(crate) fn put_dir(&self, batch: &mut Batch, dir: &Arc<Dir>) -> Result<(), NsError> {
        if let Some((parent, name)) = dir.place() {
            let parent = parent.key;
            let value = record::encode(&DirRecord {
                parent,
                name: name.to_vec(),
            })?;
            batch.put(record::dir_key(dir.key), value);
        }
        Ok(())
    }

    /// Adds the records of a directory and its parents that the store does not have yet.
    pub(crate) fn put_dirs(&self, batch: &mut Batch, dir: &Arc<Dir>) -> Result<(), NsError> {
        let mut at = dir.clone();
        while !at.is_persisted() {
            self.put_dir(batch, &at)?;
            match at.place() {
                Some((parent, _)) => at = parent,
                None => break,
            }
        }
        Ok(())
    }

    /// Writes the records of a directory and its parents, if the store does not have them yet.
    pub(crate) fn persist_dirs(&self, dir: &Arc<Dir>) -> Result<(), NsError> {
        if dir.is_persisted() {
            return Ok(());
        }
        let mut batch = Batch::new();
        self.put_dirs(&mut batch, dir)?;
        self.commit(batch)?;
        self.dirs_written(dir);
        Ok(())
    }

    pub(crate) fn dirs_written(&self, dir: &Arc<Dir>) {
        let mut at = dir.clone();
        while at.mark_persisted() {
            match at.place() {
                Some((parent, _)) => at = parent,
                None => break,
            }
        }
    }

    /// Reads a value of the caller's own, under `c/`.
    pub fn get_fact(&self, name: &str) -> Result<Option<Vec<u8>>, NsError> {
        Ok(self.store.get(format!("c/{name}").as_bytes())?)
    }

    /// Writes a value of the caller's own, under `c/`.
    pub fn put_fact(&self, name: &str, value: &[u8]) -> Result<(), NsError> {
        let mut batch = Batch::new();
        batch.put(format!("c/{name}").into_bytes(), value);
        self.commit(batch)
    }

    /// Whether the intent of a change on the PFS, or the records of these files, must be on stable
    /// storage before that change. A loss of power may bring back a record from when a file was
    /// dirty. Once the PFS has moved on, that would look like an outsider's change.
    pub(crate) fn must_be_synced(&self, files: &[Option<&Arc<File>>]) -> Result<bool, NsError> {
        let mut synced = false;
        for file in files.iter().flatten() {
            let (dirty, unsaved) = {
                let state = file.lock();
                (state.is_dirty(), state.is_unsaved())
            };
            if unsaved {
                self.save_deferred()?;
            }
            synced |= dirty || !self.store.is_stable(file.object);
        }
        Ok(synced)
    }

    /// Writes an intent before the PFS is changed; `synced`: see [`Self::must_be_synced`].
    pub(crate) fn begin_change_of_names(
        &self,
        mut batch: Batch,
        intent: &Intent,
        synced: bool,
    ) -> Result<u64, NsError> {
        let sequence = self.new_sequence();
        batch.put(record::intent_key(sequence), record::encode(intent)?);
        let durability = match synced {
            true => Durability::Synced,
            false => Durability::Buffered,
        };
        self.store.commit(batch, durability)?;
        Ok(sequence)
    }

    /// The PFS would not: nothing is under way any more.
    pub(crate) fn take_intent_back(&self, sequence: u64) -> Result<(), NsError> {
        let mut batch = Batch::new();
        batch.delete(record::intent_key(sequence));
        self.commit(batch)
            .inspect_err(|error| self.leave_unrecorded(Some(sequence), None, error))
    }

    pub(crate) fn new_sequence(&self) -> u64 {
        self.next_sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// Drops references of the kernel.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.table.lock().forget(ino, count);
    }

    /// Ids that the kernel knows.
    pub fn nodes(&self) -> usize {
        self.table.lock().len()
    }

    /// Totals of the PFS: the burst buffer is a passage, not a place.
    pub fn statfs(&self) -> Result<Statfs, NsError> {
        match self.pfs.health().totals() {
            Some(known) if self.pfs.health().is_silent() => Ok(known),
            _ => self.pfs.statfs().map_err(on_pfs("statfs")),
        }
    }

    pub(crate) fn dir_key(&self, stat: &PfsStat) -> DirKey {
        self.devices.key(stat.id)
    }
}
/// What the PFS says of a directory that is not where it was.
fn may_be_renamed(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE)
}
