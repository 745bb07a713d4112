//! The kernel's block-I/O controller holds the checkpoint rate at the device, where kernel
//! passthrough and the page cache go round the server. Off unless asked for: the limit is the
//! device's, whoever writes there.
//!
//! cgroup v1 (`blkio`): the limit is set for the server's own group. Where that is the root group,
//! write-back belongs to it. cgroup v2 (`io.max`): the limit is set for the server's own group,
//! which must not be the root. It covers what the server writes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::base::settings::Settings;

/// Limits that differ by less than this share are not set anew.
const SAME: f64 = 0.02;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Controller {
    V1(PathBuf),
    V2(PathBuf),
}

impl Controller {
    /// The file and the line that limit writes to a device; `None` lifts the limit.
    fn order(&self, device: &str, limit: Option<u64>) -> (&Path, String) {
        match (self, limit) {
            (Controller::V1(file), limit) => (file, format!("{device} {}\n", limit.unwrap_or(0))),
            (Controller::V2(file), Some(limit)) => (file, format!("{device} wbps={limit}\n")),
            (Controller::V2(file), None) => (file, format!("{device} wbps=max\n")),
        }
    }
}

struct State {
    controller: Option<Controller>,
    devices: Vec<String>,
    limit: Option<f64>,
}

/// The write limit that is set at the devices of the flash directories, if there is one.
pub struct BlockIo {
    state: Mutex<State>,
}

/// The group of this process with a controller, below where that is mounted.
fn controller(groups: &str, root: &Path) -> Option<Controller> {
    let mut unified = None;
    for line in groups.lines() {
        let mut words = line.splitn(3, ':');
        let (Some(_), Some(names), Some(group)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let group = group.trim_start_matches('/');
        if names.split(',').any(|n| n == "blkio") {
            let file = root
                .join("blkio")
                .join(group)
                .join("blkio.throttle.write_bps_device");
            if file.exists() {
                return Some(Controller::V1(file));
            }
        } else if names.is_empty() {
            unified = Some(root.join(group).join("io.max"));
        }
    }
    unified.filter(|file| file.exists()).map(Controller::V2)
}

/// The disk below a directory as `major:minor`: limits are a whole disk's.
fn device(dir: &Path) -> Option<String> {
    let dev = dir.metadata().ok()?.dev();
    let number = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let here = std::fs::canonicalize(Path::new("/sys/dev/block").join(&number)).ok()?;
    if !here.join("partition").exists() {
        return Some(number);
    }
    let disk = std::fs::read_to_string(here.parent()?.join("dev")).ok()?;
    Some(disk.trim().to_string())
}

impl BlockIo {
    /// Finds controller and devices where it is asked for; lifts what a killed server has left.
    pub fn new(settings: &Settings) -> BlockIo {
        let mut state = State {
            controller: None,
            devices: Vec::new(),
            limit: Some(0.0),
        };
        if settings.engine.block_io {
            let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            state.controller = controller(&groups, Path::new("/sys/fs/cgroup"));
            state.devices = settings.ssd.iter().filter_map(|s| device(&s.dir)).collect();
            if state.controller.is_none() || state.devices.is_empty() {
                tracing::warn!(
                    "block_io: no block-I/O controller or no block device here; limits are held without"
                );
            }
        }
        let block_io = BlockIo {
            state: Mutex::new(state),
        };
        block_io.limit(None);
        block_io
    }

    /// Sets or lifts the limit of writes, bytes/s.
    pub fn limit(&self, bytes_per_s: Option<f64>) {
        let mut state = self.state.lock();
        let Some(controller) = state.controller.clone() else {
            return;
        };
        let same = match (state.limit, bytes_per_s) {
            (None, None) => true,
            (Some(was), Some(now)) => (was - now).abs() <= was * SAME,
            _ => false,
        };
        if same {
            return;
        }
        state.limit = bytes_per_s;
        for device in &state.devices {
            let (file, line) = controller.order(device, bytes_per_s.map(|b| (b as u64).max(1)));
            if let Err(error) = std::fs::write(file, line) {
                tracing::warn!(
                    "block_io: {}: {error}; limits are held without",
                    file.display()
                );
                state.controller = None;
                return;
            }
        }
    }
}

impl Drop for BlockIo {
    fn drop(&mut self) {
        self.limit(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_controller_of_this_group() {
        let root = tempfile::tempdir().expect("tempdir");
        let (v1, v2) = (root.path().join("blkio/job"), root.path().join("job2"));
        std::fs::create_dir_all(&v1).expect("v1");
        std::fs::create_dir_all(&v2).expect("v2");
        let groups = "7:blkio:/job\n4:memory:/x\n0::/job2\n";
        assert_eq!(controller(groups, root.path()), None);
        std::fs::write(v2.join("io.max"), "").expect("io.max");
        let second = controller(groups, root.path()).expect("v2");
        assert_eq!(second.order("8:0", Some(5)).1, "8:0 wbps=5\n");
        assert_eq!(second.order("8:0", None).1, "8:0 wbps=max\n");
        std::fs::write(v1.join("blkio.throttle.write_bps_device"), "").expect("v1");
        let first = controller(groups, root.path()).expect("v1");
        assert_eq!(
            first.order("7:1", None),
            (
                &*v1.join("blkio.throttle.write_bps_device"),
                "7:1 0\n".into()
            )
        );
    }
}
