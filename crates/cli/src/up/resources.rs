//! What the machine has: memory, space, /dev/fuse, the right to mount.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_server::{MachineMemory, Settings};
use forebay_types::format_size;

use super::settle;
use crate::exit::{Explain, Failure, reason};
use crate::mounts::MountEntry;

/// Bit of CAP_SYS_ADMIN in a capability set.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Raises the limit of descriptors, and returns the new one. Each file that a program has open here
/// takes a descriptor while there are enough. Where that is allowed (`CAP_SYS_RESOURCE`), the limit
/// becomes what the kernel lets any process have, else the hard limit.
pub fn raise_open_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let hard = getrlimit(Resource::Nofile).maximum;
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let most: Option<u64> = most.ok().and_then(|text| text.trim().parse().ok());
    let raise = |to: Option<u64>| {
        let limit = Rlimit {
            current: to,
            maximum: to,
        };
        setrlimit(Resource::Nofile, limit).is_ok()
    };
    // Only a process that may raise the hard limit gets the kernel's limit.
    if most.is_none() || most < hard || !raise(most) {
        // Where not even this is allowed, the limit stays, and is said.
        raise(hard);
    }
    getrlimit(Resource::Nofile).current
}

/// /dev/fuse can be used, and somebody may mount.
pub fn check_fuse() -> Result<(), Failure> {
    let device = Path::new("/dev/fuse");
    let todo =
        "load the kernel module (modprobe fuse); in a container, start it with --device /dev/fuse";
    let metadata = std::fs::metadata(device).explain("/dev/fuse", todo)?;
    if !metadata.file_type().is_char_device() {
        return Err(Failure::fatal(format!("/dev/fuse: not a device; {todo}")));
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(device) {
        return Err(Failure::fatal(match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => format!(
                "/dev/fuse: {}; ask for access to it (chmod 666 /dev/fuse is usual), or in a container start it \
                 with --device /dev/fuse",
                reason(&error)
            ),
            _ => format!("/dev/fuse: {}; {todo}", reason(&error)),
        }));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if may_mount() {
        return Ok(());
    }
    if !has_admin(&status, "CapBnd:") {
        return Err(Failure::fatal(
            "up: no permission to mount: CAP_SYS_ADMIN cannot be had here; in a container add --cap-add SYS_ADMIN",
        ));
    }
    if find_program("fusermount3").is_none() {
        return Err(Failure::fatal(
            "up: no permission to mount: not root, and there is no fusermount3; install the package fuse3",
        ));
    }
    if status
        .lines()
        .any(|line| line.starts_with("NoNewPrivs:") && line.ends_with('1'))
    {
        return Err(Failure::fatal(
            "up: no permission to mount: not root, and this process must gain no rights, which fusermount3 needs; \
             start it outside of the sandbox",
        ));
    }
    Ok(())
}

/// Other users may be let in: root always, others where /etc/fuse.conf says so.
pub fn check_allow_other() -> Result<(), Failure> {
    let text = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if may_mount() || text.lines().any(|line| line.trim() == "user_allow_other") {
        return Ok(());
    }
    Err(Failure::fatal(
        "--allow-other: only root may, unless /etc/fuse.conf has the line user_allow_other; leave it out or ask for that line",
    ))
}

/// Whether this process may mount by itself.
pub fn may_mount() -> bool {
    has_admin(
        &std::fs::read_to_string("/proc/self/status").unwrap_or_default(),
        "CapEff:",
    )
}

/// Whether CAP_SYS_ADMIN is in one of the sets of /proc/self/status.
fn has_admin(status: &str, set: &str) -> bool {
    has_capability(status, set, CAP_SYS_ADMIN)
}

/// Whether a capability, by its bit, is in one of the sets of /proc/self/status.
pub fn has_capability(status: &str, set: &str, capability: u64) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix(set));
    let bits = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & capability != 0)
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Ids below this are of users of the system itself, whose files logind keeps.
const FIRST_USER: u32 = 1000;

