//! The threads that bring files in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_policy::ahead::Reason;
use forebay_policy::limits::Owners;
use forebay_types::{Errno, FileKind, ObjectId};

use super::Ahead;
use super::readers::{Item, Reading};
use crate::base::failure::Failure;
use crate::buffer::guesses::Place;
use crate::files::unwanted::RunRoomMade;

/// Files that come in side by side: a PFS answers many at once, and small files cost answers.
const BRINGING_MAX: usize = 8;
/// Such a thread's stay while there is nothing to bring in.
const STAY: Duration = Duration::from_millis(20);
/// While the plan holds writes to a rate, it looks again after so long.
const HELD: Duration = Duration::from_millis(100);
/// Where there is no room, or the PFS fails, it is tried again after so long.
const BLOCKED: Duration = Duration::from_secs(1);
/// Of the capacity, what a list may have unread.
const LIST_SHARE: f64 = 0.5;

/// What became of one file.
enum Came {
    /// It is here, after this many bytes.
    Here(u64),
    /// It was here.
    Before(ObjectId),
    /// It is gone, or is one that stays on the PFS.
    Gone,
    /// There is no room now, or the PFS fails.
    NotNow,
}

/// A file of the PFS that may come in.
#[derive(Clone, Copy)]
pub(super) struct SizeOnPfs {
    pub(super) bytes: u64,
    pub(super) owners: Owners,
}

/// A thread that brings files in.
struct Bringing(Arc<Ahead>);

impl Drop for Bringing {
    fn drop(&mut self) {
        self.0.bringing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A file of a reading that is taken to be brought in, from before it is chosen.
struct Taken<'a>(&'a Reading);

impl Taken<'_> {
    fn new(reading: &Reading) -> Taken<'_> {
        reading.in_flight.fetch_add(1, Ordering::AcqRel);
        Taken(reading)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes that are on their way.
struct Coming<'a>(&'a Ahead, u64);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.coming_bytes.fetch_sub(self.1, Ordering::AcqRel);
    }
}

