//! Second copies that are made again.

use std::sync::Arc;

use forebay_kv::Durability as KvDurability;
use forebay_namespace::File;
use forebay_tiers::{CopyControl, TierKind};

use crate::base::failure::Failure;
use crate::buffer::unsent::Lacking;
use crate::files::Files;
use crate::files::replica::Second;

/// What became of a file that lacks a second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicated {
    /// It has one.
    Done,
    /// The file is in use just now, and is to be tried again.
    Busy,
    /// No other server has room for one.
    NoPlace,
}

impl Files {
    /// Makes it, or brings it up to date, now.
    pub fn replicate(
        &self,
        file: &Arc<File>,
        control: &CopyControl<'_>,
    ) -> Result<Replicated, Failure> {
        let open = self.buffer.opens().by_ino(file.ino);
        let _one = open.as_ref().map(|open| open.growing.lock());
        let Some(_copying) = file.try_copying() else {
            return Ok(Replicated::Busy);
        };
        if !self.lacks_second(file) {
            return Ok(Replicated::Done);
        }
        let tier = file.tier();
        let object = self.buffer.tiers().open_object(tier, file.object)?;
        if self.buffer.tiers().kind(tier) != TierKind::Dram {
            self.integrity.flush(file, tier, &*object, false)?;
        }
        // Whoever opens it meanwhile counts from there on, and an fsync waits for the copy.
        let lacking = open.as_ref().map(|open| open.unsent.take());
        let everything = Lacking {
            all: true,
            ranges: Vec::new(),
            acknowledged: false,
        };
        let made = self.second_copy(file, &object, &everything, control);
        let made = made.and_then(|second| {
            if let Second::There { .. } = &second {
                self.ns.save(file, &file.lock(), KvDurability::Synced)?;
            }
            Ok(second)
        });
        match (&made, &open, lacking) {
            (Ok(Second::There { .. }), Some(open), _) => open.unsent.made(),
            (_, Some(open), Some(lacking)) => open.unsent.put_back(lacking),
            _ => {}
        }
        match made? {
            Second::There { outdated } => {
                self.drop_outdated_second(file, outdated);
                Ok(Replicated::Done)
            }
            Second::NoPlace => Ok(Replicated::NoPlace),
        }
    }
}
