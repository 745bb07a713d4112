//! Random operations on a store, against an ordered map.

use std::collections::BTreeMap;

use forebay_kv::{Batch, Durability, Error, Store};
use proptest::prelude::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// Closes a store and opens it again.
pub type Reopen<'a> = &'a mut dyn FnMut(Box<dyn Store>) -> Box<dyn Store>;

/// What a batch expects of a key.
#[derive(Clone, Debug)]
pub enum Expectation {
    /// What it really holds.
    True,
    /// Something that may or may not be so.
    Guess(Option<Vec<u8>>),
}

/// One operation.
#[derive(Clone, Debug)]
pub enum Step {
    Commit {
        expectations: Vec<(Vec<u8>, Expectation)>,
        changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        synced: bool,
    },
    Get(Vec<u8>),
    Scan {
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        limit: usize,
    },
    Sync,
    Reopen,
}

/// Few bytes and short keys, so that operations meet, among them the bytes at which ranges go
/// wrong.
fn bytes(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0, b'a', b'b', 0xff]), len)
}

/// Any operation.
pub fn step() -> impl Strategy<Value = Step> {
    let value = || prop::option::weighted(0.7, bytes(0..3));
    let expectation =
        prop_oneof![4 => Just(Expectation::True), 1 => value().prop_map(Expectation::Guess)];
    let expectations = prop::collection::vec((bytes(1..4), expectation), 0..3);
    let changes = prop::collection::vec((bytes(1..4), value()), 0..12);
    prop_oneof![
        8 => (expectations, changes, prop::bool::weighted(0.1))
            .prop_map(|(expectations, changes, synced)| Step::Commit { expectations, changes, synced }),
        4 => bytes(1..4).prop_map(Step::Get),
        4 => (bytes(0..3), prop::option::of(bytes(0..4)), 1..20_usize)
            .prop_map(|(prefix, after, limit)| Step::Scan { prefix, after, limit }),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

fn commit(
    store: &dyn Store,
    model: &mut Model,
    expectations: &[(Vec<u8>, Expectation)],
    changes: &[(Vec<u8>, Option<Vec<u8>>)],
    durability: Durability,
) -> Result<(), TestCaseError> {
    let mut batch = Batch::new();
    let mut holds = true;
    for (key, expectation) in expectations {
        let held = model.get(key);
        let expected = match expectation {
            Expectation::True => held,
            Expectation::Guess(guess) => guess.as_ref(),
        };
        holds &= held == expected;
        batch.expect(key, expected.map(Vec::as_slice));
    }
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key.as_slice(), value.as_slice()),
            None => batch.delete(key.as_slice()),
        };
    }
    let result = store.commit(batch, durability);
    if !holds {
        prop_assert!(matches!(result, Err(Error::Conflict)));
        return Ok(());
    }
    prop_assert!(result.is_ok(), "{:?}", result);
    for (key, value) in changes {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
    Ok(())
}

fn scan(
    store: &dyn Store,
    model: &Model,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<(), TestCaseError> {
    let mut shown = Vec::new();
    let result = store.scan(prefix, after, &mut |key, value| {
        shown.push((key.to_vec(), value.to_vec()));
        shown.len() < limit
    });
    prop_assert!(result.is_ok(), "{:?}", result);
    let in_range =
        |key: &Vec<u8>| key.starts_with(prefix) && after.is_none_or(|after| key.as_slice() > after);
    let expected: Vec<_> = model
        .iter()
        .filter(|(key, _)| in_range(key))
        .take(limit)
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    prop_assert_eq!(shown, expected);
    Ok(())
}

/// Runs the steps on the store and on a map, and compares.
pub fn check(
    steps: &[Step],
    mut store: Box<dyn Store>,
    reopen: Reopen<'_>,
) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Commit {
                expectations,
                changes,
                synced,
            } => {
                let durability = if *synced {
                    Durability::Synced
                } else {
                    Durability::Buffered
                };
                commit(&*store, &mut model, expectations, changes, durability)?;
            }
            Step::Get(key) => prop_assert_eq!(store.get(key).ok(), Some(model.get(key).cloned())),
            Step::Scan {
                prefix,
                after,
                limit,
            } => scan(&*store, &model, prefix, after.as_deref(), *limit)?,
            Step::Sync => prop_assert!(store.sync().is_ok()),
            Step::Reopen => store = reopen(store),
        }
    }
    scan(&*store, &model, b"", None, usize::MAX)
}
