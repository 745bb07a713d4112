//! Answers to requests that open a file: whether the kernel reads and writes it by itself.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_client::OpenFile;
use forebay_types::{Errno, Handle, OpenFlags, limits};
use forebay_wire::{OpenMode, Shown};
use fuser::{FileHandle, FopenFlags, Generation, INodeNo, ReplyCreate, ReplyOpen};

use crate::backing::Node;
use crate::convert::{attr, errno, ino};
use crate::inflight::Turn;
use crate::serving::Adapter;

/// A file of this length comes in one request, with its pages or without.
const ONE_READ_BYTES: u64 = limits::IO_BYTES_MAX as u64;

/// What a handle may do to its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Nothing,
    /// Writes to a file that was there before.
    Old,
    New,
}

impl Adapter {
    pub(crate) fn no_passthrough(&self, why: &str) {
        if self.passthrough.swap(false, Ordering::AcqRel) {
            tracing::info!("passthrough is off: {why}");
        }
        self.client.accept_descriptors(false);
    }

    /// Registers the object with the kernel, if the server handed it over. If the kernel refuses,
    /// the file is served by requests, and so are all others from then on.
    fn back(
        &self,
        node: INodeNo,
        open: &OpenFile,
        writes: Writes,
        make: impl FnOnce(BorrowedFd<'_>) -> io::Result<fuser::BackingId>,
    ) -> Option<Arc<fuser::BackingId>> {
        if open.opened.mode != OpenMode::Passthrough {
            return None;
        }
        let descriptor = open.descriptor.as_deref();
        let below = self.node_of(node);
        let taken = self
            .backings
            .take(below, open.opened.handle, descriptor, make);
        let taken = taken
            .inspect_err(|error| self.no_passthrough(&error.to_string()))
            .ok()??;
        if writes != Writes::Nothing {
            let is_new = writes == Writes::New;
            self.belief
                .begin_writing(ino(node), open.opened.handle, is_new);
        }
        // Beside what the kernel reads by itself it has no pages, and the open drops those it has.
        self.kept.opened(ino(node), open.opened.handle, None);
        Some(taken)
    }

    /// Answers a request that has created a file, and opened it.
    pub(crate) fn answer_created(&self, made: Result<(Shown, OpenFile), Errno>, turn: &Turn<'_>) {
        let (reply, (found, open)) = match (turn.reply::<ReplyCreate>(), made) {
            (Some(reply), Ok(made)) => (reply, made),
            (Some(reply), Err(e)) => return reply.error(errno(e)),
            (None, Ok((found, open))) => {
                self.client.give_back(found.ino);
                return self.nobody_wants(open.opened.handle);
            }
            (None, Err(_)) => return,
        };
        let fh = FileHandle(open.opened.handle.0);
        let believed = self.belief.show(&found, turn.asked);
        // Files of another session are other files, whatever their numbers.
        let generation = self.client.generation();
        let is_new = self.forgets.gives(found.ino, generation);
        let (of_attr, of_name) = believed.of_made(is_new);
        let generation = Generation(self.client.generation_of(found.ino));
        let found = attr(&found);
        match self.back(found.ino, &open, Writes::New, |fd| reply.open_backing(fd)) {
            Some(id) => {
                let flags = self.flush_flags();
                reply.created_passthrough(&of_name, &found, generation, fh, flags, &id);
            }
            None => {
                let flags = self.plain_flags(found.ino, Writes::New, &open);
                reply.created(&of_attr, &of_name, &found, generation, fh, flags);
            }
        }
    }

    /// Answers a request that has opened a file.
    pub(crate) fn answer_opened(
        &self,
        node: INodeNo,
        flags: OpenFlags,
        opened: Result<OpenFile, Errno>,
        turn: &Turn<'_>,
    ) {
        let (reply, open) = match (turn.reply::<ReplyOpen>(), opened) {
            (Some(reply), Ok(open)) => (reply, open),
            (Some(reply), Err(e)) => return reply.error(errno(e)),
            (None, Ok(open)) => return self.nobody_wants(open.opened.handle),
            (None, Err(_)) => return,
        };
        let fh = FileHandle(open.opened.handle.0);
        let writes = match flags.writes() {
            true => Writes::Old,
            false => Writes::Nothing,
        };
        match self.back(node, &open, writes, |fd| reply.open_backing(fd)) {
            Some(id) => reply.opened_passthrough(fh, self.flush_flags(), &id),
            None => reply.opened(fh, self.plain_flags(node, writes, &open)),
        }
    }

    /// Who closes a file gives its locks back, where they are the server's. Nothing else needs the
    /// server at a close.
    fn flush_flags(&self) -> FopenFlags {
        match self.belief.is_direct() {
            true => FopenFlags::empty(),
            false => FopenFlags::FOPEN_NOFLUSH,
        }
    }

    /// Whether the kernel keeps pages of what it reads by this handle. Where others use the server,
    /// only of what is read and nobody writes: the server recalls pages before it answers a change.
    /// Not of what the kernel has by itself: it wants one kind. A large file is read round the
    /// pages the first time, which is faster: most are read once.
    fn keeps_pages(&self, node: INodeNo, writes: Writes, open: &OpenFile) -> bool {
        if !self.belief.is_direct() {
            return true;
        }
        let handle = open.opened.handle;
        // Also without pages: what is mapped so is no more to be had by the kernel alone.
        let may = self.backings.is_plain(self.node_of(node), handle) && writes == Writes::Nothing;
        let Some(version) = open.opened.content.filter(|_| may) else {
            self.kept.opened(ino(node), handle, None);
            return false;
        };
        open.opened.bytes <= ONE_READ_BYTES || self.kept.is_opened_again(ino(node), version)
    }

    fn node_of(&self, node: INodeNo) -> Node {
        (ino(node), self.client.generation_of(ino(node)))
    }

    fn plain_flags(&self, node: INodeNo, writes: Writes, open: &OpenFile) -> FopenFlags {
        if !self.keeps_pages(node, writes, open) {
            // Who writes apart in one file need not wait for each other.
            let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
            return self.flush_flags() | direct;
        }
        let (handle, content) = (open.opened.handle, open.opened.content);
        match self.kept.opened(ino(node), handle, content) {
            true => self.flush_flags() | FopenFlags::FOPEN_KEEP_CACHE,
            false => self.flush_flags(),
        }
    }

    /// Closes a file that was opened after the watchdog had answered its request with an error.
    fn nobody_wants(&self, handle: Handle) {
        if let Err(e) = self.client.release(handle) {
            tracing::warn!("a file whose open was answered with an error stays open: {e}");
        }
    }
}
