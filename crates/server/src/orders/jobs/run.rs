//! Movements under way.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::{File, on_pfs};
use forebay_types::Errno;
use forebay_types::history::{Record, What};
use forebay_wire::control::{JobProgress, Movement};

use super::stores::{self, KeptStores};
use super::{
    BETWEEN_LOOKS, CLOSE_GRACE, IDLE_GRACE, Job, Outcome, Seen, UNDER_WAY_MAX, ahead, fail_file,
    fail_missing, inplace, left,
};
use crate::base::failure::Failure;
use crate::orders::Orders;
use crate::orders::asker::Asker;
use crate::orders::asker::sight::Sight;
use crate::orders::walk::Visited;

/// Starts a movement on a thread of its own, of files that the user owns and may find; all of them
/// for root and the server's own user.
pub fn start(
    orders: &Arc<Orders>,
    movement: Movement,
    paths: Vec<Vec<u8>>,
    asker: Asker,
) -> Result<u64, Failure> {
    let job = orders.jobs.add(&asker, movement)?;
    let orders = orders.clone();
    let id = job.id;
    let running = job.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("fb-job-{id}"))
        .spawn(move || run(&orders, &running, movement, &paths, &asker));
    if let Err(error) = spawned {
        job.progress.lock().finished = true;
        return Err(error.into());
    }
    Ok(id)
}

fn run(orders: &Orders, job: &Job, movement: Movement, paths: &[Vec<u8>], asker: &Asker) {
    let begun_ms = orders.catalog.history().now_ms();
    let sight = Sight::new(orders, asker);
    let conflicts_before = orders.base.conflicts().total();
    let mut work = Work::default();
    let mut cut = false;
    let walked: &[Vec<u8>] = match movement {
        Movement::Commit => {
            crate::orders::commit::run(orders, job, paths, &sight);
            &[]
        }
        _ => paths,
    };
    let mut missing = Vec::new();
    let mut seen = HashSet::new();
    let is_ended = || job.cancelled.load(Ordering::Acquire) || orders.base.is_ending();
    let may_wait = || !is_ended() && orders.base.given_up().is_none();
    let kept = match movement {
        Movement::StageOut => KeptStores::now(orders, &may_wait),
        _ => KeptStores::default(),
    };
    for path in walked {
        let go_on = orders.walk(
            path,
            &sight,
            &mut |mut visited| {
                let mine = match may_order(orders, asker, &sight, movement, &visited) {
                    true => kept.take_in(orders, &mut visited, &may_wait),
                    false => Err(Failure::new(Errno::EPERM, "not your file")),
                };
                seen.extend(visited.file.iter().map(|file| file.object));
                if let Err(failure) = mine {
                    job.progress.lock().files_total += 1;
                    fail_file(job, visited.path(), &failure);
                    return !is_ended();
                }
                work.add(orders, job, movement, visited);
                !is_ended()
            },
            &mut |path, failure| missing.push((path, failure)),
        );
        if !go_on {
            left(job, path.clone());
            cut = true;
        }
    }
    let lost = match movement {
        Movement::StageOut if !cut => orders.unreachable(asker, paths, &seen),
        _ => Vec::new(),
    };
    fail_missing(job, missing, lost);
    job.progress.lock().counting = false;
    match movement {
        Movement::StageOut => {
            stage_out(orders, job, work.moves, conflicts_before);
            inplace::wait(orders, job, work.flushes);
        }
        Movement::Ahead => ahead::run(orders, job, work.moves),
        _ => one_by_one(orders, job, movement, work.moves),
    }
    let mut progress = job.progress.lock();
    job.bytes_under_way.store(0, Ordering::Relaxed);
    progress.bytes_done = job.bytes_done.load(Ordering::Relaxed);
    progress.cancelled = cut || !progress.left.is_empty();
    progress.finished = true;
    put_on_record(orders, movement, asker.uid(), begun_ms, &progress);
}

