//! Processes of this node that ask, and what a server elsewhere is told of them: it cannot ask this
//! node's kernel.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use forebay_policy::job;
use forebay_types::{ProcStat, limits};
use forebay_wire::Introduction;
use parking_lot::Mutex;

/// What was told of a process is looked at again after so long: the number may be another's then.
const BELIEVED: Duration = Duration::from_secs(10);
/// So much of an environment is read. A process may have more, and then what comes later is not
/// seen.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;
/// So much of a process's state is read: its groups stand in the first part.
const STATE_BYTES_MAX: u64 = 64 << 10;

struct Told {
    started_ticks: u64,
    looked: Instant,
}

#[derive(Default)]
struct State {
    told: HashMap<u32, Told>,
    /// The session in which that was.
    generation: u64,
}

/// The processes that the server was told of.
#[derive(Default)]
pub(crate) struct Callers {
    state: Mutex<State>,
}

/// What the server is to be told before it is asked in the name of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The process itself, unless the server knows of it.
    pub(crate) processes: Vec<Introduction>,
    /// Those that the server knows of and that have ended.
    pub(crate) ended: Vec<u32>,
}

impl Callers {
    /// A process asks in a session; `None` if there is nothing to tell of it. Who comes for the
    /// first time may have taken somebody's place, and so all others are looked at.
    pub(crate) fn asks(&self, pid: u32, generation: u64) -> Option<News> {
        if pid == 0 {
            return None;
        }
        let mut state = self.state.lock();
        if state.generation != generation {
            state.told.clear();
            state.generation = generation;
        }
        let told = &mut state.told;
        let now = Instant::now();
        let known = told.get(&pid);
        if known.is_some_and(|known| now.duration_since(known.looked) < BELIEVED) {
            return None;
        }
        let stat = stat_of(pid)?;
        if let Some(known) = told.get_mut(&pid)
            && known.started_ticks == stat.started_ticks
        {
            known.looked = now;
            return None;
        }
        let mut ended: Vec<u32> = told
            .iter()
            .filter(|(pid, told)| !is_still(**pid, told.started_ticks))
            .map(|(pid, _)| *pid)
            .collect();
        // The rest are told of by the next one.
        ended.truncate(limits::PROCESSES_PER_MESSAGE_MAX);
        for pid in &ended {
            told.remove(pid);
        }
        if told.len() >= limits::PROCESSES_PER_SESSION_MAX {
            told.clear();
        }
        let entry = Told {
            started_ticks: stat.started_ticks,
            looked: now,
        };
        told.insert(pid, entry);
        Some(News {
            processes: vec![introduce(pid, &stat)],
            ended,
        })
    }

    /// The server has not heard what it was told last.
    pub(crate) fn forget(&self) {
        self.state.lock().told.clear();
    }
}

fn introduce(pid: u32, stat: &ProcStat) -> Introduction {
    let environment = read(pid, "environ", ENVIRONMENT_BYTES_MAX).unwrap_or_default();
    let control_group = || read(pid, "cgroup", STATE_BYTES_MAX);
    let job = job::of_environment(&environment)
        .or_else(|| job::of_control_group(&control_group()?))
        .filter(|job| job.len() <= limits::JOB_BYTES_MAX);
    let status = read(pid, "status", STATE_BYTES_MAX).unwrap_or_default();
    let mut groups = job::groups_of_status(&status);
    groups.truncate(limits::GROUPS_PER_PROCESS_MAX);
    Introduction {
        pid,
        age_ms: age_ms(stat),
        family: stat.family(pid),
        groups,
        job,
        job_nodes: job::nodes_of_environment(&environment),
    }
}

fn age_ms(stat: &ProcStat) -> u64 {
    let per_s = rustix::param::clock_ticks_per_second();
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up_ms = up.tv_sec as u64 * 1000 + up.tv_nsec as u64 / 1_000_000;
    let started_ms = stat.started_ticks.saturating_mul(1000) / per_s.max(1);
    up_ms.saturating_sub(started_ms)
}

/// Whether it is the process that started then, and has not ended.
fn is_still(pid: u32, started_ticks: u64) -> bool {
    stat_of(pid).is_some_and(|stat| stat.started_ticks == started_ticks)
}

fn stat_of(pid: u32) -> Option<ProcStat> {
    // Bytes: the name in it need not be UTF-8, and the kernel cuts a long one anywhere.
    let stat = ProcStat::parse(&read(pid, "stat", 4096)?)?;
    (!stat.is_dead()).then_some(stat)
}

fn read(pid: u32, what: &str, bytes_max: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/{what}")).ok()?;
    file.take(bytes_max).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_of_once_and_its_end_with_the_next_one() {
        let callers = Callers::default();
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("sleep");
        let news = callers.asks(child.id(), 1).expect("it is new");
        assert_eq!(news.processes.len(), 1);
        assert_eq!(news.processes[0].pid, child.id());
        assert!(news.processes[0].age_ms < 600_000);
        assert_eq!(callers.asks(child.id(), 1), None);
        assert_eq!(callers.asks(0, 1), None);
        child.kill().expect("kill");
        let ended = child.id();
        child.wait().expect("wait");
        let own = std::process::id();
        let news = callers.asks(own, 1).expect("it is new");
        assert_eq!(news.ended, [ended]);
        let groups = rustix::process::getgroups().expect("groups");
        let groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(news.processes[0].groups, groups);
        assert_eq!(callers.asks(own, 1), None);
        let news = callers.asks(own, 2).expect("the next session knows nobody");
        assert_eq!(news.ended, [0; 0]);
        callers.forget();
        assert!(callers.asks(own, 2).is_some());
    }
}
