//! Settings from three sources, laid over each other as tables: command line over environment over
//! file. The result is read once. An error names the place that the wrong value is from. The span
//! of a value tells this place: below [`NAMED`] it is a place in the file, from there on a number
//! in the list of flags and variables.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::given::Given;
use super::keys::keys_of;
use super::values::{carried, parse_ssd};
use crate::exit::{Explain, Failure};

/// Prefix of the variables that are settings.
const PREFIX: &str = "FOREBAY_";
/// Stands for the kernel's boot id in a test that cuts the power of its disks.
pub const BOOT_ID: &str = "FOREBAY_BOOT_ID";
/// Variables that are read elsewhere: the name of the file, the log filter, the
/// program, and two for tests.
const OTHER_VARIABLES: [&str; 6] = [
    // Of the Python package and the end-to-end tests: the program itself.
    "FOREBAY_BIN",
    "FOREBAY_CONFIG",
    // Of `forebay mount`.
    "FOREBAY_RUN",
    "FOREBAY_LOG",
    BOOT_ID,
    forebay_types::failpoint::VARIABLE,
];
/// Settings that are folders: in a file they count from its own. `ssd` is a list, and may be given
/// several times.
const FOLDERS: [&str; 3] = ["pfs", "mount", "state"];
const LIST: &str = "ssd";
/// Spans from here on are numbers in the list: no file is as long.
const NAMED: usize = usize::MAX / 2;
/// How alike a name must be to one that there is, to be taken for it (0 to 1).
const LIKENESS_MIN: f64 = 0.8;

/// The text of a configuration file, and where it is.
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<ConfigFile, Failure> {
        let text = std::fs::read_to_string(path).explain(
            path.display(),
            "--config takes a TOML file that you may read",
        )?;
        Ok(ConfigFile::of_text(path.to_path_buf(), text))
    }

    /// What stands at a path.
    pub fn of_text(path: PathBuf, text: String) -> ConfigFile {
        ConfigFile { path, text }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line of a place in the text, from 1.
    pub fn line_at(&self, start: usize) -> usize {
        let before = self.text.get(..start).unwrap_or(&self.text);
        before.matches('\n').count() + 1
    }
}

/// What the sources say, one table: what is put into it replaces what was there.
#[derive(Default)]
pub struct Layers<'t> {
    merged: DeTable<'t>,
    file: Option<&'t ConfigFile>,
    /// Names of the flags and variables that values are from.
    named: Vec<String>,
}

impl<'t> Layers<'t> {
    /// The lowest layer: a file. Relative paths in it count from its folder.
    pub fn of_file(file: &'t ConfigFile) -> Result<Layers<'t>, Failure> {
        let mut layers = Layers {
            file: Some(file),
            ..Layers::default()
        };
        match DeTable::parse(&file.text) {
            Ok(table) => layers.merged = table.into_inner(),
            Err(error) => return Err(layers.failure(&error)),
        }
        let base = file.path.parent().unwrap_or(Path::new(""));
        for key in FOLDERS {
            if let Some(value) = layers.merged.get_mut(key) {
                count_from(base, value);
            }
        }
        if let Some(DeValue::Array(list)) = layers.merged.get_mut(LIST).map(Spanned::get_mut) {
            // A value that names no directory is left as it is, for its own error message.
            let named = |value: &&mut Spanned<DeValue<'_>>| {
                let text = value.get_ref().as_str();
                text.is_some_and(|text| parse_ssd(OsStr::new(text)).is_ok())
            };
            let dirs = list.iter_mut().filter(named);
            dirs.for_each(|value| count_from(base, value));
        }
        Ok(layers)
    }

    /// Lays the environment over what is there. Returns variables that look like settings and are
    /// none.
    pub fn put_environment(
        &mut self,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<String> {
        let keys = keys_of::<Given>();
        let mut unknown = Vec::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            if OTHER_VARIABLES.contains(&name) || value.is_empty() {
                continue;
            }
            match keys.iter().find(|key| variable_of(key) == name) {
                Some(key) => self.put(key, format!("environment variable {name}"), &value),
                None => unknown.push(name.to_string()),
            }
        }
        unknown.sort();
        unknown
    }

    /// Lays one setting over what is there. `called` is its name in messages. Several directories
    /// are separated by commas.
    pub fn put(&mut self, key: &str, called: String, value: &OsStr) {
        if key == LIST {
            let parts = value.as_bytes().split(|&byte| byte == b',');
            let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
            return self.put_list(key, called, parts.into_iter().map(OsStr::from_bytes));
        }
        let span = self.span_of(called);
        self.put_value(key, span.clone(), string(span, value).into_inner());
    }

