//! Listens where the page is.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use tokio::net::{TcpListener, UnixListener};

use crate::up::listening::Listen;

/// One that listens.
pub enum Listener {
    /// See [`Listen::Tcp`].
    Tcp(TcpListener),
    /// See [`Listen::Unix`].
    Unix(UnixListener),
}

/// Begins to listen. A socket that an earlier run has left is replaced; anything else is not.
pub async fn listen(at: &Listen) -> io::Result<Listener> {
    match at {
        Listen::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
        Listen::Unix(path) => {
            match std::fs::symlink_metadata(path) {
                Ok(found) if found.file_type().is_socket() => {
                    if std::os::unix::net::UnixStream::connect(path).is_ok() {
                        return Err(io::ErrorKind::AddrInUse.into());
                    }
                    std::fs::remove_file(path)?;
                }
                Ok(_) => return Err(io::Error::other("there is something else")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let listener = UnixListener::bind(path)?;
            // Each is shown what is for that user.
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
            Ok(Listener::Unix(listener))
        }
    }
}
