//! `forebay up`: starts a burst buffer and mounts it.

pub mod again;
pub mod detach;
pub mod front;
pub mod given;
pub mod keeper;
pub mod keys;
pub mod layers;
pub mod limits;
pub mod listening;
pub mod log;
mod neighbours;
mod notify;
pub mod preflight;
pub mod resources;
pub mod run;
pub mod settle;
mod standby;
pub mod supervisor;
pub mod values;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use forebay_types::format_size;

use self::again::Sources;
use self::detach::Readiness;
use self::front::{Front, MountHere};
use self::layers::{ConfigFile, Layers};
use self::log::Log;
use self::settle::{Plan, Read};
use self::values::{Count, Dram, Fraction, FromText, Level, PolicyName, Size, parse_ssd};
use crate::exit::{Exit, Explain, Failure, reason};
use crate::paths::need_working_directory;
use crate::state::{Lock, LockError};
use crate::{instance, mounts, out, usage};

/// A start waits so long for the end of a run whose mount has gone.
const ENDING_LIMIT: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Starts a burst buffer in front of a slow file system and mounts it
#[derive(Args, Clone, Default)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Without --dram as much memory is borrowed as jobs do without, at most half of it; the start says ",
        "how much that may be. `--dram none` with --ssd uses flash alone. After a crash or kill -9 the same command with ",
        "the same --state finds everything again and finishes what was under way.\n\n",
        "Without --detach it runs in the foreground and logs to standard error; Ctrl-C stops it in ",
        "order (data not yet on the PFS stays in the state folder), a second Ctrl-C at once.\n\n",
        "Durability of fsync: `memory` survives the daemon, not the machine; `ssd` is on flash and ",
        "flushed; `pfs` is on the PFS, verified. Default: ssd if there is a flash directory, else pfs.\n",
        "Policies: bbos (default: beside checkpoints from `start` on), maxbw (only when idle or full), ",
        "maxeff (always), dedicated (a share for each application). `forebay policy` changes it while running.\n\n",
        "Settings come from the command line, else from the environment, else from the file:\n",
        "  FOREBAY_PFS, FOREBAY_DRAM, FOREBAY_SSD=DIR:SIZE,DIR, FOREBAY_DEMOTION_IDLE_AFTER, ...\n",
        "  FOREBAY_CONFIG names the file, FOREBAY_LOG sets the log level (error ... trace).\n",
        "Relative paths in the file count from its folder. A file with all its keys:\n\n",
        include_str!("sample.toml"),
        "\n",
        "Examples:\n",
        "  forebay up --pfs /scratch --mount /bb --state /var/lib/forebay --ssd /nvme:200GB\n",
        "  forebay up --config /etc/forebay.toml --check\n",
        "  forebay up --config /etc/forebay.toml --detach\n\n",
        "Exit codes: 0 stopped in order, or (--detach) mounted; 1 it could not be started: one line ",
        "says why, nothing is mounted."
    )
)]
pub struct UpArgs {
    /// The slow file system: any mounted directory
    #[arg(long, value_name = "DIR")]
    pfs: Option<PathBuf>,
    /// Where to show it: an existing directory outside of the PFS
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Folder for records, log and control socket; made if missing, kept over restarts
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Memory to borrow: a size, none, or auto, the default: as much as jobs do without
    #[arg(long, value_name = "SIZE|auto|none", value_parser = text_of::<Dram>)]
    dram: Option<String>,
    /// With --dram auto: what jobs never get back (default: nothing but 4 MiB)
    #[arg(long, value_name = "SIZE", value_parser = text_of::<Size>)]
    dram_min: Option<String>,
    /// With --dram auto: the most, whatever is idle
    #[arg(long, value_name = "SIZE", value_parser = text_of::<Size>)]
    dram_max: Option<String>,
    /// With --dram auto: the most as a part of the memory (default: 50%)
    #[arg(long, value_name = "PART", value_parser = text_of::<Fraction>)]
    dram_max_share: Option<String>,
    /// Flash directory and how much of it to use (default: what its file system has); repeatable
    #[arg(long, value_name = "DIR[:SIZE]", value_parser = ssd_parser())]
    ssd: Vec<OsString>,
    /// What fsync promises: memory, ssd or pfs
    #[arg(long, value_name = "LEVEL", value_parser = text_of::<Level>)]
    durability: Option<String>,
    /// When to demote: bbos, maxbw, maxeff or dedicated
    #[arg(long, value_name = "NAME", value_parser = text_of::<PolicyName>)]
    policy: Option<String>,
    /// Do not let the kernel read and write by itself (it does so only for root)
    #[arg(long)]
    no_passthrough: bool,
    /// Let other users use the mount (default for root, and whoever else may mount)
    #[arg(long)]
    allow_other: bool,
    /// Only this user may use the mount
    #[arg(long, conflicts_with = "allow_other")]
    no_allow_other: bool,
    /// Threads of the mount (default: one per core, 2 to 8)
    #[arg(long, value_name = "N", value_parser = text_of::<Count>)]
    threads: Option<String>,
    /// Settings in TOML (or FOREBAY_CONFIG)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read the settings and look at the folders, and start nothing
    #[arg(long, conflicts_with = "detach")]
    check: bool,
    /// Return when the mount answers; log to STATE/forebay.log, process id in STATE/forebay.pid
    #[arg(long)]
    detach: bool,
    /// Set by --detach for the process that stays.
    #[arg(long, hide = true, requires = "detach")]
    detached: bool,
}

