//! Files by which another node can tell whether it sees the same PFS.
//!
//! Such a file lies at the top of the PFS. Its name is one of Forebay's temporary names, so the
//! tree hides it, and the next start removes what this one has left. Nobody can guess the name. The
//! times of the directory do not show it.

use std::io::Write;

use forebay_tiers::{PfsDir, PfsTree, random_bytes};
use forebay_types::{Errno, Generation, ObjectId};

use crate::base::failure::Failure;
use crate::lifecycle::Lifecycle;

/// Length of what is in such a file, bytes.
const CONTENT_BYTES: usize = 32;
/// Objects are numbered from 0: no copy of one has such a name.
const NO_OBJECT: u64 = 1 << 63;

impl Lifecycle {
    /// Makes such a file; its name and content.
    pub fn show_probe(&self) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let random = random_bytes::<{ 16 + CONTENT_BYTES }>()?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&random[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let object = ObjectId(number(0) | NO_OBJECT);
        let instance = self.ns.instance();
        let name = PfsTree::temporary_name(instance, object, Generation(number(8)));
        let content = random[16..].to_vec();
        let handle = self.ns.open_dir(self.ns.root())?;
        let made = self.ns.change_unseen(self.ns.root(), &handle, || {
            let pfs = self.ns.pfs();
            // Root of another node may be nobody on the PFS.
            let mut file = pfs.create_temporary(&handle, &name, 0o644)?;
            self.probes.lock().insert(name.clone());
            file.write_all(&content)?;
            file.sync_all()
        });
        if let Err(failed) = made {
            self.remove_probe(&handle, &name)?;
            return Err(failed.into());
        }
        Ok((name, content))
    }

    /// Removes it. `ENOENT` for what is no such file.
    pub fn hide_probe(&self, name: &[u8]) -> Result<(), Failure> {
        let handle = self.ns.open_dir(self.ns.root())?;
        match self.remove_probe(&handle, name)? {
            true => Ok(()),
            false => Err(Errno::ENOENT.into()),
        }
    }

    /// Whether there was one.
    fn remove_probe(&self, handle: &PfsDir, name: &[u8]) -> Result<bool, Failure> {
        if !self.probes.lock().remove(name) {
            return Ok(false);
        }
        let root = self.ns.root();
        let unlink = || self.ns.pfs().unlink(handle, name);
        self.ns.change_unseen(root, handle, unlink)?;
        self.ns.put_times_back(root, handle);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use forebay_types::Ino;

    use crate::testing::{Lab, answer};

    fn names(lab: &Lab) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(lab.pfs("")).expect("read_dir");
        let names = entries.map(|entry| entry.expect("entry").file_name());
        names.map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_probe_is_on_the_pfs_and_not_in_the_tree() {
        let lab = Lab::new();
        let (rooms, ns) = (lab.rooms(), lab.rooms().base.ns());
        let changed = || ns.getattr(Ino::ROOT).expect("attributes").0.mtime;
        let before = changed();
        let shown = || answer(rooms.lifecycle.show_probe()).expect("made");
        let ((name, content), (other, _)) = (shown(), shown());
        assert_ne!(name, other);
        let path = String::from_utf8(name.clone()).expect("text");
        assert_eq!(lab.on_pfs(&path), content);
        assert_eq!(names(&lab).len(), 2);
        assert!(ns.lookup(Ino::ROOT, &name).is_err());
        let listed = ns.read_dir(Ino::ROOT).expect("list");
        assert!(listed.iter().all(|entry| entry.name != name));
        let hide = |name: &[u8]| answer(rooms.lifecycle.hide_probe(name));
        assert_eq!(hide(&name), Ok(()));
        assert_eq!(hide(&name), Err(forebay_types::Errno::ENOENT));
        assert_eq!(names(&lab), std::slice::from_ref(&other));
        assert_eq!(hide(&other), Ok(()));
        assert!(names(&lab).is_empty());
        assert_eq!(changed(), before, "who looks at the directory sees nothing");
        // What lies there otherwise is not for who asks.
        std::fs::write(lab.pfs("mine"), "").expect("write");
        assert!(hide(b"mine").is_err() && lab.pfs("mine").exists());
    }
}
