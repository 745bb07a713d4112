//! link: further names. Of a burst-buffer file they are names of the same record; on the PFS they
//! become links of one file when it is published.

use std::sync::Arc;

use forebay_tiers::{PfsDir, PfsTree};
use forebay_types::{Attr, Errno, Ino, check_name, failpoint};

use crate::error::on_pfs;
use crate::log::Batch;
use crate::ops::unnamed::FirstName;
use crate::outside::Seen;
use crate::record::{self, Intent, LinkChange, LinkIntent, Published};
use crate::table::Node;
use crate::tree::{Dir, Name, Place};
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
                let dir = self.dir(parent)?;
                let orders = self.orders(&plain.parent, &dir)?;
                if !self.is_still_plain(ino, &plain)? {
                    drop(orders);
                    return self.link(ino, parent, name);
                }
                if dir.is_removed() {
                    return Err(Errno::ENOENT.into());
                }
                if dir.is_taken(name) {
                    return Err(Errno::EEXIST.into());
                }
                dir.note_change(name);
                let to = self.open_dir(&dir)?;
                let node = self.plain_node(&plain)?;
                let linked = self.pfs.link_node(&node, &to, name);
                dir.empty_dirs.end();
                dir.note_change(name);
                linked.map_err(on_pfs("link"))?;
                dir.note_present(name);
                drop(orders);
                let stat = self.pfs.stat_now(&to, name).map_err(on_pfs("stat"))?;
                Ok(self.meet(&dir, name, &stat, true))
            }
            Node::File(file) => self.link_file(&file, parent, name, None),
        }
    }

    /// `unnamed`: what is to be done before a file that was made without a name is on record with
    /// this one.
    pub(crate) fn link_file(
        &self,
        file: &Arc<File>,
        parent: Ino,
        name: &[u8],
        unnamed: Option<FirstName<'_>>,
    ) -> Result<Attr, NsError> {
        let dir = self.dir(parent)?;
        if file.file_system().is_some_and(|dev| dev != dir.key.dev) {
            // Its drain could never make the link.
            return Err(Errno::EXDEV.into());
        }
        let to = self.open_dir(&dir)?;
        self.revalidate(file)?;
        let _order = dir.order(&self.pfs)?;
        let _naming = file.naming(&self.pfs)?;
        self.settle_held(file)?;
        self.check_is_free(&dir, &to, name)?;
        let shared = Name::from(name);
        let _changing = dir.change_name(&shared);
        let mut batch = Batch::new();
        let is_first = self.begin_first_name(file, (&dir, name), unnamed, &mut batch)?;
        let linked = match is_first {
            true => None,
            false => self.link_published(file, (&dir, &to, name), &mut batch)?,
        };
        let mut children = dir.lock();
        let mut state = file.lock();
        if is_first && state.unnamed.is_none() {
            // Its last user has let it go meanwhile.
            return Err(Errno::ENOENT.into());
        }
        let before = state.clone();
        let published = linked.map(|(published, _)| published);
        state.link((dir.clone(), shared.clone()), published);
        let recorded = self
            .put_dirs(&mut batch, &dir)
            .and_then(|()| self.put_file(&mut batch, file, &state))
            .and_then(|()| self.commit(batch));
        if let Err(error) = recorded {
            *state = before;
            drop((state, children));
            if let Some((_, sequence)) = linked {
                self.unlink_unrecorded(file, (&to, name), sequence, &error);
            }
            return Err(error);
        }
        failpoint::hit(failpoint::Point::LinkRecord);
        self.holders.forget(file.object);
        children.insert(shared, file.clone());
        dir.note_present(name);
        let attr = state.attr(file.ino);
        drop(state);
        drop(children);
        self.dirs_written(&dir);
        self.touch(&dir);
        self.table
            .lock()
            .remember(file.ino, Node::File(file.clone()));
        Ok(attr)
    }

    /// Nothing has the name, in the burst buffer or on the PFS; the directory's order is held.
    fn check_is_free(&self, dir: &Dir, handle: &PfsDir, name: &[u8]) -> Result<(), NsError> {
        if dir.is_removed() {
            return Err(Errno::ENOENT.into());
        }
        if dir.is_taken(name) {
            return Err(Errno::EEXIST.into());
        }
        match self.pfs.stat_now(handle, name) {
            Ok(_) => Err(Errno::EEXIST.into()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(e) => Err(on_pfs("stat")(e)),
        }
    }

    /// Gives the file the name on the PFS too, if it is there: what that shows of it then, and the
    /// intent. `batch` gets the end of the change.
    fn link_published(
        &self,
        file: &Arc<File>,
        (dir, to, name): (&Arc<Dir>, &PfsDir, &[u8]),
        batch: &mut Batch,
    ) -> Result<Option<(Published, u64)>, NsError> {
        let (first, names, published) = {
            let state = file.lock();
            let placed = |(dir, name): &&Place| state.is_placed(dir, name);
            let first = state.names.iter().find(placed).cloned();
            let published = state.residency.published;
            (first, state.names.len(), published)
        };
        if names == 0 {
            return Err(Errno::ENOENT.into());
        }
        if names >= NAMES_MAX {
            return Err(Errno::EMLINK.into());
        }
        let (Some(published), Some((first_dir, first_name))) = (published, first) else {
            return Ok(None);
        };
        let from = self.open_dir(&first_dir)?;
        // An outsider's version of a dirty file gets no name of ours: its drain makes the link. A
        // clean file has no drain to come: it is to be looked for anew.
        let not_ours = || match file.lock().is_dirty() {
            true => Ok(None),
            false => Err(Errno::ESTALE.into()),
        };
        if !matches!(self.look(&from, &first_name, published)?, Seen::Ours) {
            return not_ours();
        }
        let node = match self.published_node(&from, &first_name, Some(published)) {
            Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ESTALE) => {
                return not_ours();
            }
            node => node?,
        };
        let intent = Intent::Link(LinkIntent {
            place: (dir.key, name.to_vec()),
            target: published,
            change: LinkChange::Added,
            holder: Some((first_dir.key, first_name.to_vec())),
        });
        let mut dirs = Batch::new();
        self.put_dirs(&mut dirs, dir)?;
        let synced = self.must_be_synced(&[Some(file)])?;
        let sequence = self.begin_change_of_names(dirs, &intent, synced)?;
        failpoint::hit(failpoint::Point::LinkIntent);
        if let Err(error) = self.pfs.link_node(&node, to, name)
            && !self.is_linked(file, (to, name), published)?
        {
            self.take_intent_back(sequence)?;
            return Err(on_pfs("link")(error));
        }
        dir.empty_dirs.end();
        failpoint::hit(failpoint::Point::LinkPfs);
        batch.delete(record::intent_key(sequence));
        Ok(Some((self.follow(published, to, name), sequence)))
    }

    /// After an error: whether the PFS has done it all the same, as where a request was sent twice.
    /// Where it does not tell, the file has this name there or not, as an outsider's link would.
    fn is_linked(
        &self,
        file: &File,
        (to, name): (&PfsDir, &[u8]),
        published: Published,
    ) -> Result<bool, NsError> {
        match self.stat_if_there(to, name) {
            Ok(Some(stat)) => Ok(published.same_content(&stat)),
            Ok(None) => Ok(false),
            Err(_) => {
                self.set_published(file, published.with_ctime_moved())?;
                Ok(false)
            }
        }
    }

    /// A link that could not be recorded goes from the PFS too; if that fails now, the next start
    /// finds its intent.
    fn unlink_unrecorded(
        &self,
        file: &File,
        (dir, name): (&PfsDir, &[u8]),
        sequence: u64,
        why: &NsError,
    ) {
        match self.pfs.unlink(dir, name) {
            Ok(()) => self.leave_unrecorded(Some(sequence), None, why),
            Err(error) => tracing::warn!("link {}: {error}", name.escape_ascii()),
        }
        self.follow_links(&mut file.lock());
    }
}

