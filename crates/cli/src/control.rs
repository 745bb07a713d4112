//! Talking to a running burst buffer through its state folder.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use forebay_types::{Errno, format_size, limits};
use forebay_wire::control::{
    Control, ControlResponse, FsckReport, JobProgress, Movement, PathFailure, StatusBits,
    WhereEntry,
};
use forebay_wire::{FrameError, NOT_SENT, Request, Response, UnixConnection};

use crate::cluster::config::Cluster;
use crate::exit::{Failure, reason};
use crate::mounts;
use crate::show::text;
use crate::starter::{STATE_TAKES, Starter};
use crate::state::{self, SocketPath};
use crate::up::keeper;

/// Paths in one message take at most this much of it, bytes; the rest is for their lengths and the
/// message around them.
const BATCH_BYTES_MAX: usize = limits::MESSAGE_BYTES_MAX / 2;

/// A connection to the burst buffer with this state folder.
pub struct Daemon {
    connection: UnixConnection,
    state: PathBuf,
}

/// Why a question had no answer.
#[derive(Debug)]
pub enum AskError {
    /// The daemon has closed the connection: it is gone or going.
    Gone,
    /// The daemon refused.
    Refused(Errno),
    /// Command and daemon do not understand each other.
    Protocol(String),
}

impl AskError {
    /// An answer that belongs to no such question.
    /// An answer to another question than was asked.
    pub fn other_question() -> AskError {
        AskError::Protocol("the daemon answered another question".into())
    }
}

/// Answer to [`Control::Where`], all its parts together.
#[derive(Debug, Default)]
pub struct Located {
    /// Files that were found.
    pub files: Vec<WhereEntry>,
    /// Paths that were not.
    pub failures: Vec<PathFailure>,
}

impl Daemon {
    /// Connects; a burst buffer that does not run is an error.
    pub fn connect(state: &Path) -> Result<Daemon, Failure> {
        if let Some(daemon) = Daemon::try_connect(state)? {
            return Ok(daemon);
        }
        let what = state.display();
        // Without a mount table nothing is known to be left.
        let starter = Starter::of(state);
        let mounted = mounts::read().is_ok_and(|table| !mounts::of_state(&table, state).is_empty());
        if !mounted && matches!(state::holder(state), Ok(None)) {
            return Err(no_state_folder(state));
        }
        if let Some(silence) = state::silence(state) {
            return Err(not_yet(state, &starter, silence));
        }
        Err(Failure::fatal(match mounted {
            true if starter.is_mount() => format!(
                "{what}: the process of this mount has died; {starter} mounts again, `forebay down --state {what}` takes \
                 away what it has left"
            ),
            true => format!(
                "{what}: its burst buffer has died; {starter} goes on where it stopped, `forebay down --state {what}` \
                 takes its mount away"
            ),
            false if starter.is_server() && keeper::is_there(state) => format!(
                "{what}: the server of this state folder is not running; it is started again by itself in a moment, \
                 {what}/{} says more",
                state::LOG
            ),
            false if starter.is_server() => {
                format!(
                    "{what}: the server of this state folder is not running; {starter} starts it"
                )
            }
            false => format!(
                "{what}: no burst buffer is running on this state folder; {starter} starts one, \
                 `forebay status` without --state finds one that runs"
            ),
        })
        .with(Errno::ENOTCONN))
    }

    /// Connects; `None` if nothing runs there.
    pub fn try_connect(state: &Path) -> Result<Option<Daemon>, Failure> {
        let fatal = |why: String| Failure::fatal(format!("{}: {why}", state.display()));
        let broken = |e: &io::Error| Err(fatal(connect_reason(e)).with(Errno::of(e)));
        let socket = match SocketPath::of(state) {
            Ok(socket) => socket,
            Err(e) if is_absence(&e) => return Ok(None),
            Err(e) => return broken(&e),
        };
        match UnixConnection::connect(&socket.path) {
            Ok(connection) => Ok(Some(Daemon {
                connection,
                state: state.to_path_buf(),
            })),
            Err(FrameError::Io(e)) if is_absence(&e) => Ok(None),
            Err(FrameError::Io(e)) => broken(&e),
            Err(other) => Err(fatal(other.to_string()).with(Errno::EPROTO)),
        }
    }

