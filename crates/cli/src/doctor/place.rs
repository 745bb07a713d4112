//! One directory: its mount, its device, and what was tried in it.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_server::Settings;
use parking_lot::Mutex;

use super::device;
use super::finding::{Finding, Grade};
use super::{flash, pfs, trials};
use crate::exit::reason;
use crate::mounts::{self, MountEntry};
use crate::scratch::{Scratch, Stop};
use crate::show::text::show_path;

/// What a directory is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tier on flash.
    Flash,
    /// The slow file system.
    Pfs,
}

impl Kind {
    /// Name of its section.
    pub fn area(self) -> &'static str {
        match self {
            Kind::Flash => "flash",
            Kind::Pfs => "pfs",
        }
    }
}

/// A directory to be looked at.
pub struct Place {
    kind: Kind,
    dir: PathBuf,
    ssds: Vec<PathBuf>,
    stop: Stop,
    made: Arc<Mutex<Option<PathBuf>>>,
}

impl Place {
    /// `ssds`: all flash directories, of which the PFS should be apart.
    pub fn new(kind: Kind, dir: PathBuf, ssds: Vec<PathBuf>) -> Place {
        Place {
            kind,
            dir,
            ssds,
            stop: Stop::default(),
            made: Arc::default(),
        }
    }

    /// Ends the looking at the next step.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// The directory for temporary files, while there is one.
    pub fn made(&self) -> Arc<Mutex<Option<PathBuf>>> {
        self.made.clone()
    }

    /// Looks at it. When this returns nothing is left there, or a finding names it.
    pub fn look(&self) -> Vec<Finding> {
        let dir = match self.open() {
            Ok(dir) => dir,
            Err(finding) => return vec![finding],
        };
        let table = mounts::read().unwrap_or_default();
        let mount = mounts::covering(&table, &dir);
        let mut findings = Vec::new();
        match self.kind {
            Kind::Flash => {
                findings.extend(flash::judge_mount(mount));
                let overrun = Settings::new(PathBuf::new(), None, PathBuf::new()).overrun_bytes();
                findings.push(flash::judge_space(&dir, Some(overrun)));
            }
            Kind::Pfs => {
                findings.push(pfs::judge_mount(mount));
                findings.extend(self.judge_apart(&dir));
                findings.push(flash::judge_space(&dir, None));
            }
        }
        findings.extend(self.try_in(&dir, mount));
        findings
    }

    /// The directory itself, without links.
    fn open(&self) -> Result<PathBuf, Finding> {
        let bad = |error: io::Error, todo: &str| {
            Finding::new("directory", Grade::Bad, reason(&error), todo)
        };
        let dir = std::fs::canonicalize(&self.dir)
            .map_err(|error| bad(error, "give an existing directory"))?;
        // A file is none, and one that may not be listed is of no use.
        let listed = std::fs::read_dir(&dir).and_then(|mut entries| entries.next().transpose());
        listed.map_err(|error| bad(error, "give a directory that you may read"))?;
        Ok(dir)
    }

    fn judge_apart(&self, dir: &Path) -> Vec<Finding> {
        let number = |dir: &Path| std::fs::metadata(dir).ok().map(|meta| meta.dev());
        let own = number(dir);
        let beside = self
            .ssds
            .iter()
            .filter(|ssd| own.is_some() && number(ssd) == own);
        let slow = |ssd: &PathBuf| {
            Finding::new(
                "apart from flash",
                Grade::Slow,
                format!(
                    "{} is in the same file system",
                    show_path(ssd.as_os_str().as_bytes())
                ),
                "give --ssd on another, faster device: a burst buffer on the PFS's own is no faster than the PFS",
            )
        };
        beside.map(slow).collect()
    }

