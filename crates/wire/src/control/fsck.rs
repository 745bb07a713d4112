//! What `fsck` has found.

use serde::{Deserialize, Serialize};

/// Kind of a finding: a tier was given up that had a clean copy of the file. The PFS has it whole.
pub const CLEAN_COPY_GONE: &str = "clean-copy-gone";
/// Kind of a finding: a tier was given up, and the file is what its last fsync has left elsewhere.
pub const FSYNCED_LEFT: &str = "fsynced-left";
/// Kind of a finding: what was only in a tier that was given up is lost.
pub const CONTENT_LOST: &str = "content-lost";

/// One thing `fsck` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of damage, as `policy::repair::Damage` names it; of files whose tier was given up
    /// [`CLEAN_COPY_GONE`], [`FSYNCED_LEFT`] or [`CONTENT_LOST`].
    pub kind: String,
    /// Relative path, or the object where there is none.
    pub subject: Vec<u8>,
    /// What is wrong.
    pub problem: String,
    /// What was done, or would be.
    pub action: String,
    /// Whether it is mended (or would be).
    pub repaired: bool,
}

/// Outcome of `fsck`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsckReport {
    /// Records looked at.
    pub records: u64,
    /// Objects looked at.
    pub objects: u64,
    /// Bytes whose checksum was compared.
    pub verified_bytes: u64,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Tiers that do not answer: what is in them was not looked at.
    pub not_looked_at: Vec<String>,
}
