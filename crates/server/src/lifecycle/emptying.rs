//! Empties nodes: what is not drained there is drained now, what is drained is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_namespace::File;

use crate::buffer::emptying::Held;
use crate::lifecycle::Lifecycle;

/// Between two looks while a node is emptied.
const EVERY: Duration = Duration::from_millis(200);
/// Between two looks whether one is to be.
const IDLE: Duration = Duration::from_millis(500);
/// A look at all files takes one part in so many of the time at most.
const SHARE_OF_TIME: u32 = 10;
/// Files that one look has drained before their time: others that somebody waits for come between.
const URGED_MAX: usize = 1024;
/// Open files that are named.
const NAMED_MAX: usize = 10;

/// The thread that does it.
pub fn run(lifecycle: &Arc<Lifecycle>) {
    while !lifecycle.base.is_ending() {
        let begun = Instant::now();
        let pause = match lifecycle.buffer.emptying().servers().is_empty() {
            true => IDLE,
            false => {
                lifecycle.empty_nodes();
                EVERY.max(begun.elapsed() * SHARE_OF_TIME)
            }
        };
        lifecycle.base.life().pause(pause);
    }
}

impl Lifecycle {
    /// One look at all files.
    pub(crate) fn empty_nodes(&self) {
        if self.base.health().is_silent() {
            return;
        }
        let mut held: BTreeMap<u16, Held> = BTreeMap::new();
        let (mut urged, mut evicted) = (0, false);
        for file in self.buffer.files() {
            if self.base.is_ending() {
                return;
            }
            let Some(server) = self.emptied_server_of(&file) else {
                continue;
            };
            let (clean, unlinked) = {
                let state = file.lock();
                (state.residency.clean, state.is_unlinked())
            };
            if !clean && !unlinked && self.buffer.queue().knows(file.object) {
                if urged < URGED_MAX {
                    self.buffer.queue().urge_again(file.object);
                    urged += 1;
                }
                continue;
            }
            if self.buffer.opens().is_open_now(file.ino) {
                let held = held.entry(server).or_default();
                held.files += 1;
                if held.paths.len() < NAMED_MAX {
                    held.paths.push(file.path());
                }
            } else if clean {
                evicted |= self.buffer.evict(&file).is_some();
            }
        }
        self.buffer.emptying().note_held(held);
        if evicted {
            self.buffer.wake_collector();
        }
    }

    /// The node that is to be empty and has the file, or a copy of it.
    fn emptied_server_of(&self, file: &File) -> Option<u16> {
        let residency = file.lock().residency;
        let copy = residency.shadow.map(|(tier, _)| tier);
        let mut tiers = std::iter::once(residency.tier).chain(copy);
        tiers.find_map(|tier| {
            let server = self.buffer.tiers().get(tier)?.server;
            self.buffer.emptying().has(server).then_some(server)
        })
    }
}
