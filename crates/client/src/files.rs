//! Calls that open a file or close one.

use std::sync::Arc;

use forebay_types::{Cred, Errno, Handle, Ino, OpenFlags};
use forebay_wire::{Descriptor, Opened, Reply, Request, Response, Shown};

use crate::{Client, link, unexpected};

/// A file just opened.
pub struct OpenFile {
    /// Handle and mode.
    pub opened: Opened,
    /// The object's descriptor, if the kernel may use it by itself.
    pub descriptor: Option<Arc<dyn Descriptor>>,
}

/// A file just made, and opened.
pub struct Created {
    /// What it is like.
    pub shown: Shown,
    /// The file.
    pub open: OpenFile,
    /// Its directory after that.
    pub parent: Option<Box<Shown>>,
}

impl Client {
    /// Creates a regular file and opens it.
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
    ) -> Result<(Shown, OpenFile), Errno> {
        let made = self.create_in((parent, false), name, perm, flags, cred)?;
        Ok((made.shown, made.open))
    }

    /// The same, and the directory after that, if that is wanted and known.
    pub fn create_in(
        &self,
        (parent, shows_parent): (Ino, bool),
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
    ) -> Result<Created, Errno> {
        self.introduce(&cred);
        self.created(Request::Create {
            link: link(parent, name),
            perm,
            flags,
            cred,
            shows_parent,
        })
    }

    /// Creates a regular file without a name in a directory and opens it; [`Self::link`] gives it
    /// one.
    pub fn create_unnamed(
        &self,
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
        cred: Cred,
    ) -> Result<(Shown, OpenFile), Errno> {
        self.introduce(&cred);
        let made = self.created(Request::CreateUnnamed {
            parent,
            perm,
            flags,
            cred,
        })?;
        Ok((made.shown, made.open))
    }

    fn created(&self, request: Request) -> Result<Created, Errno> {
        match self.connection.call(request, &[], &mut [])? {
            Reply {
                response: Response::Created(shown, opened, parent),
                descriptor,
            } => Ok(Created {
                shown,
                open: OpenFile { opened, descriptor },
                parent,
            }),
            other => unexpected(other.response),
        }
    }

    /// Opens a file.
    pub fn open(&self, ino: Ino, flags: OpenFlags, cred: Cred) -> Result<OpenFile, Errno> {
        self.introduce(&cred);
        match self
            .connection
            .call(Request::Open { ino, flags, cred }, &[], &mut [])?
        {
            Reply {
                response: Response::Opened(opened),
                descriptor,
            } => Ok(OpenFile { opened, descriptor }),
            other => unexpected(other.response),
        }
    }

    /// Closes a file.
    pub fn release(&self, handle: Handle) -> Result<(), Errno> {
        self.done(Request::Release { handle })
    }

    /// Closes several files, at most [`forebay_types::limits::RELEASES_PER_MESSAGE_MAX`]. The first
    /// error: the others are closed all the same.
    pub fn release_many(&self, handles: Vec<Handle>) -> Result<(), Errno> {
        self.done(Request::ReleaseMany(handles))
    }
}
