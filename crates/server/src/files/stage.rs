//! Stage-in: files of the PFS come into the burst buffer.

use std::sync::Arc;

use forebay_namespace::{Arrival, Dir, File, Garbage};
use forebay_policy::durability::Durability;
use forebay_policy::limits::Owners;
use forebay_policy::placement::NewFile;
use forebay_tiers::{CopyControl, FileObject, Identity, Object, ParentKey, PfsId, TierKind, copy};
use forebay_types::{Errno, Generation, Ino, ObjectId, Process, SetTime, TierId, failpoint};

use crate::base::failure::Failure;
use crate::buffer::holders::is_out_of_reach;
use crate::buffer::ledger::Refused;
use crate::buffer::target::Target;
use crate::files::Files;
use crate::files::mover::Move;
use crate::files::open::stale_if_taken;
use crate::integrity::atrest::Purpose;

/// A file that came in, its object and that one's tier.
pub type BroughtIn = (Arc<File>, Arc<dyn Object>, TierId);

impl Files {
    /// Copies a file of the PFS into an object, or, `empty`, gives it an empty one. A copy is
    /// clean; an empty object is dirty, and the PFS keeps the old file until the new content is
    /// whole.
    ///
    /// `id`: the file that it has to be, for whoever acts for a user who has opened, or may write,
    /// just that one; `ESTALE` where another one has its name. Beside it who writes the file, on
    /// whose node it is to lie.
    pub fn bring_in(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        (id, writer): (Option<PfsId>, Option<Process>),
        empty: bool,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<BroughtIn, Failure> {
        self.bring_in_as(dir, name, (id, writer), (empty, true), moved)
    }

    /// The same; only if it `may_evict`, others leave for it.
    fn bring_in_as(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        (id, writer): (Option<PfsId>, Option<Process>),
        (empty, may_evict): (bool, bool),
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<BroughtIn, Failure> {
        let path = dir.path_of(name);
        let handle = self.ns.open_dir(dir)?;
        let opened = self.ns.pfs().open_file(&handle, name, false);
        let source = opened.map_err(|error| match id {
            Some(_) => stale_if_taken(error.into()),
            None => error.into(),
        })?;
        let stat = self.ns.stat_settled(&source)?;
        if id.is_some_and(|id| id != stat.id) {
            return Err(Errno::ESTALE.into());
        }
        // One of several links, and what no other file can take the place of, is changed where it
        // is.
        if stat.nlink > 1 || stat.keeps_its_place() {
            return Err(Errno::EMLINK.into());
        }
        let bytes = if empty { 0 } else { stat.size };
        let tier = self.tier_to_come_in((&path, writer), bytes, (empty, may_evict))?;
        // Without a record it is no file to a start: the PFS has it.
        let object_id = self.new_id()?.object();
        self.buffer.arrive(object_id, tier, 0, empty);
        let owners = Owners {
            uid: stat.uid,
            gid: stat.gid,
        };
        self.buffer.ledger().own(object_id, owners);
        let hold = || {
            let ledger = self.buffer.ledger();
            ledger.try_hold(object_id, tier, 0, bytes, empty)
        };
        let held = hold().or_else(|refused| match refused {
            Refused::Limit { .. } if may_evict && self.make_space_for(tier, refused, bytes) > 0 => {
                hold()
            }
            refused => Err(refused),
        });
        if let Err(refused) = held {
            self.buffer.leave(object_id);
            return Err(self.no_room(refused));
        }
        let mut made = self.fill(dir, name, object_id, tier, &source, &stat, empty, moved);
        if let Err(failure) = &made
            && failure.errno() == Errno::ENOSPC
            && may_evict
            && self.remove_partial(object_id, tier)
        {
            // The file system below had less than its tier was promised: make room and try again.
            if self.make_space(tier, bytes.max(1)) > 0 {
                failure.told("bring a file in");
                made = self.fill(dir, name, object_id, tier, &source, &stat, empty, moved);
            }
        }
        if made.is_err() {
            self.buffer.leave(object_id);
            self.remove_partial(object_id, tier);
        }
        let (file, object) = made?;
        self.left_the_pfs(stat.id, &file, empty);
        let looked = object.stat();
        // It is on record and takes its space, also where its node went just now.
        let booked = looked.as_ref().map_or(bytes, |stat| stat.allocated_bytes);
        self.buffer.book(&file, booked);
        self.buffer
            .enter(&file, &self.catalog.rules().identify(&path));
        let stat = looked?;
        if !empty && self.buffer.tiers().kind(tier) == TierKind::Ssd {
            self.integrity
                .at_rest()
                .seal(object_id, Generation(1), &stat);
        }
        Ok((file, object, tier))
    }

    /// Brings a file of the PFS in as a clean copy, unless somebody writes it where it is. Only if
    /// it `may_evict`, others leave for it.
    pub fn stage_in(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        may_evict: bool,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<Arc<File>, Failure> {
        if (self.ino_on_pfs(dir, name)).is_some_and(|ino| self.is_written_in_place(ino)) {
            return Err(written_in_place());
        }
        let (file, ..) = self.bring_in_as(dir, name, (None, None), (false, may_evict), moved)?;
        // Who chose to write it in place before it was here has done so by now: see
        // `prepare_change`. What cannot be evicted at once is clean, and gives way when somebody
        // looks at it.
        if self.is_written_in_place(file.ino) {
            self.buffer.evict_unopened(&file);
            return Err(written_in_place());
        }
        Ok(file)
    }

    /// The id of a file that is only on the PFS.
    fn ino_on_pfs(&self, dir: &Arc<Dir>, name: &[u8]) -> Option<Ino> {
        let dir = self.ns.open_dir(dir).ok()?;
        let stat = self.ns.pfs().stat(&dir, name).ok()?;
        Some(self.ns.ino_of(stat.id))
    }

    /// Whether somebody writes a file of the PFS where it is. Waits for who is deciding it.
    fn is_written_in_place(&self, ino: Ino) -> bool {
        let open = self.buffer.opens().by_ino(ino);
        open.is_some_and(|o| matches!(&*o.target.read(), Target::Pfs { writable: true, .. }))
    }

    fn tier_to_come_in(
        &self,
        (path, writer): (&[u8], Option<Process>),
        bytes: u64,
        (empty, may_evict): (bool, bool),
    ) -> Result<TierId, Failure> {
        let new = NewFile {
            predicted_bytes: Some(bytes),
            durability: self.catalog.durability_of(path),
            series_fsyncs: false,
        };
        let origin = self.origin(writer, path);
        match (empty, may_evict) {
            (true, _) => self.place_new(origin, &new),
            // A copy that is not needed yet waits for nobody's space.
            (false, true) => Ok(self.find_room(origin, &new).ok_or(Errno::ENOSPC)?),
            (false, false) => Ok(self.free_room(origin, &new).ok_or(Errno::ENOSPC)?),
        }
    }

    /// Removes an object that did not become a file's, now or when its node is back: nothing is to
    /// have its id then. Whether it is gone.
    pub fn remove_partial(&self, object: ObjectId, tier: TierId) -> bool {
        let Some(slot) = self.buffer.tiers().get(tier) else {
            return false;
        };
        match slot.tier.remove(object) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                tracing::warn!("object {object} in {}: {error}", slot.tier.name());
                if is_out_of_reach(&error) && self.buffer.tiers().holder_of(tier).is_some() {
                    let tiers = [Some(tier), None];
                    self.ns.add_garbage(Garbage { object, tiers });
                }
                false
            }
            _ => true,
        }
    }

    #[allow(clippy::too_many_arguments)] // the steps of one copy, split for length
    fn fill(
        &self,
        dir: &Arc<Dir>,
        name: &[u8],
        object_id: ObjectId,
        tier: TierId,
        source: &std::fs::File,
        stat: &forebay_tiers::PfsStat,
        empty: bool,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<(Arc<File>, Arc<dyn Object>), Failure> {
        let slot = self.buffer.tiers().get(tier).ok_or(Errno::ENODEV)?;
        let identity = Identity {
            instance: self.ns.instance(),
            object: object_id,
            path: dir.path_of(name),
            parent: ParentKey {
                dev_ordinal: dir.key.dev,
                ino: dir.key.ino,
                btime_ns: dir.key.btime_ns,
            },
            name: name.to_vec(),
            mode: u32::from(stat.perm()),
            uid: stat.uid,
            gid: stat.gid,
            generation: Generation(1),
            shadow: false,
        };
        let object = match empty {
            true => slot.tier.create(object_id, &identity)?,
            false => slot.tier.create(object_id, &identity.unfinished())?,
        };
        failpoint::hit(failpoint::Point::StageObject);
        let mut sums = None;
        if !empty {
            let source = FileObject::new(source.try_clone()?);
            let control = CopyControl {
                stop: &|| self.base.is_ending(),
                moved: &|bytes, _| moved(bytes),
            };
            let report = copy(&source, &*object, &control)?;
            failpoint::hit(failpoint::Point::StageCopied);
            sums = Some(report.sums);
            object.set_times(Some(SetTime::At(stat.atime)), Some(SetTime::At(stat.mtime)))?;
            object.set_identity(&identity)?;
            if slot.kind != TierKind::Dram {
                object.sync(false)?;
            }
        }
        let arrival = Arrival {
            object: object_id,
            tier,
            sums,
            allocated_bytes: object.stat()?.allocated_bytes,
        };
        let file = self.ns.attach(dir, name, stat, &arrival)?;
        Ok((file, object))
    }

    /// Brings a clean flash-resident file's object, or a file of the PFS, to memory.
    pub fn prefetch(
        &self,
        file: &Arc<File>,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<bool, Failure> {
        let _copying = file.copying();
        let (tier, generation, clean) = {
            let state = file.lock();
            (
                state.residency.tier,
                state.generation(),
                state.residency.clean,
            )
        };
        let Some((dram, _)) = self
            .buffer
            .tiers()
            .iter()
            .find(|(id, s)| s.kind == TierKind::Dram && !self.buffer.is_closed(*id))
        else {
            return Ok(false);
        };
        // What is not safe on the PFS yet stays where it is safe.
        if tier == dram || !clean || self.buffer.opens().by_ino(file.ino).is_some() {
            return Ok(false);
        }
        let source = match self.buffer.tiers().open_object(tier, file.object) {
            // It has left the burst buffer meanwhile.
            Err(_) if file.lock().is_unlinked() => return Ok(false),
            source => source?,
        };
        let bytes = source.stat()?.allocated_bytes;
        // A tier that is lowered meanwhile keeps room in its file system for what is set aside.
        if !self.hold_for_move(file, dram, bytes) {
            return Err(Errno::ENOSPC.into());
        }
        let wanted = Move {
            file,
            source: &*source,
            to: dram,
            generation: Some(generation),
            is_exclusive: false,
        };
        let outcome = self.move_object(&wanted, || self.buffer.claim_unopened(file), drop);
        self.buffer.ledger().release_move(file.object);
        match outcome {
            Err(failure) if failure.errno() == Errno::EIO => {
                let claim = self.buffer.opens().claim(file.ino);
                if !claim.is_open() {
                    // If it is damaged, it gives way to what the PFS has.
                    let opened = (self.integrity).open_at_rest(&claim, file, Purpose::Open, false);
                    if let Err(other) = opened {
                        failure.told("move to memory");
                        return Err(other);
                    }
                }
                return Err(failure);
            }
            outcome => {
                if outcome?.is_none() {
                    return Ok(false);
                }
            }
        }
        moved(bytes);
        Ok(true)
    }

    /// The default level where none was chosen: flash where there is some, else the PFS.
    pub fn default_durability(has_flash: bool) -> Durability {
        if has_flash {
            Durability::Ssd
        } else {
            Durability::Pfs
        }
    }
}

fn written_in_place() -> Failure {
    Failure::new(Errno::ETXTBSY, "open for writing; close it first")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use forebay_types::{Errno, Ino};

    use forebay_tiers::testing::{Effect, Operation, When};

    use crate::buffer::tierset::DRAM;
    use crate::testing::{FLASH, Lab, answer, create, drain};

    #[test]
    fn who_may_change_one_file_is_not_brought_another_that_has_taken_its_name() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let ns = rooms.base.ns();
        std::fs::write(lab.pfs("f"), b"mine").expect("write");
        std::fs::write(lab.pfs("theirs"), b"somebody else's").expect("write");
        let mine = ns.pfs().stat(ns.pfs().root(), b"f").expect("stat").id;
        std::fs::rename(lab.pfs("f"), lab.pfs("mine")).expect("rename");
        std::fs::rename(lab.pfs("theirs"), lab.pfs("f")).expect("rename");
        for empty in [false, true] {
            let brought = rooms
                .files
                .bring_in(ns.root(), b"f", (Some(mine), None), empty, &|_| ());
            assert_eq!(answer(brought.map(drop)), Err(Errno::ESTALE));
        }
        assert!(ns.lookup(Ino::ROOT, b"f").expect("there").file.is_none());
        assert_eq!(rooms.buffer.ledger().entries().len(), 0);
        assert_eq!(lab.on_pfs("f"), b"somebody else's");
    }

    #[test]
    fn what_is_taken_from_the_pfs_is_looked_at_after_the_tick_in_which_it_was_written() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        std::fs::write(lab.pfs("f"), b"theirs").expect("write");
        let brought =
            rooms
                .files
                .bring_in(rooms.base.ns().root(), b"f", (None, None), false, &|_| ());
        let (file, _, _) = brought.map_err(|errno| errno.to_string()).expect("in");
        let changed = std::fs::metadata(lab.pfs("f")).expect("stat");
        let changed = Duration::new(changed.ctime() as u64, changed.ctime_nsec() as u32);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("clock");
        assert!(now - changed >= Duration::from_millis(20), "{changed:?}");
        // So whoever writes now, be it the same length, leaves another time.
        std::fs::write(lab.pfs("f"), b"THEIRS").expect("write");
        let found = rooms
            .base
            .ns()
            .lookup(forebay_types::Ino::ROOT, b"f")
            .expect("there");
        assert!(
            found.file.is_none(),
            "{:?} is shown for theirs",
            file.path()
        );
    }

    /// A tier that is lowered meanwhile has room for it in its file system.
    #[test]
    fn what_comes_into_memory_is_set_aside_before_it_is_copied() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        rooms
            .files
            .release(create(rooms, b"f", &[7; 4 << 20]))
            .expect("close");
        let file = rooms.buffer.files().pop().expect("file");
        rooms.files.leave_memory(|_| false, |_| false);
        drain(rooms);
        assert_eq!((file.tier(), file.lock().is_dirty()), (FLASH, false));
        assert_eq!(rooms.buffer.ledger().held_bytes(DRAM), 0);
        let slow = Effect::Delay(Duration::from_millis(200));
        flash.inject(Operation::Read, When::Every, slow);
        let before = flash.calls(Operation::Read);
        std::thread::scope(|scope| {
            let coming = scope.spawn(|| answer(rooms.files.prefetch(&file, &|_| ())));
            while flash.calls(Operation::Read) == before {
                std::thread::yield_now();
            }
            let held = rooms.buffer.ledger().held_bytes(DRAM);
            assert_eq!(coming.join().expect("no panic"), Ok(true));
            assert!(held >= 4 << 20, "{held}");
        });
        assert_eq!(file.tier(), DRAM);
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
        assert_eq!(
            rooms.buffer.ledger().held_bytes(DRAM),
            rooms.buffer.ledger().used_bytes(file.object)
        );
    }
}
