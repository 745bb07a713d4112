//! The one directory that is made in a directory that is looked at. It goes with all that is in it,
//! whichever way the looking ends.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_tiers::random_bytes;

/// Whether to stop at the next step.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on nothing new is begun.
    pub fn order(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether that was ordered.
    pub fn is_ordered(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// `EINTR` once it was ordered.
    pub fn check(&self) -> io::Result<()> {
        match self.is_ordered() {
            true => Err(io::Error::from_raw_os_error(libc::EINTR)),
            false => Ok(()),
        }
    }
}

/// A new directory that nobody else may enter; removed on drop.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one in `parent`: `.forebay-WHAT-` and a random number.
    pub fn new(parent: &Path, what: &str) -> io::Result<Scratch> {
        let number = u64::from_le_bytes(random_bytes::<8>()?);
        let path = parent.join(format!(".forebay-{what}-{number:016x}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A name in it.
    pub fn name(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes it; on drop an error could not be told.
    pub fn remove(mut self) -> io::Result<()> {
        // What drop finds then is nothing.
        std::fs::remove_dir_all(std::mem::take(&mut self.path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whoever can hear of an error calls `remove`.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_what_is_in_it() {
        let folder = tempfile::tempdir().expect("tempdir");
        let entries = || std::fs::read_dir(folder.path()).expect("read_dir").count();
        let scratch = Scratch::new(folder.path(), "doctor").expect("made");
        std::fs::write(scratch.name("f"), "x").expect("write");
        assert_eq!(entries(), 1);
        drop(scratch);
        assert_eq!(entries(), 0);
        let scratch = Scratch::new(folder.path(), "doctor").expect("made");
        std::fs::create_dir(scratch.name("d")).expect("mkdir");
        scratch.remove().expect("removed");
        assert_eq!(entries(), 0);
    }

    #[test]
    fn an_order_to_stop_is_an_error_at_the_next_step() {
        let stop = Stop::default();
        stop.check().expect("goes on");
        stop.clone().order();
        assert_eq!(stop.check().unwrap_err().raw_os_error(), Some(libc::EINTR));
    }
}
