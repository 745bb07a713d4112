//! Answers to `status` and `where`.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use forebay_namespace::{Residency, on_pfs};
use forebay_policy::plan::DrainPolicy;
use forebay_policy::throttle::DemotionPace;
use forebay_types::{Errno, TierId, limits};
use forebay_wire::control::{
    ApplicationStatus, ControlResponse, CopyStatus, EarlierTotals, NetworkStatus, PathFailure,
    PlanStatus, StatusBits, TierStatus, TurnStatus, WhereEntry,
};

use crate::buffer::tierset::OVERFLOW;
use crate::clients::network_status;
use crate::orders::asker::Asker;
use crate::orders::asker::sight::Sight;
use crate::orders::unreachable::{explains, failure};
use crate::orders::walk::Visited;
use crate::plan::calibrate::four;
use crate::rooms::Rooms;

/// Entries in one answer to `where`.
const WHERE_ENTRIES_MAX: usize = 1000;
/// Copies to the PFS, and movements, that `status` lists.
const COPIES_MAX: usize = 16;
const MOVEMENTS_MAX: usize = 16;
/// Applications that `status` lists: those with most bytes in the burst buffer.
const APPLICATIONS_MAX: usize = 100;

impl Rooms {
    /// Everything `forebay status` shows.
    pub fn status(&self) -> StatusBits {
        self.status_with(true)
    }

    /// `named`: with what clients say of themselves.
    fn status_with(&self, named: bool) -> StatusBits {
        let mut bits = self.files_and_drain(named);
        bits.ahead = self.ahead_status();
        bits.keeper = self.base.settings().keeper_status();
        bits.lending = self.lifecycle.lending_status().map(Box::new);
        bits
    }

    fn files_and_drain(&self, named: bool) -> StatusBits {
        let bytes = |path: &std::path::Path| path.as_os_str().as_bytes().to_vec();
        let undrained = self.buffer.undrained();
        let tiers = self.all_tiers();
        let dirty_bytes = tiers.iter().map(|t| t.dirty_bytes).sum();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (dwsf_bytes, dwpp_bytes) = self.plan.learning().figures();
        let (restarts_total, restart_hits_total) = self.plan.learning().restarts();
        let (conflicts_total, conflicts) = self.base.conflicts().all();
        let (failing, next_try) = self.buffer.queue().failing();
        let holding = self.files.pages().holding();
        let (applications_total, applications) = self.application_status();
        StatusBits {
            version: env!("CARGO_PKG_VERSION").into(),
            pfs: bytes(&self.base.settings().pfs),
            mount: bytes(self.base.settings().shown_at()),
            state: bytes(&self.base.settings().state),
            pid: std::process::id(),
            uptime_ms: self.base.started().elapsed().as_millis() as u64,
            durability: self.catalog.durability().to_string(),
            policy: self.plan.engine().policy().to_string(),
            placement: self.plan.engine().placement().to_string(),
            plan: self.plan_status(),
            passthrough: self.base.settings().passthrough
                && self.plan.engine().allows_passthrough(),
            tiers,
            dwsf_bytes,
            dwpp_bytes: dwpp_bytes.unwrap_or(0),
            restarts_total,
            restart_hits_total,
            direct_files_total: load(&self.base.counters().direct_files),
            handed_over_files_total: load(&self.base.counters().handed_over_files),
            dirty_cap_bytes: self.buffer.ledger().dirty_cap_bytes(),
            dirty_bytes,
            drain_rate_bytes_per_s: self.drain_rate(),
            drain_queued_files: undrained.files,
            drain_failing_files: failing,
            drain_next_try_ms: next_try.map(|time| time.as_millis() as u64),
            demoted_bytes_total: load(&self.base.counters().demoted_bytes),
            demoted_files_total: load(&self.base.counters().demoted_files),
            evicted_bytes_total: load(&self.base.counters().evicted_bytes),
            earlier: self.earlier(),
            waited_writes_total: load(&self.base.counters().waited_writes),
            space_wait_ms_total: load(&self.base.counters().space_wait_us) / 1000,
            files: self.files_here(),
            open_files: self.buffer.opens().open_files(),
            held_files: self.buffer.opens().held(),
            holding_files: holding.total,
            holding: holding.paths,
            stopping: self.base.life().stop_order().is_some(),
            descriptors_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
            pfs_silent_ms: self.pfs_silent_ms(),
            store: self.base.settings().store.to_string(),
            store_failing: self.lifecycle.store_failing(),
            errors: self.base.errors().all(),
            errors_total: load(&self.base.counters().errors),
            conflicts,
            conflicts_total,
            unpublished: self.orders.version_status(),
            turns: self.turns(),
            copies: self.copies(),
            movements: self.orders.jobs().under_way(MOVEMENTS_MAX),
            scrub: self.integrity.scrub_status(),
            applications,
            applications_total,
            network: self.network_for(named),
            nodes: self.node_status(),
            second_copies: self.lifecycle.second_copies(),
            ..StatusBits::default()
        }
    }

