//! Processes that ask: which batch job they belong to, since when they run, which groups they have.
//!
//! Of a process of this node the kernel is asked. Of one of another node, its mount has told.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_policy::job;
use forebay_policy::mtbf::Opener;
use forebay_types::{ProcStat, Process, limits};
use forebay_wire::Introduction;
use parking_lot::Mutex;

/// Processes of this node whose job is remembered; beyond that the memory starts anew.
const PROCESSES_MAX: usize = 4096;
/// So much of an environment is read. A process may have more, and then what comes later is not
/// seen.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;
/// So much of a process's state is read: its groups stand in the first part, and there may be many.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// What tells the sessions of jobs from those of processes: no kernel counts so far.
const JOB: u64 = 1 << 63;

struct Known {
    /// Ticks since the boot: tells a process from a later one that got its number.
    started: u64,
    job: Option<Arc<str>>,
}

/// A process of another node.
struct Told {
    started: Instant,
    family: u64,
    groups: Vec<u32>,
    job: Option<Arc<str>>,
    job_nodes: Option<u32>,
}

/// The processes that were asked about, or told of.
#[derive(Default)]
pub struct Processes {
    /// Jobs of processes of this node.
    known: Mutex<HashMap<u32, Known>>,
    /// By node.
    elsewhere: Mutex<HashMap<u32, HashMap<u32, Told>>>,
    /// Where nodes are whose clients came over the network.
    addresses: Mutex<HashMap<u32, IpAddr>>,
}

impl Processes {
    /// A node tells of processes that are about to ask, and of those that have ended.
    pub fn tell(&self, node: u32, processes: Vec<Introduction>, ended: &[u32]) {
        let mut elsewhere = self.elsewhere.lock();
        let told = elsewhere.entry(node).or_default();
        for pid in ended {
            told.remove(pid);
        }
        for process in processes {
            if told.len() >= limits::PROCESSES_PER_SESSION_MAX {
                told.clear();
            }
            let age = Duration::from_millis(process.age_ms);
            let now = Instant::now();
            let entry = Told {
                started: now.checked_sub(age).unwrap_or(now),
                family: process.family,
                groups: process.groups,
                job: process.job.map(Arc::from),
                job_nodes: process.job_nodes,
            };
            told.insert(process.pid, entry);
        }
    }

    /// A node's client has come from there; `None`: by this node's own socket.
    pub fn note_address(&self, node: u32, address: Option<SocketAddr>) {
        if let Some(address) = address {
            let ip = address.ip().to_canonical();
            self.addresses.lock().insert(node, ip);
        }
    }

    /// Where a node is; `None` if its client came by this node's own socket.
    pub fn address_of(&self, node: u32) -> Option<IpAddr> {
        self.addresses.lock().get(&node).copied()
    }

    /// Whether a client that is connected came from one of these.
    pub fn is_any_at(&self, addresses: &[IpAddr]) -> bool {
        let all = self.addresses.lock();
        all.values().any(|address| addresses.contains(address))
    }

    /// A node has gone.
    pub fn forget(&self, node: u32) {
        self.elsewhere.lock().remove(&node);
        self.addresses.lock().remove(&node);
    }

    /// The job of a process. `None` if it has none, is gone, or may not be looked into: of another
    /// user's process only a privileged daemon reads the environment.
    pub fn job_of(&self, process: Process) -> Option<Arc<str>> {
        match process.node {
            0 => self.job_here(process.pid),
            _ => self.told(process, |told| told.job.clone())?,
        }
    }

    /// Nodes of the job that a process belongs to.
    pub fn nodes_of(&self, process: Process) -> Option<u32> {
        match process.node {
            0 => job::nodes_of_environment(&environment(process.pid)?),
            _ => self.told(process, |told| told.job_nodes)?,
        }
    }

    /// Whether a process is in a supplementary group, as far as it can be seen.
    pub fn is_in_group(&self, process: Process, gid: u32) -> bool {
        match process.node {
            0 => read(process.pid, "status", STATE_BYTES_MAX)
                .is_some_and(|status| job::groups_of_status(&status).contains(&gid)),
            _ => self
                .told(process, |told| told.groups.contains(&gid))
                .unwrap_or(false),
        }
    }

    /// For how long a process has been running; `None` where it does not, or cannot be seen.
    pub fn age_s(&self, process: Process) -> Option<f64> {
        match process.node {
            0 => age_here_s(process.pid),
            _ => self.told(process, |told| told.started.elapsed().as_secs_f64()),
        }
    }

    /// A process and what it belongs to: its session, or, since it may have several nodes, its job
    /// where another node's kernel has numbered it. A number is used again only after many others,
    /// far later than what is compared here.
    pub fn opener(&self, process: Process) -> Opener {
        let number = process.number();
        let session = match process.node {
            0 => stat_of(process.pid).map(|stat| stat.family(process.pid)),
            _ => self.told(process, |told| match &told.job {
                Some(job) => JOB | hash(job),
                None => u64::from(process.node) << 32 | told.family & u64::from(u32::MAX),
            }),
        };
        Opener {
            process: number,
            session: session.unwrap_or(number),
        }
    }

    fn told<T>(&self, process: Process, see: impl FnOnce(&Told) -> T) -> Option<T> {
        let elsewhere = self.elsewhere.lock();
        elsewhere.get(&process.node)?.get(&process.pid).map(see)
    }

