//! A data server: the node's own tiers, for one metadata server at a time.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_tiers::{Object, PfsTree, Tier};
use forebay_types::{Errno, Handle};
use forebay_wire::net::{ClientFacts, Guest, Host};
use forebay_wire::{NOT_BEGUN, ObjectPlace};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::failures::Failures;
use crate::latest::Latest;
use crate::service::{DataSession, Has};

/// Who begins waits for what is under way in the session before for so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Opens the tiers of this node for the objects of an instance.
pub type OpenTiers = dyn Fn([u8; 16]) -> io::Result<Vec<Arc<dyn Tier>>> + Send + Sync;

/// The open tiers of a data server, by their numbers.
pub(crate) type Tiers = Arc<[Arc<dyn Tier>]>;

/// The sessions of one data server.
pub struct DataServer {
    boot: String,
    epoch: u64,
    /// Where metadata servers are; a Unix socket is this node's own user's.
    metadata: Vec<IpAddr>,
    open: Box<OpenTiers>,
    /// The PFS as this node sees it.
    pfs: Option<Arc<PfsTree>>,
    tiers: Mutex<Option<Opened>>,
    /// Whose turn it is.
    turn: Mutex<Turns>,
    next: AtomicU64,
    pub(crate) failures: Failures,
}

/// One metadata server after the other.
#[derive(Default)]
struct Turns {
    now: Option<Current>,
    /// Over, and a call of a connection that had joined it may still be under way.
    over: Option<Turn>,
    latest: Latest,
}

/// Who has the turn.
struct Current {
    /// Instance and start of the metadata server.
    claim: ([u8; 16], u32),
    turn: Turn,
}

/// Tiers that are open, and whose objects are in them.
struct Opened {
    instance: [u8; 16],
    tiers: Tiers,
}

