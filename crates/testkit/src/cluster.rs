//! A burst buffer of its own for one test: folders, the serving process, its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::fusepfs::{BEHIND, FusePfs};
use crate::loopfs::LoopFs;
use crate::process::{Output, exit_code, run_bounded, wait_bounded};
use crate::program::{bare_command, limited_command};
use crate::random::is_root;
use crate::wait::{LONG, wait_until};
use crate::watchdog::{Slot, Watchdog, locked, watch};

/// Lines of the log that a failed test shows.
const LOG_LINES: usize = 30;

/// What a burst buffer is started with.
pub struct Builder {
    dram: Option<String>,
    ssd: Option<String>,
    flags: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    config: String,
    loop_pfs_bytes: Option<u64>,
    backed_bytes: Option<u64>,
    disks: Vec<(&'static str, &'static str, u64)>,
    /// Of the disk of this name.
    backed_disk: Option<(&'static str, u64)>,
    fuse_pfs: bool,
    squash: Option<u32>,
    descriptors: Option<u64>,
}

impl Builder {
    /// Size of the memory tier; empty for none. 64 MiB unless told.
    pub fn dram(mut self, size: &str) -> Builder {
        self.dram = Some(size.to_string()).filter(|size| !size.is_empty());
        self
    }

    /// Adds a flash directory of this size.
    pub fn ssd(mut self, size: &str) -> Builder {
        self.ssd = Some(size.to_string());
        self
    }

    /// Adds a flag of `up`.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Builder {
        self.flags.push(flag.into());
        self
    }

    /// Adds a variable to the environment of the daemon.
    pub fn environment(mut self, name: &'static str, value: impl Into<OsString>) -> Builder {
        self.environment.push((name, value.into()));
        self
    }

    /// The daemon may have so many descriptors, and cannot change that. Needs root.
    pub fn descriptors(mut self, most: u64) -> Builder {
        self.descriptors = Some(most);
        self
    }

    /// Adds lines to the configuration file.
    pub fn config(mut self, toml: &str) -> Builder {
        self.config.push_str(toml);
        self.config.push('\n');
        self
    }

    /// Nothing drains unless it is told to, or half of the space is undrained.
    pub fn lazy(self) -> Builder {
        self.config("[demotion]\nidle = false\nretry_after = \"100ms\"")
    }

    /// Drains soon after the last write, and tries again soon after an error.
    pub fn eager(self) -> Builder {
        self.config("[demotion]\nidle_after = \"50ms\"\nretry_after = \"100ms\"")
    }

    /// The PFS is a small file system of its own. Needs root.
    pub fn loop_pfs(mut self, size_bytes: u64) -> Builder {
        self.loop_pfs_bytes = Some(size_bytes);
        self
    }

    /// Likewise, on a disk that has less room than it says: see [`LoopFs::thin`].
    pub fn thin_pfs(mut self, size_bytes: u64, backed_bytes: u64) -> Builder {
        self.loop_pfs_bytes = Some(size_bytes);
        self.backed_bytes = Some(backed_bytes);
        self
    }

    /// `ssd` or `state` is a file system of its own, of the kind `ext4` or `xfs`. Needs root.
    pub fn disk(mut self, name: &'static str, kind: &'static str, size_bytes: u64) -> Builder {
        self.disks.push((name, kind, size_bytes));
        self
    }

    /// The same on an `ext4` disk without a journal that has less room than it says: see
    /// [`LoopFs::thin`].
    pub fn thin_disk(mut self, name: &'static str, size_bytes: u64, backed_bytes: u64) -> Builder {
        self.backed_disk = Some((name, backed_bytes));
        self.disk(name, "ext4", size_bytes)
    }

    /// The PFS is a FUSE file system of its own, which can hang. Needs root.
    pub fn fuse_pfs(mut self) -> Builder {
        self.fuse_pfs = true;
        self
    }

    /// Likewise; all that is made there belongs to this user, and cannot be given to another.
    pub fn squashing_pfs(mut self, uid: u32) -> Builder {
        self.squash = Some(uid);
        self.fuse_pfs()
    }

    /// Likewise; what it shows is a disk of its own, whose power can be cut. Needs root.
    pub fn fuse_pfs_on_disk(mut self, size_bytes: u64) -> Builder {
        self.fuse_pfs = true;
        self.loop_pfs_bytes = Some(size_bytes);
        self
    }

