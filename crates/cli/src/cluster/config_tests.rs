use super::*;

#[path = "config_copies_tests.rs"]
mod copies;
#[path = "config_memory_tests.rs"]
mod memory;

const SECTION: &str = r#"[cluster]
name = "bb0"
pfs = "/scratch"
key = "/etc/forebay/bb0.key"
"#;
const SERVER: &str = r#"[[server]]
id = 1
roles = ["metadata", "data"]
addresses = ["127.0.0.1:7070"]
state = "/var/lib/forebay"
dram = "64GiB"
ssd = ["/local/nvme:1TiB"]
"#;
/// Line of the first line of [`SERVER`] where it follows [`SECTION`].
const SERVER_LINE: usize = 5;

fn read(text: &str) -> Result<Cluster, ConfigError> {
    Cluster::of_file(&ConfigFile::of_text("c.toml".into(), text.into()))
}

fn usual() -> Cluster {
    read(&format!("{SECTION}{SERVER}")).expect("valid")
}

/// The one line that a person sees, without the file's name.
fn refused(text: &str) -> String {
    let line = match read(text) {
        Ok(cluster) => panic!("{text}\nis taken for {cluster:#?}"),
        Err(error) => error.to_string(),
    };
    assert!(!line.contains('\n'), "{line}");
    let rest = line.strip_prefix("c.toml: ");
    rest.unwrap_or_else(|| panic!("no file: {line}")).into()
}

/// What is said of the usual file with a line of it changed.
fn refused_with(line: &str, instead: &str) -> String {
    let text = format!("{SECTION}{SERVER}");
    assert_eq!(text.matches(line).count(), 1, "{line}");
    refused(&text.replace(line, instead))
}

fn refused_so(line: &str, instead: &str, says: &str) {
    let said = refused_with(line, instead);
    assert!(said.starts_with(says), "{said}");
}

#[test]
fn defaults() {
    let cluster = usual();
    assert_eq!(cluster.name, "bb0");
    assert_eq!(cluster.pfs, Path::new("/scratch"));
    assert_eq!(cluster.key, Path::new("/etc/forebay/bb0.key"));
    assert_eq!(
        (&cluster.store, cluster.replicas),
        (&StoreSetting::Embedded, 1)
    );
    assert!(!cluster.encrypt);
    assert!(!cluster.squash_root);
    assert_eq!(cluster.lease, Duration::from_secs(30));
    assert_eq!(cluster.connection_rate, None);
    let plan = cluster.plan(&cluster.servers[0], true).expect("settled");
    assert_eq!(plan.settings.restart_copies_fraction, 0.25);
    let server = cluster.server(1).expect("there");
    assert!(server.metadata && server.data);
    assert_eq!(server.rack, None);
    assert_eq!(
        server.addresses,
        ["127.0.0.1:7070".parse().expect("address")]
    );
    assert_eq!(server.dram_bytes, Some(64 << 30));
    assert_eq!(server.ssd[0].capacity_bytes, Some(1 << 40));
    assert!(cluster.metadata_servers().eq([server]) && !cluster.has_standby());
    let mount = &cluster.mount;
    assert_eq!(mount.connections, 4);
    assert_eq!(mount.distribution, Distribution::Auto);
    assert_eq!((mount.soft, mount.encrypt), (None, false));
    assert_eq!(mount.allow_other, None);
    assert!((2..=8).contains(&mount.cores));
    assert_eq!(mount.threads(true), mount.cores);
    assert_eq!(mount.threads(false), mount.cores + 4);
}

#[test]
fn everything_can_be_said() {
    let text = include_str!("sample.toml").replace("10.0.0.1", "127.0.0.1");
    let text = text.replace("10.1.0.1:7070", "127.0.0.1:7072");
    let cluster = read(&text).expect("valid");
    assert!(cluster.encrypt);
    assert!(cluster.squash_root);
    assert_eq!(cluster.lease, Duration::from_secs(45));
    assert_eq!(cluster.connection_rate, Some(125_000_000));
    let server = &cluster.servers[0];
    assert_eq!(server.rack.as_deref(), Some("r1"));
    assert_eq!(server.addresses.len(), 2);
    let mount = &cluster.mount;
    assert_eq!(mount.connections, 8);
    assert_eq!(mount.distribution, Distribution::ThreadToMany);
    assert_eq!(mount.soft, Some(Duration::from_secs(60)));
    assert!(mount.encrypt);
    assert_eq!((mount.allow_other, mount.threads(false)), (Some(true), 4));
    let plan = cluster.plan(server, true).expect("settled");
    assert_eq!(plan.settings.state, Path::new("/var/lib/forebay"));
    assert_eq!(plan.settings.pfs, Path::new("/scratch"));
    assert_eq!(plan.settings.mount, None);
    assert_eq!(plan.settings.policy, "maxbw");
    assert_eq!(plan.settings.restart_copies_fraction, 0.1);
    assert_eq!(plan.settings.demotion.workers, 3);
    assert!(!plan.settings.scrub.enabled);
    assert_eq!(plan.settings.rules.len(), 1);
    assert_eq!(plan.settings.dram_bytes, server.dram_bytes);
    assert_eq!(plan.settings.ssd, server.ssd);
    assert!(plan.allow_other && plan.threads == 4);
}

