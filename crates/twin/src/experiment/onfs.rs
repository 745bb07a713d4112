//! Borrowed memory (ONFS 2017): the same applications on the PFS alone, with flash, with memory of
//! a fixed size, and with memory that is borrowed from jobs which come and go; from that clean
//! copies are dropped when jobs come, or what is coolest moves to flash before.

use super::{ExperimentError, ONFS, Report, Runner, SEEDS, with_memory};
use crate::figure::Figure;
use crate::row::Row;
use crate::sim::{MemoryOutcome, Run};

/// What stands before the PFS.
const BUFFERS: [&str; 6] = [
    "pfs",
    "flash",
    "fixed-small",
    "fixed-large",
    "borrowed",
    COOLNESS,
];

/// Borrowed memory from which what is coolest moves to flash before jobs want it.
const COOLNESS: &str = "borrowed-coolness";

/// What the largest job and the reserve leave of a node's memory.
const SMALL: &str = "6GiB";

/// All that is borrowed at most.
const LARGE: &str = "32GiB";

pub(super) fn run(runner: &mut Runner<'_>) -> Result<Report, ExperimentError> {
    runner.expect(BUFFERS.len() * SEEDS as usize);
    let mut all: Vec<(&str, Sums)> = Vec::new();
    for buffer in BUFFERS {
        let mut sums = Sums::default();
        for i in 0..SEEDS {
            let (text, mut set) = variant(buffer);
            set.push(("seed", (runner.seed + i).to_string()));
            sums.add(&runner.run_with(&text, &set)?);
        }
        all.push((buffer, sums));
    }
    let pfs = all.first().map(|(_, sums)| *sums).unwrap_or_default();
    let rows: Vec<Row> = all
        .iter()
        .map(|(name, sums)| sums.row(name, &pfs))
        .collect();
    let bar = |field: &str| -> Vec<f64> { rows.iter().filter_map(|r| r.number(field)).collect() };
    let figures = vec![
        Figure::bars(
            "over-pfs",
            "Throughput over that of the PFS alone",
            "burst buffer",
            "times",
            rows.iter().map(|r| r.text("buffer")).collect(),
            vec![
                ("writes".into(), bar("writes_over_pfs")),
                ("restarts".into(), bar("reads_over_pfs")),
            ],
        ),
        Figure::bars(
            "job-wait",
            "What jobs wait for memory",
            "burst buffer",
            "s",
            rows.iter().map(|r| r.text("buffer")).collect(),
            vec![("all jobs".into(), bar("job_wait_s"))],
        ),
    ];
    Ok(Report {
        nodes: Vec::new(),
        title: "Memory that is borrowed".into(),
        rows,
        figures,
        notes: vec![
            format!("sums and means over {SEEDS} seeds"),
            format!(
                "fixed-small: {SMALL} of each node, which no job needs; fixed-large: {LARGE}, as much as is borrowed at most"
            ),
            format!(
                "{COOLNESS}: placement coolness; where memory runs full its coolest files move to flash"
            ),
        ],
    })
}

/// The scenario with this before the PFS, and the keys to set.
fn variant(buffer: &str) -> (String, Vec<(&'static str, String)>) {
    let set = |all: &[(&'static str, &str)]| {
        let all = all.iter().map(|(key, value)| (*key, (*value).to_owned()));
        all.collect()
    };
    // Without the section: jobs have all of the memory, and none waits.
    let unlent = || {
        let (begin, end) = (ONFS.find("[lending]"), ONFS.find("# Of all nodes"));
        match (begin, end) {
            (Some(begin), Some(end)) => format!("{}{}", &ONFS[..begin], &ONFS[end..]),
            _ => ONFS.to_owned(),
        }
    };
    match buffer {
        // What fits nowhere is written to the PFS.
        "pfs" => (
            unlent(),
            set(&[("nodes.memory", "0"), ("nodes.flash", "4MiB")]),
        ),
        "flash" => (unlent(), set(&[("nodes.memory", "0")])),
        "fixed-small" => (
            ONFS.into(),
            set(&[("lending.max", SMALL), ("lending.min", SMALL)]),
        ),
        "fixed-large" => (
            ONFS.into(),
            set(&[("lending.max", LARGE), ("lending.min", LARGE)]),
        ),
        COOLNESS => (ONFS.into(), set(&[("placement", "coolness")])),
        _ => (ONFS.into(), Vec::new()),
    }
}

/// Of the runs with all seeds.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    runs: f64,
    write_bytes: f64,
    write_s: f64,
    checkpoints: f64,
    read_bytes: f64,
    read_s: f64,
    restarts: u64,
    hits: u64,
    lost_bytes: u64,
    memory: MemoryOutcome,
}

impl Sums {
    fn add(&mut self, run: &Run) {
        let o = &run.outcome;
        self.runs += 1.0;
        self.write_bytes += o.checkpoint_bytes as f64;
        self.write_s += o.mean_latency_s * o.checkpoints as f64;
        self.checkpoints += o.checkpoints as f64;
        self.read_bytes += o.restart_read_bytes as f64;
        self.read_s += o.restart_read_s;
        self.restarts += o.restarts;
        self.hits += o.hits;
        let fleet = run.fleet.as_ref();
        self.lost_bytes += fleet.map_or(0, |fleet| fleet.lost_bytes);
        let memory = fleet.and_then(|fleet| fleet.memory).unwrap_or_default();
        let all = &mut self.memory;
        all.job_wait_s += memory.job_wait_s;
        all.job_waits += memory.job_waits;
        all.max_job_wait_s = all.max_job_wait_s.max(memory.max_job_wait_s);
        all.mean_memory_bytes += memory.mean_memory_bytes;
        all.dropped_bytes += memory.dropped_bytes;
        all.moved_to_flash_bytes += memory.moved_to_flash_bytes;
        all.moved_to_nodes_bytes += memory.moved_to_nodes_bytes;
    }

    /// Bytes of a checkpoint over all of its time, waits and stalls included.
    fn writing(&self) -> f64 {
        self.write_bytes / self.write_s.max(1e-9)
    }

    fn reading(&self) -> f64 {
        self.read_bytes / self.read_s.max(1e-9)
    }

    fn row(&self, buffer: &str, pfs: &Sums) -> Row {
        let runs = self.runs.max(1.0);
        let memory = MemoryOutcome {
            mean_memory_bytes: self.memory.mean_memory_bytes / runs,
            ..self.memory
        };
        let row = Row::default()
            .with("buffer", buffer)
            .with("write_bytes_per_s", self.writing())
            .with("writes_over_pfs", self.writing() / pfs.writing())
            .with("mean_latency_s", self.write_s / self.checkpoints.max(1.0))
            .with("read_bytes_per_s", self.reading())
            .with("reads_over_pfs", self.reading() / pfs.reading())
            .with("hit_ratio", self.hits as f64 / self.restarts.max(1) as f64);
        with_memory(row, &memory).with("lost_bytes", self.lost_bytes)
    }
}
