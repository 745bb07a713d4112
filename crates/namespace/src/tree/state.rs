//! What the state of a file says, and how its names, attributes and errors change. How its content
//! does: `transition`.

use std::sync::Arc;

use forebay_tiers::{ObjectStat, PfsStat};
use forebay_types::{Attr, Errno, FileKind, Generation, Ino, SetAttr, SetTime, TimeSpec};

use super::{Dir, FileFacts, FileState, Place};
use crate::acl::{self, without_set_id};
use crate::ops::xattr::CAPABILITY;
use crate::record::{FileRecord, Looks, Meta, Published, Residency, Temporary, Unplaced, Xattrs};

impl FileState {
    /// Of a file that has these names, or none in the directory `unnamed`.
    pub(crate) fn new(
        (names, unnamed): (Vec<Place>, Option<Arc<Dir>>),
        meta: Meta,
        xattrs: Xattrs,
        residency: Residency,
    ) -> FileState {
        FileState {
            facts: FileFacts {
                names,
                unnamed,
                owes_fsync: false,
                meta,
                xattrs,
                residency,
                temporary: None,
                demoting: false,
                error: None,
                drain_open: 0,
                safe: None,
                cuts: 0,
                cutting: 0,
                renaming: 0,
            },
            unplaced: Vec::new(),
            unsettled: false,
            noted: false,
            error_unreported: false,
            unsaved: false,
            evicted: false,
        }
    }

    /// Of a file that an earlier run has left on record, and that has these names.
    pub(crate) fn recorded(names: Vec<Place>, record: FileRecord) -> FileState {
        let mut state = FileState::new((names, None), record.meta, record.xattrs, record.residency);
        state.unplaced = record.unplaced;
        state.noted = record.temporary.is_some();
        state.facts.temporary = record.temporary.map(Box::new);
        state
    }

    /// Of a file without a name that an earlier run has left on record; one that was made without a
    /// name in the directory `unnamed` may get one.
    pub(crate) fn nameless(unnamed: Option<Arc<Dir>>, record: FileRecord) -> FileState {
        let residency = Residency {
            // With its name the PFS has lost what it had.
            published: None,
            clean: false,
            // What was written by requests the object knows.
            writing: !record.residency.clean,
            crc: None,
            ..record.residency
        };
        // Whether it was fsynced is not on record.
        let owes_fsync = unnamed.is_some();
        let names = (Vec::new(), unnamed);
        let mut state = FileState::new(names, record.meta, record.xattrs, residency);
        state.facts.owes_fsync = owes_fsync;
        state
    }

    /// The invariants that can be told from the state alone. Those that a damaged record breaks are
    /// for the check of the records to find, so they are asserted where a transition relies on
    /// them.
    pub(super) fn debug_check(&self) {
        let r = &self.residency;
        debug_assert!(
            !r.clean || (r.published.is_some() && !r.writing && self.unplaced.is_empty()),
            "3, 5: what is clean is published under all names, and nobody writes it: {r:?}"
        );
        debug_assert!(
            !r.clean || !r.flush_failed,
            "11: what is clean is whole, on the PFS at least: {r:?}"
        );
        debug_assert!(
            self.unnamed.is_none() || (self.names.is_empty() && !r.clean),
            "6: what has no name yet is dirty: {r:?}"
        );
        let noted = [
            r.flushed.map(|flushed| flushed.generation),
            r.shadow.map(|(_, generation)| generation),
            r.promised,
            self.temporary.as_ref().map(|copy| copy.generation),
            self.safe,
        ];
        debug_assert!(
            noted.into_iter().flatten().all(|of| of <= r.generation),
            "7: nothing is noted of a content that is still to come: {r:?}, {:?}",
            self.safe
        );
        debug_assert!(
            !self.error_unreported || self.error.is_some(),
            "8: there is an error to report"
        );
        debug_assert!(
            !self.unsettled || self.temporary.is_some(),
            "9: there is a copy to settle: {r:?}"
        );
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let meta = &self.meta;
        Attr {
            ino,
            kind: FileKind::Regular,
            perm: meta.perm,
            nlink: self.names.len() as u32,
            uid: meta.uid,
            gid: meta.gid,
            rdev: 0,
            size: meta.size,
            blocks: meta.allocated_bytes.div_ceil(512),
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
        }
    }

    pub(crate) fn record(&self, ino: Ino) -> FileRecord {
        FileRecord {
            ino,
            names: self
                .names
                .iter()
                .map(|(dir, name)| (dir.key, name.to_vec()))
                .collect(),
            meta: self.meta,
            xattrs: self.xattrs.clone(),
            residency: self.residency,
            unplaced: self.unplaced.clone(),
            temporary: self.copy_under_way(),
        }
    }

