//! Measures the four bandwidths and the interference line of the tiers at hand, with short bounded
//! I/O.
//!
//! Nameless files in the fastest flash tier (memory where there is none) and on the PFS; nothing is
//! left behind, not even by a crash. Three measurements: writes alone (Bwmax), copies to the PFS
//! alone (Brmax), both at once. Each is tried again until tries agree, or it is given up
//! (`policy::calibration`). The line through the first and the last gives Bwmin at Brmax.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_namespace::in_record;
use forebay_policy::calibration::{Verdict, judge};
use forebay_policy::engine::Bandwidths;
use forebay_policy::plan::InterferenceLine;
use forebay_types::Errno;
use forebay_wire::control::{Calibrated, CalibrationStep};

use crate::base::failure::Failure;
use crate::plan::Plan;

/// Name under which the bandwidths are on record.
const NAME: &str = "bandwidths";
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes written between two flushes: so much is in the page cache at most.
const FLUSH_BYTES: u64 = 32 << 20;
/// Most bytes that a file of a measurement takes. Then it is another one: checkpoints are new
/// files, whose space is still to be found, and writing over what is there is several times as fast
/// on some file systems.
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

/// Whether somebody still waits for the outcome.
struct Asked<'a> {
    has_left: &'a (dyn Fn() -> bool + Sync),
}

impl Asked<'_> {
    /// # Errors
    /// `ECANCELED`: nobody does.
    fn go_on(&self) -> io::Result<()> {
        match (self.has_left)() {
            true => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            false => Ok(()),
        }
    }
}

/// Writes into files in `dir`, from `from` where there is one, until `until`; the rate in bytes/s,
/// flushes included.
fn pump(
    from: Option<&File>,
    dir: &Path,
    file_bytes: u64,
    until: Instant,
    asked: &Asked<'_>,
) -> io::Result<f64> {
    let mut to = nameless(dir)?;
    // Not zeros, which some devices do not store.
    let mut chunk: Vec<u8> = (0..CHUNK_BYTES)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761) as u8)
        .collect();
    let started = Instant::now();
    let (mut at, mut moved, mut flushed) = (0, 0u64, 0);
    // One chunk at least: on a busy machine the time may be over before the first.
    while moved == 0 || Instant::now() < until {
        asked.go_on()?;
        if let Some(from) = from {
            from.read_exact_at(&mut chunk, at)?;
        }
        to.write_all_at(&chunk, at)?;
        moved += CHUNK_BYTES as u64;
        at = (at + CHUNK_BYTES as u64) % file_bytes;
        if moved - flushed >= FLUSH_BYTES || at == 0 {
            to.sync_data()?;
            flushed = moved;
        }
        if at == 0 {
            to = nameless(dir)?;
        }
    }
    to.sync_data()?;
    Ok(moved as f64 / started.elapsed().as_secs_f64().max(1e-6))
}

/// Rates measured together.
struct Measured<const N: usize> {
    rates: [f64; N],
    /// How far tries lie apart, as a share of them.
    spread: f64,
}

/// Why there are none.
#[derive(Debug)]
enum Trouble {
    Failed(Failure),
    /// Lowest and highest of tries that lie too far apart.
    Unsettled(f64, f64),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Failed(error.into())
    }
}

/// Measures until tries agree, or no more are worth it.
fn settle<const N: usize>(
    mut measure: impl FnMut() -> io::Result<[f64; N]>,
) -> Result<Measured<N>, Trouble> {
    let mut tries = [const { Vec::new() }; N];
    loop {
        let rates = measure()?;
        tries
            .iter_mut()
            .zip(rates)
            .for_each(|(t, rate)| t.push(rate));
        let mut measured = Measured {
            rates: [0.0; N],
            spread: 0.0_f64,
        };
        let mut again = false;
        for (at, tries) in tries.iter().enumerate() {
            match judge(tries) {
                Verdict::Again => again = true,
                Verdict::Settled { rate, spread } => {
                    measured.rates[at] = rate;
                    measured.spread = measured.spread.max(spread);
                }
                Verdict::Unsettled { low, high } => return Err(Trouble::Unsettled(low, high)),
            }
        }
        if !again {
            return Ok(measured);
        }
    }
}

/// The four bandwidths from the three measurements, and the line through them.
fn conclude(samples: &Samples, beside: Beside) -> (Bandwidths, Option<InterferenceLine>) {
    let measured = InterferenceLine::fit(&[(0.0, samples.bw_alone), (beside.br, beside.bw)]);
    let at_full = measured.map_or(beside.bw, |line| line.write_beside(samples.br_alone));
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
    }
    .ordered();
    // The line that plans are made with: it says what the four say.
    let line = InterferenceLine::fit(&[
        (bandwidths.br_min_bytes_per_s, bandwidths.bw_max_bytes_per_s),
        (bandwidths.br_max_bytes_per_s, bandwidths.bw_min_bytes_per_s),
    ]);
    (bandwidths, line)
}

