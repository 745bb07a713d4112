//! What the word beside a number says the number counts.

use std::collections::HashMap;
use std::sync::LazyLock;

/// How surely a keyword counts versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionRank {
    /// Counts steps or dumps of one run: `step`, `ckpt`.
    Step,
    /// Counts something coarser, which several checkpoints may share: `epoch`.
    Epoch,
    /// Often names a run or a release instead: `v`, `time`.
    Loose,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    /// Versions; the second field orders the keywords of one rank, smaller is better.
    Version(VersionRank, u8),
    /// Writers, or parts of one version.
    Writer,
    /// Nothing: it is measured, and differs in every version.
    Measure,
    /// Runs: equal for all files of a run.
    Run,
    /// Nothing: it belongs to the word it is glued to.
    Word,
    /// Perhaps versions: nothing says otherwise.
    Weak,
}

/// Best first.
const STEP_WORDS: &[&str] = &[
    "step",
    "timestep",
    "iteration",
    "iter",
    "itr",
    "it",
    "cycle",
    "ckpt",
    "checkpoint",
    "chkpt",
    "chkpoint",
    "chkpnt",
    "chk",
    "cpt",
    "restart",
    "rst",
    "plt",
    "plot",
    "snapshot",
    "snap",
    "dump",
    "generation",
    "gen",
    "save",
    "backup",
];
const EPOCH_WORDS: &[&str] = &["epoch", "ep", "round"];
const LOOSE_WORDS: &[&str] = &["version", "ver", "v", "time", "t"];
/// Also as the end of a longer word: `globalstep`, `savestep`, `modelckpt`.
const STEP_ENDINGS: &[&str] = &["step", "iter", "ckpt", "checkpoint", "restart", "snapshot"];
const WRITER_WORDS: &[&str] = &[
    "rank",
    "part",
    "partition",
    "shard",
    "proc",
    "process",
    "processor",
    "pid",
    "pp",
    "tp",
    "dp",
    "cp",
    "sp",
    "node",
    "task",
    "thread",
    "worker",
    "writer",
    "chunk",
    "piece",
    "of",
    "level",
    "lev",
    "lvl",
    "cell",
    "subdomain",
    "domain",
    "layer",
    "split",
    "block",
    "blk",
    "stripe",
    "tile",
    "patch",
    "pe",
    "p",
    "cpu",
    "gpu",
    "device",
    "core",
    "host",
    "replica",
    "mpi",
    "slice",
];
const WRITER_ENDINGS: &[&str] = &["rank", "shard", "worker"];
const MEASURE_WORDS: &[&str] = &[
    "loss", "acc", "accuracy", "score", "metric", "lr", "error", "err", "bleu", "ppl",
];
const RUN_WORDS: &[&str] = &[
    "run",
    "job",
    "jobid",
    "slurm",
    "exp",
    "experiment",
    "trial",
    "seed",
    "user",
    "usr",
    "uid",
    "id",
    "sim",
    "simulation",
    "case",
    "project",
    "proj",
    "member",
    "ens",
    "ensemble",
    "group",
    "grp",
    "fold",
    // Tags of interpreters: `cpython-311`.
    "cpython",
    "pypy",
    "py",
];

/// Keywords whose number may have a fraction.
pub(super) fn may_be_decimal(word: &[u8]) -> bool {
    is(word, "time") || is(word, "t")
}

/// What a known word counts; `None` for a word that is not known.
pub(super) fn of_word(word: &[u8]) -> Option<Label> {
    exact(word)
        .or_else(|| exact(word.strip_suffix(b"s").unwrap_or(word)))
        .or_else(|| exact(last_hump(word)))
        .or_else(|| ending(word))
}

/// Longer words are not in the table.
const KNOWN_BYTES_MAX: usize = 16;

/// All words by their text: every file that is created has its path read, word by word.
static KNOWN: LazyLock<HashMap<&'static [u8], Label>> = LazyLock::new(|| {
    let mut known = HashMap::new();
    let mut add = |words: &[&'static str], label: &dyn Fn(u8) -> Label| {
        for (order, word) in words.iter().enumerate() {
            debug_assert!(word.len() <= KNOWN_BYTES_MAX);
            let order = u8::try_from(order).unwrap_or(u8::MAX);
            known.entry(word.as_bytes()).or_insert(label(order));
        }
    };
    add(STEP_WORDS, &|order| {
        Label::Version(VersionRank::Step, order)
    });
    add(EPOCH_WORDS, &|order| {
        Label::Version(VersionRank::Epoch, order)
    });
    add(LOOSE_WORDS, &|order| {
        Label::Version(VersionRank::Loose, order)
    });
    add(WRITER_WORDS, &|_| Label::Writer);
    add(MEASURE_WORDS, &|_| Label::Measure);
    add(RUN_WORDS, &|_| Label::Run);
    known
});

fn exact(word: &[u8]) -> Option<Label> {
    let mut lower = [0; KNOWN_BYTES_MAX];
    let lower = lower.get_mut(..word.len())?;
    lower.copy_from_slice(word);
    lower.make_ascii_lowercase();
    KNOWN.get(&*lower).copied()
}

fn ending(word: &[u8]) -> Option<Label> {
    let ends = |w: &&&str| word.len() > w.len() && is(&word[word.len() - w.len()..], w);
    if let Some(w) = STEP_ENDINGS.iter().find(ends) {
        return exact(w.as_bytes());
    }
    WRITER_ENDINGS.iter().find(ends).map(|_| Label::Writer)
}

/// `Step` of `TimeStep`; the word itself where it has no humps.
fn last_hump(word: &[u8]) -> &[u8] {
    let hump = word
        .windows(2)
        .rposition(|w| w[0].is_ascii_lowercase() && w[1].is_ascii_uppercase());
    hump.map_or(word, |i| &word[i + 1..])
}

fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}
