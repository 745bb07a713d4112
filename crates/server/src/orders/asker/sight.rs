//! What a user may be told of.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use forebay_namespace::{ACCESS_LIST, Dir, DirKey};
use forebay_tiers::{ActAs, PfsDir, PfsTree};
use forebay_types::{Attr, Errno, Ino};

use super::Asker;
use crate::base::failure::Failure;
use crate::orders::Orders;

/// What one user may see of the tree, found out once for each directory of one answer.
pub struct Sight<'a> {
    orders: &'a Orders,
    asker: &'a Asker,
    /// The number that each was refused with.
    searchable: RefCell<HashMap<DirKey, Result<(), Errno>>>,
}

impl<'a> Sight<'a> {
    /// As the file system below says now.
    pub fn new(orders: &'a Orders, asker: &'a Asker) -> Sight<'a> {
        Sight {
            orders,
            asker,
            searchable: RefCell::default(),
        }
    }

    /// Who looks.
    pub fn asker(&self) -> &Asker {
        self.asker
    }

    /// Whether the user may find names in a directory: those above it must let them pass, too.
    pub fn may_search(&self, dir: &Arc<Dir>) -> Result<(), Errno> {
        if self.asker.trusted {
            return Ok(());
        }
        if let Some(known) = self.searchable.borrow().get(&dir.key) {
            return *known;
        }
        let found = match dir.place() {
            Some((above, _)) => self.may_search(&above),
            None => Ok(()),
        };
        let found = match found.map(|()| self.as_user(dir, false)) {
            Ok(Ok(())) => Ok(()),
            // Many ask the same, and the number is what is kept for them.
            Ok(Err(failure)) => Err(failure.told("look as a user")),
            Err(refused) => Err(refused),
        };
        self.searchable.borrow_mut().insert(dir.key, found);
        found
    }

    /// Whether the user may list a directory, and look at what is in it.
    pub fn may_list(&self, dir: &Arc<Dir>) -> Result<(), Failure> {
        match self.asker.trusted {
            true => Ok(()),
            false => {
                self.may_search(dir)?;
                self.as_user(dir, true)
            }
        }
    }

    /// Whether the checksum of a file may be shown: it tells of the content. Of another user's file
    /// only where group and others may read: who is in the group is not among the others. A list
    /// may say otherwise of anybody.
    pub fn may_read(&self, ino: Ino, attr: &Attr) -> bool {
        if self.asker.trusted || self.asker.uid == attr.uid {
            return true;
        }
        let list = || {
            self.orders
                .ns
                .get_xattr(ino, ACCESS_LIST)
                .map_err(|e| e.errno())
        };
        attr.perm & 0o044 == 0o044 && matches!(list(), Err(Errno::ENODATA | Errno::EOPNOTSUPP))
    }

    /// What is to be said of a path that does not lead anywhere: where it ends only those who may
    /// look there are told.
    pub fn of_missing(&self, path: &[u8], failure: Failure) -> Failure {
        if self.asker.trusted {
            return failure;
        }
        let mut above = path;
        loop {
            above = match above.iter().rposition(|&b| b == b'/') {
                Some(at) => &above[..at],
                None => &[],
            };
            if let Ok((dir, None)) = self.orders.ns.resolve(above) {
                return match self.may_search(&dir) {
                    Ok(()) => failure,
                    Err(refused) => self.hidden(failure, refused),
                };
            }
            if above.is_empty() {
                return self.hidden(failure, Errno::EACCES);
            }
        }
    }

    /// What is not for the user stands in the log.
    fn hidden(&self, failure: Failure, shown: Errno) -> Failure {
        failure.told("resolve a path");
        shown.into()
    }

    /// Whether the user may read a file that only the PFS has.
    pub fn may_read_on_pfs(&self, dir: &Arc<Dir>, name: &[u8]) -> Result<(), Failure> {
        self.on_pfs(dir, |pfs, handle| pfs.may_read(handle, name))
    }

    fn as_user(&self, dir: &Arc<Dir>, list: bool) -> Result<(), Failure> {
        self.on_pfs(dir, |pfs, handle| match list {
            true => pfs.may_list(handle),
            false => pfs.may_search(handle),
        })
    }

    /// What the PFS lets the user do.
    fn on_pfs(
        &self,
        dir: &Arc<Dir>,
        asks: impl FnOnce(&PfsTree, &PfsDir) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can use the mount, and there is no way to find out what they might see.
            return Err(Errno::EACCES.into());
        }
        let handle = self.orders.ns.open_dir(dir)?;
        let pfs = self.orders.ns.pfs();
        let _user = ActAs::user(self.asker.uid, self.asker.gid, &self.asker.groups)?;
        Ok(asks(pfs, &handle)?)
    }
}
