//! End-to-end tests on real mounts: see `tests/`.
