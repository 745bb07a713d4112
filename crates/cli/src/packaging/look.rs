//! What burst buffers of this machine run, or have left behind: a package is not taken away from
//! under data that the PFS does not have.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::path::{Path, PathBuf};

use forebay_wire::control::StatusBits;
use toml::{Table, Value};

use crate::control::{Daemon, files_and_bytes};
use crate::ended;
use crate::exit::{Exit, Explain, Failure};
use crate::instance::mount_table;
use crate::starter::Starter;
use crate::state::{self, Holder};
use crate::{fstab, mounts, out};

/// Prints a line for each burst buffer that is in the way; partial if there is one.
pub fn undrained(config: &Path, states: &Path) -> Result<Exit, Failure> {
    let table = mount_table()?;
    let mounted = table.iter().filter(|entry| entry.is_forebay());
    let mounted: Vec<PathBuf> = mounted.map(|entry| entry.source.clone()).collect();
    look(config, states, mounted)
}

fn look(config: &Path, states: &Path, mounted: Vec<PathBuf>) -> Result<Exit, Failure> {
    let mut lines = String::new();
    for folder in candidates(config, states, mounted)? {
        if let Some(line) = look_at(&folder)? {
            let _ = writeln!(lines, "{line}");
        }
    }
    out::print(&lines);
    Ok(match lines.is_empty() {
        true => Exit::Complete,
        false => Exit::Partial,
    })
}

/// Prints a line for each place where a line of fstab has a burst buffer mounted: its units do not
/// name it.
pub fn mounted() -> Result<Exit, Failure> {
    let table = mount_table()?;
    let mut lines = String::new();
    for line in fstab::read(&fstab::path())? {
        let place = mounts::resolved(&table, &line.place);
        let entry = mounts::topmost(&table, &place).filter(|entry| entry.is_forebay());
        if entry.is_some_and(|entry| !is_of_a_unit(&entry.source)) {
            // By a link, `umount -c` would not ask for the helper.
            let _ = writeln!(lines, "{}", place.display());
        }
    }
    out::print(&lines);
    Ok(Exit::Complete)
}

/// Whether a service of the package runs it.
fn is_of_a_unit(folder: &Path) -> bool {
    let Ok(Some(Holder::Process(Some(pid)))) = state::holder(folder) else {
        return false;
    };
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    ["/forebay@", "/forebay-mount@"]
        .iter()
        .any(|unit| groups.contains(unit))
}

/// State folders: those that configuration files name, those where packages keep them, those of
/// what is mounted.
fn candidates(
    config: &Path,
    states: &Path,
    mounted: Vec<PathBuf>,
) -> Result<BTreeSet<PathBuf>, Failure> {
    let mut named = Vec::new();
    for file in below(config)? {
        if file.extension().is_some_and(|end| end == "toml") {
            named.extend(states_in(&file, config)?);
        }
    }
    named.push(states.to_path_buf());
    named.extend(below(states)?);
    named.extend(mounted);
    // What is not there, or is no folder, has nothing.
    let there = named
        .into_iter()
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| path.is_dir());
    Ok(there.collect())
}

/// What is in a folder; nothing where there is none.
fn below(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.explain(folder.display(), "")?,
    };
    entries
        .map(|entry| Ok(entry.explain(folder.display(), "")?.path()))
        .collect()
}

/// The `state` of `forebay up`, and those of a cluster's servers. Other keys are not looked at.
fn states_in(file: &Path, base: &Path) -> Result<Vec<PathBuf>, Failure> {
    let text = std::fs::read_to_string(file).explain(file.display(), "")?;
    let table: Table = toml::from_str(&text)
        .map_err(|error| Failure::fatal(format!("{}: {}", file.display(), error.message())))?;
    let servers = table.get("server").and_then(Value::as_array);
    let servers = servers
        .into_iter()
        .flatten()
        .map(|server| server.get("state"));
    let states = std::iter::once(table.get("state")).chain(servers).flatten();
    Ok(states
        .filter_map(Value::as_str)
        .map(|state| base.join(state))
        .collect())
}

/// Why a folder is in the way; `None` where nothing is lost without it.
fn look_at(folder: &Path) -> Result<Option<String>, Failure> {
    let what = folder.display();
    let holder = state::holder(folder).explain(folder.display(), "")?;
    let starter = Starter::of(folder);
    if starter.is_mount() {
        return Ok(None);
    }
    let line = match holder {
        None => return Ok(None),
        Some(Holder::Process(_)) => format!("{what}: {}", running(folder)),
        Some(Holder::Nobody) if ended::last_left_nothing(folder) => return Ok(None),
        Some(Holder::Nobody) => format!(
            "{what}: stopped; {}, then `forebay down --state {what} --drain` copies all to the PFS",
            left(folder, &starter)
        ),
    };
    Ok(Some(line))
}

fn running(folder: &Path) -> String {
    let what = folder.display();
    let asked = Daemon::try_connect(folder).and_then(|daemon| match daemon {
        None => Err(Failure::fatal("it is starting or stopping")),
        Some(daemon) => daemon
            .status()
            .map_err(|error| daemon.failure(error, "ask it")),
    });
    match asked {
        Err(failure) => format!("runs, and cannot be asked: {}", failure.message),
        Ok(bits) => of_status(&what, &bits),
    }
}

