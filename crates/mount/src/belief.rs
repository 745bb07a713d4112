//! What the kernel may believe of a file without asking, and when it is told to forget that.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_types::{FileKind, Handle, Ino};
use forebay_wire::Shown;
use parking_lot::Mutex;

use crate::company::Company;
use crate::growing;
use crate::known::Known;
use crate::notices::Notices;
use crate::recalled::{Asked, Firm, Recalled};

/// For how long the kernel believes names and attributes: changes made on the PFS show up within
/// this time.
const REVALIDATE: Duration = Duration::from_secs(1);
/// Bits of a mode that a change of content takes away.
const SET_ID: u16 = 0o6000;

#[derive(Default)]
struct Written {
    by_handle: HashMap<Handle, Ino>,
    handles: HashMap<Ino, u32>,
}

/// What the kernel was told, and would not notice to be outdated:
///
/// 1. Attributes of a file that the kernel writes by itself. They change through mappings without
///    the kernel's knowing, so the kernel is to ask for them every time.
/// 2. Size and times of a file whose node is away: they are from before it was written.
/// 3. A mode with set-id bits. A write takes these bits away. After the write the kernel asks for
///    size and times, but not for the mode.
#[derive(Default)]
pub(crate) struct Belief {
    /// For how long names and attributes are believed where nobody else uses the server.
    believed: Duration,
    recalled: Arc<Recalled>,
    /// Others use the server: the kernel keeps pages only of what is mapped, or only read.
    direct: bool,
    /// What is told where the server does not come to it.
    pub(crate) known: Known,
    pub(crate) notices: Arc<Notices>,
    /// Files open for writing that the kernel writes by itself.
    written: Mutex<Written>,
    writers: AtomicUsize,
    /// Files that were shown with set-id bits.
    set_id: Mutex<HashSet<Ino>>,
    set_ids: AtomicUsize,
    /// The mount ends: no page is given out any more.
    no_pages: AtomicBool,
    /// Files of which the kernel may have pages, where others use the server, and how many reads
    /// are under way for them.
    paged: Mutex<HashMap<Ino, u32>>,
    pageds: AtomicUsize,
}

impl Belief {
    pub(crate) fn new(company: Company, recalled: Arc<Recalled>) -> Belief {
        Belief {
            believed: match company {
                Company::Alone => REVALIDATE,
                Company::Shared => Duration::ZERO,
            },
            direct: company == Company::Shared,
            known: Known::new(company),
            recalled,
            ..Belief::default()
        }
    }

