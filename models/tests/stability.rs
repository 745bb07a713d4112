//! A record that is called stable would survive a loss of power, in every order of commits and
//! flushes.

mod sync {
    pub(crate) use loom::sync::atomic::AtomicU64;
    pub(crate) use std::sync::atomic::Ordering;

    /// With the face of the product's mutex.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no thread has died")
        }
    }
}

#[path = "../../crates/namespace/src/stability.rs"]
#[expect(dead_code, reason = "not all of it is modelled")]
mod stability;

use forebay_types::ObjectId;
use loom::sync::{Arc, Mutex};
use loom::thread;
use stability::Stability;

/// With more, an hour is not enough.
const PREEMPTIONS_MAX: usize = 3;
const A: ObjectId = ObjectId(1);
const B: ObjectId = ObjectId(2);

/// A store, of which a loss of power keeps what was committed before the last flush began.
#[derive(Default)]
struct Store {
    /// Records in the order of their commits, and how many of them survive.
    kept: Mutex<(Vec<ObjectId>, usize)>,
    stability: Stability,
}

impl Store {
    fn commit(&self, file: ObjectId, synced: bool) {
        let before = self.stability.now();
        {
            let mut kept = self.kept.lock().expect("whole");
            kept.0.push(file);
        }
        if synced {
            self.flush();
        }
        self.stability.note(vec![file], synced.then_some(before));
    }

    fn sync(&self) {
        let before = self.stability.now();
        self.flush();
        self.stability.flushed(before);
    }

    fn flush(&self) {
        let mut kept = self.kept.lock().expect("whole");
        kept.1 = kept.0.len();
    }

    /// Asked by a thread whose own commit of this file has returned.
    fn check(&self, file: ObjectId) {
        if !self.stability.is_stable(file) {
            return;
        }
        let kept = self.kept.lock().expect("whole");
        let last = kept.0.iter().rposition(|one| *one == file);
        assert!(
            last.is_some_and(|at| at < kept.1),
            "{file:?} is called stable: {kept:?}"
        );
    }
}

fn model(acts: &'static [fn(&Store)], after: fn(&Store)) {
    let mut orders = loom::model::Builder::new();
    // The scheduler takes the processor from a thread that could go on so often at most.
    orders.preemption_bound = Some(PREEMPTIONS_MAX);
    orders.check(move || {
        let store = Arc::new(Store::default());
        let threads: Vec<_> = acts
            .iter()
            .map(|act| {
                let store = store.clone();
                thread::spawn(move || act(&store))
            })
            .collect();
        for one in threads {
            one.join().expect("no thread dies");
        }
        after(&store);
    });
}

#[test]
fn a_record_beside_another_that_is_flushed() {
    model(
        &[
            |store| {
                store.commit(A, false);
                store.check(A);
            },
            |store| store.commit(B, true),
        ],
        |store| {
            store.check(A);
            store.check(B);
            assert!(store.stability.is_stable(B), "it was flushed itself");
        },
    );
}

#[test]
fn a_record_beside_a_flush_of_all() {
    model(
        &[
            |store| {
                store.commit(A, false);
                store.check(A);
            },
            |store| store.sync(),
            |store| store.commit(B, false),
        ],
        |store| {
            store.check(A);
            store.check(B);
            store.sync();
            assert!(store.stability.is_stable(A) && store.stability.is_stable(B));
        },
    );
}

#[test]
fn two_records_of_one_file_of_which_one_is_flushed() {
    model(
        &[
            |store| store.commit(A, true),
            |store| store.commit(A, false),
        ],
        |store| store.check(A),
    );
}
