//! Several clients of one server: what one of them has is no other one's, and goes with it.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, Scratch, kernels_own, me, settings};
use forebay_client::{Client, OpenFile, Progress};
use forebay_server::Session;
use forebay_testkit::needs_root;
use forebay_types::{Attr, ByteRange, Errno, Ino, LockClass, LockMode, OpenFlags};
use forebay_wire::{Connection, InMemory, LockOf, OpenMode, Request, Response, WriteHow};

const RDWR: OpenFlags = OpenFlags(libc::O_RDWR as u32);

struct Node {
    session: Arc<Session>,
    client: Client,
}

impl Node {
    fn new(running: &Running, descriptors: bool) -> Node {
        let session = running.instance.sessions().begin(0);
        let client = Client::new(Arc::new(InMemory::mount(session.clone())));
        client.accept_descriptors(descriptors);
        Node { session, client }
    }

    fn create(&self, name: &[u8]) -> (Attr, OpenFile) {
        let made = self.client.create(Ino::ROOT, name, 0o644, RDWR, me());
        let (shown, open) = made.unwrap_or_else(|e| panic!("create: {e:?}"));
        (shown.attr, open)
    }

    fn open(&self, name: &[u8]) -> OpenFile {
        let found = self.client.lookup(Ino::ROOT, name, 0).expect("lookup");
        self.client
            .open(found.ino, RDWR, me())
            .unwrap_or_else(|e| panic!("open: {e:?}"))
    }

    /// Opens it, and reads a page of it for a mapping.
    fn map(&self, name: &[u8]) -> OpenFile {
        let open = self.open(name);
        let read = Request::Read {
            handle: open.opened.handle,
            offset: 0,
            len: 4096,
            pages: true,
        };
        let read = InMemory::mount(self.session.clone()).call(read, &[], &mut [0; 4096]);
        read.expect("a page");
        open
    }

    fn append(&self, file: &OpenFile, data: &[u8]) {
        let how = WriteHow {
            append: true,
            ..WriteHow::WAITING
        };
        let done = self.client.write(file.opened.handle, 0, data, how, 0);
        assert_eq!(done, Ok(Progress::Done(data.len())));
    }

    fn read(&self, file: &OpenFile, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let read = self.client.read(file.opened.handle, 0, &mut data, 0);
        data.truncate(read.expect("read"));
        data
    }
}

