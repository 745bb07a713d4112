//! Data servers on other nodes: found at a start, or expected where they do not answer.

use std::io;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use forebay_holder::{Claim, RemoteTier, RemoteTiers};
use forebay_policy::patience::DATA_SERVER_TRY;
use forebay_types::Errno;
use forebay_wire::{OUT_OF_REACH, ObjectTier};

use parking_lot::Mutex;

use crate::base::settings::{HolderSetting, Settings};
use crate::buffer::known::Known;

/// A data server.
pub struct Holder {
    /// Its id in the cluster.
    pub server: u16,
    tiers: RemoteTiers,
    found: Vec<RemoteTier>,
    /// It is not there: these are the tiers of before.
    is_expected: bool,
    /// Since when it was not found to answer.
    missing: Mutex<Option<Instant>>,
}

impl Holder {
    /// What messages call it.
    pub fn name(&self) -> String {
        name_of(self.server)
    }

    /// Whether it answers, and what it has is to be looked at by a start before it is used.
    pub fn is_to_be_looked_at(&self) -> bool {
        self.tiers.is_to_be_looked_at()
    }

    /// Whether copies that nobody waits for get there now. May wait a little.
    pub fn takes_copies(&self) -> bool {
        self.tiers.takes_copies()
    }

    /// Whether a data server has said that a later start of the metadata server has come.
    pub fn is_replaced(&self) -> bool {
        self.tiers.is_replaced()
    }

    /// This start cannot look at what it has: nothing of it is used before another one has.
    pub fn shut(&self) {
        self.tiers.shut();
    }

    /// The same, and there is nothing to look at as long as it has what it has now.
    pub fn refuse(&self) {
        self.tiers.refuse();
    }

    /// Somebody has looked whether it answers.
    pub fn note(&self, answers: bool) {
        let mut missing = self.missing.lock();
        match answers {
            true => *missing = None,
            false => _ = missing.get_or_insert_with(Instant::now),
        }
    }

    /// For how long it has not answered, when last looked at.
    pub fn missing_for(&self) -> Option<Duration> {
        self.missing.lock().map(|since| since.elapsed())
    }

    /// A tier of before that it does not name now.
    pub(super) fn absent(&self, facts: ObjectTier) -> RemoteTier {
        self.tiers.absent(&self.name(), facts)
    }

    /// Whether its tiers are those of before.
    pub(super) fn is_expected(&self) -> bool {
        self.is_expected
    }

    /// The tiers that were found, or are expected; once.
    pub(super) fn take_found(&mut self) -> Vec<RemoteTier> {
        std::mem::take(&mut self.found)
    }
}

fn name_of(server: u16) -> String {
    format!("server-{server}")
}

/// All of them, asked at the same time: one that hangs keeps a start for long enough by itself. Who
/// does not answer in time is expected with the tiers of before: nobody can say what it holds, and
/// nobody waits for that.
pub fn find_holders(settings: &Settings, claim: &Claim, known: &mut Known) -> Vec<Holder> {
    let until = Instant::now() + settings.wait_for_holders;
    let before = &*known;
    let found: Vec<Holder> = std::thread::scope(|scope| {
        let ask = |holder| scope.spawn(move || find(holder, claim, until, before));
        let asked: Vec<_> = settings.holders.iter().map(ask).collect();
        let found = asked.into_iter().map(ScopedJoinHandle::join);
        found
            .map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    for holder in found.iter().filter(|holder| !holder.is_expected) {
        let facts = holder.found.iter().map(|tier| tier.facts().clone());
        known.note_holder(holder.server, facts.collect());
    }
    found
}

/// The node that has it does not answer: whoever asks asks again. A tier of another node says
/// nothing else of the end of a session.
pub fn is_out_of_reach(error: &io::Error) -> bool {
    Errno::of(error) == OUT_OF_REACH
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EACCES))
}

fn find(holder: &HolderSetting, claim: &Claim, until: Instant, known: &Known) -> Holder {
    let (server, name) = (holder.server, name_of(holder.server));
    let replication = holder.replication.as_ref().map(|way| way.0.clone());
    let tiers = RemoteTiers::with_replication(holder.way.0.clone(), replication, claim.clone());
    let (mut is_told, mut is_expected) = (false, false);
    let found = loop {
        match tiers.find(&name) {
            // Another burst buffer's, or it does not know this node as a metadata server: that does
            // not change by itself, and is no reason to serve nobody.
            Err(error) if is_refused(&error) || Instant::now() >= until => {
                let before = known.of_holder(server).unwrap_or_default().to_vec();
                tracing::warn!(
                    "{name} is not there ({error}): what it has is out of reach until it is back"
                );
                is_expected = true;
                break tiers.expect(&name, before);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("waiting for {name}: {error}");
                }
                std::thread::sleep(DATA_SERVER_TRY);
            }
            Ok(found) => break found,
        }
    };
    Holder {
        server,
        tiers,
        found,
        is_expected,
        missing: Mutex::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use forebay_wire::{Connection, Reply, Request};

    use super::*;
    use crate::base::settings::HolderWay;

    /// Answers once both are asked.
    struct Together(Barrier);

    impl Connection for Together {
        fn call(&self, _: Request, _: &[u8], _: &mut [u8]) -> Result<Reply, Errno> {
            self.0.wait();
            Err(Errno::EACCES)
        }

        fn hands_over_descriptors(&self) -> bool {
            false
        }
    }

    #[test]
    fn data_servers_are_asked_at_the_same_time() {
        let way = Arc::new(Together(Barrier::new(2)));
        let mut settings = Settings::new("/".into(), None, "/".into());
        settings.holders = [2, 3]
            .map(|server| HolderSetting {
                server,
                rack: server,
                addresses: Vec::new(),
                way: HolderWay(way.clone()),
                replication: None,
            })
            .into();
        let (told, found) = std::sync::mpsc::channel();
        // Asked one after the other, the first would wait forever.
        std::thread::spawn(move || {
            let mut known = Known::default();
            told.send(find_holders(&settings, &Claim::new([7; 16], 1), &mut known))
        });
        let found = found.recv_timeout(Duration::from_secs(20));
        let servers = found.expect("both were asked").into_iter();
        let servers: Vec<u16> = servers.map(|holder| holder.server).collect();
        assert_eq!(servers, [2, 3]);
    }
}