    fn job_here(&self, pid: u32) -> Option<Arc<str>> {
        let started = stat_of(pid)?.started_ticks;
        if let Some(known) = self.known.lock().get(&pid)
            && known.started == started
        {
            return known.job.clone();
        }
        let groups = || read(pid, "cgroup", 64 << 10);
        let job: Option<Arc<str>> = environment(pid)
            .and_then(|text| job::of_environment(&text))
            .or_else(|| job::of_control_group(&groups()?))
            .map(Arc::from);
        let mut known = self.known.lock();
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        let entry = Known {
            started,
            job: job.clone(),
        };
        known.insert(pid, entry);
        job
    }
}

fn hash(job: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    job.hash(&mut hasher);
    hasher.finish()
}

fn age_here_s(pid: u32) -> Option<f64> {
    let started_ticks = stat_of(pid).filter(|stat| !stat.is_dead())?.started_ticks as f64;
    let per_s = rustix::param::clock_ticks_per_second() as f64;
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Some(up.tv_sec as f64 + up.tv_nsec as f64 / 1e9 - started_ticks / per_s)
}

/// What the kernel tells of a process. `None` where it is not there, or of a PID namespace that is
/// not seen from here (`pid` is 0 then).
fn stat_of(pid: u32) -> Option<ProcStat> {
    // Bytes: the name in it need not be UTF-8, and the kernel cuts a long one anywhere.
    ProcStat::parse(&read(pid, "stat", 4096)?)
}

fn environment(pid: u32) -> Option<Vec<u8>> {
    read(pid, "environ", ENVIRONMENT_BYTES_MAX)
}

fn read(pid: u32, what: &str, bytes_max: u64) -> Option<Vec<u8>> {
    if pid == 0 {
        return None;
    }
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/{what}")).ok()?;
    file.take(bytes_max).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: Process = Process::here(0);

    fn own() -> Process {
        Process::here(std::process::id())
    }

    #[test]
    fn a_process_is_asked_for_its_job_once() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .env_clear()
            .env("SLURM_JOB_ID", "42")
            .env("SLURM_NNODES", "3")
            .spawn()
            .expect("sleep");
        let processes = Processes::default();
        let process = Process::here(child.id());
        // Until it has become the program, it shows the environment of this one.
        let begun = Instant::now();
        let job = loop {
            let job = Processes::default().job_of(process);
            if job.is_some() || begun.elapsed() > Duration::from_secs(30) {
                break job;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(job.as_deref(), Some("slurm-42"));
        assert_eq!(processes.job_of(process).as_deref(), Some("slurm-42"));
        assert_eq!(processes.nodes_of(process), Some(3));
        assert_eq!(processes.known.lock().len(), 1);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(processes.job_of(process), None, "it is gone");
        assert_eq!(processes.job_of(UNKNOWN), None);
    }

    #[test]
    fn ages_of_processes() {
        let processes = Processes::default();
        let age = processes.age_s(own()).expect("runs");
        assert!((-1.0..1e6).contains(&age), "{age}");
        assert_eq!(processes.age_s(UNKNOWN), None);
        let mut child = std::process::Command::new("true").spawn().expect("spawns");
        let process = Process::here(child.id());
        child.wait().expect("ends");
        assert_eq!(processes.age_s(process), None);
        assert_eq!(processes.opener(UNKNOWN).session, 0);
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
        let age = Processes::default().age_s(Process::here(child.id()));
        child.kill().expect("kill");
        child.wait().expect("ends");
        assert!(age.is_some());
    }

    #[test]
    fn groups_of_a_process_are_read_from_its_state() {
        let processes = Processes::default();
        let groups = rustix::process::getgroups().expect("groups");
        for group in groups {
            assert!(processes.is_in_group(own(), group.as_raw()));
        }
        assert!(!processes.is_in_group(own(), 4_000_000_000));
        assert!(!processes.is_in_group(UNKNOWN, 0));
    }

    #[test]
    fn what_another_node_tells_is_of_its_processes_only() {
        let processes = Processes::default();
        let introduction = |pid, job: Option<&str>| Introduction {
            pid,
            age_ms: 90_000,
            family: 5,
            groups: vec![7],
            job: job.map(str::to_string),
            job_nodes: Some(4),
        };
        let own_pid = std::process::id();
        processes.tell(1, vec![introduction(own_pid, Some("slurm-1"))], &[]);
        processes.tell(2, vec![introduction(own_pid, None)], &[]);
        let on = |node| Process { node, pid: own_pid };
        assert_eq!(processes.job_of(on(1)).as_deref(), Some("slurm-1"));
        assert_eq!(processes.job_of(on(2)), None);
        assert_eq!(processes.nodes_of(on(2)), Some(4));
        assert!(processes.is_in_group(on(1), 7) && !processes.is_in_group(on(1), 8));
        assert!(processes.age_s(on(1)).is_some_and(|age| age >= 90.0));
        assert_ne!(processes.opener(on(1)), processes.opener(on(2)));
        // One job on several nodes is one run.
        processes.tell(3, vec![introduction(9, Some("slurm-1"))], &[]);
        let rank = Process { node: 3, pid: 9 };
        assert_eq!(
            processes.opener(rank).session,
            processes.opener(on(1)).session
        );
        processes.tell(1, Vec::new(), &[own_pid]);
        assert_eq!(processes.age_s(on(1)), None);
        processes.forget(2);
        assert_eq!(processes.nodes_of(on(2)), None);
        let many = 1..=limits::PROCESSES_PER_SESSION_MAX as u32 + 1;
        processes.tell(4, many.map(|pid| introduction(pid, None)).collect(), &[]);
        assert_eq!(processes.elsewhere.lock()[&4].len(), 1);
    }
}
