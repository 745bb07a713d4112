//! From what the sources say to what the server is started with.

use std::path::PathBuf;
use std::time::Duration;

use forebay_policy::durability::Durability;
use forebay_policy::engine::Bandwidths;
use forebay_policy::forecast::Meter;
use forebay_policy::schedule::ScheduleConfig;
use forebay_server::{DemotionSettings, EngineSettings, PathRule, ScrubSettings, Settings};
use forebay_types::{format_duration, format_size, limits};

use super::layer::{DemotionLayer, EngineLayer, Layer, ScrubLayer};
use crate::exit::{Explain, Failure};

/// Threads and workers: more only fight for the same queue.
const THREADS_MAX: usize = 64;
/// Threads of the mount unless told: two serve two cores best, more cores a few more.
const THREADS_DEFAULT: std::ops::RangeInclusive<usize> = 2..=8;
/// Shortest time after which a PFS may be given up: a busy disk takes some of it.
const PFS_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Smallest tier: one unit in which space is set aside.
const TIER_BYTES_MIN: u64 = limits::SPACE_UNIT_BYTES;

/// All that `up` needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// For the server.
    pub settings: Settings,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Threads of the mount.
    pub threads: usize,
}

/// Fills in defaults and refuses what makes no sense, without looking at the machine. Who may mount
/// by itself lets other users in unless told otherwise.
pub fn settle(layer: Layer, may_mount: bool) -> Result<Plan, Failure> {
    let mut settings = Settings::new(
        folder(layer.pfs, "pfs", "the slow file system")?,
        folder(layer.mount, "mount", "the directory to show it at")?,
        folder(
            layer.state,
            "state",
            "a folder on this machine for the records",
        )?,
    );
    settings.dram_bytes = layer.dram.map(|size| size.0);
    for ssd in layer.ssd.unwrap_or_default() {
        let mut ssd = ssd.0;
        ssd.dir = std::path::absolute(&ssd.dir).explain(ssd.dir.display(), "")?;
        settings.ssd.push(ssd);
    }
    settings.durability = layer.durability.map(|rung| rung.0);
    if let Some(policy) = layer.policy {
        settings.policy = policy.0;
    }
    // The kernel takes descriptors of root only.
    settings.passthrough = layer.passthrough.unwrap_or(true) && may_mount;
    settings.overrun_bytes = layer.overrun.map(|size| size.0);
    if let Some(wait) = layer.wait_for_space {
        settings.wait_for_space = wait.0;
    }
    if let Some(timeout) = layer.pfs_timeout {
        if timeout.0 < PFS_TIMEOUT_MIN {
            return Err(Failure::fatal(format!(
                "pfs_timeout: {}: a PFS that works may take longer to answer; at least {}",
                format_duration(timeout.0),
                format_duration(PFS_TIMEOUT_MIN)
            )));
        }
        settings.pfs_timeout = timeout.0;
    }
    settings.demotion = demotion(layer.demotion)?;
    settings.engine = engine(layer.engine)?;
    settings.scrub = scrub(layer.scrub)?;
    for rule in layer.rules {
        check_pattern(&rule.path)?;
        settings.rules.push(PathRule {
            pattern: rule.path,
            durability: rule.durability.map(|r| r.0),
            mtbf: rule.mtbf.map(|span| span.0),
            group: rule.group.map(|g| g.0),
        });
    }
    check_tiers(&settings)?;
    let threads = count("threads", layer.threads, default_threads())?;
    Ok(Plan {
        settings,
        allow_other: layer.allow_other.unwrap_or(may_mount),
        threads,
    })
}

fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
    cores.clamp(*THREADS_DEFAULT.start(), *THREADS_DEFAULT.end())
}

fn folder(path: Option<PathBuf>, key: &str, what: &str) -> Result<PathBuf, Failure> {
    let path = path
        .filter(|path| !path.as_os_str().is_empty())
        .ok_or_else(|| {
            Failure::fatal(format!(
                "up: --{key} is missing: {what}; see `forebay up --help`"
            ))
        })?;
    std::path::absolute(&path).explain(path.display(), "")
}

fn count(name: &str, given: Option<usize>, default: usize) -> Result<usize, Failure> {
    match given.unwrap_or(default) {
        n @ 1..=THREADS_MAX => Ok(n),
        n => Err(Failure::fatal(format!(
            "up: {name} is {n}; it must be 1 to {THREADS_MAX}"
        ))),
    }
}

