//! One run: an instance, the reference beside it, open handles, the record of what was done.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_server::Settings;
use forebay_types::{Attr, Cred, Errno, FileKind, Handle, Ino, OpenFlags};
use forebay_wire::{Descriptor, OpenMode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::clients::Clients;
use crate::common::{Running, Scratch, me, settings, settings_with_holder};
use crate::reference::{Id, Place, Tree};

/// Most operations that are shown when a run fails.
const SHOWN_MAX: usize = 60;
/// Most open handles.
pub const HANDLES_MAX: usize = 6;
/// Largest file, bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;
/// All files together, bytes.
pub const TOTAL_BYTES_MAX: usize = 30 << 20;

/// An open file, as the kernel holds it.
pub struct Open {
    /// What it is in the reference.
    pub id: Id,
    /// Its id in the mount; a reference is held on it.
    pub ino: Ino,
    /// The handle.
    pub handle: Handle,
    /// open(2)'s flags.
    pub flags: OpenFlags,
    /// The object as the kernel has opened it for itself.
    pub unseen: Option<(File, Arc<dyn Descriptor>)>,
}

/// How a run is set up.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Capacity of each flash tier, bytes.
    pub ssd_bytes: u64,
    /// Capacity of the memory tier, bytes.
    pub dram_bytes: Option<u64>,
    /// Opens may be passthrough.
    pub descriptors: bool,
    /// Quiet time before the drain starts.
    pub idle_after: Duration,
    /// How long writes wait for space.
    pub wait_for_space: Duration,
    /// Copies have no name until they are whole.
    pub unnamed: bool,
    /// Undrained content that stands still for so long gets its checksum, and what is at rest is
    /// read all the time.
    pub seal_after: Option<Duration>,
    /// What is opened is compared when it is read.
    pub by_piece: bool,
    /// Descriptors for open files and others.
    pub descriptors_max: Option<u64>,
    /// Clients with a session each; one alone needs none.
    pub clients: usize,
    /// The second flash tier is on a data server.
    pub holder: bool,
}

impl Shape {
    fn random(rng: &mut StdRng, clients: usize) -> Shape {
        let small = rng.random_bool(0.6);
        let root = me().uid == 0;
        Shape {
            ssd_bytes: if small { 8 << 20 } else { 64 << 20 },
            dram_bytes: (root && rng.random_bool(0.4)).then_some(8 << 20),
            descriptors: rng.random_bool(0.5),
            idle_after: Duration::from_millis(rng.random_range(5..20)),
            wait_for_space: Duration::from_millis(rng.random_range(50..200)),
            unnamed: rng.random_bool(0.5),
            seal_after: rng
                .random_bool(0.6)
                .then(|| Duration::from_millis(rng.random_range(0..3))),
            by_piece: rng.random_bool(0.5),
            descriptors_max: rng.random_bool(0.5).then(|| rng.random_range(0..8)),
            clients,
            holder: rng.random_bool(0.4),
        }
    }

    /// A server of this shape, with its clients.
    fn start(&self, settings: &Settings, seed: u64) -> (Running, Option<Arc<Clients>>) {
        if self.clients == 1 {
            return (Running::start(settings, self.descriptors), None);
        }
        let (running, clients) = Running::start_over(settings, |instance| {
            let instance = instance.clone();
            Arc::new(Clients::new(instance, self.clients, self.descriptors, seed))
        });
        (running, Some(clients))
    }

    fn settings(&self, scratch: &Scratch) -> Settings {
        let mut settings = match self.holder {
            true => settings_with_holder(scratch.path(), self.ssd_bytes),
            false => settings(scratch.path(), self.ssd_bytes),
        };
        settings.dram_bytes = self.dram_bytes;
        settings.demotion.idle_after = self.idle_after;
        settings.wait_for_space = self.wait_for_space;
        settings.demotion.unnamed = self.unnamed;
        settings.descriptors_max = self.descriptors_max;
        if self.by_piece {
            settings.scrub.verify_on_open_bytes = 0;
        }
        if let Some(seal_after) = self.seal_after {
            settings.scrub.seal_after = seal_after;
            settings.scrub.calm = Duration::ZERO;
            settings.scrub.pass = Duration::from_millis(1);
        }
        settings
    }
}

