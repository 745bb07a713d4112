//! What the command line asks of a mount is handed on to its server.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use forebay_types::Errno;
use forebay_wire::control::{Control, ControlResponse};
use forebay_wire::{Connection, Peer, Reply, Request, Response, Service};

use super::run::Event;

/// Answers on the control socket of a mount.
pub struct Relay {
    pub server: Arc<dyn Connection>,
    pub mount: PathBuf,
    pub events: Sender<Event>,
}

impl Relay {
    fn hand_on(&self, peer: Peer<'_>, control: Control) -> Result<Reply, Errno> {
        let request = Request::ControlFor {
            uid: peer.uid,
            gid: peer.gid,
            groups: peer.groups.to_vec(),
            control,
        };
        let mut reply = self.server.call(request, &[], &mut [])?;
        if let Response::Control(ControlResponse::Status(status)) = &mut reply.response {
            status.mount = self.mount.as_os_str().as_bytes().to_vec();
        }
        Ok(reply)
    }
}

impl Service for Relay {
    fn handle(&self, peer: Peer<'_>, request: Request, _: &[u8], _: &mut [u8]) -> Reply {
        let Request::Control(control) = request else {
            return Errno::EPERM.into();
        };
        // Of this mount, not of the server: that is stopped on its own node.
        if let Control::Shutdown { .. } = control {
            if !peer.is_trusted() {
                return Errno::EPERM.into();
            }
            // If nobody listens any more the mount is ending already.
            let _ = self.events.send(Event::Stop("ordered"));
            return Response::Control(ControlResponse::Stopping).into();
        }
        self.hand_on(peer, control).unwrap_or_else(Reply::from)
    }
}