fn demotion(layer: DemotionLayer) -> Result<DemotionSettings, Failure> {
    let default = DemotionSettings::default();
    let settings = DemotionSettings {
        idle: layer.idle.unwrap_or(default.idle),
        idle_after: layer.idle_after.map_or(default.idle_after, |span| span.0),
        start_fraction: layer.start.map_or(default.start_fraction, |f| f.0),
        dirty_cap_fraction: layer.dirty_cap.map_or(default.dirty_cap_fraction, |f| f.0),
        verify: layer.verify.map_or(default.verify, |v| v.0),
        unnamed: true,
        workers: count("demotion.workers", layer.workers, default.workers)?,
        retry_after: layer.retry_after.map_or(default.retry_after, |span| span.0),
    };
    let (start, cap) = (settings.start_fraction, settings.dirty_cap_fraction);
    if cap <= 0.0 {
        return Err(Failure::fatal(
            "up: demotion.dirty_cap is 0: nothing could be written",
        ));
    }
    if start > cap {
        return Err(Failure::fatal(format!(
            "up: demotion.start ({start}) is above demotion.dirty_cap ({cap}); writes would wait before the drain \
             starts; set start lower"
        )));
    }
    if settings.retry_after == Duration::ZERO {
        return Err(Failure::fatal(
            "up: demotion.retry_after is 0; give it at least some milliseconds",
        ));
    }
    Ok(settings)
}

fn engine(layer: EngineLayer) -> Result<EngineSettings, Failure> {
    let default = EngineSettings::default();
    let refuse = |why: String| Failure::fatal(format!("up: [engine] {why}"));
    let rates = [layer.bw_max, layer.bw_min, layer.br_max, layer.br_min].map(|r| r.map(|r| r.0));
    let bandwidths = match rates {
        [None, None, None, None] => None,
        [Some(bw_max), Some(bw_min), Some(br_max), Some(br_min)] => Some(Bandwidths {
            bw_max_bytes_per_s: bw_max,
            bw_min_bytes_per_s: bw_min,
            br_max_bytes_per_s: br_max,
            br_min_bytes_per_s: br_min,
        }),
        _ => {
            return Err(refuse(
                "takes all of bw_max, bw_min, br_max, br_min, or none of them".into(),
            ));
        }
    };
    if let Some(bandwidths) = &bandwidths {
        bandwidths.check().map_err(|e| refuse(e.to_string()))?;
    }
    let settings = EngineSettings {
        period: layer.period.map_or(default.period, |span| span.0),
        bandwidths,
        placement: layer.placement.map_or(default.placement, |o| o.0),
        throttle: layer.throttle.unwrap_or(default.throttle),
        turns: layer.turns.unwrap_or(default.turns),
        turn: layer.turn.map_or(default.turn, |span| span.0),
        max_wait: layer.max_wait.map_or(default.max_wait, |span| span.0),
        direct: layer.direct.unwrap_or(default.direct),
        keep_every: layer.keep_every,
        share_bytes: layer.share.map(|size| size.0),
        mtbf: layer.mtbf.map(|span| span.0),
        verify_window: layer
            .verify_window
            .map_or(default.verify_window, |span| span.0),
        quiet: layer.quiet.map_or(default.quiet, |span| span.0),
        out_fractions: (
            layer.forced_out.map_or(default.out_fractions.0, |f| f.0),
            layer.normal_out.map_or(default.out_fractions.1, |f| f.0),
        ),
        block_io: layer.block_io.unwrap_or(default.block_io),
        discard_bytes_per_s: layer
            .discard
            .map_or(default.discard_bytes_per_s, |size| size.0),
    };
    Meter::new(settings.period.as_secs_f64()).map_err(|e| refuse(e.to_string()))?;
    let schedule = ScheduleConfig {
        turn_s: settings.turn.as_secs_f64(),
        max_wait_s: settings.max_wait.as_secs_f64(),
        ..ScheduleConfig::default()
    };
    schedule.check().map_err(|e| refuse(e.to_string()))?;
    if settings.mtbf.is_some_and(|mtbf| mtbf.is_zero()) {
        return Err(refuse("mtbf is 0; give it a duration".into()));
    }
    let (forced, normal) = settings.out_fractions;
    if forced > normal {
        return Err(refuse(format!(
            "forced_out {:.0} % exceeds normal_out {:.0} %: files move down before they are forced out",
            forced * 100.0,
            normal * 100.0
        )));
    }
    if settings.keep_every == Some(0) {
        return Err(refuse("keep_every is 0; 1 keeps every version".into()));
    }
    Ok(settings)
}

fn scrub(layer: ScrubLayer) -> Result<ScrubSettings, Failure> {
    let default = ScrubSettings::default();
    let settings = ScrubSettings {
        enabled: layer.enabled.unwrap_or(default.enabled),
        pass: layer.pass.map_or(default.pass, |span| span.0),
        rate_max_bytes_per_s: layer
            .rate_max
            .map_or(default.rate_max_bytes_per_s, |rate| rate.0 as u64),
        verify_on_open_bytes: layer
            .verify_on_open
            .map_or(default.verify_on_open_bytes, |size| size.0),
        seal_after: layer.seal_after.map_or(default.seal_after, |span| span.0),
        calm: layer.calm.map_or(default.calm, |span| span.0),
    };
    if settings.pass.is_zero() || settings.rate_max_bytes_per_s == 0 {
        return Err(Failure::fatal(
            "up: [scrub] pass and rate_max must not be 0; enabled = false turns it off",
        ));
    }
    Ok(settings)
}

