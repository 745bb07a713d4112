//! A directory that is to be a flash tier.

use std::path::Path;

use forebay_types::{Errno, format_size};

use super::finding::{Finding, Grade};
use super::trials::{Trials, Tried};
use crate::mounts::MountEntry;
use crate::up::settle::TIER_BYTES_MIN;

/// File systems in memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems behind a network, and those of a process of their own.
const NOT_LOCAL: [&str; 9] = [
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "fuse",
];
/// File systems that the tests of Forebay run on.
const TESTED: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// Whether it is a file system in memory.
pub fn is_memory(mount: Option<&MountEntry>) -> bool {
    mount.is_some_and(|mount| IN_MEMORY.contains(&mount.fs_type.as_str()))
}

/// Of which file system it is, and how that is mounted.
pub fn judge_mount(mount: Option<&MountEntry>) -> Vec<Finding> {
    let Some(mount) = mount else {
        let todo = "is /proc mounted?";
        return vec![Finding::new(
            "file system",
            Grade::Note,
            "not in the mount table",
            todo,
        )];
    };
    let kind = mount.fs_type.as_str();
    let found = format!("{kind}, mounted on {}", mount.point.display());
    let base = kind.split('.').next().unwrap_or(kind);
    let first = if IN_MEMORY.contains(&kind) {
        let todo = "give a directory on flash: what is in memory goes with the machine's power, also after an fsync \
                    (`--dram` is for memory)";
        Finding::new(
            "file system",
            Grade::Bad,
            format!("{found}: it is memory"),
            todo,
        )
    } else if NOT_LOCAL.contains(&base) {
        let todo = "a flash tier should be a local file system: each write would go through a network or another process";
        Finding::new("file system", Grade::Slow, found, todo)
    } else if TESTED.contains(&kind) {
        Finding::ok("file system", found)
    } else {
        let todo = "Forebay is tested with ext4, XFS and Btrfs here; the findings below are what was tried on this one";
        Finding::new("file system", Grade::Note, found, todo)
    };
    let mut findings = vec![first];
    findings.extend(judge_options(mount));
    findings
}

/// Options that change what a flush or a deletion does.
fn judge_options(mount: &MountEntry) -> Option<Finding> {
    let is = |option: &str| mount.options.iter().any(|one| one == option);
    let (grade, option, todo) = if is("ro") {
        (Grade::Bad, "ro", "mount it writable")
    } else if is("nobarrier") || is("barrier=0") {
        let todo = "mount it with barriers: without them the file system sends no flushes, and a device with a volatile \
                    cache loses at a power cut what fsync has promised";
        (Grade::Bad, "nobarrier", todo)
    } else if is("sync") {
        (
            Grade::Slow,
            "sync",
            "mount it without `sync`: every write waits for the device",
        )
    } else if is("dirsync") {
        let todo = "mount it without `dirsync`: every new name waits for the device";
        (Grade::Slow, "dirsync", todo)
    } else if is("data=writeback") {
        let todo = "after a power cut files that were not fsynced may hold what other files held before; Forebay \
                    believes none of those, so nothing need be done";
        (Grade::Note, "data=writeback", todo)
    } else if is("discard") {
        let todo = "deletions tell the device at once. Some devices stall then: if the burst buffer is slow while it \
                    evicts, mount without `discard` and run fstrim from a timer";
        (Grade::Note, "discard", todo)
    } else {
        return None;
    };
    Some(Finding::new(
        "mount options",
        grade,
        format!("mounted with `{option}`"),
        todo,
    ))
}

/// What was tried.
pub fn judge(trials: &Trials) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needs = |check, tried: Tried, grade, todo: &str| {
        findings.push(match tried {
            Ok(()) => Finding::ok(check, "works"),
            Err(error) => Finding::new(
                check,
                grade,
                format!("does not work: {}", error.message()),
                todo,
            ),
        });
    };
    needs(
        "extended attributes",
        trials.xattr,
        Grade::Slow,
        "what an object says of itself goes into a second file beside it; a file system with `user.` attributes saves that",
    );
    needs(
        "fallocate",
        trials.fallocate,
        Grade::Note,
        "programs that set space aside by fallocate get an error; ext4, XFS and Btrfs know it",
    );
    needs(
        "punching holes",
        trials.punch,
        Grade::Note,
        "programs that give space back in the midst of a file get an error",
    );
    needs(
        "O_DIRECT",
        trials.direct,
        Grade::Note,
        "a program that opens a file with O_DIRECT may get an error while the kernel reads and writes by itself",
    );
    needs(
        "unnamed files",
        trials.unnamed,
        Grade::Note,
        "`forebay calibrate` and the check of the media need them, and do not run here",
    );
    findings.push(judge_lease(trials.lease));
    findings
}

/// Leases tell whether somebody still writes a file.
fn judge_lease(tried: Tried) -> Finding {
    let Err(error) = tried else {
        return Finding::ok("leases", "work");
    };
    let enabled = std::fs::read_to_string("/proc/sys/fs/leases-enable");
    lease_refused(error, enabled.ok().as_deref().map(str::trim))
}

