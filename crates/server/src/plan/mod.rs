//! What is learned of the applications, and the limits and turns that follow from it.

pub(crate) mod block_io;
pub(crate) mod calibrate;
pub(crate) mod dedicated;
pub(crate) mod engine;
pub(crate) mod eviction;
pub(crate) mod learning;
mod sizes;

use std::sync::Arc;

use forebay_namespace::Namespace;
use forebay_policy::sizes::Accessed;
use parking_lot::Mutex;

use crate::base::Base;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use dedicated::Dedicated;
use engine::Engine;
use eviction::Downward;
use learning::Learning;

/// Limits, turns, and what they are derived from.
pub struct Plan {
    settings: Arc<Settings>,
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    buffer: Arc<Buffer>,
    /// Limits, turns, the plan in force.
    engine: Engine,
    /// What is learned.
    learning: Learning,
    /// Shares of applications.
    dedicated: Dedicated,
    /// What was accessed, for the shares of large and small files.
    accessed: Mutex<Accessed>,
    /// What is to move from memory to flash.
    downward: Downward,
}

impl Plan {
    /// With what earlier runs have learned.
    pub fn new(
        base: &Arc<Base>,
        catalog: &Arc<Catalog>,
        buffer: &Arc<Buffer>,
        (engine, learning, dedicated): (Engine, Learning, Dedicated),
    ) -> Plan {
        Plan {
            settings: base.settings().clone(),
            ns: base.ns().clone(),
            engine,
            learning,
            dedicated,
            accessed: Mutex::default(),
            downward: Downward::default(),
            base: base.clone(),
            catalog: catalog.clone(),
            buffer: buffer.clone(),
        }
    }

    /// Limits, turns, the plan in force.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What is learned.
    pub fn learning(&self) -> &Learning {
        &self.learning
    }
}
