//! Control groups and memory: what this process may have of the machine.

use std::path::{Path, PathBuf};

use forebay_tiers::MachineMemory;
use forebay_types::format_size;

use super::finding::{Finding, Grade};

/// Where control groups are mounted by convention.
const ROOT: &str = "/sys/fs/cgroup";
/// A limit above this is none: version 1 says "no limit" with a number of pages that fills 63 bits.
const NO_LIMIT: u64 = 1 << 60;
/// Less free memory than this is a reason to think twice about a memory tier.
const MEMORY_MIN: u64 = 1 << 30;

/// Memory, huge pages, control groups.
pub fn findings() -> Vec<Finding> {
    let mut findings = vec![judge_memory(MachineMemory::now())];
    findings.extend(judge_swap(
        &std::fs::read_to_string("/proc/meminfo").unwrap_or_default(),
    ));
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    findings.push(judge_huge(huge.ok().as_deref()));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    findings.push(judge_groups(&own, &Limits::read(&own)));
    findings
}

fn judge_memory(memory: Option<MachineMemory>) -> Finding {
    let Some(memory) = memory else {
        return Finding::new("memory", Grade::Note, "not known: is /proc mounted?", "");
    };
    let [available, total] = [memory.available_bytes, memory.total_bytes].map(format_size);
    let found = format!("{available} of {total} can be had");
    let finding = match memory.available_bytes >= MEMORY_MIN {
        true => Finding::ok("memory", found),
        false => Finding::new(
            "memory",
            Grade::Note,
            found,
            "leave --dram out, or small, and use --ssd",
        ),
    };
    finding
        .with("available_bytes", memory.available_bytes)
        .with("total_bytes", memory.total_bytes)
}

/// A memory tier is a tmpfs, and that can be swapped out.
fn judge_swap(meminfo: &str) -> Option<Finding> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("SwapTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(match kib {
        0 => Finding::ok("swap", "none: the memory tier stays in memory"),
        _ => Finding::new(
            "swap",
            Grade::Note,
            format!(
                "{} of it: when memory is short, the memory tier may be swapped out",
                format_size(kib * 1024)
            ),
            "choose --dram so that programs and the tier fit into memory together",
        ),
    })
}

/// The memory tier asks for large pages where files are large enough (`huge=within_size`).
fn judge_huge(setting: Option<&str>) -> Finding {
    let check = "huge pages of shmem";
    let chosen = setting.and_then(|text| text.split('[').nth(1)?.split(']').next());
    match chosen {
        Some("deny") => Finding::new(
            check,
            Grade::Slow,
            "denied (shmem_enabled is deny): the memory tier is written in small pages",
            "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled: the memory tier alone then asks for them",
        ),
        Some(other) => Finding::ok(
            check,
            format!("the memory tier may ask for them (shmem_enabled is {other})"),
        ),
        None => Finding::new(
            check,
            Grade::Slow,
            "this kernel has none: the memory tier is written in small pages",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y",
        ),
    }
}

/// Limits on memory of the groups around this process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Limits {
    /// The tightest of version 2, which Forebay looks at, bytes.
    v2: Option<u64>,
    /// The tightest of version 1, which it does not look at.
    v1: Option<u64>,
}

impl Limits {
    fn read(own: &str) -> Limits {
        let of = |groups: Option<PathBuf>, file: &str| {
            let folder = groups?;
            let numbers = up_from(&folder).filter_map(|folder| number(&folder.join(file)));
            numbers.filter(|limit| *limit < NO_LIMIT).min()
        };
        Limits {
            v2: of(folder_v2(own), "memory.max"),
            v1: of(folder_v1(own, "memory"), "memory.limit_in_bytes"),
        }
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A folder and those above it, as far as the groups go.
fn up_from(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let all: Vec<PathBuf> = folder.ancestors().map(Path::to_path_buf).collect();
    all.into_iter().filter(|folder| folder.starts_with(ROOT))
}

/// The group of version 2, where it is mounted.
fn folder_v2(own: &str) -> Option<PathBuf> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let roots = [
        Path::new(ROOT).to_path_buf(),
        Path::new(ROOT).join("unified"),
    ];
    let root = roots
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())?;
    Some(root.join(group))
}

/// The group of a controller of version 1. Inside a container the path is one of outside, and the
/// root is the container's own.
fn folder_v1(own: &str, controller: &str) -> Option<PathBuf> {
    let group = own.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let is_it = controllers.split(',').any(|one| one == controller);
        is_it.then(|| group.trim_start_matches('/'))
    })?;
    let root = Path::new(ROOT).join(controller);
    let folder = root.join(group);
    [folder, root].into_iter().find(|folder| folder.exists())
}