#[test]
fn a_store_that_is_none_is_refused_without_its_password() {
    let name = "name = \"bb0\"";
    let with = |more: &str| refused_with(name, &format!("{name}\n{more}"));
    assert_eq!(
        with("store = \"redis://:secret@h:0/0\""),
        "line 3: store \"redis://...@h:0/0\": a port is a number from 1 to 65535"
    );
    assert!(with("store = \"rediss://h\"").contains("write redis://"));
    assert!(with("store = \"etcd://h:2379/0\"").contains("nothing comes behind the hosts"));
    let shown = with("store = \"redis:u:secret@h\"");
    assert!(
        shown.starts_with("line 3: unknown store \"...@h\";"),
        "{shown}"
    );
    for unknown in ["sqlite", "embedded:/dir"] {
        assert_eq!(
            with(&format!("store = \"{unknown}\"")),
            format!(
                "line 3: unknown store \"{unknown}\"; it is \"embedded\", \
                 \"redis://HOST:PORT/DB\" or \"etcd://HOST:PORT,HOST:PORT\""
            )
        );
    }
}

#[test]
fn a_store_on_a_server_has_the_clusters_name_unless_told() {
    let with = |url: &str| {
        let store = format!("name = \"bb0\"\nstore = \"{url}\"");
        let text = format!("{SECTION}{SERVER}").replace("name = \"bb0\"", &store);
        let cluster = read(&text).expect("valid");
        assert!(!format!("{cluster:?}").contains("secret"));
        cluster.store.to_string()
    };
    assert_eq!(with("embedded"), "embedded");
    assert_eq!(with("redis://u:secret@h"), "redis://h:6379/0?prefix=bb0");
    assert_eq!(with("valkey://h/2?prefix=x"), "redis://h:6379/2?prefix=x");
    assert_eq!(with("etcd://h,i:7"), "etcd://h:2379,i:7?prefix=bb0");
}

#[test]
fn what_up_takes_a_server_takes_as_well() {
    use crate::up::keys::keys_of;
    // Those of a server itself, or of [mount].
    let elsewhere = [
        "pfs",
        "mount",
        "state",
        "dram",
        "dram_min",
        "dram_max",
        "dram_max_share",
        "ssd",
        "allow_other",
        "threads",
    ];
    let values = [
        "true",
        "3",
        "\"50%\"",
        "\"3%\"",
        "\"5s\"",
        "\"5GiB\"",
        "\"lru\"",
        "\"media\"",
        "\"pfs\"",
        "\"bbos\"",
        "\"[::1]:9180\"",
    ];
    let rates = [
        "engine.bw_max",
        "engine.bw_min",
        "engine.br_max",
        "engine.br_min",
    ];
    for key in keys_of::<Given>() {
        if elsewhere.contains(&&*key) || rates.contains(&&*key) {
            continue;
        }
        let said: Vec<String> = values
            .iter()
            .map(|value| match key.split_once('.') {
                Some((section, field)) => {
                    format!("{SECTION}{SERVER}[{section}]\n{field} = {value}\n")
                }
                None => format!("{key} = {value}\n{SECTION}{SERVER}"),
            })
            .filter_map(|text| match read(&text) {
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            })
            .collect();
        assert!(said.len() < values.len(), "{key}: {said:#?}");
    }
    let all: String = rates
        .iter()
        .map(|key| format!("{} = \"1GB/s\"\n", key.trim_start_matches("engine.")))
        .collect();
    read(&format!("{SECTION}{SERVER}[engine]\n{all}")).expect("all four rates");
}

