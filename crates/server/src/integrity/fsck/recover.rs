//! Undrained data whose place on the PFS is gone: it is put where its user finds it.

use forebay_namespace::{File, FileRecord};
use forebay_policy::repair::Remedy;
use forebay_tiers::{CopyControl, FileObject, Identity, Object, PfsDir, PfsTree, copy};
use forebay_types::{Errno, ObjectId, RenameMode, SetAttr, TierId, failpoint, limits};

use super::{Check, Wrong};
use crate::base::failure::Failure;
use crate::integrity::Integrity;

/// What is known of the file that an object was.
pub(super) struct Hint {
    path: Vec<u8>,
    uid: u32,
    gid: u32,
    perm: u16,
}

impl From<&Identity> for Hint {
    fn from(identity: &Identity) -> Hint {
        Hint {
            path: match identity.path.is_empty() {
                true => identity.name.clone(),
                false => identity.path.clone(),
            },
            uid: identity.uid,
            gid: identity.gid,
            perm: (identity.mode & 0o777) as u16,
        }
    }
}

impl Hint {
    /// Of a file that is being served.
    pub fn of_file(file: &File) -> Hint {
        let path = file.path();
        let state = file.lock();
        Hint {
            path,
            uid: state.meta.uid,
            gid: state.meta.gid,
            perm: state.meta.perm & 0o777,
        }
    }

    fn name(&self, object: ObjectId) -> Vec<u8> {
        let own = self.path.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let suffix = format!("forebay-recovered-{object}");
        if own.is_empty() {
            return suffix.into_bytes();
        }
        let room = limits::NAME_BYTES_MAX - suffix.len() - 1;
        [&own[..own.len().min(room)], b".", suffix.as_bytes()].concat()
    }
}

impl Check<'_> {
    /// Notes what is wrong, has the data put on the PFS, and says where.
    pub(super) fn recovered(
        &mut self,
        wrong: Wrong,
        (object, hint): (ObjectId, &Hint),
        act: impl FnOnce(&Integrity) -> Result<Vec<u8>, Failure>,
    ) {
        let mut place = None;
        self.found(wrong, |integrity, _| {
            place = Some(act(integrity)?);
            Ok(())
        });
        let Some(finding) = self.report.findings.last_mut() else {
            return;
        };
        let owner = hint.uid;
        if let Some(place) = place {
            finding.action = format!(
                "its data is on the PFS now as {}, for user {owner}",
                place.escape_ascii()
            );
        } else if self.dry_run && finding.action == Remedy::Recover.describe() {
            let name = hint.name(object);
            finding.action = format!(
                "its data is put on the PFS as {}, for user {owner}",
                name.escape_ascii()
            );
        }
    }
}

impl Integrity {
    /// What a record, and the object itself, say of a file.
    pub(super) fn hint_of_record(
        &self,
        tier: TierId,
        object: ObjectId,
        record: &FileRecord,
    ) -> Hint {
        let identity = self
            .buffer
            .tiers()
            .get(tier)
            .map(|slot| slot.tier.identity(object));
        let said = match identity {
            Some(Ok(Some(identity))) if identity.object == object => identity.path,
            _ => Vec::new(),
        };
        let name = record.names.first().map(|(_, name)| name.clone());
        let name = name.unwrap_or_default();
        // The object may have been renamed since it was told; the record has the last name.
        let path = match said.iter().rposition(|&b| b == b'/') {
            Some(at) => [&said[..=at], &name].concat(),
            None => name,
        };
        Hint {
            path,
            uid: record.meta.uid,
            gid: record.meta.gid,
            perm: record.meta.perm & 0o777,
        }
    }

    /// Puts an object's data on the PFS, verified, for its owner, in the deepest directory on its
    /// path that is there, under a name that says so; the path to it.
    pub(super) fn recover_object(
        &self,
        tier: TierId,
        object: ObjectId,
        hint: &Hint,
    ) -> Result<Vec<u8>, Failure> {
        let slot = self.buffer.tiers().get(tier).ok_or(Errno::ENODEV)?;
        let source = slot.tier.open(object)?;
        let (dir, above) = self.deepest(&hint.path)?;
        // From here on it is not the object that is missing: its directory went meanwhile.
        self.put_beside(&*source, object, hint, &dir, &above)
            .map_err(|failure| match failure.errno() {
                Errno::ENOENT => failure.with_errno(Errno::ESTALE),
                _ => failure,
            })
    }

    /// The copy gets its name in this directory; the path to it.
    fn put_beside(
        &self,
        source: &dyn Object,
        object: ObjectId,
        hint: &Hint,
        dir: &PfsDir,
        above: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let pfs = self.ns.pfs();
        let name = hint.name(object);
        let temporary = PfsTree::temporary_name(self.ns.instance(), object, Default::default());
        let make = || pfs.create_temporary(dir, &temporary, 0o600);
        let file = match make() {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                pfs.unlink(dir, &temporary)?;
                make()
            }
            made => made,
        };
        let file = FileObject::new(file?);
        let report = copy(source, &file, &CopyControl::NONE)?;
        let attributes = SetAttr {
            uid: Some(hint.uid),
            gid: Some(hint.gid),
            perm: Some(hint.perm),
            ..SetAttr::default()
        };
        // Who is not root gives nothing away: then it stays this process's user's own.
        if let Err(error) = pfs.set_attr_file(file.file(), &attributes) {
            tracing::warn!("{}: owner and mode: {error}", name.escape_ascii());
        }
        file.sync(false)?;
        forebay_tiers::verify(&file, &report, &|| false)?;
        failpoint::hit(failpoint::Point::FsckCopied);
        match pfs.rename(dir, &temporary, dir, &name, RenameMode::NoReplace) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                // A check that was killed had put it there.
                let there = FileObject::new(pfs.open_file(dir, &name, false)?);
                forebay_tiers::verify(&there, &report, &|| false)
                    .map_err(|error| Failure::from(error).with_errno(Errno::EEXIST))?;
                pfs.unlink(dir, &temporary)?;
            }
            renamed => renamed?,
        }
        failpoint::hit(failpoint::Point::FsckNamed);
        pfs.sync_dir(dir)?;
        Ok([above, &name].concat())
    }

    /// The object of which the PFS has the data now goes.
    pub(super) fn remove_recovered(&self, tier: TierId, object: ObjectId) -> Result<(), Failure> {
        let slot = self.buffer.tiers().get(tier).ok_or(Errno::ENODEV)?;
        slot.tier.remove(object)?;
        failpoint::hit(failpoint::Point::FsckRemoved);
        self.buffer.ledger().depart(object);
        self.buffer
            .stranded()
            .lock()
            .retain(|other| other.object != object);
        Ok(())
    }

    /// The deepest directory above a path that the PFS has, and the path to it, with '/' at its end
    /// unless it is the root.
    fn deepest(&self, path: &[u8]) -> Result<(PfsDir, Vec<u8>), Failure> {
        let pfs = self.ns.pfs();
        let mut dir = pfs.root().clone();
        let mut at = Vec::new();
        let parts: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        for part in &parts[..parts.len() - 1] {
            match pfs.open_dir(&dir, part) {
                Ok(below) => dir = below,
                Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => {
                    return Err(error.into());
                }
                Err(_) => break,
            }
            at.extend_from_slice(part);
            at.push(b'/');
        }
        Ok((dir, at))
    }
}
