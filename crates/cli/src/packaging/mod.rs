//! `forebay packaging`: what the makers and scripts of packages ask for. Hidden: no user needs it.

mod look;
mod papers;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::exit::{Exit, Failure};
use crate::{out, usage};

/// Writes what belongs into a package, and tells its scripts what is not drained
#[derive(Args)]
#[command(
    hide = true,
    after_help = usage::EXIT_CODES,
    after_long_help = concat!(
        "Examples:\n",
        "  forebay packaging papers DIR 2026-11-27\n",
        "  forebay packaging undrained\n",
        "  forebay packaging mounted\n\n",
        "Exit codes: 0 written, or nothing is left; 1 fatal; 3 data is not on the PFS, or a burst buffer runs."
    )
)]
pub struct PackagingArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Writes manual pages and completions of shells below a directory
    Papers {
        /// Where to; made if missing
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Date in the pages, as 2026-11-27
        #[arg(value_name = "DATE")]
        date: String,
    },
    /// Prints a line for each burst buffer of this machine that runs, or has left data behind
    Undrained {
        /// Folder with the configuration files
        #[arg(long, value_name = "DIR", default_value = "/etc/forebay")]
        config: PathBuf,
        /// Folder whose folders are looked at, too
        #[arg(long, value_name = "DIR", default_value = "/var/lib/forebay")]
        states: PathBuf,
    },
    /// Prints where lines of /etc/fstab have a burst buffer mounted that no unit of ours runs
    Mounted,
    /// Prints the versions of what is on disk: another forebay with the same ones goes on with it
    OnDisk,
}

/// Runs the command.
pub fn run(args: &PackagingArgs, program: clap::Command) -> Result<Exit, Failure> {
    match &args.what {
        What::Papers { dir, date } => papers::write(dir, date, program),
        What::Undrained { config, states } => look::undrained(config, states),
        What::Mounted => look::mounted(),
        What::OnDisk => {
            out::print(&format!(
                "records {}, tiers {}\n",
                forebay_server::RECORDS_VERSION,
                forebay_tiers::TIER_VERSION
            ));
            Ok(Exit::Complete)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    const PRERM: &str = include_str!("../../../../packaging/debian/prerm");
    const PREINST: &str = include_str!("../../../../packaging/debian/preinst");

    /// Runs prerm for a removal, with such programs in the place of the real ones.
    fn removed(place: &std::path::Path, umount: &str) -> (bool, String) {
        use std::os::unix::fs::PermissionsExt;
        let here = place.display();
        let forebay = "case $2 in mounted) cat mounted;; undrained) test -s mounted || { echo '/s: stopped; 1 file'; exit 3; };; esac";
        for (name, text) in [("forebay", forebay), ("umount", umount)] {
            let file = place.join(name);
            std::fs::write(&file, format!("#!/bin/sh\ncd {here}\n{text}\n")).expect("write");
            std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).expect("chmod");
        }
        std::fs::write(place.join("mounted"), "/b  b\n/other\n").expect("write");
        let script = PRERM
            .replace("/usr/bin/forebay", &format!("{here}/forebay"))
            .replace("/run/", &format!("{here}/run/"));
        let mut command = Command::new("sh");
        command.args(["-c", &script, "prerm", "remove"]);
        command.env("PATH", format!("{here}:/usr/bin:/bin"));
        let done = command.env_remove("FOREBAY_KEEP_UNDRAINED").output();
        let done = done.expect("sh");
        (
            done.status.success(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    }

    #[test]
    fn what_a_refused_removal_has_unmounted_is_mounted_again() {
        let place = tempfile::tempdir().expect("tempdir");
        let unmounted = place.path().join("run/forebay/unmounted");
        // With a complaint, as of what stays in memory.
        let (done, said) = removed(place.path(), ": >mounted; echo complains >&2; exit 2");
        assert!(!done && said.contains("complains"), "{said}");
        assert!(said.contains("1 file"), "{said}");
        let known = std::fs::read_to_string(&unmounted).expect("what abort-remove reads");
        assert_eq!(known, "/b  b\n/other\n");
        let (done, said) = removed(place.path(), "echo busy >&2; exit 32");
        assert!(
            !done && said.contains("/b  b (of /etc/fstab) is mounted: busy"),
            "{said}"
        );
        assert!(!unmounted.exists());
    }

    #[test]
    fn what_a_removal_has_kept_is_not_left_to_a_version_of_another_form() {
        let place = tempfile::tempdir().expect("tempdir");
        let kept = place.path().join("kept-on-disk");
        let script = PREINST
            .replace("@ON_DISK@", "records 2, tiers 1")
            .replace("/var/lib/forebay", &place.path().display().to_string());
        let install = |also: &[(&str, &str)]| {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "preinst", "install", "0.1"]);
            command.env_remove("FOREBAY_KEEP_UNDRAINED");
            let done = command.envs(also.iter().copied()).output().expect("sh");
            (
                done.status.success(),
                String::from_utf8_lossy(&done.stderr).into_owned(),
            )
        };
        assert!(install(&[]).0, "nothing is kept");
        let line = "/var/lib/forebay/bb: stopped; 1 file";
        std::fs::write(&kept, format!("records 2, tiers 1\n{line}\n")).expect("write");
        assert!(install(&[]).0, "the same form");
        std::fs::write(&kept, format!("records 1, tiers 1\n{line}\n")).expect("write");
        let (done, said) = install(&[]);
        assert!(!done && said.contains(line), "{said}");
        assert!(install(&[("FOREBAY_KEEP_UNDRAINED", "1")]).0);
    }
}
