//! The threads that bring files in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_tiers::TierKind;
use forebay_types::{Errno, FileKind, TierId};

use super::Ahead;
use super::readers::{Item, Reading};
use crate::base::failure::Failure;
use crate::buffer::guesses::Watched;

/// Files that come in side by side: a PFS answers many at once, and small files cost answers.
const BRINGING_MAX: usize = 8;
/// Such a thread's stay while there is nothing to bring in.
const STAY: Duration = Duration::from_millis(20);
/// While the plan holds writes to a rate, it looks again after so long.
const HELD: Duration = Duration::from_millis(100);

/// What became of one file.
enum Came {
    /// It is here, after this many bytes.
    Here(u64),
    /// It was there, is gone, or is one that stays on the PFS.
    Not,
    /// There is no room now.
    NoRoom,
}

impl Ahead {
    /// Starts threads where something is to be brought in.
    pub(super) fn bring_some(self: &Arc<Self>) {
        let readings = self.readings.lock().len();
        while readings > 0 && !self.base.is_ending() {
            let before = self.bringing.load(Ordering::Acquire);
            if before >= BRINGING_MAX {
                return;
            }
            let begun = self.bringing.compare_exchange(
                before,
                before + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if begun.is_err() {
                continue;
            }
            let ahead = self.clone();
            let spawned = std::thread::Builder::new()
                .name("fb-bring".into())
                .spawn(move || {
                    ahead.bring();
                    ahead.bringing.fetch_sub(1, Ordering::AcqRel);
                });
            if let Err(error) = spawned {
                self.bringing.fetch_sub(1, Ordering::AcqRel);
                tracing::debug!("nothing is read ahead: {error}");
                return;
            }
        }
    }

    fn bring(&self) {
        let mut idle_since = Instant::now();
        while !self.base.is_ending() {
            if self.plan.engine().is_throttled() {
                self.base.life().pause(HELD);
                continue;
            }
            match self.bring_next() {
                true => idle_since = Instant::now(),
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
            let came = self.bring_one(&reading, at, is_passed);
            drop(turn);
            let mut reader = reading.reader.lock();
            match came {
                Came::Here(bytes) => {
                    reader.copied(begun.elapsed().as_secs_f64());
                    drop(reader);
                    reading.bytes.fetch_add(bytes, Ordering::Relaxed);
                    *reading.last.lock() = Instant::now();
                    some = true;
                }
                Came::Not => {
                    reader.not_copied(at);
                    some = true;
                }
                Came::NoRoom => reader.give_back(at),
            }
        }
        some
    }

    fn bring_one(&self, reading: &Reading, at: usize, is_passed: bool) -> Came {
        let item = &reading.items[at];
        if item.dir.child(&item.name).is_some() {
            // Its open is told already, or it came by another way: then that is not.
            return Came::Not;
        }
        let size = match self.size_of(item) {
            Ok(Some(size)) => size,
            Ok(None) | Err(_) => return Came::Not,
        };
        if !reading.is_list() && !self.has_room_for(size) {
            return Came::NoRoom;
        }
        match self.files.stage_in(&item.dir, &item.name, &|_| ()) {
            Ok(file) => {
                // A program that came for it meanwhile reads the PFS.
                let is_late = is_passed || reading.has_read(at);
                if !is_late {
                    let watched = Watched {
                        reader: reading.id,
                        index: at,
                        guessed_bytes: Some(size),
                    };
                    self.buffer.guesses().watch(file.object, watched);
                    reading.worth.lock().guessed_bytes += size;
                }
                Came::Here(size)
            }
            Err(failure) if failure.errno() == Errno::ENOSPC => Came::NoRoom,
            Err(failure) => {
                let path = item.dir.path_of(&item.name);
                let path = path.escape_ascii();
                tracing::debug!("{path} is not read ahead: {failure}");
                Came::Not
            }
        }
    }

    /// `None`: it is no file that comes in.
    fn size_of(&self, item: &Item) -> Result<Option<u64>, Failure> {
        let ns = self.base.ns();
        let dir = ns.open_dir(&item.dir)?;
        let stat = ns.pfs().stat(&dir, &item.name)?;
        let stays = stat.nlink > 1 || stat.keeps_its_place() || stat.kind() != FileKind::Regular;
        Ok((!stays).then_some(stat.size))
    }

    /// Whether there is free space for a guess, and its share is not used up.
    fn has_room_for(&self, size: u64) -> bool {
        let spaces = self.buffer.ledger().spaces();
        let kind = |index: usize| self.buffer.tiers().kind(TierId(index as u8));
        let fast = |index| matches!(kind(index), TierKind::Dram | TierKind::Ssd);
        let (_, capacity) = self.buffer.ledger().dirty_and_capacity();
        let share = (self.share() * capacity as f64) as u64;
        let unread = self.buffer.guesses().unread_bytes();
        let mut fits = spaces.iter().filter(|space| fast(space.index));
        unread + size <= share && fits.any(|space| space.available_bytes() >= 2 * size)
    }
}
