//! What the watchdog knows of the PFS. The server is asked by another thread: the watchdog waits
//! for no answer, which may be as late as what it watches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::Client;
use parking_lot::Mutex;

/// An older answer says nothing any more.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    under_way: bool,
    known: Option<(Instant, Duration, Duration)>,
}

/// Asks for the health of the PFS, one question at a time.
#[derive(Default)]
pub(crate) struct Probe {
    state: Mutex<State>,
}

impl Probe {
    /// For how long the PFS has been silent, and after how long it is given up, as far as that was
    /// answered a moment ago. Asks anew.
    pub(crate) fn look(self: &Arc<Probe>, client: &Client) -> Option<(Duration, Duration)> {
        let mut state = self.state.lock();
        let known = state.known.filter(|(at, ..)| at.elapsed() < FRESH);
        let asks = !std::mem::replace(&mut state.under_way, true);
        drop(state);
        if asks {
            let (probe, client) = (self.clone(), client.clone());
            // Not of the pool: all of that may wait for the PFS.
            let asker = std::thread::Builder::new().name("fb-probe".into());
            let spawned = asker.spawn(move || {
                let answer = client.health();
                let mut state = probe.state.lock();
                state.under_way = false;
                state.known = answer
                    .ok()
                    .map(|(silent, most)| (Instant::now(), silent, most));
            });
            if let Err(error) = spawned {
                tracing::warn!("whether the PFS answers is not known: {error}");
                self.state.lock().under_way = false;
            }
        }
        known.map(|(_, silent, most)| (silent, most))
    }
}
