//! Which batch job a writing process belongs to.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use forebay_policy::job;
use forebay_types::ProcStat;
use parking_lot::Mutex;

/// Processes that are remembered; beyond that the memory starts anew.
const PROCESSES_MAX: usize = 4096;
/// So much of an environment is read. A process may have more, and then what comes later is not
/// seen.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;

struct Known {
    /// Ticks since the boot: tells a process from a later one that got its number.
    started: u64,
    job: Option<Arc<str>>,
}

/// Jobs of the processes that were asked about.
#[derive(Default)]
pub struct Writers {
    known: Mutex<HashMap<u32, Known>>,
}

impl Writers {
    /// The job of a process. `None` if it has none, is gone, or may not be looked into: of another
    /// user's process only a privileged daemon reads the environment.
    pub fn job_of(&self, pid: u32) -> Option<Arc<str>> {
        let started = ProcStat::parse(&read(pid, "stat", 4096)?)?.started_ticks;
        if let Some(known) = self.known.lock().get(&pid)
            && known.started == started
        {
            return known.job.clone();
        }
        let environment = read(pid, "environ", ENVIRONMENT_BYTES_MAX);
        let groups = || read(pid, "cgroup", 64 << 10);
        let job: Option<Arc<str>> = environment
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

    #[test]
    fn a_process_is_asked_for_its_job_once() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .env_clear()
            .env("SLURM_JOB_ID", "42")
            .spawn()
            .expect("sleep");
        let writers = Writers::default();
        // Until it has become the program, it shows the environment of this one.
        let begun = std::time::Instant::now();
        let job = loop {
            let job = Writers::default().job_of(child.id());
            if job.is_some() || begun.elapsed() > std::time::Duration::from_secs(30) {
                break job;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert_eq!(job.as_deref(), Some("slurm-42"));
        assert_eq!(writers.job_of(child.id()).as_deref(), Some("slurm-42"));
        assert_eq!(writers.known.lock().len(), 1);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(writers.job_of(child.id()), None, "it is gone");
        assert_eq!(writers.job_of(0), None);
    }
}
