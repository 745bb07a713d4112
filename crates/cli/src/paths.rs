//! From what the user calls a file to what the burst buffer calls it, and back.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use forebay_types::{Errno, limits};

use crate::control::Daemon;
use crate::exit::{Explain, Failure, reason};
use crate::instance::mount_table;
use crate::mounts::{self, MountEntry};
use crate::out;
use crate::show::text::show_path;
use crate::starter::Starter;

/// A path that cannot be looked at within this time lies on a file system that does not answer.
const PATH_LIMIT: Duration = Duration::from_secs(60);

/// A list that is longer is none: a sparse file would be read into memory as a whole.
const LIST_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The paths of a command.
#[derive(Args, Clone, Debug)]
pub struct PathArgs {
    /// Files or directories, below the mount or below the PFS directory behind it; directories
    /// recurse
    #[arg(value_name = "PATH", required_unless_present = "from_file")]
    pub paths: Vec<PathBuf>,
    /// Take further paths from FILE, one per line, 64 MiB at most; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
    /// The paths in FILE end with NUL instead of a newline, as `find -print0` writes them
    #[arg(short = '0', long, requires = "from_file")]
    pub null: bool,
}

/// What a command works on.
#[derive(Debug)]
pub struct Target {
    /// State folder of the burst buffer.
    pub state: PathBuf,
    /// Where it is mounted, to print paths the way users see them.
    pub mount: PathBuf,
    /// Relative to the root of the mount, without leading '/'.
    pub paths: Vec<Vec<u8>>,
    /// Paths that lie in no burst buffer.
    pub refused: Vec<Refused>,
}

/// Where the paths of a command lead.
#[derive(Debug)]
pub enum Resolved {
    /// Into one burst buffer, some of them at least.
    Within(Target),
    /// None into any.
    Nowhere(Vec<Refused>),
}

/// A path that leads to no burst buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As it was named.
    pub path: PathBuf,
    /// The reason as a number.
    pub errno: Errno,
    /// The reason in words.
    pub why: String,
}

impl Refused {
    fn new(path: &Path, errno: Errno, why: impl Into<String>) -> Refused {
        Refused {
            path: path.to_path_buf(),
            errno,
            why: why.into(),
        }
    }

    fn line(&self) -> String {
        let path = self.path.as_os_str().as_bytes();
        format!("{}: {}", show_path(path), self.why)
    }
}

impl PathArgs {
    /// All paths, from the command line and the file.
    pub fn all(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut paths = self.paths.clone();
        if let Some(file) = &self.from_file {
            let bytes = match file.as_os_str() == "-" {
                true => read_list(io::stdin().lock()).explain("standard input", "")?,
                false => std::fs::File::open(file)
                    .and_then(read_list)
                    .explain(file.display(), "--from-file takes a list of paths")?,
            };
            paths.extend(split_list(&bytes, if self.null { 0 } else { b'\n' }));
        }
        match paths.is_empty() {
            true => Err(Failure::fatal(
                "no paths given; name files or directories below the mount",
            )),
            false => Ok(paths),
        }
    }

    /// Finds the burst buffer that all the paths belong to. Paths that belong to none do not hold
    /// up the others. It is a failure if there are no others.
    pub fn resolve(&self) -> Result<Target, Failure> {
        said(self.resolve_silently()?)
    }

    /// The same for a program, which is told of what leads nowhere otherwise than by lines.
    pub fn resolve_silently(&self) -> Result<Resolved, Failure> {
        let table = mount_table()?;
        let mut known_pfs = Vec::new();
        gather(&self.all()?, &mut |path| {
            place(path, &table, &mut known_pfs)
        })
    }
}

fn gather(
    paths: &[PathBuf],
    place: &mut dyn FnMut(&Path) -> Result<Place, Refused>,
) -> Result<Resolved, Failure> {
    let mut target: Option<Target> = None;
    let mut refused = Vec::new();
    for path in paths {
        let place = match place(path) {
            Ok(place) => place,
            // Each of the others there would take as long.
            Err(one) if one.errno == Errno::ETIMEDOUT => {
                return Err(Failure::fatal(one.line()).with(one.errno));
            }
            Err(one) => {
                refused.push(one);
                continue;
            }
        };
        let target = target.get_or_insert_with(|| Target {
            state: place.state.clone(),
            mount: place.mount.clone(),
            paths: Vec::new(),
            refused: Vec::new(),
        });
        if target.state != place.state {
            return Err(Failure::fatal(format!(
                "{}: belongs to the burst buffer on {}, other paths to that on {}; \
                 give them to two commands",
                path.display(),
                place.mount.display(),
                target.mount.display()
            ))
            .with(Errno::EXDEV));
        }
        target.paths.push(place.path);
    }
    Ok(match target {
        Some(target) => Resolved::Within(Target { refused, ..target }),
        None => Resolved::Nowhere(refused),
    })
}

