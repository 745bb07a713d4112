//! Settings that change while a burst buffer runs: `forebay reload`, SIGHUP, `forebay policy`.

use std::fs;
use std::path::Path;

use forebay_testkit::{Cluster, Output, pattern, wait_until, write_file};
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
