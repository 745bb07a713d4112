//! What is learned while serving: DWSF and DWPP, restarts and MTBF. It is kept over restarts of the server.

use std::collections::{HashMap, HashSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay_namespace::{Namespace, NsError};
use forebay_policy::forecast::Learner;
use forebay_policy::mtbf::{Opener, PRIOR_MTBF_S, ReadPurpose, RestartDetector, Writers, prior_s};
use forebay_types::{Cred, Handle, ObjectId, OpenFlags, ProcStat};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::buffer::opens::{OpenFile, Target};
use crate::core::Core;
use crate::settings::Settings;

const NAME: &str = "learning";
/// What was learned is on record after so long at the latest.
const SAVE_EVERY_S: f64 = 10.0;
/// Writers of an application that are remembered: those that came last.
const WRITERS_MAX: usize = 16;
/// A process that reads many files is asked about so often at most.
const BYSTANDER_S: f64 = 1.0;
/// Counts of files that are not open any more are thrown away from so many on.
const COUNTED_SPARE: usize = 1024;
/// A process that started so long before the last write was there when it was written; its start is known to 10 ms.
const START_SLACK_S: f64 = 0.05;

/// What was learned is one value of the store: so much of it is kept of what applications bring, and as much of their restarts.
const KEPT_BYTES: usize = forebay_kv::MAX_VALUE_BYTES / 2 - 1024;
/// What is kept of an application takes so much at most, without its name.
const KEPT_ENTRY_BYTES: usize = 96;
/// Restarts of applications that are not here are remembered of so many.
const STORED_MAX: usize = 2048;

#[derive(Serialize, Deserialize)]
struct Stored {
    learner: Learner<String>,
    /// Name, MTBF and time of the last restart in seconds since 1970.
    applications: Vec<(String, f64, f64)>,
}

impl Stored {
    /// What there is room for: those applications that bring most in a period, and the last restarts.
    fn of(learner: &Learner<String>, mut applications: Vec<(String, f64, f64)>) -> Stored {
        let room = || {
            let mut left_bytes = KEPT_BYTES;
            move |name: &String| {
                let bytes = name.len() + KEPT_ENTRY_BYTES;
                let fits = bytes <= left_bytes;
                left_bytes = left_bytes.saturating_sub(bytes);
                fits
            }
        };
        applications.sort_by(|a, b| b.2.total_cmp(&a.2));
        let mut fits = room();
        let kept = applications.into_iter().take_while(|a| fits(&a.0));
        Stored {
            applications: kept.collect(),
            learner: learner.worthiest(room()),
        }
    }
}

struct Runs {
    detector: RestartDetector,
    /// Process ids.
    writers: Vec<u32>,
    /// Who wrote last.
    writer: Opener,
    written_s: f64,
    /// The process whose read was found to be no restart, and when: it need not be asked about for a while.
    bystander: Option<(u32, f64)>,
}

struct Inner {
    learner: Learner<String>,
    /// Bytes of files being written that were counted.
    counted: HashMap<ObjectId, Counted>,
    runs: HashMap<u32, Runs>,
    /// By name, until the application is seen again.
    stored: HashMap<String, (f64, f64)>,
    changed: bool,
    /// When it was last saved, or tried to be.
    saved_s: f64,
    /// That failed, and was told.
    unsaved: bool,
    restarts: u64,
    hits: u64,
}

#[derive(Clone, Copy)]
struct Counted {
    /// When first seen open.
    base_bytes: u64,
    bytes: u64,
}

/// See the module.
pub struct Learning {
    inner: Mutex<Inner>,
    /// Files that were closed after being written, with the bytes that they occupy.
    closed: Mutex<Vec<(ObjectId, u64)>>,
    origin: Instant,
    /// Of `origin`, in seconds since 1970.
    origin_s: f64,
    verify_window_s: f64,
    prior_s: Option<f64>,
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
    pub fn save(&self, core: &Core) -> Result<(), NsError> {
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
                if let (Some(name), Some(last)) = (core.apps.name(*number), last) {
                    applications.push((name, runs.detector.mtbf_s(), last));
                }
            }
            let stored = Stored::of(&inner.learner, applications);
            postcard::to_stdvec(&stored).map_err(|e| NsError::Record(e.to_string()))?
        };
        core.ns.put_fact(NAME, &bytes)?;
        let mut inner = self.inner.lock();
        inner.changed = false;
        inner.unsaved = false;
        Ok(())
    }

    /// What is known of applications that are not remembered any more is kept by name, until they are seen again.
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