fn ssd_parser() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|text: OsString| parse_ssd(&text).map(|_| text))
}

/// The text of a value that can be read: the command line is a layer like the others, but says at
/// once what is wrong.
fn text_of<T: FromText>(text: &str) -> Result<String, String> {
    T::from_text(text).map(|_| text.to_string())
}

/// Runs the command.
pub fn run(args: &UpArgs) -> Result<Exit, Failure> {
    need_working_directory("up")?;
    if args.check {
        return check(args);
    }
    detach::run((args.detach, args.detached), |readiness| {
        start(args, readiness)
    })
}

/// All that a start would refuse without having made anything.
fn check(args: &UpArgs) -> Result<Exit, Failure> {
    let mut plan = Sources::new(args)?.read()?.plan;
    let ground = preflight::check(&mut plan)?;
    log::check()?;
    for warning in &ground.warnings {
        out::complain(warning);
    }
    let settings = &plan.settings;
    let flash = settings.ssd.iter().map(|ssd| ssd.dir.display().to_string());
    let memory = settings.dram_bytes.map(|_| "memory".to_string());
    let named: Vec<String> = memory.into_iter().chain(flash).collect();
    out::print(&format!(
        "{} in front of {}: nothing is wrong with these settings, with {}; nothing was started\n",
        named.join(", "),
        settings.pfs.display(),
        tiers(&plan)
    ));
    Ok(Exit::Complete)
}

fn start(args: &UpArgs, readiness: &mut Readiness) -> Result<Exit, Failure> {
    let sources = Sources::new(args)?;
    let read = sources.read()?;
    let front = MountHere::again_from(sources, &read)?;
    start_planned(read.plan, &front, args.detached, readiness)
}

/// Starts what is planned, after all checks, and serves.
pub fn start_planned(
    plan: Plan,
    front: &dyn Front,
    detached: bool,
    readiness: &mut Readiness,
) -> Result<Exit, Failure> {
    start_with(plan, detached, readiness, |plan, log, announce| {
        run::serve(plan, front, detached, log, announce)
    })
}

/// Says the line that it serves.
pub type Announce<'a> = dyn FnMut(&str) -> Result<(), Failure> + 'a;

