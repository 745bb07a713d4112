//! readdir: the PFS's entries and the burst buffer's own, each name once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_types::{Dirent, FileKind, Ino};

use crate::error::on_pfs;
use crate::tree::{Dir, Name};
use crate::{File, Namespace, NsError};

/// One entry of a directory, and its file if that is in the burst buffer.
pub struct Listed {
    /// Name.
    pub name: Vec<u8>,
    /// Kind.
    pub kind: FileKind,
    /// Id.
    pub ino: Ino,
    /// The burst-buffer file.
    pub file: Option<Arc<File>>,
}

impl Namespace {
    /// Whether it is a directory that can be read.
    pub fn check_dir(&self, ino: Ino) -> Result<(), NsError> {
        let dir = self.dir(ino)?;
        self.open_dir(&dir).map(|_| ())
    }

    /// All entries of a directory, `.` and `..` included, positions counted from 1.
    pub fn read_dir(&self, ino: Ino) -> Result<Vec<Dirent>, NsError> {
        let dir = self.dir(ino)?;
        let parent = dir.place().map_or(ino, |(parent, _)| parent.ino);
        let mut entries = vec![
            Dirent {
                ino,
                kind: FileKind::Directory,
                name: b".".to_vec(),
                next: 1,
            },
            Dirent {
                ino: parent,
                kind: FileKind::Directory,
                name: b"..".to_vec(),
                next: 2,
            },
        ];
        for listed in self.list(&dir)? {
            entries.push(Dirent {
                ino: listed.ino,
                kind: listed.kind,
                name: listed.name,
                next: entries.len() as u64 + 1,
            });
        }
        Ok(entries)
    }

    /// All entries but `.` and `..`, in no order.
    pub fn list(&self, dir: &Arc<Dir>) -> Result<Vec<Listed>, NsError> {
        let mut listed: Vec<Listed> = Vec::new();
        let mut seen: HashSet<Name> = HashSet::new();
        // The buffer first: a file that is published while the PFS is read is then seen, once.
        let mut dirty: HashSet<Name> = HashSet::new();
        let mut copied: HashMap<Name, u64> = HashMap::new();
        for (name, file) in dir.lock().iter() {
            seen.insert(name.clone());
            let residency = file.lock().residency;
            match residency.published {
                Some(published) if residency.clean => {
                    copied.insert(name.clone(), published.ino);
                }
                _ => {
                    dirty.insert(name.clone());
                }
            }
            listed.push(Listed {
                name: name.to_vec(),
                kind: FileKind::Regular,
                ino: file.ino,
                file: Some(file.clone()),
            });
        }
        for (name, child) in dir.unpublished_names() {
            listed.push(Listed {
                name: name.to_vec(),
                kind: FileKind::Directory,
                ino: child.ino,
                file: None,
            });
            seen.insert(name);
        }
        let handle = self.open_dir(dir)?;
        let mut there: HashSet<Name> = HashSet::new();
        self.pfs
            .read_dir(&handle, &mut |entry| {
                // A clean copy of something that was replaced there is on its way out, too.
                let replaced = copied
                    .get(&*entry.name)
                    .is_some_and(|ino| *ino != entry.ino || entry.kind != FileKind::Regular);
                if seen.contains(&*entry.name) && !replaced {
                    there.insert(entry.name.into());
                } else {
                    listed.push(Listed {
                        name: entry.name,
                        kind: entry.kind,
                        ino: Ino(entry.ino),
                        file: None,
                    });
                }
            })
            .map_err(on_pfs("readdir"))?;
        // A clean copy whose original an outsider removed is on its way out. What was dirty may
        // have reached the PFS after that was read.
        listed.retain(|entry| {
            entry.file.is_none() || there.contains(&*entry.name) || dirty.contains(&*entry.name)
        });
        Ok(listed)
    }
}