    /// No recall is followed while what is returned is held: for what the mount answers from
    /// memory.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.recalled.hold()
    }

    /// For how long an answer to what was asked then may be believed. No recall is followed while
    /// it is held.
    pub(crate) fn firm(&self, asked: Asked) -> Firm<'_> {
        self.recalled.firm(asked)
    }

    /// Whether others use the server, too: what writes goes round the kernel's pages.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The kernel is about to be given pages of a file.
    pub(crate) fn gives_pages(&self, ino: Ino) {
        let mut paged = self.paged.lock();
        *paged.entry(ino).or_default() += 1;
        self.pageds.store(paged.len(), Ordering::SeqCst);
    }

    /// The kernel is about to get pages of a file that ends there, and perhaps takes the file for
    /// shorter.
    pub(crate) fn grow_before_pages(&self, ino: Ino, end: u64) {
        match growing::grow_beside_a_read(&self.notices, ino, end) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("the kernel was not told where {ino:?} ends: {error}");
            }
            _ => {}
        }
    }

    /// It has them, or an error.
    pub(crate) fn has_given_pages(&self, ino: Ino) {
        if let Some(reads) = self.paged.lock().get_mut(&ino) {
            *reads = reads.saturating_sub(1);
        }
    }

    /// Whether pages of a file are locked until a read is answered.
    pub(crate) fn is_being_read(&self, ino: Ino) -> bool {
        self.paged.lock().get(&ino).is_some_and(|reads| *reads > 0)
    }

    /// The kernel has forgotten a file, and looks it up no more.
    pub(crate) fn has_no_pages(&self, ino: Ino) {
        if self.pageds.load(Ordering::SeqCst) > 0 {
            let mut paged = self.paged.lock();
            paged.remove(&ino);
            self.pageds.store(paged.len(), Ordering::SeqCst);
        }
    }

    /// Whether the kernel may have pages of a file that was read round them, and written.
    pub(crate) fn has_pages(&self, ino: Ino) -> bool {
        self.pageds.load(Ordering::SeqCst) > 0 && self.paged.lock().contains_key(&ino)
    }

    /// The kernel drops its pages before it sends a write that goes round them. What it has read
    /// until that was done may be from before: kernels of 2025 drop them once more after that,
    /// older ones do not. No thread that answers requests may call it.
    pub(crate) fn was_written(&self, ino: Ino, offset: u64, len: u64) {
        match self.notices.forget_range(ino, offset, len) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("the kernel was not told to forget pages of {ino:?}: {error}");
            }
            _ => {}
        }
    }

    /// For how long the kernel may believe these attributes, which are about to be shown as the
    /// answer to what was asked then.
    pub(crate) fn show(&self, shown: &Shown, asked: Asked) -> Believed<'_> {
        let attr = &shown.attr;
        self.known.note(attr);
        if attr.kind == FileKind::Regular && attr.perm & SET_ID != 0 {
            let mut shown = self.set_id.lock();
            shown.insert(attr.ino);
            self.set_ids.store(shown.len(), Ordering::Release);
        }
        let firm = (self.direct && shown.firm).then(|| self.recalled.firm(asked));
        let of_attr = match shown.outdated || self.is_written(attr.ino) {
            true => Duration::ZERO,
            false => firm.as_ref().map_or(self.believed, |firm| firm.span),
        };
        Believed {
            of_attr,
            of_made: self.believed,
            alone: !self.direct,
            firm,
        }
    }

    fn is_written(&self, ino: Ino) -> bool {
        self.writers.load(Ordering::Acquire) > 0 && self.written.lock().handles.contains_key(&ino)
    }

    /// Notes that the kernel is about to write a file by itself. Attributes that the kernel has of
    /// a file that is not new are from before, so it is told to forget them.
    pub(crate) fn begin_writing(&self, ino: Ino, handle: Handle, is_new: bool) {
        {
            let mut written = self.written.lock();
            written.by_handle.insert(handle, ino);
            *written.handles.entry(ino).or_default() += 1;
            self.writers
                .store(written.by_handle.len(), Ordering::Release);
        }
        if !is_new {
            self.forget(ino);
        }
    }

    /// Notes that a handle is closed.
    pub(crate) fn end_writing(&self, handle: Handle) {
        if self.writers.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut written = self.written.lock();
        let Some(ino) = written.by_handle.remove(&handle) else {
            return;
        };
        if let Some(count) = written.handles.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                written.handles.remove(&ino);
            }
        }
        self.writers
            .store(written.by_handle.len(), Ordering::Release);
    }

    /// Notes a change of content by somebody who may not keep set-id bits.
    pub(crate) fn content_changed(&self, ino: Ino) {
        if self.set_ids.load(Ordering::Acquire) > 0 && self.no_set_id(ino) {
            self.forget(ino);
        }
    }

    /// Notes that the kernel does not know the file any more.
    pub(crate) fn forgotten(&self, ino: Ino) {
        if self.set_ids.load(Ordering::Acquire) > 0 {
            self.no_set_id(ino);
        }
    }

    fn no_set_id(&self, ino: Ino) -> bool {
        let mut shown = self.set_id.lock();
        let was = shown.remove(&ino);
        self.set_ids.store(shown.len(), Ordering::Release);
        was
    }

    /// Makes the kernel write back what was stored through mappings of a file, and forget its
    /// pages. The requests to write are answered when this returns, so no thread that answers
    /// requests may call it.
    pub(crate) fn write_back(&self, ino: Ino) -> io::Result<()> {
        match self.notices.forget_pages(ino) {
            // The kernel has forgotten the file by itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            told => told,
        }
    }

    /// From here on the kernel gets no pages any more. Of a mapping whose pages it has forgotten, a
    /// program that goes on storing gets a signal, where it would lose what it stores.
    pub(crate) fn end_pages(&self) {
        self.no_pages.store(true, Ordering::Release);
    }

    /// Whether they have ended.
    pub(crate) fn pages_ended(&self) -> bool {
        self.no_pages.load(Ordering::Acquire)
    }

    /// Tells the kernel to forget the attributes.
    fn forget(&self, ino: Ino) {
        if let Err(error) = self.notices.forget_attr(ino) {
            // The kernel has forgotten the file by itself, or believes its old attributes for a
            // second.
            tracing::debug!("the kernel was not told to forget the attributes of {ino:?}: {error}");
        }
    }
}