fn put_on_record(
    orders: &Orders,
    movement: Movement,
    uid: u32,
    begun_ms: u64,
    progress: &JobProgress,
) {
    let what = match movement {
        Movement::StageIn => What::StageIn,
        Movement::StageOut => What::StageOut,
        Movement::Prefetch | Movement::Ahead => What::Prefetch,
        Movement::Release => What::Release,
        Movement::Commit => What::Commit,
    };
    let history = orders.catalog.history();
    history.add(Record {
        ended_ms: history.now_ms(),
        files: progress.files_done.saturating_sub(progress.files_failed),
        bytes: progress.bytes_done,
        failed_files: progress.files_failed,
        ..Record::new(what, String::new(), uid, begun_ms)
    });
}

/// What a walk has found to do.
#[derive(Default)]
struct Work {
    moves: Vec<Visited>,
    flushes: Vec<inplace::Wanted>,
}

impl Work {
    /// Counts a file, and takes it where something is to be done with it.
    fn add(&mut self, orders: &Orders, job: &Job, movement: Movement, visited: Visited) {
        let (bytes, needed) = need(orders, movement, &visited);
        let flush = match movement {
            Movement::StageOut if !needed => inplace::order(orders, &visited),
            _ => None,
        };
        let lost = match movement {
            Movement::StageOut if !needed && flush.is_none() => stores::lost(orders, &visited),
            _ => None,
        };
        let mut progress = job.progress.lock();
        progress.files_total += 1;
        if let Some(failure) = lost {
            drop(progress);
            fail_file(job, visited.path(), &failure);
        } else if let Some(flush) = flush {
            self.flushes.push(flush);
        } else if needed {
            progress.bytes_total += bytes;
            self.moves.push(visited);
        } else {
            progress.files_skipped += 1;
            progress.files_done += 1;
        }
    }
}

/// A copy in the burst buffer takes nothing from a file: who may read it may bring it in. All else
/// is for its owner.
fn may_order(
    orders: &Orders,
    asker: &Asker,
    sight: &Sight,
    movement: Movement,
    visited: &Visited,
) -> bool {
    if asker.is_trusted() || owner(orders, visited) == Some(asker.uid()) {
        return true;
    }
    let brings_in = matches!(
        movement,
        Movement::StageIn | Movement::Prefetch | Movement::Ahead
    );
    brings_in
        && match &visited.file {
            Some(file) => sight.may_read(file.ino, &file.attr()),
            None => sight.may_read_on_pfs(&visited.dir, &visited.name).is_ok(),
        }
}

fn owner(orders: &Orders, visited: &Visited) -> Option<u32> {
    match &visited.file {
        Some(file) => Some(file.lock().meta.uid),
        None => {
            let dir = orders.ns.open_dir(&visited.dir).ok()?;
            Some(orders.ns.pfs().stat(&dir, &visited.name).ok()?.uid)
        }
    }
}

/// Bytes to move, and whether there is anything to do.
fn need(orders: &Orders, movement: Movement, visited: &Visited) -> (u64, bool) {
    match (&visited.file, movement) {
        (None, Movement::StageIn | Movement::Prefetch | Movement::Ahead) => {
            let stat = orders.ns.open_dir(&visited.dir).and_then(|d| {
                orders
                    .ns
                    .pfs()
                    .stat(&d, &visited.name)
                    .map_err(on_pfs("stat"))
            });
            // One of several links stays one file only where it is; and so does what cannot be
            // replaced there.
            let stays = |s: &forebay_tiers::PfsStat| s.nlink > 1 || s.keeps_its_place();
            let stays = stat.as_ref().is_ok_and(stays);
            (stat.map_or(0, |s| s.size), !stays)
        }
        (None, _) | (Some(_), Movement::StageIn) => (0, false),
        // It is on the program's way, and needs no copy.
        (Some(_), Movement::Ahead) => (0, true),
        (Some(file), Movement::Prefetch) => {
            let dram = orders.buffer.tiers().kind(file.tier()) == forebay_tiers::TierKind::Dram;
            let state = file.lock();
            (state.meta.size, !dram && state.residency.clean)
        }
        (Some(file), Movement::StageOut) => {
            let state = file.lock();
            let written = state.residency.writing;
            let size = if written {
                orders.buffer.ledger().used_bytes(file.object)
            } else {
                state.meta.size
            };
            (size, state.is_dirty())
        }
        (Some(file), Movement::Release) => (file.lock().meta.size, true),
        (Some(_), Movement::Commit) => (0, true),
    }
}

