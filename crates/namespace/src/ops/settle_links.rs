//! Exchanges and changes of links that a crash interrupted.

use std::sync::Arc;

use forebay_tiers::PfsStat;
use forebay_types::{Errno, FileKind};

use crate::log::Batch;
use crate::record::{ExchangeIntent, LinkChange, LinkIntent, PlaceKey};
use crate::tree::Dir;
use crate::tree::Place;
use crate::{File, FileState, Namespace, NsError};

/// What the PFS has under a name; `None` where it has nothing, or the directory is gone.
/// An error is not "nothing": nothing is taken back because the PFS does not tell.
pub(crate) fn found(ns: &Namespace, place: &PlaceKey) -> Result<Option<PfsStat>, NsError> {
    let Some(dir) = ns.known_dir(place.0) else {
        return Ok(None);
    };
    match ns.open_dir(&dir) {
        Ok(handle) => ns.stat_if_there(&handle, &place.1),
        // An outsider has removed it, or put something else there.
        Err(NsError::Errno(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ELOOP)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn file_at(ns: &Namespace, place: &PlaceKey) -> Option<(Arc<Dir>, Arc<File>)> {
    let dir = ns.known_dir(place.0)?;
    let file = dir.child(&place.1)?;
    Some((dir, file))
}

/// If the PFS shows the names swapped, the records follow.
pub(crate) fn settle_exchange(
    ns: &Namespace,
    batch: &mut Batch,
    intent: &ExchangeIntent,
) -> Result<(), NsError> {
    let (at_a, at_b) = (found(ns, &intent.a)?, found(ns, &intent.b)?);
    let is = |stat: Option<PfsStat>, ino: u64| stat.is_some_and(|stat| stat.id.ino == ino);
    let done = match (intent.a_pfs_ino, intent.b_pfs_ino) {
        (Some(ino), _) => is(at_b, ino),
        (None, Some(ino)) => is(at_a, ino),
        (None, None) => false,
    };
    if !done {
        return Ok(());
    }
    let files = [file_at(ns, &intent.a), file_at(ns, &intent.b)];
    for (dir, file, name) in [(&files[0], &intent.a), (&files[1], &intent.b)]
        .into_iter()
        .filter_map(|(end, place)| end.as_ref().map(|(dir, file)| (dir, file, &place.1)))
    {
        dir.lock().remove(&**name);
        drop(file.lock());
    }
    let ends = [
        (&files[0], &intent.a, &intent.b, at_b),
        (&files[1], &intent.b, &intent.a, at_a),
    ];
    for (end, from, to, stat) in ends {
        let Some(to_dir) = ns.known_dir(to.0) else {
            continue;
        };
        match (end, stat) {
            (Some((dir, file)), stat) => {
                let mut state = file.lock();
                let old = (dir.clone(), from.1.clone().into_boxed_slice());
                let new = (to_dir.clone(), to.1.clone().into_boxed_slice());
                state.rename_name(&old, new);
                if let (Some(_), Some(stat)) = (state.residency.published, stat) {
                    state.set_published(Some((&stat).into()));
                }
                ns.put_dirs(batch, &to_dir)?;
                ns.put_file(batch, file, &state)?;
                drop(state);
                to_dir.lock().insert(to.1.clone().into(), file.clone());
            }
            // Found at another place than on record, it is put right.
            (None, Some(stat)) if stat.kind() == FileKind::Directory => {
                ns.intern_dir(stat.id, &to_dir, &to.1);
            }
            (None, _) => {}
        }
    }
    Ok(())
}

/// Brings the names of a file, and what it is published as, in step with the links on the PFS.
pub(crate) fn settle_link(
    ns: &Namespace,
    batch: &mut Batch,
    intent: &LinkIntent,
) -> Result<(), NsError> {
    let there = found(ns, &intent.place)?.is_some_and(|stat| stat.id.ino == intent.pfs_ino);
    let holder = intent.holder.as_ref().and_then(|place| file_at(ns, place));
    match intent.change {
        LinkChange::Added if there => {
            if let (Some((_, file)), Some(dir)) = (&holder, ns.known_dir(intent.place.0)) {
                let name = intent.place.1.clone().into_boxed_slice();
                dir.lock().insert(name.clone(), file.clone());
                ns.put_dirs(batch, &dir)?;
                file.lock().find_name((dir, name));
            }
        }
        LinkChange::Removed if !there => {
            if let Some((dir, file)) = &holder {
                dir.lock().remove(&*intent.place.1);
                file.lock().drop_name(dir, &intent.place.1);
            }
        }
        LinkChange::Replaced => replace_link(ns, batch, intent, there)?,
        LinkChange::Added | LinkChange::Removed => {}
    }
    if let Some((_, file)) = holder {
        let mut state = file.lock();
        follow(ns, &mut state, intent.pfs_ino)?;
        ns.put_file(batch, &file, &state)?;
    }
    Ok(())
}

/// The name belongs to another file on record: what the PFS still has under it goes.
fn replace_link(
    ns: &Namespace,
    batch: &mut Batch,
    intent: &LinkIntent,
    there: bool,
) -> Result<(), NsError> {
    let Some((dir, file)) = file_at(ns, &intent.place) else {
        return Ok(());
    };
    if there {
        ns.unlink_if_there(&ns.open_dir(&dir)?, &intent.place.1)?;
    }
    let mut state = file.lock();
    state.lose_published_at(&dir, &intent.place.1);
    ns.put_file(batch, &file, &state)
}

/// A link more or less has changed the ctime; content that somebody else changed shows otherwise.
fn follow(ns: &Namespace, state: &mut FileState, pfs_ino: u64) -> Result<(), NsError> {
    let placed = |(dir, name): &&Place| state.is_placed(dir, name);
    let place = state.names.iter().find(placed);
    let (Some(published), Some((dir, name))) = (state.residency.published, place) else {
        return Ok(());
    };
    let place = (dir.key, name.to_vec());
    if let Some(stat) = found(ns, &place)?
        && published.ino == pfs_ino
        && (stat.id.ino, stat.size, stat.mtime) == (pfs_ino, published.size, published.mtime)
    {
        state.set_published(Some((&stat).into()));
    }
    Ok(())
}
