//! The tiers of one server, by id.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_holder::{Claim, open_flash, open_memory};
use forebay_policy::placement::TierKind as PolicyKind;
use forebay_tiers::{DramMount, Object, PfsDir, PfsTree, Tier, TierKind};
use forebay_types::{ObjectId, TierId};
use forebay_wire::ObjectTier;
use parking_lot::Mutex;

use crate::base::settings::Settings;
use crate::buffer::holders::{Holder, find_holders};
use crate::buffer::known::{Known, There};
use crate::buffer::overflow::Overflow;

/// Id of the memory tier.
pub const DRAM: TierId = TierId(0);
/// Id of the overflow: a hidden directory on the PFS for files that go straight there. Its objects
/// become files by a rename.
pub const OVERFLOW: TierId = TierId(1);
/// Id of the first ssd tier; the state remembers which directory has which.
pub const FIRST_SSD: u8 = 2;
/// Most ssd directories.
pub const SSDS_MAX: usize = 64;

/// One tier and where it is.
pub struct Slot {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// The same for copies that nobody waits for: their bytes may have a network of their own.
    pub for_copies: Arc<dyn Tier>,
    /// Its kind.
    pub kind: TierKind,
    /// Capacity as it was opened, bytes; 0 for the overflow, which has no limit of its own. Memory
    /// that is borrowed comes and goes: the ledger knows what it may hold now.
    pub capacity_bytes: u64,
    /// The server that has it.
    pub server: u16,
    /// Something else was in its place before: what is on record of it is not here.
    pub is_another: bool,
    /// It was another server's before.
    pub has_moved: bool,
    /// No earlier start has put anything there.
    pub is_fresh: bool,
}

/// A tier that is open and has no id yet.
struct Opened {
    /// Its directory, or what it is called.
    name: PathBuf,
    tier: Arc<dyn Tier>,
    for_copies: Arc<dyn Tier>,
    kind: TierKind,
    server: u16,
}

/// All tiers. Ids stay with their directories over restarts.
pub struct TierSet {
    slots: Vec<Option<Slot>>,
    /// What tiers are called, also those that are not there, by id from [`FIRST_SSD`] on.
    names: Vec<String>,
    /// Which server had them last.
    servers: Vec<u16>,
    holders: Vec<Holder>,
    /// Those that their data servers do not name.
    absent: Vec<TierId>,
    overflow: Overflow,
    dram: Mutex<Option<DramMount>>,
    /// What the memory tier may hold now.
    dram_bytes: AtomicU64,
    /// Room in memory beyond what is held, for what the kernel writes before it can be made to
    /// wait.
    overrun_bytes: u64,
}

