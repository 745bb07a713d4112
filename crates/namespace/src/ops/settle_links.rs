//! Exchanges and changes of links that a crash interrupted.

use std::sync::Arc;

use forebay_tiers::PfsStat;
use forebay_types::{Errno, FileKind};

use crate::log::Batch;
use crate::record::{ExchangeIntent, LinkChange, LinkIntent, PlaceKey, Published};
use crate::tree::{Dir, Name, Place};
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
        Err(error)
            if matches!(
                error.refusal(),
                Some(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ELOOP)
            ) =>
        {
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
    // Either tells: an outsider may have replaced the other since.
    let is = |stat: Option<PfsStat>, had: Option<Published>| {
        had.is_some_and(|had| stat.is_some_and(|stat| had.is_same_file(&stat)))
    };
    if !is(at_b, intent.on_pfs_a) && !is(at_a, intent.on_pfs_b) {
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
        (&files[0], &intent.a, &intent.b, at_b, intent.on_pfs_a),
        (&files[1], &intent.b, &intent.a, at_a, intent.on_pfs_b),
    ];
    for (end, from, to, stat, had) in ends {
        let Some(to_dir) = ns.known_dir(to.0) else {
            continue;
        };
        match (end, stat) {
            (Some((dir, file)), stat) => {
                let mut state = file.lock();
                let old = (dir.clone(), from.1.as_slice().into());
                let new = (to_dir.clone(), to.1.as_slice().into());
                let published = state.expected_at(dir, &from.1);
                state.rename_name(&old, new);
                if had.is_none() {
                    // What the PFS had under the old name went aside, or was an outsider's to
                    // remove.
                    state.lose_published_at(&to_dir, &to.1);
                } else if state.is_placed(&to_dir, &to.1) {
                    state.set_published(published.map(|p| p.after_move(stat.as_ref())));
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
    let here = found(ns, &intent.place)?;
    let there = here.is_some_and(|stat| intent.target.is_same_file(&stat));
    let holder = intent.holder.as_ref().and_then(|place| file_at(ns, place));
    match intent.change {
        LinkChange::Added if there => {
            if let (Some((_, file)), Some(dir)) = (&holder, ns.known_dir(intent.place.0)) {
                let name = Name::from(intent.place.1.as_slice());
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
        LinkChange::Replaced => replace_link(ns, batch, intent, here)?,
        LinkChange::Added | LinkChange::Removed => {}
    }
    if let Some((_, file)) = holder {
        let mut state = file.lock();
        follow(ns, &mut state, intent.target)?;
        ns.put_file(batch, &file, &state)?;
    }
    Ok(())
}

/// The name belongs to another file on record: what the PFS still has under it goes. What an
/// outsider has made of that, or put in its place, stays: the next drain finds it.
fn replace_link(
    ns: &Namespace,
    batch: &mut Batch,
    intent: &LinkIntent,
    here: Option<PfsStat>,
) -> Result<(), NsError> {
    let Some((dir, file)) = file_at(ns, &intent.place) else {
        return Ok(());
    };
    match here {
        None => {}
        Some(stat) if intent.target.same_but_ctime(&stat) => {
            ns.unlink_if_there(&ns.open_dir(&dir)?, &intent.place.1)?;
        }
        Some(_) => return Ok(()),
    }
    let mut state = file.lock();
    state.lose_published_at(&dir, &intent.place.1);
    ns.put_file(batch, &file, &state)
}

/// A link more or less has changed the ctime; content that somebody else changed shows otherwise.
fn follow(ns: &Namespace, state: &mut FileState, target: Published) -> Result<(), NsError> {
    let placed = |(dir, name): &&Place| state.is_placed(dir, name);
    let place = state.names.iter().find(placed);
    let (Some(published), Some((dir, name))) = (state.residency.published, place) else {
        return Ok(());
    };
    let place = (dir.key, name.to_vec());
    if (published.ino, published.btime_ns) == (target.ino, target.btime_ns) {
        let found = found(ns, &place)?;
        state.set_published(Some(published.after_move(found.as_ref())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_kv::memory::Memory;
    use forebay_tiers::PfsTree;
    use forebay_types::{Cred, Ino, Process, TierId};

    use forebay_types::TimeSpec;

    use super::*;
    use crate::NewFile;

    const CRED: Cred = Cred {
        uid: 0,
        gid: 0,
        process: Process::here(0),
        umask: 0,
    };

    fn namespace() -> (tempfile::TempDir, Namespace) {
        let dir = tempfile::tempdir().unwrap();
        let pfs = PfsTree::open(dir.path()).unwrap();
        let (ns, _) = Namespace::open(pfs, Box::new(Memory::new()), [7; 16]).unwrap();
        (dir, ns)
    }

    /// A file that is in the burst buffer only.
    fn create(ns: &Namespace, name: &str) -> Arc<File> {
        let (dir, gid) = ns.check_free(Ino::ROOT, name.as_bytes(), &CRED).unwrap();
        let new = NewFile {
            object: ns.new_object().unwrap(),
            tier: TierId(2),
            perm: 0o644,
            xattrs: Vec::new(),
            cred: CRED,
            writing: false,
            born: TimeSpec::now(),
        };
        ns.create(&dir, name.as_bytes(), gid, &new).unwrap().1
    }

    fn published(ns: &Namespace, name: &str) -> Published {
        let root = ns.open_dir(ns.root()).unwrap();
        (&ns.pfs.stat_now(&root, name.as_bytes()).unwrap()).into()
    }

    /// The same number, another file: it was reused.
    fn reused(published: Published) -> Published {
        Published {
            btime_ns: published.btime_ns + 1,
            ..published
        }
    }

    fn place(ns: &Namespace, name: &str) -> PlaceKey {
        (ns.root().key, name.into())
    }

    #[test]
    fn a_start_unlinks_a_replaced_link_only_as_it_was() {
        let (dir, ns) = namespace();
        let file = create(&ns, "f");
        std::fs::write(dir.path().join("f"), b"older").unwrap();
        let older = published(&ns, "f");
        let written = Published {
            size: older.size + 1,
            ..older
        };
        for (target, goes) in [(reused(older), false), (written, false), (older, true)] {
            file.lock().set_published(Some(target));
            let intent = LinkIntent {
                place: place(&ns, "f"),
                target,
                change: LinkChange::Replaced,
                holder: None,
            };
            settle_link(&ns, &mut Batch::new(), &intent).unwrap();
            assert_eq!(dir.path().join("f").exists(), !goes, "{target:?}");
            let expected = (!goes).then_some(target);
            assert_eq!(file.lock().residency.published, expected);
        }
    }

    #[test]
    fn a_number_that_was_reused_since_the_kill_is_no_name_of_ours() {
        let (dir, ns) = namespace();
        let file = create(&ns, "f");
        for name in ["f", "g"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let [f, g] = ["f", "g"].map(|name| published(&ns, name));
        file.lock().set_published(Some(f));
        let link = LinkIntent {
            place: place(&ns, "g"),
            target: reused(g),
            change: LinkChange::Added,
            holder: Some(place(&ns, "f")),
        };
        settle_link(&ns, &mut Batch::new(), &link).unwrap();
        assert_eq!(file.lock().names.len(), 1, "linked");
        let exchange = ExchangeIntent {
            a: place(&ns, "f"),
            b: place(&ns, "g"),
            on_pfs_a: Some(reused(g)),
            on_pfs_b: Some(reused(f)),
        };
        settle_exchange(&ns, &mut Batch::new(), &exchange).unwrap();
        assert!(ns.root().child(b"g").is_none(), "exchanged");
        let rename = crate::record::RenameIntent {
            from: place(&ns, "f"),
            to: place(&ns, "g"),
            moving: reused(g),
            file: Some(file.object),
            dir: None,
            replaced: None,
        };
        let renamed = crate::record::Intent::Rename(rename);
        crate::ops::settle::settle(&ns, 1, &renamed).unwrap();
        assert!(ns.root().child(b"g").is_none(), "renamed");
    }
}
