//! Stores on real servers, which these tests start and end: the conformance suite, the model test,
//! and what is left of a store when its holder, its server or the network between them fails.

#[path = "model/steps.rs"]
mod steps;

#[path = "remote/proxy.rs"]
mod proxy;
#[path = "remote/servers.rs"]
mod servers;

#[path = "remote/failures.rs"]
mod failures;
#[path = "remote/holders.rs"]
mod holders;
#[path = "remote/same.rs"]
mod same;
