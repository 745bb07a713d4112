//! Reads, writes and changes of space that the kernel does not do by itself.

use forebay_client::Progress;
use forebay_types::{Errno, Handle, Ino};
use forebay_wire::WriteHow;
use fuser::{ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite, ReplyXattr};

use crate::belief::Belief;
use crate::convert::{errno, seek_what, space_change};
use crate::inflight::{Turn, finish};
use crate::notices::TO_THE_END;
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
            let read = match pages {
                true => client.read_pages(handle, offset, into, thread),
                false => client.read(handle, offset, into, thread),
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
        thread: u32,
        reply: ReplyWrite,
    ) {
        let changed = move |belief: &Belief| {
            if how.drop_suid {
                belief.content_changed(node);
            }
        };
        // Where it has ended up is not known of an append.
        let forget = move |belief: &Belief, n: usize| match how.append {
            true => belief.was_written(node, 0, TO_THE_END),
            false => belief.was_written(node, offset, n as u64),
        };
        let has_pages = move |belief: &Belief| !how.write_back && belief.has_pages(node);
        let turn = self.in_flight.turn(reply);
        let written = self.client.write(handle, offset, data, how, thread);
        let reply = match (turn.reply::<ReplyWrite>(), written) {
            (Some(reply), Ok(Progress::Done(n))) => {
                changed(&self.belief);
                if n == 0 || !has_pages(&self.belief) {
                    return reply.written(n as u32);
                }
                let (in_flight, belief) = (self.in_flight.clone(), self.belief.clone());
                return self.forgetters.run(Box::new(move |_| {
                    let turn = in_flight.waiting_turn(reply);
                    forget(&belief, n);
                    if let Some(reply) = turn.reply::<ReplyWrite>() {
                        reply.written(n as u32);
                    }
                }));
            }
            (Some(reply), Err(e)) => return reply.error(errno(e)),
            (Some(reply), Ok(Progress::WouldWait)) => reply,
            (None, _) => return,
        };
        // There may be no room for the copy now. The turn lets the watchdog see that this thread
        // waits.
        let turn = self.in_flight.turn(reply);
        let data = self.waiting.copy(data);
        let Some(reply) = turn.reply::<ReplyWrite>() else {
            return;
        };
        let (client, in_flight) = (self.client.clone(), self.in_flight.clone());
        let (belief, forgetters) = (self.belief.clone(), self.forgetters.clone());
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            let how = WriteHow {
                may_wait: true,
                ..how
            };
            let written = client.write(handle, offset, &data, how, thread);
            match (turn.reply::<ReplyWrite>(), written) {
                (Some(reply), Ok(Progress::Done(n))) => {
                    changed(&belief);
                    if n == 0 || !has_pages(&belief) {
                        return reply.written(n as u32);
                    }
                    forgetters.run(Box::new(move |_| {
                        forget(&belief, n);
                        reply.written(n as u32);
                    }));
                }
                (Some(reply), Ok(Progress::WouldWait)) => reply.error(errno(Errno::EAGAIN)),
                (Some(reply), Err(e)) => reply.error(errno(e)),
                (None, _) => {}
            }
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
        let belief = self.belief.clone();
        self.pool.run(Box::new(move |_| {
            let turn = in_flight.waiting_turn(reply);
            let done = client.change_space(handle, change, offset, len, drop_suid, true);
            if drop_suid {
                belief.content_changed(node);
            }
            finish(done.map(|_| ()), &turn);
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