/// The same for whatever serves what is planned: after all checks, under the lock of the state
/// folder, with a log.
pub fn start_with(
    mut plan: Plan,
    detached: bool,
    readiness: &mut Readiness,
    serve: impl FnOnce(&Plan, &Log, &mut Announce<'_>) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let ground = preflight::check(&mut plan)?;
    let state = plan.settings.state.clone();
    let made = preflight::make_state(&state)?;
    let start = || {
        let _lock = lock_to_start(&state, plan.settings.mount.as_deref())?;
        preflight::clear_dead_mounts(&state, plan.settings.mount.as_deref())?;
        let log = log::start(&state, plan.settings.mount.as_deref(), detached)?;
        if let Some(most) = resources::raise_open_files() {
            tracing::info!("up to {most} descriptors");
        }
        for warning in &ground.warnings {
            run::tell_early(detached, warning);
        }
        // A detached one was started as /proc/self/exe, and would be called `exe`.
        if let Err(error) = rustix::thread::set_name(c"forebay") {
            tracing::debug!("the process keeps its name: {error}");
        }
        let mut announce = |line: &str| {
            // A start that fails has borrowed nothing.
            if let Some(note) = resources::borrowed_until_logout(&plan.settings) {
                out::complain(note);
            }
            if detached {
                log.take_stderr().explain("standard error", "")?;
            }
            run::say_who_serves(&state)?;
            readiness.announce(line)
        };
        serve(&plan, &log, &mut announce)
    };
    let served = start();
    if served.is_err() && made && !readiness.is_announced() {
        preflight::unmake_state(&state);
    }
    served
}

/// Takes the lock of a state folder.
pub fn lock(state: &Path) -> Result<Lock, Failure> {
    Lock::take(state).map_err(|error| not_locked(state, &error))
}

/// The same for a start. `umount` does not wait for the run that it ends: who mounts again at once
/// finds that run ending, and waits for it.
fn lock_to_start(state: &Path, mount: Option<&Path>) -> Result<Lock, Failure> {
    let until = Instant::now() + ENDING_LIMIT;
    loop {
        match Lock::take(state) {
            Err(LockError::Held { .. })
                if mount.is_some() && Instant::now() < until && !is_mounted(state)? =>
            {
                std::thread::sleep(LOOK_EVERY);
            }
            taken => return taken.map_err(|error| not_locked(state, &error)),
        }
    }
}

fn is_mounted(state: &Path) -> Result<bool, Failure> {
    Ok(!mounts::of_state(&instance::mount_table()?, state).is_empty())
}

fn not_locked(state: &Path, error: &LockError) -> Failure {
    let what = state.display();
    Failure::fatal(match error {
        LockError::Held { pid } => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            format!(
                "{what}: in use by a running instance{pid}; `forebay status --state {what}` shows it, \
                 `forebay down --state {what}` stops it"
            )
        }
        LockError::Io(error) => format!("{what}: cannot use the state folder: {}", reason(error)),
    })
}

/// Where a file says that the PFS and the flash of a burst buffer are. The rest of the file is only
/// read: what a start needs besides, flags may give.
pub fn places_of(file: &Path) -> Result<(Option<PathBuf>, Vec<PathBuf>), Failure> {
    let file = ConfigFile::read(file)?;
    let given: given::Given = Layers::of_file(&file)?.read()?;
    limits::check_each_once(&given.limits, Some(&file))?;
    let ssd = given.ssd.unwrap_or_default();
    Ok((
        given.pfs.map(|pfs| pfs.0),
        ssd.into_iter().map(|ssd| ssd.0.dir).collect(),
    ))
}

impl Sources {
    /// All sources laid over each other, with defaults.
    fn read(&self) -> Result<Read, Failure> {
        let file = self.config.as_deref().map(ConfigFile::read).transpose()?;
        let (mut read, unknown) = self.read_from(file.as_ref())?;
        // An error is one line.
        for name in unknown {
            let meant = layers::variable_like(&name).map_or_else(
                || "see `forebay up --help`".to_string(),
                |meant| format!("did you mean {meant}?"),
            );
            out::complain(&format!(
                "environment variable {name} is no setting and is ignored; {meant}"
            ));
        }
        forebay_types::failpoint::arm_from_environment()
            .map_err(|error| Failure::fatal(error.to_string()))?;
        read.plan.settings.boot_id = std::env::var(layers::BOOT_ID)
            .ok()
            .filter(|id| !id.is_empty());
        Ok(read)
    }

    /// The same with this text of the file, and the variables that are no settings.
    fn read_from(&self, file: Option<&ConfigFile>) -> Result<(Read, Vec<String>), Failure> {
        let mut layers = file.map_or_else(|| Ok(Layers::default()), Layers::of_file)?;
        let unknown = layers.put_environment(std::env::vars_os());
        self.args.put_into(&mut layers);
        let texts = layers.texts();
        let given: given::Given = layers.read()?;
        limits::check_each_once(&given.limits, file)?;
        let plan = settle::settle(given, resources::may_mount())?;
        Ok((Read { plan, texts }, unknown))
    }
}

