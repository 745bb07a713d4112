//! Names of files that something may be lost of, or is not flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_namespace::{Dir, File, Name, Node, Place};
use forebay_tiers::{PfsId, PfsStat};
use forebay_types::{Errno, Ino, RenameMode};
use forebay_wire::Link;

use super::{Buffered, Found, Loss, Losses, OnPfs};
use crate::base::failure::Failure;
use crate::files::Files;

/// So many are looked at in one go.
const LOOK_AT_MAX: usize = 256;

/// What of the PFS had a name before that was changed through the mount; nothing where that does
/// not matter.
pub struct Had<'a> {
    stat: Option<PfsStat>,
    /// There was nothing to tell when it began, and there may be by its end.
    silent: Option<&'a AtomicUsize>,
}

impl Had<'_> {
    /// Where there was no name.
    pub(crate) fn nothing() -> Had<'static> {
        Had {
            stat: None,
            silent: None,
        }
    }
}

impl Drop for Had<'_> {
    fn drop(&mut self) {
        if let Some(silent) = self.silent {
            silent.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Losses {
    /// Notes the names of a file of the burst buffer, by which people are told once it has left.
    pub fn note_names(&self, file: &Arc<File>) {
        let mut state = self.state.lock();
        if let Some(of) = state.buffered.get_mut(&file.object) {
            of.note_names();
        }
    }

    /// Whether every change of names that is under way tells of itself: see invariant 5.
    pub fn all_tell(&self) -> bool {
        self.silent.load(Ordering::SeqCst) == 0
    }

    /// A file on the PFS has this name; whoever has come by it says so. `all_tell`: as it was
    /// before the look.
    pub fn met(&self, id: PfsId, place: Place, all_tell: bool) {
        if let Some(loss) = self.state.lock().of_pfs_mut(id.into()) {
            loss.has_place(place.clone());
            loss.saw(&place, all_tell);
        }
    }

    /// A file on the PFS has a further name.
    fn linked(&self, id: PfsId, to: Place) {
        if let Some(loss) = self.state.lock().of_pfs_mut(id.into()) {
            loss.nlink += 1;
            loss.has_place(to);
        }
    }

    /// A file on the PFS has this name instead of the other.
    fn moved(&self, id: PfsId, from: &Place, to: Place) {
        if let Some(loss) = self.state.lock().of_pfs_mut(id.into()) {
            loss.lost_place(from);
            loss.has_place(to);
        }
    }

    /// A file on the PFS has lost one of its names, and had so many. Whether another one is known.
    fn lost_place(&self, id: PfsId, gone: &Place, nlink: u32) -> bool {
        let mut state = self.state.lock();
        let Some(loss) = state.of_pfs_mut(id.into()) else {
            return false;
        };
        loss.lost_place(gone);
        loss.nlink = nlink.saturating_sub(1).max(loss.known.len() as u32);
        !loss.known.is_empty()
    }

    /// Takes in what a look at names of a file has found. Answers with what people were told, where
    /// the file has no name any more.
    fn look(&self, id: OnPfs, found: &[(Place, Option<Found>)], all_tell: bool) -> Option<Loss> {
        let mut state = self.state.lock();
        let loss = state.of_pfs_mut(id)?;
        let gone = loss.look(id, found, all_tell).then(|| loss.clone());
        if gone.is_some() && id.btime_ns == 0 {
            // Without a time of birth the next file with this number would be taken for it.
            state.take_of_pfs(id);
        }
        gone
    }

    /// The files on the PFS that people are told of, with their names: as many as one look takes,
    /// from one that is later than in the last.
    fn told_of(&self, from: usize) -> Vec<(OnPfs, Vec<Place>)> {
        let mut state = self.state.lock();
        state.buffered.values_mut().for_each(Buffered::note_names);
        state.bound();
        let in_place = state.on_pfs.iter();
        let in_place = in_place.map(|(id, loss)| (OnPfs::from(*id), loss));
        let buffered = state.buffered.values();
        let evicted = buffered.filter_map(|of| Some((of.evicted()?, &of.loss)));
        let named = in_place
            .chain(evicted)
            .filter(|(_, loss)| !loss.known.is_empty());
        let places = |loss: &Loss| loss.known.iter().map(|known| known.place.clone()).collect();
        let all: Vec<_> = named.map(|(id, loss)| (id, places(loss))).collect();
        let from = from % all.len().max(1);
        let later = all.iter().skip(from).chain(all.iter().take(from));
        later.take(LOOK_AT_MAX).cloned().collect()
    }
}

impl Buffered {
    /// Of one that has left, or has none yet, nothing is to be noted.
    fn note_names(&mut self) {
        let names = self.file.lock().names.clone();
        if names.is_empty() {
            return;
        }
        self.loss.known.clear();
        self.loss.nlink = names.len() as u32;
        names.into_iter().for_each(|name| self.loss.has_place(name));
    }
}

impl Files {
    /// What may be lost of files.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// To be asked before a name is taken away or given to another file, and kept until that is
    /// told.
    pub fn had(&self, link: &Link) -> Had<'_> {
        let silent = &self.losses.silent;
        // First: what comes to be told from here on is told of this change, or knows of it.
        silent.fetch_add(1, Ordering::SeqCst);
        let mut had = Had {
            stat: None,
            silent: Some(silent),
        };
        if !self.in_place.is_empty() || !self.losses.is_empty() {
            drop(std::mem::replace(
                &mut had,
                Had {
                    stat: None,
                    silent: None,
                },
            ));
            had.stat = self.place(link).and_then(|place| self.file_at(&place).ok());
        }
        had
    }

    /// A name was taken away, or a rename has given it to another file. It may be that of a file of
    /// the burst buffer, which replaces what is on the PFS when it is drained: until then nothing
    /// is gone there. NFS and FUSE keep a file that is open under another name, and its directory
    /// could not be removed while its descriptor is kept.
    pub fn name_is_gone(&self, link: &Link, had: &Had<'_>) {
        let (Some(had), Some(place)) = (had.stat, self.place(link)) else {
            return;
        };
        match self.file_at(&place) {
            Ok(now) if now.id == had.id => return,
            Err(errno) if errno != Errno::ENOENT => return,
            _ => {}
        }
        let has_others = self.losses.lost_place(had.id, &place, had.nlink)
            || had.nlink > 1
            // Somebody may have given it another one since.
            || self.in_place.file(had.id).is_some_and(|file| {
                (self.ns.pfs().stat_file(file.file())).is_ok_and(|stat| stat.nlink > 0)
            });
        if !has_others {
            self.in_place.forget(had.id);
            self.wanted_no_more(self.losses.forget_pfs(had.id.into()));
            self.forget_unopened(had.id);
        }
    }

    /// A rename has given `to` what had the name `from`, and in an exchange the other way round.
    pub fn was_renamed(
        &self,
        (from, source): (&Link, &Had<'_>),
        (to, target): (&Link, &Had<'_>),
        mode: RenameMode,
    ) {
        let moves = match mode {
            RenameMode::Exchange => vec![(from, source, to), (to, target, from)],
            RenameMode::Replace | RenameMode::NoReplace => vec![(from, source, to)],
        };
        for (from, had, to) in moves {
            let Some(place) = self.place(to) else {
                continue;
            };
            if let Some(file) = place.0.child(&place.1) {
                self.losses.note_names(&file);
            }
            if let (Some(had), Some(from)) = (had.stat, self.place(from)) {
                self.in_place.moved(had.id, &place);
                self.losses.moved(had.id, &from, place);
            }
        }
        if mode != RenameMode::Exchange {
            self.name_is_gone(to, target);
        }
    }

    /// A file has a further name.
    pub(crate) fn was_linked(&self, ino: Ino, to: &Link) {
        if self.losses.is_empty() {
            return;
        }
        match (self.ns.node(ino), self.place(to)) {
            (Ok(Node::File(file)), _) => self.losses.note_names(&file),
            (Ok(Node::Plain(node)), Some(to)) => self.losses.linked(node.id, to),
            _ => {}
        }
    }

    /// A file of the burst buffer has lost a name, to an unlink or a rename.
    pub fn lost_name(&self, file: &Arc<File>, had: &Had<'_>) {
        if self.losses.is_empty() {
            return;
        }
        let (is_unlinked, is_evicted) = {
            let state = file.lock();
            (state.is_unlinked(), state.is_evicted())
        };
        let published = OnPfs::published(file);
        let others = had.stat.filter(|stat| {
            stat.nlink > 1 && published.is_some_and(|published| published.is(stat.id.into()))
        });
        match others {
            // One that has left is on the PFS, and so are its names.
            _ if is_evicted => {}
            _ if !is_unlinked => self.losses.note_names(file),
            Some(stat) => self.losses.stays_on_pfs(file, stat.id, stat.nlink - 1),
            None => self.wanted_no_more(self.losses.forget(file)),
        }
    }

    /// Looks whether files that something may be lost of have still the names that people are told:
    /// somebody may have removed them on the PFS, or a drain has replaced them. `looks`: how many
    /// there were before.
    pub(crate) fn look_after_losses(&self, looks: usize) {
        if self.losses.is_empty() || self.base.health().is_silent() {
            return;
        }
        for (id, places) in self.losses.told_of(looks.wrapping_mul(LOOK_AT_MAX)) {
            let before = self.losses.all_tell();
            let look = |place: Place| {
                let found = match self.file_at(&place) {
                    Ok(stat) => Some(Found::File(stat)),
                    Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR) => Some(Found::Nothing),
                    Err(_) => None,
                };
                (place, found)
            };
            let found: Vec<_> = places.into_iter().map(look).collect();
            let gone = self.losses.look(id, &found, before);
            self.wanted_no_more(gone);
        }
    }

    fn place(&self, link: &Link) -> Option<Place> {
        match self.ns.node(link.parent) {
            Ok(Node::Dir(dir)) => Some((dir, Name::from(link.name.as_slice()))),
            _ => None,
        }
    }

    /// Whether this file of the PFS has the name now.
    pub(crate) fn has_name(&self, id: PfsId, place: &Place) -> bool {
        self.file_at(place).is_ok_and(|stat| stat.id == id)
    }

    /// What has a name on the PFS.
    fn file_at(&self, (dir, name): &(Arc<Dir>, Name)) -> Result<PfsStat, Errno> {
        let handle = self.ns.open_dir(dir).map_err(|error| error.errno())?;
        let stat = self.ns.pfs().stat(&handle, name);
        stat.map_err(|error| Failure::from(error).errno())
    }
}
