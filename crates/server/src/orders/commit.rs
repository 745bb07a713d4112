//! `forebay commit`: orders the publication of versions and follows it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_namespace::Dir;
use forebay_types::Errno;

use crate::base::failure::Failure;
use crate::orders::Orders;
use crate::orders::asker::sight::Sight;
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
pub fn run(orders: &Orders, job: &Job, paths: &[Vec<u8>], sight: &Sight<'_>) {
    let mut pending: Vec<Pending> = paths
        .iter()
        .filter_map(|path| match order(orders, job, path, sight) {
            Ok(pending) => pending,
            Err(failure) => {
                fail(job, path.clone(), failure.errno(), failure.in_brief());
                None
            }
        })
        .collect();
    job.progress.lock().counting = false;
    while !pending.is_empty() {
        let cancelled = job.cancelled.load(Ordering::Acquire) || orders.base.is_ending();
        let began = Instant::now();
        let figures = orders.version_figures();
        let mut moved = 0;
        pending.retain_mut(|version| {
            let now = figures
                .iter()
                .find(|(dir, _)| Arc::ptr_eq(dir, &version.dir));
            let left_bytes = now.map_or(0, |(_, figures)| figures.undrained_bytes());
            moved += version.bytes.saturating_sub(left_bytes);
            match follow(orders, version, now.map(|(_, figures)| figures)) {
                Outcome::Done => {
                    job.progress.lock().files_done += version.files;
                    job.bytes_done.fetch_add(version.bytes, Ordering::Relaxed);
                    false
                }
                Outcome::Failed(path, failure) => {
                    fail(job, path, failure.errno(), failure.to_string());
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

fn order(
    orders: &Orders,
    job: &Job,
    path: &[u8],
    sight: &Sight<'_>,
) -> Result<Option<Pending>, Failure> {
    let (dir, found) = match orders.ns.resolve(path) {
        Ok(resolved) => resolved,
        Err(error) => return Err(sight.of_missing(path, error.into())),
    };
    let above = dir.place().filter(|_| found.is_none());
    let above = above.map_or_else(|| dir.clone(), |(parent, _)| parent);
    sight.may_search(&above)?;
    if found.is_some() {
        return Err(Errno::ENOTDIR.into());
    }
    let owner = orders.files.getattr(dir.ino).ok().map(|attr| attr.uid);
    let owner = owner.or_else(|| {
        let handle = orders.ns.open_dir(&dir).ok()?;
        Some(orders.ns.pfs().stat_dir(&handle).ok()?.uid)
    });
    let asker = sight.asker();
    if !asker.is_trusted() && owner != Some(asker.uid()) {
        return Err(Failure::new(Errno::EPERM, "not your directory"));
    }
    if let Some(version) = orders.ns.version_of(&dir).filter(|v| !Arc::ptr_eq(v, &dir)) {
        let name = version.path();
        let reason = format!(
            "inside the version {}, which is published as a whole",
            name.escape_ascii()
        );
        return Err(Failure::new(Errno::EINVAL, reason));
    }
    orders.order_publication(&dir).map_err(|failure| match failure.errno() {
        Errno::ENODATA => failure.about("files of it were lost with the machine's power (see `forebay status`): write them again, or remove the version"),
        Errno::EINVAL => failure.about("no version directory: it was not made under a path rule with 'group', so its files appear on the PFS one by one; `forebay stage-out --wait` waits for them"),
        _ => failure,
    })?;
    let figures = orders.version_figures();
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
        orders.buffer.queue().add_urgent(file.object);
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
    Failed(Vec<u8>, Failure),
    Pending,
}

fn follow(orders: &Orders, version: &mut Pending, figures: Option<&Figures>) -> Outcome {
    let Some(figures) = figures else {
        return match orders.ns.is_gone(&version.dir) {
            false => Outcome::Done,
            true => Outcome::Failed(
                version.path.clone(),
                Failure::new(Errno::ENOENT, "removed before it was published"),
            ),
        };
    };
    let kept = "the version is kept, and published when that is mended";
    if let Some((file, errno)) = figures.failing() {
        let reason = format!("not demoted: {}; {kept}", errno.message());
        return Outcome::Failed(file.path(), Failure::new(errno, reason));
    }
    if let Some(errno) = orders.versions.why(&version.dir) {
        let reason = format!("not published: {}; {kept}", errno.message());
        return Outcome::Failed(version.path.clone(), Failure::new(errno, reason));
    }
    if figures.written == 0 {
        version.written = None;
        return Outcome::Pending;
    }
    let since = *version.written.get_or_insert_with(Instant::now);
    match since.elapsed() > CLOSE_GRACE {
        true => Outcome::Failed(version.path.clone(), held_up(figures)),
        false => Outcome::Pending,
    }
}

/// Why a version is not published yet, for whoever has to close files.
fn held_up(figures: &Figures) -> Failure {
    let open = match (&figures.written_path, figures.written) {
        (None, _) => "files in it are open for writing".into(),
        (Some(path), 1) => format!("{} is open for writing", shown(path)),
        (Some(path), many) => {
            format!("{} and {} more are open for writing", shown(path), many - 1)
        }
    };
    let reason = format!("{open}; it is published when all are closed");
    Failure::new(Errno::ETXTBSY, reason)
}

/// A path of which no byte breaks a line.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_holds_a_version_up_is_named() {
        let said = |written, path: Option<&[u8]>| {
            let figures = Figures {
                written,
                written_path: path.map(<[u8]>::to_vec),
                ..Figures::default()
            };
            held_up(&figures).to_string()
        };
        let then = "; it is published when all are closed";
        assert_eq!(
            said(1, Some(b"v/a\nb")),
            format!("v/a\\nb is open for writing{then}")
        );
        assert_eq!(
            said(3, Some(b"v/f")),
            format!("v/f and 2 more are open for writing{then}")
        );
        assert_eq!(
            said(2, None),
            format!("files in it are open for writing{then}")
        );
    }
}
