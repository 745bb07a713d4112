//! Many requests under way on one socket, and on several.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_types::Errno;
use forebay_wire::net::NetConnection;
use forebay_wire::{Connection, Request, Response};

use super::fake::*;

fn both(run: impl Fn(NetConnection, &World)) {
    for encrypt in [false, true] {
        let world = Arc::new(World::default());
        let server = serve(config(), &world);
        let mut client = client_of(&server);
        client.encrypt = encrypt;
        client.links = 2;
        run(connect(client), &world);
    }
}

#[test]
fn requests_and_data_of_all_sizes_pass() {
    both(|client, world| {
        assert_eq!(plain(&client, Request::Statfs), Ok(Response::Done));
        assert_eq!(
            plain(
                &client,
                Request::FsyncDir {
                    ino: forebay_types::Ino(1)
                }
            ),
            Err(Errno::ENOSYS)
        );
        for len in [0, 1, 100, 4096, 16 << 10, (16 << 10) + 1, 100_000, 1 << 20] {
            let data = content(7, 3, len);
            let moved = client.call(write(7, 3), &data, &mut []);
            assert_eq!(moved.map(|r| r.response), Ok(Response::Moved(len as u32)));
            for link in 0..2 {
                read_right(&client, link, len as u64, 11, len);
            }
        }
        assert_eq!(world.times(7), 8);
        // Long messages, too.
        let long = Request::Readlink {
            ino: forebay_types::Ino(900_000),
        };
        assert_eq!(plain(&client, long), Ok(Response::Bytes(vec![7; 900_000])));
        let too_long = Request::Readlink {
            ino: forebay_types::Ino(2_000_000),
        };
        assert_eq!(plain(&client, too_long), Err(Errno::EIO));
        let over = vec![0; (1 << 20) + 1];
        assert_eq!(
            client.call(write(7, 0), &over, &mut []).err(),
            Some(Errno::EINVAL)
        );
    });
}

#[test]
fn replies_come_in_any_order_and_slow_ones_hold_nobody_up() {
    both(|client, world| {
        std::thread::scope(|scope| {
            let slow: Vec<_> = (1..=20)
                .map(|gate| {
                    let client = &client;
                    scope.spawn(move || {
                        let answered = client.call_on(0, behind(gate), &[], &mut []);
                        answered.map(|reply| reply.response)
                    })
                })
                .collect();
            until("all wait", || world.running.load(Ordering::SeqCst) == 20);
            for round in 0..50 {
                read_right(&client, 0, round, 0, 1 + (round as usize * 4001) % 70_000);
            }
            for gate in (1..=20).rev() {
                world.open(gate);
                read_right(&client, 0, gate, 0, 40_000);
            }
            for (gate, thread) in (1..=20).zip(slow) {
                assert_eq!(thread.join().expect("caller"), Ok(Response::Position(gate)));
            }
        });
    });
}

#[test]
fn many_callers_get_their_own_data() {
    both(|client, world| {
        std::thread::scope(|scope| {
            for caller in 0..8u64 {
                let client = &client;
                scope.spawn(move || {
                    for round in 0..60u64 {
                        let len = ((caller * 7919 + round * 104_729) % 150_000) as usize;
                        let link = (caller + round) as usize;
                        match round % 3 {
                            0 => read_right(client, link, caller, round, len),
                            1 => {
                                let data = content(caller, round, len);
                                let moved =
                                    client.call_on(link, write(caller, round), &data, &mut []);
                                assert_eq!(
                                    moved.map(|r| r.response),
                                    Ok(Response::Moved(len as u32))
                                );
                            }
                            _ => assert_eq!(plain(client, Request::Statfs), Ok(Response::Done)),
                        }
                    }
                });
            }
        });
        for caller in 0..8 {
            assert_eq!(world.times(caller), 20);
        }
        let status = client.status();
        assert!(
            status
                .iter()
                .all(|link| link.connected && link.bytes_in > 1 << 20)
        );
    });
}

