//! Clients that listen for recalls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_types::Errno;
use forebay_wire::net::NetConnection;
use forebay_wire::{Request, Response};

use super::fake::*;
use super::proxy::Proxy;

fn listen(client: &NetConnection, seen: u64) -> Result<Response, Errno> {
    plain(client, Request::Recalls { seen, settled: 0 })
}

fn listening(world: &World) -> usize {
    let guests = world.guests.lock();
    guests.iter().map(|guest| guest.lock().len()).sum()
}

#[test]
fn who_listens_takes_no_thread_and_is_answered_when_there_is_something() {
    const CLIENTS: usize = 12;
    let world = Arc::new(World::default());
    let mut settings = config();
    settings.threads_max = 2;
    let server = serve(settings, &world);
    let clients: Vec<NetConnection> = (0..CLIENTS)
        .map(|_| {
            let mut settings = client_of(&server);
            settings.recalls = true;
            connect(settings)
        })
        .collect();
    std::thread::scope(|scope| {
        let listeners: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || listen(client, 7)))
            .collect();
        until("all listen", || listening(&world) == CLIENTS);
        for client in &clients {
            assert_eq!(plain(client, count(1)), Ok(Response::Done));
            // Its own link, so that nobody reads for others.
            assert_eq!(client.status().len(), 2);
        }
        let guests = world.guests.lock().clone();
        for answer in guests
            .iter()
            .flat_map(|guest| std::mem::take(&mut *guest.lock()))
        {
            answer(recalled(9));
        }
        for listener in listeners {
            assert_eq!(listener.join().expect("listener"), Ok(recalled(9)));
        }
    });
    assert_eq!(*world.listened.lock(), [7; CLIENTS]);
}

#[test]
fn who_listens_over_a_link_that_breaks_asks_again_over_the_next() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let proxy = Proxy::new(server.addresses()[0], 1);
    let mut settings = client_of(&server);
    settings.addresses = vec![proxy.address];
    settings.recalls = true;
    let client = connect(settings);
    until("both links", || client.status().iter().all(|l| l.connected));
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            // The end of another link cuts the wait short.
            let told = std::iter::repeat_with(|| listen(&client, 3));
            told.into_iter().find(|told| *told != Ok(recalled(0)))
        });
        for times in 1..4 {
            until("it listens", || {
                world.listened.lock().len() >= times && listening(&world) == 1
            });
            proxy.cut();
            until("both links", || client.status().iter().all(|l| l.connected));
        }
        let guest = world.guests.lock()[0].clone();
        until("it is told", || {
            // What is answered over a link that has just been cut is lost.
            // An answer may find its link broken, and hush the guest: with no lock held.
            let waiting = std::mem::take(&mut *guest.lock());
            for answer in waiting {
                answer(recalled(4));
            }
            listener.is_finished()
        });
        assert_eq!(listener.join().expect("listener"), Some(Ok(recalled(4))));
    });
    assert_eq!((client.lost(), server.status().sessions.len()), (None, 1));
}

#[test]
fn a_session_ends_although_its_client_listens() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    for link_of_its_own in [true, false] {
        let mut settings = client_of(&server);
        settings.recalls = link_of_its_own;
        let client = connect(settings);
        std::thread::scope(|scope| {
            let listener = scope.spawn(|| listen(&client, 0));
            until("it listens", || listening(&world) == 1);
            client.close();
            // The server may answer with nothing before the socket ends.
            let told = listener.join().expect("listener");
            assert!(
                [Err(Errno::ENOTCONN), Ok(recalled(0))].contains(&told),
                "{told:?}"
            );
        });
    }
    until("both have ended", || {
        world.ended.load(Ordering::SeqCst) == 2
    });
    let client = connect(client_of(&server));
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| listen(&client, 0));
        until("it listens", || listening(&world) == 1);
        // A server that stops waits for its sessions.
        bounded("the end of the server", move || drop(server));
        client.close();
        drop(listener.join().expect("listener"));
    });
}
