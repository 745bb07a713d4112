//! Finds the numbers of one path component and labels them.

use super::label::{self, Label};

/// One number of a component, as a byte range. A date or a decimal is one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) start: usize,
    pub(super) end: usize,
    /// `None` where it exceeds `u64`.
    pub(super) value: Option<u64>,
    pub(super) label: Label,
    /// Written with leading zeros to a width of three or more, as counters are.
    pub(super) padded: bool,
    /// No separator stands between it and the word before it.
    pub(super) glued: bool,
    pub(super) is_date: bool,
}

/// Decimals are counted in billionths.
const FRACTION_DIGITS: usize = 9;
const FRACTION_SCALE: u64 = 1_000_000_000;

/// A `t` glued to fewer digits is a name (`t5-base`), not a time.
const MIN_GLUED_T_DIGITS: usize = 3;

/// Eight digits that begin with an earlier year are a counter, not a date.
const MIN_COMPACT_YEAR: u64 = 1900;

/// The numbers of `component` from left to right. `parent` is the directory it lies in, which
/// labels a bare number.
pub(super) fn numbers(component: &[u8], parent: Option<&[u8]>) -> Vec<Number> {
    let mut found: Vec<Number> = Vec::new();
    let mut at = 0;
    while let Some(offset) = component[at..].iter().position(u8::is_ascii_digit) {
        let start = at + offset;
        if let Some(end) = architecture(component, start) {
            at = end;
            continue;
        }
        let number = number_at(component, start, parent, found.last());
        at = number.end;
        found.push(number);
    }
    found
}

/// `x86_64` holds no number; returns where it ends.
fn architecture(component: &[u8], start: usize) -> Option<usize> {
    let name = component.get(start.checked_sub(1)?..start + 5)?;
    name.eq_ignore_ascii_case(b"x86_64").then_some(start + 5)
}

fn number_at(
    component: &[u8],
    start: usize,
    parent: Option<&[u8]>,
    previous: Option<&Number>,
) -> Number {
    let digits_end = end_of_digits(component, start);
    let before = before(component, start, parent);
    let mut number = Number {
        start,
        end: digits_end,
        value: parse(&component[start..digits_end]),
        label: Label::Word,
        padded: digits_end - start >= 3 && component[start] == b'0',
        is_date: false,
        glued: matches!(before, Before::Glued { .. }),
    };
    if let Some((end, value)) = date(component, start) {
        number.end = end;
        number.value = Some(value);
        number.is_date = true;
    } else if before.may_be_decimal(component, digits_end)
        && let Some((end, value)) = decimal(component, start, digits_end)
    {
        number.end = end;
        number.value = value;
    }
    number.label = label_of(component, parent, &number, &before, previous);
    number
}

/// What stands before a number.
#[derive(Debug)]
enum Before<'a> {
    /// A word with no separator between.
    Glued { word: &'a [u8], after_digit: bool },
    /// A word, then separators; `None` where the word is not known, nor the one before a single
    /// letter (`Cell_D_00001`).
    Separated {
        label: Option<Label>,
        word: &'a [u8],
    },
    /// Another number, then separators.
    Number,
    /// Nothing: the component starts with the number. The word is the last of the directory above,
    /// where it ends in one.
    Start { parent_word: Option<&'a [u8]> },
    /// Separators only, or punctuation.
    Nothing,
}

impl Before<'_> {
    fn may_be_decimal(&self, component: &[u8], digits_end: usize) -> bool {
        match self {
            Before::Glued { word, .. } | Before::Separated { word, .. } => {
                label::may_be_decimal(word)
            }
            Before::Start { .. } => {
                let rest = &component[digits_end..];
                rest.len() > 1 && rest[0] == b'.' && rest[1..].iter().all(u8::is_ascii_digit)
            }
            Before::Number | Before::Nothing => false,
        }
    }
}

fn before<'a>(component: &'a [u8], start: usize, parent: Option<&'a [u8]>) -> Before<'a> {
    if start == 0 {
        let parent_word = parent.map(last_word).filter(|w| !w.is_empty());
        return Before::Start { parent_word };
    }
    let head = &component[..start];
    let word = last_word(head);
    if !word.is_empty() {
        let rest = &head[..head.len() - word.len()];
        let after_digit = rest.last().is_some_and(u8::is_ascii_digit);
        return Before::Glued { word, after_digit };
    }
    let head = without_separators(head);
    if head.last().is_some_and(u8::is_ascii_digit) {
        return Before::Number;
    }
    let word = last_word(head);
    if word.is_empty() {
        return Before::Nothing;
    }
    let label = label::of_word(word).or_else(|| {
        let earlier = last_word(without_separators(&head[..head.len() - word.len()]));
        if word.len() > 1 {
            return None;
        }
        label::of_word(earlier).filter(|l| *l == Label::Writer)
    });
    Before::Separated { label, word }
}

