//! A group that is too large for one transaction.
//!
//! 1. Its changes are put beside the map, in parts.
//! 2. One transaction sets the mark and the key `journal`, which makes the parts valid: the group
//!    has taken effect. Readers in this process see it through an overlay.
//! 3. The parts are applied to the map, in as many transactions as it takes. Doing so again changes
//!    nothing, so whoever holds the store next finishes what was begun.
//! 4. One transaction removes the journal and the parts; after it the overlay is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Etcd;
use super::messages::{Compare, RangeRequest, RequestOp, TxnRequest};
use crate::remote::backend::Applied;
use crate::remote::mark::Mark;
use crate::remote::plan::{Plan, bytes_of};
use crate::{Entry, Error};

/// What a group in step 3 changes.
pub(super) type Overlay = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A group in step 3.
#[derive(Clone)]
pub(super) struct Pending {
    pub(super) changes: Arc<Overlay>,
    /// It is known to whom it was committed, so that it is never taken back.
    pub(super) is_answered: bool,
}

/// A part stays below what etcd takes in one request, by default 1.5 MiB.
pub(super) const PART_BYTES: usize = 1024 * 1024;

/// Within the 128 that etcd takes in one transaction by default.
pub(super) const ENTRIES_MAX: usize = 120;

impl Etcd {
    pub(super) fn apply_large(
        &self,
        held: &Mark,
        next: &Mark,
        plan: &Plan,
    ) -> Result<Applied, Error> {
        // Only this process changes the keys, or the mark is another one when the parts are made
        // valid.
        if !self.checks_hold(&plan.checks)? {
            return Ok(Applied::Conflict);
        }
        let compare = vec![self.lead.leads(), self.mark_is(held)];
        let parts = encode(&plan.changes);
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        for (number, part) in (0..).zip(parts) {
            let put = RequestOp::put(self.lead.names.part(number), part);
            if !self.change(compare.clone(), vec![put])? {
                return Ok(Applied::OtherMark);
            }
        }
        let journal = self.lead.names.journal.clone();
        let success = vec![
            self.put_mark(next),
            RequestOp::put(journal, count.to_be_bytes().to_vec()),
        ];
        if !self.change(compare, success)? {
            return Ok(Applied::OtherMark);
        }
        *self.pending.write() = Some(Pending {
            changes: Arc::new(plan.changes.iter().cloned().collect()),
            is_answered: true,
        });
        // What fails now is finished before anything else is changed.
        drop(self.finish_large());
        Ok(Applied::Done)
    }

    fn checks_hold(&self, checks: &[Entry]) -> Result<bool, Error> {
        let keys: Vec<&[u8]> = checks.iter().map(|(key, _)| &**key).collect();
        let values = self.values(&keys, 0)?;
        let expected = checks.iter().map(|(_, value)| value);
        Ok(expected.eq(&values))
    }

    /// Steps 3 and 4 of a group that has an overlay.
    pub(super) fn finish_large(&self) -> Result<(), Error> {
        let Some(pending) = self.pending.read().clone() else {
            return Ok(());
        };
        let names = &self.lead.names;
        let (mut success, mut bytes) = (Vec::new(), 0);
        for (key, value) in pending.changes.iter() {
            let more = key.len() + value.as_ref().map_or(0, Vec::len);
            if success.len() == ENTRIES_MAX || bytes + more > PART_BYTES {
                self.must_change(std::mem::take(&mut success))?;
                bytes = 0;
            }
            bytes += more;
            success.push(names.change(key, value.as_deref()));
        }
        self.must_change(success)?;
        let (first, end) = names.parts();
        self.must_change(vec![
            RequestOp::delete(names.journal.clone()),
            RequestOp::delete_range(first, end),
        ])?;
        if pending.is_answered {
            // Nothing else was sent since it was answered.
            self.settle_seen();
        }
        *self.pending.write() = None;
        Ok(())
    }

