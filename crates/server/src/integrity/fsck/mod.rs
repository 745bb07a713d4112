//! fsck: records, objects and PFS against each other. What is wrong is one of `policy`'s kinds of
//! damage, and `policy` says what is done about it; nothing that may be the only copy is removed.

mod files;
mod recover;
mod strays;

use std::collections::HashSet;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_namespace::{File, Loaded, NsError};
use forebay_policy::repair::{Damage, Knowledge, Remedy, remedy};
use forebay_types::{Errno, ObjectId, TierId};
use forebay_wire::control::{Finding, FsckReport};

use crate::base::failure::Failure;
use crate::buffer::opens::Claim;
use crate::integrity::Integrity;

/// Folder in the state folder for records that do not decode.
const LOST_FOUND: &str = "lost+found";

/// A check under way.
struct Check<'a> {
    integrity: &'a Integrity,
    dry_run: bool,
    checksums: bool,
    /// With `checksums`: what the PFS has is read, too.
    originals: bool,
    /// The caller has claimed the file.
    claimed: bool,
    /// The burst buffer is running: files come and go meanwhile.
    served: bool,
    /// Objects that no record named when they were listed.
    unknown: Vec<(TierId, ObjectId)>,
    report: FsckReport,
}

/// One damage before a remedy is chosen.
struct Wrong {
    damage: Damage,
    subject: Vec<u8>,
    problem: String,
    known: Knowledge,
}

impl Integrity {
    /// Checks everything and, unless `dry_run`, mends what can be mended. `checksums` reads every
    /// object whose checksum is known, and of clean ones what the PFS has too. `served`: files come
    /// and go meanwhile; what is no longer so when it is about to be mended is no finding.
    pub fn fsck(&self, dry_run: bool, checksums: bool, served: bool) -> FsckReport {
        let mut check = Check {
            integrity: self,
            dry_run,
            checksums,
            originals: checksums,
            claimed: false,
            served,
            unknown: Vec::new(),
            report: FsckReport::default(),
        };
        check.pfs_answers();
        check.records();
        let files: Vec<Arc<File>> = self.buffer.files();
        for file in &files {
            check.report.records += 1;
            if self.buffer.opens().by_ino(file.ino).is_none() {
                check.file(file);
            }
        }
        check.strays();
        check.report
    }

    /// Checks one file that the caller has claimed and that nobody has open, and mends it if that
    /// is safe. What the PFS has is only read if what is here is damaged.
    pub(crate) fn check_claimed(&self, _claim: &Claim<'_>, file: &Arc<File>) -> FsckReport {
        let mut check = Check {
            integrity: self,
            dry_run: false,
            checksums: true,
            originals: false,
            claimed: true,
            // Nobody else touches what is claimed.
            served: false,
            unknown: Vec::new(),
            report: FsckReport::default(),
        };
        check.file(file);
        check.report
    }

    /// Takes the files over for a check of a state that is not served: nothing is adopted or
    /// removed on the way, and what is missing is left to be found.
    pub fn open_for_check(&self, mut loaded: Loaded, dry_run: bool) -> Result<(), NsError> {
        if !dry_run {
            self.settle_for_check(&mut loaded)?;
        }
        for file in loaded.files {
            if file.lock().is_unlinked() {
                continue;
            }
            self.buffer
                .enter(&file, &self.catalog.rules().identify(&file.path()));
            let (tier, bytes, dirty) = {
                let state = file.lock();
                (
                    state.residency.tier,
                    state.meta.allocated_bytes,
                    state.is_dirty(),
                )
            };
            self.buffer.arrive(file.object, tier, bytes, dirty);
        }
        for file in loaded.nameless {
            let residency = file.lock().residency;
            self.buffer
                .enter(&file, &self.catalog.rules().identify(&file.path()));
            let bytes = file.lock().meta.allocated_bytes;
            self.buffer.arrive(file.object, residency.tier, bytes, true);
            self.buffer.ledger().set_nameless(file.object, true);
        }
        for (object, record) in &loaded.lost {
            self.buffer.book_stranded(*object, record);
        }
        Ok(())
    }

    /// Finishes the renames and demotions that a crash has left half done, before a check that
    /// mends.
    fn settle_for_check(&self, loaded: &mut Loaded) -> Result<(), NsError> {
        self.ns.settle_unpublished()?;
        for pending in loaded.changes.drain(..) {
            self.ns.settle_change(pending)?;
        }
        loaded.nameless.extend(self.ns.settle_nameless()?);
        for file in loaded.files.iter().filter(|f| !f.lock().is_unlinked()) {
            self.ns.settle_demotion(file)?;
        }
        self.base.absorb_conflicts();
        Ok(())
    }
}

