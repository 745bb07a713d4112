//! Measures the four bandwidths and the interference line of the tiers at hand, with short bounded I/O.
//!
//! One nameless file in the fastest flash tier (memory where there is none) and one on the PFS; nothing is left behind, not even by a
//! crash. Three measurements, each of at most a few seconds: writes alone (Bwmax), copies to the PFS alone (Brmax), both at
//! once. The line goes through the first and the last, and gives Bwmin at Brmax.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_policy::engine::Bandwidths;
use forebay_policy::plan::InterferenceLine;
use forebay_types::Errno;
use forebay_wire::control::{Calibrated, CalibrationStep};

use crate::core::Core;

/// Name under which the bandwidths are on record.
const NAME: &str = "bandwidths";
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes written between two flushes: so much is in the page cache at most.
const FLUSH_BYTES: u64 = 32 << 20;
/// Most bytes that a file of a measurement takes; it is written over and over.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// A demotion that takes no more of the write rate than this share is one that does not disturb.
const UNDISTURBED: f64 = 0.05;
/// Brmin where demotion does not disturb, as a share of Brmax.
const BR_MIN_SHARE: f64 = 0.05;

/// What was measured so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Samples {
    bw_alone: f64,
    br_alone: f64,
}

/// What both did side by side, bytes/s.
#[derive(Clone, Copy, Debug)]
struct Beside {
    bw: f64,
    br: f64,
}

/// A file without a name in a directory; where that cannot be had, one whose name goes at once.
fn nameless(dir: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    match options
        .clone()
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(dir)
    {
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
            ) =>
        {
            let path = dir.join(format!(".forebay-calibrate-{}.part", std::process::id()));
            let file = options.create_new(true).mode(0o600).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        other => other,
    }
}

/// Writes into `to`, from `from` where there is one, until `until` or `stop`; the rate in bytes/s, flushes included.
fn pump(
    from: Option<&File>,
    to: &File,
    file_bytes: u64,
    until: Instant,
    stop: &AtomicBool,
) -> io::Result<f64> {
    // Not zeros, which some devices do not store.
    let mut chunk: Vec<u8> = (0..CHUNK_BYTES)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761) as u8)
        .collect();
    let started = Instant::now();
    let (mut at, mut moved, mut flushed) = (0, 0u64, 0);
    // One chunk at least: on a busy machine the time may be over before the first.
    while moved == 0 || (Instant::now() < until && !stop.load(Ordering::Relaxed)) {
        if let Some(from) = from {
            from.read_exact_at(&mut chunk, at)?;
        }
        to.write_all_at(&chunk, at)?;
        moved += CHUNK_BYTES as u64;
        at = (at + CHUNK_BYTES as u64) % file_bytes;
        if moved - flushed >= FLUSH_BYTES {
            to.sync_data()?;
            flushed = moved;
        }
    }
    to.sync_data()?;
    Ok(moved as f64 / started.elapsed().as_secs_f64().max(1e-6))
}

/// The four bandwidths and the line from the three measurements.
fn conclude(samples: &Samples, beside: Beside) -> (Bandwidths, Option<InterferenceLine>) {
    let line = InterferenceLine::fit(&[(0.0, samples.bw_alone), (beside.br, beside.bw)]);
    let at_full = line.map_or(beside.bw, |line| line.write_beside(samples.br_alone));
    // Beyond what was measured the line may fall too far.
    let bw_min = at_full.max(beside.bw / 2.0).min(samples.bw_alone);
    let undisturbed = bw_min >= samples.bw_alone * (1.0 - UNDISTURBED);
    let br_min = match undisturbed {
        true => samples.br_alone * BR_MIN_SHARE,
        false => 0.0,
    };
    let bandwidths = Bandwidths {
        bw_max_bytes_per_s: samples.bw_alone,
        bw_min_bytes_per_s: bw_min,
        br_max_bytes_per_s: samples.br_alone.max(beside.br),
        br_min_bytes_per_s: br_min,
    };
    (bandwidths.ordered(), line)
}

