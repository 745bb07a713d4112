//! Copies of drained checkpoints on another node, for restarts.

use forebay_wire::control::Movement;

use super::*;

/// Restart copies of drained checkpoints, on two servers; the newest complete version is the first.
fn with_restart_copy(servers: &mut Servers) -> (Running, Vec<u8>, Vec<String>) {
    servers.settings.durability = Some(Durability::Ssd);
    servers.settings.restart_copies = 1;
    let running = servers.start();
    let data = content(5, 300_000);
    running.put(b"ckpt_0001.dat", &data);
    running.put(b"ckpt_0002.dat", b"next");
    running.drain();
    wait_for("no restart copy", || places(&running).len() == 3);
    let held = places(&running);
    assert_ne!(held[0], held[1]);
    running.audit();
    (running, data, held)
}

fn places(running: &Running) -> Vec<String> {
    running.residency(b"ckpt_0001.dat")[0].tiers.clone()
}

fn server_of(place: &str) -> u16 {
    let rest = place.strip_prefix("server-").expect("a data server's");
    rest.split(':')
        .next()
        .and_then(|id| id.parse().ok())
        .expect("an id")
}

#[test]
fn a_restart_reads_the_copy_on_another_node_when_the_node_of_a_file_is_gone() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, data, held) = with_restart_copy(&mut servers);
    servers.way(server_of(&held[0])).goes_after(0);
    wait_for("it is away", || {
        running.read_all(b"ckpt_0001.dat").ok().as_ref() == Some(&data)
            && places(&running) == held[1..]
    });
    servers.all_come_back();
    // What its node has is not the file any more, and goes.
    running.audit();
    assert!(running.read_all(b"ckpt_0001.dat").expect("read") == data);
    running.instance.stop();
}

#[test]
fn a_start_without_the_node_of_a_file_reads_its_restart_copy() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, data, held) = with_restart_copy(&mut servers);
    running.instance.stop();
    drop(running);
    servers.way(server_of(&held[0])).goes_after(0);
    let running = servers.start();
    assert!(running.read_all(b"ckpt_0001.dat").expect("read") == data);
    assert_eq!(places(&running), held[1..]);
    running.instance.stop();
}

#[test]
fn a_restart_copy_is_never_the_file_after_a_change() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, mut data, held) = with_restart_copy(&mut servers);
    let flags = OpenFlags(libc::O_RDWR as u32);
    let ino = running.find(b"ckpt_0001.dat").expect("there").ino;
    let handle = running
        .client
        .open(ino, flags, me())
        .expect("open")
        .opened
        .handle;
    running.write(handle, 7, b"newer").expect("write");
    data[7..12].copy_from_slice(b"newer");
    running.client.release(handle).expect("close");
    assert_eq!(places(&running), held[..1], "no copy, and not on the PFS");
    servers.way(server_of(&held[0])).goes_after(0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        if let Ok(read) = running.read_all(b"ckpt_0001.dat") {
            assert!(read == data, "older content");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    servers.all_come_back();
    wait_for("its node is back", || {
        running
            .read_all(b"ckpt_0001.dat")
            .is_ok_and(|read| read == data)
    });
    running.instance.stop();
}

#[test]
fn a_file_that_makes_way_is_its_restart_copy_and_copies_go_first() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, data, _) = with_restart_copy(&mut servers);
    // Both nodes fill: first the copies go, then what is clean.
    let large = vec![3; 12 << 20];
    for n in 0..10 {
        running.put(format!("other-{n}.dat").as_bytes(), &large);
    }
    assert!(running.read_all(b"ckpt_0001.dat").expect("read") == data);
    running.drain();
    running.audit();
    running.instance.stop();
}

/// No record stands for a file without a name: the next start would miss its directory.
#[test]
fn a_file_that_loses_its_name_and_changes_after_it_was_copied_leaves_no_record() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, ..) = with_restart_copy(&mut servers);
    let ino = running.find(b"ckpt_0001.dat").expect("there").ino;
    let flags = OpenFlags(libc::O_RDWR as u32);
    let opened = running.client.open(ino, flags, me()).expect("open");
    let unlinked = running.client.unlink(Ino::ROOT, b"ckpt_0001.dat", me());
    unlinked.expect("unlink");
    let handle = opened.opened.handle;
    running.write(handle, 7, b"newer").expect("write");
    running.instance.stop();
    drop(running);
    let running = servers.start();
    let errors = running.status().errors;
    assert!(errors.is_empty(), "{errors:?}");
    running.instance.stop();
}

fn open_to_write(running: &Running) -> Handle {
    let found = running.client.lookup(Ino::ROOT, b"ckpt_0001.dat", 0);
    let flags = OpenFlags(libc::O_RDWR as u32);
    let opened = running
        .client
        .open(found.expect("there").attr.ino, flags, me());
    opened.expect("open").opened.handle
}

