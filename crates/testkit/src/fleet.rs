//! A server and mounts of it on nodes of their own, for tests of the network path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::nodes::{Node, Nodes};
use crate::process::{Output, run_bounded, wait_bounded};
use crate::program::bare_command;
use crate::storeserver::{StoreKind, StoreServer};
use crate::wait::{LONG, wait_until};

mod standby;

/// Where the server listens.
const PORT: u16 = 7070;

/// A running program on one of the nodes.
struct Running(Option<Child>);

impl Running {
    fn pid(&self) -> Pid {
        let child = self.0.as_ref().expect("it runs");
        Pid::from_child(child)
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself; a stopped one is woken by that.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Node 0 has the server; each further node has a mount, and node 0 may have one, too. Further
/// nodes may have a data server each. Dropping it ends the programs, takes the mounts away and
/// removes the folders.
pub struct Fleet {
    server: Running,
    data: Vec<Running>,
    /// Servers that another has been started beside.
    old: Vec<Running>,
    /// Two metadata servers without tiers, in the place of the server.
    metadata: Vec<Running>,
    mounts: Vec<Running>,
    store: Option<StoreServer>,
    nodes: Nodes,
    /// Where the server is.
    server_node: usize,
    /// The name of its state folder.
    state: String,
    cluster: String,
    config: String,
    /// What the sections of the data servers say of their memory.
    memory: String,
    log_level: Option<&'static str>,
    base: PathBuf,
    _folder: TempDir,
}

impl Fleet {
    /// A server and so many mounts on further nodes, over TCP. `config` is added to the cluster's
    /// file, behind the server's section.
    #[track_caller]
    pub fn new(mounts: usize, config: &str) -> Fleet {
        Fleet::of_cluster(mounts, "", config)
    }

    /// The same; `cluster` is added to the section `[cluster]`.
    #[track_caller]
    pub fn of_cluster(mounts: usize, cluster: &str, config: &str) -> Fleet {
        let mut fleet = Fleet::prepare(mounts, mounts + 1, cluster, config);
        fleet.start_all();
        fleet
    }

    /// A server, and so many further nodes with a mount and a data server each, which has memory
    /// and flash.
    #[track_caller]
    pub fn of_data_servers(nodes: usize, config: &str) -> Fleet {
        Fleet::of_data_servers_with(nodes, "", config)
    }

    /// The same; `cluster` is added to the section `[cluster]`.
    #[track_caller]
    pub fn of_data_servers_with(nodes: usize, cluster: &str, config: &str) -> Fleet {
        let mut fleet = Fleet::prepare(nodes, nodes + 1, cluster, config);
        fleet.with_data_servers(nodes);
        fleet
    }

    /// The same; beside it `with` has what the data servers' sections say of their memory.
    #[track_caller]
    pub fn of_data_servers_in(nodes: usize, with: (&str, &str), config: &str) -> Fleet {
        let mut fleet = Fleet::prepare(nodes, nodes + 1, with.0, config);
        fleet.memory = with.1.into();
        fleet.with_data_servers(nodes);
        fleet
    }

    #[track_caller]
    fn with_data_servers(&mut self, nodes: usize) {
        for node in 1..=nodes {
            self.config += &self.data_server_section(node);
        }
        self.rewrite_config();
        for node in 1..=nodes {
            std::fs::create_dir(self.flash(node)).expect("mkdir");
            self.start_data(node, "this boot");
        }
        self.start_all();
    }

    /// The same with a second network, which is the one for restart copies.
    #[track_caller]
    pub fn of_two_networks(nodes: usize, cluster: &str, config: &str) -> Fleet {
        let two = Nodes::with_networks(nodes + 1, 2);
        let mut fleet = Fleet::prepare_on(two, nodes, cluster, config);
        fleet.with_data_servers(nodes);
        fleet
    }

    /// As [`Fleet::new`], with the records in a store on a node of its own, behind those of the
    /// mounts. `options` are those of the store's URL. The server is not started yet.
    #[track_caller]
    pub fn with_store(kind: StoreKind, mounts: usize, options: &str, config: &str) -> Fleet {
        let mut fleet = Fleet::prepare(mounts, mounts + 2, "", config);
        let server = StoreServer::start_on(kind, fleet.store_node(), &[]);
        fleet.use_store(&server.url(options));
        fleet.store = Some(server);
        fleet
    }

    /// Writes this store into the cluster's file.
    pub fn use_store(&mut self, url: &str) {
        self.cluster = format!("store = \"{url}\"");
        self.rewrite_config();
    }

    /// What is started from now on logs at this level.
    pub fn log_at(&mut self, level: &'static str) {
        self.log_level = Some(level);
    }

    /// Starts the server and all mounts on further nodes.
    #[track_caller]
    pub fn start_all(&mut self) {
        self.start_server();
        for node in 1..self.mounts.len() {
            self.mount(node, &[]);
        }
    }

    fn prepare(mounts: usize, nodes: usize, cluster: &str, config: &str) -> Fleet {
        Fleet::prepare_on(Nodes::new(nodes), mounts, cluster, config)
    }

    fn prepare_on(nodes: Nodes, mounts: usize, cluster: &str, config: &str) -> Fleet {
        let folder = TempDir::with_prefix("forebay-fleet-").expect("temporary folder");
        let base = std::fs::canonicalize(folder.path()).expect("canonical");
        for name in ["pfs", "run"] {
            std::fs::create_dir(base.join(name)).expect("mkdir");
        }
        let fleet = Fleet {
            server: Running(None),
            data: (0..=mounts).map(|_| Running(None)).collect(),
            old: Vec::new(),
            metadata: Vec::new(),
            store: None,
            server_node: 0,
            state: "state".into(),
            log_level: None,
            memory: "dram = \"64MiB\"\n".into(),
            config: config.replace("{base}", &base.display().to_string()),
            mounts: (0..=mounts).map(|_| Running(None)).collect(),
            nodes,
            cluster: cluster.to_string(),
            base,
            _folder: folder,
        };
        for node in 0..=mounts {
            std::fs::create_dir(fleet.mnt(node, "")).expect("mkdir");
        }
        let key = fleet.base.join("key");
        let keygen = fleet.run(0, &["keygen".as_ref(), key.as_ref()]);
        assert_eq!(keygen.code, 0, "{keygen:?}");
        fleet.rewrite_config();
        fleet
    }

    fn rewrite_config(&self) {
        self.write_config("cluster.toml", "fleet", &self.config);
    }

    /// The node of the store.
    pub fn store_node(&self) -> &Node {
        &self.nodes[self.nodes.count() - 1]
    }

    /// The store of the records.
    #[track_caller]
    pub fn store(&mut self) -> &mut StoreServer {
        self.store.as_mut().expect("started with with_store")
    }

    /// Starts the store again where it was.
    #[track_caller]
    pub fn restart_store(&mut self) {
        let node = &self.nodes[self.nodes.count() - 1];
        let store = self.store.as_mut().expect("started with with_store");
        assert!(store.run_on(node), "{}", store.log());
    }

    /// From now on the cluster's server is on this node, with a state folder of this name. One
    /// that runs goes on, as the old one.
    pub fn server_elsewhere(&mut self, node: usize, state: &str) {
        let server = std::mem::replace(&mut self.server, Running(None));
        self.old.push(server);
        self.server_node = node;
        self.state = state.into();
        self.rewrite_config();
    }

    /// Writes a cluster's file with this name for the cluster.
    pub fn write_config(&self, file: &str, name: &str, config: &str) -> PathBuf {
        let (base, cluster) = (self.base.display(), &self.cluster);
        let addresses = self.addresses_of(self.server_node);
        let state = &self.state;
        let path = self.base.join(file);
        let (roles, tiers) = match self.metadata.is_empty() {
            true => ("\"metadata\", \"data\"", "dram = \"128MiB\"\n"),
            false => ("\"metadata\"", ""),
        };
        // Short, so that tests of lost mounts need not wait.
        let lease = match cluster.contains("lease = ") {
            true => "",
            false => "lease = \"5s\"\n",
        };
        let text = format!(
            "[cluster]\nname = \"{name}\"\npfs = \"{base}/pfs\"\nkey = \"{base}/key\"\n{lease}\
             {cluster}\n[[server]]\nid = 1\nroles = [{roles}]\n{addresses}\
             state = \"{base}/{state}\"\n{tiers}{config}\n"
        );
        std::fs::write(&path, text).expect("configuration");
        path
    }

    /// What the section of a node's server says of its addresses.
    fn addresses_of(&self, node: usize) -> String {
        let keys = ["addresses", "replication_addresses"];
        let lines = keys.iter().zip(self.nodes[node].addresses());
        let line = |(key, ip): (&&str, _)| format!("{key} = [\"{ip}:{PORT}\"]\n");
        lines.map(line).collect()
    }

    fn data_server_section(&self, node: usize) -> String {
        let (base, id) = (self.base.display(), node + 1);
        let (addresses, memory) = (self.addresses_of(node), &self.memory);
        format!(
            "[[server]]\nid = {id}\nroles = [\"data\"]\n{addresses}\
             state = \"{base}/state{node}\"\n{memory}ssd = [\"{}:256MiB\"]\n",
            self.flash(node).display()
        )
    }

    /// The flash directory of a node's data server.
    pub fn flash(&self, node: usize) -> PathBuf {
        self.base.join(format!("flash{node}"))
    }

    /// The state folder of a node's data server.
    pub fn data_state(&self, node: usize) -> PathBuf {
        self.base.join(format!("state{node}"))
    }

    /// Starts the data server of a node, on what it has left; `boot` names the start of the node.
    #[track_caller]
    pub fn start_data(&mut self, node: usize, boot: &str) {
        let (config, id) = (self.config(), (node + 1).to_string());
        let line = ["server".as_ref(), "--config".as_ref(), config.as_os_str()];
        let line = [&line[..], &["--id".as_ref(), id.as_ref()]].concat();
        let log = format!("data{node}.log");
        self.data[node] = self.start_with(node, &log, &line, &[("FOREBAY_BOOT_ID", boot)]);
        let pid = self.data_state(node).join("forebay.pid");
        let own = self.data[node].pid().as_raw_nonzero().to_string();
        wait_until("the data server serves", || {
            std::fs::read_to_string(&pid).is_ok_and(|text| text.trim() == own)
        });
    }

    /// Kills the data server of a node without a word.
    pub fn kill_data(&mut self, node: usize) {
        self.data[node].kill();
    }

    /// The same, and what it had in memory goes with its node.
    pub fn cut_power_of_data(&mut self, node: usize) {
        self.kill_data(node);
        unmount(self.data_state(node).join("dram"), UnmountFlags::DETACH).expect("unmount");
    }

    /// Stops or continues the process of a data server.
    #[track_caller]
    pub fn signal_data(&self, node: usize, signal: Signal) {
        kill_process(self.data[node].pid(), signal).expect("signal");
    }

    /// The nodes.
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// The folder that everything is in.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// A path on the PFS, which all nodes see.
    pub fn pfs(&self, path: impl AsRef<OsStr>) -> PathBuf {
        self.base.join("pfs").join(path.as_ref())
    }

    /// A path through the mount of a node.
    pub fn mnt(&self, node: usize, path: impl AsRef<OsStr>) -> PathBuf {
        self.base.join(format!("mnt{node}")).join(path.as_ref())
    }

    /// The state folder of the server.
    pub fn state(&self) -> PathBuf {
        self.base.join(&self.state)
    }

    fn config(&self) -> PathBuf {
        self.base.join("cluster.toml")
    }

    /// Waits until the metadata server has heard of all closes but those of so many files: close(2)
    /// returns before, and who opens a file then gets what it has at that moment.
    #[track_caller]
    pub fn closes_are_heard_of(&self, left_open: u64) {
        wait_until("all others are closed", || {
            self.status()["open_files"] == left_open
        });
    }

    /// Runs the program on a node to its end.
    #[track_caller]
    pub fn run(&self, node: usize, args: &[&OsStr]) -> Output {
        let mut command = self.command(node);
        command.args(args);
        run_bounded(&mut command, LONG)
    }

    fn command(&self, node: usize) -> Command {
        let mut command = bare_command();
        self.nodes[node].place(&mut command);
        command.env("FOREBAY_RUN", self.base.join("run"));
        command.envs(self.log_level.map(|level| ("FOREBAY_LOG", level)));
        command
    }

    fn start(&self, node: usize, log: &str, args: &[&OsStr]) -> Running {
        self.start_with(node, log, args, &[])
    }

    fn start_with(
        &self,
        node: usize,
        log: &str,
        args: &[&OsStr],
        environment: &[(&str, &str)],
    ) -> Running {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.base.join(log))
            .expect("log");
        let mut command = self.command(node);
        let child = command
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("descriptor"))
            .stderr(log)
            .spawn();
        Running(Some(child.expect("start")))
    }

