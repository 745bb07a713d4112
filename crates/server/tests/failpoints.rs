//! `kill -9` between the steps of every operation that has several: all failpoints, enumerated,
//! each in every state of residency that takes another way there.
//!
//! For each case a child process, which is this very program, brings a burst buffer into a state,
//! arms the point, works, and is killed there. A restart is compared with a model of what was asked
//! for and answered, then drained, and the PFS is compared too.
//!
//! `FAILPOINTS_ONLY` runs the cases whose point's name contains it.
#![cfg(debug_assertions)]

mod common;
#[path = "failpoints/holders.rs"]
mod holders;
#[path = "failpoints/lend.rs"]
mod lend;
#[path = "failpoints/model.rs"]
mod model;
#[path = "failpoints/outsider.rs"]
mod outsider;
#[path = "failpoints/run.rs"]
mod run;
#[path = "failpoints/ways.rs"]
mod ways;
#[path = "failpoints/workloads.rs"]
mod workloads;
