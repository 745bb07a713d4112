//! From what the sources say to what the server is started with.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use forebay_policy::durability::Durability;
use forebay_policy::engine::Bandwidths;
use forebay_policy::forecast::Meter;
use forebay_policy::lending::LendingError;
use forebay_policy::schedule::ScheduleConfig;
use forebay_server::{
    DemotionSettings, EngineSettings, Lending, LendingSetting, MemoryWay, PathRule, ScrubSettings,
    Settings, check_rule,
};
use forebay_types::limits::SPACE_UNIT_BYTES;
use forebay_types::{format_duration, format_size};

use super::given::{Demotion, Engine, Given, Rule, Scrub};
use super::limits::check_each_once;
use super::listening::Listen;
use super::values::{Count, Dram, DramSize, Folder, Fraction, Size};
use crate::exit::{Explain, Failure};

/// Threads and workers: more only fight for the same queue.
const THREADS_MAX: usize = 64;
/// Threads of the mount unless told: two serve two cores best, more cores a few more.
const THREADS_DEFAULT: std::ops::RangeInclusive<usize> = 2..=8;
/// Shortest time after which a PFS may be given up: a busy disk takes some of it.
const PFS_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Smallest tier: one unit in which space is set aside.
pub const TIER_BYTES_MIN: u64 = SPACE_UNIT_BYTES;

/// All that `up` needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// For the server.
    pub settings: Settings,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Threads of the mount.
    pub threads: usize,
    /// Where metrics and a page are; `None`: nowhere.
    pub http: Option<Listen>,
    /// Whoever comes there over TCP is shown names of files and applications.
    pub http_names: bool,
}

/// What the sources have said.
#[derive(Clone)]
pub struct Read {
    /// What follows from it.
    pub plan: Plan,
    /// Every key that is given, with its value.
    pub texts: BTreeMap<String, String>,
}

/// What a person calls a setting: a flag of `up`, or a key of `cluster.toml`.
pub fn called(settings: &Settings, key: &str) -> String {
    match settings.mount {
        Some(_) => format!("--{key}"),
        None => key.into(),
    }
}

/// Fills in defaults and refuses what makes no sense. Of the machine it asks only how much
/// memory it has, where that is to be borrowed. Who may mount
/// by itself lets other users in unless told otherwise.
pub fn settle(given: Given, may_mount: bool) -> Result<Plan, Failure> {
    let mount = folder(given.mount.clone(), "mount", "the directory to show it at")?;
    settle_unmounted(given, may_mount).map(|mut plan| {
        plan.settings.mount = Some(mount);
        plan
    })
}

fn settle_unmounted(mut given: Given, may_mount: bool) -> Result<Plan, Failure> {
    check_rules(&given.rules)?;
    given.dram.get_or_insert(Dram(DramSize::Auto));
    let plan = settle_member(given, may_mount)?;
    check_tiers(&plan.settings)?;
    Ok(plan)
}

/// The same for a server of a cluster, which mounts nothing itself, and whose tiers have been
/// checked: it need not have one.
pub fn settle_member(given: Given, may_mount: bool) -> Result<Plan, Failure> {
    let mut settings = Settings::new(
        folder(given.pfs, "pfs", "the slow file system")?,
        None,
        folder(
            given.state,
            "state",
            "a folder on this machine for the records",
        )?,
    );
    let bounds = bounds(given.dram_min, given.dram_max, given.dram_max_share)?;
    match given.dram.map(|dram| dram.0) {
        Some(DramSize::Fixed(bytes)) => settings.dram_bytes = Some(bytes),
        Some(DramSize::Auto) => borrow(&mut settings, bounds)?,
        Some(DramSize::None) | None => {}
    }
    for ssd in given.ssd.unwrap_or_default() {
        let mut ssd = ssd.0;
        ssd.dir = std::path::absolute(&ssd.dir).explain(ssd.dir.display(), "")?;
        settings.ssd.push(ssd);
    }
    settings.durability = given.durability.map(Into::into);
    set(&mut settings.policy, given.policy);
    set(&mut settings.passthrough, given.passthrough);
    // The kernel takes descriptors of root only.
    settings.passthrough &= may_mount;
    settings.overrun_bytes = given.overrun.map(Into::into);
    set(&mut settings.wait_for_space, given.wait_for_space);
    set(&mut settings.pfs_timeout, given.pfs_timeout);
    if settings.pfs_timeout < PFS_TIMEOUT_MIN {
        return Err(Failure::fatal(format!(
            "pfs_timeout: {}: a PFS that works may take longer to answer; at least {}",
            format_duration(settings.pfs_timeout),
            format_duration(PFS_TIMEOUT_MIN)
        )));
    }
    settings.demotion = demotion(given.demotion)?;
    settings.engine = engine(given.engine)?;
    settings.scrub = scrub(given.scrub)?;
    let kept = given.history.keep.map(|keep| keep.0.as_millis() as u64);
    set(&mut settings.history.for_ms, kept);
    set(&mut settings.history.bytes, given.history.size);
    check_each_once(&given.limits, None)?;
    settings.limits = given.limits.into_iter().map(|limit| limit.0).collect();
    for rule in given.rules {
        settings.rules.push(path_rule(rule)?);
    }
    let threads = count("threads", given.threads, default_threads())?;
    let mut allow_other = may_mount;
    set(&mut allow_other, given.allow_other);
    Ok(Plan {
        settings,
        allow_other,
        threads,
        http: given.http.listen.map(Into::into),
        http_names: given.http.names.is_some_and(Into::into),
    })
}