impl Plan {
    /// Takes what an earlier calibration has put on record, unless the configuration says
    /// otherwise.
    pub fn restore_bandwidths(&self) {
        if self.engine.bandwidths().is_none()
            && let Some(measured) = self.measured_bandwidths()
        {
            self.engine.set_bandwidths(measured);
        }
    }

    /// What an earlier calibration has put on record.
    pub fn measured_bandwidths(&self) -> Option<Bandwidths> {
        let stored = self.ns.get_fact(NAME).inspect_err(|error| {
            tracing::warn!("measured bandwidths cannot be read: {error}");
        });
        let bytes = stored.ok()??;
        match postcard::from_bytes::<Bandwidths>(&bytes) {
            Ok(bandwidths) if bandwidths.check().is_ok() => Some(bandwidths),
            _ => {
                tracing::warn!("measured bandwidths on record make no sense; calibrate again");
                None
            }
        }
    }

    /// One step of a calibration, of tries of a third of `span` each; the last takes its outcome
    /// into force and on record.
    ///
    /// # Errors
    /// `EBUSY`: another step is under way. `ECANCELED`: `has_left` says that nobody waits for it
    /// any more.
    pub fn calibrate(
        &self,
        step: CalibrationStep,
        span: Duration,
        has_left: &(dyn Fn() -> bool + Sync),
    ) -> Result<Calibrated, Failure> {
        let _alone = self.engine.calibrating.try_lock().ok_or(Errno::EBUSY)?;
        match self.calibrate_step(step, span / 3, &Asked { has_left }) {
            Ok(calibrated) => Ok(calibrated),
            Err(Trouble::Failed(failure)) => Err(failure),
            Err(Trouble::Unsettled(low, high)) => Ok(Calibrated {
                unsettled: Some((low as u64, high as u64)),
                ..Calibrated::default()
            }),
        }
    }

    fn calibrate_step(
        &self,
        step: CalibrationStep,
        span: Duration,
        asked: &Asked<'_>,
    ) -> Result<Calibrated, Trouble> {
        let errno = |number| Trouble::Failed(Errno(number).into());
        let dir = self.calibrated_tier().ok_or(errno(libc::ENODEV))?;
        let pfs = &self.settings.pfs;
        let spaces = self.buffer.ledger().spaces();
        let free = spaces.iter().map(|s| s.available_bytes()).max();
        let file_bytes =
            (free.unwrap_or(0) / 2).min(FILE_BYTES_MAX) / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
        // Half of it is what each of two takes at once.
        if file_bytes < 2 * CHUNK_BYTES as u64 {
            return Err(errno(libc::ENOSPC));
        }
        let mut calibrated = Calibrated::default();
        let mut samples = self.engine.samples();
        let until = || Instant::now() + span;
        let spread = match step {
            CalibrationStep::Write => {
                let Measured {
                    rates: [bw],
                    spread,
                } = settle(|| Ok([pump(None, &dir, file_bytes, until(), asked)?]))?;
                samples.bw_alone = bw;
                calibrated.write_bytes_per_s = Some(bw as u64);
                spread
            }
            CalibrationStep::Demote => {
                let source = filled(&dir, file_bytes, asked)?;
                let Measured {
                    rates: [br],
                    spread,
                } = settle(|| {
                    forget_pages(&source);
                    Ok([pump(Some(&source), pfs, file_bytes, until(), asked)?])
                })?;
                samples.br_alone = br;
                calibrated.demotion_bytes_per_s = Some(br as u64);
                spread
            }
            CalibrationStep::Both => {
                if samples.bw_alone <= 0.0 || samples.br_alone <= 0.0 {
                    return Err(errno(libc::EINVAL));
                }
                let half = file_bytes / 2 / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
                let source = filled(&dir, half, asked)?;
                let Measured {
                    rates: [bw, br],
                    spread,
                } = settle(|| both(&source, &dir, pfs, half, until(), asked))?;
                let beside = Beside { bw, br };
                self.take_bandwidths(&samples, beside, &mut calibrated)
                    .map_err(Trouble::Failed)?;
                spread
            }
        };
        calibrated.spread_permille = (spread * 1e3) as u64;
        self.engine.set_samples(samples);
        Ok(calibrated)
    }

