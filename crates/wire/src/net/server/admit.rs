//! From the first sealed message of a socket to a link of a session.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_types::Errno;

use super::super::framing::{Inbox, encode};
use super::super::packet::{Attach, ClientFacts, LINKS_MAX, Refusal, ToClient};
use super::super::seal::Sealer;
use super::super::stream::{Stream, Wait};
use super::core::Core;
use super::link::{Link, Parts};
use super::refusals::RefusedFor;
use super::serve::{act, close};
use super::session::Session;
use crate::Response;

/// A client that has proved to have the key, and says what it wants.
pub(crate) struct Admitted {
    pub stream: Stream,
    pub address: Option<SocketAddr>,
    pub sealer: Sealer,
    pub inbox: Inbox,
    pub attach: Attach,
}

/// Lets a client in, or tells it why not. May block, as the host does.
pub(crate) fn admit(core: &Arc<Core>, admitted: Admitted) {
    let facts = facts_of(&admitted);
    // What goes over a Unix socket does not leave the machine.
    if core.encrypt && !admitted.attach.encrypt && !facts.local {
        return refuse(core, admitted, &facts.host, Refusal::Clear);
    }
    let session = match session_for(core, &admitted.attach, &facts) {
        Ok(session) => session,
        Err(why) => return refuse(core, admitted, &facts.host, why),
    };
    if let Some(rate) = core.rate
        && let Err(error) = admitted.stream.limit_rate(rate)
    {
        tracing::warn!("network: no limit of the rate: {error}");
    }
    let new = admitted.attach.join.is_none();
    let link = Link::new(Parts {
        id: core.next_link_id(),
        number: admitted.attach.link,
        session: session.clone(),
        stream: admitted.stream,
        encrypt: admitted.attach.encrypt,
        sealer: admitted.sealer,
        inbox: admitted.inbox,
        poller: core.poller.clone(),
    });
    let link = match link {
        Ok(link) => Arc::new(link),
        Err(error) => {
            tracing::error!("network: a link: {error}");
            if new {
                act(core, &session, session.end());
            }
            return;
        }
    };
    if !core.add_link(&link) {
        let what = "too many links";
        core.refusals.count(RefusedFor::TooMany, &facts.host, what);
        if new {
            act(core, &session, session.end());
        }
        link.close();
        return;
    }
    session.heard();
    match session.seat(&link) {
        Some(after) => act(core, &session, after),
        None => {
            core.remove_link(link.id);
            link.close();
            return;
        }
    }
    if let Err(error) = link.watch() {
        close(core, &link, &error.into());
    }
}

fn facts_of(admitted: &Admitted) -> ClientFacts {
    let mut facts = admitted.attach.facts.clone();
    facts.clean();
    facts.address = admitted.address;
    facts.local = admitted.stream.is_unix();
    facts
}

fn session_for(
    core: &Arc<Core>,
    attach: &Attach,
    facts: &ClientFacts,
) -> Result<Arc<Session>, Refusal> {
    // One more, for recalls.
    if attach.link > LINKS_MAX {
        return Err(Refusal::Protocol);
    }
    if core.is_stopping() {
        return Err(Refusal::Stopping);
    }
    if core.links().len() >= core.links_max {
        return Err(Refusal::TooMany);
    }
    if let Some(id) = attach.join {
        let known = core.session(id);
        // What a session may do hangs on where it came from: none takes a link from elsewhere.
        let known = known.filter(|session| {
            session.client == attach.client
                && session.facts.local == facts.local
                && !session.is_ending()
        });
        return known.ok_or(Refusal::UnknownSession);
    }
    // The answer to its first attach got lost: it does not know of that session.
    // Nobody says by a number over the network that a session of the server's own node is over.
    for old in core.sessions() {
        if old.client == attach.client && old.facts.local == facts.local {
            act(core, &old, old.end());
        }
    }
    // The panic hook has told of it.
    let begun = catch_unwind(AssertUnwindSafe(|| core.host.begin(facts)));
    let guest = begun.unwrap_or(Err(Errno::EIO)).map_err(Refusal::Host)?;
    let session = Session::new(attach.client, facts.clone(), guest, core.slots);
    let session = match session {
        Ok(session) => Arc::new(session),
        Err(error) => {
            tracing::error!("network: a session: {error}");
            return Err(Refusal::Host(Errno::of(&error)));
        }
    };
    if !core.add_session(&session) {
        session.guest.end();
        return Err(Refusal::Stopping);
    }
    match facts.command {
        true => tracing::debug!("network: {} asks", super::serve::who(&session)),
        false => tracing::info!("network: {} has come", super::serve::who(&session)),
    }
    Ok(session)
}

fn refuse(core: &Arc<Core>, mut admitted: Admitted, who: &str, why: Refusal) {
    // What every restart brings is not counted: the client begins anew, or finds the next server.
    let trouble = match why {
        Refusal::UnknownSession => Err("its session is over, and it is to begin another"),
        Refusal::Stopping => Err("the server stops"),
        Refusal::TooMany => Ok((RefusedFor::TooMany, "too many links".to_string())),
        Refusal::Host(errno) => Ok((RefusedFor::Host, errno.to_string())),
        Refusal::Clear => Ok((RefusedFor::Clear, "it sends data in the clear".to_string())),
        Refusal::Protocol => Ok((RefusedFor::Damaged, "an attach that is wrong".to_string())),
    };
    match trouble {
        Ok((reason, what)) => core.refusals.count(reason, who, what),
        Err(usual) => tracing::debug!("network: {who}: {usual}"),
    }
    let epoch = core.host.epoch();
    let refused = ToClient::<Response>::Refused { why, epoch };
    let mut frame = Vec::new();
    let sent = encode(&mut admitted.sealer, &mut frame, &refused, 0).and_then(|()| {
        let slice = [std::io::IoSlice::new(&frame)];
        Ok(admitted.stream.send(&slice, None, Wait::No)?)
    });
    if let Err(error) = sent {
        tracing::debug!("network: a refusal: {error}");
    }
}
