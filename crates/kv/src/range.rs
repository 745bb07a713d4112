use std::ops::Bound;

type Keys = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The range of keys that have `prefix` and come strictly after `after`, or `None` if there can be
/// none.
pub(crate) fn bounds(prefix: &[u8], after: Option<&[u8]>) -> Option<Keys> {
    let end = match end_of_prefix(prefix) {
        Some(end) => Bound::Excluded(end),
        None => Bound::Unbounded,
    };
    let start = match after {
        // `after` sorts before every key with the prefix, or is the prefix itself without being a
        // key past it.
        Some(after) if after >= prefix => Bound::Excluded(after.to_vec()),
        _ => Bound::Included(prefix.to_vec()),
    };
    // An empty range is not merely empty but a panic to some ordered maps.
    if let (Bound::Excluded(start), Bound::Excluded(end)) = (&start, &end)
        && start >= end
    {
        return None;
    }
    Some((start, end))
}

/// The smallest byte string above every one that has `prefix`; `None` if there is no such string.
fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_carries_over_ff() {
        assert_eq!(end_of_prefix(b"a"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"\xff"), None);
        assert_eq!(end_of_prefix(b""), None);
    }

    #[test]
    fn after_outside_the_prefix_means_all_or_nothing() {
        assert_eq!(
            bounds(b"b", Some(b"a")),
            Some((
                Bound::Included(b"b".to_vec()),
                Bound::Excluded(b"c".to_vec())
            ))
        );
        assert_eq!(bounds(b"b", Some(b"c")), None);
        assert_eq!(bounds(b"b", Some(b"d")), None);
    }
}
