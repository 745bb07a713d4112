//! Makes restart copies, of clean files, in free space of another node's flash, and has restarts
//! read the nearest place.

use std::sync::Arc;

use forebay_namespace::File;
use forebay_policy::holders::HolderId;
use forebay_policy::replicators::{Place, Reader, reads_copy};
use forebay_tiers::{CopyControl, TierKind, checksum};
use forebay_types::{Errno, SetTime, TierId};

use crate::base::failure::Failure;
use crate::files::Files;
use crate::files::handed::Near;

impl Files {
    /// A file that nobody has open is about to be opened for reading, and is claimed: where its
    /// restart copy is nearer to the reader, that is the file from now on.
    pub(super) fn read_nearest(&self, file: &Arc<File>, near: Near) -> Result<(), Failure> {
        let Some(copy) = self.buffer.restart_copy(file) else {
            return Ok(());
        };
        let tiers = self.buffer.tiers();
        let place = |tier| {
            let holder = HolderId(tiers.get(tier)?.server);
            Some(Place {
                holder,
                rack: self.rack_of(holder),
                is_answering: !tiers.is_out_of_reach(tier),
                // Not known of data servers.
                load_bytes: 0,
            })
        };
        let (Some(of_file), Some(of_copy)) = (place(file.tier()), place(copy)) else {
            return Ok(());
        };
        let holder = near.map(HolderId);
        let rack = holder.map(|id| self.rack_of(id));
        let reader = Reader { holder, rack };
        // Nobody knows where a reader is whose kernel takes no descriptors: its bytes come through
        // this node, wherever they are. Without the node of the file the copy becomes the file
        // where that is opened.
        if of_file.is_answering && reads_copy(&reader, file.object.0, &of_file, &of_copy) {
            self.buffer.change_places(file)?;
        }
        Ok(())
    }

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
            // As of the file: what was compared of that need not be compared again.
            let stat = object.stat()?;
            copy.set_times(Some(SetTime::At(stat.atime)), Some(SetTime::At(stat.mtime)))?;
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
