//! The data server on the mount's own node, which hands over descriptors of the objects that it
//! has: the kernel reads and writes them by itself, as on the node of the server that serves names.

use std::sync::Arc;

use forebay_holder::Redialing;
use forebay_types::Errno;
use forebay_wire::net::{NetConfig, NetConnection};
use forebay_wire::{
    Connection, Descriptor, Key, ObjectCall, ObjectPlace, Reply, Request, Response,
};

use crate::cluster::config::{Cluster, Server};
use crate::server::socket_for_mounts;

/// The data server of this node.
pub struct Near {
    server: u16,
    way: Redialing,
}

impl Near {
    /// By the socket in its state folder.
    pub fn new(cluster: &Cluster, server: &Server, key: &Key) -> Near {
        let config = NetConfig {
            unix: Some(socket_for_mounts(&server.state)),
            ..NetConfig::new(&cluster.name, key.clone())
        };
        let dial = move || NetConnection::connect(config.clone());
        Near {
            server: server.id,
            way: Redialing::new(format!("server {} of this node", server.id), Box::new(dial)),
        }
    }

    /// `None`: the file is read and written by requests, which need no descriptor.
    fn hand_over(&self, place: &ObjectPlace) -> Option<Arc<dyn Descriptor>> {
        if place.server != self.server {
            return None;
        }
        let request = Request::Object(ObjectCall::HandOver(*place));
        match self.way.call(request, &[], &mut []) {
            Ok(reply) => reply.descriptor,
            Err(error) => {
                tracing::debug!("server {} hands over no descriptor: {error}", self.server);
                None
            }
        }
    }
}

/// A session with the server that serves names, whose replies carry the descriptors that the data
/// server of this node has.
pub struct Beside {
    session: NetConnection,
    near: Arc<Near>,
}

impl Beside {
    /// Of a session that tells the server so ([`NetConfig::near`]).
    pub fn new(session: NetConnection, near: Arc<Near>) -> Beside {
        Beside { session, near }
    }

    fn with_descriptor(&self, answered: Result<Reply, Errno>) -> Result<Reply, Errno> {
        let mut reply = answered?;
        let opened = match &reply.response {
            Response::Opened(opened) | Response::Created(_, opened, _) => opened,
            _ => return Ok(reply),
        };
        let Some(place) = &opened.place else {
            return Ok(reply);
        };
        // What a session had that is over is not handed over: the file may be somebody else's.
        let descriptor = self.near.hand_over(place);
        reply.descriptor = descriptor.filter(|_| self.session.is_answering());
        Ok(reply)
    }
}

impl Connection for Beside {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        self.with_descriptor(self.session.call(request, payload, into))
    }

    fn links(&self) -> usize {
        self.session.links()
    }

    fn call_on(
        &self,
        link: usize,
        request: Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Reply, Errno> {
        self.with_descriptor(self.session.call_on(link, request, payload, into))
    }

    fn is_answering(&self) -> bool {
        self.session.is_answering()
    }

    fn close(&self) {
        Connection::close(&self.session);
    }

    fn hands_over_descriptors(&self) -> bool {
        self.session.hands_over_descriptors()
    }

    fn accept_descriptors(&self, yes: bool) {
        self.session.accept_descriptors(yes);
    }
}
