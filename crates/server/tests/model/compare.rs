//! Compares everything: what the mount shows, what the PFS has in the end, and the books.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use forebay_types::{Dirent, FileKind, Ino};

use crate::common::me;
use crate::reference::{Body, Id, Place, ROOT};
use crate::world::{World, mode_of, show};

impl World {
    fn list(&self, dir: Ino) -> Vec<Dirent> {
        let client = &self.server().client;
        let handle = client.open_dir(dir, 0).expect("opendir");
        let mut all = Vec::new();
        loop {
            let next = all.last().map_or(0, |entry: &Dirent| entry.next);
            let more = client.read_dir(handle, next).expect("readdir");
            if more.is_empty() {
                break;
            }
            all.extend(more);
        }
        client.close_dir(handle).expect("closedir");
        all
    }

    /// Compares the names in one directory.
    fn compare_names(&mut self, path: &[Vec<u8>], dir: Id) {
        let ino = self.walk(path);
        let mut seen = BTreeMap::new();
        for entry in self.list(ino) {
            let again = seen.insert(entry.name.clone(), entry.kind);
            assert!(again.is_none(), "twice: {:?} in {}", entry, show(path));
        }
        for dots in [&b"."[..], b".."] {
            assert_eq!(seen.remove(dots), Some(FileKind::Directory));
        }
        let entries = self.tree.entries(dir).iter();
        let want: BTreeMap<Vec<u8>, FileKind> = entries
            .map(|(name, id)| (name.clone(), self.tree.get(*id).kind()))
            .collect();
        assert_eq!(seen, want, "entries of {}", show(path));
    }

    pub fn readdir(&mut self) {
        use rand::seq::IndexedRandom;
        let dirs = self.tree.dirs();
        let (path, dir) = dirs.choose(&mut self.rng).expect("the root").clone();
        self.note(format!("readdir {}", show(&path)));
        self.compare_names(&path, dir);
    }

    /// Compares what the mount shows with the reference, all of it.
    pub fn compare_all(&mut self) {
        self.note("compare".into());
        for (path, dir) in self.tree.dirs() {
            self.compare_names(&path, dir);
        }
        for (place, id) in self.tree.places() {
            let (_, found) = self.look(&place);
            let ino = found.expect("looked up").ino;
            self.compare_xattrs(&place, id, ino);
            match self.tree.get(id).kind() {
                FileKind::Regular => self.compare_content(&place, id),
                FileKind::Symlink => {
                    let target = self.server().client.readlink(ino).expect("readlink");
                    assert!(matches!(&self.tree.get(id).body, Body::Symlink(t) if *t == target));
                }
                _ => {}
            }
        }
        let errors = self.server().status().errors;
        assert!(errors.is_empty(), "{errors:?}");
    }

    fn compare_xattrs(&self, place: &Place, id: Id, ino: Ino) {
        let inode = self.tree.get(id);
        if !self.xattrs || inode.kind() == FileKind::Symlink {
            return;
        }
        let client = &self.server().client;
        let names = client.list_xattr(ino, me()).expect("listxattr");
        let mut found = BTreeMap::new();
        for name in names.split(|&b| b == 0).filter(|n| n.starts_with(b"user.")) {
            let value = client.get_xattr(ino, name, 0).expect("getxattr");
            found.insert(name.to_vec(), value);
        }
        let path = place.path();
        assert_eq!(found, inode.xattrs, "xattrs of {}", path.escape_ascii());
    }

    fn compare_content(&mut self, place: &Place, id: Id) {
        let at = self.open(place, id, libc::O_RDONLY);
        let open = &self.opens[at];
        let want = self.tree.get(id).data();
        let mut got = vec![0; want.len() + 1];
        let len = match &open.unseen {
            Some((file, _)) => file.read_at(&mut got, 0).expect("pread"),
            None => self.read_plain(open.handle, &mut got),
        };
        let path = place.path();
        assert_same(&got[..len], want, &path.escape_ascii().to_string());
        self.close(at);
    }

    fn read_plain(&self, handle: forebay_types::Handle, into: &mut [u8]) -> usize {
        let mut at = 0;
        while at < into.len() {
            let end = into.len().min(at + (1 << 20));
            let client = &self.server().client;
            let n = client.read(handle, at as u64, &mut into[at..end], 0);
            match n.expect("read") {
                0 => break,
                n => at += n,
            }
        }
        at
    }

    /// Drains everything, checks the books, stops, and compares the bare PFS with the reference.
    pub fn finish(&mut self) {
        self.note("end".into());
        self.close_all();
        self.compare_all();
        // The books, too.
        self.server().drain();
        self.stop();
        let mut inodes = HashMap::new();
        self.compare_pfs_dir(&self.scratch.pfs(), ROOT, &mut inodes);
    }

    fn compare_pfs_dir(&self, dir: &Path, id: Id, inodes: &mut HashMap<Id, u64>) {
        let mut found: Vec<Vec<u8>> = fs::read_dir(dir)
            .expect("read_dir")
            .map(|entry| entry.expect("entry").file_name().as_bytes().to_vec())
            .collect();
        found.sort();
        let entries = self.tree.entries(id);
        let want: Vec<Vec<u8>> = entries.keys().cloned().collect();
        assert_eq!(found, want, "on the PFS in {}", dir.display());
        for (name, child) in entries {
            let path = dir.join(OsStr::from_bytes(name));
            let what = path.display().to_string();
            let inode = self.tree.get(*child);
            let stat = fs::symlink_metadata(&path).expect("stat");
            let kind = FileKind::from_mode(stat.mode());
            assert_eq!(kind, Some(inode.kind()), "kind of {what}");
            let ino = *inodes.entry(*child).or_insert(stat.ino());
            assert_eq!(ino, stat.ino(), "links of one file: {what}");
            match &inode.body {
                Body::Dir(_) => {
                    assert_eq!(mode_of(&path), inode.perm, "mode of {what}");
                    self.compare_pfs_dir(&path, *child, inodes);
                }
                Body::Symlink(target) => {
                    let link = fs::read_link(&path).expect("readlink");
                    assert_eq!(link.as_os_str().as_bytes(), target);
                }
                Body::File(data) => {
                    assert_eq!(mode_of(&path), inode.perm, "mode of {what}");
                    assert_eq!(stat.nlink(), u64::from(inode.nlink), "links of {what}");
                    if let Some(mtime) = inode.mtime {
                        let found = (stat.mtime(), stat.mtime_nsec() as u32);
                        assert_eq!(found, (mtime.sec, mtime.nsec), "mtime of {what}");
                    }
                    assert_same(&fs::read(&path).expect("read"), data, &what);
                }
            }
        }
    }
}

fn assert_same(got: &[u8], want: &[u8], what: &str) {
    if got != want {
        let at = got.iter().zip(want).position(|(a, b)| a != b);
        panic!(
            "content of {what} differs from byte {at:?} on; {} bytes, expected {}",
            got.len(),
            want.len()
        );
    }
}