/// prerm looks for the words of what has nothing.
fn of_status(what: &impl Display, bits: &StatusBits) -> String {
    if bits.data_server.is_some() {
        return "a data server runs; `forebay cluster stop` copies all to the PFS".into();
    }
    let versions = bits.unpublished.len() as u64;
    let commit = "`forebay commit` publishes them";
    if bits.dirty_bytes > 0 || bits.drain_queued_files > 0 {
        let versions = match versions {
            0 => String::new(),
            _ => format!(
                ", and there are {}: {commit}",
                ended::unpublished_versions(versions)
            ),
        };
        return format!(
            "runs; {} are not yet on the PFS; `forebay down --state {what} --drain` copies them{versions}",
            files_and_bytes(bits.drain_queued_files, bits.dirty_bytes)
        );
    }
    match versions {
        0 => format!("runs; all is on the PFS; `forebay down --state {what} --drain` stops it"),
        _ => format!(
            "runs; it has {}: {commit}",
            ended::unpublished_versions(versions)
        ),
    }
}

fn left(folder: &Path, starter: &Starter) -> String {
    let Some(left) = ended::last(folder) else {
        return format!("what it has left is not known; {starter}");
    };
    let mut parts = Vec::new();
    if !ended::is_all_there(&left) {
        parts.push(format!(
            "{} are not yet on the PFS",
            files_and_bytes(left.undrained_files, left.undrained_bytes)
        ));
    }
    if left.unflushed_files > 0 {
        parts.push("what was changed on the PFS is not on stable storage there".into());
    }
    if left.unpublished_versions > 0 {
        parts.push(format!(
            "it has {}, which `forebay commit` publishes after a start",
            ended::unpublished_versions(left.unpublished_versions)
        ));
    }
    if parts.is_empty() {
        parts.push("not all that it may have left is known".into());
    }
    format!("{}; {starter}", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use forebay_server::StopSummary;

    use super::*;

    fn left(folder: &Path, files: u64) {
        end(
            folder,
            &StopSummary {
                undrained_files: files,
                undrained_bytes: files * 4096,
                ..StopSummary::default()
            },
        );
    }

    fn end(folder: &Path, left: &StopSummary) {
        let note = ended::Note::begin(folder).expect("begin");
        note.end(left, &[]).expect("end");
    }

    #[test]
    fn only_what_was_drained_is_out_of_the_way() {
        let place = tempfile::tempdir().expect("tempdir");
        let (config, states) = (place.path().join("etc"), place.path().join("lib"));
        let found = || match look(&config, &states, Vec::new()) {
            Ok(exit) => exit,
            Err(failure) => panic!("{failure:?}"),
        };
        assert_eq!(found(), Exit::Complete, "nothing is there");
        std::fs::create_dir_all(states.join("bb")).expect("mkdir");
        std::fs::write(states.join("notes"), "of the administrator").expect("write");
        std::fs::create_dir_all(&config).expect("mkdir");
        assert_eq!(found(), Exit::Complete, "an empty folder");
        drop(state::Lock::take(&states.join("bb")).expect("lock"));
        assert_eq!(found(), Exit::Partial, "killed: nobody knows");
        left(&states.join("bb"), 0);
        assert_eq!(found(), Exit::Complete);
        left(&states.join("bb"), 3);
        let line = look_at(&states.join("bb")).ok().flatten().expect("a line");
        assert!(line.contains("3 files (12.0 KiB) are not yet"), "{line}");
    }

    #[test]
    fn a_version_that_the_pfs_does_not_show_is_in_the_way() {
        use forebay_wire::control::VersionStatus;
        let place = tempfile::tempdir().expect("tempdir");
        drop(state::Lock::take(place.path()).expect("lock"));
        let unpublished = StopSummary {
            unpublished_versions: 2,
            ..StopSummary::default()
        };
        end(place.path(), &unpublished);
        let line = look_at(place.path()).ok().flatten().expect("a line");
        assert!(line.contains("2 versions that are not published"), "{line}");
        let version = VersionStatus {
            path: b"v".to_vec(),
            files: 1,
            undrained_files: 0,
            undrained_bytes: 0,
            written_files: 0,
            committed: false,
            interrupted: false,
            lost_files: 0,
            since_s: 1,
            error: None,
        };
        let mut bits = StatusBits::default();
        // As debian/prerm looks for what it may stop.
        assert!(of_status(&"/s", &bits).starts_with("runs; all is on the PFS;"));
        bits.unpublished = vec![version];
        let line = of_status(&"/s", &bits);
        assert_eq!(
            line,
            "runs; it has 1 version that is not published: `forebay commit` publishes them"
        );
        bits.dirty_bytes = 4096;
        let line = of_status(&"/s", &bits);
        assert!(line.ends_with("`forebay commit` publishes them"), "{line}");
    }

    #[test]
    fn configuration_files_name_state_folders() {
        let place = tempfile::tempdir().expect("tempdir");
        let file = place.path().join("c.toml");
        std::fs::write(
            &file,
            "state = 'here'\n[[server]]\nstate = '/a'\n[[server]]\nid = 2\n",
        )
        .expect("write");
        let states = states_in(&file, place.path());
        assert_eq!(
            states.ok(),
            Some(vec![place.path().join("here"), "/a".into()])
        );
        std::fs::write(&file, "state = ").expect("write");
        assert!(states_in(&file, place.path()).is_err(), "not read as none");
    }
}
