//! A rooms of its own for unit tests: nothing runs in it by itself, and its store fails when it is
//! told to.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_kv::{Batch, Durability, Error, Store, memory::Memory};
use forebay_namespace::File;
use forebay_policy::demotion::PlacementPolicy;
use forebay_tiers::CopyControl;
use forebay_tiers::testing::FaultyTier;
use forebay_types::{Cred, Errno, Handle, Ino, OpenFlags, Process, TierId};
use forebay_wire::{Link, WriteHow};
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::base::settings::{Settings, SsdSetting};
use crate::buffer::tierset::{DRAM, FIRST_SSD, TierSet};
use crate::drain::demote;
use crate::drain::picking::Line;
use crate::files::changeover::Leaving;
use crate::opening::open_on;
use crate::rooms::Rooms;

/// Its flash directory.
pub const FLASH: TierId = TierId(FIRST_SSD);

/// Both, where it has two.
pub const FLASHES: [TierId; 2] = [FLASH, TierId(FIRST_SSD + 1)];

/// A store whose commits fail from the moment that a file appears.
pub struct FailingStore {
    inner: Memory,
    from: Mutex<Option<PathBuf>>,
    fired: AtomicU64,
    healed: AtomicBool,
    syncs: AtomicU64,
    /// While this is set, syncs fail.
    pub fails_syncs: AtomicBool,
    /// While somebody has this, a sync waits.
    pub gate: Mutex<()>,
}

impl FailingStore {
    fn is_failing(&self) -> bool {
        let due = self.from.lock().as_ref().is_some_and(|path| path.exists());
        due && !self.healed.load(Ordering::Acquire)
    }

    /// Commits fail as soon as this file is there.
    pub fn fail_from(&self, path: PathBuf) {
        *self.from.lock() = Some(path);
    }

    /// No more.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Release);
    }

    /// How often it was told to sync, also by who waits for that still.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Acquire)
    }

    /// How many commits have failed.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::Acquire)
    }
}

impl Store for FailingStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.inner.get(key)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.inner.scan(prefix, after, visit)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error> {
        if self.is_failing() {
            self.fired.fetch_add(1, Ordering::AcqRel);
            return Err(Error::Poisoned);
        }
        self.inner.commit(batch, durability)
    }

    fn sync(&self) -> Result<(), Error> {
        self.syncs.fetch_add(1, Ordering::AcqRel);
        drop(self.gate.lock());
        if self.fails_syncs.load(Ordering::Acquire) {
            return Err(Error::Poisoned);
        }
        self.inner.sync()
    }

    fn mend(&self) -> Result<bool, Error> {
        self.inner.mend()
    }
}

/// Directories, a rooms on them, and its store.
pub struct Lab {
    dir: tempfile::TempDir,
    rooms: Arc<Rooms>,
    /// The store of its records.
    pub store: Arc<FailingStore>,
    /// Whether another server may lead by now.
    pub is_replaced: Arc<AtomicBool>,
}

impl Lab {
    /// One flash directory; passthrough is off.
    pub fn new() -> Lab {
        Lab::with(|_| ())
    }

    /// The same with other settings.
    pub fn with(change: impl FnOnce(&mut Settings)) -> Lab {
        Lab::wrapped(change, &mut |_| ())
    }

