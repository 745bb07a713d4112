//! A PFS that can hang: a FUSE file system whose process is stopped. Every call on it then blocks
//! until the process goes on, as with a network file system whose server is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::program::helper;
use crate::wait::wait_until;

/// The folder that a [`FusePfs`] shows; a disk may be mounted there before.
pub(crate) const BEHIND: &str = "pfs-behind";

/// A directory shown through a FUSE file system of its own. Dropping it ends that, hanging or not.
/// Needs root.
pub struct FusePfs {
    child: Child,
    source: PathBuf,
    faults: PathBuf,
    point: PathBuf,
}

/// When a fault meets an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is not done.
    Before,
    /// It is done, and not answered yet.
    After,
}

impl When {
    fn word(self) -> &'static str {
        match self {
            When::Before => "before",
            When::After => "after",
        }
    }
}

impl FusePfs {
    /// Shows a new directory in `folder` on `point`, which exists.
    pub fn new(folder: &Path, point: &Path) -> FusePfs {
        FusePfs::with(folder, point, None)
    }

    /// The same; `squash`: all new files belong to this user, and stay so.
    pub(crate) fn with(folder: &Path, point: &Path, squash: Option<u32>) -> FusePfs {
        let source = folder.join(BEHIND);
        let faults = folder.join("pfs-faults");
        fs::create_dir_all(&source).expect("mkdir");
        fs::create_dir(&faults).expect("mkdir");
        let child = Command::new(helper("bare-passthrough"))
            .args(["--plain", "--permissions", "--faults"])
            .args([&faults, &source, point])
            .args(squash.map(|uid| format!("--squash={uid}")))
            .stdin(Stdio::null())
            .spawn()
            .expect("bare-passthrough runs");
        let made = FusePfs {
            child,
            source,
            faults,
            point: point.to_path_buf(),
        };
        // The kernel learns that it need not ask at every close, which it would wait for even in a
        // process that is being killed.
        let probe = made.source.join("probe");
        fs::write(&probe, "").expect("probe");
        wait_until("the PFS is mounted", || point.join("probe").exists());
        drop(fs::File::open(point.join("probe")).expect("probe"));
        fs::remove_file(probe).expect("probe");
        made
    }

    /// What it shows, at the side of it: is there while it hangs.
    pub fn behind(&self, path: impl AsRef<Path>) -> PathBuf {
        self.source.join(path)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal");
    }

    /// From now on nothing on it returns.
    pub fn hang(&self) {
        wait_until("the PFS stops between two requests", || {
            self.signal(Signal::STOP);
            wait_until("the PFS is stopped", || self.threads("State:\tT"));
            // Who waits for a request that it has taken already could not even be killed.
            let idle = self.is_idle();
            if !idle {
                self.signal(Signal::CONT);
                std::thread::sleep(Duration::from_millis(5));
            }
            idle
        });
    }

    fn order(&self, name: String, text: String) {
        // At once, or not yet.
        let aside = self.faults.join(format!("{name}.new"));
        fs::write(&aside, text).expect("fault");
        fs::rename(aside, self.faults.join(name)).expect("fault");
    }

    fn take_back(&self, name: &str) {
        let gone = fs::remove_file(self.faults.join(name));
        assert!(gone.is_ok(), "{name} was not under way: {gone:?}");
    }

    /// Stops in the next `operation` (link, rename, fsync, fsyncdir, unlink, create, lookup,
    /// getattr) on this name, or any if it is empty.
    pub fn hold(&self, operation: &str, when: When, name: &str) {
        self.order(
            format!("{operation}.hold"),
            format!("{} {name}", when.word()),
        );
    }

    /// Waits until it has stopped there.
    pub fn wait_held(&self, operation: &str) {
        let held = self.faults.join(format!("{operation}.held"));
        wait_until("the PFS is in the midst of it", || held.exists());
    }

    /// That operation goes on; others that hang do not.
    pub fn let_go(&self, operation: &str) {
        self.take_back(&format!("{operation}.held"));
    }

    /// From now on no operation begins. [`Self::hang`] cannot stop it in the midst of one.
    pub fn begin_nothing(&self) {
        self.order("hang".into(), String::new());
    }

    /// From now on every `operation` on this name, or any if it is empty, fails.
    pub fn fail(&self, operation: &str, when: When, errno: i32, name: &str) {
        let text = format!("{} {errno} {name}", when.word());
        self.order(format!("{operation}.error"), text);
    }

    /// No longer.
    pub fn heal(&self, operation: &str) {
        self.take_back(&format!("{operation}.error"));
    }

    /// It goes on where it stopped, and fails no more.
    pub fn go_on(&self) {
        for fault in fs::read_dir(&self.faults).into_iter().flatten().flatten() {
            // It may have been met, and so renamed, just now.
            let _ = fs::remove_file(fault.path());
        }
        self.signal(Signal::CONT);
    }

    fn tasks(&self) -> Vec<PathBuf> {
        let folder = format!("/proc/{}/task", self.child.id());
        let tasks = fs::read_dir(folder).expect("its threads");
        tasks.map(|task| task.expect("thread").path()).collect()
    }

    fn threads(&self, state: &str) -> bool {
        self.tasks().iter().all(|task| {
            let status = fs::read_to_string(task.join("status")).unwrap_or_default();
            status.contains(state)
        })
    }

    /// Whether all its threads that serve requests wait for one.
    fn is_idle(&self) -> bool {
        let reads = format!("{} ", libc::SYS_read);
        self.tasks().iter().all(|task| {
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            let serves = name
                .trim()
                .strip_prefix("fuser-")
                .is_some_and(|n| n != "bg");
            // Where it cannot be seen, it is most likely so.
            !serves
                || fs::read_to_string(task.join("syscall"))
                    .is_ok_and(|call| call.starts_with(&reads))
        })
    }
}

impl Drop for FusePfs {
    fn drop(&mut self) {
        // Whoever waits for it gets an error.
        let _ = self.child.kill();
        let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
        let _ = self.child.wait();
        while unmount(&self.point, UnmountFlags::DETACH).is_ok() {}
    }
}
