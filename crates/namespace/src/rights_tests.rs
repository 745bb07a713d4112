use forebay_types::{TimeSpec, limits};
use proptest::prelude::*;

use super::*;

/// A caller of the model: an ordinary process without capabilities.
#[derive(Clone, Debug)]
struct Caller {
    uid: u32,
    groups: Vec<u32>,
}

type Entries = Vec<(u16, u16, u32)>;
type Outcome = Result<(), Errno>;

/// A file as the model has it, and as the rules have it.
#[derive(Clone, Debug)]
struct Thing {
    rights: Rights,
    entries: Option<Entries>,
}

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

const IDS: [u32; 4] = [0, 1000, 1001, NOBODY];

fn bytes_of(entries: &Entries) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The algorithm of acl(5), word by word; without a list it is that of POSIX.
fn model_access(caller: &Caller, thing: &Thing, wanted: u16) -> bool {
    let object = &thing.rights;
    let in_group = |id: u32| caller.groups.contains(&id);
    let Some(entries) = &thing.entries else {
        if caller.uid == object.uid {
            return (object.perm >> 6) & wanted == wanted;
        }
        if in_group(object.gid) {
            return (object.perm >> 3) & wanted == wanted;
        }
        return object.perm & wanted == wanted;
    };
    let of = |tag: u16| entries.iter().find(|entry| entry.0 == tag).map(|e| e.1);
    let mask = of(MASK).unwrap_or(7);
    if caller.uid == object.uid {
        return of(USER_OBJ).expect("valid") & wanted == wanted;
    }
    for (tag, perm, id) in entries {
        if *tag == USER && *id == caller.uid {
            return perm & mask & wanted == wanted;
        }
    }
    let mut matches = false;
    for (tag, perm, id) in entries {
        let is_mine =
            (*tag == GROUP_OBJ && in_group(object.gid)) || (*tag == GROUP && in_group(*id));
        if is_mine {
            matches = true;
            if perm & mask & wanted == wanted {
                return true;
            }
        }
    }
    !matches && of(OTHER).expect("valid") & wanted == wanted
}

/// May remove: POSIX on directories with S_ISVTX.
fn model_remove(caller: &Caller, dir: &Thing, victim: Option<&Thing>) -> Result<(), Errno> {
    if !model_access(caller, dir, 3) {
        return Err(Errno::EACCES);
    }
    let Some(victim) = victim else {
        return Ok(());
    };
    let restricted = dir.rights.perm & 0o1000 == 0o1000;
    let is_own = caller.uid == victim.rights.uid || caller.uid == dir.rights.uid;
    if restricted && !is_own {
        return Err(Errno::EPERM);
    }
    Ok(())
}

fn model_open(caller: &Caller, file: &Thing, flags: i32) -> Result<(), Errno> {
    let executes = flags & (libc::O_ACCMODE | 0x20) == libc::O_RDONLY | 0x20;
    if executes && (file.rights.kind != FileKind::Regular || flags & libc::O_TRUNC != 0) {
        return Err(Errno::EACCES);
    }
    let mut wanted = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => 2,
        libc::O_RDWR => 6,
        _ if flags & 0x20 != 0 => 1,
        _ => 4,
    };
    if flags & libc::O_TRUNC != 0 {
        wanted |= 2;
    }
    if !model_access(caller, file, wanted) {
        return Err(Errno::EACCES);
    }
    if flags & libc::O_NOATIME != 0 && caller.uid != file.rights.uid {
        return Err(Errno::EPERM);
    }
    Ok(())
}

fn model_xattr(caller: &Caller, file: &Thing, name: &str, deed: usize) -> Result<(), Errno> {
    let object = &file.rights;
    let (reads, removes) = (deed == 0, deed == 2);
    let is_owner = caller.uid == object.uid;
    if let Some(("user", _)) = name.split_once('.') {
        let has = object.kind == FileKind::Regular || object.kind == FileKind::Directory;
        return match (has, reads) {
            (false, true) => Err(Errno::ENODATA),
            (false, false) => Err(Errno::EPERM),
            (true, true) if model_access(caller, file, 4) => Ok(()),
            (true, true) => Err(Errno::EACCES),
            (true, false) => {
                let is_sticky_dir = object.kind == FileKind::Directory && object.perm & 0o1000 != 0;
                if is_sticky_dir && !is_owner {
                    return Err(Errno::EPERM);
                }
                match model_access(caller, file, 2) {
                    true => Ok(()),
                    false => Err(Errno::EACCES),
                }
            }
        };
    }
    if reads {
        return match name.starts_with("trusted.") {
            true => Err(Errno::ENODATA),
            false => Ok(()),
        };
    }
    let allowed = match name {
        "system.posix_acl_access" | "system.posix_acl_default" => is_owner,
        "security.capability" => removes && model_access(caller, file, 2),
        _ => false,
    };
    if allowed { Ok(()) } else { Err(Errno::EPERM) }
}

