//! Small files that move together: they share what is paid once per move, its flushes.

/// Larger files move by themselves, bytes: what writing them takes is more than their flushes do.
pub const GROUPED_BYTES_MAX: u64 = 1 << 20;
/// Most files of a group: who wants one of them waits for the flush of all of them.
pub const GROUP_FILES_MAX: usize = 128;
/// Most bytes of a group: so much is in the page cache until its flush.
pub const GROUP_BYTES_MAX: u64 = 32 << 20;

/// How much a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupSize {
    /// Files.
    pub files: usize,
    /// What they occupy together, bytes.
    pub bytes: u64,
}

impl GroupSize {
    /// Whether a file that occupies so many bytes moves in a group at all.
    pub fn is_for(bytes: u64) -> bool {
        bytes <= GROUPED_BYTES_MAX
    }

    /// Whether one more such file goes into this group.
    pub fn has_room(self, bytes: u64) -> bool {
        let within = self.bytes.saturating_add(bytes) <= GROUP_BYTES_MAX;
        GroupSize::is_for(bytes) && self.files < GROUP_FILES_MAX && within
    }

    /// It has one more file.
    #[must_use]
    pub fn with(self, bytes: u64) -> GroupSize {
        GroupSize {
            files: self.files + 1,
            bytes: self.bytes.saturating_add(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_group_is_bounded_and_an_empty_one_takes_any_small_file(
            files in proptest::collection::vec(0u64..2 << 20, 0..400),
        ) {
            let mut group = GroupSize::default();
            for bytes in files {
                if group.has_room(bytes) {
                    group = group.with(bytes);
                } else {
                    let full = group.files == GROUP_FILES_MAX || group.bytes + bytes > GROUP_BYTES_MAX;
                    prop_assert!(full || bytes > GROUPED_BYTES_MAX);
                }
                prop_assert!(group.files <= GROUP_FILES_MAX && group.bytes <= GROUP_BYTES_MAX);
                prop_assert_eq!(GroupSize::default().has_room(bytes), GroupSize::is_for(bytes));
            }
        }
    }
}
