//! Where a mount keeps its lock, log, process id and control socket while it lives.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cluster::config::Cluster;
use crate::exit::{Explain, Failure};
use crate::show::text::show_path;
use crate::starter;
use crate::state::{self, Lock};

/// The run folder of a mount, which is found by the mount's source. Unless the mount comes to be,
/// what was made for it is taken away.
pub struct RunFolder {
    path: PathBuf,
    /// Directories that this command has made, the lower ones last.
    made: Vec<PathBuf>,
}

impl RunFolder {
    /// The folder of a mount at this directory; made if it is missing.
    pub fn of(mount: &Path) -> Result<RunFolder, Failure> {
        RunFolder::below(&base(), mount)
    }

    fn below(base: &Path, mount: &Path) -> Result<RunFolder, Failure> {
        let mut folder = RunFolder {
            path: base.join(name_of(mount)),
            made: Vec::new(),
        };
        let todo = "FOREBAY_RUN names another folder for it";
        if make(base, 0o755).explain(base.display(), todo)? {
            folder.made.push(base.to_path_buf());
        }
        let mut made = make(&folder.path, 0o711);
        // Another mount, which has failed, may have taken away the base that it had made.
        if made
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::NotFound)
        {
            make(base, 0o755).explain(base.display(), todo)?;
            made = make(&folder.path, 0o711);
        }
        if made.explain(folder.path.display(), todo)? {
            folder.made.push(folder.path.clone());
        }
        // As the mount table will show it.
        let real = std::fs::canonicalize(&folder.path);
        folder.path = real.explain(folder.path.display(), todo)?;
        Ok(folder)
    }

    /// Where it is, canonical.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mount is there: its log is for whoever wonders how it ended.
    pub fn keep(&mut self) {
        self.made.clear();
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.made.is_empty() {
            return;
        }
        // Another command may have come to mount at the same place, and goes on with the folder.
        let Ok(lock) = Lock::take(&self.path) else {
            return;
        };
        for name in [
            state::PID,
            state::SOCKET,
            state::MOUNT,
            state::CLUSTER,
            state::LOG,
            state::LOCK,
        ] {
            // What is not there needs no removal, and the directory's tells of the rest.
            let _ = std::fs::remove_file(self.path.join(name));
        }
        for dir in self.made.iter().rev() {
            if let Err(error) = std::fs::remove_dir(dir) {
                tracing::debug!("{} stays: {error}", dir.display());
            }
        }
        drop(lock);
    }
}

/// Notes which cluster a mount shows. The note is there before the mount is.
pub fn note_cluster(run: &Path, cluster: &Cluster) -> std::io::Result<()> {
    state::write(run, state::CLUSTER, &format!("{}\n", mark_of(cluster)))
}

/// Whether the mount with this run folder shows that cluster. A local burst buffer has no note.
pub fn shows(run: &Path, cluster: &Cluster) -> bool {
    starter::read(run, state::CLUSTER).is_ok_and(|mark| mark == mark_of(cluster))
}

/// Names of clusters have no blanks, and others may use the same one.
fn mark_of(cluster: &Cluster) -> String {
    let pfs = show_path(cluster.pfs.as_os_str().as_bytes());
    format!("{} {pfs}", cluster.name)
}

/// A file for what a process says that has no other log, made anew beside the run folders.
pub fn log_of(name: &str) -> std::io::Result<(std::fs::File, PathBuf)> {
    use std::os::unix::fs::OpenOptionsExt;
    let base = base();
    make(&base, 0o755)?;
    let path = base.join(name);
    let mut options = std::fs::File::options();
    // Where everybody may make files, nobody's link is followed.
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
    Ok((file, path))
}

fn base() -> PathBuf {
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = given("FOREBAY_RUN") {
        return PathBuf::from(folder);
    }
    let uid = rustix::process::geteuid();
    match given("XDG_RUNTIME_DIR") {
        _ if uid.is_root() => PathBuf::from("/run/forebay"),
        Some(folder) => PathBuf::from(folder).join("forebay"),
        None => PathBuf::from(format!("/tmp/forebay-{}", uid.as_raw())),
    }
}

