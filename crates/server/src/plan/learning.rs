//! What is learned while serving: DWSF and DWPP, restarts and MTBF. It is kept over restarts of the
//! server.

pub(crate) mod lessons;

use std::collections::HashMap;
use std::time::Instant;

use forebay_policy::forecast::Learner;
use forebay_policy::mtbf::{Opener, RestartDetector};
use forebay_types::{ObjectId, ProcStat};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

const NAME: &str = "learning";

/// What was learned is on record after so long at the latest.
const SAVE_EVERY_S: f64 = 10.0;

/// Writers of an application that are remembered: those that came last.
const WRITERS_MAX: usize = 16;

/// The kernel is asked for the session of a writer no more often: a program that makes many files
/// changes it rarely, and the answer takes as long as a file.
const SESSION_ASKED_AFTER_S: f64 = 10.0;

/// A process that reads many files is asked about so often at most.
const BYSTANDER_S: f64 = 1.0;

/// Counts of files that are not open any more are thrown away from so many on.
const COUNTED_SPARE: usize = 1024;

/// A process that started so long before the last write was there when it was written; its start is
/// known to 10 ms.
const START_SLACK_S: f64 = 0.05;

/// What was learned is one value of the store: so much of it is kept of what applications bring,
/// and as much of their restarts.
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
    /// What there is room for: those applications that bring most in a period, and the last
    /// restarts.
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
    /// Processes, the last to write last.
    writers: Vec<Writer>,
    /// Who wrote last.
    writer: Opener,
    written_s: f64,
    /// The process whose read was found to be no restart, and when: it need not be asked about for
    /// a while.
    bystander: Option<(u32, f64)>,
}

/// A process that has written.
struct Writer {
    opener: Opener,
    /// When the kernel was asked for its session.
    asked_s: f64,
}

impl Writer {
    fn pid(&self) -> u32 {
        self.opener.process as u32
    }
}

impl Runs {
    /// Takes a process for the last that has written.
    fn has_written(&mut self, pid: u32, now_s: f64) -> Opener {
        let known = self.writers.iter().position(|writer| writer.pid() == pid);
        let known = known.map(|at| self.writers.remove(at));
        let writer = known.filter(|writer| now_s - writer.asked_s < SESSION_ASKED_AFTER_S);
        let writer = writer.unwrap_or_else(|| Writer {
            opener: opener(pid),
            asked_s: now_s,
        });
        if self.writers.len() >= WRITERS_MAX {
            self.writers.remove(0);
        }
        let opener = writer.opener;
        self.writers.push(writer);
        opener
    }
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

/// What was learned of the applications so far.
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

/// A process and its session. A number is used again only after many others, far later than what is
/// compared here.
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

/// What the kernel tells of a process. `None` where it is not there, or of a PID namespace that is
/// not seen from here (`pid` is 0 then).
fn stat_of(pid: u32) -> Option<ProcStat> {
    if pid == 0 {
        return None;
    }
    // Bytes: the name in it need not be UTF-8, and the kernel cuts a long one anywhere.
    ProcStat::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The session of a process, as far as it can be seen: in a container it may be one of outside,
/// which is shown as 0. The process group stands for it then, and the process itself where that is
/// of outside too.
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
    fn writers_are_few_and_asked_about_now_and_then() {
        let mut runs = Runs {
            detector: RestartDetector::new(60.0, 1.0),
            writers: Vec::new(),
            writer: opener(0),
            written_s: 0.0,
            bystander: None,
        };
        let own = std::process::id();
        let known = runs.has_written(own, 0.0);
        assert_eq!(known, opener(own));
        let other = |session| Opener { session, ..known };
        runs.writers[0].opener = other(77);
        runs.has_written(0, 1.0);
        assert_eq!(
            runs.has_written(own, 2.0),
            other(77),
            "it is not asked again"
        );
        let pids = |runs: &Runs| runs.writers.iter().map(Writer::pid).collect::<Vec<_>>();
        assert_eq!(pids(&runs), [0, own]);
        assert_eq!(runs.has_written(own, SESSION_ASKED_AFTER_S), known);
        for pid in (u32::MAX - 100)..u32::MAX {
            runs.has_written(pid, 20.0);
        }
        assert_eq!(pids(&runs).len(), WRITERS_MAX);
        assert_eq!(pids(&runs)[WRITERS_MAX - 1], u32::MAX - 1);
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
        // A session of outside a container is 0 there: its group tells the runs apart, then the
        // process.
        assert_eq!(family(&stat(6, 0), 7), 6);
        assert_eq!(family(&stat(0, 0), 7), 7);
        assert_eq!(opener(0).session, 0);
    }
}
