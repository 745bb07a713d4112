//! Tells flash below the tiers which blocks are free (FITRIM), after enough was deleted and not
//! faster than told.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::lifecycle::Lifecycle;

/// Between two blocks.
const STEP: Duration = Duration::from_secs(1);
/// A discard of the whole file system begins after that share of the tiers was deleted: each visits
/// all free blocks.
const DELETED_SHARE: u64 = 16;
/// `_IOWR('X', 121, struct fstrim_range)`.
const FITRIM: libc::c_ulong = 0xc018_5879;

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
    min_len: u64,
}

/// A file system that is discarded piece by piece.
struct Pass {
    dir: File,
    at: u64,
    end: u64,
}

/// Whether the device below a directory takes discards.
fn is_supported(dir: &Path) -> bool {
    let Ok(meta) = dir.metadata() else {
        return false;
    };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition's queue is that of the whole disk.
    [device.join("queue"), device.join("../queue")]
        .iter()
        .any(|queue| {
            let most = std::fs::read_to_string(queue.join("discard_max_bytes"));
            most.is_ok_and(|most| most.trim() != "0")
        })
}

impl Pass {
    fn begin(dir: &Path) -> std::io::Result<Pass> {
        let stat = rustix::fs::statvfs(dir)?;
        let dir = File::open(dir)?;
        // What was deleted is free when the file system has committed that, and no earlier.
        rustix::fs::syncfs(&dir)?;
        Ok(Pass {
            dir,
            at: 0,
            end: stat.f_blocks * stat.f_frsize,
        })
    }

    /// Discards what is free in the next `bytes`. Whether more is left.
    fn step(&mut self, bytes: u64) -> std::io::Result<bool> {
        let range = Range {
            start: self.at,
            len: bytes,
            min_len: 0,
        };
        // SAFETY: FITRIM reads and writes one `fstrim_range`, which `range` is laid out as and
        // which lives until it returns.
        let done = unsafe { libc::ioctl(self.dir.as_raw_fd(), FITRIM as _, &raw const range) };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
        self.at = self.at.saturating_add(bytes);
        Ok(self.at < self.end)
    }
}

/// The thread that discards; ends at once where no device takes discards or it is switched off.
pub fn run(lifecycle: &Arc<Lifecycle>) {
    let rate = lifecycle.settings.engine.discard_bytes_per_s;
    let dirs = lifecycle.settings.ssd.iter().map(|s| s.dir.clone());
    let mut dirs: Vec<PathBuf> = dirs.filter(|dir| is_supported(dir)).collect();
    let mut discarded_at = 0;
    let mut passes: Vec<Pass> = Vec::new();
    while !lifecycle.base.is_ending() && rate > 0 && !(dirs.is_empty() && passes.is_empty()) {
        lifecycle.base.life().pause(STEP);
        let deleted = lifecycle
            .base
            .counters()
            .deleted_bytes
            .load(Ordering::Relaxed);
        let (_, capacity) = lifecycle.buffer.ledger().dirty_and_capacity();
        if passes.is_empty() && deleted - discarded_at > capacity / DELETED_SHARE {
            discarded_at = deleted;
            let begin = |dir: &PathBuf| {
                let begun = Pass::begin(dir);
                begun.inspect_err(|error| {
                    tracing::info!("{} is not told of free blocks: {error}", dir.display());
                })
            };
            passes.extend(dirs.iter().filter_map(|dir| begin(dir).ok()));
        }
        let Some(pass) = passes.last_mut() else {
            continue;
        };
        match pass.step(rate) {
            Ok(true) => {}
            Ok(false) => {
                passes.pop();
            }
            Err(error) => {
                tracing::info!("flash is not told of free blocks: {error}");
                passes.clear();
                dirs.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_takes_no_discards() {
        assert!(!is_supported(Path::new("/proc")));
        assert!(!is_supported(Path::new("/nowhere")));
    }
}