    /// The same with something around its tiers.
    fn wrapped(change: impl FnOnce(&mut Settings), wrap: &mut dyn FnMut(&mut TierSet)) -> Lab {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in ["pfs", "state", "ssd"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        let at = |name: &str| dir.path().join(name);
        let mut settings = Settings::new(at("pfs"), at("mnt"), at("state"));
        settings.passthrough = false;
        settings.overrun_bytes = Some(0);
        settings.ssd = vec![SsdSetting {
            dir: at("ssd"),
            capacity_bytes: Some(64 << 20),
        }];
        change(&mut settings);
        let store = Arc::new(FailingStore {
            inner: Memory::new(),
            from: Mutex::default(),
            fired: AtomicU64::new(0),
            healed: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            fails_syncs: AtomicBool::new(false),
            gate: Mutex::default(),
        });
        let is_replaced = Arc::new(AtomicBool::new(false));
        let may_change = {
            let is_replaced = is_replaced.clone();
            move || !is_replaced.load(Ordering::Acquire)
        };
        let rooms = open_on(settings, Box::new(store.clone()), may_change, wrap);
        let rooms = rooms.unwrap_or_else(|error| panic!("start: {error}"));
        let rooms = Arc::new(rooms);
        Lab {
            dir,
            rooms,
            store,
            is_replaced,
        }
    }

    /// The same with a flash directory that fails when it is told to, and loses what it was not
    /// told to flush.
    pub fn with_faulty_flash() -> (Lab, Arc<FaultyTier>) {
        let mut faulty = None;
        let lab = Lab::wrapped(|_| (), &mut |tiers| {
            tiers.wrap(FLASH, |tier| {
                let tier = Arc::new(FaultyTier::with_crashes(tier));
                faulty = Some(tier.clone());
                tier
            });
        });
        (lab, faulty.expect("wrapped"))
    }

    /// The same with memory before it, which does not fail.
    pub fn with_memory() -> (Lab, Arc<FaultyTier>) {
        let mut faulty = None;
        let lab = Lab::wrapped(
            |settings| settings.dram_bytes = Some(16 << 20),
            // Neither tells who writes it: what is open is moved all the same.
            &mut |tiers| {
                for tier in [DRAM, FLASH] {
                    tiers.wrap(tier, |tier| {
                        let tier = Arc::new(FaultyTier::new(tier));
                        faulty = Some(tier.clone());
                        tier
                    });
                }
            },
        );
        (lab, faulty.expect("wrapped"))
    }

    /// Memory of 16 MiB before flash, from which files move down at a half and a quarter of it.
    pub fn under_coolness() -> Lab {
        Lab::with(|settings| {
            settings.dram_bytes = Some(16 << 20);
            settings.engine.placement = PlacementPolicy::Coolness;
            settings.engine.out_fractions = (0.25, 0.5);
        })
    }

    /// Two flash directories that fail when they are told to, and no memory: a file may go from
    /// one to the other.
    pub fn with_two_flashes() -> (Lab, [Arc<FaultyTier>; 2]) {
        let mut faulty = Vec::new();
        let add = |settings: &mut Settings| {
            let mut other = settings.ssd[0].clone();
            other.dir.set_file_name("other");
            std::fs::create_dir(&other.dir).expect("mkdir");
            settings.ssd.push(other);
        };
        let lab = Lab::wrapped(add, &mut |tiers| {
            for tier in FLASHES {
                tiers.wrap(tier, |tier| {
                    let tier = Arc::new(FaultyTier::new(tier));
                    faulty.push(tier.clone());
                    tier
                });
            }
        });
        let faulty = faulty.try_into().map_err(|_| "not two");
        (lab, faulty.expect("wrapped"))
    }

    /// The rooms.
    pub fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// The same, for a server of them.
    pub fn shared_rooms(&self) -> Arc<Rooms> {
        self.rooms.clone()
    }

    /// A path on the PFS.
    pub fn pfs(&self, name: &str) -> PathBuf {
        self.dir.path().join("pfs").join(name)
    }

    /// The content of a file there.
    pub fn on_pfs(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.pfs(name)).expect("on the PFS")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Where there is memory it is mounted; what stays is named by whoever removes the
        // directory.
        let _ = self
            .rooms
            .buffer
            .tiers()
            .drop_dram(&self.rooms.base.settings().state);
    }
}

/// A file that is open goes from one of two flash directories to the other.
pub fn move_open(rooms: &Rooms, file: &Arc<File>) {
    let open = rooms.buffer.opens().by_ino(file.ino).expect("it is open");
    let from = file.tier();
    let to = FLASHES[usize::from(from == FLASHES[0])];
    let leaving = Leaving {
        file,
        open: &open,
        to,
        ahead_bytes: 0,
    };
    let moved = rooms.files.move_open_to_node(leaving, &CopyControl::NONE);
    assert_eq!(answer(moved), Ok(true));
    assert_eq!(file.tier(), to);
}

