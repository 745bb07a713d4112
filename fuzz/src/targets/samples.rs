//! One message of every kind, with something in every field that can hold something.

use forebay_types::history::{Record, What};
use forebay_types::{
    Attr, ByteRange, Cred, Dirent, Errno, FileKind, Handle, Ino, LockClass, LockMode, OpenFlags,
    Process, RenameMode, SetAttr, SetTime, Statfs, TimeSpec, XattrMode,
};
use forebay_wire::control::{
    Calibrated, CalibrationStep, Control, ControlResponse, Finding, FsckReport, HistoryAsked,
    HistoryPage, JobProgress, Movement, PathFailure, WhereEntry,
};
use forebay_wire::{
    ContentVersion, Link, LockHolder, LockOf, OpenMode, Opened, Recall, Request, Response,
    SeekWhat, SpaceChange, WriteHow,
};

use super::{inforce, objects};

mod status;

const TIME: TimeSpec = TimeSpec {
    sec: 1_700_000_000,
    nsec: 999_999_999,
};
const CRED: Cred = Cred {
    uid: 1000,
    gid: 100,
    process: Process::here(4242),
    umask: 0o022,
};
const INO: Ino = Ino(Ino::FIRST_BORN + 7);
const HANDLE: Handle = Handle(9);

fn link(name: &[u8]) -> Link {
    Link {
        parent: Ino::ROOT,
        name: name.to_vec(),
    }
}

fn attr() -> Attr {
    Attr {
        ino: INO,
        kind: FileKind::Regular,
        perm: 0o640,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 1 << 33,
        blocks: 1 << 24,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
    }
}

fn set() -> SetAttr {
    SetAttr {
        perm: Some(0o755),
        uid: Some(0),
        gid: None,
        size: Some(4096),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(TIME)),
    }
}

/// Questions of a mount.
#[allow(clippy::too_many_lines, reason = "a list: one entry for each request")]
pub fn requests() -> Vec<Request> {
    let cred = CRED;
    let (ino, handle) = (INO, HANDLE);
    let flags = OpenFlags(libc::O_RDWR as u32);
    let name = b"user.forebay.app".to_vec();
    let mut all = vec![
        Request::Lookup {
            link: link(b"rank-0"),
            uid: 1000,
        },
        Request::Forget(vec![(ino, 3), (Ino::ROOT, 1)]),
        Request::Getattr {
            ino,
            handle: Some(handle),
        },
        Request::Setattr {
            ino,
            handle: None,
            set: set(),
            cred,
        },
        Request::Readlink { ino },
        Request::Mknod {
            link: link(b"fifo"),
            mode: libc::S_IFIFO | 0o600,
            rdev: 0,
            cred,
        },
        Request::Mkdir {
            link: link(b"ckpt-000120"),
            perm: 0o755,
            cred,
        },
        Request::Symlink {
            link: link(b"latest"),
            target: b"ckpt-000120".to_vec(),
            cred,
        },
        Request::Link {
            ino,
            link: link(b"second"),
            cred,
        },
        Request::Unlink {
            link: link(b"second"),
            cred,
        },
        Request::Rmdir {
            link: link(b"ckpt-000120"),
            cred,
        },
        Request::OpenDir { ino, uid: 1000 },
        Request::ReadDir { handle, offset: 17 },
        Request::CloseDir { handle },
        Request::Statfs,
        Request::PfsHealth,
        Request::GetXattr {
            ino,
            name: name.clone(),
            uid: 1000,
        },
        Request::ListXattr { ino, cred },
        Request::RemoveXattr {
            ino,
            name: name.clone(),
            cred,
        },
        Request::Create {
            link: link(b"new"),
            perm: 0o644,
            flags,
            cred,
            shows_parent: true,
        },
        Request::CreateUnnamed {
            parent: Ino::ROOT,
            perm: 0o600,
            flags,
            cred,
        },
        Request::Open { ino, flags, cred },
        Request::Release { handle },
        Request::Read {
            handle,
            offset: 1 << 40,
            len: 1 << 20,
            pages: true,
        },
        Request::Write {
            handle,
            offset: 1 << 40,
            how: WriteHow::WAITING,
        },
        Request::Fsync {
            handle,
            data_only: true,
        },
        Request::FsyncDir { ino },
    ];
    for mode in [
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ] {
        all.push(Request::Rename {
            from: link(b"a"),
            to: link(b"b"),
            mode,
            cred,
        });
    }
    for mode in [XattrMode::Set, XattrMode::Create, XattrMode::Replace] {
        let (name, value) = (name.clone(), b"climate".to_vec());
        all.push(Request::SetXattr {
            ino,
            name,
            value,
            mode,
            cred,
        });
    }
    use SpaceChange::{Allocate, PunchHole, Reserve, ZeroRange, ZeroRangeKeepSize};
    for change in [Allocate, Reserve, PunchHole, ZeroRange, ZeroRangeKeepSize] {
        all.push(Request::Space {
            handle,
            change,
            offset: 4096,
            len: 1 << 30,
            drop_suid: false,
            may_wait: true,
        });
    }
    for what in [SeekWhat::Data, SeekWhat::Hole] {
        all.push(Request::Seek {
            handle,
            offset: 12,
            what,
        });
    }
    all.push(Request::Recalls {
        seen: 9,
        settled: 1,
    });
    all.extend(locks());
    all.push(Request::ShowProbe);
    all.push(Request::HideProbe {
        name: b".forebay-abababab-8000000000000007-12.part".to_vec(),
    });
    all.push(Request::ReleaseMany(vec![handle, HANDLE]));
    all.extend(objects::calls().into_iter().map(Request::Object));
    all.extend(controls().into_iter().map(Request::Control));
    all
}

