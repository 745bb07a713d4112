//! Demoters: they copy dirty files to the PFS, verify, and publish them.
//!
//! A batch shares its flushes and commits. For every file: a file without a name (or, where the PFS
//! has none, with a temporary one), copy, attributes, flush, read back, record flushed, name,
//! directory flushed, record marked clean. Whatever fails, the object stays, the copy goes, and the
//! file is tried again.

mod copying;
mod flushing;
mod overflow;
mod publishing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_namespace::{Demotion, File, NsError};
use forebay_tiers::{Object, TierKind};
use forebay_types::{Errno, ObjectId, failpoint};
use forebay_wire::OUT_OF_REACH;

use crate::base::failure::Failure;
use crate::buffer::queue::Finished;
use crate::drain::Drain;
use crate::drain::leftover::Leftover;
use crate::drain::picking::Line;
use crate::integrity::atrest::is_out_of_reach;
use copying::Made;
use publishing::publish;

/// While the PFS is silent, demoters look this often whether it answers again.
const SILENT_PAUSE: Duration = Duration::from_millis(50);

/// Why a demotion did not end in a published file.
#[derive(Debug)]
enum Unfinished {
    /// Changed meanwhile, or gone: nothing is wrong.
    Superseded,
    /// Something is.
    Failed(Failure),
}

impl From<NsError> for Unfinished {
    fn from(error: NsError) -> Unfinished {
        Unfinished::Failed(error.into())
    }
}

fn on_pfs(what: &'static str) -> impl Fn(std::io::Error) -> Unfinished {
    move |error| Unfinished::Failed(Failure::of_io(format!("{what} on the PFS"), error))
}

/// A file whose copy is about to be made.
struct Begun {
    demotion: Demotion,
    source: Arc<dyn Object>,
}

/// A file on its way.
struct Copying {
    demotion: Demotion,
    made: Made,
}

/// So long after a name came or went in it without a drain the PFS gets the time of a directory.
const TIMES_OWED_FOR: Duration = Duration::from_secs(1);

/// One demoter thread of a line.
pub fn run(drain: &Drain, line: Line) {
    while !drain.base.is_ending() {
        if drain.base.health().is_silent() {
            // What is dirty keeps: it is tried when there is somebody to answer.
            std::thread::sleep(SILENT_PAUSE);
            continue;
        }
        let batch = drain.next_batch(line);
        if !batch.is_empty() {
            let _under_way = drain.picking.set_out(line, batch.len());
            demote_batch(drain, &batch);
        }
        drain.ns.put_owed_times(TIMES_OWED_FOR);
    }
}

/// Demotes files together.
pub fn demote_batch(drain: &Drain, objects: &[ObjectId]) {
    let together = flushing::together(drain, objects.len());
    let mut begun = Vec::new();
    for &object in objects {
        let Some(demotion) = begin(drain, object) else {
            continue;
        };
        sweep(drain, object);
        if drain.buffer.tiers().kind(demotion.tier) == TierKind::Pfs
            && overflow::may_move(drain, &demotion)
            && overflow::finish(drain, &demotion)
        {
            continue;
        }
        match copying::open_source(drain, &demotion) {
            Ok(source) => begun.push(Begun { demotion, source }),
            Err(failure) => give_up(drain, &demotion, failure),
        }
    }
    let mut doubtful = Vec::new();
    let copied = copy(drain, flushing::flush_sources(drain, begun, &mut doubtful));
    let noted = note(drain, copied);
    let flushed = flushing::flush(drain, noted, together.as_ref());
    if !flushed.is_empty() {
        failpoint::hit(failpoint::Point::DemoteFlushed);
    }
    let verified = verify(drain, flushed);
    publish(drain, verified);
    for file in &doubtful {
        leave_doubtful(drain, file);
    }
    drain.base.absorb_conflicts();
}

/// Nobody knows what a loss of power leaves of an object that its file system, read-only by now,
/// did not flush: it goes as soon as the PFS has its content.
fn leave_doubtful(drain: &Drain, file: &Arc<File>) {
    if !file.lock().residency.clean {
        return;
    }
    match drain.buffer.evict(file) {
        Some(_) => drain.buffer.wake_collector(),
        // Somebody has it open, and what they read of it is good for as long as it is mounted.
        None => drain.integrity.at_rest().suspect(file.object),
    }
}