/// setattr_prepare of Linux, for who has no capability.
fn model_set(
    caller: &Caller,
    file: &Thing,
    set: &SetAttr,
    has_written: bool,
) -> Result<Option<u16>, Errno> {
    let object = &file.rights;
    let is_owner = caller.uid == object.uid;
    let writes = has_written || model_access(caller, file, 2);
    if set.size.is_some() && !writes {
        return Err(Errno::EACCES);
    }
    if let Some(uid) = set.uid
        && !(is_owner && uid == object.uid)
    {
        return Err(Errno::EPERM);
    }
    if let Some(gid) = set.gid
        && !(is_owner && (gid == object.gid || caller.groups.contains(&gid)))
    {
        return Err(Errno::EPERM);
    }
    if let Some(perm) = set.perm {
        let drops_set_id = (0..12).all(|bit| {
            let (old, new) = (object.perm >> bit & 1, perm >> bit & 1);
            old == new || (old == 1 && bit >= 10)
        });
        let may = is_owner || (drops_set_id && writes);
        if !may {
            return Err(Errno::EPERM);
        }
    }
    match (set.atime, set.mtime, set.size) {
        (None, None, _) | (None, Some(SetTime::Now), Some(_)) => {}
        _ if is_owner => {}
        (Some(SetTime::Now), Some(SetTime::Now), _) if writes => {}
        (Some(SetTime::Now), Some(SetTime::Now), _) => return Err(Errno::EACCES),
        _ => return Err(Errno::EPERM),
    }
    let group = set.gid.unwrap_or(object.gid);
    Ok(set.perm.map(|perm| match caller.groups.contains(&group) {
        true => perm,
        false => perm & !0o2000,
    }))
}

fn id() -> impl Strategy<Value = u32> {
    prop::sample::select(IDS.to_vec())
}

fn kind() -> impl Strategy<Value = FileKind> {
    prop::sample::select(vec![
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ])
}

fn list() -> impl Strategy<Value = Entries> {
    let named = || prop::collection::btree_map(id(), 0u16..8, 0..3);
    let four = (0u16..8, 0u16..8, 0u16..8, 0u16..8);
    (four, named(), named()).prop_map(|((owner, group, mask, other), users, groups)| {
        let no = u32::MAX;
        let mut entries = vec![(USER_OBJ, owner, no)];
        entries.extend(users.into_iter().map(|(id, perm)| (USER, perm, id)));
        entries.push((GROUP_OBJ, group, no));
        entries.extend(groups.into_iter().map(|(id, perm)| (GROUP, perm, id)));
        entries.extend([(MASK, mask, no), (OTHER, other, no)]);
        entries
    })
}

fn thing() -> impl Strategy<Value = Thing> {
    let list = prop::option::weighted(0.4, list());
    (kind(), 0u16..0o10000, id(), id(), list).prop_map(|(kind, perm, uid, gid, entries)| {
        let list = entries.as_ref().map(|entries| {
            let list = Acl::parse(&bytes_of(entries));
            list.expect("a valid list")
        });
        let perm = list.as_ref().map_or(perm, |list| list.perm(perm));
        let rights = Rights {
            kind,
            perm,
            uid,
            gid,
            list,
        };
        Thing { rights, entries }
    })
}

fn set() -> impl Strategy<Value = SetAttr> {
    let time = || {
        let at = SetTime::At(TimeSpec::default());
        prop::option::of(prop::sample::select(vec![SetTime::Now, at]))
    };
    (
        prop::option::of(0u16..0o10000),
        prop::option::weighted(0.3, id()),
        prop::option::weighted(0.3, id()),
        prop::option::of(0..limits::FILE_BYTES_MAX),
        time(),
        time(),
    )
        .prop_map(|(perm, uid, gid, size, atime, mtime)| SetAttr {
            perm,
            uid,
            gid,
            size,
            atime,
            mtime,
        })
}

