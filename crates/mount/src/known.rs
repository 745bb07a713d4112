//! What the mount answers by itself where the server does not come to it: what umount(8), df and a
//! shell ask of the root. Whoever wants to leave does not wait for a server that is gone.

use forebay_types::{Attr, Ino, Statfs};
use parking_lot::Mutex;

use crate::company::Company;

/// The last answers of a server that may be elsewhere. Of one in this process nothing is kept: it
/// comes to an answer, whatever the PFS does.
#[derive(Default)]
pub(crate) struct Known {
    elsewhere: bool,
    root: Mutex<Option<Attr>>,
    totals: Mutex<Option<Statfs>>,
}

impl Known {
    pub(crate) fn new(company: Company) -> Known {
        Known {
            elsewhere: company == Company::Shared,
            ..Known::default()
        }
    }

    /// Takes the root's attributes out of what is shown.
    pub(crate) fn note(&self, attr: &Attr) {
        if self.elsewhere && attr.ino == Ino::ROOT {
            *self.root.lock() = Some(*attr);
        }
    }

    pub(crate) fn note_totals(&self, totals: &Statfs) {
        if self.elsewhere {
            *self.totals.lock() = Some(*totals);
        }
    }

    /// The attributes of this file, if it is the root.
    pub(crate) fn attr(&self, ino: Ino) -> Option<Attr> {
        (*self.root.lock()).filter(|_| ino == Ino::ROOT)
    }

    pub(crate) fn totals(&self) -> Option<Statfs> {
        *self.totals.lock()
    }
}