fn lease_refused(error: Errno, enabled: Option<&str>) -> Finding {
    let todo = match enabled {
        Some("0") => "sysctl fs.leases-enable=1",
        _ => "use a file system with leases, such as ext4 or XFS",
    };
    let setting = enabled.map_or_else(String::new, |value| {
        format!(" (fs.leases-enable is {value})")
    });
    let why = error.message();
    Finding::new(
        "leases",
        Grade::Bad,
        format!(
            "refused: {why}{setting}: the kernel does not tell who writes a file, and such a file is not drained"
        ),
        todo,
    )
}

/// Free space and inodes of the file system of a directory. `overrun`: what a flash tier needs
/// beyond its own size, where passthrough is to be had.
pub fn judge_space(dir: &Path, overrun: Option<u64>) -> Finding {
    match rustix::fs::statvfs(dir) {
        Ok(fs) => {
            let free = fs.f_bavail.saturating_mul(fs.f_frsize);
            let total = fs.f_blocks.saturating_mul(fs.f_frsize);
            // Some file systems make inodes as they need them, and count none.
            let inodes = (fs.f_files > 0).then_some(fs.f_favail);
            space(free, total, inodes, overrun.unwrap_or(0))
        }
        Err(error) => Finding::new(
            "space",
            Grade::Bad,
            format!("not known: {}", Errno(error.raw_os_error()).message()),
            "does its server answer?",
        ),
    }
}

fn space(free: u64, total: u64, inodes: Option<u64>, overrun: u64) -> Finding {
    let mut found = format!("{} of {} free", format_size(free), format_size(total));
    if let Some(inodes) = inodes {
        found.push_str(&format!(", and {inodes} files more"));
    }
    let finding = match (free < TIER_BYTES_MIN, inodes) {
        (true, _) => Finding::new(
            "space",
            Grade::Bad,
            found,
            "make room, or choose another directory",
        ),
        (false, Some(0)) => {
            let todo = "remove files, or choose a file system with more inodes";
            Finding::new("space", Grade::Bad, found, todo)
        }
        _ if free < overrun => {
            let least = format_size(overrun);
            let todo = format!(
                "keep {least} free beside the tier: without it the kernel does not read and write files there by itself"
            );
            Finding::new("space", Grade::Slow, found, todo)
        }
        _ => Finding::ok("space", found),
    };
    finding
        .with("free_bytes", free)
        .with("total_bytes", total)
        .with("free_inodes", inodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, options: &[&str]) -> MountEntry {
        MountEntry {
            root: "/".into(),
            point: "/nvme".into(),
            fs_type: kind.into(),
            source: "/dev/x".into(),
            options: options.iter().map(|option| option.to_string()).collect(),
        }
    }

    fn grades(kind: &str, options: &[&str]) -> Vec<Grade> {
        let findings = judge_mount(Some(&mount(kind, options)));
        findings.iter().map(|one| one.grade).collect()
    }

    #[test]
    fn file_systems() {
        assert_eq!(grades("xfs", &["rw", "noatime"]), [Grade::Ok]);
        assert_eq!(grades("tmpfs", &["rw"]), [Grade::Bad]);
        assert_eq!(grades("fuse.bindfs", &["rw"]), [Grade::Slow]);
        assert_eq!(grades("overlay", &["rw"]), [Grade::Note]);
        assert_eq!(judge_mount(None)[0].grade, Grade::Note);
    }

    #[test]
    fn options_that_matter() {
        for (option, grade) in [
            ("nobarrier", Grade::Bad),
            ("barrier=0", Grade::Bad),
            ("ro", Grade::Bad),
            ("sync", Grade::Slow),
            ("data=writeback", Grade::Note),
            ("discard", Grade::Note),
        ] {
            assert_eq!(
                grades("ext4", &["rw", option]),
                [Grade::Ok, grade],
                "{option}"
            );
        }
        // The worst one is named.
        let findings = judge_mount(Some(&mount("ext4", &["discard", "nobarrier"])));
        assert_eq!(findings[1].found, "mounted with `nobarrier`");
    }

    #[test]
    fn leases_that_are_switched_off_are_told_from_missing_ones() {
        let off = lease_refused(Errno::EINVAL, Some("0"));
        assert_eq!(off.todo, "sysctl fs.leases-enable=1");
        let none = lease_refused(Errno::EINVAL, Some("1"));
        assert!(none.todo.starts_with("use a file system"), "{none:?}");
        assert_eq!((off.grade, none.grade), (Grade::Bad, Grade::Bad));
    }

    #[test]
    fn too_little_space_is_bad() {
        assert_eq!(space(1 << 30, 1 << 40, None, 0).grade, Grade::Ok);
        assert_eq!(space(1 << 30, 1 << 40, None, 2 << 30).grade, Grade::Slow);
        assert_eq!(
            space(TIER_BYTES_MIN - 1, 1 << 40, None, 0).grade,
            Grade::Bad
        );
        assert_eq!(space(1 << 30, 1 << 40, Some(0), 0).grade, Grade::Bad);
    }
}