#[test]
fn more_callers_than_slots_and_threads_wait_for_their_turn() {
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.slots = 6;
    settings.threads_max = 4;
    let server = serve(settings, &world);
    let client = connect(client_of(&server));
    std::thread::scope(|scope| {
        for gate in 1..=10 {
            let client = &client;
            scope.spawn(move || {
                assert_eq!(plain(client, behind(gate)), Ok(Response::Position(gate)))
            });
        }
        // Three threads work, one reads; three requests wait at the server, four for a slot.
        until("three run", || world.running.load(Ordering::SeqCst) == 3);
        until("six have come", || {
            server.status().sessions[0].requests == 6
        });
        assert!(server.status().threads <= 4);
        // Another client is let in as soon as a thread is free.
        for gate in 1..=10 {
            world.open(gate);
        }
    });
    assert_eq!(server.status().sessions[0].requests, 10);
}

#[test]
fn a_service_that_panics_fails_its_request_only() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let client = connect(client_of(&server));
    let bad = Request::CloseDir {
        handle: forebay_types::Handle(1),
    };
    assert_eq!(plain(&client, bad), Err(Errno::EIO));
    assert_eq!(plain(&client, Request::Statfs), Ok(Response::Done));
}

#[test]
fn status_shows_clients_and_their_links() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let mut settings = client_of(&server);
    settings.links = 3;
    settings.facts.host = "n".repeat(1000);
    settings.facts.mount_uid = 77;
    let client = connect(settings);
    until("all links", || server.status().sessions[0].links.len() == 3);
    read_right(&client, 2, 1, 0, 100_000);
    // What was sent is counted when the call that sent it has returned.
    until("counted", || {
        server.status().sessions[0].links[2].bytes_out > 100_000
    });
    let status = server.status();
    let session = &status.sessions[0];
    assert_eq!(session.id, client.session().0);
    assert_eq!(session.facts.host.len(), 255);
    assert_eq!((session.facts.mount_uid, session.facts.local), (77, false));
    assert!(session.facts.address.is_some());
    assert_eq!(session.requests, 1);
    assert!(session.links[0].bytes_out < 10_000);
    assert_eq!(world.facts.lock()[0], session.facts);
    drop(client);
    until("it has left", || server.status().sessions.is_empty());
    assert_eq!(world.ended.load(Ordering::SeqCst), 1);
}

#[test]
fn both_ends_can_go_while_requests_run() {
    bounded("a drop", || {
        let world = Arc::new(World::default());
        let server = serve(config(), &world);
        let client = Arc::new(connect(client_of(&server)));
        let caller = {
            let client = client.clone();
            std::thread::spawn(move || plain(&client, behind(1)))
        };
        until("it runs", || world.running.load(Ordering::SeqCst) == 1);
        client.close();
        assert_eq!(caller.join().expect("caller"), Err(Errno::ENOTCONN));
        assert_eq!(plain(&client, Request::Statfs), Err(Errno::ENOTCONN));
        assert_eq!(
            world.ended.load(Ordering::SeqCst),
            0,
            "a request still runs"
        );

        let other = Arc::new(connect(client_of(&server)));
        let caller = {
            let other = other.clone();
            std::thread::spawn(move || plain(&other, behind(2)))
        };
        until("it runs", || world.running.load(Ordering::SeqCst) == 2);
        let dropping = std::thread::spawn(move || drop(server));
        until("the socket is gone", || !other.status()[0].connected);
        for gate in [1, 2] {
            world.open(gate);
        }
        dropping.join().expect("drop");
        assert_eq!(world.ended.load(Ordering::SeqCst), 2);
        other.close();
        assert_eq!(caller.join().expect("caller"), Err(Errno::ENOTCONN));
    });
}

#[test]
fn a_limited_rate_changes_nothing_but_the_time() {
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.connection_rate = Some(200 << 20);
    let server = serve(settings, &world);
    let client = connect(client_of(&server));
    for round in 0..4 {
        let data = content(1, round, 1 << 20);
        let moved = client.call(write(1, round), &data, &mut []);
        assert_eq!(moved.map(|r| r.response), Ok(Response::Moved(1 << 20)));
        read_right(&client, 0, 1, round, 1 << 20);
    }
}