/// Prints a line for each path that leads nowhere. The last is the failure's own line, where all
/// do.
fn said(resolved: Resolved) -> Result<Target, Failure> {
    let (done, refused) = match resolved {
        Resolved::Within(target) => {
            let refused = target.refused.clone();
            (Ok(target), refused)
        }
        Resolved::Nowhere(mut refused) => {
            let last = refused.pop();
            let line = last.map_or_else(|| "no paths given".into(), |last| last.line());
            (Err(Failure::fatal(line)), refused)
        }
    };
    for one in &refused {
        out::complain(&one.line());
    }
    done
}

fn read_list(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(bytes)
}

fn split_list(bytes: &[u8], end: u8) -> Vec<PathBuf> {
    let parts = bytes.split(|&b| b == end).filter(|part| !part.is_empty());
    parts
        .map(|part| PathBuf::from(OsString::from_vec(part.to_vec())))
        .collect()
}

/// Where one path lies.
#[derive(Debug)]
struct Place {
    state: PathBuf,
    mount: PathBuf,
    path: Vec<u8>,
}

/// A running burst buffer's PFS directory, asked for once.
struct KnownPfs {
    state: PathBuf,
    mount: PathBuf,
    pfs: PathBuf,
    /// The server behind it: its state folder, process and records. Mounts of a cluster have one.
    server: (Vec<u8>, u32, String),
}

fn place(path: &Path, table: &[MountEntry], known: &mut Vec<KnownPfs>) -> Result<Place, Refused> {
    let full = bounded_path(path).map_err(|error| unreachable_path(path, &error))?;
    let found = match mounts::covering(table, &full).filter(|entry| entry.is_forebay()) {
        Some(entry) => mounts::relative(entry, &full).map(|relative| Place {
            state: entry.source.clone(),
            mount: whole_mount(table, entry),
            path: relative,
        }),
        None => below_pfs(path, &full, table, known)?,
    };
    let found = found.ok_or_else(|| {
        let why = "not in a burst buffer, nor below a PFS directory behind one; `forebay status` shows what is mounted";
        Refused::new(path, Errno::EXDEV, why)
    })?;
    if found.path.len() > limits::PATH_BYTES_MAX {
        let why = "the path is too long";
        return Err(Refused::new(path, Errno::ENAMETOOLONG, why));
    }
    Ok(found)
}

/// The mount point that shows all of the burst buffer, if there is one beside the bind mounts.
fn whole_mount(table: &[MountEntry], entry: &MountEntry) -> PathBuf {
    let all = mounts::of_state(table, &entry.source);
    let whole = all.iter().find(|other| other.root == Path::new("/"));
    whole.map_or(&entry.point, |other| &other.point).clone()
}

fn below_pfs(
    path: &Path,
    full: &Path,
    table: &[MountEntry],
    known: &mut Vec<KnownPfs>,
) -> Result<Option<Place>, Refused> {
    for entry in table.iter().filter(|entry| entry.is_forebay()) {
        if known.iter().all(|k| k.state != entry.source) {
            // A burst buffer that does not answer (another user's, or dead) cannot be meant by a
            // PFS path.
            let Ok(Some(daemon)) = Daemon::try_connect(&entry.source) else {
                continue;
            };
            let Ok(status) = daemon.status() else {
                continue;
            };
            known.push(KnownPfs {
                state: entry.source.clone(),
                mount: whole_mount(table, entry),
                pfs: PathBuf::from(OsString::from_vec(status.pfs)),
                server: (status.state, status.pid, status.store),
            });
        }
    }
    let mut matching = known.iter().filter(|k| full.starts_with(&k.pfs));
    let Some(one) = matching.next() else {
        return Ok(None);
    };
    if let Some(other) = matching.find(|other| other.server != one.server) {
        let why = format!(
            "lies behind several burst buffers; name the file below {} or {}",
            one.mount.display(),
            other.mount.display()
        );
        return Err(Refused::new(path, Errno::EXDEV, why));
    }
    let below = full.strip_prefix(&one.pfs).unwrap_or(full);
    Ok(Some(Place {
        state: one.state.clone(),
        mount: one.mount.clone(),
        path: mounts::trim_slash(below.as_os_str().as_bytes().to_vec()),
    }))
}