    /// Makes the folders and starts nothing.
    pub fn prepare(self) -> Cluster {
        let folder = TempDir::with_prefix("forebay-e2e-").expect("temporary folder");
        let base = std::fs::canonicalize(folder.path()).expect("canonical");
        std::fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).expect("chmod");
        for name in ["pfs", "mnt", "ssd"] {
            std::fs::create_dir(base.join(name)).expect("mkdir");
        }
        let loop_fs = self.loop_pfs_bytes.map(|bytes| {
            let point = base.join(if self.fuse_pfs { BEHIND } else { "pfs" });
            std::fs::create_dir_all(&point).expect("mkdir");
            match self.backed_bytes {
                Some(backed) => LoopFs::thin(&base, &point, bytes, backed),
                None => LoopFs::new(&base, &point, bytes),
            }
        });
        let disks = self.disks.iter().map(|&(name, kind, bytes)| {
            std::fs::create_dir_all(base.join(name)).expect("mkdir");
            let point = base.join(name);
            let fs = match self.backed_disk {
                Some((thin, backed)) if thin == name => {
                    let fs = LoopFs::thin(&base, &point, bytes, backed);
                    fs.drop_journal();
                    fs
                }
                _ => LoopFs::of_kind(kind, &base, &point, bytes),
            };
            (name, fs)
        });
        let disks = disks.collect();
        let fuse_pfs = self
            .fuse_pfs
            .then(|| FusePfs::with(&base, &base.join("pfs"), self.squash));
        let mut args: Vec<OsString> = vec!["up".into()];
        for (flag, name) in [("--pfs", "pfs"), ("--mount", "mnt"), ("--state", "state")] {
            args.extend([flag.into(), base.join(name).into()]);
        }
        let dram = self.dram.unwrap_or_else(|| "none".into());
        args.extend(["--dram".into(), dram.into()]);
        if let Some(size) = self.ssd {
            let ssd = format!("{}:{size}", base.join("ssd").display());
            args.extend(["--ssd".into(), ssd.into()]);
        }
        if !self.config.is_empty() {
            std::fs::write(base.join("bb.toml"), self.config).expect("configuration");
            args.extend(["--config".into(), base.join("bb.toml").into()]);
        }
        args.extend(self.flags);
        Cluster {
            child: Arc::default(),
            _watchdog: None,
            loop_fs,
            disks,
            fuse_pfs,
            args,
            environment: self.environment,
            descriptors: self.descriptors,
            boots: AtomicU64::new(1),
            base,
            _folder: folder,
        }
    }

    /// Starts it and waits for the mount.
    #[track_caller]
    pub fn up(self) -> Cluster {
        let mut cluster = self.prepare();
        cluster.start();
        cluster
    }
}

/// A burst buffer in folders of its own: `pfs`, `mnt`, `state`, `ssd`. Dropping it ends its own
/// process, takes its mounts away and removes the folders, whatever has happened before.
pub struct Cluster {
    child: Slot,
    _watchdog: Option<Watchdog>,
    // Unmounted before the folder goes.
    loop_fs: Option<LoopFs>,
    disks: Vec<(&'static str, LoopFs)>,
    fuse_pfs: Option<FusePfs>,
    args: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    descriptors: Option<u64>,
    /// How often the machine has had its power on, as far as the daemon is told.
    boots: AtomicU64,
    base: PathBuf,
    _folder: TempDir,
}

impl Cluster {
    /// 64 MiB of memory, no flash.
    pub fn builder() -> Builder {
        Builder {
            dram: Some("64MiB".into()),
            ssd: None,
            flags: Vec::new(),
            environment: Vec::new(),
            config: String::new(),
            loop_pfs_bytes: None,
            backed_bytes: None,
            disks: Vec::new(),
            backed_disk: None,
            fuse_pfs: false,
            squash: None,
            descriptors: None,
        }
    }

    /// The folder that everything is in.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// A path through the mount.
    pub fn mnt(&self, path: impl AsRef<OsStr>) -> PathBuf {
        self.base.join("mnt").join(path.as_ref())
    }

    /// A path on the PFS.
    pub fn pfs(&self, path: impl AsRef<OsStr>) -> PathBuf {
        self.base.join("pfs").join(path.as_ref())
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.base.join("state")
    }

    /// The flash directory.
    pub fn ssd(&self) -> PathBuf {
        self.base.join("ssd")
    }

    /// The PFS as a file system of its own.
    pub fn loop_fs(&self) -> &LoopFs {
        self.loop_fs.as_ref().expect("started with loop_pfs")
    }