#[test]
fn unknown_keys_are_named_with_their_line_and_the_nearest_known() {
    let unknown = refused_with("key =", "kye =");
    assert!(
        unknown.starts_with("line 4: unknown field `kye`, did you mean `key`? expected one of"),
        "{unknown}"
    );
    let unknown = refused_with("addresses =", "adresses =");
    assert!(
        unknown.starts_with("line 8: unknown field `adresses`, did you mean `addresses`?"),
        "{unknown}"
    );
    let unknown = refused(&format!("{SECTION}{SERVER}[mount]\nconnection = 1\n"));
    assert!(
        unknown.starts_with("line 13: unknown field `connection`, did you mean `connections`?"),
        "{unknown}"
    );
    let unknown = refused(&format!("{SECTION}{SERVER}[demotoin]\n"));
    assert!(
        unknown.starts_with("line 12: unknown field `demotoin`, did you mean `demotion`?"),
        "{unknown}"
    );
    let unknown = refused(&format!("{SECTION}{SERVER}[demotion]\nidel = true\n"));
    assert!(
        unknown.starts_with("line 13: unknown field `idel`, did you mean `idle`?"),
        "{unknown}"
    );
}

#[test]
fn what_is_missing_is_named() {
    assert!(refused(SERVER).starts_with("has no section [cluster]"));
    assert!(refused(SECTION).starts_with("has no [[server]]"));
    for key in ["name", "pfs", "key"] {
        let start = SECTION.lines().find(|line| line.starts_with(key));
        let said = refused_with(start.expect("there"), "");
        assert_eq!(said, format!("line 1: missing field `{key}`"));
    }
    for key in ["id", "roles", "addresses", "state"] {
        let start = SERVER.lines().find(|line| line.starts_with(key));
        let said = refused_with(start.expect("there"), "");
        assert_eq!(said, format!("line {SERVER_LINE}: missing field `{key}`"));
    }
    assert!(refused("[cluster\n").starts_with("line 1: "));
    assert!(refused("").starts_with("has no section"));
}

#[test]
fn the_cluster_section() {
    let starts = refused_so;
    let name = "name = \"bb0\"";
    starts(
        name,
        "name = \"\"",
        "line 2: '' is no name of a cluster: letters",
    );
    starts(
        name,
        "name = \"b/b\"",
        "line 2: 'b/b' is no name of a cluster",
    );
    starts(
        name,
        "name = \".bb\"",
        "line 2: '.bb' is no name of a cluster",
    );
    let long = format!("name = \"{}\"", "b".repeat(65));
    starts(name, &long, "line 2: 'bbb");
    starts(
        name,
        "name = 7",
        "line 2: invalid type: integer `7`, expected a string",
    );
    starts(
        "\"/scratch\"",
        "\"scratch\"",
        "line 3: pfs 'scratch' is relative; the file is",
    );
    starts(
        "\"/etc/forebay/bb0.key\"",
        "\"bb0.key\"",
        "line 4: key 'bb0.key' is relative",
    );
    let with = |more: &str| refused_with(name, &format!("{name}\n{more}"));
    assert!(with("replicas = 2").starts_with("line 3: replicas = 2 needs two servers"));
    assert!(
        with("replicas = 3")
            .starts_with("line 3: replicas is 3; it is the number of copies, 1 or 2")
    );
    assert!(with("restart_copies = 2").starts_with("line 3: restart_copies is 2; it is 0, or 1"));
    for part in ["0", "1.5", "\"101%\""] {
        let said = with(&format!("restart_copies_space = {part}"));
        assert!(said.starts_with("line 3: "), "{said}");
    }
    assert!(with("restart_copies_space = 0").contains("above 0 and at most 1"));
    assert!(with("replica_rate = \"1kB/s\"").starts_with("line 3: replica_rate is"));
    assert!(
        with("squash_root = \"maybe\"").starts_with("line 3: 'maybe' is neither true nor false")
    );
    assert!(with("replicas = 0").starts_with("line 3: replicas is 0"));
    assert!(with("replicas = -1").starts_with("line 3: '-1' is not a number"));
    assert_eq!(
        with("lease = \"500ms\""),
        "line 3: lease is 500 ms; it must be 1.0 s to 1h 0m"
    );
    assert!(with("lease = \"2h\"").starts_with("line 3: lease is 2h 0m"));
    assert_eq!(
        with("connection_rate = \"1kB/s\""),
        "line 3: connection_rate is 1000 B/s; the least is 976.6 KiB/s, and without it there is no limit"
    );
    assert!(with("connection_rate = \"fast\"").starts_with("line 3: 'fast' is no number"));
    assert!(with("encrypt = \"maybe\"").starts_with("line 3: 'maybe' is neither true nor false"));
}

