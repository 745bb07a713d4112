//! POSIX access control lists of files that are in the burst buffer only (acl(5)). Those of
//! everything else are the PFS's own affair, and the kernel checks them all.
//!
//! ```text
//! version: u32 = 2 | entries: tag u16, permissions u16, id u32 ...    little endian, sorted by tag
//! ```

use forebay_types::Errno;

use crate::record::Xattrs;

/// Who may do what with this file or directory.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// What is made in this directory gets this.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Id of entries that name nobody.
const NOBODY_NAMED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// Permissions, one of which has to hold all that is wanted.
pub struct Allowed(Vec<u16>);

impl Allowed {
    fn one(perm: u16) -> Allowed {
        Allowed(vec![perm])
    }

    /// Whether this may be done: read 4, write 2, execute 1, and sums of these.
    pub fn holds(&self, wanted: u16) -> bool {
        self.0.iter().any(|perm| perm & wanted == wanted)
    }
}

/// A valid list: each of the three classes of the mode has its entry, and where somebody is named
/// there is a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Reads the value of an attribute. `EINVAL` if it is no valid list, `EOPNOTSUPP` for other
    /// versions.
    pub fn parse(value: &[u8]) -> Result<Acl, Errno> {
        let (version, entries) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else {
            return Err(Errno::EINVAL);
        };
        let entries = entries.iter().map(|&[t0, t1, p0, p1, id @ ..]| Entry {
            tag: u16::from_le_bytes([t0, t1]),
            perm: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes(id),
        });
        let acl = Acl(entries.collect());
        match acl.is_valid() {
            true => Ok(acl),
            false => Err(Errno::EINVAL),
        }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let ids = |entry: &Entry| match entry.tag {
            USER | GROUP => entry.id != NOBODY_NAMED,
            _ => true,
        };
        [USER_OBJ, GROUP_OBJ, OTHER].map(count) == [1; 3]
            && (count(MASK) == 1 || (count(MASK) == 0 && named == 0))
            && named + count(MASK) + 3 == self.0.len()
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && self.0.iter().all(|entry| entry.perm <= 7 && ids(entry))
    }

    /// The value of an attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    /// It says no more than a mode does.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// What the list lets a user do who is in these groups; as acl(5) has it.
    pub fn allows(&self, object: (u32, u32), uid: u32, is_in: impl Fn(u32) -> bool) -> Allowed {
        let (owner, group) = object;
        let mask = self.entry(MASK).map_or(7, |mask| mask.perm);
        let found = |tag, id| {
            let mut named = self.0.iter().filter(move |entry| entry.tag == tag);
            named.find(|entry| entry.id == id).map(|entry| entry.perm)
        };
        if uid == owner {
            return Allowed::one(self.entry(USER_OBJ).map_or(0, |entry| entry.perm));
        }
        if let Some(perm) = found(USER, uid) {
            return Allowed::one(perm & mask);
        }
        let groups = self.0.iter().filter(|entry| match entry.tag {
            GROUP_OBJ => is_in(group),
            GROUP => is_in(entry.id),
            _ => false,
        });
        let groups: Vec<u16> = groups.map(|entry| entry.perm & mask).collect();
        match groups.is_empty() {
            true => Allowed::one(self.entry(OTHER).map_or(0, |entry| entry.perm)),
            false => Allowed(groups),
        }
    }

    /// Whether the list of something that is root's lets some other user do this, who is in no
    /// group of root's.
    pub fn allows_some(&self, group: u32, wanted: u16) -> bool {
        let mask = self.entry(MASK).map_or(7, |mask| mask.perm);
        self.0.iter().any(|entry| {
            let allowed = match entry.tag {
                USER | GROUP if entry.id != 0 => entry.perm & mask,
                GROUP_OBJ if group != 0 => entry.perm & mask,
                OTHER => entry.perm,
                _ => 0,
            };
            allowed & wanted == wanted
        })
    }

    fn entry(&self, tag: u16) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.tag == tag)
    }

    /// The entry that the group bits of a mode stand for.
    fn group_class(&self) -> u16 {
        match self.0.iter().any(|entry| entry.tag == MASK) {
            true => MASK,
            false => GROUP_OBJ,
        }
    }

    /// Shift of a mode's bits for an entry, if they stand for it.
    fn shift(&self, tag: u16) -> Option<u16> {
        match tag {
            USER_OBJ => Some(6),
            OTHER => Some(0),
            tag if tag == self.group_class() => Some(3),
            _ => None,
        }
    }

    /// `perm` with its nine bits as the list says.
    pub fn perm(&self, perm: u16) -> u16 {
        let bits = self
            .0
            .iter()
            .filter_map(|entry| Some(entry.perm << self.shift(entry.tag)?));
        (perm & 0o7000) | bits.fold(0, |all, bits| all | bits)
    }

    /// After chmod(2).
    pub fn with_perm(&self, perm: u16) -> Acl {
        self.map(|_, shift| (perm >> shift) & 7)
    }

    /// Of a file made with `perm` in a directory with this default list: no more than both allow.
    pub fn inherited(&self, perm: u16) -> Acl {
        self.map(|old, shift| old & (perm >> shift) & 7)
    }

    fn map(&self, class: impl Fn(u16, u16) -> u16) -> Acl {
        let entries = self.0.iter().map(|entry| Entry {
            perm: match self.shift(entry.tag) {
                Some(shift) => class(entry.perm, shift),
                None => entry.perm,
            },
            ..*entry
        });
        Acl(entries.collect())
    }
}