fn judge_groups(own: &str, limits: &Limits) -> Finding {
    let has_v1 = own.lines().any(|line| !line.starts_with("0::"));
    let has_v2 = own.lines().any(|line| line.starts_with("0::"));
    let kind = match (has_v1, has_v2) {
        (true, true) => "versions 1 and 2",
        (true, false) => "version 1",
        (false, true) => "version 2",
        (false, false) => return Finding::ok("control groups", "none"),
    };
    let limit = |bytes: u64| format!("{kind}; memory is limited to {}", format_size(bytes));
    let finding = match (limits.v1, limits.v2) {
        (Some(v1), _) => Finding::new(
            "control groups",
            Grade::Note,
            format!("{} by version 1, which Forebay does not look at", limit(v1)),
            "choose --dram so that it and the programs fit into that limit: `up` does not refuse more",
        ),
        (None, Some(v2)) => Finding::ok(
            "control groups",
            format!("{}, and `up` goes by it", limit(v2)),
        ),
        (None, None) => Finding::ok("control groups", format!("{kind}; no limit on memory")),
    };
    finding
        .with("memory_limit_v1_bytes", limits.v1)
        .with("memory_limit_v2_bytes", limits.v2)
}

/// How many more tasks may be started, by the tightest limit, and whose that is.
pub fn tasks() -> Option<(u64, String)> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for folder in [folder_v2(&own), folder_v1(&own, "pids")]
        .into_iter()
        .flatten()
    {
        for folder in up_from(&folder) {
            let [max, current] =
                ["pids.max", "pids.current"].map(|file| number(&folder.join(file)));
            if let (Some(max), Some(current)) = (max, current) {
                found.push((
                    max.saturating_sub(current),
                    format!("pids.max of {}", folder.display()),
                ));
            }
        }
    }
    found.extend(of_user().map(|left| (left, "ulimit -u".to_string())));
    found.extend(of_machine().map(|left| (left, "kernel.threads-max".to_string())));
    found.into_iter().min_by_key(|(left, _)| *left)
}

/// By the limit of a user; root has none.
fn of_user() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nproc).current?;
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return None;
    }
    let tasks = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
        use std::os::unix::fs::MetadataExt;
        let entry = entry.ok()?;
        let is_process = entry.file_name().to_str()?.parse::<u32>().is_ok();
        let is_own = entry.metadata().ok()?.uid() == uid.as_raw();
        let threads = std::fs::read_dir(entry.path().join("task")).ok()?.count() as u64;
        (is_process && is_own).then_some(threads)
    });
    Some(limit.saturating_sub(tasks.sum()))
}

fn of_machine() -> Option<u64> {
    let most = number(Path::new("/proc/sys/kernel/threads-max"))?;
    // `0.00 0.01 0.05 1/234 5678`: tasks that run, and all.
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let tasks: u64 = load
        .split_ascii_whitespace()
        .nth(3)?
        .split('/')
        .nth(1)?
        .parse()
        .ok()?;
    Some(most.saturating_sub(tasks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_swap() {
        let memory = |available_bytes| {
            Some(MachineMemory {
                total_bytes: 8 << 30,
                available_bytes,
            })
        };
        assert_eq!(judge_memory(memory(4 << 30)).grade, Grade::Ok);
        assert_eq!(judge_memory(memory(1 << 20)).grade, Grade::Note);
        assert_eq!(judge_memory(None).grade, Grade::Note);
        let swap = |text| judge_swap(text).map(|finding| finding.grade);
        assert_eq!(swap("SwapTotal:       0 kB\n"), Some(Grade::Ok));
        assert_eq!(swap("SwapTotal:     128 kB\n"), Some(Grade::Note));
        assert_eq!(swap(""), None);
    }

    #[test]
    fn huge_pages_are_slow_only_where_they_are_denied_or_missing() {
        let judge = |text| judge_huge(text).grade;
        assert_eq!(
            judge(Some("always within_size advise [never] deny force\n")),
            Grade::Ok
        );
        assert_eq!(
            judge(Some("always within_size advise never [deny] force\n")),
            Grade::Slow
        );
        assert_eq!(judge(None), Grade::Slow);
    }

    #[test]
    fn limits_of_version_1_are_said_not_to_count() {
        let own = "4:memory,cpu:/a\n0::/b\n";
        let judge = |v1, v2| judge_groups(own, &Limits { v1, v2 });
        assert_eq!(
            judge(None, None).found,
            "versions 1 and 2; no limit on memory"
        );
        assert_eq!(judge(None, Some(1 << 30)).grade, Grade::Ok);
        let v1 = judge(Some(1 << 30), None);
        assert_eq!(v1.grade, Grade::Note);
        assert!(v1.found.contains("1.0 GiB by version 1"), "{v1:?}");
        assert_eq!(judge_groups("", &Limits::default()).found, "none");
    }

    #[test]
    fn the_machine_has_tasks_left() {
        let (left, whose) = tasks().expect("the kernel has a limit");
        assert!(left > 0, "{whose}");
    }
}
