//! Records as a table, as JSON and as CSV.

use std::time::Duration;

use forebay_types::history::{Record, What};
use forebay_types::{format_duration, format_size};
use serde_json::{Map, Value, json};

use super::Answer;
use crate::show::table::{Align, Table};
use crate::show::{text, time};

/// Longer names of applications are cut in the table.
const NAME_MAX: usize = 28;

fn span(ms: u64) -> String {
    format_duration(Duration::from_millis(ms))
}

/// The table, for people.
pub fn table(answer: &Answer) -> String {
    if answer.records.is_empty() {
        let since = time::minute(answer.since_ms);
        return format!("nothing is on record since {since} UTC\n");
    }
    let mut table = Table::new(&[
        ("began (UTC)", Align::Left),
        ("what", Align::Left),
        ("application", Align::Left),
        ("version", Align::Right),
        ("user", Align::Right),
        ("bytes", Align::Right),
        ("took", Align::Right),
        ("stall", Align::Right),
        ("drained", Align::Right),
        ("notes", Align::Left),
    ]);
    for record in &answer.records {
        table.row(row(record));
    }
    table.render()
}

fn row(record: &Record) -> Vec<String> {
    let is_version = record.what == What::Version;
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let stalled = is_version && record.stall_us >= 1000;
    let drained = record.all_drained_ms().filter(|_| is_version);
    vec![
        time::minute(record.begun_ms),
        record.what.name().into(),
        name(&record.application),
        or_nothing(record.version.map(|version| version.to_string())),
        record.uid.to_string(),
        format_size(record.bytes),
        span(record.ended_ms.saturating_sub(record.begun_ms)),
        or_nothing(stalled.then(|| span(record.stall_us / 1000))),
        or_nothing(drained.map(|at| span(at.saturating_sub(record.ended_ms)))),
        notes(record),
    ]
}

/// No name can move the cursor, or push the numbers off the screen.
fn name(application: &str) -> String {
    let shown = text::show_path(application.as_bytes());
    match shown.chars().count() {
        0 => "-".into(),
        n if n <= NAME_MAX => shown,
        n => format!(
            "…{}",
            shown.chars().skip(n + 1 - NAME_MAX).collect::<String>()
        ),
    }
}

/// What is not as usual.
fn notes(record: &Record) -> String {
    let mut notes = Vec::new();
    if record.direct_files > 0 {
        notes.push(format!("{} direct", record.direct_files));
    }
    let failed_is = match record.what {
        What::Version => "LOST",
        _ => "failed",
    };
    let lost_files = match record.what {
        What::Version => record.failed_files,
        _ => 0,
    };
    if record.gone_files > lost_files {
        notes.push(format!("{} gone", record.gone_files - lost_files));
    }
    if record.undrained_files() > 0 {
        notes.push(format!("{} undrained", record.undrained_files()));
    }
    if record.failed_files > 0 {
        notes.push(format!("{} {failed_is}", record.failed_files));
    }
    if record.what == What::Restart {
        notes.push(match record.from_pfs_bytes {
            0 => "from the buffer".into(),
            bytes => format!("{} from the PFS", format_size(bytes)),
        });
    }
    if record.what == What::Version
        && let Some(rate) = record.drain_bytes_per_s()
    {
        notes.push(format!("drain {}", text::rate(rate)));
    }
    notes.join(", ")
}

/// The fields, in order, with their values.
fn fields(record: &Record) -> Vec<(&'static str, Value)> {
    let at = |ms: Option<u64>| ms.map(time::exact);
    vec![
        ("what", record.what.name().into()),
        ("application", record.application.clone().into()),
        ("version", record.version.into()),
        ("uid", record.uid.into()),
        ("begun", time::exact(record.begun_ms).into()),
        ("ended", time::exact(record.ended_ms).into()),
        ("took_s", record.lasted_s().into()),
        ("files", record.files.into()),
        ("bytes", record.bytes.into()),
        ("direct_files", record.direct_files.into()),
        ("direct_bytes", record.direct_bytes.into()),
        ("wait_s", (record.wait_us as f64 / 1e6).into()),
        ("stall_s", (record.stall_us as f64 / 1e6).into()),
        ("drain_begun", at(record.drain_begun_ms).into()),
        ("drained", at(record.all_drained_ms()).into()),
        ("drained_files", record.drained_files.into()),
        ("drained_bytes", record.drained_bytes.into()),
        ("drain_bytes_per_s", record.drain_bytes_per_s().into()),
        ("undrained_files", record.undrained_files().into()),
        ("gone_files", record.gone_files.into()),
        ("gone_bytes", record.gone_bytes.into()),
        ("from_buffer_bytes", record.from_buffer_bytes.into()),
        ("from_pfs_bytes", record.from_pfs_bytes.into()),
        ("failed_files", record.failed_files.into()),
        ("over", record.over.into()),
    ]
}

