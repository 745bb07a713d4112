//! Files without a name that clients have open, over restarts of the server.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::{PATIENCE, Running, Scratch, me, settings};
use forebay_client::{Client, OpenFile, Progress};
use forebay_server::{Session, Settings};
use forebay_types::{Attr, Errno, Ino, OpenFlags, SetAttr};
use forebay_wire::{Connection, InMemory, Request, Response, WriteHow};

const RDWR: OpenFlags = OpenFlags(libc::O_RDWR as u32);
const LEN: usize = 300_000;

/// A client in one of its lives.
struct Node {
    session: Arc<Session>,
    client: Client,
}

impl Node {
    fn new(running: &Running, life: u64) -> Node {
        let session = running.instance.sessions().begin(life);
        let client = Client::new(Arc::new(InMemory::mount(session.clone())));
        client.accept_descriptors(false);
        Node { session, client }
    }

    /// One that was there before, and says so.
    fn again(running: &Running, life: u64, before: u64) -> Node {
        let node = Node::new(running, life);
        assert_eq!(node.reclaim(before, false), Ok(Response::Done));
        node
    }

    fn ask(&self, request: Request) -> Result<Response, Errno> {
        let reply = InMemory::mount(self.session.clone()).call(request, &[], &mut []);
        reply.map(|reply| reply.response)
    }

    fn reclaim(&self, life: u64, done: bool) -> Result<Response, Errno> {
        self.ask(Request::MayReclaim { life, done })
    }

    fn create(&self, name: &[u8]) -> (Attr, OpenFile) {
        let made = self.client.create(Ino::ROOT, name, 0o644, RDWR, me());
        let (shown, open) = made.unwrap_or_else(|e| panic!("create: {e:?}"));
        (shown.attr, open)
    }

    fn unnamed(&self) -> (Attr, OpenFile) {
        let made = self.client.create_unnamed(Ino::ROOT, 0o600, RDWR, me());
        let (shown, open) = made.unwrap_or_else(|e| panic!("create: {e:?}"));
        (shown.attr, open)
    }

    fn find(&self, ino: Ino, life: u64) -> Result<Attr, Errno> {
        match self.ask(Request::FindNameless { ino, life })? {
            Response::Attr(shown) => Ok(shown.attr),
            other => panic!("{other:?}"),
        }
    }

    fn open(&self, ino: Ino) -> OpenFile {
        let opened = self.client.open(ino, RDWR, me());
        opened.unwrap_or_else(|e| panic!("open: {e:?}"))
    }

    fn write(&self, file: &OpenFile, at: u64, data: &[u8]) {
        let how = WriteHow::WAITING;
        let done = self.client.write(file.opened.handle, at, data, how, 0);
        assert_eq!(done, Ok(Progress::Done(data.len())));
    }

    fn read(&self, file: &OpenFile) -> Vec<u8> {
        let mut data = vec![0; 2 * LEN];
        let read = self.client.read(file.opened.handle, 0, &mut data, 0);
        data.truncate(read.expect("read"));
        data
    }
}

/// Objects of all tiers.
fn objects(scratch: &Scratch) -> usize {
    fn count(dir: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(dir) else {
            return 0;
        };
        let one = |entry: std::fs::DirEntry| match entry.file_type().is_ok_and(|kind| kind.is_dir())
        {
            true => count(&entry.path()),
            false => 1,
        };
        entries.flatten().map(one).sum()
    }
    let tiers = ["ssd0", "ssd1"].map(|name| count(&scratch.path().join(name).join("objects")));
    tiers.iter().sum()
}

