//! The check of a state folder that nobody serves.

use std::path::{Path, PathBuf};

use forebay_wire::control::FsckReport;

use crate::base::settings::Settings;
use crate::lifecycle::facts::Facts;
use crate::lifecycle::onserver::Told;
use crate::lifecycle::statefolder::{open_store, store_of};
use crate::opening::{OpenMode, open_rooms};
use crate::starterror::{StartError, failed};

/// What a check of a state folder is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckOrders {
    /// Change nothing.
    pub dry_run: bool,
    /// Read all content.
    pub checksums: bool,
    /// The PFS has been replaced for good.
    pub new_pfs: bool,
    /// Tiers that are gone for good, by what they are called: `DIR`, `server-N`, `server-N:NAME`.
    pub lost_tiers: Vec<String>,
}

/// Checks a state folder whose instance does not run. The caller holds its lock. `tell` hears what
/// is waited for.
pub fn fsck_offline(
    state: &Path,
    orders: &FsckOrders,
    tell: &dyn Fn(&str),
) -> Result<FsckReport, StartError> {
    let (dry_run, new_pfs) = (orders.dry_run, orders.new_pfs);
    let mut settings = Settings::new(PathBuf::new(), None, state.to_path_buf());
    settings.store = store_of(state)?;
    let store = open_store(&settings, Told::of(tell))?;
    let facts = match store.get(b"c/instance").map_err(failed("metadata store"))? {
        Some(bytes) => postcard::from_bytes::<Facts>(&bytes).map_err(failed("metadata store"))?,
        None => return Err(StartError::NoInstance(state.display().to_string())),
    };
    drop(store);
    let mode = OpenMode::Check { dry_run, new_pfs };
    let settings = Settings {
        store: settings.store,
        ..facts.settings(state.to_path_buf())
    };
    let rooms = open_rooms(settings, mode, Told::of(tell))?;
    let given_up = rooms.lifecycle.give_up_tiers(&orders.lost_tiers, dry_run);
    let report = given_up.map(|found| {
        let mut report = rooms.lifecycle.fsck(dry_run, orders.checksums, false);
        report.findings.splice(0..0, found);
        report
    });
    // Memory that was not there before is empty, and nobody would give it back.
    rooms.buffer.tiers().undo(state);
    rooms.base.ns().sync().map_err(failed("metadata store"))?;
    report
}