#[test]
fn who_servers_are() {
    let starts = refused_so;
    starts("id = 1", "id = 0", "line 6: id is 0; it must be 1 to 65535");
    starts("id = 1", "id = 65536", "line 6: id is 65536");
    starts("id = 1", "id = \"a\"", "line 6: 'a' is not a number");
    let roles = "[\"metadata\", \"data\"]";
    starts(roles, "[]", "line 7: server 1 has no role");
    starts(
        roles,
        "[\"data\", \"data\"]",
        "line 7: server 1 has a role twice",
    );
    starts(
        roles,
        "[\"names\"]",
        "line 7: unknown variant `names`, expected `metadata` or `data`",
    );
    starts(roles, "[\"data\"]", "no server has the role \"metadata\"");
    starts(
        roles,
        "[\"metadata\"]",
        "line 7: server 1 has memory or flash and not the role data; add",
    );
    let addresses = "[\"127.0.0.1:7070\"]";
    starts(
        addresses,
        "[]",
        "line 8: server 1 has no address; write addresses = [",
    );
    starts(
        addresses,
        "[\"127.0.0.1\"]",
        "line 8: '127.0.0.1': has no port; write for example",
    );
    starts(
        addresses,
        "[\n\"127.0.0.1:1\",\n\"0.0.0.0:1\"]",
        "line 10: '0.0.0.0:1': is no address",
    );
    starts(
        addresses,
        "[\"node.invalid:7\"]",
        "line 8: 'node.invalid:7': the host cannot be found",
    );
    starts(
        addresses,
        "[\"127.0.0.1:7070\",\n\"127.0.0.1:7070\"]",
        "line 9: 127.0.0.1:7070 is given twice: first in line 8",
    );
}

#[test]
fn what_servers_have() {
    let starts = refused_so;
    starts(
        "\"/var/lib/forebay\"",
        "\"lib\"",
        "line 9: state 'lib' is relative",
    );
    starts(
        "\"64GiB\"",
        "\"1MiB\"",
        "line 10: 1.0 MiB is too small for a tier; the least is 4.0 MiB",
    );
    starts(
        "\"64GiB\"",
        "\"lots\"",
        "line 10: 'lots' is no number with a unit",
    );
    starts(
        "\"/local/nvme:1TiB\"",
        "\"nvme:1TiB\"",
        "line 11: ssd 'nvme' is relative",
    );
    starts(
        "\"/local/nvme:1TiB\"",
        "\"/nvme:1KiB\"",
        "line 11: 1.0 KiB is too small",
    );
    starts(
        "\"/local/nvme:1TiB\"",
        "\":1TiB\"",
        "line 11: names no directory",
    );
    starts(
        "dram = \"64GiB\"\nssd = [\"/local/nvme:1TiB\"]\n",
        "",
        "line 6: server 1 has neither dram nor ssd",
    );
    starts(
        "ssd = [\"/local/nvme:1TiB\"]\n",
        "[[rule]]\npath = \"/a/**\"\ndurability = \"ssd\"\n",
        "line 5: server 1 has no flash, which durability ssd needs",
    );
    starts(
        "id = 1",
        "id = 1\nrack = \"r 1\"",
        "line 7: 'r 1' is no name of a rack",
    );
}

#[test]
fn several_servers() {
    let two = |second: &str| refused(&format!("{SECTION}{SERVER}{second}"));
    assert_eq!(
        two(SERVER),
        "line 13: id 1 is taken: the [[server]] of line 6 has it"
    );
    let other = SERVER.replace("id = 1", "id = 2");
    assert_eq!(
        two(&other),
        "line 15: 127.0.0.1:7070 is given twice: first in line 8"
    );
    let other = other.replace("7070", "7071");
    assert_eq!(
        two(&other),
        "line 14: server 2: a second server with the role metadata takes over by itself, which needs store = \"etcd://...\"; use that, or write roles = [\"data\"]"
    );
    let data = other.replace("\"metadata\", ", "");
    let only_names = SERVER.replace(", \"data\"", "");
    let only_names = only_names.replace("dram = \"64GiB\"\nssd = [\"/local/nvme:1TiB\"]\n", "");
    let apart = format!("{SECTION}{only_names}{data}");
    let cluster = read(&apart).expect("a metadata server, and a data server");
    assert!(cluster.metadata_servers().map(|server| server.id).eq([1]));
    let [names, data] = &cluster.servers[..] else {
        panic!("{cluster:?}");
    };
    assert!(!names.data && !data.metadata && cluster.plan(names, true).is_ok());
    assert_eq!((cluster.rack(names), cluster.rack(data)), (0, 1));
    let none = refused(&format!("{SECTION}{only_names}"));
    assert!(none.starts_with("no server has the role data"), "{none}");
    let racks = apart.replace("state", "rack = \"r1\"\nstate");
    let cluster = read(&racks).expect("one rack");
    assert_eq!(cluster.rack(&cluster.servers[1]), 0);
}

