//! Whether a node has started anew since the last run: then what was not flushed may be torn. The
//! end of the daemon alone takes nothing along, for the kernel has what was written.

use std::collections::BTreeMap;
use std::fs;

use forebay_namespace::{Namespace, NsError};
use forebay_tiers::TierKind;

use crate::buffer::tierset::{Slot, TierSet};

/// The kernel makes it up at every start of the node.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Under which the last run's is on record.
const FACT: &str = "boot";

/// Which start of a node this is, and whether it is another than that of the last run.
#[derive(Debug)]
struct Start {
    id: Option<String>,
    is_another: bool,
    is_on_record: bool,
}

impl Start {
    fn look(ns: &Namespace, fact: &str, id: Option<String>) -> Result<Start, NsError> {
        let before = ns.get_fact(fact)?;
        let is_on_record = id.as_ref().map(String::as_bytes) == before.as_deref();
        let is_another = id.is_some() && before.is_some() && !is_on_record;
        Ok(Start {
            id,
            is_another,
            is_on_record,
        })
    }

    /// Whether it was put on record.
    fn record(&self, ns: &Namespace, fact: &str) -> Result<bool, NsError> {
        match &self.id {
            Some(id) if !self.is_on_record => ns.put_fact(fact, id.as_bytes()).map(|()| true),
            _ => Ok(false),
        }
    }
}

fn fact_of(server: u16) -> String {
    format!("{FACT}-{server}")
}

/// The starts of all nodes that have tiers.
#[derive(Debug)]
pub struct Boot {
    own: Start,
    /// By data server.
    others: BTreeMap<u16, Start>,
}

impl Boot {
    /// Compares with what is on record. `id` stands for the kernel's.
    pub fn look(ns: &Namespace, id: Option<&str>, tiers: &TierSet) -> Result<Boot, NsError> {
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
        let mut others = BTreeMap::new();
        for (_, slot) in tiers.iter() {
            if let Some(boot) = slot.tier.boot() {
                let start = Start::look(ns, &fact_of(slot.server), Some(boot))?;
                others.insert(slot.server, start);
            }
        }
        Ok(Boot {
            own: Start::look(ns, FACT, id)?,
            others,
        })
    }

    /// Whether what a tier holds may have lost what was not flushed since.
    pub fn may_have_torn(&self, slot: Option<&Slot>) -> bool {
        let Some(slot) = slot else {
            return self.own.is_another;
        };
        if slot.has_moved && slot.kind != TierKind::Dram {
            // Nobody has put on record in which start of that node it was written.
            return true;
        }
        let start = match slot.tier.boot() {
            Some(_) => self.others.get(&slot.server),
            None => Some(&self.own),
        };
        // Memory goes as a whole.
        start.is_some_and(|start| start.is_another) && slot.kind != TierKind::Dram
    }

    /// How the kernel calls this start of the node.
    pub fn id(&self) -> Option<&str> {
        self.own.id.as_deref()
    }

    /// All that the last run left has been looked at, but for what is on data servers that were not
    /// `looked` at.
    pub fn record(&self, ns: &Namespace, looked: &dyn Fn(u16) -> bool) -> Result<(), NsError> {
        let mut is_news = self.own.record(ns, FACT)?;
        for (server, start) in self.others.iter().filter(|(server, _)| looked(**server)) {
            is_news |= start.record(ns, &fact_of(*server))?;
        }
        match is_news {
            // What is written from now on is this start's, also if nothing else is ever flushed.
            true => ns.sync(),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_holder::{Claim, DataServer, SsdSetting, open_flash};
    use forebay_tiers::Tier;
    use forebay_wire::InMemory;

    use super::*;
    use crate::base::settings::{HolderSetting, HolderWay, Settings};
    use crate::buffer::known::Known;
    use crate::testing::Lab;

    fn holder(dir: &std::path::Path, boot: &str) -> HolderSetting {
        let ssd = SsdSetting {
            dir: dir.to_path_buf(),
            capacity_bytes: Some(64 << 20),
        };
        let open = move |instance| {
            let tier = open_flash("ssd", &ssd, instance)?;
            Ok(vec![Arc::new(tier) as Arc<dyn Tier>])
        };
        let data = DataServer::new(boot.into(), Vec::new(), Box::new(open), None);
        let way = InMemory::mount(Arc::new(data.session()));
        HolderSetting {
            server: 2,
            rack: 2,
            addresses: Vec::new(),
            way: HolderWay(Arc::new(way)),
            replication: None,
        }
    }

    #[test]
    fn each_node_tells_of_its_own_starts() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let lab = Lab::with(|settings| settings.boot_id = Some("own 1".into()));
        let ns = lab.rooms().base.ns();
        let torn = |own: &str, other: &str| {
            let mut settings = Settings::new(dirs[0].path().into(), None, dirs[0].path().into());
            settings.holders = vec![holder(dirs[1].path(), other)];
            settings.ssd = vec![SsdSetting {
                dir: dirs[0].path().to_path_buf(),
                capacity_bytes: Some(64 << 20),
            }];
            let mut known = Known::default();
            let tiers = TierSet::open(&settings, ns.pfs(), &Claim::new([7; 16], 1), &mut known)
                .expect("tiers");
            let boot = Boot::look(ns, Some(own), &tiers).expect("a look");
            boot.record(ns, &|_| true).expect("recorded");
            let slots = tiers.iter().map(|(_, slot)| boot.may_have_torn(Some(slot)));
            let torn: Vec<bool> = slots.collect();
            tiers.give_back();
            (torn[0], torn[1])
        };
        assert_eq!(torn("own 1", "other 1"), (false, false));
        assert_eq!(torn("own 1", "other 2"), (false, true));
        assert_eq!(torn("own 2", "other 2"), (true, false));
        assert_eq!(torn("own 2", "other 2"), (false, false));
    }
}
