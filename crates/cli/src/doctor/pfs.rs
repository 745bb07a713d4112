//! A directory of the slow file system.

use std::time::Duration;

use forebay_types::Errno;

use super::device::micros;
use super::finding::{Finding, Grade};
use super::trials::{Times, Trials, Tried};
use crate::mounts::MountEntry;

/// A file that takes longer than this to publish: less than twenty a second, one after another.
const SLOW_PUBLICATION: Duration = Duration::from_millis(50);
/// Clocks that differ by less are as good as equal for people who compare times.
const SKEW_MAX_S: f64 = 1.0;
/// File systems take the time of the last tick of the kernel.
const TICK_S: f64 = 0.01;

/// Of which file system it is.
pub fn judge_mount(mount: Option<&MountEntry>) -> Finding {
    let Some(mount) = mount else {
        return Finding::new(
            "file system",
            Grade::Note,
            "not in the mount table",
            "is /proc mounted?",
        );
    };
    let found = format!("{}, mounted on {}", mount.fs_type, mount.point.display());
    if mount.is_forebay() {
        let todo = "name the slow file system behind it";
        return Finding::new(
            "file system",
            Grade::Bad,
            format!("{found}: itself a burst buffer"),
            todo,
        );
    }
    if mount.options.iter().any(|option| option == "ro") {
        let todo = "mount it writable: nothing could be drained to it";
        return Finding::new(
            "file system",
            Grade::Bad,
            format!("{found}, read-only"),
            todo,
        );
    }
    match mount.fs_type.as_str() {
        "tmpfs" | "ramfs" => {
            let todo =
                "fine to try Forebay out; what is drained there goes with the machine's power";
            Finding::new(
                "file system",
                Grade::Note,
                format!("{found}: it is memory"),
                todo,
            )
        }
        _ => Finding::ok("file system", found),
    }
}

fn works(check: &'static str, tried: Tried, todo: &str) -> Finding {
    match tried {
        Ok(()) => Finding::ok(check, "works"),
        Err(error) => Finding::new(
            check,
            Grade::Note,
            format!("does not work: {}", error.message()),
            todo,
        ),
    }
}

/// What was tried.
pub fn judge(trials: &Trials, root: bool) -> Vec<Finding> {
    let mut findings = vec![
        judge_birth(trials.birth),
        works(
            "unnamed files",
            trials.unnamed.and(trials.named_later),
            "copies get a hidden temporary name until they are whole, and one more change of the directory each",
        ),
        works(
            "RENAME_NOREPLACE",
            trials.no_replace,
            "`mv -n` and programs that rename so get an error on what is on the PFS",
        ),
        works(
            "RENAME_EXCHANGE",
            trials.exchange,
            "programs that exchange two names get an error on what is on the PFS",
        ),
        works(
            "hard links",
            trials.hard_link,
            "`ln` fails in the mount as it does there",
        ),
        works(
            "symbolic links",
            trials.symlink,
            "`ln -s` fails in the mount as it does there",
        ),
        works(
            "extended attributes",
            trials.xattr,
            "attributes of files are lost at the drain, with a warning; the mark by which the PFS is known again cannot be set",
        ),
        judge_names(trials),
        judge_case(trials.folds_case),
        judge_times(trials.kept_ns),
    ];
    findings.extend(judge_owner(trials, root));
    findings.extend(
        trials
            .clock
            .ok()
            .map(|(skew, took)| judge_clock(skew, took)),
    );
    findings
}

fn judge_birth(birth: Result<bool, Errno>) -> Finding {
    match birth {
        Ok(true) => Finding::ok("birth times", "told by statx"),
        Ok(false) => Finding::new(
            "birth times",
            Grade::Note,
            "not told by statx",
            "directories are known by inode number alone: do not replace directories on the PFS behind a stopped burst buffer",
        ),
        Err(error) => Finding::new(
            "birth times",
            Grade::Note,
            format!("not known: {}", error.message()),
            "",
        ),
    }
}

