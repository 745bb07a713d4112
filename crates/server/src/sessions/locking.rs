//! Requests about locks, of one session.

use std::sync::atomic::Ordering;

use forebay_types::{Errno, Ino, LockClass, LockMode};
use forebay_wire::{Request, Response};

use super::Session;
use super::locks::Ask;

impl Session {
    /// Whether the client may have again what it had in an earlier life; or it has done so.
    pub(super) fn may_reclaim(&self, life: u64, done: bool) -> Response {
        let lives = &self.common.lives;
        lives.follows(self.life, life);
        self.recalls.returns();
        let may = lives.may_reclaim(life);
        if !done {
            self.life_before.store(life, Ordering::Release);
        }
        self.reclaims.store(may && !done, Ordering::Release);
        match may {
            true if done => {
                lives.reclaimed(life, self.life);
                self.common.holding.end_wait_for(life);
            }
            true => {}
            false => return Response::Failed(Errno::ESTALE),
        }
        Response::Done
    }

    /// Whether the client is having again what it had in an earlier life.
    pub(super) fn has_again(&self, life: u64) -> bool {
        self.reclaims.load(Ordering::Acquire) && self.life_before.load(Ordering::Acquire) == life
    }

    /// `file` is what the request's handle is open on.
    pub(super) fn answer_lock(&self, request: Request, file: Option<Ino>) -> Response {
        let locks = &self.common.locks;
        let done = |()| Response::Done;
        let answer = match (request, file) {
            (Request::CancelLock { ticket }, _) => locks.cancel(self.node, ticket).map(done),
            (Request::Unlock { lock }, Some(ino)) => locks.unlock(ino, self.node, &lock).map(done),
            (Request::TestLock { lock, mode }, Some(ino)) => {
                let holder = locks.in_the_way(ino, self.node, &lock, mode);
                Ok(Response::LockHolder(holder))
            }
            (
                Request::Lock {
                    lock,
                    mode,
                    pid,
                    ticket,
                    again,
                },
                Some(ino),
            ) => {
                let lives = &self.common.lives;
                match (again, self.reclaims.load(Ordering::Acquire)) {
                    (true, true) => {}
                    // Others may have had it in between.
                    (true, false) => return Response::Failed(Errno::ESTALE),
                    (false, _) if lives.are_awaited() || lives.are_kept() => {
                        return Response::Failed(Errno::EBUSY);
                    }
                    (false, _) => {}
                }
                let ask = Ask {
                    lock,
                    mode,
                    pid,
                    ticket,
                };
                self.lock(ino, ask)
            }
            _ => Err(Errno::EBADF),
        };
        answer.unwrap_or_else(Response::Failed)
    }

    fn lock(&self, ino: Ino, ask: Ask) -> Result<Response, Errno> {
        let (locks, handle) = (&self.common.locks, ask.lock.handle);
        let still_open = |mark: bool| {
            let mut shard = self.shard(handle.0).lock();
            let file = shard.files.get_mut(&handle).ok_or(Errno::ESTALE)?;
            // As fcntl(2) of an honest client's kernel has it: who may only read keeps no writer
            // out.
            let is_for_it = match (ask.lock.class, ask.mode) {
                (LockClass::Bytes, LockMode::Exclusive) => file.flags.writes(),
                (LockClass::Bytes, LockMode::Shared) => file.flags.reads(),
                (LockClass::Whole, _) => true,
            };
            file.locked |= mark && is_for_it;
            is_for_it.then_some(()).ok_or(Errno::EBADF)
        };
        still_open(true)?;
        let is_granted = locks.lock(ino, (&self.recalls, self.node), ask)?;
        // Whoever has closed it meanwhile has not found this lock.
        still_open(false).inspect_err(|_| locks.release(ino, handle))?;
        Ok(match is_granted {
            true => Response::Done,
            false => Response::WouldWait,
        })
    }
}
