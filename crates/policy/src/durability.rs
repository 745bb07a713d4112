//! What a completed fsync survives.

use crate::named::named;
use serde::{Deserialize, Serialize};

/// The durability ladder, chosen per mount and per path rule: what the data of a completed fsync
/// survives.
///
/// Ordered by strength where it matters for choosing a tier: `Memory < Ssd < Replica < Pfs`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Survives a crash or kill of the daemon and of the application. Lost when the node loses
    /// power or its kernel.
    Memory,
    /// Survives a crash of the node as well: the data is on flash and flushed. Lost with the
    /// device.
    #[default]
    Ssd,
    /// Survives the loss of one server: the data is in the tiers of two.
    Replica,
    /// Survives the loss of the whole burst buffer: the data is on the PFS, synced and verified.
    Pfs,
}

/// What a power cut would leave of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Its newest content is not on stable storage: in memory, or not flushed.
    pub is_volatile: bool,
    /// Undrained content of it was flushed to flash, as an fsync asked for.
    pub is_on_flash: bool,
    /// The PFS has an older version under its name.
    pub has_older: bool,
    /// It was fsynced when it had no name yet, and not since.
    pub owes_fsync: bool,
}

/// Whether a file is flushed to flash before it is renamed, over `replaced` if there is such a
/// file. On the level of the PFS, too: a rename does not wait for a drain.
///
/// Otherwise a power cut might leave neither what was fsynced nor what replaced it, but what the
/// PFS had before both. Or it might leave the older version under a name that this version never
/// had, because it goes where the file goes.
///
/// `parts`: what the PFS has under the new name goes at once, for that file or this one has several
/// links. A power cut might then leave nothing under the name.
pub fn is_flushed_before_rename(
    level: Durability,
    file: Standing,
    replaced: Option<Standing>,
    parts: bool,
) -> bool {
    let replaces = parts || replaced.is_some_and(|replaced| replaced.is_on_flash);
    level != Durability::Memory && file.is_volatile && (file.has_older || replaces)
}

/// Whether a change of names waits until a file is flushed. On the level of the PFS it never waits
/// for a drain: what is in memory stays there where flash has no room for it.
pub fn can_flush_for_names(level: Durability, is_in_memory: bool, has_room_on_flash: bool) -> bool {
    level != Durability::Pfs || !is_in_memory || has_room_on_flash
}

/// Whether an fsync of its directory makes a file durable too: its name is promised to stay what it
/// is, and without the content the older version would show under it. So does one of a file that
/// was fsynced before it had its name: what its level means could not be done then.
pub fn is_flushed_with_its_directory(level: Durability, file: Standing) -> bool {
    level != Durability::Memory && (file.owes_fsync || (file.is_volatile && file.has_older))
}

/// What a start finds of an undrained file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Found {
    /// Size of its object, bytes.
    pub object_bytes: u64,
    /// What its record says.
    pub recorded_bytes: u64,
    /// Size at the last flush since the file became dirty, if there was one.
    pub flushed_bytes: Option<u64>,
    /// The record knows of no change since that flush.
    pub is_flushed: bool,
    /// Its content has not changed since its checksum was put on record.
    pub is_sealed: bool,
    /// It may have been written unseen: only the object knows its size.
    pub is_writing: bool,
    /// The PFS has an older version under its name.
    pub has_older: bool,
    /// The node has started anew since: of what was not flushed nobody knows what has reached the
    /// device.
    pub may_be_torn: bool,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is what was written.
    Whole,
    /// What was written after the last fsync is lost in part, as in any local file system; the file
    /// is as long as its object.
    Taken,
    /// It was never fsynced, and what a power cut left of it may be torn: it is lost, as it would
    /// be in memory, and what the PFS has counts.
    Lost,
    /// Something is missing that was fsynced: nobody but a person can say what the rest is worth.
    Damaged,
}

/// The decision. Lengths tell nothing where a file was given its size first, or was written again
/// in place: after a power cut only what was flushed is believed. A new file without content has
/// nothing to be torn.
pub fn of_undrained(found: &Found) -> Verdict {
    let same = found.object_bytes == found.recorded_bytes;
    if !found.may_be_torn {
        return match same || found.is_writing {
            true => Verdict::Whole,
            false => of_odd_length(
                found.object_bytes,
                found.recorded_bytes,
                found.flushed_bytes,
                found.is_sealed,
            ),
        };
    }
    let is_empty = found.object_bytes == 0 && found.recorded_bytes == 0;
    match found.flushed_bytes {
        _ if found.is_sealed && same => Verdict::Whole,
        _ if found.is_sealed => Verdict::Damaged,
        Some(flushed) if found.object_bytes < flushed => Verdict::Damaged,
        Some(_) if found.is_flushed && !found.is_writing && same => Verdict::Whole,
        Some(_) => Verdict::Taken,
        None if is_empty && !found.is_writing && !found.has_older => Verdict::Whole,
        None => Verdict::Lost,
    }
}

/// The same for an object of another length than its record says, where no power cut is known of.
pub fn of_odd_length(
    object_bytes: u64,
    recorded_bytes: u64,
    flushed_bytes: Option<u64>,
    is_sealed: bool,
) -> Verdict {
    match flushed_bytes {
        _ if is_sealed => Verdict::Damaged,
        Some(flushed) if object_bytes >= flushed => Verdict::Taken,
        Some(_) => Verdict::Damaged,
        // The record is from before it grew.
        None if object_bytes > recorded_bytes => Verdict::Taken,
        None => Verdict::Lost,
    }
}

