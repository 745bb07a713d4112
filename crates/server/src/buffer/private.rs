//! Directories that nobody else may enter.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use forebay_types::Errno;

/// Makes a directory that only its owner may enter. One that is there is taken if it is this process's user's own, and is closed to
/// others; anything else is refused.
pub fn make_private(dir: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
    let found = options.open(dir)?;
    let meta = found.metadata()?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Errno::EPERM.into());
    }
    if meta.mode() & 0o077 != 0 {
        found.set_permissions(PermissionsExt::from_mode(0o700))?;
    }
    Ok(())
}
