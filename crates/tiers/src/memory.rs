//! Memory of the machine, and of the control groups around this process.

use std::io;
use std::path::{Path, PathBuf};

use forebay_types::Errno;

/// A limit above this is none: version 1 says "no limit" with a number of pages that fills 63 bits.
const NO_LIMIT: u64 = 1 << 60;
/// Where the kernel says what the machine has.
const MEMINFO: &str = "proc/meminfo";
/// Where control groups are mounted by convention: version 2, version 2 beside 1, version 1.
const UNIFIED: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
const MEMORY_V1: &str = "sys/fs/cgroup/memory";

/// Memory that this process could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All of the machine's, bytes.
    pub total_bytes: u64,
    /// What can be had without swapping, bytes: of the machine, or of the tightest control group
    /// around this process.
    pub available_bytes: u64,
}

impl MachineMemory {
    /// As it is now; `None` where the kernel does not say.
    pub fn now() -> Option<MachineMemory> {
        let now = SystemMemory::default().look().ok()?;
        Some(MachineMemory {
            total_bytes: now.machine_bytes,
            available_bytes: now.available_bytes,
        })
    }
}

/// Memory that one thing bounds: the machine, or the limit of a control group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPool {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// What can be had of it without swapping, bytes.
    pub available_bytes: u64,
}

/// What a look at memory finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNow {
    /// All of the machine's, bytes.
    pub machine_bytes: u64,
    /// All that this process could have: the machine's, or the tightest limit, bytes.
    pub total_bytes: u64,
    /// What can be had without swapping, bytes: the least of all pools.
    pub available_bytes: u64,
    /// The machine, and each group around this process that has a limit. Empty where they are not
    /// told apart: see [`MemoryNow::each_pool`].
    pub pools: Vec<MemoryPool>,
    /// Pages of all tmpfs that are in memory, bytes, where something is swapped out; `None` where
    /// nothing is.
    pub shared_bytes: Option<u64>,
    /// For how long in all some task has waited for memory, microseconds; 0 where the kernel does
    /// not count that.
    pub stall_us: u64,
    /// A control group that this process is said to be in, and that cannot be found.
    pub missing_group: Option<PathBuf>,
}

impl MemoryNow {
    /// The pools, at least one.
    pub fn each_pool(&self) -> Vec<MemoryPool> {
        match self.pools.is_empty() {
            true => vec![MemoryPool {
                total_bytes: self.total_bytes,
                available_bytes: self.available_bytes,
            }],
            false => self.pools.clone(),
        }
    }

    /// What a tmpfs that occupies so many bytes has in memory at most, bytes. What is swapped out
    /// is in nobody's memory, and counts as occupied all the same.
    pub fn resident_bytes(&self, used_bytes: u64) -> u64 {
        self.shared_bytes
            .map_or(used_bytes, |shared| used_bytes.min(shared))
    }
}

/// Who says how much memory there is.
pub trait MemorySource: Send + Sync {
    /// Looks now.
    ///
    /// # Errors
    /// Nobody says.
    fn look(&self) -> io::Result<MemoryNow>;
}

/// The kernel of this machine, by its files.
///
/// The limits of the control groups around this process count, of both versions, from its own group
/// up. A group that cannot be found (its folder is not mounted here, or has gone) has no limit that
/// could be known: what is around it counts, in the end the machine.
pub struct SystemMemory {
    root: PathBuf,
}

impl Default for SystemMemory {
    fn default() -> SystemMemory {
        SystemMemory::at(Path::new("/"))
    }
}

impl SystemMemory {
    /// The same files below another root than `/`.
    pub fn at(root: &Path) -> SystemMemory {
        SystemMemory {
            root: root.to_path_buf(),
        }
    }

    fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        std::fs::read_to_string(self.root.join(path))
    }

    /// What the groups around this process allow, and one that cannot be found.
    fn limits(&self, groups: &str) -> (Vec<MemoryPool>, Option<PathBuf>) {
        let (unified, memory) = (self.unified(), self.root.join(MEMORY_V1));
        let own = [
            (unified, of_version_2(groups), &V2),
            (memory, of_version_1(groups), &V1),
        ];
        let (mut limits, mut missing) = (Vec::new(), None);
        for (base, group, files) in own {
            let Some(folder) = group.map(|group| base.join(group)) else {
                continue;
            };
            if base.exists() && !folder.exists() {
                missing = Some(folder.clone());
            }
            let around = folder.ancestors().take_while(|f| f.starts_with(&base));
            limits.extend(around.filter_map(|folder| limit_of(folder, files)));
        }
        (limits, missing)
    }

    /// The folder of the groups of version 2.
    fn unified(&self) -> PathBuf {
        let is_there = |folder: &PathBuf| folder.join("cgroup.controllers").exists();
        let mut folders = UNIFIED.iter().map(|folder| self.root.join(folder));
        folders
            .find(is_there)
            .unwrap_or_else(|| self.root.join(UNIFIED[0]))
    }

    /// Of the machine, or where it does not say so of this process's own group.
    fn stall_us(&self, groups: &str) -> u64 {
        let machine = self.read("proc/pressure/memory").ok();
        let own = || {
            let folder = self.unified().join(of_version_2(groups)?);
            std::fs::read_to_string(folder.join("memory.pressure")).ok()
        };
        let text = machine.or_else(own);
        text.and_then(|text| stalled_us(&text)).unwrap_or(0)
    }
}

impl MemorySource for SystemMemory {
    fn look(&self) -> io::Result<MemoryNow> {
        let text = self.read(MEMINFO)?;
        let field = |name| field_bytes(&text, name).ok_or(Errno::ENODATA);
        let machine = MemoryPool {
            total_bytes: field("MemTotal:")?,
            available_bytes: field("MemAvailable:")?,
        };
        // Without it nothing is known of any group.
        let groups = self.read("proc/self/cgroup").unwrap_or_default();
        let (mut pools, missing_group) = self.limits(&groups);
        pools.push(machine);
        let least = |of: fn(&MemoryPool) -> u64| pools.iter().map(of).min().unwrap_or(0);
        Ok(MemoryNow {
            machine_bytes: machine.total_bytes,
            total_bytes: least(|pool| pool.total_bytes),
            available_bytes: least(|pool| pool.available_bytes),
            pools,
            shared_bytes: shared_bytes(&text),
            stall_us: self.stall_us(&groups),
            missing_group,
        })
    }
}

/// How a version of control groups names what it says.
struct Files {
    /// Beyond any of these nothing more is to be had.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Pages of files, in `memory.stat`: they go when memory is needed, as the kernel says of the
    /// whole machine. Pages of a tmpfs are not among them.
    cached: [&'static str; 2],
}

const V2: Files = Files {
    // Beyond `high` tasks are held up until the kernel has got memory back.
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cached: ["inactive_file ", "active_file "],
};
const V1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};

/// What one group allows; `None` where it has no limit.
fn limit_of(folder: &Path, files: &Files) -> Option<MemoryPool> {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let limits = files.limits.iter().filter_map(|file| number(file));
    let total_bytes = limits.filter(|limit| *limit < NO_LIMIT).min()?;
    let usage = number(files.usage)?;
    let stat = read("memory.stat").unwrap_or_default();
    let pages = |name: &str| -> Option<u64> {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    let cached: u64 = files.cached.iter().filter_map(|name| pages(name)).sum();
    Some(MemoryPool {
        total_bytes,
        available_bytes: total_bytes.saturating_sub(usage.saturating_sub(cached)),
    })
}

/// What of all tmpfs is in memory, where something is swapped out.
fn shared_bytes(meminfo: &str) -> Option<u64> {
    let field = |name| field_bytes(meminfo, name);
    let is_swapped = field("SwapTotal:")? > field("SwapFree:")?;
    field("Shmem:").filter(|_| is_swapped)
}

/// The path of this process's group of version 2, without the leading slash.
fn of_version_2(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// The same of the memory controller of version 1.
fn of_version_1(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let has_memory = controllers.split(',').any(|name| name == "memory");
        path.strip_prefix('/').filter(|_| has_memory)
    })
}