/// For how long what is shown may be believed. While it is held no recall is followed.
pub(crate) struct Believed<'a> {
    /// Attributes.
    pub(crate) of_attr: Duration,
    /// Of a file that the kernel has made, where nobody else uses the server.
    of_made: Duration,
    alone: bool,
    firm: Option<Firm<'a>>,
}

impl Believed<'_> {
    /// For how long the mount may believe what was shown, and answer by itself.
    pub(crate) fn by_mount(&self) -> Duration {
        self.firm.as_ref().map_or(Duration::ZERO, |firm| firm.span)
    }

    /// The name by which it was found. What others may rename is looked up each time: there is no
    /// way to take a name back that neither waits for a lock of its directory, which a request may
    /// hold that waits for the same of another node, nor hides a program's own directory from it
    /// for a moment.
    pub(crate) fn of_name(&self) -> Duration {
        match self.alone {
            true => self.of_attr,
            false => Duration::ZERO,
        }
    }

    /// Attributes and name of a file that the kernel has made. Of one that the kernel had before it
    /// does not tell a late answer from an early one.
    pub(crate) fn of_made(&self, is_new: bool) -> (Duration, Duration) {
        match (self.alone, is_new) {
            (true, _) => (self.of_made, self.of_made),
            (false, true) => (self.of_attr, Duration::ZERO),
            (false, false) => (Duration::ZERO, Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{Attr, TimeSpec};

    fn show(belief: &Belief, ino: u64, perm: u16) -> Duration {
        let at = TimeSpec::default();
        let attr = Attr {
            ino: Ino(ino),
            kind: FileKind::Regular,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
        };
        let asked = belief.recalled.asked();
        belief.show(&attr.into(), asked).of_attr
    }

    #[test]
    fn nothing_is_believed_of_what_the_kernel_writes_until_the_last_close() {
        let belief = Belief::new(Company::Alone, Arc::default());
        assert_eq!(show(&belief, 7, 0o644), REVALIDATE);
        belief.begin_writing(Ino(7), Handle(1), true);
        belief.begin_writing(Ino(7), Handle(2), false);
        belief.end_writing(Handle(1));
        belief.end_writing(Handle(3));
        assert_eq!(show(&belief, 7, 0o644), Duration::ZERO);
        assert_eq!(show(&belief, 8, 0o644), REVALIDATE);
        belief.end_writing(Handle(2));
        assert_eq!(show(&belief, 7, 0o644), REVALIDATE);
    }

    #[test]
    fn set_id_bits_that_were_shown_are_remembered_until_they_change_or_are_forgotten() {
        let belief = Belief::default();
        show(&belief, 7, 0o4755);
        show(&belief, 8, 0o2755);
        show(&belief, 9, 0o755);
        assert_eq!(belief.set_ids.load(Ordering::Acquire), 2);
        belief.content_changed(Ino(9));
        belief.content_changed(Ino(7));
        belief.forgotten(Ino(8));
        assert_eq!(belief.set_ids.load(Ordering::Acquire), 0);
    }
}
