//! Names of files that are not whole yet.

use std::io::Write;

use forebay_types::{Generation, ObjectId};

use super::tree::PfsTree;

pub(super) const PREFIX: &[u8] = b".forebay-";
const SUFFIX: &[u8] = b".part";
const VERSION_SUFFIX: &[u8] = b".version";
/// Bytes of the instance that the name shows: enough to tell two instances on one PFS apart.
pub(super) const INSTANCE_BYTES: usize = 4;

impl PfsTree {
    /// `.forebay-<instance>-<object>-<generation>.part`, in hexadecimal: unlike any name that a
    /// program would choose, one per attempt, and known for what it is after a crash.
    pub fn temporary_name(instance: [u8; 16], object: ObjectId, generation: Generation) -> Vec<u8> {
        let mut name = PREFIX.to_vec();
        for byte in &instance[..INSTANCE_BYTES] {
            // Writing to a vector cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        let _ = write!(name, "-{:016x}-{:x}", object.0, generation.0);
        name.extend_from_slice(SUFFIX);
        name
    }

    /// The object that a temporary file is a copy of; `None` for other names.
    pub fn object_of_temporary(name: &[u8]) -> Option<ObjectId> {
        if !PfsTree::is_hidden(name, SUFFIX, true) {
            return None;
        }
        let at = PREFIX.len() + 2 * INSTANCE_BYTES + 1;
        let digits = std::str::from_utf8(name.get(at..at + 16)?).ok()?;
        u64::from_str_radix(digits, 16).ok().map(ObjectId)
    }

    /// `.forebay-<instance>-<number>.version`: the directory of a version that is published as a
    /// whole, until it is.
    pub fn version_name(instance: [u8; 16], number: ObjectId) -> Vec<u8> {
        let mut name = PREFIX.to_vec();
        for byte in &instance[..INSTANCE_BYTES] {
            let _ = write!(name, "{byte:02x}");
        }
        let _ = write!(name, "-{:016x}", number.0);
        name.extend_from_slice(VERSION_SUFFIX);
        name
    }

    /// Whether a name is one of those.
    pub fn is_version(name: &[u8]) -> bool {
        PfsTree::is_hidden(name, VERSION_SUFFIX, false)
    }

    /// Whether a name is one that Forebay hides: of an unfinished copy or an unpublished version.
    pub fn is_temporary(name: &[u8]) -> bool {
        PfsTree::is_hidden(name, SUFFIX, true) || PfsTree::is_version(name)
    }

    fn is_hidden(name: &[u8], suffix: &[u8], with_generation: bool) -> bool {
        let middle = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_suffix(suffix));
        let Some(middle) = middle else { return false };
        let mut parts = middle.split(|&byte| byte == b'-');
        let mut hexadecimal = |lengths: std::ops::RangeInclusive<usize>| {
            parts.next().is_some_and(|part| {
                let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                lengths.contains(&part.len()) && part.iter().all(digit)
            })
        };
        hexadecimal(2 * INSTANCE_BYTES..=2 * INSTANCE_BYTES)
            && hexadecimal(16..=16)
            && (!with_generation || hexadecimal(1..=16))
            && parts.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_recognised_and_nothing_else() {
        let name = PfsTree::temporary_name([0xab; 16], ObjectId(7), Generation(0x12));
        assert_eq!(name, b".forebay-abababab-0000000000000007-12.part");
        assert!(PfsTree::is_temporary(&name));
        assert_eq!(PfsTree::object_of_temporary(&name), Some(ObjectId(7)));
        assert_eq!(PfsTree::object_of_temporary(b"x"), None);
        let version = PfsTree::version_name([0xab; 16], ObjectId(7));
        assert_eq!(version, b".forebay-abababab-0000000000000007.version");
        assert!(PfsTree::is_version(&version) && PfsTree::is_temporary(&version));
        assert!(!PfsTree::is_version(&name));
        assert_eq!(PfsTree::object_of_temporary(&version), None);
        let largest = PfsTree::temporary_name([0; 16], ObjectId(u64::MAX), Generation(u64::MAX));
        assert!(PfsTree::is_temporary(&largest));
        for other in [
            &b".forebay"[..],
            b".forebay-.part",
            b".forebay-abababab-0000000000000007-12",
            b".forebay-ABABABAB-0000000000000007-12.part",
            b".forebay-abababab-0000000000000007-12-3.part",
            b".forebay-abababab-0000000000000007-.part",
            b".forebay-abababab-07-12.part",
            b"x.forebay-abababab-0000000000000007-12.part",
        ] {
            assert!(!PfsTree::is_temporary(other), "{}", other.escape_ascii());
        }
    }
}
