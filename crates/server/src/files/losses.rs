//! What may be lost of files: what a flush of the PFS has failed to put on stable storage, and
//! stores through mappings that the kernel could not write back. Nobody else remembers either: the
//! kernel calls such pages clean, and tells one fsync. Invariants:
//!
//! 1. A loss is of a file, not of a name: of a file of the burst buffer, or of one on the PFS by
//!    its inode and birth time. It follows the file to the PFS and back: a drain does not end it,
//!    nor does an eviction, for the PFS gets no more than is here.
//! 2. It is kept until the file is cut to nothing, or has lost its last name.
//! 3. People are told of it by a name of the file. Names change with the mount, and where somebody
//!    changes them on the PFS, at the next look. Where no name is known they are told the first
//!    path, unless the last name has gone from the PFS between two looks.
//! 4. Whether a tree has a file with a loss is found out by the files in it, not by those names.
//! 5. A name counts as seen when a look has found the file there and every change of names that
//!    has begun since tells of itself: those that began before there was anything to tell do not.

pub(crate) mod names;
pub(crate) mod stores;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_namespace::{File, Place};
use forebay_tiers::{PfsId, PfsStat};
use forebay_types::{Errno, ObjectId, limits};
use parking_lot::Mutex;

use crate::base::failure::Failure;

/// So many are kept that have no name: see [`State::bound`].
const NAMELESS_MAX: usize = 4096;

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

/// A name that a file may have.
#[derive(Clone, Debug)]
struct Known {
    place: Place,
    /// See invariant 5.
    seen: bool,
}

/// What may be lost of one file.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Of a file of the burst buffer they count once it has left.
    known: Vec<Known>,
    /// How many links it has on the PFS, as far as is known.
    nlink: u32,
    /// The path that people were told.
    told_as: Vec<u8>,
    errno: Errno,
    /// For a person.
    reason: String,
    /// An fsync is to be told of it: see `inplace`.
    owed: bool,
}

impl Loss {
    /// Of a file on the PFS, with one of its names.
    pub(super) fn new(place: Place, nlink: u32, errno: Errno, reason: String) -> Loss {
        let path = place.0.path_of(&place.1);
        Loss {
            known: vec![Known { place, seen: false }],
            nlink,
            ..Loss::told(path, errno, reason)
        }
    }

    /// Of a file of the burst buffer.
    pub(super) fn told(told_as: Vec<u8>, errno: Errno, reason: String) -> Loss {
        Loss {
            known: Vec::new(),
            nlink: 1,
            told_as,
            errno,
            reason,
            owed: false,
        }
    }

    /// Whether it is anywhere.
    pub(super) fn has_links(&self) -> bool {
        self.nlink > 0
    }

    fn failure(&self) -> Failure {
        Failure::new(self.errno, self.reason.clone())
    }

    /// A path to tell people; `None` where it has no name any more.
    fn path(&self) -> Option<Vec<u8>> {
        match self.known.first() {
            Some(Known { place, .. }) => Some(place.0.path_of(&place.1)),
            // It is somewhere.
            None if self.nlink > 0 => Some(self.told_as.clone()),
            None => None,
        }
    }

    fn has_place(&mut self, place: Place) {
        if !self.known.iter().any(|known| same(&known.place, &place)) {
            self.known.push(Known { place, seen: false });
        }
    }

    fn saw(&mut self, place: &Place, all_tell: bool) {
        let mut known = self.known.iter_mut();
        if let Some(known) = known.find(|known| same(&known.place, place)) {
            known.seen |= all_tell;
        }
    }

    fn lost_place(&mut self, gone: &Place) {
        self.known.retain(|known| !same(&known.place, gone));
    }