impl TierSet {
    /// Opens the tiers that the settings name. `known` are those that have had an id before; new
    /// ones are added to it.
    pub fn open(
        settings: &Settings,
        pfs: &PfsTree,
        claim: &Claim,
        known: &mut Known,
    ) -> io::Result<TierSet> {
        let mut set = TierSet {
            slots: vec![None, None],
            names: Vec::new(),
            servers: Vec::new(),
            holders: Vec::new(),
            absent: Vec::new(),
            overflow: Overflow::new(claim.instance()),
            dram: Mutex::new(None),
            dram_bytes: AtomicU64::new(settings.dram_bytes.unwrap_or(0)),
            overrun_bytes: settings.overrun_bytes(),
        };
        match set.fill(settings, pfs, claim, known) {
            Ok(()) => Ok(set),
            Err(error) => {
                set.undo(&settings.state);
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        settings: &Settings,
        pfs: &PfsTree,
        claim: &Claim,
        known: &mut Known,
    ) -> io::Result<()> {
        if let Some(size) = settings.dram_bytes {
            // The ledger keeps to the size; what lies beyond it is for writes that do not ask.
            let overrun_bytes = settings.overrun_bytes();
            let opened = open_memory(&settings.state, size, overrun_bytes, claim.instance());
            let (tier, mounted) = opened?;
            *self.dram.lock() = Some(mounted);
            let tier: Arc<dyn Tier> = Arc::new(tier);
            self.slots[DRAM.0 as usize] = Some(Slot {
                for_copies: tier.clone(),
                tier,
                kind: TierKind::Dram,
                capacity_bytes: size,
                server: settings.server,
                is_another: false,
                has_moved: false,
                is_fresh: false,
            });
        }
        let mut opened = Vec::new();
        let all = self.open_all(settings, claim, known, &mut opened);
        if let Err(error) = all {
            // They have no ids yet, by which others are given back.
            opened
                .iter()
                .for_each(|one| give_back(&*one.tier, one.kind));
            return Err(error);
        }
        self.put(opened, known)?;
        self.overflow.find(pfs)
    }

    fn open_all(
        &mut self,
        settings: &Settings,
        claim: &Claim,
        known: &mut Known,
        opened: &mut Vec<Opened>,
    ) -> io::Result<()> {
        for (at, ssd) in settings.ssd.iter().enumerate() {
            let name = match at {
                0 => "ssd".into(),
                at => format!("ssd{at}"),
            };
            let tier: Arc<dyn Tier> = Arc::new(open_flash(&name, ssd, claim.instance())?);
            opened.push(Opened {
                name: ssd.dir.clone(),
                for_copies: tier.clone(),
                tier,
                kind: TierKind::Ssd,
                server: settings.server,
            });
        }
        self.holders = find_holders(settings, claim, known);
        // Those that are only expected come last, and not where they are found elsewhere.
        self.holders.sort_by_key(Holder::is_expected);
        for holder in &mut self.holders {
            let is_expected = holder.is_expected();
            for tier in holder.take_found() {
                // No directory is called so: it is no path from the root.
                let name = PathBuf::from(tier.name());
                if is_expected && opened.iter().any(|one| one.tier.mark() == tier.mark()) {
                    tracing::warn!("{} is on another node now", tier.name());
                    continue;
                }
                let kind = tier.kind();
                opened.push(Opened {
                    name,
                    for_copies: Arc::new(tier.for_copies()),
                    tier: Arc::new(tier),
                    kind,
                    server: holder.server,
                });
            }
        }
        Ok(())
    }

    /// Gives tiers their ids.
    fn put(&mut self, opened: Vec<Opened>, known: &mut Known) -> io::Result<()> {
        let there = opened.iter().map(|one| {
            let mark = one.tier.mark().ok_or(io::ErrorKind::InvalidData)?;
            Ok(There {
                name: one.name.clone(),
                mark,
                server: one.server,
            })
        });
        let places = known.place(&there.collect::<io::Result<Vec<_>>>()?)?;
        (self.names, self.servers) = (known.names(), known.servers());
        for (one, place) in opened.into_iter().zip(places) {
            let id = FIRST_SSD as usize + place.at;
            if place.at >= SSDS_MAX {
                return Err(io::Error::other(format!("more than {SSDS_MAX} tiers")));
            }
            let slots = self.slots.len().max(id + 1);
            self.slots.resize_with(slots, || None);
            self.slots[id] = Some(Slot {
                capacity_bytes: one.tier.capacity_bytes(),
                tier: one.tier,
                for_copies: one.for_copies,
                kind: one.kind,
                server: one.server,
                is_another: place.is_another,
                has_moved: place.has_moved,
                is_fresh: place.is_new || place.is_another,
            });
        }
        Ok(())
    }

    /// Something should be in these tiers. Those that their data servers do not name are out of
    /// reach for as long as this server runs: what should be there counts, and is looked at by the
    /// start that finds them again. `before`: what was known before this start.
    pub fn expect(&mut self, wanted: impl Iterator<Item = TierId>, before: &Known) {
        for id in wanted {
            if self.get(id).is_some() {
                continue;
            }
            let Some(holder) = self.last_holder_of(id) else {
                continue;
            };
            let (server, at) = (holder.server, usize::from(id.0 - FIRST_SSD));
            let facts = before.facts_of(at).map(|(_, facts)| facts.clone());
            let tier = Arc::new(holder.absent(facts.unwrap_or_else(|| self.guess_facts(at))));
            let slots = self.slots.len().max(usize::from(id.0) + 1);
            self.slots.resize_with(slots, || None);
            self.absent.push(id);
            self.slots[usize::from(id.0)] = Some(Slot {
                capacity_bytes: tier.capacity_bytes(),
                kind: tier.kind(),
                for_copies: tier.clone(),
                tier,
                server,
                is_another: false,
                has_moved: false,
                is_fresh: false,
            });
        }
    }

    /// Those of [`TierSet::expect`] that are out of reach.
    pub fn absent(&self) -> &[TierId] {
        &self.absent
    }

    /// Of a tier whose data server has forgotten it before anybody kept what it had told.
    fn guess_facts(&self, at: usize) -> ObjectTier {
        let called = &self.names[at];
        let name = called.split_once(':').map_or(&called[..], |(_, name)| name);
        ObjectTier {
            name: name.to_string(),
            mark: [0; 16],
            is_memory: name == "dram",
            capacity_bytes: 0,
            tells_writers: false,
        }
    }

    /// What people call a tier: its directory, or `SERVER:NAME`.
    pub fn called(&self, id: TierId) -> String {
        let at = usize::from(id.0).checked_sub(FIRST_SSD.into());
        match (at.and_then(|at| self.names.get(at)), self.get(id)) {
            (Some(name), _) => name.clone(),
            (None, Some(slot)) => slot.tier.name().to_string(),
            (None, None) if id == DRAM => "dram".into(),
            (None, None) => format!("tier {}", id.0),
        }
    }

    /// All tiers that have an id, also those that are not there, but for memory and the overflow.
    pub fn ids(&self) -> impl Iterator<Item = TierId> {
        (FIRST_SSD..).take(self.names.len()).map(TierId)
    }

    /// Data servers on other nodes.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// The data server that has a tier.
    pub fn holder_of(&self, id: TierId) -> Option<&Holder> {
        let server = self.get(id)?.server;
        self.holders.iter().find(|holder| holder.server == server)
    }

    /// The data server that had a tier last which is not there.
    pub fn last_holder_of(&self, id: TierId) -> Option<&Holder> {
        let at = usize::from(id.0).checked_sub(FIRST_SSD.into())?;
        let server = *self.servers.get(at)?;
        self.holders.iter().find(|holder| holder.server == server)
    }

    /// Whether the node that has a tier does not answer, as far as is known.
    pub fn is_out_of_reach(&self, id: TierId) -> bool {
        self.get(id).is_some_and(|slot| !slot.tier.is_answering())
    }

    /// Whether copies that nobody waits for get to a server's node now. May wait a little.
    pub fn takes_copies(&self, server: u16) -> bool {
        let mut holders = self.holders.iter();
        let holder = holders.find(|holder| holder.server == server);
        self.is_answering(server) && holder.is_none_or(Holder::takes_copies)
    }

    /// Whether a server's node answers, with all tiers that it has; not where none is known.
    pub fn is_answering(&self, server: u16) -> bool {
        let mut tiers = self.of_server(server).peekable();
        tiers.peek().is_some() && tiers.all(|(_, slot)| slot.tier.is_answering())
    }

    /// The tiers of one server, but for the overflow.
    pub fn of_server(&self, server: u16) -> impl Iterator<Item = (TierId, &Slot)> {
        self.iter()
            .filter(move |(id, slot)| *id != OVERFLOW && slot.server == server)
    }

    /// The overflow, made if it is not there yet.
    pub fn need_overflow(&self, pfs: &PfsTree) -> io::Result<TierId> {
        self.overflow.need(pfs)?;
        Ok(OVERFLOW)
    }

    /// The directory on the PFS that an object of the overflow lies in.
    pub fn overflow_shelf(&self, pfs: &PfsTree, object: ObjectId) -> io::Result<PfsDir> {
        self.overflow.shelf(pfs, object)
    }

    /// Kinds and capacities by id, for the ledger.
    pub fn limits(&self) -> Vec<(Option<PolicyKind>, u64)> {
        let limit = |slot: &Option<Slot>| match slot {
            Some(s) if s.kind == TierKind::Dram => (Some(PolicyKind::Dram), s.capacity_bytes),
            Some(s) if s.kind != TierKind::Pfs => (Some(PolicyKind::Ssd), s.capacity_bytes),
            _ => (None, 0),
        };
        self.slots.iter().map(limit).collect()
    }

    /// Puts another tier in the place of one, which that wraps.
    #[cfg(test)]
    pub(crate) fn wrap(&mut self, id: TierId, wrap: impl FnOnce(Arc<dyn Tier>) -> Arc<dyn Tier>) {
        let slot = self.slots[id.0 as usize].as_mut().expect("a tier");
        slot.tier = wrap(slot.tier.clone());
        slot.for_copies = slot.tier.clone();
    }

    /// All tiers with their ids: memory, flash, overflow.
    pub fn iter(&self) -> impl Iterator<Item = (TierId, &Slot)> {
        let ids = std::iter::once(0)
            .chain(FIRST_SSD as usize..self.slots.len())
            .chain(std::iter::once(1));
        ids.filter_map(|i| Some((TierId(i as u8), self.get(TierId(i as u8))?)))
    }

    /// One tier, if there is one with this id.
    pub fn get(&self, id: TierId) -> Option<&Slot> {
        match id {
            OVERFLOW => self.overflow.slot(),
            _ => self.slots.get(id.0 as usize)?.as_ref(),
        }
    }

    /// Kind of a tier; an id without a tier counts as flash that is not there.
    pub fn kind(&self, id: TierId) -> TierKind {
        match id {
            OVERFLOW => TierKind::Pfs,
            _ => self.get(id).map_or(TierKind::Ssd, |slot| slot.kind),
        }
    }

    /// Opens an object for who reads, changes little, or hands it to the kernel; where nobody else
    /// writes it, the kernel says so.
    pub fn open_object(&self, id: TierId, object: ObjectId) -> io::Result<Arc<dyn Object>> {
        match self.get(id) {
            Some(slot) => slot.tier.open_shared(object),
            None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// Opens an object for many writes.
    pub fn open_to_write(&self, id: TierId, object: ObjectId) -> io::Result<Arc<dyn Object>> {
        match self.get(id) {
            Some(slot) => slot.tier.open(object),
            None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// Room beyond what is held, for what the kernel writes before it can be made to wait, bytes.
    pub fn overrun_bytes(&self) -> u64 {
        self.overrun_bytes
    }

    /// The memory tier is to hold no more than this from now on: [`TierSet::fit_dram`] follows.
    pub fn set_dram_bytes(&self, bytes: u64) {
        self.dram_bytes.store(bytes, Ordering::Release);
    }

    /// Lets the memory tier's file system hold what `held_bytes` answers, and what may be written
    /// beyond that; never less than its size. It is asked while nobody else changes the size: what
    /// was held a moment ago may be less than what a writer was promised since. `EBUSY` while more
    /// than that is in use.
    pub fn fit_dram(&self, held_bytes: impl FnOnce() -> u64) -> io::Result<()> {
        match &*self.dram.lock() {
            Some(mount) => {
                let limit = self.dram_limit(held_bytes());
                match mount.size_bytes() == limit {
                    true => Ok(()),
                    false => mount.resize(limit),
                }
            }
            None => Ok(()),
        }
    }

    /// Lets it hold more than is held yet; then `hold` sets that aside, before anybody fits the
    /// file system to what is held. Where it cannot grow, nothing is set aside.
    pub fn grow_dram(
        &self,
        held_bytes: impl FnOnce() -> u64,
        hold: impl FnOnce(),
    ) -> io::Result<()> {
        let dram = self.dram.lock();
        if let Some(mount) = &*dram {
            let limit = self.dram_limit(held_bytes());
            if mount.size_bytes() < limit {
                mount.resize(limit)?;
            }
        }
        hold();
        drop(dram);
        Ok(())
    }

    fn dram_limit(&self, held_bytes: u64) -> u64 {
        let size = self.dram_bytes.load(Ordering::Acquire);
        held_bytes.max(size).saturating_add(self.overrun_bytes)
    }

    /// What the memory tier's file system has, also what is not booked yet, bytes; `None` where it
    /// does not say.
    pub fn dram_used_bytes(&self) -> Option<u64> {
        let mount = self.dram.lock();
        let used = mount.as_ref()?.used_bytes();
        used.inspect_err(|error| tracing::debug!("space of the memory tier: {error}"))
            .ok()?
    }

    /// Gives the memory of the `dram` tier back; only when nothing in it is needed any more and
    /// nobody uses the tiers. The tmpfs cannot be unmounted while descriptors in it are open, so it
    /// is detached and goes with the last of them.
    pub fn drop_dram(&self, state: &Path) -> io::Result<()> {
        let Some(mount) = self.dram.lock().take() else {
            return Ok(());
        };
        if mount.is_private() {
            let dir = state.join("dram");
            Ok(rustix::mount::unmount(
                &dir,
                rustix::mount::UnmountFlags::DETACH,
            )?)
        } else {
            mount.unmount()
        }
    }

    /// Takes back what a start that fails has mounted, and the directories that it has made its
    /// own.
    pub fn undo(&self, state: &Path) {
        let fresh = self
            .dram
            .lock()
            .as_ref()
            .is_some_and(|mount| !mount.was_reused());
        if fresh && let Err(error) = self.drop_dram(state) {
            tracing::warn!("the memory tier stays mounted: {error}");
        }
        self.give_back();
    }

    /// Gives the directories back that this start has made its own, where nothing was put in them
    /// since.
    pub fn give_back(&self) {
        let slots = self.slots.iter().flatten();
        // A data server goes on running: what has been in use there is not to be taken apart.
        let own = |slot: &&Slot| slot.is_fresh || slot.tier.boot().is_none();
        let slots = slots.filter(own);
        slots.for_each(|slot| give_back(&*slot.tier, slot.kind));
    }

    /// Removes the overflow's directory if it is empty.
    pub fn tidy_overflow(&self, pfs: &PfsTree) {
        self.overflow.tidy(pfs);
    }
}

fn give_back(tier: &dyn Tier, kind: TierKind) {
    // What is mounted no more is gone anyway.
    if kind == TierKind::Ssd
        && tier.is_answering()
        && let Err(error) = tier.give_back()
    {
        tracing::warn!("{} stays in use: {error}", tier.name());
    }
}
