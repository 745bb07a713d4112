//! Operations on open files: create, open, read, write, truncate, fallocate, lseek, fsync, close.

use std::os::unix::fs::FileExt;

use forebay_client::Progress;
use forebay_types::{Errno, OpenFlags, SetAttr};
use forebay_wire::{SeekWhat, SpaceChange, WriteHow};
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};

use crate::reference::{Body, Id, Place};
use crate::world::{FILE_BYTES_MAX, HANDLES_MAX, TOTAL_BYTES_MAX, World};

impl World {
    fn make_room(&mut self) {
        if self.opens.len() >= HANDLES_MAX {
            let at = self.rng.random_range(0..self.opens.len());
            self.close(at);
        }
    }

    pub fn create(&mut self) {
        self.make_room();
        let place = self.fresh_place();
        let perm = self.any_perm(false);
        let flags = OpenFlags((libc::O_RDWR | libc::O_EXCL) as u32);
        self.note(format!("create {} {perm:o}", place.path().escape_ascii()));
        let (dir, _) = self.look(&place);
        let cred = self.cred;
        let client = &self.server().client;
        let got = client.create(dir, &place.name, perm, flags, cred);
        let body = Body::File(Vec::new());
        let want = self.tree.add(place.dir, &place.name, body, perm);
        match (got, want) {
            (Ok((attr, open)), Ok(id)) => {
                self.opened(id, attr.ino, flags, open);
                self.compare_attr(&place, id, &attr);
                let at = self.opens.len() - 1;
                for _ in 0..self.rng.random_range(0..4) {
                    self.write_at(at);
                }
                if self.rng.random_bool(0.7) {
                    self.close(at);
                }
            }
            (Err(got), Err(want)) => assert_eq!(got, want, "create"),
            (got, want) => panic!("create: {:?}, expected {want:?}", got.map(|(attr, _)| attr)),
        }
    }

    /// Makes a file without a name, and gives it one most of the time.
    pub fn unnamed(&mut self) {
        self.make_room();
        let place = self.any_place();
        let perm = self.any_perm(false);
        let flags = OpenFlags(libc::O_RDWR as u32);
        self.note(format!("unnamed {} {perm:o}", place.path().escape_ascii()));
        let dir = self.walk(&place.dir_path);
        let client = self.server().client.clone();
        let got = client.create_unnamed(dir, perm, flags, self.cred);
        let (attr, open) = got.unwrap_or_else(|e| panic!("unnamed: {e:?}"));
        assert_eq!((attr.nlink, attr.perm, attr.size), (0, perm, 0));
        let id = self.tree.add_unnamed(Body::File(Vec::new()), perm);
        let handle = open.opened.handle;
        self.opened(id, attr.ino, flags, open);
        let position = |world: &World| world.opens.iter().position(|open| open.handle == handle);
        for _ in 0..self.rng.random_range(0..4) {
            // It may be closed by that.
            position(self).into_iter().for_each(|at| self.use_at(at));
        }
        if position(self).is_some() && self.rng.random_bool(0.7) {
            self.note(format!("first name {}", place.path().escape_ascii()));
            let got = client.link(attr.ino, dir, &place.name, self.cred);
            let want = self.tree.link(id, place.dir, &place.name);
            let links = got.as_ref().map(|attr| attr.nlink).map_err(|e| *e);
            assert_eq!(links, want.map(|()| 1), "first name");
            self.held.extend(got.map(|attr| (attr.ino, 1)));
        }
        if let Some(at) = position(self)
            && self.rng.random_bool(0.6)
        {
            self.close(at);
        }
    }

    /// Opens a file and leaves it open; its position among the open files.
    pub fn open(&mut self, place: &Place, id: Id, mode: i32) -> usize {
        self.make_room();
        let (_, found) = self.look(place);
        let ino = found.expect("looked up").ino;
        let flags = OpenFlags(mode as u32);
        let got = self.server().client.open(ino, flags, self.cred);
        let open = got.unwrap_or_else(|e| panic!("open: {e:?}"));
        // The kernel keeps the inode while it is open.
        let at = self.held.iter().rposition(|(held, _)| *held == ino);
        self.held.swap_remove(at.expect("a reference"));
        self.opened(id, ino, flags, open);
        if self.is_written_unseen(id) {
            self.tree.get_mut(id).mtime = None;
        }
        self.opens.len() - 1
    }

    /// Then its time of modification is anybody's guess: where its tier has no room for more, the
    /// kernel is made to wait, which leaves its mark on that. A client that writes by requests
    /// counts as well, beside one whose kernel has the file.
    pub fn is_written_unseen(&self, id: Id) -> bool {
        let mut of_it = self.opens.iter().filter(|open| open.id == id);
        of_it.clone().any(|open| open.unseen.is_some()) && of_it.any(|open| open.flags.writes())
    }

