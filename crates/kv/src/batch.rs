use crate::{Error, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Part};

/// A key with what it holds, or `None` where it is (or shall be) absent.
pub type Entry = (Vec<u8>, Option<Vec<u8>>);

/// A set of changes applied all or none, if every expectation holds.
///
/// All expectations are judged on the store as it was before the batch, whatever the order of the
/// calls. Where a batch changes the same key more than once, the last change counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) expectations: Vec<Entry>,
    pub(crate) ops: Vec<Entry>,
}

impl Batch {
    /// A batch that expects and changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the batch only if `key` holds exactly `value`, or is absent if `value` is `None`.
    pub fn expect(&mut self, key: &[u8], value: Option<&[u8]>) -> &mut Self {
        self.expectations
            .push((key.to_vec(), value.map(<[u8]>::to_vec)));
        self
    }

    /// Sets `key` to `value`, whether it was there or not.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> &mut Self {
        self.ops.push((key.into(), Some(value.into())));
        self
    }

    /// Removes `key`; removing an absent key is no error.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) -> &mut Self {
        self.ops.push((key.into(), None));
        self
    }

    /// True if the batch neither expects nor changes anything.
    pub fn is_empty(&self) -> bool {
        self.expectations.is_empty() && self.ops.is_empty()
    }

    /// The expectations, and the changes in the order they were asked for; for engines outside of
    /// this crate.
    pub fn into_parts(self) -> (Vec<Entry>, Vec<Entry>) {
        (self.expectations, self.ops)
    }

    /// Checks every limit, so that each engine refuses the same batches before it touches anything.
    pub(crate) fn check_limits(&self) -> Result<(), Error> {
        let mut batch_bytes = 0;
        for (key, value) in self.expectations.iter().chain(&self.ops) {
            check_key(key)?;
            let value_bytes = value.as_ref().map_or(0, Vec::len);
            check_size(Part::Value, value_bytes, MAX_VALUE_BYTES)?;
            batch_bytes += key.len() + value_bytes;
        }
        check_size(Part::Batch, batch_bytes, MAX_BATCH_BYTES)
    }

    /// Leaves one change per key, the last. Engines that stamp a whole batch with one version
    /// cannot order two changes of one key within it.
    pub(crate) fn keep_last_change_per_key(&mut self) {
        // Nearly every batch changes two to four keys: comparing pairs is cheaper there than
        // sorting.
        const PAIRWISE_MAX_OPS: usize = 8;
        if self.ops.len() <= PAIRWISE_MAX_OPS {
            let mut index = 0;
            while index < self.ops.len() {
                if self.ops[index + 1..]
                    .iter()
                    .any(|(later, _)| *later == self.ops[index].0)
                {
                    self.ops.remove(index);
                } else {
                    index += 1;
                }
            }
            return;
        }
        // Reversed, the stable sort puts the last change of a key before its earlier ones, and
        // dedup keeps the first.
        self.ops.reverse();
        self.ops.sort_by(|a, b| a.0.cmp(&b.0));
        self.ops.dedup_by(|later, first| later.0 == first.0);
    }
}

/// Checks the limits of a key.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::EmptyKey);
    }
    check_size(Part::Key, key.len(), MAX_KEY_BYTES)
}

fn check_size(part: Part, len_bytes: usize, limit_bytes: usize) -> Result<(), Error> {
    if len_bytes > limit_bytes {
        return Err(Error::TooLarge {
            part,
            len_bytes,
            limit_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_a_key_counts_in_short_and_long_batches() {
        for others in [0u8, 20] {
            let mut batch = Batch::new();
            batch
                .put("k", "1")
                .delete("k")
                .put("l", "2")
                .put("k", "3")
                .delete("l");
            for other in 0..others {
                batch.put(vec![other], "x");
            }
            batch.keep_last_change_per_key();
            assert_eq!(batch.ops.len(), 2 + usize::from(others));
            assert!(batch.ops.contains(&(b"k".to_vec(), Some(b"3".to_vec()))));
            assert!(batch.ops.contains(&(b"l".to_vec(), None)));
        }
    }

    #[test]
    fn an_expectation_alone_makes_a_batch_not_empty() {
        let mut batch = Batch::new();
        assert!(batch.is_empty());
        batch.expect(b"k", None);
        assert!(!batch.is_empty());
    }
}
