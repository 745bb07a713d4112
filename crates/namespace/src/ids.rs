//! Ids of objects, and which of them have been on record.
//!
//! A new file's record follows its object by some milliseconds, so a start takes an object without
//! a record for a new file. What a move or a copy has left of a file that is gone looks the same,
//! and carries a name as well. A watermark in the store tells one from the other:
//!
//! 1. Each id below the watermark was on record, or given up, before the commit that the watermark
//!    came with: a loss of power, which keeps a prefix of the commits, keeps both or none.
//! 2. The watermark stands still until a start has looked at all objects without a record.
//! 3. In a tier that a start has not looked at, or where something was kept, ids from the watermark
//!    of before up to that start count as never recorded, until a start settles the tier.

use std::collections::{BTreeMap, BTreeSet};

use forebay_kv::{Durability, Store};
use forebay_types::{ObjectId, TierId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::log::{Batch, Log};
use crate::record::{self, RECORDED_BELOW_KEY, UNSETTLED_KEY};
use crate::{Namespace, NsError};

/// Ids are set aside in the store so many at a time.
const AHEAD: u64 = 1 << 20;

/// Ids from the first, below the second.
type Span = (u64, u64);

fn covers(span: Option<&Span>, id: u64) -> bool {
    span.is_some_and(|(from, to)| (*from..*to).contains(&id))
}

/// Where ids below the watermark may stand for files that were never recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Unsettled {
    /// By tier.
    tiers: BTreeMap<u8, Span>,
    /// In any tier: their records were taken away.
    everywhere: Option<Span>,
}

impl Unsettled {
    fn has(&self, tier: TierId, id: u64) -> bool {
        covers(self.tiers.get(&tier.0), id) || covers(self.everywhere.as_ref(), id)
    }

    /// A start has looked at all tiers but `tiers`.
    fn after_start(&self, tiers: &[TierId], watermark: u64, next: u64) -> Unsettled {
        let from = |tier: &TierId| self.tiers.get(&tier.0).map_or(watermark, |span| span.0);
        let tiers: BTreeMap<_, _> = tiers.iter().map(|t| (t.0, (from(t), next))).collect();
        let everywhere = self.everywhere.filter(|_| !tiers.is_empty());
        Unsettled { tiers, everywhere }
    }
}

/// What has been given out.
struct State {
    next: u64,
    /// Given out, and neither recorded nor given up.
    open: BTreeSet<u64>,
    /// Those below it are set aside in the store.
    limit: u64,
    /// The watermark that was written last.
    noted: u64,
    /// A start has settled what there was before.
    settled: bool,
    unsettled: Unsettled,
}

/// Ids that were given out.
pub(crate) struct Ids {
    state: Mutex<State>,
    /// Held by who sets ids aside.
    setting_aside: Mutex<()>,
    /// The watermark that this start has found.
    before: u64,
}

impl Ids {
    /// As they are in the store.
    pub(crate) fn load(store: &dyn Store) -> Result<Ids, NsError> {
        let next = match store.get(record::NEXT_OBJECT_KEY)? {
            Some(bytes) => record::decode(&bytes)?,
            None => 1,
        };
        let before = match store.get(RECORDED_BELOW_KEY)? {
            // What is not understood says nothing of any id.
            Some(bytes) => bytes.try_into().map_or(0, u64::from_be_bytes),
            None => 0,
        };
        let unsettled = match store.get(UNSETTLED_KEY)? {
            Some(bytes) => record::decode(&bytes)?,
            None => Unsettled::default(),
        };
        let state = State {
            next,
            open: BTreeSet::new(),
            limit: next,
            noted: before,
            settled: false,
            unsettled,
        };
        Ok(Ids {
            state: Mutex::new(state),
            setting_aside: Mutex::new(()),
            before,
        })
    }

    /// The watermark, where it has risen since it was written.
    pub(crate) fn to_note(&self) -> Option<u64> {
        let state = self.state.lock();
        let below = state.open.first().copied().unwrap_or(state.next);
        // A start gives ids from the limit on out again.
        let below = below.min(state.limit);
        (state.settled && below > state.noted).then_some(below)
    }

