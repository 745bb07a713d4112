//! What the word beside a number says the number counts.

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

fn exact(word: &[u8]) -> Option<Label> {
    let find = |words: &[&str]| words.iter().position(|w| is(word, w));
    let order = |i: usize| u8::try_from(i).unwrap_or(u8::MAX);
    if let Some(i) = find(STEP_WORDS) {
        return Some(Label::Version(VersionRank::Step, order(i)));
    }
    if let Some(i) = find(EPOCH_WORDS) {
        return Some(Label::Version(VersionRank::Epoch, order(i)));
    }
    if let Some(i) = find(LOOSE_WORDS) {
        return Some(Label::Version(VersionRank::Loose, order(i)));
    }
    if find(WRITER_WORDS).is_some() {
        return Some(Label::Writer);
    }
    if find(MEASURE_WORDS).is_some() {
        return Some(Label::Measure);
    }
    find(RUN_WORDS).map(|_| Label::Run)
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
