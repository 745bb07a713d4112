//! Frames over Unix sockets: the command line's way to a running server.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_types::{Errno, limits};

use crate::connection::{Connection, Reply, Service};
use crate::frame::{self, FrameError};
use crate::seats::{Caller, Seats};
use crate::{Request, Response};

/// How long the greeting may take.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// A connection on which nothing is asked for so long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The same for root and the server's own user.
const IDLE_LIMIT_TRUSTED: Duration = Duration::from_secs(600);

/// The asking end of a Unix socket.
pub struct UnixConnection {
    stream: Mutex<UnixStream>,
}

impl UnixConnection {
    /// Connects and greets.
    pub fn connect(path: &Path) -> Result<UnixConnection, FrameError> {
        let mut stream = UnixStream::connect(path)?;
        frame::greet(&mut stream)?;
        Ok(UnixConnection {
            stream: Mutex::new(stream),
        })
    }

    /// Sends a request and reads its answer, telling a broken connection from a refusal.
    pub fn exchange(
        &self,
        request: &Request,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<Response, FrameError> {
        let mut stream = self.stream.lock().unwrap_or_else(|e| e.into_inner());
        match frame::write_frame(&mut *stream, request, payload) {
            // Refused: why is there to be read.
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
        match frame::read_frame(&mut *stream, into)? {
            Some((response, _)) => Ok(response),
            None => Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl Connection for UnixConnection {
    fn call(&self, request: Request, payload: &[u8], into: &mut [u8]) -> Result<Reply, Errno> {
        match self.exchange(&request, payload, into) {
            Ok(Response::Failed(errno)) => Err(errno),
            Ok(response) => Ok(response.into()),
            Err(error) => {
                tracing::debug!("control socket: {error}");
                Err(Errno::ENOTCONN)
            }
        }
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}

/// The serving end: accepts connections and answers each on a thread of its own.
pub struct UnixServer {
    path: PathBuf,
    listener: UnixListener,
    stopping: Arc<AtomicBool>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl UnixServer {
    /// Listens at `path` (an old socket there is replaced: the caller holds the instance's lock).
    /// Everybody may connect; the service decides by the peer's uid what they may do.
    pub fn start(path: &Path, service: Arc<dyn Service>) -> io::Result<UnixServer> {
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let accepting = listener.try_clone()?;
        let acceptor = std::thread::Builder::new()
            .name("fb-control".into())
            .spawn(move || accept_loop(&accepting, &service, &stop))?;
        Ok(UnixServer {
            path: path.to_path_buf(),
            listener,
            stopping,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for UnixServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Ends accept(2) in the acceptor, also when somebody has removed the socket's name.
        if let Err(errno) = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both) {
            tracing::warn!("control socket: {errno}");
        }
        if let Some(thread) = self.acceptor.take() {
            drop(thread.join());
        }
        drop(std::fs::remove_file(&self.path));
    }
}

fn accept_loop(listener: &UnixListener, service: &Arc<dyn Service>, stopping: &AtomicBool) {
    let seats = Arc::new(Seats::default());
    while !stopping.load(Ordering::Acquire) {
        let Ok((stream, _)) = listener.accept() else {
            // Shut down, or out of descriptors: then there will be some again.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if stopping.load(Ordering::Acquire) {
            continue;
        }
        let Ok(who) = Caller::of(&stream) else {
            continue;
        };
        let Some(seat) = Seats::take(&seats, who.uid, who.peer(None).is_trusted()) else {
            refuse(stream);
            continue;
        };
        let service = service.clone();
        let spawned = std::thread::Builder::new()
            .name("fb-peer".into())
            .spawn(move || {
                // Most have gone away without a word, as they may.
                if let Err(error) = serve(stream, &who, &*service) {
                    tracing::debug!("control socket: {error}");
                }
                drop(seat);
            });
        if let Err(error) = spawned {
            tracing::warn!("control socket: {error}");
        }
    }
}

/// Says that there are too many connections. What is said first fits into the socket, so nobody can
/// hold the acceptor.
fn refuse(mut stream: UnixStream) {
    let said = frame::say_hello(&mut stream).map_err(FrameError::from);
    let refusal = Response::Failed(Errno::EUSERS);
    // Whoever has gone already need not be told.
    drop(said.and_then(|()| frame::write_frame(&mut stream, &refusal, &[])));
}

fn serve(mut stream: UnixStream, who: &Caller, service: &dyn Service) -> Result<(), FrameError> {
    let other_end = stream.try_clone()?;
    let peer = who.peer(Some(other_end.as_fd()));
    stream.set_read_timeout(Some(GREETING_LIMIT))?;
    stream.set_write_timeout(Some(IDLE_LIMIT))?;
    frame::greet(&mut stream)?;
    stream.set_read_timeout(Some(match peer.is_trusted() {
        true => IDLE_LIMIT_TRUSTED,
        false => IDLE_LIMIT,
    }))?;
    let mut payload = vec![0u8; limits::IO_BYTES_MAX];
    let mut into = Vec::new();
    while let Some((request, len)) = frame::read_frame::<Request>(&mut stream, &mut payload)? {
        let reply = match request.check() {
            Ok(()) => {
                let wanted = match &request {
                    Request::Read { len, .. } => *len as usize,
                    _ => 0,
                };
                into.resize(wanted, 0);
                service.handle(peer, request, &payload[..len], &mut into)
            }
            Err(errno) => errno.into(),
        };
        let data = match reply.response.bytes_beside() {
            Some(n) if !into.is_empty() => &into[..n as usize],
            _ => &[],
        };
        frame::write_frame(&mut stream, &reply.response, data)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use crate::control::Control;

    struct Nobody;

    impl Service for Nobody {
        fn handle(&self, _: Peer<'_>, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
            Errno::ENOSYS.into()
        }
    }

    #[test]
    fn a_server_answers_and_ends_even_without_its_name() {
        let path = std::env::temp_dir().join(format!("forebay-wire-{}", std::process::id()));
        let server = UnixServer::start(&path, Arc::new(Nobody)).expect("listen");
        let client = UnixConnection::connect(&path).expect("connect");
        let answer = client.call(Request::Control(Control::Status), &[], &mut []);
        assert_eq!(answer.err(), Some(Errno::ENOSYS));
        std::fs::remove_file(&path).expect("remove");
        drop(server);
    }
}
