//! Silence, restarts, and what both sides make of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_types::Errno;
use forebay_wire::NOT_SENT;
use forebay_wire::net::{Lost, NetConnection, NetServer};
use forebay_wire::{Request, Response};

use super::fake::*;
use super::proxy::Proxy;

const LEASE: Duration = Duration::from_millis(2000);
/// For what has to happen within a part of it.
const LONG_LEASE: Duration = Duration::from_secs(8);

/// A client whose way to the server can be held.
fn held(lease: Duration) -> (Arc<World>, NetServer, Proxy, NetConnection) {
    reached(lease, None)
}

fn reached(
    lease: Duration,
    gone_after: Option<Duration>,
) -> (Arc<World>, NetServer, Proxy, NetConnection) {
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.lease = lease;
    let server = serve(settings, &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    settings.links = 2;
    settings.gone_after = gone_after;
    let client = connect(settings);
    until("all links", || client.status().iter().all(|l| l.connected));
    (world, server, proxy, client)
}

#[test]
fn idle_clients_and_slow_requests_outlive_the_lease() {
    let (world, server, _proxy, client) = held(LEASE);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| plain(&client, counted_behind(1)));
        std::thread::sleep(LEASE * 3);
        world.open(1);
        assert_eq!(slow.join().expect("caller"), Ok(Response::Done));
    });
    std::thread::sleep(LEASE * 2);
    assert_eq!(client.lost(), None);
    assert_eq!(world.ended.load(Ordering::SeqCst), 0);
    assert_eq!(server.status().sessions[0].links.len(), 2);
}

#[test]
fn a_client_that_is_silent_is_ended_and_knows_it_first() {
    let (world, server, proxy, client) = held(LONG_LEASE);
    let seen = Arc::new(AtomicUsize::new(usize::MAX));
    let (seen_there, world_there) = (seen.clone(), world.clone());
    client.on_lost(move |lost| {
        assert_eq!(lost, Lost::Expired);
        seen_there.store(world_there.ended.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            proxy.hold(true);
            plain(&client, count(1))
        });
        assert_eq!(caller.join().expect("caller"), Err(Errno::ENOTCONN));
    });
    assert_eq!(seen.load(Ordering::SeqCst), 0, "before the server ended it");
    assert_eq!(client.lost(), Some(Lost::Expired));
    assert_eq!(client.lease_left(), Duration::ZERO);
    assert_eq!(plain(&client, Request::Statfs), Err(NOT_SENT));
    until("the server ends it", || {
        world.ended.load(Ordering::SeqCst) == 1
    });
    assert!(server.status().sessions.is_empty());
    proxy.hold(false);
    // Told at once when it is lost already.
    let again = Arc::new(AtomicUsize::new(0));
    let told = again.clone();
    client.on_lost(move |_| {
        told.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(again.load(Ordering::SeqCst), 1);
}

#[test]
fn a_short_silence_costs_a_reconnect() {
    let (world, server, proxy, client) = held(LONG_LEASE);
    proxy.hold(true);
    std::thread::sleep(LONG_LEASE / 2);
    proxy.hold(false);
    for what in 0..5 {
        assert_eq!(plain(&client, count(what)), Ok(Response::Done));
        assert_eq!(world.times(what), 1);
    }
    assert_eq!(client.lost(), None);
    assert_eq!(server.status().sessions.len(), 1);
}

/// Each link is cut under a request that runs, and no link is let in for longer than the lease.
fn cut_while_both_run(world: &World, proxy: &Proxy, client: &NetConnection) {
    std::thread::scope(|scope| {
        let callers = [0, 1].map(|link| {
            scope.spawn(move || {
                let gate = 10 + link as u64;
                let reply = forebay_wire::Connection::call_on(
                    client,
                    link,
                    counted_behind(gate),
                    &[],
                    &mut [],
                );
                reply.map(|reply| reply.response)
            })
        });
        until("both run", || world.running.load(Ordering::SeqCst) == 2);
        proxy.cut();
        std::thread::sleep(LEASE * 2);
        assert_eq!(client.lost(), None);
        assert!(client.status().iter().all(|link| !link.connected));
        world.open(10);
        world.open(11);
        for caller in callers {
            assert_eq!(caller.join().expect("caller"), Ok(Response::Done));
        }
    });
}

#[test]
fn a_request_that_runs_keeps_a_broken_link_waiting_and_the_session_alive() {
    let (world, _server, proxy, client) = held(LEASE);
    cut_while_both_run(&world, &proxy, &client);
    assert_eq!((world.times(10), world.times(11)), (1, 1));
}

#[test]
fn what_is_under_way_ends_where_a_server_is_given_up() {
    let (world, _server, proxy, client) = reached(LONG_LEASE * 8, Some(LEASE));
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| plain(&client, counted_behind(1)));
        until("it runs", || world.running.load(Ordering::SeqCst) == 1);
        proxy.refuse(true);
        proxy.cut();
        assert_eq!(caller.join().expect("caller"), Err(Errno::ENOTCONN));
    });
    assert_eq!(client.lost(), Some(Lost::Gone));
    assert_eq!(plain(&client, Request::Statfs), Err(NOT_SENT));
    world.open(1);
}

#[test]
fn a_server_that_runs_a_request_is_not_given_up_for_its_links() {
    let (world, _server, proxy, client) = reached(LONG_LEASE * 8, Some(LEASE));
    cut_while_both_run(&world, &proxy, &client);
}