    /// A commit has taken these on record, or off it, and `noted` as the watermark.
    pub(crate) fn committed<'a>(
        &self,
        objects: impl Iterator<Item = &'a ObjectId>,
        noted: Option<u64>,
    ) {
        let mut state = self.state.lock();
        for object in objects {
            state.open.remove(&object.0);
        }
        state.noted = state.noted.max(noted.unwrap_or(0));
    }

    fn give_out(&self, store: &Log) -> Result<ObjectId, NsError> {
        let (id, limit) = {
            let mut state = self.state.lock();
            let id = state.next;
            state.next += 1;
            state.open.insert(id);
            (id, state.limit)
        };
        if id >= limit
            && let Err(error) = self.set_aside(id, store)
        {
            self.give_up(ObjectId(id));
            return Err(error);
        }
        Ok(ObjectId(id))
    }

    fn set_aside(&self, id: u64, store: &Log) -> Result<(), NsError> {
        let _one_at_a_time = self.setting_aside.lock();
        if id < self.state.lock().limit {
            return Ok(());
        }
        let limit = id + AHEAD;
        let mut batch = Batch::new();
        batch.put(record::NEXT_OBJECT_KEY, record::encode(&limit)?);
        // An object on flash may outlive a record that says that its id is taken.
        store.commit(batch, Durability::Synced)?;
        self.state.lock().limit = limit;
        Ok(())
    }

    fn give_up(&self, object: ObjectId) {
        self.state.lock().open.remove(&object.0);
    }
}

impl Namespace {
    /// An object id that has never been used. Until there is a record of it, or it is given up, it
    /// counts as that of a new file.
    pub fn new_object(&self) -> Result<ObjectId, NsError> {
        self.store.ids().give_out(&self.store)
    }

    /// Nothing with this id is to be a file, unless there is a record of it.
    pub fn give_up(&self, object: ObjectId) {
        self.store.ids().give_up(object);
    }

    /// Whether an object that this start has found in a tier was on record once, or given up: the
    /// file is gone, or elsewhere.
    pub fn was_recorded(&self, object: ObjectId, tier: TierId) -> bool {
        let ids = self.store.ids();
        object.0 < ids.before && !ids.state.lock().unsettled.has(tier, object.0)
    }

    /// A start has looked at all objects without a record, but for those of `tiers`, or has kept
    /// what it does not know there. What it has taken over is recorded from here on.
    pub fn end_of_start(&self, tiers: &[TierId]) -> Result<(), NsError> {
        self.save_deferred()?;
        let ids = self.store.ids();
        let (before, after) = {
            let state = ids.state.lock();
            let after = state.unsettled.after_start(tiers, ids.before, state.next);
            (state.unsettled.clone(), after)
        };
        if after != before {
            let mut batch = Batch::new();
            batch.put(UNSETTLED_KEY, record::encode(&after)?);
            self.commit(batch)?;
        }
        let mut state = ids.state.lock();
        (state.unsettled, state.settled) = (after, true);
        Ok(())
    }

