//! The overflow: a hidden directory at the top of the PFS for files that go straight there.
//!
//! Its name is one of Forebay's temporary names, so no listing of the mount shows it. Other users
//! of the PFS may take that name before. So the directory is opened beneath the root without
//! following links, and is used only if it belongs to this process's user and nobody else may enter
//! it. Where somebody else has the name, the next name is taken.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use forebay_tiers::{DirTier, LOST_FOUND, PfsDir, PfsTree, Tier, TierKind};
use forebay_types::{Errno, Generation, ObjectId, failpoint};
use parking_lot::Mutex;

use crate::buffer::tierset::Slot;

/// Names that are tried. Whoever takes all of them keeps files from going straight to the PFS, and
/// nothing more.
const NAMES: u64 = 8;

/// The directory, once it is open.
struct Open {
    name: Vec<u8>,
    dir: PfsDir,
    tier: Arc<DirTier>,
    slot: Slot,
}

/// Made when it is first needed: most runs never do.
pub struct Overflow {
    open: OnceLock<Open>,
    /// Held while it is made: two that open a new directory at once get in each other's way.
    making: Mutex<()>,
    instance: [u8; 16],
}

impl Overflow {
    /// Not open yet.
    pub fn new(instance: [u8; 16]) -> Overflow {
        Overflow {
            open: OnceLock::new(),
            making: Mutex::new(()),
            instance,
        }
    }

    /// The tier, if it is open.
    pub fn slot(&self) -> Option<&Slot> {
        self.open.get().map(|open| &open.slot)
    }

    /// Opens what an earlier run has left.
    pub fn find(&self, pfs: &PfsTree) -> io::Result<()> {
        let _one = self.making.lock();
        for at in 0..NAMES {
            let name = self.name(at);
            match pfs.open_private(pfs.root(), &name, &self.probe()) {
                Ok(Some(dir)) => return self.take(pfs, name, dir),
                Ok(None) => {}
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => foreign(&name),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes it, if it is not there yet.
    pub fn need(&self, pfs: &PfsTree) -> io::Result<()> {
        if self.open.get().is_some() {
            return Ok(());
        }
        let _one = self.making.lock();
        for at in 0..NAMES {
            if self.open.get().is_some() {
                return Ok(());
            }
            let name = self.name(at);
            match pfs.make_private(pfs.root(), &name, &self.probe()) {
                Ok(dir) => {
                    failpoint::hit(failpoint::Point::OverflowMade);
                    self.take(pfs, name, dir)?;
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EPERM)) => {
                    foreign(&name);
                }
                Err(error) => return Err(error),
            }
        }
        match self.open.get() {
            Some(_) => Ok(()),
            None => Err(Errno::EPERM.into()),
        }
    }

    /// The directory that an object lies in.
    pub fn shelf(&self, pfs: &PfsTree, object: ObjectId) -> io::Result<PfsDir> {
        let open = self.open.get().ok_or(Errno::ENOENT)?;
        let objects = pfs.open_dir(&open.dir, b"objects")?;
        pfs.open_dir(&objects, format!("{:02x}", object.0 & 0xff).as_bytes())
    }

    /// Removes it if it is empty.
    pub fn tidy(&self, pfs: &PfsTree) {
        let Some(open) = self.open.get() else {
            return;
        };
        let mut any = false;
        let listed = open.tier.list(&mut |_| any = true);
        // What fsck has put aside there is nobody else's to remove.
        let aside = pfs.stat(&open.dir, LOST_FOUND.as_bytes()).is_ok();
        if listed.is_err() || any || aside {
            return;
        }
        let removed = open.tier.unmake();
        if let Err(error) = removed.and_then(|()| pfs.rmdir(pfs.root(), &open.name)) {
            tracing::warn!("{} on the PFS stays: {error}", open.name.escape_ascii());
        }
    }

    fn take(&self, pfs: &PfsTree, name: Vec<u8>, dir: PfsDir) -> io::Result<()> {
        let shown = String::from_utf8_lossy(&name).into_owned();
        let fd = pfs.readable(&dir)?;
        let kind = TierKind::Pfs;
        let tier = DirTier::open_at("pfs", kind, fd, Path::new(&shown), None, self.instance)?;
        let tier = Arc::new(tier);
        let slot = Slot {
            is_another: false,
            has_moved: false,
            is_fresh: false,
            tier: tier.clone(),
            for_copies: tier.clone(),
            kind,
            capacity_bytes: 0,
            server: 0,
        };
        let open = Open {
            name,
            dir,
            tier,
            slot,
        };
        // With the lock held, nobody else can have set it.
        drop(self.open.set(open));
        Ok(())
    }

    fn name(&self, at: u64) -> Vec<u8> {
        PfsTree::temporary_name(self.instance, ObjectId(0), Generation(at))
    }

    fn probe(&self) -> Vec<u8> {
        PfsTree::temporary_name(self.instance, ObjectId(0), Generation(NAMES))
    }
}

fn foreign(name: &[u8]) {
    tracing::warn!(
        "{} on the PFS belongs to somebody else, and is left alone",
        name.escape_ascii()
    );
}
