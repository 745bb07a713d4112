//! The twin: what would a burst buffer do for these jobs?
//!
//! A discrete-event simulator. Every decision comes from `forebay-policy`, the code that the
//! servers run:
//!
//! - when and how fast data is demoted;
//! - what is demoted and evicted first;
//! - which version is outdated;
//! - what goes straight to the PFS.
//!
//! The twin adds what the servers have anyway: time, bytes that flow, applications that write, fail
//! and restart.

pub mod experiment;
pub mod figure;
pub mod output;
pub mod periodic;
pub mod replay;
pub mod rng;
pub mod row;
pub mod scenario;
pub mod sim;
pub mod sizing;
pub mod sweep;
pub mod trace;
