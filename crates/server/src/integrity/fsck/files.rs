//! Files that have a record: its object, its tier's other copies, and what the PFS has.

use std::sync::Arc;

use forebay_namespace::{File, Residency, on_pfs};
use forebay_policy::durability::{Verdict, of_odd_length};
use forebay_policy::repair::{Damage, Knowledge, Remedy};
use forebay_tiers::{FileObject, Object, PfsStat, checksum};
use forebay_types::{Errno, TierId, failpoint};

use super::recover::Hint;
use super::{Check, Wrong};
use crate::base::failure::Failure;
use crate::integrity::Integrity;
use crate::integrity::atrest::flushes::{FLUSH_FAILED, read_from_device};
use crate::integrity::atrest::is_out_of_reach;
use crate::integrity::identity::{IdentityCheck, mismatch};

/// What the record says, taken at one moment.
pub(super) struct Facts {
    file: Arc<File>,
    path: Vec<u8>,
    residency: Residency,
    size: u64,
    /// What the PFS has, if it is what was published.
    original: Option<PfsStat>,
}

impl Facts {
    /// Of a file that is at rest.
    pub(super) fn of(file: &Arc<File>) -> Option<Facts> {
        let path = file.path();
        let state = file.lock();
        if state.is_unlinked() || state.demoting {
            return None;
        }
        let mut residency = state.residency;
        // That of a copy which was made before the kernel went on writing.
        residency.crc = residency.crc.filter(|_| !residency.writing);
        Some(Facts {
            file: file.clone(),
            path,
            residency,
            size: state.meta.size,
            original: None,
        })
    }
}

/// The node that has it has gone since the check began: that is no damage.
fn not_checked(facts: &Facts, error: &std::io::Error) {
    tracing::warn!("{}: not checked: {error}", facts.path.escape_ascii());
}