    /// The same for a list.
    pub fn put_list<'a>(
        &mut self,
        key: &str,
        called: String,
        values: impl Iterator<Item = &'a OsStr>,
    ) {
        let span = self.span_of(called);
        let mut list = DeArray::new();
        for value in values {
            list.push(string(span.clone(), value));
        }
        self.put_value(key, span, DeValue::Array(list));
    }

    fn span_of(&mut self, called: String) -> std::ops::Range<usize> {
        let at = NAMED + self.named.len();
        self.named.push(called);
        at..at + 1
    }

    fn put_value(&mut self, key: &str, span: std::ops::Range<usize>, value: DeValue<'t>) {
        let mut table = &mut self.merged;
        let mut field = key;
        if let Some((section, rest)) = key.split_once('.') {
            let new = || Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
            let part = table.entry(owned(&span, section)).or_insert_with(new);
            // Where the file has something else under that name, it is the file that is wrong.
            let DeValue::Table(part) = part.get_mut() else {
                return;
            };
            (table, field) = (part, rest);
        }
        // The key has a span, too, which an insertion would leave as it was.
        table.remove(field);
        table.insert(owned(&span, field), Spanned::new(span, value));
    }

    /// Every key with its value as text: what a later look at the sources is compared with.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for (key, value) in &self.merged {
            match value.get_ref() {
                DeValue::Table(section) => texts.extend(section.iter().map(|(field, value)| {
                    let key = format!("{}.{}", key.get_ref(), field.get_ref());
                    (key, text_of(value.get_ref()))
                })),
                value => {
                    texts.insert(key.get_ref().to_string(), text_of(value));
                }
            }
        }
        texts
    }

    /// Reads the settings.
    pub fn read<T: Deserialize<'t>>(mut self) -> Result<T, Failure> {
        let table = Spanned::new(0..0, std::mem::take(&mut self.merged));
        T::deserialize(Deserializer::from(table)).map_err(|error| self.failure(&error))
    }

    /// An error as one line: the place, then what is wrong.
    fn failure(&self, error: &toml::de::Error) -> Failure {
        let why = with_suggestion(&error.message().replace('\n', ", "));
        let start = error.span().map(|span| span.start);
        let named = start.and_then(|start| self.named.get(start.checked_sub(NAMED)?));
        Failure::fatal(match (named, self.file, start) {
            (Some(called), ..) => format!("{called}: {why}"),
            (None, Some(file), Some(start)) => {
                let line = file.line_at(start);
                format!("{}: line {line}: {why}", file.path.display())
            }
            (None, Some(file), None) => format!("{}: {why}", file.path.display()),
            (None, None, _) => why,
        })
    }
}

/// The variable of a setting.
pub fn variable_of(key: &str) -> String {
    PREFIX.to_string() + &key.to_ascii_uppercase().replace('.', "_")
}

/// The variable that somebody most likely meant.
pub fn variable_like(name: &str) -> Option<String> {
    let keys = keys_of::<Given>().into_iter();
    let variables = keys.map(|key| variable_of(&key)[PREFIX.len()..].to_string());
    // Compared without the prefix that all variables have in common.
    let meant = likest(name.strip_prefix(PREFIX)?, variables)?;
    Some(PREFIX.to_string() + &meant)
}

fn likest<S: AsRef<str>>(name: &str, known: impl Iterator<Item = S>) -> Option<S> {
    let like = |known: &S| likeness(name, known.as_ref());
    known
        .filter(|known| like(known) >= LIKENESS_MIN)
        .max_by(|a, b| like(a).total_cmp(&like(b)))
}

fn likeness(name: &str, known: &str) -> f64 {
    let alike = strsim::jaro_winkler(name, known);
    // Of a short name one slip of a finger changes much.
    match name.len() > 2 && strsim::osa_distance(name, known) == 1 {
        true => alike.max(LIKENESS_MIN),
        false => alike,
    }
}

/// A message of an unknown field lists those that there are; the one that was most likely meant
/// goes first.
fn with_suggestion(why: &str) -> String {
    let mut names = why.split('`').skip(1).step_by(2);
    let meant = match (why.strip_prefix("unknown field `"), names.next()) {
        (Some(_), Some(unknown)) => likest(unknown, names),
        _ => None,
    };
    match (meant, why.split_once(", ")) {
        (Some(meant), Some((unknown, known))) => {
            format!("{unknown}, did you mean `{meant}`? {known}")
        }
        _ => why.to_string(),
    }
}

fn text_of(value: &DeValue<'_>) -> String {
    let listed = |texts: Vec<String>| format!("[{}]", texts.join(", "));
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_string(),
        DeValue::Float(number) => number.as_str().to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(list) => listed(list.iter().map(|one| text_of(one.get_ref())).collect()),
        DeValue::Table(table) => {
            let fields = table.iter();
            let fields = fields
                .map(|(key, value)| format!("{} = {:?}", key.get_ref(), text_of(value.get_ref())));
            listed(fields.collect())
        }
    }
}

fn owned<'t>(span: &std::ops::Range<usize>, text: &str) -> Spanned<Cow<'t, str>> {
    Spanned::new(span.clone(), Cow::Owned(text.to_string()))
}

fn string<'t>(span: std::ops::Range<usize>, text: &OsStr) -> Spanned<DeValue<'t>> {
    Spanned::new(span, DeValue::String(Cow::Owned(carried(text))))
}

fn count_from(base: &Path, value: &mut Spanned<DeValue<'_>>) {
    if let DeValue::String(path) = value.get_mut()
        && !path.starts_with('/')
    {
        *path = Cow::Owned(carried(base.join(&**path).as_os_str()));
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
