//! link: further names. Of a burst-buffer file they are names of the same record; on the PFS they
//! become links of one file when it is published.

use std::sync::Arc;

use forebay_kv::Batch;
use forebay_tiers::PfsTree;
use forebay_types::{Attr, Errno, Ino, TimeSpec, check_name};

use crate::table::Node;
use crate::{File, Namespace, NsError};

/// Names of one file that the burst buffer keeps; more are refused with `EMLINK`.
const NAMES_MAX: usize = 128;

impl Namespace {
    /// Gives an existing file a further name and counts one reference of the kernel.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, NsError> {
        check_name(name)?;
        if PfsTree::is_temporary(name) {
            return Err(Errno::EPERM.into());
        }
        match self.node(ino)? {
            Node::Dir(_) => Err(Errno::EPERM.into()),
            Node::Plain(plain) => {
                self.stat_plain(&plain)?;
                let dir = self.dir(parent)?;
                let order = dir.order(&self.pfs)?;
                if dir.child(name).is_some() {
                    return Err(Errno::EEXIST.into());
                }
                let from = self.open_dir(&plain.parent)?;
                let to = self.open_dir(&dir)?;
                self.pfs.link(&from, &plain.name, &to, name)?;
                dir.note_present(name);
                drop(order);
                let stat = self.pfs.stat(&to, name)?;
                Ok(self.meet(&dir, name, &stat, true))
            }
            Node::File(file) => self.link_file(&file, parent, name),
        }
    }

    fn link_file(&self, file: &Arc<File>, parent: Ino, name: &[u8]) -> Result<Attr, NsError> {
        let dir = self.dir(parent)?;
        let to = self.open_dir(&dir)?;
        let _order = dir.order(&self.pfs)?;
        let _naming = file.naming(&self.pfs)?;
        if dir.child(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        match self.pfs.stat(&to, name) {
            Ok(_) => return Err(Errno::EEXIST.into()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let (first, names, published) = {
            let state = file.lock();
            let first = state.names.first().cloned();
            (first, state.names.len(), state.residency.published)
        };
        let Some((first_dir, first_name)) = first else {
            return Err(Errno::ENOENT.into());
        };
        if names >= NAMES_MAX {
            return Err(Errno::EMLINK.into());
        }
        let published = match published {
            Some(_) => {
                let from = self.open_dir(&first_dir)?;
                self.pfs.link(&from, &first_name, &to, name)?;
                Some((&self.pfs.stat(&to, name)?).into())
            }
            None => None,
        };
        let mut children = dir.lock();
        let mut state = file.lock();
        state.residency.published = published;
        state.names.push((dir.clone(), name.into()));
        state.meta.ctime = TimeSpec::now();
        if state.is_dirty() {
            // A copy under way would be published without the new name.
            state.residency.generation = state.residency.generation.next();
        }
        let mut batch = Batch::new();
        self.put_dirs(&mut batch, &dir)?;
        self.put_file(&mut batch, file, &state)?;
        self.commit(batch)?;
        children.insert(name.into(), file.clone());
        dir.note_present(name);
        let attr = state.attr(file.ino);
        drop(state);
        drop(children);
        self.dirs_written(&dir);
        dir.touch();
        self.table
            .lock()
            .remember(file.ino, Node::File(file.clone()));
        Ok(attr)
    }
}
