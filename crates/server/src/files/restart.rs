//! Makes restart copies: of clean files, in free space of another node's flash.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_tiers::{CopyControl, TierKind, checksum};
use forebay_types::{Errno, TierId};

use crate::base::failure::Failure;
use crate::files::Files;

impl Files {
    /// Copies a clean file to a tier of another node, in free space only, and puts the copy on
    /// record. `false`: the file has changed meanwhile or is in use, or there is no room.
    pub fn copy_for_restart(
        &self,
        file: &Arc<File>,
        place: TierId,
        control: &CopyControl<'_>,
    ) -> Result<bool, Failure> {
        let Some(_copying) = file.try_copying() else {
            return Ok(false);
        };
        let residency = file.lock().residency;
        let tiers = self.buffer.tiers();
        let is_due = residency.clean && residency.shadow.is_none() && residency.crc.is_some();
        let is_left = (self.ns.left_behind()).contains(&(file.object, place));
        if !is_due || is_left || residency.tier == place || tiers.kind(place) != TierKind::Ssd {
            return Ok(false);
        }
        let from = tiers.get(residency.tier).ok_or(Errno::ENODEV)?;
        let object = from.for_copies.open_shared(file.object)?;
        let bytes = object.stat()?.allocated_bytes;
        let ledger = self.buffer.ledger();
        if ledger.try_hold_shadow(file.object, place, bytes).is_err() {
            return Ok(false);
        }
        let made = (|| {
            let slot = tiers.get(place).ok_or(Errno::ENODEV)?;
            let identity = self.buffer.identity(file, true);
            let copy = slot.for_copies.create(file.object, &identity)?;
            forebay_tiers::copy(&*object, &*copy, control).map_err(Failure::from)?;
            copy.sync(false)?;
            slot.tier.sync_all()?;
            let size = file.lock().meta.size;
            if copy.stat()?.size != size {
                return Ok(false);
            }
            // What is on record of the content is what a restart may rely on.
            let crc = checksum(&*copy, size, control.stop)?;
            let is_it = residency.crc == Some(crc);
            if !is_it {
                // Whoever opens it compares it with the PFS.
                self.integrity.at_rest().suspect(file.object);
            }
            Ok::<bool, Failure>(
                is_it
                    && self
                        .ns
                        .note_restart_copy(file, residency.generation, place)?,
            )
        })();
        if !matches!(made, Ok(true)) {
            self.buffer.remove_left_behind(file, place);
            ledger.release_shadow(file.object);
        }
        made
    }
}
