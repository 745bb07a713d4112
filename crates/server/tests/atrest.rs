//! Objects at rest on flash, damaged by hand under a running server: what is opened is what was
//! written or `EIO`, never the damage; a pass in the background finds by itself what nobody opens.

#[path = "atrest/blocks.rs"]
mod blocks;
mod common;
#[path = "atrest/lab.rs"]
mod lab;
#[path = "atrest/sealed.rs"]
mod sealed;

use std::fs;
use std::time::Duration;

use forebay_testkit::needs_root;
use forebay_types::{Errno, OpenFlags, SetAttr};
use forebay_wire::control::Movement;
use lab::Harm::{Flip, Lengthen, Remove, Swap, Truncate};
use lab::{CLEAN, DIRTY, Lab, each_file};

#[test]
fn a_damaged_copy_gives_way_to_what_the_pfs_has() {
    for harm in [Flip, Truncate, Lengthen, Remove, Swap] {
        let lab = Lab::new(|_| ()).again(|_| ());
        lab.harm(harm, CLEAN);
        let read = lab.server.read_all(b"clean");
        assert_eq!(read.as_deref(), Ok(CLEAN), "{harm:?}");
        assert_eq!(lab.state(b"clean"), "pfs", "{harm:?}");
        let error = lab.error(b"clean").unwrap_or_default();
        assert!(
            error.starts_with("found damaged at rest: "),
            "{harm:?}: {error}"
        );
        assert_eq!(lab.scrub().found, 1, "{harm:?}: {error}");
        // What lay under the wrong id is still somewhere.
        let mut contents = Vec::new();
        each_file(&lab.scratch.path().join("ssd0"), &mut |path| {
            contents.push(fs::read(path).expect("read"));
        });
        assert!(contents.iter().any(|c| c == DIRTY), "{harm:?}");
        lab.server.instance.stop();
    }
}

#[test]
fn damaged_data_that_only_the_buffer_has_is_an_error_and_kept() {
    for harm in [Truncate, Lengthen, Remove, Swap] {
        let lab = Lab::new(|_| ());
        lab.harm(harm, DIRTY);
        for _ in 0..2 {
            let read = lab.server.read_all(b"dirty");
            assert_eq!(read, Err(Errno::EIO), "{harm:?}");
        }
        let error = lab.error(b"dirty").unwrap_or_default();
        assert!(error.contains("left as it is"), "{harm:?}: {error}");
        assert_eq!(lab.scrub().found, 1, "{harm:?}: told once");
        // Neither is it put on the PFS, or changed into something that looks whole.
        let ino = lab.server.find(b"dirty").expect("find").ino;
        let longer = SetAttr {
            size: Some(100),
            ..SetAttr::default()
        };
        assert_eq!(
            lab.server
                .client
                .setattr(ino, None, longer, common::me())
                .err(),
            Some(Errno::EIO)
        );
        lab.is_refused_by_a_drain(&format!("{harm:?}"));
        lab.server.instance.stop();
    }
}

#[test]
fn what_somebody_puts_right_is_served_and_drained_again() {
    let lab = Lab::new(|_| ());
    lab.harm(Swap, DIRTY);
    assert_eq!(lab.server.read_all(b"dirty"), Err(Errno::EIO));
    lab.harm(Swap, DIRTY);
    assert_eq!(lab.server.read_all(b"dirty").as_deref(), Ok(DIRTY));
    assert_eq!(lab.error(b"dirty"), None);
    lab.drain(b"dirty");
    let drained = fs::read(lab.scratch.pfs().join("dirty"));
    assert_eq!(drained.expect("read"), DIRTY);
    lab.server.instance.stop();
}