/// Attributes and mode of a new file.
///
/// `default` is the value of the directory's default list; where there is none, the umask counts.
pub fn of_new_file(default: Option<&[u8]>, perm: u16, umask: u16) -> (Option<Vec<u8>>, u16) {
    // What the PFS keeps is valid; if not, the modes alone decide.
    let Some(Ok(default)) = default.map(Acl::parse) else {
        return (None, perm & !(umask & 0o777));
    };
    let acl = default.inherited(perm);
    let perm = acl.perm(perm);
    ((!acl.is_minimal()).then(|| acl.to_bytes()), perm)
}

/// A list among the attributes of a file follows its new mode.
pub fn change_mode(xattrs: &mut Xattrs, perm: u16) {
    for (_, value) in xattrs.iter_mut().filter(|(name, _)| name == ACCESS) {
        // Only valid lists are taken in.
        if let Ok(acl) = Acl::parse(value) {
            *value = acl.with_perm(perm).to_bytes();
        }
    }
}

/// Permission bits without set-user-id, and without set-group-id where it means that (with group
/// execution; without it the bit asks for mandatory locking).
pub fn without_set_id(perm: u16) -> u16 {
    let group = if perm & 0o010 != 0 { 0o2000 } else { 0 };
    perm & !(0o4000 | group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries
            .iter()
            .map(|&(tag, perm, id)| Entry { tag, perm, id });
        Acl(entries.collect()).to_bytes()
    }

    fn named() -> Vec<u8> {
        let no = NOBODY_NAMED;
        list(&[
            (USER_OBJ, 7, no),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, no),
            (MASK, 7, no),
            (OTHER, 1, no),
        ])
    }

    #[test]
    fn the_mode_shows_the_mask_as_the_group() {
        let acl = Acl::parse(&named()).expect("valid");
        assert_eq!(acl.to_bytes(), named());
        assert!(!acl.is_minimal());
        assert_eq!(acl.perm(0o4000), 0o4771);
        let plain = acl.with_perm(0o640);
        assert_eq!(plain.perm(0), 0o640);
        // chmod changes the mask, and neither the group nor who is named.
        assert_eq!(
            (plain.0[1].perm, plain.0[2].perm, plain.0[3].perm),
            (6, 5, 4)
        );
    }

    #[test]
    fn without_a_mask_the_mode_shows_the_group() {
        let no = NOBODY_NAMED;
        let acl = list(&[(USER_OBJ, 6, no), (GROUP_OBJ, 4, no), (OTHER, 0, no)]);
        let acl = Acl::parse(&acl).expect("valid");
        assert!(acl.is_minimal());
        assert_eq!(acl.perm(0), 0o640);
        assert_eq!(acl.with_perm(0o751).perm(0), 0o751);
    }

    #[test]
    fn new_files_get_what_list_and_mode_allow_and_the_umask_only_counts_without() {
        let (acl, perm) = of_new_file(Some(&named()), 0o644, 0o077);
        assert_eq!(perm, 0o640);
        let acl = Acl::parse(&acl.expect("a list")).expect("valid");
        assert_eq!(
            acl.0.iter().map(|e| e.perm).collect::<Vec<_>>(),
            [6, 6, 5, 4, 0]
        );
        assert_eq!(of_new_file(None, 0o666, 0o027), (None, 0o640));
        assert_eq!(of_new_file(None, 0o4777, 0o022), (None, 0o4755));
        let no = NOBODY_NAMED;
        let minimal = list(&[(USER_OBJ, 7, no), (GROUP_OBJ, 0, no), (OTHER, 0, no)]);
        assert_eq!(of_new_file(Some(&minimal), 0o666, 0), (None, 0o600));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let no = NOBODY_NAMED;
        let base = [(USER_OBJ, 7, no), (GROUP_OBJ, 5, no), (OTHER, 1, no)];
        let wrong = [
            vec![],
            vec![2, 0, 0, 0],
            list(&base)[..27].to_vec(),
            list(&base[..2]),
            list(&[base[0], base[1], base[2], base[2]]),
            list(&[base[2], base[1], base[0]]),
            list(&[base[0], (GROUP_OBJ, 8, no), base[2]]),
            // Somebody is named, and there is no mask; and the other way round, with nobody's id.
            list(&[base[0], (USER, 7, 1), base[1], base[2]]),
            list(&[base[0], (USER, 7, no), base[1], (MASK, 7, no), base[2]]),
        ];
        for value in wrong {
            assert_eq!(Acl::parse(&value), Err(Errno::EINVAL), "{value:?}");
        }
        let mut other = list(&base);
        other[0] = 3;
        assert_eq!(Acl::parse(&other), Err(Errno::EOPNOTSUPP));
    }
}
