//! The tiers of this node.

use std::io;
use std::path::{Path, PathBuf};

use forebay_tiers::{DirTier, DramMount, Tier, TierKind, make_private, mount_dram};

/// Share of a flash directory's file system that is left alone where no size was given.
const SSD_LEFT_FREE_FRACTION: f64 = 0.05;

/// A directory on flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdSetting {
    /// The flash directory.
    pub dir: PathBuf,
    /// How much of it may be used, bytes; `None`: what its file system has, less a twentieth.
    pub capacity_bytes: Option<u64>,
}

/// Opens the memory tier of a state folder, which may hold `size` bytes, and `overrun_bytes` more
/// that do not ask.
///
/// # Errors
/// Of the mount, or of the directory.
pub fn open_memory(
    state: &Path,
    size: u64,
    overrun_bytes: u64,
    instance: [u8; 16],
) -> io::Result<(DirTier, DramMount)> {
    let dir = state.join("dram");
    make_private(&dir)?;
    let mounted = mount_dram(&dir, size.saturating_add(overrun_bytes))?;
    let path = mounted.path().to_path_buf();
    let tier = DirTier::open("dram", TierKind::Dram, &path, Some(size), instance)?;
    Ok((tier, mounted))
}

/// Opens a flash tier that is called `name`.
///
/// # Errors
/// Of the directory: it is another burst buffer's, for example.
pub fn open_flash(name: &str, ssd: &SsdSetting, instance: [u8; 16]) -> io::Result<DirTier> {
    let tier = DirTier::open(name, TierKind::Ssd, &ssd.dir, ssd.capacity_bytes, instance)?;
    Ok(match ssd.capacity_bytes {
        Some(_) => tier,
        None => {
            let free_bytes = tier.space()?.free_bytes as f64;
            tier.limited_to((free_bytes * (1.0 - SSD_LEFT_FREE_FRACTION)) as u64)
        }
    })
}
