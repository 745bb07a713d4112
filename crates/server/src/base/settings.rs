//! What an administrator or user may set. Plain values: parsing them is the command line's work.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_kv::Location;
use forebay_policy::demotion::COPY_OUT_MIN_BYTES;
use forebay_policy::demotion::PlacementPolicy;
use forebay_policy::durability::Durability;
use forebay_policy::engine::Bandwidths;
use forebay_policy::history::Keep;
use forebay_policy::holders::HolderRule;
use forebay_policy::lending::Lending;
use forebay_policy::limits::Limit;
use forebay_policy::patience::DATA_SERVERS_AT_START;
use forebay_policy::placement;
use forebay_policy::publication::GroupMode;
use forebay_policy::replicators::SPACE_FRACTION;
use forebay_tiers::{MachineMemory, MemorySource, SystemMemory};
use forebay_wire::Connection;
use forebay_wire::control::KeeperStatus;

pub use forebay_holder::SsdSetting;

/// A data server on another node.
#[derive(Clone, Debug, PartialEq)]
pub struct HolderSetting {
    /// Its id in the cluster.
    pub server: u16,
    /// Servers with the same number fail together.
    pub rack: u16,
    /// Where mounts on its node come from.
    pub addresses: Vec<IpAddr>,
    /// How it is reached.
    pub way: HolderWay,
    /// How it is reached over the network for copies that nobody waits for; `None`: as for
    /// everything else.
    pub replication: Option<HolderWay>,
}

/// A server of the cluster, for who looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSetting {
    /// Its id in the cluster.
    pub server: u16,
    /// The name of its rack.
    pub rack: Option<String>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// It serves names.
    pub metadata: bool,
    /// It holds data.
    pub data: bool,
}

/// A connection to a data server. Two are equal if they are one.
#[derive(Clone)]
pub struct HolderWay(pub Arc<dyn Connection>);

impl fmt::Debug for HolderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a connection)")
    }
}

impl PartialEq for HolderWay {
    fn eq(&self, other: &HolderWay) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Memory that is borrowed while jobs do without it.
#[derive(Clone, Debug, PartialEq)]
pub struct LendingSetting {
    /// How much.
    pub bounds: Lending,
    /// Who says how much memory there is.
    pub memory: MemoryWay,
}

/// The way to look at memory.
#[derive(Clone)]
pub struct MemoryWay(pub Arc<dyn MemorySource>);

impl Default for MemoryWay {
    fn default() -> MemoryWay {
        MemoryWay(Arc::new(SystemMemory::default()))
    }
}

impl fmt::Debug for MemoryWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(memory)")
    }
}

impl PartialEq for MemoryWay {
    /// There is one machine: settings that are read again name the same.
    fn eq(&self, _other: &MemoryWay) -> bool {
        true
    }
}

/// How a finished copy on the PFS is compared with what was read from the burst buffer: always its
/// length and its CRC-32C, after it was flushed, against those of the very bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Read back as any program of this node would. The page cache answers as long as it has the
    /// bytes. That finds short and lost writes, and what went wrong on the way into the cache. It
    /// does not find what a server or medium changed.
    ReadBack,
    /// The PFS client's cached pages are dropped first, so that its servers answer. Slower.
    Media,
}

/// Files matching a pattern belong to an application, or have a level of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// Path from the root of the mount; `*` stands for part of one component, `**` for any number
    /// of components, `{app}` and `{version}` for what they name.
    pub pattern: String,
    /// What fsync promises for these files.
    pub durability: Option<Durability>,
    /// MTBF of these applications before their first restart.
    pub mtbf: Option<Duration>,
    /// Directories that match are versions, published as a whole.
    pub group: Option<GroupMode>,
    /// On which servers these files lie.
    pub placement: Option<HolderRule>,
    /// A clean copy is taken as what the PFS has for so long after the last look there.
    pub trust: Option<Duration>,
}

/// When and how the drain runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DemotionSettings {
    /// Demote when nothing has been written for `idle_after`.
    pub idle: bool,
    /// That quiet time.
    pub idle_after: Duration,
    /// Demote regardless of idleness from this fraction of the capacity in undrained data on.
    pub start_fraction: f64,
    /// Hard cap on undrained data as a fraction of the capacity.
    pub dirty_cap_fraction: f64,
    /// How copies are verified.
    pub verify: Verify,
    /// Copying threads.
    pub workers: usize,
    /// Copies have no name until they are whole, where the PFS has such files; otherwise, and
    /// without this, a temporary name.
    pub unnamed: bool,
    /// Files of data servers from this size on are copied by the data server itself, bytes.
    pub copy_out_min_bytes: u64,
    /// First wait before a failed demotion is tried again; doubled up to a minute.
    pub retry_after: Duration,
}

impl Default for DemotionSettings {
    fn default() -> Self {
        DemotionSettings {
            idle: true,
            idle_after: Duration::from_millis(500),
            start_fraction: 0.5,
            dirty_cap_fraction: 0.95,
            verify: Verify::ReadBack,
            workers: 2,
            unnamed: true,
            copy_out_min_bytes: COPY_OUT_MIN_BYTES,
            retry_after: Duration::from_secs(1),
        }
    }
}