fn judge_names(trials: &Trials) -> Finding {
    let (what, error) = match (trials.long_name, trials.odd_name) {
        (Ok(()), Ok(())) => {
            return Finding::ok("names", "255 bytes, and bytes that are not UTF-8, work");
        }
        (Err(error), _) => ("a name of 255 bytes", error),
        (_, Err(error)) => ("a name that is not UTF-8", error),
    };
    let todo = "files with such names cannot be drained: do not use them in the mount";
    Finding::new(
        "names",
        Grade::Note,
        format!("{what} is refused: {}", error.message()),
        todo,
    )
}

fn judge_case(folds: Result<bool, Errno>) -> Finding {
    match folds {
        Ok(false) => Finding::ok("case of names", "`Name` and `NAME` are two files"),
        Ok(true) => Finding::new(
            "case of names",
            Grade::Bad,
            "`Name` and `NAME` are one file",
            "use a directory that tells them apart: the burst buffer does, so two files there would become one at the drain",
        ),
        Err(error) => Finding::new(
            "case of names",
            Grade::Note,
            format!("not known: {}", error.message()),
            "",
        ),
    }
}

fn judge_times(kept_ns: Result<i64, Errno>) -> Finding {
    let (grain, ns) = match kept_ns {
        Ok(ns) if ns % 1_000 != 0 => {
            return Finding::ok("times of files", "kept to the nanosecond").with("kept_ns", ns);
        }
        Ok(0) => ("full seconds or more", 0),
        Ok(ns) => ("parts of a second, not to the nanosecond", ns),
        Err(error) => {
            let todo = "files get the time of their drain there";
            let found = format!("cannot be set: {}", error.message());
            return Finding::new("times of files", Grade::Note, found, todo);
        }
    };
    let todo = "times of files become coarser at the drain; tools that compare them exactly (make, rsync) may act again";
    Finding::new(
        "times of files",
        Grade::Note,
        format!("kept to {grain}"),
        todo,
    )
    .with("kept_ns", ns)
}

/// As whom root's files are kept there.
fn judge_owner(trials: &Trials, root: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    match trials.owner {
        Ok(0) if root => findings.push(Finding::ok("root", "is root there")),
        Ok(uid) if root => findings.push(Finding::new(
            "root",
            Grade::Note,
            format!("is squashed: what root makes belongs to user {uid}"),
            "files of users drain as their owners; directories that their owner alone may write to must let that owner in. \
             Without no_root_squash root's own files belong to that user",
        )),
        Ok(_) => {}
        Err(error) => findings.push(Finding::new("root", Grade::Note, format!("not known: {}", error.message()), "")),
    }
    match trials.given_away {
        Some(Ok(())) => findings.push(Finding::ok("owners", "a file can be given to another user")),
        Some(Err(error)) => findings.push(Finding::new(
            "owners",
            Grade::Note,
            format!("a file cannot be given to another user: {}", error.message()),
            "where a file can neither be made as its owner nor given to its owner, it belongs to whom the PFS chooses, without set-id bits",
        )),
        None => {}
    }
    findings
}

/// What the PFS gives as time, against the clock here. The file was made within `took`, so the
/// difference is known no better than that.
fn judge_clock(skew_s: f64, took: Duration) -> Finding {
    let error = took.as_secs_f64() + TICK_S;
    let off = skew_s < -SKEW_MAX_S || skew_s > error + SKEW_MAX_S;
    let found = format!(
        "a new file's time differs from the clock here by {skew_s:.3} s (known to {error:.3} s)"
    );
    let finding = match off {
        false => Finding::ok("clock of the PFS", found),
        true => Finding::new(
            "clock of the PFS",
            Grade::Note,
            found,
            "synchronise both (chrony, ntpd): files that are made in the mount and on the PFS get the times of two clocks",
        ),
    };
    finding.with("skew_s", skew_s).with("known_to_s", error)
}

