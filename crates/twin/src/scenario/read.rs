//! Reading a TOML file key by key: every value knows its line, every key that nobody asked for is
//! refused, and a value can be replaced from the command line.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::str::FromStr;

use forebay_types::{parse_duration, parse_size};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::dist::Dist;

/// An unknown key that differs by so many letters from a missing one is taken for the missing one.
const TYPING_ERRORS: usize = 2;

/// Why a scenario is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", place(.line, .key))]
pub struct ScenarioError {
    /// Line of the file, from 1; `None` for what came from the command line or is missing.
    pub line: Option<usize>,
    /// The key with its table, `bb.capacity`; empty where the file as a whole is meant.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

fn place(line: &Option<usize>, key: &str) -> String {
    let line = line.map_or_else(String::new, |line| format!("line {line}: "));
    match key {
        "" => line,
        _ => format!("{line}{key}: "),
    }
}

/// Replaces the value of a key, as `--sweep` and `--set` do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Full name, `bb.capacity`; `application.checkpoint` means every application,
    /// `application.NAME.checkpoint` those of that name.
    pub key: String,
    /// As it would stand in the file; text needs no quotes.
    pub value: String,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Found<'a> {
    pub raw: Raw<'a>,
    pub line: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) enum Raw<'a> {
    Text(String),
    Number(f64),
    Bool(bool),
    Table(&'a DeTable<'a>),
    Other(&'static str),
}

/// The file, with the overrides of its values.
pub(super) struct Document<'a> {
    /// Where the lines of the file end: every key asks for its line, and histories have tens of
    /// thousands of keys.
    line_ends: Vec<usize>,
    overrides: &'a [Override],
    used: RefCell<BTreeSet<usize>>,
}

impl<'a> Document<'a> {
    pub fn new(text: &'a str, overrides: &'a [Override]) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        Self {
            line_ends: ends.map(|(at, _)| at).collect(),
            overrides,
            used: RefCell::default(),
        }
    }

    pub fn line(&self, span: &Range<usize>) -> usize {
        1 + self.line_ends.partition_point(|end| *end < span.start)
    }

    /// An override that no table asked for is a typing error.
    pub fn check_overrides(&self) -> Result<(), ScenarioError> {
        let used = self.used.borrow();
        match self
            .overrides
            .iter()
            .enumerate()
            .find(|(i, _)| !used.contains(i))
        {
            None => Ok(()),
            Some((_, o)) => Err(ScenarioError {
                line: None,
                key: o.key.clone(),
                why: "no such key; docs/twin.md lists them".into(),
            }),
        }
    }

    fn replaced(&self, names: &[String], key: &str) -> Option<&'a str> {
        let mut found = None;
        for (i, o) in self.overrides.iter().enumerate() {
            if names.contains(&o.key) {
                self.used.borrow_mut().insert(i);
                found = Some(o.value.as_str());
            }
        }
        debug_assert!(!key.is_empty());
        found
    }
}

