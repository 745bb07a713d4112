//! Which application and which checkpoint version a file belongs to, from its path alone.
//!
//! Nothing is configured and nothing is remembered: equal paths give equal answers on every node. A
//! wrong guess costs speed (a file leaves the burst buffer earlier or later than is best), never
//! data, so the rules favour the names that checkpoint libraries really write over completeness.
//! Explicit attributes and path rules come before this one.
//!
//! # How the version is chosen
//!
//! Every run of digits in the path is a *number*. What stands before it (or, for `1200steps`,
//! behind it) labels it:
//!
//! | label | meaning | in the application |
//! | --- | --- | --- |
//! | `step iter ckpt chk restart plt …` (rank 1), `epoch` (2), `v version t time` (3) | counts versions | chosen: `{version}`; otherwise `{n}` |
//! | `rank part shard proc level …`, and `3-of-8` | counts writers | `{n}` |
//! | `loss acc …` | a measurement | `{n}` |
//! | `run job seed user …` | names a run | kept |
//! | another word, glued, no zero padding (`h5`, `fp16`, `float32`) | part of the word | kept |
//! | another word, separated (`heat_000040`) | a weak candidate | chosen, or `{n}` |
//!
//! The best candidate is the first of these:
//!
//! 1. A label of rank 1, then of rank 2, then of rank 3. Of one rank the outermost component goes
//!    first, so a directory before a file. Within one component the keyword that is earlier in the
//!    list goes first: `step` beats `ckpt`.
//! 2. A directory that is only a number (`100/U`), the innermost.
//! 3. A weak candidate of the file name.
//! 4. A directory that is only a date.
//! 5. A zero-padded weak candidate of a directory (`heat_000040/`).
//!
//! A component that is only a number takes its label from the directory above (`checkpoints/500`).
//!
//! Decisions where names are ambiguous:
//!
//! - `out.00012.000003.bp`: of numbers in a row the first is the version, the rest count writers.
//! - `mesh_64_heat_000040.h5`: among weak candidates a zero-padded one wins, then the last.
//! - `2026-11-21_00:00:00`, `20261121T0600`, `0005-01-01-21600`: one number, `YYYYMMDDhhmmss`.
//! - `time_0.50`, `0.5/`: a decimal, in units of 10⁻⁹, so that 0.9 comes before 1.05. Whole numbers
//!   stay as they are.
//! - `v2/ckpt-7`: 7. Labels of rank 3 above the version name a run (`lightning_logs/version_3`) and
//!   stay as they are.
//! - `snapdir_012/snapshot_012.3`: a zero-padded number above the version that is written the same
//!   is the version, too.
//! - `nek.f00012`: a zero-padded number glued to a word is the weakest candidate of a file name.
//! - `out.bp/data.3`: the files of an ADIOS directory are its writers'.
//! - A number above `u64::MAX` is never a version.
//! - `tmpk3j_9`: letters about digits (`k3j`) are a name that nobody thought of. Numbers in it that
//!   are not padded, no dates and without a label of their own are no versions.
//!
//! # The application
//!
//! The path down to the component that bears the version, which is the same for all versions and
//! writers of a run; what lies below it belongs to the version. Where there is no version: the
//! first two directories (a user's run, a group's project), so that the directories of a source
//! tree are no applications of their own.

mod label;
mod number;
mod text;

pub(crate) use text::hash as hash_of;

use label::{Label, VersionRank};
use number::{Number, numbers};
use text::BoundedText;

/// Longest `application` or `file_series` in bytes. A longer one is cut and ends in `~` and a hash
/// of the whole.
pub const MAX_SERIES_BYTES: usize = text::MAX_BYTES;

/// Files without a version belong to the application that is named by so many directories: below
/// them are parts of one thing.
const PLAIN_DEPTH: usize = 2;

/// What a path says about the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The series the file belongs to: the path with its version replaced by `{version}` and
    /// writer-counting numbers by `{n}`, down to the component that bears the version. Without a
    /// version, the first two directories (`.` in the root). At most [`MAX_SERIES_BYTES`] long;
    /// bytes that are not UTF-8 are written `\xHH`.
    pub application: String,
    /// Grows from one checkpoint to the next; `None` where no number in the path looks like a
    /// version.
    pub version: Option<u64>,
    /// The path with every number replaced by `{n}`: files of one series are expected to be of one
    /// size.
    pub file_series: String,
    /// The version is more than a guess: its label counts versions, or it is named by a rule.
    /// `false` for the number in `img_00017.png`, whose neighbours may all be wanted.
    pub is_certain: bool,
}

impl Identity {
    /// A hash of `file_series` (FNV-1a, 64 bits), the same on every node.
    pub fn series_hash(&self) -> u64 {
        text::hash(self.file_series.as_bytes())
    }
}

/// Identifies a file by its path relative to the mount root, `/`-separated, any bytes. Never fails;
/// time and memory are linear in the length of the path. A rename asks again: `ckpt-7.tmp` and
/// `ckpt-7` are different applications.
pub fn identify(path: &[u8]) -> Identity {
    let chosen = choose(path);
    Identity {
        application: render_application(path, chosen.as_ref()),
        version: chosen.map(|c| c.value),
        file_series: render_file_series(path),
        is_certain: chosen.is_some_and(|c| c.is_labelled),
    }
}