/// Copies what has been flushed, one after the other.
fn copy(drain: &Drain, begun: Vec<Begun>) -> Vec<Copying> {
    let mut copied = Vec::with_capacity(begun.len());
    for Begun { demotion, source } in begun {
        let application = drain
            .catalog
            .apps()
            .of(demotion.file.object)
            .map_or(0, |(number, _)| number);
        let slot = drain.buffer.tiers().get(demotion.tier);
        let server = slot.map_or(0, |slot| slot.server);
        let turn = drain.plan.engine().enter_demotion(server, application);
        let made = copying::make(drain, &demotion, source);
        drop(turn);
        match made {
            Ok(made) => copied.push(Copying { demotion, made }),
            Err(failure) => give_up(drain, &demotion, failure),
        }
    }
    copied
}

/// Gives up those for which `failures` has a reason, by position; answers with the others.
fn without_failed(
    drain: &Drain,
    all: Vec<Copying>,
    failures: Vec<(usize, NsError)>,
) -> Vec<Copying> {
    let mut failures: HashMap<usize, NsError> = failures.into_iter().collect();
    let mut left = Vec::with_capacity(all.len());
    for (at, one) in all.into_iter().enumerate() {
        match failures.remove(&at) {
            Some(error) => give_up(drain, &one.demotion, error.into()),
            None => left.push(one),
        }
    }
    left
}

/// Puts the copies on record, before any of them has its name.
fn note(drain: &Drain, copied: Vec<Copying>) -> Vec<Copying> {
    let copies: Vec<_> = copied
        .iter()
        .map(|one| (&one.demotion, one.made.stat))
        .collect();
    let failures = drain.ns.note_temporaries(&copies);
    without_failed(drain, copied, failures)
}

/// Starts the demotion of a file that nobody writes.
fn begin(drain: &Drain, object: ObjectId) -> Option<Demotion> {
    let Some(file) = drain.buffer.file(object) else {
        drain.buffer.queue().finished(&[Finished::done(object)]);
        return None;
    };
    if drain.buffer.tiers().is_out_of_reach(file.tier()) {
        // Whoever waits for it is told so. `status` names the node, not each of its files.
        file.lock().fail_demotion(OUT_OF_REACH);
        drain.buffer.queue().finished(&[Finished::failed(object)]);
        return None;
    }
    let claim = drain.buffer.opens().claim(file.ino);
    let written = claim.open().is_some_and(|open| open.is_written());
    if !written && let Err(failure) = drain.buffer.finish_close(&claim, &file) {
        drop(claim);
        let errno = failure.errno();
        let reason = failure.about("its object does not answer").to_string();
        note_failure(drain, &file, errno, &reason);
        drain.buffer.queue().finished(&[Finished::failed(object)]);
        return None;
    }
    // A file under unseen writing is marked so, and is not begun.
    let begun = drain.ns.begin_demotion(&file);
    drop(claim);
    match begun {
        Ok(Some(demotion)) => {
            drain.catalog.history().copying(object);
            Some(demotion)
        }
        Ok(None) => {
            // Clean, unlinked, or a writer has it: the writer's close will put it back.
            drain.buffer.leave_overflow(&file);
            drain.buffer.queue().finished(&[Finished::done(object)]);
            None
        }
        Err(error) => {
            note_failure(
                drain,
                &file,
                error.errno(),
                &format!("its directory on the PFS: {error}"),
            );
            drain.buffer.queue().finished(&[Finished::failed(object)]);
            None
        }
    }
}

/// The node that has the object has gone meanwhile.
fn is_of_node_away(errno: Errno) -> bool {
    is_out_of_reach(&errno.into())
}

fn note_failure(drain: &Drain, file: &File, errno: Errno, reason: &str) {
    if is_of_node_away(errno) {
        return file.lock().fail_demotion(OUT_OF_REACH);
    }
    file.lock().fail_demotion(errno);
    report(drain, file, errno, reason);
}

/// Says that a demotion has failed, unless somebody has removed the file meanwhile: then there is
/// nothing to be told, and its object may be gone.
fn report(drain: &Drain, file: &File, errno: Errno, reason: &str) {
    let path = file.path();
    let told = not_demoted(drain, file, reason);
    // The object goes after the name: looked at in the other order.
    if file.lock().is_unlinked() {
        return;
    }
    drain.base.report(path.clone(), errno, told);
    // Who removes it forgets its error: before it was told, perhaps.
    if file.lock().is_unlinked() {
        drain.base.errors().clear(&path);
    }
}