    /// Whether the PFS has no whole copy of this content.
    pub fn is_dirty(&self) -> bool {
        !self.residency.clean
    }

    /// Whether the PFS has a version of it under all its names.
    pub fn is_published(&self) -> bool {
        self.residency.published.is_some() && self.unplaced.is_empty()
    }

    /// Whether the file has no name: it has been unlinked, or has not got one yet.
    pub fn is_unlinked(&self) -> bool {
        self.names.is_empty()
    }

    /// Generation of the content.
    pub fn generation(&self) -> Generation {
        self.residency.generation
    }

    /// Whether it is not known what has become of its copy.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Its copy on the PFS that is under way.
    pub fn copy_under_way(&self) -> Option<Temporary> {
        self.temporary.as_deref().copied()
    }

    /// Whether a copy is what is published.
    pub(crate) fn is_published_as(&self, copy: Temporary) -> bool {
        let published = self.residency.published;
        published.is_some_and(|p| (p.ino, p.btime_ns) == (copy.ino, copy.btime_ns))
    }

    /// What the PFS has under a name of the file, as far as is known.
    pub(crate) fn expected_at(&self, dir: &Dir, name: &[u8]) -> Option<Published> {
        match self.unplaced.iter().find(|one| is_at(one, dir, name)) {
            Some(unplaced) => unplaced.older,
            None => self.residency.published,
        }
    }

    /// Whether what is published is so under this name, if it is at all.
    pub(crate) fn is_placed(&self, dir: &Dir, name: &[u8]) -> bool {
        !self.unplaced.iter().any(|one| is_at(one, dir, name))
    }

    /// All names, for whoever reads the log.
    pub(crate) fn told_names(&self) -> String {
        let paths = self.names.iter().map(|(dir, name)| dir.path_of(name));
        let told: Vec<_> = paths.map(|p| p.escape_ascii().to_string()).collect();
        told.join(", ")
    }

    /// A change that was applied, with the times that the record has for "now": so that object,
    /// record and PFS agree.
    pub fn as_taken(&self, set: &SetAttr) -> SetAttr {
        let taken = |time: Option<SetTime>, recorded| {
            time.map(|time| match time {
                SetTime::Now => SetTime::At(recorded),
                at => at,
            })
        };
        SetAttr {
            atime: taken(set.atime, self.meta.atime),
            mtime: taken(set.mtime, self.meta.mtime),
            ..*set
        }
    }
}

/// Names, and what the PFS has under them.
impl FileState {
    /// It has a further name, or its first. `linked`: what the PFS shows of it by now, if it has
    /// been linked there, too.
    pub(crate) fn link(&mut self, (dir, name): Place, linked: Option<Published>) {
        let is_first = self.facts.unnamed.take().is_some();
        self.facts.names.push((dir.clone(), name.clone()));
        match linked {
            Some(_) => self.facts.residency.published = linked,
            None if self.residency.published.is_some() => self.set_unplaced(&dir, &name, None),
            None => {}
        }
        self.facts.meta.ctime = TimeSpec::now();
        if self.is_dirty() && !is_first {
            // A copy under way would be published without the new name.
            self.outdate_copy();
        }
        self.debug_check();
    }

    /// A start has found a name on the PFS that had not reached the record.
    pub(crate) fn find_name(&mut self, place: Place) {
        self.facts.names.push(place);
        self.facts.meta.ctime = TimeSpec::now();
    }

    /// One name has become another, wherever the PFS has it.
    pub(crate) fn rename_name(&mut self, old: &Place, new: Place) {
        if let Some(one) = self
            .unplaced
            .iter_mut()
            .find(|one| is_at(one, &old.0, &old.1))
        {
            one.place = (new.0.key, new.1.to_vec());
        }
        let is_old = |name: &&mut Place| Arc::ptr_eq(&name.0, &old.0) && name.1 == old.1;
        if let Some(name) = self.facts.names.iter_mut().find(is_old) {
            *name = new;
        }
    }

    /// One name is gone.
    pub(crate) fn drop_name(&mut self, dir: &Arc<Dir>, name: &[u8]) {
        self.facts
            .names
            .retain(|(d, n)| !(Arc::ptr_eq(d, dir) && **n == *name));
        self.set_placed(dir, name);
        if let ([_], [last]) = (&self.facts.names[..], &self.unplaced[..]) {
            self.facts.residency.published = last.older;
            self.unplaced.clear();
        }
    }

