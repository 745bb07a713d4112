//! Files that are whole or not there.

use std::fs;
use std::path::Path;

use crate::exit::{Explain, Failure};

/// Writes a file under another name, and renames it.
pub fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // The error that matters is the one above.
        let _ = fs::remove_file(&partial);
    }
    written.explain(path.display(), "")
}
