//! What can be said of the tree while the PFS does not answer: which directories there were, and
//! what is in the burst buffer. Files that are only on the PFS are not known without it.

use std::sync::Arc;

use forebay_tiers::PfsStat;
use forebay_types::{Attr, FileKind};

use crate::error::on_pfs;
use crate::ops::readdir::Listed;
use crate::table::Node;
use crate::tree::Dir;
use crate::{Namespace, NsError};

impl Namespace {
    /// What the PFS last said of a directory, if it says nothing now.
    pub(crate) fn known_dir_stat(&self, dir: &Dir) -> Option<PfsStat> {
        match self.pfs.health().is_silent() {
            true => dir.seen(),
            false => None,
        }
    }

    /// Attributes of a directory by its name, likewise; with `remember`, counts one reference of
    /// the kernel.
    pub(crate) fn known_attr(&self, dir: &Arc<Dir>, name: &[u8], remember: bool) -> Option<Attr> {
        if !self.pfs.health().is_silent() {
            return None;
        }
        let child = self.known_child(dir, name)?;
        let stat = child.seen()?;
        if remember {
            self.table
                .lock()
                .remember(child.ino, Node::Dir(child.clone()));
        }
        Some(self.dir_attr(&child, &stat))
    }

    fn known_child(&self, dir: &Arc<Dir>, name: &[u8]) -> Option<Arc<Dir>> {
        self.known_dirs().into_iter().find(|child| {
            let place = child.place();
            place.is_some_and(|(above, own)| Arc::ptr_eq(&above, dir) && *own == *name)
        })
    }

    /// The directory of this name in another.
    pub(crate) fn child_dir(&self, dir: &Arc<Dir>, name: &[u8]) -> Result<Arc<Dir>, NsError> {
        if self.pfs.health().is_silent()
            && let Some(child) = self.known_child(dir, name)
        {
            return Ok(child);
        }
        let handle = self.open_dir(dir)?;
        let id = self.pfs.stat_now(&handle, name).map_err(on_pfs("stat"))?.id;
        Ok(self.intern_dir(id, dir, name))
    }

    /// Entries of a directory without the PFS: the burst buffer's files and the directories in use.
    pub fn list_known(&self, dir: &Arc<Dir>) -> Vec<Listed> {
        let mut listed: Vec<Listed> = Vec::new();
        for (name, file) in dir.lock().iter() {
            listed.push(Listed {
                name: name.to_vec(),
                kind: FileKind::Regular,
                ino: file.ino,
                file: Some(file.clone()),
            });
        }
        for child in self.known_dirs() {
            if let Some((above, name)) = child.place()
                && Arc::ptr_eq(&above, dir)
            {
                listed.push(Listed {
                    name: name.to_vec(),
                    kind: FileKind::Directory,
                    ino: child.ino,
                    file: None,
                });
            }
        }
        listed
    }
}
