//! Who is not let in, and what that costs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_testkit::Seed;
use forebay_types::Errno;
use forebay_wire::net::{ConnectError, NetConnection, NetServer, RefusedFor};
use forebay_wire::{Request, Response};
use rand::Rng;

use super::fake::*;
use super::proxy::Proxy;

fn refused(server: &NetServer, reason: RefusedFor) -> u64 {
    let counts = server.status().refused;
    let found = counts.iter().find(|(counted, _)| *counted == reason);
    found.map_or(0, |(_, count)| *count)
}

fn raw(server: &NetServer) -> TcpStream {
    let socket = TcpStream::connect(server.addresses()[0]).expect("connect");
    socket.set_read_timeout(Some(LONG)).expect("timeout");
    socket
}

#[test]
fn strangers_are_told_why() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let mut settings = client_of(&server);
    settings.key = forebay_wire::Key::from_bytes([1; 32]);
    let error = NetConnection::connect(settings).err().expect("refused");
    assert!(matches!(error, ConnectError::Key { .. }), "{error}");
    assert_eq!(refused(&server, RefusedFor::Key), 1);

    let mut settings = client_of(&server);
    settings.cluster = "other".into();
    let error = NetConnection::connect(settings).err().expect("refused");
    assert!(
        matches!(&error, ConnectError::Cluster { cluster, .. } if cluster == "other"),
        "{error}"
    );
    assert_eq!(refused(&server, RefusedFor::Cluster), 1);
    assert_eq!(error.to_string().lines().count(), 1);
    assert_eq!(world.begun.load(Ordering::SeqCst), 0);
}

#[test]
fn where_data_is_to_be_encrypted_nobody_sends_it_in_the_clear() {
    let world = Arc::new(World::default());
    let mut wanted = config();
    wanted.encrypt = true;
    let server = serve(wanted, &world);
    let error = NetConnection::connect(client_of(&server)).err();
    assert!(
        matches!(error, Some(ConnectError::Clear { .. })),
        "{error:?}"
    );
    assert_eq!(refused(&server, RefusedFor::Clear), 1);
    assert_eq!(world.begun.load(Ordering::SeqCst), 0);
    let mut settings = client_of(&server);
    settings.encrypt = true;
    read_right(&connect(settings), 0, 5, 11, 5000);
}

#[test]
fn other_versions_are_refused_on_both_sides() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let mut socket = raw(&server);
    let mut hello = [0; 77];
    socket.read_exact(&mut hello).expect("its hello");
    let mut other = hello;
    other[4] = 99;
    socket.write_all(&other).expect("write");
    until("counted", || refused(&server, RefusedFor::Version) == 1);
    // It closes, and says no more than that it does.
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).expect("end");
    assert!(rest.len() <= 1);

    // A server of that version, which waits for nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut settings = client_of(&server);
    settings.addresses = vec![listener.local_addr().expect("address")];
    let newer = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("accept");
        socket.write_all(&other).expect("write");
    });
    let error = NetConnection::connect(settings).err().expect("refused");
    assert!(
        matches!(error, ConnectError::Version { messages: 99, .. }),
        "{error}"
    );
    newer.join().expect("server");
}

#[test]
fn who_speaks_something_else_is_refused() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let mut socket = raw(&server);
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("write");
    until("counted", || refused(&server, RefusedFor::NotForebay) == 1);
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).expect("end");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut settings = client_of(&server);
    settings.addresses = vec![listener.local_addr().expect("address")];
    let other = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("accept");
        socket.write_all(b"SSH-2.0-x\r\n").expect("write");
    });
    let error = NetConnection::connect(settings).err().expect("refused");
    assert!(matches!(error, ConnectError::NotForebay { .. }), "{error}");
    other.join().expect("server");
}

#[test]
fn the_hosts_word_and_the_limit_of_links_reach_the_client() {
    let world = Arc::new(World {
        refuses: Some(Errno::EROFS),
        ..World::default()
    });
    let server = serve(config(), &world);
    let error = NetConnection::connect(client_of(&server))
        .err()
        .expect("refused");
    assert!(
        matches!(
            error,
            ConnectError::Refused {
                errno: Errno::EROFS,
                ..
            }
        ),
        "{error}"
    );

    let mut settings = config();
    settings.links_max = 1;
    let world = Arc::new(World::default());
    let server = serve(settings, &world);
    let first = connect(client_of(&server));
    let error = NetConnection::connect(client_of(&server))
        .err()
        .expect("refused");
    assert!(matches!(error, ConnectError::TooMany { .. }), "{error}");
    drop(first);
    until("it has left", || server.status().sessions.is_empty());
    drop(connect(client_of(&server)));
}

#[test]
fn nobody_there_is_an_error_that_names_the_address() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let settings = client_of(&server);
    let address = settings.addresses[0].to_string();
    drop(server);
    let error = NetConnection::connect(settings).err().expect("refused");
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().starts_with(&address), "{error}");
}

