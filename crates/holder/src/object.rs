//! One object on another node.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_tiers::{
    Allocate, BLOCKS_MAX, BlocksWriters, CopyControl, CopyError, CopyReport, Identity, Object,
    ObjectStat, Outside, OutsideError, Seek, Sums, WriteBack,
};
use forebay_types::{Errno, Handle, SetTime, limits};
use forebay_wire::{
    CopyEnd, CopyFacts, CopyFailure, OUT_OF_REACH, ObjectCall, ObjectKey, ObjectReply,
    ObjectRequest, ObjectUse, OutsideFile, Reply, Response,
};
use parking_lot::Mutex;

use crate::convert;
use crate::unanswered::CallError;
use crate::way::{Held, Way, odd};

/// Sessions that may end under one request before it fails.
const TRIES: u32 = 3;

/// So much of a stream is one message that starts its write-back.
const START_BYTES: u64 = 4 << 20;

/// An object of a data server.
///
/// Invariants:
/// 1. Over the end of a session it is opened anew by its id. The data server begins a session only
///    when nothing of the one before is under way, so what is asked again does not meet itself.
/// 2. An append whose answer was lost is looked for where the object had ended. Where that does not
///    tell, or others write the object by themselves, or the node stays away, it fails with `EIO`:
///    it may be there, and is not done twice.
/// 3. Once its node has stopped every call fails with `EIO`, whatever the tier has by then: what
///    was not flushed is gone.
pub struct RemoteObject {
    way: Arc<Way>,
    key: ObjectKey,
    how: ObjectUse,
    held: Mutex<Held>,
    is_lost: AtomicBool,
    /// What is read and written goes over the connection for copies.
    for_copies: bool,
    /// Where write-back is to start with the next message, if bytes are there.
    unstarted: Mutex<Range<u64>>,
    /// Held by who appends.
    appending: Mutex<()>,
    end: Mutex<End>,
}

/// Where an object ends.
#[derive(Default)]
struct End {
    /// As the last append has told; `None` once it may be elsewhere.
    at: Option<u64>,
    /// Counts what may have moved it, beside appends.
    moves: u64,
}

/// The end of an object may move while this lives.
struct EndMoves<'a>(&'a Mutex<End>);

impl EndMoves<'_> {
    fn of(end: &Mutex<End>) -> EndMoves<'_> {
        let moves = EndMoves(end);
        moves.count();
        moves
    }

    fn count(&self) {
        let mut end = self.0.lock();
        end.at = None;
        end.moves += 1;
    }
}

impl Drop for EndMoves<'_> {
    fn drop(&mut self) {
        // An append may have told of an end of before.
        self.count();
    }
}

impl RemoteObject {
    pub(crate) fn new(way: Arc<Way>, key: ObjectKey, how: ObjectUse, held: Held) -> RemoteObject {
        RemoteObject {
            way,
            key,
            how,
            held: Mutex::new(held),
            is_lost: AtomicBool::new(false),
            for_copies: false,
            unstarted: Mutex::new(0..0),
            appending: Mutex::default(),
            end: Mutex::default(),
        }
    }

    pub(crate) fn for_copies(mut self, for_copies: bool) -> RemoteObject {
        self.for_copies = for_copies;
        self
    }

    /// What is open, in the session that there is now.
    fn held(&self) -> Result<Held, CallError> {
        if self.is_lost.load(Ordering::Acquire) {
            return Err(Errno::EIO.into());
        }
        let session = self.way.session()?;
        let mut held = self.held.lock();
        if held.session != session {
            self.open_again(&mut held)?;
        }
        Ok(held.clone())
    }

    fn open_again(&self, held: &mut Held) -> Result<(), CallError> {
        let now = match self.way.open(self.key, self.how) {
            Err(error) if error.is(Errno::ENOENT) => {
                self.lose("is not there any more");
                return Err(Errno::EIO.into());
            }
            opened => opened?,
        };
        // If it was of this session after all.
        self.way.close(&std::mem::replace(held, now));
        Ok(())
    }

