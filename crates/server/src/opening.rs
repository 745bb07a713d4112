//! Opens a state folder: reads what earlier runs have left, and gives every room those below it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_holder::Claim;
use forebay_namespace::{Loaded, Namespace};
use forebay_policy::trigger::Trigger;
use forebay_tiers::{PfsTree, TierKind};
use forebay_types::failpoint;

use crate::ahead::Ahead;
use crate::base::Base;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::buffer::tierset::{FIRST_SSD, OVERFLOW, SSDS_MAX, Slot, TierSet};
use crate::catalog::Catalog;
use crate::drain::Drain;
use crate::drain::picking::Picking;
use crate::files::Files;
use crate::files::descriptors::Descriptors;
use crate::integrity::Integrity;
use crate::integrity::scrub::Scrub;
use crate::lifecycle::boot::Boot;
use crate::lifecycle::facts::Facts;
use crate::lifecycle::lending::Borrowed;
use crate::lifecycle::lost::{check_tiers, refuse_holders, undrained};
use crate::lifecycle::onserver::Told;
use crate::lifecycle::statefolder::open_store;
use crate::lifecycle::{Lifecycle, pfsmark};
use crate::orders::Orders;
use crate::plan::Plan;
use crate::plan::dedicated::Dedicated;
use crate::plan::engine::Engine;
use crate::plan::learning::Learning;
use crate::rooms::Rooms;
use crate::starterror::{StartError, failed};

/// What a state is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// What was under way is finished.
    Serve,
    /// Everything is taken as it is; unless `dry_run`, renames and demotions are finished.
    Check {
        /// Change nothing.
        dry_run: bool,
        /// The PFS has been replaced for good.
        new_pfs: bool,
    },
}

/// Opens a state folder.
pub fn open_rooms(settings: Settings, mode: OpenMode, told: Told<'_>) -> Result<Rooms, StartError> {
    // What cannot be served is refused before the records are taken.
    let mut pfs = open_pfs(&settings)?;
    let store = open_store(&settings, told)?;
    // While it stood by the PFS may have been mounted, or mounted anew. Who leads does not wait for
    // one that is silent to be opened.
    if settings.has_standby() && !pfs.health().is_silent() {
        let theirs = settings.clone();
        pfs = within(&settings, move || open_pfs(&theirs))?;
    }
    if let Some(hold) = store.hold() {
        pfs.change_only_while(move || hold.is_valid());
    }
    open_with(settings, mode, pfs, store, &mut |_| ())
}

/// Does something on the PFS that may never come back: who leads would lead on, and nobody else
/// could take its place. Whoever starts this server again stands by, or waits for the PFS.
fn within<T: Send + 'static>(
    settings: &Settings,
    ask: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let pfs = || format!("PFS {}", settings.pfs.display());
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    let asker = std::thread::Builder::new().name("fb-path".into());
    let asked = asker.spawn(move || drop(answer.send(ask())));
    asked.map_err(failed(pfs()))?;
    let limit = settings.pfs_timeout;
    answered.recv_timeout(limit).unwrap_or_else(|_| {
        Err(StartError::Failed {
            what: pfs(),
            why: format!("it has not answered for {} s", limit.as_secs()),
        })
    })
}

fn open_pfs(settings: &Settings) -> Result<PfsTree, StartError> {
    let pfs = PfsTree::watched(&settings.pfs, settings.pfs_timeout)
        .map_err(failed(format!("PFS {}", settings.pfs.display())))?;
    if !settings.demotion.unnamed {
        pfs.without_unnamed();
    }
    Ok(pfs)
}

/// Rooms on a store of one's own, for tests. The PFS is changed while `may_change` says so; `wrap`
/// may put something around the tiers.
#[cfg(test)]
pub fn open_on(
    settings: Settings,
    store: Box<dyn forebay_kv::Store>,
    may_change: impl Fn() -> bool + Send + Sync + 'static,
    wrap: &mut dyn FnMut(&mut TierSet),
) -> Result<Rooms, StartError> {
    let mut pfs = PfsTree::open(&settings.pfs).map_err(failed("PFS"))?;
    pfs.change_only_while(may_change);
    open_with(settings, OpenMode::Serve, pfs, store, wrap)
}

