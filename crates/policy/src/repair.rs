//! What is done about damage: never anything that could take the only copy of something away.

use crate::named::named;
use serde::{Deserialize, Serialize};

/// The kinds of damage that a check of records, objects and PFS against each other can find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Damage {
    /// A record does not decode.
    RecordUnreadable,
    /// A record contradicts itself: clean, but of nothing that was published.
    RecordInconsistent,
    /// The directory that a record names is not known.
    DirectoryUnknown,
    /// Two records claim one name; this is the one that is not shown.
    NameTakenTwice,
    /// There is no object where the record says.
    ObjectMissing,
    /// The object cannot be opened or read.
    ObjectUnreadable,
    /// The object is shorter or longer than its record says.
    ObjectLength,
    /// The object's content does not match its checksum.
    ObjectContent,
    /// The object says that it is another one.
    ObjectSwapped,
    /// The object does not say which one it is, or not legibly.
    ObjectAnonymous,
    /// A second, durable copy that the record names is not there.
    ShadowMissing,
    /// The PFS has something newer than the clean copy.
    CopyOutdated,
    /// The PFS has nothing any more under the name of a clean copy.
    OriginalMissing,
    /// The PFS's copy does not match the checksum that it was published with; ours does.
    OriginalContent,
    /// An object with data that no record names, and that says whose it is.
    Orphan,
    /// An empty object that no record names.
    OrphanEmpty,
    /// An object with data that no record names, and that does not say whose it is.
    OrphanAnonymous,
    /// An unfinished copy on the PFS that nobody is making.
    StrayCopy,
    /// An object that was to be removed is still there.
    Garbage,
}

named!(Damage, "kind of damage",
    RecordUnreadable => "record-unreadable",
    RecordInconsistent => "record-inconsistent",
    DirectoryUnknown => "directory-unknown",
    NameTakenTwice => "name-taken-twice",
    ObjectMissing => "object-missing",
    ObjectUnreadable => "object-unreadable",
    ObjectLength => "object-length",
    ObjectContent => "object-content",
    ObjectSwapped => "object-swapped",
    ObjectAnonymous => "object-anonymous",
    ShadowMissing => "shadow-missing",
    CopyOutdated => "copy-outdated",
    OriginalMissing => "original-missing",
    OriginalContent => "original-content",
    Orphan => "orphan",
    OrphanEmpty => "orphan-empty",
    OrphanAnonymous => "orphan-anonymous",
    StrayCopy => "stray-copy",
    Garbage => "garbage",
);

/// What is known when a remedy is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// The record says that the PFS has this content.
    pub clean: bool,
    /// What the PFS has was compared and is what was published.
    pub original_good: bool,
    /// The object's content was compared, or its length where there is nothing else, and is good.
    pub object_good: bool,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// Nothing can be done without a person.
    Leave,
    /// The copy in the burst buffer and its record go: the PFS has the file.
    DropCopy,
    /// The object is kept in its tier's `lost+found`, and the record goes.
    Quarantine,
    /// The record goes: there is nothing behind it, and the PFS has the file.
    DropRecord,
    /// The bytes of the record are kept in the state folder's `lost+found`, and it goes.
    QuarantineRecord,
    /// The object's data is put on the PFS under a name that says so, and the object goes.
    Recover,
    /// The file gets another name beside the one that is taken.
    Rename,
    /// The file counts as undrained and is copied to the PFS again.
    DrainAgain,
    /// The object is told again which one it is.
    Identify,
    /// The record forgets the second copy.
    ForgetShadow,
    /// It is removed: nothing is in it that is not elsewhere.
    Remove,
    /// What is damaged is written again from what the PFS has.
    Rewrite,
}

