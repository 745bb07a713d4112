//! The block devices below a directory, as /sys describes them, and what can be said of flushes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_types::format_duration;

use super::finding::{Finding, Grade};
use super::trials::Times;
use crate::mounts::MountEntry;

/// Devices on devices: no deeper than this.
const DEPTH_MAX: usize = 8;
/// Below this no disk that turns can have put a block on a platter: 15,000 turns a minute are 4 ms
/// a turn, and a quarter of a turn is what a lucky block waits.
const TURNS_IN: Duration = Duration::from_millis(1);
/// Above this a program that syncs often waits for the device most of the time.
const SLOW_FLUSH: Duration = Duration::from_millis(5);
/// Field of `stat` (block/stat.rst): flush requests that are done.
const FLUSHES_FIELD: usize = 15;

/// One device at the bottom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// As in /sys/block.
    pub name: String,
    /// What its queue says: `write back` is a volatile cache, `write through` none.
    pub write_cache: Option<String>,
    /// Whether its queue says that it turns.
    pub rotational: Option<bool>,
    /// Of a loop device, the file behind it.
    pub backing_file: Option<String>,
    /// Where its counters are.
    stat: PathBuf,
}

impl Device {
    fn read(dir: &Path) -> Device {
        let text = |name: &str| {
            let text = std::fs::read_to_string(dir.join(name)).ok()?;
            Some(text.trim().to_string())
        };
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        Device {
            name: name.into_owned(),
            write_cache: text("queue/write_cache"),
            rotational: text("queue/rotational").map(|flag| flag == "1"),
            backing_file: text("loop/backing_file"),
            stat: dir.join("stat"),
        }
    }

    fn is_memory(&self) -> bool {
        self.name.starts_with("zram") || self.name.starts_with("ram")
    }

    fn has_volatile_cache(&self) -> bool {
        self.write_cache.as_deref() == Some("write back")
    }

    /// Flush requests that the kernel has sent and that are done, since the start of the machine.
    /// `None` where there never was one: some devices (NVMe with several paths) do not count them.
    fn flushes(&self) -> Option<u64> {
        flushes_of(&std::fs::read_to_string(&self.stat).ok()?).filter(|count| *count > 0)
    }
}

fn flushes_of(stat: &str) -> Option<u64> {
    stat.split_ascii_whitespace()
        .nth(FLUSHES_FIELD)?
        .parse()
        .ok()
}

/// Flushes of all of them; `None` where one does not count.
pub fn flushes(devices: &[Device]) -> Option<u64> {
    match devices.is_empty() {
        true => None,
        false => devices.iter().map(Device::flushes).sum(),
    }
}

/// The devices at the bottom of the file system that a directory is in: none of memory, network
/// and overlay file systems.
pub fn below(dir: &Path, mount: Option<&MountEntry>) -> Vec<Device> {
    let number = std::fs::metadata(dir).map(|meta| meta.dev());
    let own = number.ok().filter(|dev| rustix::fs::major(*dev) != 0);
    // Btrfs has a number of its own, which is no device's: its source is one.
    let source = || {
        let source = &mount?.source;
        let is_path = source.starts_with("/dev");
        let meta = std::fs::metadata(source).ok().filter(|_| is_path)?;
        Some(meta.rdev()).filter(|dev| rustix::fs::major(*dev) != 0)
    };
    let mut found = Vec::new();
    if let Some(dev) = own.or_else(source) {
        let link = format!(
            "/sys/dev/block/{}:{}",
            rustix::fs::major(dev),
            rustix::fs::minor(dev)
        );
        if let Ok(dir) = std::fs::canonicalize(link) {
            descend(&dir, DEPTH_MAX, &mut found);
        }
    }
    found
}

