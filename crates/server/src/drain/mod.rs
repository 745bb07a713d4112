//! The drain: whose turn it is, copies to the PFS, what leaves afterwards.

pub(crate) mod demote;
pub(crate) mod leftover;
pub(crate) mod picking;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_namespace::Namespace;
use forebay_types::ObjectId;
use parking_lot::Mutex;

use crate::base::Base;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use crate::integrity::Integrity;
use crate::plan::Plan;
use leftover::Leftover;
use picking::Picking;

/// Copies to the PFS.
pub struct Drain {
    settings: Arc<Settings>,
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    buffer: Arc<Buffer>,
    integrity: Arc<Integrity>,
    plan: Arc<Plan>,
    /// Whose turn it is.
    picking: Picking,
    /// Temporary files on the PFS that could not be removed; their files' next demotions, or the
    /// next start, do.
    leftovers: Mutex<HashMap<ObjectId, Vec<Leftover>>>,
    /// It was said that the PFS gives files another owner.
    squashed: AtomicBool,
}

impl Drain {
    /// Nothing is under way.
    pub fn new(
        base: &Arc<Base>,
        catalog: &Arc<Catalog>,
        buffer: &Arc<Buffer>,
        integrity: &Arc<Integrity>,
        plan: &Arc<Plan>,
        picking: Picking,
    ) -> Drain {
        Drain {
            settings: base.settings().clone(),
            ns: base.ns().clone(),
            picking,
            leftovers: Mutex::default(),
            squashed: AtomicBool::new(false),
            base: base.clone(),
            catalog: catalog.clone(),
            buffer: buffer.clone(),
            integrity: integrity.clone(),
            plan: plan.clone(),
        }
    }

    /// Whose turn it is.
    pub fn picking(&self) -> &Picking {
        &self.picking
    }

    /// The room below.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// The room below.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The room below.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// The room below.
    pub fn integrity(&self) -> &Arc<Integrity> {
        &self.integrity
    }

    /// The room below.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }
}
