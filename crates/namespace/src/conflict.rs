//! Two versions of a file, of which neither is written over: what is said of them, and what the
//! second is called.

use forebay_types::{TimeSpec, limits};

/// What makes a name one of a version put beside another.
pub(crate) const CONFLICT_INFIX: &str = ".forebay-conflict-";
/// Names that are tried for one conflict: so many can arise in one second.
const CONFLICT_NAMES_MAX: u32 = 1000;

/// Why two versions of a file stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Changed or replaced on the PFS while a newer version was in the burst buffer.
    Changed,
    /// Removed there, or renamed, meanwhile.
    Removed,
    /// The name of a new file was taken there.
    Taken,
}

impl ConflictKind {
    /// For a person, after the path.
    pub fn reason(self) -> &'static str {
        match self {
            ConflictKind::Changed => {
                "changed on the PFS while a newer version was in the burst buffer"
            }
            ConflictKind::Removed => {
                "removed or renamed on the PFS while a newer version was in the burst buffer"
            }
            ConflictKind::Taken => {
                "made on the PFS while a new file of this name was in the burst buffer"
            }
        }
    }
}

/// A conflict that was found, and where the second version is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Path from the root of the mount.
    pub path: Vec<u8>,
    /// Name beside it of the other version.
    pub kept_as: Vec<u8>,
    /// The version beside it is the outsider's; else it is ours.
    pub theirs: bool,
    /// What happened.
    pub kind: ConflictKind,
}

/// Names for what is put beside `name` now, to be tried in turn.
pub(crate) fn conflict_names(name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let stamp = TimeSpec::now().sec;
    (0..CONFLICT_NAMES_MAX).map(move |attempt| conflict_name(name, stamp, attempt))
}

fn conflict_name(name: &[u8], stamp: i64, attempt: u32) -> Vec<u8> {
    let suffix = match attempt {
        0 => format!("{CONFLICT_INFIX}{stamp}"),
        n => format!("{CONFLICT_INFIX}{stamp}-{n}"),
    };
    let mut beside = name.to_vec();
    beside.truncate(limits::NAME_BYTES_MAX - suffix.len());
    beside.extend_from_slice(suffix.as_bytes());
    beside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_conflicts_fit_and_differ() {
        assert_eq!(conflict_name(b"f", 7, 0), b"f.forebay-conflict-7");
        assert_eq!(conflict_name(b"f", 7, 2), b"f.forebay-conflict-7-2");
        let long = conflict_name(&[b'x'; 255], i64::MAX, 999);
        assert_eq!(long.len(), 255);
        assert!(long.ends_with(b"-999"));
    }
}
