//! Settings that change while a burst buffer runs: `forebay reload`, SIGHUP, `forebay policy`.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use forebay_testkit::{Cluster, Fleet, Output, needs_nodes, pattern, wait_until, write_file};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::common::as_user;

fn change(cluster: &Cluster, from: &str, to: &str) {
    let file = cluster.base().join("bb.toml");
    let text = fs::read_to_string(&file).expect("read");
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to)).expect("write");
}

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).expect("JSON")
}

const RULES: &str = "[history]\nkeep = \"3d\"\n[[rule]]\npath = \"/first/**\"\ndurability = \"memory\"\nmtbf = \"2h\"\n";

#[test]
fn command_policy_shows_rules_and_reload_takes_changed_ones() {
    let cluster = Cluster::builder().lazy().dram("64MiB").config(RULES).up();
    let shown = cluster.on_state(&["policy"]).ok().stdout;
    let line = "rule /first/**: durability memory; mtbf 2h 0m\n";
    assert!(shown.ends_with(line), "{shown}");
    change(&cluster, "/first/**", "/second/**");
    change(&cluster, "\"3d\"", "\"2d\"");
    let taken = cluster.on_state(&["reload"]).ok().stdout;
    assert_eq!(taken, "taken: history.keep, rule\n");
    let rules = &json_of(&cluster.on_state(&["policy", "--json"]).ok())["rules"];
    assert_eq!(rules[0]["path"], "/second/**");
    assert_eq!(rules[0]["mtbf_s"], 7200.0);
    let kept = json_of(&cluster.on_state(&["history", "--json"]).ok());
    assert_eq!(kept["kept_for_s"], 2 * 24 * 3600);
    // What the rule says is what happens: an fsync below it keeps to memory.
    for (dir, state) in [("first", "clean"), ("second", "dirty")] {
        fs::create_dir(cluster.mnt(dir)).expect("mkdir");
        let path = format!("{dir}/f");
        write_file(&cluster.mnt(&path), pattern(2001, 50_000));
        fs::File::open(cluster.mnt(&path))
            .and_then(|f| f.sync_all())
            .expect("fsync");
        assert_eq!(cluster.where_state(&path), state);
    }
    assert_eq!(
        cluster.on_state(&["reload"]).ok().stdout,
        "nothing has changed\n"
    );
}

#[test]
fn command_reload_names_what_needs_a_restart_and_takes_the_rest() {
    let mut cluster = Cluster::builder().lazy().dram("64MiB").config(RULES).up();
    let file = cluster.base().join("bb.toml");
    let text = fs::read_to_string(&file).expect("read");
    let more = "wait_for_space = \"7s\"\npolicy = \"maxbw\"\n";
    fs::write(&file, format!("{more}{text}")).expect("write");
    let output = cluster.on_state(&["reload", "--json"]);
    assert_eq!(output.code, 3, "{}", output.stderr);
    let expected = json!({"taken": ["policy"], "restart": ["wait_for_space"]});
    assert_eq!(json_of(&output), expected);
    assert_eq!(cluster.status()["policy"], "maxbw");
    let output = cluster.on_state(&["reload"]);
    assert_eq!(
        (output.code, &*output.stdout),
        (3, "only after a restart: wait_for_space\n")
    );
    cluster.restart();
    assert_eq!(
        cluster.on_state(&["reload"]).ok().stdout,
        "nothing has changed\n"
    );
}

#[test]
fn command_reload_of_a_bad_file_changes_nothing_and_names_the_line() {
    let cluster = Cluster::builder().lazy().dram("64MiB").config(RULES).up();
    change(&cluster, "mtbf = \"2h\"", "mtbf = \"2h\"\nduration = 7\n");
    change(&cluster, "/first/**", "/second/**");
    let output = cluster.on_state(&["reload"]);
    assert_eq!(output.code, 1);
    let why = &output.stderr;
    assert!(
        why.contains("nothing has changed: ") && why.contains("bb.toml: line "),
        "{why}"
    );
    let shown = cluster.on_state(&["policy"]).ok().stdout;
    assert!(shown.contains("rule /first/**"), "{shown}");
    change(&cluster, "duration = 7\n", "");
    assert_eq!(cluster.on_state(&["reload"]).ok().stdout, "taken: rule\n");
}

