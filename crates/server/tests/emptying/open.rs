//! Files that move while programs have them open, and files that outgrow their node.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use forebay_types::SetAttr;

use super::*;

/// From here on the file is not to be on that server.
fn leave(running: &Running, server: u16, name: &str) {
    order(running, server, true);
    wait_for("it stays", || server_of(running, name) != Some(server));
    order(running, server, false);
}

#[test]
fn an_open_file_moves_while_it_is_written_read_cut_and_flushed() {
    const BYTES: usize = 1 << 20;
    let seed = common::base_seed();
    println!("FOREBAY_SEED={seed}");
    let _one = alone();
    let scratch = Scratch::new();
    let servers = servers(scratch.path());
    let running = Running::start(&servers.settings, false);
    let (attr, handle) = running.create(b"f").expect("create");
    running.write(handle, 0, &[1; 4096]).expect("write");
    let done = AtomicBool::new(false);
    let model = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut model = vec![1u8; 4096];
            while !done.load(Ordering::Acquire) {
                let at = rng.random_range(0..BYTES);
                match rng.random_range(0..20) {
                    0 => {
                        let set = SetAttr {
                            size: Some(at as u64),
                            ..SetAttr::default()
                        };
                        let cut = running
                            .client
                            .setattr(attr.ino, Some(handle), set, common::me());
                        cut.expect("cut");
                        model.resize(at, 0);
                    }
                    1 => running.client.fsync(handle, false).expect("fsync"),
                    2..6 => {
                        let len = rng.random_range(0..20_000);
                        let found = running.read(handle, at as u64, len).expect("read");
                        let end = (at + len).min(model.len());
                        let expected = model.get(at..end).unwrap_or_default();
                        assert!(found == expected, "at {at}, {len} bytes");
                    }
                    _ => {
                        let len = rng.random_range(1..20_000);
                        let data: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                        running.write(handle, at as u64, &data).expect("write");
                        model.resize(model.len().max(at + len), 0);
                        model[at..at + len].copy_from_slice(&data);
                    }
                }
            }
            model
        });
        for _ in 0..6 {
            let server = server_of(&running, "f").expect("a server");
            leave(&running, server, "f");
        }
        done.store(true, Ordering::Release);
        writer.join().expect("no panic")
    });
    assert!(running.read(handle, 0, model.len() + 1).expect("read") == model);
    running.client.release(handle).expect("close");
    running.audit();
    assert!(running.read_all(b"f").expect("read") == model);
    wait_for("what is left goes", || {
        objects_of(&scratch, 2) + objects_of(&scratch, 3) == 1
    });
    running.instance.stop();
    drop(running);
    let running = Running::start(&servers.settings, false);
    assert!(running.read_all(b"f").expect("read") == model);
    running.drain();
    assert!(std::fs::read(scratch.pfs().join("f")).expect("there") == model);
    running.instance.stop();
}

/// What an fsync has promised is there after a start, wherever the move of an open file ends.
#[test]
fn a_server_that_dies_while_an_open_file_moves_keeps_what_an_fsync_has_promised() {
    let _one = alone();
    for point in MOVE {
        for which in [1, 2] {
            let scratch = Scratch::in_memory();
            let servers = servers(scratch.path());
            let running = Running::start(&servers.settings, false);
            let (_, handle) = running.create(b"f").expect("create");
            running.write(handle, 0, &content(1)).expect("write");
            running.client.fsync(handle, false).expect("fsync");
            let was = server_of(&running, "f").expect("a server");
            failpoint::arm(point, which, Ends::Thread);
            order(&running, was, true);
            // The second flush of a move is that of the change-over; other points come once.
            wait_for(&format!("{point:?} {which}: it dies, or has moved"), || {
                running.instance.broken().is_some() || server_of(&running, "f") != Some(was)
            });
            // Where it has moved before the point came a second time, nobody dies any more.
            failpoint::arm(Point::MoveObject, u64::MAX, Ends::Thread);
            drop(running.client);
            running.instance.stop();
            drop(running.instance);
            servers.ways.iter().for_each(|way| way.comes_back());
            let running = Running::start(&servers.settings, false);
            let found = running.read_all(b"f");
            assert!(found.as_ref() == Ok(&content(1)), "{point:?} {which}");
            wait_for("it is empty", || left_on(&running, was) == 0);
            wait_for("the books", || running.instance.audit_books().is_empty());
            assert_eq!(objects_of(&scratch, was), 0, "{point:?} {which}");
            running.instance.stop();
        }
    }
}

