//! Settings from one source, all optional, and how sources are laid over each other: command line
//! over environment over file.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::values::{
    Count, Fraction, FromText, Group, Order, PolicyName, Rate, Rung, Size, Span, Ssd, Switch,
    Verification, parse_ssd,
};
use crate::exit::{Explain, Failure};

/// Prefix of the variables that are settings.
const PREFIX: &str = "FOREBAY_";
/// Which start of the node this is, where it is not for the kernel to say: a test that cuts the power of its disks.
pub const BOOT_ID: &str = "FOREBAY_BOOT_ID";
/// Variables that are read elsewhere: the file's name, the log filter, and of tests.
const OTHER_VARIABLES: [&str; 4] = [
    "FOREBAY_CONFIG",
    "FOREBAY_LOG",
    BOOT_ID,
    forebay_types::failpoint::VARIABLE,
];

/// What one source says. The names of the fields are the keys of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // `Settings` says what they mean
pub struct Layer {
    pub pfs: Option<PathBuf>,
    pub mount: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub dram: Option<Size>,
    pub ssd: Option<Vec<Ssd>>,
    pub durability: Option<Rung>,
    pub policy: Option<PolicyName>,
    pub passthrough: Option<bool>,
    pub overrun: Option<Size>,
    pub allow_other: Option<bool>,
    pub threads: Option<usize>,
    pub wait_for_space: Option<Span>,
    pub pfs_timeout: Option<Span>,
    #[serde(default)]
    pub demotion: DemotionLayer,
    #[serde(default)]
    pub engine: EngineLayer,
    #[serde(default)]
    pub scrub: ScrubLayer,
    #[serde(default, rename = "rule")]
    pub rules: Vec<RuleLayer>,
}

/// The section `[demotion]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct DemotionLayer {
    pub idle: Option<bool>,
    pub idle_after: Option<Span>,
    pub start: Option<Fraction>,
    pub dirty_cap: Option<Fraction>,
    pub verify: Option<Verification>,
    pub workers: Option<usize>,
    pub retry_after: Option<Span>,
}

/// The section `[engine]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct EngineLayer {
    pub period: Option<Span>,
    pub bw_max: Option<Rate>,
    pub bw_min: Option<Rate>,
    pub br_max: Option<Rate>,
    pub br_min: Option<Rate>,
    pub placement: Option<Order>,
    pub throttle: Option<bool>,
    pub turns: Option<bool>,
    pub turn: Option<Span>,
    pub max_wait: Option<Span>,
    pub direct: Option<bool>,
    pub keep_every: Option<u64>,
    pub share: Option<Size>,
    pub mtbf: Option<Span>,
    pub verify_window: Option<Span>,
    pub quiet: Option<Span>,
    pub forced_out: Option<Fraction>,
    pub normal_out: Option<Fraction>,
    pub block_io: Option<bool>,
    pub discard: Option<Size>,
}

/// The section `[scrub]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ScrubLayer {
    pub enabled: Option<bool>,
    pub pass: Option<Span>,
    pub rate_max: Option<Rate>,
    pub verify_on_open: Option<Size>,
    pub seal_after: Option<Span>,
    pub calm: Option<Span>,
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RuleLayer {
    pub path: String,
    pub durability: Option<Rung>,
    pub mtbf: Option<Span>,
    pub group: Option<Group>,
}

impl Layer {
    /// This layer laid over another: what it does not say, the other does.
    #[must_use]
    pub fn over(self, below: Layer) -> Layer {
        Layer {
            pfs: self.pfs.or(below.pfs),
            mount: self.mount.or(below.mount),
            state: self.state.or(below.state),
            dram: self.dram.or(below.dram),
            ssd: self.ssd.or(below.ssd),
            durability: self.durability.or(below.durability),
            policy: self.policy.or(below.policy),
            passthrough: self.passthrough.or(below.passthrough),
            overrun: self.overrun.or(below.overrun),
            allow_other: self.allow_other.or(below.allow_other),
            threads: self.threads.or(below.threads),
            wait_for_space: self.wait_for_space.or(below.wait_for_space),
            pfs_timeout: self.pfs_timeout.or(below.pfs_timeout),
            demotion: self.demotion.over(below.demotion),
            engine: self.engine.over(below.engine),
            scrub: self.scrub.over(below.scrub),
            rules: if self.rules.is_empty() {
                below.rules
            } else {
                self.rules
            },
        }
    }

