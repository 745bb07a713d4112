//! The targets: one for every kind of bytes that come from elsewhere.

mod config;
mod frames;
mod inforce;
mod messages;
mod network;
mod objects;
mod paths;
mod records;
mod samples;
mod scenarios;
mod traces;

/// Something that reads bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// One line on what it reads.
    pub about: &'static str,
    /// Reads an input. Panics where an answer is wrong.
    pub run: fn(&[u8]),
    /// Inputs that are right.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of its language.
    pub words: &'static [&'static str],
    /// What it may hold at once, bytes, whatever the input is.
    pub bytes: usize,
    /// And for each byte of the input: values are larger than their encodings.
    pub bytes_per_byte: usize,
    /// How much slower than the others it is: tests give it so many times fewer inputs.
    pub cost: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    frames::FRAMES,
    network::NETWORK,
    messages::REQUESTS,
    messages::RESPONSES,
    messages::CONTROL,
    records::RECORDS,
    records::STORE,
    records::IDENTITY,
    records::ACL,
    paths::RULES,
    paths::SERIES,
    config::CONFIG,
    config::ENVIRONMENT,
    config::QUANTITIES,
    scenarios::SCENARIO,
    scenarios::SWEEP,
    traces::TRACE,
];

/// What most targets allow.
const KIB: usize = 1 << 10;

/// For tables of targets: those that read text see only what is UTF-8.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}