/// The total of the line `some`.
fn stalled_us(pressure: &str) -> Option<u64> {
    let some = pressure
        .lines()
        .find_map(|line| line.strip_prefix("some "))?;
    let mut fields = some.split_whitespace();
    fields
        .find_map(|field| field.strip_prefix("total="))?
        .parse()
        .ok()
}

fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:   64 kB\n";
        assert_eq!(field_bytes(meminfo, "MemAvailable:"), Some(65536));
        assert_eq!(field_bytes(meminfo, "Swap:"), None);
        let pressure =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=134\nfull avg10=0.00 total=5\n";
        assert_eq!(stalled_us(pressure), Some(134));
        let groups = "9:name=systemd:/\n5:cpu,memory:/a/b\n0::/c\n";
        assert_eq!(of_version_1(groups), Some("a/b"));
        assert_eq!(of_version_2(groups), Some("c"));
        let now = MachineMemory::now().unwrap();
        assert!(now.available_bytes <= now.total_bytes, "{now:?}");
    }

    /// A made-up machine of 1000 KiB, of which 800 are available.
    struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        fn new(groups: &str) -> Machine {
            let machine = Machine {
                folder: tempfile::tempdir().unwrap(),
            };
            machine.put(
                "proc/meminfo",
                "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n",
            );
            machine.put("proc/self/cgroup", groups);
            machine
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn put_all(&self, folder: &str, files: &[(&str, &str)]) {
            for (name, text) in files {
                self.put(&format!("{folder}/{name}"), text);
            }
        }

        fn memory(&self) -> SystemMemory {
            SystemMemory::at(self.folder.path())
        }

        fn kib(&self) -> (u64, u64) {
            let now = self.memory().look().unwrap();
            assert_eq!(now.machine_bytes, 1000 << 10);
            (now.total_bytes >> 10, now.available_bytes >> 10)
        }
    }

    #[test]
    fn without_groups_it_is_the_machine() {
        let machine = Machine::new("0::/\n");
        assert_eq!(machine.kib(), (1000, 800));
        assert_eq!(machine.memory().look().unwrap().stall_us, 0);
        machine.put("proc/pressure/memory", "some avg10=1.00 total=77\n");
        assert_eq!(machine.memory().look().unwrap().stall_us, 77);
        machine.put("proc/meminfo", "MemTotal: 1000 kB\n");
        let error = machine.memory().look().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODATA));
    }

    #[test]
    fn the_tightest_group_of_version_2_counts() {
        let machine = Machine::new("0::/a/b\n");
        machine.put("sys/fs/cgroup/cgroup.controllers", "memory\n");
        let inner = [("memory.max", "max\n"), ("memory.current", "1024\n")];
        machine.put_all("sys/fs/cgroup/a/b", &inner);
        assert_eq!(machine.kib(), (1000, 800));
        let outer = [
            ("memory.max", "512000\n"),
            ("memory.current", "409600\n"),
            ("memory.stat", "anon 5\ninactive_file 102400\n"),
        ];
        machine.put_all("sys/fs/cgroup/a", &outer);
        assert_eq!(machine.kib(), (500, 200));
        machine.put(
            "sys/fs/cgroup/a/b/memory.pressure",
            "some avg10=0.00 total=9\n",
        );
        assert_eq!(machine.memory().look().unwrap().stall_us, 9);
        machine.put("proc/pressure/memory", "some avg10=0.00 total=11\n");
        assert_eq!(
            machine.memory().look().unwrap().stall_us,
            11,
            "the machine's is of all"
        );
    }

    #[test]
    fn what_a_group_holds_up_at_counts_as_its_limit() {
        let machine = Machine::new("0::/a\n");
        machine.put("sys/fs/cgroup/cgroup.controllers", "memory\n");
        let group = [
            ("memory.max", "max\n"),
            ("memory.high", "512000\n"),
            ("memory.current", "102400\n"),
        ];
        machine.put_all("sys/fs/cgroup/a", &group);
        assert_eq!(machine.kib(), (500, 400));
        machine.put("sys/fs/cgroup/a/memory.max", "409600\n");
        assert_eq!(machine.kib(), (400, 300));
    }

    #[test]
    fn pages_of_files_can_be_had_also_those_that_are_in_use() {
        let machine = Machine::new("0::/a\n");
        machine.put("sys/fs/cgroup/cgroup.controllers", "memory\n");
        let group = [
            ("memory.max", "512000\n"),
            ("memory.current", "409600\n"),
            (
                "memory.stat",
                "inactive_anon 7\ninactive_file 102400\nactive_file 204800\n",
            ),
        ];
        machine.put_all("sys/fs/cgroup/a", &group);
        assert_eq!(machine.kib(), (500, 400));
    }

    #[test]
    fn each_pool_has_its_own_figures() {
        let machine = Machine::new("0::/a\n");
        machine.put("sys/fs/cgroup/cgroup.controllers", "memory\n");
        let group = [("memory.max", "921600\n"), ("memory.current", "0\n")];
        machine.put_all("sys/fs/cgroup/a", &group);
        assert_eq!(machine.kib(), (900, 800));
        let pools = machine.memory().look().unwrap().each_pool();
        let kib = |pool: &MemoryPool| (pool.total_bytes >> 10, pool.available_bytes >> 10);
        assert_eq!(
            pools.iter().map(kib).collect::<Vec<_>>(),
            [(900, 900), (1000, 800)]
        );
    }

    #[test]
    fn what_is_swapped_out_is_in_nobodys_memory() {
        let machine = Machine::new("0::/\n");
        let swap = |free: u64| {
            let text = format!(
                "MemTotal: 1000 kB\nMemAvailable: 800 kB\nShmem: 64 kB\nSwapTotal: 500 kB\nSwapFree: {free} kB\n"
            );
            machine.put("proc/meminfo", &text);
            machine.memory().look().unwrap().resident_bytes(100 << 10)
        };
        assert_eq!(swap(500), 100 << 10, "nothing is");
        assert_eq!(swap(400), 64 << 10);
    }

    #[test]
    fn the_tightest_group_of_version_1_counts_beside_an_empty_version_2() {
        let machine = Machine::new("4:memory:/job/step\n1:cpu:/\n0::/x\n");
        machine.put("sys/fs/cgroup/unified/cgroup.controllers", "\n");
        machine.put("sys/fs/cgroup/unified/x/memory.pressure", "some total=3\n");
        let none = [
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "1024\n"),
        ];
        machine.put_all("sys/fs/cgroup/memory", &none);
        machine.put_all("sys/fs/cgroup/memory/job/step", &none);
        assert_eq!(machine.kib(), (1000, 800));
        let job = [
            ("memory.limit_in_bytes", "614400\n"),
            ("memory.usage_in_bytes", "512000\n"),
            (
                "memory.stat",
                "inactive_file 1\ntotal_inactive_file 51200\n",
            ),
        ];
        machine.put_all("sys/fs/cgroup/memory/job", &job);
        assert_eq!(machine.kib(), (600, 150));
        assert_eq!(machine.memory().look().unwrap().stall_us, 3);
    }

    #[test]
    fn of_a_group_that_vanishes_the_rest_counts_and_it_is_named() {
        let machine = Machine::new("4:memory:/job/step\n");
        let job = [
            ("memory.limit_in_bytes", "614400\n"),
            ("memory.usage_in_bytes", "0\n"),
        ];
        machine.put_all("sys/fs/cgroup/memory/job/step", &job);
        let now = machine.memory().look().unwrap();
        assert_eq!((now.total_bytes >> 10, now.missing_group), (600, None));
        let folder = machine.folder.path().join("sys/fs/cgroup/memory/job");
        std::fs::remove_dir_all(&folder).unwrap();
        let now = machine.memory().look().unwrap();
        assert_eq!(now.total_bytes >> 10, 1000);
        assert_eq!(now.missing_group, Some(folder.join("step")));
    }
}
