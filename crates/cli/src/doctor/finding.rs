//! What was found, how good that is, and what to do about it.

use serde_json::{Map, Value, json};

use crate::show::json::insert_path;
use crate::show::text::show_path;

/// How good something is, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As Forebay wants it.
    Ok,
    /// Worth knowing; nothing is slower or less safe by it, or that cannot be known.
    Note,
    /// It works, and takes longer than it would have to.
    Slow,
    /// Something does not work, or a promise does not hold.
    Bad,
}

impl Grade {
    /// All of them.
    pub const ALL: [Grade; 4] = [Grade::Ok, Grade::Note, Grade::Slow, Grade::Bad];

    /// The word that stands in front of a finding.
    pub fn word(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Slow => "slow",
            Grade::Bad => "bad",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What was looked at, in a few words.
    pub check: &'static str,
    /// How good it is.
    pub grade: Grade,
    /// One line: what was found.
    pub found: String,
    /// One line: what to do; empty where there is nothing to do.
    pub todo: String,
    /// Numbers that were measured, for `--json`.
    pub measured: Map<String, Value>,
}

impl Finding {
    /// Nothing is to be done.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Grade::Ok, found, "")
    }

    /// A finding with something to do, or to know.
    pub fn new(
        check: &'static str,
        grade: Grade,
        found: impl Into<String>,
        todo: impl Into<String>,
    ) -> Finding {
        Finding {
            check,
            grade,
            found: found.into(),
            todo: todo.into(),
            measured: Map::new(),
        }
    }

    /// Adds a number that was measured.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Finding {
        self.measured.insert(key.into(), value.into());
        self
    }
}

/// What was found in one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// `machine`, `flash`, `pfs` or `cluster`.
    pub area: &'static str,
    /// The directory or file, where the section is of one.
    pub path: Option<Vec<u8>>,
    /// In the order in which they are shown.
    pub findings: Vec<Finding>,
}

/// How many findings have this grade.
pub fn count(sections: &[Section], grade: Grade) -> usize {
    let all = sections.iter().flat_map(|section| &section.findings);
    all.filter(|finding| finding.grade == grade).count()
}

/// The report for people: a block for each section, and a last line that counts.
pub fn render(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        text.push_str(section.area);
        if let Some(path) = &section.path {
            text.push_str(&format!(" {}", show_path(path)));
        }
        text.push('\n');
        for one in &section.findings {
            let word = one.grade.word();
            text.push_str(&format!("  {word:<4}  {}: {}\n", one.check, one.found));
            if !one.todo.is_empty() {
                text.push_str(&format!("        -> {}\n", one.todo));
            }
        }
        text.push('\n');
    }
    let counts = Grade::ALL.map(|grade| format!("{} {}", count(sections, grade), grade.word()));
    text.push_str(&counts.join(", "));
    text.push('\n');
    text
}

/// The same as one JSON object.
pub fn as_json(sections: &[Section]) -> Value {
    let mut findings = Vec::new();
    for section in sections {
        for one in &section.findings {
            let mut object = Map::new();
            object.insert("area".into(), section.area.into());
            match &section.path {
                Some(path) => insert_path(&mut object, "path", path),
                None => drop(object.insert("path".into(), Value::Null)),
            }
            object.insert("check".into(), one.check.into());
            object.insert("grade".into(), one.grade.word().into());
            object.insert("found".into(), one.found.clone().into());
            let todo = (!one.todo.is_empty()).then(|| one.todo.clone());
            object.insert("todo".into(), todo.into());
            object.insert("measured".into(), Value::Object(one.measured.clone()));
            findings.push(Value::Object(object));
        }
    }
    let [ok, note, slow, bad] = Grade::ALL.map(|grade| count(sections, grade));
    json!({"findings": findings, "ok": ok, "note": note, "slow": slow, "bad": bad})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections() -> Vec<Section> {
        vec![
            Section {
                area: "machine",
                path: None,
                findings: vec![Finding::ok("kernel", "Linux 6.18")],
            },
            Section {
                area: "flash",
                path: Some(b"/n\xff".to_vec()),
                findings: vec![
                    Finding::new("space", Grade::Bad, "none", "make room").with("free_bytes", 0),
                ],
            },
        ]
    }

    #[test]
    fn each_finding_is_a_line_and_what_to_do_another() {
        assert_eq!(
            render(&sections()),
            "machine\n  ok    kernel: Linux 6.18\n\nflash /n\\xff\n  bad   space: none\n        -> make room\n\n\
             1 ok, 0 note, 0 slow, 1 bad\n"
        );
    }

    #[test]
    fn json_has_all_of_it() {
        let value = as_json(&sections());
        assert_eq!(
            value["findings"][1],
            json!({"area": "flash", "path": "/n\u{fffd}", "path_base16": "2f6eff", "check": "space", "grade": "bad",
                "found": "none", "todo": "make room", "measured": {"free_bytes": 0}})
        );
        assert_eq!(value["findings"][0]["todo"], Value::Null);
        assert_eq!((&value["ok"], &value["bad"]), (&json!(1), &json!(1)));
    }
}