/// Resident memory of this process, and its threads.
fn cost() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let number = |name: &str| -> u64 {
        let line = status
            .lines()
            .find(|line| line.starts_with(name))
            .expect("line");
        line.split_whitespace()
            .nth(1)
            .expect("number")
            .parse()
            .expect("number")
    };
    (number("VmRSS:") << 10, number("Threads:") as usize)
}

#[test]
fn silent_strangers_cost_little_and_keep_nobody_out() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let client = connect(client_of(&server));
    let workers = server.status().threads;
    let (before, _) = cost();
    let mut silent = Vec::new();
    for number in 0..400 {
        let mut socket = raw(&server);
        if number % 2 == 0 {
            let mut hello = [0; 77];
            socket.read_exact(&mut hello).expect("hello");
            hello[12] = 4;
            hello[13..17].copy_from_slice(b"test");
            // The oldest may be thrown out while it speaks.
            let _ = socket.write_all(&hello);
        }
        silent.push(socket);
    }
    until("the oldest make room", || {
        refused(&server, RefusedFor::TooMany) >= 100
    });
    let (after, _) = cost();
    // Other tests run beside this one; 400 strangers of 2 KiB are less than one of their buffers.
    assert!(after < before + (64 << 20), "{before} {after}");
    assert!(server.status().threads <= workers + 1);
    let other = connect(client_of(&server));
    assert_eq!(plain(&client, Request::Statfs), Ok(Response::Done));
    assert_eq!(plain(&other, Request::Statfs), Ok(Response::Done));
    until("silence ends", || {
        refused(&server, RefusedFor::Silence) >= 100
    });
}

#[test]
fn garbage_before_and_after_the_handshake_is_refused() {
    let seed = Seed::new("garbage");
    let mut rng = seed.rng();
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let good = connect(client_of(&server));
    for _ in 0..200 {
        let mut socket = raw(&server);
        let mut bytes = vec![0u8; rng.random_range(1..4000)];
        rng.fill(&mut bytes[..]);
        if rng.random() {
            let mut hello = [0; 77];
            socket.read_exact(&mut hello).expect("hello");
            hello[12] = 4;
            hello[13..17].copy_from_slice(b"test");
            bytes.splice(0..0, hello);
        }
        // It may be refused while it speaks.
        let _ = socket.write_all(&bytes);
        if rng.random() {
            let _ = socket.read(&mut [0; 100]);
        }
    }
    // After the handshake: a proxy that changes what a client sends is a client that sends garbage.
    let proxy = Proxy::new(server.addresses()[0], rng.random());
    for _ in 0..20 {
        let mut settings = client_of(&server);
        settings.addresses = vec![proxy.address];
        let client = connect(settings);
        assert_eq!(plain(&client, count(1)), Ok(Response::Done));
        proxy.garble_one();
        assert_eq!(plain(&client, count(2)), Ok(Response::Done));
    }
    until("counted", || {
        refused(&server, RefusedFor::Key) > 20
            && refused(&server, RefusedFor::NotForebay) > 20
            && refused(&server, RefusedFor::Damaged) >= 20
    });
    assert_eq!((world.times(1), world.times(2)), (20, 20));
    assert_eq!(plain(&good, Request::Statfs), Ok(Response::Done));
}

#[test]
fn half_a_frame_holds_up_its_own_socket_only() {
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.threads_max = 3;
    let server = serve(settings, &world);
    // More of them than there are threads.
    let halves: Vec<_> = (0..8)
        .map(|_| {
            let proxy = Proxy::new(server.addresses()[0], 1);
            let mut settings = client_of(&server);
            settings.addresses = vec![proxy.address];
            (connect(settings), proxy)
        })
        .collect();
    let good = connect(client_of(&server));
    std::thread::scope(|scope| {
        for (client, proxy) in &halves {
            proxy.stop_after(100_000);
            scope.spawn(move || {
                let data = content(9, 0, 1 << 20);
                let _ = forebay_wire::Connection::call(client, write(9, 0), &data, &mut []);
            });
        }
        until("all have begun", || {
            halves.iter().all(|(_, proxy)| proxy.stopped())
        });
        for round in 0..100 {
            read_right(&good, 0, round, 0, 10_000);
        }
        for (client, _) in &halves {
            client.close();
        }
    });
}

#[test]
fn a_client_that_reads_no_replies_holds_up_nobody_else() {
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.threads_max = 3;
    let server = serve(settings, &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    let deaf = connect(settings);
    let good = connect(client_of(&server));
    std::thread::scope(|scope| {
        proxy.deafen(true);
        for caller in 0..20 {
            let deaf = &deaf;
            scope.spawn(move || {
                let mut into = vec![0; 1 << 20];
                let request = read(caller, 0, 1 << 20);
                let _ = forebay_wire::Connection::call(deaf, request, &[], &mut into);
            });
        }
        until("all have asked", || {
            let sessions = server.status().sessions;
            let asked = sessions.iter().map(|session| session.requests);
            asked.max() == Some(20)
        });
        for round in 0..100 {
            read_right(&good, 0, round, 0, 10_000);
        }
        proxy.deafen(false);
    });
}
