//! Faults for tests, written into a folder while the file system runs:
//!
//! ```text
//! hang               while it is there, no operation begins
//! OPERATION.hold     "before|after NAME": the next such operation on NAME (any, if empty) stops
//!                    before or after it has been done; the file is called OPERATION.held
//!                    meanwhile, and it goes on when that is removed
//! OPERATION.error    "before|after ERRNO NAME": while it is there, such operations fail, not done
//!                    or done; OPERATION.failed gets a byte for each
//! ```

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How often a held operation looks whether it may go on.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The folder, if there is one, and how long an answer takes.
pub struct Faults(Option<PathBuf>, Duration);

impl Faults {
    pub fn new(folder: Option<PathBuf>, latency: Duration) -> Faults {
        Faults(folder, latency)
    }

    /// As far away as a server is: to be called where one would be asked.
    pub fn travel(&self) {
        if !self.1.is_zero() {
            std::thread::sleep(self.1);
        }
    }

    /// Whether faults can be told.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// To be called before an operation.
    pub fn before(&self, operation: &str, name: &OsStr) -> Result<(), Errno> {
        let Some(folder) = &self.0 else {
            return Ok(());
        };
        while folder.join("hang").exists() {
            std::thread::sleep(LOOK_EVERY);
        }
        self.meet("before", operation, name)
    }

    /// To be called when it is done, but not answered.
    pub fn after(&self, operation: &str, name: &OsStr) -> Result<(), Errno> {
        self.meet("after", operation, name)
    }

    fn meet(&self, when: &str, operation: &str, name: &OsStr) -> Result<(), Errno> {
        let Some(folder) = &self.0 else {
            return Ok(());
        };
        let order = |kind: &str| {
            let text = std::fs::read_to_string(folder.join(format!("{operation}.{kind}"))).ok()?;
            let (at, rest) = text.split_once(' ')?;
            (at == when).then(|| rest.to_string())
        };
        let is_meant = |meant: &str| meant.is_empty() || OsStr::new(meant) == name;
        if order("hold").is_some_and(|meant| is_meant(&meant)) {
            let held = folder.join(format!("{operation}.held"));
            let hold = held.with_extension("hold");
            // Of two at once, one is held.
            if std::fs::rename(hold, &held).is_ok() {
                while held.exists() {
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
        if let Some(order) = order("error")
            && let Some((errno, meant)) = order.split_once(' ')
            && is_meant(meant)
            && let Ok(errno) = errno.parse()
        {
            let told = folder.join(format!("{operation}.failed"));
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
            rustix::io::write(rustix::fs::open(told, flags, Mode::RUSR)?, b".")?;
            return Err(Errno::from_raw_os_error(errno));
        }
        Ok(())
    }
}