/// Relative paths, and the metadata store, need a working directory that still exists.
pub fn need_working_directory(command: &str) -> Result<(), Failure> {
    std::env::current_dir().map(drop).map_err(|error| {
        Failure::fatal(format!(
            "{command}: the working directory is gone ({}); change to another one and try again",
            reason(&error)
        ))
    })
}

fn unreachable_path(path: &Path, error: &io::Error) -> Refused {
    let why = match error.raw_os_error() {
        Some(libc::ENOTCONN) => {
            let table = mounts::read().unwrap_or_default();
            let absolute = std::path::absolute(path).unwrap_or_default();
            let starter = mounts::covering(&table, &absolute)
                .map_or(Starter::Up, |entry| Starter::of(&entry.source));
            format!("its burst buffer is no longer running; {starter} goes on where it stopped")
        }
        _ => reason(error),
    };
    Refused::new(path, Errno::of(error), why)
}

/// [`full_path`] of a path that may lie on a file system that does not answer.
fn bounded_path(path: &Path) -> io::Result<PathBuf> {
    let (send, receive) = mpsc::channel();
    let owned = path.to_path_buf();
    std::thread::Builder::new()
        .name("fb-path".into())
        .spawn(move || send.send(full_path(&owned)))?;
    let silent = |_| Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    receive.recv_timeout(PATH_LIMIT).unwrap_or_else(silent)
}