/// What may be borrowed. It is refused where it makes no sense, also beside a fixed size.
fn bounds(
    min: Option<Size>,
    max: Option<Size>,
    max_share: Option<Fraction>,
) -> Result<Lending, Failure> {
    let mut bounds = Lending::default();
    set(&mut bounds.min_bytes, min);
    set(&mut bounds.max_bytes, max);
    set(&mut bounds.max_share, max_share);
    let checked = bounds.check().map(|()| bounds);
    checked.map_err(|error| Failure::fatal(format!("up: {}", bounds_in_words(&error))))
}

/// What is wrong with what may be borrowed, by the names of the settings.
pub fn bounds_in_words(error: &LendingError) -> String {
    let size = |bytes: &u64| format_size(*bytes);
    match error {
        LendingError::Share(share) => {
            format!("dram_max_share is {share}; it must be more than 0 and at most 1")
        }
        LendingError::Bounds {
            min_bytes,
            max_bytes,
        } => format!(
            "dram_min ({}) is above dram_max ({})",
            size(min_bytes),
            size(max_bytes)
        ),
        LendingError::Small(bytes) => format!(
            "dram_max has a size of {}; the least is {}",
            size(bytes),
            size(&TIER_BYTES_MIN)
        ),
    }
}

fn borrow(settings: &mut Settings, bounds: Lending) -> Result<(), Failure> {
    let memory = MemoryWay::default();
    let now = memory.0.look().explain("--dram auto", "give it a size")?;
    settings.dram_bytes = Some(bounds.most_bytes(now.total_bytes));
    settings.lending = Some(LendingSetting { bounds, memory });
    Ok(())
}

/// What is given takes the place of the default.
fn set<T>(setting: &mut T, given: Option<impl Into<T>>) {
    if let Some(given) = given {
        *setting = given.into();
    }
}

fn path_rule(rule: Rule) -> Result<PathRule, Failure> {
    check_pattern(&rule.path)?;
    let rule = PathRule {
        pattern: rule.path,
        durability: rule.durability.map(|level| level.into_inner().0),
        mtbf: rule.mtbf.map(Into::into),
        group: rule.group.map(Into::into),
        // Known to who knows the servers.
        placement: None,
        trust: rule.trust.map(Into::into),
    };
    check_rule(&rule)
        .map_err(|why| Failure::fatal(format!("up: rule path '{}': {why}", rule.pattern)))?;
    Ok(rule)
}

/// Rules that name servers are for a cluster: here they would do nothing.
fn check_rules(rules: &[Rule]) -> Result<(), Failure> {
    match rules.iter().find(|rule| rule.places()) {
        Some(rule) => Err(Failure::fatal(format!(
            "up: rule path '{}': locality, servers and racks choose among the servers of a cluster, and here \
             is one; leave them out, or write them into a cluster.toml",
            rule.path
        ))),
        None => Ok(()),
    }
}

fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
    cores.clamp(*THREADS_DEFAULT.start(), *THREADS_DEFAULT.end())
}

fn folder(path: Option<Folder>, key: &str, what: &str) -> Result<PathBuf, Failure> {
    let path = path
        .map(PathBuf::from)
        .filter(|path| !path.as_os_str().is_empty())
        .ok_or_else(|| {
            Failure::fatal(format!(
                "up: --{key} is missing: {what}; see `forebay up --help`"
            ))
        })?;
    std::path::absolute(&path).explain(path.display(), "")
}

fn count(name: &str, given: Option<Count>, default: usize) -> Result<usize, Failure> {
    match given.map_or(default, |count| count.0) {
        n @ 1..=THREADS_MAX => Ok(n),
        n => Err(Failure::fatal(format!(
            "up: {name} is {n}; it must be 1 to {THREADS_MAX}"
        ))),
    }
}