    fn must_change(&self, success: Vec<RequestOp>) -> Result<(), Error> {
        match self.change(vec![self.lead.leads()], success)? {
            true => Ok(()),
            false => Err(Error::Lost),
        }
    }

    /// Finishes a group that is valid on the server, whoever has made it valid.
    pub(super) fn recover_large(&self) -> Result<(), Error> {
        if self.pending.read().is_none() {
            let names = &self.lead.names;
            let Some(count) = self.raw(&names.journal)? else {
                return Ok(());
            };
            let count = count.try_into().map(u32::from_be_bytes);
            let count = count.map_err(|_| damaged())?;
            let mut overlay = Overlay::new();
            for number in 0..count {
                let part = self.raw(&names.part(number))?.ok_or_else(damaged)?;
                decode(&part, &mut overlay)?;
            }
            *self.pending.write() = Some(Pending {
                changes: Arc::new(overlay),
                is_answered: false,
            });
        }
        self.finish_large()
    }

    fn raw(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let request = RangeRequest {
            key: key.to_vec(),
            ..RangeRequest::default()
        };
        let mut answer = self.lead.client.range(request)?;
        Ok(answer.kvs.pop().map(|found| found.value))
    }

    /// One transaction; false if a comparison failed.
    fn change(&self, compare: Vec<Compare>, success: Vec<RequestOp>) -> Result<bool, Error> {
        let answer = self.txn(TxnRequest {
            compare,
            success,
            failure: Vec::new(),
        })?;
        Ok(answer.succeeded)
    }
}

fn damaged() -> Error {
    Error::Corrupt("a part of a large commit is missing in etcd, or damaged".into())
}

/// Changes as parts: of each, the length of the key and the key; 0 for a key that is deleted, or
/// one more than the length of its value, and the value.
fn encode(changes: &[Entry]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    for change in changes {
        let last = parts.last().map_or(0, Vec::len);
        if last > 0 && last + bytes_of(change) > PART_BYTES {
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            let (key, value) = change;
            put_length(part, key.len());
            part.extend_from_slice(key);
            put_length(part, value.as_ref().map_or(0, |value| value.len() + 1));
            part.extend_from_slice(value.as_deref().unwrap_or_default());
        }
    }
    parts
}

fn put_length(part: &mut Vec<u8>, length: usize) {
    // Limits of keys and values are far below.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    part.extend_from_slice(&length.to_be_bytes());
}

fn decode(mut part: &[u8], overlay: &mut Overlay) -> Result<(), Error> {
    while !part.is_empty() {
        let length = take_length(&mut part)?;
        let key = take(&mut part, length)?;
        let value = match take_length(&mut part)? {
            0 => None,
            more => Some(take(&mut part, more - 1)?),
        };
        overlay.insert(key, value);
    }
    Ok(())
}

fn take_length(part: &mut &[u8]) -> Result<usize, Error> {
    let (length, rest) = part.split_first_chunk().ok_or_else(damaged)?;
    *part = rest;
    Ok(u32::from_be_bytes(*length) as usize)
}

fn take(part: &mut &[u8], length: usize) -> Result<Vec<u8>, Error> {
    let (bytes, rest) = part.split_at_checked(length).ok_or_else(damaged)?;
    *part = rest;
    Ok(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_from_parts_as_they_were_written() -> Result<(), Error> {
        let mut changes: Vec<Entry> = (0..40u8)
            .map(|number| (vec![number; 9], Some(vec![number; 64 * 1024])))
            .collect();
        changes.push((b"empty".to_vec(), Some(Vec::new())));
        changes.push((b"gone".to_vec(), None));
        let parts = encode(&changes);
        assert!(parts.len() > 2);
        let mut overlay = Overlay::new();
        for part in &parts {
            assert!(part.len() < PART_BYTES * 5 / 4);
            decode(part, &mut overlay)?;
        }
        assert_eq!(overlay, changes.into_iter().collect());
        let cut = &parts[0][..parts[0].len() - 1];
        assert!(matches!(decode(cut, &mut overlay), Err(Error::Corrupt(_))));
        Ok(())
    }
}
