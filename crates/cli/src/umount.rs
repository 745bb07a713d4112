//! The helper of umount(8): unmounts, and returns when the process behind the mount has ended.
//!
//! umount(2) returns at once, while a burst buffer still moves memory to flash. Who unmounts before
//! a reboot, as systemd does, must not go on before that is done.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_server::StopSummary;
use forebay_types::format_size;

use crate::control::Daemon;
use crate::dead::in_memory_bytes;
use crate::ended;
use crate::exit::reason;
use crate::mounts::{self, MountEntry};
use crate::out;
use crate::signals::Signals;
use crate::starter::Starter;
use crate::state::{self, Holder};

/// The names under which umount(8) calls this program.
const HELPERS: [&str; 2] = ["umount.forebay", "umount.fuse.forebay"];
/// Time between two looks: a short end is seen at once, a long one not disturbed.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LAST: Duration = Duration::from_millis(250);
/// The first line of progress comes after this time, and one after each such time.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// The kernel tells a process at once that its mount has gone. One that does not stop after this
/// time has its mount elsewhere, too.
const HEARS_WITHIN: Duration = Duration::from_secs(5);
/// While the machine stops, programs that use the mount have this time to end by themselves: many
/// are being ended just then.
const PROGRAMS_END_WITHIN: Duration = Duration::from_secs(10);

/// Exit codes of umount(8).
mod code {
    pub const DONE: u8 = 0;
    pub const USAGE: u8 = 1;
    /// It is unmounted, and not all is as it should be.
    pub const SYSTEM: u8 = 2;
    pub const INTERRUPTED: u8 = 8;
    pub const NOT_UNMOUNTED: u8 = 32;
}

/// Whether umount(8) has called, by the name of the program.
pub fn is_called(program: Option<&OsString>) -> bool {
    let name = program.map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| HELPERS.iter().any(|helper| name == *helper))
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    place: PathBuf,
    /// Out of the tree at once, whoever uses it.
    lazy: bool,
    /// Programs that wait get errors.
    force: bool,
    /// The mount namespace in which the place is; umount(8) calls its helpers in its own.
    namespace: Option<OsString>,
}

/// `DIR [-nlfrv] [-N NAMESPACE] [-t TYPE]`, as umount(8) writes it.
fn order(mut args: impl Iterator<Item = OsString>) -> Result<Order, String> {
    let (mut places, mut lazy, mut force) = (Vec::new(), false, false);
    let mut namespace = None;
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-l" => lazy = true,
            b"-f" => force = true,
            b"-n" | b"-v" | b"-r" => {}
            b"-t" => drop(args.next()),
            b"-N" => namespace = Some(args.next().ok_or("-N takes a namespace")?),
            other if other.starts_with(b"-") => {
                return Err(format!("unknown flag {}", arg.display()));
            }
            _ => places.push(PathBuf::from(arg)),
        }
    }
    match <[PathBuf; 1]>::try_from(places) {
        Ok([place]) => Ok(Order {
            place,
            lazy,
            force,
            namespace,
        }),
        Err(_) => Err("takes a directory; `umount DIR` calls it".into()),
    }
}

/// Does what umount(8) asks for; its exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> u8 {
    let mut order = match order(args) {
        Ok(order) => order,
        Err(why) => {
            out::fail(&format!("umount.forebay: {why}"));
            return code::USAGE;
        }
    };
    if order.namespace.is_some() {
        return unmount_elsewhere(&order);
    }
    let table = match mounts::read() {
        Ok(table) => table,
        Err(error) => {
            out::fail(&format!("the mount table: {}", reason(&error)));
            return code::NOT_UNMOUNTED;
        }
    };
    // `umount -c` leaves links in it.
    order.place = mounts::resolved(&table, &order.place);
    let before = Before::of(&table, &order.place);
    let done = unmount(&order);
    match (done, before) {
        // Who waits for nothing else: programs may use it for long, or the process hangs.
        (code::DONE, Some(before)) if !order.lazy && !order.force => before.wait(),
        (code::NOT_UNMOUNTED, Some(before)) if !order.lazy && machine_stops() => before.end(),
        (done, _) => done,
    }
}