    /// Takes in what a look at its names has found; `None` for one that could not be looked at.
    /// `all_tell`: see invariant 5. Whether nothing has such a name any more.
    fn look(&mut self, id: OnPfs, found: &[(Place, Option<Found>)], all_tell: bool) -> bool {
        let had_names = self.nlink > 0;
        for (place, found) in found {
            let at = self.known.iter().position(|k| same(&k.place, place));
            let (Some(at), Some(found)) = (at, found) else {
                continue;
            };
            match found {
                Found::File(stat) if id.is(stat.id.into()) => {
                    self.known[at].seen |= all_tell;
                    self.nlink = stat.nlink;
                }
                _ => {
                    let was_seen = self.known.remove(at).seen;
                    // It may have the name that somebody has given it without a word here.
                    self.nlink = self.nlink.saturating_sub(u32::from(was_seen));
                }
            }
        }
        had_names && self.path().is_none()
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
    /// What the PFS has of it: since it has left the burst buffer, or while it is clean there.
    fn on_pfs(&self) -> Option<OnPfs> {
        let is_there = {
            let state = self.file.lock();
            state.is_evicted() || !state.is_unlinked() && !state.is_dirty()
        };
        is_there.then(|| OnPfs::published(&self.file)).flatten()
    }

    /// The same of one that has left.
    fn evicted(&self) -> Option<OnPfs> {
        let has_left = self.file.lock().is_evicted();
        has_left.then(|| OnPfs::published(&self.file)).flatten()
    }

    /// Its path; `None` where it has no name.
    fn path(&self) -> Option<Vec<u8>> {
        let (has_left, name) = {
            let state = self.file.lock();
            (state.is_evicted(), state.names.first().cloned())
        };
        match name {
            Some((dir, name)) => Some(dir.path_of(&name)),
            None if has_left => self.loss.path(),
            None => None,
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
            buffered.find(|of| of.on_pfs().is_some_and(|of| of.is(id)))
        };
        let loss = in_place.map(|(_, loss)| loss);
        loss.or_else(|| evicted().map(|of| &of.loss))
    }

    /// The same.
    fn of_pfs_mut(&mut self, id: OnPfs) -> Option<&mut Loss> {
        let in_place = self.on_pfs.iter_mut().find(|(of, _)| id.is((**of).into()));
        if let Some((_, loss)) = in_place {
            return Some(loss);
        }
        let mut buffered = self.buffered.values_mut();
        let evicted = buffered.find(|of| of.evicted().is_some_and(|of| of.is(id)));
        evicted.map(|of| &mut of.loss)
    }

    /// Of what is not in the burst buffer.
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
    fn keep_buffered(&mut self, file: &Arc<File>, mut loss: Loss) -> bool {
        let (is_gone, names) = {
            let state = file.lock();
            let is_nameless = state.is_unlinked() && state.unnamed.is_none();
            (is_nameless && !state.is_evicted(), state.names.clone())
        };
        if is_gone {
            return false;
        }
        if let Some(known) = self.buffered.get_mut(&file.object) {
            known.loss.owed |= loss.owed;
            return false;
        }
        names.into_iter().for_each(|name| loss.has_place(name));
        let file = file.clone();
        self.buffered.insert(file.object, Buffered { file, loss });
        true
    }

    /// Beyond a bound those without a name go: it takes a name that somebody gives on the PFS to
    /// meet them again.
    fn bound(&mut self) {
        let nameless = |loss: &Loss| loss.path().is_none();
        let mut many = self.on_pfs.values().filter(|loss| nameless(loss)).count();
        self.on_pfs.retain(|_, loss| {
            let goes = many > NAMELESS_MAX && nameless(loss);
            many -= usize::from(goes);
            !goes
        });
        let left = |of: &Buffered| of.evicted().is_some() && of.path().is_none();
        let mut many = self.buffered.values().filter(|of| left(of)).count();
        self.buffered.retain(|_, of| {
            let goes = many > NAMELESS_MAX && left(of);
            many -= usize::from(goes);
            !goes
        });
    }
}

/// All of them: no more than there are files that something was lost of.
#[derive(Default)]
pub struct Losses {
    state: Mutex<State>,
    /// Changes of names under way that do not tell: see invariant 5.
    silent: AtomicUsize,
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
                let names = std::mem::take(&mut loss.known);
                (loss.known, loss.owed) = (std::mem::take(&mut known.known), known.owed);
                names
                    .into_iter()
                    .for_each(|name| loss.has_place(name.place));
                *known = loss;
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

    /// A file of the PFS is in the burst buffer, as this one. `owed`: its next fsync is to be told.
    pub(super) fn came_back(&self, file: &Arc<File>, id: OnPfs, owed: bool) {
        let mut state = self.state.lock();
        if let Some(mut loss) = state.take_of_pfs(id) {
            loss.owed |= owed;
            state.keep_buffered(file, loss);
        }
    }

    /// A file of the burst buffer has lost its last name there, and has others on the PFS.
    fn stays_on_pfs(&self, file: &Arc<File>, id: PfsId, nlink: u32) {
        let mut state = self.state.lock();
        if let Some(Buffered { mut loss, .. }) = state.buffered.remove(&file.object) {
            loss.known.clear();
            loss.nlink = nlink;
            state.on_pfs.insert(id, loss);
        }
    }

    /// What the next fsync of a file of the burst buffer is to be told, once.
    pub(super) fn take_owed(&self, file: &File) -> Option<Errno> {
        let mut state = self.state.lock();
        let loss = &mut state.buffered.get_mut(&file.object)?.loss;
        std::mem::take(&mut loss.owed).then_some(loss.errno)
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