/// What an ordinary user should know of memory that is borrowed without a mount: logind takes it
/// back.
pub fn borrowed_until_logout(settings: &Settings) -> Option<&'static str> {
    let by_mount = settings.dram_bytes.is_none() || may_mount();
    let is_user = rustix::process::geteuid().as_raw() >= FIRST_USER;
    (!by_mount && is_user && logind_runs(Path::new("/run"))).then_some(
        "the memory tier is in /dev/shm: systemd may remove it, with what is not on the PFS yet, when your last session here \
         ends; `loginctl enable-linger` keeps it, or stop with `forebay down --drain` before",
    )
}

/// Whether sessions end here as logind ends them: systemd is what has booted (as sd_booted(3) finds
/// out), and logind has its first seat. Images of containers have empty folders of both.
fn logind_runs(run: &Path) -> bool {
    let booted = std::fs::symlink_metadata(run.join("systemd/system")).is_ok_and(|m| m.is_dir());
    booted && run.join("systemd/seats/seat0").exists()
}

/// The memory asked for is there. What a former instance of the same state still holds counts as
/// there.
pub fn check_memory(settings: &Settings, table: &[MountEntry]) -> Result<(), Failure> {
    let Some(wanted) = settings.dram_bytes else {
        return Ok(());
    };
    if settings.lending.is_some() {
        // It takes what there is.
        return Ok(());
    }
    let Some(available) = MachineMemory::now().map(|memory| memory.available_bytes) else {
        return Ok(());
    };
    let held: u64 = table
        .iter()
        .filter(|entry| entry.fs_type == "tmpfs" && entry.point.starts_with(&settings.state))
        .filter_map(|entry| used_bytes(&entry.point))
        .sum();
    if wanted <= available.saturating_add(held) {
        return Ok(());
    }
    Err(Failure::fatal(format!(
        "{} {} is more than the {} of memory available on this machine; choose less",
        settle::called(settings, "dram"),
        format_size(wanted),
        format_size(available.saturating_add(held))
    )))
}

/// Where `dram_min` is above the most that may be borrowed here: jobs never get any back.
pub fn never_lent(settings: &Settings) -> Option<String> {
    let bounds = settings.lending.as_ref()?.bounds;
    let most = settings.dram_bytes?;
    (bounds.min_bytes > most).then(|| {
        format!(
            "dram_min ({}) is above the most that is borrowed on this machine ({}): the memory tier has that size always, and \
             jobs never get any of it back",
            format_size(bounds.min_bytes),
            format_size(most)
        )
    })
}

/// Bytes in use in a file system.
pub fn used_bytes(path: &Path) -> Option<u64> {
    let fs = rustix::fs::statvfs(path).ok()?;
    Some(
        fs.f_blocks
            .saturating_sub(fs.f_bfree)
            .saturating_mul(fs.f_frsize),
    )
}

/// Each flash directory fits into its file system, and so do several in one file system together.
pub fn check_space(settings: &Settings) -> Result<(), Failure> {
    let mut sums: Vec<(u64, u64)> = Vec::new();
    for one in &settings.ssd {
        let what = one.dir.display();
        let device = std::fs::metadata(&one.dir).explain(&what, "")?.dev();
        let fs = rustix::fs::statvfs(&one.dir).explain(&what, "")?;
        let has = fs.f_blocks.saturating_mul(fs.f_frsize);
        let others = sums
            .iter()
            .find(|(other, _)| *other == device)
            .map_or(0, |(_, sum)| *sum);
        let wanted = one.capacity_bytes.unwrap_or(0).saturating_add(others);
        if wanted > has {
            let together = if others > 0 {
                " with the other directories there"
            } else {
                ""
            };
            return Err(Failure::fatal(format!(
                "{} {what}: {}{together} is more than its file system has ({}); choose less",
                settle::called(settings, "ssd"),
                format_size(wanted),
                format_size(has)
            )));
        }
        sums.retain(|(other, _)| *other != device);
        sums.push((device, wanted));
    }
    Ok(())
}