    /// Apart from the literal above: a guard in that would live until its end.
    fn files_here(&self) -> u64 {
        self.buffer.table().read().len() as u64
    }

    fn earlier(&self) -> EarlierTotals {
        let earlier = self.base.counters().earlier();
        let (scrubbed_bytes, damaged_objects) = self.integrity.scrubbed_earlier();
        EarlierTotals {
            demoted_bytes: earlier.demoted_bytes,
            demoted_files: earlier.demoted_files,
            evicted_bytes: earlier.evicted_bytes,
            scrubbed_bytes,
            damaged_objects,
        }
    }

    fn turns(&self) -> Vec<TurnStatus> {
        let holders = self.plan.engine().turn_holders().into_iter();
        let mut turns: Vec<_> = holders
            .filter_map(|(server, application, waiting)| {
                Some(TurnStatus {
                    server,
                    application: self.catalog.apps().name(application)?,
                    waiting,
                })
            })
            .collect();
        turns.sort_by_key(|turn| turn.server);
        turns
    }

    fn copies(&self) -> Vec<CopyStatus> {
        let copying = self.buffer.queue().copying(COPIES_MAX).into_iter();
        let copies = copying.filter_map(|(object, copied)| {
            let bytes = self.buffer.ledger().used_bytes(object);
            Some(CopyStatus {
                path: self.buffer.file(object)?.path(),
                bytes,
                // It may be copied once more, since it has changed.
                copied_bytes: copied.min(bytes),
            })
        });
        copies.collect()
    }

    fn all_tiers(&self) -> Vec<TierStatus> {
        let own = self.buffer.tiers().iter().filter(|(id, _)| *id != OVERFLOW);
        let own = own.map(|(id, slot)| self.tier_status(slot.tier.name(), id));
        own.chain([self.pfs_status()]).collect()
    }

    fn pfs_silent_ms(&self) -> Option<u64> {
        let silent = self.base.health().silent_for()?;
        Some(silent.as_millis() as u64)
    }

    fn network_for(&self, named: bool) -> Option<Box<NetworkStatus>> {
        let net = self.network.get()?.status()?;
        Some(Box::new(network_status(net, named)))
    }

    fn drain_rate(&self) -> u64 {
        match self.base.health().is_silent() {
            true => 0,
            false => self.buffer.queue().rate_bytes_per_s(),
        }
    }

    /// The same for a user: names of files, what applications do, and who the clients are, are for
    /// root and the server's own user.
    pub fn status_for(&self, asker: &Asker) -> StatusBits {
        let mut bits = self.status_with(asker.is_trusted());
        if !asker.is_trusted() {
            bits.names_hidden = true;
            bits.errors.clear();
            bits.holding.clear();
            let emptying = bits.nodes.iter_mut().filter_map(|n| n.emptying.as_mut());
            emptying.for_each(|emptying| emptying.awaited.clear());
            let lending = bits
                .nodes
                .iter_mut()
                .filter_map(|node| node.lending.as_mut());
            lending.for_each(|lending| lending.waits_for.clear());
            bits.conflicts.clear();
            bits.unpublished.clear();
            bits.turns.clear();
            bits.copies.clear();
            if let Some(lending) = &mut bits.lending {
                lending.waits_for.clear();
            }
            bits.movements.clear();
            bits.ahead.runs.next.clear();
            bits.applications.clear();
            bits.applications_total = 0;
        }
        (bits.limits_total, bits.limits) = self.limit_status(asker);
        bits
    }

