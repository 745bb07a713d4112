//! The log file: bounded, and opened again when it is told to.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A log file of this size becomes `NAME.1`, and replaces the one before.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// A file that lines are added to.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    open: fn(&Path) -> io::Result<File>,
    file: File,
    bytes: u64,
    bytes_max: u64,
    /// Standard error is this file, too.
    is_stderr: bool,
    /// The last line was written in part.
    is_torn: bool,
}

impl LogFile {
    /// The file at `path`, which `open` opens for appending, and makes if it is not there.
    pub(super) fn new(path: &Path, open: fn(&Path) -> io::Result<File>) -> io::Result<LogFile> {
        let file = open(path)?;
        Ok(LogFile {
            path: path.to_path_buf(),
            open,
            bytes: file.metadata()?.len(),
            bytes_max: BYTES_MAX,
            file,
            is_stderr: false,
            is_torn: false,
        })
    }

    /// Standard error is written there, too, from now on.
    pub(super) fn take_stderr(&mut self) -> io::Result<()> {
        rustix::stdio::dup2_stderr(&self.file)?;
        self.is_stderr = true;
        Ok(())
    }

    /// Goes on in the file that has the name now.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        let file = (self.open)(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.file = file;
        self.is_torn = false;
        if self.is_stderr {
            self.take_stderr()?;
        }
        Ok(())
    }

    /// Adds a line, in a new file if the old one would become too large. Writes nothing beyond the
    /// bound, not even where there can be no new file.
    pub(super) fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        let len = line.len() as u64;
        if self.bytes > 0 && self.bytes + len > self.bytes_max {
            let mut older: OsString = self.path.clone().into();
            older.push(".1");
            std::fs::rename(&self.path, older)?;
            self.reopen()?;
        }
        if std::mem::take(&mut self.is_torn) {
            // Best effort: it only separates lines.
            let _ = self.file.write_all(b"\n");
        }
        let written = self.file.write_all(line);
        if written.is_err() {
            let before = self.bytes;
            self.bytes = self.file.metadata()?.len();
            self.is_torn = self.bytes != before;
            return written;
        }
        self.bytes += len;
        Ok(())
    }
}

/// Any file.
#[cfg(test)]
pub(super) fn plain(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_hold_the_newest_lines_within_the_bound() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = folder.path().join("log");
        let mut file = LogFile::new(&path, plain).expect("open");
        file.bytes_max = 1000;
        for at in 0..500 {
            file.write_line(format!("line {at:03}\n").as_bytes())
                .expect("write");
        }
        let names = std::fs::read_dir(folder.path()).expect("list").count();
        assert_eq!(names, 2);
        let older = std::fs::read_to_string(folder.path().join("log.1")).expect("older");
        let newer = std::fs::read_to_string(&path).expect("newer");
        assert!(older.len() <= 1000 && newer.len() <= 1000);
        let lines: Vec<_> = older.lines().chain(newer.lines()).collect();
        assert!(lines.len() > 111, "{}", lines.len());
        let first = 500 - lines.len();
        let expected: Vec<_> = (first..500).map(|at| format!("line {at:03}")).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_file_that_was_renamed_is_left_to_who_renamed_it() {
        let folder = tempfile::tempdir().expect("tempdir");
        let (path, kept) = (folder.path().join("log"), folder.path().join("kept"));
        let mut file = LogFile::new(&path, plain).expect("open");
        file.write_line(b"before\n").expect("write");
        std::fs::rename(&path, &kept).expect("rename");
        file.reopen().expect("reopen");
        file.write_line(b"after\n").expect("write");
        assert_eq!(std::fs::read(&kept).expect("read"), b"before\n");
        assert_eq!(std::fs::read(&path).expect("read"), b"after\n");
    }
}
