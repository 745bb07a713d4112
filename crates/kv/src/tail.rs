//! What was committed since the last flush that succeeded.

use std::collections::VecDeque;

use fjall::Slice;

/// A key and what it holds now, or `None` where it is absent.
pub(crate) type Change = (Slice, Option<Slice>);

/// Changes that storage may not have yet. Keys and values are shared with the engine, so that this
/// costs their handles.
///
/// 1. `kept[i]` is number `first + i` since the store was opened, in the order in which they took
///    effect.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    kept: VecDeque<Change>,
    first: u64,
    bytes: u64,
}

impl Tail {
    /// Number of the next change.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// These changes took effect.
    pub(crate) fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.bytes += bytes_of(&change);
            self.kept.push_back(change);
        }
    }

    /// All before number `end` are on stable storage.
    pub(crate) fn forget(&mut self, end: u64) {
        while self.first < end
            && let Some(change) = self.kept.pop_front()
        {
            self.bytes -= bytes_of(&change);
            self.first += 1;
        }
        if self.kept.is_empty() {
            // A burst shall not be remembered for ever.
            self.kept.shrink_to(1024);
        }
    }

    /// Whether a change of `key` took effect at or after number `from`.
    pub(crate) fn has_after(&self, key: &[u8], from: u64) -> bool {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.kept.iter().skip(skip).any(|(k, _)| &**k == key)
    }

    /// In the order in which they took effect.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Change> {
        self.kept.iter()
    }
}

fn bytes_of((key, value): &Change) -> u64 {
    (key.len() + value.as_ref().map_or(0, |value| value.len())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str) -> Change {
        (Slice::from(key), Some(Slice::from("value")))
    }

    #[test]
    fn what_was_flushed_is_forgotten_and_the_rest_kept_in_order() {
        let mut tail = Tail::default();
        tail.extend([change("a"), change("b")]);
        let end = tail.end();
        tail.extend([change("c"), change("a")]);
        assert!(tail.has_after(b"a", end) && !tail.has_after(b"b", end));
        tail.forget(end);
        let left: Vec<_> = tail.iter().map(|(key, _)| key.to_vec()).collect();
        assert_eq!(left, [b"c", b"a"]);
        assert_eq!((tail.bytes(), tail.end()), (12, 4));
        assert!(tail.has_after(b"c", 0) && !tail.has_after(b"c", 3));
        tail.forget(9);
        assert_eq!((tail.bytes(), tail.end()), (0, 4));
    }
}