/// What a person is told of a demotion that has failed.
fn not_demoted(drain: &Drain, file: &File, reason: &str) -> String {
    let tier = file.tier();
    let found = drain.buffer.tiers().open_object(tier, file.object);
    let is_gone = found.is_err_and(|error| Errno::of(&error) == Errno::ENOENT);
    // What went straight to the PFS leaves the overflow for its name before it is known to be
    // flushed there.
    match is_gone && drain.buffer.tiers().kind(tier) != TierKind::Pfs {
        true => {
            let name = drain
                .buffer
                .tiers()
                .get(tier)
                .map_or("", |slot| slot.tier.name());
            format!(
                "not demoted: its object has been removed from tier {name} by somebody else: what was only there is lost"
            )
        }
        false => format!("not demoted: {reason}; the data is kept and tried again"),
    }
}

/// Reads the copies back. Then their records are flushed: from here on a crash finds out whether
/// one has got its name.
fn verify(drain: &Drain, copied: Vec<Copying>) -> Vec<Copying> {
    let mut verified = Vec::new();
    for one in copied {
        match one.made.check(drain, &one.demotion) {
            Ok(()) => verified.push(one),
            Err(failure) => give_up(drain, &one.demotion, failure),
        }
    }
    if verified.is_empty() {
        return verified;
    }
    failpoint::hit(failpoint::Point::DemoteVerified);
    match drain.ns.sync() {
        Ok(()) => {
            failpoint::hit(failpoint::Point::DemoteRecords);
            verified
        }
        Err(error) => {
            for one in &verified {
                give_up(
                    drain,
                    &one.demotion,
                    Unfinished::Failed(Failure::new(error.errno(), error.to_string())),
                );
            }
            Vec::new()
        }
    }
}

fn give_up(drain: &Drain, demotion: &Demotion, failure: Unfinished) {
    if drain.ns.is_settled(demotion) {
        let left = Leftover {
            dir: demotion.dir.clone(),
            handle: demotion.handle.clone(),
            temporary: demotion.temporary.clone(),
        };
        unlink_temporary(drain, demotion.file.object, left);
    }
    failpoint::hit(failpoint::Point::DemoteGivenUp);
    give_up_keeping(drain, demotion, failure);
}

/// Where it is not known what has become of the copy, what has that name may be an outsider's.
fn unlink_temporary(drain: &Drain, object: ObjectId, left: Leftover) {
    let (dir, handle) = (&left.dir, &left.handle);
    let unlink = || drain.ns.pfs().unlink(handle, &left.temporary);
    match drain.ns.change_unseen(dir, handle, unlink) {
        Ok(()) => drain.ns.put_times_back(dir, handle),
        Err(e) if e.errno() == Errno::ENOENT => {}
        Err(e) => {
            tracing::warn!(
                "temporary file {} stays on the PFS for now: {e}",
                left.temporary.escape_ascii()
            );
            drain.leftovers.lock().entry(object).or_default().push(left);
        }
    }
}

/// Removes what could not be removed when demotions of a file were given up. The caller demotes the
/// file: nobody else has a temporary file of it.
fn sweep(drain: &Drain, object: ObjectId) {
    let left = drain.leftovers.lock().remove(&object);
    for one in left.into_iter().flatten() {
        unlink_temporary(drain, object, one);
    }
}

/// What was to be copied is not the file any more.
fn has_moved(demotion: &Demotion) -> bool {
    demotion.file.tier() != demotion.tier
}

