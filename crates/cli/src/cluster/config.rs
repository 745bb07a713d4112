//! A cluster as the commands work with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_policy::durability::Durability;
use forebay_policy::holders::HolderRule;
use forebay_policy::lending::Lending;
use forebay_policy::links::Distribution;
use forebay_server::{SsdSetting, StoreSetting};

use super::address::is_here;
use super::checks::{Checks, rack_number};
use super::error::{ConfigError, Problem};
use super::written::Written;
use crate::up::given::Given;
use crate::up::layers::{ConfigFile, Layers};
use crate::up::limits::check_each_once;
use crate::up::settle::{Plan, Read, settle_member};
use crate::up::values::{Dram, DramSize, Folder, Fraction, Size, Ssd};

/// Threads of a mount: more than these only cost memory.
const MOUNT_THREADS_MAX: usize = 64;

/// All that `cluster.toml` says, checked. Nothing of the node it is read on has been looked at,
/// but for the addresses of hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The cluster's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Where the PFS is mounted, on every node; absolute.
    pub pfs: PathBuf,
    /// The file with the cluster's key, on every node; absolute.
    pub key: PathBuf,
    /// Where records are kept. Default: `embedded`.
    pub store: StoreSetting,
    /// Copies of what was fsynced and is not drained: 1 or 2. Default: 1. With 2 the level of files
    /// is `replica`, unless something else says theirs.
    pub replicas: usize,
    /// Second copies that are lost are made again no faster than this, bytes per second, at least 1
    /// MB/s. Default: 256 MiB/s.
    pub replica_rate: Option<u64>,
    /// 1: the newest complete checkpoint version of each application, once it is on the PFS, gets
    /// a copy in free flash of another node. Default: 0.
    pub restart_copies: usize,
    /// Part of each node's flash that such copies may take, above 0 and at most 1. Default: 0.25.
    pub restart_copies_space: Option<f64>,
    /// Data is encrypted; a server takes it from another machine in no other way. Default: false;
    /// data is sent in the clear then, with checksums, and only messages are sealed.
    pub encrypt: bool,
    /// What root of a client's node asks for over TCP is done as nobody (uid and gid 65534).
    /// Default: false; root of every node is root of the mount.
    pub squash_root: bool,
    /// A client that is silent for so long is fenced: 1 s to 1 h. Default: 30 s.
    pub lease: Duration,
    /// Most bytes per second over one TCP connection, in each direction: at least 1 MB/s. Tests
    /// only: it stands for a slow network on one machine. `None`, the default: as fast as the
    /// network is.
    pub connection_rate: Option<u64>,
    /// At least one; ids and addresses are distinct.
    pub servers: Vec<Server>,
    /// How clients mount it.
    pub mount: MountSettings,
    shared: Given,
    /// One for each rule of `shared`.
    placements: Vec<Option<HolderRule>>,
    path: PathBuf,
}

/// One `[[server]]`. It has at least one role.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// 1 to 65535.
    pub id: u16,
    /// It serves names and attributes.
    pub metadata: bool,
    /// It holds data: then it has memory, flash or both.
    pub data: bool,
    /// Where it listens; at least one. Of a host all addresses that the resolver knows.
    pub addresses: Vec<SocketAddr>,
    /// Where it is in the network for restart copies, which a data server listens in as well, and a
    /// metadata server comes from. None: such copies go over its other addresses.
    pub replication_addresses: Vec<SocketAddr>,
    /// How commands get to its node: `host`, else the host of its first address.
    pub host: String,
    /// Servers of one rack fail together. `None`: this one fails alone.
    pub rack: Option<String>,
    /// Its state folder; absolute.
    pub state: PathBuf,
    /// Memory to borrow, of a fixed size, bytes.
    pub dram_bytes: Option<u64>,
    /// Memory to borrow, as much as jobs do without.
    pub borrows: Option<Lending>,
    /// Flash directories; absolute.
    pub ssd: Vec<SsdSetting>,
}

/// What `[mount]` says; the flags of `forebay mount` go before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSettings {
    /// Sockets to each server, 1 to 64. Default: 4.
    pub connections: usize,
    /// How requests are spread over them. Default: auto.
    pub distribution: Distribution,
    /// After so long without an answer of a server a program gets `EIO`, 1 s at least. `None`, the
    /// default (`soft = false`): it waits.
    pub soft: Option<Duration>,
    /// Data is encrypted on the way. Default: as `[cluster] encrypt`, which it may not undo.
    pub encrypt: bool,
    /// Other users may use the mount. `None`, the default: for who may mount by itself.
    pub allow_other: Option<bool>,
    /// Threads of a mount, 1 to 64, where the file says so; see [`MountSettings::threads`].
    pub threads: Option<usize>,
    /// What the cores of this node want, 2 to 8; without meaning beside `threads`.
    pub cores: usize,
}