fn descend(dir: &Path, depth: usize, found: &mut Vec<Device>) {
    // A partition's queue is its disk's.
    let whole = match dir.join("partition").exists() {
        true => dir.parent().unwrap_or(dir),
        false => dir,
    };
    let slaves = std::fs::read_dir(whole.join("slaves"))
        .into_iter()
        .flatten();
    let below: Vec<PathBuf> = slaves
        .filter_map(|entry| std::fs::canonicalize(entry.ok()?.path()).ok())
        .collect();
    if below.is_empty() || depth == 0 {
        let device = Device::read(whole);
        if !found.contains(&device) {
            found.push(device);
        }
        return;
    }
    for dir in below {
        descend(&dir, depth - 1, found);
    }
}

/// What the devices say of themselves.
pub fn judge_kind(devices: &[Device]) -> Vec<Finding> {
    if devices.is_empty() {
        return Vec::new();
    }
    let one = |device: &Device| {
        let cache = match device.write_cache.as_deref() {
            Some("write back") => "says that it has a volatile write cache",
            Some("write through") => "says that it has no volatile write cache",
            _ => "does not say whether it has a write cache",
        };
        let turns = match device.rotational {
            Some(true) => ", and that it turns",
            Some(false) => ", and that it does not turn",
            None => "",
        };
        let file = device.backing_file.as_ref();
        let file = file.map_or_else(String::new, |file| format!(" (a loop device of {file})"));
        format!("{}{file} {cache}{turns}", device.name)
    };
    let found = devices.iter().map(one).collect::<Vec<_>>().join("; ");
    let finding = if devices.iter().any(Device::is_memory) {
        let todo = "give a directory on flash: what is in memory goes with the machine's power, also after an fsync";
        Finding::new("device", Grade::Bad, format!("{found}; it is memory"), todo)
    } else if devices.iter().any(|device| device.backing_file.is_some()) {
        let todo =
            "a loop device is as safe and as fast as the file system of its file: look at that one";
        Finding::new("device", Grade::Note, found, todo)
    } else if devices.iter().any(|device| device.rotational == Some(true)) {
        let todo = "a disk that turns is slow where many files are written at once; virtual disks may say so \
                    without being one";
        Finding::new("device", Grade::Note, found, todo)
    } else {
        Finding::ok("device", found)
    };
    vec![finding]
}

/// What can be said of fsync: how long it takes, whether flushes reach the device, and what nobody
/// can tell from outside.
pub fn judge_flushes(devices: &[Device], times: &Times, flushes: Option<u64>) -> Finding {
    let median = times.median();
    let (low, high) = times.range();
    let count = times.count() as u64;
    let measured = format!(
        "fsync of a 4 KiB block that was written over: median {} ({} to {}, {count} times)",
        micros(median),
        micros(low),
        micros(high)
    );
    let volatile = devices.iter().any(Device::has_volatile_cache);
    let turns = devices.iter().any(|device| device.rotational == Some(true));
    let sent = match flushes {
        Some(sent) if !devices.is_empty() => {
            format!(
                ", and {sent} flushes were sent to the device meanwhile, those of others included"
            )
        }
        _ => String::new(),
    };
    let (grade, found, todo) = if volatile && flushes == Some(0) {
        (
            Grade::Bad,
            format!("{measured}{sent}, though it has a volatile cache: fsync does not reach stable storage"),
            "look for `nobarrier` in the mount options, or for a layer in between that passes no flushes on; until \
             then what fsync promised may be lost with the power"
                .to_string(),
        )
    } else if turns && median < TURNS_IN {
        (
            Grade::Note,
            format!("{measured}{sent}: a disk that turns cannot have written that fast"),
            "something answers before the disk has written: a cache with a battery, a host that caches for a virtual \
             disk, or a device that ignores flushes. Which it is cannot be told from here: ask who runs the storage"
                .to_string(),
        )
    } else if volatile && median < TURNS_IN {
        (
            Grade::Note,
            format!("{measured}{sent}"),
            "so fast is a drive whose cache survives a loss of power, and a drive that ignores flushes as well. No \
             program can tell them apart without cutting the power: look for \"power loss protection\" in its data sheet"
                .to_string(),
        )
    } else if median >= SLOW_FLUSH {
        (
            Grade::Slow,
            format!("{measured}{sent}"),
            "programs that fsync small pieces wait for this device; a drive with power loss protection answers in \
             well below a millisecond"
                .to_string(),
        )
    } else if volatile {
        (Grade::Ok, format!("{measured}{sent}"), String::new())
    } else {
        (
            Grade::Ok,
            format!(
                "{measured}{sent}; that the device has no volatile cache is what it says, and is not measured"
            ),
            String::new(),
        )
    };
    Finding::new("flushes", grade, found, todo)
        .with("fsync_median_s", median.as_secs_f64())
        .with("fsync_min_s", low.as_secs_f64())
        .with("fsync_max_s", high.as_secs_f64())
        .with("fsyncs", count)
        .with("flushes", flushes)
}

