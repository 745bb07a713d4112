//! Memory that is borrowed and given back beside programs that read and write.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_testkit::{Cluster, needs_root, pattern, wait_until, wait_until_for, write_file};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const LEN: usize = 4 << 20;
/// On an idle machine, back at its ceiling after so long at most.
const BACK: Duration = Duration::from_secs(30);

fn borrowing() -> forebay_testkit::Builder {
    Cluster::builder()
        .lazy()
        .dram("auto")
        .ssd("400MiB")
        .flag("--dram-max=64MiB")
}

fn lending(cluster: &Cluster) -> Value {
    cluster.status()["lending"].clone()
}

fn bytes(value: &Value, field: &str) -> u64 {
    value[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field}: {value}"))
}

/// Random numbers that are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Writes, reads, cuts and opens a file again as fsx does, and compares each read with what it
/// should be; how many rounds there were.
pub(super) fn work(path: &Path, seed: u64, is_over: &AtomicBool, rounds: &AtomicU64) {
    let mut dice = Dice(seed);
    let mut model: Vec<u8> = Vec::new();
    let open = || {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        how.open(path).expect("open")
    };
    let mut file = open();
    while !is_over.load(Ordering::Relaxed) {
        let at = dice.below(LEN as u64) as usize;
        let len = dice.below(200_000) as usize + 1;
        match dice.below(8) {
            0..4 => {
                let end = (at + len).min(LEN);
                let content: Vec<u8> = (at..end).map(|_| dice.below(256) as u8).collect();
                file.write_all_at(&content, at as u64).expect("write");
                model.resize(model.len().max(end), 0);
                model[at..end].copy_from_slice(&content);
            }
            4..6 => {
                let mut found = vec![0; len];
                let got = file.read_at(&mut found, at as u64).expect("read");
                let known = model.get(at..).unwrap_or_default();
                let known = &known[..known.len().min(len)];
                assert!(found[..got] == *known, "{} at {at}", path.display());
            }
            6 => {
                file.set_len(at as u64).expect("truncate");
                model.resize(at, 0);
            }
            _ => {
                drop(file);
                assert!(
                    std::fs::read(path).expect("read") == model,
                    "{}",
                    path.display()
                );
                file = open();
            }
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    drop(file);
    assert!(
        std::fs::read(path).expect("read") == model,
        "{}",
        path.display()
    );
}

/// Lends and takes back again and again beside two programs and files that nobody uses.
fn assert_nothing_is_lost(cluster: &Cluster) {
    wait_until("the ceiling", || {
        bytes(&lending(cluster), "borrowed_bytes") == 64 * MIB
    });
    for at in 0..8 {
        write_file(
            &cluster.mnt(format!("at-rest-{at}")),
            pattern(at, 5_000_000),
        );
    }
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in [11, 12] {
            let path = cluster.mnt(format!("fsx-{seed}"));
            let (is_over, rounds) = (&is_over, &rounds);
            scope.spawn(move || work(&path, seed, is_over, rounds));
        }
        for _ in 0..3 {
            let before = rounds.load(Ordering::Relaxed);
            let told = cluster.on_state(&["lend", "1GiB"]).ok().stdout;
            assert!(
                told.starts_with("1.0 GiB go back to jobs: the memory tier may have 4.0 MiB"),
                "{told}"
            );
            wait_until("what is at rest has left", || {
                bytes(&lending(cluster), "used_bytes") <= 16 * MIB
            });
            assert_eq!(lending(cluster)["why"], "ordered");
            for at in 0..8 {
                pattern(at, 5_000_000).assert_in(&cluster.mnt(format!("at-rest-{at}")));
            }
            wait_until("the programs go on", || {
                rounds.load(Ordering::Relaxed) > before + 20
            });
            cluster.on_state(&["lend", "--end"]).ok();
            // Stalls that other tests cause keep it small meanwhile.
            wait_until_for(10 * BACK, "it has grown back", || {
                bytes(&lending(cluster), "borrowed_bytes") == 64 * MIB
            });
            for at in 0..8 {
                // A file that is written again stays where it is.
                let path = cluster.mnt(format!("at-rest-{at}"));
                std::fs::remove_file(&path).expect("remove");
                write_file(&path, pattern(at, 5_000_000));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let status = cluster.status();
    assert_eq!(
        status["errors"].as_array().map(Vec::len),
        Some(0),
        "{status}"
    );
    assert!(
        bytes(&status["lending"], "moved_bytes_total") > 60 * MIB,
        "{status}"
    );
    cluster.drain("");
    for at in 0..8 {
        pattern(at, 5_000_000).assert_in(&cluster.pfs(format!("at-rest-{at}")));
    }
}

#[test]
fn promise_5_lend_takes_memory_back_beside_programs_that_read_and_write() {
    if needs_root() {
        return;
    }
    assert_nothing_is_lost(&borrowing().flag("--no-passthrough").up());
}

#[test]
fn promise_5_lend_takes_memory_back_beside_programs_whose_files_the_kernel_has() {
    if needs_root() {
        return;
    }
    assert_nothing_is_lost(&borrowing().up());
}

#[test]
fn command_lend_is_kept_over_a_kill_and_waits_until_memory_is_free() {
    if needs_root() {
        return;
    }
    let mut cluster = borrowing().up();
    let content = pattern(21, 40 << 20);
    write_file(&cluster.mnt("f"), content);
    let begun = Instant::now();
    let output = cluster
        .on_state(&["lend", "1GiB", "--wait", "30s", "--json"])
        .ok();
    let told: Value = serde_json::from_str(&output.stdout).expect("JSON");
    assert_eq!(bytes(&told, "owed_bytes"), 0);
    assert!(bytes(&told, "used_bytes") <= 4 * MIB, "{told}");
    assert!(begun.elapsed() < BACK);
    content.assert_in(&cluster.mnt("f"));
    cluster.restart();
    let told = lending(&cluster);
    assert_eq!(
        (bytes(&told, "ordered_bytes"), &told["why"]),
        (1 << 30, &"ordered".into())
    );
    assert_eq!(bytes(&told, "borrowed_bytes"), 4 * MIB);
    content.assert_in(&cluster.mnt("f"));
    let shown = cluster.on_state(&["status"]).ok().stdout;
    let line = "borrowed   4.0 MiB of memory, between 4.0 MiB and 4.0 MiB: an order gives 1.0 GiB to jobs\n";
    assert!(shown.contains(line), "{shown}");
    cluster.on_state(&["lend", "0"]).ok();
    assert_eq!(bytes(&lending(&cluster), "ceiling_bytes"), 64 * MIB);
}

/// They share the flushes of their moves, by the thousand.
#[test]
fn promise_5_small_files_that_leave_memory_together_are_whole_also_after_a_kill() {
    if needs_root() {
        return;
    }
    let mut cluster = borrowing().up();
    let files: Vec<_> = (0..600).map(|at| pattern(at, 48 << 10)).collect();
    let name = |at: usize| format!("small-{at}");
    for (at, content) in files.iter().enumerate() {
        write_file(&cluster.mnt(name(at)), *content);
    }
    cluster.on_state(&["lend", "1GiB"]).ok();
    // In the midst of it, or just before or after.
    cluster.restart();
    wait_until("memory is given back", || {
        bytes(&lending(&cluster), "owed_bytes") == 0
    });
    assert!(bytes(&lending(&cluster), "used_bytes") <= 4 * MIB);
    for (at, content) in files.iter().enumerate() {
        content.assert_in(&cluster.mnt(name(at)));
    }
    cluster.drain("");
    for (at, content) in files.iter().enumerate() {
        content.assert_in(&cluster.pfs(name(at)));
    }
}

/// Nobody waits for the space of what moves: it is read and opened meanwhile, and the server is
/// killed in the midst of it.
#[test]
fn promise_5_what_is_coolest_in_memory_moves_to_flash_and_is_whole_also_after_a_kill() {
    if needs_root() {
        return;
    }
    let mut cluster = Cluster::builder()
        .lazy()
        .dram("64MiB")
        .ssd("400MiB")
        .config("[engine]\nplacement = \"coolness\"\nnormal_out = \"60%\"\nforced_out = \"10%\"\n")
        .up();
    let files: Vec<_> = (0..40)
        .map(|at| pattern(at, if at % 4 == 0 { 4 << 20 } else { 64 << 10 }))
        .collect();
    let name = |at: usize| format!("f{at}");
    for (at, content) in files.iter().enumerate() {
        write_file(&cluster.mnt(name(at)), *content);
        files[at / 2].assert_in(&cluster.mnt(name(at / 2)));
    }
    cluster.restart();
    let in_memory = |cluster: &Cluster| bytes(&cluster.status()["tiers"][0], "used_bytes");
    wait_until("more than 60 % of memory is free", || {
        in_memory(&cluster) < 26 * MIB
    });
    let tiers: Vec<_> = (0..files.len())
        .map(|at| cluster.where_is(cluster.mnt(name(at)))["tiers"].clone())
        .collect();
    let on_flash = tiers.iter().filter(|tiers| *tiers == &json!(["ssd"]));
    assert!(on_flash.count() > 3, "{tiers:?}");
    for (at, content) in files.iter().enumerate() {
        content.assert_in(&cluster.mnt(name(at)));
    }
    cluster.drain("");
    for (at, content) in files.iter().enumerate() {
        content.assert_in(&cluster.mnt(name(at)));
        content.assert_in(&cluster.pfs(name(at)));
    }
}

/// Two jobs share a node: each has its own order, and a prolog hears of what it waits for.
#[test]
fn command_lend_orders_of_two_jobs_add_up_and_files_that_are_waited_for_are_named() {
    if needs_root() {
        return;
    }
    let mut cluster = borrowing().flag("--no-passthrough").up();
    let path = cluster.mnt("deleted");
    write_file(&path, pattern(31, 20 << 20));
    let held = File::open(&path).expect("open");
    std::fs::remove_file(&path).expect("remove");
    cluster.on_state(&["lend", "20MiB", "--for", "job 1"]).ok();
    let second = ["lend", "32MiB", "--for", "job 2", "--wait", "1s"];
    wait_until("a round has come to nothing", || {
        cluster.on_state(&second);
        bytes(&lending(&cluster), "waits_files") == 1
    });
    let told = cluster.on_state(&second);
    assert_eq!(told.code, 4, "{}", told.stderr);
    let start = "52.0 MiB go back to jobs by 2 orders: the memory tier may have 12.0 MiB; ";
    assert!(told.stdout.starts_with(start), "{}", told.stdout);
    let end = ": 20.0 MiB stay until programs close 1 file ((unlinked object ";
    assert!(told.stdout.contains(end), "{}", told.stdout);
    let waits = &lending(&cluster)["waits_for"];
    assert_eq!(waits[0]["deleted"], true, "{waits}");
    drop(held);
    wait_until("its memory is free", || {
        bytes(&lending(&cluster), "owed_bytes") == 0
    });
    cluster.restart();
    let orders = lending(&cluster)["orders"].clone();
    let names: Vec<_> = orders.as_array().into_iter().flatten().collect();
    assert_eq!(names.len(), 2, "{orders}");
    cluster.on_state(&["lend", "--end", "--for", "job 2"]).ok();
    let told = lending(&cluster);
    assert_eq!(bytes(&told, "ordered_bytes"), 20 * MIB, "{told}");
    assert_eq!(told["orders"][0]["for"], "job 1");
}

#[test]
fn bad_input_lend_and_its_bounds_refuse_what_makes_no_sense() {
    let fixed = Cluster::builder().dram("64MiB").up();
    let output = fixed.on_state(&["lend", "1GiB"]);
    assert_eq!(output.code, 1);
    assert!(
        output
            .stderr
            .contains("start the burst buffer with --dram auto"),
        "{}",
        output.stderr
    );
    assert_eq!(lending(&fixed), Value::Null);
    for (flag, why) in [
        ("--dram-max-share=2", "2"),
        (
            "--dram-max-share=0",
            "dram_max_share is 0; it must be more than 0",
        ),
        (
            "--dram-min=1GiB",
            "dram_min (1.0 GiB) is above dram_max (64.0 MiB)",
        ),
    ] {
        let cluster = borrowing().flag(flag).prepare();
        let refused = cluster.cli(cluster.up_args());
        assert_eq!(refused.code, 1);
        let said = &refused.stderr;
        assert!(
            said.contains(why) && said.lines().count() == 1,
            "{flag}: {said}"
        );
    }
    let file = File::create(fixed.mnt("still-there"));
    drop(file.expect("create"));
}
