//! Whether this node sees the PFS that the server has, before anything is mounted.
//!
//! The server makes a file on the PFS, and this node looks for it. The name is a new one each time
//! and is looked for only once it is there: a client of the PFS may believe for long that a name is
//! not there.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use forebay_policy::samepfs::{Sight, Verdict};
use forebay_types::{Errno, check_name};
use forebay_wire::{Connection, Request, Response};

use crate::cluster::config::Cluster;
use crate::exit::{Explain, Failure};
use crate::mounts;
use crate::within::within;

/// Before each look: what another node has made may show late.
const PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// How long the PFS of this node may take for one look.
const LOOK_LIMIT: Duration = Duration::from_secs(15);

/// Refuses a node on which something else is where the PFS should be. A node without a PFS is as
/// good as one with the right one.
pub fn check(server: &dyn Connection, cluster: &Cluster) -> Result<(), Failure> {
    let pfs = &cluster.pfs;
    for pause in PAUSES {
        std::thread::sleep(pause);
        let there = pfs.clone();
        let seen = within(LOOK_LIMIT, move || place(&there)).explain(pfs.display(), "")?;
        let seen = match seen.unwrap_or(Some(Sight::Unknown)) {
            Some(seen) => seen,
            None => look_for_probe(server, pfs)?,
        };
        match seen.verdict() {
            Verdict::Same | Verdict::NotHere => return Ok(()),
            Verdict::Unclear => {
                tracing::warn!(
                    "{}: whether this is the server's PFS cannot be found out",
                    pfs.display()
                );
                return Ok(());
            }
            Verdict::Another => {}
        }
    }
    Err(cluster.another_pfs().into())
}

fn look_for_probe(server: &dyn Connection, pfs: &Path) -> Result<Sight, Failure> {
    let reply = server.call(Request::ShowProbe, &[], &mut []);
    let (name, content) = match reply.map(|reply| reply.response) {
        Ok(Response::Probe { name, content }) => (name, content),
        Ok(_) => return Ok(Sight::Unknown),
        Err(errno) => {
            tracing::warn!("the server cannot make a file on the PFS: {errno}");
            return Ok(Sight::Unknown);
        }
    };
    let (there, wanted) = (pfs.to_path_buf(), name.clone());
    let seen = within(LOOK_LIMIT, move || look(&there, &wanted, &content));
    // Else it goes with the session.
    match server.call(Request::HideProbe { name }, &[], &mut []) {
        Ok(_) | Err(Errno::ENOENT) => {}
        Err(errno) => tracing::warn!("the server's file on the PFS: {errno}"),
    }
    let seen = seen.explain(pfs.display(), "")?;
    Ok(seen.unwrap_or(Sight::Unknown))
}

/// What can be said of the path without the server; `None` if a probe may be there.
fn place(pfs: &Path) -> Option<Sight> {
    let real = match std::fs::canonicalize(pfs) {
        Ok(real) => real,
        Err(error) if is_absence(&error) => return Some(Sight::NoPath),
        Err(_) => return Some(Sight::Unknown),
    };
    if !real.is_dir() {
        return Some(Sight::NoPath);
    }
    let Ok(table) = mounts::read() else {
        return Some(Sight::Unknown);
    };
    let covering = mounts::covering(&table, &real);
    covering
        .filter(|entry| entry.is_forebay())
        .map(|_| Sight::BurstBuffer)
}

fn look(pfs: &Path, name: &[u8], content: &[u8]) -> Sight {
    // A server says where to look, and not outside of the PFS.
    if check_name(name).is_err() || !name.starts_with(b".") {
        return Sight::Unknown;
    }
    let path = pfs.join(OsStr::from_bytes(name));
    let read = |path: &Path| -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        let most = content.len() as u64 + 1;
        std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?
            .take(most)
            .read_to_end(&mut found)?;
        Ok(found)
    };
    match read(&path) {
        Ok(found) if found == content => Sight::Probe,
        Ok(_) => Sight::OtherContent,
        Err(error) if is_absence(&error) => without_probe(pfs),
        // The name is one that nobody can guess.
        Err(_) => match std::fs::symlink_metadata(&path) {
            Ok(_) => Sight::Probe,
            Err(error) if is_absence(&error) => without_probe(pfs),
            Err(_) => Sight::Unknown,
        },
    }
}

fn without_probe(pfs: &Path) -> Sight {
    let looked = || -> io::Result<Sight> {
        let real = std::fs::canonicalize(pfs)?;
        let mounted = mounts::read()?.iter().any(|entry| entry.point == real);
        let empty = std::fs::read_dir(&real)?.next().transpose()?.is_none();
        Ok(Sight::NoProbe { mounted, empty })
    };
    match looked() {
        Ok(sight) => sight,
        Err(error) if is_absence(&error) => Sight::NoPath,
        Err(_) => Sight::Unknown,
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_sees_of_a_probe() {
        let folder = tempfile::tempdir().expect("a folder");
        let pfs = folder.path().join("pfs");
        assert_eq!(place(&pfs), Some(Sight::NoPath));
        let sight = || look(&pfs, b".probe", b"content");
        assert_eq!(sight(), Sight::NoPath);
        std::fs::write(&pfs, "a file").expect("write");
        assert_eq!(place(&pfs), Some(Sight::NoPath));
        std::fs::remove_file(&pfs).expect("remove");
        std::fs::create_dir(&pfs).expect("mkdir");
        assert_eq!(place(&pfs), None);
        let without = |empty| Sight::NoProbe {
            mounted: false,
            empty,
        };
        assert_eq!(sight(), without(true));
        std::fs::write(pfs.join("other"), "").expect("write");
        assert_eq!(sight(), without(false));
        for (content, seen) in [
            ("content", Sight::Probe),
            ("content, and more", Sight::OtherContent),
            ("", Sight::OtherContent),
        ] {
            std::fs::write(pfs.join(".probe"), content).expect("write");
            assert_eq!(sight(), seen);
        }
        let root = look(Path::new("/proc"), b".probe", b"content");
        assert!(
            matches!(root, Sight::NoProbe { mounted: true, .. }),
            "{root:?}"
        );
    }
}