fn wait_for_objects(scratch: &Scratch, count: usize) {
    let begun = Instant::now();
    while objects(scratch) != count {
        let left = objects(scratch);
        assert!(
            begun.elapsed() < PATIENCE,
            "{left} objects instead of {count}"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Ends a server in order, and starts the next one.
fn restart(running: Running, nodes: Vec<Node>, settings: &Settings) -> Running {
    running.instance.sessions().stop();
    nodes.iter().for_each(|node| node.session.end());
    running.instance.stop();
    drop((running, nodes));
    Running::start(settings, false)
}

#[test]
fn who_had_a_file_open_that_has_no_name_has_it_again_and_nobody_else() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 64 << 20);
    let running = Running::start(&settings, false);
    let (one, other) = (Node::new(&running, 11), Node::new(&running, 21));
    let (attr, open) = one.create(b"f");
    one.write(&open, 0, &[7; LEN]);
    other.client.lookup(Ino::ROOT, b"f", 0).expect("lookup");
    other
        .client
        .unlink(Ino::ROOT, b"f", me())
        .expect("the other one unlinks it");
    // After the unlink it has changed.
    one.write(&open, LEN as u64, b"more");
    let (closed, open) = one.create(b"closed");
    one.client
        .unlink(Ino::ROOT, b"closed", me())
        .expect("unlink");
    one.client.release(open.opened.handle).expect("close");
    wait_for_objects(&scratch, 1);
    let mut running = restart(running, vec![one, other], &settings);
    let mut content = [vec![7; LEN], b"more".to_vec()].concat();
    for (before, life) in [(11, 12), (12, 13)] {
        let stranger = Node::new(&running, 99);
        assert_eq!(stranger.find(attr.ino, before), Err(Errno::ESTALE));
        assert_eq!(stranger.find(attr.ino, 99), Err(Errno::ESTALE));
        if before == 11 {
            let other = Node::again(&running, 22, 21);
            for life in [before, 21, 22] {
                assert_eq!(other.find(attr.ino, life), Err(Errno::ESTALE));
            }
            other.reclaim(21, true).expect("it has all that it had");
        }
        let again = Node::again(&running, life, before);
        assert_eq!(again.find(closed.ino, before), Err(Errno::ESTALE));
        let found = again.find(attr.ino, before).expect("it is there");
        assert_eq!((found.nlink, found.size), (0, content.len() as u64));
        let open = again.open(attr.ino);
        again.reclaim(before, true).expect("it has all that it had");
        assert_eq!(again.find(attr.ino, before), Err(Errno::ESTALE));
        assert!(again.read(&open) == content);
        again.write(&open, content.len() as u64, b"and more");
        content.extend(b"and more");
        assert_eq!(running.instance.undrained().undrained_files, 0);
        // Whoever has not come was not there.
        stranger.session.end();
        drop(stranger);
        running = restart(running, vec![again], &settings);
        wait_for_objects(&scratch, 1);
    }
    let last = Node::again(&running, 14, 13);
    last.find(attr.ino, 13).expect("it is there");
    let open = last.open(attr.ino);
    last.reclaim(13, true).expect("it has all that it had");
    let cut = SetAttr {
        size: Some(3),
        ..SetAttr::default()
    };
    last.client
        .setattr(attr.ino, Some(open.opened.handle), cut, me())
        .expect("truncate");
    assert_eq!(last.read(&open), [7; 3]);
    assert_eq!(objects(&scratch), 1);
    last.client.release(open.opened.handle).expect("close");
    wait_for_objects(&scratch, 0);
    last.session.end();
    assert_eq!(running.instance.audit_books(), Vec::<String>::new());
    running.instance.stop();
}

#[test]
fn what_nobody_comes_for_goes_when_all_have_come() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 64 << 20);
    let running = Running::start(&settings, false);
    let (one, other) = (Node::new(&running, 11), Node::new(&running, 21));
    let (_, open) = one.create(b"f");
    one.write(&open, 0, &[7; LEN]);
    let shared = other.client.lookup(Ino::ROOT, b"f", 0).expect("lookup").ino;
    other.open(shared);
    one.client.unlink(Ino::ROOT, b"f", me()).expect("unlink");
    let running = restart(running, vec![one, other], &settings);
    let again = Node::again(&running, 12, 11);
    again.reclaim(11, true).expect("it wants nothing");
    assert_eq!(running.status().files, 1, "the other one may come");
    assert_eq!(objects(&scratch), 1);
    let other = Node::again(&running, 22, 21);
    other.find(shared, 21).expect("it is there");
    other.reclaim(21, true).expect("it wants nothing either");
    wait_for_objects(&scratch, 0);
    [again, other].iter().for_each(|node| node.session.end());
    assert_eq!(running.instance.audit_books(), Vec::<String>::new());
    running.instance.stop();
    drop(running);
    let running = Running::start(&settings, false);
    assert_eq!(objects(&scratch), 0);
    running.instance.stop();
}