#[test]
fn the_mount_section() {
    let with = |line: &str| refused(&format!("{SECTION}{SERVER}[mount]\n{line}\n"));
    assert_eq!(
        with("connections = 0"),
        "line 13: connections is 0; it must be 1 to 64"
    );
    assert_eq!(
        with("connections = 65"),
        "line 13: connections is 65; it must be 1 to 64"
    );
    let spread = with("distribution = \"both\"");
    assert!(
        spread.starts_with("line 13: ") && spread.contains("auto, ttos, ttom"),
        "{spread}"
    );
    assert!(
        with("soft = \"5ms\"").starts_with("line 13: soft is 5 ms; "),
        "{}",
        with("soft = \"5ms\"")
    );
    let soft = with("soft = true");
    assert!(
        soft.starts_with("line 13: invalid type: boolean `true`, expected a duration such as"),
        "{soft}"
    );
    assert!(with("threads = 65").starts_with("threads is 65; it must be 1 to 64"));
    let encrypted = SECTION.replace("[cluster]", "[cluster]\nencrypt = true");
    let said = refused(&format!("{encrypted}{SERVER}[mount]\nencrypt = false\n"));
    assert!(
        said.starts_with("line 14: encrypt = false in [mount], but"),
        "{said}"
    );
    let taken = |line: &str| {
        let text = format!("{SECTION}{SERVER}[mount]\n{line}\n");
        read(&text).expect(line).mount
    };
    assert_eq!(taken("soft = false").soft, None);
    assert_eq!(taken("soft = 90").soft, Some(Duration::from_secs(90)));
    assert!(taken("encrypt = true").encrypt);
}

#[test]
fn settings_that_contradict_each_other() {
    let text = format!("{SECTION}{SERVER}[demotion]\nstart = 0.9\ndirty_cap = 0.5\n");
    let said = refused(&text);
    assert!(
        said.starts_with("demotion.start (0.9) is above demotion.dirty_cap (0.5)"),
        "{said}"
    );
}

#[test]
fn servers_are_found_by_id() {
    let error = usual().server(7).expect_err("none");
    assert_eq!(
        error.to_string(),
        "c.toml: there is no server 7; there is 1"
    );
}

#[test]
fn a_server_starts_on_its_own_node() {
    let mut cluster = usual();
    cluster
        .check_here(&cluster.servers[0])
        .expect("this node's");
    let mut other = cluster.servers[0].clone();
    other.id = 2;
    // Set aside for documents (RFC 5737): nobody's.
    other
        .addresses
        .push("192.0.2.1:7070".parse().expect("address"));
    cluster.servers.push(other);
    let error = cluster
        .check_here(&cluster.servers[1])
        .expect_err("not here");
    assert_eq!(
        error.to_string(),
        "c.toml: server 2: 192.0.2.1:7070 is no address of this node; this node is server 1"
    );
    cluster.servers.remove(0);
    let error = cluster
        .check_here(&cluster.servers[0])
        .expect_err("not here");
    assert!(
        error
            .to_string()
            .ends_with("; start it on its own node, or correct its addresses")
    );
}

#[test]
fn the_pfs_is_looked_at_where_it_is_used() {
    let folder = tempfile::tempdir().expect("tempdir");
    let mut cluster = usual();
    cluster.pfs = folder.path().into();
    cluster.check_pfs().expect("a directory");
    cluster.pfs = folder.path().join("none");
    let error = cluster.check_pfs().expect_err("none").to_string();
    assert!(
        error.contains("No such file or directory; mount the"),
        "{error}"
    );
    std::fs::write(folder.path().join("file"), "").expect("write");
    cluster.pfs = folder.path().join("file");
    let error = cluster.check_pfs().expect_err("a file").to_string();
    assert!(error.contains("is not a directory; name where"), "{error}");
}

#[test]
fn it_is_read_from_a_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("cluster.toml");
    let error = Cluster::load(&path).expect_err("none").to_string();
    assert!(
        error.starts_with(&format!("{}: No such file or directory; ", path.display())),
        "{error}"
    );
    std::fs::write(&path, format!("{SECTION}{SERVER}")).expect("write");
    assert_eq!(Cluster::load(&path).expect("valid").name, "bb0");
}
