//! Whether a holder answers, and what of it is left when it comes back.
//!
//! A holder is silent first, and lost once its lease has ended: until then it may be writing, and
//! what it has may be the newest. One that comes back after a reboot has nothing in memory any
//! more. Such a file is said to be lost, never empty, and never what the PFS had before.

use crate::placement::TierKind;

/// When silence begins to mean something. Seconds since the last answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HolderLease {
    /// From here on nothing new goes there.
    pub silent_after_s: f64,
    /// From here on it is fenced: it has ended by its own clock to serve anybody. Not below
    /// `silent_after_s`, and by the rates of clocks above what the holder itself counts
    /// ([`HolderLease::of_holder_s`]).
    pub lost_after_s: f64,
}

impl HolderLease {
    /// A lease of `lease_s` seconds, at least a tenth; a holder is silent after a quarter of it.
    pub fn new(lease_s: f64) -> Self {
        let lost_after_s = lease_s.max(0.1);
        Self {
            silent_after_s: lost_after_s / 4.0,
            lost_after_s,
        }
    }

    /// When the holder itself stops to serve, in seconds since it *asked* for what was its last
    /// answer: earlier by what two clocks may differ in rate.
    pub fn of_holder_s(&self) -> f64 {
        let error = crate::leadership::CLOCK_RATE_ERROR;
        self.lost_after_s * (1.0 - error) / (1.0 + error)
    }
}

/// What is thought of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    /// It answers.
    Answering,
    /// It has not answered lately. It may be writing.
    Silent,
    /// Its lease has ended. What it has counts again only after [`on_return`].
    Lost,
}

/// The judgement on one that has last answered at `answered_at_s`. Once lost it stays lost:
/// `before` is the last judgement.
pub fn judge(before: Liveness, answered_at_s: f64, now_s: f64, lease: &HolderLease) -> Liveness {
    let silent_s = now_s - answered_at_s;
    match before {
        Liveness::Lost => Liveness::Lost,
        _ if silent_s >= lease.lost_after_s => Liveness::Lost,
        _ if silent_s >= lease.silent_after_s => Liveness::Silent,
        _ => Liveness::Answering,
    }
}

/// Seconds until the judgement becomes another if no answer comes; `None`: never.
pub fn next_change_s(answered_at_s: f64, now_s: f64, lease: &HolderLease) -> Option<f64> {
    [lease.silent_after_s, lease.lost_after_s]
        .into_iter()
        .map(|after_s| answered_at_s + after_s - now_s)
        .find(|left_s| *left_s > 0.0)
}

/// Which life of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// Of the node: another after a reboot, which empties memory.
    pub boot: u64,
    /// Of the data server: another after its restart, which empties nothing.
    pub start: u64,
    /// Of its tiers' folders: another where somebody has made them anew.
    pub tiers: u64,
}

/// What has happened to a holder that answers again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Return {
    /// Nothing: a connection was cut, and its lease had not ended.
    Same,
    /// Its server was started again, or its lease had ended: objects are where they were, and those
    /// that were being written are looked at.
    Restarted,
    /// The node was: memory is empty, and of what was not flushed nobody knows what is on flash.
    Rebooted,
    /// Its tiers are others: it has nothing of what it had.
    Replaced,
}

/// Compares two lives of a holder.
pub fn on_return(was: Incarnation, is: Incarnation, before: Liveness) -> Return {
    if was.tiers != is.tiers {
        Return::Replaced
    } else if was.boot != is.boot {
        Return::Rebooted
    } else if was.start != is.start || before == Liveness::Lost {
        Return::Restarted
    } else {
        Return::Same
    }
}

/// An object, as the metadata server has it on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnRecord {
    /// The tier that it was in.
    pub kind: TierKind,
    /// The PFS has this content, verified, and nobody can have written since: no client has it open
    /// for that.
    pub is_clean: bool,
    /// Another holder that answers has all writes that were acknowledged.
    pub has_copy: bool,
    /// The file went on elsewhere while the holder was away: this object is of an older generation.
    pub is_superseded: bool,
}

impl OnRecord {
    fn without_object(&self) -> Remains {
        match (self.has_copy, self.is_clean) {
            (true, _) => Remains::Copy,
            (false, true) => Remains::Pfs,
            (false, false) => Remains::Lost,
        }
    }
}

/// What becomes of a file whose object was on a holder that is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remains {
    /// The object is what it was.
    Object,
    /// The object is looked at: [`crate::durability::of_undrained`] decides. Where it is not whole,
    /// the answer is that for [`Return::Replaced`].
    LookAt {
        /// [`crate::durability::Found::may_be_torn`].
        may_be_torn: bool,
    },
    /// The copy becomes the file; an object left here is garbage.
    Copy,
    /// The PFS has it; an object left here is garbage.
    Pfs,
    /// It is lost: reads fail with EIO, and `status` names it until a person has decided.
    Lost,
}

/// Decides that.
pub fn remains(back: Return, object: &OnRecord) -> Remains {
    let is_gone = match back {
        Return::Same | Return::Restarted => false,
        Return::Rebooted => object.kind == TierKind::Dram,
        Return::Replaced => true,
    };
    if is_gone || object.is_superseded {
        return object.without_object();
    }
    match back {
        Return::Same => Remains::Object,
        _ => Remains::LookAt {
            may_be_torn: back == Return::Rebooted,
        },
    }
}

/// What a request does that needs an object of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// It goes to the holder.
    Holder,
    /// To the holder of the copy.
    Copy,
    /// To the PFS. A write begins with the content from there.
    Pfs,
    /// It waits for the holder to come back, or to be lost.
    Wait,
    /// It fails with EIO; `status` names the file.
    Fail,
}

/// Decides that. `is_soft`: as mounted; a hard mount waits. Reads need not wait for a silent holder
/// where the same bytes are elsewhere. A write leaves a holder only once its lease has ended: until
/// then both might take writes.
pub fn access(holder: Liveness, object: &OnRecord, is_write: bool, is_soft: bool) -> Access {
    if holder == Liveness::Answering {
        return Access::Holder;
    }
    let is_lost = holder == Liveness::Lost;
    match object.without_object() {
        _ if is_write && !is_lost => Access::Wait,
        Remains::Copy => Access::Copy,
        Remains::Pfs => Access::Pfs,
        _ if is_soft && is_lost => Access::Fail,
        _ => Access::Wait,
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
