//! Frames over Unix sockets: the command line's way to a running server.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_types::{Errno, limits};

use crate::connection::{Connection, Peer, Reply, Service};
use crate::frame::{self, FrameError};
use crate::{Request, Response};

/// Connections served at once; further ones are closed at once rather than left hanging.
const CONNECTIONS_MAX: usize = 64;
/// A peer that sends half a frame and stalls is dropped after this long.
const STALL_LIMIT: Duration = Duration::from_secs(600);

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
        frame::write_frame(&mut *stream, request, payload)?;
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
            Err(_) => Err(Errno::ENOTCONN),
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
    let live = Arc::new(AtomicUsize::new(0));
    while !stopping.load(Ordering::Acquire) {
        let Ok((stream, _)) = listener.accept() else {
            // Shut down, or out of descriptors: then there will be some again.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if stopping.load(Ordering::Acquire) || live.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            continue;
        }
        live.fetch_add(1, Ordering::AcqRel);
        let (service, count) = (service.clone(), live.clone());
        let spawned = std::thread::Builder::new()
            .name("fb-peer".into())
            .spawn(move || {
                drop(serve(stream, &*service));
                count.fetch_sub(1, Ordering::AcqRel);
            });
        if spawned.is_err() {
            live.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(mut stream: UnixStream, service: &dyn Service) -> Result<(), FrameError> {
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.set_write_timeout(Some(STALL_LIMIT))?;
    let credentials =
        rustix::net::sockopt::socket_peercred(stream.as_fd()).map_err(io::Error::from)?;
    let peer = Peer {
        uid: credentials.uid.as_raw(),
        local: true,
        mount: false,
    };
    frame::greet(&mut stream)?;
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
        let data = match reply.response {
            Response::Moved(n) if !into.is_empty() => &into[..n as usize],
            _ => &[],
        };
        frame::write_frame(&mut stream, &reply.response, data)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;

    struct Nobody;

    impl Service for Nobody {
        fn handle(&self, _: Peer, _: Request, _: &[u8], _: &mut [u8]) -> Reply {
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
