//! Fuzzing of everything that reads bytes from elsewhere.
//!
//! A [`Target`] is a plain function of bytes, which any fuzzer may call; it panics where something
//! is wrong. The harness here needs nothing but a stable compiler: it changes seeds, which are
//! encodings of real values, keeps what leads to an answer not seen before ([`note`]), and judges
//! every run: no panic, memory and time within bounds that follow the length of the input.

// Its configuration is read by the program's own source, which expects this here: a binary has no
// library that could be asked.
#[path = "../../crates/cli/src/exit.rs"]
#[allow(dead_code)]
mod exit;
pub mod judge;
pub mod memory;
pub mod mutate;
mod notes;
#[path = "../../crates/cli/src/owners.rs"]
#[allow(dead_code)]
mod owners;
pub mod random;
pub mod run;
pub mod targets;

pub use notes::note;
pub use targets::{TARGETS, Target};