    /// The state folder that it was found by.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Asks one question and waits for its answer.
    pub fn ask(&self, control: Control) -> Result<ControlResponse, AskError> {
        match self
            .connection
            .exchange(&Request::Control(control), &[], &mut [])
        {
            Ok(Response::Control(answer)) => Ok(answer),
            Ok(Response::Failed(errno)) => Err(AskError::Refused(errno)),
            Ok(_) => Err(AskError::other_question()),
            Err(FrameError::Io(_)) => Err(AskError::Gone),
            Err(other) => Err(AskError::Protocol(other.to_string())),
        }
    }

    /// An [`AskError`] as the end of a command; `doing` completes "not allowed to …".
    pub fn failure(&self, error: AskError, doing: &str) -> Failure {
        let state = self.state.display();
        let errno = match error {
            AskError::Gone | AskError::Refused(NOT_SENT) => Errno::ENOTCONN,
            AskError::Refused(errno) => errno,
            AskError::Protocol(_) => Errno::EPROTO,
        };
        Failure::fatal(match error {
            AskError::Gone => format!(
                "{state}: the burst buffer stopped while it was asked; see {}, and {} goes on where it stopped",
                self.state.join(state::LOG).display(),
                Starter::of(&self.state)
            ),
            AskError::Refused(Errno::EPERM | Errno::EACCES) => format!(
                "{state}: not allowed to {doing}: this burst buffer was started by another user; \
                 ask its owner, or run this as that user or root"
            ),
            AskError::Refused(Errno::EUSERS) => format!(
                "{state}: cannot {doing}: too many commands are connected to this burst buffer; try again when some \
                 have ended"
            ),
            AskError::Refused(Errno::ENOTCONN | NOT_SENT) => format!(
                "{state}: cannot {doing}: the server was started anew meanwhile, or is out of reach; run the command \
                 again, what is done already is passed over"
            ),
            AskError::Refused(Errno::EOPNOTSUPP) => self.asked_elsewhere(doing),
            AskError::Refused(errno) => format!("{state}: cannot {doing}: {errno}"),
            AskError::Protocol(why) => format!("{state}: {why}"),
        })
        .with(errno)
    }

    /// A server that holds data, or stands by, knows of nothing else: who does.
    fn asked_elsewhere(&self, doing: &str) -> String {
        let bits = self.status().ok();
        let bits = bits.filter(|bits| bits.data_server.is_some() || bits.standby.is_some());
        let who = bits.map_or_else(|| "this server".into(), |bits| name_of(&bits));
        let config = Starter::of(&self.state).cluster();
        let cluster = config.as_ref().and_then(|file| Cluster::load(file).ok());
        elsewhere(
            &self.state,
            &who,
            doing,
            config.as_deref(),
            cluster.as_ref(),
        )
    }

    fn odd(&self) -> Failure {
        self.failure(AskError::other_question(), "")
    }

    /// What `forebay status` shows.
    pub fn status(&self) -> Result<StatusBits, AskError> {
        match self.ask(Control::Status)? {
            ControlResponse::Status(bits) => Ok(*bits),
            _ => Err(AskError::other_question()),
        }
    }

