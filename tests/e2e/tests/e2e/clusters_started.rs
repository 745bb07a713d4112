//! All nodes of a cluster started and stopped at once, as a job's own burst buffer.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::{
    LONG, Node, Nodes, Output, StoreKind, StoreServer, needs_nodes, program, run_bounded,
    wait_until, without_settings,
};
use tempfile::TempDir;

/// Nothing drains by itself, and fsync means memory.
const KEEP: &str = "[demotion]\nidle = false\nstart = 0.9\n\
                    [[rule]]\npath = \"/**\"\ndurability = \"memory\"\n";

/// Nodes with networks and mount tables of their own, as those of a job, and a script that runs a
/// command on one of them.
pub struct Job {
    nodes: Nodes,
    /// Each keeps the mount table of a node.
    keepers: Vec<Child>,
    folder: TempDir,
    /// The last node has the records; the one before it has the metadata server that stands by.
    store: Option<StoreServer>,
    /// Where everything of the cluster is; its name is for shells to stumble over.
    pub odd: PathBuf,
}

const ODD: &str = "a 'job' $(touch pwned) & `touch pwned`; \"x\" #!";

/// Has a mount table of its own, without what other tests have mounted: their mounts would not end.
const KEEPER: &str = r#"
while read -r what at kind rest; do
    case "$what $at $kind" in *forebay*) umount -l "$at";; esac
done </proc/self/mounts
touch "$0"
exec sleep 3600
"#;

impl Job {
    #[track_caller]
    pub fn new(count: usize) -> Job {
        let nodes = Nodes::new(count);
        let folder = TempDir::with_prefix("forebay-job-").expect("temporary folder");
        let odd = folder.path().join(ODD);
        fs::create_dir_all(odd.join("pfs")).expect("mkdir");
        let mut keepers = Vec::new();
        for node in nodes.iter() {
            let own = folder.path().join(format!("own-n{}", node.index()));
            let mut keeper = node.command("unshare");
            keeper.args(["--mount", "--propagation", "private", "sh", "-c", KEEPER]);
            let keeper = keeper.arg(&own).stdin(Stdio::null());
            let child = keeper.spawn().expect("unshare");
            let pid = folder.path().join(format!("pid-n{}", node.index()));
            fs::write(pid, child.id().to_string()).expect("write");
            fs::create_dir(odd.join(format!("flash{}", node.index()))).expect("mkdir");
            wait_until("the node has a mount table", || own.exists());
            keepers.push(child);
        }
        let script = "#!/bin/sh\nhost=$1 dir=$(dirname \"$0\")\nshift\n\
                      [ \"$host\" = silent ] && exec sleep 600\n\
                      export FOREBAY_RUN=\"$dir/run-$host\"\n\
                      exec nsenter -t \"$(cat \"$dir/pid-$host\")\" --net --mount -- \"$@\"\n";
        let job = Job {
            nodes,
            keepers,
            store: None,
            folder,
            odd,
        };
        job.write_script("on", script);
        // As ssh: one line, for a shell at the other end.
        job.write_script(
            "shell-on",
            "#!/bin/sh\nexec \"${0%/*}/on\" \"$1\" sh -c \"$2\"\n",
        );
        job.forebay(&["keygen".as_ref(), job.odd.join("key").as_ref()])
            .ok();
        job.write_config();
        job
    }

    #[track_caller]
    fn with_standby() -> Job {
        let mut job = Job::new(4);
        let server = StoreServer::start_on(StoreKind::Etcd, &job.nodes[3], &[]);
        job.store = Some(server);
        job.write_config();
        job
    }

