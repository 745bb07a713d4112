//! `forebay simulate` and `forebay trace import` as commands. Nothing here needs a mount.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_testkit::{LONG, Output, program, run_bounded, wait_until_for, without_settings};
use rustix::process::{Pid, Signal, kill_process};

const SMALL: &str = r#"name = "small"
duration = "1d"

[bb]
capacity = "100GB"
bw_max = "2GB/s"
bw_min = "1.5GB/s"
br_max = "1GB/s"
br_min = "50MB/s"

[plan]
period = "1h"

[arrivals]
pattern = "med"

[failures]
mode = "process"

[[application]]
name = "climate"
count = 8
checkpoint = "20GB"
interval = "1h"
jitter = 0.1
mtbf = { exponential = "5h" }
"#;

/// Simulations are work for the processor, and others may want it, too.
const PATIENCE: Duration = Duration::from_secs(5 * LONG.as_secs());

fn forebay(args: &[&str]) -> Output {
    let mut command = Command::new(program());
    run_bounded(without_settings(command.args(args)), PATIENCE)
}

/// A directory with the scenario in it.
fn ground(scenario: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s.toml");
    fs::write(&path, scenario).expect("scenario");
    (dir, path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn simulate_lists_what_is_built_in() {
    let output = forebay(&["simulate", "--list"]).ok();
    let names: Vec<&str> = output
        .stdout
        .lines()
        .filter_map(|l| l.split(' ').next())
        .collect();
    assert_eq!(
        names,
        [
            "bbos-utilisation",
            "bbos-checkpoint",
            "bbos-direct",
            "bbos-restart",
            "bbos-versions",
            "onfs",
            "runs"
        ]
    );
}

/// Fields of the rows, the values of the first, and how many rows there are.
const EXPERIMENTS: [(&str, &[&str], usize); 5] = [
    (
        "bbos-utilisation",
        &["policy", "utilisation_burst", "utilisation_sustained"],
        4,
    ),
    (
        "bbos-checkpoint",
        &[
            "policy",
            "dwpp_s",
            "congestion",
            "mean_throughput_bytes_per_s",
            "mean_latency_s",
            "max_latency_s",
            "mean_wait_s",
            "mean_stall_s",
        ],
        36,
    ),
    (
        "bbos-direct",
        &["dwpp_s", "demoted_bytes", "demoted_bytes_direct"],
        7,
    ),
    (
        "bbos-restart",
        &["placement", "dwpp_s", "mtbf_max_min", "hit_ratio"],
        36,
    ),
    ("bbos-versions", &["mix", "version_aware", "hit_ratio"], 4),
];

#[test]
fn simulate_prints_the_rows_of_each_experiment_as_json() {
    for (name, fields, count) in EXPERIMENTS {
        let output = forebay(&["simulate", name, "--json"]).ok();
        let json = output.json();
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(1));
        let rows = json["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), count, "{name}");
        let mut wanted = fields.to_vec();
        wanted.sort_unstable();
        for row in rows {
            let row = row.as_object().expect("an object");
            let mut names: Vec<&str> = row.keys().map(String::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, wanted, "{name}");
            for (field, value) in row {
                let fits = match field.as_str() {
                    "policy" => {
                        ["dedicated", "maxbw", "maxeff", "bbos"].contains(&value.as_str().unwrap())
                    }
                    "congestion" => ["low", "med", "high"].contains(&value.as_str().unwrap()),
                    "placement" | "mix" => value.is_string(),
                    "version_aware" => value.is_boolean(),
                    _ => value.as_f64().is_some_and(|x| x.is_finite() && x >= 0.0),
                };
                assert!(fits, "{name}: {field}: {value}");
            }
        }
    }
}

#[test]
fn simulate_refuses_bad_scenarios_with_the_line_and_the_reason() {
    let cases = [
        (
            "\"100GB\"",
            "\"-100GB\"",
            "line 5: bb.capacity: must be zero or a positive size",
        ),
        (
            "bw_min = \"1.5GB/s\"",
            "bw_min = \"3GB/s\"",
            "line 7: bb.bw_min: ",
        ),
        (
            "br_max = \"1GB/s\"",
            "br_max = 0",
            "line 8: bb.br_max: Brmax must be a positive number",
        ),
        (
            "period = \"1h\"",
            "period = \"-1h\"",
            "line 12: plan.period: must be zero or a positive duration",
        ),
        ("\"med\"", "\"medium\"", "line 15: arrivals.pattern: "),
        (
            "count = 8",
            "count = 0",
            "line 22: application.count: must be a whole number",
        ),
        (
            "\"20GB\"",
            "\"9TB\"",
            "line 23: application.checkpoint: a checkpoint takes 4500.0 s",
        ),
        (
            "jitter",
            "jiter",
            "line 25: application.jiter: unknown key; known here: ",
        ),
        (
            "[arrivals]",
            "[arrival]",
            "line 14: arrival: unknown key; known here: ",
        ),
        ("[plan]", "[plan", "line 11: "),
    ];
    for (from, to, reason) in cases {
        assert!(SMALL.contains(from), "{from}");
        let (_dir, path) = ground(&SMALL.replacen(from, to, 1));
        let output = forebay(&["simulate", text(&path), "--json"]).expect_code(1);
        assert_eq!(output.stdout, "");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(output.stderr.contains(reason), "{reason}: {output:?}");
        assert!(output.stderr.contains("s.toml: "), "{output:?}");
    }
    let nobody = SMALL.split("[[application]]").next().expect("a part");
    let (_dir, path) = ground(nobody);
    let output = forebay(&["simulate", text(&path)]).expect_code(1);
    assert!(output.stderr.contains("there is none; add"), "{output:?}");
}

#[test]
fn simulate_refuses_keys_ranges_and_targets_that_make_no_sense() {
    let (_dir, path) = ground(SMALL);
    let cases: [(&[&str], &str); 5] = [
        (
            &["--set", "capacitty=1TB"],
            "capacitty: no such key; docs/twin.md lists them",
        ),
        (&["--set", "capacity=-1TB"], "must be zero or a positive"),
        (&["--sweep", "capacity=9TB..1TB"], "capacity"),
        (
            &["--sweep", "capacity=1TB..2TB", "--target", "beauty>=1"],
            "beauty",
        ),
        (&["--target", "stall<=1s"], "--sweep"),
    ];
    for (args, reason) in cases {
        let output = forebay(&[&["simulate", text(&path)], args].concat()).expect_code(1);
        assert!(output.stderr.contains(reason), "{args:?}: {output:?}");
        assert_eq!(output.stdout, "", "{args:?}");
    }
    let output = forebay(&["simulate", "bbos-nothing"]).expect_code(1);
    assert!(output.stderr.contains("--list"), "{output:?}");
}

#[test]
fn simulate_is_the_same_again_with_the_same_seed_only() {
    let (_dir, path) = ground(SMALL);
    let run = |seed: &str| {
        forebay(&["simulate", text(&path), "--json", "--seed", seed])
            .ok()
            .stdout
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn simulate_writes_figures_and_a_page_that_needs_nothing_else() {
    let (dir, path) = ground(SMALL);
    let out = dir.path().join("deep/out");
    let json = forebay(&["simulate", text(&path), "--json", "--out", text(&out)]).ok();
    let csv = forebay(&["simulate", text(&path), "--csv"]).ok();
    let read = |name: &str| fs::read(out.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(read("rows.json"), json.stdout.as_bytes());
    assert_eq!(read("rows.csv"), csv.stdout.as_bytes());
    let lines: Vec<&str> = csv.stdout.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("policy,placement,capacity_bytes,applications,"));
    assert!(lines[1].starts_with("bbos,bbos,100000000000,8,"));
    assert!(read("occupancy.png").starts_with(b"\x89PNG\r\n\x1a\n"));
    let svg = String::from_utf8(read("occupancy.svg")).expect("UTF-8");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let page = String::from_utf8(read("report.html")).expect("UTF-8");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
    let foreign = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["src=", "href=", "url(", "http:", "https:", "<script"] {
        assert!(
            !foreign.contains(word),
            "the page asks for something: {word}"
        );
    }
    let mut names: Vec<String> = fs::read_dir(&out)
        .expect("directory")
        .map(|e| e.expect("entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "occupancy.png",
            "occupancy.svg",
            "report.html",
            "rows.csv",
            "rows.json"
        ]
    );
}

#[test]
fn simulate_finds_the_smallest_burst_buffer_and_draws_the_curve() {
    let (dir, path) = ground(SMALL);
    let out = dir.path().join("out");
    let mut args = vec![
        "simulate",
        text(&path),
        "--sweep",
        "capacity=40GB..400GB:5",
        "--target",
        "hit_ratio>=0.9",
        "--target",
        "stall<=0.5s",
        "--out",
        text(&out),
    ];
    let told = forebay(&args).ok().stdout;
    let line = told.lines().last().expect("a line");
    let found: u64 = line
        .strip_prefix("smallest bb.capacity that meets the target: ")
        .and_then(|rest| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{told}"));
    assert!((40_000_000_000..400_000_000_000).contains(&found), "{line}");
    args.push("--json");
    let json = forebay(&args).ok().json();
    let rows = json["rows"].as_array().expect("rows");
    let smallest: Vec<_> = rows.iter().filter(|r| r["smallest"] == true).collect();
    assert_eq!(smallest.len(), 1);
    assert_eq!(smallest[0]["capacity_bytes"].as_u64(), Some(found));
    for row in rows {
        let hit = row["hit_ratio"].as_f64().expect("hit ratio");
        let stall = row["mean_stall_s"].as_f64().expect("stall");
        assert_eq!(row["meets_target"], hit >= 0.9 && stall <= 0.5, "{row}");
        let is_smaller = row["capacity_bytes"].as_u64() < Some(found);
        assert!(!is_smaller || row["meets_target"] == false, "{row}");
    }
    let curve = fs::read_to_string(out.join("sweep.svg")).expect("curve");
    assert!(
        curve.contains("<polyline") || curve.contains("<path"),
        "{curve}"
    );
    // What was found, given as the capacity, meets the targets by itself.
    let capacity = format!("bb.capacity={found}");
    let again = forebay(&["simulate", text(&path), "--set", &capacity, "--json"]).ok();
    assert!(again.json()["rows"][0]["hit_ratio"].as_f64() >= Some(0.9));
}

/// A scenario that is stopped long before its end.
fn hours_of_work() -> String {
    SMALL
        .replace("duration = \"1d\"", "duration = \"36500d\"")
        .replace("count = 8", "count = 40")
        .replace("\"20GB\"", "\"1GB\"")
}

#[test]
fn simulate_shows_a_bar_on_a_terminal_until_ctrl_c() {
    let (dir, path) = ground(&hours_of_work());
    let shown = dir.path().join("shown");
    let order = format!(
        "{} simulate {} --set mtbf=1h",
        program().display(),
        text(&path)
    );
    let mut command = Command::new("script");
    command
        .args([
            "--quiet",
            "--flush",
            "--return",
            "--command",
            &order,
            "/dev/null",
        ])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&shown).expect("file"));
    let mut child = without_settings(&mut command).spawn().expect("script");
    let read = || String::from_utf8_lossy(&fs::read(&shown).expect("file")).into_owned();
    wait_until_for(PATIENCE, "a bar", || {
        read().contains("simulating [") || child.try_wait().expect("child").is_some()
    });
    let mut keyboard = child.stdin.take().expect("piped");
    keyboard.write_all(b"\x03").expect("Ctrl-C");
    let mut code = None;
    wait_until_for(PATIENCE, "the end", || {
        code = child.try_wait().expect("child");
        code.is_some()
    });
    let shown = read();
    assert!(shown.contains(" %, ") && shown.contains(" left"), "{shown}");
    assert_eq!(code.and_then(|c| c.code()), Some(130), "{shown}");
    // The bar does not stay in the way of what comes next.
    let last = shown.rsplit("simulating [").next().expect("some");
    assert!(last.contains("\x1b[2K"), "{last:?}");
}

#[test]
fn simulate_tells_its_progress_beside_the_rows_and_stops_when_asked() {
    let (dir, path) = ground(&hours_of_work());
    let out = dir.path().join("out");
    let file = |name: &str| fs::File::create(dir.path().join(name)).expect("file");
    let mut command = Command::new(program());
    command
        .args([
            "simulate",
            text(&path),
            "--set",
            "mtbf=1h",
            "--json",
            "--out",
            text(&out),
        ])
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    let mut child = without_settings(&mut command)
        .spawn()
        .expect("program starts");
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("file");
    wait_until_for(PATIENCE, "a line of progress", || {
        read("stderr").contains(" left\n") || child.try_wait().expect("child").is_some()
    });
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("signal");
    let mut code = None;
    wait_until_for(PATIENCE, "the end", || {
        code = child.try_wait().expect("child");
        code.is_some()
    });
    let stderr = read("stderr");
    assert!(stderr.starts_with("forebay: simulate: "), "{stderr}");
    assert!(
        stderr.contains(" %, ") && stderr.contains(" left\n"),
        "{stderr}"
    );
    assert_eq!(code.and_then(|c| c.code()), Some(130), "{stderr}");
    assert_eq!(read("stdout"), "");
    assert!(!out.exists(), "something was written");
}

/// Logs that packages ship; the crate's `tests/data/README.md` says which.
fn log(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../../crates/twin/tests/data").join(name)
}

#[test]
fn trace_import_makes_scenarios_of_real_logs_that_simulate_runs() {
    let dir = tempfile::tempdir().expect("directory");
    for (name, jobs, tells) in [
        ("evalys-easy.swf", 800, "SWF tells nothing of I/O"),
        ("slurm2sql-data1.txt", 1, "sacct tells the sum"),
        ("pydarshan-example.txt", 1, "Darshan's counters tell"),
    ] {
        let toml = dir.path().join(format!("{name}.toml"));
        let mut args = vec!["trace", "import"];
        let file = log(name);
        args.extend([text(&file), "--bytes-per-node", "100MB"]);
        let printed = forebay(&args).ok().stdout;
        assert!(
            printed.starts_with("# ") && printed.contains(tells),
            "{printed}"
        );
        args.extend(["--out", text(&toml)]);
        assert_eq!(forebay(&args).ok().stdout, "");
        assert_eq!(fs::read_to_string(&toml).expect("scenario"), printed);
        let row = &forebay(&["simulate", text(&toml), "--json"]).ok().json()["rows"][0];
        assert!(row["applications"].as_u64() >= Some(jobs), "{row}");
        assert!(row["checkpoints"].as_u64() > Some(0), "{row}");
    }
}

/// Logs as Darshan wrote them, on machines of others: PyDarshan ships them.
#[test]
fn trace_import_reads_darshans_own_logs_by_means_of_pydarshan() {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/venv-test");
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "PyDarshan: `scripts/setup.sh test` installs it"
    );
    let find = "import darshan, pathlib; print(pathlib.Path(darshan.__file__).parent / 'examples/example_logs')";
    let mut command = Command::new(&python);
    let logs = run_bounded(command.args(["-c", find]), LONG).ok().stdout;
    // What `darshan-job-summary` shows of them: processes, and bytes written through POSIX and
    // STDIO.
    for (log, nodes, bytes) in [
        ("example.darshan", 2048, 2_199_023_263_277_u64),
        ("ior_hdf5_example.darshan", 4, 4_198_221),
        ("dxt.darshan", 1, 13_021_781),
    ] {
        let path = Path::new(logs.trim()).join(log);
        let mut command = Command::new(program());
        command.args(["trace", "import", text(&path)]);
        let command = without_settings(&mut command).env("FOREBAY_PYTHON", &python);
        let scenario = run_bounded(command, LONG).ok().stdout;
        assert!(scenario.contains("Darshan's counters tell"), "{scenario}");
        let says = |line: String| scenario.lines().any(|l| l == line);
        assert!(says(format!("nodes = {nodes}")), "{log}: {scenario}");
        assert!(says(format!("checkpoint = {bytes}")), "{log}: {scenario}");
    }
}

#[test]
fn trace_import_refuses_what_it_does_not_understand() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("log");
    fs::write(&file, "once upon a time\n").expect("log");
    let output = forebay(&["trace", "import", text(&file)]).expect_code(1);
    assert!(output.stderr.contains("neither an SWF log"), "{output:?}");
    fs::write(&file, "JobID|Start\n1|Unknown\n").expect("log");
    let output = forebay(&["trace", "import", text(&file)]).expect_code(1);
    assert!(output.stderr.contains("no column End"), "{output:?}");
    // Not text, so Darshan's; and no Python that could read it.
    fs::write(&file, [0xff, 0xfe, 0, 1]).expect("log");
    let mut command = Command::new(program());
    command.args(["trace", "import", text(&file)]);
    let command = without_settings(&mut command).env("FOREBAY_PYTHON", "false");
    let output = run_bounded(command, LONG).expect_code(1);
    assert!(output.stderr.contains("pip install darshan"), "{output:?}");
    let output = forebay(&["trace", "import", text(&dir.path().join("none"))]).expect_code(1);
    assert!(output.stderr.contains("No such file"), "{output:?}");
}

#[test]
fn simulate_replays_what_a_live_experiment_measured() {
    let (_dir, path) = ground(
        r#"{"parameters":{"duration":100,"policy":"maxbw",
        "bb":{"capacity":"10GB","bw_max":1e9,"bw_min":8e8,"br_max":2e8,"br_min":1e7},
        "plan":{"period":"100s"},"arrivals":{"pattern":"low"},
        "application":[{"name":"a","count":2,"checkpoint":"1GB"}]},
        "jobs":[{"application":0,"version":1,"latency_s":1.05,"bytes":1000000000},
                {"application":1,"version":1,"latency_s":1.05,"bytes":1000000000}]}"#,
    );
    let told = forebay(&["simulate", "--replay", text(&path)]).ok().stdout;
    assert_eq!(told.matches("agree within 10 %").count(), 3, "{told}");
    let rows = forebay(&["simulate", "--replay", text(&path), "--json"])
        .ok()
        .json();
    let row = &rows["rows"][1];
    assert_eq!(
        (&row["application"], &row["version"]),
        (&1.into(), &1.into())
    );
    assert!(
        (row["twin_latency_s"].as_f64().expect("number") - 1.0).abs() < 1e-3,
        "{row}"
    );
    let (_dir, path) = ground("{\"jobs\":[]}");
    let output = forebay(&["simulate", "--replay", text(&path)]).expect_code(1);
    assert!(output.stderr.contains("parameters"), "{output:?}");
}
