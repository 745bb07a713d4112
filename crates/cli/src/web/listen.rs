//! Listens where the page is.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener};

use crate::up::listening::Listen;

/// One that listens.
pub enum Listener {
    /// See [`Listen::Tcp`].
    Tcp(TcpListener),
    /// See [`Listen::Unix`].
    Unix(UnixListener),
}

/// A socket that this run has made.
pub struct Bound {
    path: PathBuf,
    /// Device and inode: somebody may have put something else there since.
    is: (u64, u64),
}

impl Bound {
    fn at(path: &Path) -> io::Result<Bound> {
        let is = std::fs::symlink_metadata(path)?;
        Ok(Bound {
            path: path.into(),
            is: (is.dev(), is.ino()),
        })
    }

    /// Removes the socket; what else is there stays.
    ///
    /// # Errors
    /// The folder does not allow it.
    pub fn take_away(&self) -> io::Result<()> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(is) if (is.dev(), is.ino()) == self.is => std::fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Begins to listen. A socket that an earlier run has left is replaced; anything else is not.
pub async fn listen(at: &Listen) -> io::Result<(Listener, Option<Bound>)> {
    match at {
        Listen::Tcp(address) => Ok((Listener::Tcp(TcpListener::bind(address).await?), None)),
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
            let bound = Bound::at(path)?;
            // Each is shown what is for that user.
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
            Ok((Listener::Unix(listener), Some(bound)))
        }
    }
}