#[test]
fn a_node_that_goes_while_an_open_file_moves_there_leaves_the_file_where_it_is() {
    let _one = alone();
    for answers in (0..60).step_by(7) {
        let scratch = Scratch::in_memory();
        let servers = servers(scratch.path());
        let running = Running::start(&servers.settings, false);
        let (_, handle) = running.create(b"f").expect("create");
        running.write(handle, 0, &content(1)).expect("write");
        let was = server_of(&running, "f").expect("a server");
        let other = usize::from(was == 2);
        servers.ways[other].goes_after(answers);
        order(&running, was, true);
        std::thread::sleep(Duration::from_millis(700));
        if server_of(&running, "f") == Some(was) {
            running.write(handle, 5, b"more").expect("it is here");
            servers.ways[other].comes_back();
        } else {
            servers.ways[other].comes_back();
            running.write(handle, 5, b"more").expect("it is there");
        }
        let mut expected = content(1);
        expected[5..9].copy_from_slice(b"more");
        let found = running.read(handle, 0, expected.len());
        assert!(found.as_ref() == Ok(&expected), "after {answers} answers");
        running.client.release(handle).expect("close");
        wait_for("it is empty", || left_on(&running, was) == 0);
        let found = running.read_all(b"f");
        assert!(found.as_ref() == Ok(&expected), "after {answers} answers");
        wait_for("the books", || running.instance.audit_books().is_empty());
        running.instance.stop();
    }
}

#[test]
fn a_file_that_outgrows_a_full_node_goes_on_on_another_without_waiting() {
    const MIB: usize = 1 << 20;
    let _one = alone();
    let scratch = Scratch::new();
    let mut servers = servers(scratch.path());
    // Nothing makes room: who waits here waits in vain.
    servers.settings.wait_for_space = PATIENCE;
    let running = Running::start(&servers.settings, false);
    order(&running, 3, true);
    let (_, grows) = running.create(b"grows").expect("create");
    let part = |n: usize| vec![n as u8 + 1; MIB];
    running.write(grows, 0, &part(0)).expect("write");
    let (_, other) = running.create(b"other").expect("create");
    for n in 0..50 {
        let at = (n * MIB) as u64;
        running.write(other, at, &part(n)).expect("there is room");
    }
    assert_eq!(server_of(&running, "grows"), Some(2));
    order(&running, 3, false);
    for n in 1..30 {
        let at = (n * MIB) as u64;
        running.write(grows, at, &part(n)).expect("it goes on");
    }
    assert_eq!(server_of(&running, "grows"), Some(3));
    assert_eq!(server_of(&running, "other"), Some(2));
    let status = running.status();
    assert_eq!(
        (status.handed_over_files_total, status.waited_writes_total),
        (1, 0)
    );
    for n in 0..30 {
        let found = running.read(grows, (n * MIB) as u64, MIB).expect("read");
        assert!(found == part(n), "part {n}");
    }
    running.client.release(grows).expect("close");
    running.client.release(other).expect("close");
    running.audit();
    running.instance.stop();
}

/// A move that would take days is done at once for who needs the file.
#[test]
fn who_needs_a_file_does_not_wait_for_the_rate_of_its_move() {
    const MIB: usize = 1 << 20;
    let _one = alone();
    let scratch = Scratch::new();
    let mut servers = servers(scratch.path());
    servers.settings.wait_for_space = PATIENCE;
    servers.settings.replica_rate_bytes_per_s = 10;
    let running = Running::start(&servers.settings, false);
    order(&running, 3, true);
    let (_, grows) = running.create(b"grows").expect("create");
    let part = |n: usize| vec![n as u8 + 1; MIB];
    (0..12).for_each(|n| {
        let at = (n * MIB) as u64;
        running.write(grows, at, &part(n)).expect("write");
    });
    let (_, other) = running.create(b"other").expect("create");
    for n in 0..46 {
        let at = (n * MIB) as u64;
        running.write(other, at, &part(n)).expect("there is room");
    }
    order(&running, 3, false);
    order(&running, 2, true);
    // Either: the other one waits for the rate.
    wait_for("one begins to move", || objects_of(&scratch, 3) > 0);
    for n in 12..24 {
        let at = (n * MIB) as u64;
        running.write(grows, at, &part(n)).expect("it goes on");
    }
    assert_eq!(server_of(&running, "grows"), Some(3));
    for n in 0..24 {
        let found = running.read(grows, (n * MIB) as u64, MIB).expect("read");
        assert!(found == part(n), "part {n}");
    }
    running.client.release(grows).expect("close");
    running.client.release(other).expect("close");
    order(&running, 2, false);
    running.audit();
    running.instance.stop();
}