    fn write_script(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    fn config(&self) -> PathBuf {
        self.odd.join("cluster.toml")
    }

    fn mount(&self) -> PathBuf {
        self.odd.join("made by it").join("bb")
    }

    fn write_config(&self) {
        let at = |name: &str| format!("{:?}", self.odd.join(name).to_str().expect("text"));
        let mut text = format!(
            "[cluster]\nname = \"job\"\npfs = {}\nkey = {}\nlease = \"5s\"\n",
            at("pfs"),
            at("key")
        );
        if let Some(store) = &self.store {
            text += &format!("store = \"{}\"\n", store.url(""));
        }
        for node in self.members() {
            let (index, id) = (node.index(), node.index() + 1);
            let roles = match (index, &self.store) {
                (0, None) => "\"metadata\", \"data\"",
                (0 | 2, Some(_)) => "\"metadata\"",
                _ => "\"data\"",
            };
            text += &format!(
                "[[server]]\nid = {id}\nroles = [{roles}]\naddresses = [\"{}\"]\nhost = \"n{index}\"\n\
                 state = {}\n",
                node.socket_address(7070),
                at(&format!("state{index}")),
            );
            if roles != "\"metadata\"" {
                let ssd = at(&format!("flash{index}:256MiB"));
                text += &format!("dram = \"64MiB\"\nssd = [{ssd}]\n");
            }
        }
        fs::write(self.config(), text + KEEP).expect("configuration");
    }

    #[track_caller]
    pub fn forebay(&self, args: &[&OsStr]) -> Output {
        let mut command = self.nodes[0].command(program());
        without_settings(&mut command);
        run_bounded(command.args(args).current_dir(self.folder.path()), LONG)
    }

    /// `forebay cluster WHAT`, by one of the scripts.
    #[track_caller]
    pub fn cluster(&self, what: &str, via: &str, flags: &[&str]) -> Output {
        let via = format!("{}/{via}", self.folder.path().display());
        let (config, mount) = (self.config(), self.mount());
        let mut args: Vec<&OsStr> = vec!["cluster".as_ref(), what.as_ref()];
        args.extend(["--config".as_ref(), config.as_os_str()]);
        args.extend(["--mount".as_ref(), mount.as_os_str()]);
        args.extend(["--via".as_ref(), OsStr::new(&via)]);
        args.extend(flags.iter().map(OsStr::new));
        self.forebay(&args)
    }

    /// Ctrl-C while a node is waited for.
    #[track_caller]
    fn interrupted(&self) {
        let (config, mount) = (self.config(), self.mount());
        let via = format!("{}/{ON}", self.folder.path().display());
        let mut command = self.nodes[0].command(program());
        without_settings(&mut command).args(["cluster", "start", "--nodes", "silent"]);
        command.args(["--via", &via, "--config"]).arg(config);
        command.arg("--mount").arg(mount).stderr(Stdio::null());
        let mut child = command.spawn().expect("forebay");
        // Its signals are counted from the beginning, and commands come soon after.
        wait_until("the node is asked", || self.nodes[0].processes().len() > 2);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal");
        let begun = Instant::now();
        assert_eq!(child.wait().expect("it ends").code(), Some(130));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    /// Runs a program on a node, where the mount is.
    #[track_caller]
    pub fn on(&self, node: usize, words: &[&str]) -> Output {
        run_bounded(&mut self.command_on(node, words), LONG)
    }

    /// A program on a node, where the mount is.
    pub fn command_on(&self, node: usize, words: &[&str]) -> Command {
        let mut command = self.nodes[node].command(self.folder.path().join("on"));
        command.arg(format!("n{node}")).args(words);
        command.current_dir("/");
        command
    }

    pub fn in_mount(&self, name: &str) -> String {
        self.mount().join(name).to_str().expect("text").to_string()
    }

    /// Nodes of the cluster.
    fn members(&self) -> impl Iterator<Item = &Node> {
        let all = self.nodes.count() - usize::from(self.store.is_some());
        self.nodes.iter().take(all)
    }

    /// Nothing but what keeps their mount tables runs on the nodes.
    pub fn is_quiet(&self) -> bool {
        self.members().all(|node| node.processes().len() == 1)
    }

    pub fn pid_of(&self, node: usize) -> String {
        let path = self.odd.join(format!("state{node}/forebay.pid"));
        fs::read_to_string(path).expect("pid").trim().to_string()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.kill());
        for keeper in &mut self.keepers {
            // Killed with its node.
            let _ = keeper.wait();
        }
    }
}

pub const ON: &str = "on {host}";

/// A mount that is in use is named, and nothing is stopped.
#[track_caller]
fn stop_while_somebody_is_in_it(job: &Job) {
    let mut user = job.nodes[2].command(job.folder.path().join("on"));
    let inside = job.in_mount("f.d");
    user.args(["n2", "sh", "-c", "cd \"$0\" && exec sleep 600", &inside]);
    let mut user = user.current_dir("/").spawn().expect("a user");
    let cwd = format!("/proc/{}/cwd", user.id());
    wait_until("the user is there", || {
        fs::read_link(&cwd).is_ok_and(|at| at.ends_with("f.d"))
    });
    let busy = job.cluster("stop", ON, &[]).expect_code(3);
    assert!(
        busy.stderr.contains("n2: ") && busy.stderr.contains(" is in use; end the"),
        "{busy:?}"
    );
    assert!(!job.is_quiet(), "the servers run");
    user.kill().expect("kill");
    user.wait().expect("wait");
}

/// On a node where the cluster is not mounted a local burst buffer is at the same directory.
#[track_caller]
fn leave_alone_what_is_anothers(job: &Job) {
    let own = job.folder.path().join("own");
    let at = |name: &str| own.join(name).to_str().expect("text").to_string();
    for dir in [own.join("pfs"), job.mount()] {
        fs::create_dir_all(dir).expect("mkdir");
    }
    let (forebay, mount) = (program(), job.mount());
    let (forebay, mount) = (forebay.to_str(), mount.to_str());
    let (forebay, mount) = (forebay.expect("text"), mount.expect("text"));
    let (pfs, state) = (at("pfs"), at("state"));
    let mut words = vec![forebay, "up", "--detach", "--dram", "16MiB"];
    words.extend(["--pfs", &pfs, "--mount", mount, "--state", &state]);
    job.on(0, &words).ok();
    let kept = job.cluster("stop", ON, &[]).expect_code(3);
    assert!(
        kept.stderr.contains("n0: ") && kept.stderr.contains(": another burst buffer is mounted"),
        "{kept:?}"
    );
    let started = job.cluster("start", ON, &[]).expect_code(1);
    let said = "another burst buffer is mounted there, not that of cluster job; choose another";
    assert!(started.stderr.contains(said), "{started:?}");
    job.on(0, &["sh", "-c", "echo >\"$0\"", &job.in_mount("x")])
        .ok();
    job.on(0, &[forebay, "down", "--drain", "--state", &state])
        .ok();
    assert!(own.join("pfs/x").exists());
}

#[test]
fn command_cluster_start_and_stop_make_and_end_a_jobs_own_burst_buffer() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(3);
    let started = job.cluster("start", "shell-on {host} {command}", &[]).ok();
    assert!(
        started
            .stdout
            .contains("3 servers run (0 did before), 3 nodes show it"),
        "{started:?}"
    );
    let file = job.in_mount("f");
    job.on(
        1,
        &["sh", "-c", "seq 200000 >\"$0\" && mkdir \"$0.d\"", &file],
    )
    .ok();
    let read = job.on(2, &["tail", "-n1", &file]).ok();
    assert_eq!(read.stdout, "200000\n");
    assert!(!job.odd.join("pfs/f").exists(), "drained by itself");
    let again = job.cluster("start", ON, &[]).ok();
    assert!(
        again
            .stdout
            .contains("3 servers run (3 did before), 3 nodes show it"),
        "{again:?}"
    );
    assert!(again.stdout.contains("(3 did before)\n"), "{again:?}");
    let config = job.config();
    let status = ["cluster", "status", "--json", "--config"].map(OsStr::new);
    let status = job
        .forebay(&[&status[..], &[config.as_os_str()]].concat())
        .ok()
        .json();
    assert_eq!(
        status["nodes"].as_array().map(Vec::len),
        Some(3),
        "{status}"
    );

