//! The rooms of a server.

use std::sync::{Arc, OnceLock};

use forebay_wire::net::NetView;

use crate::ahead::Ahead;
use crate::base::Base;
use crate::buffer::Buffer;
use crate::catalog::Catalog;
use crate::drain::Drain;
use crate::files::Files;
use crate::integrity::Integrity;
use crate::lifecycle::Lifecycle;
use crate::live::Reload;
use crate::orders::Orders;
use crate::plan::Plan;

/// All of them, each above those before it: a room knows only rooms below itself.
pub struct Rooms {
    /// What every room stands on.
    pub base: Arc<Base>,
    /// Which application a file belongs to.
    pub catalog: Arc<Catalog>,
    /// Tiers, and the files in them.
    pub buffer: Arc<Buffer>,
    /// Whether what lies there is what was put there.
    pub integrity: Arc<Integrity>,
    /// Limits and turns.
    pub plan: Arc<Plan>,
    /// Copies to the PFS.
    pub drain: Arc<Drain>,
    /// What programs do with files.
    pub files: Arc<Files>,
    /// What comes before programs ask for it.
    pub ahead: Arc<Ahead>,
    /// What people order.
    pub orders: Arc<Orders>,
    /// From a start to a stop.
    pub lifecycle: Arc<Lifecycle>,
    /// A look at the network server, where there is one.
    pub network: OnceLock<NetView>,
    /// The way to read the settings again, where there is one.
    pub reload: OnceLock<Reload>,
}
