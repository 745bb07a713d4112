//! What may be lost of files: what a flush of the PFS has failed to put on stable storage, and
//! stores through mappings that the kernel could not write back. Nobody else remembers either: the
//! kernel calls such pages clean, and tells one fsync. Invariants:
//!
//! 1. A loss is of a file, not of a name: of a file of the burst buffer, or of one on the PFS by
//!    its inode and birth time. It follows the file to the PFS and back: a drain does not end it,
//!    nor does an eviction, for the PFS gets no more than is here.
//! 2. It is kept until the file is cut to nothing, or has lost its last name through the mount.
//! 3. People are told of it by a name of the file, for as long as it may have one. Names change
//!    with the mount, and where somebody changes them on the PFS, at the next look.
//! 4. Whether a tree has a file with a loss is found out by the files in it, not by those names.

pub(crate) mod names;
pub(crate) mod stores;

use std::collections::HashMap;
use std::sync::Arc;

use forebay_namespace::{File, Place};
use forebay_tiers::{PfsId, PfsStat};
use forebay_types::{Errno, ObjectId, limits};
use parking_lot::Mutex;

use crate::base::failure::Failure;

/// A file on the PFS. Of what the burst buffer has published the device is not on record.
#[derive(Clone, Copy, Debug)]
pub struct OnPfs {
    dev: Option<u64>,
    /// Inode number.
    pub ino: u64,
    /// Time of birth, nanoseconds since the epoch; 0 where unknown.
    pub btime_ns: u64,
}

impl OnPfs {
    /// What the burst buffer has published of a file.
    pub fn published(file: &File) -> Option<OnPfs> {
        let published = file.lock().residency.published;
        published.map(|published| OnPfs {
            dev: None,
            ino: published.ino,
            btime_ns: published.btime_ns,
        })
    }

    /// Whether it is this file.
    pub fn is(&self, other: OnPfs) -> bool {
        let same_dev = match (self.dev, other.dev) {
            (Some(dev), Some(other)) => dev == other,
            _ => true,
        };
        same_dev && (self.ino, self.btime_ns) == (other.ino, other.btime_ns)
    }
}

impl From<PfsId> for OnPfs {
    fn from(id: PfsId) -> OnPfs {
        OnPfs {
            dev: Some(id.dev),
            ino: id.ino,
            btime_ns: id.btime_ns,
        }
    }
}

/// What may be lost of one file.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Names of the file that are known. Of a file of the burst buffer they count once it has left.
    pub places: Vec<Place>,
    /// How many links it has on the PFS.
    pub nlink: u32,
    /// The path that people were told.
    pub told_as: Vec<u8>,
    /// What the failure was.
    pub errno: Errno,
    /// For a person.
    pub reason: String,
}

impl Loss {
    fn failure(&self) -> Failure {
        Failure::new(self.errno, self.reason.clone())
    }

    /// A path to tell people; `None` where it has no name any more.
    fn path(&self) -> Option<Vec<u8>> {
        match self.places.first() {
            Some((dir, name)) => Some(dir.path_of(name)),
            // It is somewhere.
            None if self.nlink > 0 => Some(self.told_as.clone()),
            None => None,
        }
    }

    fn has_place(&mut self, place: Place) {
        if !self.places.iter().any(|known| same(known, &place)) {
            self.places.push(place);
        }
    }

    /// Takes in what a look at its names has found; `None` for one that could not be looked at.
    /// Whether nothing has such a name any more.
    fn look(&mut self, id: OnPfs, found: &[(Place, Option<Found>)]) -> bool {
        let mut nlink = None;
        for (place, found) in found {
            match found {
                None => {}
                Some(Found::File(stat)) if id.is(stat.id.into()) => nlink = Some(stat.nlink),
                Some(_) => {
                    let before = self.places.len();
                    self.places.retain(|known| !same(known, place));
                    let gone = (before - self.places.len()) as u32;
                    self.nlink = self.nlink.saturating_sub(gone);
                }
            }
        }
        self.nlink = nlink.unwrap_or(self.nlink);
        self.path().is_none()
    }
}

/// What has a name on the PFS.
pub enum Found {
    /// A file.
    File(PfsStat),
    /// Nothing.
    Nothing,
}

fn same(a: &Place, b: &Place) -> bool {
    Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1
}

/// One of a file of the burst buffer, or of one that was there.
struct Buffered {
    file: Arc<File>,
    loss: Loss,
}

impl Buffered {
    /// What the PFS has of it, since it has left the burst buffer.
    fn evicted(&self) -> Option<OnPfs> {
        let has_left = {
            let state = self.file.lock();
            state.is_unlinked() && !state.is_dirty()
        };
        has_left.then(|| OnPfs::published(&self.file)).flatten()
    }

    /// Its path; `None` where it has no name.
    fn path(&self) -> Option<Vec<u8>> {
        let is_nameless = self.file.lock().is_unlinked();
        match is_nameless {
            true => self.evicted().and_then(|_| self.loss.path()),
            false => Some(self.file.path()),
        }
    }
}

#[derive(Default)]
struct State {
    on_pfs: HashMap<PfsId, Loss>,
    buffered: HashMap<ObjectId, Buffered>,
}

impl State {
    fn len(&self) -> usize {
        self.on_pfs.len() + self.buffered.len()
    }

