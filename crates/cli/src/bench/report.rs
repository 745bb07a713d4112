//! What was measured: medians of the repeats with their ranges, as a table and as JSON.

use serde_json::{Map, Value, json};

use crate::show::json::insert_path;
use crate::show::table::{Align, Table};
use crate::show::text::{percent, rate, show_path};

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second: more is better.
    BytesPerS,
    /// Operations per second: more is better.
    OpsPerS,
    /// Seconds: less is better.
    Seconds,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::BytesPerS => "bytes_per_s",
            Unit::OpsPerS => "ops_per_s",
            Unit::Seconds => "s",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Unit::BytesPerS => rate(value),
            Unit::OpsPerS if value >= 100.0 => format!("{value:.0}/s"),
            Unit::OpsPerS => format!("{value:.1}/s"),
            Unit::Seconds => format!("{value:.3} s"),
        }
    }
}

/// All numbers of one thing in one directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// As it is shown.
    pub name: &'static str,
    /// What the numbers count.
    pub unit: Unit,
    /// One for each repeat, or more.
    pub samples: Vec<f64>,
    /// Of reads: pages that were in memory when they began, and all, in sum; `None`: not a read, or
    /// not known.
    pub pages: Option<(u64, u64)>,
}

impl Row {
    /// The middle, the least and the most.
    pub fn median(&self) -> (f64, f64, f64) {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
        let count = sorted.len();
        let middle = match count % 2 {
            0 if count > 0 => (at(count / 2 - 1) + at(count / 2)) / 2.0,
            _ => at(count / 2),
        };
        (middle, at(0), at(count.saturating_sub(1)))
    }

    fn cell(&self) -> String {
        let (middle, least, most) = self.median();
        let show = |value| self.unit.show(value);
        match self.samples.len() {
            1 => show(middle),
            _ => format!("{} ({} to {})", show(middle), show(least), show(most)),
        }
    }

    fn cached(&self) -> String {
        match self.pages {
            Some((inside, all)) => percent(inside, all),
            None => String::new(),
        }
    }
}

/// What was measured in one directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// In the order in which they were first measured.
    pub rows: Vec<Row>,
}

impl Results {
    /// Adds a number.
    pub fn add(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.add_read(name, unit, value, None);
    }

    /// Adds a number of a read, with the pages that were in memory.
    pub fn add_read(
        &mut self,
        name: &'static str,
        unit: Unit,
        value: f64,
        pages: Option<(u64, u64)>,
    ) {
        match self.rows.iter_mut().find(|row| row.name == name) {
            Some(row) => {
                row.samples.push(value);
                // What is not known of one is not known of all.
                row.pages = row.pages.zip(pages).map(|(a, b)| (a.0 + b.0, a.1 + b.1));
            }
            None => self.rows.push(Row {
                name,
                unit,
                samples: vec![value],
                pages,
            }),
        }
    }
}

/// One directory in the report.
pub struct Column<'a> {
    /// As the user named it.
    pub path: &'a [u8],
    /// Its file system's type.
    pub kind: &'a str,
    /// What was measured.
    pub results: &'a Results,
}

/// How many times better the first is than the second.
fn ratio(first: &Row, second: &Row) -> f64 {
    let (a, b) = (first.median().0, second.median().0);
    match first.unit {
        Unit::Seconds => b / a,
        _ => a / b,
    }
}

fn pairs<'a>(columns: &'a [Column<'_>]) -> impl Iterator<Item = (&'a Row, &'a Row)> {
    let two = match columns {
        [a, b] => Some((a, b)),
        _ => None,
    };
    two.into_iter().flat_map(|(a, b)| {
        let same = |row: &Row| b.results.rows.iter().find(|other| other.name == row.name);
        let pair = move |row| Some((row, same(row)?));
        a.results.rows.iter().filter_map(pair)
    })
}

