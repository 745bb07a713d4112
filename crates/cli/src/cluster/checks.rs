//! What makes no sense in a `cluster.toml` is refused, with the line it is in.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use forebay_policy::durability::Durability;
use forebay_policy::lending::Lending;
use forebay_policy::links::Distribution;
use forebay_server::{ServerStore, SsdSetting, StoreLocation, StoreSetting};
use forebay_types::{format_duration, format_size};
use toml::Spanned;

use super::address::{is_node, resolve};
use super::config::{MountSettings, Server};
use super::error::{ConfigError, Problem};
use super::written::{Role, Section, Written, WrittenMount, WrittenServer};
use crate::up::layers::ConfigFile;
use crate::up::settle::TIER_BYTES_MIN;
use crate::up::values::{Count, Dram, DramSize, Folder, Rate, Ssd, Switch};

/// Longest name of a cluster or rack: it is part of names of files and mounts.
pub const NAME_BYTES_MAX: usize = 64;
/// The records are in the state folder.
const EMBEDDED: &str = "embedded";
/// Sockets to one server: more than these only cost memory.
const CONNECTIONS_MAX: usize = 64;
const CONNECTIONS_DEFAULT: usize = 4;
/// A lease shorter than this ends by a busy node, a longer one lets all others wait for it.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(3600);
const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// Slower than this a request of 1 MiB takes so long that its server seems to be dead.
const RATE_MIN: u64 = 1_000_000;
/// Copies of what is not on the PFS.
pub(super) const REPLICAS_MAX: usize = 2;
/// No server that works answers so late.
const SOFT_MIN: Duration = Duration::from_secs(1);

/// Says where in the file something is wrong.
pub struct Checks<'a> {
    file: &'a ConfigFile,
}

/// What `[cluster]` says.
pub struct Common {
    pub name: String,
    pub pfs: PathBuf,
    pub key: PathBuf,
    pub store: StoreSetting,
    pub replicas: usize,
    pub replica_rate: Option<u64>,
    pub restart_copies: usize,
    pub restart_copies_space: Option<f64>,
    pub encrypt: bool,
    pub squash_root: bool,
    pub lease: Duration,
    pub connection_rate: Option<u64>,
}

/// For how long a mount may wait for a server before programs get an error: 1 s at least.
///
/// # Errors
/// [`Problem::Soft`].
pub fn patient_enough(soft: Duration) -> Result<Duration, Problem> {
    match soft < SOFT_MIN {
        true => {
            let [given, least] = [soft, SOFT_MIN].map(format_duration);
            Err(Problem::Soft(given, least))
        }
        false => Ok(soft),
    }
}

/// Servers with the same number fail together.
pub fn rack_number(servers: &[Server], server: &Server) -> u16 {
    let is_same = |other: &Server| match &server.rack {
        Some(_) => other.rack == server.rack,
        None => other.id == server.id,
    };
    servers.iter().position(is_same).map_or(0, |at| at as u16)
}

