//! A client has a file open that loses its last name, and the server is killed in the middle of
//! that: the client has it again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_server::Session;
use forebay_types::failpoint::{self, Ends, Point};
use forebay_types::{Errno, Ino, OpenFlags, RenameMode};
use forebay_wire::{Connection, InMemory, Request, Response};

use crate::common::{PATIENCE, Running, Scratch, me};
use crate::run::{each_object, shape};
use crate::workloads::Tiers;

/// The directory that a child works in; whoever has it in the environment is the child.
const CHILD_DIR: &str = "FAILPOINTS_HOLDERS_DIR";
const CHILD_CASE: &str = "FAILPOINTS_HOLDERS_CASE";
const RDWR: OpenFlags = OpenFlags(libc::O_RDWR as u32);
const CONTENT: &[u8] = b"what the client has open";
/// The lives of who has the file open and of who takes its name, and of the first one's next.
const HOLDER: u64 = 11;
const TAKER: u64 = 21;
const NEXT: u64 = 12;

/// Point, whether the file is drained, whether another one is renamed over it, and whether it has
/// lost its name there.
const CASES: [(Point, bool, bool, bool); 6] = [
    (Point::UnlinkPfs, true, false, true),
    (Point::UnlinkPfs, false, false, false),
    (Point::RenamePfs, true, true, true),
    (Point::RenamePfs, false, true, true),
    (Point::RenameIntent, true, true, false),
    (Point::RenameIntent, false, true, false),
];

struct Node(Arc<Session>, Client);

impl Node {
    fn new(running: &Running, life: u64) -> Node {
        let session = running.instance.sessions().begin(life);
        let client = Client::new(Arc::new(InMemory::mount(session.clone())));
        client.accept_descriptors(false);
        Node(session, client)
    }

    fn ask(&self, request: Request) -> Result<Response, Errno> {
        let reply = InMemory::mount(self.0.clone()).call(request, &[], &mut []);
        reply.map(|reply| reply.response)
    }
}

fn start(dir: &Path, point: Point) -> Running {
    Running::start(&shape(dir, Tiers::Flash, point), false)
}

/// Not a test of its own: the body of a child.
#[test]
fn child_takes_the_name_of_what_another_has_open() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else {
        return;
    };
    let case = std::env::var(CHILD_CASE).expect("case");
    let (point, drained, renamed, _) = CASES[case.parse::<usize>().expect("number")];
    std::fs::write(dir.join("pfs/a"), b"what gets the name").expect("write");
    let server = start(&dir, point);
    server.put(b"b", CONTENT);
    if drained {
        server.drain();
    }
    let (holder, taker) = (Node::new(&server, HOLDER), Node::new(&server, TAKER));
    let ino = holder.1.lookup(Ino::ROOT, b"b", 0).expect("lookup").ino;
    holder.1.open(ino, RDWR, me()).expect("open");
    std::fs::write(dir.join("ino"), ino.0.to_string()).expect("write");
    failpoint::arm(point, 1, Ends::Process);
    let (from, to) = ((Ino::ROOT, &b"a"[..]), (Ino::ROOT, &b"b"[..]));
    let taken = match renamed {
        true => taker.1.rename(from, to, RenameMode::Replace, me()),
        false => taker.1.unlink(to.0, to.1, me()),
    };
    panic!("the point was not hit: {taken:?}");
}

fn run(at: usize) {
    let (point, .., is_lost) = CASES[at];
    let scratch = Scratch::in_memory();
    let log = std::fs::File::create(scratch.path().join("log")).expect("log");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let child = child
        .args([
            "--exact",
            "holders::child_takes_the_name_of_what_another_has_open",
        ])
        .arg("--nocapture")
        .env(CHILD_DIR, scratch.path())
        .env(CHILD_CASE, at.to_string())
        .stdout(Stdio::null())
        .stderr(log);
    let ended = child.status().expect("child");
    let told = std::fs::read_to_string(scratch.path().join("log")).expect("log");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&ended),
        Some(libc::SIGKILL),
        "{told}"
    );
    let ino = std::fs::read_to_string(scratch.path().join("ino")).expect("id");
    let ino = Ino(ino.parse().expect("number"));

    let server = start(scratch.path(), point);
    let again = Node::new(&server, NEXT);
    let reclaim = |done| again.ask(Request::MayReclaim { life: HOLDER, done });
    assert_eq!(reclaim(false), Ok(Response::Done));
    let named = again.1.lookup(Ino::ROOT, b"b", 0).map(|shown| shown.ino);
    assert_eq!(named == Ok(ino), !is_lost, "{named:?}");
    let found = again.ask(Request::FindNameless { ino, life: HOLDER });
    match (&found, is_lost) {
        (Ok(Response::Attr(shown)), true) => {
            assert_eq!((shown.attr.ino, shown.attr.nlink), (ino, 0));
        }
        (Err(Errno::ESTALE), false) => {}
        _ => panic!("{found:?}"),
    }
    let open = again.1.open(ino, RDWR, me()).expect("open");
    reclaim(true).expect("it has all that it had");
    // The collector has been there.
    std::thread::sleep(Duration::from_millis(700));
    let read = server_read(&again, open.opened.handle);
    assert_eq!(read, CONTENT);
    again.1.release(open.opened.handle).expect("close");
    let begun = Instant::now();
    let left = usize::from(!is_lost);
    loop {
        let mut objects = 0;
        each_object(&scratch.path().join("ssd0"), &mut |_| objects += 1);
        if objects == left {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{objects} objects of {left}");
        std::thread::sleep(Duration::from_millis(5));
    }
    again.0.end();
    assert_eq!(server.instance.audit_books(), Vec::<String>::new());
    server.instance.stop();
}

fn server_read(node: &Node, handle: forebay_types::Handle) -> Vec<u8> {
    let mut data = vec![0; 2 * CONTENT.len()];
    let read = node.1.read(handle, 0, &mut data, 0).expect("read");
    data.truncate(read);
    data
}

#[test]
fn who_has_a_file_open_has_it_again_after_a_kill_in_the_middle_of_the_loss_of_its_name() {
    for (at, case) in CASES.iter().enumerate() {
        println!("{case:?}");
        run(at);
    }
}
