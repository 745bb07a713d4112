//! What leaves for a run, and what comes.

use super::*;

#[test]
fn nothing_leaves_a_tier_that_cannot_hold_what_comes() {
    const MIB: u64 = 1 << 20;
    let lab = Lab::with(|settings| settings.dram_bytes = Some(16 * MIB));
    let rooms = lab.rooms();
    let Ok(Node::Dir(root)) = rooms.base.ns().node(Ino::ROOT) else {
        panic!("no root");
    };
    let mut others = Vec::new();
    loop {
        let name = format!("other{}", others.len());
        std::fs::write(lab.pfs(&name), vec![1; MIB as usize]).expect("write");
        let staged = rooms.files.stage_in(&root, name.as_bytes(), false, &|_| ());
        let Ok(file) = staged else { break };
        rooms.catalog.apps().is_unwanted(file.object);
        others.push(file);
    }
    let spaces = rooms.buffer.spaces();
    assert_eq!(spaces.len(), 2);
    let in_small = |space: &&forebay_policy::placement::TierSpace| {
        space.kind == forebay_policy::placement::TierKind::Dram
    };
    let small = spaces.iter().find(in_small).expect("memory").index as u8;
    let is_small = |file: &&Arc<forebay_namespace::File>| file.tier().0 == small;
    let before = others.iter().filter(is_small).count();
    assert!(
        before > 1 && others.len() > before,
        "{before} of {}",
        others.len()
    );
    let make_room = |bytes| {
        let made = rooms.files.make_room_for_run(&RunFile {
            path: b"new",
            owners: Owners { uid: 0, gid: 0 },
            bytes,
            wanted_bytes: bytes,
            period_s: 60.0,
            may_drop: true,
        });
        made == RunRoomMade::Yes
    };
    assert!(make_room(24 * MIB));
    assert!(rooms.buffer.has_room(24 * MIB));
    let is_here = |file: &&Arc<forebay_namespace::File>| rooms.buffer.file(file.object).is_some();
    let left = others.iter().filter(is_small).filter(is_here).count();
    assert_eq!(left, before);
    // More than is anywhere.
    assert!(!make_room(1 << 40));
}

#[test]
fn no_more_comes_than_the_share_of_guesses() {
    let mut program = Program::new(Lab::with(|settings| {
        settings.engine.read_ahead = 0.0001;
    }));
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("it was tried", |program| {
        let under_way = program.ahead().under_way.lock();
        under_way.values().any(|run| run.reading.is_blocked())
    });
    assert!(program.here().is_empty());
    program.run(180.0);
    let status = program.status();
    assert_eq!((status.guessed_bytes, status.wasted_bytes), (0, 0));
}

#[test]
fn what_is_wanted_less_leaves_for_a_run_and_nothing_else_does() {
    let mut program = Program::new(Lab::with(|settings| {
        settings.engine.read_ahead = 1.0;
    }));
    let rooms = program.lab.shared_rooms();
    // Others have taken all but a little, and have been here for no time.
    let root = match rooms.base.ns().node(Ino::ROOT) {
        Ok(Node::Dir(root)) => root,
        _ => panic!("no root"),
    };
    let mut others = Vec::new();
    loop {
        let name = format!("other{}", others.len());
        std::fs::write(program.lab.pfs(&name), vec![1; 1 << 20]).expect("write");
        let staged = rooms.files.stage_in(&root, name.as_bytes(), false, &|_| ());
        let Ok(file) = staged else { break };
        others.push(file.object);
    }
    assert!(others.len() > 10);
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("it was refused", |program| {
        let under_way = program.ahead().under_way.lock();
        under_way.values().any(|run| run.is_refused)
    });
    program.run(180.0);
    let is_here = |object: &&ObjectId| rooms.buffer.file(**object).is_some();
    assert_eq!(others.iter().filter(is_here).count(), others.len());
    // What is in vain goes for it, and no more of that than has to.
    others
        .iter()
        .for_each(|other| rooms.catalog.apps().is_unwanted(*other));
    program.until(238.0);
    program.wait_for("all are here", |program| {
        program.here().len() as u64 == FILES
    });
    let left = others.iter().filter(is_here).count();
    assert!((others.len() - 5..others.len()).contains(&left), "{left}");
}

#[test]
fn nothing_leaves_for_a_run_whose_owner_has_used_up_a_limit() {
    const ALICE: u32 = 12_345;
    if forebay_testkit::needs_root() {
        return;
    }
    let mut program = Program::new(Lab::with(|settings| {
        settings.engine.read_ahead = 1.0;
        settings.limits = vec![Limit {
            whose: Whose::One(Owner::User(ALICE)),
            capacity: Some(Amount::Bytes(1)),
            undrained: None,
            rate_bytes_per_s: None,
            beyond: Beyond::Wait,
        }];
    }));
    let rooms = program.lab.shared_rooms();
    let root = rooms.base.ns().root().clone();
    let mut others = Vec::new();
    loop {
        let name = format!("other{}", others.len());
        std::fs::write(program.lab.pfs(&name), vec![1; 1 << 20]).expect("write");
        let staged = rooms.files.stage_in(&root, name.as_bytes(), false, &|_| ());
        let Ok(file) = staged else { break };
        rooms.catalog.apps().is_unwanted(file.object);
        others.push(file.object);
    }
    let folder = program.lab.pfs("d");
    let give = |of: std::ops::Range<u64>, to| {
        for n in of {
            let path = folder.join(name(n));
            std::os::unix::fs::chown(path, Some(to), None).expect("chown");
        }
    };
    give(0..FILES, ALICE);
    let left = || {
        let is_here = |object: &&ObjectId| rooms.buffer.file(**object).is_some();
        others.iter().filter(is_here).count()
    };
    program.run(60.0);
    program.run(120.0);
    program.until(178.0);
    program.wait_for("all were looked after", |program| {
        let under_way = program.ahead().under_way.lock();
        under_way.values().any(|run| run.reading.is_over())
    });
    assert_eq!((program.here().len(), left()), (0, others.len()));
    // Those of others are not kept out by it.
    give(3..FILES, 0);
    program.run(180.0);
    program.until(238.0);
    program.wait_for("the others are here", |program| program.here() == [3, 4, 5]);
    assert!((others.len() - 5..others.len()).contains(&left()));
}
