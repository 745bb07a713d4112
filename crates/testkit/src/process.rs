//! Running programs with a limit in time.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a program that has ended said.
#[derive(Debug)]
pub struct Output {
    /// Exit code; of a program ended by a signal 128 and the signal, as the shell has it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Panics unless the exit code is this one.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Output {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Panics unless the exit code is 0.
    #[track_caller]
    pub fn ok(self) -> Output {
        self.expect_code(0)
    }
}

/// Runs a program to its end. If it takes longer than `limit` it is killed, and the test fails.
#[track_caller]
pub fn run_bounded(command: &mut Command, limit: Duration) -> Output {
    let stdout = tempfile::tempfile().expect("temporary file");
    let stderr = tempfile::tempfile().expect("temporary file");
    let duplicate = |file: &File| file.try_clone().expect("descriptor");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(duplicate(&stdout))
        .stderr(duplicate(&stderr))
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = wait_bounded(&mut child, limit);
    let (stdout, stderr) = (text(stdout), text(stderr));
    let Some(status) = status else {
        panic!("{command:?} did not end within {limit:?}; it said {stdout:?} and {stderr:?}");
    };
    Output {
        code: exit_code(status),
        stdout,
        stderr,
    }
}

/// Waits for a child's end; kills it and gives `None` when the time is up.
pub fn wait_bounded(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return Some(status);
        }
        if begun.elapsed() >= limit {
            child.kill().expect("kill");
            child.wait().expect("wait");
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Exit code as the shell has it.
pub fn exit_code(status: ExitStatus) -> i32 {
    let signal = || 128 + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(signal)
}

/// Does something on a thread that is another user, without further groups. Needs root.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        // SAFETY: takes no pointer that is read (there are no groups) and changes this thread
        // alone, which the C library's setgroups(3) would not.
        let groups = unsafe { libc::syscall(libc::SYS_setgroups, 0usize, std::ptr::null::<u32>()) };
        assert_eq!(groups, 0, "{}", std::io::Error::last_os_error());
        for call in [libc::SYS_setresgid, libc::SYS_setresuid] {
            // SAFETY: takes integers, touches no memory of ours; changes this thread alone.
            let done = unsafe { libc::syscall(call, uid, uid, uid) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
    };
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            become_user();
            work()
        });
        done.join().expect("as another user")
    })
}

fn text(mut file: File) -> String {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind().expect("rewind");
    file.read_to_end(&mut bytes).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}
