//! What mount(8) says to its helpers, as the command line of `forebay mount`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Options of mount(8) and fstab(5) that are not for a helper, or are as they are always.
const PASSED_OVER: [&str; 17] = [
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "nofail", "_netdev", "nodev",
    "nosuid", "noatime", "relatime", "exec", "async", "dev", "suid",
];

fn refuse(what: impl std::fmt::Display) -> Failure {
    Failure::fatal(format!("mount.forebay: {what}"))
}

/// `SPEC DIR [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`, where SPEC is the cluster's file, or
/// that of a burst buffer of this node alone: SPEC, DIR, and the command line. `None` if nothing is
/// to be done (`-f`).
pub fn translate(
    args: impl Iterator<Item = OsString>,
) -> Result<Option<(PathBuf, PathBuf, Vec<OsString>)>, Failure> {
    let mut args = args.peekable();
    let (mut places, mut options, mut fake) = (Vec::new(), Vec::new(), false);
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-f" => fake = true,
            b"-s" | b"-n" | b"-v" => {}
            b"-t" => drop(args.next()),
            // mount(8) calls its helpers in its own namespace, and says which one is meant.
            b"-N" => {
                return Err(refuse(
                    "mounts in its own mount namespace; `nsenter --mount=FILE mount ...` mounts in another",
                ));
            }
            b"-o" => {
                let given = args.next().ok_or_else(|| refuse("-o takes options"))?;
                let given = given.into_string();
                let given = given.map_err(|_| refuse("options are not UTF-8"))?;
                options.extend(given.split(',').map(str::to_string));
            }
            other if other.starts_with(b"-") => {
                return Err(refuse(format_args!("unknown flag {}", arg.display())));
            }
            _ => places.push(arg),
        }
    }
    let [spec, dir] = places.try_into().map_err(|_| {
        refuse("takes a configuration file and a directory, as `mount -t forebay FILE DIR`")
    })?;
    let is_alone = is_alone(Path::new(&spec));
    let file = PathBuf::from(&spec);
    let place = PathBuf::from(&dir);
    let mut line: Vec<OsString> = match is_alone {
        true => vec!["up".into(), "--config".into(), spec, "--mount".into(), dir],
        false => vec!["mount".into(), "--config".into(), spec, dir],
    };
    for option in options.iter().filter(|option| !option.is_empty()) {
        line.extend(flag(option, is_alone)?);
    }
    line.push("--detach".into());
    Ok((!fake).then_some((file, place, line)))
}

/// Whether a file is that of `forebay up`. One that cannot be read is left to the command.
pub fn is_alone(file: &Path) -> bool {
    let table = table_of(file);
    table.contains_key("pfs") && !table.contains_key("cluster")
}

/// Whether a file is that of a cluster for sure.
pub fn is_of_cluster(file: &Path) -> bool {
    table_of(file).contains_key("cluster")
}

/// The state folder that a file of `forebay up` names.
pub fn state_of(file: &Path) -> Option<PathBuf> {
    let table = table_of(file);
    let state = table.get("state")?.as_str()?;
    let folder = std::path::absolute(file).ok()?;
    Some(folder.parent()?.join(state))
}

fn table_of(file: &Path) -> toml::Table {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    toml::from_str(&text).unwrap_or_default()
}

fn flag(option: &str, is_alone: bool) -> Result<Vec<OsString>, Failure> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    // systemd's own, and comments.
    if PASSED_OVER.contains(&name) || name.starts_with("x-") || name == "comment" {
        return Ok(Vec::new());
    }
    match name {
        "allow_other" | "no_allow_other" => {
            Ok(vec![format!("--{}", name.replace('_', "-")).into()])
        }
        _ if is_alone && name != "ro" => Err(refuse(format_args!(
            "unknown option '{option}'; without a cluster known are allow_other, no_allow_other; other \
             settings are the file's"
        ))),
        "connections" | "distribution" | "soft" => {
            Ok(vec![format!("--{name}").into(), value.into()])
        }
        "encrypt" | "no_local" => Ok(vec![format!("--{}", name.replace('_', "-")).into()]),
        "ro" => Err(refuse("a burst buffer cannot be mounted read-only")),
        _ => Err(refuse(format_args!(
            "unknown option '{option}'; known are connections=K, distribution=NAME, soft=DUR, encrypt, \
             allow_other, no_allow_other, no_local"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<Option<String>, String> {
        let args = line.split(' ').map(OsString::from);
        let line = translate(args).map_err(|failure| failure.message)?;
        Ok(line.map(|(_, _, line)| line.join(&OsString::from(" ")).into_string().expect("text")))
    }

    #[test]
    fn what_mount_says_becomes_a_command_line() {
        let line = translated("/c.toml /bb -v -o rw,_netdev,connections=8,soft=60s,x-systemd.y");
        let wanted = "mount --config /c.toml /bb --connections 8 --soft 60s --detach";
        assert_eq!(line, Ok(Some(wanted.into())));
        assert_eq!(translated("/c.toml /bb -f"), Ok(None));
        for (line, part) in [
            ("/c.toml", "a directory"),
            ("/c.toml /bb -o ro", "read-only"),
            ("/c.toml /bb -o fast", "unknown option 'fast'; known are"),
            ("/c.toml /bb -o", "takes options"),
            ("/c.toml /bb -z", "unknown flag -z"),
            ("/c.toml /bb -N /proc/1/fd/3", "nsenter"),
        ] {
            let refused = translated(line).expect_err(line);
            assert!(refused.contains(part), "{line}: {refused}");
        }
    }

    #[test]
    fn a_file_without_a_cluster_is_that_of_one_node() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("bb.toml");
        std::fs::write(&file, "pfs = '/scratch'").expect("write");
        let file = file.display();
        let line = translated(&format!("{file} /bb -o rw,nofail,no_allow_other"));
        let wanted = format!("up --config {file} --mount /bb --no-allow-other --detach");
        assert_eq!(line, Ok(Some(wanted)));
        for (option, part) in [("connections=8", "without a cluster"), ("ro", "read-only")] {
            let refused = translated(&format!("{file} /bb -o {option}")).expect_err(option);
            assert!(refused.contains(part), "{option}: {refused}");
        }
    }
}
