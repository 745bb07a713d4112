//! What the tests share.
#![allow(dead_code)] // each test file uses a part of it

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_testkit::{needs_root, skip};
use forebay_tiers::{DirTier, Tier, TierKind};
use tempfile::TempDir;

pub const INSTANCE: [u8; 16] = *b"forebay-instance";

/// A directory in memory.
pub fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A directory on whatever the system keeps temporary files on.
pub fn on_disk() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub fn tier_in(dir: &Path) -> Arc<dyn Tier> {
    Arc::new(DirTier::open("ssd", TierKind::Ssd, dir, None, INSTANCE).unwrap())
}

/// A tmpfs of its own; unmounted on drop.
pub struct Mounted {
    dir: TempDir,
}

impl Mounted {
    /// `None`, and the test is skipped, where mounting is not allowed.
    pub fn tmpfs(options: &str) -> Option<Mounted> {
        if needs_root() {
            return None;
        }
        let dir = on_disk();
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        match rustix::mount::mount("test", dir.path(), "tmpfs", flags, options.as_c_str()) {
            Ok(()) => Some(Mounted { dir }),
            Err(error) => {
                skip(&format!("cannot mount: {error}"));
                None
            }
        }
    }

    /// An ext4 file system in a file.
    pub fn loop_disk(image: &Path) -> Mounted {
        let dir = on_disk();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop"]).arg(image);
        assert!(mount.arg(dir.path()).status().unwrap().success());
        Mounted { dir }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().to_path_buf()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), rustix::mount::UnmountFlags::DETACH);
    }
}