/// A file of one byte can be made here, and is taken away again.
pub fn check_writable(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".forebay-probe-{}", std::process::id()));
    let made = File::create(&probe).and_then(|mut file| io::Write::write_all(&mut file, b"\n"));
    let removed = std::fs::remove_file(&probe);
    made.and(removed)
}

#[cfg(test)]
mod tests {
    use forebay_policy::lending::Lending;
    use forebay_server::{LendingSetting, MemoryWay, SsdSetting};

    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n";
        assert!(has_admin(status, "CapEff:") && !has_admin(status, "CapPrm:"));
        assert!(!has_admin(status, "CapBnd:"));
    }

    #[test]
    fn flash_must_fit() {
        let folder = tempfile::tempdir().expect("tempdir");
        let check = |sizes: &[u64]| {
            let mut settings = Settings::new("/p".into(), None, "/s".into());
            settings.ssd.extend(sizes.iter().map(|&bytes| SsdSetting {
                dir: folder.path().into(),
                capacity_bytes: Some(bytes),
            }));
            check_space(&settings)
        };
        check(&[1 << 20]).expect("a MiB fits");
        let error = check(&[1 << 60]).unwrap_err().message;
        assert!(
            error.contains("1.0 EiB is more than its file system has"),
            "{error}"
        );
        let fs = rustix::fs::statvfs(folder.path()).expect("statvfs");
        let most = fs.f_blocks * fs.f_frsize;
        let error = check(&[most, most]).unwrap_err().message;
        assert!(
            error.contains("with the other directories there"),
            "{error}"
        );
    }

    #[test]
    fn sessions_end_only_where_logind_runs() {
        let run = tempfile::tempdir().expect("tempdir");
        let make = |name: &str| std::fs::create_dir_all(run.path().join(name)).expect("mkdir");
        make("systemd/seats");
        assert!(!logind_runs(run.path()));
        make("systemd/system");
        assert!(!logind_runs(run.path()));
        std::fs::write(run.path().join("systemd/seats/seat0"), "IS_SEAT0=1\n").expect("write");
        assert!(logind_runs(run.path()));
    }

    #[test]
    fn memory_must_be_there() {
        let mut settings = Settings::new("/p".into(), None, "/s".into());
        settings.dram_bytes = Some(1 << 60);
        // A server's settings are keys of a file, `up`'s are flags.
        let error = check_memory(&settings, &[]).unwrap_err().message;
        assert!(error.starts_with("dram 1.0 EiB is more than"), "{error}");
        settings.mount = Some("/m".into());
        let error = check_memory(&settings, &[]).unwrap_err().message;
        assert!(error.starts_with("--dram 1.0 EiB is more than"), "{error}");
        settings.dram_bytes = Some(1 << 20);
        check_memory(&settings, &[]).expect("a MiB is there");
    }

    #[test]
    fn a_floor_above_the_ceiling_is_told() {
        let mut settings = Settings::new("/p".into(), None, "/s".into());
        let mut said = |min_bytes, dram_bytes| {
            let bounds = Lending {
                min_bytes,
                ..Lending::default()
            };
            let memory = MemoryWay::default();
            settings.lending = Some(LendingSetting { bounds, memory });
            settings.dram_bytes = Some(dram_bytes);
            never_lent(&settings)
        };
        let line = said(1 << 40, 4 << 30).expect("a warning");
        let start =
            "dram_min (1.0 TiB) is above the most that is borrowed on this machine (4.0 GiB)";
        assert!(line.starts_with(start), "{line}");
        // Whoever gives both the same size means it.
        assert_eq!(said(4 << 30, 4 << 30), None);
        settings.lending = None;
        assert_eq!(never_lent(&settings), None);
    }

    #[test]
    fn probing_leaves_nothing() {
        let folder = tempfile::tempdir().expect("tempdir");
        check_writable(folder.path()).expect("writable");
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("readable").count(),
            0
        );
        assert!(check_writable(&folder.path().join("none")).is_err());
    }
}
