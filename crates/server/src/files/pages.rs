//! Stores through mappings of files that are served by requests. The kernel keeps such a store as a
//! dirty page, and no request tells of it before the kernel writes that page back.
//!
//! 1. Only a handle for reading and writing can be mapped so. The mapping keeps the handle open:
//!    the kernel releases it when the mapping has ended and its pages are written back.
//! 2. So a file without such a handle has no store that the server has not heard of.
//! 3. Of a file with such a handle the kernel can be asked to write back what there is. What is
//!    stored after that is later than the question.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_types::{Errno, Ino};
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::buffer::opens::{OpenFile, Target};
use crate::files::Files;

/// Makes the kernel write back what it keeps of a file, and forget the rest. It returns when the
/// requests for that have been answered.
pub type WriteBack = Box<dyn Fn(Ino) -> io::Result<()> + Send + Sync>;

/// Who waits for the kernel looks this often whether that still makes sense.
const LOOK: Duration = Duration::from_millis(20);

/// The last stores before the end may take so long.
const LAST: Duration = Duration::from_secs(20);

/// So many of the files that hold up the end are named.
const NAMED_MAX: usize = 100;

/// Files that hold up an end after a drain: they can be stored into, and nothing tells of it.
#[derive(Clone, Debug, Default)]
pub struct Holding {
    /// How many.
    pub total: u64,
    /// Paths of the first.
    pub paths: Vec<Vec<u8>>,
}

/// What the kernel keeps.
#[derive(Default)]
pub struct Pages {
    /// Not set while nothing is mounted.
    write_back: Arc<OnceLock<WriteBack>>,
    holding: Mutex<Holding>,
}

impl Pages {
    /// Takes the way to ask the kernel.
    pub fn write_back_by(&self, way: WriteBack) {
        // A server has one mount, so it is set once.
        let _ = self.write_back.set(way);
    }

    /// What has held up the last end after a drain.
    pub fn holding(&self) -> Holding {
        self.holding.lock().clone()
    }
}

impl Files {
    /// What the kernel keeps.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Files into which somebody may store through a mapping without the server's hearing of it.
    pub fn stored_unheard(&self) -> Vec<Arc<OpenFile>> {
        let mut found = Vec::new();
        (self.buffer.opens())
            .each(|open| found.extend(open.is_stored_unheard().then(|| open.clone())));
        found
    }

    /// Makes the kernel write back what it keeps of a file: the file is changed then as by any
    /// other write. `ECANCELED` where that takes longer than `go_on` says.
    pub fn fetch_stores(&self, ino: Ino, go_on: &dyn Fn() -> bool) -> Result<(), Errno> {
        if self.pages.write_back.get().is_none() {
            return Ok(());
        }
        let (send, done) = channel();
        let way = self.pages.write_back.clone();
        // The requests may wait for the PFS: a thread that waits for them must not be needed.
        std::thread::Builder::new()
            .name("fb-pages".into())
            .spawn(move || {
                let asked = way.get().map_or(Ok(()), |write_back| write_back(ino));
                // If nobody waits any more, nobody misses it.
                drop(send.send(asked));
            })?;
        loop {
            match done.recv_timeout(LOOK) {
                Ok(asked) => return Ok(asked?),
                Err(RecvTimeoutError::Timeout) if go_on() => {}
                Err(RecvTimeoutError::Timeout) => return Err(Errno::ECANCELED),
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO),
            }
        }
    }

    /// Looks which files hold up an end after a drain: those that nothing but the kernel may know
    /// to be changed. What is dirty holds it up anyway.
    pub fn look_who_holds(&self) -> Holding {
        let mut holding = Holding::default();
        for open in self.stored_unheard() {
            let Some(path) = self.path_if_clean(&open) else {
                continue;
            };
            holding.total += 1;
            if holding.paths.len() < NAMED_MAX {
                holding.paths.push(path);
            }
        }
        *self.pages.holding.lock() = holding.clone();
        holding
    }

    /// `None` if it is dirty, or nobody can find it any more.
    fn path_if_clean(&self, open: &OpenFile) -> Option<Vec<u8>> {
        // A file that is just being moved is looked at again.
        let target = open.target.try_read().map(|target| target.clone());
        match target {
            Some(Target::Buffer { file, .. }) => {
                let state = file.lock();
                let counts = !state.is_dirty() && !state.is_unlinked();
                drop(state);
                counts.then(|| file.path())
            }
            Some(Target::Pfs { node, file, .. }) => {
                let gone = !self.base.health().is_silent()
                    && (self.ns.pfs().stat_file(file.file())).is_ok_and(|stat| stat.nlink == 0);
                (!gone).then(|| node.parent.path_of(&node.name))
            }
            None => Some(Vec::new()),
        }
    }

    /// After the mount has left the tree: takes in what programs have stored until now, so that it
    /// is among what the end leaves.
    pub fn fetch_last_stores(&self) {
        let end = Instant::now() + LAST;
        for open in self.stored_unheard() {
            if let Err(errno) = self.fetch_stores(open.ino, &|| Instant::now() < end) {
                let failure = Failure::new(errno, "what a program stored through its mapping");
                let path = self.path_if_clean(&open).unwrap_or_default();
                tracing::error!("{}: lost: {failure}", path.escape_ascii());
            }
        }
    }
}