    /// From a TOML file; relative paths in it count from its folder.
    pub fn from_file(file: &Path) -> Result<Layer, Failure> {
        let text = std::fs::read_to_string(file).explain(
            file.display(),
            "--config takes a TOML file that you may read",
        )?;
        let mut layer = Layer::from_toml(&text)
            .map_err(|why| Failure::fatal(format!("{}: {why}", file.display())))?;
        let base = file.parent().unwrap_or(Path::new(""));
        let fields = [&mut layer.pfs, &mut layer.mount, &mut layer.state];
        let ssd = layer.ssd.iter_mut().flatten().map(|ssd| &mut ssd.0.dir);
        for path in fields.into_iter().flatten().chain(ssd) {
            *path = base.join(&*path);
        }
        Ok(layer)
    }

    /// From TOML text; an error names the line.
    pub fn from_toml(text: &str) -> Result<Layer, String> {
        toml::from_str(text).map_err(|error| {
            let why = error.message().replace('\n', ", ");
            match error.span() {
                Some(span) => {
                    let before = text.get(..span.start).unwrap_or(text);
                    format!("line {}: {why}", before.matches('\n').count() + 1)
                }
                None => why,
            }
        })
    }

    /// From the environment; the second value lists variables that look like settings but are none.
    pub fn from_environment(
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<(Layer, Vec<String>), Failure> {
        let mut layer = Layer::default();
        let mut unknown = Vec::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            if OTHER_VARIABLES.contains(&name) || value.is_empty() {
                continue;
            }
            match layer.set(&name[PREFIX.len()..], &value) {
                Ok(true) => {}
                Ok(false) => unknown.push(name.to_string()),
                Err(why) => {
                    return Err(Failure::fatal(format!(
                        "environment variable {name}: {why}"
                    )));
                }
            }
        }
        unknown.sort();
        Ok((layer, unknown))
    }