/// Content and places are what they were, in another order.
fn is_as_before(running: &Running, data: &[u8], held: [&String; 3]) {
    assert!(running.read_all(b"ckpt_0001.dat").expect("read") == data);
    assert_eq!(places(running).iter().collect::<Vec<_>>(), held);
    running.audit();
}

#[test]
fn a_restart_reads_the_nearest_place_while_all_answer() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, data, held) = with_restart_copy(&mut servers);
    let [file, copy, pfs] = [0, 1, 2].map(|at: usize| &held[at]);
    // Nobody is near.
    is_as_before(&running, &data, [file, copy, pfs]);
    let mut running = running;
    // The rack of the reader, who is on the node of the metadata server, is that of the copy.
    for now in [[copy, file, pfs], [file, copy, pfs]] {
        running.instance.stop();
        drop(running);
        let near = server_of(now[0]);
        servers.settings.rack = near;
        running = Running::start(&servers.settings, true);
        assert_ne!(places(&running)[0], *now[0]);
        // Who may write it does not have it change places.
        let handle = open_to_write(&running);
        running.client.release(handle).expect("close");
        assert_ne!(places(&running)[0], *now[0]);
        is_as_before(&running, &data, now);
    }
    // What was the file is its copy in every way: it is read when the node of the file goes.
    servers.way(server_of(file)).goes_after(0);
    wait_for("it is away", || {
        running.read_all(b"ckpt_0001.dat").ok().as_ref() == Some(&data)
            && places(&running) == [copy.clone(), pfs.clone()]
    });
    servers.all_come_back();
    running.audit();
    running.instance.stop();
}

#[test]
fn a_copy_that_was_read_is_of_no_use_after_a_change() {
    let scratch = Scratch::new();
    let mut servers = Servers::new(scratch.path(), &[2, 3]);
    let (running, mut data, held) = with_restart_copy(&mut servers);
    running.instance.stop();
    drop(running);
    servers.settings.rack = server_of(&held[1]);
    let running = Running::start(&servers.settings, true);
    is_as_before(&running, &data, [&held[1], &held[0], &held[2]]);
    let handle = open_to_write(&running);
    running.write(handle, 7, b"newer").expect("write");
    running.client.release(handle).expect("close");
    data[7..12].copy_from_slice(b"newer");
    assert_eq!(places(&running), held[1..2]);
    assert!(running.read_all(b"ckpt_0001.dat").expect("read") == data);
    running.audit();
    running.instance.stop();
}

/// The only file below these directories with this content.
fn object_with(mut dirs: Vec<std::path::PathBuf>, content: &[u8]) -> std::path::PathBuf {
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("read_dir") {
            let path = entry.expect("entry").path();
            match path.is_dir() {
                true => dirs.push(path),
                false if std::fs::read(&path).expect("read") == content => found.push(path),
                false => {}
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Changes a file at rest, so that nobody sees it who does not compare its content.
fn damage(object: &Path) {
    let mtime = std::fs::metadata(object).and_then(|stat| stat.modified());
    let file = std::fs::File::options().write(true).open(object);
    let file = file.expect("open");
    std::os::unix::fs::FileExt::write_all_at(&file, b"rot", 1000).expect("write");
    file.set_modified(mtime.expect("mtime")).expect("mtime");
}

#[test]
fn a_checkpoint_that_cannot_be_copied_keeps_no_other_from_it() {
    let names = ["alpha", "beta"];
    let first = |name| format!("{name}_0001.dat").into_bytes();
    for damaged in [0, 1] {
        let scratch = Scratch::new();
        let mut servers = Servers::new(scratch.path(), &[2, 3]);
        servers.settings.durability = Some(Durability::Ssd);
        servers.settings.restart_copies = 1;
        servers.settings.scrub.enabled = false;
        let running = servers.start();
        for (seed, name) in (1..).zip(names) {
            running.put(&first(name), &content(seed, 300_000));
            running.put(format!("{name}_0002.dat").as_bytes(), b"next");
        }
        let copied = |at: usize| running.residency(&first(names[at]))[0].tiers.len() == 3;
        let (_, busy) = running.create(b"busy").expect("create");
        let (begun, is_damaged) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Copies wait for programs that write.
            scope.spawn(|| {
                while !is_damaged.load(Ordering::Acquire) && begun.elapsed() < PATIENCE {
                    running.write(busy, 0, b"busy").expect("write");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            names.iter().for_each(|name| {
                running.move_files(Movement::StageOut, &first(name));
            });
            let flash = [2, 3].map(|server| scratch.path().join(format!("flash{server}")));
            let content = content(damaged as u8 + 1, 300_000);
            damage(&object_with(flash.into(), &content));
            assert!(!copied(0) && !copied(1), "a program writes");
            is_damaged.store(true, Ordering::Release);
        });
        // What is parked undrained keeps none from it either.
        wait_for("no restart copy of the other", || copied(1 - damaged));
        assert!(!copied(damaged));
        running.client.release(busy).expect("close");
        running.instance.stop();
    }
}
