//! Which nodes there are, and what is to be on each.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::args::NodesArgs;
use super::run::Runner;
use super::via::Via;
use crate::cluster::address::is_node;
use crate::cluster::config::{Cluster, Server};
use crate::exit::{Explain, Failure};
use crate::signals::Signals;

/// Nodes of a cluster, and what is to be on them.
pub struct Plan {
    /// The cluster.
    pub cluster: Cluster,
    /// Its file; absolute.
    pub config: PathBuf,
    /// Where the burst buffer is shown; absolute.
    pub mount: PathBuf,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// The program on the nodes.
    program: PathBuf,
    /// How commands get there.
    pub runner: Runner,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// How it is reached.
    pub host: String,
    /// Ids of the servers on it.
    pub servers: Vec<u16>,
    /// Whether it has a mount.
    pub has_mount: bool,
}

impl Plan {
    /// What the command line says.
    pub fn of(args: &NodesArgs) -> Result<Plan, Failure> {
        // Before there are other threads.
        let signals = Signals::count().explain("signals", "")?;
        let config = absolute(&args.config, "--config")?;
        let mount = absolute(&args.mount, "--mount")?;
        let cluster = Cluster::load(&config)?;
        let via = args.via.clone().unwrap_or_else(Via::usual);
        let hosts = match &args.nodes {
            Some(given) => Some(hosts_given(given)?),
            None if via == Via::Srun => Some(hosts_of_job()?),
            None => None,
        };
        let program = match &args.forebay {
            Some(program) => absolute(program, "--forebay")?,
            None => std::env::current_exe().explain("this program", "--forebay names it")?,
        };
        Ok(Plan {
            nodes: nodes(&cluster.servers, hosts.as_deref()),
            cluster,
            config,
            mount,
            program,
            runner: Runner { via, signals },
        })
    }

    /// A command line of this program, for a node.
    pub fn words<const N: usize>(&self, words: [&str; N]) -> Vec<OsString> {
        let program = self.program.clone().into_os_string();
        let words = words.iter().map(OsString::from);
        std::iter::once(program).chain(words).collect()
    }

    /// Where each server is that has a role.
    pub fn servers(&self, has: impl Fn(&Server) -> bool) -> Vec<(&Server, &str)> {
        let hosts = self.nodes.iter().flat_map(|node| {
            let ids = node.servers.iter();
            ids.map(move |id| (*id, node.host.as_str()))
        });
        let all = hosts.filter_map(|(id, host)| {
            let mut servers = self.cluster.servers.iter();
            servers
                .find(|server| server.id == id)
                .map(|one| (one, host))
        });
        all.filter(|(server, _)| has(server)).collect()
    }

    /// Hosts with a mount.
    pub fn mounts(&self) -> Vec<&str> {
        let with = self.nodes.iter().filter(|node| node.has_mount);
        with.map(|node| node.host.as_str()).collect()
    }
}

/// Tells the file from another.
pub fn fingerprint(config: &Path) -> std::io::Result<String> {
    let mut hasher = DefaultHasher::new();
    std::fs::read(config)?.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// What goes to other nodes is a whole path, and no shell stumbles over it.
fn absolute(path: &Path, flag: &str) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(path).explain(path.display(), "")?;
    use std::os::unix::ffi::OsStrExt;
    match path.as_os_str().as_bytes().iter().any(u8::is_ascii_control) {
        true => Err(Failure::fatal(format!(
            "{flag}: the path has control characters, which do not get to other nodes; choose another"
        ))),
        false => Ok(path),
    }
}

fn nodes(servers: &[Server], mounts: Option<&[String]>) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for server in servers {
        match nodes.iter_mut().find(|node| node.host == server.host) {
            Some(node) => node.servers.push(server.id),
            None => nodes.push(Node {
                host: server.host.clone(),
                servers: vec![server.id],
                has_mount: mounts.is_none(),
            }),
        }
    }
    for host in mounts.unwrap_or_default() {
        match nodes.iter_mut().find(|node| node.host == *host) {
            Some(node) => node.has_mount = true,
            None => nodes.push(Node {
                host: host.clone(),
                servers: Vec::new(),
                has_mount: true,
            }),
        }
    }
    nodes
}

/// `--nodes`: a file, or names.
fn hosts_given(given: &str) -> Result<Vec<String>, Failure> {
    let is_file = given.contains('/') || Path::new(given).is_file();
    let text = match is_file {
        true => std::fs::read_to_string(given).explain(given, "")?,
        false => given.replace(',', "\n"),
    };
    hosts_in(&text, given)
}

fn hosts_in(text: &str, from: &str) -> Result<Vec<String>, Failure> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut hosts: Vec<String> = Vec::new();
    for host in lines.filter(|line| !line.is_empty()) {
        if !is_node(host) {
            return Err(Failure::fatal(format!(
                "--nodes {from}: '{}' is no name of a host",
                super::run::shown(host)
            )));
        }
        if !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_string());
        }
    }
    match hosts.is_empty() {
        true => Err(Failure::fatal(format!("--nodes {from}: names no host"))),
        false => Ok(hosts),
    }
}

/// The nodes of the Slurm job that this runs in.
fn hosts_of_job() -> Result<Vec<String>, Failure> {
    let todo = "--nodes names the nodes";
    let list = std::env::var("SLURM_JOB_NODELIST").map_err(|_| {
        Failure::fatal(format!(
            "this runs in no Slurm job (SLURM_JOB_NODELIST); {todo}"
        ))
    })?;
    let mut scontrol = Command::new("scontrol");
    let said = scontrol.args(["show", "hostnames", &list]).output();
    let said = said.explain("scontrol", todo)?;
    if !said.status.success() {
        return Err(Failure::fatal(format!(
            "scontrol show hostnames {list} failed; {todo}"
        )));
    }
    hosts_in(&String::from_utf8_lossy(&said.stdout), "(of the job)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_once_and_none_is_a_command() {
        let hosts = hosts_given("n1,n2, n1").expect("hosts");
        assert_eq!(hosts, ["n1", "n2"]);
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("hosts");
        std::fs::write(&file, "# all\nn1\n\nroot@n3 # root's\n").expect("write");
        let hosts = hosts_given(file.to_str().expect("text")).expect("hosts");
        assert_eq!(hosts, ["n1", "root@n3"]);
        for bad in ["-oProxyCommand=x", "n1;rm", "a b", ",", "n1,$(x)"] {
            assert!(hosts_given(bad).is_err(), "{bad}");
        }
    }
}