impl Core {
    /// Takes what an earlier calibration has put on record, unless the configuration says otherwise.
    pub fn restore_bandwidths(&self) {
        if self.engine.bandwidths().is_some() {
            return;
        }
        let stored = match self.ns.get_fact(NAME) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!("measured bandwidths cannot be read: {error}");
                return;
            }
        };
        let Some(bytes) = stored else { return };
        match postcard::from_bytes::<Bandwidths>(&bytes) {
            Ok(bandwidths) if bandwidths.check().is_ok() => self.engine.set_bandwidths(bandwidths),
            _ => tracing::warn!("measured bandwidths on record make no sense; calibrate again"),
        }
    }

    /// One step of a calibration, of at most `span`; the last takes its outcome into force and on record.
    pub fn calibrate(&self, step: CalibrationStep, span: Duration) -> Result<Calibrated, Errno> {
        let dir = self.calibrated_tier().ok_or(Errno::ENODEV)?;
        let spaces = self.ledger.spaces();
        let free = spaces
            .iter()
            .map(|s| s.available_bytes())
            .max()
            .unwrap_or(0);
        let file_bytes = (free / 2).min(FILE_BYTES_MAX) / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
        if file_bytes == 0 {
            return Err(Errno::ENOSPC);
        }
        let buffer = nameless(&dir)?;
        let pfs = nameless(&self.settings.pfs)?;
        let stop = AtomicBool::new(false);
        let mut calibrated = Calibrated::default();
        let mut samples = self.engine.samples();
        match step {
            CalibrationStep::Write => {
                samples.bw_alone = pump(None, &buffer, file_bytes, Instant::now() + span, &stop)?;
                calibrated.write_bytes_per_s = Some(samples.bw_alone as u64);
            }
            CalibrationStep::Demote => {
                let source = filled(&dir, file_bytes)?;
                samples.br_alone = pump(
                    Some(&source),
                    &pfs,
                    file_bytes,
                    Instant::now() + span,
                    &stop,
                )?;
                calibrated.demotion_bytes_per_s = Some(samples.br_alone as u64);
            }
            CalibrationStep::Both => {
                if samples.bw_alone <= 0.0 || samples.br_alone <= 0.0 {
                    return Err(Errno::EINVAL);
                }
                let source = filled(&dir, file_bytes / 2)?;
                let until = Instant::now() + span;
                let beside = std::thread::scope(|scope| {
                    let demotion =
                        scope.spawn(|| pump(Some(&source), &pfs, file_bytes / 2, until, &stop));
                    let bw = pump(None, &buffer, file_bytes / 2, until, &stop)?;
                    let br = demotion
                        .join()
                        .map_err(|_| io::Error::other("a thread panicked"))??;
                    io::Result::Ok(Beside { bw, br })
                })?;
                let (bandwidths, line) = conclude(&samples, beside);
                bandwidths.check().map_err(|_| Errno::ERANGE)?;
                self.engine.set_bandwidths(bandwidths);
                let bytes = postcard::to_stdvec(&bandwidths).map_err(|_| Errno::EIO)?;
                self.ns.put_fact(NAME, &bytes)?;
                calibrated.write_bytes_per_s = Some(beside.bw as u64);
                calibrated.demotion_bytes_per_s = Some(beside.br as u64);
                calibrated.bandwidths = Some(crate::status::four(&bandwidths));
                calibrated.line = line.map(|l| ((l.m * 1e6) as i64, l.b_bytes_per_s as u64));
            }
        }
        self.engine.set_samples(samples);
        Ok(calibrated)
    }

    fn calibrated_tier(&self) -> Option<std::path::PathBuf> {
        match self.settings.ssd.first() {
            Some(ssd) => Some(ssd.dir.clone()),
            None => self
                .settings
                .dram_bytes
                .map(|_| self.settings.state.join("dram")),
        }
    }
}

/// A nameless file of so many bytes, flushed, out of the page cache.
fn filled(dir: &Path, bytes: u64) -> io::Result<File> {
    let file = nameless(dir)?;
    let chunk = vec![0x5a; CHUNK_BYTES];
    let mut at = 0;
    while at < bytes {
        file.write_all_at(&chunk, at)?;
        at += CHUNK_BYTES as u64;
    }
    file.sync_data()?;
    // Best effort: where the pages stay, the copy is as fast as a demotion that finds them there.
    let _advised = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_that_is_late_still_measures() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = nameless(dir.path()).expect("file");
        let stop = AtomicBool::new(false);
        let rate = pump(None, &file, 4 << 20, Instant::now(), &stop).expect("pump");
        assert!(rate > 0.0, "{rate}");
    }

    #[test]
    fn three_measurements_give_four_bandwidths() {
        let samples = Samples {
            bw_alone: 1000.0,
            br_alone: 400.0,
        };
        let (b, line) = conclude(
            &samples,
            Beside {
                bw: 800.0,
                br: 200.0,
            },
        );
        assert_eq!(
            (b.bw_max_bytes_per_s, b.br_max_bytes_per_s),
            (1000.0, 400.0)
        );
        assert_eq!((b.bw_min_bytes_per_s, b.br_min_bytes_per_s), (600.0, 0.0));
        assert_eq!(line.map(|l| l.m), Some(-1.0));
        let (calm, _) = conclude(
            &samples,
            Beside {
                bw: 1010.0,
                br: 400.0,
            },
        );
        assert_eq!(
            (calm.bw_min_bytes_per_s, calm.br_min_bytes_per_s),
            (1000.0, 20.0)
        );
        let (odd, _) = conclude(&samples, Beside { bw: 100.0, br: 1.0 });
        assert_eq!(odd.bw_min_bytes_per_s, 50.0);
        assert_eq!(odd.check(), Ok(()));
    }
}