impl MountSettings {
    /// Threads that take requests from the kernel, 1 to 64. A thread that writes waits until its
    /// data is at the server. So there is one for each connection, beside those that the cores
    /// want. On the server's own node (`local`) the kernel writes by itself, and the latter will
    /// do.
    pub fn threads(&self, local: bool) -> usize {
        let waiting = if local { 0 } else { self.connections };
        self.threads
            .unwrap_or((self.cores + waiting).min(MOUNT_THREADS_MAX))
    }
}

impl Cluster {
    /// Reads and checks a file. Names of hosts are looked up, which may take as long as the
    /// system's resolver does.
    ///
    /// # Errors
    /// One line: where, what is wrong, and what to write instead.
    pub fn load(path: &Path) -> Result<Cluster, ConfigError> {
        let text = |failure: crate::exit::Failure| ConfigError::Unreadable(failure.message);
        Cluster::of_file(&ConfigFile::read(path).map_err(text)?)
    }

    /// The same, with every key that the file gives.
    ///
    /// # Errors
    /// As those of [`Cluster::load`].
    pub fn load_with_texts(
        path: &Path,
    ) -> Result<(Cluster, BTreeMap<String, String>), ConfigError> {
        let text = |failure: crate::exit::Failure| ConfigError::Unreadable(failure.message);
        let file = ConfigFile::read(path).map_err(text)?;
        let texts = Layers::of_file(&file).map_err(text)?.texts();
        Ok((Cluster::of_file(&file)?, texts))
    }

    /// What a server is started with now, with every key that the file gives.
    ///
    /// # Errors
    /// As those of [`Cluster::load`] and [`Cluster::plan`].
    pub fn read_for(path: &Path, id: u16, may_mount: bool) -> Result<Read, ConfigError> {
        let (cluster, texts) = Cluster::load_with_texts(path)?;
        let plan = cluster.plan(cluster.server(id)?, may_mount)?;
        Ok(Read { plan, texts })
    }

    pub(super) fn of_file(file: &ConfigFile) -> Result<Cluster, ConfigError> {
        let written: Written = Layers::of_file(file)
            .and_then(Layers::read)
            .map_err(|failure| ConfigError::Unreadable(failure.message))?;
        check_each_once(&written.limits, Some(file))
            .map_err(|failure| ConfigError::Unreadable(failure.message))?;
        let checks = Checks::of(file);
        let section = written.cluster.as_ref();
        let section = section.ok_or_else(|| checks.whole(Problem::NoCluster))?;
        let common = checks.common(section)?;
        let servers = checks.servers(&written)?;
        checks.second_copies(&written, section, (common.replicas, &servers))?;
        let placements = checks.placements(&written, &servers)?;
        let mut store = common.store;
        if checks.standbys(&written, &servers, &store)?
            && let StoreSetting::Server(store) = &mut store
        {
            store.standby = true;
        }
        // The servers' settings are the same but for tiers, which are checked.
        let given = given_of(written.shared(), &common.pfs, &servers[0]);
        let plan = settle_member(given, true).map_err(|failure| {
            let why = failure.message;
            let why = why.strip_prefix("up: ").unwrap_or(&why);
            checks.whole(Problem::Setting(why.to_string()))
        })?;
        let mount = checks.mount(&written.mount, common.encrypt, plan.threads)?;
        Ok(Cluster {
            name: common.name,
            pfs: common.pfs,
            key: common.key,
            store,
            replicas: common.replicas,
            replica_rate: common.replica_rate,
            restart_copies: common.restart_copies,
            restart_copies_space: common.restart_copies_space,
            encrypt: common.encrypt,
            squash_root: common.squash_root,
            lease: common.lease,
            connection_rate: common.connection_rate,
            servers,
            mount,
            shared: written.shared(),
            placements,
            path: file.path().into(),
        })
    }

    /// The server of an id.
    ///
    /// # Errors
    /// [`Problem::NoSuchServer`].
    pub fn server(&self, id: u16) -> Result<&Server, ConfigError> {
        let found = self.servers.iter().find(|server| server.id == id);
        found.ok_or_else(|| {
            let known = self.servers.iter().map(|server| server.id).collect();
            self.refused(Problem::NoSuchServer { id, known })
        })
    }

