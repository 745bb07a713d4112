//! What is kept in the key-value store, and under which keys.
//!
//! ```text
//! f/<object, 8 bytes>            a file in the burst buffer: FileRecord
//! d/<directory, 24 bytes>        where a directory with such files is: DirRecord
//! k/<object, 8 bytes>            checksums of the blocks of a large content: SumsRecord
//! n/<object, 8 bytes>            a file without a name that clients have open: NamelessRecord
//! g/<object, 8 bytes>            an object that nobody names and that is to be removed: its tiers
//! u/<directory, 24 bytes>        a version that is not published yet: UnpublishedRecord
//! r/<sequence, 8 bytes>          a change of names under way on the PFS: Intent
//! c/<name>                       counters and facts about the instance
//! ```
//!
//! Records are written whole, so a file is always as one transaction left it.

use forebay_tiers::{BLOCKS_MAX, PfsId, PfsStat, Sums, crc32c_update};
use forebay_types::{Generation, Ino, ObjectId, SetTime, TierId, TimeSpec};
use serde::{Deserialize, Serialize};

use crate::error::{NsError, in_record};

mod keys;

pub(crate) use keys::*;

/// Identity of a directory that outlives restarts and renames: file system, inode number and time
/// of birth on the PFS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct DirKey {
    /// Ordinal of its file system: 0 for that of the PFS root, above for those mounted inside.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Birth time, nanoseconds; 0 where the PFS does not tell.
    pub btime_ns: u64,
}

impl DirKey {
    /// Key of a directory in the file system of this ordinal.
    pub(crate) fn new(id: PfsId, ordinal: u64) -> DirKey {
        DirKey {
            dev: ordinal,
            ino: id.ino,
            btime_ns: id.btime_ns,
        }
    }

    /// As the store orders them.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.dev.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.ino.to_be_bytes());
        bytes[16..].copy_from_slice(&self.btime_ns.to_be_bytes());
        bytes
    }

    /// Of [`DirKey::to_bytes`]; `None`: too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<DirKey> {
        let field = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(DirKey {
            dev: field(0)?,
            ino: field(8)?,
            btime_ns: field(16)?,
        })
    }
}

/// The copy on the PFS as Forebay left or found it. An outsider's change shows as a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Inode number on the PFS.
    pub ino: u64,
    /// Birth time, nanoseconds.
    pub btime_ns: u64,
    /// Size, bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: TimeSpec,
    /// Change time.
    pub ctime: TimeSpec,
    /// Mode and owner.
    pub looks: Looks,
}

/// What a change of mode or owner shows in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// Permission bits, 0..=0o7777.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl From<&PfsStat> for Looks {
    fn from(stat: &PfsStat) -> Looks {
        Looks {
            perm: stat.perm(),
            uid: stat.uid,
            gid: stat.gid,
        }
    }
}

/// Whether a time is another as a file system gives it back that keeps fewer digits than its client
/// did before it was asked.
fn is_same_time(known: TimeSpec, now: TimeSpec) -> bool {
    known == now
        || (known.sec == now.sec && (now.nsec == 0 || known.nsec / 1000 == now.nsec / 1000))
}

/// The coarsest time stamps that file systems have.
const MTIME_GRAIN_S: u64 = 2;

impl Published {
    /// Stands for a change time that a change of names of ours has moved, to what the PFS did not
    /// tell.
    const MOVED: TimeSpec = TimeSpec {
        sec: i64::MIN,
        nsec: 0,
    };

    /// The same of an older version that the PFS may have lost by it.
    const LEAVING: TimeSpec = TimeSpec {
        sec: i64::MIN,
        nsec: 1,
    };

    /// A change time that nothing has.
    const NEVER: TimeSpec = TimeSpec {
        sec: i64::MIN,
        nsec: 2,
    };

    /// Whether that is what the PFS has.
    pub fn is(&self, stat: &PfsStat) -> bool {
        let is_told = |ctime| !matches!(ctime, Published::MOVED | Published::LEAVING);
        match is_told(self.ctime) && stat.has_steady_ctime {
            true => *self == Published::from(stat),
            false => self.same_but_ctime(stat),
        }
    }