impl Ahead {
    /// Starts a thread where something may be to be brought in. One that finds a file starts the
    /// next.
    pub(super) fn bring_some(self: &Arc<Self>) {
        let readings = self.readings.lock();
        let some = readings
            .values()
            .any(|one| !one.is_blocked() && !one.has_ended());
        drop(readings);
        if !some || self.is_to_stop() {
            return;
        }
        if self.bringing.fetch_add(1, Ordering::AcqRel) >= BRINGING_MAX {
            self.bringing.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let bringing = Bringing(self.clone());
        let spawned = std::thread::Builder::new()
            .name("fb-bring".into())
            .spawn(move || bringing.0.bring());
        if let Err(error) = spawned {
            tracing::debug!("nothing is read ahead: {error}");
        }
    }

    /// What is drained at the end needs the PFS.
    fn is_to_stop(&self) -> bool {
        self.base.is_ending() || self.base.life().stop_order().is_some()
    }

    fn bring(self: &Arc<Self>) {
        let mut idle_since = Instant::now();
        while !self.is_to_stop() {
            if self.plan.engine().is_throttled() || self.base.health().is_silent() {
                self.base.life().pause(HELD);
                continue;
            }
            match self.bring_next() {
                true => {
                    idle_since = Instant::now();
                    self.bring_some();
                }
                false if idle_since.elapsed() > STAY => return,
                false => self.base.life().pause(STAY / 4),
            }
        }
    }

    /// Brings in one file of each that somebody reads; whether there was one.
    fn bring_next(&self) -> bool {
        let readings: Vec<Arc<Reading>> = self.readings.lock().values().cloned().collect();
        let mut some = false;
        for reading in readings {
            if reading.is_blocked() {
                continue;
            }
            let _taken = Taken::new(&reading);
            let next = {
                let mut reader = reading.reader.lock();
                match reader.take_next(self.now_s()) {
                    Some(at) => Some((at, false)),
                    None => reader.take_passed().map(|at| (at, true)),
                }
            };
            let Some((at, is_passed)) = next else {
                continue;
            };
            let turn = self.plan.engine().enter_staging(reading.id);
            let begun = Instant::now();
            reading.busy.lock().begin(self.now_s());
            let came = self.bring_one(&reading, at);
            reading.busy.lock().end(self.now_s());
            drop(turn);
            some |= !matches!(came, Came::NotNow);
            self.take_in(&reading, (at, is_passed), &came, begun.elapsed());
        }
        some
    }

    fn take_in(
        &self,
        reading: &Reading,
        (at, is_passed): (usize, bool),
        came: &Came,
        took: Duration,
    ) {
        let mut reader = reading.reader.lock();
        match came {
            Came::Here(bytes) => {
                reader.copied(took.as_secs_f64());
                drop(reader);
                reading.bytes.fetch_add(*bytes, Ordering::Relaxed);
                *reading.last.lock() = Instant::now();
                self.brought_for_run(reading.id, *bytes);
            }
            Came::Before(object) => {
                reader.not_copied(at, false);
                drop(reader);
                let place = Place {
                    reader: reading.id,
                    index: at,
                };
                self.buffer.guesses().watch(*object, place, None);
                self.found_for_run(reading.id, *object);
                self.meet(*object);
            }
            Came::Gone => reader.not_copied(at, true),
            Came::NotNow => {
                *reading.blocked_until.lock() = Some(Instant::now() + BLOCKED);
                if !is_passed {
                    reader.give_back(at);
                }
            }
        }
    }

    fn bring_one(&self, reading: &Reading, at: usize) -> Came {
        let item = &reading.items[at];
        if let Some(file) = item.dir.child(&item.name) {
            return Came::Before(file.object);
        }
        let size = match self.size_of(item) {
            Ok(Some(size)) => size,
            Ok(None) => return Came::Gone,
            Err(failure) => return self.why_not(item, &failure),
        };
        let Some(coming) = self.reserve(reading, size.bytes) else {
            return Came::NotNow;
        };
        // Nothing comes once it was counted what is left.
        let Ok(change) = self.base.life().change() else {
            return Came::NotNow;
        };
        let stage = || {
            let (files, may_evict) = (&self.files, reading.is_list());
            files.stage_in(&item.dir, &item.name, may_evict, &|_| ())
        };
        let mut staged = stage();
        if let Err(failure) = &staged
            && failure.errno() == Errno::ENOSPC
        {
            match self.make_room_for_run(reading, item, size) {
                RunRoomMade::Yes => staged = stage(),
                // Those of others may come.
                RunRoomMade::NotForOwner => return Came::Gone,
                RunRoomMade::No => {}
            }
        }
        drop(change);
        match staged {
            Ok(file) => {
                let place = Place {
                    reader: reading.id,
                    index: at,
                };
                let guesses = self.buffer.guesses();
                // It may have grown since it was looked at.
                let bytes = file.lock().meta.size;
                guesses.watch(file.object, place, Some(bytes));
                drop(coming);
                self.meet(file.object);
                Came::Here(bytes)
            }
            Err(failure) => self.why_not(item, &failure),
        }
    }

    /// Who has opened it, or had it leave, before it was watched, was not heard.
    fn meet(&self, object: ObjectId) {
        let guesses = self.buffer.guesses();
        match self.buffer.file(object) {
            None => guesses.left(object),
            Some(file) if self.buffer.opens().by_ino(file.ino).is_some() => guesses.opened(object),
            Some(_) => {}
        }
    }

    fn why_not(&self, item: &Item, failure: &Failure) -> Came {
        let path = item.dir.path_of(&item.name);
        let path = path.escape_ascii();
        tracing::debug!("{path} is not read ahead: {failure}");
        match failure.errno() {
            Errno::ENOENT | Errno::EMLINK | Errno::ESTALE | Errno::EISDIR | Errno::EPERM => {
                Came::Gone
            }
            // Somebody writes it, or it has come in by another way.
            Errno::ETXTBSY | Errno::EEXIST => Came::Gone,
            _ => Came::NotNow,
        }
    }

    /// `None`: it is no file that comes in.
    fn size_of(&self, item: &Item) -> Result<Option<SizeOnPfs>, Failure> {
        let ns = self.base.ns();
        let dir = ns.open_dir(&item.dir)?;
        let stat = ns.pfs().stat(&dir, &item.name)?;
        let stays = stat.nlink > 1 || stat.keeps_its_place() || stat.kind() != FileKind::Regular;
        Ok((!stays).then_some(SizeOnPfs {
            bytes: stat.size,
            owners: Owners {
                uid: stat.uid,
                gid: stat.gid,
            },
        }))
    }

    /// Keeps unread guesses within their share, and lists from filling the burst buffer with what
    /// their programs are nowhere near.
    fn reserve(&self, reading: &Reading, size: u64) -> Option<Coming<'_>> {
        let (_, capacity) = self.buffer.ledger().dirty_and_capacity();
        let share = match reading.reason() {
            Reason::List => LIST_SHARE,
            _ => self.share(),
        };
        let most = (share * capacity as f64) as u64;
        let before = self.coming_bytes.fetch_add(size, Ordering::AcqRel);
        let coming = Coming(self, size);
        let unread = self.buffer.guesses().unread_bytes();
        (unread.saturating_add(before).saturating_add(size) <= most).then_some(coming)
    }
}