    fn plan_status(&self) -> PlanStatus {
        let view = self.plan.engine().view();
        let policy = self.plan.engine().policy();
        let plan = view.in_force.plan;
        let why = match policy {
            DrainPolicy::Bbos => view.in_force.reason.to_string(),
            DrainPolicy::MaxBw => "never beside a checkpoint, until nothing more fits".into(),
            DrainPolicy::MaxEff => "always at full speed".into(),
            DrainPolicy::Dedicated => {
                "each application has its own share, demoted when full or quiet".into()
            }
        };
        let limit = |rate: f64| rate as u64;
        PlanStatus {
            why,
            pattern: plan.map(|p| p.pattern),
            start_dwsf_bytes: plan.map(|p| p.start_dwsf_bytes as u64),
            full_dwsf_bytes: plan.map(|p| p.full_dwsf_bytes as u64),
            feasible: plan.map(|p| p.feasible),
            checkpoint_limit_bytes_per_s: view.pace.checkpoint_bytes_per_s.map(limit),
            demotion_limit_bytes_per_s: match view.pace.demotion {
                DemotionPace::Full => None,
                DemotionPace::Rate(rate) => Some(limit(rate)),
                DemotionPace::Stop => Some(0),
            },
            period_ms: self.base.settings().engine.period.as_millis() as u64,
            bandwidths: self.plan.engine().bandwidths().as_ref().map(four),
        }
    }

    fn tier_status(&self, name: &str, id: TierId) -> TierStatus {
        let figures = self.buffer.ledger().figures(id);
        TierStatus {
            name: name.to_string(),
            capacity_bytes: figures.capacity_bytes,
            used_bytes: figures.used_bytes,
            dirty_bytes: figures.dirty_bytes,
            reserved_bytes: figures.reserved_bytes,
            out_of_reach: self.buffer.tiers().is_out_of_reach(id),
        }
    }

    /// The PFS's own figures, as `df` has them: what only root may use is not there. Undrained is
    /// what is on its way without a stay in the burst buffer.
    fn pfs_status(&self) -> TierStatus {
        let mut status = self.tier_status("pfs", OVERFLOW);
        if let Some(totals) = self.base.health().totals() {
            let bytes = |blocks: u64| blocks * u64::from(totals.block_bytes);
            status.used_bytes = bytes(totals.blocks.saturating_sub(totals.blocks_free));
            status.capacity_bytes = status.used_bytes + bytes(totals.blocks_available);
        }
        status
    }

    /// How many applications have something here, and those with most.
    fn application_status(&self) -> (u64, Vec<ApplicationStatus>) {
        let here = self.buffer.ledger().applications();
        let mut list: Vec<ApplicationStatus> = self
            .catalog
            .apps()
            .figures()
            .into_iter()
            .filter_map(|(number, figures)| {
                let sum = here.get(&number)?;
                let (dwsf_bytes, dwpp_bytes) =
                    self.plan.learning().application_figures(&figures.name);
                Some(ApplicationStatus {
                    name: figures.name,
                    version: figures.newest,
                    mtbf_ms: Some((figures.mtbf_s * 1e3) as u64),
                    dwsf_bytes,
                    dwpp_bytes,
                    resident_bytes: sum.used_bytes,
                    dirty_bytes: sum.dirty_bytes,
                    files: sum.files,
                })
            })
            .collect();
        list.sort_by_key(|a| std::cmp::Reverse(a.resident_bytes));
        let total = list.len() as u64;
        list.truncate(APPLICATIONS_MAX);
        (total, list)
    }

