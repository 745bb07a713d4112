//! Folders that are read every so often: their files are here before the next run starts (ONFS
//! 2017, upward migration).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_namespace::{Dir, DirKey};
use forebay_policy::ahead::Reason;
use forebay_policy::runs::{Runs, Step};
use forebay_types::{Errno, ObjectId};
use forebay_wire::control::{RunExpected, RunsStatus};

use super::Ahead;
use super::bring::SizeOnPfs;
use super::readers::{Item, Reading};
use crate::files::unwanted::{RunFile, RunRoomMade};

/// Readings with this bit are those of a run; the others are its number.
const RUN: u64 = 1 << 63;
/// Runs that `status` names: the next ones.
const SHOWN_MAX: usize = 8;

/// What is known of runs.
#[derive(Default)]
pub(super) struct Learned {
    pub(super) runs: Runs<DirKey>,
    /// The folders that `runs` remembers.
    pub(super) dirs: HashMap<DirKey, Arc<Dir>>,
}

/// What is brought in for a run.
pub(super) struct UnderWay {
    reading: Arc<Reading>,
    /// What is expected, bytes.
    bytes: u64,
    period_s: f64,
    /// What is wanted less is not enough.
    is_refused: bool,
    is_measured: bool,
}

/// The number of the run that this is the reading of.
pub(super) fn run_of(reading: u64) -> Option<u64> {
    (reading & RUN != 0).then_some(reading & !RUN)
}

impl Ahead {
    /// A file was opened by who does not write it.
    pub(super) fn opened_in_run(&self, dir: &Arc<Dir>, name: &[u8], bytes: u64, at: Instant) {
        let at_s = at.saturating_duration_since(self.begun).as_secs_f64();
        let mut learned = self.learned.lock();
        learned.runs.opened(dir.key, name, bytes, at_s);
        learned.dirs.entry(dir.key).or_insert_with(|| dir.clone());
    }

    /// Learns from opens of what is here. What is not on the PFS as it is here is its writer's own.
    pub(super) fn learn_from_here(&self) {
        for (object, at) in self.buffer.guesses().take_here() {
            let Some(file) = self.buffer.file(object) else {
                continue;
            };
            let state = file.lock();
            if !state.residency.clean {
                continue;
            }
            let size = state.meta.size;
            let Some((dir, name)) = state.names.first().cloned() else {
                continue;
            };
            drop(state);
            self.opened_in_run(&dir, &name, size, at);
        }
    }

    /// Brings in what the next runs read, and gives up what nobody comes for.
    pub(super) fn tend_runs(self: &Arc<Self>, now_s: f64) {
        self.measure_runs();
        let assumed = self.plan.engine().bandwidths();
        let steps = {
            let mut learned = self.learned.lock();
            if let Some(assumed) = assumed {
                learned.runs.assume(assumed.br_max_bytes_per_s);
            }
            let steps = learned.runs.tend(now_s);
            let Learned { runs, dirs } = &mut *learned;
            if dirs.len() > runs.size().1 {
                dirs.retain(|key, _| runs.knows(*key));
            }
            steps
        };
        for step in steps {
            match step {
                Step::Bring {
                    id,
                    folder,
                    names,
                    bytes,
                    period_s,
                } => self.begin_run((id, folder), names, (bytes, period_s)),
                Step::End { id } => self.end_run(id),
            }
        }
    }

    fn begin_run(
        self: &Arc<Self>,
        (id, folder): (u64, DirKey),
        names: Vec<Vec<u8>>,
        (bytes, period_s): (u64, f64),
    ) {
        let Some(dir) = self.learned.lock().dirs.get(&folder).cloned() else {
            return;
        };
        tracing::debug!("{dir:?}: {} files before their next run", names.len());
        let item = |name| Item {
            dir: dir.clone(),
            name,
        };
        let items = names.into_iter().map(item).collect();
        let reading = self.begin(id | RUN, Reason::Run, (items, Vec::new()));
        let under_way = UnderWay {
            reading,
            bytes,
            period_s,
            is_refused: false,
            is_measured: false,
        };
        self.under_way.lock().insert(id, under_way);
    }

    fn end_run(&self, id: u64) {
        let ended = self.under_way.lock().remove(&id);
        let is_gone = |run: &UnderWay| run.reading.reader.lock().is_gone();
        if let Some(run) = ended.filter(is_gone)
            && let Some(item) = run.reading.items.first()
            && self.is_gone(&item.dir)
        {
            self.learned.lock().runs.forget(item.dir.key);
        }
        self.end(id | RUN);
        self.give_up(id);
    }

    /// Whether a folder is gone, or another one has its name. Its files may be gone for a moment:
    /// they are written anew, or somebody else brings them in.
    fn is_gone(&self, dir: &Dir) -> bool {
        if self.base.health().is_silent() {
            return false;
        }
        let Some((parent, name)) = dir.place() else {
            return false;
        };
        match self.base.ns().lookup(parent.ino, &name) {
            Ok(found) => found.attr.ino != dir.ino,
            Err(error) => {
                tracing::debug!("{dir:?} of a run: {error}");
                error.errno() == Errno::ENOENT
            }
        }
    }

