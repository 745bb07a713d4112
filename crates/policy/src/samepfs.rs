//! Whether the PFS is the one that a state was made for: its directory may be there while it is not
//! mounted.

use serde::{Deserialize, Serialize};

/// What tells one PFS from another, as its root shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PfsIdentity {
    /// Type of the file system (`statfs`). Its device number and file-system id may change with
    /// every mount.
    pub fs_type: u64,
    /// Inode number of the root.
    pub root_ino: u64,
    /// The root's time of birth, nanoseconds since the epoch; 0 where the file system does not
    /// tell.
    pub root_btime_ns: u64,
    /// A mark that Forebay has put on the root, where one may be put.
    pub mark: Option<[u8; 16]>,
}

/// How the PFS differs from the one remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Another type of file system.
    Type,
    /// Another directory.
    Root,
    /// The mark is another, or is missing where nothing else says that the root is the same.
    Mark,
}

impl PfsIdentity {
    /// What shows that `found` is another PFS; `None` if nothing does.
    pub fn differs(&self, found: &PfsIdentity) -> Option<Difference> {
        let known_births = self.root_btime_ns != 0 && found.root_btime_ns != 0;
        if self.fs_type != found.fs_type {
            return Some(Difference::Type);
        }
        if self.root_ino != found.root_ino
            || (known_births && self.root_btime_ns != found.root_btime_ns)
        {
            return Some(Difference::Root);
        }
        match (self.mark, found.mark) {
            (Some(was), Some(is)) if was != is => Some(Difference::Mark),
            // Network file systems give all roots the same number, and tell no time of birth.
            (Some(_), None) if !known_births => Some(Difference::Mark),
            _ => None,
        }
    }
}

impl Difference {
    /// For a person.
    pub const fn describe(self) -> &'static str {
        match self {
            Difference::Type => "it is another type of file system",
            Difference::Root => "its root is another directory",
            Difference::Mark => "it has not the mark that this state folder put there",
        }
    }
}

/// What a node sees, at the path at which all nodes have the PFS, of a file that the server has
/// made on the PFS under a name that nobody can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The path is no directory of this node.
    NoPath,
    /// A burst buffer is mounted there: it hides such names.
    BurstBuffer,
    /// The name, with the server's content or with one that cannot be read here.
    Probe,
    /// The name, with another content.
    OtherContent,
    /// No such name.
    NoProbe {
        /// A file system is mounted at the path itself.
        mounted: bool,
        /// Nothing at all is in the directory.
        empty: bool,
    },
    /// The node's file system does not say.
    Unknown,
}

/// Whether a node that joins sees the PFS of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Same,
    /// It has no PFS, which a mount does not need.
    NotHere,
    /// Something else is where the PFS should be.
    Another,
    /// It cannot be found out.
    Unclear,
}

impl Sight {
    /// What follows. An empty directory on which nothing is mounted is a place for a PFS, and none
    /// itself.
    pub const fn verdict(self) -> Verdict {
        match self {
            Sight::Probe => Verdict::Same,
            Sight::NoPath | Sight::BurstBuffer => Verdict::NotHere,
            Sight::NoProbe {
                mounted: false,
                empty: true,
            } => Verdict::NotHere,
            Sight::OtherContent | Sight::NoProbe { .. } => Verdict::Another,
            Sight::Unknown => Verdict::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAS: PfsIdentity = PfsIdentity {
        fs_type: 0xef53,
        root_ino: 2,
        root_btime_ns: 7,
        mark: Some([1; 16]),
    };

    #[test]
    fn another_pfs_is_noticed_by_any_of_its_marks() {
        let with = |change: &dyn Fn(&mut PfsIdentity)| {
            let mut found = WAS;
            change(&mut found);
            found
        };
        assert_eq!(WAS.differs(&WAS), None);
        let bare = with(&|f| f.fs_type = 0x0102_1994);
        assert_eq!(WAS.differs(&bare), Some(Difference::Type));
        let other = with(&|f| f.root_ino = 9);
        assert_eq!(WAS.differs(&other), Some(Difference::Root));
        let made_anew = with(&|f| f.root_btime_ns = 8);
        assert_eq!(WAS.differs(&made_anew), Some(Difference::Root));
        let marked = with(&|f| f.mark = Some([2; 16]));
        assert_eq!(WAS.differs(&marked), Some(Difference::Mark));
    }

    #[test]
    fn a_lost_mark_counts_where_there_is_no_time_of_birth() {
        let unmarked = PfsIdentity { mark: None, ..WAS };
        assert_eq!(WAS.differs(&unmarked), None);
        assert_eq!(unmarked.differs(&WAS), None);
        let network = PfsIdentity {
            root_btime_ns: 0,
            ..unmarked
        };
        assert_eq!(WAS.differs(&network), Some(Difference::Mark));
    }

    #[test]
    fn only_what_has_something_else_is_another_pfs() {
        let without = |mounted, empty| Sight::NoProbe { mounted, empty }.verdict();
        assert_eq!(without(false, true), Verdict::NotHere);
        for (mounted, empty) in [(true, true), (true, false), (false, false)] {
            assert_eq!(without(mounted, empty), Verdict::Another);
        }
        assert_eq!(Sight::OtherContent.verdict(), Verdict::Another);
        assert_eq!(Sight::Probe.verdict(), Verdict::Same);
        assert_eq!(Sight::NoPath.verdict(), Verdict::NotHere);
        assert_eq!(Sight::BurstBuffer.verdict(), Verdict::NotHere);
        assert_eq!(Sight::Unknown.verdict(), Verdict::Unclear);
    }
}
