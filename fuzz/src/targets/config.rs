//! The configuration: a file, the environment, and the quantities in both.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use forebay_types::{format_size, parse_duration, parse_percent, parse_size};

use super::{KIB, Target, text};
use crate::note;
use crate::notes::note_words;

// The program's own source: a binary has no library that could be asked.
#[allow(dead_code, missing_docs)]
#[path = "../../../crates/cli/src/up"]
mod up {
    pub mod given;
    pub mod keys;
    pub mod layers;
    pub mod limits;
    pub mod listening;
    pub mod values;
}

use up::given::Given;
use up::layers::{ConfigFile, Layers};

const EVERYTHING: &str = "pfs = \"/scratch\"\nmount = \"/bb\"\nstate = \"/var/lib/forebay\"\ndram = \"4GiB\"\ndram_min = 0\ndram_max = \"8GiB\"\ndram_max_share = 0.5\nssd = [\"/nvme:100GB\", \"/b\"]\n\
durability = \"ssd\"\npolicy = \"bbos\"\npassthrough = true\noverrun = \"1GiB\"\nallow_other = false\nthreads = 4\nwait_for_space = \"10m\"\n\
pfs_timeout = 30\n[demotion]\nidle = true\nidle_after = \"500ms\"\nstart = \"50%\"\ndirty_cap = 0.9\nverify = \"media\"\nworkers = 2\n\
[engine]\nperiod = \"1h\"\nbw_max = \"3.56GB/s\"\nbw_min = \"3GB/s\"\nplacement = \"lru\"\nthrottle = true\nturn = \"100ms\"\nkeep_every = 3\n\
[scrub]\nenabled = true\npass = \"7d\"\nrate_max = \"100MB/s\"\nverify_on_open = \"16MiB\"\n\
[http]\nlisten = \"127.0.0.1:9180\"\nnames = true\n\
[[rule]]\npath = \"/*/{app}/ckpt-{version}/**\"\ndurability = \"pfs\"\nmtbf = \"12h\"\ngroup = \"commit\"\n\
[[limit]]\nuser = \"*\"\ncapacity = \"20%\"\nundrained = \"1GiB\"\nrate = \"1GB/s\"\nbeyond = \"direct\"\n";

pub const CONFIG: Target = Target {
    name: "config",
    about: "a configuration file",
    run: config,
    seeds: || {
        vec![
            EVERYTHING.into(),
            b"dram = 1073741824\n".to_vec(),
            b"dram = \"auto\"\n".to_vec(),
            Vec::new(),
        ]
    },
    words: &[
        "=",
        "[",
        "]",
        "[[rule]]",
        "\"",
        "'",
        "\"\"\"",
        "{",
        "}",
        "#",
        "true",
        "1979-05-27T07:32:00Z",
        "\\u00e9",
        "a.b",
        "GiB",
        "%",
    ],
    bytes: 256 * KIB,
    // The parser keeps a token, an event and a value for each byte, at worst.
    bytes_per_byte: 1024,
    cost: 4,
};

pub const ENVIRONMENT: Target = Target {
    name: "environment",
    about: "variables that are settings: NAME=VALUE, one a line",
    run: environment,
    seeds: || {
        let cases: [&[u8]; 3] = [
            b"FOREBAY_DRAM=4GiB\nFOREBAY_SSD=/nvme:100GB:/b\nFOREBAY_DURABILITY=pfs",
            b"FOREBAY_ENGINE_BW_MAX=3GB/s\nFOREBAY_DEMOTION_START=50%\nFOREBAY_PASSTHROUGH=no",
            b"FOREBAY_THREADS=4\nFOREBAY_SCRUB_PASS=7d\nFOREBAY_NONSENSE=\xff",
        ];
        cases.map(<[u8]>::to_vec).to_vec()
    },
    words: &[
        "FOREBAY_",
        "ENGINE_",
        "SCRUB_",
        "DEMOTION_",
        "=",
        "\n",
        ":",
        ",",
        "GiB",
        "%",
        "ms",
    ],
    bytes: 64 * KIB,
    bytes_per_byte: 256,
    cost: 1,
};

pub const QUANTITIES: Target = Target {
    name: "quantities",
    about: "sizes, durations and fractions as people write them",
    run: quantities,
    seeds: || {
        let cases = [
            "4GiB",
            "1.5T",
            "500MB",
            "4096",
            "200ms",
            "1.5h",
            "90",
            "3\u{b5}s",
            "50%",
            "0.5",
            "1_000",
            "0.0000001PiB",
        ];
        cases.map(|case| case.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "GiB", "PB", "d", "min", "%", ".", "e", "_", " ", "-", "+", "\u{b5}s",
    ],
    bytes: 64 * KIB,
    bytes_per_byte: 64,
    cost: 1,
};

fn config(input: &[u8]) {
    let Some(text) = text(input) else {
        return note("no text");
    };
    let file = ConfigFile::of_text("/etc/forebay.toml".into(), text.to_string());
    match Layers::of_file(&file).and_then(Layers::read::<Given>) {
        Ok(given) => note((
            given.rules.len(),
            given.ssd.is_some(),
            given.dram.is_some(),
            given.engine.period.is_some(),
        )),
        Err(failure) => {
            let why = failure.message;
            assert!(!why.contains('\n'), "an error is one line: {why}");
            note_words(why);
        }
    }
}

fn environment(input: &[u8]) {
    let variables = input.split(|&b| b == b'\n').filter_map(|line| {
        let at = line.iter().position(|&b| b == b'=')?;
        Some((
            OsString::from_vec(line[..at].to_vec()),
            OsString::from_vec(line[at + 1..].to_vec()),
        ))
    });
    let mut layers = Layers::default();
    let unknown = layers.put_environment(variables);
    match layers.read::<Given>() {
        Ok(given) => note((given != Given::default(), unknown.len())),
        Err(failure) => note_words(failure.message),
    }
}

fn quantities(input: &[u8]) {
    let Some(text) = text(input) else {
        return note("no text");
    };
    match parse_size(text) {
        Ok(bytes) => {
            assert!(bytes <= i64::MAX as u64, "{bytes}");
            assert!(!format_size(bytes).is_empty());
            assert!(parse_size(&bytes.to_string()).is_ok(), "{bytes}");
            note(("size", bytes.leading_zeros()));
        }
        Err(error) => note_words(error),
    }
    match parse_duration(text) {
        Ok(duration) => note(("duration", duration.as_nanos().leading_zeros())),
        Err(error) => note_words(error),
    }
    match parse_percent(text) {
        Ok(fraction) => {
            assert!((0.0..=1.0).contains(&fraction), "{fraction}");
            note("percent");
        }
        Err(error) => note_words(error),
    }
}