fn flags() -> impl Strategy<Value = i32> {
    let bits = [libc::O_TRUNC, libc::O_APPEND, libc::O_NOATIME, 0x20];
    let bits = prop::sample::subsequence(bits.to_vec(), 0..=4);
    (0..3i32, bits).prop_map(|(access, bits)| access | bits.into_iter().fold(0, |a, b| a | b))
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "user.a",
        "trusted.a",
        "security.capability",
        "security.selinux",
        "system.posix_acl_access",
        "system.posix_acl_default",
    ])
}

fn nobody() -> Caller {
    Caller {
        uid: NOBODY,
        groups: vec![NOBODY],
    }
}

/// All that a program may say it is, but for root and root's group.
fn others() -> Vec<Caller> {
    let uids = [1000, 1001, 4242, NOBODY];
    let groups = [
        vec![],
        vec![1000],
        vec![1001],
        vec![NOBODY],
        vec![1000, 1001, NOBODY],
    ];
    let all = uids.iter().flat_map(|uid| {
        let of = |groups: &Vec<u32>| Caller {
            uid: *uid,
            groups: groups.clone(),
        };
        groups.iter().map(of).collect::<Vec<_>>()
    });
    all.collect()
}

/// What each deed on one file or directory is to the rules and to the model.
fn on_one(
    who: Who,
    callers: &[Caller],
    (thing, flags, name): (&Thing, i32, &str),
) -> Vec<(Outcome, Vec<Outcome>)> {
    let rights = &thing.rights;
    let access = |wanted| {
        let one = |caller: &Caller| match model_access(caller, thing, wanted) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        };
        callers.iter().map(one).collect::<Vec<_>>()
    };
    let (file, bytes) = (rights, name.as_bytes());
    let deeds = [
        Deed::GetXattr { file, name: bytes },
        Deed::SetXattr { file, name: bytes },
        Deed::RemoveXattr { file, name: bytes },
    ];
    let open = Deed::Open {
        file,
        flags: OpenFlags(flags as u32),
    };
    let mut outcomes = vec![
        (who.may(&Deed::Find { dir: rights }), access(1)),
        (who.may(&Deed::List { dir: rights }), access(4)),
        (
            who.may(&open),
            callers
                .iter()
                .map(|c| model_open(c, thing, flags))
                .collect(),
        ),
        (who.may(&make(rights, FileKind::Symlink)), access(3)),
    ];
    for (number, deed) in deeds.iter().enumerate() {
        let model = callers.iter().map(|c| model_xattr(c, thing, name, number));
        outcomes.push((who.may(deed), model.collect()));
    }
    outcomes
}

