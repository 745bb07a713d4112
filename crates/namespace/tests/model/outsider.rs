//! Somebody who works on the PFS directly.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rand::Rng;

use crate::reference::{self, Facts, FileId};
use crate::world::World;

impl World {
    pub fn outsider(&mut self) {
        if self.rng.random_bool(0.3) {
            self.outsider_makes();
            return;
        }
        let Some((path, id)) = self.any_file() else {
            return;
        };
        let file = self.buffered(&path);
        match file.filter(|file| file.lock().is_dirty()) {
            Some(file) if file.lock().names.len() == 1 => self.outsider_meets_undrained(&path),
            // Under several names some of its versions show and some do not.
            Some(_) => {}
            None => self.outsider_changes(&path, id),
        }
    }

    fn outsider_makes(&mut self) {
        let path = self.any_path();
        if self.reference.nodes.contains_key(&path) {
            return;
        }
        if self.rng.random_bool(0.2) {
            fs::create_dir(self.on_pfs(&path)).expect("mkdir");
            self.reference.nodes.insert(path, reference::Node::Dir);
            return;
        }
        let content = self.content();
        self.outsider_puts(&path, &content);
        self.reference.add(&path, Facts::new(content, 0o644));
    }

    /// Makes a file, or gives the name to another.
    pub fn outsider_puts(&self, path: &str, content: &[u8]) {
        self.tell("outsider puts", path);
        let aside = self.top.path().join("(outsider)");
        fs::write(&aside, content).expect("write");
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o644)).expect("mode");
        fs::rename(&aside, self.on_pfs(path)).expect("rename");
    }

    /// The PFS has the newest version of it.
    fn outsider_changes(&mut self, path: &str, id: FileId) {
        self.tell("outsider changes", path);
        let below = self.on_pfs(path);
        match self.rng.random_range(0..4) {
            0 => {
                fs::remove_file(&below).expect("unlink");
                self.reference.nodes.remove(path);
            }
            1 => {
                let content = self.content();
                self.outsider_puts(path, &content);
                self.reference.add(path, Facts::new(content, 0o644));
            }
            2 => {
                fs::set_permissions(&below, fs::Permissions::from_mode(0o711)).expect("mode");
                self.reference.files[id].perm = 0o711;
            }
            _ => {
                let content = self.content();
                fs::write(&below, &content).expect("write");
                self.reference.files[id].content = content;
            }
        }
    }

    /// What is under the name of an undrained file does not show, and is never written over.
    fn outsider_meets_undrained(&mut self, path: &str) {
        self.tell("outsider meets", path);
        let below = self.on_pfs(path);
        let there = fs::symlink_metadata(&below).ok();
        match there {
            Some(there) if self.rng.random() && there.nlink() == 1 => {
                fs::remove_file(&below).expect("unlink");
                self.reference.hidden.remove(path);
            }
            _ => {
                let content = self.content();
                self.outsider_puts(path, &content);
                let facts = Facts::new(content, 0o644);
                self.reference.hidden.insert(path.to_string(), facts);
            }
        }
    }
}
