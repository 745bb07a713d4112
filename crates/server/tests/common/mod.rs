//! A burst buffer on temporary directories, and questions to it.

#![allow(dead_code)] // every test binary uses a part of it

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_holder::{DataServer, open_flash};
use forebay_server::{FsckOrders, HolderSetting, HolderWay, Instance, Settings, SsdSetting};
use forebay_tiers::{PfsTree, Tier};
use forebay_types::{Attr, Cred, Errno, Handle, Ino, OpenFlags, Process};
use forebay_wire::control::{
    Control, ControlResponse, JobProgress, Movement, PathFailure, StatusBits, WhereEntry,
};
use forebay_wire::{Connection, InMemory, Request, Response, WriteHow};

/// Nothing that is waited for takes longer than this on a machine that is merely slow.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the kernel does with an object that was handed over: opens it for itself.
pub fn kernels_own(open: &forebay_client::OpenFile) -> std::fs::File {
    let descriptor = open.descriptor.as_ref().expect("kernel passthrough");
    let path = format!("/proc/self/fd/{}", descriptor.descriptor().as_raw_fd());
    let file = std::fs::File::options().read(true).write(true).open(path);
    file.expect("the kernel's own open")
}

/// Directories of one instance: `pfs`, `state`, `ssd0`, `ssd1`.
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// Fresh, empty directories.
    pub fn new() -> Scratch {
        let dir = tempfile::tempdir().expect("temporary directory");
        make_dirs(dir.path());
        Scratch { dir }
    }

    /// The same in memory where that can be had: for tests that kill processes and cut no power.
    pub fn in_memory() -> Scratch {
        let dir = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .expect("temporary directory");
        make_dirs(dir.path());
        Scratch { dir }
    }

    /// The directory that holds them.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The slow file system.
    pub fn pfs(&self) -> PathBuf {
        self.path().join("pfs")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed may have left the memory tier mounted.
        let dram = self.path().join("state/dram");
        // Most often there is none.
        let _ = rustix::mount::unmount(&dram, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Makes the directories of an instance below `dir`.
pub fn make_dirs(dir: &Path) {
    for name in ["pfs", "state", "ssd0", "ssd1"] {
        std::fs::create_dir_all(dir.join(name)).expect("directory");
    }
}

/// Two small flash tiers, a short idle time, short waits.
pub fn settings(dir: &Path, ssd_bytes: u64) -> Settings {
    let mut settings = Settings::new(dir.join("pfs"), dir.join("mnt"), dir.join("state"));
    settings.ssd = ["ssd0", "ssd1"]
        .map(|name| SsdSetting {
            dir: dir.join(name),
            capacity_bytes: Some(ssd_bytes),
        })
        .to_vec();
    settings.demotion.idle_after = Duration::from_millis(10);
    settings.demotion.retry_after = Duration::from_millis(20);
    settings.wait_for_space = Duration::from_millis(100);
    settings
}

/// The same with the second tier on a data server.
pub fn settings_with_holder(dir: &Path, ssd_bytes: u64) -> Settings {
    let mut settings = settings(dir, ssd_bytes);
    let ssd = settings.ssd.pop().expect("two");
    let open = move |instance| {
        let tier = open_flash("ssd", &ssd, instance)?;
        Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
    };
    settings.demotion.copy_out_min_bytes = 1;
    let pfs = PfsTree::open(&settings.pfs).expect("a PFS");
    let server = DataServer::new("this boot".into(), Vec::new(), Box::new(open), Some(pfs));
    let connection = InMemory::mount(Arc::new(server.session()));
    settings.holders = vec![HolderSetting {
        server: 2,
        rack: 2,
        addresses: Vec::new(),
        way: HolderWay(Arc::new(connection)),
        replication: None,
    }];
    settings
}

/// Flash on these data servers, each in a rack of its own, and none on the server itself.
pub fn settings_with_holders(dir: &Path, ssd_bytes: u64, servers: &[u16]) -> Settings {
    let mut settings = settings(dir, ssd_bytes);
    settings.ssd.clear();
    settings.server = 1;
    settings.holders = servers
        .iter()
        .map(|server| holder(dir, ssd_bytes, *server))
        .collect();
    settings
}

fn holder(dir: &Path, ssd_bytes: u64, server: u16) -> HolderSetting {
    let ssd = SsdSetting {
        dir: dir.join(format!("flash{server}")),
        capacity_bytes: Some(ssd_bytes),
    };
    std::fs::create_dir_all(&ssd.dir).expect("mkdir");
    let open = move |instance| {
        let tier = open_flash("ssd", &ssd, instance)?;
        Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
    };
    let pfs = PfsTree::open(&dir.join("pfs")).expect("a PFS");
    let server_of = DataServer::new("this boot".into(), Vec::new(), Box::new(open), Some(pfs));
    let connection = InMemory::mount(Arc::new(server_of.session()));
    HolderSetting {
        server,
        rack: server,
        addresses: Vec::new(),
        way: HolderWay(Arc::new(connection)),
        replication: None,
    }
}

/// A check that compares all content.
pub fn orders(dry_run: bool) -> FsckOrders {
    FsckOrders {
        dry_run,
        checksums: true,
        ..FsckOrders::default()
    }
}

/// The user who runs the test.
pub fn me() -> Cred {
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        process: Process::here(0),
        umask: 0,
    }
}

/// A running instance with its client.
pub struct Running {
    /// The server.
    pub instance: Arc<Instance>,
    /// The client.
    pub client: Client,
}

impl Running {
    /// Starts one; with `descriptors`, files may be opened in passthrough.
    pub fn start(settings: &Settings, descriptors: bool) -> Running {
        let instance = Instance::start(settings.clone()).unwrap_or_else(|e| panic!("start: {e}"));
        let client = Client::new(Arc::new(InMemory::mount(instance.service())));
        client.accept_descriptors(descriptors);
        Running { instance, client }
    }

    /// Starts one whose client's requests go over this connection.
    pub fn start_over<C: Connection + 'static>(
        settings: &Settings,
        connect: impl FnOnce(&Arc<Instance>) -> Arc<C>,
    ) -> (Running, Arc<C>) {
        let instance = Instance::start(settings.clone()).unwrap_or_else(|e| panic!("start: {e}"));
        let connection = connect(&instance);
        let client = Client::new(connection.clone());
        (Running { instance, client }, connection)
    }

    /// Asks what the command line asks.
    pub fn control(&self, control: Control) -> Result<ControlResponse, Errno> {
        let connection = InMemory::mount(self.instance.service());
        match connection
            .call(Request::Control(control), &[], &mut [])?
            .response
        {
            Response::Control(answer) => Ok(answer),
            other => panic!("unexpected answer: {other:?}"),
        }
    }

    /// Everything `forebay status` shows.
    pub fn status(&self) -> StatusBits {
        match self.control(Control::Status) {
            Ok(ControlResponse::Status(status)) => *status,
            other => panic!("status: {other:?}"),
        }
    }

    /// Residency of all files below `path`.
    pub fn residency(&self, path: &[u8]) -> Vec<WhereEntry> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let paths = vec![path.to_vec()];
            match self.control(Control::Where { paths, after }) {
                Ok(ControlResponse::Where {
                    files, more_after, ..
                }) => {
                    all.extend(files);
                    after = more_after;
                }
                other => panic!("where: {other:?}"),
            }
            if after.is_none() {
                return all;
            }
        }
    }

    /// Stages out all there is: nothing fails but what an outsider has changed meanwhile.
    pub fn stage_out_past_outsiders(&self) {
        let job = self.move_files(Movement::StageOut, b"");
        let is_conflict = |failure: &PathFailure| {
            failure.errno == Errno::EEXIST && failure.reason.contains(".forebay-conflict-")
        };
        assert!(job.failures.iter().all(is_conflict), "{job:?}");
    }

    /// Orders a movement and waits for its end.
    pub fn move_files(&self, movement: Movement, path: &[u8]) -> JobProgress {
        let paths = vec![path.to_vec()];
        let id = match self.control(Control::Start { movement, paths }) {
            Ok(ControlResponse::Started { id }) => id,
            other => panic!("start of {movement:?}: {other:?}"),
        };
        let started = Instant::now();
        loop {
            match self.control(Control::Job { id }) {
                Ok(ControlResponse::Job(job)) if job.finished => return job,
                Ok(ControlResponse::Job(job)) => {
                    assert!(started.elapsed() < PATIENCE, "{movement:?} hangs: {job:?}");
                }
                other => panic!("job: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the idle drain has demoted every file whose path `skip` does not name.
    pub fn wait_clean(&self, skip: &dyn Fn(&[u8]) -> bool) {
        let started = Instant::now();
        loop {
            let dirty = self.residency(b"").into_iter().find(|entry| {
                !matches!(entry.state.as_str(), "clean" | "pfs") && !skip(&entry.path)
            });
            let Some(entry) = dirty else {
                return;
            };
            let waited = started.elapsed();
            assert!(
                waited < PATIENCE,
                "not demoted after {waited:?}: {entry:?}, {:?}",
                self.status()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until every undrained file has its checksum on record.
    pub fn wait_sealed(&self) -> Result<(), Errno> {
        let started = Instant::now();
        let open = |entry: &WhereEntry| entry.state == "dirty" && entry.crc32c.is_none();
        while let Some(entry) = self.residency(b"").into_iter().find(open) {
            let waited = started.elapsed();
            assert!(waited < PATIENCE, "after {waited:?}: {entry:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Drains as `forebay down` does and checks the books: nothing undrained, nothing set aside.
    pub fn drain(&self) {
        let order = Control::Shutdown {
            drain: true,
            timeout_ms: PATIENCE.as_millis() as u64,
        };
        self.control(order).expect("shutdown");
        let (tell, told) = mpsc::channel::<()>();
        let reason = std::thread::scope(|scope| {
            // A server whose drain comes too late goes on, and nobody would end the wait for it.
            scope.spawn(move || {
                if told.recv_timeout(PATIENCE * 3 / 2) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let (drain, timeout_ms) = (false, 0);
                    let order = Control::Shutdown { drain, timeout_ms };
                    self.control(order).expect("shutdown");
                }
            });
            let reason = self.instance.wait_stop();
            drop(tell);
            reason
        });
        let drained = forebay_server::StopReason::Drained;
        assert_eq!(reason, drained, "{:?}", self.residency(b""));
        // Objects of unlinked files go a moment later.
        let started = Instant::now();
        loop {
            let status = self.status();
            let tiers = status.tiers.iter();
            let left: u64 = tiers.map(|t| t.dirty_bytes + t.reserved_bytes).sum();
            if status.dirty_bytes + left == 0 {
                return self.audit();
            }
            assert!(started.elapsed() < PATIENCE, "{status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the books are what lies in the tiers, and nothing else. For a server that nobody
    /// uses any more.
    pub fn audit(&self) {
        let started = Instant::now();
        loop {
            let wrong = self.instance.audit_books();
            if wrong.is_empty() {
                return;
            }
            // Copies and removals may be under way.
            assert!(started.elapsed() < PATIENCE, "{}", wrong.join("\n"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Looks a path up, component by component, without keeping references.
    pub fn find(&self, path: &[u8]) -> Result<Attr, Errno> {
        let mut found = self.client.getattr(Ino::ROOT, None)?;
        let mut held = Vec::new();
        let mut result = Ok(());
        for part in path.split(|&b| b == b'/').filter(|p| !p.is_empty()) {
            match self.client.lookup(found.ino, part, 0) {
                Ok(attr) => found = attr,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
            held.push((found.ino, 1));
        }
        self.client.forget(held);
        result.map(|()| found.attr)
    }

    /// Creates a file in the root and opens it for reading and writing.
    pub fn create(&self, name: &[u8]) -> Result<(Attr, Handle), Errno> {
        let flags = OpenFlags(libc::O_RDWR as u32);
        let (attr, open) = self.client.create(Ino::ROOT, name, 0o644, flags, me())?;
        Ok((attr.attr, open.opened.handle))
    }

    /// Writes by requests, waiting for space where needed.
    pub fn write(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match self
            .client
            .write(handle, offset, data, WriteHow::WAITING, 0)?
        {
            forebay_client::Progress::Done(n) => assert_eq!(n, data.len()),
            forebay_client::Progress::WouldWait => panic!("a write that may wait did not"),
            forebay_client::Progress::Paced(..) => panic!("nobody has a rate"),
        }
        Ok(())
    }

    /// Writes by one request.
    pub fn write_unwaited(&self, handle: Handle, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let how = WriteHow::WAITING;
        self.client.write(handle, offset, data, how, 0).map(drop)
    }

    /// Creates a file in the root with this content and closes it.
    pub fn put(&self, name: &[u8], data: &[u8]) -> Attr {
        let (attr, handle) = self.create(name).expect("create");
        for (n, part) in data.chunks(1 << 20).enumerate() {
            self.write(handle, (n as u64) << 20, part).expect("write");
        }
        self.client.release(handle).expect("close");
        attr
    }

    /// The content of a file, read by requests.
    pub fn read_all(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let (dir, name) = match path.iter().rposition(|&b| b == b'/') {
            Some(at) => (self.find(&path[..at])?.ino, &path[at + 1..]),
            None => (Ino::ROOT, path),
        };
        let attr = self.client.lookup(dir, name, 0)?;
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let handle = self.client.open(attr.ino, flags, me())?.opened.handle;
        let data = self.read(handle, 0, attr.size as usize);
        self.client.release(handle)?;
        self.client.forget(vec![(attr.ino, 1)]);
        data
    }

    /// So many bytes, or up to the end.
    pub fn read(&self, handle: Handle, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0; len];
        let mut at = 0;
        while at < data.len() {
            let end = data.len().min(at + (1 << 20));
            let n = self
                .client
                .read(handle, offset + at as u64, &mut data[at..end], 0)?;
            if n == 0 {
                break;
            }
            at += n;
        }
        data.truncate(at);
        Ok(data)
    }
}

/// A number from the environment.
pub fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `FOREBAY_SEED`, or a new one.
pub fn base_seed() -> u64 {
    from_env("FOREBAY_SEED").unwrap_or_else(|| rand::random::<u32>().into())
}