    /// The servers that serve names, in the order of the file: at least one, of which one leads.
    pub fn metadata_servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| server.metadata)
    }

    /// Whether one of several metadata servers leads, and another takes over by itself.
    pub fn has_standby(&self) -> bool {
        self.metadata_servers().nth(1).is_some()
    }

    /// What a server is started with. `may_mount` as for `up`.
    ///
    /// # Errors
    /// What `up` would refuse of the same settings.
    pub fn plan(&self, server: &Server, may_mount: bool) -> Result<Plan, ConfigError> {
        let given = given_of(self.shared.clone(), &self.pfs, server);
        let mut plan = settle_member(given, may_mount).map_err(|failure| {
            let why = failure.message;
            let why = why.strip_prefix("up: ").unwrap_or(&why);
            self.refused(Problem::Setting(why.to_string()))
        })?;
        if self.replicas > 1 {
            plan.settings.durability.get_or_insert(Durability::Replica);
        }
        if let Some(rate) = self.replica_rate {
            plan.settings.replica_rate_bytes_per_s = rate;
        }
        plan.settings.restart_copies = self.restart_copies;
        for (rule, placement) in plan.settings.rules.iter_mut().zip(&self.placements) {
            rule.placement = placement.clone();
        }
        if let Some(fraction) = self.restart_copies_space {
            plan.settings.restart_copies_fraction = fraction;
        }
        Ok(plan)
    }

    /// Servers with the same number fail together.
    pub fn rack(&self, server: &Server) -> u16 {
        rack_number(&self.servers, server)
    }

    /// The PFS is there, on this node. Waits as long as a PFS does that does not answer.
    ///
    /// # Errors
    /// [`Problem::NoPfs`], [`Problem::PfsNoDirectory`].
    pub fn check_pfs(&self) -> Result<(), ConfigError> {
        let path = self.pfs.clone();
        match std::fs::metadata(&self.pfs) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(self.refused(Problem::PfsNoDirectory { path })),
            Err(source) => Err(self.refused(Problem::NoPfs { path, source })),
        }
    }

    /// Why a mount on this node is refused where the PFS is another one.
    pub fn another_pfs(&self) -> ConfigError {
        let (path, cluster) = (self.pfs.clone(), self.name.clone());
        self.refused(Problem::AnotherPfs { path, cluster })
    }

    /// All addresses of a server are this node's. Where the kernel binds others' as well
    /// (`net.ipv4.ip_nonlocal_bind`), this finds nothing wrong.
    ///
    /// # Errors
    /// [`Problem::Elsewhere`] names the server that this node is, if it is one.
    pub fn check_here(&self, server: &Server) -> Result<(), ConfigError> {
        let addresses = server.addresses.iter();
        for &address in addresses.chain(&server.replication_addresses) {
            let id = server.id;
            match is_here(address) {
                Ok(true) => {}
                Ok(false) => {
                    let others = self.here(id);
                    return Err(self.refused(Problem::Elsewhere {
                        id,
                        address,
                        others,
                    }));
                }
                Err(source) => {
                    return Err(self.refused(Problem::Unclear {
                        id,
                        address,
                        source,
                    }));
                }
            }
        }
        Ok(())
    }

    /// Other servers whose addresses are all this node's.
    fn here(&self, except: u16) -> Vec<u16> {
        let all_here = |server: &&Server| {
            let mut addresses = server.addresses.iter();
            // What cannot be found out is only not suggested.
            server.id != except && addresses.all(|&one| is_here(one).unwrap_or(false))
        };
        let here = self.servers.iter().filter(all_here);
        here.map(|server| server.id).collect()
    }

    fn refused(&self, problem: Problem) -> ConfigError {
        ConfigError::In {
            path: self.path.clone(),
            problem,
        }
    }
}

/// The settings of one server as `up` takes them.
fn given_of(shared: Given, pfs: &Path, server: &Server) -> Given {
    let fixed = server.dram_bytes.map(|bytes| Dram(DramSize::Fixed(bytes)));
    Given {
        pfs: Some(Folder(pfs.into())),
        mount: None,
        state: Some(Folder(server.state.clone())),
        dram: server.borrows.map(|_| Dram(DramSize::Auto)).or(fixed),
        dram_min: server.borrows.map(|bounds| Size(bounds.min_bytes)),
        dram_max: server.borrows.map(|bounds| Size(bounds.max_bytes)),
        dram_max_share: server.borrows.map(|bounds| Fraction(bounds.max_share)),
        ssd: Some(server.ssd.iter().cloned().map(Ssd).collect()),
        ..shared
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