/// A duration with the unit that fits, down to microseconds.
pub fn micros(time: Duration) -> String {
    match time < Duration::from_millis(1) {
        true => format!("{} us", time.as_micros()),
        false if time < Duration::from_secs(1) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        false => format_duration(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, cache: &str, turns: bool) -> Device {
        Device {
            name: name.into(),
            write_cache: Some(cache.into()),
            rotational: Some(turns),
            backing_file: None,
            stat: PathBuf::new(),
        }
    }

    fn times(micros: u64) -> Times {
        Times::of(vec![Duration::from_micros(micros); 3]).expect("some")
    }

    fn flushed(device: Device, micros: u64, flushes: Option<u64>) -> Finding {
        judge_flushes(&[device], &times(micros), flushes)
    }

    #[test]
    fn counters_of_flushes_are_the_sixteenth() {
        let line = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        assert_eq!(flushes_of(line), Some(16));
        assert_eq!(flushes_of("1 2 3 4 5 6 7 8 9 10 11\n"), None);
        assert_eq!(flushes(&[]), None);
    }

    #[test]
    fn no_flush_at_all_is_bad_only_where_a_cache_may_lose() {
        let bad = flushed(device("sda", "write back", false), 80, Some(0));
        assert_eq!(bad.grade, Grade::Bad);
        assert!(
            bad.found.contains("and 0 flushes were sent"),
            "{}",
            bad.found
        );
        let fine = flushed(device("sda", "write through", false), 80, Some(0));
        assert_eq!(fine.grade, Grade::Ok);
        assert!(fine.found.contains("is not measured"), "{}", fine.found);
    }

    #[test]
    fn what_cannot_be_known_is_said() {
        let fast = flushed(device("nvme0n1", "write back", false), 40, Some(24));
        assert_eq!(fast.grade, Grade::Note);
        assert!(fast.todo.contains("No program can tell"), "{}", fast.todo);
        let turns = flushed(device("sda", "write back", true), 40, Some(24));
        assert_eq!(turns.grade, Grade::Note);
        assert!(turns.found.contains("cannot have written that fast"));
        assert!(turns.todo.contains("cannot be told from here"));
    }

    #[test]
    fn a_flush_of_milliseconds_is_real_and_slow() {
        assert_eq!(
            flushed(device("sda", "write back", false), 2000, Some(24)).grade,
            Grade::Ok
        );
        assert_eq!(
            flushed(device("sda", "write back", false), 9000, Some(24)).grade,
            Grade::Slow
        );
    }

    #[test]
    fn memory_is_no_flash() {
        let [finding] = &judge_kind(&[device("zram0", "write through", false)])[..] else {
            panic!("one finding");
        };
        assert_eq!(finding.grade, Grade::Bad);
        assert_eq!(
            judge_kind(&[device("nvme0n1", "write back", false)])[0].grade,
            Grade::Ok
        );
        assert!(judge_kind(&[]).is_empty());
    }

    #[test]
    fn times_have_units() {
        let text = [40, 1500, 90_000_000].map(|time| micros(Duration::from_micros(time)));
        assert_eq!(text, ["40 us", "1.5 ms", "1m 30s"]);
    }
}
