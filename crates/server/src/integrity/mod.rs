//! Whether what lies in the tiers is what was written: looks, seals, scrub and fsck.

pub(crate) mod atrest;
pub(crate) mod blocks;
pub(crate) mod fsck;
pub(crate) mod identity;
pub(crate) mod scrub;
pub(crate) mod seal;
pub(crate) mod unhurried;

use std::sync::Arc;

use forebay_namespace::Namespace;

use crate::base::Base;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use atrest::AtRest;
use scrub::Scrub;

/// Whether what lies in the tiers is what was put there.
pub struct Integrity {
    settings: Arc<Settings>,
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    buffer: Arc<Buffer>,
    /// Objects at rest on flash.
    at_rest: AtRest,
    /// Reads them in the background.
    scrub: Scrub,
}

impl Integrity {
    /// Nothing has been compared yet; the pass in the background goes on where `scrub` is.
    pub fn new(
        base: &Arc<Base>,
        catalog: &Arc<Catalog>,
        buffer: &Arc<Buffer>,
        scrub: Scrub,
    ) -> Integrity {
        Integrity {
            settings: base.settings().clone(),
            ns: base.ns().clone(),
            at_rest: AtRest::default(),
            scrub,
            base: base.clone(),
            catalog: catalog.clone(),
            buffer: buffer.clone(),
        }
    }

    /// Objects at rest on flash.
    pub fn at_rest(&self) -> &AtRest {
        &self.at_rest
    }
}