/// The number that was chosen as the version.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    component: usize,
    start: usize,
    end: usize,
    value: u64,
    is_labelled: bool,
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/')
        .filter(|c| !c.is_empty() && *c != b".")
}

/// Smaller is better. The fields in order: kind of evidence, place of the component, preference
/// within the component.
type Score = (u8, usize, u8, usize);

fn choose(path: &[u8]) -> Option<Chosen> {
    let count = components(path).count();
    let mut best: Option<(Score, Chosen)> = None;
    let mut parent: Option<&[u8]> = None;
    for (index, component) in components(path).enumerate() {
        let is_file = index + 1 == count;
        for number in numbers(component, parent) {
            let Some(value) = number.value else { continue };
            let Some(score) = score(&number, component, index, is_file) else {
                continue;
            };
            if best.as_ref().is_none_or(|(b, _)| score < *b) {
                let chosen = Chosen {
                    component: index,
                    start: number.start,
                    end: number.end,
                    value,
                    is_labelled: matches!(number.label, Label::Version(..)),
                };
                best = Some((score, chosen));
            }
        }
        parent = Some(component);
    }
    best.map(|(_, chosen)| chosen)
}

fn score(number: &Number, component: &[u8], index: usize, is_file: bool) -> Option<Score> {
    let whole = number.start == 0 && number.end == component.len();
    let outermost = index;
    let innermost = usize::MAX - index;
    let last = usize::MAX - number.start;
    let is_doubtful = !number.padded && !number.is_date && is_random(component);
    match number.label {
        Label::Version(VersionRank::Loose, _) if number.glued && is_doubtful => None,
        Label::Version(rank, order) => {
            let tier = match rank {
                VersionRank::Step => 1,
                VersionRank::Epoch => 2,
                VersionRank::Loose => 3,
            };
            Some((tier, outermost, order, number.start))
        }
        Label::Weak if is_doubtful => None,
        Label::Weak if is_file => {
            let doubt = match number.padded || number.is_date {
                _ if number.glued => 2,
                true => 0,
                false => 1,
            };
            Some((5, innermost, doubt, last))
        }
        Label::Weak if whole && number.is_date => Some((6, innermost, 0, last)),
        Label::Weak if whole => Some((4, innermost, 0, last)),
        Label::Weak if number.padded && !number.glued => Some((7, innermost, 0, last)),
        _ => None,
    }
}

/// Whether digits stand between letters, as in the names that mktemp makes.
fn is_random(component: &[u8]) -> bool {
    let mut runs = component.chunk_by(|a, b| kind(*a) == kind(*b));
    let (mut before, mut here) = (None, runs.next());
    while let (Some(run), after) = (here, runs.next()) {
        let is_letters = |run: &[u8]| kind(run[0]) == Kind::Letter;
        let digits = kind(run[0]) == Kind::Digit;
        if digits && before.is_some_and(is_letters) && after.is_some_and(is_letters) {
            return true;
        }
        (before, here) = (Some(run), after);
    }
    false
}

#[derive(PartialEq, Eq)]
enum Kind {
    Letter,
    Digit,
    Other,
}

fn kind(byte: u8) -> Kind {
    match byte {
        b'0'..=b'9' => Kind::Digit,
        b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
        _ => Kind::Other,
    }
}

fn render_application(path: &[u8], chosen: Option<&Chosen>) -> String {
    let count = components(path).count();
    let plain = count.saturating_sub(1).min(PLAIN_DEPTH);
    let upto = chosen.map_or(plain, |c| c.component + 1);
    if upto == 0 {
        return ".".to_owned();
    }
    let version_text = chosen.and_then(|c| components(path).nth(c.component)?.get(c.start..c.end));
    let mut text = BoundedText::new();
    let mut parent: Option<&[u8]> = None;
    for (index, component) in components(path).take(upto).enumerate() {
        if index > 0 {
            text.push(b"/");
        }
        let here = chosen.filter(|c| c.component == index);
        let mut at = 0;
        for number in numbers(component, parent) {
            let digits = &component[number.start..number.end];
            let is_version = match here {
                Some(c) => c.start == number.start,
                None => {
                    number.padded && number.label == Label::Weak && version_text == Some(digits)
                }
            };
            let replacement: &[u8] = if is_version {
                b"{version}"
            } else if counts(&number, here.is_some()) {
                b"{n}"
            } else {
                continue;
            };
            text.push(&component[at..number.start]);
            text.push(replacement);
            at = number.end;
        }
        text.push(&component[at..]);
        parent = Some(component);
    }
    text.finish()
}

/// Whether a number that is not the version differs between the writers or versions of one run.
fn counts(number: &Number, beside_version: bool) -> bool {
    match number.label {
        Label::Writer | Label::Measure => true,
        // Above the version: `epoch3/step1200` is one application, `version_3/step1200` is run 3.
        Label::Version(rank, _) => beside_version || rank != VersionRank::Loose,
        // Above the version an unknown number names a run.
        Label::Weak => beside_version,
        Label::Run | Label::Word => false,
    }
}

fn render_file_series(path: &[u8]) -> String {
    let mut text = BoundedText::new();
    for (index, component) in components(path).enumerate() {
        if index > 0 {
            text.push(b"/");
        }
        for run in component.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit()) {
            let is_number = run.first().is_some_and(u8::is_ascii_digit);
            text.push(if is_number { b"{n}" } else { run });
        }
    }
    text.finish()
}

#[cfg(test)]
mod tests;