/// How long a small file takes to be whole there.
pub fn judge_publications(times: &Times) -> Finding {
    let (low, high) = times.range();
    let median = times.median();
    let rate = 1.0 / median.as_secs_f64().max(1e-9);
    let found = format!(
        "create, write 4 KiB, fsync, rename and fsync of the directory: median {} ({} to {}, {} times)",
        micros(median),
        micros(low),
        micros(high),
        times.count()
    );
    let finding = match median >= SLOW_PUBLICATION {
        false => Finding::ok("small files", found),
        true => {
            let todo = format!(
                "one after another that is {rate:.0} files/s: many small files drain slowly, large ones as fast as the PFS takes bytes"
            );
            Finding::new("small files", Grade::Slow, found, todo)
        }
    };
    finding
        .with("median_s", median.as_secs_f64())
        .with("min_s", low.as_secs_f64())
        .with("max_s", high.as_secs_f64())
        .with("files", times.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_well() -> Trials {
        Trials {
            unnamed: Ok(()),
            named_later: Ok(()),
            no_replace: Ok(()),
            exchange: Ok(()),
            hard_link: Ok(()),
            symlink: Ok(()),
            xattr: Ok(()),
            fallocate: Ok(()),
            punch: Ok(()),
            direct: Ok(()),
            lease: Ok(()),
            odd_name: Ok(()),
            long_name: Ok(()),
            folds_case: Ok(false),
            birth: Ok(true),
            kept_ns: Ok(123_456_789),
            owner: Ok(0),
            given_away: Some(Ok(())),
            clock: Ok((0.001, Duration::from_millis(2))),
        }
    }

    fn grade_of(trials: &Trials, check: &str) -> Grade {
        let findings = judge(trials, true);
        let found = findings.iter().find(|one| one.check == check);
        found
            .unwrap_or_else(|| panic!("{check}: {findings:?}"))
            .grade
    }

    #[test]
    fn a_file_system_that_can_do_all_has_no_findings_to_act_on() {
        for one in judge(&all_well(), true) {
            assert_eq!((one.grade, one.todo.as_str()), (Grade::Ok, ""), "{one:?}");
        }
    }

    #[test]
    fn each_lack_is_found() {
        let no = Err(Errno::EOPNOTSUPP);
        let change = |change: &dyn Fn(&mut Trials)| {
            let mut trials = all_well();
            change(&mut trials);
            trials
        };
        for (check, trials) in [
            ("unnamed files", change(&|t| t.unnamed = no)),
            ("unnamed files", change(&|t| t.named_later = no)),
            ("RENAME_NOREPLACE", change(&|t| t.no_replace = no)),
            ("RENAME_EXCHANGE", change(&|t| t.exchange = no)),
            ("hard links", change(&|t| t.hard_link = no)),
            ("symbolic links", change(&|t| t.symlink = no)),
            ("extended attributes", change(&|t| t.xattr = no)),
            ("names", change(&|t| t.odd_name = no)),
            ("names", change(&|t| t.long_name = no)),
            ("birth times", change(&|t| t.birth = Ok(false))),
            ("times of files", change(&|t| t.kept_ns = Ok(0))),
            ("times of files", change(&|t| t.kept_ns = Ok(123_000_000))),
            ("root", change(&|t| t.owner = Ok(65534))),
            ("owners", change(&|t| t.given_away = Some(no))),
            (
                "clock of the PFS",
                change(&|t| t.clock = Ok((-7.0, Duration::ZERO))),
            ),
        ] {
            assert_eq!(grade_of(&trials, check), Grade::Note, "{check}");
        }
        assert_eq!(
            grade_of(&change(&|t| t.folds_case = Ok(true)), "case of names"),
            Grade::Bad
        );
    }

    #[test]
    fn a_slow_answer_is_no_wrong_clock() {
        assert_eq!(judge_clock(9.0, Duration::from_secs(10)).grade, Grade::Ok);
        assert_eq!(
            judge_clock(12.0, Duration::from_secs(10)).grade,
            Grade::Note
        );
    }

    #[test]
    fn small_files_are_slow_from_fifty_milliseconds() {
        let of = |ms| Times::of(vec![Duration::from_millis(ms); 3]).expect("some");
        assert_eq!(judge_publications(&of(5)).grade, Grade::Ok);
        let slow = judge_publications(&of(100));
        assert_eq!(slow.grade, Grade::Slow);
        assert!(slow.todo.contains("10 files/s"), "{}", slow.todo);
    }
}