#[test]
fn a_change_does_not_carry_damage_on() {
    let lab = Lab::new(|_| ()).again(|_| ());
    lab.harm(Flip, CLEAN);
    let ino = lab.known(b"clean");
    let shorter = SetAttr {
        size: Some(20),
        ..SetAttr::default()
    };
    let client = &lab.server.client;
    client
        .setattr(ino, None, shorter, common::me())
        .expect("truncate");
    assert_eq!(lab.server.read_all(b"clean").as_deref(), Ok(&CLEAN[..20]));
    lab.server.instance.stop();

    let lab = Lab::new(|_| ()).again(|_| ());
    lab.harm(Flip, CLEAN);
    let ino = lab.known(b"clean");
    let flags = OpenFlags(libc::O_RDWR as u32);
    let client = &lab.server.client;
    let handle = client.open(ino, flags, common::me()).expect("open");
    let handle = handle.opened.handle;
    lab.server.write(handle, 0, b"WHAT").expect("write");
    client.release(handle).expect("close");
    lab.drain(b"clean");
    let drained = fs::read(lab.scratch.pfs().join("clean")).expect("read");
    assert_eq!(drained, [b"WHAT", &CLEAN[4..]].concat());
    lab.server.instance.stop();
}

#[test]
fn a_copy_to_memory_does_not_carry_damage_on() {
    if needs_root() {
        return;
    }
    let lab = Lab::new(|s| s.scrub.verify_on_open_bytes = 10);
    let lab = lab.again(|s| s.dram_bytes = Some(16 << 20));
    lab.harm(Flip, CLEAN);
    let job = lab.server.move_files(Movement::Prefetch, b"clean");
    assert_eq!(job.failed, 1, "{job:?}");
    assert_eq!(lab.state(b"clean"), "pfs");
    assert_eq!(lab.scrub().found, 1);
    assert_eq!(lab.server.read_all(b"clean").as_deref(), Ok(CLEAN));
    lab.server.instance.stop();
}

#[test]
fn an_open_compares_once_in_a_run_and_not_what_was_just_drained() {
    let lab = Lab::new(|_| ());
    for _ in 0..3 {
        assert_eq!(lab.server.read_all(b"clean").as_deref(), Ok(CLEAN));
    }
    assert_eq!(lab.scrub().compared_at_open, 0, "it was read for its drain");
    let lab = lab.again(|_| ());
    for _ in 0..3 {
        assert_eq!(lab.server.read_all(b"clean").as_deref(), Ok(CLEAN));
    }
    assert_eq!(lab.scrub().compared_at_open, 1);
    lab.server.instance.stop();
}

#[test]
fn the_pass_finds_it_in_a_file_beyond_the_limit_too() {
    let lab = Lab::new(|s| s.scrub.verify_on_open_bytes = 10);
    lab.harm(Flip, CLEAN);
    let lab = lab.again(|s| {
        s.scrub.enabled = true;
        s.scrub.pass = Duration::from_millis(1);
    });
    lab.wait_for("the pass finds it", |lab| lab.scrub().found == 1);
    lab.wait_for("it gives way", |lab| lab.state(b"clean") == "pfs");
    assert_eq!(lab.server.read_all(b"clean").as_deref(), Ok(CLEAN));
    lab.server.instance.stop();
}

#[test]
fn the_pass_finds_by_itself_what_nobody_opens() {
    for harm in [Flip, Swap] {
        let lab = Lab::new(|s| {
            s.scrub.enabled = true;
            s.scrub.pass = Duration::from_millis(1);
        });
        lab.wait_for("a pass", |lab| lab.scrub().checked_bytes > 0);
        lab.harm(harm, CLEAN);
        lab.wait_for("it is found", |lab| lab.error(b"clean").is_some());
        assert_eq!(lab.state(b"clean"), "pfs", "{harm:?}");
        let error = lab.error(b"clean").unwrap_or_default();
        assert!(
            error.starts_with("found damaged at rest: "),
            "{harm:?}: {error}"
        );
        assert_eq!(lab.server.read_all(b"clean").as_deref(), Ok(CLEAN));
        if harm != Swap {
            assert_eq!(
                lab.server.read_all(b"dirty").as_deref(),
                Ok(DIRTY),
                "{harm:?}"
            );
            lab.harm(Truncate, DIRTY);
        }
        lab.wait_for("undrained, too", |lab| lab.error(b"dirty").is_some());
        assert_eq!(lab.server.read_all(b"dirty"), Err(Errno::EIO), "{harm:?}");
        let passes = lab.scrub().passes;
        lab.wait_for("further passes", |lab| lab.scrub().passes > passes + 1);
        assert_eq!(lab.scrub().found, 2, "{harm:?}: each is told once");
        lab.server.instance.stop();
    }
}