/// For programs.
pub fn json(answer: &Answer) -> Value {
    let object = |record: &Record| {
        let fields = fields(record).into_iter();
        let fields = fields.map(|(name, value)| (name.to_string(), value));
        Value::Object(fields.collect::<Map<String, Value>>())
    };
    json!({
        "kept_for_s": answer.kept_for_ms / 1000,
        "records": answer.records.iter().map(object).collect::<Vec<Value>>(),
    })
}

/// For spreadsheets: a line of names, then a line for each.
pub fn csv(answer: &Answer) -> String {
    let none = Record::new(What::Version, String::new(), 0, 0);
    let names: Vec<&str> = fields(&none).iter().map(|(name, _)| *name).collect();
    let mut text = names.join(",") + "\n";
    for record in &answer.records {
        let cells = fields(record).into_iter().map(|(_, value)| cell(&value));
        text.push_str(&cells.collect::<Vec<String>>().join(","));
        text.push('\n');
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(value) => {
            // As in the table: what is printed may be shown on a terminal.
            let shown = text::show_path(value.as_bytes());
            match shown.contains([',', '"']) {
                true => format!("\"{}\"", shown.replace('"', "\"\"")),
                false => shown,
            }
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            version: Some(7),
            ended_ms: 61_500,
            files: 3,
            bytes: 5 << 30,
            direct_files: 1,
            stall_us: 2_500_000,
            drain_begun_ms: Some(62_000),
            drained_ms: Some(72_000),
            drained_files: 3,
            drained_bytes: 4 << 30,
            over: true,
            ..Record::new(
                What::Version,
                "a,\"b\"\x1b[2J/deep/run7/ckpt-{version}".into(),
                1000,
                1_500,
            )
        }
    }

    fn answer(records: Vec<Record>) -> Answer {
        Answer {
            records,
            since_ms: 0,
            until_ms: 100_000,
            kept_for_ms: 5000,
            status: forebay_wire::control::StatusBits::default(),
        }
    }

    #[test]
    fn a_row_fits_a_screen_and_a_name_cannot_play_with_it() {
        let mut restart = record();
        (restart.what, restart.from_pfs_bytes) = (What::Restart, 1 << 30);
        let shown = table(&answer(vec![record(), restart]));
        assert!(
            shown.lines().all(|line| line.chars().count() <= 140),
            "{shown}"
        );
        assert!(!shown.contains('\x1b'), "{shown}");
        let row = shown.lines().nth(1).expect("a row");
        for part in [
            "run7/ckpt-{version}",
            "5.0 GiB",
            "1m 0s",
            "2.5 s",
            "10.5 s",
            "1 direct",
            "drain",
        ] {
            assert!(row.contains(part), "{part}: {row}");
        }
        assert!(shown.contains("1.0 GiB from the PFS"), "{shown}");
        assert!(table(&answer(Vec::new())).contains("nothing is on record"));
    }

    #[test]
    fn every_line_of_csv_has_all_fields() {
        let mut plain = record();
        plain.application = "plain".into();
        let text = csv(&answer(vec![plain, record()]));
        let lines: Vec<&str> = text.lines().collect();
        let names = lines[0].split(',').count();
        assert_eq!(lines[1].split(',').count(), names);
        assert!(
            lines[2].contains("\"a,\"\"b\"\"\\x1b[2J/deep/run7/ckpt-{version}\""),
            "{text}"
        );
        assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
        let mut split = record();
        split.application = "one\ntwo\r\u{9b}2J".into();
        let text = csv(&answer(vec![split]));
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains(r"one\x0atwo\x0d\xc2\x9b2J"), "{text}");
        let object = &json(&answer(vec![record()]))["records"][0];
        assert_eq!(object.as_object().map(Map::len), Some(names));
        assert_eq!(object["drained"], "1970-01-01T00:01:12.000Z");
        assert_eq!(object["stall_s"], 2.5);
    }
}