impl Check<'_> {
    /// One file that nobody has open.
    pub(super) fn file(&mut self, file: &Arc<File>) {
        let Some(mut facts) = Facts::of(file) else {
            return;
        };
        let residency = facts.residency;
        if self
            .integrity
            .buffer
            .tiers()
            .is_out_of_reach(residency.tier)
        {
            // Its tier is named.
            return;
        }
        let name = file.lock().names.first().cloned();
        if residency.clean && (residency.published.is_none() || residency.writing) {
            let problem = "its record calls it drained, but knows of nothing on the PFS";
            return self.wrong(&facts, Damage::RecordInconsistent, problem.into(), false);
        }
        // First of all: under a wrong id lies what may be the only copy of another file, whatever
        // its length and whatever has become of this one.
        let found = self
            .integrity
            .check_identity(facts.residency.tier, file.object);
        let ours = !matches!(found, IdentityCheck::Other(_));
        if let (true, Some((dir, name))) = (residency.clean, name) {
            let stat = self.integrity.ns.open_dir(&dir).and_then(|d| {
                self.integrity
                    .ns
                    .pfs()
                    .stat(&d, &name)
                    .map_err(on_pfs("stat"))
            });
            match stat {
                Ok(stat) if residency.published.is_some_and(|p| p.is(&stat)) => {
                    facts.original = Some(stat);
                }
                Ok(_) if ours => {
                    let problem = "changed on the PFS since it was copied";
                    return self.wrong(&facts, Damage::CopyOutdated, problem.into(), false);
                }
                Err(error) if ours && error.errno() == Errno::ENOENT => {
                    let problem = "removed or renamed on the PFS since it was copied";
                    return self.wrong(&facts, Damage::OriginalMissing, problem.into(), false);
                }
                // It does not answer, or there is worse: what is here can still be looked at.
                _ => {}
            }
        }
        let anonymous = match found {
            IdentityCheck::Other(problem) => {
                return self.wrong(&facts, Damage::ObjectSwapped, problem, false);
            }
            IdentityCheck::Unknown(problem) => Some(problem),
            IdentityCheck::Own => None,
        };
        if let Some(object) = self.object(&facts) {
            self.content(&facts, &*object, anonymous);
            if !residency.clean && !self.claimed && self.integrity.buffer.is_stranded(file) {
                self.stranded(&facts);
            }
        }
    }

    /// Undrained, and the directory that it belongs in is gone.
    fn stranded(&mut self, facts: &Facts) {
        let wrong = Wrong {
            damage: Damage::DirectoryUnknown,
            subject: facts.path.clone(),
            problem: "its directory was removed from the PFS, or replaced there".into(),
            known: Knowledge::default(),
        };
        let (file, tier) = (facts.file.clone(), facts.residency.tier);
        let hint = Hint::of_file(&file);
        self.recovered(wrong, (file.object, &hint), |integrity| {
            let claim = integrity.buffer.opens().claim(file.ino);
            if claim.is_open() || file.lock().demoting {
                return Err(Errno::EBUSY.into());
            }
            let place = integrity.recover_object(tier, file.object, &hint)?;
            integrity.ns.disown(&file)?;
            Ok(place)
        });
    }

    /// The object, if it is there and of the right length.
    pub(super) fn object(&mut self, facts: &Facts) -> Option<Arc<dyn Object>> {
        let (tier, id) = (facts.residency.tier, facts.file.object);
        let opened = self.integrity.buffer.tiers().open_object(tier, id);
        let stat = opened.and_then(|object| object.stat().map(|stat| (object, stat.size)));
        let flushed = facts.residency.flushed.map(|flushed| flushed.bytes);
        let sealed = facts.residency.crc.is_some();
        let taken = |size| {
            let odd = of_odd_length(size, facts.size, flushed, sealed);
            !facts.residency.clean && odd == Verdict::Taken
        };
        match stat {
            // Written unseen when the daemon died: only the object knows the length.
            Ok((object, size)) if size == facts.size || facts.residency.writing => Some(object),
            // The node lost its power: the next start takes it as it is. A file that is being
            // served has been through that.
            Ok((object, size)) if !self.claimed && taken(size) => Some(object),
            Ok((_, size)) => {
                let problem = format!("its object has {size} bytes, its record {}", facts.size);
                self.wrong(facts, Damage::ObjectLength, problem, false);
                None
            }
            Err(error) if is_out_of_reach(&error) => {
                not_checked(facts, &error);
                None
            }
            Err(error) => {
                let missing = error.raw_os_error() == Some(libc::ENOENT);
                let damage = match missing {
                    true => Damage::ObjectMissing,
                    false => Damage::ObjectUnreadable,
                };
                self.wrong(facts, damage, format!("its object: {error}"), false);
                None
            }
        }
    }

    fn content(&mut self, facts: &Facts, object: &dyn Object, anonymous: Option<String>) {
        let mut good = true;
        let is_known = facts.residency.crc.is_some();
        if facts.residency.flush_failed && !(self.checksums && is_known) {
            let problem = FLUSH_FAILED.to_string();
            return self.wrong(facts, Damage::ObjectContent, problem, false);
        }
        if let (true, Some(expected)) = (self.checksums || anonymous.is_some(), facts.residency.crc)
        {
            self.report.verified_bytes += facts.size;
            let is_suspect = self.integrity.at_rest.is_suspect(facts.file.object);
            let read = match is_suspect && facts.residency.clean {
                true => read_from_device(object),
                false => Ok(()),
            };
            match read {
                Err(error) if is_out_of_reach(&error) => return not_checked(facts, &error),
                Err(_) => {
                    let problem = FLUSH_FAILED.to_string();
                    return self.wrong(facts, Damage::ObjectContent, problem, false);
                }
                Ok(()) => {}
            }
            match checksum(object, facts.size, &|| self.integrity.base.is_ending()) {
                Ok(crc) if crc == expected => {}
                Ok(crc) => {
                    let problem = mismatch(crc, expected);
                    return self.wrong(facts, Damage::ObjectContent, problem, false);
                }
                Err(error) if is_out_of_reach(&error) => return not_checked(facts, &error),
                Err(error) => {
                    let problem = format!("its object cannot be read: {error}");
                    return self.wrong(facts, Damage::ObjectUnreadable, problem, false);
                }
            }
        } else if anonymous.is_some() {
            // Nothing else says that this is the file's content.
            good = !facts.residency.writing;
        }
        if let Some(problem) = anonymous {
            self.wrong(facts, Damage::ObjectAnonymous, problem, good);
        }
        if let Some((shadow, _)) = facts.residency.shadow {
            self.shadow(facts, shadow);
        }
        // What the PFS has of an undrained file is older.
        let comparable = facts.residency.clean && facts.residency.crc.is_some();
        if self.originals && facts.original.is_some() && comparable {
            self.original(facts);
        }
    }

    fn shadow(&mut self, facts: &Facts, shadow: TierId) {
        let gone = match self.integrity.buffer.tiers().get(shadow) {
            None => true,
            Some(slot) => slot
                .tier
                .open(facts.file.object)
                .is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)),
        };
        if gone {
            let problem = "its second copy on flash is not there".to_string();
            self.wrong(facts, Damage::ShadowMissing, problem, true);
        }
    }

    /// What the PFS has, by content. The object is good.
    fn original(&mut self, facts: &Facts) {
        self.report.verified_bytes += facts.size;
        match self.integrity.pfs_crc(&facts.file) {
            Ok(crc) if Some(crc) == facts.residency.crc => {}
            Ok(crc) => {
                let problem = format!("the PFS's copy is damaged: its checksum is {crc:08x}");
                self.wrong(facts, Damage::OriginalContent, problem, true);
            }
            Err(failure) => {
                let problem = format!("the PFS's copy cannot be read: {failure}");
                self.wrong(facts, Damage::OriginalContent, problem, true);
            }
        }
    }

    /// On a running burst buffer files are drained, moved, opened, renamed, released and removed
    /// while they are looked at.
    fn has_changed(&self, facts: &Facts) -> bool {
        let buffer = &self.integrity.buffer;
        let here = buffer.file(facts.file.object);
        if here.is_none_or(|file| !Arc::ptr_eq(&file, &facts.file))
            || facts.file.path() != facts.path
            || buffer.opens().by_ino(facts.file.ino).is_some()
        {
            return true;
        }
        let state = facts.file.lock();
        let key = |r: &Residency| (r.tier, r.generation, r.clean, r.published, r.shadow);
        state.is_unlinked()
            || state.demoting
            || state.meta.size != facts.size
            || key(&state.residency) != key(&facts.residency)
    }

    fn wrong(&mut self, facts: &Facts, damage: Damage, problem: String, object_good: bool) {
        if self.served && self.has_changed(facts) {
            return;
        }
        let known = Knowledge {
            clean: facts.residency.clean,
            original_good: needs_original(damage) && self.original_good(facts),
            object_good,
        };
        let wrong = Wrong {
            damage,
            subject: facts.path.clone(),
            problem,
            known,
        };
        let file = facts.file.clone();
        let claimed = self.claimed;
        self.found(wrong, |integrity, remedy| match claimed {
            true => integrity.mend_unopened(&file, remedy),
            false => integrity.mend_file(&file, remedy),
        });
    }

    /// Whether the PFS has the content that was published: by checksum where that is known.
    fn original_good(&self, facts: &Facts) -> bool {
        let Some(stat) = &facts.original else {
            return false;
        };
        match facts.residency.crc {
            Some(expected) => {
                let found = self.integrity.pfs_crc(&facts.file);
                found.is_ok_and(|crc| crc == expected)
            }
            None => stat.size == facts.size,
        }
    }
}

