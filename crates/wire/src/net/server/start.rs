//! A server from its start to its end, and what it says of itself.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::hello::CLUSTER_NAME_BYTES_MAX;
use super::super::host::Host;
use super::core::{Core, Settings};
use super::door::{self, Bell, Listeners};
use super::serve::{end_all, stop};
use super::status::{self, NetStatus, NetView};
use super::worker;
use crate::Key;

/// How a network server is reached, and what it grants.
#[derive(Clone)]
pub struct NetServerConfig {
    /// Where it listens; port 0 takes a free one.
    pub tcp: Vec<SocketAddr>,
    /// A socket for clients on this machine. A file of this name is replaced; only the server's own
    /// user may connect.
    pub unix: Option<PathBuf>,
    /// Name of the cluster, up to 64 bytes.
    pub cluster: String,
    /// The cluster's key.
    pub key: Key,
    /// Clients on other machines have to encrypt data.
    pub encrypt: bool,
    /// How long a client may be silent, at least 100 ms.
    pub lease: Duration,
    /// Requests that a client may have under way, at least 1.
    pub slots: u16,
    /// Most bytes per second over one TCP link, in each direction.
    pub connection_rate: Option<u64>,
    /// Threads that serve requests, at least 2.
    pub threads_max: usize,
    /// Links of all clients together.
    pub links_max: usize,
}

impl NetServerConfig {
    /// With a lease of 60 s, 64 slots, 256 threads, 4096 links and no address.
    pub fn new(cluster: &str, key: Key) -> NetServerConfig {
        NetServerConfig {
            tcp: Vec::new(),
            unix: None,
            cluster: cluster.to_string(),
            key,
            encrypt: false,
            lease: Duration::from_secs(60),
            slots: 64,
            connection_rate: None,
            threads_max: 256,
            links_max: 4096,
        }
    }
}

/// A server of sessions. When it is dropped it takes no more connections, waits for the requests
/// that are under way, ends all sessions and waits for its threads.
pub struct NetServer {
    core: Arc<Core>,
    addresses: Vec<SocketAddr>,
    unix: Option<PathBuf>,
    bell: Arc<Bell>,
    door: Option<JoinHandle<()>>,
}

impl NetServer {
    /// Listens and serves. Errors are those of the sockets, with the address in the text.
    pub fn start(config: NetServerConfig, host: Arc<dyn Host>) -> io::Result<NetServer> {
        if config.cluster.len() > CLUSTER_NAME_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the cluster's name is longer than {CLUSTER_NAME_BYTES_MAX} bytes"),
            ));
        }
        let listeners = Listeners {
            tcp: config.tcp.iter().map(listen).collect::<io::Result<_>>()?,
            unix: config.unix.as_deref().map(listen_unix).transpose()?,
        };
        let addresses = listeners
            .tcp
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<_>>()?;
        let settings = Settings {
            cluster: config.cluster,
            key: config.key,
            encrypt: config.encrypt,
            lease: config.lease.max(Duration::from_millis(100)),
            slots: config.slots,
            rate: config.connection_rate,
            links_max: config.links_max,
            threads_max: config.threads_max,
        };
        let mut server = NetServer {
            core: Arc::new(Core::new(settings, host)?),
            addresses,
            unix: config.unix,
            bell: Arc::new(Bell::new()?),
            door: None,
        };
        worker::start(&server.core)?;
        let (core, bell) = (server.core.clone(), server.bell.clone());
        let door = std::thread::Builder::new()
            .name("fb-net-door".into())
            .spawn(move || door::run(&core, &listeners, &bell))?;
        server.door = Some(door);
        Ok(server)
    }

    /// Where it listens, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Who is there, and who was refused.
    pub fn status(&self) -> NetStatus {
        status::of(&self.core)
    }

    /// A look at it for others, which does not keep it alive.
    pub fn view(&self) -> NetView {
        NetView::new(&self.core)
    }
}

impl Drop for NetServer {
    fn drop(&mut self) {
        let sessions = self.core.stop();
        self.bell.ring();
        if let Some(door) = self.door.take() {
            // If it has died the panic hook has told of it.
            drop(door.join());
        }
        stop(&self.core, &sessions);
        end_all(&self.core, sessions);
        self.core.await_no_session();
        loop {
            let threads = self.core.pool.stop();
            if threads.is_empty() {
                break;
            }
            self.core.poller.ring(threads.len() as u64);
            for thread in threads {
                drop(thread.join());
            }
        }
        if let Some(path) = &self.unix {
            // Somebody else may have taken it away already.
            drop(std::fs::remove_file(path));
        }
    }
}

fn listen(address: &SocketAddr) -> io::Result<TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let listener = TcpListener::bind(address).map_err(named)?;
    listener.set_nonblocking(true).map_err(named)?;
    Ok(listener)
}

fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(named)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(named)?;
    listener.set_nonblocking(true).map_err(named)?;
    Ok(listener)
}