/// Whether this user's mounts have their run folders beside that one.
pub fn is_run_folder(folder: &Path) -> bool {
    std::fs::canonicalize(base()).is_ok_and(|base| folder.parent() == Some(&base))
}

/// Whether it had to be made.
fn make(folder: &Path, mode: u32) -> std::io::Result<bool> {
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

/// Makes a run folder anew that another command, which has failed to mount there, has taken away.
pub fn make_again(run: &Path) -> std::io::Result<()> {
    if let Some(base) = run.parent() {
        make(base, 0o755)?;
    }
    make(run, 0o711).map(drop)
}

/// One name for a path: `/` becomes `-`, and what would be mistaken for that is escaped.
fn name_of(mount: &Path) -> OsString {
    let mut name = Vec::new();
    for &byte in mount.as_os_str().as_bytes().iter().skip(1) {
        match byte {
            b'/' => name.push(b'-'),
            b'-' | b'\\' | b'.' => name.extend(format!("\\x{byte:02x}").into_bytes()),
            _ => name.push(byte),
        }
    }
    if name.len() > 200 {
        // Too long for a name: its end, and what tells it from others with the same end.
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let mark = format!("{:016x}-", hasher.finish()).into_bytes();
        name.drain(..name.len() - 180);
        name.splice(0..0, mark);
    }
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_fails_leaves_nothing_behind() {
        let around = tempfile::tempdir().expect("tempdir");
        let base = around.path().join("run");
        let folder = |dir: &str| RunFolder::below(&base, Path::new(dir)).expect("made");
        let failed = folder("/bb");
        for name in [state::LOG, state::SOCKET, state::LOCK] {
            std::fs::write(failed.path().join(name), "").expect("write");
        }
        drop(failed);
        assert!(!base.exists());

        let mut mounted = folder("/bb");
        mounted.keep();
        let (log, path) = (
            mounted.path().join(state::LOG),
            mounted.path().to_path_buf(),
        );
        drop(mounted);
        std::fs::write(&log, "").expect("write");
        // What was there before stays, and so does what somebody else has taken.
        drop(folder("/bb"));
        assert!(log.exists());
        let late = folder("/b2");
        let held = Lock::take(late.path()).expect("free");
        let taken = late.path().to_path_buf();
        std::fs::write(taken.join(state::MOUNT), "").expect("write");
        drop(late);
        assert!(taken.join(state::MOUNT).exists());
        drop(held);
        assert!(path.exists());
    }

    #[test]
    fn a_mount_says_which_cluster_it_shows() {
        let run = tempfile::tempdir().expect("tempdir");
        let cluster = |name: &str, pfs: &str| {
            let file = run.path().join("c.toml");
            let text = format!(
                "[cluster]\nname = \"{name}\"\npfs = \"{pfs}\"\nkey = \"/key\"\n\
                 [[server]]\nid = 1\nroles = [\"metadata\", \"data\"]\n\
                 addresses = [\"127.0.0.1:7070\"]\nstate = \"/state\"\ndram = \"64MiB\"\n"
            );
            std::fs::write(&file, text).expect("write");
            Cluster::load(&file).expect("a cluster")
        };
        let own = cluster("bb0", "/scratch of us");
        assert!(!shows(run.path(), &own), "a local one");
        note_cluster(run.path(), &own).expect("noted");
        assert!(shows(run.path(), &own));
        for (name, pfs) in [("bb1", "/scratch of us"), ("bb0", "/scratch")] {
            assert!(!shows(run.path(), &cluster(name, pfs)), "{name} {pfs}");
        }
    }

    #[test]
    fn every_mount_has_a_name_of_its_own() {
        let name = |path: &str| name_of(Path::new(path)).into_string().expect("text");
        assert_eq!(name("/mnt/bb"), "mnt-bb");
        assert_eq!(name("/mnt-bb"), "mnt\\x2dbb");
        assert_eq!(name("/a.b"), "a\\x2eb");
        let long = |letter: &str| format!("/{letter}/{}", "x/".repeat(200));
        assert!(name(&long("a")).len() < 220);
        assert_ne!(name(&long("a")), name(&long("b")));
    }
}
