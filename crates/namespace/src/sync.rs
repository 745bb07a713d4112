//! What threads meet by. `models/` has the same names for what it can run in every order.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use parking_lot::Mutex;
