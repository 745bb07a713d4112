//! `forebay where`: which tiers hold a file, and what is known about it.

use std::path::Path;

use clap::Args;
use forebay_types::format_size;
use forebay_wire::control::WhereEntry;
use serde_json::{Map, Value, json};

use crate::control::{Daemon, failure_line};
use crate::exit::{Exit, Failure, is_missing};
use crate::mounts::in_mount;
use crate::paths::{PathArgs, Refused, Resolved, Target};
use crate::show::json::{self, insert_path};
use crate::show::table::{Align, Table};
use crate::show::text::show_path;
use crate::{out, usage};

/// Shows which tiers hold files, their application, version and checksum; directories recurse
#[derive(Args)]
#[command(
    name = "where",
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "States: `dirty` not yet on the PFS, `demoting` being copied there, `clean` in the burst ",
        "buffer and on the PFS, `pfs` only there. `dirty` with the tier `pfs`: no tier had room, so the ",
        "data is on the PFS, but hidden, until it gets its name there after the file's close.\n\n",
        "JSON: a list of {\"path\", \"tiers\", \"state\", \"size_bytes\", \"application\", \"version\", ",
        "\"crc32c\", \"error\", \"unpublished\"}. Further fields where they say something: \"durability\" (what fsync ",
        "promises of a file in the burst buffer), \"stale_tiers\" (of \"tiers\", those with a copy of what the ",
        "file was before it was written, or renamed, last), and \"path_base16\" of a path that is not ",
        "UTF-8, which has U+FFFD in place of the odd bytes in \"path\".\n\n",
        "Examples:\n  forebay where /bb/run7\n  forebay where --json /scratch/run7/ckpt-000120\n",
        "  find /bb -name '*.h5' -print0 | forebay where -0 --from-file -\n\n",
        "Exit codes: 0 all found, also where there is no regular file (an empty directory, a FIFO, a link ",
        "that leads nowhere); 1 none of the paths is there, or in a burst buffer; 3 some paths were not ",
        "found, or lie outside (each is named)."
    )
)]
pub struct WhereArgs {
    #[command(flatten)]
    paths: PathArgs,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
    /// Print a line of JSON for each file, and for each path that failed: {"failure": ...}
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    /// Directories recurse without this, too
    #[arg(short = 'r', hide = true)]
    _recurse: bool,
}

/// Runs the command.
pub fn run(args: &WhereArgs) -> Result<Exit, Failure> {
    if !args.json_lines {
        return run_on(args, args.paths.resolve()?);
    }
    let done = match args.paths.resolve_silently() {
        Ok(Resolved::Within(target)) => run_on(args, target),
        Ok(Resolved::Nowhere(refused)) => {
            tell_refused(&refused);
            return Ok(Exit::Fatal);
        }
        Err(failure) => Err(failure),
    };
    done.map_err(json::tell)
}

fn tell_refused(refused: &[Refused]) {
    for one in refused {
        json::print_line(&json!({"failure": json::refused(one)}));
    }
}

fn run_on(args: &WhereArgs, target: Target) -> Result<Exit, Failure> {
    let daemon = Daemon::connect(&target.state)?;
    let mut output = Output {
        shape: match (args.json, args.json_lines) {
            (true, _) => Shape::List,
            (_, true) => Shape::Lines,
            _ => Shape::Table,
        },
        mount: &target.mount,
        files: 0,
    };
    let mut failures = Vec::new();
    output.begin();
    let answered = daemon.locate(&target.paths, |part| {
        output.part(&part.files);
        failures.extend(part.failures);
        true
    });
    output.end();
    answered.map_err(|e| daemon.failure(e, "ask where files are"))?;
    if failures.is_empty() && output.files == 0 && output.shape == Shape::Table {
        out::complain("where: no regular files there");
    }
    for failure in &failures {
        match output.shape {
            Shape::Lines => {
                json::print_line(&json!({"failure": json::failed(&target.mount, failure)}));
            }
            _ => out::complain(&failure_line(&target.mount, failure)),
        }
    }
    if output.shape == Shape::Lines {
        tell_refused(&target.refused);
    }
    Ok(match (failures.is_empty(), output.files) {
        (true, _) if target.refused.is_empty() => Exit::Complete,
        (false, 0) if failures.iter().all(|f| is_missing(f.errno)) => Exit::Fatal,
        _ => Exit::Partial,
    })
}

/// For whom it is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Table,
    List,
    Lines,
}

/// Prints parts as they come, so that a large tree needs little memory.
struct Output<'a> {
    shape: Shape,
    mount: &'a Path,
    files: u64,
}

impl Output<'_> {
    fn begin(&self) {
        if self.shape == Shape::List {
            out::print("[");
        }
    }

    fn part(&mut self, files: &[WhereEntry]) {
        if files.is_empty() {
            return;
        }
        let text = match self.shape {
            Shape::Table => render(self.mount, files, self.files == 0),
            shape => self.objects(files, shape),
        };
        out::print(&text);
        self.files += files.len() as u64;
    }

    fn objects(&self, files: &[WhereEntry], shape: Shape) -> String {
        let mut text = String::new();
        for (at, file) in files.iter().enumerate() {
            let object = to_json(self.mount, file).to_string();
            let is_first = self.files == 0 && at == 0;
            let (before, after) = match (shape, is_first) {
                (Shape::Lines, _) => ("", "\n"),
                (_, true) => ("\n  ", ""),
                (_, false) => (",\n  ", ""),
            };
            text.push_str(before);
            text.push_str(&object);
            text.push_str(after);
        }
        text
    }

    fn end(&self) {
        if self.shape == Shape::List {
            out::print(if self.files == 0 { "]\n" } else { "\n]\n" });
        }
    }
}