    /// Whether it is the same file, whoever has changed it since. A number alone may be another's
    /// after a crash.
    pub(crate) fn is_same_file(&self, stat: &PfsStat) -> bool {
        (self.ino, self.btime_ns) == (stat.id.ino, stat.id.btime_ns)
    }

    /// What is published after Forebay's own change of names, which has moved the ctime. `found` is
    /// what the PFS has. If an outsider has changed the file, its mode or its owner, the file stays
    /// published as it was, and the next look finds the change.
    pub(crate) fn after_move(self, found: Option<&PfsStat>) -> Published {
        match found {
            Some(stat) if self.looks == stat.into() => self.after_ours(stat, None),
            _ => self,
        }
    }

    /// Whether it is the same file with the same content, as far as size and mtime tell. Links,
    /// renames and changes of attributes, ours too, move the ctime only.
    pub(crate) fn same_content(&self, stat: &PfsStat) -> bool {
        let now = Published::from(stat);
        (now.ino, now.btime_ns, now.size, now.mtime)
            == (self.ino, self.btime_ns, self.size, self.mtime)
    }

    /// The same, and nobody has changed its mode or owner either.
    pub(crate) fn same_but_ctime(&self, stat: &PfsStat) -> bool {
        self.same_content(stat) && self.looks == stat.into()
    }

    /// What the PFS has after Forebay's own change of attributes, if nothing else has changed. What
    /// it had before, where an outsider has written meanwhile: the next look finds that. `mtime` is
    /// what Forebay has set.
    pub(crate) fn after_ours(self, stat: &PfsStat, mtime: Option<SetTime>) -> Published {
        let now = Published::from(stat);
        let is_ours = match mtime {
            None => is_same_time(self.mtime, now.mtime),
            // Not every file system has the nanoseconds.
            Some(SetTime::At(at)) => now.mtime.sec.abs_diff(at.sec) <= MTIME_GRAIN_S,
            Some(SetTime::Now) => true,
        };
        let same = (now.ino, now.btime_ns, now.size) == (self.ino, self.btime_ns, self.size);
        match same && is_ours {
            true => now,
            false => self,
        }
    }

    /// After Forebay's own change that moves the ctime, where the PFS has not told the outcome. An
    /// outsider's change of attributes other than mode and owner, at the same time, does not show.
    pub(crate) fn with_ctime_moved(self) -> Published {
        let ctime = match self.is_leaving() {
            true => Published::LEAVING,
            false => Published::MOVED,
        };
        Published { ctime, ..self }
    }

    /// After a removal that the PFS has called an error: the PFS has the file or nothing, and
    /// neither is an outsider's doing.
    pub(crate) fn leaving(self) -> Published {
        Published {
            ctime: Published::LEAVING,
            ..self
        }
    }

    /// With a change of mode, owner or attributes that is not ours: the next look finds it.
    pub(crate) fn with_looks_changed(self) -> Published {
        Published {
            ctime: Published::NEVER,
            ..self
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.ctime == Published::LEAVING
    }
}

impl From<&PfsStat> for Published {
    fn from(stat: &PfsStat) -> Published {
        Published {
            ino: stat.id.ino,
            btime_ns: stat.id.btime_ns,
            size: stat.size,
            mtime: stat.mtime,
            ctime: match stat.has_steady_ctime {
                true => stat.ctime,
                false => Published::MOVED,
            },
            looks: stat.into(),
        }
    }
}

/// A demotion under way: its copy on the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Temporary {
    /// Generation being copied.
    pub generation: Generation,
    /// Inode number of the copy; it keeps it when it gets its name.
    pub ino: u64,
    /// Birth time, nanoseconds; tells it from an outsider's file that got its number after a crash.
    pub btime_ns: u64,
    /// Size of the finished copy, bytes.
    pub size: u64,
    /// Modification time of the finished copy.
    pub mtime: TimeSpec,
    /// Mode and owner of the finished copy.
    pub looks: Looks,
    /// Checksum of the extended attributes that it was given.
    pub xattrs_crc: u32,
}

