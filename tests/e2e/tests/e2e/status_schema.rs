//! What `status --json` prints, against docs/status.schema.json, by a validator that is not ours.

use std::ffi::OsStr;
use std::fs;

use forebay_testkit::{Cluster, Fleet, needs_nodes, needs_root, pattern, write_file};
use jsonschema::Validator;
use serde_json::Value;

const MIB: usize = 1 << 20;
const LAZY: &str = "[demotion]\nidle = false\n";
const ALL_IN_USE: &str = "[engine]\nbw_max = \"3GB/s\"\nbw_min = \"2GB/s\"\nbr_max = \"1GB/s\"\n\
                          br_min = \"80MB/s\"\n[[limit]]\nuser = 0\ncapacity = \"50%\"\n\
                          [[rule]]\npath = \"/run/ckpt-{version}/**\"\ngroup = \"commit\"\n";

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/status.schema.json");
    let text = fs::read_to_string(path).expect("the schema");
    serde_json::from_str(&text).expect("JSON")
}

fn validator() -> Validator {
    let schema = schema();
    if let Err(error) = jsonschema::draft202012::meta::validate(&schema) {
        panic!("no schema of draft 2020-12: {error}");
    }
    jsonschema::draft202012::new(&schema).expect("a schema")
}

/// Checks a status, and that it is of the one kind and of no other.
#[track_caller]
fn check(status: &Value, kind: &str) {
    let of_kind = |kind: &str| {
        let mut schema = schema();
        schema.as_object_mut().expect("an object").remove("oneOf");
        schema["$ref"] = format!("#/$defs/{kind}").into();
        jsonschema::draft202012::new(&schema).expect("a schema")
    };
    let wrong: Vec<String> = of_kind(kind)
        .iter_errors(status)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{status:#}");
    let validator = validator();
    assert!(validator.is_valid(status), "of two kinds: {status}");
    let mut odd = status.clone();
    odd["undocumented"] = 1.into();
    assert!(!validator.is_valid(&odd), "a field that nobody describes");
    let fields = status.as_object().expect("an object");
    for name in fields.keys() {
        let mut less = fields.clone();
        less.remove(name);
        assert!(!validator.is_valid(&less.into()), "without {name}");
    }
}

#[test]
fn the_status_of_one_node_is_what_the_schema_says() {
    if needs_root() {
        return;
    }
    let cluster = Cluster::builder().lazy().dram("64MiB").ssd("64MiB");
    let cluster = cluster.config(ALL_IN_USE).up();
    check(&cluster.status(), "instance");
    fs::create_dir_all(cluster.mnt("run/ckpt-1")).expect("mkdir");
    write_file(&cluster.mnt("run/ckpt-1/a"), pattern(1, MIB));
    write_file(&cluster.mnt("sim.0001.ckpt"), pattern(2, MIB));
    let status = cluster.status();
    for list in ["applications", "limits", "unpublished", "tiers"] {
        let list = &status[list];
        assert_ne!(list.as_array().expect("a list").len(), 0, "{status:#}");
    }
    assert!(status["plan"]["bandwidths"].is_object(), "{status:#}");
    check(&status, "instance");
    let lines = cluster.on_state(&["status", "--json-lines"]).ok();
    let line: Value = serde_json::from_str(lines.stdout.trim()).expect("a line");
    check(&line, "instance");
}

fn status_of(fleet: &Fleet, node: usize, state: &OsStr) -> Value {
    let args: [&OsStr; 4] = [
        "status".as_ref(),
        "--json".as_ref(),
        "--state".as_ref(),
        state,
    ];
    fleet.run(node, &args).ok().json()
}

#[test]
fn the_status_of_servers_of_a_cluster_is_what_the_schema_says() {
    if needs_nodes() {
        return;
    }
    let fleet = Fleet::of_data_servers(2, LAZY);
    write_file(&fleet.mnt(1, "f"), pattern(1, 3 * MIB));
    let status = fleet.status();
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(3));
    let clients = &status["network"]["clients"];
    assert_ne!(clients.as_array().expect("a list").len(), 0, "{status:#}");
    check(&status, "instance");
    let state = fleet.data_state(1);
    check(&status_of(&fleet, 1, state.as_os_str()), "data_server");
}

#[test]
fn the_status_of_a_standby_is_what_the_schema_says() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::with_standby(1, "", LAZY);
    fleet.start_metadata(0);
    fleet.start_metadata(1);
    assert!(fleet.leads(0) && !fleet.leads(1));
    let status = |server| fleet.metadata_status(server).expect("it answers");
    check(&status(0), "instance");
    check(&status(1), "standby");
}
