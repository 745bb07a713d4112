//! Which PFS a state was made for. A directory that is there while its PFS is not mounted is
//! another.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use forebay_namespace::{Dir, File, Namespace, NsError, PFS_MARK, in_record};
use forebay_policy::samepfs::PfsIdentity;
use forebay_types::Errno;

use crate::starterror::StartError;

/// Under which the identity is kept.
const FACT: &str = "pfs-identity";

fn found(ns: &Namespace) -> std::io::Result<PfsIdentity> {
    let pfs = ns.pfs();
    let root = pfs.stat_dir(pfs.root())?;
    let mark = pfs
        .get_xattr_dir(pfs.root(), PFS_MARK)
        .inspect_err(|error| {
            // Without a mark the numbers of the root tell it apart, too.
            if !matches!(Errno::of(error), Errno::ENODATA | Errno::EOPNOTSUPP) {
                tracing::warn!("the mark of the PFS cannot be read: {error}");
            }
        });
    Ok(PfsIdentity {
        fs_type: pfs.fs_type()?,
        root_ino: root.id.ino,
        root_btime_ns: root.id.btime_ns,
        mark: mark.ok().and_then(|bytes| bytes.try_into().ok()),
    })
}

fn known(ns: &Namespace) -> Result<Option<PfsIdentity>, NsError> {
    let Some(bytes) = ns.get_fact(FACT)? else {
        return Ok(None);
    };
    let known = postcard::from_bytes(&bytes);
    known.map(Some).map_err(in_record("identity of the PFS"))
}

fn save(ns: &Namespace, identity: &PfsIdentity) -> Result<(), NsError> {
    let bytes = postcard::to_stdvec(identity).map_err(in_record("identity of the PFS"))?;
    ns.put_fact(FACT, &bytes)
}

/// Refuses a PFS that is not the one that the state was made for, before anything on it is looked
/// at or changed; with `accept` it is taken for that from now on.
pub fn check(ns: &Namespace, pfs: &Path, accept: bool) -> Result<(), StartError> {
    let failed = |why: String| StartError::Failed {
        what: format!("PFS {}", pfs.display()),
        why,
    };
    let was = known(ns).map_err(|e| failed(e.to_string()))?;
    let is = found(ns).map_err(|e| failed(e.to_string()))?;
    match was.and_then(|was| was.differs(&is)) {
        None => Ok(()),
        Some(_) if accept => save(ns, &is).map_err(|e| failed(e.to_string())),
        Some(difference) => Err(StartError::PfsExchanged {
            pfs: pfs.display().to_string(),
            why: difference.describe(),
        }),
    }
}

/// The same for file systems mounted inside the PFS, as far as undrained files belong there: what
/// drains into the bare directory would be hidden by the next mount.
pub fn check_inner(ns: &Namespace, files: &[Arc<File>], pfs: &Path) -> Result<(), StartError> {
    let mut looked = HashSet::new();
    for file in files {
        let names = match &*file.lock() {
            state if state.is_dirty() => state.names.clone(),
            _ => continue,
        };
        for (dir, _) in names {
            if dir.key.dev == 0 || !looked.insert(dir.key.dev) {
                continue;
            }
            let root = root_of(dir);
            let path = pfs
                .join(OsStr::from_bytes(&root.path()))
                .display()
                .to_string();
            match ns.open_dir(&root) {
                Ok(_) => {}
                Err(error) if is_gone(error.errno()) => {
                    let why = "the file system that undrained files belong to is not mounted there";
                    return Err(StartError::PfsExchanged { pfs: path, why });
                }
                Err(error) => {
                    let (what, why) = (format!("PFS {path}"), error.to_string());
                    return Err(StartError::Failed { what, why });
                }
            }
        }
    }
    Ok(())
}

/// Whether another file system is where one was.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ESTALE | Errno::ENOENT | Errno::ENOTDIR)
}

/// The root of the file system that a directory is in.
fn root_of(mut dir: Arc<Dir>) -> Arc<Dir> {
    while let Some((above, _)) = dir.place()
        && above.key.dev == dir.key.dev
    {
        dir = above;
    }
    dir
}

/// Remembers the PFS once a start has succeeded, and marks it where it has no mark and may get one.
pub fn remember(ns: &Namespace) -> Result<(), String> {
    let mut identity = found(ns).map_err(|e| e.to_string())?;
    if identity.mark.is_none() {
        let mark = forebay_tiers::random_bytes().map_err(|e| e.to_string())?;
        let pfs = ns.pfs();
        match pfs.set_xattr_dir(pfs.root(), PFS_MARK, &mark, 0) {
            Ok(()) => identity.mark = Some(mark),
            Err(error) => tracing::debug!("the PFS takes no mark: {error}"),
        }
    }
    save(ns, &identity).map_err(|e| e.to_string())
}
