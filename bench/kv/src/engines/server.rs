use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_kv::{Error, Options, Store, open_url};

use super::engine_error;

const START_WITHIN: Duration = Duration::from_secs(20);

/// Which server.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `redis-server`.
    Redis,
    /// `etcd`, one member.
    Etcd,
}

/// A server on loopback with its data in the directory that is measured; it ends with this value.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    port: u16,
    child: Child,
}

impl Server {
    pub(super) fn start(kind: Kind, dir: &Path, arguments: &[&str]) -> Result<Server, Error> {
        let (port, peers) = (free_port()?, free_port()?);
        let mut command = match kind {
            Kind::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
                command.args(["--appendonly", "yes", "--save", ""]);
                command
            }
            Kind::Etcd => {
                let client = format!("http://127.0.0.1:{port}");
                let peer = format!("http://127.0.0.1:{peers}");
                let mut command = Command::new("etcd");
                command.args(["--name", "a", "--data-dir", "data", "--logger", "zap"]);
                command.args([
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ]);
                command.args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ]);
                command.args(["--initial-cluster", &format!("a={peer}")]);
                command
            }
        };
        command.args(arguments).current_dir(dir);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(engine_error)?;
        let mut server = Server { kind, port, child };
        let begun = Instant::now();
        loop {
            match server.open("&durability=everysec") {
                Err(Error::Io(_)) if begun.elapsed() < START_WITHIN => {
                    if server.child.try_wait()?.is_some() {
                        return Err(engine_error("the server has ended"));
                    }
                }
                Err(Error::Io(error)) => return Err(error.into()),
                _ => return Ok(server),
            }
        }
    }

    pub(super) fn open(&self, option: &str) -> Result<Box<dyn Store>, Error> {
        let url = match self.kind {
            Kind::Redis => format!("redis://127.0.0.1:{}/0?prefix=b{option}", self.port),
            Kind::Etcd => format!("etcd://127.0.0.1:{}?prefix=b", self.port),
        };
        open_url(&url, &Options::default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn free_port() -> Result<u16, Error> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
