//! The settings are read again while the burst buffer runs: `forebay reload`, SIGHUP. What can
//! change is taken, all else is named. A source that makes no sense changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use forebay_policy::durability::Durability;
use forebay_server::{Instance, LiveSettings, Settings};
use forebay_wire::control::{ControlResponse, Reloaded};
use forebay_wire::{Reply, Response};
use parking_lot::Mutex;

use super::UpArgs;
use super::layers::ConfigFile;
use super::settle::Read;
use crate::exit::{Explain, Failure};

/// Where the settings of a start are from.
#[derive(Clone)]
pub struct Sources {
    pub(super) args: UpArgs,
    pub(super) config: Option<PathBuf>,
}

impl Sources {
    /// Those of a command line.
    pub fn new(args: &UpArgs) -> Result<Sources, Failure> {
        let config = args.config.clone().or_else(|| {
            std::env::var_os("FOREBAY_CONFIG")
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        });
        Ok(Sources {
            args: args.clone(),
            config,
        })
    }
}

/// Reads all settings as a start would, with its checks, from this file that the process can read
/// wherever it is.
pub type ReadAll = Box<dyn Fn(&Path) -> Result<Read, Failure> + Send + Sync>;

/// The sources, and what is in force of them.
pub struct Again {
    read: ReadAll,
    config: Option<PathBuf>,
    in_force: Mutex<InForce>,
}

struct InForce {
    texts: BTreeMap<String, String>,
    settings: Settings,
}

/// Takes a setting over from new settings.
type Take = fn(&Settings, &mut LiveSettings);

/// Keys that a running burst buffer takes. All others need a restart.
const TAKEN: [(&str, Take); 12] = [
    ("rule", |new, live| live.rules = Some(new.rules.clone())),
    ("limit", |new, live| live.limits = Some(new.limits.clone())),
    ("policy", |new, live| live.policy = new.policy.parse().ok()),
    ("engine.placement", |new, live| {
        live.placement = Some(new.engine.placement);
    }),
    ("engine.bw_max", take_bandwidths),
    ("engine.bw_min", take_bandwidths),
    ("engine.br_max", take_bandwidths),
    ("engine.br_min", take_bandwidths),
    ("engine.throttle", |new, live| {
        live.throttle = Some(new.engine.throttle);
    }),
    ("engine.turns", |new, live| {
        live.turns = Some(new.engine.turns)
    }),
    ("history.keep", take_history),
    ("history.size", take_history),
];

fn take_bandwidths(new: &Settings, live: &mut LiveSettings) {
    live.bandwidths = Some(new.engine.bandwidths);
}

fn take_history(new: &Settings, live: &mut LiveSettings) {
    live.history = Some(new.history);
}

/// How a key is taken over from these settings to those; `None`: not while it runs.
fn how(key: &str, from: &Settings, to: &Settings) -> Option<Take> {
    // A server that keeps nothing has no thread for it, and nothing on record to go on with.
    if key.starts_with("history.") && from.history.is_on() != to.history.is_on() {
        return None;
    }
    // Second copies, and where servers and racks are, belong to the start.
    if key == "rule" && (is_of_servers(from) || is_of_servers(to)) {
        return None;
    }
    let found = TAKEN.iter().find(|(taken, _)| *taken == key);
    found.map(|(_, take)| *take)
}

/// Whether a rule of the settings is about servers.
fn is_of_servers(settings: &Settings) -> bool {
    let mut rules = settings.rules.iter();
    rules.any(|rule| rule.placement.is_some() || rule.durability == Some(Durability::Replica))
}

impl Again {
    /// Those of `forebay up`. In force is what was read.
    pub fn new(sources: Sources, read: &Read) -> Result<Again, Failure> {
        let config = sources.config.as_ref();
        let config = config.map(|file| std::path::absolute(file).explain(file.display(), ""));
        let read_all = move |path: &Path| {
            let text = std::fs::read_to_string(path).explain(path.display(), "")?;
            // Relative paths in it are as they were.
            let named = sources.config.clone().unwrap_or_default();
            let file = ConfigFile::of_text(named, text);
            sources.read_from(Some(&file)).map(|(read, _)| read)
        };
        Ok(Again::of(Box::new(read_all), config.transpose()?, read))
    }

