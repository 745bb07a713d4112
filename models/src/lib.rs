//! Runs the protocols of threads that no lock covers as a whole in every order of their steps that
//! the memory model allows (loom), up to a number of preemptions. The tests compile the product's
//! own source files, with loom's atomics and locks under the names of `sync`.