fn demotion(given: Demotion) -> Result<DemotionSettings, Failure> {
    let mut settings = DemotionSettings::default();
    set(&mut settings.idle, given.idle);
    set(&mut settings.idle_after, given.idle_after);
    set(&mut settings.start_fraction, given.start);
    set(&mut settings.dirty_cap_fraction, given.dirty_cap);
    set(&mut settings.verify, given.verify);
    set(&mut settings.retry_after, given.retry_after);
    settings.workers = count("demotion.workers", given.workers, settings.workers)?;
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

fn engine(given: Engine) -> Result<EngineSettings, Failure> {
    let mut settings = EngineSettings {
        bandwidths: bandwidths(&given)?,
        keep_every: given.keep_every.map(|count| count.0 as u64),
        share_bytes: given.share.map(Into::into),
        mtbf: given.mtbf.map(Into::into),
        ..EngineSettings::default()
    };
    set(&mut settings.period, given.period);
    set(&mut settings.placement, given.placement);
    set(&mut settings.throttle, given.throttle);
    set(&mut settings.turns, given.turns);
    set(&mut settings.turn, given.turn);
    set(&mut settings.max_wait, given.max_wait);
    set(&mut settings.direct, given.direct);
    set(&mut settings.verify_window, given.verify_window);
    set(&mut settings.quiet, given.quiet);
    set(&mut settings.out_fractions.0, given.forced_out);
    set(&mut settings.out_fractions.1, given.normal_out);
    set(&mut settings.read_ahead, given.read_ahead);
    set(&mut settings.block_io, given.block_io);
    set(&mut settings.discard_bytes_per_s, given.discard);
    check_engine(&settings)?;
    Ok(settings)
}

fn refuse_engine(why: impl Display) -> Failure {
    Failure::fatal(format!("up: [engine] {why}"))
}

fn bandwidths(given: &Engine) -> Result<Option<Bandwidths>, Failure> {
    let rates = [&given.bw_max, &given.bw_min, &given.br_max, &given.br_min];
    let bandwidths = match rates.map(|rate| rate.as_ref().map(|rate| rate.0)) {
        [None, None, None, None] => return Ok(None),
        [Some(bw_max), Some(bw_min), Some(br_max), Some(br_min)] => Bandwidths {
            bw_max_bytes_per_s: bw_max,
            bw_min_bytes_per_s: bw_min,
            br_max_bytes_per_s: br_max,
            br_min_bytes_per_s: br_min,
        },
        _ => {
            return Err(refuse_engine(
                "takes all of bw_max, bw_min, br_max, br_min, or none of them",
            ));
        }
    };
    bandwidths.check().map_err(refuse_engine)?;
    Ok(Some(bandwidths))
}

fn check_engine(settings: &EngineSettings) -> Result<(), Failure> {
    Meter::new(settings.period.as_secs_f64()).map_err(refuse_engine)?;
    let schedule = ScheduleConfig {
        turn_s: settings.turn.as_secs_f64(),
        max_wait_s: settings.max_wait.as_secs_f64(),
        ..ScheduleConfig::default()
    };
    schedule.check().map_err(refuse_engine)?;
    if settings.mtbf.is_some_and(|mtbf| mtbf.is_zero()) {
        return Err(refuse_engine("mtbf is 0; give it a duration"));
    }
    let (forced, normal) = settings.out_fractions;
    if forced > normal {
        return Err(refuse_engine(format!(
            "forced_out {:.0} % exceeds normal_out {:.0} %: files move down before they are forced out",
            forced * 100.0,
            normal * 100.0
        )));
    }
    if settings.keep_every == Some(0) {
        return Err(refuse_engine("keep_every is 0; 1 keeps every version"));
    }
    Ok(())
}

fn scrub(given: Scrub) -> Result<ScrubSettings, Failure> {
    let mut settings = ScrubSettings::default();
    set(&mut settings.enabled, given.enabled);
    set(&mut settings.pass, given.pass);
    let rate_max = given.rate_max.map(|rate| rate.0 as u64);
    set(&mut settings.rate_max_bytes_per_s, rate_max);
    set(&mut settings.verify_on_open_bytes, given.verify_on_open);
    set(&mut settings.seal_after, given.seal_after);
    set(&mut settings.calm, given.calm);
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
            "up: neither --dram nor --ssd DIR gives it a place for data; a burst buffer needs memory or flash",
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
    let levels = settings
        .rules
        .iter()
        .map(|rule| rule.durability)
        .chain([settings.durability]);
    if levels
        .clone()
        .flatten()
        .any(|level| level == Durability::Replica)
    {
        return Err(Failure::fatal(
            "up: durability replica needs a second server; here it is one of memory, ssd, pfs",
        ));
    }
    if settings.ssd.is_empty() && levels.flatten().any(|level| level == Durability::Ssd) {
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
        let given = toml::from_str(&format!("{base}{text}")).expect("valid TOML");
        settle(given, false).map_err(|failure| failure.message)
    }

    #[test]
    fn defaults() {
        let plan = settled("dram = \"1G\"").expect("settled");
        assert_eq!(plan.settings.dram_bytes, Some(1 << 30));
        assert_eq!(plan.settings.policy, "bbos");
        assert_eq!(plan.settings.demotion, DemotionSettings::default());
        assert!(!plan.settings.passthrough && !plan.allow_other);
        assert!((2..=8).contains(&plan.threads));
        let given = toml::from_str("pfs = \"p\"\nmount = \"/m\"").expect("valid TOML");
        let error = settle(given, true).unwrap_err().message;
        assert!(error.contains("--state is missing"), "{error}");
    }

    #[test]
    fn memory_may_be_borrowed_within_bounds() {
        let plan = settled("dram = \"auto\"").expect("settled");
        let lending = plan.settings.lending.expect("it borrows");
        assert_eq!(lending.bounds, Lending::default());
        let half = plan.settings.dram_bytes.expect("memory");
        let all = "dram = \"auto\"\ndram_max_share = 1.0\n";
        let plan = settled(&format!("{all}dram_min = \"8MiB\"\ndram_max = \"64MiB\""));
        let settings = plan.expect("settled").settings;
        assert_eq!(settings.dram_bytes, Some(64 << 20));
        let bounds = settings.lending.expect("it borrows").bounds;
        assert_eq!((bounds.min_bytes, bounds.max_bytes), (8 << 20, 64 << 20));
        let settings = settled(all).expect("settled").settings;
        assert_eq!(settings.dram_bytes.expect("memory") / 2, half);
        let fixed = settled("dram = \"1G\"\ndram_max_share = 0.1").expect("settled");
        assert_eq!(fixed.settings.lending, None);
        assert_eq!(fixed.settings.dram_bytes, Some(1 << 30));
    }

    #[test]
    fn memory_is_borrowed_unless_told_otherwise() {
        let settled = |text: &str| {
            let base = "pfs = \"/p\"\nmount = \"/m\"\nstate = \"/s\"\nssd = [\"/f\"]\n";
            let given = toml::from_str(&format!("{base}{text}")).expect("valid TOML");
            let settings = settle(given, false).expect("settled").settings;
            (settings.dram_bytes, settings.lending.is_some())
        };
        let auto = settled("dram = \"auto\"");
        assert!(auto.1);
        assert_eq!(settled(""), auto);
        assert_eq!(settled("dram_max = \"8MiB\""), (Some(8 << 20), true));
        assert_eq!(settled("dram = \"none\""), (None, false));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |text: &str, part: &str| {
            let error = settled(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        refused("dram = \"none\"", "neither --dram");
        refused("dram = 0", "--dram has a size of 0 B; the least is 4.0 MiB");
        for text in ["dram = \"auto\"", "dram = \"1G\""] {
            refused(
                &format!("{text}\ndram_max_share = 0"),
                "dram_max_share is 0; it must be more than 0",
            );
            refused(
                &format!("{text}\ndram_min = \"2G\"\ndram_max = \"1G\""),
                "dram_min (2.0 GiB) is above dram_max (1.0 GiB)",
            );
            refused(
                &format!("{text}\ndram_max = 0"),
                "dram_max has a size of 0 B; the least is 4.0 MiB",
            );
        }
        refused("ssd = [\"/x:0\"]", "--ssd /x has a size of 0 B");
        refused(
            "dram = \"1G\"\ndurability = \"ssd\"",
            "needs a flash directory",
        );
        refused(
            "dram = \"1G\"\n[[rule]]\npath = \"/a\"\ndurability = \"ssd\"",
            "needs a flash directory",
        );
        for key in ["locality = \"spread\"", "servers = [1]", "racks = [\"r1\"]"] {
            refused(
                &format!("dram = \"1G\"\n[[rule]]\npath = \"/a\"\n{key}"),
                "rule path '/a': locality, servers and racks choose among the servers of a cluster",
            );
        }
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
        let limit = "[[limit]]\nuser = \"root\"\ncapacity = 1\n";
        refused(
            &format!("dram = \"1G\"\n{limit}{limit}"),
            "[[limit]]: there are two for user root",
        );
        refused(
            "dram = \"1G\"\n[engine]\nforced_out = \"50%\"\nnormal_out = \"10%\"",
            "forced_out 50 % exceeds normal_out 10 %",
        );
    }
}