    stop_while_somebody_is_in_it(&job);
    job.cluster("stop", "shell-on {host} {command}", &["--timeout", "60s"])
        .ok();
    assert!(job.is_quiet());
    // Nothing is left to stop, and nothing to drain.
    let again = job.cluster("stop", ON, &[]).ok();
    assert!(again.stdout.contains("cluster job: stopped"), "{again:?}");
    let drained = fs::read_to_string(job.odd.join("pfs/f")).expect("on the PFS");
    assert!(drained.ends_with("\n200000\n"));
    let memory = job.on(1, &["cat", "/proc/self/mounts"]).ok().stdout;
    let own = job.folder.path().to_str().expect("text");
    assert!(!memory.contains(own), "{memory}");
    assert!(!Path::new(&job.folder.path().join("pwned")).exists());

    // The same state folders are good for the next job.
    job.cluster("start", ON, &["--nodes", "n1,n2"]).ok();
    let read = job.on(2, &["tail", "-n1", &file]).ok();
    assert_eq!(read.stdout, "200000\n");
    job.on(0, &["ls", &file]).expect_code(2);
    leave_alone_what_is_anothers(&job);
    job.cluster("stop", ON, &["--nodes", "n1,n2"]).ok();
    assert!(job.is_quiet());
}

#[test]
fn command_cluster_start_takes_back_what_it_began() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(3);
    // Nothing is begun where a node cannot take part.
    let begun = Instant::now();
    let silent = job.cluster("start", ON, &["--nodes", "n1,silent", "--timeout", "4s"]);
    let silent = silent.expect_code(1);
    assert!(
        silent.stderr.contains("silent: no answer in time\n"),
        "{silent:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(60));
    job.interrupted();
    let other = job
        .cluster("start", ON, &["--forebay", "/bin/echo"])
        .expect_code(1);
    assert!(
        other.stderr.contains("n1: has 'echo (GNU coreutils) "),
        "{other:?}"
    );
    let none = job
        .cluster("start", ON, &["--forebay", "/nowhere"])
        .expect_code(1);
    assert!(
        none.stderr
            .contains("(exit 127: there is no such program there)"),
        "{none:?}"
    );
    fs::remove_dir(job.odd.join("flash2")).expect("rmdir");
    let missing = job.cluster("start", ON, &[]).expect_code(1);
    assert!(
        missing
            .stderr
            .contains("flash2: No such file or directory; make it"),
        "{missing:?}"
    );
    fs::create_dir(job.odd.join("flash2")).expect("mkdir");
    assert!(job.is_quiet() && !job.odd.join("state1").exists());

    // What only shows at the start: others are started, and stopped again.
    let port = job.nodes[0].socket_address(7070);
    let taken = job.nodes[0]
        .inside(|| TcpListener::bind(port))
        .expect("bind");
    let failed = job.cluster("start", ON, &[]).expect_code(1);
    assert!(
        failed.stderr.contains("n0: server 1: cannot listen"),
        "{failed:?}"
    );
    assert!(failed.stderr.contains("is stopped again"), "{failed:?}");
    assert!(
        failed.stdout.contains("n1: server 2 of job holds data"),
        "{failed:?}"
    );
    assert!(job.is_quiet());
    drop(taken);
    job.cluster("start", ON, &[]).ok();
    job.cluster("stop", ON, &[]).ok();
}

