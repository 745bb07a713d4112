//! What people order: movements, the publication of versions, and whom they may be told about.

pub(crate) mod asker;
pub(crate) mod commit;
pub(crate) mod jobs;
pub(crate) mod publication;
pub(crate) mod unreachable;
pub(crate) mod walk;

use std::sync::Arc;

use forebay_namespace::Namespace;

use crate::ahead::Ahead;
use crate::base::Base;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use crate::files::Files;
use crate::plan::Plan;
use jobs::Jobs;
use publication::Versions;

/// What people order.
pub struct Orders {
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    buffer: Arc<Buffer>,
    plan: Arc<Plan>,
    files: Arc<Files>,
    ahead: Arc<Ahead>,
    /// Movements ordered from the command line.
    jobs: Jobs,
    /// Versions that are not published.
    versions: Versions,
}

impl Orders {
    /// Nothing is ordered.
    pub fn new(files: &Arc<Files>, ahead: &Arc<Ahead>) -> Orders {
        let drain = files.drain();
        Orders {
            ns: drain.base().ns().clone(),
            jobs: Jobs::of_start(drain.base().epoch()),
            versions: Versions::default(),
            base: drain.base().clone(),
            catalog: drain.catalog().clone(),
            buffer: drain.buffer().clone(),
            plan: drain.plan().clone(),
            files: files.clone(),
            ahead: ahead.clone(),
        }
    }

    /// Movements ordered from the command line.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// The room below.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }
}