/// Whether the choice of a remedy depends on what the PFS has.
fn needs_original(damage: Damage) -> bool {
    matches!(
        damage,
        Damage::ObjectMissing
            | Damage::ObjectUnreadable
            | Damage::ObjectLength
            | Damage::ObjectContent
            | Damage::ObjectSwapped
    )
}

impl Integrity {
    /// Applies a remedy to a file that nobody has open; `EBUSY` if somebody has opened it
    /// meanwhile.
    pub(crate) fn mend_file(&self, file: &Arc<File>, remedy: Remedy) -> Result<(), Failure> {
        let claim = self.buffer.opens().claim(file.ino);
        match claim.is_open() {
            true => Err(Errno::EBUSY.into()),
            false => self.mend_unopened(file, remedy),
        }
    }

    /// The same for callers who have claimed the file and seen that it is not open.
    fn mend_unopened(&self, file: &Arc<File>, remedy: Remedy) -> Result<(), Failure> {
        if file.lock().demoting {
            return Err(Errno::EBUSY.into());
        }
        // Some of what is wrong may have been handed out.
        self.buffer.contents().forget(file.ino);
        let tier = file.tier();
        match remedy {
            Remedy::DropCopy => match self.buffer.evict_unopened(file) {
                Some(_) => Ok(()),
                None => Err(Errno::EBUSY.into()),
            },
            Remedy::DropRecord => self.let_go(file),
            Remedy::Quarantine => {
                let slot = self.buffer.tiers().get(tier).ok_or(Errno::ENODEV)?;
                match slot.tier.quarantine(file.object) {
                    Ok(kept) => tracing::info!(
                        "object {} is kept as {kept} in {}",
                        file.object,
                        slot.tier.name()
                    ),
                    // It lies there since a check that was killed before the record went.
                    Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                    Err(e) => return Err(e.into()),
                }
                failpoint::hit(failpoint::Point::FsckQuarantined);
                self.let_go(file)
            }
            Remedy::DrainAgain => {
                self.ns.call_dirty(file)?;
                self.buffer.book_state(file);
                self.buffer.queue().add(file.object);
                Ok(())
            }
            Remedy::Identify => {
                let object = self.buffer.tiers().open_object(tier, file.object)?;
                object.set_identity(&self.buffer.identity(file, false))?;
                failpoint::hit(failpoint::Point::FsckIdentified);
                Ok(object.sync(false)?)
            }
            Remedy::ForgetShadow => Ok(self.ns.forget_shadow(file)?),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Drops a record behind which there is nothing any more. Where the PFS has the file, those who
    /// know its id find it there.
    fn let_go(&self, file: &Arc<File>) -> Result<(), Failure> {
        match self.buffer.evict_unopened(file) {
            Some(_) => Ok(()),
            None => Ok(self.ns.disown(file)?),
        }
    }

    /// What the PFS has under a file's name.
    pub(crate) fn original(&self, file: &File) -> Result<FileObject, Failure> {
        let (dir, name) = file.lock().names.first().cloned().ok_or(Errno::ENOENT)?;
        let handle = self.ns.open_dir(&dir)?;
        Ok(FileObject::new(
            self.ns.pfs().open_file(&handle, &name, false)?,
        ))
    }

    /// Checksum of what the PFS has under a file's name.
    pub(crate) fn pfs_crc(&self, file: &File) -> Result<u32, Failure> {
        let object = self.original(file)?;
        let size = object.stat()?.size;
        Ok(checksum(&object, size, &|| self.base.is_ending())?)
    }
}