#[test]
fn damage_in_a_file_that_is_open_is_told_and_mended_after_its_close() {
    let lab = Lab::new(|s| {
        s.scrub.enabled = true;
        s.scrub.pass = Duration::from_millis(1);
    });
    let ino = lab.server.find(b"clean").expect("find").ino;
    let flags = OpenFlags(libc::O_RDONLY as u32);
    let client = &lab.server.client;
    let open = client.open(ino, flags, common::me()).expect("open");
    lab.harm(Flip, CLEAN);
    let passes = lab.scrub().passes;
    lab.wait_for("passes go by", |lab| lab.scrub().passes > passes + 1);
    assert_eq!(lab.state(b"clean"), "clean", "it is in use");
    client.release(open.opened.handle).expect("close");
    lab.wait_for("it gives way", |lab| lab.state(b"clean") == "pfs");
    lab.server.instance.stop();
}

#[test]
fn a_pass_goes_on_after_a_restart_where_it_was() {
    let lab = Lab::new(|s| {
        s.scrub.enabled = true;
        s.scrub.pass = Duration::from_secs(3600);
    });
    for i in 0..20 {
        lab.server.put(format!("f{i:02}").as_bytes(), CLEAN);
    }
    lab.drain(b"");
    lab.wait_for("the first pass, over what was there at the start", |lab| {
        lab.scrub().passes == 1
    });
    let before = lab.scrub();
    let lab = lab.again(|s| {
        s.scrub.pass = Duration::from_millis(1);
        // Two seconds for each object.
        s.scrub.rate_max_bytes_per_s = 8 << 10;
    });
    let checked = |lab: &Lab| lab.scrub().checked_objects - before.checked_objects;
    lab.wait_for("the second pass begins", |lab| checked(lab) >= 1);
    let lab = lab.again(|s| {
        s.scrub.pass = Duration::from_secs(3600);
        s.scrub.rate_max_bytes_per_s = 1 << 30;
    });
    assert!(lab.scrub().pass_begun_s.is_some(), "{:?}", lab.scrub());
    lab.wait_for("the second pass ends", |lab| lab.scrub().passes >= 2);
    assert_eq!(checked(&lab), 22, "each object once");
    lab.server.instance.stop();
}

#[test]
fn what_is_read_in_no_hurry_gives_its_space_back_when_it_goes() {
    // Minutes for each object, which the pass holds open meanwhile.
    let lab = Lab::new(|_| ()).again(|s| {
        s.scrub.enabled = true;
        s.scrub.calm = Duration::ZERO;
        s.scrub.rate_max_bytes_per_s = 100;
    });
    let object = lab.object(CLEAN);
    let is_held = || {
        let open = fs::read_dir("/proc/self/fd").expect("descriptors");
        let mut targets = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        // One that is removed has a word behind its path.
        targets.any(|path| {
            path.to_string_lossy()
                .starts_with(&*object.to_string_lossy())
        })
    };
    lab.wait_for("the pass has it open", |_| is_held());
    let job = lab.server.move_files(Movement::Release, b"clean");
    assert_eq!(job.failed, 0, "{job:?}");
    lab.wait_for("nobody has it open", |_| !is_held());
    assert_eq!(lab.scrub().passes, 0, "it is not done yet");
    lab.server.instance.stop();
}