/// In another mount namespace, of which nothing is known here.
fn unmount_elsewhere(order: &Order) -> u8 {
    let done = unmount(order);
    if done == code::DONE && !order.lazy && !order.force {
        out::complain(&format!(
            "{}: unmounted in another mount namespace; its process is not waited for",
            order.place.display()
        ));
    }
    done
}

/// umount(8) without a helper: it knows whom it may let do this, and says why it does not.
fn unmount(order: &Order) -> u8 {
    let mut command = Command::new("umount");
    command.arg("-i");
    // The place is as the mount table has it; of a dead mount nothing can be asked. Others than
    // root may not say so.
    command.args(rustix::process::geteuid().is_root().then_some("-c"));
    command.args(order.lazy.then_some("-l"));
    command.args(order.force.then_some("-f"));
    if let Some(namespace) = &order.namespace {
        command.arg("-N").arg(namespace);
    }
    match command.arg("--").arg(&order.place).status() {
        Ok(status) => match status.code() {
            Some(code) => u8::try_from(code).unwrap_or(code::NOT_UNMOUNTED),
            None => code::NOT_UNMOUNTED,
        },
        Err(error) => {
            out::fail(&format!("umount: {}", reason(&error)));
            code::NOT_UNMOUNTED
        }
    }
}

/// Whether systemd stops or starts anew the machine.
fn machine_stops() -> bool {
    let is_booted = Path::new("/run/systemd/system").exists();
    let asked = || Command::new("systemctl").arg("is-system-running").output();
    match is_booted.then(asked) {
        Some(Ok(said)) => said.stdout.trim_ascii() == b"stopping",
        Some(Err(error)) => {
            out::complain(&format!("systemctl: {}", reason(&error)));
            false
        }
        None => false,
    }
}

/// What was mounted at a place.
struct Before {
    place: PathBuf,
    /// The state folder, or the run folder of a mount of a cluster.
    folder: PathBuf,
    starter: Starter,
    process: Process,
}

/// What serves a mount.
enum Process {
    /// This one.
    Id(u32),
    /// It has died.
    Dead,
    /// Its folder does not tell, for this reason.
    Unknown(String),
}

impl Process {
    fn of(folder: &Path) -> Process {
        match state::holder(folder) {
            Ok(Some(Holder::Process(Some(pid)))) => Process::Id(pid),
            Ok(Some(Holder::Nobody)) => Process::Dead,
            Ok(Some(Holder::Process(None))) => Process::Unknown("it is starting".into()),
            Ok(None) => Process::Unknown("nobody's lock is there".into()),
            Err(error) => Process::Unknown(reason(&error)),
        }
    }
}

impl Before {
    /// `None` if no burst buffer is mounted there.
    fn of(table: &[MountEntry], place: &Path) -> Option<Before> {
        let entry = mounts::topmost(table, place).filter(|entry| entry.is_forebay())?;
        Some(Before {
            place: place.to_path_buf(),
            folder: entry.source.clone(),
            starter: Starter::of(&entry.source),
            process: Process::of(&entry.source),
        })
    }

    /// Programs keep the mount in use while the machine stops. Nobody else ends it in order, and
    /// what is in memory does not survive: it ends as by `forebay down`, and programs get errors.
    fn end(&self) -> u8 {
        let what = self.place.display();
        out::complain(&format!(
            "{what}: the machine stops: programs that use it have {} s to end",
            PROGRAMS_END_WITHIN.as_secs()
        ));
        let begun = Instant::now();
        while begun.elapsed() < PROGRAMS_END_WITHIN {
            match mounts::unmount(&self.place) {
                Ok(()) => return self.wait(),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return self.not_ended(&reason(&error)),
            }
            std::thread::sleep(LOOK_LAST);
        }
        let daemon = match Daemon::try_connect(&self.folder) {
            Ok(Some(daemon)) => daemon,
            Ok(None) => return self.not_ended("it does not answer"),
            Err(failure) => return self.not_ended(&failure.message),
        };
        if let Err(error) = daemon.shutdown(false, 0) {
            return self.not_ended(&daemon.failure(error, "stop it").message);
        }
        out::complain(&format!(
            "{what}: ends now; programs that use it get errors"
        ));
        self.wait()
    }