    /// Settings that are read so, from this file. In force is what was read.
    pub fn of(read_all: ReadAll, config: Option<PathBuf>, read: &Read) -> Again {
        Again {
            read: read_all,
            config,
            in_force: Mutex::new(InForce {
                texts: read.texts.clone(),
                settings: read.plan.settings.clone(),
            }),
        }
    }

    /// The call for an instance: reads the sources, and has it take what can be taken.
    pub fn call(self: &Arc<Self>, instance: &Arc<Instance>) -> impl Fn() -> Reloaded + use<> {
        let (again, instance) = (self.clone(), Arc::downgrade(instance));
        move || again.read_again(&instance)
    }

    fn read_again(&self, instance: &Weak<Instance>) -> Reloaded {
        let mut in_force = self.in_force.lock();
        let (reloaded, live) = match self.compare(&mut in_force) {
            Ok(compared) => compared,
            Err(failure) => {
                match self.config {
                    Some(_) => tracing::warn!("reload: nothing was taken: {}", failure.message),
                    // Who has the log opened again by SIGHUP may mean nothing more.
                    None => tracing::info!("reload: nothing was taken: {}", failure.message),
                }
                return Reloaded {
                    refused: Some(failure.message),
                    ..Reloaded::default()
                };
            }
        };
        if let Some(instance) = instance.upgrade() {
            instance.take(&live);
        }
        tracing::info!("reload: {}", in_words(&reloaded));
        reloaded
    }

    fn compare(&self, in_force: &mut InForce) -> Result<(Reloaded, LiveSettings), Failure> {
        let path = self.config.as_deref().ok_or_else(|| {
            Failure::fatal("there is no configuration file: it was started without --config")
        })?;
        let read = (self.read)(path)?;
        let new = read.plan.settings;
        let (mut reloaded, mut live) = (Reloaded::default(), LiveSettings::default());
        for key in changed(&in_force.texts, &read.texts) {
            match how(&key, &in_force.settings, &new) {
                Some(take) => {
                    take(&new, &mut live);
                    match read.texts.get(&key) {
                        Some(text) => in_force.texts.insert(key.clone(), text.clone()),
                        None => in_force.texts.remove(&key),
                    };
                    reloaded.taken.push(key);
                }
                None => reloaded.restart.push(key),
            }
        }
        if live.history.is_some() {
            in_force.settings.history = new.history;
        }
        if let Some(rules) = &live.rules {
            in_force.settings.rules.clone_from(rules);
        }
        Ok((reloaded, live))
    }
}

/// Keys whose values differ.
fn changed(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let mut keys: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| old.get(key) != new.get(key));
    keys
}

/// Of a server that reads no settings while it runs.
pub fn refused(why: String) -> Reply {
    let refused = Some(why);
    Response::Control(ControlResponse::Reloaded(Reloaded {
        refused,
        ..Reloaded::default()
    }))
    .into()
}