    /// What a program on a node has said so far: `server.log`, `mount1.log`.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.base.join(name)).unwrap_or_default()
    }

    /// Starts the server, on what it has left.
    #[track_caller]
    pub fn start_server(&mut self) {
        self.begin_server(&[]);
        self.await_server();
    }

    /// Starts the server with these flags, and does not wait until it serves.
    pub fn begin_server(&mut self, flags: &[&str]) {
        let config = self.config();
        let line = server_line(&config, flags);
        self.server = self.start(self.server_node, "server.log", &line);
    }

    /// Runs a server with these flags that is to be refused, beside one that may run.
    #[track_caller]
    pub fn refused_server(&self, flags: &[&str]) -> String {
        let config = self.config();
        let refused = self.run(self.server_node, &server_line(&config, flags));
        assert_eq!(refused.code, 1, "{refused:?}");
        refused.stderr
    }

    /// Waits until the server serves.
    #[track_caller]
    pub fn await_server(&mut self) {
        let pid = self.state().join("forebay.pid");
        let own = self.server.pid().as_raw_nonzero().to_string();
        wait_until("the server serves", || {
            std::fs::read_to_string(&pid).is_ok_and(|text| text.trim() == own)
        });
    }

    /// Kills the server without a word.
    pub fn kill_server(&mut self) {
        self.server.kill();
    }

    /// Waits for the end of the server by itself: its exit code.
    #[track_caller]
    pub fn wait_server(&mut self) -> Option<i32> {
        let mut child = self.server.0.take().expect("it runs");
        wait_bounded(&mut child, LONG)?.code()
    }

    /// Stops or continues the last server that another was started beside.
    #[track_caller]
    pub fn signal_old(&self, signal: Signal) {
        kill_process(self.old.last().expect("one").pid(), signal).expect("signal");
    }

    /// Waits for its end by itself: its exit code.
    #[track_caller]
    pub fn wait_old(&mut self) -> Option<i32> {
        let mut child = self.old.pop().and_then(|old| old.0).expect("it runs");
        wait_bounded(&mut child, LONG)?.code()
    }

    /// Ends the server in order, as `systemctl stop` does.
    #[track_caller]
    pub fn stop_server(&mut self) {
        self.signal_server(Signal::TERM);
        let mut child = self.server.0.take().expect("it runs");
        let ended = wait_bounded(&mut child, LONG).expect("it ends in time");
        assert!(ended.success(), "{ended:?}");
    }

    /// Stops or continues the server's process.
    #[track_caller]
    pub fn signal_server(&self, signal: Signal) {
        kill_process(self.server.pid(), signal).expect("signal");
    }

    /// Stops or continues the process of a mount.
    #[track_caller]
    pub fn signal_mount(&self, node: usize, signal: Signal) {
        let pid = self.mounts[node].pid();
        kill_process(pid, signal).expect("signal");
        if signal == Signal::STOP {
            // Its threads stop one after the other, and one may still answer.
            wait_until("all its threads have stopped", || has_stopped(pid));
        }
    }

    /// Starts the mount of a node and waits for it.
    #[track_caller]
    pub fn mount(&mut self, node: usize, flags: &[&str]) {
        let (config, point) = (self.config(), self.mnt(node, ""));
        let mut args: Vec<&OsStr> = vec!["mount".as_ref(), "--config".as_ref(), config.as_ref()];
        args.push(point.as_ref());
        args.extend(flags.iter().map(|flag| OsStr::new(*flag)));
        self.mounts[node] = self.start(node, &format!("mount{node}.log"), &args);
        // Not only in the tree: a process that is killed while it asks its own mount for the first
        // answer does not end.
        let own = format!("(process {})", self.mounts[node].pid().as_raw_nonzero());
        let log = format!("mount{node}.log");
        wait_until("the mount answers", || self.log(&log).contains(&own));
    }

    /// Whether the mount of a node is in the tree.
    pub fn is_mounted(&self, node: usize) -> bool {
        let point = self.base.join(format!("mnt{node}"));
        let table = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        let wanted = format!(" {} fuse.forebay ", point.display());
        table.lines().any(|line| line.contains(&wanted))
    }

    /// Kills the process of a mount, and takes the mount away.
    pub fn kill_mount(&mut self, node: usize) {
        self.mounts[node].kill();
        // It ends with its process; what is left in the tree is a dead entry.
        let _ = unmount(self.mnt(node, ""), UnmountFlags::DETACH);
    }

    /// Unmounts by umount(8), and waits for the end of the process: its exit code.
    #[track_caller]
    pub fn umount(&mut self, node: usize) -> Option<i32> {
        let mut umount = Command::new("umount");
        run_bounded(umount.arg(self.base.join(format!("mnt{node}"))), LONG).ok();
        self.wait_mount(node, LONG)
    }

    /// Waits for the end of the process of a mount: its exit code.
    pub fn wait_mount(&mut self, node: usize, limit: Duration) -> Option<i32> {
        let mut child = self.mounts[node].0.take()?;
        wait_bounded(&mut child, limit)?.code()
    }

    /// What `forebay status --json` says on the server's node.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let state = self.state();
        let args: [&OsStr; 4] = [
            "status".as_ref(),
            "--json".as_ref(),
            "--state".as_ref(),
            state.as_ref(),
        ];
        self.run(self.server_node, &args).ok().json()
    }
}

