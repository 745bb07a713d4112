//! Checks before anything is mounted or changed. Each gives one line that says what to do.

use std::fs::{DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use forebay_server::{Settings, SsdSetting};
use forebay_types::format_duration;

use super::settle::{self, Plan};
use super::{neighbours, resources};
use crate::exit::{Explain, Failure, reason};
use crate::instance::mount_table;
use crate::mounts::{self, MountEntry};
use crate::starter::Starter;
use crate::state::{self, Holder};

/// What the checks found that keeps nothing from starting.
#[derive(Debug, Default)]
pub struct Ground {
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Checks everything that can be checked without changing anything. Afterwards all folders in the
/// plan are canonical.
pub fn check(plan: &mut Plan) -> Result<Ground, Failure> {
    let settings = &mut plan.settings;
    let mut ground = Ground::default();
    settings.pfs = check_pfs(&settings.pfs, settings.pfs_timeout)?;
    settings.state = check_state(&settings.state)?;
    let table = mount_table()?;
    if let Some(mount) = &mut settings.mount {
        *mount = check_mount(mount, &settings.state, &table, &mut ground)?;
    }
    check_ssd(settings)?;
    check_relations(settings)?;
    if let Some(entry) = mounts::covering(&table, &settings.pfs).filter(|entry| entry.is_forebay())
    {
        return Err(Failure::fatal(format!(
            "{}: the PFS is itself in a burst buffer (mounted on {}); name the slow file system behind it",
            settings.pfs.display(),
            entry.point.display()
        )));
    }
    resources::check_space(settings)?;
    resources::check_memory(settings, &table)?;
    ground.warnings.extend(resources::never_lent(settings));
    let mounts = settings.mount.is_some();
    if mounts {
        resources::check_fuse()?;
    }
    if mounts && plan.allow_other {
        resources::check_allow_other()?;
    }
    let others = neighbours::warnings(&settings.pfs, &settings.state, &table);
    ground.warnings.extend(others);
    Ok(ground)
}

/// The PFS exists, can be read and written. On a thread of its own, for a dead server may never
/// answer.
fn check_pfs(pfs: &Path, limit: Duration) -> Result<PathBuf, Failure> {
    let (send, receive) = mpsc::channel();
    let path = pfs.to_path_buf();
    std::thread::Builder::new()
        .name("fb-probe".into())
        .spawn(move || send.send(probe_pfs(&path)))
        .explain("cannot start a thread", "")?;
    receive.recv_timeout(limit).unwrap_or_else(|_| {
        Err(Failure::fatal(format!(
            "{}: the PFS has not answered for {}; is its server there?",
            pfs.display(),
            format_duration(limit)
        )))
    })
}

fn probe_pfs(pfs: &Path) -> Result<PathBuf, Failure> {
    let what = format!("{}: the PFS", pfs.display());
    let real = std::fs::canonicalize(pfs)
        .explain(&what, "give an existing directory of the slow file system")?;
    let metadata = std::fs::metadata(&real).explain(&what, "")?;
    if !metadata.is_dir() {
        return Err(Failure::fatal(format!(
            "{what}: is a file; give an existing directory of the slow file system"
        )));
    }
    std::fs::read_dir(&real)
        .and_then(|mut entries| entries.next().transpose())
        .explain(
            format_args!("{what} cannot be read"),
            "give a directory that you may read",
        )?;
    let fs = rustix::fs::statvfs(&real).explain(&what, "")?;
    let read_only = fs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    match (read_only, writable(&real)) {
        (false, Ok(())) => Ok(real),
        (true, _) => Err(Failure::fatal(format!(
            "{what}: is mounted read-only, so nothing could be drained to it; mount it writable"
        ))),
        (false, Err(error)) => Err(Failure::fatal(format!(
            "{what} cannot be written, so nothing could be drained to it: {}; choose a directory below it that you may write to",
            reason(&error)
        ))),
    }
}

/// Whether the permissions let this process, with its effective ids, write into a directory.
fn writable(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    Ok(accessat(
        CWD,
        folder,
        Access::WRITE_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    )?)
}

/// The state folder: there and usable, or to be made in an existing folder.
fn check_state(state: &Path) -> Result<PathBuf, Failure> {
    let what = format!("{}: the state folder", state.display());
    match std::fs::canonicalize(state) {
        Ok(real) => {
            if !std::fs::metadata(&real).explain(&what, "")?.is_dir() {
                return Err(Failure::fatal(format!("{what}: is a file; give a folder")));
            }
            writable(&real).explain(
                format_args!("{what} cannot be written"),
                "choose a folder of your own",
            )?;
            if let Some(why) = state::unfit(&real).explain(&what, "")? {
                return Err(Failure::fatal(format!("{what} {why}")));
            }
            check_way(&what, &real)?;
            Ok(real)
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !state.is_symlink() => {
            let (Some(parent), Some(name)) = (state.parent(), state.file_name()) else {
                return Err(Failure::fatal(format!("{what}: {}", reason(&error))));
            };
            let parent = std::fs::canonicalize(parent).explain(
                format_args!("{what} cannot be made: {}", parent.display()),
                "make that folder first",
            )?;
            writable(&parent).explain(
                format_args!("{what} cannot be made in {}", parent.display()),
                "choose a folder of your own",
            )?;
            let real = parent.join(name);
            check_way(&what, &real)?;
            Ok(real)
        }
        Err(error) => Err(Failure::fatal(format!(
            "{what}: {}; give a folder",
            reason(&error)
        ))),
    }
}

/// Nobody else may put another folder in the place of this one.
fn check_way(what: &str, state: &Path) -> Result<(), Failure> {
    match state::exchangeable(state).explain(what, "")? {
        None => Ok(()),
        Some(above) => Err(Failure::fatal(format!(
            "{what}: others could exchange it, because {} is theirs or they may write to it; choose a folder in a \
             place of your own, such as /var/lib/forebay",
            above.display()
        ))),
    }
}

/// The mount point: an existing directory with nothing mounted on it but, perhaps, what a dead
/// instance of the same state has left.
pub fn check_mount(
    mount: &Path,
    state: &Path,
    table: &[MountEntry],
    ground: &mut Ground,
) -> Result<PathBuf, Failure> {
    let what = format!("{}: the mount point", mount.display());
    let real = canonical_mount(mount).explain(&what, "make an empty directory for it")?;
    let on_it = table.iter().rev().filter(|entry| entry.point == real);
    let mut dead = false;
    for entry in on_it {
        if !(entry.is_forebay() && entry.source == state) {
            return Err(busy(&what, entry));
        }
        dead = true;
    }
    if dead {
        // The lock will tell whether this instance lives. If not, its mount is removed then.
        return Ok(real);
    }
    let metadata = std::fs::metadata(&real).explain(&what, "make an empty directory for it")?;
    if !metadata.is_dir() {
        return Err(Failure::fatal(format!(
            "{what}: is a file; give an existing directory"
        )));
    }
    if !resources::may_mount() && writable(&real).is_err() {
        return Err(Failure::fatal(format!(
            "{what}: you may only mount on a directory that you may write to"
        )));
    }
    if std::fs::read_dir(&real).is_ok_and(|mut entries| entries.next().is_some()) {
        ground.warnings.push(format!(
            "{what} is not empty; what is in it is hidden while the burst buffer is up"
        ));
    }
    Ok(real)
}

/// A dead mount cannot be looked at itself, but its parent can.
fn canonical_mount(mount: &Path) -> io::Result<PathBuf> {
    match (
        std::fs::canonicalize(mount),
        mount.parent(),
        mount.file_name(),
    ) {
        (Err(error), Some(parent), Some(name)) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Ok(std::fs::canonicalize(parent)?.join(name))
        }
        (other, _, _) => other,
    }
}

fn busy(what: &str, entry: &MountEntry) -> Failure {
    let source = entry.source.display();
    if !entry.is_forebay() {
        return Failure::fatal(format!(
            "{what}: busy: {} ({source}) is mounted there; unmount it or choose another directory",
            entry.fs_type
        ));
    }
    let dead = matches!(state::holder(&entry.source), Ok(Some(Holder::Nobody)));
    if let Starter::Mount(_) = Starter::of(&entry.source) {
        let point = entry.point.display();
        return Failure::fatal(match dead {
            true => format!(
                "{what}: busy: a Forebay mount died there; `umount -l {point}` takes away what it has left"
            ),
            false => format!("{what}: is already a Forebay mount; `umount {point}` ends it"),
        });
    }
    Failure::fatal(match dead {
        true => format!(
            "{what}: busy: the burst buffer with --state {source} died there; go on with that --state, or take its \
             mount away with `forebay down --state {source}`"
        ),
        false => format!(
            "{what}: busy: the burst buffer with --state {source} is mounted there; stop it with \
             `forebay down --state {source}`, or choose another directory"
        ),
    })
}

fn check_ssd(settings: &mut Settings) -> Result<(), Failure> {
    let called = settle::called(settings, "ssd");
    for ssd in &mut settings.ssd {
        let what = format!("{called} {}", ssd.dir.display());
        ssd.dir = match std::fs::canonicalize(&ssd.dir) {
            Ok(real) => real,
            Err(error) => return Err(missing_ssd(&ssd.dir, &what, &error)),
        };
        if !std::fs::metadata(&ssd.dir).explain(&what, "")?.is_dir() {
            return Err(Failure::fatal(format!(
                "{what}: is a file; give a directory on flash"
            )));
        }
        resources::check_writable(&ssd.dir).explain(
            format_args!("{what}: cannot be written"),
            "choose a directory of your own",
        )?;
    }
    let identity = |path: &Path| std::fs::metadata(path).map(|m| same_key(&m)).ok();
    for (at, ssd) in settings.ssd.iter().enumerate() {
        let what = format!("{called} {}", ssd.dir.display());
        let twin = settings.ssd[..at]
            .iter()
            .find(|o| o.dir == ssd.dir || identity(&o.dir) == identity(&ssd.dir));
        if twin.is_some() {
            return Err(Failure::fatal(format!(
                "{what}: is given twice; name each flash directory once"
            )));
        }
        let around = |other: &&SsdSetting| {
            other.dir.starts_with(&ssd.dir) || ssd.dir.starts_with(&other.dir)
        };
        if let Some(other) = settings.ssd[..at].iter().find(around) {
            return Err(Failure::fatal(format!(
                "{what}: one flash directory lies inside the other ({}); give directories side by side",
                other.dir.display()
            )));
        }
        if ssd.dir == settings.state {
            return Err(Failure::fatal(format!(
                "{what}: is the state folder; give a directory of its own"
            )));
        }
    }
    Ok(())
}

/// With a size that does not parse, all of `DIR:SIZE` is taken for a name, which does not exist.
/// The message says so.
fn missing_ssd(dir: &Path, what: &str, error: &io::Error) -> Failure {
    let text = dir.to_string_lossy();
    match text.rsplit_once(':') {
        Some((folder, size))
            if Path::new(folder).is_dir() && forebay_types::parse_size(size).is_err() =>
        {
            let why = forebay_types::parse_size(size)
                .err()
                .map_or_else(String::new, |e| e.to_string());
            Failure::fatal(format!("{what}: {why}"))
        }
        // `DIR:SIZE:SIZE`: the last has been taken off.
        Some((_, size)) if forebay_types::parse_size(size).is_ok() => Failure::fatal(format!(
            "{what}: a size is given twice; write DIR or DIR:SIZE"
        )),
        _ => Failure::fatal(format!(
            "{what}: {}; make the directory first",
            reason(error)
        )),
    }
}

fn same_key(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// No folder of Forebay may lie in the PFS or in the mount. In the PFS it would be shown as the
/// user's own files, and in the mount it would wait for itself.
fn check_relations(settings: &Settings) -> Result<(), Failure> {
    if let Some(mount) = &settings.mount {
        check_mount_and_pfs(mount, &settings.pfs)?;
    }
    let state = std::iter::once(("the state folder".to_string(), &settings.state));
    let ssd = settings
        .ssd
        .iter()
        .map(|ssd| ("the flash directory".to_string(), &ssd.dir));
    for (name, folder) in state.chain(ssd) {
        let inside = |what: &str, other: &str, place: &Path| {
            format!("{what} lies inside {other} {}", place.display())
        };
        if let Some(mount) = &settings.mount
            && mount.starts_with(folder)
            && name != "the state folder"
        {
            let what = format!("{}: the mount point", mount.display());
            let what = inside(&what, &name, folder);
            return refuse(&what, "choose another directory to mount on");
        }
        let mount = settings.mount.as_ref();
        let places = std::iter::once(("the PFS", &settings.pfs));
        for (other, place) in places.chain(mount.map(|mount| ("the mount point", mount))) {
            if folder.starts_with(place) {
                let what = inside(&format!("{}: {name}", folder.display()), other, place);
                return refuse(&what, "choose a folder on a local disk outside of it");
            }
        }
    }
    Ok(())
}

fn refuse(what: &str, todo: &str) -> Result<(), Failure> {
    Err(Failure::fatal(format!("{what}; {todo}")))
}

/// Neither may hide the other, or be it.
pub fn check_mount_and_pfs(mount: &Path, pfs: &Path) -> Result<(), Failure> {
    let same = |a: &Path, b: &Path| match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => same_key(&a) == same_key(&b),
        _ => false,
    };
    if mount == pfs || same(mount, pfs) {
        let what = format!(
            "{}: mount point and PFS are the same directory",
            mount.display()
        );
        return refuse(&what, "choose another directory to mount on");
    }
    if mount.starts_with(pfs) {
        let what = format!(
            "{}: the mount point lies inside the PFS {}",
            mount.display(),
            pfs.display()
        );
        return refuse(&what, "choose a directory outside of it");
    }
    if pfs.starts_with(mount) {
        let what = format!(
            "{}: the PFS lies inside the mount point {}",
            pfs.display(),
            mount.display()
        );
        return refuse(
            &what,
            "the mount would hide it: choose another directory to mount on",
        );
    }
    Ok(())
}

/// A mount must not hide the state of a server of this node.
pub fn check_mount_and_state(mount: &Path, state: &Path) -> Result<(), Failure> {
    // On other nodes there is none.
    let Ok(state) = std::fs::canonicalize(state) else {
        return Ok(());
    };
    if !mount.starts_with(&state) && !state.starts_with(mount) {
        return Ok(());
    }
    let what = format!(
        "{}: the mount would hide what is in {}, the state folder of a server",
        mount.display(),
        state.display()
    );
    refuse(&what, "choose another directory to mount on")
}

/// Makes the state folder if it is missing, for its owner only; whether it was missing.
pub fn make_state(state: &Path) -> Result<bool, Failure> {
    match DirBuilder::new().mode(0o711).create(state) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Failure::fatal(format!(
            "{}: cannot make the state folder: {}",
            state.display(),
            reason(&error)
        ))),
    }
}

