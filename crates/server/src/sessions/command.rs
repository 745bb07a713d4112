//! A command that asks over the network, and goes: it has nothing, and is told of no change.

use std::sync::Arc;

use forebay_types::Errno;
use forebay_wire::net::Guest;
use forebay_wire::{Peer, Reply, Request, Service};

use super::squash::squash_control;

/// See the module.
pub struct Command {
    server: Arc<dyn Service>,
    /// Root is nobody.
    squashed: bool,
}

impl Command {
    /// `server` answers it; where it is `squashed`, root as nobody.
    pub fn of(server: Arc<dyn Service>, squashed: bool) -> Command {
        Command { server, squashed }
    }
}

impl Service for Command {
    fn handle(&self, peer: Peer<'_>, request: Request, payload: &[u8], into: &mut [u8]) -> Reply {
        match request {
            Request::ControlFor { .. } => {
                let request = match self.squashed {
                    true => squash_control(request),
                    false => request,
                };
                self.server.handle(peer, request, payload, into)
            }
            _ => Errno::EPERM.into(),
        }
    }
}

impl Guest for Command {
    fn end(&self) {}
}

#[cfg(test)]
mod tests {
    use forebay_types::Ino;
    use forebay_wire::Response;
    use forebay_wire::control::Control;

    use super::*;

    struct Answers;

    impl Service for Answers {
        fn handle(&self, _: Peer<'_>, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
            Response::Done.into()
        }
    }

    #[test]
    fn a_command_may_ask_what_commands_ask_and_nothing_else() {
        let command = Command::of(Arc::new(Answers), false);
        let peer = Peer {
            uid: 0,
            gid: 0,
            groups: &[],
            local: false,
            near: false,
            mount: true,
            socket: None,
        };
        let ask = |request| command.handle(peer, request, &[], &mut []).response;
        let control = Control::Status;
        let status = Request::ControlFor {
            uid: 1,
            gid: 1,
            groups: Vec::new(),
            control: control.clone(),
        };
        assert_eq!(ask(status), Response::Done);
        let refused = Response::Failed(Errno::EPERM);
        let handle = None;
        let ino = Ino::ROOT;
        // What would be answered without a user's name is not for who comes from elsewhere.
        for request in [
            Request::Getattr { ino, handle },
            Request::OpenDir { ino, uid: 0 },
            Request::Control(control),
        ] {
            assert_eq!(ask(request), refused);
        }
    }
}
