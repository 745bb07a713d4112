//! Somebody who changes the PFS directly, and the movements ordered from the command line.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use forebay_types::{Errno, FileKind};
use forebay_wire::control::Movement;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};

use crate::reference::{Body, Id, Place};
use crate::world::{TOTAL_BYTES_MAX, World};

/// Time stamps of file systems may be as coarse as a tick of the kernel.
const TICK: Duration = Duration::from_millis(12);

impl World {
    /// Waits until the drain has demoted everything that nobody has open for writing.
    pub fn settle(&mut self) {
        let written: HashSet<Vec<u8>> = self
            .tree
            .places()
            .into_iter()
            .filter(|(_, id)| self.tree.get(*id).writers > 0)
            .map(|(place, _)| place.path())
            .collect();
        self.server().wait_clean(&|path| written.contains(path));
    }

    pub fn wait_drained(&mut self) {
        self.note("wait for the drain".into());
        self.settle();
    }

    fn on_pfs(&self, place: &Place) -> PathBuf {
        self.scratch.pfs().join(OsStr::from_bytes(&place.path()))
    }

    /// Whether an inode, or one below it, is open.
    fn is_open(&self, id: Id) -> bool {
        match &self.tree.get(id).body {
            Body::Dir(entries) => entries.values().any(|child| self.is_open(*child)),
            _ => self.tree.get(id).opens > 0,
        }
    }

    fn random_bytes(&mut self, most: usize) -> Vec<u8> {
        let room = TOTAL_BYTES_MAX.saturating_sub(self.tree.total_bytes());
        let mut data = vec![0; self.rng.random_range(0..most.min(room) + 1)];
        self.rng.fill_bytes(&mut data);
        data
    }

    /// One change behind the burst buffer's back.
    pub fn outsider(&mut self) {
        self.settle();
        std::thread::sleep(TICK);
        match self.rng.random_range(0..9) {
            0 | 1 => self.outsider_creates(),
            2 => self.outsider_makes_dir(),
            3 => self.outsider_links(),
            4 => self.outsider_renames(),
            _ => self.outsider_changes(),
        }
    }

    fn outsider_creates(&mut self) {
        let place = self.fresh_place();
        let data = self.random_bytes(600 << 10);
        let perm = self.any_perm(false);
        let body = Body::File(data.clone());
        if self.tree.add(place.dir, &place.name, body, perm).is_ok() {
            self.note(format!("outsider: create {}", place.path().escape_ascii()));
            let path = self.on_pfs(&place);
            fs::write(&path, data).expect("outsider: write");
            fs::set_permissions(&path, Permissions::from_mode(perm.into())).expect("chmod");
            self.look(&place);
        }
    }

    fn outsider_makes_dir(&mut self) {
        let place = self.fresh_place();
        let perm = self.any_perm(true);
        let body = Body::Dir(Default::default());
        if place.dir_path.len() <= 3
            && let Ok(dir) = self.tree.add(place.dir, &place.name, body, perm)
        {
            self.note(format!("outsider: mkdir {}", place.path().escape_ascii()));
            let path = self.on_pfs(&place);
            fs::create_dir(&path).expect("outsider: mkdir");
            fs::set_permissions(&path, Permissions::from_mode(perm.into())).expect("chmod");
            let data = self.random_bytes(20_000);
            let file = path.join("inner");
            fs::write(&file, &data).expect("outsider: write");
            fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("chmod");
            let body = Body::File(data);
            self.tree.add(dir, b"inner", body, 0o640).expect("new");
            self.look(&place);
        }
    }

    fn outsider_links(&mut self) {
        let Some((old, id)) = self.any_file() else {
            return;
        };
        let new = self.fresh_place();
        if self.is_open(id) || self.tree.link(id, new.dir, &new.name).is_err() {
            return;
        }
        self.note(format!(
            "outsider: link {} {}",
            old.path().escape_ascii(),
            new.path().escape_ascii()
        ));
        fs::hard_link(self.on_pfs(&old), self.on_pfs(&new)).expect("outsider: link");
        self.look(&new);
        self.look(&old);
    }

