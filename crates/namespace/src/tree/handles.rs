//! Open directories of the PFS.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use forebay_tiers::{PfsDir, PfsTree};
use forebay_types::Errno;
use parking_lot::Mutex;

use super::Dir;
use crate::NsError;
use crate::devices::{Devices, Met};
use crate::error::on_pfs;

/// Most open directory descriptors that are kept; the oldest are closed beyond that.
const HANDLES_MAX: usize = 2048;

/// Opens directories by walking down from the root, and keeps a bounded number of them open.
pub(crate) struct Handles {
    open: Mutex<VecDeque<Weak<Dir>>>,
    /// So many are kept.
    most: AtomicUsize,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles {
            open: Mutex::new(VecDeque::new()),
            most: AtomicUsize::new(HANDLES_MAX),
        }
    }

    /// No more than so many are kept from here on.
    pub(crate) fn keep(&self, most: usize) {
        self.most.store(most.min(HANDLES_MAX), Ordering::Relaxed);
    }

    /// The directory's descriptor. `ESTALE` when an outsider has moved or replaced it.
    pub(crate) fn get(
        &self,
        pfs: &PfsTree,
        devices: &Devices,
        dir: &Arc<Dir>,
    ) -> Result<PfsDir, NsError> {
        if let Some(handle) = dir.handle() {
            return Ok(handle);
        }
        let Some((parent, name)) = dir.place() else {
            return Ok(pfs.root().clone());
        };
        if dir.is_removed() {
            return Err(Errno::ENOENT.into());
        }
        let above = self.get(pfs, devices, &parent)?;
        let opened = match dir.hidden() {
            None => pfs
                .open_dir(&above, &name)
                .map_err(on_pfs("open a directory"))?,
            Some(hidden) => match pfs.open_dir(&above, &hidden.name) {
                // It is just getting its name.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    let name = dir.place().map_or_else(|| name.clone(), |(_, name)| name);
                    pfs.open_dir(&above, &name)
                        .map_err(on_pfs("open a directory"))?
                }
                opened => opened.map_err(on_pfs("open a directory"))?,
            },
        };
        let stat = pfs
            .stat_dir(&opened)
            .map_err(on_pfs("stat of a directory"))?;
        let fs = || {
            pfs.fs_id(&opened)
                .map_err(on_pfs("identify the file system"))
        };
        match devices.key_at((parent.key, &name), stat.id, &fs)? {
            Met::Known(key) if key == dir.key => {}
            _ => return Err(Errno::ESTALE.into()),
        }
        dir.learn(&stat);
        dir.keep_open(opened.clone());
        let mut open = self.open.lock();
        open.push_back(Arc::downgrade(dir));
        while open.len() > self.most.load(Ordering::Relaxed) {
            if let Some(old) = open.pop_front().and_then(|w| w.upgrade()) {
                old.forget_handle();
            }
        }
        Ok(opened)
    }
}