fn make(dir: &Rights, kind: FileKind) -> Deed<'_> {
    Deed::Make { dir, kind, rdev: 1 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nobody_may_what_posix_lets_an_ordinary_user_do(
        (one, other, file, replaced) in (thing(), thing(), thing(), prop::option::of(thing())),
        (flags, name, set) in (flags(), name(), set()),
        (has_written, other_dir, exchange) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let caller = nobody();
        for (ruled, model) in on_one(Who::Nobody, std::slice::from_ref(&caller), (&one, flags, name)) {
            prop_assert_eq!(ruled, model[0]);
        }
        let set_by_rule = Who::Nobody.may_set(&one.rights, &set, has_written);
        let set_by_model = model_set(&caller, &one, &set, has_written);
        prop_assert_eq!(set_by_rule.map(|set| set.perm), set_by_model);
        let removed = Deed::Remove { dir: &one.rights, victim: Some(&file.rights) };
        prop_assert_eq!(Who::Nobody.may(&removed), model_remove(&caller, &one, Some(&file)));
        for kind in [FileKind::CharDevice, FileKind::BlockDevice] {
            prop_assert!(Who::Nobody.may(&make(&one.rights, kind)).is_err());
        }
        let renamed = Who::Nobody.may(&Deed::Rename {
            from: &one.rights,
            file: Some(&file.rights),
            to: &other.rights,
            replaced: replaced.as_ref().map(|replaced| &replaced.rights),
            other_dir,
            exchange,
        });
        let is_dir = |thing: &Thing| thing.rights.kind == FileKind::Directory;
        let moved = [Some(&file), replaced.as_ref().filter(|_| exchange)];
        let mut moved = moved.into_iter().flatten().filter(|moved| is_dir(moved));
        let model = model_remove(&caller, &one, Some(&file))
            .and_then(|()| model_remove(&caller, &other, replaced.as_ref()))
            .and_then(|()| match other_dir && moved.any(|dir| !model_access(&caller, dir, 2)) {
                true => Err(Errno::EACCES),
                false => Ok(()),
            });
        prop_assert_eq!(renamed, model);
    }

    #[test]
    fn a_user_may_what_some_user_but_root_might_do(
        one in thing(),
        (flags, name, set) in (flags(), name(), set()),
        has_written in any::<bool>(),
    ) {
        let (who, callers) = (Who::User(1000), others());
        let is_roots = one.rights.uid == 0;
        for (ruled, model) in on_one(who, &callers, (&one, flags, name)) {
            // Nothing is refused that an honest node has let pass.
            let might = model.iter().any(Result::is_ok);
            prop_assert!(ruled.is_ok() || !might, "{:?} {:?}", ruled, one);
            // And what is root's stays so.
            prop_assert!(ruled.is_err() || might || !is_roots, "{:?}", one);
        }
        let ruled = who.may_set(&one.rights, &set, has_written);
        let model = callers.iter().map(|c| model_set(c, &one, &set, has_written));
        let might = model.filter_map(Result::ok).collect::<Vec<_>>();
        prop_assert!(ruled.is_ok() || might.is_empty(), "{:?} {:?}", ruled, one);
        prop_assert!(ruled.is_err() || !might.is_empty() || !is_roots, "{:?}", one);
        if let Ok(done) = ruled {
            // Nobody makes a program that runs as root or as root's group.
            prop_assert_eq!(done.uid.unwrap_or(one.rights.uid), one.rights.uid);
            prop_assert!(done.gid.is_none_or(|gid| gid != 0 || one.rights.gid == 0));
            let group = done.gid.unwrap_or(one.rights.gid);
            prop_assert!(done.perm.is_none_or(|perm| group != 0 || perm & 0o2000 == 0));
        }
    }
}

#[test]
fn a_file_gets_another_name_by_its_owner_or_who_may_read_and_write_it() {
    let rights = |kind, perm, uid| Rights {
        kind,
        perm,
        uid,
        gid: 1000,
        list: None,
    };
    let dir = rights(FileKind::Directory, 0o777, 0);
    let link = |file: &Rights| Who::Nobody.may(&Deed::Link { file, dir: &dir });
    let regular = FileKind::Regular;
    assert_eq!(link(&rights(regular, 0o000, NOBODY)), Ok(()));
    assert_eq!(link(&rights(regular, 0o666, 1000)), Ok(()));
    for file in [
        rights(regular, 0o664, 1000),
        rights(regular, 0o4666, 1000),
        rights(regular, 0o2676, 1000),
        rights(FileKind::Fifo, 0o666, 1000),
    ] {
        assert_eq!(link(&file), Err(Errno::EPERM), "{file:?}");
    }
    let closed = rights(FileKind::Directory, 0o755, 0);
    let file = rights(regular, 0o666, NOBODY);
    let refused = Deed::Link {
        file: &file,
        dir: &closed,
    };
    assert_eq!(Who::Nobody.may(&refused), Err(Errno::EACCES));
}

#[test]
fn a_directory_that_may_not_be_written_keeps_its_parent() {
    let rights = |kind, perm, uid| Rights {
        kind,
        perm,
        uid,
        gid: 1000,
        list: None,
    };
    let all = rights(FileKind::Directory, 0o777, 1000);
    let theirs = rights(FileKind::Directory, 0o755, 1000);
    let file = rights(FileKind::Regular, 0o644, 1000);
    let rename = |file, replaced, other_dir, exchange| {
        Who::Nobody.may(&Deed::Rename {
            from: &all,
            file: Some(file),
            to: &all,
            replaced: Some(replaced),
            other_dir,
            exchange,
        })
    };
    assert_eq!(rename(&theirs, &file, true, false), Err(Errno::EACCES));
    assert_eq!(rename(&file, &theirs, true, true), Err(Errno::EACCES));
    // It goes, or stays where it is.
    assert_eq!(rename(&file, &theirs, true, false), Ok(()));
    assert_eq!(rename(&theirs, &theirs, false, true), Ok(()));
}