/// A run.
pub struct World {
    /// The directories.
    pub scratch: Scratch,
    /// The server; `None` between a stop and the next start.
    running: Option<Running>,
    /// Its clients, where there are several.
    clients: Option<Arc<Clients>>,
    /// What should be.
    pub tree: Tree,
    /// The source of all choices.
    pub rng: StdRng,
    /// Open files.
    pub opens: Vec<Open>,
    /// References of the kernel that were not dropped yet.
    pub held: Vec<(Ino, u64)>,
    /// Whether the file system below has user attributes.
    pub xattrs: bool,
    /// Who asks.
    pub cred: Cred,
    settings: Settings,
    shape: Shape,
    seed: u64,
    steps: u64,
    log: VecDeque<String>,
}

impl World {
    /// A fresh instance with so many clients, shaped by the seed.
    pub fn new(seed: u64, clients: usize) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let scratch = Scratch::new();
        let shape = Shape::random(&mut rng, clients);
        let settings = shape.settings(&scratch);
        let (running, clients) = shape.start(&settings, seed);
        let root = me();
        let mut tree = Tree::new();
        tree.get_mut(crate::reference::ROOT).perm = mode_of(&scratch.pfs());
        let probe = rustix::fs::setxattr(
            scratch.pfs(),
            "user.probe",
            b"1",
            rustix::fs::XattrFlags::empty(),
        );
        if probe.is_ok() {
            rustix::fs::removexattr(scratch.pfs(), "user.probe").expect("removexattr");
        }
        World {
            scratch,
            running: Some(running),
            clients,
            tree,
            rng,
            opens: Vec::new(),
            held: Vec::new(),
            xattrs: probe.is_ok(),
            cred: root,
            settings,
            shape,
            seed,
            steps: 0,
            log: VecDeque::new(),
        }
    }

    /// The server.
    pub fn server(&self) -> &Running {
        self.running.as_ref().expect("a running server")
    }

    /// Notes an operation for the record that a failure shows.
    pub fn note(&mut self, what: String) {
        self.steps += 1;
        if std::env::var_os("FOREBAY_MODEL_TRACE").is_some() {
            eprintln!("{:6} {what}", self.steps);
        }
        self.log.push_back(format!("{:6} {what}", self.steps));
        if self.log.len() > SHOWN_MAX {
            self.log.pop_front();
        }
    }

    /// Stops and starts the server on the same state. All handles are closed before.
    pub fn restart(&mut self) {
        self.note("restart".into());
        self.close_all();
        self.held.clear();
        self.clients = None;
        if let Some(running) = self.running.take() {
            running.instance.stop();
        }
        let (running, clients) = self.shape.start(&self.settings, self.seed + self.steps);
        self.running = Some(running);
        self.clients = clients;
    }

    /// The next step is another client's, perhaps.
    pub fn next_turn(&mut self) {
        if let Some(clients) = &self.clients {
            clients.next_turn();
        }
    }

    /// A client goes without closing anything, if there are others.
    pub fn leave(&mut self) {
        let Some(clients) = self.clients.clone() else {
            return self.close_all();
        };
        let client = self.rng.random_range(0..self.shape.clients);
        self.note(format!("client {client} leaves"));
        let held = std::mem::take(&mut self.held);
        self.server().client.forget(held);
        let files = clients.files_of(client);
        let (gone, stay) = std::mem::take(&mut self.opens)
            .into_iter()
            .partition(|open| files.contains(&open.handle));
        self.opens = stay;
        let gone: Vec<Open> = gone;
        let ids: Vec<(Id, OpenFlags)> = gone.iter().map(|open| (open.id, open.flags)).collect();
        // Its kernel's own descriptors went with it.
        drop(gone);
        clients.replace(client);
        for (id, flags) in ids {
            self.closed(id, flags);
        }
    }

    /// The reference knows of an open less.
    fn closed(&mut self, id: Id, flags: OpenFlags) {
        let inode = self.tree.get_mut(id);
        inode.opens -= 1;
        inode.writers -= u32::from(flags.writes());
        self.tree.collect(id);
    }

    /// Stops the server for good.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            let left = running.instance.stop();
            assert_eq!(left.undrained_files, 0, "{left:?}");
        }
    }

    /// Walks to a directory as the kernel does, by lookups.
    pub fn walk(&mut self, path: &[Vec<u8>]) -> Ino {
        let mut at = Ino::ROOT;
        for part in path {
            let found = self.server().client.lookup(at, part, 0);
            let found = found.unwrap_or_else(|e| panic!("lookup of {}: {e:?}", show(path)));
            assert_eq!(found.kind, FileKind::Directory, "{}", show(path));
            self.held.push((found.ino, 1));
            at = found.ino;
        }
        at
    }

    /// Looks a name up, and compares what is found with the reference.
    pub fn look(&mut self, place: &Place) -> (Ino, Option<Attr>) {
        let dir = self.walk(&place.dir_path);
        let found = self.server().client.lookup(dir, &place.name, 0);
        let expected = self.tree.at(place);
        match (found, expected) {
            (Ok(attr), Some(id)) => {
                self.held.push((attr.ino, 1));
                self.compare_attr(place, id, &attr);
                (dir, Some(attr.attr))
            }
            (Err(Errno::ENOENT), None) => (dir, None),
            (found, _) => panic!(
                "lookup of {}: {found:?}, expected {:?}",
                place.path().escape_ascii(),
                expected.map(|id| self.tree.get(id).kind())
            ),
        }
    }

    /// Compares attributes with the reference.
    pub fn compare_attr(&self, place: &Place, id: Id, attr: &Attr) {
        let what = place.path().escape_ascii().to_string();
        let inode = self.tree.get(id);
        assert_eq!(attr.kind, inode.kind(), "kind of {what}");
        match &inode.body {
            crate::reference::Body::File(data) => {
                assert_eq!(attr.size, data.len() as u64, "size of {what}");
                assert_eq!(attr.perm, inode.perm, "mode of {what}");
                assert_eq!(attr.nlink, inode.nlink, "links of {what}");
                if let Some(mtime) = inode.mtime {
                    assert_eq!(attr.mtime, mtime, "mtime of {what}");
                }
                for open in self.opens.iter().filter(|o| o.id == id) {
                    assert_eq!(attr.ino, open.ino, "id of {what}, which is open");
                }
            }
            crate::reference::Body::Dir(_) => assert_eq!(attr.perm, inode.perm, "mode of {what}"),
            crate::reference::Body::Symlink(target) => {
                assert_eq!(attr.size, target.len() as u64, "size of {what}");
            }
        }
    }

    /// Takes what an open or a create answered into the table of open files.
    pub fn opened(&mut self, id: Id, ino: Ino, flags: OpenFlags, open: forebay_client::OpenFile) {
        let passthrough = open.opened.mode == OpenMode::Passthrough;
        assert_eq!(passthrough, open.descriptor.is_some(), "descriptor");
        let unseen = open.descriptor.map(|descriptor| {
            let path = format!("/proc/self/fd/{}", descriptor.descriptor().as_raw_fd());
            let file = File::options()
                .read(flags.reads())
                .write(flags.writes())
                .open(path)
                .expect("the kernel's own open");
            (file, descriptor)
        });
        let inode = self.tree.get_mut(id);
        inode.opens += 1;
        inode.writers += u32::from(flags.writes());
        let handle = open.opened.handle;
        self.opens.push(Open {
            id,
            ino,
            handle,
            flags,
            unseen,
        });
    }

    /// Closes the handle at this position.
    pub fn close(&mut self, at: usize) {
        let open = self.opens.swap_remove(at);
        drop(open.unseen);
        let client = self.server().client.clone();
        client.release(open.handle).expect("close");
        client.forget(vec![(open.ino, 1)]);
        self.closed(open.id, open.flags);
    }

    /// Closes everything.
    pub fn close_all(&mut self) {
        while !self.opens.is_empty() {
            self.close(0);
        }
    }

    /// Drops the kernel's references, most of the time.
    pub fn forget_some(&mut self) {
        if self.held.len() > 400 || self.rng.random_bool(0.7) {
            let held = std::mem::take(&mut self.held);
            self.server().client.forget(held);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        eprintln!("--- seed {}, {:?}", self.seed, self.shape);
        for line in &self.log {
            eprintln!("{line}");
        }
        eprintln!(
            "--- repeat with FOREBAY_SEED={} FOREBAY_MODEL_SEEDS=1 and the same FOREBAY_MODEL_STEPS",
            self.seed
        );
        if let Some(running) = self.running.take() {
            eprintln!("--- {:?}", running.status());
            self.opens.clear();
            self.clients = None;
            running.instance.stop();
        }
    }
}

/// Permission bits of a file on the PFS.
pub fn mode_of(path: &std::path::Path) -> u16 {
    use std::os::unix::fs::PermissionsExt;
    let found = std::fs::symlink_metadata(path).expect("stat");
    (found.permissions().mode() & 0o7777) as u16
}

/// A path for people.
pub fn show(path: &[Vec<u8>]) -> String {
    path.join(&b'/').escape_ascii().to_string()
}