impl Core {
    /// Counts what was written since the last look, and saves now and then.
    pub fn learn(&self) {
        let learning = &self.learning;
        learning.forget(self.apps.take_forgotten());
        let now_s = learning.now_s();
        let mut open_now = Vec::new();
        self.opens.each(|open| {
            if !open.is_written() {
                return;
            }
            // Also what went on to the PFS for want of room: it is what applications write that is predicted.
            if let Target::Buffer { file, .. } = &*open.target.read() {
                open_now.push((file.object, self.ledger.used_bytes(file.object)));
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
            let name = self.apps.of(object).and_then(|(n, _)| self.apps.name(n));
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

    /// A program has opened a file: writers are remembered, and the first read of a new run is a restart. Costs a few lookups,
    /// and a question to the kernel only where the application was written since its last restart.
    pub fn note_opened(&self, handle: Handle, flags: OpenFlags, cred: &Cred) {
        let Ok((open, _)) = self.opens.file(handle) else {
            return;
        };
        let (application, is_hit) = match &*open.target.read() {
            Target::Buffer { file, .. } => match self.apps.of(file.object) {
                Some((number, _)) => (number, true),
                None => return,
            },
            Target::Pfs { .. } if flags.writes() => return,
            Target::Pfs { node, .. } => {
                let path = node.parent.path_of(&node.name);
                let identity = self.rules.identify(&path);
                match self.apps.number(&identity.application) {
                    Some(number) => (number, false),
                    None => return,
                }
            }
        };
        if flags.writes() {
            self.note_writer(application, cred.pid, &open);
        } else {
            self.note_reader(application, cred.pid, is_hit);
        }
    }

    fn note_writer(&self, application: u32, pid: u32, open: &OpenFile) {
        let now_s = self.learning.now_s();
        let mut inner = self.learning.inner.lock();
        if let Some(runs) = inner.runs.get_mut(&application) {
            if runs.writers.last() != Some(&pid) {
                runs.writers.retain(|w| *w != pid);
                if runs.writers.len() >= WRITERS_MAX {
                    runs.writers.remove(0);
                }
                runs.writers.push(pid);
                runs.writer = opener(pid);
            }
            runs.written_s = now_s;
            runs.detector.on_write(runs.writer, now_s);
            return;
        }
        let name = self.apps.name(application).unwrap_or_default();
        let mut detector = match inner.stored.remove(&name) {
            Some((mtbf_s, last_s)) => {
                RestartDetector::restored(mtbf_s, last_s, self.learning.verify_window_s)
            }
            None => {
                let path = match &*open.target.read() {
                    Target::Buffer { file, .. } => file.path(),
                    Target::Pfs { .. } => Vec::new(),
                };
                RestartDetector::new(self.prior_mtbf_s(&path, pid), self.learning.verify_window_s)
            }
        };
        let writer = opener(pid);
        detector.on_write(writer, now_s);
        self.apps.set_mtbf(application, detector.mtbf_s());
        let runs = Runs {
            detector,
            writers: vec![pid],
            writer,
            written_s: now_s,
            bystander: None,
        };
        inner.runs.insert(application, runs);
        inner.changed = true;
    }

    /// An application is about to create a file: what is known of its MTBF counts from the first one on.
    pub fn introduce(&self, application: &str, path: &[u8], pid: u32) {
        if self.apps.number(application).is_some() {
            return;
        }
        let stored = self.learning.inner.lock().stored.get(application).copied();
        let mtbf_s = match stored {
            Some((mtbf_s, _)) => mtbf_s,
            None => self.prior_mtbf_s(path, pid),
        };
        let number = self.apps.number_or_new(application);
        self.apps.set_mtbf(number, mtbf_s);
    }

    /// What is known before the first restart: the rule's or the configured MTBF, else by the number of nodes of the job.
    fn prior_mtbf_s(&self, path: &[u8], pid: u32) -> f64 {
        if let Some(mtbf_s) = self.rules.mtbf_s(path) {
            return mtbf_s;
        }
        match nodes_of(pid) {
            Some(nodes) => prior_s(nodes),
            None => self.learning.prior_s.unwrap_or(PRIOR_MTBF_S),
        }
    }

    fn note_reader(&self, application: u32, pid: u32, is_hit: bool) {
        let now_s = self.learning.now_s();
        let mut inner = self.learning.inner.lock();
        if !inner.runs.contains_key(&application) {
            let name = self.apps.name(application).unwrap_or_default();
            let Some((mtbf_s, last_s)) = inner.stored.remove(&name) else {
                return;
            };
            let window_s = self.learning.verify_window_s;
            let runs = Runs {
                detector: RestartDetector::restored(mtbf_s, last_s, window_s),
                writers: Vec::new(),
                writer: opener(0),
                written_s: last_s,
                bystander: None,
            };
            self.apps.set_mtbf(application, mtbf_s);
            inner.runs.insert(application, runs);
        }
        let Some(runs) = inner.runs.get_mut(&application) else {
            return;
        };
        if !runs.detector.is_armed() || runs.writers.contains(&pid) {
            return;
        }
        if runs
            .bystander
            .is_some_and(|(p, at_s)| p == pid && now_s - at_s < BYSTANDER_S)
        {
            return;
        }
        runs.bystander = Some((pid, now_s));
        let since_write_s = now_s - runs.written_s;
        if age_s(pid).is_none_or(|age| age > since_write_s + START_SLACK_S) {
            // It was there when the data was written, or nobody knows who it is.
            return;
        }
        let is_writer = |pid: &u32| age_s(*pid).is_some_and(|a| a + START_SLACK_S > since_write_s);
        let writers = match runs.writers.iter().any(is_writer) {
            true => Writers::Running,
            false => Writers::Gone,
        };
        let restart = runs
            .detector
            .on_read_open(opener(pid), ReadPurpose::User, writers, now_s);
        if let Some(mtbf_s) = restart {
            inner.restarts += 1;
            inner.hits += u64::from(is_hit);
            inner.changed = true;
            drop(inner);
            self.apps.set_mtbf(application, mtbf_s);
        }
    }
}

/// A process and its session. A number is used again only after many others, far later than what is compared here.
fn opener(pid: u32) -> Opener {
    let process = u64::from(pid);
    let session = stat_of(pid).map_or(process, |stat| family(&stat, process));
    Opener { process, session }
}

/// For how long a process has been running; `None` where it does not, or cannot be seen.
fn age_s(pid: u32) -> Option<f64> {
    let started_ticks = stat_of(pid).filter(|stat| !stat.is_dead())?.started_ticks as f64;
    let per_s = rustix::param::clock_ticks_per_second() as f64;
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Some(up.tv_sec as f64 + up.tv_nsec as f64 / 1e9 - started_ticks / per_s)
}

/// What the kernel tells of a process. `None` where it is not there, or of a PID namespace that is not seen from
/// here (`pid` is 0 then).
fn stat_of(pid: u32) -> Option<ProcStat> {
    if pid == 0 {
        return None;
    }
    // Bytes: the name in it need not be UTF-8, and the kernel cuts a long one anywhere.
    ProcStat::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The session of a process, as far as it can be seen: in a container it may be one of outside, which is shown as 0.
/// The process group stands for it then, and the process itself where that is of outside too.
fn family(stat: &ProcStat, process: u64) -> u64 {
    let seen = [stat.session, stat.group]
        .into_iter()
        .find(|number| *number > 0);
    seen.unwrap_or(process)
}

/// Nodes of the job that a process belongs to, by its environment.
fn nodes_of(pid: u32) -> Option<u32> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let names: [&[u8]; 3] = [b"SLURM_JOB_NUM_NODES=", b"SLURM_NNODES=", b"PBS_NUM_NODES="];
    let value = environment
        .split(|b| *b == 0)
        .find_map(|entry| names.iter().find_map(|name| entry.strip_prefix(*name)))?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_fits_in_one_value_however_much_there_is() {
        for name_bytes in [8, 60, 1000] {
            let mut learner = Learner::new(60.0).expect("valid");
            let mut applications = Vec::new();
            for n in 0..4096u64 {
                let name = format!("{n:0name_bytes$}");
                for period in 0..3 {
                    learner.on_write(&name, u64::MAX >> 12, 1e9 + 100.0 * f64::from(period));
                }
                applications.push((name, 1e5, n as f64));
            }
            learner.on_write(&"large".to_string(), u64::MAX, 1e9);
            let stored = Stored::of(&learner, applications);
            assert_eq!(stored.applications[0].2, 4095.0, "the last restart");
            let bytes = postcard::to_stdvec(&stored).expect("encodes");
            let limit = forebay_kv::MAX_VALUE_BYTES;
            assert!(bytes.len() <= limit, "{name_bytes}: {}", bytes.len());
            assert!(bytes.len() > limit / 3, "{name_bytes}: {}", bytes.len());
            let mut kept: Stored = postcard::from_bytes(&bytes).expect("decodes");
            assert!(kept.learner.application(&"large".to_string()).is_some());
        }
    }

    #[test]
    fn ages_of_processes() {
        let own = age_s(std::process::id()).expect("runs");
        assert!((-1.0..1e6).contains(&own), "{own}");
        assert_eq!(age_s(0), None);
        let mut child = std::process::Command::new("true").spawn().expect("spawns");
        let pid = child.id();
        child.wait().expect("ends");
        assert_eq!(age_s(pid), None);
    }

    #[test]
    fn a_process_has_an_age_whatever_its_name() {
        let folder = tempfile::tempdir().expect("tempdir");
        // The kernel keeps 15 bytes of the name: half of the last letter.
        let program = folder.path().join("simulations-größe");
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("symlink");
        let mut child = std::process::Command::new(&program)
            .arg("600")
            .spawn()
            .expect("spawns");
        let age = age_s(child.id());
        child.kill().expect("kill");
        child.wait().expect("ends");
        assert!(age.is_some());
    }

    #[test]
    fn sessions_of_processes() {
        let stat = |group, session| ProcStat {
            state: b'S',
            group,
            session,
            started_ticks: 4242,
        };
        assert_eq!(family(&stat(6, 5), 7), 5);
        // A session of outside a container is 0 there: its group tells the runs apart, then the process.
        assert_eq!(family(&stat(6, 0), 7), 6);
        assert_eq!(family(&stat(0, 0), 7), 7);
        assert_eq!(opener(0).session, 0);
    }
}