/// An absolute path without `.`, `..` and symbolic links: `latest` stands for the checkpoint that
/// it leads to. What does not exist (a file only in the burst buffer, named by its PFS path; a link
/// that leads nowhere) is appended as it is.
fn full_path(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let is_link = |meta: std::fs::Metadata| meta.is_symlink();
    // Without a slash at the end, which would follow a symbolic link.
    let named: PathBuf = absolute.components().collect();
    if std::fs::symlink_metadata(&named).is_ok_and(is_link) {
        match std::fs::canonicalize(&absolute) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
    }
    let (Some(parent), Some(Component::Normal(name))) =
        (absolute.parent(), absolute.components().next_back())
    else {
        return std::fs::canonicalize(&absolute);
    };
    let mut missing: Vec<&OsStr> = vec![name];
    let mut existing = parent;
    loop {
        match std::fs::canonicalize(existing) {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |p, name| p.join(name))),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(error) => match (existing.parent(), existing.components().next_back()) {
                (Some(parent), Some(Component::Normal(name))) => {
                    missing.push(name);
                    existing = parent;
                }
                _ => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_a_limit() {
        let folder = std::env::temp_dir().join(format!("forebay-list-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("mkdir");
        let path = folder.join("list");
        let file = std::fs::File::create(&path).expect("create");
        file.set_len(LIST_BYTES_MAX).expect("sparse");
        let whole = std::fs::File::open(&path)
            .and_then(read_list)
            .expect("the longest list");
        file.set_len(1 << 40).expect("sparse");
        let error = std::fs::File::open(&path)
            .and_then(read_list)
            .expect_err("no list");
        std::fs::remove_dir_all(&folder).expect("remove");
        assert_eq!(whole.len() as u64, LIST_BYTES_MAX);
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    }

    #[test]
    fn lists_split_at_newline_or_nul() {
        let lines = split_list(b"/bb/a b\n\n/bb/\xff\n", b'\n');
        assert_eq!(lines[0], Path::new("/bb/a b"));
        assert_eq!(lines[1].as_os_str().as_bytes(), b"/bb/\xff");
        assert_eq!(lines.len(), 2);
        assert_eq!(split_list(b"a\nb\0c\0", 0).len(), 2);
    }

    #[test]
    fn full_paths_follow_links_and_keep_what_does_not_exist() {
        let folder = tempfile::tempdir().expect("tempdir");
        let base = std::fs::canonicalize(folder.path()).expect("canonical");
        std::fs::create_dir(base.join("real")).expect("mkdir");
        std::os::unix::fs::symlink("real", base.join("link")).expect("symlink");
        let full = |tail: &str| full_path(&base.join(tail)).expect("full");
        std::os::unix::fs::symlink("nowhere", base.join("dangling")).expect("symlink");
        assert_eq!(full("link"), base.join("real"));
        assert_eq!(full("link/"), base.join("real"));
        assert_eq!(full("dangling"), base.join("dangling"));
        assert_eq!(full("link/a/b"), base.join("real/a/b"));
        assert_eq!(full("real/../link/x"), base.join("real/x"));
        assert_eq!(full("real/.."), base);
        assert_eq!(full_path(Path::new("/")).expect("root"), Path::new("/"));
        assert!(full_path(&base.join("nothing/../x")).is_err());
    }

    #[test]
    fn a_path_belongs_to_the_mount_it_lies_in() {
        let table = mounts::parse(
            b"22 1 0:20 / / rw - ext4 /dev/vda1 rw\n40 22 0:40 / /bb rw - fuse.forebay /var/bb rw\n\
              41 22 0:40 /run7 /run7 rw - fuse.forebay /var/bb rw\n",
        );
        let in_bb = place(Path::new("/bb/x/y"), &table, &mut Vec::new()).expect("in the mount");
        assert_eq!(
            (&in_bb.path[..], in_bb.state.as_path()),
            (&b"x/y"[..], Path::new("/var/bb"))
        );
        let bound = place(Path::new("/run7/y"), &table, &mut Vec::new()).expect("in a bind mount");
        assert_eq!(
            (&bound.path[..], bound.mount.as_path()),
            (&b"run7/y"[..], Path::new("/bb"))
        );
        let outside = place(Path::new("/elsewhere"), &table, &mut Vec::new()).unwrap_err();
        assert!(
            outside
                .line()
                .starts_with("/elsewhere: not in a burst buffer")
        );
    }

    #[test]
    fn a_path_that_leads_nowhere_keeps_nothing_from_the_others() {
        let table = mounts::parse(
            b"40 22 0:40 / /bb rw - fuse.forebay /var/bb rw\n41 22 0:41 / /b2 rw - fuse.forebay /var/b2 rw\n",
        );
        let folder = tempfile::tempdir().expect("tempdir");
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink("circle", &circle).expect("symlink");
        let gather = |paths: &[&Path]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            gather(&paths, &mut |path| place(path, &table, &mut Vec::new())).and_then(said)
        };
        let (good, outside) = (Path::new("/bb/x"), Path::new("/elsewhere"));
        let target = gather(&[outside, good, &circle, Path::new("/bb/y")]).expect("two are good");
        assert_eq!(target.paths, [b"x", b"y"]);
        let refused = target.refused.iter().map(|one| (&*one.path, one.errno));
        assert!(refused.eq([(outside, Errno::EXDEV), (&*circle, Errno::ELOOP)]));
        let none = gather(&[&circle, outside]).unwrap_err();
        assert!(none.message.starts_with("/elsewhere: not in"), "{none:?}");
        let two = gather(&[good, outside, Path::new("/b2/x")]).unwrap_err();
        assert!(two.message.contains("give them to two commands"), "{two:?}");
    }

    #[test]
    fn pfs_paths_are_mapped() {
        let table = mounts::parse(b"40 22 0:40 / /bb rw - fuse.forebay /var/bb rw\n");
        let shown_at = |mount: &str, pid| KnownPfs {
            state: "/var/bb".into(),
            mount: mount.into(),
            pfs: "/scratch".into(),
            server: (b"/var/bb".to_vec(), pid, "embedded".into()),
        };
        // Two mounts of one cluster.
        let mut known = vec![shown_at("/bb", 7), shown_at("/bb2", 7)];
        let mapped = place(Path::new("/scratch/run/ckpt-1"), &table, &mut known).expect("mapped");
        assert_eq!(mapped.path, b"run/ckpt-1");
        assert_eq!(
            place(Path::new("/scratch"), &table, &mut known)
                .expect("root")
                .path,
            b""
        );
        assert!(place(Path::new("/scratch2/x"), &table, &mut known).is_err());
        known.push(shown_at("/other", 8));
        let several = place(Path::new("/scratch/x"), &table, &mut known).err();
        let why = several.expect("two burst buffers").why;
        assert!(why.contains("below /bb or /other"), "{why}");
    }
}