#[test]
fn command_cluster_start_beside_another_one_stops_nothing_of_that() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    // Has looked at the nodes, and starts its servers when the other one is done.
    job.write_script(
        "late-on",
        "#!/bin/sh\ndir=${0%/*}\ncase \" $* \" in *\" server --config \"*)\n\
         touch \"$dir/waits\"\nwhile [ ! -e \"$dir/goes\" ]; do sleep 0.1; done;;\nesac\n\
         exec \"$dir/on\" \"$@\"\n",
    );
    let at = |name: &str| job.folder.path().join(name);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| job.cluster("start", "late-on {host}", &[]));
        wait_until("it starts its servers", || at("waits").exists());
        job.cluster("start", ON, &[]).ok();
        fs::write(at("goes"), "").expect("write");
        let late = late.join().expect("it ends").expect_code(1);
        assert!(late.stderr.contains("n1: "), "{late:?}");
    });
    let file = job.in_mount("f");
    job.on(1, &["sh", "-c", "echo of both >\"$0\"", &file]).ok();
    assert_eq!(job.on(0, &["cat", &file]).ok().stdout, "of both\n");
    let again = job.cluster("start", ON, &[]).ok();
    assert!(
        again.stdout.contains("2 servers run (2 did before)"),
        "{again:?}"
    );
    job.cluster("stop", ON, &[]).ok();
    assert!(job.is_quiet());
}

