//! What came before programs asked for it, in `status`.

use std::path::Path;

use forebay_types::format_size;
use forebay_wire::control::{AheadStatus, RunExpected, RunsStatus};
use serde_json::{Map, Value, json};

use crate::mounts::in_mount;
use crate::show::json::{insert_path, seconds};
use crate::show::text::show_path;

/// Lines for people; nothing where nothing was read ahead.
pub fn render(ahead: &AheadStatus, mount: &Path) -> String {
    let mut page = guesses(ahead);
    page.push_str(&runs(&ahead.runs, mount));
    page
}

fn guesses(ahead: &AheadStatus) -> String {
    let is_nothing = AheadStatus {
        runs: RunsStatus::default(),
        ..ahead.clone()
    };
    if is_nothing == AheadStatus::default() {
        return String::new();
    }
    let now = match (ahead.lists, ahead.folders) {
        (0, 0) => String::new(),
        (lists, 0) => format!("; {}", count(lists, "list")),
        (0, folders) => format!("; {}", count(folders, "folder")),
        (lists, folders) => {
            format!("; {}, {}", count(lists, "list"), count(folders, "folder"))
        }
    };
    format!(
        "ahead      {} brought in before anybody asked, {} of them read since, {} gone unread{now}\n",
        format_size(ahead.guessed_bytes),
        format_size(ahead.hit_bytes),
        format_size(ahead.wasted_bytes)
    )
}

fn runs(runs: &RunsStatus, mount: &Path) -> String {
    if *runs == RunsStatus::default() {
        return String::new();
    }
    let next = match runs.next.first() {
        Some(run) => format!(
            ", next {} {} (every {:.0} s, {} of {} here)",
            show_path(&in_mount(mount, &run.path)),
            match run.next_in_ms {
                ms if ms < 0 => "is late".to_string(),
                ms => format!("in {:.0} s", ms as f64 / 1e3),
            },
            run.period_ms as f64 / 1e3,
            format_size(run.here_bytes),
            format_size(run.bytes)
        ),
        None => String::new(),
    };
    format!(
        "runs       {} expected{next}; {} brought in, {} read, {} in vain\n",
        runs.expected,
        format_size(runs.guessed_bytes),
        format_size(runs.hit_bytes),
        format_size(runs.wasted_bytes)
    )
}

fn count(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what} under way"),
        n => format!("{n} {what}s under way"),
    }
}

/// The same as JSON.
pub fn to_json(ahead: &AheadStatus, mount: &Path) -> Value {
    let next = ahead.runs.next.iter().map(|run| run_json(run, mount));
    json!({
        "guessed_bytes": ahead.guessed_bytes,
        "hit_bytes": ahead.hit_bytes,
        "wasted_bytes": ahead.wasted_bytes,
        "unread_bytes": ahead.unread_bytes,
        "lists": ahead.lists,
        "folders": ahead.folders,
        "runs": {
            "expected": ahead.runs.expected,
            "guessed_bytes": ahead.runs.guessed_bytes,
            "hit_bytes": ahead.runs.hit_bytes,
            "wasted_bytes": ahead.runs.wasted_bytes,
            "next": next.collect::<Vec<_>>(),
        },
    })
}

fn run_json(run: &RunExpected, mount: &Path) -> Value {
    let mut object = Map::new();
    insert_path(&mut object, "path", &in_mount(mount, &run.path));
    object.insert("period_s".into(), seconds(run.period_ms));
    object.insert("next_in_s".into(), json!(run.next_in_ms as f64 / 1e3));
    object.insert("bytes".into(), run.bytes.into());
    object.insert("here_bytes".into(), run.here_bytes.into());
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_guesses_were_worth() {
        let mut ahead = AheadStatus::default();
        let mount = Path::new("/bb");
        assert_eq!(render(&ahead, mount), "");
        ahead.lists = 1;
        ahead.folders = 2;
        ahead.guessed_bytes = 3 << 20;
        ahead.hit_bytes = 2 << 20;
        assert_eq!(
            render(&ahead, mount),
            "ahead      3.0 MiB brought in before anybody asked, 2.0 MiB of them read since, 0 B gone unread; 1 list under way, 2 folders under way\n"
        );
    }

    #[test]
    fn a_line_says_which_run_is_next_and_what_they_were_worth() {
        let runs = RunsStatus {
            expected: 2,
            guessed_bytes: 3 << 20,
            hit_bytes: 2 << 20,
            wasted_bytes: 1 << 20,
            next: vec![RunExpected {
                path: b"data/h".to_vec(),
                period_ms: 60_000,
                next_in_ms: 4_200,
                bytes: 4 << 20,
                here_bytes: 1 << 20,
            }],
        };
        let mut ahead = AheadStatus {
            runs,
            ..AheadStatus::default()
        };
        let mount = Path::new("/bb");
        let begin = "runs       2 expected, next /bb/data/h";
        let end = "(every 60 s, 1.0 MiB of 4.0 MiB here); 3.0 MiB brought in, 2.0 MiB read, 1.0 MiB in vain\n";
        assert_eq!(render(&ahead, mount), format!("{begin} in 4 s {end}"));
        ahead.runs.next[0].next_in_ms = -1;
        assert_eq!(render(&ahead, mount), format!("{begin} is late {end}"));
        let json = to_json(&ahead, mount);
        assert_eq!(json["runs"]["next"][0]["path"], "/bb/data/h");
        assert_eq!(json["runs"]["next"][0]["next_in_s"], -0.001);
        // Names are hidden from others.
        ahead.runs.next.clear();
        assert!(render(&ahead, mount).starts_with("runs       2 expected; 3.0 MiB"));
    }
}