    pub fn open_any(&mut self) {
        let Some((place, id)) = self.any_file() else {
            return;
        };
        let modes = [libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY];
        let mode = *modes.choose(&mut self.rng).expect("modes");
        self.note(format!("open {} {mode}", place.path().escape_ascii()));
        let at = self.open(&place, id, mode);
        let handle = self.opens[at].handle;
        if self.rng.random_bool(0.5) {
            self.use_at(at);
        }
        let still = self.opens.iter().position(|open| open.handle == handle);
        if let Some(at) = still
            && self.rng.random_bool(0.5)
        {
            self.close(at);
        }
    }

    pub fn use_any(&mut self) {
        if self.opens.is_empty() {
            return self.open_any();
        }
        let at = self.rng.random_range(0..self.opens.len());
        self.use_at(at);
    }

    fn use_at(&mut self, at: usize) {
        let writes = self.opens[at].flags.writes();
        match self.rng.random_range(0..14) {
            0..=3 if writes => self.write_at(at),
            4 if writes => self.truncate_at(at),
            5 if writes => self.allocate_at(at),
            6 => self.seek_at(at),
            7 => self.fsync_at(at),
            8 => self.stat_at(at),
            9 => {
                self.note(format!("close {}", self.opens[at].handle.0));
                self.close(at);
            }
            _ => self.read_at(at),
        }
    }