#[test]
fn command_cluster_start_within_a_slurm_job_uses_its_nodes_and_steps() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    let tools = job.folder.path().join("tools");
    fs::create_dir(&tools).expect("mkdir");
    let srun = "#!/bin/sh\n\
                while [ \"${1#--}\" != \"$1\" ]; do\n\
                case $1 in --nodelist=*) host=${1#*=};; esac\nshift\ndone\n\
                exec \"${0%/*}/../on\" \"$host\" \"$@\"\n";
    job.write_script("tools/srun", srun);
    job.write_script(
        "tools/scontrol",
        "#!/bin/sh\n[ \"$3\" = 'n[0-1]' ] && printf 'n0\\nn1\\n'\n",
    );
    let path = std::env::var("PATH").expect("PATH");
    let within = |what: &str, flags: &[&str]| {
        let mut command = job.nodes[0].command(program());
        without_settings(&mut command).args(["cluster", what, "--config"]);
        command
            .arg(job.config())
            .arg("--mount")
            .arg(job.mount())
            .args(flags);
        command.env("PATH", format!("{}:{path}", tools.display()));
        command.env("FOREBAY_RUN", job.folder.path().join("run"));
        command.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[0-1]")]);
        run_bounded(command.current_dir(job.folder.path()), LONG)
    };
    let started = within("start", &[]).ok();
    assert!(
        started.stdout.contains("n1: server-2 serves; its log is "),
        "{started:?}"
    );
    let file = job.in_mount("f");
    job.on(1, &["sh", "-c", "echo of a step >\"$0\"", &file])
        .ok();
    assert_eq!(job.on(0, &["cat", &file]).ok().stdout, "of a step\n");
    let log = job.folder.path().join("run/job.n1.server-2.log");
    let log = fs::read_to_string(log).expect("the log of a step");
    assert!(log.contains("server 2 of job holds data"), "{log}");
    within("stop", &[]).ok();
    assert!(job.odd.join("pfs/f").exists());
    wait_until("the steps have ended", || job.is_quiet());
}

#[test]
fn command_cluster_stop_names_what_is_left_when_its_time_is_over() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &["--no-restart"]).ok();
    let file = job.in_mount("f");
    job.on(1, &["sh", "-c", "seq 200000 >\"$0\"", &file]).ok();
    job.on(1, &["kill", "-KILL", &job.pid_of(1)]).ok();
    let late = job.cluster("stop", ON, &["--timeout", "4s"]).expect_code(4);
    assert!(
        late.stderr.contains("n0: ") && late.stderr.contains("bb/f")
            || late.stderr.contains("pfs/f"),
        "{late:?}"
    );
    // It goes on, with the data server that is started again.
    let again = job.cluster("start", ON, &[]).ok();
    assert!(
        again.stdout.contains("2 servers run (1 did before)"),
        "{again:?}"
    );
    assert_eq!(job.on(0, &["tail", "-n1", &file]).ok().stdout, "200000\n");
    job.cluster("stop", ON, &[]).ok();
    assert!(job.odd.join("pfs/f").exists() && job.is_quiet());
}

