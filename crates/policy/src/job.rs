//! Which batch job a process belongs to, from its environment or its control group.

/// Variables that batch systems set for the programs of a job, and what the job is called after.
const VARIABLES: [(&str, &str); 8] = [
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("FLUX_JOB_ID", "flux"),
    ("COBALT_JOBID", "cobalt"),
    ("PJM_JOBID", "pjm"),
    ("OAR_JOB_ID", "oar"),
    ("JOB_ID", "sge"),
];

/// A job's id is no longer than this, bytes.
const ID_BYTES_MAX: usize = 64;

/// The name of the job, such as `slurm-4711`, from an environment as `/proc/PID/environ` shows it
/// (`NAME=value`, each ended by NUL). The first of the known variables that holds an id counts; a
/// value that is none (empty, too long, or with other characters than letters, digits and `._-[]`)
/// is passed over.
pub fn of_environment(environment: &[u8]) -> Option<String> {
    VARIABLES.iter().find_map(|(variable, system)| {
        let value = environment
            .split(|&b| b == 0)
            .find_map(|entry| entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"="))?;
        named(system, value)
    })
}

/// The same from `/proc/PID/cgroup`: Slurm's `.../job_4711/...` below a group of its own.
pub fn of_control_group(groups: &[u8]) -> Option<String> {
    groups.split(|&b| b == b'\n').find_map(|line| {
        let mut parts = line.split(|&b| b == b'/');
        parts.find(|part| part.starts_with(b"slurm"))?;
        parts.find_map(|part| named("slurm", part.strip_prefix(b"job_")?))
    })
}

/// Nodes of the job that a process belongs to, from its environment.
pub fn nodes_of_environment(environment: &[u8]) -> Option<u32> {
    let names: [&[u8]; 3] = [b"SLURM_JOB_NUM_NODES=", b"SLURM_NNODES=", b"PBS_NUM_NODES="];
    let value = environment
        .split(|b| *b == 0)
        .find_map(|entry| names.iter().find_map(|name| entry.strip_prefix(*name)))?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Supplementary groups, from the line `Groups:` of `/proc/PID/status`.
pub fn groups_of_status(status: &[u8]) -> Vec<u32> {
    let mut lines = status.split(|&b| b == b'\n');
    let groups = lines.find_map(|line| line.strip_prefix(b"Groups:"));
    let text = groups.and_then(|groups| std::str::from_utf8(groups).ok());
    let numbers = text.unwrap_or_default().split_ascii_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

fn named(system: &str, id: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(id).ok()?;
    let fits = (1..=ID_BYTES_MAX).contains(&text.len());
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-[]".contains(c);
    (fits && text.chars().all(plain)).then(|| format!("{system}-{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_tells_the_nodes_of_the_job() {
        let of = |text: &str| nodes_of_environment(text.as_bytes());
        assert_eq!(of("A=1\0SLURM_NNODES=12\0"), Some(12));
        assert_eq!(of("A=1\0PBS_NUM_NODES=x\0"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn groups_are_those_of_their_line() {
        let of = |text: &str| groups_of_status(text.as_bytes());
        let status = "Name:\tGroups: 7\nUid:\t1\t1\t1\t1\nGroups:\t4 24 4242 \nNStgid:\t9\n";
        assert_eq!(of(status), [4, 24, 4242]);
        assert_eq!(of("Name:\tx\nGroups:\t\n"), [0; 0]);
    }

    #[test]
    fn the_environment_tells_the_job() {
        let of = |text: &str| of_environment(text.as_bytes());
        assert_eq!(
            of("PATH=/bin\0SLURM_JOB_ID=4711\0HOME=/\0").as_deref(),
            Some("slurm-4711")
        );
        assert_eq!(
            of("PBS_JOBID=12[3].server-1\0").as_deref(),
            Some("pbs-12[3].server-1")
        );
        assert_eq!(of("LSB_JOBID=9").as_deref(), Some("lsf-9"));
        // The batch system that is more likely to mean it goes first.
        assert_eq!(of("JOB_ID=1\0SLURM_JOB_ID=2\0").as_deref(), Some("slurm-2"));
        for none in ["", "PATH=/bin\0", "XSLURM_JOB_ID=1\0", "SLURM_JOB_ID=\0"] {
            assert_eq!(of(none), None, "{none:?}");
        }
        assert_eq!(of("SLURM_JOB_ID=a/b\0"), None);
        assert_eq!(of(&format!("SLURM_JOB_ID={}\0", "1".repeat(65))), None);
        assert_eq!(of_environment(b"SLURM_JOB_ID=\xff\0"), None);
    }

    #[test]
    fn the_control_group_tells_slurms_job() {
        let of = |text: &str| of_control_group(text.as_bytes());
        let v1 = "4:memory:/slurm/uid_1000/job_123/step_0/task_0\n";
        let v2 = "0::/system.slice/slurmstepd.scope/job_77/step_batch/user/task_0\n";
        assert_eq!(of(v1).as_deref(), Some("slurm-123"));
        assert_eq!(of(v2).as_deref(), Some("slurm-77"));
        assert_eq!(of(&format!("1:cpu:/\n{v1}")).as_deref(), Some("slurm-123"));
        for none in ["", "0::/\n", "0::/user.slice/job_5\n", "0::/slurm/uid_1\n"] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
