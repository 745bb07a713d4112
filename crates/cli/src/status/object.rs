//! The status as one JSON object.

use std::path::Path;

use forebay_wire::control::{
    ApplicationStatus, ConflictEntry, DataServerStatus, PlanStatus, ScrubStatus,
    SecondCopiesStatus, StandbyStatus, StatusBits, TierStatus, VersionStatus,
};
use serde_json::{Map, Value, json};

use super::{ahead, clients, drain_eta_s, keeper, lending, limits, mount_of, nodes, now};
use crate::mounts::in_mount;
use crate::show::json::{self, insert_path};

/// Version of docs/status.schema.json. It grows when a field goes or changes its meaning.
const SCHEMA_VERSION: u32 = 1;

fn second_copies_json(copies: &SecondCopiesStatus) -> Value {
    let figure = |figure: u64| copies.known.then_some(figure);
    json!({
        "known": copies.known,
        "missing_files": figure(copies.missing_files),
        "missing_bytes": figure(copies.missing_bytes),
    })
}

/// The object that `--json` prints.
pub fn to_json(bits: &StatusBits) -> Value {
    if let Some(data) = &bits.data_server {
        return data_server_json(bits, data);
    }
    if let Some(standby) = &bits.standby {
        return standby_json(bits, standby);
    }
    let mut object = begin_json(bits);
    insert_path(&mut object, "mount", &bits.mount);
    insert_path(&mut object, "state", &bits.state);
    let facts = json!({
        "pid": bits.pid,
        "uptime_s": json::seconds(bits.uptime_ms),
        "durability": bits.durability,
        "policy": bits.policy,
        "placement": bits.placement,
        "plan": plan_json(&bits.plan),
        "passthrough": bits.passthrough,
        "tiers": bits.tiers.iter().map(tier_json).collect::<Value>(),
        "dwsf_bytes": bits.dwsf_bytes,
        "dwpp_bytes": bits.dwpp_bytes,
        "dirty_bytes": bits.dirty_bytes,
        "dirty_cap_bytes": bits.dirty_cap_bytes,
        "drain": {
            "rate_bytes_per_s": bits.drain_rate_bytes_per_s,
            "eta_s": drain_eta_s(bits),
            "queued_files": bits.drain_queued_files,
            "failing_files": bits.drain_failing_files,
            "next_try_s": bits.drain_next_try_ms.map(json::seconds),
        },
        "demoted_bytes_total": bits.demoted_bytes_total,
        "demoted_files_total": bits.demoted_files_total,
        "evicted_bytes_total": bits.evicted_bytes_total,
        "waited_writes_total": bits.waited_writes_total,
        "space_wait_s_total": json::seconds(bits.space_wait_ms_total),
        "restarts_total": bits.restarts_total,
        "restart_hits_total": bits.restart_hits_total,
        "direct_files_total": bits.direct_files_total,
        "handed_over_files_total": bits.handed_over_files_total,
        "pfs_silent_s": bits.pfs_silent_ms.map(json::seconds),
        "files": bits.files,
        "open_files": bits.open_files,
        "held_files": bits.held_files,
        "stopping": bits.stopping,
        "descriptors_max": bits.descriptors_max,
        "store": bits.store,
        "store_failing": bits.store_failing,
        "errors": json::failures(mount_of(bits), &[], &bits.errors),
        "errors_total": bits.errors_total,
        "conflicts": bits.conflicts.iter().map(|c| conflict_json(mount_of(bits), c)).collect::<Value>(),
        "conflicts_total": bits.conflicts_total,
        "unpublished": bits.unpublished.iter().map(|v| version_json(mount_of(bits), v)).collect::<Value>(),
        "scrub": scrub_json(&bits.scrub),
        "applications": bits.applications.iter().map(application_json).collect::<Value>(),
        "applications_total": bits.applications_total,
        "network": bits.network.as_deref().map(clients::to_json),
        "nodes": bits.nodes.iter().map(|node| nodes::to_json(node, mount_of(bits))).collect::<Value>(),
        "names_hidden": bits.names_hidden,
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    now::add_json(&mut object, bits);
    add_parts(&mut object, bits);
    Value::Object(object)
}

/// What has a file of its own.
fn add_parts(object: &mut Map<String, Value>, bits: &StatusBits) {
    let copies = bits.second_copies.as_ref().map(second_copies_json);
    object.insert("second_copies".into(), copies.into());
    let lending = bits.lending.as_deref().map(lending::to_json);
    object.insert("lending".into(), lending.into());
    let limited = bits.limits.iter().map(limits::to_json);
    object.insert("limits".into(), limited.collect());
    object.insert("limits_total".into(), bits.limits_total.into());
    let ahead = ahead::to_json(&bits.ahead, mount_of(bits));
    object.insert("ahead".into(), ahead);
}

/// What every kind of status begins with.
fn begin_json(bits: &StatusBits) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("schema_version".into(), SCHEMA_VERSION.into());
    object.insert("version".into(), bits.version.clone().into());
    insert_path(&mut object, "pfs", &bits.pfs);
    let keeper = bits.keeper.map(keeper::to_json);
    object.insert("keeper".into(), keeper.into());
    object
}

/// The plan in force.
pub fn plan_json(plan: &PlanStatus) -> Value {
    let bandwidths = plan.bandwidths.map(|[bw_max, bw_min, br_max, br_min]| {
        json!({
            "bw_max_bytes_per_s": bw_max,
            "bw_min_bytes_per_s": bw_min,
            "br_max_bytes_per_s": br_max,
            "br_min_bytes_per_s": br_min,
        })
    });
    json!({
        "why": plan.why,
        "pattern": plan.pattern,
        "start_dwsf_bytes": plan.start_dwsf_bytes,
        "full_dwsf_bytes": plan.full_dwsf_bytes,
        "feasible": plan.feasible,
        "checkpoint_limit_bytes_per_s": plan.checkpoint_limit_bytes_per_s,
        "demotion_limit_bytes_per_s": plan.demotion_limit_bytes_per_s,
        "period_s": json::seconds(plan.period_ms),
        "bandwidths": bandwidths,
    })
}

fn standby_json(bits: &StatusBits, standby: &StandbyStatus) -> Value {
    let mut object = begin_json(bits);
    insert_path(&mut object, "state", &bits.state);
    let facts = json!({
        "pid": bits.pid,
        "uptime_s": json::seconds(bits.uptime_ms),
        "standby": { "id": standby.server, "cluster": standby.cluster, "leader": standby.leader },
        "tiers": [],
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    Value::Object(object)
}

fn data_server_json(bits: &StatusBits, data: &DataServerStatus) -> Value {
    let mut object = begin_json(bits);
    insert_path(&mut object, "state", &bits.state);
    let tier = |tier: &TierStatus| {
        let capacity_bytes = Some(tier.capacity_bytes).filter(|bytes| *bytes > 0);
        json!({ "name": tier.name, "capacity_bytes": capacity_bytes })
    };
    let facts = json!({
        "pid": bits.pid,
        "uptime_s": json::seconds(bits.uptime_ms),
        "data_server": { "id": data.server, "cluster": data.cluster, "used": data.is_used },
        "tiers": bits.tiers.iter().map(tier).collect::<Value>(),
        "lending": bits.lending.as_deref().map(lending::to_json),
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    Value::Object(object)
}

fn tier_json(tier: &TierStatus) -> Value {
    json!({
        "name": tier.name,
        "capacity_bytes": tier.capacity_bytes,
        "used_bytes": tier.used_bytes,
        "dirty_bytes": tier.dirty_bytes,
        "reserved_bytes": tier.reserved_bytes,
        "out_of_reach": tier.out_of_reach,
    })
}

fn version_json(mount: &Path, version: &VersionStatus) -> Value {
    let mut object = Map::new();
    insert_path(&mut object, "path", &in_mount(mount, &version.path));
    let facts = json!({
        "files": version.files,
        "undrained_files": version.undrained_files,
        "undrained_bytes": version.undrained_bytes,
        "written_files": version.written_files,
        "committed": version.committed,
        "interrupted": version.interrupted,
        "lost_files": version.lost_files,
        "since_s": version.since_s,
        "error": version.error,
    });
    if let Value::Object(facts) = facts {
        object.extend(facts);
    }
    Value::Object(object)
}

fn scrub_json(scrub: &ScrubStatus) -> Value {
    json!({
        "enabled": scrub.enabled,
        "checked_objects": scrub.checked_objects,
        "checked_bytes": scrub.checked_bytes,
        "found": scrub.found,
        "passes": scrub.passes,
        "last_pass_end_s": scrub.last_pass_end_s,
        "pass_begun_s": scrub.pass_begun_s,
        "left_objects": scrub.left_objects,
        "compared_at_open": scrub.compared_at_open,
        "compared_blocks": scrub.compared_blocks,
        "sealed": scrub.sealed,
    })
}

fn conflict_json(mount: &Path, conflict: &ConflictEntry) -> Value {
    let mut object = Map::new();
    insert_path(&mut object, "path", &in_mount(mount, &conflict.path));
    insert_path(&mut object, "kept_as", &in_mount(mount, &conflict.kept_as));
    object.insert("time_s".into(), conflict.at_s.into());
    object.insert("reason".into(), conflict.reason.clone().into());
    Value::Object(object)
}

fn application_json(application: &ApplicationStatus) -> Value {
    json!({
        "name": application.name,
        "version": application.version,
        "dwsf_bytes": application.dwsf_bytes,
        "dwpp_bytes": application.dwpp_bytes,
        "mtbf_s": application.mtbf_ms.map(json::seconds),
        "resident_bytes": application.resident_bytes,
        "dirty_bytes": application.dirty_bytes,
        "files": application.files,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_types::Errno;
    use forebay_wire::control::{
        AheadStatus, KeeperStatus, LendingFile, LendingOrder, LendingStatus, LimitStatus,
        PathFailure, RunExpected, RunsStatus,
    };

    use super::*;

    const TABLE: &str = include_str!("../../../../docs/operations.md");
    const SCHEMA: &str = include_str!("../../../../docs/status.schema.json");
    const BEGIN: &str = "Fields of `status --json`.";

    /// A status whose lists have one entry each, so that all its fields are there.
    fn with_all() -> StatusBits {
        now::tests::with_one_of_each(StatusBits {
            plan: PlanStatus {
                bandwidths: Some([4, 3, 2, 1]),
                ..PlanStatus::default()
            },
            tiers: vec![TierStatus {
                name: "dram".into(),
                capacity_bytes: 1,
                used_bytes: 1,
                dirty_bytes: 1,
                reserved_bytes: 1,
                out_of_reach: false,
            }],
            errors: vec![PathFailure {
                path: b"a".to_vec(),
                errno: Errno::EIO,
                reason: String::new(),
            }],
            conflicts: vec![ConflictEntry {
                path: b"a".to_vec(),
                kept_as: b"b".to_vec(),
                at_s: 1,
                reason: String::new(),
            }],
            unpublished: vec![VersionStatus {
                path: b"v".to_vec(),
                files: 1,
                undrained_files: 1,
                undrained_bytes: 1,
                written_files: 1,
                committed: false,
                interrupted: false,
                lost_files: 0,
                since_s: 1,
                error: None,
            }],
            applications: vec![ApplicationStatus {
                name: "a".into(),
                version: None,
                dwsf_bytes: 1,
                dwpp_bytes: None,
                mtbf_ms: None,
                resident_bytes: 1,
                dirty_bytes: 1,
                files: 1,
            }],
            limits: vec![LimitStatus {
                is_group: false,
                id: 0,
                used_bytes: 2,
                capacity_bytes: Some(3),
                dirty_bytes: 1,
                undrained_bytes: Some(2),
                rate_bytes_per_s: Some(5),
                written_bytes: 4,
                paused_ms: 2500,
                beyond: "wait".into(),
            }],
            ahead: ahead_with_all(),
            network: Some(Box::new(clients::tests::network(1))),
            nodes: vec![nodes::tests::node(2)],
            second_copies: Some(SecondCopiesStatus::default()),
            keeper: Some(KeeperStatus { pid: 2, runs: true }),
            lending: Some(Box::new(lending_with_all())),
            ..StatusBits::default()
        })
    }

    fn ahead_with_all() -> AheadStatus {
        AheadStatus {
            runs: RunsStatus {
                next: vec![RunExpected::default()],
                ..RunsStatus::default()
            },
            ..AheadStatus::default()
        }
    }

    fn lending_with_all() -> LendingStatus {
        LendingStatus {
            orders: vec![LendingOrder::default()],
            waits_for: vec![LendingFile::default()],
            ..LendingStatus::default()
        }
    }

    /// Names of all that is neither an object nor a list.
    fn leaves(value: &Value, at: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    let dot = if at.is_empty() { "" } else { "." };
                    leaves(value, &format!("{at}{dot}{key}"), found);
                }
            }
            Value::Array(list) => {
                assert_eq!(list.len(), 1, "{at}");
                leaves(&list[0], &format!("{at}[]"), found);
            }
            _ => assert!(found.insert(at.to_string()), "{at} twice"),
        }
    }

    /// Names of what a part of the schema describes, as `leaves` names them.
    fn described(part: &Value, at: &str, found: &mut BTreeSet<String>) {
        let schema = schema();
        let part = match part["$ref"].as_str() {
            Some(name) => schema.pointer(&name[1..]).expect("what $ref names"),
            None => part,
        };
        let text = part["description"].as_str().unwrap_or_default();
        if let Value::Object(fields) = &part["properties"] {
            assert_eq!(part["additionalProperties"], false, "{at}");
            for (key, field) in fields.iter().filter(|(key, _)| !key.ends_with("_base16")) {
                let dot = if at.is_empty() { "" } else { "." };
                described(field, &format!("{at}{dot}{key}"), found);
            }
            return;
        }
        assert!(text.ends_with('.'), "{at}: {text}");
        let units = [
            ("_per_s", "per second"),
            ("_s", "seconds"),
            ("_bytes", "bytes"),
        ];
        let unit = units.iter().find(|(suffix, _)| at.ends_with(suffix));
        let has_unit = unit.is_none_or(|(_, unit)| text.contains(unit));
        assert!(has_unit, "{at}: {text}");
        match part["items"].is_object() {
            true => described(&part["items"], &format!("{at}[]"), found),
            false => assert!(found.insert(at.to_string()), "{at} twice"),
        }
    }

    fn schema() -> Value {
        serde_json::from_str(SCHEMA).expect("JSON")
    }

    #[test]
    fn the_schema_has_the_codes_fields() {
        let mut is = BTreeSet::new();
        leaves(&to_json(&with_all()), "", &mut is);
        let mut said = BTreeSet::new();
        described(&schema()["$defs"]["instance"], "", &mut said);
        assert_eq!(said, is);
        let version = &schema()["$defs"]["instance"]["properties"]["schema_version"]["const"];
        assert_eq!(*version, SCHEMA_VERSION);
    }

    #[test]
    fn the_table_of_fields_in_the_manual_is_the_codes() {
        let mut is = BTreeSet::new();
        leaves(&to_json(&with_all()), "", &mut is);
        let (_, from) = TABLE.split_once(BEGIN).expect("the table");
        let rows = from
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .skip(2);
        let mut said = BTreeSet::new();
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').splitn(2, '|').collect();
            assert!(cells[1].trim().len() > 2, "{row}");
            for name in cells[0].split(',') {
                let name = name.trim().trim_matches('`').to_string();
                assert!(said.insert(name.clone()), "{name} has two rows");
            }
        }
        assert_eq!(said, is);
    }
}