#[test]
fn command_cluster_stop_ends_the_server_that_stands_by_first() {
    if needs_nodes() {
        return;
    }
    let job = Job::with_standby();
    let stands_by = |node: usize| {
        let state = job.odd.join(format!("state{node}"));
        let args: [&OsStr; 4] = [
            "status".as_ref(),
            "--json".as_ref(),
            "--state".as_ref(),
            state.as_ref(),
        ];
        let status = job.forebay(&args);
        // It has no socket for a moment while it takes over.
        status.code != 0 || !status.json()["standby"].is_null()
    };
    job.cluster("start", ON, &[]).ok();
    let standby = if stands_by(0) { 0 } else { 2 };
    let leader = 2 - standby;
    assert!(!stands_by(leader));
    let file = job.in_mount("f");
    job.on(1, &["sh", "-c", "seq 200000 >\"$0\"", &file]).ok();
    assert!(!job.odd.join("pfs/f").exists(), "drained by itself");
    let stopped = job.cluster("stop", ON, &["--timeout", "60s"]).ok();
    let at = |node: usize, what: &str| {
        let mut lines = stopped.stdout.lines();
        let begin = format!("n{node}: ");
        lines.position(|line| line.starts_with(&begin) && line.contains(what))
    };
    let ended = at(standby, "stopped, while it stood by");
    assert!(
        ended.is_some() && ended < at(leader, "all data is on the PFS"),
        "{stopped:?}"
    );
    assert!(job.is_quiet() && job.odd.join("pfs/f").exists());
    // Nothing is left to stop, and nothing to drain.
    job.cluster("stop", ON, &[]).ok();

    // Who would take over is not stopped as if nothing was left to drain.
    job.cluster("start", ON, &["--no-restart"]).ok();
    job.on(1, &["sh", "-c", "seq 200000 >\"$0\"", &job.in_mount("g")])
        .ok();
    let leader = if stands_by(0) { 2 } else { 0 };
    job.on(leader, &["kill", "-KILL", &job.pid_of(leader)]).ok();
    wait_until("the other one leads", || !stands_by(2 - leader));
    job.cluster("stop", ON, &["--timeout", "60s"]).ok();
    assert!(job.is_quiet() && job.odd.join("pfs/g").exists());
}

#[test]
fn command_cluster_stop_says_who_may_keep_a_mount_whose_process_does_not_end() {
    if needs_nodes() {
        return;
    }
    let job = Job::new(2);
    job.cluster("start", ON, &[]).ok();
    // A container has its own copy of what is mounted.
    let there = job.odd.join("inside");
    let script = "echo in >\"$0\"; exec sleep 600";
    let words = [
        "unshare",
        "-m",
        "sh",
        "-c",
        script,
        there.to_str().expect("UTF-8"),
    ];
    let mut container = job.command_on(1, &words).spawn().expect("a container");
    wait_until("the container is there", || there.exists());
    let stop = job.cluster("stop", ON, &[]);
    assert_ne!(stop.code, 0, "{stop:?}");
    let says = "may have it mounted as well; `grep -l fuse.forebay /proc/[0-9]*/mountinfo`";
    assert!(stop.stderr.contains(says), "{stop:?}");
    container.kill().expect("kill");
    container.wait().expect("wait");
    wait_until("it can be stopped", || {
        job.cluster("stop", ON, &[]).code == 0
    });
    assert!(job.is_quiet());
}
