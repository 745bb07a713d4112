//! Whose a state folder is, and the command that starts it again: messages name that one.

use std::fmt::{self, Display};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::state;

/// Name of the note with the command, in the state folder of a server.
const NOTE: &str = "forebay.start";
/// No command is longer, bytes: two paths and a few words.
const NOTE_BYTES_MAX: u64 = 16 << 10;

/// What `--state` takes.
pub const STATE_TAKES: &str =
    "--state takes the folder given to `forebay up`, or of a server the `state` in cluster.toml";

/// Who has started what has this state folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Starter {
    /// `forebay up`.
    Up,
    /// `forebay server`, with this command.
    Server(String),
    /// `forebay mount`, at this directory.
    Mount(PathBuf),
}

impl Starter {
    /// Whose the folder is. Who cannot read that is told of `forebay up`.
    pub fn of(folder: &Path) -> Starter {
        if let Ok(point) = read(folder, state::MOUNT) {
            return Starter::Mount(PathBuf::from(point));
        }
        match read(folder, NOTE) {
            Ok(command) if !command.is_empty() => Starter::Server(command),
            _ => Starter::Up,
        }
    }

    /// The file of the cluster whose server has the folder.
    pub fn cluster(&self) -> Option<PathBuf> {
        let Starter::Server(command) = self else {
            return None;
        };
        let (_, rest) = command.split_once(" --config ")?;
        let (config, _) = rest.rsplit_once(" --id ")?;
        Some(PathBuf::from(config))
    }

    /// The id of the cluster's server that has the folder.
    pub fn id(&self) -> Option<u16> {
        let Starter::Server(command) = self else {
            return None;
        };
        let (_, rest) = command.rsplit_once(" --id ")?;
        rest.split_whitespace().next()?.parse().ok()
    }

    /// Whether it is a cluster's server.
    pub fn is_server(&self) -> bool {
        matches!(self, Starter::Server(_))
    }

    /// Whether it is a mount of a cluster.
    pub fn is_mount(&self) -> bool {
        matches!(self, Starter::Mount(_))
    }
}

/// The command that goes on where it stopped.
impl Display for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Starter::Up => write!(f, "`forebay up` with the same --state"),
            Starter::Server(command) => write!(f, "`{command}`"),
            Starter::Mount(point) => {
                write!(f, "`forebay mount --config FILE {}`", point.display())
            }
        }
    }
}

/// Notes the command of a server in its state folder; `None`: the folder is no server's any more.
///
/// # Errors
/// The file system of the state folder does not take it.
pub fn note(folder: &Path, command: Option<&str>) -> io::Result<()> {
    match command {
        Some(command) => state::write(folder, NOTE, &format!("{command}\n")),
        None => match std::fs::remove_file(folder.join(NOTE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// What stands in a note. The folder may be anybody's: nothing of it is trusted.
///
/// # Errors
/// There is none, or nothing of Forebay can have written it.
pub fn read(folder: &Path, name: &str) -> io::Result<String> {
    let mut text = String::new();
    let file = state::open(folder, name, OFlags::RDONLY, 0)?;
    file.take(NOTE_BYTES_MAX).read_to_string(&mut text)?;
    let text = text.trim_end();
    match text.chars().any(char::is_control) {
        true => Err(ErrorKind::InvalidData.into()),
        false => Ok(text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_what_starts_it() {
        let folder = tempfile::tempdir().expect("tempdir");
        let of = || Starter::of(folder.path());
        assert_eq!(of(), Starter::Up);
        note(folder.path(), Some("forebay server --config /c --id 1")).expect("noted");
        assert!(of().is_server());
        assert_eq!(of().to_string(), "`forebay server --config /c --id 1`");
        assert_eq!(of().id(), Some(1));
        note(folder.path(), None).expect("taken away");
        note(folder.path(), None).expect("nothing to take away");
        assert_eq!(of(), Starter::Up);
        std::fs::write(folder.path().join(state::MOUNT), "/bb\n").expect("write");
        assert_eq!(of(), Starter::Mount("/bb".into()));
        assert_eq!(of().to_string(), "`forebay mount --config FILE /bb`");
    }

    #[test]
    fn a_note_that_is_none_is_not_read() {
        let folder = tempfile::tempdir().expect("tempdir");
        let note = folder.path().join(state::MOUNT);
        let of = || Starter::of(folder.path());
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, "/bb\n").expect("write");
        std::os::unix::fs::symlink(&elsewhere, &note).expect("symlink");
        assert_eq!(of(), Starter::Up);
        std::fs::remove_file(&note).expect("remove");
        // Nobody writes into it.
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &note, kind, mode, 0).expect("mkfifo");
        assert_eq!(of(), Starter::Up);
        std::fs::remove_file(&note).expect("remove");
        std::fs::write(&note, "/b\x1b[2Jb\n").expect("write");
        assert_eq!(of(), Starter::Up);
        std::fs::write(&note, "x".repeat(1 << 20)).expect("write");
        let Starter::Mount(point) = of() else {
            panic!("no mount");
        };
        assert_eq!(point.as_os_str().len() as u64, NOTE_BYTES_MAX);
    }
}
