//! The locks that a client holds, so that it can have them again after a restart of the server.

use std::collections::{HashMap, HashSet};

use forebay_policy::locks::{FileLocks, Held};
use forebay_types::{Errno, Handle, Ino, LockClass, LockMode};
use forebay_wire::{LockOf, Recall, Request, Response};

/// Grants that are told before the answer to who has asked.
const EARLY_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Via {
    handle: Handle,
    pid: u32,
}

type Lock = Held<u64, Via>;

/// What a request asks about locks, with the caller's handles.
pub(crate) enum Asked {
    Lock(LockOf, LockMode, u32, Option<u64>),
    Unlock(LockOf),
    Cancel(u64),
    Recalls,
}

impl Asked {
    pub(crate) fn of(request: &Request) -> Option<Asked> {
        match request {
            Request::Lock {
                lock,
                mode,
                pid,
                ticket,
                ..
            } => Some(Asked::Lock(*lock, *mode, *pid, *ticket)),
            Request::Unlock { lock } => Some(Asked::Unlock(*lock)),
            Request::CancelLock { ticket } => Some(Asked::Cancel(*ticket)),
            Request::Recalls { .. } => Some(Asked::Recalls),
            _ => None,
        }
    }
}

/// A lock that is held.
pub(crate) struct HeldLock {
    /// By the caller's handle.
    pub(crate) lock: LockOf,
    pub(crate) mode: LockMode,
    pub(crate) pid: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locked {
    files: HashMap<(Ino, LockClass), FileLocks<u64, Via>>,
    waiting: HashMap<u64, ((Ino, LockClass), Lock)>,
    early: HashSet<u64>,
}

impl Locked {
    /// A session begins: who waited in the last one has been told that this is over.
    pub(crate) fn begins(&mut self) {
        self.waiting.clear();
        self.early.clear();
    }

    fn change(&mut self, key: (Ino, LockClass), change: impl FnOnce(&mut FileLocks<u64, Via>)) {
        let file = self.files.entry(key).or_default();
        change(file);
        if file.held().is_empty() {
            self.files.remove(&key);
        }
    }

    /// Notes what an answer has given and taken.
    pub(crate) fn note(
        &mut self,
        asked: Asked,
        response: &Response,
        ino_of: impl Fn(Handle) -> Option<Ino>,
    ) {
        match asked {
            Asked::Lock(lock, mode, pid, ticket) => {
                let Some(ino) = ino_of(lock.handle) else {
                    return;
                };
                let key = (ino, lock.class);
                let handle = lock.handle;
                let wants = Held {
                    owner: lock.owner,
                    range: lock.range,
                    mode,
                    via: Via { handle, pid },
                };
                let was_tried = matches!(
                    response,
                    Response::Done | Response::WouldWait | Response::Failed(Errno::EAGAIN)
                );
                if lock.class == LockClass::Whole && was_tried {
                    // The server has taken one of another mode back first.
                    self.change(key, |file| {
                        file.drop_where(|held| held.owner == lock.owner && held.mode != mode);
                    });
                }
                match (response, ticket) {
                    (Response::Done, _) => self.change(key, |file| file.give(wants)),
                    (Response::WouldWait, Some(ticket)) if self.early.remove(&ticket) => {
                        self.change(key, |file| file.give(wants));
                    }
                    (Response::WouldWait, Some(ticket)) => {
                        self.waiting.insert(ticket, (key, wants));
                    }
                    _ => {}
                }
            }
            Asked::Unlock(lock) => {
                if let (Response::Done, Some(ino)) = (response, ino_of(lock.handle)) {
                    self.change((ino, lock.class), |file| {
                        file.drop_range(lock.owner, lock.range);
                    });
                }
            }
            Asked::Cancel(ticket) => {
                if *response == Response::Done {
                    self.waiting.remove(&ticket);
                }
            }
            Asked::Recalls => self.granted(response),
        }
    }

    fn granted(&mut self, response: &Response) {
        let Response::Recalls { recalls, .. } = response else {
            return;
        };
        for recall in recalls {
            let Recall::Granted(ticket) = recall else {
                continue;
            };
            match self.waiting.remove(ticket) {
                Some((key, wants)) => self.change(key, |file| file.give(wants)),
                None if self.early.len() < EARLY_MAX => {
                    self.early.insert(*ticket);
                }
                None => {}
            }
        }
    }

    /// A handle is closed, and its locks go with it.
    pub(crate) fn close(&mut self, ino: Ino, handle: Handle) {
        for class in [LockClass::Bytes, LockClass::Whole] {
            if self.files.contains_key(&(ino, class)) {
                self.change((ino, class), |file| {
                    file.drop_where(|held| held.via.handle == handle);
                });
            }
        }
        if !self.waiting.is_empty() {
            self.waiting
                .retain(|_, (_, wants)| wants.via.handle != handle);
        }
    }

    /// Those that were asked for through a handle.
    pub(crate) fn of(&self, ino: Ino, handle: Handle) -> Vec<HeldLock> {
        let mut all = Vec::new();
        for class in [LockClass::Bytes, LockClass::Whole] {
            let held = self.files.get(&(ino, class)).map(FileLocks::held);
            let its = held.unwrap_or_default().iter();
            let its = its.filter(|held| held.via.handle == handle);
            all.extend(its.map(|held| HeldLock {
                lock: LockOf {
                    handle,
                    class,
                    owner: held.owner,
                    range: held.range,
                },
                mode: held.mode,
                pid: held.via.pid,
            }));
        }
        all
    }
}