#[test]
fn what_a_client_had_open_goes_with_it_and_what_others_have_stays() {
    let scratch = Scratch::new();
    let running = Running::start(&settings(scratch.path(), 64 << 20), false);
    let (one, other) = (Node::new(&running, false), Node::new(&running, false));
    let (_, unlinked) = one.create(b"unlinked");
    one.append(&unlinked, &[7; 100_000]);
    let (_, shared) = one.create(b"shared");
    one.append(&shared, b"from one, ");
    let seen = other.open(b"shared");
    other.append(&seen, b"from another");
    one.client
        .unlink(Ino::ROOT, b"unlinked", me())
        .expect("unlink");
    let unnamed = one.client.create_unnamed(Ino::ROOT, 0o600, RDWR, me());
    assert!(unnamed.is_ok());
    assert_eq!(running.status().open_files, 4);
    one.session.end();
    assert_eq!(running.status().open_files, 1);
    assert_eq!(other.read(&seen, 100), b"from one, from another");
    other.append(&seen, b"!");
    other.client.release(seen.opened.handle).expect("close");
    // Objects without a name go a moment later.
    let started = std::time::Instant::now();
    while running.status().files != 1 {
        assert!(started.elapsed() < PATIENCE, "{:?}", running.status());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(
        running.read_all(b"shared").expect("read"),
        b"from one, from another!"
    );
    running.drain();
}

#[test]
fn who_has_a_file_open_for_reading_only_keeps_no_writer_out() {
    let scratch = Scratch::new();
    let running = Running::start(&settings(scratch.path(), 64 << 20), false);
    let node = Node::new(&running, false);
    let (attr, made) = node.create(b"f");
    node.client.release(made.opened.handle).expect("close");
    let connection = InMemory::mount(node.session.clone());
    let ask = |access: i32, class, mode| {
        let flags = OpenFlags(access as u32);
        let open = node.client.open(attr.ino, flags, me()).expect("open");
        let lock = LockOf {
            handle: open.opened.handle,
            class,
            owner: 7,
            range: ByteRange::ALL,
        };
        let request = Request::Lock {
            lock,
            mode,
            pid: 7,
            ticket: None,
            again: false,
        };
        let done = connection.call(request, &[], &mut []);
        node.client.release(lock.handle).expect("close");
        done.map(|reply| reply.response)
    };
    let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
    let cases = [
        (libc::O_RDONLY, shared, true),
        (libc::O_RDONLY, exclusive, false),
        (libc::O_WRONLY, shared, false),
        (libc::O_WRONLY, exclusive, true),
        (libc::O_RDWR, shared, true),
        (libc::O_RDWR, exclusive, true),
    ];
    for (access, mode, may) in cases {
        let expected = match may {
            true => Ok(Response::Done),
            false => Err(Errno::EBADF),
        };
        let done = ask(access, LockClass::Bytes, mode);
        assert_eq!(done, expected, "{access} {mode:?}");
        // flock(2) looks at no access.
        let done = ask(access, LockClass::Whole, mode);
        assert_eq!(done, Ok(Response::Done), "{access} {mode:?}");
    }
    running.drain();
}

#[test]
fn who_appends_at_once_overwrites_nobody() {
    const APPENDS: usize = 300;
    let scratch = Scratch::new();
    let running = Running::start(&settings(scratch.path(), 64 << 20), false);
    let nodes: Vec<Node> = (0..3).map(|_| Node::new(&running, false)).collect();
    let (_, first) = nodes[0].create(b"log");
    std::thread::scope(|scope| {
        for (n, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                let file = node.open(b"log");
                for _ in 0..APPENDS {
                    node.append(&file, &[b'a' + n as u8; 100]);
                }
                node.client.release(file.opened.handle).expect("close");
            });
        }
    });
    nodes[0].client.release(first.opened.handle).expect("close");
    let log = running.read_all(b"log").expect("read");
    assert_eq!(log.len(), 3 * APPENDS * 100);
    for entry in log.chunks(100) {
        assert!(entry.iter().all(|byte| *byte == entry[0]), "a torn append");
    }
    running.drain();
}

#[test]
fn who_is_elsewhere_reads_and_writes_by_requests_what_a_kernel_has_in_passthrough() {
    if needs_root() {
        return;
    }
    let scratch = Scratch::new();
    let running = Running::start(&settings(scratch.path(), 64 << 20), true);
    let (here, there) = (Node::new(&running, true), Node::new(&running, false));
    running.put(b"a-1", &[1; 5000]);
    let written = here.open(b"a-1");
    assert_eq!(written.opened.mode, OpenMode::Passthrough);
    let kernel = kernels_own(&written);
    let seen = there.open(b"a-1");
    assert_eq!(seen.opened.mode, OpenMode::Plain);
    assert!(seen.descriptor.is_none());
    kernel.write_all_at(b"kernel", 0).expect("pwrite");
    assert_eq!(there.read(&seen, 6), b"kernel");
    there.append(&seen, b"elsewhere");
    let mut tail = [0; 9];
    kernel.read_exact_at(&mut tail, 5000).expect("pread");
    assert_eq!(&tail, b"elsewhere");
    // The kernel's descriptors go with its process.
    drop((kernel, written));
    here.session.end();
    assert_eq!(there.client.fsync(seen.opened.handle, false), Ok(()));
    assert_eq!(there.read(&seen, 6), b"kernel");
    there.client.release(seen.opened.handle).expect("close");
    assert_eq!(there.client.release(seen.opened.handle), Err(Errno::ESTALE));
    running.drain();
    let drained = std::fs::read(scratch.pfs().join("a-1")).expect("on the PFS");
    assert_eq!((drained.len(), &drained[..6]), (5009, &b"kernel"[..]));
}

