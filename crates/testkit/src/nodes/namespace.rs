//! Network namespaces without names.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::leftovers;
use crate::process::run_bounded;

/// What sets up a network answers at once; more is a hang.
const LIMIT: Duration = Duration::from_secs(30);

/// Device and inode number, by which a namespace is known.
pub type Id = (u64, u64);

/// A network namespace, which lives as long as this, a process or a socket is in it.
#[derive(Clone)]
pub struct NetNs {
    file: Arc<File>,
    id: Id,
}

impl NetNs {
    /// A new one, with nothing in it but a loopback interface that is down.
    pub fn new() -> io::Result<NetNs> {
        // Another thread than the test's, which stays where it is.
        let made = std::thread::scope(|scope| {
            let made = scope.spawn(|| {
                // SAFETY: of what a thread has, only the network goes. No memory or descriptor is
                // shared less than before.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
                File::open("/proc/thread-self/ns/net")
            });
            made.join().expect("a thread that makes a namespace")
        });
        let file = made?;
        let id = id_of(&file.metadata()?);
        Ok(NetNs {
            file: Arc::new(file),
            id,
        })
    }

    pub fn id(&self) -> Id {
        self.id
    }

    /// A path by which ip(8) finds it, as long as this process has it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Moves the calling thread.
    pub fn enter(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.file.as_fd(), kind)?)
    }

    /// A command that runs in it.
    pub fn place(&self, command: &mut Command) {
        leftovers::mark(command);
        let space = self.clone();
        // SAFETY: in the child, setns(2) alone is called: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(move || space.enter()) };
    }

    /// Runs something on a thread that is in it. Sockets that are made there stay there.
    #[track_caller]
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                self.enter().expect("setns");
                work()
            });
            let done = done.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs one of the programs that set up a network; what it says.
    #[track_caller]
    pub fn run(&self, words: &str) -> String {
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        self.place(&mut command);
        run_bounded(&mut command, LIMIT).ok().stdout
    }

    /// The same with one argument that has spaces.
    #[track_caller]
    pub fn run_script(&self, program: &str, script: &str) {
        let mut command = Command::new(program);
        command.arg(script);
        self.place(&mut command);
        run_bounded(&mut command, LIMIT).ok();
    }
}

pub fn id_of(meta: &std::fs::Metadata) -> Id {
    (meta.dev(), meta.ino())
}
