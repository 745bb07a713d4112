//! Lines of fstab(5) that mount burst buffers.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::exit::{Explain, Failure};
use crate::mounts::unescape;

/// The types of our lines.
const TYPES: [&[u8]; 2] = [b"forebay", b"fuse.forebay"];

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The file of `forebay up`, or of a cluster.
    pub file: PathBuf,
    /// Where it is mounted.
    pub place: PathBuf,
    /// Options, in their order.
    pub options: Vec<String>,
}

/// Where systemd reads the table, too.
pub fn path() -> PathBuf {
    let named = std::env::var_os("SYSTEMD_FSTAB").filter(|name| !name.is_empty());
    named.unwrap_or_else(|| OsString::from("/etc/fstab")).into()
}

/// The lines of a table; none if there is no table.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => Ok(parse(&text.explain(path.display(), "")?)),
    }
}

fn parse(text: &[u8]) -> Vec<Line> {
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Line> {
    let mut fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    let file = fields.next().filter(|field| !field.starts_with(b"#"))?;
    let place = fields.next()?;
    let is_ours = TYPES.contains(&fields.next()?);
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default());
    is_ours.then(|| Line {
        file: unescape(file),
        place: unescape(place),
        options: options.split(',').map(str::to_string).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_burst_buffers_are_found() {
        let text = b"\
# /c.toml /a forebay defaults 0 0
/c.toml /b\\040b forebay _netdev,nofail 0 0

/c.toml\t/c  fuse.forebay
/dev/sda1 / ext4 defaults 0 0
/c.toml /d
";
        let line = |place: &str, options: &[&str]| Line {
            file: "/c.toml".into(),
            place: place.into(),
            options: options.iter().map(|&option| option.into()).collect(),
        };
        let wanted = [line("/b b", &["_netdev", "nofail"]), line("/c", &[""])];
        assert_eq!(parse(text), wanted);
        let folder = tempfile::tempdir().expect("tempdir");
        assert!(read(&folder.path().join("fstab")).is_ok_and(|lines| lines.is_empty()));
    }
}
