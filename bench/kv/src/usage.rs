//! What a store costs: memory of this process, and blocks on disk.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Anonymous memory: what the engine allocated.
    pub anonymous_kib: u64,
    /// All resident memory, with the pages of mapped files.
    pub resident_kib: u64,
}

/// Reads the memory of this process.
pub fn memory() -> io::Result<Memory> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line
            .and_then(|line| line.split_whitespace().nth(1))
            .and_then(|kib| kib.parse().ok());
        number.ok_or_else(|| io::Error::other(format!("no {name} in /proc/self/status")))
    };
    Ok(Memory {
        anonymous_kib: field("RssAnon:")?,
        resident_kib: field("VmRSS:")?,
    })
}

/// Kibibytes of blocks allocated below `dir`.
pub fn disk_kib(dir: &Path) -> io::Result<u64> {
    let mut kib = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => kib += disk_kib(&entry.path())?,
            Ok(metadata) => kib += metadata.blocks() / 2,
            // Removed by the engine between the listing and now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(kib)
}
