//! What is learned from what programs do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay_namespace::{File, Namespace, NsError, in_record};
use forebay_policy::forecast::Learner;
use forebay_policy::history::Key;
use forebay_policy::mtbf::{PRIOR_MTBF_S, ReadPurpose, RestartDetector, Writers, prior_s};
use forebay_tiers::{FileObject, Object};
use forebay_types::{Cred, Handle, ObjectId, OpenFlags, Process};
use parking_lot::Mutex;

use super::{
    BYSTANDER_S, COUNTED_SPARE, Counted, Inner, Learning, NAME, Runs, SAVE_EVERY_S, START_SLACK_S,
    STORED_MAX, Stored, Writer,
};
use crate::base::settings::Settings;
use crate::buffer::target::Target;
use crate::plan::Plan;

/// What is read.
enum Read {
    /// A file of the burst buffer.
    Here(Arc<File>),
    /// One that is on the PFS only, with its inode number there and what it is put on record as.
    OnPfs(Arc<FileObject>, u64, Key),
}

impl Read {
    /// When it was last changed, in seconds since 1970.
    fn changed_s(&self) -> Option<f64> {
        let changed = match self {
            Read::Here(file) => {
                let state = file.lock();
                state.meta.mtime.max(state.meta.ctime)
            }
            // Its time of change is that of its drain.
            Read::OnPfs(file, ..) => file.stat().ok()?.mtime,
        };
        Some(changed.sec as f64 + f64::from(changed.nsec) / 1e9)
    }

    /// Its inode number.
    fn ino(&self) -> u64 {
        match self {
            Read::Here(file) => file.ino.0,
            Read::OnPfs(_, ino, _) => *ino,
        }
    }

    /// Its size.
    fn size_bytes(&self) -> Option<u64> {
        match self {
            Read::Here(file) => Some(file.lock().meta.size),
            Read::OnPfs(file, ..) => Some(file.stat().ok()?.size),
        }
    }
}

