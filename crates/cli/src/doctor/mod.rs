//! `forebay doctor`: looks at the machine, and says what works, what will be slow, what to change.
//!
//! - `finding`: what was found, and how it is shown;
//! - `trials`: what a file system can do, by doing it;
//! - `device`, `flash`, `pfs`: what that means for a directory;
//! - `machine`, `groups`, `fuse`: the kernel, rights, limits, memory;
//! - `cluster`: what a cluster's file asks of this node;
//! - `place`: one directory, from its mount to its trials.

mod cluster;
mod device;
mod finding;
mod flash;
mod fuse;
mod groups;
mod machine;
mod pfs;
mod place;
mod trials;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use clap::Args;

use crate::exit::{Exit, Explain, Failure};
use crate::mount::is_alone;
use crate::show::json;
use crate::signals::{Hangup, watch};
use crate::up::values::{FromText, Ssd};
use crate::{out, up, usage};
use finding::{Finding, Grade, Section};
use place::{Kind, Place};

/// A directory that takes longer than this does not answer.
const PLACE_LIMIT: Duration = Duration::from_secs(60);
/// After Ctrl-C the temporary files are waited for so long.
const CLEAN_LIMIT: Duration = Duration::from_secs(10);

/// Looks at this machine and says what works, what will be slow, and what to change
#[derive(Args)]
#[command(
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Looks at the kernel, FUSE, rights, limits, memory and clock; with --ssd and --pfs at directories that ",
        "shall be flash or the slow file system, by trying there what Forebay will do; with --config at a file of ",
        "`up`, or at the key, the addresses and ports of a cluster, and, where --pfs and --ssd are not given, at ",
        "those of the file. ",
        "Run it as the user who will run Forebay: rights and limits are those of this process.\n\n",
        "Each finding is a line: `ok`; `note`, worth knowing, or something that cannot be known; `slow`, works, ",
        "but takes longer than it would have to; `bad`, something does not work, or a promise does not hold. A ",
        "line with `->` says what to do. What was measured stands there with its numbers; what was not is said ",
        "not to be known.\n\n",
        "Nothing is changed. In each directory one hidden directory `.forebay-doctor-...` is made, of less than ",
        "2 MiB, and removed, also on Ctrl-C. Only kill -9, or a directory that does not answer, can leave it ",
        "there (the command names it then).\n\n",
        "JSON: {\"findings\": [{\"area\", \"path\", \"check\", \"grade\", \"found\", \"todo\", \"measured\": {...}}], \"ok\", ",
        "\"note\", \"slow\", \"bad\"}; the last four count.\n\n",
        "Examples:\n  forebay doctor\n  forebay doctor --pfs /scratch --ssd /local/nvme\n",
        "  forebay doctor --config /etc/forebay/cluster.toml --json\n\n",
        "Exit codes: 0 nothing is bad; 1 wrong usage; 3 something is bad (each is named); 130 interrupted."
    )
)]
pub struct DoctorArgs {
    /// The slow file system, or a directory of it
    #[arg(long, value_name = "DIR")]
    pfs: Option<PathBuf>,
    /// A directory on flash, as with `up`; may be given several times
    #[arg(long, value_name = "DIR", value_parser = clap::builder::OsStringValueParser::new())]
    ssd: Vec<std::ffi::OsString>,
    /// The file of `up`, or that of a cluster, cluster.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the command waits for.
enum Event {
    Looked(Vec<Finding>),
    Interrupted,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<Exit, Failure> {
    let mut ssds = Vec::new();
    for given in &args.ssd {
        let ssd = Ssd::from_os(given)
            .map_err(|why| Failure::fatal(format!("--ssd {}: {why}", given.to_string_lossy())))?;
        ssds.push(ssd.0.dir);
    }
    let (send, events) = mpsc::channel();
    let interrupts = send.clone();
    watch(Hangup::Stops, move |signal, nth| {
        // Who asks twice does not wait for the temporary files.
        if nth > 1 || interrupts.send(Event::Interrupted).is_err() {
            std::process::exit(128 + signal);
        }
    })
    .explain("cannot watch for signals", "")?;
    let mut sections = Vec::new();
    let mut pfs = args.pfs.clone();
    if let Some(path) = &args.config {
        sections.push(match is_alone(path) {
            true => alone(path, &mut pfs, &mut ssds),
            false => of_cluster(path, &mut pfs, &mut ssds),
        });
    }
    sections.insert(0, machine(ssds.len()));
    if let Ok(Event::Interrupted) = events.try_recv() {
        return Ok(Exit::Interrupted);
    }
    let flash = ssds.iter().map(|dir| (Kind::Flash, dir.clone()));
    let places = flash.chain(pfs.iter().map(|dir| (Kind::Pfs, dir.clone())));
    for (kind, dir) in places {
        let place = Place::new(kind, dir.clone(), ssds.clone());
        let Some(findings) = look(place, (&send, &events), PLACE_LIMIT)? else {
            return Ok(Exit::Interrupted);
        };
        sections.push(Section {
            area: kind.area(),
            path: Some(dir.as_os_str().as_bytes().to_vec()),
            findings,
        });
    }
    match args.json {
        true => json::print(&finding::as_json(&sections)),
        false => out::print(&finding::render(&sections)),
    }
    Ok(match finding::count(&sections, Grade::Bad) {
        0 => Exit::Complete,
        _ => Exit::Partial,
    })
}

/// What the file of a burst buffer of this node says, and its directories where none were given.
fn alone(path: &Path, pfs: &mut Option<PathBuf>, ssds: &mut Vec<PathBuf>) -> Section {
    let finding = match up::places_of(path) {
        Ok((theirs, ssd)) => {
            *pfs = pfs.take().or(theirs);
            if ssds.is_empty() {
                *ssds = ssd;
            }
            let found = "a burst buffer of this node alone, no errors".to_string();
            Finding::ok("file", found)
        }
        Err(failure) => {
            let message = failure.message;
            let (found, todo) = message.split_once("; ").unwrap_or((&message, ""));
            Finding::new("file", Grade::Bad, found, todo)
        }
    };
    Section {
        area: "settings",
        path: Some(path.as_os_str().as_bytes().to_vec()),
        findings: vec![finding],
    }
}

/// The same of a cluster, for the servers that are here.
fn of_cluster(path: &Path, pfs: &mut Option<PathBuf>, ssds: &mut Vec<PathBuf>) -> Section {
    let (findings, cluster) = cluster::findings(path);
    if let Some((cluster, here)) = cluster {
        let data = here.iter().filter(|server| server.data);
        let theirs = data.flat_map(|server| server.ssd.iter().map(|ssd| ssd.dir.clone()));
        if ssds.is_empty() {
            ssds.extend(theirs);
        }
        // A node that only mounts need not have the PFS.
        *pfs = pfs
            .take()
            .or_else(|| (!here.is_empty()).then_some(cluster.pfs));
    }
    Section {
        area: "cluster",
        path: Some(path.as_os_str().as_bytes().to_vec()),
        findings,
    }
}

fn machine(ssds: usize) -> Section {
    let mut findings = machine::findings(ssds);
    findings.extend(fuse::findings());
    findings.extend(groups::findings());
    Section {
        area: "machine",
        path: None,
        findings,
    }
}

/// Looks at a directory on a thread of its own, for it may never answer. `None`: interrupted, and
/// nothing is left there, or it was said what is.
fn look(
    place: Place,
    (send, events): (&Sender<Event>, &Receiver<Event>),
    limit: Duration,
) -> Result<Option<Vec<Finding>>, Failure> {
    let (stop, made) = (place.stop(), place.made());
    let answer = send.clone();
    std::thread::Builder::new()
        .name("fb-probe".into())
        .spawn(move || {
            // Nobody hears it where the command has given up.
            let _ = answer.send(Event::Looked(place.look()));
        })
        .explain("cannot start a thread", "")?;
    let mut until = Instant::now() + limit;
    let mut interrupted = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Looked(_)) if interrupted => return Ok(None),
            Ok(Event::Looked(findings)) => return Ok(Some(findings)),
            Ok(Event::Interrupted) => {
                interrupted = true;
                stop.order();
                until = Instant::now() + CLEAN_LIMIT;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    stop.order();
    let left = made.lock().clone();
    if let Some(path) = &left {
        out::complain(&format!("{}: may be left there; remove it", path.display()));
    }
    if interrupted {
        return Ok(None);
    }
    let limit = limit.as_secs();
    Ok(Some(vec![Finding::new(
        "answers",
        Grade::Bad,
        format!("not within {limit} s"),
        "is its server there? Forebay waits for such a directory as well",
    )]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(limit: Duration, interrupted: bool) -> Option<Vec<Finding>> {
        let folder = tempfile::tempdir().expect("tempdir");
        let place = Place::new(Kind::Pfs, folder.path().to_path_buf(), Vec::new());
        let (send, events) = mpsc::channel();
        if interrupted {
            send.send(Event::Interrupted).expect("somebody listens");
        }
        look(place, (&send, &events), limit).expect("a thread")
    }

    #[test]
    fn a_file_of_this_node_alone_says_which_directories() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("bb.toml");
        let look = |text: &str, given: Option<&str>| {
            std::fs::write(&path, text).expect("write");
            let (mut pfs, mut ssds) = (given.map(PathBuf::from), Vec::new());
            let section = alone(&path, &mut pfs, &mut ssds);
            (section.findings[0].grade, pfs, ssds)
        };
        let text = "pfs = '/scratch'\ndram = '4GiB'\nssd = ['/nvme0:1GB', 'near']";
        let ssds = vec![PathBuf::from("/nvme0"), folder.path().join("near")];
        let pfs = |dir: &str| Some(PathBuf::from(dir));
        assert_eq!(look(text, None), (Grade::Ok, pfs("/scratch"), ssds.clone()));
        assert_eq!(look(text, Some("/a")), (Grade::Ok, pfs("/a"), ssds));
        let wrong = look("pfs = '/scratch'\nfast = true", None);
        assert_eq!(wrong, (Grade::Bad, None, Vec::new()));
    }

    #[test]
    fn a_directory_that_does_not_answer_in_time_is_bad() {
        let findings = looked(Duration::ZERO, false).expect("not interrupted");
        assert_eq!(
            (findings[0].check, findings[0].grade),
            ("answers", Grade::Bad)
        );
    }

    #[test]
    fn an_interrupted_look_has_nothing_to_say() {
        assert_eq!(looked(PLACE_LIMIT, true), None);
        assert!(looked(PLACE_LIMIT, false).is_some_and(|findings| findings.len() > 10));
    }
}