fn one_by_one(orders: &Orders, job: &Job, movement: Movement, work: Vec<Visited>) {
    for visited in work {
        if job.cancelled.load(Ordering::Acquire) || orders.base.is_ending() {
            left(job, visited.path());
            continue;
        }
        let moved = |bytes: u64| {
            job.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        };
        let turn = match movement {
            Movement::Release => None,
            _ => orders.plan.engine().enter_staging(job.id),
        };
        let done = match (movement, &visited.file) {
            (Movement::Release, Some(file)) => release(orders, job, file, &moved),
            (Movement::Prefetch, Some(file)) => orders.files.prefetch(file, &moved).map(|_| true),
            (_, None) => stage_in(orders, &visited, &moved).map(|()| true),
            _ => Ok(true),
        };
        drop(turn);
        match done {
            Ok(true) => job.progress.lock().files_done += 1,
            Ok(false) => left(job, visited.path()),
            Err(failure) => fail_file(job, visited.path(), &failure),
        }
    }
}

fn stage_in(
    orders: &Orders,
    visited: &Visited,
    moved: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    // A copy of what the PFS had before gives way.
    orders.ns.lookup_in(&visited.dir, &visited.name, false)?;
    let staged = orders
        .files
        .stage_in(&visited.dir, &visited.name, true, moved);
    let staged = staged.map_err(|failure| match failure.errno() {
        // The limit of a user or group has words of its own.
        Errno::ENOSPC if !failure.has_words() => failure
            .about("no room in the burst buffer: everything there is in use or not drained yet"),
        _ => failure,
    });
    staged.map(drop)
}

/// A clean file that is in use for a moment, or whose directory is, as while a neighbour of it gets
/// its name on the PFS, is tried again for so long.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// Between two tries.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// How long one try waits for who is just opening or closing the file. It is short, for in between
/// is looked whether the release is still wanted.
const RELEASE_TRY: Duration = Duration::from_millis(100);

/// Whether it has left; false if the job was cancelled before.
fn release(
    orders: &Orders,
    job: &Job,
    file: &Arc<File>,
    freed: &dyn Fn(u64),
) -> Result<bool, Failure> {
    let bytes = file.lock().meta.size;
    let begun = Instant::now();
    loop {
        if file.lock().is_dirty() {
            return Err(Failure::new(
                Errno::EBUSY,
                "not on the PFS yet; run 'forebay stage-out --wait' first",
            ));
        }
        let claim = orders.buffer.opens().claim_within(file.ino, RELEASE_TRY);
        if let Some(claim) = &claim {
            if claim.is_open() {
                return Err(Failure::new(Errno::EBUSY, "open; close it first"));
            }
            if orders.buffer.evict_unopened(file).is_some() {
                freed(bytes);
                orders.buffer.wake_collector();
                return Ok(true);
            }
        }
        drop(claim);
        if file.lock().is_unlinked() {
            return Ok(true);
        }
        if job.cancelled.load(Ordering::Acquire) {
            return Ok(false);
        }
        if begun.elapsed() >= RELEASE_PATIENCE || orders.base.is_ending() {
            return Err(Failure::new(Errno::EBUSY, "changed meanwhile"));
        }
        std::thread::sleep(RELEASE_PAUSE);
    }
}

/// What of a file that is on the PFS now is not as was ordered: a store was lost, or somebody has
/// changed the file there meanwhile.
fn shortfall(orders: &Orders, visited: &Visited, conflicts_before: u64) -> Option<Failure> {
    stores::lost(orders, visited).or_else(|| {
        let conflicts = orders.base.conflicts();
        let parted = conflicts.since(conflicts_before, &visited.path())?;
        Some(Failure::new(Errno::EEXIST, parted.reason))
    })
}