/// Takes a state folder away that this very command made, and in which nothing was ever mounted:
/// no user has written a byte. Not while anything is mounted below it.
pub fn unmake_state(state: &Path) {
    let below = mounts::read().map_or(true, |table| {
        table.iter().any(|entry| entry.point.starts_with(state))
    });
    if !below {
        // What cannot be removed is harmless: the next start finds an empty state.
        let _ = std::fs::remove_dir_all(state);
    }
}

/// With the lock held, every mount of this state belongs to a dead instance: takes them away.
/// Afterwards nothing is mounted where the mount is to be.
pub fn clear_dead_mounts(state: &Path, mount: Option<&Path>) -> Result<(), Failure> {
    for entry in mounts::of_state(&mount_table()?, state) {
        mounts::detach(&entry.point).explain(
            format_args!(
                "{}: cannot take away the mount of a dead instance",
                entry.point.display()
            ),
            "unmount it with umount -l",
        )?;
    }
    let Some(mount) = mount else {
        return Ok(());
    };
    let table = mount_table()?;
    let what = format!("{}: the mount point", mount.display());
    if let Some(entry) = table.iter().rev().find(|entry| entry.point == mount) {
        return Err(busy(&what, entry));
    }
    match std::fs::metadata(mount).explain(&what, "")?.is_dir() {
        true => Ok(()),
        false => Err(Failure::fatal(format!(
            "{what}: is a file; give an existing directory"
        ))),
    }
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;
