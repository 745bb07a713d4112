//! Open files and what is done with them: data, attributes, first change, fsync, and the space that
//! they need.

pub(crate) mod allocate;
pub(crate) mod attributes;
pub(crate) mod change;
pub(crate) mod changeover;
pub(crate) mod closing;
pub(crate) mod descriptors;
pub(crate) mod downward;
pub(crate) mod fsync;
pub(crate) mod garbage;
mod groupmove;
pub(crate) mod guard;
pub(crate) mod handed;
pub(crate) mod handover;
pub(crate) mod home;
pub(crate) mod inplace;
pub(crate) mod io;
pub(crate) mod leaving;
pub(crate) mod lending;
pub(crate) mod limited;
mod live;
pub(crate) mod losses;
pub(crate) mod making;
pub(crate) mod mover;
pub(crate) mod open;
mod paced;
pub(crate) mod pages;
pub(crate) mod parting;
pub(crate) mod replica;
pub(crate) mod replicate;
pub(crate) mod restart;
pub(crate) mod setid;
pub(crate) mod shadow;
pub(crate) mod space;
pub(crate) mod stable;
pub(crate) mod stage;
pub(crate) mod unnamed;
pub(crate) mod unseen;
pub(crate) mod unwanted;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use forebay_namespace::Namespace;
use forebay_types::Ino;
use parking_lot::Mutex;

use crate::base::Base;
use crate::base::settings::Settings;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use crate::drain::Drain;
use crate::integrity::Integrity;
use crate::plan::Plan;
use descriptors::Descriptors;
use guard::GuardPost;
use inplace::InPlace;
use inplace::names::Names;
use losses::Losses;
use pages::Pages;
use unnamed::Unnamed;
use unseen::Unseen;

/// So many nodes make space side by side.
const MAKING_SPACE: usize = 16;

/// What programs do with files.
pub struct Files {
    settings: Arc<Settings>,
    ns: Arc<Namespace>,
    base: Arc<Base>,
    catalog: Arc<Catalog>,
    buffer: Arc<Buffer>,
    integrity: Arc<Integrity>,
    plan: Arc<Plan>,
    drain: Arc<Drain>,
    /// How many descriptors open files and others may have.
    descriptors: Descriptors,
    /// Watches over files that the kernel writes by itself.
    guard: GuardPost,
    /// What the kernel has written by itself.
    unseen: Unseen,
    /// What the kernel keeps of files that are served by requests.
    pages: Pages,
    /// Files that were made without a name, until they have one or are gone.
    unnamed: Unnamed,
    /// What was changed on the PFS itself, and is not flushed.
    in_place: InPlace,
    /// What may be lost of files.
    losses: Losses,
    /// Where names were.
    names: Names,
    /// Serialises the making of space, so that two writers do not evict for the same need; by node,
    /// for one of them may hang.
    making_space: [Mutex<()>; MAKING_SPACE],
    /// The same for users and groups beyond their limits, in whichever tiers.
    making_space_of: Mutex<()>,
    /// Removed objects that are still on record as garbage.
    removed: Mutex<Vec<garbage::Removed>>,
    /// So many threads remove unused objects now.
    collecting: AtomicU64,
    /// Has clients forget what they keep of a file, where there are sessions.
    recall: OnceLock<Recall>,
    awaits: OnceLock<Awaits>,
}

/// Has all clients forget what they keep of a file.
type Recall = Box<dyn Fn(Ino) + Send + Sync>;

/// Whether clients of before this start may still come back with what they had.
type Awaits = Box<dyn Fn() -> bool + Send + Sync>;

impl Files {
    /// No file is open.
    pub fn new(drain: &Arc<Drain>, descriptors: Descriptors) -> Files {
        Files {
            settings: drain.base().settings().clone(),
            ns: drain.base().ns().clone(),
            in_place: InPlace::new(descriptors.in_place_max),
            names: Names::default(),
            losses: Losses::default(),
            descriptors,
            guard: GuardPost::new(drain.base().settings().servers()),
            unseen: Unseen::default(),
            pages: Pages::default(),
            unnamed: Unnamed::default(),
            making_space: Default::default(),
            making_space_of: Mutex::default(),
            removed: Mutex::default(),
            collecting: AtomicU64::default(),
            recall: OnceLock::new(),
            awaits: OnceLock::new(),
            base: drain.base().clone(),
            catalog: drain.catalog().clone(),
            buffer: drain.buffer().clone(),
            integrity: drain.integrity().clone(),
            plan: drain.plan().clone(),
            drain: drain.clone(),
        }
    }

    /// The room below.
    pub fn drain(&self) -> &Arc<Drain> {
        &self.drain
    }
}
