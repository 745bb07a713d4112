//! What happens when the outside world misbehaves: outsiders, a PFS that loses directories, changes
//! in the middle of a demotion, and a server that is killed at any point.
//!
//! `FOREBAY_SEED` repeats the choices of a run (not those of the scheduler),
//! `FOREBAY_FAULTS_ROUNDS` kills more often.

#[path = "faults/arriving.rs"]
mod arriving;
mod common;
#[path = "faults/conflict.rs"]
mod conflict;
#[path = "faults/crash.rs"]
mod crash;
#[path = "faults/racing.rs"]
mod racing;
