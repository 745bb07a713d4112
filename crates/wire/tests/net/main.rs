//! The network transport over real sockets: many clients, many links, every request once.

mod doors;
mod fake;
mod leases;
mod local;
mod once;
mod order;
mod proxy;
mod recalls;
mod stops;