/// The table, a row for each thing.
pub fn table(columns: &[Column<'_>]) -> String {
    let heads: Vec<String> = columns
        .iter()
        .map(|column| format!("{} ({})", show_path(column.path), column.kind))
        .collect();
    let mut heading = vec![("", Align::Left)];
    for head in &heads {
        heading.extend([(head.as_str(), Align::Right), ("in memory", Align::Right)]);
    }
    if columns.len() == 2 {
        heading.push(("first is faster by", Align::Right));
    }
    let mut table = Table::new(&heading);
    let Some(first) = columns.first() else {
        return String::new();
    };
    for row in &first.results.rows {
        let mut cells = vec![row.name.to_string()];
        for column in columns {
            let own = column.results.rows.iter().find(|own| own.name == row.name);
            cells.extend([
                own.map_or_else(String::new, Row::cell),
                own.map_or_else(String::new, Row::cached),
            ]);
        }
        let pair = pairs(columns).find(|(a, _)| a.name == row.name);
        cells.extend(pair.map(|(a, b)| format!("{:.2}", ratio(a, b))));
        table.row(cells);
    }
    table.render()
}

/// The same for programs, but for what only the command knows.
pub fn as_json(columns: &[Column<'_>]) -> Map<String, Value> {
    let directories: Vec<Value> = columns
        .iter()
        .map(|column| {
            let mut object = Map::new();
            insert_path(&mut object, "path", column.path);
            object.insert("file_system".into(), column.kind.into());
            let rows: Vec<Value> = column.results.rows.iter().map(row_json).collect();
            object.insert("results".into(), rows.into());
            Value::Object(object)
        })
        .collect();
    let mut whole = Map::new();
    whole.insert("directories".into(), directories.into());
    let ratios: Map<String, Value> = pairs(columns)
        .map(|(a, b)| (a.name.to_string(), ratio(a, b).into()))
        .collect();
    whole.insert("first_is_faster_by".into(), Value::Object(ratios));
    whole
}

fn row_json(row: &Row) -> Value {
    let (median, least, most) = row.median();
    let in_memory = row.pages.filter(|(_, all)| *all > 0);
    json!({
        "name": row.name,
        "unit": row.unit.name(),
        "median": median,
        "min": least,
        "max": most,
        "samples": row.samples,
        "pages_in_memory": in_memory.map(|(inside, all)| inside as f64 / all as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(write: &[f64], wait: f64) -> Results {
        let mut results = Results::default();
        for &value in write {
            results.add("n-n write", Unit::BytesPerS, value);
        }
        results.add("checkpoint wait", Unit::Seconds, wait);
        results
    }

    #[test]
    fn the_middle_and_the_range() {
        let row = |samples: &[f64]| results(samples, 1.0).rows[0].median();
        assert_eq!(row(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(row(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
        assert_eq!(row(&[7.0]), (7.0, 7.0, 7.0));
    }

    #[test]
    fn two_directories_have_a_ratio_that_says_how_much_faster() {
        let (fast, slow) = (
            results(&[4096.0], 0.5),
            results(&[1024.0, 2048.0, 3072.0], 2.0),
        );
        let columns = [
            Column {
                path: b"/bb",
                kind: "fuse.forebay",
                results: &fast,
            },
            Column {
                path: b"/scratch",
                kind: "lustre",
                results: &slow,
            },
        ];
        assert_eq!(
            table(&columns),
            "                 /bb (fuse.forebay)  in memory                   /scratch (lustre)  in memory  first is faster by\n\
             n-n write                 4.0 KiB/s             2.0 KiB/s (1.0 KiB/s to 3.0 KiB/s)                           2.00\n\
             checkpoint wait             0.500 s                                        2.000 s                           4.00\n"
        );
        let value = Value::Object(as_json(&columns));
        assert_eq!(
            value["first_is_faster_by"],
            json!({"n-n write": 2.0, "checkpoint wait": 4.0})
        );
        assert_eq!(
            value["directories"][1]["results"][0]["samples"],
            json!([1024.0, 2048.0, 3072.0])
        );
        let one = Value::Object(as_json(&columns[..1]));
        assert_eq!(one["first_is_faster_by"], json!({}));
    }

    #[test]
    fn pages_in_memory_are_summed_and_unknown_where_one_is() {
        let mut results = Results::default();
        results.add_read("n-n read", Unit::BytesPerS, 1.0, Some((1, 4)));
        results.add_read("n-n read", Unit::BytesPerS, 1.0, Some((0, 4)));
        assert_eq!(results.rows[0].cached(), "12 %");
        assert_eq!(row_json(&results.rows[0])["pages_in_memory"], 0.125);
        results.add_read("n-n read", Unit::BytesPerS, 1.0, None);
        assert_eq!(row_json(&results.rows[0])["pages_in_memory"], Value::Null);
    }
}
