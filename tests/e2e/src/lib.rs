//! End-to-end tests of the real program on real mounts: see `tests/`.
//!
//! `promise_N_*` pin the sentences of `docs/semantics.md`, `bad_input_*` what wrong input gets,
//! `fault_NN_*` rows of the fault matrix, `random_*` compare with a reference model.
