//! Who leads: one key with a lease, which only one holder can create.

use std::sync::Arc;
use std::time::Duration;

use super::Names;
use super::client::Client;
use super::messages::{Compare, PutRequest, Request, RequestOp, TxnRequest};
use crate::Error;
use crate::remote::hold::{Hold, Keeper};
use crate::remote::{Location, Options, TakeOver, boottime};

/// So many members may be silent one after the other while a lease lasts, and one of those that are
/// not still keeps it.
const MEMBERS_PER_LEASE: u32 = 6;

/// This process leads the store of a cluster, as long as its lease is valid.
///
/// The store needs nobody to look at the lease: each commit is refused by etcd once the lease has
/// gone. What is changed elsewhere, as on the PFS, is to be changed only while the hold is valid.
pub(super) struct Lead {
    pub(super) client: Arc<Client>,
    pub(super) names: Names,
    lease: i64,
    /// The revision at which the key of the leader was created: no other leader has it.
    pub(super) term: i64,
    hold: Hold,
    keeper: Keeper,
}

/// Somebody who waits for the leader of a store to go, and changes nothing.
pub struct Onlooker {
    client: Arc<Client>,
    names: Names,
}

impl Onlooker {
    /// Of the store in etcd that a location names.
    ///
    /// # Errors
    ///
    /// [`Error::Setup`] for a store of another kind, which has no leader.
    pub fn new(location: &Location, patience: Duration) -> Result<Onlooker, Error> {
        let Location::Etcd { members, prefix } = location else {
            return Err(Error::Setup("only a store in etcd has a leader".into()));
        };
        Ok(Onlooker {
            client: Client::new(members, patience)?,
            names: Names::new(prefix),
        })
    }

    /// Who leads, as the leader calls itself; `None` if nobody does.
    ///
    /// # Errors
    ///
    /// etcd cannot be reached.
    pub fn leader(&self) -> Result<Option<String>, Error> {
        let mut answer = self.client.txn(TxnRequest {
            compare: Vec::new(),
            success: vec![RequestOp::get(self.names.leader.clone(), 0)],
            failure: Vec::new(),
        })?;
        let leader = answer.take(0);
        Ok(leader.map(|leader| String::from_utf8_lossy(&leader.value).into_owned()))
    }
}

impl Lead {
    /// What every change of the store compares.
    pub(super) fn leads(&self) -> Compare {
        Compare::created(&self.names.leader, self.term)
    }

    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(super) fn release(&self) {
        if !self.keeper.stop() {
            return;
        }
        self.hold.end();
        // Where this fails, the lease expires by itself.
        drop(self.client.revoke(self.lease));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.release();
    }
}

/// Leads now, or is refused with [`Error::InUse`].
pub(super) fn lead(
    client: &Arc<Client>,
    names: &Names,
    options: &Options,
) -> Result<Arc<Lead>, Error> {
    let lease = options.lease.as_secs().max(1);
    let lease = lease.try_into().unwrap_or(i64::MAX);
    // A start begins with the first member, which may be the one that is not there. What another
    // one granted without an answer expires by itself.
    let (sent, granted) = client.ask_each(|| Ok((boottime::now(), client.grant(lease)?)))?;
    let hold = Hold::default();
    hold.extend(sent, seconds(granted.ttl));
    let term = match take_key(client, names, granted.id, options) {
        Ok(term) => term,
        Err(error) => {
            // Where this fails, the lease expires by itself.
            drop(client.revoke(granted.id));
            return Err(error);
        }
    };
    let keeper = {
        let (client, hold, id) = (client.clone(), hold.clone(), granted.id);
        let lease = seconds(granted.ttl);
        // One that is alone may take its time: there is nobody else to ask.
        let patience = match client.is_alone() {
            true => options.patience.min(lease / 2),
            false => lease / MEMBERS_PER_LEASE,
        };
        Keeper::start(seconds(granted.ttl), move || {
            let (sent, ttl) =
                client.ask_each(|| Ok((boottime::now(), client.keep_alive(id, patience)?)))?;
            match ttl > 0 {
                true => hold.extend(sent, seconds(ttl)),
                false => hold.lose(),
            }
            Ok(ttl > 0)
        })?
    };
    Ok(Arc::new(Lead {
        client: client.clone(),
        names: names.clone(),
        lease: granted.id,
        term,
        hold,
        keeper,
    }))
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.try_into().unwrap_or_default())
}

/// Creates the key of the leader under this lease; returns the revision of that.
fn take_key(client: &Client, names: &Names, lease: i64, options: &Options) -> Result<i64, Error> {
    loop {
        let put = PutRequest {
            key: names.leader.clone(),
            value: options.holder.clone().into_bytes(),
            lease,
        };
        let mut answer = client.txn(TxnRequest {
            compare: vec![Compare::created(&names.leader, 0)],
            success: vec![Request::Put(put).into()],
            failure: vec![RequestOp::get(names.leader.clone(), 0)],
        })?;
        if answer.succeeded {
            return Ok(answer.revision());
        }
        match answer.take(0) {
            Some(leader) => {
                let holder = String::from_utf8_lossy(&leader.value).into_owned();
                match &options.take_over {
                    TakeOver::Anybody => {}
                    TakeOver::From(from) if *from == holder => {}
                    _ => return Err(Error::InUse(Some(holder))),
                }
                // This lease, and no later one: another may lead by now.
                client.revoke(leader.lease)?;
            }
            None => return Err(Error::Corrupt("etcd has refused without a reason".into())),
        }
    }
}