/// Over-subscription: what plans are made from, and which of its means are used.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// Length of the planning window.
    pub period: Duration,
    /// The four bandwidths; `None`: those that were measured, if they were.
    pub bandwidths: Option<Bandwidths>,
    /// Order of victims.
    pub placement: PlacementPolicy,
    /// Hold the plan's rates.
    pub throttle: bool,
    /// Applications take turns where the plan sees contention.
    pub turns: bool,
    /// Longest turn while others wait.
    pub turn: Duration,
    /// Nobody waits for a turn longer than this.
    pub max_wait: Duration,
    /// Cold checkpoints go straight to the PFS when there is no room.
    pub direct: bool,
    /// Outdated versions that are no multiple of this are demoted last.
    pub keep_every: Option<u64>,
    /// One application's space under the policy `dedicated`.
    pub share_bytes: Option<u64>,
    /// MTBF before the first restart, where neither a rule nor the job's number of nodes says one.
    pub mtbf: Option<Duration>,
    /// Reads so soon after a write by the same login or job are verifications, not restarts.
    pub verify_window: Duration,
    /// A version whose files are all closed is complete after so long without a further one.
    pub quiet: Duration,
    /// Placement `coolness`: free shares of a tier at and below which files are forced out and move
    /// down, 0 to 1, the first not above the second.
    pub out_fractions: (f64, f64),
    /// Of the capacity, what files that are only guessed may take until they are read, 0 to 1; 0:
    /// nothing is guessed.
    pub read_ahead: f64,
    /// Hold the write limit with the kernel's block-I/O controller, too.
    pub block_io: bool,
    /// Free blocks are told to flash at this rate after deletes; 0: not at all.
    pub discard_bytes_per_s: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            period: Duration::from_secs(3600),
            bandwidths: None,
            placement: PlacementPolicy::Bbos,
            throttle: true,
            turns: true,
            turn: Duration::from_secs(2),
            max_wait: Duration::from_secs(10),
            direct: true,
            keep_every: None,
            share_bytes: None,
            mtbf: None,
            verify_window: Duration::from_secs(60),
            quiet: Duration::from_secs(30),
            out_fractions: (0.05, 0.2),
            read_ahead: 0.25,
            block_io: false,
            discard_bytes_per_s: 4 << 30,
        }
    }
}

/// Objects at rest on flash: when they are compared with what is on record.
#[derive(Clone, Debug, PartialEq)]
pub struct ScrubSettings {
    /// They are read in the background.
    pub enabled: bool,
    /// All of them about once in this time.
    pub pass: Duration,
    /// Never faster than this, bytes per second.
    pub rate_max_bytes_per_s: u64,
    /// Files up to this size whose checksum is known are compared with it when they are opened for
    /// the first time; 0: none.
    pub verify_on_open_bytes: u64,
    /// Undrained content that has stood still for so long gets a checksum.
    pub seal_after: Duration,
    /// They are read only while nothing was written for so long.
    pub calm: Duration,
}

impl Default for ScrubSettings {
    fn default() -> Self {
        ScrubSettings {
            enabled: true,
            pass: Duration::from_secs(7 * 24 * 3600),
            rate_max_bytes_per_s: 32 << 20,
            // Some milliseconds of reading.
            verify_on_open_bytes: 16 << 20,
            seal_after: Duration::from_secs(30),
            calm: Duration::from_secs(1),
        }
    }
}

/// Where the records are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSetting {
    /// In the state folder.
    Embedded,
    /// In a store on a server.
    Server(ServerStore),
}

/// A store on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStore {
    /// Where it is; with a password, if it has one, which is never shown.
    pub location: Location,
    /// The cluster whose records it has.
    pub cluster: String,
    /// Takes the store from a server that holds it, by a person's order.
    pub take_over: bool,
    /// Other servers may lead with these records: this one stands by while another does, and stops
    /// at once when its own hold is over. It has no tiers of its own, so that its state folder has
    /// nothing that could be out of date.
    pub standby: bool,
}

/// As people are shown it, without a password.
impl fmt::Display for StoreSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreSetting::Embedded => f.write_str("embedded"),
            StoreSetting::Server(store) => store.location.fmt(f),
        }
    }
}