    /// Residency of everything below `paths`; `each` gets the files part by part and says whether
    /// to go on.
    pub fn locate(
        &self,
        paths: &[Vec<u8>],
        mut each: impl FnMut(Located) -> bool,
    ) -> Result<(), AskError> {
        let mut asked_before = false;
        for batch in batches(paths) {
            let mut after = None;
            loop {
                let asked = Control::Where {
                    paths: batch.to_vec(),
                    after: after.take(),
                };
                let answer = match self.ask(asked.clone()) {
                    // The reader of the last part took so long that the daemon closed the
                    // connection.
                    Err(AskError::Gone) if asked_before => match Daemon::try_connect(&self.state) {
                        Ok(Some(again)) => again.ask(asked)?,
                        _ => return Err(AskError::Gone),
                    },
                    answer => answer?,
                };
                asked_before = true;
                let ControlResponse::Where {
                    files,
                    more_after,
                    failures,
                } = answer
                else {
                    return Err(AskError::other_question());
                };
                if !each(Located { files, failures }) {
                    return Ok(());
                }
                match more_after {
                    Some(last) => after = Some(last),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Starts a movement of paths that fit into one message, see [`batches`]. Refused with `EAGAIN`
    /// while this user has too many under way.
    pub fn start(&self, movement: Movement, paths: &[Vec<u8>]) -> Result<u64, AskError> {
        let paths = paths.to_vec();
        match self.ask(Control::Start { movement, paths })? {
            ControlResponse::Started { id } => Ok(id),
            _ => Err(AskError::other_question()),
        }
    }

    /// Progress of one job.
    pub fn job(&self, id: u64) -> Result<JobProgress, AskError> {
        match self.ask(Control::Job { id })? {
            ControlResponse::Job(progress) => Ok(progress),
            _ => Err(AskError::other_question()),
        }
    }

    /// Stops a job. The answer does not matter: the job's progress tells.
    pub fn cancel(&self, id: u64) -> Result<(), AskError> {
        self.ask(Control::Cancel { id }).map(drop)
    }

    /// Orders the daemon to stop, with `drain` once everything is on the PFS.
    pub fn shutdown(&self, drain: bool, timeout_ms: u64) -> Result<(), AskError> {
        self.ask(Control::Shutdown { drain, timeout_ms }).map(drop)
    }

    /// Checks and repairs the running burst buffer.
    pub fn fsck(&self, dry_run: bool, checksums: bool) -> Result<FsckReport, Failure> {
        match self.ask(Control::Fsck { dry_run, checksums }) {
            Ok(ControlResponse::Fsck(report)) => Ok(report),
            Ok(_) => Err(self.odd()),
            Err(error) => Err(self.failure(error, "check it")),
        }
    }
}

fn elsewhere(
    state: &Path,
    who: &str,
    doing: &str,
    config: Option<&Path>,
    cluster: Option<&Cluster>,
) -> String {
    let servers = cluster
        .iter()
        .flat_map(|cluster| cluster.metadata_servers());
    let places: Vec<String> = servers
        .map(|server| format!("{} on {}", server.state.display(), server.host))
        .collect();
    let there = match places.is_empty() {
        true => "its state folder on its node".into(),
        false => places.join(", or "),
    };
    let config = config.map_or_else(|| "FILE".into(), |file| file.display().to_string());
    format!(
        "{}: {who} cannot {doing}: ask the metadata server that leads, with --state ({there}), or from here with \
         --config {config} where the command takes that",
        state.display()
    )
}

/// The error for a folder on which no burst buffer was ever started.
pub fn no_state_folder(folder: &Path) -> Failure {
    Failure::fatal(format!(
        "{}: not a state folder of forebay; {STATE_TAKES}",
        folder.display()
    ))
    .with(Errno::ENOTCONN)
}

/// The error where the process is there, and does not answer yet, or any more.
fn not_yet(
    state: &Path,
    starter: &Starter,
    (silence, pid): (state::Silence, Option<u32>),
) -> Failure {
    let what = match starter {
        Starter::Up => "its burst buffer",
        Starter::Server(_) => "its server",
        Starter::Mount(_) => "its mount",
    };
    let process = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    let does = match silence {
        state::Silence::Starts => "is starting, and does not answer yet",
        state::Silence::StopsOrStartsAnew => {
            "is stopping, or is starting anew, and does not answer now"
        }
    };
    Failure::fatal(format!(
        "{}: {what}{process} {does}; try again in a moment",
        state.display()
    ))
    .with(Errno::ENOTCONN)
}

/// Whether the error means that no daemon runs: no socket, or nobody behind it.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
    )
}

fn connect_reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "the state folder belongs to another user; ask its owner, \
                                        or run this as that user or root"
            .into(),
        ErrorKind::NotADirectory => format!("not a folder; {STATE_TAKES}"),
        _ => reason(error),
    }
}

