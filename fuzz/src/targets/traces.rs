//! A centre's history, as its tools print it.

use forebay_twin::scenario::Scenario;
use forebay_twin::trace::{Assumptions, Source, scenario};

use super::{KIB, Target, text};
use crate::note;
use crate::notes::note_words;

pub const TRACE: Target = Target {
    name: "trace",
    about: "job logs (SWF, sacct, Darshan) and the scenario that is made of them",
    run,
    seeds: || {
        let head = |file: &str, lines: usize| {
            let lines: Vec<&str> = file.lines().take(lines).collect();
            lines.join("\n").into_bytes()
        };
        vec![
            head(include_str!("../../../crates/twin/tests/data/evalys-easy.swf"), 12),
            head(include_str!("../../../crates/twin/tests/data/slurm2sql-data1.txt"), 12),
            head(include_str!("../../../crates/twin/tests/data/pydarshan-example.txt"), 60),
            b"JobID|Start|End|NNodes|AveDiskWrite|NTasks\n7|2019-07-31T22:29:14|2019-08-01T02:02:39|4||\n7.batch|||4|1.5G|2".to_vec(),
        ]
    },
    words: &[
        "JobID|Start|End|",
        "|",
        "\n",
        "T",
        ":",
        "Unknown",
        "# darshan log version",
        "# run time: ",
        "\tPOSIX_BYTES_WRITTEN\t",
        "9223372036854775807",
        "-1",
        ";",
    ],
    bytes: 256 * KIB,
    // Of a line of 18 short numbers becomes a table of seven values, as text and parsed.
    bytes_per_byte: 2048,
    cost: 8,
};

fn run(input: &[u8]) {
    let Some(text) = text(input) else {
        return note("no text");
    };
    let (source, history) =
        match Source::guess(text).and_then(|source| Ok((source, source.read(text)?))) {
            Ok(found) => found,
            Err(error) => return note_words(error),
        };
    note((
        source as u8,
        history.jobs.len().ilog2(),
        history.skipped.min(3),
    ));
    let made = scenario(source, &history, &Assumptions::default());
    // Whatever the log says, what is made of it is a file that can be read; it may be refused for
    // what it asks.
    assert!(
        toml::from_str::<toml::Table>(&made).is_ok(),
        "no TOML:\n{made}"
    );
    match Scenario::parse(&made, &[]) {
        Ok(scenario) => assert_eq!(scenario.applications.len(), history.jobs.len()),
        Err(error) => note_words(error.why),
    }
}