impl<'a> Checks<'a> {
    pub fn of(file: &'a ConfigFile) -> Checks<'a> {
        Checks { file }
    }

    pub(super) fn at(&self, span: Range<usize>, problem: Problem) -> ConfigError {
        ConfigError::At {
            path: self.file.path().into(),
            line: self.file.line_at(span.start),
            problem,
        }
    }

    /// Something is wrong that has no line.
    pub fn whole(&self, problem: Problem) -> ConfigError {
        ConfigError::In {
            path: self.file.path().into(),
            problem,
        }
    }

    /// `[cluster]`.
    pub fn common(&self, section: &Section) -> Result<Common, ConfigError> {
        let lease = match &section.lease {
            Some(lease) => {
                let given = lease.get_ref().0;
                if !(LEASE_MIN..=LEASE_MAX).contains(&given) {
                    let [given, min, max] = [given, LEASE_MIN, LEASE_MAX].map(format_duration);
                    return Err(self.at(lease.span(), Problem::Lease(given, min, max)));
                }
                given
            }
            None => LEASE_DEFAULT,
        };
        let name = self.name(&section.name, "name of a cluster")?;
        Ok(Common {
            pfs: self.absolute(&section.pfs, "pfs")?,
            key: self.absolute(&section.key, "key")?,
            store: self.store(section.store.as_ref(), &name)?,
            name,
            replicas: self.replicas(section.replicas.as_ref())?,
            replica_rate: self.replica_rate(section.replica_rate.as_ref())?,
            restart_copies: self.restart_copies(section.restart_copies.as_ref())?,
            restart_copies_space: self.restart_copies_space(section)?,
            encrypt: section.encrypt.as_ref().is_some_and(|given| given.0),
            squash_root: section.squash_root.as_ref().is_some_and(|given| given.0),
            lease,
            connection_rate: self.rate(section.connection_rate.as_ref())?,
        })
    }

    fn rate(&self, given: Option<&Spanned<Rate>>) -> Result<Option<u64>, ConfigError> {
        match given.map(|given| (given.get_ref().0 as u64, given.span())) {
            Some((rate, span)) if rate < RATE_MIN => {
                let [given, least] = [rate, RATE_MIN].map(format_size);
                Err(self.at(span, Problem::ConnectionRate(given, least)))
            }
            other => Ok(other.map(|(rate, _)| rate)),
        }
    }

    /// A URL that gives no prefix has the cluster's name: clusters may share a server.
    fn store(
        &self,
        given: Option<&Spanned<String>>,
        cluster: &str,
    ) -> Result<StoreSetting, ConfigError> {
        let Some(given) = given.filter(|given| given.get_ref() != EMBEDDED) else {
            return Ok(StoreSetting::Embedded);
        };
        let refuse = |problem| Err(self.at(given.span(), problem));
        // What is no URL may still have a password in it.
        let unknown = || {
            let shown = given.get_ref().rsplit_once('@');
            shown.map_or(given.get_ref().clone(), |(_, place)| format!("...@{place}"))
        };
        match StoreLocation::parse_for(cluster, given.get_ref()) {
            // Only within the program: in this file it would be another way to say the same.
            Ok(StoreLocation::Embedded(_)) => refuse(Problem::UnknownStore(unknown())),
            Ok(location) => Ok(StoreSetting::Server(ServerStore {
                location,
                cluster: cluster.to_string(),
                take_over: false,
                standby: false,
            })),
            Err(_) if !given.get_ref().contains("://") => refuse(Problem::UnknownStore(unknown())),
            Err(error) => refuse(Problem::Setting(error.to_string())),
        }
    }

    fn replicas(&self, given: Option<&Spanned<Count>>) -> Result<usize, ConfigError> {
        match given.map(|given| (given.get_ref().0, given.span())) {
            None => Ok(1),
            Some((copies @ 1..=REPLICAS_MAX, _)) => Ok(copies),
            Some((other, span)) => Err(self.at(span, Problem::Replicas(other))),
        }
    }

    fn replica_rate(&self, given: Option<&Spanned<Rate>>) -> Result<Option<u64>, ConfigError> {
        match given.map(|given| (given.get_ref().0 as u64, given.span())) {
            Some((rate, span)) if rate < RATE_MIN => {
                let [given, least] = [rate, RATE_MIN].map(format_size);
                Err(self.at(span, Problem::ReplicaRate(given, least)))
            }
            other => Ok(other.map(|(rate, _)| rate)),
        }
    }

    fn restart_copies(&self, given: Option<&Spanned<Count>>) -> Result<usize, ConfigError> {
        match given.map(|given| (given.get_ref().0, given.span())) {
            None => Ok(0),
            Some((copies @ 0..=1, _)) => Ok(copies),
            Some((other, span)) => Err(self.at(span, Problem::RestartCopies(other))),
        }
    }

    fn restart_copies_space(&self, section: &Section) -> Result<Option<f64>, ConfigError> {
        let given = section.restart_copies_space.as_ref();
        match given.map(|given| (given.get_ref().0, given.span())) {
            Some((part, span)) if !(part > 0.0 && part <= 1.0) => {
                Err(self.at(span, Problem::RestartCopiesSpace(part)))
            }
            other => Ok(other.map(|(part, _)| part)),
        }
    }

    /// A second copy needs a second server with flash, and a level that asks for one a cluster that
    /// keeps two.
    pub fn second_copies(
        &self,
        written: &Written,
        section: &Section,
        (replicas, servers): (usize, &[Server]),
    ) -> Result<(), ConfigError> {
        let rules = written.rules.iter().map(|rule| rule.durability.as_ref());
        let mut levels = rules.chain([written.durability.as_ref()]).flatten();
        if replicas < 2 {
            let wants = levels.find(|level| level.get_ref().0 == Durability::Replica);
            return match wants {
                Some(level) => Err(self.at(level.span(), Problem::ReplicaWithoutTwo)),
                None => Ok(()),
            };
        }
        let with_flash = servers
            .iter()
            .filter(|server| server.data && !server.ssd.is_empty());
        match (with_flash.count(), &section.replicas) {
            (0 | 1, Some(given)) => Err(self.at(given.span(), Problem::NoSecondServer)),
            _ => Ok(()),
        }
    }

    fn name(&self, given: &Spanned<String>, what: &'static str) -> Result<String, ConfigError> {
        let name = given.get_ref();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        match begins && name.len() <= NAME_BYTES_MAX && name.chars().all(is_part) {
            true => Ok(name.clone()),
            false => Err(self.at(given.span(), Problem::Name(name.clone(), what))),
        }
    }

    fn absolute(&self, given: &Spanned<Folder>, key: &'static str) -> Result<PathBuf, ConfigError> {
        let path = &given.get_ref().0;
        match path.is_absolute() {
            true => Ok(path.clone()),
            false => {
                let path = path.clone();
                Err(self.at(given.span(), Problem::Relative { key, path }))
            }
        }
    }

    /// All `[[server]]`.
    pub fn servers(&self, written: &Written) -> Result<Vec<Server>, ConfigError> {
        if written.servers.is_empty() {
            return Err(self.whole(Problem::NoServer));
        }
        let mut servers: Vec<Server> = Vec::new();
        let mut taken: Vec<(u16, usize)> = Vec::new();
        let mut addresses: Vec<(SocketAddr, usize)> = Vec::new();
        for one in &written.servers {
            let server = self.server(one.get_ref(), &mut taken, &mut addresses)?;
            self.flash(written, &server, one.span())?;
            servers.push(server);
        }
        if !servers.iter().any(|server| server.metadata) {
            return Err(self.whole(Problem::NoMetadata));
        }
        if !servers.iter().any(|server| server.data) {
            return Err(self.whole(Problem::NoData));
        }
        self.replication(written, &servers)?;
        Ok(servers)
    }

    /// A data server lets a metadata server in by the address that it comes from.
    fn replication(&self, written: &Written, servers: &[Server]) -> Result<(), ConfigError> {
        let named = servers.iter().zip(&written.servers);
        let has_one = |server: &Server| !server.replication_addresses.is_empty();
        let without = |server: &Server| server.metadata && !has_one(server);
        if !servers.iter().any(has_one) {
            return Ok(());
        }
        match named.into_iter().find(|(server, _)| without(server)) {
            Some((server, one)) => {
                let span = one.get_ref().addresses.span();
                Err(self.at(span, Problem::NoReplicationAddress(server.id)))
            }
            None => Ok(()),
        }
    }

    /// Of several servers with the role metadata one leads, and the others stand by. Each must be
    /// able to go on where another stopped: with the records of a store that says who leads, and
    /// without what only the other's node has.
    pub fn standbys(
        &self,
        written: &Written,
        servers: &[Server],
        store: &StoreSetting,
    ) -> Result<bool, ConfigError> {
        let named = servers.iter().zip(&written.servers);
        let named = named.filter(|(server, _)| server.metadata);
        let named: Vec<_> = named.collect();
        let Some((second, one)) = named.get(1) else {
            return Ok(false);
        };
        let is_etcd = matches!(store, StoreSetting::Server(store)
            if matches!(store.location, StoreLocation::Etcd { .. }));
        if !is_etcd {
            let span = one.get_ref().roles.span();
            return Err(self.at(span, Problem::StandbyStore(second.id)));
        }
        match named.iter().find(|(server, _)| server.data) {
            Some((server, one)) => {
                let span = one.get_ref().roles.span();
                Err(self.at(span, Problem::StandbyWithTiers(server.id)))
            }
            None => Ok(true),
        }
    }

    fn server(
        &self,
        written: &WrittenServer,
        taken: &mut Vec<(u16, usize)>,
        addresses: &mut Vec<(SocketAddr, usize)>,
    ) -> Result<Server, ConfigError> {
        let id = self.id(&written.id, taken)?;
        let roles = written.roles.get_ref();
        let refuse_roles = |problem| Err(self.at(written.roles.span(), problem));
        if roles.is_empty() {
            return refuse_roles(Problem::NoRole(id));
        }
        let has = |role| roles.iter().filter(|&&one| one == role).count();
        let (metadata, data) = (has(Role::Metadata), has(Role::Data));
        if metadata > 1 || data > 1 {
            return refuse_roles(Problem::SameRole(id));
        }
        let rack = written.rack.as_ref();
        let rack = rack.map(|rack| self.name(rack, "name of a rack"));
        let server = Server {
            id,
            metadata: metadata > 0,
            data: data > 0,
            addresses: self.addresses((id, "addresses"), &written.addresses, addresses)?,
            replication_addresses: match &written.replication_addresses {
                Some(given) => self.addresses((id, "replication_addresses"), given, addresses)?,
                None => Vec::new(),
            },
            host: self.host(id, written)?,
            rack: rack.transpose()?,
            state: self.absolute(&written.state, "state")?,
            dram_bytes: self.dram(written.dram.as_ref())?,
            borrows: self.borrows(id, written)?,
            ssd: self.ssd(&written.ssd)?,
        };
        let has_memory = server.dram_bytes.is_some() || server.borrows.is_some();
        if server.data && !has_memory && server.ssd.is_empty() {
            return Err(self.at(written.id.span(), Problem::NoTier(id)));
        }
        if !server.data && (has_memory || !server.ssd.is_empty()) {
            return refuse_roles(Problem::TierWithoutData(id));
        }
        Ok(server)
    }

    fn host(&self, id: u16, written: &WrittenServer) -> Result<String, ConfigError> {
        if let Some(host) = &written.host {
            return match is_node(host.get_ref()) {
                true => Ok(host.get_ref().clone()),
                false => Err(self.at(host.span(), Problem::Host(id, host.get_ref().clone()))),
            };
        }
        let first = written.addresses.get_ref().first();
        let first = first.map_or("", |address| address.get_ref().as_str());
        let host = first.rsplit_once(':').map_or(first, |(host, _)| host);
        Ok(host.trim_matches(['[', ']']).to_string())
    }

    fn id(
        &self,
        given: &Spanned<Count>,
        taken: &mut Vec<(u16, usize)>,
    ) -> Result<u16, ConfigError> {
        let number = given.get_ref().0;
        let id = match u16::try_from(number) {
            Ok(id) if id != 0 => id,
            _ => return Err(self.at(given.span(), Problem::Id(number))),
        };
        if let Some((_, line)) = taken.iter().find(|(other, _)| *other == id) {
            return Err(self.at(given.span(), Problem::SameId(id, *line)));
        }
        taken.push((id, self.file.line_at(given.span().start)));
        Ok(id)
    }

    fn addresses(
        &self,
        (id, key): (u16, &'static str),
        written: &Spanned<Vec<Spanned<String>>>,
        taken: &mut Vec<(SocketAddr, usize)>,
    ) -> Result<Vec<SocketAddr>, ConfigError> {
        if written.get_ref().is_empty() {
            return Err(self.at(written.span(), Problem::NoAddress(id, key)));
        }
        let mut all = Vec::new();
        for one in written.get_ref() {
            let found = resolve(one.get_ref()).map_err(|why| {
                let written = one.get_ref().clone();
                self.at(one.span(), Problem::Address { written, why })
            })?;
            for address in found {
                if let Some((_, line)) = taken.iter().find(|(other, _)| *other == address) {
                    return Err(self.at(one.span(), Problem::SameAddress(address, *line)));
                }
                taken.push((address, self.file.line_at(one.span().start)));
                all.push(address);
            }
        }
        Ok(all)
    }

    fn dram(&self, given: Option<&Spanned<Dram>>) -> Result<Option<u64>, ConfigError> {
        match given.map(|given| (given.get_ref().0, given.span())) {
            Some((DramSize::Fixed(bytes), span)) => {
                self.tier_size(bytes, span)?;
                Ok(Some(bytes))
            }
            Some((DramSize::Auto | DramSize::None, _)) | None => Ok(None),
        }
    }

    /// The bounds are checked also beside memory of a fixed size, where they do nothing.
    fn borrows(&self, id: u16, written: &WrittenServer) -> Result<Option<Lending>, ConfigError> {
        let (min, max) = (&written.dram_min, &written.dram_max);
        let share = written.dram_max_share.as_ref();
        let unset = Lending::default();
        let bounds = Lending {
            min_bytes: min.as_ref().map_or(unset.min_bytes, |size| size.0),
            max_bytes: max.as_ref().map_or(unset.max_bytes, |size| size.0),
            max_share: share.map_or(unset.max_share, |share| share.0),
        };
        if let Err(error) = bounds.check() {
            return Err(self.at(written.id.span(), Problem::Lending(id, error)));
        }
        let auto = |dram: &Spanned<Dram>| dram.get_ref().0 == DramSize::Auto;
        Ok(written.dram.as_ref().is_some_and(auto).then_some(bounds))
    }

    fn ssd(&self, given: &[Spanned<Ssd>]) -> Result<Vec<SsdSetting>, ConfigError> {
        let checked = given.iter().map(|one| {
            let ssd = &one.get_ref().0;
            if !ssd.dir.is_absolute() {
                let (key, path) = ("ssd", ssd.dir.clone());
                return Err(self.at(one.span(), Problem::Relative { key, path }));
            }
            if let Some(bytes) = ssd.capacity_bytes {
                self.tier_size(bytes, one.span())?;
            }
            Ok(ssd.clone())
        });
        checked.collect()
    }

    fn tier_size(&self, bytes: u64, span: Range<usize>) -> Result<(), ConfigError> {
        match bytes >= TIER_BYTES_MIN {
            true => Ok(()),
            false => {
                let [given, least] = [bytes, TIER_BYTES_MIN].map(format_size);
                Err(self.at(span, Problem::SmallTier(given, least)))
            }
        }
    }

    /// Durability `ssd` needs flash wherever there are data.
    fn flash(
        &self,
        written: &Written,
        server: &Server,
        span: Range<usize>,
    ) -> Result<(), ConfigError> {
        let rules = written.rules.iter().map(|rule| rule.durability.as_ref());
        let mut levels = rules.chain([written.durability.as_ref()]).flatten();
        let wanted = levels.any(|level| level.get_ref().0 == Durability::Ssd);
        match server.data && server.ssd.is_empty() && wanted {
            true => Err(self.at(span, Problem::NoFlash(server.id))),
            false => Ok(()),
        }
    }

    /// `[mount]`. What it says of threads is checked with the servers' settings.
    pub fn mount(
        &self,
        written: &WrittenMount,
        all_encrypted: bool,
        cores: usize,
    ) -> Result<MountSettings, ConfigError> {
        let connections = match &written.connections {
            Some(given) if !(1..=CONNECTIONS_MAX).contains(&given.get_ref().0) => {
                let problem = Problem::Connections(given.get_ref().0, CONNECTIONS_MAX);
                return Err(self.at(given.span(), problem));
            }
            Some(given) => given.get_ref().0,
            None => CONNECTIONS_DEFAULT,
        };
        let soft = written.soft.as_ref();
        let patience = soft.and_then(|soft| soft.get_ref().0);
        if let (Some(soft), Some(given)) = (soft, patience) {
            patient_enough(given).map_err(|problem| self.at(soft.span(), problem))?;
        }
        let encrypt = match &written.encrypt {
            Some(given) if all_encrypted && *given.get_ref() == Switch(false) => {
                return Err(self.at(given.span(), Problem::Encrypt));
            }
            Some(given) => given.get_ref().0,
            None => all_encrypted,
        };
        let distribution = written.distribution.as_ref();
        Ok(MountSettings {
            connections,
            distribution: distribution.map_or(Distribution::Auto, |given| given.0),
            soft: patience,
            encrypt,
            allow_other: written.allow_other.as_ref().map(|given| given.0),
            threads: written.threads.as_ref().map(|given| given.0),
            cores,
        })
    }
}
