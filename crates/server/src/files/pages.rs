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

use forebay_tiers::FileObject;
use forebay_types::{Errno, Ino};
use parking_lot::Mutex;

use crate::base::failure::Failure;
use crate::buffer::opens::OpenFile;
use crate::buffer::target::Target;
use crate::files::Files;

/// Makes the kernel write back what it keeps of a file, and forget the rest. It returns when the
/// requests for that have been answered.
pub type WriteBack = Box<dyn Fn(Ino) -> io::Result<()> + Send + Sync>;

/// Who waits for the kernel looks this often whether that still makes sense.
const LOOK: Duration = Duration::from_millis(20);

/// The last stores before the end may take so long.
const LAST: Duration = Duration::from_secs(20);

/// Who ends the server waits so long for the PFS.
const PFS_LIMIT: Duration = Duration::from_secs(1);

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

    /// A drain begins: nothing is known yet of what holds up its end.
    pub fn forget_holding(&self) {
        *self.holding.lock() = Holding::default();
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
    pub fn fetch_stores(&self, ino: Ino, go_on: &dyn Fn() -> bool) -> Result<(), Failure> {
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
                Err(RecvTimeoutError::Timeout) => return Err(Errno::ECANCELED.into()),
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO.into()),
            }
        }
    }

    /// Looks which files hold up an end after a drain: those that nothing but the kernel may know
    /// to be changed. What is dirty holds it up anyway.
    pub fn look_who_holds(&self) -> Holding {
        let (mut paths, mut on_pfs) = (Vec::new(), Vec::new());
        let mut unknown = 0;
        for open in self.stored_unheard() {
            let target = open.target.try_read().map(|target| target.clone());
            match target {
                Some(Target::Buffer { file, .. }) => {
                    let state = file.lock();
                    let counts = !state.is_dirty() && !state.is_unlinked();
                    drop(state);
                    paths.extend(counts.then(|| file.path()));
                }
                Some(Target::Pfs { node, file, .. }) => on_pfs.push((node, file)),
                // It is just being moved: the next look tells.
                None => unknown += 1,
            }
        }
        let gone = self.gone_from_pfs(on_pfs.iter().map(|(_, file)| file.clone()).collect());
        let mut gone = gone.into_iter();
        on_pfs.retain(|_| !gone.next().unwrap_or(false));
        let on_pfs = on_pfs.iter();
        paths.extend(on_pfs.map(|(node, _)| node.parent.path_of(&node.name)));
        let total = unknown + paths.len() as u64;
        paths.truncate(NAMED_MAX);
        let holding = Holding { total, paths };
        *self.pages.holding.lock() = holding.clone();
        holding
    }

    /// Which of these files of the PFS nobody can find any more; nothing where that is not known
    /// soon.
    fn gone_from_pfs(&self, files: Vec<Arc<FileObject>>) -> Vec<bool> {
        if files.is_empty() || self.base.health().is_silent() {
            return Vec::new();
        }
        let (send, looked) = channel();
        let ns = self.ns.clone();
        let look = move || {
            let is_gone = |file: &Arc<FileObject>| {
                (ns.pfs().stat_file(file.file())).is_ok_and(|stat| stat.nlink == 0)
            };
            // If nobody waits any more, nobody misses it.
            drop(send.send(files.iter().map(is_gone).collect()));
        };
        // Whoever ends the server must not hang with the PFS.
        let thread = std::thread::Builder::new().name("fb-pages".into());
        match thread.spawn(look) {
            Ok(_) => looked.recv_timeout(PFS_LIMIT).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// After the mount has left the tree: takes in what programs have stored until now, so that it
    /// is among what the end leaves.
    pub fn fetch_last_stores(&self) {
        let end = Instant::now() + LAST;
        for open in self.stored_unheard() {
            if let Err(failure) = self.fetch_stores(open.ino, &|| Instant::now() < end) {
                let failure =
                    failure.about("what a program stored through its mapping last is lost");
                tracing::error!("{:?}: {failure}", open.ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::OpenFlags;
    use forebay_wire::WriteHow;

    use super::*;
    use crate::testing::{Lab, answer, create, drain};

    #[test]
    fn nobody_waits_for_the_kernel_longer_than_that_makes_sense() {
        let lab = Lab::new();
        let files = &lab.rooms().files;
        assert_eq!(
            answer(files.fetch_stores(Ino(7), &|| false)),
            Ok(()),
            "no mount"
        );
        let (let_go, held) = channel::<()>();
        let held = Mutex::new(held);
        files.pages().write_back_by(Box::new(move |_| {
            // Ends with the test.
            let let_go = held.lock().recv();
            let_go.map_err(|_| Errno::EIO.into())
        }));
        let canceled = files.fetch_stores(Ino(7), &|| false);
        assert_eq!(answer(canceled), Err(Errno::ECANCELED));
        drop(let_go);
        assert_eq!(
            answer(files.fetch_stores(Ino(7), &|| true)),
            Err(Errno::EIO)
        );
    }

    #[test]
    fn what_is_clean_and_can_be_stored_into_holds_up_an_end() {
        let lab = Lab::new();
        let rooms = lab.rooms();
        let created = create(rooms, b"f", b"content");
        rooms.files.release(created).expect("close");
        drain(rooms);
        std::fs::write(lab.pfs("p"), b"content").expect("write");
        let open = |name: &[u8], flags: i32| {
            let found = rooms.base.ns().lookup(Ino::ROOT, name).expect("there");
            let flags = OpenFlags(flags as u32);
            let opened = rooms.files.open(found.attr.ino, flags, None);
            opened.expect("open").0.handle
        };
        let holding = || {
            let holding = rooms.files.look_who_holds();
            assert_eq!(holding.total, holding.paths.len() as u64);
            holding.paths
        };
        for name in [&b"f"[..], b"p"] {
            for flags in [libc::O_RDONLY, libc::O_WRONLY] {
                let handle = open(name, flags);
                assert!(holding().is_empty(), "it cannot be mapped so");
                rooms.files.release(handle).expect("close");
            }
        }
        let (f, p) = (open(b"f", libc::O_RDWR), open(b"p", libc::O_RDWR));
        let mut both = holding();
        both.sort();
        assert_eq!(both, [b"f", b"p"]);
        // Nobody finds it any more.
        std::fs::remove_file(lab.pfs("p")).expect("remove");
        assert_eq!(holding(), [b"f"]);
        // It is dirty, and counted as such.
        let written = rooms.files.write(f, 0, b"C", WriteHow::WAITING);
        assert_eq!(answer(written), Ok(Some(1)));
        assert!(holding().is_empty());
        rooms.files.release(f).expect("close");
        rooms.files.release(p).expect("close");
    }
}
