//! What the state folder remembers about the instance, beside the files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_namespace::{Namespace, NsError, in_record};
use forebay_types::Errno;
use forebay_wire::{Connection, OUT_OF_REACH, Reply, Request};
use serde::{Deserialize, Serialize};

use crate::base::settings::{HolderSetting, HolderWay, Settings, SsdSetting};
use crate::buffer::known::Known;

/// How the instance was last started: enough to check it offline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The PFS.
    pub pfs: PathBuf,
    /// Below which path people find its files.
    pub mount: PathBuf,
    /// Size of the memory tier, bytes.
    pub dram_bytes: Option<u64>,
    /// Flash directories and their sizes, bytes.
    pub ssd: Vec<(PathBuf, Option<u64>)>,
    /// All tiers that have an id.
    pub known: Known,
    /// Totals over all runs.
    pub demoted_bytes: u64,
    /// Totals over all runs.
    pub demoted_files: u64,
    /// Totals over all runs.
    pub evicted_bytes: u64,
}

const NAME: &str = "instance";
const WHAT: &str = "facts of the instance";

impl Facts {
    /// Reads them; `None` in a new state folder.
    pub fn load(ns: &Namespace) -> Result<Option<Facts>, NsError> {
        match ns.get_fact(NAME)? {
            Some(bytes) => {
                let facts = postcard::from_bytes(&bytes);
                facts.map(Some).map_err(in_record(WHAT))
            }
            None => Ok(None),
        }
    }

    /// Writes them.
    pub fn save(&self, ns: &Namespace) -> Result<(), NsError> {
        let bytes = postcard::to_stdvec(self).map_err(in_record(WHAT))?;
        ns.put_fact(NAME, &bytes)
    }

    /// Facts of a first start.
    pub fn new(settings: &Settings) -> Facts {
        let mut facts = Facts {
            pfs: settings.pfs.clone(),
            mount: settings.shown_at().to_path_buf(),
            dram_bytes: None,
            ssd: Vec::new(),
            known: Known::default(),
            demoted_bytes: 0,
            demoted_files: 0,
            evicted_bytes: 0,
        };
        facts.follow(settings);
        facts
    }

    /// Takes over what may change from start to start.
    pub fn follow(&mut self, settings: &Settings) {
        self.mount = settings.shown_at().to_path_buf();
        self.dram_bytes = settings.dram_bytes;
        self.ssd = settings
            .ssd
            .iter()
            .map(|s| (s.dir.clone(), s.capacity_bytes))
            .collect();
    }

    /// Settings to open the state with, without serving.
    pub fn settings(&self, state: PathBuf) -> Settings {
        let mut settings = Settings::new(self.pfs.clone(), self.mount.clone(), state);
        settings.dram_bytes = self.dram_bytes;
        let ssd = self.ssd.iter().map(|(dir, capacity_bytes)| SsdSetting {
            dir: dir.clone(),
            capacity_bytes: *capacity_bytes,
        });
        settings.ssd = ssd.collect();
        // What they hold is out of reach, and nothing is placed: the rack does not matter.
        let rack = settings.rack;
        let holders = self.known.holders().map(|server| HolderSetting {
            server,
            rack,
            addresses: Vec::new(),
            way: HolderWay(Arc::new(NoWay)),
            replication: None,
        });
        settings.holders = holders.collect();
        settings.wait_for_holders = Duration::ZERO;
        settings
    }
}

/// To a data server that nobody tries to reach.
struct NoWay;

impl Connection for NoWay {
    fn call(&self, _: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
        Err(OUT_OF_REACH)
    }

    fn is_answering(&self) -> bool {
        false
    }

    fn hands_over_descriptors(&self) -> bool {
        false
    }
}
