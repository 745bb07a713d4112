//! Requests about locks, of one session.

use forebay_types::{Errno, Ino};
use forebay_wire::{Request, Response};

use super::Session;
use super::locks::Ask;

impl Session {
    /// `file` is what the request's handle is open on.
    pub(super) fn answer_lock(&self, request: Request, file: Option<Ino>) -> Response {
        let locks = &self.common.locks;
        let done = |()| Response::Done;
        let answer = match (request, file) {
            (Request::CancelLock { ticket }, _) => locks.cancel(self.node, ticket).map(done),
            (Request::Unlock { lock }, Some(ino)) => {
                locks.unlock(ino, self.node, &lock);
                Ok(Response::Done)
            }
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
                },
                Some(ino),
            ) => {
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
            let file = shard.files.get_mut(&handle);
            file.map(|file| file.locked |= mark).ok_or(Errno::ESTALE)
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
