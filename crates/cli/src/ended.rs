//! The note that a burst buffer leaves in its state folder when it has ended in order. Who waits
//! for the end and finds no note knows that the daemon died.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use forebay_server::StopSummary;
use forebay_types::format_size;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use crate::control::files_and_bytes;
use crate::starter::Starter;
use crate::state;

/// Name of the note in the state folder.
const NOTE: &str = "forebay.ended";
/// No note is longer, bytes: a few paths, a number for each byte.
const NOTE_BYTES_MAX: u64 = 256 << 10;
/// So many paths are in it.
const PATHS_MAX: usize = 10;

/// The note of a run, open from the start of the run: at the end there may be no descriptor left.
pub struct Note(File);

impl Note {
    /// Opens the note, and empties it of what an earlier run has written.
    ///
    /// # Errors
    /// The file cannot be made, or is not ours.
    pub fn begin(state: &Path) -> io::Result<Note> {
        let file = state::open(state, NOTE, OFlags::WRONLY | OFlags::CREATE, 0o644)?;
        file.set_len(0)?;
        Ok(Note(file))
    }

    /// Writes down what this process leaves as it ends; `unflushed` are paths of files that the PFS
    /// did not put on stable storage.
    ///
    /// # Errors
    /// The file system of the state folder does not take it.
    pub fn end(mut self, summary: &StopSummary, unflushed: &[Vec<u8>]) -> io::Result<()> {
        // Bytes: a path need not be UTF-8.
        let named = &unflushed[..unflushed.len().min(PATHS_MAX)];
        let note = json!({
            "pid": std::process::id(),
            "undrained_files": summary.undrained_files,
            "undrained_bytes": summary.undrained_bytes,
            "in_memory_bytes": summary.in_memory_bytes,
            "unflushed_files": summary.unflushed_files,
            "unflushed": named,
            "unpublished_versions": summary.unpublished_versions,
        });
        self.0.write_all(format!("{note}\n").as_bytes())
    }
}

/// What the burst buffer with this process id has left; `None` if it has left no note.
pub fn read(state: &Path, pid: u32) -> Option<StopSummary> {
    summary(&note_of(state, pid)?)
}

fn summary(note: &Value) -> Option<StopSummary> {
    let number = |name: &str| note[name].as_u64();
    Some(StopSummary {
        undrained_files: number("undrained_files")?,
        undrained_bytes: number("undrained_bytes")?,
        in_memory_bytes: number("in_memory_bytes")?,
        // A daemon of before an upgrade does not say.
        unflushed_files: number("unflushed_files").unwrap_or(0),
        unpublished_versions: number("unpublished_versions").unwrap_or(0),
    })
}

/// What the last run has left; `None` if it did not end in order, or goes on.
pub fn last(state: &Path) -> Option<StopSummary> {
    summary(&note(state)?)
}

/// Whether the last run has left nothing: its note is emptied when another one begins. One that
/// does not say all of it counts as if it had.
pub fn last_left_nothing(state: &Path) -> bool {
    let note = note(state).unwrap_or_default();
    let figures = [
        "undrained_files",
        "undrained_bytes",
        "unflushed_files",
        "unpublished_versions",
    ];
    figures.iter().all(|name| note[name].as_u64() == Some(0))
}

/// The first paths of files that the PFS did not put on stable storage.
pub fn unflushed(state: &Path, pid: u32) -> Vec<Vec<u8>> {
    let note = note_of(state, pid).unwrap_or_default();
    serde_json::from_value(note["unflushed"].clone()).unwrap_or_default()
}

fn note_of(state: &Path, pid: u32) -> Option<Value> {
    let note = note(state)?;
    (note["pid"].as_u64()? == u64::from(pid)).then_some(note)
}