impl Learning {
    /// Continues with what was stored.
    pub fn open(ns: &Namespace, settings: &Settings, origin: Instant) -> Result<Learning, String> {
        let stored = match ns.get_fact(NAME).map_err(|e| e.to_string())? {
            Some(bytes) => match postcard::from_bytes::<Stored>(&bytes) {
                Ok(stored) => Some(stored),
                Err(error) => {
                    tracing::warn!("what was learned cannot be read, beginning anew: {error}");
                    None
                }
            },
            None => None,
        };
        let (learner, applications) = match stored {
            Some(stored) => (Some(stored.learner), stored.applications),
            None => (None, Vec::new()),
        };
        let period_s = settings.engine.period.as_secs_f64();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Learning {
            inner: Mutex::new(Inner {
                learner: Learner::restored(learner, period_s).map_err(|e| e.to_string())?,
                counted: HashMap::new(),
                runs: HashMap::new(),
                stored: applications
                    .into_iter()
                    .filter(|(_, mtbf, last)| mtbf.is_finite() && last.is_finite())
                    .map(|(name, mtbf, last)| (name, (mtbf, last)))
                    .collect(),
                changed: false,
                saved_s: 0.0,
                unsaved: false,
                restarts: 0,
                hits: 0,
            }),
            closed: Mutex::default(),
            origin,
            origin_s: since.map_or(0.0, |s| s.as_secs_f64()) - origin.elapsed().as_secs_f64(),
            verify_window_s: settings.engine.verify_window.as_secs_f64(),
            prior_s: settings.engine.mtbf.map(|d| d.as_secs_f64()),
        })
    }

    /// Seconds since 1970 of a clock that does not jump while the server runs.
    fn now_s(&self) -> f64 {
        self.origin_s + self.origin.elapsed().as_secs_f64()
    }

    /// A file of the burst buffer was closed after being written.
    pub fn closed(&self, object: ObjectId, bytes: u64) {
        self.closed.lock().push((object, bytes));
    }

    /// DWSF, and DWPP where it is known.
    pub fn figures(&self) -> (u64, Option<u64>) {
        let now_s = self.now_s();
        let mut inner = self.inner.lock();
        let dwsf = inner.learner.whole().dwsf_bytes(now_s);
        let dwpp = inner.learner.whole().dwpp_bytes(now_s);
        (dwsf, dwpp)
    }

    /// DWSF.
    pub fn dwsf_bytes(&self) -> u64 {
        let now_s = self.now_s();
        self.inner.lock().learner.whole().dwsf_bytes(now_s)
    }

    /// DWSF and DWPP of one application.
    pub fn application_figures(&self, name: &str) -> (u64, Option<u64>) {
        let now_s = self.now_s();
        match self.inner.lock().learner.application(&name.to_string()) {
            Some(meter) => (meter.dwsf_bytes(now_s), meter.dwpp_bytes(now_s)),
            None => (0, None),
        }
    }

    /// Restarts counted, and those of them that found their data in the burst buffer.
    pub fn restarts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.restarts, inner.hits)
    }

    /// Puts what was learned on record.
    pub fn save(&self, plan: &Plan) -> Result<(), NsError> {
        let bytes = {
            let mut inner = self.inner.lock();
            inner.saved_s = self.now_s();
            let mut applications: Vec<_> = inner
                .stored
                .iter()
                .map(|(name, (mtbf, last))| (name.clone(), *mtbf, *last))
                .collect();
            for (number, runs) in &inner.runs {
                let last = runs.detector.last_restart_s();
                if let (Some(name), Some(last)) = (plan.catalog.apps().name(*number), last) {
                    applications.push((name, runs.detector.mtbf_s(), last));
                }
            }
            let stored = Stored::of(&inner.learner, applications);
            postcard::to_stdvec(&stored).map_err(in_record("what was learned"))?
        };
        plan.ns.put_fact(NAME, &bytes)?;
        let mut inner = self.inner.lock();
        inner.changed = false;
        inner.unsaved = false;
        Ok(())
    }

    /// What is known of applications that are not remembered any more is kept by name, until they
    /// are seen again.
    fn forget(&self, forgotten: Vec<(u32, String)>) {
        if forgotten.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        for (number, name) in forgotten {
            if let Some(runs) = inner.runs.remove(&number)
                && let Some(last_s) = runs.detector.last_restart_s()
            {
                inner.stored.insert(name, (runs.detector.mtbf_s(), last_s));
            }
        }
        let excess = inner.stored.len().saturating_sub(STORED_MAX);
        if excess > 0 {
            let mut last: Vec<f64> = inner.stored.values().map(|(_, last)| *last).collect();
            last.sort_by(f64::total_cmp);
            let since_s = last[excess];
            inner.stored.retain(|_, (_, last)| *last >= since_s);
        }
    }
}

impl Plan {
    /// Counts what was written since the last look, and saves now and then.
    pub fn learn(&self) {
        let learning = &self.learning;
        learning.forget(self.catalog.apps().take_forgotten());
        let now_s = learning.now_s();
        let mut open_now = Vec::new();
        self.buffer.opens().each(|open| {
            if !open.is_written() {
                return;
            }
            // Also what went on to the PFS for want of room: it is what applications write that is
            // predicted.
            if let Target::Buffer { file, .. } = &*open.target.read() {
                open_now.push((file.object, self.buffer.ledger().used_bytes(file.object)));
            }
        });
        let closed = std::mem::take(&mut *learning.closed.lock());
        let mut written = Vec::new();
        {
            let mut inner = learning.inner.lock();
            if inner.counted.len() > 2 * open_now.len() + COUNTED_SPARE {
                // Those that were removed while they were open.
                let open: HashSet<ObjectId> = open_now.iter().map(|(o, _)| *o).collect();
                inner.counted.retain(|object, _| open.contains(object));
            }
            for (object, used_bytes) in open_now {
                let counted = inner.counted.entry(object).or_insert(Counted {
                    base_bytes: used_bytes,
                    bytes: 0,
                });
                let grown = used_bytes.saturating_sub(counted.base_bytes);
                if grown > counted.bytes {
                    written.push((object, grown - counted.bytes));
                    counted.bytes = grown;
                }
            }
            for (object, bytes) in closed {
                // All of a file that was changed has to be demoted, so all of it counts.
                let counted = inner.counted.remove(&object).map_or(0, |c| c.bytes);
                written.push((object, bytes.saturating_sub(counted)));
            }
        }
        for (object, bytes) in written {
            let name = self
                .catalog
                .apps()
                .of(object)
                .and_then(|(n, _)| self.catalog.apps().name(n));
            // Removed meanwhile: it will never be demoted.
            let Some(name) = name else { continue };
            let mut inner = learning.inner.lock();
            inner.learner.on_write(&name, bytes, now_s);
            inner.changed = true;
        }
        let due = {
            let inner = learning.inner.lock();
            inner.changed && now_s - inner.saved_s >= SAVE_EVERY_S
        };
        if due
            && let Err(error) = learning.save(self)
            && !std::mem::replace(&mut learning.inner.lock().unsaved, true)
        {
            tracing::warn!("what was learned is not kept until this is mended: {error}");
        }
    }