#[cfg(test)]
mod tests {
    use forebay_kv::memory::Memory;
    use forebay_types::{Cred, Process, TierId};
    use forebay_types::{RenameMode, TimeSpec};

    use super::*;
    use crate::NewFile;
    use crate::record::DirKey;

    const CRED: Cred = Cred {
        uid: 0,
        gid: 0,
        process: Process::here(0),
        umask: 0,
    };

    #[test]
    fn names_in_two_file_systems_are_refused_whatever_the_drain_has_done() {
        let top = tempfile::tempdir().unwrap();
        let pfs = PfsTree::open(top.path()).unwrap();
        let (ns, _) = Namespace::open(pfs, Box::new(Memory::new()), [7; 16]).unwrap();
        let (root, gid) = ns.check_free(Ino::ROOT, b"f", &CRED).unwrap();
        let new = NewFile {
            object: ns.new_object().unwrap(),
            tier: TierId(2),
            perm: 0o644,
            xattrs: Vec::new(),
            cred: CRED,
            writing: false,
            born: TimeSpec::now(),
        };
        let (_, file) = ns.create(&root, b"f", gid, &new).unwrap();
        // A file system that is mounted in the directory `in`.
        let key = DirKey { dev: 1, ..root.key };
        let place = Some((root.clone(), b"in"[..].into()));
        let inner = Arc::new(Dir::new(key, Ino(1 << 40), place));
        let node = Node::Dir(inner.clone());
        ns.table.lock().remember(inner.ino, node);
        let errno = |done: Result<(), NsError>| done.expect_err("done").errno();
        let linked = ns.link(file.ino, inner.ino, b"g").map(drop);
        assert_eq!(errno(linked), Errno::EXDEV);
        for mode in [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ] {
            let there = ns.rename(Ino::ROOT, b"f", inner.ino, b"g", mode).map(drop);
            assert_eq!(errno(there), Errno::EXDEV, "{mode:?}");
        }
        let back = ns.rename(inner.ino, b"g", Ino::ROOT, b"f", RenameMode::Exchange);
        assert_eq!(errno(back.map(drop)), Errno::EXDEV);
        ns.link(file.ino, Ino::ROOT, b"g").unwrap();
        assert_eq!(file.lock().names.len(), 2);
    }
}
