//! A server that stops in order: what has no reply has not run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_testkit::Seed;
use forebay_wire::net::NetServer;
use forebay_wire::{Connection, NOT_SENT, Response};
use rand::Rng;

use super::fake::*;

const ROUNDS: usize = 12;
const CLIENTS: u64 = 3;
const CALLERS: u64 = 4;

/// Asks until the session is over, and compares with what the server has done. How many requests
/// were not answered.
fn ask(client: &impl Connection, world: &World, numbers: std::ops::Range<u64>, data: usize) -> u32 {
    let mut not_run = 0;
    for what in numbers {
        let data = content(what, 0, data);
        let (request, payload) = match data.is_empty() {
            true => (count(what), &[][..]),
            false => (write(what, 0), &data[..]),
        };
        match client.call_on(what as usize, request, payload, &mut []) {
            Ok(reply) => {
                let moved = Response::Moved(data.len() as u32);
                let expected = match data.is_empty() {
                    true => Response::Done,
                    false => moved,
                };
                assert_eq!(reply.response, expected);
                assert_eq!(world.times(what), 1, "answered: {what}");
            }
            Err(NOT_SENT) => {
                not_run += 1;
                assert_eq!(world.times(what), 0, "not answered: {what}");
                break;
            }
            Err(error) => panic!("{what}: {error:?}"),
        }
    }
    not_run
}

#[test]
fn what_has_no_reply_when_a_server_stops_has_not_run() {
    let seed = Seed::new("stops");
    let mut rng = seed.rng();
    let not_run = AtomicU64::new(0);
    for round in 0..ROUNDS {
        let world = Arc::new(World::default());
        let folder = tempfile::tempdir().expect("tempdir");
        let mut settings = config();
        settings.unix = Some(folder.path().join("socket"));
        let server = serve(settings, &world);
        let next = Arc::new(World {
            epoch: 9,
            ..World::default()
        });
        let mut connect_to = client_of(&server);
        connect_to.links = 2;
        connect_to.recalls = true;
        connect_to.encrypt = round % 2 == 1;
        let address = server.addresses()[0];
        let mut of_node = connect_to.clone();
        of_node.unix = Some(folder.path().join("socket"));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|nth| match nth {
                0 => connect(of_node.clone()),
                _ => connect(connect_to.clone()),
            })
            .collect();
        let data = match round % 3 {
            0 => 70_000,
            _ => 0,
        };
        let lives_for = Duration::from_micros(rng.random_range(500..40_000));
        std::thread::scope(|scope| {
            for (nth, client) in (0..).zip(&clients) {
                for caller in 0..CALLERS {
                    let first = (nth * CALLERS + caller) << 32;
                    let (world, not_run) = (&world, &not_run);
                    scope.spawn(move || {
                        let asked = ask(client, world, first..first + (1 << 31), data);
                        not_run.fetch_add(u64::from(asked), Ordering::Relaxed);
                    });
                }
            }
            std::thread::sleep(lives_for);
            drop::<NetServer>(server);
            // The next one does not know the sessions.
            let mut settings = config();
            settings.tcp = vec![address];
            let again = serve(settings, &next);
            for client in &clients {
                until("it is known", || client.lost().is_some());
            }
            drop(again);
        });
        assert_eq!(next.all().len(), 0);
    }
    let all = ROUNDS as u64 * CLIENTS * CALLERS;
    assert_eq!(not_run.into_inner(), all, "each caller learns of it once");
}

#[test]
fn one_request_that_runs_for_long_harms_no_other() {
    let world = Arc::new(World::default());
    let server = serve(config(), &world);
    let address = server.addresses()[0];
    let next = Arc::new(World {
        epoch: 9,
        ..World::default()
    });
    let client = connect(client_of(&server));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| plain(&client, counted_behind(1)));
        until("it runs", || world.running.load(Ordering::SeqCst) == 1);
        let dropping = scope.spawn(move || drop(server));
        // From some moment on nothing begins.
        let others = scope.spawn(|| {
            let answers = (2..).map(|what| (what, plain(&client, count(what))));
            let mut answers = answers.skip_while(|(_, answer)| *answer == Ok(Response::Done));
            answers.next().expect("one is the last")
        });
        std::thread::sleep(Duration::from_secs(3));
        world.open(1);
        dropping.join().expect("drop");
        let mut settings = config();
        settings.tcp = vec![address];
        let again = serve(settings, &next);
        let (what, answer) = others.join().expect("others");
        assert_eq!((answer, world.times(what)), (Err(NOT_SENT), 0));
        let slow = slow.join().expect("slow");
        assert_eq!(slow, Err(forebay_types::Errno::ENOTCONN), "it may have run");
        drop(again);
    });
}