/// A file that `here` has had in passthrough, and `there` has mapped, is opened again while the
/// close is on its way. `None` if that was not told in time, on a machine that has much to do.
fn open_before_a_close_is_told(
    (here, there): (&Node, &Node),
    (name, flags): (&[u8], OpenFlags),
    in_time: Duration,
) -> Option<OpenMode> {
    let found = here.client.lookup(Ino::ROOT, name, 0).expect("lookup");
    let first = here.client.open(found.ino, flags, me()).expect("open");
    assert_eq!(first.opened.mode, OpenMode::Passthrough);
    let kernel = flags.writes().then(|| kernels_own(&first));
    let mapped = there.map(name);
    if let Some(kernel) = kernel {
        // What is open goes on as it is, and does not wait for a close.
        let goes_on = || {
            let begun = Instant::now();
            let again = here.open(name);
            assert_eq!(again.opened.mode, OpenMode::Passthrough);
            here.client.release(again.opened.handle).expect("close");
            begun.elapsed() < in_time
        };
        assert!((0..5).any(|_| goes_on()));
        drop(kernel);
    }
    let begun = Instant::now();
    let (opened, told) = std::thread::scope(|scope| {
        let opener = scope.spawn(|| here.open(name));
        std::thread::sleep(Duration::from_millis(50));
        let is_open = opener.is_finished();
        assert!(!is_open || begun.elapsed() >= in_time, "nobody has waited");
        here.client.release(first.opened.handle).expect("close");
        let told = begun.elapsed();
        (opener.join().expect("no panic").opened, told)
    });
    here.client.release(opened.handle).expect("close");
    there.client.release(mapped.opened.handle).expect("close");
    (told < in_time).then_some(opened.mode)
}

#[test]
fn a_close_that_is_still_to_be_told_gives_no_kernel_a_file_that_others_have_mapped() {
    if needs_root() {
        return;
    }
    let scratch = Scratch::new();
    let running = Running::start(&settings(scratch.path(), 64 << 20), true);
    let nodes = (&Node::new(&running, true), &Node::new(&running, false));
    let read = OpenFlags(libc::O_RDONLY as u32);
    for (version, (flags, in_time_ms)) in [(RDWR, 4000), (read, 400)].into_iter().enumerate() {
        let in_time = Duration::from_millis(in_time_ms);
        let found = (0..20).find_map(|round| {
            let name = format!("a-{}", 2 * round + version);
            running.put(name.as_bytes(), &[1; 5000]);
            open_before_a_close_is_told(nodes, (name.as_bytes(), flags), in_time)
        });
        assert_eq!(found, Some(OpenMode::Plain), "{flags:?}");
    }
    running.drain();
}

#[test]
fn what_a_client_looks_at_the_pfs_by_goes_with_it_or_with_the_next_start() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 64 << 20);
    let probes = || {
        let entries = std::fs::read_dir(&settings.pfs).expect("read_dir");
        let names = entries.map(|entry| entry.expect("entry").file_name());
        let names = names.filter(|name| name.as_bytes().starts_with(b".forebay-"));
        names
            .map(|name| name.as_bytes().to_vec())
            .collect::<Vec<_>>()
    };
    let show = |session: &Arc<Session>| {
        let connection = InMemory::mount(session.clone());
        let reply = connection.call(Request::ShowProbe, &[], &mut []);
        match reply.expect("a probe").response {
            Response::Probe { name, .. } => name,
            other => panic!("{other:?}"),
        }
    };
    let hide = |session: &Arc<Session>, name: &[u8]| {
        let name = name.to_vec();
        let connection = InMemory::mount(session.clone());
        let reply = connection.call(Request::HideProbe { name }, &[], &mut []);
        reply.map(|reply| reply.response)
    };
    let running = Running::start(&settings, false);
    let sessions = running.instance.sessions();
    let (one, other) = (sessions.begin(0), sessions.begin(0));
    let first = show(&one);
    let (second, others) = (show(&one), show(&other));
    assert_eq!(
        hide(&one, &first),
        Err(Errno::ENOENT),
        "the second is in its place"
    );
    assert_eq!(
        hide(&one, &others),
        Err(Errno::ENOENT),
        "it is another client's"
    );
    assert_eq!(probes().len(), 2);
    assert_eq!(hide(&other, &others), Ok(Response::Done));
    assert_eq!(probes(), [second]);
    one.end();
    assert!(probes().is_empty());
    // As after a kill: the name is one of this state's.
    let left = show(&other);
    let content = std::fs::read(settings.pfs.join(OsStr::from_bytes(&left))).expect("read");
    other.end();
    running.instance.stop();
    drop((one, other, running));
    std::fs::write(settings.pfs.join(OsStr::from_bytes(&left)), content).expect("write");
    let running = Running::start(&settings, false);
    assert!(probes().is_empty());
    running.instance.stop();
}
