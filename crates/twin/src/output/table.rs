//! Rows as columns of text, as JSON and as CSV.

use serde_json::Value;

use crate::experiment::Report;
use crate::row::Row;

/// A column's name for people: units go into the cells.
pub(super) fn heading(name: &str) -> String {
    let short = name
        .strip_suffix("_bytes_per_s")
        .or_else(|| name.strip_suffix("_bytes"))
        .unwrap_or(name);
    match name {
        // Of S, not seconds.
        "dwpp_s" => "DWPP/S".into(),
        "mtbf_max_min" => "MTBF up to, min".into(),
        _ => match short.strip_suffix("_s") {
            Some(short) => format!("{}, s", short.replace('_', " ")),
            None => short.replace('_', " "),
        },
    }
}

/// A value for people; the name says its unit.
pub(super) fn cell(name: &str, value: &Value) -> String {
    let Some(number) = value.as_f64() else {
        return match value {
            Value::String(text) => text.clone(),
            Value::Bool(true) => "yes".into(),
            Value::Bool(false) => "no".into(),
            Value::Null => "-".into(),
            other => other.to_string(),
        };
    };
    if name.ends_with("_bytes_per_s") {
        format!("{:.3} GB/s", number / 1e9)
    } else if name.contains("_bytes") {
        format!("{:.1} GB", number / 1e9)
    } else if name == "dwpp_s" || value.is_u64() {
        value.to_string()
    } else if name.ends_with("_s") {
        format!("{number:.2}")
    } else {
        format!("{number:.4}")
    }
}

/// The rows as lines; columns are as wide as they must be.
pub fn table(report: &Report) -> String {
    columns(&report.rows)
}

/// The nodes as lines; empty where there are none.
pub fn nodes(report: &Report) -> String {
    columns(&report.nodes)
}

/// Lines that are longer wrap in most terminals.
const LINE_MOST: usize = 140;

/// Where the lines would be long, what is the same in all rows stands below them, once.
fn columns(rows: &[Row]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let all: Vec<usize> = (0..first.0.len()).collect();
    let text = lines(rows, &all);
    let longest = text.lines().map(|line| line.chars().count()).max();
    if rows.len() < 2 || longest <= Some(LINE_MOST) {
        return text;
    }
    let same = |at: &usize| rows.iter().all(|row| row.0.get(*at) == first.0.get(*at));
    let (same, differ): (Vec<usize>, Vec<usize>) = all.into_iter().partition(same);
    if same.is_empty() || differ.is_empty() {
        return text;
    }
    let facts = same.iter().map(|at| &first.0[*at]);
    let facts = facts.map(|(name, value)| format!("{} {}", heading(name), cell(name, value)));
    let mut text = lines(rows, &differ);
    text.push_str("\nin all rows: ");
    let mut used = "in all rows: ".len();
    for (at, fact) in facts.enumerate() {
        let length = fact.chars().count() + "; ".len();
        if at > 0 {
            text.push(';');
            let is_long = used + length > LINE_MOST;
            text.push(if is_long { '\n' } else { ' ' });
            used = if is_long { 0 } else { used };
        }
        used += length;
        text.push_str(&fact);
    }
    text.push('\n');
    text
}

fn lines(rows: &[Row], columns: &[usize]) -> String {
    let fields = |row: &Row| -> Vec<(String, String)> {
        let fields = columns.iter().filter_map(|at| row.0.get(*at));
        fields
            .map(|(name, value)| (heading(name), cell(name, value)))
            .collect()
    };
    let heads: Vec<String> = fields(&rows[0]).into_iter().map(|(name, _)| name).collect();
    let cells = rows
        .iter()
        .map(|row| fields(row).into_iter().map(|(_, cell)| cell).collect());
    let lines: Vec<Vec<String>> = std::iter::once(heads).chain(cells).collect();
    let is_text = |at: usize| {
        let value = &rows[0].0[columns[at]].1;
        matches!(value, Value::String(_) | Value::Bool(_))
    };
    let width = |at: usize| {
        let widths = lines.iter().filter_map(|line| line.get(at));
        widths.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut out = String::new();
        for (at, cell) in line.iter().enumerate() {
            let pad = " ".repeat(widths[at] - cell.chars().count());
            match is_text(at) {
                true => out.push_str(&format!("{cell}{pad}  ")),
                false => out.push_str(&format!("{pad}{cell}  ")),
            }
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// A run with one row reads better downwards.
pub fn list(report: &Report) -> String {
    let Some(row) = report.rows.first() else {
        return String::new();
    };
    let width = row.0.iter().map(|(name, _)| heading(name).chars().count());
    let width = width.max().unwrap_or(0);
    row.0
        .iter()
        .map(|(name, value)| format!("{:width$}  {}\n", heading(name), cell(name, value)))
        .collect()
}

/// `{"rows":[...]}`, and `"nodes":[...]` where there are nodes.
pub fn json(report: &Report) -> String {
    let all = |rows: &[Row]| {
        let rows = rows.iter();
        // Strings, numbers and booleans only: these cannot fail.
        let rows = rows.map(|row| serde_json::to_string(row).unwrap_or_default());
        rows.collect::<Vec<String>>().join(",\n")
    };
    let nodes = match report.nodes.is_empty() {
        true => String::new(),
        false => format!(",\n\"nodes\":[{}]", all(&report.nodes)),
    };
    format!("{{\"rows\":[{}]{nodes}}}\n", all(&report.rows))
}

/// Comma-separated, with a line of names.
pub fn csv(report: &Report) -> String {
    comma_separated(&report.rows)
}

/// The nodes, comma-separated; empty where there are none.
pub fn nodes_csv(report: &Report) -> String {
    comma_separated(&report.nodes)
}

fn comma_separated(rows: &[Row]) -> String {
    let quote = |text: String| match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    };
    let Some(first) = rows.first() else {
        return String::new();
    };
    let names: Vec<&str> = first.0.iter().map(|(name, _)| name.as_ref()).collect();
    let mut text = names.join(",") + "\n";
    for row in rows {
        let cells: Vec<String> = row
            .0
            .iter()
            .map(|(_, value)| match value {
                Value::String(text) => quote(text.clone()),
                Value::Null => String::new(),
                other => other.to_string(),
            })
            .collect();
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}
