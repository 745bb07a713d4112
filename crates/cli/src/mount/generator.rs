//! The generator of systemd (systemd.generator(7)): gives an unmount of what fstab mounts the time
//! that memory takes to move to flash.
//!
//! systemd ends an unmount after `TimeoutSec=` of the mount's unit, 90 s by default. It is told of
//! nothing that moves, as by `EXTEND_TIMEOUT_USEC` of a service: a mount's unit has no way to say
//! so.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::helper::is_of_cluster;
use crate::exit::{Explain, Failure};
use crate::fstab::{self, Line};
use crate::mounts;

/// What systemd calls this program.
const NAME: &str = "forebay-generator";
/// As long as systemd waits before it forces a reboot (`JobTimeoutSec=` of `reboot.target`).
pub const TIMEOUT: &str = "30min";
/// Whether systemd has called, by the name of the program.
pub fn is_called(program: Option<&OsString>) -> bool {
    let name = program.map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| name == NAME)
}

/// `NORMAL EARLY LATE`: folders for units, of which the first is for what fstab says.
///
/// # Errors
/// The table cannot be read, or the folder not written.
pub fn run(mut args: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let folder = PathBuf::from(args.next().unwrap_or_else(|| "/tmp".into()));
    write(&folder, &fstab::read(&fstab::path())?)
}

fn write(folder: &Path, lines: &[Line]) -> Result<(), Failure> {
    // As the generator of fstab, which names the unit by what the place is without links.
    let table = mounts::read().unwrap_or_default();
    // A mount of a cluster has nothing in memory. A file that cannot be read yet, as on a file
    // system that is mounted later, may be one of this node alone.
    for line in lines.iter().filter(|line| !is_of_cluster(&line.file)) {
        let unit = unit_of(&mounts::resolved(&table, &line.place));
        let drop_in = folder.join(format!("{unit}.d"));
        let written = std::fs::create_dir_all(&drop_in)
            .and_then(|()| std::fs::write(drop_in.join("forebay.conf"), settings(line)));
        written.explain(drop_in.display(), "")?;
    }
    Ok(())
}

/// What the unit of a line has beside what the line says.
fn settings(line: &Line) -> String {
    let mut options = line.options.iter();
    let time = match options.any(|option| option.starts_with("x-systemd.mount-timeout=")) {
        true => String::new(),
        false => format!("TimeoutSec={TIMEOUT}\n"),
    };
    format!(
        "# By forebay-generator: an unmount ends when memory has moved to flash; \
         x-systemd.mount-timeout= in /etc/fstab says another time.\n\
         # Who has waited too long is ended, and not the process that moves.\n\
         [Mount]\n{time}KillMode=process\n"
    )
}

/// As `systemd-escape --path --suffix=mount` writes it.
pub fn unit_of(place: &Path) -> String {
    let parts: Vec<&[u8]> = place
        .as_os_str()
        .as_bytes()
        .split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    let mut name = String::new();
    for (at, &byte) in parts.join(&b'/').iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name.push_str("\\x2e"),
            b'.' | b'_' | b':' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                name.push(char::from(byte));
            }
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    if name.is_empty() {
        name.push('-');
    }
    name + ".mount"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_as_systemd_does() {
        for (place, unit) in [
            ("/bb", "bb.mount"),
            ("/", "-.mount"),
            ("//srv/./b-b/", "srv-b\\x2db.mount"),
            ("/.b/.c d", "\\x2eb-.c\\x20d.mount"),
            ("/b\u{e4}", "b\\xc3\\xa4.mount"),
        ] {
            assert_eq!(unit_of(Path::new(place)), unit);
        }
    }

    #[test]
    fn units_are_those_of_the_generator_of_fstab() {
        let folder = tempfile::tempdir().expect("tempdir");
        let base = folder.path().canonicalize().expect("canonical");
        std::fs::create_dir_all(base.join("real/bb")).expect("mkdir");
        std::os::unix::fs::symlink("real/bb", base.join("link")).expect("symlink");
        std::fs::write(base.join("alone.toml"), "pfs = '/scratch'").expect("write");
        std::fs::write(base.join("cl.toml"), "[cluster]\nname = 'c'").expect("write");
        let line = |file: &str, place: &str| Line {
            file: base.join(file),
            place: base.join(place),
            options: Vec::new(),
        };
        let written = |line: Line, place: &str| {
            let units = base.join("units");
            assert!(write(&units, &[line]).is_ok());
            let drop_in = format!("{}.d/forebay.conf", unit_of(&base.join(place)));
            let is_there = units.join(drop_in).exists();
            drop(std::fs::remove_dir_all(units));
            is_there
        };
        assert!(written(line("alone.toml", "real/bb"), "real/bb"));
        assert!(written(line("alone.toml", "link"), "real/bb"));
        // It may be on what is not mounted yet.
        assert!(written(line("none.toml", "bb"), "bb"));
        assert!(!written(line("cl.toml", "bb"), "bb"));
    }

    #[test]
    fn a_line_says_its_time_or_has_a_long_one() {
        let folder = tempfile::tempdir().expect("tempdir");
        let of = |options: &[&str]| {
            settings(&Line {
                file: folder.path().join("bb.toml"),
                place: "/bb".into(),
                options: options.iter().map(|&option| option.into()).collect(),
            })
        };
        let text = of(&["_netdev", "nofail"]);
        assert!(
            text.ends_with("[Mount]\nTimeoutSec=30min\nKillMode=process\n"),
            "{text}"
        );
        let text = of(&["nofail", "x-systemd.mount-timeout=5min"]);
        assert!(text.ends_with("[Mount]\nKillMode=process\n"), "{text}");
    }
}