    /// A program has opened a file: writers are remembered, and the first read of a new run is a
    /// restart. Costs a few lookups, and a question to the kernel only where the application was
    /// written since its last restart.
    pub fn note_opened(&self, handle: Handle, flags: OpenFlags, cred: &Cred) {
        let Ok((open, _)) = self.buffer.opens().file(handle) else {
            return;
        };
        let (application, read) = match &*open.target.read() {
            Target::Buffer { file, .. } => match self.catalog.apps().of(file.object) {
                Some((number, _)) => (number, Read::Here(file.clone())),
                None => return,
            },
            Target::Pfs { .. } if flags.writes() => return,
            Target::Pfs { node, file, .. } => {
                let path = node.parent.path_of(&node.name);
                let identity = self.catalog.rules().identify(&path);
                match self.catalog.apps().number(&identity.application) {
                    Some(number) => {
                        let version = identity.version.filter(|_| identity.is_certain);
                        let key = Key::new(identity.application, version, cred.uid);
                        (number, Read::OnPfs(file.clone(), node.id.ino, key))
                    }
                    None => return,
                }
            }
        };
        if flags.writes() {
            if let Read::Here(file) = &read {
                let owner = file.lock().meta.uid;
                self.catalog.note_writer(file.object, owner);
            }
            self.note_writer(application, cred.process, &read);
        } else {
            self.note_reader(application, cred, &read);
            self.note_read(application, cred.uid, &read);
        }
    }

    /// What a restart reads is put on record.
    fn note_read(&self, application: u32, uid: u32, read: &Read) {
        let history = self.catalog.history();
        if !history.has_restarts() {
            return;
        }
        let Some(application) = self.catalog.apps().name(application) else {
            return;
        };
        let key = Key::new(application, None, uid);
        // The PFS is asked only about what counts.
        if history.would_count(&key, read.ino())
            && let Some(bytes) = read.size_bytes()
        {
            let file = (read.ino(), bytes);
            history.read(&key, file, matches!(read, Read::Here(_)));
        }
    }

    fn note_writer(&self, application: u32, process: Process, written: &Read) {
        let now_s = self.learning.now_s();
        let mut inner = self.learning.inner.lock();
        if let Some(runs) = inner.runs.get_mut(&application) {
            runs.writer =
                runs.has_written(process, now_s, || self.base.processes().opener(process));
            runs.written_s = now_s;
            runs.detector.on_write(runs.writer, now_s);
            return;
        }
        let name = self.catalog.apps().name(application).unwrap_or_default();
        let mut detector = match inner.stored.remove(&name) {
            Some((mtbf_s, last_s)) => {
                RestartDetector::restored(mtbf_s, last_s, self.learning.verify_window_s)
            }
            None => {
                let path = match written {
                    Read::Here(file) => file.path(),
                    Read::OnPfs(..) => Vec::new(),
                };
                RestartDetector::new(
                    self.prior_mtbf_s(&path, process),
                    self.learning.verify_window_s,
                )
            }
        };
        let writer = self.base.processes().opener(process);
        detector.on_write(writer, now_s);
        self.catalog.apps().set_mtbf(application, detector.mtbf_s());
        let runs = Runs {
            detector,
            writers: vec![Writer {
                process,
                opener: writer,
                asked_s: now_s,
            }],
            writer,
            written_s: now_s,
            bystander: None,
        };
        inner.runs.insert(application, runs);
        inner.changed = true;
    }