    /// It has no name any more, and no record from here on. Those that it had.
    pub(crate) fn unlink(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.facts.names)
    }

    /// The same of a clean file that has left the burst buffer: the PFS has it.
    pub(crate) fn leave(&mut self) {
        self.facts.names.clear();
        self.evicted = true;
    }

    /// Whether it has left the burst buffer, and was not removed.
    pub fn is_evicted(&self) -> bool {
        self.evicted
    }

    /// Nobody can give it a first name any more. Whether it had none.
    pub(crate) fn let_go(&mut self) -> bool {
        self.facts.unnamed.take().is_some()
    }

    /// What the PFS has of it under the names that are placed, as far as is known. A clean file has
    /// something there.
    pub(crate) fn set_published(&mut self, published: Option<Published>) {
        self.facts.residency.published = published;
        self.debug_check();
    }

    /// A change of names of ours has moved the ctime of what is published, to this as far as the
    /// PFS tells.
    pub(crate) fn follow_published(&mut self, now: Option<Published>) {
        self.facts.residency.published = now.or(self.residency.published);
    }

    /// Under this name the PFS has not what is published.
    pub(crate) fn set_unplaced(&mut self, dir: &Dir, name: &[u8], older: Option<Published>) {
        self.set_placed(dir, name);
        let place = (dir.key, name.to_vec());
        self.unplaced.push(Unplaced { place, older });
    }

    /// Under this name the PFS has what is published.
    pub(crate) fn set_placed(&mut self, dir: &Dir, name: &[u8]) {
        self.unplaced.retain(|one| !is_at(one, dir, name));
    }

    /// The first name has the new version; the others have what they had. That has lost a link,
    /// which moves its ctime.
    pub(crate) fn first_is_placed(&mut self, published: Published) {
        let names = self.facts.names.clone();
        for (dir, name) in names.iter().skip(1) {
            let older = self.expected_at(dir, name);
            self.set_unplaced(dir, name, older.map(Published::with_ctime_moved));
        }
        if let Some((dir, name)) = names.first() {
            self.set_placed(dir, name);
        }
        self.facts.residency.published = Some(published);
    }

    /// The PFS has nothing of the file under this name any more.
    pub(crate) fn lose_published_at(&mut self, dir: &Dir, name: &[u8]) {
        match self.names.len() {
            0 | 1 => self.facts.residency.published = None,
            _ if self.residency.published.is_some() => self.set_unplaced(dir, name, None),
            _ => {}
        }
    }
}

/// Attributes.
impl FileState {
    /// It has been changed in something that is not its content.
    pub(crate) fn touch(&mut self) {
        self.facts.meta.ctime = TimeSpec::now();
    }

