use super::*;
use crate::cluster::config::Cluster;
use crate::up::layers::ConfigFile;
use forebay_policy::holders::Locality;

/// Server 1 has names only; 2 and 3 are in racks; 4 has no flash, and no rack.
const CLUSTER: &str = r#"[cluster]
name = "bb0"
pfs = "/scratch"
key = "/etc/forebay/bb0.key"
replicas = 2
[[server]]
id = 1
roles = ["metadata"]
addresses = ["127.0.0.1:7071"]
rack = "r0"
state = "/s1"
[[server]]
id = 2
roles = ["data"]
addresses = ["127.0.0.1:7072"]
rack = "r1"
state = "/s2"
ssd = ["/f2:1GiB"]
[[server]]
id = 3
roles = ["data"]
addresses = ["127.0.0.1:7073"]
rack = "r2"
state = "/s3"
ssd = ["/f3:1GiB"]
[[server]]
id = 4
roles = ["data"]
addresses = ["127.0.0.1:7074"]
state = "/s4"
dram = "1GiB"
[[rule]]
path = "/other/**"
[[rule]]
path = "/a/**"
"#;

fn read(rule: &str) -> Result<Cluster, String> {
    let file = ConfigFile::of_text("c.toml".into(), format!("{CLUSTER}{rule}\n"));
    Cluster::of_file(&file).map_err(|error| error.to_string())
}

fn placed(rule: &str) -> HolderRule {
    let cluster = read(rule).expect(rule);
    // The metadata server decides, whichever it is.
    let plan = cluster.plan(&cluster.servers[0], false).expect("settled");
    let [other, rule] = &plan.settings.rules[..] else {
        panic!("{:?}", plan.settings.rules);
    };
    assert_eq!(other.placement, None);
    rule.placement.clone().expect("a placement")
}

#[test]
fn a_rule_names_servers_by_id_and_racks_by_name() {
    let of = |locality, servers: &[u16], racks: &[u16]| HolderRule {
        locality,
        servers: servers.iter().copied().map(HolderId).collect(),
        racks: racks.iter().copied().map(Rack).collect(),
    };
    for (rule, expected) in [
        ("locality = \"spread\"", of(Locality::Spread, &[], &[])),
        (
            "locality = \"local-only\"",
            of(Locality::LocalOnly, &[], &[]),
        ),
        (
            "locality = \"writer-first\"",
            of(Locality::WriterFirst, &[], &[]),
        ),
        ("servers = [3, 4]", of(Locality::WriterFirst, &[3, 4], &[])),
        ("racks = [\"r2\"]", of(Locality::WriterFirst, &[], &[2])),
        // One that holds no data does no harm beside one that does.
        ("servers = [1, 2]", of(Locality::WriterFirst, &[1, 2], &[])),
        (
            "locality = \"spread\"\nservers = [4]\nracks = [\"r1\"]\ndurability = \"pfs\"",
            of(Locality::Spread, &[4], &[1]),
        ),
        (
            "racks = [\"r1\", \"r2\"]\ndurability = \"replica\"",
            of(Locality::WriterFirst, &[], &[1, 2]),
        ),
    ] {
        assert_eq!(placed(rule), expected, "{rule}");
    }
    let cluster = read("durability = \"pfs\"").expect("valid");
    let plan = cluster.plan(&cluster.servers[0], false).expect("settled");
    assert!(
        plan.settings
            .rules
            .iter()
            .all(|rule| rule.placement.is_none())
    );
}

#[test]
fn what_a_rule_cannot_mean_is_refused_with_its_line() {
    let line = CLUSTER.lines().count() + 1;
    for (rule, says) in [
        (
            "servers = [2, 7]",
            "servers: there is no server 7; the servers with the role data are 2, 3, 4",
        ),
        ("servers = [0]", "servers: there is no server 0;"),
        ("servers = [70000]", "servers: there is no server 70000;"),
        ("servers = [\"node2\"]", "'node2' is not a number"),
        (
            "servers = 2",
            "invalid type: integer `2`, expected a sequence",
        ),
        (
            "servers = []",
            "servers is empty; name one at least, or leave it out",
        ),
        (
            "racks = []",
            "racks is empty; name one at least, or leave it out",
        ),
        (
            "racks = [\"r9\"]",
            "racks: no server has rack = \"r9\"; the racks are \"r0\", \"r1\", \"r2\"",
        ),
        (
            "racks = [1]",
            "invalid type: integer `1`, expected a string",
        ),
        (
            "servers = [1]",
            "no server that the rule names holds data; name one with the role data",
        ),
        (
            "racks = [\"r0\"]",
            "no server that the rule names holds data; name one with the role data",
        ),
        (
            "servers = [3, 4]\ndurability = \"replica\"",
            "durability replica needs two servers with flash, and the rule names 1;",
        ),
        (
            "locality = \"near\"",
            "unknown locality \"near\": expected one of writer-first, local-only, spread",
        ),
        (
            "localty = \"spread\"",
            "unknown field `localty`, did you mean `locality`?",
        ),
    ] {
        let said = read(rule).expect_err(rule);
        let begins = format!("c.toml: line {line}: {says}");
        assert!(said.starts_with(&begins), "{rule}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
    let racks = ["r0", "r1", "r2"].map(|name| format!("rack = \"{name}\"\n"));
    let bare = racks
        .iter()
        .fold(CLUSTER.to_string(), |text, rack| text.replace(rack, ""));
    let file = ConfigFile::of_text("c.toml".into(), format!("{bare}racks = [\"r9\"]\n"));
    let said = Cluster::of_file(&file).expect_err("no racks").to_string();
    assert!(
        said.ends_with(
            "no server has rack = \"r9\"; write it into the [[server]] of those that are in it"
        ),
        "{said}"
    );
}
