//! Operations on names: mkdir, symlink, link, unlink, rmdir, rename, readdir, and attributes.

use forebay_types::{Errno, FileKind, RenameMode, SetAttr, SetTime, TimeSpec, XattrMode};
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::reference::{Body, Id, Place};
use crate::world::World;

const NAMES: [&[u8]; 9] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"ckpt-1",
    b"ckpt-2.tmp",
    b"\xff \n'",
    b"long-name",
];
const XATTR_NAMES: [&[u8]; 3] = [b"user.a", b"user.forebay", b"user.c"];

impl World {
    /// A name, taken or free.
    pub fn any_place(&mut self) -> Place {
        let places = self.tree.places();
        if self.rng.random_bool(0.6)
            && let Some((place, _)) = places.choose(&mut self.rng)
        {
            return place.clone();
        }
        self.fresh_place()
    }

    /// A name of the pool in some directory, probably free.
    pub fn fresh_place(&mut self) -> Place {
        let dirs = self.tree.dirs();
        let (dir_path, dir) = dirs.choose(&mut self.rng).expect("the root").clone();
        let name = NAMES.choose(&mut self.rng).expect("names").to_vec();
        Place {
            dir_path,
            dir,
            name,
        }
    }

    /// A regular file with one of its names.
    pub fn any_file(&mut self) -> Option<(Place, Id)> {
        let mut files = self.tree.places();
        files.retain(|(_, id)| self.tree.get(*id).kind() == FileKind::Regular);
        files.choose(&mut self.rng).cloned()
    }

    fn check<T: std::fmt::Debug>(
        &self,
        what: &str,
        got: Result<T, Errno>,
        want: Result<(), Errno>,
    ) {
        let got = got.map(|_| ());
        assert_eq!(got, want, "{what}");
    }

    /// Permission bits that leave the owner's rights alone.
    pub fn any_perm(&mut self, dir: bool) -> u16 {
        let least = if dir { 0o700 } else { 0o600 };
        least | self.rng.random_range(0..0o100)
    }

    pub fn mkdir(&mut self) {
        let place = self.fresh_place();
        if place.dir_path.len() > 3 {
            return;
        }
        let perm = self.any_perm(true);
        self.note(format!("mkdir {} {perm:o}", place.path().escape_ascii()));
        let (dir, _) = self.look(&place);
        let cred = self.cred;
        let got = self.server().client.mkdir(dir, &place.name, perm, cred);
        let body = Body::Dir(Default::default());
        let want = self.tree.add(place.dir, &place.name, body, perm);
        if let Ok(attr) = got {
            self.held.push((attr.ino, 1));
        }
        self.check("mkdir", got, want.map(|_| ()));
    }

    pub fn symlink(&mut self) {
        let place = self.fresh_place();
        let target = vec![b't'; self.rng.random_range(1..80)];
        self.note(format!("symlink {}", place.path().escape_ascii()));
        let (dir, _) = self.look(&place);
        let cred = self.cred;
        let got = self
            .server()
            .client
            .symlink(dir, &place.name, &target, cred);
        let want = self
            .tree
            .add(place.dir, &place.name, Body::Symlink(target), 0o777);
        if let Ok(attr) = got {
            self.held.push((attr.ino, 1));
        }
        self.check("symlink", got, want.map(|_| ()));
    }

    pub fn link(&mut self) {
        let Some((old, id)) = self.any_file() else {
            return;
        };
        let new = self.fresh_place();
        self.note(format!(
            "link {} {}",
            old.path().escape_ascii(),
            new.path().escape_ascii()
        ));
        let (_, found) = self.look(&old);
        let (dir, _) = self.look(&new);
        let ino = found.expect("looked up").ino;
        let cred = self.cred;
        let got = self.server().client.link(ino, dir, &new.name, cred);
        let want = self.tree.link(id, new.dir, &new.name);
        if let Ok(attr) = got {
            self.held.push((attr.ino, 1));
            self.compare_attr(&new, id, &attr);
        }
        self.check("link", got, want);
    }

    pub fn unlink(&mut self) {
        let place = self.any_place();
        self.note(format!("unlink {}", place.path().escape_ascii()));
        let (dir, _) = self.look(&place);
        let cred = self.cred;
        let got = self.server().client.unlink(dir, &place.name, cred);
        let want = self.tree.unlink(place.dir, &place.name);
        self.check("unlink", got, want);
    }

    pub fn rmdir(&mut self) {
        let place = self.any_place();
        self.note(format!("rmdir {}", place.path().escape_ascii()));
        let (dir, _) = self.look(&place);
        let cred = self.cred;
        let got = self.server().client.rmdir(dir, &place.name, cred);
        let want = self.tree.rmdir(place.dir, &place.name);
        self.check("rmdir", got, want);
    }

