//! What is learned of the applications, and the limits and turns that follow from it.

pub(crate) mod block_io;
pub(crate) mod calibrate;
pub(crate) mod dedicated;
pub(crate) mod engine;
pub(crate) mod learning;
pub(crate) mod leaving;
