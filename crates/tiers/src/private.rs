//! Directories that nobody else may enter.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use forebay_types::Errno;

/// Makes a directory that only its owner may enter. One that is there is taken if it is this
/// process's user's own, and is closed to others; anything else is refused.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_enter_is_closed_and_links_are_refused() {
        let folder = tempfile::tempdir().expect("tempdir");
        let dir = folder.path().join("dir");
        make_private(&dir).expect("made");
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("chmod");
        make_private(&dir).expect("there");
        let mode = std::fs::metadata(&dir).expect("there").mode();
        assert_eq!(mode & 0o7777, 0o700);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).expect("symlink");
        make_private(&link).expect_err("a link");
    }
}
