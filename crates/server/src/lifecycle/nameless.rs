//! Files without a name that clients had open when the last run ended, as a start finds them. Until
//! it is known that nobody comes for one it is kept like a file that is open.

use std::sync::Arc;

use forebay_namespace::{File, Garbage};
use forebay_types::{Errno, TierId};

use crate::lifecycle::Lifecycle;
use crate::lifecycle::recovery::{Claimed, Inventory};

impl Lifecycle {
    /// Takes them over, but for those that are not there any more.
    pub(super) fn recover_nameless(
        &self,
        files: Vec<Arc<File>>,
        inventory: &Inventory,
        claimed: &mut Claimed,
    ) {
        for file in files {
            let residency = file.lock().residency;
            let is_there = inventory
                .iter()
                .any(|(tier, objects)| *tier == residency.tier && objects.contains(&file.object));
            claimed.insert((residency.tier, file.object));
            claimed.extend(residency.shadow.map(|(tier, _)| (tier, file.object)));
            if !is_there || !self.take_nameless_over(&file, residency.tier) {
                self.ns.lose_nameless(&file);
            }
            if file.lock().unnamed.is_some() {
                self.files.take_unnamed_over(file);
                continue;
            }
            // As after its unlink: whoever closes it last has it collected.
            let shadow = residency.shadow.map(|(tier, _)| tier);
            self.ns.add_garbage(Garbage {
                object: file.object,
                tiers: [Some(residency.tier), shadow],
            });
        }
    }

    /// Whether its object can be looked at.
    fn take_nameless_over(&self, file: &Arc<File>, tier: TierId) -> bool {
        let opened = self.buffer.tiers().open_object(tier, file.object);
        let stat = match opened.and_then(|object| object.stat()) {
            Ok(stat) => stat,
            Err(error) => {
                let reason = format!("its object cannot be looked at: {error}; it is given up");
                self.base.report(file.path(), Errno::of(&error), reason);
                return false;
            }
        };
        file.lock().end_unseen_as(&stat);
        self.buffer
            .enter(file, &self.catalog.rules().identify(&file.path()));
        self.buffer
            .arrive(file.object, tier, stat.allocated_bytes, true);
        self.buffer.ledger().set_nameless(file.object, true);
        // Not in the condition of an `if`: that would keep the lock, and the path of the file
        // takes it.
        let shadow = file.lock().residency.shadow;
        if let Some((shadow, _)) = shadow
            && !self.buffer.tiers().is_out_of_reach(shadow)
        {
            self.book_found_shadow(file, shadow);
        }
        true
    }
}