/// What came of it, in one line.
pub fn in_words(reloaded: &Reloaded) -> String {
    let listed = |keys: &[String]| keys.join(", ");
    match (&reloaded.taken[..], &reloaded.restart[..]) {
        ([], []) => "nothing has changed".into(),
        (taken, []) => format!("taken: {}", listed(taken)),
        ([], restart) => format!("only after a restart: {}", listed(restart)),
        (taken, restart) => format!(
            "taken: {}; only after a restart: {}",
            listed(taken),
            listed(restart)
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        up: UpArgs,
    }

    const BASE: &str = "pfs = \"p\"\nmount = \"/m\"\nstate = \"/s\"\ndram = \"64MiB\"\n";

    struct Lab {
        dir: tempfile::TempDir,
        again: Again,
    }

    impl Lab {
        fn new(more: &str, flags: &[&str]) -> Lab {
            let dir = tempfile::tempdir().expect("folder");
            let file = dir.path().join("bb.toml");
            fs::write(&file, format!("{BASE}{more}")).expect("write");
            let file = file.to_str().expect("UTF-8");
            let line = [&["up", "--config", file], flags].concat();
            let args = Line::try_parse_from(line).expect("valid").up;
            let sources = Sources::new(&args).expect("sources");
            let read = sources.read().expect("valid");
            let again = Again::new(sources, &read).expect("again");
            Lab { dir, again }
        }

        fn becomes(&self, text: &str) -> Result<(Reloaded, LiveSettings), String> {
            fs::write(self.dir.path().join("bb.toml"), text).expect("write");
            let mut in_force = self.again.in_force.lock();
            let compared = self.again.compare(&mut in_force);
            compared.map_err(|failure| failure.message)
        }
    }

    /// What it comes to follows the machine and its control groups, and is no change of the file.
    #[test]
    fn memory_that_is_borrowed_is_the_same_setting_however_much_there_is() {
        let auto = BASE.replace("64MiB", "auto");
        let lab = Lab::new("", &["--dram=auto"]);
        lab.again.in_force.lock().settings.dram_bytes = Some(1 << 20);
        let nothing = lab.becomes(&auto).expect("valid");
        assert_eq!(nothing, (Reloaded::default(), LiveSettings::default()));
    }

    #[test]
    fn what_can_change_is_taken_once_and_all_else_is_named_each_time() {
        let lab = Lab::new("", &[]);
        let nothing = lab.becomes(BASE).expect("valid");
        assert_eq!(nothing, (Reloaded::default(), LiveSettings::default()));
        let text = format!(
            "{}policy = \"maxeff\"\n[history]\nkeep = \"1d\"\n[[rule]]\npath = \"/a\"\n",
            BASE.replace("64MiB", "128MiB")
        );
        let (reloaded, live) = lab.becomes(&text).expect("valid");
        assert_eq!(reloaded.taken, ["history.keep", "policy", "rule"]);
        assert_eq!(reloaded.restart, ["dram"]);
        assert_eq!(live.policy, Some(forebay_policy::plan::DrainPolicy::MaxEff));
        assert_eq!(live.rules.expect("rules").len(), 1);
        assert_eq!(live.history.expect("kept").for_ms, 24 * 3600 * 1000);
        assert_eq!((live.placement, live.bandwidths), (None, None));
        let (again, live) = lab.becomes(&text).expect("valid");
        assert_eq!((again.taken.len(), again.restart), (0, vec!["dram".into()]));
        assert_eq!(live, LiveSettings::default());
        // What goes from the file is as it was without.
        let (back, live) = lab.becomes(BASE).expect("valid");
        assert_eq!(back.taken, ["history.keep", "policy", "rule"]);
        assert!(back.restart.is_empty());
        assert_eq!(live.rules, Some(Vec::new()));
    }

    #[test]
    fn a_bad_file_changes_nothing() {
        let lab = Lab::new("", &[]);
        let refused = |text: &str, part: &str| {
            let error = lab.becomes(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        let bad = format!("{BASE}policy = \"maxbw\"\nthreads = 0\n");
        refused(&bad, "threads is 0");
        refused(&format!("{BASE}polcy = \"maxbw\"\n"), "bb.toml: line 5: ");
        fs::remove_file(lab.dir.path().join("bb.toml")).expect("remove");
        let mut in_force = lab.again.in_force.lock();
        assert!(lab.again.compare(&mut in_force).is_err());
        drop(in_force);
        let (after, live) = lab.becomes(BASE).expect("valid");
        assert_eq!(
            (after, live),
            (Reloaded::default(), LiveSettings::default())
        );
    }

    #[test]
    fn flags_go_before_the_file_again() {
        let lab = Lab::new("", &["--policy", "maxbw"]);
        let text = format!("{BASE}policy = \"maxeff\"\n");
        let (reloaded, _) = lab.becomes(&text).expect("valid");
        assert_eq!(reloaded, Reloaded::default());
    }

    #[test]
    fn history_is_not_turned_on_or_off_while_it_runs() {
        let lab = Lab::new("", &[]);
        let off = format!("{BASE}[history]\nkeep = 0\n");
        let (reloaded, live) = lab.becomes(&off).expect("valid");
        assert_eq!(
            (reloaded.restart, live.history),
            (vec!["history.keep".into()], None)
        );
    }

    #[test]
    fn what_is_taken_is_a_setting() {
        let keys = super::super::keys::keys_of::<super::super::given::Given>();
        for (key, _) in TAKEN {
            // Lists have no key of their own.
            assert!(
                ["rule", "limit"].contains(&key) || keys.iter().any(|known| known == key),
                "{key}"
            );
        }
    }
}