    fn outsider_renames(&mut self) {
        let (from, to) = (self.any_place(), self.fresh_place());
        let Some(id) = self.tree.at(&from) else {
            return;
        };
        let there = self.tree.at(&to);
        if self.is_open(id)
            || there.is_some_and(|id| self.is_open(id))
            || self.tree.is_above(id, &to.dir_path)
            || there.is_some_and(|there| self.tree.is_above(there, &from.dir_path))
            || there == Some(id)
        {
            return;
        }
        let mode = forebay_types::RenameMode::Replace;
        let (old, new) = (self.on_pfs(&from), self.on_pfs(&to));
        if self.tree.rename(&from, &to, mode).is_ok() {
            self.note(format!("outsider: rename {old:?} {new:?}"));
            fs::rename(old, new).expect("outsider: rename");
            self.look(&from);
            self.look(&to);
        }
    }

    fn outsider_changes(&mut self) {
        let places = self.tree.places();
        let Some((place, id)) = places.choose(&mut self.rng).cloned() else {
            return;
        };
        if self.is_open(id) {
            return;
        }
        let path = self.on_pfs(&place);
        match (self.tree.get(id).kind(), self.rng.random_range(0..5)) {
            (FileKind::Regular, 0) => {
                self.note(format!("outsider: chmod {path:?}"));
                let perm = self.any_perm(false);
                fs::set_permissions(&path, Permissions::from_mode(perm.into())).expect("chmod");
                self.tree.get_mut(id).perm = perm;
            }
            (FileKind::Regular, 1) => {
                self.note(format!("outsider: write into {path:?}"));
                let data = self.random_bytes(100_000);
                let size = self.tree.get(id).data().len();
                let offset = self.rng.random_range(0..size + 1);
                let file = fs::File::options().write(true).open(&path).expect("open");
                file.write_all_at(&data, offset as u64).expect("pwrite");
                self.tree.write(id, offset, &data);
            }
            (FileKind::Regular, 2) => {
                self.note(format!("outsider: replace {path:?}"));
                let data = self.random_bytes(300_000);
                let other = self.scratch.path().join("outsider");
                fs::write(&other, &data).expect("write");
                fs::set_permissions(&other, Permissions::from_mode(0o600)).expect("chmod");
                fs::rename(&other, &path).expect("rename");
                self.tree.drop_name(place.dir, &place.name);
                let body = Body::File(data);
                let added = self.tree.add(place.dir, &place.name, body, 0o600);
                added.expect("replaced");
            }
            (FileKind::Directory, 0) => {
                self.note(format!("outsider: rm -r {path:?}"));
                fs::remove_dir_all(&path).expect("rm -r");
                self.remove_tree(place.dir, &place.name, id);
            }
            (FileKind::Directory, _) => return,
            _ => {
                self.note(format!("outsider: rm {path:?}"));
                fs::remove_file(&path).expect("rm");
                self.tree.drop_name(place.dir, &place.name);
            }
        }
        self.look(&place);
    }

    fn remove_tree(&mut self, dir: Id, name: &[u8], id: Id) {
        if self.tree.get(id).kind() == FileKind::Directory {
            for (name, child) in self.tree.entries(id).clone() {
                self.remove_tree(id, &name, child);
            }
        }
        self.tree.drop_name(dir, name);
    }

    /// stage-in, stage-out, prefetch or release of some path.
    pub fn movement(&mut self) {
        let movements = [
            Movement::StageIn,
            Movement::StageOut,
            Movement::Prefetch,
            Movement::Release,
        ];
        let movement = *movements.choose(&mut self.rng).expect("movements");
        let places = self.tree.places();
        let path = match places.choose(&mut self.rng) {
            Some((place, _)) if self.rng.random_bool(0.7) => place.path(),
            _ => Vec::new(),
        };
        // A file that stays open for writing would hold the job up for its time of grace.
        let written = self.opens.iter().any(|open| open.flags.writes());
        if movement == Movement::StageOut && written {
            return;
        }
        self.note(format!("{movement:?} {}", path.escape_ascii()));
        let job = self.server().move_files(movement, &path);
        assert_eq!(job.files_done, job.files_total, "{job:?}");
        for failure in &job.failures {
            let expected = match movement {
                Movement::StageOut => false,
                Movement::Release => failure.errno == Errno::EBUSY,
                _ => matches!(failure.errno, Errno::ENOSPC | Errno::ETXTBSY),
            };
            assert!(expected, "{movement:?}: {failure:?}");
        }
    }
}
