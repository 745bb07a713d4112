//! Files without a name (`O_TMPFILE`): made in a directory, and given their first name there or
//! elsewhere by a link, or none.
//!
//! Until then they are treated like an unlinked file that somebody has open: nothing is on record,
//! and nothing is drained. A crash takes them, unless a client may come back for them
//! (`nameless`): the identity beside the object says that nobody else can ask for it. So the object
//! has to be told the first name too, by which a file whose record is damaged later is found.
//! Meanwhile the object is on record as garbage. A crash therefore leaves the file with its name
//! and its whole record, or nothing.

use std::sync::Arc;

use forebay_tiers::PfsTree;
use forebay_types::{Attr, Cred, Errno, Ino, check_name, failpoint};

use crate::log::Batch;
use crate::ops::create::born;
use crate::record;
use crate::table::Node;
use crate::tree::Dir;
use crate::{File, Garbage, Namespace, NewFile, NsError};

/// Tells the object of a file in which directory and under which name it is about to be.
pub type FirstName<'a> = &'a dyn Fn(&Dir, &[u8]) -> Result<(), NsError>;

impl Namespace {
    /// The directory that a file without a name is made in, and the group that it gets there.
    pub fn check_unnamed(&self, parent: Ino, cred: &Cred) -> Result<(Arc<Dir>, u32), NsError> {
        let dir = self.dir(parent)?;
        let handle = self.open_dir(&dir)?;
        if dir.is_removed() {
            return Err(Errno::ENOENT.into());
        }
        let gid = self.group_of_new(&dir, &handle, cred)?;
        Ok((dir, gid))
    }

    /// Creates a file without a name in a directory, and counts one reference of the kernel. Its
    /// group is what [`Self::check_unnamed`] says.
    pub fn create_unnamed(&self, dir: &Arc<Dir>, gid: u32, new: &NewFile) -> (Attr, Arc<File>) {
        let file = born(new, gid, Vec::new(), Some(dir.clone()));
        self.table
            .lock()
            .remember(file.ino, Node::File(file.clone()));
        (file.attr(), file)
    }

    /// Gives a file its first name, and counts one reference of the kernel. `ENOENT` if it has been
    /// let go; one that has got a name meanwhile gets a further one. `carry` is called with
    /// everything else seen to, while nothing moves.
    pub fn link_unnamed(
        &self,
        file: &Arc<File>,
        parent: Ino,
        name: &[u8],
        carry: FirstName<'_>,
    ) -> Result<Attr, NsError> {
        check_name(name)?;
        if PfsTree::is_temporary(name) {
            return Err(Errno::EPERM.into());
        }
        self.link_file(file, parent, name, Some(carry))
    }

    /// Whether the file has no name yet; then its object carries the one that it is about to get,
    /// and `batch`, which puts it on record, ends what a crash before that goes by.
    pub(crate) fn begin_first_name(
        &self,
        file: &File,
        (dir, name): (&Dir, &[u8]),
        carry: Option<FirstName<'_>>,
        batch: &mut Batch,
    ) -> Result<bool, NsError> {
        let tiers = {
            let state = file.lock();
            let shadow = state.residency.shadow.map(|(tier, _)| tier);
            match state.unnamed {
                Some(_) => [Some(state.residency.tier), shadow],
                None => return Ok(false),
            }
        };
        let carry = carry.ok_or(Errno::ENOENT)?;
        let key = record::garbage_key(file.object);
        let mut going = Batch::new();
        going.put(key.clone(), record::encode(&tiers)?);
        self.commit(going)?;
        carry(dir, name)?;
        failpoint::hit(failpoint::Point::LinkCarried);
        batch.delete(key);
        self.drop_nameless(batch, &[file.object]);
        Ok(true)
    }

    /// Nobody has the file open or knows it any more: if it still has no name its objects are to be
    /// collected. Whether it is so.
    pub fn let_go_unnamed(&self, file: &File) -> bool {
        let mut state = file.lock();
        if !state.let_go() {
            return false;
        }
        let shadow = state.residency.shadow.map(|(tier, _)| tier);
        self.add_garbage(Garbage {
            object: file.object,
            tiers: [Some(state.residency.tier), shadow],
        });
        true
    }
}