/// Whether all threads of a process stand still.
fn has_stopped(pid: Pid) -> bool {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let tasks = std::fs::read_dir(tasks).expect("a process that is there");
    tasks.filter_map(Result::ok).all(|task| {
        // A thread that has ended meanwhile answers nobody.
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default();
        state.is_empty() || state.starts_with('T')
    })
}

fn server_line<'a>(config: &'a Path, flags: &[&'a str]) -> Vec<&'a OsStr> {
    let line: [&OsStr; 5] = [
        "server".as_ref(),
        "--config".as_ref(),
        config.as_os_str(),
        "--id".as_ref(),
        "1".as_ref(),
    ];
    let flags = flags.iter().map(|flag| OsStr::new(*flag));
    line.into_iter().chain(flags).collect()
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let of_nodes = |what: &'static str| {
                let nodes = 0..self.mounts.len();
                nodes.map(move |node| format!("{what}{node}.log"))
            };
            let server = std::iter::once("server.log".to_string());
            let server = server.chain((0..self.metadata.len()).map(standby::log_of));
            for name in server.chain(of_nodes("data")).chain(of_nodes("mount")) {
                eprintln!("--- {name}\n{}", self.log(&name));
            }
        }
        for node in 0..self.mounts.len() {
            self.kill_mount(node);
        }
        self.server.kill();
        self.metadata.iter_mut().for_each(Running::kill);
        for node in 0..self.data.len() {
            self.kill_data(node);
        }
        self.old.iter_mut().for_each(Running::kill);
        for entry in std::fs::read_dir(&self.base)
            .into_iter()
            .flatten()
            .flatten()
        {
            // Only state folders have one, and not all of them.
            let _ = unmount(entry.path().join("dram"), UnmountFlags::DETACH);
        }
    }
}
