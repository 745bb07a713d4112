//! Shares of a tier for large and small files, under the placement `coolness`.

use forebay_namespace::File;
use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::sizes::SizeShares;
use forebay_types::{ObjectId, TierId};

use crate::plan::Plan;

impl Plan {
    /// A program opens a file, or has written it: so many bytes of it are accessed. Nothing is
    /// noted under another placement.
    pub fn note_access(&self, tier: TierId, bytes: u64) {
        if self.engine.placement() != PlacementPolicy::Coolness || bytes == 0 {
            return;
        }
        let figures = self.buffer.ledger().figures(tier);
        let files = figures.dirty_files + figures.other_files;
        let mean_bytes = figures.used_bytes.checked_div(files).unwrap_or(0);
        let now_s = self.catalog.apps().now_s();
        self.accessed.lock().note(bytes, mean_bytes, now_s);
    }

    /// A program opens a file that others have open: under the placement `coolness` that ends its
    /// way down.
    pub fn note_join(&self, object: ObjectId) {
        if self.engine.placement() == PlacementPolicy::Coolness {
            self.catalog.apps().joined(object);
        }
    }

    /// The shares of a tier now. `None`: all files of it leave by one order.
    pub fn size_shares(&self, tier: TierId) -> Option<SizeShares> {
        if self.engine.placement() != PlacementPolicy::Coolness {
            return None;
        }
        let accessed = *self.accessed.lock();
        let files = self.buffer.files();
        let here = files.iter().filter(|file: &&_| File::tier(file) == tier);
        let sizes = here.map(|file| self.buffer.ledger().used_bytes(file.object));
        SizeShares::of(&sizes.collect::<Vec<_>>(), &accessed)
    }
}