/// Demotes what waits for it, now.
pub fn drain(rooms: &Rooms) {
    for object in rooms.buffer.queue().waiting() {
        rooms.buffer.queue().add_urgent(object);
    }
    let batch = rooms.drain.next_batch(Line::OWN);
    demote::demote_batch(&rooms.drain, &batch);
}

/// What a program gets of it.
pub fn answer<T>(done: Result<T, Failure>) -> Result<T, Errno> {
    done.map_err(|failure| failure.errno())
}

/// The size that a file has on record, and whether only its object knows it.
pub fn recorded(file: &File) -> (u64, bool) {
    let state = file.lock();
    (state.meta.size, state.residency.writing)
}

/// Who runs the test.
pub fn me() -> Cred {
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        process: Process::here(0),
        umask: 0,
    }
}

/// A closed file in the root: its bytes are the last one of its name.
pub fn closed(rooms: &Rooms, name: &[u8], bytes: usize) -> Arc<File> {
    let last = *name.last().expect("a name");
    let handle = create(rooms, name, &vec![last; bytes]);
    rooms.files.release(handle).expect("close");
    rooms.base.ns().root().child(name).expect("it is there")
}

/// Creates a file in the root, writes it and leaves it open.
pub fn create(rooms: &Rooms, name: &[u8], content: &[u8]) -> Handle {
    create_in(rooms, Ino::ROOT, name, content)
}

/// The same in a directory.
pub fn create_in(rooms: &Rooms, parent: Ino, name: &[u8], content: &[u8]) -> Handle {
    let link = Link {
        parent,
        name: name.to_vec(),
    };
    let flags = OpenFlags(libc::O_RDWR as u32);
    let created = rooms.files.create(&link, 0o644, flags, me(), None);
    let (_, opened, _) = created.expect("create");
    let written = rooms
        .files
        .write(opened.handle, 0, content, WriteHow::WAITING);
    assert_eq!(answer(written), Ok(Some(content.len())));
    opened.handle
}

/// Leaves an undrained file in a new directory, which somebody then removes on the PFS.
pub fn strand(lab: &Lab, dir: &str, name: &str) {
    let rooms = lab.rooms();
    let link = Link {
        parent: Ino::ROOT,
        name: dir.into(),
    };
    let made = rooms.orders.mkdir(&link, 0o755, &me()).expect("mkdir");
    let handle = create_in(rooms, made.ino, name.as_bytes(), b"undrained");
    std::fs::remove_dir_all(lab.pfs(dir)).expect("remove");
    rooms.files.release(handle).expect("close");
}

/// Does something again and again beside something else, until that ends or fails.
pub fn beside(mut again: impl FnMut() + Send, body: impl FnOnce()) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                again();
            }
        });
        body();
        drop(over);
    });
}

/// A file that has lost a store through a mapping.
pub fn lose_store(rooms: &Rooms, flash: &FaultyTier, name: &[u8]) -> (Arc<File>, Handle) {
    let handle = create(rooms, name, b"content");
    use forebay_tiers::testing::{Effect, Operation, When};
    flash.inject(Operation::Write, When::Nth(1), Effect::Fail(Errno::EIO));
    let how = forebay_wire::WriteHow {
        write_back: true,
        ..forebay_wire::WriteHow::WAITING
    };
    let lost = rooms.files.write(handle, 0, b"CONTENT", how);
    assert_eq!(answer(lost), Err(Errno::EIO));
    let (open, _) = rooms.buffer.opens().file(handle).expect("open");
    let crate::buffer::target::Target::Buffer { file, .. } = open.target.read().clone() else {
        panic!("not in the burst buffer");
    };
    (file, handle)
}
