//! Who leads: one key with a lease, which only one holder can create.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::client::Client;
use super::messages::{Compare, PutRequest, Request, RequestOp, TxnRequest};
use super::{Names, open_as};
use crate::remote::hold::{Hold, Keeper};
use crate::remote::{Location, Options, boottime};
use crate::{Error, Store};

/// How often a standby looks whether the leader has gone.
const LOOK: Duration = Duration::from_millis(500);

/// This process leads the store of a cluster, as long as its lease is valid.
///
/// The store needs nobody to look at the lease: each commit is refused by etcd once the lease has
/// gone. What is changed elsewhere, as on the PFS, is to be changed only before
/// [`valid_until`](Leadership::valid_until).
#[derive(Clone)]
pub struct Leadership(pub(super) Arc<Lead>);

pub(super) struct Lead {
    pub(super) client: Arc<Client>,
    pub(super) names: Names,
    lease: i64,
    /// The revision at which the key of the leader was created: no other leader has it.
    pub(super) term: i64,
    hold: Hold,
    keeper: Keeper,
}

impl Leadership {
    /// Waits until nobody leads the store that an `etcd://` URL names, and leads it. `Ok(None)` if
    /// `give_up` became true before that. With [`Options::take_over`] it waits for nobody.
    ///
    /// # Errors
    ///
    /// A URL of another kind; etcd cannot be reached.
    pub fn campaign(
        url: &str,
        options: &Options,
        give_up: &AtomicBool,
    ) -> Result<Option<Leadership>, Error> {
        let Location::Etcd { members, prefix } = Location::parse(url)? else {
            return Err(Error::Setup("only a store in etcd has a leader".into()));
        };
        let client = Client::new(&members, options.patience)?;
        let names = Names::new(&prefix);
        while !give_up.load(Ordering::SeqCst) {
            match lead(&client, &names, options) {
                Err(Error::InUse(_)) => std::thread::sleep(LOOK),
                other => return other.map(Some),
            }
        }
        Ok(None)
    }

    /// The time since boot (`CLOCK_BOOTTIME`) until which nobody else can lead, unless a person
    /// orders it with [`Options::take_over`]; zero once the lease has gone.
    pub fn valid_until(&self) -> Duration {
        self.0.hold.valid_until()
    }

    /// Nobody else can lead at this moment.
    pub fn is_valid(&self) -> bool {
        self.0.hold.is_valid()
    }

    /// Opens the store. Leadership is given back when the store is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease has gone; etcd cannot be reached.
    pub fn open(&self, options: &Options) -> Result<Box<dyn Store>, Error> {
        open_as(self.clone(), options)
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
) -> Result<Leadership, Error> {
    let sent = boottime::now();
    let granted = client.grant(
        options
            .lease
            .as_secs()
            .max(1)
            .try_into()
            .unwrap_or(i64::MAX),
    )?;
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
        Keeper::start(seconds(granted.ttl), move || {
            let sent = boottime::now();
            let ttl = client.keep_alive(id)?;
            match ttl > 0 {
                true => hold.extend(sent, seconds(ttl)),
                false => hold.lose(),
            }
            Ok(ttl > 0)
        })?
    };
    Ok(Leadership(Arc::new(Lead {
        client: client.clone(),
        names: names.clone(),
        lease: granted.id,
        term,
        hold,
        keeper,
    })))
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
            Some(leader) if options.take_over => client.revoke(leader.lease)?,
            Some(leader) => {
                let holder = String::from_utf8_lossy(&leader.value).into_owned();
                return Err(Error::InUse(Some(holder)));
            }
            None => return Err(Error::Corrupt("etcd has refused without a reason".into())),
        }
    }
}
