//! setattr, all but the size: owner, mode and times. The size belongs to whoever holds the object.
//!
//! What is only on the PFS is changed there. A file in the burst buffer is changed in its record,
//! and, while its copy on the PFS is current, there too, so that it stays current.

use std::sync::Arc;

use forebay_kv::Durability;
use forebay_types::{Errno, FileKind, Ino, SetAttr, SetTime, failpoint};

use crate::error::on_pfs;
use crate::record::Published;
use crate::table::Node;
use crate::{File, Namespace, NsError};

/// What is left for the caller to do: the object of a burst-buffer file has its own size and times.
pub enum AttrPlan {
    /// Nothing: it is done.
    Done,
    /// Apply size and times to this file's object.
    Object(Arc<File>),
    /// Set the size of this regular file on the PFS (and decide whether to bring it in).
    PfsFile,
}

impl Namespace {
    /// Applies everything but the size.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<AttrPlan, NsError> {
        let without_size = SetAttr { size: None, ..*set };
        match self.node(ino)? {
            Node::Dir(dir) => {
                if set.size.is_some() {
                    return Err(Errno::EISDIR.into());
                }
                self.setattr_dir(&dir, &without_size)?;
                Ok(AttrPlan::Done)
            }
            Node::Plain(plain) => {
                let done = self.on_plain(ino, &plain, |node| {
                    if without_size != SetAttr::default() {
                        self.pfs
                            .set_attr(node, &without_size)
                            .map_err(on_pfs("setattr"))?;
                    }
                    Ok(())
                });
                if done?.is_none() {
                    return self.setattr(ino, set);
                }
                match (set.size, plain.kind) {
                    (None, _) => Ok(AttrPlan::Done),
                    (Some(_), FileKind::Regular) => Ok(AttrPlan::PfsFile),
                    (Some(_), _) => Err(Errno::EINVAL.into()),
                }
            }
            Node::File(file) => {
                if without_size != SetAttr::default() {
                    self.setattr_file(&file, &without_size)?;
                }
                Ok(AttrPlan::Object(file))
            }
        }
    }

    fn setattr_file(&self, file: &Arc<File>, set: &SetAttr) -> Result<(), NsError> {
        let mut set = *set;
        self.revalidate(file)?;
        // It keeps a demotion from publishing between the two changes.
        let _naming = file.naming(&self.pfs)?;
        let mut state = file.lock();
        let Some((dir, name)) = state.names.first().cloned() else {
            state.apply(&set);
            return Ok(());
        };
        if state.residency.clean {
            let published = state.residency.published;
            drop(state);
            let node = self.published_node(&self.open_dir(&dir)?, &name, published)?;
            self.pfs.set_attr(&node, &set).map_err(on_pfs("setattr"))?;
            failpoint::hit(failpoint::Point::SetattrPfs);
            let stat = self.pfs.stat_node(&node).map_err(on_pfs("stat"))?;
            state = file.lock();
            let before = state.residency.published;
            let after = |before: Published| before.after_ours(&stat, set.mtime);
            state.set_published(before.map(after));
            // "Now" is what the PFS took for it.
            set.atime = set.atime.map(|_| SetTime::At(stat.atime));
            set.mtime = set.mtime.map(|_| SetTime::At(stat.mtime));
        }
        if state.is_dirty() {
            // A copy under way would carry the old attributes.
            state.outdate_copy();
        }
        state.apply(&set);
        self.save(file, &state, Durability::Buffered)?;
        failpoint::hit(failpoint::Point::SetattrRecord);
        Ok(())
    }
}
