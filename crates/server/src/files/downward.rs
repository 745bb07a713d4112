//! What moves from memory to the flash of its node because memory runs full, before anybody waits
//! for its space (ONFS, downward migration; placement `coolness`).
//!
//! 1. The plan chooses, coolest first. Files that are open are among them where files are forced
//!    out.
//! 2. An access ends the way down: the file stays where it is. So does the end of the need, for
//!    files may have gone meanwhile.
//! 3. Small files share their flushes, as where jobs need the memory.
//! 4. What flash cannot take without forcing files out itself, or cannot move, leaves as it would
//!    without flash: a clean copy is dropped, another file drained.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_namespace::File;
use forebay_policy::victims::Outflow;
use forebay_types::{ObjectId, TierId};

use crate::base::failure::Failure;
use crate::buffer::tierset::DRAM;
use crate::files::Files;
use crate::files::groupmove::{Group, Together};
use crate::plan::eviction::Chosen;

/// Without being woken the thread looks this often, to see that all is to end.
const PATIENCE: Duration = Duration::from_millis(500);

/// The thread that moves files down.
pub fn run(files: &Arc<Files>) {
    while !files.base.is_ending() {
        let chosen = files.plan.downward().take(PATIENCE);
        if !chosen.is_empty() {
            files.move_down(chosen);
        }
    }
}

impl Files {
    /// Moves files from memory to flash as long as memory runs full. Answers with what has moved,
    /// bytes.
    pub(crate) fn move_down(&self, chosen: Vec<Chosen>) -> u64 {
        let accessed_s: HashMap<ObjectId, f64> = (chosen.iter())
            .map(|chosen| (chosen.file.object, chosen.accessed_s))
            .collect();
        let is_used = |file: &File| {
            let accessed_s = accessed_s.get(&file.object);
            !accessed_s.is_some_and(|at_s| self.plan.is_still_cool(file, *at_s))
        };
        let is_over = |file: &File| self.base.is_ending() || self.is_wanted(file) || is_used(file);
        let together = Together {
            is_over: &is_over,
            is_used: &is_used,
        };
        let move_group = |group| {
            let moved = self.move_together(group, &together);
            moved.iter().map(|(_, bytes)| bytes).sum::<u64>()
        };
        let (mut moved, mut group, mut stay) = (0, Group::default(), Vec::new());
        let mut grouped = Vec::new();
        for chosen in chosen {
            let outflow = self.plan.outflow_of(DRAM, group.bytes());
            if outflow == Outflow::None || self.base.is_ending() {
                break;
            }
            let file = &chosen.file;
            let is_kernels = {
                let state = file.lock();
                state.residency.by_kernel || state.is_unlinked()
            };
            if file.tier() != DRAM || is_kernels || is_over(file) {
                continue;
            }
            if !self.plan.downward().may_move(file.object) {
                stay.push(chosen);
                continue;
            }
            let bytes = self.buffer.ledger().used_bytes(file.object);
            match self.place_in_group(file, DRAM) {
                Some((to, bytes)) if self.plan.takes(to, bytes + group.bytes()) => {
                    if !group.takes(to, bytes) {
                        moved += move_group(std::mem::take(&mut group));
                    }
                    group.add(file.clone(), to, bytes);
                    grouped.push(chosen);
                }
                _ if self.moves_down_alone(file, bytes, &is_over) => moved += bytes,
                _ => stay.push(chosen),
            }
        }
        moved += move_group(group);
        grouped.retain(|chosen| chosen.file.tier() == DRAM);
        stay.append(&mut grouped);
        for chosen in stay {
            match self.plan.outflow_of(DRAM, 0) {
                Outflow::None => break,
                outflow => self.plan.let_all_go(&[chosen], outflow),
            }
        }
        moved
    }

    /// Moves one file, which may be open for reading. Whether it has moved.
    fn moves_down_alone(
        &self,
        file: &Arc<File>,
        bytes: u64,
        is_over: &(dyn Fn(&File) -> bool + Sync),
    ) -> bool {
        let Some(to) = self.flash_below(file, bytes) else {
            return false;
        };
        let open = self.buffer.opens().by_ino(file.ino);
        match self.move_watched((file, open.as_ref()), to, &|| is_over(file)) {
            Ok(has_moved) => has_moved,
            // Who wants the file goes first.
            Err(_) if is_over(file) => false,
            Err(failure) => {
                self.stays_in_memory(file, &failure);
                false
            }
        }
    }