/// Answers to a mount.
pub fn responses() -> Vec<Response> {
    let opened = |mode, content| Opened {
        handle: HANDLE,
        mode,
        content,
        bytes: content.map_or(0, |_| 9),
        place: (mode == OpenMode::Passthrough).then(|| Box::new(objects::PLACE)),
    };
    let version = ContentVersion {
        run: u64::MAX,
        number: 7,
    };
    let entry = |name: &[u8], next| Dirent {
        ino: INO,
        kind: FileKind::Directory,
        name: name.to_vec(),
        next,
    };
    let mut all = vec![
        Response::Failed(Errno::ENOSPC),
        Response::Done,
        Response::Attr(attr().into()),
        Response::Created(attr().into(), opened(OpenMode::Passthrough, None), None),
        Response::Created(
            attr().into(),
            opened(OpenMode::Plain, None),
            Some(Box::new(attr().into())),
        ),
        Response::Opened(opened(OpenMode::Plain, Some(version))),
        Response::OpenedDir(HANDLE),
        Response::Entries(vec![entry(b".", 1), entry(b"..", 2), entry(b"run7", 3)]),
        Response::Bytes(b"value".to_vec()),
        Response::Moved(1 << 20),
        Response::Paced {
            bytes: 4096,
            pause_ms: 1500,
        },
        Response::Paged {
            bytes: 4096,
            end: 1 << 40,
        },
        Response::Position(u64::MAX),
        Response::Statfs(Statfs::default()),
        Response::PfsHealth {
            silent_ms: 1200,
            give_up_after_ms: 30_000,
        },
        Response::WouldWait,
        Response::LockHolder(Some(LockHolder {
            range: ByteRange::ALL,
            mode: LockMode::Shared,
            pid: 4242,
        })),
        Response::Recalls {
            last: 9,
            recalls: vec![
                Recall::Attr(INO),
                Recall::Pages(INO),
                Recall::Grown { ino: INO, end: 9 },
            ],
        },
        Response::Probe {
            name: b".forebay-abababab-8000000000000007-12.part".to_vec(),
            content: vec![7; 32],
        },
    ];
    all.extend(objects::replies().into_iter().map(Response::Object));
    all.extend(control_responses().into_iter().map(Response::Control));
    all
}