    /// What was brought in for a run, and nobody has read, is in vain and leaves first; but for
    /// what somebody has ordered, or another run is to find here.
    fn give_up(&self, id: u64) {
        let (objects, bytes) = self.buffer.guesses().give_up(id | RUN);
        let is_expected = |object| {
            let watchers = self.buffer.guesses().watchers(object);
            let readings = self.readings.lock();
            let mut watching = watchers.iter().filter_map(|id| readings.get(id));
            watching.any(|reading| reading.is_list() || run_of(reading.id).is_some())
        };
        for object in objects {
            if !is_expected(object) {
                self.catalog.apps().is_unwanted(object);
            }
        }
        self.learned.lock().runs.wasted(bytes);
    }

    /// How fast they came in.
    fn measure_runs(&self) {
        let mut measured = Vec::new();
        for under_way in self.under_way.lock().values_mut() {
            // The last ones may be on their way still when all are looked after.
            if !under_way.is_measured && under_way.reading.is_settled() {
                under_way.is_measured = true;
                let bytes = under_way.reading.bytes.load(Ordering::Relaxed);
                measured.push((bytes, under_way.reading.busy.lock().sum_s()));
            }
        }
        let mut learned = self.learned.lock();
        for (bytes, took_s) in measured {
            learned.runs.staged(bytes, took_s);
        }
    }

    /// Where there is no free room, what is wanted less leaves: room for the file of a run, and for
    /// those after it that may come.
    pub(super) fn make_room_for_run(
        &self,
        reading: &Reading,
        item: &Item,
        size: SizeOnPfs,
    ) -> RunRoomMade {
        let Some(id) = run_of(reading.id) else {
            return RunRoomMade::No;
        };
        // Who looks at all files does so for all threads.
        let _one = self.making_room.lock();
        let known = {
            let under_way = self.under_way.lock();
            let known = under_way.get(&id);
            known.map(|run| (run.bytes, run.period_s, run.is_refused))
        };
        let Some((bytes, period_s, is_refused)) = known else {
            return RunRoomMade::No;
        };
        let left = bytes.saturating_sub(reading.bytes.load(Ordering::Relaxed));
        let made = self.files.make_room_for_run(&RunFile {
            path: &item.dir.path_of(&item.name),
            owners: size.owners,
            bytes: size.bytes,
            wanted_bytes: left.min(self.share_left_bytes()),
            period_s,
            may_drop: !is_refused,
        });
        if made == RunRoomMade::No
            && let Some(run) = self.under_way.lock().get_mut(&id)
        {
            run.is_refused = true;
        }
        made
    }

    /// What guesses may still take, bytes.
    fn share_left_bytes(&self) -> u64 {
        let (_, capacity) = self.buffer.ledger().dirty_and_capacity();
        let most = (self.share() * capacity as f64) as u64;
        most.saturating_sub(self.buffer.guesses().unread_bytes())
    }

    /// A file has come in.
    pub(super) fn brought_for_run(&self, reading: u64, bytes: u64) {
        let Some(id) = run_of(reading) else {
            return;
        };
        self.learned.lock().runs.brought(id, bytes);
        // The run may have ended meanwhile.
        if !self.readings.lock().contains_key(&reading) {
            self.give_up(id);
        }
    }

    /// A file of it was here.
    pub(super) fn found_for_run(&self, reading: u64, object: ObjectId) {
        let file = run_of(reading).zip(self.buffer.file(object));
        if let Some((id, file)) = file {
            let size = file.lock().meta.size;
            self.learned.lock().runs.found(id, size);
        }
    }

    /// What was brought in for a run was read; whether it was for one.
    pub(super) fn hit_of_run(&self, reading: u64, bytes: u64) -> bool {
        let id = run_of(reading);
        if let Some(id) = id {
            self.learned.lock().runs.hit(id, bytes);
        }
        id.is_some()
    }

    /// It has left before anybody read it; whether it was for a run.
    pub(super) fn waste_of_run(&self, reading: u64, bytes: u64) -> bool {
        let is_run = run_of(reading).is_some();
        if is_run {
            self.learned.lock().runs.wasted(bytes);
        }
        is_run
    }

    /// What is known of runs, for `status`.
    pub fn runs_status(&self) -> RunsStatus {
        self.runs_status_at(self.now_s())
    }

    fn runs_status_at(&self, now_s: f64) -> RunsStatus {
        let learned = self.learned.lock();
        let worth = learned.runs.worth();
        let expected = learned.runs.expected(now_s);
        let shown = expected.iter().take(SHOWN_MAX).map(|run| {
            let dir = learned.dirs.get(&run.folder);
            RunExpected {
                path: dir.map(|dir| dir.path()).unwrap_or_default(),
                period_ms: (run.period_s * 1000.0) as u64,
                next_in_ms: (run.next_in_s * 1000.0) as i64,
                bytes: run.bytes,
                here_bytes: run.here_bytes,
            }
        });
        RunsStatus {
            expected: expected.len() as u64,
            guessed_bytes: worth.guessed_bytes,
            hit_bytes: worth.hit_bytes,
            wasted_bytes: worth.wasted_bytes,
            next: shown.collect(),
        }
    }
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;
