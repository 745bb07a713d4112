//! Temporary files of demotions that were given up.

use std::sync::Arc;

use forebay_namespace::Dir;
use forebay_tiers::PfsDir;

/// A temporary file of a demotion that was given up.
pub struct Leftover {
    /// In this directory.
    pub dir: Arc<Dir>,
    /// The same, open.
    pub handle: PfsDir,
    /// Its name there.
    pub temporary: Vec<u8>,
}
