//! Many batches as one group.

use std::collections::{BTreeMap, HashMap};

use crate::{Batch, Entry};

/// What a server is asked to do in one step: all changes, if all checks hold.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Keys with what they must hold before.
    pub(crate) checks: Vec<Entry>,
    /// One change for each key, in the order of the keys.
    pub(crate) changes: Vec<Entry>,
}

/// A plan of some batches, and which of them it leaves out because an expectation fails.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// In the order of the batches.
    pub(crate) takes_part: Vec<bool>,
}

/// What keys of expectations held before the group.
pub(crate) type Held = HashMap<Vec<u8>, Option<Vec<u8>>>;

impl Plan {
    pub(crate) fn bytes(&self) -> usize {
        let entries = self.checks.iter().chain(&self.changes);
        entries.map(bytes_of).sum()
    }

    pub(crate) fn entries(&self) -> usize {
        self.checks.len().max(self.changes.len())
    }
}

/// Bytes of a key and what it holds.
pub(crate) fn bytes_of((key, value): &Entry) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len)
}

/// Puts batches into one plan that leaves the judgement of their expectations to the server, but
/// for keys that an earlier batch of the group changes. `None` if the server could not judge: two
/// batches expect different things of one key.
pub(crate) fn optimistic(batches: &[Batch]) -> Option<Planned> {
    let mut changes: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
    let mut checks: HashMap<&[u8], Option<&[u8]>> = HashMap::new();
    let mut takes_part = Vec::with_capacity(batches.len());
    for batch in batches {
        let fails = batch.expectations.iter().any(|(key, expected)| {
            let changed = changes.get(&**key);
            changed.is_some_and(|held| *held != expected.as_deref())
        });
        takes_part.push(!fails);
        if fails {
            continue;
        }
        for (key, expected) in &batch.expectations {
            if changes.contains_key(&**key) {
                continue;
            }
            let earlier = checks.insert(key, expected.as_deref());
            if earlier.is_some_and(|earlier| earlier != expected.as_deref()) {
                return None;
            }
        }
        changes.extend(
            batch
                .ops
                .iter()
                .map(|(key, value)| (&**key, value.as_deref())),
        );
    }
    Some(Planned {
        plan: Plan {
            checks: checks.into_iter().map(own).collect(),
            changes: changes.into_iter().map(own).collect(),
        },
        takes_part,
    })
}

/// Judges every expectation here, by what the keys held before the group. Nobody but the caller
/// can change them meanwhile, so the plan needs no checks.
pub(crate) fn judged(batches: &[Batch], held: &Held) -> Planned {
    let mut changes: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
    let mut takes_part = Vec::with_capacity(batches.len());
    for batch in batches {
        let holds = batch.expectations.iter().all(|(key, expected)| {
            let before = || held.get(key).and_then(Option::as_deref);
            changes.get(&**key).copied().unwrap_or_else(before) == expected.as_deref()
        });
        takes_part.push(holds);
        if holds {
            changes.extend(
                batch
                    .ops
                    .iter()
                    .map(|(key, value)| (&**key, value.as_deref())),
            );
        }
    }
    Planned {
        plan: Plan {
            checks: Vec::new(),
            changes: changes.into_iter().map(own).collect(),
        },
        takes_part,
    }
}

fn own((key, value): (&[u8], Option<&[u8]>)) -> Entry {
    (key.to_vec(), value.map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(expected: &[(&str, Option<&str>)], changes: &[(&str, Option<&str>)]) -> Batch {
        let mut batch = Batch::new();
        for (key, value) in expected {
            batch.expect(key.as_bytes(), value.map(str::as_bytes));
        }
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(*key, *value),
                None => batch.delete(*key),
            };
        }
        batch
    }

    fn entry(key: &str, value: Option<&str>) -> Entry {
        (key.into(), value.map(Into::into))
    }

    #[test]
    fn what_an_earlier_batch_changes_is_judged_here_and_the_rest_by_the_server() {
        let batches = [
            batch(&[("a", None)], &[("a", Some("1")), ("b", None)]),
            batch(&[("a", Some("1"))], &[("a", Some("2"))]),
            batch(&[("a", Some("1")), ("z", None)], &[("z", Some("x"))]),
        ];
        let planned = optimistic(&batches).expect("one plan");
        assert_eq!(planned.takes_part, [true, true, false]);
        assert_eq!(planned.plan.checks, [entry("a", None)]);
        let changes = [entry("a", Some("2")), entry("b", None)];
        assert_eq!(planned.plan.changes, changes);
        assert_eq!((planned.plan.entries(), planned.plan.bytes()), (2, 4));
    }

    #[test]
    fn batches_that_contradict_each_other_are_judged_here() {
        let batches = [
            batch(&[("a", None)], &[("b", Some("1"))]),
            batch(&[("a", Some("x"))], &[("c", Some("1"))]),
            batch(&[("b", None)], &[("d", Some("1"))]),
        ];
        assert!(optimistic(&batches).is_none());
        let held = Held::from([("a".into(), Some("x".into()))]);
        let planned = judged(&batches, &held);
        assert_eq!(planned.takes_part, [false, true, true]);
        let changes = [entry("c", Some("1")), entry("d", Some("1"))];
        assert_eq!(planned.plan.changes, changes);
        assert!(planned.plan.checks.is_empty());
    }
}
