//! A store in etcd.
//!
//! | key (all begin with `PREFIX/`) | what it is |
//! | --- | --- |
//! | `leader` | the holder, under its lease: see [`lead`] |
//! | `mark` | the holder, and how many groups have taken effect: [`Mark`] |
//! | `d/KEY` | the map |
//! | `journal`, `part/N` | a group that is too large for one transaction: see [`large`] |
//!
//! A group is one transaction that compares the revision at which `leader` was created, and the
//! mark. What it replaced is read from the revision before it, if it has to be taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;

use super::Options;
use super::backend::{Applied, Backend, Limits, Page, Pairs};
use super::hold::Hold;
use super::mark::Mark;
use super::plan::Plan;
use super::store::Remote;
use crate::{Entry, Error, Store, range};

mod client;
mod large;
mod lead;
mod messages;

use client::Client;
use large::{ENTRIES_MAX, Overlay, PART_BYTES, Pending};
pub use lead::Onlooker;
use lead::{Lead, lead};
use messages::{Compare, RangeRequest, RequestOp, TxnRequest, TxnResponse};

const LIMITS: Limits = Limits {
    entries: ENTRIES_MAX,
    bytes: PART_BYTES,
};

const PAGE_ENTRIES: usize = 256;

/// Opens the store `prefix` of a cluster, of which nobody else may be the leader.
pub(super) fn open(
    members: &[String],
    prefix: &str,
    options: &Options,
) -> Result<Box<dyn Store>, Error> {
    let client = Client::new(members, options.patience)?;
    let etcd = Etcd {
        lead: lead(&client, &Names::new(prefix), options)?,
        pending: RwLock::default(),
        seen: AtomicI64::new(0),
        settled: AtomicI64::new(0),
    };
    etcd.recover_large()?;
    let mark = etcd.take()?;
    Ok(Box::new(Remote::new(etcd, mark, options.patience)))
}

#[derive(Clone)]
struct Names {
    leader: Vec<u8>,
    mark: Vec<u8>,
    journal: Vec<u8>,
    parts: Vec<u8>,
    data: Vec<u8>,
}

impl Names {
    fn new(prefix: &str) -> Names {
        let name = |name: &str| format!("{prefix}/{name}").into_bytes();
        Names {
            leader: name("leader"),
            mark: name("mark"),
            journal: name("journal"),
            parts: name("part/"),
            data: name("d/"),
        }
    }

    fn part(&self, number: u32) -> Vec<u8> {
        [&self.parts, &number.to_be_bytes()[..]].concat()
    }

    /// The first of all parts, and the first key behind them.
    fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        (self.parts.clone(), behind(&self.parts))
    }

    fn of(&self, key: &[u8]) -> Vec<u8> {
        [&self.data, key].concat()
    }

    fn change(&self, key: &[u8], value: Option<&[u8]>) -> RequestOp {
        match value {
            Some(value) => RequestOp::put(self.of(key), value.to_vec()),
            None => RequestOp::delete(self.of(key)),
        }
    }
}

/// The first key behind all that begin with a name that ends with a slash.
fn behind(name: &[u8]) -> Vec<u8> {
    let mut behind = name.to_vec();
    if let Some(last) = behind.last_mut() {
        *last += 1;
    }
    behind
}

struct Etcd {
    lead: Arc<Lead>,
    /// What a large group changes that has taken effect, until the map has all of it. A reader
    /// looks here before it asks the server.
    pending: RwLock<Option<Pending>>,
    /// The last revision of which an answer told.
    seen: AtomicI64,
    /// A revision that has all commits, and nothing else.
    settled: AtomicI64,
}

impl Etcd {
    /// Sets the mark of a new holder, and removes parts that were never made valid.
    fn take(&self) -> Result<Mark, Error> {
        let names = &self.lead.names;
        let mut answer = self.txn(TxnRequest {
            compare: vec![self.lead.leads()],
            success: vec![RequestOp::get(names.mark.clone(), 0)],
            failure: Vec::new(),
        })?;
        if !answer.succeeded {
            return Err(Error::Lost);
        }
        let number = match answer.take(0) {
            Some(held) => Mark::decode(&held.value)?.number,
            None => 0,
        };
        let mark = Mark::draw(number)?;
        let (first, end) = names.parts();
        let answer = self.txn(TxnRequest {
            compare: vec![self.lead.leads()],
            success: vec![self.put_mark(&mark), RequestOp::delete_range(first, end)],
            failure: Vec::new(),
        })?;
        answer.succeeded.then_some(mark).ok_or(Error::Lost)
    }

    fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        let answer = self.lead.client.txn(request)?;
        self.seen.fetch_max(answer.revision(), Ordering::SeqCst);
        Ok(answer)
    }

    fn mark_is(&self, mark: &Mark) -> Compare {
        Compare::holds(&self.lead.names.mark, Some(&mark.encode()))
    }

    fn put_mark(&self, mark: &Mark) -> RequestOp {
        RequestOp::put(self.lead.names.mark.clone(), mark.encode().to_vec())
    }

    /// What the keys hold on the server, or held at an earlier revision.
    fn values(&self, keys: &[&[u8]], revision: i64) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(ENTRIES_MAX) {
            let get = |key: &&[u8]| RequestOp::get(self.lead.names.of(key), revision);
            let mut answer = self.lead.client.txn(TxnRequest {
                compare: Vec::new(),
                success: keys.iter().map(get).collect(),
                failure: Vec::new(),
            })?;
            let found = (0..keys.len()).map(|at| answer.take(at));
            values.extend(found.map(|found| found.map(|found| found.value)));
        }
        Ok(values)
    }

    fn overlay(&self) -> Option<Arc<Overlay>> {
        let pending = self.pending.read();
        pending.as_ref().map(|pending| pending.changes.clone())
    }

    fn settle_seen(&self) {
        self.settled
            .store(self.seen.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn fits(plan: &Plan) -> bool {
        plan.entries() <= LIMITS.entries && plan.bytes() <= LIMITS.bytes
    }
}

impl Backend for Etcd {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn apply(&self, held: &Mark, next: &Mark, plan: &Plan) -> Result<Applied, Error> {
        self.finish_large()?;
        if !Self::fits(plan) {
            return self.apply_large(held, next, plan);
        }
        let names = &self.lead.names;
        let mut compare = vec![self.lead.leads(), self.mark_is(held)];
        let checks = plan.checks.iter();
        compare.extend(checks.map(|(key, value)| Compare::holds(&names.of(key), value.as_deref())));
        let mut success = vec![self.put_mark(next)];
        let changes = plan.changes.iter();
        success.extend(changes.map(|(key, value)| names.change(key, value.as_deref())));
        let mut answer = self.txn(TxnRequest {
            compare,
            success,
            failure: vec![
                RequestOp::get(names.leader.clone(), 0),
                RequestOp::get(names.mark.clone(), 0),
            ],
        })?;
        if answer.succeeded {
            return Ok(Applied::Done);
        }
        let leads = answer
            .take(0)
            .is_some_and(|key| key.create_revision == self.lead.term);
        let is_mark = answer.take(1).is_some_and(|key| key.value == held.encode());
        Ok(match leads && is_mark {
            true => Applied::Conflict,
            false => Applied::OtherMark,
        })
    }

    fn read(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let overlay = self.overlay();
        let mut values = self.values(keys, 0)?;
        if let Some(overlay) = overlay {
            for (key, value) in keys.iter().zip(&mut values) {
                if let Some(change) = overlay.get(*key) {
                    value.clone_from(change);
                }
            }
        }
        Ok(values)
    }

    fn page(&self, prefix: &[u8], after: Option<&[u8]>) -> Result<Page, Error> {
        let Some(bounds) = range::bounds(prefix, after) else {
            return Ok(Page::default());
        };
        let overlay = self.overlay();
        let names = &self.lead.names;
        let start = match &bounds.0 {
            std::ops::Bound::Excluded(key) => [&names.data[..], key, &[0]].concat(),
            std::ops::Bound::Included(key) => names.of(key),
            std::ops::Bound::Unbounded => names.data.clone(),
        };
        let end = match &bounds.1 {
            std::ops::Bound::Excluded(key) | std::ops::Bound::Included(key) => names.of(key),
            std::ops::Bound::Unbounded => behind(&names.data),
        };
        let answer = self.lead.client.range(RangeRequest {
            key: start,
            range_end: end,
            limit: PAGE_ENTRIES as i64,
            ..RangeRequest::default()
        })?;
        let own = |key: &[u8]| key[names.data.len()..].to_vec();
        let next = match answer.more {
            true => answer.kvs.last().map(|found| own(&found.key)),
            false => None,
        };
        let pairs = answer
            .kvs
            .into_iter()
            .map(|found| (own(&found.key), found.value));
        let mut pairs: Pairs = pairs.collect();
        if let Some(overlay) = overlay {
            let is_here = |key: &[u8]| next.as_deref().is_none_or(|next| key <= next);
            pairs.retain(|(key, _)| !overlay.contains_key(key));
            let changes = overlay.range(bounds).filter(|(key, _)| is_here(key));
            let puts = changes.filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
            pairs.extend(puts);
            pairs.sort();
        }
        Ok(Page { pairs, next })
    }

    fn fence(&self, held: &Mark, incarnation: u64) -> Result<Option<u64>, Error> {
        self.lead.client.forget();
        let names = &self.lead.names;
        loop {
            let mut answer = self.txn(TxnRequest {
                compare: vec![self.lead.leads()],
                success: vec![RequestOp::get(names.mark.clone(), 0)],
                failure: Vec::new(),
            })?;
            let found = answer.take(0).map(|found| Mark::decode(&found.value));
            let found = match found.transpose()? {
                Some(found) if found.holder == held.holder => found,
                _ => return Ok(None),
            };
            let raised = Mark {
                incarnation,
                ..found
            };
            let answer = self.txn(TxnRequest {
                compare: vec![self.lead.leads(), self.mark_is(&found)],
                success: vec![self.put_mark(&raised)],
                failure: Vec::new(),
            })?;
            if answer.succeeded {
                self.recover_large()?;
                return Ok(Some(found.number));
            }
            // What was sent before has come between, or the lease has gone.
        }
    }

    fn before(&self, plan: &Plan) -> Result<Vec<Entry>, Error> {
        let keys: Vec<&[u8]> = plan.changes.iter().map(|(key, _)| &**key).collect();
        let values = self.values(&keys, self.settled.load(Ordering::SeqCst))?;
        let keys = keys.into_iter().map(<[u8]>::to_vec);
        Ok(keys.zip(values).collect())
    }

    fn settled(&self) {
        self.settled
            .store(self.seen.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn hold(&self) -> &Hold {
        self.lead.hold()
    }

    fn release(&self) {
        self.lead.release();
    }
}