fn give_up_keeping(drain: &Drain, demotion: &Demotion, failure: Unfinished) {
    let file = &demotion.file;
    let (errno, failed) = match &failure {
        // It is tried again from there.
        _ if has_moved(demotion) => (None, false),
        Unfinished::Superseded => (None, false),
        // Whoever waits asks again. `status` names the node.
        Unfinished::Failed(failure) if is_of_node_away(failure.errno()) => {
            (Some(OUT_OF_REACH), true)
        }
        Unfinished::Failed(failure) => {
            report(drain, file, failure.errno(), &failure.to_string());
            (Some(failure.errno()), true)
        }
    };
    if let Err(error) = drain.ns.abandon(demotion, errno) {
        drain
            .base
            .report(file.path(), error.errno(), error.to_string());
    }
    let written = drain
        .buffer
        .opens()
        .by_ino(file.ino)
        .is_some_and(|open| open.is_written());
    let unlinked = file.lock().is_unlinked();
    drain.buffer.queue().finished(&[Finished {
        object: file.object,
        again: !written && !unlinked,
        failed: failed && !unlinked,
    }]);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use forebay_tiers::Tier;
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::{Errno, Ino, ObjectId, OpenFlags, SetAttr, SetTime, TierId, TimeSpec};

    use crate::drain::picking::Line;
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, Lab, create, drain, move_open};

    fn close_new(rooms: &Rooms, names: &[&str]) {
        for name in names {
            let handle = create(rooms, name.as_bytes(), name.as_bytes());
            rooms.files.release(handle).expect("close");
        }
    }

    #[test]
    fn many_files_that_are_called_clean_are_whole_on_flash_after_a_power_cut() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        close_new(rooms, &names);
        // Their names are there: only the content may be lost.
        flash.sync_all().expect("names");
        drain(rooms);
        let clean: Vec<(ObjectId, TierId)> = rooms
            .buffer
            .table()
            .read()
            .values()
            .map(|file| (file.object, file.lock().residency))
            .filter(|(_, residency)| residency.clean)
            .map(|(object, residency)| (object, residency.tier))
            .collect();
        assert_eq!(clean.len(), names.len(), "{:?}", rooms.base.errors().all());
        flash.crash(1, 0).expect("power cut");
        for (object, tier) in clean {
            assert_eq!(tier, FLASH);
            let found = flash.open(object).expect("object").stat().expect("stat");
            assert_eq!(found.size, 1, "what is called clean is torn");
        }
    }

    #[test]
    fn a_tier_that_somebody_removes_is_named_and_new_files_go_to_the_pfs() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        close_new(rooms, &["old"]);
        let objects = rooms.base.settings().ssd[0].dir.join("objects");
        std::fs::remove_dir_all(objects).expect("removed");
        drain(rooms);
        let told = |path: &[u8], what: &str| {
            let errors = rooms.base.errors().all();
            let mut of_path = errors.iter().filter(|error| error.path == path);
            assert!(
                of_path.any(|error| error.reason.contains(what)),
                "{errors:?}"
            );
        };
        told(b"old", "what was only there is lost");
        close_new(rooms, &["new"]);
        let tier = rooms
            .buffer
            .tiers()
            .get(FLASH)
            .expect("flash")
            .tier
            .name()
            .to_string();
        told(format!("(tier {tier})").as_bytes(), "has been removed");
        drain(rooms);
        assert_eq!(lab.on_pfs("new"), b"new");
    }

    #[test]
    fn a_file_that_is_removed_while_its_demotion_fails_has_nothing_to_report() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        close_new(rooms, &["f"]);
        let drain = &rooms.drain;
        let queue = rooms.buffer.queue();
        queue.add_urgent(queue.waiting()[0]);
        let object = drain.next_batch(Line::OWN)[0];
        let demotion = super::begin(drain, object).expect("dirty");
        let failure = super::Unfinished::Failed(super::Failure::new(Errno::EFBIG, "copy"));
        super::note_failure(drain, &demotion.file, Errno::EFBIG, "copy");
        assert_eq!(rooms.base.errors().all().len(), 1);
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.base.forget_error(Ino::ROOT, b"f");
        rooms.files.collect_garbage();
        super::give_up(drain, &demotion, failure);
        super::note_failure(drain, &demotion.file, Errno::EFBIG, "copy");
        assert_eq!(rooms.base.errors().all(), []);
        assert!(rooms.buffer.queue().waiting().is_empty());
    }

    #[test]
    fn a_demotion_that_its_file_has_left_has_not_failed() {
        let (lab, flashes) = Lab::with_two_flashes();
        let rooms = lab.rooms();
        let drain_room = &rooms.drain;
        // Before its object is opened, and before that is flushed.
        for (name, is_opened) in [("f", false), ("g", true)] {
            close_new(rooms, &[name]);
            let waiting = rooms.buffer.queue().waiting();
            let file = rooms.buffer.file(waiting[0]).expect("file");
            let flags = OpenFlags(libc::O_RDONLY as u32);
            let (reader, _) = rooms.files.open(file.ino, flags, None).expect("open");
            rooms.buffer.queue().add_urgent(file.object);
            let object = drain_room.next_batch(Line::OWN)[0];
            let demotion = super::begin(drain_room, object).expect("dirty");
            let flash = &flashes[usize::from(demotion.tier != FLASH)];
            if is_opened {
                let opened = super::copying::open_source(drain_room, &demotion);
                let source = opened.expect("there");
                move_open(rooms, &file);
                flash.inject(Operation::Sync, When::Every, Effect::Fail(Errno::EIO));
                file.lock().restore_flushed(None);
                let begun = vec![super::Begun { demotion, source }];
                let flushed = super::flushing::flush_sources(drain_room, begun, &mut Vec::new());
                assert!(flushed.is_empty(), "nothing was flushed");
                flash.heal_all();
            } else {
                move_open(rooms, &file);
                let opened = super::copying::open_source(drain_room, &demotion);
                let failure = opened.map(drop).expect_err("it is not there");
                super::give_up(drain_room, &demotion, failure);
            }
            assert_eq!(file.lock().error, None);
            assert_eq!(rooms.base.errors().all(), []);
            drain(rooms);
            assert_eq!(lab.on_pfs(name), name.as_bytes());
            rooms.files.release(reader.handle).expect("close");
        }
    }

    #[test]
    fn what_a_read_only_file_system_does_not_flush_goes_when_the_pfs_has_its_content() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        close_new(rooms, &["a", "b"]);
        let fault = flash.inject(Operation::Sync, When::Nth(1), Effect::Fail(Errno::EROFS));
        drain(rooms);
        assert_eq!(flash.fired(fault), 1);
        assert_eq!(
            (lab.on_pfs("a"), lab.on_pfs("b")),
            (b"a".into(), b"b".into())
        );
        assert_eq!(rooms.buffer.ledger().dirty_and_capacity().0, 0);
        rooms.files.collect_garbage();
        assert_eq!(
            rooms.buffer.table().read().len(),
            1,
            "what may be torn is believed"
        );
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn a_file_whose_record_cannot_say_clean_is_undrained_in_every_book_and_tried_again() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let waiting = rooms.buffer.queue().waiting();
        let file = rooms.buffer.file(waiting[0]).expect("file");
        lab.store.fail_from(lab.pfs("f"));
        drain(rooms);
        assert!(lab.store.fired() > 0, "no commit failed");
        assert_eq!(lab.on_pfs("f"), b"content");
        assert!(file.lock().is_dirty(), "its record does not say clean");
        assert!(rooms.buffer.ledger().dirty_and_capacity().0 > 0);
        assert_eq!(
            rooms.buffer.queue().waiting(),
            waiting,
            "it waits for the next try"
        );
        lab.store.heal();
        drain(rooms);
        assert!(!file.lock().is_dirty());
        assert_eq!(rooms.buffer.ledger().dirty_and_capacity().0, 0);
        assert!(rooms.buffer.queue().waiting().is_empty());
        assert_eq!(rooms.base.conflicts().all().0, 0);
    }

    #[test]
    fn a_name_that_comes_during_a_demotion_gets_one_of_its_own() {
        for _ in 0..40 {
            let lab = Lab::new();
            let rooms = lab.rooms();
            close_new(rooms, &["f"]);
            let object = rooms.buffer.queue().waiting()[0];
            let file = rooms.buffer.file(object).expect("file");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let linked = rooms
                        .base
                        .ns()
                        .link(file.ino, forebay_types::Ino::ROOT, b"g");
                    linked.expect("link");
                });
                drain(rooms);
            });
            while !rooms.buffer.queue().waiting().is_empty() {
                drain(rooms);
            }
            assert!(!file.lock().is_dirty(), "nobody would ever demote it");
            assert_eq!(lab.on_pfs("g"), b"f");
        }
    }

    #[test]
    fn the_time_that_a_program_gives_a_directory_stays_beside_a_drain() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    drain(rooms);
                }
            });
            let mut lost = Vec::new();
            for sec in 1000..1400 {
                close_new(rooms, &[&format!("f{sec}")]);
                let time = TimeSpec { sec, nsec: 0 };
                let set = SetAttr {
                    mtime: Some(SetTime::At(time)),
                    ..SetAttr::default()
                };
                rooms
                    .base
                    .ns()
                    .setattr(Ino::ROOT, &set)
                    .map(drop)
                    .expect("set");
                // A drain that was about to put the time back has done so.
                std::thread::sleep(Duration::from_millis(1));
                let shown = rooms.files.getattr(Ino::ROOT).expect("stat").mtime;
                if shown != time {
                    lost.push((sec, shown));
                }
            }
            done.store(true, Ordering::Release);
            assert_eq!(lost, []);
        });
    }
}