impl Remedy {
    /// For a person.
    pub const fn describe(self) -> &'static str {
        match self {
            Remedy::Leave => "none: it may be the only copy, and is left as it is",
            Remedy::DropCopy => "the copy in the burst buffer is dropped: the PFS has the file",
            Remedy::Quarantine => {
                "the object is kept in the lost+found of its tier, the record goes"
            }
            Remedy::DropRecord => "the record goes: the PFS has the file",
            Remedy::QuarantineRecord => "the record is kept in the lost+found of the state folder",
            Remedy::Recover => "its data is put on the PFS under a name that says so",
            Remedy::Rename => "the file is shown beside it under a name that says so",
            Remedy::DrainAgain => "the file is copied to the PFS again",
            Remedy::Identify => "the object is told again which one it is",
            Remedy::ForgetShadow => "the record forgets it: the first copy is there",
            Remedy::Remove => "it is removed: nothing is in it that is not elsewhere",
            Remedy::Rewrite => "written again from what the PFS has",
        }
    }
}

/// The remedy for a block that does not match its checksum, in a file that is in use: the file
/// cannot make way for what the PFS has. `known` is about that block.
pub const fn remedy_in_use(known: Knowledge) -> Remedy {
    match known.clean && known.original_good {
        true => Remedy::Rewrite,
        false => Remedy::Leave,
    }
}

/// The remedy for a kind of damage.
pub const fn remedy(damage: Damage, known: Knowledge) -> Remedy {
    match damage {
        Damage::RecordUnreadable => Remedy::QuarantineRecord,
        Damage::RecordInconsistent => Remedy::DrainAgain,
        Damage::DirectoryUnknown | Damage::Orphan => Remedy::Recover,
        Damage::NameTakenTwice => Remedy::Rename,
        Damage::ObjectMissing if known.clean && known.original_good => Remedy::DropRecord,
        // Of a damaged object of which the PFS has a good copy nothing is worth keeping.
        Damage::ObjectLength | Damage::ObjectContent if known.clean && known.original_good => {
            Remedy::DropCopy
        }
        // What lies under the wrong id may be the only copy of another file.
        Damage::ObjectSwapped | Damage::ObjectUnreadable if known.clean && known.original_good => {
            Remedy::Quarantine
        }
        Damage::ObjectAnonymous if known.object_good => Remedy::Identify,
        Damage::ShadowMissing if known.object_good => Remedy::ForgetShadow,
        Damage::CopyOutdated => Remedy::DropCopy,
        // An outsider removed it, so it is not shown; but the data may be missed one day.
        Damage::OriginalMissing | Damage::OrphanAnonymous => Remedy::Quarantine,
        Damage::OriginalContent if known.object_good => Remedy::DrainAgain,
        Damage::OrphanEmpty | Damage::StrayCopy | Damage::Garbage => Remedy::Remove,
        Damage::ObjectMissing
        | Damage::ObjectUnreadable
        | Damage::ObjectLength
        | Damage::ObjectContent
        | Damage::ObjectSwapped
        | Damage::ObjectAnonymous
        | Damage::ShadowMissing
        | Damage::OriginalContent => Remedy::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_knowledge() -> impl Iterator<Item = Knowledge> {
        (0..8).map(|bits| Knowledge {
            clean: bits & 1 != 0,
            original_good: bits & 2 != 0,
            object_good: bits & 4 != 0,
        })
    }

    #[test]
    fn an_object_goes_only_where_its_data_is_elsewhere() {
        for &damage in Damage::ALL {
            for known in all_knowledge() {
                let safe = match remedy(damage, known) {
                    Remedy::Remove => matches!(
                        damage,
                        Damage::OrphanEmpty | Damage::StrayCopy | Damage::Garbage
                    ),
                    Remedy::DropCopy => {
                        damage == Damage::CopyOutdated || (known.clean && known.original_good)
                    }
                    Remedy::DropRecord => known.clean && known.original_good,
                    Remedy::DrainAgain => damage == Damage::RecordInconsistent || known.object_good,
                    _ => true,
                };
                assert!(safe, "{damage}, {known:?}");
            }
        }
    }

    #[test]
    fn undrained_data_is_never_set_aside_for_its_damage() {
        let dirty = Knowledge::default();
        for damage in [
            Damage::ObjectMissing,
            Damage::ObjectUnreadable,
            Damage::ObjectLength,
            Damage::ObjectContent,
            Damage::ObjectSwapped,
        ] {
            assert_eq!(remedy(damage, dirty), Remedy::Leave, "{damage}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for damage in Damage::ALL {
            assert_eq!(damage.to_string().parse(), Ok(*damage));
        }
    }
}
