//! fsck: records, objects and PFS against each other. It never removes the only copy of anything.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_namespace::{File, Published, Residency};
use forebay_tiers::{CopyControl, FileObject, Object, RenameMode, TierKind, checksum, copy};
use forebay_types::{Errno, ObjectId, TierId};
use forebay_wire::control::{Finding, FsckReport};

use crate::core::Core;
use crate::tierset::Slot;

impl Core {
    /// Checks everything and, unless `dry_run`, mends what can be mended. `checksums` reads every
    /// clean copy whose checksum is known.
    pub fn fsck(&self, dry_run: bool, checksums: bool) -> FsckReport {
        let mut report = FsckReport::default();
        if let Some(silent) = self.pulse().silent_for() {
            let silent = std::time::Duration::from_secs(silent.as_secs());
            let silent = forebay_types::format_duration(silent);
            let problem = format!("has not answered for {silent}");
            let action = "clean copies are not compared with it";
            finding(&mut report, b"(PFS)".to_vec(), problem, action, false);
        }
        let files: Vec<Arc<File>> = self.files.read().values().cloned().collect();
        for file in &files {
            report.records += 1;
            if self.opens.by_ino(file.ino).is_some() {
                continue;
            }
            self.check_file(file, dry_run, checksums, &mut report);
        }
        let known: HashSet<ObjectId> = self.files.read().keys().copied().collect();
        for (id, slot) in self.tiers.iter() {
            let mut orphans = Vec::new();
            let listed = slot.tier.list(&mut |object| {
                report.objects += 1;
                if !known.contains(&object) {
                    orphans.push(object);
                }
            });
            if let Err(error) = listed {
                finding(
                    &mut report,
                    slot.tier.name().as_bytes().to_vec(),
                    format!("cannot be listed: {error}"),
                    "none",
                    false,
                );
            }
            for object in orphans {
                // Created since `known` was read, or about to be collected: not an orphan.
                if !self.files.read().contains_key(&object) {
                    self.check_orphan(id, slot, object, dry_run, &mut report);
                }
            }
        }
        report
    }

    fn check_file(
        &self,
        file: &Arc<File>,
        dry_run: bool,
        checksums: bool,
        report: &mut FsckReport,
    ) {
        let (residency, size, name) = {
            let state = file.lock();
            if state.is_unlinked() || state.demoting {
                return;
            }
            (
                state.residency,
                state.meta.size,
                state.names.first().cloned(),
            )
        };
        let path = file.path();
        let Some((object, found)) = self.open_checked(file, &residency, dry_run, report) else {
            return;
        };
        // Whose it is comes first: what is taken for a damaged copy of this file and dropped could be the
        // only copy of another.
        if !self.check_identity(file, residency.tier, &path, report) {
            return;
        }
        if found != size {
            let problem = format!("its object has {found} bytes, its record {size}");
            return self.mend_copy(file, residency.clean, path, problem, dry_run, report);
        }
        let compare = residency.clean && !self.pulse().is_silent();
        if let (true, Some((dir, name))) = (compare, &name) {
            let stat = self
                .ns
                .open_dir(dir)
                .and_then(|d| Ok(self.ns.pfs().stat(&d, name)?));
            let same = stat
                .as_ref()
                .is_ok_and(|s| residency.published == Some(Published::from(s)));
            if let Err(error) = &stat
                && !matches!(
                    error.errno(),
                    Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE
                )
            {
                let problem = format!("cannot be compared with the PFS: {error}");
                return finding(report, path, problem, "none", false);
            }
            if !same {
                let dropped = dry_run || self.evict(file).is_some();
                return finding(
                    report,
                    path,
                    "changed or removed on the PFS since it was copied".into(),
                    "the copy is dropped",
                    dropped,
                );
            }
        }
        if let (true, Some(expected)) = (checksums, residency.crc) {
            report.verified_bytes += size;
            match checksum(&*object, size, &|| self.is_ending()) {
                Ok(crc) if crc == expected => {}
                Ok(crc) => {
                    let problem = format!("checksum mismatch: {crc:08x} instead of {expected:08x}");
                    self.mend_copy(file, residency.clean, path, problem, dry_run, report);
                }
                Err(error) => finding(
                    report,
                    path,
                    format!("its object cannot be read: {error}"),
                    "none",
                    false,
                ),
            }
        }
    }

