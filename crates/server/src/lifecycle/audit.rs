//! Compares the books with what lies in the tiers.

use std::collections::HashSet;

use forebay_types::{ObjectId, TierId};

use crate::buffer::ledger::Entry;
use crate::lifecycle::Lifecycle;

/// A file system may give an object blocks for its own purposes when it writes back: so much is no
/// error in the books.
const SLACK_BYTES: u64 = 16 << 10;

impl Lifecycle {
    /// Compares the books with the files and with what lies in the tiers, one line for each
    /// difference. Of a server that nobody uses and that does nothing now there is none; else what
    /// is under way may look like one.
    pub fn audit_books(&self) -> Vec<String> {
        self.files.collect_garbage();
        let mut wrong = Vec::new();
        let mut entries = self.buffer.ledger().entries();
        let mut known = HashSet::new();
        let files: Vec<_> = self.buffer.files();
        for file in files {
            let (residency, nameless) = {
                let state = file.lock();
                (state.residency, state.is_unlinked())
            };
            let shadow = residency.shadow.map(|(tier, _)| tier);
            known.insert((residency.tier, file.object));
            known.extend(shadow.map(|tier| (tier, file.object)));
            let there = Entry {
                tier: residency.tier,
                dirty: !residency.clean && !nameless,
                used_bytes: self.occupied_bytes(residency.tier, file.object),
                reserved_bytes: 0,
                shadow,
            };
            let booked = entries.remove(&file.object);
            if !booked.is_some_and(|booked| is_close(booked, there)) {
                let path = file.path().escape_ascii().to_string();
                wrong.push(format!("{path}: booked {booked:?}, there is {there:?}"));
            }
        }
        for stranded in self.buffer.stranded().lock().iter() {
            known.insert((stranded.tier, stranded.object));
            entries.remove(&stranded.object);
        }
        for (object, entry) in entries {
            wrong.push(format!("object {object} has left: booked {entry:?}"));
        }
        for (tier, slot) in self.buffer.tiers().iter() {
            let listed = slot.tier.list(&mut |object| {
                if !known.contains(&(tier, object)) {
                    wrong.push(format!(
                        "object {object} in {} is no file's",
                        slot.tier.name()
                    ));
                }
            });
            if let Err(error) = listed {
                wrong.push(format!("{}: {error}", slot.tier.name()));
            }
        }
        wrong
    }

    /// 0 where there is no object.
    fn occupied_bytes(&self, tier: TierId, object: ObjectId) -> u64 {
        let object = self.buffer.tiers().open_object(tier, object);
        let stat = object.and_then(|object| object.stat());
        stat.map_or(0, |stat| stat.allocated_bytes)
    }
}

fn is_close(booked: Entry, there: Entry) -> bool {
    let used_bytes = there.used_bytes;
    booked.used_bytes.abs_diff(used_bytes) <= SLACK_BYTES
        && Entry {
            used_bytes,
            ..booked
        } == there
}
