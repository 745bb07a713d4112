use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_policy::lending::Lending;
use forebay_policy::placement::{Lease, MIN_EXTENSION_BYTES};
use forebay_tiers::{MemoryNow, MemorySource};
use forebay_types::Errno;
use forebay_wire::WriteHow;

use super::*;
use crate::base::settings::{LendingSetting, MemoryWay};
use crate::buffer::opens::OpenFile;
use crate::buffer::tierset::DRAM;
use crate::testing::{Lab, answer, create};

const MIB: u64 = 1 << 20;
/// What the tier has where nothing is lent.
const FULL: u64 = 256 * MIB;

/// A machine of 1 GiB, of which so much can be had.
struct Machine {
    available_bytes: AtomicU64,
}

impl MemorySource for Machine {
    fn look(&self) -> io::Result<MemoryNow> {
        Ok(MemoryNow {
            machine_bytes: 1024 * MIB,
            total_bytes: 1024 * MIB,
            available_bytes: self.available_bytes.load(Ordering::Relaxed),
            ..MemoryNow::default()
        })
    }
}

/// A tier that has given all back to jobs, with an open file of 8 MiB in it.
fn lowered() -> (Lab, Arc<Machine>, forebay_types::Handle) {
    let machine = Arc::new(Machine {
        available_bytes: AtomicU64::new(1000 * MIB),
    });
    let lab = Lab::with(|settings| {
        settings.dram_bytes = Some(FULL);
        settings.wait_for_space = std::time::Duration::ZERO;
        settings.ssd[0].capacity_bytes = Some(FULL);
        settings.lending = Some(LendingSetting {
            bounds: Lending {
                max_bytes: FULL,
                max_share: 1.0,
                ..Lending::default()
            },
            memory: MemoryWay(machine.clone()),
        });
    });
    let rooms = lab.rooms();
    rooms.lifecycle.look_at_memory();
    let handle = create(rooms, b"grows", &[7; 8 << 20]);
    machine.available_bytes.store(0, Ordering::Relaxed);
    rooms.lifecycle.look_at_memory();
    let figures = rooms.buffer.ledger().figures(DRAM);
    assert_eq!(figures.capacity_bytes, 4 * MIB);
    (lab, machine, handle)
}

fn open_of(lab: &Lab) -> Arc<OpenFile> {
    let file = lab.rooms().buffer.files().pop().expect("file");
    let open = lab.rooms().buffer.opens().by_ino(file.ino);
    open.expect("it is open")
}

/// The kernel has used up the lease of the file; whether it gets more, and the lease then.
fn borrows(lab: &Lab, open: &OpenFile, waits: bool) -> (bool, u64) {
    let Target::Buffer { file, object, tier } = open.target.read().clone() else {
        panic!("it is here");
    };
    let used_bytes = object.stat().expect("stat").allocated_bytes;
    let lease = open.lease_bytes.load(Ordering::Acquire).max(used_bytes);
    let growing = Growing {
        open,
        object: &*object,
        id: file.object,
        path: &|| file.path(),
        tier,
        lease: Lease { bytes: lease },
        used_bytes: lease,
    };
    let is_more = borrow(&lab.rooms().files, &growing, waits);
    (is_more, open.lease_bytes.load(Ordering::Acquire))
}

#[test]
fn no_write_of_the_kernel_fails_for_memory_that_was_lent() {
    let (lab, machine, _handle) = lowered();
    let open = open_of(&lab);
    assert_eq!(borrows(&lab, &open, true), (false, 0), "others may leave");
    let mut lease = 8 * MIB;
    while lease + MIN_EXTENSION_BYTES <= FULL {
        lease += MIN_EXTENSION_BYTES;
        assert_eq!(borrows(&lab, &open, false), (true, lease));
        // The file system below has the room, and keeps it.
        lab.rooms().lifecycle.look_at_memory();
        let slot = lab.rooms().buffer.tiers().get(DRAM).expect("memory");
        let space = slot.tier.space().expect("space");
        assert!(space.total_bytes >= lease, "{space:?} of {lease}");
    }
    let (is_more, last) = borrows(&lab, &open, false);
    assert!(is_more && last <= FULL, "{last}");
    // All that the tier had if nothing were lent: more it would not have found there either.
    assert_eq!(borrows(&lab, &open, false), (false, last));
    machine.available_bytes.store(512 * MIB, Ordering::Relaxed);
    assert_eq!(
        borrows(&lab, &open, true),
        (true, last + MIN_EXTENSION_BYTES)
    );
}

#[test]
fn no_request_fails_for_memory_that_was_lent_where_a_kernel_has_the_file() {
    let (lab, _machine, handle) = lowered();
    let rooms = lab.rooms();
    open_of(&lab).begin_passthrough();
    let more = vec![9; 16 << 20];
    let written = rooms.files.write(handle, 8 * MIB, &more, WriteHow::WAITING);
    assert_eq!(answer(written), Ok(Some(more.len())));
    // A file that is larger than the whole tier has no place in it, lent or not.
    let space = forebay_wire::SpaceChange::Allocate;
    let allocated = rooms
        .files
        .change_space(handle, space, (0, FULL + MIB), true, true);
    assert_eq!(answer(allocated.map(drop)), Err(Errno::ENOSPC));
}