    /// `ssd` or `state` as a file system of its own.
    pub fn disk(&self, name: &str) -> &LoopFs {
        let disk = self.disks.iter().find(|(of, _)| *of == name);
        &disk.expect("started with disk").1
    }

    /// Cuts the power of the machine: what the flash and the state folder (those that are disks of
    /// their own) had not on stable storage is gone, and all memory. The PFS is elsewhere. It does
    /// not start again by itself.
    #[track_caller]
    pub fn cut_power(&self) {
        // Nothing goes on between one disk's end and the other's.
        kill_process(self.pid(), Signal::STOP).expect("stop");
        for (_, disk) in &self.disks {
            disk.shut_down();
        }
        self.kill9();
        // Without a memory tier there is nothing to lose.
        let _ = unmount(self.state().join("dram"), UnmountFlags::DETACH);
        let _ = unmount(self.base.join("mnt"), UnmountFlags::DETACH);
        self.power_on();
    }

    fn power_on(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
        for (_, disk) in &self.disks {
            disk.power_on();
        }
    }

    /// The same after [`LoopFs::shut_down`] of one of the disks.
    #[track_caller]
    pub fn cut_power_after_a_dead_disk(&self) {
        self.kill9();
        let _ = unmount(self.base.join("mnt"), UnmountFlags::DETACH);
        let _ = unmount(self.state().join("dram"), UnmountFlags::DETACH);
        self.power_on();
    }

    /// Cuts the power of the PFS's server, with [`Builder::fuse_pfs_on_disk`]; answers with the
    /// folder that has what is left. The PFS is gone then.
    #[track_caller]
    pub fn cut_pfs_power(&mut self) -> PathBuf {
        let disk = self
            .loop_fs
            .as_ref()
            .expect("started with fuse_pfs_on_disk");
        disk.shut_down();
        drop(self.fuse_pfs.take());
        disk.power_on();
        self.base.join(BEHIND)
    }

    /// The PFS as a file system that can hang.
    pub fn fuse_pfs(&self) -> &FusePfs {
        self.fuse_pfs.as_ref().expect("started with fuse_pfs")
    }

    /// The arguments of `up`.
    pub fn up_args(&self) -> &[OsString] {
        &self.args
    }

    /// Starts the daemon in the foreground of a child process and waits until the mount answers.
    #[track_caller]
    pub fn start(&mut self) {
        let log = self.base.join("up.log");
        let file = File::create(&log).expect("log");
        let mut command = match self.descriptors {
            Some(most) => limited_command(most),
            None => bare_command(),
        };
        let child = command
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env(
                "FOREBAY_BOOT_ID",
                format!("boot {}", self.boots.load(Ordering::Relaxed)),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("forebay runs");
        *locked(&self.child) = Some(child);
        self._watchdog = Some(watch(self.child.clone()));
        wait_until("the mount answers", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = self.ended() {
                panic!("up ended with {status}: {text}");
            }
            text.contains(" is up in front of ")
        });
    }

    /// The daemon's exit code, if it has ended.
    pub fn ended(&self) -> Option<i32> {
        let mut child = locked(&self.child);
        let status = child.as_mut()?.try_wait().expect("wait")?;
        Some(exit_code(status))
    }