impl Temporary {
    /// Whether that is the copy as it was finished.
    pub(crate) fn is_unchanged(&self, stat: &PfsStat) -> bool {
        let same = self.published(stat).same_content(stat);
        self.is(stat) && same && self.looks == stat.into()
    }

    /// What is published once the copy has a name, whatever its mode, owner and attributes are by
    /// now. Content that an outsider has written since is not, and the next look finds that.
    pub(crate) fn published(&self, stat: &PfsStat) -> Published {
        let finished = Published {
            ino: self.ino,
            btime_ns: self.btime_ns,
            size: self.size,
            mtime: self.mtime,
            ctime: Published::MOVED,
            looks: self.looks,
        };
        finished.after_ours(stat, None)
    }

    /// Whether it has the mode, owner and attributes that it was given.
    pub(crate) fn has_its_looks(&self, stat: &PfsStat, xattrs: &Xattrs) -> bool {
        self.looks == stat.into() && self.xattrs_crc == xattrs_crc(xattrs)
    }

    /// Whether that is the copy, whatever it is called.
    pub(crate) fn is(&self, stat: &PfsStat) -> bool {
        (self.ino, self.btime_ns) == (stat.id.ino, stat.id.btime_ns)
    }
}

/// Checksum of the attributes that are kept, in whatever order.
pub(crate) fn xattrs_crc(xattrs: &Xattrs) -> u32 {
    let mut kept: Vec<_> = xattrs.iter().filter(|(name, _)| is_kept(name)).collect();
    kept.sort();
    kept.iter().fold(0, |crc, (name, value)| {
        let lengths = [name.len(), value.len()].map(usize::to_le_bytes);
        let parts = [&lengths[0][..], &lengths[1], name, value];
        parts.iter().fold(crc, |crc, part| crc32c_update(crc, part))
    })
}

/// Whether an attribute of this name is brought in from the PFS; others may be the PFS's own.
pub(crate) fn is_kept(attribute: &[u8]) -> bool {
    attribute.starts_with(b"user.") || attribute.starts_with(b"system.posix_acl_")
}

/// A name under which the PFS has not the version that is published: it is not linked there yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// The name.
    pub place: PlaceKey,
    /// What the PFS has under it, as far as is known.
    pub older: Option<Published>,
}

/// Facts of a file that stat(2) shows and that are not in its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits, 0..=0o7777.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Logical size at the last close, bytes.
    pub size: u64,
    /// Space the object took at the last close, bytes.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: TimeSpec,
    /// Last change of content.
    pub mtime: TimeSpec,
    /// Last change of anything.
    pub ctime: TimeSpec,
}

/// What an fsync has put on stable storage, outside of the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushed {
    /// Generation of the content.
    pub generation: Generation,
    /// Its size, bytes.
    pub bytes: u64,
}

/// Where a file's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// Tier of the object.
    pub tier: TierId,
    /// A durable copy in another tier, of the generation named.
    pub shadow: Option<(TierId, Generation)>,
    /// What was last flushed to flash since the file became dirty.
    pub flushed: Option<Flushed>,
    /// Counts changes of content.
    pub generation: Generation,
    /// The copy on the PFS, of this generation if `clean`, else of an older one.
    pub published: Option<Published>,
    /// The copy on the PFS is whole, verified and of this generation.
    pub clean: bool,
    /// Opened for writing in a way the server does not see: after a crash the object, not the
    /// record, knows the size, and the file counts as dirty.
    pub writing: bool,
    /// Of those: the kernel of a node may write it by itself, and go on with that whatever becomes
    /// of the servers.
    pub by_kernel: bool,
    /// CRC-32C of the content of this generation.
    pub crc: Option<u32>,
    /// A [`SumsRecord`] is kept, of this content or an older one.
    pub has_sums: bool,
    /// A flush on flash has failed: what its object has of this content nobody knows. The kernel
    /// tells that once.
    pub flush_failed: bool,
    /// The content that an fsync has promised last: what of it is flushed for other reasons is no
    /// promise, and may go with its server where a second copy is older.
    pub promised: Option<Generation>,
    /// What was written was lost with its server, and no fsync has told that yet.
    pub owes_loss: bool,
}

