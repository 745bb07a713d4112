//! Tells systemd that the service serves (`Type=notify`): what waits for the mount starts then.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

/// systemd names its socket in it: a path, or `@` and a name.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Says that the service serves, and how the status line reads; nothing where nobody has asked.
///
/// # Errors
/// The socket does not take it. systemd would wait in vain.
pub fn ready(line: &str) -> io::Result<()> {
    let Some(socket) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(Path::new(&socket))?,
    };
    let text = format!("READY=1\nSTATUS={}", line.replace('\n', " "));
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}