fn to_json(mount: &Path, file: &WhereEntry) -> Value {
    let mut object = Map::new();
    insert_path(&mut object, "path", &in_mount(mount, &file.path));
    object.insert("tiers".into(), json!(file.tiers));
    object.insert("state".into(), json!(file.state));
    object.insert("size_bytes".into(), json!(file.size_bytes));
    object.insert("application".into(), json!(file.application));
    object.insert("version".into(), json!(file.version));
    object.insert(
        "crc32c".into(),
        json!(file.crc32c.map(|crc| format!("{crc:08x}"))),
    );
    object.insert("error".into(), json!(file.error));
    object.insert("unpublished".into(), json!(file.unpublished));
    if let Some(durability) = &file.durability {
        object.insert("durability".into(), json!(durability));
    }
    if !file.stale_tiers.is_empty() {
        object.insert("stale_tiers".into(), json!(file.stale_tiers));
    }
    Value::Object(object)
}

fn render(mount: &Path, files: &[WhereEntry], heading: bool) -> String {
    let mut table = Table::new(&[
        ("state", Align::Left),
        ("tiers", Align::Left),
        ("size", Align::Right),
        ("version", Align::Right),
        ("crc32c", Align::Left),
        ("path", Align::Left),
        ("", Align::Left),
    ]);
    for file in files {
        let version = file.version.map_or_else(|| "-".into(), |v| v.to_string());
        table.row(vec![
            file.state.clone(),
            file.tiers.join("+"),
            format_size(file.size_bytes),
            version,
            file.crc32c
                .map_or_else(|| "-".into(), |crc| format!("{crc:08x}")),
            show_path(&in_mount(mount, &file.path)),
            notes(file),
        ]);
    }
    let text = table.render();
    match heading {
        true => text,
        false => text
            .split_once('\n')
            .map_or(text.clone(), |(_, rows)| rows.to_string()),
    }
}

/// What has no column: the application, and why the last demotion failed.
fn notes(file: &WhereEntry) -> String {
    let mut notes = Vec::new();
    if !file.application.is_empty() {
        notes.push(format!("of {}", show_path(file.application.as_bytes())));
    }
    if file.unpublished {
        notes.push("in a version that is not published".into());
    }
    if !file.stale_tiers.is_empty() {
        notes.push(format!("stale copy: {}", file.stale_tiers.join(", ")));
    }
    if let Some(error) = &file.error {
        notes.push(format!("not demoted: {error}"));
    }
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> WhereEntry {
        WhereEntry {
            path: b"run/ckpt-000120".to_vec(),
            tiers: vec!["dram".into(), "pfs".into()],
            state: "clean".into(),
            size_bytes: 1 << 20,
            application: "/run/ckpt".into(),
            version: Some(120),
            crc32c: Some(0xab),
            error: None,
            unpublished: false,
            durability: None,
            stale_tiers: Vec::new(),
        }
    }

    #[test]
    fn a_copy_of_what_a_file_was_is_stale() {
        let file = WhereEntry {
            durability: Some("replica".into()),
            stale_tiers: vec!["server-2:ssd".into()],
            ..file()
        };
        let value = to_json(Path::new("/bb"), &file);
        assert_eq!(value["durability"], "replica");
        assert_eq!(value["stale_tiers"], json!(["server-2:ssd"]));
        assert_eq!(value["tiers"], json!(["dram", "pfs"]));
        let table = render(Path::new("/bb"), &[file], true);
        assert!(table.contains("stale copy: server-2:ssd"), "{table}");
    }

    #[test]
    fn json_has_the_promised_fields() {
        let expected = json!({
            "path": "/bb/run/ckpt-000120", "tiers": ["dram", "pfs"], "state": "clean",
            "size_bytes": 1 << 20, "application": "/run/ckpt", "version": 120,
            "crc32c": "000000ab", "error": null, "unpublished": false
        });
        assert_eq!(to_json(Path::new("/bb"), &file()), expected);
    }

    #[test]
    fn people_get_a_table() {
        let text = render(Path::new("/bb"), &[file()], true);
        assert_eq!(
            text,
            "state  tiers        size  version  crc32c    path\n\
             clean  dram+pfs  1.0 MiB      120  000000ab  /bb/run/ckpt-000120  of /run/ckpt\n"
        );
        let more = render(Path::new("/bb"), &[file()], false);
        assert!(more.starts_with("clean"));
        let failed = WhereEntry {
            error: Some("Disk quota exceeded".into()),
            ..file()
        };
        assert!(
            render(Path::new("/bb"), &[failed], true).contains("not demoted: Disk quota exceeded")
        );
    }
}