fn label_of(
    component: &[u8],
    parent: Option<&[u8]>,
    number: &Number,
    before: &Before<'_>,
    previous: Option<&Number>,
) -> Label {
    let label = label_before(component, parent, number, before, previous);
    if number.value.is_none() && matches!(label, Label::Version(..) | Label::Weak) {
        return Label::Word;
    }
    if number.is_date && label == Label::Writer {
        return Label::Weak;
    }
    let behind = first_word(&component[number.end..]);
    if behind.is_empty() || label == Label::Writer {
        return label;
    }
    // A word glued behind: `1200steps` counts, `7z`, `3d` and the digits of `9a8b7c` do not.
    let glued = matches!(before, Before::Glued { .. });
    match label::of_word(behind) {
        Some(_) if glued => label,
        Some(known @ Label::Version(..)) if behind.len() > 1 => known,
        _ => Label::Word,
    }
}

fn label_before(
    component: &[u8],
    parent: Option<&[u8]>,
    number: &Number,
    before: &Before<'_>,
    previous: Option<&Number>,
) -> Label {
    if followed_by_of(&component[number.end..]) || (number.start > 0 && is_adios_directory(parent))
    {
        return Label::Writer;
    }
    match before {
        Before::Glued { word, after_digit } => {
            let short_t = word.len() == 1
                && label::may_be_decimal(word)
                && number.end - number.start < MIN_GLUED_T_DIGITS;
            // A single letter between digits belongs to a hash, not to a counter.
            if short_t || (*after_digit && word.len() == 1) {
                return Label::Word;
            }
            // `nek.f00012` counts something, `h5` does not.
            let unknown = if number.padded && !after_digit {
                Label::Weak
            } else {
                Label::Word
            };
            label::of_word(word).unwrap_or(unknown)
        }
        Before::Separated { label, .. } => label.unwrap_or(Label::Weak),
        Before::Number => after_number(number, previous),
        Before::Start { parent_word } => {
            let ends = matches!(component.get(number.end), None | Some(b'.'));
            parent_word
                .filter(|_| ends)
                .and_then(label::of_word)
                .unwrap_or(Label::Weak)
        }
        Before::Nothing => Label::Writer,
    }
}

/// Of numbers in a row the first that may count versions does, and those behind it count writers.
fn after_number(number: &Number, previous: Option<&Number>) -> Label {
    match previous.map(|p| p.label) {
        Some(Label::Version(..) | Label::Weak) => Label::Writer,
        Some(Label::Writer) if !(number.padded || number.is_date) => Label::Writer,
        Some(Label::Measure) => Label::Measure,
        _ => Label::Weak,
    }
}

/// In `out.bp/` the files `data.0`, `data.1` are those of the writers.
fn is_adios_directory(parent: Option<&[u8]>) -> bool {
    parent.is_some_and(|p| {
        [&b".bp"[..], b".bp4", b".bp5"]
            .iter()
            .any(|e| p.ends_with(e))
    })
}

/// `-of-00003` and the like.
fn followed_by_of(rest: &[u8]) -> bool {
    let [separator, b'o' | b'O', b'f' | b'F', other, digit, ..] = rest else {
        return false;
    };
    is_separator(*separator) && is_separator(*other) && digit.is_ascii_digit()
}

/// Year, month and day from `start`, then hour, minute and second where they follow, as
/// `YYYYMMDDhhmmss`.
fn date(component: &[u8], start: usize) -> Option<(usize, u64)> {
    let run = end_of_digits(component, start) - start;
    let (mut at, year, month, day) = match run {
        4 => {
            let separator = *component.get(start + 4)?;
            let same = component.get(start + 7) == Some(&separator);
            if !matches!(separator, b'-' | b'_' | b'.') || !same {
                return None;
            }
            let month = field(component, start + 5, 2)?;
            let day = field(component, start + 8, 2)?;
            let year = field(component, start, 4)?;
            (start + 10, year, month, day)
        }
        8 => {
            let all = field(component, start, 8)?;
            (start + 8, all / 10_000, all / 100 % 100, all % 100)
        }
        _ => return None,
    };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // A counter of eight digits is padded or small; a year of today is neither.
    if run == 8 && year < MIN_COMPACT_YEAR {
        return None;
    }
    let mut time = 0;
    match time_of_day(component, at) {
        Some((end, hhmmss)) => (at, time) = (end, hhmmss),
        // What is written is the number where there are no separators.
        None if run == 8 => return Some((at, year * 10_000 + month * 100 + day)),
        None => {}
    }
    let days = year * 10_000 + month * 100 + day;
    Some((at, days * 1_000_000 + time))
}

