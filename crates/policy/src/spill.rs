//! Where a file goes that its tier has no room for.

use crate::placement::{SPACE_UNIT_BYTES, TierKind, TierSpace};

/// The tier that a file of `bytes`, in the tier with the index `from`, goes on in when that is
/// full; `None`: none will do, it overflows to the PFS.
///
/// A file on flash never goes on in memory: what was fsynced there would not survive a power cut.
pub fn tier_to_grow_in(tiers: &[TierSpace], from: usize, bytes: u64) -> Option<usize> {
    let is_memory = tiers
        .iter()
        .any(|t| t.index == from && t.kind == TierKind::Dram);
    let others = tiers
        .iter()
        .filter(|t| t.index != from && (is_memory || t.kind == TierKind::Ssd));
    // So that it does not have to move again at once.
    most_available(others, bytes.saturating_add(SPACE_UNIT_BYTES))
}

/// The flash directory that a copy of `bytes` is put in by an fsync; `None` where none has room.
pub fn flash_with_room(tiers: &[TierSpace], bytes: u64) -> Option<usize> {
    most_available(tiers.iter().filter(|t| t.kind == TierKind::Ssd), bytes)
}

/// Part of a memory tier that stays free where another node hands a file over to it.
const KEPT_SHARE: u64 = 4;

/// The memory that takes a file of `bytes` that another node's memory has no place for any more;
/// `None` where none has a quarter of itself left then: it may have to give memory back, too.
pub fn memory_with_room(tiers: &[TierSpace], bytes: u64) -> Option<usize> {
    let memory = tiers.iter().filter(|t| t.kind == TierKind::Dram);
    let has_much =
        |t: &&TierSpace| t.available_bytes() >= bytes.saturating_add(t.capacity_bytes / KEPT_SHARE);
    most_available(memory.filter(has_much), bytes)
}

/// The largest flash directory: what is clean in it makes room for a copy.
pub fn largest_flash(tiers: &[TierSpace]) -> Option<&TierSpace> {
    let flash = tiers.iter().filter(|t| t.kind == TierKind::Ssd);
    flash.max_by_key(|t| t.capacity_bytes)
}

/// The flash directory that has `bytes` once what is clean there has left, `clean_bytes` by index;
/// `None` where no eviction would make that much room: then nothing is to be evicted for it.
pub fn flash_with_clean(
    tiers: &[TierSpace],
    clean_bytes: impl Fn(usize) -> u64,
    bytes: u64,
) -> Option<usize> {
    let flash = tiers.iter().filter(|t| t.kind == TierKind::Ssd);
    let could = flash.map(|t| (t.available_bytes().saturating_add(clean_bytes(t.index)), t));
    let most = could.max_by_key(|(could, _)| *could);
    most.filter(|(could, _)| *could >= bytes)
        .map(|(_, t)| t.index)
}

fn most_available<'a>(tiers: impl Iterator<Item = &'a TierSpace>, bytes: u64) -> Option<usize> {
    tiers
        .filter(|t| t.available_bytes() >= bytes)
        .max_by_key(|t| t.available_bytes())
        .map(|t| t.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn tier(index: usize, kind: TierKind, free_mib: u64) -> TierSpace {
        TierSpace {
            index,
            kind,
            capacity_bytes: 1000 * MIB,
            free_bytes: free_mib * MIB,
            reserved_bytes: 0,
        }
    }

    #[test]
    fn a_file_never_leaves_flash_for_memory() {
        let tiers = [
            tier(1, TierKind::Dram, 900),
            tier(2, TierKind::Ssd, 10),
            tier(3, TierKind::Ssd, 100),
        ];
        assert_eq!(tier_to_grow_in(&tiers, 2, 50 * MIB), Some(3));
        assert_eq!(tier_to_grow_in(&tiers, 2, 500 * MIB), None);
        assert_eq!(tier_to_grow_in(&tiers, 1, 50 * MIB), Some(3));
        assert_eq!(
            tier_to_grow_in(&tiers, 1, 97 * MIB),
            None,
            "a unit to spare"
        );
    }

    #[test]
    fn an_fsync_takes_the_flash_with_the_most_room() {
        let tiers = [
            tier(1, TierKind::Dram, 900),
            tier(2, TierKind::Ssd, 10),
            tier(3, TierKind::Ssd, 100),
        ];
        assert_eq!(flash_with_room(&tiers, 100 * MIB), Some(3));
        assert_eq!(flash_with_room(&tiers, 101 * MIB), None);
        let small = TierSpace {
            capacity_bytes: 99 * MIB,
            ..tier(4, TierKind::Ssd, 99)
        };
        let largest = largest_flash(&[tiers[0], small, tiers[1]]).map(|t| t.index);
        assert_eq!(largest, Some(2), "free or not");
        assert_eq!(largest_flash(&tiers[..1]), None);
    }

    #[test]
    fn memory_takes_a_file_over_only_where_much_is_left() {
        let tiers = [
            tier(1, TierKind::Dram, 300),
            tier(2, TierKind::Ssd, 900),
            tier(3, TierKind::Dram, 400),
        ];
        assert_eq!(memory_with_room(&tiers, 150 * MIB), Some(3));
        assert_eq!(memory_with_room(&tiers, 151 * MIB), None);
        assert_eq!(memory_with_room(&tiers[1..2], 1), None, "flash is none");
    }

    #[test]
    fn clean_copies_leave_flash_only_where_that_makes_enough_room() {
        let tiers = [
            tier(1, TierKind::Dram, 900),
            tier(2, TierKind::Ssd, 10),
            tier(3, TierKind::Ssd, 40),
        ];
        let clean = |index| if index == 2 { 50 * MIB } else { 0 };
        assert_eq!(flash_with_clean(&tiers, clean, 60 * MIB), Some(2));
        assert_eq!(flash_with_clean(&tiers, clean, 61 * MIB), None);
        assert_eq!(flash_with_clean(&tiers, |_| 0, 40 * MIB), Some(3));
    }
}
