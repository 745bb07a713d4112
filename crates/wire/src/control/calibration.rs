//! Measuring bandwidths.

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CalibrationStep {
    /// Writes to the burst buffer.
    Write,
    /// Copies to the PFS.
    Demote,
    /// Both at once; needs the outcomes of the two others.
    Both,
}

/// Outcome of a [`CalibrationStep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Writes, where they were measured.
    pub write_bytes_per_s: Option<u64>,
    /// Copies, where they were measured.
    pub demotion_bytes_per_s: Option<u64>,
    /// After the last step: Bwmax, Bwmin, Brmax, Brmin, bytes/s.
    pub bandwidths: Option<[u64; 4]>,
    /// After the last step: slope of the interference line in millionths, and its bytes/s without
    /// demotion.
    pub line: Option<(i64, u64)>,
    /// How far tries lie apart, in thousandths of the rate.
    pub spread_permille: u64,
    /// Lowest and highest of tries that lie too far apart, bytes/s: nothing was measured, and
    /// nothing changed.
    pub unsettled: Option<(u64, u64)>,
}
