//! The watchdog: see [`crate::inflight`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_client::Client;
use forebay_types::Errno;

use super::{
    ASKED_AGAIN_AFTER_TICKS, InFlightTable, Pending, REPLACED_AFTER_TICKS, TICK, answer_attr,
    answer_entry, is_gone, say_totals,
};
use crate::asker;
use crate::belief::Belief;
use crate::convert::{attr, errno};
use crate::forgets::Forgets;
use crate::known::Known;
use crate::paced::give;
use crate::pool::Pool;
use crate::probe::Probe;
use crate::releases::Releases;
use crate::serving::EndCall;

/// What the watchdog looks after.
pub(crate) struct Watched {
    pub(crate) in_flight: Arc<InFlightTable>,
    pub(crate) client: Client,
    pub(crate) pool: Pool,
    pub(crate) belief: Arc<Belief>,
    pub(crate) forgets: Arc<Forgets>,
    pub(crate) releases: Arc<Releases>,
    pub(crate) probe: Arc<Probe>,
    pub(crate) ended: EndCall,
}

/// The watchdog thread; ends with the mount, which `device` tells.
pub(crate) fn watch(watched: &Watched) {
    let in_flight = &watched.in_flight;
    loop {
        {
            let mut parked = in_flight.parked.lock();
            if !parked.ended {
                in_flight.nudged.wait_for(&mut parked, TICK);
            }
            if parked.ended {
                drop(parked);
                return give(in_flight.paced.take_all());
            }
        }
        if in_flight.device.get().is_some_and(is_gone) {
            in_flight.end();
            give(in_flight.paced.take_all());
            // Threads that wait for a server that is gone hold up the end of the session.
            let call = watched.ended.lock().take();
            call.into_iter().for_each(|call| call());
            return watched.releases.end(&watched.client);
        }
        watched.releases.look(&watched.client);
        give(in_flight.paced.take_due());
        if watched.forgets.are_to_be_sent() {
            let (forgets, client) = (watched.forgets.clone(), watched.client.clone());
            let send = move |_: &mut Vec<u8>| forgets.send(&client);
            watched.pool.run(Box::new(send));
        }
        let now = in_flight.tick.fetch_add(1, Ordering::Relaxed) + 1;
        let oldest = in_flight.look(now);
        if oldest >= REPLACED_AFTER_TICKS {
            for pending in in_flight.take_of_the_dying(now) {
                pending.fail(Errno::EINTR);
            }
        }
        if oldest >= ASKED_AGAIN_AFTER_TICKS {
            let known = &watched.belief.known;
            let late = |pending: &Pending| may_be_told(known, pending);
            for (pending, _) in in_flight.take(now, ASKED_AGAIN_AFTER_TICKS, late) {
                tell(&watched.belief, pending);
            }
            rescue(watched, now);
        }
    }
}

/// Whether the mount itself can answer a request that the server has not answered for a while.
fn may_be_told(known: &Known, pending: &Pending) -> bool {
    match pending {
        Pending::Getattr(_, node, _) => known.attr(*node).is_some(),
        Pending::ReplyStatfs(_) => known.totals().is_some(),
        _ => false,
    }
}

fn tell(belief: &Belief, pending: Pending) {
    match pending {
        Pending::Getattr(reply, node, _) => match belief.known.attr(node) {
            Some(found) => reply.attr(&Duration::ZERO, &attr(&found)),
            None => reply.error(errno(Errno::EIO)),
        },
        Pending::ReplyStatfs(reply) => match belief.known.totals() {
            Some(totals) => say_totals(reply, &totals),
            None => reply.error(errno(Errno::EIO)),
        },
        other => other.fail(Errno::EIO),
    }
}

/// Answers requests that wait for a PFS that does not answer.
fn rescue(watched: &Watched, now: u64) {
    let Watched {
        in_flight, client, ..
    } = watched;
    let Some((silent, give_up_after)) = watched.probe.look(client) else {
        return;
    };
    if silent.is_zero() {
        return;
    }
    let again = |pending: &Pending| matches!(pending, Pending::Lookup(..) | Pending::Getattr(..));
    for (pending, asker) in in_flight.take(now, ASKED_AGAIN_AFTER_TICKS, again) {
        ask_again(watched, pending, asker);
    }
    if silent >= give_up_after {
        let ticks = give_up_after.as_millis() / TICK.as_millis();
        let age = u64::try_from(ticks).unwrap_or(u64::MAX);
        for (pending, _) in in_flight.take(now, age.max(ASKED_AGAIN_AFTER_TICKS), |_| true) {
            pending.fail(Errno::ETIMEDOUT);
        }
    }
}

/// Serves a request once more. Now that the PFS is known to be silent, the request either needs no
/// PFS or gets its error in time.
fn ask_again(watched: &Watched, pending: Pending, asker: u32) {
    let (in_flight, client) = (watched.in_flight.clone(), watched.client.clone());
    let (belief, forgets) = (watched.belief.clone(), watched.forgets.clone());
    asker::set(asker);
    watched.pool.run(Box::new(move |_| match pending {
        Pending::Lookup(reply, parent, name, uid) => {
            let turn = in_flight.waiting_turn(reply);
            let made = client.lookup(parent, &name, uid);
            answer_entry(
                (&client, client.generation()),
                (&belief, &forgets),
                made,
                &turn,
            );
        }
        Pending::Getattr(reply, node, fh) => {
            let turn = in_flight.waiting_turn(reply);
            let found = client.getattr(node, fh);
            let _ = answer_attr(&belief, found, &turn);
        }
        other => other.fail(Errno::EIO),
    }));
    asker::set(0);
}