/// `_00:00:00`, `T0600`, `-21600` (seconds of the day), `_12` from `at`, as `hhmmss`, and where it
/// ends.
fn time_of_day(component: &[u8], at: usize) -> Option<(usize, u64)> {
    if !matches!(
        component.get(at)?,
        b'-' | b'_' | b'T' | b't' | b'.' | b':' | b' '
    ) {
        return None;
    }
    let start = at + 1;
    let run = end_of_digits(component, start).saturating_sub(start);
    let (mut end, hour, minute, second) = match run {
        2 => {
            let (mut end, mut minute, mut second) = (start + 2, 0, 0);
            if let Some((e, m)) = minor_field(component, end) {
                (end, minute) = (e, m);
                if let Some((e, s)) = minor_field(component, end) {
                    (end, second) = (e, s);
                }
            }
            (end, field(component, start, 2)?, minute, second)
        }
        4 => {
            let all = field(component, start, 4)?;
            (start + 4, all / 100, all % 100, 0)
        }
        5 => {
            let all = field(component, start, 5)?;
            (start + 5, all / 3600, all / 60 % 60, all % 60)
        }
        6 => {
            let all = field(component, start, 6)?;
            (start + 6, all / 10_000, all / 100 % 100, all % 100)
        }
        _ => return None,
    };
    if hour > 24 || minute > 59 || second > 60 {
        return None;
    }
    let zone = matches!(component.get(end), Some(b'Z' | b'z'));
    let word_ends = !component
        .get(end + 1)
        .is_some_and(u8::is_ascii_alphanumeric);
    end += usize::from(zone && word_ends);
    Some((end, hour * 10_000 + minute * 100 + second))
}

/// A separator and a two-digit minute or second.
fn minor_field(component: &[u8], at: usize) -> Option<(usize, u64)> {
    if !matches!(component.get(at)?, b'-' | b'_' | b':' | b'.') {
        return None;
    }
    let value = field(component, at + 1, 2).filter(|v| *v <= 60)?;
    Some((at + 3, value))
}

/// Exactly `width` digits from `at`, with no digit behind them.
fn field(component: &[u8], at: usize, width: usize) -> Option<u64> {
    let digits = component.get(at..at + width)?;
    if end_of_digits(component, at) != at + width {
        return None;
    }
    parse(digits)
}

/// Whole part `start..point`, then a point and a fraction; in billionths, `None` inside where that
/// exceeds `u64`.
fn decimal(component: &[u8], start: usize, point: usize) -> Option<(usize, Option<u64>)> {
    let whole = &component[start..point];
    // `00012.000003` is two counters.
    if (whole.len() > 1 && whole[0] == b'0') || component.get(point) != Some(&b'.') {
        return None;
    }
    let end = end_of_digits(component, point + 1);
    if end == point + 1 {
        return None;
    }
    let fraction = (0..FRACTION_DIGITS).fold(0, |sum, i| {
        let digit = component[point + 1..end].get(i).unwrap_or(&b'0');
        sum * 10 + u64::from(digit - b'0')
    });
    let value = parse(whole)
        .and_then(|w| w.checked_mul(FRACTION_SCALE))
        .and_then(|w| w.checked_add(fraction));
    Some((end, value))
}

fn parse(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |sum, d| {
        sum.checked_mul(10)?.checked_add(u64::from(d - b'0'))
    })
}

/// Where the digits from `at` end; `at` itself where there are none or it lies behind the end.
fn end_of_digits(component: &[u8], at: usize) -> usize {
    let rest = component.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// Bytes of other scripts are letters too: their words label a number as unknown ones do.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || !byte.is_ascii()
}

fn last_word(head: &[u8]) -> &[u8] {
    let letters = head.iter().rev().take_while(|b| is_letter(**b));
    &head[head.len() - letters.count()..]
}

fn first_word(rest: &[u8]) -> &[u8] {
    let letters = rest.iter().take_while(|b| is_letter(**b));
    &rest[..letters.count()]
}

fn without_separators(head: &[u8]) -> &[u8] {
    let separators = head.iter().rev().take_while(|b| is_separator(**b));
    &head[..head.len() - separators.count()]
}

fn is_separator(byte: u8) -> bool {
    matches!(
        byte,
        b'-' | b'_'
            | b'.'
            | b'='
            | b' '
            | b':'
            | b'+'
            | b'#'
            | b'@'
            | b','
            | b'~'
            | b'('
            | b'['
            | b'{'
    )
}