    /// Sets one field by the name its variable has; `false` if there is none of that name.
    fn set(&mut self, key: &str, value: &OsStr) -> Result<bool, String> {
        let demotion = &mut self.demotion;
        let engine = &mut self.engine;
        let scrub = &mut self.scrub;
        match key {
            "PFS" => self.pfs = Some(value.into()),
            "MOUNT" => self.mount = Some(value.into()),
            "STATE" => self.state = Some(value.into()),
            "DRAM" => self.dram = Some(text(value)?),
            "SSD" => self.ssd = Some(ssd_list(value)?),
            "DURABILITY" => self.durability = Some(text(value)?),
            "POLICY" => self.policy = Some(text(value)?),
            "PASSTHROUGH" => self.passthrough = Some(text::<Switch>(value)?.0),
            "OVERRUN" => self.overrun = Some(text(value)?),
            "ALLOW_OTHER" => self.allow_other = Some(text::<Switch>(value)?.0),
            "THREADS" => self.threads = Some(text::<Count>(value)?.0),
            "WAIT_FOR_SPACE" => self.wait_for_space = Some(text(value)?),
            "PFS_TIMEOUT" => self.pfs_timeout = Some(text(value)?),
            "DEMOTION_IDLE" => demotion.idle = Some(text::<Switch>(value)?.0),
            "DEMOTION_IDLE_AFTER" => demotion.idle_after = Some(text(value)?),
            "DEMOTION_START" => demotion.start = Some(text(value)?),
            "DEMOTION_DIRTY_CAP" => demotion.dirty_cap = Some(text(value)?),
            "DEMOTION_VERIFY" => demotion.verify = Some(text(value)?),
            "DEMOTION_WORKERS" => demotion.workers = Some(text::<Count>(value)?.0),
            "DEMOTION_RETRY_AFTER" => demotion.retry_after = Some(text(value)?),
            "ENGINE_PERIOD" => engine.period = Some(text(value)?),
            "ENGINE_BW_MAX" => engine.bw_max = Some(text(value)?),
            "ENGINE_BW_MIN" => engine.bw_min = Some(text(value)?),
            "ENGINE_BR_MAX" => engine.br_max = Some(text(value)?),
            "ENGINE_BR_MIN" => engine.br_min = Some(text(value)?),
            "ENGINE_PLACEMENT" => engine.placement = Some(text(value)?),
            "ENGINE_THROTTLE" => engine.throttle = Some(text::<Switch>(value)?.0),
            "ENGINE_TURNS" => engine.turns = Some(text::<Switch>(value)?.0),
            "ENGINE_TURN" => engine.turn = Some(text(value)?),
            "ENGINE_MAX_WAIT" => engine.max_wait = Some(text(value)?),
            "ENGINE_DIRECT" => engine.direct = Some(text::<Switch>(value)?.0),
            "ENGINE_KEEP_EVERY" => engine.keep_every = Some(text::<Count>(value)?.0 as u64),
            "ENGINE_SHARE" => engine.share = Some(text(value)?),
            "ENGINE_MTBF" => engine.mtbf = Some(text(value)?),
            "ENGINE_BLOCK_IO" => engine.block_io = Some(text::<Switch>(value)?.0),
            "ENGINE_DISCARD" => engine.discard = Some(text(value)?),
            "ENGINE_VERIFY_WINDOW" => engine.verify_window = Some(text(value)?),
            "ENGINE_QUIET" => engine.quiet = Some(text(value)?),
            "ENGINE_FORCED_OUT" => engine.forced_out = Some(text(value)?),
            "ENGINE_NORMAL_OUT" => engine.normal_out = Some(text(value)?),
            "SCRUB_ENABLED" => scrub.enabled = Some(text::<Switch>(value)?.0),
            "SCRUB_PASS" => scrub.pass = Some(text(value)?),
            "SCRUB_RATE_MAX" => scrub.rate_max = Some(text(value)?),
            "SCRUB_VERIFY_ON_OPEN" => scrub.verify_on_open = Some(text(value)?),
            "SCRUB_SEAL_AFTER" => scrub.seal_after = Some(text(value)?),
            "SCRUB_CALM" => scrub.calm = Some(text(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl DemotionLayer {
    fn over(self, below: DemotionLayer) -> DemotionLayer {
        DemotionLayer {
            idle: self.idle.or(below.idle),
            idle_after: self.idle_after.or(below.idle_after),
            start: self.start.or(below.start),
            dirty_cap: self.dirty_cap.or(below.dirty_cap),
            verify: self.verify.or(below.verify),
            workers: self.workers.or(below.workers),
            retry_after: self.retry_after.or(below.retry_after),
        }
    }
}

impl EngineLayer {
    fn over(self, below: EngineLayer) -> EngineLayer {
        EngineLayer {
            period: self.period.or(below.period),
            bw_max: self.bw_max.or(below.bw_max),
            bw_min: self.bw_min.or(below.bw_min),
            br_max: self.br_max.or(below.br_max),
            br_min: self.br_min.or(below.br_min),
            placement: self.placement.or(below.placement),
            throttle: self.throttle.or(below.throttle),
            turns: self.turns.or(below.turns),
            turn: self.turn.or(below.turn),
            max_wait: self.max_wait.or(below.max_wait),
            direct: self.direct.or(below.direct),
            keep_every: self.keep_every.or(below.keep_every),
            share: self.share.or(below.share),
            mtbf: self.mtbf.or(below.mtbf),
            verify_window: self.verify_window.or(below.verify_window),
            quiet: self.quiet.or(below.quiet),
            forced_out: self.forced_out.or(below.forced_out),
            normal_out: self.normal_out.or(below.normal_out),
            block_io: self.block_io.or(below.block_io),
            discard: self.discard.or(below.discard),
        }
    }
}

impl ScrubLayer {
    fn over(self, below: ScrubLayer) -> ScrubLayer {
        ScrubLayer {
            enabled: self.enabled.or(below.enabled),
            pass: self.pass.or(below.pass),
            rate_max: self.rate_max.or(below.rate_max),
            verify_on_open: self.verify_on_open.or(below.verify_on_open),
            seal_after: self.seal_after.or(below.seal_after),
            calm: self.calm.or(below.calm),
        }
    }
}

fn text<T: FromText>(value: &OsStr) -> Result<T, String> {
    T::from_text(value.to_str().ok_or("is not UTF-8")?)
}

/// Several directories are separated by commas.
fn ssd_list(value: &OsStr) -> Result<Vec<Ssd>, String> {
    use std::os::unix::ffi::OsStrExt;
    let parts = value
        .as_bytes()
        .split(|&b| b == b',')
        .filter(|part| !part.is_empty());
    parts
        .map(|part| parse_ssd(OsStr::from_bytes(part)).map(Ssd))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FILE: &str = r#"
pfs = "/scratch"
dram = "4GiB"
ssd = ["/nvme0:1TB", "/nvme1"]
durability = "pfs"
policy = "maxbw"
passthrough = false
wait_for_space = "5s"

[demotion]
idle_after = 2
start = "40%"
dirty_cap = 0.9
verify = "media"

[[rule]]
path = "/scratch-only/**"
durability = "memory"
"#;

    fn environment(pairs: &[(&str, &str)]) -> Result<(Layer, Vec<String>), Failure> {
        Layer::from_environment(pairs.iter().map(|(k, v)| (k.into(), v.into())))
    }

    #[test]
    fn files_parse() {
        let layer = Layer::from_toml(FILE).expect("valid");
        assert_eq!(layer.dram, Some(Size(4 << 30)));
        assert_eq!(layer.ssd.expect("ssd").len(), 2);
        assert_eq!(
            layer.demotion.idle_after,
            Some(Span(Duration::from_secs(2)))
        );
        assert_eq!(layer.demotion.start, Some(Fraction(0.4)));
        assert_eq!(layer.demotion.dirty_cap, Some(Fraction(0.9)));
        assert_eq!(layer.rules[0].path, "/scratch-only/**");
        assert_eq!(layer.wait_for_space, Some(Span(Duration::from_secs(5))));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named_with_its_line() {
        let error = |text: &str| Layer::from_toml(text).unwrap_err();
        let unknown = error("pfs = \"/a\"\ndarm = \"1G\"\n");
        assert!(
            unknown.starts_with("line 2: unknown field `darm`"),
            "{unknown}"
        );
        let section = error("[demotion]\nidle = true\nidel_after = 1\n");
        assert!(
            section.starts_with("line 3: unknown field `idel_after`"),
            "{section}"
        );
        let value = error("\n\ndram = \"4 apples\"\n");
        assert!(
            value.starts_with("line 3: '4 apples' has no known unit"),
            "{value}"
        );
        let kind = error("dram = [1]\n");
        assert!(
            kind.starts_with("line 1: ") && kind.contains("a size such as"),
            "{kind}"
        );
        let policy = error("policy = \"best\"\n");
        assert!(policy.contains("bbos, maxbw, maxeff"), "{policy}");
        assert!(error("pfs = \n").starts_with("line 1: "));
        assert!(error("[[rule]]\ndurability = \"pfs\"\n").contains("path"));
    }

    #[test]
    fn the_command_line_wins_over_the_environment_over_the_file() {
        let file = Layer::from_toml(FILE).expect("valid");
        let (environment, unknown) = environment(&[
            ("FOREBAY_DRAM", "2GiB"),
            ("FOREBAY_POLICY", "maxeff"),
            ("FOREBAY_DEMOTION_START", "30%"),
            ("FOREBAY_DEMOTION_IDLE", "off"),
            ("FOREBAY_SSD", "/a,/b:1T"),
            ("FOREBAY_LOG", "debug"),
            ("FOREBAY_STATE", ""),
            ("FOREBAY_DARM", "1"),
            ("HOME", "/root"),
        ])
        .expect("valid");
        let flags = Layer {
            dram: Some(Size(1 << 30)),
            ..Layer::default()
        };
        let merged = flags.over(environment).over(file);
        assert_eq!(merged.dram, Some(Size(1 << 30)));
        assert_eq!(merged.policy, Some(PolicyName("maxeff".into())));
        assert_eq!(merged.durability.map(|r| r.0.name()), Some("pfs"));
        assert_eq!(merged.demotion.start, Some(Fraction(0.3)));
        assert_eq!(merged.demotion.idle, Some(false));
        assert_eq!(merged.demotion.dirty_cap, Some(Fraction(0.9)));
        assert_eq!(merged.ssd.expect("ssd")[1].0.capacity_bytes, Some(1 << 40));
        assert_eq!(merged.state, None);
        assert_eq!(unknown, ["FOREBAY_DARM"]);
    }

    #[test]
    fn wrong_variables_are_named() {
        let failure = environment(&[("FOREBAY_DRAM", "much")]).unwrap_err();
        assert!(
            failure
                .message
                .starts_with("environment variable FOREBAY_DRAM: 'much'")
        );
    }

    #[test]
    fn paths_in_a_file_count_from_its_folder() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("bb.toml");
        std::fs::write(
            &file,
            "pfs = \"data\"\nmount = \"/bb\"\nssd = [\"nvme:1G\"]\n",
        )
        .expect("write");
        let layer = Layer::from_file(&file).expect("valid");
        assert_eq!(layer.pfs, Some(folder.path().join("data")));
        assert_eq!(layer.mount, Some("/bb".into()));
        assert_eq!(layer.ssd.expect("ssd")[0].0.dir, folder.path().join("nvme"));
        assert!(Layer::from_file(&folder.path().join("none")).is_err());
    }
}