    /// Sets owner, mode and times. The size is the object's.
    pub(crate) fn apply(&mut self, set: &SetAttr) {
        let now = TimeSpec::now();
        let time = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(at) => at,
        };
        let FileFacts { meta, xattrs, .. } = &mut self.facts;
        if set.uid.is_some() || set.gid.is_some() {
            // chown(2) of anything but a directory, whoever does it.
            meta.perm = without_set_id(meta.perm);
            xattrs.retain(|(name, _)| name != CAPABILITY);
        }
        if let Some(perm) = set.perm {
            meta.perm = perm;
            acl::change_mode(xattrs, perm);
        }
        meta.uid = set.uid.unwrap_or(meta.uid);
        meta.gid = set.gid.unwrap_or(meta.gid);
        meta.atime = set.atime.map_or(meta.atime, time);
        meta.mtime = set.mtime.map_or(meta.mtime, time);
        meta.ctime = now;
    }

    /// Permission bits, as an access control list says them.
    pub(crate) fn set_perm(&mut self, perm: u16) {
        self.facts.meta.perm = perm;
    }

    /// An attribute was changed on the PFS: an access list is a mode, too.
    pub(crate) fn take_pfs_change(&mut self, stat: &PfsStat) {
        self.facts.meta.ctime = stat.ctime;
        self.facts.meta.perm = stat.perm();
    }

    /// Mode, owner and attributes that an outsider has given what is published.
    pub(crate) fn take_looks(&mut self, looks: Looks, xattrs: Xattrs) {
        let meta = &mut self.facts.meta;
        (meta.perm, meta.uid, meta.gid) = (looks.perm, looks.uid, looks.gid);
        meta.ctime = TimeSpec::now();
        self.facts.xattrs = xattrs;
    }

    /// The extended attributes that the PFS has of it.
    pub(crate) fn take_xattrs(&mut self, xattrs: Xattrs) {
        self.facts.xattrs = xattrs;
    }

    /// Sets one extended attribute.
    pub(crate) fn put_xattr(&mut self, name: &[u8], value: &[u8]) {
        let xattrs = &mut self.facts.xattrs;
        match xattrs.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value.to_vec(),
            None => xattrs.push((name.to_vec(), value.to_vec())),
        }
    }

    /// Removes one extended attribute. Whether there was one.
    pub(crate) fn remove_xattr(&mut self, name: &[u8]) -> bool {
        let before = self.xattrs.len();
        self.facts.xattrs.retain(|(known, _)| known != name);
        self.xattrs.len() < before
    }

    /// What the object is now. Nobody writes it.
    pub fn take_stat(&mut self, stat: &ObjectStat) {
        let meta = &mut self.facts.meta;
        meta.size = stat.size;
        meta.allocated_bytes = stat.allocated_bytes;
        meta.atime = stat.atime;
        meta.mtime = stat.mtime;
        meta.ctime = ctime_after(meta.ctime, stat.mtime);
    }

    /// Its object cannot be asked, and knows better where it was being written: there is at least
    /// what was flushed.
    pub fn take_flushed_size(&mut self) {
        let (writing, flushed) = (self.residency.writing, self.residency.flushed);
        if let Some(flushed) = flushed.filter(|_| writing) {
            let meta = &mut self.facts.meta;
            meta.size = meta.size.max(flushed.bytes);
        }
    }

    /// What the object is now, while it may be written.
    pub fn take_live_stat(&mut self, stat: &ObjectStat) {
        let dirty = self.is_dirty();
        let meta = &mut self.facts.meta;
        meta.size = stat.size;
        meta.allocated_bytes = stat.allocated_bytes;
        if dirty {
            meta.mtime = stat.mtime;
        }
    }

    /// What the object is at its last close. The times of a clean file are those that the PFS has.
    pub(super) fn take_closed_stat(&mut self, stat: &ObjectStat) {
        let dirty = self.is_dirty();
        let meta = &mut self.facts.meta;
        meta.size = stat.size;
        meta.allocated_bytes = stat.allocated_bytes;
        meta.atime = meta.atime.max(stat.atime);
        if dirty {
            meta.mtime = stat.mtime;
            meta.ctime = ctime_after(meta.ctime, stat.mtime);
        }
    }
}

/// Errors, and what is owed.
impl FileState {
    /// A demotion has failed: the next fsync is to report that, unless one has reported the same.
    pub fn fail_demotion(&mut self, errno: Errno) {
        self.error_unreported |= self.error != Some(errno);
        self.facts.error = Some(errno);
    }

    /// Something is wrong with it that is shown, and that no fsync is to report.
    pub fn show_error(&mut self, errno: Errno) {
        self.facts.error = Some(errno);
    }

    /// That is over, if it was this.
    pub fn end_error(&mut self, errno: Errno) {
        if self.error == Some(errno) {
            self.forget_error();
        }
    }

    /// An earlier failure is tried again, and only what happens from here on counts.
    pub fn forget_error(&mut self) {
        self.facts.error = None;
        self.error_unreported = false;
    }

    /// The error that no fsync has reported yet; from here on one has.
    pub fn take_unreported_error(&mut self) -> Option<Errno> {
        let unreported = std::mem::take(&mut self.error_unreported);
        self.error.filter(|_| unreported)
    }

    pub(super) fn owe_error(&mut self, errno: Errno) {
        self.facts.error = Some(errno);
        self.error_unreported = true;
    }

    /// It was fsynced without a name.
    pub fn owe_fsync(&mut self) {
        self.facts.owes_fsync = true;
    }

    /// What that would have done is done.
    pub fn pay_fsync(&mut self) {
        self.facts.owes_fsync = false;
    }

    /// Its record is to be written soon. Whether that is news.
    pub(crate) fn mark_unsaved(&mut self) -> bool {
        !std::mem::replace(&mut self.unsaved, true)
    }

    /// Its record is being written. Whether it was to be.
    pub(crate) fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }

    /// Whether its record is to be written.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.unsaved
    }
}

fn is_at(unplaced: &Unplaced, dir: &Dir, name: &[u8]) -> bool {
    unplaced.place.0 == dir.key && unplaced.place.1 == name
}

/// Time of change of a file whose content has this time of modification. One in the future was set
/// by somebody, and says nothing of when that was.
pub fn ctime_after(ctime: TimeSpec, mtime: TimeSpec) -> TimeSpec {
    match mtime > TimeSpec::now() {
        true => ctime,
        false => ctime.max(mtime),
    }
}