impl Check<'_> {
    /// Notes what is wrong, and mends it with `act` if there is a remedy.
    fn found(&mut self, wrong: Wrong, act: impl FnOnce(&Integrity, Remedy) -> Result<(), Failure>) {
        let remedy = remedy(wrong.damage, wrong.known);
        let mut action = remedy.describe().to_string();
        let mended = match remedy {
            Remedy::Leave => false,
            _ if self.dry_run => true,
            _ => match act(self.integrity, remedy) {
                Ok(()) => true,
                // Somebody has removed it since it was seen.
                Err(failure) if self.served && failure.errno() == Errno::ENOENT => return,
                Err(failure) => {
                    action = format!("{action}; that failed: {failure}");
                    false
                }
            },
        };
        self.report.findings.push(Finding {
            kind: wrong.damage.to_string(),
            subject: wrong.subject,
            problem: wrong.problem,
            action,
            repaired: mended,
        });
    }

    /// Adds a finding if the PFS does not answer: what is on the PFS is not looked at then.
    fn pfs_answers(&mut self) {
        let Some(silent) = self.integrity.base.health().silent_for() else {
            return;
        };
        let silent = forebay_types::format_duration(Duration::from_secs(silent.as_secs()));
        self.report.findings.push(Finding {
            kind: "pfs-silent".into(),
            subject: b"(PFS)".to_vec(),
            problem: format!("has not answered for {silent}"),
            action: "none: clean copies are not compared with it".into(),
            repaired: false,
        });
    }

    /// A part of the check could not be done: said as what it hides.
    fn unchecked(&mut self, subject: &[u8], damage: Damage, why: &dyn std::fmt::Display) {
        let wrong = Wrong {
            damage,
            subject: subject.to_vec(),
            problem: format!("cannot be checked: {why}"),
            known: Knowledge::default(),
        };
        self.found(wrong, |_, _| Err(Errno::EIO.into()));
    }
}

/// Keeps the bytes of a record in the state folder.
fn keep_record(integrity: &Integrity, key: &[u8], value: &[u8]) -> Result<(), Failure> {
    let dir = integrity.settings.state.join(LOST_FOUND);
    forebay_tiers::make_private(&dir)?;
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join(format!("record-{hex}"));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    std::io::Write::write_all(&mut file, value)?;
    file.sync_all()?;
    std::fs::File::open(&dir)?.sync_all()?;
    Ok(())
}

/// Objects by tier.
type Listed = Vec<(TierId, HashSet<ObjectId>)>;

#[cfg(test)]
mod tests {
    use forebay_namespace::Garbage;
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::{Errno, Ino};
    use forebay_wire::OUT_OF_REACH;
    use forebay_wire::control::Finding;

    use super::*;
    use crate::testing::{FLASH, Lab, create, drain};

    fn check(integrity: &Integrity) -> Check<'_> {
        Check {
            integrity,
            dry_run: false,
            checksums: false,
            originals: false,
            claimed: false,
            served: true,
            unknown: Vec::new(),
            report: FsckReport::default(),
        }
    }

    fn found(served: bool, errno: Errno) -> Vec<Finding> {
        let lab = Lab::new();
        let mut check = Check {
            served,
            ..check(&lab.rooms().integrity)
        };
        let wrong = Wrong {
            damage: Damage::StrayCopy,
            subject: b"f".to_vec(),
            problem: String::new(),
            known: Knowledge::default(),
        };
        check.found(wrong, |_, _| Err(errno.into()));
        check.report.findings
    }

    #[test]
    fn what_somebody_has_just_removed_is_no_finding() {
        assert_eq!(found(true, Errno::ENOENT), []);
        assert_eq!(found(true, Errno::EIO).len(), 1);
        assert_eq!(
            found(false, Errno::ENOENT).len(),
            1,
            "nobody else was there"
        );
    }

    #[test]
    fn what_is_being_removed_on_a_running_burst_buffer_is_no_finding() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let integrity = &rooms.integrity;
        let object = ObjectId(0x77_0000_0042);
        let slot = integrity.buffer.tiers().get(FLASH).expect("flash");
        let identity = rooms.buffer.identity(&rooms.buffer.files()[0], false);
        slot.tier.create(object, &identity).expect("object");
        let garbage = [Garbage {
            object,
            tiers: [Some(FLASH), None],
        }];
        for (served, findings) in [(true, 0), (false, 1)] {
            let mut check = Check {
                served,
                ..check(integrity)
            };
            check.object_at(FLASH, slot, object, &garbage);
            assert_eq!(check.report.findings.len(), findings);
        }
    }

    #[test]
    fn a_file_that_is_removed_while_it_is_looked_at_is_no_finding() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        let file = rooms.buffer.files().remove(0);
        let facts = files::Facts::of(&file).expect("facts");
        rooms.base.ns().unlink(Ino::ROOT, b"f").expect("unlink");
        rooms.files.collect_garbage();
        let mut check = check(&rooms.integrity);
        assert!(check.object(&facts).is_none());
        assert_eq!(check.report.findings, []);
    }

    #[test]
    fn a_node_that_goes_while_its_objects_are_checked_is_no_damage() {
        let (lab, flash) = Lab::with_faulty_flash();
        let rooms = lab.rooms();
        let handle = create(rooms, b"f", b"content");
        rooms.files.release(handle).expect("close");
        drain(rooms);
        for (operation, errno, findings) in [
            (Operation::Read, OUT_OF_REACH, 0),
            (Operation::Stat, OUT_OF_REACH, 0),
            (Operation::Stat, Errno::EIO, 1),
        ] {
            let fault = flash.inject(operation, When::Every, Effect::Fail(errno));
            let report = rooms.integrity.fsck(true, true, true);
            assert!(flash.fired(fault) > 0, "{operation:?}");
            assert_eq!(report.findings.len(), findings, "{:?}", report.findings);
            flash.heal(fault);
        }
    }
}