    /// Residency of the files at and below `paths` that a user may find, continuing behind `after`.
    pub fn locate(
        &self,
        asker: &Asker,
        paths: &[Vec<u8>],
        after: Option<Vec<u8>>,
    ) -> ControlResponse {
        let sight = Sight::new(&self.orders, asker);
        let mut files = Vec::new();
        let mut failures = Vec::new();
        let mut more_after = None;
        // A position is the index of the path asked for and the last path shown below it.
        let mut seen = HashSet::new();
        let (mut skip_paths, mut behind) = match after.as_deref().and_then(split_position) {
            Some((index, last)) => (index, Some(last.to_vec())),
            None => (0, None),
        };
        for (index, path) in paths.iter().enumerate().skip(skip_paths) {
            skip_paths = index;
            let go_on = self.orders.walk(
                path,
                &sight,
                &mut |visited| {
                    let here = visited.path();
                    if behind
                        .as_ref()
                        .is_some_and(|b| sort_key(&here) <= sort_key(b))
                    {
                        return true;
                    }
                    if files.len() >= WHERE_ENTRIES_MAX {
                        return false;
                    }
                    seen.extend(visited.file.iter().map(|file| file.object));
                    files.push(self.locate_one(&sight, &visited));
                    true
                },
                &mut |path, failure| {
                    if failures.len() < limits::ERRORS_REMEMBERED_MAX {
                        failures.push(PathFailure {
                            path,
                            errno: failure.errno(),
                            reason: failure.in_brief(),
                        });
                    }
                },
            );
            behind = None;
            if !go_on {
                let last: &WhereEntry = &files[files.len() - 1];
                more_after = Some(position(skip_paths, &last.path));
                break;
            }
        }
        // Not for every part of a long answer.
        if more_after.is_none() {
            let lost = self.orders.unreachable(asker, paths, &seen);
            failures
                .retain(|f: &PathFailure| f.errno != Errno::ENOENT || !explains(&lost, &f.path));
            let room = limits::ERRORS_REMEMBERED_MAX.saturating_sub(failures.len());
            failures.extend(lost.into_iter().take(room).map(failure));
        }
        ControlResponse::Where {
            files,
            more_after,
            failures,
        }
    }

    fn locate_one(&self, sight: &Sight<'_>, visited: &Visited) -> WhereEntry {
        let path = visited.path();
        let identity = self.catalog.rules().identify(&path);
        let mut entry = WhereEntry {
            path,
            tiers: Vec::new(),
            state: "pfs".into(),
            size_bytes: 0,
            application: identity.application,
            version: identity.version,
            crc32c: None,
            error: None,
            unpublished: self.base.ns().version_of(&visited.dir).is_some(),
            durability: None,
            stale_tiers: Vec::new(),
        };
        let Some(file) = &visited.file else {
            entry.tiers.push("pfs".into());
            let stat = self.base.ns().open_dir(&visited.dir).and_then(|d| {
                self.base
                    .ns()
                    .pfs()
                    .stat(&d, &visited.name)
                    .map_err(on_pfs("stat"))
            });
            match stat {
                Ok(stat) => entry.size_bytes = stat.size,
                Err(error) => entry.error = Some(error.to_string()),
            }
            return entry;
        };
        if let Some((application, version)) = self.catalog.apps().described(file.object) {
            entry.application = application;
            entry.version = version;
        }
        entry.durability = Some(self.catalog.durability_of_file(file).to_string());
        let attr = self
            .files
            .live_attr(file.attr(), Some(file))
            .unwrap_or_else(|_| file.attr());
        let state = file.lock();
        let residency = &state.residency;
        (entry.tiers, entry.stale_tiers) = self.tiers_of(residency);
        entry.size_bytes = attr.size;
        entry.state = match (residency.clean, state.demoting) {
            (true, _) => "clean",
            (false, true) => "demoting",
            (false, false) => "dirty",
        }
        .into();
        let crc = residency.crc.filter(|_| !residency.writing);
        entry.error = state.error.map(|e| e.message());
        drop(state);
        entry.crc32c = crc.filter(|_| sight.may_read(file.ino, &attr));
        entry
    }

    /// Names of the tiers that hold a file, and of those among them that hold what it was.
    fn tiers_of(&self, residency: &Residency) -> (Vec<String>, Vec<String>) {
        let name = |id| {
            self.buffer
                .tiers()
                .get(id)
                .map(|slot| slot.tier.name().to_string())
        };
        let mut tiers = Vec::from_iter(name(residency.tier));
        let mut stale_tiers = Vec::new();
        if let Some((tier, copied)) = residency.shadow {
            tiers.extend(name(tier));
            // Who counts copies must not count on one that lacks what was written since.
            if copied != residency.generation {
                stale_tiers.extend(name(tier));
            }
        }
        if residency.clean {
            tiers.push("pfs".into());
        }
        tiers.dedup();
        (tiers, stale_tiers)
    }
}

/// Order of a walk: component by component.
fn sort_key(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&b| b == b'/').collect()
}

fn position(index: usize, path: &[u8]) -> Vec<u8> {
    let mut position = (index as u32).to_le_bytes().to_vec();
    position.extend_from_slice(path);
    position
}

fn split_position(position: &[u8]) -> Option<(usize, &[u8])> {
    let (index, path) = position.split_at_checked(4)?;
    Some((u32::from_le_bytes(index.try_into().ok()?) as usize, path))
}