    fn not_ended(&self, why: &str) -> u8 {
        out::fail(&format!("{}: {why}", self.place.display()));
        code::NOT_UNMOUNTED
    }

    /// Waits until the process has ended. Ctrl-C and SIGTERM end the wait, not the process.
    fn wait(&self) -> u8 {
        let is_elsewhere = |table: Vec<_>| !mounts::of_state(&table, &self.folder).is_empty();
        let is_mounted = mounts::read().is_ok_and(is_elsewhere);
        let pid = match &self.process {
            Process::Dead => return self.tell_of_dead(),
            // This was a bind mount, or there is one: it goes on.
            _ if is_mounted => return code::DONE,
            Process::Unknown(why) => return self.tell_of_unknown(why),
            Process::Id(pid) => *pid,
        };
        let signals = Signals::count().unwrap_or_else(|error| {
            out::complain(&format!("signals: {}", reason(&error)));
            Signals::never()
        });
        let what = self.place.display();
        let (begun, mut said) = (Instant::now(), 0);
        let (mut pause, mut is_sure) = (LOOK_FIRST, false);
        while self.is_served_by(pid) {
            is_sure = is_sure || self.ends();
            if !is_sure && begun.elapsed() >= HEARS_WITHIN {
                out::complain(&format!(
                    "{what}: unmounted here; process {pid} goes on, since it is mounted elsewhere, as in another mount \
                     namespace"
                ));
                return code::DONE;
            }
            let turn = begun.elapsed().as_secs() / SAY_EVERY.as_secs();
            if turn > said {
                said = turn;
                out::complain(&format!("{what}: {}", self.progress(pid)));
            }
            if signals.sleep(pause) {
                out::complain(&format!(
                    "{what}: unmounted, and no longer waited for: {}",
                    self.progress(pid)
                ));
                return code::INTERRUPTED;
            }
            pause = (pause * 2).min(LOOK_LAST);
        }
        match self.starter {
            // Nothing is left with it.
            Starter::Mount(_) => code::DONE,
            _ => self.tell_of_end(pid, ended::read(&self.folder, pid), said > 0),
        }
    }

    fn is_served_by(&self, pid: u32) -> bool {
        // Another `mount` may have begun meanwhile. What cannot be looked at has no process.
        matches!(state::holder(&self.folder), Ok(Some(Holder::Process(Some(now)))) if now == pid)
    }

    /// Whether the process is about to end. A bind mount, or one in another namespace, keeps it.
    fn ends(&self) -> bool {
        if self.starter.is_mount() {
            // It is asked nothing: its server may be away. Elsewhere in this tree it is seen.
            return false;
        }
        match Daemon::try_connect(&self.folder) {
            Ok(Some(daemon)) => daemon.status().map_or(true, |bits| bits.stopping),
            Ok(None) | Err(_) => true,
        }
    }

    fn progress(&self, pid: u32) -> String {
        match in_memory_bytes(&self.folder) {
            0 => format!("process {pid} is still stopping"),
            bytes => format!(
                "process {pid} is still stopping: {} in memory move to flash where there is room",
                format_size(bytes)
            ),
        }
    }

    fn tell_of_dead(&self) -> u8 {
        let bytes = in_memory_bytes(&self.folder);
        if bytes > 0 {
            out::complain(&format!(
                "{}: its burst buffer had died; {} of its data are in memory, lost if this machine restarts: {} goes \
                 on with them",
                self.place.display(),
                format_size(bytes),
                self.starter
            ));
        }
        code::DONE
    }

    /// Nobody is to take that for the end of the process.
    fn tell_of_unknown(&self, why: &str) -> u8 {
        out::fail(&format!(
            "{}: unmounted; whether its process has ended, and memory is on flash, is not known: {}: {why}",
            self.place.display(),
            self.folder.display()
        ));
        code::SYSTEM
    }

