//! Has again, in a new session, what the client has had before.

use std::time::{Duration, Instant};

use forebay_policy::patience::NAMELESS_FILES;
use forebay_types::{Errno, Handle, Ino};
use forebay_wire::{
    Connection, Link, LockOf, NOT_SENT, OUT_OF_REACH, Request, Response, UNSETTLED,
};

use crate::had::{Backing, Had, Known, Open};
use crate::stale::Stale;

/// Between two tries to open a file without a name.
const NAMELESS_PAUSE: Duration = Duration::from_millis(100);

impl Had {
    /// Makes a request of the caller one of this session. `ESTALE` where the session does not have
    /// what it is about.
    pub(crate) fn enter(
        &self,
        connection: &dyn Connection,
        session: u64,
        request: &mut Request,
    ) -> Result<(), Errno> {
        // Pages that were dropped before it began may have been read anew since.
        if let Request::Recalls { settled, .. } = request {
            *settled = u64::from(*settled == session);
        }
        // There is nothing before the first one.
        if session == 1 {
            return Ok(());
        }
        if let Request::ReleaseMany(handles) = request {
            // Those that are not open again are closed.
            handles.retain(|handle| self.number(*handle, session).is_some());
        }
        for handle in request.handles_mut() {
            *handle = match self.number(*handle, session) {
                Some(number) => number,
                None => self.reopen_late(connection, session, *handle)?,
            };
        }
        for ino in request.nodes().into_iter().flatten() {
            self.find(connection, session, ino)?;
        }
        Ok(())
    }

    /// Looks for what was known before by this id: by the name that it had; or by the id, if it is
    /// open and has lost its name.
    fn find(&self, connection: &dyn Connection, session: u64, ino: Ino) -> Result<(), Errno> {
        match self.knows(ino, session) {
            Known::Yes => return Ok(()),
            Known::No => return Err(Errno::ESTALE),
            Known::Before => {}
        }
        match self.find_by_name(connection, session, ino) {
            Err(Errno::ESTALE) => self.find_nameless(connection, session, ino),
            // Who has it open may have found it by a way that is closed to them now.
            Err(error @ (Errno::EACCES | Errno::EPERM)) if self.life_of_open(ino).is_some() => {
                match self.find_nameless(connection, session, ino) {
                    Err(Errno::ESTALE) => Err(error),
                    found => found,
                }
            }
            found => found,
        }
    }

    fn find_nameless(
        &self,
        connection: &dyn Connection,
        session: u64,
        ino: Ino,
    ) -> Result<(), Errno> {
        let life = self.life_of_open(ino).ok_or(Errno::ESTALE)?;
        let request = Request::FindNameless { ino, life };
        match connection.call(request, &[], &mut [])?.response {
            Response::Attr(shown) if shown.attr.ino == ino => {}
            _ => return Err(Errno::EPROTO),
        }
        if !self.found_nameless(ino, session) {
            // Another thread was faster, or nobody knows the file any more.
            drop(connection.call(Request::Forget(vec![(ino, 1)]), &[], &mut []));
        }
        Ok(())
    }