impl DataServer {
    /// `boot` names this start of the node; `pfs` is what it copies to, where it sees that. Tiers
    /// get the numbers that are their places in what `open` answers, which is asked when a metadata
    /// server has come first. One comes from an address in `metadata`.
    pub fn new(
        boot: String,
        metadata: Vec<IpAddr>,
        open: Box<OpenTiers>,
        pfs: Option<PfsTree>,
    ) -> Arc<DataServer> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let first = since.map_or(1, |since| since.as_nanos() as u64);
        Arc::new(DataServer {
            boot,
            epoch: first,
            metadata,
            open,
            pfs: pfs.map(Arc::new),
            tiers: Mutex::default(),
            turn: Mutex::default(),
            next: AtomicU64::new(first),
            failures: Failures::default(),
        })
    }

    /// Keeps in this file which start of a metadata server was the latest, and goes by it.
    pub fn keep_latest(&self, path: PathBuf) -> io::Result<()> {
        self.turn.lock().latest = Latest::kept_in(path)?;
        Ok(())
    }

    /// A session that has not begun.
    pub fn session(self: &Arc<Self>) -> DataSession {
        DataSession::new(self.clone())
    }

    /// Whether a metadata server is connected that has begun.
    pub fn is_used(&self) -> bool {
        self.turn.lock().now.is_some()
    }

    /// A session is over: nobody has the turn, if it had it.
    pub(crate) fn end(&self, turn: &Turn) {
        let mut turns = self.turn.lock();
        let current = &mut turns.now;
        let ended = current.take_if(|current| Arc::ptr_eq(&current.turn.0, &turn.0));
        if let Some(ended) = ended {
            turns.over = Some(ended.turn);
        }
    }

    /// The turn of the session of this metadata server, for a further connection of it.
    pub(crate) fn join(&self, claim: ([u8; 16], u32)) -> io::Result<Turn> {
        let turns = self.turn.lock();
        turns.latest.check(claim)?;
        let now = turns.now.as_ref().filter(|now| now.claim == claim);
        Ok(now.ok_or(NOT_BEGUN)?.turn.clone())
    }

    /// The PFS; `EOPNOTSUPP` where this node has none.
    pub(crate) fn pfs(&self) -> io::Result<Arc<PfsTree>> {
        Ok(self.pfs.clone().ok_or(Errno::EOPNOTSUPP)?)
    }

    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    pub(crate) fn next_handle(&self) -> Handle {
        Handle(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets a session begin: the one before is over, and nothing of it runs any more. `ESTALE` for
    /// an earlier start of a metadata server than one that has come: it was replaced.
    pub(crate) fn begin(&self, claim: ([u8; 16], u32), has: Arc<Has>) -> io::Result<(Turn, Tiers)> {
        let tiers = self.tiers_of(claim.0)?;
        let mut turns = self.turn.lock();
        turns.latest.came(claim)?;
        if let Some(before) = &turns.over {
            before.end(&self.failures)?;
        }
        turns.over = None;
        if let Some(before) = &turns.now {
            before.turn.end(&self.failures)?;
        }
        let turn = Turn(Arc::new(RwLock::new(true)), has);
        let current = turn.clone();
        turns.now = Some(Current {
            claim,
            turn: current,
        });
        Ok((turn, tiers))
    }

    /// `ESTALE` for an earlier start of a metadata server than one that has come.
    pub(crate) fn check_latest(&self, from: ([u8; 16], u32)) -> io::Result<()> {
        self.turn.lock().latest.check(from)
    }

    /// The tiers are opened again for who begins next.
    pub(crate) fn forget_tiers(&self) {
        *self.tiers.lock() = None;
    }

    /// Opens an object that a mount is to read and write by itself. `EAGAIN` before a metadata
    /// server has come.
    pub(crate) fn open_shared(&self, place: &ObjectPlace) -> io::Result<Arc<dyn Object>> {
        let tiers = match &*self.tiers.lock() {
            Some(opened) if opened.instance == place.instance => opened.tiers.clone(),
            Some(_) => return Err(Errno::EBUSY.into()),
            None => return Err(Errno::EAGAIN.into()),
        };
        let tier = tiers.get(usize::from(place.key.tier.0));
        tier.ok_or(Errno::ENODEV)?.open_shared(place.key.object)
    }

    fn tiers_of(&self, instance: [u8; 16]) -> io::Result<Tiers> {
        let mut opened = self.tiers.lock();
        if let Some(opened) = &*opened {
            return match opened.instance == instance {
                true => Ok(opened.tiers.clone()),
                // Another burst buffer's objects would be taken for strays.
                false => Err(Errno::EBUSY.into()),
            };
        }
        let tiers: Tiers = (self.open)(instance)
            .inspect_err(|error| tracing::error!("tiers: {error}"))?
            .into();
        *opened = Some(Opened {
            instance,
            tiers: tiers.clone(),
        });
        Ok(tiers)
    }
}

/// The right of a session to do something.
#[derive(Clone)]
pub(crate) struct Turn(Arc<RwLock<bool>>, Arc<Has>);

impl Turn {
    /// Held for as long as a call runs; `None` once it is another session's turn.
    pub fn take(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(self.0.read()).filter(|goes_on| **goes_on)
    }

    /// What is open in the session.
    pub fn has(&self) -> &Has {
        &self.1
    }

    fn end(&self, failures: &Failures) -> io::Result<()> {
        self.1.let_writers_go(PATIENCE);
        let mut goes_on = self.0.try_write_for(PATIENCE).ok_or(Errno::EAGAIN)?;
        *goes_on = false;
        drop(goes_on);
        // What it has begun runs without calls, and what it has open for writing would be taken for
        // a program's.
        self.1.end(failures);
        Ok(())
    }
}

/// A [`DataServer`] on the network.
pub struct DataHost(pub Arc<DataServer>);

impl Host for DataHost {
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    fn begin(&self, facts: &ClientFacts) -> Result<Arc<dyn Guest>, Errno> {
        let is_metadata = |address: IpAddr| self.0.metadata.contains(&address.to_canonical());
        match facts.address {
            Some(address) if !is_metadata(address.ip()) => {
                tracing::warn!("{address} asks for objects, and is no metadata server");
                Err(Errno::EACCES)
            }
            _ => Ok(Arc::new(self.0.session())),
        }
    }
}

impl Guest for DataSession {
    fn end(&self) {
        self.close_all();
        self.give_up_turn();
    }

    fn open_files(&self) -> u64 {
        self.open_objects() as u64
    }
}
