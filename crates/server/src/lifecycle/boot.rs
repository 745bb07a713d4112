//! Whether the node has started anew since the last run: then what was not flushed may be torn. The
//! end of the daemon alone takes nothing along, for the kernel has what was written.

use std::fs;

use forebay_namespace::{Namespace, NsError};
use forebay_tiers::TierKind;

/// The kernel makes it up at every start of the node.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Under which the last run's is on record.
const FACT: &str = "boot";

/// Which start of the node this is, and whether it is another than that of the last run.
#[derive(Debug)]
pub struct Boot {
    id: Option<String>,
    is_another: bool,
    is_on_record: bool,
}

impl Boot {
    /// Compares with what is on record. `id` stands for the kernel's.
    pub fn look(ns: &Namespace, id: Option<&str>) -> Result<Boot, NsError> {
        let id = match id {
            Some(id) => Some(id.to_string()),
            None => match fs::read_to_string(BOOT_ID) {
                Ok(id) => Some(id.trim().to_string()),
                Err(error) => {
                    tracing::warn!("{BOOT_ID}: {error}; a loss of power is only found by lengths");
                    None
                }
            },
        };
        let before = ns.get_fact(FACT)?;
        let is_on_record = id.as_ref().map(String::as_bytes) == before.as_deref();
        let is_another = id.is_some() && before.is_some() && !is_on_record;
        Ok(Boot {
            id,
            is_another,
            is_on_record,
        })
    }

    /// Whether what a tier holds may have lost what was not flushed since.
    pub fn may_have_torn(&self, kind: TierKind) -> bool {
        // Memory goes as a whole.
        self.is_another && kind != TierKind::Dram
    }

    /// How the kernel calls this start of the node.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// All that the last run left has been looked at.
    pub fn record(&self, ns: &Namespace) -> Result<(), NsError> {
        match &self.id {
            Some(id) if !self.is_on_record => {
                ns.put_fact(FACT, id.as_bytes())?;
                // What is written from now on is this start's, also if nothing else is ever
                // flushed.
                ns.sync()
            }
            _ => Ok(()),
        }
    }
}