/// Everything a server is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The slow file system; an existing, readable directory.
    pub pfs: PathBuf,
    /// Where this process shows it (for messages; the server does not mount). `None`: other
    /// processes do.
    pub mount: Option<PathBuf>,
    /// State folder; exists, and the caller holds its lock.
    pub state: PathBuf,
    /// Where the records are.
    pub store: StoreSetting,
    /// Size of the memory tier, bytes; of memory that is borrowed, the most.
    pub dram_bytes: Option<u64>,
    /// The memory tier has as much as jobs do without; `None`: it has its size always.
    pub lending: Option<LendingSetting>,
    /// Flash directories.
    pub ssd: Vec<SsdSetting>,
    /// Id of this server in its cluster; 0 without one.
    pub server: u16,
    /// Servers with the same number fail together.
    pub rack: u16,
    /// Data servers on other nodes, whose tiers are this burst buffer's, too.
    pub holders: Vec<HolderSetting>,
    /// All servers of the cluster; none without one.
    pub nodes: Vec<NodeSetting>,
    /// So long a start waits for data servers that do not answer; it goes on without them.
    pub wait_for_holders: Duration,
    /// What fsync promises; `None`: `ssd` where there is a flash tier, else `pfs`.
    pub durability: Option<Durability>,
    /// Second copies that are lost are made again no faster than this, bytes per second.
    pub replica_rate_bytes_per_s: u64,
    /// How many other nodes get a copy of the newest complete, drained checkpoint version; 0 or 1.
    pub restart_copies: usize,
    /// Part of each node's flash that these copies may take, 0 to 1.
    pub restart_copies_fraction: f64,
    /// First match wins.
    pub rules: Vec<PathRule>,
    /// Limits of users and groups.
    pub limits: Vec<Limit>,
    /// Name of the scheduling policy.
    pub policy: String,
    /// The drain.
    pub demotion: DemotionSettings,
    /// Over-subscription.
    pub engine: EngineSettings,
    /// Objects at rest on flash.
    pub scrub: ScrubSettings,
    /// What is kept of what was written and read.
    pub history: Keep,
    /// Let the kernel read and write objects by itself where it can.
    pub passthrough: bool,
    /// Room beyond the tiers' sizes for what the kernel writes by itself before it can be made to
    /// wait; `None`: by the machine's memory.
    pub overrun_bytes: Option<u64>,
    /// How long a write waits for space before it goes straight to the PFS.
    pub wait_for_space: Duration,
    /// How long a request that needs the PFS waits for it when it does not answer.
    pub pfs_timeout: Duration,
    /// Which start of the node this is; `None`: as the kernel says. For tests that cut the power of
    /// a part of the machine.
    pub boot_id: Option<String>,
    /// The process that starts this one again if it dies; `None`: nobody was asked to.
    pub keeper: Option<i32>,
    /// Descriptors that open files, copies under way and directories may have together; `None`:
    /// what the process may have and does not use at the start.
    pub descriptors_max: Option<u64>,
}

impl Settings {
    /// All servers that have tiers for this one: itself, and the data servers.
    pub fn servers(&self) -> impl Iterator<Item = u16> {
        let holders = self.holders.iter().map(|holder| holder.server);
        std::iter::once(self.server).chain(holders)
    }

    /// Whether it has memory or flash of its own.
    pub fn has_tiers(&self) -> bool {
        self.dram_bytes.is_some() || !self.ssd.is_empty()
    }

    /// Whether other servers may lead with the same records.
    pub fn has_standby(&self) -> bool {
        matches!(&self.store, StoreSetting::Server(store) if store.standby)
    }

    /// Below which path people find its files: the mount, else the same names on the PFS.
    pub fn shown_at(&self) -> &Path {
        self.mount.as_deref().unwrap_or(&self.pfs)
    }

    /// Defaults around the three directories that have none.
    pub fn new(pfs: PathBuf, mount: impl Into<Option<PathBuf>>, state: PathBuf) -> Settings {
        Settings {
            pfs,
            mount: mount.into(),
            state,
            store: StoreSetting::Embedded,
            dram_bytes: None,
            lending: None,
            ssd: Vec::new(),
            server: 0,
            rack: 0,
            holders: Vec::new(),
            nodes: Vec::new(),
            wait_for_holders: DATA_SERVERS_AT_START,
            durability: None,
            replica_rate_bytes_per_s: 256 << 20,
            restart_copies: 0,
            restart_copies_fraction: SPACE_FRACTION,
            rules: Vec::new(),
            limits: Vec::new(),
            policy: "bbos".into(),
            demotion: DemotionSettings::default(),
            engine: EngineSettings::default(),
            scrub: ScrubSettings::default(),
            history: Keep::default(),
            passthrough: true,
            overrun_bytes: None,
            wait_for_space: Duration::from_secs(2),
            pfs_timeout: Duration::from_secs(30),
            boot_id: None,
            keeper: None,
            descriptors_max: None,
        }
    }

    /// [`Self::keeper`], and whether it is there still: this process is its child as long as it is.
    pub fn keeper_status(&self) -> Option<KeeperStatus> {
        let keeper = self.keeper?;
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        Some(KeeperStatus {
            pid: keeper.unsigned_abs(),
            runs: parent == Some(keeper),
        })
    }

    /// [`Self::overrun_bytes`], or what is right for this machine.
    pub fn overrun_bytes(&self) -> u64 {
        let memory = || MachineMemory::now().map_or(0, |memory| memory.total_bytes);
        self.overrun_bytes
            .unwrap_or_else(|| placement::overrun_bytes(memory()))
    }
}
