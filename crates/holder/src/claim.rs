//! Whose objects a metadata server wants, and by what right.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_wire::{OUT_OF_REACH, ObjectCall, Request};

/// Whose objects a metadata server wants, and by what right.
///
/// Several metadata servers may have been started with the same records, one after the other, and
/// one of before may not know that it was replaced. Data servers go with the latest start.
#[derive(Clone)]
pub struct Claim {
    instance: [u8; 16],
    epoch: u32,
    may: Arc<dyn Fn() -> bool + Send + Sync>,
    replaced: Arc<AtomicBool>,
}

impl Claim {
    /// Of the start of this number of an instance: a later start has a higher one.
    pub fn new(instance: [u8; 16], epoch: u32) -> Claim {
        Claim {
            instance,
            epoch,
            may: Arc::new(|| true),
            replaced: Arc::default(),
        }
    }

    /// Takes data servers from others only while that says so.
    pub fn only_while(self, may: impl Fn() -> bool + Send + Sync + 'static) -> Claim {
        Claim {
            may: Arc::new(may),
            ..self
        }
    }

    /// Whose objects.
    pub fn instance(&self) -> [u8; 16] {
        self.instance
    }

    /// Whether a data server has said that a later start has come.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// A data server says that a later start has come.
    pub(crate) fn note_replaced(&self) {
        if !self.replaced.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "a data server has let in a later start of the metadata server: this one was \
                 replaced, and gets no data server back"
            );
        }
    }

    /// What begins a session.
    pub(crate) fn begin(&self) -> io::Result<Request> {
        let (instance, epoch) = self.by_right()?;
        Ok(Request::Object(ObjectCall::Begin { instance, epoch }))
    }

    /// What has a further connection belong to the session.
    pub(crate) fn join(&self) -> io::Result<Request> {
        let (instance, epoch) = self.by_right()?;
        Ok(Request::Object(ObjectCall::Join { instance, epoch }))
    }

    fn by_right(&self) -> io::Result<([u8; 16], u32)> {
        match (self.may)() {
            true => Ok((self.instance, self.epoch)),
            false => Err(OUT_OF_REACH.into()),
        }
    }
}