    fn tell_of_end(&self, pid: u32, left: Option<StopSummary>, has_waited: bool) -> u8 {
        let what = self.place.display();
        let Some(left) = left else {
            out::fail(&format!(
                "{what}: process {pid} has died before it had stopped; what it has stays with {}; the log says more",
                self.folder.display()
            ));
            return code::SYSTEM;
        };
        let farewell = ended::farewell(what, "stopped", &self.folder, &left);
        // Who is to restart the machine after that must not.
        if left.unflushed_files > 0 || left.in_memory_bytes > 0 {
            out::fail(&farewell);
            return code::SYSTEM;
        }
        if has_waited || !ended::is_drained(&left) {
            out::complain(&farewell);
        }
        code::DONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(line: &str) -> Result<Order, String> {
        order(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_umount_says_is_understood() {
        let plain = |lazy, force| {
            Ok(Order {
                place: "/bb".into(),
                lazy,
                force,
                namespace: None,
            })
        };
        assert_eq!(ordered("/bb"), plain(false, false));
        assert_eq!(ordered("/bb -n -l -v -t fuse.forebay"), plain(true, false));
        let elsewhere = ordered("/bb -N /proc/1/fd/3").expect("understood");
        assert_eq!(elsewhere.namespace, Some("/proc/1/fd/3".into()));
        assert_eq!(ordered("/bb -f -r"), plain(false, true));
        for (line, part) in [
            ("", "a directory"),
            ("/a /b", "a directory"),
            ("/a -z", "unknown flag -z"),
            ("/a -N", "takes a namespace"),
        ] {
            let refused = ordered(line).expect_err(line);
            assert!(refused.contains(part), "{line}: {refused}");
        }
    }

    #[test]
    fn the_program_is_the_helper_by_its_name() {
        let called = |name: &str| is_called(Some(&OsString::from(name)));
        assert!(called("/sbin/umount.fuse.forebay") && called("umount.forebay"));
        assert!(!called("/sbin/mount.forebay") && !called("forebay") && !is_called(None));
    }

    #[test]
    fn what_is_on_top_is_unmounted() {
        let text = b"\
40 22 0:40 / /bb rw - fuse.forebay /var/a rw
41 40 0:41 / /bb rw - fuse.forebay /var/b rw
42 41 0:41 /d /home rw - fuse.forebay /var/b rw
";
        let table = mounts::parse(text);
        let top = mounts::topmost(&table, Path::new("/bb")).expect("one");
        assert_eq!(top.source, Path::new("/var/b"));
        assert!(mounts::topmost(&table, Path::new("/bb/d")).is_none());
    }

    #[test]
    fn an_end_without_a_word_is_no_success() {
        let folder = tempfile::tempdir().expect("tempdir");
        let before = Before {
            place: "/bb".into(),
            folder: folder.path().to_path_buf(),
            starter: Starter::Up,
            process: Process::Id(std::process::id()),
        };
        assert_eq!(before.tell_of_end(1, None, false), code::SYSTEM);
        let left = |unflushed_files, in_memory_bytes| StopSummary {
            undrained_files: 1,
            unflushed_files,
            in_memory_bytes,
            ..StopSummary::default()
        };
        assert_eq!(before.tell_of_end(1, Some(left(0, 0)), false), code::DONE);
        assert_eq!(before.tell_of_end(1, Some(left(1, 0)), false), code::SYSTEM);
        assert_eq!(before.tell_of_end(1, Some(left(0, 1)), false), code::SYSTEM);
        // Nobody has the folder any more.
        assert_eq!(before.wait(), code::SYSTEM);
    }

    #[test]
    fn a_folder_that_does_not_tell_is_no_folder_of_a_dead_process() {
        let folder = tempfile::tempdir().expect("tempdir");
        let waits = |process| {
            let before = Before {
                place: "/bb".into(),
                folder: folder.path().to_path_buf(),
                starter: Starter::Up,
                process,
            };
            before.wait()
        };
        // It was moved away, as with `mv`.
        let process = || Process::of(folder.path());
        assert!(matches!(process(), Process::Unknown(_)));
        assert_eq!(waits(process()), code::SYSTEM);
        let lock = state::Lock::take(folder.path()).expect("lock");
        assert!(matches!(process(), Process::Id(pid) if pid == std::process::id()));
        // It is not read then.
        let other = folder.path().join("other");
        std::fs::hard_link(folder.path().join(state::LOCK), &other).expect("link");
        assert!(matches!(process(), Process::Unknown(_)));
        std::fs::remove_file(other).expect("remove");
        drop(lock);
        while !matches!(process(), Process::Dead) {
            // A child of another test has it until it is another program.
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(waits(process()), code::DONE);
    }
}