#[test]
fn a_restarted_server_does_not_know_the_session() {
    let (world, server, proxy, client) = held(LONG_LEASE);
    let lost = Arc::new(parking_lot::Mutex::new(None));
    let seen = lost.clone();
    client.on_lost(move |why| *seen.lock() = Some(why));
    assert_eq!(plain(&client, count(1)), Ok(Response::Done));
    proxy.refuse(true);
    bounded("the old server's end", move || drop(server));
    assert_eq!(world.ended.load(Ordering::SeqCst), 1);
    let next = Arc::new(World {
        epoch: 9,
        ..World::default()
    });
    let mut settings = config();
    settings.lease = LEASE;
    let server = serve(settings, &next);
    proxy.retarget(server.addresses()[0]);
    std::thread::scope(|scope| {
        // It has no socket to be sent over.
        let caller = scope.spawn(|| plain(&client, count(2)));
        proxy.refuse(false);
        assert_eq!(caller.join().expect("caller"), Err(NOT_SENT));
    });
    assert_eq!(*lost.lock(), Some(Lost::Restarted { epoch: 9 }));
    assert_eq!(plain(&client, count(3)), Err(NOT_SENT));
    assert_eq!(next.all().len(), 0);
}

#[test]
fn closing_ends_the_session_at_once_and_waiting_callers_with_it() {
    let (world, server, proxy, client) = held(LEASE);
    client.close();
    until("ended", || world.ended.load(Ordering::SeqCst) == 1);
    assert!(server.status().sessions.is_empty());
    assert_eq!(plain(&client, Request::Statfs), Err(Errno::ENOTCONN));
    assert_eq!(client.lost(), None, "closed is not lost");

    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    let client = Arc::new(connect(settings));
    proxy.refuse(true);
    proxy.cut();
    until("down", || !client.status()[0].connected);
    let caller = {
        let client = client.clone();
        std::thread::spawn(move || plain(&client, count(5)))
    };
    std::thread::sleep(Duration::from_millis(50));
    client.close();
    assert_eq!(
        bounded("a caller", move || caller.join()).expect("caller"),
        Err(Errno::ENOTCONN)
    );
}

#[test]
fn a_callback_may_drop_the_connection() {
    let (_world, _server, proxy, client) = held(LEASE);
    let slot = Arc::new(parking_lot::Mutex::new(None));
    let (inside, (done, ended)) = (slot.clone(), std::sync::mpsc::channel());
    client.on_lost(move |_| {
        let client: Option<NetConnection> = inside.lock().take();
        drop(client);
        done.send(()).expect("listener");
    });
    *slot.lock() = Some(client);
    proxy.hold(true);
    ended.recv_timeout(LONG).expect("dropped");
}

#[test]
fn a_command_is_no_client_and_ends_with_its_socket() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    settings.facts.command = true;
    let command = connect(settings.clone());
    assert_eq!(plain(&command, Request::Statfs), Ok(Response::Done));
    assert!(server.status().sessions.is_empty());
    // A mount would come again.
    proxy.cut();
    until("its session has ended", || {
        world.ended.load(Ordering::SeqCst) == 1
    });
    settings.facts.command = false;
    let mount = connect(settings);
    assert_eq!(server.status().sessions.len(), 1);
    let view = server.view();
    assert_eq!(view.status().map(|net| net.sessions.len()), Some(1));
    drop(mount);
    drop(server);
    assert!(view.status().is_none());
}

#[test]
fn who_leads_elsewhere_is_found_while_the_server_is_silent() {
    let leads = |epoch| {
        let world = World {
            epoch,
            ..World::default()
        };
        let mut settings = config();
        settings.lease = Duration::from_secs(600);
        serve(settings, &Arc::new(world))
    };
    let (own, before, after) = (leads(5), leads(4), leads(9));
    let proxy = Proxy::new(own.addresses()[0], 1);
    let elsewhere = Proxy::new(before.addresses()[0], 1);
    let mut settings = client_of(&own);
    settings.addresses = vec![proxy.address];
    settings.elsewhere = vec![elsewhere.address];
    let client = connect(settings);
    assert_eq!(plain(&client, count(1)), Ok(Response::Done));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(before.status().refused, [], "its own server is asked first");
    proxy.refuse(true);
    proxy.cut();
    // One of an earlier start says nothing about this session.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(client.lost(), None);
    elsewhere.retarget(after.addresses()[0]);
    until("the other one is found", || {
        client.lost() == Some(Lost::Restarted { epoch: 9 })
    });
}

#[test]
fn who_may_not_answer_runs_nothing_more_and_says_nothing() {
    let (world, _server, _proxy, client) = held(LONG_LEASE);
    let under_way = || world.running.load(Ordering::SeqCst) == 1;
    std::thread::scope(|scope| {
        let before = scope.spawn(|| plain(&client, counted_behind(1)));
        until("it has begun", under_way);
        world.is_mute.store(true, Ordering::SeqCst);
        let after = scope.spawn(|| plain(&client, count(2)));
        world.open(1);
        until("it has run", || !under_way());
        std::thread::sleep(Duration::from_millis(500));
        assert!(!before.is_finished() && !after.is_finished(), "answered");
        assert_eq!((world.times(1), world.times(2)), (1, 0));
        world.is_mute.store(false, Ordering::SeqCst);
        // Asked again over new sockets; the first one is answered from memory.
        for caller in [before, after] {
            assert!(caller.join().expect("caller").is_ok());
        }
    });
    assert_eq!(world.times(1), 1);
}