    fn lose(&self, why: &str) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            tracing::error!("object {} on another node {why}", self.key.object);
        }
    }

    fn on(&self, request: &ObjectRequest, payload: &[u8], into: &mut [u8]) -> io::Result<Response> {
        Ok(self.answer_to(request, payload, into)?)
    }

    /// Asked again where sessions end, but for an append that may have been done.
    fn answer_to(
        &self,
        request: &ObjectRequest,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Response, CallError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let held = match self.held() {
                // It ended again while the object was opened anew, and nothing was asked.
                Err(error) if error.is_lost() && tries < TRIES => continue,
                Err(error) if error.is_lost() => return Err(CallError::Unasked),
                held => held?,
            };
            let call = ObjectCall::On(held.handle, request.clone());
            match self.call(&held, &call, payload, into) {
                Ok(reply) => return Ok(reply.response),
                Err(error) if tries < TRIES && error.is(Errno::EBADF) => self.forget(&held),
                Err(CallError::Unasked) if tries < TRIES => {}
                Err(CallError::Lost) if tries < TRIES && *request != ObjectRequest::Append => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn call(
        &self,
        held: &Held,
        call: &ObjectCall,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, CallError> {
        let moves_bytes = matches!(
            call,
            ObjectCall::On(_, ObjectRequest::Read { .. } | ObjectRequest::Write { .. })
        );
        match self.for_copies && moves_bytes {
            true => self.way.call_for_copy(held, call, payload, into),
            false => self.way.call(call, payload, into),
        }
    }

    /// The data server does not know the handle: it was started anew in the midst of the session.
    fn forget(&self, unknown: &Held) {
        let mut held = self.held.lock();
        if held.handle == unknown.handle {
            held.session.generation = u64::MAX;
        }
    }

    fn ask(&self, request: &ObjectRequest) -> io::Result<ObjectReply> {
        match self.on(request, &[], &mut [])? {
            Response::Object(reply) => Ok(reply),
            _ => Err(odd()),
        }
    }

    fn order(&self, request: &ObjectRequest) -> io::Result<()> {
        match self.on(request, &[], &mut [])? {
            Response::Done => Ok(()),
            _ => Err(odd()),
        }
    }

    /// How much of `data` is there behind `before`, where the object had ended when it was to be
    /// appended. `EIO` where nobody can tell.
    fn appended(&self, data: &[u8], before: u64) -> io::Result<usize> {
        let look = || {
            let grown = self.stat()?.size.checked_sub(before);
            let Some(grown) = grown.filter(|grown| *grown <= data.len() as u64) else {
                return Ok(None);
            };
            let mut found = vec![0; grown as usize];
            let count = self.read_at(&mut found, before)?;
            // What is the same may be theirs. Who has it to write it is the only one.
            let is_ours = data[..found.len()] == found[..count]
                && (count == 0 || self.how == ObjectUse::Write || !self.has_writers()?);
            Ok::<_, io::Error>(is_ours.then_some(count))
        };
        let object = self.key.object;
        // Sessions that end say nothing. A node that is away is waited for once.
        let out_of_reach = |error: &io::Error| Errno::of(error) == OUT_OF_REACH;
        let mut looked = look();
        for _ in 1..TRIES {
            if looked.as_ref().is_err_and(out_of_reach) {
                looked = look();
            }
        }
        match looked {
            Ok(Some(bytes)) => return Ok(bytes),
            Ok(None) => tracing::warn!("object {object}: somebody else appends to it as well"),
            Err(error) => tracing::warn!("object {object}: what was appended: {error}"),
        }
        Err(Errno::EIO.into())
    }

    fn moved(response: &Response, most: usize) -> io::Result<usize> {
        match response {
            Response::Moved(bytes) if *bytes as usize <= most => Ok(*bytes as usize),
            _ => Err(odd()),
        }
    }
}

impl RemoteObject {
    /// What is worth a message now, of what is to start: a stream of small writes tells now and
    /// then. The flush starts what is left.
    fn to_start(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        if len == 0 {
            return Some((offset, len));
        }
        let end = offset.saturating_add(len);
        let mut unstarted = self.unstarted.lock();
        if unstarted.end != offset {
            let before = std::mem::replace(&mut *unstarted, offset..end);
            return (!before.is_empty()).then_some((before.start, before.end - before.start));
        }
        unstarted.end = end;
        if end - unstarted.start < START_BYTES {
            return None;
        }
        let now = std::mem::replace(&mut *unstarted, end..end);
        Some((now.start, now.end - now.start))
    }
}

impl RemoteObject {
    /// Follows a copy to its end. It is let run ahead of its pace no further than ahead of the PFS:
    /// what has moved cannot be held back.
    fn follow(
        &self,
        copy: Handle,
        ahead_bytes: u64,
        control: &CopyControl<'_>,
    ) -> Result<CopyReport, OutsideError> {
        let lost = |error: io::Error| OutsideError::Copy(CopyError::Source(error));
        let mut told = 0;
        loop {
            if (control.stop)() {
                return Err(CopyError::Stopped.into());
            }
            let upto_bytes = told + ahead_bytes.max(1);
            let asked = self.way.ask(ObjectCall::CopyGo { copy, upto_bytes });
            let ObjectReply::Copied {
                moved_bytes,
                offset,
                end,
            } = asked.map_err(of_copy).map_err(lost)?
            else {
                return Err(lost(odd()));
            };
            if moved_bytes > told {
                (control.moved)(moved_bytes - told, offset);
                told = moved_bytes;
            }
            match end {
                Some(CopyEnd::Whole(facts)) => return self.report(copy, facts).map_err(lost),
                Some(CopyEnd::Failed(failure)) => return Err(failed(failure)),
                None => {}
            }
        }
    }

    fn report(&self, copy: Handle, facts: CopyFacts) -> io::Result<CopyReport> {
        let wanted = (facts.blocks as usize).saturating_sub(1);
        if wanted as u64 > BLOCKS_MAX {
            return Err(odd());
        }
        let mut after_blocks = Vec::with_capacity(wanted);
        let mut room = vec![0; limits::IO_BYTES_MAX.min(wanted * size_of::<u32>())];
        while after_blocks.len() < wanted {
            let from = after_blocks.len() as u32;
            let call = ObjectCall::CopySums { copy, from };
            let summed = self.way.call(&call, &[], &mut room).map_err(of_copy)?;
            let Response::Moved(bytes) = summed.response else {
                return Err(odd());
            };
            let found = room.get(..bytes as usize).ok_or_else(odd)?;
            let (sums, rest) = found.as_chunks::<{ size_of::<u32>() }>();
            if sums.is_empty() || !rest.is_empty() {
                return Err(odd());
            }
            after_blocks.extend(sums.iter().map(|sum| u32::from_le_bytes(*sum)));
        }
        let sums = Sums::kept(facts.bytes, facts.crc, facts.block_bytes, after_blocks);
        Ok(CopyReport {
            data_bytes: facts.data_bytes,
            sums: sums.ok_or_else(odd)?,
        })
    }
}

/// An error of a copy that is under way: one that is not known there has ended with its session.
fn of_copy(error: CallError) -> io::Error {
    match error.is(Errno::EBADF) {
        true => OUT_OF_REACH.into(),
        false => error.into(),
    }
}

fn failed(failure: CopyFailure) -> OutsideError {
    OutsideError::Copy(match failure {
        CopyFailure::Unreached(errno) => return OutsideError::Unreached(errno.into()),
        CopyFailure::Source(errno) => CopyError::Source(errno.into()),
        CopyFailure::Destination(errno) => CopyError::Destination(errno.into()),
        CopyFailure::Stopped => CopyError::Stopped,
        CopyFailure::Verify { expected, found } => CopyError::Verify {
            expected,
            found,
            offset_hint: 0,
        },
    })
}

impl RemoteObject {
    /// See [`forebay_tiers::CopiesOut`].
    pub(crate) fn copy_out(
        &self,
        to: &Outside,
        control: &CopyControl<'_>,
    ) -> Result<CopyReport, OutsideError> {
        let held = self.held();
        let held = held.map_err(|error| OutsideError::Unreached(error.into()))?;
        let call = ObjectCall::CopyOut {
            handle: held.handle,
            to: OutsideFile {
                path: to.path.clone(),
                ino: to.ino,
                owner: to.owner,
                ahead_bytes: to.ahead_bytes,
                from_media: to.from_media,
            },
        };
        let copy = match self.way.ask(call) {
            Ok(ObjectReply::Opened(copy)) => copy,
            Ok(_) => return Err(CopyError::Source(odd()).into()),
            // It may have begun.
            Err(error) if error.is_lost() => return Err(CopyError::Source(error.into()).into()),
            Err(error) => return Err(OutsideError::Unreached(error.into())),
        };
        let made = self.follow(copy, to.ahead_bytes, control);
        let ended = self.way.order(ObjectCall::CopyEnd(copy));
        match (made, ended) {
            // Only who has ended it knows that nothing of it runs any more.
            (Err(OutsideError::Unreached(_)), Err(error)) => {
                Err(CopyError::Source(error.into()).into())
            }
            (made, _) => made,
        }
    }
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        self.way.close(self.held.get_mut());
    }
}

impl Object for RemoteObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let end = buf.len().min(done + limits::IO_BYTES_MAX);
            let part = &mut buf[done..end];
            let request = ObjectRequest::Read {
                offset: offset + done as u64,
                len: part.len() as u32,
            };
            let most = part.len();
            let count = Self::moved(&self.on(&request, &[], part)?, most)?;
            done += count;
            if count < most {
                break;
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let _moves = EndMoves::of(&self.end);
        let mut done = 0;
        for part in data.chunks(limits::IO_BYTES_MAX) {
            let request = ObjectRequest::Write {
                offset: offset + done as u64,
            };
            let count = match self.on(&request, part, &mut []) {
                Ok(response) => Self::moved(&response, part.len())?,
                // It comes back with the next call.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            done += count;
            if count < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn append(&self, data: &[u8]) -> io::Result<(usize, u64)> {
        // As much as goes at once: more would not be together.
        let part = &data[..data.len().min(limits::IO_BYTES_MAX)];
        // One at a time: else nobody knew whose bytes are there after the end of a session.
        let _one = self.appending.lock();
        let mut tries = 0;
        loop {
            tries += 1;
            let (end_before, moves) = {
                let mut end = self.end.lock();
                (end.at.take(), end.moves)
            };
            let before = end_before.map_or_else(|| Ok(self.stat()?.size), Ok::<_, io::Error>)?;
            match self.answer_to(&ObjectRequest::Append, part, &mut []) {
                Ok(Response::Object(ObjectReply::Appended { bytes, end }))
                    if bytes as usize <= part.len() =>
                {
                    let mut known = self.end.lock();
                    known.at = (known.moves == moves).then_some(end);
                    return Ok((bytes as usize, end));
                }
                Ok(_) => return Err(odd()),
                Err(CallError::Lost) => match self.appended(part, before)? {
                    0 if tries < TRIES => {}
                    0 => return Err(OUT_OF_REACH.into()),
                    bytes => return Ok((bytes, before + bytes as u64)),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        let _moves = EndMoves::of(&self.end);
        self.order(&ObjectRequest::SetLen { size })
    }

    fn allocate(&self, mode: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let _moves = EndMoves::of(&self.end);
        self.order(&ObjectRequest::Allocate {
            change: convert::change(mode),
            offset,
            len,
        })
    }

    fn seek(&self, from: u64, what: Seek) -> io::Result<Option<u64>> {
        let what = convert::what(what);
        match self.ask(&ObjectRequest::Seek { from, what })? {
            ObjectReply::Found(at) => Ok(at),
            _ => Err(odd()),
        }
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.order(&ObjectRequest::Sync { data_only })
    }

    fn write_back(&self, what: WriteBack, offset: u64, len: u64) -> io::Result<()> {
        let range = match what {
            WriteBack::Start => self.to_start(offset, len),
            WriteBack::Wait | WriteBack::Finish => Some((offset, len)),
        };
        let Some((offset, len)) = range else {
            return Ok(());
        };
        let what = convert::pages(what);
        self.order(&ObjectRequest::WriteBack { what, offset, len })
    }

    fn stat(&self) -> io::Result<ObjectStat> {
        match self.ask(&ObjectRequest::Stat)? {
            ObjectReply::Stat(facts) => Ok(convert::stat(&facts)),
            _ => Err(odd()),
        }
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> io::Result<()> {
        self.order(&ObjectRequest::SetTimes { atime, mtime })
    }

    fn set_identity(&self, identity: &Identity) -> io::Result<()> {
        self.order(&ObjectRequest::SetIdentity(identity.encode()))
    }

    fn has_writers(&self) -> io::Result<bool> {
        // Whom nobody needs any more would count.
        self.way.send_closes();
        match self.ask(&ObjectRequest::HasWriters)? {
            ObjectReply::Truth(truth) => Ok(truth),
            _ => Err(odd()),
        }
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.order(&ObjectRequest::DropCache)
    }

    fn forget_failed_flushes(&self) -> io::Result<()> {
        self.order(&ObjectRequest::ForgetFailedFlushes)
    }

    fn block_writers(&self) -> io::Result<Box<dyn BlocksWriters>> {
        let held = self.way.open(self.key, ObjectUse::Share)?;
        let object = RemoteObject::new(self.way.clone(), self.key, ObjectUse::Share, held);
        object.ask(&ObjectRequest::HoldWriters(true))?;
        Ok(Box::new(RemoteBlocker(object)))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Writers that have to wait on another node. They go on when the session ends, until somebody asks
/// whether they wait.
struct RemoteBlocker(RemoteObject);

impl BlocksWriters for RemoteBlocker {
    fn has_failed(&self) -> bool {
        match self.0.ask(&ObjectRequest::HoldWriters(true)) {
            Ok(ObjectReply::Truth(works)) => !works,
            Ok(_) => true,
            Err(error) => {
                // Nobody there can be made to wait now; it is asked again.
                tracing::debug!("writers on another node cannot be held back: {error}");
                false
            }
        }
    }
}

impl Drop for RemoteBlocker {
    fn drop(&mut self) {
        if let Err(error) = self.0.ask(&ObjectRequest::HoldWriters(false)) {
            tracing::debug!("writers on another node go on with their session: {error}");
        }
    }
}