/// One table of the file.
pub(super) struct Section<'a> {
    document: &'a Document<'a>,
    /// Name of the table, such as `bb`; empty for the top.
    name: String,
    /// Other names that overrides may use for the table.
    aliases: Vec<String>,
    table: Option<&'a DeTable<'a>>,
    pub line: Option<usize>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Section<'a> {
    pub fn new(
        document: &'a Document<'a>,
        name: &str,
        table: Option<&'a DeTable<'a>>,
        line: Option<usize>,
    ) -> Self {
        Self {
            document,
            name: name.into(),
            aliases: Vec::new(),
            table,
            line,
            asked: RefCell::default(),
        }
    }

    /// The table `name` below this one; an empty one where the file has none.
    pub fn section(&self, name: &str) -> Result<Section<'a>, ScenarioError> {
        self.ask(name);
        let Some(value) = self.table.and_then(|t| t.get(name)) else {
            return Ok(Section::new(self.document, name, None, None));
        };
        let line = self.document.line(&value.span());
        match value.get_ref() {
            DeValue::Table(table) => Ok(Section::new(self.document, name, Some(table), Some(line))),
            other => Err(self.error(name, Some(line), not_a("a table", kind(other)))),
        }
    }

    /// The tables of `[[name]]`.
    pub fn sections(&self, name: &str) -> Result<Vec<Section<'a>>, ScenarioError> {
        self.ask(name);
        let Some(value) = self.table.and_then(|t| t.get(name)) else {
            return Ok(Vec::new());
        };
        let line = Some(self.document.line(&value.span()));
        let DeValue::Array(all) = value.get_ref() else {
            let why = format!("write it as [[{name}]]");
            return Err(self.error(name, line, why));
        };
        let one = |value: &'a Spanned<DeValue<'a>>| {
            let line = Some(self.document.line(&value.span()));
            match value.get_ref() {
                DeValue::Table(table) => Ok(Section::new(self.document, name, Some(table), line)),
                _ => Err(self.error(name, line, format!("write it as [[{name}]]"))),
            }
        };
        all.iter().map(one).collect()
    }

    /// Lets overrides address this table as `alias`, too.
    pub fn also_known_as(&mut self, alias: String) {
        self.aliases.push(alias);
    }

    /// Whether the command line sets a key of this table.
    pub fn is_overridden(&self) -> bool {
        let prefix = format!("{}.", self.name);
        let mut all = self.document.overrides.iter();
        all.any(|o| o.key.starts_with(&prefix))
    }

    fn ask(&self, key: &str) {
        self.asked.borrow_mut().insert(key.into());
    }

    pub fn full(&self, key: &str) -> String {
        match self.name.as_str() {
            "" => key.into(),
            name => format!("{name}.{key}"),
        }
    }

    pub fn error(&self, key: &str, line: Option<usize>, why: impl Into<String>) -> ScenarioError {
        ScenarioError {
            line,
            key: self.full(key),
            why: why.into(),
        }
    }

    /// Where `key` stands, else where the table does.
    pub fn line_of(&self, key: &str) -> Option<usize> {
        let found = self.find(key);
        found.map_or(self.line, |found| found.line)
    }

    pub fn find(&self, key: &str) -> Option<Found<'a>> {
        self.ask(key);
        let mut names = vec![self.full(key)];
        names.extend(self.aliases.iter().map(|alias| format!("{alias}.{key}")));
        if let Some(text) = self.document.replaced(&names, key) {
            let raw = plain(text);
            return Some(Found { raw, line: None });
        }
        let value = self.table?.get(key)?;
        let line = Some(self.document.line(&value.span()));
        let raw = raw(value.get_ref());
        Some(Found { raw, line })
    }

    fn get<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Raw<'a>) -> Result<T, String>,
    ) -> Result<Option<T>, ScenarioError> {
        let Some(found) = self.find(key) else {
            return Ok(None);
        };
        let value = read(&found.raw).map_err(|why| self.error(key, found.line, why))?;
        Ok(Some(value))
    }

    pub fn require<T>(&self, key: &str, value: Option<T>) -> Result<T, ScenarioError> {
        value.ok_or_else(|| match self.mistyped(key) {
            Some((name, line)) => {
                let why = format!("unknown key; did you mean '{key}', which is missing?");
                self.error(name, Some(line), why)
            }
            None => self.error(key, self.line, "is missing"),
        })
    }

    /// A key of this table that nobody has asked for and that looks like this one, and its line.
    fn mistyped(&self, key: &str) -> Option<(&'a str, usize)> {
        let asked = self.asked.borrow();
        let keys = self.table?.keys();
        keys.filter(|name| !asked.contains(&**name.get_ref()))
            .find(|name| strsim::damerau_levenshtein(name.get_ref(), key) <= TYPING_ERRORS)
            .map(|name| (&**name.get_ref(), self.document.line(&name.span())))
    }

    pub fn size(&self, key: &str) -> Result<Option<u64>, ScenarioError> {
        self.get(key, size)
    }

    /// Bytes per second: a size with or without `/s`; more than 0.
    pub fn rate(&self, key: &str) -> Result<Option<f64>, ScenarioError> {
        self.get(key, rate)
    }

    pub fn seconds(&self, key: &str) -> Result<Option<f64>, ScenarioError> {
        self.get(key, seconds)
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ScenarioError> {
        self.get(key, |raw| match raw {
            Raw::Bool(truth) => Ok(*truth),
            other => Err(not_a("true or false", other.kind())),
        })
    }

    pub fn text(&self, key: &str) -> Result<Option<String>, ScenarioError> {
        self.get(key, |raw| match raw {
            Raw::Text(text) => Ok(text.clone()),
            other => Err(not_a("text", other.kind())),
        })
    }

    /// A number in `range`.
    pub fn number(&self, key: &str, range: Range<f64>) -> Result<Option<f64>, ScenarioError> {
        self.get(key, |raw| match raw {
            Raw::Number(x) if (range.start..=range.end).contains(x) => Ok(*x),
            Raw::Number(x) => Err(format!(
                "must be from {} to {}, not {x}",
                range.start, range.end
            )),
            other => Err(not_a("a number", other.kind())),
        })
    }

    /// A whole number in `least..=most`.
    pub fn count(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>, ScenarioError> {
        self.get(key, |raw| match raw {
            Raw::Number(x) if x.fract() == 0.0 && *x >= least as f64 && *x <= most as f64 => {
                Ok(*x as u64)
            }
            Raw::Number(x) => Err(format!(
                "must be a whole number from {least} to {most}, not {x}"
            )),
            other => Err(not_a("a whole number", other.kind())),
        })
    }

    /// One of the names of an enum.
    pub fn word<T: FromStr<Err: std::fmt::Display>>(
        &self,
        key: &str,
    ) -> Result<Option<T>, ScenarioError> {
        self.get(key, |raw| match raw {
            Raw::Text(text) => text.parse().map_err(|e: T::Err| e.to_string()),
            other => Err(not_a("a name", other.kind())),
        })
    }

    /// Seconds, or a distribution of them.
    pub fn dist(&self, key: &str) -> Result<Option<Dist>, ScenarioError> {
        let Some(found) = self.find(key) else {
            return Ok(None);
        };
        let Raw::Table(table) = found.raw else {
            let value = seconds(&found.raw).map_err(|why| self.error(key, found.line, why))?;
            return Ok(Some(Dist::Fixed(value)));
        };
        let name = self.full(key);
        let inner = Section::new(self.document, &name, Some(table), found.line);
        let dist = inner.distribution()?;
        inner.finish()?;
        Ok(Some(dist))
    }

    /// What stands in a table of its own for a distribution.
    fn distribution(&self) -> Result<Dist, ScenarioError> {
        if let Some(mean_s) = self.seconds("exponential")? {
            return Ok(Dist::Exponential(mean_s));
        }
        let Some(bounds) = self.seconds_list("uniform")? else {
            let why =
                "must be a duration, { uniform = [from, to] } or { exponential = mean }".to_owned();
            return Err(self.error("uniform", self.line, why));
        };
        let step_s = self.seconds("step")?.unwrap_or(0.0);
        match bounds[..] {
            [from_s, to_s] if from_s <= to_s && (step_s == 0.0 || to_s - from_s >= step_s) => {
                Ok(Dist::Uniform {
                    from_s,
                    to_s,
                    step_s,
                })
            }
            _ => {
                let why = "needs two durations, the smaller one first, a step apart";
                Err(self.error("uniform", self.line, why))
            }
        }
    }

    /// A list of seconds.
    pub fn seconds_list(&self, key: &str) -> Result<Option<Vec<f64>>, ScenarioError> {
        self.list(key, "a duration", seconds)
    }

    fn list<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Raw<'_>) -> Result<T, String>,
    ) -> Result<Option<Vec<T>>, ScenarioError> {
        self.ask(key);
        if let Some(text) = self.document.replaced(&[self.full(key)], key) {
            let parts = text
                .split(',')
                .map(|part| read(&Raw::Text(part.trim().into())));
            let list: Result<Vec<T>, String> = parts.collect();
            return list.map(Some).map_err(|why| self.error(key, None, why));
        }
        let Some(value) = self.table.and_then(|t| t.get(key)) else {
            return Ok(None);
        };
        let line = Some(self.document.line(&value.span()));
        let DeValue::Array(all) = value.get_ref() else {
            return Err(self.error(key, line, not_a("a list", kind(value.get_ref()))));
        };
        let one = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => read(&Raw::Text(text.to_string())),
            DeValue::Integer(i) => read(&number(i.as_str())),
            DeValue::Float(f) => read(&number(f.as_str())),
            other => Err(not_a(expected, kind(other))),
        };
        let list: Result<Vec<T>, String> = all.iter().map(one).collect();
        list.map(Some).map_err(|why| self.error(key, line, why))
    }

    /// A list of sizes.
    pub fn size_list(&self, key: &str) -> Result<Option<Vec<u64>>, ScenarioError> {
        self.list(key, "a size", size)
    }

    /// A list of pairs of a time and a size; from outside `600=40GiB,1200=0`.
    pub fn times_and_sizes(&self, key: &str) -> Result<Option<Vec<(f64, u64)>>, ScenarioError> {
        const WANTED: &str = "a list of pairs such as [600, \"40GiB\"]";
        let Some(found) = self.find(key) else {
            return Ok(None);
        };
        let wrong = |why| self.error(key, found.line, why);
        let pair = |(at, bytes): (Raw<'_>, Raw<'_>)| {
            let pair = seconds(&at).and_then(|at_s| Ok((at_s, size(&bytes)?)));
            pair.map_err(wrong)
        };
        if let (Raw::Text(text), None) = (&found.raw, found.line) {
            let one = |part: &str| {
                let split = part.trim().split_once('=');
                let (at, bytes) = split.ok_or_else(|| wrong(not_a("600=40GiB,1200=0", part)))?;
                pair((plain(at), plain(bytes)))
            };
            let parts = text.split(',').filter(|_| !text.trim().is_empty());
            return parts.map(one).collect::<Result<_, _>>().map(Some);
        }
        let list = self.table.and_then(|t| t.get(key)).map(Spanned::get_ref);
        let Some(DeValue::Array(all)) = list else {
            return Err(wrong(not_a(WANTED, found.raw.kind())));
        };
        let one = |value: &Spanned<DeValue<'a>>| match value.get_ref() {
            DeValue::Array(two) if two.len() == 2 => {
                pair((raw(two[0].get_ref()), raw(two[1].get_ref())))
            }
            other => Err(wrong(not_a(WANTED, kind(other)))),
        };
        all.iter().map(one).collect::<Result<_, _>>().map(Some)
    }

    /// Refuses keys that nobody asked for.
    pub fn finish(&self) -> Result<(), ScenarioError> {
        let asked = self.asked.borrow();
        let Some(table) = self.table else {
            return Ok(());
        };
        for key in table.keys() {
            let name: &str = key.get_ref();
            if !asked.contains(name) {
                let known: Vec<&str> = asked.iter().map(String::as_str).collect();
                let line = Some(self.document.line(&key.span()));
                let why = format!("unknown key; known here: {}", known.join(", "));
                return Err(self.error(name, line, why));
            }
        }
        Ok(())
    }
}