impl Residency {
    /// The checksums of the content of this generation are known.
    pub(crate) fn vouch(&mut self, sums: &Sums) {
        self.crc = Some(sums.crc);
        self.has_sums |= !sums.after_blocks.is_empty();
    }
}

const _: () = assert!(
    BLOCKS_MAX as usize * SUM_BYTES_MAX + 64 <= forebay_kv::MAX_VALUE_BYTES,
    "the sums of the largest file fit in one value, with what stands before them"
);

/// A sum in a record takes so many bytes at most.
const SUM_BYTES_MAX: usize = 5;

/// Checksums of the blocks of a content, as `Sums` has them. They are kept beside the file's
/// record, which is written more often than they change; a content of one block has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumsRecord {
    /// CRC-32C of all of it: says which content this is about.
    pub crc: u32,
    /// Its length, bytes.
    pub bytes: u64,
    /// Size of a block, bytes.
    pub block_bytes: u64,
    /// CRC-32C from the beginning to the end of each block but the last.
    pub after_blocks: Vec<u32>,
}

impl SumsRecord {
    pub(crate) fn of(sums: &Sums) -> SumsRecord {
        SumsRecord {
            crc: sums.crc,
            bytes: sums.bytes,
            block_bytes: sums.block_bytes,
            after_blocks: sums.after_blocks.clone(),
        }
    }
}

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A file in the burst buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Id under which the mount shows it.
    pub ino: Ino,
    /// All names that Forebay knows; the first is the one it is published under.
    pub names: Vec<(DirKey, Vec<u8>)>,
    /// Attributes.
    pub meta: Meta,
    /// Extended attributes; authoritative while the file is dirty, else the PFS has them.
    pub xattrs: Xattrs,
    /// Residency.
    pub residency: Residency,
    /// Of several names, those that are not links of what is published.
    pub unplaced: Vec<Unplaced>,
    /// A demotion under way.
    pub temporary: Option<Temporary>,
}

/// A file that has no name, and that clients have open who may come back after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamelessRecord {
    /// Lives of the clients.
    pub lives: Vec<u64>,
    /// It was made without a name in this directory, and may get one.
    pub unnamed: Option<DirKey>,
    /// The file; it has no names.
    pub file: FileRecord,
}

/// Where a directory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirRecord {
    /// Its parent; the root has no record.
    pub parent: DirKey,
    /// Its name there.
    pub name: Vec<u8>,
}

/// A rename that changes both the PFS and records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameIntent {
    /// Old place.
    pub from: (DirKey, Vec<u8>),
    /// New place.
    pub to: (DirKey, Vec<u8>),
    /// What moves, as the PFS had it: its identity tells after a crash whether it has moved.
    pub moving: Published,
    /// The file that moves, if it is in the burst buffer.
    pub file: Option<ObjectId>,
    /// The directory that moves, if it has a record.
    pub dir: Option<DirKey>,
    /// The file that is replaced, if it is in the burst buffer.
    pub replaced: Option<ObjectId>,
}

/// A name in a directory, on record.
pub type PlaceKey = (DirKey, Vec<u8>);

/// Two names that are swapped, at least one of them on the PFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeIntent {
    /// One of the two places.
    pub a: PlaceKey,
    /// The other place.
    pub b: PlaceKey,
    /// What the PFS has under `a` before.
    pub on_pfs_a: Option<Published>,
    /// What the PFS has under `b` before.
    pub on_pfs_b: Option<Published>,
}

/// What happens to one of several links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkChange {
    /// It is made.
    Added,
    /// It is unlinked.
    Removed,
    /// Another file, which is only in the buffer, has taken the name on record; what the PFS has
    /// under it is unlinked.
    Replaced,
}

