//! New ids of objects, and what a start and a check say of them: see [`Ids`].

use forebay_kv::{Durability, Store};
use forebay_types::{ObjectId, TierId};

use crate::ids::{Ids, RECORDED_BELOW_KEY, Unsettled};
use crate::log::Batch;
use crate::record;
use crate::{Namespace, NsError};

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
        let unsettled = match store.get(record::UNSETTLED_KEY)? {
            Some(bytes) => record::decode(&bytes).unwrap_or_else(|error| {
                tracing::warn!("what starts have not settled: {error}: all counts as such");
                Unsettled::all(next)
            }),
            None => Unsettled::default(),
        };
        Ok(Ids::new(next, before, unsettled))
    }
}

impl Namespace {
    /// An object id that has never been used. Until there is a record of it, or it is given up, it
    /// counts as that of a new file.
    pub fn new_object(&self) -> Result<ObjectId, NsError> {
        self.store.ids().give_out(|limit| {
            let mut batch = Batch::new();
            batch.put(record::NEXT_OBJECT_KEY, record::encode(&limit)?);
            // An object on flash may outlive a record that says that its id is taken.
            Ok(self.store.commit(batch, Durability::Synced)?)
        })
    }

    /// An id that no object gets.
    pub(crate) fn id_of_name(&self) -> Result<ObjectId, NsError> {
        self.new_object().inspect(|id| self.give_up(*id))
    }

    /// Nothing with this id is to be a file, unless there is a record of it.
    pub fn give_up(&self, object: ObjectId) {
        self.store.ids().give_up(object);
    }

    /// Whether an object that this start has found in a tier was on record once, or given up, and
    /// is not now: the file is gone, or elsewhere.
    pub fn has_lost_its_record(&self, object: ObjectId, tier: TierId) -> bool {
        // A store that does not answer is no reason to call a file gone.
        let is_nameless = || !matches!(self.store.get(&record::nameless_key(object)), Ok(None));
        self.store.ids().was_recorded(object, tier) && !self.is_recorded(object) && !is_nameless()
    }

    /// The object that a record which does not decode is of; `None`: no object depends on it.
    pub fn object_of_record(key: &[u8]) -> Option<ObjectId> {
        let prefixes = [record::FILE_PREFIX, record::NAMELESS_PREFIX];
        let is_files = prefixes.iter().any(|prefix| key.starts_with(prefix));
        is_files.then(|| record::object_of_key(key)).flatten()
    }

    /// A start has looked at all objects without a record, but for those of `tiers`, and has `kept`
    /// what it does not know. What it has taken over is recorded from here on.
    pub fn end_of_start(
        &self,
        tiers: &[TierId],
        kept: &[(TierId, ObjectId)],
    ) -> Result<(), NsError> {
        self.save_deferred()?;
        let (before, after) = self.store.ids().after_start(tiers, kept);
        if after != before {
            let mut batch = Batch::new();
            batch.put(record::UNSETTLED_KEY, record::encode(&after)?);
            self.commit(batch)?;
        }
        self.store.ids().settle(after);
        Ok(())
    }

    /// The record of an object is taken away, and the object is not looked after yet.
    pub(crate) fn take_for_new(&self, batch: &mut Batch, object: ObjectId) -> Result<(), NsError> {
        let unsettled = self.store.ids().take_for_new(object);
        batch.put(record::UNSETTLED_KEY, record::encode(&unsettled)?);
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
            ns.end_of_start(tiers, &[]).expect("settled");
            ns
        }

        /// What the next start says of these.
        fn recorded<const N: usize>(&self, ids: [ObjectId; N]) -> [bool; N] {
            recorded(&self.open(), ids, HERE)
        }
    }

    fn recorded<const N: usize>(ns: &Namespace, ids: [ObjectId; N], tier: TierId) -> [bool; N] {
        ids.map(|id| ns.store.ids().was_recorded(id, tier))
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
        ns.end_of_start(&[], &[]).expect("settled");
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
        ns.end_of_start(&[], &[]).expect("settled");
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
            assert_eq!(recorded(&next, [old, new], AWAY), [true, false]);
            assert_eq!(recorded(&next, [old, new, later], HERE), [true; 3]);
        }
        let ns = lab.start_without(&[]);
        commit_anything(&ns);
        assert_eq!(recorded(&lab.open(), [new], AWAY), [true]);
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
        // The start has kept its object, and not looked at another tier, as most starts.
        let ns = lab.open();
        ns.end_of_start(&[AWAY], &[(HERE, ids[1])])
            .expect("settled");
        commit_anything(&ns);
        assert_eq!(lab.recorded(ids), [true, false, true]);
        lab.start_without(&[AWAY]);
        assert_eq!(lab.recorded(ids), [true; 3]);
        assert_eq!(recorded(&lab.open(), ids, AWAY), [true, false, false]);
    }

    #[test]
    fn what_has_a_record_has_not_lost_it() {
        let lab = Lab::new();
        let ns = lab.start_without(&[]);
        let ids = [0; 2].map(|_| ns.new_object().expect("id"));
        for id in ids {
            record(&ns, id).expect("recorded");
        }
        ns.remove_file_record(ids[0]).expect("removed");
        let pfs = PfsTree::open(lab.dir.path()).expect("PFS");
        let (ns, loaded) =
            Namespace::open(pfs, Box::new(lab.store.clone()), [7; 16]).expect("open");
        assert_eq!(
            ids.map(|id| ns.has_lost_its_record(id, HERE)),
            [true, false]
        );
        let unreadable = loaded.unreadable.iter();
        let objects: Vec<_> = unreadable
            .filter_map(|key| Namespace::object_of_record(key))
            .collect();
        assert_eq!(objects, [ids[1]]);
    }

    #[test]
    fn what_is_not_settled_is_all_where_that_is_unreadable() {
        let lab = Lab::new();
        let ns = lab.start_without(&[]);
        let id = ns.new_object().expect("id");
        record(&ns, id).expect("recorded");
        let mut batch = Batch::new();
        batch.put(record::UNSETTLED_KEY, *b"\xff\xff");
        ns.commit(batch).expect("commit");
        assert_eq!(lab.recorded([id]), [false]);
        lab.start_without(&[]);
        assert_eq!(lab.recorded([id]), [true]);
    }
}
