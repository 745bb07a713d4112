//! Copies to the PFS that a data server makes by itself: each has a thread, and goes as far as it
//! is let.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_tiers::{
    CopyControl, CopyError, CopyReport, Object, Outside, OutsideError, PfsTree, copy_out,
};
use forebay_types::{Errno, Handle};
use forebay_wire::{CopyEnd, CopyFacts, CopyFailure, ObjectReply, OutsideFile};
use parking_lot::{Condvar, Mutex};

/// Whoever lets a copy go on waits for it so long at most.
const GO_MAX: Duration = Duration::from_secs(1);
/// Whoever ends a copy waits for it so long at most.
const END_MAX: Duration = Duration::from_secs(5);
/// A checksum in the answer, bytes.
const SUM_BYTES: usize = size_of::<u32>();
/// So many at a time in one session: each has a thread and buffers.
const COPIES_MAX: usize = 64;

/// The copies of one session.
#[derive(Default)]
pub(crate) struct Copies {
    jobs: Mutex<HashMap<Handle, Arc<Job>>>,
}

struct Job {
    state: Mutex<State>,
    changed: Condvar,
    /// It is to end.
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// It may move so much.
    upto_bytes: u64,
    moved_bytes: u64,
    /// Behind the last byte that was moved.
    offset: u64,
    ended: Option<Result<CopyReport, OutsideError>>,
}

impl Copies {
    /// Begins one. It moves nothing before it is let.
    pub fn begin(
        &self,
        id: Handle,
        pfs: Arc<PfsTree>,
        source: Arc<dyn Object>,
        to: OutsideFile,
    ) -> io::Result<()> {
        let mut jobs = self.jobs.lock();
        if jobs.len() >= COPIES_MAX {
            return Err(Errno::EUSERS.into());
        }
        let job = Arc::new(Job {
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let theirs = job.clone();
        let thread = std::thread::Builder::new()
            .name("fb-copy-out".into())
            .spawn(move || theirs.run(&pfs, &*source, &outside(to)))?;
        *job.thread.lock() = Some(thread);
        jobs.insert(id, job);
        Ok(())
    }

    fn job(&self, id: Handle) -> io::Result<Arc<Job>> {
        let job = self.jobs.lock().get(&id).cloned();
        Ok(job.ok_or(Errno::EBADF)?)
    }

    /// Lets one go on, and waits a little: how far it is.
    pub fn go(&self, id: Handle, upto_bytes: u64) -> io::Result<ObjectReply> {
        Ok(self.job(id)?.go(upto_bytes))
    }

    /// Checksums after blocks of one that is whole: how many bytes of them.
    pub fn sums(&self, id: Handle, from: u32, into: &mut [u8]) -> io::Result<u32> {
        let job = self.job(id)?;
        let state = job.state.lock();
        let Some(Ok(report)) = &state.ended else {
            return Err(Errno::EINVAL.into());
        };
        let sums = report.sums.after_blocks.iter().skip(from as usize);
        let mut bytes = 0;
        for (place, sum) in into.chunks_exact_mut(SUM_BYTES).zip(sums) {
            place.copy_from_slice(&sum.to_le_bytes());
            bytes += SUM_BYTES;
        }
        Ok(bytes as u32)
    }

    /// Ends one. Nothing of it runs after this, or it is `EBUSY`: it hangs in a call on the PFS.
    pub fn end(&self, id: Handle) -> io::Result<()> {
        let job = self.jobs.lock().remove(&id);
        match job.is_none_or(|job| job.end()) {
            true => Ok(()),
            false => Err(Errno::EBUSY.into()),
        }
    }

    /// Ends all.
    pub fn end_all(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock());
        jobs.values().for_each(|job| job.ask_to_end());
        for job in jobs.values().filter(|job| !job.end()) {
            tracing::warn!(
                "a copy to the PFS hangs: {} bytes of it are made",
                job.moved_bytes()
            );
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl Job {
    fn run(&self, pfs: &PfsTree, source: &dyn Object, to: &Outside) {
        let stop = || self.stop.load(Ordering::Acquire);
        let moved = |bytes, offset| self.moved(bytes, offset);
        let control = CopyControl {
            stop: &stop,
            moved: &moved,
        };
        let ended = copy_out(pfs, source, to, &control);
        self.state.lock().ended = Some(ended);
        self.changed.notify_all();
    }

    /// Waits until more may be moved.
    fn moved(&self, bytes: u64, offset: u64) {
        let mut state = self.state.lock();
        state.moved_bytes += bytes;
        state.offset = state.offset.max(offset);
        self.changed.notify_all();
        while state.moved_bytes >= state.upto_bytes && !self.stop.load(Ordering::Acquire) {
            self.changed.wait(&mut state);
        }
    }

    fn go(&self, upto_bytes: u64) -> ObjectReply {
        let until = Instant::now() + GO_MAX;
        let mut state = self.state.lock();
        state.upto_bytes = state.upto_bytes.max(upto_bytes);
        self.changed.notify_all();
        while state.ended.is_none() && state.moved_bytes < upto_bytes {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        ObjectReply::Copied {
            moved_bytes: state.moved_bytes,
            offset: state.offset,
            end: state.ended.as_ref().map(end_of),
        }
    }

    fn ask_to_end(&self) {
        self.stop.store(true, Ordering::Release);
        // Whoever is about to wait has looked already, or looks after this.
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Whether nothing of it runs any more.
    fn end(&self) -> bool {
        self.ask_to_end();
        let until = Instant::now() + END_MAX;
        let mut state = self.state.lock();
        while state.ended.is_none() && !self.changed.wait_until(&mut state, until).timed_out() {}
        let has_ended = state.ended.is_some();
        drop(state);
        let thread = self.thread.lock().take().filter(|_| has_ended);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a copy to the PFS has panicked");
        }
        has_ended
    }

    fn moved_bytes(&self) -> u64 {
        self.state.lock().moved_bytes
    }
}

fn outside(to: OutsideFile) -> Outside {
    Outside {
        path: to.path,
        ino: to.ino,
        owner: to.owner,
        ahead_bytes: to.ahead_bytes,
        from_media: to.from_media,
    }
}

fn end_of(ended: &Result<CopyReport, OutsideError>) -> CopyEnd {
    let failure = match ended {
        Ok(report) => {
            return CopyEnd::Whole(CopyFacts {
                data_bytes: report.data_bytes,
                bytes: report.sums.bytes,
                crc: report.sums.crc,
                block_bytes: report.sums.block_bytes,
                blocks: report.sums.blocks() as u32,
            });
        }
        Err(OutsideError::Unreached(error)) => CopyFailure::Unreached(Errno::of(error)),
        Err(OutsideError::Copy(error)) => match error {
            CopyError::Stopped => CopyFailure::Stopped,
            CopyError::Source(error) => CopyFailure::Source(Errno::of(error)),
            CopyError::Destination(error) => CopyFailure::Destination(Errno::of(error)),
            CopyError::Verify {
                expected, found, ..
            } => CopyFailure::Verify {
                expected: *expected,
                found: *found,
            },
        },
    };
    CopyEnd::Failed(failure)
}