    /// An application is about to create a file: what is known of its MTBF counts from the first
    /// one on.
    pub fn introduce(&self, application: &str, path: &[u8], process: Process) {
        if self.catalog.apps().number(application).is_some() {
            return;
        }
        let stored = self.learning.inner.lock().stored.get(application).copied();
        let mtbf_s = match stored {
            Some((mtbf_s, _)) => mtbf_s,
            None => self.prior_mtbf_s(path, process),
        };
        let number = self.catalog.apps().number_or_new(application);
        self.catalog.apps().set_mtbf(number, mtbf_s);
    }

    /// What is known before the first restart: the rule's or the configured MTBF, else by the
    /// number of nodes of the job.
    fn prior_mtbf_s(&self, path: &[u8], process: Process) -> f64 {
        if let Some(mtbf_s) = self.catalog.rules().mtbf_s(path) {
            return mtbf_s;
        }
        match self.base.processes().nodes_of(process) {
            Some(nodes) => prior_s(nodes),
            None => self.learning.prior_s.unwrap_or(PRIOR_MTBF_S),
        }
    }

    /// Since the start nobody has written it, and its next read may be a restart.
    fn are_writers_unknown(&self, application: u32) -> bool {
        let inner = self.learning.inner.lock();
        let runs = inner.runs.get(&application);
        runs.is_none_or(|runs| runs.writers.is_empty() && runs.detector.is_armed())
    }

    /// Goes on with what an earlier run has learned of an application, if it has.
    fn restore_runs(&self, inner: &mut Inner, application: u32) {
        let name = self.catalog.apps().name(application).unwrap_or_default();
        let Some((mtbf_s, last_s)) = inner.stored.remove(&name) else {
            return;
        };
        let window_s = self.learning.verify_window_s;
        let runs = Runs {
            detector: RestartDetector::restored(mtbf_s, last_s, window_s),
            writers: Vec::new(),
            writer: self.base.processes().opener(Process::default()),
            written_s: last_s,
            bystander: None,
        };
        self.catalog.apps().set_mtbf(application, mtbf_s);
        inner.runs.insert(application, runs);
    }

    fn note_reader(&self, application: u32, cred: &Cred, read: &Read) {
        let process = cred.process;
        let now_s = self.learning.now_s();
        // The PFS may take its time to answer, and is asked before others wait for this.
        let changed_s = match self.are_writers_unknown(application) {
            true => read.changed_s(),
            false => None,
        };
        let mut inner = self.learning.inner.lock();
        if !inner.runs.contains_key(&application) {
            self.restore_runs(&mut inner, application);
        }
        let Some(runs) = inner.runs.get_mut(&application) else {
            return;
        };
        if !runs.detector.is_armed() || runs.writers.iter().any(|writer| writer.process == process)
        {
            return;
        }
        if runs.writers.is_empty()
            && changed_s.is_some_and(|at_s| !runs.detector.may_restart_from(at_s, now_s))
        {
            // Written before the start: by whom is not known.
            return;
        }
        if runs
            .bystander
            .is_some_and(|(p, at_s)| p == process && now_s - at_s < BYSTANDER_S)
        {
            return;
        }
        runs.bystander = Some((process, now_s));
        let since_write_s = now_s - runs.written_s;
        let processes = self.base.processes();
        if processes
            .age_s(process)
            .is_none_or(|age| age > since_write_s + START_SLACK_S)
        {
            // It was there when the data was written, or nobody knows who it is.
            return;
        }
        let is_there = |writer: &Writer| {
            let age_s = processes.age_s(writer.process);
            age_s.is_some_and(|age| age + START_SLACK_S > since_write_s)
        };
        let writers = match runs.writers.iter().any(is_there) {
            true => Writers::Running,
            false => Writers::Gone,
        };
        let restart = runs.detector.on_read_open(
            processes.opener(process),
            ReadPurpose::User,
            writers,
            now_s,
        );
        if let Some(mtbf_s) = restart {
            inner.restarts += 1;
            inner.hits += u64::from(matches!(read, Read::Here(_)));
            inner.changed = true;
            drop(inner);
            self.catalog.apps().set_mtbf(application, mtbf_s);
            let key = match read {
                Read::Here(file) => self.catalog.apps().recorded_as(file.object, cred.uid),
                Read::OnPfs(_, _, key) => Some(key.clone()),
            };
            if let Some(key) = key {
                self.catalog.history().restarted(&key);
            }
        }
    }
}