    /// The record of an object is taken away, and its object is not looked after yet.
    pub(crate) fn take_for_new(&self, batch: &mut Batch, object: ObjectId) -> Result<(), NsError> {
        let mut state = self.store.ids().state.lock();
        let (from, to) = state.unsettled.everywhere.unwrap_or((object.0, 0));
        let span = (from.min(object.0), to.max(object.0 + 1));
        state.unsettled.everywhere = Some(span);
        batch.put(UNSETTLED_KEY, record::encode(&state.unsettled)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_kv::failing::{Failing, Outcome};
    use forebay_kv::memory::Memory;
    use forebay_tiers::PfsTree;

    use super::*;

    const HERE: TierId = TierId(2);
    const AWAY: TierId = TierId(3);

    /// A tree whose store outlives it.
    struct Lab {
        dir: tempfile::TempDir,
        store: Arc<Memory>,
    }

    impl Lab {
        fn new() -> Lab {
            Lab {
                dir: tempfile::tempdir().expect("directory"),
                store: Arc::default(),
            }
        }

        fn open_over(&self, store: Box<dyn Store>) -> Namespace {
            let pfs = PfsTree::open(self.dir.path()).expect("PFS");
            Namespace::open(pfs, store, [7; 16]).expect("open").0
        }

        /// A start that has not settled anything yet.
        fn open(&self) -> Namespace {
            self.open_over(Box::new(self.store.clone()))
        }

        /// One that could not look at these tiers.
        fn start_without(&self, tiers: &[TierId]) -> Namespace {
            let ns = self.open();
            ns.end_of_start(tiers).expect("settled");
            ns
        }

        /// What the next start says of these.
        fn recorded<const N: usize>(&self, ids: [ObjectId; N]) -> [bool; N] {
            let ns = self.open();
            ids.map(|id| ns.was_recorded(id, HERE))
        }
    }

    fn record(ns: &Namespace, object: ObjectId) -> Result<(), forebay_kv::Error> {
        let mut batch = Batch::new();
        batch.put(record::file_key(object), *b"record");
        batch.records(object);
        ns.store.commit(batch, Durability::Buffered)
    }

    /// The watermark comes with whatever is committed next.
    fn commit_anything(ns: &Namespace) {
        let mut batch = Batch::new();
        batch.put(*b"x/", *b"");
        ns.commit(batch).expect("commit");
    }

    #[test]
    fn an_id_counts_as_recorded_once_all_before_it_are_recorded_or_given_up() {
        let lab = Lab::new();
        let ns = lab.start_without(&[]);
        let ids = [0; 4].map(|_| ns.new_object().expect("id"));
        let [first, second, third, last] = ids;
        record(&ns, second).expect("recorded");
        record(&ns, third).expect("recorded");
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [false; 4]);
        ns.give_up(first);
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [true, true, true, false]);
        record(&ns, last).expect("recorded");
        assert_eq!(lab.recorded(ids), [true, true, true, false]);
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [true; 4]);
    }

    #[test]
    fn a_record_that_could_not_be_written_holds_the_watermark() {
        let lab = Lab::new();
        let store = Arc::new(Failing::new(lab.store.clone()));
        let ns = lab.open_over(Box::new(store.clone()));
        ns.end_of_start(&[]).expect("settled");
        let ids = [0; 2].map(|_| ns.new_object().expect("id"));
        store.fail_nth_commit(1, libc::ENOSPC, Outcome::Lost);
        record(&ns, ids[0]).expect_err("armed");
        assert!(ns.mend(&|_| None).expect("mended"));
        record(&ns, ids[1]).expect("recorded");
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [false; 2]);
        record(&ns, ids[0]).expect("recorded");
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [true; 2]);
    }

    #[test]
    fn nothing_is_settled_before_the_end_of_a_start() {
        let lab = Lab::new();
        let new = lab.start_without(&[]).new_object().expect("id");
        let ns = lab.open();
        commit_anything(&ns);
        assert_eq!(lab.recorded([new]), [false]);
        ns.end_of_start(&[]).expect("settled");
        commit_anything(&ns);
        assert_eq!(lab.recorded([new]), [true]);
    }

    #[test]
    fn what_a_start_could_not_look_at_is_as_new_for_the_one_that_can() {
        let lab = Lab::new();
        let ns = lab.start_without(&[]);
        let [old, new] = [0; 2].map(|_| ns.new_object().expect("id"));
        record(&ns, old).expect("recorded");
        commit_anything(&ns);
        drop(ns);
        for _ in 0..2 {
            let ns = lab.start_without(&[AWAY]);
            let later = ns.new_object().expect("id");
            record(&ns, later).expect("recorded");
            commit_anything(&ns);
            let next = lab.open();
            let known = [old, new].map(|id| next.was_recorded(id, AWAY));
            assert_eq!(known, [true, false]);
            let known = [old, new, later].map(|id| next.was_recorded(id, HERE));
            assert_eq!(known, [true; 3]);
        }
        let ns = lab.start_without(&[]);
        commit_anything(&ns);
        assert!(lab.open().was_recorded(new, AWAY));
    }

    #[test]
    fn what_a_check_has_taken_off_the_record_is_as_new() {
        let lab = Lab::new();
        let ns = lab.start_without(&[]);
        let ids = [0; 3].map(|_| ns.new_object().expect("id"));
        for id in ids {
            record(&ns, id).expect("recorded");
        }
        commit_anything(&ns);
        let key = record::file_key(ids[1]);
        ns.remove_record(&key).expect("removed");
        assert_eq!(lab.recorded(ids), [true, false, true]);
        // The start has kept its object.
        let ns = lab.start_without(&[HERE]);
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [true, false, true]);
        lab.start_without(&[]);
        assert_eq!(lab.recorded(ids), [true; 3]);
    }
}