named!(Durability, "durability", Memory => "memory", Ssd => "ssd", Replica => "replica", Pfs => "pfs");

#[cfg(test)]
mod tests {
    use super::*;

    const VOLATILE: Standing = Standing {
        is_volatile: true,
        is_on_flash: false,
        has_older: false,
        owes_fsync: false,
    };

    #[test]
    fn what_may_have_been_fsynced_is_replaced_by_what_is_as_safe() {
        let on_flash = Standing {
            is_on_flash: true,
            ..Standing::default()
        };
        for level in [Durability::Ssd, Durability::Replica, Durability::Pfs] {
            assert!(is_flushed_before_rename(
                level,
                VOLATILE,
                Some(on_flash),
                false
            ));
            assert!(!is_flushed_before_rename(
                level,
                on_flash,
                Some(on_flash),
                false
            ));
            assert!(!is_flushed_before_rename(
                level,
                VOLATILE,
                Some(VOLATILE),
                false
            ));
            assert!(!is_flushed_before_rename(level, VOLATILE, None, false));
        }
        let level = Durability::Memory;
        assert!(!is_flushed_before_rename(
            level,
            VOLATILE,
            Some(on_flash),
            false
        ));
    }

    #[test]
    fn an_older_version_does_not_go_elsewhere_without_the_new_one() {
        let with_older = Standing {
            has_older: true,
            ..VOLATILE
        };
        for level in [Durability::Ssd, Durability::Replica, Durability::Pfs] {
            assert!(is_flushed_before_rename(level, with_older, None, false));
        }
        let level = Durability::Memory;
        assert!(!is_flushed_before_rename(level, with_older, None, false));
    }

    #[test]
    fn a_change_of_names_does_not_wait_for_a_drain_on_the_level_of_the_pfs() {
        assert!(!can_flush_for_names(Durability::Pfs, true, false));
        assert!(can_flush_for_names(Durability::Pfs, true, true));
        assert!(can_flush_for_names(Durability::Pfs, false, false));
        assert!(can_flush_for_names(Durability::Ssd, true, false));
    }

    #[test]
    fn a_directory_takes_what_would_show_an_older_version_with_it() {
        let replacing = Standing {
            has_older: true,
            ..VOLATILE
        };
        assert!(is_flushed_with_its_directory(Durability::Ssd, replacing));
        assert!(is_flushed_with_its_directory(Durability::Pfs, replacing));
        assert!(!is_flushed_with_its_directory(
            Durability::Memory,
            replacing
        ));
        assert!(!is_flushed_with_its_directory(Durability::Ssd, VOLATILE));
    }

    #[test]
    fn what_was_fsynced_is_never_given_up_for_its_length() {
        assert_eq!(of_odd_length(7, 9, Some(5), false), Verdict::Taken);
        assert_eq!(of_odd_length(5, 9, Some(5), false), Verdict::Taken);
        assert_eq!(of_odd_length(4, 9, Some(5), false), Verdict::Damaged);
        assert_eq!(of_odd_length(0, 9, Some(0), false), Verdict::Taken);
        assert_eq!(of_odd_length(4, 9, None, false), Verdict::Lost);
        assert_eq!(of_odd_length(10, 9, None, false), Verdict::Taken);
    }

    #[test]
    fn what_nobody_has_changed_is_damaged_where_it_has_another_length() {
        for (object, flushed) in [(4, Some(9)), (10, Some(9)), (4, None), (10, None)] {
            assert_eq!(of_odd_length(object, 9, flushed, true), Verdict::Damaged);
        }
    }

    #[test]
    fn after_a_power_cut_only_what_was_flushed_is_believed() {
        let found = Found {
            object_bytes: 9,
            recorded_bytes: 9,
            may_be_torn: true,
            ..Found::default()
        };
        assert_eq!(of_undrained(&found), Verdict::Lost);
        let without = |found: Found| Found {
            may_be_torn: false,
            ..found
        };
        assert_eq!(of_undrained(&without(found)), Verdict::Whole);
        let writing = Found {
            is_writing: true,
            recorded_bytes: 0,
            ..found
        };
        assert_eq!(of_undrained(&writing), Verdict::Lost);
        assert_eq!(of_undrained(&without(writing)), Verdict::Whole);
        let flushed = Found {
            flushed_bytes: Some(9),
            is_flushed: true,
            ..found
        };
        assert_eq!(of_undrained(&flushed), Verdict::Whole);
        let since = Found {
            is_flushed: false,
            ..flushed
        };
        assert_eq!(of_undrained(&since), Verdict::Taken);
        let cut = Found {
            object_bytes: 8,
            is_writing: true,
            ..since
        };
        assert_eq!(of_undrained(&cut), Verdict::Damaged);
        let sealed = Found {
            is_sealed: true,
            ..found
        };
        assert_eq!(of_undrained(&sealed), Verdict::Whole);
    }

    #[test]
    fn a_new_file_without_content_is_not_torn() {
        let empty = Found {
            may_be_torn: true,
            ..Found::default()
        };
        assert_eq!(of_undrained(&empty), Verdict::Whole);
        let has_older = Found {
            has_older: true,
            ..empty
        };
        assert_eq!(of_undrained(&has_older), Verdict::Lost);
    }

    #[test]
    fn names_are_read_back() {
        for d in Durability::ALL {
            assert_eq!(d.to_string().parse(), Ok(*d));
        }
        assert_eq!("PFS".parse(), Ok(Durability::Pfs));
        let error = "disk".parse::<Durability>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown durability \"disk\": expected one of memory, ssd, replica, pfs"
        );
    }
}
