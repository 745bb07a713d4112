//! Memory of the machine.

use std::path::Path;

/// Memory that this process could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All of the machine's, bytes.
    pub total_bytes: u64,
    /// What can be had without swapping, bytes: of the machine, or of the tightest control group
    /// (version 2) around this process.
    pub available_bytes: u64,
}

impl MachineMemory {
    /// As it is now; `None` where the kernel does not say.
    pub fn now() -> Option<MachineMemory> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let available = field_bytes(&text, "MemAvailable:")?;
        Some(MachineMemory {
            total_bytes: field_bytes(&text, "MemTotal:")?,
            available_bytes: group_available_bytes().map_or(available, |g| g.min(available)),
        })
    }
}

fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn group_available_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let mut folder = root.join(own);
    let mut least: Option<u64> = None;
    while folder.starts_with(root) {
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        if let (Some(max), Some(current)) = (number("memory.max"), number("memory.current")) {
            let cached = read("memory.stat")
                .and_then(|stat| inactive_file_bytes(&stat))
                .unwrap_or(0);
            let free = max.saturating_sub(current.saturating_sub(cached));
            least = Some(least.map_or(free, |other| other.min(free)));
        }
        if !folder.pop() {
            break;
        }
    }
    least
}

fn inactive_file_bytes(stat: &str) -> Option<u64> {
    stat.lines()
        .find_map(|line| line.strip_prefix("inactive_file "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:   64 kB\n";
        assert_eq!(field_bytes(meminfo, "MemAvailable:"), Some(65536));
        assert_eq!(field_bytes(meminfo, "Swap:"), None);
        assert_eq!(
            inactive_file_bytes("anon 1\ninactive_file 4096\n"),
            Some(4096)
        );
        let now = MachineMemory::now().unwrap();
        assert!(now.available_bytes <= now.total_bytes, "{now:?}");
    }
}
