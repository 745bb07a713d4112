//! Changes of names that a crash interrupted.

use std::sync::Arc;

use forebay_types::{ObjectId, failpoint};

use crate::log::Batch;
use crate::ops::settle_links::{found, settle_exchange, settle_link};
use crate::record::{self, DirKey, FileRecord, Intent, RenameIntent};
use crate::tree::Dir;
use crate::{Namespace, NsError, PendingChange};

impl Namespace {
    /// Finishes or takes back a change of names that a crash interrupted: the PFS tells which.
    /// Where that gives an error, the change stays as it is, and nothing may be served: records
    /// that do not agree with the PFS would make one's own files look like an outsider's.
    pub fn settle_change(&self, pending: PendingChange) -> Result<(), NsError> {
        let settled = settle(self, pending.sequence, &pending.intent);
        settled.map_err(|error| match error {
            NsError::Errno(_) | NsError::Pfs { .. } => NsError::Unsettled {
                change: self.describe(&pending.intent),
                source: Box::new(error),
            },
            error => error,
        })
    }

    fn describe(&self, intent: &Intent) -> String {
        let path = |place: &record::PlaceKey| match self.known_dir(place.0) {
            Some(dir) => dir.path_of(&place.1).escape_ascii().to_string(),
            None => place.1.escape_ascii().to_string(),
        };
        match intent {
            Intent::Rename(one) => format!("rename of {} to {}", path(&one.from), path(&one.to)),
            Intent::Exchange(one) => format!("exchange of {} and {}", path(&one.a), path(&one.b)),
            Intent::Link(one) => format!("change of the link {}", path(&one.place)),
        }
    }
}

/// After a crash: the records follow what the PFS shows.
pub(super) fn settle(ns: &Namespace, sequence: u64, intent: &Intent) -> Result<(), NsError> {
    let mut batch = Batch::new();
    batch.delete(record::intent_key(sequence));
    match intent {
        Intent::Rename(intent) => settle_rename(ns, &mut batch, intent)?,
        Intent::Exchange(intent) => settle_exchange(ns, &mut batch, intent)?,
        Intent::Link(intent) => settle_link(ns, &mut batch, intent)?,
    }
    failpoint::hit(failpoint::Point::SettleLooked);
    ns.commit(batch)?;
    failpoint::hit(failpoint::Point::SettleRecord);
    Ok(())
}

/// If the PFS shows the moved thing under its new name, the records follow.
fn settle_rename(ns: &Namespace, batch: &mut Batch, intent: &RenameIntent) -> Result<(), NsError> {
    let found = found(ns, &intent.to)?;
    if found.is_some_and(|stat| intent.moving.is_same_file(&stat)) {
        // First, while the name still stands for it.
        if let Some(object) = intent.replaced {
            settle_replaced(ns, batch, object, intent)?;
        }
        if let Some(object) = intent.file {
            settle_file(ns, batch, object, intent)?;
        }
        if let (Some(key), Some(parent)) = (intent.dir, ns.known_dir(intent.to.0)) {
            settle_dir(ns, batch, key, &parent, &intent.to.1)?;
        }
    }
    Ok(())
}

fn settle_file(
    ns: &Namespace,
    batch: &mut Batch,
    object: ObjectId,
    intent: &RenameIntent,
) -> Result<(), NsError> {
    let (Some(from), Some(to)) = (ns.known_dir(intent.from.0), ns.known_dir(intent.to.0)) else {
        return Ok(());
    };
    let Some(file) = from.child(&intent.from.1).filter(|f| f.object == object) else {
        return Ok(());
    };
    let old = (from.clone(), intent.from.1.as_slice().into());
    let new = (to.clone(), intent.to.1.as_slice().into());
    let handle = ns.open_dir(&to)?;
    let published = file.lock().expected_at(&from, &intent.from.1);
    let published = published.map(|p| ns.follow(p, &handle, &intent.to.1));
    let mut state = file.lock();
    state.rename_name(&old, new);
    if published.is_some() && state.is_placed(&to, &intent.to.1) {
        state.set_published(published);
    }
    ns.put_dirs(batch, &to)?;
    ns.put_file(batch, &file, &state)?;
    drop(state);
    from.lock().remove(&*intent.from.1);
    to.lock().insert(intent.to.1.clone().into(), file);
    Ok(())
}

fn settle_dir(
    ns: &Namespace,
    batch: &mut Batch,
    key: DirKey,
    parent: &Arc<Dir>,
    name: &[u8],
) -> Result<(), NsError> {
    if let Some(dir) = ns.known_dir(key) {
        dir.move_to(parent.clone(), name);
        dir.forget_handle();
        ns.put_dir(batch, &dir)?;
    }
    Ok(())
}

fn settle_replaced(
    ns: &Namespace,
    batch: &mut Batch,
    object: ObjectId,
    intent: &RenameIntent,
) -> Result<(), NsError> {
    let Some(bytes) = ns.store.get(&record::file_key(object))? else {
        return Ok(());
    };
    let old: FileRecord = record::decode(&bytes)?;
    let known = ns.known_dir(intent.to.0);
    let file = known
        .as_ref()
        .and_then(|dir| dir.child(&intent.to.1))
        .filter(|f| f.object == object);
    if let (Some(dir), Some(file), true) = (&known, &file, old.names.len() > 1) {
        // It lives on under its other names.
        let mut state = file.lock();
        state.drop_name(dir, &intent.to.1);
        ns.follow_links(&mut state);
        ns.put_file(batch, file, &state)?;
        drop(state);
        dir.lock().remove(&*intent.to.1);
        return Ok(());
    }
    if let Some(file) = &file {
        // The lives that had it open are on record since the intent is.
        ns.put_nameless(batch, file, &file.lock())?;
    }
    let shadow = old.residency.shadow.map(|(tier, _)| tier);
    let tiers = [Some(old.residency.tier), shadow];
    batch.delete(record::file_key(object));
    batch.delete(record::sums_key(object));
    batch.put(record::garbage_key(object), record::encode(&tiers)?);
    ns.add_garbage(crate::Garbage { object, tiers });
    if let Some(dir) = ns.known_dir(intent.to.0) {
        let mut children = dir.lock();
        if children
            .get(&*intent.to.1)
            .is_some_and(|f| f.object == object)
            && let Some(file) = children.remove(&*intent.to.1)
        {
            file.lock().unlink();
        }
    }
    Ok(())
}