    /// A file could not be moved. Who gives memory back tries again and again, and the log has it
    /// once in a while.
    pub(super) fn stays_in_memory(&self, file: &File, failure: &Failure) {
        let path = file.path();
        let path = path.escape_ascii();
        match self.plan.downward().may_move(file.object) {
            true => tracing::warn!("{path}: stays in memory: {failure}"),
            false => tracing::debug!("{path}: stays in memory: {failure}"),
        }
        self.plan.downward().note_failed(file.object);
    }

    /// Flash of this node that takes a file from memory.
    fn flash_below(&self, file: &File, bytes: u64) -> Option<TierId> {
        let to = self.flash_for(file, DRAM, bytes)?;
        let is_own = self.server_with(to) == self.settings.server;
        (is_own && self.plan.takes(to, bytes)).then_some(to)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use forebay_namespace::File;
    use forebay_tiers::testing::{Effect, Operation, When};
    use forebay_types::{Errno, Handle, OpenFlags};

    use crate::buffer::tierset::DRAM;
    use crate::plan::eviction::{Chosen, Leaving};
    use crate::rooms::Rooms;
    use crate::testing::{FLASH, Lab, closed, drain};

    const MIB: usize = 1 << 20;

    fn opened(rooms: &Rooms, file: &Arc<File>) -> Handle {
        let flags = OpenFlags(libc::O_RDONLY as u32);
        let (opened, _) = rooms.files.open(file.ino, flags, None).expect("open");
        opened.handle
    }

    fn is_whole(rooms: &Rooms, file: &Arc<File>, handle: Handle, bytes: usize) -> bool {
        let mut data = vec![0; bytes + 1];
        let read = rooms.files.read(handle, 0, &mut data).expect("read");
        data.truncate(read);
        data == vec![*file.path().last().expect("a name"); bytes]
    }

    fn chosen(rooms: &Rooms) -> Vec<Chosen> {
        Leaving::downward(&rooms.plan).tend(&rooms.plan);
        rooms.plan.downward().take(Duration::ZERO)
    }

    fn tiers(files: &[Arc<File>]) -> Vec<forebay_types::TierId> {
        files.iter().map(|file| file.tier()).collect()
    }

    #[test]
    fn what_is_coolest_moves_to_flash_and_is_what_it_was() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        // Two of them move by themselves, two together.
        let sizes = [2 * MIB, 64 << 10, 64 << 10, 2 * MIB];
        let files: Vec<_> = std::iter::zip(names, sizes)
            .map(|(name, bytes)| closed(rooms, name, bytes))
            .collect();
        while !rooms.buffer.queue().waiting().is_empty() {
            drain(rooms);
        }
        let undrained = closed(rooms, b"e", MIB);
        assert!(chosen(rooms).is_empty(), "half of it is free");
        rooms.buffer.ledger().set_capacity(DRAM, 2 << 20);
        let moved = rooms.files.move_down(chosen(rooms));
        assert_eq!(tiers(&files), [FLASH; 4]);
        assert_eq!(undrained.tier(), FLASH);
        assert!(moved >= (5 * MIB + (128 << 10)) as u64);
        for (file, bytes) in std::iter::zip(&files, sizes) {
            assert!(file.lock().residency.clean, "{:?}", file.path());
            let handle = opened(rooms, file);
            assert!(is_whole(rooms, file, handle, bytes));
            rooms.files.release(handle).expect("close");
        }
        assert!(undrained.lock().is_dirty());
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
        assert!(chosen(rooms).is_empty(), "memory is empty");
    }