fn check_pattern(pattern: &str) -> Result<(), Failure> {
    match pattern.strip_prefix('/') {
        Some(rest) if !rest.is_empty() => Ok(()),
        _ => Err(Failure::fatal(format!(
            "up: rule path '{pattern}' must start with '/', the root of the mount, for example \"/run*/ckpt-{{version}}/**\""
        ))),
    }
}

fn check_tiers(settings: &Settings) -> Result<(), Failure> {
    if settings.dram_bytes.is_none() && settings.ssd.is_empty() {
        return Err(Failure::fatal(
            "up: neither --dram SIZE nor --ssd DIR is given; a burst buffer needs memory or flash",
        ));
    }
    let dram = settings
        .dram_bytes
        .map(|bytes| ("--dram".to_string(), bytes));
    let ssd = settings
        .ssd
        .iter()
        .filter_map(|ssd| Some((format!("--ssd {}", ssd.dir.display()), ssd.capacity_bytes?)));
    for (name, bytes) in dram.into_iter().chain(ssd) {
        if bytes < TIER_BYTES_MIN {
            return Err(Failure::fatal(format!(
                "up: {name} has a size of {}; the least is {}",
                format_size(bytes),
                format_size(TIER_BYTES_MIN)
            )));
        }
    }
    let rungs = settings
        .rules
        .iter()
        .map(|rule| rule.durability)
        .chain([settings.durability]);
    if settings.ssd.is_empty() && rungs.flatten().any(|rung| rung == Durability::Ssd) {
        return Err(Failure::fatal(
            "up: durability ssd needs a flash directory; add --ssd DIR, or choose memory or pfs",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(text: &str) -> Result<Plan, String> {
        let base = "pfs = \"/p\"\nmount = \"/m\"\nstate = \"/s\"\n";
        let layer = Layer::from_toml(&format!("{base}{text}")).expect("valid TOML");
        settle(layer, false).map_err(|failure| failure.message)
    }

    #[test]
    fn defaults() {
        let plan = settled("dram = \"1G\"").expect("settled");
        assert_eq!(plan.settings.dram_bytes, Some(1 << 30));
        assert_eq!(plan.settings.policy, "bbos");
        assert_eq!(plan.settings.demotion, DemotionSettings::default());
        assert!(!plan.settings.passthrough && !plan.allow_other);
        assert!((2..=8).contains(&plan.threads));
        let flags = Layer {
            pfs: Some("p".into()),
            mount: Some("/m".into()),
            ..Layer::default()
        };
        let error = settle(flags, true).unwrap_err().message;
        assert!(error.contains("--state is missing"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |text: &str, part: &str| {
            let error = settled(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        refused("", "neither --dram");
        refused("dram = 0", "--dram has a size of 0 B; the least is 4.0 MiB");
        refused("ssd = [\"/x:0\"]", "--ssd /x has a size of 0 B");
        refused(
            "dram = \"1G\"\ndurability = \"ssd\"",
            "needs a flash directory",
        );
        refused(
            "dram = \"1G\"\n[[rule]]\npath = \"/a\"\ndurability = \"ssd\"",
            "needs a flash directory",
        );
        refused(
            "dram = \"1G\"\n[[rule]]\npath = \"a/**\"",
            "must start with '/'",
        );
        refused("dram = \"1G\"\nthreads = 0", "threads is 0");
        refused(
            "dram = \"1G\"\n[demotion]\nworkers = 1000",
            "demotion.workers is 1000",
        );
        refused(
            "dram = \"1G\"\n[demotion]\nstart = 0.9\ndirty_cap = 0.5",
            "above demotion.dirty_cap",
        );
        refused(
            "dram = \"1G\"\n[demotion]\ndirty_cap = 0",
            "nothing could be written",
        );
        refused(
            "dram = \"1G\"\n[demotion]\nretry_after = 0",
            "retry_after is 0",
        );
        refused("dram = \"1G\"\n[engine]\nperiod = 0", "the period must be");
        refused(
            "dram = \"1G\"\n[engine]\nbw_max = \"1GB/s\"",
            "all of bw_max",
        );
        refused(
            "dram = \"1G\"\n[engine]\nbw_max = \"2GB/s\"\nbw_min = \"1GB/s\"\nbr_max = \"1MB/s\"\nbr_min = \"2MB/s\"",
            "Brmin 2000000 exceeds Brmax 1000000",
        );
        refused(
            "dram = \"1G\"\n[engine]\nturn = 20",
            "nobody could wait as little",
        );
        refused("dram = \"1G\"\n[engine]\nkeep_every = 0", "keep_every is 0");
        refused("dram = \"1G\"\n[scrub]\npass = 0", "must not be 0");
        refused(
            "dram = \"1G\"\n[engine]\nforced_out = \"50%\"\nnormal_out = \"10%\"",
            "forced_out 50 % exceeds normal_out 10 %",
        );
    }
}