/// Splits paths so that each part fits into one message.
pub fn batches(paths: &[Vec<u8>]) -> Vec<&[Vec<u8>]> {
    let mut parts = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, path) in paths.iter().enumerate() {
        let full =
            at - from == limits::PATHS_PER_MESSAGE_MAX || bytes + path.len() > BATCH_BYTES_MAX;
        if full && at > from {
            parts.push(&paths[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += path.len();
    }
    if from < paths.len() {
        parts.push(&paths[from..]);
    }
    parts
}

/// One line for a path that failed.
pub fn failure_line(mount: &Path, failure: &PathFailure) -> String {
    let path = mounts::shown(mount, &failure.path);
    match failure.reason.is_empty() {
        true => format!("{path}: {}", failure.errno),
        false => format!("{path}: {}", failure.reason),
    }
}

/// What messages call it: a server shows nothing itself.
pub fn name_of(bits: &StatusBits) -> String {
    if let Some(data) = &bits.data_server {
        return format!("data server {} of {}", data.server, data.cluster);
    }
    if let Some(standby) = &bits.standby {
        return format!("metadata server {} of {}", standby.server, standby.cluster);
    }
    match bits.mount == bits.pfs {
        true => format!("server of {}", text::show_path(&bits.pfs)),
        false => text::show_path(&bits.mount),
    }
}

/// `3 files (1.5 GiB)`.
pub fn files_and_bytes(files: u64, bytes: u64) -> String {
    format!("{} ({})", text::files(files), format_size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_never_was_a_state_folder_is_called_so() {
        let folder = tempfile::tempdir().expect("tempdir");
        let said = |part: &str| {
            let failure = Daemon::connect(folder.path()).err().expect("nobody there");
            assert!(failure.message.contains(part), "{failure:?}");
        };
        said("not a state folder of forebay");
        std::fs::write(folder.path().join(state::LOCK), "").expect("lock");
        said("no burst buffer is running on this state folder");
    }

    #[test]
    fn who_starts_or_stops_is_not_called_away() {
        let folder = tempfile::tempdir().expect("tempdir");
        let said = || {
            let failure = Daemon::connect(folder.path()).err().expect("nobody there");
            assert_eq!(failure.exit, crate::exit::Exit::Fatal);
            failure.message
        };
        let lock = state::Lock::take(folder.path()).expect("lock");
        let me = format!("(process {})", std::process::id());
        let line = said();
        assert!(
            line.contains("is starting, and") && line.contains(&me),
            "{line}"
        );
        // Of an earlier start, which was killed.
        state::write(folder.path(), state::PID, "1\n").expect("noted");
        assert!(said().contains("is starting, and"));
        crate::up::run::say_who_serves(folder.path()).expect("noted");
        let line = said();
        assert!(line.contains("is stopping, or is starting anew"), "{line}");
        drop(lock);
        std::fs::remove_file(folder.path().join(state::PID)).expect("gone");
        assert!(said().contains("no burst buffer is running"));
    }

    #[test]
    fn who_cannot_answer_says_who_can() {
        let text = "[cluster]\nname = \"bb0\"\npfs = \"/scratch\"\nkey = \"/k\"\n\
                    [[server]]\nid = 1\nroles = [\"metadata\"]\naddresses = [\"10.0.0.1:7070\"]\nhost = \"n1\"\nstate = \"/s1\"\n\
                    [[server]]\nid = 2\nroles = [\"data\"]\naddresses = [\"10.0.0.2:7070\"]\nstate = \"/s2\"\nssd = [\"/nvme:1TiB\"]\n";
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("c.toml");
        std::fs::write(&file, text).expect("write");
        let cluster = Cluster::load(&file).expect("valid");
        let state = Path::new("/s2");
        let line = elsewhere(
            state,
            "data server 2 of bb0",
            "check it",
            Some(&file),
            Some(&cluster),
        );
        assert!(
            line.starts_with("/s2: data server 2 of bb0 cannot check it: ask"),
            "{line}"
        );
        assert!(line.contains("--state (/s1 on n1)"), "{line}");
        assert!(
            line.contains(&format!("--config {}", file.display())),
            "{line}"
        );
        let line = elsewhere(state, "this server", "check it", None, None);
        assert!(line.contains("--config FILE"), "{line}");
    }

    #[test]
    fn paths_travel_in_parts_that_fit() {
        assert!(batches(&[]).is_empty());
        let many: Vec<Vec<u8>> = (0..limits::PATHS_PER_MESSAGE_MAX + 1)
            .map(|_| vec![b'x'])
            .collect();
        let parts: Vec<usize> = batches(&many).iter().map(|b| b.len()).collect();
        assert_eq!(parts, [limits::PATHS_PER_MESSAGE_MAX, 1]);
        let long = vec![vec![b'x'; limits::PATH_BYTES_MAX]; 300];
        let parts = batches(&long);
        assert_eq!(parts.iter().map(|b| b.len()).sum::<usize>(), 300);
        for part in parts {
            assert!(part.iter().map(Vec::len).sum::<usize>() <= BATCH_BYTES_MAX);
        }
    }
}