    #[test]
    fn no_more_moves_than_has_to_and_an_access_ends_the_way_down() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let files: Vec<_> = [b"a", b"b", b"c"]
            .map(|name| closed(rooms, name, 2 * MIB))
            .into();
        rooms.buffer.ledger().set_capacity(DRAM, 9 << 20);
        let on_their_way = chosen(rooms);
        assert_eq!(on_their_way.len(), 1, "a third is free");
        // On a busy machine another one was open for longer.
        let coolest = on_their_way[0].file.clone();
        let reader = opened(rooms, &coolest);
        rooms.files.release(reader).expect("close");
        assert_eq!(rooms.files.move_down(on_their_way), 0);
        assert_eq!(tiers(&files), [DRAM; 3]);
        // The need has ended.
        let on_their_way = chosen(rooms);
        rooms.buffer.ledger().set_capacity(DRAM, 16 << 20);
        assert_eq!(rooms.files.move_down(on_their_way), 0);
        rooms.buffer.ledger().set_capacity(DRAM, 9 << 20);
        assert_eq!(rooms.files.move_down(chosen(rooms)), 2 * MIB as u64);
        let moved = files.iter().filter(|file| file.tier() == FLASH).count();
        assert_eq!(moved, 1);
        assert_eq!(coolest.tier(), DRAM, "others are cooler");
    }

    #[test]
    fn what_is_read_moves_where_files_are_forced_out_and_reads_go_on() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let file = closed(rooms, b"a", 3 * MIB);
        let reader = opened(rooms, &file);
        rooms.buffer.ledger().set_capacity(DRAM, 5 << 20);
        assert!(chosen(rooms).is_empty(), "normal out spares it");
        rooms.buffer.ledger().set_capacity(DRAM, 3 << 20);
        let on_its_way = chosen(rooms);
        assert_eq!(on_its_way.len(), 1);
        let another = opened(rooms, &file);
        rooms.files.release(another).expect("close");
        assert_eq!(rooms.files.move_down(on_its_way), 0, "it is in use");
        assert_eq!(rooms.files.move_down(chosen(rooms)), 3 * MIB as u64);
        assert_eq!(file.tier(), FLASH);
        assert!(is_whole(rooms, &file, reader, 3 * MIB));
        rooms.files.release(reader).expect("close");
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn flash_forces_nothing_out_for_what_is_cool() {
        let lab = Lab::under_coolness();
        let rooms = lab.rooms();
        let clean = closed(rooms, b"a", 2 * MIB);
        while !rooms.buffer.queue().waiting().is_empty() {
            drain(rooms);
        }
        let undrained = closed(rooms, b"b", 2 * MIB);
        rooms.buffer.ledger().set_capacity(FLASH, 2 << 20);
        rooms.buffer.ledger().set_capacity(DRAM, 4 << 20);
        assert_eq!(rooms.files.move_down(chosen(rooms)), 0);
        assert!(clean.lock().is_evicted());
        assert_eq!(undrained.tier(), DRAM);
        assert!(rooms.buffer.queue().demand().is_urgent, "it is drained");
    }

    /// Flash that takes nothing any more: neither is memory full for that, nor is each of the files
    /// tried, and named in the log, with every look.
    #[test]
    fn what_cannot_move_leaves_as_without_flash_and_is_not_tried_again_at_once() {
        let (lab, flash) = Lab::with_memory();
        let rooms = lab.rooms();
        let chosen_policy = rooms.plan.choose_policy(None, Some("coolness"));
        assert_eq!(chosen_policy, Ok(()));
        for is_dirty in [false, true] {
            rooms.buffer.ledger().set_capacity(DRAM, 16 << 20);
            let names: [&[u8]; 3] = if is_dirty {
                [b"a", b"b", b"c"]
            } else {
                [b"d", b"e", b"f"]
            };
            let sizes = [64 << 10, 64 << 10, 2 * MIB];
            let files: Vec<_> = std::iter::zip(names, sizes)
                .map(|(name, bytes)| closed(rooms, name, bytes))
                .collect();
            while !is_dirty && !rooms.buffer.queue().waiting().is_empty() {
                drain(rooms);
            }
            rooms.buffer.ledger().set_capacity(DRAM, 4 << 10);
            let fails = Effect::Fail(Errno::EIO);
            let fault = flash.inject(Operation::SetIdentity, When::Every, fails);
            assert_eq!(rooms.files.move_down(chosen(rooms)), 0);
            assert_eq!(flash.fired(fault), 3);
            assert_eq!(tiers(&files), [DRAM; 3]);
            match is_dirty {
                false => assert!(files.iter().all(|file| file.lock().is_evicted())),
                true => assert_eq!(rooms.buffer.queue().hand_out_urgent(9).len(), 3),
            }
            assert_eq!(rooms.files.move_down(chosen(rooms)), 0);
            assert_eq!(flash.fired(fault), 3, "it is tried again");
            flash.heal(fault);
        }
        assert_eq!(rooms.lifecycle.audit_books(), Vec::<String>::new());
    }

    #[test]
    fn what_is_coolest_moves_also_where_that_is_chosen_after_the_start() {
        let lab = Lab::with(|settings| settings.dram_bytes = Some(16 << 20));
        let rooms = lab.rooms();
        assert!(rooms.plan.has_flash_below(), "nobody would move it");
        let mut leaving = Leaving::downward(&rooms.plan);
        let file = closed(rooms, b"a", 2 * MIB);
        rooms.buffer.ledger().set_capacity(DRAM, 2 << 20);
        let policy = rooms.plan.choose_policy(None, Some("coolness"));
        assert_eq!(policy, Ok(()));
        leaving.tend(&rooms.plan);
        rooms
            .files
            .move_down(rooms.plan.downward().take(Duration::ZERO));
        assert_eq!(file.tier(), FLASH);
    }
}
