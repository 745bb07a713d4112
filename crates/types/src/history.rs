//! What the history of a burst buffer is made of: one record for each version that was written,
//! each restart and each movement that somebody ordered.

use serde::{Deserialize, Serialize};

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A checkpoint version was written; of files without a version, those that an application
    /// wrote without a longer pause.
    Version,
    /// An application that had ended has begun again, and read.
    Restart,
    /// Somebody ordered a stage-in.
    StageIn,
    /// Somebody ordered a stage-out.
    StageOut,
    /// Somebody ordered a prefetch.
    Prefetch,
    /// Somebody ordered a release.
    Release,
    /// Somebody ordered the publication of versions.
    Commit,
}

impl What {
    /// Every kind, with the name that people read.
    pub const NAMES: [(&'static str, What); 7] = [
        ("version", What::Version),
        ("restart", What::Restart),
        ("stage-in", What::StageIn),
        ("stage-out", What::StageOut),
        ("prefetch", What::Prefetch),
        ("release", What::Release),
        ("commit", What::Commit),
    ];

    /// What people read.
    pub fn name(self) -> &'static str {
        let mut names = What::NAMES.iter();
        names.find(|(_, what)| *what == self).map_or("", |n| n.0)
    }
}

/// One record. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What it is of.
    pub what: What,
    /// The application; empty for a movement.
    pub application: String,
    /// Who wrote, read or ordered first.
    pub uid: u32,
    /// The checkpoint version.
    pub version: Option<u64>,
    /// The first file was opened.
    pub begun_ms: u64,
    /// The last file was closed; of a movement, its end.
    pub ended_ms: u64,
    /// Files written, read or moved.
    pub files: u64,
    /// Their bytes, as they occupy space.
    pub bytes: u64,
    /// Of the files, those that were written on the PFS.
    pub direct_files: u64,
    /// Their bytes.
    pub direct_bytes: u64,
    /// How long writes waited for the turn of their application, all together, microseconds.
    pub wait_us: u64,
    /// How long writes waited for space, all together, microseconds.
    pub stall_us: u64,
    /// The first copy to the PFS began.
    pub drain_begun_ms: Option<u64>,
    /// The last copy was whole there.
    pub drained_ms: Option<u64>,
    /// Files that became whole on the PFS.
    pub drained_files: u64,
    /// What was copied for that, bytes.
    pub drained_bytes: u64,
    /// Files that were removed, written again or lost before they were on the PFS.
    pub gone_files: u64,
    /// Their bytes.
    pub gone_bytes: u64,
    /// Of a restart: bytes of the files that it opened in the burst buffer.
    pub from_buffer_bytes: u64,
    /// Of a restart: bytes of the files that it opened on the PFS.
    pub from_pfs_bytes: u64,
    /// Of a movement: files that failed. Of a version: files that were lost.
    pub failed_files: u64,
    /// Nothing more will come.
    pub over: bool,
}

impl Record {
    /// One that begins.
    pub fn new(what: What, application: String, uid: u32, now_ms: u64) -> Record {
        Record {
            what,
            application,
            uid,
            version: None,
            begun_ms: now_ms,
            ended_ms: now_ms,
            files: 0,
            bytes: 0,
            direct_files: 0,
            direct_bytes: 0,
            wait_us: 0,
            stall_us: 0,
            drain_begun_ms: None,
            drained_ms: None,
            drained_files: 0,
            drained_bytes: 0,
            gone_files: 0,
            gone_bytes: 0,
            from_buffer_bytes: 0,
            from_pfs_bytes: 0,
            failed_files: 0,
            over: false,
        }
    }

    /// Files that the PFS does not have.
    pub fn undrained_files(&self) -> u64 {
        match self.what {
            What::Version => self
                .files
                .saturating_sub(self.drained_files.saturating_add(self.gone_files)),
            _ => 0,
        }
    }

    /// When all that was written, and not removed, was on the PFS.
    pub fn all_drained_ms(&self) -> Option<u64> {
        self.drained_ms.filter(|_| self.undrained_files() == 0)
    }

    /// The rate of the drain from the begin of its first copy to the end of its last.
    pub fn drain_bytes_per_s(&self) -> Option<f64> {
        let ms = self.drained_ms?.checked_sub(self.drain_begun_ms?)?;
        (ms > 0 && self.drained_bytes > 0).then(|| self.drained_bytes as f64 * 1e3 / ms as f64)
    }

    /// From the begin to the end, seconds.
    pub fn lasted_s(&self) -> f64 {
        self.ended_ms.saturating_sub(self.begun_ms) as f64 / 1e3
    }
}