#[test]
fn command_reload_is_for_the_owner_and_works_without_a_file_by_saying_so() {
    let cluster = Cluster::builder().dram("64MiB").up();
    let output = cluster.on_state(&["reload"]);
    assert_eq!(output.code, 1);
    assert!(
        output.stderr.contains("started without --config"),
        "{}",
        output.stderr
    );
    if forebay_testkit::needs_root() {
        return;
    }
    // Where the program is others may not go.
    let program = forebay_testkit::program_for_everybody(cluster.base());
    let state = cluster.state();
    let line = format!("{} reload --state {}", program.display(), state.display());
    let theirs = as_user(Path::new("/"), 12_345, "", &line);
    assert_eq!(theirs.code, 1);
    assert!(theirs.stderr.contains("not allowed"), "{}", theirs.stderr);
}

#[test]
fn promise_8_sighup_reads_the_settings_again() {
    let cluster = Cluster::builder().lazy().dram("64MiB").config(RULES).up();
    change(&cluster, "/first/**", "/second/**");
    kill_process(cluster.pid(), Signal::HUP).expect("kill");
    wait_until("the rule is in force", || {
        let shown = cluster.on_state(&["policy"]).ok().stdout;
        shown.contains("rule /second/**")
    });
}

/// What `forebay COMMAND` says on a node whose server has that state folder.
fn on(fleet: &Fleet, node: usize, state: &Path, command: &[&str]) -> Output {
    let words = command.iter().map(OsStr::new);
    let state = ["--state".as_ref(), state.as_os_str()];
    fleet.run(node, &words.chain(state).collect::<Vec<_>>())
}

#[test]
fn command_reload_of_a_cluster_is_taken_by_who_leads_and_by_who_takes_over() {
    if needs_nodes() {
        return;
    }
    let mut fleet = Fleet::with_standby(1, "", "[demotion]\nidle = false\n");
    fleet.start_metadata(0);
    fleet.start_metadata(1);
    let file = fleet.base().join("cluster.toml");
    let text = fs::read_to_string(&file).expect("read");
    let first = "[[rule]]\npath = \"/first/**\"\ndurability = \"memory\"\n";
    let text = format!("policy = \"maxeff\"\npfs_timeout = \"9s\"\n{text}{first}");
    fs::write(&file, &text).expect("write");
    let reload = |which: usize| {
        let (node, state) = (fleet.metadata_node(which), fleet.metadata_state(which));
        on(&fleet, node, &state, &["reload", "--json"])
    };
    let output = reload(0);
    let expected = json!({"taken": ["policy", "rule"], "restart": ["pfs_timeout"]});
    assert_eq!((output.code, json_of(&output)), (3, expected));
    let refused = reload(1);
    let why = "it stands by, and reads the file when it takes over; ";
    assert!(
        refused.code == 1 && refused.stderr.contains(why),
        "{refused:?}"
    );
    let refused = on(&fleet, 1, &fleet.data_state(1), &["reload"]);
    let why = "a data server takes its settings when it starts; ";
    assert!(
        refused.code == 1 && refused.stderr.contains(why),
        "{refused:?}"
    );
    // A server that is not there is refused, as at a start.
    let bad = format!("{text}servers = [77]\n");
    fs::write(&file, bad).expect("write");
    let refused = reload(0);
    assert!(
        refused.code == 1 && refused.stderr.contains("77"),
        "{refused:?}"
    );

    // Where servers are, and second copies, belong to the start.
    fs::write(&file, format!("{text}servers = [2]\n")).expect("write");
    let output = reload(0);
    let expected = json!({"taken": [], "restart": ["pfs_timeout", "rule"]});
    assert_eq!((output.code, json_of(&output)), (3, expected));

    let second = "[[rule]]\npath = \"/second/**\"\ndurability = \"pfs\"\n";
    fs::write(&file, format!("{text}{second}")).expect("write");
    fleet.kill_metadata(0);
    wait_until("the other one leads", || fleet.leads(1));
    let (node, state) = (fleet.metadata_node(1), fleet.metadata_state(1));
    let policy = || json_of(&on(&fleet, node, &state, &["policy", "--json"]).ok());
    wait_until("it has read the file", || policy()["policy"] == "maxeff");
    let shown = policy();
    let paths: Vec<&str> = shown["rules"]
        .as_array()
        .expect("rules")
        .iter()
        .filter_map(|rule| rule["path"].as_str())
        .collect();
    assert_eq!(paths, ["/first/**", "/second/**"]);
    assert_eq!(shown["policy"], "maxeff");
}