    /// Plans are made with what was measured from now on.
    fn take_bandwidths(
        &self,
        samples: &Samples,
        beside: Beside,
        calibrated: &mut Calibrated,
    ) -> Result<(), Failure> {
        let (bandwidths, line) = conclude(samples, beside);
        let checked = bandwidths.check();
        checked.map_err(|error| Failure::of(Errno::ERANGE, error))?;
        self.engine.set_bandwidths(bandwidths);
        let bytes = postcard::to_stdvec(&bandwidths).map_err(in_record("measured bandwidths"))?;
        self.ns.put_fact(NAME, &bytes)?;
        calibrated.write_bytes_per_s = Some(beside.bw as u64);
        calibrated.demotion_bytes_per_s = Some(beside.br as u64);
        calibrated.bandwidths = Some(four(&bandwidths));
        calibrated.line = line.map(|l| ((l.m * 1e6) as i64, l.b_bytes_per_s as u64));
        Ok(())
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

/// Writes and copies at once: their rates.
fn both(
    source: &File,
    dir: &Path,
    pfs: &Path,
    bytes: u64,
    until: Instant,
    asked: &Asked<'_>,
) -> io::Result<[f64; 2]> {
    forget_pages(source);
    std::thread::scope(|scope| {
        let demotion = scope.spawn(|| pump(Some(source), pfs, bytes, until, asked));
        let bw = pump(None, dir, bytes, until, asked)?;
        let br = demotion.join();
        let br = br.map_err(|_| io::Error::other("a thread panicked"))??;
        Ok([bw, br])
    })
}

/// A nameless file of so many bytes, flushed.
fn filled(dir: &Path, bytes: u64, asked: &Asked<'_>) -> io::Result<File> {
    let file = nameless(dir)?;
    let chunk = vec![0x5a; CHUNK_BYTES];
    let mut at = 0;
    while at < bytes {
        asked.go_on()?;
        file.write_all_at(&chunk, at)?;
        at += CHUNK_BYTES as u64;
    }
    file.sync_data()?;
    Ok(file)
}

/// Takes a file out of the page cache. Best effort: where the pages stay, a copy is as fast as a
/// demotion that finds them there.
fn forget_pages(file: &File) {
    let _advised = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Bwmax, Bwmin, Brmax, Brmin.
pub fn four(b: &Bandwidths) -> [u64; 4] {
    [
        b.bw_max_bytes_per_s,
        b.bw_min_bytes_per_s,
        b.br_max_bytes_per_s,
        b.br_min_bytes_per_s,
    ]
    .map(|rate| rate as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_that_is_late_still_measures() {
        let dir = tempfile::tempdir().expect("tempdir");
        let asked = Asked {
            has_left: &|| false,
        };
        let rate = pump(None, dir.path(), 4 << 20, Instant::now(), &asked).expect("pump");
        assert!(rate > 0.0, "{rate}");
    }

    #[test]
    fn a_measurement_that_nobody_waits_for_ends() {
        let dir = tempfile::tempdir().expect("tempdir");
        let gone = Asked { has_left: &|| true };
        let for_ever = Instant::now() + Duration::from_secs(3600);
        let ended = pump(None, dir.path(), 4 << 20, for_ever, &gone).expect_err("cancelled");
        assert_eq!(ended.raw_os_error(), Some(libc::ECANCELED));
        filled(dir.path(), u64::MAX, &gone).expect_err("cancelled");
    }

    #[test]
    fn a_measurement_is_repeated_until_it_settles_or_given_up() {
        let mut rates = [449.0, 449.0, 2300.0, 2310.0, 2290.0].into_iter();
        let measured = settle(|| Ok([rates.next().expect("no more tries than needed"), 7.0]));
        assert_eq!(measured.expect("settled").rates, [2300.0, 7.0]);
        let mut rates = [449.0, 2300.0].into_iter().cycle();
        let measured = settle(|| Ok([7.0, rates.next().expect("for ever")]));
        assert!(matches!(measured, Err(Trouble::Unsettled(449.0, 2300.0))));
    }

    #[test]
    fn the_line_says_what_the_four_say() {
        for (bw_alone, br_alone, bw, br) in [
            (1000.0, 400.0, 800.0, 200.0),
            (1000.0, 400.0, 100.0, 1.0),
            (1000.0, 400.0, 1010.0, 400.0),
            (1000.0, 400.0, 900.0, 500.0),
        ] {
            let samples = Samples { bw_alone, br_alone };
            let (four, line) = conclude(&samples, Beside { bw, br });
            let line = line.expect("demotion moved something");
            let at = |demotion: f64| line.m * demotion + line.b_bytes_per_s;
            let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
            assert!(
                near(at(four.br_max_bytes_per_s), four.bw_min_bytes_per_s)
                    && near(at(four.br_min_bytes_per_s), four.bw_max_bytes_per_s),
                "{line:?} and {four:?}"
            );
        }
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