    fn of_pfs(&self, id: OnPfs) -> Option<&Loss> {
        let in_place = self.on_pfs.iter().find(|(of, _)| id.is((**of).into()));
        let evicted = || {
            let mut buffered = self.buffered.values();
            buffered.find(|of| of.evicted().is_some_and(|of| of.is(id)))
        };
        let loss = in_place.map(|(_, loss)| loss);
        loss.or_else(|| evicted().map(|of| &of.loss))
    }

    fn of_pfs_mut(&mut self, id: OnPfs) -> Option<&mut Loss> {
        let in_place = self.on_pfs.iter_mut().find(|(of, _)| id.is((**of).into()));
        if let Some((_, loss)) = in_place {
            return Some(loss);
        }
        let mut buffered = self.buffered.values_mut();
        let evicted = buffered.find(|of| of.evicted().is_some_and(|of| of.is(id)));
        evicted.map(|of| &mut of.loss)
    }

    fn take_of_pfs(&mut self, id: OnPfs) -> Option<Loss> {
        let in_place = self.on_pfs.keys().find(|of| id.is((**of).into()));
        if let Some(of) = in_place.copied() {
            return self.on_pfs.remove(&of);
        }
        let mut buffered = self.buffered.iter();
        let evicted = buffered.find(|(_, of)| of.evicted().is_some_and(|of| of.is(id)));
        let object = evicted.map(|(object, _)| *object)?;
        self.buffered.remove(&object).map(|of| of.loss)
    }

    /// Keeps one, unless the file has lost its last name meanwhile: who took that has forgotten, or
    /// comes to forget, what there was. Whether it is news.
    fn keep_buffered(&mut self, file: &Arc<File>, loss: Loss) -> bool {
        if self.buffered.contains_key(&file.object) {
            return false;
        }
        let is_gone = {
            let state = file.lock();
            state.is_unlinked() && state.unnamed.is_none()
        };
        if is_gone {
            return false;
        }
        let file = file.clone();
        self.buffered.insert(file.object, Buffered { file, loss });
        true
    }
}

/// All of them: no more than there are files that something was lost of.
#[derive(Default)]
pub struct Losses {
    state: Mutex<State>,
}

impl Losses {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.state.lock().len() == 0
    }

    /// What may be lost of a file of the burst buffer.
    pub fn of_file(&self, file: &Arc<File>) -> Option<Failure> {
        let state = self.state.lock();
        let loss = state.buffered.get(&file.object).map(|of| &of.loss);
        let loss = loss.or_else(|| state.of_pfs(OnPfs::published(file)?));
        loss.map(Loss::failure)
    }

    /// What may be lost of a file that is only on the PFS.
    pub fn of_pfs(&self, id: OnPfs) -> Option<Failure> {
        self.state.lock().of_pfs(id).map(Loss::failure)
    }

    /// Keeps what is lost of a file on the PFS; a later loss replaces an earlier one. Whether
    /// nothing was kept of the file before.
    pub(super) fn keep(&self, id: PfsId, mut loss: Loss) -> bool {
        let mut state = self.state.lock();
        if state.len() >= limits::UNFLUSHED_NAMED_MAX {
            loss.told_as = Vec::new();
        }
        match state.on_pfs.get_mut(&id) {
            Some(known) => {
                let places = std::mem::take(&mut known.places);
                *known = Loss { places, ..loss };
                false
            }
            None => {
                state.on_pfs.insert(id, loss);
                true
            }
        }
    }

    /// The same of a file of the burst buffer. What was lost first is told.
    pub(super) fn keep_buffered(&self, file: &Arc<File>, loss: Loss) -> bool {
        self.state.lock().keep_buffered(file, loss)
    }

    /// Nobody misses what was lost of this file. Answers with what was told of it.
    pub(super) fn forget(&self, file: &Arc<File>) -> Option<Loss> {
        let mut state = self.state.lock();
        let of_file = state.buffered.remove(&file.object).map(|of| of.loss);
        let of_pfs = match state.len() {
            0 => None,
            _ => OnPfs::published(file).and_then(|id| state.take_of_pfs(id)),
        };
        of_file.or(of_pfs)
    }

    /// The same of one that is only on the PFS.
    pub(super) fn forget_pfs(&self, id: OnPfs) -> Option<Loss> {
        self.state.lock().take_of_pfs(id)
    }

    /// A file of the PFS is in the burst buffer, as this one.
    pub(super) fn came_back(&self, file: &Arc<File>, id: OnPfs) {
        let mut state = self.state.lock();
        if let Some(loss) = state.take_of_pfs(id) {
            state.keep_buffered(file, loss);
        }
    }

    /// Paths of all that have one: no longer than people can read beyond
    /// [`limits::UNFLUSHED_NAMED_MAX`] of them.
    pub fn paths(&self) -> Vec<Vec<u8>> {
        let state = self.state.lock();
        let on_pfs = state.on_pfs.values().filter_map(Loss::path);
        let buffered = state.buffered.values().filter_map(Buffered::path);
        let mut paths: Vec<_> = on_pfs.chain(buffered).collect();
        paths.sort_unstable();
        let beyond = paths.iter_mut().skip(limits::UNFLUSHED_NAMED_MAX);
        beyond.for_each(Vec::clear);
        paths
    }
}