/// Queues all and waits for each. Demotion has its own workers and batches.
fn stage_out(orders: &Orders, job: &Job, work: Vec<Visited>, conflicts_before: u64) {
    let files: Vec<Arc<File>> = work.iter().filter_map(|v| v.file.clone()).collect();
    let mut asked_for = HashSet::new();
    for file in &files {
        // One of several names: asked for once more, it would be drained once more when the job has
        // ended, with what is written by then.
        if asked_for.insert(file.object) {
            // An earlier failure is tried again, and only what happens now counts.
            file.lock().forget_error();
            orders.buffer.queue().add_urgent(file.object);
        }
    }
    let mut seen = Seen::default();
    let mut pending: Vec<(Arc<File>, Visited)> = files.into_iter().zip(work).collect();
    while !pending.is_empty() {
        let cancelled = job.cancelled.load(Ordering::Acquire) || orders.base.is_ending();
        let given_up = orders.base.given_up();
        pending.retain(|(file, visited)| match outcome(orders, file, &mut seen) {
            Outcome::Pending if given_up.is_some() => {
                let why = given_up.as_deref().unwrap_or_default();
                let reason = format!("not demoted: {why}; it is kept and tried again");
                let failure = Failure::new(Errno::ETIMEDOUT, reason);
                fail_file(job, visited.path(), &failure);
                false
            }
            Outcome::Done(bytes) => {
                job.bytes_done.fetch_add(bytes, Ordering::Relaxed);
                match shortfall(orders, visited, conflicts_before) {
                    Some(failure) => fail_file(job, visited.path(), &failure),
                    None => job.progress.lock().files_done += 1,
                }
                false
            }
            Outcome::Failed(failure) => {
                fail_file(job, visited.path(), &failure);
                false
            }
            Outcome::Pending if cancelled => {
                left(job, visited.path());
                false
            }
            Outcome::Pending => true,
        });
        let under_way = pending.iter().take(UNDER_WAY_MAX);
        let copied = under_way.map(|(file, _)| orders.buffer.queue().copied_bytes(file.object));
        job.bytes_under_way.store(copied.sum(), Ordering::Relaxed);
        if !pending.is_empty() {
            orders
                .buffer
                .queue()
                .wait_settled(Duration::from_millis(50));
            // Looking at all of them takes time that the demoters need.
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// A dirty file that nobody writes belongs into the queue. One that was found outside for long is
/// put there, so that nobody waits for it in vain, and the log says what is known of it: something
/// else has gone wrong.
fn put_back_idle(orders: &Orders, file: &Arc<File>, seen: &mut Seen) {
    if orders.buffer.queue().knows(file.object) {
        seen.idle.remove(&file.object.0);
        return;
    }
    let since = *(seen.idle.entry(file.object.0)).or_insert_with(Instant::now);
    if since.elapsed() < IDLE_GRACE {
        return;
    }
    seen.idle.remove(&file.object.0);
    let known = {
        let state = file.lock();
        format!(
            "{:?}, names {}, drained for {} waiting, safe {:?}",
            state.residency,
            state.names.len(),
            state.drain_open,
            state.safe
        )
    };
    tracing::warn!(
        "{}: was not in the queue of demotions, and is now: {known}",
        file.path().escape_ascii()
    );
    orders.buffer.queue().add_urgent(file.object);
}

fn outcome(orders: &Orders, file: &Arc<File>, seen: &mut Seen) -> Outcome {
    let (clean, unlinked, error, demoting, size) = {
        let state = file.lock();
        (
            state.residency.clean,
            state.is_unlinked(),
            state.error,
            state.demoting,
            state.meta.size,
        )
    };
    if clean {
        // Whoever waited for the job finds it in `status`: the worker may not have got so far.
        orders.buffer.book_state(file);
    }
    if clean || unlinked {
        return Outcome::Done(size);
    }
    if let (Some(errno), false) = (error, demoting) {
        let path = file.path();
        let told = orders.base.errors().reason(&path, errno);
        let reason = told.unwrap_or_else(|| {
            let why = errno.message();
            format!("not demoted: {why}; it is kept and tried again")
        });
        return Outcome::Failed(Failure::new(errno, reason));
    }
    if demoting {
        return Outcome::Pending;
    }
    if orders
        .buffer
        .opens()
        .by_ino(file.ino)
        .is_some_and(|o| o.is_written())
    {
        let since = seen.open.entry(file.object.0).or_insert_with(Instant::now);
        if since.elapsed() > CLOSE_GRACE {
            return Outcome::Failed(Failure::new(
                Errno::ETXTBSY,
                "open for writing; it is demoted when it is closed",
            ));
        }
    } else if seen.open.remove(&file.object.0).is_some() {
        orders.buffer.queue().add_urgent(file.object);
    } else {
        orders.buffer.queue().urge_again(file.object);
        put_back_idle(orders, file, seen);
    }
    Outcome::Pending
}

#[cfg(test)]
mod tests {
    use super::super::{Jobs, KEPT_PER_USER_MAX, RUNNING_PER_USER_MAX};
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_wire::{Peer, WriteHow};

    use super::*;
    use crate::testing::{Lab, create, drain, strand};

    fn asker(uid: u32) -> Asker {
        Asker::of(Peer {
            uid,
            gid: uid,
            groups: &[],
            local: true,
            near: false,
            mount: false,
            socket: None,
        })
    }

    #[test]
    fn users_have_few_jobs_and_see_their_own() {
        let jobs = Jobs::of_start(1);
        // Neither of them runs the test.
        let (one, other) = (asker(4_000_000), asker(4_000_001));
        let mut own = Vec::new();
        while let Ok(job) = jobs.add(&one, Movement::StageOut) {
            own.push(job);
        }
        assert_eq!(own.len(), RUNNING_PER_USER_MAX);
        let foreign = jobs
            .add(&other, Movement::StageOut)
            .expect("another user's");
        let roots = jobs.add(&asker(0), Movement::StageOut).expect("root's");
        assert!(jobs.cancel(roots.id, &one).is_none());
        assert!(jobs.progress(foreign.id, &one).is_none());
        assert!(!roots.cancelled.load(Ordering::Acquire));
        assert!(jobs.cancel(own[0].id, &one).is_some());
        assert!(jobs.cancel(own[1].id, &asker(0)).is_some());
        // One that has finished makes room, and stays to be asked for until there are many.
        own[0].progress.lock().finished = true;
        let first = own[0].id;
        for _ in 1..KEPT_PER_USER_MAX - RUNNING_PER_USER_MAX {
            let job = jobs.add(&one, Movement::StageOut).expect("one more");
            job.progress.lock().finished = true;
        }
        assert!(jobs.progress(first, &one).is_some());
        jobs.add(&one, Movement::StageOut)
            .expect("one more")
            .progress
            .lock()
            .finished = true;
        jobs.add(&one, Movement::StageOut).expect("one more");
        assert!(jobs.progress(first, &one).is_none());
        assert!(jobs.progress(own[1].id, &one).is_some(), "it still runs");
    }

    #[test]
    fn a_stage_out_fails_with_what_it_cannot_reach() {
        let lab = Lab::new();
        strand(&lab, "gone", "f");
        let me = asker(rustix::process::geteuid().as_raw());
        for path in ["", "gone", "gone/f"] {
            let job = lab
                .rooms()
                .orders
                .jobs
                .add(&me, Movement::StageOut)
                .expect("a job");
            let paths = [path.as_bytes().to_vec()];
            run(&lab.rooms().orders, &job, Movement::StageOut, &paths, &me);
            let progress = job.progress_now();
            assert!(progress.finished, "{progress:?}");
            assert_eq!((progress.files_total, progress.failed), (1, 1), "{path}");
            assert_eq!(progress.failures[0].path, b"gone/f");
        }
    }

    #[test]
    fn a_stage_out_names_a_file_of_the_burst_buffer_that_has_lost_a_store() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        flash.inject(Operation::Write, When::Nth(1), Effect::Fail(Errno::EIO));
        let how = WriteHow {
            write_back: true,
            ..WriteHow::WAITING
        };
        let written = rooms.files.write(handle, 0, b"CONTENT", how);
        written.expect_err("its device fails");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let me = asker(rustix::process::geteuid().as_raw());
        for is_here in [true, false] {
            let job = rooms
                .orders
                .jobs
                .add(&me, Movement::StageOut)
                .expect("a job");
            run(&rooms.orders, &job, Movement::StageOut, &[Vec::new()], &me);
            let progress = job.progress_now();
            assert_eq!(progress.failed, 1, "{is_here}: {progress:?}");
            let failure = &progress.failures[0];
            assert_eq!((&failure.path[..], failure.errno), (&b"f"[..], Errno::EIO));
            if is_here {
                let file = rooms.buffer.files().pop().expect("file");
                rooms.buffer.evict(&file).expect("clean");
            }
        }
    }

    /// As while its directory is in use for the publication of a neighbour.
    #[test]
    fn a_release_waits_for_what_keeps_a_clean_file_for_a_moment() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        let file = rooms.buffer.files().pop().expect("file");
        let me = asker(rustix::process::geteuid().as_raw());
        let jobs = [(); 2].map(|()| {
            rooms
                .orders
                .jobs
                .add(&me, Movement::StageOut)
                .expect("a job")
        });
        std::thread::scope(|scope| {
            let claim = rooms.buffer.opens().claim(file.ino);
            let start = |job| {
                let file = &file;
                scope.spawn(move || release(&rooms.orders, job, file, &|_| ()))
            };
            let [patient, cancelled] = jobs.each_ref().map(|job| start(&**job));
            // One try waits less.
            std::thread::sleep(Duration::from_millis(500));
            // Who has stopped waiting is let go at once.
            jobs[1].cancelled.store(true, Ordering::Release);
            let begun = Instant::now();
            let let_go = cancelled.join().expect("release");
            assert_eq!(let_go.map_err(|failure| failure.to_string()), Ok(false));
            assert!(begun.elapsed() < Duration::from_secs(1));
            drop(claim);
            let released = patient.join().expect("release");
            assert_eq!(released.map_err(|failure| failure.to_string()), Ok(true));
        });
        assert!(file.lock().is_unlinked(), "it has left");
    }

    #[test]
    fn a_stage_out_names_what_somebody_has_changed_on_the_pfs() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        for name in [&b"f"[..], b"g"] {
            let handle = create(rooms, name, b"content");
            rooms.files.release(handle).expect("close");
        }
        let theirs = rooms.base.settings().pfs.join("f");
        std::fs::write(theirs, "theirs").expect("write");
        let me = asker(rustix::process::geteuid().as_raw());
        let job = rooms
            .orders
            .jobs
            .add(&me, Movement::StageOut)
            .expect("a job");
        std::thread::scope(|scope| {
            let paths = [Vec::new()];
            let (job, me) = (&job, &me);
            let staging =
                scope.spawn(move || run(&rooms.orders, job, Movement::StageOut, &paths, me));
            while !staging.is_finished() {
                let is_counted = !job.progress.lock().counting;
                match is_counted && !rooms.buffer.queue().waiting().is_empty() {
                    true => drain(rooms),
                    false => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let progress = job.progress_now();
        assert_eq!(
            (progress.files_total, progress.failed),
            (2, 1),
            "{progress:?}"
        );
        let failure = &progress.failures[0];
        assert_eq!(
            (&failure.path[..], failure.errno),
            (&b"f"[..], Errno::EEXIST)
        );
        assert!(
            failure.reason.contains("f.forebay-conflict-"),
            "{failure:?}"
        );
        // It is told once: there is nothing to do for the next one.
        let again = rooms
            .orders
            .jobs
            .add(&me, Movement::StageOut)
            .expect("a job");
        run(
            &rooms.orders,
            &again,
            Movement::StageOut,
            &[Vec::new()],
            &me,
        );
        assert_eq!(again.progress_now().failed, 0);
    }
}