impl UpArgs {
    /// Lays what was given over the other layers.
    fn put_into(&self, layers: &mut Layers) {
        let folders = [
            ("pfs", &self.pfs),
            ("mount", &self.mount),
            ("state", &self.state),
        ];
        let folders = folders.map(|(key, dir)| (key, dir.as_ref().map(|dir| dir.as_os_str())));
        let texts = [
            ("dram", &self.dram),
            ("dram_min", &self.dram_min),
            ("dram_max", &self.dram_max),
            ("dram_max_share", &self.dram_max_share),
            ("durability", &self.durability),
            ("policy", &self.policy),
            ("threads", &self.threads),
        ];
        let texts = texts.map(|(key, text)| (key, text.as_ref().map(OsStr::new)));
        for (key, given) in folders.into_iter().chain(texts) {
            if let Some(given) = given {
                layers.put(key, format!("--{}", key.replace('_', "-")), given);
            }
        }
        if !self.ssd.is_empty() {
            let dirs = self.ssd.iter().map(|dir| dir.as_os_str());
            layers.put_list("ssd", "--ssd".into(), dirs);
        }
        for (key, flag, is_given, value) in [
            (
                "passthrough",
                "--no-passthrough",
                self.no_passthrough,
                "false",
            ),
            ("allow_other", "--allow-other", self.allow_other, "true"),
            (
                "allow_other",
                "--no-allow-other",
                self.no_allow_other,
                "false",
            ),
        ] {
            if is_given {
                layers.put(key, flag.into(), OsStr::new(value));
            }
        }
    }
}

/// The tiers of a plan, for people.
pub fn tiers(plan: &Plan) -> String {
    let settings = &plan.settings;
    let most = if settings.lending.is_some() {
        "up to "
    } else {
        ""
    };
    let dram = settings
        .dram_bytes
        .map(|bytes| format!("{most}{} of memory", format_size(bytes)));
    let ssd = settings.ssd.iter().map(|ssd| match ssd.capacity_bytes {
        Some(bytes) => format!("{} in {}", format_size(bytes), ssd.dir.display()),
        None => ssd.dir.display().to_string(),
    });
    let tiers: Vec<String> = dram.into_iter().chain(ssd).collect();
    tiers.join(", ")
}

#[cfg(test)]
mod table_tests;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::given::Given;
    use super::values::{Dram, DramSize, Folder, Switch};
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        up: UpArgs,
    }

    fn given_by(args: &[&str]) -> Result<Given, String> {
        let line = Line::try_parse_from(std::iter::once(&"up").chain(args));
        let line = line.map_err(|error| error.to_string())?;
        let mut layers = Layers::default();
        line.up.put_into(&mut layers);
        layers.read().map_err(|failure| failure.message)
    }

    #[test]
    fn a_start_waits_for_the_end_of_a_run_that_is_unmounted() {
        let folder = tempfile::tempdir().expect("tempdir");
        let state = folder.path();
        let held = Lock::take(state).expect("free");
        // A server has no mount, whose end would say that it ends.
        assert!(lock_to_start(state, None).is_err());
        let ending = std::thread::spawn(move || {
            std::thread::sleep(LOOK_EVERY * 4);
            drop(held);
        });
        assert!(lock_to_start(state, Some(Path::new("/bb"))).is_ok());
        ending.join().expect("ended");
    }

    #[test]
    fn flags_are_a_layer() {
        let given = given_by(&[
            "--pfs",
            "/p",
            "--dram",
            "1GiB",
            "--ssd",
            "/a:1T",
            "--ssd",
            "/b",
            "--durability",
            "pfs",
            "--no-passthrough",
            "--no-allow-other",
            "--threads",
            "3",
        ])
        .expect("valid");
        assert_eq!(given.pfs, Some(Folder("/p".into())));
        assert_eq!(given.dram, Some(Dram(DramSize::Fixed(1 << 30))));
        assert_eq!(given.ssd.as_ref().map(Vec::len), Some(2));
        assert_eq!(
            (given.passthrough, given.allow_other, given.threads),
            (Some(Switch(false)), Some(Switch(false)), Some(Count(3)))
        );
        assert_eq!(given_by(&[]).expect("valid"), Given::default());
    }

    #[test]
    fn the_file_in_the_help_is_valid_and_has_all_keys() {
        let given: Given = toml::from_str(include_str!("sample.toml")).expect("valid");
        // The second flash directory has no size, and a rule no servers: those are a cluster's.
        let none = "locality: None, servers: None, racks: None";
        let text = format!("{given:?}");
        assert_eq!(text.matches(none).count(), given.rules.len(), "{text}");
        assert_eq!(text.replace(none, "").matches("None").count(), 1, "{text}");
    }

    #[test]
    fn wrong_flags_say_what_would_be_right() {
        for (args, part) in [
            (["--dram", "4 apples"], "known are"),
            (["--policy", "best"], "bbos, maxbw, maxeff"),
            (["--durability", "disk"], "memory, ssd, pfs"),
            (["--ssd", ":4G"], "DIR:SIZE"),
        ] {
            let error = given_by(&args).unwrap_err();
            assert!(error.contains(part), "{args:?}: {error}");
        }
    }
}
