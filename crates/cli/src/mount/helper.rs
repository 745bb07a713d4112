//! What mount(8) says to its helpers, as the command line of `forebay mount`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::exit::Failure;

/// Options of mount(8) and fstab(5) that are not for a helper, or are as they are always.
const PASSED_OVER: [&str; 17] = [
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "nofail", "_netdev", "nodev",
    "nosuid", "noatime", "relatime", "exec", "async", "dev", "suid",
];

fn refuse(what: impl std::fmt::Display) -> Failure {
    Failure::fatal(format!("mount.forebay: {what}"))
}

/// `SPEC DIR [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`, where SPEC is the cluster's file.
/// `None` if nothing is to be done (`-f`).
pub fn translate(args: impl Iterator<Item = OsString>) -> Result<Option<Vec<OsString>>, Failure> {
    let mut args = args.peekable();
    let (mut places, mut options, mut fake) = (Vec::new(), Vec::new(), false);
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-f" => fake = true,
            b"-s" | b"-n" | b"-v" => {}
            b"-t" | b"-N" => drop(args.next()),
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
        refuse("takes the cluster's file and a directory, as `mount -t forebay FILE DIR`")
    })?;
    let mut line: Vec<OsString> = vec!["mount".into(), "--config".into(), spec, dir];
    for option in options.iter().filter(|option| !option.is_empty()) {
        line.extend(flag(option)?);
    }
    line.push("--detach".into());
    Ok((!fake).then_some(line))
}

fn flag(option: &str) -> Result<Vec<OsString>, Failure> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    // systemd's own, and comments.
    if PASSED_OVER.contains(&name) || name.starts_with("x-") || name == "comment" {
        return Ok(Vec::new());
    }
    match name {
        "connections" | "distribution" | "soft" => {
            Ok(vec![format!("--{name}").into(), value.into()])
        }
        "encrypt" | "allow_other" | "no_allow_other" | "no_local" => {
            Ok(vec![format!("--{}", name.replace('_', "-")).into()])
        }
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
        Ok(line.map(|line| line.join(&OsString::from(" ")).into_string().expect("text")))
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
        ] {
            let refused = translated(line).expect_err(line);
            assert!(refused.contains(part), "{line}: {refused}");
        }
    }
}