#[test]
fn what_was_made_without_a_name_gets_its_first_after_a_restart() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 64 << 20);
    let running = Running::start(&settings, false);
    let one = Node::new(&running, 11);
    let (named, open) = one.unnamed();
    one.write(&open, 0, &[7; LEN]);
    let (gone, open) = one.unnamed();
    one.write(&open, 0, &[8; LEN]);
    let running = restart(running, vec![one], &settings);
    let again = Node::again(&running, 12, 11);
    for ino in [named.ino, gone.ino] {
        let found = again.find(ino, 11).expect("it is there");
        assert_eq!((found.nlink, found.size), (0, LEN as u64));
    }
    let (open, goes) = (again.open(named.ino), again.open(gone.ino));
    again.reclaim(11, true).expect("it has all that it had");
    let linked = again.client.link(named.ino, Ino::ROOT, b"named", me());
    assert_eq!(linked.expect("link").nlink, 1);
    assert!(again.read(&goes) == [8; LEN]);
    again.client.release(goes.opened.handle).expect("close");
    again.client.forget(vec![(gone.ino, 1)]);
    wait_for_objects(&scratch, 1);
    // By its name it is a file like any other, and not what it was before.
    let running = restart(running, vec![again], &settings);
    let last = Node::again(&running, 13, 12);
    assert_eq!(last.find(named.ino, 12), Err(Errno::ESTALE));
    let found = last.client.lookup(Ino::ROOT, b"named", 0).expect("lookup");
    assert_eq!((found.ino, found.nlink), (named.ino, 1));
    last.reclaim(12, true).expect("it has all that it had");
    last.session.end();
    drop(open);
    running.drain();
    let drained = std::fs::read(scratch.pfs().join("named")).expect("on the PFS");
    assert!(drained == [7; LEN]);
    running.instance.stop();
}

#[test]
fn what_is_only_on_the_pfs_comes_in_before_it_loses_its_last_name() {
    let scratch = Scratch::new();
    let settings = settings(scratch.path(), 64 << 20);
    for name in ["unlinked", "replaced", "linked", "written", "both"] {
        std::fs::write(scratch.pfs().join(name), vec![7; LEN]).expect("write");
    }
    for (name, second) in [("linked", "second"), ("both", "of-both")] {
        let [name, second] = [name, second].map(|name| scratch.pfs().join(name));
        std::fs::hard_link(name, second).expect("link");
    }
    let running = Running::start(&settings, false);
    let (one, other) = (Node::new(&running, 11), Node::new(&running, 21));
    let open = |name: &str| {
        let found = one.client.lookup(Ino::ROOT, name.as_bytes(), 0);
        let ino = found.expect("lookup").ino;
        (ino, one.open(ino))
    };
    let (unlinked, handle) = open("unlinked");
    let (replaced, _) = open("replaced");
    let (linked, _) = open("linked");
    let (both, _) = open("both");
    let found = one.client.lookup(Ino::ROOT, b"of-both", 0);
    assert_eq!(found.expect("lookup").ino, both);
    assert_eq!(objects(&scratch), 0);
    let unlink = |name: &[u8]| other.client.unlink(Ino::ROOT, name, me()).expect("unlink");
    unlink(b"unlinked");
    unlink(b"linked");
    unlink(b"of-both");
    unlink(b"both");
    other.create(b"new");
    let mode = forebay_types::RenameMode::Replace;
    other
        .client
        .rename((Ino::ROOT, b"new"), (Ino::ROOT, b"replaced"), mode, me())
        .expect("rename");
    assert!(!scratch.pfs().join("unlinked").exists());
    assert!(one.read(&handle) == [7; LEN]);
    // The first change after that is one of the object, too.
    one.write(&handle, 0, b"change");
    let running = restart(running, vec![one, other], &settings);
    let again = Node::again(&running, 12, 11);
    assert_eq!(
        again.find(linked, 11),
        Err(Errno::ESTALE),
        "it has a name left"
    );
    let contents = [unlinked, replaced, both].map(|ino| {
        let found = again.find(ino, 11).expect("it is there");
        assert_eq!((found.nlink, found.size), (0, LEN as u64));
        again.read(&again.open(ino))
    });
    again.reclaim(11, true).expect("it has all that it had");
    let changed = [b"change".to_vec(), vec![7; LEN - 6]].concat();
    assert!(contents == [changed, vec![7; LEN], vec![7; LEN]]);
    again.session.end();
    let other = Node::again(&running, 22, 21);
    other.reclaim(21, true).expect("it has all that it had");
    other.session.end();
    running.drain();
    running.instance.stop();
    drop((again, other, running));
    // The copy of the one that has the name.
    assert_eq!(objects(&scratch), 1);
}