    /// A file's object and its size, if it can be had.
    fn open_checked(
        &self,
        file: &Arc<File>,
        residency: &Residency,
        dry_run: bool,
        report: &mut FsckReport,
    ) -> Option<(Arc<dyn Object>, u64)> {
        let opened = self.tiers.open_object(residency.tier, file.object);
        let stat = opened.and_then(|object| object.stat().map(|stat| (object, stat.size)));
        let error = match stat {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        let missing = error.raw_os_error() == Some(libc::ENOENT);
        let (action, mended) = match (missing, residency.clean) {
            (true, true) => (
                "its record is dropped: the PFS has it",
                dry_run || self.ns.disown(file).is_ok(),
            ),
            (true, false) => ("none: the data is not on the PFS", false),
            (false, _) => ("none", false),
        };
        let problem = format!("its object cannot be opened: {error}");
        finding(report, file.path(), problem, action, mended);
        None
    }

    /// Whether the object says that it is this file's.
    fn check_identity(
        &self,
        file: &File,
        tier: TierId,
        path: &[u8],
        report: &mut FsckReport,
    ) -> bool {
        let Some(slot) = self.tiers.get(tier) else {
            return false;
        };
        let (problem, action) = match slot.tier.identity(file.object) {
            Ok(Some(identity))
                if identity.object == file.object && identity.instance == self.ns.instance() =>
            {
                return true;
            }
            Ok(Some(identity)) => (
                format!("its object says that it is object {}", identity.object),
                "none: compare it with the PFS",
            ),
            Ok(None) => ("its object carries no identity".into(), "none"),
            Err(error) => (format!("its object's identity: {error}"), "none"),
        };
        finding(report, path.to_vec(), problem, action, false);
        false
    }

    /// A damaged copy: dropped where the PFS has a good one.
    fn mend_copy(
        &self,
        file: &Arc<File>,
        clean: bool,
        path: Vec<u8>,
        problem: String,
        dry_run: bool,
        report: &mut FsckReport,
    ) {
        if !clean {
            return finding(report, path, problem, "none: it is the only copy", false);
        }
        let good = match (self.pfs_crc(file), file.lock().residency.crc) {
            (Ok(found), Some(expected)) => found == expected,
            (Ok(_), None) => true,
            (Err(_), _) => false,
        };
        match good {
            true => {
                let dropped = dry_run || self.evict(file).is_some();
                finding(
                    report,
                    path,
                    problem,
                    "the copy is dropped: the PFS has a good one",
                    dropped,
                );
            }
            false => finding(
                report,
                path,
                problem,
                "none: the PFS's copy is not as it was published either",
                false,
            ),
        }
    }

    fn pfs_crc(&self, file: &File) -> Result<u32, Errno> {
        let (dir, name) = file.lock().names.first().cloned().ok_or(Errno::ENOENT)?;
        let handle = self.ns.open_dir(&dir)?;
        let object = FileObject::new(self.ns.pfs().open_file(&handle, &name, false)?);
        let size = object.stat()?.size;
        Ok(checksum(&object, size, &|| self.is_ending())?)
    }

    /// An object without a record: its data is put on the PFS beside where it belonged.
    fn check_orphan(
        &self,
        tier: TierId,
        slot: &Slot,
        object: ObjectId,
        dry_run: bool,
        report: &mut FsckReport,
    ) {
        let subject = match slot.tier.identity(object) {
            Ok(Some(identity)) if !identity.path.is_empty() => identity.path,
            _ => object.to_string().into_bytes(),
        };
        let problem = format!("object {object} in {} has no record", slot.tier.name());
        let name = format!("forebay-recovered-{object}");
        let action = format!("its data is kept on the PFS as {name}");
        let mended = dry_run || {
            let kept = self.keep_orphan(slot, object, name.as_bytes());
            if let Err(errno) = kept {
                self.report(
                    subject.clone(),
                    errno,
                    format!("orphan {object} cannot be kept: {errno}"),
                );
            }
            kept.is_ok() && slot.tier.remove(object).is_ok()
        };
        if tier == crate::tierset::OVERFLOW || slot.kind != TierKind::Null {
            finding(report, subject, problem, &action, mended);
        }
    }

    fn keep_orphan(&self, slot: &Slot, object: ObjectId, name: &[u8]) -> Result<(), Errno> {
        let source = slot.tier.open(object)?;
        let root = self.ns.pfs().root();
        let temporary =
            forebay_tiers::PfsTree::temporary_name(self.ns.instance(), object, Default::default());
        let file = FileObject::new(self.ns.pfs().create_temporary(root, &temporary, 0o600)?);
        let report = copy(&*source, &file, &CopyControl::NONE).map_err(|e| e.errno())?;
        file.sync(false)?;
        forebay_tiers::verify(&file, &report, &|| false).map_err(|e| e.errno())?;
        self.ns
            .pfs()
            .rename(root, &temporary, root, name, RenameMode::NoReplace)?;
        Ok(self.ns.pfs().sync_dir(root)?)
    }
}

fn finding(
    report: &mut FsckReport,
    subject: Vec<u8>,
    problem: String,
    action: &str,
    repaired: bool,
) {
    report.findings.push(Finding {
        subject,
        problem,
        action: action.into(),
        repaired,
    });
}