fn note(state: &Path) -> Option<Value> {
    let file = state::open(state, NOTE, OFlags::RDONLY, 0).ok()?;
    let mut text = String::new();
    file.take(NOTE_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Whether nothing was left, and the PFS has all of it for good and under its names.
pub fn is_drained(left: &StopSummary) -> bool {
    is_all_there(left) && left.unflushed_files == 0 && left.unpublished_versions == 0
}

/// Whether everything that was left is on the PFS.
pub fn is_all_there(left: &StopSummary) -> bool {
    (left.undrained_files, left.undrained_bytes) == (0, 0)
}

/// Such as `2 versions that are not published`.
pub fn unpublished_versions(number: u64) -> String {
    match number {
        1 => "1 version that is not published".into(),
        _ => format!("{number} versions that are not published"),
    }
}

/// What is said of a burst buffer that has ended, such as `stopped`.
pub fn farewell(name: impl Display, how: &str, state: &Path, left: &StopSummary) -> String {
    if is_drained(left) {
        return format!("{name}: {how}; all data is on the PFS");
    }
    let unpublished = match left.unpublished_versions {
        0 => String::new(),
        number => format!(
            "; of {} the PFS has nothing under its name",
            unpublished_versions(number)
        ),
    };
    let unflushed = match left.unflushed_files {
        0 => String::new(),
        number => format!(
            "; what was changed in {number} {} of the PFS is not on stable storage there, and may be lost",
            if number == 1 {
                "file or directory"
            } else {
                "files or directories"
            }
        ),
    };
    if is_all_there(left) {
        return format!("{name}: {how}{unpublished}{unflushed}");
    }
    let memory = match left.in_memory_bytes {
        0 => String::new(),
        bytes => format!(
            ", of them {} in memory (lost if this machine restarts),",
            format_size(bytes)
        ),
    };
    format!(
        "{name}: {how}; {}{memory} not yet on the PFS stay with {}; {} goes on{unpublished}{unflushed}",
        files_and_bytes(left.undrained_files, left.undrained_bytes),
        state.display(),
        Starter::of(state)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_of_one_process_only() {
        let folder = tempfile::tempdir().expect("tempdir");
        let me = std::process::id();
        assert_eq!(read(folder.path(), me), None);
        let left = StopSummary {
            undrained_files: 2,
            undrained_bytes: 4096,
            in_memory_bytes: 1,
            unflushed_files: 1,
            unpublished_versions: 3,
        };
        let note = Note::begin(folder.path()).expect("begin");
        assert_eq!(read(folder.path(), me), None, "it has not ended");
        let named = vec![b"d/\xff\n".to_vec(); PATHS_MAX + 1];
        note.end(&left, &named).expect("end");
        assert_eq!(read(folder.path(), me), Some(left));
        assert_eq!(unflushed(folder.path(), me), named[1..]);
        assert!(unflushed(folder.path(), me + 1).is_empty());
        assert_eq!(read(folder.path(), me + 1), None);
        drop(Note::begin(folder.path()).expect("begin"));
        assert_eq!(read(folder.path(), me), None);
        std::fs::write(folder.path().join(NOTE), "no note").expect("write");
        assert_eq!(read(folder.path(), me), None);
    }

    #[test]
    fn a_version_that_is_not_published_is_something_left() {
        let folder = tempfile::tempdir().expect("tempdir");
        let ended = |left: &StopSummary| {
            let note = Note::begin(folder.path()).expect("begin");
            note.end(left, &[]).expect("end");
            last_left_nothing(folder.path())
        };
        assert!(ended(&StopSummary::default()));
        let left = StopSummary {
            unpublished_versions: 1,
            ..StopSummary::default()
        };
        assert!(!ended(&left) && !is_drained(&left));
        let said = farewell("/bb", "stopped", folder.path(), &left);
        assert_eq!(
            said,
            "/bb: stopped; of 1 version that is not published the PFS has nothing under its name"
        );
        let note = r#"{"pid":1,"undrained_files":0,"undrained_bytes":0,"in_memory_bytes":0,"unflushed_files":0}"#;
        std::fs::write(folder.path().join(NOTE), note).expect("write");
        assert!(!last_left_nothing(folder.path()), "it does not say so");
    }
}