fn open_with(
    settings: Settings,
    mode: OpenMode,
    pfs: PfsTree,
    store: Box<dyn forebay_kv::Store>,
    wrap: &mut dyn FnMut(&mut TierSet),
) -> Result<Rooms, StartError> {
    let instance = instance_id(&*store)?;
    let (ns, loaded) = Namespace::open(pfs, store, instance).map_err(failed("metadata store"))?;
    failpoint::hit(failpoint::Point::StartLoaded);
    let mut facts = match Facts::load(&ns).map_err(failed("metadata store"))? {
        Some(facts) if facts.pfs != settings.pfs => {
            return Err(StartError::OtherPfs {
                state: settings.state.display().to_string(),
                was: facts.pfs.display().to_string(),
                now: settings.pfs.display().to_string(),
            });
        }
        Some(facts) => facts,
        None => Facts::new(&settings),
    };
    let accept = matches!(
        mode,
        OpenMode::Check {
            dry_run: false,
            new_pfs: true
        }
    );
    pfsmark::check(&ns, &settings.pfs, accept)?;
    if !accept {
        pfsmark::check_inner(&ns, &loaded.files, &settings.pfs)?;
    }
    facts.follow(&settings);
    if settings.ssd.len() + facts.known.len() > SSDS_MAX {
        return Err(StartError::Failed {
            what: "ssd".into(),
            why: format!("more than {SSDS_MAX} directories"),
        });
    }
    let mut known = facts.known.clone();
    let epoch = next_epoch(&ns).map_err(failed("metadata store"))?;
    let mut claim = Claim::new(instance, epoch);
    if let Some(hold) = ns.store_hold() {
        claim = claim.only_while(move || hold.is_valid());
    }
    let before = known.clone();
    let opened = TierSet::open(&settings, ns.pfs(), &claim, &mut known);
    let mut tiers = opened.map_err(failed("tiers"))?;
    if mode == OpenMode::Serve {
        // A check leaves it to a start what is there from now on.
        for tier in refuse_holders(&loaded, &tiers) {
            known.keep(usize::from(tier.0 - FIRST_SSD), &before);
        }
        facts.known = known;
    }
    // What is wanted of a tier that is not there counts, for a check, too.
    let wanted = undrained(&loaded, &tiers);
    tiers.expect(wanted.into_keys(), &before);
    wrap(&mut tiers);
    finish((settings, ns, epoch), loaded, &facts, tiers, mode)
}

/// The second half of [`open_with`].
fn finish(
    (settings, ns, epoch): (Settings, Namespace, u32),
    loaded: Loaded,
    facts: &Facts,
    tiers: TierSet,
    mode: OpenMode,
) -> Result<Rooms, StartError> {
    let state = settings.state.clone();
    if mode == OpenMode::Serve
        && let Err(refused) = check_tiers(&loaded, &tiers)
    {
        tiers.undo(&state);
        return Err(refused);
    }
    let scheduling = match Scheduling::new(&settings, &ns, facts, &tiers) {
        Ok(scheduling) => scheduling,
        Err(error) => {
            tiers.undo(&state);
            return Err(error);
        }
    };
    let rooms = wire_up((settings, ns, epoch), tiers, scheduling);
    let taken_over = take_over(&rooms, loaded, facts, mode);
    if taken_over.is_err() {
        rooms.buffer.tiers().undo(&state);
    }
    taken_over.map(|()| rooms)
}

/// Takes over what an earlier run has left.
fn take_over(
    rooms: &Rooms,
    loaded: Loaded,
    facts: &Facts,
    mode: OpenMode,
) -> Result<(), StartError> {
    rooms.lifecycle.restore_totals(facts);
    let emptying = rooms.buffer.emptying().restore(rooms.base.ns());
    emptying.map_err(failed("metadata store"))?;
    let lent = rooms.lifecycle.restore_order_to_lend();
    lent.map_err(failed("metadata store"))?;
    rooms.plan.restore_bandwidths();
    match mode {
        OpenMode::Serve => {
            rooms.lifecycle.recover(loaded)?;
            rooms.lifecycle.resume_history();
        }
        OpenMode::Check { dry_run, .. } => {
            let opened = rooms.integrity.open_for_check(loaded, dry_run);
            opened.map_err(failed("recovery"))?;
        }
    }
    let ns = rooms.base.ns();
    rooms.base.conflicts().prune(ns);
    if mode == OpenMode::Serve
        && let Err(why) = pfsmark::remember(ns)
    {
        tracing::warn!("which PFS this is will not be known at the next start: {why}");
    }
    Ok(())
}

/// Tells this start from all others of the same state. It is the time of the start in seconds, or
/// later than that of the last one: also where a loss of power took the record of that.
fn next_epoch(ns: &Namespace) -> Result<u32, forebay_namespace::NsError> {
    const NAME: &str = "epoch";
    let last = ns.get_fact(NAME)?.and_then(|bytes| bytes.try_into().ok());
    let last = last.map_or(0, u32::from_le_bytes);
    let now_s = u32::try_from(forebay_types::TimeSpec::now().sec).unwrap_or(0);
    let epoch = now_s.max(last.saturating_add(1));
    ns.put_fact(NAME, &epoch.to_le_bytes())?;
    Ok(epoch)
}

/// Who gets what, and when.
struct Scheduling {
    started: Instant,
    dedicated: Dedicated,
    trigger: Trigger,
    engine: Engine,
    learning: Learning,
    scrub: Scrub,
    boot: Boot,
    borrowed: Option<Borrowed>,
}

