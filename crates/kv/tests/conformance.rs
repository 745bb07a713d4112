//! The conformance suite on every engine.

use std::cell::Cell;

use forebay_kv::conformance::check_all;
use forebay_kv::failing::Failing;
use forebay_kv::memory::Memory;
use forebay_kv::open_default;

#[test]
fn memory_conforms() {
    check_all(&|| Box::new(Memory::new()));
}

#[test]
fn failing_without_faults_conforms() {
    check_all(&|| Box::new(Failing::new(Memory::new())));
}

#[test]
fn the_embedded_engine_conforms() {
    let parent = tempfile::tempdir().expect("a temporary directory");
    let made = Cell::new(0);
    check_all(&|| {
        made.set(made.get() + 1);
        open_default(&parent.path().join(made.get().to_string())).expect("an empty store opens")
    });
}
