//! Small files of the state folder beside the records. What has their names may be anything, as
//! anybody may have put it there: no link is followed, and no pipe waited for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// What is in one, up to `bytes_max`; `None` if there is none.
pub(super) fn read_small(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let opened = OpenOptions::new().read(true).custom_flags(FLAGS).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut content = Vec::new();
    file.take(bytes_max).read_to_end(&mut content)?;
    Ok(Some(content))
}

/// An empty one for the server's user only, made if there is none.
pub(super) fn create_small(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(FLAGS).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_is_followed_and_no_more_is_read_than_asked_for() {
        let folder = tempfile::tempdir().expect("tempdir");
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        assert_eq!(read_small(&file, 4).expect("none"), None);
        std::fs::write(&file, "content").expect("written");
        let read = read_small(&file, 4).expect("read");
        assert_eq!(read.as_deref(), Some(&b"cont"[..]));
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        read_small(&link, 4).expect_err("a link was followed");
        create_small(&link).expect_err("a link was followed");
        drop(create_small(&file).expect("made empty"));
        let read = read_small(&file, 4).expect("read");
        assert_eq!(read.as_deref(), Some(&b""[..]));
    }
}
