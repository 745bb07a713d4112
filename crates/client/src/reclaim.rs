//! Has again, in a new session, what the client has had before.

use forebay_types::{Errno, Ino};
use forebay_wire::{Connection, Link, OpenMode, Opened, Request, Response};

use crate::had::{Had, Known, Open};

impl Had {
    /// Makes a request of the caller one of this session. `ESTALE` where the session does not have
    /// what it is about.
    pub(crate) fn enter(
        &self,
        connection: &dyn Connection,
        session: u64,
        request: &mut Request,
    ) -> Result<(), Errno> {
        if let Some(handle) = request.handle_mut() {
            *handle = self.number(*handle, session).ok_or(Errno::ESTALE)?;
        }
        // There is nothing before the first one.
        if session > 1 {
            for ino in request.nodes().into_iter().flatten() {
                self.find(connection, session, ino)?;
            }
        }
        Ok(())
    }

    /// Looks for what was known before by this id, by the name that it had.
    fn find(&self, connection: &dyn Connection, session: u64, ino: Ino) -> Result<(), Errno> {
        match self.knows(ino, session) {
            Known::Yes => return Ok(()),
            Known::No => return Err(Errno::ESTALE),
            Known::Before => {}
        }
        let (mut parent, path) = self.path(ino, session).ok_or(Errno::ESTALE)?;
        let mut passed = Vec::new();
        let mut outcome = Ok(());
        for (known, name) in path {
            let lookup = Request::Lookup(Link {
                parent,
                name: name.to_vec(),
            });
            let shown = match connection.call(lookup, &[], &mut []) {
                Ok(reply) => match reply.response {
                    Response::Attr(shown) => Ok(shown),
                    _ => Err(Errno::EPROTO),
                },
                Err(Errno::ENOENT | Errno::ENOTDIR) => Err(Errno::ESTALE),
                Err(error) => Err(error),
            };
            let shown = match shown {
                Ok(shown) => shown,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            let (is_same, is_kept) = self.found_again(known, &shown, session);
            if !is_kept {
                passed.push((shown.attr.ino, 1));
            }
            // A directory on the way may be another one: the file at the end tells.
            if known == ino && !is_same {
                outcome = Err(Errno::ESTALE);
            }
            parent = shown.attr.ino;
        }
        if !passed.is_empty() {
            // A reference that is not dropped costs memory until the session ends.
            drop(connection.call(Request::Forget(passed), &[], &mut []));
        }
        outcome
    }

    /// Opens again what is open, as a new session begins. What cannot be, is stale from here on.
    pub(crate) fn reclaim(&self, connection: &dyn Connection, session: u64) {
        let (mut again, mut stale) = (0, 0);
        for (handle, open) in self.opens() {
            let number = match self.reopen(connection, session, &open) {
                Ok(opened) => Some(opened.handle),
                // The next session begins with what is left.
                Err(Errno::ENOTCONN) => return,
                Err(error) => {
                    tracing::debug!("{:?} is not open any more: {error}", open.ino);
                    None
                }
            };
            match number {
                Some(_) => again += 1,
                None => stale += 1,
            }
            let is_wanted = self.reopened(handle, session, number);
            if let Some(handle) = number.filter(|_| !is_wanted) {
                close(connection, handle);
            }
        }
        if again + stale > 0 {
            tracing::info!("{again} open files are open again, {stale} are stale");
        }
    }

    fn reopen(
        &self,
        connection: &dyn Connection,
        session: u64,
        open: &Open,
    ) -> Result<Opened, Errno> {
        self.find(connection, session, open.ino)?;
        let request = Request::Open {
            ino: open.ino,
            flags: open.flags.without_making(),
            cred: open.cred,
        };
        match connection.call(request, &[], &mut [])?.response {
            Response::Opened(opened) if opened.mode == OpenMode::Plain => Ok(opened),
            // The kernel has it as one that is served by requests.
            Response::Opened(opened) => {
                close(connection, opened.handle);
                Err(Errno::ESTALE)
            }
            _ => Err(Errno::EPROTO),
        }
    }
}

fn close(connection: &dyn Connection, handle: forebay_types::Handle) {
    // What stays open is closed with the session.
    drop(connection.call(Request::Release { handle }, &[], &mut []));
}
