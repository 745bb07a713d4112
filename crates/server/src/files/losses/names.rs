//! Names of files that something may be lost of, or is not flushed.

use std::sync::Arc;

use forebay_namespace::{Dir, File, Name, Node, Place};
use forebay_tiers::{PfsId, PfsStat};
use forebay_types::{Errno, Ino, RenameMode};
use forebay_wire::Link;

use super::{Found, Losses, OnPfs, same};
use crate::base::failure::Failure;
use crate::files::Files;

/// So many are looked at in one go.
const LOOK_AT_MAX: usize = 256;

/// What of the PFS had a name before that was changed through the mount; nothing where that does
/// not matter.
#[derive(Clone, Copy)]
pub struct Had(Option<PfsStat>);

impl Losses {
    /// Notes the names of a file of the burst buffer, by which people are told once it has left.
    pub fn note_names(&self, file: &Arc<File>) {
        let mut state = self.state.lock();
        if let Some(of) = state.buffered.get_mut(&file.object) {
            let names = file.lock().names.clone();
            of.loss.nlink = names.len() as u32;
            of.loss.places = names;
        }
    }

    /// A file on the PFS has this name; whoever has come by it says so.
    pub fn met(&self, id: PfsId, place: Place) {
        if let Some(loss) = self.state.lock().of_pfs_mut(id.into()) {
            loss.has_place(place);
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
            loss.places.retain(|place| !same(place, from));
            loss.has_place(to);
        }
    }

    /// A file on the PFS has lost one of its names.
    fn lost_place(&self, id: PfsId, gone: &Place) {
        let mut state = self.state.lock();
        if let Some(loss) = state.of_pfs_mut(id.into()) {
            loss.places.retain(|place| !same(place, gone));
            loss.nlink = loss.nlink.saturating_sub(1);
        }
    }

    /// Takes in what a look at names of a file has found. Answers with the path that people were
    /// told, where the file has no name any more.
    fn look(&self, id: OnPfs, found: &[(Place, Option<Found>)]) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        let loss = state.of_pfs_mut(id)?;
        let gone = loss.look(id, found).then(|| loss.told_as.clone());
        if gone.is_some() && id.btime_ns == 0 {
            // Without a time of birth the next file with this number would be taken for it.
            state.take_of_pfs(id);
        }
        gone
    }

    /// The files on the PFS that people are told of, with their names: as many as one look takes,
    /// from one that is later than in the last.
    fn told_of(&self, from: usize) -> Vec<(OnPfs, Vec<Place>)> {
        let state = self.state.lock();
        let in_place = state.on_pfs.iter();
        let in_place = in_place.map(|(id, loss)| (OnPfs::from(*id), loss));
        let buffered = state.buffered.values();
        let evicted = buffered.filter_map(|of| Some((of.evicted()?, &of.loss)));
        let named = in_place
            .chain(evicted)
            .filter(|(_, loss)| !loss.places.is_empty());
        let all: Vec<_> = named.map(|(id, loss)| (id, loss.places.clone())).collect();
        let from = from % all.len().max(1);
        let later = all.iter().skip(from).chain(all.iter().take(from));
        later.take(LOOK_AT_MAX).cloned().collect()
    }
}

impl Files {
    /// What may be lost of files.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// To be asked before a name is taken away or given to another file.
    pub fn had(&self, link: &Link) -> Had {
        let nothing_to_tell = self.in_place.is_empty() && self.losses.is_empty();
        Had(match nothing_to_tell {
            true => None,
            false => self.place(link).and_then(|place| self.file_at(&place).ok()),
        })
    }

    /// A name was taken away, or a rename has given it to another file. It may be that of a file of
    /// the burst buffer, which replaces what is on the PFS when it is drained: until then nothing
    /// is gone there. NFS and FUSE keep a file that is open under another name, and its directory
    /// could not be removed while its descriptor is kept.
    pub fn name_is_gone(&self, link: &Link, Had(had): Had) {
        let (Some(had), Some(place)) = (had, self.place(link)) else {
            return;
        };
        match self.file_at(&place) {
            Ok(now) if now.id == had.id => {}
            Err(errno) if errno != Errno::ENOENT => {}
            _ if had.nlink > 1 => self.losses.lost_place(had.id, &place),
            _ => {
                self.in_place.forget(had.id);
                self.wanted_no_more(self.losses.forget_pfs(had.id.into()));
            }
        }
    }

    /// A rename has given `to` what had the name `from`, and in an exchange the other way round.
    pub fn was_renamed(
        &self,
        (from, source): (&Link, Had),
        (to, target): (&Link, Had),
        mode: RenameMode,
    ) {
        if source.0.is_none() && target.0.is_none() {
            return;
        }
        let moves = match mode {
            RenameMode::Exchange => vec![(from, source, to), (to, target, from)],
            RenameMode::Replace | RenameMode::NoReplace => vec![(from, source, to)],
        };
        for (from, Had(had), to) in moves {
            if let (Some(had), Some(from), Some(to)) = (had, self.place(from), self.place(to)) {
                self.in_place.moved(had.id, &to);
                self.losses.moved(had.id, &from, to);
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
    pub fn lost_name(&self, file: &Arc<File>) {
        if self.losses.is_empty() {
            return;
        }
        let is_unlinked = file.lock().is_unlinked();
        match is_unlinked {
            true => self.wanted_no_more(self.losses.forget(file)),
            false => self.losses.note_names(file),
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
            let look = |place: Place| {
                let found = match self.file_at(&place) {
                    Ok(stat) => Some(Found::File(stat)),
                    Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR) => Some(Found::Nothing),
                    Err(_) => None,
                };
                (place, found)
            };
            let found: Vec<_> = places.into_iter().map(look).collect();
            if let Some(path) = self.losses.look(id, &found) {
                self.base.errors().clear(&path);
            }
        }
    }

    fn place(&self, link: &Link) -> Option<Place> {
        match self.ns.node(link.parent) {
            Ok(Node::Dir(dir)) => Some((dir, Name::from(link.name.as_slice()))),
            _ => None,
        }
    }

    /// What has a name on the PFS.
    fn file_at(&self, (dir, name): &(Arc<Dir>, Name)) -> Result<PfsStat, Errno> {
        let handle = self.ns.open_dir(dir).map_err(|error| error.errno())?;
        let stat = self.ns.pfs().stat(&handle, name);
        stat.map_err(|error| Failure::from(error).errno())
    }
}
