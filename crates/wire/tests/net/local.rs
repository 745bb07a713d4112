//! Unix sockets: descriptors, and a peer that dies.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_types::Errno;
use forebay_wire::NOT_SENT;
use forebay_wire::net::{Lost, NetConfig, NetConnection, NetServer};
use forebay_wire::{Connection, Request, Response};

use super::fake::*;

fn local(links: usize) -> (Arc<World>, NetServer, NetConnection, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("dir");
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.unix = Some(dir.path().join("net.sock"));
    let server = serve(settings.clone(), &world);
    let mut client = NetConfig::new("test", key());
    client.unix = settings.unix;
    client.links = links;
    (world, server, connect(client), dir)
}

fn number_behind(client: &NetConnection, number: u64) -> Option<u64> {
    let reply = client.call(open(number), &[], &mut []).expect("open");
    assert!(matches!(reply.response, Response::Opened(opened) if opened.handle.0 == number));
    let descriptor = reply.descriptor?;
    let mut file = File::from(descriptor.descriptor().try_clone_to_owned().expect("dup"));
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes).expect("read");
    Some(u64::from_le_bytes(bytes))
}

#[test]
fn descriptors_come_with_their_own_replies() {
    let (world, server, client, _dir) = local(1);
    assert!(client.hands_over_descriptors());
    std::thread::scope(|scope| {
        for caller in 0..8u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..50 {
                    let number = caller << 32 | round;
                    assert_eq!(number_behind(client, number), Some(number));
                    read_right(client, 0, number, 0, 50_000);
                }
            });
        }
    });
    assert_eq!(world.local.load(Ordering::SeqCst), 1);
    client.accept_descriptors(false);
    assert!(!client.hands_over_descriptors());
    assert_eq!(number_behind(&client, 5), None);
    assert_eq!(world.local.load(Ordering::SeqCst), 0);
    let facts = &server.status().sessions[0].facts;
    assert!(facts.local && facts.address.is_none());
}

#[test]
fn a_tcp_client_gets_no_descriptors() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let client = connect(client_of(&server));
    client.accept_descriptors(true);
    assert!(!client.hands_over_descriptors());
    assert_eq!(number_behind(&client, 5), None);
}

#[test]
fn a_dead_server_process_ends_the_session() {
    let (world, server, client, _dir) = local(2);
    until("all links", || client.status().iter().all(|l| l.connected));
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| plain(&client, behind(1)));
        until("it runs", || world.running.load(Ordering::SeqCst) == 1);
        let dropping = scope.spawn(move || drop(server));
        assert_eq!(caller.join().expect("caller"), Err(Errno::ENOTCONN));
        world.open(1);
        dropping.join().expect("drop");
    });
    until("lost", || client.lost() == Some(Lost::Died));
    assert_eq!(plain(&client, Request::Statfs), Err(NOT_SENT));
}

/// Tells the test's own child where to connect.
const VICTIM: &str = "FOREBAY_TEST_VICTIM";

/// Not a test by itself: the client that the next test kills.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(VICTIM) else {
        return;
    };
    let mut settings = NetConfig::new("test", key());
    settings.unix = Some(path.into());
    settings.links = 2;
    let client = connect(settings);
    assert_eq!(plain(&client, behind(1)), Ok(Response::Position(1)));
}

#[test]
fn a_client_process_that_is_killed_ends_its_session_at_once() {
    let (world, server, client, dir) = local(1);
    let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "local::victim"])
        .env(VICTIM, dir.path().join("net.sock"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("child");
    until("it asks", || world.running.load(Ordering::SeqCst) == 1);
    child.kill().expect("kill");
    child.wait().expect("wait");
    // What it had asked for runs to its end first.
    until("its links are gone", || {
        let sessions = server.status().sessions;
        let links = sessions.iter().map(|session| session.links.len());
        links.sum::<usize>() == 1
    });
    assert_eq!(world.ended.load(Ordering::SeqCst), 0);
    world.open(1);
    until("ended", || world.ended.load(Ordering::SeqCst) == 1);
    assert_eq!(plain(&client, Request::Statfs), Ok(Response::Done));
    assert_eq!(server.status().sessions.len(), 1);
}

#[test]
fn a_client_without_a_local_server_takes_an_address() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let mut settings = client_of(&server);
    settings.unix = Some("/nonexistent/net.sock".into());
    let client = connect(settings);
    assert_eq!(plain(&client, Request::Statfs), Ok(Response::Done));
    assert!(!client.hands_over_descriptors());
}
