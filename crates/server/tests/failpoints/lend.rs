//! Memory that is given back.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_server::{Lending, LendingSetting, MemoryNow, MemorySource, MemoryWay, Settings};
use forebay_types::Errno;
use forebay_wire::control::Control;

use crate::common::{PATIENCE, Running};

/// A machine on which nothing else runs.
struct Idle;

impl MemorySource for Idle {
    fn look(&self) -> io::Result<MemoryNow> {
        Ok(MemoryNow {
            machine_bytes: 64 << 20,
            total_bytes: 64 << 20,
            available_bytes: 60 << 20,
            ..MemoryNow::default()
        })
    }
}

/// Up to 16 MiB of memory.
pub fn borrow(settings: &mut Settings) {
    settings.dram_bytes = Some(16 << 20);
    settings.lending = Some(LendingSetting {
        bounds: Lending {
            max_bytes: 16 << 20,
            max_share: 1.0,
            ..Lending::default()
        },
        memory: MemoryWay(Arc::new(Idle)),
    });
}

/// Orders all but the last of it back, and waits until that is done.
pub fn order(server: &Running) -> Result<(), Errno> {
    server.control(Control::Lend {
        bytes: 1 << 30,
        name: "job 1".into(),
    })?;
    let begun = Instant::now();
    loop {
        let lending = server.status().lending.expect("it borrows");
        if lending.owed_bytes == 0 {
            return Ok(());
        }
        assert!(begun.elapsed() < PATIENCE, "{lending:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
