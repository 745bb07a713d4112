//! Tells systemd how the service is (`Type=notify`): what waits for the mount starts when it
//! serves, and a stop has time as long as it moves something.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// systemd names its socket in it: a path, or `@` and a name.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How often a stop is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A stop that moves something has so much time from then on: as `TimeoutStopSec=` of the units.
const MORE: Duration = Duration::from_secs(600);
/// Less in one look is no progress: a line in a log.
const MOVES: u64 = 1 << 20;

fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(Path::new(socket)),
    }
}

fn asked() -> io::Result<Option<SocketAddr>> {
    let socket = std::env::var_os(SOCKET).filter(|name| !name.is_empty());
    socket.as_deref().map(address).transpose()
}

fn send(to: &SocketAddr, text: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), to)?;
    Ok(())
}

/// Whether this is a service of systemd, which has no terminal to stop it from.
pub fn is_asked() -> bool {
    std::env::var_os(SOCKET).is_some_and(|name| !name.is_empty())
}

/// Says that the service serves, and how the status line reads; nothing where nobody has asked.
///
/// # Errors
/// The socket does not take it. systemd would wait in vain.
pub fn ready(line: &str) -> io::Result<()> {
    match asked()? {
        None => Ok(()),
        Some(to) => send(&to, &format!("READY=1\nSTATUS={}", line.replace('\n', " "))),
    }
}

/// A stop that systemd is told of, until this is dropped.
pub struct Stopping(Option<(Sender<()>, JoinHandle<()>)>);

impl Stopping {
    /// Says that the service stops, and asks for more time while this process writes; nothing where
    /// nobody has asked.
    ///
    /// # Errors
    /// The socket does not take it, or there is no thread.
    pub fn begin() -> io::Result<Stopping> {
        match asked()? {
            None => Ok(Stopping(None)),
            Some(to) => Stopping::tell(to, LOOK_EVERY, written_bytes),
        }
    }

    fn tell(
        to: SocketAddr,
        every: Duration,
        mut written: impl FnMut() -> io::Result<u64> + Send + 'static,
    ) -> io::Result<Stopping> {
        send(&to, "STOPPING=1\nSTATUS=stopping")?;
        let mut before = written()?;
        let (end, ended) = channel();
        let watch = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let asked = written().and_then(|now| {
                    let moved = now.saturating_sub(before);
                    before = now;
                    match moved >= MOVES {
                        true => send(&to, &format!("EXTEND_TIMEOUT_USEC={}", MORE.as_micros())),
                        false => Ok(()),
                    }
                });
                if let Err(error) = asked {
                    tracing::warn!("systemd gives no more time for the stop: {error}");
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("fb-stopping".into())
            .spawn(watch)?;
        Ok(Stopping(Some((end, thread))))
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            if thread.join().is_err() {
                tracing::error!("the thread that tells of the stop has panicked");
            }
        }
    }
}

/// What this process has written so far, into whatever.
fn written_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let figures = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let counts = matches!(name, "wchar" | "write_bytes");
        counts.then(|| value.trim().parse::<u64>().ok())?
    });
    Ok(figures.sum())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn next(socket: &UnixDatagram) -> Option<String> {
        let mut text = [0; 256];
        let length = socket.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    #[test]
    fn a_stop_has_more_time_as_long_as_it_moves_something() {
        let place = tempfile::tempdir().expect("tempdir");
        let path = place.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("bind");
        let to = address(path.as_os_str()).expect("an address");
        let moves = Arc::new(AtomicBool::new(true));
        let mut sum = 0;
        let written = {
            let moves = moves.clone();
            move || {
                sum += match moves.load(Ordering::SeqCst) {
                    true => MOVES,
                    false => 100,
                };
                Ok(sum)
            }
        };
        let stopping = Stopping::tell(to, Duration::from_millis(5), written).expect("told");
        let first = next(&socket).expect("told");
        assert!(first.starts_with("STOPPING=1\n"), "{first}");
        for _ in 0..3 {
            assert_eq!(
                next(&socket).as_deref(),
                Some("EXTEND_TIMEOUT_USEC=600000000")
            );
        }
        moves.store(false, Ordering::SeqCst);
        // One look may be under way, and what was sent before waits in the socket.
        std::thread::sleep(Duration::from_millis(100));
        socket.set_nonblocking(true).expect("nonblocking");
        while next(&socket).is_some() {}
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(next(&socket), None, "it does not move");
        moves.store(true, Ordering::SeqCst);
        drop(stopping);
        while next(&socket).is_some() {}
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(next(&socket), None, "it has ended");
    }

    #[test]
    fn what_this_process_writes_is_seen() {
        let mut file = tempfile::tempfile().expect("tempfile");
        let before = written_bytes().expect("/proc/self/io");
        file.write_all(&vec![1; 3 << 20]).expect("write");
        let now = written_bytes().expect("/proc/self/io");
        assert!(now - before >= 3 << 20, "{before} {now}");
    }
}
