//! Copies to the PFS, and what is dropped afterwards.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forebay_namespace::{Copy, Demotion, File, Placed};
use forebay_tiers::Sums;
use forebay_types::{SetAttr, SetTime};

use crate::world::{Pending, World};

impl Pending {
    pub fn copy(&self) -> Copy<'_> {
        match self.is_named {
            true => Copy::Named(&self.made),
            false => Copy::Unnamed(&self.made),
        }
    }
}

impl World {
    fn copy(&mut self, demotion: Demotion) -> Pending {
        let content = self.objects[&demotion.file.object].clone();
        let pfs = self.ns.pfs();
        let unnamed = pfs.create_unnamed(&demotion.handle, 0o600).expect("copy");
        let is_named = unnamed.is_none();
        let copy = unnamed.unwrap_or_else(|| {
            pfs.create_temporary(&demotion.handle, &demotion.temporary, 0o600)
                .expect("copy")
        });
        copy.write_all_at(&content, 0).expect("copied");
        for (name, value) in &demotion.xattrs {
            pfs.set_xattr_file(&copy, name, value, 0).expect("taken");
        }
        let set = SetAttr {
            perm: Some(demotion.meta.perm),
            mtime: Some(SetTime::At(demotion.meta.mtime)),
            ..SetAttr::default()
        };
        pfs.set_attr_file(&copy, &set).expect("set");
        let stat = pfs.stat_file(&copy).expect("stat");
        let noted = self.ns.note_temporaries(&[(&demotion, stat)]);
        assert!(noted.is_empty());
        Pending {
            demotion,
            made: copy,
            is_named,
            sums: Sums::whole(content.len() as u64, 0),
        }
    }

    /// Begins to copy a file. `false`: it is clean, or being copied.
    pub fn begin(&mut self, file: &Arc<File>) -> bool {
        self.tell("begin", &String::from_utf8_lossy(&file.path()));
        let dirty = file.lock().is_dirty() && !file.lock().demoting;
        let begun = self.ns.begin_demotion(file).expect("begun");
        assert_eq!(begun.is_some(), dirty, "what is dirty can be drained");
        if let Some(demotion) = begun {
            let pending = self.copy(demotion);
            self.pending = Some(pending);
        }
        dirty
    }

    fn end(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let demotion = &pending.demotion;
        self.tell("end", &String::from_utf8_lossy(&demotion.file.path()));
        let first = demotion.file.lock().names.first().cloned();
        let has_its_name = first
            .is_some_and(|(dir, name)| Arc::ptr_eq(&dir, &demotion.dir) && name == demotion.name);
        let was_current = self.ns.is_current(demotion) && has_its_name;
        let placed = self.ns.place(demotion, pending.copy()).expect("placed");
        match placed {
            Placed::Superseded => {
                assert!(!was_current, "nothing has come between");
                if pending.is_named {
                    let _ = self.ns.pfs().unlink(&demotion.handle, &demotion.temporary);
                }
                self.ns.abandon(demotion, None).expect("abandoned");
            }
            Placed::Published | Placed::Conflict { .. } => {
                let confirmed = self.ns.confirm(&[(demotion, &pending.sums)]);
                let confirmed = confirmed.into_iter().next().expect("one");
                assert!(confirmed.expect("recorded").current);
                assert!(!demotion.file.lock().is_dirty());
            }
        }
        self.ns.put_times_back(&demotion.dir, &demotion.handle);
        self.take_conflicts();
    }

    pub fn begin_drain(&mut self) {
        if self.pending.is_none()
            && let Some((path, _)) = self.any_file()
            && let Some(file) = self.buffered(&path)
        {
            self.begin(&file);
        }
    }

    pub fn end_drain(&mut self) {
        self.end();
    }

    pub fn drain_one(&mut self) {
        self.end();
        self.begin_drain();
        self.end();
    }

    /// Everything reaches the PFS, and then nothing is kept here but what it has.
    pub fn drain_all(&mut self) {
        self.end();
        let paths: Vec<_> = self.reference.nodes.keys().cloned().collect();
        for path in paths {
            if self.reference.file(&path).is_some()
                && let Some(file) = self.buffered(&path)
            {
                self.begin(&file);
                self.end();
            }
        }
        assert!(self.reference.hidden.is_empty(), "all have met");
    }

    pub fn evict(&mut self) {
        let Some((path, _)) = self.any_file() else {
            return;
        };
        let Some(file) = self.buffered(&path) else {
            return;
        };
        self.tell("evict", &path);
        let may_go = !file.lock().is_dirty();
        self.ns.sync().expect("sync");
        let gone = self.ns.evict(&file).expect("evict");
        assert_eq!(gone, may_go, "{path}: only what is clean is evicted");
        if gone {
            self.objects.remove(&file.object);
            assert!(self.buffered(&path).is_none());
        }
    }
}
