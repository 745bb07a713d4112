//! Reads, writes and changes of space that the kernel does not do by itself.

use std::sync::Arc;
use std::time::Duration;

use forebay_client::Progress;
use forebay_types::{Errno, Handle, Ino};
use forebay_wire::WriteHow;
use fuser::{ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite, ReplyXattr};

use crate::belief::Belief;
use crate::convert::{errno, seek_what, space_change};
use crate::inflight::{InFlightTable, Turn, finish};
use crate::notices::TO_THE_END;
use crate::pool::Pool;
use crate::serving::Adapter;

impl Adapter {
    pub(crate) fn answer_read(
        &self,
        (node, handle, thread): (Ino, Handle, u32),
        (offset, size): (u64, usize),
        pages: bool,
        reply: ReplyData,
    ) {
        if self.belief.pages_ended() {
            return reply.error(errno(Errno::ENOTCONN));
        }
        let (client, in_flight) = (self.client.clone(), self.in_flight.clone());
        let belief = pages.then(|| self.belief.clone());
        if let Some(belief) = &belief {
            belief.gives_pages(node);
        }
        self.pool.run(Box::new(move |buffer| {
            let turn = in_flight.waiting_turn(reply);
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let into = &mut buffer[..size];
            let read = match &belief {
                Some(belief) => {
                    client
                        .read_pages(handle, offset, into, thread)
                        .map(|(bytes, end)| {
                            // A store that finds the page asks nobody where the file ends.
                            if let Some(end) = end {
                                belief.grow_before_pages(node, end);
                            }
                            bytes
                        })
                }
                None => client.read(handle, offset, into, thread),
            };
            match (turn.reply::<ReplyData>(), read) {
                (Some(reply), Ok(n)) => reply.data(&buffer[..n]),
                (Some(reply), Err(e)) => reply.error(errno(e)),
                (None, _) => {}
            }
            if let Some(belief) = belief {
                belief.has_given_pages(node);
            }
        }));
    }

    pub(crate) fn answer_write(
        &self,
        (node, handle): (Ino, Handle),
        (offset, data): (u64, &[u8]),
        how: WriteHow,
        (thread, is_direct): (u32, bool),
        reply: ReplyWrite,
    ) {
        let done = Written {
            node,
            offset,
            how,
            belief: self.belief.clone(),
            forgetters: self.forgetters.clone(),
            in_flight: self.in_flight.clone(),
            thread,
            is_direct,
        };
        let turn = self.in_flight.turn(reply);
        let written = self.client.write(handle, offset, data, how, thread);
        let reply = match (turn.reply::<ReplyWrite>(), written) {
            (Some(reply), Ok(Progress::WouldWait)) => reply,
            (reply, written) => return done.end(reply, written),
        };
        // There may be no room for the copy now. The turn lets the watchdog see that this thread
        // waits.
        turn.goes_on(reply);
        let data = self.waiting.copy(data);
        let Some(reply) = turn.reply::<ReplyWrite>() else {
            return;
        };
        let (client, in_flight) = (self.client.clone(), self.in_flight.clone());
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            let how = WriteHow {
                may_wait: true,
                ..how
            };
            let written = client.write(handle, offset, &data, how, thread);
            done.end(turn.reply::<ReplyWrite>(), written);
        }));
    }

    pub(crate) fn answer_space(
        &self,
        (node, handle): (Ino, Handle),
        mode: i32,
        (offset, len): (u64, u64),
        drop_suid: bool,
        reply: ReplyEmpty,
    ) {
        let Some(change) = space_change(mode) else {
            return reply.error(errno(Errno::EOPNOTSUPP));
        };
        let (client, in_flight) = (self.client.clone(), self.in_flight.clone());
        let (belief, forgetters) = (self.belief.clone(), self.forgetters.clone());
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            let done = client.change_space(handle, change, offset, len, drop_suid, true);
            if drop_suid {
                belief.content_changed(node);
            }
            let is_done = done.is_ok();
            if !finish(done.map(|_| ()), &turn) && is_done {
                changed_late(&forgetters, belief, node);
            }
        }));
    }

    pub(crate) fn answer_seek(&self, handle: Handle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Some(what) = seek_what(whence) else {
            return reply.error(errno(Errno::EINVAL));
        };
        let Ok(from) = u64::try_from(offset) else {
            return reply.error(errno(Errno::ENXIO));
        };
        let turn = self.in_flight.turn(reply);
        let found = self.client.seek(handle, from, what);
        match (turn.reply::<ReplyLseek>(), found) {
            (Some(reply), Ok(found)) => reply.offset(found as i64),
            (Some(reply), Err(e)) => reply.error(errno(e)),
            (None, _) => {}
        }
    }
}

/// A write that was asked for.
struct Written {
    node: Ino,
    offset: u64,
    how: WriteHow,
    belief: Arc<Belief>,
    forgetters: Pool,
    in_flight: Arc<InFlightTable>,
    thread: u32,
    is_direct: bool,
}

impl Written {
    /// Answers it. Without a reply the watchdog has done so, and the kernel has taken up nothing of
    /// what was written all the same.
    fn end(self, reply: Option<ReplyWrite>, written: Result<Progress<usize>, Errno>) {
        match (written, reply) {
            (Ok(Progress::Done(n)), reply) => self.done(n, Duration::ZERO, reply),
            (Ok(Progress::Paced(n, pause)), reply) => self.done(n, pause, reply),
            (Ok(Progress::WouldWait), Some(reply)) => reply.error(errno(Errno::EAGAIN)),
            (Err(error), Some(reply)) => reply.error(errno(error)),
            (_, None) => {}
        }
    }

    fn done(self, n: usize, pause: Duration, reply: Option<ReplyWrite>) {
        if self.how.drop_suid {
            self.belief.content_changed(self.node);
        }
        let has_pages = !self.how.write_back && self.belief.has_pages(self.node);
        if n == 0 || !has_pages {
            return self.answer(n, pause, reply);
        }
        let forgetters = self.forgetters.clone();
        forgetters.run(Box::new(move |_| {
            match self.how.append {
                // Where it has ended up is not known.
                true => self.belief.was_written(self.node, 0, TO_THE_END),
                false => self.belief.was_written(self.node, self.offset, n as u64),
            }
            self.answer(n, pause, reply);
        }));
    }

    fn answer(&self, n: usize, pause: Duration, reply: Option<ReplyWrite>) {
        let Some(reply) = reply else {
            return;
        };
        let reply = match pause.is_zero() {
            true => Some(reply),
            false => {
                let whose = (self.thread, self.is_direct);
                self.in_flight.paced.hold((n as u32, pause), whose, reply)
            }
        };
        if let Some(reply) = reply {
            reply.written(n as u32);
        }
    }
}

/// A file was changed after the watchdog had answered: the kernel has taken up nothing of it, and
/// forgets what it has.
pub(crate) fn changed_late(forgetters: &Pool, belief: Arc<Belief>, node: Ino) {
    forgetters.run(Box::new(move |_| {
        if let Err(error) = belief.write_back(node) {
            tracing::warn!("the kernel was not told that {node:?} has changed: {error}");
        }
    }));
}

/// A size of 0 asks how large the value is.
pub(crate) fn answer_xattr(found: Result<Vec<u8>, Errno>, size: u32, turn: &Turn<'_>) {
    let Some(reply) = turn.reply::<ReplyXattr>() else {
        return;
    };
    match found {
        Err(e) => reply.error(errno(e)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::ERANGE)),
        Ok(value) => reply.data(&value),
    }
}