    /// Waits for the daemon's own end.
    #[track_caller]
    pub fn wait_ended(&self) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(code) = self.ended() {
                return code;
            }
            assert!(begun.elapsed() < LONG, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Process id of the daemon.
    #[track_caller]
    pub fn pid(&self) -> Pid {
        let child = locked(&self.child);
        Pid::from_child(child.as_ref().expect("a daemon runs"))
    }

    /// Whether the kernel writes an open file by itself: whether a write of what is there already
    /// goes on while the daemon is stopped.
    #[track_caller]
    pub fn is_passed_through(&self, file: &File) -> bool {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).expect("read");
        // With the first write the kernel asks whether there are privileges to drop.
        file.write_all_at(&byte, 0).expect("write");
        kill_process(self.pid(), Signal::STOP).expect("stop");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_all_at(&byte, 0));
            let begun = Instant::now();
            while !writer.is_finished() && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let done = writer.is_finished();
            kill_process(self.pid(), Signal::CONT).expect("continue");
            writer.join().expect("writer").expect("write");
            done
        })
    }

    /// Ends the daemon with SIGKILL.
    pub fn kill9(&self) {
        if let Some(mut child) = locked(&self.child).take() {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
    }

    /// Takes away what was in memory only, as a restart of the machine does. After [`Self::kill9`].
    pub fn lose_memory(&self) {
        let flags = UnmountFlags::DETACH;
        unmount(self.state().join("dram"), flags).expect("memory tier");
        // It is dead already; whether it is still there makes no difference.
        let _ = unmount(self.base.join("mnt"), flags);
    }

    /// Starts it again on the same state.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill9();
        self.start();
    }

    /// Runs the program.
    #[track_caller]
    pub fn cli<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        run_bounded(bare_command().args(args).current_dir(&self.base), LONG)
    }

    /// Runs the program with `--state` of this burst buffer.
    #[track_caller]
    pub fn on_state(&self, args: &[&str]) -> Output {
        let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
        args.extend(["--state".into(), self.state().into()]);
        self.cli(&args)
    }

    /// `COMMAND ARGS... PATH` for a path through the mount.
    #[track_caller]
    pub fn on_path(&self, args: &[&str], path: impl AsRef<OsStr>) -> Output {
        let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
        args.push(self.mnt(path).into());
        self.cli(&args)
    }

    /// `status --json`.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.on_state(&["status", "--json"]).ok().json()
    }

    /// Undrained bytes in all tiers.
    #[track_caller]
    pub fn dirty_bytes(&self) -> u64 {
        let status = self.status();
        let tiers = status["tiers"].as_array().expect("tiers").iter();
        tiers
            .map(|tier| tier["dirty_bytes"].as_u64().expect("bytes"))
            .sum()
    }

    /// What `where --json` says of one file.
    #[track_caller]
    pub fn where_is(&self, path: impl AsRef<OsStr>) -> Value {
        let list = self.on_path(&["where", "--json"], path).ok().json();
        list[0].clone()
    }

    /// State of one file: `dirty`, `demoting`, `clean` or `pfs`.
    #[track_caller]
    pub fn where_state(&self, path: impl AsRef<OsStr>) -> String {
        let entry = self.where_is(path);
        entry["state"].as_str().expect("state").to_string()
    }

    /// Waits until a file is in this state.
    #[track_caller]
    pub fn wait_state(&self, path: impl AsRef<OsStr>, state: &str) {
        let path = path.as_ref();
        let what = format!("{} is {state}", path.display());
        wait_until(&what, || self.where_state(path) == state);
    }

    /// Puts a file, or all below a directory, on the PFS and waits for it.
    #[track_caller]
    pub fn drain(&self, path: impl AsRef<OsStr>) {
        self.on_path(&["stage-out", "--wait"], path).ok();
    }

    /// `down` with these flags, which must succeed; the daemon has ended afterwards.
    #[track_caller]
    pub fn down(&self, flags: &[&str]) -> Output {
        let output = self.on_state(&[&["down"], flags].concat()).ok();
        assert_eq!(self.wait_ended(), 0);
        output
    }

    /// The mount table's lines that name this test's folder.
    pub fn mounts(&self) -> Vec<String> {
        let base = self.base.to_str().expect("UTF-8");
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let ours = table.lines().filter(|line| line.contains(base));
        ours.map(str::to_string).collect()
    }

    /// A daemon that detached itself, by its own word, if it is really of this state folder.
    fn detached(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.state().join("forebay.pid")).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        let proc = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
        let line = String::from_utf8_lossy(&std::fs::read(proc).ok()?).into_owned();
        line.contains(self.state().to_str()?).then_some(pid)
    }

    fn clean_up(&self) {
        if let Some(pfs) = &self.fuse_pfs {
            // What hangs could not be ended.
            pfs.go_on();
        }
        let detached = self.detached();
        if let Some(mut child) = locked(&self.child).take() {
            let _ = child.kill();
            let _ = wait_bounded(&mut child, Duration::from_secs(10));
        } else if let Some(pid) = detached {
            let _ = kill_process(pid, Signal::KILL);
        }
        let mnt = self.base.join("mnt");
        if is_root() {
            // Nothing mounted there is what is hoped for.
            while unmount(&mnt, UnmountFlags::DETACH).is_ok() {}
            while unmount(self.state().join("dram"), UnmountFlags::DETACH).is_ok() {}
        } else if self.mounts().iter().any(|line| line.contains("/mnt ")) {
            let mut command = Command::new("fusermount3");
            command.arg("-uz").arg(&mnt);
            run_bounded(&mut command, Duration::from_secs(10));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in [self.base.join("up.log"), self.state().join("forebay.log")] {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                    eprintln!("log: {line}");
                }
            }
        }
        self.clean_up();
    }
}