impl Raw<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Raw::Text(_) => "text",
            Raw::Number(_) => "a number",
            Raw::Bool(_) => "true or false",
            Raw::Table(_) => "a table",
            Raw::Other(kind) => kind,
        }
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn raw<'a>(value: &'a DeValue<'a>) -> Raw<'a> {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Boolean(truth) => Raw::Bool(*truth),
        DeValue::Table(table) => Raw::Table(table),
        DeValue::Integer(i) if i.radix() == 10 => number(i.as_str()),
        DeValue::Float(f) => number(f.as_str()),
        other => Raw::Other(kind(other)),
    }
}

/// A value from the command line.
fn plain(text: &str) -> Raw<'static> {
    match (text.parse::<f64>(), text.parse::<bool>()) {
        (Ok(number), _) => Raw::Number(number),
        (_, Ok(truth)) => Raw::Bool(truth),
        _ => Raw::Text(text.into()),
    }
}

fn number(text: &str) -> Raw<'static> {
    text.replace('_', "")
        .parse()
        .map_or(Raw::Other("a number that cannot be read"), Raw::Number)
}

fn not_a(wanted: &str, kind: &str) -> String {
    format!("must be {wanted}, not {kind}")
}

fn size(raw: &Raw<'_>) -> Result<u64, String> {
    match raw {
        Raw::Number(x) if *x >= 0.0 && *x < i64::MAX as f64 => Ok(*x as u64),
        Raw::Number(x) => Err(format!("must be zero or a positive size, not {x}")),
        Raw::Text(text) if text.trim_start().starts_with('-') => {
            Err(format!("must be zero or a positive size, not {text}"))
        }
        Raw::Text(text) => parse_size(text).map_err(|e| e.to_string()),
        other => Err(not_a("a size such as \"3.2TB\"", other.kind())),
    }
}

fn rate(raw: &Raw<'_>) -> Result<f64, String> {
    let bytes = match raw {
        Raw::Text(text) => size(&Raw::Text(
            text.trim().strip_suffix("/s").unwrap_or(text).into(),
        ))?,
        other => size(other)?,
    };
    Ok(bytes as f64)
}

pub(super) fn seconds(raw: &Raw<'_>) -> Result<f64, String> {
    match raw {
        Raw::Number(x) if x.is_finite() && *x >= 0.0 => Ok(*x),
        Raw::Number(x) => Err(format!("must be zero or a positive duration, not {x}")),
        Raw::Text(text) if text.trim_start().starts_with('-') => {
            Err(format!("must be zero or a positive duration, not {text}"))
        }
        Raw::Text(text) => parse_duration(text)
            .map(|d| d.as_secs_f64())
            .map_err(|e| e.to_string()),
        other => Err(not_a("a duration such as \"30m\"", other.kind())),
    }
}