    pub fn rename(&mut self) {
        let (from, to) = (self.any_place(), self.any_place());
        let modes = [
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ];
        let mode = *modes.choose(&mut self.rng).expect("modes");
        // The kernel refuses a move into itself before anybody below is asked.
        let above = |place: &Place, other: &Place| {
            self.tree
                .at(place)
                .is_some_and(|id| self.tree.is_above(id, &other.dir_path))
        };
        // So it answers for two names of one file.
        let same = self.tree.at(&from).is_some() && self.tree.at(&from) == self.tree.at(&to);
        if above(&from, &to) || above(&to, &from) || same {
            return;
        }
        let (old, new) = (from.path(), to.path());
        self.note(format!(
            "rename {mode:?} {} {}",
            old.escape_ascii(),
            new.escape_ascii()
        ));
        let (from_dir, _) = self.look(&from);
        let (to_dir, _) = self.look(&to);
        let cred = self.cred;
        let (source, target) = ((from_dir, &from.name[..]), (to_dir, &to.name[..]));
        let got = self.server().client.rename(source, target, mode, cred);
        let want = self.tree.rename(&from, &to, mode);
        self.check("rename", got, want);
        self.look(&from);
        // A directory on the way to the other name may have moved.
        self.forget_some();
    }

    pub fn set_attr(&mut self) {
        let places = self.tree.places();
        let Some((place, id)) = places.choose(&mut self.rng).cloned() else {
            return;
        };
        let kind = self.tree.get(id).kind();
        if kind == FileKind::Symlink {
            return;
        }
        let mut set = SetAttr::default();
        if self.rng.random_bool(0.5) {
            set.perm = Some(self.any_perm(kind == FileKind::Directory));
        }
        if set.perm.is_none() || self.rng.random_bool(0.5) {
            let time = TimeSpec {
                sec: self.rng.random_range(0..2_000_000_000),
                nsec: self.rng.random_range(0..1_000_000_000),
            };
            set.mtime = Some(SetTime::At(time));
        }
        self.note(format!("setattr {} {set:?}", place.path().escape_ascii()));
        let (_, found) = self.look(&place);
        let ino = found.expect("looked up").ino;
        let cred = self.cred;
        let got = self.server().client.setattr(ino, None, set, cred);
        let stays = !self.is_written_unseen(id);
        let inode = self.tree.get_mut(id);
        inode.perm = set.perm.unwrap_or(inode.perm);
        if let Some(SetTime::At(time)) = set.mtime {
            inode.mtime = stays.then_some(time);
        }
        let attr = got.unwrap_or_else(|e| panic!("setattr: {e:?}"));
        self.compare_attr(&place, id, &attr);
    }

    pub fn xattr(&mut self) {
        let places = self.tree.places();
        let Some((place, id)) = places.choose(&mut self.rng).cloned() else {
            return;
        };
        if !self.xattrs || self.tree.get(id).kind() == FileKind::Symlink {
            return;
        }
        let name = *XATTR_NAMES.choose(&mut self.rng).expect("names");
        let (_, found) = self.look(&place);
        let ino = found.expect("looked up").ino;
        let cred = self.cred;
        let client = self.server().client.clone();
        let had = self.tree.get(id).xattrs.contains_key(name);
        if self.rng.random_bool(0.3) {
            self.note(format!("removexattr {}", place.path().escape_ascii()));
            let got = client.remove_xattr(ino, name, cred);
            self.tree.get_mut(id).xattrs.remove(name);
            self.check("removexattr", got, had.then_some(()).ok_or(Errno::ENODATA));
            return;
        }
        let modes = [XattrMode::Set, XattrMode::Create, XattrMode::Replace];
        let mode = *modes.choose(&mut self.rng).expect("modes");
        let value = vec![b'v'; self.rng.random_range(0..60)];
        self.note(format!("setxattr {mode:?} {}", place.path().escape_ascii()));
        let got = client.set_xattr(ino, name, &value, mode, cred);
        let want = match (mode, had) {
            (XattrMode::Create, true) => Err(Errno::EEXIST),
            (XattrMode::Replace, false) => Err(Errno::ENODATA),
            _ => Ok(()),
        };
        if want.is_ok() {
            let xattrs = &mut self.tree.get_mut(id).xattrs;
            xattrs.insert(name.to_vec(), value.clone());
            assert_eq!(client.get_xattr(ino, name, 0), Ok(value), "getxattr");
        }
        self.check("setxattr", got, want);
    }
}