/// A link of a published file comes or goes on the PFS. That changes the ctime of what all its
/// names show, which must not look like an outsider's doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkIntent {
    /// The name.
    pub place: PlaceKey,
    /// What it stands for on the PFS.
    pub target: Published,
    /// What happens to it.
    pub change: LinkChange,
    /// A name on record of the file in the buffer that is published as that, if one is.
    pub holder: Option<PlaceKey>,
}

/// A change of names on the PFS that records must follow. Written before it, deleted with the
/// records' change; after a crash the PFS tells how far it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// rename.
    Rename(RenameIntent),
    /// rename with `RENAME_EXCHANGE`.
    Exchange(ExchangeIntent),
    /// link, unlink, and a rename onto one of several links.
    Link(LinkIntent),
}

/// The directory of a version that is not published yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpublishedRecord {
    /// Its parent.
    pub parent: DirKey,
    /// The name that it is shown under.
    pub name: Vec<u8>,
    /// Its name on the PFS.
    pub hidden: Vec<u8>,
    /// It was ordered to be published.
    pub committed: bool,
    /// When it was made, seconds since the epoch.
    pub since_s: i64,
    /// Files of it that a loss of power has taken: directory and name.
    pub lost: Vec<(DirKey, Vec<u8>)>,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, NsError> {
    postcard::to_stdvec(value).map_err(in_record(std::any::type_name::<T>()))
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, NsError> {
    postcard::from_bytes(bytes).map_err(in_record(std::any::type_name::<T>()))
}

#[cfg(test)]
mod tests {
    use forebay_tiers::PfsTree;

    use super::*;

    #[test]
    fn a_time_of_change_that_moves_by_itself_does_not_count() {
        let top = tempfile::tempdir().unwrap();
        let tree = PfsTree::open(top.path()).unwrap();
        std::fs::write(top.path().join("f"), b"ours").unwrap();
        let known = tree.stat(tree.root(), b"f").unwrap();
        let mut later = known;
        later.ctime.sec += 5;
        assert!(!Published::from(&known).is(&later));
        later.has_steady_ctime = false;
        assert!(Published::from(&known).is(&later) && Published::from(&later).is(&known));
        later.size += 1;
        assert!(!Published::from(&known).is(&later));
    }

    #[test]
    fn a_change_of_ours_does_not_hide_an_outsiders_at_the_same_moment() {
        let top = tempfile::tempdir().unwrap();
        let tree = PfsTree::open(top.path()).unwrap();
        std::fs::write(top.path().join("f"), b"ours").unwrap();
        let mut stat = tree.stat(tree.root(), b"f").unwrap();
        let before = Published::from(&stat);
        let old = TimeSpec { sec: 1000, nsec: 7 };
        let old_whole = TimeSpec { sec: 1000, nsec: 0 };
        stat.ctime.sec += 5;
        assert_eq!(before.after_ours(&stat, None), Published::from(&stat));
        assert_eq!(before.after_ours(&stat, Some(SetTime::At(old))), before);
        let mut coarse = stat;
        coarse.mtime.nsec = 0;
        assert_eq!(before.after_ours(&coarse, None), Published::from(&coarse));
        let first = TimeSpec {
            sec: i64::MIN,
            nsec: 0,
        };
        assert_eq!(before.after_ours(&stat, Some(SetTime::At(first))), before);
        stat.mtime = old_whole;
        let known = before.after_ours(&stat, Some(SetTime::At(old)));
        assert_eq!(known, Published::from(&stat));
        assert_eq!(before.after_ours(&stat, None), before, "somebody wrote");
        stat.mtime.sec += 10;
        let known = before.after_ours(&stat, Some(SetTime::Now));
        assert_eq!(known, Published::from(&stat));
        stat.size += 1;
        assert_eq!(before.after_ours(&stat, Some(SetTime::Now)), before);
        assert!(!before.is(&stat), "the next look finds it");
    }
}
