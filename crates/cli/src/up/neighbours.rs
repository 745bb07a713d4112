//! Other burst buffers of this machine in front of the same files of the PFS.
//!
//! Found as `forebay status` finds them: by the mount table, and by asking who serves there.
//! Nothing is written to the PFS for it, so those of other machines are not found.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::control::Daemon;
use crate::mounts::MountEntry;
use crate::show::text::show_path;
use crate::starter::Starter;
use crate::within::within;

/// Who does not answer by then is not waited for: a start does not depend on others.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// How the PFS of another burst buffer lies to this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overlap {
    Same,
    /// The other's is a directory in this one's.
    Within,
    /// This one's is a directory in the other's.
    Around,
}

/// A warning for each other burst buffer that shows files of this PFS. All paths are canonical.
pub fn warnings(pfs: &Path, state: &Path, table: &[MountEntry]) -> Vec<String> {
    let mut asked: Vec<&Path> = Vec::new();
    let mut found = Vec::new();
    let is_server = Starter::of(state).is_server();
    for entry in table.iter().filter(|entry| entry.is_forebay()) {
        // Mounts of a cluster say what their server says, and that may be this one.
        let own = entry.source == state || is_server && Starter::of(&entry.source).is_mount();
        if own || asked.contains(&entry.source.as_path()) {
            continue;
        }
        asked.push(&entry.source);
        let (ours, other) = (pfs.to_path_buf(), entry.source.clone());
        let looked = within(ASK_LIMIT, move || {
            let theirs = pfs_of(&other)?;
            let overlap = overlap(&ours, &theirs)?;
            Some((theirs, overlap))
        });
        match looked {
            Ok(Some(Some((theirs, overlap)))) => found.push(warning(pfs, entry, &theirs, overlap)),
            Ok(Some(None)) => {}
            Ok(None) => tracing::debug!("{} does not say its PFS", entry.source.display()),
            Err(error) => tracing::warn!("other burst buffers are not looked for: {error}"),
        }
    }
    found
}

/// The PFS of a burst buffer that runs; `None` if it does not, or does not talk to this user.
fn pfs_of(state: &Path) -> Option<PathBuf> {
    let daemon = Daemon::try_connect(state).ok()??;
    let bits = daemon.status().ok()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bits.pfs)))
}

fn overlap(ours: &Path, theirs: &Path) -> Option<Overlap> {
    let node = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    // By number, too: one directory may be mounted at two places.
    let same = |a: &Path, b: &Path| match (node(a), node(b)) {
        _ if a == b => true,
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let above = |path: &Path, top: &Path| path.ancestors().skip(1).any(|dir| same(dir, top));
    if same(ours, theirs) {
        Some(Overlap::Same)
    } else if above(theirs, ours) {
        Some(Overlap::Within)
    } else if above(ours, theirs) {
        Some(Overlap::Around)
    } else {
        None
    }
}

fn warning(pfs: &Path, entry: &MountEntry, theirs: &Path, overlap: Overlap) -> String {
    let shown = |path: &Path| show_path(path.as_os_str().as_bytes());
    let what = match overlap {
        Overlap::Same => "it".to_string(),
        Overlap::Within => format!("{}, a part of it,", shown(theirs)),
        Overlap::Around => format!("{}, which it is a part of,", shown(theirs)),
    };
    format!(
        "{}: {what} has another burst buffer in front of it, mounted on {} (state {}); what is undrained in one does not \
         show in the other, and files that are written in both become conflicts",
        shown(pfs),
        shown(&entry.point),
        shown(&entry.source)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_overlap_by_their_paths_and_by_what_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().canonicalize().expect("a path");
        std::fs::create_dir_all(base.join("pfs/a/b")).expect("mkdir");
        std::fs::create_dir(base.join("pfs2")).expect("mkdir");
        std::os::unix::fs::symlink(base.join("pfs/a"), base.join("link")).expect("symlink");
        for (ours, theirs, is) in [
            ("pfs", "pfs", Some(Overlap::Same)),
            ("pfs", "pfs/a/b", Some(Overlap::Within)),
            ("pfs/a/b", "pfs", Some(Overlap::Around)),
            ("pfs/a", "link", Some(Overlap::Same)),
            ("pfs", "pfs2", None),
            ("pfs2", "pfs", None),
            ("pfs/a", "gone", None),
            ("pfs", "pfs/gone", Some(Overlap::Within)),
        ] {
            let found = overlap(&base.join(ours), &base.join(theirs));
            assert_eq!(found, is, "{ours} {theirs}");
        }
    }

    #[test]
    fn who_does_not_run_is_no_neighbour() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = MountEntry {
            root: "/".into(),
            point: folder.path().join("mnt"),
            fs_type: crate::mounts::FOREBAY_TYPE.into(),
            source: folder.path().into(),
            options: Vec::new(),
        };
        let own = folder.path().join("state");
        let found = warnings(folder.path(), &own, std::slice::from_ref(&entry));
        assert!(found.is_empty(), "{found:?}");
        let said = warning(
            Path::new("/scratch"),
            &entry,
            Path::new("/scratch/a"),
            Overlap::Within,
        );
        let begin = "/scratch: /scratch/a, a part of it, has another burst buffer in front of it, mounted on ";
        assert!(said.starts_with(begin), "{said}");
    }
}