    fn try_in(&self, dir: &Path, mount: Option<&MountEntry>) -> Vec<Finding> {
        let scratch = match Scratch::new(dir, "doctor") {
            Ok(scratch) => scratch,
            Err(error) => {
                let found = format!("no directory can be made there: {}", reason(&error));
                let todo =
                    "choose a directory that you may write to; what else it can do was not tried";
                return vec![Finding::new("writing", Grade::Bad, found, todo)];
            }
        };
        *self.made.lock() = Some(scratch.path().to_path_buf());
        let mut findings = vec![Finding::ok(
            "writing",
            "a directory and files can be made there",
        )];
        let tried = match self.kind {
            Kind::Flash => self.try_flash(dir, &scratch, mount, &mut findings),
            Kind::Pfs => self.try_pfs(&scratch, &mut findings),
        };
        if let Err(error) = tried {
            let found = format!("ended by an error: {}", reason(&error));
            let todo = "what stands above was tried before; set that right and look again";
            findings.push(Finding::new("trials", Grade::Bad, found, todo));
        }
        let path = scratch.path().to_path_buf();
        match scratch.remove() {
            Ok(()) => *self.made.lock() = None,
            Err(error) => findings.push(Finding::new(
                "cleaning up",
                Grade::Bad,
                format!("{} is left there: {}", path.display(), reason(&error)),
                "remove it",
            )),
        }
        findings
    }

    fn try_flash(
        &self,
        dir: &Path,
        scratch: &Scratch,
        mount: Option<&MountEntry>,
        findings: &mut Vec<Finding>,
    ) -> io::Result<()> {
        let devices = device::below(dir, mount);
        findings.extend(device::judge_kind(&devices));
        findings.extend(flash::judge(&trials::run(scratch, &self.stop)?));
        let (times, flushes) =
            trials::time_fsyncs(scratch, &self.stop, || device::flushes(&devices))?;
        // In memory there is nothing to flush to, which was said.
        if !flash::is_memory(mount) {
            findings.extend(times.map(|times| device::judge_flushes(&devices, &times, flushes)));
        }
        Ok(())
    }

    fn try_pfs(&self, scratch: &Scratch, findings: &mut Vec<Finding>) -> io::Result<()> {
        let root = rustix::process::geteuid().is_root();
        findings.extend(pfs::judge(&trials::run(scratch, &self.stop)?, root));
        let times = trials::time_publications(scratch, &self.stop)?;
        findings.extend(times.map(|times| pfs::judge_publications(&times)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(findings: &[Finding], grade: Grade) -> Vec<&'static str> {
        let of_grade = findings.iter().filter(|one| one.grade == grade);
        of_grade.map(|one| one.check).collect()
    }

    #[test]
    fn what_is_no_directory_is_bad_and_nothing_is_tried() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("file");
        std::fs::write(&file, "x").expect("write");
        for dir in [file, folder.path().join("none")] {
            let findings = Place::new(Kind::Pfs, dir, Vec::new()).look();
            assert_eq!(checks(&findings, Grade::Bad), ["directory"], "{findings:?}");
            assert_eq!(findings.len(), 1);
        }
    }

    #[test]
    fn flash_in_the_pfs_is_slow_and_nothing_is_left() {
        let folder = tempfile::tempdir().expect("tempdir");
        let dir = folder.path().to_path_buf();
        let place = Place::new(Kind::Pfs, dir.clone(), vec![dir.clone()]);
        let findings = place.look();
        assert!(
            checks(&findings, Grade::Slow).contains(&"apart from flash"),
            "{findings:?}"
        );
        assert_eq!(*place.made().lock(), None);
        assert_eq!(std::fs::read_dir(&dir).expect("read_dir").count(), 0);
    }

    #[test]
    fn an_order_to_stop_leaves_nothing() {
        let folder = tempfile::tempdir().expect("tempdir");
        let place = Place::new(Kind::Pfs, folder.path().to_path_buf(), Vec::new());
        place.stop().order();
        assert_eq!(checks(&place.look(), Grade::Bad), ["trials"]);
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("read_dir").count(),
            0
        );
    }
}
