//! Every request once, whatever happens to sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_testkit::Seed;
use forebay_types::Errno;
use forebay_wire::net::RefusedFor;
use forebay_wire::{Connection, Request, Response};
use rand::Rng;

use super::fake::*;
use super::proxy::Proxy;

const CALLERS: u64 = 8;

/// Sockets that are cut in each of two runs; `FOREBAY_TEST_CUTS` sets it.
fn cuts_wanted() -> usize {
    let given = std::env::var("FOREBAY_TEST_CUTS").ok();
    given.map_or(1500, |text| {
        text.parse().expect("FOREBAY_TEST_CUTS is a number")
    })
}

#[test]
fn thousands_of_cuts_lose_and_repeat_nothing() {
    let seed = Seed::new("cuts");
    let wanted = cuts_wanted();
    let mut rng = seed.rng();
    for encrypt in [false, true] {
        let world = Arc::new(World::default());
        let server = serve(config(), &world);
        let proxy = Proxy::new(server.addresses()[0], rng.random());
        let mut settings = client_of(&server);
        settings.addresses = vec![proxy.address];
        settings.links = 2;
        settings.encrypt = encrypt;
        let client = connect(settings);
        proxy.cut_within(20_000);
        proxy.cut();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let counted: u64 = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let (client, proxy, ended) = (&client, &proxy, &ended);
                    let mut rng: rand::rngs::StdRng =
                        rand::SeedableRng::seed_from_u64(rng.random());
                    scope.spawn(move || {
                        let mut number = 0;
                        while proxy.cuts() < wanted {
                            let what = caller << 32 | number;
                            let link = rng.random_range(0..2);
                            match rng.random_range(0..4) {
                                0 => {
                                    let data = content(what, 0, rng.random_range(0..5000));
                                    let moved =
                                        client.call_on(link, write(what, 0), &data, &mut []);
                                    let moved = moved.map(|reply| reply.response);
                                    assert_eq!(moved, Ok(Response::Moved(data.len() as u32)));
                                }
                                1 => {
                                    read_right(client, link, what, 0, rng.random_range(0..3000));
                                    continue;
                                }
                                _ => {
                                    let done = client.call_on(link, count(what), &[], &mut []);
                                    assert_eq!(done.map(|r| r.response), Ok(Response::Done));
                                }
                            }
                            number += 1;
                        }
                        ended.store(true, Ordering::SeqCst);
                        number
                    })
                })
                .collect();
            callers.into_iter().map(|c| c.join().expect("caller")).sum()
        });
        let done = world.all();
        assert_eq!(done.len() as u64, counted);
        assert!(done.values().all(|&times| times == 1));
        assert!(counted > 100, "{counted}");
        let reconnects: u64 = client.status().iter().map(|link| link.reconnects).sum();
        assert!(reconnects > wanted as u64 / 8, "{reconnects}");
        assert_eq!(client.lost(), None);
    }
}

#[test]
fn a_request_that_runs_when_its_socket_breaks_runs_once() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    let client = connect(settings);
    std::thread::scope(|scope| {
        let callers = [1, 2].map(|gate| {
            let client = &client;
            scope.spawn(move || plain(client, counted_behind(gate)))
        });
        until("both run", || world.running.load(Ordering::SeqCst) == 2);
        proxy.cut();
        // The link comes back only when both have ended.
        until("it is down", || !client.status()[0].connected);
        std::thread::sleep(Duration::from_millis(300));
        world.open(1);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!client.status()[0].connected);
        world.open(2);
        for caller in callers {
            assert_eq!(caller.join().expect("caller"), Ok(Response::Done));
        }
    });
    assert_eq!((world.times(1), world.times(2)), (1, 1));
    assert_eq!(plain(&client, count(3)), Ok(Response::Done));
    // Nor was the link let in before, and thrown out for a request that ran.
    assert_eq!(server.status().refused, []);
}

#[test]
fn what_was_recorded_is_of_no_use_on_another_socket() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    let client = connect(settings);
    for what in 0..10 {
        assert_eq!(plain(&client, count(what)), Ok(Response::Done));
    }
    let recorded = proxy.sent(0);
    let mut copy = TcpStream::connect(server.addresses()[0]).expect("connect");
    copy.set_read_timeout(Some(LONG)).expect("timeout");
    copy.write_all(&recorded).expect("write");
    let mut answer = Vec::new();
    // A reset ends it as well as a close.
    let _ = copy.read_to_end(&mut answer);
    until("refused", || {
        server.status().refused == [(RefusedFor::Key, 1)]
    });
    assert_eq!(server.status().sessions.len(), 1);
    for what in 0..10 {
        assert_eq!(world.times(what), 1);
    }
    assert_eq!(plain(&client, count(11)), Ok(Response::Done));
}

#[test]
fn a_changed_byte_ends_the_socket_and_nothing_else() {
    for encrypt in [false, true] {
        let world = Arc::new(World::default());
        let server = serve(config(), &world);
        let proxy = Proxy::new(server.addresses()[0], 1);
        let mut settings = client_of(&server);
        settings.addresses = vec![proxy.address];
        settings.encrypt = encrypt;
        let client = connect(settings);
        for round in 1..=10 {
            proxy.flip_one();
            assert_eq!(plain(&client, count(round)), Ok(Response::Done));
            assert_eq!(world.times(round), 1);
            proxy.flip_one();
            read_right(&client, 0, round, 0, 60_000);
        }
        assert!(client.status()[0].reconnects >= 20);
    }
}

#[test]
fn soft_callers_fail_and_their_slots_come_back() {
    let world = Arc::new(World::default());
    let mut served = config();
    served.slots = 2;
    let server = serve(served, &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    settings.soft = Some(Duration::from_millis(300));
    let client = connect(settings);
    assert_eq!(plain(&client, count(1)), Ok(Response::Done));
    proxy.refuse(true);
    proxy.cut();
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| assert_eq!(plain(&client, count(2)), Err(Errno::EIO)));
        }
    });
    proxy.refuse(false);
    until("it is back", || client.status()[0].connected);
    for what in 3..10 {
        assert_eq!(plain(&client, count(what)), Ok(Response::Done));
    }
    assert!(world.times(2) <= 5);
    assert_eq!(plain(&client, Request::Statfs), Ok(Response::Done));
}

#[test]
fn hard_callers_wait_until_the_server_is_back() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    let client = connect(settings);
    proxy.refuse(true);
    proxy.cut();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| plain(&client, count(1)));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!caller.is_finished());
        proxy.refuse(false);
        assert_eq!(caller.join().expect("caller"), Ok(Response::Done));
    });
    assert_eq!(world.times(1), 1);
}