    fn find_by_name(
        &self,
        connection: &dyn Connection,
        session: u64,
        ino: Ino,
    ) -> Result<(), Errno> {
        let (mut parent, path) = self.path(ino, session).ok_or(Errno::ESTALE)?;
        let mut passed = Vec::new();
        let mut outcome = Ok(());
        for step in path {
            let known = step.ino;
            let lookup = Request::Lookup {
                link: Link {
                    parent,
                    name: step.name.to_vec(),
                },
                uid: step.uid,
            };
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

    /// Opens again what is open, as a new session begins. What cannot be, is stale from here on;
    /// what cannot be now, is tried again when it is asked for.
    /// Whether the session has lived to the end of that.
    pub(crate) fn reclaim(
        &self,
        connection: &dyn Connection,
        session: u64,
        descriptors: bool,
    ) -> bool {
        let takes = |open: &Open| {
            let has_one = descriptors && open.backing.is_some();
            connection.accept_descriptors(has_one);
        };
        let (mut again, mut stale) = (0, Stale::default());
        let (opens, given_up) = self.opens();
        given_up.into_iter().for_each(|ino| stale.add(self, ino));
        let mut failed = Vec::new();
        for (handle, open) in opens {
            takes(&open);
            match self.reopen(connection, session, (handle, &open)) {
                Ok(()) => again += 1,
                Err(error) if is_over(error) => return false,
                Err(Errno::ESTALE) => stale.add(self, open.ino),
                Err(error) => failed.push((handle, open, error)),
            }
        }
        let until = Instant::now() + NAMELESS_FILES;
        for (handle, open, error) in failed {
            takes(&open);
            match self.try_until(connection, session, (handle, &open), error, until) {
                Ok(()) => again += 1,
                Err(error) if is_over(error) => return false,
                Err(Errno::ESTALE) => stale.add(self, open.ino),
                // Nobody else gets its locks meanwhile: nobody can open it.
                Err(error)
                    if error == OUT_OF_REACH || self.locks_of(open.ino, handle).is_empty() =>
                {
                    tracing::warn!("{:?} cannot be opened again yet: {error}", open.ino);
                }
                // Others may have its locks as soon as this client has come back.
                Err(_) => {
                    self.reopened(handle, session, None);
                    stale.add(self, open.ino);
                }
            }
        }
        if again + stale.count() > 0 {
            tracing::info!(
                "files that are open again: {again}, stale: {}",
                stale.count()
            );
        }
        for line in stale.lines() {
            tracing::warn!("{line}");
        }
        true
    }

    /// Opening it has failed with an error that may pass. What has no name is tried again: once
    /// this client has come back, the server keeps it no longer.
    fn try_until(
        &self,
        connection: &dyn Connection,
        session: u64,
        (handle, open): (Handle, &Open),
        mut error: Errno,
        until: Instant,
    ) -> Result<(), Errno> {
        while self.may_lack_name(open.ino, session)
            && self.open_of_before(handle, session).is_some()
            && Instant::now() < until
        {
            std::thread::sleep(NAMELESS_PAUSE);
            match self.reopen(connection, session, (handle, open)) {
                Err(again) if may_pass(again) => error = again,
                done => return done,
            }
        }
        Err(error)
    }

    fn reopen_late(
        &self,
        connection: &dyn Connection,
        session: u64,
        handle: Handle,
    ) -> Result<Handle, Errno> {
        let open = self.open_of_before(handle, session);
        let open = open.ok_or(Errno::ESTALE)?;
        self.reopen(connection, session, (handle, &open))?;
        // Another thread may have been faster.
        self.number(handle, session).ok_or(Errno::ESTALE)
    }

    /// Opens a file again, with its locks. `ESTALE` gives it up.
    fn reopen(
        &self,
        connection: &dyn Connection,
        session: u64,
        (handle, open): (Handle, &Open),
    ) -> Result<(), Errno> {
        let reopened = self.find(connection, session, open.ino).and_then(|()| {
            let request = Request::Open {
                ino: open.ino,
                flags: open.flags.without_making(),
                cred: open.cred,
            };
            let reply = connection.call(request, &[], &mut [])?;
            let backing = Backing::of(&reply);
            match reply.response {
                Response::Opened(opened) => Ok((opened, backing)),
                _ => Err(Errno::EPROTO),
            }
        });
        let locked = reopened.and_then(|(opened, backing)| {
            // What is served by requests, requests can go on with.
            let is_same = open.backing.is_none() || open.backing == backing;
            let done = match (is_same, backing) {
                (true, _) => self.lock_again(connection, (handle, opened.handle), open),
                // The data server of this node has not said which file that is.
                (false, None) if opened.place.is_some() => Err(OUT_OF_REACH),
                (false, _) => Err(Errno::ESTALE),
            };
            done.inspect_err(|_| close(connection, opened.handle))
                .map(|()| opened.handle)
        });
        match locked {
            Ok(number) => {
                if !self.reopened(handle, session, Some(number)) {
                    close(connection, number);
                }
                Ok(())
            }
            Err(error) if is_over(error) => Err(error),
            Err(error) if may_pass(error) => Err(error),
            Err(error) => {
                tracing::debug!("{:?} is not open any more: {error}", open.ino);
                self.reopened(handle, session, None);
                if open.backing.is_some() {
                    self.is_another(open.ino, session);
                }
                Err(Errno::ESTALE)
            }
        }
    }

    fn lock_again(
        &self,
        connection: &dyn Connection,
        (handle, number): (Handle, Handle),
        open: &Open,
    ) -> Result<(), Errno> {
        for held in self.locks_of(open.ino, handle) {
            let request = Request::Lock {
                lock: LockOf {
                    handle: number,
                    ..held.lock
                },
                mode: held.mode,
                pid: held.pid,
                ticket: None,
                again: true,
            };
            // If somebody else has it, what is protected by it is not this client's any more.
            connection.call(request, &[], &mut [])?;
        }
        Ok(())
    }
}

/// Whether the session is over.
fn is_over(error: Errno) -> bool {
    error == Errno::ENOTCONN || error == NOT_SENT
}

/// A PFS or a node that does not answer, a server that is full, others who have not come back.
fn may_pass(error: Errno) -> bool {
    matches!(
        error,
        Errno::EIO | Errno::ETIMEDOUT | Errno::ENOMEM | Errno::ENFILE | UNSETTLED | OUT_OF_REACH
    )
}

fn close(connection: &dyn Connection, handle: Handle) {
    // What stays open is closed with the session.
    drop(connection.call(Request::Release { handle }, &[], &mut []));
}
