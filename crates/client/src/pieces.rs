//! A read that is cut into pieces, which go over several links at once.
//!
//! One thread that reads has one request under way, and one link at a time carries it. Here it has
//! as many under way as the policy says. The caller reads the first piece itself and helpers read
//! the others; a piece that no helper has begun when the caller comes to it is the caller's, too.
//! So a read never waits for a thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_types::Errno;
use parking_lot::{Condvar, Mutex};

/// Most helpers: about as many pieces as are ever under way with the usual numbers of links.
const HELPERS_MAX: usize = 32;
/// Pieces begin at multiples of this, as pages do.
const ALIGN_BYTES: usize = 4096;

/// Reads from an offset within the whole read into a buffer, over the link of a piece (from 0).
pub(crate) type ReadPiece = dyn Fn(usize, usize, &mut [u8]) -> Result<usize, Errno> + Send + Sync;

enum State {
    Waits,
    Begun,
    Done(Result<usize, Errno>, Vec<u8>),
}

struct Piece {
    read: Arc<ReadPiece>,
    number: usize,
    at: usize,
    length: usize,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Arc<Piece>>,
    /// Buffers of pieces that are over, for the next ones.
    buffers: Vec<Vec<u8>>,
    helpers: usize,
    idle: usize,
    ending: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// The helpers of one client. They start when they are needed, and end with this.
#[derive(Default)]
pub(crate) struct Pieces {
    shared: Arc<Shared>,
    /// Reads of the size that may be cut, whether they are or not.
    under_way: AtomicUsize,
}

/// Counts a read as under way.
pub(crate) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pieces {
    /// Counts a read; how many there are with it.
    pub fn enter(&self) -> (UnderWay<'_>, usize) {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        (UnderWay(&self.under_way), before + 1)
    }

    /// Fills `into` by so many pieces at most. As of one read: fewer bytes only where a piece had
    /// fewer, and then none of what lies behind. The first error is the whole read's.
    pub fn read(
        &self,
        parts: usize,
        into: &mut [u8],
        read: Arc<ReadPiece>,
    ) -> Result<usize, Errno> {
        let length = into.len().div_ceil(parts.max(1));
        let length = length.next_multiple_of(ALIGN_BYTES);
        let starts = (0..into.len()).step_by(length).enumerate().skip(1);
        let pieces: Vec<Arc<Piece>> = starts
            .map(|(number, at)| {
                Arc::new(Piece {
                    read: read.clone(),
                    number,
                    at,
                    length: length.min(into.len() - at),
                    state: Mutex::new(State::Waits),
                    done: Condvar::new(),
                })
            })
            .collect();
        self.hand_out(&pieces);
        let mut places = into.chunks_mut(length);
        let first = places.next().unwrap_or_default();
        let mut total = Total::new();
        total.add(first.len(), read(0, 0, first));
        for (piece, place) in pieces.iter().zip(places) {
            total.add(place.len(), self.finish(piece, place));
        }
        total.outcome
    }

    fn hand_out(&self, pieces: &[Arc<Piece>]) {
        let mut queue = self.shared.queue.lock();
        queue.pieces.extend(pieces.iter().cloned());
        let wanted = queue.pieces.len();
        for _ in 0..wanted.min(queue.idle) {
            self.shared.more.notify_one();
        }
        let missing = wanted.saturating_sub(queue.idle);
        let new = missing.min(HELPERS_MAX - queue.helpers);
        queue.helpers += new;
        drop(queue);
        for _ in 0..new {
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new()
                .name("fb-piece".into())
                .spawn(move || shared.help());
            if let Err(error) = spawned {
                // The caller reads what nobody else does.
                tracing::debug!("no thread to read a piece: {error}");
                self.shared.queue.lock().helpers -= 1;
            }
        }
    }

    /// The outcome of a piece; its bytes are in `place` then.
    fn finish(&self, piece: &Piece, place: &mut [u8]) -> Result<usize, Errno> {
        let mut state = piece.state.lock();
        if let State::Waits = *state {
            *state = State::Begun;
            drop(state);
            return (piece.read)(piece.number, piece.at, place);
        }
        loop {
            match std::mem::replace(&mut *state, State::Begun) {
                State::Done(outcome, buffer) => {
                    drop(state);
                    if let Ok(bytes) = outcome {
                        place[..bytes].copy_from_slice(&buffer[..bytes]);
                    }
                    self.shared.keep(buffer);
                    return outcome;
                }
                State::Waits | State::Begun => piece.done.wait(&mut state),
            }
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.shared.queue.lock().ending = true;
        self.shared.more.notify_all();
    }
}

impl Shared {
    fn help(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(piece) = queue.pieces.pop_front() {
                let buffer = queue.buffers.pop().unwrap_or_default();
                drop(queue);
                if let Some(buffer) = piece.run(buffer) {
                    self.keep(buffer);
                }
                queue = self.queue.lock();
            } else if queue.ending {
                queue.helpers -= 1;
                return;
            } else {
                queue.idle += 1;
                self.more.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }

    fn keep(&self, buffer: Vec<u8>) {
        let mut queue = self.queue.lock();
        if queue.buffers.len() < HELPERS_MAX {
            queue.buffers.push(buffer);
        }
    }
}

impl Piece {
    /// Reads it, unless the caller does already: then the buffer comes back.
    fn run(&self, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        {
            let mut state = self.state.lock();
            match *state {
                State::Waits => *state = State::Begun,
                State::Begun | State::Done(..) => return Some(buffer),
            }
        }
        if buffer.len() < self.length {
            buffer.resize(self.length, 0);
        }
        let outcome = (self.read)(self.number, self.at, &mut buffer[..self.length]);
        *self.state.lock() = State::Done(outcome, buffer);
        self.done.notify_one();
        None
    }
}

/// Puts the outcomes of the pieces together, in their order.
struct Total {
    outcome: Result<usize, Errno>,
    ended: bool,
}

impl Total {
    fn new() -> Total {
        Total {
            outcome: Ok(0),
            ended: false,
        }
    }

    fn add(&mut self, asked: usize, outcome: Result<usize, Errno>) {
        let Ok(total) = &mut self.outcome else {
            return;
        };
        match outcome {
            // What lies behind the end of the file is of no meaning, an error neither.
            _ if self.ended => {}
            Ok(bytes) => {
                *total += bytes;
                self.ended = bytes < asked;
            }
            Err(errno) => self.outcome = Err(errno),
        }
    }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
