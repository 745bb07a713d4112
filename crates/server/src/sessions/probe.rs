//! The file on the PFS by which a client looks whether its node sees the same one: one at a time,
//! and none after the end of the session.

use forebay_types::Errno;
use forebay_wire::{Peer, Reply, Request, Response, Service};
use parking_lot::Mutex;

/// Its name, while there is one.
#[derive(Default)]
pub struct Probe(Mutex<Option<Vec<u8>>>);

impl Probe {
    /// Another one takes its place.
    pub fn show(&self, server: &dyn Service, peer: Peer<'_>) -> Reply {
        let mut shown = self.0.lock();
        if let Some(name) = shown.take() {
            tell_failure(&hide(server, peer, name));
        }
        let reply = server.handle(peer, Request::ShowProbe, &[], &mut []);
        if let Response::Probe { name, .. } = &reply.response {
            *shown = Some(name.clone());
        }
        reply
    }

    /// Removes it, if this is its name.
    pub fn hide(&self, server: &dyn Service, peer: Peer<'_>, name: &[u8]) -> Reply {
        let mut shown = self.0.lock();
        match shown.take_if(|own| own == name) {
            Some(name) => hide(server, peer, name),
            None => Errno::ENOENT.into(),
        }
    }

    /// The session is over.
    pub fn end(&self, server: &dyn Service, peer: Peer<'_>) {
        if let Some(name) = self.0.lock().take() {
            tell_failure(&hide(server, peer, name));
        }
    }
}

fn hide(server: &dyn Service, peer: Peer<'_>, name: Vec<u8>) -> Reply {
    server.handle(peer, Request::HideProbe { name }, &[], &mut [])
}

/// Nobody waits for the answer; the next start removes the file.
fn tell_failure(reply: &Reply) {
    if let Response::Failed(errno) = reply.response {
        tracing::warn!("a file by which a client looked at the PFS stays there: {errno}");
    }
}