/// Questions and orders of the command line.
pub fn controls() -> Vec<Control> {
    let paths = vec![b"me/run7/ckpt-000120".to_vec(), Vec::new()];
    let mut all = vec![
        Control::Status,
        Control::Where {
            paths: paths.clone(),
            after: Some(b"me/run7".to_vec()),
        },
        Control::Job { id: 3 },
        Control::Cancel { id: 3 },
        Control::Shutdown {
            drain: true,
            timeout_ms: 60_000,
        },
        Control::Policy {
            policy: Some("maxbw".into()),
            placement: Some("lru".into()),
        },
        Control::InForce,
        Control::Lend {
            bytes: 1 << 33,
            name: "job 7".into(),
        },
        Control::Reload,
        Control::Fsck {
            dry_run: true,
            checksums: false,
        },
        Control::History(HistoryAsked {
            since_ms: 1,
            until_ms: 2,
            application: Some("climate".into()),
            uid: Some(1000),
            after: Some(b"h".to_vec()),
        }),
    ];
    use Movement::{Commit, Prefetch, Release, StageIn, StageOut};
    for movement in [StageIn, StageOut, Prefetch, Release, Commit] {
        all.push(Control::Start {
            movement,
            paths: paths.clone(),
        });
    }
    for step in [
        CalibrationStep::Write,
        CalibrationStep::Demote,
        CalibrationStep::Both,
    ] {
        all.push(Control::Calibrate {
            step,
            time_ms: 5000,
        });
    }
    all
}

fn failure() -> PathFailure {
    PathFailure {
        path: b"me/run7/rank-0".to_vec(),
        errno: Errno::EIO,
        reason: "the PFS says no".into(),
    }
}

/// Answers to the command line.
pub fn control_responses() -> Vec<ControlResponse> {
    let file = WhereEntry {
        path: b"me/run7/rank-0".to_vec(),
        tiers: vec!["dram".into(), "pfs".into()],
        state: "clean".into(),
        size_bytes: 1 << 30,
        application: "me/run{version}".into(),
        version: Some(120),
        crc32c: Some(0xe306_9283),
        error: Some("quota".into()),
        unpublished: true,
        durability: Some("replica".into()),
        stale_tiers: vec!["server-3:ssd".into()],
    };
    let job = JobProgress {
        counting: true,
        files_total: 12,
        failures: vec![failure()],
        left: vec![b"me".to_vec()],
        ..JobProgress::default()
    };
    let calibrated = Calibrated {
        write_bytes_per_s: Some(1 << 31),
        bandwidths: Some([4, 3, 2, 1]),
        line: Some((-12, 34)),
        spread_permille: 50,
        unsettled: Some((1, 2)),
        ..Calibrated::default()
    };
    let finding = Finding {
        kind: "object-missing".into(),
        subject: b"me/run7".to_vec(),
        problem: "it is gone".into(),
        action: "the PFS's is shown".into(),
        repaired: true,
    };
    vec![
        ControlResponse::Status(Box::new(status::status())),
        ControlResponse::Where {
            files: vec![file],
            more_after: Some(b"me".to_vec()),
            failures: vec![failure()],
        },
        ControlResponse::Started { id: 3 },
        ControlResponse::Job(job),
        ControlResponse::Stopping,
        ControlResponse::History(HistoryPage {
            records: vec![Record::new(What::NAMES[0].1, "climate".into(), 1000, 3)],
            more_after: Some(b"h".to_vec()),
            kept_for_ms: 4,
        }),
        ControlResponse::InForce(inforce::in_force()),
        ControlResponse::Reloaded(inforce::reloaded()),
        ControlResponse::Calibrated(calibrated),
        ControlResponse::Fsck(FsckReport {
            records: 7,
            objects: 8,
            verified_bytes: 9,
            not_looked_at: vec!["server-2:dram".into()],
            findings: vec![finding],
        }),
    ]
}

fn lock() -> LockOf {
    LockOf {
        handle: HANDLE,
        class: LockClass::Bytes,
        owner: 1 << 63,
        range: ByteRange { first: 7, last: 9 },
    }
}

fn locks() -> [Request; 6] {
    let (lock, mode) = (lock(), LockMode::Exclusive);
    [
        Request::Lock {
            lock,
            mode,
            pid: 4242,
            ticket: Some(11),
            again: false,
        },
        Request::Unlock { lock },
        Request::TestLock { lock, mode },
        Request::CancelLock { ticket: 11 },
        Request::MayReclaim {
            life: 12,
            done: true,
        },
        Request::FindNameless {
            ino: Ino(13),
            life: 12,
        },
    ]
}
