//! The same of what a metadata server asks of a data server.

use forebay_types::{Errno, Handle, ObjectId, SetTime, TierId, TimeSpec};
use forebay_wire::{
    CopyEnd, CopyFacts, CopyFailure, DirtyPages, ObjectCall, ObjectFacts, ObjectKey, ObjectPlace,
    ObjectReply, ObjectRequest, ObjectTier, ObjectUse, OutsideFile, SeekWhat, SpaceChange,
};

const TIER: TierId = TierId(2);
const KEY: ObjectKey = ObjectKey {
    tier: TIER,
    object: ObjectId(77),
};
const HANDLE: Handle = Handle(1_700_000_000_000_000_000);
const TIME: TimeSpec = TimeSpec {
    sec: 1_700_000_000,
    nsec: 999_999_999,
};

/// Calls.
pub fn calls() -> Vec<ObjectCall> {
    let identity = vec![1; 90];
    let mut all = vec![
        ObjectCall::Begin {
            instance: [3; 16],
            epoch: 9,
        },
        ObjectCall::Join {
            instance: [3; 16],
            epoch: 9,
        },
        ObjectCall::Space(TIER),
        ObjectCall::Close(vec![HANDLE, Handle(3)]),
        ObjectCall::Remove(KEY),
        ObjectCall::Quarantine(KEY),
        ObjectCall::Identity(KEY),
        ObjectCall::List {
            tier: TIER,
            after: Some(ObjectId(5)),
        },
        ObjectCall::SyncAll(TIER),
        ObjectCall::GiveBack(TIER),
    ];
    for how in [ObjectUse::Write, ObjectUse::Share] {
        all.push(ObjectCall::Open { key: KEY, how });
        let identity = identity.clone();
        all.push(ObjectCall::Create {
            key: KEY,
            identity,
            how,
        });
    }
    all.push(ObjectCall::HandOver(PLACE));
    all.extend(copy_calls());
    let on = |request| ObjectCall::On(HANDLE, request);
    all.extend(requests(identity).into_iter().map(on));
    all
}

/// Of an open object.
fn requests(identity: Vec<u8>) -> Vec<ObjectRequest> {
    let mut requests = vec![
        ObjectRequest::Read {
            offset: 1 << 40,
            len: 1 << 20,
        },
        ObjectRequest::Write { offset: 1 << 40 },
        ObjectRequest::Append,
        ObjectRequest::SetLen { size: 1 << 33 },
        ObjectRequest::Sync { data_only: true },
        ObjectRequest::Stat,
        ObjectRequest::SetTimes {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(TIME)),
        },
        ObjectRequest::SetIdentity(identity),
        ObjectRequest::DropCache,
        ObjectRequest::HasWriters,
        ObjectRequest::HoldWriters(true),
        ObjectRequest::ForgetFailedFlushes,
    ];
    for what in [DirtyPages::Start, DirtyPages::Wait, DirtyPages::Finish] {
        requests.push(ObjectRequest::WriteBack {
            what,
            offset: 1 << 30,
            len: 1 << 20,
        });
    }
    use SpaceChange::{Allocate, PunchHole, Reserve, ZeroRange, ZeroRangeKeepSize};
    for change in [Allocate, Reserve, PunchHole, ZeroRange, ZeroRangeKeepSize] {
        requests.push(ObjectRequest::Allocate {
            change,
            offset: 4096,
            len: 1 << 30,
        });
    }
    for what in [SeekWhat::Data, SeekWhat::Hole] {
        requests.push(ObjectRequest::Seek { from: 12, what });
    }
    requests
}

/// Where an object is.
pub const PLACE: ObjectPlace = ObjectPlace {
    server: 3,
    instance: [7; 16],
    key: ObjectKey {
        tier: TierId(1),
        object: ObjectId(77),
    },
};

fn copy_calls() -> [ObjectCall; 4] {
    [
        ObjectCall::CopyOut {
            handle: HANDLE,
            to: OutsideFile {
                path: b"run/.forebay-1-2-3.part".to_vec(),
                ino: 77,
                owner: (1000, 100),
                ahead_bytes: 1 << 25,
                from_media: true,
            },
        },
        ObjectCall::CopyGo {
            copy: HANDLE,
            upto_bytes: 1 << 30,
        },
        ObjectCall::CopySums {
            copy: HANDLE,
            from: 7,
        },
        ObjectCall::CopyEnd(HANDLE),
    ]
}

/// Answers to them.
pub fn replies() -> Vec<ObjectReply> {
    vec![
        ObjectReply::Tiers {
            boot: "5a3c".into(),
            tiers: vec![ObjectTier {
                tells_writers: true,
                mark: [3; 16],
                name: "dram".into(),
                is_memory: true,
                capacity_bytes: 1 << 36,
            }],
        },
        ObjectReply::Space {
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            lent_bytes: 1 << 38,
        },
        ObjectReply::Opened(HANDLE),
        ObjectReply::Place("/flash/lost+found/77".into()),
        ObjectReply::Identity(Some(vec![1; 90])),
        ObjectReply::IdentityDamaged,
        ObjectReply::Found(Some(4096)),
        ObjectReply::Stat(ObjectFacts {
            size: 1 << 33,
            allocated_bytes: 1 << 30,
            atime: TIME,
            mtime: TIME,
            is_removed: true,
        }),
        ObjectReply::Truth(true),
        ObjectReply::Appended {
            bytes: 1 << 20,
            end: 1 << 33,
        },
        copied(None),
        copied(Some(CopyEnd::Whole(CopyFacts {
            data_bytes: 1 << 30,
            bytes: 1 << 31,
            crc: 0x1234_5678,
            block_bytes: 1 << 20,
            blocks: 2048,
        }))),
        copied(Some(CopyEnd::Failed(CopyFailure::Unreached(Errno::ENOENT)))),
        copied(Some(CopyEnd::Failed(CopyFailure::Source(Errno::EIO)))),
        copied(Some(CopyEnd::Failed(CopyFailure::Destination(
            Errno::ENOSPC,
        )))),
        copied(Some(CopyEnd::Failed(CopyFailure::Verify {
            expected: 1,
            found: 2,
        }))),
        copied(Some(CopyEnd::Failed(CopyFailure::Stopped))),
    ]
}

fn copied(end: Option<CopyEnd>) -> ObjectReply {
    ObjectReply::Copied {
        moved_bytes: 1 << 30,
        offset: 1 << 31,
        end,
    }
}
