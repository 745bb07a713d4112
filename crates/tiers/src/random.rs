//! Numbers that nobody can guess.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of the kernel's, which nobody draws a second time. Errors: those of the device.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
