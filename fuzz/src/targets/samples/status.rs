//! The status, with everything in it.

use super::failure;
use forebay_wire::control::{
    AheadStatus, ApplicationStatus, Awaited, AwaitedFile, ClientStatus, ConflictEntry,
    ConnectionStatus, EmptyingStatus, LendingFile, LendingOrder, LendingStatus, LimitStatus,
    NetworkStatus, NodeLending, NodeStatus, PlanStatus, RefusedStatus, RunExpected, RunsStatus,
    ScrubStatus, StandbyStatus, StatusBits, TierStatus, VersionStatus,
};

pub(super) fn status() -> StatusBits {
    let tier = TierStatus {
        name: "dram".into(),
        capacity_bytes: 1 << 32,
        used_bytes: 1 << 31,
        dirty_bytes: 1 << 30,
        reserved_bytes: 0,
        out_of_reach: false,
    };
    let application = ApplicationStatus {
        name: "me/run{version}".into(),
        version: Some(120),
        dwsf_bytes: 1,
        dwpp_bytes: Some(2),
        mtbf_ms: Some(3),
        resident_bytes: 4,
        dirty_bytes: 5,
        files: 6,
    };
    let conflict = ConflictEntry {
        path: b"a".to_vec(),
        kept_as: b"a.forebay-conflict-1".to_vec(),
        at_s: -1,
        reason: "somebody wrote".into(),
    };
    let version = VersionStatus {
        path: b"me/ckpt-3".to_vec(),
        files: 1,
        undrained_files: 1,
        undrained_bytes: 2,
        written_files: 0,
        committed: true,
        interrupted: false,
        lost_files: 0,
        since_s: 1,
        error: None,
    };
    StatusBits {
        version: "0.1.0".into(),
        pfs: b"/scratch".to_vec(),
        plan: PlanStatus {
            why: "idle".into(),
            pattern: Some(2),
            feasible: Some(true),
            ..PlanStatus::default()
        },
        tiers: vec![tier],
        errors: vec![failure()],
        conflicts: vec![conflict],
        unpublished: vec![version],
        limits: vec![limit()],
        limits_total: 1,
        scrub: ScrubStatus {
            last_pass_end_s: Some(-5),
            ..ScrubStatus::default()
        },
        applications: vec![application],
        network: Some(Box::new(network())),
        nodes: vec![node()],
        ahead: ahead(),
        lending: Some(Box::new(lending())),
        standby: Some(Box::new(StandbyStatus {
            server: 2,
            cluster: "bb0".into(),
            leader: "server 1 of bb0 on n1".into(),
        })),
        ..StatusBits::default()
    }
}

fn lending() -> LendingStatus {
    LendingStatus {
        borrowed_bytes: 1 << 32,
        why: "jobs".into(),
        orders: vec![LendingOrder {
            name: "job 7".into(),
            bytes: 1 << 30,
        }],
        waits_for: vec![LendingFile {
            path: b"run/f".to_vec(),
            bytes: 1 << 20,
            deleted: true,
        }],
        ..LendingStatus::default()
    }
}

fn ahead() -> AheadStatus {
    AheadStatus {
        guessed_bytes: 1 << 40,
        hit_bytes: 1 << 39,
        lists: 1,
        runs: RunsStatus {
            expected: 1,
            guessed_bytes: 1 << 30,
            next: vec![RunExpected {
                path: b"data/hourly".to_vec(),
                period_ms: 3_600_000,
                next_in_ms: -1,
                bytes: 1 << 30,
                here_bytes: 1 << 29,
            }],
            ..RunsStatus::default()
        },
        ..AheadStatus::default()
    }
}

fn limit() -> LimitStatus {
    LimitStatus {
        is_group: true,
        id: 100,
        used_bytes: 1 << 30,
        capacity_bytes: Some(1 << 31),
        dirty_bytes: 1 << 20,
        undrained_bytes: Some(1 << 21),
        rate_bytes_per_s: Some(1 << 25),
        written_bytes: 1 << 40,
        paused_ms: 12_000,
        beyond: "wait".into(),
    }
}

fn node() -> NodeStatus {
    NodeStatus {
        server: 2,
        rack: Some("r1".into()),
        addresses: vec![([10, 0, 0, 2], 7070).into()],
        data: true,
        missing_ms: Some(1),
        tiers: vec!["server-2:dram".into()],
        only_here_bytes: 3,
        emptying: Some(EmptyingStatus {
            files: 2,
            open_files: 1,
            awaited: vec![AwaitedFile {
                path: b"a".to_vec(),
                why: Awaited::SecondChanges,
            }],
        }),
        lending: Some(Box::new(NodeLending {
            owed_bytes: 4,
            waits_for: vec![LendingFile::default()],
            ..NodeLending::default()
        })),
        ..NodeStatus::default()
    }
}

fn network() -> NetworkStatus {
    let client = ClientStatus {
        host: "node1".into(),
        pid: 4711,
        uid: 1000,
        address: Some(([10, 0, 0, 2], 43210).into()),
        age_ms: 61_000,
        silent_ms: 12,
        open_files: 2,
        requests: 300,
        connections: vec![ConnectionStatus {
            number: 1,
            in_bytes: 1 << 30,
            out_bytes: 1 << 20,
        }],
    };
    let refused = RefusedStatus {
        reason: "key".into(),
        peers: 3,
    };
    NetworkStatus {
        clients: vec![client],
        clients_total: 1,
        connections_total: 1,
        refused: vec![refused],
        refused_total: 3,
        threads: 8,
        threads_busy: 1,
    }
}
