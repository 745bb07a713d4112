//! `forebay commit`: orders the publication of versions and follows it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::Dir;
use forebay_types::Errno;

use crate::core::Core;
use crate::orders::asker::Sight;
use crate::orders::jobs::{CLOSE_GRACE, Job, fail, left};
use crate::orders::publication::{Figures, pause_after};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A version on its way.
struct Pending {
    path: Vec<u8>,
    dir: Arc<Dir>,
    files: u64,
    bytes: u64,
    /// Since when it is open for writing.
    written: Option<Instant>,
}

/// Runs the job; only versions of who asks, unless that is root or the server's own user.
pub fn run(core: &Core, job: &Job, paths: &[Vec<u8>], sight: &Sight<'_>) {
    let mut pending: Vec<Pending> = paths
        .iter()
        .filter_map(|path| match order(core, job, path, sight) {
            Ok(pending) => pending,
            Err((errno, reason)) => {
                fail(job, path.clone(), errno, reason);
                None
            }
        })
        .collect();
    job.progress.lock().counting = false;
    while !pending.is_empty() {
        let cancelled = job.cancelled.load(Ordering::Acquire) || core.is_ending();
        let began = Instant::now();
        let figures = core.version_figures();
        let mut moved = 0;
        pending.retain_mut(|version| {
            let now = figures
                .iter()
                .find(|(dir, _)| Arc::ptr_eq(dir, &version.dir));
            let left_bytes = now.map_or(0, |(_, figures)| figures.undrained_bytes());
            moved += version.bytes.saturating_sub(left_bytes);
            match follow(core, version, now.map(|(_, figures)| figures)) {
                Outcome::Done => {
                    job.progress.lock().files_done += version.files;
                    job.bytes_done.fetch_add(version.bytes, Ordering::Relaxed);
                    false
                }
                Outcome::Failed(path, errno, reason) => {
                    fail(job, path, errno, reason);
                    false
                }
                Outcome::Pending if cancelled => {
                    left(job, version.path.clone());
                    false
                }
                Outcome::Pending => true,
            }
        });
        if !pending.is_empty() {
            std::thread::sleep(pause_after(began, LOOK));
        }
    }
}

type Refused = (Errno, String);

fn order(
    core: &Core,
    job: &Job,
    path: &[u8],
    sight: &Sight<'_>,
) -> Result<Option<Pending>, Refused> {
    let plain = |errno: Errno| (errno, errno.message());
    let resolved = core.ns.resolve(path).map_err(|e| e.errno());
    let (dir, found) = resolved.map_err(|errno| plain(sight.of_missing(path, errno)))?;
    let above = dir.place().filter(|_| found.is_none());
    let above = above.map_or_else(|| dir.clone(), |(parent, _)| parent);
    sight.may_search(&above).map_err(plain)?;
    if found.is_some() {
        return Err(plain(Errno::ENOTDIR));
    }
    let owner = core.getattr(dir.ino).ok().map(|attr| attr.uid);
    let owner = owner.or_else(|| {
        let handle = core.ns.open_dir(&dir).ok()?;
        Some(core.ns.pfs().stat_dir(&handle).ok()?.uid)
    });
    let asker = sight.asker();
    if !asker.is_trusted() && owner != Some(asker.uid()) {
        return Err((Errno::EPERM, "not your directory".into()));
    }
    if let Some(version) = core.ns.version_of(&dir).filter(|v| !Arc::ptr_eq(v, &dir)) {
        let name = version.path();
        let reason = format!(
            "inside the version {}, which is published as a whole",
            name.escape_ascii()
        );
        return Err((Errno::EINVAL, reason));
    }
    core.order_publication(&dir).map_err(|errno| match errno {
        Errno::ENODATA => (errno, "files of it were lost with the machine's power (see `forebay status`): write them again, or remove the version".into()),
        Errno::EINVAL => (errno, "no version directory: it was not made under a path rule with 'group', so its files appear on the PFS one by one; `forebay stage-out --wait` waits for them".into()),
        other => plain(other),
    })?;
    let figures = core.version_figures();
    let Some((_, figures)) = figures.into_iter().find(|(d, _)| Arc::ptr_eq(d, &dir)) else {
        let mut progress = job.progress.lock();
        (progress.files_total, progress.files_done) =
            (progress.files_total + 1, progress.files_done + 1);
        progress.files_skipped += 1;
        return Ok(None);
    };
    for (file, _) in &figures.undrained {
        // An earlier failure is tried again, and only what happens now counts.
        file.lock().forget_error();
        core.drain.add_urgent(file.object);
    }
    let bytes = figures.undrained_bytes();
    let mut progress = job.progress.lock();
    progress.files_total += figures.files.max(1);
    progress.bytes_total += bytes;
    Ok(Some(Pending {
        path: path.to_vec(),
        dir,
        files: figures.files.max(1),
        bytes,
        written: None,
    }))
}

enum Outcome {
    Done,
    Failed(Vec<u8>, Errno, String),
    Pending,
}

fn follow(core: &Core, version: &mut Pending, figures: Option<&Figures>) -> Outcome {
    let Some(figures) = figures else {
        return match core.ns.is_gone(&version.dir) {
            false => Outcome::Done,
            true => Outcome::Failed(
                version.path.clone(),
                Errno::ENOENT,
                "removed before it was published".into(),
            ),
        };
    };
    let kept = "the version is kept, and published when that is mended";
    if let Some((file, errno)) = figures.failing() {
        let reason = format!("not demoted: {}; {kept}", errno.message());
        return Outcome::Failed(file.path(), errno, reason);
    }
    if let Some(errno) = core.versions.why(&version.dir) {
        let reason = format!("not published: {}; {kept}", errno.message());
        return Outcome::Failed(version.path.clone(), errno, reason);
    }
    if figures.written == 0 {
        version.written = None;
        return Outcome::Pending;
    }
    let since = *version.written.get_or_insert_with(Instant::now);
    match since.elapsed() > CLOSE_GRACE {
        true => Outcome::Failed(
            version.path.clone(),
            Errno::ETXTBSY,
            "files in it are open for writing; it is published when they are closed".into(),
        ),
        false => Outcome::Pending,
    }
}
