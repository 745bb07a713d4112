//! Random operations on every engine, against an ordered map.

#[path = "model/steps.rs"]
mod steps;

use forebay_kv::failing::Failing;
use forebay_kv::memory::Memory;
use forebay_kv::open_default;
use proptest::prelude::*;
use steps::{check, step};

proptest! {
    #[test]
    fn memory_is_an_ordered_map(steps in prop::collection::vec(step(), 0..60)) {
        check(&steps, Box::new(Memory::new()), &mut |store| store)?;
    }

    #[test]
    fn failing_without_faults_is_an_ordered_map(steps in prop::collection::vec(step(), 0..60)) {
        check(&steps, Box::new(Failing::new(Memory::new())), &mut |store| store)?;
    }
}

proptest! {
    // Opening and flushing take milliseconds.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_embedded_engine_is_an_ordered_map(steps in prop::collection::vec(step(), 0..60)) {
        let dir = tempfile::tempdir()?;
        let open = || open_default(dir.path()).expect("the store opens");
        check(&steps, open(), &mut |store| {
            drop(store);
            open()
        })?;
    }
}