    pub fn write_at(&mut self, at: usize) {
        let size = self.tree.get(self.opens[at].id).data().len();
        let hole = self.rng.random_range(0..100_000);
        let offset = match self.rng.random_range(0..4) {
            0 => size,
            1 => size + hole,
            _ => self.rng.random_range(0..size + 1),
        };
        let len = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(1..5000),
            1 => self.rng.random_range(1..64 << 10),
            _ => self.rng.random_range(1..700 << 10),
        };
        let room = TOTAL_BYTES_MAX.saturating_sub(self.tree.total_bytes());
        let grown = (offset + len).saturating_sub(size);
        if offset + len > FILE_BYTES_MAX || grown > room {
            return self.truncate_at(at);
        }
        let mut data = vec![0; len];
        self.rng.fill_bytes(&mut data);
        let append = offset == size && self.rng.random_bool(0.5);
        let open = &self.opens[at];
        let (handle, id) = (open.handle, open.id);
        let what = if append { "append" } else { "write" };
        self.note(format!("{what} {} {offset}+{len}", handle.0));
        let open = &self.opens[at];
        match &open.unseen {
            Some((file, _)) => file.write_all_at(&data, offset as u64).expect("pwrite"),
            None => {
                let client = self.server().client.clone();
                let how = |may_wait| WriteHow {
                    append,
                    may_wait,
                    ..WriteHow::default()
                };
                // Where an append goes is not asked of who appends.
                let offset = if append { 0 } else { offset as u64 };
                let done = match client.write(handle, offset, &data, how(false), 0) {
                    Ok(Progress::WouldWait) => client.write(handle, offset, &data, how(true), 0),
                    other => other,
                };
                assert_eq!(done, Ok(Progress::Done(len)), "write");
            }
        }
        self.tree.write(id, offset, &data);
    }

    fn read_at(&mut self, at: usize) {
        let (handle, id) = (self.opens[at].handle, self.opens[at].id);
        let size = self.tree.get(id).data().len();
        let offset = self.rng.random_range(0..size + 2);
        let len = self.rng.random_range(1..200_000);
        self.note(format!("read {} {offset}+{len}", handle.0));
        let mut got = vec![0; len];
        let open = &self.opens[at];
        let done = match &open.unseen {
            _ if !open.flags.reads() => {
                let done = self
                    .server()
                    .client
                    .read(handle, offset as u64, &mut got, 0);
                assert_eq!(done, Err(Errno::EBADF), "read of a file open for writing");
                return;
            }
            Some((file, _)) => file.read_at(&mut got, offset as u64).expect("pread"),
            None => {
                let done = self
                    .server()
                    .client
                    .read(handle, offset as u64, &mut got, 0);
                done.unwrap_or_else(|e| panic!("read: {e:?}"))
            }
        };
        let want = &self.tree.get(id).data()[offset.min(size)..size.min(offset + len)];
        assert!(&got[..done] == want, "read of {done} bytes at {offset}");
    }

    fn truncate_at(&mut self, at: usize) {
        let (handle, id, ino) = (self.opens[at].handle, self.opens[at].id, self.opens[at].ino);
        let size = self.tree.get(id).data().len();
        let new = self.any_size(size);
        self.note(format!("ftruncate {} {size} -> {new}", handle.0));
        let set = SetAttr {
            size: Some(new as u64),
            ..SetAttr::default()
        };
        let cred = self.cred;
        let client = &self.server().client;
        let got = client.setattr(ino, Some(handle), set, cred);
        let attr = got.unwrap_or_else(|e| panic!("ftruncate: {e:?}"));
        assert_eq!(attr.size, new as u64, "ftruncate");
        self.tree.truncate(id, new);
    }

    fn any_size(&mut self, size: usize) -> usize {
        let room = TOTAL_BYTES_MAX.saturating_sub(self.tree.total_bytes());
        match self.rng.random_range(0..4) {
            0 => 0,
            1 => (size + self.rng.random_range(0..100_000)).min(size + room),
            _ => self.rng.random_range(0..size + 1),
        }
        .min(FILE_BYTES_MAX)
    }

    pub fn truncate(&mut self) {
        let Some((place, id)) = self.any_file() else {
            return;
        };
        let size = self.tree.get(id).data().len();
        let new = self.any_size(size);
        let path = place.path();
        self.note(format!("truncate {} {size} -> {new}", path.escape_ascii()));
        let (_, found) = self.look(&place);
        let ino = found.expect("looked up").ino;
        let set = SetAttr {
            size: Some(new as u64),
            ..SetAttr::default()
        };
        let cred = self.cred;
        let got = self.server().client.setattr(ino, None, set, cred);
        let attr = got.unwrap_or_else(|e| panic!("truncate: {e:?}"));
        self.tree.truncate(id, new);
        self.compare_attr(&place, id, &attr);
    }

    fn allocate_at(&mut self, at: usize) {
        let (handle, id) = (self.opens[at].handle, self.opens[at].id);
        let size = self.tree.get(id).data().len();
        let offset = self.rng.random_range(0..size + 10_000);
        let len = self.rng.random_range(1..300_000);
        let (change, zero, extend) = *[
            (SpaceChange::Allocate, false, true),
            (SpaceChange::Reserve, false, false),
            (SpaceChange::PunchHole, true, false),
            (SpaceChange::PunchHole, true, false),
            (SpaceChange::ZeroRange, true, true),
            (SpaceChange::ZeroRangeKeepSize, true, false),
        ]
        .choose(&mut self.rng)
        .expect("changes");
        let room = TOTAL_BYTES_MAX.saturating_sub(self.tree.total_bytes());
        if offset + len > FILE_BYTES_MAX || len > room {
            return;
        }
        self.note(format!("fallocate {} {change:?} {offset}+{len}", handle.0));
        let client = self.server().client.clone();
        let (from, bytes) = (offset as u64, len as u64);
        match client.change_space(handle, change, from, bytes, false, true) {
            Ok(Progress::Done(())) => self.tree.allocate(id, offset, len, zero, extend),
            // Not every file system below can do all of this.
            Err(Errno::EOPNOTSUPP) => self.tree.get_mut(id).mtime = None,
            other => panic!("fallocate: {other:?}"),
        }
    }

    fn seek_at(&mut self, at: usize) {
        let (handle, id) = (self.opens[at].handle, self.opens[at].id);
        let size = self.tree.get(id).data().len();
        let from = self.rng.random_range(0..size + 2);
        self.note(format!("lseek {} {from}", handle.0));
        let client = self.server().client.clone();
        let data = self.tree.get(id).data();
        let zeros = |range: &[u8]| range.iter().all(|&b| b == 0);
        match client.seek(handle, from as u64, SeekWhat::Data) {
            Ok(found) => {
                let found = found as usize;
                assert!(from <= found && found < size, "SEEK_DATA: {found}");
                assert!(zeros(&data[from..found]), "data before {found}");
            }
            Err(Errno::ENXIO) => assert!(zeros(&data[from.min(size)..]), "SEEK_DATA"),
            Err(other) => panic!("SEEK_DATA: {other:?}"),
        }
        match client.seek(handle, from as u64, SeekWhat::Hole) {
            Ok(found) => {
                let found = found as usize;
                assert!(from < size && from <= found && found <= size, "{found}");
                assert!(found == size || data[found] == 0, "no hole at {found}");
            }
            Err(Errno::ENXIO) => assert!(from >= size, "SEEK_HOLE"),
            Err(other) => panic!("SEEK_HOLE: {other:?}"),
        }
    }

    fn fsync_at(&mut self, at: usize) {
        let handle = self.opens[at].handle;
        let data_only = self.rng.random();
        self.note(format!("fsync {}", handle.0));
        let got = self.server().client.fsync(handle, data_only);
        assert_eq!(got, Ok(()), "fsync");
    }

    fn stat_at(&mut self, at: usize) {
        let (handle, id, ino) = (self.opens[at].handle, self.opens[at].id, self.opens[at].ino);
        self.note(format!("fstat {}", handle.0));
        let got = self.server().client.getattr(ino, Some(handle));
        let attr = got.unwrap_or_else(|e| panic!("fstat: {e:?}"));
        let inode = self.tree.get(id);
        assert_eq!(attr.size, inode.data().len() as u64, "fstat: size");
        assert_eq!(attr.nlink, inode.nlink, "fstat: links");
        assert_eq!(attr.perm, inode.perm, "fstat: mode");
    }
}
