//! How facts look: for people on a terminal, for logs, for programs.

pub mod json;
pub mod meter;
pub mod progress;
pub mod table;
pub mod text;
pub mod time;