impl Scheduling {
    /// An error says why the settings cannot be, or what of earlier runs cannot be read.
    fn new(
        settings: &Settings,
        ns: &Namespace,
        facts: &Facts,
        tiers: &TierSet,
    ) -> Result<Self, StartError> {
        const WHAT: &str = "scheduling";
        let started = Instant::now();
        let dedicated = Dedicated::new(settings);
        let capacity = tiers.limits().iter().map(|(_, bytes)| bytes).sum();
        facts.save(ns).map_err(failed(WHAT))?;
        let fits = dedicated.check(capacity);
        fits.map_err(failed("[engine] share"))?;
        let boot = Boot::look(ns, settings.boot_id.as_deref(), tiers);
        Ok(Scheduling {
            started,
            dedicated,
            trigger: Picking::trigger(&settings.demotion).map_err(failed(WHAT))?,
            borrowed: Borrowed::new(settings).map_err(failed("memory to borrow"))?,
            engine: Engine::new(settings, started).map_err(failed(WHAT))?,
            learning: Learning::open(ns, settings, started).map_err(failed(WHAT))?,
            scrub: Scrub::load(ns).map_err(failed(WHAT))?,
            boot: boot.map_err(failed(WHAT))?,
        })
    }
}

/// Every room with those below it.
fn wire_up(
    (settings, ns, epoch): (Settings, Namespace, u32),
    tiers: TierSet,
    scheduling: Scheduling,
) -> Rooms {
    let is_flash = |(_, slot): (_, &Slot)| slot.kind == TierKind::Ssd;
    let has_flash = tiers.iter().any(is_flash);
    let durability = settings.durability;
    let durability = durability.unwrap_or(Files::default_durability(has_flash));
    let descriptors = Descriptors::new(&settings, tiers.get(OVERFLOW).is_some());
    ns.keep_directories(descriptors.directories_max);
    let Scheduling {
        started,
        dedicated,
        engine,
        learning,
        scrub,
        boot,
        trigger,
        borrowed,
    } = scheduling;
    let holders = settings.holders.iter().map(|holder| holder.server);
    let picking = Picking::new(
        &settings.demotion,
        std::iter::once(settings.server).chain(holders).collect(),
        started,
        trigger,
        descriptors.batch_files_max,
    );
    let base = Arc::new(Base::new(settings, ns, epoch, started));
    let catalog = Arc::new(Catalog::new(&base, durability));
    let rules = Arc::downgrade(&catalog);
    base.ns().trust_by(Box::new(move |path| {
        let catalog = rules.upgrade();
        catalog.map_or(Duration::ZERO, |catalog| catalog.trust_of(path))
    }));
    let buffer = Arc::new(Buffer::new(&base, &catalog, tiers));
    let integrity = Arc::new(Integrity::new(&base, &catalog, &buffer, scrub));
    let learned = (engine, learning, dedicated);
    let plan = Arc::new(Plan::new(&base, &catalog, &buffer, learned));
    let drain = Drain::new(&base, &catalog, &buffer, &integrity, &plan, picking);
    let drain = Arc::new(drain);
    let files = Arc::new(Files::new(&drain, descriptors));
    let ahead = Arc::new(Ahead::new(&files));
    let orders = Arc::new(Orders::new(&files, &ahead));
    let lifecycle = Arc::new(Lifecycle::new(&orders, boot, borrowed));
    Rooms {
        base,
        catalog,
        buffer,
        integrity,
        plan,
        drain,
        files,
        ahead,
        orders,
        lifecycle,
        network: std::sync::OnceLock::new(),
        reload: std::sync::OnceLock::new(),
    }
}

fn instance_id(store: &dyn forebay_kv::Store) -> Result<[u8; 16], StartError> {
    const KEY: &[u8] = b"c/instance-id";
    let known = store.get(KEY).map_err(failed("metadata store"))?;
    if let Some(id) = known.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()) {
        return Ok(id);
    }
    let id = forebay_tiers::random_bytes().map_err(failed("/dev/urandom"))?;
    let mut batch = forebay_kv::Batch::new();
    batch.put(KEY, id);
    store
        .commit(batch, forebay_kv::Durability::Synced)
        .map_err(failed("metadata store"))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pfs_that_falls_silent_when_it_is_opened_again_ends_the_start() {
        let folder = tempfile::tempdir().expect("tempdir");
        let settings = Settings {
            pfs_timeout: Duration::from_millis(50),
            ..Settings::new(folder.path().into(), None, folder.path().into())
        };
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let silent = within(&settings, move || {
            ends.recv().expect_err("nobody answers");
            Ok(())
        });
        let said = silent.expect_err("nothing has answered").to_string();
        assert!(said.contains("has not answered"), "{said}");
        drop(end);
        let pfs = within(&settings, || Ok(7)).expect("it answers");
        assert_eq!(pfs, 7);
    }
}
