//! The tree against the reference, and what must hold of every file.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_namespace::{Dir, File};
use forebay_types::FileKind;

use crate::reference::Node;
use crate::world::{World, cred};

impl World {
    pub fn compare(&self) {
        let mut found = BTreeSet::new();
        self.walk(&self.dir(""), "", &mut found);
        let expected: BTreeSet<String> = self.reference.nodes.keys().cloned().collect();
        assert_eq!(found, expected, "names");
        for (path, node) in &self.reference.nodes {
            let entry = self.find(path).expect("it was listed");
            let Node::File(id) = node else {
                assert_eq!(entry.attr.kind, FileKind::Directory, "{path}");
                continue;
            };
            let facts = &self.reference.files[*id];
            assert_eq!(entry.attr.kind, FileKind::Regular, "{path}");
            assert_eq!(entry.attr.size, facts.content.len() as u64, "{path}");
            assert_eq!(entry.attr.perm, facts.perm, "{path}");
            let links = self.reference.paths_of(*id).len() as u32;
            if entry.file.is_some() {
                // A name that an outsider has removed goes when somebody looks it up.
                assert!(entry.attr.nlink >= links, "{path}");
            }
            let content = match &entry.file {
                Some(file) => self.objects[&file.object].clone(),
                None => std::fs::read(self.on_pfs(path)).expect("read"),
            };
            assert!(content == facts.content, "{path}: its content");
            let ino = entry.attr.ino;
            let names = self.ns.list_xattr(ino, &cred()).expect("attributes");
            let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
            let xattrs = names.map(|name| {
                let value = self.ns.get_xattr(ino, name).expect("attribute");
                (name.to_vec(), value)
            });
            let user = xattrs.filter(|(name, _)| name.starts_with(b"user."));
            assert_eq!(
                user.collect::<std::collections::BTreeMap<_, _>>(),
                facts.xattrs
            );
            if let Some(file) = &entry.file {
                self.check(path, file);
            }
        }
    }

    fn walk(&self, dir: &Arc<Dir>, path: &str, found: &mut BTreeSet<String>) {
        for entry in self.ns.list(dir).expect("list") {
            let name = String::from_utf8(entry.name).expect("name");
            let path = match path {
                "" => name,
                above => format!("{above}/{name}"),
            };
            if entry.kind == FileKind::Directory {
                self.walk(&self.dir(&path), &path, found);
            }
            assert!(found.insert(path.clone()), "{path} is listed twice");
        }
    }

    /// The invariants that show from outside.
    fn check(&self, path: &str, file: &Arc<File>) {
        let names = file.lock().names.clone();
        for (dir, name) in &names {
            let child = dir.child(name);
            let is_it = child.is_some_and(|child| Arc::ptr_eq(&child, file));
            assert!(is_it, "{path}: the directory has the file under its name");
        }
        let state = file.lock();
        let residency = state.residency;
        assert!(!names.is_empty() && state.unnamed.is_none(), "{path}");
        if residency.clean {
            assert!(residency.published.is_some() && !residency.writing);
            drop(state);
            for (dir, name) in &names {
                let place = String::from_utf8(dir.path_of(name)).expect("path");
                let below = std::fs::read(self.on_pfs(&place)).expect("the PFS has it");
                assert!(
                    below == self.objects[&file.object],
                    "{place}: what is clean"
                );
            }
        }
    }
}
